"""Bases, overlays and layouts: what a folder has to hold. Values only; no disk is read.

A layout is what a slot is compared with; that of a candidate shares with that of the base what is the same in both.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from metaloop.adapters.workspace.git import blob
from metaloop.errors import UsageError

T = TypeVar("T")

FILE, PROGRAM, LINK = "100644", "100755", "120000"
"""Modes, as git writes them."""

NEVER = frozenset({".git", ".metaloop"})
"""Names that are in no base."""

JUNK = NEVER | {"__pycache__", ".venv", "node_modules"}
"""Names that are in no base unless git tracks them, and those that never are."""

CACHES = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox"})
"""Names of folders that tools keep for themselves."""


class Entry(msgspec.Struct, frozen=True):
    """A file of a tree: git's mode, git's hash of the content (of the target, for a link), and its bytes."""

    mode: str
    hash: str
    size: int


class Base(msgspec.Struct, frozen=True):
    """What the user's folder held when the study began. Names are what `os.fsdecode` makes of them.

    `outside`: links, kept as such, that lead out of the folder or name a place by an absolute path, with what they say.
    `redirected`: those of them that a relative path leads out, with what a slot's link says, to lead to the same place.
    `linked`: entries that git ignores, with where they are. A slot has a link to each, so what a trial writes there it
    writes to the user's: a sandbox mounts them read-only. `unlinked`: folders with how many ignored entries are too
    many for that.
    """

    tree: str
    files: Mapping[str, Entry]
    outside: Mapping[str, str] = {}
    redirected: Mapping[str, str] = {}
    linked: Mapping[str, str] = {}
    unlinked: Mapping[str, int] = {}


FOREIGN = Entry("", "", 0)
"""What no base has: stands for whatever is where a file of a base cannot be."""

Layout = dict[str, dict[str, Entry | None]]
"""Each folder with what is in it, parents first; None stands for a folder."""


def layout(base: Base) -> Layout:
    made: Layout = {"": {}}
    for path, entry in base.files.items():
        _put(made, path, entry)
    for path, target in (*base.redirected.items(), *base.linked.items()):
        _put(made, path, linked(target)[0])
    return made


def without(base: Base, gone: Callable[[str], bool]) -> Base:
    """The base without those of its files and links."""

    def left(paths: Mapping[str, T]) -> dict[str, T]:
        return {path: there for path, there in paths.items() if not gone(path)}

    return msgspec.structs.replace(
        base, files=left(base.files), redirected=left(base.redirected), linked=left(base.linked)
    )


def overlaid(base: Base, layout: Layout, overlay: Mapping[str, str]) -> dict[str, tuple[Entry, bytes]]:
    """Each path of an overlay with what it becomes. Raises UsageError for what no candidate may hold.

    A text is UTF-8, its newlines as they are; a byte that is none travels as a surrogate, as in a file's name.
    """
    found = {}
    for path, text in overlay.items():
        _refuse(base, layout, path, overlay)
        try:
            data = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise UsageError(f"{path!r}: expected text that UTF-8 has, found {error.object[error.start]!r}") from error
        mode = base.files[path].mode if path in base.files else FILE
        found[path] = (Entry(mode, blob(data), len(data)), data)
    return found


def laid_out(base: Layout, files: Mapping[str, tuple[Entry, bytes]]) -> Layout:
    """The layout of a candidate. What it shares with the base's is not changed."""
    layout = dict(base)
    for path in files:
        nearest = next(folder for folder in parents(path) if folder in base)
        layout[nearest] = dict(base[nearest])
    for path, (entry, _) in files.items():
        _put(layout, path, entry)
    return layout


def linked(target: str) -> tuple[Entry, bytes]:
    data = os.fsencode(target)
    return Entry(LINK, blob(data), len(data)), data


def parents(path: str) -> Iterator[str]:
    """The folders that a file is in, the nearest first."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def _refuse(base: Base, layout: Layout, path: str, overlay: Mapping[str, str]) -> None:
    parts = path.split("/")
    if not _encodes(path) or "\0" in path or any(part in ("", ".", "..") for part in parts) or _is_long(parts):
        raise UsageError(f"expected the path of a file inside the project, found {path!r}")
    if any(_is_git(part) or part.casefold() == ".metaloop" for part in parts):
        raise UsageError(f"{path!r}: expected a file of the project, found one of git or of metaloop")
    stand = (base.linked, base.files, overlay)
    if path in base.linked or any(above in there for above in parents(path) for there in stand):
        raise UsageError(f"{path!r}: expected folders above the file, found a file or a link")
    if path in layout or (path in base.files and base.files[path].mode == LINK):
        raise UsageError(f"{path!r}: expected a file, found a folder or a link")


def _encodes(path: str) -> bool:
    try:
        return bool(path.encode("utf-8", "surrogateescape"))
    except UnicodeEncodeError:
        return False


def _is_long(parts: Sequence[str]) -> bool:
    sizes = [len(os.fsencode(part)) for part in parts]
    return max(sizes) > 255 or sum(sizes) + len(sizes) > 1000  # a system takes 4,096, of which a place has its part


def _is_git(name: str) -> bool:
    """Whether some file system would take the name for `.git`: letter case, invisible letters, short names."""
    plain = re.sub("[\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]", "", name).casefold().rstrip(" .")
    return plain.partition(":")[0] in (".git", "git~1")


def _put(layout: Layout, path: str, entry: Entry | None) -> None:
    folder, _, name = path.rpartition("/")
    if folder not in layout:
        _put(layout, folder, None)
        layout[folder] = {}
    layout[folder][name] = entry
