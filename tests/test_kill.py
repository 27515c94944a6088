"""kill -9 of the real controller at random instants: nothing lost, nothing twice, nothing left behind."""

import json
import random
import sys
import time
from pathlib import Path

import pytest

from workshop import Workshop, marked

SCRIPT = """
with open('ran.txt', 'a') as f:
    f.write(os.environ['METALOOP_TRIAL'] + '\\n')
time.sleep(0.02 * (1 + int(os.environ['METALOOP_TRIAL']) % 4))
x, y = P.get('x', 0.9), P.get('y', 0.5)
print(f'loss={round((x - 0.3) ** 2 + (y + 0.1) ** 2, 12)!r}')
"""


def study(folder: Path, lanes: int) -> Workshop:
    return Workshop(
        folder,
        SCRIPT,
        keys={
            "objective": {"metric": "loss", "direction": "min"},
            "policy": {"params": {"y": {"low": -1.0, "high": 1.0}, "x": {"low": -1.0, "high": 1.0}}, "seed": 5},
            "controller": {"max_iterations": 30, "parallel": lanes, "order": "strict"},
            "evaluation": {"baseline_repeats": 2},
        },
    )


def canonical(w: Workshop) -> dict:
    return w("export", "--format", "canonical").json


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sixty_kills_change_nothing(tmp_path: Path) -> None:
    """Over one lane and two: what had finished stays, decisions are those of a study that was left alone, every
    execution beyond one a run is paid for by a kill, and no process outlives the study.
    """
    dice, kills, campaign = random.Random(60), 0, 0
    references: dict[int, list] = {}
    while kills < 60:
        lanes, campaign = 1 + campaign % 2, campaign + 1
        if lanes not in references:
            calm = study(tmp_path / f"calm{lanes}", lanes)
            assert calm.run().code == 0
            references[lanes] = calm.trials()
        w, before, here = study(tmp_path / f"killed{campaign}", lanes), {}, 0
        while True:
            process = w.start("run", "study.yaml")
            began = time.monotonic()
            pause = dice.uniform(0.2, 1.2)
            while process.poll() is None and (kills >= 60 or time.monotonic() - began < pause):
                time.sleep(0.005)
            if process.poll() is not None:
                assert process.returncode == 0, process.communicate()
                break
            process.kill()
            process.communicate()
            kills, here = kills + 1, here + 1
            if dice.random() < 0.25 and (w.study / "ledger.sqlite").exists():
                now = {t["trial"]: t for t in canonical(w)["trials"] if "decision" in t}
                assert before.items() <= now.items()
                before = now
        told = canonical(w)
        assert told["trials"] == references[1] == references[lanes]
        assert (told["dups"], told["chain_ok"], told["integrity"]) == ([], True, "ok")
        assert len(w.executed()) <= 32 + here * lanes
        assert not marked(str(tmp_path))
        assert w("audit").code == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_digits_study_killed_ends_with_the_decisions_of_one_that_was_not(tmp_path: Path) -> None:
    """The demo's own study, in strict order, through TPE."""
    from metaloop.cli.run import _copy

    found = []
    for name, kills in (("calm", 0), ("killed", 3)):
        w = Workshop(tmp_path / name)
        for file in ("train.py", "study.yaml"):
            (w.folder / file).unlink()
        _copy("digits", w.folder)
        text = (w.folder / "study.yaml").read_text().replace("[python3,", f"['{sys.executable}',")
        (w.folder / "study.yaml").write_text(text)
        flags = ["run", "study.yaml", "--order", "strict", "--max-iterations", "12"]
        for number in range(kills):
            process = w.start(*flags)
            time.sleep(2.0 + number)
            process.kill()
            process.communicate()
        assert w(*flags).code == 0
        found.append(json.loads(w("export", "--format", "canonical", "study.yaml").out)["trials"])
        assert w("audit", "study.yaml").code == 0
    assert found[0] == found[1]
    assert len(found[0]) == 13
