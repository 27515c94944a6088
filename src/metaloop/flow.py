"""Thought as a generator: it yields asks, is sent replies, and returns a conclusion.

A flow does nothing to the world. The same study and the same replies give the same asks and the same conclusion, which
is what lets a resumed study think again what it had thought.
"""

from collections.abc import Generator, Sequence
from itertools import islice
from typing import TypeAlias, TypeVar, cast

import msgspec

from metaloop.events import Reply
from metaloop.values import Result, Scalar, Usage, canonical, digest

T = TypeVar("T")


class Message(msgspec.Struct, frozen=True):
    role: str
    text: str


class Prompt(msgspec.Struct, frozen=True):
    """A question to the model that plays `role`. `schema`: a JSON schema that the reply has to satisfy."""

    role: str
    messages: tuple[Message, ...]
    schema: dict[str, object] | None = None

    def digest(self) -> str:
        return digest(canonical(self))[:16]


class Runs(msgspec.Struct, frozen=True):
    """More measurements of `trial`, under these run numbers, and of `against` beside them; runs of one number share a
    seed. Answered with the results, in this order: the trial's, then the other's.
    """

    trial: int
    runs: tuple[int, ...]
    against: int | None = None
    against_runs: tuple[int, ...] = ()

    def wanted(self) -> tuple[tuple[int, int], ...]:
        """(trial, run) of each, in the order of the answer."""
        other = () if self.against is None else tuple((self.against, run) for run in self.against_runs)
        return (*((self.trial, run) for run in self.runs), *other)


class Session(msgspec.Struct, frozen=True):
    """A coding agent at work: what it is told, and the candidate that it starts from. Answered with one reply, whose
    text says which files differ afterwards. `trial`: which one that is, for people.
    """

    brief: str
    values: dict[str, Scalar]
    files: dict[str, str]
    trial: int | None = None

    def digest(self) -> str:
        return digest(canonical({"brief": self.brief, "values": self.values, "files": self.files}))[:16]


Ask: TypeAlias = Prompt | tuple[Prompt, ...] | Runs | Session
Answer: TypeAlias = Reply | tuple[Reply, ...] | tuple[Result, ...]
Flow: TypeAlias = Generator[Ask, Answer, T]


def prompts(ask: Prompt | Session | tuple[Prompt, ...]) -> tuple[Prompt, ...]:
    """The prompts of an ask, whichever way it was put; none of a session."""
    return (ask,) if isinstance(ask, Prompt) else () if isinstance(ask, Session) else ask


def conclude(value: T) -> Flow[T]:
    """The flow that knows the answer already."""
    return value
    yield  # pragma: no cover  (makes this a generator)


def together(flows: Sequence[Flow[T]]) -> Flow[tuple[T, ...]]:
    """Flows side by side, of prompts alone: what they ask at the same time is asked at once."""
    done: dict[int, T] = {}
    wanted: dict[int, Prompt | tuple[Prompt, ...]] = {}

    def go_on(at: int, answer: Answer | None) -> None:
        wanted.pop(at, None)
        try:
            ask = next(flows[at]) if answer is None else flows[at].send(answer)
        except StopIteration as stop:
            done[at] = stop.value
            return
        assert isinstance(ask, Prompt | tuple), "flows that run side by side ask models alone"
        wanted[at] = ask

    for at in range(len(flows)):
        go_on(at, None)
    while wanted:
        asks = sorted(wanted.items())
        replies = iter(cast(tuple[Reply, ...], (yield tuple(p for _, ask in asks for p in prompts(ask)))))
        for at, ask in asks:
            given = tuple(islice(replies, len(prompts(ask))))
            go_on(at, given[0] if isinstance(ask, Prompt) else given)
    return tuple(done[at] for at in range(len(flows)))


class Concluded(msgspec.Struct, frozen=True):
    """The flow returned."""

    value: object


class Waiting(msgspec.Struct, frozen=True):
    """The flow wants to know this, as its `index`-th ask. `missing`: members not yet answered; None: not even asked."""

    ask: Ask
    index: int
    missing: tuple[int, ...] | None


class Differs(msgspec.Struct, frozen=True):
    """The flow asks something else than it had asked."""

    reason: str


class Exchange(msgspec.Struct):
    """One ask of the past as the ledger knows it: digests of prompts, or the runs; and what was answered so far.

    `roles` and `worst`: of prompts, who is asked and what each may cost at most. `known`: the place in the ledger where
    the last answer stands.
    """

    asked: tuple[str, ...] | Runs
    answers: list[Reply | Result | None]
    roles: tuple[str, ...] = ()
    worst: tuple[Usage, ...] = ()
    known: int = 0
    handle: str = ""
    lane: int = 0
    trial: int | None = None
    """Of a session: where the agent works, and on whose code."""

    @property
    def at_work(self) -> bool:
        """Whether it is a session that an agent was set to work on, and that has not ended as far as is known."""
        return bool(self.handle) and bool(self.missing())

    def missing(self) -> tuple[int, ...]:
        return tuple(i for i, answer in enumerate(self.answers) if answer is None)


def replay(flow: Flow[T], past: Sequence[Exchange], exact: bool = True) -> Concluded | Waiting | Differs:
    """Drives `flow` through the recorded exchanges until it concludes or wants something that is not recorded.

    Not `exact`: another version asked then, and may have put its prompts otherwise; only their number has to match.
    """
    used = 0
    try:
        ask = next(flow)
        for exchange in past:
            if not _asked(ask, exchange.asked, exact):
                return Differs(f"ask {used} was {exchange.asked!r} and is now {identity(ask)!r}")
            if missing := exchange.missing():
                return Waiting(ask, used, missing)
            used += 1
            ask = flow.send(_answer(ask, exchange.answers))
        return Waiting(ask, used, None)
    except StopIteration as stop:
        if used < len(past):
            return Differs(f"it concluded after {used} asks and had made {len(past)}")
        return Concluded(stop.value)


def _asked(ask: Ask, before: tuple[str, ...] | Runs, exact: bool) -> bool:
    now = identity(ask)
    if exact or isinstance(now, Runs) or isinstance(before, Runs):
        return now == before
    return len(now) == len(before)


def identity(ask: Ask) -> tuple[str, ...] | Runs:
    """What an ask is known by in the ledger."""
    if isinstance(ask, Session):
        return (ask.digest(),)
    return ask if isinstance(ask, Runs) else tuple(prompt.digest() for prompt in prompts(ask))


def _answer(ask: Ask, answers: Sequence[Reply | Result | None]) -> Answer:
    if isinstance(ask, Prompt | Session):
        assert isinstance(answers[0], Reply)
        return answers[0]
    return tuple(answers)  # type: ignore[return-value]  # complete, by missing() above
