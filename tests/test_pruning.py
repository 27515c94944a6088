"""Trials that cannot win are ended early, by what they report, and that is no failure."""

import json
import sys
from pathlib import Path

import pytest

from metaloop.adapters.ledger import read_ledger
from metaloop.events import Reported
from workshop import Workshop, until

CURVE = """
import math
q = P.get('q', 0.5)
for step in range(1, 21):
    time.sleep(0.1)
    with open(os.environ['METALOOP_PROGRESS'], 'a') as f:
        f.write(json.dumps({'step': step, 'score': q * (1 - math.exp(-step / 5))}) + '\\n')
print(f'score={q * (1 - math.exp(-4))!r}')
"""


def study(folder: Path, script: str, qualities: list[float], **controller: object) -> Workshop:
    return Workshop(
        folder,
        script,
        keys={
            "policy": {"type": "grid", "params": {"q": qualities}},
            "controller": {"max_iterations": len(qualities), "no_improve_limit": 0, "parallel": 2, **controller},
        },
    )


def reported(w: Workshop) -> list[Reported]:
    return [entry.event for entry in read_ledger(w.study) if isinstance(entry.event, Reported)]


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["median", "halving"])
def test_a_trial_that_cannot_win_is_ended_early(tmp_path: Path, rule: str) -> None:
    """The worse half stops before its end, the best runs through, and everything can be derived again."""
    qualities = [0.9, 0.8, 0.7, 0.6, 0.85, 0.1, 0.95, 0.2, 0.3, 0.05]
    w = study(tmp_path, CURVE, qualities, prune=rule)
    assert w.run().code == 0
    rows = w.rows()
    pruned = [row for row in rows if row["status"] == "pruned"]
    assert pruned
    last = {event.trial: event.reports[-1][0] for event in reported(w)}
    assert all(last[row["trial"]] < 20 and row["params"]["q"] < 0.9 for row in pruned), (last, pruned)
    assert json.loads(w("best").out) == {"q": 0.95}
    assert w("status", "--json").json["closed"]["reason"] in ("max_iterations", "exhausted")
    assert "at step" in w("show", str(pruned[0]["trial"])).out
    assert w("audit").code == 0


def test_a10_rubbish_in_the_progress_file_is_ignored(tmp_path: Path) -> None:
    """A list, a bad value, half a line, ten megabytes without a newline: nothing happens."""
    script = (
        "f = open(os.environ['METALOOP_PROGRESS'], 'w')\n"
        'f.write(\'[1]\\n{"metrics":{"score":"bad"}}\\n{"step": 1, "sco\'); f.flush(); time.sleep(0.7)\n'
        "f.write('x' * 10_000_000); f.flush(); time.sleep(0.7)\nprint(f\"score={P['q']}\")"
    )
    w = study(tmp_path, script, [0.1, 0.2], prune="median")
    assert w.run().code == 0
    assert {row["status"] for row in w.rows()} == {"ok"}
    assert w("audit").code == 0


@pytest.mark.slow
def test_a_progress_file_without_end_holds_nobody_up(tmp_path: Path) -> None:
    """What is in it is read for as long as the trial runs, and little of it after that."""
    w = study(
        tmp_path,
        "open(os.environ['METALOOP_PROGRESS'], 'w').truncate(1 << 42)\nprint('score=1')",
        [0.1],
        prune="median",
    )
    process = w.start("run", "study.yaml")
    try:
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert {row["status"] for row in w.rows()} == {"ok"}


def test_a_killed_controller_goes_on_listening_where_it_was(tmp_path: Path) -> None:
    """Reports are recorded once, each, also over a kill -9 in the middle of a trial."""
    w = study(tmp_path, CURVE, [0.9], prune="median")
    process = w.start("run", "study.yaml")

    def steps() -> list[int]:
        if not (w.study / "ledger.sqlite").exists():
            return []
        events = reported(w)
        return [step for event in events for step, _ in event.reports]

    until(lambda: len(steps()) > 3)
    process.kill()
    process.wait()
    assert w.run().code == 0
    assert steps() == sorted(set(steps()))
    assert len(steps()) >= 15
    assert w("audit").code == 0


def test_pruning_and_strict_order_do_not_go_together(tmp_path: Path) -> None:
    w = study(tmp_path, CURVE, [0.9], prune="median", order="strict")
    done = w.run()
    assert done.code == 2
    assert "controller.prune: expected order: free" in done.err


def test_what_candidates_report_of_themselves_prunes_nothing_where_a_scorer_is_apart(tmp_path: Path) -> None:
    """A study that asks for it is refused: it would believe them."""
    made = Workshop(tmp_path, "print('score=1')")
    made.write(
        target={"eval_cmd": [sys.executable, "score.py"], "outputs": ["out.json"]}, controller={"prune": "median"}
    )
    (tmp_path / "score.py").write_text("print('score=1')")
    done = made.run()
    assert done.code == 2
    assert "controller.prune: expected none with a separate scorer" in done.err
