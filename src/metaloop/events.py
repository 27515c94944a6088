"""Every fact there is, one frozen class each, in the past tense; and the codec that writes and reads them.

An event is complete in itself and readable for ever: a field is added with a default and never renamed, a new meaning
is a new fact. The rows they stand in (`Entry`) add the place in the ledger and the time.
"""

from typing import Literal, TypeAlias

import msgspec

from metaloop import values
from metaloop.terms import Bounds, Gate, Host, Rung, Terms
from metaloop.values import Decision, Headline, Panel, Proposal, Result, Score, Usage

Role: TypeAlias = Literal["baseline", "search", "directed", "proof", "closing", "holdout"]
Stage: TypeAlias = Literal["propose", "measure"]
Why: TypeAlias = Literal[
    "max_iterations",
    "plateau",
    "wall_clock",
    "no_improvement",
    "forecast",
    "failure_rate",
    "exhausted",
    "target",
    "stopped",
    "prepare_failed",
    "baseline_failed",
    "faulted",
    "directed",
    "cost",
    "proposer_failed",
    "converged",
    "stalled_panel",
]


class Event(msgspec.Struct, frozen=True, tag_field="fact", gc=False):
    """A fact. Subclasses are tagged with their own name."""


class StudyOpened(Event, frozen=True, tag="StudyOpened"):
    """A study began, on these terms."""

    terms: Terms


class Resumed(Event, frozen=True, tag="Resumed"):
    """A controller took the lease: at the first start and at every later one.

    `mode` is `run`, or `one` for a controller that only carries out what was directed. `rung`: what isolates trials,
    in words; `sandbox`: by what of the ladder.
    `texts`: what policies that ask put into their prompts, by name: the prompts themselves, the task, the source.
    `more`: nothing was left to try, and now there is something that was not there.
    """

    bounds: Bounds
    host: Host
    version: str
    rung: str
    config: str
    mode: Literal["run", "one"] = "run"
    texts: dict[str, str] = {}
    more: bool = False
    sandbox: Rung | None = None


class Based(Event, frozen=True, tag="Based"):
    """What every candidate of a code study is a change of: the content hash of the whole folder, and the files that may
    be changed: their digests by path, their `texts` by digest. `others`: paths of what else there is, which may not;
    empty where there are too many.
    """

    tree: str
    files: dict[str, str]
    texts: dict[str, str]
    others: tuple[str, ...] = ()


class RoundOpened(Event, frozen=True, tag="RoundOpened"):
    """Round `round` began; it thinks from what stood in the ledger up to place `seen`. A proof is of `trial`, and so is
    a round on held-out data.
    """

    round: int
    role: Role
    seen: int
    trial: int | None = None


class Asked(Event, frozen=True, tag="Asked"):
    """The intent to ask: digests of the prompts that the flow of `stage` yielded as its `index`-th ask.

    `roles`: who is asked, one a prompt. `worst`: what each may cost at most, which is set aside until it is answered;
    empty for a session of an agent that nothing bounds.
    """

    round: int
    stage: Stage
    index: int
    prompts: tuple[str, ...]
    roles: tuple[str, ...] = ()
    worst: tuple[Usage, ...] = ()


class Abandoned(Event, frozen=True, tag="Abandoned"):
    """The round cannot go on and is as if it had not been opened: an ask that it needs could go over the study's cap
    (`cost`), or will never be answered (`proposer_failed`).
    """

    round: int
    stage: Stage
    reason: Literal["cost", "proposer_failed"]
    why: str


class Degraded(Event, frozen=True, tag="Degraded"):
    """Whoever plays `role` cannot be reached, for this reason; empty: can be again."""

    role: str
    why: str


class Reply(msgspec.Struct, frozen=True):
    """What came back for one prompt; `text` is None where nothing did, and `problem` says why.

    `finish`: `stop` for a whole reply; `length` for one that was cut off; `refusal`, `empty`, `oversize`, or what the
    provider said.
    `trouble`: `outage` where nobody answered in time, and may later; `fatal` where the provider will never answer this.
    """

    text: str | None
    finish: str = "stop"
    model: str = ""
    usage: Usage = Usage()
    problem: str = ""
    trouble: Literal["", "outage", "fatal"] = ""


class Engaged(Event, frozen=True, tag="Engaged"):
    """A coding agent was set to work on the session that was asked for: under this handle, in this lane's directory, on
    the code of this trial.
    """

    round: int
    stage: Stage
    index: int
    lane: int
    handle: str
    trial: int | None = None


class Vanished(Event, frozen=True, tag="Vanished"):
    """The session that an agent was set to work on did not come to its end, for no reason of its own, and is asked for
    anew. It was ended, by an interrupt or with the study, and is charged `usage`; or it is gone with its controller,
    nobody knows what it spent, and it is charged at its worst case.
    """

    round: int
    stage: Stage
    index: int
    usage: Usage | None = None


class Replied(Event, frozen=True, tag="Replied"):
    """Member `member` of an ask was answered."""

    round: int
    stage: Stage
    index: int
    member: int
    reply: Reply


class Proposed(Event, frozen=True, tag="Proposed"):
    """A trial exists."""

    round: int
    trial: int
    proposal: Proposal


class Refused(Event, frozen=True, tag="Refused"):
    """A proposal broke the contract: it took a trial's number, and never ran."""

    round: int
    trial: int
    proposal: Proposal
    refusal: values.Refused


class RunsAsked(Event, frozen=True, tag="RunsAsked"):
    """The intent to run `trial` under these run numbers for round `round`, and `against` beside it. Run 0 is the first
    look; runs of one number share a seed. Run -1 is the one on held-out data.
    """

    round: int
    trial: int
    runs: tuple[int, ...]
    against: int | None = None
    against_runs: tuple[int, ...] = ()


class Started(Event, frozen=True, tag="Started"):
    """A process exists, blocked: it runs only after this is durable. `handle` finds it again after a crash."""

    trial: int
    run: int
    attempt: int
    lane: int
    handle: str


class Reported(Event, frozen=True, tag="Reported"):
    """A running trial told how it goes: (step, value) of the objective, in the order of the steps."""

    trial: int
    run: int
    reports: tuple[tuple[int, float], ...]


class Condemned(Event, frozen=True, tag="Condemned"):
    """A running trial cannot win any more, by what it reported: it is ended, as pruned."""

    trial: int
    run: int
    why: str


class Finished(Event, frozen=True, tag="Finished"):
    """An attempt ended and nothing of it lives. `exit` is None where there was no exit status.

    `output` is the SHA-256 of what it wrote: stdout, stderr and the metrics file, each where there was one.
    """

    trial: int
    run: int
    attempt: int
    result: Result
    exit: int | None = None
    output: dict[str, str] = {}


class Measured(Event, frozen=True, omit_defaults=True, tag="Measured"):
    """One score a trial, in slot order; None where there is nothing to score. `panel`: who judged, and how."""

    round: int
    scores: tuple[Score | None, ...]
    panel: Panel | None = None


class Decided(Event, frozen=True, tag="Decided"):
    """The round is over."""

    round: int
    decision: Decision


class Confirmed(Event, frozen=True, tag="Confirmed"):
    """Best and baseline were measured once more, at the end."""

    round: int
    headline: Headline


class Faulted(Event, frozen=True, tag="Faulted"):
    """The round's thinking broke: a flow raised, or asked something else than it had asked before. It starts again."""

    round: int
    stage: Stage
    reason: str


class Directed(Event, frozen=True, tag="Directed"):
    """A person (or later a director) asked for something from outside. `try` carries a change to run as it is, or as
    `text` a patch of the base, with the parameters of `change`; `kill` the number of the `trial` to end, `hint` as
    `text` what whoever proposes should know; `gate` what has to be passed from now on by every trial, or by `trial` and
    whatever grows from it, and `ungate` as `text` the name of one that need not be passed any more.
    """

    request: str
    op: Literal["stop", "pause", "resume", "try", "kill", "hint", "gate", "ungate"]
    by: str
    why: str = ""
    change: values.Change | None = None
    trial: int | None = None
    text: str = ""
    gate: Gate | None = None


class Alerted(Event, frozen=True, tag="Alerted"):
    """Something a person should know and nothing waits for."""

    text: str


class Invalidated(Event, frozen=True, tag="Invalidated"):
    """Trials that were kept are so no longer: the first was run again, and was not what it had been; the others grew
    from it. `by`: who asked.
    """

    trials: tuple[int, ...]
    by: str
    why: str


class Interrupted(Event, frozen=True, tag="Interrupted"):
    """A controller let go of a study before its end, for this reason. Until then it held the lease."""

    why: str


class StudyClosed(Event, frozen=True, tag="StudyClosed"):
    """The study ended: `reason` for programs, `why` for people."""

    reason: Why
    why: str


Fact: TypeAlias = (
    StudyOpened
    | Resumed
    | Based
    | RoundOpened
    | Asked
    | Abandoned
    | Degraded
    | Engaged
    | Vanished
    | Replied
    | Proposed
    | Refused
    | RunsAsked
    | Started
    | Reported
    | Condemned
    | Finished
    | Measured
    | Decided
    | Confirmed
    | Faulted
    | Directed
    | Alerted
    | Invalidated
    | Interrupted
    | StudyClosed
)


class Entry(msgspec.Struct, frozen=True, gc=False):
    """A fact where it stands: `place` counts from 1, `at` is seconds that a lease was held, `unix` is for display."""

    place: int
    at: float
    unix: float
    event: Fact


_encoder = msgspec.json.Encoder()  # as inserted, never sorted: the order of a space's parameters is part of it
_decoder = msgspec.json.Decoder(Entry)


def encode(entry: Entry) -> bytes:
    """The body of a ledger row: strict JSON (no NaN), the same bytes for the same entry."""
    return _encoder.encode(entry)


def decode(body: bytes | str) -> Entry:
    """Raises msgspec.ValidationError for what no version of this program wrote."""
    return _decoder.decode(body)


def once(event: Event) -> str | None:
    """What may stand in a ledger only once, as a key; None for facts that may come again."""
    match event:
        case StudyOpened() | Based():
            return type(event).__name__
        case RoundOpened() | Decided():
            return f"{type(event).__name__}/{event.round}"
        case Proposed() | Refused():
            return f"Proposed/{event.trial}"
        case Started() | Finished():
            return f"{type(event).__name__}/{event.trial}/{event.run}/{event.attempt}"
        case Directed():
            return f"Directed/{event.request}"
        case _:
            return None
