"""`metaloop recount`: the raw replies of judges, read and counted again; of our studies, and of published runs."""

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from cyclopts import Parameter
from msgspec.structs import replace

from metaloop import published
from metaloop.adapters.ledger import FILE, read_ledger
from metaloop.cli.find import Named, folder
from metaloop.cli.output import clean, tell, tell_json
from metaloop.cli.read import Json
from metaloop.errors import MetaloopError, UsageError
from metaloop.passes import compares, heard, judged_by
from metaloop.passes import found as of_study
from metaloop.recount import NAMES, Final, Found, Pass, Read, Record, Recount, Rules, counted, final, listed
from metaloop.recount import recount as again

MOST = 4 << 20
"""Bytes of a file at most."""

DEPTH, FOLDERS = 4, 20_000
"""How deep runs are looked for, and in how many folders."""


@dataclass
class Told:
    """What came of one folder: a tournament, a final panel, or neither; and what is wrong with its files."""

    path: str
    run: Recount | None = None
    panels: dict[str, Final] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def recount(
    study: Named = None,
    /,
    *,
    k: Annotated[int | None, Parameter(help="Passes running that the document has to win; the run's, else 2.")] = None,
    json: Json = False,
) -> int:
    """Read the judges' raw replies again, count them, and say what was recorded otherwise.

    Of a study of a document, or of every published run (pass_NN/result.json, history.json, results.json) in a folder. A
    pass with fewer valid ballots than two thirds of the judges is void, and no win for the document. Reads, writes
    nothing, asks no model. Exit code 0, also where things differ.
    """
    if k is not None and not 1 <= k <= published.K:
        raise UsageError(f"--k: expected 1 to {published.K}, found {k}")
    told: list[Told] = []
    for one in every(study, k):
        told.append(one)
        for line in () if json else _lines(one):
            tell(clean(line))
    if json:
        tell_json({"runs": [_plain(one) for one in told], "total": _total(told)})
    elif len(told) > 1:
        tell(_sum(_total(told)))
    return 0


def _plain(one: Told) -> dict[str, object]:
    told: dict[str, object] = msgspec.to_builtins(one)
    return told


# ---- where they are --------------------------------------------------------------------------------------------------


def every(named: str | None, k: int | None) -> Iterator[Told]:
    """Whatever can be counted again, one after the other."""
    root = Path(named) if named is not None else Path()
    if named is None or not root.is_dir() or is_study(root):
        yield _of_study(folder(named), k)
        return
    there = False
    for place in _walk(root):
        told = _of_study_within(place.path, k) if place.study else _of_folder(place, k)
        if told is not None:
            there |= bool(told.run or told.panels)
            yield told
    if not there:
        yield _of_study(_named(root), k)


def _named(root: Path) -> Path:
    try:
        return folder(str(root))
    except UsageError:
        names = sorted(entry.name for entry in root.iterdir())
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise UsageError(
            f"expected a study of a document, or published runs (pass_01/result.json, history.json, results.json) in "
            f"{root} or {DEPTH} folders below; found {', '.join(names[:5]) or 'nothing'}{more}; "
            "type metaloop recount FOLDER with the folder of a run, or metaloop recount .metaloop/NAME"
        ) from None


def is_study(path: Path) -> bool:
    return (path / FILE).exists() or (path / "head").exists()


@dataclass
class Place:
    """A folder, with the files in it and the folders of its passes by number; `problems`: what is not looked at."""

    path: Path
    study: bool = False
    files: set[str] = field(default_factory=set)
    passes: dict[int, Path] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


_PASS = re.compile(r"pass_([0-9]{1,6})")


def _walk(root: Path) -> Iterator[Place]:
    """Folders, in the order of their names. Links are not followed."""
    waiting, seen = [(root, 0)], 0
    while waiting:
        path, depth = waiting.pop()
        seen += 1
        if seen > FOLDERS:
            yield Place(path, problems=[f"more than {FOLDERS} folders: this one and the rest are not looked at"])
            return
        place, below = _looked(path)
        yield place
        if depth < DEPTH and not place.study:
            waiting += [(child, depth + 1) for child in reversed(below)]


def _looked(path: Path) -> tuple[Place, list[Path]]:
    place, below = Place(path), list[Path]()
    try:
        with os.scandir(path) as entries:
            there = sorted(entries, key=lambda entry: _natural(entry.name))
    except OSError as error:
        place.problems.append(f"{path.name}/: {error.strerror}")
        return place, below
    for entry in there:
        number = _PASS.fullmatch(entry.name)
        if entry.is_symlink():
            if number or entry.is_dir():
                place.problems.append(f"{entry.name}: a link, which is not followed")
            else:
                place.files.add(entry.name)  # opening it says so
        elif not entry.is_dir(follow_symlinks=False):
            place.files.add(entry.name)
        elif number and int(number[1]) in place.passes:
            place.problems.append(f"{entry.name}/: pass {int(number[1])} is there twice; not looked at")
        elif number:
            place.passes[int(number[1])] = path / entry.name
        elif not entry.name.startswith("."):
            below.append(path / entry.name)
    place.study = bool({FILE, "head"} & place.files)
    return place, below


def _natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """`run_2` before `run_10`."""
    parts = re.findall(r"[0-9]{1,15}|[^0-9]+", name)
    return tuple((part[0] in "0123456789", int(part) if part[0] in "0123456789" else 0, part) for part in parts)


# ---- a study ---------------------------------------------------------------------------------------------------------


def _of_study(where: Path, k: int | None) -> Told:
    study, said = heard(read_ledger(where))
    if study.terms is None or study.the_terms.tournament is None or compares(study):
        raise UsageError(
            f"{where}: expected a study of a document, found one of another kind; begin one with `metaloop refine`"
        )
    rules = judged_by(study, k)
    return Told(str(where), again([counted(each, rules) for each in of_study(study, said)], rules))


def _of_study_within(where: Path, k: int | None) -> Told:
    """One of several: what is wrong with it does not keep the others from being told."""
    try:
        return _of_study(where, k)
    except MetaloopError as error:
        return Told(str(where), problems=[str(error)])


# ---- a published run -------------------------------------------------------------------------------------------------


def _of_folder(place: Place, k: int | None) -> Told | None:
    """A folder's run and final panels; None where it has neither."""
    told = Told(str(place.path), problems=place.problems)
    reader = _Reader(place.path, told.problems)
    if place.passes or published.HISTORY in place.files:
        rules = reader.rules(k)
        told.run = again([counted(found, rules) for found in reader.passes(place)], rules)
    for name in published.FINALS:
        if name in place.files and (panel := reader.final(name, place.files)) is not None:
            told.panels[name] = panel
    return told if told.run or told.panels or told.problems else None


class _Reader:
    """The files of a run. What cannot be read is told in a line, and is as if it were not there."""

    def __init__(self, root: Path, problems: list[str]) -> None:
        self.root, self.problems = root, problems

    def rules(self, k: int | None) -> Rules:
        rules = Rules()
        if (value := self._json(self.root / published.RULES)) is not None:
            try:
                rules = published.rules(value)
            except published.Malformed as error:
                self._problem(self.root / published.RULES, str(error))
        return rules if k is None else replace(rules, k=k)

    def passes(self, place: Place) -> Iterator[Found]:
        """In their order, those that the history alone has among them."""
        history = self._history()
        for number in sorted({*history, *place.passes}):
            record = history.get(number)
            if (path := place.passes.get(number)) is None:
                notes = (f"in {published.HISTORY} alone: there is no pass_{number:02}/",)
                yield Found(number, record=record or Record(), notes=notes)
            else:
                yield self._pass(number, path, record)

    def _history(self) -> Mapping[int, Record]:
        if (value := self._json(self.root / published.HISTORY)) is None:
            return {}
        try:
            return published.recorded(value)
        except published.Malformed as error:
            self._problem(self.root / published.HISTORY, str(error))
            return {}

    def _pass(self, number: int, path: Path, record: Record | None) -> Found:
        files, words = self._listed(path), dict[str, int]()
        for name in NAMES:
            if published.VERSIONS[name] in files:
                words[name] = len((self._bytes(path / published.VERSIONS[name]) or b"").split())
        value = self._json(path / published.RESULT)
        try:
            return published.found(number, {} if value is None else value, self._replies(path, files), words, record)
        except published.Malformed as error:
            self._problem(path / published.RESULT, str(error))
            return Found(number, record=record or Record(), words=words)

    def final(self, name: str, files: set[str]) -> Final | None:
        if (value := self._json(self.root / name)) is None:
            return None
        try:
            return final(published.finals(value, self._replies(self.root, files)))
        except published.Malformed as error:
            self._problem(self.root / name, str(error))
            return None

    def _replies(self, path: Path, files: set[str]) -> dict[int, str]:
        """Raw replies that stand in files of their own, by judge."""
        found: dict[int, str] = {}
        for name in sorted(files, key=lambda name: (not name.endswith("_raw.txt"), name)):
            said = _REPLY.fullmatch(name)
            if said and int(said[1]) not in found and (data := self._bytes(path / name)) is not None:
                found[int(said[1])] = data.decode("utf-8", errors="replace")
        return found

    def _listed(self, path: Path) -> set[str]:
        try:
            with os.scandir(path) as entries:
                return {entry.name for entry in entries}
        except OSError as error:
            self._problem(path, error.strerror or "cannot be read")
            return set()

    def _json(self, path: Path) -> object | None:
        if (data := self._bytes(path)) is None:
            return None
        try:
            return published.parsed(data)
        except published.Malformed as error:
            self._problem(path, str(error))
            return None

    def _bytes(self, path: Path) -> bytes | None:
        """A plain file, or None, and nothing waits: what lies here is anybody's."""
        try:
            with _plain_file(path) as file:
                data = file.read(MOST + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            link = error.errno == errno.ELOOP
            self._problem(path, "a link, which is not followed" if link else error.strerror or "not readable")
            return None
        if len(data) > MOST:
            self._problem(path, f"more than {MOST >> 20} MiB, which are not read")
            return None
        return data

    def _problem(self, path: Path, what: str) -> None:
        self.problems.append(f"{path.relative_to(self.root)}: {what}")


def _plain_file(path: Path) -> BinaryIO:
    """A file opened to be read, that is neither a link nor a pipe nor anything else."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "expected a file, found something else")
    return open(fd, "rb")


_REPLY = re.compile(r"judge_([0-9]{1,3})(?:_raw\.txt|\.txt|\.md)")

# ---- for a person ----------------------------------------------------------------------------------------------------


def _lines(one: Told) -> Iterator[str]:
    yield f"{one.path}: {_head(one)}"
    if one.run is not None:
        for each in one.run.passes:
            yield from _pass(each)
        yield from (f"  {' '.join(line.split())}" for line in one.run.said)
    for name, panel in one.panels.items():
        yield from _final(name, panel)
    for problem in one.problems:
        yield f"  not counted: {' '.join(problem.split())}"
    if one.run is not None:
        odd = [each.number for each in one.run.passes if each.differs]
        sources = {ballot.source for each in one.run.passes for ballot in each.ballots}
        read = bool(sources - {"none"}) or not one.problems
        said = _differences(one.run.differs) if read else "Nothing could be read, and nothing can be said"
        yield f"  {said}" + (f", in {listed(odd)}" if odd else "")
    yield ""


def _head(one: Told) -> str:
    if one.run is None:
        return "a final panel" if one.panels else "nothing to count"
    rules, count = one.run.rules, len(one.run.passes)
    need = "two thirds of the judges" if rules.quorum is None else f"{rules.quorum} ballots"
    ties = ", ".join(rules.tie_order[:9])
    return f"{count} pass{'es' * (count != 1)}; k = {rules.k}, margin {rules.margin}, ties to {ties}, quorum {need}"


def _pass(each: Pass) -> Iterator[str]:
    points = ", ".join(f"{name} {count}" for name, count in each.points.items())
    who = {"void": "void", "unknown": "?"}.get(each.status, each.winner or "void")
    yield f"pass {each.number:>2}  {who:<4}  {'; '.join(part for part in (points, ' '.join(each.why.split())) if part)}"
    width = max((len(" ".join(ballot.shown)) for ballot in each.ballots), default=0)
    yield from (f"    {_ballot(ballot, width)}" for ballot in each.ballots)
    yield from (f"    {' '.join(note.split())}" for note in each.notes)
    yield from (f"    differs: {' '.join(line.split())}" for line in each.differs)


def _ballot(ballot: Read, width: int) -> str:
    saw = f"saw {' '.join(ballot.shown) or '?':<{width}}"
    if ballot.unnamed:
        return f"judge {ballot.judge}  {saw}  valid, of labels that nobody recorded"
    said = " > ".join(ballot.ranking) if ballot.ranking else f"invalid: {' '.join(ballot.problem.split())}"
    return f"judge {ballot.judge}  {saw}  {said}"


def _final(name: str, panel: Final) -> Iterator[str]:
    points = ", ".join(f"{method} {count}" for method, count in panel.points.items())
    yield f"{name}: a final panel: {points}; {'?' if panel.valid is None else panel.valid} valid ballots"
    yield from (f"    judge {judge}  invalid: {' '.join(why.split())}" for judge, why in panel.invalid.items())
    yield from (f"    {note}" for note in panel.notes)
    yield from (f"    differs: {line}" for line in panel.differs)


def _differences(count: int) -> str:
    return f"{count or 'No'} difference{'s' * (count != 1)} from what was recorded"


# ---- over all of them ------------------------------------------------------------------------------------------------


def _total(told: list[Told]) -> dict[str, int]:
    passes = [each for one in told if one.run is not None for each in one.run.passes]
    panels = [panel for one in told for panel in one.panels.values()]
    return {
        "runs": sum(one.run is not None for one in told),
        "final_panels": len(panels),
        "passes": len(passes),
        "void": sum(each.status == "void" for each in passes),
        "ballots": sum(len(each.ballots) for each in passes),
        "invalid": sum(not (ballot.ranking or ballot.unnamed) for each in passes for ballot in each.ballots),
        "converged": sum(one.run is not None and one.run.converged is not None for one in told),
        "recorded_as_converged": sum(one.run is not None and one.run.recorded is not None for one in told),
        "differences": sum(len(each.differs) for each in passes) + sum(len(panel.differs) for panel in panels),
        "problems": sum(len(one.problems) for one in told),
    }


def _sum(total: Mapping[str, int]) -> str:
    return (
        f"total: {total['runs']} runs; {total['converged']} converge, {total['recorded_as_converged']} by the record; "
        f"{total['passes']} passes, {total['void']} void; {total['ballots']} ballots, {total['invalid']} invalid; "
        f"{total['final_panels']} final panels; {_differences(total['differences'])}; {total['problems']} not counted"
    )
