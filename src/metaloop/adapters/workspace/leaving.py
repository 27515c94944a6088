"""What leaves a study: a patch, a branch of the user's repository, or files written into the user's folder.

The only part that writes what is the user's, when asked to: all of a change, or nothing.
"""

import functools
import os
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from metaloop.adapters.workspace.base import FILE, FOREIGN, PROGRAM, Base, Entry, layout, overlaid, parents
from metaloop.adapters.workspace.files import content
from metaloop.adapters.workspace.git import Git, GitSaidNo, blob, checkout
from metaloop.errors import Damaged, UsageError


def patch(repo: Path, base: Base, overlay: Mapping[str, str]) -> bytes:
    """What the overlay changes, as a text diff that `git apply` takes, of files that are no text too."""
    files = overlaid(base, layout(base), overlay)
    try:
        tree = _tree(repo, base.tree, {path: (entry.mode, data) for path, (entry, data) in files.items()})
        how = ("--patch", "--text", "--no-renames", "--no-ext-diff", "--no-textconv", "--full-index")
        return Git(repo)("diff-tree", *how, base.tree, tree)
    except GitSaidNo as error:
        raise Damaged(f"{repo}: cannot make a patch: {error}") from error


def export_branch(
    root: Path, base: Base, overlay: Mapping[str, str], *, name: str, message: str, author: str = "metaloop <metaloop>"
) -> str:
    """Makes a branch in the user's repository: the overlay on top of the commit that is HEAD now. Says its commit.

    Writes objects and one new reference: no working tree, index, HEAD, reflog or hook. Raises UsageError where there is
    no repository or commit, where the branch exists, and where a file is not in that commit as it was in the base.
    """
    if (found := checkout(root := root.resolve())) is None:
        raise UsageError(f"{root}: expected a git repository to make a branch in, found none")
    git, prefix = Git(found[0]), root.relative_to(found[1])
    files = {(prefix / path).as_posix(): made for path, made in overlaid(base, layout(base), overlay).items()}
    try:
        _unless_free(git, name)
        head = git("rev-parse", "--verify", "--quiet", "HEAD^{commit}", ok=(0, 1)).decode().strip()
        if not head:
            raise UsageError(f"{root}: expected a commit to build on, found none; commit the project first")
        was = {path: base.files.get(os.path.relpath(path, prefix)) for path in files}
        moved = [path for path in files if was[path] != _committed(git, head, path)]
        _unless_moved(f"{root}: HEAD", moved)
        tree = _tree(found[0], head, {path: (entry.mode, data) for path, (entry, data) in files.items()})
        git.sign(author)
        said = message.encode(errors="replace")
        commit = git("commit-tree", "--no-gpg-sign", "-p", head, tree, given=said).decode().strip()
        git("update-ref", "--no-deref", f"refs/heads/{name}", commit, "0" * len(commit))
    except GitSaidNo as error:
        raise UsageError(f"{root}: cannot make the branch {name!r}: {error}") from error
    return commit


def apply_to(root: Path, base: Base, overlay: Mapping[str, str]) -> list[str]:
    """Writes what the overlay changes into the user's folder: each file at once, and all of them or none.

    Raises UsageError where a file is not as it was in the base. The user's modes are kept. Power that fails on the way
    is not covered: then some files are written, and what they were is beside them, as `.NAME.metaloop-old`.
    """
    root = root.resolve()
    files = overlaid(base, layout(base), overlay)
    _unless_moved(str(root), [path for path in files if base.files.get(path) != _found(root, path)])
    undo = list[Callable[[], object]]()
    try:
        for path, (entry, data) in files.items():
            _staged(root, path, entry, data, undo)
        for path in files:
            _swapped(root / path, undo)
    except OSError as error:
        for step in reversed(undo):
            with suppress(OSError):
                step()
        why = f"{error.strerror}: {error.filename!r}"
        raise UsageError(f"{root}: cannot write what was found; nothing was changed: {why}") from error
    for path in files:
        _beside(root / path, "old").unlink(missing_ok=True)
    return sorted(files)


def _tree(git_dir: Path, start: str, files: Mapping[str, tuple[str, bytes]]) -> str:
    """A tree with these files put in, by an index of its own. Only objects are written."""
    with tempfile.TemporaryDirectory() as scratch:
        git = Git(git_dir, index=Path(scratch, "index"))
        git("read-tree", start)
        lines = []
        for path, (mode, data) in files.items():
            name = git("hash-object", "-w", "--stdin", given=data).strip()
            lines.append(b"%b %b\t%b\0" % (mode.encode(), name, os.fsencode(path)))
        git("update-index", "-z", "--index-info", given=b"".join(lines))
        return git("write-tree").decode().strip()


def _unless_free(git: Git, name: str) -> None:
    try:
        if not name.isprintable() or name.startswith("-"):
            raise GitSaidNo
        git("check-ref-format", f"refs/heads/{name}")
    except GitSaidNo as error:
        raise UsageError(f"expected the name of a branch, found {name!r}") from error
    if git("for-each-ref", f"refs/heads/{name}"):
        raise UsageError(f"expected the name of a new branch, found that {name!r} exists; choose another")


def _unless_moved(where: str, paths: Sequence[str]) -> None:
    if paths:
        named = ", ".join(map(repr, paths[:5])) + (f" and {len(paths) - 5} more" if len(paths) > 5 else "")
        raise UsageError(f"{where}: expected files as they were when the study began, found others: {named}")


def _committed(git: Git, commit: str, path: str) -> Entry | None:
    """What a commit has at a path. The hash is of the content, whatever the repository hashes with."""
    if any(above and _in_tree(git, commit, above)[0] not in ("", "040000") for above in parents(path)):
        return FOREIGN  # below a file or a submodule, which would have to go for it
    mode, kind, name = _in_tree(git, commit, path)
    if not mode:
        return None
    data = git("cat-file", "blob", name) if kind == "blob" else b""
    return Entry(mode, blob(data), len(data))


def _in_tree(git: Git, commit: str, path: str) -> tuple[str, str, str]:
    line = git("ls-tree", "-z", "--full-tree", commit, "--", path)
    mode, kind, name = line.partition(b"\t")[0].decode().split() if line else ("", "", "")
    return mode, kind, name


def _found(root: Path, path: str) -> Entry | None:
    """A file of the user's folder; None where there is nothing. One behind a link is none that the base could have."""
    behind = (root / path).parent.resolve() != (root / path).parent
    try:
        state = (root / path).lstat()
        if behind or not stat.S_ISREG(state.st_mode):
            return FOREIGN
        data = content(root / path)
    except (FileNotFoundError, NotADirectoryError):
        return FOREIGN if behind else None
    except OSError as error:
        raise UsageError(f"{root / path}: cannot be read: {error.strerror}") from error
    return Entry(PROGRAM if state.st_mode & 0o100 else FILE, blob(data), len(data))


def _beside(path: Path, what: str) -> Path:
    return path.with_name(f".{path.name}.metaloop-{what}")


def _staged(root: Path, path: str, entry: Entry, data: bytes, undo: list[Callable[[], object]]) -> None:
    """The new content beside the file, and the old one as a second link to it: so that little can go wrong later."""
    for folder in reversed([*parents(path)][:-1]):
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
