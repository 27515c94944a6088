"""Whole studies with simulated trials, through the engine: what does a rule keep when there is nothing to find?

    python benchmarks/noise.py null 400          studies of 100 candidates that are all as good as the baseline
    python benchmarks/noise.py power 400         one step of 0.5 to 3 noise widths as the 1st, 10th or 50th candidate
    python benchmarks/noise.py night 400         candidates that grow from what leads: 10 % are better by 0.5 to 3, 40 %
                                                 as good, 50 % worse by up to 3. How far does each rule come?
    python benchmarks/noise.py                   all of them, small

No processes: jobs are computed on the spot, everything else is the real engine, ledger facts and rules. The unit is the
standard deviation of a run. Intervals are 95 % (Wilson).
"""

import argparse
import math
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import partial
from itertools import product
from random import Random
from statistics import fmean

from metaloop.config import thought_of
from metaloop.evaluators.judge import confirming, decide, measuring
from metaloop.evaluators.metric import reader
from metaloop.flow import Flow, conclude
from metaloop.policies.opening import opening
from metaloop.roles import Thought
from metaloop.study import Study, View, fold
from metaloop.terms import Baseline, Bounds, Terms
from metaloop.testing import Lab, Machine
from metaloop.values import Objective, Params, Proposal, Range, Scalar


def run(kind: str, rule: str, rho: float, candidates: int, step: float, at: int, seed: int) -> Study:
    """One study. Candidate number `at` is better by `step`; all others are nulls."""

    def function(values: dict[str, Scalar], run_seed: int) -> str:
        order = int(values.get("i", 0))
        common = draw(kind, Random(f"{seed}/common/{run_seed}"))
        own = draw(kind, Random(f"{seed}/{order}/{run_seed}"))
        noise = width(kind, order, seed) * (math.sqrt(rho) * common + math.sqrt(1 - rho) * own)
        return f"score={(step if order == at else 0.0) + noise!r}"

    terms = Terms(
        "noise", Objective("score", "max"), ("train",), "grid", {"i": Range(1, candidates, step=1, whole=True)},
        baseline=Baseline(repeats=3), rule=rule, seed=seed,
    )  # fmt: skip
    bounds = Bounds(candidates, no_improve_limit=0, failure_rate_limit=1.0)
    lab = Lab(terms, thought_of(terms), Machine(function), bounds)
    lab.session()
    return fold(lab.entries)


def width(kind: str, order: int, seed: int) -> float:
    """A candidate's noise, the baseline's being 1. uneven: 0.3 to 3, drawn for each; late: 3, from the 51st on."""
    match kind.split():
        case [_, "uneven"] if order:
            return math.exp(Random(f"{seed}/{order}/width").uniform(math.log(0.3), math.log(3)))
        case [_, "late"] if order > 50:
            return 3.0
        case _:
            return 1.0


def draw(kind: str, dice: Random) -> float:
    """Noise of variance 1: normal, Student's t with 3 degrees of freedom, or skewed to the left."""
    match kind.split()[0]:
        case "t3":
            chi = sum(dice.gauss(0, 1) ** 2 for _ in range(3))
            return dice.gauss(0, 1) / math.sqrt(chi / 3) / math.sqrt(3)
        case "skew-":
            return 1 - dice.expovariate(1)
        case _:
            return dice.gauss(0, 1)


def null(kind: str, rule: str, rho: float, seed: int) -> tuple[int, int, float]:
    """False keeps; extra runs a candidate, times 100; what the best is said to be (its truth is 0)."""
    study = run(kind, rule, rho, 100, 0.0, 0, seed)
    kept = [t for t in study.trials.values() if t.kept and not t.provisional and t.number]
    extra = sum(len(t.runs) for t in study.trials.values()) - 100 - 3
    best = study.incumbent.score.value if study.incumbent and study.incumbent.score else 0.0
    return len(kept), extra, best


def power(kind: str, rule: str, rho: float, step: float, at: int, seed: int) -> tuple[bool, float | None]:
    """Whether the step is kept, and by how much the headline's gain misses it."""
    study = run(kind, rule, rho, at, step, at, seed)
    headline = study.headline
    return study.trials[at].kept, None if headline is None or headline.gain is None else headline.gain - step


def night(rule: str, rho: float, candidates: int, seed: int) -> tuple[int, int, float, int, float]:
    """False keeps and keeps; the true gain of the best; runs; by how much the best is said to be better than it is."""

    def function(values: dict[str, Scalar], run_seed: int) -> str:
        common, own = Random(f"{seed}/common/{run_seed}"), Random(f"{seed}/{values['i']}/{run_seed}")
        noise = math.sqrt(rho) * common.gauss(0, 1) + math.sqrt(1 - rho) * own.gauss(0, 1)
        return f"score={float(values['worth']) + noise!r}"

    def grow(view: View) -> Flow[Sequence[Proposal]]:
        assert view.leader is not None
        dice, worth = view.rng(), float(view.leader.change.values["worth"])
        step = dice.choices((dice.uniform(0.5, 3), 0.0, -dice.uniform(0, 3)), (0.1, 0.4, 0.5))[0]
        point: dict[str, Scalar] = {"i": view.round, "worth": worth + step}
        return conclude([Proposal(Params(point), by="night", parent=view.leader.number)])

    space = {"i": Range(0, 1e6, step=1, whole=True), "worth": Range(-1e6, 1e6)}
    terms = Terms(
        "night", Objective("score", "max"), ("train",), "grid", space, rule=rule, seed=seed,
        baseline=Baseline("params", params={"i": 0, "worth": 0.0}),
    )  # fmt: skip
    thought = Thought(opening(grow), measuring(terms), confirming(terms), decide, reader(terms))
    lab = Lab(terms, thought, Machine(function), Bounds(candidates, no_improve_limit=0, failure_rate_limit=1.0))
    lab.session()
    study = fold(lab.entries)
    assert study.incumbent is not None
    assert study.incumbent.score is not None
    worth = {t.number: float(t.change.values["worth"]) for t in study.trials.values()}
    kept = [t for t in study.trials.values() if t.kept and not t.provisional and t.number and t.score]
    beaten = [t.beat if t.score is None or t.score.test is None else t.score.test.against for t in kept]
    false = sum(worth[t.number] <= worth[other or 0] for t, other in zip(kept, beaten, strict=True))
    runs = sum(len(t.runs) for t in study.trials.values())
    best = study.incumbent
    return false, len(kept), worth[best.number], runs, best.score.value - worth[best.number]


def wilson(hits: int, of: int) -> str:
    z = 1.96
    centre, half = (hits + z * z / 2) / (of + z * z), z * math.sqrt(hits * (of - hits) / of + z * z / 4) / (of + z * z)
    return f"{100 * hits / of:.1f} [{100 * (centre - half):.1f}, {100 * (centre + half):.1f}]"


NULLS = (
    ("proven", "normal", 0.0),
    ("proven", "normal", 0.5),
    ("proven", "t3", 0.0),
    ("proven", "skew-", 0.0),
    ("proven", "normal", 0.95),
    ("proven", "skew- uneven", 0.0),
    ("proven", "skew- uneven", 0.95),
    ("proven", "skew- late", 0.0),
    ("proven", "skew- late", 0.95),
    ("provisional", "normal", 0.0),
    ("strict", "normal", 0.0),
)


NIGHTS = (("strict", 60), ("strict", 260), ("proven", 60), ("provisional", 60), ("provisional", 150))
"""Rules, and for how many candidates: some of them for about as many runs as the proven rule takes for 60."""


def nulls(pool: Executor, studies: int) -> None:
    print("| rule, noise, rho | studies | false keep in 100, % | false keeps | extra runs a null | best too good by |")
    print("|---|---|---|---|---|---|")
    for rule, kind, rho in NULLS:
        keeps, extra, best = zip(*pool.map(partial(null, kind, rule, rho), range(studies), chunksize=4), strict=True)
        share = wilson(sum(count > 0 for count in keeps), studies)
        row = (f"{rule}, {kind}, {rho:g}", studies, share, f"{fmean(keeps):.2f}", f"{fmean(extra) / 100:.1f}")
        print(f"| {' | '.join(map(str, row))} | {fmean(best):+.2f} |", flush=True)


def powers(pool: Executor, studies: int) -> None:
    print("\n| rule, rho | candidate | kept at 0.5 sd, % | 1 sd | 2 sd | 3 sd | headline is off by |")
    print("|---|---|---|---|---|---|---|")
    for rho, at in product((0.0, 0.5, 0.95), (1, 10, 50)):
        cells, off = [], []
        for step in (0.5, 1.0, 2.0, 3.0):
            found = list(pool.map(partial(power, "normal", "proven", rho, step, at), range(studies), chunksize=4))
            cells.append(wilson(sum(kept for kept, _ in found), studies))
            off += [miss for kept, miss in found if kept and miss is not None]
        print(f"| proven, {rho:g} | {at} | {' | '.join(cells)} | {fmean(off):+.2f} |", flush=True)


def nights(pool: Executor, studies: int) -> None:
    print("\n| rule, rho, candidates | any false keep, % | keeps, false ones | true gain | runs | best too good by |")
    print("|---|---|---|---|---|---|")
    for rho, (rule, candidates) in product((0.0, 0.5), NIGHTS):
        found = pool.map(partial(night, rule, rho, candidates), range(studies), chunksize=4)
        false, keeps, gain, runs, off = zip(*found, strict=True)
        share = wilson(sum(count > 0 for count in false), studies)
        row = (f"{rule}, {rho:g}, {candidates}", share, f"{fmean(keeps):.1f}, {fmean(false):.2f}")
        print(f"| {' | '.join(row)} | {fmean(gain):.2f} | {fmean(runs):.0f} | {fmean(off):+.2f} |", flush=True)


def tables(what: str, studies: int, workers: int) -> None:
    with ProcessPoolExecutor(workers) as pool:
        if what in ("null", "all"):
            nulls(pool, studies)
        if what in ("power", "all"):
            powers(pool, studies)
        if what in ("night", "all"):
            nights(pool, studies)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", default="all", choices=["null", "power", "night", "all"])
    parser.add_argument("studies", nargs="?", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    began = time.time()
    tables(asked.what, asked.studies, asked.workers)
    print(f"\n{time.time() - began:.0f} s")
