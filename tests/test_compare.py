"""`metaloop compare`, by the real command line, with players on this machine: what each strategy asks and comes to."""

import json
import re
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from metaloop.adapters.ledger import read_ledger
from metaloop.events import Measured, Proposed, Replied
from metaloop.terms import COMPARED
from metaloop.testing import FakeProvider
from test_refine import DRAFT, QUALITY, Desk, best_first, between, first_shown, play, quality, shown
from test_refine import role as role_of
from workshop import until

pytest.importorskip("openai")
pytestmark = pytest.mark.slow

WORDS = {
    "Change only what is plainly wrong": "conservative",
    "Improve the document.": "improve",
    "anew from the ground up": "harsh",
    "You write a document": "afresh",
}


def role(body: dict) -> str:
    told = body["messages"][0]["content"]
    return next((role for word, role in WORDS.items() if word in told), None) or role_of(body)


def players(judge=best_first, most: int = 9):
    """Those of `play`, who raise the quality to `most`; besides, rewriters who reach another quality each, and add a
    word each time, so that no rewrite is the same as the one before.
    """
    reach = {"conservative": 2, "improve": 3, "harsh": 1, "afresh": 4}
    usual = play(judge, most=most)
    count = Counter()

    def answer(body: dict) -> str:
        who = role(body)
        if who not in reach:
            return usual(body)
        count[who] += 1
        text = re.search(r"<document>\n(.*?)\n</document>", body["messages"][1]["content"], re.DOTALL)[1]
        if who == "afresh":
            return between(f"Draft {count[who]}. Its quality is {reach[who] if count[who] == 2 else 1}.")
        raised = QUALITY.sub(f"quality is {reach[who]}", text)
        return between(
            f"{raised}\nMore of it, for the {count[who]}. time, by {reach[who]}." if count[who] < 30 else raised
        )

    return answer


class Bench(Desk):
    def __init__(self, folder: Path, provider: FakeProvider, draft: str = DRAFT) -> None:
        super().__init__(folder, provider, draft)
        self.study = folder / ".metaloop/draft-compared"
        self.words = ("compare", "draft.md", "--task", "task.md", "--model", "fake-1")

    def texts(self) -> dict[str, str]:
        """What each strategy came to."""
        events = [entry.event for entry in read_ledger(self.study)]
        known = {
            name: text for event in events if isinstance(event, Proposed) for name, text in event.proposal.texts.items()
        }
        made = [event.proposal for event in events if isinstance(event, Proposed) and event.proposal.calls is not None]
        named = {each.by.partition(":")[0]: each for each in made}
        return {
            name: known.get(each.change.files["draft.md"], DRAFT) for name, each in named.items() if name in COMPARED
        }


def test_every_strategy_begins_with_the_first_version_and_a_panel_ranks_what_they_came_to(tmp_path: Path) -> None:
    with FakeProvider(players()) as provider:
        bench = Bench(tmp_path, provider)
        done = bench("--calls", "18", "--json")
    assert done.code == 0, done.err
    found = done.json["comparison"]
    assert {each["strategy"] for each in found["strategies"]} == set(COMPARED)
    calls = {each["strategy"]: each["calls"] for each in found["strategies"]}
    assert calls["single"] == 0
    assert all(calls[name] <= 18 for name in COMPARED)
    assert found["ballots"] == {"valid": 7, "asked": 7}
    assert found["verdict"].startswith(f"{found['strategies'][0]['strategy']}: ")
    assert bench.texts()["single"] == DRAFT
    best = max(bench.texts().values(), key=quality)
    assert Path(done.json["document"]).read_text() == best
    assert (tmp_path / "draft.md").read_text() == DRAFT
    assert bench.made("audit", str(bench.study)).code == 0
    report = (bench.study / "report.md").read_text()
    assert "| strategy | points |" in report
    assert "## Comparison 1" in report


def test_what_a_comparison_shows_stands_on_the_terminal(tmp_path: Path) -> None:
    with FakeProvider(players()) as provider:
        done = Bench(tmp_path, provider)("--calls", "12", "--strategy", "single", "--strategy", "improve")
    assert done.code == 0, done.err
    assert re.search(r"best +improve: \d+ of 14 points, first on 7 of 7 ballots; improve is above", done.out)
    assert re.search(r"improve .* 7 of 7, p = 0\.016", done.out)
    assert "the comparison is done" in done.out


def test_the_last_panel_sees_no_strategy_and_every_text_as_often_in_each_place(tmp_path: Path) -> None:
    """Seven judges, seven texts."""
    with FakeProvider(players()) as provider:
        bench = Bench(tmp_path, provider)
        assert bench("--calls", "18").code == 0
        judged = [request.body for request in provider.requests if role(request.body) == "judge"]
    last = [body for body in judged if len(shown(body)) == max(len(shown(each)) for each in judged)]
    texts = bench.texts()
    distinct = set(texts.values())
    assert len(last) == 7
    for body in last:
        assert {text.strip() for text in shown(body).values()} <= {text.strip() for text in distinct}
        assert not re.search("|".join(COMPARED), json.dumps(body["messages"]))
    for place in range(len(shown(last[0]))):
        stood = Counter(list(shown(body).values())[place] for body in last)
        assert max(stood.values()) - min(stood.values()) <= 1


def test_the_same_texts_are_shown_once_and_share_their_place(tmp_path: Path) -> None:
    """Nobody changes anything: the panel has nothing to compare, and says so."""
    with FakeProvider(lambda body: between(DRAFT) if role(body) != "critic" else "NOTHING") as provider:
        bench = Bench(tmp_path, provider)
        done = bench("--strategy", "single", "--strategy", "improve", "--strategy", "autoreason", "--json")
    assert done.code == 0, done.err
    assert done.json["comparison"]["ballots"] == {"valid": 0, "asked": 0}
    assert "single, improve and autoreason came to the same text" in " ".join(done.json["comparison"]["notes"])


def test_a_comparison_that_was_killed_goes_on_and_pays_for_no_answer_twice(tmp_path: Path) -> None:
    words = ("--calls", "12", "--strategy", "autoreason", "--strategy", "critique_revise", "--strategy", "single")
    with FakeProvider(players()) as provider:
        whole = Bench(tmp_path / "whole", provider)
        assert whole(*words).code == 0
    count = [0]

    def slow(body: dict) -> str:
        count[0] += 1
        if count[0] == 9:
            time.sleep(8)
        return answer(body)

    answer = players()
    with FakeProvider(slow) as provider:
        bench = Bench(tmp_path / "killed", provider)
        process = bench.made.start(*bench.words, *words)
        until(lambda: count[0] >= 9)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=20)
        done = bench(*words)
    assert done.code == 0, done.err
    assert bench.texts() == whole.texts()
    events = [entry.event for entry in read_ledger(bench.study)]
    answered = [(e.round, e.stage, e.index, e.member) for e in events if isinstance(e, Replied)]
    assert len(answered) == len(set(answered))
    assert len(provider.requests) <= len(answered) + 4
    assert bench.made("audit", str(bench.study)).code == 0


def test_comparisons_that_no_panel_decided_are_left_out(tmp_path: Path) -> None:
    asked = Counter()

    def judge(body: dict) -> str:
        asked["all"] += 1
        return "I would rather not." if len(body["messages"]) > 2 or asked["all"] % 7 > 3 else best_first(body)

    with FakeProvider(players(judge)) as provider:
        bench = Bench(tmp_path, provider)
        done = bench("--calls", "3", "--repeats", "3", "--strategy", "single", "--strategy", "improve", "--json")
    assert done.code == 4
    found = done.json["comparison"]
    assert (found["panels"], found["ballots"]["valid"]) == (0, 0)
    assert found["verdict"] == "nothing was decided: no ballot counts"
    assert sum("is left out: void" in note for note in found["notes"]) == 3


@pytest.mark.parametrize("most", [10, 11])
def test_no_strategy_makes_more_calls_than_it_has_whatever_is_asked_again(tmp_path: Path, most: int) -> None:
    """Whoever is asked first gives no form at all, and only then what was asked for."""
    usual = players()

    def lame(body: dict) -> str:
        last = len(shown(body)) > 3
        return "no form at all" if len(body["messages"]) == 2 and role(body) != "critic" and not last else usual(body)

    with FakeProvider(lame) as provider:
        bench = Bench(tmp_path, provider)
        done = bench("--calls", str(most), "--json")
    assert done.code == 0, done.err
    calls = {each["strategy"]: each["calls"] for each in done.json["comparison"]["strategies"]}
    assert all(count <= most for count in calls.values()), calls
    assert calls["improve"] == most


def test_repeats_are_compared_together(tmp_path: Path) -> None:
    with FakeProvider(players()) as provider:
        bench = Bench(tmp_path, provider)
        done = bench("--calls", "6", "--repeats", "3", "--strategy", "single", "--strategy", "improve", "--json")
    assert done.code == 0, done.err
    assert done.json["comparison"]["panels"] == 3
    assert done.json["comparison"]["ballots"] == {"valid": 21, "asked": 21}
    panels = [e.event.panel for e in read_ledger(bench.study) if isinstance(e.event, Measured) and e.event.panel]
    assert [panel.winner for panel in panels] == ["improve"] * 3


def test_judges_that_go_by_place_alone_are_reported(tmp_path: Path) -> None:
    with FakeProvider(players(first_shown)) as provider:
        done = Bench(tmp_path, provider)(
            "--calls", "6", "--repeats", "2", "--strategy", "single", "--strategy", "harsh", "--json"
        )
    assert done.code == 0, done.err
    assert any("By place shown, texts came first 14, 0 times" in note for note in done.json["comparison"]["notes"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--strategy", "single"), "expected two strategies or more"),
        (("--strategy", "single", "--strategy", "single"), "expected two strategies or more"),
        (("--strategy", "single", "--strategy", "miracle"), "miracle"),
        (("--final-judges", "0"), "expected a judge at least"),
        (("--calls", "0"), "calls"),
        (("--repeats", "0"), "max_iterations"),
    ],
)
def test_bad_input_gets_a_line_and_nothing_is_done(tmp_path: Path, words: tuple, said: str) -> None:
    with FakeProvider(players()) as provider:
        bench = Bench(tmp_path, provider)
        done = bench(*words)
        assert not provider.requests
    assert done.code == 2
    assert said in done.err
    assert not bench.study.exists()
