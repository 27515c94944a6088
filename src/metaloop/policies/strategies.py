"""Ways to improve a document that are compared: each from the same first version, with as many calls, all at once.

What a strategy has when its calls are spent, or when it has nothing left to do, is what it came to. One that breaks off
keeps what it had until then, and says so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeAlias, TypeVar, cast

from msgspec.structs import replace

from metaloop.errors import ProposerError
from metaloop.events import Reply
from metaloop.flow import Flow, Prompt, together
from metaloop.panels import RIVALS, A, asked
from metaloop.policies.rewrite import NOTHING, Desk, Draft, document, drafted
from metaloop.roles import Propose
from metaloop.study import View
from metaloop.terms import Compared, Tournament
from metaloop.values import Edit, Panel, Params, Proposal, Usage, digest

T = TypeVar("T")

FIRST = "first"
"""The first version, among drafts."""

HEAT = 6
"""Drafts that a judge compares at once, at most: more would not be read."""


def compared() -> Propose:
    """A proposal for each strategy, in their order."""

    def propose(view: View) -> Flow[Sequence[Proposal]]:
        rules = view.terms.tournament
        assert rules is not None, "a comparison has rules"
        first = view.code(Params({}))[rules.document]
        tries = [_Try(view, rules, name, first, Meter(rules.calls)) for name in rules.compare]
        yield from together([each.made() for each in tries])
        return [each.proposal() for each in tries]

    return propose


@dataclass
class Meter:
    """The calls that a strategy may make, those that it made, and what they cost."""

    calls: int
    made: int = 0
    usage: Usage = field(default_factory=Usage)

    @property
    def left(self) -> int:
        return self.calls - self.made

    def over(self, flow: Flow[T]) -> Flow[T]:
        """`flow`, with everything that it asks counted."""
        answer = None
        while True:
            try:
                ask = next(flow) if answer is None else flow.send(answer)
            except StopIteration as stop:
                return cast(T, stop.value)
            answer = yield ask
            replies = cast(tuple[Reply, ...], (answer,) if isinstance(ask, Prompt) else answer)
            self.made += len(replies)
            for reply in replies:
                self.usage = self.usage.plus(reply.usage)


@dataclass
class _Try:
    """A strategy at work: what it has so far, and why it ended."""

    view: View
    rules: Tournament
    name: Compared
    text: str
    meter: Meter
    by: str = ""
    told: str = ""

    def made(self) -> Flow[None]:
        try:
            yield from STRATEGIES[self.name](self)
        except ProposerError as error:
            self.told = f"broken off: {error}"

    def desk(self, turn: int = 0, needs: int = 1, asks: int = 1) -> Desk:
        """`needs`: calls that have to be left for what comes; what is over may go into corrections of so many asks."""
        spare = (self.meter.left - needs) // asks
        return Desk(self.view, self.text, f"{self.name} {self.meter.made}", turn, max(0, spare))

    def panel(self, texts: Mapping[str, str], dice: Random, share: int) -> Flow[Panel]:
        """A panel with no more retries than this share of what is left can pay for."""
        retries = min(self.rules.retries, max(0, share // ballots(self.rules) - 1))
        return asked(self.view, replace(self.rules, retries=retries), texts, dice)

    def take(self, draft: Draft) -> None:
        self.text, self.by = draft.text, draft.by

    def proposal(self) -> Proposal:
        made, baseline = self.meter, self.view.baseline
        path, name = document(self.view), digest(self.text.encode())
        return Proposal(
            Edit({}, {path: name}),
            f"{self.name}: {self.by.partition(': ')[2] or 'nobody'}",
            f"{made.made} of {made.calls} calls; {self.told}",
            None if baseline is None else baseline.number,
            texts={name: self.text},
            calls=made.made,
            usage=made.usage,
        )


def single(each: _Try) -> Flow[None]:
    """The first version as it is: what all others have to be better than."""
    each.told = "the first version, as it was given"
    return
    yield  # pragma: no cover  (makes this a generator)


def _rewriting(prompt: str) -> Callable[[_Try], Flow[None]]:
    """One rewrite after the other, until the calls are spent, or nothing is changed any more."""

    def strategy(each: _Try) -> Flow[None]:
        rewrites = 0
        while each.meter.left > 0:
            desk = each.desk()
            draft = yield from each.meter.over(
                desk.version("author", desk.to_rewriter(prompt), "the rewrite", (each.text,))
            )
            if draft.refused is not None:
                each.told = f"{_times(rewrites, 'rewrite')}, then {draft.refused.reason}"
                return
            each.take(draft)
            rewrites += 1
        each.told = _times(rewrites, "rewrite")

    return strategy


def critique_revise(each: _Try) -> Flow[None]:
    """A critique and a revision, again and again; it never asks whether that was better."""
    revisions = 0
    while each.meter.left > 1:
        desk = each.desk(revisions, 2)
        critique = yield from each.meter.over(desk.criticised())
        if NOTHING.fullmatch(critique):
            each.told = f"{_times(revisions, 'revision')}, then the critic found nothing wrong"
            return
        draft = yield from each.meter.over(
            desk.version("author", desk.to_author(critique), "the revision", (each.text,))
        )
        if draft.refused is not None:
            each.told = f"{_times(revisions, 'revision')}, then {draft.refused.reason}"
            return
        each.take(draft)
        revisions += 1
    each.told = _times(revisions, "revision")


def best_of_n(each: _Try) -> Flow[None]:
    """Drafts that know nothing of each other, and a panel that picks one; of many, in heats."""
    desk, count = each.desk(), drafts(each.meter.calls, ballots(each.rules))
    if not count:
        each.told = "too few calls for a draft and a panel"
        return
    messages = desk.to_rewriter("afresh")
    replies = yield from each.meter.over(_asking((Prompt("author", messages),) * count))
    held = {FIRST: Draft("", "", each.text)}
    for number, reply in enumerate(replies, 1):
        desk.corrections = min(1, max(0, each.meter.left - ballots(each.rules) * _panels(count + 1)))
        reading = desk.read("author", messages, reply, "the draft", [draft.text for draft in held.values()])
        draft = yield from each.meter.over(reading)
        if draft.refused is None:
            held[str(number)] = draft
    names = list(held)
    while len(names) > 1:
        names = yield from _heats(each, held, names)
    each.told = f"{count} drafts, {len(held) - 1} of them to be read; picked by {each.rules.judges} judges"
    if names[0] != FIRST:
        each.take(held[names[0]])


def _heats(each: _Try, held: Mapping[str, Draft], names: Sequence[str]) -> Flow[list[str]]:
    """The best of every heat; of a panel that came to nothing, the first of its lot."""
    lot = each.view.rng(f"heats {len(names)}").sample(list(names), len(names))
    heats = [lot[at : at + HEAT] for at in range(0, len(lot), HEAT)]
    contested = [heat for heat in heats if len(heat) > 1]
    share = (each.meter.left - ballots(each.rules) * _panels(len(heats))) // max(1, len(contested))
    flows = [
        each.panel({name: held[name].text for name in heat}, each.view.rng(f"heat {len(names)} {number}"), share)
        for number, heat in enumerate(contested)
    ]
    panels = yield from each.meter.over(together(flows))
    won = [panel.winner or heat[0] for panel, heat in zip(panels, contested, strict=True)]
    return [*won, *(heat[0] for heat in heats if len(heat) == 1)]


def drafts(calls: int, ballots: int) -> int:
    """How many drafts take no more than so many calls, with the ballots of all panels that pick one of them, or the
    first version.
    """
    return max((count for count in range(1, calls + 1) if count + ballots * _panels(count + 1) <= calls), default=0)


def ballots(rules: Tournament) -> int:
    """What a panel asks for."""
    return rules.judges * (2 if rules.order == "both" else 1)


def _panels(texts: int) -> int:
    if texts < 2:
        return 0
    heats = -(-texts // HEAT)
    return heats - (texts % HEAT == 1) + _panels(heats)


def autoreason(each: _Try) -> Flow[None]:
    """Passes of a tournament, until it holds, or the calls are spent."""
    rules, winners = each.rules, list[str]()
    while each.meter.left >= 3 + ballots(rules):
        desk = each.desk(len(winners), 3 + ballots(rules), 2)
        drafts = yield from each.meter.over(drafted(desk))
        named = {name: draft for name, draft in zip(RIVALS, drafts, strict=True) if draft.refused is None}
        won = A
        if named:
            texts = {A: each.text} | {name: draft.text for name, draft in named.items()}
            panel = yield from each.meter.over(each.panel(texts, desk.dice("panel"), each.meter.left))
            won = panel.winner
        elif any(draft.refused is not None and draft.refused.code != "same_text" for draft in drafts):
            won = ""
        winners.append(won or "void")
        if won in named:
            each.take(named[won])
        decided = [name for name in winners if name != "void"]
        if len(decided) >= rules.k and set(decided[-rules.k :]) == {A}:
            each.told = f"passes: {', '.join(winners)}; it held {rules.k} times running"
            return
    each.told = f"passes: {', '.join(winners) or 'none, for want of calls'}"


Way: TypeAlias = Callable[[_Try], Flow[None]]

STRATEGIES: Mapping[Compared, Way] = {
    "single": single,
    "conservative": _rewriting("conservative"),
    "improve": _rewriting("improve"),
    "harsh": _rewriting("harsh"),
    "critique_revise": critique_revise,
    "best_of_n": best_of_n,
    "autoreason": autoreason,
}


def _asking(asks: tuple[Prompt, ...]) -> Flow[tuple[Reply, ...]]:
    return cast(tuple[Reply, ...], (yield asks))


def _times(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
