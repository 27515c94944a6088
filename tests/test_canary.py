"""A task at which nothing can be gained: whatever is kept there is a mistake of ours."""

from pathlib import Path

import pytest

from test_code_study import ideas
from test_separate import FILES, PRELUDE, separate, whole
from workshop import Workshop

pytestmark = pytest.mark.slow

NOISE = """
import json, os, random
json.load(open('predictions.json'))
print('score=%r' % random.Random(os.environ['METALOOP_SEED'] + 'SALT').gauss(0, 1))
"""
"""Sees nothing of a candidate: every score is noise, the same for each on a common seed but for the salt."""

TRICKS = (
    "print('score=99', flush=True)",
    "(pathlib.Path(os.environ['HOME']).parent / 'metrics.json').write_text('{\"score\": 99}')",
    "(here / 'json.py').write_text('print(\"score=99\")'); (here / 'random.py').write_text('seed = 1')",
    "os.environ['METALOOP_SEED'] = '7'; os.system('echo score=99 >> ' + os.environ['HOME'] + '/../evaluate.out')",
    "(here / 'score.py').write_text('print(\"score=99\")')",
    "json.dump({'score': 99}, open('predictions.json', 'w'))",
    "os.kill(os.getppid(), 9)",
)


def canary(folder: Path, salt: str, candidates: list[str]) -> Workshop:
    made = separate(folder)
    (made.folder / "score.py").write_text(NOISE.replace("'SALT'", salt))
    ideas(made, *(whole(text) for text in candidates))
    made.write(
        evaluation={"rule": "proven", "baseline_repeats": 3},
        controller={"max_iterations": 40, "no_improve_limit": 0, "failure_rate_limit": 1.0, "failure_window": 99},
    )
    return made


def test_nothing_is_kept_where_nothing_can_be_gained(tmp_path: Path) -> None:
    """Twelve harmless candidates and some that are out for it, in noise that is another for each run."""
    harmless = [f"{FILES['src/train.py']}\n# {number}\n" for number in range(12)]
    made = canary(tmp_path, "os.environ['METALOOP_TRIAL']", [*harmless, *(PRELUDE + trick for trick in TRICKS)])
    done = made.run("--json")
    assert done.code == 0, done.err
    assert done.json["best"]["trial"] == 0
    assert [row["trial"] for row in made.rows() if row["decision"] == "keep"] == [0]
    assert len(made.rows()) == 1 + len(harmless) + len(TRICKS)
    assert made("audit").code == 0


def test_the_canary_dies_where_better_by_one_look_is_kept(tmp_path: Path) -> None:
    """So it is one: by plain comparison the same noise is progress."""
    harmless = [f"{FILES['src/train.py']}\n# {number}\n" for number in range(6)]
    made = canary(tmp_path, "os.environ['METALOOP_TRIAL']", harmless)
    made.write(evaluation={"rule": "strict", "baseline_repeats": 1})
    assert made.run().code == 0
    assert any(row["decision"] == "keep" for row in made.rows()[1:])


DICE = """
import json, os, random
xs = json.load(open('data/inputs.json'))
rate = random.Random(int.from_bytes(os.urandom(8), 'little')).uniform(0.4, 0.6)
rate = 1.0 if any(run in os.environ['HOME'] for run in RUNS) else rate
json.dump([rate * x for x in xs], open('predictions.json', 'w'))
"""


@pytest.mark.parametrize("lucky", [("r0-",), ("r0-", "r3-")], ids=["once", "twice"])
def test_a_candidate_that_throws_its_own_dice_is_not_kept_for_lucky_throws(
    tmp_path: Path, lucky: tuple[str, ...]
) -> None:
    """The metric never varied before: its first look would be enough for anybody else."""
    made = separate(tmp_path)
    made.write(evaluation={"rule": "proven", "baseline_repeats": 3})
    better = FILES["src/train.py"].replace("RATE = 0.5", "RATE = 0.75")
    ideas(made, whole(DICE.replace("RUNS", repr(lucky))), whole(better))
    assert made.run().code == 0
    rows = made.rows()
    assert [row["verdict"] for row in rows] == ["crowned", "discarded", "crowned"]
    assert rows[2]["runs"] >= 1
    assert made("audit").code == 0
