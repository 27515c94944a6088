"""Known mistakes, made on purpose in a copy of the source: each has to be caught by the harness that is there for it.

usage: mutants.py [NAME ...]     and none at all is caught in a copy without a mistake (`none`)
A harness is to be trusted for the mistakes that it has been seen to catch, and for no others.
"""

import contextlib
import io
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import crashes
import faults
import power
from harness import HERE, Bench, began, report, scratch

SOURCE = HERE.parent / "src"


@dataclass(frozen=True)
class Mutant:
    """`edits`: file, what stands there once, what stands there instead. `passes`: the harness, in small."""

    about: str
    edits: tuple[tuple[str, str, str], ...]
    passes: Callable[[Path], bool]


@dataclass
class Unheld(Bench):
    """Without a sandbox, whose end would be the end of all that is in it."""

    level: str = "none"


def all_small(source: Path) -> bool:
    passed = [
        crashes.double(1, source=source),
        crashes.random_kills(6, 1, source=source, trials=8),
        faults.face("torn_result", source),
        bool(power.possible()) or power.power(4, source=source, a_study=4),
    ]
    return all(passed)


KEEPER, LEDGER = "metaloop/adapters/keeper.py", "metaloop/adapters/ledger.py"

MUTANTS = {
    "none": Mutant("nothing is wrong with it", (), all_small),
    "no-lease": Mutant(
        "two controllers may hold one study",
        ((LEDGER, "        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)\n", "        pass\n"),),
        lambda source: crashes.double(2, source=source),
    ),
    "no-fsync": Mutant(
        "commits are not synced",
        ((LEDGER, "pragma synchronous = full", "pragma synchronous = off"),),
        lambda source: power.power(10, source=source, a_study=5),
    ),
    "late-fsync": Mutant(
        "commits are synced when SQLite copies them into its file, and not before",
        ((LEDGER, "pragma synchronous = full", "pragma synchronous = normal"),),
        lambda source: power.power(20, source=source),
    ),
    "other-dice": Mutant(
        "dice are carried along in memory, and not thrown anew in each round",
        (
            ("metaloop/study.py", '    def rng(self, salt: str = "") -> Random:',
             '    def rng(self, salt: str = "", live: list = []) -> Random:'),
            ("metaloop/study.py", '        return Random(f"{self.terms.seed}/{self.round}{salt and \'/\' + salt}")',
             '        live or live.append(Random(f"{self.terms.seed}/{self.round}"))\n        return live[0]'),
        ),
        lambda source: crashes.random_kills(6, 1, source=source, trials=8),
    ),
    "orphans": Mutant(
        "the keeper adopts no orphans and empties no control group",
        (
            (KEEPER, "    prctl(PR_SET_CHILD_SUBREAPER, 1)\n", ""),
            (KEEPER, "        for path in self.dirs:\n            if os.path.exists(path + \"/cgroup.kill\"):",
             "        for path in ():\n            if os.path.exists(path + \"/cgroup.kill\"):"),
        ),
        lambda source: crashes.random_kills(4, 1, source=source, trials=8, make=Unheld),
    ),
    "torn-result": Mutant(
        "of a torn result what can be had is taken",
        ((KEEPER, "        except (OSError, ValueError, RecursionError):\n            pass\n",
          "        except OSError:\n            pass\n        except ValueError:\n"
          "            none = {\"bytes\": 0, \"dropped\": 0, \"kept\": 0, \"sha256\": \"\", \"refused\": 0}\n"
          "            step = {\"name\": \"train\", \"exit\": 0, \"signal\": None, \"limit\": None, \"clean\": True}\n"
          "            result = {**handle, \"steps\": [{**step, \"wall_s\": 0.0, \"out\": none, \"err\": none}]}\n"
          ""),
         (KEEPER, ' if result.get("seal") == seal(result, self.key) else {"state": "gone"}', "")),
        lambda source: faults.face("torn_result", source),
    ),
}  # fmt: skip


def spoilt(mutant: Mutant, base: Path) -> Path:
    """A copy of the source with the mistake in it."""
    source = base / "src"
    shutil.copytree(SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
    for file, old, new in mutant.edits:
        text = (source / file).read_text()
        assert text.count(old) == 1, f"{file}: expected once, found {text.count(old)} times: {old!r}"
        (source / file).write_text(text.replace(old, new))
    return source


def caught(name: str) -> bool:
    mutant = MUTANTS[name]
    said = io.StringIO()
    with scratch() as base, contextlib.redirect_stdout(said):
        passed = mutant.passes(spoilt(mutant, base))
    lines = said.getvalue().splitlines()
    if name == "none":
        return report("mutant none", passed, "; ".join(lines))
    seen = next((line for line in lines if "FAIL" in line or "lost" in line), "nothing")
    return report(f"mutant {name}", not passed, f"{mutant.about}: {'caught' if not passed else 'MISSED'}: {seen}")


def main(names: Sequence[str]) -> bool:
    if unknown := [name for name in names if name not in MUTANTS]:
        print(__doc__, f"expected of {', '.join(MUTANTS)}; found {unknown}", file=sys.stderr)
        os._exit(2)
    found = [caught(name) for name in names or MUTANTS]
    return all(found)


if __name__ == "__main__":
    began()
    sys.exit(not main(sys.argv[1:]))
