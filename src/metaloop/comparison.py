"""Strategies that were compared, as people read them: who a blind panel put first, how sure that is, what each took.

Pure. The ballots are of all comparisons of a study together: each is one try of every strategy on the same first
version, and a panel over what came of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import NamedTuple, TypedDict

from metaloop.panels import counted
from metaloop.panelstats import (
    Seen,
    Strength,
    Tiers,
    agreement,
    condorcet,
    first_places,
    intervals,
    length_bias,
    position_bias,
    sign_test,
)
from metaloop.study import Pass, Study, Trial
from metaloop.terms import Tournament
from metaloop.values import Ballot, Usage

FIRST = "single"
"""The strategy that leaves the first version as it is."""


class Standing(NamedTuple):
    """What a strategy came to over all comparisons. `points`: Borda points of the `most` there were. `over`: ballots on
    which it stands above the first version, of `ballots` on which they are apart; `p`: two-sided, by lot (sign test).
    """

    name: str
    points: float
    most: int
    firsts: int
    strength: Strength
    over: int
    ballots: int
    p: float | None
    words: tuple[int, ...]
    calls: int
    usage: Usage
    told: tuple[str, ...]


class Comparison(NamedTuple):
    """All that a study of comparisons says; `standings` from the best on, by points."""

    standings: tuple[Standing, ...]
    condorcet: str | None
    panels: int
    ballots: int
    asked: int
    notes: tuple[str, ...]


def compared(study: Study) -> Comparison:
    """The comparisons of a study that are over."""
    names = _rules(study).compare
    panels = [_tiers(study, each) for each in study.passes if each.panel.winner]
    ballots = [ballot for panel in panels for ballot in panel]
    strengths = intervals(panels, names, Random(study.the_terms.seed))
    firsts, points = first_places(ballots, names), _points(ballots, names)
    made = {name: [_trials(study, each)[name] for each in study.passes] for name in names}
    standings = [
        Standing(
            name, points[name], len(ballots) * len(names), firsts[name], strengths[name], *_over(ballots, name),
            tuple(_words(study, trial) for trial in made[name]), sum(trial.proposal.calls for trial in made[name]),
            _usage(made[name]), tuple(trial.proposal.why for trial in made[name]),
        )
        for name in names
    ]  # fmt: skip
    standings.sort(key=lambda each: -each.points)
    asked = sum(each.panel.asked for each in study.passes)
    best = condorcet(ballots, names) if ballots else None
    return Comparison(tuple(standings), best, len(panels), len(ballots), asked, tuple(_notes(study, panels)))


def _rules(study: Study) -> Tournament:
    rules = study.the_terms.tournament
    assert rules is not None
    return rules


def _trials(study: Study, each: Pass) -> dict[str, Trial]:
    numbers = zip(_rules(study).compare, each.trials, strict=True)
    return {name: study.trials[number] for name, number in numbers}


def _digests(study: Study, each: Pass) -> dict[str, str]:
    document = _rules(study).document
    return {name: (study.base | trial.change.files)[document] for name, trial in _trials(study, each).items()}


def _words(study: Study, trial: Trial) -> int:
    return len(study.contents[(study.base | trial.change.files)[_rules(study).document]].split())


def _tiers(study: Study, each: Pass) -> list[Tiers]:
    """The ballots that count; strategies that came to the same text share the place that it has."""
    digests = _digests(study, each)
    sharing = {name: tuple(other for other, digest in digests.items() if digest == digests[name]) for name in digests}
    rankings = counted(each.panel.ballots, _rules(study).order == "both")
    return [[sharing[name] for name in ranking] for ranking in rankings if ranking is not None]


def _points(ballots: Sequence[Tiers], names: Sequence[str]) -> dict[str, float]:
    """Borda points over all strategies: those that share places have the mean of what these are worth."""
    points = dict.fromkeys(names, 0.0)
    for ballot in ballots:
        place = len(names)
        for tier in ballot:
            for name in tier:
                points[name] += place - (len(tier) - 1) / 2
            place -= len(tier)
    return points


def _over(ballots: Sequence[Tiers], name: str) -> tuple[int, int, float | None]:
    places = [{one: place for place, tier in enumerate(ballot) for one in tier} for ballot in ballots]
    gaps = [place[FIRST] - place[name] for place in places if FIRST in place and place[FIRST] != place[name]]
    over = sum(gap > 0 for gap in gaps)
    if not gaps:
        return 0, 0, None
    return over, len(gaps), sign_test(over, len(gaps))


def _usage(trials: Sequence[Trial]) -> Usage:
    whole = Usage()
    for trial in trials:
        whole = whole.plus(trial.proposal.usage or Usage())
    return whole


def _notes(study: Study, panels: Sequence[Sequence[Tiers]]) -> Iterator[str]:
    """What has to be minded about the ballots themselves, a sentence each."""
    for number, each in enumerate(study.passes, 1):
        same: dict[str, list[str]] = {}
        for name, digest in _digests(study, each).items():
            same.setdefault(digest, []).append(name)
        for names in (names for names in same.values() if len(names) > 1):
            yield f"Comparison {number}: {_joined(names)} came to the same text, and share its place."
    for number, each in enumerate(study.passes, 1):
        if not each.panel.winner and each.panel.ballots:
            yield f"Comparison {number} is left out: {each.panel.why}."
    lost = sum(each.panel.asked - each.panel.valid for each in study.passes)
    if lost:
        yield f"{lost} of {sum(each.panel.asked for each in study.passes)} ballots do not count."
    yield from _biases(study)
    if panels:
        yield (
            "The judges of a panel read the same texts: their ballots say how sure they are of these texts, and not "
            "what another try, task or judge would say." + (" Repeat it with --repeats." if len(panels) < 3 else "")
        )


def _biases(study: Study) -> Iterator[str]:
    """Where versions stood, how long they are, and whether the judges agree; of panels with as many versions each."""
    most = max((len(each.panel.points) for each in study.passes), default=0)
    full = [each for each in study.passes if len(each.panel.points) == most and most > 1]
    valid = [(each, ballot) for each in full for ballot in each.panel.ballots if ballot.ranking]
    if len(valid) < most:
        return
    seen = position_bias(Seen(ballot.shown, ballot.ranking) for _, ballot in valid)
    yield f"By place shown, texts came first {', '.join(map(str, seen.wins))} times (p = {seen.p:.2g})."
    lengths = {each.round: {n: _words(study, t) for n, t in _trials(study, each).items()} for each in full}
    longest = length_bias((ballot.ranking, lengths[each.round]) for each, ballot in valid)
    if longest.ballots:
        yield (
            f"The longest text came first {longest.wins} times of {longest.ballots} "
            f"(p = {min(1.0, 2 * min(longest.more, longest.fewer)):.2g})."
        )
    panels = [[ballot.ranking for ballot in each.panel.ballots if ballot.ranking] for each in full]
    if judged := [panel for panel in panels if len(panel) > 1]:
        agreed = agreement(judged)
        yield f"Judges agree by Kendall's W = {agreed.w:.2f} (0 none, 1 one mind); ballots by lot: p = {agreed.p:.2g}."


# ---- for people ------------------------------------------------------------------------------------------------------


def line(study: Study, index: int) -> str:
    """`comparison 1  autoreason wins: ...`, for the one with this index, from 0."""
    return f"comparison {index + 1:>2}  {study.passes[index].panel.why}"


def verdict(found: Comparison) -> str:
    """Who is best, and how sure that is, in a sentence."""
    if not found.ballots:
        return "nothing was decided: no ballot counts"
    best = found.standings[0]
    if ties := [each.name for each in found.standings[1:] if each.points == best.points]:
        return f"{_joined([best.name, *ties])} share the most points, {best.points:g} of {best.most}"
    share = f"{best.points:g} of {best.most} points, first on {best.firsts} of {found.ballots} ballots"
    beats = "" if found.condorcet is None else f"; {found.condorcet} is above each other on most ballots"
    return f"{best.name}: {share}{beats or '; none is above each other on most ballots'}"


def table(found: Comparison) -> list[tuple[str, ...]]:
    """A head, and a row for each strategy, the best first."""
    head = ("strategy", "points", "first", "strength", "95 %", "over the first version", "words", "calls", "cost")
    rows = [
        (
            each.name,
            f"{each.points:g}",
            str(each.firsts),
            f"{each.strength.value:.2f}",
            f"{each.strength.low:.2f} to {each.strength.high:.2f}",
            "-" if each.p is None else f"{each.over} of {each.ballots}, p = {each.p:.2g}",
            _range(each.words),
            str(each.calls),
            "?" if each.usage.usd is None and each.calls else f"${each.usage.usd or 0:.3g}",
        )
        for each in found.standings
    ]
    return [head, *rows]


def page(study: Study) -> str:
    """The report of a study of comparisons, in Markdown."""
    return "\n".join(_page(study)) + "\n"


def _page(study: Study) -> Iterator[str]:
    rules, found = _rules(study), compared(study)
    yield f"# {rules.document}: {len(rules.compare)} strategies"
    yield ""
    yield f"It ended: {study.closed.why}." if study.closed else "It has not ended."
    yield (
        f"Each had the same first version and at most {rules.calls} calls; {rules.final} judges ranked what came of "
        f"them, blind, {'once' if found.panels == 1 else f'{found.panels} times'}: {verdict(found)}."
    )
    yield ""
    head, *rows = table(found)
    for row in (head, tuple("---" for _ in head), *rows):
        yield f"| {' | '.join(row)} |"
    yield ""
    yield (
        "Strength: Bradley-Terry, the strengths sum to 1; the interval is a bootstrap over ballots"
        + (" and comparisons." if found.panels > 1 else ".")
    )
    for note in found.notes:
        yield ""
        yield note
    for number, each in enumerate(study.passes, 1):
        yield ""
        yield from _comparison(study, number, each)


def _comparison(study: Study, number: int, each: Pass) -> Iterator[str]:
    yield f"## Comparison {number}: {each.panel.why}"
    yield ""
    for name, trial in _trials(study, each).items():
        yield f"- {name}, trial {trial.number}: {_words(study, trial)} words; {_cell(trial.proposal.why)}"
    if each.panel.ballots:
        yield ""
        yield "| judge | model | saw | ranked |"
        yield "|---|---|---|---|"
        for ballot in each.panel.ballots:
            yield f"| {ballot.judge + 1} | {_cell(ballot.model)} | {' '.join(ballot.shown)} | {_ranked(ballot)} |"


def _ranked(ballot: Ballot) -> str:
    return " > ".join(ballot.ranking) or f"invalid: {_cell(ballot.problem)}"


def _cell(text: str) -> str:
    """On one line of a table, as text."""
    shown = "".join(c if c.isprintable() else " " for c in text)
    return "".join(f"\\{c}" if c in "|<>`*_[]\\" else c for c in " ".join(shown.split()))


def _joined(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _range(words: Sequence[int]) -> str:
    return "-" if not words else str(words[0]) if len(set(words)) == 1 else f"{min(words)} to {max(words)}"


# ---- for programs ----------------------------------------------------------------------------------------------------


class Told(TypedDict):
    """A strategy, as `--json` tells it; money in USD, None where a price is not known."""

    strategy: str
    points: float
    points_possible: int
    first_places: int
    strength: float
    strength_low: float
    strength_high: float
    above_first_version: int
    ballots_apart: int
    p: float | None
    words: list[int]
    calls: int
    usd: float | None
    told: list[str]


def told(found: Comparison) -> Mapping[str, object]:
    """All of it, for `--json`."""
    return {
        "verdict": verdict(found),
        "condorcet": found.condorcet,
        "panels": found.panels,
        "ballots": {"valid": found.ballots, "asked": found.asked},
        "strategies": [
            Told(
                strategy=each.name,
                points=each.points,
                points_possible=each.most,
                first_places=each.firsts,
                strength=each.strength.value,
                strength_low=each.strength.low,
                strength_high=each.strength.high,
                above_first_version=each.over,
                ballots_apart=each.ballots,
                p=each.p,
                words=list(each.words),
                calls=each.calls,
                usd=each.usage.usd,
                told=list(each.told),
            )
            for each in found.standings
        ],
        "notes": list(found.notes),
    }
