"""The verbs that run trials: demo, init, run, run-one."""

import asyncio
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

from metaloop.adapters.inbox import request_id
from metaloop.adapters.projections import Paths
from metaloop.cli import INTERRUPT
from metaloop.cli.output import (
    COLOURS,
    card,
    clean,
    document_at,
    fitted,
    overwrite,
    say,
    shown,
    tell,
    tell_json,
    trial_line,
    write_whole,
)
from metaloop.config import Outcome, asking, drive, held, holding, surroundings, unenforceable, unreadable
from metaloop.errors import BaselineError, UsageError
from metaloop.evaluators.judge import told_held
from metaloop.events import (
    Alerted,
    Decided,
    Degraded,
    Directed,
    Entry,
    Faulted,
    Finished,
    Proposed,
    Refused,
    Resumed,
    RoundOpened,
    Vanished,
    Why,
)
from metaloop.passes import compares, history, page
from metaloop.passes import line as pass_line
from metaloop.passes import text as document_text
from metaloop.passes import told as passes
from metaloop.plan import again_at
from metaloop.preflight import wrong_sign
from metaloop.records import TIERS, held_out, row, totals
from metaloop.study import HELD_OUT, PREPARE, Study
from metaloop.studyfile import StudyFile, from_flags, load
from metaloop.values import Params, Ran, Scalar, accept, duration

Json = Annotated[bool, Parameter(name="--json", negative="", help="One JSON document on stdout, nothing else there.")]
File = Annotated[Path | None, Parameter(help="The study's file.")]
Trials = Annotated[int | None, Parameter(help="Trials in all, over the study's life.")]
Seconds = Annotated[float | None, Parameter(help="Seconds of wall clock in all.")]
Folder = Annotated[Path | None, Parameter(name="--dir", help="The study's folder, instead of .metaloop/NAME.")]


def run(
    file: File = None,
    /,
    *,
    cmd: Annotated[str | None, Parameter(help="Instead of a file: the command; no shell reads it.")] = None,
    metric: Annotated[str | None, Parameter(help="The metric that the command prints as NAME=NUMBER.")] = None,
    direction: Annotated[str, Parameter(help="max or min.")] = "max",
    param: Annotated[
        list[str] | None, Parameter(negative="", help="name=low..high[:log][:int][:step=S] or a,b,c")
    ] = None,
    policy: Annotated[str | None, Parameter(help="random, tpe, cmaes, gp, nsga2, grid, static, llm or guided.")] = None,
    seed: Annotated[int | None, Parameter(help="The seed of all dice.")] = None,
    name: Annotated[str | None, Parameter(help="The study's name.")] = None,
    max_iterations: Trials = None,
    max_wall_time_s: Seconds = None,
    max_cost_usd: Annotated[float | None, Parameter(help="What asking models may cost in all.")] = None,
    no_improve_limit: Annotated[
        int | None, Parameter(help="Trials in a row without a better one that end it; 0: never.")
    ] = None,
    parallel: Annotated[int | None, Parameter(help="Lanes: trials at once.")] = None,
    timeout_s: Annotated[float | None, Parameter(help="Seconds of wall clock that one trial may take.")] = None,
    order: Annotated[Literal["free", "strict"] | None, Parameter(help="strict: lanes change no decision.")] = None,
    dir: Folder = None,
    fail_if_no_improvement: Annotated[bool, Parameter(negative="")] = False,
    json: Json = False,
) -> int:
    """Start a study, or resume it: the same command does both, and budgets are absolute."""
    overrides: dict[str, object] = {
        key: value
        for key, value in {
            "name": name,
            "policy.type": policy,
            "policy.seed": seed,
            "controller.max_iterations": max_iterations,
            "controller.max_wall_time_s": max_wall_time_s,
            "controller.max_cost_usd": max_cost_usd,
            "controller.no_improve_limit": no_improve_limit,
            "controller.parallel": parallel,
            "controller.order": order,
            "target.timeout_s": timeout_s,
        }.items()
        if value is not None
    }
    study = _study(file, cmd, metric, direction, param or [], overrides, dir)
    own = {"--name": name, "--policy": policy, "--seed": seed, "--order": order, "--dir": dir}  # without: another study
    words = [word for flag, value in own.items() if value is not None for word in (flag, str(value))]
    again = shlex.join(["run", str(file), *words]) if file else ""
    return _drive(_placed(study, dir), json=json, strict_exit=fail_if_no_improvement, again=again)


def _study(
    file: Path | None,
    cmd: str | None,
    metric: str | None,
    direction: str,
    params: Sequence[str],
    overrides: dict[str, object],
    folder: Path | None,
) -> StudyFile:
    flags = [flag for flag, value in (("--cmd", cmd), ("--metric", metric), ("--param", params)) if value]
    if file is not None:
        if flags:
            raise UsageError(f"expected a file or {', '.join(flags)}, found both; put into {file} what belongs there")
        return load(file, overrides, lambda own: held(folder or own))
    if cmd is None or metric is None or not params:
        absent = [f for f, value in (("--cmd", cmd), ("--metric", metric), ("--param", params)) if not value]
        raise UsageError(f"expected a study file, or --cmd, --metric and --param; {', '.join(absent)} missing")
    chosen = overrides.pop("name", None)
    return from_flags(
        cmd=cmd, metric=metric, direction=direction, params=params, name=str(chosen or ""), overrides=overrides
    )


def _placed(file: StudyFile, folder: Path | None) -> StudyFile:
    from dataclasses import replace

    return file if folder is None else replace(file, folder=folder.absolute())


# ---- driving ---------------------------------------------------------------------------------------------------------


class Narrator:
    """An observer that tells each trial as it is decided; on a terminal with a bar below."""

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self._open: dict[int, list[int]] = {}
        self._bar = _Bar() if not quiet and sys.stderr.isatty() else None

    def __call__(self, entries: Sequence[Entry], study: Study) -> None:
        for entry in entries:
            match entry.event:
                case Resumed():
                    self._open = {round.number: list(round.trials) for round in study.open.values()}
                case Proposed(round, trial) | Refused(round, trial):
                    self._open.setdefault(round, []).append(trial)
                    if entry.event.proposal.fallback:
                        self.say(f"      {entry.event.proposal.why}: {entry.event.proposal.fallback}", "yellow")
                case RoundOpened(round=round, role="proof", trial=int(trial)):
                    self._open[round] = [trial]
                case Finished(trial=trial, result=result) if trial == PREPARE:
                    self.say(f"      prepared in {getattr(result, 'seconds', 0):.1f} s")
                case Finished(trial=trial, run=run) if run == HELD_OUT and study.held[trial].settled:
                    self.say(f"      {told_held(study, trial)}")
                case Finished(trial=trial, result=Ran(warnings=warnings)):
                    for warning in warnings:
                        self.say(f"      trial {trial}: {warning}", "yellow")
                case Alerted(text):
                    self.warn(text)
                case Directed(op="pause", by="panel", why=why) if self.quiet:
                    say(f"metaloop: {clean(why)}; it waits for `metaloop steer {study.name} resume`", "yellow")
                case Faulted(round, _, reason):
                    self.warn(f"round {round} begins anew: {reason}{_next_try(study, round, entry.at)}")
                case Vanished(round):
                    self.warn(f"round {round}: its session was cut off, and begins anew where the study goes on")
                case Degraded(role, why):
                    self.warn(f"{role}: nobody answers: {why}" if why else f"{role}: answers again")
                case Decided() if study.the_terms.tournament is not None:
                    if study.passes and study.passes[-1].round == entry.event.round:
                        self.say(pass_line(study, len(study.passes) - 1))
                case Decided(round):
                    for trial in self._open.pop(round, []):
                        told = study.trials[trial]
                        self.say(trial_line(study, told), COLOURS.get(told.verdict, ""))
        if self._bar:
            self._bar.show(study)

    def say(self, text: str, style: str = "") -> None:
        if self.quiet:
            return
        if self._bar:
            self._bar.clear()
        say(fitted(clean(text)), style)

    def warn(self, text: str) -> None:
        self.say(f"      {text}", "yellow")

    def close(self) -> None:
        if self._bar:
            self._bar.clear()


def _next_try(study: Study, number: int, now: float) -> str:
    """When a round that faulted begins anew, where that is not at once."""
    round = study.open.get(number)
    left = again_at(round) - now if round is not None and study.closed is None else 0.0
    return f"; next try in {duration(left)}" if left > 0 else ""


class _Bar:
    """One line at the bottom of a terminal: how far, and the best so far."""

    def show(self, study: Study) -> None:
        rules = None if study.terms is None else study.terms.tournament
        done = study.tally.settled if rules is None else len(study.passes)
        whole, width = max(1, study.bounds.max_iterations), 24
        filled = min(width, width * done // whole)
        best = f"best {study.tally.best:.6g}" if study.tally.best is not None else "measuring the baseline"
        if rules is not None:
            best = "comparisons" if rules.compare else "passes"
        text = f"  [{'#' * filled}{'.' * (width - filled)}] {done} of {whole}  {best}  {study.at:.0f} s"
        columns = shutil.get_terminal_size().columns
        overwrite(text[: columns - 1])

    def clear(self) -> None:
        overwrite("")


def _drive(
    file: StudyFile, *, json: bool, strict_exit: bool = False, again: str = "", request: Directed | None = None
) -> int:
    ended = driven(file, quiet=json, request=request)
    code = exit_code(ended, strict_exit)
    if request is not None:
        return _told_one(ended, request, json)
    try:
        _answer(ended, file, code, json, again)
    except OSError as error:  # the exit code is the study's, whoever could not be told
        say(f"metaloop: the study's end could not be written to stdout: {error.strerror}", "red")
    return code


def driven(file: StudyFile, *, quiet: bool, request: Directed | None = None) -> Outcome:
    """The study of `file`, run from wherever it stands; told on stderr as it goes, unless `quiet`."""
    if missing := file.missing(os.environ):
        raise UsageError("\n".join(f"cannot run {file.path or file.terms.name}: {line}" for line in missing))
    where = surroundings(file)
    for note in (*file.notes, *_sign(file), *unenforceable(file), *unreadable(file)):
        say(f"metaloop: note: {note}", "yellow")
    narrator = Narrator(quiet=quiet)
    if not quiet and request is None:
        announce(file)
    try:
        mode: Literal["run", "one"] = "run" if request is None else "one"
        ended = asyncio.run(
            drive(
                file, where, mode=mode, request=request, observers=(narrator,), project=paths(file),
                tell=narrator.warn, interrupted=lambda: INTERRUPT.came,
            )
        )  # fmt: skip
        if file.terms.tournament is not None and ended.study.terms is not None:
            write_document(ended.study, file.folder)
        return ended
    finally:
        narrator.close()


def write_document(study: Study, folder: Path) -> None:
    """The document as it is now, its report and its history, into the study's folder."""
    from metaloop.published import HISTORY, dumped  # of documents alone

    write_whole(document_at(study, folder), document_text(study))
    write_whole(folder / "report.md", page(study))
    if not compares(study):
        write_whole(folder / HISTORY, dumped(history(study)))


def _answer(ended: Outcome, file: StudyFile, code: int, json: bool, again: str) -> None:
    """How it ended: a document for programs, a card for people."""
    if json:
        tell_json(summary(ended.study, file.folder, code))
        return
    if ended.idle:
        say(f"nothing to do: this study is over{_ended_by(ended.study)}")
    if ended.signal is not None:
        say(f"interrupted ({ended.signal.name}): nothing is lost, and the same command goes on from here", "yellow")
    if not ended.idle:
        say()
    for line in card(ended.study, file.folder, again):
        tell(clean(line), "bold" if line.startswith("  best ") else "")


_RAISED: Mapping[Why, str] = {
    "max_iterations": "raise --max-iterations (controller.max_iterations) to go on",
    "wall_clock": "raise --max-wall-time-s (controller.max_wall_time_s) to go on",
    "no_improvement": "raise --no-improve-limit (controller.no_improve_limit; 0 switches it off) to go on",
    "failure_rate": "mend what fails and raise controller.failure_rate_limit to go on",
    "cost": "raise controller.max_cost_usd or max_tokens to go on",
    "forecast": "set controller.forecast: false to go on",
}


def _ended_by(study: Study) -> str:
    """Which guard ended it, and what makes it go on."""
    if study.closed is None:
        return ""
    said = f", {study.closed.why}" if study.closed.why else ""
    more = _RAISED.get(study.closed.reason)
    return f"{said}; {more}" if more else said


def _sign(file: StudyFile) -> Iterator[str]:
    if (found := wrong_sign(file.terms.objective)) is not None:
        yield f"{found.text}: {found.next}"


def announce(file: StudyFile) -> None:
    """What is about to happen, before anything does."""
    terms, bounds = file.terms, file.bounds
    lanes = f" in {bounds.lanes} lanes" if bounds.lanes > 1 else ""
    time = duration(bounds.max_wall_time_s)
    if (rules := terms.tournament) is not None:
        if rules.compare:
            say(f"{terms.name}: {rules.document}, {len(rules.compare)} strategies by a panel of {rules.final}", "bold")
            often = "once" if bounds.max_iterations == 1 else f"{bounds.max_iterations} times"
            say(f"  {rules.calls} calls each, {often}; at most {time}; in {shown(file.folder)}/")
        else:
            say(f"{terms.name}: {rules.document}, by a panel of {rules.judges}", "bold")
            wins = f"or {rules.k} wins running"
            say(f"  at most {bounds.max_iterations} passes, {time}, {wins}; in {shown(file.folder)}/")
        for line in asking(file):
            say(f"  {line}")
        return
    say(f"{terms.name}: {terms.objective.direction} {terms.objective.metric}, {terms.policy}", "bold")
    trials = f"{bounds.max_iterations} trial{'s' * (bounds.max_iterations != 1)}"
    say(f"  at most {trials}{lanes}, {time}; in {shown(file.folder)}/")
    say(f"  scored by {TIERS[terms.tier]}")
    say(f"  held by {holding(file)}")
    for line in asking(file):
        say(f"  {line}")


def paths(file: StudyFile) -> Paths:
    named = file.telemetry
    return Paths(
        trials=file.folder / "trials",
        versions=named.get("versions_dir", file.folder / "versions"),
        runs=named.get("artifacts_dir"),
        results=named.get("ledger_path"),
        events=named.get("trace_path"),
        checkpoint=named.get("checkpoint_path"),
    )


def exit_code(ended: Outcome, strict: bool = False) -> int:
    """0 done, 1 no improvement (if asked for), 3 baseline or preparation failed, 4 nothing measured or nobody proposed,
    5 no money for one trial, 130, 143.
    """
    if ended.signal is not None:
        return 128 + ended.signal.value
    reason = ended.closed.reason if ended.closed else ""
    if reason in ("prepare_failed", "baseline_failed"):
        return 3
    study = ended.study
    stuck = reason in ("faulted", "proposer_failed", "stalled_panel")
    judged = study.the_terms.tournament is not None or study.the_terms.campaign is not None
    if stuck or (study.tally.settled and not study.tally.measured and not judged):
        return 4
    if reason == "cost" and not study.tally.settled:
        return 5
    improved = study.incumbent is not None and study.incumbent.number != study.baseline
    return 1 if strict and not improved else 0


def summary(study: Study, folder: Path, code: int) -> dict[str, object]:
    """What `--json` says of a study."""
    incumbent = study.incumbent
    baseline = study.trials[study.baseline] if study.baseline is not None else None
    return {
        "study": study.name,
        "folder": str(folder.absolute()),
        "exit_code": code,
        "closed": msgspec.to_builtins(study.closed) if study.closed else None,
        "objective": msgspec.to_builtins(study.objective),
        "best": None if incumbent is None else msgspec.to_builtins(row(study, incumbent)),
        "baseline": None if baseline is None else msgspec.to_builtins(row(study, baseline)),
        "trials": msgspec.to_builtins(totals(study)),
        "asked": {role: msgspec.to_builtins(usage) for role, usage in study.costs.items()},
        "holdout": msgspec.to_builtins(held_out(study)),
        "passes": msgspec.to_builtins(passes(study)),
        "wall_clock_s": study.at,
    }


# ---- one trial -------------------------------------------------------------------------------------------------------


def run_one(
    file: Annotated[Path, Parameter(help="The study's file.")],
    /,
    *,
    params: Annotated[str | None, Parameter(help="JSON: a value for every parameter of the space.")] = None,
    diff: Annotated[Path | None, Parameter(allow_leading_hyphen=True, help="A patch; - for stdin.")] = None,
    dir: Folder = None,
    json: Json = False,
) -> int:
    """Try one set of parameters, or one patch of the code, as a trial of the study: recorded, decided, and told.

    A patch is applied to the code that the study began with, and runs with `--params` or the program's own defaults.
    Exit code 0: measured, kept or not; 2: refused; 4: it could not be measured.
    """
    study = _placed(load(file, begun=lambda own: held(dir or own)), dir)
    if study.terms.tournament is not None:
        raise UsageError("expected a study of parameters or code: a document is tried by a panel, with its rivals")
    if params is None and diff is None:
        raise UsageError("expected something to try; add --params JSON or --diff PATCH")
    if diff is not None and not study.terms.mutable:
        raise UsageError("--diff: expected files that may be changed, found none; add policy.mutable: [FILE]")
    change = Params(_point(study, params)) if params is not None else None
    request = Directed(request_id(), "try", by="run-one", change=change, text=patch_text(study, diff))
    return _drive(study, json=json, request=request)


def patch_text(study: StudyFile, path: Path | None) -> str:
    """What is in a patch file; of one that is too large, enough to be refused for that. Empty without a file."""
    if path is None:
        return ""
    if str(path) == "-" and sys.stdin is None:
        raise UsageError("--diff -: expected a patch on stdin, found it closed")
    try:
        with sys.stdin.buffer if str(path) == "-" else path.open("rb") as file:
            data = file.read(study.terms.contract.most + 1)
    except OSError as error:
        raise UsageError(f"--diff: {path}: {error.strerror}") from None
    try:
        return data.decode() or "\n"
    except UnicodeDecodeError as error:
        if error.start < study.terms.contract.most - 3:  # else a letter that was cut, of a patch that is too large
            raise UsageError(f"--diff: {path}: expected UTF-8, found what is none") from None
        return data.decode(errors="replace")


def _point(file: StudyFile, text: str) -> dict[str, Scalar]:
    try:
        given = json.loads(text, parse_constant=_no_constant)
    except ValueError as error:
        raise UsageError(f"--params: expected JSON like '{{\"lr\": 0.1}}'; {error}") from None
    if not isinstance(given, dict) or not all(isinstance(v, bool | int | float | str) for v in given.values()):
        raise UsageError("--params: expected a JSON object with a number, text or boolean for each parameter")
    point = accept(file.terms.space, given)
    if isinstance(point, str):
        raise UsageError(f"--params: {point}")
    return point


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number here")


def _told_one(ended: Outcome, request: Directed, json: bool) -> int:
    if ended.signal is not None:
        return 128 + ended.signal.value
    study = ended.study
    mine = [trial for trial in study.trials.values() if trial.request == request.request]
    if not mine and ended.closed and ended.closed.reason == "prepare_failed":
        raise BaselineError(ended.closed.why)
    if not mine:
        raise UsageError(f"it was not run: {ended.closed.why if ended.closed else 'the session ended'}")
    r = row(study, mine[0])
    if json:
        tell_json(msgspec.to_builtins(r))
    else:
        tell(f"trial {r.trial}: {clean(r.why)}")
    return 0 if r.value is not None else 2 if r.status == "refused" else 4


# ---- demo, init ------------------------------------------------------------------------------------------------------

TEMPLATES = Path(__file__).parent.parent / "templates"


def demo(
    folder: Annotated[Path, Parameter(help="Where to put it.")] = Path("metaloop-demo"),
    /,
    *,
    json: Json = False,
) -> int:
    """A real study on real data: the parameters of a classifier of handwritten digits, 20 trials in two lanes."""
    if find_spec("sklearn") is None or find_spec("optuna") is None:
        raise UsageError("the demo needs scikit-learn and optuna: pip install 'metaloop[demo]'")
    if not (folder / "study.yaml").exists():
        _copy("digits", folder)
        text = (folder / "study.yaml").read_text(encoding="utf-8")
        python = sys.executable.replace("'", "''")
        (folder / "study.yaml").write_text(text.replace("[python3,", f"['{python}',"), encoding="utf-8")
    return _drive(load(folder / "study.yaml"), json=json, again=f"run {folder / 'study.yaml'}")


def init(
    folder: Annotated[Path, Parameter(help="Where to write.")] = Path(),
    /,
    *,
    template: Annotated[
        Literal["params", "code"], Parameter(help="What is improved: the parameters of a script, or a program itself.")
    ] = "params",
) -> int:
    """Write a first study into a folder: a script, and a study file that explains itself. Never writes over a file."""
    written = _copy(template, folder)
    told = ", ".join(str(folder / name) for name in written)
    tell(f"wrote {told}; try: metaloop run {folder / 'study.yaml'}")
    return 0


def _copy(template: str, folder: Path) -> list[str]:
    """What was written, at the top of the folder. Raises UsageError where anything of it is there."""
    source = TEMPLATES / template
    names = sorted(path.name for path in source.iterdir() if path.name != "__pycache__")
    if there := [name for name in names if (folder / name).exists()]:
        raise UsageError(
            f"{folder}: {', '.join(there)} is there already and is not written over; choose another folder"
        )
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(source, folder, ignore=ignore, copy_function=shutil.copyfile, dirs_exist_ok=True)
    return names
