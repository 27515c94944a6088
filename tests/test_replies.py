"""From a model's text to a point: what is found wherever it stands, what is refused, and in which words."""

import json
import re
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from metaloop.policies import replies
from metaloop.policies.replies import DEEPEST, LONGEST, MOST, TOLD, WHY, WRAPPERS, Point, Problem, values
from metaloop.values import Choices, Range, accept, describe

SPACE = {"lr": Range(1e-4, 1, log=True), "depth": Range(1, 8, whole=True), "opt": Choices(("sgd", "adam"))}
RIGHT = {"lr": 0.01, "depth": 3, "opt": "adam"}
GOOD = json.dumps({"params": RIGHT})
FILES = sorted((Path(__file__).parent / "data/replies").glob("*.txt"))


def told(text: str, code: str, space: dict = SPACE) -> str:
    """The words of the problem that `text` is."""
    read = values(text, space)
    assert isinstance(read, Problem), read
    assert read.code == code, read
    return read.text


def point(text: str, space: dict = SPACE) -> Point:
    read = values(text, space)
    assert isinstance(read, Point), read
    return read


# ---- each kind of reply, as it comes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_reply_is_read_or_refused_as_its_file_says(file: Path) -> None:
    """`NAME.point.txt` holds RIGHT; else the middle of the name is the code of what is wrong."""
    text, (_, expected, _) = file.read_text(), file.name.split(".")
    if expected == "point":
        assert point(text).values == RIGHT
    else:
        told(text, expected)


def test_a_reply_that_is_too_long_is_refused_before_it_is_read(monkeypatch) -> None:
    monkeypatch.setattr(replies, "_find", None)
    told(json.dumps({"params": RIGHT, "why": "A" * 300_000}), "too_long")
    told("é" * (LONGEST // 2 + 1), "too_long")


def test_a_reply_that_is_as_long_as_may_be_is_read() -> None:
    text = json.dumps({"params": RIGHT, "why": "A" * 100_000}).ljust(LONGEST)
    assert point(text).why == "A" * (WHY - 4) + " ..."


# ---- finding ---------------------------------------------------------------------------------------------------------


def test_the_reason_is_the_innermost_and_as_it_was_written() -> None:
    inner = {**RIGHT, "reason": "use ```python\nx=1\n``` blocks } ] {"}
    assert point(json.dumps({"params": inner, "rationale": "not this"})).why == inner["reason"]
    assert point(json.dumps({"params": RIGHT, "Rationale": "this"})).why == "this"
    assert point(json.dumps({"params": RIGHT, "rationale": 3})).why == ""


def test_a_reason_that_utf8_cannot_hold_can_still_be_recorded() -> None:
    assert point('{"params": ' + json.dumps(RIGHT) + ', "why": "a\\ud800b"}').why.encode() == b"a?b"


def test_a_parameter_that_is_called_like_a_reason_or_a_wrapper_is_a_parameter() -> None:
    space = {"why": Choices(("a", "b")), "config": Choices(("x", "y"))}
    for text in ('{"why": "a", "config": "x"}', '{"config": {"why": "a", "config": "x"}}'):
        assert point(text, space) == Point({"why": "a", "config": "x"}, "", point(text, space).note)


def test_the_note_says_where_the_point_stood_and_what_was_not_read() -> None:
    assert point(GOOD).note == ""
    assert (
        point(json.dumps({"result": {"values": RIGHT}, "shell": "ls"})).note == "read at result.values; not read: shell"
    )
    assert point(f"{GOOD} or {GOOD}").note == "the last of 2 objects that hold a point"
    other = json.dumps({**RIGHT, "depth": 4})
    assert point(f"{other} or {GOOD}").note == "the last of 2 objects that hold a point and differ"
    assert point(f"{GOOD} not {{}}").note == "objects after it that hold none: 1"


def test_the_last_object_that_holds_a_point_is_the_answer() -> None:
    """Also where a later one holds none: `{"a": 1}` after the answer is no change of mind."""
    later = json.dumps({"params": {**RIGHT, "depth": 4}})
    assert point(f"{later}\n{GOOD}\n" + '{"a": 1} {"lr": 50}').values == RIGHT
    assert point(json.dumps({"proposals": [json.loads(later)["params"], RIGHT]})).values == RIGHT
    assert point(f"[{later}, {GOOD}]").values == RIGHT


def test_what_lies_within_a_broken_object_is_not_read() -> None:
    """It may be anything: what was tried before, what is advised against."""
    told('{"params": {"lr": .5}, "tried": ' + json.dumps(RIGHT) + "}", "not_json")
    told('{"params": {"lr": 0.5}, "lr": NaN, "tried": ' + json.dumps(RIGHT) + "}", "not_json")
    told('{"params": {"lr": .5}, "tried": [' + json.dumps(RIGHT) + ",", "not_json")
    told("{params: " + json.dumps(RIGHT) + "}", "not_json")


def test_what_follows_a_broken_object_is_read() -> None:
    assert point('{"params": {"lr": .5}} no: ' + GOOD).values == RIGHT
    assert point('{"params": 5" wide}\n' + GOOD).values == RIGHT


@pytest.mark.parametrize(
    "prose", ["a set {1, 2, ...", "{", "}", "}}{{", 'it is 5" wide', "\\{x\\}", "if (x) {", "`{`", "[", "{[("]
)
def test_braces_and_quotes_in_prose_are_prose(prose: str) -> None:
    assert point(f"{prose} {GOOD} {prose}").values == RIGHT


def test_two_wrappers_that_both_name_parameters_are_refused_and_one_that_names_none_is_passed_over() -> None:
    both = told(json.dumps({"params": RIGHT, "values": {"lr": 0.1}}), "ambiguous")
    assert '"params" and "values"' in both
    assert point(json.dumps({"config": {"seed": 1}, "params": RIGHT})).values == RIGHT
    assert point(json.dumps({"config": RIGHT, "input": {"seed": 1}})).values == RIGHT


def test_params_that_name_no_parameter_are_not_passed_over_for_something_else() -> None:
    told(json.dumps({"params": {"rate": 0.5}, "input": RIGHT}), "ambiguous")
    assert "params.rate: no such parameter" in told(json.dumps({"params": {"rate": 0.5}, "tried": RIGHT}), "unknown")


def test_a_broken_object_in_a_string_is_told_with_its_path() -> None:
    assert "arguments: the object" in told(json.dumps({"arguments": '{"lr": }'}), "not_json")
    assert "arguments: expected nothing after" in told(json.dumps({"arguments": GOOD + " and so on"}), "not_json")


def test_wrappers_within_wrappers_come_to_an_end() -> None:
    text = json.dumps(RIGHT)
    for _ in range(12):
        text = '{"result": ' + text + "}"
    assert point(text).values == RIGHT
    told('{"result": ' + text + "}", "type")


# ---- reading ---------------------------------------------------------------------------------------------------------


def given_as(**changed: object) -> str:
    return json.dumps({"params": {**RIGHT, **changed}})


@pytest.mark.parametrize("name", SPACE)
@pytest.mark.parametrize(
    "value", [None, [], {}, [1], {"value": 1}, "", "1e-3", "3", " adam", "Adam", -1, 0, 9, 1e308, 10**300]
)
def test_a_value_that_is_not_the_domains_own_is_refused_with_its_path_and_both_sides(name: str, value: object) -> None:
    read = values(given_as(**{name: value}), SPACE)
    assert isinstance(read, Problem)
    assert f"params.{name}: expected {describe(SPACE[name])}, found {json.dumps(value)[:30]}" in read.text


@pytest.mark.parametrize("value", ["1e999", "1" + "0" * 400, "1" + "0" * 100_000, "-1" + "0" * 309], ids=len)
def test_a_number_that_no_float_holds_is_outside_every_range(value: str) -> None:
    assert "params.lr: expected" in told(GOOD.replace("0.01", value), "outside")
    assert "params.depth: expected" in told(GOOD.replace("3", value), "outside")


def test_a_number_in_quotes_is_told_so() -> None:
    assert 'params.lr: expected 0.0001 to 1, found "1e-3"; a number stands without quotes' in told(
        given_as(lr="1e-3"), "type"
    )


def test_a_whole_number_may_have_a_point_and_zero_and_is_held_whole() -> None:
    held = point(given_as(depth=3.0)).values["depth"]
    assert (held, type(held)) == (3, int)
    held = point(given_as(lr=1)).values["lr"]
    assert (held, type(held)) == (1.0, float)


def test_true_is_a_choice_only_where_it_is_listed() -> None:
    assert point('{"x": true}', {"x": Choices((False, True))}).values == {"x": True}
    told('{"x": 1}', "outside", {"x": Choices((False, True))})
    told('{"x": true}', "outside", {"x": Choices((0, 1))})


def test_all_that_is_wrong_is_told_at_once_and_what_is_wanted() -> None:
    text = told('{"params": {"lr": 2, "dept": 3}}', "outside")
    assert "params.lr: expected 0.0001 to 1, found 2" in text
    assert "params.dept: no such parameter; did you mean 'depth'? expected lr, depth, opt" in text
    assert "params.opt: expected the choices 'sgd', 'adam', found nothing" in text
    assert text.endswith('Send one JSON object with "why" and "params", and in "params" lr, depth, opt.')


def test_a_reply_without_json_is_shown_how_it_began() -> None:
    assert 'begins "I\'m sorry"' in told("\n I'm sorry", "no_object")


def test_where_an_object_breaks_is_told() -> None:
    assert 'begins on line 2, at params.lr: expected a value, found ".5' in told(
        'so:\n{"params": {"depth": 1, "lr": .5}}', "not_json"
    )
    assert 'line 1, at params.lr: expected a value, found "+1' in told('{"params": {"lr": +1}}', "not_json")
    assert "line 1, at params: expected a key in double quotes" in told('{"params": {"lr": 1, depth: 3}}', "not_json")
    assert "line 1: expected a key in double quotes or }" in told("{lr: 1}", "not_json")
    assert "at why: expected a string that is closed" in told('{"params": {}, "why": "a\nb"}', "not_json")
    assert "expected a colon, found the end of the text" in told('{"params": {"lr"', "not_json")
    assert f"at most {DEEPEST} levels" in told('{"a":' * 1000 + "1" + "}" * 1000, "not_json")
    assert f"more than {MOST}" in told("{}" * (MOST + 1), "too_many")


def test_the_problem_of_the_object_that_looks_most_like_an_answer_is_told() -> None:
    assert "params.lr" in told('{"params": {"lr": 5}} {"x": 1} {}', "outside")


KEYS = st.sampled_from([*SPACE, "LR", "params", "why", "x" * 500, "a\nb", "\ud800", "\u202e"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | st.text(), inner, max_size=5),
    max_leaves=20,
)


@given(JSON)
def test_every_problem_is_bounded_and_can_be_sent(value: object) -> None:
    read = values(json.dumps({"params": value}), SPACE)
    assert len((read.text if isinstance(read, Problem) else read.why).encode()) <= 4 * TOLD
    assert isinstance(read, Point) or len(read.text) <= TOLD


# ---- any text --------------------------------------------------------------------------------------------------------

MARKS = ['{"', "{", "}", "[", "]", '"', ",", ":", "\\", "\\u12", "<think>", "</think>", "```", "\n", " ", "NaN", "-"]
WORDS = [*SPACE, "params", "true", "None", "0.01", "1e5", "3", '{"params":', '"adam"', "'lr':", GOOD, json.dumps(RIGHT)]
SCRAPS = st.sampled_from([*MARKS, *WORDS])


@settings(max_examples=400)
@given(st.text() | st.lists(SCRAPS | st.text(max_size=3), max_size=40).map("".join))
@example("\ud800{")
@example('{"a":' * 5000)
def test_no_text_raises_and_what_is_accepted_is_held_exactly(text: str) -> None:
    read = values(text, SPACE)
    if isinstance(read, Point):
        held = accept(SPACE, read.values)
        assert held == read.values
        assert list(held) == list(read.values) == list(SPACE)
        assert [*map(type, held.values())] == [*map(type, read.values.values())]
    assert read == values(text, SPACE)


@given(JSON)
def test_an_object_is_read_as_the_library_reads_it_or_not_at_all(value: object) -> None:
    text = json.dumps({"x": value})
    thing, end = replies._parse(text, 0)
    assert end == len(text)
    assert isinstance(thing, replies._Object)
    assert bool(thing.slips) == bool(re.search(r"NaN|Infinity", re.sub(r'"(\\.|[^"\\])*"', "", text)))
    if not thing.slips:
        assert json.dumps(thing.held) == text


@settings(max_examples=400)
@given(st.lists(SCRAPS, max_size=12).map(lambda scraps: "{" + "".join(scraps)))
def test_what_is_read_without_a_slip_is_json(text: str) -> None:
    thing, end = replies._parse(text, 0)
    if isinstance(thing, replies._Object) and not thing.slips:
        assert json.loads(text[:end]) == thing.held


MEANT = re.compile(r"""\{\s*(["'}]|\w+\s*:)|think|thought|reasoning""", re.I)
PROSE = (st.text() | st.sampled_from(["Sure! {a, b}", "it's 5\" wide", "}{", "{ ", "```", "~~~"])).filter(
    lambda text: not MEANT.search(text + "{")
)
FENCES = st.sampled_from(
    [("", ""), ("```json\n", "\n```"), ("~~~ x y\n", "\n~~~"), ("````md\n```\n", "\n```\n````"), ("`", "`")]
)
THOUGHTS = st.sampled_from(
    ["", f"<think>{GOOD}</think>", '<think>{"lr": </think>\n', "<THINK></think><think>{</think>", '{"lr" </think>']
)
POINTS = st.fixed_dictionaries(
    {"lr": st.floats(1e-4, 1), "depth": st.integers(1, 8), "opt": st.sampled_from(["sgd", "adam"])}
)


@st.composite
def wrapped(draw) -> tuple[dict, str]:
    """A point, and a reply that says it: wrapped, spaced, fenced, after thought, in prose."""
    held = draw(POINTS)
    value: object = held if draw(st.booleans()) else {**held, "why": draw(st.text())}
    for key in draw(st.lists(st.sampled_from(sorted(WRAPPERS)), max_size=4)):
        value = draw(st.sampled_from([value, [value], json.dumps(value)])) if isinstance(value, dict) else value
        value = {key: value, draw(st.sampled_from(["note", "shell", "rationale"])): draw(st.text())}
    text = json.dumps(value, indent=draw(st.sampled_from([None, 0, 2])), ensure_ascii=draw(st.booleans()))
    (before, after), thought = draw(FENCES), draw(THOUGHTS)
    return held, draw(PROSE) + thought + draw(PROSE) + before + text + after + draw(PROSE) + draw(
        st.sampled_from(["", "<think>"])
    )


@settings(max_examples=400)
@given(wrapped())
def test_a_point_is_found_in_any_wrapping(case: tuple[dict, str]) -> None:
    held, text = case
    assert point(text).values == held


TILES = [
    '\\"',
    "{",
    "`",
    '{"',
    '{"a":',
    "{a:",
    "{a:}",
    "{}",
    '{"a":[',
    "<think>",
    "</think>",
    '"\\"',
    '{"\\"',
    '"',
    "[",
    "{'",
    '{"x":1}',
    "{ ",
    "\n{",
]


@pytest.mark.parametrize("head", ["", '{"a":[', '{"params":[', '{"a":"'])
@pytest.mark.parametrize("tile", TILES)
def test_time_is_linear_whatever_stands_there(tile: str, head: str) -> None:
    """Processor time, so that a busy machine fails nobody; a quadratic reader would take minutes."""
    text = head + tile * ((LONGEST - len(head)) // len(tile))
    began = time.process_time()
    assert isinstance(values(text, SPACE), Problem)
    assert time.process_time() - began < 1
