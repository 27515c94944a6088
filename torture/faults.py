"""What a machine or a person does to a study: signals, full and read-only disks, damage, clocks, killed processes.

usage: faults.py [NAME ...]      all of them without a name; a line each, PASS or FAIL with what was seen
A damaged ledger has to be refused (exit code 6), `metaloop restore` has to bring back everything, and the same study
has to end with the decisions of one that was left alone. Mounts need root: what cannot be done is told as LEFT OUT.
"""

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from harness import HERE, Bench, Ended, began, reference, report, scratch, wait_for

from metaloop.adapters.ledger import integrity
from metaloop.adapters.twin import rows
from metaloop.errors import MetaloopError

Fault = Callable[[Bench], tuple[bool, str]]
FAULTS: dict[str, Fault] = {}
NEEDS_ROOT = {"enospc", "readonly"}


def fault(found: Fault) -> Fault:
    FAULTS[found.__name__] = found
    return found


def under_way(bench: Bench, trials: int = 3) -> subprocess.Popen[str]:
    """A controller whose script ran so often."""
    process = bench.start()
    wait_for(lambda: bench.executions() >= trials or process.poll() is not None)
    return process


def goes_on(bench: Bench, kills: int = 0) -> tuple[bool, str]:
    """The same command to the end: nothing may be amiss then."""
    expected, runs = reference(bench)
    ended = bench.run()
    found = bench.problems(expected, kills, runs)
    ok = ended.code == 0 and ended.clean and not found
    return ok, f"then {ended.code}" + (f" {ended.said}" if ended.code else "") + (
        f", {'; '.join(found)}" if found else ", decisions the same"
    )


def told(ended: Ended) -> str:
    code = "hung" if ended.code is None else f"exit code {ended.code}"
    return f"{code} after {ended.seconds:.1f} s{', TRACEBACK' if ended.spilled else ''} {ended.said!r}"


# ---- signals, disks, clocks, processes -------------------------------------------------------------------------------


def interrupted(bench: Bench, signals: Sequence[signal.Signals], code: int, most: float) -> tuple[bool, str]:
    process = under_way(bench)
    for number in signals:
        process.send_signal(number)
        time.sleep(0.05)
    ended = bench.end(process, 15)
    left = bench.alive()
    ok, then = goes_on(bench, kills=1)
    fine = ok and ended.code == code and ended.clean and ended.seconds < most and not left
    return fine, f"{told(ended)}, {len(left)} processes left; {then}"


@fault
def sigterm(bench: Bench) -> tuple[bool, str]:
    return interrupted(bench, [signal.SIGTERM], 143, 10)


@fault
def sigint2(bench: Bench) -> tuple[bool, str]:
    return interrupted(bench, [signal.SIGINT, signal.SIGINT], 130, 3)


@contextlib.contextmanager
def tmpfs(folder: Path, options: str) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "torture", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@fault
def enospc(bench: Bench) -> tuple[bool, str]:
    where = bench.folder / ".metaloop"
    with tmpfs(where, "size=200k"):
        ended = bench.run()
        left = bench.alive()
        subprocess.run(["mount", "-o", "remount,size=64m", str(where)], check=True)
        held = len(bench.completed())
        ok, then = goes_on(bench, kills=1)
        bench.kill_all()
    fine = ok and ended.code not in (0, None) and ended.clean and not left
    return fine, f"{told(ended)}, {held} trials done; with space: {then}"


@fault
def readonly(bench: Bench) -> tuple[bool, str]:
    with tmpfs(bench.folder / ".metaloop", "ro"):
        ended = bench.run()
    ok, then = goes_on(bench)
    return ok and ended.code not in (0, None) and ended.clean, f"{told(ended)}; writable again: {then}"


@fault
def tree_deleted(bench: Bench) -> tuple[bool, str]:
    process = under_way(bench)
    shutil.rmtree(bench.folder, ignore_errors=True)
    bench.folder.mkdir(exist_ok=True)
    ended = bench.end(process, 30)
    wait_for(lambda: not bench.alive(), 2)
    left = bench.alive()
    bench.kill_all()
    return ended.code not in (0, None) and ended.clean and not left, f"{told(ended)}, {len(left)} processes left"


@fault
def clock_jump(bench: Bench) -> tuple[bool, str]:
    library, shift = bench.folder / "wallshift.so", bench.folder / "shift"
    compiler = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(HERE / "wallshift.c")]
    if shutil.which("cc") is None or subprocess.run(compiler).returncode:
        return True, "LEFT OUT: no C compiler"
    shift.write_text("0")
    expected, runs = reference(bench)
    process = bench.start(env={"LD_PRELOAD": str(library), "WALLSHIFT_FILE": str(shift)})
    jumps = ("-7200", "864000", "-31536000", "0")
    for number, jump in enumerate(jumps):
        wait_for(lambda: bench.executions() > 2 * number or process.poll() is not None)  # noqa: B023 - called at once
        shift.write_text(jump)
    ended = bench.end(process)
    unix = [entry.unix for entry in bench.entries()]
    back = sum(later < sooner for sooner, later in pairwise(unix))
    found = bench.problems(expected, 0, runs)
    fine = ended.code == 0 and ended.clean and not found and back > 0
    return fine, f"{told(ended)}, jumps of {', '.join(jumps)} s, recorded time went back {back} times; {found}"


@fault
def child_kill(bench: Bench) -> tuple[bool, str]:
    process, killed = under_way(bench, 4), 0  # after the baseline: a study whose baseline fails is over
    while process.poll() is None and killed < 5:
        for pid in bench.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
        time.sleep(0.1)
    ended = bench.end(process)
    trials = len(bench.told()["trials"])
    return ended.code == 0 and ended.clean and killed > 0, (
        f"{killed} processes of trials killed; {told(ended)}, {trials} trials"
    )


@fault
def keeper_killed(bench: Bench) -> tuple[bool, str]:
    return keepers_get(bench, signal.SIGKILL)


@fault
def keeper_stopped(bench: Bench) -> tuple[bool, str]:
    return keepers_get(bench, signal.SIGSTOP)


def keepers_get(bench: Bench, number: signal.Signals) -> tuple[bool, str]:
    process = under_way(bench)
    keepers = bench.keepers()
    for pid in keepers:
        os.kill(pid, number)
    ended = bench.end(process)
    expected, runs = reference(bench)
    found = bench.problems(expected, len(keepers), runs)
    return ended.code == 0 and ended.clean and bool(keepers) and not found, f"{told(ended)}; {found or 'nothing amiss'}"


@fault
def emfile(bench: Bench) -> tuple[bool, str]:
    seen, fine = [], True
    for most in (5, 8, 10, 12, 14, 16, 20, 24, 32):
        ended = bench.run(under=("prlimit", f"--nofile={most}"))
        fine &= ended.clean
        seen.append(
            f"{most}: {ended.code}{' TRACEBACK ' + ' '.join(ended.err.split())[-200:] if ended.spilled else ''}"
        )
    ok, then = goes_on(bench, kills=9)
    return ok and fine, f"descriptors and exit code {', '.join(seen)}; {then}"


@fault
def torn_result(bench: Bench) -> tuple[bool, str]:
    """Controller and keeper die, and of the result that nobody has read yet half is on the disk."""
    process = under_way(bench)
    process.kill()
    process.wait()
    results = bench.study / "trials"
    wait_for(lambda: not bench.alive(), 5)
    for pid in bench.keepers():
        os.kill(pid, signal.SIGKILL)
    torn = newest(results)
    if torn is None:
        return False, "no result to tear"
    whole = torn.read_bytes()
    torn.write_bytes(whole[: len(whole) // 2])
    ok, then = goes_on(bench, kills=1)
    return ok, f"{len(whole)} bytes cut to {len(whole) // 2}; {then}"


def newest(folder: Path) -> Path | None:
    return max(folder.rglob("result.json"), key=lambda path: path.stat().st_mtime_ns, default=None)


# ---- damage ----------------------------------------------------------------------------------------------------------


def half_done(bench: Bench, *, killed: bool = False) -> dict[int, object]:
    """A study that stands still in its middle, and what is completed in it. `killed`: its WAL is as it was."""
    process = under_way(bench, 5)
    process.send_signal(signal.SIGKILL if killed else signal.SIGTERM)
    process.wait()
    if not killed:
        with contextlib.closing(sqlite3.connect(bench.study / "ledger.sqlite")) as db:
            db.execute("pragma wal_checkpoint(truncate)")
    return bench.completed()


def refused(bench: Bench, before: dict[int, object]) -> tuple[bool, str]:
    """Refused by run, put right by restore with everything in it, and then the study goes on."""
    ended = bench.run()
    put_right = bench.run("restore", str(bench.study))
    try:
        now = bench.completed() if put_right.code == 0 else {}
    except MetaloopError as error:
        return False, f"{told(ended)}; restore {told(put_right)}; still {error}"
    lost = len(before.items() - now.items())
    if put_right.code != 0:
        return False, f"{told(ended)}; restore: {told(put_right)}"
    ok, then = goes_on(bench, kills=1)
    fine = ok and ended.code == 6 and ended.clean and put_right.clean and not lost
    return fine, f"{told(ended)}; restore: {put_right.code}, {lost} of {len(before)} trials lost; {then}"


@fault
def truncated_db(bench: Bench) -> tuple[bool, str]:
    before = half_done(bench)
    path = bench.study / "ledger.sqlite"
    os.truncate(path, path.stat().st_size // 2)
    return refused(bench, before)


@fault
def garbage_db(bench: Bench) -> tuple[bool, str]:
    before = half_done(bench)
    with (bench.study / "ledger.sqlite").open("r+b") as file:
        file.write(b"not a database" * 20)
    return refused(bench, before)


@fault
def deleted_db(bench: Bench) -> tuple[bool, str]:
    before = half_done(bench)
    (bench.study / "ledger.sqlite").unlink()
    return refused(bench, before)


@fault
def flipped_digit(bench: Bench) -> tuple[bool, str]:
    """SQLite's own check finds nothing wrong with it."""
    before = half_done(bench)
    with contextlib.closing(sqlite3.connect(bench.study / "ledger.sqlite", isolation_level=None)) as db:
        triggers = db.execute("select name, sql from sqlite_master where type = 'trigger'").fetchall()
        for name, _ in triggers:
            db.execute(f"drop trigger {name}")
        query = "select place, body from event where body like '%\"loss\":0.%' order by place desc"
        place, body = db.execute(query).fetchone()
        at = body.index('"loss":0.') + len('"loss":0.')
        body = f"{body[:at]}{(int(body[at]) + 1) % 10}{body[at + 1 :]}"
        db.execute("update event set body = ? where place = ?", (body, place))
        for _, sql in triggers:
            db.execute(sql)
    checked = integrity(bench.study)
    ok, seen = refused(bench, before)
    return ok, f"entry {place}, SQLite says {checked}; {seen}"


@fault
def wal_torn(bench: Bench) -> tuple[bool, str]:
    before = half_done(bench, killed=True)
    wal = bench.study / "ledger.sqlite-wal"
    size = wal.stat().st_size
    os.truncate(wal, size - 1000)
    ok, seen = refused(bench, before)
    return ok, f"{size} bytes less 1000; {seen}"


@fault
def wal_deleted(bench: Bench) -> tuple[bool, str]:
    before = half_done(bench, killed=True)
    (bench.study / "ledger.sqlite-wal").unlink()
    return refused(bench, before)


@fault
def wal_and_head_deleted(bench: Bench) -> tuple[bool, str]:
    """Now only the copy in text knows that there was more."""
    before = half_done(bench, killed=True)
    (bench.study / "ledger.sqlite-wal").unlink()
    (bench.study / "head").unlink()
    return refused(bench, before)


@fault
def shm_garbage(bench: Bench) -> tuple[bool, str]:
    half_done(bench, killed=True)
    with (bench.study / "ledger.sqlite-shm").open("r+b") as file:
        file.write(os.urandom(4096))
    return goes_on(bench, kills=1)


@fault
def deleted_head(bench: Bench) -> tuple[bool, str]:
    half_done(bench)
    (bench.study / "head").unlink()
    return goes_on(bench, kills=1)


@fault
def deleted_twin(bench: Bench) -> tuple[bool, str]:
    """Made anew from the ledger, whole."""
    half_done(bench)
    twin = bench.study / "ledger.jsonl"
    twin.unlink()
    ok, seen = goes_on(bench, kills=1)
    places = [row[0] for row in rows(bench.study)]
    whole = places == [entry.place for entry in bench.entries()]
    return ok and whole, f"{seen}, copy {'whole' if whole else f'has {len(places)} rows'}"


# ---- all of them -----------------------------------------------------------------------------------------------------


def face(name: str, source: Path | None = None) -> bool:
    """One fault in a fresh study."""
    if name in NEEDS_ROOT and os.getuid():
        print(f"LEFT OUT {name}: it needs root")
        return True
    with scratch() as base:
        bench = Bench(base / "x", trials=8, pace="0.15", source=source)
        try:
            return report(name, *FAULTS[name](bench))
        finally:
            bench.kill_all()


def main(names: Sequence[str]) -> bool:
    if unknown := [name for name in names if name not in FAULTS]:
        print(__doc__, f"expected of {', '.join(FAULTS)}; found {unknown}", file=sys.stderr)
        os._exit(2)
    faced = [face(name) for name in names or FAULTS]
    return all(faced)


if __name__ == "__main__":
    began()
    sys.exit(not main(sys.argv[1:]))
