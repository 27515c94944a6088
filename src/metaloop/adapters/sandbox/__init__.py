"""The sandbox's ladder: which rungs this machine has, and a command confined by one.

Walls are said in `roles.Walls` and nowhere else; what a rung does not hold stands in its module: `bubblewrap` (mounts
and namespaces), `confine.py` beside this package (Landlock), `seccomp` (system calls, on both).
"""

import functools
import marshal
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from metaloop.adapters import confine
from metaloop.adapters.host import runnable
from metaloop.adapters.sandbox import bubblewrap, seccomp
from metaloop.adapters.sandbox.places import named
from metaloop.errors import Refusal, UsageError
from metaloop.roles import Walls
from metaloop.terms import Rung

Level: TypeAlias = Literal["auto", "bubblewrap", "landlock", "none"]

STATUS_FD, ARGS_FD, SECCOMP_FD = 4, 10, 11  # the first is the keeper's
LOADER = ("GLIBC_TUNABLES", "GCONV_PATH", "LOCPATH")
PATIENCE_S = 20.0


class Confined(msgspec.Struct, frozen=True):
    """A command within walls. `fds`: what it has to find on which descriptors. `status`: it says on descriptor 4 how
    the program in it ended, as bubblewrap does. `env`: variables that it must not be started with, as what builds the
    walls would obey them; the program in it has them. `plain`: paths that no link may lead through when it is started:
    who had no walls before might have put one there.
    """

    argv: tuple[str, ...]
    fds: dict[int, bytes] = {}
    status: bool = False
    env: frozenset[str] = frozenset()
    plain: tuple[str, ...] = ()


def confined(argv: Sequence[str], cwd: str, walls: Walls, rung: Rung, env: Mapping[str, str] | None = None) -> Confined:
    """The command that runs `argv` in `cwd` within these walls. `env`: the environment it will have.

    Raises Refusal for what the rung cannot take.
    """
    for path in (*walls.read, *walls.write, *walls.hidden):
        if not path.startswith("/") or "\0" in path:
            raise Refusal(f"walls: expected an absolute path without NUL, found {path!r}")
    inner = {name: value for name, value in (env or {}).items() if name.startswith("LD_") or name in LOADER}
    filtered = seccomp.program(platform.machine(), _families(walls, rung)) if rung.seccomp else None
    match rung.name:
        case "bubblewrap":
            made = _bubblewrapped(argv, cwd, walls, filtered, inner)
        case "landlock":
            made = _landlocked(argv, walls, rung.abi, filtered, inner)
        case "none":
            return Confined(tuple(argv))
    return msgspec.structs.replace(made, env=frozenset(inner), plain=tuple(named(walls)[0]))


def _families(walls: Walls, rung: Rung) -> tuple[int, ...] | None:
    """Without a network of its own nothing but the file system is left to meet others at."""
    if walls.network:
        return None
    return seccomp.LOOPBACK if rung.name == "bubblewrap" else (seccomp.AF_UNIX,)


def _bubblewrapped(
    argv: Sequence[str], cwd: str, walls: Walls, filtered: bytes | None, env: Mapping[str, str]
) -> Confined:
    words = bubblewrap.arguments(cwd, walls, env)
    if len(words) + len(argv) > bubblewrap.MOST_WORDS:
        raise Refusal(f"expected at most {bubblewrap.MOST_WORDS} words of command and walls, found more: name less")
    fds = {ARGS_FD: b"\0".join(map(os.fsencode, words))}
    command = [bubblewrap.found(), "--args", str(ARGS_FD), "--json-status-fd", str(STATUS_FD)]
    if filtered is not None:
        fds[SECCOMP_FD] = filtered
        command += ["--seccomp", str(SECCOMP_FD)]
    return Confined((*command, "--", *argv), fds, status=True)


def _landlocked(
    argv: Sequence[str], walls: Walls, abi: int, filtered: bytes | None, env: Mapping[str, str]
) -> Confined:
    kinds, _ = named(walls)
    spec = {
        "abi": abi,
        "kinds": kinds,
        "devices": walls.devices,
        "network": walls.network,
        "filter": filtered or b"",
        "env": dict(env),
    }
    python = os.path.realpath(sys.executable)
    return Confined((python, "-I", "-S", runnable(confine), str(ARGS_FD), "--", *argv), {ARGS_FD: marshal.dumps(spec)})


# ---- which rungs there are -------------------------------------------------------------------------------------------

INSTALL = "sudo apt-get install bubblewrap (dnf, pacman and zypper call it bubblewrap too)"
CONTAINER = (
    "if this is a container, docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--security-opt systempaths=unconfined ..."
)
SWITCHES = (
    ("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1", "kernel.apparmor_restrict_unprivileged_userns=0"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "user.max_user_namespaces=15000"),
)
"""Where a system forbids ordinary users what bubblewrap is made of: what stands there then, and what to set."""


class Missing(msgspec.Struct, frozen=True):
    """Why a rung is not there, and the command that would bring it."""

    found: str
    command: str


def climb(level: Level) -> Rung:
    """The rung by that name; for `auto` the highest that holds here. Each is tried for real, on `true`.

    Raises UsageError for one that is not there: a rung is never lowered in silence.
    """
    if level == "none":
        return Rung()
    for name in ("bubblewrap", "landlock") if level == "auto" else (level,):
        found = _bubblewrap() if name == "bubblewrap" else _landlock()
        if isinstance(found, Rung):
            return found
        if level != "auto":
            raise UsageError(f"sandbox.level: expected {level}, found {found.found}; try: {found.command}")
    return Rung()


def missing(rung: Rung) -> str:
    """What would raise this rung, with the command; empty at the top."""
    wants = []
    if rung.name != "bubblewrap":
        found = _bubblewrap()
        wants += [f"bubblewrap: {found.found}; try: {found.command}"] if isinstance(found, Missing) else []
    if rung.name == "none":
        lacks = _landlock()
        wants += [f"landlock: {lacks.found}; try: {lacks.command}"] if isinstance(lacks, Missing) else []
    if rung.name != "none" and not rung.seccomp:
        wants.append(f"system calls are not filtered: no table for {platform.machine()}, or a kernel without seccomp")
    return " · ".join(wants)


@functools.cache
def _bubblewrap() -> Rung | Missing:
    if not bubblewrap.found():
        return Missing("no program bwrap", INSTALL)
    return _tried(Rung("bubblewrap"))


@functools.cache
def _landlock() -> Rung | Missing:
    if not (abi := confine.version()):
        lsm = Path("/sys/kernel/security/lsm")
        others = lsm.read_text().strip() if os.access(lsm, os.R_OK) else "yama,apparmor"
        command = f"add lsm=landlock,{others} to the kernel's command line (5.13 or later), and restart"
        return Missing("a kernel without Landlock", command)
    return _tried(Rung("landlock", abi=abi))


def _tried(rung: Rung) -> Rung | Missing:
    """With the filter where that works, or without; or what it said."""
    said = ""
    for filtered in (True, False) if platform.machine() in seccomp.MACHINES else (False,):
        trial = msgspec.structs.replace(rung, seccomp=filtered)
        said = _said(confined(("true",), "/", Walls(), trial))
        if not said:
            return trial
    for path, bad, setting in SWITCHES:
        if os.access(path, os.R_OK) and Path(path).read_text().strip() == bad:
            return Missing(repr(said), f"sudo sysctl -w {setting}")
    return Missing(repr(said), CONTAINER)


@contextmanager
def opened(command: Confined) -> Iterator[tuple[list[str], list[int]]]:
    """The command for who starts it without a keeper: with open descriptors, and nobody to tell how it ended."""
    fds = [os.memfd_create("metaloop", 0) for _ in command.fds]
    try:
        for fd, data in zip(fds, command.fds.values(), strict=True):
            os.write(fd, data)
            os.lseek(fd, 0, os.SEEK_SET)
        numbers = dict(zip(map(str, command.fds), map(str, fds), strict=True))
        end = command.argv.index("--")
        ours = [numbers.get(word, word) for word in command.argv[:end]]
        if command.status:
            at = ours.index("--json-status-fd")
            del ours[at : at + 2]
        yield [*ours, *command.argv[end:]], fds
    finally:
        for fd in fds:
            os.close(fd)


def _said(command: Confined) -> str:
    """Empty if it ran; otherwise what it said, or how it ended. In a thread of its own: a setuid bubblewrap has to be
    tried without new privileges, as the keeper runs it, and a thread that gave them up never has them again.
    """
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(_tried_without_privileges(command)))
    thread.start()
    thread.join()
    return said[0] if said else "it could not be tried"


def _tried_without_privileges(command: Confined) -> str:
    confine.LIBC.prctl(confine.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    try:
        with opened(command) as (argv, fds):
            done = subprocess.run(
                argv, pass_fds=fds, env={"PATH": os.defpath}, stdin=subprocess.DEVNULL, capture_output=True,
                timeout=PATIENCE_S, check=False,
            )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return "" if not done.returncode else done.stderr.decode(errors="replace").strip() or f"exit {done.returncode}"
