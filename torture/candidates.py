"""kill -9 of the controller of a study of code: afterwards nothing of it is left, and nothing of the user's changed.

usage: candidates.py random KILLS SEED [patches|agent]   at random instants
       candidates.py exact [STRIDE [patches|agent]]      before the k-th system call of a kind, as crashes.py does
       candidates.py                                     both, with both
`patches`: candidates from a folder. `agent`: a coding agent that is a shell script. Beside what crashes.py looks for:
the user's folder is byte for byte what it was, has no branch but its own, and no candidate's directory is left.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence

from crashes import exact, random_kills
from harness import SCRIPT, Bench, began, missing

from metaloop.exports import Canonical

KINDS = ("pwrite64", "write", "fdatasync", "sendto", "rename", "unlink", "mkdir", "rmdir", "symlink", "vfork")
"""Calls of the controller itself; what it has git do is between them."""

GIT = ("git", "-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "init.defaultBranch=main")
AGENT = """. src/rate.sh
sleep 0.0$((RATE % 4 * 3))
echo "RATE=$((RATE - 1))" > src/rate.sh
echo "WHY: one less than $RATE"
"""


class Patches(Bench):
    """`folder`/project is a git repository with the study in it; what trials leave for the judge lies beside it."""

    file = "project/study.yaml"
    window = 4

    def __post_init__(self) -> None:
        project = self.folder / "project"
        (project / "src").mkdir(parents=True, exist_ok=True)
        (project / "src/rate.sh").write_text("RATE=100\n")
        script = SCRIPT.replace("PACE", self.pace).replace("${AR_PARAM_X:-0.9}", "$RATE")
        place = 'here=$PWD\ncd "$METALOOP_STUDY/../../.."\n. "$here/src/rate.sh"\n'
        (project / "trial.sh").write_text(place + script)
        (project / "agent.sh").write_text(AGENT)
        (project / ".gitignore").write_text("data/\n")
        (project / "data").mkdir(exist_ok=True)
        (project / "data/numbers").write_text("1\n")
        (project / "study.yaml").write_text(json.dumps(self.keys()))
        self.ideas()
        for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "base")):
            subprocess.run([*GIT, *words], cwd=project, check=True, env={"PATH": os.environ["PATH"], "HOME": "/"})
        self.env = {"XDG_CACHE_HOME": str(self.folder / "cache")}
        self.before = self.state()

    def keys(self) -> dict[str, object]:
        return {
            "name": "s",
            "objective": {"metric": "loss", "direction": "min"},
            "target": {"train_cmd": ["sh", "trial.sh"], "timeout_s": 30},
            "policy": {"mutable": ["src/**"], "frozen": ["trial.sh"]} | self.policy(),
            "controller": {
                "max_iterations": self.trials, "no_improve_limit": 0, "parallel": self.lanes, "order": "strict",
                "failure_rate_limit": 1.0, "window": self.window,
            },
            "evaluation": {"rule": "strict", "baseline_repeats": 2},
        }  # fmt: skip

    def policy(self) -> dict[str, object]:
        return {"type": "patches", "patches": "../ideas"}

    def ideas(self) -> None:
        """Better ones, worse ones, and some that are refused."""
        (self.folder / "ideas").mkdir(exist_ok=True)
        for number in range(1, self.trials + 1):
            rate = 100 + number if number % 3 == 2 else 100 - number
            path = "trial.sh" if number % 5 == 4 else "src/rate.sh"
            text = f"{path}\n<<<<<<< SEARCH\nRATE=100\n=======\nRATE={rate}\n>>>>>>> REPLACE\n"
            (self.folder / "ideas" / f"{number:02}.txt").write_text(text)

    def state(self) -> dict[str, object]:
        """Every file of the user's, git's own among them, with its content and times."""
        files = (path for path in (self.folder / "project").rglob("*") if ".metaloop" not in path.parts)
        return {
            str(path): (path.lstat().st_mode, path.lstat().st_mtime_ns, path.read_bytes())
            for path in sorted(files)
            if path.is_file()
        }

    def problems(self, reference: Canonical, kills: int, runs: int) -> list[str]:
        after = self.state()
        changed = sorted(path for path in {*self.before, *after} if self.before.get(path) != after.get(path))
        slots = [
            str(path) for path in (self.folder / "cache").rglob("*") if len(path.relative_to(self.folder).parts) > 3
        ]
        found = super().problems(reference, kills, runs)
        return found + [f"the user's {path} changed" for path in changed[:3]] + [f"left: {slots[:3]}"] * bool(slots)


class Agent(Patches):
    """The same with an agent, in one lane: what it makes hangs on what it finds."""

    window = 1

    def __post_init__(self) -> None:
        self.lanes = 1
        super().__post_init__()

    def policy(self) -> dict[str, object]:
        return {"type": "agent", "agent": {"command": ["sh", "agent.sh"], "timeout_s": 30}}


BENCHES: dict[str, type[Bench]] = {"patches": Patches, "agent": Agent}


def main(words: Sequence[str]) -> bool:
    if not words:
        kinds = list(BENCHES.values())
        return all(
            [random_kills(100, 1, make=make, trials=8) for make in kinds]
            + [exact(5, KINDS, make=make) for make in kinds]
        )
    make = BENCHES.get(words[-1], Patches)
    if words[0] == "random" and len(words) >= 3:
        return random_kills(int(words[1]), int(words[2]), make=make, trials=8)
    if words[0] == "exact" and not missing("strace"):
        stride = int(words[1]) if len(words) > 1 and words[1].isdigit() else 1
        return exact(stride, KINDS, make=make, trials=4)
    print(__doc__, f"missing: {missing('strace', 'flock', 'git')}", file=sys.stderr)
    os._exit(2)


if __name__ == "__main__":
    began()
    sys.exit(not main(sys.argv[1:]))
