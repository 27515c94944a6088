"""Which trials a policy may grow from, the frontier; and which of them it does, by a strategy.

The core takes plain values and a direction, a thin layer takes them from a view. Dice are the caller's, and every order
is by score and number, so that the same seed picks the same. Knows nothing of what is grown, or by whom.

Not covered: a tie in the objective is broken by number, even where a further objective would. No fact says so far that
a kept trial is invalid after all; when one does, the trial and its descendants have to leave here.
"""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, TypeAlias

from metaloop.errors import UsageError
from metaloop.study import Trial, View
from metaloop.values import Direction, Ran, Value, number

# ---- strategies ------------------------------------------------------------------------------------------------------


class Settings(Value, frozen=True, kw_only=True):
    """What all strategies have. `leaves_only`: a trial with a kept child is grown from no longer.

    Raises UsageError for a setting that does not fit.
    """

    leaves_only: bool = False

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            expected, fits = FITTING[name]
            if not fits(value := getattr(self, name)):
                raise UsageError(f"frontier: expected {name} to be {expected}; found {_shown(value)}")


class Argmax(Settings, frozen=True):
    """The best alone, however many are wanted."""


class TopK(Settings, frozen=True):
    """The `k` best, the best first."""

    k: int = 5


class EpsilonGreedy(Settings, frozen=True):
    """The best that is left; or, with the chance `epsilon`, any that is left."""

    epsilon: float = 0.1


class Softmax(Settings, frozen=True):
    """Up to `k`, drawn without replacement, each with the weight exp((score - best) / temperature)."""

    temperature: float = 0.5
    k: int = 5


class ParetoPerTask(Settings, frozen=True):
    """Up to `k` of those that are best at some task, drawn without replacement by how many tasks they win.

    Larger is better at a task where it is for the objective, unless `directions` says otherwise by the task's name.
    Where larger is better, a task that nobody does above `task_floor` has no winner.
    """

    k: int = 5
    task_floor: float = 0.0
    directions: dict[str, Direction] = {}


Strategy: TypeAlias = Argmax | TopK | EpsilonGreedy | Softmax | ParetoPerTask

STRATEGIES: dict[str, type[Strategy]] = {
    "argmax": Argmax,
    "top_k": TopK,
    "epsilon_greedy": EpsilonGreedy,
    "softmax": Softmax,
    "pareto_per_task": ParetoPerTask,
}


def parse(raw: Mapping[str, object] | str) -> Strategy:
    """`top_k`, or `{strategy: top_k, k: 3}`. A task's direction may be written `directions.ms: min`, so that settings
    can be kept as a flat mapping. Raises UsageError for what is no strategy, or a setting that it does not have.
    """
    given: dict[str, Any] = dict(raw) if isinstance(raw, Mapping) else {"strategy": raw}
    name = given.pop("strategy", None)
    kind = STRATEGIES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise UsageError(f"frontier: expected a strategy, one of {', '.join(STRATEGIES)}; found {_shown(name)}")
    directions = {key.partition(".")[2]: given.pop(key) for key in list(given) if key.startswith("directions.")}
    if directions:
        given.setdefault("directions", directions)
    known = kind.__struct_fields__
    for key in given:
        if key not in known:
            raise UsageError(f"frontier: expected settings of {name} ({', '.join(sorted(known))}); found {_shown(key)}")
    return kind(**given)


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)[:80]


def _finite(value: object) -> bool:
    return number(value) and abs(value) <= sys.float_info.max


def _directions(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(task, str) and isinstance(way, str) and way in ("max", "min") for task, way in value.items()
    )


FITTING: dict[str, tuple[str, Callable[[object], bool]]] = {
    "leaves_only": ("true or false", lambda value: isinstance(value, bool)),
    "k": ("a whole number of at least 1", lambda value: number(value) and isinstance(value, int) and value >= 1),
    "epsilon": ("a number from 0 to 1", lambda value: number(value) and 0 <= value <= 1),
    "temperature": ("a finite number above 0", lambda value: _finite(value) and number(value) and value > 0),
    "task_floor": ("a finite number", _finite),
    "directions": ("max or min for each task", _directions),
}
"""By setting: what is expected, in words, and whether a value is that."""


# ---- plain values ----------------------------------------------------------------------------------------------------


class Candidate(Value, frozen=True):
    """What a strategy looks at: a trial's number, its score and, where it told them, its scores by task."""

    number: int
    score: float
    tasks: dict[str, float] = {}


def ranked(candidates: Sequence[Candidate], direction: Direction) -> list[Candidate]:
    """The best first, ties by number."""
    return sorted(candidates, key=lambda one: (-one.score if direction == "max" else one.score, one.number))


def weights(candidates: Sequence[Candidate], strategy: Strategy, direction: Direction) -> dict[int, float]:
    """The chance of each to be picked first, by number, the best first."""
    order = ranked(candidates, direction)
    shares = _weighing(order, strategy, direction)(order)
    total = math.fsum(shares)
    return {one.number: share / total for one, share in zip(order, shares, strict=True)}


def draw(
    candidates: Sequence[Candidate], strategy: Strategy, direction: Direction, rng: Random, width: int = 1
) -> list[int]:
    """The numbers of up to `width` candidates, none twice: the best first, or in the order in which they were drawn."""
    left = ranked(candidates, direction)
    weigh = _weighing(left[:], strategy, direction)
    most = min(width, strategy.k) if isinstance(strategy, TopK | Softmax | ParetoPerTask) else width
    drawn: list[int] = []
    while len(drawn) < most and any(shares := weigh(left)):
        drawn.append(left.pop(_throw(shares, rng)).number)
    return drawn


Weigh: TypeAlias = Callable[[Sequence[Candidate]], list[float]]
"""The weight of each candidate that is left, the best first; all zero where none of them is to be picked."""


def _weighing(order: Sequence[Candidate], strategy: Strategy, direction: Direction) -> Weigh:
    """How a strategy weighs what is left of these."""
    match strategy:
        case Argmax():
            return lambda left: [float(one.number == order[0].number) for one in left]
        case TopK():
            return lambda left: [float(place == 0) for place in range(len(left))]
        case EpsilonGreedy(epsilon=epsilon):
            return lambda left: [(1 - epsilon) * (place == 0) + epsilon / len(left) for place in range(len(left))]
        case Softmax(temperature=temperature):
            # against the best that is left: its exponent is 0, so that something always has weight
            return lambda left: [math.exp(-abs(one.score - left[0].score) / temperature) for one in left]
        case ParetoPerTask():
            won = wins(order, strategy, direction)
            return (
                (lambda left: [float(won.get(one.number, 0)) for one in left])
                if won
                else _weighing(order, Argmax(), direction)
            )


def _throw(shares: Sequence[float], rng: Random) -> int:
    """A place, each as likely as its share says; never one without a share."""
    point, reached, last = rng.random() * math.fsum(shares), 0.0, 0
    for place, share in enumerate(shares):
        reached, last = reached + share, place if share else last
        if point < reached:
            return place
    return last  # rounding


def wins(candidates: Sequence[Candidate], strategy: ParetoPerTask, direction: Direction) -> dict[int, int]:
    """How many tasks each survivor wins, by number, the best first. Empty: there is nothing to compare by task.

    Out, from the lowest score up, goes who wins only where another still wins too.
    """
    order = ranked(candidates, direction)
    fronts = [front for name in _tasks(order) if (front := _front(order, name, strategy, direction))]
    survivors: list[tuple[int, int]] = []
    for one in reversed(order):
        mine = [front for front in fronts if one.number in front]
        if mine and all(len(front) > 1 for front in mine):
            for front in mine:
                front.remove(one.number)
        elif mine:
            survivors.insert(0, (one.number, len(mine)))
    return dict(survivors)


def _tasks(order: Sequence[Candidate]) -> list[str]:
    return list(dict.fromkeys(name for one in order for name in one.tasks))


def _front(order: Sequence[Candidate], task: str, strategy: ParetoPerTask, direction: Direction) -> set[int]:
    """Who is best at a task. Nobody, where fewer than two told of it, or none is above the floor."""
    told = [(one.number, one.tasks[task]) for one in order if math.isfinite(one.tasks.get(task, math.nan))]
    if len(told) < 2:
        return set()
    up = strategy.directions.get(task, direction) == "max"
    best = (max if up else min)(value for _, value in told)
    return set() if up and best <= strategy.task_floor else {one for one, value in told if value == best}


# ---- from a view -----------------------------------------------------------------------------------------------------


def frontier(view: View, *, leaves_only: bool = False) -> list[Trial]:
    """The trials that may be grown from, by number: kept ones with a score, the baseline among them, as the round knows
    them. Those that break a bound only where none holds them all.

    `leaves_only`: without those that have a child here. A child that runs, failed, was lost or was not kept hides
    nobody.
    """
    kept = [trial for trial in view.settled() if view.keeps(trial) and _measured(trial)]
    trials = [trial for trial in kept if _holds(view, trial)] or kept
    if not leaves_only:
        return trials
    parents = {trial.proposal.parent for trial in trials}
    return [trial for trial in trials if trial.number not in parents]


def _measured(trial: Trial) -> bool:
    return isinstance(trial.result, Ran) and trial.score is not None and math.isfinite(trial.score.value)


def _holds(view: View, trial: Trial) -> bool:
    others = {} if trial.score is None else trial.score.others
    return not any(bound.broken(others.get(bound.metric)) for bound in view.terms.constraints)


def candidate(trial: Trial) -> Candidate:
    """A trial of the frontier as a strategy sees it: its tasks are those of its first run."""
    assert trial.score is not None
    tasks = trial.result.tasks if isinstance(trial.result, Ran) else None
    return Candidate(trial.number, trial.score.value, tasks or {})


def pick(
    view: View, strategy: Strategy, rng: Random, width: int = 1, among: Sequence[Trial] | None = None
) -> list[Trial]:
    """Up to `width` parents, from the frontier or `among` these; none where there is none."""
    trials = frontier(view, leaves_only=strategy.leaves_only) if among is None else among
    numbers = draw([candidate(trial) for trial in trials], strategy, view.objective.direction, rng, width)
    return [view.trial(number) for number in numbers]


def parent(view: View, strategy: Strategy) -> Trial | None:
    """What a round that proposes one trial grows from, by its own dice: what is picked first. By `top_k` rounds take
    turns at the k best, where a wider round would grow from all of them. None where there is nothing.
    """
    turns = strategy.k if isinstance(strategy, TopK) else 1
    picked = pick(view, strategy, view.rng("frontier"), turns)
    return picked[view.index % len(picked)] if picked else None
