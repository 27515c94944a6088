"""Keeping a study in order: `metaloop gc`, `metaloop restore`."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from metaloop.adapters.ledger import open_ledger
from metaloop.adapters.ledger import restore as put_right
from metaloop.adapters.workspace.places import clear, sweep
from metaloop.adapters.workspace.trash import deleted, measured
from metaloop.cli.find import Named, folder, studies
from metaloop.cli.output import clean, say, shown, size, tell, tell_json
from metaloop.config import slots
from metaloop.study import Study, fold


def gc(
    study: Named = None,
    /,
    *,
    dry_run: Annotated[bool, Parameter(negative="", help="Only say what would go.")] = False,
    outputs: Annotated[bool, Parameter(negative="", help="Also what discarded trials printed.")] = False,
    json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Remove scratch folders of trials and agents, and directories of candidates that no study uses. No ledger is
    touched.
    """
    chosen = [folder(study)] if study is not None else studies(Path(".metaloop"))
    freed, left = dict[str, int](), dict[str, str]()
    for where in chosen:
        ledger = open_ledger(where, create=False)
        try:
            for path in list(_scrap(where, fold(ledger.read()), outputs)):
                count, why = measured(path) if dry_run else deleted(path)
                if why:
                    left[_named(path)] = why
                else:
                    freed[_named(path)] = count
            if not dry_run and fold(ledger.read()).closed is not None:
                clear(slots(where))
        finally:
            ledger.close()
    for place in [] if dry_run else sweep(slots(Path()).parent):
        freed[_named(place)] = 0
    if json:
        tell_json({"dry_run": dry_run, "removed": freed, "bytes": sum(freed.values()), "left": left})
        return 0
    for name, why in left.items():
        say(f"metaloop: {clean(name)}: cannot be removed: {why}", "yellow")
    verb = "would remove" if dry_run else "removed"
    places = ", ".join(map(shown, chosen)) or "nothing"
    tell(f"{verb} {len(freed)} folder{'s' * (len(freed) != 1)}, {size(sum(freed.values()))}, in {places}")
    return 0


def _scrap(where: Path, study: Study, outputs: bool) -> Iterator[Path]:
    """HOME and TMPDIR of attempts and agents' sessions that are over; with `outputs` whole attempts of trials that were
    not kept.
    """
    for trial in sorted((where / "trials").glob("*")):
        if trial.name.startswith("agent-"):
            yield from (folder for path in _ended(trial, study) for folder in _folders(path))
            continue
        known = study.trials.get(int(trial.name)) if trial.name.isdigit() else None
        if known is not None and known.decided_at is None:
            continue
        if outputs and known is not None and not known.kept:
            yield trial
        else:
            yield from (folder for path in sorted(trial.glob("r*")) for folder in _folders(path))


def _ended(round: Path, study: Study) -> list[Path]:
    """The sessions of a round that no agent is at work on."""
    asked = (exchanges for open_ in study.open.values() for exchanges in open_.asked.values())
    handles = [exchange.handle for exchanges in asked for exchange in exchanges if exchange.at_work]
    return sorted(path for path in round.glob("*") if not any(path.name in handle for handle in handles))


def _folders(attempt: Path) -> list[Path]:
    """Those in its own folder; none through a link, which leads to what is somebody else's."""
    if attempt.is_symlink() or attempt.parent.is_symlink():
        return []
    return sorted(path for path in attempt.glob("*") if path.is_dir() and not path.is_symlink())


def _named(path: Path) -> str:
    """A path that can be written, whatever a trial called what it left."""
    return os.fsencode(path).decode(errors="backslashreplace")


def restore(
    study: Annotated[Path, Parameter(help="The study's folder.")],
    /,
    *,
    json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> int:
    """Put a damaged ledger right from its own copy, `ledger.jsonl`. Every hash is checked; the old file is kept."""
    entries, old = put_right(study)
    if json:
        tell_json({"study": str(study), "entries": entries, "damaged": str(old)})
    else:
        tell(f"{shown(study)}: restored, with all {entries} entries; the damaged file is {old.name}")
    return 0
