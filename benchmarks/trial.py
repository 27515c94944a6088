"""What a trial of a command that does nothing costs over the bare process, and where that goes.

    python benchmarks/trial.py [TRIALS] [BLOCKS] [FOLDER ...]    a table a folder (/dev/shm and the current one)

The real engine, ledger, executor and keeper, policy random, one lane; the command is `echo score=1`. Bare is the same
command by `posix_spawn` (which is a vfork) and a wait. Both take turns, BLOCKS times, in one process; what counts is
the difference. The first tenth of a study is left out: the keeper starts in it.
"""

import asyncio
import gc
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

COMMAND = (shutil.which("echo") or "/bin/echo", "score=1")
PARTS = ("start", "recorded as started", "release", "look", "wait", "read, decided, recorded")


def bare(times: int) -> list[float]:
    """How long each process took, in ms."""
    null = os.open(os.devnull, os.O_RDWR)
    took = []
    for _ in range(times):
        began = time.perf_counter()
        process = os.posix_spawn(COMMAND[0], COMMAND, {}, file_actions=[(os.POSIX_SPAWN_DUP2, null, 1)])
        os.waitpid(process, 0)
        took.append(time.perf_counter() - began)
    os.close(null)
    return [seconds * 1e3 for seconds in took]


def synced(times: int, folder: Path) -> list[float]:
    """What two commits cost the disk alone, in ms: a page appended and synced, twice."""
    took = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(times):
            began = time.perf_counter()
            for _ in range(2):
                os.write(file.fileno(), bytes(4096))
                os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1e3)
    return took


class Timed:
    """An executor that notes when each of its calls began and ended."""

    def __init__(self, executor: object) -> None:
        self.executor, self.marks = executor, list[tuple[str, float, float]]()
        self.alive: list[float] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.executor, name)

        async def timed(*args: object, **more: object) -> object:
            began = time.perf_counter()
            try:
                result = await method(*args, **more)
            finally:
                self.marks.append((name, began, time.perf_counter()))
            if name == "wait":
                self.alive.append(result.steps[-1].seconds * 1e3)
            return result

        return timed

    def parts(self) -> list[dict[str, float]]:
        """Where each trial's time went, in ms: every moment from one start to the next belongs to one part."""
        trials: list[dict[str, float]] = []
        ended = 0.0
        for name, began, end in self.marks:
            if name == "start" and trials:
                trials[-1]["read, decided, recorded"] = (began - ended) * 1e3
            if name == "start":
                trials.append({})
            if name == "release":
                trials[-1]["recorded as started"] = (began - ended) * 1e3
            if name != "close":
                trials[-1][name] = (end - began) * 1e3
                ended = end
        return trials[len(trials) // 10 : -1]


def ours(trials: int, folder: Path) -> tuple[list[dict[str, float]], list[float]]:
    """Where the time of each trial went; and for how long the keeper saw each process alive, in ms."""
    from metaloop.adapters.ledger import open_ledger
    from metaloop.adapters.local import LocalExecutor
    from metaloop.config import thought_of
    from metaloop.engine import Engine, Session, World, open_study
    from metaloop.events import Resumed
    from metaloop.jobs import Surroundings
    from metaloop.terms import Baseline, Bounds, Host, Terms
    from metaloop.values import Objective, Range, Space

    space: Space = {f"p{number}": Range(0.0, 1.0) for number in range(5)}
    terms = Terms("t", Objective("score", "max"), COMMAND, "random", space, baseline=Baseline("none"))
    timed = Timed(LocalExecutor(folder / "lanes"))

    async def run() -> None:
        ledger = open_ledger(folder)
        study = open_study(
            ledger, Session(terms, Resumed(Bounds(trials, no_improve_limit=0), Host("x"), "0", "none", ""))
        )
        where = Surroundings(str(folder), str(folder), {}, {})
        world = World(ledger, timed, where, lambda: secrets.token_hex(6), time.monotonic)
        await Engine(study, thought_of(terms), world).run()
        await timed.close()
        ledger.close()

    asyncio.run(run())
    return timed.parts(), timed.alive


def table(parent: Path, trials: int, blocks: int) -> None:
    floor, disk, alive, parts = list[float](), list[float](), list[float](), list[dict[str, float]]()
    with tempfile.TemporaryDirectory(dir=parent) as folder:  # deleted at the end: what was deleted makes ext4 slower
        for block in range(blocks):
            floor += bare(trials)
            disk += synced(trials // 4, Path(folder))
            found, seen = ours(trials, Path(folder).resolve() / str(block))
            alive += seen
            parts += found
    whole = [sum(trial.values()) for trial in parts]
    print(f"\n{parent}: {blocks} blocks of {trials}\n\n| | median, ms | the quickest tenth, ms |\n|---|---|---|")
    rows: list[tuple[str, Sequence[float]]] = [
        ("bare process", floor),
        ("trial", whole),
        *((f"of it: {name}", [trial[name] for trial in parts]) for name in PARTS),
        ("process alive, as the keeper sees it", alive),
        ("two synced writes alone", disk),
    ]
    for name, values in rows:
        print(f"| {name} | {median(values):.2f} | {tenth(values):.2f} |")
    over = median(whole) - median(floor), tenth(whole) - tenth(floor)
    print(f"| **trial over bare** | {over[0]:.2f} | {over[1]:.2f} |", flush=True)


def tenth(values: Sequence[float]) -> float:
    """What one of ten does not exceed: how it is while nobody else is busy."""
    return sorted(values)[len(values) // 10]


def main(trials: str = "200", blocks: str = "7", *folders: str) -> None:
    gc.set_threshold(50_000, 20, 20)  # as the command line does
    for folder in folders or ("/dev/shm", "."):
        table(Path(folder), int(trials), int(blocks))


if __name__ == "__main__":
    main(*sys.argv[1:])
