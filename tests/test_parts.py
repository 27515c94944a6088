"""What is measured by parts: shown along the way of the best, with a warning where the total rises and one does not."""

from pathlib import Path

from workshop import Workshop

SCRIPT = """
x = P.get('x', 0.1)
tasks = {'format': x, 'accuracy': 0.2}
print(json.dumps({'score': sum(tasks.values()), 'tasks': tasks, 'loss': 1 - x}))
"""


def test_a_total_that_rises_while_a_part_is_flat_is_told_of(tmp_path: Path) -> None:
    made = Workshop(tmp_path / "s", SCRIPT, {"evaluation": {"rule": "proven", "baseline_repeats": 2}})
    made.write(policy={"type": "grid", "params": {"x": [0.2, 0.4, 0.8]}})
    assert made.run().code == 0
    told = made("report").out
    assert "## By part" in told
    assert "| accuracy | 0.2 | 0.2 | 0.2 | 0.2 | +0 |" in told
    assert "| format | 0.1 | 0.2 | 0.4 | 0.8 | +0.7 |" in told
    assert "while these parts stayed where they were: accuracy.**" in told


def test_what_has_no_parts_has_no_table(tmp_path: Path) -> None:
    made = Workshop(tmp_path / "s")
    assert made.run().code == 0
    assert "By part" not in made("report").out
