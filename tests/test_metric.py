"""What counts as a number, and what a decision says."""

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaloop.evaluators.judge import digits
from metaloop.evaluators.metric import plain, reader
from metaloop.roles import Outcome, StepOutcome
from metaloop.terms import Terms
from metaloop.values import Failed, Objective, Ran

SCORE = Objective("score", "max")


def terms(objective: Objective) -> Terms:
    return Terms("t", objective, ("train",), "random", {})


def ended(stdout: str = "", *, exit: int | None = 0, stderr: str = "", limit: str | None = None, **more) -> Outcome:
    return Outcome((StepOutcome("train", exit, None, limit, 2.0, stdout, stderr),), **more)


def read(stdout: str = "", objective: Objective = SCORE, **more) -> Ran | Failed:
    return reader(terms(objective))(ended(stdout, **more))


@pytest.mark.parametrize(
    ("stdout", "score"),
    [
        ("loss=0.25\nscore=0.9\n", 0.9),
        ("score: 0.5", 0.5),
        ("METRIC score=0.5", 0.5),
        ("METRIC\tscore = 5e-1  ", 0.5),
        ("score=1\nscore=2\n", 2.0),
        ("epoch 1 score: 99\nbest score so far: 77\nMETRIC score=0.5\n", 0.5),
        ('training...\n{"score": 0.5, "epochs": 3}\n', 0.5),
        ("50%|####\r100%|####\rscore=0.25\n", 0.25),
        ("score=-.5", -0.5),
        ("score=+1.", 1.0),
        ("é" * 1_000_000 + "\nscore=0.5", 0.5),
        ("METRIC __proto__=1\nMETRIC constructor=2\nMETRIC a.b/c d=3\nMETRIC score=0.5\n" + "x" * 10_000 + "=1", 0.5),
        ("score=nan\nscore=0.98\n", 0.98),
    ],
)
def test_a_number_is_read_by_its_exact_name(stdout: str, score: float) -> None:
    """On a line of its own, or in a last line that is JSON; the last value wins (cases A2; reports 7, 10, 44)."""
    result = read(stdout)
    assert isinstance(result, Ran)
    assert result.metrics["score"] == score


@pytest.mark.parametrize(
    "token",
    [
        "inf",
        "-inf",
        "nan",
        "NaN",
        "Infinity",
        "1e400",
        "1e999",
        "0,9",
        "True",
        "0x1f",
        "1_000",
        "９",
        "½",
        "--1",
        "1e",
        ".",
    ],
)
def test_what_is_not_a_plain_finite_number_is_no_score(token: str) -> None:
    """A4: never 0.0, never kept, and the reason names what was found."""
    result = read(f"score={token}\n")
    assert isinstance(result, Failed)
    assert result.kind == "metric"
    assert token in result.reason


@pytest.mark.parametrize(
    "text",
    ['{"score": true}', '{"score": NaN}', '{"score": "0.9"}', '{"score": 1e999}', '{"score": null}', '{"score": [1]}',
     '{"score": 1, "score": 2}', "[1]", "", "not json", '{"other": 1}', "[" * 200_000,
     '{"score": 99999999999999999999999}'],
)  # fmt: skip
def test_a_metrics_file_is_one_strict_object(text: str) -> None:
    """Booleans, NaN, text, twice the same key, depth: refused, and stdout is not asked instead."""
    result = read("score=0.9", metrics=text)
    assert isinstance(result, Failed)
    assert result.kind in ("metric", "evaluation")


def test_the_metrics_file_comes_before_stdout() -> None:
    result = read("score=99", metrics='{"score": 0.5, "nested": {"score": 7}}')
    assert isinstance(result, Ran)
    assert result.metrics == {"score": 0.5}


def test_a_crash_is_not_a_score() -> None:
    """A3: it printed 0.99 and exited with 1."""
    result = read("score=0.99", exit=1, stderr="Traceback\nModuleNotFoundError: no module named 'foo'\n")
    assert isinstance(result, Failed)
    assert "exit code 1" in result.reason
    assert "ModuleNotFoundError" in result.reason
    assert result.kind == "build"


def test_a_time_limit_is_not_a_score() -> None:
    result = read("score=0.99", exit=None, limit="wall")
    assert isinstance(result, Failed)
    assert result.kind == "limit"


@pytest.mark.parametrize(
    "said", ["score=0\nerror=constraint violated", "score=0\nvalid=false", 'x\n{"score": 0, "valid": false}']
)
def test_a_soft_failure_is_a_failure(said: str) -> None:
    """A declared error or `valid=false` is believed (report 13)."""
    result = read(said)
    assert isinstance(result, Failed)
    assert result.kind == "evaluation"


def test_an_error_that_is_a_number_is_a_metric() -> None:
    result = read("error=0.25", Objective("error", "min"))
    assert isinstance(result, Ran)


def test_a_flag_never_enters_a_score() -> None:
    """`{"error": 0.0, "timeout": true}`: the metric is missing (report 1)."""
    result = read('{"error": 0.0, "timeout": true}')
    assert isinstance(result, Failed)
    assert "missing" in result.reason


def test_scores_by_task_are_recorded_beside_the_metrics() -> None:
    """`tasks` in a JSON object: each plain finite number under its task; they never pass for a metric."""
    told = read(metrics='{"score": 0.5, "tasks": {"a": 1, "b": 0.25, "c": "x"}}')
    assert isinstance(told, Ran)
    assert told.metrics == {"score": 0.5}
    assert told.tasks == {"a": 1.0, "b": 0.25}
    assert "tasks: 1 of 3 were left out" in told.warnings[0]


@pytest.mark.parametrize(
    "text",
    [
        r'{"score": 1, "tasks": {"\ud800": 1}}',
        r'{"score": 1, "\ud800": 1}',
        r'{"score": 1, "error": "\ud800"}',
        r'{"score": "\ud800"}',
    ],
)
def test_half_a_character_ends_no_study(text: str) -> None:
    """What no file can hold is replaced, in names and in texts, before anything of it is written down."""
    for told in (read(text), read(metrics=text)):
        assert msgspec.json.encode(told)


def test_a_task_is_no_metric() -> None:
    """A metric that only stands among the tasks is missing."""
    assert isinstance(read(metrics='{"tasks": {"score": 1}}'), Failed)


def test_two_different_values_are_a_warning() -> None:
    result = read("score=1\nscore=2\nscore=2\n")
    assert isinstance(result, Ran)
    assert len(result.warnings) == 1


def test_a_missing_metric_says_what_was_there() -> None:
    result = read("loss=0.25\nacc=1")
    assert isinstance(result, Failed)
    assert "'loss', 'acc'" in result.reason


def test_stderr_is_never_read() -> None:
    assert isinstance(read("", stderr="score=0.999999"), Failed)


def test_with_an_evaluator_what_training_prints_does_not_count() -> None:
    """`eval_cmd`'s output alone."""
    train = StepOutcome("train", 0, None, None, 1.0, "score=99", "")
    evaluate = StepOutcome("evaluate", 0, None, None, 1.0, "score=0.5", "")
    result = reader(terms(SCORE))(Outcome((train, evaluate)))
    assert isinstance(result, Ran)
    assert result.metrics == {"score": 0.5}
    assert result.seconds == 2.0
    assert isinstance(
        reader(terms(SCORE))(Outcome((train, StepOutcome("evaluate", 0, None, None, 1.0, "", "")))), Failed
    )


def in_directory(path: str) -> str:
    return f"/home/somebody/.cache/metaloop/slots/0123456789abcdef/3/{path}"


def test_a_candidates_directory_is_not_named() -> None:
    """It says nothing to anybody; nor does half of its path, where what it printed is cut."""
    stderr = "x" * 50 + f"\n{in_directory('a.py')} " + "y" * 1_900 + "\n" + f"Error: {in_directory('src/b.py')}"
    failed = read(stderr=stderr, exit=1)
    assert isinstance(failed, Failed)
    assert failed.reason == "train ended with exit code 1: Error: src/b.py"
    assert "abcdef" not in failed.tail
    assert failed.tail.endswith("y\nError: src/b.py")


@pytest.mark.parametrize("piece", ["/a", "/a ", "/", "(/"])
@pytest.mark.parametrize("exit", [0, 1])
def test_output_without_end_that_looks_like_paths_takes_no_time(piece: str, exit: int) -> None:
    text = piece * (2_000_000 // len(piece))
    start = time.process_time()
    failed = read(text, stderr=text, exit=exit)
    assert isinstance(failed, Failed)
    assert time.process_time() - start < 2


def test_the_implausible_is_quarantined() -> None:
    objective = Objective("score", "max", plausible=(0.0, 1.0))
    assert isinstance(read("score=1.5", objective), Failed)
    assert isinstance(read("score=1.0", objective), Ran)


@given(st.one_of(st.floats(), st.integers(), st.booleans(), st.text(), st.none()))
def test_only_finite_numbers_are_plain(value: object) -> None:
    held = plain(value)
    assert held is None or (type(value) in (int, float) and held == held and abs(held) != float("inf"))


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_two_numbers_that_differ_are_told_apart(a: float, b: float) -> None:
    left, right = digits(a, b)
    assert (left == right) == (a == b)


@given(st.text())
def test_any_output_is_read_without_a_crash(text: str) -> None:
    assert isinstance(read(text), Ran | Failed)
    assert isinstance(read("", metrics=text), Ran | Failed)
