"""Requests from other processes, through the inbox."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metaloop.adapters.inbox import put, request_id
from metaloop.adapters.ledger import read_ledger
from metaloop.events import Directed
from workshop import COUNTED, Workshop, marked, until

SLOW = COUNTED + "time.sleep(0.2)\nprint(f\"score={P['x']!r}\")"


def started(tmp_path: Path, script: str = SLOW, **controller: object):
    w = Workshop(tmp_path, script, keys={"controller": {"max_iterations": 30, **controller}})
    process = w.start("run", "study.yaml")
    until(lambda: w.executed())
    return w, process


def directed(w: Workshop) -> list[Directed]:
    return [entry.event for entry in read_ledger(w.study) if isinstance(entry.event, Directed)]


def test_a_request_to_stop_ends_the_study_in_the_middle_of_a_trial(tmp_path: Path) -> None:
    """It is recorded with who asked and why; the same command goes on later."""
    w, process = started(tmp_path, COUNTED + "time.sleep(60)")
    put(w.study, Directed(request_id(), "stop", by="ann", why="dinner"))
    assert process.wait(timeout=10) == 0
    state = w("status", "--json").json
    assert state["closed"]["reason"] == "stopped"
    assert "ann: dinner" in state["closed"]["why"]
    assert not w.alive()
    assert not list((w.study / "inbox").iterdir())
    (tmp_path / "train.py").write_text("print('score=0.5')")
    assert w.run("--max-iterations", "3").code == 0
    assert w("audit").code == 0


def test_a_paused_study_begins_nothing_until_it_is_resumed(tmp_path: Path) -> None:
    w, process = started(tmp_path)
    put(w.study, Directed(request_id(), "pause", by="ann"))
    until(lambda: directed(w))
    time.sleep(0.6)
    before = len(w.executed())
    time.sleep(0.8)
    assert len(w.executed()) == before
    assert "paused" in w("status").out
    put(w.study, Directed(request_id(), "resume", by="ann"))
    until(lambda: len(w.executed()) > before)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 143
    assert w("audit").code == 0


def test_a_request_is_carried_out_once(tmp_path: Path) -> None:
    """Also if its file is still there after it was recorded, as after a crash between the two."""
    w, process = started(tmp_path)
    request = Directed(request_id(), "pause", by="ann")
    put(w.study, request)
    until(lambda: directed(w))
    put(w.study, request)
    until(lambda: not list((w.study / "inbox").iterdir()))
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=10)
    assert directed(w) == [request]


def test_rubbish_in_the_inbox_is_put_aside(tmp_path: Path) -> None:
    """For a person to look at; the study goes on."""
    w, process = started(tmp_path)
    (w.study / "inbox").mkdir(exist_ok=True)
    (w.study / "inbox/0.json").write_bytes(b"\xff{")
    (w.study / "inbox/1.json").write_text('{"fact": "StudyClosed"}')
    until(lambda: len(list((w.study / "inbox").glob("*.bad"))) == 2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 143


def test_an_interrupt_at_any_moment_ends_in_order(tmp_path: Path) -> None:
    """Twenty times, a little later each time: no traceback, nothing left behind, and the study goes on."""
    w = Workshop(tmp_path, "time.sleep(0.05)\nprint('score=0.5')", keys={"controller": {"max_iterations": 400}})
    for number in range(20):
        process = w.start("run", "study.yaml")
        time.sleep(0.05 * number)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
        unborn = process.returncode == 1 and "<frozen site>" in err  # the interpreter's own start, before any of ours
        assert process.returncode in (130, -signal.SIGINT) or unborn, (number, err)
        if process.returncode == 130:
            assert "Traceback" not in err, (number, err)
    assert not marked(str(tmp_path))
    assert w("audit").code == 0


LOSES = """
import os, signal, sys
from metaloop.cli import main

class Gone:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "metaloop.adapters.ledger":
            Gone()

sys.meta_path.insert(0, Finder())
main(["run", "study.yaml"])
"""


def test_an_interrupt_that_python_drops_is_heard_all_the_same(tmp_path: Path) -> None:
    """What is raised where an object ends is only told of. A study that begins after it ends as if it came then."""
    w = Workshop(tmp_path, "time.sleep(0.05)\nprint('score=0.5')", keys={"controller": {"max_iterations": 400}})
    done = subprocess.run([sys.executable, "-c", LOSES], cwd=tmp_path, capture_output=True, text=True, timeout=20)
    assert "Exception ignored" in done.stderr
    assert done.returncode == 130, done.stderr
    assert w("audit").code == 0


# ---- metaloop steer --------------------------------------------------------------------------------------------------


def test_steer_pauses_resumes_and_stops_a_live_study(tmp_path: Path) -> None:
    """Each is recorded before the command says so, with who asked and why."""
    w, process = started(tmp_path)
    done = w("steer", "s", "pause", "--by", "ann", "--why", "lunch")
    assert (done.code, done.out.split(":")[0]) == (0, "pause")
    assert [(d.op, d.by, d.why) for d in directed(w)] == [("pause", "ann", "lunch")]
    time.sleep(0.5)
    before = len(w.executed())
    time.sleep(0.6)
    assert len(w.executed()) == before
    assert w("steer", "s", "resume", "--json").json["recorded"]
    until(lambda: len(w.executed()) > before)
    assert w("steer", "study.yaml", "stop", "--by", "ann", "--why", "enough").code == 0
    assert process.wait(timeout=10) == 0
    assert "ann: enough" in w("status", "--json").json["closed"]["why"]
    assert w("audit").code == 0


def test_steer_ends_one_trial_and_the_study_goes_on(tmp_path: Path) -> None:
    """It is settled as stopped by a person: no failure, nothing of it runs on, and it is not run again."""
    script = COUNTED + "time.sleep(60 if os.environ['METALOOP_TRIAL'] == '2' else 0.05)\nprint('score=0.5')"
    w = Workshop(tmp_path, script, keys={"controller": {"max_iterations": 4}})
    process = w.start("run", "study.yaml")
    until(lambda: "2" in w.executed())
    assert w("steer", "s", "kill", "--trial", "2", "--by", "ann", "--why", "stuck").code == 0
    assert process.wait(timeout=10) == 0
    assert w.executed() == ["1", "2", "3", "4"]
    row = w.rows()[1]
    assert (row["status"], row["verdict"], row["reason"]) == ("stopped", "stopped", "ended by ann: stuck")
    assert w("show", "2", "--json").json["results"][0]["result"]["by"] == "person"
    assert [row["status"] for row in w.rows()].count("ok") == 3
    assert not w.alive()
    assert w("audit").code == 0


def test_a_trial_that_outlived_its_controller_is_ended_by_the_next(tmp_path: Path) -> None:
    """Recorded without a controller, and said so; what a person wants ended does not come back."""
    w, process = started(tmp_path, COUNTED + "time.sleep(60 if len(open('ran.txt').readlines()) == 1 else 0)")
    process.kill()
    process.wait()
    done = w("steer", "s", "kill", "--trial", "1")
    assert done.code == 0
    assert "the next `metaloop run`" in done.out
    w.run("--max-iterations", "2", timeout=20)
    assert w.rows()[0]["status"] == "stopped"
    assert w.executed() == ["1", "2"]
    assert w("audit").code == 0


def test_a_hint_is_kept_whether_a_controller_lives_or_not(tmp_path: Path) -> None:
    """And shown in status, where it cannot move a cursor."""
    w, process = started(tmp_path)
    assert w("steer", "s", "hint", "smaller\x1b[2J steps", "--by", "ann").code == 0
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=10)
    assert w("steer", "s", "hint", "larger steps", "--by", "bob").code == 0
    assert [hint["text"] for hint in w("status", "--json").json["hints"]] == ["smaller\x1b[2J steps", "larger steps"]
    told = w("status").out
    assert "\x1b" not in told
    assert "hint by bob: larger steps" in told
    assert w("audit").code == 0


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["hint"], "expected a hint"),
        (["hint", " "], "expected a hint"),
        (["hint", "x" * 5000], "at most 4000 characters"),
        (["kill"], "expected --trial N"),
        (["kill", "3"], "did you mean --trial 3?"),
        (["kill", "--trial", "3"], "running now: none"),
        (["pause", "dinner"], "did you mean --why 'dinner'?"),
        (["stop", "--trial", "3"], "expected no --trial"),
        (["pause"], "no controller runs this study"),
        (["resume"], "no controller runs this study"),
        (["stop"], "no controller runs this study"),
        (["paws"], "paws"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(interrupted_study: Workshop, argv: list[str], said: str) -> None:
    """Exit code 2, and neither the ledger nor the inbox holds a trace of it."""
    w = interrupted_study
    done = w("steer", "s", *argv)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert len(done.err.splitlines()) == 1
    assert not directed(w)
    assert not list((w.study / "inbox").glob("*"))


@pytest.fixture(scope="module")
def interrupted_study(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    w, process = started(tmp_path_factory.mktemp("interrupted"))
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=10)
    return w


def test_nothing_is_asked_of_a_study_that_is_over(tmp_path: Path) -> None:
    w = Workshop(tmp_path)
    w.run()
    for argv in (["hint", "more"], ["stop"], ["kill", "--trial", "1"]):
        done = w("steer", "s", *argv)
        assert done.code == 2
        assert "this study is over (all 3 trials are done)" in done.err


def test_a_request_that_is_not_taken_up_is_said_to_wait(tmp_path: Path) -> None:
    """Exit code 75, while the controller lives and does not look; it is carried out when it does."""
    w, process = started(tmp_path)
    process.send_signal(signal.SIGSTOP)
    try:
        done = w("steer", "s", "stop")
    finally:
        process.send_signal(signal.SIGCONT)
    assert done.code == 75
    assert "stays in" in done.err
    assert process.wait(timeout=10) == 0
    assert [d.op for d in directed(w)] == ["stop"]


def test_a_request_does_not_wait_for_a_controller_that_is_gone(tmp_path: Path) -> None:
    """Who asks while it dies is refused, and the next run is not stopped by what was meant for this one."""
    w, process = started(tmp_path)
    process.send_signal(signal.SIGSTOP)
    asking = w.start("steer", "s", "stop")
    until(lambda: list((w.study / "inbox").glob("*.json")))
    process.kill()
    process.wait()
    _, err = asking.communicate(timeout=10)
    assert asking.returncode == 2
    assert "no controller runs this study" in err
    assert not list((w.study / "inbox").iterdir())


def test_what_lies_in_the_inbox_cannot_reach_outside_or_hang_us(tmp_path: Path) -> None:
    """A pipe, a folder, a dangling link, a request with another name than its file: put aside; the study ends well."""
    import os

    w = Workshop(tmp_path, SLOW, keys={"controller": {"max_iterations": 4}})
    inbox = w.study / "inbox"
    inbox.mkdir(parents=True)
    (tmp_path / "victim.json").write_text("{}")
    os.mkfifo(inbox / "pipe.json")
    (inbox / "folder.json").mkdir()
    (inbox / "link.json").symlink_to("nowhere")
    put(w.study, Directed("ok", "pause", by="ann"))
    (inbox / "ok.json").rename(inbox / "other.json")
    put(w.study, Directed("x", "pause", by="ann"))
    (inbox / "x.json").write_text((inbox / "x.json").read_text().replace('"x"', '"../../../victim"'))
    assert w.run().code == 0
    assert (tmp_path / "victim.json").exists()
    assert not directed(w)
    assert len(list(inbox.glob("*.bad"))) == 5


def test_a_study_without_time_ends_what_it_inherited(tmp_path: Path) -> None:
    """A trial that outlived its killed controller, and no wall clock left: it is ended, and the study closes."""
    w, process = started(tmp_path, COUNTED + "time.sleep(60)")
    process.kill()
    process.wait()
    done = w.run("--max-wall-time-s", "0.01")
    assert done.code == 0
    assert w("status", "--json").json["closed"]["reason"] == "wall_clock"
    assert not w.alive()
    assert w("audit").code == 0
