"""Nothing that is done for a trial grows with the history: counted in calls, so that a busy machine changes nothing."""

import cProfile
import pstats

from metaloop.config import thought_of
from metaloop.terms import Baseline, Bounds, Terms
from metaloop.testing import Lab, Machine
from metaloop.values import Objective, Range


def calls_per_trial(trials: int) -> float:
    terms = Terms(
        "t", Objective("score", "max"), ("train",), "random", {"x": Range(0.0, 1.0)}, baseline=Baseline("none")
    )
    lab = Lab(terms, thought_of(terms), Machine(lambda p, _: f"score={p['x']}"), Bounds(trials, no_improve_limit=0))
    profile = cProfile.Profile()
    profile.runcall(lab.session)
    return pstats.Stats(profile).total_calls / trials


def test_a_trial_costs_the_same_at_3000_as_at_300() -> None:
    few, many = calls_per_trial(300), calls_per_trial(3000)
    assert many < 1.02 * few, (few, many)
