"""What waiting costs: CPU time of a controller and its keeper while one trial sleeps.

    python benchmarks/idle.py [SECONDS]    over so many seconds (20) in the middle of the trial

The command line itself runs the study (`metaloop run`), inbox and all, in a folder of its own; every process that is
not a trial's is counted, by /proc.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TICK_MS = 1000 / os.sysconf("SC_CLK_TCK")


def used_ms(process: int) -> float:
    """The CPU time it has used, in ms."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_MS


def keepers(folder: str) -> list[int]:
    """Those whose lanes are in `folder`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if folder in (told := path.read_text()) and "keeper.py" in told:
                found.append(int(path.parent.name))
    return found


def wakeups(process: int) -> int:
    """How often it slept and woke."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("voluntary")).split()[1])


def main(seconds: str = "20") -> None:
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--metric", "score", "--param", "x=0..1", "--policy", "random"]
        command = [str(Path(sys.executable).with_name("metaloop")), "run", "--cmd", "sleep 600", *flags]
        controller = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            time.sleep(4)  # until all of them sleep
            watched = [controller.pid, *keepers(folder)]
            before = [(used_ms(process), wakeups(process)) for process in watched]
            time.sleep(float(seconds))
            print("| process | CPU, ms a second | of a core | wakes a second |\n|---|---|---|---|")
            for process, (used, woke) in zip(watched, before, strict=True):
                name = "controller" if process == controller.pid else "keeper"
                each = (used_ms(process) - used) / float(seconds)
                often = (wakeups(process) - woke) / float(seconds)
                print(f"| {name} | {each:.2f} | {each / 10:.2f} % | {often:.1f} |", flush=True)
        finally:
            controller.send_signal(signal.SIGINT)
            controller.send_signal(signal.SIGINT)
            controller.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
