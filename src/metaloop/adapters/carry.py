"""Carries what a candidate left to where it is scored: plain files that are named, and nothing else.

usage: python -I -S carry.py SOURCE TARGET GLOB REGEX [GLOB REGEX]...    REGEX: what GLOB means, of paths below SOURCE

A script of its own, with nothing but the standard library: it runs where the candidate's processes are dead, and sees
its directory. Each glob has to match something. Exit code 1, with one line on stderr, for what cannot be carried: a
link, a pipe, too much, or what TARGET has already. No link is followed, on either side.
"""

from __future__ import annotations

import os
import re
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

FILES, BYTES, ENTRIES, DEPTH = 10_000, 1 << 30, 200_000, 64
"""Files and bytes that are carried at most; entries that are looked at, and folders within folders."""

LINK = 40  # ELOOP: what O_NOFOLLOW says of a link
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def refuse(text: str) -> NoReturn:
    os.write(2, f"{text}\n".encode(errors="backslashreplace"))
    os._exit(1)


def shown(path: str) -> str:
    return path if path.isprintable() and len(path) < 200 else ascii(path[:200])


class Carrier:
    def __init__(self, target: int, patterns: list[str]) -> None:
        self.target = target
        self.globs = patterns[::2]
        self.patterns = [re.compile(pattern, re.DOTALL) for pattern in patterns[1::2]]
        self.met = [False] * len(self.patterns)
        self.files = self.bytes = self.seen = 0

    def carry(self, folder: int, above: str, depth: int = 0) -> None:
        """Everything below an open folder that a pattern matches."""
        for name in sorted(os.listdir(folder)):
            self.seen += 1
            if self.seen > ENTRIES:
                refuse(f"expected a directory of at most {ENTRIES} files and folders, found more")
            path = f"{above}{name}"
            state = os.stat(name, dir_fd=folder, follow_symlinks=False)
            wanted = self.wanted(path)
            if stat.S_ISDIR(state.st_mode):
                if depth >= DEPTH:
                    refuse(f"{shown(path)}: expected at most {DEPTH} folders within each other, found more")
                fd = os.open(name, FOLDER, dir_fd=folder)
                self.carry(fd, f"{path}/", depth + 1)
                os.close(fd)
            elif wanted:
                self.file(folder, name, path)

    def wanted(self, path: str) -> bool:
        """By every pattern, so that each knows whether it was met."""
        hits = [pattern.fullmatch(path) is not None for pattern in self.patterns]
        self.met = [met or hit for met, hit in zip(self.met, hits, strict=True)]
        return any(hits)

    def file(self, folder: int, name: str, path: str) -> None:
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            state = os.fstat(fd)
        except OSError as error:
            refuse(f"{shown(path)}: expected a file, found {'a link' if error.errno == LINK else error.strerror}")
        if not stat.S_ISREG(state.st_mode):
            refuse(f"{shown(path)}: expected a file, found a pipe or a device")
        self.files, self.bytes = self.files + 1, self.bytes + state.st_size
        if self.files > FILES:
            refuse(f"{shown(path)}: expected at most {FILES} files, found more")
        if self.bytes > BYTES:
            refuse(f"{shown(path)}: expected at most {BYTES >> 20} MiB in all, found more")
        here = self.way(path)
        if present(here, name):
            refuse(f"{shown(path)}: expected a name that the scorer has no file of, found one that it has")
        new = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=here)
        os.close(here)
        with open(fd, "rb") as file, open(new, "wb") as copy:
            left = state.st_size  # whatever it grows to meanwhile
            while left and (data := file.read(min(left, 1 << 20))):
                copy.write(data)
                left -= len(data)

    def way(self, path: str) -> int:
        """The folder in the target where the file goes; it is made where it is missing."""
        folders = path.split("/")[:-1]
        here = os.dup(self.target)
        for each in folders:
            try:
                below = os.open(each, FOLDER, dir_fd=here)
            except FileNotFoundError:
                os.mkdir(each, 0o755, dir_fd=here)
                below = os.open(each, FOLDER, dir_fd=here)
            os.close(here)
            here = below
        return here


def present(folder: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def main(source: str, target: str, patterns: list[str]) -> None:
    carrier = Carrier(os.open(target, FOLDER), patterns)
    try:
        carrier.carry(os.open(source, FOLDER), "")
    except OSError as error:
        refuse(f"{shown(str(error.filename or source))}: cannot be carried: {error.strerror}")
    for glob, met in zip(carrier.globs, carrier.met, strict=True):
        if not met:
            refuse(f"expected a file that {glob!r} matches, found none: it has to be left in the working directory")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
