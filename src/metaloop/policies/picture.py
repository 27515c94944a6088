"""What the scored trials say about the space, in words for a model: where the best are, and which parameters matter.

Pure, and from all scored trials in view. It describes and promises nothing: with few trials it says so.
"""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from metaloop.study import Trial, View
from metaloop.values import Choices, Domain, Range, Scalar, number

FEW = 8
"""With fewer scored trials nothing is said of regions and importance."""

ALIKE, NARROW = 3, 0.1
"""A parameter was hardly varied where fewer than 3 trials differ from the rest, or 8 of 10 lie within a tenth of its
range: then nothing is said of how much it matters.
"""

BINS = 4
"""A range is cut into so many parts, with as many trials in each."""


def picture(view: View) -> str:
    """A line a parameter: where the best quarter of the scored trials lies, and how much it explains."""
    scored = [
        trial for trial in view.settled() if trial.score is not None and set(trial.change.values) == set(view.space)
    ]
    if len(scored) < FEW:
        return f"- too few scored trials for one: {len(scored)}, and it takes {FEW}"
    ranked = sorted(scored, key=lambda trial: -view.objective.gain(_worth(trial), 0.0))
    last = _worth(ranked[max(3, len(scored) // 4) - 1])
    best = [trial for trial in ranked if not view.objective.better(last, _worth(trial))]  # with all that tie
    share = importance(view, scored)
    lines = [f"- the best {len(best)} of {len(scored)} scored trials:"]
    for name, domain in view.space.items():
        where = region(domain, [trial.change.values[name] for trial in best])
        told = f"explains {100 * share[name]:.0f} % of the ranking on its own"
        if not varied(domain, [trial.change.values[name] for trial in scored]):
            told = "hardly varied so far, so what it does is not known"
        lines.append(f"- {name}: {where}; {told}")
    return "\n".join(lines)


def varied(domain: Domain, values: Sequence[Scalar]) -> bool:
    """Whether so different values were tried that they can explain anything."""
    if isinstance(domain, Choices):
        return len(values) - Counter(map(str, values)).most_common(1)[0][1] >= ALIKE
    scale = math.log if domain.log else float
    places = sorted(scale(value) for value in values if number(value))
    tenth = len(places) // 10
    return places[-1 - tenth] - places[tenth] >= NARROW * (scale(domain.high) - scale(domain.low))


def region(domain: Domain, values: Sequence[Scalar]) -> str:
    """Where these values lie in their domain."""
    if isinstance(domain, Choices):
        counts = Counter(map(str, values)).most_common(3)
        return ", ".join(f"{value} ({count} of {len(values)})" for value, count in counts)
    numbers = sorted(float(value) for value in values if number(value))
    middle = numbers[len(numbers) // 2]
    return f"{numbers[0]:.4g} to {numbers[-1]:.4g}, the middle one {middle:.4g}"


def importance(view: View, scored: Sequence[Trial]) -> dict[str, float]:
    """By parameter: the share of the variance of the scores' ranks that lies between its parts (eta squared, less what
    chance gives that many parts: omega squared), 0 to 1. Of ranks: one run that went astray would outweigh all others.
    """
    scores = sorted(_worth(trial) for trial in scored)
    ranks = [(bisect_left(scores, _worth(t)) + bisect_right(scores, _worth(t))) / 2 for t in scored]
    return {
        name: _explained(_parts(domain, [trial.change.values[name] for trial in scored]), ranks)
        for name, domain in view.space.items()
    }


def _explained(parts: Sequence[object], ranks: Sequence[float]) -> float:
    mean = fmean(ranks)
    whole = math.fsum((rank - mean) ** 2 for rank in ranks)
    groups: dict[object, list[float]] = {}
    for part, rank in zip(parts, ranks, strict=True):
        groups.setdefault(part, []).append(rank)
    within = len(ranks) - len(groups)
    if whole <= 0 or within <= 0 or len(groups) < 2:
        return 0.0
    between = math.fsum(len(group) * (fmean(group) - mean) ** 2 for group in groups.values())
    noise = (whole - between) / within
    return min(1.0, max(0.0, (between - (len(groups) - 1) * noise) / (whole + noise)))


def _parts(domain: Domain, values: Sequence[Scalar]) -> list[object]:
    """The part of its domain that each value lies in: itself for a choice, a quarter of the trials for a number."""
    if isinstance(domain, Choices):
        return [(type(value), value) for value in values]
    assert isinstance(domain, Range)
    ranks = sorted({float(value) for value in values if number(value)})
    place = {value: index * BINS // len(ranks) for index, value in enumerate(ranks)}
    return [place[float(value)] for value in values if number(value)]


def _worth(trial: Trial) -> float:
    assert trial.score is not None
    return trial.score.value
