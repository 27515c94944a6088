"""The place of a study's slots: who holds it, and how it goes when nobody does.

What a trial has put where something of ours belongs gives way: a folder for the lock, a link for the trash.

PLACE/               the slots of a study, outside of the user's checkout
    study            the folder of the study, in words
    lock             held by flock while a controller uses them
    LANE/            a slot: the working directory of a trial
    LANE.score/      a slot for what scores that trial
    LANE.old/        a folder of it that is being sifted
    LANE.clock       its modification time is the newest that any file of the slot was given
    LANE.brief.md    what an agent at work in that slot is told
    trash/           what trials left, on its way out
"""

# States are compared as `os` gives them.
# ruff: noqa: PTH116

import errno
import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from metaloop.adapters.workspace.files import content, is_folder, own
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
        told = Path(os.fsdecode(content(place / STUDY)))
        return told.is_absolute() and told.is_dir()
    except (OSError, ValueError, UsageError):
        return False


def clear(place: Path) -> bool:
    """Removes a place that no controller holds and no process works in; whether there was one."""
    if not is_folder(place) or sum(os.path.lexists(place / name) for name in (STUDY, "lock", "trash")) < 2:
        return False  # not one of ours
    try:
        lock = _opened(place)
    except OSError:
        return False
    free = _locked(lock) and not _is_inhabited(place.resolve())
    if free:
        removed(place)
    os.close(lock)
    return free


def hold(place: Path) -> int:
    """The lock of a place, which is made where it is missing. Who had it before may have removed the file meanwhile."""
    while True:
        try:
            place.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            _folder(place)
            lock = _opened(place)
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
    if not is_folder(place):
        return  # somebody put a link in its place: what is behind it is not ours
    _folder(place / "trash")
    trash = Trash(place / "trash")
    for child in place.iterdir():
        if child.name != "trash" and (child.name != "lock" or is_folder(child)):
            with suppress(OSError):
                trash.take(child)
    trash.close()
    with suppress(OSError):
        trash.path.rmdir()
        (place / "lock").unlink(missing_ok=True)
        place.rmdir()


def _folder(path: Path) -> None:
    """Makes a folder of ours, and gives it back its rights; a link or a file of somebody's goes for it."""
    if not is_folder(path):
        path.unlink(missing_ok=True)
        path.mkdir(exist_ok=True, mode=0o700)
    own(str(path))


def _opened(place: Path) -> int:
    """A descriptor of the lock, which is a file: whatever else somebody put there goes."""
    path = place / "lock"
    _folder(place / "trash")
    for attempt in range(2):
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            if attempt or error.errno not in (errno.EISDIR, errno.EACCES, errno.ELOOP, errno.ENXIO):
                raise
        else:
            if stat.S_ISREG(os.fstat(lock).st_mode):
                return lock
            os.close(lock)
        trash = Trash(place / "trash")
        trash.take(path)
        trash.close()
    raise OSError(errno.EEXIST, "something else stands where the lock belongs", str(path))


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_inhabited(place: Path) -> bool:
    """Whether a process has its working directory there: its keeper may have outlived its controller."""
    slots = {(state.st_dev, state.st_ino) for state in map(os.lstat, place.iterdir())}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (process / "cwd").stat()
            if (state.st_dev, state.st_ino) in slots or (process / "cwd").readlink().is_relative_to(place):
                return True
    return False
