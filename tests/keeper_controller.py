"""A controller in small: starts trials in lanes, writes down what happened, and goes on where it was killed.

usage: keeper_controller.py WORKSPACE LANES TRIALS    (dies by SIGKILL at the point named in CRASH, as POINT:TRIAL)
"""

import asyncio
import json
import os
import random
import secrets
import signal
import sys
from pathlib import Path

from metaloop.adapters.local import LocalExecutor
from metaloop.roles import Gone, Job, Step

SCRIPT = """echo begin {trial} >> runs
setsid sh -c 'trap "" TERM; echo $$ >> daemons; sleep 600' </dev/null >/dev/null 2>&1 &
sleep {seconds}
echo end {trial} >> runs"""


class Book:
    """A ledger in small: a line a fact, durable before anybody goes on; a torn line at the end is none."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        text = path.read_bytes()
        os.ftruncate(self.file, text.rfind(b"\n") + 1)
        self.facts = [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]

    def append(self, **fact) -> None:
        os.write(self.file, json.dumps(fact).encode() + b"\n")
        os.fsync(self.file)


def point(name: str, trial: int) -> None:
    if os.environ.get("CRASH") == f"{name}:{trial}":
        os.kill(os.getpid(), signal.SIGKILL)


def job(workspace: Path, lane: int, trial: int) -> Job:
    nonce = secrets.token_hex(8)
    script = SCRIPT.format(trial=trial, seconds=random.Random(trial).uniform(0.02, 0.2))
    steps = (Step("train", ("sh", "-c", script), 30.0),)
    env = {"PATH": os.environ["PATH"]}
    return Job(nonce, lane, str(workspace / f"{trial}-{nonce}"), str(workspace), env, steps)


async def run(executor, book, workspace, lane, trial, handle) -> None:
    found = await executor.wait(handle) if handle else Gone()
    while isinstance(found, Gone):
        handle = await executor.start(job(workspace, lane, trial))
        point("start", trial)
        book.append(fact="started", trial=trial, handle=handle)
        point("recorded", trial)
        await executor.release(handle)
        point("released", trial)
        found = await executor.wait(handle)
    assert found.steps[0].exit == 0, found
    point("result", trial)
    book.append(fact="finished", trial=trial)
    point("finished", trial)


async def main(workspace: Path, lanes: int, trials: int) -> None:
    book = Book(workspace / "book")
    done = {fact["trial"] for fact in book.facts if fact["fact"] == "finished"}
    started = {fact["trial"]: fact["handle"] for fact in book.facts if fact["fact"] == "started"}
    executor = LocalExecutor(workspace / "lanes", idle_s=5)

    async def one(lane: int) -> None:
        for trial in range(lane, trials, lanes):
            if trial not in done:
                await run(executor, book, workspace, lane, trial, started.get(trial))

    print("ready", flush=True)
    await asyncio.gather(*(one(lane) for lane in range(lanes)))
    await executor.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
