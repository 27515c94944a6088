"""A study as rows, for people and tools: one row a trial, with a status, a decision and what it was compared with."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec

from metaloop.events import Role
from metaloop.study import Run, Study, Trial, Verdict
from metaloop.terms import Tier
from metaloop.values import Edit, Failed, Headline, Params, Pruned, Ran, Refused, Result, Scalar, Stopped, plain

Status: TypeAlias = Literal[
    "pending",
    "running",
    "ok",
    "failed",
    "timeout",
    "invalid_metric",
    "lost",
    "interrupted",
    "stopped",
    "pruned",
    "refused",
]


class Row(msgspec.Struct, frozen=True):
    """One trial. `noise` is the gain in standard deviations of the baseline, None where that is not known or zero.

    `gain`: against the incumbent it was compared with (`against`); positive is better. `seconds`: of all its runs.
    """

    trial: int
    round: int
    role: Role
    status: Status
    verdict: Verdict
    decision: Literal["keep", "discard", ""]
    params: dict[str, Scalar]
    metrics: dict[str, float]
    tasks: dict[str, float] = {}
    value: float | None = None
    runs: int = 0
    sd: float | None = None
    gain: float | None = None
    noise: float | None = None
    against: int | None = None
    parent: int | None = None
    """What it grew from, if from anything."""
    changed: tuple[str, ...] = ()
    seconds: float = 0.0
    by: str = ""
    why: str = ""
    reason: str = ""
    failure: str = ""
    """Of a failure, its class: build, evaluation, hypothesis, cheating, limit, metric or lost."""
    code: str = ""
    """Of a refusal: stable, for programs."""
    fallback: str = ""
    fingerprint: str = ""
    comparable: bool = True
    tier: Tier | Literal[""] = ""
    """Where its number comes from (`terms.Tier`)."""
    rung: str = ""
    """What held its process tree: bubblewrap, landlock or none; empty where nobody recorded it."""
    attempts: int = 0
    files: dict[str, str] = {}
    """The digests of what its code has over the base, by path."""
    holdout: float | None = None
    holdout_problem: str = ""
    """What it came to on held-out data, at the study's end; or why nothing."""


TIERS: dict[Tier, str] = {
    "parameters": "your own programs; candidates are parameters alone",
    "separate": "a separate scorer, on what candidates leave behind",
    "in-process": "a program in whose process candidates run: not verified",
    "stdout": "candidates themselves, who print it: not verified",
}
"""Who says what a trial is worth, in words."""

HELD = {
    "bubblewrap": "in bubblewrap",
    "landlock": "by Landlock",
    "none": "by limits alone, without a sandbox",
}
"""What holds a trial's process tree, in words."""


def scored(study: Study, trial: Trial | None = None) -> str:
    """Who says what trials are worth, and what they are held by: all of them now, or this one."""
    if (rules := study.the_terms.tournament) is not None:
        return f"by a blind panel of {rules.final if rules.compare else rules.judges}"
    held = study.sandbox if trial is None else study.isolated(trial)
    return f"by {TIERS[study.the_terms.tier]}" + (f"; held {HELD[held.name]}" if held else "")


def rows(study: Study) -> Iterator[Row]:
    """Every trial there ever was, by number."""
    return (row(study, study.trials[number]) for number in sorted(study.trials))


def _against(study: Study, trial: Trial) -> int | None:
    """What a trial was compared with: what wore the crown that it won; else, for code, the kept trial it grew from."""
    test = trial.score.test if trial.score else None
    if test is not None:
        deciding = test.deciding if trial.crowned else test
        return (deciding or test).against
    parent = trial.proposal.parent
    grown = study.the_terms.mutable and isinstance(trial.change, Edit) and not trial.crowned
    return parent if grown and parent is not None and study.trials[parent].kept else trial.beat


def row(study: Study, trial: Trial) -> Row:
    against = _against(study, trial)
    holder = None if against is None else study.trials[against]
    gain = noise = None
    if trial.score and holder and holder.score and study.the_terms.tournament is None:  # points are of one panel alone
        gain = study.objective.gain(trial.score.value, holder.score.value)
        width = noise_width(study)
        noise = gain / width if width else None
    reference = study.reference
    first = trial.result
    return Row(
        trial=trial.number,
        round=trial.round,
        role=trial.role,
        status=status(trial),
        verdict=trial.verdict,
        decision="" if trial.decided_at is None else "keep" if trial.kept else "discard",
        params=trial.change.values,
        metrics=first.metrics if isinstance(first, Ran) else {},
        tasks=(first.tasks or {}) if isinstance(first, Ran) else {},
        value=trial.score.value if trial.score else None,
        runs=trial.score.runs if trial.score else 0,
        sd=trial.score.sd if trial.score else None,
        gain=gain,
        noise=noise,
        against=against,
        parent=trial.proposal.parent,
        changed=()
        if unmade(study, trial)
        else (
            *study.changed_code(trial.change, holder.change if holder else None),
            *changed(trial.change.values, holder.change.values if holder else {}),
        ),
        files={} if unmade(study, trial) else trial.change.files,
        seconds=sum(getattr(run.last, "seconds", 0.0) for run in trial.runs.values()),
        by=trial.proposal.by,
        why=trial.why,
        reason=getattr(first, "reason", ""),
        failure=first.kind if isinstance(first, Failed) else "",
        code=getattr(first, "code", ""),
        fallback=trial.proposal.fallback,
        fingerprint=trial.fingerprint,
        comparable=not reference or reference == trial.fingerprint,
        tier=study.the_terms.tier,
        rung="" if (held := study.isolated(trial)) is None else held.name,
        attempts=sum(run.attempt for run in trial.runs.values()),
        holdout=study.held_value(trial.number),
        holdout_problem=held_problem(study, trial.number),
    )


def unmade(study: Study, trial: Trial) -> bool:
    """Whether a refused trial has no change of its own, but its parent's: what was asked for could not be made one."""
    parent = trial.proposal.parent
    before = Params({}) if parent is None else study.trials[parent].change
    return trial.refusal is not None and bool(study.the_terms.mutable) and trial.change in (before, Params({}))


def noise_width(study: Study) -> float | None:
    """The standard deviation of one run, by all re-runs there were; None while there was none."""
    return study.evidence[-1][1].width()


def status(trial: Trial) -> Status:
    """What became of it, in one word."""
    if trial.refusal:
        return "refused"
    if any(run.running for run in trial.runs.values()):
        return "running"
    judged = trial.result is None and trial.score is not None
    return "ok" if judged else _status(trial.result)


def _status(result: Result | None) -> Status:
    match result:
        case None:
            return "pending"
        case Ran():
            return "ok"
        case Failed(kind="limit"):
            return "timeout" if "time limit" in result.reason else "failed"
        case Failed(kind="metric"):
            return "invalid_metric"
        case Failed(kind="lost"):
            return "lost"
        case Failed():
            return "failed"
        case Stopped(by="interrupt"):
            return "interrupted"
        case Stopped():
            return "stopped"
        case Pruned():
            return "pruned"
        case Refused():
            return "refused"


def changed(new: Mapping[str, Scalar], old: Mapping[str, Scalar]) -> tuple[str, ...]:
    """`name=value` for every parameter that differs; 0 and false are two values."""
    differ = (name for name in new if name not in old or (type(new[name]), new[name]) != (type(old[name]), old[name]))
    return tuple(f"{name}={short(new[name])}" for name in differ)


def short(value: Scalar) -> str:
    """A value in a few characters: four significant digits of a float, everything of the rest."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


# ---- on held-out data ------------------------------------------------------------------------------------------------

SMALL = 0.5
"""Below this share of the gain that was searched for, what is left of it on held-out data is called small."""


class HeldOut(msgspec.Struct, frozen=True):
    """The best against the baseline, as searched and on held-out data, where each was run once. `problems`: why a trial
    has no value there. Gains: positive is better, None where one is not known. `said`: where it does not hold, that.
    """

    best: int | None
    baseline: int | None
    values: dict[int, float]
    problems: dict[int, str]
    searched: float | None = None
    gain: float | None = None
    said: str = ""


def held_out(study: Study) -> HeldOut | None:
    """None where nothing was scored on held-out data, or will be."""
    best, baseline = study.tally.incumbent, study.baseline
    ends = {n for n in (best, baseline) if n is not None} if study.the_terms.holdout and study.closed else set()
    numbers = sorted(ends | {number for number, run in study.held.items() if run.settled})
    if not numbers:
        return None
    found = {number: study.held_value(number) for number in numbers}
    values = {number: value for number, value in found.items() if value is not None}
    problems = {n: held_problem(study, n) or "the study ended before that" for n in numbers if n not in values}
    told = HeldOut(best, baseline, values, problems)
    if best is None or baseline is None or best == baseline:
        return told
    new, old = study.trials[best].score, study.trials[baseline].score
    if not new or not old or best not in values or baseline not in values:
        return told
    searched = study.objective.gain(new.value, old.value)
    gain = study.objective.gain(values[best], values[baseline])
    return msgspec.structs.replace(told, searched=searched, gain=gain, said=_holds(best, searched, gain))


def held_problem(study: Study, number: int) -> str:
    """Why a trial that was to be scored on held-out data has no value there."""
    run = study.held.get(number)
    if run is None or not run.settled or isinstance(run.last, Ran):
        return ""
    return str(getattr(run.last, "reason", ""))


def _holds(best: int, searched: float, gain: float) -> str:
    """What has to be said of a gain that is not what it was on held-out data; nothing where it is."""
    if gain <= 0:
        than = f"worse than the baseline by {-gain:.4g}" if gain else "no better than the baseline"
        return f"On held-out data trial {best} is {than}: its gain in the search, {searched:.4g}, does not hold there."
    if gain >= SMALL * searched:
        return ""
    left = f"{gain:.4g} of the {searched:.4g} that trial {best} gained in the search ({100 * gain / searched:.0f} %)"
    return f"On held-out data {left} is left: the rest may be fitted to the data of the search."


class Totals(msgspec.Struct, frozen=True):
    """How many trials there are of each status (they sum to `trials`); `settled` ones are decided."""

    trials: int
    settled: int
    by_status: dict[str, int]
    fallbacks: int
    executions: int
    runs: int = 0


def totals(study: Study) -> Totals:
    """`executions`: one a trial that ran, and one more each time that a run had to be started again. `runs`: every time
    that a candidate was run, with repeats and proofs; not where it failed before it came to that.
    """
    counts: dict[str, int] = {}
    again = 0
    for trial in study.trials.values():
        counts[status(trial)] = counts.get(status(trial), 0) + 1
        again += sum(max(0, run.attempt - 1) for run in trial.runs.values()) + any(
            run.attempt for run in trial.runs.values()
        )
    settled = sum(trial.decided_at is not None for trial in study.trials.values())
    runs = sum(_came_to_run(run) for trial in study.trials.values() for run in trial.runs.values())
    return Totals(len(study.trials), settled, counts, study.fallbacks, again, runs)


def _came_to_run(run: Run) -> int:
    return run.attempt - (isinstance(run.last, Failed) and run.last.kind == "build" and run.attempt > 0)


def proof(headline: Headline, *, brief: bool = False) -> str:
    """What the last measurement says, which no selection went into; nothing where nothing came of it."""
    if headline.problem or headline.gain is None:
        return ""
    sign = 1 if headline.gain >= 0 else -1
    word = "Better" if sign > 0 else "Worse"
    said = f"{word} than the baseline by {plain(abs(headline.gain))}"
    if headline.exact:
        return f"{said}; the metric never varied between runs."
    ends = sorted(sign * end for end in (headline.low, headline.high) if end is not None)
    interval = f" [{' to '.join(map(plain, ends))}, 95 %]" if ends else ""
    pairs = f"{headline.pairs} pair{'s' * (headline.pairs != 1)}"
    if brief:
        return f"{said}{interval} over {headline.pairs} fresh {pairs.partition(' ')[2]}."
    return f"{said}{interval}, over {pairs} of runs on fresh seeds that were made for this at the end."


def most_failed_at(study: Study) -> str:
    """The gate at which most of the newest trials failed that failed at one which still holds; empty without any."""
    recent = (study.trials[number].gate for number in study.tally.recent if number not in study.freed)
    return next((name for name, _ in Counter(filter(None, recent)).most_common(1)), "")


def gates(study: Study) -> Iterator[str]:
    """What has to be passed, in words."""
    for gate, root in study.gates.values():
        where = [*(["post"] if gate.phase == "post" else []), *([] if root is None else [f"from trial {root} on"])]
        yield gate.name + (f" ({', '.join(where)})" if where else "")


def gates_set(study: Study) -> Iterator[str]:
    """Of what has to be passed and was not from the beginning: since when, by whom and why, in words."""
    for (gate, _), name in zip(study.gates.values(), gates(study), strict=True):
        asked = [(event, at) for event, at in zip(study.regated, study.regated_at, strict=True) if event.gate == gate]
        if asked:
            event, at = asked[-1]
            first = min((number for number, passed in study.gated.items() if gate in passed), default=None)
            told = "no trial has had to pass it so far" if first is None else f"trial {first} was the first to be tried"
            yield (
                f"{name} was set by {event.by} after {at:.0f} s" + (f": {event.why}" if event.why else "") + f"; {told}"
            )


def passed(study: Study, trial: Trial) -> list[str]:
    """The gates that a trial has passed, by name: those that held when it began. None, unless it ran to its end."""
    missing = untried(study, trial)
    had = study.gated.get(trial.number, ()) if isinstance(trial.result, Ran) else ()
    return [gate.name for gate in had if gate.name not in missing]


def untried(study: Study, trial: Trial) -> list[str]:
    """The gates, by name, that a trial which ran would have to pass now, and that were set after it had begun."""
    had = study.gated.get(trial.number, ())
    return [gate.name for gate in study.gates_of(trial.number) if gate not in had] if trial.score is not None else []
