"""What a decision costs: propose, record, decide, durably; sampler and process left out. Ours, and peers beside it.

    python benchmarks/decision.py ours 1000 [FOLDER]       ms a trial over the last 500 of so many, in FOLDER (/dev/shm)
    python benchmarks/decision.py optuna 1000 [FOLDER]     the same with Optuna: random sampler, ask and tell, SQLite
    python benchmarks/decision.py rustuna 1000 [FOLDER]    the same with rustuna
    python benchmarks/decision.py growth [FOLDER]          ours at 100, 1,000, 10,000 and 100,000 trials, with memory

Each peer needs its package in the interpreter that runs it. Times are wall clock of one process; compare only figures
of one run.
"""

import asyncio
import gc
import resource
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from metaloop.engine import Observer
    from metaloop.terms import Terms


def ours(trials: int, folder: Path) -> float:
    """Milliseconds a trial over the last 500 (or fewer): the real engine, the real ledger, jobs that cost nothing."""
    from metaloop.events import Finished
    from metaloop.terms import Baseline, Terms
    from metaloop.values import Objective, Range, Space

    space: Space = {f"p{number}": Range(0.0, 1.0) for number in range(5)}
    terms = Terms("t", Objective("score", "max"), ("t",), "random", space, baseline=Baseline("none"))
    marks = deque[float](maxlen=min(501, trials // 2))

    def seen(entries: object, _: object) -> None:
        if any(isinstance(entry.event, Finished) for entry in entries):  # type: ignore[attr-defined]
            marks.append(time.perf_counter())

    grow(folder / "study", terms, trials, seen)
    return (marks[-1] - marks[0]) / (len(marks) - 1) * 1e3


def grow(folder: Path, terms: "Terms", trials: int, *observers: "Observer") -> None:
    """A study of so many trials in `folder`."""
    from metaloop.adapters.ledger import open_ledger
    from metaloop.config import thought_of
    from metaloop.engine import Engine, Session, World, open_study
    from metaloop.events import Resumed
    from metaloop.jobs import Surroundings
    from metaloop.roles import StepOutcome
    from metaloop.terms import Bounds, Host
    from metaloop.testing import InProcessExecutor

    nonces = iter(range(1 << 60))

    async def run() -> None:
        ledger = open_ledger(folder)
        session = Resumed(Bounds(trials, no_improve_limit=0), Host("x"), "0", "none", "")
        study = open_study(ledger, Session(terms, session))
        step = StepOutcome("train", 0, None, None, 0.0, "score=0.5", "")
        executor = InProcessExecutor(lambda *_: step, Forgetful())
        where = Surroundings("/s", "/", {}, {})
        world = World(ledger, executor, where, lambda: f"n{next(nonces)}", time.monotonic, observers=observers)
        await Engine(study, thought_of(terms), world).run()
        ledger.close()

    gc.set_threshold(50_000, 20, 20)  # as the command line does
    asyncio.run(run())


class Forgetful(dict):  # type: ignore[type-arg]
    """The double's store, keeping no more than is under way: what it remembers is not ours to count."""

    def __setitem__(self, key: object, value: object) -> None:
        while len(self) > 8:
            del self[next(iter(self))]
        super().__setitem__(key, value)


def optuna(trials: int, folder: Path) -> float:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder}/optuna.db")
    study = optuna.create_study(storage=storage, sampler=optuna.samplers.RandomSampler(seed=0), direction="maximize")
    return told(study, trials)


def rustuna(trials: int, folder: Path) -> float:
    import rustuna

    storage = rustuna.storages.SQLite3Storage(f"{folder}/rustuna.db")
    return told(rustuna.create_study(storage=storage, sampler=rustuna.samplers.RandomSampler(seed=0)), trials)


def told(study: object, trials: int) -> float:
    marks = []
    for _ in range(trials):
        trial = study.ask()  # type: ignore[attr-defined]
        for number in range(5):
            trial.suggest_float(f"p{number}", 0.0, 1.0)
        study.tell(trial.number, 0.5)  # type: ignore[attr-defined]
        marks.append(time.perf_counter())
    window = marks[-min(500, len(marks) // 2) :]
    return (window[-1] - window[0]) / (len(window) - 1) * 1e3


def main(what: str, *rest: str) -> None:
    if what == "growth":
        parent = Path(rest[0] if rest else "/dev/shm")
        print("| trials | ms a trial | peak memory, MB |\n|---|---|---|")
        for trials in (100, 1000, 10_000, 100_000):
            with tempfile.TemporaryDirectory(dir=parent) as folder:
                cost = ours(trials, Path(folder))
            print(
                f"| {trials} | {cost:.3f} | {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} |",
                flush=True,
            )
        return
    trials, parent = int(rest[0]), Path(rest[1] if len(rest) > 1 else "/dev/shm")
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        cost = {"ours": ours, "optuna": optuna, "rustuna": rustuna}[what](trials, Path(folder))
    print(f"{what}: {cost:.3f} ms a trial at {trials} trials in {parent}")


if __name__ == "__main__":
    main(*sys.argv[1:])
