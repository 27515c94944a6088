"""A whole study in memory: a ledger that can crash, an executor that computes, a model that is scripted, a clock."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from msgspec.structs import replace

from metaloop.engine import Engine, Session, World, open_study
from metaloop.events import (
    Decided,
    Entry,
    Event,
    Finished,
    Reply,
    Resumed,
    RoundOpened,
    Started,
    StudyClosed,
    decode,
    encode,
)
from metaloop.flow import Prompt
from metaloop.jobs import Surroundings
from metaloop.roles import Gone, Job, Model, Outcome, Running, StepOutcome, Thought
from metaloop.terms import Bounds, Host, Terms
from metaloop.values import Scalar


class Crash(BaseException):
    """The controller dies here. No `except Exception` may stop it, as none would stop a SIGKILL."""


class MemoryLedger:
    """`roles.Ledger` over a list that survives us. `crash`: a number of appends after which the next one dies.

    Even numbers die before it is kept, odd ones after: crash 2k and 2k + 1 are the two sides of the k-th append.
    """

    def __init__(self, entries: list[Entry] | None = None, crash: int | None = None) -> None:
        self.entries = [] if entries is None else entries
        self._crash, self.appends = crash, 0

    def append(self, at: float, *events: Event) -> Sequence[Entry]:
        here, self.appends = self.appends, self.appends + 1
        if self._crash == 2 * here:
            raise Crash
        first = len(self.entries) + 1
        new = [Entry(first + i, at, 0.0, event) for i, event in enumerate(events)]  # type: ignore[arg-type]
        self.entries += [replace(entry, event=decode(encode(entry.event))) for entry in new]
        if self._crash == 2 * here + 1:
            raise Crash
        return new

    def read(self, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        return iter(self.entries[after:upto])


@dataclass
class Machine:
    """Where jobs live when controllers die. `function` gives the text that a job prints, from its parameters and seed.

    `executions` counts what really ran, by (trial, run). `order` says which of the jobs in flight ends next: an index
    into them; by default the oldest.
    """

    function: Callable[[dict[str, Scalar], int], str]
    order: Callable[[int], int] = lambda _: 0
    jobs: dict[str, Job] = field(default_factory=dict)
    released: dict[str, bool] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    executions: dict[tuple[str, str], int] = field(default_factory=dict)
    nonces: int = 0

    def nonce(self) -> str:
        self.nonces += 1
        return f"n{self.nonces}"

    def compute(self, handle: str) -> None:
        """The job runs, all at once."""
        job = self.jobs[handle]
        values = json.loads(job.env.get("AR_PARAMS_JSON", "{}"))
        key = (job.env["METALOOP_TRIAL"], job.dir.rpartition("/")[2].partition("-")[0])
        self.executions[key] = self.executions.get(key, 0) + 1
        text = self.function(values, int(job.env["METALOOP_SEED"]))
        exit = 1 if text.startswith("exit ") else 0
        steps = tuple(StepOutcome(step.name, exit, None, None, 1.0, text, "") for step in job.steps)
        self.outcomes[handle] = Outcome(steps)

    def crashed(self) -> None:
        """The controller is dead: what it had not released never runs, and what it had runs on to its end."""
        for handle in [handle for handle in self.jobs if not self.released[handle]]:
            del self.jobs[handle], self.released[handle]
        for handle in self.jobs:
            if handle not in self.outcomes:
                self.compute(handle)


class ComputedExecutor:
    """`roles.Executor` on a `Machine`: no process, no clock, and an order of ends that the machine decides."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._pump: asyncio.Task[None] | None = None

    async def start(self, job: Job) -> str:
        self.machine.jobs[job.nonce], self.machine.released[job.nonce] = job, False
        return job.nonce

    async def release(self, handle: str) -> None:
        self.machine.released[handle] = True

    async def look(self, handle: str) -> Running | Outcome | Gone:
        if handle in self.machine.outcomes:
            return self.machine.outcomes[handle]
        return Running(not self.machine.released[handle]) if handle in self.machine.jobs else Gone()

    async def wait(self, handle: str) -> Outcome | Gone:
        if handle not in self.machine.jobs:
            return Gone()
        if handle not in self.machine.outcomes:
            future = self._waiting[handle] = asyncio.get_running_loop().create_future()
            if self._pump is None or self._pump.done():
                self._pump = asyncio.create_task(self._run())
            await future
        return self.machine.outcomes[handle]

    async def _run(self) -> None:
        """Ends one job at a time, once every lane that can have one has one."""
        while self._waiting:
            for _ in range(10):
                await asyncio.sleep(0)
            handles = list(self._waiting)
            handle = handles[self.machine.order(len(handles)) % len(handles)]
            if handle not in self.machine.outcomes:
                self.machine.compute(handle)
            future = self._waiting.pop(handle)
            if not future.done():
                future.set_result(None)

    async def stop(self, handle: str) -> Outcome | Gone:
        if handle not in self.machine.jobs:
            return Gone()
        if handle not in self.machine.outcomes:
            job = self.machine.jobs[handle]
            stopped = StepOutcome(job.steps[0].name, None, 9, "stopped", 0.5, "", "")
            self.machine.outcomes[handle] = Outcome((stopped,))
        if (future := self._waiting.pop(handle, None)) is not None and not future.done():
            future.set_result(None)
        return self.machine.outcomes[handle]

    async def close(self, *, keep: bool = False) -> None:  # noqa: ARG002
        if self._pump is not None:
            self._pump.cancel()


class ScriptedModel:
    """`roles.Model`: `script` answers a prompt. `asked` counts what was paid for, by digest."""

    def __init__(self, script: Callable[[Prompt], str], asked: dict[str, int] | None = None) -> None:
        self._script, self.asked = script, {} if asked is None else asked

    async def complete(self, prompt: Prompt) -> Reply:
        await asyncio.sleep(0)
        self.asked[prompt.digest()] = self.asked.get(prompt.digest(), 0) + 1
        return Reply(self._script(prompt), model="scripted")


HOST = Host("0123456789abcdef", "Test", "1", "none")


@dataclass
class Lab:
    """One study, its machine and its ledger, driven by as many controllers as it takes."""

    terms: Terms
    thought: Thought
    machine: Machine
    bounds: Bounds = field(default_factory=lambda: Bounds(no_improve_limit=0, max_iterations=12))
    model: Model | None = None
    entries: list[Entry] = field(default_factory=list)
    sessions: int = 0

    def session(self, crash: int | None = None) -> StudyClosed | None:
        """One controller, from start to end. Raises Crash where it was told to."""
        return asyncio.run(self._session(crash))

    def to_the_end(self, crashes: Iterator[int]) -> int:
        """Controllers, each dying where `crashes` says, until one ends; the number of crashes that happened."""
        died = 0
        for crash in crashes:
            try:
                self.session(crash)
                return died
            except Crash:
                died += 1
                self.machine.crashed()
        self.session()
        return died

    async def _session(self, crash: int | None) -> StudyClosed | None:
        self.sessions += 1
        ledger, executor = MemoryLedger(self.entries, crash), ComputedExecutor(self.machine)
        resumed = Resumed(self.bounds, HOST, "test", "none", "", "run")
        study = open_study(ledger, Session(self.terms, resumed))
        where = Surroundings("/study", "/", {}, {})
        clock = iter(range(1 << 60))
        world = World(ledger, executor, where, self.machine.nonce, lambda: next(clock) * 1e-6, self.model)
        try:
            return await Engine(study, self.thought, world).run()
        finally:
            await executor.close()


def told(entries: Sequence[Entry]) -> list[Event]:
    """What happened, without what may differ between a study that crashed and one that did not: who resumed it, which
    attempt of a run it was that counted, and at which place a fact came to stand (`seen` counts decisions instead).
    """
    last = {(e.event.trial, e.event.run): e.event.attempt for e in entries if isinstance(e.event, Started)}
    out: list[Event] = []
    for entry in entries:
        match entry.event:
            case Resumed():
                pass
            case Started(trial, run, attempt):
                if attempt == last[trial, run]:
                    out.append(replace(entry.event, attempt=1, handle=""))
            case Finished():
                out.append(replace(entry.event, attempt=1))
            case RoundOpened():
                known = sum(isinstance(e.event, Decided) for e in entries[: entry.event.seen])
                out.append(replace(entry.event, seen=known))
            case event:
                out.append(event)
    return out


def shuffled(seed: int) -> Callable[[int], int]:
    """An `order` for a Machine: which job ends next, by dice."""
    rng = Random(seed)
    return lambda count: rng.randrange(count)
