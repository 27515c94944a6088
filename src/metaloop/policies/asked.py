"""Policies that ask a model: `llm` lets it choose; `guided` shows it what a sampler would do, and why.

A reply is read robustly and checked strictly; what cannot be run goes back with the reason, `CORRECTIONS` times. Then
the round is faulted: nobody else proposes in the model's name. Only where the study's terms name a stand-in
(`policy.fallback`) does that one propose, and the proposal says so.
"""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from metaloop.errors import ProposerError
from metaloop.events import Reply
from metaloop.flow import Flow, Message, Prompt
from metaloop.policies.brief import brief, shortly
from metaloop.policies.picture import picture
from metaloop.policies.replies import Point, Problem, values
from metaloop.policies.sampled import STARTUP
from metaloop.roles import Propose
from metaloop.study import View
from metaloop.values import Change, Choices, Domain, Params, Proposal, Scalar, number
from metaloop.wording import cut, fill, plain

TOLD = 16_000
"""Characters at most of a reply that is shown again beside its correction."""

CORRECTIONS = 2
"""So often a reply that cannot be run is sent back with the reason."""

ROLE = "proposer"

UNUSABLE = {
    "stop": "there was no text in the reply",
    "empty": "there was no text in the reply",
    "oversize": "the reply was too long",
    "refusal": "that was a refusal, and no experiment",
}
"""What a model is told of a reply without a text that can be used."""


def llm(stand_in: Propose | None = None) -> Propose:
    """A model chooses the values."""

    def propose(view: View) -> Flow[Sequence[Proposal]]:
        return (yield from ask(view, brief(view), schema(view), _chosen("llm"), stand_in))

    return propose


def guided(sampler: Propose, name: str, stand_in: Propose | None = None) -> Propose:
    """A model chooses, and sees the sampler's suggestion and its picture of the space. The sampler sees all trials."""

    def propose(view: View) -> Flow[Sequence[Proposal]]:
        suggested = yield from sampler(view)
        if not suggested:
            return ()
        change = suggested[0].change
        scored = _scored(view)
        modelled = scored >= STARTUP
        guide = fill(
            view.texts["guided" if modelled else "early"],
            sampler=name,
            scored=str(scored),
            startup=str(STARTUP),
            suggestion=shortly(view, change.values),
            picture=picture(view),
        )
        proposals = yield from ask(view, brief(view, guide), schema(view), _chosen("guided"), stand_in)
        return [_marked(proposal, view, change) for proposal in proposals] if modelled else proposals

    return propose


def _marked(proposal: Proposal, view: View, suggested: Change) -> Proposal:
    """Whether the suggestion was taken, and what of it was not: six digits of a number are the number. Where most of it
    was not, it is not mentioned; what it was can be derived again.
    """
    new, old = proposal.change.values, suggested.values
    changed = {name: old[name] for name in new if not _alike(new[name], old[name])}
    if proposal.fallback or len(changed) > len(new) // 2:
        return proposal
    how = f"as suggested, but for {shortly(view, changed)}" if changed else "as suggested"
    return Proposal(proposal.change, proposal.by, f"{proposal.why} ({how})", proposal.parent)


def _alike(a: Scalar, b: Scalar) -> bool:
    return math.isclose(a, b, rel_tol=1e-5) if number(a) and number(b) else a == b


def _scored(view: View) -> int:
    """Trials that a sampler learns from: scored ones with all parameters."""
    return sum(trial.score is not None and trial.change.values.keys() == view.space.keys() for trial in view.settled())


Read: TypeAlias = Callable[[View, Reply, int], Proposal | str]
"""What the reply to the round's ask of this number proposes, which may be what has to be refused; or what is wrong with
it, for the model to mend.
"""


def ask(
    view: View,
    messages: tuple[Message, ...],
    schema: dict[str, object] | None,
    read: Read,
    stand_in: Propose | None,
    again: str = "",
) -> Flow[Sequence[Proposal]]:
    """Asks until a reply can be run, as often as there are corrections, which end with `again`. What has to be refused
    is so in the end.
    """
    last: Proposal | str = ""
    for turn in range(1 + CORRECTIONS):
        reply = yield Prompt(ROLE, messages, schema)
        assert isinstance(reply, Reply)
        if reply.trouble:
            return (yield from _instead(view, reply.problem, stand_in))
        last = read(view, reply, turn)
        if isinstance(last, Proposal) and last.refused is None:
            return [last]
        told = reply.text if reply.text and reply.text.strip() else "(an empty reply)"
        correction = fill(view.texts["correct"], problem=_problem(last)) + again
        messages = (*messages, Message("assistant", cut(told, TOLD)), Message("user", correction))
    if isinstance(last, Proposal):
        return [last]
    return (yield from _instead(view, f"no reply could be run, {1 + CORRECTIONS} times; the last: {last}", stand_in))


def _problem(found: Proposal | str) -> str:
    if isinstance(found, str):
        return found
    return "" if found.refused is None else found.refused.reason


def unusable(reply: Reply) -> str:
    """Why a reply cannot even be read; one that was cut off is not used."""
    if reply.text is None:
        return UNUSABLE.get(reply.finish, f"the reply ended with {reply.finish!r}")
    if reply.finish == "length":
        return "the reply was cut off at its limit; answer shorter"
    return "" if reply.finish == "stop" else f"the reply ended with {reply.finish!r}"


def _chosen(by: str) -> Read:
    """Reads a point of the space."""

    def read(view: View, reply: Reply, _: int) -> Proposal | str:
        found = _point(view, reply)
        if isinstance(found, str):
            return found
        parent = view.leader.number if view.leader else None
        why = plain(found.why, 500).strip(" .") and plain(found.why, 500)
        return Proposal(Params(found.values), f"{by}: {plain(reply.model, 80)}", why or "no reason given", parent)

    return read


def _point(view: View, reply: Reply) -> Point | str:
    """A point that can be run, or what is wrong, for the model to mend."""
    if problem := unusable(reply):
        return problem
    assert reply.text is not None
    found = values(reply.text, view.space)
    if isinstance(found, Problem):
        return found.text
    change = Params(found.values)
    if view.tried(change) is not None:
        return f"trial {view.taken(change)} had these very parameters; choose a point that was not tried"
    if view.taken(change) is not None:
        return "another proposal, made at the same time, has these very parameters; choose a point farther away"
    return found


def _instead(view: View, why: str, stand_in: Propose | None) -> Flow[Sequence[Proposal]]:
    if stand_in is None:
        raise ProposerError(why)
    proposals = yield from stand_in(view)
    return [Proposal(p.change, p.by, p.why, p.parent, fallback=why) for p in proposals]


def schema(view: View) -> dict[str, object]:
    """What a reply has to look like, as far as a JSON schema can say it: scales and steps are checked by us."""
    properties: dict[str, object] = {name: _kind(domain) for name, domain in view.space.items()}
    point = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {
        "type": "object",
        "properties": {"why": {"type": "string"}, "params": point},  # in this order: reasons first
        "required": ["why", "params"],
        "additionalProperties": False,
    }


def _kind(domain: Domain) -> dict[str, object]:
    if isinstance(domain, Choices):
        return {"enum": list(domain.values)}
    kind, exact = ("integer", int) if domain.whole else ("number", float)
    return {"type": kind, "minimum": exact(domain.low), "maximum": exact(domain.high)}
