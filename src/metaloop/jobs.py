"""What a trial is told: its commands, its environment, its folder. The names that scripts rely on stand here alone."""

import json
from random import Random

from metaloop.roles import Job, Step
from metaloop.study import PREPARE, Study
from metaloop.terms import Baseline, Terms
from metaloop.values import Scalar

METRICS, PROGRESS = "metrics.json", "progress.jsonl"


def job(
    study: Study,
    trial: int,
    run: int,
    attempt: int,
    *,
    lane: int,
    nonce: str,
    folder: str,
    cwd: str,
    env: dict[str, str],
) -> Job:
    """The job of one attempt. `folder`: the study's, absolute. `env`: what is passed through from outside.

    Its own folder is `trials/NNNN/rR-aA-NONCE` in it (`prepare/...` for the preparation).
    """
    terms, bounds = study.the_terms, study.bounds
    place = "prepare" if trial == PREPARE else f"{trial:04}"
    directory = f"{folder}/trials/{place}/r{run}-a{attempt}-{nonce}"
    told = {
        "METALOOP_STUDY": folder,
        "METALOOP_TRIAL": "prepare" if trial == PREPARE else str(trial),
        "METALOOP_SEED": str(seed(terms, run)),
        "METALOOP_PROGRESS": f"{directory}/{PROGRESS}",
    }
    measured = {"METALOOP_METRICS": f"{directory}/{METRICS}"}
    if trial == PREPARE:
        steps: tuple[Step, ...] = (Step("prepare", terms.prepare, bounds.prepare_timeout_s),)
    else:
        told |= parameters(study.trials[trial].change.values)
        train = _command(terms.baseline, terms, study.trials[trial].role == "baseline")
        steps = (Step("train", train, bounds.timeout_s, {} if terms.evaluate else measured),)
        if terms.evaluate:
            steps += (Step("evaluate", terms.evaluate, bounds.timeout_s, measured),)
    whole = {**env, "OMP_NUM_THREADS": "1", **terms.env, **told}
    return Job(nonce, lane, directory, cwd, whole, steps, bounds.limits, metrics=METRICS)


def parameters(values: dict[str, Scalar]) -> dict[str, str]:
    """`AR_PARAMS_JSON` with all of them, and `AR_PARAM_<NAME>` for each: text as it is, the rest as JSON."""
    told = {"AR_PARAMS_JSON": json.dumps(values, ensure_ascii=False)}
    for name, value in values.items():
        told[f"AR_PARAM_{name.upper()}"] = value if isinstance(value, str) else json.dumps(value)
    return told


def seed(terms: Terms, run: int) -> int:
    """The seed of a run: the same for the k-th run of every candidate, so that they are compared on common ground."""
    return Random(f"{terms.seed}/run/{run}").randrange(1 << 31)


def _command(baseline: Baseline, terms: Terms, first: bool) -> tuple[str, ...]:
    return baseline.cmd if first and baseline.kind == "cmd" else terms.train
