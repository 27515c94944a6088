"""`metaloop compare`: strategies on the same problems of code, by the real command line."""

import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from metaloop.testing import FakeProvider
from test_repair import BROKEN, FITTED, RIGHT, WRONG, Desk, kind, version
from workshop import Done, until

pytest.importorskip("openai")
pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parent.parent / "examples/repair"


class Problems:
    """Problems a folder each, and who answers: by problem, the first version and the revision."""

    def __init__(self, folder: Path, provider: FakeProvider, *names: str) -> None:
        self.desks = {name: Desk(folder / name, provider, name) for name in names}
        for name, desk in self.desks.items():
            (desk.made.folder / "task.md").write_text(f"Problem {name}: `solve(n)` returns the square of n.\n")
        self.made = self.desks[names[0]].made
        self.files = [str(desk.made.folder / "study.yaml") for desk in self.desks.values()]

    def compare(self, *words: str) -> Done:
        return self.made("compare", *self.files, *words, timeout=200)


def answering(plays: dict[str, tuple[str, str]]):
    """By the problem that a prompt names."""

    def answer(body: dict) -> str:
        told = body["messages"][0]["content"]
        first, revised = plays[told.split("Problem ")[1].split(":")[0]]
        return {"first": version(first), "analysis": "1. It is wrong.", "revise": version(revised)}[kind(body)]

    return answer


PLAYS = {"a": (RIGHT, RIGHT), "b": (WRONG, RIGHT), "c": (FITTED, RIGHT), "d": (BROKEN, RIGHT), "e": (WRONG, FITTED)}
TWO = ("--strategy", "single", "--strategy", "reasoned_repair")


def test_two_strategies_are_compared_on_problems_that_were_really_tried(tmp_path: Path) -> None:
    """One is solved at once, two by a revision, two pass the visible tests alone; the same line again asks nobody."""
    with FakeProvider(answering(PLAYS)) as provider:
        made = Problems(tmp_path, provider, *PLAYS)
        done = made.compare(*TWO, "--json")
        assert done.code == 0, done.err
        asked = len(provider.requests)
        again = made.compare(*TWO)
        assert len(provider.requests) == asked == 5 + 1 + 3 + 1 + 3 + 3
    told = done.json
    found = {(each["problem"], each["strategy"]): (each["visible"], each["hidden"], each["calls"])
             for each in told["cases"]}  # fmt: skip
    assert {name: found[name, "single"] for name in PLAYS} == {
        "a": (True, True, 1), "b": (False, False, 1), "c": (True, False, 1), "d": (False, False, 1),
        "e": (False, False, 1),
    }  # fmt: skip
    assert {name: found[name, "reasoned_repair"] for name in PLAYS} == {
        "a": (True, True, 1), "b": (True, True, 3), "c": (True, False, 1), "d": (True, True, 3),
        "e": (True, False, 3),
    }  # fmt: skip
    (pair,) = told["pairs"]
    assert [pair[name] for name in ("both", "only_first", "only_second", "neither")] == [1, 0, 2, 2]
    assert pair["p"] == 0.5
    single, reasoned = told["shares"]
    assert (single["passed"], single["fitted"], reasoned["passed"], reasoned["fitted"]) == (1, 1, 3, 2)
    assert reasoned["usd"] > single["usd"] > 0
    assert told["left_out"] == []
    assert again.code == 0
    assert (
        "single / reasoned_repair: both 1, only the first 0, only the second 2, neither 2; McNemar p = 0.5" in again.out
    )
    assert "reasoned_repair: 3 of 5 passed (60 %, 95 % interval 23 to 88); 2 of 5 passed the visible" in again.out
    for name, desk in made.desks.items():
        assert sorted(path.name for path in (desk.made.folder / ".metaloop").glob("*-*")) == [
            f"{name}-reasoned_repair", f"{name}-single",
        ]  # fmt: skip
        assert desk.made("audit", str(desk.made.folder / f".metaloop/{name}-reasoned_repair")).code == 0


def test_all_strategies_run_unless_some_are_named_with_as_many_calls_each(tmp_path: Path) -> None:
    """But for the one that makes one call; where they come to the same everywhere, nothing tells them apart."""
    with FakeProvider(answering({"a": (RIGHT, RIGHT), "b": (WRONG, WRONG)})) as provider:
        made = Problems(tmp_path, provider, "a", "b")
        for desk in made.desks.values():
            desk.made.write(policy={**desk.made.keys["policy"], "calls": 3})
        told = made.compare("--json").json
    assert [share["strategy"] for share in told["shares"]] == [
        "reasoned_repair", "critique_revise", "best_of_n", "single",
    ]  # fmt: skip
    assert [share["calls"] for share in told["shares"]] == [4, 4, 4, 2]
    assert len(told["pairs"]) == 6
    assert {pair["p"] for pair in told["pairs"]} == {1.0}


def test_a_problem_that_could_not_be_run_is_left_out_and_named(tmp_path: Path) -> None:
    """Of one the baseline fails, of one the hidden tests work for nobody, for the third nobody answers."""
    deaf = FakeProvider(forever="401")
    with FakeProvider(answering({**PLAYS, "b": (RIGHT, RIGHT)})) as provider, deaf:
        made = Problems(tmp_path, provider, "a", "b", "c")
        made.desks["a"].made.write(baseline=None, evaluation={"baseline_repeats": 1})
        (tmp_path / "b/hidden.json").write_text("no cases")
        model = {**made.desks["c"].made.keys["models"]["proposer"], "base_url": deaf.url}
        made.desks["c"].made.write(models={"proposer": model})
        done = made.compare(*TWO, "--json")
    assert done.code == 4
    told = done.json
    assert [(each["problem"], each["hidden"]) for each in told["cases"]] == [
        (name, None) for name in "abc" for _ in (1, 2)
    ]
    assert [each["ended"] for each in told["cases"][::2]] == ["baseline_failed", "target", "proposer_failed"]
    assert [line.split(":")[0] for line in told["left_out"]] == [
        f"{name}, {strategy}" for name in "abc" for strategy in ("single", "reasoned_repair")
    ]


def test_a_comparison_that_is_killed_goes_on_and_pays_for_nothing_twice(tmp_path: Path) -> None:
    """In the middle of the second problem."""
    count, made_of = [0], answering(PLAYS)

    def slow(body: dict) -> str:
        count[0] += 1
        if count[0] == 4:
            time.sleep(6)
        return made_of(body)

    with FakeProvider(slow) as provider:
        made = Problems(tmp_path, provider, "a", "b")
        process = made.made.start("compare", *made.files, *TWO)
        until(lambda: count[0] == 4)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=20)
        told = made.compare(*TWO, "--json").json
        assert len(provider.requests) == 1 + 1 + 1 + 3 + 1
    assert [each["calls"] for each in told["cases"]] == [1, 1, 1, 3]


@pytest.mark.parametrize(
    ("keys", "words", "said"),
    [
        ({}, ("--strategy", "luck"), "--strategy: expected reasoned_repair, critique_revise, best_of_n, single"),
        ({"policy": {"type": "llm_diff"}}, TWO, "expected policy.type repair, found llm_diff"),
        ({"target": {"holdout_cmd": None}}, TWO, "expected tests that nobody is shown"),
        ({"objective": {"target": None}}, TWO, "expected the value at which all visible tests pass"),
    ],
)
def test_what_cannot_be_compared_is_said_before_anything_runs(
    tmp_path: Path, keys: dict, words: tuple[str, ...], said: str
) -> None:
    with FakeProvider() as provider:
        made = Problems(tmp_path, provider, "a", "b")
        last = made.desks["b"].made
        last.write(**{name: {**last.keys.get(name, {}), **value} for name, value in keys.items()})
        done = made.compare(*words)
        assert not provider.requests
    assert (done.code, said in done.err) == (2, True), done.err
    assert not list(tmp_path.rglob(".metaloop"))


def test_the_same_problem_twice_is_refused_and_two_of_one_name_are_told_apart(tmp_path: Path) -> None:
    with FakeProvider(answering({"a": (RIGHT, RIGHT), "b": (RIGHT, RIGHT)})) as provider:
        made = Problems(tmp_path, provider, "a", "b")
        made.files.append(made.files[0])
        assert "expected each problem once" in made.compare(*TWO).err
        made.files.pop()
        made.desks["b"].made.write(name="a")
        told = made.compare("--strategy", "single", "--json").json
    assert [each["problem"] for each in told["cases"]] == made.files


# ---- the example -----------------------------------------------------------------------------------------------------

GOOD = {
    "intervals": """
def solve(intervals):
    made = []
    for low, high in sorted(intervals):
        if made and low <= made[-1][1] + 1:
            made[-1][1] = max(high, made[-1][1])
        else:
            made.append([low, high])
    return made
""",
    "roman": """
import re

PATTERN = "(M{0,3})(CM|CD|D?C{0,3})(XC|XL|L?X{0,3})(IX|IV|V?I{0,3})"
WORTH = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def solve(text):
    if not text or not re.fullmatch(PATTERN, text):
        raise ValueError(text)
    values = [WORTH[letter] for letter in text] + [0]
    return sum(-one if one < after else one for one, after in zip(values, values[1:]))
""",
    "duration": """
import re

PATTERN = r"(-(?=[0-9]))?(?:([0-9]+) *d)? *(?:([0-9]+) *h)? *(?:([0-9]+) *m)? *(?:([0-9]+) *s)?"


def solve(text):
    found = re.fullmatch(PATTERN, text.strip(" "))
    if not found or not any(found.groups()[1:]):
        raise ValueError(text)
    total = sum(int(part or 0) * unit for part, unit in zip(found.groups()[1:], (86400, 3600, 60, 1)))
    return -total if found[1] else total
""",
}
EASY = {
    "intervals": GOOD["intervals"].replace("+ 1", ""),
    "roman": GOOD["roman"].replace("not re.fullmatch(PATTERN, text)", "'IIII' in text"),
    "duration": GOOD["duration"].replace(" *(?", "(?"),
}
"""Solutions that pass what is visible, but for one, and not what is hidden."""


def test_the_example_is_solved_by_what_is_right_and_by_nothing_less(tmp_path: Path) -> None:
    """As it stands in its folder, but for the model's name."""

    def answer(body: dict) -> str:
        told = body["messages"][0]["content"]
        name = "roman" if "Roman" in told else "intervals" if "intervals" in told else "duration"
        code = {"first": EASY[name], "revise": GOOD[name]}.get(kind(body), "")
        return f"WHY: so\n```python solution.py{code}```\n" if code else "1. to 5. Words."

    shutil.copytree(EXAMPLE, tmp_path / "repair", ignore=shutil.ignore_patterns(".metaloop", "__pycache__"))
    with FakeProvider(answer) as provider:
        made = Problems(tmp_path / "other", provider, "a")
        env = {"OPENAI_BASE_URL": provider.url, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
        files = sorted(str(path) for path in (tmp_path / "repair").glob("*/study.yaml"))
        done = made.made("compare", *files, *TWO, "--json", env=env, timeout=200)
    assert done.code == 0, done.err
    cases = {(each["problem"], each["strategy"]): each for each in done.json["cases"]}
    assert len(files) == 3
    for name in GOOD:
        single, reasoned = cases[name, "single"], cases[name, "reasoned_repair"]
        assert single["hidden"] is False, single
        assert (reasoned["hidden"], reasoned["calls"]) == ((False, 1) if single["visible"] else (True, 3)), reasoned
    assert [cases[name, "single"]["visible"] for name in GOOD] == [True, True, False]
