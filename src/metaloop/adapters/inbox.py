"""Requests to a study from other processes: one JSON file each in `inbox/`, put there whole, by rename.

The engine alone writes the ledger; whoever wants something leaves it here. A request is recorded before its file goes,
so that none is lost, and its name is remembered, so that none is carried out twice.
"""

import contextlib
import os
import secrets
import stat
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from metaloop.events import Directed

MOST = 1 << 20
"""Bytes of a request at most."""

_decoder = msgspec.json.Decoder(Directed)


class FileInbox:
    """The inbox of the study in `folder`. Implements `engine.Inbox`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "inbox"
        self._seen = -1

    def take(self) -> Sequence[Directed]:
        """Every request that can be read, oldest first. One that cannot is renamed to `*.bad`, for a person to see."""
        try:
            changed = self._folder.stat().st_mtime_ns
        except OSError:
            return ()
        if changed == self._seen:
            return ()
        found = []
        for path in sorted(self._folder.glob("*.json")):
            request = _read(path)
            if request is None or request.request != path.stem:
                with contextlib.suppress(OSError):
                    path.rename(path.with_suffix(".bad"))
            else:
                found.append(request)
        self._seen = changed if not found else -1
        return found

    def done(self, request: str) -> None:
        path = self._folder / f"{request}.json"
        if path.parent == self._folder:  # a name, and no way out of here
            path.unlink(missing_ok=True)


def _read(path: Path) -> Directed | None:
    """The request in a plain small file; None for anything else, whatever lies there."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return None
            return _decoder.decode(file.read(MOST))
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def request_id() -> str:
    """A name for a request: sorts by time, and is like no other."""
    return f"{time.time_ns():020}-{secrets.token_hex(3)}"


def put(folder: Path, request: Directed) -> None:
    """Leaves a request for the controller of the study in `folder`."""
    inbox = folder / "inbox"
    inbox.mkdir(exist_ok=True)
    draft = inbox / f".{request.request}.tmp"
    with draft.open("wb") as file:
        file.write(msgspec.json.encode(request))
        file.flush()
        os.fsync(file.fileno())
    draft.rename(inbox / f"{request.request}.json")


def withdraw(folder: Path, request: str) -> None:
    """Takes a request back that nobody has taken up."""
    FileInbox(folder).done(request)
