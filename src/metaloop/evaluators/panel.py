"""What a blind panel says, as scores and decisions: of a pass of a tournament, and of strategies that are compared."""

from collections.abc import Mapping, Sequence

from metaloop.events import Alerted, Directed
from metaloop.flow import Flow, conclude
from metaloop.panels import RIVALS, A, asked, final, substitutes, troubles, unheard
from metaloop.roles import Confirm, Measure, Measurement, Verdict
from metaloop.study import Round, Study, Trial, View
from metaloop.terms import Tournament
from metaloop.values import Decision, Failed, Headline, Panel, Refused, Score


def judging(terms: Tournament) -> Measure:
    """The panel as a measure: a trial's score is its Borda points."""

    def measure(view: View, measurements: Sequence[Measurement]) -> Flow[tuple[Score | None, ...] | Verdict]:
        if view.role == "baseline":
            return conclude((Score(0.0),))
        return _compared(view, terms, measurements) if terms.compare else _pass(view, terms, measurements)

    return measure


def _pass(
    view: View, terms: Tournament, measurements: Sequence[Measurement]
) -> Flow[tuple[Score | None, ...] | Verdict]:
    named = dict(zip(RIVALS, measurements, strict=True))
    rivals = [name for name, each in named.items() if not isinstance(each.first, Refused | Failed)]
    if not rivals:
        return Verdict((None,) * len(measurements), _uncontested(measurements))
    incumbent = view.incumbent
    assert incumbent is not None, "the first version holds the crown until another wins"
    changes = {A: incumbent.change} | {name: view.trial(named[name].trial).change for name in rivals}
    texts = {name: view.code(change)[terms.document] for name, change in changes.items()}
    panel = yield from asked(view, terms, texts, view.rng("panel"))
    scores = tuple(Score(float(panel.points[name])) if name in panel.points else None for name in named)
    return Verdict(scores, panel)


def _uncontested(measurements: Sequence[Measurement]) -> Panel:
    """A pass without a rival: the incumbent holds if nothing else came of it, and not if nothing could be read."""
    reasons = [each.first for each in measurements if isinstance(each.first, Refused | Failed)]
    if all(isinstance(reason, Refused) and reason.code == "same_text" for reason in reasons):
        return Panel(A, f"no rival: {reasons[0].reason}")
    return Panel("", f"void: no version could be judged: {reasons[0].reason}")


def _compared(
    view: View, terms: Tournament, measurements: Sequence[Measurement]
) -> Flow[tuple[Score | None, ...] | Verdict]:
    """Texts that are the same are shown once, under the name of the first, and share what they get."""
    trials = [view.trial(each.trial) for each in measurements]
    named: dict[str, Trial] = dict(zip(terms.compare, trials, strict=True))
    texts = {name: view.code(trial.change)[terms.document] for name, trial in named.items()}
    shown = alone(texts)
    distinct = {name: text for name, text in texts.items() if shown[name] == name}
    if len(distinct) < 2:
        return Verdict((None,) * len(trials), Panel("", "void: all strategies came to the same text"))
    panel = yield from asked(view, final(terms, tuple(distinct)), distinct, view.rng("panel"))
    return Verdict(tuple(Score(float(panel.points[shown[name]])) for name in texts), panel)


def alone(texts: Mapping[str, str]) -> dict[str, str]:
    """For each name the first that has the same text: itself, where there is none before it."""
    first: dict[str, str] = {}
    return {name: first.setdefault(text, name) for name, text in texts.items()}


FIRST, LAST = "first", "last"
"""The versions that the panel at the end of a tournament compares."""


def closing(terms: Tournament) -> Confirm:
    """The first version against the last, by more judges, once: whoever won pass after pass was never asked that."""

    def confirm(view: View) -> Flow[Headline]:
        best, baseline = view.incumbent, view.baseline
        assert best is not None
        assert baseline is not None
        texts = {name: view.code(each.change)[terms.document] for name, each in ((FIRST, baseline), (LAST, best))}
        panel = yield from asked(view, final(terms, (FIRST, LAST)), texts, view.rng("final"))
        return Headline(best.number, baseline.number, panel.valid, panel=panel)

    return confirm


def deciding(study: Study, round: Round) -> Decision:
    """What the panel said: a rival that won holds the document now. The panel at the end changes nothing any more."""
    if round.role == "closing":
        panel = study.headline.panel if study.headline else None
        return Decision((), study.tally.incumbent, panel.why if panel else "the last panel could not be asked")
    if round.panel is None:
        return Decision(tuple(round.trials), round.trials[0], "the document as it was given")
    rules = study.the_terms.tournament
    assert rules is not None, "a panel has rules"
    named = dict(zip(rules.compare or RIVALS, round.trials, strict=True))
    if (number := named.get(round.panel.winner)) is None:
        return Decision((), None, round.panel.why)
    return Decision((number,), number, round.panel.why)


def failing(study: Study, round: Round) -> Sequence[Alerted | Directed]:
    """That a judge's ballots could not be counted in two passes running, once for each: a panel that lost a judge is
    another panel. Where nobody can take the seat, the study waits for somebody who says how it goes on.
    """
    rules = study.the_terms.tournament
    if round.panel is None or rules is None or not study.passes:
        return ()
    before = [each.panel for each in study.passes]
    facts: list[Alerted | Directed] = []
    for judge in sorted(unheard(round.panel)):
        times = troubles(judge, [*before, round.panel])
        if times == troubles(judge, before) or times > (2 if substitutes(rules) else 1):
            continue
        problem = next(each.problem for each in round.panel.ballots if each.judge == judge and each.problem)
        said = f"{_judge(judge)}: no ballot that counts in two passes running: {problem}"
        if substitutes(rules) and times == 1:
            facts.append(Alerted(f"{said}; somebody else is asked from now on"))
        elif not round.panel.winner:
            facts.append(Alerted(f"{said}; ask another model"))
        else:
            facts.append(Alerted(f"{said}; it waits: `metaloop steer {study.name} resume` goes on without that judge"))
            facts.append(Directed(f"panel-{round.number}-{judge}", "pause", by="panel", why=said))
    return facts


def _judge(judge: int) -> str:
    return f"judge {judge + 1} of the panel"
