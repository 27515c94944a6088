"""The worked cases A24 to A26: studies whose model does not answer, that answers oddly, or that goes on for long."""

import json
import re
import signal
import time
from pathlib import Path

import pytest

from metaloop.testing import FakeProvider
from test_llm_study import shop
from workshop import until

pytest.importorskip("openai")
pytestmark = pytest.mark.slow

LINE = "x = P.get('x', 0.9)\nprint(f'score={1 - (x - 0.3) ** 2!r}')\n"


def test_a24_rate_limits_for_ever_do_not_keep_a_lane_from_work(tmp_path: Path) -> None:
    """The stand-in proposes within the deadline, each time with the reason; status shows the role as degraded; SIGTERM
    is honoured within two seconds.
    """
    with FakeProvider(forever="429:3600") as provider:
        made = shop(tmp_path, provider, 400, policy={"fallback": "random"}, models={"proposer": {
            "model": "fake-1", "base_url": provider.url, "deadline_s": 2}}, controller={"parallel": 2})  # fmt: skip
        (tmp_path / "train.py").write_text("import time\ntime.sleep(0.2)\nprint('score=0.5')\n")
        began = time.monotonic()
        process = made.start("run", "study.yaml")
        try:
            until(lambda: (made.study / "ledger.sqlite").exists() and len(made.rows()) > 6, 30)
            assert time.monotonic() - began < 30
            told = made("status").out
            before = time.monotonic()
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=30)
        assert time.monotonic() - before < 4  # two, on a machine with nothing else to do
    assert process.returncode == 143
    assert re.search(r"proposer\b.*degraded|degraded.*proposer", told)
    rows = [row for row in made.rows() if row["role"] == "search" and row["status"] == "ok"]
    assert len(rows) >= 5
    assert all(row["by"] == "random" and "429" in row["fallback"] for row in rows)


@pytest.mark.parametrize(
    "reply",
    [
        '{"a": 1} then {"x": 0.25}',
        'Sure:\n```json\n{"x": 0.25}\n```\nas {for example} in trial {2}.',
        '<think>{"x": 0.9}</think>{"x": 0.25}',
        '{"x": 0.25,}',
    ],
)
def test_a25_an_odd_reply_is_read_or_asked_for_again_and_never_replaced(tmp_path: Path, reply: str) -> None:
    """Every trial has the model's own value, and none is a stand-in's."""

    def says(body: dict) -> str:
        return reply if len(body["messages"]) == 2 else '{"params": {"x": 0.25}, "why": "again"}'

    with FakeProvider(says) as provider:
        made = shop(tmp_path, provider, 1, policy={"fallback": "random"})
        (tmp_path / "train.py").write_text("import json, os\nP = json.loads(os.environ['AR_PARAMS_JSON'])\n" + LINE)
        assert made.run().code == 0
        assert len(provider.requests) in (1, 2)
    (row,) = [row for row in made.rows() if row["role"] == "search"]
    assert (row["by"], row["params"], row["fallback"]) == ("llm: fake-1", {"x": 0.25}, "")


def test_a26_at_trial_80_a_prompt_still_holds_the_best_and_is_no_longer_than_at_40(tmp_path: Path) -> None:
    """The best is the third trial, and is in every later prompt. (A peer's prompt had grown to 291 KB by then.)"""
    points = iter([0.9, 0.8, 0.3, *(round(0.31 + 0.005 * i, 4) for i in range(100))])
    why = "a reason of two hundred characters " * 6

    with FakeProvider(lambda _: json.dumps({"params": {"x": next(points)}, "why": why})) as provider:
        made = shop(tmp_path, provider, 82, controller={"no_improve_limit": 0})
        (tmp_path / "train.py").write_text(
            "import json, os\nP = json.loads(os.environ['AR_PARAMS_JSON'])\nprint('noise ' * 50)\n" + LINE
        )
        assert made.run(timeout=110).code == 0
        texts = ["\n".join(message["content"] for message in each.body["messages"]) for each in provider.requests]
    assert len(texts) >= 82
    assert all("The best so far is trial 3: score = 1" in text and '{"x": 0.3}' in text for text in texts[70:])
    assert max(map(len, texts[60:])) < 40_000
    assert max(map(len, texts[75:])) <= 1.05 * max(map(len, texts[40:75]))
