"""How long a command takes from nothing: the interpreter's start, what it imports, its answer.

    python benchmarks/cold.py [TIMES]    each command so many times (40), in turns; ms, and modules that are loaded

Beside a bare `python -c pass` of the same interpreter. `metaloop` has to be installed beside that interpreter. Of
modules, those are named that a path has no need of: whoever sees one there has found a fault.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

PROGRAM = str(Path(sys.executable).with_name("metaloop"))
HEAVY = {"optuna", "scipy", "numpy", "sklearn", "pandas", "ray", "rich", "asyncio", "pydantic", "ruamel", "yaml"}
COMMANDS: dict[str, list[str]] = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "metaloop --help": [PROGRAM, "--help"],
    "metaloop --version": [PROGRAM, "--version"],
    "metaloop status --help": [PROGRAM, "status", "--help"],
    "metaloop status (3 trials)": [PROGRAM, "status"],
}


def took(command: list[str], folder: str) -> float:
    """In ms."""
    began = time.perf_counter()
    subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - began) * 1e3


def heavy(command: list[str], folder: str) -> str:
    """What it loads of the modules that are dear."""
    if command[0] != PROGRAM:
        return ""
    told = [sys.executable, "-X", "importtime", *command]
    lines = subprocess.run(told, cwd=folder, capture_output=True, text=True, check=True).stderr.splitlines()
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines if line.startswith("import time")}
    return ", ".join(sorted(HEAVY & loaded)) or "none"


def main(times: str = "40") -> None:
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--metric", "score", "--param", "x=0..1", "--policy", "random", "--max-iterations", "3"]
        study = [PROGRAM, "run", "--cmd", "echo score=1", *flags]
        subprocess.run(study, cwd=folder, check=True, capture_output=True, env={**os.environ, "NO_COLOR": "1"})
        marks: dict[str, list[float]] = {name: [] for name in COMMANDS}
        for _ in range(int(times)):
            for name, command in COMMANDS.items():
                marks[name].append(took(command, folder))
        print("| | median, ms | least, ms | dear modules |\n|---|---|---|---|")
        for name, command in COMMANDS.items():
            print(f"| `{name}` | {median(marks[name]):.0f} | {min(marks[name]):.0f} | {heavy(command, folder)} |")


if __name__ == "__main__":
    main(*sys.argv[1:])
