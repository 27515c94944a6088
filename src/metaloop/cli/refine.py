"""`metaloop refine`: a document, improved by versions that a blind panel prefers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from metaloop.advice import family, tier
from metaloop.cli.documents import Options, named
from metaloop.cli.output import card, clean, document_at, say, tell, tell_json
from metaloop.cli.run import Json, summary
from metaloop.studyfile import StudyFile


def refine(
    document: Annotated[Path, Parameter(help="The first version: a text file. It is never written to.")],
    /,
    *,
    options: Options = Options(),  # noqa: B008  (frozen)
    max_passes: Annotated[int, Parameter(help="Passes in all.")] = 25,
    final_judges: Annotated[
        int, Parameter(help="Judges who compare the first version and the last, once, at the end; 0 for none.")
    ] = 7,
    json: Json = False,
) -> int:
    """Improve a document: a critic, two authors, a blind panel, until it holds. The same command resumes.

    The document stays as it is; the best version is written into the study's folder, and to --out.
    """
    file = options.study(document, {"final_judges": final_judges}, max_passes, named(document))
    bounded = options.scope_note or bool(options.ground_truth) or bool(options.require)
    for note in _advised(file, bounded=bounded):
        say(f"metaloop: note: {clean(note)}; see `metaloop advise`", "yellow")
    ended, code = options.run(file, quiet=json)
    written = str(options.out or document_at(ended.study, file.folder))
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
    if family(author) and family(author) == family(judge):
        who = f"{judge} judges itself" if author == judge else f"{author} and {judge} are of one family"
        yield f"{who}, and models prefer what is their own; add --role judge=NAME of another family"
