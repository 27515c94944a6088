"""A study that was played by hand: somebody who had not seen the solution was the model, from the prompts alone.

`data/by-hand/cassette.jsonl` holds every prompt and reply, `results.json` what each run measured. While the prompts are
what they were, the study comes out as it did; once they change, the cassette no longer fits and is recorded anew.
"""

import json
from pathlib import Path

from metaloop.audit import audit
from metaloop.config import prompt_files, thought_of
from metaloop.events import Replied
from metaloop.study import fold
from metaloop.terms import Baseline, Bounds, ModelSpec, Terms
from metaloop.testing import Lab, Machine, RecordedModel
from metaloop.values import Choices, Objective, Range

HERE = Path(__file__).parent / "data" / "by-hand"
TOLD = json.loads((HERE / "results.json").read_text(encoding="utf-8"))


def measured(values, seed) -> str:
    return f"accuracy={TOLD['accuracy'][json.dumps(values, sort_keys=True) + f' seed {seed}']!r}"


def test_the_study_that_was_played_by_hand_comes_out_again() -> None:
    """The same prompts, the same replies, a fence and a value outside its domain among them: the same best."""
    terms = Terms(
        name="digits", objective=Objective("accuracy", "max"), train=("python3", "train.py"), policy="llm",
        space={
            "learning_rate": Range(0.003, 1.0, log=True), "momentum": Range(0.0, 0.99),
            "batch_size": Choices((8, 16, 32, 64)), "hidden": Range(16.0, 128.0, log=True, whole=True),
            "activation": Choices(("relu", "tanh")), "weight_decay": Range(1e-6, 0.01, log=True),
        },
        baseline=Baseline(repeats=3), rule="proven", confirm=6, order="strict", window=1,
    )  # fmt: skip
    model = RecordedModel(HERE / "cassette.jsonl")
    texts = {path.stem: path.read_text(encoding="utf-8") for path in prompt_files()} | TOLD["texts"]
    bounds = Bounds(8, no_improve_limit=0, models={"proposer": ModelSpec("proposer", max_tokens=1000)})
    lab = Lab(terms, thought_of(terms), Machine(measured), bounds, model=model, texts=texts)
    lab.session()
    assert not list(audit(lab.entries, thought_of))
    study = fold(lab.entries)
    assert [e.event.reply.problem for e in lab.entries if isinstance(e.event, Replied)] == [""] * 9
    assert study.closed.reason == "max_iterations"
    assert not model.left()
    assert study.incumbent.change.values == TOLD["best"]
    assert not study.fallbacks
