"""A code study's base and its candidates' directories, as the ledger and the engine want them."""

import asyncio
import os
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from metaloop.adapters.workspace.base import FILE, PROGRAM, Base, parents, without
from metaloop.adapters.workspace.files import is_folder
from metaloop.adapters.workspace.git import blob, contents, repository
from metaloop.adapters.workspace.links import MOST
from metaloop.adapters.workspace.places import STUDY, clear
from metaloop.adapters.workspace.slots import SCORING, Slots
from metaloop.adapters.workspace.snapshots import opened, relinked
from metaloop.edits.contract import covers
from metaloop.errors import UsageError
from metaloop.events import Based
from metaloop.roles import Bench
from metaloop.terms import Terms
from metaloop.values import digest

OTHERS = 10_000
"""Files at most that may not be changed and are known by name: every look at an edit reads through them."""

TOTAL = 32 << 20
"""Bytes at most of all files that may be changed: they are in the ledger, and in memory."""


def recorded(repo: Path, base: Base, terms: Terms) -> tuple[Based, tuple[str, ...]]:
    """The base as a fact; and files that the contract would let be changed, and that are no text or too long.

    Those stay as they are: an edit of one is refused as one of a file that is not there.
    """
    contract = terms.contract
    paths = [path for path, entry in base.files.items() if entry.mode in (FILE, PROGRAM) and contract.allows(path)]
    fits = [path for path in paths if base.files[path].size <= contract.most_file and _is_text(path)]
    if (size := sum(base.files[path].size for path in fits)) > TOTAL:
        found = f"{size / (1 << 20):.0f} MiB"
        raise UsageError(
            f"policy.mutable: expected files of {TOTAL >> 20} MiB in all at most, found {found}; name fewer"
        )
    files, texts, left = dict[str, str](), dict[str, str](), sorted(set(paths) - set(fits))
    for path, data in zip(fits, contents(repo, [base.files[path].hash for path in fits]), strict=True):
        try:
            text = data.decode()
        except UnicodeDecodeError:
            left.append(path)
            continue
        files[path] = digest(data)
        texts[files[path]] = text
    there = (path for path, entry in base.files.items() if entry.mode in (FILE, PROGRAM) and _is_text(path))
    rest = (path for path in there if path not in files)
    others = tuple(path for path in rest if not any(covers(glob, path) for glob in terms.private))
    return Based(base.tree, files, texts, others if len(others) <= OTHERS else ()), tuple(left)


def _is_text(path: str) -> bool:
    """Whether a name can be written down."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def owned(repo: Path, terms: Terms, root: Path) -> Callable[[str, bool], bool]:
    """Whether candidates have a file of their own at a path, by the base or a link; where asked for, one that runs."""
    base = opened(repo)

    def has(name: str, runs: bool) -> bool:
        path = os.path.normpath(name)
        if any(covers(glob, path) for glob in terms.private):
            return False
        if (entry := base.files.get(path)) is not None:
            return not (runs and entry.mode == FILE)
        linked = relinked(root, base, ignore=[repo.parent.parent]).linked
        there = any(above in linked for above in (path, *parents(path)))
        return there and os.access(root / path, os.X_OK if runs else os.R_OK)

    return has


class Candidates:
    """`roles.Workspace` over the slots of one study. They are made when the first is wanted: what is prepared has come
    by then, and is linked where git ignores it; `tell` hears of what is too much for that.

    Of the base, candidates have all but what is private, and what scores them all but what they may change.
    """

    def __init__(
        self, repo: Path, base: Base, place: Path, terms: Terms, root: Path, tell: Callable[[str], None] = print
    ) -> None:
        self._repo, self._place, self._terms, self._root = repo, place, terms, root
        self._base, self._whole, self._contract = without(base, self._is_private), base, terms.contract
        self._tell = tell
        self._made: Slots | None = None
        self._paths, self._overlays = dict[int, Path](), dict[int, Mapping[str, str]]()

    @property
    def _slots(self) -> Slots:
        if self._made is None:
            linked = relinked(self._root, self._whole, ignore=[self._repo.parent.parent, self._place])
            for folder, count in linked.unlinked.items():
                self._tell(
                    f"{folder or '.'}: candidates are without {count} entries that git ignores there, since they have "
                    f"{MOST} links at most; move them into a folder that holds nothing else"
                )
            own = {path: target for path, target in linked.linked.items() if not self._is_output(path)}
            linked = replace(linked, linked=own)
            scoring = without(linked, self._is_no_scorers)
            self._made = Slots(self._repo, without(linked, self._is_private), self._place, scoring)
            self._made.write(STUDY, os.fsencode(self._repo.parent.absolute()))
        return self._made

    async def open(self, lane: int, overlay: Mapping[str, str]) -> str:
        self._paths[lane], self._overlays[lane] = await self._slots.open(lane, overlay), overlay
        return str(self._paths[lane])

    async def adopt(self, lane: int, overlay: Mapping[str, str]) -> str:
        self._paths[lane], self._overlays[lane] = await self._slots.adopt(lane, overlay), overlay
        return str(self._paths[lane])

    async def scoring(self, lane: int) -> str:
        return str(await self._slots.open(lane, {}, SCORING))

    def linked(self, *, scoring: bool = False) -> Sequence[str]:
        return self._slots.linked(SCORING if scoring else "")

    async def touched(self, lane: int, paths: Collection[str]) -> Sequence[str] | None:
        top, overlay = self._paths[lane], self._overlays[lane]
        if not is_folder(top):
            return None
        found = [path for path in sorted(paths) if not _as_it_was(top, path, self._base, overlay)]
        score = top.with_name(f"{top.name}{SCORING}")
        if self._terms.tier == "separate" and is_folder(score):
            scored = (path for path in sorted(paths) if not self._contract.allows(path))
            found += [path for path in scored if not _as_it_was(score, path, self._whole, {})]
        return list(dict.fromkeys(found))

    async def bench(self, lane: int, overlay: Mapping[str, str], brief: str) -> Bench:
        path = await self._slots.open(lane, overlay)
        self._paths[lane], self._overlays[lane] = path, overlay
        told = self._slots.write(f"{path.name}.brief.md", brief.encode(errors="replace"))
        await asyncio.to_thread(repository, path)
        return Bench(str(path), brief, str(told))

    async def written(self, lane: int) -> tuple[Mapping[str, str | None], Sequence[str]]:
        files, new = dict[str, str | None](), list[str]()
        for path, data in (await self._slots.changed(lane, unread=self._is_no_candidates)).items():
            name = path.encode(errors="backslashreplace").decode()
            try:
                files[name] = None if data is None else data.decode()
            except UnicodeDecodeError:
                raise UsageError(f"{name}: expected text, found what is none") from None
            if path not in self._base.files and path not in self._overlays[lane]:
                new.append(name)
        return files, new

    def _is_no_candidates(self, path: str) -> bool:
        """Whether no candidate may have changed it: then what is in it is of no interest."""
        return not (_is_text(path) and self._contract.allows(path))

    def _is_private(self, path: str) -> bool:
        return any(covers(glob, path) for glob in self._terms.private)

    def _is_no_scorers(self, path: str) -> bool:
        """Whether what scores has none of it: candidates may change it, or leave their own there."""
        left = any(covers(glob, path) for glob in self._terms.outputs)
        return self._contract.allows(path) or (left and not self._is_private(path))

    def _is_output(self, path: str) -> bool:
        """Whether a candidate is to leave something at, or below, what git ignores: then it has that for itself."""
        places = (glob.partition("*")[0] for glob in self._terms.outputs)
        return any(covers(glob, path) for glob in self._terms.outputs) or any(p.startswith(f"{path}/") for p in places)

    async def close(self) -> None:
        if self._made is not None:
            await self._made.close_all()
        else:
            clear(self._place)  # of a controller that was killed


def _as_it_was(top: Path, path: str, base: Base, overlay: Mapping[str, str]) -> bool:
    """Whether it is a file with the content that it was given; true of what is not in base and overlay."""
    text, entry = overlay.get(path), base.files.get(path)
    if text is None and (entry is None or entry.mode not in (FILE, PROGRAM)):
        return True
    try:
        with open(os.open(top / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            state = os.fstat(file.fileno())
            size = len(text.encode()) if text is not None else entry.size if entry else 0
            if not stat.S_ISREG(state.st_mode) or state.st_size != size:  # however large it was made
                return False
            data = file.read(size + 1)
    except OSError:
        return False
    return data == text.encode() if text is not None else blob(data) == (entry.hash if entry else "")
