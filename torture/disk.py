"""A disk that fails: the k-th system call of a kind gives an error, in the controller alone, for every k of a stride.

usage: disk.py [STRIDE [KINDS]]     kinds default to those that write; runs until the k-th call is never made
EIO comes once, as from a bad sector; ENOSPC from the k-th call on, as on a disk that stays full. Then the controller
may end or go on, but not hang or show a traceback; and the same command without the fault has to end the study, with
every trial that was recorded or told, and the decisions of a study that was left alone.
"""

import os
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from crashes import readable
from harness import Bench, Ended, began, missing, reference, report, scratch

KINDS = ("pwrite64", "fdatasync", "fsync", "write", "rename")
ERRORS = (("EIO", ""), ("ENOSPC", "+"))


def fail(bench: Bench, kind: str, error: str, k: str) -> tuple[Ended, int]:
    """A run under the fault, and how often the fault came."""
    log = bench.folder / "strace.log"
    inject = f"inject={kind}:error={error}:when={k}"
    ended = bench.run(under=("strace", "-o", str(log), "-e", f"trace={kind}", "-e", inject))
    return ended, log.read_text(errors="replace").count("(INJECTED)")


def acknowledged(ended: Ended) -> set[int]:
    """Trials of which the controller said on its terminal how they were decided."""
    told = re.findall(r"^ *(\d+)  (?:crowned|discarded|baseline)", ended.err, re.MULTILINE)
    return {int(number) for number in told}


def judge(bench: Bench, ended: Ended) -> list[str]:
    expected, runs = reference(bench)
    found, before = readable(bench)
    again = bench.run()
    _, after = readable(bench)
    found += bench.problems(expected, 1, runs)
    found += [f"hung: {ended}"] if ended.code is None else []
    found += [f"traceback: {ended.err[-400:]}"] if ended.spilled else []
    found += [f"after: {again.code} {again.said}"] if again.code != 0 or again.spilled else []
    found += [f"lost {lost}" for lost in [before.items() - after.items()] if lost]
    found += [f"told and lost {lost}" for lost in [acknowledged(ended) - before.keys()] if lost]
    return found


def disk(
    stride: int = 1, kinds: Sequence[str] = KINDS, *, source: Path | None = None, trials: int = 4, most: int = 10**6
) -> bool:
    """`most`: points of a kind and error."""
    points, bad, codes, since = 0, 0, Counter[int | None](), time.monotonic()
    with scratch() as base:
        for kind in kinds:
            for error, lasting in ERRORS:
                k, came = 1, 1
                while came and k <= stride * most:
                    bench = Bench(base / f"{kind}{error}{k}", trials, pace="0", source=source)
                    ended, came = fail(bench, kind, error, f"{k}{lasting}")
                    if came:
                        points, codes[ended.code] = points + 1, codes[ended.code] + 1
                        found = judge(bench, ended)
                        bad += bool(found)
                        if found:
                            report(f"{kind} {error} {k}{lasting}", False, "; ".join(found))
                    k += stride
                print(f"  {kind} {error}: to {k - stride}", flush=True)
    seen = f"{points} points, {bad} bad, exit codes {dict(codes)}, {time.monotonic() - since:.0f} s"
    return report("disk", not bad and points > 0, seen)


def main(words: Sequence[str]) -> bool:
    if missing("strace") or not all(word.isdigit() for word in words[:1]):
        print(__doc__, f"missing: {missing('strace')}", file=sys.stderr)
        os._exit(2)
    return disk(int((*words, "1")[0]), words[1].split(",") if len(words) > 1 else KINDS)


if __name__ == "__main__":
    began()
    sys.exit(not main(sys.argv[1:]))
