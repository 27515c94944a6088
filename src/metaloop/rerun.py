"""A kept trial run once more, from scratch, outside of its study: is it still what it was?

Nothing of the study is touched but by what follows: a trial that is not what it was leaves the tree, with all that grew
from it. Knows whatever the composition root knows.
"""

import asyncio
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from metaloop.adapters.frozen import FrozenFiles
from metaloop.adapters.ledger import open_ledger
from metaloop.adapters.local import LocalExecutor
from metaloop.adapters.sandbox import climb
from metaloop.config import code_of, keys, restored, surroundings, thought_of, watched
from metaloop.engine import amiss, commit, placed
from metaloop.errors import UsageError
from metaloop.evaluators.judge import undone
from metaloop.events import Invalidated
from metaloop.jobs import Surroundings, job
from metaloop.roles import GATE, Gone, Workspace
from metaloop.study import Study, Trial, fold
from metaloop.values import Failed, Ran, Result

RUNS = 3
"""Runs that are made again at most, under the seeds that they had."""


class Again(msgspec.Struct, frozen=True):
    """What came of it. `before` and `again`: the objective of each run, None where there was none; `why`: what speaks
    against the trial, empty where nothing does; `invalidated`: the trials that left the tree for it.
    """

    trial: int
    before: tuple[float | None, ...]
    again: tuple[float | None, ...]
    why: str = ""
    invalidated: tuple[int, ...] = ()


def rerun(folder: Path, number: int | None, by: str, tell: Callable[[str], None]) -> Again:
    """Runs a trial again, the incumbent unless another is named, and records what follows.

    Raises UsageError for a trial that was not kept, StudyBusy where a controller holds the study.
    """
    folder = folder.absolute()
    ledger = open_ledger(folder)
    try:
        study = fold(ledger.read())
        trial = _wanted(study, number)
        runs = [run for run in trial.runs.values() if run.number >= 0 and isinstance(run.last, Ran)]
        if not study.deterministic_at():
            runs.sort(key=lambda run: run.number == 0)  # the first look comes last: what is kept had a lucky one
        runs = runs[: 1 if study.deterministic_at() else RUNS]
        before = [run.last for run in runs if run.last is not None]
        again = asyncio.run(_again(folder, study, trial, [run.number for run in runs], tell))
        why = undone(study, before, again)
        gone = _with_heirs(study, trial.number) if why else ()
        if gone:
            commit(ledger, study, study.at, [Invalidated(gone, by, why)], ())
        return Again(trial.number, _values(study, before), _values(study, again), why, gone)
    finally:
        ledger.close()


def _wanted(study: Study, number: int | None) -> Trial:
    if number is not None and number not in study.trials:
        raise UsageError(f"there is no trial {number}: there are 0 to {max(study.trials, default=0)}")
    trial = study.incumbent if number is None else study.trials[number]
    if trial is None or not trial.kept:
        raise UsageError("expected a trial that was kept, found none; metaloop status shows what there is")
    return trial


def _with_heirs(study: Study, number: int) -> tuple[int, ...]:
    """It, and every kept trial that grew from it."""
    kept = (trial.number for trial in study.trials.values() if trial.kept)
    return tuple(each for each in kept if number in study.line(each))


def _values(study: Study, results: Sequence[Result]) -> tuple[float | None, ...]:
    name = study.objective.metric
    return tuple(result.metrics.get(name) if isinstance(result, Ran) else None for result in results)


async def _again(
    folder: Path, study: Study, trial: Trial, runs: Sequence[int], tell: Callable[[str], None]
) -> list[Result]:
    file = restored(folder, study)
    where, code = surroundings(file), code_of(file, study, tell) if study.the_terms.mutable else None
    if problem := FrozenFiles(Path(where.cwd), watched(study, code)).changed():
        raise UsageError(f"{problem}: put it back, for a trial to be run as it was")
    executor = LocalExecutor(folder / "lanes", rung=climb(file.bounds.sandbox.level), keys=keys())
    workspace = None if code is None else code.candidates()
    try:
        return [await _once(study, trial, run, where, executor, workspace) for run in runs]
    finally:
        await executor.close()
        if workspace is not None:
            await workspace.close()


async def _once(
    study: Study,
    trial: Trial,
    run: int,
    where: Surroundings,
    executor: LocalExecutor,
    workspace: Workspace | None,
) -> Result:
    """One run, without gates: those have been passed."""
    where = await placed(study, workspace, where, trial.number, lane=0)
    nonce = secrets.token_hex(6)
    attempt = 2 + max(each.attempt for each in trial.runs.values())  # to the candidate it is one attempt more
    wanted = job(study, trial.number, run, attempt=attempt, lane=0, nonce=nonce, where=where)
    steps = tuple(step for step in wanted.steps if not step.name.startswith(GATE))
    handle = await executor.start(msgspec.structs.replace(wanted, steps=steps))
    await executor.release(handle)
    outcome = await executor.wait(handle)
    shutil.rmtree(wanted.dir, ignore_errors=True)
    if isinstance(outcome, Gone):
        return Failed("lost", "it vanished, and nothing is left of it")
    return await amiss(study, workspace, trial.number, lane=0) or thought_of(study.the_terms).read(outcome)
