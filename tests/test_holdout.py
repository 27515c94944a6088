"""Held-out data: scored when the search is over, once a trial, and nothing is decided by it."""

import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from metaloop.audit import audit
from metaloop.config import thought_of
from metaloop.engine import commit
from metaloop.evaluators.metric import reader
from metaloop.events import Directed, Entry, Finished, Resumed, RoundOpened, Started, StudyClosed
from metaloop.jobs import Surroundings, job, of_held_out
from metaloop.plan import OpenRound, plan
from metaloop.records import held_out, row, rows
from metaloop.report import report
from metaloop.roles import Outcome, StepOutcome
from metaloop.study import HELD_OUT, Study, fold
from metaloop.terms import Baseline, Gate, Host
from metaloop.testing import Crash, Lab, MemoryLedger, shuffled
from metaloop.values import Failed, Objective, Ran, Scalar
from test_code_study import block, ideas, shop
from test_engine import decisions, lab, proven_lab, provisional_lab
from test_tree import grown
from workshop import Workshop, until

PYTHON = [sys.executable, "-c"]


def fitted(values: dict[str, Scalar]) -> str:
    """On held-out data the gain is a tenth of what the search saw."""
    return f"score={0.5 + (1 - (float(values.get('x', 0.9)) - 0.3) ** 2) / 10!r}"


def sealed(lanes: int = 1, make: object = lab, **changes: object) -> Lab:
    made = make(lanes, holdout=("holdout",), **changes)
    made.machine.held = fitted
    return made


def once(lanes: int = 1, **changes: object) -> Lab:
    """A study that repeats no run."""
    return lab(lanes, baseline=Baseline(repeats=1), **changes)


def ended(study: Lab) -> Study:
    study.session()
    assert not list(audit(study.entries, lambda _: study.thought))
    return fold(study.entries)


def scored(study: Lab) -> Counter[int]:
    """How often the command on held-out data was run, by trial."""
    return Counter({int(trial): count for (trial, run), count in study.machine.executions.items() if run == "held"})


def opened(study: Lab) -> list[str]:
    return [entry.event.role for entry in study.entries if isinstance(entry.event, RoundOpened)]


def opened_at(study: Lab) -> int:
    """The place where the first round on held-out data opened."""
    return next(e.place for e in study.entries if isinstance(e.event, RoundOpened) and e.event.role == "holdout")


# ---- when, and of what -----------------------------------------------------------------------------------------------


def test_baseline_and_best_are_scored_once_when_the_search_is_over() -> None:
    """And after the closing pairs, where a study ends with some."""
    for make in (lab, proven_lab, provisional_lab):
        made = sealed(make=make)
        study = ended(made)
        assert study.tally.incumbent not in (None, 0)
        assert scored(made) == {0: 1, study.tally.incumbent: 1}
        assert opened(made)[-2:] == ["holdout", "holdout"]
        assert opened(made).count("holdout") == 2
        assert study.held_value(0) == pytest.approx(0.564)
        assert study.closed.reason == "max_iterations"


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("make", [lab, once, proven_lab, provisional_lab])
def test_nothing_that_is_decided_changes_by_it(make: object, lanes: int) -> None:
    """Whether there are held-out data, what they say, and whether the command works: the same study comes out."""
    plain, with_it, broken = make(lanes, order="strict"), *(sealed(lanes, make, order="strict") for _ in range(2))
    broken.machine.held = lambda _: "exit 3"
    studies = [ended(study) for study in (plain, with_it, broken)]
    assert decisions(plain) == decisions(with_it) == decisions(broken)
    for study in studies[1:]:
        for name in (
            "headline", "tally", "tallies", "evidence", "blocks", "tests", "crowns", "ended", "run_seconds", "rerun_at",
            "differed_at", "provisional", "front", "faults",
        ):  # fmt: skip
            assert getattr(study, name) == getattr(studies[0], name), name
        cost = [[(r.seconds, r.attempts) for r in rows(s)] for s in (studies[0], study)]
        assert cost[0] == cost[1]


@pytest.mark.parametrize(
    ("bounds", "changes", "reason"),
    [
        ({"no_improve_limit": 2}, {}, "no_improvement"),
        ({}, {"objective": Objective("score", "max", target=0.9)}, "target"),
        ({"failure_rate_limit": 0.1, "failure_window": 2}, {"seed": 2}, "failure_rate"),
        ({}, {"policy": "grid", "space": {"kind": lab().terms.space["kind"]}}, "exhausted"),
    ],
)
def test_whatever_guard_ends_a_study(bounds: dict, changes: dict, reason: str) -> None:
    made = sealed(**changes)
    made.bounds = replace(made.bounds, max_iterations=60, **bounds)
    study = ended(made)
    assert study.closed.reason == reason
    assert scored(made) == dict.fromkeys({0, study.tally.incumbent}, 1)


def test_a_study_that_is_cut_short_scores_nothing_and_says_so() -> None:
    made = sealed()
    made.bounds = replace(made.bounds, max_iterations=10**6, max_wall_time_s=3e-4)
    study = ended(made)
    assert (study.closed.reason, scored(made)) == ("wall_clock", {})
    assert set(held_out(study).problems.values()) == {"the study ended before that"}
    assert "the study ended before that" in report(study)


def test_all_that_was_kept_is_scored_where_that_is_asked_for() -> None:
    """Also after the end: the same command then scores the rest, and what was scored is not scored again."""
    made = sealed()
    made.bounds = replace(made.bounds, max_iterations=20)
    first = ended(made)
    assert len(scored(made)) == 2
    made.bounds = replace(made.bounds, holdout="kept")
    study = ended(made)
    kept = {number for number, trial in study.trials.items() if trial.kept}
    assert len(kept) > 3
    assert scored(made) == dict.fromkeys(kept, 1)
    assert decisions(made) == [(t.number, t.change.values, t.score, t.verdict, t.why) for t in first.trials.values()]
    before = len(made.entries)
    ended(made)
    assert len(made.entries) == before  # nothing to do, and not a byte is written


def test_what_is_kept_in_the_tree_and_never_wore_the_crown_is_scored_too() -> None:
    made = grown([(0, 5.0), (0, 2.0), (0, 0.5)], holdout=("holdout",))
    made.machine.held = fitted
    made.bounds = replace(made.bounds, holdout="kept")
    assert [trial.verdict for trial in ended(made).trials.values()] == ["crowned", "crowned", "kept", "discarded"]
    assert scored(made) == {0: 1, 1: 1, 2: 1}


def test_where_it_ran_is_not_where_the_trial_ran() -> None:
    """Results of the search are compared on the hardware that they had, whatever the end ran on."""
    made = sealed()
    ended(made)
    there = next(entry for entry in made.entries if isinstance(entry.event, Resumed))
    moved = replace(there, event=replace(there.event, host=Host("f" * 16)))
    at = opened_at(made) - 1
    study = fold([*made.entries[:at], moved, *made.entries[at:]])
    assert {trial.fingerprint for trial in study.trials.values()} == {there.event.host.fingerprint}


def test_a_study_that_goes_on_scores_its_new_best_and_nothing_twice() -> None:
    made = sealed()
    made.bounds = replace(made.bounds, max_iterations=2)
    first = ended(made).tally.incumbent
    made.bounds = replace(made.bounds, max_iterations=30)
    second = ended(made).tally.incumbent
    assert first != second
    assert scored(made) == {0: 1, first: 1, second: 1}


def test_without_a_baseline_the_best_alone_is_scored() -> None:
    made = sealed(baseline=Baseline("none", repeats=0))
    study = ended(made)
    assert scored(made) == {study.tally.incumbent: 1}
    assert (held_out(study).gain, held_out(study).said) == (None, "")


def test_where_nothing_was_better_the_baseline_is_scored() -> None:
    made = sealed()
    made.machine.function = lambda values, seed: f"score={0.0 if values else 1.0}"
    study = ended(made)
    assert (study.tally.incumbent, scored(made)) == (0, {0: 1})


def test_the_search_waits_for_a_run_on_held_out_data_that_an_end_has_begun() -> None:
    """It was interrupted there, and more trials were asked for: none begins while that run lasts."""
    made = sealed(2)
    for crash in range(0, 200, 2):
        made = sealed(2)
        with pytest.raises(Crash):
            made.session(crash)
        if any(isinstance(e.event, Started) and e.event.run == HELD_OUT for e in made.entries):
            break
    here = len(made.entries)
    made.bounds = replace(made.bounds, max_iterations=12, lanes=4)
    study = ended(made)
    later = [e.event for e in made.entries[here:]]
    assert fold(made.entries[:here]).open
    searched = next(n for n, e in enumerate(later) if isinstance(e, RoundOpened) and e.role == "search")
    over = [n for n, e in enumerate(later) if isinstance(e, Finished) and e.run == HELD_OUT]
    assert over[0] < searched
    assert all(count == 1 for count in scored(made).values())
    assert {0, study.tally.incumbent} <= scored(made).keys()


def test_a_paused_study_does_not_end_without_it() -> None:
    """It waits until it goes on, and then asks for it."""
    made = sealed()
    ended(made)
    entries = made.entries[: opened_at(made) - 1]
    study = fold(entries)
    commit(MemoryLedger(entries), study, study.at, [Directed("p", "pause", "anna")], ())
    assert [type(act).__name__ for act in plan(study, study.at)] == ["WakeAt"]
    commit(MemoryLedger(entries), study, study.at, [Directed("r", "resume", "anna")], ())
    assert [act.role for act in plan(study, study.at) if isinstance(act, OpenRound)] == ["holdout"]


# ---- crashes, and lies -----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    lanes=st.integers(1, 4),
    order=st.sampled_from(["free", "strict"]),
    make=st.sampled_from([lab, proven_lab, provisional_lab]),
    which=st.sampled_from(["ends", "kept"]),
    crashes=st.lists(st.integers(0, 40), max_size=8),
    ends=st.integers(0, 1000),
)
def test_whatever_dies_when_each_is_scored_once_and_none_is_lost(
    lanes: int, order: str, make: object, which: str, crashes: list[int], ends: int
) -> None:
    """The audit derives every one of them; in strict order it is the study of one lane that nothing happened to."""
    made = sealed(lanes, make, order=order)
    made.bounds = replace(made.bounds, holdout=which)
    made.machine.order = shuffled(ends)
    made.to_the_end(iter(crashes))
    assert not list(audit(made.entries, thought_of))
    study = fold(made.entries)
    kept = {number for number, trial in study.trials.items() if trial.kept} if which == "kept" else set()
    assert scored(made) == dict.fromkeys({0, study.tally.incumbent} | kept, 1)
    asked = [e.event.trial for e in made.entries if isinstance(e.event, RoundOpened) and e.event.role == "holdout"]
    assert len(asked) == len(set(asked))
    finished = [(e.event.trial, e.event.run) for e in made.entries if isinstance(e.event, Finished)]
    assert len(finished) == len(set(finished)) == sum(made.machine.executions.values())
    if order == "strict":
        calm = sealed(1, make, order=order)
        calm.bounds = replace(calm.bounds, holdout=which)
        other = ended(calm)
        assert decisions(made) == decisions(calm)
        assert {n: study.held_value(n) for n in study.held} == {n: other.held_value(n) for n in other.held}


def test_the_audit_finds_what_was_left_out_or_asked_of_another() -> None:
    made = sealed()
    ended(made)
    entries = made.entries

    def lied(change: object) -> bool:
        return bool(list(audit([e for e in map(change, entries) if e is not None], thought_of)))

    first = opened_at(made)
    closed = next(e for e in entries if isinstance(e.event, StudyClosed))
    assert not lied(lambda e: e)
    assert list(audit([*entries[: first - 1], replace(closed, place=first)], thought_of)), "closed without it"
    assert lied(lambda e: replace(e, event=replace(e.event, trial=3)) if e.place == first else e), "of another trial"

    def early(entry: Entry) -> Entry:
        second = isinstance(entry.event, RoundOpened) and entry.event.round == 4
        return replace(entry, event=replace(entry.event, role="holdout", trial=0)) if second else entry

    assert lied(early), "during the search"

    def forged(entry: Entry) -> Entry:
        held = isinstance(entry.event, Finished) and entry.event.run == HELD_OUT
        return replace(entry, event=replace(entry.event, result=Ran({"score": 9.0}))) if held else entry

    assert lied(forged), "another number than the decision tells of"


# ---- what the candidate is told --------------------------------------------------------------------------------------


def test_the_candidate_cannot_tell_it_from_another_attempt_of_its_first_run() -> None:
    """Same seed, same variables, the same steps before it, gates left out; the command alone has what it needs."""
    changes = {"evaluate": ("judge",), "gates": (Gate("g", ("gate",)), Gate("h", ("gate",), "post"))}
    made = sealed(**changes)
    study = ended(made)
    best, where = study.tally.incumbent, Surroundings("/s", "/w", {}, {})
    first, held = (job(study, best, run, attempt=1, lane=0, nonce="n", where=where) for run in (0, HELD_OUT))
    assert [step.name for step in first.steps] == ["gate-g", "train", "evaluate", "gate-h"]
    assert [step.name for step in held.steps] == ["train", "evaluate", "holdout"]
    assert held.env == first.env
    assert (first.dir, held.dir) == (f"/s/trials/{best:04}/r0-a1-n", f"/s/trials/{best:04}/r0-a2-n")
    assert [s.env for s in held.steps[:2]] == [
        {k: v.replace("r0-a1", "r0-a2") for k, v in s.env.items()} for s in first.steps[1:3]
    ]
    assert "holdout" not in repr((held.env, held.steps[:2], held.dir))
    assert held.steps[2].argv == ("holdout",)
    assert set(held.steps[2].env) == {"METALOOP_METRICS"}
    assert [of_held_out(study, best, Path(made.dir).name) for made in (first, held)] == [False, True]


def test_what_proposes_sees_nothing_of_it() -> None:
    """Not in any trial that a view shows, though the search goes on after an end."""
    made = sealed()
    made.bounds = replace(made.bounds, max_iterations=3)
    ended(made)
    study = fold(made.entries)
    assert study.held.keys() == {0, study.tally.incumbent}
    for trial in study.trials.values():
        assert HELD_OUT not in trial.runs
        assert "0.5" not in repr([run.last for run in trial.runs.values()])


def test_its_metrics_alone_count_and_the_objective_alone_is_needed() -> None:
    """Constraints and further objectives belong to the search; a run that fails before it, or in it, says why."""
    terms = replace(sealed().terms, others=(Objective("ms", "min"),))

    def read(*steps: StepOutcome) -> Ran | Failed:
        return reader(terms)(Outcome(steps))

    def step(name: str, out: str, code: int = 0) -> StepOutcome:
        return StepOutcome(name, code, None, None, 1.0, out, "sorry")

    train = step("train", "score=1\nms=3")
    assert read(train, step("holdout", "score=0.5")) == Ran({"score": 0.5}, 2.0)
    assert read(train, step("holdout", "ms=3")).reason.startswith("metric 'score' is missing")
    assert read(train, step("holdout", "", 3)) == Failed(
        "evaluation", "holdout ended with exit code 3: sorry", 2.0, "sorry"
    )
    assert read(step("train", "", 1)).kind == "hypothesis"


# ---- what people and programs are told -------------------------------------------------------------------------------


def told(old: str, new: str, held_old: str, held_new: str, direction: str = "max") -> Study:
    """A study whose best and baseline come to these, in the search and on held-out data."""
    made = sealed(objective=Objective("score", direction))
    made.machine.function = lambda values, seed: new if values else old
    made.machine.held = lambda values: held_new if values else held_old
    return ended(made)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ("score=2.5", ""),
        ("score=1.9", ""),
        ("score=1.2", "0.2 of the 1 that trial 1 gained in the search (20 %) is left"),
        ("score=1", "no better than the baseline"),
        ("score=0.5", "worse than the baseline by 0.5: its gain in the search, 1, does not hold there"),
    ],
)
def test_one_sentence_says_that_a_gain_does_not_hold(held: str, said: str) -> None:
    study = told("score=1", "score=2", "score=1", held)
    found = held_out(study)
    assert (said in found.said, bool(found.said)) == (True, bool(said))
    assert (found.said.replace("%", "") in report(study).replace("%", "")) is True
    assert found.searched == 1.0


def test_a_gain_is_one_in_the_direction_of_the_study() -> None:
    study = told("score=2", "score=1", "score=3", "score=4", "min")
    assert (held_out(study).searched, held_out(study).gain) == (1.0, -1.0)
    assert "worse than the baseline by 1" in held_out(study).said
    assert "| 1 | best | 1 | 4 | -3 |" in report(study)
    assert "| 0 | baseline | 2 | 3 | -1 |" in report(study)


def test_one_that_fails_is_told_with_its_reason_and_nothing_is_said_of_a_gain() -> None:
    study = told("score=1", "score=2", "score=1", "exit 3")
    found = held_out(study)
    assert found.values == {0: 1.0}
    assert found.problems == {1: "holdout ended with exit code 1"}
    assert (found.gain, found.said) == (None, "")
    assert "| 1 | best | 2 | holdout ended with exit code 1 |" in report(study)
    assert (row(study, study.trials[1]).holdout, row(study, study.trials[1]).holdout_problem) == (
        None, "holdout ended with exit code 1")  # fmt: skip


# ---- real processes --------------------------------------------------------------------------------------------------

HOLDOUT = """
import json, os
with open('held.txt', 'a') as f:
    f.write(os.environ['METALOOP_TRIAL'] + '\\n')
values = json.loads(os.environ['AR_PARAMS_JSON'])
json.dump({'score': 2.0 - values.get('x', 0.1), 'extra': 7}, open(os.environ['METALOOP_METRICS'], 'w'))
"""
SCRIPT = """
open('ran.txt', 'a').write(os.environ['METALOOP_TRIAL'] + '\\n')
assert 'holdout' not in repr(sorted(os.environ.items()))
x = P.get('x', 0.1)
print(f'score={x!r}')
"""


def workshop(folder: Path, **keys: object) -> Workshop:
    made = Workshop(folder, SCRIPT)
    (folder / "sealed.py").write_text(HOLDOUT)
    target = {"holdout_cmd": [sys.executable, "sealed.py"]}
    made.write(target=target, evaluation={"baseline_repeats": 1}, **keys)
    return made


def held_txt(made: Workshop) -> list[str]:
    path = made.folder / "held.txt"
    return path.read_text().splitlines() if path.exists() else []


def test_a_whole_study_tells_of_it_everywhere(tmp_path: Path) -> None:
    copies = {"artifacts_dir": "runs", "ledger_path": "results.tsv"}
    made = workshop(tmp_path, telemetry=copies)
    checked = made("check", "study.yaml")
    assert "target.holdout_cmd is there, and was not run" in checked.out + checked.err
    assert (checked.code, held_txt(made)) == (0, [])
    done = made.run()
    assert done.code == 0
    best = made("best", "--json").json["best"]
    assert held_txt(made) == ["0", str(best["trial"])]
    assert f"trial {best['trial']} on held-out data: score = {2 - best['value']:.6g}" in done.err
    assert "worse than the baseline" in done.out
    assert [line[:5] for line in done.err.splitlines() if line[:4].strip().isdigit()] == [f"{n:>4} " for n in range(4)]
    assert (tmp_path / "results.tsv").read_text() == made("export").out
    assert best["holdout"] == 2.0 - best["value"]
    status = made("status")
    assert "held out: score = 1.9 (the baseline), " in status.out
    assert "does not hold there" in status.out
    found = made("status", "--json").json["holdout"]
    assert found["values"] == {"0": 1.9, str(best["trial"]): best["holdout"]}
    assert found["gain"] < 0 < found["searched"]
    assert made.run("--json").json["holdout"] == found
    shown = made("show", str(best["trial"]))
    assert "  held out  ran in" in shown.out
    assert f"score = {best['holdout']!r}" in shown.out
    assert made("show", str(best["trial"]), "--json").json["held_out"]["result"]["metrics"]["extra"] == 7
    assert "## On held-out data" in made("report").out
    head, *lines = made("export").out.splitlines()
    column = head.split("\t").index("holdout")
    assert [bool(line.split("\t")[column]) for line in lines] == [n in (0, best["trial"]) for n in range(4)]
    assert made("audit").code == 0
    assert "on held-out data" in made("replay").out
    made.write(evaluation={"baseline_repeats": 1, "holdout": "kept"})
    assert made.run().code == 0
    kept = [str(r["trial"]) for r in made.rows() if r["decision"] == "keep"]
    assert sorted(held_txt(made)) == sorted(kept)
    assert sorted(path.name for path in (tmp_path / "runs/run-0000").iterdir()) == [
        "r0-result.json", "r0-train.err", "r0-train.out"]  # fmt: skip
    (tmp_path / ".metaloop/s/trials" / f"{best['trial']:04}").rename(tmp_path / "away")
    assert made("audit").code == 0


def test_a_number_that_was_changed_on_disk_is_found_by_the_audit(tmp_path: Path) -> None:
    made = workshop(tmp_path)
    made.run()
    path = next(made.study.glob("trials/0000/r0-a2-*/metrics.json"))
    path.write_text('{"score": 5.0}')
    assert made("audit").code == 6


def test_another_command_or_script_is_another_study(tmp_path: Path) -> None:
    """Neither may change between runs, nor may it be added later; how much of it is run may."""
    made = workshop(tmp_path)
    assert made.run().code == 0
    script = (tmp_path / "sealed.py").read_text()
    (tmp_path / "sealed.py").write_text(script + "\n")
    done = made.run("--max-iterations", "4")
    assert (done.code, "sealed.sealed.py was" in done.err) == (2, True), done.err
    (tmp_path / "sealed.py").write_text(script)
    made.write(target={"holdout_cmd": [sys.executable, "sealed.py", "more"]})
    done = made.run("--max-iterations", "4")
    assert (done.code, "holdout was" in done.err) == (2, True), done.err


def test_a_trial_that_writes_over_what_is_sealed_ends_the_study(tmp_path: Path) -> None:
    made = workshop(tmp_path)
    (tmp_path / "train.py").write_text(
        (tmp_path / "train.py").read_text() + "if os.environ['METALOOP_TRIAL'] == '2': open('sealed.py', 'w')\n"
    )
    done = made.run()
    assert (done.code, "sealed.py: a frozen file was changed" in done.err) == (2, True), done.err
    assert held_txt(made) == []


def test_one_that_fails_changes_no_exit_code(tmp_path: Path) -> None:
    made = workshop(tmp_path)
    (tmp_path / "sealed.py").write_text("raise SystemExit('no data')")
    done = made.run()
    assert done.code == 0
    assert "could not be scored: holdout ended with exit code 1: no data" in done.out
    assert made.run("--fail-if-no-improvement").code == 0
    assert made("audit").code == 0


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"target": {"holdout_cmd": ["no-such-thing"]}}, "target.holdout_cmd: expected a program that can be run"),
        ({"target": {"holdout_cmd": []}}, "target.holdout_cmd: expected at least one entry"),
        ({"target": {"holdout_cmd": "python3 x.py"}}, "target.holdout_cmd: expected a list"),
        ({"evaluation": {"holdout": "all"}}, "evaluation.holdout: expected 'ends' or 'kept'"),
        ({"policy": {"mutable": ["*.py"]}}, "'sealed.py' is mutable"),
        (
            {"policy": {"type": "agent", "mutable": ["train.py"], "agent": {"command": ["true"]}}},
            "expected what no coding agent finds in its copy of the folder, found 'sealed.py' there",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, keys: dict, said: str) -> None:
    done = workshop(tmp_path, **{k: v for k, v in keys.items() if k == "policy"})
    done.write(**keys)
    told = done.run()
    assert (told.code, said in told.err) == (2, True), told.err


def test_a_controller_that_is_killed_while_it_runs_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """kill -9 in the middle of the command: the next one takes it up where it is."""
    made = workshop(tmp_path, telemetry={"ledger_path": "results.tsv"})
    script = HOLDOUT + "import time; time.sleep(1.5)\n"
    (tmp_path / "sealed.py").write_text(script)
    process = made.start("run", "study.yaml")
    until(lambda: len(held_txt(made)) == 2)
    process.kill()
    process.communicate()
    done = made.run()
    assert done.code == 0, done.err
    assert len(held_txt(made)) == len(set(held_txt(made))) == 2
    found = made("status", "--json").json["holdout"]
    assert len(found["values"]) == 2
    assert (tmp_path / "results.tsv").read_text() == made("export").out
    assert made("audit").code == 0


def test_a_code_study_runs_the_candidates_code_and_believes_none_that_writes_over_the_script(tmp_path: Path) -> None:
    """In the candidate's own directory; what the command names is sealed. The second candidate behaves until its second
    run: then it puts another script there.
    """
    made = shop(tmp_path)
    script = "import sys; sys.path.insert(0, 'src'); import model; print(f'score={model.RATE * 10}')"
    (made.folder / "sealed.py").write_text(script)
    sandbox = {"write": [str(tmp_path)]}
    made.write(target={**made.keys["target"], "holdout_cmd": [sys.executable, "sealed.py"], "sandbox": sandbox})
    ideas(made, block("src/model.py", "RATE = 0.1", "RATE = 0.2"))
    assert made.run().code == 0
    assert [row["holdout"] for row in made.rows()] == [1.0, 2.0]
    flag = str(tmp_path / "again")
    trick = f"import os\nif os.path.exists({flag!r}):\n    open('sealed.py', 'w').write('print(\\'score=99\\')')\n"
    trick += f"open({flag!r}, 'w')\nRATE = 0.3"
    ideas(made, block("src/model.py", "RATE = 0.1", "RATE = 0.2"), block("src/model.py", "RATE = 0.2", trick))
    assert made.run().code == 0
    last = made.rows()[-1]
    assert (last["verdict"], last["holdout"]) == ("crowned", None)
    assert last["holdout_problem"] == "sealed.py: a frozen file was changed while it ran"
    assert made("audit").code == 0
