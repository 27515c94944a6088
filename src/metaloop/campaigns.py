"""The loop between runs, as a study of studies has it in its ledger: harnesses, edits, what each run came to. Pure.

A trial is one remedy; its run is a whole inner study under the harness that the remedy leads to. What that came to is
the tail of its result, so that everything can be derived again from this ledger alone.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from metaloop.acceptance import Came
from metaloop.harness import TOURNAMENT, Edit, Harness, applied
from metaloop.study import Run, Study, Trial
from metaloop.terms import Campaign
from metaloop.values import Params, Ran, Result, Scalar, canonical

PLACEBO = "placebo"
"""The name of the remedy that changes nothing."""

K = "tournament.k"
"""The knob that takes effect after a remedy is kept, and not in the run that it is judged by."""


class Remedy(msgspec.Struct, frozen=True):
    """What a trial tries: the remedy's name, the signature that it answers, its edits, and the harness's hash before
    and after.
    """

    name: str
    signature: str
    edits: tuple[Edit, ...]
    before: str
    after: str

    def change(self) -> Params:
        """As a trial's change."""
        values: dict[str, Scalar] = {
            "mechanism": self.name, "signature": self.signature, "edits": canonical(self.edits).decode(),
            "before": self.before, "after": self.after,
        }  # fmt: skip
        return Params(values)


def remedy_of(trial: Trial) -> Remedy | None:
    """What a trial tries; None for the base."""
    values = trial.change.values
    if "mechanism" not in values:
        return None
    edits = msgspec.json.decode(str(values["edits"]), type=tuple[Edit, ...])
    name, signature, before, after = (str(values[each]) for each in ("mechanism", "signature", "before", "after"))
    return Remedy(name, signature, edits, before, after)


def harness_at(terms: Campaign, kept: Sequence[Trial]) -> Harness:
    """The harness once these remedies were kept, one after the other."""
    harness = Harness(dict(terms.base))
    for trial in kept:
        remedy = remedy_of(trial)
        harness = applied(harness, remedy.edits if remedy else (), TOURNAMENT)
    return harness


def kept(study: Study, before: int | None = None) -> list[Trial]:
    """The remedies that were kept so far, or before this trial, in their order."""
    trials = (trial for number, trial in sorted(study.trials.items()) if before is None or number < before)
    return [trial for trial in trials if trial.kept and trial.role == "search"]


def run_under(study: Study, terms: Campaign, trial: Trial) -> dict[str, object]:
    """The values that a trial's inner study runs under, by knob: those of the remedy, but for `k`, which stays the
    base's, so that nothing is sooner for being stopped sooner.
    """
    base = harness_at(terms, kept(study, trial.number))
    remedy = remedy_of(trial)
    harness = applied(base, remedy.edits, TOURNAMENT) if remedy else base
    return {**harness.values, K: base.values.get(K)}


# ---- what a run came to ----------------------------------------------------------------------------------------------


def told(came: Came) -> str:
    """As the text of a result."""
    return msgspec.json.encode(came).decode()


def heard(text: str) -> Came:
    return msgspec.json.decode(text, type=Came)


def came_of(result: Result | None) -> Came | None:
    """What a run came to; None where it came to nothing."""
    return heard(result.tail) if isinstance(result, Ran) and result.tail else None


def runs_of(trial: Trial) -> tuple[Came, ...]:
    """All runs of a trial that came to something, in their order."""
    runs: Mapping[int, Run] = trial.runs
    return tuple(came for number in sorted(runs) if (came := came_of(runs[number].last)) is not None)


def base_of(study: Study, before: int) -> Trial | None:
    """What a remedy is judged against: the newest that was kept before it, else the first run."""
    earlier = kept(study, before)
    if earlier:
        return earlier[-1]
    return None if study.baseline is None else study.trials[study.baseline]


def metrics(came: Came, k: int, cap: int) -> dict[str, float]:
    """What a table shows of a run. A search that never converged has a pass more than were allowed."""
    rounds = came.rounds(k)
    never = rounds == float("inf")
    return {
        "rounds": float(cap + 1) if never else rounds,
        "converged": float(not never),
        "passes": float(len(came.trace.passes)),
        "calls": float(came.calls),
        **({} if came.usd is None else {"usd": came.usd}),
    }


def fires(evidence: Mapping[str, str]) -> Iterator[str]:
    """All that was seen, a sentence each."""
    return (f"{name}: {said}" for name, said in evidence.items())
