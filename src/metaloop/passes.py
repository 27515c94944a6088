"""A tournament as people read it: pass by pass, each ballot, and what it would look like by chance. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from metaloop import comparison
from metaloop.events import Entry, Measured, Reply
from metaloop.study import Pass, Round, Study, Trial, evolve
from metaloop.terms import SEATS, SPARE
from metaloop.values import Ballot, Failed, Panel, Refused

if TYPE_CHECKING:
    from metaloop.recount import Cast, Found, Rules

NAMES = "B", "AB"
"""The trials of a pass, in their order."""


def line(study: Study, index: int) -> str:
    """`pass 3  AB wins: A 5, B 4, AB 9, 3 of 3 ballots`, for the pass with this index, from 0."""
    each = study.passes[index]
    if compares(study):
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
    return f"trial {best.number}, of {'comparison' if compares(study) else 'pass'} {number}"


def compares(study: Study) -> bool:
    """Whether strategies are compared, in place of a tournament."""
    rules = study.the_terms.tournament
    return rules is not None and bool(rules.compare)


def names(study: Study) -> tuple[str, ...]:
    """What the trials of a pass are called, in their order."""
    rules = study.the_terms.tournament
    return rules.compare if rules is not None and rules.compare else NAMES


def chance(study: Study) -> str:
    """What random ballots would have come to under the same rules, in a sentence."""
    from metaloop.recount import chance as by_lot  # of documents alone

    rules = study.the_terms.tournament
    assert rules is not None
    return f"{by_lot(rules.judges, judged_by(study))}; here it won {_share(study)}."


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


def biases(study: Study) -> Iterator[str]:
    """What all valid ballots on three versions say of their judges, a sentence each; nothing while there are few."""
    from metaloop.recount import counted, told  # of documents alone

    rules = judged_by(study)
    yield from told([counted(each, rules) for each in found(study, {})], both=rules.both)


def lengths(study: Study, each: Pass) -> dict[str, int]:
    """Words of every version of a pass, by name."""
    return {name: len(text.split()) for name, text in versions(study, each).items()}


def versions(study: Study, each: Pass) -> dict[str, str]:
    """The texts of a pass, by name; without those that were refused."""
    rules = study.the_terms.tournament
    assert rules is not None
    trials = {"A": held(study, each), **dict(zip(NAMES, each.trials, strict=True))}
    there = {name: study.trials[number] for name, number in trials.items() if number is not None}
    files = {
        name: (study.base | trial.change.files)[rules.document]
        for name, trial in there.items()
        if not isinstance(trial.result, Refused)
    }
    return {name: study.contents[digest] for name, digest in files.items()}


def held(study: Study, each: Pass) -> int:
    """The trial that was A in a pass: the one that both of its own grew from."""
    parent = study.trials[each.trials[0]].proposal.parent
    assert parent is not None, "every version grows from the one that holds"
    return parent


# ---- counted again ---------------------------------------------------------------------------------------------------


class Heard(NamedTuple):
    """What a pass was told: the critic's reply, and those of the judges, ask by ask."""

    critique: str
    judges: tuple[tuple[Reply | None, ...], ...]


def heard(entries: Iterable[Entry]) -> tuple[Study, dict[int, Heard]]:
    """A study, and by round what was said in its passes: what is forgotten once it is used."""
    study, said = Study(), dict[int, Heard]()
    for entry in entries:
        match entry.event:
            case Measured(round=round, panel=Panel()):
                said[round] = _heard(study.open[round])
        evolve(study, entry)
    return study, said


def _heard(round: Round) -> Heard:
    critic = [exchange for exchange in round.asked["propose"] if exchange.roles == ("critic",)]
    reply = critic[0].answers[0] if critic else None
    judges = (exchange.answers for exchange in round.asked["measure"] if set(exchange.roles) <= {*SEATS, SPARE})
    replies = tuple(tuple(answer if isinstance(answer, Reply) else None for answer in answers) for answers in judges)
    return Heard((reply.text or "") if isinstance(reply, Reply) else "", replies)


def judged_by(study: Study, k: int | None = None) -> "Rules":
    """How the passes of a study are decided."""
    from metaloop.recount import Rules  # of documents alone

    terms = study.the_terms.tournament
    assert terms is not None
    return Rules(k or terms.k, terms.margin, terms.tie_order, terms.quorum, terms.order == "both")


def found(study: Study, said: Mapping[int, Heard]) -> Iterator["Found"]:
    """The passes as they are recorded, with the replies that are known."""
    from metaloop.recount import Found, Record  # of documents alone

    for index, each in enumerate(study.passes):
        panel = each.panel
        ballots, notes = _casts(panel, said.get(each.round))
        yield Found(
            index + 1,
            tuple(panel.points) or ("A", *NAMES),
            ballots,
            panel.asked,
            Record(panel.winner or None, panel.points, panel.valid),
            panel.why if panel.winner and not panel.asked else "",
            lengths(study, each),
            notes,
        )


def _casts(panel: Panel, said: Heard | None) -> tuple[tuple["Cast", ...], tuple[str, ...]]:
    from metaloop.panels import lost  # of documents alone
    from metaloop.recount import Cast

    replies = last_said(panel, said)
    casts = []
    for ballot, reply in zip(panel.ballots, replies, strict=True):
        why = ballot.problem if reply is None else lost(reply)
        raw = None if reply is None or why else reply.text
        casts.append(Cast(ballot.judge + 1, ballot.shown, ballot.labels, raw, why, ballot.ranking or None))
    unknown = said is not None and None in replies
    return tuple(casts), ("which ballots were asked for again cannot be told",) if unknown else ()


def last_said(panel: Panel, said: Heard | None) -> list[Reply | None]:
    """For each ballot the reply that it was read from: the last, of those that were asked for again. None where that is
    not known: another version may have read another ballot as invalid.
    """
    if said is None or not said.judges or len(said.judges[0]) != len(panel.ballots):
        return [None] * len(panel.ballots)
    first, *more = said.judges
    replies = list(first)
    for asked in more:
        again = [at for at, reply in enumerate(replies) if reply is None or not _counts(panel.ballots[at], reply)]
        if len(asked) != len(again):
            return [reply if ballot.ranking else None for ballot, reply in zip(panel.ballots, first, strict=True)]
        for at, reply in zip(again, asked, strict=True):
            replies[at] = reply
    return replies


def _counts(ballot: Ballot, reply: Reply) -> bool:
    from metaloop.ballots import parse  # of documents alone
    from metaloop.panels import lost

    return not lost(reply) and not isinstance(parse(reply.text or "", ballot.labels), str)


# ---- in the method's own layout --------------------------------------------------------------------------------------


def history(study: Study) -> list[dict[str, object]]:
    """Every pass, as `history.json` of the published runs has it."""
    words = [lengths(study, each) for each in study.passes]
    return [
        {
            "pass": index + 1,
            "winner": each.panel.winner or None,
            "scores": each.panel.points,
            "words": words[index][each.panel.winner or "A"],
            "elapsed": round(each.seconds, 1),
        }
        for index, each in enumerate(study.passes)
    ]


# ---- a page ----------------------------------------------------------------------------------------------------------


def page(study: Study) -> str:
    """The report of a tournament, or of strategies that were compared, in Markdown."""
    if compares(study):
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
    shown = "".join(c if c.isprintable() else " " for c in text)
    return "".join(f"\\{c}" if c in "|<>`*_[]\\" else c for c in " ".join(shown.split()))


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
