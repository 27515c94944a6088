"""`metaloop compare`: which strategy serves best: for a document by a blind panel, for code by hidden tests."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from metaloop.cli.documents import Options, named
from metaloop.cli.output import card, clean, document_at, tell, tell_json
from metaloop.cli.problems import STRATEGIES, problems
from metaloop.cli.run import Json, summary
from metaloop.comparison import compared, told
from metaloop.errors import UsageError
from metaloop.terms import COMPARED

CALLS, FINAL = 30, 7
"""Calls of a strategy, and judges at the end, unless told otherwise."""


def compare(
    files: Annotated[list[Path], Parameter(help="A document; or study files with policy.type repair, one a problem.")],
    /,
    *,
    options: Options = Options(),  # noqa: B008  (frozen)
    strategy: Annotated[
        list[str] | None,
        Parameter(
            negative="",
            help=f"Once for each; all unless given. Documents: {', '.join(COMPARED)}. Code: {', '.join(STRATEGIES)}.",
        ),
    ] = None,
    calls: Annotated[int | None, Parameter(help="Calls that each strategy may make on a document; 30.")] = None,
    final_judges: Annotated[int | None, Parameter(help="Judges who rank what came of a document; 7.")] = None,
    repeats: Annotated[int | None, Parameter(help="How often all of it is done to a document; once.")] = None,
    json: Json = False,
) -> int:
    """Compare strategies. The same command goes on where it was interrupted, and nothing is paid for twice.

    A document is improved in several ways, from the same first version with as many calls each, and a blind panel ranks
    what comes of them. Problems of code are worked on by several strategies, and what counts is what passes the tests
    that nobody was shown.
    """
    if any(file.suffix in (".yaml", ".yml") for file in files):
        if options != Options() or (calls, final_judges, repeats) != (None, None, None):
            raise UsageError("expected no options of documents for problems of code; all of that stands in their files")
        return problems(files, strategy, json)
    if len(files) != 1:
        raise UsageError(
            f"expected one document, or study files of problems, found {len(files)} files; compare one by one"
        )
    (document,) = files
    rules: dict[str, object] = {
        "compare": list(strategy or COMPARED),
        "calls": CALLS if calls is None else calls,
        "final_judges": FINAL if final_judges is None else final_judges,
    }
    file = options.study(document, rules, 1 if repeats is None else repeats, f"{named(document)}-compared")
    ended, code = options.run(file, quiet=json)
    if json:
        written = str(options.out or document_at(ended.study, file.folder))
        told_of = told(compared(ended.study)) if ended.study.terms is not None else None
        tell_json(summary(ended.study, file.folder, code) | {"document": written, "comparison": told_of})
        return code
    for line in card(ended.study, file.folder, ""):
        tell(clean(line), "bold" if line.startswith("  best ") else "")
    return code
