"""What it takes to come back to a study: cold processes on a study of many trials. Ours, and a peer's beside it.

    python benchmarks/reopen.py 10000 [FOLDER [PYTHON]]

Makes a study of so many trials in FOLDER (/dev/shm) and measures, in turns, each in a process of its own:

    help      `metaloop --help`
    status    `metaloop status`: every hash checked, all trials counted, the best
    resume    `metaloop run` after a kill -9, from the start of the process until the ledger says that a new trial has
              started; the trial itself is `/bin/echo`

With PYTHON, an interpreter that has Optuna, the same of Optuna on SQLite: `status` is load_study, the trials counted
and the best; `resume` is load_study and the first ask.
Wall clock, medians of seven; compare only figures of one run.
"""

import json
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median

from decision import grow

ROUNDS = 7
METALOOP = str(Path(sys.executable).with_name("metaloop"))
KEYS = {
    "name": "study",
    "objective": {"metric": "score", "direction": "max"},
    "target": {"train_cmd": ["/bin/echo", "score=0.5"]},
    "policy": {"type": "random", "params": {f"p{number}": {"low": 0.0, "high": 1.0} for number in range(5)}},
    "controller": {"max_iterations": 1_000_000, "no_improve_limit": 0},
    "evaluation": {"rule": "strict", "baseline_repeats": 0},
}

PEER = """
import sys, optuna
from optuna.distributions import FloatDistribution
optuna.logging.set_verbosity(optuna.logging.ERROR)
what, storage, trials = sys.argv[1:]
space = {f"p{number}": FloatDistribution(0.0, 1.0) for number in range(5)}
if what == "make":
    study = optuna.create_study(study_name="study", storage=storage, direction="maximize")
    params = {name: 0.5 for name in space}
    study.add_trials([optuna.create_trial(params=params, distributions=space, value=0.5) for _ in range(int(trials))])
if what == "status":
    study = optuna.load_study(study_name="study", storage=storage)
    print(len(study.trials), study.best_trial.number)
if what == "resume":
    study = optuna.load_study(study_name="study", storage=storage, sampler=optuna.samplers.RandomSampler())
    print(study.ask(space).number)
"""


def told(*command: str) -> float:
    """Milliseconds that a command takes to its end."""
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1e3


def resumed(folder: Path) -> float:
    """Milliseconds from the start of `metaloop run` until a new trial has started; then it is killed."""
    ledger = folder / ".metaloop/study/ledger.sqlite"
    with closing(sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)) as db:
        (place,) = db.execute("select max(place) from event").fetchone()
        began = time.perf_counter()
        process = subprocess.Popen([METALOOP, "run", "study.yaml"], cwd=folder, stderr=subprocess.DEVNULL)
        started = "select 1 from event where place > ? and once like 'Started/%'"
        while db.execute(started, (place,)).fetchone() is None:
            assert process.poll() is None, f"metaloop run ended with {process.returncode}"
            time.sleep(0.002)
        took = (time.perf_counter() - began) * 1e3
        process.send_signal(signal.SIGKILL)
        process.wait()
    return took


def made(folder: Path, trials: int) -> None:
    from metaloop.studyfile import load

    (folder / "study.yaml").write_text(json.dumps(KEYS))
    grow(folder / ".metaloop/study", load(folder / "study.yaml").terms, trials)


def main(trials: str, parent: str = "/dev/shm", peer: str | None = None) -> None:
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder = Path(name)
        made(folder, int(trials))
        study, storage = str(folder / ".metaloop/study"), f"sqlite:///{folder}/optuna.db"
        ours: dict[str, Callable[[], float]] = {
            "help": lambda: told(METALOOP, "--help"),
            "status": lambda: told(METALOOP, "status", study),
            "resume": lambda: resumed(folder),
        }
        rows = {f"metaloop, {what}": measure for what, measure in ours.items()}
        if peer is not None:
            told(peer, "-c", PEER, "make", storage, trials)
            for what in ("status", "resume"):
                rows[f"Optuna, {what}"] = lambda what=what: told(peer, "-c", PEER, what, storage, trials)  # type: ignore[misc]
        times = [{row: measure() for row, measure in rows.items()} for _ in range(ROUNDS)]
    print(f"| {trials} trials | ms |\n|---|---|")
    for row in rows:
        print(f"| {row} | {median(time[row] for time in times):.0f} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
