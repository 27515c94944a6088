"""Times src/spell.py from outside: a process of its own, in a folder of its own, that gets words and no answers.

    python3 bench.py        # prints words_per_second=..., or says in a line what is wrong, and fails

What counts is the processor time of the whole process, its start included: on a busy machine a process waits, and time
on the clock tells of others. How fast the processor is just then is told by a loop that is always the same, before and
after each process. A fast program is started more often, so that it is measured as well as a slow one.
"""

import resource
import subprocess
import sys
import time
from pathlib import Path
from shutil import copy
from statistics import median
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
PROGRAM = HERE / "src" / "spell.py"
DICTIONARY = HERE / "tests" / "dictionary.txt"
ASKED = HERE / "tests" / "asked.txt"  # a word and its answer a line

PYTHON = [sys.executable, "-I", "-S", "-X", "utf8"]  # the standard library alone, and no variable that changes it
LEAST_RUNS, LEAST_SECONDS = 2, 0.3  # the program is started until both are reached
LOOP_SECONDS = 0.02  # what the loop takes on a machine whose seconds these are


class Wrong(Exception):
    """The program did not do what it should: said in a line."""


def main():
    words, answers = zip(*(line.split() for line in ASKED.read_text(encoding="utf-8").splitlines()), strict=True)
    dictionary = DICTIONARY.read_text(encoding="utf-8")
    times, shares, loop = [], [], loop_seconds()
    while len(times) < LEAST_RUNS or sum(times) < LEAST_SECONDS:
        found, seconds = run(dictionary, words)
        compare(words, found, answers)
        before, loop = loop, loop_seconds()
        times.append(seconds)
        shares.append(2 * seconds / (before + loop))
    seconds = median(shares) * LOOP_SECONDS
    print(f"words_per_second={len(words) / seconds:.2f}")
    print(f"seconds={seconds:.5f}")


def run(dictionary, words):
    """The lines that the program answers, and the processor time that it took."""
    with TemporaryDirectory() as folder:
        copy(PROGRAM, folder)
        (Path(folder) / "dictionary.txt").write_text(dictionary, encoding="utf-8")
        before = children_seconds()
        done = subprocess.run(
            [*PYTHON, "spell.py", "dictionary.txt"],
            input="".join(f"{word}\n" for word in words),
            cwd=folder, env={}, capture_output=True, encoding="utf-8", errors="replace", timeout=20,
        )  # fmt: skip
        seconds = children_seconds() - before
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2]
        raise Wrong(f"spell.py ended with exit code {done.returncode}: {last}")
    return done.stdout.splitlines(), seconds


def children_seconds():
    """Processor time of all processes that were started here and are over."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compare(words, found, answers):
    if len(found) != len(words):
        raise Wrong(f"expected {len(words)} lines, found {len(found)}")
    for word, got, wanted in zip(words, found, answers, strict=True):
        if got != wanted:
            raise Wrong(f"{word!r}: expected {wanted!r}, found {got!r}")


def loop_seconds():
    began, row = time.process_time(), list(range(40))
    for step in range(3000):
        for at in range(1, 40):
            row[at] = min(row[at - 1] + 1, row[at] + 1, at + (step & 7))
    return time.process_time() - began


if __name__ == "__main__":
    try:
        main()
    except (Wrong, subprocess.TimeoutExpired) as error:
        sys.exit(str(error))
