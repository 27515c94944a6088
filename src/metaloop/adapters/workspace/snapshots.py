"""The base of a study: what the user's folder holds now, captured in a private repository, and read back from it.

    REPO/         private bare repository of a study: the base, as the one commit of `refs/heads/base`
    REPO.half/    one that is being made; left by a controller that was killed, removed by the next

The user's folder is only read. Not covered: empty folders (git has none), extended attributes and ACLs of the user's
files, the user's own ignore file (`core.excludesFile`).
"""

# A link's target is a text, kept to the letter.
# ruff: noqa: PTH115

import hashlib
import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from metaloop.adapters.workspace.base import FILE, JUNK, LINK, NEVER, PROGRAM, Base, Entry, parents
from metaloop.adapters.workspace.files import FOLDER, content
from metaloop.adapters.workspace.git import Git, GitSaidNo, bare, checkout, common, contents, first_line
from metaloop.adapters.workspace.links import links, redirected
from metaloop.errors import Damaged, UsageError

MAX_FILES, MAX_BYTES = 200_000, 2 << 30
"""Files that a snapshot holds at most, and bytes of them all."""

LONG_S = 1800.0
"""Seconds that git may take for as much as a snapshot may hold."""


def snapshot(root: Path, repo: Path, *, ignore: Sequence[Path] = (), linking: bool = True) -> Base:
    """Captures the folder as it is on the disk now, in a new private repository, durably. The folder is only read.

    In a git repository: what git tracks, and what is neither tracked nor ignored (by `.gitignore` files or the
    repository's `info/exclude`); of submodules and nested repositories the same, as plain files. Elsewhere: every
    regular file and link. Never: `.git`, `.metaloop`, sockets, pipes and devices, what is in `ignore`, and, unless git
    tracks them, `__pycache__`, `.venv` and `node_modules`. With `linking`, what git ignores, and `.venv` and
    `node_modules` at the top, are in a slot as links to the originals (`Base.linked`), but for caches and build outputs
    (`OUTPUTS`, `*.pyc`), by which one trial would see another's. A relative path in `ignore` begins at `root`.
    """
    root, repo = root.resolve(), repo.absolute()
    if repo.exists():
        raise UsageError(f"{repo}: expected no snapshot yet, found one; open it, or remove it to take another")
    half = repo.with_name(f"{repo.name}.half")
    shutil.rmtree(half, ignore_errors=True)
    half.mkdir(parents=True, mode=0o700)
    try:
        _made(root, half, {os.path.relpath(path.resolve(), root) for path in (root / each for each in ignore)}, linking)
        half.rename(repo)
        _synced(repo.parent)
    except GitSaidNo as error:
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
        git = Git(repo)
        commit = git("cat-file", "commit", "refs/heads/base")
        name = hashlib.sha1(b"commit %d\0" % len(commit) + commit, usedforsecurity=False).hexdigest()
        if git("rev-parse", "refs/heads/base").decode().strip() != name:
            raise Damaged(f"{damage}: its commit was changed")
        head, _, message = commit.partition(b"\n\n")
        told = json.loads(message)
        listed = git("ls-tree", "-r", "-l", "-z", "--full-tree", name)
        files = dict(map(_entry, listed.split(b"\0")[:-1]))
        said = map(os.fsdecode, contents(repo, [files[path].hash for path in told["outside"]]))
        outside = dict(zip(told["outside"], said, strict=True))
        return Base(head.split()[1].decode(), files, outside, linked=told["linked"])
    except GitSaidNo as error:
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


def _made(root: Path, half: Path, left_out: set[str], linking: bool) -> None:
    """Fills the new repository. One commit holds all: the tree, and in its message what a tree cannot say."""
    Git(half)("init", "--quiet", "--bare", "--template=", "--initial-branch=base")
    scratch = half / "scratch"
    taken, ignored = _listed(root, scratch / "reading")
    shutil.rmtree(scratch, ignore_errors=True)
    found = _on_disk(root, (path for path in taken if not _is_left_out(path, left_out)))
    _within_caps(root, found)
    told = {
        "outside": [path for path, state in found.items() if _leads_out(root, path, state)],
        "linked": links(root, ignored if linking else [], found, left_out)[0],
    }
    _import(root, half, found, json.dumps(told).encode())


def relinked(root: Path, base: Base, *, ignore: Sequence[Path] = ()) -> Base:
    """The base with links to what git ignores in the folder now: data may have come since, or moved. What leads out of
    the folder leads to where it does from there.
    """
    root = root.resolve()
    base = replace(base, redirected=redirected(root, base.outside, base.files))
    if not root.is_dir():
        return base
    with tempfile.TemporaryDirectory() as scratch:
        _, ignored = _listed(root, Path(scratch, "reading"), base.files)
    left_out = {os.path.relpath(path.resolve(), root) for path in (root / each for each in ignore)}
    linked, unlinked = links(root, ignored, base.files, left_out)
    return replace(base, linked=linked, unlinked=unlinked)


def _is_left_out(path: str, left_out: set[str]) -> bool:
    return (
        not NEVER.isdisjoint(path.split("/")) or path in left_out or any(above in left_out for above in parents(path))
    )


def _listed(root: Path, scratch: Path, files: Collection[str] | None = None) -> tuple[list[str], list[str]]:
    """Files below a folder, by their names in it; and what is ignored: a folder as one, unless it has some of `files`,
    which are otherwise those.
    """
    if (found := checkout(root)) is not None:
        git_dir, top = found
        listed = _by_git(root, _reading(git_dir, scratch), top, files)
        if listed[0] or root == top:
            return listed  # otherwise all of the folder is ignored by a repository around it
    return _walked(root)


def _reading(git_dir: Path, scratch: Path) -> Path:
    """A git directory with a copy of the user's index, and no object: git stamps even what it only reads."""
    shutil.rmtree(scratch, ignore_errors=True)
    bare(git_dir, scratch)
    for copied in (git_dir / "index", *git_dir.glob("sharedindex.*"), common(git_dir) / "info/exclude"):
        if copied.is_file():
            where = "info/exclude" if copied.name == "exclude" else copied.name
            shutil.copyfile(copied, scratch / where)
    return scratch


def _by_git(root: Path, reading: Path, top: Path, files: Collection[str] | None) -> tuple[list[str], list[str]]:
    git = Git(reading, work_tree=top)
    index = reading / "index"
    sparse = ("--sparse",) if index.exists() and b"sdir" in index.read_bytes() else ()  # it names folders, not files
    listed, complaint = git.both(
        "ls-files", "-z", "--others", "--exclude-standard", *sparse, "--cached", "-t", cwd=root
    )
    if b"could not open directory" in complaint:
        raise UsageError(f"{root}: {first_line(complaint)}; make it readable, or have git ignore it")
    taken, left, nested = list[str](), list[str](), list[str]()
    for line in sorted(set(map(os.fsdecode, listed.split(b"\0")[:-1]))):
        tag, path = line[0], line[2:].rstrip("/")
        junk = next((place for place in (*reversed([*parents(path)]), path) if place.rpartition("/")[2] in JUNK), None)
        if tag == "?" and junk is not None:
            left.append(junk)
        elif (root / path).is_dir() and not (root / path).is_symlink():
            nested.append(path)
        else:
            taken.append(path)
    own, inner = _divided(taken if files is None else files, nested)
    left += _ignored(root, reading, top, own)
    for path in nested:
        found = _nested(root / path, reading, None if files is None else inner[path])
        for names, within in zip((taken, left), found, strict=True):
            names += [f"{path}/{below}" for below in within]
    return taken, sorted(set(left))


def _divided(files: Iterable[str], nested: Iterable[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Files that are in no repository within, and those that are in each, by their names there."""
    own, inner = list[str](), {path: list[str]() for path in nested}
    for path in files:
        within = next((above for above in parents(path) if above in inner), None)
        if within is not None:
            inner[within].append(path[len(within) + 1 :])
        elif path not in inner:
            own.append(path)
    return own, inner


def _ignored(root: Path, reading: Path, top: Path, files: Iterable[str]) -> list[str]:
    """By an index that has these files alone: git looks for what it ignores only into folders of which it has some."""
    git = Git(reading, work_tree=top, index=reading / "known")
    name, prefix = git("hash-object", "--stdin").strip(), root.relative_to(top)
    lines = [b"100644 %b\t%b\0" % (name, os.fsencode(prefix / path)) for path in files]
    loose = ("-c", "core.protectNTFS=false", "-c", "core.protectHFS=false")
    git(*loose, "update-index", "-z", "--index-info", given=b"".join(lines))
    asked = ("ls-files", "-z", "--others", "--exclude-standard", "--ignored", "--directory", "--no-empty-directory")
    return [path.rstrip("/") for path in map(os.fsdecode, git(*asked, cwd=root).split(b"\0")[:-1])]


def _nested(folder: Path, scratch: Path, files: Collection[str] | None) -> tuple[list[str], list[str]]:
    """The same of a submodule or of a repository within: by its own rules, where it has a repository."""
    own = os.path.lexists(folder / ".git")
    return _listed(folder, scratch.with_name(f"{scratch.name}+"), files) if own else _walked(folder)


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
    return sorted(found), sorted(junk)


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
        argv = Git(half).argv("fast-import", "--quiet", "--done", "--date-format=raw")
        process = subprocess.Popen(argv, env=Git(half).env, cwd="/", stdin=subprocess.PIPE, stdout=said, stderr=said)
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
            raise GitSaidNo(first_line(said.read()) or f"git fast-import ended with {code}")


def _stream(root: Path, found: Mapping[str, os.stat_result], message: bytes) -> Iterator[bytes]:
    lines = []
    for number, (path, state) in enumerate(found.items(), start=1):
        is_link = stat.S_ISLNK(state.st_mode)
        data = os.fsencode(os.readlink(root / path)) if is_link else content(root / path)
        mode = LINK if is_link else PROGRAM if state.st_mode & 0o100 else FILE
        yield b"blob\nmark :%d\ndata %d\n%b\n" % (number, len(data), data)
        lines.append(b"M %s :%d %b\n" % (mode.encode(), number, _quoted(os.fsencode(path))))
    yield b"commit refs/heads/base\ncommitter metaloop <metaloop> 0 +0000\ndata %d\n%b\n" % (len(message), message)
    yield from lines
    yield b"done\n"


def _quoted(path: bytes) -> bytes:
    return b'"' + path.replace(b"\\", b"\\\\").replace(b'"', b'\\"').replace(b"\n", b"\\n") + b'"'
