"""`metaloop bilevel`: the loop between runs, on documents; and how often it would keep what does nothing."""

import asyncio
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cyclopts import App, Parameter

from metaloop.acceptance import Aim
from metaloop.campaign import Nested, outer
from metaloop.campaigns import PLACEBO, base_of, came_of, kept, remedy_of, runs_of
from metaloop.cli import INTERRUPT
from metaloop.cli.documents import Options, named
from metaloop.cli.output import clean, say, tell, tell_json, write_whole
from metaloop.cli.run import Json, exit_code
from metaloop.config import Nesting, drive, surroundings
from metaloop.costs import spent
from metaloop.diagnose import ORIGINAL, SEVERITY
from metaloop.errors import UsageError
from metaloop.evaluators.campaign import gate_of, votes_of
from metaloop.events import Decided, Entry, Finished, Proposed, Refused
from metaloop.gates import Kind, passes_by_lot
from metaloop.passes import line as pass_line
from metaloop.simulation import simulate
from metaloop.study import Study, Trial
from metaloop.studyfile import StudyFile, load
from metaloop.terms import Campaign

TASKS = Path(__file__).parents[1] / "tasks"
"""The tasks that come with metaloop: a folder each, with `task.md` and `draft.md`."""

VOTES = {"majority": 3, "exact": 19}
REPLICATES = {"majority": 1, "exact": 2}

bilevel = App(
    name="bilevel", help_format="plaintext", help="The loop between runs: diagnose, change one thing, prove it."
)


@bilevel.default
def run(
    tasks: Annotated[list[str] | None, Parameter(help="Bundled tasks by name, study files, or folders.")] = None,
    /,
    *,
    options: Options = Options(),  # noqa: B008  (frozen)
    more_tasks: Annotated[list[str] | None, Parameter(name="--tasks", negative="", help="The same.")] = None,
    iterations: Annotated[int, Parameter(help="Passes of each inner run, at most.")] = 25,
    max_mechanism_trials: Annotated[int, Parameter(help="Remedies that are tried for each task; 0 for none.")] = 1,
    gate_votes: Annotated[int | None, Parameter(help="Votes of the gate; 19 for exact, 3 for majority.")] = None,
    mechanisms: Annotated[Literal["on", "off"], Parameter(help="off: the inner runs alone.")] = "on",
    out_dir: Annotated[Path, Parameter(help="Where studies and bilevel_summary.json are.")] = Path("results_bilevel"),
    gate: Annotated[Literal["majority", "exact"], Parameter(help="majority: not lost. exact: proven.")] = "exact",
    objective: Annotated[
        Literal["rounds", "calls", "stability", "quality_per_call"], Parameter(help="What a remedy has to better.")
    ] = "rounds",
    alpha: Annotated[float, Parameter(help="The level of an exact gate.")] = 0.05,
    replicates: Annotated[int | None, Parameter(help="Runs of the base; 2 for exact, 1 for majority.")] = None,
    signatures: Annotated[Literal["all", "original"], Parameter(help="original: the change request's rule.")] = "all",
    placebo: Annotated[bool, Parameter(negative="", help="Try one that changes nothing besides.")] = False,
    json: Json = False,
) -> int:
    """Improve how documents are improved: run, read what is wrong with the search, try one remedy, keep it if it earned
    its place. The same command goes on where it was interrupted.
    """
    wanted = [*(tasks or ()), *(more_tasks or ())]
    if not wanted:
        raise UsageError(f"expected a task; bundled ones: {', '.join(bundled())}; or name study files")
    trials = max_mechanism_trials if mechanisms == "on" else 0
    if trials < 0 or iterations < 1:
        raise UsageError("--max-mechanism-trials: expected 0 or more, and --iterations 1 or more")
    files = [_inner(name, options, iterations) for name in wanted]
    rules = {
        "trials": trials, "gate": gate, "votes": gate_votes or VOTES[gate], "alpha": alpha, "aim": objective,
        "replicates": replicates or REPLICATES[gate], "original": signatures == "original", "placebo": placebo,
    }  # fmt: skip
    campaigns = [outer(file, (out_dir / file.terms.name).absolute(), **rules) for file in files]  # type: ignore[arg-type]
    for file, campaign in zip(files, campaigns, strict=True):
        for line in () if json else _before(file, campaign, trials):
            say(line)
    done: list[Study] = []
    code = 0
    for file, campaign in zip(files, campaigns, strict=True):
        ended, code = _drive(file, campaign, quiet=json)
        done.append(ended)
        if code >= 128:
            break
    summary = _summary(done, gate, rules)
    out_dir.mkdir(parents=True, exist_ok=True)
    write_whole(out_dir / "bilevel_summary.json", msgspec.json.format(msgspec.json.encode(summary), indent=2).decode())
    if json:
        tell_json(summary)
        return code
    for study in done:
        for line in _told(study):
            tell(clean(line), "bold" if not line.startswith(" ") else "")
    tell(clean(f"{out_dir / 'bilevel_summary.json'} has all of it, the studies are beside it"))
    return code


def bundled() -> list[str]:
    """The names of the tasks that come with metaloop."""
    return sorted(path.parent.name for path in TASKS.glob("*/task.md"))


def _inner(name: str, options: Options, passes: int) -> StudyFile:
    """The study of a task: a file of its own, a folder with a draft and a task, or one that is bundled."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        file = load(path)
        if file.terms.tournament is None or file.terms.tournament.compare:
            raise UsageError(f"{name}: expected a tournament, found another kind of study")
        return file
    place = path if (path / "task.md").is_file() else TASKS / name
    if not (place / "task.md").is_file() or not (place / "draft.md").is_file():
        raise UsageError(
            f"expected a study file, a folder with task.md and draft.md, or {', '.join(bundled())}; found {name!r}"
        )
    own = dataclasses.replace(options, task=place / "task.md", name=named(place), out=None)
    return own.study(place / "draft.md", {"final_judges": 0}, passes, named(place))


def _drive(file: StudyFile, campaign: StudyFile, *, quiet: bool) -> tuple[Study, int]:
    """A campaign to its end."""

    def inner(name: str) -> Sequence[Callable[[Sequence[Entry], Study], None]]:
        return () if quiet else (Inner(name),)

    nested = Nested(file, campaign.folder, inner)

    def started(engine: object) -> None:
        nested.outer = engine  # type: ignore[assignment]

    nesting = Nesting(nested, nested.interrupt, started=started)
    observers = () if quiet else (_narrate,)
    ended = asyncio.run(
        drive(
            campaign, surroundings(campaign), observers=observers, interrupted=lambda: INTERRUPT.came, nesting=nesting
        )
    )
    return ended.study, exit_code(ended)


class Inner:
    """Tells of an inner study's passes."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, entries: Sequence[Entry], study: Study) -> None:
        for entry in entries:
            if isinstance(entry.event, Decided) and study.passes and study.passes[-1].round == entry.event.round:
                say(clean(f"  {self.name}  {pass_line(study, len(study.passes) - 1)}"))


def _narrate(entries: Sequence[Entry], study: Study) -> None:
    for entry in entries:
        match entry.event:
            case Proposed(trial=trial) | Refused(trial=trial) if study.trials[trial].role == "search":
                say(clean(f"trial {trial}: {study.trials[trial].proposal.why}"), "bold")
            case Finished(trial=trial, run=run):
                came = came_of(entry.event.result)
                if came is not None:
                    say(clean(f"trial {trial}, run {run}: {_rounds(came.rounds(came.trace.k))}, {came.calls} calls"))
            case Decided(decision=decision):
                say(clean(decision.why), "green" if decision.crowned is not None else "")


def _rounds(rounds: float) -> str:
    return "never converged" if rounds == float("inf") else f"converged after {rounds:g} passes"


# ---- what it costs, and what came of it ------------------------------------------------------------------------------


def _before(file: StudyFile, campaign: StudyFile, trials: int) -> Iterator[str]:
    """The worst case in calls, before anything is spent."""
    rules, own = file.terms.tournament, _own(campaign.terms.campaign)
    assert rules is not None
    one = file.bounds.max_iterations * (3 + rules.judges * (2 if rules.order == "both" else 1))
    votes = own.votes * (2 if own.gate == "exact" else 1)
    tried = trials + own.placebo
    worst = own.replicates * one + tried * (one + votes)
    yield (
        f"{file.terms.name}: at most {worst} calls: {own.replicates} x {one} for the base, {tried} x ({one} + {votes} "
        "votes) for remedies; more if a remedy adds judges, and for ballots that are asked for again"
    )


def _own(campaign: Campaign | None) -> Campaign:
    assert campaign is not None, "a campaign has rules"
    return campaign


def _summary(done: Sequence[Study], gate: Kind, rules: Mapping[str, object]) -> dict[str, object]:
    told = [_task(study) for study in done]
    votes, trials = int(str(rules["votes"])), sum(len(_remedies(study)) for study in done)
    alpha = float(str(rules["alpha"]))
    by_lot = passes_by_lot(votes, gate, alpha)
    return {
        "settings": rules,
        "tasks": told,
        "totals": {
            "tasks": len(done),
            "trials": trials,
            "accepted": sum(trial.kept for study in done for trial, _ in _remedies(study)),
            "calls": sum(_calls(study) for study in done),
            "usd": _sum([spent(study).usd for study in done]),
        },
        "false_accepts": {
            "gate_passes_by_lot": by_lot,
            "expected_at_most": by_lot * trials,
            "what": "a change without effect passes the gate this often; it has to better the objective as well",
        },
    }


def _remedies(study: Study) -> list[tuple[Trial, str]]:
    """The remedies that were tried, but for the placebo."""
    remedies = ((trial, remedy_of(trial)) for _, trial in sorted(study.trials.items()))
    return [(trial, remedy.name) for trial, remedy in remedies if remedy is not None and remedy.name != PLACEBO]


def _task(study: Study) -> dict[str, object]:
    own = _own(study.the_terms.campaign)
    base = None if study.baseline is None else study.trials[study.baseline]
    good = kept(study)
    return {
        "task": study.name,
        "ended": study.closed.why if study.closed else "interrupted",
        "base": []
        if base is None
        else [_run(came.rounds(came.trace.k), came.calls, came.usd) for came in runs_of(base)],
        "trials": [_trial(study, own, trial) for _, trial in sorted(study.trials.items()) if trial.role == "search"],
        "kept": [remedy.name for trial in good if (remedy := remedy_of(trial)) is not None],
        "calls": _calls(study),
        "usd": spent(study).usd,
    }


def _trial(study: Study, own: Campaign, trial: Trial) -> dict[str, object]:
    remedy, came = remedy_of(trial), came_of(trial.result)
    panel = next((each.panel for each in study.passes if trial.number in each.trials), None)
    gate = None if panel is None else gate_of(own, panel)
    base = base_of(study, trial.number)
    return {
        "trial": trial.number,
        "mechanism": remedy.name if remedy else None,
        "signature": remedy.signature if remedy else None,
        "evidence": trial.proposal.why,
        "edits": msgspec.to_builtins(remedy.edits) if remedy else [],
        "hash_before": remedy.before if remedy else None,
        "hash_after": remedy.after if remedy else None,
        "against_trial": None if base is None else base.number,
        "run": None if came is None else _run(came.rounds(came.trace.k), came.calls, came.usd),
        "votes": [] if panel is None else votes_of(own, panel),
        "ballots": [] if panel is None else msgspec.to_builtins(panel.ballots),
        "gate": None if gate is None else msgspec.to_builtins(gate),
        "accepted": trial.kept,
        "why": trial.why,
    }


def _run(rounds: float, calls: int, usd: float | None) -> dict[str, object]:
    return {"rounds": None if rounds == float("inf") else int(rounds), "calls": calls, "usd": usd}


def _calls(study: Study) -> int:
    """Of all inner runs, and of the votes."""
    return study.calls + sum(came.calls for trial in study.trials.values() for came in runs_of(trial))


def _sum(amounts: Sequence[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known else None


def _told(study: Study) -> Iterator[str]:
    good, tried = kept(study), _remedies(study)
    yield f"{study.name}: {len(tried)} remed{'y' if len(tried) == 1 else 'ies'} tried, {len(good)} kept"
    for trial in (trial for _, trial in sorted(study.trials.items()) if trial.role == "search"):
        remedy = remedy_of(trial)
        yield f"  {remedy.name if remedy else 'trial'}: {trial.why}"
    if not tried:
        yield "  nothing that is known to be wrong was seen: nothing was changed"
    yield f"  {_calls(study)} calls in all; it ended: {study.closed.why if study.closed else 'interrupted'}"


# ---- by simulation ---------------------------------------------------------------------------------------------------


@bilevel.command(name="simulate")
def simulated(
    *,
    campaigns: Annotated[int, Parameter(help="Campaigns that are simulated.")] = 2000,
    gate: Annotated[Literal["majority", "exact"], Parameter(help="As for bilevel.")] = "exact",
    gate_votes: Annotated[int | None, Parameter(help="19 for exact, 3 for majority.")] = None,
    alpha: Annotated[float, Parameter(help="The level of an exact gate.")] = 0.05,
    objective: Annotated[
        Literal["rounds", "calls", "stability", "quality_per_call"], Parameter(help="As for bilevel.")
    ] = "rounds",
    replicates: Annotated[int | None, Parameter(help="2 for exact, 1 for majority.")] = None,
    signatures: Annotated[Literal["all", "original"], Parameter(help="As for bilevel.")] = "all",
    skill: Annotated[float, Parameter(help="Of judges; 0: they rank by lot.")] = 0.0,
    iterations: Annotated[int, Parameter(help="Passes of each inner run, at most.")] = 15,
    seed: Annotated[int, Parameter(help="The seed of all dice.")] = 0,
    json: Json = False,
) -> int:
    """Measure how often a remedy that does nothing would be kept, with judges that are simulated. Asks no model."""
    aim: Aim = objective
    found = simulate(
        campaigns, ORIGINAL if signatures == "original" else SEVERITY, kind=gate, votes=gate_votes or VOTES[gate],
        alpha=alpha, aim=aim, replicates=replicates or REPLICATES[gate], original=signatures == "original", skill=skill,
        cap=iterations, seed=seed,
    )  # fmt: skip
    if json:
        tell_json({**msgspec.to_builtins(found), "rate": found.rate})
        return 0
    tell(f"{found.campaigns} campaigns, {found.tried} remedies tried, none of which does anything")
    tell(f"{found.kept} kept, each of them falsely: {found.rate:.1%} of those tried", "bold")
    for name, (tried, wrong) in sorted(found.by_signature.items(), key=lambda item: -item[1][0]):
        tell(f"  {name}: {wrong} of {tried}")
    return 0
