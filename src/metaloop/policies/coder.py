"""Policies that change code: a model writes edits (`llm_diff`), and `hybrid` lets parameters and edits take turns."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from metaloop.edits.contract import Contract
from metaloop.events import Reply
from metaloop.flow import Flow, Message
from metaloop.policies.asked import ask, unusable
from metaloop.policies.brief import chosen, fenced, following, goal, history, rule
from metaloop.policies.code import edited
from metaloop.policies.frontier import Strategy, parent
from metaloop.roles import Propose
from metaloop.study import Trial, View
from metaloop.values import Change, Params, Proposal, changed
from metaloop.wording import cut, fill, plain

ROOM = 60_000
"""Characters of code that a prompt shows at most, over all files."""

ASK = "Answer with the line `WHY:` and the change."
"""How the question ends."""

AGAIN = "\nSend the whole answer again: the line `WHY:` and every block."
"""How a correction ends."""

_WHY = re.compile(r"^[\s*#>`]*WHY\s*:[\s*`]*(.+)$", re.IGNORECASE | re.MULTILINE)


def llm_diff(stand_in: Propose | None = None, strategy: Strategy | None = None) -> Propose:
    """A model changes the code of what is best; with a strategy, of what that picks from the frontier. What still
    breaks the contract after its corrections is refused.
    """

    def propose(view: View) -> Flow[Sequence[Proposal]]:
        if strategy is None:
            return (yield from ask(view, messages(view, view.leader), None, _on_the_best, stand_in, AGAIN))
        picked = parent(view, strategy)

        def read(view: View, reply: Reply, _: int) -> Proposal | str:
            return _read(view, reply, [picked])

        return (yield from ask(view, messages(view, picked), None, read, stand_in, AGAIN))

    return propose


def _on_the_best(view: View, reply: Reply, ask: int) -> Proposal | str:
    """On what is best by now; where that does not go, on what was best when it was asked for."""
    newest = view.leader_at(ask)
    return _read(view, reply, [newest] if newest is view.leader else [newest, view.leader])


def _read(view: View, reply: Reply, parents: Sequence[Trial | None]) -> Proposal | str:
    """The change in a reply, on the first of the parents where it can be made, and which may be one that has to be
    refused; or what is wrong with it, in words.
    """
    if problem := unusable(reply):
        return problem
    assert reply.text is not None
    told = reason(reply.text)
    for best in parents:
        made = _put(view, best, reply, told)
        if made.refused is None:
            break
    if made.refused is None and (tried := view.taken(made.change)) is not None:
        return f"trial {tried} had this very code, with these parameters; try another change"
    return made


def reason(text: str) -> str:
    """What a reply says of its change."""
    why = _WHY.search(text)
    return plain(why[1], 500) if why else "no reason given"


def _put(view: View, best: Trial | None, reply: Reply, why: str) -> Proposal:
    """The change on top of this trial's code. While it was waited for, another may have become the best."""
    parent, number = (Params({}), None) if best is None else (best.change, best.number)
    by = f"llm_diff: {plain(reply.model, 80)}"
    return edited(view, reply.text or "", by, why, parent, number, dict(parent.values))


# ---- what the model sees ---------------------------------------------------------------------------------------------


def messages(view: View, grown: Trial | None) -> tuple[Message, ...]:
    """The task and the contract, then the trials, the code of what is grown from, and what is new."""
    system = fill(
        view.texts["code"],
        goal=goal(view),
        task=f"The task, as its owner put it:\n\n{cut(view.texts['task'])}" if view.texts.get("task") else "",
        contract=contract_text(view.terms.contract),
        rule=rule(view),
    )
    shown = f"{history(view)}\n\n{code_text(view, grown)}"
    new = following(view, "", len(shown) // 4, ASK, grown if view.terms.frontier else None)
    return Message("system", system), Message("user", f"{shown}\n\n{new}")


def contract_text(contract: Contract) -> str:
    """What may be changed, in words."""
    lines = [f"Files that match: {', '.join(f'`{glob}`' for glob in contract.mutable)}. Nothing else."]
    if contract.frozen:
        lines.append(f"Frozen, whatever else is said: {', '.join(f'`{path}`' for path in contract.frozen[:20])}.")
    if contract.required_calls:
        lines.append(f"Calls that have to stay: {', '.join(f'`{name}`' for name in contract.required_calls)}.")
    lines.append("Where a file has lines with EVOLVE-BLOCK-START and EVOLVE-BLOCK-END, only what is between them.")
    lines.append("Files may not be deleted, renamed or made executable. Python has to parse.")
    return "\n".join(f"- {line}" for line in lines)


def code_text(view: View, grown: Trial | None) -> str:
    """The files that may be changed, as this trial has them."""
    title = "# The files" + (
        "" if grown is None else f", as trial {grown.number} has them: your change is made to these"
    )
    if grown is not None and grown is not view.leader:
        title += f"\n\n{chosen(view)}"
    return f"{title}\n\n{files_text(view, Params({}) if grown is None else grown.change)}"


def files_text(view: View, change: Change) -> str:
    """The files that may be changed, as a candidate has them: all of them, or as many as there is room for."""
    files = view.code(change)
    order = sorted(files, key=lambda path: (path not in change.files, len(files[path]), path))
    room, shown, left = ROOM, dict[str, str](), list[str]()
    for path in order:
        if (size := len(files[path])) <= room:
            shown[path], room = files[path], room - size
        else:
            left.append(f"- {plain(path, 200)}, {size} characters")
    parts = [fenced(plain(path, 200), shown[path]) for path in sorted(shown)]
    if left:
        parts.append("\n".join(["Too long to be shown:", *left[:50]]))
    return "\n\n".join(parts)


# ---- parameters and edits by turns -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turns:
    """When `hybrid` turns from parameters to edits and back. All count settled trials of the search.

    `explore`: trials of parameters at the start. `stall`: trials running without a keep, after which edits begin.
    `failures`: failed edits, after which parameters go on.
    """

    explore: int = 8
    stall: int = 4
    failures: int = 3


def hybrid(parameters: Propose, edits: Propose, edit_arm: str, turns: Turns) -> Propose:
    """Parameters first; edits after a stall, on the best's parameters and code; parameters again after failed edits.

    A trial of parameters keeps the code of what is best. Where nobody has an edit left, parameters go on.
    """

    def propose(view: View) -> Flow[Sequence[Proposal]]:
        if editing(view, edit_arm, turns) and (proposals := (yield from edits(view))):
            return proposals
        best = view.leader
        files = {} if best is None else best.change.files
        proposals = [_on(proposal, files) for proposal in (yield from parameters(view))]
        if any(view.tried(proposal.change) is None for proposal in proposals):
            return proposals
        return (yield from edits(view))  # on this code, nothing is left of the space

    return propose


def _on(proposal: Proposal, files: dict[str, str]) -> Proposal:
    return replace(proposal, change=changed(dict(proposal.change.values), files))


def editing(view: View, edit_arm: str, turns: Turns) -> bool:
    """Whether it is the edits' turn, by all that was settled when the round opened."""
    edits, count, stall, failures = False, 0, 0, 0
    settled = sorted((t for t in view.settled() if t.role == "search"), key=lambda trial: trial.decided_at or 0)
    for trial in settled:
        count, stall = count + 1, 0 if trial.kept else stall + 1
        if edits and trial.failed and trial.proposal.by.startswith(edit_arm):
            failures += 1
        if edits and failures >= turns.failures:
            edits, stall = False, 0
        elif not edits and count >= turns.explore and stall >= turns.stall:
            edits, failures = True, 0
    return edits
