"""Every seam: what others implement, as callables where one will do and as ports where the world is touched.

Thought (`Propose`, `Measure`, `Decide`, `Enough`, `Read`) takes values and returns values or flows. Ports (`Executor`,
`Model`, `Ledger`) do, and decide nothing. A double and a conformance suite for each stand in `testing.py`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

import msgspec

from metaloop.events import Alerted, Directed, Entry, Event, Reply, Why
from metaloop.flow import Flow, Prompt
from metaloop.study import Round, Study, Trial, View
from metaloop.terms import Limits
from metaloop.values import Decision, Failed, Headline, Panel, Proposal, Ran, Result, Score

# ---- thought ---------------------------------------------------------------------------------------------------------

Propose: TypeAlias = Callable[[View], Flow[Sequence[Proposal]]]
"""Proposes a round. Empty: nothing is left that is worth trying. Proposals are checked against the space by others."""

Measure: TypeAlias = Callable[[View, Sequence["Measurement"]], Flow["tuple[Score | None, ...] | Verdict"]]
"""Scores a round's trials, in slot order, from their settled runs; may ask for more `Runs` of the same candidates. A
panel of judges says besides how it came to that.
"""

Confirm: TypeAlias = Callable[[View], Flow[Headline]]
"""Best against baseline, once more, on fresh seeds: the end of a study."""

Decide: TypeAlias = Callable[[Study, Round], Decision]
"""What is kept and crowned, and why, in words a person would accept."""

Notice: TypeAlias = Callable[[Study, Round], Sequence[Alerted | Directed]]
"""What a person should know when this round is decided, and whether the study waits for that person."""

Read: TypeAlias = Callable[["Outcome"], "Ran | Failed"]
"""What a process left behind, as a result. Strict: a number that is not finite and plain is no number."""


class Measurement(msgspec.Struct, frozen=True):
    """A trial of the round that is to be scored, and what its first look came to (None: it never ran)."""

    trial: int
    first: Result | None


class Verdict(msgspec.Struct, frozen=True):
    """A round's scores, in slot order, and the panel that gave them."""

    scores: tuple[Score | None, ...]
    panel: Panel


class Ending(msgspec.Struct, frozen=True):
    """A reason to stop: `reason` for programs, `why` for people."""

    reason: Why
    why: str


class Watch(Protocol):
    """Looks at trials while they run. Pure: `before` is what an earlier `hear` gave of the same run."""

    def hear(self, text: str, before: object) -> tuple[object, tuple[tuple[int, float], ...]]:
        """The new part of a progress file: what to remember, and the reports that it adds."""
        ...

    def doomed(self, study: Study, trial: Trial) -> str:
        """Why the trial cannot win any more, in plain words; empty while it can, or nobody can tell."""
        ...


class Thought(msgspec.Struct, frozen=True):
    """All that a study thinks with: put together once, for running, resuming and auditing alike."""

    propose: Propose
    measure: Measure
    confirm: Confirm
    decide: Decide
    read: Read
    watch: Watch | None = None
    notice: "Notice | None" = None


# ---- jobs ------------------------------------------------------------------------------------------------------------


GATE = "gate-"
"""What the names of steps that are gates begin with."""


class Walls(msgspec.Struct, frozen=True):
    """What a step's process tree may reach of the machine. Paths are absolute; of two, the deeper one holds.

    `host`: it sees all there is, read-only, but for what is `hidden`; otherwise it sees what `read` and `write` name,
    and what any program needs. `network`: it has the machine's own; otherwise nothing but a loopback of its own, where
    the rung can give one. `devices`: it has all of /dev, as GPUs need. `scratch`: bytes that its own /tmp may hold;
    None where /tmp is the machine's.
    """

    host: bool = False
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    network: bool = False
    devices: bool = False
    scratch: int | None = 64 << 20


class Step(msgspec.Struct, frozen=True):
    """One command of a job. `name` is `check`, `train`, `outputs`, `evaluate`, `holdout`, `prepare`, `agent`, or
    `gate-NAME`; seconds of wall clock it may take.

    `env` is added to the job's for this step alone. `cwd`: where it runs, the job's own where it is empty. `fresh`: its
    HOME and TMPDIR are its own, `NAME.home` and `NAME.tmp` in the job's folder; otherwise all steps share `home` and
    `tmp`. `walls`: what it may reach; None for everything.
    """

    name: str
    argv: tuple[str, ...]
    timeout_s: float
    env: dict[str, str] = {}
    cwd: str = ""
    walls: Walls | None = None
    fresh: bool = False


class Job(msgspec.Struct, frozen=True):
    """One attempt of one run: steps in order, each a fresh process tree; the first that fails is the last.

    `dir` does not exist yet: it becomes the attempt's own folder (stdout and stderr of each step, HOME, TMPDIR,
    metrics, progress). `nonce` is never used twice. `env` is all the environment there is: nothing is inherited.
    """

    nonce: str
    lane: int
    dir: str
    cwd: str
    env: dict[str, str]
    steps: tuple[Step, ...]
    limits: Limits = Limits()
    grace_s: float = 0.0
    metrics: str = "metrics.json"
    """The file in `dir` that is read as the metrics file, after the last step that is no gate."""


class StepOutcome(msgspec.Struct, frozen=True):
    """How one step ended. `limit` names the limit that ended it: wall, output, memory, processes, stopped.

    `stdout` and `stderr` are decoded with replacement and bounded: the head and the tail are kept. `lost`: bytes of
    them that the disk did not take.
    """

    name: str
    exit: int | None
    signal: int | None
    limit: str | None
    seconds: float
    stdout: str
    stderr: str
    lost: int = 0


class Outcome(msgspec.Struct, frozen=True):
    """All that is left of an attempt once nothing of it lives. `metrics`: the metrics file's text, None without one.

    `metrics_problem` says why a metrics file that exists was not read (no regular file, too big).
    `output`: SHA-256 of stdout, stderr and metrics, by file name.
    """

    steps: tuple[StepOutcome, ...]
    metrics: str | None = None
    metrics_problem: str = ""
    output: dict[str, str] = {}


class Running(msgspec.Struct, frozen=True):
    """It runs; or it waits at its gate (`blocked`) and runs once released."""

    blocked: bool = False


class Gone(msgspec.Struct, frozen=True):
    """Nothing of it runs, there is no outcome, and there never will be."""


class Executor(Protocol):
    """Starts jobs, finds them again by handle, and ends them. A handle is text and survives a restart of ours.

    All of it is idempotent. `start` raises `errors.Refusal` when it will not start the job; then nothing of it exists.
    """

    async def start(self, job: Job) -> str:
        """The process exists and is blocked: it runs only after `release`, and never if we die before."""
        ...

    async def release(self, handle: str) -> None: ...

    async def look(self, handle: str) -> Running | Outcome | Gone:
        """Where the job is now. An outcome is given again as often as it is asked for."""
        ...

    async def wait(self, handle: str) -> Outcome | Gone:
        """Until the job is over and its whole tree is dead."""
        ...

    async def read(self, handle: str, name: str, offset: int) -> bytes:
        """What stands from `offset` on in a file that the job writes in its folder: 1 MiB at most, and b"" for none."""
        ...

    async def stop(self, handle: str) -> Outcome | Gone:
        """Ends the whole tree now; its outcome names the limit `stopped`, unless it was over before."""
        ...

    async def close(self, *, keep: bool = False) -> None:
        """Lets go. Unless `keep`, whatever still runs is ended."""
        ...


# ---- the rest of the world -------------------------------------------------------------------------------------------


class Reached(msgspec.Struct, frozen=True):
    """What came of asking a provider for the list of its models. `status`: that of HTTP, 0 for no answer. `models`:
    those listed; None where nothing was listed that can be read, as by servers that have no list. `problem`: what the
    provider said, or why it said nothing.
    """

    status: int
    models: tuple[str, ...] | None = None
    problem: str = ""


class Model(Protocol):
    """Answers a prompt. Retries, deadlines and rate limits are its own affair; it returns, it does not raise."""

    async def complete(self, prompt: Prompt) -> Reply: ...


class Bench(msgspec.Struct, frozen=True):
    """Where a coding agent works: its directory; what it is told, and a file with that."""

    cwd: str
    brief: str
    file: str


class Workspace(Protocol):
    """Directories in which trials of a code study run, one a lane. Nothing of the user's is touched."""

    async def open(self, lane: int, overlay: Mapping[str, str]) -> str:
        """The lane's directory, with exactly the base and these files over it: texts by path."""
        ...

    async def adopt(self, lane: int, overlay: Mapping[str, str]) -> str:
        """The same, where a trial runs in it that another controller began: nothing is touched."""
        ...

    async def scoring(self, lane: int) -> str:
        """A directory for what scores the lane's trial: the base, with what no candidate sees, without what one may
        change. It stays as it is until it is asked for again.
        """
        ...

    def linked(self, *, scoring: bool = False) -> Sequence[str]:
        """What links in trials' directories, or in those for scoring, lead to, outside of them."""
        ...

    async def touched(self, lane: int, paths: Collection[str]) -> Sequence[str] | None:
        """Those of `paths` that are not what they were when the directory was opened, or in that for scoring; None
        where the trial's own is gone.
        """
        ...

    async def bench(self, lane: int, overlay: Mapping[str, str], brief: str) -> Bench:
        """The lane's directory for a coding agent: the same files, in a repository with one commit."""
        ...

    async def written(self, lane: int) -> tuple[Mapping[str, str | None], Sequence[str]]:
        """The files of a bench that differ now, by path, None for one that is gone; and those that were not there.

        Raises errors.UsageError for what no candidate can have: links, too much, no text.
        """
        ...

    async def close(self) -> None:
        """Lets go: every directory that was opened or adopted is removed. What a controller before us left goes too,
        unless something still runs in it and nothing was opened here.
        """
        ...


class Ledger(Protocol):
    """The log. `append` is atomic and durable: all of it or nothing, and when it returns, it stays."""

    def append(self, at: float, *events: Event) -> Sequence[Entry]: ...

    def read(self, after: int = 0, upto: int | None = None) -> Iterator[Entry]: ...


Verbosity: TypeAlias = Literal["all", "kept", "none"]
