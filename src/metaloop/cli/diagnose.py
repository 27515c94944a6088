"""`metaloop diagnose`: what is wrong with a search, read from its own trace, and the remedy for it."""

from collections.abc import Iterator, Mapping
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
from metaloop.searches import REMEDIES, Search, Sign, signs
from metaloop.study import fold
from metaloop.traces import of_recount, of_search, of_study


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
    """Read what is wrong with a search from its own trace: the gravest signature, what was seen of it, and the remedy.

    Of tournaments, and of studies of parameters and code. Asks no model, and changes nothing. Of published runs the
    ballots are counted again first.
    """
    order = ORIGINAL if signatures == "original" else SEVERITY
    plain: list[dict[str, object]] = []
    for name, each in (told for named in trace or [""] for told in _traces(named or None, k)):
        if isinstance(each, Search):
            seen = signs(each)
            plain.append(_plain_search(name, each, seen))
            lines = _lines_of(name, each, seen)
        else:
            found = diagnose(each, order)
            plain.append(_plain(name, each, found))
            lines = _lines(name, each, found)
        for line in () if json else lines:
            tell(clean(line))
    if json:
        tell_json({"traces": plain})
    return 0


def _traces(named: str | None, k: int | None) -> Iterator[tuple[str, Trace | Search]]:
    root = Path(named) if named is not None else Path()
    if named is not None and root.is_dir() and not is_study(root) and not (root / ".metaloop").is_dir():
        for one in every(named, k):
            if one.run is not None:
                yield one.path, of_recount(one.run)
        return
    where = folder(named)
    study = fold(read_ledger(where))
    if study.terms is None or compares(study) or study.the_terms.campaign is not None:
        raise UsageError(f"{where}: expected a tournament, or a study of parameters or code; found another kind")
    if study.the_terms.tournament is None:
        yield str(where), of_search(study)
        return
    seen = of_study(study)
    yield str(where), seen if k is None else msgspec.structs.replace(seen, k=k)


def _lines_of(name: str, search: Search, seen: Mapping[Sign, str]) -> Iterator[str]:
    yield f"{name}: {len(search.steps)} trials, {sum(step.kept for step in search.steps)} kept"
    if not seen:
        yield "  nothing fires"
    for at, (sign, said) in enumerate(seen.items()):
        yield f"  {'besides: ' if at else ''}{sign}: {said}"
        if not at:
            yield f"  remedy: {': '.join(REMEDIES[sign])}"


def _plain_search(name: str, search: Search, seen: Mapping[Sign, str]) -> dict[str, object]:
    first = next(iter(seen), None)
    return {
        "trace": name,
        "trials": len(search.steps),
        "signature": first,
        "why": "nothing fires" if first is None else seen[first],
        "evidence": dict(seen),
        "mechanism": None if first is None else REMEDIES[first][0],
    }


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
