"""The state of a study: what the ledger folds to. Only `evolve` changes it, and it only records.

Everything here costs the same at trial 100,000 as at trial 100: what a decision needs is kept as counters (`Tally`),
and trials carry the places of their facts, so that "the study as of place 112" is a filter (`View`) and not a copy.
"""

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Literal, assert_never

from metaloop.events import (
    Alerted,
    Asked,
    Decided,
    Directed,
    Entry,
    Faulted,
    Finished,
    Measured,
    Proposed,
    Refused,
    Replied,
    Reply,
    Resumed,
    Role,
    RoundOpened,
    RunsAsked,
    Stage,
    Started,
    StudyClosed,
    StudyOpened,
)
from metaloop.flow import Exchange, Runs
from metaloop.terms import Bounds, Host, Terms
from metaloop.values import Change, Failed, Objective, Proposal, Pruned, Result, Score, Stopped, Value
from metaloop.values import Refused as Refusal

PREPARE = -1
"""The trial number under which `prepare` runs: it is a job like any other, and no trial."""

LOSSES = 2
"""A run that is lost by itself this often has failed; before, it is tried again."""

STARTS = 20
"""A run whose controllers die under it is started at most this often."""

FAULTS = 5
"""So many faulted rounds running end a study."""


# ---- the parts -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Run:
    """One measurement of a trial, over all its attempts. `last` is the result of the newest attempt that ended."""

    number: int
    attempt: int = 0
    lane: int = 0
    handle: str = ""
    running: bool = False
    losses: int = 0
    last: Result | None = None
    exit: int | None = None
    output: dict[str, str] = field(default_factory=dict)

    @property
    def settled(self) -> bool:
        """Whether its result stands. An interrupted run and one lost for the first time run again."""
        return not self.running and self.last is not None and not self.again

    @property
    def again(self) -> bool:
        match self.last:
            case Stopped(by="interrupt"):
                return True
            case Failed(kind="lost"):
                return self.losses < LOSSES and self.attempt < STARTS
            case _:
                return False


Verdict = Literal["open", "crowned", "kept", "discarded", "failed", "refused", "pruned", "stopped"]


@dataclass(slots=True)
class Trial:
    """One proposal's way through the loop. `proposed_at` and `decided_at` are places in the ledger."""

    number: int
    round: int
    role: Role
    proposal: Proposal
    proposed_at: int
    fingerprint: str
    runs: list[Run] = field(default_factory=list)
    refusal: Refusal | None = None
    score: Score | None = None
    kept: bool = False
    crowned: bool = False
    why: str = ""
    decided_at: int | None = None
    beat: int | None = None
    """The incumbent that it was compared with."""

    @property
    def change(self) -> Change:
        return self.proposal.change

    @property
    def result(self) -> Result | None:
        """What its first look came to (or its refusal)."""
        return self.refusal or (self.runs[0].last if self.runs else None)

    @property
    def failed(self) -> bool:
        return isinstance(self.result, Failed | Refusal)

    @property
    def verdict(self) -> Verdict:
        if self.decided_at is None:
            return "open"
        if self.crowned:
            return "crowned"
        if self.kept:
            return "kept"
        match self.result:
            case Refusal():
                return "refused"
            case Failed():
                return "failed"
            case Pruned():
                return "pruned"
            case Stopped():
                return "stopped"
            case _:
                return "discarded"


@dataclass(slots=True)
class Round:
    """A round that is still open."""

    number: int
    role: Role
    seen: int
    opened_at: int
    trials: list[int] = field(default_factory=list)
    proposed: bool = False
    asked: dict[Stage, list[Exchange]] = field(default_factory=lambda: {"propose": [], "measure": []})
    waits: list[tuple[int, int]] = field(default_factory=list)
    """(trial, run) of every run that was asked for it."""
    scores: tuple[Score | None, ...] | None = None
    directive: Directed | None = None
    index: int = 0
    """How many search rounds were opened before it."""


class Tally(Value, frozen=True):
    """The counters that guards look at, as they stood when some round was decided."""

    place: int = 0
    settled: int = 0
    since_best: int = 0
    measured: int = 0
    recent: tuple[bool, ...] = ()
    failures: tuple[tuple[str, int], ...] = ()
    incumbent: int | None = None
    best: float | None = None
    exhausted: str = ""


# ---- the whole -------------------------------------------------------------------------------------------------------


class Study:
    """All that happened, as far as anyone has to know it now."""

    def __init__(self) -> None:
        self.terms: Terms | None = None
        self.bounds = Bounds()
        self.host: Host | None = None
        self.mode: Literal["run", "one"] = "run"
        self.rung = ""
        self.config = ""
        self.place = 0
        self.at = 0.0
        self.sessions = 0
        self.version = ""
        self.trials: dict[int, Trial] = {}
        self.latest = 0
        self.open: dict[int, Round] = {}
        self.rounds = 0
        self.searched = 0
        self.baselines = 0
        self.baseline: int | None = None
        self.prepare = Run(0)
        self.tally = Tally()
        self.tallies: deque[Tally] = deque()
        self.floor = Tally()
        """The counters after the baseline: every search round may know those."""
        self.crowns: list[tuple[int, int]] = []
        self.keys: dict[str, int] = {}
        self.faults = 0
        self.fallbacks = 0
        self.directives: list[Directed] = []
        self.requests: set[str] = set()
        self.paused = False
        self.stop: Directed | None = None
        self.kills: dict[int, Directed] = {}
        """Undecided trials that somebody wants ended."""
        self.hints: list[Directed] = []
        self.closed: StudyClosed | None = None
        self.alerts: list[str] = []

    @property
    def name(self) -> str:
        return self.terms.name if self.terms else ""

    @property
    def objective(self) -> Objective:
        return self.the_terms.objective

    @property
    def the_terms(self) -> Terms:
        """The terms of a study that was opened."""
        assert self.terms is not None
        return self.terms

    @property
    def incumbent(self) -> Trial | None:
        return None if self.tally.incumbent is None else self.trials[self.tally.incumbent]

    @property
    def reference(self) -> str:
        """The fingerprint of the hardware that results are compared on: as configured, else the baseline's."""
        baseline = self.trials[self.baseline].fingerprint if self.baseline is not None else ""
        return self.the_terms.fingerprint or baseline

    def number(self, role: Role) -> int:
        """The number of the next trial: the baseline is 0, everything else counts from 1."""
        return 0 if role == "baseline" and 0 not in self.trials else self.latest + 1

    def run(self, trial: int, run: int) -> Run:
        return self.prepare if trial == PREPARE else self.trials[trial].runs[run]

    def view(self, round: Round) -> "View":
        return View(self, round)


def fold(entries: Iterable[Entry], study: Study | None = None) -> Study:
    """The study that a ledger tells of."""
    study = study or Study()
    for entry in entries:
        evolve(study, entry)
    return study


# ---- the only way a study changes ------------------------------------------------------------------------------------


def evolve(study: Study, entry: Entry) -> None:
    """Records one fact. Total: every fact that could be written can be read; it draws no conclusions of its own."""
    study.place, study.at = entry.place, entry.at
    event = entry.event
    match event:
        case StudyOpened():
            study.terms = event.terms
        case Resumed():
            _resume(study, event)
        case RoundOpened():
            round = Round(event.round, event.role, event.seen, entry.place, index=study.searched)
            if event.role == "directed":
                round.directive = study.directives.pop(0)
            study.open[event.round] = round
            study.rounds = max(study.rounds, event.round)
            study.searched += event.role == "search"
            study.baselines += event.role == "baseline"
        case Asked():
            study.open[event.round].asked[event.stage].append(Exchange(event.prompts, [None] * len(event.prompts)))
        case Replied():
            study.open[event.round].asked[event.stage][event.index].answers[event.member] = event.reply
        case Proposed() | Refused():
            _propose(study, event, entry.place)
        case RunsAsked():
            _ask_runs(study, event)
        case Started():
            run = study.run(event.trial, event.run)
            run.attempt, run.lane, run.handle, run.running = event.attempt, event.lane, event.handle, True
            if event.trial != PREPARE and study.host:
                study.trials[event.trial].fingerprint = study.host.fingerprint
        case Finished():
            _finish(study, event)
        case Measured():
            study.open[event.round].scores = event.scores
            for number, score in zip(study.open[event.round].trials, event.scores, strict=True):
                study.trials[number].score = score
        case Decided():
            _decide(study, event, entry.place)
        case Faulted():
            round = study.open[event.round]
            round.asked[event.stage].clear()
            study.faults += 1
        case Directed():
            _direct(study, event)
        case Alerted():
            study.alerts.append(event.text)
        case StudyClosed():
            study.closed = event
        case _:
            assert_never(event)


def _resume(study: Study, event: Resumed) -> None:
    study.bounds, study.host, study.mode = event.bounds, event.host, event.mode
    study.rung, study.config, study.version = event.rung, event.config, event.version
    study.sessions += 1
    study.stop, study.paused, study.faults = None, False, 0
    if study.closed and study.closed.reason == "prepare_failed":
        study.prepare = Run(0, attempt=study.prepare.attempt)
    if study.closed and study.closed.reason == "baseline_failed":
        study.baselines = 0
    study.closed = None


def _propose(study: Study, event: Proposed | Refused, place: int) -> None:
    round = study.open[event.round]
    fingerprint = study.host.fingerprint if study.host else ""
    trial = Trial(event.trial, event.round, round.role, event.proposal, place, fingerprint)
    study.trials[event.trial] = trial
    study.latest = max(study.latest, event.trial)
    round.trials.append(event.trial)
    round.proposed = True
    study.fallbacks += bool(event.proposal.fallback)
    if isinstance(event, Refused):
        trial.refusal = event.refusal
    elif round.role != "baseline":
        study.keys.setdefault(event.proposal.change.key(), event.trial)


def _ask_runs(study: Study, event: RunsAsked) -> None:
    round, trial = study.open[event.round], study.trials[event.trial]
    for number in event.runs:
        if number == len(trial.runs):
            trial.runs.append(Run(number))
        round.waits.append((event.trial, number))
    if 0 not in event.runs:
        runs = [trial.runs[number] for number in event.runs]
        answers: list[Reply | Result | None] = [run.last if run.settled else None for run in runs]
        round.asked["measure"].append(Exchange(Runs(event.trial, event.runs), answers))


def _finish(study: Study, event: Finished) -> None:
    run = study.run(event.trial, event.run)
    run.running, run.handle = False, ""
    run.last, run.exit, run.output = event.result, event.exit, event.output
    if isinstance(event.result, Failed) and event.result.kind == "lost":
        run.losses += 1
    if event.trial == PREPARE or not run.settled:
        return
    for exchange in (exchange for round in study.open.values() for exchange in round.asked["measure"]):
        asked = exchange.asked
        if isinstance(asked, Runs) and asked.trial == event.trial and event.run in asked.runs:
            exchange.answers[asked.runs.index(event.run)] = event.result


def _decide(study: Study, event: Decided, place: int) -> None:
    round, decision, before = study.open.pop(event.round), event.decision, study.tally
    study.faults = 0
    crowned = decision.crowned is not None and decision.crowned != before.incumbent
    settled = [n for n in round.trials if _counts(study.trials[n])]
    failures = dict(before.failures)
    for number in round.trials:
        trial = study.trials[number]
        trial.kept, trial.crowned = number in decision.kept, crowned and number == decision.crowned
        trial.decided_at, trial.why, trial.beat = place, decision.why, before.incumbent
        study.kills.pop(number, None)
        if trial.failed and isinstance(trial.result, Failed | Refusal):
            failures[trial.result.reason] = failures.get(trial.result.reason, 0) + 1
    searched = round.role != "baseline"
    incumbent = decision.crowned if crowned else before.incumbent
    score = study.trials[incumbent].score if incumbent is not None else None
    study.tally = Tally(
        place=place,
        settled=before.settled + len(settled) * searched,
        since_best=0 if crowned else before.since_best + len(settled) * searched,
        measured=before.measured + sum(study.trials[n].score is not None for n in round.trials) * searched,
        recent=_window(study, before.recent, settled if searched else []),
        failures=tuple(sorted(failures.items(), key=lambda item: -item[1])[:5]),
        incumbent=incumbent,
        best=score.value if score else None,
        exhausted=before.exhausted or ("" if round.trials or not searched else decision.why),
    )
    if crowned and incumbent is not None:
        study.crowns.append((place, incumbent))
    if round.role == "baseline":
        study.floor = study.tally
        study.baseline = decision.kept[0] if decision.kept else None
    study.tallies.append(study.tally)
    while len(study.tallies) > study.the_terms.window:
        study.tallies.popleft()


def _counts(trial: Trial) -> bool:
    """Pruned and stopped trials say nothing about failure or progress."""
    return not isinstance(trial.result, Pruned | Stopped | None)


def _window(study: Study, recent: tuple[bool, ...], settled: list[int]) -> tuple[bool, ...]:
    new = recent + tuple(study.trials[n].failed for n in settled)
    return new[-study.bounds.failure_window :]


def _direct(study: Study, event: Directed) -> None:
    study.requests.add(event.request)
    match event.op:
        case "stop":
            study.stop = event
        case "pause":
            study.paused = True
        case "resume":
            study.paused = False
        case "try":
            study.directives.append(event)
        case "kill":
            if event.trial in study.trials and study.trials[event.trial].decided_at is None:
                study.kills[event.trial] = event
        case "hint":
            study.hints.append(event)


# ---- what a round may see --------------------------------------------------------------------------------------------


class View:
    """The study as one round may see it: decisions up to the place where it opened its eyes, proposals up to its start.

    What came later is not there, so that a flow which runs again after a crash sees what it saw.
    """

    def __init__(self, study: Study, round: Round) -> None:
        self._study, self._round = study, round
        self.terms, self.objective, self.space = study.the_terms, study.objective, study.the_terms.space

    @property
    def round(self) -> int:
        return self._round.number

    @property
    def role(self) -> Role:
        return self._round.role

    @property
    def directed(self) -> Change | None:
        """The change that somebody asked for, in a directed round."""
        return self._round.directive.change if self._round.directive else None

    def rng(self, salt: str = "") -> Random:
        """The round's own dice: the same seed, round and salt throw the same."""
        return Random(f"{self.terms.seed}/{self.round}{salt and '/' + salt}")

    def settled(self) -> Iterator[Trial]:
        """Decided trials, by number; the baseline and failed ones among them."""
        return (t for t in self._before() if t.decided_at is not None and t.decided_at <= self._round.seen)

    def pending(self) -> Iterator[tuple[int, Change]]:
        """Number and change of trials that were proposed before this round and whose outcome it may not know."""
        seen = self._round.seen
        return ((t.number, t.change) for t in self._before() if t.decided_at is None or t.decided_at > seen)

    def earlier(self) -> Iterator[Trial]:
        """Trials that were proposed before this round, the newest first. What they came to may lie in its future."""
        return (t for t in reversed(self._study.trials.values()) if self._earlier(t))

    def tried(self, change: Change) -> int | None:
        """The trial that had this very change, if one was proposed before this round (baselines do not count)."""
        number = self._study.keys.get(change.key())
        return number if number is not None and self._earlier(self._study.trials[number]) else None

    @property
    def index(self) -> int:
        """How many search rounds were opened before this one: 0 for the first."""
        return self._round.index

    @property
    def incumbent(self) -> Trial | None:
        """The holder of the crown as this round knows it."""
        at = bisect_right(self._study.crowns, (self._round.seen, 1 << 62))
        return self._study.trials[self._study.crowns[at - 1][1]] if at else None

    def _earlier(self, trial: Trial) -> bool:
        return trial.proposed_at < self._round.opened_at

    def _before(self) -> Iterator[Trial]:
        return (t for t in self._study.trials.values() if self._earlier(t))
