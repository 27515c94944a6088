"""Code that a model brings to pass its tests, by few calls: a first version, and revisions of it.

Each call gives a trial, but for that of an analysis. Nothing is asked again: a reply that cannot be used is a refused
trial, and the next call is told why. What a call sees of the tests is what the visible ones printed; those on held-out
data are run when all is over, and stand in nothing that a policy is shown.

Code that an analysis puts into fences, or into blocks of an edit, is cut out of it: what it finds is to be thought of,
and not to be copied. Code without any such mark is not found.
"""

import re
from collections.abc import Sequence

from msgspec.structs import replace

from metaloop.errors import ProposerError
from metaloop.events import Reply
from metaloop.flow import Flow, Message, Prompt
from metaloop.policies.asked import ROLE, unusable
from metaloop.policies.brief import HINTS, WHY, fenced, goal, outcome
from metaloop.policies.code import edited
from metaloop.policies.coder import contract_text, files_text, reason
from metaloop.roles import Propose
from metaloop.study import Trial, View
from metaloop.terms import Repair
from metaloop.values import Change, Failed, Params, Proposal, Ran, Refused
from metaloop.wording import cut, fill, plain, version

ANALYSIS = 8_000
"""Characters of an analysis at most."""

EARLIER = 12
"""Versions that are told in a line each, the newest."""

LEFT_OUT = "[code was left out here]"

_THOUGHT = re.compile(r"\A.*</(?:think|thinking|thought|reasoning)\s*>", re.IGNORECASE | re.DOTALL)
_CODE = re.compile(r"(`{3,}|~{3,}).*?(?:\1|\Z)|<{5,9} ?SEARCH\b.*?(?:>{5,9} ?REPLACE\b|\Z)", re.DOTALL)


def repair(rules: Repair) -> Propose:
    """As the strategy says, for as many calls as there are. Empty where all of them are made."""

    def propose(view: View) -> Flow[Sequence[Proposal]]:
        left = rules.calls - view.calls
        if left < 1:
            return ()
        attempts = [] if rules.strategy in ("single", "best_of_n") else attempted(view)
        last = newest(attempts)
        if last is None:
            return [(yield from _version(view, to_begin(view, attempts), None))]
        analysed, thought = next((trial for trial in attempts if trial.proposal.notes), None), ""
        if rules.strategy == "reasoned_repair" and analysed is None and left > 1:
            thought = yield from _analysis(view, last)
        made = yield from _version(view, to_revise(view, attempts, last, analysed, thought), last)
        return [replace(made, notes=thought)]

    return propose


def attempted(view: View) -> list[Trial]:
    """What was made so far of these calls, in that order; what a person asked for is none of it."""
    return sorted((trial for trial in view.settled() if trial.role == "search"), key=lambda trial: trial.number)


def newest(attempts: Sequence[Trial]) -> Trial | None:
    """The newest version that there is: not what was refused."""
    return next((trial for trial in reversed(attempts) if trial.refusal is None), None)


# ---- what is asked ---------------------------------------------------------------------------------------------------


def _analysis(view: View, last: Trial) -> Flow[str]:
    """What a model thinks of a version, without the code in it; empty where there is nothing that can be used."""
    reply = yield Prompt(ROLE, to_analyse(view, last))
    assert isinstance(reply, Reply)
    if reply.trouble:
        raise ProposerError(reply.problem)
    return without_code(reply.text or "") if reply.finish in ("stop", "length") else ""


def _version(view: View, messages: tuple[Message, ...], grown: Trial | None) -> Flow[Proposal]:
    """What the reply makes of this trial's code, or of the base; or that it makes nothing of it, and why."""
    reply = yield Prompt(ROLE, messages)
    assert isinstance(reply, Reply)
    if reply.trouble:
        raise ProposerError(reply.problem)
    by, root = f"repair: {plain(reply.model, 80)}", grown or view.baseline
    parent, number = Params({}) if grown is None else grown.change, None if root is None else root.number
    if problem := unusable(reply):
        return Proposal(parent, by, "", number, refused=Refused("unread", problem))
    text = reply.text or ""
    return edited(view, text, by, reason(text), parent, number, {})


def without_code(text: str) -> str:
    """An analysis in words alone; empty where nothing but code was in it."""
    words = _CODE.sub(f"\n{LEFT_OUT}\n", _THOUGHT.sub("", text))
    words = re.sub(r"\n{3,}", "\n\n", words).strip()
    return cut(words, ANALYSIS) if re.search(r"\w", words.replace(LEFT_OUT, "")) else ""


# ---- what a model sees -----------------------------------------------------------------------------------------------


def to_begin(view: View, refused: Sequence[Trial] = ()) -> tuple[Message, ...]:
    """The task and the code that there is; and why answers to this so far were none."""
    return _messages(view, "repair_first", [_files(view, Params({}), "as they are"), *_unused(refused), *_hints(view)])


def to_analyse(view: View, last: Trial) -> tuple[Message, ...]:
    """The task, a version, and what the visible tests said of it."""
    return _messages(view, "analysis", [_files(view, last.change, "as they are"), result_text(view, last)])


def to_revise(
    view: View, attempts: Sequence[Trial], last: Trial, analysed: Trial | None, thought: str
) -> tuple[Message, ...]:
    """The newest version and what the visible tests said of it; the analysis, made just now or kept by the trial that
    came of it, where there is one; and what earlier versions said of themselves.
    """
    before = attempts if analysed is None else attempts[: attempts.index(analysed)]
    analysis, of = thought or (analysed.proposal.notes if analysed else ""), newest(before) or last
    newer = [trial for trial in attempts if trial.number > last.number]
    parts = [
        _files(view, last.change, f"as version {attempts.index(last) + 1} has them: your change is made to these"),
        result_text(view, last),
        f"# An analysis of version {attempts.index(of) + 1}\n\n{version('analysis', analysis)}" if analysis else "",
        _earlier(view, attempts),
        *_unused(newer),
        *_hints(view),
    ]
    return _messages(view, "revise", parts)


def _messages(view: View, text: str, parts: Sequence[str]) -> tuple[Message, ...]:
    system = fill(
        view.texts[text],
        task=cut(view.texts.get("task", "")),
        goal=goal(view),
        contract=contract_text(view.terms.contract),
    )
    return Message("system", system), Message("user", "\n\n".join(part for part in parts if part))


def _files(view: View, change: Change, how: str) -> str:
    return f"# The files, {how}\n\n{files_text(view, change)}"


def result_text(view: View, trial: Trial) -> str:
    """How the run with the visible tests ended, its value, and the end of what it printed."""
    metric, tail = view.objective.metric, ""
    match trial.result:
        case Ran(metrics=metrics, tail=tail):
            told = f"It ran to its end: `{metric}` = {metrics[metric]:.6g}."
            if view.objective.reached(metrics[metric]) is not None:
                told += f" That would do, but: {plain(trial.why, WHY)}."
        case Failed(kind=kind, reason=reason, tail=tail):
            told = f"It has no `{metric}`, for it failed ({kind}): {plain(reason, 2 * WHY)}"
        case result:
            told = f"It has no `{metric}`: {plain(getattr(result, 'reason', 'it did not run'), 2 * WHY)}"
    shown = f"The end of what it printed:\n\n{fenced('output', tail)}" if tail.strip() else "It printed nothing."
    return f"# What the visible tests said\n\n{told}\n\n{shown}"


def _earlier(view: View, attempts: Sequence[Trial]) -> str:
    """All versions so far in a line each: what came of it, and what was said of it."""
    lines = [
        f"{number}. {plain(outcome(view, trial), 2 * WHY)} | {trial.proposal.why or 'nothing was said of it'}"
        for number, trial in enumerate(attempts, 1)
    ]
    return "\n".join(["# The versions so far\n\nwhat came of it | what its author said of it\n", *lines[-EARLIER:]])


def _unused(refused: Sequence[Trial]) -> list[str]:
    """Why the last answer was none."""
    if not refused or (refusal := refused[-1].refusal) is None:
        return []
    return [f"# The last answer\n\nIt could not be used, and nothing was run: {plain(refusal.reason, 2000)}"]


def _hints(view: View) -> list[str]:
    hints = [f"- {plain(hint.text, WHY)}" for hint in view.hints[-HINTS:]]
    return ["\n".join(["# Hints from the owner", "", *hints])] if hints else []
