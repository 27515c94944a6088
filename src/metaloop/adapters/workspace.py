"""Directories in which trials of a code study run, each holding exactly one candidate: a base and an overlay.

Knows git, files and folders. Nothing of the user's is written, except by `export_branch` and `apply_to`, which are
asked to. git runs without the user's configuration, hooks, filters and attributes, without a network and without a
prompt, and never in a folder that a trial could write.

    REPO/                private bare repository of a study: the base, as the one commit of `refs/heads/base`
    REPO.half/           one that is being made; left by a controller that was killed, removed by the next
    PLACE/               the slots of a study, outside of the user's checkout
        lock             held by flock while a controller uses them
        LANE/            a slot: the working directory of a trial
        LANE.old/        a folder of it that is being sifted
        LANE.clock       its modification time is the newest that any file of the slot was given
        trash/           what trials left, on its way out

Not covered: empty folders (git has none), extended attributes and ACLs of the user's files, the user's own ignore file
(`core.excludesFile`), file systems that do not stamp changes to within some milliseconds. A process that a trial left
behind could write on: whoever runs the trial kills its whole tree. A slot has no `.git`, but git searches upwards: a
PLACE inside of some checkout shows that one.
"""

# Paths are texts where there are thousands: a Path would cost more than the call.
# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH114, PTH115, PTH116, PTH208, PTH211

import asyncio
import errno
import fcntl
import functools
import hashlib
import itertools
import json
import os
import re
import secrets
import select
import shutil
import stat
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec

from metaloop.errors import Damaged, ExecutorError, StudyBusy, UsageError

FILE, PROGRAM, LINK = "100644", "100755", "120000"
NEVER = frozenset({".git", ".metaloop"})
JUNK = NEVER | {"__pycache__", ".venv", "node_modules"}
CACHES = frozenset({"__pycache__", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox"})
OUTPUTS = CACHES | {"build", "dist", "target", ".ipynb_checkpoints"}
MAX_FILES, MAX_BYTES = 200_000, 2 << 30
EPOCH_S = 1_000_000_000  # modification time of a base's files: in 2001, before anything that a trial makes
PATIENCE_S = 60.0
LONG_S = 1800.0  # for as much as a snapshot may hold
FLOOD = 100  # as much dirt in a folder, and moving the rest out of it is quicker
BATCH = 500  # hashes asked for at once: they fit into a pipe, so that neither side waits for the other
COARSE = 5  # CLOCK_REALTIME_COARSE, by which files are stamped; `time` does not name it
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Entry(msgspec.Struct, frozen=True):
    """A file of a tree: git's mode, git's hash of the content (of the target, for a link), and its bytes."""

    mode: str
    hash: str
    size: int


class Base(msgspec.Struct, frozen=True):
    """What the user's folder held when the study began. Names are what `os.fsdecode` makes of them.

    `outside`: links, kept as such, that lead out of the folder or name a place by an absolute path. `linked`: entries
    at the top that git ignores, with where they are. A slot has a link to each, so what a trial writes there it writes
    to the user's: a sandbox mounts them read-only.
    """

    tree: str
    files: Mapping[str, Entry]
    outside: tuple[str, ...] = ()
    linked: Mapping[str, str] = {}


# ---- git -------------------------------------------------------------------------------------------------------------

_SAFE = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.attributesFile=/dev/null",
    "core.excludesFile=/dev/null",
    "core.autocrlf=false",
    "core.protectHFS=true",
    "core.protectNTFS=true",
    "core.logAllRefUpdates=false",
    "fastimport.unpackLimit=1",  # a pack, which git syncs: it does not sync loose objects
    "i18n.commitEncoding=UTF-8",
    "gc.auto=0",
)


class _GitSaidNo(Exception):
    """git ended with an error; the text is the first line of what it said."""


class _Git:
    """The command line of git over one repository, with an environment made from scratch."""

    def __init__(self, folder: Path, work_tree: Path | None = None, index: Path | None = None) -> None:
        self._folder, self._work_tree = folder, work_tree
        self.env = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": "/nonexistent",
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_LITERAL_PATHSPECS": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ALLOW_PROTOCOL": "none",
        }
        if index is not None:
            self.env["GIT_INDEX_FILE"] = str(index)

    def argv(self, *args: str) -> list[str]:
        safe = [word for setting in _SAFE for word in ("-c", setting)]
        tree = [] if self._work_tree is None else [f"--work-tree={self._work_tree}"]
        return [_program(), f"--git-dir={self._folder}", *tree, *safe, *args]

    def __call__(self, *args: str, given: bytes = b"", cwd: Path | None = None, ok: Sequence[int] = (0,)) -> bytes:
        return self.both(*args, given=given, cwd=cwd, ok=ok)[0]

    def sign(self, author: str) -> None:
        """Commits from here on are by this `Name <address>`."""
        name, _, address = author.removesuffix(">").partition(" <")
        self.env |= {f"GIT_{role}_NAME": name for role in ("AUTHOR", "COMMITTER")}
        self.env |= {f"GIT_{role}_EMAIL": address for role in ("AUTHOR", "COMMITTER")}

    def both(
        self, *args: str, given: bytes = b"", cwd: Path | None = None, ok: Sequence[int] = (0,)
    ) -> tuple[bytes, bytes]:
        """What it printed, and what it complained of. Raises _GitSaidNo."""
        try:
            done = subprocess.run(
                self.argv(*args), env=self.env, cwd=cwd or "/", input=given, capture_output=True, timeout=PATIENCE_S
            )
        except subprocess.TimeoutExpired as error:
            raise _GitSaidNo(f"git {args[0]} took longer than {PATIENCE_S:g} s") from error
        if done.returncode not in ok:
            raise _GitSaidNo(_first_line(done.stderr) or f"git {args[0]} ended with {done.returncode}")
        return done.stdout, done.stderr


def _program() -> str:
    if (found := shutil.which("git")) is None:
        raise UsageError("expected git, found none in PATH; install git to run a study of code")
    return found


def _first_line(said: bytes) -> str:
    return said.decode(errors="backslashreplace").strip().partition("\n")[0]


def blob(data: bytes) -> str:
    """As git names a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


# A layout: each folder with what is in it, parents first; None stands for a folder.
Layout = dict[str, dict[str, Entry | None]]


# ---- overlays --------------------------------------------------------------------------------------------------------


def _overlaid(base: Base, layout: Layout, overlay: Mapping[str, str]) -> dict[str, tuple[Entry, bytes]]:
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


def _refuse(base: Base, layout: Layout, path: str, overlay: Mapping[str, str]) -> None:
    parts = path.split("/")
    if not _encodes(path) or "\0" in path or any(part in ("", ".", "..") for part in parts) or _is_long(parts):
        raise UsageError(f"expected the path of a file inside the project, found {path!r}")
    if any(_is_git(part) or part.casefold() == ".metaloop" for part in parts):
        raise UsageError(f"{path!r}: expected a file of the project, found one of git or of metaloop")
    if parts[0] in base.linked or any(above in base.files or above in overlay for above in _above(path)):
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


def _layout(base: Base) -> Layout:
    made: Layout = {"": {}}
    for path, entry in base.files.items():
        _put(made, path, entry)
    for name, target in base.linked.items():
        made[""][name] = _linked(target)[0]
    return made


def _linked(target: str) -> tuple[Entry, bytes]:
    data = os.fsencode(target)
    return Entry(LINK, blob(data), len(data)), data


def _put(layout: Layout, path: str, entry: Entry | None) -> None:
    folder, _, name = path.rpartition("/")
    if folder not in layout:
        _put(layout, folder, None)
        layout[folder] = {}
    layout[folder][name] = entry


def _laid_out(base: Layout, overlaid: Mapping[str, tuple[Entry, bytes]]) -> Layout:
    """The layout of a candidate. What it shares with the base's is not changed."""
    layout = dict(base)
    for path in overlaid:
        nearest = next(folder for folder in _above(path) if folder in base)
        layout[nearest] = dict(base[nearest])
    for path, (entry, _) in overlaid.items():
        _put(layout, path, entry)
    return layout


def _above(path: str) -> Iterator[str]:
    """The folders that a file is in, the nearest first."""
    while path:
        path = path.rpartition("/")[0]
        yield path


# ---- the base: what the user's folder holds now ----------------------------------------------------------------------


def snapshot(root: Path, repo: Path, *, ignore: Sequence[Path] = (), links: bool = True) -> Base:
    """Captures the folder as it is on the disk now, in a new private repository, durably. The folder is only read.

    In a git repository: what git tracks, and what is neither tracked nor ignored (by `.gitignore` files or the
    repository's `info/exclude`); of submodules and nested repositories the same, as plain files. Elsewhere: every
    regular file and link. Never: `.git`, `.metaloop`, sockets, pipes and devices, what is in `ignore`, and, unless git
    tracks them, `__pycache__`, `.venv` and `node_modules`. With `links`, what git ignores at the top, `.venv` and
    `node_modules` are in a slot as links to the originals (`Base.linked`), but for caches and build outputs
    (`OUTPUTS`, `*.pyc`), by which one trial would see another's. A relative path in `ignore` begins at `root`.
    """
    root, repo = root.resolve(), repo.absolute()
    if repo.exists():
        raise UsageError(f"{repo}: expected no snapshot yet, found one; open it, or remove it to take another")
    half = repo.with_name(f"{repo.name}.half")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True, mode=0o700)
    try:
        _made(root, half, {os.path.relpath(path.resolve(), root) for path in (root / each for each in ignore)}, links)
        half.rename(repo)
        _synced(repo.parent)
    except _GitSaidNo as error:
        raise UsageError(f"{root}: cannot take a snapshot: {error}") from error
    except OSError as error:
        raise UsageError(f"{root}: cannot take a snapshot: {error.strerror}: {error.filename!r}") from error
    finally:
        shutil.rmtree(half, ignore_errors=True)
    return opened(repo)


def opened(repo: Path) -> Base:
    """The base that `snapshot` made, from its repository alone. Raises Damaged where that is not what was written."""
    damage = f"{repo}: expected the snapshot of a study, found none that is whole"
    try:
        git = _Git(repo)
        commit = git("cat-file", "commit", "refs/heads/base")
        name = hashlib.sha1(b"commit %d\0" % len(commit) + commit, usedforsecurity=False).hexdigest()
        if git("rev-parse", "refs/heads/base").decode().strip() != name:
            raise Damaged(f"{damage}: its commit was changed")
        head, _, message = commit.partition(b"\n\n")
        told = json.loads(message)
        listed = git("ls-tree", "-r", "-l", "-z", "--full-tree", name)
        files = dict(map(_entry, listed.split(b"\0")[:-1]))
        return Base(head.split()[1].decode(), files, tuple(told["outside"]), told["linked"])
    except _GitSaidNo as error:
        raise Damaged(f"{damage}: {error}") from error
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise Damaged(f"{damage}: {error!r}") from error


def _synced(folder: Path) -> None:
    fd = os.open(folder, FOLDER)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _entry(line: bytes) -> tuple[str, Entry]:
    about, _, path = line.partition(b"\t")
    mode, _, name, size = about.decode().split()
    return os.fsdecode(path), Entry(mode, name, int(size))


def _made(root: Path, half: Path, left_out: set[str], links: bool) -> None:
    """Fills the new repository. One commit holds all: the tree, and in its message what a tree cannot say."""
    _Git(half)("init", "--quiet", "--bare", "--template=", "--initial-branch=base")
    scratch = half / "scratch"
    taken, ignored = _listed(root, scratch / "reading")
    shutil.rmtree(scratch, ignore_errors=True)
    found = _on_disk(root, (path for path in taken if not _is_left_out(path, left_out)))
    _within_caps(root, found)
    top = {path.partition("/")[0] for path in found}
    linked = [name for name in ignored if links and name not in top and _may_link(root, name, left_out)]
    told = {
        "outside": [path for path, state in found.items() if _leads_out(root, path, state)],
        "linked": {name: str(root / name) for name in linked},
    }
    _import(root, half, found, json.dumps(told).encode())


def _is_left_out(path: str, left_out: set[str]) -> bool:
    return not NEVER.isdisjoint(path.split("/")) or path in left_out or any(above in left_out for above in _above(path))


def _may_link(root: Path, name: str, left_out: set[str]) -> bool:
    inside = any(path == name or path.startswith(f"{name}/") for path in left_out)
    caches = name in NEVER | OUTPUTS or name.endswith((".pyc", ".pyo"))
    return not inside and not caches and (root / name).exists()


def _listed(root: Path, scratch: Path) -> tuple[list[str], list[str]]:
    """Files below a folder, by their names in it; and what is there at the top and ignored."""
    if (found := _checkout(root)) is not None:
        git_dir, top = found
        listed = _by_git(root, _reading(git_dir, scratch), top)
        if listed[0] or root == top:
            return listed  # otherwise all of the folder is ignored by a repository around it
    return _walked(root)


def _checkout(root: Path) -> tuple[Path, Path] | None:
    """The git directory that a folder belongs to, and the top of its working tree."""
    for folder in (root, *root.parents):
        git = folder / ".git"
        if git.is_file():
            named = git.read_bytes().removeprefix(b"gitdir:").strip()
            there = folder / os.fsdecode(named)
            if not (there / "HEAD").exists():
                raise UsageError(f"{git}: expected it to name a repository, found none at {there}; repair or remove it")
            return there.resolve(), folder
        if os.path.lexists(git / "HEAD"):
            return git.resolve(), folder
    return None


def _reading(git_dir: Path, scratch: Path) -> Path:
    """A git directory with a copy of the user's index, and no object: git stamps even what it only reads."""
    shutil.rmtree(scratch, ignore_errors=True)
    common_file = git_dir / "commondir"
    common = git_dir / common_file.read_text().strip() if common_file.exists() else git_dir
    for folder in ("refs", "objects", "info"):
        (scratch / folder).mkdir(parents=True)
    (scratch / "HEAD").write_text("ref: refs/heads/base\n")
    for copied in (git_dir / "index", *git_dir.glob("sharedindex.*"), common / "info/exclude"):
        if copied.is_file():
            where = "info/exclude" if copied.name == "exclude" else copied.name
            shutil.copyfile(copied, scratch / where)
    asked = ("config", f"--file={common / 'config'}", "--get", "extensions.objectFormat")
    kind = _Git(scratch)(*asked, ok=(0, 1)).decode().strip() or "sha1"
    version = int(kind != "sha1")
    extension = f"[extensions]\n\tobjectFormat = {kind}\n" if version else ""
    (scratch / "config").write_text(f"[core]\n\trepositoryFormatVersion = {version}\n{extension}")
    return scratch


def _by_git(root: Path, reading: Path, top: Path) -> tuple[list[str], list[str]]:
    git = _Git(reading, work_tree=top)
    listing = ("ls-files", "-z", "--others", "--exclude-standard")
    index = reading / "index"
    sparse = ("--sparse",) if index.exists() and b"sdir" in index.read_bytes() else ()  # it names folders, not files
    listed, complaint = git.both(*listing, *sparse, "--cached", "-t", cwd=root)
    if b"could not open directory" in complaint:
        raise UsageError(f"{root}: {_first_line(complaint)}; make it readable, or have git ignore it")
    ignored = git(*listing, "--ignored", "--directory", "--no-empty-directory", cwd=root)
    tops = {name.rstrip("/") for name in map(os.fsdecode, ignored.split(b"\0")[:-1])}
    taken = []
    for line in sorted(set(map(os.fsdecode, listed.split(b"\0")[:-1]))):
        tag, path = line[0], line[2:].rstrip("/")
        junk = next((place for place in (*reversed([*_above(path)]), path) if place.rpartition("/")[2] in JUNK), None)
        if tag == "?" and junk is not None:
            tops.add(junk)
        elif (root / path).is_dir() and not (root / path).is_symlink():
            taken += [f"{path}/{below}" for below in _nested(root / path, reading)]
        else:
            taken.append(path)
    return taken, sorted(name for name in tops if "/" not in name)


def _nested(folder: Path, scratch: Path) -> list[str]:
    """The files of a submodule or of a repository within: by its own rules, where it has a repository."""
    own = os.path.lexists(folder / ".git")
    return (_listed(folder, scratch.with_name(f"{scratch.name}+")) if own else _walked(folder))[0]


def _walked(root: Path) -> tuple[list[str], list[str]]:
    found, waiting, junk = list[str](), [""], set[str]()
    while waiting:
        folder = waiting.pop()
        with os.scandir(root / folder) as entries:
            for entry in entries:
                path = f"{folder}{entry.name}"
                if entry.name in JUNK:
                    junk.add(path)
                elif entry.is_dir(follow_symlinks=False):
                    waiting.append(f"{path}/")
                else:
                    found.append(path)
    return sorted(found), sorted(name for name in junk if "/" not in name)


def _on_disk(root: Path, paths: Iterable[str]) -> dict[str, os.stat_result]:
    """The regular files and links among the paths. What is reached through a link is not below the folder."""
    real = {"": True}

    def is_real(folder: str) -> bool:
        if folder not in real:
            real[folder] = is_real(folder.rpartition("/")[0]) and _is_folder(root / folder)
        return real[folder]

    found = {}
    for path in paths:
        with suppress(FileNotFoundError, NotADirectoryError):
            if is_real(path.rpartition("/")[0]):
                state = (root / path).lstat()
                if stat.S_ISREG(state.st_mode) or stat.S_ISLNK(state.st_mode):
                    found[path] = state
    return found


def _is_folder(path: Path) -> bool:
    return stat.S_ISDIR(path.lstat().st_mode)


def _within_caps(root: Path, found: Mapping[str, os.stat_result]) -> None:
    size = sum(state.st_size for state in found.values())
    if len(found) <= MAX_FILES and size <= MAX_BYTES:
        return
    files, bytes_ = Counter[str](), Counter[str]()
    for path, state in found.items():
        folder = "/".join(path.split("/")[:-1][:2]) or "."
        files[folder] += 1
        bytes_[folder] += state.st_size
    most = files if len(found) > MAX_FILES else bytes_
    largest = ", ".join(f"{name} ({files[name]} files, {bytes_[name] / 1e6:.0f} MB)" for name, _ in most.most_common(3))
    raise UsageError(
        f"{root}: expected at most {MAX_FILES} files and {MAX_BYTES / 1e9:.1f} GB to copy, found {len(found)} and "
        f"{size / 1e9:.1f} GB; the largest folders: {largest}; have git ignore what is no code"
    )


def _leads_out(root: Path, path: str, state: os.stat_result) -> bool:
    if not stat.S_ISLNK(state.st_mode):
        return False
    target = os.path.normpath(Path(path).parent / os.readlink(root / path))
    climbs = target.startswith("/") or target.split("/")[0] == ".."
    return climbs or not Path(os.path.realpath(root / path)).is_relative_to(root)


def _import(root: Path, half: Path, found: Mapping[str, os.stat_result], message: bytes) -> None:
    """All files into one pack, and the commit, by one process."""
    with tempfile.TemporaryFile() as said:
        argv = _Git(half).argv("fast-import", "--quiet", "--done", "--date-format=raw")
        process = subprocess.Popen(argv, env=_Git(half).env, cwd="/", stdin=subprocess.PIPE, stdout=said, stderr=said)
        try:
            with suppress(BrokenPipeError):
                assert process.stdin is not None
                with process.stdin as out:
                    for piece in _stream(root, found, message):
                        out.write(piece)
            code = process.wait(timeout=LONG_S)
        finally:
            process.kill()
            process.wait()
        if code != 0:
            said.seek(0)
            raise _GitSaidNo(_first_line(said.read()) or f"git fast-import ended with {code}")


def _stream(root: Path, found: Mapping[str, os.stat_result], message: bytes) -> Iterator[bytes]:
    lines = []
    for number, (path, state) in enumerate(found.items(), start=1):
        is_link = stat.S_ISLNK(state.st_mode)
        data = os.fsencode(os.readlink(root / path)) if is_link else _content(root / path)
        mode = LINK if is_link else PROGRAM if state.st_mode & 0o100 else FILE
        yield b"blob\nmark :%d\ndata %d\n%b\n" % (number, len(data), data)
        lines.append(b"M %s :%d %b\n" % (mode.encode(), number, _quoted(os.fsencode(path))))
    yield b"commit refs/heads/base\ncommitter metaloop <metaloop> 0 +0000\ndata %d\n%b\n" % (len(message), message)
    yield from lines
    yield b"done\n"


def _quoted(path: bytes) -> bytes:
    return b'"' + path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'


def _content(path: Path) -> bytes:
    """A file's content as it was at one moment."""
    for _ in range(3):
        with open(os.open(path, PLAIN), "rb") as file:
            before = os.fstat(file.fileno())
            data = file.read()
            after = os.fstat(file.fileno())
        if _mark(before) == _mark(after) and len(data) == after.st_size:
            return data
    raise UsageError(f"{path}: expected a file that stays as it is for a moment, found it being written")


def _mark(state: os.stat_result) -> tuple[int, int, int, int, int]:
    """What changes whenever somebody touches a file: nobody can set its ctime back."""
    return state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_mode


# ---- slots -----------------------------------------------------------------------------------------------------------


class Slots:
    """The slots under `place`, by number of lane; one controller at a time.

    Raises StudyBusy where another holds them. What a killed one left goes: its trash and half-made snapshot now, each
    slot when its lane is opened. Until then a slot is not touched: a trial may still run in it.
    """

    def __init__(self, repo: Path, base: Base, place: Path) -> None:
        self._base, self._layout, self._place = base, _layout(base), place.absolute()
        self._lock: int | None = _hold(self._place)
        self._objects, self._trash = _Objects(repo), _Trash(self._place / "trash")
        self._slots: dict[int, _Slot] = {}
        self._links = dict(map(_linked, base.linked.values()))
        shutil.rmtree(repo.with_name(f"{repo.name}.half"), ignore_errors=True)
        self._trash.empty()

    async def open(self, lane: int, overlay: Mapping[str, str]) -> Path:
        """The folder of the lane's slot, which now holds base and overlay and nothing else, whatever was done to it.

        Files of the base have a constant modification time; one whose content is put right or changed gets one that is
        newer, by a second at least, than all that this lane's slot was given before. All have one link and mode 644 or
        755; folders have the constant time and mode 755. Raises UsageError for an overlay that no candidate may have,
        ExecutorError where the slot cannot be made.
        """
        overlaid = _overlaid(self._base, self._layout, overlay)
        slot = self._slot(lane)
        await asyncio.to_thread(slot.open, _laid_out(self._layout, overlaid), self._links | dict(overlaid.values()))
        self._trash.empty()
        return slot.path

    async def adopt(self, lane: int, overlay: Mapping[str, str]) -> Path:
        """Says what a slot held when a controller before us opened it: for `changed`. Nothing is touched."""
        slot = self._slot(lane)
        slot.held = _laid_out(self._layout, _overlaid(self._base, self._layout, overlay))
        return slot.path

    async def changed(self, lane: int, *, files: int = 1000, size: int = 16 << 20) -> dict[str, bytes | None]:
        """The files of a slot that are not as `open` made them, with what they hold; None where one is gone.

        Junk is left out: `JUNK`, caches, `*.pyc`. Modes do not count. No link is followed; a link or pipe that `open`
        did not make is a UsageError, as are more than `files` changes or `size` bytes.
        """
        return await asyncio.to_thread(self._slot(lane).changed, set(self._base.linked), files, size)

    async def close(self, lane: int) -> None:
        """Removes a slot."""
        if (slot := self._slots.pop(lane, None)) is not None:
            await asyncio.to_thread(slot.remove)
            self._trash.empty()

    async def close_all(self, *, keep: bool = False) -> None:
        """Lets go of all. Unless `keep` (trials may still run), the slots are removed, and the place with them.

        Nothing may be opened after; to close twice is harmless.
        """
        slots, self._slots = self._slots, {}
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
            _removed(self._place)
        os.close(lock)

    def _slot(self, lane: int) -> "_Slot":
        if lane not in self._slots:
            self._slots[lane] = _Slot(self._place / str(lane), self._trash, self._objects.read)
        return self._slots[lane]


def sweep(place_root: Path) -> list[Path]:
    """Clears the places under a folder; says which."""
    return [place for place in sorted(place_root.iterdir()) if clear(place)] if place_root.is_dir() else []


def clear(place: Path) -> bool:
    """Removes a place that no controller holds and no process works in; whether there was one."""
    try:
        lock = os.open(place / "lock", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False  # not one of ours
    ours = (place / "trash").is_dir()
    free = ours and _locked(lock) and not _is_inhabited(place.resolve())
    if free:
        _removed(place)
    os.close(lock)
    return free


def _hold(place: Path) -> int:
    """The lock of a place, which is made where it is missing. Who had it before may have removed the file meanwhile."""
    while True:
        try:
            (place / "trash").mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"{place}: cannot keep slots here: {error.strerror}") from error
        if not _locked(lock):
            os.close(lock)
            raise StudyBusy(f"{place}: another controller holds these slots")
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(place / "lock")):
                return lock
        os.close(lock)


def _locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_inhabited(place: Path) -> bool:
    """Whether a process has its working directory there: its keeper may have outlived its controller."""
    slots = {(state.st_dev, state.st_ino) for state in map(os.stat, place.iterdir())}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (process / "cwd").stat()
            if (state.st_dev, state.st_ino) in slots or (process / "cwd").readlink().is_relative_to(place):
                return True
    return False


def _removed(place: Path) -> None:
    """The slots first, the lock last, so that nobody takes what is half gone for whole."""
    trash = _Trash(place / "trash")
    trash.path.mkdir(exist_ok=True)
    for child in place.iterdir():
        if child.name not in ("lock", "trash"):
            trash.take(child)
    trash.empty()
    trash.close()
    with suppress(OSError):
        trash.path.rmdir()
        (place / "lock").unlink()
        place.rmdir()


# One file of a slot as it was made: `_mark` of it, and what it was made from.
Made = tuple[int, int, int, int, int, Entry]


class _Slot:
    """One slot. What is remembered of it may be lost at any moment: then it is made anew."""

    def __init__(self, path: Path, trash: "_Trash", read: Callable[[Sequence[str]], list[bytes]]) -> None:
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
                if tuple(mark) == _mark(os.lstat(path)) and blob(_held(path, entry)) == entry.hash:
                    continue
            del made[folder][name]
        self._unsure = set()

    def _stamp(self) -> int:
        """The modification time for what is written now, in ns."""
        clock = f"{self.path}.clock"
        try:
            seconds = int(os.stat(clock).st_mtime) + 1
        except FileNotFoundError:
            os.close(os.open(clock, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
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
            fd = None if lost else _entered(f"{self.path}/{folder}")
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
                want = wanted.get(name, _FOREIGN)
                if want is None:
                    good = at.is_dir(follow_symlinks=False)
                elif want is _FOREIGN:
                    good = False
                else:
                    s = at.stat(follow_symlinks=False)  # _mark, without a call
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
                    made[name] = (*_mark(os.lstat(f"{path}/{name}")), made[name][5])
                    self._unsure.add((folder, name))
        self._trash.take(old)

    def changed(self, linked: Collection[str], files: int, size: int) -> dict[str, bytes | None]:
        with self._busy:
            if self.held is None:
                raise UsageError(f"{self.path}: expected a slot that was opened, found one that was not")
            try:
                return dict(self._differences(self.held, linked, files, size))
            except OSError as error:
                raise UsageError(f"{error.filename!r}: cannot read what was changed: {error.strerror}") from error

    def _differences(
        self, held: Layout, linked: Collection[str], files: int, size: int
    ) -> Iterator[tuple[str, bytes | None]]:
        waiting, same = [""], set[str]()
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
                data = self._told(path, at.stat(follow_symlinks=False), want, size)
                same.add(path)
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

    def _told(self, path: str, state: os.stat_result, want: Entry | None, size: int) -> bytes | None:
        """What a file holds; None where that is what it held. Raises UsageError for what is none, or too large."""
        folder, _, name = path.rpartition("/")
        made = (self._made or {}).get(folder, {}).get(name)
        if (
            made is not None
            and want is not None
            and made == (*_mark(state), want)
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


_FOREIGN = Entry("", "", 0)


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
        _own(path)
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


def _own(path: str) -> None:
    """Makes a folder ours to read and write again. Anything else, links too, is left as it is."""
    with suppress(OSError):
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.chmod(f"/proc/self/fd/{fd}", 0o700)
        finally:
            os.close(fd)


def _written(path: str, entry: Entry, data: bytes, stamp: int) -> tuple[int, int, int, int, int]:
    """Makes what is not there, and says its mark."""
    if entry.mode == LINK:
        os.symlink(data, os.fsencode(path))
        os.utime(path, ns=(stamp, stamp), follow_symlinks=False)
        return _mark(os.lstat(path))
    mode = 0o755 if entry.mode == PROGRAM else 0o644
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.utime(fd, ns=(stamp, stamp))
        if os.fstat(fd).st_mode != stat.S_IFREG | mode:
            os.fchmod(fd, mode)  # a umask of the user's
        return _mark(os.fstat(fd))
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


class _Trash:
    """What trials left. It comes by a rename, and is deleted by a thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._prefix, self._numbers = secrets.token_hex(4), itertools.count()
        self._thread = ThreadPoolExecutor(1, "trash")
        self._emptying: Future[None] | None = None

    def take(self, path: str | Path) -> None:
        place = f"{self.path}/{self._prefix}-{next(self._numbers)}"
        try:
            os.rename(path, place)
        except PermissionError:  # a folder whose `..` may not be changed
            _own(str(path))
            os.rename(path, place)

    def empty(self) -> None:
        """Soon."""
        if self._emptying is None or self._emptying.done():
            self._emptying = self._thread.submit(self._empty)

    def close(self) -> None:
        """Now: waits until it is empty, but for what cannot be deleted."""
        self._thread.submit(self._empty)
        self._thread.shutdown()

    def _empty(self) -> None:
        hopeless = set[str]()
        with suppress(OSError):
            while left := [name for name in os.listdir(self.path) if name not in hopeless]:
                for name in left:
                    if not self._gone(f"{self.path}/{name}"):
                        hopeless.add(name)

    def _gone(self, path: str) -> bool:
        """Deletes one thing. Folders in it are moved up first: no path gets longer than the system can take."""
        try:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                os.unlink(path)
                return True
            _own(path)
            with os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        self.take(entry.path)
                    else:
                        os.unlink(entry.path)
            os.rmdir(path)
        except OSError:
            return False
        return True


class _Objects:
    """Contents from the private repository, by one `git cat-file` that is started when first needed."""

    def __init__(self, repo: Path) -> None:
        self._git, self._repo = _Git(repo), repo
        self._process: subprocess.Popen[bytes] | None = None
        self._busy = threading.Lock()
        self._buffer = bytearray()

    def read(self, names: Sequence[str]) -> list[bytes]:
        """One content a name, each of them verified; at most BATCH. Raises Damaged."""
        with self._busy:
            try:
                return self._ask(names)
            except _Gone:  # somebody killed it
                self._end()
            try:
                return self._ask(names)
            except _Gone as error:
                self._end()
                raise Damaged(f"{self._repo}: cannot read the snapshot of a study: git gave up") from error

    def close(self) -> None:
        with self._busy:
            self._end()

    def _ask(self, names: Sequence[str]) -> list[bytes]:
        if not names:
            return []
        process = self._started()
        assert process.stdin is not None
        try:
            process.stdin.write("".join(f"{name}\n" for name in names).encode())
            return [self._content(process, name) for name in names]
        except BrokenPipeError as error:
            raise _Gone from error
        except Damaged:
            self._end()  # the rest of the answer is of no use to the next who asks
            raise

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            argv, pipe = self._git.argv("cat-file", "--batch"), subprocess.PIPE
            self._process = subprocess.Popen(
                argv, env=self._git.env, cwd="/", stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0
            )
        return self._process

    def _content(self, process: subprocess.Popen[bytes], name: str) -> bytes:
        while (end := self._buffer.find(b"\n")) < 0:
            self._more(process)
        words = self._taken(end + 1).split()
        data = b""
        if good := len(words) == 3 and words[1] == b"blob":
            while len(self._buffer) <= int(words[2]):
                self._more(process)
            data = self._taken(int(words[2]) + 1)[:-1]
        if not good or blob(data) != name:
            raise Damaged(f"{self._repo}: expected {name}, a file of the study's snapshot, found it missing or changed")
        return data

    def _more(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        read = os.read(process.stdout.fileno(), 1 << 20) if poll.poll(PATIENCE_S * 1000) else b""
        if not read:
            raise _Gone
        self._buffer += read

    def _taken(self, count: int) -> bytes:
        data = bytes(self._buffer[:count])
        del self._buffer[:count]
        return data

    def _end(self) -> None:
        process, self._process = self._process, None
        self._buffer.clear()
        if process is not None:
            process.kill()
            process.communicate()


def contents(repo: Path, names: Sequence[str]) -> list[bytes]:
    """Contents of a snapshot's files, by git's hash of each. Raises Damaged."""
    objects = _Objects(repo)
    try:
        batches = (objects.read(names[at : at + BATCH]) for at in range(0, len(names), BATCH))
        return list(itertools.chain.from_iterable(batches))
    finally:
        objects.close()


class _Gone(Exception):
    """git went away, or says nothing any more."""


def repository(folder: Path) -> None:
    """Makes a folder a git repository with one commit of all that is in it, for tools that want one."""
    git = _Git(folder / ".git", work_tree=folder)
    git("init", "--quiet", "--template=", "--initial-branch=main", cwd=folder)
    git.sign("metaloop <metaloop>")
    git("add", "--all", "--force", cwd=folder)
    git("commit", "--quiet", "--no-verify", "--no-gpg-sign", "--allow-empty", "--message=start", cwd=folder)


# ---- what leaves a study ---------------------------------------------------------------------------------------------


def patch(repo: Path, base: Base, overlay: Mapping[str, str]) -> bytes:
    """What the overlay changes, as a text diff that `git apply` takes, of files that are no text too."""
    overlaid = _overlaid(base, _layout(base), overlay)
    try:
        tree = _tree(repo, base.tree, {path: (entry.mode, data) for path, (entry, data) in overlaid.items()})
        how = ("--patch", "--text", "--no-renames", "--no-ext-diff", "--no-textconv", "--full-index")
        return _Git(repo)("diff-tree", *how, base.tree, tree)
    except _GitSaidNo as error:
        raise Damaged(f"{repo}: cannot make a patch: {error}") from error


def _tree(git_dir: Path, start: str, files: Mapping[str, tuple[str, bytes]]) -> str:
    """A tree with these files put in, by an index of its own. Only objects are written."""
    with tempfile.TemporaryDirectory() as scratch:
        git = _Git(git_dir, index=Path(scratch, "index"))
        git("read-tree", start)
        lines = []
        for path, (mode, data) in files.items():
            name = git("hash-object", "-w", "--stdin", given=data).strip()
            lines.append(b"%b %b\t%b\0" % (mode.encode(), name, os.fsencode(path)))
        git("update-index", "-z", "--index-info", given=b"".join(lines))
        return git("write-tree").decode().strip()


def export_branch(
    root: Path, base: Base, overlay: Mapping[str, str], *, name: str, message: str, author: str = "metaloop <metaloop>"
) -> str:
    """Makes a branch in the user's repository: the overlay on top of the commit that is HEAD now. Says its commit.

    Writes objects and one new reference: no working tree, index, HEAD, reflog or hook. Raises UsageError where there is
    no repository or commit, where the branch exists, and where a file is not in that commit as it was in the base.
    """
    if (found := _checkout(root := root.resolve())) is None:
        raise UsageError(f"{root}: expected a git repository to make a branch in, found none")
    git, prefix = _Git(found[0]), root.relative_to(found[1])
    overlaid = {(prefix / path).as_posix(): made for path, made in _overlaid(base, _layout(base), overlay).items()}
    try:
        _unless_free(git, name)
        head = git("rev-parse", "--verify", "--quiet", "HEAD^{commit}", ok=(0, 1)).decode().strip()
        if not head:
            raise UsageError(f"{root}: expected a commit to build on, found none; commit the project first")
        was = {path: base.files.get(os.path.relpath(path, prefix)) for path in overlaid}
        moved = [path for path in overlaid if was[path] != _committed(git, head, path)]
        _unless_moved(f"{root}: HEAD", moved)
        tree = _tree(found[0], head, {path: (entry.mode, data) for path, (entry, data) in overlaid.items()})
        git.sign(author)
        said = message.encode(errors="replace")
        commit = git("commit-tree", "--no-gpg-sign", "-p", head, tree, given=said).decode().strip()
        git("update-ref", "--no-deref", f"refs/heads/{name}", commit, "0" * len(commit))
    except _GitSaidNo as error:
        raise UsageError(f"{root}: cannot make the branch {name!r}: {error}") from error
    return commit


def apply_to(root: Path, base: Base, overlay: Mapping[str, str]) -> list[str]:
    """Writes what the overlay changes into the user's folder: each file at once, and all of them or none.

    Raises UsageError where a file is not as it was in the base. The user's modes are kept. Power that fails on the way
    is not covered: then some files are written, and what they were is beside them, as `.NAME.metaloop-old`.
    """
    root = root.resolve()
    overlaid = _overlaid(base, _layout(base), overlay)
    _unless_moved(str(root), [path for path in overlaid if base.files.get(path) != _found(root, path)])
    undo = list[Callable[[], object]]()
    try:
        for path, (entry, data) in overlaid.items():
            _staged(root, path, entry, data, undo)
        for path in overlaid:
            _swapped(root / path, undo)
    except OSError as error:
        for step in reversed(undo):
            with suppress(OSError):
                step()
        why = f"{error.strerror}: {error.filename!r}"
        raise UsageError(f"{root}: cannot write what was found; nothing was changed: {why}") from error
    for path in overlaid:
        _beside(root / path, "old").unlink(missing_ok=True)
    return sorted(overlaid)


def _unless_free(git: _Git, name: str) -> None:
    try:
        if not name.isprintable() or name.startswith("-"):
            raise _GitSaidNo
        git("check-ref-format", f"refs/heads/{name}")
    except _GitSaidNo as error:
        raise UsageError(f"expected the name of a branch, found {name!r}") from error
    if git("for-each-ref", f"refs/heads/{name}"):
        raise UsageError(f"expected the name of a new branch, found that {name!r} exists; choose another")


def _unless_moved(where: str, paths: Sequence[str]) -> None:
    if paths:
        named = ", ".join(map(repr, paths[:5])) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
        raise UsageError(f"{where}: expected files as they were when the study began, found others: {named}")


def _committed(git: _Git, commit: str, path: str) -> Entry | None:
    """What a commit has at a path. The hash is of the content, whatever the repository hashes with."""
    if any(above and _in_tree(git, commit, above)[0] not in ("", "040000") for above in _above(path)):
        return _FOREIGN  # below a file or a submodule, which would have to go for it
    mode, kind, name = _in_tree(git, commit, path)
    if not mode:
        return None
    data = git("cat-file", "blob", name) if kind == "blob" else b""
    return Entry(mode, blob(data), len(data))


def _in_tree(git: _Git, commit: str, path: str) -> tuple[str, str, str]:
    line = git("ls-tree", "-z", "--full-tree", commit, "--", path)
    mode, kind, name = line.partition(b"\t")[0].decode().split() if line else ("", "", "")
    return mode, kind, name


def _found(root: Path, path: str) -> Entry | None:
    """A file of the user's folder; None where there is nothing. One behind a link is none that the base could have."""
    behind = (root / path).parent.resolve() != (root / path).parent
    try:
        state = (root / path).lstat()
        if behind or not stat.S_ISREG(state.st_mode):
            return _FOREIGN
        data = _content(root / path)
    except (FileNotFoundError, NotADirectoryError):
        return _FOREIGN if behind else None
    except OSError as error:
        raise UsageError(f"{root / path}: cannot be read: {error.strerror}") from error
    return Entry(PROGRAM if state.st_mode & 0o100 else FILE, blob(data), len(data))


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f".{path.name}.metaloop-{what}")


def _staged(root: Path, path: str, entry: Entry, data: bytes, undo: list[Callable[[], object]]) -> None:
    """The new content beside the file, and the old one as a second link to it: so that little can go wrong later."""
    for folder in reversed([*_above(path)][:-1]):
        if not (root / folder).is_dir():
            (root / folder).mkdir()
            undo.append((root / folder).rmdir)
    new, old = _beside(root / path, "new"), _beside(root / path, "old")
    mode = 0o755 if entry.mode == PROGRAM else 0o644
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    undo.append(functools.partial(new.unlink, missing_ok=True))
    with open(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
        if (root / path).exists():
            os.fchmod(fd, stat.S_IMODE((root / path).stat().st_mode))
    if (root / path).exists():
        old.hardlink_to(root / path)
        undo.append(functools.partial(old.unlink, missing_ok=True))


def _swapped(path: Path, undo: list[Callable[[], object]]) -> None:
    old = _beside(path, "old")
    undo.append(
        functools.partial(old.replace, path) if old.exists() else functools.partial(path.unlink, missing_ok=True)
    )
    _beside(path, "new").replace(path)
