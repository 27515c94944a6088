"""`metaloop refine`: a document, improved by versions that a blind panel prefers."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from metaloop.advice import tier
from metaloop.cli.output import card, clean, document_at, say, tell, tell_json
from metaloop.cli.run import Json, driven, exit_code, summary
from metaloop.errors import UsageError
from metaloop.passes import text
from metaloop.studyfile import StudyFile, from_mapping

TOKENS = 4096
"""Tokens of a reply at most, unless the document is so long that it needs more."""

WARMTH = {"critic": None, "author": 0.8, "synthesizer": 0.8, "judge": 0.3}
"""The temperature of each role."""


def refine(
    document: Annotated[Path, Parameter(help="The first version: a text file. It is never written to.")],
    /,
    *,
    task: Annotated[Path, Parameter(help="A file that says what the document is for, and for whom.")],
    model: Annotated[str | None, Parameter(help="Who plays every role that has nobody else.")] = None,
    role: Annotated[
        list[str] | None, Parameter(negative="", help="critic=NAME, author=, synthesizer= or judge=NAME.")
    ] = None,
    provider: Annotated[
        Literal["openai", "anthropic"], Parameter(help="openai: all that speaks its protocol.")
    ] = "openai",
    judges: Annotated[int, Parameter(help="Judges in a pass.")] = 3,
    k: Annotated[int, Parameter(help="Passes running that the document has to win.")] = 2,
    max_passes: Annotated[int, Parameter(help="Passes in all.")] = 25,
    order: Annotated[Literal["latin", "random", "both"], Parameter(help="In which judges see versions.")] = "latin",
    ground_truth: Annotated[
        list[Path] | None, Parameter(negative="", help="Files with the facts that everybody is held to.")
    ] = None,
    require: Annotated[
        list[str] | None, Parameter(negative="", help="A regular expression that every version has to match.")
    ] = None,
    strict_claims: Annotated[
        bool, Parameter(negative="", help="A version with numbers that stand in no source is out.")
    ] = False,
    scope_note: Annotated[
        bool, Parameter(negative="", help="Tell authors that what makes it longer needs a reason.")
    ] = False,
    seed: Annotated[int, Parameter(help="The seed of all dice.")] = 0,
    max_cost_usd: Annotated[float | None, Parameter(help="What asking models may cost in all.")] = None,
    max_wall_time_s: Annotated[float | None, Parameter(help="Seconds of wall clock in all.")] = None,
    max_tokens: Annotated[
        int | None, Parameter(help="Tokens of a reply at most; 4096, or what the text needs.")
    ] = None,
    out: Annotated[Path | None, Parameter(help="Where to write the document at the end; a new file.")] = None,
    name: Annotated[str | None, Parameter(help="The study's name; the document's unless given.")] = None,
    json: Json = False,
) -> int:
    """Improve a document: a critic, two authors, a blind panel, until it holds. The same command resumes.

    The document stays as it is; the best version is written into the study's folder, and to --out.
    """
    if out is not None and out.exists():
        raise UsageError(f"--out: expected a new file, found one at {out}; nothing is written over")
    most = max_tokens or max(TOKENS, _size(document))
    players = _players(model, role or [], provider, most)
    controller: dict[str, object] = {"max_iterations": max_passes}
    controller |= {} if max_cost_usd is None else {"max_cost_usd": max_cost_usd}
    controller |= {} if max_wall_time_s is None else {"max_wall_time_s": max_wall_time_s}
    base = document.absolute().parent
    rules = {
        "document": document.name, "k": k, "judges": {"count": judges, "order": order}, "scope_note": scope_note,
        "ground_truth": [str(path.absolute()) for path in ground_truth or ()], "require": list(require or ()),
        "strict_claims": strict_claims,
    }  # fmt: skip
    raw = {
        "tournament": rules,
        "policy": {"program_file": str(task.absolute()), "seed": seed},
        "models": players,
        "controller": controller,
    }
    file = from_mapping(raw, name=name or _name(document), base=base)
    for note in _advised(file, bounded=scope_note or bool(ground_truth) or bool(require)):
        say(f"metaloop: note: {clean(note)}; see `metaloop advise`", "yellow")
    ended = driven(file, quiet=json)
    code = exit_code(ended)
    if out is not None:
        with out.open("x", encoding="utf-8") as opened:
            opened.write(text(ended.study))
    written = str(out or document_at(ended.study, file.folder))
    if json:
        tell_json(summary(ended.study, file.folder, code) | {"document": written})
        return code
    for line in card(ended.study, file.folder, ""):
        tell(clean(line), "bold" if line.startswith("  document ") else "")
    return code


def _advised(file: StudyFile, *, bounded: bool) -> Iterator[str]:
    """Why a tournament may not be what these models are good for, as far as their names tell."""
    author, judge = (file.bounds.models[role].model for role in ("author", "judge"))
    if tier(author) == "weak":
        yield f"{author} is small: its versions are mostly alike, and a tournament gains little over a single draft"
    if tier(author) == "mid" and tier(judge) in ("weak", "mid"):
        yield f"{author} gains most by judges that are stronger than itself; add --role judge=NAME"
    if tier(author) == "frontier" and not bounded:
        yield f"{author} drifts where nothing bounds it; fix facts, parts or changes in the task, or add --scope-note"


def _size(document: Path) -> int:
    """Tokens that a reply needs which has the document, and half as much again."""
    try:
        return document.stat().st_size // 2
    except OSError:
        return TOKENS  # what is wrong with it is told with all else


def _players(model: str | None, roles: list[str], provider: str, most: int) -> dict[str, object]:
    given = dict.fromkeys(WARMTH, model)
    for word in roles:
        role, equals, who = word.partition("=")
        if role not in WARMTH or not equals or not who:
            raise UsageError(f"--role: expected {', '.join(WARMTH)} and a model, as judge=NAME; found {word!r}")
        given[role] = who
    if absent := [role for role, who in given.items() if who is None]:
        raise UsageError(f"expected who is {' and '.join(absent)}; add --model NAME, or --role {absent[0]}=NAME")
    return {
        role: {"model": who, "provider": provider, "max_tokens": most}
        | ({} if WARMTH[role] is None else {"temperature": WARMTH[role]})
        for role, who in given.items()
    }


def _name(document: Path) -> str:
    return re.sub(r"[^\w.-]+", "-", document.stem)[:60].strip(".-") or "document"
