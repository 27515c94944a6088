"""A tournament counted again from what its judges said: what it comes to, and what was recorded otherwise.

Nothing that was recorded is believed where a reply is there to be read: it is compared. Where there is none, the
recorded ranking is taken if it is a full permutation, and that is said. Pure: where the replies stand, others know.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from metaloop.ballots import Ranking, Tally, abstains, borda, decided, joined, named, parse, quorum, streak, winner
from metaloop.values import Value

NAMES = "A", "B", "AB"
"""The versions of a pass; the first is the incumbent."""

Source: TypeAlias = Literal["raw", "recorded", "none"]
Status: TypeAlias = Literal["decided", "void", "unopposed", "unknown"]


class Rules(Value, frozen=True):
    """How a tournament decides; by default as the published runs did. `quorum`: None for two thirds of the judges."""

    k: int = 2
    margin: int = 0
    tie_order: tuple[str, ...] = NAMES
    quorum: int | None = None
    both: bool = False


# ---- what was found --------------------------------------------------------------------------------------------------


class Cast(Value, frozen=True):
    """A ballot as it was found. `shown`: the names in the order shown, `labels`: what each was called; both empty where
    that was not recorded. `raw`: the reply; None where there is none, and `lost` says why, if that is known.
    `recorded`: the ranking that was counted, best first; None for a ballot that was refused, UNSET where nobody says.
    """

    judge: int
    shown: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    raw: str | None = None
    lost: str = ""
    recorded: tuple[str, ...] | UnsetType | None = UNSET


class Record(Value, frozen=True, omit_defaults=True):
    """What was recorded of a pass, as far as it was. `winner`: None for one that nobody won."""

    winner: str | UnsetType | None = UNSET
    points: dict[str, int] | UnsetType = UNSET
    valid: int | UnsetType = UNSET


class Found(Value, frozen=True):
    """A pass as it was found. `asked`: how many ballots there should be at least. `unopposed`: why it had no rival, if
    it had none; then there was nothing to vote on. `words`: of each version, as far as they are there. `otherwise`:
    where its records contradict each other.
    """

    number: int
    names: tuple[str, ...] = NAMES
    ballots: tuple[Cast, ...] = ()
    asked: int = 0
    record: Record = Record()
    unopposed: str = ""
    words: dict[str, int] = {}
    otherwise: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


# ---- what it comes to ------------------------------------------------------------------------------------------------


class Read(Value, frozen=True):
    """A ballot, read again. `ranking`: None where it is invalid, and `problem` says why. `source`: what was read.
    `unnamed`: it is valid, and nobody recorded whose the labels are.
    """

    judge: int
    shown: tuple[str, ...]
    ranking: tuple[str, ...] | None
    problem: str
    source: Source
    unnamed: bool = False
    differs: str = ""


class Pass(Value, frozen=True):
    """A pass, counted again. Nobody won a void one, the incumbent least of all; `unknown`: it cannot be counted."""

    number: int
    status: Status
    winner: str | None
    why: str
    points: dict[str, int]
    valid: int
    asked: int
    ballots: tuple[Read, ...]
    names: tuple[str, ...]
    words: dict[str, int]
    record: Record
    differs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Recount(Value, frozen=True):
    """A tournament, counted again. `converged` and `recorded`: the pass at which it had held for `k`, by what was
    counted now and by what was recorded; None where it never had. `rests`: the passes that only the record takes for a
    win.
    """

    rules: Rules
    passes: tuple[Pass, ...]
    converged: int | None
    recorded: int | None
    rests: tuple[int, ...]
    said: tuple[str, ...]
    differs: int


def counted(found: Found, rules: Rules) -> Pass:
    """A pass, from its ballots alone."""
    ballots = tuple(_read(ballot, found.names) for ballot in found.ballots)
    valid: list[Ranking | None] = [ballot.ranking for ballot in ballots]
    if both := rules.both and len(ballots) % 2 == 0:
        valid = [joined(first.ranking, second.ranking) for first, second in _twos(ballots)]
    missing = max(0, found.asked - len(valid))
    tally = borda([*valid, *[None] * missing], found.names)
    status, won, why = _decided(found, rules, tally, ballots)
    notes = (*found.notes, *_sources(ballots), *(_abstaining(ballots) if both else ()))
    again = Pass(
        found.number, status, won, why, tally.points if tally.valid else {}, tally.valid, tally.asked, ballots,
        found.names, found.words, found.record, notes=notes,
    )  # fmt: skip
    told = [f"judge {ballot.judge}: {ballot.differs}" for ballot in ballots if ballot.differs]
    if rules.both and not both:
        told.append(f"expected two ballots of each judge, found {len(ballots)} ballots")
    return replace(again, differs=(*told, *_differences(again), *found.otherwise))


def _read(ballot: Cast, names: Sequence[str]) -> Read:
    """What a ballot says, and whether that is what was recorded."""
    if ballot.raw is not None:
        return _compared(ballot, *_said(ballot, ballot.raw, names))
    ranking, problem, source = _recorded(ballot, names)
    return Read(ballot.judge, ballot.shown, ranking, problem, source, differs=_miscounted(ballot, ranking, problem))


def _said(ballot: Cast, raw: str, names: Sequence[str]) -> tuple[Ranking | None, str, bool]:
    """The ranking in a reply, or why there is none; and whether it is one whose labels nobody recorded."""
    labels = ballot.labels or tuple(str(number + 1) for number in range(len(names)))
    found = parse(raw, labels)
    if isinstance(found, str):
        return None, found, False
    if not ballot.labels:
        taken = _full(ballot.recorded, names)
        return (taken, "", False) if taken else (None, "", True)
    ranking = named(found, dict(zip(ballot.labels, ballot.shown, strict=True)))
    return (ranking, "", False) if _full(ranking, names) else (None, _not_full(ranking, names), False)


def _compared(ballot: Cast, ranking: Ranking | None, problem: str, unnamed: bool) -> Read:
    differs = "" if unnamed else _miscounted(ballot, ranking, problem)
    if unnamed and ballot.recorded is None:
        differs = "was refused, and is valid"
    return Read(ballot.judge, ballot.shown, ranking, problem, "raw", unnamed, differs)


def _recorded(ballot: Cast, names: Sequence[str]) -> tuple[Ranking | None, str, Source]:
    """The recorded ranking, where there is no reply."""
    if ballot.recorded is UNSET or ballot.recorded is None:
        return None, ballot.lost or "no reply, and no ranking was recorded", "none"
    ranking = _full(ballot.recorded, names)
    return ranking, "" if ranking else _not_full(ballot.recorded, names), "recorded"


def _full(ranking: Ranking | UnsetType | None, names: Sequence[str]) -> Ranking | None:
    return ranking if ranking and sorted(ranking) == sorted(names) else None


def _not_full(ranking: Ranking, names: Sequence[str]) -> str:
    return f"expected a ranking of {', '.join(names)}, found {_ranked(ranking) or 'nothing'}"


def _miscounted(ballot: Cast, ranking: Ranking | None, problem: str) -> str:
    """How the record has a ballot otherwise; empty where it has it so, or says nothing."""
    if ballot.recorded is UNSET or ballot.recorded == ranking:
        return ""
    now = f"reads {_ranked(ranking)}" if ranking else f"is invalid: {problem}"
    before = f"counted as {_ranked(ballot.recorded)}" if ballot.recorded else "refused"
    return f"was {before}, and {now}"


def _ranked(ranking: Sequence[str]) -> str:
    return " > ".join(ranking[:9])[:200]


def _sources(ballots: Sequence[Read]) -> Iterator[str]:
    """What of it was not read again."""
    if taken := [str(ballot.judge) for ballot in ballots if ballot.source == "recorded"]:
        who = "" if len(taken) == len(ballots) else f" (judge {', '.join(taken)})"
        yield f"no raw reply: recorded ranking taken{who}"
    if taken := [str(ballot.judge) for ballot in ballots if ballot.source == "raw" and not ballot.shown]:
        who = "" if len(taken) == len(ballots) else f" (judge {', '.join(taken)})"
        yield f"order not recorded: of the raw reply only whether it is valid{who}"


def _twos(ballots: Sequence[Read]) -> Iterator[tuple[Read, Read]]:
    """Each judge's two, where it was asked in both orders."""
    return zip(ballots[::2], ballots[1::2], strict=False)


def _abstaining(ballots: Sequence[Read]) -> Iterator[str]:
    for first, second in _twos(ballots):
        if first.ranking and second.ranking and abstains(first.ranking, second.ranking):
            yield f"judge {first.judge} abstains: another version comes first in the other order"


def _decided(found: Found, rules: Rules, tally: Tally, ballots: Sequence[Read]) -> tuple[Status, str | None, str]:
    if found.unopposed:
        return "unopposed", found.names[0], found.unopposed
    if not ballots:
        return "void", None, "without ballots"
    told = f"{tally.valid} of {tally.asked} ballots"
    if unnamed := sum(ballot.unnamed for ballot in ballots):
        return "unknown", None, f"{told}, and {unnamed} whose labels nobody recorded"
    if not decided(tally, rules.quorum):
        needed = quorum(tally.asked) if rules.quorum is None else rules.quorum
        return "void", None, f"{told}, and {needed} are needed"
    return "decided", winner(tally, NAMES[0], rules.tie_order, rules.margin), told


# ---- what differs ----------------------------------------------------------------------------------------------------


def _differences(one: Pass) -> Iterator[str]:
    """What the record of a pass has otherwise."""
    record = one.record
    if record.valid is not UNSET and record.valid != one.valid + sum(ballot.unnamed for ballot in one.ballots):
        yield f"valid ballots: {record.valid} were recorded, {one.valid} are there"
    if one.status == "unknown":
        return
    points = {} if record.points is UNSET else {name: count for name, count in record.points.items() if count}
    if record.points is not UNSET and points != one.points:
        yield f"scores: {_points(points)} were recorded, and they are {_points(one.points)}"
    if record.winner is not UNSET and record.winner != one.winner:
        before = "no winner was recorded" if record.winner is None else f"recorded as a win for {record.winner}"
        now = f"is void: {one.why}" if one.winner is None else f"is won by {one.winner}"
        yield f"{before}, and it {now}"


def _points(points: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in points.items()) or "none"


def recount(passes: Sequence[Pass], rules: Rules) -> Recount:
    """What all passes come to, and what the record has otherwise."""
    now = [one.winner for one in passes]
    before = [None if one.record.winner is UNSET else one.record.winner for one in passes]
    converged, recorded = (_converges(winners, rules.k) for winners in (now, before))
    rests = tuple(
        passes[at].number
        for at in _streak(before, recorded, rules.k)
        if now[at] != NAMES[0] and passes[at].status != "unknown"
    )
    said = (
        *_convergence(passes, rules, converged, recorded, rests),
        *_by_lot(passes, rules),
        *told(passes, both=rules.both),
    )
    differs = sum(len(one.differs) for one in passes)
    return Recount(rules, tuple(passes), _number(passes, converged), _number(passes, recorded), rests, said, differs)


def _converges(winners: Sequence[str | None], k: int) -> int | None:
    """The pass at which the incumbent has held, counted from 1."""
    stop, reason = streak(winners, k, len(winners) + 1)
    return stop if reason == "converged" else None


def _number(passes: Sequence[Pass], stop: int | None) -> int | None:
    return None if stop is None else passes[stop - 1].number


def _streak(winners: Sequence[str | None], stop: int | None, k: int) -> list[int]:
    """The indices of the passes that a convergence at `stop` rests on."""
    return [] if stop is None else [at for at in range(stop) if winners[at] == NAMES[0]][-k:]


def _convergence(
    passes: Sequence[Pass], rules: Rules, converged: int | None, recorded: int | None, rests: Sequence[int]
) -> Iterator[str]:
    if unknown := [one.number for one in passes if one.status == "unknown"]:
        yield f"Whether it converges cannot be said: {listed(unknown)} cannot be counted again."
    elif converged is None:
        yield f"It does not converge: the document never won {rules.k} passes running."
    else:
        went_on = f", and went on for {len(passes) - converged} more" if converged < len(passes) else ""
        at = passes[converged - 1].number
        yield f"It converges at pass {at}: the document won {rules.k} passes running{went_on}."
        held = _streak([one.winner for one in passes], converged, rules.k)
        if alone := [passes[index].number for index in held if passes[index].status == "unopposed"]:
            yield f"That rests on {listed(alone)}, where it had no rival."
    if recorded is not None and recorded != converged:
        on = f"; that rests on {listed(rests)}, which it did not win" if rests else ""
        yield f"By what was recorded it converges at pass {passes[recorded - 1].number}{on}."


def _by_lot(passes: Sequence[Pass], rules: Rules) -> Iterator[str]:
    """What chance would have done, where all panels had three versions and as many judges, and not too many."""
    judges = {one.asked for one in passes if one.asked}
    won = [one.winner for one in passes if one.status == "decided"]
    three = all(len(one.names) == len(NAMES) for one in passes if one.asked)
    if won and three and len(judges) == 1 and max(judges) <= FEW_JUDGES:
        yield f"{chance(max(judges), rules)}; here it won {won.count(NAMES[0])} of {len(won)} by ballots."


def chance(judges: int, rules: Rules) -> str:
    """What random ballots would come to, as the beginning of a sentence."""
    from metaloop.panelstats import chance_of_incumbent, passes_to_streak

    alone = chance_of_incumbent(judges, NAMES, NAMES[0], rules.tie_order, rules.margin)
    return (
        f"With ballots drawn by lot the document would win {float(alone):.0%} of the passes, and {rules.k} running "
        f"after {passes_to_streak(alone, rules.k):.3g} on average"
    )


FEW_JUDGES = 15
"""A panel of more is not compared with chance: it takes too long."""


def listed(numbers: Sequence[int], most: int = 12) -> str:
    """`pass 3`, `passes 3, 4`."""
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return f"pass{'es' * (len(numbers) != 1)} {', '.join(map(str, numbers[:most]))}{more}"


# ---- the panel itself ------------------------------------------------------------------------------------------------

SUSPECT = 0.01
"""The chance below which a panel is said to go by something else than the text."""

FEW = 6
"""Ballots below which nothing is said of a panel's judges."""


def told(passes: Sequence[Pass], *, both: bool) -> Iterator[str]:
    """What all valid ballots on three versions say of their judges, a sentence each; nothing while there are few."""
    from metaloop.panelstats import Seen, agreement, flips, length_bias, position_bias

    full = [one for one in passes if len(one.names) == len(NAMES)]
    panels = [[ballot.ranking for ballot in one.ballots if ballot.ranking] for one in full]
    if sum(map(len, panels)) < FEW:
        return
    seen = [Seen(b.shown, b.ranking) for one in full for b in one.ballots if b.ranking and b.shown]
    if seen:
        places = position_bias(seen)
        wins = ", ".join(map(str, places.wins))
        yield f"By place shown, versions came first {wins} times (p = {places.p:.2g}){_suspect(places.p)}."
    measured = [
        (ranking, one.words)
        for one, panel in zip(full, panels, strict=True)
        for ranking in panel
        if all(name in one.words for name in ranking)
    ]
    if measured:
        longest = length_bias(measured)
        odd = min(longest.more, longest.fewer)
        yield (
            f"The longest version came first {longest.wins} times of {longest.ballots} (p = {min(1.0, 2 * odd):.2g})"
            f"{_suspect(2 * odd)}; Kendall's tau of length and rank is {longest.correlation:+.2f}."
        )
    if judged := [panel for panel in panels if len(panel) > 1]:
        agreed = agreement(judged)
        yield f"Judges agree by Kendall's W = {agreed.w:.2f} (0 none, 1 one mind); ballots by lot: p = {agreed.p:.2g}."
    if both:
        turned = flips((first.ranking, second.ranking) for one in full for first, second in _twos(one.ballots))
        yield f"Of {turned.pairs} judges that were asked in both orders, {turned.flipped} changed their first place."


def _suspect(p: float) -> str:
    return ": **the panel may go by that**" if p < SUSPECT else ""


# ---- a final panel ---------------------------------------------------------------------------------------------------


class Finals(Value, frozen=True):
    """A panel over several methods as it was found: what was recorded, and the replies by the number of the judge.
    Which label was whose, nobody recorded.
    """

    points: dict[str, int]
    firsts: dict[str, int] = {}
    valid: int | None = None
    most: int | None = None
    replies: dict[int, str] = {}
    notes: tuple[str, ...] = ()


class Final(Value, frozen=True):
    """The same, as far as it can be counted again: which replies are full rankings, and whether the sums hold."""

    points: dict[str, int]
    valid: int | None
    asked: int
    invalid: dict[int, str]
    differs: tuple[str, ...]
    notes: tuple[str, ...]


LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def final(found: Finals) -> Final:
    """A panel whose labels nobody recorded."""
    m = len(found.points)
    read = {judge: parse(reply, LETTERS[:m]) for judge, reply in sorted(found.replies.items())}
    invalid = {judge: said for judge, said in read.items() if isinstance(said, str)}
    valid = len(read) - len(invalid) if read else found.valid
    notes = ["the labels' order is not recorded: only which replies are valid can be counted again"]
    if not read:
        notes = ["no raw reply: only the sums can be checked"]
    return Final(found.points, valid, len(read), invalid, tuple(_sums(found, valid)), (*found.notes, *notes))


def _sums(found: Finals, valid: int | None) -> Iterator[str]:
    m, total = len(found.points), sum(found.points.values())
    if found.valid is not None and valid != found.valid:
        yield f"valid ballots: {found.valid} were recorded, {valid} are there"
    if valid is not None and total != valid * m * (m + 1) // 2:
        yield f"scores: {total} points in all were recorded, and {valid} ballots give {valid * m * (m + 1) // 2}"
    if valid is not None and found.most is not None and found.most != valid * m:
        yield f"most points: {found.most} were recorded, and {valid} ballots give at most {valid * m}"
    if valid is not None and found.firsts and sum(found.firsts.values()) != valid:
        yield f"first places: {sum(found.firsts.values())} were recorded, of {valid} ballots"
