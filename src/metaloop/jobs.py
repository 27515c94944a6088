"""What a trial is told: its commands, its environment, its folder. The names that scripts rely on stand here alone."""

import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import lru_cache
from random import Random

import msgspec

from metaloop.campaigns import run_under
from metaloop.edits.contract import regex
from metaloop.roles import GATE, Bench, Job, Step, Walls
from metaloop.study import HELD_OUT, PREPARE, Study, Trial
from metaloop.terms import AgentSpec, Gate, Terms
from metaloop.values import Scalar, canonical
from metaloop.walls import Ground, around

CARRY_S = 600.0
"""Seconds that carrying what a candidate left may take."""

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
    agent: Mapping[str, str] = field(default_factory=dict)
    """Variables that a coding agent may be given; HOME is the user's own."""
    carry: tuple[str, ...] = ()
    """The command that carries what a candidate left to where it is scored."""
    scoring: str = ""
    """Where a trial is scored, if not in its own directory."""
    ground: Ground | None = None
    """What of the machine matters to trials; None where nothing keeps them from it."""
    linked: tuple[str, ...] = ()
    """What links in a candidate's directory lead to."""
    scored: tuple[str, ...] = ()
    """What links in the directory lead to where it is scored."""
    sealed: Mapping[str, str] = field(default_factory=dict)
    """Words of the command on held-out data that name files outside of the working directory, and where those are."""


def job(study: Study, trial: int, run: int, *, attempt: int, lane: int, nonce: str, where: Surroundings) -> Job:
    """The job of one attempt. Its own folder is `trials/NNNN/rR-aA-NONCE` in the study's (`trials/prepare/...`).

    The run on held-out data looks to the candidate like one more attempt of its first look: same seed, next folder.
    """
    terms, bounds = study.the_terms, study.bounds
    place = "prepare" if trial == PREPARE else f"{trial:04}"
    shown, count = (0, attempt + study.run(trial, 0).attempt) if run == HELD_OUT else (run, attempt)
    directory = f"{where.folder}/trials/{place}/r{shown}-a{count}-{nonce}"
    told = {
        "METALOOP_STUDY": where.folder,
        "METALOOP_TRIAL": "prepare" if trial == PREPARE else str(trial),
        "METALOOP_SEED": str(seed(terms, shown)),
    }
    if trial != PREPARE:
        told |= parameters(study.trials[trial].change.values) | modified(study, study.trials[trial])
    env = {**where.env, "OMP_NUM_THREADS": "1", **terms.env, **told}
    wanted = _steps(study, trial, run, directory, where)
    steps = tuple(
        msgspec.structs.replace(
            step,
            argv=(where.programs.get(step.argv[0], step.argv[0]), *step.argv[1:]),
            walls=_walls(study, step, wanted, directory, where),
        )
        for step in wanted
    )
    return Job(nonce, lane, directory, where.cwd, env, steps, bounds.limits, metrics=METRICS)


def _walls(study: Study, step: Step, steps: Sequence[Step], directory: str, where: Surroundings) -> Walls | None:
    """With the files that hold what the job's steps print: those it may read."""
    if where.ground is None:
        return None
    linked = where.scored if step.cwd else where.linked
    walls = around(study.the_terms, study.bounds.sandbox, where.ground, step, where.cwd, directory, linked)
    if walls is None or not where.ground.mounts:
        return walls
    streams = (f"{directory}/{each.name}.{end}" for each in steps for end in ("out", "err"))
    return msgspec.structs.replace(walls, read=(*walls.read, *streams))


def session(study: Study, round: int, lane: int, nonce: str, bench: Bench, where: Surroundings) -> Job:
    """The job of a coding agent in its directory, told by a file; its folder is `trials/agent-RRRR/NONCE`."""
    terms, spec = study.the_terms, study.bounds.agent
    assert spec is not None, "a policy sets an agent to work, and none was given"
    words = {"{brief}": bench.brief, "{brief_file}": bench.file, **allowed(spec)}
    argv = [_filled(word, words) for word in spec.command]
    argv[0] = where.programs.get(spec.command[0], argv[0])
    told = {"METALOOP_STUDY": where.folder, "METALOOP_BRIEF": bench.file}
    home = where.agent.get("HOME", "") if spec.home else ""
    if home:
        argv = [where.programs.get("env", "env"), f"HOME={home}", *argv]
    env = {**where.env, **{name: where.agent[name] for name in spec.env_allow if name in where.agent}, **told}
    step, directory = Step("agent", tuple(argv), spec.timeout_s), f"{where.folder}/trials/agent-{round:04}/{nonce}"
    if where.ground:
        named = (word for word in spec.command if word.startswith("/"))  # scripts, wherever they are
        ground = replace(where.ground, read=(*where.ground.read, bench.file, *named))
        ground = replace(ground, write=(*ground.write, home)) if home else ground
        step = msgspec.structs.replace(
            step, walls=around(terms, study.bounds.sandbox, ground, step, bench.cwd, directory)
        )
    return Job(nonce, lane, directory, bench.cwd, env, (step,), study.bounds.limits)


def allowed(spec: AgentSpec) -> dict[str, str]:
    """What a session may take, by its mark in the agent's command; money as plain digits, however little it is."""
    given = {} if spec.turns is None else {"{turns}": str(spec.turns)}
    return given if spec.usd is None else {**given, "{usd}": f"{Decimal(repr(spec.usd)):f}"}


def _filled(word: str, words: Mapping[str, str]) -> str:
    """In one pass: a mark that stands in what another stands for is text."""
    return re.sub("|".join(map(re.escape, words)), lambda mark: words[mark[0]], word)


def _steps(study: Study, trial: int, run: int, directory: str, where: Surroundings) -> tuple[Step, ...]:
    """The first look with its gates around it: they are of the candidate, which no repeat changes. With held-out data
    come last the command that scores on them, where the candidate is scored.
    """
    if (campaign := study.the_terms.campaign) is not None:
        wanted = {"trial": trial, "run": run, "values": run_under(study, campaign, study.trials[trial])}
        return (Step("study", ("study", canonical(wanted).decode()), study.bounds.timeout_s),)
    steps = _measured(study, trial, directory, where)
    if run == HELD_OUT:
        told, apart = {"METALOOP_METRICS": f"{directory}/{METRICS}"}, study.the_terms.tier == "separate"
        command = tuple(where.sealed.get(word, word) for word in study.the_terms.holdout)
        cwd = where.scoring if apart else ""
        return *steps, Step("holdout", command, study.bounds.timeout_s, told, cwd=cwd, fresh=apart)
    if trial == PREPARE or run:
        return steps
    gates = study.gates_of(trial)
    before, after = ([_gate(gate) for gate in gates if gate.phase == phase] for phase in ("pre", "post"))
    first = next((index for index, step in enumerate(steps) if step.name != "check"), 0)
    return *steps[:first], *before, *steps[first:], *after


def of_held_out(study: Study, trial: int, folder: str) -> bool:
    """Whether an attempt's folder of this name is of the run on held-out data."""
    attempt = re.match(r"r0-a([0-9]+)-", folder)
    return attempt is not None and trial in study.held and int(attempt[1]) > study.run(trial, 0).attempt


def _gate(gate: Gate) -> Step:
    return Step(f"{GATE}{gate.name}", gate.command, gate.timeout_s)


def _measured(study: Study, trial: int, directory: str, where: Surroundings) -> tuple[Step, ...]:
    """Only the step whose metrics count is told where to write them: with an evaluator, training has no such place.

    A separate scorer has a directory, HOME and TMPDIR that no candidate ever had, and what was carried there.
    """
    terms, bounds = study.the_terms, study.bounds
    if terms.campaign is not None:
        wanted = {"trial": trial, "run": 0, "values": run_under(study, terms.campaign, study.trials[trial])}
        return (Step("study", ("study", canonical(wanted).decode()), bounds.timeout_s),)
    if terms.tournament is not None:
        return (Step("check", _checking(terms, terms.tournament.document, where), bounds.timeout_s),)
    progress = {"METALOOP_PROGRESS": f"{directory}/{PROGRESS}"}
    measured = {"METALOOP_METRICS": f"{directory}/{METRICS}"} | progress
    if trial == PREPARE:
        return (Step("prepare", terms.prepare, bounds.prepare_timeout_s),)
    train = terms.train
    if study.trials[trial].role == "baseline" and terms.baseline.kind == "cmd":
        train = terms.baseline.cmd
    check = [Step("check", terms.check, bounds.timeout_s)] if terms.check and study.trials[trial].change.files else []
    if not terms.evaluate:
        return *check, Step("train", train, bounds.timeout_s, measured)
    trained = *check, Step("train", train, bounds.timeout_s, progress)
    if terms.tier != "separate":
        return *trained, Step("evaluate", terms.evaluate, bounds.timeout_s, measured)
    named = (word for glob in terms.outputs for word in (glob, regex(glob)))
    carry = Step("outputs", (*where.carry, where.cwd, where.scoring, *named), CARRY_S, cwd=where.scoring, fresh=True)
    return (
        *trained,
        carry,
        Step("evaluate", terms.evaluate, bounds.timeout_s, measured, cwd=where.scoring, fresh=True),
    )


def _checking(terms: Terms, document: str, where: Surroundings) -> tuple[str, ...]:
    """The command that checks a version: beside the version, and not in the folder of the files that its words name."""
    words = {"{document}": f"{where.cwd}/{document}"}
    program, *others = terms.check
    named = (f"{where.folder}/../../{word}" if word in terms.sealed else _filled(word, words) for word in others)
    return program, *named


def parameters(values: dict[str, Scalar]) -> dict[str, str]:
    """`AR_PARAMS_JSON` with all of them, and `AR_PARAM_<NAME>` for each: text as it is, the rest as JSON."""
    told = {"AR_PARAMS_JSON": msgspec.json.encode(values).decode()}
    for name, value in values.items():
        told[f"AR_PARAM_{name.upper()}"] = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return told


MODIFIED = 90 << 10
"""Bytes of one changed file that a variable is made of: with base64 it takes no more than the system allows for one."""


def modified(study: Study, trial: Trial) -> dict[str, str]:
    """`AR_MODIFIED_SOURCE`, in base64, where the candidate's code differs from the base in one small file."""
    texts = [study.contents[name].encode() for name in trial.change.files.values()]
    small = len(texts) == 1 and len(texts[0]) <= MODIFIED
    return {"AR_MODIFIED_SOURCE": b64encode(texts[0]).decode()} if small else {}


def seed(terms: Terms, run: int) -> int:
    """The seed of a run: the same for the k-th run of every candidate, so that they are compared on common ground."""
    return _thrown(terms.seed, run)


@lru_cache(maxsize=256)
def _thrown(seed: int, run: int) -> int:
    """Kept, because dice are dear and nearly every job is some trial's run 0."""
    return Random(f"{seed}/run/{run}").randrange(1 << 31)
