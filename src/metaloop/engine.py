"""Folds, plans, performs and appends; thinks nothing and knows no adapter.

One task an act of the world; all of them share one event loop, and what they share is the ledger. Whatever can be
concluded at once is concluded before the commit, so that a trial costs two: what starts it, and what came of it with
all that follows from it.
"""

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import count
from typing import Protocol, TypeAlias

import msgspec
from msgspec.structs import replace

from metaloop.conduct import think, wanted
from metaloop.costs import charged
from metaloop.errors import UsageError
from metaloop.events import (
    Alerted,
    Based,
    Condemned,
    Decided,
    Degraded,
    Directed,
    Engaged,
    Entry,
    Event,
    Fact,
    Faulted,
    Finished,
    Interrupted,
    Replied,
    Reply,
    Reported,
    Resumed,
    RoundOpened,
    Started,
    StudyClosed,
    Vanished,
)
from metaloop.events import StudyOpened as Opened
from metaloop.flow import Exchange
from metaloop.flow import Session as Engagement
from metaloop.jobs import PROGRESS, Surroundings, job, session
from metaloop.plan import Act, AskModel, Close, OpenRound, Settle, StartRun, StopRun, StopSession, Think, WakeAt, plan
from metaloop.policies.told import said, told
from metaloop.roles import Executor, Gone, Ledger, Model, Outcome, Running, StepOutcome, Thought, Watch, Workspace
from metaloop.study import PREPARE, STARTS, Run, Study, evolve, fold, more_is_there
from metaloop.terms import PATCHES, AgentSpec, Gate, Rung, Terms, differences
from metaloop.values import Failed, Pruned, Ran, Result, Stopped, Usage

GRACE_S = 5.0
"""Seconds that a running trial is given to end by itself after the first interrupt."""

LAST_S = 8.0
"""Seconds after which a run that cannot be ended is let go."""

LOOKS = 16
"""So many pieces of a progress file are read at once: a trial may have made it without end."""

LISTEN_S = 0.5
"""How often the progress of a running trial is looked at, where somebody listens."""

MENDABLE = ("prepare_failed", "baseline_failed", "faulted", "proposer_failed")
"""How a study may have ended that is tried anew by the same command: what was wrong lay outside of it."""

BENCHES = 1 << 16
"""The lanes of coding agents are counted from here."""

TOLD = 4000
"""Characters of what an agent printed last that are kept."""

POLL_S = 0.25
"""How often the inbox is looked into."""


class Inbox(Protocol):
    """Requests from other processes. `take` shows them, oldest first; `done` puts one away once it is recorded."""

    def take(self) -> Sequence[Directed]: ...

    def done(self, request: str) -> None: ...


Observer: TypeAlias = Callable[[Sequence[Entry], Study], None]


@dataclass
class World:
    """What the engine acts through. `nonce` gives a new text each time; `now` is a monotonic clock, in seconds.

    `private`: files that no candidate may see and that were not there when `where` was looked at; absolute paths.
    `frozen` says what changed that may not; with anything to say, nothing is started and no result is believed.
    """

    ledger: Ledger
    executor: Executor
    where: Surroundings
    nonce: Callable[[], str]
    now: Callable[[], float]
    model: Model | None = None
    workspace: Workspace | None = None
    inbox: Inbox | None = None
    private: Callable[[], Sequence[str]] = tuple
    frozen: Callable[[], str] = str
    observers: tuple[Observer, ...] = ()


# ---- opening ---------------------------------------------------------------------------------------------------------


def open_study(ledger: Ledger, at_hand: "Session", observers: Iterable[Observer] = ()) -> Study:
    """The study in `ledger`, begun on these terms if it is new; the session is recorded if it has anything to do.

    Raises UsageError where the terms differ from those it was begun on.
    """
    study = fold(ledger.read())
    if study.terms is None:
        based = [at_hand.based] if at_hand.based else []
        commit(ledger, study, 0.0, [Opened(at_hand.terms), at_hand.resumed, *based], observers)
    else:
        policy = study.terms.policy if at_hand.any_policy else at_hand.terms.policy
        check_terms(study.terms, replace(at_hand.terms, policy=policy), study.tally.measured > 0)
        _check_rung(study.sandbox, at_hand)
        resumed = replace(at_hand.resumed, more=_more(study, at_hand.resumed))
        if not _finished(study, resumed):
            commit(ledger, study, study.at, [resumed], observers)
    return study


@dataclass(frozen=True)
class Session:
    """What a controller brings: the terms it was given, what it records of itself, and the base of a code study.

    `any_policy`: the terms name a policy that nobody asked for; a study that began with another one keeps it. `higher`:
    what to do for trials to be held by more than they would be here.
    """

    terms: Terms
    resumed: Resumed
    any_policy: bool = False
    based: Based | None = None
    higher: str = ""


def check_terms(old: Terms, new: Terms, measured: bool = True) -> None:
    """Raises UsageError that names every term that is not what it was, and how to begin another study instead."""
    if changed := differences(old, new):
        less = "" if measured else ", or remove its folder (nothing was measured in it)"
        raise UsageError(
            f"study {old.name!r} was begun on other terms: {'; '.join(changed)}. What is measured may not change under "
            f"way: put it back, or begin a new study with --name {old.name}-2{less}"
        )


def _check_rung(before: Rung | None, at_hand: Session) -> None:
    """Raises UsageError where trials would be held by less than those before them, and nobody said so."""
    rung, level = at_hand.resumed.sandbox, at_hand.resumed.bounds.sandbox.level
    if before and rung and level == "auto" and rung.height < before.height:
        raise UsageError(
            f"target.sandbox: expected {before.name}, in which this study's trials ran so far, found {rung.name}: "
            f"{at_hand.higher}; or say target.sandbox: {{level: {rung.name}}}, if that is enough"
        )


def _finished(study: Study, resumed: Resumed) -> bool:
    """Whether a closed study has nothing to do in this session either: then not a byte is written."""
    closed = study.closed
    if closed is None or resumed.mode == "one" or closed.reason in MENDABLE:
        return False
    caps = [(bounds.max_cost_usd, bounds.max_tokens) for bounds in (study.bounds, resumed.bounds)]
    again = copy(study)
    again.bounds, again.closed, again.stop, again.mode, again.faults = resumed.bounds, None, None, "run", 0
    again.session_faults = 0
    again.abandoned = study.abandoned if caps[0] == caps[1] else None
    if resumed.more:
        more_is_there(again)
    acts = plan(again, study.at)
    return bool(acts) and isinstance(acts[0], Close)


def _more(study: Study, resumed: Resumed) -> bool:
    """Whether nothing was left to try, and patches have come since."""
    patches = {name for name in resumed.texts if name.startswith(PATCHES)}
    return bool(study.tally.exhausted) and not patches <= study.texts.keys()


def commit(
    ledger: Ledger, study: Study, at: float, events: Sequence[Event], observers: Iterable[Observer]
) -> Sequence[Entry]:
    """Facts made durable, folded, and shown: in this order."""
    entries = ledger.append(at, *events)
    for entry in entries:
        evolve(study, entry)
    for observe in observers:
        observe(entries, study)
    return entries


async def placed(
    study: Study,
    workspace: Workspace | None,
    where: Surroundings,
    trial: int,
    lane: int,
    private: Callable[[], Sequence[str]] = tuple,
) -> Surroundings:
    """Where a run happens: the trial's own directory, made for it, in a code study; else where all do, with what has
    come to be `private` since it was looked at.
    """
    if trial == PREPARE:
        return where
    if where.ground is not None:
        where = dataclasses.replace(where, ground=where.ground.without(private()))
    if workspace is None:
        return where
    scoring = await workspace.scoring(lane) if study.the_terms.tier == "separate" else ""
    cwd = await workspace.open(lane, study.overlay(study.trials[trial].change))
    linked, scored = tuple(workspace.linked()), tuple(workspace.linked(scoring=True))
    return dataclasses.replace(where, cwd=cwd, scoring=scoring, linked=linked, scored=scored)


async def amiss(study: Study, workspace: Workspace | None, trial: int, lane: int) -> Failed | None:
    """Why a run's score is not the candidate's: it changed what it was made of, or nobody can tell any more."""
    if workspace is None or trial == PREPARE:
        return None
    terms, own = study.the_terms, {*study.base, *study.trials[trial].change.files}
    frozen = {*terms.frozen, *terms.sealed, *terms.programs} - own
    touched = await workspace.touched(lane, {*frozen, *own})
    if touched is None:
        return Failed("lost", "its directory is gone, so nobody can tell what was measured")
    what = [f"{path}: {'a frozen file' if path in frozen else 'the code'} was changed while it ran" for path in touched]
    return Failed("cheating", what[0]) if what else None


def awaited(study: Study, reply: Replied) -> bool:
    """Whether somebody still waits for this reply."""
    round = study.open.get(reply.round)
    exchanges = round.asked[reply.stage] if round else []
    return reply.index < len(exchanges) and reply.member in exchanges[reply.index].missing()


# ---- running ---------------------------------------------------------------------------------------------------------


def spent(step: StepOutcome) -> Usage:
    """What a session took, as far as it told."""
    return replace(told(step.stdout), seconds=step.seconds)


def _ended(step: StepOutcome, spec: AgentSpec | None) -> str:
    """How a session ended that did not end well, and what it said last."""
    how = f"exit code {step.exit}"
    if step.limit:
        how = f"it went over its limit of {step.limit}"
    if step.limit == "wall" and spec is not None:
        how = f"it took longer than policy.agent.timeout_s ({spec.timeout_s:g} s)"
    last = (step.stderr.strip() or (said(step.stdout).strip() if step.exit else ""))[-300:]
    return f"{how}: {last}" if last else how


class Engine:
    """Runs one study until it closes, or until it is interrupted."""

    def __init__(self, study: Study, thought: Thought, world: World) -> None:
        self.study, self.thought, self.world = study, thought, world
        self._began, self._base = world.now(), study.at
        self._facts: list[Fact] = []
        self._bell = asyncio.Event()
        self._tasks: dict[object, asyncio.Task[None]] = {}
        self._lanes: dict[object, int] = {}
        self._benches: dict[object, int] = {}
        self._stops: dict[tuple[int, int], Stopped | Pruned] = {}
        self._until: float | None = None
        self._given_up = float("inf")
        self._wake = float("inf")

    @property
    def at(self) -> float:
        """Study seconds: the time for which a lease was held."""
        return self._base + self.world.now() - self._began

    async def run(self) -> StudyClosed | None:
        """How the study closed; None when it was interrupted. What a task raises is raised here."""
        try:
            while True:
                self._take_requests()
                left = self._conclude()
                self._hang_up()
                if self.study.closed is not None and not self._tasks:
                    return self.study.closed
                if self._until is None:
                    self._launch(left)
                elif not self._tasks or self.world.now() > self._given_up:
                    if self.study.closed is None:
                        self._append(Interrupted("interrupted"))
                    return None  # whatever does not even end now is left to `close`, and found again by its handle
                else:
                    self._cut()
                await self._news()
        except UsageError as error:  # something has to be mended by hand: the time until then counts
            if self.study.closed is None:
                self._append(Interrupted(str(error)))
            raise
        finally:
            await self._abandon()

    def interrupt(self, grace_s: float = GRACE_S) -> None:
        """Nothing new is begun; what runs is given `grace_s` seconds, then ended, and runs again on resume."""
        self._until = min(self._until or float("inf"), self.world.now() + grace_s)
        if self.study.degraded:
            self._cancel_asks()
        self._bell.set()

    def degraded(self, role: str, why: str) -> None:
        """Records that nobody plays `role` for now, and why; with nothing to say, that somebody does again."""
        self._facts.append(Degraded(role, why))
        self._bell.set()

    def alert(self, role: str, what: str) -> None:
        """Records what a person should know of whoever plays `role`."""
        self._facts.append(Alerted(f"{role}: {what}"))
        self._bell.set()

    def _hang_up(self) -> None:
        """A study that is closed waits for no reply."""
        if self.study.closed is not None:
            self._cancel_asks()

    def _cancel_asks(self) -> None:
        """Not so sessions: those are ended, which is recorded."""
        for act, task in self._tasks.items():
            if isinstance(act, AskModel) and act not in self._benches:
                task.cancel()

    # ---- thought, recorded

    def _conclude(self) -> tuple[Act, ...]:
        """Everything that follows from what is known, in one commit; what is left to do then."""
        facts, self._facts = self._facts, []
        staged: list[Event] = []
        at = self.at
        left = self._settle(staged, at)
        for fact in facts:  # one after the other: what follows from the first comes before the second
            if isinstance(fact, Replied) and not awaited(self.study, fact):
                continue  # its round was given up, or the study closed: it is charged at its worst already
            self._stage(staged, fact, at)
            left = self._settle(staged, at)
        if staged:
            entries = self.world.ledger.append(at, *staged)
            for observe in self.world.observers:
                observe(entries, self.study)
        return left

    def _settle(self, staged: list[Event], at: float) -> tuple[Act, ...]:
        """Stages all that can be concluded now; the acts that are left have to be done."""
        while True:
            acts = plan(self.study, at)
            if not (new := self._step(acts)):
                return acts
            for event in new:
                self._stage(staged, event, at)

    def _stage(self, staged: list[Event], event: Event, at: float) -> None:
        evolve(self.study, Entry(self.study.place + 1, at, 0.0, event))  # type: ignore[arg-type]  # one of the facts
        staged.append(event)

    def _step(self, acts: Sequence[Act]) -> tuple[Event, ...]:
        """The facts of the first act that only has to be thought; empty when there is none."""
        for act in acts:
            if (self._until is None or not self._begins(act)) and (events := self._follows(act)):
                return events
        return ()

    def _begins(self, act: Act) -> bool:
        """Whether it is the beginning, or the end, of something: not to be done after an interrupt."""
        return isinstance(act, OpenRound | Close) or (isinstance(act, Think) and self.study.open[act.round].anew)

    def _follows(self, act: Act) -> tuple[Event, ...]:
        study = self.study
        match act:
            case OpenRound():
                return (RoundOpened(act.round, act.role, act.seen, act.trial),)
            case Think():
                return think(study, study.open[act.round], act.stage, self.thought)
            case Settle():
                round = study.open[act.round]
                decided = Decided(act.round, self.thought.decide(study, round))
                return decided, *(self.thought.notice(study, round) if self.thought.notice else ())
            case Close():
                return (StudyClosed(act.ending.reason, act.ending.why),)
            case _:
                return ()

    def _take_requests(self) -> None:
        if self.world.inbox is None:
            return
        for request in self.world.inbox.take():
            if request.request not in self.study.requests:
                self._append(request)
            self.world.inbox.done(request.request)

    def _append(self, *events: Event, at: float | None = None) -> None:
        commit(self.world.ledger, self.study, self.at if at is None else at, events, self.world.observers)

    # ---- deeds, as tasks

    def _launch(self, acts: Sequence[Act]) -> None:
        """A task for every deed that is not under way."""
        self._wake = float("inf")
        for act in acts:
            match act:
                case WakeAt():
                    self._wake = min(self._wake, act.at)
                case StartRun() if act not in self._tasks and (lane := self._lane(act)) is not None:
                    self._lanes[act] = lane
                    self._task(act, self._see_through(act, lane))
                case StopRun() if act not in self._tasks:
                    why = Pruned(act.why) if act.by == "prune" else Stopped(act.by, act.why)
                    self._task(act, self._stop(act.trial, act.run, why))
                case AskModel() if act not in self._tasks:
                    self._task(act, self._ask(act))
                case StopSession() if act not in self._tasks:
                    self._task(act, self._end(self.study.open[act.round].asked[act.stage][act.index].handle))
                case _:
                    pass

    def _task(self, key: object, work: "asyncio._CoroutineLike[None]") -> None:
        task = self._tasks[key] = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(lambda _: self._bell.set())

    def _lane(self, act: StartRun) -> int | None:
        """The lane it runs in already, or a free one; None while there is none."""
        run = self.study.run(act.trial, act.run)
        if run.running:
            return run.lane
        free = set(range(self.study.bounds.lanes)) - set(self._lanes.values())
        return min(free, default=None)

    async def _see_through(self, act: StartRun, lane: int) -> None:
        """One run, from wherever it stands to its end."""
        run = self.study.run(act.trial, act.run)
        inherited = run.running
        if inherited:
            await self._adopt(act, run.lane)
        elif not await self._start(act, run, lane):
            return
        outcome = await self._follow(act, run.handle)
        while (
            isinstance(outcome, Gone) and inherited and run.attempt < STARTS
        ):  # lost with its controller: not its fault
            if not await self._start(act, run, lane):
                return
            inherited = False
            outcome = await self._follow(act, run.handle)
        self._finish(act, run, outcome, await amiss(self.study, self.world.workspace, act.trial, lane))

    async def _start(self, act: StartRun, run: Run, lane: int) -> bool:
        """Blocked, recorded, released. False if we are told to stop before it is recorded: then it never ran."""
        self._check_frozen()
        world, attempt = self.world, run.attempt + 1
        try:
            where = await placed(self.study, world.workspace, world.where, act.trial, lane, world.private)
        except UsageError as error:  # no directory can hold this candidate
            failed = Failed("build", str(error))
            self._append(Started(act.trial, act.run, attempt, lane, ""), Finished(act.trial, act.run, attempt, failed))
            self._bell.set()
            return False
        gates = self._gates(act)
        wanted = job(self.study, act.trial, act.run, attempt=attempt, lane=lane, nonce=world.nonce(), where=where)
        handle = await world.executor.start(wanted)
        at = self.at
        unwanted = self._until is not None or act not in plan(self.study, at)  # an interrupt, a stop, the end of time
        if unwanted or gates != self._gates(act):
            await world.executor.stop(handle)
            return False
        self._append(Started(act.trial, act.run, attempt, lane, handle), at=at)
        await world.executor.release(handle)
        return True

    def _gates(self, act: StartRun) -> tuple[Gate, ...]:
        """What a run has to pass, as the ledger says it where its start stands."""
        return () if act.trial == PREPARE or act.run else self.study.gates_of(act.trial)

    async def _follow(self, act: StartRun, handle: str) -> Outcome | Gone:
        """Until the run is over. What it reports on its way is recorded, where somebody listens."""
        state = await self.world.executor.look(handle)
        if isinstance(state, Running) and state.blocked:
            await self.world.executor.release(handle)
        if self.thought.watch is None or act.trial == PREPARE or act.run:
            return await self.world.executor.wait(handle)
        over = asyncio.ensure_future(self.world.executor.wait(handle))
        try:
            await self._listen(self.thought.watch, act, handle, over)
            return await over
        finally:
            over.cancel()

    async def _listen(self, watch: Watch, act: StartRun, handle: str, over: asyncio.Future[Outcome | Gone]) -> None:
        """Records reports until the run is over and all are read; whether it can still win is thought through."""
        offset, heard, ended = 0, None, False
        while not ended:
            ended = bool((await asyncio.wait([over], timeout=LISTEN_S))[0])
            for _ in range(LOOKS):
                if not (data := await self.world.executor.read(handle, PROGRESS, offset)):
                    break
                await asyncio.sleep(0)
                offset += len(data)
                heard, reports = watch.hear(data.decode(errors="replace"), heard)
                self._heard(watch, act, reports, ended)

    def _heard(self, watch: Watch, act: StartRun, reports: Sequence[tuple[int, float]], ended: bool) -> None:
        trial = self.study.trials[act.trial]
        known = trial.reports[-1][0] if trial.reports else -1
        if not (new := tuple(report for report in reports if report[0] > known)):
            return
        self._append(Reported(act.trial, act.run, new))
        if ended or trial.role != "search" or act.trial in self.study.condemned:
            return
        if why := watch.doomed(self.study, trial):
            self._append(Condemned(act.trial, act.run, why))
            self._bell.set()

    def _check_frozen(self) -> None:
        if problem := self.world.frozen():
            raise UsageError(f"{problem}, and the study stops here: put it back, and the same command goes on")

    async def _adopt(self, act: StartRun, lane: int) -> None:
        if self.world.workspace is not None and act.trial != PREPARE:
            await self.world.workspace.adopt(lane, self.study.overlay(self.study.trials[act.trial].change))

    def _finish(self, act: StartRun, run: Run, outcome: Outcome | Gone, amiss: Failed | None) -> None:
        self._check_frozen()
        stopped = self._stops.pop((act.trial, act.run), None)
        if isinstance(outcome, Gone):
            result: Result = stopped or Failed("lost", "it vanished, and nothing is left of it")
            self._facts.append(Finished(act.trial, act.run, run.attempt, result))
            return
        last = outcome.steps[-1]
        result = self.thought.read(outcome)
        if stopped and last.limit == "stopped":
            result = replace(stopped, seconds=sum(step.seconds for step in outcome.steps))
        if amiss is not None and isinstance(result, Ran):
            result = replace(amiss, seconds=result.seconds)
        self._facts.append(Finished(act.trial, act.run, run.attempt, result, last.exit, outcome.output))

    async def _stop(self, trial: int, run: int, why: Stopped | Pruned) -> None:
        handle = self.study.run(trial, run).handle
        self._stops[trial, run] = why
        if handle:
            await self.world.executor.stop(handle)

    async def _ask(self, act: AskModel) -> None:
        ask = wanted(self.study, act, self.thought)
        if isinstance(ask, Faulted):
            if handle := self.study.open[act.round].asked[act.stage][act.index].handle:
                await self.world.executor.stop(handle)  # an agent that works on what nobody wants any more
            self._facts.append(ask)
            return
        if isinstance(ask, Engagement):
            if (reply := await self._engage(act, ask)) is None:
                return
        else:
            assert self.world.model is not None, "a policy asks, and no model was given"
            reply = await self.world.model.complete(ask)
        fact = Replied(act.round, act.stage, act.index, act.member, reply)
        self._facts.append(fact)  # in two steps: while it waited, `_facts` became another list

    # ---- a coding agent

    async def _engage(self, act: AskModel, ask: Engagement) -> Reply | None:
        """One session, from wherever it stands to its end. None where it was lost with its controller, or was ended."""
        world, exchange = self.world, self.study.open[act.round].asked[act.stage][act.index]
        spec, workspace = self.study.bounds.agent, world.workspace
        assert spec is not None, "a policy sets an agent to work, and none was given"
        assert workspace is not None
        overlay = {path: self.study.contents[name] for path, name in ask.files.items()}
        lane = self._benches[act] = exchange.lane if exchange.handle else self._bench()
        try:
            if exchange.handle:
                await workspace.adopt(lane, overlay)
                outcome = await world.executor.wait(exchange.handle)
                if isinstance(outcome, Gone):
                    self._append(Vanished(act.round, act.stage, act.index))
                    return None
            else:
                bench = await workspace.bench(lane, overlay, ask.brief)
                job = session(self.study, act.round, lane, world.nonce(), bench, world.where)
                handle = await world.executor.start(job)
                at = self.at
                if self._until is not None or act not in plan(self.study, at):  # an interrupt, or the end of time
                    await world.executor.stop(handle)
                    return None
                self._append(Engaged(act.round, act.stage, act.index, lane, handle, ask.trial), at=at)
                await world.executor.release(handle)
                outcome = await world.executor.wait(handle)
            if not isinstance(outcome, Gone) and outcome.steps[-1].limit == "stopped":
                usage = self._charged(Reply(None, usage=spent(outcome.steps[-1])), exchange, outcome).usage
                self._append(Vanished(act.round, act.stage, act.index, usage))
                return None
            reply = await self._written(lane, spec.command[0], outcome)
            return self._charged(reply, exchange, outcome)
        finally:
            del self._benches[act]

    async def _end(self, handle: str) -> None:
        await self.world.executor.stop(handle)

    def _bench(self) -> int:
        """A lane of its own for an agent, beside those of trials."""
        return next(lane for lane in count(BENCHES) if lane not in self._benches.values())

    async def _written(self, lane: int, who: str, outcome: Outcome | Gone) -> Reply:
        """What a session came to. One that went over its limits counts for what it has written."""
        assert self.world.workspace is not None
        if isinstance(outcome, Gone):
            return Reply(None, problem=f"{who}: it vanished, and nothing is left of it", trouble="outage")
        step, name = outcome.steps[-1], who.rpartition("/")[2]
        problem, files, new = "", dict[str, str | None](), list[str]()
        try:
            found, added = await self.world.workspace.written(lane)
            files, new = dict(found), list(added)
        except UsageError as error:
            problem = str(error)
        if not files and not problem and (step.exit or step.limit):
            problem = f"nothing was changed, and {_ended(step, self.study.bounds.agent)}"
        came = {"files": files, "new": new, "printed": said(step.stdout)[-TOLD:], "problem": problem}
        return Reply(msgspec.json.encode(came).decode(), model=name, usage=spent(step))

    def _charged(self, reply: Reply, exchange: Exchange, outcome: Outcome | Gone) -> Reply:
        """With what the session is charged. What a person should know of that is said, the same thing once."""
        step = None if isinstance(outcome, Gone) else outcome.steps[-1]
        whole = step is not None and step.limit is None and step.exit is not None
        usage, notice = charged(reply.usage, exchange.worst, whole)
        if notice and f"agent: {notice}" not in self.study.alerts:
            self.alert("agent", notice)
        return replace(reply, usage=usage)

    # ---- waiting

    async def _news(self) -> None:
        """Until a task ends, somebody rings, or it is time. Then puts away what ended; raises what it raised."""
        soon = POLL_S if self.world.inbox is not None else 3600.0
        ends = min(self._until or float("inf"), self._given_up)
        for moment in (self._wake - self.at, ends - self.world.now()):
            soon = min(soon, max(0.0, moment))
        alarm = asyncio.get_running_loop().call_later(soon, self._bell.set)
        await self._bell.wait()
        alarm.cancel()
        self._bell.clear()
        for key in [key for key, task in self._tasks.items() if task.done()]:
            self._lanes.pop(key, None)
            task = self._tasks.pop(key)
            if not task.cancelled():
                task.result()

    def _cut(self) -> None:
        """After the grace of an interrupt: whatever runs is stopped, to run again on resume."""
        if self._until is None or self.world.now() < self._until:
            return
        for run in [act for act in self._tasks if isinstance(act, StartRun)]:
            stop = StopRun(run.trial, run.run, "interrupted")
            if stop not in self._tasks and (run.trial, run.run) not in self._stops:
                self._task(stop, self._stop(run.trial, run.run, Stopped("interrupt", "interrupted")))
        for act, handle in self._working().items():
            end = StopSession(act.round, act.stage, act.index)
            if end not in self._tasks:
                self._task(end, self._end(handle))
        self._cancel_asks()
        self._until = float("inf")
        self._given_up = self.world.now() + LAST_S

    def _working(self) -> dict[AskModel, str]:
        """The handles of agents that are at work."""
        found: dict[AskModel, str] = {}
        for act in (act for act in self._benches if isinstance(act, AskModel)):
            asked = self.study.open[act.round].asked[act.stage] if act.round in self.study.open else []
            if act.index < len(asked) and asked[act.index].at_work:
                found[act] = asked[act.index].handle
        return found

    async def _abandon(self) -> None:
        """Nothing of ours goes on after we return; processes of trials do, and are found again by their handles."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
