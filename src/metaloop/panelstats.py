"""What ballots say of the judges who cast them, and how far a result is from chance.

Everything is exact where it can be enumerated, and says so where it is an approximation. Nothing needs scipy: whole
degrees of freedom have closed tails.

Not covered: that judges of one panel read the same texts. The tests of bias take ballots for independent; the test of
agreement is the one that says how far they are not.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import combinations, permutations
from operator import add
from random import Random
from statistics import fmean
from typing import NamedTuple, TypeAlias

from metaloop.ballots import Ranking, Tally, abstains, winner
from metaloop.values import Value


class Seen(NamedTuple):
    """A valid ballot: the names in the order shown, and best first."""

    shown: Ranking
    ranking: Ranking


class PositionBias(Value, frozen=True):
    """First places by the place shown, the first place first; `p`: that a judge who ignores places is as uneven."""

    wins: tuple[int, ...]
    p: float
    exact: bool


class LengthBias(Value, frozen=True):
    """How often the longest version won, of the ballots that have a longest.

    `more`, `fewer`: that so many or more, so few or fewer, win by chance. `correlation`: mean Kendall tau of length and
    rank over all ballots; 1 where the longer is always the better.
    """

    wins: int
    ballots: int
    more: float
    fewer: float
    correlation: float


class Agreement(Value, frozen=True):
    """Kendall's W from 0 (none) to 1 (one mind), a mean over panels; `p`: that random ballots agree as much."""

    w: float
    panels: int
    p: float
    exact: bool


class Flips(Value, frozen=True):
    """Of the judges shown both orders with two valid ballots, how many changed their first place with the order."""

    pairs: int
    flipped: int


class Strength(Value, frozen=True):
    """A Bradley-Terry strength, a share of 1, and its percentile interval over resampled ballots."""

    value: float
    low: float
    high: float


class Paired(Value, frozen=True):
    """Of pairs with one success, `b` are the first's and `c` the second's. Two-sided p, exact and by chi-square."""

    b: int
    c: int
    exact_p: float
    cc_p: float


# ---- bias ------------------------------------------------------------------------------------------------------------

ENUMERATED = 20_000
"""Outcomes that are enumerated at most: 198 ballots over three versions."""


def position_bias(ballots: Iterable[Seen]) -> PositionBias:
    """Which place shown won first place. All ballots have to be over as many versions.

    Exact multinomial test, ordered by chi-square, where there are few outcomes; Pearson's chi-square (1900) beyond.
    """
    given = list(ballots)
    places = _versions(ballot.shown for ballot in given)
    counts = Counter(ballot.shown.index(ballot.ranking[0]) for ballot in given)
    wins = tuple(counts[place] for place in range(places))
    exact = math.comb(len(given) + places - 1, max(0, places - 1)) <= ENUMERATED if given else True
    return PositionBias(wins, uniform_p(wins, exact), exact)


def uniform_p(counts: Sequence[int], exact: bool) -> float:
    """P(chi-square >= that of `counts`), if all places are as likely. 1 where there is nothing to count."""
    n, m = sum(counts), len(counts)
    if n == 0 or m < 2:
        return 1.0
    squares = sum(count * count for count in counts)  # chi-square = m * squares / n - n
    if not exact:
        return chi2_tail(m * squares / n - n, m - 1)
    as_uneven = (split for split in _splits(n, m) if sum(count * count for count in split) >= squares)
    ways = sum(math.factorial(n) // math.prod(map(math.factorial, split)) for split in as_uneven)
    return float(Fraction(ways, m**n))


def length_bias(ballots: Iterable[tuple[Sequence[str], Mapping[str, int]]]) -> LengthBias:
    """Whether the longest version wins more, or less, often than 1 in m. All ballots have to be over as many versions.

    `ballots`: a ranking and the length of each name in it. A ballot without a single longest is left out of the count.
    """
    given = list(ballots)
    m = _versions(ranking for ranking, _ in given)
    taus = [_tau(ranking, lengths) for ranking, lengths in given]
    firsts = [ranking[0] == longest for ranking, lengths in given if (longest := _longest(ranking, lengths))]
    n, wins = len(firsts), sum(firsts)
    chance = Fraction(1, max(1, m))
    more, fewer = binomial_tail(wins, n, chance), binomial_tail(n - wins, n, 1 - chance)
    return LengthBias(wins, n, more, fewer, fmean(taus) if taus else 0.0)


def flips(pairs: Iterable[tuple[Sequence[str] | None, Sequence[str] | None]]) -> Flips:
    """Over the two ballots of each judge that was shown both orders; None is an invalid one."""
    both = [abstains(first, second) for first, second in pairs if first is not None and second is not None]
    return Flips(len(both), sum(both))


def _versions(rankings: Iterable[Sequence[str]]) -> int:
    """How many versions all of the rankings have; 0 where there are none."""
    sizes = {len(ranking) for ranking in rankings}
    if len(sizes) > 1:
        raise ValueError(f"expected ballots over as many versions each, found {sorted(sizes)!r}")
    return sizes.pop() if sizes else 0


def _longest(ranking: Sequence[str], lengths: Mapping[str, int]) -> str | None:
    most = max(lengths[name] for name in ranking)
    longest = [name for name in ranking if lengths[name] == most]
    return longest[0] if len(longest) == 1 else None


def _tau(ranking: Sequence[str], lengths: Mapping[str, int]) -> float:
    """Kendall's tau-a (1938): pairs in which the longer is the better, less those in which it is not, of all pairs."""
    pairs = [lengths[better] - lengths[worse] for better, worse in combinations(ranking, 2)]
    return fmean([(gap > 0) - (gap < 0) for gap in pairs]) if pairs else 0.0


def _splits(n: int, m: int) -> Iterator[tuple[int, ...]]:
    """All ways to put `n` into `m` places."""
    if m == 1:
        yield (n,)
        return
    for first in range(n + 1):
        for rest in _splits(n - first, m - 1):
            yield (first, *rest)


# ---- agreement -------------------------------------------------------------------------------------------------------

CONVOLVED = 2_000_000
"""Steps that the exact distribution of an agreement may take: about half a second."""


def kendall_w(rankings: Sequence[Sequence[str]]) -> float:
    """W = 12 S / (n^2 (m^3 - m)), with S the squared deviations of the rank sums (Kendall & Babington Smith 1939)."""
    n, m = len(rankings), len(rankings[0])
    return 12 * _deviation(_rank_sums(rankings)) / (m * n * n * (m**3 - m))


def agreement(panels: Iterable[Sequence[Sequence[str]]]) -> Agreement:
    """The mean W of panels of valid rankings; panels of fewer than two are left out. All over as many versions.

    p: exact by convolution where that is cheap. Else by the sum of the panels' chi-squares n (m-1) W (Friedman 1937),
    which for few judges is too large rather than too small.
    """
    given = [panel for panel in panels if len(panel) > 1]
    m = _versions(ranking for panel in given for ranking in panel)
    if not given or m < 2:
        return Agreement(0.0, len(given), 1.0, True)
    ws = [kendall_w(panel) for panel in given]
    exact = _exact_agreement(given, m)
    if exact is None:
        total = math.fsum(len(panel) * (m - 1) * w for panel, w in zip(given, ws, strict=True))
        return Agreement(fmean(ws), len(given), chi2_tail(total, (m - 1) * len(given)), False)
    return Agreement(fmean(ws), len(given), exact, True)


def _exact_agreement(panels: Sequence[Sequence[Sequence[str]]], m: int) -> float | None:
    """P(mean W of random ballots >= that of `panels`), or None where it would take too long."""
    sizes = set(map(len, panels))
    if m > 4 or max(sizes) > 9:
        return None
    unit = math.lcm(*(size * size for size in sizes))  # W of a panel of n goes with S / n^2: whole numbers of 1 / unit
    spreads = {size: _spread(size, m, unit) for size in sizes}
    total, steps = {0: 1.0}, 0
    for panel in panels:
        spread = spreads[len(panel)]
        if (steps := steps + len(total) * len(spread)) > CONVOLVED:
            return None
        total = _convolved(total, spread)
    found = sum(_deviation(_rank_sums(panel)) * unit // len(panel) ** 2 for panel in panels)
    return min(1.0, math.fsum(chance for value, chance in total.items() if value >= found))


def _rank_sums(rankings: Sequence[Sequence[str]]) -> list[int]:
    return [sum(ranking.index(name) for ranking in rankings) for name in rankings[0]]


def _deviation(sums: Sequence[int]) -> int:
    """Squared deviations from the mean, times how many there are: a whole number."""
    return len(sums) * sum(value * value for value in sums) - sum(sums) ** 2


def _spread(judges: int, m: int, unit: int) -> dict[int, float]:
    """The distribution of a panel's deviation over random ballots, in whole numbers of `judges`^2 / `unit`."""
    spread: Counter[int] = Counter()
    for sums, ways in _random_sums(judges, m).items():
        spread[_deviation(sums) * unit // judges**2] += ways
    return {value: ways / math.factorial(m) ** judges for value, ways in spread.items()}


def _convolved(one: Mapping[int, float], other: Mapping[int, float]) -> dict[int, float]:
    total: dict[int, float] = {}
    for value, chance in one.items():
        for more, odds in other.items():
            total[value + more] = total.get(value + more, 0.0) + chance * odds
    return total


def _random_sums(judges: int, m: int) -> Counter[tuple[int, ...]]:
    """In how many of the (m!)^judges panels each vector of Borda points comes out, by convolution."""
    ballots = list(permutations(range(1, m + 1)))
    sums = Counter({(0,) * m: 1})
    for _ in range(judges):
        grown: Counter[tuple[int, ...]] = Counter()
        for held, ways in sums.items():
            for ballot in ballots:
                grown[tuple(map(add, held, ballot))] += ways
        sums = grown
    return sums


# ---- chance ----------------------------------------------------------------------------------------------------------


def chance_of_incumbent(
    judges: int,
    names: Sequence[str] = ("A", "B", "AB"),
    incumbent: str = "A",
    tie_order: Sequence[str] = (),
    margin: int = 0,
) -> Fraction:
    """P(the incumbent wins a pass), if every ballot is valid and random. Exact: 43/108 for three judges and no margin.

    Takes a moment for up to 4 names; with 5 and many judges it is slow.
    """
    ways = sum(
        ways
        for sums, ways in _random_sums(judges, len(names)).items()
        if winner(Tally(dict(zip(names, sums, strict=True)), judges, judges), incumbent, tie_order, margin) == incumbent
    )
    return Fraction(ways, math.factorial(len(names)) ** judges)


def passes_to_streak(chance: float | Fraction, k: int) -> float:
    """Expected passes until `k` wins in a row: (1 - p^k) / ((1 - p) p^k) (Feller 1968, XIII.7)."""
    if chance <= 0:
        return math.inf
    return float(sum(1 / chance**wins for wins in range(1, k + 1)))  # the same, and k for p = 1


# ---- comparison ------------------------------------------------------------------------------------------------------


Tiers: TypeAlias = Sequence[str | Sequence[str]]
"""A ranking, best first; names that stand together share their place."""


def first_places(rankings: Iterable[Tiers], names: Sequence[str]) -> dict[str, int]:
    """How often each name came first; names that share a first place came first, each of them."""
    counts = Counter(name for ranking in rankings for name in _tier(ranking[0]))
    return {name: counts[name] for name in names}


def condorcet(rankings: Sequence[Tiers], names: Sequence[str]) -> str | None:
    """Who is more often above than below each other that it does not share all its places with; None where nobody is,
    and where there is nobody else. Of names that share all places, the first.
    """
    places = [_places(ranking) for ranking in rankings]

    def ahead(one: str, other: str) -> bool:
        gaps = [place[other] - place[one] for place in places]
        return sum((gap > 0) - (gap < 0) for gap in gaps) > 0 or (bool(gaps) and not any(gaps))

    return next((one for one in names if all(ahead(one, other) for other in names if other != one)), None)


def strengths(rankings: Sequence[Tiers], names: Sequence[str], virtual: float = 0.5) -> dict[str, float]:
    """Bradley-Terry strengths (1952), which sum to 1, from full rankings of `names` read as pairwise wins; names that
    share a place have half a win each.

    `virtual` wins each way in every pair keep them finite where somebody wins or loses all (Ford 1957); 0: the plain
    likelihood, which then has no maximum.
    """
    return dict(zip(names, _fitted(_pairs_won(rankings, names), virtual), strict=True))


def intervals(
    panels: Sequence[Sequence[Tiers]],
    names: Sequence[str],
    dice: Random,
    draws: int = 1000,
    confidence: float = 0.95,
    virtual: float = 0.5,
) -> dict[str, Strength]:
    """`strengths` over all ballots of some panels, with percentile intervals (Efron 1979): panels are drawn again with
    replacement, and ballots within each.

    With seven ballots they are rough, and with one they have no width; of one panel, they know nothing of what another
    text or another try would have given.
    """
    known: dict[tuple[float, ...], tuple[float, ...]] = {}

    def fitted(sample: Sequence[Tiers]) -> tuple[float, ...]:
        won = _pairs_won(sample, names)
        if won not in known:  # few ballots have few resamples that differ
            known[won] = _fitted(won, virtual)
        return known[won]

    def again() -> list[Tiers]:
        drawn = dice.choices(panels, k=len(panels)) if len(panels) > 1 else panels
        return [ballot for panel in drawn if panel for ballot in dice.choices(panel, k=len(panel))]

    values = fitted([ballot for panel in panels for ballot in panel])
    samples = [fitted(again()) for _ in range(draws)]
    tail = int(draws * (1 - confidence) / 2)
    spread = [sorted(column) for column in zip(*samples, strict=True)]
    return {
        name: Strength(value, column[tail], column[-1 - tail])
        for name, value, column in zip(names, values, spread, strict=True)
    }


def _tier(tier: str | Sequence[str]) -> Sequence[str]:
    return (tier,) if isinstance(tier, str) else tier


def _places(ranking: Tiers) -> dict[str, int]:
    return {name: place for place, tier in enumerate(ranking) for name in _tier(tier)}


def _pairs_won(rankings: Sequence[Tiers], names: Sequence[str]) -> tuple[float, ...]:
    """By name, how many others are below it, and half of those beside it, over all rankings: all that strengths depend
    on, for rankings are full.
    """
    won = dict.fromkeys(names, 0.0)
    for ranking in rankings:
        below = len(names)
        for tier in map(_tier, ranking):
            below -= len(tier)
            for name in tier:
                won[name] += below + (len(tier) - 1) / 2
    return tuple(won[name] for name in names)


def _fitted(won: Sequence[float], virtual: float) -> tuple[float, ...]:
    """p_i = w_i / sum_j n / (p_i + p_j), normed, until nothing moves (MM; Hunter 2004). n is the same for all pairs."""
    m = len(won)
    p, wins = [1 / m] * m, [pairs + virtual * (m - 1) for pairs in won]
    if m < 2 or not any(wins):
        return tuple(p)
    for _ in range(10_000):
        shares = [sum(1 / (one + other) for j, other in enumerate(p) if i != j) for i, one in enumerate(p)]
        moved = [pairs / share for pairs, share in zip(wins, shares, strict=True)]
        moved = [one / math.fsum(moved) for one in moved]
        far = max(abs(new - old) for new, old in zip(moved, p, strict=True))
        p = moved
        if far < 1e-10:
            break
    return tuple(p)


def sign_test(wins: int, n: int) -> float:
    """Two-sided P of so many wins, or as many losses, of n, by lot (Arbuthnott 1710)."""
    return min(1.0, 2 * binomial_tail(max(wins, n - wins), n, Fraction(1, 2)))


def mcnemar(b: int, c: int) -> Paired:
    """Exact: twice the binomial tail, at most 1. Chi-square: continuity-corrected (McNemar 1947; Edwards 1948)."""
    n = b + c
    return Paired(b, c, sign_test(b, n), chi2_tail(max(0, abs(b - c) - 1) ** 2 / n, 1) if n else 1.0)


def cohens_h(p1: float, p2: float) -> float:
    """2 asin sqrt p1 - 2 asin sqrt p2 (Cohen 1988): positive where the first is larger."""
    return 2 * math.asin(math.sqrt(p1)) - 2 * math.asin(math.sqrt(p2))


# ---- tails -----------------------------------------------------------------------------------------------------------


def binomial_tail(k: int, n: int, p: Fraction) -> float:
    """P(X >= k) for n trials, exact until the last division. Each term is made of the one before: n may be large."""
    hit, miss = p.numerator, p.denominator - p.numerator
    if not hit:
        return float(k <= 0)
    ways, total = hit**n, 0  # of i = n
    for i in range(n, k - 1, -1):
        total += ways
        ways = ways * i * miss // ((n - i + 1) * hit)
    return float(Fraction(total, p.denominator**n))


def chi2_tail(x: float, df: int) -> float:
    """P(chi-square > x) for whole degrees of freedom, as a finite sum (Abramowitz & Stegun 1964, 26.4.4 and 26.4.5)."""
    if x <= 0:
        return 1.0
    half, odd = x / 2, df % 2
    powers = [i + odd / 2 for i in range(df // 2)]
    terms = [math.exp(power * math.log(half) - half - math.lgamma(power + 1)) for power in powers]
    return min(1.0, math.fsum([math.erfc(math.sqrt(half)) if odd else 0.0, *terms]))
