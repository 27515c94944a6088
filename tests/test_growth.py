"""Nothing that is done for a trial grows with the history: counted in calls, so that a busy machine changes nothing."""

import cProfile
import pstats
import tracemalloc

from metaloop.config import thought_of
from metaloop.events import decode, encode
from metaloop.study import fold
from metaloop.terms import Baseline, Bounds, Terms
from metaloop.testing import Lab, Machine
from metaloop.values import Objective, Range


def lab(trials: int) -> Lab:
    space = {f"p{number}": Range(0.0, 1.0) for number in range(5)}
    terms = Terms("t", Objective("score", "max"), ("train",), "random", space, baseline=Baseline("none"))
    return Lab(terms, thought_of(terms), Machine(lambda p, _: f"score={p['p0']}"), Bounds(trials, no_improve_limit=0))


def calls_per_trial(trials: int) -> float:
    profile = cProfile.Profile()
    profile.runcall(lab(trials).session)
    return pstats.Stats(profile).total_calls / trials


def test_a_trial_costs_the_same_at_3000_as_at_300() -> None:
    few, many = calls_per_trial(300), calls_per_trial(3000)
    assert many < 1.02 * few, (few, many)


def test_a_trial_of_five_parameters_takes_no_more_than_1200_bytes_in_memory() -> None:
    """100,000 of them, with the interpreter, have to fit into 150 MB."""
    of = lab(2000)
    of.session()
    bodies = [encode(entry) for entry in of.entries]
    tracemalloc.start()
    study = fold(map(decode, bodies))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 1200 * len(study.trials), size / len(study.trials)
