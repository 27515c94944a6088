"""How busy two lanes are with trials that sleep: sleeping time over lanes times wall clock. Ours, and Optuna beside it.

    python benchmarks/lanes.py [PEER] [FOLDER]    0.5 s x 40 and 0.1 s x 100, three blocks each, in FOLDER (/dev/shm)
    python benchmarks/lanes.py --model [FOLDER]   0.5 s x 60 and x 120, proposed by a model that takes 1 s for each

PEER is an interpreter that has Optuna: there it runs the same command by `subprocess.run`, with `n_jobs=2`, the random
sampler and SQLite, in turns with ours. The command is a `sh` that prints a metric and sleeps. Ours is the real engine,
ledger, executor and keepers. Wall clock is from the first start to the last end, as each of them records it. Bare is
the command alone, started again and again by a thread a lane: what nobody can exceed on this machine.
"""

import asyncio
import gc
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metaloop.flow import Prompt

LANES = 2
THINKS = 1.0
"""Seconds that the model takes."""
SIZES = ((0.5, 40), (0.1, 100))
BLOCKS = 3


def command(seconds: float) -> tuple[str, ...]:
    return ("/bin/sh", "-c", f"echo score=1; exec sleep {seconds}")


def ours(seconds: float, trials: int, folder: Path, asked: bool = False) -> float:
    """Wall clock from the first `Started` of a proposal to the last `Finished`, in s. `asked`: a model proposes."""
    from metaloop.adapters.inbox import FileInbox
    from metaloop.adapters.ledger import open_ledger
    from metaloop.adapters.local import LocalExecutor
    from metaloop.config import prompt_files, thought_of
    from metaloop.engine import Engine, Session, World, open_study
    from metaloop.events import Finished, Resumed, Started
    from metaloop.jobs import Surroundings
    from metaloop.terms import Baseline, Bounds, Host, Terms
    from metaloop.testing import ScriptedModel
    from metaloop.values import Objective, Range, Space

    space: Space = {f"p{number}": Range(0.0, 1.0) for number in range(5)}
    baseline = Baseline(repeats=1) if asked else Baseline("none")
    policy = "llm" if asked else "random"
    terms = Terms("t", Objective("score", "max"), command(seconds), policy, space, baseline=baseline)
    bounds = Bounds(trials, no_improve_limit=0, lanes=LANES)
    texts = {path.stem: path.read_text(encoding="utf-8") for path in prompt_files()} if asked else {}
    model = ScriptedModel(chosen, seconds=THINKS) if asked else None
    marks: list[float] = []

    def seen(entries: object, _: object) -> None:
        events = [entry.event for entry in entries]  # type: ignore[attr-defined]
        if any(isinstance(event, Started | Finished) and event.trial for event in events):
            marks.append(time.perf_counter())

    async def run() -> None:
        ledger = open_ledger(folder)
        study = open_study(ledger, Session(terms, Resumed(bounds, Host("x"), "0", "none", "", texts=texts)))
        executor = LocalExecutor(folder / "lanes")
        where = Surroundings(str(folder), str(folder), {"PATH": "/usr/bin:/bin"}, {})
        nonce, inbox = lambda: secrets.token_hex(6), FileInbox(folder)
        world = World(ledger, executor, where, nonce, time.monotonic, model, inbox=inbox, observers=(seen,))
        await Engine(study, thought_of(terms), world).run()
        await executor.close()
        ledger.close()

    gc.set_threshold(50_000, 20, 20)  # as the command line does
    asyncio.run(run())
    return marks[-1] - marks[0]


def chosen(prompt: "Prompt") -> str:
    """What the model says: a point that depends on what it is asked."""
    dice = Random(prompt.digest())
    return json.dumps({"why": "a draw", "params": {f"p{number}": dice.random() for number in range(5)}})


def asked(parent: str = "/dev/shm") -> None:
    """The table of a model that proposes."""
    print("| trials | model | busy, median | busy, least | most |\n|---|---|---|---|---|")
    for trials in (60, 120):
        walls = []
        for _ in range(BLOCKS):
            with tempfile.TemporaryDirectory(dir=parent) as folder:
                walls.append(ours(0.5, trials, Path(folder).resolve(), asked=True))
        busy = [100 * trials * 0.5 / (LANES * wall) for wall in walls]
        row = f"| {trials} x 0.5 s | {THINKS:g} s | {median(busy):.1f} % | {min(busy):.1f} % | {max(busy):.1f} % |"
        print(row, flush=True)


def bare(seconds: float, trials: int, _: Path) -> float:
    """The same, with nothing around it."""
    null = os.open(os.devnull, os.O_RDWR)

    def lane() -> None:
        for _ in range(trials // LANES):
            told = command(seconds)
            process = os.posix_spawn(told[0], told, {}, file_actions=[(os.POSIX_SPAWN_DUP2, null, 1)])
            os.waitpid(process, 0)

    began = time.perf_counter()
    with ThreadPoolExecutor(LANES) as threads:
        for done in [threads.submit(lane) for _ in range(LANES)]:
            done.result()
    os.close(null)
    return time.perf_counter() - began


def optuna(seconds: float, trials: int, folder: Path) -> float:
    """The same, as Optuna records it."""
    import optuna

    def objective(trial: "optuna.Trial") -> float:
        for number in range(5):
            trial.suggest_float(f"p{number}", 0.0, 1.0)
        said = subprocess.run(command(seconds), capture_output=True, check=True).stdout
        return float(said.decode().partition("=")[2])

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder}/optuna.db")
    study = optuna.create_study(storage=storage, sampler=optuna.samplers.RandomSampler(seed=0), direction="maximize")
    study.optimize(objective, n_trials=trials, n_jobs=LANES)
    begun, ended = (
        [getattr(trial, when) for trial in study.trials] for when in ("datetime_start", "datetime_complete")
    )
    wall: float = (max(ended) - min(begun)).total_seconds()
    return wall


def beside(peer: str, seconds: float, trials: int, folder: Path) -> float:
    """Optuna's wall clock, in an interpreter that has it."""
    told = [peer, __file__, "--one", str(seconds), str(trials), str(folder)]
    return float(subprocess.run(told, capture_output=True, check=True, text=True).stdout)


def main(peer: str = "", parent: str = "/dev/shm") -> None:
    print("| trials | who | busy, median | busy, least | most |\n|---|---|---|---|---|")
    for seconds, trials in SIZES:
        walls: dict[str, list[float]] = {}
        for _ in range(BLOCKS):
            with tempfile.TemporaryDirectory(dir=parent) as folder:
                place = Path(folder).resolve()
                walls.setdefault("bare", []).append(bare(seconds, trials, place))
                walls.setdefault("metaloop", []).append(ours(seconds, trials, place))
                if peer:
                    walls.setdefault("Optuna", []).append(beside(peer, seconds, trials, place))
        for who, took in walls.items():
            busy = [100 * trials * seconds / (LANES * wall) for wall in took]
            row = f"| {trials} x {seconds} s | {who} | {median(busy):.1f} % | {min(busy):.1f} % | {max(busy):.1f} % |"
            print(row, flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(optuna(float(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])))
    elif sys.argv[1:2] == ["--model"]:
        asked(*sys.argv[2:])
    else:
        main(*sys.argv[1:])
