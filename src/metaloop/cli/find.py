"""From what a user names - a study file, its folder, its name, or nothing - to the study's folder and its state."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from metaloop.adapters.ledger import FILE, controller, read_ledger
from metaloop.cli.underway import Since, note
from metaloop.errors import UsageError
from metaloop.events import Entry
from metaloop.study import Study, evolve

Named = Annotated[str | None, Parameter(help="The study's file, folder or name; by default the only one there is.")]


def folder(named: str | None) -> Path:
    """The folder of the study that is meant. Raises UsageError that lists what there is."""
    if named is None:
        return _only(Path(".metaloop"))
    path = Path(named)
    if (path / FILE).exists() or (path / "head").exists():
        return path
    if path.is_file() and path.suffix in (".yaml", ".yml"):
        from metaloop.studyfile import load

        return load(path).folder
    if path.is_dir():
        return _only(path / ".metaloop") if (path / ".metaloop").is_dir() else _only(path)
    if (Path(".metaloop") / named / FILE).exists():
        return Path(".metaloop") / named
    there = ", ".join(child.name for child in studies(Path(".metaloop"))) or "none"
    raise UsageError(f"expected a study, its folder or its file; found nothing called {named!r}; studies here: {there}")


def studies(root: Path, under: str = "*/") -> list[Path]:
    return sorted(path.parent for path in root.glob(under + FILE))


def _only(root: Path) -> Path:
    found = studies(root)
    if len(found) == 1:
        return found[0]
    if not found:
        near = (
            ", ".join(str(path) for path in studies(root.parent, f"*/{root.name}/*/"))
            if root.name == ".metaloop"
            else ""
        )
        what = f"name one of these: {near}" if near else "start one with `metaloop run FILE`"
        raise UsageError(f"expected a study; there is none in {root}/: {what}")
    raise UsageError(f"which study? {', '.join(str(path) for path in found)}")


@dataclass(frozen=True)
class Opened:
    """A study as its ledger tells it now. `alive`: the process that runs it, if one does; `now`: unix time."""

    folder: Path
    study: Study
    last: Entry | None
    since: Since
    alive: int | None
    now: float

    @property
    def at(self) -> float:
        """Study seconds: while a controller lives, time goes on after the last fact."""
        runs = self.alive is not None and self.study.closed is None and self.last is not None
        return self.study.at + max(0.0, self.now - self.last.unix) if runs and self.last else self.study.at


def read(named: str | None) -> Opened:
    """The study that is meant, folded; every hash checked."""
    where = folder(named)
    study, last, since = Study(), None, Since()
    for entry in read_ledger(where):
        evolve(study, entry)
        note(since, entry)
        last = entry
    if study.terms is None:
        raise UsageError(f"{where}: a study that never began; run it again")
    return Opened(where, study, last, since, controller(where), time.time())
