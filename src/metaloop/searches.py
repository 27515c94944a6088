"""What is wrong with a search by measured trials (parameters, code): as for tournaments, by another table. Pure.

Thresholds are constants, and starting points. A remedy is told in words: the loop between runs tries those of
tournaments alone so far.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Literal, TypeAlias

from metaloop.values import Value

Sign: TypeAlias = Literal["failure_cluster", "duplicate_proposals", "noise_dominated", "boundary", "stalled"]

LAST, CLUSTER, STALLED, REPEATED = 8, 0.5, 10, 0.2
"""Trials in which a failure clusters, and what share of them; trials without a keep; share of proposals that repeat."""


class Step(Value, frozen=True):
    """A settled trial of the search. `kind`: the class of its failure. `gain`: over what it was compared with, positive
    is better; None where it was not measured.
    """

    kept: bool = False
    kind: str = ""
    duplicate: bool = False
    gain: float | None = None


class Search(Value, frozen=True):
    """A study's trials in their order. `noise`: the sd of a single run; None where nothing varied, or nobody knows.
    `edges`: ends of ranges that the best point stands at, as `lr high`.
    """

    steps: tuple[Step, ...]
    noise: float | None = None
    edges: tuple[str, ...] = ()


def signs(search: Search, order: Sequence[Sign] | None = None) -> dict[Sign, str]:
    """What fires, the gravest first, with what was seen."""
    return {name: said for name in order or tuple(SIGNS) if (said := SIGNS[name](search))}


def _failure_cluster(search: Search) -> str:
    last = search.steps[-LAST:]
    kinds = Counter(step.kind for step in last if step.kind)
    kind, count = next(iter(kinds.most_common(1)), ("", 0))
    fires = len(last) == LAST and count >= CLUSTER * LAST
    return f"{count} of the last {LAST} trials failed alike ({kind})" if fires else ""


def _duplicate_proposals(search: Search) -> str:
    count = sum(step.duplicate for step in search.steps)
    fires = count > 1 and count >= REPEATED * len(search.steps)
    return f"{count} of {len(search.steps)} proposals had been made before" if fires else ""


def _noise_dominated(search: Search) -> str:
    gains = [step.gain for step in search.steps if step.kept and step.gain is not None]
    if not gains or search.noise is None or median(gains) >= search.noise:
        return ""
    return f"what was kept gained {median(gains):.3g} in the middle, and a run varies by {search.noise:.3g} (sd)"


def _boundary(search: Search) -> str:
    return f"the best stands at the end of its range: {', '.join(search.edges)}" if search.edges else ""


def _stalled(search: Search) -> str:
    last = search.steps[-STALLED:]
    return (
        f"nothing was kept in the last {STALLED} trials"
        if len(last) == STALLED and not any(s.kept for s in last)
        else ""
    )


SIGNS: Mapping[Sign, Callable[[Search], str]] = {
    "failure_cluster": _failure_cluster,
    "duplicate_proposals": _duplicate_proposals,
    "noise_dominated": _noise_dominated,
    "boundary": _boundary,
    "stalled": _stalled,
}
"""What was seen, in words; empty where it does not fire. What corrupts the data comes first."""

REMEDIES: Mapping[Sign, tuple[str, str]] = {
    "failure_cluster": ("repair", "mend what fails, or take its cause out of the space, before more is tried"),
    "duplicate_proposals": ("other_policy", "let somebody else propose: policy.type random, or tpe"),
    "noise_dominated": ("more_repeats", "raise evaluation.confirm and evaluation.baseline_repeats, or share seeds"),
    "boundary": ("wider_range", "widen the range at that end"),
    "stalled": ("other_policy", "let somebody else propose, or widen the space"),
}
"""By sign: the remedy's name, and what it is."""
