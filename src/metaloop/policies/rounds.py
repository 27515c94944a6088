"""What a round of lanes computes about itself: whether it stalls, whether ideas are due, which briefs say the same.

Plain values in, plain values out. No model has a say in any of it: what counts is what was measured.
"""

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

from metaloop.values import Direction, Value

OVERLAP = 0.6
"""Two briefs on one parent whose pointers overlap this much are one: the share of the shorter list that both have."""


# ---- gain and stall --------------------------------------------------------------------------------------------------


class Outcome(Value, frozen=True):
    """What a lane's trial came to: its score, if it has one, and whether the audit after it left it valid."""

    score: float | None
    valid: bool = True


def lane_gain(trials: Sequence[Outcome], direction: Direction) -> float | None:
    """The score of the lane's best valid trial; None where it has none."""
    scores = [one.score for one in trials if one.valid and one.score is not None and math.isfinite(one.score)]
    if not scores:
        return None
    return max(scores) if direction == "max" else min(scores)


def stall(before: int, best_before: float | None, lanes: Sequence[Sequence[Outcome]], direction: Direction) -> int:
    """How many rounds running brought nothing, after this one. Only a valid trial that is strictly better than the best
    before the round makes it 0; where there was none, any valid score does.
    """
    gains = [gain for lane in lanes if (gain := lane_gain(lane, direction)) is not None]
    if best_before is None:
        return 0 if gains else before + 1
    better = any(gain > best_before if direction == "max" else gain < best_before for gain in gains)
    return 0 if better else before + 1


def goes_on(stall: int, limit: int) -> bool:
    """Whether there is another round."""
    return stall < limit


# ---- ideas -----------------------------------------------------------------------------------------------------------

Why: TypeAlias = Literal["", "stall", "periodic"]


class Ideated(Value, frozen=True):
    """What ideating has come to: the kept trials there were at the last one, and whether this stall had its own."""

    kept: int = 0
    stalled: bool = False


def ideate_stall(wanted: int, limit: int) -> int:
    """The stall at which ideas are due: one round before the limit at the latest, and never at none."""
    return max(1, min(wanted, limit - 1))


NEVER = Ideated()


def ideate_due(
    stall: int, kept: int, before: Ideated = NEVER, *, at_stall: int = 3, every: int = 5
) -> tuple[Why, Ideated]:
    """Why ideas are due now, or "", and what to know at the next round. Once a stall, from `at_stall` rounds on; and
    whenever `every` trials were kept since the last ideas, whatever those were for; 0: never for that.

    Ideas of the second kind are not the stall's own. Where both are due, it is for the stall.
    """
    stalled = before.stalled and stall >= at_stall
    if stall >= at_stall and not stalled:
        return "stall", Ideated(kept, True)
    if every and kept - before.kept >= every:
        return "periodic", Ideated(kept, stalled)
    return "", Ideated(before.kept, stalled)


# ---- briefs ----------------------------------------------------------------------------------------------------------


class Brief(Value, frozen=True):
    """What a lane is to do: towards what, from which trial on, within which bounds; the trials that it points to."""

    objective: str
    parent: int
    boundaries: tuple[str, ...] = ()
    pointers: tuple[int, ...] = ()


def dedupe(briefs: Sequence[Brief]) -> tuple[list[Brief], list[str]]:
    """Those that stay, in their order, and a sentence for each that does not. Each is compared with those that stay."""
    stay: list[Brief] = []
    said: list[str] = []
    for place, brief in enumerate(briefs, 1):
        found = next(((other, why) for other in stay if (why := _same(brief, other))), None)
        if found is None:
            stay.append(brief)
        else:
            said.append(f"brief {place} is left out: {found[1]} as {found[0].objective[:80]!r}")
    return stay, said


def _same(brief: Brief, other: Brief) -> str:
    """Why two briefs are one; empty where they are not."""
    if brief == other:
        return "the same brief"
    if brief.parent == other.parent and overlap(brief.pointers, other.pointers) >= OVERLAP:
        return f"from trial {brief.parent} on and mostly with the same pointers"
    return ""


def overlap(some: Sequence[int], others: Sequence[int]) -> float:
    """The share of the smaller set that both have; 0 where one is empty."""
    smaller = min(len(set(some)), len(set(others)))
    return len(set(some) & set(others)) / smaller if smaller else 0.0
