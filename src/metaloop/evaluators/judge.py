"""From results to scores and decisions: what is kept and crowned, by which rule, and why, in plain words.

`proven`: a candidate that looks better than the incumbent is run beside it on fresh seeds, and kept only if that proves
it (`noise.py` has the rule). `provisional`: what looks better than all before it is kept at once, and is what others
have to look better than; the leading few are put to that same proof later, and only it gives the crown. While no repeat
ever gave another value the metric is deterministic: then, and with `strict`, better is better, and nothing extra is
spent.
"""

import math
from collections.abc import Generator, Iterator, Sequence
from statistics import fmean, stdev
from typing import Literal, TypeAlias, TypeVar, cast

from msgspec.structs import replace

from metaloop.evaluators.noise import Rule, interval, level, looks, moderated, t_tail
from metaloop.evaluators.noise import decide as verdict
from metaloop.events import Alerted
from metaloop.flow import Answer, Ask, Flow, Runs
from metaloop.roles import Confirm, Measure, Measurement
from metaloop.study import Round, Study, Trial, View
from metaloop.terms import Terms
from metaloop.values import Decision, Edit, Headline, Objective, Ran, Result, Score, Test

T = TypeVar("T")
Part = Generator[Ask, Answer, T]


def rule_of(terms: Terms) -> Rule:
    return Rule(terms.alpha, terms.confirm, terms.error)


# ---- scores ----------------------------------------------------------------------------------------------------------


def measuring(terms: Terms) -> Measure:
    """The `Measure` of a study on these terms."""
    rule = rule_of(terms)

    def measure(view: View, trials: Sequence[Measurement]) -> Flow[tuple[Score | None, ...]]:
        scores: list[Score | None] = []
        for trial in trials:
            scores.append((yield from _judge(rule, view, trial)))
        return tuple(scores)

    return measure


def _judge(rule: Rule, view: View, trial: Measurement) -> Part[Score | None]:
    first = _value(view.objective, trial.first)
    if first is None:
        return None
    if view.role == "baseline":
        return (yield from _repeated(view, trial))
    plain, holder = _mean(view.terms, [trial.first]), view.incumbent
    if holder is None or holder.score is None or view.terms.rule == "strict":
        return plain
    dice = view.deterministic and (yield from _throws_dice(view, trial, first))
    if view.deterministic and not dice:
        return plain
    if view.role == "proof":
        return (yield from _tested(rule, view, trial, holder, first))
    if view.terms.rule == "provisional":
        return plain
    parent = branch(view, view.trial(trial.trial), holder)
    rival = parent or holder
    if broken(view.terms, plain) or (rival.score is not None and broken(view.terms, rival.score)):
        return plain  # a bound decides, and no test
    if not _looks_better(view, first, parent):
        return plain
    score = yield from _tested(rule, view, trial, rival, first, None if parent is None else holder)
    if dice and score.test is not None and not score.test.kept:  # its noise is nobody else's, and teaches nothing
        problem = "its own runs differ, where nothing varied before"
        return replace(score, test=replace(score.test, differences=(), problem=problem))
    return score


def _throws_dice(view: View, trial: Measurement, first: float) -> Part[bool]:
    """Whether a candidate's code brings noise into a metric that never varied: then one look says nothing. Asked of
    code alone, of a candidate that looks better, on fresh seeds.
    """
    number = view.trial(trial.trial)
    if view.role == "proof" or not view.terms.mutable or not isinstance(number.change, Edit):
        return False
    parent = branch(view, number, view.incumbent)
    if not _looks_better(view, first, parent):
        return False
    again = cast(tuple[Result, ...], (yield Runs(trial.trial, fresh(view)[:LOOKS])))
    return any(_value(view.objective, result) != first for result in again)


LOOKS = 2
"""More runs of code that looks better, where nothing varied: a lot of probability p is drawn each time with p^3."""


def _repeated(view: View, trial: Measurement) -> Part[Score]:
    """The baseline's score: over `repeats` runs, whose spread is what is first known of the noise."""
    results: list[Result | None] = [trial.first]
    if view.terms.baseline.repeats > 1:
        results += cast(tuple[Result, ...], (yield Runs(trial.trial, tuple(range(1, view.terms.baseline.repeats)))))
    return _mean(view.terms, results)


def branch(view: View, trial: Trial, holder: Trial | None) -> Trial | None:
    """What a trial of code has to beat to be kept, where that is not the incumbent: the kept trial that it grew from.
    None for everything else; also by `provisional`, where what is not the best is not put to the proof.
    """
    if not view.terms.mutable or holder is None or not isinstance(trial.change, Edit):
        return None
    if (number := trial.proposal.parent) is None or number == holder.number:
        return None
    parent = view.trial(number)
    fits = view.keeps(parent) and parent.score is not None
    return parent if fits and (view.terms.rule != "provisional" or view.deterministic) else None


def _looks_better(view: View, first: float, rival: Trial | None) -> bool:
    """A screen, which any test after it makes fair."""
    return any(view.objective.better(first, hurdle) for hurdle in view.hurdles(rival))


def _tested(
    rule: Rule, view: View, trial: Measurement, rival: Trial, first: float, holder: Trial | None = None
) -> Part[Score]:
    """The score of a candidate after its test against `rival`. With a `holder` of the crown, the rival is what it grew
    from; if it is proven better, and looks better than the holder, it is tested against that one too.
    """
    mine: list[Result | None] = []
    test, flat = yield from _paired(rule, view, trial, first, rival, view.tests + 1, mine)
    test = replace(test, grown=holder is not None)
    if not test.kept:
        return replace(_mean(view.terms, [trial.first]), test=test)
    if not flat and (rest := fresh(view)[len(mine) :]):
        mine += cast(tuple[Result, ...], (yield Runs(trial.trial, rest)))
    if holder is not None and _looks_better(view, first, holder):
        crown, _ = yield from _paired(rule, view, trial, first, holder, view.tests + 2, mine)
        test = replace(test, crown=crown)
    return replace(_mean(view.terms, [trial.first, *mine] if flat else mine), test=test)


def _paired(
    rule: Rule, view: View, trial: Measurement, first: float, rival: Trial, number: int, mine: list[Result | None]
) -> Part[tuple[Test, bool]]:
    """Pairs of candidate and rival on fresh seeds, until they prove something or cannot any more; and whether nothing
    varied. The candidate's results are added to `mine`; those that are there are not run again.
    """
    before, seeds = view.evidence, fresh(view)
    at = level(rule, view.tests - len(before.keeps), number, before.keeps)
    d: list[float] = []
    for count in looks(rule):
        done, runs = len(d), seeds[len(d) : count]
        if len(mine) >= count:
            others = cast(tuple[Result, ...], (yield Runs(rival.number, runs)))
        else:
            results = cast(tuple[Result, ...], (yield Runs(trial.trial, runs, rival.number, runs)))
            mine += results[: len(runs)]
            others = results[len(runs) :]
        d += _differences(view.objective, mine[done:count], others)
        if len(d) < count:
            why = _reason([*mine[done:count], *others])
            return Test(rival.number, number, tuple(d), at, 1.0, False, why), False
        if _never_varied(view, mine, first, d):
            return Test(rival.number, number, tuple(d), at, 0.0, True), True
        said = verdict(rule, d, before, at)
        if said != "more":
            break
    return Test(rival.number, number, tuple(d), at, t_tail(*moderated(rule, d, before)), said == "keep"), False


def _differences(objective: Objective, mine: Sequence[Result | None], other: Sequence[Result]) -> list[float]:
    """One a pair, larger is better; a pair of which a run failed gives none."""
    pairs = ((_value(objective, a), _value(objective, b)) for a, b in zip(mine, other, strict=True))
    return [objective.gain(a, b) for a, b in pairs if a is not None and b is not None]


def _never_varied(view: View, mine: Sequence[Result | None], first: float, d: Sequence[float]) -> bool:
    """Without a repeated baseline, the first test is what shows that a metric never varies: then better is better. So
    does one that began before the first had ended, as in several lanes.
    """
    values = {_value(view.objective, result) for result in mine}
    return not view.evidence.width() and values == {first} and len(set(d)) == 1 and d[0] > 0


def fresh(view: View) -> tuple[int, ...]:
    """Run numbers, and with them seeds, that no round has used: `confirm` of them."""
    start = max(1, view.terms.baseline.repeats) + view.block * view.terms.confirm
    return tuple(range(start, start + view.terms.confirm))


# ---- the end ---------------------------------------------------------------------------------------------------------


def confirming(terms: Terms) -> Confirm:
    """The `Confirm` of a study on these terms: as many fresh pairs as the baseline has runs, three at least."""
    rule = rule_of(terms)

    def confirm(view: View) -> Flow[Headline]:
        best, baseline = view.incumbent, view.baseline
        assert best is not None
        assert baseline is not None
        if view.deterministic:
            return (yield from _exact(view, best, baseline))
        runs = fresh(view)[: max(3, terms.baseline.repeats)]
        results = cast(tuple[Result, ...], (yield Runs(best.number, runs, baseline.number, runs)))
        d = _differences(view.objective, results[: len(runs)], results[len(runs) :])
        if len(d) < 2:
            problem = _reason(results) or "too few of the closing runs ended"
            return Headline(best.number, baseline.number, len(d), problem=problem)
        low, high = interval(rule, d, view.evidence.pairs())
        value = _mean(terms, results[: len(runs)]).value
        return Headline(best.number, baseline.number, len(d), value, fmean(d), low, high)

    return confirm


def _exact(view: View, best: Trial, baseline: Trial) -> Part[Headline]:
    """One run more, of the best: a metric that never varied has to give the same again."""
    (result,) = cast(tuple[Result, ...], (yield Runs(best.number, fresh(view)[:1])))
    value = _value(view.objective, result)
    if value is None:
        return Headline(best.number, baseline.number, 0, problem=_reason([result]))
    gain = view.objective.gain(value, _worth(baseline))
    same = value == _worth(best)
    said = (
        "" if same else f"it gave {value!r} now and {_worth(best)!r} before: this metric does vary, nothing is proven"
    )
    return Headline(best.number, baseline.number, 1, value, gain, gain, gain, exact=same, problem=said)


# ---- decisions -------------------------------------------------------------------------------------------------------


def decide(study: Study, round: Round) -> Decision:
    """What is kept and crowned: the proven, or with `strict` and deterministic metrics the strictly better. No ties."""
    if round.role == "closing":
        return Decision((), study.tally.incumbent, told_headline(study.headline), leads=study.tally.leads)
    if round.held is not None:
        return Decision((), study.tally.incumbent, told_held(study, round.held), leads=study.tally.leads)
    if study.the_terms.several == "front":
        return _on_the_front(study, round)
    kept: list[int] = []
    looking: list[int] = []
    waiting = [number for number in study.provisional if number not in round.trials]
    crowned, why, bench = study.tally.incumbent, [], study.bench(round)
    for trial in (study.trials[slot] for slot in round.trials):
        holder = None if crowned is None else study.trials[crowned]
        parent = branch(bench, trial, holder)
        stand, said = _decision(study, trial, parent or holder, _leader(study, round, waiting, holder))
        wins = stand == "in" and _takes_the_crown(study, trial, holder)
        if wins and parent is not None and holder is not None:
            wins, more = _crowns(study, trial, holder)
            said = f"{said}; {more}"
        why.append(said)
        if stand == "out":
            continue
        kept.append(trial.number)
        if stand == "provisional":
            looking, waiting = [*looking, trial.number], [*waiting, trial.number]
        elif wins:
            crowned = trial.number
    ahead = [
        n for n in waiting if crowned is None or _order(study.the_terms, _score(study, n), _score(study, crowned)) > 0
    ]
    overtaken = tuple(n for n in waiting if n not in ahead)
    return Decision(tuple(kept), crowned, "; ".join(why), overtaken, tuple(looking), _first(study, ahead))


def _leader(study: Study, round: Round, waiting: Sequence[int], holder: Trial | None) -> Trial | None:
    """What a candidate has to look better than, where looks are enough for now; None where they are not."""
    if study.the_terms.rule != "provisional" or round.role == "proof" or study.deterministic_at():
        return None
    first = _first(study, waiting)
    return holder if first is None else study.trials[first]


def _first(study: Study, numbers: Sequence[int]) -> int | None:
    """The best of these trials by its score, the earlier one at a tie; None where there are none."""
    first: int | None = None
    for number in numbers:
        if first is None or _order(study.the_terms, _score(study, number), _score(study, first)) > 0:
            first = number
    return first


def _takes_the_crown(study: Study, trial: Trial, holder: Trial | None) -> bool:
    """What is kept wears it, but for a baseline that comes after something better."""
    if trial.role != "baseline" or holder is None or holder.score is None or trial.score is None:
        return True
    if broken(study.the_terms, trial.score):
        return False
    return bool(broken(study.the_terms, holder.score)) or _order(study.the_terms, trial.score, holder.score) > 0


def _crowns(study: Study, trial: Trial, holder: Trial) -> tuple[bool, str]:
    """Whether a trial that beats what it grew from beats the holder of the crown too."""
    test = None if trial.score is None else trial.score.test
    if test is None or not test.grown:
        stand, said = _decision(study, trial, holder, None)
        return stand == "in", said
    if (crown := test.crown) is None:
        return False, f"it does not look better than trial {holder.number}, the best"
    return crown.kept and crown.against == holder.number, told_test(crown)


Stand: TypeAlias = Literal["out", "provisional", "in"]


def _decision(study: Study, trial: Trial, holder: Trial | None, leader: Trial | None) -> tuple[Stand, str]:
    """Where a trial stands after a comparison with the holder of the crown; or with `leader`, if looks are enough."""
    if trial.score is None or (study.the_terms.same_host and _elsewhere(study, trial)):
        return "out", _left_out(study, trial)
    if trial.role == "baseline":
        return "in", f"the baseline: {told(trial.score)}"
    if holder is None or holder.score is None:
        return "in", f"{trial.score.value:g} is the first value that could be measured"
    terms = study.the_terms
    if said := broken(terms, trial.score):
        return "out", said
    if said := broken(terms, holder.score):
        return "in", f"it holds every bound, and trial {holder.number} does not: {said}"
    if trial.score.test is not None:
        return "in" if trial.score.test.kept else "out", told_test(trial.score.test)
    other = leader or holder
    assert other.score is not None
    order = _order(terms, trial.score, other.score)
    if order == 0:
        new, _ = digits(trial.score.value, other.score.value)
        return "out", f"{new} ties with trial {other.number}: a tie is not progress"
    said = _told_order(terms, trial.score, other, order > 0)
    if order < 0 or terms.rule == "strict" or study.deterministic_at():
        return "in" if order > 0 else "out", said
    if leader:
        return "provisional", f"{said} in one run; not proven so far"
    return "out", _untested(terms, trial, holder)


def _untested(terms: Terms, trial: Trial, holder: Trial) -> str:
    """Why something better by its value was not run beside the incumbent, and so is not proven."""
    objective = terms.objective
    first, twin = (_value(objective, t.result) for t in (trial, holder))
    if first is None or twin is None or objective.better(first, twin):
        return f"not proven: another trial was the incumbent when this one was measured, not trial {holder.number}"
    new, old = digits(first, twin)
    return f"{new} does not beat {old}, which trial {holder.number} gave with the same seed"


def _order(terms: Terms, new: Score, old: Score) -> int:
    """1 where `new` is better, -1 where it is worse, 0 for a tie: by the first objective in which they differ."""
    gains = (o.gain(a, b) for o, a, b in zip(objectives(terms), worth(terms, new), worth(terms, old), strict=True))
    return next((1 if gain > 0 else -1 for gain in gains if gain), 0)


def _told_order(terms: Terms, new: Score, holder: Trial, better: bool) -> str:
    assert holder.score is not None
    columns = zip(objectives(terms), worth(terms, new), worth(terms, holder.score), strict=True)
    name, a, b = next((o.metric, a, b) for o, a, b in columns if a != b)
    left, right = digits(a, b)
    where = "" if name == terms.objective.metric else f" in {name}, at a tie before it"
    return f"{left} {'beats' if better else 'does not beat'} {right} (trial {holder.number}){where}"


# ---- several objectives ----------------------------------------------------------------------------------------------


def objectives(terms: Terms) -> tuple[Objective, ...]:
    return (terms.objective, *terms.others)


def worth(terms: Terms, score: Score) -> tuple[float, ...]:
    """A score's value in each objective, in their order."""
    return (score.value, *(score.others[other.metric] for other in terms.others))


def broken(terms: Terms, score: Score) -> str:
    """The first bound that a score does not hold, in words."""
    said = (bound.broken(score.others.get(bound.metric)) for bound in terms.constraints)
    return next((text for text in said if text), "")


def dominates(terms: Terms, a: Score, b: Score) -> bool:
    """At least as good in every objective, and better in one."""
    gains = [o.gain(x, y) for o, x, y in zip(objectives(terms), worth(terms, a), worth(terms, b), strict=True)]
    return min(gains) >= 0 and max(gains) > 0


def _on_the_front(study: Study, round: Round) -> Decision:
    """Kept is what nothing kept dominates; the crown goes to the best of them by the objectives in their order."""
    terms, front = study.the_terms, list(study.front)
    kept: list[int] = []
    left: list[int] = []
    crowned, why = study.tally.incumbent, []
    for trial in (study.trials[slot] for slot in round.trials):
        stays, said = _joins(study, trial, front)
        why.append(said)
        if not stays or trial.score is None:
            continue
        gone = [n for n in front if dominates(terms, trial.score, _score(study, n)) or broken(terms, _score(study, n))]
        front = [n for n in front if n not in gone] + [trial.number]
        kept, left = [*kept, trial.number], left + gone
        if crowned is None or crowned in gone or _order(terms, trial.score, _score(study, crowned)) > 0:
            crowned = trial.number
    return Decision(tuple(kept), crowned, "; ".join(why), tuple(left))


def _joins(study: Study, trial: Trial, front: Sequence[int]) -> tuple[bool, str]:
    if trial.score is None or (study.the_terms.same_host and _elsewhere(study, trial)):
        return False, _left_out(study, trial)
    if trial.role == "baseline":
        return True, f"the baseline: {told(trial.score)}"
    if said := broken(study.the_terms, trial.score):
        return False, said
    for number in front:
        if dominates(study.the_terms, _score(study, number), trial.score):
            return False, f"trial {number} is at least as good in everything, and better in something"
        if worth(study.the_terms, _score(study, number)) == worth(study.the_terms, trial.score):
            return False, f"the same as trial {number} in every objective"
    return True, f"nothing is better in everything: on the front with {len(front)} others"


def _score(study: Study, number: int) -> Score:
    score = study.trials[number].score
    assert score is not None
    return score


def _left_out(study: Study, trial: Trial) -> str:
    """Why a trial is compared with nothing."""
    return _elsewhere(study, trial) if trial.score else str(getattr(trial.result, "reason", "it never ran"))


def _elsewhere(study: Study, trial: Trial) -> str:
    if not study.reference or trial.fingerprint == study.reference:
        return ""
    return f"not comparable: ran on {trial.fingerprint}, the study is measured on {study.reference}"


# ---- words -----------------------------------------------------------------------------------------------------------


def told_test(test: Test) -> str:
    """A test in a sentence."""
    if test.problem:
        return f"looked better than trial {test.against} and could not be proven: {test.problem}"
    gain = fmean(test.differences)
    pairs = f"{len(test.differences)} pairs on fresh seeds"
    if test.kept and test.p == 0.0:
        return f"better than trial {test.against} by {gain:.3g} in every one of {pairs}, and nothing varied"
    odds = f"p = {test.p:.2g} at level {test.level:.2g}"
    if test.kept:
        return f"proven better than trial {test.against}: by {gain:.3g} over {pairs}, {odds}"
    return f"looked better than trial {test.against}, and is not proven: {gain:+.3g} over {pairs}, {odds}"


def told_headline(headline: Headline | None) -> str:
    """Best against baseline in a sentence."""
    if headline is None or headline.gain is None:
        return f"could not be measured again: {headline.problem if headline else 'nothing came of it'}"
    if headline.pairs == 1:
        return headline.problem or f"better than the baseline by {headline.gain:.3g}, and the same in one run more"
    low, high = f"{headline.low:.3g}", f"{headline.high:.3g}"
    return f"better than the baseline by {headline.gain:.3g} [{low} to {high}, 95 %] over {headline.pairs} fresh pairs"


def told_held(study: Study, trial: int) -> str:
    """What a trial came to on held-out data, in a sentence."""
    value, name = study.held_value(trial), study.objective.metric
    if value is not None:
        return f"trial {trial} on held-out data: {name} = {value:.6g}"
    return f"trial {trial} could not be scored on held-out data: {getattr(study.held[trial].last, 'reason', '')}"


def told(score: Score) -> str:
    """A score in words: its value, and its spread where there is one."""
    if score.sd is None:
        return f"{score.value:g}"
    return f"{score.value:g} +- {score.sd:.2g} (sd of {score.runs} runs)"


def digits(a: float, b: float) -> tuple[str, str]:
    """Two numbers with as few digits as show them to differ."""
    a, b = a + 0.0, b + 0.0  # there is one zero
    pairs: Iterator[tuple[str, str]] = ((f"{a:.{n}g}", f"{b:.{n}g}") for n in range(4, 18))
    return next(((x, y) for x, y in pairs if x != y or a == b), (repr(a), repr(b)))


# ---- numbers ---------------------------------------------------------------------------------------------------------


def _value(objective: Objective, result: Result | None) -> float | None:
    return result.metrics.get(objective.metric) if isinstance(result, Ran) else None


def _worth(trial: Trial | None) -> float:
    assert trial is not None
    assert trial.score is not None
    return trial.score.value


def _mean(terms: Terms, results: Sequence[Result | None]) -> Score:
    """The means over all runs that gave a value: of the objective, and of all else that decides."""
    ran = [result.metrics for result in results if isinstance(result, Ran)]
    values = [metrics[terms.objective.metric] for metrics in ran]
    names = (*(o.metric for o in terms.others), *(c.metric for c in terms.constraints))
    others = {name: _plain_mean([metrics[name] for metrics in ran]) for name in names}
    return Score(_plain_mean(values), len(values), stdev(values) if len(values) > 1 else None, None, others)


def _plain_mean(values: Sequence[float]) -> float:
    return fmean(values) if len(set(values)) > 1 else values[0]  # exact where nothing varies


def _reason(results: Sequence[Result | None]) -> str:
    """Why a run gave no value, of the first that did not."""
    return next((str(getattr(result, "reason", "")) for result in results if not isinstance(result, Ran)), "")


# ---- run again, long after -------------------------------------------------------------------------------------------

DOUBT = 0.00135
"""Where chance makes a trial that is run again so much worse no more often than that, it is not what it was: as 3
standard errors, if the noise is known.
"""


def undone(study: Study, before: Sequence[Result], again: Sequence[Result]) -> str:
    """Why runs of a kept trial that were made again, under the same seeds, speak against it; empty where they do not.

    Without noise they have to be the same. With noise their mean may be worse by what chance would do, and no more: the
    difference of two means of n runs has the variance 2/n, and that of a run is known from as many degrees of freedom
    as re-runs gave (Student's t).
    """
    pairs = [
        (_value(study.objective, old), _value(study.objective, new)) for old, new in zip(before, again, strict=True)
    ]
    failed = [result for result in again if not isinstance(result, Ran)]
    if failed:
        return f"run again, it failed: {getattr(failed[0], 'reason', '') or 'it gave no metric'}"
    loss = [study.objective.gain(old, new) for old, new in pairs if old is not None and new is not None]
    if not loss:
        return ""
    name, mean = study.objective.metric, sum(loss) / len(loss)
    width = study.evidence[-1][1].width() or 0.0
    if study.deterministic_at():
        differ = next(((old, new) for old, new in pairs if old != new), None)
        return "" if differ is None else f"run again, {name} = {differ[1]!r}, and was {differ[0]!r}, without any noise"
    df = study.evidence[-1][1].df
    unknown = not (width and df)  # nothing was ever run twice, and what is worse now has nothing to excuse it
    if mean > 0 and (unknown or t_tail(mean / (width * math.sqrt(2 / len(loss))), df) < DOUBT):
        runs = "once" if len(loss) == 1 else f"in the mean of {len(loss)}"
        return f"run again, {name} is worse by {mean:.4g} {runs}, more than noise of {width:.3g} (sd) explains"
    return ""


# ---- what looks wrong ------------------------------------------------------------------------------------------------

EQUAL = 5
"""So many candidates running with the very same score, and somebody should look whether it sees them at all."""


def blind(study: Study, round: Round) -> tuple[Alerted, ...]:
    """What has to be said of scores that never change, once, when a round is decided."""
    value, count = study.equal
    if round.role not in ("search", "directed") or round.scores is None:
        return ()
    for score in round.scores:
        if score is None:
            continue
        count = count + 1 if score.value == value else 1
        value = score.value
        if count == EQUAL and not any(text.startswith(BLIND) for text in study.alerts):
            said = f"{EQUAL} candidates running scored exactly {value:.6g}; does it see what they change?"
            return (Alerted(f"{BLIND}: {said}"),)
    return ()


BLIND = "evaluation"
"""What that alert begins with."""
