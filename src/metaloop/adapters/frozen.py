"""Files that may not change while a study lasts."""

import hashlib
from collections.abc import Mapping
from pathlib import Path


class FrozenFiles:
    """The files under `root` with the hashes that they have to have. Only what was touched is read again."""

    def __init__(self, root: Path, hashes: Mapping[str, str]) -> None:
        self._root, self._hashes = root, hashes
        self._seen: dict[str, tuple[int, int, int]] = {}

    def changed(self) -> str:
        """What is not what it was, in words; empty where everything is."""
        for name, expected in self._hashes.items():
            try:
                found = (self._root / name).stat()
                mark = (found.st_mtime_ns, found.st_size, found.st_ino)
                if self._seen.get(name) == mark:
                    continue
                with (self._root / name).open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != expected:
                        return f"{self._root / name}: a frozen file was changed"
            except OSError as error:
                return f"{self._root / name}: a frozen file cannot be read: {error.strerror}"
            self._seen[name] = mark
        return ""
