"""What becomes of a round whose sessions come to nothing: it begins anew, later, and sees what is known then."""

import re
from collections.abc import Mapping
from itertools import pairwise

from msgspec.structs import replace

from metaloop.audit import audit
from metaloop.config import prompt_files, thought_of
from metaloop.events import Asked, Directed, Faulted, StudyClosed
from metaloop.study import fold
from metaloop.terms import AgentSpec, Baseline, Bounds, Terms
from metaloop.testing import Lab, Machine
from metaloop.values import Objective

BASE = {"src/a.py": "X = 1\n"}
TEXTS = {path.stem: path.read_text() for path in prompt_files()}


class Worker:
    """An agent whose first `idle` sessions change nothing; the others write a number that counts up. Keeps its briefs.

    `prints`: what an idle session prints; with `exit ` before it, it fails.
    """

    def __init__(self, idle: int, prints: str = "") -> None:
        self.idle, self.prints, self.briefs = idle, prints, list[str]()

    def print(self, brief: str) -> str:
        self.briefs.append(brief)
        return self.prints if len(self.briefs) <= self.idle else "WHY: more"

    def work(self, _: str) -> Mapping[str, str | None]:
        return {} if len(self.briefs) <= self.idle else {"src/a.py": f"X = {len(self.briefs) + 1}\n"}


def lab(worker: Worker, trials: int = 2, lanes: int = 1, **more: object) -> Lab:
    def score(files: Mapping[str, str], *_: object) -> str:
        return f"score={float({**BASE, **files}['src/a.py'].split('=')[1])}"

    made = Terms("t", Objective("score", "max"), ("train",), "agent", {}, mutable=("src/**",),
                 baseline=Baseline(repeats=1), **more)  # fmt: skip
    bounds = Bounds(trials, no_improve_limit=0, lanes=lanes, agent=AgentSpec(("agent", "{brief}")))
    machine = Machine(lambda *_: "", runs=score, agent=worker.print)
    return Lab(made, thought_of(made), machine, bounds, texts=TEXTS, files=BASE, works=worker.work, skips=True)


def sound(lab: Lab) -> bool:
    return not list(audit(lab.entries, thought_of))


def all_of(lab: Lab, kind: type) -> list:
    return [entry.event for entry in lab.entries if isinstance(entry.event, kind)]


# ---- nothing was changed ---------------------------------------------------------------------------------------------


def test_a_round_in_which_nothing_was_changed_twice_begins_anew() -> None:
    """It is a fault that is told, and not the end of all that can be tried."""
    study = lab(Worker(4))
    closed = study.session()
    assert closed == StudyClosed("max_iterations", "all 2 trials are done")
    assert [fault.reason for fault in all_of(study, Faulted)] == ["the agent changed nothing, twice"] * 2
    assert sound(study)


def test_an_agent_that_never_changes_anything_ends_a_study_that_goes_on_by_the_same_command() -> None:
    """As faulted; and once it works, the round that was left is the first that is done."""
    worker = Worker(1000)
    study = lab(worker)
    closed = study.session()
    assert closed is not None
    assert closed.reason == "faulted"
    assert "the agent changed nothing, twice" in closed.why
    worker.idle = 0
    assert study.session() == StudyClosed("max_iterations", "all 2 trials are done")
    assert len(fold(study.entries).trials) == 3
    assert sound(study)


def test_an_agent_is_told_how_many_sessions_came_to_nothing_so_that_no_brief_is_that_of_another() -> None:
    """Those before its round was opened again among them, and why the last did."""
    worker = Worker(5)
    lab(worker, 1).session()
    told = [re.search(r"(The|\d+) sessions? before this one came to no change", brief) for brief in worker.briefs]
    assert [match and match[1] for match in told] == [None, "The", "2", "3", "4", "5"]
    assert "The last: the agent changed nothing, twice" in worker.briefs[2]
    assert len(set(worker.briefs)) == len(worker.briefs)


def test_a_session_that_comes_to_something_in_the_second_try_is_no_fault() -> None:
    """Nor is the next round told of it."""
    worker = Worker(1)
    study = lab(worker)
    study.session()
    assert not all_of(study, Faulted)
    assert "before this one" not in worker.briefs[2]


# ---- what a round that is opened again sees --------------------------------------------------------------------------


def test_a_hint_reaches_the_round_that_begins_anew() -> None:
    """However long before the round opened first; and so does what was decided meanwhile, if the order is free."""
    for order in ("free", "strict"):
        worker = Worker(2)
        study = lab(worker, order=order)
        study.requests = []

        def work(brief: str, worker=worker, study=study) -> Mapping[str, str | None]:
            if len(worker.briefs) == 2:
                study.requests.append(Directed("r", "hint", "me", text="look at the tail"))
            return worker.work(brief)

        study.works = work
        study.session()
        assert ["look at the tail" in brief for brief in worker.briefs] == [False, False, True, True]
        assert sound(study)


# ---- pauses between them ---------------------------------------------------------------------------------------------


def began(study: Lab) -> list[float]:
    """The study seconds at which sessions were begun that were the first of their round, or of its beginning anew."""
    return [entry.at for entry in study.entries if isinstance(entry.event, Asked) and not entry.event.index]


def test_sessions_that_fail_at_once_are_tried_again_after_growing_pauses() -> None:
    """From a second on, each twice as long as the one before, up to ten minutes, so that a study outlasts some hours'
    trouble of a minute; ten such rounds running end it.
    """
    study = lab(Worker(1000, "exit 1"))
    closed = study.session()
    assert closed is not None
    assert closed.reason == "faulted"
    assert closed.why.startswith("10 rounds running")
    assert "nothing was changed, and exit code 1: exit 1" in closed.why
    times = began(study)
    assert [round(after - before) for before, after in pairwise(times)] == [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert sound(study)


def test_a_trial_that_came_of_a_session_ends_the_growth_of_pauses() -> None:
    """The next round that faults waits a second."""
    worker = Worker(0)
    worker.prints = "exit 1"
    study = lab(worker, 3)
    failing = {1, 2, 3, 4, 7, 8}
    study.machine.agent = lambda brief: worker.print(brief) and ("exit 1" if len(worker.briefs) in failing else "ok")
    study.works = lambda brief: {} if len(worker.briefs) in failing else worker.work(brief)
    assert study.session() == StudyClosed("max_iterations", "all 3 trials are done")
    times = began(study)
    assert [round(after - before) for before, after in pairwise(times)] == [1, 2, 0, 0, 1]


def test_a_pause_is_kept_by_the_next_controller_but_not_by_one_that_goes_on_with_a_study_that_had_ended() -> None:
    """It counts from where the round faulted; whoever goes on after the end wants it tried now."""
    study = lab(Worker(4, "exit 1"))
    died = study.to_the_end(iter([2 * place for place in range(3, 12)]))
    assert died > 4
    faults = [entry.at for entry in study.entries if isinstance(entry.event, Faulted)]
    assert len(faults) == 2
    for fault in faults:
        assert min(at for at in began(study) if at > fault) >= fault + 1
    assert sound(study)

    study = lab(worker := Worker(1000, "exit 1"))
    closed = study.session()
    assert closed is not None
    ended, worker.idle = study.entries[-1].at, 0
    study.session()
    assert min(at for at in began(study) if at > ended) < ended + 0.1


def test_a_study_waits_for_its_last_round() -> None:
    """A pause in it is not the end of all that is to be done; and time goes on in it."""
    study = lab(Worker(2, "exit 1"), 1)
    assert study.session() == StudyClosed("max_iterations", "all 1 trials are done")
    study = lab(Worker(1000, "exit 1"), 1)
    study.bounds = replace(study.bounds, max_wall_time_s=100.0)
    closed = study.session()
    assert closed is not None
    assert closed.reason == "wall_clock"
    assert 100 <= study.entries[-1].at < 101


def test_pauses_change_nothing_in_strict_order() -> None:
    """One lane or three: the same rounds fault, and the same trials come of it."""

    def done(lanes: int) -> list[object]:
        worker = Worker(0)
        study = lab(worker, 6, lanes, order="strict")
        study.works = lambda brief: {} if brief.count("before this one") == 0 and "proposal 3" in brief else {
            "src/a.py": f"X = 3.{sum(map(ord, brief)) % 1000}\n"}  # fmt: skip
        study.session()
        assert sound(study)
        told = fold(study.entries).trials.values()
        return [(t.number, t.change.files, t.verdict) for t in told]

    assert done(1) == done(3)


def test_a_hint_that_comes_in_a_pause_reaches_the_round() -> None:
    """It is known by the time that the round thinks again."""
    worker = Worker(4, "exit 1")
    study = lab(worker)
    study.requests = []
    study.observe = lambda entries, _: study.requests.extend(
        Directed("r", "hint", "me", text="look at the tail")
        for entry in entries
        if isinstance(entry.event, Faulted) and len(worker.briefs) == 4
    )
    study.session()
    assert ["look at the tail" in brief for brief in worker.briefs] == [False] * 4 + [True] * 2
    places = {type(entry.event): entry.at for entry in study.entries if isinstance(entry.event, Directed | Faulted)}
    assert places[Directed] >= places[Faulted]
    assert sound(study)
