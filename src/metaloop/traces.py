"""What a diagnosis looks at: a study of ours, or a tournament that was counted again, as a trace. Pure."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from metaloop.diagnose import Heard, Pass, Trace
from metaloop.panels import counted
from metaloop.recount import Recount
from metaloop.searches import Search, Step
from metaloop.study import Pass as Done
from metaloop.study import Study, Trial
from metaloop.values import Ballot, Failed, Range, Refused

ENDED = {"max_iterations": "max_passes", "converged": "converged", "plateau": "plateau"}
"""How a study ended, in the words of a trace; everything else stays as it is."""


def of_study(study: Study) -> Trace:
    """The trace of a tournament of ours, as far as it has come."""
    rules = study.the_terms.tournament
    assert rules is not None, "a tournament has rules"
    closed = study.closed
    ended = "running" if closed is None else ENDED.get(closed.reason, closed.reason)
    passes = tuple(_pass(study, each, rules.order == "both") for each in study.passes)
    return Trace(passes, rules.k, study.bounds.max_iterations, ended, rules.quorum)


def _pass(study: Study, each: Done, both: bool) -> Pass:
    trials, panel = [study.trials[number] for number in each.trials], each.panel
    return Pass(
        panel.winner or None,
        panel.points,
        panel.valid,
        panel.asked,
        tuple(_heard(panel.ballots, both)),
        any(_same(trial) for trial in trials[:1]),
        tuple(role for role in map(_cut, trials) if role),
        bool(panel.winner) and not panel.ballots,
    )


def _heard(ballots: Sequence[Ballot], both: bool) -> list[Heard]:
    """Each ballot as it was cast; a judge that was asked in both orders and turned has lost its ballot."""
    cast = [Heard(each.judge, each.ranking or None, each.shown) for each in ballots]
    if not both:
        return cast
    joined = counted(ballots, both=True)
    return [Heard(cast[2 * at].judge, ranking, cast[2 * at].shown) for at, ranking in enumerate(joined)]


def _same(trial: Trial) -> bool:
    return (
        isinstance(trial.result, Refused) and trial.result.code == "same_text" and "critic" not in trial.result.reason
    )


def _cut(trial: Trial) -> str:
    """The role whose text was cut off, where that is why there is none."""
    cut = isinstance(trial.result, Refused) and trial.result.code == "unread" and "cut off" in trial.result.reason
    return trial.proposal.by.partition(":")[0] if cut else ""


def of_search(study: Study) -> Search:
    """A study of parameters or code, as far as it has come."""
    numbered = (trial for _, trial in sorted(study.trials.items()))
    trials = [trial for trial in numbered if trial.role == "search" and trial.decided_at is not None]
    return Search(tuple(_step(study, trial) for trial in trials), study.evidence[-1][1].width(), tuple(_edges(study)))


def _edges(study: Study) -> Iterator[str]:
    """Ends of ranges that the best point of the search stands at."""
    best = study.incumbent
    if best is None or best.role != "search":
        return
    for name, domain in study.the_terms.space.items():
        value = best.change.values.get(name)
        if isinstance(domain, Range) and value in (domain.low, domain.high):
            yield f"{name} {'low' if value == domain.low else 'high'}"


def _step(study: Study, trial: Trial) -> Step:
    refused = trial.refusal
    kind = trial.result.kind if isinstance(trial.result, Failed) else ""
    holder = None if trial.beat is None else study.trials[trial.beat]
    gain = None
    if trial.score is not None and holder is not None and holder.score is not None:
        gain = study.objective.gain(trial.score.value, holder.score.value)
    return Step(trial.kept, kind, refused is not None and refused.code == "duplicate", gain)


def of_recount(found: Recount, cap: int | None = None) -> Trace:
    """The trace of a tournament that was counted again, with what was found and not with what was recorded. Of a run
    that somebody else made nobody knows why it ended: one that did not converge is taken for one that came to its cap.
    """
    passes = tuple(
        Pass(
            each.winner,
            each.points,
            each.valid,
            each.asked,
            tuple(Heard(ballot.judge - 1, ballot.ranking, ballot.shown) for ballot in each.ballots),
            unopposed=each.status == "unopposed",
        )
        for each in found.passes
    )
    judges = round(fmean([len(each.ballots) or each.asked for each in found.passes])) if found.passes else 3
    ended = "converged" if found.converged is not None else "max_passes"
    needed = found.rules.quorum if found.rules.quorum is not None else -(-2 * judges // 3)
    return Trace(passes, found.rules.k, cap, ended, max(1, needed))
