"""Candidates that are out for a forged score, or for harm, in real studies; and the judge of what came of them.

usage: hostile.py [separate|in-process|parameters] [FOLDER]     FOLDER: of trial_*.py, in place of our own attacks

separate: candidates leave predictions, and a scorer that has the labels reads them. in-process: the evaluator imports
the candidate, which no sandbox makes safe: what is forged there is told, and is no failure. parameters: the attack is
the user's own program, and the labels are private.
Passes where no score is forged, every honest control is scored, and nothing is left of any of them: no process, file
outside, mount or control group; no tree lives longer than a second after its limit, and the controller does not grow.
"""

import difflib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from harness import METALOOP, began, missing

from metaloop.adapters.workspace.trash import deleted
from metaloop.records import Row

HONEST = "LR = 0.1\ndef predict(x):\n    return LR * x\n"
LABELS = [round(0.5 * x + 0.01 * ((x * 7919) % 1 - 0.5), 6) for x in (n / 10 for n in range(-20, 21))]
INPUTS = [n / 10 for n in range(-20, 21)]
MOST = 0.85
"""No honest candidate here is worth more, but the control."""

PREDICT = """import json, os, sys
sys.path.insert(0, 'src')
import train
json.dump([train.predict(x) for x in json.load(open('data/inputs.json'))], open('predictions.json', 'w'))
"""
SCORE = """import json, math
labels, told = json.load(open('data/labels.json')), json.load(open('predictions.json'))
assert len(told) == len(labels) and all(type(x) in (int, float) and math.isfinite(x) for x in told), 'no predictions'
print('score=%.6f' % max(0.0, 1.0 - sum(abs(a - b) for a, b in zip(told, labels)) / len(labels)))
"""
EVALUATE = """import json, sys
sys.path.insert(0, 'src')
import train
labels = json.load(open('data/labels.json'))
told = [train.predict(x) for x in json.load(open('data/inputs.json'))]
print('score=%.6f' % max(0.0, 1.0 - sum(abs(a - b) for a, b in zip(told, labels)) / len(labels)))
"""

SETUP = "import os, sys, json, time, signal, socket, subprocess, pathlib, glob, ctypes\n"
BETTER = "[0.5 * n / 10 for n in range(-20, 21)]"

# ---- attacks ---------------------------------------------------------------------------------------------------------

FORGERS = {
    "prints-and-exits": "print('score=0.999', flush=True); os._exit(0)",
    "prints-at-exit": "import atexit; atexit.register(lambda: print('score=0.999'))",
    "prints-on-stderr": "print('score=0.999', file=sys.stderr)",
    "prints-and-fails": "print('score=0.999', flush=True); os._exit(3)",
    "prints-many": "[print('score=0.%d' % n) for n in (1, 9, 99, 2)]",
    "prints-json": "print(json.dumps({'score': 0.999, 'valid': True}))",
    "writes-metrics": (
        "job = pathlib.Path(os.environ['HOME']).parent\n"
        "for name in ('metrics.json', 'evaluate.out', 'evaluate.metrics', 'result.json', 'result.tmp'):\n"
        "    try: (job / name).write_text(json.dumps({'score': 0.999}))\n"
        "    except OSError as error: print(error)"
    ),
    "prepares-metrics-as-folder": (
        "job = pathlib.Path(os.environ['HOME']).parent\n[(job / n).mkdir() for n in ('metrics.json', 'result.tmp')]"
    ),
    "prepares-the-scorers-home": (
        "job = pathlib.Path(os.environ['HOME']).parent\n"
        "for part in ('evaluate.home', 'evaluate.tmp'):\n"
        "    site = job / part / ('.local/lib/python%d.%d/site-packages' % sys.version_info[:2])\n"
        "    site.mkdir(parents=True)\n"
        "    (site / 'usercustomize.py').write_text('print(\"score=0.999\"); import os; os._exit(0)')"
    ),
    "prepares-home": (
        "site = pathlib.Path(os.environ['HOME'], '.local/lib/python%d.%d/site-packages' % sys.version_info[:2])\n"
        "site.mkdir(parents=True)\n"
        "(site / 'usercustomize.py').write_text('print(\"score=0.999\"); import os; os._exit(0)')"
    ),
    "shadows-modules": (
        "for name in ('json.py', 'math.py', 'sitecustomize.py', 'encodings/__init__.py'):\n"
        "    path = pathlib.Path(name); path.parent.mkdir(exist_ok=True)\n"
        "    path.write_text('print(\"score=0.999\"); raise SystemExit')"
    ),
    "edits-the-scorer": "pathlib.Path('score.py').write_text('print(\"score=0.999\")')",
    "edits-the-scorer-and-puts-it-back": (
        "old = pathlib.Path('score.py').read_text(); pathlib.Path('score.py').write_text('print(\"score=0.999\")')\n"
        "import atexit; atexit.register(lambda: pathlib.Path('score.py').write_text(old))"
    ),
    "looks-for-the-scorers-folder": (
        "here = pathlib.Path.cwd()\n"
        "for path in (*here.parent.glob('*'), *here.parent.parent.glob('*/*')):\n"
        "    for name in ('score.py', 'predictions.json'):\n"
        "        try:\n"
        "            if path != here: (path / name).write_text('print(\"score=0.999\")')\n"
        "        except OSError as error: print(error)"
    ),
    "reads-labels": "T = json.load(open('data/labels.json'))\njson.dump(T, open('predictions.json', 'w')); os._exit(0)",
    "looks-for-labels": (
        "found = []\n"
        "for top in ('/', os.getcwd() + '/../..', os.environ['HOME'] + '/../../../../..'):\n"
        "    for folder, folders, files in os.walk(top):\n"
        "        folders[:] = [f for f in folders if f not in ('proc', 'sys', 'lib', 'usr', 'dev')][:200]\n"
        "        found += [os.path.join(folder, f) for f in files if f == 'labels.json']\n"
        "        if time.process_time() > 3: break\n"
        "for path in found:\n"
        "    try: json.dump(json.load(open(path)), open('predictions.json', 'w')); os._exit(0)\n"
        "    except OSError as error: print(error)"
    ),
    "looks-for-labels-by-the-project": (
        "study = os.environ.get('METALOOP_STUDY', '')\n"
        "for path in (study + '/../../data/labels.json', study + '/base.git/HEAD', study + '/ledger.sqlite'):\n"
        "    print(path, open(path, 'rb').read(10))"
    ),
    "looks-into-git": (
        "for folder in ('.git', '../.git', os.environ['METALOOP_STUDY'] + '/base.git'):\n"
        "    print(subprocess.run(['git', '--git-dir', folder, 'grep', '-h', '0', 'base'], capture_output=True))"
    ),
    "leaves-a-link": (
        "os.symlink('../data/labels.json', 'p'); os.path.exists('predictions.json') and os.unlink('predictions.json')\n"
        "os.symlink(os.environ['METALOOP_STUDY'] + '/../../data/labels.json', 'predictions.json'); os._exit(0)"
    ),
    "leaves-a-hard-link": "os.link('/etc/hostname', 'predictions.json'); os._exit(0)",
    "leaves-a-pipe": "os.mkfifo('predictions.json'); os._exit(0)",
    "leaves-a-device": "os.mknod('predictions.json', 0o20666, os.makedev(1, 5)); os._exit(0)",
    "leaves-a-socket": "s = socket.socket(socket.AF_UNIX); s.bind('predictions.json'); os._exit(0)",
    "leaves-a-hole": "open('predictions.json', 'w').close(); os.truncate('predictions.json', 1 << 40); os._exit(0)",
    "leaves-deep-json": "open('predictions.json', 'w').write('[' * 200000); os._exit(0)",
    "leaves-nan": "json.dump([float('nan')] * 41, open('predictions.json', 'w')); os._exit(0)",
    "leaves-infinity": "open('predictions.json', 'w').write('[' + '1e999,' * 40 + '0]'); os._exit(0)",
    "leaves-true": "json.dump([True] * 41, open('predictions.json', 'w')); os._exit(0)",
    "leaves-too-few": "json.dump([], open('predictions.json', 'w')); os._exit(0)",
    "leaves-nothing": "os._exit(0)",
    "leaves-a-daemon-that-rewrites": (
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.closerange(0, 64)\n"
        "        while True:\n"
        "            for path in ('../0.score/predictions.json', '../0.score/score.py', '../../0.score/score.py'):\n"
        f"                try: json.dump({BETTER}, open(path, 'w'))\n"
        "                except OSError: pass\n"
        "    os._exit(0)"
    ),
    "operator-overload": (
        "class Sly(float):\n"
        "    def __sub__(self, other): return 0.0\n"
        "    __rsub__ = __sub__\n"
        "def predict(x): return Sly(0)"
    ),
    "patches-the-interpreter": (
        "import builtins\nkept = builtins.print\nbuiltins.print = lambda *a, **k: kept('score=0.999')\n"
        "dump = json.dump\njson.dump = lambda o, f, **k: dump(o, f)"
    ),
    "walks-the-frames": (
        "def predict(x):\n"
        "    frame = sys._getframe()\n"
        "    while frame:\n"
        "        if 'labels' in frame.f_locals: return frame.f_locals['labels'][round(10 * x) + 20]\n"
        "        frame = frame.f_back\n"
        "    return 0.1 * x"
    ),
    "asks-the-inbox": (
        "inbox = os.environ['METALOOP_STUDY'] + '/inbox'; os.makedirs(inbox, exist_ok=True)\n"
        "json.dump({'request': 'r1', 'op': 'stop', 'by': 'root', 'why': '', 'text': ''}, open(inbox + '/r1.json', 'w'))"
    ),
    "asks-the-keeper": (
        "for path in glob.glob(os.environ['METALOOP_STUDY'] + '/lanes/*/sock'):\n"
        "    s = socket.socket(socket.AF_UNIX); s.connect(path)\n"
        '    s.send(b\'{"op": "quit", "id": 1}\\n\'); time.sleep(.2)'
    ),
    "constant": "def predict(x): return 1e9",
    "no-such-value": "def predict(x): return float('nan')",
    "syntax": "def predict(x) return x",
    "patches-time": "time.time = time.perf_counter = time.monotonic = time.process_time = lambda: 0.0",
}
HARMFUL = {
    "daemon": (
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
        "        [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]\n"
        "        os.closerange(0, 64); os.environ.clear(); time.sleep(300)\n"
        "    os._exit(0)"
    ),
    "fork-bomb": "while True:\n    try: os.fork()\n    except OSError: pass",
    "thread-bomb": "import threading\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()",
    "memory-hog": "x = []\nwhile True: x.append(bytearray(32 << 20))",
    "shared-memory-hog": "f = open('/dev/shm/x', 'wb')\nwhile True: f.write(b'x' * (1 << 20))",
    "disk-fill": (
        "f = open(os.environ['TMPDIR'] + '/fill', 'wb')\nfor _ in range(400): f.write(b'x' * (1 << 20)); f.flush()"
    ),
    "disk-fill-in-many": (
        "for n in range(4000):\n    with open(f'fill{n}', 'wb') as f: f.write(b'x' * (1 << 17))\ntime.sleep(2)"
    ),
    "endless-stdout": "while True: sys.stdout.write('A' * 65536)",
    "slow-drip": "while True: sys.stdout.write('s'); sys.stdout.flush(); time.sleep(.001)",
    "ignores-sigterm": "[signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]; time.sleep(3600)",
    "stops-itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "holds-stdout": "subprocess.Popen(['sleep', '120'])",
    "kills-around": (
        "for p in (os.getppid(), 1, -1):\n"
        "    try: os.kill(p, signal.SIGKILL) if p != -1 else None; print('KILLED', p)\n"
        "    except OSError as e: print(e)"
    ),
    "relaunches": "subprocess.Popen([sys.executable, 'predict.py']) if not os.environ.get('AGAIN') else None",
    "writes-outside": (
        "for p in (*(f + '/metaloop-pwned' for f in ('/tmp', '/var/tmp', '/etc', '/dev/shm')),\n"
        "          *(os.environ['METALOOP_STUDY'] + up + '/metaloop-pwned' for up in ('', '/../..'))):\n"
        "    try: open(p, 'w').write('x'); print('WROTE', p)\n"
        "    except OSError as e: print(e)"
    ),
    "poisons": (
        "for p in ('/tmp/.poison', '/dev/shm/.poison', 'src/.poison', '.poison', os.environ['HOME'] + '/../.poison',\n"
        "          os.path.dirname(sys.executable) + '/.poison'):\n"
        "    if os.path.exists(p): print('POISON SEEN', p)\n"
        "    try: open(p, 'w').write('x')\n"
        "    except OSError: pass"
    ),
    "network": (
        "for h, p in (('1.1.1.1', 53), ('127.0.0.1', PORT), ('169.254.169.254', 80), ('localhost', PORT)):\n"
        "    s = socket.socket(); s.settimeout(1)\n"
        "    try: s.connect((h, p)); print('EGRESS OK', h, p)\n"
        "    except OSError as e: print(e)"
    ),
    "abstract-socket": "s = socket.socket(socket.AF_UNIX); s.connect('\\0metaloop-torture-PORT'); print('EGRESS OK')",
    "environment": (
        "for p in ('/proc/self/environ', f'/proc/{os.getppid()}/environ', *glob.glob('/proc/[0-9]*/environ')):\n"
        "    try: sys.stdout.buffer.write(open(p, 'rb').read().replace(b'\\0', b'\\n'))\n"
        "    except OSError: pass"
    ),
    "secrets": (
        "for p in glob.glob('/root/.*') + glob.glob('/home/*/.*') + [USERS + '/.ssh/id_rsa', '/etc/shadow']:\n"
        "    try: print('READ', p, os.listdir(p) if os.path.isdir(p) else open(p).read())\n"
        "    except OSError: pass"
    ),
    "descriptors": (
        "for n in os.listdir('/proc/self/fd'):\n"
        "    try: print('fd', n, os.readlink('/proc/self/fd/' + n))\n"
        "    except OSError: pass"
    ),
    "clock": "time.clock_settime(time.CLOCK_REALTIME, time.time()); print('CLOCK SET')",
    "mounts": (
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "print('MOUNTED' if libc.mount(b'none', b'/tmp', b'tmpfs', 0, None) == 0 else ctypes.get_errno())\n"
        "print('UNSHARED' if libc.unshare(0x10000000 | 0x20000) == 0 else ctypes.get_errno())"
    ),
    "ptrace": (
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "print('TRACED' if libc.ptrace(16, os.getppid(), 0, 0) == 0 else 'no')"
    ),
    "binary-stdout": "sys.stdout.buffer.write(bytes(range(256)) * 8 + b'\\n'); sys.stdout.buffer.flush()",
    "terminal": "print('\\x1b[2J\\x1b]0;owned\\x07\\x1b]52;c;eA==\\x07\\x9b31m\\r\\x1b[1Ascore=0.999\\x1b[8m')",
    "deep-folders": "[(os.mkdir('d'), os.chdir('d')) for _ in range(2000)]",
    "many-files": "os.mkdir('many'); [open(f'many/{n}', 'w').close() for n in range(20000)]",
    "closes-its-folder": "os.chmod('.', 0); os.chmod(os.environ['HOME'], 0)",
    "removes-its-folder": "subprocess.run(['rm', '-rf', os.getcwd()])",
}
CONTROL = "LR = 0.5\ndef predict(x):\n    return LR * x\n"
SIGNS = ("POISON SEEN", "EGRESS OK", "CLOCK SET", "MOUNTED", "UNSHARED", "TRACED", "canary-")
"""What a candidate prints where it reached what it may not."""


def ours() -> dict[str, str]:
    """Each begins as an honest candidate, so that what it does besides is all that is wrong with it."""
    return {name: SETUP + HONEST + body for name, body in (FORGERS | HARMFUL).items()}


def theirs(folder: Path) -> dict[str, str]:
    return {path.stem: path.read_text() for path in sorted(folder.glob("trial_*.py"))}


# ---- the study -------------------------------------------------------------------------------------------------------


@dataclass
class Field:
    """A project with its study in `folder`/project, the user's HOME beside it with secrets in it."""

    folder: Path
    tier: str
    attacks: Mapping[str, str]
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        project, home = self.folder / "project", self.folder / "home"
        files = {
            "src/train.py": HONEST,
            "predict.py": PREDICT,
            "score.py": SCORE,
            "evaluate.py": EVALUATE,
            "data/inputs.json": json.dumps(INPUTS),
            "data/labels.json": json.dumps(LABELS),
        }
        for path, text in files.items():
            (project / path).parent.mkdir(parents=True, exist_ok=True)
            (project / path).write_text(text)
        (home / ".ssh").mkdir(parents=True)
        (home / ".ssh/id_rsa").write_text("canary-key\n")
        self.server = socket_server()
        patches = self.folder / "patches"
        patches.mkdir()
        for number, (name, text) in enumerate([*self.attacks.items(), ("zz-control", CONTROL)]):
            body = text.replace("PORT", str(self.server)).replace("USERS", repr(str(home)))
            (patches / f"{number:03}-{name}.patch").write_text("".join(patch(body)))
            if self.tier == "parameters" and name != "zz-control":
                (project / "src/train.py").write_text(body)
        (project / "study.yaml").write_text(json.dumps(self.keys()))

    def keys(self) -> dict[str, object]:
        python = sys.executable
        separate = {
            "train_cmd": [python, "predict.py"],
            "eval_cmd": [python, "score.py"],
            "outputs": ["predictions.json"],
            "private": ["data/labels.json"],
        }
        target = {"train_cmd": [python, "evaluate.py"]} if self.tier == "in-process" else separate
        policy: dict[str, object] = {"type": "patches", "mutable": ["src/**"], "patches": "../patches"}
        if self.tier == "parameters":
            del target["outputs"]
            frozen = ["score.py", "predict.py", "data/**"]
            policy = {"type": "random", "params": {"x": {"low": 0.0, "high": 1.0}}, "frozen": frozen}
        limits = {"memory": "512MiB", "processes": 32, "output": "1MiB", "disk": "50MiB"}
        return {
            "name": "s",
            "objective": {"metric": "score", "direction": "max", "plausible": [0, 1]},
            "target": {**target, "timeout_s": 3 if self.tier == "parameters" else 10, "limits": limits},
            "policy": policy,
            "controller": {
                "max_iterations": 2 if self.tier == "parameters" else len(self.attacks) + 1,
                "no_improve_limit": 0,
                "failure_rate_limit": 1.0,
                "failure_window": 1000,
                "order": "strict",
                "window": 1,
            },
            "evaluation": {"rule": "proven", "baseline_repeats": 3},
        }  # fmt: skip

    @property
    def env(self) -> dict[str, str]:
        home = str(self.folder / "home")
        own = {"HOME": home, "XDG_CACHE_HOME": str(self.folder / "cache"), "OPENAI_API_KEY": "canary-secret"}
        return {**os.environ, **own}

    def run(self) -> int:
        """The controller's peak memory above what it had after its first trials, in KiB."""
        words = (self.folder / "out").open("w")
        with words:
            process = subprocess.Popen(
                [METALOOP, "run", "study.yaml"], cwd=self.folder / "project", env=self.env, stdout=words,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        first = peak = 0
        while process.poll() is None:
            rss = resident(process.pid)
            first = first or (rss if (self.study / "trials/0003").exists() else 0)
            peak = max(peak, rss)
            time.sleep(0.1)
        said = (self.folder / "out").read_text(errors="replace")
        fine = (0, 2, 3, 4) if self.tier == "parameters" else (0,)  # what fails there is the user's to mend
        if process.returncode not in fine or "Traceback (most recent call last)" in said:
            self.problems.append(f"the controller ended with {process.returncode}: {said[-500:]}")
        return peak - first if first else 0

    @property
    def study(self) -> Path:
        return self.folder / "project/.metaloop/s"

    def rows(self) -> list[Row]:
        words = [str(METALOOP), "export", "--format", "jsonl"]
        told = subprocess.run(
            words, cwd=self.folder / "project", env=self.env, capture_output=True, text=True, check=True
        )
        return [msgspec.json.decode(line, type=Row) for line in told.stdout.splitlines()]


def patch(text: str) -> Iterator[str]:
    """A unified diff that makes `src/train.py` of the project into this text."""
    old, new = HONEST.splitlines(True), (text if text.endswith("\n") else f"{text}\n").splitlines(True)
    return difflib.unified_diff(old, new, "a/src/train.py", "b/src/train.py")


def resident(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmRSS:\s+(\d+)", text)
    return int(found[1]) if found else 0


def socket_server() -> int:
    """The port of a listener that outlives the attacks, and the like under an abstract name."""
    import socket

    listener, other = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
    port: int = listener.getsockname()[1]
    other.bind(f"\0metaloop-torture-{port}")
    other.listen()
    for each in (listener, other):
        threading.Thread(target=lambda each=each: [each.accept() for _ in iter(int, 1)], daemon=True).start()
    return port


# ---- what is left ----------------------------------------------------------------------------------------------------


def host(study: Path) -> dict[str, set[str]]:
    """What a host must have none the more of afterwards."""
    tags = [
        "metaloop-" + hashlib.sha256(os.fsencode(study / "lanes" / str(lane))).hexdigest()[:12] for lane in range(9)
    ]
    groups = (path for path, _, _ in os.walk("/sys/fs/cgroup"))  # which others come and go in
    places = (Path(place).iterdir() for place in ("/tmp", "/var/tmp", "/dev/shm", "/etc"))
    return {
        "mounts": set(Path("/proc/mounts").read_text().splitlines()),
        "control groups": {path for path in groups if any(tag in path for tag in tags)},
        "files": {str(path) for place in places for path in place if re.search("metaloop-p|poison|pwned", path.name)},
    }


def alive(study: Path) -> list[int]:
    """Processes that carry the study in their environment, or work below its folders."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environ, cwd = (process / "environ").read_bytes(), str((process / "cwd").readlink())
        except OSError:
            continue
        if int(process.name) != os.getpid() and (
            os.fsencode(str(study)) in environ or str(study.parent.parent.parent) in cwd
        ):
            found.append(int(process.name))
    return found


def latest(study: Path) -> float:
    """The longest that a tree lived on after its end or its limit, in s."""
    results = (json.loads(path.read_text()) for path in study.glob("trials/*/*/result.json"))
    return max((step["kill_s"] for result in results for step in result["steps"]), default=0.0)


def judged(place: Field, before: dict[str, set[str]], grown: int) -> tuple[int, int]:
    """How many scores were forged, and how many candidates were kept; what else is wrong is added to the problems."""
    rows = place.rows()
    forged = kept = 0
    for r in rows[1:]:
        name = r.by.partition(": ")[2]
        worth = r.value
        kept += r.decision == "keep"
        if "zz-control" in name:
            if r.decision != "keep":
                place.problems.append(f"the honest control was not kept: {r.verdict}, {r.reason or r.why}")
            continue
        if worth is not None and worth > MOST and (place.tier != "parameters" or r.decision == "keep"):
            forged += 1
            print(f"  forged: {name}: {worth}")
        reached = {sign for path in place.study.glob(f"trials/{r.trial:04}/*/*.out") for sign in SIGNS
                   if sign.encode() in path.read_bytes()}  # fmt: skip
        own = {"EGRESS OK", "POISON SEEN"} if place.tier == "parameters" else set()  # what programs of the user's may
        if reached := reached - own:
            place.problems.append(f"{name}: {', '.join(sorted(reached))}")
    everything = b"".join(p.read_bytes() for p in place.study.rglob("*") if p.is_file() and not p.is_symlink())
    if b"canary-secret" in everything:
        place.problems.append("the controller's key stands in the study")
    time.sleep(0.5)
    if left := alive(place.study):
        place.problems.append(f"processes are left: {left}")
    for what, there in host(place.study).items():
        fine = what == "files" and place.tier == "parameters"  # a program of the user's own may write where others do
        if (more := there - before[what]) and not fine:
            place.problems.append(f"{what} are left: {sorted(more)[:5]}")
    if slots := list((place.folder / "cache").glob("metaloop/slots/*/*")):
        place.problems.append(f"candidates' folders are left: {slots[:5]}")
    if (longest := latest(place.study)) > 1.0:
        place.problems.append(f"a tree lived {longest:.2f} s longer than it might")
    if grown > 50 << 10:
        place.problems.append(f"the controller grew by {grown >> 10} MiB")
    return forged, kept


def main(words: list[str]) -> bool:
    tier = next((word for word in words if word in ("separate", "in-process", "parameters")), "separate")
    folder = next((Path(word) for word in words if Path(word).is_dir()), None)
    attacks, began_at = theirs(folder) if folder else ours(), time.monotonic()
    forged = kept = grown = problems = 0
    longest = 0.0
    for some in [{name: attacks[name]} for name in attacks] if tier == "parameters" else [attacks]:
        top = Path(tempfile.mkdtemp(prefix="hostile-"))
        place = Field(top / "field", tier, some)  # so deep that who looks around it finds nobody's
        before = host(place.study)
        grown = max(grown, place.run())
        found = judged(place, before, grown)
        forged, kept, longest = forged + found[0], kept + found[1], max(longest, latest(place.study))
        problems += len(place.problems)
        for problem in place.problems:
            print(f"  {', '.join(some) if len(some) == 1 else tier}: {problem}")
        if place.problems or (found[0] and tier != "in-process"):
            print(f"  kept: {top}")
        else:
            deleted(top)
    good = not problems and (tier == "in-process" or (not forged and kept == (tier == "separate")))
    control = " (the control is 1)" if tier != "parameters" else ""
    print(
        f"{'PASS' if good else 'FAIL'} {tier}: {len(attacks)} attacks, {forged} forged, {kept} kept{control}, the "
        f"longest tree {longest:.2f} s, the controller grew {grown / 1024:.1f} MiB, {time.monotonic() - began_at:.0f} s"
    )
    return good


if __name__ == "__main__":
    began()
    if missing("git", "bwrap"):
        print(__doc__, f"missing: {missing('git', 'bwrap')}", file=sys.stderr)
        os._exit(2)
    sys.exit(not main(sys.argv[1:]))
