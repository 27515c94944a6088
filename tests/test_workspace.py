"""Slots: each holds exactly one candidate, and nothing of the user's is touched."""

import asyncio
import contextlib
import os
import random
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metaloop.adapters.workspace import leaving, links, places, snapshots, trash
from metaloop.adapters.workspace.base import Entry
from metaloop.adapters.workspace.files import mark_of
from metaloop.adapters.workspace.leaving import apply_to, export_branch, patch
from metaloop.adapters.workspace.places import sweep
from metaloop.adapters.workspace.slot import EPOCH_S
from metaloop.adapters.workspace.slots import Slots
from metaloop.adapters.workspace.snapshots import opened, snapshot
from metaloop.errors import Damaged, ExecutorError, StudyBusy, UsageError
from workshop import until

# ruff: noqa: PTH101, PTH115, PTH208

ME = (
    "-c",
    "user.name=A",
    "-c",
    "user.email=a@b.c",
    "-c",
    "protocol.file.allow=always",
    "-c",
    "init.defaultBranch=main",
)


def git(folder, *args, given=None):
    done = subprocess.run(["git", "-C", folder, *ME, *args], capture_output=True, input=given, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


def write(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def repository(folder, files, ignored=""):
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q")
    write(folder, {**files, **({".gitignore": ignored} if ignored else {})})
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    return folder


TWO = {"main.py": "import other\nprint(other.score())\n", "other.py": "def score():\n    return 1\n"}


def whole(folder):
    """Everything below a folder: kind, mode, size, times and content."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        state = path.lstat()
        held = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path)] = (state.st_mode, state.st_ino, state.st_mtime_ns, held)
    return found


def contents(slot, linked=()):
    """The files of a slot with modes and contents, and its folders; no link is followed."""
    found, waiting = {}, [slot]
    while waiting:
        folder = waiting.pop()
        for path in folder.iterdir():
            name, mode = str(path.relative_to(slot)), path.lstat().st_mode
            if name in linked:
                continue
            if stat.S_ISDIR(mode):
                found[name] = (mode, None)
                waiting.append(path)
            else:
                assert path.lstat().st_nlink == 1
                found[name] = (mode, os.readlink(path) if stat.S_ISLNK(mode) else path.read_bytes())
    return found


def candidate(root, base, overlay):
    """What a slot should hold."""
    found = {}
    for name in {*base.files, *overlay}:
        mode = base.files[name].mode if name in base.files else "100644"
        if mode == "120000":
            found[name] = (0o120777, os.readlink(root / name))
        else:
            data = overlay[name].encode("utf-8", "surrogateescape") if name in overlay else (root / name).read_bytes()
            found[name] = (0o100755 if mode == "100755" else 0o100644, data)
        for above in list(Path(name).parents)[:-1]:
            found[str(above)] = (0o40755, None)
    return found


STUDIES = []


@pytest.fixture(autouse=True)
def _all_closed():
    yield
    while STUDIES:
        asyncio.run(STUDIES.pop().slots.close_all())


class Study:
    """A project with a snapshot and slots."""

    def __init__(self, root, **more):
        self.root, self.scratch = root, Path(tempfile.mkdtemp(dir=root.parent, prefix="study"))
        self.repo, self.place = self.scratch / "repo", self.scratch / "place"
        self.base = snapshot(root, self.repo, **more)
        self.slots = Slots(self.repo, self.base, self.place)
        STUDIES.append(self)

    async def check(self, lane=0, overlay=()):
        overlay = dict(overlay)
        slot = await self.slots.open(lane, overlay)
        assert contents(slot, self.base.linked) == candidate(self.root, self.base, overlay)
        return slot


@pytest.fixture
def two(tmp_path):
    return Study(write(tmp_path / "two", TWO))


# ---- the user's folder, in every state -------------------------------------------------------------------------------


def clean(folder):
    return repository(folder, {**TWO, "deep/er/x.txt": "x"})


def dirty(folder):
    write(clean(folder), {"main.py": "changed", "other.py": "staged"})
    git(folder, "add", "other.py")
    write(folder, {"other.py": "changed since", "deep/new": "untracked"})
    (folder / "deep/er/x.txt").unlink()
    return folder


def detached(folder):
    git(clean(folder), "checkout", "-q", "--detach")
    return folder


def no_commits(folder):
    git(write(folder, TWO), "init", "-q")
    git(folder, "add", "main.py")
    return folder


def failing_hooks(folder):
    clean(folder)
    for hook in ("pre-commit", "post-checkout", "reference-transaction", "post-index-change", "fsmonitor"):
        write(folder, {f".git/hooks/{hook}": '#!/bin/sh\ntouch "$(dirname $0)/../../ran"\nexit 1\n'})
        (folder / ".git/hooks" / hook).chmod(0o755)
    git(folder, "config", "core.fsmonitor", str(folder / ".git/hooks/fsmonitor"))
    return folder


def ignoring(folder):
    repository(folder, TWO, "data/\n*.log\n__pycache__/\nbuild/\n.venv/\n")
    return write(folder, {
        "data/big.bin": b"\0" * 999, "x.log": "log", "__pycache__/a.pyc": b"c", "build/out": "o",
        ".venv/bin/python": "p", "notes.md": "untracked", "sub/y.log": "log", "sub/code.py": "untracked",
    })  # fmt: skip


def stashed(folder):
    write(clean(folder), {"main.py": "to be stashed"})
    git(folder, "stash")
    return folder


def submodule(folder):
    inner = repository(folder.parent / "inner", {"lib.py": "lib", "sub/z": "z"})
    git(clean(folder), "submodule", "add", "-q", str(inner), "vendored")
    git(folder, "commit", "-qm", "submodule")
    return write(folder, {"vendored/lib.py": "changed", "vendored/new.py": "new"})


def nested(folder):
    repository(clean(folder) / "within", {"n.py": "n", "skipped.log": "no"})
    git(folder / "within", "rm", "-q", "--cached", "skipped.log")
    return write(folder, {"within/.gitignore": "*.log\n"})


def worktree(folder):
    git(clean(folder.parent / "main-checkout"), "worktree", "add", "-q", str(folder), "-b", "side")
    assert (folder / ".git").is_file()
    write(folder.parent, {"main-checkout/.git/info/exclude": "*.secret\n"})
    return write(folder, {"main.py": "changed", ".gitignore": "x\n", "deep/a.secret": "s"})


def split_index(folder):
    git(clean(folder), "update-index", "--split-index")
    return folder


def sparse(folder):
    git(clean(folder), "sparse-checkout", "set", "--cone", "--sparse-index", "elsewhere")
    assert b"sdir" in (folder / ".git/index").read_bytes()
    return write(folder, {"deep/er/x.txt": "put here by hand"})


def filtered(folder):
    clean(folder)
    git(folder, "config", "core.autocrlf", "true")
    git(folder, "config", "filter.lfs.clean", "touch ran; cat")
    git(folder, "config", "filter.lfs.smudge", "touch ran; cat")
    git(folder, "config", "filter.lfs.required", "true")
    return write(
        folder, {".gitattributes": "*.bin filter=lfs diff=lfs\n* text=auto\n", "a.bin": b"a\r\nb\n", "c.txt": b"\r\n"}
    )


def sha256(folder):
    folder.mkdir()
    git(folder, "init", "-q", "--object-format=sha256")
    git(write(folder, TWO), "add", "-A")
    return folder


def conflicted(folder):
    clean(folder)
    git(folder, "checkout", "-qb", "side")
    git(write(folder, {"main.py": "side"}), "commit", "-qam", "side")
    git(folder, "checkout", "-q", "main")
    git(write(folder, {"main.py": "main"}), "commit", "-qam", "main")
    subprocess.run(["git", "-C", folder, *ME, "merge", "side"], capture_output=True)
    assert git(folder, "ls-files", "-u")
    return folder


def plain(folder):
    return write(
        folder, {**TWO, "__pycache__/x.pyc": b"x", ".venv/lib": "l", "node_modules/m": "m", ".git": "no repository"}
    )


STATES = [
    clean, dirty, detached, no_commits, failing_hooks, ignoring, stashed, submodule, nested, worktree, split_index,
    sparse, filtered, sha256, conflicted,
]  # fmt: skip


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_whatever_state_a_repository_is_in_a_slot_holds_what_is_on_the_disk_and_nothing_of_it_is_touched(
    tmp_path, state
):
    root = state(tmp_path / "project")
    before = whole(tmp_path)

    async def use():
        with tempfile.TemporaryDirectory() as scratch:
            base = snapshot(root, Path(scratch, "repo"))
            slots = Slots(Path(scratch, "repo"), base, Path(scratch, "place"))
            for number in range(5):
                overlay = {"main.py": f"{number}\r\n", "new/file.py": "new"}
                slot = await slots.open(0, overlay)
                assert contents(slot, base.linked) == candidate(root, base, overlay)
                write(slot, {"main.py": "a trial's", "junk/x": "x"})
            assert await slots.changed(0) == {"main.py": b"a trial's", "junk/x": b"x"}
            assert b"+4\r\n" in patch(Path(scratch, "repo"), base, overlay)
            await slots.close_all()
            return base

    base = asyncio.run(use())
    assert whole(tmp_path) == before
    assert not [name for name in base.files if ".git" in name.split("/")]


def test_a_base_has_what_git_tracks_as_it_is_on_the_disk_and_what_is_new_there(tmp_path):
    base = Study(dirty(tmp_path / "p")).base
    assert set(base.files) == {"main.py", "other.py", "deep/new"}
    assert base.files["other.py"] == Entry("100644", git(tmp_path / "p", "hash-object", "other.py"), 13)


def test_the_tree_of_a_clean_checkout_is_that_of_its_commit(tmp_path):
    root = clean(tmp_path / "p")
    assert Study(root).base.tree == git(root, "rev-parse", "HEAD^{tree}")


def test_what_is_ignored_is_linked_and_not_copied_but_for_caches_and_outputs(tmp_path):
    study = Study(ignoring(tmp_path / "p"))
    assert set(study.base.files) == {".gitignore", "main.py", "other.py", "notes.md", "sub/code.py"}
    assert study.base.linked == {name: str(study.root / name) for name in ("data", "x.log", ".venv", "sub/y.log")}
    slot = asyncio.run(study.slots.open(0, {}))
    assert (slot / "data/big.bin").read_bytes() == bytes(999)
    assert (slot / "data").is_symlink()
    assert asyncio.run(study.slots.changed(0)) == {}
    assert not Study(study.root, linking=False).base.linked


DEEP = {
    "data/raw/big.bin": "big", "pkg/cache_of_ours/c": "c", "pkg/_ext.so": "so", "kept/big": "big", "kept/within/z": "z",
    "only/here/x": "x",
}  # fmt: skip
NOT_DEEP = {
    "pkg/build/o": "o", "pkg/__pycache__/x": "x", "pkg/x.pyc": "x", "web/node_modules/m": "m", "web/.venv/v": "v",
    "web/.pytest_cache/x": "x", "dist/inner/big": "b", "runs/s/ledger": "l", "web/.metaloop/x": "x",
}  # fmt: skip
IGNORED = """
raw/\ncache_of_ours/\n*.so\n/kept/\n/only/here/\nbuild/\n__pycache__/\n*.pyc\nnode_modules/\n.venv/\ndist/\n.metaloop/
.pytest_cache/\ns/
"""


def ignoring_deep(folder):
    tracked = {"data/notes": "n", "pkg/m.py": "m", "web/index.js": "j", "runs/readme": "r", **TWO}
    write(repository(folder, tracked, IGNORED), {"kept/tracked": "t", "kept/deep/t": "t", "dist/t": "t"})
    git(folder, "add", "--force", "kept", "dist")
    git(folder, "commit", "-qm", "what is ignored as well")
    return write(folder, {**DEEP, **NOT_DEEP, "kept/deep/big": "big"})


def test_what_is_ignored_below_the_top_is_linked_but_for_caches_outputs_and_the_studys_own(tmp_path):
    study = Study(ignoring_deep(tmp_path / "p"), ignore=[Path("runs/s")])
    names = {"data/raw", "pkg/cache_of_ours", "pkg/_ext.so", "kept/big", "kept/within", "kept/deep/big", "only"}
    assert study.base.linked == {name: str(study.root / name) for name in names}
    assert {"kept/tracked", "kept/deep/t", "dist/t", "data/notes"} <= set(study.base.files)
    slot = asyncio.run(study.check(0, {"pkg/new/x.py": "x"}))
    assert all((slot / name).read_text() == text for name, text in DEEP.items())
    assert all((slot / name).is_symlink() for name in names)
    assert not any((slot / name).exists() for name in NOT_DEEP)
    assert asyncio.run(study.slots.changed(0)) == {}


def test_a_link_below_the_top_is_put_back_and_no_candidate_has_a_file_in_its_place(tmp_path):
    study = Study(ignoring_deep(tmp_path / "p"))
    before = whole(study.root)

    async def use():
        slot = await study.check()
        for name in ("data/raw", "kept/big"):
            (slot / name).unlink()
        write(slot, {"data/raw/big.bin": "mine", "kept/big": "mine"})
        shutil.rmtree(slot / "pkg")
        await study.check()
        for path in ("data/raw", "data/raw/new", "data/raw/big.bin", "pkg/_ext.so", "kept/within/new", "only/new"):
            with pytest.raises(UsageError, match="expected folders above"):
                await study.slots.open(0, {path: "x"})
        await study.check(0, {"kept/new": "x"})

    asyncio.run(use())
    assert whole(study.root) == before


def test_what_the_base_has_is_its_own_whatever_git_ignores_since(tmp_path):
    """A file and a folder that were tracked when the study began; and folders now where the base has files."""
    root = repository(tmp_path / "p", {**TWO, "data/read.me": "r", "file": "f", "more": "m", "deep/er/x": "x"})
    study = Study(root)
    git(root, "rm", "-q", "--cached", "-r", "data", "deep", "file", "more")
    (root / "file").unlink()
    (root / "more").unlink()
    repository(root / "file", {"code": "c"}, "raw/\n")
    write(root, {".gitignore": "data/\ndeep/\nraw/\n", "data/big": "b", "file/raw/x": "x",
                 "more/raw/x": "x", "deep/er/big": "b", "deep/new/x": "x"})  # fmt: skip
    study.base = snapshots.relinked(root, study.base)
    assert study.base.linked == {name: str(root / name) for name in ("data/big", "deep/er/big", "deep/new")}
    slots = Slots(study.repo, study.base, study.scratch / "other")
    slot = asyncio.run(slots.open(0, {}))
    assert contents(slot, study.base.linked)["file"] == (0o100644, b"f")
    assert contents(slot, study.base.linked)["more"] == (0o100644, b"m")
    assert not (slot / "data/read.me").is_symlink()
    asyncio.run(slots.close_all())


def test_what_the_base_has_is_its_own_where_the_repository_is_gone(tmp_path):
    root = repository(tmp_path / "p", {**TWO, ".venv": "tracked", "node_modules/x.js": "x"})
    study = Study(root)
    shutil.rmtree(root / ".git")
    assert snapshots.relinked(root, study.base) == study.base


def test_what_is_ignored_in_one_folder_is_linked_whole_or_not_at_all_and_told(tmp_path, monkeypatch):
    monkeypatch.setattr(links, "MOST", 10)
    root = repository(tmp_path / "p", {**TWO, "logs/read.me": "r", "pkg/m.py": "m"}, "*.log\nraw/\n*.so\n")
    write(root, {f"logs/{number}.log": "x" for number in range(9)})
    write(root, {"logs/raw/x": "x", "pkg/a.so": "a", "pkg/b.so": "b", "pkg/raw/x": "x", "top.log": "x"})
    study = Study(root)
    assert set(study.base.linked) == {"logs/raw", "pkg/raw", "pkg/a.so", "pkg/b.so", "top.log"}
    assert snapshots.relinked(root, study.base).unlinked == {"logs": 9}
    asyncio.run(study.check())


def test_an_ignored_link_to_what_candidates_have_leads_to_their_copy(tmp_path):
    """Else they would write over the user's own files; one to a folder with all of the project in it is not there."""
    root = repository(tmp_path / "p", {**TWO, "deep/er/x.txt": "x"}, "*.lnk\nmine/\n")
    write(root, {"mine/x": "x"})
    for name, target in {"a.lnk": root / "main.py", "deep/b.lnk": "er", "deep/c.lnk": "..", "d.lnk": "mine",
                         "e.lnk": "..", "deep/er/f.lnk": "/", "g.lnk": "nothing"}.items():  # fmt: skip
        (root / name).symlink_to(target)
    study = Study(root)
    assert study.base.linked == {
        "a.lnk": "main.py", "deep/b.lnk": "er", "deep/c.lnk": "..",
        "d.lnk": str(root / "d.lnk"), "mine": str(root / "mine"),
    }  # fmt: skip
    before = whole(root)
    slot = asyncio.run(study.check())
    write(slot, {"a.lnk": "trial", "deep/b.lnk/x.txt": "trial", "deep/c.lnk/other.py": "trial"})
    assert (slot / "main.py").read_text() == (slot / "deep/er/x.txt").read_text() == (slot / "other.py").read_text()
    assert whole(root) == before


@pytest.mark.parametrize("state", [no_commits, sha256, split_index, sparse, worktree], ids=lambda state: state.__name__)
def test_what_is_ignored_in_folders_that_are_not_tracked_yet_is_linked(tmp_path, state):
    root = write(state(tmp_path / "p"), {".gitignore": "raw/\n", "new/in/x.py": "x", "new/in/raw/x": "x", "new/y": "y"})
    study = Study(root)
    assert set(study.base.linked) - {"deep/a.secret"} == {"new/in/raw"}
    assert snapshots.relinked(root, study.base) == study.base
    asyncio.run(study.check())


def test_what_a_submodule_ignores_is_linked_too(tmp_path):
    root = write(submodule(tmp_path / "p"), {"vendored/.gitignore": "raw/\n", "vendored/raw/x": "x"})
    study = Study(root)
    assert set(study.base.linked) == {"vendored/raw"}
    git(root / "vendored", "rm", "-q", "--cached", "sub/z")
    write(root, {"vendored/.gitignore": "sub/\n", "vendored/sub/big": "b"})
    assert set(snapshots.relinked(root, study.base).linked) == {"vendored/sub/big"}


def test_names_that_git_takes_nowhere_else_hide_nothing(tmp_path):
    root = write(tmp_path / "p", {".gitignore": "raw/\n", "deep/git~1": "x", "deep/raw/x": "x"})
    git(root, "init", "-q")
    study = Study(root)
    assert set(study.base.linked) == {"deep/raw"}
    asyncio.run(study.check())


def test_a_worktree_ignores_what_its_repository_excludes(tmp_path):
    assert set(Study(worktree(tmp_path / "p")).base.files) == {*TWO, ".gitignore", "deep/er/x.txt"}


def test_what_the_user_configured_and_exported_does_not_matter(tmp_path, monkeypatch):
    """But for the ends of lines in a branch, which are as git would have committed them."""
    root = clean(tmp_path / "p")
    write(root, {"crlf": "a\r\nb\n"})
    hook = write(tmp_path / "home", {"hooks/reference-transaction": f"#!/bin/sh\ntouch {tmp_path}/ran\nexit 1\n"})
    (hook / "hooks/reference-transaction").chmod(0o755)
    write(tmp_path / "home", {".gitconfig": f"""
        [core]\n hooksPath = {hook}/hooks\n autocrlf = true\n attributesFile = {hook}/attributes\n
        [init]\n templateDir = {hook}\n defaultObjectFormat = sha256\n [diff]\n external = false\n noprefix = true\n
        [filter "f"]\n clean = touch {tmp_path}/ran\n required = true\n [commit]\n gpgSign = true\n""",
        "attributes": "* filter=f text diff=f\n"})  # fmt: skip
    with monkeypatch.context() as patched:
        patched.setenv("HOME", str(tmp_path / "home"))
        for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_EXTERNAL_DIFF"):
            patched.setenv(name, "/nonsense")
        study = Study(root)
        asyncio.run(study.check(0, {"main.py": "x\r\n"}))
        assert b"--- a/crlf\n+++ b/crlf" in patch(study.repo, study.base, {"crlf": "x\r\n"})
        export_branch(root, study.repo, study.base, {"main.py": "x\r\n"}, name="b", message="m")
    assert subprocess.run(["git", "-C", root, "show", "b:main.py"], capture_output=True).stdout == b"x\n"
    assert not (tmp_path / "ran").exists()


def test_common_junk_is_left_out_unless_git_tracks_it(tmp_path):
    root = repository(tmp_path / "p", {**TWO, "node_modules/x.js": "x"})
    write(root, {".venv/bin/x": "x", "sub/__pycache__/x": "x", "sub/code": "c", "node_modules/new": "n"})
    base = Study(root).base
    assert set(base.files) == {*TWO, "node_modules/x.js", "sub/code"}
    assert set(base.linked) == {".venv"}


def test_a_link_to_what_is_ignored_is_put_back_and_its_target_left_alone(tmp_path):
    study = Study(ignoring(tmp_path / "p"))

    async def use():
        slot = await study.check()
        (slot / "data").unlink()
        write(slot, {"data/mine": "mine"})
        await study.check()
        assert (slot / "data/big.bin").exists()
        await study.slots.close_all()

    asyncio.run(use())
    assert (study.root / "data/big.bin").read_bytes() == bytes(999)


def test_submodules_and_repositories_within_are_plain_files(tmp_path):
    assert {"vendored/lib.py", "vendored/new.py", "vendored/sub/z"} <= set(Study(submodule(tmp_path / "p")).base.files)
    found = set(Study(nested(tmp_path / "q")).base.files)
    assert {"within/n.py", "within/.gitignore"} <= found
    assert "within/skipped.log" not in found


def test_a_plain_folder_is_taken_but_for_common_junk(tmp_path):
    root = plain(tmp_path / "p")
    (root / ".git").unlink()
    study = Study(root)
    assert set(study.base.files) == set(TWO)
    assert set(study.base.linked) == {".venv", "node_modules"}


def test_a_git_file_that_names_no_repository_is_refused_in_one_line(tmp_path):
    with pytest.raises(UsageError, match="expected it to name a repository"):
        snapshot(plain(tmp_path / "p"), tmp_path / "repo")


def test_a_folder_inside_a_repository_is_taken_alone_and_one_that_is_ignored_there_as_a_plain_one(tmp_path):
    top = repository(tmp_path / "p", {"code/a.py": "a", "else": "e"}, "scratch/\n*.tmp\n")
    write(top, {"scratch/b.py": "b", "code/new.py": "n", "code/x.tmp": "t"})
    base = Study(top / "code").base
    assert (set(base.files), set(base.linked)) == ({"a.py", "new.py"}, {"x.tmp"})
    assert set(Study(top / "scratch").base.files) == {"b.py"}


def test_what_is_to_be_left_out_is_left_out(tmp_path):
    root = repository(
        tmp_path / "p", {**TWO, "runs/s/x": "x", ".metaloop/s/ledger": "l", "sub/.metaloop/y": "y"}, "out/\n"
    )
    write(root, {"out/s/big": "b"})
    base = Study(root, ignore=[root / "runs/s", Path("out/s"), Path("main.py")]).base
    assert set(base.files) == {".gitignore", "other.py"}
    assert not base.linked


def test_links_are_kept_and_those_that_lead_out_are_told(tmp_path):
    root = repository(tmp_path / "p", {**TWO, "sub/x": "x"})
    for name, target in {"in": "main.py", "sub/up": "../other.py", "out": "../elsewhere", "abs": str(root / "main.py"),
                         "sub/far": "../../p/main.py", "dir": "sub", "broken": "nothing"}.items():  # fmt: skip
        (root / name).symlink_to(target)
    study = Study(root)
    assert set(study.base.outside) == {"out", "abs", "sub/far"}
    asyncio.run(study.check())


def leaving_links(folder):
    write(folder.parent, {"shared/table": "shared", "shared/deep/x": "x"})
    root = repository(folder, {**TWO, "sub/er/x": "x"})
    for name, target in {"out": "../shared/table", "sub/er/up": "../.././../shared/", "sub/back": "../../p/main.py",
                         "sub/er/whole": "../../../p", "abs": str(folder.parent / "shared"), "in": "sub/../main.py",
                         "through": "out", "late": "../comes/later", "weird": "../shared/deep/../table",
                         "round": "sub/er/../../../shared/table", "sub/own": ".//../other.py",
                         "er": "sub/er", "by": "er/../../main.py", "far": "../" * 99 + "etc/passwd",
                         "bent": "../p/er/../../main.py", "slash": "/../etc/passwd"}.items():  # fmt: skip
        (root / name).symlink_to(target)
    git(root, "add", "-A")
    git(root, "commit", "-qm", "links")
    return root


def test_a_link_that_leaves_by_a_relative_path_leads_to_the_same_place(tmp_path):
    """Or to the candidate's own, where it comes back; what the base is does not change for it."""
    root = leaving_links(tmp_path / "p")
    study = Study(root)
    base = snapshots.relinked(root, study.base)
    assert base.redirected == {
        "out": str(tmp_path / "shared/table"), "sub/er/up": str(tmp_path / "shared"), "sub/back": "../main.py",
        "sub/er/whole": "../..", "late": str(tmp_path / "comes/later"), "far": "/etc/passwd",
        "weird": str(tmp_path / "shared/deep") + "/../table", "round": str(tmp_path / "shared/table"),
        "bent": str(root / "er/../../main.py"),
    }  # fmt: skip
    assert (base.tree, base.files) == (study.base.tree, study.base.files)
    before = whole(root)

    async def use():
        slots = Slots(study.repo, base, study.scratch / "other")
        for _ in range(2):
            slot = await slots.open(0, {"main.py": "candidate"})
            assert {name: (slot / name).read_text() for name in ("out", "through", "weird")} == dict.fromkeys(
                ("out", "through", "weird"), "shared"
            )
            assert (slot / "sub/er/up/table").read_text() == "shared"
            assert (slot / "sub/back").read_text() == (slot / "sub/er/whole/main.py").read_text() == "candidate"
            assert (slot / "by").read_text() == "candidate"
            assert not (slot / "late").exists()
            assert await slots.changed(0) == {}
            (slot / "out").unlink()
            (slot / "out").symlink_to("main.py")
            with pytest.raises(UsageError, match="expected a regular file, found a link"):
                await slots.changed(0)
        with pytest.raises(UsageError, match="found a folder or a link"):
            await slots.open(0, {"out": "x"})
        await slots.close_all()

    asyncio.run(use())
    assert whole(root) == before
    assert b"shared" not in patch(study.repo, base, {"main.py": "x"})


def test_a_link_that_leaves_leads_to_where_it_does_from_the_folder_as_it_is_called_now(tmp_path):
    study = Study(leaving_links(tmp_path / "p"))
    shutil.copytree(tmp_path / "p", tmp_path / "elsewhere/p", symlinks=True)
    base = snapshots.relinked(tmp_path / "elsewhere/p", opened(study.repo))
    assert base.redirected["out"] == str(tmp_path / "elsewhere/shared/table")
    shutil.rmtree(study.root)
    assert snapshots.relinked(study.root, base).redirected["out"] == str(tmp_path / "shared/table")


def test_a_tracked_file_behind_a_link_is_not_taken_twice(tmp_path):
    root = repository(tmp_path / "p", {**TWO, "sub/x": "x"})
    shutil.move(root / "sub", tmp_path / "moved")
    (root / "sub").symlink_to(tmp_path / "moved")
    study = Study(root)
    assert study.base.files["sub"].mode == "120000"
    assert "sub/x" not in study.base.files
    asyncio.run(study.check())


STRANGE = {
    "a b": "x", "quote'\"s": "x", "new\nline": "x", "-rf": "x", "--upload-pack=x": "x", "$(touch x)": "x",
    "; rm -rf": "x",
    "back\\slash": "x", "\ttab": "x", " lead": "x", "trail ": "x", "*": "x", ":(top)x": "x", "ü": "x",
    "\udcff\udcfe": "x",
    "dir\n/\udce9": "x", "#x": "x", "!x": "x", "a\rb": "x",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["git", "plain"])
def test_names_may_be_anything_that_a_file_system_takes(tmp_path, kind):
    root = repository(tmp_path / "p", STRANGE) if kind == "git" else write(tmp_path / "p", STRANGE)
    study = Study(root)
    assert set(study.base.files) == set(STRANGE)

    async def use():
        overlay = {name: f"changed {number}" for number, name in enumerate(STRANGE)}
        slot = await study.check(0, overlay)
        write(slot, dict.fromkeys(STRANGE, "again"))
        assert await study.slots.changed(0) == dict.fromkeys(STRANGE, b"again")
        await study.check(0, {})
        copy = write(tmp_path / "copy", STRANGE)
        git(copy, "init", "-q")
        git(copy, "apply", "-", given=patch(study.repo, study.base, overlay))
        assert all((copy / name).read_text() == text for name, text in overlay.items())
        await study.slots.close_all()

    asyncio.run(use())
    assert not (tmp_path / "x").exists()
    assert sorted(os.listdir(root)) == sorted(
        {name.split("/")[0] for name in STRANGE} | ({".git"} & set(os.listdir(root)))
    )


def test_contents_are_kept_to_the_byte(tmp_path):
    root = repository(
        tmp_path / "p", {"empty": "", "open end": "x", "crlf": "a\r\nb\r\n", "bin": bytes(range(256)) * 99}
    )
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    study = Study(root)
    assert study.base.files["run.sh"].mode == "100755"
    asyncio.run(study.check(0, {"run.sh": "", "crlf": "\r\n\n\r", "open end": "y", "new": "\udcff"}))


def test_pipes_and_sockets_are_no_files(tmp_path):
    root = write(tmp_path / "p", TWO)
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(root / "sock"))
        assert set(Study(root).base.files) == set(TWO)


def test_too_much_is_refused_with_the_largest_folders(tmp_path, monkeypatch):
    root = write(tmp_path / "p", {**TWO, **{f"data/raw/{number}": "x" * 100 for number in range(20)}})
    monkeypatch.setattr(snapshots, "MAX_FILES", 10)
    with pytest.raises(UsageError, match=r"found 22 and .*data/raw \(20 files"):
        snapshot(root, tmp_path / "repo")
    monkeypatch.setattr(snapshots, "MAX_FILES", 100)
    monkeypatch.setattr(snapshots, "MAX_BYTES", 1000)
    with pytest.raises(UsageError, match=r"data/raw .*have git ignore"):
        snapshot(root, tmp_path / "repo")
    assert not (tmp_path / "repo").exists()
    assert not (tmp_path / "repo.half").exists()


def test_without_git_there_is_one_line(two, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="expected git on PATH, found none"):
        snapshot(two.root, tmp_path / "repo")


def test_a_base_is_opened_again_as_it_was_whatever_the_folder_is_now(tmp_path):
    study = Study(ignoring(tmp_path / "p"))
    write(study.root, {"main.py": "changed since"})
    (study.root / "other.py").unlink()
    assert opened(study.repo) == study.base
    assert not (study.repo / "scratch").exists()
    with pytest.raises(UsageError, match="found one"):
        snapshot(study.root, study.repo)


def test_a_damaged_snapshot_is_told_and_never_used(two):
    with pytest.raises(Damaged, match="expected the snapshot"):
        opened(two.scratch / "nothing")
    for path in sorted((two.repo / "objects").rglob("*")):
        if path.is_file() and path.suffix != ".idx":
            data = bytearray(path.read_bytes())
            path.chmod(0o600)
            path.write_bytes(data[:12] + bytes(len(data) - 12))
    with pytest.raises(Damaged):
        opened(two.repo)
    with pytest.raises(Damaged):
        asyncio.run(two.slots.open(0, {}))


def test_a_file_of_the_snapshot_that_is_another_than_its_name_says_is_never_used(two):
    pack = next((two.repo / "objects/pack").glob("*.pack"))
    data = pack.read_bytes()
    shutil.rmtree(two.repo / "objects/pack")
    git(two.repo, "unpack-objects", "-q", given=data)
    name = two.base.files["other.py"].hash
    loose = two.repo / "objects" / name[:2] / name[2:]
    loose.chmod(0o600)
    loose.write_bytes(zlib.compress(b"blob 4\0evil"))
    with pytest.raises(Damaged, match=f"expected {name}"):
        asyncio.run(two.slots.open(0, {}))


# ---- what a trial can do to its slot ---------------------------------------------------------------------------------


def in_place(slot):
    state = (slot / "other.py").stat()
    with open(slot / "other.py", "r+b") as file:
        file.write(b"DEF")
    os.utime(slot / "other.py", ns=(state.st_atime_ns, state.st_mtime_ns))


def by_another(slot):
    state = (slot / "other.py").stat()
    (slot / "x").write_bytes((slot / "other.py").read_bytes().upper())
    (slot / "x").replace(slot / "other.py")
    os.utime(slot / "other.py", ns=(state.st_atime_ns, state.st_mtime_ns))


def swapped(slot):
    (slot / "main.py").rename(slot / "x")
    (slot / "other.py").rename(slot / "main.py")
    (slot / "x").rename(slot / "other.py")


def deleted(slot):
    (slot / "main.py").unlink()


def all_gone(slot):
    shutil.rmtree(slot)


def empty(slot):
    shutil.rmtree(slot)
    slot.mkdir()


def added(slot):
    write(slot, {"new": "x", "deep/new/file": "x", "deep/er/x2": "y"})


def modes(slot):
    (slot / "main.py").chmod(0o4777)
    (slot / "deep").chmod(0o1777)
    slot.chmod(0o777)


def closed(slot):
    (slot / "main.py").chmod(0)
    write(slot, {"own/within/x": "x"})
    for folder in ("own/within", "deep/er", "deep", "own", "."):
        (slot / folder).chmod(0o200 if folder == "own" else 0)  # it may be moved, and not be read


def file_to_folder(slot):
    deleted(slot)
    write(slot, {"main.py/x": "x"})


def folder_to_file(slot):
    shutil.rmtree(slot / "deep")
    (slot / "deep").write_text("x")


def file_to_link(slot):
    (slot / "main.py").rename(slot / "kept")
    (slot / "main.py").symlink_to("kept")


def folder_to_link(slot):
    (slot / "deep").rename(slot.parent / "elsewhere")
    (slot / "deep").symlink_to(slot.parent / "elsewhere")


def slot_to_link(slot):
    slot.rename(slot.parent / "elsewhere")
    slot.symlink_to(slot.parent / "elsewhere")


def slot_to_file(slot):
    shutil.rmtree(slot)
    slot.write_text("x")


def to_pipe(slot):
    deleted(slot)
    os.mkfifo(slot / "main.py")


def hard_links(slot):
    os.link(slot / "main.py", slot.parent / "kept")
    (slot / "other.py").unlink()
    os.link(slot / "main.py", slot / "other.py")


def flood(slot):
    for number in range(300):
        (slot / f"junk{number}").write_text("x")
        (slot / f"deep/er/junk{number}").write_text("x")


def git_of_its_own(slot):
    repository(slot / "deep", {"x": "x"})
    git(slot, "init", "-q")


def deep(slot):
    fd = os.open(slot, os.O_RDONLY)
    for _ in range(1200):  # more than a function may call itself
        os.mkdir("d" * 250, dir_fd=fd)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


def attributes(slot):
    for path in (slot / "main.py", slot / "deep", slot):
        with contextlib.suppress(OSError):  # not every file system has them
            os.setxattr(path, "user.x", b"x")
        os.utime(path, (1, 1))


def held_open(slot):
    fd = os.open(slot / "main.py", os.O_WRONLY)
    in_place(slot)
    (slot / "main.py").chmod(0o600)
    threading.Timer(0.05, lambda: (os.write(fd, b"late"), os.close(fd))).start()


def caches(slot):
    write(slot, {"__pycache__/main.pyc": b"x", "deep/__pycache__/x.pyc": b"x", ".pytest_cache/x": "x"})


DAMAGE = [
    in_place, by_another, swapped, deleted, all_gone, empty, added, modes, closed, file_to_folder, folder_to_file,
    file_to_link, folder_to_link,
    slot_to_link, slot_to_file, to_pipe, hard_links, flood, git_of_its_own, deep, attributes,
    held_open, caches,
]  # fmt: skip
WIDE = {**TWO, "deep/er/x.txt": "x", "deep/y.txt": "y", "run": "#!"}


@contextlib.contextmanager
def nobody():
    """A time as a user who may not do everything."""
    if os.geteuid() == 0:
        os.seteuid(65534)
        try:
            yield
        finally:
            os.seteuid(0)
    else:
        yield


@pytest.fixture
def open_place():
    """A folder that anybody may write, for tests as nobody."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)
        yield Path(folder)
        subprocess.run(["chmod", "-R", "u+rwx", folder])


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("overlay", [{}, {"main.py": "other", "deep/new.py": "n"}], ids=["base", "overlaid"])
def test_whatever_a_trial_did_is_undone(open_place, damage, overlay):
    with nobody():
        root = write(open_place / "p", WIDE)
        (root / "run").chmod(0o755)
        (root / "link").symlink_to("main.py")
        study = Study(root)

        async def use():
            slot = await study.check(0, overlay)
            other = await study.check(1, {})
            damage(slot)
            await study.check(0, overlay)
            time.sleep(0.1 if damage is held_open else 0)
            assert contents(slot) == candidate(root, study.base, overlay)
            assert contents(other) == candidate(root, study.base, {})
            for path in (slot / "main.py", slot / "deep", slot):
                assert not os.listxattr(path)
                assert path == slot / "main.py" or path.stat().st_mtime == EPOCH_S
            await study.check(0, {})
            for left in ("elsewhere", "kept"):
                path = study.place / left
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            await study.slots.close_all()

        asyncio.run(use())
        assert not study.place.exists()
        assert opened(study.repo) == study.base


def test_a_flood_costs_no_more_than_what_is_good(two, monkeypatch):
    async def use():
        slot = await two.check()
        kept = (slot / "main.py").stat().st_ino
        write(slot, {f"junk{number}": "x" for number in range(300)})
        taken = []
        real = two.slots._trash.take
        monkeypatch.setattr(two.slots._trash, "take", lambda path: (taken.append(path), real(path)))
        await two.check()
        assert len(taken) == 1
        assert (slot / "main.py").stat().st_ino == kept

    asyncio.run(use())


def test_modes_are_those_of_the_base_whatever_the_umask(two):
    old = os.umask(0o077)
    try:
        asyncio.run(two.check(0, {"main.py": "x", "new/file": "x"}))
    finally:
        os.umask(old)


def test_what_cannot_be_moved_out_of_a_slot_goes_with_it(two, monkeypatch):
    """As a file that the system was told never to change."""
    real = os.rename

    def held(source, target):
        if str(source).endswith("/stuck"):
            raise PermissionError(1, "Operation not permitted", source)
        real(source, target)

    async def use():
        slot = await two.check()
        write(slot, {"stuck": "x"})
        monkeypatch.setattr(os, "rename", held)
        await two.check(0, {"main.py": "x"})
        monkeypatch.setattr(os, "rename", lambda *_: Path("/nothing").stat())
        write(slot, {"stuck": "x"})
        with pytest.raises(ExecutorError, match=r"cannot make the slot .*No such file"):
            await two.slots.open(0, {})
        with pytest.raises(UsageError, match="was not"):
            await two.slots.changed(0)
        monkeypatch.undo()
        await two.check()

    asyncio.run(use())


def test_a_change_in_the_very_moment_after_opening_is_seen(two):
    """Files are stamped by a clock of some milliseconds: what changes within one tick may look unchanged."""

    async def use():
        for number in range(200):
            slot = await two.check(0, {"main.py": f"{number:04}"})
            path, state = slot / "main.py", (slot / "main.py").stat()
            with open(path, "r+b") as file:
                file.write(b"evil")
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
            await two.check(0, {"main.py": f"{number:04}"})

    asyncio.run(use())


def test_a_change_that_left_no_mark_at_all_is_seen_in_what_was_written_last(two):
    async def use():
        slot = two.slots._slot(0)
        await two.check(0, {"main.py": "good"})
        slot._unsure.add(("", "main.py"))
        (slot.path / "main.py").write_text("evil")
        slot._made[""]["main.py"] = (*mark_of((slot.path / "main.py").lstat()), slot._made[""]["main.py"][5])
        await two.check(0, {"main.py": "good"})

    asyncio.run(use())


def test_a_file_that_changed_is_newer_by_a_second_and_the_others_are_as_old_as_ever(two):
    async def use():
        ages = []
        for text in ("a", "b", "b", None, "a"):
            slot = await two.slots.open(0, {"main.py": text} if text else {})
            ages.append((slot / "main.py").stat().st_mtime)
            assert (slot / "other.py").stat().st_mtime == EPOCH_S
        assert ages[0] < ages[1] == ages[2] < ages[3] < ages[4]
        assert {age % 1 for age in ages} == {0}
        await two.slots.close(0)
        slot = await two.slots.open(0, {})
        assert (slot / "main.py").stat().st_mtime > ages[4]
        assert (await two.slots.open(1, {}) / "main.py").stat().st_mtime == EPOCH_S

    asyncio.run(use())


def test_the_overlay_reaches_the_measurement(two):
    """The test imports the other file: what is changed there has to be what is measured."""

    async def use():
        scores = []
        for score in (1, 2, 3, 1):
            slot = await two.slots.open(0, {"other.py": f"def score():\n    return {score}\n"})
            scores.append(subprocess.run([sys.executable, "main.py"], cwd=slot, capture_output=True, check=True).stdout)
        assert scores == [b"1\n", b"2\n", b"3\n", b"1\n"]

    asyncio.run(use())


def test_a_slot_shows_no_git(tmp_path):
    study = Study(clean(tmp_path / "p"))
    slot = asyncio.run(study.slots.open(0, {}))
    assert not list(slot.rglob(".git*"))
    asked = subprocess.run(
        ["git", "log"], cwd=slot, capture_output=True, env={"GIT_CEILING_DIRECTORIES": str(study.place)}
    )
    assert asked.returncode != 0


@pytest.mark.parametrize(
    "path",
    ["", "/etc/x", "../x", "a/../../x", "./x", "a//b", "a/", ".git/hooks/x", "sub/.GIT/config", ".git", "git~1/x",
     ".gi\u200dt/x",
     ".git /x", ".metaloop/x", "link/x", "link", "main.py/x", "deep", "x\0y", "\ud800", "x" * 300, "ü" * 200,
     "x/" * 600 + "x", "data/x", "data",
     ".git:x"],
)  # fmt: skip
def test_an_overlay_stays_inside_the_project(tmp_path, path):
    root = repository(tmp_path / "p", WIDE, "data/\n")
    write(root, {"data/x": "x"})
    (root / "link").symlink_to("deep")
    study = Study(root)
    before = whole(root)
    with pytest.raises(UsageError):
        asyncio.run(study.slots.open(0, {path: "x"}))
    for refused in (
        lambda: patch(study.repo, study.base, {path: "x"}),
        lambda: apply_to(root, study.base, {path: "x"}),
    ):
        with pytest.raises(UsageError):
            refused()
    assert whole(root) == before


def test_an_overlay_has_no_file_that_is_a_folder_too(two):
    with pytest.raises(UsageError, match="expected folders above"):
        asyncio.run(two.slots.open(0, {"a": "x", "a/b": "x"}))
    with pytest.raises(UsageError, match="expected text"):
        asyncio.run(two.slots.open(0, {"a": "\ud800"}))


def test_lanes_are_opened_at_once_and_do_not_meet(tmp_path):
    study = Study(write(tmp_path / "p", {f"d{number % 7}/f{number}": f"{number}" for number in range(200)}))

    async def use():
        for turn in range(5):
            overlays = [{f"d{lane}/f{lane}": f"{turn} {lane}", f"new{lane}": "n"} for lane in range(6)]
            slots = await asyncio.gather(*map(study.slots.open, range(6), overlays))
            for slot, overlay in zip(slots, overlays, strict=True):
                assert contents(slot) == candidate(study.root, study.base, overlay)
                write(slot, {"d1/f1": "damage", "junk/x": "x"})
        await study.slots.close_all()

    asyncio.run(use())


def test_one_who_gives_up_on_an_opening_does_no_harm(two):
    async def use():
        for _ in range(20):
            task = asyncio.create_task(two.slots.open(0, {"main.py": "x"}))
            await asyncio.sleep(random.random() / 500)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await two.check(0, {"other.py": "y"})

    asyncio.run(use())


def test_a_killed_git_is_started_again_and_none_is_left(two):
    async def use():
        await two.check(0, {"main.py": "x"})
        os.kill(two.slots._objects._process.pid, signal.SIGKILL)
        await two.check(0, {"other.py": "x"})
        await two.slots.close_all()

    asyncio.run(use())
    assert not processes(two.repo)


def processes(repo):
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.fsencode(repo) in (process / "cmdline").read_bytes():
                found.append(process.name)
    return found


def test_no_descriptors_and_threads_are_left(tmp_path):
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    study = Study(clean(tmp_path / "p"))

    async def use():
        for number in range(5):
            slot = await study.check(number % 2, {"main.py": str(number)})
            added(slot)
        await study.slots.close_all()

    asyncio.run(use())
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


# ---- what an agent changed -------------------------------------------------------------------------------------------


def test_changes_are_told_with_new_files_and_gone_ones_but_without_junk(tmp_path):
    study = Study(repository(tmp_path / "p", WIDE))

    async def use():
        slot = await study.slots.open(0, {"main.py": "agent, begin"})
        assert await study.slots.changed(0) == {}
        caches(slot)
        git(slot, "init", "-q")
        in_place(slot)
        write(slot, {"deep/more/new.py": b"\xff\r\n", "run": "#!"})
        (slot / "deep/y.txt").unlink()
        expected = {
            "other.py": b"DEF" + TWO["other.py"][3:].encode(),
            "deep/more/new.py": b"\xff\r\n",
            "deep/y.txt": None,
        }
        assert await study.slots.changed(0) == expected
        await study.slots.close_all(keep=True)
        again = Slots(study.repo, opened(study.repo), study.place)
        with pytest.raises(UsageError, match="was not"):
            await again.changed(0)
        assert await again.adopt(0, {"main.py": "agent, begin"}) == slot
        assert await again.changed(0) == expected
        await again.close_all()

    asyncio.run(use())


def test_changes_are_bounded_and_no_link_is_followed(two):
    async def use():
        for name, spoil in {
            "too many": lambda slot: [(slot / f"{n}").write_text("") for n in range(11)],
            "too much": lambda slot: (slot / "x").write_text("x" * 1001),
            "found a link": lambda slot: (slot / "x").symlink_to("/etc/passwd"),
            "found a link.": lambda slot: (slot / "x").symlink_to("/etc"),
            "something else": lambda slot: os.mkfifo(slot / "x"),
        }.items():
            spoil(await two.slots.open(0, {}))
            with pytest.raises(UsageError, match=name.rstrip(".")):
                await two.slots.changed(0, files=10, size=1000)

    asyncio.run(use())


# ---- controllers that come and go ------------------------------------------------------------------------------------


def test_slots_have_one_controller(two):
    with pytest.raises(StudyBusy):
        Slots(two.repo, two.base, two.place)
    asyncio.run(two.slots.close_all())
    asyncio.run(Slots(two.repo, two.base, two.place).close_all())


def test_a_lock_that_was_removed_while_it_was_taken_is_none(two, monkeypatch):
    asyncio.run(two.slots.close_all())
    real, times = places._locked, iter(range(9))

    def late(lock):
        if next(times) == 0:
            shutil.rmtree(two.place)
        return real(lock)

    monkeypatch.setattr(places, "_locked", late)
    slots = Slots(two.repo, two.base, two.place)
    with pytest.raises(StudyBusy):
        Slots(two.repo, two.base, two.place)
    asyncio.run(slots.close_all())


def test_a_slot_is_not_touched_until_its_lane_is_opened_again(two):
    async def use():
        for lane in (0, 1):
            write(await two.slots.open(lane, {}), {"running": "x"})
        await two.slots.close_all(keep=True)
        before = whole(two.place / "1")
        slots = Slots(two.repo, two.base, two.place)
        await slots.open(0, {})
        assert whole(two.place / "1") == before
        assert not (two.place / "0" / "running").exists()
        await slots.close(1)
        await slots.close_all()
        assert not two.place.exists()

    asyncio.run(use())


KILLED = """
import asyncio, itertools, sys
from pathlib import Path
from metaloop.adapters.workspace.slots import Slots
from metaloop.adapters.workspace.snapshots import opened
repo, place = map(Path, sys.argv[1:])
async def main():
    slots = Slots(repo, opened(repo), place)
    print("up", flush=True)
    for number in itertools.count():
        overlay = {f"d{number % 5}/f{number % 50}": str(number), "main": "x"}
        await asyncio.gather(slots.open(0, overlay), slots.open(1, overlay))
        for lane in (0, 1):
            for junk in range(200):
                Path(place, str(lane), f"junk{junk}").write_text("x")
asyncio.run(main())
"""


@pytest.mark.slow
def test_a_controller_killed_in_the_middle_of_opening_leaves_nothing_that_the_next_does_not_put_right(tmp_path):
    root = write(tmp_path / "p", {"main": "m", **{f"d{number % 5}/f{number}": "x" * 5000 for number in range(300)}})
    study = Study(root)
    asyncio.run(study.slots.close_all())
    (study.scratch / "repo.half").mkdir()
    dice = random.Random(7)
    for _ in range(8):
        process = subprocess.Popen([sys.executable, "-c", KILLED, study.repo, study.place], stdout=subprocess.PIPE)
        assert process.stdout.readline() == b"up\n"
        time.sleep(dice.random() * 0.4)
        process.kill()
        process.communicate()

        async def use():
            slots = study.slots = Slots(study.repo, study.base, study.place)
            await study.check(0, {"main": "again"})
            await study.check(1, {})
            await slots.close_all(keep=True)

        asyncio.run(use())
        assert not list((study.place / "trash").iterdir())
    until(lambda: not processes(study.repo))
    assert not (study.scratch / "repo.half").exists()
    asyncio.run(Slots(study.repo, study.base, study.place).close_all())
    assert os.listdir(study.scratch) == ["repo"]


def test_a_snapshot_that_was_interrupted_is_none(two, monkeypatch):
    repo = two.scratch / "second"
    write(two.scratch, {"second.half/HEAD": "x"})
    monkeypatch.setattr(snapshots, "_stream", lambda *_: iter([b"blob\nnonsense"]))
    with pytest.raises(UsageError, match="cannot take a snapshot"):
        snapshot(two.root, repo)
    assert not repo.exists()
    monkeypatch.undo()
    assert snapshot(two.root, repo) == two.base


def as_folder(path):
    (path / "deep" / "er").mkdir(parents=True)
    (path / "deep" / "x").write_text("x")
    (path / "deep").chmod(0o555)


def as_link(path):
    path.symlink_to("/nowhere/at/all")


def as_pipe(path):
    os.mkfifo(path)


def as_closed(path):
    path.write_text("x")
    path.chmod(0)


@pytest.mark.parametrize("what", [as_folder, as_link, as_pipe, as_closed], ids=lambda what: what.__name__)
@pytest.mark.parametrize("name", ["lock", "study", "trash", "0.clock", "0.brief.md", "0.score"])
@pytest.mark.parametrize("end", ["done", "killed", "cleared", "swept"])
def test_whatever_a_trial_puts_where_something_of_ours_belongs_gives_way(open_place, name, what, end):
    """To the one that goes on, to one that comes later, and to whoever clears up: nothing of the place stays."""
    with nobody():
        study = Study(write(open_place / "p", TWO))
        place = study.place = open_place / "places" / "one"
        asyncio.run(study.slots.close_all())
        slots = Slots(study.repo, study.base, place)

        async def use():
            slots.write("study", b"/where/it/was")
            await slots.open(0, {})
            path = place / name
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
            what(path)
            if end == "done":
                await slots.open(0, {"main.py": "other"})
                assert slots.write("0.brief.md", b"told").read_text() == "told"
                await slots.close_all()
                return
            await slots.close_all(keep=True)
            if end == "killed":
                again = Slots(study.repo, study.base, place)
                again.write("study", b"/where/it/was")
                await again.open(0, {})
                await again.close_all()

        asyncio.run(use())
        if end == "cleared":
            assert places.clear(place)
        if end == "swept":
            assert sweep(place.parent) == [place]
        assert not os.path.lexists(place)


def test_what_cannot_be_deleted_is_said_and_the_rest_goes(open_place):
    """Something of another user's; folders that were closed to us are none."""
    top = open_place / "mine/top"
    with nobody():
        write(top, {"closed/x": "x", "other/deep/x": "xxx"})
        (top / "closed").chmod(0)
        assert trash.measured(top) == (3, "Permission denied")
        assert trash.deleted(top) == (4, "")
        assert not top.exists()
        write(top, {"other/x": "x"})
    write(top, {"theirs/x": "xx"})
    with nobody():
        assert trash.deleted(top) == (3, "Permission denied")
        assert sorted(os.listdir(top)) == ["theirs"]
    assert trash.deleted(top) == (2, "")
    assert not top.exists()


def test_sweeping_removes_what_nobody_holds_and_no_process_works_in(two, tmp_path):
    held, free, worked = (tmp_path / "places" / name for name in ("held", "free", "worked"))
    write(tmp_path / "places", {"a file": "x", "not ours/lock": "x"})
    places = [Slots(two.repo, two.base, place) for place in (held, free, worked)]
    for slots in places:
        asyncio.run(slots.open(0, {}))
    asyncio.run(places[1].close_all(keep=True))
    asyncio.run(places[2].close_all(keep=True))
    process = subprocess.Popen(["sleep", "60"], cwd=worked / "0")
    try:
        assert sweep(tmp_path / "places") == [free]
    finally:
        process.kill()
        process.wait()
    assert sweep(tmp_path / "places") == [worked]
    asyncio.run(places[0].close_all(keep=True))
    assert sweep(tmp_path / "places") == [held]
    assert sorted(os.listdir(tmp_path / "places")) == ["a file", "not ours"]
    assert sweep(tmp_path / "nothing") == []


# ---- what leaves a study ---------------------------------------------------------------------------------------------


def test_a_branch_is_made_on_top_of_head_and_nothing_else_is_touched(tmp_path):
    root = failing_hooks(tmp_path / "p")
    git(root, "config", "commit.gpgSign", "true")
    study = Study(root)
    before = {
        path: told for path, told in whole(root).items() if "/.git/objects" not in path and "refs/heads" not in path
    }
    overlay = {"main.py": "better\r\n", "new/file": "new"}
    commit = export_branch(
        root, study.repo, study.base, overlay, name="metaloop/best", message="It is $(better)\n", author="N <n@x>"
    )
    after = {
        path: told for path, told in whole(root).items() if "/.git/objects" not in path and "refs/heads" not in path
    }
    assert after == before
    assert git(root, "show", "-s", "--format=%H|%P|%an|%ae|%cn|%s", "metaloop/best") == (
        f"{commit}|{git(root, 'rev-parse', 'HEAD')}|N|n@x|N|It is $(better)"
    )
    assert git(root, "-c", "core.fsmonitor=false", "diff", "--name-status", "HEAD", commit) == "M\tmain.py\nA\tnew/file"
    assert subprocess.run(["git", "-C", root, "show", f"{commit}:main.py"], capture_output=True).stdout == b"better\r\n"
    for name in ("metaloop/best", "metaloop/best/x", "metaloop", "main"):
        with pytest.raises(UsageError, match=r"exists|cannot"):
            export_branch(root, study.repo, study.base, overlay, name=name, message="m")
    for name in ("-x", "", "a b", "a..b", "@{-1}", "x.lock", "a\0", "\udcff", "../x"):
        with pytest.raises(UsageError, match="expected the name"):
            export_branch(root, study.repo, study.base, overlay, name=name, message="m")


def test_a_branch_is_refused_where_head_has_other_files_than_the_base(tmp_path, two):
    study = Study(dirty(tmp_path / "p"))
    git(study.root, "add", "deep")
    for path in ("main.py", "deep/new"):
        with pytest.raises(UsageError, match=f"HEAD: .*'{path}'"):
            export_branch(study.root, study.repo, study.base, {path: "x"}, name="b", message="m")
    with pytest.raises(UsageError, match=r"'deep/er/x.txt'"):
        export_branch(study.root, study.repo, study.base, {"deep/er/x.txt": "x"}, name="b", message="m")
    git(study.root, "update-index", "--add", "--cacheinfo", f"160000,{git(study.root, 'rev-parse', 'HEAD')},module")
    git(study.root, "commit", "-qm", "what is in the way")
    for path in ("module/x", "deep"):
        with pytest.raises(UsageError, match=f"HEAD: .*'{path}'"):
            export_branch(study.root, two.repo, two.base, {path: "x"}, name="b", message="m")
    assert export_branch(study.root, study.repo, study.base, {"really/new": "x"}, name="b", message="m")
    with pytest.raises(UsageError, match="found none; commit"):
        export_branch(no_commits(tmp_path / "q"), study.repo, study.base, {"main.py": "x"}, name="b", message="m")
    with pytest.raises(UsageError, match="expected a git repository"):
        export_branch(write(tmp_path / "r", TWO), study.repo, study.base, {"main.py": "x"}, name="b", message="m")


def crlf(root, how):
    """A clean repository whose files have CRLF on the disk and LF in its commits."""
    repository(root, {**TWO, **({".gitattributes": "*.py text eol=crlf\n"} if how == "attribute" else {})})
    if how == "info":
        write(root, {".git/info/attributes": "*.py text eol=crlf\n"})
    if how == "setting":
        git(root, "config", "core.autocrlf", "true")
    if how == "global":
        write(Path(os.environ["HOME"]), {".gitconfig": "[core]\n autocrlf = true\n"})
    for name, text in TWO.items():
        write(root, {name: text.replace("\n", "\r\n")})
    assert git(root, "add", "-A") == git(root, "status", "--porcelain") == ""
    return root


@pytest.mark.parametrize("how", ["attribute", "info", "setting", "global"])
def test_a_branch_has_the_ends_of_lines_that_git_would_have_committed(tmp_path, monkeypatch, how):
    """Where they are others on the disk: the branch shows the change alone, and nothing else is touched."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    root = crlf(tmp_path / "p", how)
    study = Study(root)
    before = whole(root / "main.py"), whole(root / ".git/index"), git(root, "rev-parse", "HEAD")
    better = TWO["main.py"].replace("\n", "\r\n") + "better\r\n"
    export_branch(root, study.repo, study.base, {"main.py": better, "new.py": "n\r\n"}, name="b", message="m")
    assert git(root, "diff", "--numstat", "HEAD..b") == "1\t0\tmain.py\n1\t0\tnew.py"
    assert b"\r" not in subprocess.run(["git", "-C", root, "cat-file", "blob", "b:main.py"], capture_output=True).stdout
    assert (whole(root / "main.py"), whole(root / ".git/index"), git(root, "rev-parse", "HEAD")) == before
    git(root, "checkout", "-q", "b")
    assert git(root, "status", "--porcelain") == ""
    assert (root / "main.py").read_bytes() == better.encode()
    with pytest.raises(UsageError, match=r"HEAD: .*'main.py'"):
        export_branch(root, study.repo, study.base, {"main.py": "again\r\n"}, name="c", message="m")


def test_a_file_that_was_committed_with_ends_of_lines_that_git_would_change_keeps_them(tmp_path):
    """As a branch shows the change alone then too."""
    root = repository(tmp_path / "p", {"main.py": "a\r\nb\r\n"})
    for attributes in ("*.py text\n", "*.py text=auto\n"):
        write(root, {".git/info/attributes": attributes})
        study = Study(root)
        name = attributes.split("=")[-1].strip().replace("*.py ", "")
        export_branch(root, study.repo, study.base, {"main.py": "a\r\nb\r\nc\r\n"}, name=name, message="m")
        assert git(root, "diff", "--numstat", f"HEAD..{name}") == "1\t0\tmain.py"


def test_filters_of_the_user_do_not_run_when_a_branch_is_made(tmp_path):
    """What they would have made is not known: a file that one keeps in another form is refused."""
    root = repository(tmp_path / "p", {**TWO, ".gitattributes": "other.py filter=f\n"})
    git(root, "config", "filter.f.clean", f"touch {tmp_path}/ran; tr a-z A-Z")
    git(root, "config", "filter.f.required", "true")
    study = Study(root)
    export_branch(root, study.repo, study.base, {"other.py": "x\n"}, name="b", message="m")
    assert git(root, "show", "b:other.py") == "x"
    assert not (tmp_path / "ran").exists()
    (root / "other.py").touch()
    git(root, "add", "--renormalize", ".")
    git(root, "commit", "-qm", "in another form")
    (tmp_path / "ran").unlink()
    with pytest.raises(UsageError, match=r"HEAD: .*'other.py'"):
        export_branch(root, study.repo, study.base, {"other.py": "x\n"}, name="c", message="m")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "name", ["HEAD", "head", "@", "refs/heads/zz", "heads/zz", "v1", "origin/main", "Main", "ORIG_HEAD"]
)
def test_a_branch_has_a_name_that_means_nothing_else(tmp_path, name):
    """Neither to git, nor to people, who do not look at letter case."""
    study = Study(repository(tmp_path / "p", TWO))
    git(study.root, "tag", "v1")
    git(study.root, "update-ref", "refs/remotes/origin/main", "HEAD")
    git(study.root, "update-ref", "ORIG_HEAD", "HEAD")
    with pytest.raises(UsageError, match="expected the name of a"):
        export_branch(study.root, study.repo, study.base, {"main.py": "x"}, name=name, message="m")
    short = git(study.root, "rev-parse", "--short", "HEAD")
    with pytest.raises(UsageError, match="expected the name of a"):
        export_branch(study.root, study.repo, study.base, {"main.py": "x"}, name=short, message="m")
    assert git(study.root, "for-each-ref", "refs/heads", "--format=%(refname)") == "refs/heads/main"


@pytest.mark.parametrize("state", [worktree, sha256], ids=lambda state: state.__name__)
def test_a_branch_can_be_made_from_a_worktree_and_a_sha256_repository_and_a_folder_within(tmp_path, state):
    root = state(tmp_path / "p")
    write(root, {"within/x.py": "x"})
    git(root, "add", "-A")
    git(root, "commit", "-qm", "all")
    study = Study(root / "within")
    commit = export_branch(
        root / "within", study.repo, study.base, {"x.py": "better", "n": "n"}, name="best", message="m"
    )
    assert git(root, "show", "best:within/x.py") == "better"
    assert git(root, "rev-parse", "best") == commit
    assert git(root, "diff", "--name-only", "HEAD", "best") == "within/n\nwithin/x.py"


def test_what_was_found_is_written_into_the_folder_only_where_nothing_moved(two):
    (two.root / "main.py").chmod(0o640)
    write(two.root, {"mine": "mine"})
    assert apply_to(two.root, two.base, {"main.py": "better", "a/b/new": "n"}) == ["a/b/new", "main.py"]
    assert (two.root / "main.py").read_text() == "better"
    assert (two.root / "main.py").stat().st_mode == 0o100640
    assert sorted(os.listdir(two.root)) == ["a", "main.py", "mine", "other.py"]
    before = whole(two.root)
    with pytest.raises(UsageError, match=r"'main.py'"):
        apply_to(two.root, two.base, {"main.py": "again", "other.py": "x"})
    with pytest.raises(UsageError, match="'mine'"):
        apply_to(two.root, two.base, {"mine": "x", "other.py": "x"})
    (two.root / "a").rename(two.root.parent / "away")
    (two.root / "a").symlink_to("../away")
    with pytest.raises(UsageError, match="'a/c'"):
        apply_to(two.root, two.base, {"a/c": "x"})
    (two.root / "a").unlink()
    (two.root.parent / "away").rename(two.root / "a")
    assert {path: told[3] for path, told in whole(two.root).items()} == {path: told[3] for path, told in before.items()}


def test_nothing_is_written_through_a_link_that_was_made_since(tmp_path):
    study = Study(write(tmp_path / "p", WIDE))
    (study.root / "deep").rename(tmp_path / "away")
    (study.root / "deep").symlink_to(tmp_path / "away")
    with pytest.raises(UsageError, match=r"'deep/y.txt', 'deep/new'"):
        apply_to(study.root, study.base, {"deep/y.txt": "x", "deep/new": "x"})
    assert (tmp_path / "away/y.txt").read_text() == "y"


@pytest.mark.parametrize("nth", range(6))
def test_what_cannot_be_written_whole_is_not_written_at_all(two, monkeypatch, nth):
    before = {path: told for path, told in whole(two.root).items() if path != str(two.root)}
    calls = iter(range(100))

    def failing(real):
        def call(*args, **more):
            if next(calls) == nth:
                raise OSError(28, "No space left on device", "x")
            return real(*args, **more)

        return call

    monkeypatch.setattr(leaving, "_staged", failing(leaving._staged))
    monkeypatch.setattr(leaving, "_swapped", failing(leaving._swapped))
    with pytest.raises(UsageError, match="nothing was changed: No space"):
        apply_to(two.root, two.base, {"main.py": "1", "deep/new": "2", "other.py": "3"})
    assert {path: told for path, told in whole(two.root).items() if path != str(two.root)} == before


# ---- any sequence ----------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(
    ["main.py", "other.py", "deep/y.txt", "deep/er/x.txt", "run", "new", "deep/new", "further/in/x"]
)
OVERLAYS = st.dictionaries(
    NAMES, st.text(max_size=3).filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text))
)
SMALL = [
    damage
    for damage in DAMAGE
    if damage not in (deep, held_open, git_of_its_own, folder_to_link, slot_to_link, hard_links)
]


@given(st.lists(st.tuples(OVERLAYS, st.lists(st.sampled_from(SMALL), max_size=3)), max_size=6))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_after_any_sequence_a_slot_holds_base_and_overlay(steps):
    with tempfile.TemporaryDirectory() as folder:
        study = Study(write(Path(folder, "p"), WIDE))

        async def use():
            for overlay, damages in steps:
                slot = await study.check(0, overlay)
                for damage in damages:
                    with contextlib.suppress(OSError):
                        damage(slot)
            await study.check(0, {})
            await study.slots.close_all()

        asyncio.run(use())
