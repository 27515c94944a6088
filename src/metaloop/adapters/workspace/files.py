"""What every part wants of a file: to read it as it is, and to see whether somebody touched it."""

# A path is a text where it comes from the trash: there may be thousands.
# ruff: noqa: PTH101

import os
import stat
from contextlib import suppress
from pathlib import Path

from metaloop.errors import UsageError

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""How a folder is opened: never through a link."""

PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""How a file is opened to be read: never through a link, and without waiting for a pipe."""


def content(path: Path) -> bytes:
    """A file's content as it was at one moment."""
    for _ in range(3):
        with open(os.open(path, PLAIN), "rb") as file:
            before = os.fstat(file.fileno())
            data = file.read()
            after = os.fstat(file.fileno())
        if mark_of(before) == mark_of(after) and len(data) == after.st_size:
            return data
    raise UsageError(f"{path}: expected a file that stays as it is for a moment, found it being written")


def mark_of(state: os.stat_result) -> tuple[int, int, int, int, int]:
    """What changes whenever somebody touches a file: nobody can set its ctime back."""
    return state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_mode


def is_folder(path: str | Path) -> bool:
    """Whether it is a folder itself, and no link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def own(path: str, within: int | None = None) -> None:
    """Makes a folder ours to read and write again. Anything else, links too, is left as it is."""
    with suppress(OSError):
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=within)
        try:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)
        finally:
            os.close(fd)
