"""`metaloop advise`: which strategy to use, why, and what it will cost. Asks nobody and writes nothing."""

import math
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import Parameter

from metaloop.advice import CAP, JUDGES, MAIN, PASSES, Advice, Cost, Price, Question, Tier, told
from metaloop.advice import advise as advised
from metaloop.cli.output import clean, tell, tell_json
from metaloop.errors import UsageError

WIDTH = 100


def advise(
    *,
    model: Annotated[str, Parameter(help="The author: gives the tier, where it is known, and the price.")] = "",
    tier: Annotated[Tier | None, Parameter(help="The author's tier, where its name does not say it.")] = None,
    verifiable: Annotated[
        bool | None, Parameter(negative="--subjective", help="Can a program say whether it is right?")
    ] = None,
    solved: Annotated[bool | None, Parameter(negative="--unsolved", help="Does the first attempt pass?")] = None,
    constrained: Annotated[bool | None, Parameter(negative="--unconstrained", help="Is its scope fixed?")] = None,
    open_ended: Annotated[
        bool | None, Parameter(negative="--technical", help="Open-ended, or of concrete requirements?")
    ] = None,
    code: Annotated[bool, Parameter(negative="", help="It is a program; verifiable, unless said otherwise.")] = False,
    judges: Annotated[int, Parameter(help="Judges of each pass.")] = JUDGES,
    judge_model: Annotated[str, Parameter(help="Who judges, if not the author's model: for the price.")] = "",
    passes: Annotated[int | None, Parameter(help=f"How many, at most; by default {PASSES} are priced.")] = None,
    final_judges: Annotated[int, Parameter(help="Judges of a panel at the end; 0 for none.")] = 0,
    document: Annotated[Path | None, Parameter(help="The first version, to count its words.")] = None,
    json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Say which strategy to use for improving something, why, and what it will cost.

    Exit code 2 names what has yet to be said. Reads the document, and nothing else; asks no model.
    """
    words, tokens = (None, Question().tokens) if document is None else _counted(document)
    question = Question(
        verifiable, solved, tier, constrained, open_ended, code, model, judge_model, judges, passes, final_judges,
        words, tokens,
    )  # fmt: skip
    author = _price(model)
    advice = advised(question, author, _price(judge_model) if judge_model else author)
    if json:
        tell_json(msgspec.to_builtins(advice))
        return 0
    for line in _lines(advice):
        tell(clean(line))
    return 0


def _counted(document: Path) -> tuple[int, int]:
    """Its words, and about its tokens: one for four bytes, which is near for scripts without spaces too."""
    try:
        text = document.read_bytes()
    except OSError as error:
        raise UsageError(f"--document: expected a text, found {str(document)!r}: {error.strerror}") from error
    if not text.strip():
        raise UsageError(f"--document: expected a text, found nothing in {str(document)!r}")
    return len(text.split()), math.ceil(len(text) / 4)


def _price(model: str) -> Price | None:
    from metaloop.adapters.models import listed

    found = listed(model) if model else None
    return Price(*found) if found else None


# ---- for a person ----------------------------------------------------------------------------------------------------


def _lines(advice: Advice) -> Iterator[str]:
    """All of it on one screen: a label, then text that is wrapped beside it."""
    for label, text in _labelled(advice):
        yield from textwrap.wrap(
            text, WIDTH, initial_indent=f"{label:<8} ", subsequent_indent=" " * 9, break_on_hyphens=False
        )


def _labelled(advice: Advice) -> Iterator[tuple[str, str]]:
    for label, texts in _blocks(advice).items():
        yield from (("" if number else label, text) for number, text in enumerate(texts))


def _blocks(advice: Advice) -> dict[str, Sequence[str]]:
    """What is told under each label, in its order."""
    question, chosen = advice.question, advice.strategy
    name = f" ({question.model})" if question.model else ""
    works = ", ".join(f"{one.kind} ({one.example})" for one in advice.constraints_that_work)
    does_not = ", ".join(f"{one.example!r} ({one.why})" for one in advice.constraints_that_do_not)
    scoped, priced = question.answer("verifiable") is False, advice.costs[chosen].usd is not None
    return {
        "use": [f"{chosen}, or {advice.or_else}" if advice.or_else else chosen],
        "for": [", ".join(told(question)) + name],
        "why": advice.reasons,
        "judges": [advice.judges],
        "not": [f"{other}: {why}" for other, why in advice.against.items()],
        "scope": [f"works: {works}", f"does not: {does_not}"] if scoped else [],
        "costs": [_cost(advice)],
        "others": ["; ".join(f"{other} {_told(advice.costs[other])}" for other in MAIN if other != chosen)],
        "assumed": ["; ".join(advice.assumed)] if priced else [],
        "mind": advice.notes,
    }


def _cost(advice: Advice) -> str:
    chosen, question = advice.costs[advice.strategy], advice.question
    text = _told(chosen) + (f": {chosen.counted}" if chosen.calls > 1 else "")
    if advice.strategy == "autoreason" and question.passes is None:
        text += f"; {CAP} passes, the cap: {_told(advice.most)}. Published: mostly 10 to 15 passes"
        text += ", and by lot it would be 9 (computed)" * (question.judges == JUDGES)
    return text if chosen.usd is not None else f"{text}; no price is known"


def _told(cost: Cost) -> str:
    calls = f"{cost.calls} call{'s' * (cost.calls != 1)}"
    if cost.usd is None:
        return calls
    return f"{calls}, ${cost.usd:.2f}" if cost.usd >= 0.01 else f"{calls}, under $0.01"
