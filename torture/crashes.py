"""kill -9 of the controller alone, at any instant; its trials live on, as after the kernel ran out of memory.

usage: crashes.py random KILLS SEED       at random instants
       crashes.py exact [STRIDE [KINDS]]  before the k-th system call of a kind, k = 1, 1 + STRIDE, ... to the last
       crashes.py double [ROUNDS]         four controllers at once, killed together, four again, until the study is done
Ends with 0 where nothing was lost, doubled, left behind or decided otherwise than in a study that was left alone.
"""

import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from harness import Bench, began, missing, reference, report, scratch, wait_for

from metaloop.errors import MetaloopError
from metaloop.events import Resumed

KINDS = ("pwrite64", "write", "fdatasync", "fsync", "sendto", "rename", "unlink", "mkdir", "ftruncate", "vfork")


def random_kills(
    kills: int, seed: int, *, source: Path | None = None, trials: int = 20, make: type[Bench] = Bench
) -> bool:
    """Campaigns over one lane and two, until so many kills were made."""
    dice, killed, campaigns, extra, lost, times = random.Random(seed), 0, 0, 0, 0, list[float]()
    ok = True
    with scratch() as base:
        while killed < kills:
            bench = make(base / str(campaigns), trials, 1 + campaigns % 2, source=source)
            expected, runs = reference(bench)
            here, campaigns = 0, campaigns + 1
            before: dict[int, object] = {}
            while True:
                since = time.time()
                process = bench.start()
                if dice.random() < 0.75:  # else anywhere, and mostly while it loads
                    wait_for(lambda: holds(bench, process), 10)  # noqa: B023 - called at once
                try:
                    process.wait(timeout=dice.expovariate(4.0) if killed < kills else 120)
                    break
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                killed, here = killed + 1, here + 1
                times += [t for t in [bench.first_new(since)] if t is not None]
                if dice.random() < 0.5:
                    continue  # at once: the old trial still runs
                now = bench.completed()
                lost += len(before.items() - now.items())
                before = now
            found = bench.problems(expected, here, runs)
            if process.returncode != 0:
                found.append(f"exit code {process.returncode}: {bench.end(process).err[-300:]}")
            extra += bench.executions() - runs
            if found:
                ok = report(f"campaign {campaigns}, seed {seed}, {here} kills", False, "; ".join(found))
    middle, longest = (statistics.median(times), max(times)) if times else (0.0, 0.0)
    seen = (
        f"{killed} kills in {campaigns} campaigns, lost {lost}, runs more {extra}, "
        f"start to first new trial {middle:.2f} s in the middle, {longest:.2f} s at most, of {len(times)}"
    )
    return report(f"random, seed {seed}", ok and not lost, seen)


def holds(bench: Bench, process: subprocess.Popen[str]) -> bool:
    """Whether this controller has the lease, or is over."""
    lock = bench.study / "lock"
    return process.poll() is not None or (lock.exists() and lock.read_text() == str(process.pid))


def readable(bench: Bench) -> tuple[list[str], dict[int, object]]:
    """What a reader finds completed, and what it has against the ledger."""
    try:
        return [], bench.completed()
    except MetaloopError as error:
        return [f"a reader says {error}"], {}


def exact(
    stride: int = 1,
    kinds: Sequence[str] = KINDS,
    *,
    source: Path | None = None,
    trials: int = 5,
    most: int = 10**6,
    make: type[Bench] = Bench,
) -> bool:
    """At the k-th call, before it is made. `most`: points of a kind."""
    points, bad, extra, began_at = 0, 0, 0, time.monotonic()
    with scratch() as base:
        for kind in kinds:
            k, survived = 1, 0
            while not survived and k <= stride * most:
                bench = make(base / f"{kind}{k}", trials, pace="0", source=source)
                expected, runs = reference(bench)
                inject = f"inject={kind}:signal=SIGKILL:when={k}"
                hit = bench.run(under=("strace", "-o", "/dev/null", "-e", f"trace={kind}", "-e", inject))
                if hit.code == 0:
                    survived = k
                    continue
                found, before = readable(bench)
                again = bench.run()
                found += bench.problems(expected, 1, runs)
                found += [f"lost {lost}" for lost in [before.items() - readable(bench)[1].items()] if lost]
                found += [f"after: {again.code} {again.said}"] if again.code != 0 or again.spilled else []
                found += [f"ended with {hit.code}"] if hit.code != -signal.SIGKILL else []
                points, extra = points + 1, extra + bench.executions() - runs
                if found:
                    bad += 1
                    report(f"{kind} {k}", False, "; ".join(found))
                k += stride
            print(f"  {kind}: {'done at' if survived else 'left at'} {k}", flush=True)
    seen = f"{points} points, {bad} bad, runs more {extra}, {time.monotonic() - began_at:.0f} s"
    return report("exact", not bad and points > 0, seen)


def double(rounds: int = 5, *, source: Path | None = None, trials: int = 12) -> bool:
    """Of four that start together one holds the study, the others end with 75 and write nothing."""
    dice, ok, codes, kills = random.Random(4), True, list[int](), 0
    with scratch() as base:
        for number in range(rounds):
            bench = Bench(base / str(number), trials, 1 + number % 2, pace="0.05", source=source)
            expected, runs = reference(bench)
            starts = over = here = 0
            while not over and starts < 100:
                starts += 1
                four = [bench.start() for _ in range(4)]
                pause = dice.uniform(0.5, 1.5) if starts <= 3 else 120
                end = time.monotonic() + pause
                while time.monotonic() < end and any(process.poll() is None for process in four):
                    time.sleep(0.01)
                for process in four:
                    if process.poll() is None:
                        here += 1
                        process.kill()
                    codes.append(process.wait())
                    over += process.returncode == 0
            kills += here
            found = bench.problems(expected, here, runs)
            try:
                sessions = sum(isinstance(entry.event, Resumed) for entry in bench.entries())
            except MetaloopError:
                sessions = 0
            found += [f"{sessions} sessions of {starts} starts"] if sessions > starts else []
            if found:
                ok = report(f"round {number}", False, "; ".join(found))
    other = sorted(set(codes) - {0, 75, -signal.SIGKILL})
    seen = f"{len(codes)} controllers, {codes.count(75)} refused with 75, {kills} killed, {codes.count(0)} ended with 0"
    return report("double", ok and not other, seen + (f", others with {other}" if other else ""))


def main(words: Sequence[str]) -> bool:
    if words[:1] == ["random"] and len(words) == 3:
        return random_kills(int(words[1]), int(words[2]))
    if words[:1] == ["exact"] and not missing("strace"):
        return exact(int((*words, "1")[1]), words[2].split(",") if len(words) > 2 else KINDS)
    if words[:1] == ["double"]:
        return double(int((*words, "5")[1]))
    print(__doc__, f"missing: {missing('strace', 'flock')}", file=sys.stderr)
    os._exit(2)


if __name__ == "__main__":
    began()
    sys.exit(not main(sys.argv[1:]))
