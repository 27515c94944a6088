"""What a study may still gain: a power law through the best so far, and when that is reason enough to stop.

    y(x) = a * x^b + c,   x = 1, 2, ... settled trials,   b < 0: it levels off towards c

Learning curves look like this [Kaplan et al., arXiv:2001.08361], and searches often do, in the end: one that closes in
exponentially, or in steps, bends more sharply than a single power can from x = 1. So the law goes through the newest
half of the best so far, and a half that never moved promises nothing.

That cannot tell a search that is saturated from one that is merely lucky now and then: the best of n equal draws levels
off as well, and the last of 200 uniform draws gain less than 0.1 % on average. So another thing is asked first: whether
there ever was a climb that could level off. Of n draws that are equal but for luck the nth is the best so far with a
chance of 1/n, independently of the earlier ones, whatever they are drawn from [Renyi 1962]. `Curve` bets against that,
and only where records came so densely that luck would do it in one study of 10,000 is there a forecast at all.

What gives: a study that flattens after a few steps, or climbs as seldom as luck would, is never stopped here, however
flat it is; the guard on trials without improvement is for those. And a climb that pauses for as long as it has lasted,
20 trials at least, is taken for one that is over.

Everything is oriented: larger is better (`objective.gain(value, 0.0)`).
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise

import msgspec

from metaloop.values import Value

LEAST = 5
"""A law of three numbers goes through any three points: fewer points than this are not fitted."""

STEEPEST, FLATTEST = -4.0, -0.05
"""Bounds of b. At the flat end x^b is a straight line over log x: such a curve has not begun to level off."""

KEEPS, TRIALS = 8, 20
"""So much has to be known before anything is forecast: kept trials, or settled ones."""

SHARE = 0.001
"""Of the gain so far: what still counts where the metric has no noise and nothing was asked for."""

CHANCE = 1e-4
"""At most this share of studies that are nothing but luck are ever taken for a climb."""

BETS = (0.2, 0.5, 0.9)
"""The shares of records that are bet on: a slow climb, a good one, one that seldom misses."""

DENSE = 16
"""Points that are kept for each doubling of the number of trials."""


# ---- the law ---------------------------------------------------------------------------------------------------------


class Fit(Value, frozen=True):
    """y = a * x^b + c. `miss`: how far off it is, as the root of the mean square, in the unit of y."""

    a: float
    b: float
    c: float
    miss: float = 0.0


def projected(fit: Fit, at: float) -> float:
    """What the law says for x = `at` (1 is the first)."""
    return fit.a * math.exp(fit.b * math.log(at)) + fit.c


def fit(
    series: Sequence[float], at: Sequence[float] | None = None, weights: Sequence[float] | None = None
) -> Fit | None:
    """The law with the least (weighted) squares through `series`, at x = 1, 2, ... unless `at` says where.

    For a given b, a and c are those of a straight line over x^b, exactly; b is the best of a grid over its bounds,
    refined by golden section. Rising and falling series alike. None where no such law can be believed: too few points,
    a series that never moves or is not finite, or a best b at its flat bound, where a and c cannot be told apart.
    """
    xs = [float(x) for x in at] if at is not None else [float(x + 1) for x in range(len(series))]
    if len(series) < LEAST or not all(map(math.isfinite, series)) or min(xs) <= 0:
        return None
    low, span = min(series), max(series) - min(series)
    if not 0 < span < math.inf:
        return None
    logs, ys = [math.log(x) for x in xs], [(y - low) / span for y in series]
    ws = weights or [1.0] * len(ys)

    def off(steepness: float) -> float:
        return _line([math.exp(-math.exp(steepness) * x) for x in logs], ys, ws)[2]

    b = -math.exp(_lowest(off, math.log(-FLATTEST), math.log(-STEEPEST)))
    if b > FLATTEST * 1.01:
        return None
    slope, intercept, squares = _line([math.exp(b * x) for x in logs], ys, ws)
    return Fit(slope * span, b, intercept * span + low, math.sqrt(squares / sum(ws)) * span)


def _line(us: Sequence[float], ys: Sequence[float], ws: Sequence[float]) -> tuple[float, float, float]:
    """Slope, intercept and weighted sum of squares of the best straight line of y over u."""
    total = sum(ws)
    u0 = sum(w * u for w, u in zip(ws, us, strict=True)) / total
    y0 = sum(w * y for w, y in zip(ws, ys, strict=True)) / total
    uu = uy = yy = 0.0
    for w, u, y in zip(ws, us, ys, strict=True):
        du, dy = u - u0, y - y0
        uu += w * du * du
        uy += w * du * dy
        yy += w * dy * dy
    slope = uy / uu if uu > 0 else 0.0
    return slope, y0 - slope * u0, max(0.0, yy - slope * uy)


def _lowest(of: Callable[[float], float], low: float, high: float, starts: int = 12, rounds: int = 20) -> float:
    """Where `of` is lowest between two bounds: the best of a grid, then golden section between its neighbours."""
    grid = [low + (high - low) * i / starts for i in range(starts + 1)]
    best = min(range(starts + 1), key=[of(x) for x in grid].__getitem__)
    low, high = grid[max(0, best - 1)], grid[min(starts, best + 1)]
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = of(left), of(right)
    for _ in range(rounds):
        if at_left <= at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = of(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = of(right)
    return (low + high) / 2


def published_fit(series: Sequence[float]) -> Fit:
    """The fit in its published form, to compare with; nothing here decides by it.

    c is 0.5, 0.8 or 0.9 of the smallest value; a and b are those of the straight line of log(y - c) over log x; the c
    with the least squares wins. It takes rising and falling series as they come. Values have to be positive.
    """
    if len(series) < 3 or min(series) <= 0:
        raise ValueError(f"expected at least 3 positive values, got {list(series)[:5]!r}")
    found: list[Fit] = []
    logs = [math.log(x + 1) for x in range(len(series))]
    for share in (0.5, 0.8, 0.9):
        c = share * min(series)
        slope, intercept, _ = _line(logs, [math.log(y - c) for y in series], [1.0] * len(series))
        law = Fit(math.exp(intercept), slope, c)
        squares = sum((projected(law, x + 1) - y) ** 2 for x, y in enumerate(series))
        found.append(Fit(law.a, law.b, law.c, math.sqrt(squares / len(series))))
    return min(found, key=lambda law: law.miss)


# ---- a study's curve, in few numbers ---------------------------------------------------------------------------------


class Curve(Value, frozen=True):
    """The best so far of a study, in about 40 numbers at most, however long it is; larger is better.

    `trials` have settled, `scored` of them have a score, `records` of those were strictly better than all before.
    `points` are (trial, best so far) in the newest half: every trial at first, later 16 to 33 of them.
    `climbs`: once there was a climb that is not luck; see `add`.
    """

    trials: int = 0
    scored: int = 0
    records: int = 0
    first: float = 0.0
    best: float = 0.0
    points: tuple[tuple[int, float], ...] = ()
    bets: tuple[float, ...] = (0.0,) * len(BETS)
    climbs: bool = False

    def add(self, value: float | None) -> "Curve":
        """One more settled trial; None where it has no score. As cheap for the 100,000th as for the first.

        A wager decides whether this is a climb. Before the ith draw it holds on every share q > 1/i that this will be
        a record: its stake becomes `stake * q / (1/i)` if it is, `stake * (1 - q) / (1 - 1/i)` if not. Where all draws
        are equal but for luck nobody gains by that on average, so the chance of ever having 1 / `CHANCE` times the
        money is at most `CHANCE` [Ville 1939], however often one looks. Fresh money, 1 / (i * (i + 1)) a draw, is
        there for a climb that begins late. The first score is given and no draw: it often is the baseline's. Ties are
        no records, which only makes the wager poorer.
        """
        trials = self.trials + 1
        if value is None or not math.isfinite(value):
            points = _thinned(self.points, trials, self.best) if self.scored else ()
            return msgspec.structs.replace(self, trials=trials, points=points)
        if not self.scored:
            return Curve(trials, 1, 1, value, value, ((trials, value),))
        record, draw = value > self.best, self.scored
        bets = self.bets if self.climbs else _wager(self.bets, draw, record)
        climbs = self.climbs or sum(bets) / len(bets) * CHANCE >= 1
        best = max(self.best, value)
        points = _thinned(self.points, trials, best)
        return Curve(trials, draw + 1, self.records + record, self.first, best, points, bets, climbs)


def _thinned(points: tuple[tuple[int, float], ...], trials: int, best: float) -> tuple[tuple[int, float], ...]:
    """With this trial, if it is one of those that are kept, and without those that are no longer in the newest half."""
    gone = 0
    while gone < len(points) and 2 * points[gone][0] < trials:
        gone += 1
    kept = trials % max(1, (1 << trials.bit_length() - 1) // DENSE) == 0
    return (*points[gone:], (trials, best)) if kept else points[gone:]


def _wager(bets: tuple[float, ...], draw: int, record: bool) -> tuple[float, ...]:
    luck = 1 / draw
    fresh = luck / (draw + 1)
    stakes = []
    for share, stake in zip(BETS, bets, strict=True):
        odds = 1.0 if share <= luck else share / luck if record else (1 - share) / (1 - luck)
        stakes.append((stake + fresh) * odds)
    return tuple(stakes)


@lru_cache(maxsize=16)
def law(curve: Curve) -> Fit | None:
    """The law through the newest half of a study's best so far; a point counts for the trials since the one before."""
    points = [*curve.points, (curve.trials, curve.best)] if curve.scored else []
    if len(points) > 1 and points[-2][0] == curve.trials:
        points.pop()
    at = [float(trial) for trial, _ in points]
    weights = [1.0, *(after - before for before, after in pairwise(at))]
    return fit([best for _, best in points], at, weights)


def promise(curve: Curve, remaining: int) -> float | None:
    """The gain that `remaining` more trials promise; None where nobody can tell.

    The law may lie above or below the best at its end; the larger of both answers counts. A half that never moved
    promises nothing more, once it is no short pause.
    """
    if not curve.climbs:
        return None
    if curve.points and curve.points[0][1] == curve.best:
        return 0.0 if curve.trials >= 2 * TRIALS else None
    if (found := law(curve)) is None:
        return None
    then = projected(found, curve.trials + remaining)
    return max(0.0, then - curve.best, then - projected(found, curve.trials))


# ---- the guard -------------------------------------------------------------------------------------------------------


def doomed(curve: Curve, keeps: int, remaining: int, min_gain: float | None = None, noise: float | None = None) -> str:
    """Why the rest of the budget is not worth it, in plain words; empty while it may be, or nobody can tell.

    It is not worth it where less than `min_gain` is promised for `remaining` more trials: half of `noise` (the width
    of the metric's noise) unless given, 0.1 % of the gain so far where there is no noise either. Silent with fewer than
    8 kept and 20 settled trials, without a climb, and where the fit failed.
    """
    if remaining <= 0 or (keeps < KEEPS and curve.trials < TRIALS):
        return ""
    gain, (enough, said) = promise(curve, remaining), _enough(curve, min_gain, noise)
    if gain is None or gain >= enough:
        return ""
    return (
        f"the gain of {curve.best - curve.first:.3g} in {curve.trials} trials levels off: the {remaining} that are "
        f"left would add about {gain:.2g}, less than {enough:.2g} ({said})"
    )


def _enough(curve: Curve, min_gain: float | None, noise: float | None) -> tuple[float, str]:
    if min_gain is not None:
        return min_gain, "min_gain"
    if noise:
        return noise / 2, "half the width of the noise"
    return SHARE * (curve.best - curve.first), "0.1 % of the gain so far"
