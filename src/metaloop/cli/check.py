"""`metaloop check`: everything that stands in the way of a study, and what its baseline measures, before one begins.

The baseline runs in a study of its own that is thrown away: same commands, executor and limits, and another folder.
Neither the real study nor its copies are opened. Not covered: what the commands themselves write where they run.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

from metaloop.adapters.inbox import request_id
from metaloop.adapters.ledger import controller, read_ledger
from metaloop.adapters.local import LocalExecutor, forget
from metaloop.adapters.projections import refuse_foreign
from metaloop.adapters.sandbox import climb, missing
from metaloop.adapters.workspace.trash import deleted
from metaloop.cli.output import clean, say, tell, tell_json
from metaloop.cli.run import File, Json, announce, patch_text, paths
from metaloop.config import (
    Outcome,
    check_host,
    drive,
    holding,
    keys,
    resumed,
    surroundings,
    unenforceable,
    unreadable,
)
from metaloop.edits.diffs import diff
from metaloop.errors import BaselineError, BudgetError, Faults, MetaloopError, UsageError
from metaloop.events import Directed, Entry, Finished
from metaloop.jobs import METRICS, Surroundings
from metaloop.preflight import Finding, Numbers, Seen, believing, findings, numbers, outlasting, provider, wrong_sign
from metaloop.roles import GATE
from metaloop.study import PREPARE, Study, Trial, fold
from metaloop.studyfile import StudyFile, load
from metaloop.values import Failed, Params, Ran, Result, duration

LINES, WIDTH, LAST_BYTES = 10, 200, 64 << 10
"""Of raw output: so many lines, each cut at so many characters, of so much of the file's end."""

PREFIX = ".check-"
STALE_S = 10.0


def check(
    file: File = None,
    /,
    *,
    static: Annotated[bool, Parameter(negative="", help="Only read the file: run nothing, write nothing.")] = False,
    schema: Annotated[bool, Parameter(negative="", help="Print the JSON schema of a study file.")] = False,
    json: Json = False,
) -> int:
    """Say everything that stands in the way of a study, at once; then measure its baseline, and throw that away.

    Exit code 0: nothing blocks; 2: configuration, or a model that cannot be asked; 3: the baseline failed, or sabotage
    goes unnoticed; 5: the budget cannot pay for the baseline and one trial.
    """
    if schema:
        from metaloop.studyfile import json_schema

        tell_json(json_schema())
        return 0
    if file is None:
        raise UsageError("expected a study file: metaloop check study.yaml")
    study = load(file)
    problems = [*study.missing(os.environ), *_unrunnable(study), *_refused(study)]
    report = Report(file, problems, (*study.notes, *unenforceable(study), *unreadable(study)), [*_static(study)])
    if not json:
        _tell_static(report, study)
    if not problems and not static:
        report.findings += asyncio.run(_providers(study))
        if study.terms.tournament is None:  # a document is measured by nobody but its panel
            _measure(study, report, quiet=json)
    code = report.code
    if json:
        tell_json(_document(report, code))
    else:
        _tell(report, code)
    return code


@dataclass
class Report:
    """All that a check found. `signal`: the number of the one that ended it, 0 for none."""

    file: Path
    problems: Sequence[str]
    notes: Sequence[str]
    findings: list[Finding]
    numbers: Numbers | None = None
    sample: "Sample | None" = None
    signal: int = 0

    @property
    def code(self) -> int:
        """The first that applies: interrupted, configuration, baseline, budget."""
        if self.signal:
            return 128 + self.signal
        if self.problems:
            return UsageError.code
        exits = {finding.exit for finding in self.findings}
        return next((code for code in (UsageError.code, BaselineError.code, BudgetError.code) if code in exits), 0)


class Sample(msgspec.Struct, frozen=True):
    """The end of what a run wrote, by file; and the numbers that were read from `source`."""

    source: str
    files: dict[str, tuple[str, ...]]
    metrics: dict[str, float]


# ---- without running anything ----------------------------------------------------------------------------------------


def _unrunnable(study: StudyFile) -> list[str]:
    if study.target != "command":
        return []
    try:
        surroundings(study)
    except Faults as faults:
        return [str(fault) for fault in faults.faults]
    return []


def _refused(study: StudyFile) -> list[str]:
    """What a run would be refused for: other hardware, or copies that would be written over what is there."""
    found = []
    for refuse in (partial(check_host, study.terms), partial(refuse_foreign, paths(study)), partial(resumed, study)):
        try:
            refuse()
        except UsageError as error:
            found.append(str(error))
    return found


def _static(study: StudyFile) -> Iterator[Finding]:
    yield from believing(study.terms)
    if higher := missing(climb(study.bounds.sandbox.level)):
        yield Finding("rung", "note", f"trials are held by {holding(study)}", higher)
    if (sign := wrong_sign(study.terms.objective)) is not None:
        yield sign
    if study.terms.holdout:
        text = f"target.holdout_cmd is there, and was not run: {' '.join(study.terms.holdout)[:80]}"
        yield Finding("holdout", "note", text, "try it by hand: it runs at the study's end, after target.train_cmd")
    if (outlasts := outlasting(study.bounds)) is not None:
        yield outlasts
    if (pid := controller(study.folder)) is not None:
        text = f"process {pid} runs this study now: what is measured beside it takes longer"
        yield Finding("running", "note", text, "wait until it ends, for times that can be trusted")


# ---- who will be asked -----------------------------------------------------------------------------------------------


async def _providers(study: StudyFile) -> list[Finding]:
    """Whether each model can be asked. Nothing is spent: only the list of models is asked for."""
    if not study.bounds.models:
        return []
    from metaloop.adapters.models import where
    from metaloop.adapters.reach import reach

    stand_in = study.terms.fallback != "none"
    specs = sorted(resumed(study).bounds.models.items())
    keys = [os.environ.get(spec.key_env, "").strip() for _, spec in specs]
    reached = await asyncio.gather(*(reach(spec, key) for (_, spec), key in zip(specs, keys, strict=True)))
    return [
        provider(role, where(spec), found, spec, stand_in=stand_in)
        for (role, spec), found in zip(specs, reached, strict=True)
    ]


# ---- the baseline, in a study that is thrown away --------------------------------------------------------------------


def _measure(study: StudyFile, report: Report, quiet: bool) -> None:
    """Runs it, and adds to the report what is found. Nothing is left behind, however it ends."""
    terms = study.terms
    if terms.baseline.kind == "none" or terms.baseline.repeats == 0:
        text = "nothing was measured: this study has no baseline"
        report.findings.append(Finding("no_baseline", "note", text, "evaluation.baseline_repeats: 3"))
        return
    with _scratch(study.folder.parent) as folder:
        spare = replace(
            study,
            folder=folder,
            terms=msgspec.structs.replace(terms, policy="static", rule="strict", order="free", holdout=()),
            bounds=msgspec.structs.replace(study.bounds, max_iterations=0),
        )
        if not quiet:
            runs = "once" if terms.baseline.repeats == 1 else f"{terms.baseline.repeats} times"
            say(f"  measuring the baseline {runs}, in a folder that is thrown away")
        seen = _seen(spare, report, quiet)
    if seen is not None:
        report.numbers = numbers(terms, study.bounds, seen)
        report.findings += findings(terms, study.bounds, seen)


def _seen(spare: StudyFile, report: Report, quiet: bool) -> Seen | None:
    """What came of baseline, sabotage and noop; None if a signal came first."""
    where = surroundings(spare)
    ended = _drive(spare, where, None, quiet)
    trial = _baseline(ended.study)
    if trial is not None:
        report.sample = _sample(spare, trial)
    tried: dict[str, Result | None] = {}
    for name, request in _tries(spare).items():
        spent = ended.study.at >= spare.bounds.max_wall_time_s
        if ended.signal is None and ended.study.baseline is not None and not spent:
            ended = _drive(spare, where, request, quiet)
            mine = (trial.result for trial in ended.study.trials.values() if trial.request == request.request)
            tried[name] = next(mine, None)
    if ended.signal is not None:
        report.signal = ended.signal.value
        return None
    study = ended.study
    runs = () if trial is None else tuple(run.last for run in study.trials[trial.number].runs.values() if run.last)
    return Seen(
        runs=runs,
        prepare=study.prepare.last,
        fallback=_first_failure(study) if trial is not None and trial.proposal.fallback else "",
        ended=ended.closed.reason if ended.closed else "",
        sabotage=tried.get("sabotage"),
        noop=tried.get("noop"),
    )


def _tries(spare: StudyFile) -> dict[str, Directed]:
    """What is tried beside the baseline, by name. Of code, always a change of nothing, unless there is one."""
    given = {name: ("", Params(dict(params))) for name, params in spare.checks.items()}
    patches = {name: (patch_text(spare, path), None) for name, path in spare.check_patches.items()}
    if spare.terms.mutable and (blank := _blank_line(spare)) and not {"noop"} & {*given, *patches}:
        patches["noop"] = (blank, None)
    return {
        name: Directed(request_id(), "try", by=name, change=change, text=text)
        for name, (text, change) in {**given, **patches}.items()
    }


def _blank_line(spare: StudyFile) -> str:
    """A patch that adds an empty line to a file that may be changed, where it may be; empty where there is none."""
    for path in sorted(spare.mutable, key=lambda path: (not path.endswith(".py"), path)):
        try:
            text = (spare.workdir / path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        head, mark, rest = text.partition("EVOLVE-BLOCK-START")
        line, end, tail = rest.partition("\n")
        blank = f"{head}{mark}{line}{end}\n{tail}" if mark else text + ("\n" if text.endswith("\n") else "\n\n")
        return diff({path: text}, {path: blank})
    return ""


def _drive(spare: StudyFile, where: Surroundings, request: Directed | None, quiet: bool) -> Outcome:
    observers = () if quiet else (_progress,)
    mode: Literal["run", "one"] = "run" if request is None else "one"
    try:
        return asyncio.run(drive(spare, where, mode=mode, request=request, observers=observers, tell=say))
    finally:
        _on_signals(_unwind)  # the loop has put its own in their place, and the system's after that


def _progress(entries: Sequence[Entry], study: Study) -> None:
    """A line on stderr for every run that ended."""
    for entry in entries:
        match entry.event:
            case Finished(trial=trial, result=result) if trial == PREPARE:
                say(f"    prepared in {getattr(result, 'seconds', 0.0):.1f} s")
            case Finished(trial=trial, run=run, result=Ran(metrics=metrics, seconds=seconds)):
                name = study.objective.metric
                what = f"run {run}" if study.trials[trial].role == "baseline" else "another"
                say(clean(f"    {what}: {name} = {metrics[name]:.6g} in {seconds:.2f} s"))


def _baseline(study: Study) -> Trial | None:
    """The baseline that was measured; where none could be, the last that was tried."""
    tried = [trial for trial in study.trials.values() if trial.role == "baseline"]
    return max(tried, key=lambda trial: (trial.number == study.baseline, trial.number), default=None)


def _first_failure(study: Study) -> str:
    first = study.trials[0].result
    return first.reason if isinstance(first, Failed) else ""


# ---- what it wrote ---------------------------------------------------------------------------------------------------


def _sample(spare: StudyFile, trial: Trial) -> Sample | None:
    """The end of the output of its first run, or of the first that failed, and what was read from it."""
    run = next((run for run in trial.runs.values() if isinstance(run.last, Failed)), trial.runs.get(0))
    if run is None or run.last is None:
        return None
    folders = (spare.folder / "trials" / f"{trial.number:04}").glob(f"r{run.number}-a{run.attempt}-*")
    where = next(folders, None)
    if where is None:
        return None
    step = "evaluate" if spare.terms.evaluate else "train"
    told = (METRICS, f"{step}.metrics")  # the second, where a gate came after it
    source = next((name for name in told if (where / name).exists()), f"{step}.out")
    wanted = [f"{step}.out", source, *([f"{step}.err", "train.err"] if isinstance(run.last, Failed) else [])]
    if isinstance(run.last, Failed) and run.last.gate:
        wanted = [f"{GATE}{run.last.gate}.out", f"{GATE}{run.last.gate}.err"]
    files = {name: lines for name in dict.fromkeys(wanted) if (lines := _tail(where / name)) is not None}
    return Sample(source, files, run.last.metrics if isinstance(run.last, Ran) else {})


def _tail(path: Path) -> tuple[str, ...] | None:
    """The last lines of a regular file, cleaned; None for anything else: a trial may have left what it liked there."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            if not path.is_file():
                return None
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    lines = [clean(line) for line in text.splitlines() if line.strip()]
    return tuple(line if len(line) <= WIDTH else line[:WIDTH] + "..." for line in lines[-LINES:])


# ---- the folder ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    """A folder for a study, and no trace of it afterwards. What a check that was killed has left goes first.

    It lies one level deeper than studies do, so that nobody takes it for one.
    """
    new = not parent.exists()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        root = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    except OSError as error:
        raise UsageError(f"{parent}: no study can be kept here: {error.strerror}; make the folder writable") from error
    hold = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(hold, fcntl.LOCK_EX)
        _on_signals(_unwind)
        _sweep(parent)
        yield root / "study"
    finally:
        _on_signals(signal.SIG_IGN)  # what was begun here is finished
        _remove(root)
        os.close(hold)
        if new:
            with contextlib.suppress(OSError):  # somebody began a study there
                parent.rmdir()
        _on_signals(signal.SIG_DFL)


def _on_signals(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    """What SIGTERM does; SIGHUP, which comes when a terminal is closed, does the same."""
    signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGHUP, handler if isinstance(handler, signal.Handlers) else _as_terminated)


def _unwind(number: int, _: FrameType | None) -> None:
    """As Ctrl-C does, so that what is to be removed is removed."""
    raise SystemExit(128 + number)


def _as_terminated(_: int, __: FrameType | None) -> None:
    signal.raise_signal(signal.SIGTERM)


def _sweep(parent: Path) -> None:
    """Ends and removes what checks have left that nobody lives for any more."""
    for old in parent.glob(f"{PREFIX}*"):
        try:
            hold = os.open(old, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue
        try:
            fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - old.stat().st_mtime > STALE_S:  # a new one is locked a moment after it is made
                with contextlib.suppress(MetaloopError, OSError):
                    asyncio.run(_end(old / "study"))
                _remove(old)
        except OSError:
            pass  # its check lives
        finally:
            os.close(hold)


async def _end(folder: Path) -> None:
    """Stops what still runs of a study whose controller was killed."""
    study, executor = fold(read_ledger(folder)), LocalExecutor(folder / "lanes", keys=keys())
    runs = [study.prepare, *(run for trial in study.trials.values() for run in trial.runs.values())]
    try:
        for run in runs:
            if run.running:
                await executor.stop(run.handle)
    finally:
        await executor.close()


def _remove(root: Path) -> None:
    """All of it, however deep, and also where a trial took its own rights away."""
    forget(root / "study/lanes", keys())
    _, why = deleted(root)
    if root.exists():
        say(f"metaloop: {root} could not be removed ({why}): look what is in it", "yellow")


# ---- telling ---------------------------------------------------------------------------------------------------------


def _document(report: Report, code: int) -> dict[str, object]:
    return {
        "file": str(report.file),
        "exit_code": code,
        "problems": list(report.problems),
        "notes": list(report.notes),
        "findings": msgspec.to_builtins(report.findings),
        "numbers": msgspec.to_builtins(report.numbers),
        "sample": msgspec.to_builtins(report.sample),
    }


def _tell_static(report: Report, study: StudyFile) -> None:
    for problem in report.problems:
        say(f"metaloop: {clean(problem)}", "red")
    for note in report.notes:
        say(f"metaloop: note: {clean(note)}", "yellow")
    if not report.problems:
        announce(study)


def _tell(report: Report, code: int) -> None:
    """The report: what was written, what was read from it, what that means; then a line a finding."""
    if report.signal:
        say("interrupted: what was measured is thrown away", "yellow")
        return
    if report.sample is not None:
        metric = report.numbers.metric if report.numbers else ""
        for line in _sample_lines(report.sample, metric):
            tell(clean(line))
    if report.numbers is not None:
        for line in _number_lines(report.numbers):
            tell(clean(line))
    for finding in report.findings:
        tell(clean(_line(finding)), {"error": "red", "warning": "yellow", "note": ""}[finding.level])
    if report.problems:
        return
    if code:
        tell(f"{report.file}: this blocks the study; mend it and check again", "red")
    else:
        tell(f"{report.file}: nothing blocks it; start it with: metaloop run {report.file}")


def _line(finding: Finding) -> str:
    return f"{finding.level + ':':<9}{finding.text}" + (f" -> {finding.next}" if finding.next else "")


def _sample_lines(sample: Sample, metric: str) -> Iterator[str]:
    for name, lines in sample.files.items():
        yield f"{name}, its end:" if lines else f"{name} is empty"
        yield from (f"  | {line}" for line in lines)
    if sample.metrics:
        yield f"read from {sample.source}:"
    for name, value in sample.metrics.items():
        yield f"  {'*' if name == metric else ' '} {name} = {value!r}" + ("   the objective" if name == metric else "")


def _number_lines(told: Numbers) -> Iterator[str]:
    count = len(told.values)
    spread = "" if told.sd is None else f" +- {told.sd:.2g} (sd of {count} runs)"
    yield f"baseline {told.metric} = {told.mean:.6g}{spread}"
    part = 100 * told.run_s / told.timeout_s
    prepare = f"; prepare {told.prepare_s:.2f} s" if told.prepare_s else ""
    yield f"time     {told.run_s:.2f} s a run, {part:.2g} % of timeout_s{prepare}"
    lanes = f" in {told.lanes} lanes" if told.lanes > 1 else ""
    trials = f"{told.trials} of {told.wanted} trials{lanes}"
    yield f"budget   {trials} in about {duration(told.total_s)}, of at most {duration(told.max_wall_time_s)}"
    if told.session_s is not None:
        yield f"         sessions of the agent are not in it: at most {duration(told.session_s)} each"
