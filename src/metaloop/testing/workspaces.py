"""Workspaces: the suite that each has to pass. Real files and real git; the user's folder is watched all the while."""

import asyncio
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import TypeAlias, TypeVar

from metaloop.errors import UsageError
from metaloop.roles import Bench, Workspace

T = TypeVar("T")

PROJECT = {
    "src/model.py": "RATE = 0.1\n",
    "src/deep/er/layer.py": "WIDTH = 4\n",
    "src/empty.py": "",
    "bench.py": "import sys\n",
    "run.sh": "#!/bin/sh\n",
    "data/table.csv": "a,b\r\n1,2",
}
"""What the user's folder holds. Files below `src` may be changed, the others are frozen; `run.sh` can be executed."""

OVERLAY = {"src/model.py": "RATE = 0.2\n", "src/new/part.py": "\u00fc = 1\n"}
"""A candidate: a file of the base changed, and one that is new."""

PATHS = frozenset({*PROJECT, *OVERLAY})

AGENT = ("-c", "user.name=agent", "-c", "user.email=agent@here", "-c", "commit.gpgSign=false")

File: TypeAlias = tuple[str, bytes]
"""What stands at a path: its kind (`file`, `program`, `link`, `other`), and what it holds."""


def held(folder: str | Path) -> dict[str, File]:
    """All that is below a folder but other folders, by path; links are not followed, and empty folders are seen."""
    found, top = dict[str, File](), Path(folder)
    for above, folders, files in os.walk(top):
        links = [name for name in folders if Path(above, name).is_symlink()]
        for path in (Path(above, name) for name in (*files, *links)):
            found[path.relative_to(top).as_posix()] = _file(path)
        if not (folders or files) and Path(above) != top:
            found[Path(above).relative_to(top).as_posix()] = ("folder", b"")
    return found


def _file(path: Path) -> File:
    mode = path.lstat().st_mode
    if stat.S_ISLNK(mode):
        return "link", os.fsencode(path.readlink())
    if not stat.S_ISREG(mode):
        return "other", b""
    return "program" if mode & 0o100 else "file", path.read_bytes()


def candidate(overlay: Mapping[str, str]) -> dict[str, File]:
    """What a directory has to hold: PROJECT, and this over it."""
    kinds = {"run.sh": "program"}
    return {path: (kinds.get(path, "file"), text.encode()) for path, text in {**PROJECT, **overlay}.items()}


def watched(folder: Path) -> dict[str, tuple[object, ...]]:
    """A folder to the byte: with modes, inodes and times of each file and folder."""
    states = {path.relative_to(folder).as_posix(): path.lstat() for path in (folder, *folder.rglob("*"))}
    files = held(folder)
    return {path: (s.st_mode, s.st_ino, s.st_mtime_ns, files.get(path)) for path, s in states.items()}


# ---- what a tenant may leave -----------------------------------------------------------------------------------------


def _changed(top: Path) -> None:
    for path in ("src/model.py", "bench.py", "data/table.csv"):
        (top / path).write_text("mine")


def _in_place(top: Path) -> None:
    """Same length, same time of modification."""
    state = (top / "bench.py").stat()
    with (top / "bench.py").open("r+b") as file:
        file.write(b"IMPORT")
    os.utime(top / "bench.py", ns=(state.st_atime_ns, state.st_mtime_ns))


def _removed(top: Path) -> None:
    (top / "bench.py").unlink()
    shutil.rmtree(top / "src/deep")


def _littered(top: Path) -> None:
    (top / "src/new").mkdir(exist_ok=True)
    for path in ("junk", "src/junk.py", "src/new/junk.py", "data/.hidden"):
        (top / path).write_text("x")
    (top / "cache/within").mkdir(parents=True)
    (top / "src/__pycache__").mkdir()
    (top / "src/__pycache__/model.pyc").write_bytes(b"x")


def _linked(top: Path) -> None:
    """Links where a file and a folder were, and one to somewhere else."""
    (top / "bench.py").unlink()
    (top / "bench.py").symlink_to("src/model.py")
    (top / "src/deep").rename(top / "moved")
    (top / "src/deep").symlink_to("../moved")
    (top / "out").symlink_to("/")


def _exchanged(top: Path) -> None:
    """A folder where a file was, a file where a folder was, and a pipe."""
    (top / "bench.py").unlink()
    (top / "bench.py").mkdir()
    (top / "bench.py/x").write_text("x")
    shutil.rmtree(top / "data")
    (top / "data").write_text("x")
    os.mkfifo(top / "pipe")


def _closed(top: Path) -> None:
    """What may not be read, entered or executed any more."""
    (top / "bench.py").chmod(0)
    (top / "run.sh").chmod(0o600)
    (top / "src/deep").chmod(0o500)
    (top / "data").chmod(0)


def _versioned(top: Path) -> None:
    git(top, "init", "--quiet")


def _gone(top: Path) -> None:
    shutil.rmtree(top)


TENANTS = (_changed, _in_place, _removed, _littered, _linked, _exchanged, _closed, _versioned, _gone)


def git(folder: str | Path, *args: str) -> str:
    """What git says in a folder, without anybody's configuration."""
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(["git", *AGENT, *args], cwd=folder, env=env, check=True, capture_output=True, text=True)
    return done.stdout.strip()


# ---- the suite -------------------------------------------------------------------------------------------------------


class WorkspaceConformance:
    """The contract of `roles.Workspace`, for any: make a subclass that overrides `workspace` and `abandon`.

    What it cannot ask for all: links to what is not copied, and times of files.
    """

    def workspace(self, tmp_path: Path, root: Path) -> Workspace:
        """A fresh workspace over what `root` held when the first was made, in which `src/**` may be changed: as a new
        controller would make it. What it keeps is in `tmp_path`, outside of `root`.
        """
        raise NotImplementedError

    async def abandon(self, workspace: Workspace) -> None:
        """Lets go of everything as a controller does that is killed: directories stay as they are."""
        raise NotImplementedError

    def project(self, tmp_path: Path) -> Path:
        """The user's folder, a git repository with one commit."""
        root = tmp_path / "project"
        if not root.exists():
            for path, text in PROJECT.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_bytes(text.encode())
            (root / "run.sh").chmod(0o755)
            git(root, "init", "--quiet", "--initial-branch=main")
            git(root, "add", "--all")
            git(root, "commit", "--quiet", "--message=mine")
        return root

    def alone(self, tmp_path: Path, story: Callable[[Workspace], Awaitable[T]]) -> T:
        """Runs a story with a fresh workspace, which is closed whatever happens; nothing of the user's is touched."""
        root = self.project(tmp_path)
        before = watched(root)

        async def told() -> T:
            workspace = self.workspace(tmp_path, root)
            try:
                return await story(workspace)
            finally:
                await workspace.close()

        result = asyncio.run(told())
        assert watched(root) == before
        return result

    # ---- a directory a lane ----

    def test_a_directory_holds_exactly_the_base_and_the_files_over_it(self, tmp_path: Path) -> None:
        async def story(workspace: Workspace) -> None:
            for overlay in ({}, OVERLAY, {"src/empty.py": "x"}, OVERLAY, {}):
                assert held(await workspace.open(0, overlay)) == candidate(overlay)

        self.alone(tmp_path, story)

    def test_it_is_outside_of_the_users_folder(self, tmp_path: Path) -> None:
        async def story(workspace: Workspace) -> None:
            path = await workspace.open(0, {})
            assert not Path(path).resolve().is_relative_to(self.project(tmp_path).resolve())

        self.alone(tmp_path, story)

    def test_whatever_the_last_tenant_left_the_next_finds_its_candidate_and_no_more(self, tmp_path: Path) -> None:
        async def story(workspace: Workspace) -> None:
            for leave in TENANTS:
                leave(Path(await workspace.open(0, OVERLAY)))
                assert held(await workspace.open(0, OVERLAY)) == candidate(OVERLAY), leave.__name__
                leave(Path(await workspace.open(0, OVERLAY)))
                assert held(await workspace.open(0, {})) == candidate({}), leave.__name__

        self.alone(tmp_path, story)

    def test_what_another_controller_left_is_gone_too(self, tmp_path: Path) -> None:
        async def first(workspace: Workspace) -> str:
            _littered(Path(path := await workspace.open(0, OVERLAY)))
            return path

        async def story(second: Workspace, _path: str) -> None:
            assert held(await second.open(0, {})) == candidate({})

        self._after_another(tmp_path, first, story)

    def test_lanes_do_not_see_each_other(self, tmp_path: Path) -> None:
        async def story(workspace: Workspace) -> None:
            one, two = Path(await workspace.open(1, OVERLAY)), Path(await workspace.open(2, {}))
            assert one != two
            assert one not in two.parents
            assert two not in one.parents
            _changed(two)
            _littered(two)
            assert held(one) == candidate(OVERLAY)
            assert await _touched(workspace, 1, PATHS) == set()
            assert await _touched(workspace, 2, ["bench.py"]) == {"bench.py"}
            await workspace.open(1, {})
            assert (two / "junk").read_text() == "x"
            _gone(one)
            assert await _touched(workspace, 1, ["bench.py"]) is None
            assert await _touched(workspace, 2, ["run.sh"]) == set()

        self.alone(tmp_path, story)

    def test_lanes_that_are_opened_at_once_each_get_their_own(self, tmp_path: Path) -> None:
        async def story(workspace: Workspace) -> None:
            overlays = [{"src/model.py": f"RATE = {lane}\n"} for lane in range(6)]
            paths = await asyncio.gather(*(workspace.open(lane, overlay) for lane, overlay in enumerate(overlays)))
            assert [held(path) for path in paths] == [candidate(overlay) for overlay in overlays]

        self.alone(tmp_path, story)

    # ---- what a run did ----

    def test_nothing_is_touched_until_somebody_does(self, tmp_path: Path) -> None:
        async def story(workspace: Workspace) -> None:
            for overlay in ({}, OVERLAY):
                top = Path(await workspace.open(0, overlay))
                _littered(top)
                assert await _touched(workspace, 0, {*PATHS, "src/never.py"}) == set()

        self.alone(tmp_path, story)

    def test_files_that_a_run_changed_or_removed_are_told_frozen_ones_and_its_own(self, tmp_path: Path) -> None:
        expected = {
            _changed: {"src/model.py", "bench.py", "data/table.csv"},
            _in_place: {"bench.py"},
            _removed: {"bench.py", "src/deep/er/layer.py"},
            _exchanged: {"bench.py", "data/table.csv"},
        }

        async def story(workspace: Workspace) -> None:
            for do, paths in expected.items():
                do(Path(await workspace.open(0, OVERLAY)))
                assert await _touched(workspace, 0, PATHS) == paths, do.__name__
                assert await _touched(workspace, 0, ["run.sh", "src/new/part.py"]) == set()
            await workspace.open(0, OVERLAY)
            assert await _touched(workspace, 0, PATHS) == set()

        self.alone(tmp_path, story)

    def test_a_file_that_a_run_made_huge_is_told_without_being_read(self, tmp_path: Path) -> None:
        async def story(workspace: Workspace) -> None:
            top = Path(await workspace.open(0, OVERLAY))
            for path in ("bench.py", "src/new/part.py"):
                os.truncate(top / path, 1 << 42)
                assert await _touched(workspace, 0, [path]) == {path}

        self.alone(tmp_path, story)

    def test_a_link_in_the_place_of_a_file_is_told_even_where_it_leads_to_the_same(self, tmp_path: Path) -> None:
        async def story(workspace: Workspace) -> None:
            top = Path(await workspace.open(0, OVERLAY))
            for path in ("bench.py", "src/new/part.py"):
                (top / path).rename(top / "kept")
                (top / path).symlink_to(top / "kept")
                assert await _touched(workspace, 0, [path]) == {path}
                (top / path).unlink()
                (top / "kept").rename(top / path)

        self.alone(tmp_path, story)

    def test_a_directory_that_is_gone_or_replaced_tells_nothing_of_its_files(self, tmp_path: Path) -> None:
        async def story(workspace: Workspace) -> None:
            top = Path(await workspace.open(0, {}))
            top.rename(away := top.with_name("away"))
            assert await _touched(workspace, 0, ["bench.py"]) is None
            top.symlink_to(away)
            assert await _touched(workspace, 0, ["bench.py"]) is None
            top.unlink()
            shutil.rmtree(away)
            assert held(await workspace.open(0, {})) == candidate({})

        self.alone(tmp_path, story)

    # ---- a controller that comes after ----

    def test_what_another_controller_began_is_taken_up_as_it_is(self, tmp_path: Path) -> None:
        async def first(workspace: Workspace) -> str:
            path = await workspace.open(0, OVERLAY)
            _littered(Path(path))
            (Path(path) / "src/model.py").write_text("RATE = 9\n")
            return path

        async def story(second: Workspace, path: str) -> None:
            before = watched(Path(path))
            assert await second.adopt(0, OVERLAY) == path
            assert await _touched(second, 0, PATHS) == {"src/model.py"}
            assert watched(Path(path)) == before
            assert held(await second.open(0, {})) == candidate({})

        self._after_another(tmp_path, first, story)

    def test_what_an_agent_did_for_another_controller_is_told_to_the_next(self, tmp_path: Path) -> None:
        async def first(workspace: Workspace) -> str:
            bench = await workspace.bench(0, OVERLAY, "do it")
            Path(bench.cwd, "src/model.py").write_text("RATE = 9\n")
            return bench.cwd

        async def story(second: Workspace, path: str) -> None:
            assert await second.adopt(0, OVERLAY) == path
            assert await _written(second) == ({"src/model.py": "RATE = 9\n"}, [])

        self._after_another(tmp_path, first, story)

    def test_who_closes_without_having_opened_leaves_what_somebody_works_in(self, tmp_path: Path) -> None:
        async def first(workspace: Workspace) -> str:
            return await workspace.open(0, OVERLAY)

        async def story(second: Workspace, path: str) -> None:
            script = "import time; print(flush=True); time.sleep(600)"
            work = subprocess.Popen([sys.executable, "-c", script], cwd=path, stdout=subprocess.PIPE)
            try:
                assert work.stdout is not None
                work.stdout.readline()
                await second.close()
                assert held(path) == candidate(OVERLAY)
            finally:
                work.kill()
                work.communicate()
            await self.workspace(tmp_path, self.project(tmp_path)).close()
            assert not Path(path).exists()

        self._after_another(tmp_path, first, story)

    # ---- a coding agent ----

    def test_a_bench_is_a_repository_of_its_own_with_one_commit_of_the_candidate(self, tmp_path: Path) -> None:
        async def story(workspace: Workspace) -> None:
            for overlay in (OVERLAY, {}):
                bench = await workspace.bench(0, overlay, "do it")
                assert _beside_git(bench) == candidate(overlay)
                assert git(bench.cwd, "rev-list", "--count", "--all") == "1"
                assert git(bench.cwd, "status", "--porcelain", "--ignored") == ""
                assert Path(git(bench.cwd, "rev-parse", "--absolute-git-dir")) == Path(bench.cwd).resolve() / ".git"
                assert set(git(bench.cwd, "ls-files").splitlines()) == {*PROJECT, *overlay}
                _committed(bench)

        self.alone(tmp_path, story)

    def test_a_brief_is_told_and_in_a_file_beside_the_candidate(self, tmp_path: Path) -> None:
        async def story(workspace: Workspace) -> None:
            for brief in ("Make it faster.\n", "\u00fcber \N{GRINNING FACE}\r\n{brief}", ""):
                bench = await workspace.bench(0, OVERLAY, brief)
                assert (bench.brief, Path(bench.file).read_bytes()) == (brief, brief.encode())
                assert not Path(bench.file).is_relative_to(bench.cwd)

        self.alone(tmp_path, story)

    def test_after_a_bench_a_trials_directory_has_no_repository(self, tmp_path: Path) -> None:
        async def story(workspace: Workspace) -> None:
            _committed(await workspace.bench(0, OVERLAY, ""))
            assert held(await workspace.open(0, {})) == candidate({})

        self.alone(tmp_path, story)

    def test_what_an_agent_wrote_is_told_with_new_files_and_gone_ones(self, tmp_path: Path) -> None:
        async def story(workspace: Workspace) -> None:
            for commits in (False, True):
                top = Path((bench := await workspace.bench(0, OVERLAY, "")).cwd)
                assert await _written(workspace) == ({}, [])
                (top / "src/model.py").write_bytes(b"RATE = 1\r\n")
                (top / "src/new/part.py").write_text(PROJECT["src/model.py"])
                (top / "src/new/other.py").write_text("x = 1")
                (top / "src/deep/er/layer.py").unlink()
                if commits:
                    _committed(bench)
                files, new = await _written(workspace)
                assert files == {
                    "src/model.py": "RATE = 1\r\n",
                    "src/new/part.py": PROJECT["src/model.py"],
                    "src/new/other.py": "x = 1",
                    "src/deep/er/layer.py": None,
                }
                assert new == ["src/new/other.py"]

        self.alone(tmp_path, story)

    def test_a_frozen_file_that_an_agent_changed_or_removed_is_told(self, tmp_path: Path) -> None:
        async def story(workspace: Workspace) -> None:
            top = Path((await workspace.bench(0, {}, "")).cwd)
            (top / "bench.py").write_text("cheat")
            (top / "run.sh").unlink()
            (top / "notes").write_text("x")
            files, new = await _written(workspace)
            assert (set(files), new) == ({"bench.py", "run.sh", "notes"}, ["notes"])
            assert files["run.sh"] is None
            assert files["bench.py"] is not None

        self.alone(tmp_path, story)

    def test_litter_is_told_by_nobody(self, tmp_path: Path) -> None:
        async def story(workspace: Workspace) -> None:
            top = Path((await workspace.bench(0, OVERLAY, "")).cwd)
            (top / "src/__pycache__").mkdir()
            (top / "src/__pycache__/model.pyc").write_bytes(b"\xff")
            (top / "src/model.py").write_text(OVERLAY["src/model.py"])
            assert await _written(workspace) == ({}, [])

        self.alone(tmp_path, story)

    def test_what_no_candidate_can_have_is_refused(self, tmp_path: Path) -> None:
        def linked(src: Path) -> None:
            (src / "model.py").unlink()
            (src / "model.py").symlink_to("/etc/passwd")

        def many(src: Path) -> None:
            for number in range(5000):
                (src / f"{number}.py").touch()

        spoils: dict[str, Callable[[Path], object]] = {
            "a link": lambda src: (src / "link.py").symlink_to("model.py"),
            "a link for a file": linked,
            "no text": lambda src: (src / "model.py").write_bytes(b"\xff\xfe"),
            "a pipe": lambda src: os.mkfifo(src / "pipe"),
            "too large": lambda src: (src / "large.py").write_bytes(b"x" * (64 << 20)),
            "too many": many,
        }

        async def story(workspace: Workspace) -> None:
            for name, spoil in spoils.items():
                spoil(Path((await workspace.bench(0, {}, "")).cwd, "src"))
                await _refused(workspace, name)

        self.alone(tmp_path, story)

    # ---- what scores a trial ----

    def test_what_scores_has_all_but_what_candidates_may_change(self, tmp_path: Path) -> None:
        """And that anew each time, whatever was carried there; the candidate's directory does not change with it."""
        rest = {path: file for path, file in candidate({}).items() if not path.startswith("src/")}

        async def story(workspace: Workspace) -> None:
            for _ in range(2):
                top = Path(await workspace.open(0, OVERLAY))
                place = Path(await workspace.scoring(0))
                assert held(place) == rest
                assert place not in (top, *top.parents)
                assert top not in place.parents
                (place / "predictions").write_text("x")
                (place / "bench.py").write_text("mine")
                assert held(top) == candidate(OVERLAY)
            await workspace.close()
            assert not place.exists()

        self.alone(tmp_path, story)

    # ---- the end ----

    def test_close_removes_everything_and_may_be_asked_twice(self, tmp_path: Path) -> None:
        async def story(workspace: Workspace) -> None:
            before = set(held(tmp_path))
            one, two = await workspace.open(0, {}), await workspace.open(1, OVERLAY)
            bench = await workspace.bench(2, OVERLAY, "do it")
            for path in (one, two, bench.cwd):
                _littered(Path(path))
            await workspace.close()
            await workspace.close()
            assert not any(Path(path).exists() for path in (one, two, bench.cwd, bench.file))
            assert not any(path.endswith(("junk", "part.py")) for path in set(held(tmp_path)) - before)

        self.alone(tmp_path, story)

    def test_the_users_folder_is_as_it_was_after_all_that_tenants_and_agents_did(self, tmp_path: Path) -> None:
        async def story(workspace: Workspace) -> None:
            for leave in TENANTS:
                leave(Path(await workspace.open(0, OVERLAY)))
                bench = await workspace.bench(1, OVERLAY, "do it")
                leave(Path(bench.cwd))
                await _touched(workspace, 0, PROJECT)
            await workspace.open(0, {})
            await workspace.bench(1, {}, "again")
            await workspace.written(1)

        self.alone(tmp_path, story)
        assert {path: file for path, file in held(self.project(tmp_path)).items() if path[:5] != ".git/"} == candidate(
            {}
        )

    def _after_another(
        self,
        tmp_path: Path,
        begun: Callable[[Workspace], Awaitable[str]],
        story: Callable[[Workspace, str], Awaitable[None]],
    ) -> None:
        """A story with a workspace whose controller comes after one that was killed, and the directory of that one."""

        async def whole(first: Workspace) -> None:
            said = await begun(first)
            await self.abandon(first)
            second = self.workspace(tmp_path, self.project(tmp_path))
            try:
                await story(second, said)
            finally:
                await second.close()

        self.alone(tmp_path, whole)


def _beside_git(bench: Bench) -> dict[str, File]:
    return {path: file for path, file in held(bench.cwd).items() if path != ".git" and not path.startswith(".git/")}


def _committed(bench: Bench) -> None:
    """An agent commits what it did."""
    git(bench.cwd, "add", "--all", "--force")
    git(bench.cwd, "commit", "--quiet", "--allow-empty", "--message=agent")


async def _touched(workspace: Workspace, lane: int, paths: Collection[str]) -> set[str] | None:
    told = await workspace.touched(lane, paths)
    return None if told is None else set(told)


async def _written(workspace: Workspace) -> tuple[dict[str, str | None], list[str]]:
    files, new = await workspace.written(0)
    return dict(files), sorted(new)


async def _refused(workspace: Workspace, what: str) -> None:
    try:
        told = await _written(workspace)
    except UsageError:
        return
    raise AssertionError(f"{what}: expected to be refused, found {told!r:.200}")
