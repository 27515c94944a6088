"""The loop between runs, put together: a study whose trials are studies, each run in this process under its harness.

An inner study has a folder of its own in that of the campaign, by trial and run, and its own ledger: one that was cut
off goes on where it was, whoever starts the campaign again. What it spends counts against the campaign's cap.
"""

import asyncio
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import msgspec
from msgspec.structs import replace

from metaloop.acceptance import Aim, Came
from metaloop.campaigns import told
from metaloop.config import Nesting, Outcome, drive, surroundings
from metaloop.costs import spent
from metaloop.diagnose import ORIGINAL, SEVERITY, Signature
from metaloop.engine import Engine, Observer
from metaloop.errors import MetaloopError, UsageError
from metaloop.gates import Kind, passes_by_lot
from metaloop.harness import TOURNAMENT, Setting
from metaloop.passes import text
from metaloop.roles import Gone, Job, Running, StepOutcome
from metaloop.roles import Outcome as Ended
from metaloop.studyfile import StudyFile
from metaloop.terms import PASS, Baseline, Bounds, Campaign, ModelSpec, Terms, Tournament
from metaloop.traces import of_study
from metaloop.values import Objective, canonical, digest

LEAST_EXACT = 5
"""Votes of a gate that asks for proof, at least: fewer could not reach the usual level if all of them agreed."""

# ---- the harness of an inner study -----------------------------------------------------------------------------------

FIELDS = {
    "k": "k", "margin": "margin", "tie_order": "tie_order", "scope_note": "scope", "critic.lenses": "lenses",
    "author.constraints": "held", "judges.count": "judges", "judges.order": "order", "judges.quorum": "quorum",
    "judges.strict_ballot": "strict", "judges.retries": "retries", "judges.lenses": "judge_lenses",
    "judges.dissent_slot": "dissent",
}  # fmt: skip
WORDS = {
    "critic.mode": ("hard", "hard", "normal"),
    "critic.lens_rotation": ("rotate", "round", "off"),
    "judges.prompt": ("stepwise", "stepwise", "holistic"),
}
"""Knobs that are a switch in a tournament's rules: which, and the words for on and off."""


def harness_of(file: StudyFile) -> dict[str, Setting]:
    """The values of all knobs of a tournament, as a study's file has them."""
    rules = _rules(file)
    values: dict[str, Setting] = {f"tournament.{knob}": getattr(rules, field) for knob, field in FIELDS.items()}
    values |= {f"tournament.{knob}": on if getattr(rules, field) else off for knob, (field, on, off) in WORDS.items()}
    for role in PASS:
        spec = _player(file, role)
        values |= {f"models.{role}.temperature": spec.temperature, f"models.{role}.max_tokens": spec.max_tokens}
    return {knob: values[knob] for knob in TOURNAMENT}


def under(file: StudyFile, values: Mapping[str, Setting], folder: Path, seed: int, cap: float | None) -> StudyFile:
    """The study of `file` under these values, in this folder. Raises UsageError for a value that no knob takes."""
    for name, value in values.items():
        if problem := TOURNAMENT[name].fits(value):
            raise UsageError(problem)
    rules = {field: values[f"tournament.{knob}"] for knob, field in FIELDS.items()}
    rules |= {field: values[f"tournament.{knob}"] == on for knob, (field, on, _) in WORDS.items()}
    models = dict(file.bounds.models)
    for role in PASS:
        temperature, most = (values[f"models.{role}.{knob}"] for knob in ("temperature", "max_tokens"))
        models[role] = replace(_player(file, role), temperature=temperature, max_tokens=most)
    terms = replace(file.terms, seed=seed, tournament=replace(_rules(file), **rules, final=0))
    bounds = replace(file.bounds, models=models)
    bounds = bounds if cap is None else replace(bounds, max_cost_usd=cap)
    return dataclasses.replace(
        file, terms=terms, bounds=bounds, folder=folder, path=None, config_hash=digest(canonical(terms))
    )


def _rules(file: StudyFile) -> Tournament:
    rules = file.terms.tournament
    if rules is None or rules.compare:
        raise UsageError(f"{file.terms.name}: expected a tournament, found another kind of study")
    return rules


def _player(file: StudyFile, role: str) -> ModelSpec:
    spec = file.bounds.models.get(role) or file.bounds.models.get("default")
    assert spec is not None, "every role of a tournament has somebody"
    return spec


# ---- the campaign as a study -----------------------------------------------------------------------------------------


def outer(
    file: StudyFile,
    folder: Path,
    *,
    trials: int,
    gate: Kind,
    votes: int,
    alpha: float,
    aim: Aim,
    replicates: int,
    original: bool,
    placebo: bool,
) -> StudyFile:
    """The campaign over the study of `file`."""
    rules = _rules(file)
    if gate == "exact" and votes < LEAST_EXACT:
        raise UsageError(
            f"--gate-votes: expected {LEAST_EXACT} or more with --gate exact, found {votes}: fewer prove nothing"
        )
    if gate == "exact" and not passes_by_lot(votes, "exact", alpha):
        raise UsageError(f"--gate-votes: {votes} that all agree have a p above {alpha:g}; raise it, or --alpha")
    order: Sequence[Signature] = ORIGINAL if original else SEVERITY
    inner = digest(canonical(replace(file.terms, tournament=replace(rules, final=0))))
    campaign = Campaign(
        inner, rules.document, harness_of(file), file.bounds.max_iterations, tuple(order), gate, votes, alpha, aim,
        replicates if trials else 1, original, placebo and trials > 0,
    )  # fmt: skip
    terms = Terms(
        file.terms.name, Objective("rounds", "min"), (), "bilevel", {}, seed=file.terms.seed,
        baseline=Baseline(repeats=max(1, campaign.replicates)), campaign=campaign,
    )  # fmt: skip
    bounds = Bounds(
        max_iterations=trials + (placebo and trials > 0), no_improve_limit=0, failure_rate_limit=1.0, timeout_s=1e9,
        max_wall_time_s=file.bounds.max_wall_time_s, models=file.bounds.models, max_cost_usd=file.bounds.max_cost_usd,
    )  # fmt: skip
    return dataclasses.replace(
        file, terms=terms, bounds=bounds, folder=folder, path=None, config_hash=digest(canonical(terms))
    )


# ---- studies as runs -------------------------------------------------------------------------------------------------


class Nested:
    """`roles.Executor` for studies: a run is an inner study, in this process. A handle says nothing to another one."""

    def __init__(self, file: StudyFile, folder: Path, observers: Callable[[str], Sequence[Observer]]) -> None:
        """`observers`: who hears of an inner study, by what it is called."""
        self.file, self.folder, self.observers = file, folder, observers
        self.outer: Engine | None = None
        self._jobs: dict[str, Job] = {}
        self._tasks: dict[str, asyncio.Task[Ended]] = {}
        self._engines: dict[str, Engine] = {}
        self._interrupted = False

    async def start(self, job: Job) -> str:
        self._jobs[job.nonce] = job
        return job.nonce

    async def release(self, handle: str) -> None:
        self._begin(handle)

    def _begin(self, handle: str) -> None:
        if handle not in self._tasks:
            self._tasks[handle] = asyncio.ensure_future(self._run(handle, self._jobs[handle]))

    async def look(self, handle: str) -> Running | Ended | Gone:
        if handle not in self._jobs:
            return Gone()
        task = self._tasks.get(handle)
        return Running(blocked=task is None) if task is None or not task.done() else task.result()

    async def wait(self, handle: str) -> Ended | Gone:
        if handle not in self._jobs:
            return Gone()
        self._begin(handle)
        return await asyncio.shield(self._tasks[handle])

    async def read(self, handle: str, name: str, offset: int) -> bytes:  # noqa: ARG002  (a study reports nothing)
        return b""

    async def stop(self, handle: str) -> Ended | Gone:
        if handle not in self._jobs:
            return Gone()
        if (engine := self._engines.get(handle)) is not None:
            engine.interrupt(0.0)
        return _stopped(0.0)

    async def close(self, *, keep: bool = False) -> None:  # noqa: ARG002  (nothing outlives this process)
        for engine in self._engines.values():
            engine.interrupt(0.0)
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def interrupt(self) -> None:
        """A signal came: inner studies end in order, and then the campaign does."""
        self._interrupted = True
        for engine in self._engines.values():
            engine.interrupt()
        if not self._engines and self.outer is not None:
            self.outer.interrupt(0.0)

    async def _run(self, handle: str, job: Job) -> Ended:
        began = time.monotonic()
        wanted = msgspec.json.decode(job.steps[0].argv[-1])
        name = f"{wanted['trial']:04}-{wanted['run']}"
        values = {knob: _setting(value) for knob, value in wanted["values"].items()}
        try:
            file = under(
                self.file, values, self.folder / "inner" / name, self.file.terms.seed + wanted["run"], self._left()
            )
            nesting = Nesting(signals=False, started=lambda engine: self._engines.__setitem__(handle, engine))
            ended = await drive(file, surroundings(file), observers=self.observers(name), nesting=nesting)
        except MetaloopError as error:
            return Ended((StepOutcome("study", 1, None, None, time.monotonic() - began, "", str(error)),))
        finally:
            self._engines.pop(handle, None)
        if self._interrupted or ended.closed is None:
            if self.outer is not None:
                self.outer.interrupt(0.0)
            await asyncio.Event().wait()  # it is gone on with by whoever starts the campaign again
        return Ended((_came(ended, time.monotonic() - began),))

    def _left(self) -> float | None:
        """What an inner study may cost: what is left of the campaign's cap."""
        cap = self.file.bounds.max_cost_usd
        if cap is None or self.outer is None:
            return cap
        return max(0.0, cap - (spent(self.outer.study).usd or 0.0))


def _setting(value: object) -> Setting:
    return tuple(value) if isinstance(value, list) else cast(Setting, value)


def _stopped(seconds: float) -> Ended:
    return Ended((StepOutcome("study", None, None, "stopped", seconds, "", ""),))


def _came(ended: Outcome, seconds: float) -> StepOutcome:
    """What an inner study came to, as a step's output."""
    study = ended.study
    if not study.passes and ended.closed is not None and ended.closed.reason not in ("converged", "max_iterations"):
        return StepOutcome("study", 1, None, None, seconds, "", ended.closed.why)
    usage = spent(study)
    came = Came(of_study(study), text(study), study.calls, usage.usd)
    return StepOutcome("study", 0, None, None, seconds, told(came), "")
