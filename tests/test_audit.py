"""The audit: whatever is changed in a ledger, hashes made anew or not, is found."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from metaloop.adapters.ledger import open_ledger, read_ledger
from metaloop.audit import audit
from metaloop.config import thought_of
from metaloop.events import (
    Decided,
    Entry,
    Fact,
    Finished,
    Measured,
    Proposed,
    RoundOpened,
    RunsAsked,
    Started,
    StudyClosed,
)
from metaloop.study import Study, evolve, fold
from metaloop.values import Decision, Params, Score
from test_engine import lab

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture(scope="module")
def entries() -> list[Entry]:
    study = lab(2)
    study.session()
    return study.entries


def changed(entries: list[Entry], kind: type, change: Callable[[Fact], Fact], which: int = 2) -> list[Entry]:
    """The ledger with one event of a kind changed."""
    place = [entry.place for entry in entries if isinstance(entry.event, kind)][which]
    return [replace(e, event=change(e.event)) if e.place == place else e for e in entries]


LIES: dict[str, tuple[type, Callable]] = {
    "a proposal": (
        Proposed,
        lambda e: replace(e, proposal=replace(e.proposal, change=Params({"x": 0.3, "kind": "a"}))),
    ),
    "who proposed": (Proposed, lambda e: replace(e, proposal=replace(e.proposal, by="tpe"))),
    "a score": (Measured, lambda e: replace(e, scores=(Score(99.0),))),
    "a decision": (Decided, lambda e: replace(e, decision=Decision((1,), 1, "trust me"))),
    "a reason": (Decided, lambda e: replace(e, decision=replace(e.decision, why="because"))),
    "what a round had seen": (RoundOpened, lambda e: replace(e, seen=0)),
    "an attempt": (Started, lambda e: replace(e, attempt=7)),
    "a result of another run": (Finished, lambda e: replace(e, attempt=7)),
    "the runs that were asked": (RunsAsked, lambda e: replace(e, runs=(0, 1))),
}


def test_a_true_ledger_has_no_findings(entries: list[Entry]) -> None:
    assert not list(audit(entries, thought_of))


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_found(entries: list[Entry], lie: str) -> None:
    """Also where every hash fits: the audit looks at what follows from what."""
    kind, change = LIES[lie]
    assert list(audit(changed(entries, kind, change), thought_of))


def test_a_number_that_was_changed_contradicts_what_follows(entries: list[Entry]) -> None:
    """A better metric in `Finished` does not fit the score that was made of it."""
    forged = changed(entries, Finished, lambda e: replace(e, result=replace(e.result, metrics={"score": 2.0})))
    assert list(audit(forged, thought_of))


def test_an_early_end_is_found(entries: list[Entry]) -> None:
    closed = next(e.event for e in entries if isinstance(e.event, StudyClosed))
    half = entries[: len(entries) // 2]
    early = [*half, Entry(len(half) + 1, half[-1].at, 0.0, closed)]
    assert list(audit(early, thought_of))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_prefix_of_a_ledger_is_a_ledger(entries: list[Entry], data: st.DataObject) -> None:
    """Wherever a crash cuts it, it folds and passes."""
    cut = data.draw(st.integers(1, len(entries)))
    assert not list(audit(entries[:cut], thought_of))
    fold(entries[:cut])


def test_any_order_of_facts_is_survived_by_the_audit(entries: list[Entry]) -> None:
    """Rubbish gives findings, never an exception."""
    found = 0
    for cut in range(2, len(entries) - 1):
        swapped = [*entries[:cut], entries[cut + 1], entries[cut], *entries[cut + 2 :]]
        found += bool(list(audit(swapped, thought_of)))
    assert found > len(entries) / 2


def test_the_view_of_a_round_does_not_change(entries: list[Entry]) -> None:
    """What a round saw when it opened is what it sees at the end of the study."""
    study, then = Study(), {}
    rounds = {}
    for entry in entries:
        evolve(study, entry)
        if isinstance(entry.event, RoundOpened):
            rounds[entry.event.round] = study.open[entry.event.round]
            view = study.view(rounds[entry.event.round])
            then[entry.event.round] = ([t.number for t in view.settled()], list(view.pending()), view.incumbent)
    for number, round in rounds.items():
        view = study.view(round)
        assert ([t.number for t in view.settled()], list(view.pending()), view.incumbent) == then[number]


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*")), ids=lambda path: path.name)
def test_ledgers_of_every_release_are_read_for_ever(path: Path, tmp_path: Path) -> None:
    """They fold to what they folded to, and pass the audit. Never change a file in `golden/`: add one."""
    import json
    import shutil

    from metaloop.exports import canonical

    shutil.copytree(path, tmp_path / "s")
    entries = list(read_ledger(tmp_path / "s"))
    told = canonical(fold(entries), entries, True, "ok")
    assert told == json.loads((path / "canonical.json").read_text())
    assert not list(audit(entries, thought_of))
    open_ledger(tmp_path / "s").close()


def test_there_is_a_golden_ledger() -> None:
    assert sorted(path.name for path in GOLDEN.iterdir())
