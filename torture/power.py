"""Cuts of the power: what was acknowledged before the instant is on the disk, and the study goes on from there.

usage: power.py [CUTS]     50 by default; needs root, loop devices, mkfs.ext4, mkfs.xfs

An ext4 file system in an image file holds the study. The image lies on a file system that can clone a file in one step
(FICLONE): the one at hand if it can, else an XFS in an image of its own. A cut is such a clone, taken while the
controller works. It has all that ext4 gave to its device before that instant, and nothing that was only in memory: what
was written and not synced is gone, as it is when the power goes. The clone is mounted (ext4 replays its journal) and
the ledger read. The controller says over a pipe, which leads out of the image, how far `append` has returned; the pipe
is read up before the clone is made. After the last cut of a study every process is killed, the clone is mounted in the
image's place, and the study runs to its end.

Not shown: a drive that loses or reorders what it was given before it was flushed.
"""

import asyncio
import contextlib
import fcntl
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import Bench, began, missing, reference, report, scratch

from metaloop.config import drive, surroundings
from metaloop.errors import MetaloopError
from metaloop.events import Entry
from metaloop.study import Study
from metaloop.studyfile import load

FICLONE = 0x40049409
PIPE = "TORTURE_PIPE"
OUTER, INNER = 700 << 20, 64 << 20


def controller(file: str) -> None:
    """`metaloop run`, with an observer more: it writes the place of each commit into a pipe."""
    pipe = int(os.environ[PIPE])

    def acknowledge(entries: Sequence[Entry], _: Study) -> None:
        os.write(pipe, f"{entries[-1].place}\n".encode())

    study = load(Path(file), {})
    asyncio.run(drive(study, surroundings(study), observers=(acknowledge,)))


def clone(image: Path, to: Path) -> None:
    with image.open("rb") as source, to.open("wb") as target:
        fcntl.ioctl(target, FICLONE, source.fileno())


def clones(folder: Path) -> bool:
    probe = folder / "probe"
    probe.write_bytes(b"x" * 4096)
    try:
        clone(probe, folder / "probe2")
    except OSError:
        return False
    return True


def call(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True, capture_output=True)


@contextlib.contextmanager
def mounted(image: Path, at: Path) -> Iterator[Path]:
    at.mkdir(exist_ok=True)
    call("mount", "-o", "loop", image, at)
    try:
        yield at
    finally:
        for _ in range(50):  # whoever was killed may take a moment to let go
            if subprocess.run(["umount", str(at)], capture_output=True).returncode == 0:
                break
            time.sleep(0.1)
        else:
            call("umount", "-l", at)


@contextlib.contextmanager
def cloneable(base: Path) -> Iterator[Path]:
    """A folder in which files can be cloned."""
    if clones(base):
        yield base
        return
    image = base / "outer.img"
    image.touch()
    os.truncate(image, OUTER)
    call("mkfs.xfs", "-q", "-m", "reflink=1", image)
    with mounted(image, base / "outer") as outer:
        yield outer


def read_up(pipe: int, last: int) -> int:
    """The newest place that was acknowledged."""
    text = b""
    with contextlib.suppress(BlockingIOError):
        while part := os.read(pipe, 1 << 16):
            text += part
    return max([last, *map(int, text.split())])


def began_in(bench: Bench) -> tuple[subprocess.Popen[bytes], int]:
    """The controller, and the end of its pipe that we read."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    process = subprocess.Popen(
        [sys.executable, __file__, "controller", "study.yaml"], cwd=bench.folder, pass_fds=[writer],
        env=bench.environment({PIPE: str(writer)}), start_new_session=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(writer)
    return process, reader


def look(bench: Bench, last: int) -> tuple[list[str], int]:
    """What is amiss in a study as the cut left it, and how far its ledger reaches."""
    try:
        place = max((entry.place for entry in bench.entries()), default=0)
    except MetaloopError as error:
        return [str(error)], 0
    return ([f"{last - place} of {last} acknowledged entries are lost"] if place < last else []), place


def campaign(
    base: Path, cuts: int, dice: random.Random, trials: int, source: Path | None
) -> tuple[list[int], list[str]]:
    """How many entries were acknowledged at each cut of one study, and what was amiss; it goes on from the last."""
    image, snapshot, found, made, last = base / "disk.img", base / "cut.img", list[str](), list[int](), 0
    image.touch()
    os.truncate(image, INNER)
    call("mkfs.ext4", "-q", "-F", image)
    process = None
    with mounted(image, base / "disk") as disk:
        bench = Bench(disk / "x", trials, pace="0", source=source)
        expected, runs = reference(bench)
        os.sync()  # the study file and the script are old when a study is cut off
        process, pipe = began_in(bench)
        try:
            while not (last := read_up(pipe, last)) and process.poll() is None:
                time.sleep(0.01)
            while len(made) < cuts and process.poll() is None:
                time.sleep(dice.uniform(0.0, 0.3))
                last = read_up(pipe, last)
                snapshot.unlink(missing_ok=True)
                clone(image, snapshot)
                made.append(last)
                if len(made) < cuts and process.poll() is None:  # the last is looked at in the image's place
                    with mounted(snapshot, base / "cut") as there:
                        amiss, _ = look(Bench(there / "x", trials, pace="0"), last)
                        found += [f"cut {len(made)}: {what}" for what in amiss]
        finally:
            process.kill()
            process.wait()
            os.close(pipe)
            bench.kill_all()
    with mounted(snapshot, base / "disk"):
        amiss, place = look(bench, last)
        found += [f"cut {len(made)}: {what}" for what in amiss]
        ended = bench.run()
        found += [f"goes on: exit code {ended.code} {ended.said}"] if ended.code or ended.spilled else []
        found += [f"goes on: {what}" for what in bench.problems(expected, trials, runs) if place]
        bench.kill_all()
    for file in (image, snapshot):
        file.unlink()
    return made, found


def power(cuts: int = 50, *, source: Path | None = None, trials: int = 80, a_study: int = 10) -> bool:
    dice, made, campaigns, found = random.Random(7), list[int](), 0, list[str]()
    since = time.monotonic()
    with scratch() as base, cloneable(base) as folder:
        while len(made) < cuts:
            more, amiss = campaign(folder, min(a_study, cuts - len(made)), dice, trials, source)
            made, campaigns = made + more, campaigns + 1
            found += amiss
            for what in amiss:
                print(f"  study {campaigns}, {what}", flush=True)
    seen = (
        f"{len(made)} cuts in {campaigns} studies, {min(made)} to {max(made)} entries acknowledged, "
        f"{len(found)} amiss, {time.monotonic() - since:.0f} s"
    )
    return report("power", not found, seen)


def possible() -> str:
    """Why it cannot be done here; empty where it can."""
    lacking = missing("mkfs.ext4", "mkfs.xfs", "mount")
    if os.getuid() or lacking or not Path("/dev/loop-control").exists():
        return f"needs root, loop devices, mkfs.ext4, mkfs.xfs; missing: {lacking or 'root or loop devices'}"
    return ""


if __name__ == "__main__":
    if sys.argv[1:2] == ["controller"]:
        controller(sys.argv[2])
        sys.exit()
    began()
    if why := possible():
        print(f"LEFT OUT power: {why}")
        sys.exit()
    if not all(word.isdigit() for word in sys.argv[1:]):
        sys.exit(__doc__)
    sys.exit(not power(int((*sys.argv, "50")[1])))
