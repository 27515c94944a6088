"""A blind panel as a flow: judges rank versions of a document, and the points of their ballots decide.

Each judge is a fresh conversation, sees the versions under labels and in an order drawn for it, and knows nothing of
who wrote them. All are asked at once. A ballot that cannot be counted is asked for again, with the reason; then it is
lost. A panel with too few ballots is void: nobody won it, the incumbent least of all.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import cast

from msgspec.structs import replace

from metaloop.ballots import borda, decided, joined, named, orders, parse, quorum, winner
from metaloop.events import Reply
from metaloop.flow import Flow, Message, Prompt
from metaloop.study import View
from metaloop.terms import SPARE, Tournament
from metaloop.values import Ballot, Panel
from metaloop.wording import cut, fill, task, truth, version

A = "A"
"""The incumbent's name in a panel."""

RIVALS = "B", "AB"
"""The names of a pass's trials, in slot order."""

LABELS = "123456789"

SHOWN = 4_000
"""Characters at most of a reply that is shown again."""

_TAG = re.compile(r"<(/?version-)", re.IGNORECASE)
"""What would end a version, or begin another: in a version it is text."""

STEPS = """
Go through the versions one by one, in a few sentences each: what does it get right; what does it get wrong, or miss; do
its claims and numbers hold against what the task says is true (where it is silent, that two versions differ is no error
of either); is there as much detail as is needed, and no more? Then compare them.
"""
"""What judges that reason are told."""


def asked(view: View, terms: Tournament, texts: Mapping[str, str], dice: Random) -> Flow[Panel]:
    """A panel on these versions, by name."""
    ballots = _drawn(terms, tuple(texts), dice)
    away = replaced(terms, [each.panel for each in view.passes])
    prompts = tuple(_prompt(view, terms, ballot, texts, away) for ballot in ballots)
    replies = cast(tuple[Reply, ...], (yield prompts))
    ballots = [_read(ballot, reply) for ballot, reply in zip(ballots, replies, strict=True)]
    for _ in range(terms.retries):
        if not (again := [at for at, ballot in enumerate(ballots) if not ballot.ranking]):
            break
        asks = tuple(_again(view, prompts[at], ballots[at], replies[at]) for at in again)
        second = cast(tuple[Reply, ...], (yield asks))
        replies = tuple(second[again.index(at)] if at in again else reply for at, reply in enumerate(replies))
        for at, reply in zip(again, second, strict=True):
            ballots[at] = _read(ballots[at], reply)
    return _counted(terms, tuple(texts), ballots)


def final(terms: Tournament, names: Sequence[str]) -> Tournament:
    """The rules of the panel at the end: more judges, nobody to unseat, and nobody whose part it is to differ."""
    most = max(1, terms.final)
    return replace(terms, judges=most, margin=0, quorum=quorum(most), tie_order=tuple(names), dissent=False)


def replaced(terms: Tournament, panels: Sequence[Panel]) -> frozenset[int]:
    """Judges whose seat somebody else has taken by now: those whose ballots could not be counted twice running."""
    if not substitutes(terms):
        return frozenset()
    return frozenset(judge for judge in range(terms.judges) if troubles(judge, panels))


def troubles(judge: int, panels: Sequence[Panel]) -> int:
    """How often a judge's ballots could not be counted twice running, each pass counted once."""
    times = running = 0
    for panel in panels:
        running = running + 1 if judge in unheard(panel) else 0
        if running == 2:
            times, running = times + 1, 0
    return times


def substitutes(terms: Tournament) -> bool:
    """Whether there is somebody else to ask, where a judge is lost."""
    return terms.spare or len({terms.seat(judge) for judge in range(terms.judges)}) > 1


def unheard(panel: Panel) -> set[int]:
    """The judges of a panel of whom a ballot is invalid. One that turned with the order has said something."""
    return {ballot.judge for ballot in panel.ballots if not ballot.ranking}


# ---- asking ----------------------------------------------------------------------------------------------------------


def _drawn(terms: Tournament, names: tuple[str, ...], dice: Random) -> list[Ballot]:
    """Who sees what in which order, under which labels: drawn by lot for each."""
    drawn = orders(names, terms.judges, terms.order, dice)
    dissents = terms.judges - 1 if terms.dissent else None
    return [
        Ballot(judge, order, tuple(dice.sample(LABELS[: len(names)], len(names))), dissent=judge == dissents)
        for judge, of_judge in enumerate(drawn)
        for order in of_judge
    ]


def _prompt(view: View, terms: Tournament, ballot: Ballot, texts: Mapping[str, str], away: frozenset[int]) -> Prompt:
    said = fill(
        view.texts["judge"],
        steps=STEPS if terms.stepwise else "",
        criteria=terms.criteria,
        lens=_lens(terms, ballot.judge),
        dissent=view.texts["dissent"] if ballot.dissent else "",
        strict=fill(view.texts["strict"], **_form(ballot)) if terms.strict else "",
        truth=truth(view),
        **_form(ballot),
    )
    versions = (
        version(f"version-{label}", _TAG.sub(r"< \1", texts[name]))
        for name, label in zip(ballot.shown, ballot.labels, strict=True)
    )
    counts = (
        f"version-{label} {len(texts[name].split())}" for name, label in zip(ballot.shown, ballot.labels, strict=True)
    )
    told = f"# The versions\n\nWords, as they are between spaces: {', '.join(counts)}."
    user = "\n\n".join((task(view), told, *versions))
    return Prompt(_asked_for(terms, ballot.judge, away), (Message("system", said), Message("user", user)))


def _asked_for(terms: Tournament, judge: int, away: frozenset[int]) -> str:
    """Who is asked for a seat: its own judge; the spare one, or that of the next seat that is well, where that one is
    lost. A seat beyond those of a pass has whoever has the first.
    """
    own = terms.seat(judge)
    seats = {seat: terms.seat(seat) for seat in range(len(terms.seats) or terms.judges)}
    well = [seat for seat in seats if seat not in away]
    if judge not in away and (judge in seats or own in {seats[seat] for seat in well} or not away):
        return own
    if terms.spare:
        return SPARE
    after = sorted(well, key=lambda seat: (seat - judge) % len(seats))
    return next((seats[seat] for seat in after if seats[seat] != own), own)


def _lens(terms: Tournament, judge: int) -> str:
    if not terms.judge_lenses:
        return ""
    return f"Look above all at this: {terms.judge_lenses[judge % len(terms.judge_lenses)]}."


def _again(view: View, prompt: Prompt, ballot: Ballot, reply: Reply) -> Prompt:
    told = cut(reply.text, SHOWN) if reply.text else "(an empty reply)"
    said = fill(view.texts["ballot"], problem=ballot.problem, **_form(ballot))
    return Prompt(prompt.role, (*prompt.messages, Message("assistant", told), Message("user", said)))


def _form(ballot: Ballot) -> dict[str, str]:
    """How a ranking looks, which is never one that counts; and the labels, in an order that says nothing."""
    *others, last = sorted(ballot.labels)
    return {"form": ", ".join(["<label>"] * len(ballot.labels)), "labels": f"{', '.join(others)} and {last}"}


def _read(ballot: Ballot, reply: Reply) -> Ballot:
    """With the judge's ranking, or why it has none."""
    found = lost(reply) or parse(reply.text or "", ballot.labels)
    if isinstance(found, str):
        return replace(ballot, model=reply.model, problem=found[:200])
    names = dict(zip(ballot.labels, ballot.shown, strict=True))
    return replace(ballot, model=reply.model, problem="", ranking=named(found, names))


def lost(reply: Reply) -> str:
    """Why a reply has nothing that could be a ranking; empty where there is something to read."""
    if reply.text is not None and reply.finish != "refusal":
        return ""
    return reply.problem or f"the reply ended with {reply.finish!r}, and has no ranking"


# ---- counting --------------------------------------------------------------------------------------------------------


def _counted(terms: Tournament, names: tuple[str, ...], ballots: Sequence[Ballot]) -> Panel:
    """What the ballots come to."""
    tally = borda(counted(ballots, terms.order == "both"), names)
    points = f"{_points(tally.points)}, {tally.valid} of {tally.asked} ballots"
    if not decided(tally, terms.quorum):
        reasons = [ballot.problem for ballot in ballots if ballot.problem]
        why = f"void: {points}, and {terms.quorum} are needed" + (f"; the last: {reasons[-1]}" if reasons else "")
        return Panel("", why, tally.points, tally.valid, tally.asked, tuple(ballots))
    best = winner(tally, A, terms.tie_order, terms.margin) or ""
    return Panel(best, f"{best} wins: {points}", tally.points, tally.valid, tally.asked, tuple(ballots))


def counted(ballots: Iterable[Ballot], both: bool) -> list[tuple[str, ...] | None]:
    """The rankings that count, None for each that does not. Of judges that were asked in `both` orders, one each."""
    valid = [ballot.ranking or None for ballot in ballots]
    return [joined(*pair) for pair in zip(valid[::2], valid[1::2], strict=True)] if both else valid


def _points(points: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in points.items())
