"""`metaloop diagnose`: what is wrong with a search, read from its own trace, and the remedy for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from cyclopts import Parameter

from metaloop.adapters.ledger import read_ledger
from metaloop.cli.find import folder
from metaloop.cli.output import clean, tell, tell_json
from metaloop.cli.recount import every, is_study
from metaloop.cli.run import Json
from metaloop.diagnose import ORIGINAL, SEVERITY, Diagnosis, Trace, diagnose
from metaloop.errors import UsageError
from metaloop.mechanisms import BUNDLES
from metaloop.passes import compares
from metaloop.study import fold
from metaloop.traces import of_recount, of_study


def diagnosed(
    trace: Annotated[list[str] | None, Parameter(help="Studies of documents, or folders of published runs.")] = None,
    /,
    *,
    signatures: Annotated[
        Literal["all", "original"], Parameter(help="original: the five of the change request, in its order.")
    ] = "all",
    k: Annotated[int | None, Parameter(help="Passes running that a document has to win; the run's, else 2.")] = None,
    json: Json = False,
) -> int:
    """Read what is wrong with a tournament from its trace: the gravest signature, what was seen of it, and the remedy.

    Asks no model, and changes nothing. Of published runs the ballots are counted again first.
    """
    order = ORIGINAL if signatures == "original" else SEVERITY
    told = [(name, each, diagnose(each, order)) for named in trace or [""] for name, each in _traces(named or None, k)]
    if json:
        tell_json({"traces": [_plain(*each) for each in told]})
        return 0
    for name, each, found in told:
        for line in _lines(name, each, found):
            tell(clean(line))
    return 0


def _traces(named: str | None, k: int | None) -> Iterator[tuple[str, Trace]]:
    root = Path(named) if named is not None else Path()
    if named is not None and root.is_dir() and not is_study(root) and not (root / ".metaloop").is_dir():
        for one in every(named, k):
            if one.run is not None:
                yield one.path, of_recount(one.run)
        return
    where = folder(named)
    study = fold(read_ledger(where))
    if study.terms is None or study.the_terms.tournament is None or compares(study):
        raise UsageError(
            f"{where}: expected a tournament, found another kind of study; begin one with `metaloop refine`"
        )
    seen = of_study(study)
    yield str(where), seen if k is None else msgspec.structs.replace(seen, k=k)


def _lines(name: str, trace: Trace, found: Diagnosis) -> Iterator[str]:
    won = " ".join(each.winner or "-" for each in trace.passes)
    yield f"{name}: {len(trace.passes)} passes ({won}), k = {trace.k}"
    if not found.signature:
        yield f"  {found.why}"
        return
    yield f"  {found.signature}: {found.why}"
    remedy, what, _ = BUNDLES[found.signature]
    yield f"  remedy: {remedy}, {what}"
    for other, said in found.evidence.items():
        if other != found.signature:
            yield f"  besides: {other}: {said}"


def _plain(name: str, trace: Trace, found: Diagnosis) -> dict[str, object]:
    return {
        "trace": name,
        "winners": [each.winner for each in trace.passes],
        "k": trace.k,
        "converged": trace.converged,
        "signature": found.signature or None,
        "why": found.why,
        "evidence": found.evidence,
        "mechanism": BUNDLES[found.signature][0] if found.signature else None,
    }
