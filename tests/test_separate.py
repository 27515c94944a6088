"""A scorer that candidates never see: what they leave is carried to it, and nothing else of theirs."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import metaloop.adapters.carry
from metaloop.edits.contract import covers, regex
from test_code_study import block, git, ideas, slots, state
from workshop import Workshop

pytestmark = pytest.mark.slow

TRAIN = """
import json, os
RATE = 0.5
xs = json.load(open('data/inputs.json'))
json.dump([RATE * x for x in xs], open('predictions.json', 'w'))
"""
SCORE = """
import json, os
ys = json.load(open('data/labels.json'))
told = json.load(open('predictions.json'))
assert len(told) == len(ys)
err = sum(abs(float(a) - b) for a, b in zip(told, ys)) / len(ys)
print('score=%r' % round(1 - err, 6))
"""
FILES = {
    "src/train.py": TRAIN,
    "score.py": SCORE,
    "data/inputs.json": "[0.1, 0.2, 0.3, 0.4]",
    "data/labels.json": "[0.1, 0.2, 0.3, 0.4]",
}
HONEST = round(1 - 0.125, 6)


def separate(folder: Path, *candidates: str, **keys: object) -> Workshop:
    """A study in which each candidate is a whole `src/train.py`, which is to leave `predictions.json`."""
    project = folder / "project"
    for path, text in FILES.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(text)
    python = sys.executable
    made = Workshop(
        project,
        "",
        {
            "target": {
                "train_cmd": [python, "src/train.py"],
                "eval_cmd": [str(Path(sys.base_prefix, "bin/python3")), "score.py"],
                "outputs": ["predictions.json"],
                "private": ["data/labels.json"],
                "timeout_s": 20,
            },
            "policy": {"type": "patches", "mutable": ["src/**"], "patches": "../ideas", "params": {}},
            "evaluation": {"rule": "strict", "baseline_repeats": 1},
            "controller": {"max_iterations": 40, "no_improve_limit": 0, "failure_rate_limit": 1.0},
        }
        | keys,
    )
    made.env = {"XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder / "home")}
    (folder / "ideas").mkdir(exist_ok=True)
    (project / "train.py").unlink()
    git(project, "init", "-q", "-b", "main")
    git(project, "add", "-A")
    git(project, "commit", "-qm", "base")
    ideas(made, *(whole(text) for text in candidates))
    return made


def whole(text: str) -> str:
    """A patch that writes the candidate's file anew."""
    return f"src/train.py\n```\n{text.strip()}\n```\n"


def test_candidates_leave_something_and_a_scorer_that_they_never_see_reads_it(tmp_path: Path) -> None:
    """The better one is kept; the scorer has the labels and none of their code; the user's folder is untouched."""
    made = separate(tmp_path)
    ideas(made, block("src/train.py", "RATE = 0.5", "RATE = 0.75"), block("src/train.py", "RATE = 0.75", "RATE = 2.0"))
    before = state(made.folder)
    done = made.run()
    assert done.code == 0, done.err
    assert [row["value"] for row in made.rows()] == pytest.approx([HONEST, 0.9375, 0.75])
    assert [row["verdict"] for row in made.rows()] == ["crowned", "crowned", "discarded"]
    assert state(made.folder) == before
    assert not slots(made)
    assert made("audit").code == 0


PRELUDE = TRAIN + "import sys, pathlib, stat, subprocess\nhere = pathlib.Path('.')\n"
ATTACKS = {
    "reads labels": ("print(open('data/labels.json').read())", "No such file"),
    "says a score": ("print('score=99', flush=True); os._exit(0)", HONEST),
    "writes metrics": (
        "job = pathlib.Path(os.environ['HOME']).parent\n(job / 'metrics.json').write_text('{\"score\": 99}')",
        HONEST,
    ),
    "shadows a module": ("(here / 'json.py').write_text('print(\"score=99\"); raise SystemExit')", HONEST),
    "starts with the scorer": (
        "site = pathlib.Path(os.environ['HOME'], '.local/lib/python%d.%d/site-packages' % sys.version_info[:2])\n"
        "site.mkdir(parents=True)\n"
        "(site / 'usercustomize.py').write_text('print(\"score=99\"); import os; os._exit(0)')",
        HONEST,
    ),
    "leaves metrics under every name": (
        "job = str(pathlib.Path(os.environ['HOME']).parent)\n"
        "open(job + '/forged', 'w').write('{\"score\": 99}')\n"
        "for name in ('metrics.json', 'train.metrics', 'outputs.metrics', 'evaluate.metrics'):\n"
        "    os.link(job + '/forged', job + '/' + name)",
        HONEST,
    ),
    "leaves a link": (
        "os.unlink('predictions.json'); os.symlink('../data/labels.json', 'predictions.json')",
        "predictions.json: expected a file, found a link",
    ),
    "leaves a pipe": ("os.unlink('predictions.json'); os.mkfifo('predictions.json')", "found a pipe"),
    "leaves a hole": ("os.truncate('predictions.json', 1 << 40)", "at most 1024 MiB"),
    "leaves nothing": ("os.unlink('predictions.json')", "'predictions.json' matches, found none"),
    "leaves a folder": ("os.unlink('predictions.json'); os.mkdir('predictions.json')", "evaluate ended"),
    "leaves no JSON": ("(here / 'predictions.json').write_text('score=99')", "evaluate ended"),
    "leaves folders without end": (
        "[(os.mkdir('d'), os.chdir('d')) for _ in range(70)]",
        "64 folders within each other",
    ),
    "leaves too many": (
        "os.unlink('predictions.json'); os.mkdir('predictions.json')\n"
        "[open(f'predictions.json/{n}', 'w').close() for n in range(10_001)]",
        "at most 10000 files, found more",
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_but_what_is_left_makes_a_score(tmp_path: Path, name: str) -> None:
    """Whatever a candidate does, its score is an honest one of what it left, or none."""
    code, expected = ATTACKS[name]
    made = separate(tmp_path)
    ideas(made, whole(PRELUDE + code))
    assert made.run().code in (0, 4)
    row = made.rows()[1]
    if isinstance(expected, float):
        assert (row["value"], row["verdict"]) == (expected, "discarded")
    else:
        assert row["verdict"] == "failed", row
        assert expected in row["reason"]
    assert not slots(made)


def test_a_scorer_that_was_changed_by_a_candidate_is_told(tmp_path: Path) -> None:
    """In the candidate's own directory it changes nothing, and is a failure of its own all the same."""
    made = separate(tmp_path)
    ideas(made, whole(PRELUDE + "(here / 'score.py').write_text('print(\"score=99\")')"))
    assert made.run().code in (0, 4)
    row = made.rows()[1]
    assert (row["failure"], row["reason"]) == ("cheating", "score.py: a frozen file was changed while it ran")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ({"eval_cmd": None}, "target.outputs: expected who scores them; add eval_cmd"),
        ({"outputs": ["*.py"]}, "found 'score.py' of eval_cmd: the scorer would be theirs"),
        ({"outputs": ["data/l*"]}, "found 'data/labels.json', which is private or frozen"),
        ({"eval_cmd": ["python3", "src/train.py"]}, "'src/train.py' is mutable: take it out of that"),
        ({"outputs": []}, "target.private: expected a step that may see them apart from the candidate's"),
        ({"private": ["src/train.py"]}, "'src/train.py' is both mutable and private"),
        ({"private": ["nothing/*"]}, "none that matches 'nothing/*'"),
    ],
)
def test_what_would_not_keep_them_apart_is_refused(tmp_path: Path, target: dict, said: str) -> None:
    made = separate(tmp_path)
    made.write(target={**made.keys["target"], **target})
    done = made.run()
    assert (done.code, said in done.err) == (2, True), done.err
    assert not made.study.exists()


def test_nothing_that_the_scorer_has_is_replaced(tmp_path: Path) -> None:
    """Whatever the patterns are: not a file, not a link, and not what stands where a folder would."""
    theirs, scorers = tmp_path / "theirs", tmp_path / "scorers"
    (theirs / "d").mkdir(parents=True)
    for path in ("a", "d/b"):
        (theirs / path).write_text("forged")
    for make in (lambda: (scorers / "a").write_text("own"), lambda: (scorers / "a").symlink_to("nowhere")):
        scorers.mkdir()
        make()
        done = carry(theirs, scorers, "a")
        assert (done.returncode, done.stderr) == (
            1, "a: expected a name that the scorer has no file of, found one that it has\n"
        )  # fmt: skip
        assert (scorers / "a").is_symlink() or (scorers / "a").read_text() == "own"
        shutil.rmtree(scorers)
    scorers.mkdir()
    (scorers / "d").symlink_to(tmp_path)
    assert carry(theirs, scorers, "d/b").returncode == 1
    assert not (tmp_path / "b").exists()
    (scorers / "d").unlink()
    assert carry(theirs, scorers, "d/b").returncode == 0
    assert (scorers / "d/b").read_text() == "forged"


def carry(source: Path, target: Path, path: str) -> subprocess.CompletedProcess[str]:
    script = Path(metaloop.adapters.carry.__file__)
    argv = [sys.executable, "-I", "-S", script, source, target, path, regex(path)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=20)


@given(st.text(st.sampled_from("ab/*?[]!-.^"), max_size=12), st.text(st.sampled_from("ab/-.^!"), max_size=10))
def test_a_glob_means_the_same_as_its_expression(glob: str, path: str) -> None:
    """Where that can be written down at all."""
    try:
        pattern = re.compile(regex(glob), re.DOTALL)
    except re.error:
        return
    assert (pattern.fullmatch(path) is not None) == covers(glob, path)
