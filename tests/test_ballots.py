"""From what judges write to who wins a pass, and when a tournament ends."""

import json
from collections import Counter
from itertools import permutations
from pathlib import Path
from random import Random
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaloop.ballots import (
    Tally,
    abstains,
    borda,
    decided,
    joined,
    margin,
    named,
    orders,
    parse,
    quorum,
    streak,
    winner,
)

CASES = json.loads((Path(__file__).parent / "data" / "tournament.json").read_text())
NAMES = ("A", "B", "AB")


# ---- reading a ballot ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "case"),
    [(labels, case) for labels in ("123", "ABCDE") for case in CASES[f"parse_{labels}"]],
    ids=lambda value: value if isinstance(value, str) else value.get("name", value["text"]),
)
def test_the_worked_cases_are_read_as_they_should_be(labels: str, case: dict) -> None:
    read = parse(case["text"], list(labels))
    assert read == tuple(case["expected"]) if case["expected"] else isinstance(read, str)


HEADS = [
    "RANKING: ", "ranking: ", "**RANKING:** ", "**Ranking**: ", "## RANKING: ", "> **Final Ranking:** ", "- RANKING: ",
    "My final ranking is: ", "Final ranking (best to worst): ", "So, RANKING: ", "RANKING:\n", "## Ranking\n\n",
    "All in all, final ranking: ", "ＲＡＮＫＩＮＧ： ", "RANKING\u200b: ", "RANKING: 1, 2\r\n\r\nRANKING: ",
]  # fmt: skip
ITEMS = [
    "{}", "[{}]", "({})", "**{}**", "`{}`", "Proposal {}", "[Version {}]", "Version #{}", "{} (9/10)", "{} [clear]",
    '"{}"', "{} (clear (and short), 8)", "**Option {}** (not a tie)",
]  # fmt: skip
MARKS = [", ", ",", " > ", ">", "; ", " → ", " -> ", "、"]
TAILS = ["", ".", " (the last two were close)", "**", "\n", "\n\nThat is all: 1 and 2 were close.", "\nBest, judge"]
PLACES = ["{}. ", "{}) ", "{}th: ", "**{}.** ", "> {}. ", "- {}th place: "]
SAID = ["", ": clear", " — short, to the point", " - 9/10", ". Better than all others.", "\n   - because it is short"]
BEFORE = ["", "2 is best.\n", "RANKING: 3, 2\n", "RANKING: [best], [second], [worst]\n", "<think>RANKING: 1</think>\n"]
AFTER = ["", "\n\nRANKING: [best], [second], ...", "\nRANKING: <label>, <label>, <label>", "\nI ranked all of them."]
rankings = st.sampled_from(["123", "ABC", "ABCDE", "XY"]).flatmap(lambda labels: st.permutations(list(labels)))


@given(rankings, *map(st.sampled_from, (BEFORE, HEADS, ITEMS, MARKS, TAILS, AFTER)))
def test_a_ranking_in_a_line_is_read_whatever_it_is_dressed_in(
    ranking: list, before: str, head: str, item: str, mark: str, tail: str, after: str
) -> None:
    text = before + head + mark.join(item.format(label) for label in ranking) + tail + after
    assert parse(text, sorted(ranking)) == tuple(ranking), text


@given(rankings, *map(st.sampled_from, (BEFORE, HEADS, ITEMS, PLACES, SAID, AFTER)))
def test_a_numbered_list_under_a_heading_is_a_ranking(
    ranking: list, before: str, head: str, item: str, place: str, said: str, after: str
) -> None:
    lines = [place.format(n) + item.format(label) + said for n, label in enumerate(ranking, 1)]
    text = f"{before}{head.strip()}\n\n" + "\n".join(lines) + "\n" + after
    assert parse(text, sorted(ranking)) == tuple(ranking), text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no ranking line"),
        ("The ranking of the proposals is hard.", "no ranking line"),
        ("RANKING: [1st], [2nd], [3rd]", "no ranking line"),
        ("RANKING:\n1. [best]\n2. [second]\n3. [worst]", "no ranking line"),
        ("## Ranking\nI was torn.", "no ranking line"),
        ("RANKING:", "empty"),
        ("RANKING: 2, 1", "leaves out '3'"),
        ("RANKING: 2, 1, ...", "breaks off"),
        ("RANKING:\n1. Proposal 2\n2. Proposal 1", "leaves out '3'"),
        ("RANKING: 1, 1, 2", "'1' twice"),
        ("RANKING: 1, 2, 3, 1", "'1' twice"),
        ("RANKING: 1, 2, 4", "'4', which is no label"),
        ("RANKING: [4], [5], [6]", "'4', which is no label"),
        ("RANKING: 12, 3", "'12', which is no label"),
        ("RANKING: 1a, 2, 3", "'1a', which is no label"),
        ("RANKING: ١, ٢, ٣", "'١', which is no label"),
        ("RANKING: 3 1 2", "cannot be read"),
        ("RANKING: 3, 1, 2 - it was close", "cannot be read"),
        ("RANKING: not 3, 1, 2", "cannot be read"),
        ("RANKING: 1: 9/10, 2: 8/10, 3: 5/10", "cannot be read"),
        ("RANKING: 1 < 2 < 3", "cannot be read"),
        ("RANKING: 1 > 2, 3", "mixes"),
        ("RANKING: 1 = 2, 3", "declares a tie"),
        ("RANKING: 1 >= 2 > 3", "declares a tie"),
        ("RANKING: 3, 1 and 2", "declares a tie"),
        ("RANKING: 3, 1/2", "declares a tie"),
        ("RANKING:\n1. Proposals 3 and 1\n2. Proposal 2", "declares a tie"),
        ("RANKING: tie", "declares a tie"),
        ("RANKING: 1 (tie), 2 (tie), 3", "declares a tie"),
        ("RANKING:\n1. Proposal 3\n2. Proposal 1, tied with Proposal 2", "declares a tie"),
        ("RANKING:\n1. Proposal 3\n2. Proposal 1 (tied)\n3. Proposal 2", "declares a tie"),
        ("RANKING:\n1. Proposal 3\n1. Proposal 1\n3. Proposal 2", "leaves out"),
        ("RANKING:\n3. Proposal 3\n2. Proposal 1\n1. Proposal 2", "count up"),
        ("RANKING: 2nd: 3, 1st: 1, 3rd: 2", "count up"),
        ("RANKING: fırst: 3, 1, 2", "cannot be read"),
        ("RANKING (worst to best): 1, 2, 3", "not best first"),
        ("RANKING: 1, 2, 3 (worst first)", "not best first"),
    ],
)
def test_what_is_no_full_ranking_is_no_ballot_and_says_why(text: str, why: str) -> None:
    read = parse(text, "123")
    assert isinstance(read, str)
    assert why in read


@pytest.mark.parametrize("later", ["2, 1", "tie", "1, 1, 2", "", "I cannot say", "1, 2, 4", "1 = 2 = 3"])
def test_an_invalid_ranking_is_not_replaced_by_an_earlier_one(later: str) -> None:
    assert isinstance(parse(f"RANKING: 3, 1, 2\nOn reflection, RANKING: {later}", "123"), str)


def test_the_last_ranking_wins_also_within_a_line() -> None:
    assert parse("RANKING: 1, 2, 3\nNo. After all, RANKING: 3, 2, 1", "123") == ("3", "2", "1")
    assert isinstance(parse("RANKING: 1, 2, 3 RANKING:", "123"), str)


def test_thought_is_no_ballot_once_it_is_closed() -> None:
    """Neither in its tags, nor before a closing tag alone. A tag that is never closed is text."""
    assert parse("<think>RANKING: 1, 2, 3</think>RANKING: 3, 2, 1", "123") == ("3", "2", "1")
    assert parse("RANKING: 3, 2, 1\n<think>RANKING: 1, 2, 3</think>", "123") == ("3", "2", "1")
    assert parse("RANKING: 1, 2, 3</think> I agree.", "123") == "there is no ranking line"
    assert parse("RANKING: 1, 2, 3 <think>a</think> b</think> I agree.", "123") == "there is no ranking line"
    assert parse("<thinking> hm\nRANKING: 1, 2, 3", "123") == ("1", "2", "3")


def test_what_follows_a_ranking_is_not_part_of_it() -> None:
    assert parse("RANKING: 3, 1, 2\rRANKED by: me", "123") == ("3", "1", "2")
    assert parse("RANKING:\n1. 3\n2. 1\n3. 2\nFurther notes:\n4. None", "123") == ("3", "1", "2")
    assert isinstance(parse("RANKING:\n1. 3\n2. 1\n3. 2\n4. 1", "123"), str)


def test_the_case_of_labels_matters_only_where_it_tells_them_apart() -> None:
    assert parse("ranking: b > c > a", "ABC") == ("B", "C", "A")
    assert parse("ranking: b > A > a", ["a", "A", "b"]) == ("b", "A", "a")
    assert isinstance(parse("ranking: B > A > a", ["a", "A", "b"]), str)


pieces = ["RANKING", "Final ", ":", "\n", " ", ",", ">", "1", "2", "3", "st", "first", ". ", "(", ")", "[", "]", "best"]
pieces += [
    "<think>",
    "</think>",
    "tie",
    "=",
    "and",
    "#",
    "**",
    "Proposal ",
    "`",
    "1. ",
    "...",
    "fırst ",
    "ſecond ",
    "１",
]


@given(st.sampled_from(["", "RANKING: ", "RANKING:\n1. "]), st.text() | st.lists(st.sampled_from(pieces)).map("".join))
def test_reading_never_raises_and_gives_a_permutation_or_words(head: str, text: str) -> None:
    read = parse(head + text, "123")
    assert read if isinstance(read, str) else sorted(read) == ["1", "2", "3"]


@pytest.mark.parametrize(
    "unit",
    [
        "RANKING: ",
        "1, ",
        "RANKING:\n",
        "RANKING: [best]\n",
        "> ",
        "final ",
        "RANKING (",
        "<think>",
        "a\u0315\u0300",
        "#",
    ],
)
def test_a_megabyte_is_read_in_linear_time(unit: str) -> None:
    for head in ("", "RANKING: ", "RANKING:\n1. 3", "RANKING: 3 (", "RANKING: ["):
        text = head + unit * (1_000_000 // len(unit))
        began = perf_counter()
        assert isinstance(parse(text, "123"), str)
        assert perf_counter() - began < 20  # a second; anything quadratic takes hours


# ---- counting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES["borda"], ids=lambda case: case["name"])
def test_points_are_borda_s_and_ties_go_to_the_incumbent(case: dict) -> None:
    tally = borda(case["ballots"], NAMES)
    assert tally == Tally(case["scores"], case["valid"], len(case["ballots"]))
    assert winner(tally, tie_order=NAMES) == case["winner"]


@pytest.mark.parametrize("case", CASES["tie_order"])
def test_the_order_of_ties_is_a_setting(case: dict) -> None:
    assert winner(Tally(case["scores"], 3, 3), tie_order=case["order"]) == case["winner"]


@pytest.mark.parametrize("case", CASES["margin"])
def test_an_incumbent_is_unseated_by_a_margin(case: dict) -> None:
    assert winner(Tally(case["scores"], 3, 3), tie_order=NAMES, margin=case["margin"]) == case["winner"]


def test_with_a_margin_the_best_rival_is_the_one_that_has_to_lead() -> None:
    assert winner(Tally({"A": 4, "B": 7, "AB": 7}, 3, 3), "A", ("A", "AB", "B"), 2) == "AB"
    assert winner(Tally({"A": 7, "B": 7, "AB": 4}, 3, 3), "A", ("B", "AB", "A"), 1) == "A"
    assert winner(Tally({"X": 7, "Y": 6, "Z": 5}, 3, 3), margin=2) == "X"  # no incumbent: the best


ballots = st.lists(
    st.one_of(st.none(), st.permutations(NAMES), st.lists(st.sampled_from((*NAMES, "C")), max_size=4)), max_size=9
)


@given(ballots)
def test_a_panel_gives_all_points_of_its_valid_ballots_and_no_more(given_ballots: list) -> None:
    tally = borda(given_ballots, NAMES)
    assert sum(tally.points.values()) == tally.valid * 6
    assert tally.asked == len(given_ballots) >= tally.valid
    assert tally.valid == sum(ballot is not None and sorted(ballot) == sorted(NAMES) for ballot in given_ballots)


@given(st.lists(st.permutations(NAMES), max_size=7), st.permutations(NAMES), st.integers(0, 4))
def test_other_names_for_the_same_versions_change_nothing(panel: list, other: list, lead: int) -> None:
    renamed = dict(zip(NAMES, other, strict=True))
    panel_renamed = [[renamed[name] for name in ballot] for ballot in panel]
    plain, changed = borda(panel, NAMES), borda(panel_renamed, other)
    assert changed.points == {renamed[name]: points for name, points in plain.points.items()}
    won = winner(plain, "A", NAMES, lead)
    assert winner(changed, renamed["A"], other, lead) == (None if won is None else renamed[won])


def test_a_quorum_is_two_thirds_of_those_asked_rounded_up() -> None:
    assert [quorum(n) for n in range(1, 10)] == [1, 2, 2, 3, 4, 4, 5, 6, 6]
    assert [margin(n) for n in (1, 3, 5, 6, 7)] == [1, 2, 4, 4, 5]
    assert not decided(Tally({}, 1, 3))
    assert decided(Tally({}, 2, 3))
    assert not decided(Tally({}, 2, 3), needed=3)
    assert not decided(Tally({}, 0, 0), needed=0)


@pytest.mark.parametrize("case", CASES["convergence"])
def test_a_tournament_stops_after_k_wins_in_a_row_or_at_its_cap(case: dict) -> None:
    assert streak(case["winners"], case["k"], case["cap"]) == (case["stop_pass"], case["reason"])


def test_void_passes_are_transparent_but_count() -> None:
    assert streak(["A", None, None, "A"], 2, 10) == (4, "converged")
    assert streak([None, None, None], 2, 3) == (3, "max_passes")
    assert streak(["B", "A", "A"], 2, 3) == (3, "converged")
    assert streak(["A", "B", None, "A"], 2, 10) == (4, "running")
    assert streak([None] * 2, 1, 10) == (2, "running")
    assert streak([], 2, 10) == (0, "running")


# ---- what a judge is shown -------------------------------------------------------------------------------------------

versions = st.integers(1, 6).map(lambda m: tuple("ABCDEF"[:m]))


@given(versions, st.integers(0, 20), st.integers())
def test_latin_orders_put_each_name_at_each_place_as_often_give_or_take_one(
    names: tuple, judges: int, seed: int
) -> None:
    panel = [order for (order,) in orders(names, judges, "latin", Random(seed))]
    assert len(panel) == judges
    assert all(sorted(order) == sorted(names) for order in panel)
    for place in range(len(names)):
        counts = Counter(order[place] for order in panel)
        assert max(counts[name] for name in names) - min(counts[name] for name in names) <= 1


@given(st.integers())
def test_a_latin_panel_shows_each_order_once_before_it_shows_one_again(seed: int) -> None:
    panel = [order for (order,) in orders(NAMES, 6, "latin", Random(seed))]
    assert sorted(panel) == sorted(permutations(NAMES))
    twice = Counter(order for (order,) in orders(NAMES, 12, "latin", Random(seed)))
    assert set(twice.values()) == {2}
    many = [order for (order,) in orders("ABCD", 24, "latin", Random(seed))]
    assert len(set(many)) == 24


@given(versions, st.integers(1, 9), st.integers(), st.sampled_from(["latin", "random", "both"]))
def test_in_both_orders_every_version_stands_in_another_place(names: tuple, judges: int, seed: int, order: str) -> None:
    panel = orders(names, judges, order, Random(seed))
    assert len(panel) == judges
    assert all(len(own) == (2 if order == "both" else 1) for own in panel)
    assert all(a != b for own in panel if order == "both" and len(names) > 1 for a, b in zip(*own, strict=True))


def test_every_order_is_as_likely_for_a_judge() -> None:
    for order in ("latin", "random", "both"):
        seen = Counter(orders(NAMES, 3, order, Random(f"{order}/{seed}"))[1][0] for seed in range(3000))
        assert len(seen) == 6
        assert all(420 < count < 580 for count in seen.values()), seen


def test_random_orders_are_independent_of_each_other() -> None:
    panels = [orders(NAMES, 2, "random", Random(seed)) for seed in range(1800)]
    assert all(30 < count < 75 for count in Counter(panels).values())
    assert len(set(panels)) == 36


@given(st.permutations(NAMES), st.permutations("123"))
def test_labels_lead_back_to_names(ranking: list, labels: list) -> None:
    label_of = dict(zip(NAMES, labels, strict=True))
    key = {label: name for name, label in label_of.items()}
    assert named([label_of[name] for name in ranking], key) == tuple(ranking)


def test_a_judge_abstains_when_its_first_place_turns_with_the_order() -> None:
    assert abstains(("A", "B", "AB"), ("AB", "A", "B"))
    assert not abstains(("A", "B", "AB"), ("A", "AB", "B"))
    assert joined(("A", "B", "AB"), ("AB", "A", "B")) is None
    assert joined(None, ("A", "B", "AB")) is None
    assert joined(("A", "B", "AB"), None) is None


def test_a_judge_of_both_orders_has_one_ballot_by_mean_place() -> None:
    assert joined(("A", "B", "AB"), ("A", "AB", "B")) == ("A", "B", "AB")  # a tie: as in the first
    assert joined(tuple("ABCD"), tuple("ADCB")) == tuple("ABCD")
    assert joined(tuple("ABCD"), tuple("ACDB")) == tuple("ACBD")


@pytest.mark.parametrize(
    "said", ["version-3, version-1, version-2", "Version_3 > version_1 > version_2", "version-3, 1, version 2"]
)
def test_labels_may_be_said_as_they_stand_around_the_versions(said: str) -> None:
    """Half of the judges of a tournament that was played by hand did so."""
    assert parse(f"RANKING: {said}", ("1", "2", "3")) == ("3", "1", "2")
