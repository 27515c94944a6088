"""One slot: a folder that is brought to what a layout says, whatever was done to it, and asked what was done.

Knows one folder and how it was made. Not covered: file systems that do not stamp changes to within some milliseconds.
"""

# Paths are texts where there are thousands: a Path would cost more than the call.
# ruff: noqa: PTH102, PTH104, PTH114, PTH115, PTH208, PTH211

import errno
import os
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from metaloop.adapters.workspace.base import CACHES, FOREIGN, JUNK, LINK, PROGRAM, Entry, Layout
from metaloop.adapters.workspace.files import FOLDER, PLAIN, mark_of, own
from metaloop.adapters.workspace.git import BATCH, blob
from metaloop.adapters.workspace.trash import Trash
from metaloop.errors import ExecutorError, UsageError

EPOCH_S = 1_000_000_000
"""Modification time of a base's files, in s since 1970: in 2001, before anything that a trial makes."""

UNREAD = 1000
"""Names of new files at most that are told without being read."""

FLOOD = 100
"""Entries of a folder that have to go: with more of them, moving the rest out of it is quicker."""

COARSE = 5
"""The number of CLOCK_REALTIME_COARSE, by which files are stamped; `time` does not name it."""

Made = tuple[int, int, int, int, int, Entry]
"""One file of a slot as it was made: `mark_of` it, and what it was made from."""


class Slot:
    """One slot. What is remembered of it may be lost at any moment: then it is made anew."""

    def __init__(self, path: Path, trash: Trash, read: Callable[[Sequence[str]], list[bytes]]) -> None:
        self.path, self._trash, self._read = path, trash, read
        self.held: Layout | None = None  # what `open` made last
        self._made: dict[str, dict[str, Made]] | None = None
        self._unsure = set[tuple[str, str]]()  # written when the last `open` was about to end
        self._busy = threading.Lock()  # a caller may be cancelled while its thread goes on

    def open(self, layout: Layout, texts: Mapping[Entry, bytes]) -> None:
        with self._busy:
            try:
                self._try(layout, texts)
            except OSError:  # something in it cannot even be moved away: all of it can
                try:
                    self._try(layout, texts)
                except OSError as error:
                    why = f"{error.strerror}: {error.filename!r}"
                    raise ExecutorError(f"{self.path}: cannot make the slot of a trial: {why}") from error

    def _try(self, layout: Layout, texts: Mapping[Entry, bytes]) -> None:
        self.held = None
        try:
            self._bring(layout, texts)
        except BaseException:
            self._made = None
            raise
        self.held = layout

    def remove(self) -> None:
        with self._busy:
            self._made = self.held = None
            if os.path.lexists(self.path):
                self._trash.take(self.path)

    def _bring(self, layout: Layout, texts: Mapping[Entry, bytes]) -> None:
        self._trash.path.mkdir(parents=True, exist_ok=True)
        if self._made is None:
            for left in (self.path, f"{self.path}.old"):
                if os.path.lexists(left):
                    self._trash.take(left)
            self._made, self._unsure = {}, set()
        self._settle(self._made)
        stamp = self._stamp()
        found = self._check(layout, layout)
        for _ in range(3):
            if not found.folders:
                break
            self._mend(found, texts, stamp)
            found = self._check(layout, found.folders)
        else:
            raise ExecutorError(f"{self.path}: expected a slot that only we write, found somebody at work in it")
        now = time.clock_gettime_ns(COARSE)
        self._unsure = {at for at in self._unsure if self._made[at[0]][at[1]][3] >= now}

    def _settle(self, made: dict[str, dict[str, Made]]) -> None:
        """Reads what was written in the very tick in which `open` ended: it may have changed without a mark."""
        for folder, name in self._unsure:
            *mark, entry = made[folder][name]
            path = f"{self.path}/{folder}/{name}"
            with suppress(OSError):
                if tuple(mark) == mark_of(os.lstat(path)) and blob(_held(path, entry)) == entry.hash:
                    continue
            del made[folder][name]
        self._unsure = set()

    def _stamp(self) -> int:
        """The modification time for what is written now, in ns."""
        clock = f"{self.path}.clock"
        try:
            state = os.lstat(clock)
            if not stat.S_ISREG(state.st_mode):
                self._trash.take(clock)
                raise FileNotFoundError
            seconds = int(state.st_mtime) + 1
        except FileNotFoundError:
            os.close(os.open(clock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            seconds = EPOCH_S
        stamp = min(max(seconds, EPOCH_S), 2 * EPOCH_S) * 10**9
        os.utime(clock, ns=(stamp, stamp))
        return stamp

    def _check(self, layout: Layout, folders: Iterable[str]) -> "_Found":
        assert self._made is not None
        found = _Found()
        for folder in folders:
            wanted, above = layout[folder], folder.rpartition("/")[0]
            lost = folder != "" and above in found.missing
            fd = None if lost else _entered(f"{self.path}/{folder}".rstrip("/"))  # a slash would follow a link
            if fd is None:
                found.missing[folder] = None
                found.absent(folder, wanted, wanted)
                continue
            try:
                self._compare(fd, folder, wanted, self._made.get(folder, {}), found)
            finally:
                os.close(fd)
        return found

    @staticmethod
    def _compare(
        fd: int, folder: str, wanted: Mapping[str, Entry | None], made: Mapping[str, Made], found: "_Found"
    ) -> None:
        """The hot loop: one `stat` a file."""
        present = 0
        with os.scandir(fd) as entries:
            for at in entries:
                name = at.name
                want = wanted.get(name, FOREIGN)
                if want is None:
                    good = at.is_dir(follow_symlinks=False)
                elif want is FOREIGN:
                    good = False
                else:
                    s = at.stat(follow_symlinks=False)  # mark_of, without a call
                    mark = (s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_mode, want)
                    good = made.get(name) == mark
                if good:
                    present += 1
                else:
                    found.foreign.setdefault(folder, set()).add(name)
                    found.folders[folder] = None
        if present < len(wanted):
            there = set(os.listdir(fd)) - found.foreign.get(folder, set())
            found.absent(folder, wanted, wanted.keys() - there)

    def _mend(self, found: "_Found", texts: Mapping[Entry, bytes], stamp: int) -> None:
        assert self._made is not None
        for folder, names in found.foreign.items():
            if len(names) > FLOOD:
                self._sift(folder, names)
                found.folders.setdefault(folder.rpartition("/")[0])  # its time of modification
            else:
                for name in names:
                    self._trash.take(f"{self.path}/{folder}/{name}")
        for folder in found.missing:
            path = f"{self.path}/{folder}"
            if os.path.lexists(path.rstrip("/")):
                self._trash.take(path.rstrip("/"))
            os.mkdir(path, 0o755)
            self._made[folder] = {}
        for batch in _batches(found.wrong):
            asked = [entry.hash for *_, entry in batch if entry not in texts]
            read = dict(zip(asked, self._read(asked), strict=True))
            for folder, name, entry in batch:
                data = texts[entry] if entry in texts else read[entry.hash]
                mark = _written(f"{self.path}/{folder}/{name}", entry, data, stamp)
                self._made.setdefault(folder, {})[name] = (*mark, entry)
                self._unsure.add((folder, name))

    def _sift(self, folder: str, foreign: Collection[str]) -> None:
        """A folder with little but dirt: the folder goes, and what is good comes back."""
        assert self._made is not None
        path, old, made = f"{self.path}/{folder}".rstrip("/"), f"{self.path}.old", self._made.get(folder, {})
        os.rename(path, old)
        os.mkdir(path, 0o755)
        for name in os.listdir(old):
            if name not in foreign:
                os.rename(f"{old}/{name}", f"{path}/{name}")
                if name in made:  # seen a moment ago; of its mark only the time of the last change is another now
                    made[name] = (*mark_of(os.lstat(f"{path}/{name}")), made[name][5])
                    self._unsure.add((folder, name))
        self._trash.take(old)

    def changed(
        self, linked: Collection[str], files: int, size: int, unread: Callable[[str], bool]
    ) -> dict[str, bytes | None]:
        with self._busy:
            if self.held is None:
                raise UsageError(f"{self.path}: expected a slot that was opened, found one that was not")
            try:
                return dict(self._differences(self.held, linked, files, size, unread))
            except OSError as error:
                raise UsageError(f"{error.filename!r}: cannot read what was changed: {error.strerror}") from error

    def _differences(
        self, held: Layout, linked: Collection[str], files: int, size: int, unread: Callable[[str], bool]
    ) -> Iterator[tuple[str, bytes | None]]:
        waiting, same, litter = [""], set[str](), 0
        while waiting:
            folder = waiting.pop()
            for at in sorted(os.scandir(self.path / folder), key=lambda at: at.name):
                path = f"{folder}/{at.name}".lstrip("/")
                if _is_junk(at.name) or path in linked:
                    continue
                if at.is_dir(follow_symlinks=False):
                    waiting.append(path)
                    continue
                want = held.get(folder, {}).get(at.name)
                same.add(path)
                if unread(path):
                    litter += want is None
                    if (want is None and litter <= UNREAD) or (want and self._is_other(path, at, want)):
                        yield path, b""
                    continue
                data = self._told(path, at.stat(follow_symlinks=False), want, size)
                if data is not None:
                    files, size = files - 1, size - len(data)
                    yield path, data
                if files < 0:
                    raise UsageError(f"{self.path}: too many files were changed; the last is {path!r}")
        for folder, names in held.items():
            for name, entry in names.items():
                path = f"{folder}/{name}".lstrip("/")
                if (
                    entry is not None
                    and path not in same
                    and path not in linked
                    and not any(map(_is_junk, path.split("/")))
                ):
                    yield path, None

    def _is_other(self, path: str, at: "os.DirEntry[str]", want: Entry) -> bool:
        """Whether something stands there that is not what was made."""
        state = at.stat(follow_symlinks=False)
        if stat.S_ISLNK(state.st_mode) != (want.mode == LINK) or not (want.mode == LINK or stat.S_ISREG(state.st_mode)):
            return True
        return blob(_held(self.path / path, want)) != want.hash

    def _told(self, path: str, state: os.stat_result, want: Entry | None, size: int) -> bytes | None:
        """What a file holds; None where that is what it held. Raises UsageError for what is none, or too large."""
        folder, _, name = path.rpartition("/")
        made = (self._made or {}).get(folder, {}).get(name)
        if (
            made is not None
            and want is not None
            and made == (*mark_of(state), want)
            and (folder, name) not in self._unsure
        ):
            return None
        if stat.S_ISLNK(state.st_mode):
            if want is not None and want.mode == LINK and blob(os.fsencode(os.readlink(self.path / path))) == want.hash:
                return None
            raise UsageError(f"{path!r}: expected a regular file, found a link")
        if not stat.S_ISREG(state.st_mode):
            raise UsageError(f"{path!r}: expected a regular file, found something else")
        if state.st_size > size and (want is None or state.st_size != want.size):
            raise UsageError(f"{path!r}: too much was changed; this file has {state.st_size} bytes")
        data = _held(self.path / path, want)
        return None if want is not None and want.mode != LINK and blob(data) == want.hash else data


class _Found:
    """How a slot differs from what it should be: what has to go, which folders to make, which files to write."""

    def __init__(self) -> None:
        self.foreign = dict[str, set[str]]()
        self.missing = dict[str, None]()
        self.wrong = list[tuple[str, str, Entry]]()
        self.folders = dict[str, None]()  # parents first: where something is to be done

    def absent(self, folder: str, wanted: Mapping[str, Entry | None], names: Iterable[str]) -> None:
        self.folders[folder] = None
        self.wrong += [(folder, name, entry) for name in names if (entry := wanted[name]) is not None]


def _entered(path: str) -> int | None:
    """A descriptor of a folder, which is put back to how it was made; None where there is no folder."""
    try:
        fd = os.open(path, FOLDER)
    except PermissionError:
        own(path)
        fd = os.open(path, FOLDER)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise
    state = os.fstat(fd)
    if state.st_mode != stat.S_IFDIR | 0o755:
        os.fchmod(fd, 0o755)
    if state.st_mtime_ns != EPOCH_S * 10**9:
        os.utime(fd, ns=(EPOCH_S * 10**9, EPOCH_S * 10**9))
    with suppress(OSError):  # a file system without them
        for name in os.listxattr(fd):
            if name.startswith(("user.", "system.posix_acl_")):
                os.removexattr(fd, name)
    return fd


def _written(path: str, entry: Entry, data: bytes, stamp: int) -> tuple[int, int, int, int, int]:
    """Makes what is not there, and says its mark."""
    if entry.mode == LINK:
        os.symlink(data, os.fsencode(path))
        os.utime(path, ns=(stamp, stamp), follow_symlinks=False)
        return mark_of(os.lstat(path))
    mode = 0o755 if entry.mode == PROGRAM else 0o644
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.utime(fd, ns=(stamp, stamp))
        if os.fstat(fd).st_mode != stat.S_IFREG | mode:
            os.fchmod(fd, mode)  # a umask of the user's
        return mark_of(os.fstat(fd))
    finally:
        os.close(fd)


def _held(path: str | Path, entry: Entry | None) -> bytes:
    """What a file holds, or where a link leads. Never follows one, never waits for a pipe."""
    if entry is not None and entry.mode == LINK and os.path.islink(path):
        return os.fsencode(os.readlink(path))
    with open(os.open(path, PLAIN), "rb") as file:
        return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else b""


def _is_junk(name: str) -> bool:
    return name in JUNK | CACHES or name.endswith((".pyc", ".pyo"))


def _batches(wrong: Sequence[tuple[str, str, Entry]]) -> Iterator[list[tuple[str, str, Entry]]]:
    """As many as may be in memory at once."""
    batch, size = list[tuple[str, str, Entry]](), 0
    for item in wrong:
        if batch and (len(batch) == BATCH or size + item[2].size > 16 << 20):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item[2].size
    if batch:
        yield batch
