"""Does a ledger follow from itself? Every round, proposal, score and decision is thought again and has to be the same.

Pure. What is taken on faith: what processes and models answered (`Finished`, `Replied`, `Invalidated`), requests from
outside, the clock, and how another version put its prompts. That artefacts on disk are those that were read is checked
by the command line.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec.structs import replace

from metaloop import __version__
from metaloop.conduct import think
from metaloop.events import (
    Abandoned,
    Alerted,
    Asked,
    Based,
    Condemned,
    Confirmed,
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
    Invalidated,
    Measured,
    Proposed,
    Refused,
    Replied,
    Reported,
    Resumed,
    RoundOpened,
    RunsAsked,
    Stage,
    Started,
    StudyClosed,
    StudyOpened,
    Vanished,
)
from metaloop.plan import Close, OpenRound, StartRun, plan
from metaloop.roles import Thought
from metaloop.study import Study, evolve
from metaloop.terms import Terms


class Finding(msgspec.Struct, frozen=True):
    """An entry that does not follow from what stands before it, and what would."""

    place: int
    what: str


def audit(entries: Iterable[Entry], thought_of: Callable[[Terms], Thought]) -> Iterator[Finding]:
    """What does not hold, in order; nothing for a sound ledger. Stops at the first entry that cannot even be folded."""
    study, due = Study(), list[Event]()
    thought: Thought | None = None
    for entry in entries:
        if thought is None:
            if not isinstance(entry.event, StudyOpened):
                yield Finding(entry.place, "a study begins with StudyOpened")
                return
            thought = thought_of(entry.event.terms)
        else:
            try:
                said = _check(study, entry, thought, due)
            except Exception as error:  # an entry so wrong that the study cannot even be asked about it
                said = f"it cannot follow: {type(error).__name__}: {error}"
            if said:
                yield Finding(entry.place, said)
        try:
            evolve(study, entry)
        except Exception as error:
            yield Finding(
                entry.place, f"{type(entry.event).__name__} cannot stand here: {type(error).__name__}: {error}"
            )
            return


def _check(study: Study, entry: Entry, thought: Thought, due: list[Event]) -> str:
    """Why this entry does not follow, or nothing."""
    event = entry.event
    if due:
        return _same(due.pop(0), event)
    match event:
        case StudyOpened():
            return "a study opens once"
        case RoundOpened():
            opening = [act for act in plan(study, entry.at) if isinstance(act, OpenRound)]
            expected = OpenRound(event.round, event.role, event.seen, event.trial)
            return "" if expected in opening else f"round {event.round} was not due; due: {opening}"
        case Proposed() | Refused():
            return _think(study, event, event.round, "propose", thought, due)
        case Asked() | Abandoned():
            return _think(study, event, event.round, event.stage, thought, due)
        case RunsAsked() | Measured() | Confirmed():
            return _think(study, event, event.round, "measure", thought, due)
        case Decided():
            round = study.open[event.round]
            if not round.proposed:
                return _think(study, event, event.round, "propose", thought, due)
            if round.scores is None:
                return "decided before it was measured"
            return _same(Decided(event.round, thought.decide(study, round)), event)
        case Replied():
            answer = study.open[event.round].asked[event.stage][event.index].answers[event.member]
            return "" if answer is None else "a reply to what was answered already"
        case Engaged():
            asked = study.open[event.round].asked[event.stage][event.index]
            return "" if asked.missing() else "an agent was set to work on what was answered already"
        case Vanished():
            asked = study.open[event.round].asked[event.stage][event.index]
            return "" if asked.at_work else "a session vanished that nobody was at work on"
        case Started():
            planned = StartRun(event.trial, event.run) in plan(study, entry.at)
            fresh = event.attempt == study.run(event.trial, event.run).attempt + 1
            return "" if planned and fresh else "a run started that nobody asked for"
        case Finished():
            run = study.run(event.trial, event.run)
            return "" if run.running and run.attempt == event.attempt else "a run finished that was not running"
        case StudyClosed():
            reasons = [act.ending.reason for act in plan(study, entry.at) if isinstance(act, Close)]
            return "" if event.reason in reasons else f"closed as {event.reason}, which nothing calls for ({reasons})"
        case Reported():
            running = study.run(event.trial, event.run).running
            return "" if running else "a report of a run that was not running"
        case Condemned():
            said = thought.watch.doomed(study, study.trials[event.trial]) if thought.watch else ""
            return "" if said == event.why else f"condemned for {event.why!r}, and what follows is {said!r}"
        case Based():
            return "a study has one base, from its start" if study.tree or study.rounds else ""
        case Invalidated():
            unkept = [number for number in event.trials if not study.trials[number].kept]
            return f"trial {unkept[0]} was not kept" if unkept else ""
        case Resumed() | Directed() | Alerted() | Degraded() | Faulted() | Interrupted():
            return ""


def _think(study: Study, event: Fact, number: int, stage: Stage, thought: Thought, due: list[Event]) -> str:
    """The event has to be the first of what the round's flow concludes now; the rest are due next."""
    due.extend(think(study, study.open[number], stage, thought))
    if not due:
        return "nothing follows here, and something was written"
    expected = due.pop(0)
    if isinstance(expected, Asked) and isinstance(event, Asked) and study.version != __version__:
        # that version put its prompts its own way
        expected = replace(expected, prompts=event.prompts, worst=event.worst)
    return _same(expected, event)


def _same(expected: Event, found: Event) -> str:
    return "" if expected == found else f"expected {expected!r:.300}, found {found!r:.300}"
