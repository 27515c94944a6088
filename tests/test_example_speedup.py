"""The example of a study of code, as its README has it: the real command line, on a copy."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from workshop import METALOOP, Done

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parent.parent / "examples" / "speedup"
GOOD = ["01-two-rows", "04-lengths", "05-letters", "07-one-slip"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    left = shutil.ignore_patterns(".metaloop", "__pycache__")
    return Path(shutil.copytree(EXAMPLE, tmp_path / "speedup", ignore=left))


def called(folder: Path, *argv: str, **more: str) -> Done:
    """A command in the copy, with `python3` the Python of these tests, and a home beside it."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "HOME": str(folder.parent / "home"), "PATH": path, **more}
    done = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, timeout=110)
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def improved(folder: Path, env: dict[str, str]) -> Iterator[str]:
    """What the agent says, call by call, as long as it changes the program."""
    before = ""
    while (code := (folder / "src/spell.py").read_text()) != before:
        before = code
        done = called(folder, "python3", "agent.py", **env)
        assert done.code == 0, done.err
        yield done.out


def test_patches_make_it_faster_and_neither_the_wrong_nor_the_forbidden_one_is_kept(folder: Path) -> None:
    """Each patch gets the verdict that its text foretells, and the best is proven more than twice as fast."""
    before = (folder / "src/spell.py").read_text()
    done = called(folder, str(METALOOP), "run", "study.yaml")
    assert done.code == 0, done.err
    lines = called(folder, str(METALOOP), "export", "--format", "jsonl").out.splitlines()
    rows = {row["by"].removeprefix("patches: ").removesuffix(".txt"): row for row in map(json.loads, lines)}
    assert {name: row["verdict"] for name, row in rows.items()} == {
        "baseline": "crowned", **dict.fromkeys(GOOD, "crowned"),
        "02-array": "discarded", "03-first-letter": "failed", "06-easier-clock": "refused",
    }  # fmt: skip
    assert rows["07-one-slip"]["value"] >= 2 * rows["baseline"]["value"]
    assert "'sadder': expected 'ladder'" in rows["03-first-letter"]["reason"]
    assert rows["06-easier-clock"]["code"] == "frozen_file_mutation_blocked"
    assert rows["05-letters"]["against"] == rows["04-lengths"]["trial"]
    assert "better than the baseline by" in done.out + done.err

    assert (folder / "src/spell.py").read_text() == before
    patch = called(folder, str(METALOOP), "apply", "--patch=-").out
    subprocess.run(["git", "apply"], cwd=folder, input=patch, text=True, check=True)
    assert "def one_slip" in (folder / "src/spell.py").read_text()
    assert called(folder, "python3", "-m", "tests.gate").code == 0


def test_the_agent_makes_one_improvement_a_call_until_none_is_left(folder: Path) -> None:
    """By what the code looks like; all are right; and what its brief tells of is not done again."""
    said = list(improved(folder, {"METALOOP_BRIEF": ""}))
    assert [line.split(":")[0] for line in said] == [
        *(f"made {name}" for name in GOOD),
        "nothing is left that I know of\n",
    ]
    assert called(folder, "python3", "-m", "tests.gate").code == 0
    assert called(folder, "python3", "bench.py").code == 0

    shutil.copy(EXAMPLE / "src/spell.py", folder / "src/spell.py")
    (folder.parent / "brief.md").write_text(f"Make it faster.\n\n- trial 1, no better: {said[0]}")
    done = called(folder, "python3", "agent.py", METALOOP_BRIEF=str(folder.parent / "brief.md"))
    assert done.out.startswith("made 04-lengths")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("print(correct(", "print((", "expected"),
        ("    for line in sys.stdin:", "    for line in list(sys.stdin)[1:]:", "lines, found"),
        ("    counts = read", "    import numpy\n    counts = read", "ModuleNotFoundError"),
        ("    counts = read", "    import bench\n    counts = read", "ModuleNotFoundError"),
        ("    counts = read", "    open('tests/asked.txt')\n    counts = read", "FileNotFoundError"),
    ],
)
def test_a_wrong_program_is_told_in_a_line_and_has_no_time(folder: Path, old: str, new: str, why: str) -> None:
    """Whether it answers wrongly, leaves a word out, or reaches for what is not there for it."""
    program = folder / "src/spell.py"
    program.write_text(program.read_text().replace(old, new))
    for command in (["python3", "-m", "tests.gate"], ["python3", "bench.py"]):
        done = called(folder, *command)
        assert (done.code, done.out) == (1, "")
        assert why in done.err
        assert done.err.count("\n") == 1


def test_the_study_for_a_model_is_in_order(folder: Path) -> None:
    pytest.importorskip("openai")
    done = called(folder, str(METALOOP), "check", "llm.yaml", "--static", OPENAI_API_KEY="sk-nobody-knows-this-0123")
    assert done.code == 0, done.err


def test_an_agent_that_is_a_script_makes_it_faster(folder: Path) -> None:
    """Each session builds on what was kept, and the best is twice as fast."""
    done = called(folder, str(METALOOP), "run", "agent.yaml")
    assert done.code == 0, done.err
    lines = called(folder, str(METALOOP), "export", "--format", "jsonl").out.splitlines()
    rows = [json.loads(line) for line in lines]
    kept = [row for row in rows if row["verdict"] == "crowned"]
    assert len(kept) >= 4
    assert {row["by"] for row in kept[1:]} == {"agent: python3"}
    assert kept[-1]["value"] >= 2 * kept[0]["value"]
    assert "all 4 trials are done" in done.out
    assert "fresh pairs" in done.out
