"""What may be said before a study begins, from numbers alone: the baseline's runs, and the budget there is.

Runs nothing and reads nothing. Everything is found at once; a finding says what was seen and what to type next, and an
error carries the exit code that it leads to.

Not covered: whether a metric measures what is meant. A sabotage that the metric does not notice is the nearest to that.
"""

import math
import re
import shlex
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from statistics import fmean, stdev
from typing import Literal, TypeAlias

import msgspec

from metaloop.errors import BaselineError, BudgetError, ConfigError
from metaloop.evaluators.noise import t_tail
from metaloop.roles import Reached
from metaloop.terms import Bounds, ModelSpec, Terms
from metaloop.values import Failed, Objective, Ran, Result, size

Level: TypeAlias = Literal["error", "warning", "note"]

SLOW = 0.5
"""The share of its time limit that a run may take before somebody is warned."""

DOUBT = 0.025
"""A single run that lies outside what 19 of 20 runs of the baseline would give is beyond noise: 2.5 % a side."""


class Finding(msgspec.Struct, frozen=True):
    """`code` is stable and for programs; `text` and `next` (what to type) are for people. `exit`: 0 does not block."""

    code: str
    level: Level
    text: str
    next: str = ""
    exit: int = 0


class Seen(msgspec.Struct, frozen=True):
    """What came of a try in a throw-away study. `runs`: of the last baseline that was tried, in order.

    `prepare`: None where there is no such command. `fallback`: why the middle of the space was measured, if it was.
    `ended`: the reason for which the study closed. `sabotage`, `noop`: None where none were tried.
    """

    runs: tuple[Result, ...]
    prepare: Result | None = None
    fallback: str = ""
    ended: str = ""
    sabotage: Result | None = None
    noop: Result | None = None


class Numbers(msgspec.Struct, frozen=True):
    """What was measured, and what follows for the budget; None where it is not known.

    `share`: sd over the mean's size. `trials`: that the wall clock pays for, of `wanted`; `total_s`: until those are
    done. What it costs to prove a candidate is not in it.
    """

    metric: str
    direction: str
    values: tuple[float, ...]
    mean: float
    sd: float | None
    share: float | None
    run_s: float
    timeout_s: float
    prepare_s: float
    baseline_s: float
    trials: int
    wanted: int
    total_s: float
    max_wall_time_s: float
    lanes: int
    session_s: float | None = None
    """What a session of a coding agent may take before each trial, where one proposes: in none of the others."""


def numbers(terms: Terms, bounds: Bounds, seen: Seen) -> Numbers | None:
    """The numbers of a baseline that could be measured; None for one that could not."""
    good = [run for run in seen.runs if isinstance(run, Ran)]
    if not good:
        return None
    values = tuple(run.metrics[terms.objective.metric] for run in good)
    mean = fmean(values) if len(set(values)) > 1 else values[0]
    sd = stdev(values) if len(values) > 1 else None
    run_s = fmean(run.seconds for run in good)
    prepare_s = seen.prepare.seconds if isinstance(seen.prepare, Ran) else 0.0
    baseline_s = run_s * (1 + math.ceil((terms.baseline.repeats - 1) / bounds.lanes))
    points = None if terms.mutable else size(terms.space)
    wanted = min(bounds.max_iterations, points or bounds.max_iterations)
    left = bounds.max_wall_time_s - prepare_s - baseline_s
    trials = max(0, min(wanted, math.floor(left / max(run_s, 1e-3)) * bounds.lanes))
    return Numbers(
        metric=terms.objective.metric,
        direction=terms.objective.direction,
        values=values,
        mean=mean,
        sd=sd,
        share=abs(sd / mean) if sd is not None and mean else None,
        run_s=run_s,
        timeout_s=bounds.timeout_s,
        prepare_s=prepare_s,
        baseline_s=baseline_s,
        trials=trials,
        wanted=wanted,
        total_s=prepare_s + baseline_s + run_s * math.ceil(trials / bounds.lanes),
        max_wall_time_s=bounds.max_wall_time_s,
        lanes=bounds.lanes,
        session_s=bounds.agent.timeout_s if bounds.agent else None,
    )


def findings(terms: Terms, bounds: Bounds, seen: Seen) -> list[Finding]:
    """All there is to say of a try, worst first."""
    told = numbers(terms, bounds, seen)
    found = [*_unmeasured(terms, bounds, seen)] if told is None else [*_measured(terms, seen, told)]
    return sorted(found, key=lambda finding: ("error", "warning", "note").index(finding.level))


def believing(terms: Terms) -> Iterator[Finding]:
    """What keeps a candidate from saying its own number, where nothing does."""
    if terms.tier in ("in-process", "stdout"):
        who = "print their own metric" if terms.tier == "stdout" else "run in the process that measures them"
        how = "have them leave files, name those in target.outputs, and score them by a target.eval_cmd"
        yield Finding("tier", "note", f"candidates {who}, and could forge it", how)


# ---- before anything runs --------------------------------------------------------------------------------------------

_LOSSES = re.compile(r"loss|error|perplexity|latency", re.IGNORECASE)
_GAINS = re.compile(r"accuracy|score|reward|(?<![a-z0-9])f1(?![a-z0-9])", re.IGNORECASE)
_NEGATED = re.compile(r"(?<![a-z])(?:neg|negative|minus|inverse|inv)(?![a-z])", re.IGNORECASE)


def wrong_sign(objective: Objective) -> Finding | None:
    """A direction that the metric's name speaks against. A name that says both, or a negation, says nothing."""
    name, loss, gain = objective.metric, _LOSSES.search(objective.metric), _GAINS.search(objective.metric)
    if bool(loss) == bool(gain) or _NEGATED.search(name):
        return None
    other: Literal["max", "min"] = "min" if loss else "max"
    if objective.direction == other:
        return None
    kind = "a loss, which gets better downwards" if loss else "a gain, which gets better upwards"
    text = f"objective.direction is {objective.direction}, and {name!r} sounds like {kind}"
    return Finding("wrong_sign", "warning", text, f"direction: {other}, unless it is meant")


def outlasting(bounds: Bounds) -> Finding | None:
    """A coding agent that may work for as long as the whole study lasts."""
    most, agent = bounds.max_wall_time_s, bounds.agent
    if agent is None or agent.timeout_s < most:
        return None
    text = f"a session may take {agent.timeout_s:g} s (policy.agent.timeout_s), and all of the study {most:g} s"
    advice = "raise controller.max_wall_time_s to many times that, or lower policy.agent.timeout_s"
    return Finding("session_outlasts", "error", text, advice, BudgetError.code)


def provider(role: str, who: str, reached: Reached, spec: ModelSpec, *, stand_in: bool) -> Finding:
    """Whether the model of a role can be asked, by what came of asking for the list of models at `who`.

    No answer and a refused key block the study, unless somebody stands in.
    """
    level: Level = "warning" if stand_in else "error"
    exit = 0 if stand_in else ConfigError.code
    said = (
        f"{role}: {who}: " + (f"{reached.status}: " if reached.status else "") + (reached.problem or "no reason given")
    )
    key = f"put a key that holds into {spec.key_env}" if spec.key_env else f"models.{role}.api_key_env: VARIABLE"
    if not reached.status:
        return Finding("provider_silent", level, said, f"start the server, or mend models.{role}.base_url", exit)
    if reached.status in (401, 403):
        return Finding("key_refused", level, said, key, exit)
    if 300 <= reached.status < 400:
        text = f"{role}: {who}: it redirects to {reached.problem}, where no key is sent"
        return Finding("provider_astray", level, text, f"models.{role}.base_url: the final address", exit)
    if reached.status == 429 or reached.status >= 500:
        return Finding("provider_busy", "warning", said, "check again; a study waits until it answers")
    if reached.models and spec.model not in reached.models:
        near, count = get_close_matches(spec.model, reached.models, n=1) or reached.models[:1], len(reached.models)
        text = f"{role}: {who} answers, and does not list this model; it lists {count}, {near[0]!r} among them"
        return Finding("model_unlisted", "warning", text, f"models.{role}.model: NAME")
    has = ", and lists this model" if reached.models else f" ({reached.status}), and has no list of models"
    return Finding("provider", "note", f"{role}: {who} answers{has}")


# ---- a baseline that could not be measured ---------------------------------------------------------------------------


def _unmeasured(terms: Terms, bounds: Bounds, seen: Seen) -> Iterator[Finding]:
    if isinstance(seen.prepare, Failed):
        by_hand = f"run it by hand in {terms.workdir}: {' '.join(terms.prepare)}"
        yield Finding("prepare_failed", "error", seen.prepare.reason, by_hand, BaselineError.code)
        return
    if seen.ended == "wall_clock":
        text = f"controller.max_wall_time_s ({bounds.max_wall_time_s:g} s) was used up before the baseline was measured"
        yield Finding("budget", "error", text, "raise controller.max_wall_time_s", BudgetError.code)
        return
    reason = next((run.reason for run in seen.runs if not isinstance(run, Ran)), "it never ran")
    advice = _remedy(terms, bounds, seen.runs)
    yield Finding("baseline_failed", "error", f"the baseline failed: {reason}", advice, BaselineError.code)
    yield from _fallback(seen)


def _remedy(terms: Terms, bounds: Bounds, runs: Sequence[Result]) -> str:
    """What to type next, by the kind of the first failure."""
    metric = terms.objective.metric
    commands = {gate.name: gate.command for gate in terms.gates}
    match next((run for run in runs if isinstance(run, Failed)), None):
        case Failed(gate=name) if name in commands:
            return f"run gate {name} by hand in {terms.workdir}: {shlex.join(commands[name])}"
        case Failed(kind="metric"):
            return f"print {metric}=NUMBER on a line of its own, or name in objective.metric what is printed"
        case Failed(kind="limit", reason=reason) if "time limit" in reason:
            return f"raise target.timeout_s ({bounds.timeout_s:g} s), or measure on less"
        case Failed(kind="limit"):
            return "raise that limit under target.limits"
    command = terms.baseline.cmd or terms.train
    return f"run it by hand in {terms.workdir}: {' '.join(command)}"


def _fallback(seen: Seen) -> Iterator[Finding]:
    if seen.fallback:
        text = (
            f"the script does not run without parameters ({seen.fallback}): the middle of the space was tried instead"
        )
        yield Finding("no_defaults", "warning", text, "give it defaults, or say baseline: {params: {...}}")


# ---- one that could --------------------------------------------------------------------------------------------------


def _measured(terms: Terms, seen: Seen, told: Numbers) -> Iterator[Finding]:
    yield from _fallback(seen)
    yield from _reported(seen)
    yield from _degenerate(terms.objective, told)
    yield from _noise(terms, told)
    yield from _time(terms, told)
    yield from _budget(terms, told)
    if terms.space or terms.mutable:  # they are points of it, or patches
        yield from _sabotage(terms, seen, told)
        yield from _noop(terms, seen, told)


def _reported(seen: Seen) -> Iterator[Finding]:
    """Runs that failed beside others that did not, and what reading the numbers gave rise to."""
    failed = [run.reason for run in seen.runs if isinstance(run, Failed)]
    if failed:
        text = f"{len(failed)} of {len(seen.runs)} runs of the baseline failed: {failed[0]}"
        yield Finding("flaky", "warning", text, "as many trials will fail: run it by hand with other METALOOP_SEEDs")
    warnings = dict.fromkeys(text for run in seen.runs if isinstance(run, Ran) for text in run.warnings)
    yield from (Finding("output", "warning", text, "print the metric once, at the end") for text in warnings)


def _degenerate(objective: Objective, told: Numbers) -> Iterator[Finding]:
    """Values that hint at an instrument that is broken, or at nothing that is left to do."""
    signed = objective.plausible is not None and objective.plausible[0] < 0
    if told.mean == 0 and not any(told.values) and objective.direction == "max" and not signed:
        text = f"{told.metric} is exactly 0 in every run: where more is better, that is rather a broken instrument"
        yield Finding(
            "zero", "warning", text, "check what is compared with what; objective.plausible sets such values aside"
        )
    if (goal := objective.reached(told.mean)) is not None:
        key = "target" if goal == objective.target else "ceiling"
        at = f"at objective.{key} ({goal:g}) already"
        text = f"the baseline's {told.metric} of {told.mean:g} is {at}: the study would end at once"
        yield Finding("nothing_to_gain", "warning", text, f"move objective.{key}, or check how the metric is computed")


def _noise(terms: Terms, told: Numbers) -> Iterator[Finding]:
    count = len(told.values)
    if told.sd is None:
        text = "the noise is not known: the baseline was measured once"
        yield Finding("noise_unknown", "note", text, "evaluation.baseline_repeats: 3")
    elif told.sd == 0:
        text = f"equal over {count} seeds: deterministic, so no extra run will be spent on proof"
        yield Finding("constant", "note", text, "if it should vary, use METALOOP_SEED for all dice")
    elif terms.rule == "strict":
        text = f"noise: sd {told.sd:.3g}{_share(told)}; by rule strict a gain of that size may be luck"
        yield Finding("noise", "note", text, "evaluation.rule: proven")
    else:
        text = f"noise: sd {told.sd:.3g}{_share(told)}; a gain has to be proven against it, on further runs"
        yield Finding("noise", "note", text)


def _share(told: Numbers) -> str:
    return "" if told.share is None else f", {100 * told.share:.2g} % of the mean"


def _time(terms: Terms, told: Numbers) -> Iterator[Finding]:
    """Each command has its own time limit, so two of them may take twice as long."""
    commands = 2 if terms.evaluate else 1
    part = told.run_s / (told.timeout_s * commands)
    if part > SLOW:
        text = f"a run takes {told.run_s:.3g} s, {100 * part:.0f} % of target.timeout_s: slower trials will be cut off"
        yield Finding("slow", "warning", text, f"target.timeout_s: {_round_up(3 * told.run_s / commands):g}")


def _budget(terms: Terms, told: Numbers) -> Iterator[Finding]:
    first = told.prepare_s + told.baseline_s
    what = "prepare, baseline and one trial" if terms.prepare else "the baseline and one trial"
    if first + told.run_s > told.max_wall_time_s:
        text = f"{what} take {first + told.run_s:.3g} s, and controller.max_wall_time_s is {told.max_wall_time_s:g}"
        enough = f"controller.max_wall_time_s: {_whole(told):g} pays for {told.wanted} trials"
        yield Finding("budget", "error", text, enough, BudgetError.code)
    elif told.trials < told.wanted:
        trials = f"about {told.trials} of {told.wanted} trials"
        text = f"controller.max_wall_time_s ({told.max_wall_time_s:g}) pays for {trials}"
        yield Finding("budget", "note", text, f"controller.max_wall_time_s: {_whole(told):g} pays for all of them")


def _whole(told: Numbers) -> float:
    """Seconds that pay for every trial, and a tenth more."""
    rounds = math.ceil(told.wanted / told.lanes)
    return _round_up(1.1 * (told.prepare_s + told.baseline_s + told.run_s * rounds))


def _round_up(seconds: float) -> float:
    """To two digits, and at least a second."""
    scale = 10.0 ** max(0, math.floor(math.log10(max(seconds, 1.0))) - 1)
    return math.ceil(seconds / scale) * scale


# ---- what must be noticed, and what must not -------------------------------------------------------------------------


def _sabotage(terms: Terms, seen: Seen, told: Numbers) -> Iterator[Finding]:
    objective = terms.objective
    code, values = "check: {sabotage: worse.patch}", "check: {sabotage: {...}} with parameters"
    example = f"{code if terms.mutable else values} that must score worse"
    match seen.sabotage:
        case None:
            yield Finding("sabotage_unchecked", "note", "not checked: whether the metric notices a sabotage", example)
        case Ran(metrics=metrics):
            value = metrics[objective.metric]
            text = f"sabotage scores {value:g}, the baseline {told.mean:g}: "
            if not objective.better(told.mean, value) or not beyond(value, told):
                text += "not worse beyond noise, so the metric does not see it"
                advice = "check what the metric measures, and that the parameters arrive; or choose a worse sabotage"
                yield Finding("sabotage", "error", text, advice, BaselineError.code)
            else:
                yield Finding("sabotage", "note", text + "worse beyond noise, as it should be")
        case other:
            text = f"sabotage could not be measured: {other.reason}"
            yield Finding("sabotage", "warning", text, "choose a check.sabotage that runs, and scores badly")


def _noop(terms: Terms, seen: Seen, told: Numbers) -> Iterator[Finding]:
    objective = terms.objective
    code, values = "check: {noop: same.patch}", "check: {noop: {...}} with parameters"
    example = f"{code if terms.mutable else values} that change nothing"
    match seen.noop:
        case None:
            yield Finding(
                "noop_unchecked", "note", "not checked: whether a change of nothing changes the metric", example
            )
        case Ran(metrics=metrics):
            value = metrics[objective.metric]
            text = f"noop scores {value:g}, the baseline {told.mean:g}: "
            if beyond(value, told):
                text += "beyond noise, so it changes something, or the noise is larger than it seems"
                advice = "make check.noop what changes nothing; or raise evaluation.baseline_repeats"
                yield Finding("noop", "warning", text, advice)
            else:
                yield Finding("noop", "note", text + "within noise, as it should be")
        case other:
            text = f"noop could not be measured: {other.reason}"
            yield Finding("noop", "warning", text, "choose a check.noop that runs")


def beyond(value: float, told: Numbers) -> bool:
    """Whether one run gave what 19 of 20 further runs of the baseline would not.

    Where noise is unknown, or there is none: any difference. A value that the baseline had is never beyond.
    """
    if value in told.values:
        return False
    if not told.sd:
        return True
    count = len(told.values)
    distance = abs(value - told.mean) / (told.sd * math.sqrt(1 + 1 / count))
    return t_tail(distance, count - 1) < DOUBT
