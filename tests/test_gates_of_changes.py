"""Blind votes on a changed search: what passes, and how often by lot."""

import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaloop.gates import gate, passes_by_lot

CASES = json.loads((Path(__file__).parent / "data/tournament.json").read_text())["gate"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["why"])
def test_the_worked_cases_pass_as_they_should(case: dict) -> None:
    assert gate(case["votes"]).passed == case["pass"]


@pytest.mark.parametrize(
    ("votes", "skill", "chance"), [(3, 0.5, 0.5), (4, 0.5, 0.6875), (7, 0.4, 0.289792), (1, 0.5, 0.5)]
)
def test_a_majority_passes_by_lot_as_often_as_is_known(votes: int, skill: float, chance: float) -> None:
    assert passes_by_lot(votes, skill=skill) == pytest.approx(chance, abs=1e-6)


def test_an_exact_gate_passes_by_lot_no_more_often_than_its_level_says() -> None:
    for votes in range(1, 40):
        assert passes_by_lot(votes, "exact") < 0.05
    assert passes_by_lot(4, "exact") == 0.0  # no unanimity of four is below 0.05
    assert passes_by_lot(19, "exact", skill=0.75) == pytest.approx(0.6678, abs=0.01)
    dice = Random(3)
    won = sum(gate([dice.choice(["on", "off"]) for _ in range(19)], "exact").passed for _ in range(4000))
    assert won / 4000 == pytest.approx(passes_by_lot(19, "exact"), abs=0.01)


votes = st.lists(st.sampled_from(["on", "off", None]), max_size=25)


@given(votes, st.sampled_from(["majority", "exact"]))
def test_a_vote_more_for_it_never_makes_a_change_fail(cast: list, kind: str) -> None:
    """What was against it becomes for it."""
    before = gate(cast, kind)
    if "off" in cast and before.passed:
        turned = [*cast]
        turned[cast.index("off")] = "on"
        assert gate(turned, kind).passed
    assert before.on + before.off == before.valid <= before.asked == len(cast)
    assert before.why


@given(votes)
def test_what_an_exact_gate_passes_a_majority_does_not_lose(cast: list) -> None:
    assert not gate(cast, "exact").passed or gate(cast).passed
