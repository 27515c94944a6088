"""What is wrong with a search, read from its own trace: signatures that fire, with the evidence for each. Pure.

A diagnosis asks no model and costs nothing. It names what it saw, so that a person can say whether it is so.

Signatures of tournaments are those of the change request of bilevel autoreason (five), and of what its published runs
showed besides (four). The thresholds are constants: they are starting points, and not measured on anything but those.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from metaloop.ballots import streak
from metaloop.panelstats import Seen, position_bias
from metaloop.values import Value

Signature: TypeAlias = Literal[
    "judge_failure", "truncation", "order_effect", "position_bias", "synthesis_drift", "oscillation", "judge_herding",
    "candidate_collapse", "premature_convergence",
]  # fmt: skip

SEVERITY: tuple[Signature, ...] = (
    "judge_failure", "truncation", "order_effect", "position_bias", "synthesis_drift", "oscillation", "judge_herding",
    "candidate_collapse", "premature_convergence",
)  # fmt: skip
"""The order in which they are looked at: what corrupts the data comes first."""

ORIGINAL: tuple[Signature, ...] = (
    "position_bias", "oscillation", "judge_herding", "candidate_collapse", "premature_convergence",
)  # fmt: skip
"""Those of the request, in its order."""

LOST, DRIFTS, SWITCHES, SPREAD, UNANIMOUS, ODD = 0.2, 0.15, 4, 1 / 3, 1.0, 0.01
"""Share of passes, or of one judge's ballots, that are lost; share of passes that the document wins where it drifts;
switches between A and B; spread of points where versions are alike; share of passes in which judges rank alike; chance
below which the place shown is said to decide.
"""


# ---- what is looked at -----------------------------------------------------------------------------------------------


class Heard(Value, frozen=True):
    """A ballot. `ranking`: None where it is invalid. `shown`: the names in that order; empty where nobody knows."""

    judge: int
    ranking: tuple[str, ...] | None
    shown: tuple[str, ...] = ()


class Pass(Value, frozen=True):
    """A pass as its trace has it. `winner`: None for one that nobody won. `asked`: ballots there should have been.
    `alike`: whether A and B were the same text. `cut`: the roles whose text was cut off. `unopposed`: whether there was
    nothing to vote on.
    """

    winner: str | None
    points: dict[str, int] = {}
    valid: int = 0
    asked: int = 0
    ballots: tuple[Heard, ...] = ()
    alike: bool = False
    cut: tuple[str, ...] = ()
    unopposed: bool = False


class Trace(Value, frozen=True):
    """A tournament that is over. `ended`: why; `max_passes` for the cap, `converged`, or anything else. `cap`: passes
    that were allowed; None where nobody knows. `quorum`: valid ballots that a pass needed.
    """

    passes: tuple[Pass, ...]
    k: int = 2
    cap: int | None = None
    ended: str = ""
    quorum: int = 2

    @property
    def decided(self) -> tuple[Pass, ...]:
        return tuple(each for each in self.passes if each.winner)

    @property
    def winners(self) -> tuple[str, ...]:
        return tuple(each.winner for each in self.passes if each.winner)

    @property
    def converged(self) -> int | None:
        """The pass at which the document had held `k` times running; None where it never had."""
        at, why = streak([each.winner for each in self.passes], self.k, len(self.passes) + 1)
        return at if why == "converged" else None

    @property
    def capped(self) -> bool:
        """Whether it ended because no more passes were allowed."""
        if self.converged is not None:
            return False
        return self.ended == "max_passes" or (not self.ended and self.cap is not None and len(self.passes) >= self.cap)


class Diagnosis(Value, frozen=True):
    """What is wrong, the gravest first; `signature` is empty where nothing is, or nothing can be said, and `why` says
    which. `evidence`: for every signature that fires, what was seen.
    """

    signature: Signature | Literal[""]
    why: str
    evidence: dict[str, str]


def diagnose(trace: Trace, order: Sequence[Signature] = SEVERITY) -> Diagnosis:
    """The gravest signature that fires, of those in `order`; all that fire are in the evidence."""
    if not trace.passes:
        return Diagnosis("", "nothing can be said: there is no pass", {})
    seen: dict[str, str] = {name: said for name in order if (said := SIGNATURES[name](trace))}
    fatal = {name: said for name, said in seen.items() if name in ON_ALL}
    if interrupted(trace) and not fatal:
        return Diagnosis("", f"nothing can be said: it did not come to its own end ({trace.ended or 'unknown'})", {})
    first = next((name for name in order if name in (fatal if interrupted(trace) else seen)), None)
    if first is None:
        return Diagnosis("", "nothing fires", {})
    return Diagnosis(first, seen[first], seen)


def interrupted(trace: Trace) -> bool:
    """Whether it ended for another reason than its own: a person, a budget, an error, or nobody knows."""
    return not (trace.converged is not None or trace.capped or trace.ended in ("converged", "max_passes", "plateau"))


# ---- signatures of a tournament --------------------------------------------------------------------------------------


def _judge_failure(trace: Trace) -> str:
    """Void passes, few ballots, or a judge that loses many of its own."""
    contested = [each for each in trace.passes if not each.unopposed]
    if not contested:
        return ""
    void = sum(each.winner is None for each in contested)
    short = sum(each.valid < trace.quorum for each in contested)
    if void:
        return f"{void} of {len(contested)} passes were void"
    if short >= LOST * len(contested):
        return f"{short} of {len(contested)} passes had fewer than {trace.quorum} valid ballots"
    cast: dict[int, list[bool]] = {}
    for each in contested:
        for ballot in each.ballots:
            cast.setdefault(ballot.judge, []).append(ballot.ranking is None)
    lost = {judge: sum(gone) for judge, gone in cast.items() if gone and sum(gone) >= LOST * len(gone) and sum(gone)}
    if not lost:
        return ""
    judge = max(lost, key=lambda each: lost[each] / len(cast[each]))
    return f"judge {judge + 1} lost {lost[judge]} of its {len(cast[judge])} ballots"


def _truncation(trace: Trace) -> str:
    cut = [role for each in trace.passes for role in each.cut]
    return f"{len(cut)} texts were cut off by the token limit: {', '.join(sorted(set(cut)))}" if cut else ""


def _order_effect(trace: Trace) -> str:
    full = [b for each in trace.decided for b in each.ballots if b.ranking and len(b.shown) == len(b.ranking)]
    most = max((len(ballot.shown) for ballot in full), default=0)
    told = [Seen(ballot.shown, ballot.ranking or ()) for ballot in full if len(ballot.shown) == most]
    if not told:
        return ""
    places = position_bias(told)
    if places.p >= ODD:
        return ""
    return f"by place shown, versions came first {', '.join(map(str, places.wins))} times (p = {places.p:.2g})"


def _position_bias(trace: Trace) -> str:
    """Not converged, and A and B take turns; AB between them breaks it."""
    if trace.converged is not None:
        return ""
    pairs = zip(trace.winners, trace.winners[1:], strict=False)
    switches = sum({one, other} == {"A", "B"} for one, other in pairs)
    return f"A and B took turns {switches} times, and it never converged" if switches >= SWITCHES else ""


def _synthesis_drift(trace: Trace) -> str:
    won = trace.winners.count("A")
    if trace.converged is not None or not trace.winners or won >= DRIFTS * len(trace.winners):
        return ""
    return f"the document won {won} of {len(trace.winners)} passes, and AB {trace.winners.count('AB')}"


def _oscillation(trace: Trace) -> str:
    return f"it did not converge in {len(trace.passes)} passes, all that were allowed" if trace.capped else ""


def _judge_herding(trace: Trace) -> str:
    """Judges that rank alike in every pass; a panel of one or two cannot herd."""
    passes = [[b.ranking for b in each.ballots if b.ranking] for each in trace.decided if not each.unopposed]
    if len(passes) < 2 or any(len(rankings) < 3 for rankings in passes):
        return ""
    alike = sum(len(set(rankings)) == 1 for rankings in passes)
    return f"in {alike} of {len(passes)} passes all judges ranked alike" if alike >= UNANIMOUS * len(passes) else ""


def _candidate_collapse(trace: Trace) -> str:
    """Versions that nobody can tell apart: by their texts, or by their points in every pass."""
    if same := sum(each.alike for each in trace.decided):
        return f"in {same} of {len(trace.decided)} passes A and B were the same text"
    contested = [each for each in trace.decided if each.points and each.valid]
    spreads = [(max(e.points.values()) - min(e.points.values())) / (2 * e.valid) for e in contested]
    if not spreads or max(spreads) > SPREAD:
        return ""
    return f"points lie within {max(spreads):.2f} of their range in every pass"


def _premature_convergence(trace: Trace) -> str:
    at = trace.converged
    if at is None or at > trace.k + 1 or any(winner != "A" for winner in trace.winners):
        return ""
    return f"it converged at pass {at}, and no other version ever won"


SIGNATURES: Mapping[Signature, Callable[[Trace], str]] = {
    "judge_failure": _judge_failure,
    "truncation": _truncation,
    "order_effect": _order_effect,
    "position_bias": _position_bias,
    "synthesis_drift": _synthesis_drift,
    "oscillation": _oscillation,
    "judge_herding": _judge_herding,
    "candidate_collapse": _candidate_collapse,
    "premature_convergence": _premature_convergence,
}
"""What was seen, in words; empty where it does not fire."""

ON_ALL = ("judge_failure", "truncation")
"""Those that are read from every pass, decided or not, and from a trace that ended before its time."""
