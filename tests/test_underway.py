"""What `status` says of the moment: what is under way, since when, and how long the study has lasted."""

import signal
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from metaloop.cli.output import trial_line
from metaloop.cli.underway import SHOWN, Since, Work, in_a_line, next_try, note, works
from metaloop.events import Asked, Engaged, Entry, Fact, Faulted, Finished, Replied, Reply, RoundOpened, Started
from metaloop.study import Study, evolve, fold
from test_agent_limits import employed, employing
from test_agent_rounds import Worker, lab
from test_code_study import BETTER, ideas, shop
from workshop import Workshop, until


class Reader:
    """A study that is read as it happens; entries are ten seconds apart."""

    def __init__(self, facts: list[Fact], **bounds: object) -> None:
        self.study, self.since = Study(), Since()
        opened = lab(Worker(0), 9, **bounds)
        opened.session()
        self.happen(*(entry.event for entry in opened.entries[:3]), *facts)

    def happen(self, *facts: Fact) -> None:
        for fact in facts:
            entry = Entry(self.study.place + 1, 0.0, 1000.0 + 10 * self.study.place, fact)
            evolve(self.study, entry)
            note(self.since, entry)

    def line(self, now: float) -> str:
        return in_a_line([*works(self.study, self.since, now)])


SESSION = [
    RoundOpened(1, "search", 3),
    Asked(1, "propose", 0, ("d",), ("agent",)),
    Engaged(1, "propose", 0, 65536, "h", 0),
]


def test_a_session_is_told_with_its_trial_and_its_limit() -> None:
    """From where it was engaged on, until it has answered; the brief is not what is waited for."""
    reader = Reader(SESSION[:2])
    assert reader.line(1042) == ""
    reader.happen(SESSION[2])
    assert reader.line(1062) == "agent on trial 0, 12 s of 30 min"
    reader.happen(Replied(1, "propose", 0, 0, Reply("{}")))
    assert reader.line(1090) == ""


def test_a_run_is_told_until_it_has_finished() -> None:
    """With its number, unless it is the first look; clocks that go back make no negative times."""
    worker = lab(Worker(0), 1)
    worker.session()
    study, since = Study(), Since()
    places = {type(e.event): e.place for e in worker.entries if isinstance(e.event, Started | Finished)}
    for entry in worker.entries:
        entry = replace(entry, unix=1000.0)
        evolve(study, entry)
        note(since, entry)
        if entry.place == places[Started]:
            assert in_a_line([*works(study, since, 1040.0)]) == "trial 1, 40 s"
            assert in_a_line([*works(study, since, 900.0)]) == "trial 1, 0 s"
    assert not [*works(study, since, 2000.0)]
    assert not since


def test_of_many_lanes_a_line_shows_some() -> None:
    """Agents first, then what runs for longest; and how many more there are."""
    many = [Work("trial", float(n), n, n % 2) for n in range(40)] + [Work("agent", 3.0, 7, limit_s=60.0)]
    told = in_a_line(many)
    assert told.startswith("agent on trial 7, 3 s of 60 s; trial 39 (run 1), 39 s; trial 38, 38 s; ")
    assert told.endswith(f"; and {len(many) - SHOWN} more")
    assert len(told) < 200


def test_the_next_try_of_a_round_that_faulted_is_told() -> None:
    """In seconds from now, until it is there."""
    reader = Reader([*SESSION, Replied(1, "propose", 0, 0, Reply("{}")), Faulted(1, "propose", "no")])
    assert next_try(reader.study, 0.25) == 0.75
    assert next_try(reader.study, 1.0) is None


# ---- by the command line ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_status_tells_what_is_under_way_and_time_goes_on(tmp_path: Path) -> None:
    """Between two facts; for people and for programs. Of an agent, then of a trial, then of nothing."""
    made = employing(tmp_path, "WHY: more", seconds=6)
    process = made.start("run", "study.yaml")
    until(lambda: len(employed(made)) == 1, 30)
    first = made("status", "--json").json
    time.sleep(1.2)
    said = made("status").out
    second = made("status", "--json").json
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert "under way: agent on trial 0, " in said
    assert " s of 20 s\n" in said
    assert "0 of 2 trials; best 0.1 (trial 0); wall clock " in said
    assert said.count(" of 8 h\n") == 1
    (one,), (other,) = first["under_way"], second["under_way"]
    assert (one["what"], one["trial"], one["limit_s"]) == ("agent", 0, 20)
    assert other["seconds"] - one["seconds"] > 1
    assert second["wall_clock_s"] - first["wall_clock_s"] > 1
    assert second["max_iterations"] == 2
    ended = [made("status", "--json").json for _ in range(2)]
    assert ended[0]["under_way"] == []
    assert ended[0]["wall_clock_s"] == ended[1]["wall_clock_s"]
    assert "agent: took " in made("status").out


@pytest.mark.slow
def test_status_tells_of_trials_and_of_what_a_killed_controller_left(tmp_path: Path) -> None:
    """The latter runs on, and is not told as if somebody waited for it; nor does the study's time go on."""
    w = Workshop(tmp_path, "time.sleep(8)\nprint('score=1')\n")
    process = w.start("run", "study.yaml")
    until(lambda: list(w.study.glob("trials/*/*/train.out")), 20)
    assert "under way: trial 1, " in w("status").out
    process.kill()
    process.communicate()
    told = w("status")
    assert "left at work: trial 1, " in told.out
    assert w("status", "--json").json["wall_clock_s"] == w("status", "--json").json["wall_clock_s"]
    assert w.run(timeout=100).code == 0


@pytest.mark.slow
def test_status_tells_of_rounds_that_fault_and_of_the_next_try(tmp_path: Path) -> None:
    """What was wrong, how often running, and when it goes on."""
    made = employing(tmp_path, "")
    (tmp_path / "agent.py").write_text("import sys\nsys.exit('rate limit reached, try again at 02:00')\n")
    process = made.start("run", "study.yaml")
    state: dict = {}

    def waits() -> bool:
        if (made.study / "ledger.sqlite").exists():
            state.update(made("status", "--json").json["faults"])
        return state.get("running", 0) >= 3 and (state["next_try_s"] or 0) > 3

    until(waits, 40)
    said = made("status").out
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert "exit code 1: rate limit reached, try again at 02:00; next try in " in said
    assert f"  {state['running']} rounds running could not be thought through; the last: " in said
    assert state["next_try_s"] <= 2 ** (state["running"] - 1)
    assert "round 2 begins anew: " in err
    assert "02:00; next try in 1 s\n" in err
    assert "02:00; next try in 2 s\n" in err


# ---- where a trial comes from ----------------------------------------------------------------------------------------


def test_a_line_tells_what_a_trial_grew_from_where_that_is_not_always_the_best() -> None:
    """In a narrow column; without a strategy there is none."""
    for frontier in ({"strategy": "top_k", "k": 2}, {}):
        made = lab(Worker(0), 3, frontier=frontier)
        made.session()
        study = fold(made.entries)
        lines = [trial_line(study, study.trials[number]) for number in (0, 1, 3)]
        assert [" s  from " in told for told in lines] == [False, bool(frontier), bool(frontier)]
        assert len({told.rindex("  ") for told in lines[1:]}) == 1


@pytest.mark.slow
def test_a_line_tells_which_patch_a_trial_is(tmp_path: Path) -> None:
    """By its name, cut to fit."""
    made = shop(tmp_path)
    ideas(made, *BETTER[:2])
    (tmp_path / "ideas" / "02.txt").rename(tmp_path / "ideas" / "a-name-that-is-much-too-long.txt")
    assert made.run().code == 0
    told = made("status").out
    assert "  01.txt                src/model.py +1 -1" in told
    assert "  a-name-that-is-much\u2026  src/other.py +1 -1" in told
