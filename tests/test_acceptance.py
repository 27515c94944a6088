"""What keeps a changed search: the worked cases of the controller, and what no luck may do."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaloop.acceptance import Came, judged
from metaloop.diagnose import Pass, Trace
from metaloop.gates import gate


def came(rounds: float, calls: int = 60, k: int = 2) -> Came:
    """A search that converged after so many rounds, or never did in 14."""
    winners = ["AB"] * (14 if math.isinf(rounds) else int(rounds) - k) + ["A"] * (0 if math.isinf(rounds) else k)
    return Came(Trace(tuple(Pass(winner) for winner in winners), k), "text", calls)


def votes(on: int, off: int):
    return gate([*["on"] * on, *["off"] * off])


NEVER = math.inf


@pytest.mark.parametrize(
    ("before", "after", "on", "off", "kept"),
    [
        (9, 7, 2, 1, True), (9, 7, 1, 2, False), (9, 9, 3, 0, False), (NEVER, 12, 2, 1, True),
        (NEVER, NEVER, 2, 1, False), (9, 10, 3, 0, False), (9, 7, 0, 0, False),
    ],
)  # fmt: skip
def test_the_worked_cases_of_the_controller_end_as_they_should(
    before: float, after: float, on: int, off: int, kept: bool
) -> None:
    said = judged((came(before),), came(after), votes(on, off), 2)
    assert said.accepted == kept
    assert said.why.startswith("kept" if kept else "reverted")


def test_the_same_text_needs_no_vote_and_still_has_to_be_sooner() -> None:
    assert judged((came(9),), came(7), None, 2).accepted
    assert not judged((came(9),), came(9), None, 2).accepted


def test_where_rounds_cannot_drop_the_vote_has_to_be_won_and_calls_may_double() -> None:
    base = (came(2, calls=12),)
    assert judged(base, came(5, calls=24), votes(2, 1), 2).accepted
    assert not judged(base, came(5, calls=25), votes(2, 1), 2).accepted
    assert not judged(base, came(2, calls=12), votes(2, 2), 2).accepted
    assert not judged(base, came(2, calls=12), None, 2).accepted
    assert "nothing can be sooner" in judged(base, came(2), votes(3, 0), 2, original=True).why


@pytest.mark.parametrize(
    ("aim", "changed", "kept"),
    [
        ("calls", came(9, calls=59), True), ("calls", came(3, calls=60), False),
        ("stability", came(4), True), ("stability", came(12), False),
        ("quality_per_call", came(9, calls=100), True), ("quality_per_call", came(9, calls=200), False),
    ],
)  # fmt: skip
def test_another_aim_decides_by_another_figure(aim: str, changed: Came, kept: bool) -> None:
    assert judged((came(9),), changed, votes(2, 1), 2, aim).accepted == kept  # type: ignore[arg-type]


@given(st.integers(2, 14), st.integers(2, 14), st.integers(0, 9), st.integers(0, 9))
def test_nothing_is_kept_that_lost_the_vote_or_is_no_better(before: int, after: int, on: int, off: int) -> None:
    """Shortening k cannot win by itself: rounds are counted under the base's k."""
    said = judged((came(before),), came(after), votes(on, off), 2)
    if on < off or on + off == 0:
        assert not said.accepted
    if before > 2 and after >= before:
        assert not said.accepted


def test_several_runs_of_the_base_are_averaged() -> None:
    assert judged((came(9), came(5)), came(6), votes(2, 1), 2).accepted
    assert not judged((came(9), came(3)), came(6), votes(2, 1), 2).accepted
    assert judged((came(9), came(NEVER)), came(12), votes(2, 1), 2).accepted
