"""What a trial costs on each rung of the sandbox, over the bare process, and how much of that is limits and keeper.

    python benchmarks/sandbox.py [TRIALS]    a table: median and quickest tenth in ms, and what they add to bare

`true` and `python -c pass`, through the real executor (start, release, wait), with control groups; all kinds take
turns in one process, so that the machine's mood is everybody's. Bare is `posix_spawn` and a wait. Ordinary walls: the
command's prefix to be read, the job's folder to be written, no network; "host" shows the whole machine read-only.
"""

import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from metaloop.adapters import sandbox
from metaloop.adapters.local import LocalExecutor, interpreter
from metaloop.errors import UsageError
from metaloop.roles import Job, Outcome, Step, Walls
from metaloop.terms import Limits, Rung

COMMANDS = {"true": (shutil.which("true") or "/bin/true",), "python -c pass": (interpreter(), "-c", "pass")}
LIMITS = Limits(memory=1 << 30, processes=256)
BUDGETS = {"bubblewrap": (25.0, 40.0)}


async def bare(command: tuple[str, ...]) -> None:
    os.waitpid(os.posix_spawn(command[0], command, {}), 0)


class Kind:
    """One way to run a command, and how long it took each time, in ms."""

    def __init__(self, name: str, once: Callable[[tuple[str, ...]], Awaitable[None]]) -> None:
        self.name, self.once = name, once
        self.took: dict[str, list[float]] = {command: [] for command in COMMANDS}

    async def time(self, command: str) -> None:
        began = time.perf_counter()
        await self.once(COMMANDS[command])
        self.took[command].append((time.perf_counter() - began) * 1e3)


def kept(executor: LocalExecutor, folder: Path, lane: int, host: bool | None) -> Callable[..., Awaitable[None]]:
    """A trial of one step. `host`: whether its walls show the machine; None for no walls."""

    async def once(command: tuple[str, ...]) -> None:
        nonce = os.urandom(8).hex()
        place = str(folder / nonce)
        walls = Walls(host=bool(host), read=(sys.base_prefix,), write=(place,))
        step = Step("step", command, 30.0, {}, "", None if host is None else walls)
        handle = await executor.start(Job(nonce, lane, place, "/", {"PATH": os.defpath}, (step,), LIMITS))
        await executor.release(handle)
        outcome = await executor.wait(handle)
        if not isinstance(outcome, Outcome) or outcome.steps[0].exit != 0:
            raise SystemExit(f"expected exit 0, found {outcome}")

    return once


def rungs() -> list[Rung]:
    found = []
    for name in ("landlock", "bubblewrap"):
        try:
            found.append(sandbox.climb(name))
        except UsageError as lacks:
            print(f"{name}: {lacks}")
    return found


async def measured(trials: int, folder: Path) -> list[Kind]:
    kinds, executors = [Kind("bare", bare)], []
    ways: list[tuple[str, Rung | None, bool | None]] = [("limits only", None, None)]
    for climbed in rungs():
        ways += [(climbed.name, climbed, False), (f"{climbed.name}, host", climbed, True)]
    for lane, (name, rung, host) in enumerate(ways):
        executors.append(LocalExecutor(folder / name, rung=rung))
        kinds.append(Kind(name, kept(executors[-1], folder, lane, host)))
    for number in range(trials + 5):
        for command in COMMANDS:
            for kind in kinds:
                await kind.time(command)
                if number < 5:  # keepers start, caches fill
                    kind.took[command].clear()
    for executor in executors:
        await executor.close()
    return kinds


def quickest(took: list[float]) -> float:
    return median(sorted(took)[: max(1, len(took) // 10)])


def main(trials: int) -> None:
    with tempfile.TemporaryDirectory(prefix="metaloop-sandbox-") as folder:
        kinds = asyncio.run(measured(trials, Path(folder)))
    limits = kinds[1]
    for command in COMMANDS:
        print(f"\n{command:<20} {'median':>8} {'tenth':>8} {'+ bare':>8} {'x bare':>8} {'+ limits':>9} {'tenth':>8}")
        for kind in kinds:
            typical, best = median(kind.took[command]), quickest(kind.took[command])
            over, ratio = typical - median(kinds[0].took[command]), typical / median(kinds[0].took[command])
            added, least = typical - median(limits.took[command]), best - quickest(limits.took[command])
            row = f"{kind.name:<20} {typical:8.2f} {best:8.2f} {over:8.2f} {ratio:8.2f} {added:9.2f} {least:8.2f}"
            most, whole = BUDGETS.get(kind.name.partition(",")[0], (0.0, 0.0))
            print(row + (f"   budget {'held' if added <= most and over <= whole else 'BROKEN'}" if most else ""))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60)
