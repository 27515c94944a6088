"""What ending trials early saves, and what it costs, on learning curves of real trainings.

    python benchmarks/pruning.py record CURVES.json [COUNT]     train small networks on scikit-learn's digits: minutes
    python benchmarks/pruning.py CURVES.json [SEEDS]            the table

A file of curves is a list of {"curve": [validation error after epoch 1, 2, ...]}, all of one length. A study draws 100
of them, one lane, in random order. A pruned trial has no score: only a trial that ran to its end can be the best found,
and its score is its last value. Every rule knows nothing but the reports of the trials before, and is asked at every
step. `best pruned`: the trial that would have won was ended early. `regret`: how much worse the winner's error is.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import fmean

from metaloop.evaluators.prune import PEERS, Report, forecast_rule, halving, median_rule
from metaloop.values import Objective

ERROR = Objective("error", "min")
Rule = Callable[[list[Report], list[list[Report]], int, float | None], str]


def either(mine: list[Report], others: list[list[Report]], full: int, target: float | None) -> str:
    """The median rule with the forecast behind it."""
    return median_rule(mine, others, ERROR) or forecast(mine, others, full, target)


def forecast(mine: list[Report], others: list[list[Report]], full: int, target: float | None) -> str:  # noqa: ARG001
    return "" if target is None else forecast_rule(mine, full, target, ERROR)


RULES: dict[str, Rule] = {
    "none": lambda *_: "",
    "median": lambda mine, others, *_: median_rule(mine, others, ERROR),
    "median, warm-up 3": lambda mine, others, *_: median_rule(mine, others, ERROR, warmup=3),
    "halving, eta 3": lambda mine, others, *_: halving(mine, others, ERROR),
    "halving, from step 3": lambda mine, others, *_: halving(mine, others, ERROR, first=3),
    "forecast": forecast,
    "median, then forecast": either,
}


def study(curves: list[list[float]], rule: Rule) -> tuple[int, int | None]:
    """Steps that were spent, and the number of the trial that won."""
    spent, past = 0, list[list[Report]]()
    winner: int | None = None
    for number, curve in enumerate(curves):
        target = None if winner is None else curves[winner][-1]
        mine: list[Report] = []
        for step, value in enumerate(curve, 1):
            mine.append((step, value))
            if step < len(curve) and rule(mine, past[-PEERS:], len(curve), target):
                break
        else:
            winner = number if target is None or curve[-1] < target else winner
        spent += len(mine)
        past.append(mine)
    return spent, winner


def table(curves: list[list[float]], seeds: int) -> None:
    print(f"{len(curves)} curves of {len(curves[0])} steps; {seeds} studies of {min(100, len(curves))} trials")
    print(f"{'rule':24}{'steps saved':>12}{'trials for the price of 1':>27}{'regret':>10}{'best pruned':>13}")
    for name, rule in RULES.items():
        saved, regret, pruned = [], [], 0
        for seed in range(seeds):
            drawn = Random(seed).sample(curves, min(100, len(curves)))
            spent, winner = study(drawn, rule)
            best = min(curve[-1] for curve in drawn)
            got = max(curve[-1] for curve in drawn) if winner is None else drawn[winner][-1]
            saved.append(1 - spent / sum(map(len, drawn)))
            regret.append(got - best)
            pruned += got > best
        share = fmean(saved)
        print(f"{name:24}{share:>11.1%}{1 / (1 - share):>26.1f}x{fmean(regret):>11.5f}{pruned:>9d}/{seeds}")


def record(count: int) -> list[dict[str, list[float]]]:
    """Networks of random settings, 27 epochs each, on 60 % of the digits; the error on the rest after every epoch."""
    import numpy
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier

    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16, labels, test_size=0.4, random_state=0, stratify=labels)
    train, rest, train_labels, rest_labels = split
    found, dice = [], Random(0)
    for seed in range(count):
        network = MLPClassifier(
            (dice.choice([4, 8, 16, 32, 64, 128]),) * dice.choice([1, 2, 3]),
            learning_rate_init=10 ** dice.uniform(-4.5, -0.3),
            alpha=10 ** dice.uniform(-6, 1),
            solver=dice.choice(["adam", "sgd"]),
            random_state=seed,
        )
        batch, order, curve = dice.choice([16, 32, 64, 128, 256]), numpy.random.default_rng(seed), []
        for _ in range(27):
            for part in numpy.array_split(order.permutation(len(train)), max(1, len(train) // batch)):
                network.partial_fit(train[part], train_labels[part], classes=range(10))
            curve.append(round(1 - network.score(rest, rest_labels), 4))
        found.append({"curve": curve})
    return found


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["record", file, *more]:
            Path(file).write_text(json.dumps(record(int(more[0]) if more else 200)))
        case [file, *more]:
            table([one["curve"] for one in json.loads(Path(file).read_text())], int(more[0]) if more else 40)
        case _:
            sys.exit(__doc__)
