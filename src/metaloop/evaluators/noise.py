"""Is a candidate proven better than the incumbent? Decides from numbers only: no clock, no dice, no disk.

A candidate gets one first look. If that does not look better than the incumbent's score it is dropped, and costs no
level. Otherwise candidate and incumbent are run together on fresh seeds (common ones where the target honours seeds),
and after a quarter, half and all of `confirm` pairs the differences d_k = candidate_k - incumbent_k (sign: larger is
better) are tested.

Promised: P(a study keeps anything false) <= alpha, for any number of candidates, decided by whatever the past showed.
Proved: the spending of the level. Measured, not proved: the t test at few pairs (docs/evaluation.md has the tables).
Not covered: a target whose seeds secretly repeat; candidates of another spread whose noise is skewed.
"""

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean
from typing import Literal, TypeAlias

import msgspec

from metaloop.study import Evidence
from metaloop.values import squares

Verdict: TypeAlias = Literal["keep", "drop", "more"]


class Rule(msgspec.Struct, frozen=True):
    """`alpha`: of the whole study. `confirm`: pairs at most. `error`: of any false keep, or the false share of keeps.

    `half`: failed tests after which half of alpha is spent. `shares` of a test's level, one for each look.
    `prior_df`: what the spread of past tests is worth, in degrees of freedom; never more, for the next candidate may be
    wilder. `hope`: standard errors of benefit of the doubt before a test is given up.
    """

    alpha: float = 0.05
    confirm: int = 12
    error: Literal["any", "fdr"] = "any"
    half: int = 15
    shares: tuple[float, ...] = (0.05, 0.25, 0.7)
    prior_df: int = 4
    hope: float = 1.0


def looks(rule: Rule) -> tuple[int, ...]:
    """Numbers of pairs at which to decide: 12 -> 3, 6, 12. At least two, for a spread needs two."""
    counts = [max(2, math.ceil(rule.confirm * part)) for part in (0.25, 0.5, 1.0)]
    return tuple(dict.fromkeys(counts))


# ---- how much level the next test gets -------------------------------------------------------------------------------


def spend(n: int, half: int) -> float:
    """gamma_n = h / ((h+n-1)(h+n)), n = 1, 2, ...: telescopes, the first n sum to n/(n+h) and all of them to 1."""
    return half / ((half + n - 1) * (half + n))


def level(rule: Rule, failed: int, number: int, keeps: Sequence[int]) -> float:
    """The level of test `number` (from 1), when `failed` began before it and have not ended in a keep.

    any: alpha * gamma_(failed+1). A keep gives its level back: until the first false keep every true null has failed,
      so the levels of true nulls sum to <= alpha, whatever the rest did (alpha spending with fallback; Tian & Ramdas
      2021). Tests that still run count as failed.
    fdr: LORD++ (Ramdas, Yang, Wainwright & Jordan 2017) with W0 = alpha/2 and keeps at tests r1 < r2 < ...:
      gamma_n W0 + (alpha - W0) gamma_(n-r1) + alpha * sum_(j>=2) gamma_(n-rj). Expected false share of the keeps <=
      alpha if tests are independent, which fresh seeds give but for the incumbent that they share.
    """
    if rule.error == "any":
        return rule.alpha * spend(failed + 1, rule.half)
    first = rule.alpha / 2
    ages = [number - at for at in keeps if at < number]
    return (
        first * spend(number, rule.half)
        + sum((rule.alpha - first) * spend(age, rule.half) for age in ages[:1])
        + sum(rule.alpha * spend(age, rule.half) for age in ages[1:])
    )


# ---- one test --------------------------------------------------------------------------------------------------------


def decide(rule: Rule, d: Sequence[float], before: Evidence, at: float) -> Verdict:
    """At look k with n pairs:  s^2 = (d0 s0^2 + SS(d)) / (d0+n-1),  t = mean(d) / (s/sqrt n)   (moderated; Smyth 2004).

    keep   if P(T_(d0+n-1) > t) <= share_k * at               (union bound over looks: no joint distribution needed)
    drop   if even (t + hope) sqrt(N/n) would not pass at N = confirm   (not binding: carrying on stays valid)
    """
    n, plan = len(d), looks(rule)
    shares = (*rule.shares[: len(plan) - 1], 1 - math.fsum(rule.shares[: len(plan) - 1]))
    t, df = moderated(rule, d, before)
    if t_tail(t, df) <= shares[plan.index(n)] * at:
        return "keep"
    foreseen = t_tail((t + rule.hope) * math.sqrt(plan[-1] / n), df - n + plan[-1])
    return "drop" if n == plan[-1] or foreseen > shares[-1] * at else "more"


def moderated(rule: Rule, d: Sequence[float], before: Evidence) -> tuple[float, int]:
    """The moderated t of `d`, and its degrees of freedom. 0 where every run tied so far: then nothing is proven."""
    n, d0 = len(d), min(rule.prior_df, before.df)
    variance = spread(d0, d, before)
    return (fmean(d) / math.sqrt(variance / n) if variance > 0 else 0.0), d0 + n - 1


def spread(d0: int, d: Sequence[float], before: Evidence) -> float:
    """The variance of a difference: what was seen before, worth `d0` degrees of freedom, and what `d` shows.

    In a test the baseline's repeats stay part of it even where pairs vary far less: without them more is kept that is
    false (docs/evaluation.md).
    """
    prior = d0 * before.squares / before.df if d0 else 0.0
    return (prior + squares(d)) / (d0 + len(d) - 1)


def interval(rule: Rule, d: Sequence[float], before: Evidence, confidence: float = 0.95) -> tuple[float, float]:
    """mean(d) -+ t_(df) s / sqrt(n), two-sided, with the moderated s. `d`: two differences or more."""
    d0 = min(rule.prior_df, before.df)
    half = t_quantile((1 - confidence) / 2, d0 + len(d) - 1) * math.sqrt(spread(d0, d, before) / len(d))
    return fmean(d) - half, fmean(d) + half


def t_tail(t: float, df: int) -> float:
    """P(T_df > t) for whole df: the finite cosine series (Abramowitz & Stegun 26.7.3 and 26.7.4). Good to 1e-15."""
    angle = math.atan2(t, math.sqrt(df))
    sine, square = math.sin(angle), math.cos(angle) ** 2
    odd = df % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for k in range(1 + odd, df, 2):
        total += term
        term *= square * k / (k + 1)
    inside = (2 / math.pi) * (angle + sine * total) if odd else sine * total
    return (1 - inside) / 2


def t_quantile(tail: float, df: int) -> float:
    """The t with P(T_df > t) = tail, 0 < tail < 0.5, by bisection to 1e-12 of itself."""
    low, high = 0.0, 1.0
    while t_tail(high, df) > tail:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, df) > tail else (low, middle)
    return high


# ---- what is told ----------------------------------------------------------------------------------------------------


def pairs_needed(step: float, correlation: float, at: float, power: float = 0.8) -> int:
    """N >= 2 (1-rho) ((z_at + z_power) / step)^2, `step` in noise widths, and two for the unknown spread."""
    z = NormalDist().inv_cdf
    return math.ceil(2 * (1 - correlation) * ((z(1 - at) + z(power)) / step) ** 2) + 2
