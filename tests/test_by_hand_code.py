"""A program that was made twenty times as fast by hand: somebody who saw the prompts alone was the model.

`data/by-hand-code/cassette.jsonl` holds the replies, `results.json` what each run measured (examples/speedup). The
replies are played in their order, to prompts as they are now: the edits still have to go where they went.
"""

import json
from pathlib import Path

from metaloop.audit import audit
from metaloop.config import prompt_files, thought_of
from metaloop.study import fold
from metaloop.terms import Baseline, Bounds, ModelSpec, Terms
from metaloop.testing import Lab, Machine, RecordedModel
from metaloop.values import Edit, Objective, Params, digest

HERE = Path(__file__).parent / "data" / "by-hand-code"
TOLD = json.loads((HERE / "results.json").read_text(encoding="utf-8"))


def measured(files, values, seed) -> str:
    names = {path: digest(text.encode()) for path, text in files.items()}
    change = Edit(values, names) if names else Params(values)
    found = TOLD["words_per_second"][f"{change.key()} seed {seed}"]
    return found if isinstance(found, str) else f"words_per_second={found!r}"


def test_the_program_that_was_made_faster_by_hand_is_made_so_again() -> None:
    """Six changes of which three are kept; a line that was not there and a frozen file go back, and are mended."""
    terms = Terms(
        name="speedup-llm", objective=Objective("words_per_second", "max"), train=("python3", "bench.py"),
        policy="llm_diff", space={}, baseline=Baseline(repeats=3), rule="proven", confirm=4, order="strict", window=1,
        mutable=("src/spell.py",), frozen=TOLD["frozen"],
    )  # fmt: skip
    model = RecordedModel(HERE / "cassette.jsonl", in_order=True)
    texts = {path.stem: path.read_text(encoding="utf-8") for path in prompt_files()} | {"task": TOLD["task"]}
    bounds = Bounds(6, no_improve_limit=0, models={"proposer": ModelSpec("proposer", max_tokens=6000)})
    machine = Machine(lambda *_: "", runs=measured)
    lab = Lab(terms, thought_of(terms), machine, bounds, model=model, texts=texts, files=TOLD["base"])
    lab.session()
    assert not list(audit(lab.entries, thought_of))
    study = fold(lab.entries)
    assert not model.left()
    assert [trial.verdict for _, trial in sorted(study.trials.items())] == TOLD["verdicts"]
    assert study.overlay(study.incumbent.change) == TOLD["best"]
    assert study.incumbent.score.value > 20 * study.trials[0].score.value
