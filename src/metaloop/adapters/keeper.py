"""Keeper: one small process a lane that runs one job at a time and outlives its controller.

usage: python -I -S keeper.py LANE_DIR IDLE_SECONDS    (exit 0: the lane is served; 75: somebody else serves it already)

A script of its own, with nothing but the standard library, so that it starts fast and holds none of the controller's
secrets. LANE_DIR holds lock (flock held for life: one keeper a lane), sock, key, keeper.log, and dirty from the first
job to a clean end. `key` is what no sandboxed job can read: who calls has to say it, and results are sealed with it.
A job's own folder (`dir`, which must not exist: a nonce never runs twice) gets STEP.out, STEP.err, home/, tmp/ and, at
the end, result.json, whose `seal` is of all the rest.

Protocol: one JSON object a line over LANE_DIR/sock; one controller at a time, a second gets {"error": "busy"}.
A request carries an "id", which its reply repeats. A HANDLE is {nonce, dir, pid, starttime, boot_id}.
  -> KEY                                                      first of all: a line with what stands in `key`
  <- {"hello": 1, pid, starttime, boot_id}
  -> {"op": "start", "job": {nonce, dir, cwd, steps: [{name, argv, timeout, env, gate, ...}], limits, metrics, own}}
  <- {"state": "blocked", "handle": HANDLE} | {"error": why}  forked, and waiting at its gate. End of file at the gate
                                                              (keeper died) or the socket (controller died): never runs
  -> {"op": "release" | "look" | "wait" | "stop", "handle": HANDLE}    idempotent; wait and stop answer at the end
  <- {"state": "blocked" | "running" | "done" (with "result") | "gone"}    gone: runs not, has no result, never will
  -> {"op": "quit"}                                           ends the job (limit `stopped`) and the keeper
A step may have besides: cwd, in place of the job's; fds, what it finds on which descriptors, {number from 5: base64};
plain, paths that no link may lead through when it starts (base64, NUL between); status: it is bubblewrap, which says on
descriptor 4 where the program in it is, and how that ended. `own`, as plain: places besides the job's folder whose
growth counts for the limit `disk`.
limits: grace (seconds between SIGTERM and SIGKILL), out_cap (bytes kept of each stream: head and tail), out_total (how
many written bytes end the step; off without), metrics_cap (bytes), memory (bytes) and processes through a cgroup where
one is writable, files (descriptors of a process), disk (bytes that the job's folders may grow by, looked
at while it runs, and the size of any file). `enforced` says which of memory, processes, files and disk held.

An error nobody expected is not handled: the keeper dies, the first process dies with it, the next keeper of the lane
kills what is left (by cgroup, or by METALOOP_LANE in its environment), and the answer for that job is "gone".

Not covered: without a sandbox a job has our user id, so it may read the key, kill its keeper, and write a result.json
in its place. A daemon that also cleared its environment outlives a *killed* keeper where no cgroup is writable. Not on
a disk's account is what has no name any more (deleted, and still open). Network, files and system calls are the
sandbox's affair, which is part of argv. Results of a lane whose folder is deleted cannot be verified, and are gone.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
import time

TYPE_CHECKING = False  # importing typing costs milliseconds at every start
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any, NoReturn, TypeAlias

    Record: TypeAlias = dict[str, Any]

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 36, 38
MARK = "METALOOP_LANE"
BUSY = 75
PATIENCE_S = 5.0  # how long a tree may resist SIGKILL (uninterruptible sleep) before we answer without it
CALM_S = 0.3  # how long we try to stop a growing tree before the first kill
STATUS_FD = 4
SLICE_S, RARELY = 0.004, 20  # a look at a disk takes so long at a time, and one part in so many of all time
PAUSE_S = 0.15  # between two looks: what is over its limit ends within half a second
HARMLESS = {17, 18, 19, 20, 21, 22, 23, 28}  # signals that end nobody
QUIET_S = 0.02  # after how long without anything to do results are made durable: while the next trial runs
MOST_UNSETTLED = 64  # each holds two descriptors
KEY = 64  # bytes
MOST_CALLERS = 8  # who has not said the key yet
MOST_RESULT = 16 << 20  # bytes of a result.json
LIBC = ctypes.CDLL(None, use_errno=True)
now = time.monotonic


# ---- small tools -----------------------------------------------------------------------------------------------------


def prctl(option: int, value: int) -> None:
    if LIBC.prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def slurp(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY)
    try:
        return b"".join(iter(lambda: os.read(fd, 1 << 16), b""))
    finally:
        os.close(fd)


def slurp_plain(path: str, most: int) -> bytes:
    """A file where a job could have put anything. Raises OSError for what is no file, or longer."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode) or state.st_size > most:
            raise OSError(errno.EINVAL, f"expected a file of at most {most} bytes", path)
        return b"".join(iter(lambda: os.read(fd, 1 << 16), b""))
    finally:
        os.close(fd)


def key_of_lane() -> bytes:
    """What `key` says; drawn where there is none, as when the lane is first served, or a torn one."""
    try:
        if len(key := slurp("key")) == KEY:
            return key
    except FileNotFoundError:
        pass
    fd = os.open("key.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(fd, "wb") as file:
        file.write(os.urandom(KEY // 2).hex().encode())
        file.flush()
        os.fsync(fd)
    os.rename("key.tmp", "key")
    return slurp("key")


def seal(result: Record, key: bytes) -> str:
    """Of all that a result says but the seal itself: a code that only who has the key can make."""
    told = {name: value for name, value in result.items() if name != "seal"}
    return hashlib.blake2b(json.dumps(told, sort_keys=True).encode(), key=key).hexdigest()


def unlink(path: str, dirfd: int | None = None) -> None:
    try:
        os.unlink(path, dir_fd=dirfd)
    except FileNotFoundError:
        pass


def close(fd: int) -> None:
    """Closes what was opened; -1 is what was not."""
    if fd >= 0:
        os.close(fd)


def starttime(pid: int) -> int | None:
    """Clock ticks after boot at which the process started; None where it is no more, or is a zombie."""
    try:
        fields = slurp(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in b"ZX" else int(fields[19])


def identity(pid: int) -> Record:
    """What no other process on this machine ever shares: pid alone is used again."""
    return {"pid": pid, "starttime": starttime(pid), "boot_id": boot_id()}


def boot_id(known: list[str] = []) -> str:  # noqa: B006 - a cache
    if not known:
        known.append(slurp("/proc/sys/kernel/random/boot_id").decode().strip())
    return known[0]


def log(text: str) -> None:
    """A line in keeper.log; nothing ends because it cannot be written."""
    try:
        os.write(1, text.encode(errors="backslashreplace") + b"\n")
    except OSError:
        pass


def refuse_full(dirfd: int) -> None:
    """Raises OSError where not one block is free: what a job says there would be lost, and its result with it."""
    disk = os.fstatvfs(dirfd)
    if disk.f_blocks and not (disk.f_bavail if os.geteuid() else disk.f_bfree):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def send(pids: Iterable[int], signum: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, signum)
        except ProcessLookupError:
            pass


def sync(path: str, dirfd: int | None = None) -> None:
    """Makes a file or folder durable. Where that fails a power cut may lose the result, and the answer is then gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=dirfd)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError as error:
        log(f"cannot sync {path}: {error}")
    finally:
        os.close(fd)


def read_metrics(name: str, dirfd: int, cap: int) -> Record | None:
    """A file that hostile code wrote, as text, or the problem with it; None where there is none."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=dirfd)
    except FileNotFoundError:
        return None
    except OSError as error:
        return {"problem": f"the metrics file cannot be read: {error.strerror}"}
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return {"problem": "the metrics file is not a regular file"}
        data = os.read(fd, cap + 1)
    except OSError as error:
        return {"problem": f"the metrics file cannot be read: {error.strerror}"}
    finally:
        os.close(fd)
    if len(data) > cap:
        return {"problem": f"the metrics file is larger than {cap} bytes"}
    return {"name": name, "text": data.decode(errors="replace"), "sha256": hashlib.sha256(data).hexdigest()}


# ---- ending a tree ---------------------------------------------------------------------------------------------------


def children(pid: int) -> set[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
        return {int(c) for task in tasks for c in slurp(f"/proc/{pid}/task/{task}/children").split()}
    except (FileNotFoundError, ProcessLookupError):
        return set()


def stop_descendants() -> set[int]:
    """Walks down from us, stopping each before listing its own: a stopped parent neither forks nor reaps."""
    me = os.getpid()
    seen: set[int] = set()
    todo = [me]
    while todo:
        pid = todo.pop()
        if pid != me:
            send([pid], signal.SIGSTOP)
        new = children(pid) - seen
        seen |= new
        todo += new
    return seen


def kill_tree(main: int, cgroup: Cgroup) -> tuple[int | None, resource.struct_rusage | None, bool]:
    """Kills until no descendant is left. Gives wait status and usage of `main`, and whether all are dead.

    We are the subreaper: whatever the job orphaned is our child, and ECHILD means that nothing is left.
    """
    status = usage = None
    begun = now()
    while True:
        while True:
            try:
                pid, ended, used = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return status, usage, True
            if pid == main:
                status, usage = ended, used
            if not pid:
                break
        if now() > begun + PATIENCE_S:
            return status, usage, False
        cgroup.kill()
        before, pids = None, stop_descendants()
        while pids != before and now() < begun + CALM_S:  # a death frees a pid for a fork bomb: first stop them all
            before, pids = pids, stop_descendants()
        send(pids, signal.SIGKILL)
        time.sleep(0.0005)


def childless() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return True
    return False


class Cgroup:
    """A group below our own wherever a limit needs one and we may (v1, v2, both, none). `on`: which limits it enforces.

    Without a limit to enforce it is still made in one place, so that the next keeper finds what a killed one left.
    """

    LIMITS = (("memory", "memory.max"), ("memory", "memory.limit_in_bytes"), ("processes", "pids.max"))
    EVENTS = (
        ("memory", "memory.events", b"oom_kill"),
        ("memory", "memory.oom_control", b"oom_kill"),
        ("processes", "pids.events", b"max"),
    )

    def __init__(self, name: str, limits: Record) -> None:
        self.dirs: list[str] = []
        self.on: list[str] = []
        spare = []
        for parent, files in hierarchies() if limits.get("cgroup", True) else ():
            wanted = [(file, limits[key]) for key, file in self.LIMITS if file in files and limits.get(key) is not None]
            if not wanted:
                spare.append(f"{parent}/{name}")
            elif self.make(f"{parent}/{name}"):
                self.on += [
                    key
                    for key, file in self.LIMITS
                    if (file, limits.get(key)) in wanted and self.set(file, limits[key])
                ]
        for path in spare:
            if self.dirs or self.make(path):
                break

    @classmethod
    def found(cls, dirs: list[str]) -> Cgroup:
        """What a dead keeper of this lane wrote down."""
        group = cls("", {"cgroup": False})
        group.dirs = [path for path in dirs if os.path.isdir(path)]
        return group

    def make(self, path: str) -> bool:
        try:
            os.mkdir(path)
        except OSError:
            return False
        self.dirs.append(path)
        return True

    def set(self, file: str, value: int) -> bool:
        return self.put(self.dirs[-1], file, value)

    @staticmethod
    def put(path: str, name: str, value: int) -> bool:
        try:
            fd = os.open(f"{path}/{name}", os.O_WRONLY)
        except OSError:
            return False
        try:
            os.write(fd, b"%d" % value)
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def enter(self) -> bool:
        """Puts this process, which has one thread, into every group; False where one does not take it.

        By `tasks` where there is one (v1): to move the thread that writes there, and nothing else, the kernel need not
        hold all forks of the machine, for which it waits 10 to 20 ms.
        """
        doors = ["tasks" if os.path.exists(path + "/tasks") else "cgroup.procs" for path in self.dirs]
        taken = [self.put(path, door, 0) for path, door in zip(self.dirs, doors, strict=True)]
        return all(taken)

    def kill(self) -> None:
        for path in self.dirs:
            if os.path.exists(path + "/cgroup.kill"):
                self.put(path, "cgroup.kill", 1)
                continue
            try:
                send([int(pid) for pid in slurp(path + "/cgroup.procs").split()], signal.SIGKILL)
            except OSError:
                pass

    def hits(self) -> dict[str, int]:
        """How often each limit was hit, of those that were."""
        found = {}
        for path in self.dirs:
            for key, file, counter in self.EVENTS:
                try:
                    counts = dict(line.split() for line in slurp(f"{path}/{file}").splitlines())
                    found[key] = int(counts[counter])
                except (OSError, KeyError, ValueError):
                    pass
        return {key: count for key, count in found.items() if count}

    def remove(self) -> None:
        for path in self.dirs:
            for _ in range(100):  # the last of the dead may take a moment to leave
                try:
                    os.rmdir(path)
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.002)


def hierarchies(known: list[tuple[str, set[str]]] = []) -> list[tuple[str, set[str]]]:  # noqa: B006 - a cache
    """Our own groups in which we may make others, and which of the limits' files such a group has. Tried once."""
    if known:
        return known
    for line in slurp("/proc/self/cgroup").decode().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers not in ("", "memory", "pids"):
            continue
        hierarchy = controllers or ("unified" if os.path.isdir("/sys/fs/cgroup/unified") else "")
        parent = os.path.join("/sys/fs/cgroup", hierarchy, path.lstrip("/"))
        probe = f"{parent}/metaloop-probe-{os.getpid()}"
        try:
            os.mkdir(probe)
            known.append((parent, {file for _, file in Cgroup.LIMITS if os.path.exists(f"{probe}/{file}")}))
            os.rmdir(probe)
        except OSError:
            continue
    return known


# ---- one step --------------------------------------------------------------------------------------------------------


class Drain:
    """A pipe into a file that gets at most `cap` bytes: the head at once, the tail at the end. Never stops reading.

    What is dropped is told on the line where it is missing, so that no half of a line passes for a whole one.
    """

    def __init__(self, file: int, cap: int) -> None:
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.file, self.hash = file, hashlib.sha256()
        self.room, self.keep, self.tail = cap // 2, cap - cap // 2, bytearray()
        self.total = self.stored = self.refused = 0
        self.open = True

    def write(self, data: bytes) -> None:
        """A full disk loses output, never the job."""
        try:
            done = os.write(self.file, data)
        except OSError:
            done = 0
        self.refused += len(data) - done
        self.stored += done
        self.hash.update(data[:done])

    def read(self) -> bool:
        """Takes what is there; False when there is nothing more for now."""
        try:
            data = os.read(self.reader, 1 << 16)
        except BlockingIOError:
            return False
        self.open = bool(data)
        self.total += len(data)
        if self.room:
            self.write(data[: self.room])
        self.tail += data[self.room :]
        self.room = max(0, self.room - len(data))
        if len(self.tail) > self.keep + (1 << 18):
            del self.tail[: len(self.tail) - self.keep]
        return self.open

    def close(self) -> Record:
        """The end: writes the tail, closes both pipe and file."""
        for _ in range(64):  # no pipe holds more; somebody outside the tree might write for ever
            if not self.read():
                break
        lost = max(0, len(self.tail) - self.keep)
        kept = self.total - len(self.tail)  # the head, and what was dropped already
        dropped = lost + max(0, kept - self.stored)
        note = b" [... %d bytes dropped ...] " % dropped if dropped else b""
        self.write(note + bytes(self.tail[lost:]))
        os.close(self.reader)
        os.close(self.file)
        cut = max(dropped, self.total + len(note) - self.stored)  # more than we dropped where the disk was full
        told = {"bytes": self.total, "dropped": cut, "kept": self.stored, "sha256": self.hash.hexdigest()}
        return {**told, "refused": self.refused}


def places(step: Record) -> tuple[str, str]:
    """HOME and TMPDIR of a step, in the job's folder."""
    before = f"{step['name']}." if step.get("fresh") else ""
    return f"{before}home", f"{before}tmp"


def cap_files(files: int | None) -> None:
    if files is not None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        files = files if hard == resource.RLIM_INFINITY else min(files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))


def cap_disk(disk: int | None) -> None:
    if disk is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (disk, disk))


def unpacked(text: str) -> bytes:
    import binascii  # for steps with walls alone

    return binascii.a2b_base64(text)


def paths(text: str) -> list[bytes]:
    return unpacked(text).split(b"\0") if text else []


def hand_over(fds: dict[str, str]) -> None:
    """Opens what the program has to find, each on its descriptor, read from its start."""
    for number, text in sorted((int(number), text) for number, text in fds.items()):
        fd = os.memfd_create("metaloop", 0)
        if fd != number:  # it is lower, for the lowest that is free is taken
            os.dup2(fd, number)
            os.close(fd)
        data = unpacked(text)
        while data:
            data = data[os.write(number, data) :]
        os.lseek(number, 0, os.SEEK_SET)


def refuse_links(plain: list[bytes]) -> None:
    """An earlier step may have put a link where these walls will open a door."""
    for path in plain:
        if os.path.realpath(path) != path:
            raise OSError(errno.ELOOP, f"{os.fsdecode(path)!r} has become a link")


def become(
    step: Record, job: Record, fds: tuple[int, int, int], lane: str, parent: int, cgroup: Cgroup, status: int = -1
) -> NoReturn:
    """The forked child: waits at its gate, then turns into the program. It keeps nothing but fds 0 to 2, and what its
    step says.

    At its gate it says whether its control groups took it; the controller's commit does not wait for that.
    """
    argv, cwd = step["argv"], step.get("cwd") or job["cwd"]
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(125)
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(signum, signal.SIG_DFL)
        os.setsid()
        os.umask(0o022)
        null = os.open(os.devnull, os.O_RDONLY)
        gate, out, err = fds
        for there, here in enumerate((null, out, err, gate, status)):
            if here == there:
                os.set_inheritable(here, there != 3)
            elif here >= 0:
                os.dup2(here, there, inheritable=there != 3)
        os.closerange(STATUS_FD + (status >= 0), 1 << 16)  # before the gate is read: among them is its other end
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        os.write(3, b"y" if cgroup.enter() else b"n")
        if os.read(3, 1) != b"g":  # end of file must never open the gate
            os._exit(125)
        os.chdir(cwd)
        refuse_links(paths(step.get("plain", "")))
        hand_over(step.get("fds", {}))
        cap_files(job["limits"].get("files"))
        cap_disk(job["limits"].get("disk"))
        home, tmp = places(step)
        own = {"HOME": f"{job['dir']}/{home}", "TMPDIR": f"{job['dir']}/{tmp}", MARK: lane}
        os.execvpe(argv[0], argv, {**step["env"], **own})
    except BaseException as error:
        why = error.strerror if isinstance(error, OSError) else repr(error)
        text = f"metaloop: cannot start {argv[0]!r} in {cwd!r}: {why}\n"
        os.write(2, text.encode(errors="backslashreplace"))
    os._exit(127)


class Process:
    """One step's process tree: forked and blocked at its gate, then running, then all of it dead."""

    def __init__(self, step: Record, job: Record, files: tuple[int, int], lane: str) -> None:
        """Raises OSError (no pids, no descriptors, no disk); then nothing is left of it and `files` are closed."""
        self.step, self.limits = step, job["limits"]
        self.pid = self.pidfd = self.gate = self.status = -1
        self.born = self.ended = now()
        self.drains: list[Drain] = []
        self.cgroup = Cgroup.found([])
        try:
            self.cgroup = Cgroup(f"{tag(lane)}-{time.monotonic_ns():x}", self.limits)
            note_dirty(self.cgroup.dirs)
            if step.get("status"):
                self.status = os.memfd_create("metaloop-status", os.MFD_CLOEXEC)
            for fd in files:
                os.ftruncate(fd, 0)  # whatever a step before has written there
                self.drains.append(Drain(fd, self.limits["out_cap"]))
            self.fork(job, lane)
        except OSError:
            for fd in files[len(self.drains) :]:
                os.close(fd)
            self.kill(None)
            raise

    def fork(self, job: Record, lane: str) -> None:
        writers = [drain.writer for drain in self.drains]
        gate, self.gate = (end.detach() for end in socket.socketpair())
        os.set_blocking(self.gate, False)
        me = os.getpid()
        try:
            self.pid = os.fork()
            if not self.pid:
                become(self.step, job, (gate, writers[0], writers[1]), lane, me, self.cgroup, self.status)
            self.pidfd = os.pidfd_open(self.pid)
        finally:
            for fd in (gate, *writers):
                os.close(fd)

    def open_gate(self) -> None:
        self.born = now()
        try:
            os.write(self.gate, b"g")
        except BrokenPipeError:  # somebody killed it while it waited; its end is noticed like any other
            pass

    def entered(self) -> bool:
        """Whether its control groups took it: what it said at its gate. One that does not take it limits nothing."""
        try:
            return self.gate >= 0 and os.read(self.gate, 1) == b"y"
        except OSError:
            return False

    def terminate(self) -> None:
        """Asks its process group to end; a group that is not there yet has the whole grace to be killed.

        Bubblewrap is not asked, for with it dies the program in it, whose group is named after the first process there.
        """
        first = self.said("child-pid") if self.status >= 0 else None
        try:
            os.killpg(first if first in children(self.pid) else self.pid, signal.SIGTERM)
        except ProcessLookupError:
            pass

    def said(self, key: str) -> int | None:
        """What bubblewrap has said so far, in whole lines: nobody else can write there."""
        for line in os.pread(self.status, 1 << 12, 0).split(b"\n")[:-1]:
            told = json.loads(line)
            if key in told:
                return int(told[key])
        return None

    def code(self, status: int | None) -> int | None:
        """The exit status, a signal below zero. Bubblewrap gives 128 + n for a program that signal n ended, as shells
        do for theirs; it is told as that signal. What it could not even begin is as a program that is not there.
        """
        code = None if status is None else os.waitstatus_to_exitcode(status)
        if self.status < 0 or code is None or code < 0:
            return code
        code = self.said("exit-code")
        if code is None:
            return 127
        return 128 - code if 128 < code <= 192 and code - 128 not in HARMLESS else code

    def kill(self, limit: str | None) -> Record:
        """Ends the whole tree and tells how the step ended. `limit`: why we ended it, None where it ended by itself."""
        self.ended = now()
        status, usage, clean = kill_tree(self.pid, self.cgroup)
        dead = now()
        if not self.entered():
            self.cgroup.on.clear()
        close(self.gate)
        close(self.pidfd)
        code = self.code(status)
        close(self.status)
        hits = self.cgroup.hits() if code != 0 else {}
        self.cgroup.remove()
        if limit is None and code != 0:
            limit = next((key for key in ("memory", "processes") if key in hits), None)
            limit = "disk" if limit is None and code == -signal.SIGXFSZ else limit
        streams = [drain.close() for drain in self.drains]
        return {
            "name": self.step["name"],
            "exit": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "limit": limit,
            "clean": clean,
            "hits": hits,
            "enforced": [*self.cgroup.on, *(key for key in ("files", "disk") if self.limits.get(key) is not None)],
            "wall_s": self.ended - self.born,
            "kill_s": dead - self.ended,
            "cpu_s": usage and usage.ru_utime + usage.ru_stime,
            "maxrss_kb": usage and usage.ru_maxrss,
            "out": streams[0] if streams else {},
            "err": streams[1] if len(streams) > 1 else {},
        }


class Gauge:
    """By how many bytes a job's folders have grown since it began, looked at over and over, a little at a time.

    A few thousand files are seen within half a second; more take longer, for no more of the machine is spent on it.
    """

    def __init__(self, folders: list[bytes]) -> None:
        self.folders, self.grown, self.sum, self.due = folders, 0, 0, 0.0
        self.before: int | None = None
        self.walk = self.walked()

    def look(self) -> None:
        """Goes on for a moment. What a part holds is a bound for the whole."""
        begun = now()
        more = True
        while more and now() < begun + SLICE_S:
            more = next(self.walk, None) is not None
        if self.before is not None:
            self.grown = max(self.grown if more else 0, self.sum - self.before)
        if not more:
            self.before = self.sum if self.before is None else self.before
            self.sum, self.walk = 0, self.walked()
        self.due = now() + max(0 if more else PAUSE_S, RARELY * (now() - begun))

    def walked(self) -> Iterator[bool]:
        """One step an entry. A path too long to be followed is over any limit: nobody but to hide makes those."""
        todo = list(self.folders)
        devices: set[int] = set()
        while todo:
            try:
                folder = todo.pop()
                if folder in self.folders:
                    devices.add(os.lstat(folder).st_dev)
                with os.scandir(folder) as entries:
                    for entry in entries:
                        self.add(entry, todo, devices)
                        yield True
            except OSError as error:  # gone, or closed to us
                self.sum += sys.maxsize if error.errno == errno.ENAMETOOLONG else 0

    def add(self, entry: os.DirEntry[bytes], todo: list[bytes], devices: set[int]) -> None:
        try:
            found = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            return
        self.sum += found.st_blocks * 512
        if stat.S_ISDIR(found.st_mode) and found.st_dev in devices:
            todo.append(entry.path)


# ---- one job ---------------------------------------------------------------------------------------------------------


class Trial:
    """One job under way: its folder, the process of its current step, the records of the steps before."""

    def __init__(self, job: Record, lane: str) -> None:
        """Raises OSError; then nothing of it exists, and its folder only if it did before."""
        self.job, self.lane, self.limits = job, lane, job["limits"]
        self.records: list[Record] = []
        self.released: float | None = None
        self.deadline: float | None = None
        self.ending: str | None = None
        self.waiters: list[int] = []
        self.files: dict[str, int] = {}
        self.unpublishable = ""
        self.metrics: Record | None = None
        self.gauge: Gauge | None = None
        self.dir = self.parent = -1
        os.mkdir(job["dir"], 0o700)
        try:
            self.furnish()
            self.refresh(job["steps"][0])
            self.begun = now()
            self.process = Process(*self.parts())
        except OSError:
            self.remove()
            raise
        self.handle = {"nonce": job["nonce"], "dir": job["dir"], **identity(self.process.pid)}

    def furnish(self) -> None:
        """Everything of ours in the folder is made before anything of theirs runs: later a name may be a trap."""
        self.parent = os.open(os.path.dirname(self.job["dir"]), os.O_RDONLY | os.O_DIRECTORY)
        self.dir = os.open(self.job["dir"], os.O_RDONLY | os.O_DIRECTORY)
        refuse_full(self.dir)
        for name in ("home", "tmp"):
            os.mkdir(name, 0o700, dir_fd=self.dir)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        for name in self.names():
            self.files[name] = os.open(name, flags, 0o600, dir_fd=self.dir)

    def names(self) -> list[str]:
        return [f"{step['name']}.{end}" for step in self.job["steps"] for end in ("out", "err")]

    def parts(self) -> tuple[Record, Record, tuple[int, int], str]:
        """What the current step's Process is made from; its two files become its own."""
        step = self.job["steps"][len(self.records)]
        return step, self.job, (self.files.pop(f"{step['name']}.out"), self.files.pop(f"{step['name']}.err")), self.lane

    def release(self) -> None:
        if self.released is None:
            if self.limits.get("disk") is not None:
                self.gauge = Gauge([os.fsencode(self.job["dir"]), *paths(self.job.get("own", ""))])
                self.gauge.look()
            self.released = now()
            self.run()

    def run(self) -> None:
        self.process.open_gate()
        self.deadline = now() + self.process.step["timeout"]

    def step_over(self, limit: str | None) -> bool:
        """Ends the current step's tree. True if the next step runs now, False if this was the last."""
        record = self.process.kill(limit)
        self.records.append(record)
        if record["exit"] != 0 or record["limit"] or not record["clean"] or len(self.records) == len(self.job["steps"]):
            return False
        try:
            if not self.gated():
                self.metrics = self.found()
            self.set_aside(f"{record['name']}.metrics")
            self.refresh(self.job["steps"][len(self.records)])
            self.process = Process(*self.parts())
        except OSError as error:
            self.broken(error)
            return False
        self.run()
        return True

    def refresh(self, step: Record) -> None:
        """Makes what only this step is to have. Raises OSError where a step before it has made it already."""
        if step.get("fresh"):
            for name in places(step):
                os.mkdir(name, 0o700, dir_fd=self.dir)

    def gated(self) -> bool:
        """Whether the step that ended last is a gate: those are asked whether it passes, and tell nothing else."""
        return bool(self.job["steps"][len(self.records) - 1].get("gate"))

    def found(self) -> Record | None:
        return read_metrics(self.job["metrics"], self.dir, self.limits["metrics_cap"])

    def set_aside(self, name: str) -> None:
        """The metrics are those of the last step but for gates: what another one left under their name is not.

        Whatever stands at the new name goes first: between two names of one file a rename does nothing.
        """
        unlink(name, self.dir)
        try:
            os.rename(self.job["metrics"], name, src_dir_fd=self.dir, dst_dir_fd=self.dir)
        except FileNotFoundError:
            pass

    def broken(self, error: OSError) -> None:
        """The next step could not be started: recorded like a program that is not there, and told on its stderr."""
        step = self.job["steps"][len(self.records)]
        text = f"metaloop: cannot start step {step['name']!r}: {error}\n".encode(errors="backslashreplace")
        empty = {"bytes": 0, "dropped": 0, "kept": 0, "sha256": hashlib.sha256().hexdigest()}
        told = {"bytes": len(text), "dropped": 0, "kept": len(text), "sha256": hashlib.sha256(text).hexdigest()}
        try:
            fd = os.open(step["name"] + ".err", os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self.dir)
            with open(fd, "wb") as file:
                file.write(text)
        except OSError:
            told = empty
        record = {"name": step["name"], "exit": 127, "signal": None, "limit": None, "clean": True, "hits": {}}
        self.records.append({**record, "enforced": [], "wall_s": 0.0, "kill_s": 0.0, "out": empty, "err": told})

    def result(self) -> Record:
        """After the last tree is dead."""
        try:
            os.fchmod(self.dir, 0o700)  # the job may have closed it to us
        except OSError:
            pass
        return {
            **self.handle,
            "ran": self.released is not None,
            "blocked_s": (self.released or now()) - self.begun,
            "unix": time.time(),
            "steps": self.records,
            "metrics": self.metrics if self.gated() else self.found(),
        }

    def publish(self, result: Record) -> None:
        """Whole or not at all, by rename. Raises OSError."""
        unlink("result.tmp", self.dir)  # never opened if it is there: it might be a pipe
        fd = os.open("result.tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self.dir)
        with open(fd, "w") as file:
            file.write(json.dumps(result))
        os.rename("result.tmp", "result.json", src_dir_fd=self.dir, dst_dir_fd=self.dir)

    def settle(self) -> None:
        """Makes what was published durable. A power cut before leaves a torn file, which counts as none."""
        streams = (
            f"{record['name']}.{end}" for record in self.records for end in ("out", "err") if record[end]["kept"]
        )
        for name in (*streams, "result.json", "."):
            sync(name, self.dir)
        sync(".", self.parent)

    def remove(self) -> None:
        """Undoes the folder of a job that never ran."""
        self.close()
        for name in self.names():
            unlink(f"{self.job['dir']}/{name}")
        for name in ("home", "tmp", *places(self.job["steps"][0]), ""):
            try:
                os.rmdir(f"{self.job['dir']}/{name}")
            except OSError:
                pass

    def close(self) -> None:
        for fd in (*self.files.values(), self.dir, self.parent):
            close(fd)
        self.files, self.dir, self.parent = {}, -1, -1


# ---- the keeper ------------------------------------------------------------------------------------------------------


def tag(lane: str) -> str:
    """The name that our control groups begin with."""
    return "metaloop-" + hashlib.sha256(os.fsencode(lane)).hexdigest()[:12]


def note_dirty(dirs: list[str]) -> None:
    """Writes down which groups a job is in, over what stood there: not synced, for a reboot leaves no processes.

    In place: a file made and removed for every job costs ext4 four times as much, and one that is emptied is written
    out at once.
    """
    fd = os.open("dirty", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.write(fd, "\n".join(dirs).encode().ljust(1024, b"\n"))
    finally:
        os.close(fd)


def sweep(lane: str) -> None:
    """Kills what a killed keeper of this lane left. We hold the lock, so nothing here is a living keeper's."""
    try:
        dirs = slurp("dirty").decode().split("\n")
    except FileNotFoundError:
        dirs = []
    left = Cgroup.found([path for path in dirs if tag(lane) in path])
    mark, end, again = os.fsencode(f"{MARK}={lane}"), now() + 2, True
    while again and now() < end:
        left.kill()
        killed = [kill_marked(int(pid), mark) for pid in os.listdir("/proc") if pid.isdigit()]
        again = any(killed)
    left.remove()
    unlink("dirty")


def kill_marked(pid: int, mark: bytes) -> bool:
    """Kills a process whose environment carries the mark: looked at and killed by descriptor, so it is the same one."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return False
    try:
        if mark not in slurp(f"/proc/{pid}/environ").split(b"\0"):
            return False
        signal.pidfd_send_signal(fd, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


class Keeper:
    def __init__(self, lane: str, idle: float) -> None:
        self.lane, self.idle, self.me = lane, idle, identity(os.getpid())
        self.key = key_of_lane()
        self.callers: dict[int, tuple[socket.socket, bytes]] = {}  # who has not said the key yet, and what was said
        self.conn: socket.socket | None = None
        self.peer: tuple[int, int | None] = (0, None)
        self.trial: Trial | None = None
        self.unpublished: dict[str, tuple[Trial, Record]] = {}  # results that are not in their folders yet, by folder
        self.unsettled: list[Trial] = []  # published, not yet durable
        self.buffer, self.quit, self.clean, self.seen = b"", False, True, now()
        unlink("sock")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind("sock")
        self.listener.listen(8)
        self.listener.setblocking(False)
        self.wake, self.waker = socket.socketpair()
        self.waker.setblocking(False)
        signal.set_wakeup_fd(self.waker.fileno())
        signal.signal(signal.SIGTERM, lambda *_: None)
        for signum in (signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)

    # -- requests

    def answer(self, request: Record) -> Record | None:
        """The reply, or None where it comes at the end of the job."""
        if request["op"] == "start":
            return self.start(request["job"])
        if request["op"] == "quit":
            self.quit = True
            if self.trial and self.trial.released is None:
                self.discard(self.trial)
            elif self.trial:
                self.over(self.trial, "stopped")
            return {"state": "quit"}
        return self.control(request["op"], request["handle"], request["id"])

    def start(self, job: Record) -> Record | None:
        if self.trial:
            return {"error": "the lane runs another job"}
        if not self.ours():  # deleted under us: no answer, and the keeper of the new folder is asked again
            self.quit = True
            return None
        if not childless():
            return {"error": "the job before left processes that cannot be killed (uninterruptible sleep)"}
        try:
            self.trial = Trial(job, self.lane)
        except FileExistsError as error:
            return {"error": f"the job's folder was used before: {error.filename!r}"}
        except OSError as error:
            return {"error": f"cannot start in {job['dir']!r}: {error}"}
        return {"state": "blocked", "handle": self.trial.handle}

    def ours(self) -> bool:
        """Whether the folder we serve is still the one at its path."""
        try:
            return os.path.samestat(os.stat("."), os.stat(self.lane)) and os.path.exists("lock")
        except OSError:
            return False

    def control(self, op: str, handle: Record, request: int) -> Record | None:
        trial = self.trial
        if trial is None or trial.handle != handle:
            return self.look(handle)
        if op == "release":
            trial.release()
        elif op in ("wait", "stop"):
            trial.waiters.append(request)
            if op == "stop" and trial.ending is None:  # asked twice is asked once: a grace is not cut short
                self.end(trial, "stopped")
            return None
        return self.look(handle)

    def look(self, handle: Record) -> Record:
        if self.trial and self.trial.handle == handle:
            return {"state": "blocked" if self.trial.released is None else "running"}
        result = self.unpublished[handle["dir"]][1] if handle["dir"] in self.unpublished else None
        try:
            result = result or json.loads(slurp_plain(handle["dir"] + "/result.json", MOST_RESULT))
        except (OSError, ValueError, RecursionError):
            pass
        if not isinstance(result, dict) or any(result.get(name) != value for name, value in handle.items()):
            return {"state": "gone"}
        return (
            {"state": "done", "result": result} if result.get("seal") == seal(result, self.key) else {"state": "gone"}
        )

    # -- the job's end

    def end(self, trial: Trial, why: str) -> None:
        """For a limit or a stop: SIGTERM first where the job has a grace; the end when that is over."""
        grace = trial.limits.get("grace", 0)
        if trial.ending is None and grace > 0 and trial.released is not None:
            trial.ending, trial.deadline = why, now() + grace
            trial.process.terminate()
        else:
            self.over(trial, why)

    def over(self, trial: Trial, limit: str | None) -> None:
        """The current step's process ended, or has to. Goes on to the next step, or publishes the result."""
        if trial.step_over(trial.ending or limit):
            return
        self.leave(trial)
        result = trial.result()
        result["seal"] = seal(result, self.key)
        self.unpublished[trial.job["dir"]] = (trial, result)
        self.publish()
        self.tell(trial, {"state": "done", "result": result})

    def discard(self, trial: Trial) -> None:
        """No result, now or ever. Of a job that never ran not even the folder is left."""
        trial.records.append(trial.process.kill("stopped"))
        self.leave(trial)
        if trial.released is None:
            trial.remove()
        trial.close()
        self.tell(trial, self.look(trial.handle))

    def leave(self, trial: Trial) -> None:
        self.trial, self.seen = None, now()
        self.clean = trial.records[-1]["clean"]

    def tell(self, trial: Trial, end: Record) -> None:
        for request in trial.waiters:
            self.reply({**end, "id": request})

    def publish(self) -> None:
        """Publishes what is not yet; what cannot be (disk full, folder gone) is served from memory and tried again."""
        for trial, result in list(self.unpublished.values()):
            try:
                trial.publish(result)
            except OSError as error:
                if trial.unpublishable != str(error):
                    trial.unpublishable = str(error)
                    log(f"cannot publish {trial.job['dir']}: {error}")
                continue
            del self.unpublished[trial.job["dir"]]
            self.unsettled.append(trial)

    def settle(self, most: int) -> None:
        """Makes results durable, the oldest first, until at most so many are not.

        Off the path of a controller that is there: it writes what it was told into its own ledger.
        """
        while len(self.unsettled) > most:
            trial = self.unsettled.pop(0)
            trial.settle()
            trial.close()

    # -- the controller

    def reply(self, message: Record) -> None:
        try:
            if self.conn:
                self.conn.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.drop()

    def drop(self) -> None:
        """The controller went away: a job that was never released never runs, a running one goes on."""
        if self.conn:
            self.conn.close()
        self.conn, self.buffer, self.seen = None, b"", now()
        if self.trial:
            self.trial.waiters = []
            if self.trial.released is None:
                self.discard(self.trial)

    def serve(self) -> bool:
        """Reads requests and answers them; False when there is nothing more for now."""
        assert self.conn
        try:
            data = self.conn.recv(1 << 16, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            reply = self.answer(request)
            if reply:
                self.reply({**reply, "id": request["id"]})
        if not data:
            self.drop()
        return self.conn is not None

    def accept(self) -> None:
        conn, _ = self.listener.accept()
        conn.setblocking(False)
        if len(self.callers) >= MOST_CALLERS:
            self.callers.pop(next(iter(self.callers)))[0].close()
        self.callers[conn.fileno()] = conn, b""
        self.hear(conn.fileno())

    def hear(self, fd: int) -> None:
        """A caller says the key, and is welcome; or something else, and is not."""
        conn, said = self.callers[fd]
        try:
            data = conn.recv(len(self.key) + 1 - len(said))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        said += data
        if data and len(said) <= len(self.key):
            self.callers[fd] = conn, said
            return
        del self.callers[fd]
        if said == self.key + b"\n":
            self.welcome(conn)
        else:
            conn.close()

    def welcome(self, conn: socket.socket) -> None:
        while self.conn and self.serve():  # a dead controller's end of file counts before its successor's call
            pass
        pid, uid, _ = struct.unpack("3i", conn.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if self.conn and starttime(self.peer[0]) != self.peer[1]:  # its fork holds the socket open, it is dead
            self.drop()
        if self.conn or uid != os.getuid():
            conn.send(b'{"error": "busy"}\n')
            conn.close()
            return
        conn.setblocking(True)
        conn.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 5, 0))  # who does not read is dropped
        self.conn, self.peer = conn, (pid, starttime(pid))
        self.reply({"hello": 1, **self.me})

    # -- the loop

    def loop(self) -> None:
        while not self.quit:
            ready = self.poll()
            if self.trial:
                self.attend(self.trial, ready)
            if self.conn and self.conn.fileno() in ready:
                self.serve()
            for fd in ready & self.callers.keys():
                self.hear(fd)
            if self.listener.fileno() in ready:
                self.accept()
            if self.unpublished and not self.trial:
                self.publish()
            if self.unsettled:
                self.settle(0 if not ready or not self.conn else MOST_UNSETTLED)
            idle = not (self.trial or self.conn) and now() >= self.seen + self.idle
            self.quit = self.quit or idle or self.wake.fileno() in ready
        if self.trial:  # told to end by a signal: what it ran is lost
            self.discard(self.trial)
        self.settle(0)
        if self.clean:
            unlink("dirty")
        unlink("sock")

    def poll(self) -> set[int]:
        trial, poll = self.trial, select.poll()
        fds = [self.listener.fileno(), self.wake.fileno(), *self.callers]
        if self.conn:
            fds.append(self.conn.fileno())
        if trial:
            fds += [trial.process.pidfd, *(drain.reader for drain in trial.process.drains if drain.open)]
        for fd in fds:
            poll.register(fd, select.POLLIN)
        until = now() + 60
        if trial and trial.deadline:
            until = trial.deadline if trial.gauge is None else min(trial.deadline, trial.gauge.due)
        elif not trial and not self.conn:
            until = self.seen + self.idle
        if self.unsettled:
            until = min(until, now() + QUIET_S)
        return {fd for fd, _ in poll.poll(max(0.0, min(60.0, until - now())) * 1000 + 1)}

    def attend(self, trial: Trial, ready: set[int]) -> None:
        process = trial.process
        for drain in process.drains:
            if drain.reader in ready:
                drain.read()
        written = sum(drain.total for drain in process.drains)
        if trial.gauge and now() >= trial.gauge.due:
            trial.gauge.look()
        if process.pidfd in ready:
            self.discard(trial) if trial.released is None else self.over(trial, None)
        elif written > (trial.limits.get("out_total") or written) and trial.ending is None:
            self.end(trial, "output")
        elif trial.gauge and trial.gauge.grown > trial.limits["disk"] and trial.ending is None:
            self.end(trial, "disk")
        elif trial.deadline and now() >= trial.deadline:
            self.end(trial, "wall")


def serve(lane: str, idle: float, ready: int) -> int:
    """Takes the lane's lock, tells the launcher, and serves until nothing is left to do. Gives the exit status."""
    os.chdir(lane)
    fresh = not os.path.exists("lock")
    lock = os.open("lock", os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(200):  # an old keeper may be on its way out
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except OSError:
            time.sleep(0.01)
    else:
        return BUSY
    null, log = os.open(os.devnull, os.O_RDWR), os.open("keeper.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for there, here in enumerate((null, log, log)):
        os.dup2(here, there)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    lane = os.path.realpath(".")
    if fresh or os.path.exists("dirty"):  # fresh: the folder may have been deleted under a keeper that still runs
        sweep(lane)
    keeper = Keeper(lane, idle)
    os.write(ready, b"r")
    os.close(ready)
    keeper.loop()
    return 0


def main(lane: str, idle: float) -> NoReturn:
    """The launcher: forks the keeper, and ends when it serves."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        said = os.read(reader, 1)
        os._exit({b"r": 0, b"b": BUSY}.get(said, 1))
    os.close(reader)
    os.setsid()
    os.umask(0o077)
    try:
        code = serve(lane, idle, writer)
    except OSError as error:
        os.write(2, f"keeper: cannot serve {lane!r}: {error}\n".encode(errors="backslashreplace"))
        os._exit(1)
    if code == BUSY:
        os.write(writer, b"b")
    os._exit(code)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
