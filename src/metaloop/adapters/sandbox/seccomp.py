"""Which system calls a confined program may not make, as the program that the kernel runs for each of them. Pure.

Denied is what takes the machine or another process apart and no experiment needs: tracing, mounting, namespaces, BPF,
io_uring, keys, clocks, modules. So debuggers, leak sanitizers and nested sandboxes do not run. A call of another
machine's kind (32-bit programs) kills its process. On a machine that is in no column here nothing is filtered.
"""

import struct

E_PERM, E_NOSYS, E_AFNOSUPPORT = 1, 38, 97
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
LOOPBACK = (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)
"""The families that a network namespace of one's own holds in; others, as vsock, reach past it."""

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Which column is the machine's, and its AUDIT_ARCH."""

DENIED = {
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "process_madvise": (440, 440), "kcmp": (312, 272), "pidfd_getfd": (438, 438),
    # what is mounted where, and whose namespace it is
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "setns": (308, 268),
    "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430), "fsconfig": (431, 431),
    "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442), "open_tree_attr": (467, 467),
    "open_by_handle_at": (304, 265), "quotactl": (179, 60), "quotactl_fd": (443, 443), "fanotify_init": (300, 262),
    # much kernel, little use
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "lookup_dcookie": (212, 18),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    # the machine itself
    "clock_settime": (227, 112), "settimeofday": (164, 170), "adjtimex": (159, 171), "clock_adjtime": (305, 266),
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "reboot": (169, 142), "acct": (163, 89),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "syslog": (103, 116),
    "swapon": (167, 224), "swapoff": (168, 225), "sethostname": (170, 161), "setdomainname": (171, 162),
    "vhangup": (153, 58), "iopl": (172, None), "ioperm": (173, None),
}  # fmt: skip
"""By name: the call's number on x86_64, and on aarch64 (None: it has none)."""

CLONE, CLONE3, UNSHARE, IOCTL, SOCKET = (56, 220), (435, 435), (272, 97), (16, 29), (41, 198)
NEW_NAMESPACES = 0x7E020000  # CLONE_NEW: NS, CGROUP, UTS, IPC, USER, PID, NET
TIOCSTI, TIOCLINUX = 0x5412, 0x541C  # typing into a terminal; pasting into a console
X32 = 0x40000000

LOAD, EQUAL, AT_LEAST, ANY_OF, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
ARCH, NUMBER, FIRST, SECOND = 4, 0, 16, 24  # where they stand in seccomp_data: of arguments the low half, as we are

Line = tuple[int, int, str, str]
"""Code, operand, and the labels to go to if it holds and if not: empty for the next line."""


def program(machine: str, families: tuple[int, ...] | None) -> bytes | None:
    """The filter for a machine (as `uname -m` says); None for one that we have no numbers of. `families`: those of
    which sockets may be made; None for all.
    """
    if machine not in MACHINES:
        return None
    column, arch = MACHINES[machine]
    numbers = [pair[column] for pair in DENIED.values()]
    lines: list[Line | str] = [
        (LOAD, ARCH, "", ""), (EQUAL, arch, "", "kill"), (LOAD, NUMBER, "", ""),
        *([(AT_LEAST, X32, "nosys", "")] if machine == "x86_64" else []),
        *((EQUAL, number, "deny", "") for number in numbers if number is not None),
        (EQUAL, CLONE3[column], "nosys", ""),  # its flags are behind a pointer; who finds none uses clone
        (EQUAL, CLONE[column], "clone", ""), (EQUAL, UNSHARE[column], "clone", ""), (EQUAL, IOCTL[column], "ioctl", ""),
        *([(EQUAL, SOCKET[column], "socket", "")] if families is not None else []),
        (RETURN, ALLOW, "", ""),
        "clone", (LOAD, FIRST, "", ""), (ANY_OF, NEW_NAMESPACES, "deny", "permit"),
        "ioctl", (LOAD, SECOND, "", ""), (EQUAL, TIOCSTI, "deny", ""), (EQUAL, TIOCLINUX, "deny", "permit"),
        "socket", (LOAD, FIRST, "", ""), *((EQUAL, family, "permit", "") for family in families or ()),
        (RETURN, ERRNO | E_AFNOSUPPORT, "", ""),
        "permit", (RETURN, ALLOW, "", ""),
        "deny", (RETURN, ERRNO | E_PERM, "", ""),
        "nosys", (RETURN, ERRNO | E_NOSYS, "", ""),
        "kill", (RETURN, KILL, "", ""),
    ]  # fmt: skip
    return _assembled(lines)


def _assembled(lines: list[Line | str]) -> bytes:
    """Jumps go forward only, and at most 255 lines."""
    places: dict[str, int] = {}
    code: list[Line] = []
    for line in lines:
        if isinstance(line, str):
            places[line] = len(code)
        else:
            code.append(line)
    return b"".join(
        struct.pack("HBBI", op, *(places[label] - here - 1 if label else 0 for label in (yes, no)), operand)
        for here, (op, operand, yes, no) in enumerate(code)
    )
