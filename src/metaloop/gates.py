"""The gate that a changed search has to pass: blind pairwise votes between what it came to with the change and without.

`majority` is the gate of the change request: no majority may be lost. With no true effect it passes half of all changes
for any odd number of votes, and more for an even one. `exact` asks for proof: the one-sided binomial test of the votes
for the change against chance. Pure.
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, TypeAlias

from metaloop.ballots import quorum
from metaloop.panelstats import binomial_tail
from metaloop.values import Value

Vote: TypeAlias = Literal["on", "off"]
"""For the text with the change, or for the one without."""

Kind: TypeAlias = Literal["majority", "exact"]


class Gate(Value, frozen=True):
    """What votes came to. `p`: the chance of as many for the change by lot; None where nothing was voted on."""

    passed: bool
    on: int
    off: int
    valid: int
    asked: int
    p: float | None
    why: str


def gate(votes: Sequence[Vote | None], kind: Kind = "majority", alpha: float = 0.05) -> Gate:
    """Whether a change passes. None is a vote that is invalid, or that turned with the order: it is left out. Fewer
    valid votes than two thirds of those asked, or none, pass nothing.
    """
    on, off = votes.count("on"), votes.count("off")
    valid, p = on + off, binomial_tail(on, on + off, Fraction(1, 2)) if on + off else None
    said = f"{on} votes for it, {off} against, {len(votes) - valid} invalid"
    if not valid or valid < quorum(len(votes)):
        return Gate(False, on, off, valid, len(votes), p, f"{said}: too few to decide")
    if kind == "majority":
        return Gate(on >= off, on, off, valid, len(votes), p, f"{said}: {'not lost' if on >= off else 'lost'}")
    assert p is not None
    proven = p < alpha
    told = f"p = {p:.2g}, {'below' if proven else 'and not below'} {alpha:g}"
    return Gate(proven, on, off, valid, len(votes), p, f"{said}: {told}{'' if proven else ', inconclusive'}")


def passes_by_lot(votes: int, kind: Kind = "majority", alpha: float = 0.05, skill: float = 0.5) -> float:
    """P(the gate passes) where each vote is valid and for the change with chance `skill`; 0.5: there is no effect."""
    share = Fraction(skill).limit_denominator(10_000)
    one: tuple[Vote, Vote] = ("on", "off")
    cast = [one[:1] * on + one[1:] * (votes - on) for on in range(votes + 1)]
    least = next((on for on, each in enumerate(cast) if gate(each, kind, alpha).passed), votes + 1)
    return binomial_tail(least, votes, share) if least <= votes else 0.0
