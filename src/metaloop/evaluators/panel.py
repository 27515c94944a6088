"""A blind panel: judges rank the incumbent document and its rivals, and the points of their ballots decide.

Each judge is a fresh conversation, sees the versions under labels and in an order drawn for it, and knows nothing of
who wrote them. All are asked at once. A ballot that cannot be counted is asked for once more, with the reason; then it
is lost. A pass with too few ballots is void: nobody won it, the incumbent least of all.
"""

from collections.abc import Mapping, Sequence
from typing import cast

from msgspec.structs import replace

from metaloop.ballots import borda, joined, orders, parse, winner
from metaloop.events import Reply
from metaloop.flow import Flow, Message, Prompt, conclude
from metaloop.roles import Measure, Measurement, Verdict
from metaloop.study import Round, Study, View
from metaloop.terms import Tournament
from metaloop.values import Ballot, Decision, Panel, Refused, Score
from metaloop.wording import cut, fill, task, truth, version

A = "A"
"""The incumbent's name in a panel."""

RIVALS = "B", "AB"
"""The names of a pass's trials, in slot order."""

LABELS = "123456789"

SHOWN = 4_000
"""Characters at most of a reply that is shown again."""

STEPS = """
Go through the versions one by one, in a few sentences each: what does it get right; what does it get wrong, or miss; do
its claims and numbers hold against what the task says is true; is there as much detail as is needed, and no more? Then
compare them.
"""
"""What judges that reason are told."""


def judging(terms: Tournament) -> Measure:
    """The panel as a measure: a trial's score is its Borda points."""

    def measure(view: View, measurements: Sequence[Measurement]) -> Flow[tuple[Score | None, ...] | Verdict]:
        if view.role == "baseline":
            return conclude((Score(0.0),))
        return _pass(view, terms, measurements)

    return measure


def _pass(
    view: View, terms: Tournament, measurements: Sequence[Measurement]
) -> Flow[tuple[Score | None, ...] | Verdict]:
    named = dict(zip(RIVALS, measurements, strict=True))
    rivals = [name for name, each in named.items() if not isinstance(each.first, Refused)]
    if not rivals:
        return Verdict((None,) * len(measurements), _uncontested(measurements))
    incumbent = view.incumbent
    assert incumbent is not None, "the first version holds the crown until another wins"
    changes = {A: incumbent.change} | {name: view.trial(named[name].trial).change for name in rivals}
    texts = {name: view.code(change)[terms.document] for name, change in changes.items()}
    panel = yield from asked(view, terms, texts)
    scores = tuple(Score(float(panel.points[name])) if name in panel.points else None for name in named)
    return Verdict(scores, panel)


def _uncontested(measurements: Sequence[Measurement]) -> Panel:
    """A pass without a rival: the incumbent holds if nothing else came of it, and not if nothing could be read."""
    reasons = [each.first for each in measurements if isinstance(each.first, Refused)]
    if all(reason.code == "same_text" for reason in reasons):
        return Panel(A, f"no rival: {reasons[0].reason}")
    return Panel("", f"void: no version could be judged: {reasons[0].reason}")


# ---- asking ----------------------------------------------------------------------------------------------------------


def asked(view: View, terms: Tournament, texts: Mapping[str, str]) -> Flow[Panel]:
    """A panel on these versions, by name."""
    ballots = _drawn(view, terms, tuple(texts))
    prompts = tuple(_prompt(view, terms, ballot, texts) for ballot in ballots)
    replies = cast(tuple[Reply, ...], (yield prompts))
    ballots = [_read(ballot, reply) for ballot, reply in zip(ballots, replies, strict=True)]
    if again := [at for at, ballot in enumerate(ballots) if not ballot.ranking]:
        asks = tuple(_again(view, prompts[at], ballots[at], replies[at]) for at in again)
        second = cast(tuple[Reply, ...], (yield asks))
        for at, reply in zip(again, second, strict=True):
            ballots[at] = _read(ballots[at], reply)
    return _counted(terms, tuple(texts), ballots)


def _drawn(view: View, terms: Tournament, names: tuple[str, ...]) -> list[Ballot]:
    """Who sees what in which order, under which labels: drawn by lot for each."""
    dice = view.rng("panel")
    drawn = orders(names, terms.judges, terms.order, dice)
    return [
        Ballot(judge, order, tuple(dice.sample(LABELS[: len(names)], len(names))))
        for judge, of_judge in enumerate(drawn)
        for order in of_judge
    ]


def _prompt(view: View, terms: Tournament, ballot: Ballot, texts: Mapping[str, str]) -> Prompt:
    steps = STEPS if terms.stepwise else ""
    said = fill(view.texts["judge"], steps=steps, criteria=terms.criteria, truth=truth(view), **_form(ballot))
    versions = (
        version(f"version-{label}", texts[name]) for name, label in zip(ballot.shown, ballot.labels, strict=True)
    )
    return Prompt(
        "judge", (Message("system", said), Message("user", "\n\n".join((task(view), "# The versions", *versions))))
    )


def _again(view: View, prompt: Prompt, ballot: Ballot, reply: Reply) -> Prompt:
    told = cut(reply.text, SHOWN) if reply.text else "(an empty reply)"
    said = fill(view.texts["ballot"], problem=ballot.problem, **_form(ballot))
    return Prompt(prompt.role, (*prompt.messages, Message("assistant", told), Message("user", said)))


def _form(ballot: Ballot) -> dict[str, str]:
    """How a ranking looks, which is never one that counts; and the labels, in an order that says nothing."""
    *others, last = sorted(ballot.labels)
    form = ["best", "next", "..."] if len(ballot.labels) > 2 else ["best", "other"]
    return {"form": ", ".join(form), "labels": f"{', '.join(others)} and {last}"}


def _read(ballot: Ballot, reply: Reply) -> Ballot:
    """With the judge's ranking, or why it has none."""
    if reply.text is None or reply.finish == "refusal":
        problem = reply.problem or f"the reply ended with {reply.finish!r}, and has no ranking"
        return replace(ballot, model=reply.model, problem=problem[:200])
    found = parse(reply.text, ballot.labels)
    if isinstance(found, str):
        return replace(ballot, model=reply.model, problem=found[:200])
    names = dict(zip(ballot.labels, ballot.shown, strict=True))
    return replace(ballot, model=reply.model, problem="", ranking=tuple(names[label] for label in found))


# ---- counting --------------------------------------------------------------------------------------------------------


def _counted(terms: Tournament, names: tuple[str, ...], ballots: Sequence[Ballot]) -> Panel:
    """What the ballots come to."""
    valid = [ballot.ranking or None for ballot in ballots]
    if terms.order == "both":
        valid = [joined(*pair) for pair in zip(valid[::2], valid[1::2], strict=True)]
    tally = borda(valid, names)
    points = f"{_points(tally.points)}, {tally.valid} of {tally.asked} ballots"
    if tally.valid < terms.quorum:
        reasons = [ballot.problem for ballot in ballots if ballot.problem]
        why = f"void: {points}, and {terms.quorum} are needed" + (f"; the last: {reasons[-1]}" if reasons else "")
        return Panel("", why, tally.points, tally.valid, tally.asked, tuple(ballots))
    best = winner(tally, A, terms.tie_order, terms.margin) or ""
    return Panel(best, f"{best} wins: {points}", tally.points, tally.valid, tally.asked, tuple(ballots))


def _points(points: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in points.items())


def deciding(_: Study, round: Round) -> Decision:
    """What the panel said: a rival that won holds the document now."""
    if round.panel is None:
        return Decision(tuple(round.trials), round.trials[0], "the document as it was given")
    named = dict(zip(RIVALS, round.trials, strict=True))
    if (number := named.get(round.panel.winner)) is None:
        return Decision((), None, round.panel.why)
    return Decision((number,), number, round.panel.why)


def failing(study: Study, round: Round) -> str:
    """That a judge's ballots could not be counted in two passes running: a panel that lost one is another panel."""
    if round.panel is None or not study.passes:
        return ""
    again = sorted(_lost(round.panel) & _lost(study.passes[-1].panel))
    if not again:
        return ""
    reasons = [ballot.problem for ballot in round.panel.ballots if ballot.judge == again[0] and ballot.problem]
    who = " and ".join(str(judge + 1) for judge in again)
    return f"judge {who} of the panel: no ballot that counts in two passes running: {reasons[-1]}; ask another model"


def _lost(panel: Panel) -> set[int]:
    return {ballot.judge for ballot in panel.ballots if not ballot.ranking}
