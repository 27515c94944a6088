"""What a coding agent may take, and what it cost: limits that its own tool holds, caps that we hold, what it tells."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from test_code_study import shop
from workshop import Workshop

pytestmark = pytest.mark.slow

AGENT = """
import json, pathlib, re, sys, time
with open(LOG, 'a') as log:
    log.write(json.dumps(sys.argv[1:]) + '\\n')
time.sleep(SECONDS)
path = pathlib.Path('src/model.py')
text = path.read_text()
rate = float(re.search(r'RATE = (\\S+)', text)[1])
path.write_text(text.replace(f'RATE = {rate}', f'RATE = {rate * 2}'))
print(TOLD)
"""
LIMITED = ["--max-turns={turns}", "--budget", "{usd}"]


def employing(
    folder: Path, told: str = "", words: Sequence[str] = (), seconds: float = 0.0, **agent: object
) -> Workshop:
    """A study whose agent doubles the rate, notes that it was employed, with which words, and prints `told`."""
    script = folder / "agent.py"
    keys = {"command": [sys.executable, str(script), *words], "timeout_s": 20, **agent}
    made = shop(folder, type="agent", patches=None, agent=keys)
    log = str(folder / "employed.txt")
    script.write_text(AGENT.replace("LOG", repr(log)).replace("SECONDS", str(seconds)).replace("TOLD", repr(told)))
    made.write(controller={"max_iterations": 2})
    return made


def employed(made: Workshop) -> list[list[str]]:
    """The words of every session, in their order."""
    path = made.folder.parent / "employed.txt"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


# ---- limits that its own tool holds ----------------------------------------------------------------------------------


def test_what_a_session_may_take_is_told_to_its_tool(tmp_path: Path) -> None:
    """In its words, as plain digits; the same marks in what it is told are text."""
    made = employing(tmp_path, words=[*LIMITED, "{brief}"], turns=12, usd=0.00005)
    made.write(policy={**made.keys["policy"], "program_file": "task.md"}, controller={"max_iterations": 1})
    (made.folder / "task.md").write_text("Keep {usd} and {brief_file} as they are.\n")
    done = made.run()
    assert done.code == 0, done.err
    ((turns, option, usd, brief),) = employed(made)
    assert (turns, option, usd) == ("--max-turns=12", "--budget", "0.00005")
    assert "Keep {usd} and {brief_file} as they are." in brief


@pytest.mark.parametrize(
    ("words", "keys", "said"),
    [
        (["{usd}"], {"usd": 1, "turns": 5}, 'policy.agent.turns: expected "{turns}" in policy.agent.command'),
        (["--turns"], {"usd": 1}, 'add "{usd}" after the option that limits it'),
        (LIMITED, {"turns": 5}, 'expected what "{usd}" stands for, found no policy.agent.usd; add usd: 2'),
        (LIMITED, {"usd": 1}, "found no policy.agent.turns; add turns: 30"),
        (LIMITED, {"usd": 0, "turns": 5}, "expected a number above 0"),
        (LIMITED, {"usd": 1, "turns": 0}, "expected a number of at least 1"),
    ],
)
def test_a_limit_that_nobody_would_hold_is_refused(tmp_path: Path, words: list[str], keys: dict, said: str) -> None:
    """And a mark that stands for nothing: exit code 2, with what to type, before anything begins."""
    made = employing(tmp_path, words=words, **keys)
    done = made.run()
    assert (done.code, said in done.err) == (2, True), done.err
    assert not made.study.exists()


# ---- what a session cost ---------------------------------------------------------------------------------------------


def account(usd: object, text: str = "WHY: more of it") -> str:
    """What a tool with an output format of JSON prints at its end."""
    usage = {"input_tokens": 10, "cache_read_input_tokens": 200, "output_tokens": 7}
    return json.dumps({"type": "result", "total_cost_usd": usd, "usage": usage, "result": f"Well.\n{text}"})


def test_what_the_tool_says_it_cost_is_what_the_study_cost(tmp_path: Path) -> None:
    """By role, in the summary, `status` and `report`, as for models; and its reason is read from its answer."""
    made = employing(tmp_path, told=f"working\n{account(0.25)}\n")
    done = made.run("--json")
    assert done.code == 0, done.err
    asked = done.json["asked"]["agent"]
    assert (asked["usd"], asked["tokens_in"], asked["tokens_out"]) == (0.5, 420, 14)
    assert asked["seconds"] > 0
    assert "more of it" in made("show", "1").out
    assert "agent: 420 tokens in, 14 out, $0.5000" in made("status").out
    assert "Asked as agent: 420 tokens in, 14 out, $0.5000." in made("report").out
    assert made("audit").code == 0


def test_a_tool_that_says_nothing_has_no_price(tmp_path: Path) -> None:
    """What it cost is not known, and not nothing."""
    made = employing(tmp_path, told="WHY: more of it")
    done = made.run("--json")
    assert done.json["asked"]["agent"]["usd"] is None
    assert "its price is not known" in made("report").out
