"""What a study does at this moment, for readers: from the facts, the unix times of their entries, and the time now.

Nothing is asked of a controller: whether what is at work still lives, the next one will find out.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from metaloop.events import Asked, Engaged, Entry, Finished, Replied, Started
from metaloop.plan import again_at
from metaloop.study import PREPARE, Run, Study
from metaloop.values import duration

SHOWN = 6
"""Of what is under way, so much in a line."""

Since = dict[tuple[object, ...], float]
"""When something began, in unix time: by trial and run, or by round, stage and number of an ask."""


class Work(msgspec.Struct, frozen=True):
    """Something that is under way, for so many seconds. `what`: trial, agent, or the role that is asked; `trial`: which
    one runs, or on whose code an agent works; `limit_s`: of a session, seconds that it may take.
    """

    what: str
    seconds: float
    trial: int | None = None
    run: int | None = None
    round: int | None = None
    limit_s: float | None = None

    def told(self) -> str:
        """In words."""
        took = duration(self.seconds) + ("" if self.limit_s is None else f" of {duration(self.limit_s)}")
        if self.trial == PREPARE:
            return f"prepare, {took}"
        name = self.what if self.trial is None else f"trial {self.trial}"
        if self.what == "agent" and self.trial is not None:
            name = f"agent on trial {self.trial}"
        return f"{name} (run {self.run}), {took}" if self.run else f"{name}, {took}"


def note(since: Since, entry: Entry) -> None:
    """Remembers when what this entry tells of began, until it is over."""
    match event := entry.event:
        case Started():
            since[event.trial, event.run] = entry.unix
        case Finished():
            since.pop((event.trial, event.run), None)
        case Asked() | Engaged():
            since[event.round, event.stage, event.index] = entry.unix
        case Replied():
            since.pop((event.round, event.stage, event.index), None)
        case _:
            pass


def works(study: Study, since: Mapping[tuple[object, ...], float], now: float) -> Iterator[Work]:
    """All that is under way: what is asked, and what runs."""
    if study.closed is not None:
        return
    for trial, number, run in _runs(study):
        if run.running:
            yield Work("trial", _ago(now, since.get((trial, number))), trial, number)
    for round in study.open.values():
        for stage, asked in round.asked.items():
            for index, exchange in enumerate(asked):
                took = _ago(now, since.get((round.number, stage, index)))
                if exchange.at_work:
                    limit = study.bounds.agent.timeout_s if study.bounds.agent else None
                    yield Work("agent", took, exchange.trial, round=round.number, limit_s=limit)
                elif exchange.roles and "agent" not in exchange.roles and exchange.missing():
                    yield Work(exchange.roles[exchange.missing()[0]], took, round=round.number)


def in_a_line(found: Sequence[Work]) -> str:
    """All of it in a line, what began first at its beginning; of much, how much more there is."""
    first = sorted(found, key=lambda work: (work.what == "trial", -work.seconds))
    told = [work.told() for work in first[:SHOWN]]
    return "; ".join([*told, *([f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else [])])


def next_try(study: Study, at: float) -> float | None:
    """Seconds until the next round that faulted begins anew; None where none waits."""
    waits = [again_at(round) - at for round in study.open.values() if again_at(round) > at]
    return min(waits, default=None) if study.closed is None else None


def _runs(study: Study) -> Iterator[tuple[int, int, Run]]:
    yield PREPARE, 0, study.prepare
    waited = dict.fromkeys(pair for round in study.open.values() for pair in round.waits)
    yield from ((trial, number, study.run(trial, number)) for trial, number in waited)


def _ago(now: float, unix: float | None) -> float:
    return 0.0 if unix is None else max(0.0, now - unix)
