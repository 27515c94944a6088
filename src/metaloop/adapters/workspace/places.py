"""The place of a study's slots: who holds it, and how it goes when nobody does.

PLACE/               the slots of a study, outside of the user's checkout
    study            the folder of the study, in words
    lock             held by flock while a controller uses them
    LANE/            a slot: the working directory of a trial
    LANE.score/      a slot for what scores that trial
    LANE.old/        a folder of it that is being sifted
    LANE.clock       its modification time is the newest that any file of the slot was given
    trash/           what trials left, on its way out
"""

# States are compared as `os` gives them.
# ruff: noqa: PTH116

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from metaloop.adapters.workspace.files import is_folder
from metaloop.adapters.workspace.trash import Trash
from metaloop.errors import StudyBusy, UsageError

STUDY = "study"
"""The file that says whose place it is."""


def sweep(place_root: Path) -> list[Path]:
    """Clears the places under a folder whose study is gone; says which. One that is there clears its own."""
    places = sorted(place_root.iterdir()) if place_root.is_dir() else []
    return [place for place in places if not _is_known(place) and clear(place)]


def _is_known(place: Path) -> bool:
    """Whether the study that a place says it belongs to is still there."""
    try:
        return Path((place / STUDY).read_text(encoding="utf-8")).is_dir()
    except (OSError, ValueError):
        return False


def clear(place: Path) -> bool:
    """Removes a place that no controller holds and no process works in; whether there was one."""
    try:
        lock = os.open(place / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False  # not one of ours
    ours = is_folder(place) and is_folder(place / "trash")
    free = ours and _locked(lock) and not _is_inhabited(place.resolve())
    if free:
        removed(place)
    os.close(lock)
    return free


def hold(place: Path) -> int:
    """The lock of a place, which is made where it is missing. Who had it before may have removed the file meanwhile."""
    while True:
        try:
            for ours in (place, place / "trash"):
                if ours.is_symlink():
                    ours.unlink()  # somebody's: what is behind it is not ours
                ours.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"{place}: cannot keep slots here: {error.strerror}") from error
        if not _locked(lock):
            os.close(lock)
            raise StudyBusy(f"{place}: another controller holds these slots")
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(place / "lock")):
                return lock
        os.close(lock)


def removed(place: Path) -> None:
    """The slots first, the lock last, so that nobody takes what is half gone for whole."""
    trash = Trash(place / "trash")
    if not is_folder(place) or (trash.path.is_symlink() and not is_folder(trash.path)):
        trash.close()
        return  # somebody put a link in its place: what is behind it is not ours
    trash.path.mkdir(exist_ok=True)
    for child in place.iterdir():
        if child.name not in ("lock", "trash"):
            trash.take(child)
    trash.empty()
    trash.close()
    with suppress(OSError):
        trash.path.rmdir()
        (place / "lock").unlink()
        place.rmdir()


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_inhabited(place: Path) -> bool:
    """Whether a process has its working directory there: its keeper may have outlived its controller."""
    slots = {(state.st_dev, state.st_ino) for state in map(os.stat, place.iterdir())}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (process / "cwd").stat()
            if (state.st_dev, state.st_ino) in slots or (process / "cwd").readlink().is_relative_to(place):
                return True
    return False
