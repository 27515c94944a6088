"""The loop between runs: diagnose what the newest base came to, and try the remedy for the gravest signature."""

from collections.abc import Sequence

from metaloop.acceptance import cannot_drop
from metaloop.campaigns import PLACEBO, K, Remedy, came_of, harness_at, remedy_of, runs_of
from metaloop.diagnose import Diagnosis, Signature, diagnose
from metaloop.flow import Flow, conclude
from metaloop.harness import TOURNAMENT, Harness, applied
from metaloop.mechanisms import mechanism
from metaloop.roles import Propose
from metaloop.study import Trial, View
from metaloop.terms import Campaign
from metaloop.values import Proposal, Refused


def bilevel(terms: Campaign) -> Propose:
    """One remedy a round; nothing where nothing fires any more, or the request's rule ends after a revert."""

    def propose(view: View) -> Flow[Sequence[Proposal]]:
        return conclude(_proposed(view, terms))

    return propose


def _proposed(view: View, terms: Campaign) -> Sequence[Proposal]:
    tried = sorted((trial for trial in view.settled() if trial.role == "search"), key=lambda trial: trial.number)
    good = [trial for trial in tried if trial.kept]
    base = good[-1] if good else view.baseline
    came = None if base is None else came_of(base.result)
    if base is None or came is None:
        return ()
    harness = harness_at(terms, good)
    if terms.placebo and not any(_named(trial) == PLACEBO for trial in tried):
        same = harness.hash()
        why = "the same search once more: what chance alone does"
        return [Proposal(Remedy(PLACEBO, "", (), same, same).change(), "placebo", why, base.number)]
    if terms.original and any(not trial.kept and _named(trial) != PLACEBO for trial in tried):
        return ()
    order: Sequence[Signature] = [name for name in terms.signatures if name not in _tabu(tried)]
    found = diagnose(came.trace, order)
    for signature in (name for name in order if name in found.evidence and found.signature):
        proposal = _remedy(terms, signature, found, harness, base)
        if proposal is not None:
            return [proposal]
    return ()


def _remedy(terms: Campaign, signature: Signature, found: Diagnosis, harness: Harness, base: Trial) -> Proposal | None:
    """The remedy as a trial; None where it is void."""
    remedy = mechanism(signature, harness)
    if remedy is None:
        return None
    after = applied(harness, remedy.edits, TOURNAMENT).hash()
    change = Remedy(remedy.name, signature, remedy.edits, harness.hash(), after).change()
    why = f"{signature}: {found.evidence[signature]}; remedy: {remedy.what}"
    k = harness.values.get(K)
    if terms.original and terms.aim == "rounds" and isinstance(k, int) and cannot_drop(runs_of(base), k):
        spent = f"it converged in its {k} rounds, and nothing can be sooner: nothing is spent on {remedy.name}"
        return Proposal(change, "diagnosis", why, base.number, refused=Refused("cannot_win", spent))
    return Proposal(change, "diagnosis", why, base.number)


def _tabu(tried: Sequence[Trial]) -> set[str]:
    """Signatures whose remedy was tried and reverted, or refused."""
    remedies = [(trial, remedy_of(trial)) for trial in tried if not trial.kept]
    return {remedy.signature for _, remedy in remedies if remedy is not None}


def _named(trial: Trial) -> str:
    remedy = remedy_of(trial)
    return remedy.name if remedy else ""
