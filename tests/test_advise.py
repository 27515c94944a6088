"""Which strategy to use: the tree, what it costs, and what a slip is told."""

import json
import re
import sys
from itertools import product
from pathlib import Path

import pytest

from metaloop import cli
from metaloop.adapters.models import listed
from metaloop.advice import (
    CAP,
    MAIN,
    STRATEGIES,
    TIERS,
    TREE,
    Fork,
    Leaf,
    Price,
    Question,
    Strategy,
    advise,
    calls,
    cost,
    missing,
    placed,
    tier,
)
from metaloop.errors import UsageError
from test_cli import called

HAIKU = "claude-3-5-haiku-latest"
TREE_AS_TYPED: dict[str, Strategy] = {
    "--verifiable --solved": "single",
    "--verifiable --solved --code": "single",
    "--verifiable --unsolved --code": "reasoned_repair",
    "--verifiable --unsolved": "autoreason",
    "--code --unsolved": "reasoned_repair",
    "--subjective --tier weak": "single",
    "--subjective --tier mid": "autoreason",
    "--subjective --tier strong --open-ended": "autoreason",
    "--subjective --tier strong --technical": "critique_revise",
    "--subjective --tier frontier --constrained": "autoreason",
    "--subjective --tier frontier --unconstrained": "critique_revise",
}
FIGURE = r"\d+ of \d|\d %|\b\d+\.\d\b|\d+ passes"
MODEL = r"Haiku 3\.5|Gemini 2\.0 Flash|Sonnet 4(\.6)?|Llama 3\.1 8B"


def leaves(node: Fork | Leaf = TREE) -> list[Leaf]:
    return [node] if isinstance(node, Leaf) else [leaf for below in node.by.values() for leaf in leaves(below)]


def total(strategy: Strategy, question: Question, passes: int) -> int:
    return sum(kind.number for kind in calls(strategy, question, passes))


# ---- the tree --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("typed", TREE_AS_TYPED)
def test_the_tree_leads_where_the_method_says(capsys, typed: str) -> None:
    code, out, err = called(capsys, "advise", *typed.split(), "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["strategy"] == TREE_AS_TYPED[typed]


def test_a_frontier_model_without_a_scope_may_as_well_take_a_single_pass() -> None:
    given = advise(Question(verifiable=False, tier="frontier", constrained=False))
    assert (given.strategy, given.or_else) == ("critique_revise", "single")
    assert set(given.against) == {"best_of_n", "autoreason"}


def test_every_question_has_an_advice_that_speaks_against_the_other_main_strategies() -> None:
    for answers in product((True, False), (True, False), TIERS, (True, False), (True, False), (True, False)):
        given = advise(Question(*answers))
        assert set(given.against) | {given.strategy, given.or_else} >= set(MAIN)
        assert given.strategy not in given.against
        assert all([given.reasons, given.judges, *given.against.values()])
        assert set(given.costs) == set(STRATEGIES)


def test_every_figure_stands_beside_its_source() -> None:
    """Of each reason, of each word against a strategy, and of what is said of judges and constraints."""
    given = advise(Question(verifiable=False, tier="mid"))
    texts = [one.why for one in given.constraints_that_do_not]
    for leaf in leaves():
        texts += [*leaf.reasons, leaf.judges, *leaf.against.values()]
    cited = [text for text in texts if re.search(FIGURE, re.sub(MODEL, "", text))]
    assert len(cited) > 10
    assert [text for text in cited if "published runs" not in text.lower()] == []


@pytest.mark.parametrize(
    ("question", "doubt"),
    [
        (Question(True, False, code=True), r"0\.32, does not follow .* recomputed it is 0\.38"),
        (Question(False, tier="mid"), r"20\.7 to 18\.3 .* not shown: those runs rest on passes without ballots"),
        (Question(False, tier="frontier", constrained=False), r"one task, .* 80 % of such texts were cut off"),
        (Question(False, tier="strong", open_ended=True), "Five tasks are a hint, no proof"),
        (Question(True, False), "of code alone"),
    ],
)
def test_a_figure_in_doubt_is_told_with_the_doubt(question: Question, doubt: str) -> None:
    given = advise(question)
    assert re.search(doubt, " ".join((*given.reasons, given.judges)))


def test_an_author_of_the_middle_wants_stronger_judges() -> None:
    """And is told where those that were named are none."""
    author = Question(False, tier="mid")
    assert advise(author).judges.startswith("stronger than the author")
    notes = {
        judge: advise(Question(False, tier="mid", judge_model=judge)).notes for judge in ("gpt-4o", HAIKU, "acme-9")
    }
    assert notes["gpt-4o"] == ()
    assert notes[HAIKU] == (f"{HAIKU}, who judges, is mid-tier, no stronger",)
    assert notes["acme-9"] == ("acme-9, who judges, is of no known tier",)


def test_an_answer_that_made_no_difference_is_named() -> None:
    assert advise(Question(False, True, "weak", open_ended=True, code=True)).notes == (
        "made no difference here: solved, code, open-ended",
    )
    assert "drifts" in advise(Question(False, tier="mid", constrained=False)).notes[0]
    assert advise(Question(None, True, code=True)).notes == ()  # it said that this is verifiable


# ---- what has yet to be said -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (
            "",
            "expected --verifiable or --subjective; if verifiable: --solved or --unsolved; if subjective: --model NAME "
            "or --tier weak|mid|strong|frontier; if subjective and strong: --open-ended or --technical; "
            "if subjective and frontier: --constrained or --unconstrained",
        ),
        ("--verifiable", "expected --solved or --unsolved"),
        ("--code", "expected --solved or --unsolved"),
        ("--subjective --tier strong", "expected --open-ended or --technical"),
        ("--subjective --tier frontier", "expected --constrained or --unconstrained"),
        ("--tier weak --solved", "expected --verifiable or --subjective"),
        (
            "--subjective --model acme-9 --technical --constrained",
            "expected --tier weak|mid|strong|frontier (no tier is known of 'acme-9')",
        ),
        ("--subjective --tier weak --judges 0", "--judges: expected 1 or more, found 0"),
        ("--subjective --tier weak --passes 0", "--passes: expected 1 or more, found 0"),
        ("--subjective --tier weak --final-judges -1", "--final-judges: expected 0 or more, found -1"),
        ("--subjective --tier weak --document none.md", "--document: expected a text, found 'none.md': No such file"),
    ],
)
def test_what_has_yet_to_be_said_is_one_line_that_lists_exactly_that(capsys, argv: str, said: str) -> None:
    code, out, err = called(capsys, "advise", *argv.split())
    assert (code, out) == (2, "")
    assert err.startswith(f"metaloop: {said}")
    assert len(err.splitlines()) == 1
    assert err.count("--") == said.count("--")


def test_with_json_an_error_is_the_document(capsys) -> None:
    code, out, _ = called(capsys, "advise", "--subjective", "--model", "acme-9", "--json")
    assert code == 2
    assert json.loads(out)["code"] == 2


def test_an_unknown_model_is_no_obstacle_where_no_tier_is_asked_for() -> None:
    assert missing(Question(True, True, model="acme-9")) == ()
    with pytest.raises(UsageError, match="no tier is known of 'acme-9'"):
        advise(Question(False, model="acme-9"))


def test_a_document_without_a_word_is_refused(tmp_path: Path, capsys) -> None:
    (tmp_path / "empty.md").write_text(" \n")
    code, _, err = called(capsys, "advise", "--code", "--solved", "--document", str(tmp_path / "empty.md"))
    assert code == 2
    assert "found nothing" in err


# ---- tiers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (HAIKU, "mid"),
        ("anthropic/claude-3.5-haiku", "mid"),
        ("us.anthropic.claude-3-5-haiku-20241022-v1:0", "mid"),
        ("gemini-2.0-flash-001", "mid"),
        ("gpt-4o-mini", "mid"),
        ("gpt-4o", "strong"),
        ("chatgpt-4o-latest", "strong"),
        ("claude-sonnet-4-20250514", "strong"),
        ("claude-sonnet-4[1m]", "strong"),
        ("claude-sonnet-4-0", "strong"),
        ("claude-sonnet-4.6", "frontier"),
        ("claude-sonnet-4-6-20260101", "frontier"),
        ("claude-opus-4-1", "frontier"),
        ("opus", "frontier"),
        ("gpt-5", "frontier"),
        ("gpt-5.2-pro", "frontier"),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "weak"),
        ("llama3.1:8b", "weak"),
        ("gemma2-9b-it", "weak"),
        ("SmolLM2-135M-Instruct", "weak"),
        ("qwen2.5:0.5b", "weak"),
        ("qwen2.5-14b-instruct-1m", None),
        ("mixtral-8x7b-32768", None),
        ("qwen3-30b-a3b", None),
        ("claude-3-opus", None),
        ("gpt-5-nano", None),
        ("acme-9", None),
        ("", None),
    ],
)
def test_a_tier_is_read_from_the_name_where_that_says_it(model: str, expected: str | None) -> None:
    assert tier(model) == expected


def test_a_guess_is_told_from_what_was_measured_and_a_person_knows_better() -> None:
    row = placed(HAIKU)
    assert row is not None
    assert row.measured == "Haiku 3.5"
    assert advise(Question(False, model=HAIKU)).notes == ()
    assert "our guess" in advise(Question(False, model="gpt-4o-mini")).notes[0]
    said = advise(Question(False, model="gpt-4o-mini", tier="weak"))
    assert (said.tier, said.strategy) == ("weak", "single")
    assert said.notes == ("weak is what you said; by its name gpt-4o-mini is mid",)


# ---- what it costs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("passes", "judges", "initial", "expected"), [(1, 3, 1, 7), (15, 3, 1, 91), (10, 7, 0, 100)])
def test_a_tournament_asks_as_often_as_the_formula_says(passes: int, judges: int, initial: int, expected: int) -> None:
    """Initial, and for each pass three who write and all who judge; the first version may be there already."""
    question = Question(judges=judges, words=None if initial else 100)
    assert total("autoreason", question, passes) == expected == initial + passes * (3 + judges)
    assert total("autoreason", Question(judges=judges, final_judges=7), passes) == 1 + passes * (3 + judges) + 7


def test_the_other_strategies_are_counted_as_published() -> None:
    expected = {"single": 1, "conservative": 9, "improve": 9, "harsh": 9, "critique_revise": 18, "best_of_n": 9}
    expected |= {"autoreason": 55, "reasoned_repair": 6}
    assert {name: total(name, Question(), 9) for name in STRATEGIES} == expected


def test_money_is_tokens_times_prices_and_judges_have_their_own() -> None:
    """By hand, for one pass over 1000 tokens: a draft, a critique, a revision, a synthesis, two judges."""
    question = Question(judges=2, tokens=1000)
    in_ = 300 + 1300 + 1800 + 2300
    out = 1000 + 500 + 1500 + 1000
    prices = {"author": Price(1.0, 10.0), "judge": Price(100.0, 1000.0)}
    assert cost("autoreason", question, 1, prices).usd == pytest.approx(
        (in_ + 10 * out + 2 * (3300 * 100 + 500 * 1000)) / 1e6
    )
    assert cost("autoreason", question, 1, {**prices, "judge": None}).usd is None
    assert cost("single", question, 1, {**prices, "judge": None}).usd == pytest.approx(0.0103)


@pytest.mark.parametrize(
    ("strategy", "tokens_in", "tokens_out"),
    [
        ("single", 300, 1000),
        ("best_of_n", 2 * 300, 2 * 1000),
        ("conservative", 2 * 1300, 2 * 1000),
        ("improve", 2 * 1300, 2 * 1000),
        ("harsh", 2 * 1300, 2 * 1000),
        ("critique_revise", 2 * (1300 + 1800), 2 * (500 + 1000)),
        ("reasoned_repair", 300 + 1300 + 4 * 1800, 1000 + 500 + 4 * 1500),
    ],
)
def test_the_tokens_of_every_strategy_are_those_that_it_shows_and_gets(
    strategy: Strategy, tokens_in: int, tokens_out: int
) -> None:
    """In two passes over a text of 1000 tokens, with 300 of task and prompt and 500 of notes."""
    kinds = calls(strategy, Question(tokens=1000), 2)
    assert sum(kind.number * kind.tokens_in for kind in kinds) == tokens_in
    assert sum(kind.number * kind.tokens_out for kind in kinds) == tokens_out


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_more_of_anything_never_costs_less(strategy: Strategy) -> None:
    prices = {"author": Price(1.0, 10.0), "judge": Price(1.0, 10.0)}
    small, many = Question(tokens=100), Question(tokens=200, judges=5, final_judges=7)
    assert (cost(strategy, many, 9, prices).usd or 0) > (cost(strategy, small, 9, prices).usd or 0)
    assert (cost(strategy, small, 10, prices).usd or 0) >= (cost(strategy, small, 9, prices).usd or 0)


def test_a_known_price_becomes_money_and_an_unknown_one_is_said(capsys) -> None:
    """Haiku 3.5 at 0.8 and 4 dollars a million tokens: 91 calls about a text of 800 tokens."""
    assert listed(HAIKU) == (0.8, 4.0)
    assert listed("acme-9") is None
    in_ = 300 + 15 * (1100 + 1600 + 1900 + 3 * 2700)
    out = 800 + 15 * (500 + 1300 + 800 + 3 * 500)
    told = document(capsys, "--subjective", "--model", HAIKU)
    assert told["costs"]["autoreason"] == {
        "calls": 91,
        "counted": "initial 1 + 15 passes * (3 + 3 judges)",
        "usd": pytest.approx((0.8 * in_ + 4 * out) / 1e6),
    }
    assert "91 calls, $0.40" in called(capsys, "advise", "--subjective", "--model", HAIKU)[1]
    assert "91 calls: " in (out := called(capsys, "advise", "--subjective", "--tier", "mid")[1])
    assert "no price is known" in out
    assert "assumed" not in out


def test_a_model_named_as_at_openrouter_has_a_price() -> None:
    assert listed("anthropic/claude-3.5-haiku") == listed(HAIKU)


def test_without_the_table_of_prices_the_calls_are_told(monkeypatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert document(capsys, "--subjective", "--model", HAIKU)["costs"]["single"] == {
        "calls": 1,
        "counted": "1",
        "usd": None,
    }


# ---- what is told ----------------------------------------------------------------------------------------------------


def document(capsys, *argv: str) -> dict:
    code, out, err = called(capsys, "advise", *argv, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_json_has_the_question_and_all_of_the_advice(capsys) -> None:
    told = document(capsys, "--subjective", "--model", HAIKU)
    assert set(told) == {
        "question", "tier", "strategy", "or_else", "reasons", "against", "judges", "constraints_that_work",
        "constraints_that_do_not", "passes", "costs", "most", "assumed", "notes",
    }  # fmt: skip
    assert (told["tier"], told["strategy"], told["or_else"], told["passes"]) == ("mid", "autoreason", None, 15)
    assert told["question"]["model"] == HAIKU
    assert set(told["costs"]) == set(STRATEGIES)
    assert told["most"]["calls"] == 1 + CAP * 6
    assert all(one["example"] for one in told["constraints_that_work"] + told["constraints_that_do_not"])
    assert all(one["why"] for one in told["constraints_that_do_not"])


OPTIONS = {
    "--model gpt-4o-mini": f"--model {HAIKU}",
    "--tier mid": f"--model {HAIKU}",
    "--tier mid --solved": "--tier mid",
    "--tier mid --unsolved": "--tier mid --solved",
    "--tier mid --constrained": "--tier mid",
    "--tier mid --unconstrained": "--tier mid --constrained",
    "--tier mid --open-ended": "--tier mid",
    "--tier mid --technical": "--tier mid --open-ended",
    "--tier mid --code": "--tier mid",
    "--tier mid --judges 5": "--tier mid",
    "--tier mid --passes 9": "--tier mid",
    "--tier mid --final-judges 7": "--tier mid",
    "--tier mid --judge-model acme-9": "--tier mid",
    f"--model {HAIKU} --document a.md": f"--model {HAIKU}",
}


@pytest.mark.parametrize("typed", OPTIONS)
def test_every_option_reaches_what_is_told(tmp_path: Path, monkeypatch, capsys, typed: str) -> None:
    """To people and to programs: without it, or with its contrary, something else is told."""
    monkeypatch.chdir(tmp_path)
    Path("a.md").write_text("word " * 500)
    for form in ([], ["--json"]):
        told = [called(capsys, "advise", "--subjective", *argv.split(), *form) for argv in (typed, OPTIONS[typed])]
        assert [code for code, _, _ in told] == [0, 0]
        assert told[0][1] != told[1][1]


def test_a_document_that_is_there_is_counted_and_needs_no_first_draft(tmp_path: Path, capsys) -> None:
    (tmp_path / "a.md").write_text("word " * 500)
    argv = ("--subjective", "--model", HAIKU, "--document", str(tmp_path / "a.md"))
    told = document(capsys, *argv)
    assert (told["question"]["words"], told["question"]["tokens"]) == (500, 625)
    assert told["costs"]["autoreason"]["calls"] == 90
    assert "a text of 500 words, about 625 tokens" in called(capsys, "advise", *argv)[1]


@pytest.mark.parametrize("typed", TREE_AS_TYPED)
def test_a_person_gets_it_on_one_screen(capsys, typed: str) -> None:
    """Of 24 lines, with money; the strategy first."""
    argv = [*typed.split(), "--model", HAIKU]
    code, out, err = called(capsys, "advise", *argv)
    assert (code, err) == (0, "")
    assert len(out.splitlines()) <= 24
    assert max(map(len, out.splitlines())) <= 100
    assert out.splitlines()[0].split()[:2] == ["use", TREE_AS_TYPED[typed] + ("," if ", or" in out else "")]


def test_what_the_docs_say_to_type_works_and_names_every_option(tmp_path: Path, monkeypatch, capsys) -> None:
    docs = (Path(__file__).parent.parent / "docs/documents.md").read_text()
    lines = re.findall(r"^    metaloop (advise .*)$", docs, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("plan.md").write_text("a plan")
    assert [called(capsys, *line.split())[0] for line in lines] == [0, 0, 0]
    _, page, _ = called(capsys, "advise", "--help")
    options = set(re.findall(r"(?<=\s)--[a-z-]+", page)) - {"--help"}
    assert len(options) > 15
    assert [option for option in sorted(options) if option not in docs] == []


def test_the_name_of_a_model_moves_no_cursor(capsys) -> None:
    _, out, _ = called(capsys, "advise", "--code", "--solved", "--model", "a\x1b[2Jb")
    assert "\x1b" not in out
    assert "advise" in cli.ALL
