"""What was refused, by the real command line: it is said so, and never shown with its parent's change as its own."""

from pathlib import Path

from test_code_study import block, employing, ideas, shop


def test_what_was_refused_is_shown_as_it_was_asked_for_and_never_as_its_parents_change(tmp_path: Path) -> None:
    """Its parent has a change of its own; a tracked file is no new one, though nobody may change it."""
    made = shop(tmp_path, frozen=[])
    bad = block("bench.py", "import sys", "import os, sys")
    ideas(made, block("src/model.py", "RATE = 0.1", "RATE = 0.2"), bad, block("src/new.txt", "", "new"))
    (tmp_path / "ideas/4-noop.patch").write_text(" \n")
    assert made.run().code == 0
    reason = "bench.py: expected changes within src/**, found a change of a file that is not mutable"
    row = made.rows()[2]
    assert (row["verdict"], row["parent"], row["reason"], row["files"], row["changed"]) == (
        "refused",
        1,
        reason,
        {},
        [],
    )
    told = made("diff", "2")
    assert told.out == bad
    assert f"trial 2 was refused, and never ran: {reason}\nnothing of it was applied" in told.err
    shown = made("show", "2").out
    assert "RATE" not in shown
    assert "    | refused: nothing was applied; what was asked for:\n    | bench.py\n" in shown
    assert "+RATE = 0.2" in made("diff", "1").out
    assert "4-noop.patch is empty" in made.rows()[4]["reason"][:40]
    assert "4-noop.patch is empty" in made("status").out
    assert made("audit").code == 0
    (tmp_path / "late.patch").write_text("no patch at all")
    assert made("run-one", "study.yaml", "--diff", str(tmp_path / "late.patch")).code == 2
    assert made("diff", "5").out == "no patch at all\n"


def test_a_duplicate_is_shown_with_its_change_and_as_one_that_was_refused(tmp_path: Path) -> None:
    made = shop(tmp_path)
    better = block("src/model.py", "RATE = 0.1", "RATE = 0.2")
    ideas(made, better)
    assert made.run().code == 0
    assert made("run-one", "study.yaml", "--diff", str(tmp_path / "ideas/01.txt")).code == 2
    told = made("diff", "2")
    assert "+RATE = 0.2" in told.out
    assert "trial 2 was refused, and never ran: the same as trial 1" in told.err


def test_what_an_agent_was_refused_for_is_shown(tmp_path: Path) -> None:
    """The names of files that nobody may change, whose text is not recorded."""
    made = employing(tmp_path, "forger", 1)
    made.run()
    assert "changed too: bench.py\n" in made("diff", "1").out
