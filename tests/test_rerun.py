"""A kept trial that is run again long after: it holds, or it leaves the tree with all that grew from it."""

import json
import time
from pathlib import Path

import pytest

from metaloop.adapters.ledger import read_ledger
from metaloop.events import Invalidated
from metaloop.study import fold
from test_code_study import block, ideas, shop, slots, state
from test_separate import separate
from workshop import Workshop, until

pytestmark = pytest.mark.slow

FACTOR = "factor = float(open('factor.txt').read())\nx = P.get('x', 0.1)\nprint(f'score={x * factor}')\n"


def scaled(folder: Path) -> Workshop:
    """A study whose scores hang on a file that nobody froze."""
    made = Workshop(folder, FACTOR, {"evaluation": {"rule": "proven", "baseline_repeats": 3}})
    (folder / "factor.txt").write_text("1.0")
    made.write(controller={"max_iterations": 4})
    assert made.run().code == 0
    return made


def test_a_best_that_is_what_it_was_holds_and_nothing_changes(tmp_path: Path) -> None:
    made = scaled(tmp_path / "s")
    before = list(read_ledger(made.study))
    done = made("audit", "--rerun", "--json")
    assert done.code == 0, done.err
    told = done.json["rerun"]
    assert (told["before"], told["why"], told["invalidated"]) == (told["again"], "", [])
    assert list(read_ledger(made.study)) == before
    assert not made.alive()


def test_a_best_that_is_not_what_it_was_loses_the_crown_for_good(tmp_path: Path) -> None:
    """Who held it before has it again; the ledger says who asked and why, and the audit holds."""
    made = scaled(tmp_path / "s")
    crowns = [row["trial"] for row in made.rows() if row["verdict"] == "crowned"]
    (made.folder / "factor.txt").write_text("0.5")
    done = made("audit", "--rerun")
    assert done.code == 6
    assert f"trial {crowns[-1]} is not what it was: run again, score = " in done.err
    study = fold(read_ledger(made.study))
    assert study.tally.incumbent == crowns[-2]
    assert made.rows()[crowns[-1]]["verdict"] == "invalid"
    assert "not so any more" in made("show", str(crowns[-1])).out
    assert made("best", "--json").json["best"]["trial"] == crowns[-2]
    (made.folder / "factor.txt").write_text("1.0")
    assert made("audit").code == 0
    assert made.run("--max-iterations", "6").code == 0
    assert made("audit").code == 0
    (event,) = (entry.event for entry in read_ledger(made.study) if isinstance(entry.event, Invalidated))
    assert event.trials == (crowns[-1],)


def test_what_grew_from_it_goes_with_it(tmp_path: Path) -> None:
    """A candidate that is good until a certain hour; it is made from the study's base, whatever the folder is now."""
    made, hour = shop(tmp_path), time.time() + 15
    sly = f"import time\nRATE = 0.3 if time.time() < {hour!r} else 0.05"
    ideas(made, block("src/model.py", "RATE = 0.1", sly), block("src/model.py", "STEPS = 1", "STEPS = 3"))
    assert made.run().code == 0
    assert [row["verdict"] for row in made.rows()] == ["crowned"] * 3
    (made.folder / "src/model.py").write_text("RATE = nonsense")
    before = state(made.folder)
    until(lambda: time.time() > hour, 30)
    done = made("audit", "--rerun", "--trial", "1", "--json")
    assert done.code == 6
    assert done.json["rerun"]["invalidated"] == [1, 2]
    assert made("best", "--json").json["best"]["trial"] == 0
    assert [row["verdict"] for row in made.rows()] == ["crowned", "invalid", "invalid"]
    assert not slots(made)
    assert state(made.folder) == before
    assert made("audit", "--rerun").code == 0


def test_a_file_of_its_own_that_it_changes_the_second_time_is_told(tmp_path: Path) -> None:
    """One that the candidate brought; in the study itself nobody may change one either."""
    made = shop(tmp_path)
    sly = (
        "import os\nRATE = 0.3\nif '-a1-' not in os.environ['HOME']:\n    open('src/part.py', 'w').write('RATE = 0.3')"
    )
    ideas(made, block("src/model.py", "RATE = 0.1", sly) + "\nsrc/part.py\n```\nRATE = 0.2\n```\n")
    assert made.run().code == 0
    assert [row["verdict"] for row in made.rows()] == ["crowned"] * 2
    done = made("audit", "--rerun", "--json")
    assert (done.code, done.json["rerun"]["invalidated"]) == (6, [1])
    assert done.json["rerun"]["why"] == "run again, it failed: src/part.py: the code was changed while it ran"


def test_a_separate_scorer_scores_it_again(tmp_path: Path) -> None:
    made = separate(tmp_path)
    ideas(made, block("src/train.py", "RATE = 0.5", "RATE = 0.75"))
    assert made.run().code == 0
    done = made("audit", "--rerun", "--json")
    assert (done.code, done.json["rerun"]["again"]) == (0, [0.9375])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--trial", "1"], "--trial: expected --rerun with it"),
        (["--rerun", "--trial", "99"], "there is no trial 99: there are 0 to 4"),
    ],
)
def test_what_cannot_be_run_again_is_refused(tmp_path: Path, args: list[str], said: str) -> None:
    made = scaled(tmp_path / "s")
    done = made("audit", *args)
    assert (done.code, said in done.err) == (2, True), done.err


def test_noise_condemns_nobody(tmp_path: Path) -> None:
    """A metric that varies from run to run is compared in the mean, with what its noise explains."""
    script = "import random\nx = P.get('x', 0.1)\nprint(f'score={3 * x + random.gauss(0, 0.2)}')\n"
    made = Workshop(tmp_path / "s", script, {"evaluation": {"rule": "proven", "baseline_repeats": 3}})
    made.write(controller={"max_iterations": 6})
    assert made.run().code == 0
    told = json.loads(made("audit", "--rerun", "--json").out)["rerun"]
    assert told["why"] == "", told
    assert len(told["again"]) <= 3
