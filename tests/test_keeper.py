"""The keeper under attack: by the jobs it runs, by the death of its controller, and by its own."""

import asyncio
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from metaloop.adapters import keeper, local
from metaloop.adapters.local import LocalExecutor, resolve_program
from metaloop.errors import ExecutorError, Refusal
from metaloop.roles import Gone, Job, Outcome, Running, Step
from metaloop.terms import Limits
from metaloop.testing import DAEMON, PYTHON, alive, ended

CONTROLLER = Path(__file__).with_name("keeper_controller.py")
HOLD = ("sh", "-c", "while [ ! -e go ]; do sleep 0.01; done")


def job(tmp_path, *commands, timeout_s=30.0, **fields):
    nonce = os.urandom(8).hex()
    steps = tuple(Step(f"step{number}", tuple(argv), timeout_s) for number, argv in enumerate(commands))
    env = {"PATH": os.environ["PATH"]}
    made = Job(nonce, 0, str(tmp_path / nonce), str(tmp_path), env, steps)
    return msgspec.structs.replace(made, **fields)


async def begin(executor, job):
    handle = await executor.start(job)
    await executor.release(handle)
    return handle


async def run(executor, job):
    return ended(await executor.wait(await begin(executor, job)))


async def until(condition, seconds=5.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        await asyncio.sleep(0.01)


def marked(root):
    """Living processes that were started by a keeper whose lane is below `root`."""
    found = []
    for pid in filter(str.isdigit, (path.name for path in Path("/proc").iterdir())):
        try:
            if f"{keeper.MARK}={os.path.realpath(root)}".encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(int(pid))
        except OSError:
            continue
    return found


def keeper_of(executor, lane=0):
    """The keeper's pid, from the other end of the connection."""
    sock = executor._lanes[lane]._writer.get_extra_info("socket")
    return int.from_bytes(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 4), sys.byteorder)


def record(job):
    """The keeper's own record of a job that is over."""
    return json.loads(Path(job.dir, "result.json").read_text())


@pytest.fixture
def told(tmp_path):
    """Runs a story with an executor; afterwards nothing of it may live, and none of its groups be left."""

    def tell(story, **settings):
        async def whole():
            executor = LocalExecutor(tmp_path / "lanes", **settings)
            try:
                return await story(executor)
            finally:
                await executor.close()

        result = asyncio.run(whole())
        assert marked(tmp_path) == []
        assert groups(tmp_path) == []
        return result

    return tell


def groups(tmp_path):
    names = {keeper.tag(os.path.realpath(path)) for path in (tmp_path / "lanes").glob("*")}
    places = [Path(parent) for parent, _ in keeper.hierarchies()]
    return [path for place in places for path in place.iterdir() if path.name.rpartition("-")[0] in names]


def enforces(file):
    return any(file in files for _, files in keeper.hierarchies())


# ---- one controller, one keeper, one lane ----------------------------------------------------------------------------


def test_a_lane_has_one_controller(tmp_path, told, monkeypatch):
    monkeypatch.setattr(local, "SUCCESSION_S", 0.2)

    async def story(first):
        handle = await begin(first, job(tmp_path, HOLD))
        second = LocalExecutor(tmp_path / "lanes")
        with pytest.raises(ExecutorError, match="held by another controller"):
            await second.look(handle)
        await second.close()
        (tmp_path / "go").touch()
        assert ended(await first.wait(handle)).steps[0].exit == 0

    told(story)


def test_of_four_who_come_at_once_one_gets_the_lane(tmp_path, monkeypatch):
    monkeypatch.setattr(local, "SUCCESSION_S", 0.2)

    async def story():
        four = [LocalExecutor(tmp_path / "lanes") for _ in range(4)]
        found = await asyncio.gather(*(each.start(job(tmp_path, HOLD)) for each in four), return_exceptions=True)
        await asyncio.gather(*(each.close() for each in four))
        return found

    found = asyncio.run(story())
    assert sum(isinstance(each, str) for each in found) == 1
    assert sum(isinstance(each, ExecutorError) for each in found) == 3


def test_a_lane_runs_one_job_at_a_time(tmp_path, told):
    async def story(executor):
        await begin(executor, job(tmp_path, HOLD))
        other = job(tmp_path, ["true"])
        with pytest.raises(Refusal, match="runs another job"):
            await executor.start(other)
        assert not Path(other.dir).exists()

    told(story)


def test_the_first_two_calls_at_once_share_one_connection(tmp_path, told):
    async def story(executor):
        strange = json.dumps({"lane": 0, "nonce": "f00", "dir": "/", "pid": 1, "starttime": 1, "boot_id": "x"})
        handle, found = await asyncio.gather(executor.start(job(tmp_path, ["true"])), executor.look(strange))
        assert found == Gone()
        assert await executor.look(handle) == Running(blocked=True)

    told(story)


def test_a_handle_that_differs_in_anything_is_gone(tmp_path, told):
    async def story(executor):
        handle = await begin(executor, job(tmp_path, ["true"]))
        outcome = ended(await executor.wait(handle))
        for key, value in (("pid", 1), ("starttime", 1), ("boot_id", "x"), ("nonce", "f00"), ("dir", str(tmp_path))):
            assert await executor.look(json.dumps({**json.loads(handle), key: value})) == Gone(), key
        assert await executor.look(handle) == outcome

    told(story)


def test_a_lane_may_lie_deeper_than_a_socket_address_is_long(tmp_path):
    async def story():
        executor = LocalExecutor(tmp_path / ("x" * 120) / "lanes")
        outcome = await run(executor, job(tmp_path, ["true"]))
        await executor.close()
        return outcome

    assert asyncio.run(story()).steps[0].exit == 0


def test_a_successor_gets_in_though_a_fork_of_the_dead_holds_the_socket(tmp_path, told):
    async def story(executor):
        handle = await begin(executor, job(tmp_path, HOLD))
        await executor.close(keep=True)
        script = (
            "import asyncio, os, signal, sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
            "from metaloop.adapters.local import LocalExecutor\n"
            "async def main():\n"
            "    print(await LocalExecutor(Path(sys.argv[2])).look(sys.argv[3]), flush=True)\n"
            "    pid = os.fork()\n"
            "    if not pid: os.close(0); os.close(1); signal.pause()\n"
            "    print(pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
            "asyncio.run(main())"
        )
        source = str(Path(local.__file__).parents[2])
        command = [sys.executable, "-c", script, source, str(tmp_path / "lanes"), handle]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        assert said[0] == "Running(blocked=False)"
        assert await executor.look(handle) == Running()
        os.kill(int(said[1]), signal.SIGKILL)

    told(story)


def test_who_does_not_know_the_key_is_no_controller(tmp_path, told):
    """Nor does it keep one out, however often it calls, or hear anything."""
    order = {"nonce": "n", "dir": str(tmp_path / "theirs"), "cwd": "/", "env": {}, "steps": []}
    said = json.dumps({"id": 1, "op": "start", "job": order}).encode()

    async def story(executor):
        handle = await begin(executor, job(tmp_path, HOLD))
        key = (tmp_path / "lanes/0/key").read_bytes()
        assert (tmp_path / "lanes/0/key").stat().st_mode & 0o077 == 0
        await executor.close(keep=True)
        calls = []
        for words in (b"", said + b"\n", key[:-1] + b"x\n" + said, key[:-1], *[b"\n"] * 9, *[b"x"] * 12):
            calls.append(socket.socket(socket.AF_UNIX))
            calls[-1].connect(str(tmp_path / "lanes/0/sock"))
            calls[-1].sendall(words)
        assert await executor.look(handle) == Running()
        heard = b""
        for call in calls:
            call.setblocking(False)
            try:
                heard += call.recv(100)
            except OSError:
                pass
            call.close()
        assert heard == b""
        (tmp_path / "go").touch()
        assert ended(await executor.wait(handle)).steps[0].exit == 0
        assert not (tmp_path / "theirs").exists()

    told(story)


def test_a_key_that_was_torn_is_drawn_anew(tmp_path, told):
    (tmp_path / "lanes/0").mkdir(parents=True)
    (tmp_path / "lanes/0/key").touch()

    async def story(executor):
        await run(executor, job(tmp_path, ["true"]))
        assert len((tmp_path / "lanes/0/key").read_bytes()) == 64

    told(story)


FORGES = """
import json, os, sys, time
kind, folder = sys.argv[1], os.path.dirname(os.environ["TMPDIR"])
result = folder + "/result.json"
if kind == "pipe":
    os.mkfifo(result)
elif kind == "link":
    os.symlink("/dev/zero", result)
elif kind == "large":
    os.truncate(os.open(result, os.O_CREAT | os.O_WRONLY), 1 << 40)
else:
    while not os.path.exists("handle"):
        time.sleep(0.01)
    stream = {"bytes": 0, "dropped": 0, "kept": 0, "sha256": ""}
    step = {"name": "step0", "exit": 0, "signal": None, "limit": None, "clean": True, "wall_s": 0.1}
    mine = {**json.load(open("handle")), "steps": [{**step, "out": stream, "err": stream}]}
    mine["metrics"] = {"name": "m", "text": '{"score": 99}'}
    open(result, "w").write("[" * 100000 if kind == "deep" else json.dumps(mine))
open("planted", "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize("kind", ["forged", "pipe", "link", "deep", "large"])
def test_no_result_is_believed_that_the_keeper_did_not_seal(tmp_path, told, kind):
    """A job may write its own, and the keeper die with it. Nor does what else it leaves there hold a successor up."""

    async def story(executor):
        handle = await begin(executor, job(tmp_path, (*PYTHON, FORGES, kind), timeout_s=600.0))
        (tmp_path / "handle.new").write_text(handle)
        (tmp_path / "handle.new").rename(tmp_path / "handle")
        await until((tmp_path / "planted").exists)
        os.kill(keeper_of(executor), signal.SIGKILL)
        async with asyncio.timeout(10):
            assert await executor.wait(handle) == Gone()

    told(story)


def test_a_keeper_without_a_controller_leaves_when_its_job_is_over(tmp_path, told):
    async def story(executor):
        handle = await begin(executor, job(tmp_path, ["sleep", "0.6"]))
        pid = keeper_of(executor)
        await executor.close(keep=True)
        begun = time.monotonic()
        await until(lambda: not alive(pid))
        assert time.monotonic() - begun > 0.7
        assert ended(await executor.look(handle)).steps[0].exit == 0

    told(story, idle_s=0.3)


def test_a_keeper_with_a_controller_stays(tmp_path, told):
    async def story(executor):
        await run(executor, job(tmp_path, ["true"]))
        pid = keeper_of(executor)
        await asyncio.sleep(0.5)
        assert alive(pid)
        assert keeper_of(executor) == pid

    told(story, idle_s=0.1)


def test_the_controllers_own_children_are_its_own(tmp_path, told):
    async def story(executor):
        child = subprocess.Popen(["sh", "-c", "exit 7"])
        await run(executor, job(tmp_path, ["true"]))
        assert child.wait() == 7
        assert signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL

    told(story)


def test_the_loop_goes_on_while_a_job_floods_its_output(tmp_path, told):
    async def story(executor):
        gaps = []

        async def beat():
            while True:
                begun = time.monotonic()
                await asyncio.sleep(0.005)
                gaps.append(time.monotonic() - begun)

        beating = asyncio.create_task(beat())
        script = "import sys; sys.stdout.write('x' * 50_000_000)"
        outcome = await run(executor, job(tmp_path, [*PYTHON, script]))
        beating.cancel()
        assert len(outcome.steps[0].stdout) > 10 << 20
        assert sorted(gaps)[-3] < 0.25

    told(story)


@pytest.mark.parametrize(("word", "status"), [(b"", 125), (b"x", 125), (b"g", 0)])
def test_only_the_word_opens_the_gate(word, status, tmp_path):
    """End of file, which is what a dead keeper leaves, is not the word; nor is anything else."""
    script = (
        "import os, socket, sys; sys.path.insert(0, sys.argv[1]); import keeper\n"
        "gate, writer = (end.detach() for end in socket.socketpair())\n"
        "job = {'dir': '/tmp', 'cwd': '/', 'env': {}, 'limits': {}}\n"
        "step, parent = {'argv': ['/bin/sh', '-c', 'echo ran'], 'env': {}}, os.getpid()\n"
        "pid = os.fork()\n"
        "if not pid: keeper.become(step, job, (gate, 1, 2), 'lane', parent, keeper.Cgroup.found([]))\n"
        "os.close(gate); assert os.read(writer, 1) == b'y'; os.write(writer, sys.argv[2].encode()); os.close(writer)\n"
        "sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    command = [sys.executable, "-c", script, str(Path(keeper.__file__).parent), word.decode()]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (status, "ran\n" if status == 0 else "")


# ---- jobs that misbehave ---------------------------------------------------------------------------------------------

BOMBS = {
    "sleeper": "import time; time.sleep(600)",
    "daemon": DAEMON + "time.sleep(600)",
    "tree of 200": "import os\nr, w = os.pipe(); os.write(w, b'x' * 200)\nwhile os.read(r, 1): os.fork()",
    "comets": "import os, time\nfor _ in range(5):\n  if os.fork() == 0:\n    os.setsid()\n    while True:\n"
    "      if os.fork(): os._exit(0)\ntime.sleep(600)",
    "threads that fork": "import _thread, os, time\nfor _ in range(100):\n  try:\n"
    "    _thread.start_new_thread(lambda: [os.fork(), time.sleep(600)], ())\n  except Exception: pass\ntime.sleep(600)",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_nothing_of_a_tree_outlives_its_limit(bomb, tmp_path, told):
    async def story(executor):
        for number in range(2):
            made = job(tmp_path, [*PYTHON, BOMBS[bomb], str(tmp_path / f"pid{number}")], timeout_s=0.4)
            outcome = await run(executor, made)
            assert outcome.steps[0].limit == "wall"
            found = record(made)["steps"][0]
            assert found["clean"]
            assert found["wall_s"] + found["kill_s"] < 0.4 + 2
            assert marked(tmp_path) == []

    told(story)


@pytest.mark.skipif(not enforces("pids.max"), reason="no control group for processes may be made here")
def test_a_fork_bomb_ends(tmp_path, told):
    script = "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass"

    async def story(executor):
        made = job(tmp_path, [*PYTHON, script], timeout_s=0.4, limits=Limits(processes=64))
        assert (await run(executor, made)).steps[0].limit == "wall"
        assert "processes" in record(made)["steps"][0]["enforced"]

    told(story)


@pytest.mark.skipif(not enforces("pids.max"), reason="no control group for processes may be made here")
def test_a_program_is_in_its_control_group_from_its_first_moment(tmp_path, told):
    """It waits at its gate until it is, and nothing is said of limits that do not hold."""

    async def story(executor):
        made = job(tmp_path, ["cat", "/proc/self/cgroup"], limits=Limits(processes=8))
        outcome = await run(executor, made)
        assert "/metaloop-" in outcome.steps[0].stdout
        assert "processes" in record(made)["steps"][0]["enforced"]

    told(story)


def test_a_group_that_does_not_take_a_program_limits_nothing():
    group = keeper.Cgroup.found([])
    assert group.enter()
    group.dirs = ["/nonexistent/metaloop-x"]
    assert not group.enter()


@pytest.mark.skipif(not enforces("pids.max"), reason="no control group for processes may be made here")
def test_who_fails_for_want_of_processes_is_told_so(tmp_path, told):
    script = "import os, time\nfor _ in range(20):\n  if not os.fork(): time.sleep(600)"

    async def story(executor):
        made = job(tmp_path, [*PYTHON, script], limits=Limits(processes=8))
        assert (await run(executor, made)).steps[0].limit == "processes"

    told(story)


@pytest.mark.skipif(
    not enforces("memory.max") and not enforces("memory.limit_in_bytes"), reason="no control group for memory here"
)
def test_who_takes_too_much_memory_is_killed_and_told_so(tmp_path, told):
    script = "x = [bytearray(b'x' * (1 << 20)) for i in range(300)]"

    async def story(executor):
        made = job(tmp_path, [*PYTHON, script], limits=Limits(memory=64 << 20))
        step = (await run(executor, made)).steps[0]
        assert (step.limit, step.signal) == ("memory", signal.SIGKILL)

    told(story)


def test_output_may_be_limited_for_good(tmp_path, told):
    async def story(executor):
        assert (await run(executor, job(tmp_path, ["yes"]))).steps[0].limit == "output"

    told(story, output_total=10_000_000)


def test_lane_mates_do_not_end_each_others_daemons(tmp_path, told):
    check = DAEMON + "time.sleep({seconds}); os.kill(int(open(sys.argv[1]).read()), 0); print('alive')"

    async def story(executor):
        async def one(lane):
            dice = random.Random(lane)
            for number in range(5):
                script = check.format(seconds=dice.uniform(0, 0.1))
                made = job(tmp_path, [*PYTHON, script, str(tmp_path / f"{lane}.{number}")], lane=lane)
                assert (await run(executor, made)).steps[0].stdout == "alive\n"

        await asyncio.gather(one(0), one(1))

    told(story)


def test_traps_laid_in_the_jobs_folder_hang_nobody(tmp_path, told):
    lay = "cd $HOME/..; rm -f step1.out; mkfifo step1.out result.tmp step1.err.x; ln -sf /dev/zero step0.out; chmod 0 ."

    async def story(executor):
        handle = await begin(executor, job(tmp_path, ["sh", "-c", lay], ["echo", "hi"]))
        outcome = ended(await executor.wait(handle))
        step, second = outcome.steps
        assert (step.exit, second.exit) == (0, 0)
        await executor.close()
        assert await executor.look(handle) == outcome
        assert "step1.out was changed" in second.stdout

    told(story)


def test_what_was_changed_or_deleted_after_the_end_is_not_passed_off(tmp_path, told):
    async def story(executor):
        made = job(tmp_path, ["sh", "-c", "echo acc=1; echo loss=1 >&2"])
        handle = await begin(executor, made)
        first = ended(await executor.wait(handle))
        Path(made.dir, "step0.out").write_text("acc=9\n")
        Path(made.dir, "step0.err").unlink()
        second = ended(await executor.look(handle))
        assert second.steps[0].stdout == "\n[metaloop: step0.out was changed after it was written]\n"
        assert second.steps[0].stderr == "\n[metaloop: step0.err was deleted]\n"
        assert second.output == first.output

    told(story)


# ---- what goes wrong around it ---------------------------------------------------------------------------------------


def test_what_no_keeper_could_run_is_refused(tmp_path, told):
    (tmp_path / "used").mkdir()
    cases = {
        "steps with a command": job(tmp_path),
        "step names": job(tmp_path, ["true"], steps=(Step("a/b", ("true",), 1.0),)),
        "step names that differ": job(tmp_path, ["true"], steps=(Step("a", ("true",), 1.0),) * 2),
        "absolute folder": job(tmp_path, ["true"], dir="here"),
        "without NUL": job(tmp_path, ["true", "\0"]),
        "UTF-8": job(tmp_path, ["true", "\udcff"]),
        "name of its own": job(tmp_path, ["true"], metrics="../metrics.json"),
        "cannot keep a trial here": job(tmp_path, ["true"], dir="/dev/null/trial"),
        "used before": job(tmp_path, ["true"], dir=str(tmp_path / "used")),
    }

    async def story(executor):
        for why, made in cases.items():
            with pytest.raises(Refusal, match=why):
                await executor.start(made)
        assert (await run(executor, job(tmp_path, ["true"]))).steps[0].exit == 0

    told(story)


def test_a_lane_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "lanes").write_text("a file")

    async def story():
        await LocalExecutor(tmp_path / "lanes").start(job(tmp_path, ["true"]))

    with pytest.raises(ExecutorError, match=r"cannot use the lane .*lanes/0"):
        asyncio.run(story())


def test_without_descriptors_there_is_one_clear_error_and_then_it_goes_on(tmp_path, told):
    async def story(executor):
        handle = await begin(executor, job(tmp_path, ["echo", "hi"]))
        outcome = ended(await executor.wait(handle))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        other = LocalExecutor(tmp_path / "other")
        try:
            lowest = os.dup(0)
            os.close(lowest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
            with pytest.raises(ExecutorError, match="Too many open files"):
                await executor.look(handle)
            with pytest.raises(ExecutorError, match="Too many open files"):
                await other.start(job(tmp_path, ["true"]))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert await executor.look(handle) == outcome

    told(story)


def test_a_jobs_folder_deleted_while_it_runs_costs_its_output_only(tmp_path, told):
    async def story(executor):
        made = job(tmp_path, ["sh", "-c", 'echo hi; rm -rf "$(dirname $HOME)"; exit 4'])
        handle = await begin(executor, made)
        step = ended(await executor.wait(handle)).steps[0]
        assert (step.exit, step.stdout) == (4, "\n[metaloop: step0.out was deleted]\n")
        assert (await run(executor, job(tmp_path, ["true"]))).steps[0].exit == 0
        assert ended(await executor.look(handle)).steps[0].exit == 4

    told(story)


def test_a_lane_deleted_under_its_keeper_is_made_again(tmp_path, told):
    async def story(executor):
        handle = await begin(executor, job(tmp_path, ["true"]))
        ended(await executor.wait(handle))
        shutil.rmtree(tmp_path / "lanes")
        assert (await run(executor, job(tmp_path, ["true"]))).steps[0].exit == 0
        assert (tmp_path / "lanes" / "0" / "lock").exists()
        assert await executor.look(handle) == Gone()  # the key that it was sealed with is deleted

    told(story)


def test_a_lane_deleted_between_controllers_leaves_no_second_run(tmp_path, told):
    async def story(executor):
        pid = tmp_path / "pid"
        handle = await begin(executor, job(tmp_path, [*PYTHON, DAEMON + "time.sleep(600)", str(pid)]))
        await until(pid.exists)
        await executor.close(keep=True)
        shutil.rmtree(tmp_path / "lanes")
        found = await executor.wait(handle)
        assert not isinstance(found, Outcome) or found.steps[0].signal == signal.SIGKILL
        assert not alive(int(pid.read_text()))

    told(story, idle_s=0.5)


@pytest.mark.skipif(os.getuid() != 0, reason="mounting takes root")
def test_a_full_disk_loses_output_and_refuses_the_next_job_and_hangs_nobody(tmp_path):
    script = f"""
import asyncio, os, sys
sys.path[:0] = [{str(Path(local.__file__).parents[2])!r}, {str(Path(__file__).parent)!r}]
from pathlib import Path
from test_keeper import LocalExecutor, Refusal, job, run
async def main(disk):
    executor = LocalExecutor(disk / "lanes")
    fill = "import os\\nfd = os.open('fill', os.O_WRONLY | os.O_CREAT)\\ntry:\\n  while 1: os.write(fd, b'x' * 4096)\\n"
    fill += "except OSError: pass\\nos.write(1, b'y' * 100000)"
    step = (await run(executor, job(disk, [sys.executable, "-c", fill]))).steps[0]
    assert step.exit == 0 and len(step.stdout) < 100000, step
    try:
        await executor.start(job(disk, ["true"]))
    except Refusal as refusal:
        assert "No space left" in str(refusal), refusal
    else:
        raise AssertionError("started on a full disk")
    (disk / "fill").unlink()
    assert (await run(executor, job(disk, ["echo", "hi"]))).steps[0].stdout == "hi\\n"
    await executor.close()
asyncio.run(main(Path(sys.argv[1])))
"""
    mount = 'mount -t tmpfs -o size=256k,nr_inodes=40 none "$1" && shift && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", mount, "sh", str(tmp_path), sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30)
    if "mount:" in done.stdout or "unshare:" in done.stdout:
        pytest.skip(done.stdout)
    assert done.returncode == 0, done.stdout


# ---- the keeper's own death ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("released", [True, False])
def test_a_killed_keepers_job_is_gone_and_nothing_of_it_is_left(released, tmp_path, told):
    async def story(executor):
        for number in range(3):
            pid = tmp_path / f"pid{number}"
            handle = await executor.start(job(tmp_path, [*PYTHON, DAEMON + "time.sleep(600)", str(pid)]))
            if released:
                await executor.release(handle)
                await until(pid.exists)
            os.kill(keeper_of(executor), signal.SIGKILL)
            assert await executor.wait(handle) == Gone()
            assert await executor.look(handle) == Gone()
            assert marked(tmp_path) == []
            assert pid.exists() == released
            assert (await run(executor, job(tmp_path, ["true"]))).steps[0].exit == 0

    told(story)


def test_the_first_process_dies_with_its_keeper_though_nobody_comes(tmp_path, told):
    async def story(executor):
        handle = await begin(executor, job(tmp_path, HOLD))
        pid = json.loads(handle)["pid"]
        assert alive(pid)
        os.kill(keeper_of(executor), signal.SIGKILL)
        await until(lambda: not alive(pid))
        assert await executor.look(handle) == Gone()

    told(story)


@pytest.mark.skipif(not keeper.hierarchies(), reason="no control group may be made here")
def test_a_daemon_that_forgot_its_environment_is_found_by_its_group(tmp_path, told):
    async def story(executor):
        script = "env -i setsid sh -c 'echo $$ > pid.tmp; mv pid.tmp pid; sleep 600' & sleep 600"
        handle = await begin(executor, job(tmp_path, ["sh", "-c", script]))
        await until((tmp_path / "pid").exists)
        os.kill(keeper_of(executor), signal.SIGKILL)
        assert await executor.wait(handle) == Gone()
        assert not alive(int((tmp_path / "pid").read_text()))

    told(story)


def test_a_result_outlives_its_killed_keeper(tmp_path, told):
    async def story(executor):
        handle = await begin(executor, job(tmp_path, ["echo", "hi"]))
        outcome = ended(await executor.wait(handle))
        os.kill(keeper_of(executor), signal.SIGKILL)
        assert await executor.look(handle) == outcome

    told(story)


@pytest.mark.slow
def test_a_keeper_killed_at_any_instant_leaves_gone_or_a_result(tmp_path, told):
    async def story(executor):
        dice, gone = random.Random(2), 0
        for number in range(14):
            script = DAEMON + "time.sleep(0.1)"
            handle = await executor.start(job(tmp_path, [*PYTHON, script, str(tmp_path / f"pid{number}")]))
            victim = keeper_of(executor)
            await executor.release(handle)
            await asyncio.sleep(dice.uniform(0, 0.25))
            os.kill(victim, signal.SIGKILL)
            found = await executor.look(handle)
            assert found == Gone() or ended(found).steps[0].exit == 0
            assert marked(tmp_path) == []
            gone += found == Gone()
        assert 0 < gone < 14

    told(story)


def test_a_keeper_told_to_end_ends_its_job(tmp_path, told):
    async def story(executor):
        handle = await begin(executor, job(tmp_path, HOLD))
        os.kill(keeper_of(executor), signal.SIGTERM)
        assert await executor.wait(handle) == Gone()

    told(story)


def test_a_keeper_that_does_not_answer_is_one_clear_error(tmp_path, told, monkeypatch):
    monkeypatch.setattr(local, "PATIENCE_S", 0.3)

    async def story(executor):
        handle = await begin(executor, job(tmp_path, HOLD))
        pid = keeper_of(executor)
        await executor.close(keep=True)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(ExecutorError, match="did not answer"):
                await executor.look(handle)
        finally:
            os.kill(pid, signal.SIGCONT)
        monkeypatch.setattr(local, "PATIENCE_S", 10)
        assert await executor.look(handle) == Running()

    told(story)


# ---- the controller's death ------------------------------------------------------------------------------------------


def audit(workspace, trials):
    """Every trial ran and finished once, and nothing of any lives."""
    facts = [json.loads(line) for line in (workspace / "book").read_text().splitlines()]
    finished = [fact["trial"] for fact in facts if fact["fact"] == "finished"]
    ran = (workspace / "runs").read_text().splitlines()
    assert sorted(finished) == list(range(trials))
    assert sorted(ran) == sorted(f"{what} {trial}" for trial in range(trials) for what in ("begin", "end"))
    assert marked(workspace) == []
    assert not any(alive(int(pid)) for pid in (workspace / "daemons").read_text().split())


@pytest.mark.parametrize("point", ["start", "recorded", "released", "result", "finished"])
def test_a_controller_killed_between_any_two_deeds_loses_and_doubles_nothing(point, tmp_path):
    command = [sys.executable, str(CONTROLLER), str(tmp_path), "1", "3"]
    crash = {**os.environ, "CRASH": f"{point}:1"}
    assert subprocess.run(command, env=crash, stdout=subprocess.DEVNULL).returncode == -signal.SIGKILL
    assert subprocess.run(command, stdout=subprocess.DEVNULL).returncode == 0
    audit(tmp_path, 3)


@pytest.mark.slow
def test_a_controller_killed_at_random_instants_loses_and_doubles_nothing(tmp_path):
    seed = int(os.environ.get("SEED", "1"))
    dice, kills, study = random.Random(seed), 0, 0
    while kills < int(os.environ.get("KILLS", "30")):
        workspace, lanes = tmp_path / str(study), 1 + study % 2
        workspace.mkdir()
        study += 1
        killed = True
        while killed:
            command = [sys.executable, str(CONTROLLER), str(workspace), str(lanes), "6"]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as controller:
                controller.stdout.readline()
                try:
                    assert controller.wait(timeout=dice.uniform(0, 0.2)) == 0
                    killed = False
                except subprocess.TimeoutExpired:
                    controller.kill()
                    kills += 1
        audit(workspace, 6)


# ---- programs --------------------------------------------------------------------------------------------------------


def test_a_program_is_found_as_the_job_would_find_it(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tool").write_text("#!/bin/sh\n")
    assert resolve_program(["tool"], str(tmp_path), f"{tmp_path}/bin") is None
    (tmp_path / "bin" / "tool").chmod(0o755)
    tool = str(tmp_path / "bin" / "tool")
    assert resolve_program(["tool"], "/", f"/usr/bin:{tmp_path}/bin") == tool
    assert resolve_program(["tool"], str(tmp_path), "bin") == tool
    assert resolve_program(["bin/tool"], str(tmp_path), "") == tool
    assert resolve_program([tool], "/", "") == tool
    assert resolve_program(["./tool"], str(tmp_path), f"{tmp_path}/bin") is None
    assert resolve_program([], "/", "/usr/bin") is None


def test_only_keys_of_ours_are_forgotten_wherever_a_link_in_a_lane_leads(tmp_path):
    keys, mine = tmp_path / "ours/keys", tmp_path / "mine/notes"
    for path in (keys / "abc", mine):
        path.parent.mkdir(parents=True)
        path.write_text("x")
    for lane, target in enumerate((keys / "abc", mine)):
        (tmp_path / f"lanes/{lane}").mkdir(parents=True)
        (tmp_path / f"lanes/{lane}/key").symlink_to(target)
    local.forget(tmp_path / "lanes", keys)
    assert mine.exists()
    assert not keys.exists()
