"""What leaves a study: a patch, a branch of the user's repository, or files written into the user's folder.

The only part that writes what is the user's, when asked to: all of a change, or nothing.
"""

import functools
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from metaloop.adapters.workspace.base import FILE, FOREIGN, PROGRAM, Base, Entry, layout, overlaid, parents
from metaloop.adapters.workspace.files import content
from metaloop.adapters.workspace.git import Git, GitSaidNo, bare, blob, checkout, common, configured, contents
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
    root: Path,
    repo: Path,
    base: Base,
    overlay: Mapping[str, str],
    *,
    name: str,
    message: str,
    author: str = "metaloop <metaloop>",
) -> str:
    """Makes a branch in the user's repository: the overlay on top of the commit that is HEAD now. Says its commit.

    Files are as git would have committed them: with the ends of lines that the user's attributes and settings say.
    Writes objects and one new reference: no working tree, index, HEAD, reflog, hook or filter. Raises UsageError where
    there is no repository or commit, where the name is taken, and where a file is not in that commit as it was in the
    base.
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
        new = _kept(found[0], head, repo, was, {path: data for path, (_, data) in files.items()})
        _unless_moved(f"{root}: HEAD", [path for path in files if path not in new])
        tree = _tree(found[0], head, {path: (files[path][0].mode, data) for path, data in new.items()})
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


def _kept(
    git_dir: Path, head: str, repo: Path, was: Mapping[str, Entry | None], new: Mapping[str, bytes]
) -> dict[str, bytes]:
    """What git would keep of new contents: of files that a commit has as they were, and of those it has nothing for.

    One that is there to the letter as it was, though git would not have kept it so, goes on like that.
    """
    git = Git(git_dir)
    there = {path: _committed(git, head, path) for path in new}
    old = {path: entry for path, entry in was.items() if entry is not None and there[path] not in (None, FOREIGN)}
    held = dict(zip(old, contents(repo, [entry.hash for entry in old.values()]), strict=True))
    cleaned = _cleaned(git_dir, head, held).items()
    same = [path for path, data in cleaned if there[path] == Entry(old[path].mode, blob(data), len(data))]
    free = [path for path in new if there[path] is None and was[path] is None]
    kept = _cleaned(git_dir, head, {path: new[path] for path in (*same, *free)})
    return kept | {path: new[path] for path in old if path not in kept and there[path] == old[path]}


def _cleaned(git_dir: Path, head: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    """What git would commit of files on top of a commit: their ends of lines by its attributes and the user's settings.

    By git itself, in a repository of its own that has no filter: not covered is what the user's filters would do.
    """
    if not files:
        return {}
    with tempfile.TemporaryDirectory() as scratch:
        own, tree = Path(scratch, "git"), Path(scratch, "tree")
        bare(git_dir, own)
        (own / "objects/info/alternates").write_bytes(os.fsencode(common(git_dir) / "objects") + b"\n")
        if (attributes := common(git_dir) / "info/attributes").is_file():
            shutil.copyfile(attributes, own / "info/attributes")
        for path, data in files.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(data)
        git = Git(own, work_tree=tree, index=Path(scratch, "index"))
        git("read-tree", head)
        named = b"".join(os.fsencode(path) + b"\0" for path in files)
        how = ("--force", "--pathspec-from-file=-", "--pathspec-file-nul")
        git(*_ends_of_lines(git_dir), "add", *how, given=named, cwd=tree)
        return {path: git("cat-file", "blob", f":{path}") for path in files}


def _ends_of_lines(git_dir: Path) -> tuple[str, ...]:
    """The user's settings for them, as options of git."""
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path(os.environ.get("HOME", "/nonexistent"), ".config"))
    attributes = configured(git_dir, "--type=path", "core.attributesFile") or home / "git/attributes"
    return (
        "-c",
        f"core.autocrlf={configured(git_dir, 'core.autocrlf') or 'false'}",
        "-c",
        f"core.attributesFile={attributes}",
    )


def _unless_free(git: Git, name: str) -> None:
    """Raises UsageError for what is no name of a branch, and for one by which git or people know something already."""
    try:
        if not name.isprintable() or name.startswith("-"):
            raise GitSaidNo
        if git("check-ref-format", "--branch", name).decode().strip() != name:
            raise GitSaidNo  # `@{-1}` and the like: another's
    except GitSaidNo as error:
        raise UsageError(f"expected the name of a branch, found {name!r}") from error
    if name.startswith(("refs/", "heads/", "tags/", "remotes/")):
        raise UsageError(f"expected the name of a branch alone, found {name!r}; leave out {name.partition('/')[0]}/")
    taken = {ref.partition("/")[2].casefold() for ref in _refs(git)}
    if name.casefold() in {"head", "@", *taken} or git("rev-parse", "--verify", "--quiet", name, ok=(0, 1)):
        raise UsageError(
            f"expected the name of a new branch, found that {name!r} exists or means something else; choose another"
        )


def _refs(git: Git) -> list[str]:
    """Branches and tags, as `heads/NAME` and `tags/NAME`."""
    listed = git("for-each-ref", "--format=%(refname:lstrip=1)", "refs/heads", "refs/tags")
    return os.fsdecode(listed).splitlines()


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
