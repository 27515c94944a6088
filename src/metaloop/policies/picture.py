"""What the scored trials say about the space, in words for a model: where the best are, and which parameters matter.

Pure, and from all scored trials in view. It describes and promises nothing: with few trials it says so.
"""

import math
from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from metaloop.study import Trial, View
from metaloop.values import Choices, Domain, Range, Scalar, number

FEW = 8
"""With fewer scored trials nothing is said of regions and importance."""

BINS = 4
"""A range is cut into so many parts, with as many trials in each."""


def picture(view: View) -> str:
    """A line a parameter: where the best quarter of the scored trials lies, and how much it explains."""
    scored = [
        trial for trial in view.settled() if trial.score is not None and set(trial.change.values) == set(view.space)
    ]
    if len(scored) < FEW:
        return f"- too few scored trials for one: {len(scored)}, and it takes {FEW}"
    best = sorted(scored, key=lambda trial: -view.objective.gain(_worth(trial), 0.0))[: max(3, len(scored) // 4)]
    share = importance(view, scored)
    lines = [f"- the best {len(best)} of {len(scored)} scored trials:"]
    for name, domain in view.space.items():
        where = region(domain, [trial.change.values[name] for trial in best])
        lines.append(f"- {name}: {where}; explains {100 * share[name]:.0f} % of the differences on its own")
    return "\n".join(lines)


def region(domain: Domain, values: Sequence[Scalar]) -> str:
    """Where these values lie in their domain."""
    if isinstance(domain, Choices):
        counts = Counter(map(str, values)).most_common(3)
        return ", ".join(f"{value} ({count} of {len(values)})" for value, count in counts)
    numbers = sorted(float(value) for value in values if number(value))
    middle = numbers[len(numbers) // 2]
    return f"{numbers[0]:.4g} to {numbers[-1]:.4g}, the middle one {middle:.4g}"


def importance(view: View, scored: Sequence[Trial]) -> dict[str, float]:
    """By parameter: the share of the variance of scores that lies between its parts (eta squared, less what chance
    gives that many parts: omega squared), 0 to 1.
    """
    scores = [_worth(trial) for trial in scored]
    mean = fmean(scores)
    whole = math.fsum((score - mean) ** 2 for score in scores)
    return {name: _explained(view, scored, name, mean, whole) for name in view.space}


def _explained(view: View, scored: Sequence[Trial], name: str, mean: float, whole: float) -> float:
    groups: dict[object, list[float]] = {}
    for part, trial in zip(_parts(view.space[name], [t.change.values[name] for t in scored]), scored, strict=True):
        groups.setdefault(part, []).append(_worth(trial))
    within = len(scored) - len(groups)
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
