"""What a model sees before it proposes: the task, the space, the trials so far, and what went wrong. Bounded, always.

The parts that never change come first, then the trials, oldest first, in a window that moves in blocks: so most of a
prompt is, byte for byte, what the one before began with, and providers that keep prefixes charge it once. What programs
printed is fenced and marked; it is data.

Nothing here is random, and nothing later than the round's view is in it: a flow that thinks again asks the same.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from metaloop.flow import Message
from metaloop.study import Trial, View
from metaloop.terms import ASKING
from metaloop.values import Choices, Domain, Failed, Pruned, Ran, Refused, Scalar, Test, describe
from metaloop.wording import CONTROL, cut, fill, plain

BLOCK = 25
"""The window moves by so many trials, and holds one or two blocks of them."""

LINE, WHY, TAIL = 600, 200, 400
"""Characters at most: of a trial's line, of a proposer's reason, of what a program printed at its end."""

ERRORS, LOGS, HINTS, PENDING = 5, 3, 5, 16
"""How many of each are shown, the newest."""

DIGITS = 6
"""Significant digits of a number that is shown, where its domain has such a number."""

ASK = "Answer with the JSON object."
"""How the question ends, where parameters are chosen."""

WORDS = {"crowned": "kept, the best then", "discarded": "no better", "provisional": "looks better, not proven"}
"""Verdicts, for who does not know ours."""

_METRIC = re.compile(r"\s*(METRIC\s+)?\S{1,200}\s*[=:]\s*\S{1,100}\s*$|\s*\{.*\}\s*$")


def brief(view: View, guide: str = "") -> tuple[Message, ...]:
    """The messages of a first ask. `guide` is said at the end, before the question."""
    texts = view.texts
    system = fill(
        texts["propose"],
        goal=goal(view),
        task=f"The task, as its owner put it:\n\n{cut(texts.get('task', ''))}" if texts.get("task") else "",
        space="\n".join(f"- {name}: {domain_text(domain)}" for name, domain in view.space.items()),
        rule=rule(view),
        example=compact({name: short(domain.middle(), domain) for name, domain in view.space.items()})[1:-1],
    )
    shown = "\n\n".join(part for part in (source(view), history(view)) if part)
    room = max(800, (len(system) + len(shown)) // 4)
    return Message("system", system), Message("user", f"{shown}\n\n{following(view, guide, room, ASK)}")


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
    rival = "the trial whose code it changes" if view.terms.frontier else "the best so far"
    match view.terms.rule:
        case "strict":
            return f"Each trial is run once. Strictly better than {rival} is kept; a tie is not."
        case "proven":
            return (
                f"Each trial is run once. One that looks better than {rival} is run again beside it, on fresh "
                f"seeds, and kept only if up to {view.terms.confirm} such pairs prove it; that ends early where they "
                "prove it soon, or cannot any more."
            )
        case "provisional":
            return (
                "Each trial is run once, and leads if it looks better than all before it. The leading few are proven "
                "now and then, on fresh seeds; gains within the noise do not survive that."
            )


def chosen(view: View) -> str:
    """That what is grown from is not the best, in words."""
    told = "That is not the best trial so far: it was picked to grow from, so that others are tried too."
    kept = " Whatever is better than this one is kept, and grown from in its turn."
    return told + (kept if view.terms.rule != "provisional" else "")


def source(view: View) -> str:
    """The program that is measured, fenced."""
    text = view.texts.get("source", "")
    return f"# The program that is run\n\n{fenced('source', cut(text))}" if text else ""


# ---- what grows ------------------------------------------------------------------------------------------------------


def history(view: View) -> str:
    """The trials of the window, oldest first, a line each; those before it in a sentence."""
    newest = next((trial.number for trial in view.earlier()), 0)
    first = BLOCK * max(0, newest // BLOCK - 1) + 1
    decided = sorted(view.settled(), key=lambda trial: trial.number)
    older = [trial for trial in decided if trial.number < first and trial.role != "baseline"]
    lines = [trial_text(view, trial) for trial in decided if trial.number >= first or trial.role == "baseline"]
    head = [summary(view, older)] if older else []
    changed = "what it changed" if view.terms.mutable else "parameters"
    title = f"# The trials so far\n\nnumber | {changed} | what came of it | why it was tried\n"
    return "\n".join([title, *head, *lines]) if lines else "# The trials so far\n\nNone."


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
    return plain(f"{trial.number} | {what(view, trial)} | {outcome(view, trial)} | {_reason(trial)}", LINE)


def what(view: View, trial: Trial) -> str:
    """What it changed: lines of code over its parent's, and its parameters."""
    values = trial.change.values
    if view.terms.mutable and trial.number:
        parent = trial.proposal.parent
        lines = ", ".join(view.changed_code(trial)) or "no change of code"
        told = f"{lines}, from trial {parent}" if parent is not None else lines
        return f"{told}, with {shortly(view, values)}" if values else told
    return shortly(view, values) if values else _defaults(view)


def _defaults(view: View) -> str:
    return "the program with its own defaults" if view.space else "the program as it is"


def _reason(trial: Trial) -> str:
    """Why it was proposed; and by whom, where that was no model."""
    by, why = trial.proposal.by, plain(trial.proposal.why, WHY)
    if by.startswith(tuple(f"{policy}:" for policy in ASKING)):
        return why
    return f"by {plain(by, 40)}" + (f": {why}" if why else "")


def outcome(view: View, trial: Trial) -> str:
    """What came of a trial: its value and verdict, or why it has none."""
    if trial.score is not None:
        others = "".join(f", {name} = {value:.6g}" for name, value in trial.score.others.items())
        told = told_test(trial.score.test) if trial.score.test is not None else WORDS.get(trial.verdict, trial.verdict)
        told += " (a tie with the best)" if trial.verdict == "discarded" and _ties(view, trial) else ""
        return f"{value_text(view, trial)}{others}: {'' if trial.number else 'the baseline, '}{told}"
    match trial.result:
        case Failed() | Refused() | Pruned():
            return f"{trial.verdict}: {quoted(trial.result.reason)}"
        case _:
            return trial.verdict


def _ties(view: View, trial: Trial) -> bool:
    best = view.leader
    return best is not None and best.score is not None and best is not trial and _value(trial) == best.score.value


def value_text(view: View, trial: Trial) -> str:
    """What a trial is worth, and over how many runs; of several, what the first gave, which others compare with."""
    assert trial.score is not None
    name, score = view.objective.metric, trial.score
    if not score.sd:
        return f"{name} = {score.value:.6g}" + ("" if view.deterministic else " in one run")
    first = trial.result.metrics.get(name) if isinstance(trial.result, Ran) else None
    told = "" if first is None else f"; its first run gave {first:.6g}"
    return f"{name} = {score.value:.6g} (mean of {score.runs}, sd {score.sd:.2g}{told})"


def told_test(test: Test) -> str:
    """What a test came to, with the numbers."""
    if test.problem:
        return f"looked better than trial {test.against}; a run of its proof failed with {quoted(test.problem)}"
    gain = sum(test.differences) / len(test.differences)
    found = f"{gain:+.3g} on average over {len(test.differences)} fresh pairs with trial {test.against}"
    if test.kept:
        return f"proven better, by {found}"
    return f"looked better, and may be, but that is not proven: {found}" if gain > 0 else f"only looked better: {found}"


def compact(values: Mapping[str, Scalar]) -> str:
    """Parameters as JSON."""
    return json.dumps(values, ensure_ascii=False)


def shortly(view: View, values: Mapping[str, Scalar]) -> str:
    """The same, with no more digits than are worth reading."""
    return compact({name: short(value, view.space.get(name)) for name, value in values.items()})


def short(value: Scalar, domain: Domain | None) -> Scalar:
    """`value` with few digits, where its domain has that; else as it is."""
    if not isinstance(value, float) or domain is None:
        return value
    near = float(f"{value:.{DIGITS}g}")
    return near if domain.accept(near) == near else value


# ---- what is new -----------------------------------------------------------------------------------------------------


def following(view: View, guide: str, room: int, ask: str, rival: Trial | None = None) -> str:
    """What is new, and the question, which `ask` ends. `room`: characters at most of what programs printed. `rival`:
    what has to be beaten, where that is not the best.
    """
    errors, logs = _errors(view, room * 2 // 3), _logs(view, room // 3)
    hints = [f"- {plain(hint.text, WHY)}" for hint in view.hints[-HINTS:]]
    others = (
        f"Other choices are being made at this moment, {view.beside} of them, and none sees the others. Avoid the "
        "obvious next step, which they may take; vary something else."
    )
    return fill(
        view.texts["next"],
        incumbent=_incumbent(view),
        under_way=_under_way(view),
        errors=errors,
        logs=logs,
        hints="\n".join(["# Hints from the owner", "", *hints]) if hints else "",
        noise=_noise(view, rival),
        beside=others if view.beside else "",
        guide=guide,
        ask=ask,
        number=str(view.index + 1),
        most=str(view.most),
    )


def _noise(view: View, rival: Trial | None) -> str:
    """How far one run may be off, where that is known."""
    width = view.evidence.width()
    if not width:
        return ""
    alike = (view.evidence.pairs() if view.evidence.paired() else view.evidence).width() or width
    return (
        f"Runs of the same parameters under other seeds scatter by {width:.2g} (standard deviation, by all re-runs so "
        "far). First runs all have one seed: compare first runs with first runs, and means with means."
        + _hurdle(view, rival)
        + f" A gain of less than about {provable(view.terms.confirm) * alike:.2g} is seldom proven, so look for larger "
        "ones."
    )


def _hurdle(view: View, rival: Trial | None) -> str:
    """What a first run has to beat, in words."""
    hurdles = view.hurdles(rival)
    if not hurdles or view.terms.several == "front":
        return ""
    highest = view.objective.direction == "max"
    least = min(hurdles) if highest else max(hurdles)
    holder = rival or (view.incumbent if view.terms.rule == "proven" else view.leader)
    assert holder is not None
    what = "the mean" if holder.score is not None and least == holder.score.value else "the first run"
    side = "above" if highest else "below"
    return f" A first run {side} {least:.6g}, {what} of trial {holder.number}, is put to the test."


def provable(confirm: int) -> float:
    """The step, in standard deviations of one run, that so many pairs prove more often than not, some tests on: 2 with
    12 pairs (docs/evaluation.md), and so much more with fewer as the root of their number says. Where common seeds take
    noise away, the deviation is what they leave.
    """
    return 2 * math.sqrt(12 / confirm)


def _incumbent(view: View) -> str:
    best, leader = view.incumbent, view.leader
    if best is None:
        return "Nothing was measured so far."
    text = f"The best so far is {_named(view, best)}"
    if leader is not None and leader is not best:
        text += f"\nWhat looks better, and is not proven: {_named(view, leader)}"
    return text


def _named(view: View, trial: Trial) -> str:
    value = value_text(view, trial) if trial.score else ""
    params = compact(trial.change.values) if trial.change.values else _defaults(view)
    if trial.change.files:
        return f"trial {trial.number}: {value}" + (f" with {params}" if trial.change.values else "")
    return f"trial {trial.number}: {value} with {params}"


def _under_way(view: View) -> str:
    shown = [
        f"- {what(view, view.trial(number))}: {plain(view.trial(number).proposal.why, WHY)}"
        if change.files
        else f"- {shortly(view, change.values)}"
        for number, change in view.pending()
        if change.values or change.files
    ][-PENDING:]
    return "\n".join(["# Under way, not to be repeated", "", *shown]) if shown else ""


def _errors(view: View, room: int) -> str:
    """The ends of what the last failed trials wrote to stderr."""
    failed = ((trial, trial.result) for trial in _newest(view))
    tails = [(trial, result.tail) for trial, result in failed if isinstance(result, Failed) and result.tail.strip()]
    return _printed("# What the last trials that failed wrote to stderr", tails[:ERRORS], room)


def _logs(view: View, room: int) -> str:
    """The ends of what the last measured trials printed, without their metrics: those that count are in the list, and
    others may be there for nobody to choose by.
    """
    ran = ((trial, trial.result) for trial in _newest(view))
    tails = [(trial, _prose(result.tail)) for trial, result in ran if isinstance(result, Ran)]
    return _printed("# What the last trials printed", [(t, tail) for t, tail in tails if tail][:LOGS], room)


def _prose(text: str) -> str:
    """`text` without the lines that are metrics."""
    return "\n".join(line for line in text.splitlines() if not _METRIC.match(line)).strip()


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
    return "\n".join([title, "", *blocks]) if blocks else ""


# ---- text that is not ours -------------------------------------------------------------------------------------------


def fenced(what: str, text: str) -> str:
    """`text` between two lines that cannot stand in it."""
    text = CONTROL.sub(" ", text)
    bars = "=" * (max((len(run) for run in re.findall(r"=+", text)), default=0) + 1)
    bars = max(bars, "====", key=len)
    return f"{bars} {what}, untrusted {bars}\n{text}\n{bars} end {bars}"


def quoted(text: str) -> str:
    """What may have been printed by a program, on one line and in quotes."""
    return json.dumps(plain(text, WHY), ensure_ascii=False)


def _value(trial: Trial) -> float:
    assert trial.score is not None
    return trial.score.value
