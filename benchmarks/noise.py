"""Whole studies with simulated trials, through the engine: what does a rule keep when there is nothing to find?

    python benchmarks/noise.py null 400          studies of 100 candidates that are all as good as the baseline
    python benchmarks/noise.py power 400         one step of 0.5 to 3 noise widths as the 1st, 10th or 50th candidate
    python benchmarks/noise.py night 400         candidates that grow from what leads: 10 % are better by 0.5 to 3, 40 %
                                                 as good, 50 % worse by up to 3. How far does each rule come?
    python benchmarks/noise.py tree 400          code that grows from any kept trial: is what is kept better than its
                                                 parent, and what is crowned better than the one before?
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
from typing import Literal

from metaloop.config import thought_of
from metaloop.evaluators.judge import confirming, decide, measuring
from metaloop.evaluators.metric import reader
from metaloop.flow import Flow, conclude
from metaloop.policies.code import proposed
from metaloop.policies.frontier import Argmax, EpsilonGreedy, Strategy, TopK, parent
from metaloop.policies.opening import opening
from metaloop.roles import Thought
from metaloop.study import Study, View, fold
from metaloop.terms import Baseline, Bounds, Terms
from metaloop.testing import Lab, Machine
from metaloop.values import Objective, Params, Proposal, Range, Scalar, Space

Rule = Literal["proven", "provisional", "strict"]


def run(kind: str, rule: Rule, rho: float, candidates: int, step: float, at: int, seed: int) -> Study:
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


def null(kind: str, rule: Rule, rho: float, seed: int) -> tuple[int, int, float]:
    """False keeps; extra runs a candidate, times 100; what the best is said to be (its truth is 0)."""
    study = run(kind, rule, rho, 100, 0.0, 0, seed)
    kept = [t for t in study.trials.values() if t.kept and not t.provisional and t.number]
    extra = sum(len(t.runs) for t in study.trials.values()) - 100 - 3
    best = study.incumbent.score.value if study.incumbent and study.incumbent.score else 0.0
    return len(kept), extra, best


def power(kind: str, rule: Rule, rho: float, step: float, at: int, seed: int) -> tuple[bool, float | None]:
    """Whether the step is kept, and by how much the headline's gain misses it."""
    study = run(kind, rule, rho, at, step, at, seed)
    headline = study.headline
    return study.trials[at].kept, None if headline is None or headline.gain is None else headline.gain - step


def night(rule: Rule, rho: float, candidates: int, seed: int) -> tuple[int, int, float, int, float]:
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

    space: Space = {"i": Range(0, 1e6, step=1, whole=True), "worth": Range(-1e6, 1e6)}
    terms = Terms(
        "night", Objective("score", "max"), ("train",), "grid", space, rule=rule, seed=seed,
        baseline=Baseline("params", params={"i": 0, "worth": 0.0}),
    )  # fmt: skip
    thought = Thought(opening(grow), measuring(terms), confirming(terms), decide, reader(terms))
    lab = Lab(terms, thought, Machine(function), Bounds(candidates, no_improve_limit=0, failure_rate_limit=1.0))
    lab.session()
    study = fold(lab.entries)
    best = study.incumbent
    assert best is not None
    assert best.score is not None
    worth = {t.number: float(t.change.values["worth"]) for t in study.trials.values()}
    kept = [t for t in study.trials.values() if t.kept and not t.provisional and t.number and t.score]
    beaten = [t.beat if t.score is None or t.score.test is None else t.score.test.against for t in kept]
    false = sum(worth[t.number] <= worth[other or 0] for t, other in zip(kept, beaten, strict=True))
    runs = sum(len(t.runs) for t in study.trials.values())
    return false, len(kept), worth[best.number], runs, best.score.value - worth[best.number]


Better = tuple[float, float]
"""The chances that a candidate of a tree is better than its parent, by 0.5 to 3, and as good; else it is worse."""


def tree(chances: Better, strategy: Strategy, lanes: int, seed: int) -> tuple[int, int, int, int, float, int]:
    """Keeps, false ones, crowns, false ones; the true gain of the best; runs. 60 candidates by the proven rule."""

    def function(files: dict[str, str], _: dict[str, Scalar], run_seed: int) -> str:
        order, worth = files.get("src/a.txt", "0 0").split()
        return f"score={float(worth) + Random(f'{seed}/{order}/{run_seed}').gauss(0, 1)!r}"

    def grow(view: View) -> Flow[Sequence[Proposal]]:
        from_what = parent(view, strategy)
        assert from_what is not None
        dice, worth = view.rng(), true(view.code(from_what.change)["src/a.txt"])
        steps = (dice.uniform(0.5, 3), 0.0, -dice.uniform(0, 3))
        text = f"{view.round} {worth + dice.choices(steps, (*chances, 1 - sum(chances)))[0]!r}"
        return conclude([proposed(view, {"src/a.txt": text}, "tree", "", from_what.change, from_what.number, {})])

    terms = Terms(
        "tree", Objective("score", "max"), ("train",), "patches", {}, rule="proven", seed=seed,
        baseline=Baseline(repeats=3), mutable=("src/**",),
    )  # fmt: skip
    thought = Thought(opening(grow), measuring(terms), confirming(terms), decide, reader(terms))
    bounds = Bounds(60, no_improve_limit=0, failure_rate_limit=1.0, lanes=lanes)
    lab = Lab(terms, thought, Machine(lambda *_: "", runs=function), bounds, files={"src/a.txt": "0 0.0"})
    lab.session()
    study = fold(lab.entries)
    worth = {n: true(study.overlay(t.change).get("src/a.txt", "0 0.0")) for n, t in study.trials.items()}
    tested = [(t.number, t.score.test) for t in study.trials.values() if t.kept and t.score and t.score.test]
    crowned = [(n, test.deciding) for n, test in tested if test.deciding is not None and test.deciding.kept]
    false = [sum(worth[n] <= worth[test.against] for n, test in some if test) for some in (tested, crowned)]
    assert study.tally.incumbent is not None
    runs = sum(len(t.runs) for t in study.trials.values())
    return len(tested), false[0], len(crowned), false[1], worth[study.tally.incumbent], runs


def true(text: str) -> float:
    return float(text.split()[1])


def wilson(hits: int, of: int) -> str:
    z = 1.96
    centre, half = (hits + z * z / 2) / (of + z * z), z * math.sqrt(hits * (of - hits) / of + z * z / 4) / (of + z * z)
    return f"{100 * hits / of:.1f} [{100 * (centre - half):.1f}, {100 * (centre + half):.1f}]"


NULLS: tuple[tuple[Rule, str, float], ...] = (
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


TREES: tuple[tuple[str, Strategy], ...] = (
    ("the best", Argmax()),
    ("5 best by turns", TopK()),
    ("any, by chance", EpsilonGreedy(epsilon=1.0)),
)


NIGHTS: tuple[tuple[Rule, int], ...] = (
    ("strict", 60),
    ("strict", 260),
    ("proven", 60),
    ("provisional", 60),
    ("provisional", 150),
)
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


def trees(pool: Executor, studies: int) -> None:
    print(
        "\n| better, as good, %; lanes | grown from | any false keep, % | keeps, false | crowns, false | gain | runs |"
    )
    print("|---|---|---|---|---|---|---|")
    for chances, lanes, (name, strategy) in product(((0.0, 1.0), (0.1, 0.4)), (1, 4), TREES):
        found = pool.map(partial(tree, chances, strategy, lanes), range(studies), chunksize=4)
        keeps, false, crowns, wrong, gain, runs = zip(*found, strict=True)
        share = wilson(sum(a + b > 0 for a, b in zip(false, wrong, strict=True)), studies)
        head = f"{100 * chances[0]:.0f}, {100 * chances[1]:.0f}; {lanes} | {name} | {share}"
        cells = f"{fmean(keeps):.1f}, {fmean(false):.2f} | {fmean(crowns):.1f}, {fmean(wrong):.2f}"
        print(f"| {head} | {cells} | {fmean(gain):.2f} | {fmean(runs):.0f} |", flush=True)


def tables(what: str, studies: int, workers: int) -> None:
    with ProcessPoolExecutor(workers) as pool:
        if what in ("null", "all"):
            nulls(pool, studies)
        if what in ("power", "all"):
            powers(pool, studies)
        if what in ("night", "all"):
            nights(pool, studies)
        if what in ("tree", "all"):
            trees(pool, studies)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", default="all", choices=["null", "power", "night", "tree", "all"])
    parser.add_argument("studies", nargs="?", type=int, default=40)
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    began = time.time()
    tables(asked.what, asked.studies, asked.workers)
    print(f"\n{time.time() - began:.0f} s")
