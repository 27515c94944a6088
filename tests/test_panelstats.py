"""What ballots say of those who cast them, and whether it is more than chance."""

import json
import math
from collections import Counter
from fractions import Fraction
from itertools import permutations, product
from pathlib import Path
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from metaloop.ballots import borda, quorum, streak, winner
from metaloop.panelstats import (
    Agreement,
    Flips,
    LengthBias,
    PositionBias,
    Seen,
    agreement,
    binomial_tail,
    chance_of_incumbent,
    chi2_tail,
    cohens_h,
    condorcet,
    first_places,
    flips,
    intervals,
    kendall_w,
    length_bias,
    mcnemar,
    passes_to_streak,
    position_bias,
    strengths,
    uniform_p,
)

CASES = json.loads((Path(__file__).parent / "data" / "tournament.json").read_text())
NAMES = ("A", "B", "AB")
ALL = list(permutations(NAMES))
panels = st.lists(st.permutations(NAMES), min_size=1, max_size=7)


# ---- tails -----------------------------------------------------------------------------------------------------------


@given(st.floats(1e-6, 3000), st.integers(1, 400))
def test_the_tail_of_chi_square_is_scipy_s(x: float, df: int) -> None:
    assert math.isclose(chi2_tail(x, df), stats.chi2.sf(x, df), rel_tol=1e-8, abs_tol=1e-290)


@given(st.integers(0, 300), st.integers(1, 5), st.data())
def test_the_tail_of_a_binomial_is_scipy_s(n: int, m: int, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    assert binomial_tail(k, n, Fraction(0)) == float(k == 0)
    assert binomial_tail(k, n, Fraction(1)) == 1
    assert math.isclose(binomial_tail(k, n, Fraction(1, m)), stats.binom.sf(k - 1, n, 1 / m), rel_tol=1e-8)


# ---- bias ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("counts", "p"), [((0, 0, 3), 1 / 9), ((1, 1, 1), 1.0), ((0, 1, 2), 7 / 9), ((2, 0), 0.5)])
def test_uneven_places_are_tested_exactly(counts: tuple, p: float) -> None:
    assert math.isclose(uniform_p(counts, exact=True), p)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=3).filter(any))
@settings(deadline=None)
def test_the_exact_test_is_an_enumeration_of_all_outcomes(counts: list) -> None:
    n, m = min(7, sum(counts)), len(counts)
    observed = Counter((place for place, count in enumerate(counts) for _ in range(count)))
    observed = Counter(list(observed.elements())[:n])
    squares = sum(count**2 for count in observed.values())
    outcomes = [Counter(outcome) for outcome in product(range(m), repeat=n)]
    p = fmean(sum(count**2 for count in outcome.values()) >= squares for outcome in outcomes)
    assert math.isclose(uniform_p([observed[place] for place in range(m)], exact=True), p)


def test_many_ballots_are_tested_by_chi_square_which_is_near_the_exact_one() -> None:
    counts = (75, 60, 55)
    assert math.isclose(uniform_p(counts, exact=False), stats.chisquare(counts).pvalue)
    assert math.isclose(uniform_p(counts, exact=True), uniform_p(counts, exact=False), rel_tol=0.1)


def test_what_counts_is_the_place_shown_of_what_was_ranked_first() -> None:
    ballots = [Seen(NAMES, ("B", "AB", "A")), Seen(("AB", "A", "B"), NAMES), Seen(NAMES, ("AB", "A", "B"))]
    assert position_bias(ballots).wins == (0, 2, 1)


def test_a_judge_who_likes_the_first_place_is_seen() -> None:
    """And one who does not care is not, however often its favourite wins."""
    dice = Random(1)
    orders = [tuple(dice.sample(NAMES, 3)) for _ in range(90)]
    biased = position_bias(
        Seen(order, order if n % 2 else tuple(dice.sample(order, 3))) for n, order in enumerate(orders)
    )
    assert biased.wins[0] > 50
    assert biased.p < 1e-4
    assert biased.exact
    loyal = position_bias(Seen(order, ALL[0]) for order in orders)
    assert sum(loyal.wins) == 90
    assert loyal.p > 0.05
    assert not position_bias(Seen(order, ALL[0]) for order in orders * 3).exact


def test_a_judge_who_likes_length_is_seen() -> None:
    lengths = {"A": 100, "B": 300, "AB": 200}
    found = length_bias([(("B", "AB", "A"), lengths)] * 6 + [(("A", "AB", "B"), lengths)])
    assert (found.wins, found.ballots) == (6, 7)
    assert math.isclose(found.more, (7 * 2 + 1) / 3**7)
    assert math.isclose(found.fewer, 1 - 1 / 3**7)
    assert math.isclose(found.correlation, 5 / 7)


def test_where_two_are_longest_nobody_wins_by_length() -> None:
    found = length_bias([(("B", "AB", "A"), {"A": 1, "B": 2, "AB": 2})])
    assert found == LengthBias(0, 0, 1.0, 1.0, 2 / 3)


def test_without_ballots_nothing_is_biased() -> None:
    assert position_bias([]) == PositionBias((), 1.0, True)
    assert length_bias([]) == LengthBias(0, 0, 1.0, 1.0, 0.0)
    assert agreement([]) == Agreement(0.0, 0, 1.0, True)
    assert agreement([[ALL[0]]]) == Agreement(0.0, 0, 1.0, True)
    assert flips([]) == Flips(0, 0)


def test_ballots_over_more_and_fewer_versions_are_not_mixed() -> None:
    with pytest.raises(ValueError, match="as many versions"):
        position_bias([Seen(("A", "B"), ("A", "B")), Seen(NAMES, NAMES)])


def test_flips_are_counted_where_both_ballots_are_valid() -> None:
    assert flips([(ALL[0], ALL[0]), (ALL[0], ALL[1]), (ALL[0], ALL[5]), (None, ALL[0]), (ALL[0], None)]) == Flips(3, 1)


# ---- agreement -------------------------------------------------------------------------------------------------------


def test_one_mind_is_one_and_a_perfect_cycle_is_none() -> None:
    assert kendall_w([ALL[0]] * 3) == 1
    assert kendall_w([("A", "B", "AB"), ("B", "AB", "A"), ("AB", "A", "B")]) == 0


@given(panels.filter(lambda panel: len(panel) > 1))
def test_agreement_is_friedman_s_statistic(panel: list) -> None:
    w = kendall_w(panel)
    assert 0 <= w <= 1
    ranks = [[ballot.index(name) for ballot in panel] for name in NAMES]
    if w > 0:
        assert math.isclose(w, stats.friedmanchisquare(*ranks).statistic / (len(panel) * 2), rel_tol=1e-9)


@given(st.lists(st.lists(st.permutations(NAMES), min_size=2, max_size=3), min_size=1, max_size=2))
@settings(deadline=None)
def test_the_p_of_agreement_is_an_enumeration_of_random_panels(given_panels: list) -> None:
    ballots = [ballot for panel in given_panels for ballot in panel]
    if len(ballots) > 5:
        given_panels = given_panels[:1]
    found = agreement(given_panels)
    ways = [
        fmean(map(kendall_w, drawn)) for drawn in product(*(product(ALL, repeat=len(panel)) for panel in given_panels))
    ]
    assert found.exact
    assert math.isclose(found.w, fmean(map(kendall_w, given_panels)), abs_tol=1e-12)
    assert math.isclose(found.p, fmean(way >= found.w - 1e-9 for way in ways), rel_tol=1e-9)


def test_agreement_of_large_panels_is_tested_by_chi_square() -> None:
    dice = Random(2)
    panel = [tuple(dice.sample("ABCDEF", 6)) for _ in range(7)]
    found = agreement([panel])
    assert not found.exact
    assert math.isclose(found.p, stats.chi2.sf(7 * 5 * found.w, 5))
    many = agreement([[tuple(dice.sample(NAMES, 3)) for _ in range(3)] for _ in range(900)])
    assert not many.exact
    assert 0.05 < many.p < 0.95


def test_random_ballots_rarely_look_like_agreement() -> None:
    dice = Random(3)
    ps = [agreement([[dice.choice(ALL) for _ in range(3)] for _ in range(8)]).p for _ in range(400)]
    assert 0.02 < fmean(p <= 0.05 for p in ps) <= 0.075
    assert agreement([[ALL[0], ALL[0], ALL[1]]] * 8).p < 1e-4


# ---- chance ----------------------------------------------------------------------------------------------------------


def test_three_random_judges_leave_the_incumbent_43_of_108_passes() -> None:
    assert chance_of_incumbent(3) == Fraction(43, 108)
    assert math.isclose(passes_to_streak(Fraction(43, 108), 2), 8.82, rel_tol=1e-3)


@pytest.mark.parametrize("lead", [0, 1, 2, 4])
@pytest.mark.parametrize("order", [NAMES, ("AB", "B", "A")])
@pytest.mark.parametrize("judges", [1, 2, 3])
def test_chance_is_an_enumeration_of_all_panels(judges: int, order: tuple, lead: int) -> None:
    won = [winner(borda(panel, NAMES), "A", order, lead) == "A" for panel in product(ALL, repeat=judges)]
    assert chance_of_incumbent(judges, NAMES, "A", order, lead) == Fraction(sum(won), len(won))


def test_a_margin_and_a_larger_panel_have_chances_of_their_own() -> None:
    assert chance_of_incumbent(7) < chance_of_incumbent(3) < chance_of_incumbent(3, margin=quorum(3))
    assert chance_of_incumbent(7) > Fraction(1, 3)
    assert chance_of_incumbent(2, ("A", "B")) == Fraction(3, 4)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_the_wait_for_a_streak_is_the_known_formula(p: float, k: int) -> None:
    assert math.isclose(passes_to_streak(p, k), (1 - p**k) / ((1 - p) * p**k))


def test_a_streak_that_is_certain_takes_k_passes_and_one_that_is_not_possible_for_ever() -> None:
    assert passes_to_streak(1, 3) == 3
    assert passes_to_streak(0, 1) == math.inf


def test_random_ballots_do_converge_and_as_often_as_is_said() -> None:
    """Through the real counting: 43/108 of passes are won by A, and a streak of two takes 8.82 of them."""
    dice = Random(4)
    winners = [winner(borda([dice.choice(ALL) for _ in range(3)], NAMES), "A", NAMES) for _ in range(100_000)]
    assert math.isclose(fmean(won == "A" for won in winners), 43 / 108, rel_tol=0.02)
    waits, at = [], 0
    while at < len(winners) - 500:
        stop, reason = streak(winners[at : at + 500], 2, 500)
        assert reason == "converged"
        waits.append(stop)
        at += stop
    assert math.isclose(fmean(waits), 8.82, rel_tol=0.02)


# ---- comparison ------------------------------------------------------------------------------------------------------


def test_a_condorcet_winner_beats_each_other_and_a_cycle_has_none() -> None:
    """It need not be the one with the most points."""
    panel = [("A", "B", "AB")] * 3 + [("B", "AB", "A")] * 2
    assert condorcet(panel, NAMES) == "A"
    assert winner(borda(panel, NAMES), "", NAMES) == "B"
    assert condorcet([("A", "B", "AB"), ("B", "AB", "A"), ("AB", "A", "B")], NAMES) is None
    assert condorcet([("A", "B"), ("B", "A")], "AB") is None
    assert condorcet([], NAMES) is None


def test_first_places_are_counted_also_where_there_are_none() -> None:
    assert first_places([ALL[0], ALL[1], ALL[2]], (*NAMES, "C")) == {"A": 2, "B": 1, "AB": 0, "C": 0}


def test_strengths_of_two_are_their_wins() -> None:
    panel = [("A", "B")] * 3 + [("B", "A")]
    assert strengths(panel, "AB", virtual=0) == pytest.approx({"A": 0.75, "B": 0.25})
    assert strengths(panel, "AB") == pytest.approx({"A": 0.7, "B": 0.3})
    assert strengths([], "AB", virtual=0) == strengths([], "AB") == {"A": 0.5, "B": 0.5}


@given(panels)
@settings(deadline=None)
def test_strengths_expect_the_wins_that_were_seen(panel: list) -> None:
    """The likelihood's own equation: w_i = sum over the others of n p_i / (p_i + p_j), half a win each way added."""
    p = strengths(panel, NAMES)
    assert math.isclose(sum(p.values()), 1)
    for one in NAMES:
        others = [other for other in NAMES if other != one]
        seen = sum(ballot.index(one) < ballot.index(other) for ballot in panel for other in others) + 0.5 * len(others)
        assert math.isclose(
            seen, sum((len(panel) + 1) * p[one] / (p[one] + p[other]) for other in others), rel_tol=1e-5
        )


@given(panels, st.permutations(NAMES))
@settings(deadline=None)
def test_strengths_are_of_versions_and_not_of_their_names(panel: list, other: list) -> None:
    renamed = dict(zip(NAMES, other, strict=True))
    p = strengths(panel, NAMES)
    q = strengths([[renamed[name] for name in ballot] for ballot in panel], other)
    assert q == pytest.approx({renamed[name]: value for name, value in p.items()}, rel=1e-6)


def test_intervals_hold_the_strength_and_are_the_same_for_the_same_dice() -> None:
    dice = Random(5)
    panel = [dice.choice([*ALL, ALL[0], ALL[0]]) for _ in range(21)]
    found = intervals([panel], NAMES, Random("a"), draws=400)
    assert found == intervals([panel], NAMES, Random("a"), draws=400)
    assert all(0 < one.low < one.value < one.high < 1 for one in found.values())
    wide = intervals([panel[:7]], NAMES, Random("a"), draws=400)
    assert all(wide[name].high - wide[name].low > found[name].high - found[name].low for name in NAMES)
    same = intervals([[ALL[0]] * 7], NAMES, Random("a"), draws=50)
    assert all(one.low == one.value == one.high for one in same.values())


def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    """Percentile intervals of 40 ballots drawn from equal strengths: near 95 %."""
    dice = Random(6)
    hits = []
    for _ in range(150):
        found = intervals([[dice.choice(ALL) for _ in range(40)]], NAMES, dice, draws=200)
        hits.append(found["A"].low <= 1 / 3 <= found["A"].high)
    assert 0.88 <= fmean(hits) <= 0.99


@pytest.mark.parametrize("case", CASES["mcnemar"])
def test_mcnemar_is_exact_and_never_above_one(case: dict) -> None:
    found = mcnemar(case["b"], case["c"])
    assert found.exact_p == pytest.approx(case["exact_p"], abs=5e-7)
    assert found.cc_p == pytest.approx(case["cc_p"], abs=5e-5)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_a_two_sided_sign_test(b: int, c: int) -> None:
    found = mcnemar(b, c)
    assert found.exact_p == pytest.approx(stats.binomtest(b, b + c).pvalue if b + c else 1.0)
    assert (found.exact_p, found.cc_p) == (mcnemar(c, b).exact_p, mcnemar(c, b).cc_p)


@pytest.mark.parametrize("case", CASES["cohens_h"])
def test_cohen_s_h_is_signed(case: dict) -> None:
    assert cohens_h(case["p1"], case["p2"]) == pytest.approx(case["h"], abs=5e-5)
    assert cohens_h(case["p2"], case["p1"]) == -cohens_h(case["p1"], case["p2"])
