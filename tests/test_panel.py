"""Passes of a tournament in the engine itself: whatever crashes, whoever judges, however long they take."""

from collections.abc import Callable
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaloop.audit import audit
from metaloop.config import prompt_texts, thought_of
from metaloop.events import Measured, Replied
from metaloop.flow import Prompt
from metaloop.passes import page
from metaloop.study import fold
from metaloop.terms import Baseline, Bounds, Terms, Tournament
from metaloop.testing import Lab, Machine, ScriptedModel
from metaloop.testing.studies import told
from metaloop.values import Objective, Panel
from test_refine import DRAFT, best_first, play, ranked, role, shown

TEXTS = {**prompt_texts(documents=True), "task": "Write an introduction of high quality."}


def body(prompt: Prompt) -> dict:
    return {"messages": [{"role": message.role, "content": message.text} for message in prompt.messages]}


def lab(
    judge: Callable[[dict], str] = best_first, seconds: float = 0.0, passes: int = 25, seed: int = 0, **rules: object
) -> Lab:
    tournament = Tournament("draft.md", **rules)  # type: ignore[arg-type]
    terms = Terms(
        "t",
        Objective("points", "max"),
        (),
        "rewrite",
        {},
        seed=seed,
        baseline=Baseline(repeats=1),
        tournament=tournament,
    )
    players = play(judge)
    model = ScriptedModel(lambda prompt: players(body(prompt)), seconds=seconds)
    bounds = Bounds(passes, no_improve_limit=0, failure_rate_limit=1.0)
    return Lab(
        terms, thought_of(terms), Machine(lambda *_: None), bounds, model, texts=TEXTS, files={"draft.md": DRAFT},
        skips=True,
    )  # fmt: skip


def panels(lab: Lab) -> list[Panel]:
    return [e.event.panel for e in lab.entries if isinstance(e.event, Measured) and e.event.panel]


def winners(lab: Lab) -> list[str]:
    return [panel.winner for panel in panels(lab)]


def test_a_crash_before_or_after_any_append_changes_no_pass() -> None:
    """And nothing that was answered is asked again."""
    whole = lab()
    whole.session()
    assert winners(whole) == ["B", "B", "A", "A"]
    story = told(whole.entries)
    crash = 0
    for crash in count():
        broken = lab()
        died = broken.to_the_end(iter([crash]))
        assert told(broken.entries) == story, f"crash {crash}"
        replies = [
            (e.event.round, e.event.stage, e.event.index, e.event.member)
            for e in broken.entries
            if isinstance(e.event, Replied)
        ]
        assert len(replies) == len(set(replies))
        assert not list(audit(broken.entries, thought_of))
        if not died:
            break
    assert crash > 30


def test_a_pass_takes_as_long_as_critic_authors_and_the_slowest_judge() -> None:
    """Whatever the number of judges: they are asked at once."""
    took = []
    for judges in (1, 3, 7):
        whole = lab(seconds=10.0, passes=1, judges=judges, quorum=1, margin=1)
        whole.session()
        took.append(fold(whole.entries).at)
    assert took == pytest.approx([40.0] * 3, rel=0.03)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_judge_that_goes_by_position_alone_never_decides_a_pass_under_both(place: int) -> None:
    """Whichever position it likes."""

    def judge(asked: dict) -> str:
        labels = list(shown(asked))
        return ranked([labels[place], *(label for label in labels if label != labels[place])])

    for seed in range(5):
        whole = lab(judge, seed=seed, order="both", passes=3)
        whole.session()
        assert winners(whole) == ["", "", ""]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["latin", "random", "both"]), st.integers(1, 7))
def test_points_and_names_are_those_of_the_ballots_whatever_the_labels(seed: int, order: str, judges: int) -> None:
    """The winner is the same whichever labels were drawn: judges here go by the text alone."""
    whole = lab(seed=seed, order=order, judges=judges, quorum=1, margin=0, passes=2)
    whole.session()
    assert winners(whole) == ["B", "B"]
    for panel in panels(whole):
        assert sum(panel.points.values()) == 6 * panel.valid
        assert all(sorted(ballot.ranking) == ["A", "AB", "B"] for ballot in panel.ballots)


def test_random_ballots_let_the_document_win_as_often_as_is_said() -> None:
    """43 of 108 passes with three versions, three judges and no margin: panels here draw lots."""
    dice = Random(7)

    def judge(asked: dict) -> str:
        labels = list(shown(asked))
        dice.shuffle(labels)
        return ranked(labels)

    drawn: list[str] = []
    for seed in range(20):
        whole = lab(judge, seed=seed, passes=20, k=100, margin=0)
        whole.session()
        drawn += [panel.winner for panel in panels(whole) if len(panel.points) == 3]  # AB is sometimes the same as A
    won, passes = drawn.count("A"), len(drawn)
    assert passes > 300
    assert abs(won / passes - 43 / 108) < 3 * (43 / 108 * 65 / 108 / passes) ** 0.5


def test_an_empty_change_of_settings_is_no_change() -> None:
    """Byte for byte: the prompts, the ballots, the story."""
    one, other = lab(), lab(k=2, judges=3, order="latin", margin=2, quorum=2)
    one.session()
    other.session()
    assert one.terms == other.terms
    assert told(one.entries) == told(other.entries)


def test_every_role_is_a_fresh_conversation_that_sees_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Prompt] = []
    whole = lab()
    answer = whole.model
    assert isinstance(answer, ScriptedModel)
    script = answer._script
    monkeypatch.setattr(answer, "_script", lambda prompt: seen.append(prompt) or script(prompt))
    whole.session()
    assert {role(body(prompt)) for prompt in seen} == {"critic", "author", "synthesizer", "judge"}
    assert {len(prompt.messages) for prompt in seen} == {2}
    for prompt in seen:
        text = prompt.messages[1].text
        critique = "a reader wants more" in text
        assert critique == (prompt.role == "author")
        assert "raised it" not in text


def test_a_judge_whose_ballots_do_not_count_twice_running_is_told_of() -> None:
    """The others go on deciding while there is a quorum. That points are equal, as they often are, alerts nobody."""
    whole = lab(passes=6, k=9)
    whole.session()
    assert not fold(whole.entries).alerts
    asked = count()

    def judge(prompt: dict) -> str:
        first = len(prompt["messages"]) == 2
        return "I would rather not." if not first or next(asked) % 3 == 1 else best_first(prompt)

    lame = lab(judge, passes=3)
    lame.session()
    assert winners(lame) == ["B", "B", "A"]
    alerts = fold(lame.entries).alerts
    assert len(alerts) == 2
    assert "judge 2 of the panel: no ballot that counts in two passes running" in alerts[0]


def longest_first(asked: dict) -> str:
    versions = shown(asked)
    return ranked(sorted(versions, key=lambda label: -len(versions[label].split())))


def first_place_first(asked: dict) -> str:
    return ranked(list(shown(asked)))


@pytest.mark.parametrize(
    ("judge", "said"),
    [(longest_first, "The longest version came first"), (first_place_first, "By place shown"), (best_first, "")],
)
def test_a_panel_that_goes_by_length_or_place_alone_is_reported(judge: Callable[[dict], str], said: str) -> None:
    whole = lab(judge, passes=8, k=9, margin=0)
    whole.session()
    report = page(fold(whole.entries))
    suspects = [line for line in report.splitlines() if "the panel may go by that" in line]
    assert "Judges agree by Kendall's W" in report
    assert [said in line for line in suspects] == [True] * bool(said) or (judge is best_first and not said)
