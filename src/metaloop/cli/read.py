"""The verbs that only read: status, watch, show, best, export, audit, replay. None takes the lease."""

import contextlib
import json as jsonlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from cyclopts import Parameter

from metaloop import passes
from metaloop.adapters.ledger import integrity, read_ledger
from metaloop.cli.find import Named, Opened, folder, read
from metaloop.cli.output import (
    COLOURS,
    asked,
    card,
    clean,
    counted,
    held_lines,
    params_text,
    proving,
    say,
    shown,
    tell,
    tell_json,
    trial_line,
    waiting,
    write_whole,
)
from metaloop.cli.underway import in_a_line, next_try, works
from metaloop.errors import Damaged, UsageError
from metaloop.evaluators.judge import told_held
from metaloop.evaluators.metric import near
from metaloop.events import Decided, Entry, Finished, Proposed, Refused, RoundOpened, Started
from metaloop.records import Row, gates, gates_set, held_out, passed, row, scored, totals, unmade, untried
from metaloop.study import HELD_OUT, PREPARE, Run, Study, Trial, evolve, fold
from metaloop.values import Params, Ran, digest, duration, plain

if TYPE_CHECKING:
    from metaloop.rerun import Again

Json = Annotated[bool, Parameter(name="--json", negative="", help="One JSON document on stdout, nothing else there.")]
Format = Literal["tsv", "csv", "jsonl", "autoresearch", "autoresearch-rl", "canonical", "autoreason"]


def status(
    study: Named = None,
    /,
    *,
    last: Annotated[int, Parameter(help="How many trials to show.")] = 10,
    json: Json = False,
) -> int:
    """Where a study stands, and its last trials."""
    opened = read(study)
    if json:
        tell_json(_state(opened, last))
        return 0
    for line in _status_lines(opened, last):
        tell(clean(line))
    return 0


def watch(
    study: Named = None,
    /,
    *,
    every: Annotated[float, Parameter(help="Seconds between looks.")] = 1.0,
    last: int = 15,
) -> int:
    """The same as status, live, until the study ends or you press Ctrl-C. Without a terminal: a line a trial."""
    where = folder(study)
    follow = _screen if sys.stdout.isatty() else _lines
    with contextlib.suppress(KeyboardInterrupt):
        follow(where, max(0.1, every), last)
    return 0


def show(
    trial: Annotated[int, Parameter(help="Its number; 0 is the baseline.")],
    study: Named = None,
    /,
    *,
    json: Json = False,
) -> int:
    """All that is known of one trial: proposal, runs, metrics, decision, and what it wrote."""
    opened = read(study)
    if trial not in opened.study.trials:
        there = opened.study.trials
        raise UsageError(f"expected a trial between {min(there, default=0)} and {max(there, default=0)}, found {trial}")
    told = opened.study.trials[trial]
    if json:
        tell_json(
            {
                **_row(row(opened.study, told)),
                "gates": {"passed": passed(opened.study, told), "untried": untried(opened.study, told)},
                "results": [_run(run) for run in map(_ran, told.runs.values())],
                "held_out": _run(_ran(opened.study.held[trial])) if trial in opened.study.held else None,
                "files": _files(opened, trial),
            }
        )
        return 0
    for line in _trial_lines(opened, told):
        tell(clean(line))
    return 0


def best(
    study: Named = None,
    /,
    *,
    json: Json = False,
) -> int:
    """The parameters of the incumbent, as JSON, to paste or to pipe."""
    opened = read(study)
    incumbent = opened.study.incumbent
    if incumbent is None:
        say("metaloop: nothing could be measured yet", "yellow")
        if json:
            tell_json({"best": None})
        return 4
    front = [row(opened.study, opened.study.trials[number]) for number in opened.study.front]
    if json:
        tell_json({"best": _row(row(opened.study, incumbent)), "front": [_row(r) for r in front]})
    else:
        for r in front:
            values = " ".join(f"{name}={value:g}" for name, value in r.metrics.items())
            say(f"on the front: trial {r.trial}: {clean(values)} {clean(params_text(r.params))}")
        say(f"trial {incumbent.number}: {clean(incumbent.why)}")
        tell(clean(params_text(incumbent.change.values)))
        if incumbent.change.files:
            say(f"its code: metaloop diff {incumbent.number}, metaloop apply")
    return 0


def export(
    study: Named = None,
    /,
    *,
    format: Annotated[
        Format, Parameter(help="autoresearch has five columns, autoresearch-rl fourteen; autoreason is a folder.")
    ] = "tsv",
    out: Annotated[Path | None, Parameter(help="A file, instead of stdout; for autoreason a new folder.")] = None,
) -> int:
    """The trials, as tables for other tools; or a tournament as the folder in which runs of it were published."""
    from metaloop.exports import TABLES

    if out is not None and not out.parent.is_dir():
        raise UsageError(f"--out {out}: expected the folder {out.parent}, found none; type: mkdir -p {out.parent}")
    if format == "autoreason":
        return _published(folder(study), out)
    lines = [_canonical(folder(study))] if format == "canonical" else TABLES[format](read(study).study)
    if out is None:
        for line in lines:
            sys.stdout.write(line + "\n")
        return 0
    write_whole(out, "".join(f"{line}\n" for line in lines))
    say(f"wrote {out}")
    return 0


def _published(where: Path, out: Path | None) -> int:
    """A tournament as a folder of its own: whole or not at all. One that is there is not written into."""
    from metaloop.published import files  # of documents alone

    if out is None:
        raise UsageError("--format autoreason: expected a new folder for its files; add --out DIR")
    if out.is_symlink() or out.exists():
        raise UsageError(f"--out: expected a new folder, found something at {out}; nothing is written over")
    study, said = passes.heard(read_ledger(where))
    if study.terms is None or study.the_terms.tournament is None or passes.compares(study):
        raise UsageError(f"--format autoreason: expected a tournament, found another kind of study in {where}")
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as drafts:
        draft = Path(drafts) / out.name
        for name, text in files(study, said):
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).write_text(text, encoding="utf-8")
        draft.rename(out)
    say(f"wrote {out}")
    return 0


def report(
    study: Named = None,
    /,
    *,
    out: Annotated[Path | None, Parameter(help="A file to write; without, it is printed.")] = None,
) -> int:
    """A study as one page of Markdown: what was found, how sure that is, what was tried, and what it cost."""
    from metaloop.report import report as page

    told = read(study).study
    text = page(told) if told.the_terms.tournament is None else passes.page(told)
    if out is None:
        sys.stdout.write(text)
    else:
        out.write_text(text, encoding="utf-8")
    return 0


def audit(
    study: Named = None,
    /,
    *,
    rerun: Annotated[bool, Parameter(negative="", help="Also run the best once more, from scratch.")] = False,
    trial: Annotated[int | None, Parameter(help="With --rerun: another trial that was kept.")] = None,
    json: Json = False,
) -> int:
    """Derive every proposal, score and decision again from what stood before it, and check every file that was read.

    With --rerun a trial that is not what it was is recorded as invalid, and leaves the tree with all that grew from it.
    Exit code 0: all of it holds; 6: something does not.
    """
    if trial is not None and not rerun:
        raise UsageError("--trial: expected --rerun with it: metaloop audit --rerun --trial 7")
    from metaloop.audit import audit as check
    from metaloop.config import thought_of

    where = folder(study)
    entries = list(read_ledger(where))
    findings = [msgspec.to_builtins(finding) for finding in check(entries, thought_of)]
    findings += [{"place": place, "what": what} for place, what in _artefacts(where, entries)]
    if (sound := integrity(where)) != "ok":
        findings.append({"place": 0, "what": f"SQLite says: {sound}"})
    ran = _rerun(where, trial) if rerun and not findings else None
    if json:
        told_again = {} if ran is None else {"rerun": msgspec.to_builtins(ran)}
        tell_json({"study": str(where), "entries": len(entries), "findings": findings, **told_again})
        return 6 if findings or (ran is not None and ran.why) else 0
    for finding in findings:
        say(f"entry {finding['place']}: {clean(str(finding['what']))}", "red")
    told = fold(entries)
    if findings:
        say(f"{shown(where)}: {len(findings)} of {len(entries)} entries do not hold", "red")
        return 6
    what = f"{len(told.trials)} trials, every proposal, score and decision"
    tell(f"{shown(where)}: all {len(entries)} entries hold: {what}")
    if ran is None:
        return 0
    for old, new in zip(ran.before, ran.again, strict=True):
        tell(clean(f"  trial {ran.trial} again: {_number(new)}, and was {_number(old)}"))
    if ran.why:
        say(clean(f"trial {ran.trial} is not what it was: {ran.why}"), "red")
        say(
            f"recorded as invalid: {', '.join(map(str, ran.invalidated))}; metaloop status shows what is best now",
            "red",
        )
    return 6 if ran.why else 0


def _rerun(where: Path, trial: int | None) -> "Again":
    from metaloop.cli.steer import me
    from metaloop.rerun import rerun

    return rerun(where, trial, me(), lambda line: say(clean(line)))


def _number(value: float | None) -> str:
    return "no number" if value is None else repr(value)


def replay(
    study: Named = None,
    /,
    *,
    upto: Annotated[int | None, Parameter(help="Stop at this place in the ledger.")] = None,
) -> int:
    """Tell a study from its ledger, trial by trial, as it was decided."""
    where = folder(study)
    told, rounds = Study(), dict[int, list[int]]()
    for entry in read_ledger(where):
        if upto is not None and entry.place > upto:
            break
        for line, style in _told(told, entry, rounds):
            tell(clean(line), style)
    if told.terms is not None:
        for line in card(told, where, ""):
            tell(clean(line))
    return 0


# ---- status ----------------------------------------------------------------------------------------------------------


def _status_lines(opened: Opened, last: int) -> Iterator[str]:
    study = opened.study
    rules = study.the_terms.tournament
    goal = f"{study.objective.direction} {study.objective.metric}, {study.the_terms.policy}"
    yield f"{study.name}: {goal if rules is None else rules.document}; {_doing(opened)}"
    clock = f"{duration(opened.at)} of {duration(study.bounds.max_wall_time_s)}"
    if rules is None:
        yield f"  {_done(study)}; best {_best(study)}; wall clock {clock}"
    else:
        most = study.bounds.max_iterations
        what = "comparisons" if rules.compare else "passes"
        yield f"  {len(study.passes)} of {most} {what}; the document is {passes.where(study)}; wall clock {clock}"
    if found := [*works(study, opened.since, opened.now)]:
        yield f"  {'under way' if opened.alive else 'left at work'}: {in_a_line(found)}"
    if study.fallbacks:
        yield f"  {study.fallbacks} of {len(study.trials)} proposals came from a stand-in"
    if study.provisional:
        yield f"  not proven so far: {waiting(study)}"
    for line in (*proving(study), *asked(study)):
        yield f"  {line}"
    for line in held_lines(study):
        yield f"  held out: {line}"
    for role, why in study.degraded.items():
        yield f"  {role}: degraded: {why}"
    if study.faults and study.closed is None:
        rounds = "round" if study.faults == 1 else f"{study.faults} rounds running"
        left = next_try(study, opened.at)
        soon = f"; next try in {duration(left)}" if left is not None and opened.alive else ""
        yield f"  {rounds} could not be thought through; the last: {study.fault}{soon}"
    for text in study.alerts[-3:]:
        yield f"  alert: {text}"
    yield f"  scored {scored(study)}"
    if study.gates:
        yield f"  gates: {', '.join(gates(study))}"
    for line in gates_set(study):
        yield f"  gate {line}"
    if study.incumbent is not None and (names := untried(study, study.incumbent)):
        yield f"  mind: the best, trial {study.incumbent.number}, has not been tried with {', '.join(names)}"
    for hint in study.hints[-3:]:
        yield f"  hint by {hint.by}: {' '.join(hint.text.split())}"
    if rules is not None:
        yield from (passes.line(study, at) for at in range(len(study.passes))[-last:] if last)
        return
    for number in sorted(study.trials)[-last:] if last else []:
        yield trial_line(study, study.trials[number])


def _doing(opened: Opened) -> str:
    if opened.study.closed is not None:
        return f"ended: {opened.study.closed.why}"
    if opened.alive is not None:
        return f"running (process {opened.alive})" + (", paused" if opened.study.paused else "")
    return "interrupted: run it again to go on"


def _done(study: Study) -> str:
    """`2 of 12 trials: 1 crowned, 1 failed`: those that count, and what became of all."""
    what = counted(study).partition(": ")[2]
    return f"{study.tally.settled} of {study.bounds.max_iterations} trials" + (f": {what}" if what else "")


def _best(study: Study) -> str:
    incumbent = study.incumbent
    if incumbent is None or incumbent.score is None:
        return "none yet"
    return f"{incumbent.score.value:.6g} (trial {incumbent.number})"


def _state(opened: Opened, last: int) -> dict[str, object]:
    study = opened.study
    numbers = sorted(study.trials)[-last:] if last else []
    return {
        "study": study.name,
        "folder": str(opened.folder.absolute()),
        "running": opened.alive,
        "under_way": [msgspec.to_builtins(work) for work in works(study, opened.since, opened.now)],
        "closed": msgspec.to_builtins(study.closed) if study.closed else None,
        "trials": msgspec.to_builtins(totals(study)),
        "iterations": study.tally.settled,
        "best": None if study.incumbent is None else _row(row(study, study.incumbent)),
        "fallbacks": study.fallbacks,
        "degraded": study.degraded,
        "faults": {"running": study.faults, "last": study.fault, "next_try_s": next_try(study, opened.at)},
        "asked": {role: msgspec.to_builtins(usage) for role, usage in study.costs.items()},
        "alerts": study.alerts,
        "gates": list(gates(study)),
        "holdout": msgspec.to_builtins(held_out(study)),
        "untried": [] if study.incumbent is None else untried(study, study.incumbent),
        "hints": [{"by": hint.by, "text": hint.text, "why": hint.why} for hint in study.hints],
        "wall_clock_s": opened.at,
        "max_wall_time_s": study.bounds.max_wall_time_s,
        "max_iterations": study.bounds.max_iterations,
        "last": [_row(row(study, study.trials[number])) for number in numbers],
        "passes": msgspec.to_builtins(passes.told(study)),
    }


def _row(r: Row) -> dict[str, object]:
    told: dict[str, object] = msgspec.to_builtins(r)
    return told


def _screen(where: Path, every: float, last: int) -> None:
    while True:
        opened = read(str(where))
        lines = [clean(line) for line in _status_lines(opened, last)]
        width = os.get_terminal_size().columns
        sys.stdout.write("\x1b[2J\x1b[H" + "\n".join(line[:width] for line in lines) + "\n")
        sys.stdout.flush()
        if opened.study.closed is not None:
            return
        time.sleep(every)


def _lines(where: Path, every: float, last: int) -> None:
    """Every trial once, as it is decided; begins with the last few."""
    told, rounds, place = Study(), dict[int, list[int]](), 0
    pending: list[tuple[str, str]] = []
    while True:
        for entry in read_ledger(where):
            if entry.place > place:
                place = entry.place
                pending += _told(told, entry, rounds)
        for line, _ in pending[-last:] if last else pending:
            tell(clean(line))
        last, pending = 0, []
        if told.closed is not None:
            tell(clean(f"ended: {told.closed.why}"))
            return
        time.sleep(every)


def _told(study: Study, entry: Entry, rounds: dict[int, list[int]]) -> Iterator[tuple[str, str]]:
    """Folds one entry; a line for every trial that it decided."""
    evolve(study, entry)
    match entry.event:
        case Proposed(round, trial) | Refused(round, trial):
            rounds.setdefault(round, []).append(trial)
        case RoundOpened(round=round, role="proof", trial=int(trial)):
            rounds[round] = [trial]
        case Finished(trial=trial, run=run) if run == HELD_OUT and study.held[trial].settled:
            yield f"      {told_held(study, trial)}", ""
        case Decided() if study.the_terms.tournament is not None:
            if study.passes and study.passes[-1].round == entry.event.round:
                yield passes.line(study, len(study.passes) - 1), ""
        case Decided(round):
            for number in rounds.pop(round, []):
                yield trial_line(study, study.trials[number]), COLOURS.get(study.trials[number].verdict, "")


# ---- one trial -------------------------------------------------------------------------------------------------------


def _trial_lines(opened: Opened, trial: Trial) -> Iterator[str]:
    study, r = opened.study, row(opened.study, trial)
    yield trial_line(study, trial)
    yield f"  proposed  by {' '.join(r.by.split())}" + (f": {trial.proposal.why}" if trial.proposal.why else "")
    for line in trial.proposal.notes.splitlines():
        yield f"    | {line}"
    if trial.change.files and r.parent is not None:
        ancestors = [f"{number} ({study.trials[number].verdict})" for number in study.line(trial.number)][1:]
        yield f"  grown     from trial {', from '.join(ancestors[:8])}" + (", ..." if len(ancestors) > 8 else "")
    if r.fallback:
        yield f"  stand-in  {r.fallback}"
    yield f"  scored    {scored(study, trial)}"
    if study.the_terms.space or r.params:
        yield f"  params    {params_text(r.params)}"
    yield f"  decided   {trial.why or 'not yet'}"
    if r.failure:
        yield f"  failure   {r.failure}"
    for line in _code_lines(opened, trial):
        yield f"    | {line}"
    for label, names in (("passed", passed(study, trial)), ("not tried with", untried(study, trial))):
        if names:
            yield f"  gates     {label} {', '.join(names)}"
    if trial.number in study.freed:
        yield f"  gates     {trial.gate} has been taken away since: this may be tried again"
    yield from _run_lines(study, trial)
    if trial.number in study.held:
        known = "" if r.holdout is None else f"; {study.objective.metric} = {r.holdout!r}"
        yield f"  held out  {_ran(study.held[trial.number])['told']}{known}"
    for name, value in r.metrics.items():
        yield f"  metric    {name} = {value!r}"
    for name, value in r.tasks.items():
        yield f"  task      {name} = {value!r}"
    for name, path in _files(opened, r.trial).items():
        yield f"  file      {path}"
        if name.endswith((".out", ".err")):
            yield from (f"    | {line}" for line in _tail(Path(path)))


def _code_lines(opened: Opened, trial: Trial, most: int = 60) -> Iterator[str]:
    """The beginning of what it changed in its parent's code; of what was refused, what was asked for."""
    from metaloop.cli.code import difference, wanted

    study = opened.study
    if unmade(study, trial):
        asked = wanted(opened, trial).splitlines()
        yield "refused: nothing was applied" + ("; what was asked for:" if asked else "")
        yield from asked[:most]
        if len(asked) > most:
            yield f"... and {len(asked) - most} lines more: metaloop diff {trial.number}"
        return
    if not trial.change.files:
        return
    parent = trial.proposal.parent
    old = Params({}) if parent is None else study.trials[parent].change
    lines = difference(study, old, trial.change).splitlines()
    yield from lines[:most]
    if len(lines) > most:
        yield f"... and {len(lines) - most} lines more: metaloop diff {trial.number}" + (f" {parent}" if parent else "")


def _ran(run: Run) -> dict[str, object]:
    result = run.last
    told = "running" if run.running else "not started" if result is None else _result(result)
    return {
        "run": run.number,
        "attempts": run.attempt,
        "told": told + (f", exit code {run.exit}" if run.exit is not None else ""),
        "result": None if result is None else msgspec.to_builtins(result),
    }


def _run_lines(study: Study, trial: Trial, most: int = 2) -> Iterator[str]:
    """Each run with what came of it; of more than a few, a table: its value, seconds, and what it was for."""
    if len(trial.runs) <= most:
        yield from (f"  run {told['run']}     {told['told']}" for told in map(_ran, trial.runs.values()))
        return
    name = study.objective.metric
    yield f"  {'run':>5}  {name:>12}  {'seconds':>8}  what it was for"
    for number in sorted(trial.runs):
        result = trial.runs[number].last
        value = plain(result.metrics[name]) if isinstance(result, Ran) else "-"
        seconds = "-" if result is None else f"{getattr(result, 'seconds', 0.0):.2f}"
        reason = near(getattr(result, "reason", "")).partition("\n")[0]
        purpose = _purpose(study, trial, number) + (f": {reason}" if reason else "")
        yield f"  {number:>5}  {value:>12}  {seconds:>8}  {purpose}"


def _purpose(study: Study, trial: Trial, run: int) -> str:
    last = study.headline
    if run == 0:
        return "the first look"
    if trial.role == "baseline" and run < study.the_terms.baseline.repeats:
        return "a repeat"
    told = (
        last is not None
        and last.gain is not None
        and trial.number in (last.best, last.best if last.exact else last.baseline)
    )
    if told and last is not None and run in sorted(trial.runs)[-last.pairs :]:
        return "the end: best beside baseline"
    return "a proof, beside another trial"


def _run(run: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in run.items() if key != "told"}


def _result(result: object) -> str:
    seconds = getattr(result, "seconds", 0.0)
    reason = near(getattr(result, "reason", ""))
    return f"{type(result).__name__.lower()} in {seconds:.2f} s" + (f": {reason}" if reason else "")


def _files(opened: Opened, trial: int) -> dict[str, str]:
    """What the trial's attempts left, by `attempt/name`."""
    root = opened.folder / "trials" / f"{trial:04}"
    paths = (path for path in root.glob("r*/*") if path.is_file() and not path.is_symlink())
    found = sorted(paths, key=lambda path: (_numbers(path.parent.name), path))
    return {f"{path.parent.name}/{path.name}": str(path) for path in found}


def _numbers(name: str) -> list[int]:
    """Of `r10-a1-NONCE`: run and attempt."""
    return [int(part[1:]) for part in name.split("-")[:2] if part[1:].isdecimal()]


def _tail(path: Path, lines: int = 8) -> list[str]:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        return near(file.read().decode(errors="replace")).splitlines()[-lines:]


# ---- export and audit ------------------------------------------------------------------------------------------------


def _canonical(where: Path) -> str:
    from metaloop.exports import canonical

    chain_ok, entries = True, list[Entry]()
    try:
        for entry in read_ledger(where):
            entries.append(entry)
    except Damaged:
        chain_ok = False
    return jsonlib.dumps(canonical(fold(entries), entries, chain_ok, integrity(where)), sort_keys=True, allow_nan=False)


def _artefacts(where: Path, entries: list[Entry]) -> Iterator[tuple[int, str]]:
    """Files of finished runs that are not what was read. A file that is gone (`metaloop gc`) is no finding.

    An attempt's folder is the one that its handle names: one that was ended before it was recorded left a folder too.
    """
    handles: dict[tuple[int, int, int], str] = {}
    for entry in entries:
        match entry.event:
            case Started(trial, run, attempt):
                handles[trial, run, attempt] = entry.event.handle
            case Finished(trial, run, attempt):
                place = "prepare" if trial == PREPARE else f"{trial:04}"
                for path in (where / "trials" / place).glob("r*-a*-*"):
                    if path.name in handles.get((trial, run, attempt), ""):
                        yield from ((entry.place, text) for text in _altered(path, entry.event))


def _altered(folder: Path, event: Finished) -> Iterator[str]:
    for name, expected in event.output.items():
        path = folder / name
        if path.is_file() and digest(path.read_bytes()) != expected:
            yield f"{path} is not what was read when trial {event.trial} finished"
