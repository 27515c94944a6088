"""What a trial is told: its commands, its environment, its folder. The names that scripts rely on stand here alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import Random

import msgspec

from metaloop.roles import Job, Step
from metaloop.study import PREPARE, Study
from metaloop.terms import Terms
from metaloop.values import Scalar

METRICS, PROGRESS = "metrics.json", "progress.jsonl"


@dataclass(frozen=True)
class Surroundings:
    """Where trials happen: the study's folder and the working directory, both absolute; the variables that are passed
    through; and what each command's first word was found to be.
    """

    folder: str
    cwd: str
    env: Mapping[str, str]
    programs: Mapping[str, str]


def job(study: Study, trial: int, run: int, *, attempt: int, lane: int, nonce: str, where: Surroundings) -> Job:
    """The job of one attempt. Its own folder is `trials/NNNN/rR-aA-NONCE` in the study's (`trials/prepare/...`)."""
    terms, bounds = study.the_terms, study.bounds
    place = "prepare" if trial == PREPARE else f"{trial:04}"
    directory = f"{where.folder}/trials/{place}/r{run}-a{attempt}-{nonce}"
    told = {
        "METALOOP_STUDY": where.folder,
        "METALOOP_TRIAL": "prepare" if trial == PREPARE else str(trial),
        "METALOOP_SEED": str(seed(terms, run)),
        "METALOOP_PROGRESS": f"{directory}/{PROGRESS}",
    }
    if trial != PREPARE:
        told |= parameters(study.trials[trial].change.values)
    env = {**where.env, "OMP_NUM_THREADS": "1", **terms.env, **told}
    steps = tuple(
        msgspec.structs.replace(step, argv=(where.programs.get(step.argv[0], step.argv[0]), *step.argv[1:]))
        for step in _steps(study, trial, f"{directory}/{METRICS}")
    )
    return Job(nonce, lane, directory, where.cwd, env, steps, bounds.limits, metrics=METRICS)


def _steps(study: Study, trial: int, metrics: str) -> tuple[Step, ...]:
    """Only the step whose metrics count is told where to write them: with an evaluator, training has no such place."""
    terms, bounds = study.the_terms, study.bounds
    measured = {"METALOOP_METRICS": metrics}
    if trial == PREPARE:
        return (Step("prepare", terms.prepare, bounds.prepare_timeout_s),)
    train = terms.train
    if study.trials[trial].role == "baseline" and terms.baseline.kind == "cmd":
        train = terms.baseline.cmd
    if not terms.evaluate:
        return (Step("train", train, bounds.timeout_s, measured),)
    return Step("train", train, bounds.timeout_s), Step("evaluate", terms.evaluate, bounds.timeout_s, measured)


def parameters(values: dict[str, Scalar]) -> dict[str, str]:
    """`AR_PARAMS_JSON` with all of them, and `AR_PARAM_<NAME>` for each: text as it is, the rest as JSON."""
    told = {"AR_PARAMS_JSON": msgspec.json.encode(values).decode()}
    for name, value in values.items():
        told[f"AR_PARAM_{name.upper()}"] = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return told


def seed(terms: Terms, run: int) -> int:
    """The seed of a run: the same for the k-th run of every candidate, so that they are compared on common ground."""
    return _thrown(terms.seed, run)


@lru_cache(maxsize=256)
def _thrown(seed: int, run: int) -> int:
    """Kept, because dice are dear and nearly every job is some trial's run 0."""
    return Random(f"{seed}/run/{run}").randrange(1 << 31)
