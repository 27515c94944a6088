"""What trials left, on its way out: moved at once and deleted later, or measured and deleted where it lies.

However deep it is: no path gets longer than the system can take, and nothing here calls itself.
"""

# Paths are texts where there are thousands: a Path would cost more than the call.
# ruff: noqa: PTH104, PTH106, PTH108, PTH208

import errno
import itertools
import os
import secrets
import stat
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from metaloop.adapters.workspace.files import FOLDER, is_folder, own


class Trash:
    """What trials left. It comes by a rename, and is deleted by a thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._prefix, self._numbers = secrets.token_hex(4), itertools.count()
        self._thread = ThreadPoolExecutor(1, "trash")
        self._emptying: Future[None] | None = None

    def take(self, path: str | Path) -> None:
        """Moves it in. Raises OSError where it cannot be; NotADirectoryError where somebody put a link in our place."""
        if not is_folder(self.path):
            raise NotADirectoryError(errno.ENOTDIR, "it was replaced", str(self.path))
        place = f"{self.path}/{self._prefix}-{next(self._numbers)}"
        try:
            os.rename(path, place)
        except PermissionError:  # a folder whose `..` may not be changed
            own(str(path))
            os.rename(path, place)

    def empty(self) -> None:
        """Soon."""
        if self._emptying is None or self._emptying.done():
            self._emptying = self._thread.submit(self._empty)

    def close(self) -> None:
        """Now: waits until it is empty, but for what cannot be deleted."""
        self._thread.submit(self._empty)
        self._thread.shutdown()

    def _empty(self) -> None:
        hopeless = set[str]()
        with suppress(OSError):
            while is_folder(self.path) and (left := [n for n in os.listdir(self.path) if n not in hopeless]):
                for name in left:
                    if not self._gone(f"{self.path}/{name}"):
                        hopeless.add(name)

    def _gone(self, path: str) -> bool:
        """Deletes one thing. Folders in it are moved up first: no path gets longer than the system can take."""
        try:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                os.unlink(path)
                return True
            own(path)
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        self.take(entry.path)
                    else:
                        os.unlink(entry.path)
            os.rmdir(path)
        except OSError:
            return False
        return True


def measured(path: Path) -> tuple[int, str]:
    """Bytes of all files below a folder; and why that is not all, if it is not."""
    return _gone_through(path, delete=False)


def deleted(path: Path) -> tuple[int, str]:
    """The same of a folder that goes, with all that is in it; and why something of it stays, if it does."""
    size, why = _gone_through(path, delete=True)
    try:
        path.rmdir()
    except OSError as error:
        why = why or _why(error)
    return size, why


def _gone_through(path: Path, *, delete: bool) -> tuple[int, str]:
    size, said = 0, list[OSError]()
    try:
        for fd, name, state in _below(path, said, mend=delete):
            size += 0 if stat.S_ISDIR(state.st_mode) else state.st_size
            if delete:
                try:
                    (os.rmdir if stat.S_ISDIR(state.st_mode) else os.unlink)(name, dir_fd=fd)
                except OSError as error:
                    said.append(error)
    except OSError as error:
        said.append(error)
    return size, _why(said[0]) if said else ""


def _below(path: Path, said: list[OSError], *, mend: bool) -> Iterator[tuple[int, str, os.stat_result]]:
    """All that is below a folder, each with a descriptor of what it is in; folders after what is in them.

    One descriptor is open at a time. What cannot be entered is said; with `mend` folders are made ours first.
    """
    fd = _entered(str(path), None, mend)
    try:
        waiting, above = [os.listdir(fd)], list[tuple[str, os.stat_result, tuple[int, int]]]()
        while waiting[-1] or above:
            if not waiting[-1]:
                waiting.pop()
                name, state, known = above.pop()
                fd = _moved(fd, os.open("..", FOLDER, dir_fd=fd))
                if _identity(fd) != known:
                    raise OSError(errno.ESTALE, "it was moved meanwhile")
                yield fd, name, state
                continue
            name = waiting[-1].pop()
            state = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if not stat.S_ISDIR(state.st_mode):
                yield fd, name, state
                continue
            try:
                if state.st_dev != _identity(fd)[0]:
                    raise OSError(errno.EXDEV, "another file system is mounted there")
                inner = _entered(name, fd, mend)
            except OSError as error:
                said.append(error)
                continue
            above.append((name, state, _identity(fd)))
            fd = _moved(fd, inner)
            waiting.append(os.listdir(fd))
    finally:
        os.close(fd)


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def _entered(name: str, fd: int | None, mend: bool) -> int:
    if mend:
        own(name, fd)
    return os.open(name, FOLDER, dir_fd=fd)


def _moved(old: int, new: int) -> int:
    os.close(old)
    return new


def _identity(fd: int) -> tuple[int, int]:
    state = os.fstat(fd)
    return state.st_dev, state.st_ino
