"""`agent`: a coding agent of the user's works in a copy of a candidate, the best one unless a strategy picks another;
what differs then is the proposal.
"""

import re
from collections.abc import Iterator, Sequence

import msgspec

from metaloop.edits.contract import Broken
from metaloop.edits.judged import judge
from metaloop.errors import ProposerError
from metaloop.events import Reply
from metaloop.flow import Flow, Session
from metaloop.policies.brief import chosen, following, goal, history, rule
from metaloop.policies.code import proposed
from metaloop.policies.coder import contract_text
from metaloop.policies.frontier import Strategy, parent
from metaloop.roles import Propose
from metaloop.study import Trial, View
from metaloop.values import Params, Proposal, Refused
from metaloop.wording import cut, fill, plain

TURNS = 2
"""So often an agent is set to work in a round: once more, where what it did cannot be tried."""

IDLE = "no file that may be changed was changed"
"""What is said of a session that came to nothing."""

_WHY = re.compile(r"^[\s*#>`]*WHY\s*:[\s*`]*(.+)$", re.IGNORECASE | re.MULTILINE)


class Written(msgspec.Struct, frozen=True):
    """What a session came to, as the text of its reply: files that differ, by path, None for one that is gone; those of
    them that were not there; the end of what was printed; why nothing of it can be used.
    """

    files: dict[str, str | None]
    new: tuple[str, ...] = ()
    printed: str = ""
    problem: str = ""


def agent(strategy: Strategy | None = None) -> Propose:
    """The proposal is what the agent did, to what is best; with a strategy, to what that picks from the frontier. What
    breaks the contract, or changes nothing, is told to it once more. Raises ProposerError where nothing came of that
    either: an agent that changes nothing today may tomorrow, so there is never nothing left to try.
    """

    def propose(view: View) -> Flow[Sequence[Proposal]]:
        grown = view.leader if strategy is None else parent(view, strategy)
        change = Params({}) if grown is None else grown.change
        before, problem = view.fruitless
        last: Proposal | str = ""
        idle = 0
        for turn in range(TURNS):
            said = brief(view, grown, _wrong(before + turn, problem))
            number = None if grown is None else grown.number
            reply = yield Session(said, dict(change.values), change.files, number)
            assert isinstance(reply, Reply)
            if reply.trouble or reply.text is None:
                raise ProposerError(reply.problem or "the session gave nothing")
            last = _read(view, grown, reply)
            idle += isinstance(last, str) and last.startswith(IDLE)
            if isinstance(last, Proposal) and last.refused is None:
                return [last]
            problem = last if isinstance(last, str) else last.refused.reason if last.refused else ""
        if isinstance(last, Proposal):
            return [last]
        if idle == TURNS:
            raise ProposerError(f"the agent changed nothing, twice{str(last).removeprefix(IDLE)}")
        raise ProposerError(f"no session came to a change that can be tried, {TURNS} times; the last: {last}")

    return propose


def brief(view: View, grown: Trial | None, said: str) -> str:
    """All that the agent is told. The code, as the trial that it grows from has it, it can see for itself."""
    shown, rival = history(view), grown if view.terms.frontier else None
    return fill(
        view.texts["agent"],
        goal=goal(view),
        task=f"The task, as its owner put it:\n\n{cut(view.texts['task'])}" if view.texts.get("task") else "",
        contract="\n".join([contract_text(view.terms.contract), *_gates(view)]),
        rule=rule(view),
        origin=_origin(view, grown),
        said=said,
        history=shown,
        following=following(view, "", max(2000, len(shown) // 4), "Make the change now.", rival),
    )


def _wrong(count: int, problem: str) -> str:
    """That so many sessions before this one came to nothing, and why the last did, in words; empty where none did."""
    if not count:
        return ""
    who = "The session before this one" if count == 1 else f"{count} sessions before this one"
    told = f"{who} came to no change that can be tried, and what was done there is undone. The last: {problem[:2000]}"
    return f"# What was wrong with the last attempt\n\n{told}"


def _gates(view: View) -> Iterator[str]:
    """What a change has to pass, as the study began."""
    commands = [
        ("the check", view.terms.check),
        *((f"the gate {gate.name}", gate.command) for gate in view.terms.gates),
    ]
    for name, command in commands:
        if command:
            yield f"- It has to pass {name}: `{plain(' '.join(command), 300)}` has to end with 0."


def _origin(view: View, grown: Trial | None) -> str:
    """Whose files the agent finds, in words."""
    if grown is None:
        return ""
    told = f"The files are as trial {grown.number} has them"
    return f"{told}. {chosen(view)}" if grown is not view.leader else f"{told}, the best one so far."


def _read(view: View, grown: Trial | None, reply: Reply) -> Proposal | str:
    """The change, which may be one that has to be refused; or why there is none."""
    written = msgspec.json.decode(reply.text or "{}", type=Written)
    if written.problem:
        return written.problem
    change, number = (Params({}), None) if grown is None else (grown.change, grown.number)
    before = view.code(change)
    litter = [path for path in written.new if not view.terms.contract.allows(path)]
    ours = {path: text for path, text in written.files.items() if path not in litter}
    if not ours:
        left = f"; new files that may not be changed do not count: {', '.join(litter[:5])}" if litter else ""
        return IDLE + left
    after = {path: text for path, text in {**before, **ours}.items() if text is not None}
    gone = [path for path, text in ours.items() if text is None]
    found = _WHY.findall(written.printed)
    why = plain(found[-1], 500) if found else "no reason given"
    notes = [f"left out: {', '.join(litter[:5])}"] if litter else []
    by = f"agent: {plain(reply.model, 80)}"
    if gone:
        broken: Broken | None = Broken(
            "deletion_blocked", f"expected files to stay, found deleted: {', '.join(gone[:5])}"
        )
    else:
        broken = judge(before, after, view.terms.contract, view.others)
    if broken:
        return Proposal(change, by, why, number, refused=Refused(broken.code, broken.text))
    changed = {path: text for path, text in after.items() if before.get(path) != text}
    made = proposed(view, changed, by, "; ".join([why, *notes]), change, number, dict(change.values))
    if (tried := view.taken(made.change)) is not None:
        return f"trial {tried} had this very code, with these parameters; try another change"
    return made
