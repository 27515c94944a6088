"""The sandbox, rung by rung: what a confined program tries, with real processes, and what comes of it.

Each deed is done by a program without walls first, or the test proves nothing.
"""

import asyncio
import importlib
import json
import os
import platform
import py_compile
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from metaloop.adapters import confine, keeper, sandbox
from metaloop.adapters.host import runnable
from metaloop.adapters.local import LocalExecutor
from metaloop.adapters.sandbox import bubblewrap, seccomp
from metaloop.errors import Refusal, UsageError
from metaloop.roles import Gone, Job, Step, StepOutcome, Walls
from metaloop.terms import Limits, Rung
from metaloop.testing import DAEMON, ProcessExecutorConformance, ended

PREFIXES = (sys.prefix, sys.base_prefix)
BARE = Rung()


def rung(name: str) -> Rung:
    try:
        return sandbox.climb(name)
    except UsageError as lacks:
        pytest.skip(str(lacks))


@pytest.fixture(params=["bubblewrap", "landlock"])
def held(request) -> Rung:
    return rung(request.param)


def job(tmp_path: Path, *steps: Step, **fields) -> Job:
    nonce = os.urandom(8).hex()
    made = Job(nonce, 0, str(tmp_path / nonce), str(tmp_path), {"PATH": os.environ["PATH"]}, steps)
    return msgspec.structs.replace(made, **fields)


def run(tmp_path: Path, rung: Rung | None, *jobs: Job) -> list[tuple[StepOutcome, ...]]:
    """How the steps of each job ended, all of them at once. Nothing of them may be left."""

    async def story():
        executor = LocalExecutor(tmp_path / "lanes", rung=rung)

        async def one(job: Job):
            handle = await executor.start(job)
            await executor.release(handle)
            return ended(await executor.wait(handle)).steps

        try:
            return await asyncio.gather(*map(one, jobs))
        finally:
            await executor.close()

    outcomes = asyncio.run(story())
    assert marked(tmp_path) == []
    return outcomes


def python(tmp_path: Path, rung: Rung, script: str, walls: Walls, timeout_s=20.0, env=None, **fields) -> StepOutcome:
    """How a Python script ended, in these walls and in its job's folder."""
    made = job(tmp_path, **fields)
    walls = msgspec.structs.replace(walls, read=(*walls.read, *PREFIXES), write=(*walls.write, made.dir))
    step = Step("step", (sys.executable, "-I", "-c", script), timeout_s, env or {}, "", walls)
    cwd = "/" if made.cwd == str(tmp_path) else made.cwd
    return run(tmp_path, rung, msgspec.structs.replace(made, steps=(step,), cwd=cwd))[0][0]


def marked(root: Path) -> list[int]:
    """Living processes of keepers whose lanes are below `root`."""
    found, mark = [], f"{keeper.MARK}={os.path.realpath(root)}".encode()
    for pid in filter(str.isdigit, (path.name for path in Path("/proc").iterdir())):
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(int(pid))
        except OSError:
            continue
    return found


# ---- the executor's own contract, behind walls -----------------------------------------------------------------------


class Walled(LocalExecutor):
    """Every step sees the machine and writes in its folders."""

    async def start(self, job):
        walls = Walls(host=True, read=PREFIXES, write=(job.dir, job.cwd))
        steps = tuple(msgspec.structs.replace(step, walls=walls) for step in job.steps)
        return await super().start(msgspec.structs.replace(job, steps=steps))


class TestLandlock(ProcessExecutorConformance):
    def executor(self, tmp_path):
        return Walled(tmp_path / "lanes", rung=rung("landlock"))


class TestBubblewrap(ProcessExecutorConformance):
    """A pid in a file is one of its own there, so daemons are looked for by their mark."""

    def executor(self, tmp_path):
        return Walled(tmp_path / "lanes", rung=rung("bubblewrap"))

    def test_a_daemon_ends_with_its_job(self, tmp_path):
        (step,) = self.outcome(tmp_path, (sys.executable, "-c", DAEMON, str(tmp_path / "pid"))).steps
        assert (step.exit, (tmp_path / "pid").exists(), marked(tmp_path)) == (0, True, [])

    def test_stop_reaches_grandchildren_and_daemons(self, tmp_path):
        script = DAEMON + "\nos.fork(); os.fork(); time.sleep(600)"

        async def story(executor):
            handle = await executor.start(self.job(tmp_path, (sys.executable, "-c", script, str(tmp_path / "pid"))))
            await executor.release(handle)
            while not (tmp_path / "pid").exists():
                await asyncio.sleep(0.01)
            while len(marked(tmp_path)) < 6:
                await asyncio.sleep(0.01)
            begun = time.monotonic()
            assert ended(await executor.stop(handle)).steps[0].limit == "stopped"
            assert marked(tmp_path) == []
            assert time.monotonic() - begun < 1

        self.alone(tmp_path, story)

    def test_the_environment_is_what_was_given_and_nothing_else(self, tmp_path, monkeypatch):
        """But for PWD, which bubblewrap sets."""
        monkeypatch.setenv("METALOOP_CANARY", "secret")
        script = "import os; print(*sorted(os.environ)); print(open('/proc/1/environ').read().split(chr(0)))"
        step = self.outcome(tmp_path, (sys.executable, "-I", "-c", script), env={"A": "a", "LC_ALL": "C.UTF-8"}).steps[
            0
        ]
        assert step.stdout.startswith("A HOME LC_ALL METALOOP_LANE PWD TMPDIR\n")
        assert "CANARY" not in step.stdout


# ---- deeds -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def scene(tmp_path) -> Iterator[dict]:
    """Files, a process and sockets of the machine, that deeds are done to."""
    files = ("secret/key", "shown/data", "shown/inner/hidden/key", "shown/inner/plain", "shown/key", "mine/own",
             "mine/frozen/data", "mine/frozen/loose/own", "out/data")  # fmt: skip
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("s3cret")
    (tmp_path / "shown/link").symlink_to(tmp_path / "secret/key")
    (tmp_path / "shown/hiding").symlink_to("inner/hidden")
    (tmp_path / "alias").symlink_to("shown")
    (tmp_path / "out/mount").mkdir()
    victim = subprocess.Popen(["sleep", "600"], env={"CANARY": "s3cret"}, cwd=tmp_path / "secret")
    udp, abstract, path = (socket.socket(*kind) for kind in ((2, socket.SOCK_DGRAM), (socket.AF_UNIX,), (1,)))
    with socket.create_server(("127.0.0.1", 0)) as tcp, udp, abstract, path:
        udp.bind(("127.0.0.1", 0))
        name = f"metaloop-test-{os.getpid()}"
        abstract.bind(f"\0{name}")
        here = Path.cwd()
        os.chdir(tmp_path / "out")
        path.bind("sock")
        os.chdir(here)
        abstract.listen()
        path.listen()
        udp.setblocking(False)

        def heard() -> bool:
            try:
                return bool(udp.recv(9))
            except BlockingIOError:
                return False

        yield {
            "heard": heard,
            "root": str(tmp_path), "pid": victim.pid, "tcp": tcp.getsockname()[1], "udp": udp.getsockname()[1],
            "abstract": name,
        }  # fmt: skip
    victim.kill()
    victim.wait()


def walls(scene: dict, host: bool, **fields) -> Walls:
    root = scene["root"]
    hidden = (f"{root}/shown/hiding", f"{root}/shown/key", f"{root}/secret", f"{root}/nowhere", f"{root}/o\udcffdd\n x")
    made = Walls(
        host=host,
        read=(f"{root}/alias", f"{root}/mine/frozen", f"{root}/not there"),
        write=(f"{root}/mine", f"{root}/mine/frozen/loose", f"{root}/nor there"),
        hidden=hidden,
        scratch=None if host else 1 << 20,
    )
    return msgspec.structs.replace(made, **fields)


SETUP = """
import ctypes, fcntl, glob, json, os, signal, socket, struct, sys, time
scene = json.loads({scene!r}); root = scene["root"]
libc = ctypes.CDLL(None, use_errno=True)
def read(path):
    with open(path, "rb") as file: assert b"s3cret" in file.read(), "another file"
def write(path):
    with open(path, "a") as file: file.write("forged")
def call(name, *args):
    if getattr(libc, name)(*args) < 0: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def dial(family, kind, address):
    with socket.socket(family, kind) as s: s.settimeout(3); s.connect(address); s.send(b"x")
def heard(): pass
try:
    {deed}
except BaseException as error: print("refused", repr(error))
else: print("done")
"""

READS = {
    "what is not named": "read(root + '/secret/key')",
    "a hidden file": "read(root + '/shown/key')",
    "a hidden folder in a shown one": "read(root + '/shown/inner/hidden/key')",
    "by a link of the machine": "read(root + '/shown/link')",
    "by a link of its own": "os.symlink(root + '/secret/key', root + '/mine/l'); read(root + '/mine/l')",
    "by a hard link": "os.link(root + '/secret/key', root + '/mine/h'); read(root + '/mine/h')",
    "by its own root": "read('/proc/self/root' + root + '/secret/key')",
    "by another's root": "read(f'/proc/{scene[\"pid\"]}/root' + root + '/secret/key')",
    "by its parent's root": "read(f'/proc/{os.getppid()}/root' + root + '/secret/key')",
    "by another's folder": "read(f'/proc/{scene[\"pid\"]}/cwd/key')",
    "another's environment": "read(f'/proc/{scene[\"pid\"]}/environ')",
    "anyone's environment": "assert any(b'CANARY' in open(p, 'rb').read() for p in glob.glob('/proc/*/environ')"
    " if os.access(p, os.R_OK) and p.split('/')[2].isdigit() and int(p.split('/')[2]) == scene['pid'])",
    "another's memory": "open(f'/proc/{scene[\"pid\"]}/mem', 'rb').close()",
}
WRITES = {
    "elsewhere": "write(root + '/out/new')",
    "over what is there": "write(root + '/out/data')",
    "what is shown": "write(root + '/shown/data')",
    "new in what is shown": "write(root + '/shown/new')",
    "what is frozen in a folder of its own": "write(root + '/mine/frozen/data')",
    "by removing": "os.unlink(root + '/shown/data')",
    "by cutting": "os.truncate(root + '/shown/data', 0)",
    "by a folder": "os.mkdir(root + '/out/folder')",
    "by moving it away": "os.rename(root + '/mine/frozen', root + '/mine/thawed')",
    "by moving into": "os.rename(root + '/mine/own', root + '/out/own')",
    "by a link from outside": "os.link(root + '/shown/data', root + '/mine/data'); write(root + '/mine/data')",
    "another's memory": "open(f'/proc/{scene[\"pid\"]}/mem', 'r+b').close()",
}
ATTRIBUTES = {
    "modes": "os.chmod(root + '/shown/data', 0o777)",
    "times": "os.utime(root + '/shown/data', (1, 1))",
    "owners": "os.chown(root + '/shown/data', os.getuid(), os.getgid())",
    "what exists": "os.stat(root + '/secret/key')",
}
NETWORK = {
    "tcp": "dial(socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', scene['tcp']))",
    "udp": "dial(socket.AF_INET, socket.SOCK_DGRAM, ('127.0.0.1', scene['udp'])); heard()",
    "an abstract socket": "dial(socket.AF_UNIX, socket.SOCK_STREAM, chr(0) + scene['abstract'])",
}
POWERS = {
    "signals": "os.kill(scene['pid'], signal.SIGCONT)",
    "tracing": "call('ptrace', 0, 0, 0, 0)",
    "reading memory": "call('process_vm_readv', os.getpid(), None, 0, None, 0, 0)",
    "mounting": "call('mount', b't', (root + '/out/mount').encode(), b'tmpfs', 0, None);"
    " call('umount', (root + '/out/mount').encode())",
    "user namespaces": "call('unshare', 0x10000000)",
    "network namespaces": "call('setns', os.open('/proc/self/ns/net', os.O_RDONLY), 0)",
    "the clock": "time.clock_settime(time.CLOCK_REALTIME, time.time())",
    "io_uring": "call('syscall', 425, 1, ctypes.create_string_buffer(256))",
    "keys": "call('syscall', {'x86_64': 250, 'aarch64': 219}[os.uname().machine], 0, -3, 0)",
    "vsock": "socket.socket(40, socket.SOCK_STREAM)",
    "settings of the machine": "os.close(os.open('/proc/sys/vm/swappiness', os.O_WRONLY))",
    "the machine's devices": "os.mkdir('/dev/of-a-trial'); os.rmdir('/dev/of-a-trial')",
    "typing into a terminal": "a, b = os.openpty(); fcntl.ioctl(b, 0x5412, b'x')",
}
PATH_SOCKET = "os.chdir(root + '/out'); dial(socket.AF_UNIX, socket.SOCK_STREAM, 'sock')"
NEEDS_ROOT = {
    "settings of the machine",
    "the machine's devices",
    "mounting",
    "the clock",
    "typing into a terminal",
    "network namespaces",
}
SHOWN_BY_A_HOST = {"a socket with a path"}


def cases() -> Iterator[tuple[str, bool, str, str]]:
    """Level, whether the machine is shown, name, deed."""
    for name, deed in {**READS, **WRITES, **POWERS, **NETWORK}.items():
        if os.getuid() == 0 or name not in NEEDS_ROOT:
            yield "none", False, name, deed
        yield from ((level, host, name, deed) for level in ("bubblewrap", "landlock") for host in (False, True))
    for name, deed in {**ATTRIBUTES, "a socket with a path": PATH_SOCKET}.items():
        yield "none", False, name, deed
        yield "bubblewrap", False, name, deed
        yield from [] if name in SHOWN_BY_A_HOST else [("bubblewrap", True, name, deed)]


@pytest.mark.parametrize(("level", "host", "name", "deed"), list(cases()), ids=lambda value: str(value)[:40])
def test_who_is_confined_is_refused_what_others_may(tmp_path, scene, level, host, name, deed):
    step = python(tmp_path, rung(level), told(scene, deed), walls(scene, host))
    heard = scene["heard"]()
    done = step.stdout.startswith("done") and (name != "udp" or heard)
    assert (done, step.exit) == (level == "none", 0), step
    if level != "none":
        texts = [(tmp_path / file).read_text() for file in ("shown/data", "out/data", "mine/frozen/data")]
        assert texts == ["s3cret"] * 3
        assert not (tmp_path / "out/new").exists()


def told(scene: dict, deed: str) -> str:
    plain = {key: value for key, value in scene.items() if not callable(value)}
    return SETUP.replace("{scene!r}", repr(json.dumps(plain))).replace("{deed}", deed)


@pytest.mark.parametrize("host", [False, True], ids=["named", "host"])
def test_who_is_confined_does_what_it_needs_to(tmp_path, scene, held, host):
    """What is deeper holds; links that were named lead where they lead; a program finds what programs need."""
    deeds = """
    assert open(root + "/alias/data").read() == open(root + "/shown/data").read() == "s3cret"
    read(root + "/mine/frozen/data"); read(root + "/shown/inner/plain")
    write(root + "/mine/own"); write(root + "/mine/frozen/loose/own"); os.mkdir(root + "/mine/frozen/loose/new")
    os.rename(root + "/mine/frozen/loose/own", root + "/mine/frozen/loose/new/own")
    write(os.environ["HOME"] + "/x"); write(os.environ["TMPDIR"] + "/x")
    import ctypes.util, getpass, multiprocessing, ssl, subprocess, tempfile, threading
    multiprocessing.Lock(); tempfile.TemporaryFile(); ssl.create_default_context(); getpass.getuser()
    assert subprocess.run(["sh", "-c", "ls / | wc -l; date"], capture_output=True).returncode == 0
    threading.Thread(target=print).start(); assert os.cpu_count(); open("/dev/null", "w").write("x")
    a, b = socket.socketpair(); os.urandom(3); socket.socket(socket.AF_UNIX).bind(os.environ["TMPDIR"] + "/s")
    p = multiprocessing.get_context("spawn").Process(target=print) ; p.start(); p.join(); assert p.exitcode == 0
    """
    step = python(tmp_path, held, told(scene, deeds.strip()), walls(scene, host))
    assert (step.stdout.splitlines()[-1:], step.stderr) == (["done"], ""), step
    assert (tmp_path / "mine/own").read_text() == "s3cretforged"


@pytest.mark.parametrize("host", [False, True], ids=["named", "host"])
def test_with_a_network_there_is_one(tmp_path, scene, held, host):
    """And what is not the network stays closed."""
    step = python(tmp_path, held, told(scene, NETWORK["tcp"]), walls(scene, host, network=True))
    assert step.stdout == "done\n", step
    step = python(tmp_path, held, told(scene, READS["what is not named"]), walls(scene, host, network=True))
    assert step.stdout.startswith("refused")


def test_without_a_network_there_is_a_loopback_of_its_own(tmp_path, scene):
    deed = "s = socket.create_server(('127.0.0.1', 0)); dial(socket.AF_INET, socket.SOCK_STREAM, s.getsockname())"
    assert python(tmp_path, rung("bubblewrap"), told(scene, deed), walls(scene, False)).stdout == "done\n"


def test_devices_are_all_but_disks_and_terminals(tmp_path, held):
    script = """
import os, stat
def opens(path):
    try: os.close(os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)); return True
    except OSError: return False
found = ["/dev/" + name for name in os.listdir("/dev") if os.path.exists("/dev/" + name)]
print(opens("/dev/null"), opens("/dev/zero"), [p for p in found if stat.S_ISBLK(os.stat(p).st_mode) and opens(p)])
"""
    assert python(tmp_path, held, script, Walls(devices=True)).stdout == "True True []\n"


# ---- how it ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "bubblewrap", "landlock"])
def test_how_a_program_ended_is_told_alike(tmp_path, name):
    ends = {
        "raise SystemExit(0)": (0, None), "raise SystemExit(3)": (3, None), "raise SystemExit(255)": (255, None),
        "import os; os._exit(145)": (145, None),  # 128 and SIGCHLD, which ends nobody
        "import os; os.kill(os.getpid(), 11)": (None, 11), "import os; os.kill(os.getpid(), 9)": (None, 9),
        "import os; os.kill(os.getpid(), 15)": (None, 15), "import os; os.abort()": (None, 6),
    }  # fmt: skip
    for script, how in ends.items():
        step = python(tmp_path, rung(name), script, Walls())
        assert (step.exit, step.signal, step.limit) == (*how, None), script


def test_what_cannot_be_begun_is_exit_127_and_said(tmp_path, held):
    made = job(tmp_path)
    step = Step("step", ("no-such-program",), 9.0, {}, "", Walls(host=True))
    assert run(tmp_path, held, msgspec.structs.replace(made, steps=(step,)))[0][0].exit == 127
    gone = msgspec.structs.replace(step, argv=("true",), walls=Walls())
    if held.name == "bubblewrap":
        ended = run(tmp_path, held, msgspec.structs.replace(job(tmp_path), steps=(gone,), cwd=str(tmp_path)))[0][0]
        assert (ended.exit, "bwrap: Can't chdir" in ended.stderr) == (127, True)


@pytest.mark.parametrize("name", ["none", "bubblewrap", "landlock"])
def test_within_the_grace_a_program_ends_itself(tmp_path, name):
    script = """
import os, signal, sys, time
def end(*_): time.sleep(0.2); print("saved"); sys.exit(7)
signal.signal(signal.SIGTERM, end); print("ready", flush=True); time.sleep(60)
"""
    step = python(tmp_path, rung(name), script, Walls(), timeout_s=1.0, grace_s=5.0)
    assert (step.exit, step.limit, step.stdout) == (7, "wall", "ready\nsaved\n")


def test_all_that_it_wrote_is_there(tmp_path, held):
    step = python(tmp_path, held, "import sys; sys.stdout.write('x' * 3_000_000); sys.stderr.write('y' * 9)", Walls())
    assert (len(step.stdout), step.stderr) == (3_000_000, "y" * 9)


def test_it_has_three_descriptors(tmp_path, held):
    script = "import os; print(sorted(os.listdir('/proc/self/fd')))"
    assert python(tmp_path, held, script, Walls()).stdout == "['0', '1', '2', '3']\n"  # 3: the listing's own


def test_it_has_no_privilege(tmp_path, held):
    status = python(tmp_path, held, "print(open('/proc/self/status').read())", Walls()).stdout
    found = dict(line.split(":\t") for line in status.splitlines() if ":\t" in line)
    assert {int(found[f"Cap{kind}"], 16) for kind in ("Inh", "Prm", "Eff", "Bnd", "Amb")} == {0}
    assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")


def test_it_cannot_end_who_looks_after_it(tmp_path, held):
    script = "import os\nfor pid in (os.getppid(), 1):\n try: os.kill(pid, 9)\n except OSError as error: print(error)"
    assert python(tmp_path, held, script, Walls()).exit == 0


def test_a_daemon_is_dead_when_the_step_is_over(tmp_path, held):
    made = job(tmp_path)
    walls = Walls(read=PREFIXES, write=(made.dir,))
    steps = (
        Step("one", (sys.executable, "-c", DAEMON, f"{made.dir}/pid"), 20.0, {}, "", walls),
        Step("two", (sys.executable, "-c", f"import os, time; {DAEMON!r}; time.sleep(60)", "x"), 0.3, {}, "", walls),
    )
    begun = time.monotonic()
    one, two = run(tmp_path, held, msgspec.structs.replace(made, steps=steps, cwd="/"))[0]  # nothing lives, says run()
    assert (one.exit, two.limit) == (0, "wall")
    assert Path(made.dir, "pid").exists()
    assert time.monotonic() - begun < 3


def test_processes_are_limited_within(tmp_path, held):
    if not any("pids.max" in files for _, files in keeper.hierarchies()):
        pytest.skip("no control group for processes: not limited on this machine")
    script = "import os, time\nwhile True:\n try: os.fork()\n except OSError: time.sleep(0.05)"
    step = python(tmp_path, held, script, Walls(), timeout_s=1.0, limits=Limits(processes=40))
    assert step.limit in ("wall", "processes")


def test_memory_is_limited_within(tmp_path, held):
    if not any({"memory.max", "memory.limit_in_bytes"} & files for _, files in keeper.hierarchies()):
        pytest.skip("no control group for memory: not limited on this machine")
    script = "x = []\nfor _ in range(300): x.append(bytearray(1 << 20))"
    step = python(tmp_path, held, script, Walls(), limits=Limits(memory=100 << 20))
    assert (step.signal, step.limit) == (9, "memory")


FILL = """
import os, time
for n in range(999):
    with open(os.path.join(PLACE, str(n)), "wb") as file: file.write(b"x" * (1 << 18))
    time.sleep(0.01)
"""


def test_its_own_tmp_is_capped_and_gone_afterwards(tmp_path):
    script = (
        "import os\nfor p in '/tmp/NAME', '/dev/shm/NAME':\n try: open(p, 'wb').write(b'x' * (3 << 20))\n"
        " except OSError as error: print(error.errno, end=' ')"
    )
    name = f"metaloop-{os.urandom(8).hex()}"
    step = python(tmp_path, rung("bubblewrap"), script.replace("NAME", name), Walls(scratch=1 << 20))
    assert step.stdout == "28 28 "
    assert not Path(f"/tmp/{name}").exists()


@pytest.mark.parametrize("name", ["none", "bubblewrap", "landlock"])
@pytest.mark.parametrize(
    "script",
    [FILL.replace("PLACE", "os.environ['HOME']"), FILL.replace("PLACE", "'own'")],
    ids=["home", "cwd"],
)  # fmt: skip
def test_what_it_adds_to_the_disk_is_limited(tmp_path, name, script):
    (tmp_path / "cwd/own").mkdir(parents=True)
    (tmp_path / "cwd/own/before").write_bytes(bytes(9 << 20))
    began = time.monotonic()
    walls = Walls(read=(str(tmp_path / "cwd"),), write=(str(tmp_path / "cwd/own"),))
    step = python(tmp_path, rung(name), script, walls, limits=Limits(disk=8 << 20), cwd=str(tmp_path / "cwd"))
    assert step.limit == "disk"
    assert time.monotonic() - began < 5
    assert len([*tmp_path.glob("*/home/*"), *tmp_path.glob("cwd/own/?*")]) > 16, "ended before it added much"
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < (9 + 8 + 20) << 20


def test_no_file_grows_beyond_the_limit(tmp_path, held):
    script = (
        "import signal, os; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\n"
        "with open(os.environ['HOME'] + '/x', 'wb') as file: file.write(b'x' * (9 << 20))"
    )
    step = python(tmp_path, held, script, Walls(), limits=Limits(disk=4 << 20))
    assert (step.signal, step.limit) == (signal.SIGXFSZ, "disk")


def test_there_is_no_more_to_write_to_than_was_said(tmp_path, scene):
    """Neither between the mounts, nor in what is empty because it is hidden."""
    script = """
import os
for place in "/", "/dev", "/run", "/etc", root + "/shown/inner/hidden", root + "/shown", root + "/out":
    try: open(place + "/new", "w")
    except OSError: continue
    print(place)
print(os.listdir(root + "/shown/inner/hidden") + (os.listdir("/run") if os.path.isdir("/run") else []))
"""
    for host in (False, True):
        step = python(tmp_path, rung("bubblewrap"), f"root = {scene['root']!r}" + script, walls(scene, host))
        assert (step.stdout, step.stderr) == ("[]\n", ""), step


def test_nothing_outlives_a_keeper_that_is_killed(tmp_path, held):
    made = job(tmp_path)
    script = "import os, time; os.fork(); time.sleep(600)"
    step = Step("step", (sys.executable, "-c", script), 60.0, {}, "", Walls(read=PREFIXES, write=(made.dir,)))

    async def story():
        executor = LocalExecutor(tmp_path / "lanes", rung=held)
        handle = await executor.start(msgspec.structs.replace(made, steps=(step,), cwd="/"))
        await executor.release(handle)
        while len(marked(tmp_path)) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        parent = int(Path(f"/proc/{json.loads(handle)['pid']}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        assert await executor.wait(handle) == Gone()  # the next keeper of the lane says so
        assert marked(tmp_path) == []
        await executor.close()

    asyncio.run(story())


def test_twenty_at_once(tmp_path, held):
    mounts = Path("/proc/self/mountinfo").read_text()
    jobs = []
    for lane in range(20):
        made = job(tmp_path, lane=lane)
        script = f"import os, time; open(os.environ['HOME'] + '/x', 'w').write('x'); time.sleep(0.2); print({lane})"
        step = Step("step", (sys.executable, "-c", script), 60.0, {}, "", Walls(read=PREFIXES, write=(made.dir,)))
        jobs.append(msgspec.structs.replace(made, steps=(step,), cwd="/"))
    assert [steps[0].stdout for steps in run(tmp_path, held, *jobs)] == [f"{lane}\n" for lane in range(20)]
    assert Path("/proc/self/mountinfo").read_text() == mounts
    tags = {keeper.tag(os.path.realpath(tmp_path / "lanes" / str(lane))) for lane in range(20)}
    left = [
        g for parent, _ in keeper.hierarchies() for g in Path(parent).iterdir() if g.name.rpartition("-")[0] in tags
    ]
    assert left == []


# ---- steps, one after the other --------------------------------------------------------------------------------------


def test_a_link_that_an_earlier_step_put_there_opens_no_door(tmp_path, held):
    (tmp_path / "out").mkdir()
    made = job(tmp_path)
    swap = f"rmdir {made.dir}/tmp && ln -s {tmp_path}/out {made.dir}/tmp"
    first = Step("one", ("sh", "-c", swap), 9.0, {}, "", Walls(write=(made.dir,)))
    forge = ("sh", "-c", f"echo forged > {made.dir}/tmp/x")
    second = Step("two", forge, 9.0, {}, "", Walls(read=(str(tmp_path),), write=(f"{made.dir}/tmp",)))
    one, two = run(tmp_path, held, msgspec.structs.replace(made, steps=(first, second), cwd="/"))[0]
    assert (one.exit, two.exit) == (0, 127)
    assert "has become a link" in two.stderr
    assert not (tmp_path / "out/x").exists()


def test_a_step_runs_where_it_says(tmp_path, held):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    steps = (
        Step("one", ("pwd",), 9.0, {}, str(tmp_path / "b")), Step("two", ("pwd",), 9.0),
        Step("three", ("pwd",), 9.0, {}, str(tmp_path / "b"), Walls(read=(str(tmp_path / "b"),))),
    )  # fmt: skip
    outcome = run(tmp_path, held, job(tmp_path, *steps, cwd=str(tmp_path / "a")))[0]
    assert [Path(step.stdout.strip()).name for step in outcome] == ["b", "a", "b"]


def test_what_builds_the_walls_loads_no_library_of_the_program(tmp_path, held):
    """LD_LIBRARY_PATH is for the program alone: bubblewrap would take a libcap.so.2 from a candidate's folder."""
    (tmp_path / "lib").mkdir()
    for name in ("libcap.so.2", "libselinux.so.1", "libffi.so.8", "libm.so.6"):
        (tmp_path / "lib" / name).write_text("no library")
    made = job(tmp_path)
    env = {"LD_LIBRARY_PATH": str(tmp_path / "lib")}
    step = Step("step", ("sh", "-c", "echo $LD_LIBRARY_PATH"), 9.0, env, "", Walls(host=True))
    outcome = run(tmp_path, held, msgspec.structs.replace(made, steps=(step,), cwd="/"))[0][0]
    assert (outcome.exit, outcome.stdout) == (0, f"{tmp_path}/lib\n"), outcome


def test_walls_without_a_rung_are_refused(tmp_path):
    with pytest.raises(Refusal, match="expected a rung"):
        run(tmp_path, None, job(tmp_path, Step("step", ("true",), 9.0, {}, "", Walls())))


@pytest.mark.parametrize("path", ["relative", "", "/nul\0"])
def test_paths_that_are_none_are_refused(path):
    with pytest.raises(Refusal, match="expected an absolute path"):
        sandbox.confined(("true",), "/", Walls(hidden=(path,)), Rung("bubblewrap"))


def test_nobody_names_proc_or_dev(tmp_path, held):
    script = (
        "import os; open('/dev/null', 'w').close(); print(os.path.exists('/dev/full'), os.listdir('/proc/self/fd'))"
    )
    for walls in (Walls(read=("/proc", "/dev", "/proc/self")), Walls(hidden=("/dev", "/proc"))):
        assert python(tmp_path, held, script, walls).stdout.startswith("True")


def test_more_words_than_bubblewrap_takes_are_refused(tmp_path):
    steps = (Step("step", ("true", *("x" * 9000)), 9.0, {}, "", Walls()),)
    with pytest.raises(Refusal, match="8900 words"):
        run(tmp_path, rung("bubblewrap"), job(tmp_path, *steps))


# ---- an ordinary user ------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.getuid() != 0, reason="every other test has an ordinary user already")
@pytest.mark.parametrize("name", ["bubblewrap", "landlock"])
@pytest.mark.parametrize("host", [False, True], ids=["named", "host"])
def test_an_ordinary_user_is_confined_too(monkeypatch, name, host):
    if name == "landlock" and not os.access("/usr/bin/python3", os.X_OK):
        pytest.skip("root may read anything, others no interpreter")
    found = rung(name)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        shutil.copy(confine.__file__, root / "confine.py")
        monkeypatch.setattr(sandbox, "runnable", lambda _: str(root / "confine.py"))
        monkeypatch.setattr(sys, "executable", "/usr/bin/python3")
        for place in ("mine", "secret"):
            (root / place).mkdir()
            os.chown(root / place, 65534, 65534)
            (root / place / "key").write_text("s3cret")
        script = f"cat {root}/secret/key; echo x > {root}/secret/x; cat {root}/mine/key; echo y > {root}/mine/y; id -u"
        closed = root / "closed"  # may be passed through, not listed: what is hidden there is looked for in vain
        closed.mkdir(mode=0o711)
        (closed / "key").touch()
        walls = Walls(host, (), (f"{root}/mine",), (f"{root}/secret", f"{closed}/key", "/root"), scratch=None)
        command = sandbox.confined(("sh", "-c", script), "/", walls, found)
        assert by_nobody(command) == "s3cret65534\n"
        assert [(root / "mine/y").exists(), (root / "secret/x").exists()] == [True, False]


def by_nobody(command: sandbox.Confined) -> str:
    with sandbox.opened(command) as (argv, fds):
        done = subprocess.run(argv, pass_fds=fds, user=65534, group=65534, extra_groups=[], env={"PATH": os.defpath},
                              capture_output=True, text=True, timeout=20)  # fmt: skip
    return done.stdout


# ---- the ladder ------------------------------------------------------------------------------------------------------


def test_the_highest_rung_is_taken_and_none_is_lowered_in_silence(monkeypatch):
    assert sandbox.climb("auto") == rung("bubblewrap")
    assert sandbox.climb("none") == BARE
    monkeypatch.setattr(bubblewrap, "found", lambda: "")
    for cached in (sandbox._bubblewrap, sandbox._landlock):
        cached.cache_clear()
    try:
        assert sandbox.climb("auto").name == "landlock"
        with pytest.raises(
            UsageError, match=r"^sandbox.level: expected bubblewrap, found no program bwrap; try: sudo apt-get install"
        ):
            sandbox.climb("bubblewrap")
        assert "apt-get install bubblewrap" in sandbox.missing(sandbox.climb("auto"))
        monkeypatch.setattr(confine, "version", lambda: 0)
        sandbox._landlock.cache_clear()
        assert sandbox.climb("auto") == BARE
        with pytest.raises(
            UsageError, match="expected landlock, found a kernel without Landlock; try: add lsm=landlock"
        ):
            sandbox.climb("landlock")
        monkeypatch.setattr(bubblewrap, "found", lambda: "/bin/false")
        sandbox._bubblewrap.cache_clear()
        with pytest.raises(UsageError, match="expected bubblewrap, found 'exit 1'; try: "):
            sandbox.climb("bubblewrap")
    finally:
        for cached in (sandbox._bubblewrap, sandbox._landlock):
            cached.cache_clear()


def test_a_compiled_file_of_another_source_is_not_run(tmp_path, monkeypatch):
    """Where none may be written, import goes by the source, and the old one stays beside it."""
    monkeypatch.syspath_prepend(tmp_path)
    source = tmp_path / "metaloop_test_module.py"
    source.write_text("x = 1\n")
    compiled = py_compile.compile(str(source))
    module = importlib.import_module("metaloop_test_module")
    assert runnable(module) == compiled
    source.write_text("x = 22\n")
    assert runnable(module) == str(source)
    Path(compiled).unlink()
    assert runnable(module) == str(source)


# ---- the filter ------------------------------------------------------------------------------------------------------


def verdict(code: bytes, arch: int, number: int, *args: int) -> int:
    """What the kernel's machine would say."""
    data = struct.pack("=iIQ6Q", number, arch, 0, *(list(args) + [0] * 6)[:6])
    lines, at, value = list(struct.iter_unpack("HBBI", code)), 0, 0
    while True:
        op, yes, no, operand = lines[at]
        at += 1
        if op == seccomp.LOAD:
            (value,) = struct.unpack_from("=I", data, operand)
        elif op == seccomp.RETURN:
            return operand
        else:
            holds = {seccomp.EQUAL: value == operand, seccomp.AT_LEAST: value >= operand,
                     seccomp.ANY_OF: bool(value & operand)}[op]  # fmt: skip
            at += yes if holds else no


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("families", [None, (1,), seccomp.LOOPBACK])
def test_the_filter_says_what_the_table_says(machine, families):
    column, arch = seccomp.MACHINES[machine]
    code = seccomp.program(machine, families)
    deny, nosys, allow = seccomp.ERRNO | 1, seccomp.ERRNO | 38, seccomp.ALLOW
    numbers = {pair[column] for pair in seccomp.DENIED.values()} - {None}
    special = {pair[column] for pair in (seccomp.CLONE, seccomp.CLONE3, seccomp.UNSHARE, seccomp.IOCTL, seccomp.SOCKET)}
    for number in set(range(600)) - special:
        assert verdict(code, arch, number) == (deny if number in numbers else allow), number
    for calls in (seccomp.CLONE, seccomp.UNSHARE):
        assert verdict(code, arch, calls[column], 0x01200011) == allow  # a fork of glibc's
        for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
            assert verdict(code, arch, calls[column], flag | 17) == deny
    assert verdict(code, arch, seccomp.CLONE3[column]) == nosys
    assert verdict(code, arch, seccomp.IOCTL[column], 1, 0xFFFFFFFF00005412) == deny  # the kernel looks at half of it
    assert verdict(code, arch, seccomp.IOCTL[column], 1, 0x5401) == allow
    for family in range(50):
        free = families is None or family in families
        assert verdict(code, arch, seccomp.SOCKET[column], family) == (allow if free else seccomp.ERRNO | 97)
    assert verdict(code, 0x40000003, 1) == seccomp.KILL
    if machine == "x86_64":
        assert verdict(code, arch, 0x40000000 + 41) == nosys


def test_for_a_machine_without_a_table_there_is_no_filter(monkeypatch):
    assert seccomp.program("riscv64", None) is None
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    sandbox._bubblewrap.cache_clear()
    try:
        found = rung("bubblewrap")
        assert not found.seccomp
        assert "no table for riscv64" in sandbox.missing(found)
    finally:
        sandbox._bubblewrap.cache_clear()
