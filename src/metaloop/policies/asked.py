"""Policies that ask a model: `llm` lets it choose; `guided` shows it what a sampler would do, and why.

A reply is read robustly and checked strictly; what cannot be run goes back with the reason, `CORRECTIONS` times. Then
the round is faulted: nobody else proposes in the model's name. Only where the study's terms name a stand-in
(`policy.fallback`) does that one propose, and the proposal says so.
"""

import math
from collections.abc import Sequence

from metaloop.errors import ProposerError
from metaloop.events import Reply
from metaloop.flow import Flow, Message, Prompt
from metaloop.policies.brief import brief, fill, plain, shortly
from metaloop.policies.picture import picture
from metaloop.policies.replies import Point, Problem, values
from metaloop.policies.sampled import STARTUP
from metaloop.roles import Propose
from metaloop.study import View
from metaloop.values import Choices, Domain, Params, Proposal, Scalar, number

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
        return (yield from _ask(view, "llm", brief(view), stand_in))

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
        proposals = yield from _ask(view, "guided", brief(view, guide), stand_in)
        return [_marked(proposal, view, change) for proposal in proposals] if modelled else proposals

    return propose


def _marked(proposal: Proposal, view: View, suggested: Params) -> Proposal:
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


def _ask(view: View, by: str, messages: tuple[Message, ...], stand_in: Propose | None) -> Flow[Sequence[Proposal]]:
    problem = ""
    for _ in range(1 + CORRECTIONS):
        reply = yield Prompt(ROLE, messages, schema(view))
        assert isinstance(reply, Reply)
        if reply.trouble:
            return (yield from _instead(view, reply.problem, stand_in))
        found = _read(view, reply)
        if isinstance(found, Point):
            parent = view.leader.number if view.leader else None
            why = plain(found.why, 500).strip(" .") and plain(found.why, 500)
            return [Proposal(Params(found.values), f"{by}: {plain(reply.model, 80)}", why or "no reason given", parent)]
        problem = found
        told = reply.text if reply.text and reply.text.strip() else "(an empty reply)"
        correction = fill(view.texts["correct"], problem=problem)
        messages = (*messages, Message("assistant", told[:4000]), Message("user", correction))
    return (yield from _instead(view, f"no reply could be run, {1 + CORRECTIONS} times; the last: {problem}", stand_in))


def _read(view: View, reply: Reply) -> Point | str:
    """A point that can be run, or what is wrong, for the model to mend. A reply that was cut off is not used."""
    if reply.text is None:
        return UNUSABLE.get(reply.finish, f"the reply ended with {reply.finish!r}")
    if reply.finish == "length":
        return "the reply was cut off at its limit; answer shorter"
    if reply.finish != "stop":
        return f"the reply ended with {reply.finish!r}"
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
