"""The provisional rule: what looks better leads at once, and only what is proven wears the crown."""

from random import Random

from metaloop.audit import audit
from metaloop.config import thought_of
from metaloop.events import Decided, RoundOpened
from metaloop.plan import CHECKPOINT, PROOFS
from metaloop.study import Study, fold
from metaloop.terms import Baseline, Bounds, Terms
from metaloop.testing import Lab, Machine
from metaloop.values import Objective, Range


def study(gain, trials: int = 2 * CHECKPOINT, seed: int = 0, **more: object) -> Lab:
    """Trial number i is better than the baseline by `gain(i)` standard deviations of a run."""

    def function(values, run_seed):
        order = int(values.get("i", 0))
        return f"score={gain(order) + Random(f'{seed}/{order}/{run_seed}').gauss(0, 1)!r}"

    terms = Terms(
        "p", Objective("score", "max"), ("train",), "grid", {"i": Range(1, trials, step=1, whole=True)},
        baseline=Baseline(repeats=3), rule="provisional", seed=seed, **more,
    )  # fmt: skip
    return Lab(terms, thought_of(terms), Machine(function), Bounds(trials, no_improve_limit=0))


def ended(lab: Lab) -> Study:
    lab.session()
    assert not list(audit(lab.entries, thought_of))
    return fold(lab.entries)


def roles(lab: Lab) -> list[str]:
    """Of the rounds, in their order."""
    return [entry.event.role for entry in lab.entries if isinstance(entry.event, RoundOpened)]


def test_what_only_looks_better_is_kept_and_never_crowned() -> None:
    """Nulls: some look better than all before them and lead for a while; nothing is reported but the baseline."""
    crowned, kept = 0, 0
    for seed in range(20):
        lab = study(lambda _: 0.0, seed=seed)
        told = ended(lab)
        crowned += told.tally.incumbent != 0
        kept += sum(len(e.event.decision.provisional) for e in lab.entries if isinstance(e.event, Decided))
    assert crowned <= 1  # 5 % of 20
    assert kept > 20


def test_the_leading_few_are_put_to_the_proof_at_checkpoints_and_at_the_end() -> None:
    """Only there, one after the other, and no more than a few: a search costs one run a trial."""
    lab = study(lambda _: 0.0, trials=2 * CHECKPOINT + 5, seed=3)
    ended(lab)
    told = roles(lab)
    searched, run = 0, 0
    for role in told:
        searched, run = searched + (role == "search"), run + 1 if role == "proof" else 0
        if role == "proof":
            assert searched in (CHECKPOINT, 2 * CHECKPOINT, 2 * CHECKPOINT + 5)
            assert run <= PROOFS
    assert "proof" in told


def test_no_more_than_a_few_proofs_at_the_end_and_none_after_it() -> None:
    """Three at most between the search and the closing pairs, whatever still waits."""
    for seed in range(40):
        lab = study(lambda i: 0.3 * i, trials=12, seed=seed)
        ended(lab)
        told = roles(lab)
        assert told.count("proof") <= PROOFS
        assert told[-1] == "closing" or "closing" not in told


def test_what_is_proven_is_crowned_and_closes_the_study() -> None:
    """A step of four standard deviations leads at once, is proven at the next checkpoint, and is the headline."""
    lab = study(lambda i: 4.0 if i >= 7 else 0.0)
    told = ended(lab)
    assert told.incumbent is not None
    assert told.incumbent.number >= 7
    assert told.incumbent.score.test.kept
    assert told.headline.best == told.incumbent.number
    assert told.headline.low > 0


def test_what_failed_its_proof_leads_no_longer() -> None:
    """It is listed as discarded, and others are compared with the next best again."""
    lab = study(lambda _: 0.0, seed=3)
    told = ended(lab)
    failed = [t for t in told.trials.values() if t.score and t.score.test and not t.score.test.kept]
    assert failed
    for trial in failed:
        assert trial.verdict == "discarded"
        assert trial.number not in told.provisional
        assert "not proven" in trial.why


def test_a_trial_that_waits_is_marked_so() -> None:
    """Before the first checkpoint the crown is the baseline's, and what looks better waits."""
    whole = study(lambda i: float(i), trials=CHECKPOINT)
    whole.session()
    roles_of = [getattr(entry.event, "role", "") for entry in whole.entries]
    told = fold(whole.entries[: roles_of.index("proof")])
    assert told.provisional
    assert told.tally.incumbent == 0
    assert {told.trials[n].verdict for n in told.provisional} == {"provisional"}


def test_a_deterministic_metric_needs_no_proof() -> None:
    """Better is better: crowned at once, no proof, and the end's one run more."""

    def function(values, _):
        return f"score={int(values.get('i', 0)) % 7}"

    lab = study(lambda _: 0.0)
    lab.machine = Machine(function)
    told = ended(lab)
    assert "proof" not in roles(lab)
    assert told.tally.incumbent == 6
    assert not told.provisional


def test_provisional_keeps_count_as_progress() -> None:
    """A search that finds something that looks better goes on: the guard counts from there."""
    lab = study(lambda i: float(i), trials=12)
    lab.bounds = Bounds(12, no_improve_limit=5)
    ended(lab)
    assert roles(lab)[:13] == ["baseline", *["search"] * 12]
