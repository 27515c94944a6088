"""Requests to a study from other processes: one JSON file each in `inbox/`, put there whole, by rename.

The engine alone writes the ledger; whoever wants something leaves it here. A request is recorded before its file goes,
so that none is lost, and its name is remembered, so that none is carried out twice.
"""

import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from metaloop.events import Directed

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
            try:
                found.append(_decoder.decode(path.read_bytes()))
            except (msgspec.DecodeError, UnicodeDecodeError):
                path.rename(path.with_suffix(".bad"))
        self._seen = changed if not found else -1
        return found

    def done(self, request: str) -> None:
        (self._folder / f"{request}.json").unlink(missing_ok=True)


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
