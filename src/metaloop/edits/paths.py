"""Which file a path means, and whether it is one that anything may be written to."""

import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping

from metaloop.edits.contract import Contract, Fault, listed, shown

DEVICE = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|$)", re.IGNORECASE)
_INNER = re.compile(r"\.git|git~[0-9]+|\.metaloop", re.IGNORECASE)


class Files:
    """Which paths there are: `known` files, the `names` of these and of their folders, and which of them are mutable.

    `alike` holds each name under what is the same for a file system that does not tell case or composition apart.
    """

    def __init__(self, before: Mapping[str, str], others: Collection[str], contract: Contract) -> None:
        self.before = before
        self.known = {*before, *others}
        self.names = {name for path in self.known for name in _lineage(path)}
        self.alike = {_folded(name): name for name in sorted(self.names)}
        self.mutable = [path for path in sorted(before) if contract.allows(path)]


def _lineage(path: str) -> Iterator[str]:
    """The folders of a path, outermost first, and the path."""
    yield from (path[: match.start()] for match in re.finditer("/", path))
    yield path


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def path_faults(path: str, files: Files, contract: Contract) -> list[Fault]:
    """What forbids a change of the file at `path`, be it there or new."""
    new = path not in files.known
    if problem := unsafe(path) or (_strange(path, files) if new else ""):
        return [Fault("unsafe_path", f"{shown(path)}: {problem}")]
    if contract.freezes(path):
        return [Fault("frozen_file_mutation_blocked", f"{shown(path)}: expected no change, as the file is frozen")]
    if not contract.allows(path):
        found = "a new file that is not" if new else "a change of a file that is not mutable"
        text = f"{shown(path)}: expected changes within {listed(contract.mutable)}, found {found}"
        return [Fault("out_of_scope_mutation_blocked", text)]
    return []


def clashes(paths: Iterable[str]) -> list[Fault]:
    """New files that would be in each other's way: one the folder of another, or spelled alike."""
    faults: list[Fault] = []
    there: dict[str, str] = {}
    ordered = sorted(paths)
    new = set(ordered)
    for path in ordered:
        for name in _lineage(path):
            other = there.setdefault(_folded(name), name)
            if other != name or (name != path and name in new):
                faults.append(
                    Fault("unsafe_path", f"{shown(path)}: expected names that can stand beside {shown(other)}")
                )
                break
    return faults


def unsafe(path: str) -> str:
    """What is wrong with a path anywhere; empty where nothing is."""
    parts = path.split("/")
    if not path or len(path) > 1000 or any(len(part.encode("utf-8", "surrogatepass")) > 255 for part in parts):
        return "expected a path of ordinary length"
    if path[0] in "/~" or re.match(r"[A-Za-z]:", path) or "\\" in path:
        return "expected a path relative to the folder of the study, with / between names"
    if not path.isprintable():
        return "expected a path of printable characters"
    if any(part in ("", ".", "..") for part in parts):
        return "expected a path without empty names, . and .."
    if any(part != part.strip() or part.endswith(".") for part in parts):
        return "expected names that do not begin or end with a space, or end with a dot"
    if any(_INNER.fullmatch(_folded(part)) for part in parts):
        return "expected a file that is not git's or the study's own"
    return ""


def _strange(path: str, files: Files) -> str:
    """What is wrong with the path of a new file."""
    if any(DEVICE.match(part) or ":" in part for part in path.split("/")):
        return "expected a name that is a file's on every system"
    if path in files.names:
        return "expected a file, found a folder of that name"
    for name in _lineage(path):
        if name in files.known:
            return f"expected a folder, found the file {shown(name)}"
        if name not in files.names and (other := files.alike.get(_folded(name))):
            return f"expected {shown(other)}, found a name that differs only in its spelling"
    return ""
