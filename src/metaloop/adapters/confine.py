"""Confine: gives up what a process may reach, by Landlock and a filter of system calls, and turns into a program.

usage: python -I -S confine.py SPEC_FD -- PROGRAM [ARGUMENT ...]    (exit 127: it could not, and nothing was run)

A script of its own, with nothing but the standard library, so that it starts fast. It needs no privilege, and keeps
none: all capabilities go. The spec is a marshalled dict, read from a descriptor to its end: `abi` (Landlock's version),
`kinds` (read, write or hidden, by real path: the deepest that holds a path has the say), `network`, `devices`, `filter`
(a BPF program, may be empty), `env` (variables for the program alone). Only descriptors 0 to 2 are left.

Not covered, for Landlock knows nothing of it, and there is no file system or process table of one's own here:
- /tmp is the machine's: not writable unless named, and never capped. So is /dev/shm, which is writable, because
  semaphores live there: other programs of the same user have their shared memory in it.
- Names, sizes, times and owners of files can be seen anywhere, and folders that hold something hidden can be listed,
  with all below them; what stands in hidden files cannot be read.
- Modes, owners and times of files that belong to the user can be changed anywhere; below version 3 they can be cut.
- Command lines of other processes can be read (their environment and memory cannot); below version 6 they can be sent
  signals, the keeper first, and abstract sockets reached.
- Sockets with a path can be connected to, of the machine's services too, below version 9.
- Message queues and shared memory of System V are the machine's. No terminal can be opened, new ones neither.
- In a folder with something weaker below (hidden, or to be read in one to be written), what was not there at the start
  can be neither read nor made. Such folders are opened entry by entry.
- Without a network there is no loopback either; TCP is denied from version 4 on, the rest by the filter alone.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import stat
import struct
import sys

TYPE_CHECKING = False  # importing typing costs milliseconds at every start
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NoReturn

PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 22, 24, 38, 47
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # the same on every machine
SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
MAKE_CHAR, MAKE_BLOCK, REFER, TRUNCATE, IOCTL_DEV, RESOLVE_UNIX = 1 << 6, 1 << 11, 1 << 13, 1 << 14, 1 << 15, 1 << 16
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV | RESOLVE_UNIX
READ = EXECUTE | READ_FILE | READ_DIR
DEVICE = READ_FILE | WRITE_FILE | IOCTL_DEV
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
TERMINALS = ("pts", "ptmx", "tty", "vcs", "console")  # of the user, who types there
LAST_CAPABILITY = 63
LIBC = ctypes.CDLL(None, use_errno=True)


def handled(abi: int) -> int:
    """Every right to files that this version knows: what is not handled is allowed."""
    known = (1 << 13) - 1  # version 1: up to MAKE_SYM
    for since, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV), (9, RESOLVE_UNIX)):
        known |= right if abi >= since else 0
    return known


def version() -> int:
    """Landlock's; 0 where the kernel has none, or was started without."""
    return max(0, int(LIBC.syscall(CREATE_RULESET, None, 0, 1)))


def within(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def allowed(kinds: dict[str, str], devices: bool) -> Iterator[tuple[str, int]]:
    """Every rule: a path, and the rights to it and to all that is below."""
    every = ~(MAKE_CHAR | MAKE_BLOCK)
    rights = {"read": READ, "write": every}
    for path, kind in kinds.items():
        if kind != "hidden":
            yield from spread(path, kind, rights[kind], kinds)
    if "/proc" not in kinds:
        yield "/proc", READ
    if "/dev/shm" not in kinds:
        yield "/dev/shm", every
    yield "/dev", READ_DIR
    for name in os.listdir("/dev") if devices else DEVICES:
        try:
            mode = os.stat("/dev/" + name).st_mode
        except OSError:
            continue
        private = name in ("shm", "mqueue") or (name not in DEVICES and name.startswith(TERMINALS))
        if not private and not stat.S_ISBLK(mode):
            yield "/dev/" + name, DEVICE | READ_DIR


def spread(path: str, kind: str, rights: int, kinds: dict[str, str]) -> Iterator[tuple[str, int]]:
    """Rules add up on the way down, so that what is weaker below leaves its neighbours to be named one by one."""
    below = [other for other in kinds if within(other, path)]
    if all(kinds[other] in (kind, "write") for other in below):
        yield path, rights
        return
    yield path, READ_DIR
    for name in listed(path):
        inner = path.rstrip("/") + "/" + name
        if inner not in kinds and not os.path.islink(inner):
            if any(within(other, inner) for other in below):
                yield from spread(inner, kind, rights, kinds)
            else:
                yield inner, rights


def listed(path: str) -> list[str]:
    """What is in a folder; nothing where it is closed to us, or not there."""
    try:
        return os.listdir(path)
    except OSError:
        return []


def check(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def restrict(spec: dict[str, Any]) -> None:
    """Landlock, from here on and for all that is started."""
    abi = spec["abi"]
    files, net, scope = handled(abi), 0 if spec["network"] or abi < 4 else 3, 3 if abi >= 6 else 0
    size = 8 if abi < 4 else 16 if abi < 6 else 24
    ruleset = check(LIBC.syscall(CREATE_RULESET, struct.pack("=QQQ", files, net, scope)[:size], size, 0), "Landlock")
    for path, rights in allowed(spec["kinds"], spec["devices"]):
        add(ruleset, path, rights & files)
    check(LIBC.syscall(RESTRICT_SELF, ruleset, 0), "Landlock")
    os.close(ruleset)


def add(ruleset: int, path: str, rights: int) -> None:
    """What is not there, or not ours to look at, needs no rule."""
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISLNK(mode):
            return
        rights &= -1 if stat.S_ISDIR(mode) else OF_FILES
        check(LIBC.syscall(ADD_RULE, ruleset, 1, struct.pack("=Qi", rights, fd), 0), f"Landlock: {path!r}")
    finally:
        os.close(fd)


def forsake() -> None:
    """Every capability, now and for what is executed: root is a user like others."""
    for capability in range(LAST_CAPABILITY + 1):
        LIBC.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)  # fails for who may not, and has none
    LIBC.prctl(PR_CAP_AMBIENT, 4, 0, 0, 0)
    number = SYS_CAPSET.get(os.uname().machine)
    if number is not None:
        header, none = struct.pack("=Ii", 0x20080522, 0), bytes(24)
        check(LIBC.syscall(number, header, none), "capset")
    elif not os.geteuid():
        raise OSError(0, f"expected a machine of {sorted(SYS_CAPSET)} to drop root's capabilities on")


def sift(program: bytes) -> None:
    """The filter of system calls; the last deed, for it may deny what came before."""
    lines = ctypes.create_string_buffer(program)
    filter = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(lines)))
    check(LIBC.prctl(PR_SET_SECCOMP, 2, filter, 0, 0), "seccomp")


def turn_into(argv: list[str], env: dict[str, str]) -> NoReturn:
    """As `os.execvpe`, which would import a module, and our own interpreter may be out of reach by now."""
    why: OSError = FileNotFoundError(2, os.strerror(2))
    for place in [""] if "/" in argv[0] else env.get("PATH", os.defpath).split(":"):
        try:
            os.execve(place + "/" * bool(place) + argv[0], argv, env)
        except OSError as error:
            why = why if isinstance(error, (FileNotFoundError, NotADirectoryError)) else error
    raise why


def main(fd: int, argv: list[str]) -> NoReturn:
    try:
        with open(fd, "rb") as file:
            spec = marshal.loads(file.read())
        os.closerange(3, 1 << 16)
        check(LIBC.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
        forsake()
        restrict(spec)
        if spec["filter"]:
            sift(spec["filter"])
        turn_into(argv, {**os.environ, **spec["env"]})
    except BaseException as error:
        why = error.strerror if isinstance(error, OSError) else repr(error)
        text = f"metaloop: cannot start {argv[0]!r} within its walls: {why}\n"
        os.write(2, text.encode(errors="backslashreplace"))
    os._exit(127)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[3:])
