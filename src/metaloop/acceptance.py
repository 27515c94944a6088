"""Whether a changed search is kept: a gate of quality first, then an objective. Pure.

The change request's rule: a change must not lose the vote, and has to converge in strictly fewer rounds; a tie reverts.
Never to converge counts as infinitely many, and two of those are a tie. Rounds are compared under the base's own k.

Where the base converged in its k passes already, rounds cannot drop. Then (this is ours) the gate has to be won
outright, and calls may grow to twice as many; the request's rule cannot accept such a change, and says so before
anything is spent.
"""

import math
from statistics import fmean
from typing import Literal, TypeAlias

from metaloop.ballots import streak
from metaloop.diagnose import Trace
from metaloop.gates import Gate
from metaloop.values import Value

Aim: TypeAlias = Literal["rounds", "calls", "stability", "quality_per_call"]

DEARER = 2.0
"""So many times the base's calls a change may cost that cannot converge sooner."""


class Came(Value, frozen=True):
    """What a search came to: its trace, the document at the end, and what it took. `usd`: None where nobody knows."""

    trace: Trace
    text: str
    calls: int
    usd: float | None = None

    def rounds(self, k: int) -> float:
        """Passes until the document had held k times running; infinite where it never had."""
        at, why = streak([each.winner for each in self.trace.passes], k, len(self.trace.passes) + 1)
        return float(at) if why == "converged" else math.inf

    def stability(self) -> float:
        """Share of decided passes that the document won."""
        won = self.trace.winners
        return won.count("A") / len(won) if won else 0.0


class Verdict(Value, frozen=True):
    """Whether a change is kept, and why, in words a person would accept."""

    accepted: bool
    why: str


def cannot_drop(base: tuple[Came, ...], k: int) -> bool:
    """Whether every run of the base converged as soon as it could."""
    return all(each.rounds(k) <= k for each in base)


def judged(
    base: tuple[Came, ...], changed: Came, gate: Gate | None, k: int, aim: Aim = "rounds", original: bool = False
) -> Verdict:
    """A change against the runs of its base. `gate`: None where both came to the same text, and nobody voted."""
    if gate is not None and not gate.passed:
        return Verdict(False, f"reverted by the gate: {gate.why}")
    said = "the same text: no vote" if gate is None else gate.why
    before, after = fmean([each.rounds(k) for each in base]), changed.rounds(k)
    calls = fmean([each.calls for each in base])
    if aim == "rounds" and cannot_drop(base, k):
        if original:
            return Verdict(False, f"reverted: {said}; the base converged in {k} rounds, and nothing can be sooner")
        if gate is None or gate.on <= gate.off:
            return Verdict(False, f"reverted: {said}; rounds cannot drop, and the vote was not won")
        if changed.calls > DEARER * calls:
            return Verdict(False, f"reverted: {said}; it took {changed.calls} calls, and {calls:g} before")
        return Verdict(True, f"kept: {said}; rounds cannot drop, and it took {changed.calls} calls, {calls:g} before")
    better, told = _better(base, changed, gate, before, after, calls, aim)
    return Verdict(better, f"{'kept' if better else 'reverted'}: {said}; {told}")


def _better(
    base: tuple[Came, ...], changed: Came, gate: Gate | None, before: float, after: float, calls: float, aim: Aim
) -> tuple[bool, str]:
    match aim:
        case "rounds":
            return after < before, f"{_rounds(after)}, and {_rounds(before)} before"
        case "calls":
            return changed.calls < calls, f"{changed.calls} calls, and {calls:g} before"
        case "stability":
            now, then = changed.stability(), fmean([each.stability() for each in base])
            return now > then, f"the document won {now:.0%} of its passes, and {then:.0%} before"
        case "quality_per_call":
            share = 0.5 if gate is None or not gate.valid else gate.on / gate.valid
            now, then = share / max(1, changed.calls), (1 - share) / max(1.0, calls)
            return now > then, f"{100 * now:.3g} votes for 100 calls, and {100 * then:.3g} before"


def _rounds(rounds: float) -> str:
    return "never converged" if math.isinf(rounds) else f"converged after {rounds:g}"
