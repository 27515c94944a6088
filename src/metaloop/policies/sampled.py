"""Policies that think with Optuna's samplers: TPE, CMA-ES, a Gaussian process, a genetic algorithm.

Optuna is imported when the first proposal is made, keeps everything in memory, and is told what the view shows: nothing
that it computed outlives a proposal, except as a cache that is checked against the view and rebuilt where it differs.
Every proposal has a sampler of its own, seeded by the round's dice. So a fresh process proposes what the old one would.

`tpe` and `gp` look at all trials, pending ones as running. `cmaes` and `nsga2` go by generations: the scored trials,
whoever proposed them, in the order in which they were decided, a population at a time.
Not covered: several objectives, and values reported before a trial's end.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import pairwise
from math import log
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from metaloop.errors import UsageError
from metaloop.policies.params import digit, instant, nth, unseen
from metaloop.roles import Propose
from metaloop.study import Trial, View
from metaloop.values import Change, Choices, Domain, Params, Proposal, Pruned, Scalar, accept, middle, number

if TYPE_CHECKING:
    from optuna import Study as OptunaStudy
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, TrialState

Sampler: TypeAlias = Literal["tpe", "cmaes", "gp", "nsga2"]

NEEDS: dict[Sampler, tuple[tuple[str, ...], str]] = {
    "tpe": (("optuna",), "search"),
    "cmaes": (("optuna", "cmaes"), "search"),
    "gp": (("optuna", "scipy", "torch"), "search-gp"),
    "nsga2": (("optuna",), "search"),
}
"""The modules that a sampler works with, and the extra that installs them."""

ASKS = 5
"""So often a sampler may propose a point that was tried; then a random one that was not is taken."""

POPULATION = 12
"""Of a generation of `nsga2`. Optuna's own 50 would leave half of a study of a hundred trials to chance."""


# ---- the policies ----------------------------------------------------------------------------------------------------


STARTUP = 10
"""Scored trials from which on `tpe` models; before, it draws at random."""


def tpe(*, startup: int = STARTUP) -> Propose:
    """Tree-structured Parzen estimator over all parameters together; random until `startup` trials have a score.

    Pending trials count as bad ones (constant liar), so that lanes keep apart. Failed trials tell it nothing.
    """
    mirror = Mirror()

    def prepare(view: View) -> Draw:
        from optuna.samplers import TPESampler

        codec, study = Codec(view.space), mirror.follow(view)
        settings = {"n_startup_trials": startup, "multivariate": True, "constant_liar": True}
        return lambda seed: ask(study, TPESampler(seed=seed, **settings), codec)

    return sampled("tpe", prepare)


def gp(*, startup: int = 10) -> Propose:
    """Gaussian process with expected improvement, for few and dear trials; random until `startup` have a score."""
    mirror = Mirror()

    def prepare(view: View) -> Draw:
        from optuna.samplers import GPSampler

        codec, study = Codec(view.space), mirror.follow(view)
        settings = {"n_startup_trials": startup, "warn_independent_sampling": False}
        return lambda seed: ask(study, GPSampler(seed=seed, **settings), codec)

    return sampled("gp", prepare)


def cmaes(*, population: int | None = None) -> Propose:
    """Covariance matrix adaptation, from the middle of the space outwards; `population` trials make a generation.

    Choices that are numbers in rising order are searched as an ordered scale; other choices it draws at random.
    """
    evolution = Evolution()

    def prepare(view: View) -> Draw:
        codec = Codec(view.space, ordered=True)
        size = population or 4 + int(3 * log(max(1, codec.numeric)))
        attrs = evolution.follow(view, codec, size)
        study = shown(view, [_carrier(view, codec, attrs)])
        return lambda seed: ask(study, _cma(seed, size), codec)

    return sampled("cmaes", prepare, _drawn)


def nsga2(*, population: int = POPULATION) -> Propose:
    """A genetic algorithm that keeps the best `population` of all full generations as parents; the first is random.

    With a single objective, NSGA-II's selection comes to this: so its state is a sort of the scored trials.
    """

    def prepare(view: View) -> Draw:
        from optuna.samplers import NSGAIISampler

        codec, trials = Codec(view.space), scored(view)
        full = trials[: len(trials) // population * population]
        attrs = marks(shown(view, []), NSGAIISampler(seed=0, population_size=population), codec) if full else {}
        best = sorted(full, key=lambda trial: -view.objective.gain(_value(trial), 0.0))[:population]
        study = shown(view, [codec.frozen(trial, attrs) for trial in best])
        return lambda seed: ask(study, NSGAIISampler(seed=seed, population_size=population), codec)

    return sampled("nsga2", prepare)


def require(sampler: Sampler) -> None:
    """Raises UsageError, with what to type, where a module is missing that `sampler` needs. Imports none of them."""
    modules, extra = NEEDS[sampler]
    if missing := [name for name in modules if find_spec(name) is None]:
        raise UsageError(
            f"policy {sampler} needs {' and '.join(missing)}, not installed here;"
            f' type: python -m pip install "metaloop[{extra}]"'
        )


# ---- one proposal ----------------------------------------------------------------------------------------------------

Draw: TypeAlias = Callable[[int], Params]
"""From a seed to a point."""


def sampled(by: Sampler, prepare: Callable[[View], Draw], note: Callable[[View], str] = lambda _: "") -> Propose:
    """The policy that proposes the first untried point that a sampler comes up with; nothing once all are tried.

    Where a sampler insists on tried points, a random one takes its place, and `fallback` says so. `note` is added to
    why a point was proposed.
    """

    def think(view: View) -> Sequence[Proposal]:
        require(by)
        with silence():
            draw = prepare(view)
            for again in range(ASKS):
                change = draw(view.rng(f"{by}/{again}").getrandbits(31))
                if view.tried(change) is None:
                    return (Proposal(change, by, f"{by}, optuna {version()}{note(view)}"),)
        if (spare := unseen(view, view.rng())) is None:
            return ()
        return (Proposal(spare, "random", "a uniform draw", fallback=f"{by} proposed tried points, {ASKS} times"),)

    return instant(think)


def version() -> str:
    """Optuna's, for the record: another version may propose something else."""
    import optuna

    return str(optuna.__version__)


@contextmanager
def silence() -> Iterator[None]:
    """Optuna neither logs nor warns within; its verbosity afterwards is what it was."""
    from optuna import logging

    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)


# ---- points, as Optuna holds them ------------------------------------------------------------------------------------


class Codec:
    """A space as Optuna's distributions, and its points there and back.

    What can be counted is shown as a number of its place, so that no value changes its type or its last digit.
    `ordered`: rising numeric choices are a scale; otherwise all choices are categories.
    """

    def __init__(self, space: Mapping[str, Domain], *, ordered: bool = False) -> None:
        self.space = space
        self.distributions = {name: _distribution(domain, ordered) for name, domain in space.items()}
        self.numeric = sum(_searched(d) for d in self.distributions.values())

    def encode(self, change: Change) -> dict[str, float]:
        return {name: _encode(domain, change.values[name]) for name, domain in self.space.items()}

    def decode(self, raw: Mapping[str, float]) -> Params:
        return Params({name: _decode(domain, raw[name]) for name, domain in self.space.items()})

    def frozen(self, trial: Trial, attrs: Mapping[str, object]) -> "FrozenTrial":
        """A scored trial, with marks of the sampler."""
        return self.complete(trial.change, _value(trial), attrs)

    def complete(self, change: Change, value: float, attrs: Mapping[str, object]) -> "FrozenTrial":
        import optuna

        return optuna.create_trial(
            params=self.encode(change),
            distributions=self.distributions,
            value=value,
            system_attrs=dict(attrs),
        )


def _distribution(domain: Domain, ordered: bool) -> "BaseDistribution":
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(domain, Choices):
        places = range(len(domain.values))
        return IntDistribution(0, places[-1]) if ordered and _rising(domain.values) else CategoricalDistribution(places)
    if (size := domain.size()) is not None and not domain.log:
        return IntDistribution(0, size - 1)
    if domain.whole and domain.step is None:
        return IntDistribution(int(domain.low), int(domain.high), log=True)
    return FloatDistribution(domain.low, domain.high, log=domain.log)


def _encode(domain: Domain, value: Scalar) -> float:
    if isinstance(domain, Choices) or (domain.size() is not None and not domain.log):
        return digit(domain, value)
    assert number(value)
    return value


def _decode(domain: Domain, raw: float) -> Scalar:
    if isinstance(domain, Choices):
        return domain.values[int(raw)]
    if (size := domain.size()) is None:
        return float(min(domain.high, max(domain.low, raw)))
    place = round((raw - domain.low) / (domain.step or 1)) if domain.log else int(raw)
    return nth(domain, min(size - 1, max(0, place)))


def _rising(values: Sequence[Scalar]) -> bool:
    numbers = [v for v in values if number(v)]
    return len(numbers) == len(values) and all(a < b for a, b in pairwise(numbers))


def _searched(distribution: "BaseDistribution") -> bool:
    """Whether CMA-ES has an axis for it."""
    from optuna.distributions import CategoricalDistribution

    return not (distribution.single() or isinstance(distribution, CategoricalDistribution))


# ---- what Optuna is told ---------------------------------------------------------------------------------------------


def shown(view: View, trials: Sequence["FrozenTrial"]) -> "OptunaStudy":
    """A study in memory that holds these trials."""
    import optuna

    study = optuna.create_study(direction="maximize" if view.objective.direction == "max" else "minimize")
    study.add_trials(trials)
    return study


def ask(study: "OptunaStudy", sampler: "BaseSampler", codec: Codec) -> Params:
    """One point from `sampler`. What the asking leaves behind in `study` is a failed trial, which no sampler minds."""
    study.sampler = sampler
    trial = study.ask(codec.distributions)
    study.tell(trial, state=_state("failed"))
    return codec.decode(trial.params)


def marks(study: "OptunaStudy", sampler: "BaseSampler", codec: Codec) -> dict[str, object]:
    """What `sampler` would write on the next trial: the generation it is in, and what it knows by then."""
    study.sampler = sampler
    trial = study.ask(codec.distributions)
    return dict(study.get_trials(deepcopy=False)[trial.number].system_attrs)


def usable(view: View, trial: Trial) -> bool:
    """Whether a trial is a point of the space: a baseline need not be, and what was refused may not be."""
    if trial.refusal is not None:
        return False
    return trial.role != "baseline" or inside(view, trial.change)


def inside(view: View, change: Change) -> bool:
    return not isinstance(accept(view.space, change.values), str)


def scored(view: View) -> list[Trial]:
    """The trials with a value, in the order in which they were decided: a later view only adds to the end."""
    trials = [t for t in view.settled() if t.score is not None and usable(view, t)]
    return sorted(trials, key=lambda trial: (trial.decided_at or 0, trial.number))


def _value(trial: Trial) -> float:
    assert trial.score is not None
    return trial.score.value


def _state(outcome: str) -> "TrialState":
    from optuna.trial import TrialState

    return {
        "running": TrialState.RUNNING,
        "complete": TrialState.COMPLETE,
        "pruned": TrialState.PRUNED,
        "failed": TrialState.FAIL,
    }[outcome]


# ---- all trials at once ----------------------------------------------------------------------------------------------


class Shown(msgspec.Struct, frozen=True):
    """A trial as a round may see it."""

    number: int
    change: Change
    outcome: Literal["running", "complete", "pruned", "failed"]
    value: float | None = None


class Mirror:
    """The view's trials as an Optuna study, by number.

    It is kept for the next view. What that one shows besides is added, what settled is told; a view that does not
    continue the last one (another study, an earlier round) is mirrored from the start.
    """

    def __init__(self) -> None:
        self._forget(None)

    def follow(self, view: View) -> "OptunaStudy":
        trials = _visible(view)
        if not self._continues(view, trials):
            self._forget(view)
        codec = Codec(view.space)
        for index in range(len(self._trials)):
            if self._trials[index] != trials[index]:
                self._settle(index, trials[index])
        self._add(codec, trials[len(self._trials) :])
        return self._study

    def _forget(self, view: View | None) -> None:
        self._of = (view.space, view.objective) if view else None
        self._study: OptunaStudy = shown(view, []) if view else None
        self._trials: list[Shown] = []
        self._places: list[int] = []

    def _continues(self, view: View, trials: Sequence[Shown]) -> bool:
        if (view.space, view.objective) != self._of or len(trials) < len(self._trials):
            return False
        return all(
            old == new or (old.number, old.change, old.outcome) == (new.number, new.change, "running")
            for old, new in zip(self._trials, trials, strict=False)
        )

    def _settle(self, index: int, trial: Shown) -> None:
        self._study.tell(self._places[index], trial.value, _state(trial.outcome))
        self._trials[index] = trial

    def _add(self, codec: Codec, trials: Sequence[Shown]) -> None:
        place = len(self._study.get_trials(deepcopy=False))
        self._study.add_trials(_frozen(codec, trial) for trial in trials)
        self._places.extend(range(place, place + len(trials)))
        self._trials.extend(trials)


def _visible(view: View) -> list[Shown]:
    settled = [_settled(trial) for trial in view.settled() if usable(view, trial)]
    pending = [Shown(number, change, "running") for number, change in view.pending() if inside(view, change)]
    return sorted(settled + pending, key=lambda trial: trial.number)


def _settled(trial: Trial) -> Shown:
    if trial.score is not None:
        return Shown(trial.number, trial.change, "complete", trial.score.value)
    return Shown(trial.number, trial.change, "pruned" if isinstance(trial.result, Pruned) else "failed")


def _frozen(codec: Codec, trial: Shown) -> "FrozenTrial":
    import optuna

    return optuna.create_trial(
        params=codec.encode(trial.change),
        distributions=codec.distributions,
        value=trial.value,
        state=_state(trial.outcome),
    )


# ---- generation by generation ----------------------------------------------------------------------------------------


class Evolution:
    """What CMA-ES knows after so many full generations: a fold over them, whose last results are kept.

    What it knows are the marks that Optuna's sampler writes on a trial: opaque here, and a few kilobytes.
    """

    KEPT = 3
    """So many results are kept: rounds in flight may stand a generation apart."""

    def __init__(self) -> None:
        self._known: list[tuple[object, list[Told], dict[str, object]]] = []

    def follow(self, view: View, codec: Codec, size: int) -> dict[str, object]:
        trials = [Told(trial.change, _value(trial)) for trial in scored(view)]
        trials = trials[: len(trials) // size * size]
        of = (view.space, view.objective, size)
        told, attrs = self._nearest(of, trials)
        if told < 0:
            told, attrs = 0, marks(shown(view, [_carrier(view, codec, {})]), _cma(0, size), codec)
        for start in range(told, len(trials), size):
            block = trials[start : start + size]
            study = shown(view, [codec.complete(trial.change, trial.value, attrs) for trial in block])
            attrs = marks(study, _cma(0, size), codec)
        self._known = [known for known in self._known if known[0] == of and known[1] != trials][-self.KEPT + 1 :]
        self._known.append((of, trials, attrs))
        return attrs

    def _nearest(self, of: object, trials: Sequence["Told"]) -> tuple[int, dict[str, object]]:
        """How many of `trials` are in the longest result that they continue, and that result; -1 for none."""
        found = [(len(t), attrs) for o, t, attrs in self._known if o == of and t == trials[: len(t)]]
        return max(found, key=lambda known: known[0], default=(-1, {}))


class Told(msgspec.Struct, frozen=True):
    """What CMA-ES hears of a trial."""

    change: Change
    value: float


def _carrier(view: View, codec: Codec, attrs: Mapping[str, object]) -> "FrozenTrial":
    """A trial that shows Optuna the space and carries `attrs`. Alone, it is never enough to be learned from."""
    return codec.complete(Params(middle(view.space)), 0.0, attrs)


def _drawn(view: View) -> str:
    """Which parameters CMA-ES leaves to chance, in words."""
    names = [name for name, d in view.space.items() if isinstance(d, Choices) and not _rising(d.values)]
    return f"; drawn at random: {', '.join(names)}" if names else ""


def _cma(seed: int, size: int) -> "BaseSampler":
    from optuna.samplers import CmaEsSampler

    return CmaEsSampler(seed=seed, popsize=size, warn_independent_sampling=False)
