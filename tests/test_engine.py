"""The engine: whatever crashes, wherever, the study that comes out is the one that would have come out."""

from collections.abc import Sequence
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from metaloop.audit import audit
from metaloop.config import thought_of
from metaloop.evaluators.judge import confirming, decide, measuring
from metaloop.evaluators.metric import reader
from metaloop.events import Decided, Event, Finished, RoundOpened, Started
from metaloop.flow import Flow, Message, Prompt
from metaloop.plan import CHECKPOINT
from metaloop.policies.opening import opening
from metaloop.roles import Thought
from metaloop.study import View, fold
from metaloop.terms import Baseline, Bounds, Terms
from metaloop.testing import Lab, Machine, ScriptedModel, shuffled, told
from metaloop.values import Choices, Objective, Params, Proposal, Range, Scalar


def bowl(values: dict[str, Scalar], seed: int) -> str:
    """Prints a score; fails for some parameters; noisy over seeds."""
    x = float(values.get("x", 0.9))
    return "exit 1" if 0.6 < x < 0.7 else f"score={1 - (x - 0.3) ** 2 + (seed % 7) * 1e-4!r}"


SPACE = {"x": Range(0.0, 1.0), "kind": Choices(("a", "b"))}  # not sorted, on purpose
BOUNDS = Bounds(no_improve_limit=0, max_iterations=8, failure_rate_limit=1.0)


def terms(**changes: object) -> Terms:
    base = {
        "name": "t",
        "objective": Objective("score", "max"),
        "train": ("train",),
        "policy": "random",
        "space": SPACE,
    }
    return Terms(**{**base, **changes})  # type: ignore[arg-type]


def lab(lanes: int = 1, **changes: object) -> Lab:
    study = terms(**changes)
    bounds = Bounds(**{**{f: getattr(BOUNDS, f) for f in BOUNDS.__struct_fields__}, "lanes": lanes})
    return Lab(study, thought_of(study), Machine(bowl), bounds)


def noisy(values: dict[str, Scalar], seed: int) -> str:
    """Steps of several noise widths, so that some are proven, some are not, and tests end at every look."""
    x = float(values.get("x", 0.9))
    return "exit 1" if 0.6 < x < 0.63 or seed % 41 == 0 else f"score={1 - (x - 0.3) ** 2 + (seed % 1009) / 8000!r}"


def proven_lab(lanes: int = 1, **changes: object) -> Lab:
    study = lab(lanes, rule="proven", **changes)
    study.machine = Machine(noisy)
    return study


def asking(view: View) -> Flow[Sequence[Proposal]]:
    """A policy that asks a model twice, the second time two at once."""
    first = yield Prompt("proposer", (Message("user", f"round {view.round}: which x?"),))
    both = yield tuple(Prompt("critic", (Message("user", f"{view.round} {first.text} {i}"),)) for i in range(2))
    x = (float(first.text) + sum(float(reply.text) for reply in both)) / 3
    return [Proposal(Params({"x": x, "kind": "a"}), by="model")]


def answer(prompt: Prompt) -> str:
    return repr((hash_of(prompt.messages[0].text) % 1000) / 1000)


def hash_of(text: str) -> int:
    return int.from_bytes(text.encode(), "big") % 1_000_003


def asking_lab() -> Lab:
    study = terms()
    thought = Thought(opening(asking), measuring(study), confirming(study), decide, reader(study))
    return Lab(study, thought, Machine(bowl), BOUNDS, model=ScriptedModel(answer))


def confirming_lab() -> Lab:
    return lab(baseline=Baseline(repeats=4))


def provisional_lab(lanes: int = 1, **changes: object) -> Lab:
    """Long enough for a checkpoint on the way, and another at the end."""
    study = lab(lanes, rule="provisional", **changes)
    study.machine, study.bounds = Machine(noisy), replace(study.bounds, max_iterations=CHECKPOINT + 4)
    return study


MODES = {
    "parameters": lab,
    "a model": asking_lab,
    "more runs": confirming_lab,
    "proven": proven_lab,
    "provisional": provisional_lab,
}


@pytest.mark.parametrize("mode", MODES)
def test_a_crash_before_or_after_any_append_changes_nothing(mode: str) -> None:
    """One lane: however the controller dies, the resumed study tells the same story, event by event."""
    whole = MODES[mode]()
    whole.session()
    story = told(whole.entries)
    for crash in count():
        broken = MODES[mode]()
        died = broken.to_the_end(iter([crash]))
        assert told(broken.entries) == story, f"crash {crash}"
        assert not list(audit(broken.entries, lambda _, lab=broken: lab.thought))
        if not died:
            break
    assert crash > 40


def test_a_crash_changes_nothing_with_three_lanes_in_strict_order() -> None:
    """`order: strict`: rounds are decided in order, and know what they would have known."""
    whole = lab(3, order="strict")
    whole.session()
    story = settled(whole)
    for crash in count():
        broken = lab(3, order="strict")
        died = broken.to_the_end(iter([crash]))
        assert settled(broken) == story, f"crash {crash}"
        assert not list(audit(broken.entries, thought_of))
        if not died:
            break
    assert crash > 40


def settled(lab: Lab) -> tuple[list[Event], list[str]]:
    """All that was thought, in order; and all that was measured: when a process starts or ends is up to the machine."""
    story = told(lab.entries)
    thought = [event for event in story if not isinstance(event, Started | Finished)]
    return thought, sorted(repr(event) for event in story if isinstance(event, Finished))


def decisions(lab: Lab) -> list[object]:
    study = fold(lab.entries)
    return [(t.number, t.change.values, t.score, t.verdict, t.why) for t in study.trials.values()]


@pytest.mark.parametrize("lanes", [1, 2, 3, 4])
@pytest.mark.parametrize("mode", ["parameters", "provisional"])
def test_strict_order_gives_one_study_whatever_the_lanes(mode: str, lanes: int) -> None:
    """The same seed gives the same decisions with any number of lanes, in whatever order trials end."""
    one = MODES[mode](1, order="strict")
    one.session()
    many = MODES[mode](lanes, order="strict")
    many.machine.order = shuffled(lanes)
    many.session()
    assert decisions(many) == decisions(one)


@settings(max_examples=60, deadline=None)
@given(
    lanes=st.integers(1, 4),
    order=st.sampled_from(["free", "strict"]),
    mode=st.sampled_from(["proven", "provisional", "parameters"]),
    seed=st.integers(0, 9),
    crashes=st.lists(st.integers(0, 60), max_size=6),
    ends=st.integers(0, 1000),
)
def test_any_interleaving_with_any_crashes_passes_the_audit(
    lanes: int, order: str, mode: str, seed: int, crashes: list[int], ends: int
) -> None:
    """No finished trial is lost or counted twice, and everything that was decided can be derived again."""
    make = MODES[mode]
    study = make(lanes, order=order, seed=seed)
    study.machine.order = shuffled(ends)
    died = study.to_the_end(iter(crashes))
    assert not list(audit(study.entries, thought_of))
    finished = [(e.event.trial, e.event.run) for e in study.entries if isinstance(e.event, Finished)]
    assert len(finished) == len(set(finished))
    roles = {e.event.round: e.event.role for e in study.entries if isinstance(e.event, RoundOpened)}
    ended = [roles[e.event.round] for e in study.entries if isinstance(e.event, Decided)]
    assert ended.count("search") == study.bounds.max_iterations
    assert len(ended) == len(roles)
    assert sum(study.machine.executions.values()) == len(finished)
    assert died <= len(crashes)
    if order == "strict":
        calm = make(1, order=order, seed=seed)
        calm.session()
        assert decisions(study) == decisions(calm)


def test_no_recorded_answer_is_paid_for_twice() -> None:
    """A crash after a reply was recorded does not ask the model again."""
    whole = asking_lab()
    whole.session()
    total = sum(whole.model.asked.values())
    for crash in range(0, 60, 7):
        broken = asking_lab()
        asked = broken.model.asked
        died = broken.to_the_end(iter([crash]))
        assert sum(asked.values()) <= total + 2 * died  # what was under way in the crash, at most


def test_a_study_that_is_over_is_not_written_to() -> None:
    """The same command twice is harmless."""
    study = lab()
    study.session()
    before = len(study.entries)
    study.session()
    assert len(study.entries) == before


def test_a_larger_budget_goes_on_to_it() -> None:
    """Budgets are absolute: 8 trials, then 11, makes 11."""
    study = lab()
    study.session()
    study.bounds = Bounds(no_improve_limit=0, max_iterations=11)
    study.session()
    assert fold(study.entries).searched == 11
    assert [e.event.trial for e in study.entries if isinstance(e.event, Finished)].count(0) == 3


def broken_flow(*_: object) -> Flow[object]:
    raise ValueError("a mistake in a policy")
    yield


@pytest.mark.parametrize("stage", ["propose", "measure", "confirm"])
def test_thought_that_always_breaks_ends_the_study_and_not_the_night(stage: str) -> None:
    """Five faulted rounds running: the study is closed as faulted, whichever part of it cannot think."""
    whole = lab(rule="proven")
    good = whole.thought
    whole.thought = Thought(**{f: getattr(good, f) for f in good.__struct_fields__} | {stage: broken_flow})
    closed = whole.session()
    assert closed is not None
    assert closed.reason == "faulted"
    assert len(whole.entries) < 400
