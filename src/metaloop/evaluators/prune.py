"""Which trials are ended early because they cannot win: what a trial reports on its way, and three rules over it.

A report is (step, value); reports are in the order of their steps. A rule answers with the reason to end the trial, in
plain words, or with nothing. Where too little is known a rule is silent; nothing is pruned before some trial has run to
its end.

    median_rule     worse than half of the others were at this step        [Golovin et al., Google Vizier, KDD 2017]
    halving         not among the best third where it matters              [Li et al., ASHA, arXiv:1810.05934]
    forecast_rule   its own curve levels off below what the incumbent has  [Domhan et al., IJCAI 2015, in spirit]
"""

import json
from collections.abc import Sequence
from statistics import median
from typing import TypeAlias

from metaloop.evaluators.metric import plain
from metaloop.forecast import LEAST, fit, projected
from metaloop.study import Study, Trial
from metaloop.terms import Terms
from metaloop.values import Objective, Value

Report: TypeAlias = tuple[int, float]

LINE = 10_000
"""Characters of a line that can still be a report."""

MOST = 2_048
"""Reports that are kept of a trial."""

PEERS = 100
"""Curves that are worth comparing with: the caller hands over the newest so many, or a rule costs ever more."""


# ---- what a trial reports --------------------------------------------------------------------------------------------


class Progress(Value, frozen=True):
    """What a trial has reported of one metric. `ignored` counts lines that said nothing of it that can be believed.

    `rest` is the beginning of a line that has no end yet. Of the `told` reports that were good, `reports` holds all up
    to `MOST`, later every second, fourth, ... and the newest.
    """

    reports: tuple[Report, ...] = ()
    ignored: int = 0
    rest: str = ""
    told: int = 0


def read_progress(text: str, metric: str, before: Progress | None = None, *, over: bool = True) -> Progress:
    """What `text`, the file's new part, adds to what was read `before`.

    A line is one JSON object: {"step": 3, "score": 0.5} or {"step": 3, "metrics": {"score": 0.5}}. Steps are whole,
    from 0 on, and increase; values are plain finite numbers. Everything else is counted and ignored, whatever it is:
    another metric, a step that goes back, half a line, a line without an end. Empty lines do not count. Unless it is
    `over`, a last line without its newline waits for the next part; wherever a file is cut, the same comes of it.
    What is kept is bounded: a line by `LINE`, reports by `MOST`.
    """
    before = before or Progress()
    reports, ignored, rest, told = list(before.reports), before.ignored, before.rest, before.told
    start = 0
    while start < len(text) or (over and rest):
        end = text.find("\n", start)
        ended = end >= 0
        end = end if ended else len(text)
        line = rest + text[start : min(end, start + LINE + 1 - len(rest))]
        start, rest = end + 1, ""
        if not ended and not over:
            rest = line
        elif (report := _report(line, metric)) is not None and (not reports or report[0] > reports[-1][0]):
            _put(reports, told, report)
            told += 1
        else:
            ignored += bool(line.strip())
    return Progress(tuple(reports), ignored, rest, told)


def _put(reports: list[Report], index: int, report: Report) -> None:
    """Adds report number `index`; those before it stay if they are on the stride that the number of all asks for."""
    stride = _stride(index)
    if index and (index - 1) % stride:
        reports.pop()
    if _stride(index + 1) > stride:
        del reports[1::2]
    reports.append(report)


def _stride(count: int) -> int:
    """The power of two at which so many reports are no more than `MOST`."""
    return 1 << (max(0, count - 1) // MOST).bit_length()


def _report(line: str, metric: str) -> Report | None:
    """The report that a line is, if it is one. Of an object `metrics` and the line itself the former counts."""
    if len(line) > LINE:
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    step, within = found.get("step"), found.get("metrics")
    value = plain((within if isinstance(within, dict) else found).get(metric))
    if type(step) is not int or not 0 <= step < 1 << 63 or value is None:
        return None
    return step, value


# ---- the rules -------------------------------------------------------------------------------------------------------


def median_rule(
    mine: Sequence[Report], others: Sequence[Sequence[Report]], objective: Objective, *, warmup: int = 1, least: int = 5
) -> str:
    """The best so far is worse than the median of what the others had at this step.

    Silent before step `warmup`, with fewer than `least` others that came this far, and at the end of a full trial.
    """
    if not mine or mine[-1][0] < warmup or mine[-1][0] >= _full(others):
        return ""
    step = mine[-1][0]
    theirs = _at(others, step, objective)
    if len(theirs) < least or objective.gain(_best(mine, step, objective), middle := median(theirs)) >= 0:
        return ""
    return (
        f"{_best(mine, step, objective):g} at step {step} is worse than {middle:g}, the median of the {len(theirs)} "
        f"trials that came this far"
    )


def halving(
    mine: Sequence[Report], others: Sequence[Sequence[Report]], objective: Objective, *, eta: int = 3, first: int = 1
) -> str:
    """Asynchronous successive halving: at the steps first, first * eta, ... only the best 1 in `eta` go on.

    The newest rung that was reached decides, by the best so far at it. Ties go on. Silent with fewer than `eta` trials
    at the rung, this one included, and at the end of a full trial.
    """
    if not mine or not first <= mine[-1][0] < _full(others):
        return ""
    rung = first
    while rung * eta <= mine[-1][0]:
        rung *= eta
    value, theirs = _best(mine, rung, objective), _at(others, rung, objective)
    places, ahead = (len(theirs) + 1) // eta, sum(objective.better(other, value) for other in theirs)
    if places == 0 or ahead < places:
        return ""
    return f"{value:g} at step {rung} is place {ahead + 1} of {len(theirs) + 1}: only the best {places} go on"


def forecast_rule(
    mine: Sequence[Report], full: int, target: float, objective: Objective, *, least: int = 8, doubt: float = 2.0
) -> str:
    """The power law through the trial's own best so far does not come to `target`, the incumbent's, by step `full`.

    `doubt` times what the law misses its own past by is granted to the trial. Silent with fewer than `least` reports,
    and for a curve that has not begun to level off.
    """
    if len(mine) < max(least, LEAST) or mine[-1][0] >= full:
        return ""
    best = [objective.gain(mine[0][1], 0.0)]
    for _, value in mine[1:]:
        best.append(max(best[-1], objective.gain(value, 0.0)))
    first, gap = mine[0][0], (mine[-1][0] - mine[0][0]) / (len(mine) - 1)
    law = fit(best, [1 + (step - first) / gap for step, _ in mine])
    if law is None:
        return ""
    hope = projected(law, 1 + (full - first) / gap) + doubt * law.miss
    if max(hope, best[-1]) >= objective.gain(target, 0.0):
        return ""
    sign = objective.gain(1.0, 0.0)
    return f"the curve levels off: {sign * hope:.4g} at best by step {full}, and the incumbent has {target:.4g}"


def _full(others: Sequence[Sequence[Report]]) -> int:
    """The last step of a full trial, as far as the others went. Nothing ends early before one of them has ended."""
    return max((other[-1][0] for other in others if other), default=0)


def _best(reports: Sequence[Report], upto: int, objective: Objective) -> float:
    """The best up to a step; the first report where none is that early."""
    values = [value for step, value in reports if step <= upto] or [reports[0][1]]
    return max(values) if objective.direction == "max" else min(values)


def _at(others: Sequence[Sequence[Report]], step: int, objective: Objective) -> list[float]:
    """The best so far at `step` of each that came this far."""
    return [_best(other, step, objective) for other in others if other and other[-1][0] >= step]


# ---- in a study ------------------------------------------------------------------------------------------------------


class Watcher:
    """`roles.Watch`: reads the objective's reports, and asks the rule that the study's terms name."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms

    def hear(self, text: str, before: object) -> tuple[Progress, tuple[Report, ...]]:
        known = before if isinstance(before, Progress) else Progress()
        heard = read_progress(text, self._terms.objective.metric, known, over=False)
        last = known.reports[-1][0] if known.reports else -1
        return heard, tuple(report for report in heard.reports if report[0] > last)

    def doomed(self, study: Study, trial: Trial) -> str:
        objective, holder = study.objective, study.incumbent
        peers = dict.fromkeys([*study.reporters, *([holder.number] if holder else [])])
        others = [study.trials[number].reports for number in peers if study.trials[number].reports]
        match self._terms.prune:
            case "median":
                return median_rule(trial.reports, others, objective)
            case "halving":
                return halving(trial.reports, others, objective)
            case "forecast" if holder is not None and holder.score is not None and holder.reports:
                return forecast_rule(trial.reports, holder.reports[-1][0], holder.score.value, objective)
            case _:
                return ""
