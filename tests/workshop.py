"""A folder with a script and a study file, and the real command line over it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

METALOOP = Path(sys.executable).with_name("metaloop")

PARAMS = "import json, os, sys, time\nP = json.loads(os.environ.get('AR_PARAMS_JSON', '{}'))\n"
BOWL = "x = P.get('x', 0.9)\nprint(f'score={1 - (x - 0.3) ** 2!r}')\n"


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> dict:
        return json.loads(self.out, parse_constant=lambda name: 1 / 0)


@dataclass
class Workshop:
    """`script` is train.py after PARAMS; `keys` go into study.yaml, section by section."""

    folder: Path
    script: str = BOWL
    keys: dict[str, object] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "train.py").write_text(PARAMS + self.script)
        self.write()

    def write(self, **sections: object) -> None:
        """The study file anew, with these sections merged into what there was."""
        base: dict[str, object] = {
            "name": "s",
            "objective": {"metric": "score", "direction": "max"},
            "target": {"train_cmd": [sys.executable, "train.py"], "timeout_s": 30},
            "policy": {"type": "random", "params": {"x": {"low": 0.0, "high": 1.0}}},
            "controller": {"max_iterations": 3, "no_improve_limit": 1000},
            "evaluation": {"rule": "strict", "baseline_repeats": 0},
        }
        for section, value in {**self.keys, **sections}.items():
            old = base.get(section)
            base[section] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
        self.keys = {**self.keys, **sections}
        (self.folder / "study.yaml").write_text(json.dumps(base))

    def start(self, *args: str, env: Mapping[str, str] = {}) -> subprocess.Popen[str]:
        whole = {**os.environ, "HOME": str(self.folder / "home"), **self.env, **env}
        return subprocess.Popen(
            [str(METALOOP), *args], cwd=self.folder, env=whole, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, errors="replace",
        )  # fmt: skip

    def __call__(self, *args: str, env: Mapping[str, str] = {}, timeout: float = 60) -> Done:
        process = self.start(*args, env=env)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(f"metaloop {args} hung; {out} {err}") from None
        assert "Traceback" not in err, err
        return Done(process.returncode, out, err)

    def run(self, *args: str, **more) -> Done:
        return self("run", "study.yaml", *args, **more)

    @property
    def study(self) -> Path:
        return self.folder / ".metaloop" / "s"

    def trials(self) -> list[dict]:
        return self("export", "--format", "canonical").json["trials"]

    def rows(self) -> list[dict]:
        return [json.loads(line) for line in self("export", "--format", "jsonl").out.splitlines()]

    def executed(self) -> list[str]:
        """What the script wrote to `ran.txt`, a line each time that it ran."""
        path = self.folder / "ran.txt"
        return path.read_text().splitlines() if path.exists() else []

    def alive(self) -> list[int]:
        """Processes of trials of this folder's studies, without those that hold them."""
        return [pid for pid in marked(str(self.folder)) if name_of(pid) != "bwrap"]


COUNTED = "open('ran.txt', 'a').write(os.environ['METALOOP_TRIAL'] + '\\n')\n"


def marked(root: str) -> list[int]:
    """Living processes whose METALOOP_STUDY lies under `root`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environ = (process / "environ").read_bytes()
        except OSError:
            continue
        if re.search(rb"(?:^|\0)METALOOP_STUDY=" + re.escape(root.encode()), environ):
            found.append(int(process.name))
    return found


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def until(condition, seconds: float = 20.0, every: float = 0.02) -> None:
    """Waits for `condition()`; fails when it does not come."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(every)


def everything_under(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


def interrupted(process: subprocess.Popen[str], number: signal.Signals, others: Sequence[signal.Signals] = ()) -> float:
    """Sends signals, and says how many seconds it took to end."""
    began = time.monotonic()
    process.send_signal(number)
    for other in others:
        time.sleep(0.2)
        process.send_signal(other)
    process.wait(timeout=30)
    return time.monotonic() - began
