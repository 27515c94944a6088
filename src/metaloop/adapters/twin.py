"""The ledger once more, as lines of text: what a damaged one is restored from.

`ledger.jsonl` gets the rows of every commit after SQLite has them, unsynced: after a power cut it may lag, or end in
half a line, and is topped up at the next start. The controller alone writes it, and `metaloop restore` reads it.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

FILE = "ledger.jsonl"
Row = tuple[int, str, str, str | None]
"""place, body, hash, and what may stand only once: a row of the ledger's table, and a line of the copy."""

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Row)


class Twin:
    """The copy in `folder`, open for appending from the row after the last whole one."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.place, end = last(self._fd)
        os.ftruncate(self._fd, end)
        os.lseek(self._fd, end, os.SEEK_SET)

    def append(self, rows: Iterable[Row]) -> None:
        """Never raises: a copy that cannot be kept is no reason to stop, and is topped up at the next start."""
        try:
            os.write(self._fd, _encoder.encode_lines(rows))
        except OSError:
            pass

    def close(self) -> None:
        os.close(self._fd)


def rows(folder: Path) -> Iterator[Row]:
    """Every whole row of the copy, in order; ends before the first line that is none."""
    try:
        with (folder / FILE).open("rb") as file:
            for text in file:
                try:
                    yield _decoder.decode(text)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    return
    except OSError:
        return


def last(fd: int) -> tuple[int, int]:
    """The place of the last whole line, and the byte after it: without reading more than the end of the file."""
    size = os.fstat(fd).st_size
    window = 1 << 16
    while True:
        start = max(0, size - window)
        tail = os.pread(fd, size - start, start)
        whole = tail[: tail.rfind(b"\n") + 1]
        begin = whole.rfind(b"\n", 0, len(whole) - 1) + 1
        if whole and (begin or not start):
            try:
                return _decoder.decode(whole[begin:])[0], start + len(whole)
            except (msgspec.DecodeError, UnicodeDecodeError):
                return 0, 0  # not ours, or spoilt: it is written anew
        if not start:
            return 0, 0
        window *= 8
