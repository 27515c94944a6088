"""The slots of a study, by number of lane, under one lock."""

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from metaloop.adapters.workspace.base import Base, laid_out, layout, linked, overlaid
from metaloop.adapters.workspace.files import is_folder
from metaloop.adapters.workspace.git import Objects
from metaloop.adapters.workspace.places import hold, removed
from metaloop.adapters.workspace.slot import Slot
from metaloop.adapters.workspace.trash import Trash
from metaloop.errors import ExecutorError

SCORING = ".score"
"""The kind of a lane's second slot, where what its trial left is scored."""


class Slots:
    """The slots under `place`, by number of lane; one controller at a time.

    Raises StudyBusy where another holds them. What a killed one left goes: its trash and half-made snapshot now, each
    slot when its lane is opened. Until then a slot is not touched: a trial may still run in it.
    """

    def __init__(self, repo: Path, base: Base, place: Path, scoring: Base | None = None) -> None:
        """`scoring`: what the second slot of a lane holds, where its trial is scored."""
        self._bases = {"": base, SCORING: scoring or base}
        self._layouts = {kind: layout(each) for kind, each in self._bases.items()}
        self._place = place.absolute()
        self._lock: int | None = hold(self._place)
        self._state = self._place.lstat()
        self._objects, self._trash = Objects(repo), Trash(self._place / "trash")
        self._slots: dict[str, Slot] = {}
        links = (link for each in self._bases.values() for link in (*each.redirected.values(), *each.linked.values()))
        self._links = dict(map(linked, links))
        shutil.rmtree(repo.with_name(f"{repo.name}.half"), ignore_errors=True)
        self._trash.empty()

    async def open(self, lane: int, overlay: Mapping[str, str], kind: str = "") -> Path:
        """The folder of the lane's slot, which now holds base and overlay and nothing else, whatever was done to it.

        Files of the base have a constant modification time; one whose content is put right or changed gets one that is
        newer, by a second at least, than all that this lane's slot was given before. All have one link and mode 644 or
        755; folders have the constant time and mode 755. Raises UsageError for an overlay that no candidate may have,
        ExecutorError where the slot cannot be made.
        """
        files = overlaid(self._bases[kind], self._layouts[kind], overlay)
        slot = self._slot(lane, kind)
        if not self._is_ours():
            raise ExecutorError(f"{self._place}: it was replaced while a trial ran; nothing in it is touched")
        await asyncio.to_thread(slot.open, laid_out(self._layouts[kind], files), self._links | dict(files.values()))
        self._trash.empty()
        return slot.path

    def write(self, name: str, data: bytes) -> Path:
        """A file beside the slots; whatever somebody put there gives way. Raises ExecutorError where that cannot be."""
        path = self._place / name
        if not self._is_ours():
            raise ExecutorError(f"{self._place}: it was replaced while a trial ran; nothing in it is touched")
        try:
            if os.path.lexists(path):
                self._trash.take(path)
            with path.open("xb") as file:
                file.write(data)
        except OSError as error:
            raise ExecutorError(f"{path}: cannot be written: {error.strerror}") from error
        return path

    def linked(self, kind: str = "") -> tuple[str, ...]:
        """What links in slots of a kind lead to, outside of them."""
        base = self._bases[kind]
        found = {*base.outside.values(), *base.redirected.values(), *base.linked.values()}
        return tuple(sorted(path for path in found if path.startswith("/")))

    async def adopt(self, lane: int, overlay: Mapping[str, str], kind: str = "") -> Path:
        """Says what a slot held when a controller before us opened it: for `changed`. Nothing is touched."""
        slot = self._slot(lane, kind)
        slot.held = laid_out(self._layouts[kind], overlaid(self._bases[kind], self._layouts[kind], overlay))
        return slot.path

    async def changed(
        self, lane: int, *, files: int = 1000, size: int = 16 << 20, unread: Callable[[str], bool] = lambda _: False
    ) -> dict[str, bytes | None]:
        """The files of a slot that are not as `open` made them, with what they hold; None where one is gone.

        Junk is left out: `JUNK`, caches, `*.pyc`. Modes do not count. No link is followed; a link or pipe that `open`
        did not make is a UsageError, as are more than `files` changes or `size` bytes. Of what is `unread` only that it
        changed is told, with nothing for its content, and none of this counts; of new ones the first 1,000.
        """
        return await asyncio.to_thread(self._slot(lane).changed, set(self._bases[""].linked), files, size, unread)

    async def close(self, lane: int) -> None:
        """Removes a lane's slots."""
        for kind in self._bases:
            if (slot := self._slots.pop(f"{lane}{kind}", None)) is not None:
                await asyncio.to_thread(slot.remove)
                self._trash.empty()

    async def close_all(self, *, keep: bool = False) -> None:
        """Lets go of all. Unless `keep` (trials may still run), the slots are removed, and the place with them.

        Nothing may be opened after; to close twice is harmless.
        """
        slots, self._slots = self._slots, {}
        keep = keep or not self._is_ours()
        for slot in () if keep else slots.values():
            await asyncio.to_thread(slot.remove)
        await asyncio.to_thread(self._end, keep)

    def _end(self, keep: bool) -> None:
        lock, self._lock = self._lock, None
        if lock is None:
            return
        self._objects.close()
        self._trash.close()
        if not keep:
            removed(self._place)
        os.close(lock)

    def _is_ours(self) -> bool:
        """Whether the place is still the folder that was made; a link that somebody put for the trash goes."""
        try:
            ours = os.path.samestat(self._place.lstat(), self._state)
        except OSError:
            return False
        trash = self._place / "trash"
        if ours and not is_folder(trash):
            trash.unlink(missing_ok=True)
            trash.mkdir(mode=0o700)
        return ours

    def _slot(self, lane: int, kind: str = "") -> Slot:
        name = f"{lane}{kind}"
        if name not in self._slots:
            self._slots[name] = Slot(self._place / name, self._trash, self._objects.read)
        return self._slots[name]
