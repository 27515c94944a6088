"""What a remedy is worth: blind votes between what it came to and what its base came to, and then the objective."""

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from metaloop.acceptance import Came, judged
from metaloop.campaigns import K, base_of, came_of, harness_at, heard, kept, metrics, remedy_of, runs_of
from metaloop.flow import Flow, Runs
from metaloop.gates import Gate, Vote, gate
from metaloop.mechanisms import JUDGE_LENSES
from metaloop.panels import asked, counted
from metaloop.roles import Confirm, Measure, Measurement, Outcome, Verdict
from metaloop.study import Round, Study, View
from metaloop.terms import Campaign, Tournament
from metaloop.values import Decision, Failed, Headline, Panel, Ran, Score

ON, OFF = "on", "off"
"""The texts that a vote is between: with the remedy, and without."""


def measuring(terms: Campaign) -> Measure:
    """Rounds as the score; of a remedy with the votes on its text."""

    def measure(view: View, trials: Sequence[Measurement]) -> Flow[tuple[Score | None, ...] | Verdict]:
        (trial,) = trials
        came = came_of(trial.first)
        if came is None:
            return (None,)
        if view.role == "baseline":
            if terms.replicates > 1:
                yield Runs(trial.trial, tuple(range(1, terms.replicates)))
            return (Score(_rounds(terms, came, terms.base.get(K))),)
        base = view.incumbent
        before = None if base is None else came_of(base.result)
        if before is None:
            return (None,)
        panel = Panel("", "the same text: no vote is spent")
        if came.text != before.text:
            rules = _voting(terms)
            panel = yield from asked(view, rules, {ON: came.text, OFF: before.text}, view.rng("gate"))
        return Verdict((Score(_rounds(terms, came, terms.base.get(K))),), panel)

    return measure


def _rounds(terms: Campaign, came: Came, k: object) -> float:
    return metrics(came, k if isinstance(k, int) else 2, terms.cap)["rounds"]


def _voting(terms: Campaign) -> Tournament:
    """The rules of the votes: positions by lot, or for proof every judge in both orders, with a lens each."""
    exact = terms.gate == "exact"
    return Tournament(
        terms.document, judges=terms.votes, order="both" if exact else "random", margin=0, quorum=1,
        tie_order=(OFF, ON), judge_lenses=JUDGE_LENSES if exact else (),
    )  # fmt: skip


def votes_of(terms: Campaign, panel: Panel) -> list[Vote | None]:
    """The votes of a panel; None for one that is invalid, or that turned with the order."""
    rankings = counted(panel.ballots, terms.gate == "exact")
    return [None if ranking is None else "on" if ranking[0] == ON else "off" for ranking in rankings]


def gate_of(terms: Campaign, panel: Panel) -> Gate | None:
    """What the votes came to; None where there were none, for both came to the same text."""
    return gate(votes_of(terms, panel), terms.gate, terms.alpha) if panel.ballots else None


def deciding(terms: Campaign) -> Callable[[Study, Round], Decision]:
    """Whether a remedy is kept: then it is the base from then on."""

    def decide(study: Study, round: Round) -> Decision:
        if not round.trials:
            return Decision((), None, "nothing is left to try")
        trial = study.trials[round.trials[0]]
        if round.role == "baseline":
            held = (trial.number,) if trial.score is not None else ()
            return Decision(held, trial.number if held else None, "the search as it is")
        remedy, base, came = remedy_of(trial), base_of(study, trial.number), came_of(trial.result)
        if remedy is None or base is None or came is None or round.panel is None:
            why = getattr(trial.result, "reason", "") or "its run came to nothing"
            return Decision((), None, f"reverted: {why}")
        k = harness_at(terms, kept(study, trial.number)).values.get(K)
        said = judged(
            runs_of(base), came, gate_of(terms, round.panel), k if isinstance(k, int) else 2, terms.aim, terms.original
        )
        if not remedy.edits:
            would = "would be kept" if said.accepted else "would be reverted"
            return Decision((), None, f"placebo, {would}: {said.why}")
        return Decision((trial.number,) if said.accepted else (), trial.number if said.accepted else None, said.why)

    return decide


def confirming(view: View) -> Flow[Headline]:
    """Nothing is measured at the end: every remedy was, when it was kept."""
    raise AssertionError("a campaign has no closing round")
    yield view


CONFIRM: Confirm = confirming


def reading(terms: Campaign) -> Callable[[Outcome], Ran | Failed]:
    """What an inner study came to, as a result."""

    def read(outcome: Outcome) -> Ran | Failed:
        last = outcome.steps[-1]
        if last.exit != 0:
            return Failed("evaluation", last.stderr.strip()[:300] or "the inner study came to nothing", last.seconds)
        came = heard(last.stdout)
        k = terms.base.get(K)
        result = Ran(metrics(came, k if isinstance(k, int) else 2, terms.cap), last.seconds)
        return replace(result, tail=last.stdout)

    return read
