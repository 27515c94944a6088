"""Code that is repaired by few calls: real command line, git and processes, with a model on this machine."""

import json
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from metaloop.adapters.ledger import read_ledger
from metaloop.evaluators.metric import reader
from metaloop.events import Finished, Replied
from metaloop.policies.repair import LEFT_OUT, without_code
from metaloop.roles import Outcome, StepOutcome
from metaloop.study import HELD_OUT
from metaloop.terms import Repair, Terms
from metaloop.testing import FakeProvider
from metaloop.values import Failed, Objective, Ran
from workshop import Workshop, until

pytest.importorskip("openai")
pytestmark = pytest.mark.slow

CHECK = """
import json, sys
sys.path.insert(0, '.')
from solution import solve
cases = json.load(open(sys.argv[1]))
wrong = [(given, solve(given), wanted) for given, wanted in cases if solve(given) != wanted]
for given, found, wanted in wrong:
    print(f'case {given} gave {found}, expected {wanted}')
print(f'passed={1 - len(wrong) / len(cases)}')
"""
VISIBLE, HIDDEN = [[2, 4], [0, 0]], [[2, 4], [7177, 51509329]]
SECRET = re.compile(r"7177|51509329")

RIGHT, FITTED, WRONG, BROKEN = "return n * n", "return n + n", "return n", "return n / 0"
SAID = ("You write code that has", "You find out why", "You mend code")


def version(code: str, why: str = "a reason") -> str:
    return f"WHY: {why}\n```python solution.py\ndef solve(n):\n    {code}\n```\n"


ANALYSIS = (
    "1. The square is wanted.\n2. It doubles.\n3. SEEN-BY-ALL.\n```python\ndef solve(n): return n ** 2\n```\n4. -\n5. -"
)


def kind(body: dict) -> str:
    """What is asked for: a first version, an analysis or a revision."""
    told = body["messages"][0]["content"]
    return next(name for name, text in zip(("first", "analysis", "revise"), SAID, strict=True) if text in told)


def play(versions: Sequence[str], analysis: str = ANALYSIS) -> Callable[[dict], str]:
    """These versions one after the other, the last one for ever; and an analysis whenever that is asked for."""
    left: Iterator[str] = iter(versions)
    last = [""]

    def answer(body: dict) -> str:
        if kind(body) == "analysis":
            return analysis
        last[0] = next(left, last[0])
        return last[0]

    return answer


class Desk:
    """A problem in a folder: `project` has the code and the visible tests; what is hidden lies beside it."""

    def __init__(self, folder: Path, provider: FakeProvider, name: str = "s", **policy: object) -> None:
        project, self.provider = folder / "project", provider
        files = {
            "project/solution.py": "def solve(n):\n    raise NotImplementedError\n",
            "project/check.py": CHECK,
            "project/visible.json": json.dumps(VISIBLE),
            "hidden.json": json.dumps(HIDDEN),
            "project/task.md": "`solve(n)` returns the square of n.\n",
        }
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        self.made = Workshop(project, "", {
            "name": name,
            "objective": {"metric": "passed", "direction": "max", "target": 1.0},
            "target": {
                "train_cmd": [sys.executable, "check.py", "visible.json"],
                "holdout_cmd": [sys.executable, "check.py", "../hidden.json"],
                "timeout_s": 20,
            },
            "policy": {
                "type": "repair", "program_file": "task.md", "mutable": ["solution.py"], "params": {},
            } | policy,
            "models": {"proposer": {"model": "fake", "base_url": provider.url, "max_tokens": 500,
                                    "price": {"input": 1, "output": 1}}},
            "baseline": "none",
            "controller": {"max_iterations": 30, "no_improve_limit": 0},
        })  # fmt: skip
        (project / "train.py").unlink()
        self.made.env = {
            "XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder / "home"), "OPENAI_API_KEY": "sk-0",
        }  # fmt: skip

    def run(self, *words: str):
        return self.made.run(*words, timeout=100)

    def ended(self, *words: str) -> str:
        """Why the study ended, once it can be derived again."""
        done = self.run(*words)
        assert done.code == 0, done.err + done.out
        assert self.made("audit").code == 0
        return self.made("status", "--json").json["closed"]["reason"]

    @property
    def asked(self) -> list[dict]:
        return [request.body for request in self.provider.requests if request.path.endswith("/completions")]

    @property
    def kinds(self) -> list[str]:
        return [kind(body) for body in self.asked]

    def events(self) -> list:
        return [entry.event for entry in read_ledger(self.made.study)]

    def held_out(self) -> list[int]:
        return [event.trial for event in self.events() if isinstance(event, Finished) and event.run == HELD_OUT]

    def verdicts(self) -> list[str]:
        return [row["failure"] or row["code"] or row["verdict"] for row in self.made.rows()]


def texts(bodies: Sequence[dict]) -> list[str]:
    return ["\n".join(message["content"] for message in body["messages"]) for body in bodies]


# ---- one strategy after the other ------------------------------------------------------------------------------------


def test_what_is_solved_at_once_takes_one_call(tmp_path: Path) -> None:
    """And the hidden tests are run when it is over: once, and of the version that passed."""
    with FakeProvider(play([version(RIGHT)])) as provider:
        desk = Desk(tmp_path, provider)
        assert desk.ended() == "target"
        assert desk.kinds == ["first"]
    (row,) = desk.made.rows()
    assert (row["value"], row["holdout"], row["by"]) == (1.0, 1.0, "repair: fake")
    assert desk.held_out() == [1]


def test_an_analysis_comes_before_the_first_revision_and_is_told_to_all_of_them(tmp_path: Path) -> None:
    """Six calls where nothing passes, five of them versions; each sees the result of the one before it, and what all
    before it said of themselves; the analysis has no code.
    """
    wrong = [version(f"return n + {n}", f"reason {n}") for n in range(1, 9)]
    with FakeProvider(play(wrong)) as provider:
        desk = Desk(tmp_path, provider)
        assert desk.ended() == "exhausted"
        assert desk.kinds == ["first", "analysis", *["revise"] * 4]
        told = texts(desk.asked)
    assert "all 6 calls are made" in desk.made("status").out
    assert len(desk.made.rows()) == 5
    assert "case 0 gave 1, expected 0" in told[1]
    for number, text in enumerate(told[2:], 1):
        assert "# An analysis of version 1\n" in text
        assert "SEEN-BY-ALL" in text
        assert "n ** 2" not in text
        assert LEFT_OUT in text
        assert f"case 0 gave {number}, expected 0" in text
        assert f"return n + {number}\n" in text
        assert [n for n in range(9) if f"| reason {n}" in text] == list(range(1, number + 1))
    assert "why your change mends it" in told[2]
    assert "SEEN-BY-ALL" in desk.made("show", "2").out
    assert len(desk.held_out()) == 1


def test_it_stops_where_the_visible_tests_pass(tmp_path: Path) -> None:
    """Which says nothing of the hidden ones."""
    with FakeProvider(play([version(WRONG), version(FITTED)])) as provider:
        desk = Desk(tmp_path, provider)
        assert desk.ended() == "target"
        assert desk.kinds == ["first", "analysis", "revise"]
    assert [(row["value"], row["holdout"]) for row in desk.made.rows()] == [(0.5, None), (1.0, 0.5)]


def test_revisions_without_an_analysis_see_the_tests_alone(tmp_path: Path) -> None:
    wrong = [version(f"return n + {n}") for n in range(1, 9)]
    with FakeProvider(play(wrong)) as provider:
        desk = Desk(tmp_path, provider, strategy="critique_revise", calls=4)
        assert desk.ended() == "exhausted"
        assert desk.kinds == ["first", *["revise"] * 3]
        assert not [text for text in texts(desk.asked) if "# An analysis" in text]
    assert len(desk.made.rows()) == 4


def test_independent_attempts_see_nothing_of_each_other(tmp_path: Path) -> None:
    """The same question each time, on the code that there was; the first that passes ends it, and the same code again
    is an attempt that failed.
    """
    said = [version(BROKEN, "UNSEEN"), version(WRONG, "UNSEEN"), version(WRONG, "UNSEEN"), version(RIGHT)]
    with FakeProvider(play(said)) as provider:
        desk = Desk(tmp_path, provider, strategy="best_of_n")
        assert desk.ended() == "target"
        told = texts(desk.asked)
    assert desk.kinds == ["first"] * 4
    assert len(set(told)) == 1
    assert "UNSEEN" not in told[-1]
    assert desk.verdicts() == ["hypothesis", "crowned", "duplicate", "crowned"]


def test_a_single_call_is_one(tmp_path: Path) -> None:
    with FakeProvider(play([version(WRONG)])) as provider:
        desk = Desk(tmp_path, provider, strategy="single", calls=6)
        assert desk.ended() == "exhausted"
        assert desk.kinds == ["first"]
    assert "its one call is made" in desk.made("status").out
    assert desk.made.rows()[0]["holdout"] == 0.0


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def test_what_cannot_be_used_or_does_not_run_is_a_call_and_is_told_to_the_next(tmp_path: Path) -> None:
    """A reply without code, code that does not parse, a frozen file, a crash. Nothing is asked for again."""
    forged = "WHY: judge\n```python check.py\nprint('passed=1')\n```\n"
    said = ["I cannot do that.", version(BROKEN, "divided"), version("return ("), forged, version(RIGHT)]
    with FakeProvider(play(said)) as provider:
        desk = Desk(tmp_path, provider)
        assert desk.ended() == "target"
        told = texts(desk.asked)
    assert desk.kinds == ["first", "first", "analysis", "revise", "revise", "revise"]
    assert desk.verdicts() == ["not_an_edit", "hypothesis", "syntax_error", "out_of_scope_mutation_blocked", "crowned"]
    assert all(len(body["messages"]) == 2 for body in desk.asked)
    assert "It could not be used, and nothing was run: expected an edit" in told[1]
    assert "ZeroDivisionError" in told[2]
    assert "it failed (hypothesis)" in told[3]
    assert "could not be used" not in told[3]
    assert "return n / 0\n" in told[4]
    assert "could not be used" in told[4]
    assert "| divided" in told[4]


@pytest.mark.parametrize("said", ["", "```python\ndef solve(n): return n * n\n```", "<think>hm</think>"])
def test_an_analysis_that_is_none_is_asked_for_before_the_next_revision(tmp_path: Path, said: str) -> None:
    """Each time it is a call; the last one that is left is a revision."""
    wrong = [version(f"return n + {n}") for n in range(1, 9)]
    with FakeProvider(play(wrong, said)) as provider:
        desk = Desk(tmp_path, provider)
        assert desk.ended() == "exhausted"
        assert desk.kinds == ["first", "analysis", "revise", "analysis", "revise", "revise"]
        assert not [text for text in texts(desk.asked) if "# An analysis" in text or "n * n" in text]


def test_an_answer_that_was_cut_off_is_not_used_though_a_part_of_it_could_be(tmp_path: Path) -> None:
    """It is a call, and the next is told."""
    whole = version(RIGHT)
    with FakeProvider(play([whole + "and more" * len(whole), version(WRONG)]), ["truncated reply"]) as provider:
        desk = Desk(tmp_path, provider, strategy="critique_revise", calls=2)
        assert desk.ended() == "exhausted"
        assert "the reply was cut off at its limit" in texts(desk.asked)[1]
    assert desk.verdicts() == ["unread", "crowned"]


def test_what_the_tests_print_is_kept_as_far_as_a_revision_needs_it() -> None:
    """Of a run that failed and wrote no errors, too: many runners print what failed."""
    terms = Terms("s", Objective("passed", "max", 1.0), ("t",), "repair", {}, repair=Repair())
    said = "x" * 1990 + "\npassed=0\n"

    def run(code: int, err: str = "") -> Ran | Failed:
        return reader(terms)(Outcome((StepOutcome("train", code, None, None, 1.0, "y" * 9000 + said, err),)))

    assert [run(0).tail, run(1).tail, run(1, "broken").tail] == [said, said, "broken"]
    assert (
        len(
            reader(replace(terms, repair=None, policy="llm_diff"))(
                Outcome((StepOutcome("train", 0, None, None, 1.0, said, ""),))
            ).tail
        )
        == 400
    )


def test_where_nothing_ever_runs_there_is_no_value_and_no_hidden_test(tmp_path: Path) -> None:
    with FakeProvider(play([version(BROKEN)])) as provider:
        desk = Desk(tmp_path, provider, strategy="single")
        assert desk.run().code == 4
        assert desk.held_out() == []


@pytest.mark.parametrize("stop", [1, 2, 4])
def test_a_controller_that_is_killed_pays_for_no_answer_twice(tmp_path: Path, stop: int) -> None:
    """In the middle of a first version, of an analysis, of a revision: six answers in all, and the same study."""
    wrong = [version(f"return n + {n}") for n in range(1, 9)]
    made, count = play(wrong), [0]

    def slow(body: dict) -> str:
        count[0] += 1
        if count[0] == stop:
            time.sleep(6)
            return "whoever asked is gone"
        return made(body)

    with FakeProvider(slow) as provider:
        desk = Desk(tmp_path, provider)
        process = desk.made.start("run", "study.yaml")
        until(lambda: count[0] >= stop)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=20)
        assert desk.ended() == "exhausted"
        assert len(desk.asked) == 7
        told = texts(desk.asked)
    answered = [(e.round, e.stage, e.index, e.member) for e in desk.events() if isinstance(e, Replied)]
    assert len(answered) == len(set(answered)) == 6
    assert told[stop - 1] == told[stop]
    assert [row["value"] for row in desk.made.rows()] == [0.0, 0.5, 0.0, 0.0, 0.0]


def test_calls_are_counted_over_the_life_of_a_study(tmp_path: Path) -> None:
    """However often it is resumed; and what a person tries is no call, and shown to nobody."""
    wrong = [version(f"return n + {n}") for n in range(1, 9)]
    with FakeProvider(play(wrong)) as provider:
        desk = Desk(tmp_path, provider, strategy="critique_revise", calls=4)
        assert desk.ended("--max-iterations", "2") == "max_iterations"
        (tmp_path / "idea.txt").write_text(version("return n - 1").partition("\n")[2])
        assert desk.made("run-one", "study.yaml", "--diff", "../idea.txt").code == 0
        assert desk.ended("--max-iterations", "20") == "exhausted"
        assert len(desk.asked) == 4
        assert not [text for text in texts(desk.asked) if "return n - 1" in text]


# ---- what is hidden --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["reasoned_repair", "critique_revise", "best_of_n"])
def test_no_prompt_has_anything_of_the_hidden_tests(tmp_path: Path, strategy: str) -> None:
    """Not even where a candidate looks for them, and prints all that it finds; nor after an end, once they were run."""
    looked = [str(tmp_path / "hidden.json"), "../hidden.json", str(tmp_path / "project/../hidden.json")]
    search = f"import os\n    for path in {looked}:\n        print(os.path.exists(path) and open(path).read())\n"
    search += "    return n - {n}"
    said = [version(search.replace("{n}", str(n))) for n in range(2, 9)]
    with FakeProvider(play(said)) as provider:
        desk = Desk(tmp_path, provider, strategy=strategy)
        desk.made.write(controller={"max_iterations": 2})
        assert desk.run().code == 0
        assert desk.held_out() == [1]
        desk.made.write(controller={"max_iterations": 30})
        assert desk.ended() == "exhausted"
        told = texts(desk.asked)
        assert len(told) == 6
        assert not [text for text in told if SECRET.search(text)]
    assert len(desk.held_out()) == len(set(desk.held_out()))


def test_private_files_are_in_no_prompt(tmp_path: Path) -> None:
    """A separate scorer has the answers, and the hidden ones; what it prints is seen, and that alone."""
    with FakeProvider(play([version(f"return n + {n}") for n in range(1, 9)])) as provider:
        desk = Desk(tmp_path, provider)
        project = desk.made.folder
        (project / "ask.py").write_text("import json\nfrom solution import solve\n"
                                        "json.dump([solve(n) for n in (2, 3)], open('told.json', 'w'))\n")  # fmt: skip
        (project / "score.py").write_text("import json, sys\nwanted = json.load(open(sys.argv[1]))\n"
                                          "told = json.load(open('told.json'))\nprint('SHOWN')\n"
                                          "print('passed=%r' % float(told == wanted))\n")  # fmt: skip
        (project / "labels.json").write_text("[4, 9]")
        (project / "hidden-labels.json").write_text("[4, 717717]")
        python = sys.executable
        desk.made.write(target={
            "train_cmd": [python, "ask.py"], "eval_cmd": [python, "score.py", "labels.json"],
            "outputs": ["told.json"], "private": ["*labels.json"],
            "holdout_cmd": [python, "score.py", "hidden-labels.json"],
        })  # fmt: skip
        assert desk.ended() == "exhausted"
        told = texts(desk.asked)
    assert "SHOWN" in told[1]
    assert not [text for text in told if re.search(r"\[4, 9\]|717717|labels", text)]
    assert desk.made.rows()[0]["holdout"] == 0.0


# ---- what the file says ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"controller": {"parallel": 2}}, "expected 1 with policy.type repair, whose calls follow each other"),
        ({"controller": {"order": "strict"}}, "expected no order with policy.type repair"),
        ({"objective": {"target": None}}, "expected the value at which all visible tests pass"),
        ({"policy": {"program_file": None}}, "expected what the code is to do"),
        ({"policy": {"mutable": None}}, "expected the files that may be changed"),
        ({"policy": {"params": {"x": [1, 2]}}}, "expected none with policy.type repair, which changes code alone"),
        ({"policy": {"fallback": "random"}}, "expected none with policy.type repair"),
        ({"policy": {"strategy": "luck"}}, "policy.strategy: expected 'reasoned_repair'"),
        ({"policy": {"calls": 0}}, "policy.calls: expected a number of at least 1"),
        (
            {"target": {"holdout_cmd": ["python3", "hidden.py"]}},
            "expected what no candidate can print, found 'hidden.py'",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(tmp_path: Path, keys: dict, said: str) -> None:
    with FakeProvider() as provider:
        desk = Desk(tmp_path, provider)
    (desk.made.folder / "hidden.py").write_text("")
    desk.made.write(**{name: {**desk.made.keys.get(name, {}), **value} for name, value in keys.items()})
    done = desk.run()
    assert (done.code, said in done.err) == (2, True), done.err


def test_its_keys_are_told_to_change_nothing_elsewhere(tmp_path: Path) -> None:
    made = Workshop(tmp_path, keys={"policy": {"strategy": "single", "calls": 3}})
    done = made.run()
    for key in ("strategy", "calls"):
        assert f"policy.{key} changes nothing with policy.type: random" in done.err


def test_other_calls_are_another_study(tmp_path: Path) -> None:
    with FakeProvider(play([version(WRONG)])) as provider:
        desk = Desk(tmp_path, provider, strategy="best_of_n", calls=2)
        assert desk.ended() == "exhausted"
        desk.made.write(policy={**desk.made.keys["policy"], "calls": 3})
        done = desk.run()
    assert (done.code, "policy.calls was 2, is 3" in done.err) == (2, True), done.err


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("1. Words.\n```python\nx = 1\n```\n2. More.", f"1. Words.\n\n{LEFT_OUT}\n\n2. More."),
        ("1. Words, and ```x = 1", f"1. Words, and \n{LEFT_OUT}"),
        ("````md\n```\nx\n```\n````\nwords", f"{LEFT_OUT}\n\nwords"),
        ("a.py\n<<<<<<< SEARCH\nx\n=======\ny\n>>>>>>> REPLACE\nwords", f"a.py\n\n{LEFT_OUT}\n\nwords"),
        ("<think>```</think>1. Words.", "1. Words."),
        ("~~~\nx = 1\n~~~\n", ""),
        ("```\n", ""),
        (" \n", ""),
    ],
)
def test_code_is_cut_out_of_an_analysis(text: str, left: str) -> None:
    assert without_code(text) == left
