"""What a person reads: one line a trial, a card at the end; and what a program reads: one JSON document.

Text that a trial wrote is cleaned before a terminal sees it. stdout carries the answer, stderr the progress.
"""

import contextlib
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from metaloop import passes
from metaloop.evaluators.judge import digits, told, told_headline
from metaloop.records import Row, held_out, most_failed_at, noise_width, proof, row, short, status
from metaloop.study import Study, Trial
from metaloop.values import Failed, Usage, duration, plain

_BIDI = {chr(code): None for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x061C)}
_CONTROLS = {chr(code): None for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (0x09, 0x0A)}
_UNSAFE = str.maketrans(_BIDI | _CONTROLS)

COLOURS = {
    "crowned": "bold green",
    "invalid": "red",
    "kept": "green",
    "provisional": "cyan",
    "failed": "red",
    "refused": "red",
    "stopped": "yellow",
}


def clean(text: str) -> str:
    """`text` without control, escape and direction characters: what is left cannot move a cursor."""
    return text.translate(_UNSAFE)


def say(text: str = "", style: str = "") -> None:
    """A line on stderr: progress, and what went wrong. One that cannot be written ends no study."""
    with contextlib.suppress(OSError):
        _print(sys.stderr, text, style)


def overwrite(text: str) -> None:
    """The last line of the terminal, anew. Nothing ends because it cannot be written."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"\r\x1b[2K{text}")
        sys.stderr.flush()


def tell(text: str = "", style: str = "") -> None:
    """A line on stdout: the answer."""
    _print(sys.stdout, text, style)


def tell_json(value: object) -> None:
    """The one JSON document of `--json`. Strict: a number that JSON has no word for is a bug of ours."""
    tell(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def write_whole(path: Path, text: str, newline: str | None = None) -> None:
    """A file anew: whole or not at all, for whoever reads at this moment."""
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_text(text, encoding="utf-8", newline=newline)
    draft.replace(path)


_SGR = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def _print(file: TextIO, text: str, style: str) -> None:
    if style and coloured(file.isatty()):
        text = f"\x1b[{';'.join(_SGR[word] for word in style.split())}m{text}\x1b[0m"
    print(text, file=file, flush=True)


def coloured(terminal: bool) -> bool:
    """Colours only where a person looks, and has not said no (NO_COLOR)."""
    return terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


# ---- a trial ---------------------------------------------------------------------------------------------------------


def trial_line(study: Study, trial: Trial) -> str:
    """Number, verdict, value, change against the incumbent, seconds, where it comes from, and what was changed (or why
    it failed).
    """
    r = row(study, trial)
    plain = "its own command" if study.the_terms.baseline.kind == "cmd" else "as the script is"
    changes = " ".join(r.changed) or "no change"
    if r.role == "baseline" and not r.params:
        changes = plain
    what = f"{trial.why}; {changes}" if _odd(trial, r) else changes
    what = _first(f"{r.failure}: {r.reason}" if r.failure else r.reason) if r.value is None and r.reason else what
    name = "baseline" if r.role == "baseline" and r.value is not None else outcome(trial)
    cells = f"{r.trial:>4}  {name:<11}  {_value(study, r):<9}  {against(r):<18}  {r.seconds:>6.1f} s"
    return "  ".join([cells, *_origin(study, r), what])


PATCH = 20
"""Characters of a patch's name that a line has."""


def _origin(study: Study, r: Row) -> list[str]:
    """Columns: what a trial grew from, where that is not always the best; which patch it is, where there are any."""
    terms, columns = study.the_terms, list[str]()
    if terms.frontier:
        columns.append("" if r.parent is None else f"from {r.parent}")
    if terms.mutable and "patches" in {terms.policy, *terms.arms}:
        name = " ".join(r.by.partition("patches: ")[2].split())  # a file's name may have line ends
        columns.append(name if len(name) <= PATCH else f"{name[: PATCH - 1]}\u2026")
    widths = (9,) * bool(terms.frontier) + (PATCH,)
    return [f"{column:<{width}}" for column, width in zip(columns, widths, strict=False)]


def _first(reason: str, most: int = 160) -> str:
    """The first line of a reason, and not all of a long one: `show` has it."""
    line = clean(reason.partition("\n")[0])
    return f"{line[: most - 4]} ..." if len(line) > most or "\n" in reason.strip() else line


def _odd(trial: Trial, r: Row) -> bool:
    """Whether the verdict does not follow from what the line shows: then the line says why."""
    if not r.comparable:
        return True
    test = trial.score.test if trial.score else None
    return bool(test.problem) if test else trial.verdict == "discarded" and r.gain is not None and r.gain > 0


def outcome(trial: Trial) -> str:
    """The verdict in one word; `unproven` for what looked better and was not; where there is none yet, its status."""
    if trial.verdict == "open":
        return status(trial)
    return "unproven" if trial.score and trial.score.test and not trial.kept else trial.verdict


def _value(study: Study, r: Row) -> str:
    if r.value is None:
        return "-"
    holder = None if r.against is None else study.trials[r.against].score
    return digits(r.value, holder.value if holder else r.value)[0]


def against(r: Row) -> str:
    """The change against the incumbent: in standard deviations of the baseline if they are known, else as it is."""
    if r.gain is None:
        return "" if r.sd is None else f"+- {r.sd:.2g} ({r.runs} runs)" if r.sd else f"{r.runs} equal runs"
    if not r.gain:
        return "equal"
    size = plain(abs(r.gain), 3) if not r.noise else f"{abs(r.noise):.1f} sd" if abs(r.noise) < 1000 else "over 1000 sd"
    return f"{'better' if r.gain > 0 else 'worse'} by {size}"


def size(count: int) -> str:
    """A number of bytes, in the unit that fits."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} byte{'s' * (count != 1)}"


def fitted(text: str) -> str:
    """`text` on one line of the terminal, if there is one."""
    columns = shutil.get_terminal_size().columns
    return text if not sys.stderr.isatty() or len(text) < columns else text[: columns - 2] + "\u2026"


# ---- a study ---------------------------------------------------------------------------------------------------------


def card(study: Study, folder: Path, again: str) -> list[str]:
    """How it ended: best against baseline, trials by status, why it stopped, where everything is, what to type next."""
    place = shown(folder)
    if study.the_terms.tournament is not None:
        return _labelled(list(_document(study, folder, again)))
    lines = [("best", line) for line in _best(study)]
    lines += [("held out", line) for line in held_lines(study)]
    lines.append(("trials", counted(study)))
    lines.append(("ended", f"{study.closed.why if study.closed else 'interrupted'}; {_spent(study)}"))
    lines += [("gate", line) for line in _closed_gate(study)]
    lines.append(("kept in", f"{place}/ (ledger.sqlite, trials/, versions/)"))
    if study.provisional:
        lines.append(("mind", f"not proven, and not reported as best: {waiting(study)}"))
    lines += [("asked", line) for line in asked(study)]
    if study.fallbacks:
        lines.append(("mind", f"proposals by a stand-in: {study.fallbacks}; see metaloop status {place}"))
    lines += [("next", line) for line in _next(study, place, again)]
    return _labelled(lines)


def document_at(study: Study, folder: Path) -> Path:
    """Where the document of a tournament is kept as it is now."""
    rules = study.the_terms.tournament
    assert rules is not None
    return folder / f"best{Path(rules.document).suffix or '.txt'}"


def _comparison(study: Study, folder: Path, again: str) -> Iterator[tuple[str, str]]:
    """How a comparison ended: who is best, what each came to, where it is, what to type next."""
    from metaloop import comparison  # of documents alone

    place, found = shown(folder), comparison.compared(study)
    yield "best", comparison.verdict(found)
    yield "ended", f"{study.closed.why if study.closed else 'interrupted'}; {_spent(study)}"
    rows = comparison.table(found) if found.ballots else []
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        name, *others = (cell.rjust(width) for cell, width in zip(cells, wide, strict=True))
        yield "compared", "  ".join([name.strip().ljust(wide[0]), *others])
    for note in found.notes:
        yield "mind", note
    for line in asked(study):
        yield "asked", line
    yield "kept in", f"{shown(document_at(study, folder))}, the best text; {place}/report.md tells each ballot"
    if study.incumbent is not None and study.incumbent.number != study.baseline:
        yield "next", f"metaloop diff {study.incumbent.number} {place}   what is not as in the first version"
    yield "next", f"metaloop audit {place}   derive every decision again"
    if study.closed is None and again:
        yield "next", f"metaloop {again}   go on"


def _document(study: Study, folder: Path, again: str) -> Iterator[tuple[str, str]]:
    """How a tournament ended: what the document is, what that would be by chance, where it is, what to type next."""
    place, rules = shown(folder), study.the_terms.tournament
    if rules is not None and rules.compare:
        yield from _comparison(study, folder, again)
        return
    yield "document", passes.where(study)
    yield "ended", f"{study.closed.why if study.closed else 'interrupted'}; {_spent(study)}"
    if study.passes:
        yield "chance", passes.chance(study)
    if said := passes.final(study):
        yield "final", said.replace("**", "")
    if drift := passes.drifts(study):
        yield "mind", drift
    for line in asked(study):
        yield "asked", line
    yield "kept in", f"{shown(document_at(study, folder))}; {place}/report.md tells each pass and ballot"
    if study.incumbent is not None and study.incumbent.number != study.baseline:
        yield "next", f"metaloop diff {study.incumbent.number} {place}   what is not as in the first version"
        yield "next", f"metaloop apply --here {place}   write it over the document"
    yield "next", f"metaloop audit {place}   derive every pass again"
    if study.closed is None and again:
        yield "next", f"metaloop {again}   go on"


def shown(folder: Path) -> str:
    """A folder as the user would type it."""
    try:
        return str(folder.absolute().relative_to(Path.cwd()))
    except ValueError:
        return str(folder)


def _labelled(lines: Sequence[tuple[str, str]]) -> list[str]:
    out, before = [], ""
    for label, text in lines:
        out.append(f"  {label if label != before else '':<9} {text}")
        before = label
    return out


def _best(study: Study) -> list[str]:
    best = study.incumbent
    if best is None or best.score is None:
        return ["nothing could be measured"]
    name = study.objective.metric
    if best.number == study.baseline:
        return [f"{name} = {told(best.score)}: the baseline; nothing that was tried is better"]
    lines = [f"{name} = {told(best.score)} (trial {best.number})", *_evidence(study, best)]
    if study.front:
        lines.append(f"a front of {len(study.front)}: trials {', '.join(map(str, study.front))}; see metaloop best")
    lines += [f"{name} = {value:.6g}" for name, value in best.score.others.items()]
    lines.append(" ".join(f"{key}={short(value)}" for key, value in best.change.values.items()))
    return [line for line in lines if line]


def _closed_gate(study: Study) -> list[str]:
    """Where the baseline did not pass a gate: its command, and the end of what it wrote."""
    if study.closed is None or study.closed.reason != "baseline_failed":
        return []
    trial = study.trials[max(study.trials)]
    command = next((gate.command for gate in study.gated.get(trial.number, ()) if gate.name == trial.gate), None)
    if command is None or not isinstance(trial.result, Failed):
        return []
    written = [line for line in trial.result.tail.splitlines() if line.strip()]
    return [f"{trial.gate}: {shlex.join(command)}", *(f"| {clean(line)}"[:200] for line in written[-5:])]


def _evidence(study: Study, best: Trial) -> list[str]:
    """How sure it is that the best is better than the baseline."""
    headline, baseline = study.headline, study.trials[study.baseline] if study.baseline is not None else None
    if headline is not None and headline.best == best.number:
        said = proof(headline, brief=True)
        return [said[:1].lower() + said[1:].rstrip(".") if said else told_headline(headline)]
    if baseline is None or baseline.score is None:
        return ["a single run of it, and nothing that it was compared with"]
    gain = study.objective.gain(best.score.value, baseline.score.value) if best.score else 0.0
    lines = [f"baseline {told(baseline.score)}: better by {plain(gain)}"]
    if best.score is not None and best.score.test is None and noise_width(study) != 0:
        lines.append("by a single run: it is not proven that this holds on other seeds")
    return lines


def held_lines(study: Study) -> list[str]:
    """What was scored on held-out data: baseline and best, what failed, and whether the gain holds."""
    held = held_out(study)
    if held is None:
        return []
    ends = {"the baseline": held.baseline, "the best": held.best}
    values = [f"{held.values[n]:.6g} ({name})" for name, n in ends.items() if n is not None and n in held.values]
    lines = [f"{study.objective.metric} = {', '.join(values)}"] if values else []
    if held.gain is not None:
        how = "better" if held.gain >= 0 else "worse"
        lines[0] += f": {how} by {abs(held.gain):.3g}; in the search better by {held.searched:.3g}"
    failed = [f"trial {number} could not be scored: {_first(why)}" for number, why in held.problems.items()]
    return [*lines, *failed, *([held.said] if held.said else [])]


def counted(study: Study) -> str:
    """`24: 5 crowned, 18 discarded, 1 failed`, and the baseline apart; what is open is named by its status."""
    told: dict[str, int] = {}
    for trial in study.trials.values():
        if trial.role != "baseline":
            word = outcome(trial)
            told[word] = told.get(word, 0) + 1
    whole = f"{sum(told.values())}: " + ", ".join(f"{count} {word}" for word, count in told.items())
    return whole if told else "none"


def waiting(study: Study) -> str:
    """The newest of the trials that look better and wait for their proof."""
    count, last = len(study.provisional), study.provisional[-3:]
    others = f"{count - len(last)} more and " if count > len(last) else ""
    noun, verb = ("trial", "looks") if count == 1 else ("trials", "look")
    return f"{others}{noun} {', '.join(map(str, last))} {verb} better"


def proving(study: Study) -> list[str]:
    """A line for everything that is run again at the moment, to know it better."""
    lines = []
    for round in study.open.values():
        if round.held is not None:
            lines.append(f"held out: trial {round.held} is run again, to be scored on held-out data")
        if round.judged_at is None or round.role in ("baseline", "holdout"):
            continue
        again = [(trial, run) for trial, run in round.waits if run]
        done = sum(study.run(trial, run).settled for trial, run in again)
        who = " and ".join(str(number) for number in sorted({trial for trial, _ in again}))
        lines.append(f"proof: trials {who} are run again, side by side: {done} of {len(again)} runs so far")
    return lines


def asked(study: Study) -> list[str]:
    """What was spent on asking models and agents, a line a role; what is not known of a price is said."""
    return [f"{role}: {told_usage(usage)}" for role, usage in sorted(study.costs.items())]


def told_usage(usage: Usage) -> str:
    """Tokens and money; the time it took, where nobody counted tokens."""
    if not usage.tokens:
        return f"took {duration(usage.seconds)} in all" + ("" if usage.usd is None else f", ${usage.usd:.4f}")
    money = "price not known" if usage.usd is None else f"${usage.usd:.4f}"
    return f"{usage.tokens_in} tokens in, {usage.tokens_out} out, {money}"


def _spent(study: Study) -> str:
    return f"{study.at:.0f} s of wall clock"


def program() -> str:
    """What to type to get this program: its name if that finds it, else where it is."""
    found, this = shutil.which("metaloop"), Path(sys.argv[0])
    if this.name != "metaloop" or (found and Path(found).resolve() == this.resolve()):
        return "metaloop"
    return shown(this)


def _next(study: Study, place: str, again: str) -> list[str]:
    """Commands that can be typed now, each with what it is for."""
    lines = []
    if study.incumbent is not None:
        if study.the_terms.space:
            lines.append((f"best {place}", "the parameters"))
        lines.append((f"show {study.incumbent.number} {place}", "all that is known of that trial"))
        if study.incumbent.change.files:
            lines.append((f"diff {study.incumbent.number} {place}", "what it changed in the code"))
        if study.incumbent.change.files:
            lines.append((f"apply {place} --patch best.patch", "its code, as a patch; or --branch NAME, or --here"))
    lines.append((f"audit {place}", "derive every proposal and decision again"))
    if again:
        lines += _go_on(study, place, again)
    width, this = max(len(command) for command, _ in lines), program()
    return [f"{this} {command:<{width}}  {about}" for command, about in lines]


def _go_on(study: Study, place: str, again: str) -> list[tuple[str, str]]:
    """What makes this study go on, if a flag can, or without a gate."""
    match study.closed.reason if study.closed else "interrupted":
        case "interrupted" | "stopped" | "prepare_failed" | "baseline_failed" | "faulted":
            return [(again, "go on")]
        case "max_iterations":
            return [(f"{again} --max-iterations {2 * study.bounds.max_iterations}", "go on")]
        case "wall_clock":
            return [(f"{again} --max-wall-time-s {2 * study.bounds.max_wall_time_s:g}", "go on")]
        case "cost" if study.bounds.max_cost_usd is not None:
            return [(f"{again} --max-cost-usd {2 * study.bounds.max_cost_usd:g}", "go on")]
        case "proposer_failed":
            return [(again, "go on, once it answers again")]
        case "no_improvement":
            return [(f"{again} --no-improve-limit {2 * study.bounds.no_improve_limit}", "go on")]
        case "failure_rate" if name := most_failed_at(study):
            return [(f"steer {place} ungate {name}", "if that gate is wrong"), (again, "then, to go on")]
        case _:
            return []


def params_text(values: Mapping[str, object]) -> str:
    """Parameters as JSON, one line."""
    return json.dumps(dict(values), ensure_ascii=False)
