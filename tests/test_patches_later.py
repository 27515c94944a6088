"""Patches that come after a study has ended because none was left: the same command goes on with them."""

from pathlib import Path

import pytest

from test_code_study import BETTER, block, ideas, shop
from workshop import Workshop

pytestmark = pytest.mark.slow


def add(made: Workshop, name: str, text: str) -> None:
    (made.folder.parent / "ideas" / name).write_text(text)


def held(made: Workshop) -> dict[str, bytes]:
    """What is recorded, and what trials have left."""
    paths = [made.study / "ledger.jsonl", *made.study.glob("trials/**/*"), *made.study.glob("versions/**/*")]
    return {str(path): path.read_bytes() for path in paths if path.is_file()}


@pytest.mark.parametrize("controller", [{}, {"order": "strict", "parallel": 2}, {"parallel": 3}], ids=str)
def test_patches_that_are_added_later_are_tried_by_the_same_command(tmp_path: Path, controller: dict) -> None:
    """On what was found before; without any, not a byte is written, and what was tried is not tried again."""
    made = shop(tmp_path)
    made.write(controller={**made.keys["controller"], **controller})
    ideas(made, *BETTER[:2])
    assert made.run().code == 0
    for name, text, value in (("b.txt", BETTER[3], 0.6), ("a < c.txt", BETTER[5], 1.2)):
        before = held(made)
        assert made.run().code == 0
        assert held(made) == before
        add(made, name, text)
        done = made.run("--json")
        assert done.json["closed"]["reason"] == "exhausted"
        assert made.rows()[-1]["by"] == f"patches: {name}"
        if "order" not in controller:  # there it knows only what came four rounds before
            assert made.rows()[-1]["value"] == pytest.approx(value)
        assert made("audit").code == 0
    assert len(made.rows()) == 5
    add(made, "b.txt", block("src/model.py", "RATE = 0.1", "RATE = 9"))  # the same name is the same patch
    before = held(made)
    assert made.run().code == 0
    assert held(made) == before


def test_rounds_that_found_nothing_do_not_count_as_trials(tmp_path: Path) -> None:
    """However often the command is given, as many patches are tried as there may be trials."""
    made = shop(tmp_path)
    made.write(controller={**made.keys["controller"], "max_iterations": 4})
    for number in range(1, 6):
        add(made, f"{number}.txt", block("src/model.py", "STEPS = 1", f"STEPS = 1 + 0 * {number}"))
        assert made.run().code == 0
        assert made("audit").code == 0
    assert len(made.rows()) == 5
    assert "all 4 trials are done" in made("status").out


def test_a_bandit_goes_on_with_patches_that_were_added(tmp_path: Path) -> None:
    """Where its other arms had nothing left either."""
    made = shop(tmp_path, type="learned", arms=["random", "patches"], params={"x": [1, 2]})
    ideas(made, *BETTER[:1])
    done = made.run("--json")
    assert done.json["closed"]["reason"] == "exhausted"
    before = held(made)
    assert made.run().code == 0
    assert held(made) == before
    add(made, "later.txt", BETTER[3])
    assert made.run("--json").json["closed"]["reason"] == "exhausted"
    assert [row["by"] for row in made.rows() if "patches" in row["by"]][-1] == "patches < patches: later.txt"
    assert made("audit").code == 0


def test_patches_that_came_with_a_request_are_tried_by_the_next_run(tmp_path: Path) -> None:
    """`run-one` tries what was asked for and nothing else; that it saw them first does not hide them."""
    made = shop(tmp_path)
    ideas(made, *BETTER[:1])
    assert made.run().code == 0
    add(made, "later.txt", BETTER[1])
    (tmp_path / "own.txt").write_text(BETTER[5])
    assert made("run-one", "study.yaml", "--diff", str(tmp_path / "own.txt")).code == 0
    assert len(made.rows()) == 3
    assert made.run().code == 0
    assert made.rows()[-1]["by"] == "patches: later.txt"
    assert made("audit").code == 0


def test_a_kill_while_later_patches_are_tried_loses_none(tmp_path: Path) -> None:
    """And tries none twice."""
    made = shop(tmp_path)
    slow = (made.folder / "bench.py").read_text().replace("print", "import time\ntime.sleep(0.5)\nprint")
    (made.folder / "bench.py").write_text(slow)
    ideas(made, *BETTER[:1])
    assert made.run().code == 0
    add(made, "b.txt", BETTER[3])
    add(made, "c.txt", BETTER[5])
    process = made.start("run", "study.yaml")
    while len(made.rows()) < 3:
        assert process.poll() is None
    process.kill()
    process.communicate()
    assert made.run().code == 0
    assert [row["by"] for row in made.rows()[1:]] == ["patches: 01.txt", "patches: b.txt", "patches: c.txt"]
    assert made("audit").code == 0
