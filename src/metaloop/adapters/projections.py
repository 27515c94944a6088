"""Files that other tools read, written from the ledger as it grows: a results table, an event stream, a checkpoint,
and a folder a kept trial.

They are projections: written anew when a controller starts, and never read by us. What is there already and was not
made by this study is not touched: `copies.json` in the study's folder names what it made. A copy that cannot be written
ends no study: it is told once, and made anew at the next start.
"""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import msgspec

from metaloop import exports
from metaloop.errors import UsageError
from metaloop.events import Decided, Entry, Proposed, Refused, RoundOpened
from metaloop.jobs import of_held_out
from metaloop.records import row
from metaloop.study import Study


@dataclass(frozen=True)
class Paths:
    """Where to write; None for what nobody asked for. `versions` is always written; `trials`: where attempts are."""

    trials: Path
    versions: Path
    runs: Path | None = None
    results: Path | None = None
    events: Path | None = None
    checkpoint: Path | None = None

    def named(self) -> tuple[Path, ...]:
        """Everything that the user named; not what is made in the study's folder anyway."""
        own = self.trials.parent
        every = (self.results, self.events, self.checkpoint, self.runs, self.versions)
        return tuple(path for path in every if path is not None and not path.is_relative_to(own))


class Projections:
    """An `engine.Observer` that keeps the files of one study up to date, one write a commit."""

    def __init__(self, paths: Paths, events: Iterable[Entry], study: Study, told: Callable[[str], None]) -> None:
        """Writes all of it, as it stands. `told` hears of what cannot be written."""
        self.paths, self._tell, self._failed = paths, told, False
        self._open: dict[int, list[int]] = {}
        self._proofs: dict[int, int] = {}
        with self._forgiving():
            self._all(events, study)

    def __call__(self, entries: Sequence[Entry], study: Study) -> None:
        with self._forgiving():
            self._more(entries, study)

    @contextlib.contextmanager
    def _forgiving(self) -> Iterator[None]:
        if self._failed:
            return (yield)  # the files have a gap already; they are written anew at the next start
        try:
            yield
        except OSError as error:
            self._failed = True
            self._tell(f"{error.filename or 'a copy'}: {error.strerror}; copies are made anew at the next start")

    def _all(self, events: Iterable[Entry], study: Study) -> None:
        _claim(self.paths)
        for path in (self.paths.results, self.paths.events, self.paths.checkpoint):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
        self._results(study)
        if self.paths.events:
            _write(self.paths.events, map(_event, events))
        for round in study.open.values():
            self._open[round.number] = list(round.trials)
            if round.role == "proof":
                self._open[round.number], self._proofs[round.number] = [], round.trials[0]
            if round.held is not None:
                self._proofs[round.number] = round.held
        for number in decided(study):
            self._folders(study, number)
        self._checkpoint(study)

    def _results(self, study: Study) -> None:
        if self.paths.results:
            lines = chain([exports.line(exports.COLUMNS)], (exports.table_line(study, n) for n in decided(study)))
            _write(self.paths.results, (f"{text}\n" for text in lines))

    def _more(self, entries: Sequence[Entry], study: Study) -> None:
        if self._failed:
            return
        if self.paths.events:
            with self.paths.events.open("a", encoding="utf-8") as file:
                file.writelines(map(_event, entries))
        settled = False
        for entry in entries:
            match entry.event:
                case Proposed(round, trial) | Refused(round, trial):
                    self._open.setdefault(round, []).append(trial)
                case RoundOpened(round=round, trial=int(trial)):
                    self._proofs[round] = trial
                case Decided(round, decision):
                    settled = True
                    for trial in self._open.pop(round, []):
                        self._settled(study, trial)
                    if round in self._proofs:
                        self._proven(study, (self._proofs.pop(round), *decision.left))
        if settled:
            self._checkpoint(study)

    def _settled(self, study: Study, number: int) -> None:
        if self.paths.results:
            with self.paths.results.open("a", encoding="utf-8") as file:
                file.write(exports.table_line(study, number) + "\n")
        self._folders(study, number)

    def _proven(self, study: Study, numbers: Sequence[int]) -> None:
        """What was told of these trials before is no longer so."""
        self._results(study)
        for number in numbers:
            self._version(study, number)

    def _folders(self, study: Study, number: int) -> None:
        if study.trials[number].kept or self._place(number).exists():
            self._version(study, number)
        if self.paths.runs:
            self._run(study, number)

    def _run(self, study: Study, number: int) -> None:
        """`run-NNNN/`: what its newest attempt of each run wrote, but for the run on held-out data."""
        assert self.paths.runs is not None
        target = self.paths.runs / f"run-{number:04}"
        target.mkdir(parents=True, exist_ok=True)
        for attempt in sorted((self.paths.trials / f"{number:04}").glob("r*-a*")):
            for file in () if of_held_out(study, number, attempt.name) else attempt.iterdir():
                if file.is_file() and not file.is_symlink():
                    shutil.copyfile(file, target / f"{attempt.name.split('-')[0]}-{file.name}")

    def _version(self, study: Study, number: int) -> None:
        """`vNNNN/version.json`: what was kept, with its evidence."""
        folder = self._place(number)
        folder.mkdir(parents=True, exist_ok=True)
        record = row(study, study.trials[number])
        _write(folder / "version.json", [msgspec.json.format(msgspec.json.encode(record), indent=2).decode(), "\n"])
        _write(folder / "params.json", [json.dumps(record.params, indent=2, ensure_ascii=False), "\n"])
        if change := study.trials[number].change.files:
            from metaloop.edits.diffs import diff  # of code studies alone

            base = {path: study.contents[name] for path, name in study.base.items()}
            overlay = {path: study.contents[name] for path, name in change.items()}
            _write(folder / "code.patch", [diff(base, base | overlay)])

    def _place(self, number: int) -> Path:
        return self.paths.versions / f"v{number:04}"

    def _checkpoint(self, study: Study) -> None:
        if self.paths.checkpoint:
            incumbent = study.incumbent
            state = {
                "study": study.name,
                "place": study.place,
                "settled": study.tally.settled,
                "measured": study.tally.measured,
                "best": None if incumbent is None else msgspec.to_builtins(row(study, incumbent)),
                "closed": study.closed.reason if study.closed else None,
            }
            _write(self.paths.checkpoint, [json.dumps(state, indent=2, ensure_ascii=False, allow_nan=False), "\n"])


def decided(study: Study) -> list[int]:
    return [number for number in sorted(study.trials) if study.trials[number].decided_at is not None]


CLAIMS = "copies.json"


def refuse_foreign(paths: Paths) -> None:
    """Raises UsageError, before the first write, for a place where there is something that this study did not make."""
    own, mine = paths.trials.parent, _claims(paths)
    for path in (paths.results, paths.events, paths.checkpoint, paths.runs, paths.versions):
        if path is not None and path.is_relative_to(own) and path.name in (*LEDGER, CLAIMS):
            raise UsageError(f"{path}: this is the study's own file; name another path for the copy")
    for path in paths.named():
        if str(path) in mine or not _occupied(path):
            continue
        if _tracked(path):
            raise UsageError(f"{path}: git tracks this file, so it is not written over; name another path for it")
        raise UsageError(f"{path}: is there already, and this study did not make it; move it away or name another path")


LEDGER = ("ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm", "head", "lock", "lanes", "trials", "inbox")


def _occupied(path: Path) -> bool:
    return any(path.iterdir()) if path.is_dir() else path.exists() or path.is_symlink()


def _claims(paths: Paths) -> set[str]:
    try:
        return set(json.loads((paths.trials.parent / CLAIMS).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return set()


def _claim(paths: Paths) -> None:
    """Remembers what we are about to make, so that the next start knows it for ours."""
    named = {str(path) for path in paths.named()}
    if not named <= (mine := _claims(paths)):
        _write(paths.trials.parent / CLAIMS, [json.dumps(sorted(mine | named), indent=2), "\n"])


def _tracked(path: Path) -> bool:
    command = ["git", "-C", str(path.parent), "ls-files", "--error-unmatch", "--", path.name]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _event(entry: Entry) -> str:
    return msgspec.json.encode(entry).decode() + "\n"


def _write(path: Path, text: Iterable[str]) -> None:
    """Whole or not at all, for whoever reads at this moment."""
    draft = path.with_name(f".{path.name}.tmp")
    with draft.open("w", encoding="utf-8") as file:
        file.writelines(text)
    draft.replace(path)
