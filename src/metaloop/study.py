"""The state of a study: what the ledger folds to. Only `evolve` changes it, and it only records.

Everything here costs the same at trial 100,000 as at trial 100: what a decision needs is kept as counters (`Tally`),
and trials carry the places of their facts, so that "the study as of place 112" is a filter (`View`) and not a copy.
"""

import math
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Literal, assert_never

from msgspec import Struct, field, msgpack
from msgspec.structs import replace

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
    Faulted,
    Finished,
    Interrupted,
    Invalidated,
    Measured,
    Proposed,
    Refused,
    Replied,
    Reply,
    Reported,
    Resumed,
    Role,
    RoundOpened,
    RunsAsked,
    Stage,
    Started,
    StudyClosed,
    StudyOpened,
    Vanished,
)
from metaloop.flow import Exchange, Runs
from metaloop.forecast import Curve
from metaloop.terms import Bounds, Gate, Host, Rung, Terms
from metaloop.values import (
    Change,
    Decision,
    Failed,
    Headline,
    Objective,
    Panel,
    Proposal,
    Pruned,
    Ran,
    Result,
    Score,
    Stopped,
    Usage,
    Value,
    squares,
)
from metaloop.values import Refused as Refusal

PREPARE = -1
"""The trial number under which `prepare` runs: it is a job like any other, and no trial."""

HELD_OUT = -1
"""The run number under which a trial is scored on held-out data. No score is made of it, and no noise known by it."""

LOSSES = 2
"""A run that is lost by itself this often has failed; before, it is tried again."""

STARTS = 20
"""A run whose controllers die under it is started at most this often."""

REPORTS = 2048
"""Reports that are kept of a trial."""

PEERS = 100
"""Trials whose reports are kept in mind for comparison."""

FAULTS = 5
SESSION_FAULTS = 10
"""So many faulted rounds running end a study; so many, where an agent was at work in them, between which are pauses."""

NO_OTHERS: dict[str, float] = {}
"""The further means of every score that has none: an empty dictionary each would be 6 % of all that a trial takes."""


# ---- the parts -------------------------------------------------------------------------------------------------------


class Run(Struct, gc=False):
    """One measurement of a trial, over all its attempts. `last` is the result of the newest attempt that ended."""

    number: int
    attempt: int = 0
    lane: int = 0
    handle: str = ""
    running: bool = False
    losses: int = 0
    last: Result | None = None
    exit: int | None = None

    @property
    def settled(self) -> bool:
        """Whether its result stands. One that ended with the session or the budget, and one lost once, run again."""
        return not self.running and self.last is not None and not self.again

    @property
    def again(self) -> bool:
        match self.last:
            case Ran():  # the commonest
                return False
            case Stopped(by="interrupt" | "guard"):
                return True
            case Failed(kind="lost"):
                return self.losses < LOSSES and self.attempt < STARTS
            case _:
                return False


_pack = msgpack.Encoder().encode
_unpack = msgpack.Decoder(Proposal).decode
Verdict = Literal[
    "open", "crowned", "kept", "provisional", "discarded", "failed", "refused", "pruned", "stopped", "invalid"
]


KEPT, CROWNED, PROVISIONAL, INVALID = 1, 2, 4, 8
"""How a trial stands."""


class Trial(Struct, gc=False):
    """One proposal's way through the loop. `proposed_at` and `decided_at` are places in the ledger.

    All of them stay in memory. So what few of them have costs the others nothing, and the proposal is kept packed,
    which takes a third of what its objects would.
    """

    number: int
    round: int
    role: Role
    packed: bytes
    proposed_at: int
    fingerprint: str
    first: Run | None = None
    """Its first look, run 0."""
    later: dict[int, Run] | None = None
    """By run number, where there are any: repeats, confirmations, and runs beside a challenger."""
    refusal: Refusal | None = None
    score: Score | None = None
    standing: int = 0
    """Of KEPT, CROWNED, PROVISIONAL and INVALID, those that hold: four fields would be a fiftieth of the memory."""
    why: str = ""
    decided_at: int | None = None
    beat: int | None = None
    """The incumbent that it was compared with."""
    reports: Sequence[tuple[int, float]] = ()
    """What it told while it ran: steps and values of the objective."""
    request: str = ""
    """The request that it answers, if somebody asked for it."""

    @property
    def proposal(self) -> Proposal:
        return _unpack(self.packed)

    @property
    def change(self) -> Change:
        return self.proposal.change

    @property
    def runs(self) -> dict[int, Run]:
        """All of them, by number: for readers, who may."""
        return ({} if self.first is None else {0: self.first}) | (self.later or {})

    @property
    def result(self) -> Result | None:
        """What its first look came to (or its refusal)."""
        return self.refusal or (self.first.last if self.first is not None else None)

    def run(self, number: int) -> Run:
        """One that was asked for."""
        return self.first if number == 0 and self.first is not None else (self.later or {})[number]

    def ask(self, number: int) -> None:
        """Makes a run of this number, unless there is one."""
        if number == 0:
            self.first = self.first or Run(0)
        else:
            self.later = self.later or {}
            self.later.setdefault(number, Run(number))

    @property
    def failed(self) -> bool:
        return isinstance(self.result, (Failed, Refusal))

    @property
    def kept(self) -> bool:
        return bool(self.standing & KEPT)

    @property
    def crowned(self) -> bool:
        return bool(self.standing & CROWNED)

    @property
    def provisional(self) -> bool:
        """Kept for looking better, and not put to the proof so far."""
        return bool(self.standing & PROVISIONAL)

    @property
    def invalid(self) -> bool:
        """Kept once, and found to be not what it was."""
        return bool(self.standing & INVALID)

    @property
    def gate(self) -> str:
        """The name of the gate that it failed at; empty for all else."""
        return self.result.gate if isinstance(self.result, Failed) else ""

    @property
    def verdict(self) -> Verdict:
        if self.decided_at is None:
            return "open"
        if self.invalid:
            return "invalid"
        if self.crowned:
            return "crowned"
        if self.provisional:
            return "provisional"
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


class Round(Struct):
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
    panel: Panel | None = None
    judged_at: int | None = None
    """The place from which its measuring thinks: where it first asked for more runs."""
    directive: Directed | None = None
    held: int | None = None
    """The trial that it scores on held-out data. It is none of its `trials`: nothing of it is decided here."""
    index: int = 0
    """How many search rounds were opened before it."""
    beside: int = 0
    """How many were open then whose proposals were not there yet."""
    calls: int = 0
    """How many replies of models the study had before it, those to what it asked before it began anew among them."""
    anew: bool = False
    """Its proposing broke, or its first session was lost: it thinks from where it next asks or proposes."""
    fruitless: int = 0
    fault: str = ""
    """Sessions of an agent that came to nothing before it was opened again, and why the last could not be used."""
    faults: int = 0
    faulted_at: float = 0.0
    """Of one that began anew after sessions: how many such rounds there were running then, and when that was."""
    began: float = 0.0
    """The study second at which it was opened."""


class Pass(Value, frozen=True):
    """A pass of a tournament that is over: its trials, in the order of the panel's names, and what that came to.

    `seconds`: of the study, from where its round opened.
    """

    round: int
    trials: tuple[int, ...]
    panel: Panel
    seconds: float = 0.0


class Tally(Value, frozen=True):
    """The counters that guards look at, as they stood when some round was decided. `recent`: the newest settled trials
    of the search; `best_at`: the place of the newest that was better.
    """

    place: int = 0
    settled: int = 0
    since_best: int = 0
    measured: int = 0
    best_at: int = 0
    recent: tuple[int, ...] = ()
    incumbent: int | None = None
    leads: int | None = None
    best: float | None = None
    exhausted: str = ""
    keeps: int = 0
    curve: Curve = Curve()

    @property
    def leader(self) -> int | None:
        """What the search compares with: the incumbent, or what looks better and is not proven."""
        return self.incumbent if self.leads is None else self.leads


class Evidence(Value, frozen=True):
    """What the study's re-runs showed so far: squared deviations of differences, and their degrees of freedom.

    The baseline stands in with 2 SS (no correlation assumed: errs to the safe side); `alone` and `alone_df` are its
    part. `failed`: tests that ended without a keep. `keeps`: the numbers of those that kept, counted from 1 in the
    order in which tests began.
    """

    squares: float = 0.0
    df: int = 0
    failed: int = 0
    keeps: tuple[int, ...] = ()
    alone: float = 0.0
    alone_df: int = 0

    def with_baseline(self, values: Sequence[float]) -> "Evidence":
        more, df = 2 * squares(values), len(values) - 1
        return replace(
            self, squares=self.squares + more, df=self.df + df, alone=self.alone + more, alone_df=self.alone_df + df
        )

    def with_test(self, number: int, differences: Sequence[float], kept: bool) -> "Evidence":
        """After a test that is over."""
        return replace(
            self,
            squares=self.squares + (squares(differences) if differences else 0.0),
            df=self.df + max(0, len(differences) - 1),
            failed=self.failed + (not kept),
            keeps=(*self.keeps, number) if kept else self.keeps,
        )

    def width(self) -> float | None:
        """The standard deviation of one run; None while nothing is known of it."""
        return math.sqrt(self.squares / self.df / 2) if self.df else None

    def pairs(self) -> "Evidence":
        """What pairs alone showed, without the baseline."""
        return replace(self, squares=max(0.0, self.squares - self.alone), df=self.df - self.alone_df)

    def paired(self) -> bool | None:
        """Whether common seeds take away more than half of the noise; None until a test was made."""
        pairs = self.pairs()
        if not pairs.df or not self.alone_df:
            return None
        return pairs.squares / pairs.df < 0.5 * self.alone / self.alone_df


# ---- the whole -------------------------------------------------------------------------------------------------------


class Study:
    """All that happened, as far as anyone has to know it now."""

    def __init__(self) -> None:
        self.terms: Terms | None = None
        self.bounds = Bounds()
        self.host: Host | None = None
        self.mode: Literal["run", "one"] = "run"
        self.rung = ""
        self.rungs = list[tuple[int, Rung | None]]()
        """What isolated trials, by session: the place where it began."""
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
        self.leads: list[tuple[int, int]] = []
        """Who wore the crown, and who was grown from, each since which place."""
        self.evidence: list[tuple[int, Evidence]] = [(0, Evidence())]
        """What re-runs showed, and since which place it is known."""
        self.blocks: list[int] = []
        """Where rounds began to ask for runs on fresh seeds: the n-th of them has the n-th block of run numbers."""
        self.tests: list[int] = []
        self.equal: tuple[float, int] = (math.nan, 0)
        """The score of the newest trials of the search that were measured, as far back as it is the same; how many."""
        """Those of them that test a candidate."""
        self.rerun_at: int | None = None
        self.differed_at: int | None = None
        """Where a run was first repeated, and where a repeat first gave another value."""
        self.headline: Headline | None = None
        self.held: dict[int, Run] = {}
        """By trial, its run on held-out data. Not with the trial: whoever proposes sees that, and never this."""
        self.provisional: list[int] = []
        """Trials that look better than the incumbent and wait for their proof."""
        self.proofs = 0
        """Proofs since the search last proposed something."""
        self.passes: list[Pass] = []
        """Of a tournament, in their order."""
        self.front: list[int] = []
        """Kept trials that no other dominates, where several objectives make a front."""
        self.dropped: dict[int, int] = {}
        """Trials that were kept for looking better and are no longer, by number: since which place."""
        self.keys: dict[str, int] = {}
        self.freed: dict[int, int] = {}
        """Trials that failed at a gate that holds no more, by number: since which place."""
        self.again: dict[int, int] = {}
        """Which trial had the candidate of one of those anew."""
        self.tree = ""
        self.base: dict[str, str] = {}
        """Of a code study: the content hash of its folder; by path, the digests of the files that may be changed."""
        self.others: tuple[str, ...] = ()
        """Paths of what else is in that folder: files that may not be changed."""
        self.contents: dict[str, str] = {}
        """Texts of files, by digest: of the base, and of everything that was proposed."""
        self.faults = self.session_faults = 0
        self.fault = ""
        """How many rounds running could not be thought through; in how many of them an agent was at work; and why the
        last could not.
        """
        self.texts: dict[str, str] = {}
        """What prompts are made of, as this session has it."""
        self.costs: dict[str, Usage] = {}
        """What was spent on asking, by role."""
        self.asks, self.ask_seconds = 0, 0.0
        self.calls = 0
        """Replies that came from a model: an outage is none."""
        self.ended, self.run_seconds = 0, 0.0
        """How many asks were answered and runs ended, and how long they took together."""
        self.degraded: dict[str, str] = {}
        """Roles that nobody plays at the moment, and why."""
        self.abandoned: Abandoned | None = None
        self.fallbacks = 0
        self.directives: list[Directed] = []
        self.requests: set[str] = set()
        self.paused = False
        self.stop: Directed | None = None
        self.kills: dict[int, Directed] = {}
        self.condemned: dict[int, str] = {}
        """Running trials that cannot win any more, and why."""
        self.reporters: deque[int] = deque(maxlen=PEERS)
        """The newest settled trials that reported on their way: what others are compared with."""
        """Undecided trials that somebody wants ended."""
        self.hints: list[Directed] = []
        self.hinted: list[int] = []
        """The place of each."""
        self.closed: StudyClosed | None = None
        self.alerts: list[str] = []
        self.gates: dict[str, tuple[Gate, int | None]] = {}
        """What has to be passed, by name: by every trial, or by this one and whatever grows from it."""
        self.gated: dict[int, tuple[Gate, ...]] = {}
        """What trials had to pass when they began, by number; not of those that had to pass nothing."""
        self.regated: list[Directed] = []
        """Gates that were set, and taken away, since the study began."""
        self.regated_at: list[float] = []
        """The study second of each."""

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
    def sandbox(self) -> Rung | None:
        """What isolates trials now; None where nobody recorded it."""
        return self.rungs[-1][1] if self.rungs else None

    def isolated(self, trial: "Trial") -> Rung | None:
        """What isolated a trial: the least of what did in the sessions that it may have run in."""
        known = [(place, rung) for place, rung in self.rungs if rung is not None]
        end = self.place if trial.decided_at is None else trial.decided_at
        first = max((place for place, _ in known if place <= trial.proposed_at), default=0)
        return min((rung for place, rung in known if first <= place <= end), key=lambda rung: rung.height, default=None)

    @property
    def reference(self) -> str:
        """The fingerprint of the hardware that results are compared on: as configured, else the baseline's."""
        baseline = self.trials[self.baseline].fingerprint if self.baseline is not None else ""
        return self.the_terms.fingerprint or baseline

    def overlay(self, change: Change) -> dict[str, str]:
        """The texts of the files that differ from the base, by path."""
        return {path: self.contents[digest] for path, digest in change.files.items()}

    def gates_of(self, number: int) -> tuple[Gate, ...]:
        """What a trial has to pass: the study's gates, its own, and those of all that it grew from; those that may take
        least first.
        """
        line = set(self.line(number)) if any(root is not None for _, root in self.gates.values()) else set()
        gates = (gate for gate, root in self.gates.values() if root is None or root in line)
        return tuple(sorted(gates, key=lambda gate: gate.timeout_s))

    def line(self, number: int) -> Iterator[int]:
        """A trial, what it grew from, and so on to the root."""
        at: int | None = number
        while at is not None:
            yield at
            at = self.trials[at].proposal.parent

    def changed_code(self, new: Change, old: Change | None) -> tuple[str, ...]:
        """`src/a.py +3 -1` for each file that is not in both as in the other; the old one None for the base."""
        before, after = (self.base | (change.files if change else {}) for change in (old, new))
        paths = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
        texts = [[self.contents.get(side.get(path, ""), "") for side in (before, after)] for path in paths]
        return tuple(f"{path} {_line_counts(*pair)}" for path, pair in zip(paths, texts, strict=True))

    def number(self, role: Role) -> int:
        """The number of the next trial: the baseline is 0, everything else counts from 1."""
        return 0 if role == "baseline" and 0 not in self.trials else self.latest + 1

    def run(self, trial: int, run: int) -> Run:
        if run == HELD_OUT:
            return self.held[trial]
        return self.prepare if trial == PREPARE else self.trials[trial].run(run)

    def held_value(self, trial: int | None) -> float | None:
        """What the objective came to on held-out data; None where that is not known."""
        run = None if trial is None else self.held.get(trial)
        return run.last.metrics.get(self.objective.metric) if run and isinstance(run.last, Ran) else None

    def evidence_at(self, place: int) -> Evidence:
        """What re-runs had shown when the ledger ended at `place`."""
        return self.evidence[bisect_right(self.evidence, place, key=lambda known: known[0]) - 1][1]

    def deterministic_at(self, place: int | None = None) -> bool:
        """Whether some run had been repeated, and no repeat had given another value: at `place`, or now."""
        if self.rerun_at is None or place is None:
            return self.rerun_at is not None and self.differed_at is None
        return self.rerun_at <= place and (self.differed_at is None or self.differed_at > place)

    def view(self, round: Round) -> "View":
        """The study as the round's proposing sees it: from where it opened, or as it is now, where that begins anew."""
        if round.anew:
            round = replace(round)
            _reopen(self, round, self.place + 1)
        return View(self, round, round.seen)

    def bench(self, round: Round) -> "View":
        """The study as the round's measuring sees it: from where it first asked for more runs, or from here."""
        return View(self, round, self.place if round.judged_at is None else round.judged_at)


def _line_counts(old: str, new: str) -> str:
    """Lines that were added and removed; of long texts, that something was."""
    if len(old) + len(new) > 1 << 17:
        return "changed"
    from difflib import SequenceMatcher  # of code studies alone

    blocks = SequenceMatcher(None, old.splitlines(), new.splitlines(), autojunk=False).get_matching_blocks()
    same = sum(block.size for block in blocks)
    return f"+{len(new.splitlines()) - same} -{len(old.splitlines()) - same}"


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
    match event:  # the commonest first
        case RoundOpened():
            beside = sum(not other.proposed for other in study.open.values())
            round = Round(event.round, event.role, event.seen, entry.place, index=study.searched, beside=beside)
            round.calls = study.calls
            if event.role == "directed":
                round.directive = study.directives.pop(0)
            round.proposed = event.role in ("closing", "proof", "holdout")
            round.held = event.trial if event.role == "holdout" else None
            round.trials = [] if event.trial is None or event.role == "holdout" else [event.trial]
            round.began = entry.at
            study.open[event.round] = round
            study.rounds = max(study.rounds, event.round)
            study.searched += event.role == "search"
            study.baselines += event.role == "baseline"
            study.proofs = 0 if event.role in ("search", "directed") else study.proofs + (event.role == "proof")
        case Proposed() | Refused():
            _propose(study, event, entry.place)
        case RunsAsked():
            _ask_runs(study, event, entry.place)
        case Started():
            run = study.run(event.trial, event.run)
            run.attempt, run.lane, run.handle, run.running = event.attempt, event.lane, event.handle, True
            if event.trial != PREPARE and event.run != HELD_OUT and study.host:
                study.trials[event.trial].fingerprint = study.host.fingerprint
            if event.trial != PREPARE and event.run == 0 and (study.gates or event.trial in study.gated):
                _gate(study, event.trial)
        case Finished():
            _finish(study, event, entry.place)
        case Measured():
            _measure(study, event, entry.place)
        case Decided():
            _decide(study, event, entry.place)
        case Reported():
            trial = study.trials[event.trial]
            trial.reports = [*trial.reports, *event.reports][:REPORTS]
        case Condemned():
            study.condemned[event.trial] = event.why
        case StudyOpened():
            study.terms = event.terms
            study.gates = {gate.name: (gate, None) for gate in event.terms.gates}
        case Based():
            study.tree, study.base, study.others = event.tree, event.files, event.others
            study.contents.update(event.texts)
        case Resumed():
            _resume(study, event, entry.place)
        case Asked():
            empty: list[Reply | Result | None] = [None] * len(event.prompts)
            asked = Exchange(event.prompts, empty, event.roles, event.worst)
            _reopen(study, study.open[event.round], entry.place)
            study.open[event.round].asked[event.stage].append(asked)
        case Replied():
            exchange = study.open[event.round].asked[event.stage][event.index]
            exchange.answers[event.member], exchange.known = event.reply, entry.place
            study.asks += 1
            study.calls += not event.reply.trouble
            study.ask_seconds += event.reply.usage.seconds
            _charge(study, exchange, event.member, event.reply.usage)
        case Engaged():
            exchange = study.open[event.round].asked[event.stage][event.index]
            exchange.handle, exchange.lane, exchange.trial = event.handle, event.lane, event.trial
        case Vanished():
            _vanish(study, event)
        case Abandoned():
            _abandon(study, event)
        case Degraded():
            study.degraded = {role: why for role, why in study.degraded.items() if role != event.role}
            study.degraded.update({event.role: event.why} if event.why else {})
        case Confirmed():
            study.headline = event.headline
            study.open[event.round].scores = ()
        case Faulted():
            _fault(study, event)
        case Directed():
            _direct(study, event)
        case Alerted():
            study.alerts.append(event.text)
        case Invalidated():
            _invalidate(study, event, entry.place)
        case Interrupted():
            pass  # it says how long the lease was held
        case StudyClosed():
            study.closed = event
            _forget_asks(study, over=study.mode == "run")
        case _:
            assert_never(event)


def _resume(study: Study, event: Resumed, place: int) -> None:
    texts = event.texts or study.texts
    prompts_changed = (texts, event.bounds.max_iterations, event.version) != (
        study.texts, study.bounds.max_iterations, study.version
    )  # fmt: skip
    study.texts = texts
    study.bounds, study.host, study.mode = event.bounds, event.host, event.mode
    study.rung, study.config, study.version = event.rung, event.config, event.version
    study.rungs.append((place, event.sandbox))
    study.sessions += 1
    study.stop, study.paused, study.faults, study.session_faults = None, False, 0, 0
    for round in study.open.values() if study.closed else ():
        round.faults = 0  # who goes on with a study that had ended wants it tried now
    study.degraded, study.abandoned = {}, None
    _forget_asks(study, prompts_changed)
    if study.closed and study.closed.reason == "prepare_failed":
        study.prepare = Run(0, attempt=study.prepare.attempt)
    if study.closed and study.closed.reason == "baseline_failed":
        study.baselines = 0
    if event.more:
        more_is_there(study)
    study.closed = None


def more_is_there(study: Study) -> None:
    """Nothing was left to try, and now there is: rounds that found nothing are as if they had not been opened."""
    study.tally, study.floor = (replace(tally, exhausted="") for tally in (study.tally, study.floor))
    study.tallies = deque(replace(tally, exhausted="") for tally in study.tallies)
    tried = {trial.round for trial in study.trials.values() if trial.role == "search"}
    study.searched = len(tried.union(round.number for round in study.open.values() if round.role == "search"))


def _fault(study: Study, event: Faulted) -> None:
    """The round's thinking broke: what was asked is forgotten. One that had proposed nothing will see what is known by
    the time that it thinks again.
    """
    round, asked = study.open[event.round], study.open[event.round].asked[event.stage]
    _lost(study, [exchange for exchange in asked if exchange.at_work])
    round.fruitless += sum(exchange.roles == ("agent",) and not exchange.missing() for exchange in asked)
    round.anew, round.fault = event.stage == "propose", event.reason
    if any(exchange.roles == ("agent",) for exchange in asked):
        study.session_faults += 1
        round.faults, round.faulted_at = study.session_faults, study.at
    asked.clear()
    study.faults += 1
    study.fault = event.reason


def _vanish(study: Study, event: Vanished) -> None:
    """A session did not come to its end, and is asked for anew: with what is known then, where it was the first."""
    round, asked = study.open[event.round], study.open[event.round].asked[event.stage]
    if event.usage is not None:
        _charge(study, asked[event.index], 0, event.usage)
    _lost(study, asked[event.index + (event.usage is not None) :])
    del asked[event.index :]
    round.anew = not asked and not round.proposed


def _reopen(study: Study, round: Round, place: int) -> None:
    """A round that begins anew thinks from here. In strict order it knows the decisions that it knew."""
    if round.anew:
        round.anew, round.opened_at, round.calls = False, place, study.calls
        round.seen = round.seen if study.the_terms.order == "strict" else place - 1


def _abandon(study: Study, event: Abandoned) -> None:
    study.abandoned = event
    round = study.open[event.round]
    asked = round.asked[event.stage]
    if event.reason == "proposer_failed":
        _lost(study, asked)
    answered = any(isinstance(answer, Reply) and not answer.trouble for each in asked for answer in each.answers)
    if event.stage == "measure" or (answered and event.reason == "proposer_failed"):
        for exchange in asked:  # what was answered was paid for: it goes on from there
            exchange.answers[:] = [None if _fatal(answer) else answer for answer in exchange.answers]
        return
    del study.open[event.round]
    study.searched -= round.role == "search"


def _fatal(answer: Reply | Result | None) -> bool:
    return isinstance(answer, Reply) and answer.trouble == "fatal"


def _forget_asks(study: Study, prompts_changed: bool = False, over: bool = False) -> None:
    """Asks that nobody waits for any more are charged, and will be made anew; so will all of a round that had not
    proposed, where its prompts are no longer what they were. What an agent is at work on is found again, and stays set
    aside, unless all is `over` and it is ended.
    """
    for round in study.open.values():
        for stage, asked in round.asked.items():
            _lost(study, [exchange for exchange in asked if over or not exchange.at_work])
            engaged = any(exchange.at_work for exchange in asked)
            anew = prompts_changed and stage == "propose" and not (round.proposed or engaged)
            kept = [exchange for exchange in asked if not _unanswered(exchange) or _found_again(exchange, over)]
            round.anew |= not (kept or round.proposed) and any(exchange.roles == ("agent",) for exchange in asked)
            round.asked[stage] = [] if anew else kept
            round.calls = study.calls if anew else round.calls


def _found_again(exchange: Exchange, over: bool) -> bool:
    """Whether what an agent does now is still waited for: what was charged is not, or it would be charged twice."""
    return bool(exchange.handle) and not (over and exchange.worst)


def _unanswered(exchange: Exchange) -> bool:
    """Whether it is an ask that nobody answered a part of."""
    return not isinstance(exchange.asked, Runs) and len(exchange.missing()) == len(exchange.answers)


def _lost(study: Study, asked: Sequence[Exchange]) -> None:
    """Asks that nobody will hear the answer of, or only when they are made again: they may have been paid for. Not so a
    session that has no handle: an agent is let go after that is recorded.
    """
    for exchange in asked:
        begun = exchange.handle or exchange.roles != ("agent",)
        for member in exchange.missing() if exchange.worst and begun else ():
            _charge(study, exchange, member, exchange.worst[member])


def _charge(study: Study, exchange: Exchange, member: int, usage: Usage) -> None:
    role = exchange.roles[member] if exchange.roles else ""
    study.costs[role] = study.costs.get(role, Usage()).plus(usage)


def _propose(study: Study, event: Proposed | Refused, place: int) -> None:
    round = study.open[event.round]
    _reopen(study, round, place)
    fingerprint = study.host.fingerprint if study.host else ""
    proposal = event.proposal
    if proposal.texts:
        study.contents.update(proposal.texts)
        proposal = replace(proposal, texts={})
    trial = Trial(event.trial, event.round, round.role, _pack(proposal), place, fingerprint)
    trial.request = round.directive.request if round.directive else ""
    study.trials[event.trial] = trial
    study.latest = max(study.latest, event.trial)
    round.trials.append(event.trial)
    round.proposed = True
    study.fallbacks += bool(event.proposal.fallback)
    if isinstance(event, Refused):
        trial.refusal = event.refusal
    elif round.role != "baseline":
        before = study.keys.setdefault(event.proposal.change.key(), event.trial)
        while before in study.again:
            before = study.again[before]
        if before != event.trial:
            study.again[before] = event.trial


def _ask_runs(study: Study, event: RunsAsked, place: int) -> None:
    round = study.open[event.round]
    asked = Runs(event.trial, event.runs, event.against, event.against_runs)
    wanted = asked.wanted()
    for trial, number in wanted:
        if number == HELD_OUT:
            study.held.setdefault(trial, Run(HELD_OUT))
        else:
            study.trials[trial].ask(number)
    round.waits += wanted
    if 0 in event.runs:
        return
    if round.judged_at is None:
        round.judged_at = place - 1
        if round.role not in ("baseline", "holdout"):
            study.blocks.append(round.judged_at)
        if round.role in ("search", "directed", "proof"):
            # against a parent: another, against the incumbent, may follow
            study.tests += [round.judged_at] * (1 if event.against == study.tally.incumbent else 2)
    runs = [study.run(trial, number) for trial, number in wanted]
    answers: list[Reply | Result | None] = [run.last if run.settled else None for run in runs]
    round.asked["measure"].append(Exchange(asked, answers))


def _finish(study: Study, event: Finished, place: int) -> None:
    run = study.run(event.trial, event.run)
    run.running, run.handle = False, ""
    run.last, run.exit = event.result, event.exit
    if event.run != HELD_OUT:
        study.ended, study.run_seconds = study.ended + 1, study.run_seconds + getattr(event.result, "seconds", 0.0)
    if isinstance(event.result, Failed) and event.result.kind == "lost":
        run.losses += 1
    if event.trial == PREPARE or not run.settled:
        return
    if (trial := study.trials[event.trial]).gate and not event.run and not _holds(study, trial):
        study.freed[event.trial] = place
    if event.run > 0 and isinstance(event.result, Ran):
        _compare(study, study.trials[event.trial].result, event.result, place)
    key = (event.trial, event.run)
    for exchange in (exchange for round in study.open.values() for exchange in round.asked["measure"]):
        if isinstance(exchange.asked, Runs) and key in (wanted := exchange.asked.wanted()):
            exchange.answers[wanted.index(key)] = event.result


def _compare(study: Study, first: Result | None, again: Ran, place: int) -> None:
    """Notes whether a repeat gave what the first look gave: a metric that never differs is deterministic."""
    name = study.objective.metric
    if isinstance(first, Ran):
        study.rerun_at = place if study.rerun_at is None else study.rerun_at
        if study.differed_at is None and first.metrics.get(name) != again.metrics.get(name):
            study.differed_at = place


def _measure(study: Study, event: Measured, place: int) -> None:
    round = study.open[event.round]
    round.scores, round.panel = event.scores, event.panel
    round.asked["measure"].clear()  # a test that is done again, against another incumbent, is a new one
    round.judged_at = None
    _, evidence = study.evidence[-1]
    for number, score in zip(round.trials, event.scores, strict=True):
        trial = study.trials[number]
        trial.score = score if score is None or score.others else replace(score, others=NO_OTHERS)
        if round.role == "baseline" and score is not None and score.runs > 1:
            evidence = evidence.with_baseline(_values(study, trial))
        if score is not None and (test := score.test) is not None:
            evidence = evidence.with_test(test.number, test.differences, test.kept)
            if test.crown is not None:  # its runs are in the evidence already, by the candidate's half
                evidence = evidence.with_test(test.crown.number, (), test.crown.kept)
    if evidence is not study.evidence[-1][1]:
        study.evidence.append((place, evidence))


def _values(study: Study, trial: Trial) -> list[float]:
    name = study.objective.metric
    return [run.last.metrics[name] for run in trial.runs.values() if isinstance(run.last, Ran)]


def _decide(study: Study, event: Decided, place: int) -> None:
    round, decision, before = study.open.pop(event.round), event.decision, study.tally
    if round.role == "holdout":
        return  # nothing follows from it, for the search least of all
    study.faults = study.session_faults = 0
    if round.panel is not None:
        study.passes.append(Pass(round.number, tuple(round.trials), round.panel, study.at - round.began))
    crowned = decision.crowned is not None and decision.crowned != before.incumbent
    for number in round.trials:
        _settle(study, round, study.trials[number], decision, place)
    results = [(study.trials[number], study.trials[number].result) for number in round.trials]
    # pruned and stopped ones say nothing of failure or progress
    judged = round.panel is not None
    settled = [trial for trial, result in results if judged or isinstance(result, (Ran, Failed, Refusal))]
    counted = [trial for trial in settled if trial.number not in study.freed]
    searched = round.role in ("search", "directed")
    for trial in settled if searched else ():
        if trial.score is not None:
            value, count = study.equal
            study.equal = trial.score.value, (count + 1 if trial.score.value == value else 1)
    progress = decision.provisional or (crowned and round.role != "proof")  # what a proof crowns was progress before
    incumbent = decision.crowned if crowned else before.incumbent
    score = study.trials[incumbent].score if incumbent is not None else None
    study.tally = Tally(
        place=place,
        settled=before.settled + len(settled) * searched,
        since_best=0 if progress else before.since_best + len(counted) * searched,
        best_at=place if progress else before.best_at,
        measured=before.measured + sum(study.trials[n].score is not None for n in round.trials) * searched,
        recent=_window(study, before.recent, settled if searched else []),
        incumbent=incumbent,
        leads=decision.leads,
        best=score.value if score else None,
        keeps=before.keeps + len(decision.kept) * searched,
        curve=_curve(study, before.curve, round, settled),
        exhausted=before.exhausted or ("" if round.trials or not searched else decision.why),
    )
    study.tallies.append(study.tally)
    while len(study.tallies) > study.the_terms.window:
        study.tallies.popleft()
    _rank(study, round, decision, before, place)


def _settle(study: Study, round: Round, trial: Trial, decision: Decision, place: int) -> None:
    """A trial of a round that was decided. A proof decides one again that was settled before."""
    number, before = trial.number, study.tally
    if trial.kept and number not in decision.kept:
        study.dropped[number] = place
    crowned = decision.crowned is not None and number == decision.crowned != before.incumbent
    trial.standing = (
        KEPT * (number in decision.kept) | CROWNED * crowned | PROVISIONAL * (number in decision.provisional)
    )
    trial.decided_at = place if trial.decided_at is None else trial.decided_at
    trial.why, trial.beat = decision.why, before.incumbent if round.role == "proof" else before.leader
    study.kills.pop(number, None)
    study.condemned.pop(number, None)
    if trial.reports and round.role != "proof" and not isinstance(trial.result, Failed):
        study.reporters.append(number)


def _rank(study: Study, round: Round, decision: Decision, before: Tally, place: int) -> None:
    """Who holds what now: the crown, the lead, the front, a place among those that wait for their proof."""
    now = study.tally
    if now.incumbent is not None and now.incumbent != before.incumbent:
        study.crowns.append((place, now.incumbent))
    if now.leader is not None and now.leader != before.leader:
        study.leads.append((place, now.leader))
    if round.role == "baseline":
        study.floor = now
        study.baseline = decision.kept[0] if decision.kept else None
    for number in decision.left:
        if (trial := study.trials[number]).provisional:
            trial.standing &= ~(KEPT | PROVISIONAL)
            study.dropped[trial.number] = place
            trial.why += f"; overtaken by trial {decision.crowned}"
    study.provisional = [n for n in (*study.provisional, *decision.provisional) if study.trials[n].provisional]
    if study.the_terms.several == "front":
        study.front = [n for n in (*study.front, *decision.kept) if n not in decision.left]


def _invalidate(study: Study, event: Invalidated, place: int) -> None:
    """They leave the tree. The crown, if one of them had it, goes back to who held it before; what the end had said of
    it is to be measured again.
    """
    for trial in (study.trials[number] for number in event.trials):
        trial.standing, trial.why = INVALID, f"{trial.why}; not so any more: {event.why}"
        study.dropped[trial.number] = place
    gone, before = set(event.trials), study.tally
    study.provisional = [number for number in study.provisional if number not in gone]
    study.front = [number for number in study.front if number not in gone]
    heirs = (number for _, number in reversed(study.crowns) if not study.trials[number].invalid)
    heir = next(heirs, study.baseline)
    leads = None if before.leads in gone else before.leads
    score = None if heir is None else study.trials[heir].score
    study.tally = replace(before, place=place, incumbent=heir, leads=leads, best=score.value if score else None)
    study.tallies[-1] = study.tally
    if heir is not None and heir != before.incumbent:
        study.crowns.append((place, heir))
        study.headline = None
    if study.tally.leader is not None and study.tally.leader != before.leader:
        study.leads.append((place, study.tally.leader))


def _curve(study: Study, curve: Curve, round: Round, settled: Sequence[Trial]) -> Curve:
    """The best so far, larger is better, over the baseline and every settled trial; None for one without a score."""
    if round.role in ("closing", "proof"):
        return curve
    for trial in settled:
        curve = curve.add(None if trial.score is None else study.objective.gain(trial.score.value, 0.0))
    return curve


def _window(study: Study, recent: tuple[int, ...], settled: Sequence[Trial]) -> tuple[int, ...]:
    return (*recent, *[trial.number for trial in settled])[-study.bounds.failure_window :]


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
            open_ = any(event.trial in round.trials for round in study.open.values())  # also for its proof
            if open_ and event.trial is not None:
                study.kills[event.trial] = event
        case "hint":
            study.hints.append(event)
            study.hinted.append(study.place)
        case "gate" | "ungate":
            study.regated.append(event)
            study.regated_at.append(study.at)
            study.gates.pop(event.text, None)
            if event.gate is not None:
                study.gates[event.gate.name] = (event.gate, event.trial)
            _free(study)


# ---- gates -----------------------------------------------------------------------------------------------------------


def _gate(study: Study, number: int) -> None:
    """Notes what a trial has to pass: the same tuple for all that have to pass the same."""
    gates, last = study.gates_of(number), next(reversed(study.gated.values()), ())
    study.gated[number] = last if gates == last else gates


def _holds(study: Study, trial: Trial) -> bool:
    """Whether the gate that a trial failed at is one still. Another one of that name is another."""
    gate, _ = study.gates.get(trial.gate, (None, None))
    return gate in study.gated.get(trial.number, ())


def _free(study: Study) -> None:
    """What failed at a gate that holds no more says nothing of failure or progress, and may be tried again."""
    for trial in study.trials.values():
        if trial.gate and trial.number not in study.freed and not _holds(study, trial):
            study.freed[trial.number] = study.place
    freed = [study.trials[number] for number, place in study.freed.items() if place == study.place]
    study.tally, study.floor = _without(study.tally, freed), _without(study.floor, freed)
    study.tallies = deque(_without(tally, freed) for tally in study.tallies)
    if freed and study.tally.exhausted:
        more_is_there(study)


def _without(tally: Tally, freed: Sequence[Trial]) -> Tally:
    """The counters as if these had not been settled after the newest better one."""
    places = [trial.decided_at or 0 for trial in freed if trial.role in ("search", "directed")]
    return replace(tally, since_best=tally.since_best - sum(tally.best_at < at <= tally.place for at in places))


# ---- what a round may see --------------------------------------------------------------------------------------------


class View:
    """The study as one round may see it: decisions up to the place where it opened its eyes, proposals up to its start.

    What came later is not there, so that a flow which runs again after a crash sees what it saw.
    """

    def __init__(self, study: Study, round: Round, seen: int) -> None:
        self._study, self._round, self._seen = study, round, seen
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

    @property
    def request(self) -> Directed | None:
        """What somebody asked for, in a directed round."""
        return self._round.directive

    @property
    def base(self) -> Mapping[str, str]:
        """Of a code study: the digests of the files that may be changed, by path."""
        return self._study.base

    @property
    def others(self) -> Sequence[str]:
        """The paths of what else there is."""
        return self._study.others

    def rng(self, salt: str = "") -> Random:
        """The round's own dice: the same seed, round and salt throw the same."""
        return Random(f"{self.terms.seed}/{self.round}{salt and '/' + salt}")

    def settled(self) -> Iterator[Trial]:
        """Decided trials, by number; the baseline and failed ones among them."""
        return (t for t in self._before() if t.decided_at is not None and t.decided_at <= self._seen)

    def keeps(self, trial: Trial) -> bool:
        """Whether a settled trial is kept, as this round knows it: what it was dropped for may lie in its future."""
        return trial.kept or self._study.dropped.get(trial.number, 0) > self._seen

    def pending(self) -> Iterator[tuple[int, Change]]:
        """Number and change of trials that were proposed before this round and whose outcome it may not know."""
        seen = self._seen
        return ((t.number, t.change) for t in self._before() if t.decided_at is None or t.decided_at > seen)

    def earlier(self) -> Iterator[Trial]:
        """Trials that were proposed before this round, the newest first. What they came to may lie in its future."""
        return (t for t in reversed(self._study.trials.values()) if self._earlier(t))

    def trial(self, number: int) -> Trial:
        """One that was proposed before this round."""
        return self._study.trials[number]

    def tried(self, change: Change) -> int | None:
        """The trial that had this very change, if one was proposed before this round (baselines do not count)."""
        number = self.taken(change)
        return number if number is not None and self._earlier(self._study.trials[number]) else None

    def taken(self, change: Change) -> int | None:
        """The same, if there is one by now: what a flow asks that waited long for its reply. The one thing here that is
        not as of a place; what was tried stays tried, so a flow that thinks again concludes the same.
        """
        number = self._study.keys.get(change.key())
        while number is not None and self.freed(number):
            number = self._study.again.get(number)
        return number

    def freed(self, number: int) -> bool:
        """Whether a trial failed at a gate that held no more when this round opened: then it is as if not tried."""
        return self._study.freed.get(number, self._round.opened_at) < self._round.opened_at

    def changed_code(self, trial: Trial) -> tuple[str, ...]:
        """`src/a.py +3 -1` for each file that a trial's code has otherwise than its parent's."""
        parent = trial.proposal.parent
        return self._study.changed_code(trial.change, None if parent is None else self._study.trials[parent].change)

    def code(self, change: Change) -> dict[str, str]:
        """The files that may be changed as `change` has them: texts by path."""
        digests = self._study.base | change.files
        return {path: self._study.contents[digest] for path, digest in digests.items()}

    @property
    def texts(self) -> Mapping[str, str]:
        """What prompts are made of, by name."""
        return self._study.texts

    @property
    def passes(self) -> Sequence["Pass"]:
        """Of a tournament, those before this round."""
        return [each for each in self._study.passes if each.round < self.round]

    @property
    def hints(self) -> Sequence[Directed]:
        """What people left for whoever proposes, before this round opened."""
        return self._study.hints[: bisect_left(self._study.hinted, self._round.opened_at)]

    @property
    def fruitless(self) -> tuple[int, str]:
        """How many sessions of an agent came to nothing before this round was opened again, and why the last did."""
        return self._round.fruitless, self._round.fault

    @property
    def index(self) -> int:
        """How many search rounds were opened before this one: 0 for the first."""
        return self._round.index

    @property
    def calls(self) -> int:
        """How many replies models had given before this round."""
        return self._round.calls

    @property
    def beside(self) -> int:
        """How many rounds were asking when this one was opened: none of them sees the others' answers."""
        return self._round.beside

    @property
    def most(self) -> int:
        """Search rounds that there may be in all."""
        return self._study.bounds.max_iterations

    @property
    def incumbent(self) -> Trial | None:
        """The holder of the crown as this round knows it."""
        return self._holder(self._study.crowns)

    @property
    def leader(self) -> Trial | None:
        """The trial to grow from: the incumbent, or what looks better and, by `provisional`, leads before its proof."""
        return self._holder(self._study.leads)

    def leader_at(self, ask: int) -> Trial | None:
        """The leader as of the answer to the round's ask of this number, whatever the round knew when it opened: what a
        change of code that was waited for is put on. In strict order it is the one that the round knew, for nothing may
        hang on who was faster.
        """
        exchanges = self._round.asked["propose"]
        if self.terms.order == "strict" or ask >= len(exchanges):
            return self.leader
        return self._holder(self._study.leads, max(self._seen, exchanges[ask].known))

    # ---- what measuring wants to know

    @property
    def baseline(self) -> Trial | None:
        number = self._study.baseline
        return None if number is None else self._study.trials[number]

    @property
    def evidence(self) -> Evidence:
        """What re-runs had shown."""
        return self._study.evidence_at(self._seen)

    @property
    def deterministic(self) -> bool:
        """Whether the metric never varied, as this round knows it."""
        return self._study.deterministic_at(self._seen)

    def hurdles(self, rival: Trial | None = None) -> tuple[float, ...]:
        """What a first run is held against: one that is better than any of these looks better. Empty before there is
        anything.

        The value of `rival`; unless that is given, of the leader, and by `proven` of the incumbent: where common seeds
        matter, of its own first run, which had the same seed; and while nobody knows whether they do, both.
        """
        holder = rival or (self.incumbent if self.terms.rule == "proven" else self.leader)
        if holder is None or holder.score is None:
            return ()
        own = holder.score.value
        twin = holder.result.metrics.get(self.objective.metric) if isinstance(holder.result, Ran) else None
        paired = self.evidence.paired()
        if self.terms.rule != "proven" or self.deterministic or twin is None or paired is False:
            return (own,)
        return (twin,) if paired else (own, twin)

    @property
    def block(self) -> int:
        """How many rounds had begun to ask for runs on fresh seeds."""
        return bisect_left(self._study.blocks, self._seen)

    @property
    def tests(self) -> int:
        """How many tests had begun, those that still ran among them."""
        return bisect_left(self._study.tests, self._seen)

    def _holder(self, since: Sequence[tuple[int, int]], seen: int | None = None) -> Trial | None:
        at = bisect_right(since, (self._seen if seen is None else seen, 1 << 62))
        return self._study.trials[since[at - 1][1]] if at else None

    def _earlier(self, trial: Trial) -> bool:
        return trial.proposed_at < self._round.opened_at

    def _before(self) -> Iterator[Trial]:
        return (t for t in self._study.trials.values() if self._earlier(t))
