"""What a study waits for: every act there is to do, each with a key that stays the same until it is done.

Pure: it sees the study and the time, and knows nothing of what is under way. It costs as much as there are open rounds.
Acts come in two kinds: those that only think (`OpenRound`, `Think`, `Settle`, `Close`) and those that touch the world
(`StartRun`, `StopRun`, `AskModel`, `StopSession`, `WakeAt`).
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Literal, TypeAlias

import msgspec

from metaloop.costs import unaffordable
from metaloop.events import Role, Stage
from metaloop.flow import Runs
from metaloop.forecast import doomed
from metaloop.roles import Ending
from metaloop.study import FAULTS, PREPARE, SESSION_FAULTS, Round, Study, Tally, Trial
from metaloop.terms import PLATEAU, Tournament
from metaloop.values import Failed, Ran

AHEAD = 8
"""Open rounds at most, where asks are made ahead; more lanes than that have as many as there are lanes."""

CHECKPOINT = 20
"""Search rounds from one checkpoint of a provisional search to the next."""

PAUSE_S, LONGEST_S = 1.0, 600.0
"""Seconds from a faulted round of an agent's sessions to the next: at first, and at most; each twice the one before."""

PROOFS = 3
"""Trials that are put to the proof at a checkpoint, and at the end: the leading few."""


class Act(msgspec.Struct, frozen=True):
    """Something to do. Equal acts are the same act: the value is its own key."""


class OpenRound(Act, frozen=True):
    """A lane is free: begin a round that thinks from place `seen`; a proof, and one on held-out data, is of `trial`."""

    round: int
    role: Role
    seen: int
    trial: int | None = None


class Think(Act, frozen=True):
    """Drive the round's flow: it concludes, or it asks."""

    round: int
    stage: Stage


class Settle(Act, frozen=True):
    """Decide the round."""

    round: int


class Close(Act, frozen=True):
    """End the study."""

    ending: Ending


class StartRun(Act, frozen=True):
    """See this run to its end: start it, or follow what runs already. `trial` may be PREPARE."""

    trial: int
    run: int


class StopRun(Act, frozen=True):
    """End what runs: the study's time is over, or somebody said stop."""

    trial: int
    run: int
    why: str
    by: Literal["guard", "person", "prune"] = "guard"


class AskModel(Act, frozen=True):
    """Put this member of a recorded ask to the model."""

    round: int
    stage: Stage
    index: int
    member: int


class WakeAt(Act, frozen=True):
    """Look again at this study second, whatever happens."""

    at: float


class StopSession(Act, frozen=True):
    """End the agent that is at work on this ask: the study is over. What it has cost by then is recorded."""

    round: int
    stage: Stage
    index: int


Deed: TypeAlias = StartRun | StopRun | AskModel | StopSession | WakeAt


def plan(study: Study, now: float) -> tuple[Act, ...]:
    """Every act the study waits for at study second `now`. Nothing for a study that is closed or was never opened."""
    if study.terms is None or study.closed is not None:
        return ()
    abrupt = cut_short(study, now)
    if study.terms.prepare and not isinstance(study.prepare.last, Ran):
        return _prepare(study, abrupt)
    acts: list[Act] = []
    for round in study.open.values():
        if study.abandoned is not None and study.abandoned.round == round.number:
            continue  # a panel that could not be asked
        if study.mode == "run" or round.role == "directed":
            acts += _wind_up(study, round, abrupt) if abrupt else _advance(study, round, now)
    if abrupt:
        return tuple(acts) or (Close(abrupt),)
    if (opening := next_round(study)) is not None:
        acts.append(opening)
    if study.terms.order == "strict":
        acts.reverse()  # what opens or proposes comes before the next decision: one order of facts, whoever is faster
    waits = study.paused and study.mode == "run" and held_next(study) is not None
    if not acts and not waits and (ending := enough(study, _known(study))) is not None:
        acts.append(Close(ending))
    return (*acts, WakeAt(study.bounds.max_wall_time_s))


# ---- rounds ----------------------------------------------------------------------------------------------------------


def next_round(study: Study) -> OpenRound | None:
    """The round that may begin now, if one may: lanes, window, budget and guards allow it."""
    if study.paused or len(study.open) >= study.bounds.lanes + ahead(study):
        return None
    number = study.rounds + 1
    if study.directives:
        return OpenRound(number, "directed", study.place)
    if study.mode == "one":
        return None
    if _needs_proof(study):
        return OpenRound(number, "proof", study.place, study.tally.leads)
    if _needs_closing(study):
        return OpenRound(number, "closing", study.place)
    if (trial := held_next(study)) is not None:
        return OpenRound(number, "holdout", study.place, trial)
    if any(round.role == "holdout" for round in study.open.values()):
        return None  # of an end that was interrupted: the search goes on when it is done
    if _needs_baseline(study):
        return None if study.open or _hopeless(study) else OpenRound(number, "baseline", study.place)
    tally = _known(study)
    if tally is None or study.searched >= study.bounds.max_iterations or enough(study, tally) is not None:
        return None
    if study.open and _at_checkpoint(study):
        return None
    if study.the_terms.order == "strict":
        return OpenRound(number, "search", tally.place) if _all_proposed(study) else None
    return OpenRound(number, "search", study.place)


def again_at(round: Round) -> float:
    """The study second before which a round that faulted does not begin anew: what failed at once, such as at a rate
    limit, will fail again at once.
    """
    if not round.anew or not round.faults:
        return 0.0
    return round.faulted_at + min(LONGEST_S, PAUSE_S * 2.0 ** min(round.faults - 1, 30))


def ahead(study: Study) -> int:
    """Rounds beyond the lanes that may be open: asks that are under way while trials run, so that no lane waits.

    As many as it takes where asks and runs take as long as they did; but `AHEAD` open rounds in all at most, and no
    more than trials are settled (or lanes), for each of them knows less. 0 before the first answer came.
    """
    terms = study.the_terms
    if not study.asks or not study.ended or terms.engages or terms.tournament or terms.repair or terms.campaign:
        return 0  # an agent begins from what is best, and what it does cannot be put on something else
    lanes = study.bounds.lanes
    ratio = (study.ask_seconds / study.asks) / max(study.run_seconds / study.ended, 1e-3)
    return max(0, min(AHEAD - lanes, lanes * math.ceil(ratio), max(lanes, study.tally.settled)))


def _known(study: Study) -> Tally | None:
    """The newest counters that the next round may look at; None while it has to wait for some.

    `strict`: those of the round `window` before it, however many are decided already, so that lanes change nothing.
    """
    if study.the_terms.order == "free":
        return study.tally
    back = study.the_terms.window - len(study.open)
    if back <= 0:
        return None
    known = study.tallies[-back] if len(study.tallies) >= back else study.floor
    return max(known, study.floor, key=lambda tally: tally.place)


def _all_proposed(study: Study) -> bool:
    return all(round.proposed for round in study.open.values())


def _needs_baseline(study: Study) -> bool:
    baseline = study.the_terms.baseline
    return baseline.kind != "none" and baseline.repeats > 0 and study.baseline is None


def _at_checkpoint(study: Study) -> bool:
    """Whether the search pauses here, however many lanes there are: to prove what only looks better."""
    return study.the_terms.rule == "provisional" and study.searched > 0 and study.searched % CHECKPOINT == 0


def _needs_proof(study: Study) -> bool:
    """Whether what looks best is put to the proof: at a checkpoint or at the end, while nothing else is under way."""
    if study.open or study.tally.leads is None or study.proofs >= PROOFS:
        return False
    return _at_checkpoint(study) or enough(study, _known(study)) is not None


def _needs_closing(study: Study) -> bool:
    """Whether the search is over, and what it found was not yet measured against the baseline once more."""
    best, baseline = study.tally.incumbent, study.baseline
    rules = study.the_terms.tournament
    asked = rules is not None and rules.final > 0 and not rules.compare
    if (study.the_terms.rule == "strict" and not asked) or study.open or best in (None, baseline) or baseline is None:
        return False
    if study.headline is not None and study.headline.best == best:
        return False
    return enough(study, _known(study)) is not None


def held_next(study: Study) -> int | None:
    """The trial to be scored next on held-out data: when the search is over and its end was measured, in any lane."""
    if not study.the_terms.holdout or any(round.role != "holdout" for round in study.open.values()):
        return None
    if enough(study, _known(study)) is None:
        return None
    asked = study.held.keys() | {round.held for round in study.open.values()}
    return next((number for number in _to_hold(study) if number not in asked), None)


def _to_hold(study: Study) -> Iterator[int]:
    """The baseline and the best, and if that was asked for, all else that is kept."""
    ends = [number for number in (study.baseline, study.tally.incumbent) if number is not None]
    yield from dict.fromkeys(ends)
    if study.bounds.holdout == "kept":
        yield from (trial.number for trial in study.trials.values() if trial.kept and trial.number not in ends)


def _stale(study: Study, round: Round) -> bool:
    """Whether a trial was proven better than an incumbent that is no longer the one: then it is measured again."""
    tests = (score.test.deciding for score in round.scores or () if score is not None and score.test is not None)
    return any(test.kept and test.against != study.tally.incumbent for test in tests if test is not None)


def _advance(study: Study, round: Round, now: float) -> list[Act]:
    """What an open round waits for."""
    if now < (again := again_at(round)):
        return [WakeAt(again)]
    for stage in ("propose", "measure"):
        for index, exchange in enumerate(round.asked[stage]):
            if not isinstance(exchange.asked, Runs) and (missing := exchange.missing()):
                if unaffordable(study) and not exchange.handle:  # a cap was lowered, or asks were lost: it is given up
                    return [Think(round.number, stage)]
                return [AskModel(round.number, stage, index, member) for member in missing]
    if not round.proposed:
        return [Think(round.number, "propose")]
    waiting = [(t, r) for t, r in round.waits if not study.run(t, r).settled]
    if waiting:
        return [*(StartRun(t, r) for t, r in waiting), *_killed(study, waiting)]
    if study.the_terms.order == "strict" and round.number != next(iter(study.open)):
        return []
    if round.scores is None or _stale(study, round):
        return [Think(round.number, "measure")]
    return [Settle(round.number)]


def _killed(study: Study, waiting: Sequence[tuple[int, int]]) -> Iterator[StopRun]:
    """What runs of trials that a person wants ended, or that cannot win. It is followed, and settled by its end."""
    for trial, run in waiting:
        if not study.run(trial, run).running:
            continue
        if (kill := study.kills.get(trial)) is not None:
            yield StopRun(trial, run, f"ended by {kill.by}" + (f": {kill.why}" if kill.why else ""), "person")
        elif (why := study.condemned.get(trial)) is not None:
            yield StopRun(trial, run, why, "prune")


def _prepare(study: Study, abrupt: Ending | None) -> tuple[Act, ...]:
    run = study.prepare
    if abrupt:
        stopping = StartRun(PREPARE, 0), StopRun(PREPARE, 0, abrupt.why)
        return stopping if run.running else (Close(abrupt),)
    if run.settled:
        reason = run.last.reason if isinstance(run.last, Failed) else str(run.last)
        return (Close(Ending("prepare_failed", f"prepare failed: {reason}")),)
    return StartRun(PREPARE, 0), WakeAt(study.bounds.max_wall_time_s)


def _wind_up(study: Study, round: Round, ending: Ending) -> list[Act]:
    """What an open round waits for when the study ends now: what runs is stopped, what is known is decided."""
    runs = [(t, r, study.run(t, r)) for t, r in round.waits]
    for index, exchange in enumerate(round.asked["propose"]):
        if exchange.at_work:  # followed as well, for it may be inherited
            return [AskModel(round.number, "propose", index, 0), StopSession(round.number, "propose", index)]
    if running := [(t, r) for t, r, run in runs if run.running]:  # followed as well, for it may be inherited
        return [act for t, r in running for act in (StartRun(t, r), StopRun(t, r, ending.why))]
    if ending.reason == "faulted" or not runs or not all(run.settled for _, _, run in runs):
        return []  # what cannot be thought is left as it is
    return _advance(study, round, math.inf)


# ---- guards ----------------------------------------------------------------------------------------------------------


def cut_short(study: Study, now: float) -> Ending | None:
    """The reasons that end a study at once, in the middle of a trial."""
    if study.stop is not None:
        return Ending("stopped", f"stopped by {study.stop.by}" + (f": {study.stop.why}" if study.stop.why else ""))
    if now >= study.bounds.max_wall_time_s:
        return Ending("wall_clock", f"the study's {study.bounds.max_wall_time_s:g} s of wall clock are used up")
    if study.faults - study.session_faults >= FAULTS or study.session_faults >= SESSION_FAULTS:
        return Ending("faulted", f"{study.faults} rounds running could not be thought through; the last: {study.fault}")
    return None


def enough(study: Study, tally: Tally | None = None) -> Ending | None:
    """The first guard that says so, by the counters of `tally` (the newest, unless given)."""
    bounds, tally = study.bounds, tally or study.tally
    if study.mode == "one" and not study.directives:
        return Ending("directed", "what was asked for is done")
    if study.abandoned is not None:
        return Ending(study.abandoned.reason, study.abandoned.why)
    if _needs_baseline(study) and _hopeless(study):
        return Ending("baseline_failed", "the baseline could not be measured")
    if tally.best is not None and (goal := study.objective.reached(tally.best)) is not None:
        return Ending(
            "target", f"the {'target' if goal == study.objective.target else 'ceiling'} of {goal:g} is reached"
        )
    if tally.exhausted:
        return Ending("exhausted", tally.exhausted)
    if (repair := study.the_terms.repair) is not None and study.calls >= repair.calls:
        return Ending(
            "exhausted", "its one call is made" if repair.calls == 1 else f"all {repair.calls} calls are made"
        )
    if study.the_terms.tournament is not None and (ending := _settled(study, study.the_terms.tournament)):
        return ending
    if _failing(study, tally):
        reasons = [getattr(trial.result, "reason", "") for trial in window(study, tally) if trial.failed]
        commonest = "".join(f"; most often: {reason}" for reason, _ in Counter(reasons).most_common(1))
        return Ending("failure_rate", f"{len(reasons)} of the last {len(tally.recent)} trials failed{commonest}")
    if bounds.no_improve_limit and tally.since_best >= bounds.no_improve_limit:
        return Ending("no_improvement", f"{tally.since_best} trials in a row were no improvement")
    if bounds.forecast and (said := _forecast(study, tally)):
        return Ending("forecast", said)
    if study.searched >= bounds.max_iterations:
        rules = study.the_terms.tournament
        what = "trials" if rules is None else "comparisons" if rules.compare else "passes"
        once = rules is not None and rules.compare and bounds.max_iterations == 1
        said = "the comparison is done" if once else f"all {bounds.max_iterations} {what} are done"
        return Ending("max_iterations", said)
    return None


def _settled(study: Study, rules: Tournament) -> Ending | None:
    """Whether a tournament is over: the document has held for long enough, or its panel does not come to anything."""
    winners = [each.panel.winner for each in study.passes]
    voids = next((at for at, winner in enumerate(reversed(winners)) if winner), len(winners))
    if voids >= rules.voids:
        return Ending("stalled_panel", f"{voids} passes running had no winner; the last: {study.passes[-1].panel.why}")
    if rules.compare:
        return None
    counted = [winner for winner in winners if winner]
    if len(counted) >= rules.k and set(counted[-rules.k :]) == {"A"}:
        return Ending("converged", f"the document won {rules.k} passes running")
    points = [each.panel.points.get("A", 0) for each in study.passes if each.panel.points]
    if rules.plateau is not None and len(points) >= PLATEAU and fmean(points[-PLATEAU:]) >= rules.plateau:
        said = f"the document had {fmean(points[-PLATEAU:]):.3g} points on average over the last {PLATEAU} passes"
        return Ending("plateau", f"{said}, and {rules.plateau:g} are enough")
    return None


def _forecast(study: Study, tally: Tally) -> str:
    """Why the rest of the budget is not worth it; empty where it may be, or nothing can be said."""
    noise = study.evidence_at(tally.place).width()
    return doomed(tally.curve, tally.keeps, study.bounds.max_iterations - study.searched, study.bounds.min_gain, noise)


def _hopeless(study: Study) -> bool:
    """Whether every way to a baseline was tried: a script that needs parameters gets the middle of the space, if there
    is one. A gate is not passed for want of parameters.
    """
    script = study.the_terms.baseline.kind == "script" and study.the_terms.space
    last = next((trial for trial in reversed(study.trials.values()) if trial.role == "baseline"), None)
    return study.baselines >= (2 if script and not (last and last.gate) else 1)


def _failing(study: Study, tally: Tally) -> bool:
    """Only a full window counts: 7 of 8 is a rate, 7 of 7 is a start."""
    trials = window(study, tally)
    full = len(trials) >= study.bounds.failure_window
    return full and sum(trial.failed for trial in trials) / len(trials) >= study.bounds.failure_rate_limit


def window(study: Study, tally: Tally) -> list[Trial]:
    """The trials that the failure rate is of: not those that failed at a gate that holds no more."""
    return [study.trials[number] for number in tally.recent if number not in study.freed]
