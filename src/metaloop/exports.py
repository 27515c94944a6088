"""A study as text for other tools. Pure: from the study (and, for `canonical`, its entries) to lines.

| format          | for whom                                                                        |
| --------------- | ------------------------------------------------------------------------------- |
| tsv, csv        | people and spreadsheets: every column of `records.Row`, parameters and metrics as JSON |
| jsonl           | programs: one `records.Row` a line                                              |
| autoresearch    | commit, the metric's name, memory_gb, status (keep, discard, crash), description |
| autoresearch-rl | the fourteen columns of that program's results.tsv                              |
| canonical       | one JSON object that is byte-equal for equal decisions                          |

A cell without a value is empty, never 0.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NotRequired, TypedDict

import msgspec

from metaloop.events import Entry, once
from metaloop.records import Row, row, rows, totals
from metaloop.study import Study
from metaloop.values import Scalar

COLUMNS = (
    "trial", "role", "status", "decision", "value", "runs", "sd", "against", "gain", "noise", "seconds", "params",
    "metrics", "hardware_fingerprint", "budget_mode", "comparable", "commit", "by", "fallback", "description",
    "parent", "failure", "holdout",
)  # fmt: skip

RESULTS_RL = (
    "commit", "metric_name", "metric_value", "memory_gb", "status", "description", "episode_id", "iter", "score",
    "budget_mode", "budget_s", "hardware_fingerprint", "comparable", "non_comparable_reason",
)  # fmt: skip


def tsv(study: Study) -> Iterator[str]:
    return _table(study, COLUMNS, full, "\t")


def csv_(study: Study) -> Iterator[str]:
    return _table(study, COLUMNS, full, ",")


def jsonl(study: Study) -> Iterator[str]:
    return (msgspec.json.encode(line).decode() for line in rows(study))


def autoresearch(study: Study) -> Iterator[str]:
    """Five columns, the second named after the metric; a trial without a score is a crash, with an empty value."""
    columns = ("commit", study.objective.metric, "memory_gb", "status", "description")
    return _table(study, columns, lambda _, r: ("", r.value, "", outcome(r), description(r)), "\t")


def autoresearch_rl(study: Study) -> Iterator[str]:
    return _table(study, RESULTS_RL, results_rl, "\t")


TABLES: dict[str, Callable[[Study], Iterator[str]]] = {
    "tsv": tsv,
    "csv": csv_,
    "jsonl": jsonl,
    "autoresearch": autoresearch,
    "autoresearch-rl": autoresearch_rl,
}


def full(study: Study, r: Row) -> tuple[object, ...]:
    """A row's cells under COLUMNS."""
    return (
        r.trial, r.role, r.status, r.decision, r.value, r.runs or None, r.sd, r.against, r.gain, r.noise, r.seconds,
        r.params, r.metrics, r.fingerprint, budget_mode(study), r.comparable, "", r.by, r.fallback, description(r),
        r.parent, r.failure, r.holdout,
    )  # fmt: skip


def results_rl(study: Study, r: Row) -> tuple[object, ...]:
    """A row's cells under RESULTS_RL; there `score` is the best so far with lower always better."""
    best = None
    if r.value is not None:
        holder = study.trials[r.trial if r.decision == "keep" or r.against is None else r.against].score
        best = None if holder is None else (-holder.value if study.objective.direction == "max" else holder.value)
    reason = "" if r.comparable else "other hardware"
    return (
        "", study.objective.metric, r.value, "", outcome(r), description(r), study.name, r.trial, best,
        budget_mode(study), study.bounds.max_wall_time_s, r.fingerprint, int(r.comparable), reason,
    )  # fmt: skip


def budget_mode(study: Study) -> str:
    """How trials were bounded: as configured for one lane; trials in several shared the machine."""
    return study.the_terms.budget_mode if study.bounds.lanes == 1 else "parallel_wallclock"


def outcome(r: Row) -> str:
    """keep, discard or crash; empty while it is open."""
    return "crash" if r.value is None and r.decision else r.decision


def description(r: Row) -> str:
    """What was tried and what came of it, in one line."""
    return "; ".join(part for part in (" ".join(r.changed), r.why) if part)


def _table(
    study: Study, columns: Sequence[str], cells: Callable[[Study, Row], Sequence[object]], separator: str
) -> Iterator[str]:
    yield separator.join(columns)
    for r in rows(study):
        yield line(cells(study, r), separator)


def line(cells: Iterable[object], separator: str = "\t") -> str:
    """One row. Text that a spreadsheet would take for a formula is quoted with an apostrophe."""
    buffer = io.StringIO()
    texts = [_cell(cell) for cell in cells]
    if separator == "\t":
        return separator.join(text.translate({9: " ", 10: " ", 13: " "}) for text in texts)
    csv.writer(buffer, lineterminator="").writerow(texts)
    return buffer.getvalue()


def _cell(cell: object) -> str:
    match cell:
        case None:
            return ""
        case bool():
            return "true" if cell else "false"
        case int() | float():
            return repr(cell)
        case dict():
            return json.dumps(cell, ensure_ascii=False) if cell else ""
    text = str(cell)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def table_line(study: Study, trial: int) -> str:
    """The line of one trial in the `tsv` table."""
    return line(full(study, row(study, study.trials[trial])))


class CanonicalTrial(TypedDict):
    trial: int
    params: dict[str, Scalar]
    metric: NotRequired[float]
    decision: NotRequired[str]


class Canonical(TypedDict):
    trials: list[CanonicalTrial]
    dups: list[str]
    chain_ok: bool
    executions: int
    integrity: str


def canonical(study: Study, entries: Iterable[Entry], chain_ok: bool, integrity: str) -> Canonical:
    """What two runs of one study have in common: trials with params, metric and decision, each only where there is one.

    `dups`: facts that may stand once and stand twice. `executions`: see `records.totals`.
    """
    counts = Counter(key for entry in entries if (key := once(entry.event)))
    trials = []
    for r in rows(study):
        told: CanonicalTrial = {"trial": r.trial, "params": r.params}
        if r.value is not None:
            told["metric"] = r.value
        if r.decision:
            told["decision"] = r.decision
        trials.append(told)
    return {
        "trials": trials,
        "dups": [key for key, count in counts.items() if count > 1],
        "chain_ok": chain_ok,
        "executions": totals(study).executions,
        "integrity": integrity,
    }
