"""A study of a shell script in a folder of its own, real controllers over it, and the judge of what came of it.

The judge reads the ledger in this process, so that it stays sound where the controllers run from a spoilt source.
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from metaloop.adapters.ledger import integrity, read_ledger
from metaloop.errors import MetaloopError
from metaloop.events import Entry, Resumed, Started
from metaloop.exports import Canonical, canonical
from metaloop.study import fold

METALOOP = Path(sys.executable).with_name("metaloop")
HERE = Path(__file__).parent
PATIENCE_S = 90.0
"""After this a controller is said to hang."""

SCRIPT = """mkdir -p locks
exec 9> "locks/lane-${METALOOP_LANE##*/}" 8> "locks/trial-$METALOOP_TRIAL"
flock -n 9 || echo "overlap: lane of trial $METALOOP_TRIAL" >> ran.txt
flock -n 8 || echo "overlap: trial $METALOOP_TRIAL" >> ran.txt
echo "$METALOOP_TRIAL" >> ran.txt
case $METALOOP_TRIAL in *3|*6) setsid sleep 300 8>&- 9>&- > /dev/null 2>&1 & ;; esac
sleep PACE
echo "loss=${AR_PARAM_X:-0.9}"
"""
"""A trial: says that it ran, and whether another ran beside it on its lane; every fifth leaves a daemon behind."""


@dataclass(frozen=True)
class Ended:
    """How a controller ended. `code` is None where it hung and was killed."""

    code: int | None
    seconds: float
    out: str
    err: str

    @property
    def spilled(self) -> bool:
        """Whether it showed a traceback, or an error that nobody had foreseen."""
        return "Traceback" in self.err or "this should not happen" in self.err

    @property
    def clean(self) -> bool:
        return self.code is not None and not self.spilled

    @property
    def said(self) -> str:
        lines = [line for line in self.err.splitlines() if line.startswith("metaloop:")]
        return lines[-1][:150] if lines else ""


@dataclass
class Bench:
    """A folder with a study in it. `source`: run metaloop from there, and not the one that is installed."""

    folder: Path
    trials: int = 8
    lanes: int = 1
    pace: str = "0.0$((METALOOP_TRIAL % 4 * 2))"
    level: str = "auto"
    source: Path | None = None
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "trial.sh").write_text(SCRIPT.replace("PACE", self.pace))
        keys = {
            "name": "s",
            "objective": {"metric": "loss", "direction": "min"},
            "target": {"train_cmd": ["sh", "trial.sh"], "timeout_s": 30, "sandbox": {"level": self.level}},
            "policy": {"type": "random", "params": {"x": {"low": 0.0, "high": 1.0}}, "seed": 5},
            "controller": {
                "max_iterations": self.trials, "no_improve_limit": 0, "parallel": self.lanes, "order": "strict",
            },
            "evaluation": {"rule": "strict", "baseline_repeats": 2},
        }  # fmt: skip
        (self.folder / "study.yaml").write_text(json.dumps(keys))

    file = "study.yaml"

    @property
    def study(self) -> Path:
        return (self.folder / self.file).parent / ".metaloop" / "s"

    def words(self, end: str) -> Path:
        """Beside the folder, so that they outlive it. Of several controllers at once: of the last."""
        return self.folder.with_name(self.folder.name + end)

    # ---- controllers

    def environment(self, more: Mapping[str, str] = {}) -> dict[str, str]:
        own = {"HOME": str(self.folder / "home"), **self.env, **more}
        if self.source is not None:
            own["PYTHONPATH"] = str(self.source)
        return {**os.environ, **own}

    def start(self, *args: str, under: Sequence[str] = (), env: Mapping[str, str] = {}) -> subprocess.Popen[str]:
        """A controller, with `under` before its command line. Its words go into files: nobody has to read a pipe."""
        out, err = self.words(".out").open("w"), self.words(".err").open("w")
        with out, err:
            return subprocess.Popen(
                [*under, str(METALOOP), *(args or ("run", self.file))], cwd=self.folder, text=True, stdout=out,
                stderr=err, env=self.environment(env), stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def end(self, process: subprocess.Popen[str], patience: float = PATIENCE_S) -> Ended:
        began = time.monotonic()
        try:
            code: int | None = process.wait(timeout=patience)
        except subprocess.TimeoutExpired:
            code = None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        texts = [_text(self.words(end)) for end in (".out", ".err")]
        return Ended(code, time.monotonic() - began, *texts)

    def run(self, *args: str, under: Sequence[str] = (), env: Mapping[str, str] = {}) -> Ended:
        return self.end(self.start(*args, under=under, env=env))

    # ---- what is there

    def entries(self) -> tuple[Entry, ...]:
        """Every hash checked. Raises MetaloopError where the ledger is damaged."""
        return tuple(read_ledger(self.study)) if (self.study / "ledger.sqlite").exists() else ()

    def told(self) -> Canonical:
        entries = self.entries()
        return canonical(fold(entries), entries, True, integrity(self.study))

    def completed(self) -> dict[int, object]:
        """What is measured, by trial."""
        return {t["trial"]: (t["metric"], t.get("decision")) for t in self.told()["trials"] if "metric" in t}

    def ran(self) -> list[str]:
        return _text(self.folder / "ran.txt").splitlines()

    def executions(self) -> int:
        return sum(line.isdigit() for line in self.ran())

    def alive(self) -> list[int]:
        """Living processes of this study's trials, daemons and all."""
        return marked(self.study)

    def keepers(self) -> list[int]:
        return [pid for pid, line in processes("cmdline") if b"keeper.py" in line and bytes(self.study) in line]

    def kill_all(self) -> None:
        """What a cut of the power does to processes."""
        for pid in (*self.keepers(), *self.alive()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def first_new(self, since: float) -> float | None:
        """Seconds from `since` to the first trial that was started in the newest session; None where there is none."""
        entries = self.entries()
        last = max((n for n, entry in enumerate(entries) if isinstance(entry.event, Resumed)), default=None)
        if last is None or entries[last].unix < since:
            return None
        return next((e.unix - since for e in entries[last:] if isinstance(e.event, Started)), None)

    def problems(self, reference: Canonical, kills: int, runs: int) -> list[str]:
        """Everything that is not as in a study that was left alone, which ran `runs` times. `kills` pay for runs."""
        wait_for(lambda: not self.alive(), 1.0)
        try:
            told = self.told()
        except MetaloopError as error:
            return [f"ledger: {error}"]
        extra, left = self.executions() - runs, self.alive()
        found = {
            "decisions differ": told["trials"] != reference["trials"],
            f"duplicates {told['dups'][:3]}": told["dups"],
            f"integrity {told['integrity']}": told["integrity"] != "ok",
            f"orphans {left}": left,
            f"{extra} runs more for {kills} kills": extra > kills,
            f"{[line for line in self.ran() if not line.isdigit()][:3]}": len(self.ran()) > self.executions(),
        }
        self.kill_all()
        return [what for what, wrong in found.items() if wrong]


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def processes(file: str) -> Iterator[tuple[int, bytes]]:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            yield int(process.name), (process / file).read_bytes()


def marked(study: Path) -> list[int]:
    """Living processes whose METALOOP_STUDY is this folder."""
    mark = re.compile(rb"(?:^|\0)METALOOP_STUDY=" + re.escape(bytes(study.absolute())) + rb"(?:\0|$)")
    return [pid for pid, environ in processes("environ") if mark.search(environ)]


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


_references: dict[tuple[type[Bench], int, int, Path | None], tuple[Canonical, int]] = {}


def reference(like: Bench) -> tuple[Canonical, int]:
    """What a study like this one comes to when it is left alone, and how often its script runs."""
    key = (type(like), like.trials, like.lanes, like.source)
    if key not in _references:
        with scratch() as base:
            calm = type(like)(base / "calm", like.trials, like.lanes, pace="0", source=like.source)
            ended = calm.run()
            assert ended.code == 0, ended
            _references[key] = calm.told(), calm.executions()
    return _references[key]


@contextlib.contextmanager
def scratch(parent: str | None = None) -> Iterator[Path]:
    """A folder that goes away. In memory where there is such a place: what a kill or a fault does is the same there."""
    if parent is None and os.access("/dev/shm", os.W_OK):
        parent = "/dev/shm"
    base = Path(tempfile.mkdtemp(prefix="metaloop-torture-", dir=parent))
    try:
        yield base
    finally:
        shutil.rmtree(base, ignore_errors=True)


def began() -> None:
    """Says when this runs and beside what, and steps back behind everybody else."""
    os.nice(5)
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{time.strftime('%Y-%m-%d %H:%M')}, {os.cpu_count()} processors, load {load}", flush=True)


def report(name: str, ok: bool, seen: str) -> bool:
    print(f"{'PASS' if ok else 'FAIL'} {name}: {seen}", flush=True)
    return ok


def missing(*programs: str) -> list[str]:
    return [program for program in programs if shutil.which(program) is None]
