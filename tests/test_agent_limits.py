"""What a coding agent may take, and what it cost: limits that its own tool holds, caps that we hold, what it tells."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from metaloop.adapters.ledger import read_ledger
from test_code_study import shop
from workshop import Workshop, marked, until

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
    (folder / "told").mkdir()  # an agent may not write beside its directory but where it is said
    log = str(folder / "told/employed.txt")
    script.write_text(AGENT.replace("LOG", repr(log)).replace("SECONDS", str(seconds)).replace("TOLD", repr(told)))
    sandbox = {"write": [str(folder / "told")]}
    made.write(target={**made.keys["target"], "sandbox": sandbox}, controller={"max_iterations": 2})
    return made


def employed(made: Workshop) -> list[list[str]]:
    """The words of every session, in their order."""
    path = made.folder.parent / "told/employed.txt"
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


# ---- caps ------------------------------------------------------------------------------------------------------------


def capped(folder: Path, cap: float, told: str = "", trials: int = 9, **more: object) -> Workshop:
    """An agent whose tool holds a session to 1 USD, in a study that may cost `cap`."""
    made = employing(folder, told, words=["{usd}"], usd=1, **more)
    made.write(controller={"max_iterations": trials, "max_cost_usd": cap})
    return made


@pytest.mark.parametrize(
    ("usd", "sessions", "spent"),
    [(1.0, 3, 3.0), (0.75, 4, 3.0), (0.9, 3, 2.7), (0.5, 5, 2.5), (None, 3, 3.0)],
)
def test_a_cap_holds_over_many_sessions(tmp_path: Path, usd: float | None, sessions: int, spent: float) -> None:
    """No session is begun that could go over it; what was told is charged, and all of it where nothing was."""
    made = capped(tmp_path, 3.4, account(usd))
    done = made.run("--json")
    assert done.code == 0, done.err
    assert done.json["closed"]["reason"] == "cost"
    assert len(employed(made)) == sessions
    assert done.json["asked"]["agent"]["usd"] == pytest.approx(spent)
    assert len(made.rows()) == sessions + 1
    alerts = made("status", "--json").json["alerts"]
    unknown = ["agent: a session did not say what it cost, and is charged the $1 that it was given"]
    assert alerts == (unknown if usd is None else [])
    assert made("audit").code == 0


def test_a_tool_that_does_not_hold_its_limit_is_charged_and_told_of(tmp_path: Path) -> None:
    """What it told, which is more than it was given; the next session may be too dear then."""
    made = capped(tmp_path, 3, account(1.75))
    done = made.run()
    assert done.code == 0
    assert len(employed(made)) == 2
    assert "cost $1.75, and was given $1: its tool did not hold that limit" in done.out + done.err
    assert made("status", "--json").json["asked"]["agent"]["usd"] == 3.5
    assert made("audit").code == 0


def test_a_session_that_was_ended_is_charged_in_full(tmp_path: Path) -> None:
    """What it told before it was ended by its limit on time is a part of what it cost."""
    made = capped(tmp_path, 3, account(0.25), trials=1, timeout_s=1)
    script = tmp_path / "agent.py"
    script.write_text(
        script.read_text().replace("print(", "import sys; print(") + "sys.stdout.flush(); time.sleep(9)\n"
    )
    done = made.run("--json")
    assert done.json["asked"]["agent"]["usd"] == 1.0
    assert made.rows()[1]["value"] == pytest.approx(0.2)  # it counts for what it wrote


def test_money_that_does_not_pay_for_one_session_is_not_spent(tmp_path: Path) -> None:
    """Exit code 5; with more, the same command goes on."""
    made = capped(tmp_path, 0.5, account(0.1), trials=1)
    assert made.run().code == 5
    assert not employed(made)
    assert made.run("--max-cost-usd", "1").code == 0
    assert len(employed(made)) == 1


@pytest.mark.parametrize(
    ("keys", "cap", "said"),
    [
        ({}, {"max_cost_usd": 3}, 'nothing bounds what a session of the agent costs; add usd: 2 and "{usd}"'),
        ({"usd": 1, "words": ["{usd}"]}, {"max_tokens": 1000}, "nothing bounds the tokens of an agent's session"),
    ],
)
def test_a_cap_that_could_not_hold_is_refused(tmp_path: Path, keys: dict, cap: dict, said: str) -> None:
    """Exit code 2, with what to type."""
    made = employing(tmp_path, **keys)
    made.write(controller=cap)
    done = made.run()
    assert (done.code, said in done.err) == (2, True), done.err


def working(made: Workshop, sessions: int = 1) -> subprocess.Popen[str]:
    """A controller whose agent is at work."""
    process = made.start("run", "study.yaml")
    until(lambda: len(employed(made)) == sessions, 30)
    return process


def spent(made: Workshop) -> float:
    return made("status", "--json").json["asked"].get("agent", {"usd": 0.0})["usd"]


def test_a_session_that_outlives_its_controller_is_charged_once(tmp_path: Path) -> None:
    """After kill -9 the next controller hears what it told; the cap has room for no other meanwhile."""
    made = capped(tmp_path, 1.3, account(0.75), seconds=1.5)
    process = working(made)
    process.kill()
    process.communicate()
    done = made.run("--json")
    assert done.json["closed"]["reason"] == "cost"
    assert (spent(made), len(employed(made))) == (0.75, 1)
    assert made.rows()[1]["value"] == pytest.approx(0.2)
    assert made("audit").code == 0


@pytest.mark.parametrize("how", ["killed with its keeper", "interrupted"])
def test_a_session_that_was_lost_with_its_controller_is_charged_in_full_and_once(tmp_path: Path, how: str) -> None:
    """Whatever it would have told; the next one is charged for itself, and resuming again changes nothing."""
    made = capped(tmp_path, 2.2, account(0.25), trials=1, seconds=3600)
    process = working(made)
    if how == "interrupted":
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    else:
        process.kill()
        process.communicate()
        kill_keepers(made)
    script = tmp_path / "agent.py"
    script.write_text(script.read_text().replace("3600", "0"))
    done = made.run("--json")
    assert done.code == 0, done.err
    assert len(employed(made)) == 2
    assert spent(made) == 1.25
    assert made("audit").code == 0
    assert made.run().code == 0
    assert spent(made) == 1.25
    assert "cannot read" not in done.err
    until(lambda: not marked(str(tmp_path)))


@pytest.mark.parametrize("how", ["interrupted", "interrupted twice", "study ended"])
def test_a_session_that_was_ended_is_nobodys_failure_and_its_time_counts(tmp_path: Path, how: str) -> None:
    """It is none of the round's two, and begins anew where the study goes on; what it had changed by then is undone.
    Hints that were left meanwhile reach it.
    """
    made = employing(tmp_path, "WHY: more", ["{brief}"], seconds=0)
    script = tmp_path / "agent.py"
    once = (
        "import os\nif len(open(LOG).readlines()) == 1:\n    open('src/model.py', 'a').write('(')\n    time.sleep(99)\n"
    )
    whole = script.read_text()
    script.write_text(whole.replace("time.sleep(0)\n", once.replace("LOG", repr(str(tmp_path / "told/employed.txt")))))
    made.write(controller={"max_iterations": 1, "max_wall_time_s": 4 if how == "study ended" else 60})
    process = working(made)
    if how != "study ended":
        time.sleep(2)
        signals = (signal.SIGINT, signal.SIGINT) if how == "interrupted twice" else (signal.SIGINT,)
        for number in signals:
            process.send_signal(number)
            time.sleep(0.3)
    _, err = process.communicate(timeout=30)
    assert process.returncode == (0 if how == "study ended" else 130), err
    state = made("status", "--json").json
    least = {"interrupted": 7, "interrupted twice": 2, "study ended": 4}[how]
    assert least <= state["wall_clock_s"] < least + 4
    assert least - 1 <= state["asked"]["agent"]["seconds"] < least + 4
    hinted = made("steer", "s", "hint", "mind the tail").code
    assert hinted == (2 if how == "study ended" else 0)
    done = made.run("--max-wall-time-s", "60")
    assert done.code == 0, done.err
    assert "anew: " not in err + done.err
    assert "cannot read" not in err + done.err
    assert ["mind the tail" in brief for (brief,) in employed(made)] == [False, not hinted]
    assert made.rows()[1]["value"] == pytest.approx(0.2)
    kinds = [type(entry.event).__name__ for entry in read_ledger(made.study)]
    assert kinds.count("Replied") == kinds.count("Vanished") == 1
    assert made("audit").code == 0


def test_what_is_lost_again_and_again_does_not_break_a_cap(tmp_path: Path) -> None:
    """Each is charged in full, until there is no money for another."""
    made = capped(tmp_path, 2.5, account(0.25), seconds=3600)
    for sessions in (1, 2):
        process = working(made, sessions)
        process.kill()
        process.communicate()
        kill_keepers(made)
    done = made.run("--json")
    assert done.code == 5, done.err
    assert (done.json["closed"]["reason"], spent(made), len(employed(made))) == ("cost", 2.0, 2)
    assert made("audit").code == 0


def test_a_session_that_a_study_ended_in_is_charged_once(tmp_path: Path) -> None:
    """By its time, here; and it is begun anew where the study goes on."""
    made = capped(tmp_path, 9, account(0.25), trials=1, seconds=3600)
    made.write(controller={**made.keys["controller"], "max_wall_time_s": 3})
    assert made.run("--json").json["closed"]["reason"] == "wall_clock"
    assert spent(made) == 1.0
    script = tmp_path / "agent.py"
    script.write_text(script.read_text().replace("3600", "0"))
    assert made.run("--max-wall-time-s", "60").code == 0
    assert (spent(made), len(employed(made))) == (1.25, 2)
    assert made("audit").code == 0


@pytest.mark.parametrize("killed", [False, True])
def test_a_session_has_ended_and_told_before_its_study_is_over(tmp_path: Path, killed: bool) -> None:
    """So that nothing of it works on, whenever the controller dies; a controller that inherited it ends it as well."""
    made = capped(tmp_path, 9, trials=1, seconds=3600)
    made.write(controller={**made.keys["controller"], "max_wall_time_s": 4})
    process = working(made)
    if killed:
        process.kill()
        process.communicate()
        assert "wall clock" in made.run().out
    else:
        process.communicate(timeout=30)
    kinds = [type(entry.event).__name__ for entry in read_ledger(made.study)]
    assert kinds.index("Engaged") < kinds.index("Vanished") < kinds.index("StudyClosed"), kinds
    assert not marked(str(tmp_path))
    assert made("audit").code == 0


def kill_keepers(made: Workshop) -> None:
    """And with them all that runs in this study's lanes."""
    wanted, found = os.fsencode(str(made.study)), list[int]()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words, folder = (process / "cmdline").read_bytes(), os.fsencode((process / "cwd").readlink())
        except OSError:
            continue
        if b"keeper.py" in words and wanted in words + folder:
            found.append(int(process.name))
    assert found
    for keeper in found:
        os.kill(keeper, signal.SIGKILL)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "at most 20 s each; it may use the network; what it costs is what it says, else not known"),
        (
            {"words": LIMITED, "turns": 30, "usd": 2},
            "at most 20 s each, and 30 turns and $2, which its own tool has to hold; it may use the network; "
            "what it costs is what it says, else all of its $2",
        ),
    ],
)
def test_what_a_session_may_take_is_said_before_one_begins(tmp_path: Path, keys: dict, said: str) -> None:
    """By `check` and by `run`; and whether what it costs will be known."""
    made = employing(tmp_path, **keys)
    told = " ".join(made("check", "study.yaml", "--static").err.split())
    assert said in told
    assert not employed(made)
    made.write(controller={"max_iterations": 1})
    assert said in " ".join(made.run().err.split())


def test_an_estimate_says_that_sessions_are_not_in_it(tmp_path: Path) -> None:
    """And how long each may take; for people and for programs. Nothing is said where no agent works."""
    made = employing(tmp_path, timeout_s=15)
    told = made("check", "study.yaml").out
    assert "sessions of the agent are not in it: at most 15 s each" in told
    assert made("check", "study.yaml", "--json").json["numbers"]["session_s"] == 15
    other = shop(tmp_path / "other")
    assert "sessions" not in other("check", "study.yaml").out


@pytest.mark.parametrize(("timeout", "code"), [(59, 0), (60, 5), (1800, 5)])
def test_a_session_that_could_outlast_the_study_is_an_error(tmp_path: Path, timeout: int, code: int) -> None:
    """Of `check`, before anything is measured, with what to type; a run may go on with what was begun."""
    made = employing(tmp_path, timeout_s=timeout)
    made.write(controller={"max_wall_time_s": 60})
    done = made("check", "study.yaml", "--static")
    assert done.code == code, done.err
    assert (f"a session may take {timeout} s" in done.out) == bool(code)


@pytest.mark.parametrize("verb", ["check", "run"])
def test_a_script_of_the_agents_that_is_not_there_is_said_as_for_other_commands(tmp_path: Path, verb: str) -> None:
    """Exit code 2, with the key, before anything begins."""
    made = employing(tmp_path, command=[sys.executable, "x.py"])
    done = made(verb, "study.yaml")
    assert done.code == 2
    assert "policy.agent.command: expected a script; 'x.py' is not in" in done.err
    assert not made.study.exists()


# ---- what is left of sessions ----------------------------------------------------------------------------------------


def scratch(made: Workshop) -> list[Path]:
    return sorted([*made.study.glob("trials/agent-*/*/home"), *made.study.glob("trials/agent-*/*/tmp")])


def test_gc_frees_what_ended_sessions_left(tmp_path: Path) -> None:
    """Their HOME and TMPDIR, and nothing else of them; nothing that a link there leads to."""
    made = employing(tmp_path, account(0.25))
    (tmp_path / "mine" / "home").mkdir(parents=True)
    (tmp_path / "mine" / "home" / "notes").write_text("mine")
    script = tmp_path / "agent.py"
    script.write_text(script.read_text() + "import os\nfor name in ('HOME', 'TMPDIR'):\n"
                      "    pathlib.Path(os.environ[name], 'big').write_text('x' * 10_000)\n")  # fmt: skip
    assert made.run().code == 0
    assert len(scratch(made)) == 4
    (made.study / "trials/agent-0002/link").symlink_to(tmp_path / "mine")
    told = made("gc", "--json").json
    assert told["bytes"] >= 40_000
    assert not [path for path in scratch(made) if "link" not in path.parts]
    assert len(list(made.study.glob("trials/agent-*/*/agent.out"))) == 2
    assert (tmp_path / "mine" / "home" / "notes").read_text() == "mine"
    assert made("audit").code == 0


def test_gc_leaves_a_session_alone_that_is_at_work(tmp_path: Path) -> None:
    """It outlives its controller, and is taken up again."""
    made = employing(tmp_path, account(0.25), seconds=4)
    made.write(controller={"max_iterations": 1})
    process = working(made)
    process.kill()
    process.communicate()
    assert made("gc").code == 0
    assert len(scratch(made)) == 2
    assert made.run().code == 0
    assert len(employed(made)) == 1
    assert made("gc").code == 0
    assert not scratch(made)
