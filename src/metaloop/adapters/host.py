"""What this machine is, and which program a name stands for."""

import os
import platform
import resource
import shutil
import struct
import subprocess
import sys
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import ModuleType

from metaloop.adapters.keeper import hierarchies
from metaloop.terms import Host
from metaloop.values import digest

_ASK_PYTHON = "import sys; print(sys.executable)"


def this_host() -> Host:
    """System, kernel and processor, and a fingerprint over them: results of different ones are hard to compare."""
    system, kernel, processor = platform.system(), platform.release(), _gpu() or _cpu()
    return Host(digest(f"{system}|{kernel}|{processor}".encode())[:16], system, kernel, processor)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    found = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return found or platform.processor() or platform.machine()


def _gpu() -> str:
    names = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        lines = path.read_text(errors="replace").splitlines()
        names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return ", ".join(names)


def descriptors() -> int:
    """How many files this process may have open at once."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def enforced() -> tuple[str, ...]:
    """Which limits hold for a trial's whole process tree on this machine; memory and processes need a control group."""
    names = {"memory.max": "memory", "memory.limit_in_bytes": "memory", "pids.max": "processes"}
    found = {names[file] for _, files in hierarchies() for file in files}
    return ("wall clock", "output", "open files", *sorted(found))


def trusted(name: str) -> str:
    """A program of the machine's that we run ourselves: one outside of HOME, if there is one, which no agent could have
    put there; empty where there is none at all.
    """
    home = os.path.realpath(os.environ.get("HOME", "") or "/")
    places = [place for place in os.environ.get("PATH", os.defpath).split(os.pathsep) if place]
    away = [place for place in places if home == "/" or not Path(os.path.realpath(place)).is_relative_to(home)]
    return shutil.which(name, path=os.pathsep.join(away) or os.defpath) or shutil.which(name) or ""


def program(name: str, cwd: str, path: str | None) -> str | None:
    """The file that `name` runs, as a trial started in `cwd` with this PATH finds it; None where there is none.

    A python is asked what it really is: a version manager's shim would cost every trial a tenth of a second.
    """
    found = shutil.which(name, path=path) if os.sep not in name else str(Path(cwd, name))
    if found is None or not os.access(found, os.X_OK) or Path(found).is_dir():
        return None
    if Path(name).name.startswith("python") and not Path(found).samefile(sys.executable):
        return _real_python(found, cwd) or found
    return found


def runnable(module: ModuleType) -> str:
    """A module's file, for an interpreter of our kind to run: compiled, where import has left it so.

    A compiled file that is not of this source is not run: one who may write none leaves the old one there.
    """
    source = Path(str(module.__file__))
    try:
        found = source.stat()
        with open(module.__cached__ or "", "rb") as file:
            head = struct.unpack("<4s3I", file.read(16))
    except (OSError, struct.error):
        return str(source)
    fresh = (MAGIC_NUMBER, 0, int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF)
    return str(module.__cached__) if head == fresh else str(source)


def _real_python(found: str, cwd: str) -> str:
    try:
        asked = subprocess.run(
            [found, "-I", "-S", "-c", _ASK_PYTHON], cwd=cwd, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return asked.stdout.strip()
