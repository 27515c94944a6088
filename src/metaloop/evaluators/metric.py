"""From what a process left behind to a result: metrics by exact name, strict numbers.

Scores by task may stand beside the metrics in a JSON object, as `"tasks": {"ID": number}`.

Where a number may stand, best first: the evaluator's own output if there is an `eval_cmd`, and only there; the metrics
file (one JSON object); lines of stdout that are exactly `name=number`, `name: number` or `METRIC name=number`, or a
last line that is one JSON object. The last value of a name wins; two different ones are a warning. stderr is never
read for numbers.

What a failed step said last is the last line of its stderr that is not empty. A gate or a check that wrote none is
quoted from stdout: the last line that begins with FAILED, ERROR or E, as test runners mark what failed; else the last.
"""

import json
import math
import re
from collections.abc import Callable, Sequence
from sys import intern
from typing import cast

from metaloop.roles import GATE, Outcome, StepOutcome
from metaloop.terms import Terms
from metaloop.values import Failed, FailureKind, Objective, Ran, number

TAIL = 2000
"""Characters of stderr that a failure keeps."""

SHOWN = 400
"""Characters of stdout that a result keeps, where a model is shown them; `TAIL`, where it is to mend what they tell."""

TASKS = 1000
"""Tasks that a result keeps scores of."""

_LINE = re.compile(r"(?:METRIC[ \t]+)?([^\s=:]{1,200})[ \t]*[=:][ \t]*(\S{1,100})[ \t]*")
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_MARKED = re.compile(r"(?:FAILED|ERROR|E)\s")
_UNSTARTED = re.compile(r"(?:metaloop: cannot start |bwrap: execvp )(.*)", re.DOTALL)
"""What stands on the stderr of a step whose program could not be run: by the keeper, or within walls."""
_SLOT = re.compile(r"(?<![^\s'\"(=:])/[^\s'\":]{0,300}?metaloop/slots/[0-9a-f]{16}/[0-9]+(?:\.score)?/")
_SYNTAX = re.compile(r"^(?:SyntaxError|IndentationError|ModuleNotFoundError|ImportError|NameError)\b", re.MULTILINE)


# ---- a result --------------------------------------------------------------------------------------------------------


def reader(terms: Terms) -> Callable[[Outcome], Ran | Failed]:
    """The `Read` of a study on these terms: every metric that decides has to be there. On held-out data that is the
    objective alone.
    """
    objective = terms.objective
    needed = [objective.metric, *(o.metric for o in terms.others), *(c.metric for c in terms.constraints)]

    def read(outcome: Outcome) -> Ran | Failed:
        seconds = sum(step.seconds for step in outcome.steps)
        last = outcome.steps[0]
        for step in outcome.steps:
            if (failure := _broken(step, ran=last.name in ("train", "evaluate"))) is not None:
                kind, reason = failure
                printed = _judges(step) or terms.repair is not None
                tail = step.stderr if step.stderr.strip() or not printed else step.stdout
                gate = step.name.removeprefix(GATE) if step.name.startswith(GATE) else ""
                return Failed(kind, near(reason), seconds, _end(tail, TAIL), gate)
            last = last if step.name.startswith(GATE) else step
        if last.name in ("prepare", "check"):  # it is not measured
            return Ran({}, seconds)
        wanted = [objective.metric] if last.name == "holdout" else needed
        found = _Found()
        if outcome.metrics is not None:
            found.file(outcome.metrics)
        else:
            found.text(last.stdout)
        problem = _problem(objective, wanted, found, outcome)
        if problem:
            kind = "evaluation" if found.invalid else "metric"
            if last.lost:
                kind, problem = "limit", f"the disk was full: {last.lost} bytes of output were lost; {problem}"
            return Failed(cast(FailureKind, kind), near(problem), seconds, _end(last.stderr, TAIL))
        tail = _end(last.stdout, TAIL if terms.repair else SHOWN) if terms.asks else ""
        return Ran(found.numbers, seconds, tuple(found.warnings), found.tasks or None, tail)

    return read


def near(text: str) -> str:
    """`text` with paths of a candidate's directory as they are from there: where that is says nothing to anybody."""
    return _SLOT.sub("", text)


def _end(text: str, most: int) -> str:
    """The last characters of `text`, as they are from the candidate's directory; the rest is not looked at, since it
    may be of any length.
    """
    return near(text[-2 * most :])[-most:]


def _broken(step: StepOutcome, ran: bool) -> tuple[FailureKind, str] | None:
    """Why a step gave nothing that can be believed, whatever it printed. A gate that is not passed before the candidate
    `ran` is one of the build: the same idea may do better; after that, it is one of the idea. One that could not
    even be started says nothing of either.
    """
    name = step.name.replace(GATE, "gate ", 1)
    if step.limit is not None:
        told = {
            "wall": f"{name} ran longer than its time limit and was ended after {step.seconds:.1f} s",
            "stopped": f"{name} was stopped",
        }
        return "limit", told.get(step.limit, f"{name} went over its limit of {step.limit}")
    if step.exit == 0:
        return None
    if step.name.startswith(GATE) and step.exit in (126, 127) and (match := _UNSTARTED.match(step.stderr)):
        return "evaluation", f"{name} could not be started: {match[1].strip()[:300]}"
    how = f"exit code {step.exit}" if step.exit is not None else f"signal {step.signal}"
    said = _said(step)
    reason = f"{name} ended with {how}" + (f": {said[:300]}" if said else "")
    if _judges(step):
        return "hypothesis" if ran else "build", reason
    if step.name in ("evaluate", "holdout"):
        return "evaluation", reason
    return ("build" if step.exit in (126, 127) or _SYNTAX.search(step.stderr) else "hypothesis"), reason


def _judges(step: StepOutcome) -> bool:
    """Whether it is there to pass or to fail, and not to be measured: what it prints is its reason."""
    return step.name == "check" or step.name.startswith(GATE)


def _said(step: StepOutcome) -> str:
    """The line that tells most of why a step failed; empty where there is none."""
    lines = [line.strip() for line in step.stderr.splitlines() if line.strip()]
    if lines or not _judges(step):
        return lines[-1] if lines else ""
    printed = [line.strip() for line in step.stdout.splitlines() if line.strip()]
    marked = [line for line in printed if _MARKED.match(line)]
    return (marked or printed or [""])[-1]


def _problem(objective: Objective, needed: Sequence[str], found: "_Found", outcome: Outcome) -> str:
    if found.invalid:
        return found.invalid
    if outcome.metrics is None and outcome.metrics_problem:
        return f"the metrics file cannot be used: {outcome.metrics_problem}"
    for name in needed:
        if name in found.bad:
            return f"{name} = {found.bad[name]!s:.60} is not a plain finite number"
        if name not in found.numbers:
            names = ", ".join(map(repr, list(found.numbers)[:8])) or "no metric at all"
            where = "print `" + name + "=NUMBER` on a line of its own, or write METALOOP_METRICS"
            return f"metric {name!r} is missing: found {names}; {where}"
    value = found.numbers[objective.metric]
    if objective.plausible and not objective.plausible[0] <= value <= objective.plausible[1]:
        low, high = objective.plausible
        return f"{objective.metric} = {value!r} is outside the plausible {low:g} to {high:g}: quarantined"
    return ""


class _Found:
    """The numbers met so far; the last one of a name wins. `bad`: names whose last value was no plain finite number."""

    def __init__(self) -> None:
        self.numbers: dict[str, float] = {}
        self.bad: dict[str, object] = {}
        self.warnings: list[str] = []
        self.tasks: dict[str, float] = {}
        self.invalid = ""

    def text(self, text: str) -> None:
        lines = re.split(r"[\r\n]+", text)
        for line in lines:
            if line.startswith("error=") and not _NUMBER.fullmatch(line[6:].strip()):
                self.invalid = f"it reported an error: {line[6:].strip()[:300]}"
            elif (match := _LINE.fullmatch(line)) is not None:
                self._token(match[1], match[2])
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        if last.startswith("{") and last.endswith("}"):
            self._object(last)

    def file(self, text: str) -> None:
        if not self._object(text):
            self.invalid = "the metrics file is not one strict JSON object (no NaN, no key twice)"

    def _token(self, name: str, token: str) -> None:
        if name == "valid" and token.lower() in ("false", "0"):
            self.invalid = "it reported itself invalid"
        number = float(token) if _NUMBER.fullmatch(token) else math.inf
        self._put(name, number if math.isfinite(number) else token)

    def _object(self, text: str) -> bool:
        try:
            found = json.loads(text, object_pairs_hook=_no_twins, parse_constant=str)
        except (ValueError, RecursionError):
            return False
        if not isinstance(found, dict):
            return False
        for name, value in found.items():
            if name == "valid" and value is False:
                self.invalid = "it reported itself invalid"
            elif name == "error" and isinstance(value, str) and value:
                self.invalid = f"it reported an error: {value[:300]}"
            elif name == "tasks" and isinstance(value, dict):
                self._tasks(value)
            elif len(name) <= 200 and not isinstance(value, dict | list):
                self._put(name, value)
        return True

    def _tasks(self, scores: dict[str, object]) -> None:
        """The last object of this name wins, as a whole."""
        told = {name: plain(score) for name, score in scores.items() if len(name) <= 200}
        self.tasks = {name: score for name, score in list(told.items())[:TASKS] if score is not None}
        if len(self.tasks) < len(scores):
            left = f"{len(scores) - len(self.tasks)} of {len(scores)}"
            self._warn(f"tasks: {left} were left out: no plain finite number, a name too long, or more than {TASKS}")

    def _put(self, name: str, value: object) -> None:
        new = plain(value)
        if new is None:
            self.bad[name] = value
            return
        if self.numbers.get(name, new) != new:
            self._warn(f"{name} was reported as {self.numbers[name]!r} and as {new!r}: the last one counts")
        self.numbers[intern(name)] = new  # one text for all trials
        self.bad.pop(name, None)

    def _warn(self, text: str) -> None:
        if len(self.warnings) < 5:
            self.warnings.append(text)


def plain(value: object) -> float | None:
    """A finite int or float as a float, or None: no bool, no NaN or infinity, nothing of 64 bits or more."""
    if not number(value) or (type(value) is int and abs(value) >= 1 << 63) or not math.isfinite(value):
        return None
    return float(value)


def _whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _no_twins(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    """An object without a key twice. Half characters, which no file can hold, are replaced."""
    found = {_whole(key): _whole(value) if isinstance(value, str) else value for key, value in pairs}
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found
