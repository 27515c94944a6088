"""Runs jobs on this machine: one keeper a lane (`keeper.py`), found again by handle after we were killed.

Knows the keeper's protocol and what a handle is; decides nothing about trials. Installs no signal handler and waits for
no process but the launcher it started.
"""

import asyncio
import contextlib
import errno
import functools
import hashlib
import itertools
import os
import shutil
import signal
import socket
import stat
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from metaloop.adapters import keeper, sandbox
from metaloop.adapters.host import runnable
from metaloop.adapters.keeper import starttime
from metaloop.adapters.sandbox.places import within
from metaloop.errors import ExecutorError, Refusal
from metaloop.roles import GATE, Gone, Job, Outcome, Running, Step, StepOutcome
from metaloop.terms import Rung

METRICS_CAP = 64 << 10
BUSY = 75  # the launcher's exit code when another keeper serves the lane
PATIENCE_S = 10.0  # how long a keeper may take to answer at all
HASTE_S = 3.0  # the same, when we are ending things
SMALL = 64 << 10  # bytes of output that are read sooner than a thread would have begun to
SUCCESSION_S = 1.0  # how long a controller that was just killed may still hold its lane


class Handle(msgspec.Struct, frozen=True):
    """What finds a job again: its lane, its folder, and the identity of its first process, shared by no other."""

    lane: int
    nonce: str
    dir: str
    pid: int
    starttime: int | None
    boot_id: str


class LocalExecutor:
    """`roles.Executor` on this machine, one keeper a lane in `lanes_dir/LANE`, launched when the lane is first used.

    The metrics file holds what the last step wrote: an earlier step's is set aside as STEP.metrics. A job that was
    stopped before its release has an outcome (`stopped`); one whose controller died before is `Gone`, and its folder
    with it. `stop` gives the tree `grace_s` after SIGTERM, like a limit does; `close` does not.

    Where no control group is writable, memory and processes are not limited: `result.json` in the job's folder says
    under `enforced` what held. Raises `Refusal` from `start`, and `ExecutorError` where a lane cannot be used at all.
    """

    def __init__(
        self,
        lanes_dir: Path,
        *,
        idle_s: float = 30.0,
        output_total: int | None = None,
        rung: Rung | None = None,
        keys: Path | None = None,
    ) -> None:
        """`idle_s`: how long a keeper stays without a controller and a job. `output_total`: bytes that end a step.
        `rung`: what steps with walls are confined by; without one they are refused. `keys`: a folder that no trial
        sees, where the keys of lanes are; without one, each is in its lane.
        """
        self._keys = keys
        self._dir, self._idle, self._output_total, self._rung = lanes_dir, idle_s, output_total, rung
        self._lanes: dict[int, _Lane] = {}

    async def start(self, job: Job) -> str:
        try:
            Path(job.dir).parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Refusal(f"{Path(job.dir).parent}: cannot keep a trial here: {error.strerror}") from error
        wire = _wire(job, self._output_total, self._rung)
        answer = await self._lane(job.lane).ask("start", job=wire)
        if answer.error or answer.handle is None:
            raise Refusal(f"lane {job.lane}: {answer.error or 'the keeper gave no handle'}")
        return msgspec.json.encode(Handle(job.lane, **msgspec.structs.asdict(answer.handle))).decode()

    async def release(self, handle: str) -> None:
        await self._ask("release", handle)

    async def look(self, handle: str) -> Running | Outcome | Gone:
        return await self._ask("look", handle)

    async def wait(self, handle: str) -> Outcome | Gone:
        return _ended(await self._ask("wait", handle))

    async def read(self, handle: str, name: str, offset: int) -> bytes:
        try:
            folder = msgspec.json.decode(handle, type=Handle).dir
            fd = os.open(f"{folder}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (msgspec.DecodeError, OSError):
            return b""
        try:
            return os.pread(fd, 1 << 20, offset) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        finally:
            os.close(fd)

    async def stop(self, handle: str) -> Outcome | Gone:
        return _ended(await self._ask("stop", handle))

    async def close(self, *, keep: bool = False) -> None:
        """Lets go of the lanes used so far. Unless `keep`, their keepers end, and with them what they run."""
        lanes, self._lanes = self._lanes, {}
        await asyncio.gather(*(lane.close(keep) for lane in lanes.values()))

    def _lane(self, number: int) -> "_Lane":
        if number not in self._lanes:
            self._lanes[number] = _Lane(self._dir / str(number), self._idle, self._keys)
        return self._lanes[number]

    async def _ask(self, op: str, text: str) -> Running | Outcome | Gone:
        try:
            handle = msgspec.json.decode(text, type=Handle)
        except msgspec.DecodeError:
            return Gone()  # no executor of this kind ever gave it
        fields = msgspec.structs.asdict(handle)
        del fields["lane"]
        answer = await self._lane(handle.lane).ask(op, handle=fields)
        if answer.error:
            raise ExecutorError(f"lane {handle.lane}: {answer.error}")
        if answer.state == "done" and answer.result is not None:
            kept = sum(stream.kept for step in answer.result.steps for stream in (step.out, step.err))
            return _outcome(answer.result) if kept <= SMALL else await asyncio.to_thread(_outcome, answer.result)
        return Gone() if answer.state == "gone" else Running(blocked=answer.state == "blocked")


def resolve_program(argv: Sequence[str], cwd: str, path: str) -> str | None:
    """The file that a job with this command would execute, looked for as the job would; None where there is none."""
    if not argv or not argv[0]:
        return None
    if "/" in argv[0]:
        return shutil.which(os.path.join(cwd, argv[0]))  # noqa: PTH118 - Path would drop a leading ./ and a trailing /
    places = (str(Path(cwd, place)) for place in path.split(os.pathsep))
    return shutil.which(argv[0], path=os.pathsep.join(places))


def forget(lanes_dir: Path, keys: Path) -> None:
    """Removes what `keys` has for these lanes, of a study that is over: what was sealed with it is recorded. Nothing
    else goes, wherever a link in a lane leads.
    """
    for link in lanes_dir.glob("*/key"):
        if link.is_symlink() and link.readlink().parent == keys.absolute():
            link.readlink().unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # others are there, or none ever was
        keys.rmdir()
        keys.parent.rmdir()


# ---- the keeper's protocol -------------------------------------------------------------------------------------------


class _Stream(msgspec.Struct, frozen=True):
    bytes: int = 0
    dropped: int = 0
    kept: int = 0
    sha256: str = ""
    refused: int = 0


class _StepRecord(msgspec.Struct, frozen=True):
    name: str
    exit: int | None
    signal: int | None
    limit: str | None
    clean: bool
    wall_s: float
    out: _Stream
    err: _Stream


class _Metrics(msgspec.Struct, frozen=True):
    name: str = ""
    text: str | None = None
    sha256: str = ""
    problem: str = ""


class _Result(msgspec.Struct, frozen=True):
    dir: str
    steps: tuple[_StepRecord, ...]
    metrics: _Metrics | None = None


class _KeeperHandle(msgspec.Struct, frozen=True):
    nonce: str
    dir: str
    pid: int
    starttime: int | None
    boot_id: str


class _Answer(msgspec.Struct, frozen=True):
    """Any line from the keeper: the greeting (`hello`, `pid`, `starttime`), or the reply to request `id`."""

    id: int = -1
    hello: int = 0
    pid: int = 0
    starttime: int | None = None
    state: str = ""
    error: str = ""
    handle: _KeeperHandle | None = None
    result: _Result | None = None


_answers = msgspec.json.Decoder(_Answer)
_NOBODY = {"nonce": "", "dir": "/nonexistent", "pid": 0, "starttime": 0, "boot_id": ""}  # asking for it is a ping


def _wire(job: Job, output_total: int | None, rung: Rung | None) -> dict[str, object]:
    """The job as the keeper wants it. Raises Refusal for what no keeper could run."""
    if not job.steps or any(not step.argv for step in job.steps):
        raise Refusal(f"job {job.nonce!r}: expected steps with a command each, found {job.steps!r}")
    names = [step.name for step in job.steps]
    if len(set(names)) < len(names) or not all(name.replace("-", "_").isidentifier() for name in names):
        raise Refusal(f"job {job.nonce!r}: expected step names that differ and are words, found {names!r}")
    if not Path(job.dir).is_absolute():
        raise Refusal(f"job {job.nonce!r}: expected an absolute folder, found {job.dir!r}")
    if not job.metrics or "/" in job.metrics or job.metrics in (".", "..", "home", "tmp", "result.json", "result.tmp"):
        raise Refusal(f"job {job.nonce!r}: expected a name of its own for the metrics file, found {job.metrics!r}")
    variables = itertools.chain(job.env.items(), *(step.env.items() for step in job.steps))
    words = itertools.chain(*variables, *(step.argv for step in job.steps), (step.cwd for step in job.steps))
    texts = (job.dir, job.cwd, job.metrics, *words)
    if bad := next((text for text in texts if "\0" in text or not _encodes(text)), None):
        raise Refusal(f"job {job.nonce!r}: expected UTF-8 text without NUL, found {bad!r}")
    limits = {
        "grace": job.grace_s,
        "out_cap": job.limits.output,
        "out_total": output_total,
        "metrics_cap": METRICS_CAP,
        "memory": job.limits.memory,
        "processes": job.limits.processes,
        "files": job.limits.files,
        "disk": job.limits.disk,
    }
    return {
        "nonce": job.nonce,
        "dir": job.dir,
        "cwd": job.cwd,
        "steps": [_wire_step(job, step, rung) for step in job.steps],
        "limits": limits,
        "metrics": job.metrics,
        **({"own": b"\0".join(map(os.fsencode, _own(job)))} if job.limits.disk is not None else {}),
    }


def _encodes(text: str) -> bool:
    """False for what only stands for bytes that are no text (a lone surrogate)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _wire_step(job: Job, step: Step, rung: Rung | None) -> dict[str, object]:
    env = {**job.env, **step.env}
    plain = {"name": step.name, "timeout": step.timeout_s, "gate": step.name.startswith(GATE), "cwd": step.cwd}
    plain["fresh"] = step.fresh
    if step.walls is None:
        return {**plain, "argv": step.argv, "env": env}
    if rung is None:
        raise Refusal(f"job {job.nonce!r}: expected a rung to confine step {step.name!r} by, found none")
    made = sandbox.confined(step.argv, step.cwd or job.cwd, step.walls, rung, env)
    return {
        **plain,
        "argv": made.argv,
        "env": {name: value for name, value in env.items() if name not in made.env},
        "fds": made.fds,
        "plain": b"\0".join(map(os.fsencode, made.plain)),
        "status": made.status,
    }


def _own(job: Job) -> list[str]:
    """Where else a job writes that nobody shares with it: what its steps may write to in the folders they run in."""
    found = {
        os.path.realpath(path)
        for step in job.steps
        for path in (step.walls.write if step.walls else ())
        if within(os.path.realpath(path), os.path.realpath(step.cwd or job.cwd))
    }
    folder = os.path.realpath(job.dir)
    inner = {path for path in found if any(within(path, other) for other in found - {path})}
    return sorted(path for path in found - inner if not within(path, folder))


def _ended(found: Running | Outcome | Gone) -> Outcome | Gone:
    if isinstance(found, Running):
        raise ExecutorError("expected the end of the job, found it running; ask again")
    return found


# ---- what a job left behind ------------------------------------------------------------------------------------------


def _outcome(result: _Result) -> Outcome:
    """Reads what the keeper kept. Raises ExecutorError where our side has no descriptors or no rights to."""
    steps, output = [], {}
    for step in result.steps:
        texts = {}
        for end, stream in (("out", step.out), ("err", step.err)):
            name = f"{step.name}.{end}"
            data, problem = _kept(Path(result.dir, name), stream)
            texts[end] = data.decode(errors="replace") if not problem else f"\n[metaloop: {name} {problem}]\n"
            output[name] = stream.sha256
        if not step.clean:
            texts["err"] += "\n[metaloop: processes of this step could not be killed]\n"
        out, err = (texts["out"], texts["err"])
        lost = step.out.refused + step.err.refused
        steps.append(StepOutcome(step.name, step.exit, step.signal, step.limit, step.wall_s, out, err, lost))
    metrics = result.metrics or _Metrics()
    if metrics.text is not None:
        output[metrics.name] = metrics.sha256
    return Outcome(tuple(steps), metrics.text, metrics.problem, output)


def _kept(path: Path, stream: _Stream) -> tuple[bytes, str]:
    """A stream's file as it was when its step's tree was dead; or, in words, why it cannot be had any more."""
    if not stream.kept:
        return b"", ""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            regular = stat.S_ISREG(os.fstat(fd).st_mode)
            data = file.read(stream.kept + 1) if regular else b""
    except (FileNotFoundError, NotADirectoryError):
        return b"", "was deleted"
    except OSError as error:
        raise ExecutorError(f"cannot read {path}: {error.strerror}; the job is over, ask again") from error
    if hashlib.sha256(data).hexdigest() != stream.sha256:
        return b"", "was changed after it was written"
    return data, ""


# ---- a lane ----------------------------------------------------------------------------------------------------------


class _Lost(Exception):
    """The keeper went away while we waited for its answer."""


class _Lane:
    """One keeper, attached when first needed and replaced when it dies. Any number of calls may be under way."""

    def __init__(self, path: Path, idle_s: float, keys: Path | None = None) -> None:
        self._path, self._idle, self._keys = path, idle_s, keys
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[_Answer]] = {}
        self._attaching = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._keeper: tuple[int, int | None] | None = None

    async def ask(self, op: str, **fields: object) -> _Answer:
        """A keeper that dies before it answers is replaced, and its successor asked.

        That holds for `start` too: what the dead one may have forked was never released, and never runs.
        """
        for _ in range(3):
            try:
                return await self._call(op, **fields)
            except _Lost:
                continue
        raise ExecutorError(f"three keepers in {self._path} went away before they answered; see keeper.log there")

    async def close(self, keep: bool) -> None:
        if self._writer is None or self._reading is None:
            return
        if not keep:
            try:
                await self._call("quit")
                await self._reading
            except (_Lost, ExecutorError):
                pass
        if self._writer is not None:
            self._writer.close()
        await asyncio.wait([self._reading])

    async def _call(self, op: str, **fields: object) -> _Answer:
        writer = await self._attach()
        number = next(self._ids)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        writer.write(msgspec.json.encode({"id": number, "op": op, **fields}) + b"\n")
        patience = HASTE_S if op in ("stop", "quit") else PATIENCE_S
        try:
            while not (await asyncio.wait([future], timeout=patience))[0]:
                await self._rouse(patience)
            answer: _Answer = future.result()
            return answer
        finally:
            self._waiting.pop(number, None)

    async def _rouse(self, patience: float) -> None:
        """A keeper that answers nothing at all, as when somebody stopped it, is killed: its successor clears up."""
        writer, keeper = self._writer, self._keeper
        if writer is None or keeper is None:
            return
        number = next(self._ids)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        writer.write(msgspec.json.encode({"id": number, "op": "look", "handle": _NOBODY}) + b"\n")
        try:
            if not (await asyncio.wait([future], timeout=patience))[0] and starttime(keeper[0]) == keeper[1]:
                os.kill(keeper[0], signal.SIGKILL)
                await asyncio.wait([future], timeout=patience)
            if future.done():
                future.exception()  # fetched, so that nobody complains of it
        finally:
            self._waiting.pop(number, None)

    async def _attach(self) -> asyncio.StreamWriter:
        async with self._attaching:
            if self._writer is None:
                try:
                    async with asyncio.timeout(PATIENCE_S):
                        self._writer = await self._reach()
                except TimeoutError as error:
                    why = f"the keeper in {self._path} did not answer for {PATIENCE_S:g} s; see keeper.log there"
                    raise ExecutorError(why) from error
                except OSError as error:
                    raise ExecutorError(f"cannot use the lane {self._path}: {error}") from error
            return self._writer

    async def _reach(self) -> asyncio.StreamWriter:
        """Connects to the lane's keeper, launching one where none serves."""
        loop = asyncio.get_running_loop()
        patience = loop.time() + SUCCESSION_S
        while True:
            try:
                found = await self._connect()
            except (FileNotFoundError, ConnectionError):
                found = None
            except OSError as error:
                if error.errno != errno.ENOTCONN:  # too many call at once, and asyncio took it for done
                    raise
                found = None
            if isinstance(found, asyncio.StreamWriter):
                return found
            if found is None:
                await self._launch()
            elif loop.time() > patience:
                raise ExecutorError(f"the lane {self._path} is held by another controller")
            else:
                await asyncio.sleep(0.02)

    async def _connect(self) -> asyncio.StreamWriter | str | None:
        """The connection; or the text of the keeper's refusal; or None where no keeper is behind the socket."""
        key = (self._path / "key").read_bytes()
        folder = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY)
        try:  # through /proc, because the path of a socket may not exceed 107 bytes
            reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/sock", limit=1 << 24)
        finally:
            os.close(folder)
        try:
            writer.write(key + b"\n")
            line = await reader.readline()
            hello = _answers.decode(line) if line else _Answer()
            if hello.hello and _is(writer, hello):
                self._reading = asyncio.create_task(self._read(reader, writer))
                self._keeper = (hello.pid, hello.starttime)
                return writer
        except BaseException:
            writer.close()
            raise
        writer.close()
        return hello.error or None

    async def _launch(self) -> None:
        """Returns when a keeper serves the lane, or somebody else's may."""
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(OSError):  # then the keeper draws one, and keeps it in its lane
            self._lay_key()
        command = (interpreter(), "-I", "-S", runnable(keeper), str(self._path), f"{self._idle:f}")
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        launcher = await asyncio.create_subprocess_exec(
            *command, env={"PATH": os.defpath}, stdin=null, stdout=null, stderr=pipe, start_new_session=True
        )
        _, said = await launcher.communicate()
        if launcher.returncode == BUSY:
            await asyncio.sleep(0.05)
        elif launcher.returncode != 0:
            why = said.decode(errors="replace").strip().rpartition("\n")[2]
            raise ExecutorError(f"cannot start a keeper for the lane {self._path}: {why or launcher.returncode}")

    def _lay_key(self) -> None:
        """The lane's key is a link to where it can be read by nobody who merely sees the lane. Without a HOME, where
        that would be, it stays in its lane.
        """
        link = self._path / "key"
        if self._keys is None or link.exists() or not self._keys.parents[2].is_dir():
            return
        self._keys.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = self._keys.absolute() / hashlib.sha256(os.fsencode(self._path.resolve())).hexdigest()[:16]
        if not own.exists():
            draft = own.with_suffix(f".{os.getpid()}")
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(os.urandom(keeper.KEY // 2).hex().encode())
                file.flush()
                os.fsync(file.fileno())
            with contextlib.suppress(FileExistsError):  # another controller was faster, and a keeper may know its key
                os.link(draft, own)
            draft.unlink()
        draft = link.with_suffix(f".{os.getpid()}")
        draft.unlink(missing_ok=True)
        draft.symlink_to(own)
        draft.rename(link)

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                answer = _answers.decode(line)
                future = self._waiting.get(answer.id)
                if future is not None and not future.done():
                    future.set_result(answer)
        except (ConnectionError, ValueError):  # ValueError: a line without end, or one that is not of the protocol
            pass
        finally:
            writer.close()
            self._writer = None
            for future in self._waiting.values():
                if not future.done():
                    future.set_exception(_Lost())


def _is(writer: asyncio.StreamWriter, hello: _Answer) -> bool:
    """Whether who greets us is who answers, and not an impostor at a left socket."""
    sock = writer.get_extra_info("socket")
    pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(pid == hello.pid and uid == os.getuid())


@functools.cache
def interpreter() -> str:
    """The real file behind `sys.executable`: a version manager's shim would cost more than the whole keeper."""
    if not sys.executable:
        raise ExecutorError("expected a Python interpreter in sys.executable, found none")
    return str(Path(sys.executable).resolve())
