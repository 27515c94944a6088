"""Requests from other processes, through the inbox."""

import signal
import time
from pathlib import Path

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
        assert process.returncode in (130, -signal.SIGINT), (number, err)
        if process.returncode == 130:
            assert "Traceback" not in err, (number, err)
    assert not marked(str(tmp_path))
    assert w("audit").code == 0
