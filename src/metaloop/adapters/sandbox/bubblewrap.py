"""Walls as arguments of bubblewrap: a file system put together of mounts, and namespaces of its own.

What a program finds: its own processes alone (`/proc`), a minimal `/dev`, `/tmp` and `/dev/shm` of `scratch` bytes, the
paths that were named, at their own places, and nothing else; or the whole machine read-only, but for `/run`, where its
services listen, and what is hidden. Where `/tmp` is the machine's, `/dev/shm` is the program's own, without a limit.
User and file owners are the caller's, with no capability: what belongs to others and is closed to them stays closed, to
root as well.

Not covered. A socket in a folder that is shown can be connected to, read-only or not: show no folder with sockets of
services. With the network on, that includes the machine's abstract sockets. What is hidden must exist when the job is
started. A hidden file with another name (a hard link) can be read by that name. What is mounted on the machine later
appears as it is there. `devices` shows what /dev has when the step begins, but for block devices, terminals, memory and
message queues; a folder in it (`/dev/dri`) is the machine's, to write as well. PWD is set.
"""

import functools
import os
from collections.abc import Mapping

from metaloop.adapters.host import trusted
from metaloop.adapters.sandbox.places import Kind, depth, devices, is_folder, named
from metaloop.roles import Walls

ALWAYS = (
    "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup", "--die-with-parent",
    "--new-session", "--cap-drop", "ALL",
)  # fmt: skip
SHOWN = ("read", "write")
MACHINES = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs")
"""What of /proc is the machine's, and root's to write, with capabilities or without."""

LEAST = 4096  # a tmpfs of no bytes is one without a limit
MOST_WORDS = 8900  # bubblewrap takes 9000, the command's own among them


@functools.cache
def found() -> str:
    """The program; empty where there is none."""
    return trusted("bwrap")


def arguments(cwd: str, walls: Walls, env: Mapping[str, str]) -> list[str]:
    """All but the descriptors and the command. `env`: variables that are set inside alone."""
    kinds, links = named(walls)
    own = _own(walls, "/" in kinds)
    what: dict[str, str] = {**dict.fromkeys(own, "own"), **kinds}
    mounts = dict(own)
    for path, kind in kinds.items():
        if kind == "hidden" and _above(path, what) in SHOWN:
            mounts[path] = ["--perms", "0555", "--tmpfs", path] if is_folder(path) else ["--ro-bind", "/dev/null", path]
        elif kind != "hidden" and _above(path, what) != kind:  # each mount costs a tenth of a millisecond
            mounts[path] = _shown(path, kind)
    for path, says in links.items():
        if _above(path, what) not in SHOWN and not path.startswith(("/proc/", "/dev/")):
            mounts[path] = ["--symlink", says, path]
    closed = [path for path, words in mounts.items() if words[:2] == ["--perms", "0555"]]
    closed += ["/dev", *([] if "/" in kinds else ["/"])]
    words = [*ALWAYS, *(() if walls.network else ("--unshare-net",))]
    for path in sorted(mounts, key=depth):  # what lies deeper comes later, and holds
        words += mounts[path]
    for path in closed:
        words += ["--remount-ro", path]
    for name, value in env.items():
        words += ["--setenv", name, value]
    return [*words, "--chdir", os.path.realpath(cwd)]


def _own(walls: Walls, host: bool) -> dict[str, list[str]]:
    """What is not the machine's, by path."""
    empty = ["--perms", "0555", "--tmpfs"]
    size = () if walls.scratch is None else ("--size", str(max(LEAST, walls.scratch)))  # else half of the memory
    scratch = ["--perms", "1777", *size, "--tmpfs"]
    own = {"/proc": ["--proc", "/proc"], "/dev": ["--dev", "/dev"], "/dev/shm": [*scratch, "/dev/shm"]}
    own |= {path: ["--ro-bind-try", path, path] for path in (MACHINES if not os.geteuid() else ())}
    if walls.devices:
        own |= {path: ["--dev-bind-try", path, path] for path in devices()}
    if walls.scratch is not None:
        own["/tmp"] = [*scratch, "/tmp"]
    if host and is_folder("/run"):
        own["/run"] = [*empty, "/run"]
    return own


def _shown(path: str, kind: Kind) -> list[str]:
    """A part of the machine at its own place; none where it does not exist when the step begins."""
    if path.startswith("/dev/"):
        return ["--dev-bind-try", path, path]
    return ["--bind-try" if kind == "write" else "--ro-bind-try", path, path]


def _above(path: str, what: Mapping[str, str]) -> str | None:
    """What would hold at a path if it were not named."""
    while path != "/":
        path = path.rpartition("/")[0] or "/"
        if path in what:
            return what[path]
    return None
