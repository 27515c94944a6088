"""Directories in which versions of a document are checked: each has the version alone, and is made anew for it."""

import asyncio
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from metaloop.errors import UsageError
from metaloop.roles import Bench


class Papers:
    """`roles.Workspace` for a study of a document, under `place`, which is its own."""

    def __init__(self, place: Path) -> None:
        self._place = place.absolute()
        self._overlays = dict[int, Mapping[str, str]]()

    async def open(self, lane: int, overlay: Mapping[str, str]) -> str:
        await asyncio.to_thread(self._write, lane, overlay)
        return await self.adopt(lane, overlay)

    async def adopt(self, lane: int, overlay: Mapping[str, str]) -> str:
        self._overlays[lane] = overlay
        return str(self._folder(lane))

    async def scoring(self, lane: int) -> str:
        raise UsageError(f"expected a study that is scored, found one of a document (lane {lane})")

    def linked(self, *, scoring: bool = False) -> Sequence[str]:  # noqa: ARG002  (nothing links anywhere)
        return ()

    async def touched(self, lane: int, paths: Collection[str]) -> Sequence[str] | None:
        return await asyncio.to_thread(self._touched, lane, paths)

    async def bench(self, lane: int, overlay: Mapping[str, str], brief: str) -> Bench:  # noqa: ARG002
        raise UsageError(f"expected a study of code, found one of a document (lane {lane})")

    async def written(self, lane: int) -> tuple[Mapping[str, str | None], Sequence[str]]:
        raise UsageError(f"expected a study of code, found one of a document (lane {lane})")

    async def close(self) -> None:
        for lane in self._overlays:
            await asyncio.to_thread(shutil.rmtree, self._folder(lane), ignore_errors=True)

    def _folder(self, lane: int) -> Path:
        return self._place / str(lane)

    def _write(self, lane: int, overlay: Mapping[str, str]) -> None:
        shutil.rmtree(self._folder(lane), ignore_errors=True)
        for name, text in overlay.items():
            path = self._folder(lane) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())

    def _touched(self, lane: int, paths: Collection[str]) -> Sequence[str] | None:
        if not self._folder(lane).is_dir():
            return None
        return [
            name
            for name, text in self._overlays[lane].items()
            if name in paths and _content(self._folder(lane) / name) != text.encode()
        ]


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes() if path.is_file() and not path.is_symlink() else None
    except OSError:
        return None
