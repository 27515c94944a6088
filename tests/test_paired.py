"""Strategies pair by pair: the numbers by hand, and whose fault it is where there is none."""

import pytest

from metaloop.events import StudyClosed
from metaloop.paired import Case, case, compared, lines, wilson
from metaloop.study import HELD_OUT, Run, Study, Tally, Trial
from metaloop.terms import Repair, Terms
from metaloop.values import Failed, Objective, Params, Proposal, Ran, Refused, Result, Score, Usage, canonical


def cases(first: str, second: str) -> list[Case]:
    """A letter a problem, for each of two strategies: `p` passed, `f` failed, `v` passed what is visible alone, `-`."""
    told = {"p": (True, True), "f": (False, False), "v": (True, False), "-": (None, None)}
    return [
        Case(f"problem {number}", name, *told[letter], calls=2, usd=0.5, why="it went" if letter == "-" else "")
        for name, row in (("a", first), ("b", second))
        for number, letter in enumerate(row)
    ]


def test_eight_against_eight_is_no_difference() -> None:
    """Clamped: twice the tail would be more than 1."""
    told = compared(cases("p" * 8 + "f" * 8, "f" * 8 + "p" * 8), ("a", "b"))
    (pair,) = told.pairs
    assert (pair.both, pair.only_first, pair.only_second, pair.neither) == (0, 8, 8, 0)
    assert (pair.p, pair.h) == (1.0, 0.0)


def test_what_differs_is_tested_on_the_pairs_that_there_are() -> None:
    """2 * 2^-5 for five against none; h of 6/8 against 1/8."""
    told = compared(cases("pppppp-ff", "vffffppff"), ("a", "b"))
    (pair,) = told.pairs
    assert (pair.both, pair.only_first, pair.only_second, pair.neither) == (1, 5, 0, 2)
    assert pair.p == pytest.approx(0.0625)
    assert pair.h == pytest.approx(1.3717, abs=1e-4)
    first, second = told.shares
    assert (first.passed, first.problems, second.passed, second.problems) == (6, 8, 2, 9)
    assert (first.fitted, second.fitted) == (0, 1)
    assert (first.calls, first.usd) == (18, 4.5)
    assert told.left_out == ("problem 6, a: it went",)


def test_strategies_are_compared_each_with_each() -> None:
    three = [*cases("p", "f"), Case("problem 0", "c", True, True)]
    assert [(p.first, p.second) for p in compared(three, ("a", "b", "c")).pairs] == [("a", "b"), ("a", "c"), ("b", "c")]


@pytest.mark.parametrize(
    ("passed", "of", "low", "high"),
    [(0, 0, 0.0, 1.0), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (3, 4, 0.3006, 0.9544), (50, 100, 0.4038, 0.5962)],
)
def test_a_share_has_the_interval_of_wilson(passed: int, of: int, low: float, high: float) -> None:
    assert wilson(passed, of) == pytest.approx((low, high), abs=1e-4)


def test_hidden_tests_that_fail_for_one_and_work_for_another_are_the_ones_fault() -> None:
    """Where they work for nobody, nothing is said of any."""
    broke = Case("p", "a", True, None, doubtful=True, why="holdout ended with exit code 1")
    told = compared([broke, Case("p", "b", True, True, scored=True)], ("a", "b"))
    assert [each.hidden for each in told.cases] == [False, True]
    assert not told.left_out
    told = compared([broke, Case("p", "b", True, None, doubtful=True, why="too")], ("a", "b"))
    assert [each.hidden for each in told.cases] == [None, None]
    assert told.left_out == ("p, a: holdout ended with exit code 1", "p, b: too")
    assert sum(getattr(told.pairs[0], name) for name in ("both", "only_first", "only_second", "neither")) == 0


def study(best: float | None, held: Result | None, reason: str = "exhausted", *results: Result) -> Study:
    made = Study()
    made.terms = Terms("s", Objective("passed", "max", 1.0), ("t",), "repair", {}, repair=Repair())
    made.closed, made.calls = StudyClosed(reason, f"because of {reason}"), 3
    made.costs = {"proposer": Usage(1.0, 5, 5, 0.25)}
    for number, result in enumerate(results or (Ran({"passed": best or 0.0}),), 1):
        trial = Trial(number, number, "search", canonical({}), number, "")
        trial.first = Run(0, last=result)
        made.trials[number] = trial
    if best is not None:
        made.trials[1].score = Score(best)
        made.tally = Tally(incumbent=1)
    if held is not None:
        made.held = {1: Run(HELD_OUT, last=held)}
    return made


@pytest.mark.parametrize(
    ("made", "visible", "hidden"),
    [
        (study(1.0, Ran({"passed": 1.0}), "target"), True, True),
        (study(1.0, Ran({"passed": 0.9}), "target"), True, False),
        (study(0.5, Ran({"passed": 1.0})), False, True),
        (study(1.0, Failed("limit", "too long"), "target"), True, False),
        (study(1.0, Failed("evaluation", "exit code 1"), "target"), True, None),
        (study(1.0, None, "target"), True, None),
        (study(0.5, Ran({"passed": 0.5}), "proposer_failed"), None, None),
        (study(1.0, Ran({"passed": 1.0}), "cost"), None, None),
        (study(None, None, "baseline_failed"), None, None),
        (study(None, None, "exhausted", Failed("hypothesis", "broke"), Failed("lost", "gone")), False, False),
        (study(None, None, "exhausted", Refused("not_an_edit", "nothing")), False, False),
        (study(None, None, "exhausted", Failed("metric", "no passed"), Failed("lost", "gone")), False, None),
    ],
)
def test_a_study_says_what_it_can_of_its_strategy(made: Study, visible: bool | None, hidden: bool | None) -> None:
    told = case(made, "p", "a")
    assert (told.visible, told.hidden) == (visible, hidden)
    assert (told.calls, told.usd) == (3, 0.25)
    assert bool(told.why) or hidden is not None


def test_a_table_for_people() -> None:
    told = [*cases("pf-", "vpp")]
    said = list(lines(compared(told, ("a", "b"))))
    assert said == [
        "problem    a               b",
        "problem 0  pass (2 calls)  visible (2 calls)",
        "problem 1  fail (2 calls)  pass (2 calls)",
        "problem 2  - (2 calls)     pass (2 calls)",
        "",
        "a: 1 of 2 passed (50 %, 95 % interval 9 to 91); 0 of 2 passed the visible tests alone; 6 calls, $1.5000",
        "b: 2 of 3 passed (67 %, 95 % interval 21 to 94); 1 of 3 passed the visible tests alone; 6 calls, $1.5000",
        "",
        "a / b: both 0, only the first 1, only the second 1, neither 0; McNemar p = 1, h = 0.00",
        "",
        "left out: problem 2, a: it went",
    ]


def test_what_is_thought_before_a_proposal_goes_with_it() -> None:
    """In a field that older ledgers do not have."""
    assert b"notes" not in canonical(Proposal(Params({}), "x"))
