"""What trials left, on its way out: moved at once, deleted later."""

# Paths are texts where there are thousands: a Path would cost more than the call.
# ruff: noqa: PTH104, PTH106, PTH108, PTH208

import errno
import itertools
import os
import secrets
import stat
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from metaloop.adapters.workspace.files import is_folder, own


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
