"""From results to scores and decisions: what is kept and crowned, by which rule, and why, in plain words.

`proven`: a candidate that looks better than the incumbent is run beside it on fresh seeds, and kept only if that proves
it (`noise.py` has the rule). While no repeat ever gave another value the metric is deterministic: then, and with
`strict`, better is better, and nothing extra is spent.
"""

from collections.abc import Generator, Iterator, Sequence
from statistics import fmean, stdev
from typing import TypeVar, cast

from metaloop.evaluators.noise import Rule, interval, level, looks, moderated, t_tail
from metaloop.evaluators.noise import decide as verdict
from metaloop.flow import Answer, Ask, Flow, Runs
from metaloop.roles import Confirm, Measure, Measurement
from metaloop.study import Round, Study, Trial, View
from metaloop.terms import Terms
from metaloop.values import Decision, Headline, Objective, Ran, Result, Score, Test

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
        return (yield from _repeated(view, trial, first))
    holder = view.incumbent
    plain = view.terms.rule == "strict" or view.deterministic or holder is None or holder.score is None
    if plain or not view.objective.better(first, _worth(holder)):
        return Score(first)
    assert holder is not None
    return (yield from _tested(rule, view, trial.trial, holder, first))


def _repeated(view: View, trial: Measurement, first: float) -> Part[Score]:
    """The baseline's score: over `repeats` runs, whose spread is what is first known of the noise."""
    values = [first]
    if view.terms.baseline.repeats > 1:
        more = yield Runs(trial.trial, tuple(range(1, view.terms.baseline.repeats)))
        values += [
            value for result in cast(tuple[Result, ...], more) if (value := _value(view.objective, result)) is not None
        ]
    return _mean(values)


def _tested(rule: Rule, view: View, trial: int, holder: Trial, first: float) -> Part[Score]:
    """Pairs of candidate and incumbent on fresh seeds, until they prove something or cannot any more."""
    before, seeds = view.evidence, fresh(view)
    number = view.tests + 1
    at = level(rule, view.tests - len(before.keeps), number, before.keeps)
    mine: list[float] = []
    d: list[float] = []
    for count in looks(rule):
        runs = seeds[len(d) : count]
        results = cast(tuple[Result, ...], (yield Runs(trial, runs, holder.number, runs)))
        values = [_value(view.objective, result) for result in results]
        own, other = values[: len(runs)], values[len(runs) :]
        pairs = [(a, b) for a, b in zip(own, other, strict=True) if a is not None and b is not None]
        mine += [a for a, _ in pairs]
        d += [view.objective.gain(a, b) for a, b in pairs]
        if len(d) < count:
            problem = _reason([*results])
            return Score(first, test=Test(holder.number, number, tuple(d), at, 1.0, False, problem))
        if _never_varied(view, mine, first, d):
            return Score(first, 1 + len(mine), 0.0, Test(holder.number, number, tuple(d), at, 0.0, True))
        said = verdict(rule, d, before, at)
        if said != "more":
            break
    test = Test(holder.number, number, tuple(d), at, t_tail(*moderated(rule, d, before)), said == "keep")
    if not test.kept:
        return Score(first, test=test)
    rest = seeds[len(d) : rule.confirm]
    if rest:
        more = cast(tuple[Result, ...], (yield Runs(trial, rest)))
        mine += [value for result in more if (value := _value(view.objective, result)) is not None]
    return Score(fmean(mine), len(mine), stdev(mine), test)


def _never_varied(view: View, mine: Sequence[float], first: float, d: Sequence[float]) -> bool:
    """Without a repeated baseline, the first test is what shows that a metric never varies: then better is better."""
    nothing_known = view.evidence.df == 0 and not view.tests
    return nothing_known and set(mine) == {first} and len(set(d)) == 1 and d[0] > 0


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
        values = [_value(view.objective, result) for result in results]
        pairs = [(a, b) for a, b in zip(values[: len(runs)], values[len(runs) :], strict=True) if None not in (a, b)]
        return _headline(rule, view, best, baseline, cast(list[tuple[float, float]], pairs), _reason(results))

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


def _headline(
    rule: Rule, view: View, best: Trial, baseline: Trial, pairs: Sequence[tuple[float, float]], reason: str
) -> Headline:
    if len(pairs) < 2:
        return Headline(best.number, baseline.number, len(pairs), problem=reason or "too few of the closing runs ended")
    d = [view.objective.gain(a, b) for a, b in pairs]
    low, high = interval(rule, d, view.evidence)
    return Headline(best.number, baseline.number, len(d), fmean(a for a, _ in pairs), fmean(d), low, high)


# ---- decisions -------------------------------------------------------------------------------------------------------


def decide(study: Study, round: Round) -> Decision:
    """What is kept and crowned: the proven, or with `strict` and deterministic metrics the strictly better. No ties."""
    if round.role == "closing":
        return Decision((), study.tally.incumbent, told_headline(study.headline))
    kept: list[int] = []
    crowned, why = study.tally.incumbent, []
    for trial in (study.trials[slot] for slot in round.trials):
        holder = None if crowned is None else study.trials[crowned]
        stays, said = _decision(study, trial, holder)
        why.append(said)
        if stays:
            kept.append(trial.number)
            crowned = trial.number if _takes_the_crown(study, trial, holder) else crowned
    return Decision(tuple(kept), crowned, "; ".join(why))


def _takes_the_crown(study: Study, trial: Trial, holder: Trial | None) -> bool:
    """What is kept wears it, but for a baseline that comes after something better."""
    if trial.role != "baseline" or holder is None or holder.score is None or trial.score is None:
        return True
    return study.objective.better(trial.score.value, holder.score.value)


def _decision(study: Study, trial: Trial, holder: Trial | None) -> tuple[bool, str]:
    if trial.score is None:
        return False, str(getattr(trial.result, "reason", "it never ran"))
    if study.the_terms.same_host and (other := _elsewhere(study, trial)):
        return False, other
    if trial.role == "baseline":
        return True, f"the baseline: {told(trial.score)}"
    if holder is None or holder.score is None:
        return True, f"{trial.score.value:g} is the first value that could be measured"
    if trial.score.test is not None:
        return trial.score.test.kept, told_test(trial.score.test)
    new, old = digits(trial.score.value, holder.score.value)
    if study.objective.better(trial.score.value, holder.score.value):
        return True, f"{new} beats {old} (trial {holder.number})"
    if trial.score.value == holder.score.value:
        return False, f"{new} ties with trial {holder.number}: a tie is not progress"
    return False, f"{new} does not beat {old} (trial {holder.number})"


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


def told(score: Score) -> str:
    """A score in words: its value, and its spread where there is one."""
    if score.sd is None:
        return f"{score.value:g}"
    return f"{score.value:g} +- {score.sd:.2g} (sd of {score.runs} runs)"


def digits(a: float, b: float) -> tuple[str, str]:
    """Two numbers with as few digits as show them to differ."""
    pairs: Iterator[tuple[str, str]] = ((f"{a:.{n}g}", f"{b:.{n}g}") for n in range(4, 18))
    return next(((x, y) for x, y in pairs if x != y or a == b), (repr(a), repr(b)))


# ---- numbers ---------------------------------------------------------------------------------------------------------


def _value(objective: Objective, result: Result | None) -> float | None:
    return result.metrics.get(objective.metric) if isinstance(result, Ran) else None


def _worth(trial: Trial | None) -> float:
    assert trial is not None
    assert trial.score is not None
    return trial.score.value


def _mean(values: Sequence[float]) -> Score:
    mean = fmean(values) if len(set(values)) > 1 else values[0]  # exact where nothing varies
    return Score(mean, len(values), stdev(values) if len(values) > 1 else None)


def _reason(results: Sequence[Result]) -> str:
    """Why a run gave no value, of the first that did not."""
    return next((str(getattr(result, "reason", "")) for result in results if not isinstance(result, Ran)), "")
