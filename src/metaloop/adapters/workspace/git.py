"""How git is called: without the user's configuration, hooks, filters and attributes, network or prompt.

Knows what git names a content, where a folder's repository is, and how contents come out of the private one.
"""

import hashlib
import itertools
import os
import select
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from metaloop.adapters.host import trusted
from metaloop.errors import Damaged, ExecutorError, UsageError

PATIENCE_S = 60.0
"""Seconds that git may take for one answer."""

BATCH = 500
"""Hashes asked for at once, at most: they fit into a pipe, so that neither side waits for the other."""

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
"""Settings that hold whatever a repository says."""


def blob(data: bytes) -> str:
    """As git names a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


class Git:
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
        """What it printed, and what it complained of. Raises GitSaidNo."""
        try:
            done = subprocess.run(
                self.argv(*args), env=self.env, cwd=cwd or "/", input=given, capture_output=True, timeout=PATIENCE_S
            )
        except subprocess.TimeoutExpired as error:
            raise GitSaidNo(f"git {args[0]} took longer than {PATIENCE_S:g} s") from error
        if done.returncode not in ok:
            raise GitSaidNo(first_line(done.stderr) or f"git {args[0]} ended with {done.returncode}")
        return done.stdout, done.stderr


class GitSaidNo(Exception):
    """git ended with an error; the text is the first line of what it said."""


def first_line(said: bytes) -> str:
    return said.decode(errors="backslashreplace").strip().partition("\n")[0]


def _program() -> str:
    if not (found := trusted("git")):
        raise UsageError("expected git on PATH, found none: install it, on Debian or Ubuntu: apt install git")
    return found


def checkout(root: Path) -> tuple[Path, Path] | None:
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


def common(git_dir: Path) -> Path:
    """What a git directory has in common with those of other working trees of its repository."""
    file = git_dir / "commondir"
    return git_dir / file.read_text().strip() if file.exists() else git_dir


def bare(git_dir: Path, scratch: Path) -> None:
    """Makes a git directory that hashes as the user's does, and has nothing else of it."""
    for folder in ("refs", "objects/info", "info"):
        (scratch / folder).mkdir(parents=True)
    (scratch / "HEAD").write_text("ref: refs/heads/base\n")
    asked = ("config", f"--file={common(git_dir) / 'config'}", "--get", "extensions.objectFormat")
    kind = Git(scratch)(*asked, ok=(0, 1)).decode().strip() or "sha1"
    version = int(kind != "sha1")
    extension = f"[extensions]\n\tobjectFormat = {kind}\n" if version else ""
    (scratch / "config").write_text(f"[core]\n\trepositoryFormatVersion = {version}\n{extension}")


def configured(git_dir: Path, *asked: str) -> str:
    """What the user's own configuration says in a repository; nothing that it names is run."""
    kept = ("PATH", "HOME", "XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    argv = [_program(), f"--git-dir={git_dir}", "config", "--get", *asked]
    done = subprocess.run(argv, env=env, cwd="/", capture_output=True, timeout=PATIENCE_S)
    return os.fsdecode(done.stdout).strip() if done.returncode == 0 else ""


def contents(repo: Path, names: Sequence[str]) -> list[bytes]:
    """Contents of a snapshot's files, by git's hash of each. Raises Damaged."""
    objects = Objects(repo)
    try:
        batches = (objects.read(names[at : at + BATCH]) for at in range(0, len(names), BATCH))
        return list(itertools.chain.from_iterable(batches))
    finally:
        objects.close()


class Objects:
    """Contents from the private repository, by one `git cat-file` that is started when first needed."""

    def __init__(self, repo: Path) -> None:
        self._git, self._repo = Git(repo), repo
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


class _Gone(Exception):
    """git went away, or says nothing any more."""


def repository(folder: Path) -> None:
    """Makes a folder a git repository with one commit of all that is in it, for tools that want one."""
    try:
        _committed(folder)
    except GitSaidNo as error:
        raise ExecutorError(f"{folder}: cannot make a repository for the agent: {error}") from error


def _committed(folder: Path) -> None:
    git = Git(folder / ".git", work_tree=folder)
    git("init", "--quiet", "--template=", "--initial-branch=main", cwd=folder)
    git.sign("metaloop <metaloop>")
    git("add", "--all", "--force", cwd=folder)
    git("commit", "--quiet", "--no-verify", "--no-gpg-sign", "--allow-empty", "--message=start", cwd=folder)
