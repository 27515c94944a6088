"""Which files a study file's globs mean: read from the disk, walked at most once, and never outside of the workdir.

Of a study of code that has begun, they mean what its base holds, whatever became of the folder.
"""

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from metaloop.studyfile.schema import Fault
from metaloop.studyfile.yaml12 import Place

IGNORED = frozenset({".git", ".metaloop"})


def by_place(key: str, single: str | None, many: Sequence[str] | None) -> dict[Place, str]:
    listed: dict[Place, str] = {("policy", key, index): glob for index, glob in enumerate(many or ())}
    return listed | ({("policy", f"{key}_file"): single} if single is not None else {})


@dataclass(frozen=True)
class Held:
    """The files that a study of code began with: those of its base, and those that it watches where they are.

    `hashes`: the SHA-256 of what the base has at these paths; nothing for those that it has not.
    """

    files: frozenset[str] = frozenset()
    hashes: Callable[[Sequence[str]], Mapping[str, str]] = field(default=lambda _: {})


class Tree:
    """The files under a folder, walked once and only if a glob asks. Links to folders are not followed.

    What matches something of what is `held` is not looked for on the disk.
    """

    def __init__(self, root: Path, held: Held = Held()) -> None:
        self.root, self.held = root, held
        self.files: list[str] | None = None
        self.unreadable: list[str] = []

    def resolved(self, path: str) -> Path:
        return (self.root / path).resolve()

    def matched(self, globs: Mapping[Place, str], faults: list[Fault], *, later: bool = False) -> dict[str, Place]:
        """The files that each glob matches, with the glob's place; a fault for one that leaves, or that matches none
        unless what it matches may come `later`.
        """
        matched: dict[str, Place] = {}
        for at, glob in globs.items():
            paths = self._paths(glob, later)
            if isinstance(paths, str):
                faults.append(Fault(at, paths))
                continue
            for path in paths:
                matched.setdefault(path, at)
        return matched

    def _paths(self, glob: str, later: bool) -> list[str] | str:
        """The files of one glob, or what is wrong with it."""
        pure = PurePath(glob)
        if pure.is_absolute() or ".." in pure.parts:
            return f"expected a path inside the workdir, found {glob[:80]!r}; write it relative to {self.root}"
        try:
            if known := self._known(pure):
                return known
            paths = self._literal(pure) or self._globbed(pure.as_posix())
        except re.error as error:
            return f"expected a glob, found {glob[:80]!r}: {error.msg}"
        if outside := next((path for path in paths if not self._inside(path)), None):
            return f"expected a path inside the workdir, found {outside!r}, a link that leads out"
        if closed := next((folder for folder in self.unreadable if _may_reach(glob, folder)), None):
            return f"expected folders that can be read, found {closed!r}, which cannot"
        nothing = f"expected a file in {self.root}, found none that matches {glob[:80]!r}; correct it or remove it"
        return paths if paths or later else nothing

    def _known(self, pure: PurePath) -> list[str]:
        name = pure.as_posix()
        if name in self.held.files:
            return [name]
        top = "" if name == "." else f"{name}/"
        pattern = re.compile(_regex(name), re.DOTALL)
        return sorted(path for path in self.held.files if path.startswith(top) or pattern.fullmatch(path))

    def _literal(self, pure: PurePath) -> list[str]:
        path = self.root / pure
        if is_dir(path):
            return self._globbed(f"{pure.as_posix()}/**" if pure.parts else "**")
        return [pure.as_posix()] if is_file(path) else []

    def _globbed(self, glob: str) -> list[str]:
        pattern = re.compile(_regex(glob), re.DOTALL)
        return [path for path in self._walked() if pattern.fullmatch(path)]

    def _walked(self) -> list[str]:
        if self.files is None:
            self.files = sorted(self._walk())
        return self.files

    def _walk(self) -> Iterator[str]:
        for folder, folders, files in os.walk(self.root, onerror=self._closed):
            folders[:] = [name for name in folders if name not in IGNORED]
            here = Path(folder)
            yield from ((here / name).relative_to(self.root).as_posix() for name in files if is_file(here / name))

    def _closed(self, error: OSError) -> None:
        self.unreadable.append(Path(error.filename).relative_to(self.root).as_posix())

    def _inside(self, path: str) -> bool:
        try:
            return self.resolved(path).is_relative_to(self.root.resolve())
        except (OSError, RuntimeError):
            return False


def _may_reach(glob: str, folder: str) -> bool:
    """Whether files in `folder` might have matched."""
    return "**" in glob and folder.startswith(glob.partition("*")[0])


def _regex(glob: str) -> str:
    """`*` and `?` stay within a name, `**/` is any folders or none, `**` at the end all that is below."""
    glob = re.sub(r"(\*\*/)+", "**/", re.sub(r"\*{2,}", "**", glob))  # or matching would take for ever
    out, at = "", 0
    while at < len(glob):
        if glob.startswith("**/", at):
            out, at = out + "(?:.*/)?", at + 3
        elif glob.startswith("**", at):
            out, at = out + ".*", at + 2
        elif match := re.compile(r"\[([!^]?)(\]?[^\]/]*)\]").match(glob, at):
            out, at = out + f"[{'^/' if match[1] else ''}{_set(match[2])}]", match.end()
        else:
            out, at = out + {"*": "[^/]*", "?": "[^/]"}.get(glob[at], re.escape(glob[at])), at + 1
    return out


def _set(members: str) -> str:
    return re.sub(r"([\\\[\]^&~|])", r"\\\1", members)


# ---- questions to the disk, of any path whatever ---------------------------------------------------------------------


def is_dir(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def same(one: Path, other: Path) -> bool:
    try:
        return one.resolve() == other.resolve()
    except (OSError, RuntimeError, ValueError):
        return False


def is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
