"""Where the paths of `Walls` really lie, and what of the machine any program needs. Looks at the disk, changes nothing.

What a path leads through is looked up here, once. Whoever uses it later has to see that no link has come in between.
"""

import functools
import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, TypeAlias

from metaloop.roles import Walls

Kind: TypeAlias = Literal["read", "write", "hidden"]

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
ETC = (
    "ld.so.cache", "ld.so.preload", "alternatives", "ssl", "pki", "crypto-policies", "passwd", "group", "nsswitch.conf",
    "localtime", "fonts", "OpenCL", "vulkan", "glvnd",
)  # fmt: skip
ETC_NETWORK = ("resolv.conf", "hosts", "host.conf", "gai.conf", "services", "protocols")
PROCESSORS = ("/sys/devices/system",)  # how many there are: glibc and BLAS ask
MOST_LINKS = 40  # as the kernel


def within(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def depth(path: str) -> int:
    return path.rstrip("/").count("/")


def traced(path: str) -> tuple[str, dict[str, str]]:
    """Where a path leads in the end, and the links on the way: each where it lies itself, with what it says.

    What does not exist leads where it says.
    """
    links: dict[str, str] = {}
    todo, real = [part for part in path.split("/") if part][::-1], ""
    while todo:
        part = todo.pop()
        if part in (".", ".."):
            real = real if part == "." else real.rpartition("/")[0]
            continue
        here = f"{real}/{part}"
        try:
            says = str(Path(here).readlink()) if len(links) < MOST_LINKS else ""
        except OSError:  # no link, or nothing there
            says = ""
        if says:
            links[here] = says
            real = "" if says.startswith("/") else real
            todo += [part for part in says.split("/") if part][::-1]
        else:
            real = here
    return real or "/", links


def is_folder(path: str) -> bool | None:
    """None where there is nothing, or nobody can tell."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return None


@functools.cache
def needed(network: bool, devices: bool) -> tuple[str, ...]:
    """What of the machine a program needs that sees nothing else, for reading."""
    etc = (*ETC, *(ETC_NETWORK if network else ()))
    system = ("/sys",) if devices else PROCESSORS
    found = (*SYSTEM, *(f"/etc/{name}" for name in etc), *system)
    return tuple(path for path in found if Path(path).exists())


def named(walls: Walls) -> tuple[dict[str, Kind], dict[str, str]]:
    """What holds where, by real path; and the links that the names lead through. Of one path named in several lists
    the strongest word holds: hidden, then write. What is hidden and does not exist is nowhere; /proc and /dev are
    nobody's to name.
    """
    base: Iterable[str] = needed(walls.network, walls.devices)
    if walls.host:
        base = ("/", *(("/etc/resolv.conf",) if walls.network else ()))  # which often leads into /run
    kinds: dict[str, Kind] = {}
    links: dict[str, str] = {}
    lists: tuple[tuple[Kind, Iterable[str]], ...] = (
        ("read", base), ("read", walls.read), ("write", walls.write), ("hidden", walls.hidden),
    )  # fmt: skip
    for kind, paths in lists:
        for path in paths:
            real, through = traced(path)
            if kind != "hidden":
                links |= through
            if not (within(real, "/proc") or real == "/dev") and (kind != "hidden" or is_folder(real) is not None):
                kinds[real] = kind
    return kinds, links


NO_DEVICES = re.compile(r"(tty|vcs|pts|ptmx|console|shm|mqueue|core|fd|std|null|zero|full|u?random|k?mem|port|kmsg)")
"""How the names in /dev begin that a program has of its own, or that are terminals and memory, of which it has none."""


def devices(folder: str = "/dev") -> list[str]:
    """What a program that needs devices is shown of the machine's: no disks, which root owns, and nothing that is a
    plain file.
    """
    with os.scandir(folder) as entries:
        return sorted(entry.path for entry in entries if _is_device(entry) and not NO_DEVICES.match(entry.name))


def _is_device(entry: os.DirEntry[str]) -> bool:
    mode = entry.stat(follow_symlinks=False).st_mode
    return stat.S_ISCHR(mode) or stat.S_ISDIR(mode)
