"""What it takes to give a code trial its folder, beside what git offers for it.

    python benchmarks/workspace.py [TURNS] [FILES,FILES] [FOLDER]    2,000 and 10,000 files of 1 KB, here

A turn: the trial before changed two files, made one and left a `__pycache__`; the next candidate has two files of its
own. Every way does the same work in each turn, one after the other, in one process; what counts is the ratio. `git
worktree` keeps its objects, references and history within the trial's reach; a slot does not.
"""

import asyncio
import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from metaloop.adapters.workspace.slots import Slots
from metaloop.adapters.workspace.snapshots import snapshot

OURS = "metaloop, a slot that was used before"


def git(folder: Path, *args: str) -> None:
    who = ("-c", "user.name=n", "-c", "user.email=n@x", "-c", "gc.auto=0")
    subprocess.run(["git", *who, "-C", str(folder), *args], check=True, capture_output=True)


def project(folder: Path, files: int) -> list[str]:
    """A repository with as many files, 20 in a folder; their names."""
    names = [f"part{number % (files // 100)}/sub{number // 20 % 5}/file{number}.py" for number in range(files)]
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"# {number}\n" + "x = 1\n" * 170)
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "all")
    return names


def tried(folder: Path, names: list[str], turn: int) -> None:
    """What a trial leaves."""
    for offset in (1, 2):
        (folder / names[(turn * 7 + offset) % len(names)]).write_text("written by the trial\n")
    (folder / "out.txt").write_text("out\n")
    cache = (folder / names[turn % len(names)]).parent / "__pycache__"
    cache.mkdir(exist_ok=True)
    (cache / "x.pyc").write_bytes(bytes(100))


def put(folder: Path, overlay: Mapping[str, str]) -> None:
    for name, text in overlay.items():
        (folder / name).write_text(text)


@contextmanager
def timed(took: list[float]) -> Iterator[None]:
    began = time.perf_counter()
    yield
    took.append((time.perf_counter() - began) * 1e3)


def looked_at(folder: Path) -> None:
    """The floor: every file is asked for its state, and nothing is done about it."""
    for at in os.scandir(folder):
        if at.is_dir(follow_symlinks=False):
            looked_at(Path(at.path))
        else:
            at.stat(follow_symlinks=False)


async def measured(files: int, turns: int, parent: Path) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory(dir=parent) as text:
        folder = Path(text)
        root, tree = folder / "project", folder / "tree"
        names = project(root, files)
        base = snapshot(root, folder / "repo")
        slots = Slots(folder / "repo", base, folder / "place")
        git(root, "worktree", "add", "--detach", str(tree))
        took: dict[str, list[float]] = {name: [] for name in ("first", "floor", "ours", "reset", "add")}
        for lane in (1, 2, 3):
            with timed(took["first"]):
                await slots.open(lane, {})
        slot = await slots.open(0, {})
        for turn in range(turns):
            overlay = {names[(turn * 11 + offset) % files]: f"candidate {turn}\n" for offset in (0, 5)}
            tried(slot, names, turn)
            tried(tree, names, turn)
            with timed(took["floor"]):
                looked_at(slot)
            with timed(took["ours"]):
                await slots.open(0, overlay)
            await asyncio.sleep(0.05)  # what went into the trash is deleted meanwhile, as it would be
            with timed(took["reset"]):
                git(tree, "reset", "-q", "--hard")
                git(tree, "clean", "-fdxq")
                put(tree, overlay)
            if turn % max(1, turns // 5):
                continue  # it may take seconds
            with timed(took["add"]):
                git(root, "worktree", "add", "--detach", str(folder / "other"))
                put(folder / "other", overlay)
                git(root, "worktree", "remove", "--force", str(folder / "other"))
        await slots.close_all()
        return took


ROWS = {
    "ours": OURS,
    "first": "metaloop, a slot for the first time",
    "floor": "a walk with one `stat` a file, alone",
    "reset": "git worktree, `reset --hard` and `clean -fdx`",
    "add": "git worktree, `add` and `remove`",
}


def main(turns: str = "60", sizes: str = "2000,10000", folder: str = ".") -> None:
    gc.set_threshold(50_000, 20, 20)  # as the command line does
    for files in map(int, sizes.split(",")):
        took = asyncio.run(measured(files, int(turns), Path(folder).resolve()))
        ours = median(took["ours"])
        print(f"\n{files} files, {turns} turns (`add` and `remove`: 5; the first time: 3)\n")
        print("| | median, ms | the quickest tenth, ms | ours takes |\n|---|---|---|---|")
        for name, words in ROWS.items():
            values = sorted(took[name])
            print(
                f"| {words} | {median(values):.1f} | {values[len(values) // 10]:.1f} | {ratio(ours, median(values))} |"
            )
        sys.stdout.flush()


def ratio(ours: float, theirs: float) -> str:
    if ours == theirs:
        return ""
    return f"1/{theirs / ours:.1f} of it" if theirs > ours else f"{ours / theirs:.1f} of it"


if __name__ == "__main__":
    main(*sys.argv[1:])
