"""Files that other tools read, written from the ledger as it grows: a results table, an event stream, a checkpoint,
and a folder a kept trial.

They are projections: written anew when a controller starts, and never read by us. A file that git tracks is not
touched.
"""

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from metaloop import exports
from metaloop.errors import UsageError
from metaloop.events import Decided, Entry, Proposed, Refused
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
        return tuple(path for path in (self.results, self.events, self.checkpoint) if path is not None)


class Projections:
    """An `engine.Observer` that keeps the files of one study up to date, one write a commit."""

    def __init__(self, paths: Paths, events: Sequence[Entry], study: Study) -> None:
        """Writes all of it, as it stands. Raises UsageError before the first write where git tracks a file."""
        refuse_tracked(paths.named())
        self.paths = paths
        self._open: dict[int, list[int]] = {}
        for path in paths.named():
            path.parent.mkdir(parents=True, exist_ok=True)
        if paths.results:
            _write(paths.results, "".join(f"{text}\n" for text in exports.tsv(study)))
        if paths.events:
            _write(paths.events, "".join(map(_event, events)))
        for number, trial in study.trials.items():
            if trial.decided_at is None:
                self._open.setdefault(trial.round, []).append(number)
            else:
                self._folders(study, number)
        self._checkpoint(study)

    def __call__(self, entries: Sequence[Entry], study: Study) -> None:
        if self.paths.events:
            with self.paths.events.open("a", encoding="utf-8") as file:
                file.writelines(map(_event, entries))
        decided = False
        for entry in entries:
            match entry.event:
                case Proposed(round, trial) | Refused(round, trial):
                    self._open.setdefault(round, []).append(trial)
                case Decided(round):
                    decided = True
                    for trial in self._open.pop(round, []):
                        self._settled(study, trial)
        if decided:
            self._checkpoint(study)

    def _settled(self, study: Study, number: int) -> None:
        if self.paths.results:
            with self.paths.results.open("a", encoding="utf-8") as file:
                file.write(exports.table_line(study, number) + "\n")
        self._folders(study, number)

    def _folders(self, study: Study, number: int) -> None:
        if study.trials[number].kept:
            self._version(study, number)
        if self.paths.runs:
            self._run(number)

    def _run(self, number: int) -> None:
        """`run-NNNN/`: what its newest attempt of each run wrote."""
        assert self.paths.runs is not None
        target = self.paths.runs / f"run-{number:04}"
        target.mkdir(parents=True, exist_ok=True)
        for attempt in sorted((self.paths.trials / f"{number:04}").glob("r*-a*")):
            for file in attempt.iterdir():
                if file.is_file() and not file.is_symlink():
                    shutil.copyfile(file, target / f"{attempt.name.split('-')[0]}-{file.name}")

    def _version(self, study: Study, number: int) -> None:
        """`vNNNN/version.json`: what was kept, with its evidence."""
        folder = self.paths.versions / f"v{number:04}"
        folder.mkdir(parents=True, exist_ok=True)
        record = row(study, study.trials[number])
        _write(folder / "version.json", msgspec.json.format(msgspec.json.encode(record), indent=2).decode() + "\n")
        _write(folder / "params.json", json.dumps(record.params, indent=2, ensure_ascii=False) + "\n")

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
            _write(self.paths.checkpoint, json.dumps(state, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def refuse_tracked(paths: Sequence[Path]) -> None:
    """Raises UsageError for a file that git tracks: what a user versions is not ours to write over."""
    for path in paths:
        if path.exists() and _tracked(path):
            raise UsageError(
                f"{path}: git tracks this file, so it is not written over; name another path in the study file"
            )


def _tracked(path: Path) -> bool:
    command = ["git", "-C", str(path.parent), "ls-files", "--error-unmatch", "--", path.name]
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _event(entry: Entry) -> str:
    return msgspec.json.encode(entry).decode() + "\n"


def _write(path: Path, text: str) -> None:
    """Whole or not at all, for whoever reads at this moment."""
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
