"""What a slot has by a link: entries of the user's folder that git ignores; and where links lead that leave the folder.

Knows names and where links lead. Not covered: what links inside of an ignored folder lead to.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from metaloop.adapters.workspace.base import CACHES, JUNK, NEVER, parents
from metaloop.adapters.workspace.files import is_folder

OUTPUTS = CACHES | {"build", "dist", "target", ".ipynb_checkpoints"}
"""Names that no slot has a link to: by them one trial would see another's."""

MOST = 1000
"""Links that a slot has at most: each costs a look whenever it is opened."""


def links(
    root: Path, ignored: Iterable[str], files: Collection[str], left_out: Collection[str]
) -> tuple[dict[str, str], dict[str, int]]:
    """Each entry that a slot links to, with where it leads; and folders with how many in them are too many to link.

    Nothing where the base has something. What is ignored in one folder is linked whole or not at all: half of the data
    would be worse than none. Folders come first, then files; of both the nearest to the top.
    """
    folders = {above for path in files for above in parents(path)}
    found = dict[tuple[bool, int, str], list[str]]()
    for path in ignored:
        free = path not in folders and not any(above in files for above in (path, *parents(path)))
        if free and _may_link(path, left_out):
            is_file = not is_folder(root / path)
            found.setdefault((is_file, path.count("/"), path.rpartition("/")[0]), []).append(path)
    made, many = dict[str, str](), dict[str, int]()
    for (_, _, above), paths in sorted(found.items()):
        if len(made) + len(paths) > MOST:
            many[above] = many.get(above, 0) + len(paths)
        else:
            made |= {path: target for path in sorted(paths) if (target := _target(root, path, files, folders))}
    return made, many


def redirected(root: Path, outside: Mapping[str, str], files: Iterable[str]) -> dict[str, str]:
    """What a slot's links say, of those that leave the folder by a relative path: it leads elsewhere from a slot.

    To the same place as from the folder; one that comes back into it leads to what the slot has there.
    """
    folders = {above for path in files for above in parents(path)}
    found = {path: _elsewhere(root, path, text, folders) for path, text in outside.items()}
    return {path: text for path, text in found.items() if text}


def _elsewhere(root: Path, path: str, text: str, folders: Collection[str]) -> str:
    """Nothing for a link that does not leave, or only by way of another link, which is redirected itself."""
    steps = [step for step in text.split("/") if step not in ("", ".")]
    if text.startswith("/") or (rest := _left_with(path, steps, folders)) is None:
        return ""
    place = root.parent
    while rest[:1] == [".."]:
        place, rest = place.parent, rest[1:]
    place = place.joinpath(*rest)
    if place.is_relative_to(root) and ".." not in rest:
        return os.path.relpath(place, (root / path).parent)
    return str(place)


def _left_with(path: str, steps: list[str], folders: Collection[str]) -> list[str] | None:
    """The steps that remain once a link has led above the top; None where it does not, through folders of the base."""
    here = path.split("/")[:-1]
    for number, step in enumerate(steps, start=1):
        if step != "..":
            here.append(step)
            if "/".join(here) not in folders:
                return None
        elif not here:
            return steps[number:]
        else:
            here.pop()
    return None


def _may_link(path: str, left_out: Collection[str]) -> bool:
    names = path.split("/")
    never = NEVER | OUTPUTS | (JUNK if len(names) > 1 else frozenset())
    ours = any(path == each or each.startswith(f"{path}/") or path.startswith(f"{each}/") for each in left_out)
    return not ours and never.isdisjoint(names) and not path.endswith((".pyc", ".pyo"))


def _target(root: Path, path: str, files: Collection[str], folders: Collection[str]) -> str:
    """Where the link leads; nowhere for what is not there, and for what leads to a folder with all of the project.

    A link of the user's to what the slot has a copy of leads to the copy.
    """
    place = root / path
    if not place.exists():
        return ""
    real = place.resolve()
    if root.is_relative_to(real) and real != root:
        return ""
    inner = os.path.relpath(real, root) if real.is_relative_to(root) else ""
    if place.is_symlink() and (inner == "." or inner in files or inner in folders):
        return os.path.relpath(f"/{inner}", f"/{path.rpartition('/')[0]}")
    return str(place)
