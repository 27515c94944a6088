"""`metaloop compare`: which way to improve a document serves a task best, by a blind panel."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from metaloop.cli.documents import Options, named
from metaloop.cli.output import card, clean, document_at, tell, tell_json
from metaloop.cli.run import Json, summary
from metaloop.comparison import compared, told
from metaloop.terms import COMPARED


def compare(
    document: Annotated[Path, Parameter(help="The first version: a text file. It is never written to.")],
    /,
    *,
    options: Options = Options(),  # noqa: B008  (frozen)
    strategy: Annotated[
        list[str] | None, Parameter(negative="", help=f"One of {', '.join(COMPARED)}; all of them unless given.")
    ] = None,
    calls: Annotated[int, Parameter(help="Calls that each strategy may make.")] = 30,
    final_judges: Annotated[int, Parameter(help="Judges who rank what came of them.")] = 7,
    repeats: Annotated[int, Parameter(help="How often all of it is done.")] = 1,
    json: Json = False,
) -> int:
    """Improve a document in several ways, from the same first version with as many calls each, and let a blind panel
    rank what comes of them. The same command resumes.
    """
    rules = {"compare": list(strategy or COMPARED), "calls": calls, "final_judges": final_judges}
    file = options.study(document, rules, repeats, f"{named(document)}-compared")
    ended, code = options.run(file, quiet=json)
    if json:
        written = str(options.out or document_at(ended.study, file.folder))
        told_of = told(compared(ended.study)) if ended.study.terms is not None else None
        tell_json(summary(ended.study, file.folder, code) | {"document": written, "comparison": told_of})
        return code
    for line in card(ended.study, file.folder, ""):
        tell(clean(line), "bold" if line.startswith("  best ") else "")
    return code
