"""What a model sees before it proposes: the task, the space, the trials so far, and what went wrong. Bounded, always.

The parts that never change come first, then the trials, oldest first, in a window that moves in blocks: so most of a
prompt is, byte for byte, what the one before began with, and providers that keep prefixes charge it once. What programs
printed is fenced and marked; it is data.

Nothing here is random, and nothing later than the round's view is in it: a flow that thinks again asks the same.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from metaloop.flow import Message
from metaloop.study import Trial, View
from metaloop.values import Choices, Domain, Failed, Pruned, Ran, Refused, Scalar, describe

BLOCK = 25
"""The window moves by so many trials, and holds one or two blocks of them."""

LINE, WHY, TAIL = 400, 160, 400
"""Characters at most: of a trial's line, of a proposer's reason, of what a program printed at its end."""

TEXT = 16_000
"""Characters at most of the task, and of the source."""

ERRORS, LOGS, HINTS, PENDING = 5, 3, 5, 16
"""How many of each are shown, the newest."""

WORDS = {"crowned": "kept: the best then", "discarded": "no better", "provisional": "looks better, not proven"}
"""Verdicts, for who does not know ours."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def brief(view: View, guide: str = "") -> tuple[Message, ...]:
    """The messages of a first ask. `guide` is said at the end, before the question."""
    texts = view.texts
    system = fill(
        texts["propose"],
        goal=goal(view),
        task=f"The task, as its owner put it:\n\n{cut(texts.get('task', ''))}" if texts.get("task") else "",
        space="\n".join(f"- {name}: {domain_text(domain)}" for name, domain in view.space.items()),
        rule=rule(view),
        example=", ".join(f"{json.dumps(name)}: {json.dumps(d.middle())}" for name, d in view.space.items()),
    )
    shown = "\n\n".join(part for part in (source(view), history(view)) if part)
    room = max(800, (len(system) + len(shown)) // 4)
    return Message("system", system), Message("user", f"{shown}\n\n{_next(view, guide, room)}")


def fill(template: str, **parts: str) -> str:
    """`template` with each {name} that is given put in, once: what is put in is not looked at again."""
    names = "|".join(map(re.escape, parts))
    text = re.sub(r"\{\{(.*?)\}\}|\{(" + names + r")\}", lambda m: _part(m, parts), template)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def _part(match: re.Match[str], parts: dict[str, str]) -> str:
    if match[2] is not None:
        return parts[match[2]]
    return "{" + parts.get(match[1], match[1]) + "}"


# ---- what stays the same ---------------------------------------------------------------------------------------------


def goal(view: View) -> str:
    """The objective, and the further ones, in words."""
    objective = view.objective
    lines = [f"{'The higher' if objective.direction == 'max' else 'The lower'} `{objective.metric}`, the better."]
    if objective.target is not None:
        lines.append(f"At {objective.target:g} the search is over.")
    if objective.ceiling is not None:
        lines.append(f"{objective.ceiling:g} is the best that there can be.")
    for other in view.terms.others:
        lines.append(f"At a tie: {'higher' if other.direction == 'max' else 'lower'} `{other.metric}`.")
    for bound in view.terms.constraints:
        side = "at most" if bound.direction == "min" else "at least"
        lines.append(f"`{bound.metric}` has to be {side} {bound.bound:g}; what breaks this is discarded.")
    return "\n".join(lines)


def domain_text(domain: Domain) -> str:
    """A domain as a model should read it: choices in JSON, ranges with their scale."""
    if isinstance(domain, Choices):
        return "one of " + ", ".join(json.dumps(value, ensure_ascii=False) for value in domain.values)
    return describe(domain) + (", on a logarithmic scale" if domain.log else "")


def rule(view: View) -> str:
    """How a trial is judged, in words."""
    match view.terms.rule:
        case "strict":
            return "Each trial is run once. Strictly better than the best so far is kept; a tie is not."
        case "proven":
            return (
                "Each trial is run once. One that looks better than the best so far is run again beside it, on fresh "
                "seeds, and kept only if that proves it: small gains within the noise are not."
            )
        case "provisional":
            return (
                "Each trial is run once, and leads if it looks better than all before it. The leading few are proven "
                "now and then, on fresh seeds; gains within the noise do not survive that."
            )


def source(view: View) -> str:
    """The program that is measured, fenced."""
    text = view.texts.get("source", "")
    return f"The program that is run:\n\n{fenced('source', cut(text))}" if text else ""


# ---- what grows ------------------------------------------------------------------------------------------------------


def history(view: View) -> str:
    """The trials of the window, oldest first, a line each; those before it in a sentence."""
    newest = next((trial.number for trial in view.earlier()), 0)
    first = BLOCK * max(0, newest // BLOCK - 1) + 1
    decided = sorted(view.settled(), key=lambda trial: trial.number)
    older = [trial for trial in decided if trial.number < first and trial.role != "baseline"]
    lines = [trial_text(view, trial) for trial in decided if trial.number >= first or trial.role == "baseline"]
    head = [summary(view, older)] if older else []
    return "\n".join(["The trials so far:", *head, *lines]) if lines else "No trial was made so far."


def summary(view: View, trials: Sequence[Trial]) -> str:
    """Trials that are shown no longer: how many, the best of them, how many failed and mostly why."""
    scored = [trial for trial in trials if trial.score]
    failed = Counter(trial.result.reason for trial in trials if isinstance(trial.result, Failed | Refused))
    parts = [f"trials {trials[0].number} to {trials[-1].number} are not listed"]
    if scored:
        best = max(scored, key=lambda trial: view.objective.gain(_value(trial), 0.0))
        parts.append(f"best of them: {trial_text(view, best)}")
    if failed:
        reason, count = failed.most_common(1)[0]
        parts.append(f"{failed.total()} failed, {count} of them with {quoted(reason)}")
    return "; ".join(parts)


def trial_text(view: View, trial: Trial) -> str:
    """One trial in a line: number, parameters, what came of it, who proposed it and why."""
    params = compact(trial.change.values) if trial.change.values else "the program as it is"
    told = f"{trial.number} | {params} | {outcome(view, trial)} | {plain(trial.proposal.by, 40)}"
    why = plain(trial.proposal.why, WHY)
    return plain(f"{told}: {why}" if why else told, LINE)


def outcome(view: View, trial: Trial) -> str:
    """What came of a trial: its value and verdict, or why it has none."""
    if trial.score is not None:
        spread = f" (mean of {trial.score.runs}, sd {trial.score.sd:.2g})" if trial.score.sd is not None else ""
        others = "".join(f", {name} = {value:.6g}" for name, value in trial.score.others.items())
        unproven = trial.score.test is not None and not trial.score.test.kept
        verdict = "looked better, not proven" if unproven else WORDS.get(trial.verdict, trial.verdict)
        return f"{view.objective.metric} = {trial.score.value:.6g}{spread}{others}, {verdict}"
    match trial.result:
        case Failed() | Refused() | Pruned():
            return f"{trial.verdict}: {quoted(trial.result.reason)}"
        case _:
            return trial.verdict


def compact(values: dict[str, Scalar]) -> str:
    """Parameters as JSON."""
    return json.dumps(values, ensure_ascii=False)


# ---- what is new -----------------------------------------------------------------------------------------------------


def _next(view: View, guide: str, room: int) -> str:
    errors, logs = _errors(view, room * 2 // 3), _logs(view, room // 3)
    hints = [f"- {plain(hint.text, WHY)}" for hint in view.hints[-HINTS:]]
    return fill(
        view.texts["next"],
        incumbent=_incumbent(view),
        under_way=_under_way(view),
        errors=errors,
        logs=logs,
        hints="\n".join(["Hints from the owner:", *hints]) if hints else "",
        guide=guide,
        number=str(view.index + 1),
    )


def _incumbent(view: View) -> str:
    best, leader = view.incumbent, view.leader
    if best is None:
        return "Nothing was measured so far."
    text = f"The best so far: trial {trial_text(view, best)}"
    if leader is not None and leader is not best:
        text += f"\nLooks better, and is not proven: trial {trial_text(view, leader)}"
    return text


def _under_way(view: View) -> str:
    shown = [f"- {compact(change.values)}" for _, change in view.pending() if change.values][-PENDING:]
    return "\n".join(["Under way, do not repeat:", *shown]) if shown else ""


def _errors(view: View, room: int) -> str:
    """The ends of what the last failed trials wrote to stderr."""
    failed = ((trial, trial.result) for trial in _newest(view))
    tails = [(trial, result.tail) for trial, result in failed if isinstance(result, Failed) and result.tail.strip()]
    return _printed("What the last trials that failed wrote to stderr:", tails[:ERRORS], room)


def _logs(view: View, room: int) -> str:
    """The ends of what the last measured trials printed."""
    ran = ((trial, trial.result) for trial in _newest(view))
    tails = [(trial, result.tail) for trial, result in ran if isinstance(result, Ran) and result.tail.strip()]
    return _printed("What the last trials printed:", tails[:LOGS], room)


def _newest(view: View) -> Iterable[Trial]:
    """Settled trials, the newest first: enough of them to find what is shown."""
    return sorted(view.settled(), key=lambda trial: -trial.number)[: 2 * BLOCK]


def _printed(title: str, tails: Sequence[tuple[Trial, str]], room: int) -> str:
    """As many of them as there is room for, the newest first."""
    blocks: list[str] = []
    for trial, tail in tails:
        block = fenced(f"trial {trial.number}", cut(tail.strip()[-TAIL:], TAIL))
        if sum(map(len, blocks)) + len(block) > room:
            break
        blocks.append(block)
    return "\n".join([title, *blocks]) if blocks else ""


# ---- text that is not ours -------------------------------------------------------------------------------------------


def fenced(what: str, text: str) -> str:
    """`text` between two lines that cannot stand in it."""
    text = _CONTROL.sub(" ", text)
    bars = "=" * (max((len(run) for run in re.findall(r"=+", text)), default=0) + 1)
    bars = max(bars, "====", key=len)
    return f"{bars} {what}, untrusted {bars}\n{text}\n{bars} end {bars}"


def plain(text: str, most: int) -> str:
    """`text` on one line, without control characters, and no longer than `most`."""
    line = " ".join(_CONTROL.sub(" ", text).split())
    return line if len(line) <= most else line[: most - 1] + "\u2026"


def quoted(text: str) -> str:
    """What may have been printed by a program, on one line and in quotes."""
    return json.dumps(plain(text, WHY), ensure_ascii=False)


def cut(text: str, most: int = TEXT) -> str:
    """`text`, or its beginning and its end where it is longer than `most`."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def _value(trial: Trial) -> float:
    assert trial.score is not None
    return trial.score.value
