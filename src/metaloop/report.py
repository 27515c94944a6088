"""A study as one page of Markdown, to read in the morning and to send to others. Pure: from the study alone.

What was proposed is quoted, and what others wrote (reasons, errors, code) stands in fences or code spans, so that it is
read as text. Nothing is said that the ledger does not say.
"""

import json
from collections import Counter
from collections.abc import Iterator

from metaloop.edits.diffs import diff
from metaloop.records import (
    HeldOut,
    gates_set,
    held_out,
    noise_width,
    passed,
    proof,
    row,
    scored,
    totals,
    untried,
)
from metaloop.study import Study, Trial
from metaloop.values import Headline, Ran, duration

MOST = 400
"""Lines of a change that are shown."""


def report(study: Study) -> str:
    """The page. Ends with a line break."""
    return "\n".join(_lines(study)) + "\n"


def _lines(study: Study) -> Iterator[str]:
    objective, best = study.objective, study.incumbent
    goal = "higher" if objective.direction == "max" else "lower"
    yield f"# {_text(study.name)}"
    yield ""
    terms = study.the_terms
    yield f"`{_code(objective.metric)}`, {goal} is better; policy {terms.policy}, rule {terms.rule}."
    yield f"What a trial is worth is said {scored(study)}."
    yield ""
    yield from _result(study, best)
    yield ""
    yield from _work(study)
    if (held := held_out(study)) is not None:
        yield ""
        yield "## On held-out data"
        yield ""
        yield from _held(study, held)
    yield ""
    yield "## What was kept"
    yield ""
    yield from _kept(study)
    if best is not None and best.number != study.baseline:
        yield ""
        yield f"## Trial {best.number}, the best"
        yield ""
        yield from _best(study, best)
    yield ""
    if parts := list(_parts(study)):
        yield "## By part"
        yield ""
        yield from parts
        yield ""
    yield "## What was not"
    yield ""
    yield from _rest(study)


def _result(study: Study, best: Trial | None) -> Iterator[str]:
    """The answer, in a sentence, and how sure it is."""
    if best is None or best.score is None:
        yield "**Nothing could be measured.**"
        return
    name = f"`{_code(study.objective.metric)}`"
    if best.number == study.baseline:
        yield f"**Nothing that was tried is better than the baseline**, {name} = {best.score.value:.6g}."
        return
    yield f"**{name} = {best.score.value:.6g}, by trial {best.number}.**"
    yield _sure(study.headline) if study.headline else "By single runs: it was not proven on fresh seeds."


def _sure(headline: Headline) -> str:
    """What the last measurement says, which no selection went into."""
    if headline.problem:
        return f"At the end it could not be measured once more: `{_code(headline.problem)}`."
    if headline.gain is None:
        return "At the end it was not measured once more."
    return proof(headline)


def _work(study: Study) -> Iterator[str]:
    told = totals(study)
    closed = f"It ended: {_text(study.closed.why)}." if study.closed else "It has not ended."
    width = noise_width(study)
    noise = f" Runs of the same candidate scatter by {width:.3g} (sd)." if width else ""
    yield f"{told.trials} trials, {told.runs} runs, {study.at:.0f} s of wall clock. {closed}{noise}"
    for role, usage in sorted(study.costs.items()):
        money = "its price is not known" if usage.usd is None else f"${usage.usd:.4f}"
        tokens = (
            f"{usage.tokens_in} tokens in, {usage.tokens_out} out"
            if usage.tokens
            else f"it took {duration(usage.seconds)}"
        )
        yield f"Asked as {_text(role)}: {tokens}, {money}."
    yield from _gates(study)
    if study.fallbacks:
        yield f"**{study.fallbacks} of the proposals came from a stand-in.**"


def _held(study: Study, held: HeldOut) -> Iterator[str]:
    """Every trial that was scored there, beside what the search knew of it."""
    yield (
        "The search never saw these data. Each trial was run on them once, when the search was over, as its first run "
        "was; nothing was kept or crowned by it."
    )
    yield ""
    yield "| trial | | searched for | held out | gap (below 0: worse on held-out data) |"
    yield "|---|---|---|---|---|"
    for number in sorted({*held.values, *held.problems}):
        what = [name for name, of in (("baseline", held.baseline), ("best", held.best)) if of == number]
        score, value = study.trials[number].score, held.values.get(number)
        searched = "" if score is None else f"{score.value:.6g}"
        gap = "" if score is None or value is None else f"{study.objective.gain(value, score.value):+.4g}"
        shown = held.problems[number] if value is None else f"{value:.6g}"
        cells = (str(number), ", ".join(what) or "kept" * study.trials[number].kept, searched, shown, gap)
        yield f"| {' | '.join(_cell(cell) for cell in cells)} |"
    if held.gain is not None:
        yield ""
        yield f"Gain over the baseline: {held.searched:.6g} in the search, {held.gain:.6g} on held-out data."
    if held.said:
        yield ""
        yield f"**{_text(held.said)}**"


def _gates(study: Study) -> Iterator[str]:
    """What had to be passed and since when, what has been taken away, and what that says of the best."""
    anew, standing = [asked.gate for asked in study.regated], [gate for gate, _ in study.gates.values()]
    begun = [gate.name for gate in study.the_terms.gates if gate in standing and gate not in anew]
    if begun:
        yield f"What every candidate has to pass, from the beginning: {_text(', '.join(begun))}."
    for line in gates_set(study):
        yield f"The gate {_text(line)}."
    for asked in study.regated:
        if asked.gate in standing:
            continue
        what = f"set the gate {asked.gate.name}" if asked.gate else f"took the gate {asked.text} away"
        yield f"{_text(asked.by)} {_text(what)}{_text(f': {asked.why}' if asked.why else '')}."
    best = study.incumbent
    if best is not None and (names := passed(study, best)):
        yield f"Trial {best.number}, the best, passed {_text(', '.join(names))}."
    if best is not None and (names := untried(study, best)):
        yield f"**Trial {best.number}, the best, has not been tried with {_text(', '.join(names))}.**"


def _kept(study: Study) -> Iterator[str]:
    kept = [trial for trial in study.trials.values() if trial.kept and trial.number != study.baseline]
    if not kept:
        yield "Nothing."
        return
    grown = any(trial.change.files for trial in kept)
    yield f"| trial | {'from | ' * grown}value | evidence | what it changed | by | why it was tried |"
    yield f"|---|{'---|' * grown}---|---|---|---|---|"
    for trial in kept:
        r = row(study, trial)
        value = "" if r.value is None else f"{r.value:.6g}"
        origin = [str(r.parent) if r.parent is not None else ""] * grown
        cells = (
            str(trial.number),
            *origin,
            value,
            trial.why,
            " ".join(r.changed) or "nothing",
            r.by,
            trial.proposal.why,
        )
        yield f"| {' | '.join(_cell(cell) for cell in cells)} |"


FLAT = 0.02
"""A part that changed by less than this share of what it was is called flat."""

PARTS, POINTS = 40, 8
"""Parts that are shown at most, and trials of each curve."""


def _parts(study: Study) -> Iterator[str]:
    """Every part of what is measured (scores by task, other metrics), along the trials that held the crown; and which
    of them did not move while the total did.
    """
    crowns = [study.trials[number] for _, number in study.crowns if not study.trials[number].invalid]
    told = [(trial, _told(trial)) for trial in crowns if _told(trial)]
    if len(told) < 2:
        return
    (first, before), (last, after) = told[0], told[-1]
    names = [name for name in before if name in after and name != study.objective.metric][:PARTS]
    if not names:
        return
    shown = told if len(told) <= POINTS else [*told[: POINTS // 2], *told[-POINTS // 2 :]]
    yield f"| part | {' | '.join(f'trial {trial.number}' for trial, _ in shown)} | change |"
    yield f"|---|{'---|' * len(shown)}---|"
    for name in names:
        values = (f"{parts[name]:.4g}" if name in parts else "" for _, parts in shown)
        yield f"| {_cell(name)} | {' | '.join(values)} | {after[name] - before[name]:+.4g} |"
    flat = [name for name in names if abs(after[name] - before[name]) <= FLAT * abs(before[name])]
    if flat and first.score and last.score and study.objective.better(last.score.value, first.score.value):
        name = f"`{_code(study.objective.metric)}`"
        yield ""
        yield (
            f"**{name} got better, from {first.score.value:.6g} to {last.score.value:.6g}, while these parts stayed "
            f"where they were: {_text(', '.join(flat))}.** What is gained may not be what is wanted."
        )


def _told(trial: Trial) -> dict[str, float]:
    """The parts of a trial's first run."""
    result = trial.result
    if not isinstance(result, Ran):
        return {}
    return {**(result.tasks or {}), **result.metrics} if result.tasks else dict(result.metrics)


def _best(study: Study, best: Trial) -> Iterator[str]:
    if best.change.values:
        yield from _fenced("json", json.dumps(best.change.values, ensure_ascii=False))
    if not best.change.files:
        return
    base = {path: study.contents[name] for path, name in study.base.items()}
    lines = diff(base, base | study.overlay(best.change)).splitlines()
    yield "What its code has otherwise than the code that the study began with, with all that it grew from:"
    yield ""
    yield from _fenced("diff", "\n".join(lines[:MOST]))
    if len(lines) > MOST:
        yield f"... and {len(lines) - MOST} lines more: `metaloop diff {best.number}`."
    yield "To have it: `metaloop apply --branch NAME`, `--patch FILE` or `--here`. To check it: `metaloop audit`."


def _rest(study: Study) -> Iterator[str]:
    rest = [trial for trial in study.trials.values() if not trial.kept and trial.role != "baseline"]
    if not rest:
        yield "Nothing: all that was tried was kept."
        return
    counts = Counter(trial.verdict for trial in rest)
    yield ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common()) + "."
    reasons = Counter(row(study, trial).reason.partition("\n")[0][:160] for trial in rest if trial.failed)
    if reasons:
        yield ""
        yield "| failures | |"
        yield "|---|---|"
        yield from (f"| {count} | {_cell(reason)} |" for reason, count in reasons.most_common(8))


# ---- text that is not ours -------------------------------------------------------------------------------------------


def _text(text: str) -> str:
    """Words of others as words: nothing in them is markup."""
    line = " ".join(text.split())
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#!" else letter for letter in line if letter.isprintable())


def _code(text: str) -> str:
    """For a code span."""
    return " ".join(text.replace("`", "'").split())


def _cell(text: str) -> str:
    return _text(text if len(text) <= 300 else f"{text[:297]}...")


def _fenced(kind: str, text: str) -> Iterator[str]:
    """A block that nothing in it can end."""
    bars = "```"
    while bars in text:
        bars += "`"
    yield f"{bars}{kind}"
    yield text
    yield bars
