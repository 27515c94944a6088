"""What a study may still gain: the law, the curve that is kept of a study, and the guard."""

import math
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaloop.forecast import BETS, Curve, _wager, doomed, fit, law, projected, promise, published_fit
from metaloop.values import Objective

JUDGE = [0.432727, 0.492727, 0.406364, 0.515455, 0.521818, 0.507273, 0.520909, 0.517727]
"""The first scores of a real campaign, which came to 0.634545 at trial 36."""

LUCK: dict[str, Callable[[Random], float]] = {
    "normal": lambda dice: dice.gauss(0, 1),
    "uniform": lambda dice: dice.random(),
    "heavy above": lambda dice: dice.paretovariate(1.1),
    "heavy below": lambda dice: -dice.paretovariate(1.1),
    "no mean": lambda dice: math.tan(math.pi * (dice.random() - 0.5)),
    "few values": lambda dice: dice.randrange(10) / 10,
}


def grown(values: Iterable[float | None]) -> Curve:
    curve = Curve()
    for value in values:
        curve = curve.add(value)
    return curve


def stopped(values: list[float | None], budget: int | None = None, **more: float) -> tuple[int, str] | None:
    """The trial after which the guard ends a study with these oriented scores, and why; None if it never does."""
    curve = Curve()
    for number, value in enumerate(values, 1):
        curve = curve.add(value)
        if why := doomed(curve, curve.records, (budget or len(values)) - number, **more):
            return number, why
    return None


# ---- the law ---------------------------------------------------------------------------------------------------------


@given(st.floats(-50, 50).filter(lambda a: abs(a) > 0.1), st.floats(-3.5, -0.1), st.floats(-100, 100))
@settings(max_examples=50, deadline=None)
def test_a_power_law_is_found_again(a, b, c):
    """Rising or falling: b to four digits, and what it says for ten times as far."""
    found = fit([a * x**b + c for x in range(1, 41)])
    assert found is not None
    assert found.b == pytest.approx(b, rel=1e-3)
    assert projected(found, 400) == pytest.approx(a * 400**b + c, abs=1e-3 * abs(a))
    assert found.miss < 1e-3 * abs(a)


def test_weights_stand_for_points_that_were_left_out():
    """A point that counts three times is three points."""
    at, series, weights = [1, 2, 3, 4, 5, 6], [0.0, 1.0, 1.4, 1.9, 1.8, 2.1], [1, 1, 3, 1, 2, 1]
    repeated = [(x, y) for x, y, w in zip(at, series, weights, strict=True) for _ in range(w)]
    one, other = fit(series, at, weights), fit([y for _, y in repeated], [x for x, _ in repeated])
    assert one is not None
    assert other is not None
    assert (one.a, one.b, one.c, one.miss) == pytest.approx((other.a, other.b, other.c, other.miss))


@pytest.mark.parametrize(
    "series",
    [
        [],
        [1, 2, 2.5, 2.7],
        [3.0] * 30,
        [1, 2, math.inf, 3, 4, 5],
        [1, 2, math.nan, 3, 4, 5],
        [float(x) for x in range(1, 60)],
        [math.log(x) for x in range(1, 60)],
        [-1e308, 1e308] * 5,
    ],
)
def test_a_law_that_cannot_be_believed_is_none(series):
    """Too few points, no movement, no finite numbers, or a curve that has not begun to level off."""
    assert fit(series) is None


@pytest.mark.parametrize(
    ("series", "law", "said"),
    [
        ([1, 0.8, 0.7, 0.65, 0.62], (0.689304, -0.504575, 0.31), {5: 0.616004, 10: 0.525693}),
        ([2, 1.5, 1.3, 1.2, 1.15, 1.12], (1.106948, -0.908687, 0.896), {6: 1.113286}),
        (JUDGE, (0.227938, 0.162522, 0.203182), {8: 0.522769}),
        ([x**-0.5 + 2.25 for x in range(1, 17)], (1.0, -0.5, 2.25), {100: 2.35}),
    ],
)
def test_the_published_fit_gives_the_published_numbers(series, law, said):
    """A14: to the sixth digit."""
    found = published_fit(series)
    assert (found.a, found.b, found.c) == pytest.approx(law, abs=1e-6)
    assert {at: projected(found, at) for at in said} == pytest.approx(said, abs=1e-6)


def test_the_published_fit_refuses_what_has_no_logarithm():
    """Zero and below, and series of two."""
    for series in ([1, 0, 1], [1, 2]):
        with pytest.raises(ValueError, match="expected at least 3 positive values"):
            published_fit(series)


# ---- the curve -------------------------------------------------------------------------------------------------------


@given(st.lists(st.none() | st.integers(-5, 5).map(float) | st.just(math.nan), max_size=150))
@settings(deadline=None)
def test_a_curve_is_the_best_so_far_in_its_newest_half(values):
    """Trials without a score count as trials and nothing else."""
    curve = grown(values)
    scores = [value for value in values if value is not None and math.isfinite(value)]
    assert (curve.trials, curve.scored) == (len(values), len(scores))
    if scores:
        assert (curve.first, curve.best) == (scores[0], max(scores))
        assert curve.records == sum(all(x > y for y in scores[:i]) for i, x in enumerate(scores))
    for trial, best in curve.points:
        assert 2 * trial >= curve.trials
        assert best == max(v for v in values[:trial] if v is not None and math.isfinite(v))


def test_a_curve_does_not_grow():
    """As many numbers at 100,000 trials as at 100, and the law through them is still the law."""
    curve, most = Curve(), 0
    for x in range(1, 100_001):
        curve = curve.add(-(x**-0.5))
        most = max(most, len(curve.points))
    assert most <= 34
    assert len(curve.points) >= 16
    found = law(curve)
    assert found is not None
    assert found.b == pytest.approx(-0.5, abs=0.01)


def test_the_wager_is_fair():
    """Exactly: over all ways that luck may go, what is staked comes back on average, and no more."""
    draws = 9
    expected = 0.0
    for records in product((False, True), repeat=draws):
        bets: tuple[float, ...] = (0.0,) * len(BETS)
        chance = 1.0
        for draw, record in enumerate(records, 1):
            bets = _wager(bets, draw, record) if chance else bets
            chance *= 1 / draw if record else 1 - 1 / draw
        expected += chance * (sum(bets) / len(bets) + 1 / (draws + 1))
    assert expected == pytest.approx(1.0)


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.data())
def test_fewer_records_never_make_a_better_wager(records, data):
    """So ties, and a first score that is hard to beat, cannot make luck look like a climb."""
    fewer = [record and data.draw(st.booleans()) for record in records]
    rich: tuple[float, ...] = (0.0,) * len(BETS)
    poor = rich
    for draw, (one, other) in enumerate(zip(records, fewer, strict=True), 1):
        if draw == 1:
            one = other = True
        rich, poor = _wager(rich, draw, one), _wager(poor, draw, other)
    assert all(a >= b - 1e-12 * a for a, b in zip(rich, poor, strict=True))


@given(st.lists(st.integers(-40, 40), max_size=60))
def test_only_the_order_of_scores_makes_a_climb(values):
    """Any scale that keeps the order gives the same answer."""
    assert grown(map(float, values)).climbs == grown(math.exp(value / 3) for value in values).climbs


# ---- the guard: what it leaves alone ---------------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["min", "max"])
@pytest.mark.parametrize("name", LUCK)
def test_luck_is_no_climb(name, direction):
    """A14: scores that are equal but for luck, other guards off: all 200 trials run, whatever the seed."""
    objective = Objective("score", direction)
    for seed in range(200):
        dice = Random(seed)
        scores = [objective.gain(LUCK[name](dice), 0.0) for _ in range(200)]
        assert stopped(scores) is None, seed
        assert not grown(scores).climbs, seed


def test_a_poor_baseline_makes_no_climb_of_luck():
    """The first score is given: being better than it is nothing to bet on."""
    for seed in range(200):
        dice = Random(seed)
        assert stopped([-1000.0, *(dice.gauss(0, 1) for _ in range(199))]) is None, seed


@pytest.mark.parametrize(
    "climb", [lambda x: x, lambda x: x + Random(x).gauss(0, 5), math.sqrt, math.log, lambda x: x // 10, lambda x: x**2]
)
@pytest.mark.parametrize("budget", [200, 1000])
def test_what_still_climbs_is_not_stopped(climb, budget):
    """A14: linear, noisy, in steps, slower and slower, faster and faster."""
    curve = [float(climb(x)) for x in range(1, budget + 1)]
    assert stopped(curve) is None
    assert grown(curve).climbs


def test_eight_scores_of_a_real_campaign_stop_nothing():
    """A15: the prefix from which the published guard stopped."""
    assert stopped([*JUDGE], budget=51) is None
    assert stopped([*JUDGE], budget=200) is None


def test_a_real_campaign_reaches_its_breakthrough():
    """A15: 51 trials, three of them failed, a plateau from 21 to 35, and the best of all at the 36th."""
    text = (Path(__file__).parent / "data" / "judge_scores.txt").read_text()
    scores = [None if word == "failed" else float(word) for word in text.split()]
    assert len(scores) == 51
    assert scores[35] == max(score for score in scores if score is not None)
    assert stopped(scores) is None
    assert stopped(scores, budget=200) is None


def test_a_short_pause_is_no_end():
    """A climb of 12 trials that rests for 20 goes on."""
    scores = [min(x, 12) + max(0, x - 32) for x in range(1, 60)]
    assert stopped([float(score) for score in scores], budget=200) is None


def test_too_little_is_known_at_first():
    """Fewer than 8 kept and 20 settled trials: silence."""
    curve = grown(1 - x**-4.0 for x in range(1, 20))
    assert promise(curve, 100) is not None
    assert doomed(curve, 7, 100, min_gain=1.0) == ""
    assert doomed(curve, 8, 100, min_gain=1.0) != ""
    assert doomed(curve.add(None), 7, 100, min_gain=1.0) != ""
    assert doomed(curve, 8, 0, min_gain=1.0) == ""
    assert doomed(Curve(), 0, 100, min_gain=1.0) == ""


# ---- the guard: what it ends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("climb", "by"),
    [
        (lambda x: 1 - math.exp(-x / 5), 60),
        (lambda x: 1 - math.exp(-x / 20), 170),
        (lambda x: math.tanh(x / 30), 160),
        (lambda x: -(x**-2.0), 40),
        (lambda x: -1 / x, 170),
        (lambda x: float(min(x, 12)), 40),
    ],
)
@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e9])
def test_what_is_saturated_is_stopped(climb, by, scale):
    """Well before the end, in any unit, and no more than 0.1 % of the gain is lost by it."""
    curve = [scale * climb(x) for x in range(1, 201)]
    ending = stopped(curve)
    assert ending is not None
    at, why = ending
    assert at <= by
    assert curve[-1] - curve[at - 1] <= 1.001e-3 * (curve[-1] - curve[0])
    assert why.startswith("the gain of ")
    assert "0.1 % of the gain so far" in why


def test_what_counts_as_a_gain_can_be_said():
    """`min_gain` before half a width of noise before 0.1 % of the gain so far."""
    curve = grown(-1 / x for x in range(1, 41))
    promised = promise(curve, 160)
    assert promised == pytest.approx(1 / 40 - 1 / 200, rel=0.05)
    assert "(min_gain)" in doomed(curve, 40, 160, min_gain=0.03, noise=1e-9)
    assert doomed(curve, 40, 160, min_gain=0.01, noise=1.0) == ""
    assert "(half the width of the noise)" in doomed(curve, 40, 160, noise=0.05)
    assert doomed(curve, 40, 160, noise=0.03) == ""
    assert doomed(curve, 40, 160, noise=0.0) == doomed(curve, 40, 160) == ""


def test_a_climb_that_begins_late_is_seen():
    """Luck for 100 trials, then a search that has found the slope, then nothing more."""
    dice = Random(1)
    scores = [dice.random() for _ in range(100)] + [1 + min(x, 25) / 10 for x in range(300)]
    assert not grown(scores[:100]).climbs
    assert grown(scores[:120]).climbs
    ending = stopped(scores)
    assert ending is not None
    assert 200 < ending[0] < 260
    scores = [dice.random() for _ in range(2000)] + [1 + x / 10 for x in range(8)]
    assert not grown(scores[:2000]).climbs
    assert grown(scores).climbs


def test_a_search_that_closes_in_is_stopped_cheaply():
    """A hill climber on a bowl, 20 seeds: under half of 400 trials on average, never for 0.5 % of the gain."""
    spent = []
    for seed in range(20):
        scores = climber(Random(seed), 400)
        at, _ = stopped(scores) or (400, "")
        spent.append(at)
        assert max(scores) - max(scores[:at]) <= 0.005 * (max(scores) - scores[0])
    assert sum(spent) / len(spent) < 200


def test_a_law_beside_the_curve_promises_the_larger_gain():
    """From where it is now, or from where the best is now: of both the more hopeful."""
    above, below = 0, 0
    curves = [grown(climber(Random(seed), length)) for seed in range(10) for length in (60, 90, 120)]
    curves += [grown(1 - math.exp(-x / scale) for x in range(60)) for scale in (3, 5, 10, 15)]
    for curve in curves:
        found, promised = law(curve), promise(curve, 100)
        if found is not None and promised is not None:
            then, now = projected(found, curve.trials + 100), projected(found, curve.trials)
            assert promised == max(0.0, then - curve.best, then - now)
            above, below = above + (now > curve.best), below + (now < curve.best)
    assert above
    assert below


def climber(dice: Random, count: int) -> list[float]:
    """(1+1) evolution on -|x|^2 in five dimensions, its step by the 1/5 rule."""
    place, step, scores = [dice.uniform(-1, 1) for _ in range(5)], 0.3, []
    best = -sum(x * x for x in place)
    for _ in range(count):
        new = [x + dice.gauss(0, step) for x in place]
        scores.append(-sum(x * x for x in new))
        if scores[-1] > best:
            place, best, step = new, scores[-1], step * 1.5
        else:
            step *= 0.9
    return scores
