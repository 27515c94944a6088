"""A tournament as people read it: pass by pass, each ballot, and what it would look like by chance. Pure."""

from collections.abc import Iterator, Sequence
from typing import TypedDict

from metaloop import comparison
from metaloop.study import Pass, Study, Trial
from metaloop.values import Ballot, Failed, Refused

NAMES = "B", "AB"
"""The trials of a pass, in their order."""


def line(study: Study, index: int) -> str:
    """`pass 3  AB wins: A 5, B 4, AB 9, 3 of 3 ballots`, for the pass with this index, from 0."""
    each = study.passes[index]
    if _compares(study):
        return comparison.line(study, index)
    return f"pass {index + 1:>2}  {each.panel.winner or '-':<2}  {each.panel.why}"


def text(study: Study) -> str:
    """The document as it is now."""
    rules, best = study.the_terms.tournament, study.incumbent
    assert rules is not None
    files = study.base | (best.change.files if best is not None else {})
    return study.contents[files[rules.document]]


def where(study: Study) -> str:
    """Which version the document is, in words."""
    best = study.incumbent
    if best is None or best.number == study.baseline:
        return "the first version: no other won"
    number = next(index for index, each in enumerate(study.passes, 1) if best.number in each.trials)
    return f"trial {best.number}, of {'comparison' if _compares(study) else 'pass'} {number}"


def _compares(study: Study) -> bool:
    """Whether strategies are compared, in place of a tournament."""
    rules = study.the_terms.tournament
    return rules is not None and bool(rules.compare)


def names(study: Study) -> tuple[str, ...]:
    """What the trials of a pass are called, in their order."""
    rules = study.the_terms.tournament
    return rules.compare if rules is not None and rules.compare else NAMES


def chance(study: Study) -> str:
    """What random ballots would have come to under the same rules, in a sentence."""
    rules = study.the_terms.tournament
    assert rules is not None
    from metaloop.panelstats import chance_of_incumbent, passes_to_streak  # of documents alone

    alone = chance_of_incumbent(rules.judges, tie_order=rules.tie_order, margin=rules.margin)
    expected = passes_to_streak(alone, rules.k)
    return (
        f"With ballots drawn by lot the document would win {float(alone):.0%} of the passes, and {rules.k} running "
        f"after {expected:.3g} on average; here it won {_share(study)}."
    )


def _share(study: Study) -> str:
    decided = [each for each in study.passes if each.panel.winner]
    won = sum(each.panel.winner == "A" for each in decided)
    return f"{won} of {len(decided)}"


def final(study: Study) -> str:
    """What the panel at the end says of the last version and the first, in a sentence; empty where none was asked."""
    panel = study.headline.panel if study.headline else None
    if panel is None:
        return ""
    if not panel.winner:
        return f"Asked once more at the end: {panel.why}."
    from metaloop.panelstats import sign_test  # of documents alone

    liked, valid = panel.points["last"] - panel.valid, panel.valid  # two points for a first place, one for a last
    said = f"{liked} of {valid} judges prefer the last version to the first (by lot: p = {sign_test(liked, valid):.2g})"
    return f"Asked once more at the end, {said}{'' if 2 * liked > valid else ': **nothing was gained that they see**'}."


def drifts(study: Study) -> str:
    """That versions made of both go on winning, and the document never settles; empty where that is not so."""
    winners = [each.panel.winner for each in study.passes if each.panel.winner]
    if len(winners) < 5 or winners.count("A") >= 0.15 * len(winners) or winners.count("AB") * 2 <= len(winners):
        return ""
    return (
        f"The document won {winners.count('A')} of {len(winners)} passes, and AB {winners.count('AB')}: it drifts. Fix "
        "what must not change (facts, length of each part, structure) in the task, or set tournament.scope_note."
    )


# ---- the panel itself ------------------------------------------------------------------------------------------------

SUSPECT = 0.01
"""The chance below which a panel is said to go by something else than the text."""


def biases(study: Study) -> Iterator[str]:
    """What all valid ballots on three versions say of their judges, a sentence each; nothing while there are few."""
    from metaloop.panelstats import Seen, agreement, flips, length_bias, position_bias  # of documents alone

    full = [each for each in study.passes if len(each.panel.points) == len(NAMES) + 1]
    valid = [(each, ballot) for each in full for ballot in each.panel.ballots if ballot.ranking]
    if len(valid) < FEW:
        return
    places = position_bias(Seen(ballot.shown, ballot.ranking) for _, ballot in valid)
    wins = ", ".join(map(str, places.wins))
    yield f"By place shown, versions came first {wins} times (p = {places.p:.2g}){_suspect(places.p)}."
    lengths = {each.round: _lengths(study, each) for each in full}
    longest = length_bias((ballot.ranking, lengths[each.round]) for each, ballot in valid)
    odd = min(longest.more, longest.fewer)
    yield (
        f"The longest version came first {longest.wins} times of {longest.ballots} (p = {min(1.0, 2 * odd):.2g})"
        f"{_suspect(2 * odd)}; Kendall's tau of length and rank is {longest.correlation:+.2f}."
    )
    panels = [[ballot.ranking for ballot in each.panel.ballots if ballot.ranking] for each in full]
    if judged := [panel for panel in panels if len(panel) > 1]:
        agreed = agreement(judged)
        yield f"Judges agree by Kendall's W = {agreed.w:.2f} (0 none, 1 one mind); ballots by lot: p = {agreed.p:.2g}."
    rules = study.the_terms.tournament
    if rules is not None and rules.order == "both":
        pairs = [(a.ranking or None, b.ranking or None) for each in full for a, b in _twos(each.panel.ballots)]
        turned = flips(pairs)
        yield f"Of {turned.pairs} judges that were asked in both orders, {turned.flipped} changed their first place."


FEW = 6
"""Ballots below which nothing is said of a panel's judges."""


def _twos(ballots: Sequence[Ballot]) -> Iterator[tuple[Ballot, Ballot]]:
    return zip(ballots[::2], ballots[1::2], strict=True)


def _suspect(p: float) -> str:
    return ": **the panel may go by that**" if p < SUSPECT else ""


def _lengths(study: Study, each: Pass) -> dict[str, int]:
    """Words of every version of a pass, by name."""
    rules = study.the_terms.tournament
    assert rules is not None
    trials = {"A": _held(study, each), **dict(zip(NAMES, each.trials, strict=True))}
    changes = {name: study.trials[number].change for name, number in trials.items()}
    files = {name: (study.base | change.files)[rules.document] for name, change in changes.items()}
    return {name: len(study.contents[digest].split()) for name, digest in files.items()}


def _held(study: Study, each: Pass) -> int:
    """The trial that was A in a pass: the one that both of its own grew from."""
    parent = study.trials[each.trials[0]].proposal.parent
    assert parent is not None, "every version grows from the one that holds"
    return parent


# ---- a page ----------------------------------------------------------------------------------------------------------


def page(study: Study) -> str:
    """The report of a tournament, or of strategies that were compared, in Markdown."""
    if _compares(study):
        return comparison.page(study)
    return "\n".join(_page(study)) + "\n"


def _page(study: Study) -> Iterator[str]:
    rules = study.the_terms.tournament
    assert rules is not None
    yield f"# {rules.document}: {len(study.passes)} passes"
    yield ""
    yield f"It ended: {study.closed.why}." if study.closed else "It has not ended."
    yield f"The document now is {where(study)}. {chance(study)}"
    yield f"A pass is decided by {rules.judges} judges; {rules.margin} points above it unseat the document."
    if said := final(study):
        yield said
    if told := drifts(study):
        yield ""
        yield f"**{told}**"
    for sentence in biases(study):
        yield ""
        yield sentence
    for index, each in enumerate(study.passes):
        yield ""
        yield from _pass(study, index, each)


def _pass(study: Study, index: int, each: Pass) -> Iterator[str]:
    yield f"## Pass {index + 1}: {_won(each)}"
    yield ""
    for name, trial in zip(NAMES, (study.trials[number] for number in each.trials), strict=True):
        yield f"- {name}, trial {trial.number}, {_made(study, trial)}"
    if each.panel.ballots:
        yield ""
        yield f"{each.panel.why}."
        yield ""
        yield "| judge | model | saw | ranked |"
        yield "|---|---|---|---|"
        for ballot in each.panel.ballots:
            yield f"| {ballot.judge + 1} | {_cell(ballot.model)} | {' '.join(ballot.shown)} | {_ranked(ballot)} |"


def _won(each: Pass) -> str:
    winner = each.panel.winner
    return {"": "void", "A": "the document holds"}.get(winner, f"{winner} wins")


def _made(study: Study, trial: Trial) -> str:
    if isinstance(trial.result, Refused | Failed):
        return f"is none: {_cell(trial.result.reason)}"
    words = study.changed_code(trial.change, None)
    return f"{_cell(trial.proposal.by)}: {', '.join(words)}; {_cell(trial.proposal.why)}"


def _ranked(ballot: Ballot) -> str:
    return " > ".join(ballot.ranking) or f"invalid: {_cell(ballot.problem)}"


def _cell(text: str) -> str:
    """On one line of a table, as text."""
    return "".join(f"\\{c}" if c in "|<>`*_[]\\" else c for c in " ".join(text.split()))


# ---- for programs ----------------------------------------------------------------------------------------------------


class Told(TypedDict):
    """A pass, as `--json` tells it."""

    number: int
    winner: str | None
    why: str
    points: dict[str, int]
    valid: int
    asked: int
    trials: dict[str, int]
    ballots: list[Ballot]


def told(study: Study) -> list[Told]:
    """Every pass."""
    return [
        Told(
            number=index + 1,
            winner=each.panel.winner or None,
            why=each.panel.why,
            points=each.panel.points,
            valid=each.panel.valid,
            asked=each.panel.asked,
            trials=dict(zip(names(study), each.trials, strict=True)),
            ballots=list(each.panel.ballots),
        )
        for index, each in enumerate(study.passes)
    ]
