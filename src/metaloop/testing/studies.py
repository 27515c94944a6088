"""A whole study in memory: a ledger that can crash, an executor that computes, a model that is scripted, a clock."""

import asyncio
import json
import selectors
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

from msgspec.structs import replace

from metaloop import __version__
from metaloop.engine import Engine, Observer, Session, World, open_study
from metaloop.events import (
    Asked,
    Based,
    Decided,
    Directed,
    Entry,
    Event,
    Finished,
    Interrupted,
    Replied,
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
from metaloop.roles import Bench, Gone, Job, Model, Outcome, Running, Step, StepOutcome, Thought
from metaloop.terms import Bounds, Host, Terms
from metaloop.testing.executors import InProcessExecutor, Kept
from metaloop.testing.providers import tokens
from metaloop.values import Scalar, Usage, digest


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
        self.entries += [decode(encode(entry)) for entry in new]
        if self._crash == 2 * here + 1:
            raise Crash
        return new

    def read(self, after: int = 0, upto: int | None = None) -> Iterator[Entry]:
        return iter(self.entries[after:upto])


@dataclass
class Machine:
    """Where jobs live when controllers die. `function` gives the text that a job prints, from its parameters and seed;
    text that begins with `exit ` is a failure.

    `executions` counts what really ran, by (trial, run): `held` is the run on held-out data. `order` says which of the
    jobs in flight ends next: an index into them; by default the oldest.
    """

    function: Callable[[dict[str, Scalar], int], str]
    runs: Callable[[dict[str, str], dict[str, Scalar], int], str] | None = None
    """The same for code: gets the texts that the candidate has over the base, by path, before the rest."""
    agent: Callable[[str], str] = lambda _: ""
    """The text that a session of a coding agent prints, from its brief, where that is the last word of its command."""
    order: Callable[[int], int] = lambda _: 0
    held: Callable[[dict[str, Scalar]], str] | None = None
    """What the command on held-out data prints, from the candidate's parameters."""
    store: dict[str, Kept] = field(default_factory=dict)
    executions: Counter[tuple[str, str]] = field(default_factory=Counter)
    nonces: Iterator[int] = field(default_factory=count)

    def nonce(self) -> str:
        return f"n{next(self.nonces)}"

    def perform(self, job: Job, step: Step) -> StepOutcome | str:
        """The job's work, all at once."""
        if step.name == "agent":
            text = self.agent(step.argv[-1])
            return StepOutcome(step.name, int(text.startswith("exit ")), None, None, 1.0, text, "")
        values, seed = json.loads(job.env.get("AR_PARAMS_JSON", "{}")), int(job.env["METALOOP_SEED"])
        run = "held" if job.steps[-1].name == "holdout" else job.dir.rpartition("/")[2].partition("-")[0]
        self.executions[job.env["METALOOP_TRIAL"], run] += step is job.steps[0]
        if step.name == "holdout" and self.held:
            text = self.held(values)
        else:
            text = self.runs(json.loads(job.cwd), values, seed) if self.runs else self.function(values, seed)
        return StepOutcome(step.name, int(text.startswith("exit ")), None, None, 1.0, text, "")


class TakingTurns(InProcessExecutor):
    """An executor on a `Machine`: one job ends at a time, in the machine's order, once all lanes that can are busy."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.perform, machine.store)
        self._machine = machine
        self._turns: dict[str, asyncio.Event] = {}
        self._dealer: asyncio.Task[None] | None = None

    async def wait(self, handle: str) -> Outcome | Gone:
        if isinstance(await self.look(handle), Running):
            turn = self._turns.setdefault(handle, asyncio.Event())
            if self._dealer is None or self._dealer.done():
                self._dealer = asyncio.create_task(self._deal())
            await turn.wait()
        return await super().wait(handle)

    async def _deal(self) -> None:
        while self._turns:
            for _ in range(10):
                await asyncio.sleep(0)
            waiting = list(self._turns)
            self._turns.pop(waiting[self._machine.order(len(waiting)) % len(waiting)]).set()

    async def close(self, *, keep: bool = False) -> None:
        if self._dealer is not None:
            self._dealer.cancel()
        await super().close(keep=keep)


class MemoryWorkspace:
    """`roles.Workspace` without a disk: a lane's directory is the JSON of what lies over the base.

    `works`: the files that differ after a session of a coding agent, from its brief. `briefs`: those that survive us,
    by lane.
    """

    def __init__(
        self,
        touched: Sequence[str] = (),
        works: Callable[[str], Mapping[str, str | None]] = lambda _: {},
        briefs: dict[int, str] | None = None,
    ) -> None:
        self._touched, self._works, self._briefs = touched, works, {} if briefs is None else briefs

    async def open(self, lane: int, overlay: Mapping[str, str]) -> str:  # noqa: ARG002 - any lane
        return json.dumps(overlay)

    adopt = open

    async def scoring(self, lane: int) -> str:  # noqa: ARG002 - any lane
        return "{}"

    def linked(self, *, scoring: bool = False) -> Sequence[str]:  # noqa: ARG002 - there are none
        return ()

    async def touched(self, lane: int, paths: Collection[str]) -> Sequence[str] | None:  # noqa: ARG002 - any lane
        return [path for path in self._touched if path in paths]

    async def bench(self, lane: int, overlay: Mapping[str, str], brief: str) -> Bench:
        self._briefs[lane] = brief
        return Bench(await self.open(lane, overlay), brief, "")

    async def written(self, lane: int) -> tuple[Mapping[str, str | None], Sequence[str]]:
        return self._works(self._briefs[lane]), ()

    async def close(self) -> None:
        """There is nothing to let go."""


class MemoryInbox:
    """`engine.Inbox` over a list."""

    def __init__(self, requests: list[Directed]) -> None:
        self._requests = requests

    def take(self) -> Sequence[Directed]:
        return list(self._requests)

    def done(self, request: str) -> None:
        self._requests[:] = [one for one in self._requests if one.request != request]


def based(files: Mapping[str, str], tree: str = "tree") -> Based:
    """The base of a code study with these files that may be changed."""
    digests = {path: digest(text.encode()) for path, text in files.items()}
    return Based(tree, digests, {digests[path]: text for path, text in files.items()})


class ScriptedModel:
    """`roles.Model`: `script` answers a prompt, with a text or with a whole reply, after so many `seconds`.

    `asked` counts what was paid for, by digest.
    """

    def __init__(
        self, script: Callable[[Prompt], str | Reply], asked: dict[str, int] | None = None, seconds: float = 0.0
    ) -> None:
        self._script, self.asked, self._seconds = script, {} if asked is None else asked, seconds

    async def complete(self, prompt: Prompt) -> Reply:
        await asyncio.sleep(self._seconds)
        self.asked[prompt.digest()] = self.asked.get(prompt.digest(), 0) + 1
        said = self._script(prompt)
        if isinstance(said, Reply):
            return said
        read = sum(tokens(message.text) for message in prompt.messages)
        return Reply(said, model="scripted", usage=Usage(self._seconds, read, tokens(said)))


class _Skipping(selectors.DefaultSelector):
    """Waits for nothing: what would be waited is added up."""

    skipped = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(timeout and 0.0)
        self.skipped += 0.0 if found else timeout or 0.0
        return found


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop in which time that would be waited passes at once."""

    def __init__(self) -> None:
        self._waits = _Skipping()
        super().__init__(self._waits)

    def skipped(self) -> float:
        """Seconds that passed so."""
        return self._waits.skipped

    def time(self) -> float:
        return super().time() + self._waits.skipped


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
    texts: dict[str, str] = field(default_factory=dict)
    files: Mapping[str, str] | None = None
    """Of a code study: the files that may be changed."""
    works: Callable[[str], Mapping[str, str | None]] = lambda _: {}
    """What a session of a coding agent leaves otherwise, from its brief."""
    briefs: dict[int, str] = field(default_factory=dict)
    requests: list[Directed] | None = None
    """What people ask for, if anybody listens: whatever is in it is taken out and carried out."""
    observe: Observer | None = None
    """Hears of all that is recorded."""
    skips: bool = False
    """Whether time that would be waited passes at once: only for a study in which nothing is done in threads."""

    def session(self, crash: int | None = None) -> StudyClosed | None:
        """One controller, from start to end. Raises Crash where it was told to."""
        with asyncio.Runner(loop_factory=SkippingLoop if self.skips else None) as runner:
            return runner.run(self._session(crash))

    def to_the_end(self, crashes: Iterator[int]) -> int:
        """Controllers, each dying where `crashes` says, until one ends; the number of crashes that happened."""
        died = 0
        for crash in crashes:
            try:
                self.session(crash)
                return died
            except Crash:
                died += 1
        self.session()
        return died

    async def _session(self, crash: int | None) -> StudyClosed | None:
        self.sessions += 1
        ledger, executor = MemoryLedger(self.entries, crash), TakingTurns(self.machine)
        resumed = Resumed(self.bounds, HOST, __version__, "none", "", "run", self.texts)
        base = None if self.files is None else based(self.files)
        study = open_study(ledger, Session(self.terms, resumed, based=base))
        where = Surroundings("/study", "/", {}, {})
        clock, loop = count(), asyncio.get_running_loop()
        skipped: Callable[[], float] = loop.skipped if isinstance(loop, SkippingLoop) else float
        now = lambda: next(clock) * 1e-6 + skipped()  # noqa: E731
        world = World(ledger, executor, where, self.machine.nonce, now, self.model)
        world.workspace = None if self.files is None else MemoryWorkspace(works=self.works, briefs=self.briefs)
        world.inbox = None if self.requests is None else MemoryInbox(self.requests)
        world.observers = () if self.observe is None else (self.observe,)
        closed = await Engine(study, self.thought, world).run()
        await executor.close()
        return closed


def told(entries: Sequence[Entry]) -> list[Event]:
    """What happened, without what may differ between a study that crashed and one that did not: who resumed it, which
    attempt of a run it was that counted, what was asked and lost, and at which place a fact came to stand (`seen`
    counts decisions instead).
    """
    last = {(e.event.trial, e.event.run): e.event.attempt for e in entries if isinstance(e.event, Started)}
    lost = _lost_asks(entries)
    out: list[Event] = []
    for entry in entries:
        match entry.event:
            case Resumed() | Interrupted():
                pass
            case Asked() if entry.place in lost:
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


def _lost_asks(entries: Sequence[Entry]) -> set[int]:
    """Places of asks that a controller died over: the next one makes them anew."""
    open_: dict[tuple[int, str, int], int] = {}
    lost: set[int] = set()
    for entry in entries:
        match entry.event:
            case Asked(round, stage, index):
                open_[round, stage, index] = entry.place
            case Replied(round, stage, index):
                open_.pop((round, stage, index), None)
            case Resumed():
                lost |= set(open_.values())
                open_.clear()
    return lost


def shuffled(seed: int) -> Callable[[int], int]:
    """An `order` for a Machine: which job ends next, by dice."""
    rng = Random(seed)
    return lambda count: rng.randrange(count)
