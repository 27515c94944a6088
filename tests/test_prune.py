"""What a trial reports on its way, and who is ended early."""

import json
import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaloop.evaluators.prune import (
    LINE,
    MOST,
    Progress,
    Report,
    forecast_rule,
    halving,
    median_rule,
    read_progress,
)
from metaloop.values import Objective

ERROR, SCORE = Objective("error", "min"), Objective("score", "max")
GOOD = '{"step": 3, "score": 0.5}'


def read(text: str, before: Progress | None = None) -> tuple[tuple[Report, ...], int]:
    """The reports in a file that is complete, and how many lines were ignored."""
    progress = read_progress(text, "score", before)
    assert progress.rest == ""
    return progress.reports, progress.ignored


def curve(*values: float, first: int = 1, gap: int = 1) -> list[Report]:
    return [(first + gap * i, value) for i, value in enumerate(values)]


# ---- what is reported ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [GOOD, '{"step":3,"metrics":{"score":5e-1,"loss":"bad"}}', '{"score": 0.5, "step": 3, "note": "x"}\r',
     ' {"step": 3, "score": 9, "metrics": {"score": 0.5}} '],
)  # fmt: skip
def test_a_report_is_one_json_object_a_line(line):
    """The value beside the step, or among its metrics, which come first."""
    assert read(line + "\n") == (((3, 0.5),), 0)
    assert read(line) == (((3, 0.5),), 0)


@pytest.mark.parametrize(
    "line",
    ["[1]", '{"metrics":{"score":"bad"}}', '{"step": 3, "metrics":{"score":"bad"}, "score": 1}', '{"step": 3, "sco',
     '{"step": 3}', '{"step": 3, "loss": 1}', '{"score": 1}', '{"step": 3, "score": NaN}', '{"step": 3, "score": true}',
     '{"step": 3, "score": 1e999}', '{"step": 3, "score": null}', '{"step": true, "score": 1}',
     '{"step": 3.5, "score": 1}', '{"step": -1, "score": 1}', '{"step": "3", "score": 1}',
     '{"step": 99999999999999999999, "score": 1}', '{"step": 3, "score": 9' + "9" * 400 + "}", "nonsense", "3", "null",
     "[" * 9_000, '{"step": 3, "score": 0.5, "note": "' + "x" * LINE + '"}', GOOD + " " * LINE + "x",
     "\ud800", "\x00",
     '{"step": 1' + "0" * 6000 + ', "score": 1}'],
)  # fmt: skip
def test_what_is_no_report_is_counted_and_ignored(line):
    """A10: never a crash, never a number that was not there, and what stands around it is read."""
    assert read(line) == ((), 1)
    around = read(f'{{"step": 1, "score": 1}}\n{line}\n\n{{"step": 5, "score": 2}}\n')
    assert around == (((1, 1.0), (5, 2.0)), 1)


def test_ten_megabytes_without_an_end_are_one_ignored_line():
    """A10: and no more of them is kept than a line may have."""
    waiting = read_progress("x" * (10 << 20), "score", over=False)
    assert len(waiting.rest) == LINE + 1
    for _ in range(3):
        waiting = read_progress("y" * (1 << 20), "score", waiting, over=False)
    assert len(waiting.rest) == LINE + 1
    assert read("\n" + GOOD, waiting) == (((3, 0.5),), 1)
    assert read("", waiting) == ((), 1)


def test_a_step_that_does_not_go_on_is_ignored():
    """Twice the same step, or an earlier one: the first stands."""
    text = "".join(f'{{"step": {step}, "score": {-n}}}\n' for n, step in enumerate([1, 3, 3, 2, 4]))
    assert read(text) == (((1, 0.0), (3, -1.0), (4, -4.0)), 2)


_lines = st.one_of(
    st.builds(lambda step, value: json.dumps({"step": step, "score": value}), st.integers(0, 9), st.floats()),
    st.sampled_from(["", "  ", "[1]", "{", '{"step": 5, "metrics": {"score": 2}}', "x" * (LINE + 5)]),
    st.text(max_size=8),
)


@given(st.lists(_lines, max_size=12), st.sampled_from(["\n", ""]), st.lists(st.integers(0, 30_000), max_size=6))
@settings(deadline=None)
def test_where_the_file_is_cut_does_not_matter(lines, end, cuts):
    """Read in parts as it grows, or at once: the same reports, the same count."""
    text = "\n".join(lines) + end
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    so_far = Progress()
    for start, stop in pairwise(places):
        so_far = read_progress(text[start:stop], "score", so_far, over=False)
    assert read_progress("", "score", so_far) == read_progress(text, "score")


@pytest.mark.parametrize("count", [MOST, MOST + 1, 2 * MOST, 2 * MOST + 2, 100_000])
def test_reports_are_bounded_and_cover_the_whole_way(count):
    """However many there are: at most `MOST` and the newest, evenly over all steps."""
    text = "".join(f'{{"step": {step}, "score": {step}}}\n' for step in range(count))
    reports, ignored = read(text)
    assert ignored == 0
    assert MOST // 2 <= len(reports) <= MOST + 1
    assert (reports[0], reports[-1]) == ((0, 0.0), (count - 1, count - 1.0))
    gaps = {b[0] - a[0] for a, b in pairwise(reports[:-1])}
    assert len(gaps) == 1
    assert reports[-1][0] - reports[-2][0] <= gaps.pop() <= max(1, 2 * count // MOST)


# ---- the rules -------------------------------------------------------------------------------------------------------

OTHERS = [curve(*(rate * x for x in range(1, 10))) for rate in (1, 2, 3, 4, 5)]


def test_who_is_worse_than_the_median_ends():
    """Of the best so far at this very step; at the median one goes on, and so does who was better once."""
    assert median_rule(curve(1, 2, 8), OTHERS, SCORE) != ""
    assert median_rule(curve(1, 2, 9), OTHERS, SCORE) == ""
    assert median_rule(curve(10, 0, 0), OTHERS, SCORE) == ""
    assert median_rule(curve(10, 9.5, 9.1), OTHERS, ERROR) != ""
    why = median_rule(curve(1, 2, 8), OTHERS, SCORE)
    assert why == "8 at step 3 is worse than 9, the median of the 5 trials that came this far"


def test_the_median_is_silent_where_little_is_known():
    """No reports, too early, too few others that came this far, and the end of a full trial."""
    assert median_rule([], OTHERS, SCORE) == ""
    assert median_rule(curve(0, 0), OTHERS, SCORE, warmup=3) == ""
    assert median_rule(curve(0, 0, 0), OTHERS, SCORE, warmup=3) != ""
    assert median_rule(curve(0, 0), OTHERS[1:], SCORE) == ""
    assert median_rule(curve(0, 0), [*OTHERS[1:], curve(9)], SCORE) == ""
    assert median_rule(curve(*[0] * 9), OTHERS, SCORE) == ""
    assert median_rule(curve(0, 0), [[], *OTHERS], SCORE) != ""


def test_halving_lets_one_of_three_go_on():
    """At steps 1, 3, 9: with 5 others, the best two of six."""
    assert halving(curve(4), OTHERS, SCORE) == ""
    assert halving(curve(3.9), OTHERS, SCORE) == "3.9 at step 1 is place 3 of 6: only the best 2 go on"
    assert halving(curve(9, 0), OTHERS, SCORE) == ""
    assert halving(curve(5, 5), OTHERS, SCORE) == ""
    assert halving(curve(5, 5, 5), OTHERS, SCORE) == "5 at step 3 is place 5 of 6: only the best 2 go on"
    assert halving(curve(9, 0, 0, 0), OTHERS, SCORE) != ""
    assert halving(curve(1.5), OTHERS, ERROR) == ""
    assert halving(curve(2.5), OTHERS, ERROR) != ""


def test_halving_is_silent_where_little_is_known():
    """Before the first rung, with fewer than three at it, and at the end of a full trial."""
    assert halving([], OTHERS, SCORE) == ""
    assert halving(curve(0, 0), OTHERS, SCORE, first=3) == ""
    assert halving(curve(0, 0, 0), OTHERS, SCORE, first=3) != ""
    assert halving(curve(0), OTHERS[:1], SCORE) == ""
    assert halving(curve(0), OTHERS[:2], SCORE) != ""
    assert halving(curve(*[0] * 9), OTHERS, SCORE) == ""


def test_a_curve_that_levels_off_too_low_ends():
    """1 - x^-0.5 comes to 0.9 by step 100, whatever the unit of a step, and in either direction."""
    for gap in (1, 50):
        mine = [(step * gap, 1 - step**-0.5) for step in range(1, 11)]
        assert forecast_rule(mine, 100 * gap, 0.89, SCORE) == ""
        assert forecast_rule(mine, 100 * gap, 0.91, SCORE) != ""
    mine = [(step, 1 - step**-0.5) for step in range(1, 11)]
    dipped = [*mine, (11, 0.0), (12, 0.1)]
    assert forecast_rule(dipped, 100, 0.86, SCORE, doubt=0) == ""  # its best so far promises 0.864
    assert forecast_rule(dipped, 100, 0.87, SCORE, doubt=0) != ""
    errors = [(step, step**-0.5) for step in range(1, 11)]
    assert forecast_rule(errors, 100, 0.11, ERROR) == ""
    why = forecast_rule(errors, 100, 0.09, ERROR)
    assert why == "the curve levels off: 0.09999 at best by step 100, and the incumbent has 0.09"


def test_a_forecast_is_silent_where_little_is_known():
    """Few reports, a straight or rising slope, no movement, the end, or a past that the law misses by much."""
    mine = [(step, 1 - step**-0.5) for step in range(1, 11)]
    assert forecast_rule(mine[:7], 100, 5.0, SCORE) == ""
    assert forecast_rule(mine[:4], 100, 5.0, SCORE, least=1) == ""
    assert forecast_rule(mine[:1], 100, 5.0, SCORE, least=1) == ""
    assert forecast_rule(mine, 10, 5.0, SCORE) == ""
    assert forecast_rule(curve(*range(20)), 100, 1e9, SCORE) == ""
    assert forecast_rule(curve(*(x * x for x in range(20))), 100, 1e9, SCORE) == ""
    assert forecast_rule(curve(*[0.1] * 20), 100, 1.0, SCORE) == ""
    dice = Random(3)
    rough = [(step, 1 - step**-0.5 + dice.gauss(0, 0.1)) for step in range(1, 21)]
    assert forecast_rule(rough, 40, 1.05, SCORE, doubt=0) != ""
    assert forecast_rule(rough, 40, 1.05, SCORE, doubt=5) == ""


def test_who_has_what_the_incumbent_has_goes_on():
    """Whatever the law says: it lies below the last jump."""
    mine = [(step, 1 - 1 / step) for step in range(1, 20)] + [(20, 1.15)]
    assert forecast_rule(mine, 40, 1.16, SCORE, doubt=0) != ""
    assert forecast_rule(mine, 40, 1.14, SCORE, doubt=0) == ""


_curves = st.lists(st.integers(-20, 20), min_size=1, max_size=15).map(lambda values: curve(*values))


@given(_curves, st.lists(_curves, max_size=8), st.integers(-20, 20))
@settings(deadline=None)
def test_less_is_to_min_what_more_is_to_max(mine, others, target):
    """All rules, mirrored: the same trials end."""

    def turned(reports: list[Report]) -> list[Report]:
        return [(step, -value) for step, value in reports]

    for rule in (median_rule, halving):
        assert bool(rule(mine, others, SCORE)) == bool(rule(turned(mine), [turned(o) for o in others], ERROR))
    assert bool(forecast_rule(mine, 30, target, SCORE)) == bool(forecast_rule(turned(mine), 30, -target, ERROR))


@given(_curves, st.lists(_curves, min_size=1, max_size=8))
def test_the_best_at_every_step_is_never_ended(mine, others):
    """Whoever leads goes on."""
    leader = [(step, max(value, 21)) for step, value in mine]
    assert median_rule(leader, others, SCORE) == ""
    assert halving(leader, others, SCORE) == ""
    assert forecast_rule(leader, 30, 20.0, SCORE) == ""


@pytest.mark.parametrize(("rule", "least"), [("median", 0.5), ("halving", 0.5), ("forecast", 0.3)])
def test_a_study_with_pruning_comes_near_the_best_for_less(rule, least):
    """60 learning curves a + b * x^-c with noise, ten times: so much is saved, and 0.01 of error is lost at most."""
    saved = []
    for seed in range(10):
        share, lost = pruned_study(rule, Random(seed))
        saved.append(share)
        assert lost <= 0.01, seed
    assert sum(saved) / len(saved) > least


def pruned_study(rule: str, dice: Random) -> tuple[float, float]:
    """The share of steps that was saved, and how much worse the best is that came to its end."""
    shapes = [(dice.uniform(0, 0.5), dice.uniform(0.2, 1), dice.uniform(0.3, 1.5)) for _ in range(60)]
    curves = [curve(*(a + b * x**-c + dice.gauss(0, 0.002) for x in range(1, 28))) for a, b, c in shapes]
    past: list[list[Report]] = []
    target = math.inf
    for one in curves:
        mine = next((one[:step] for step in range(1, 27) if ended(rule, one[:step], past, target)), one)
        past.append(mine)
        target = min(target, mine[-1][1]) if len(mine) == 27 else target
    return 1 - sum(map(len, past)) / (60 * 27), target - min(one[-1][1] for one in curves)


def ended(rule: str, mine: list[Report], past: list[list[Report]], target: float) -> str:
    match rule:
        case "median":
            return median_rule(mine, past, ERROR)
        case "halving":
            return halving(mine, past, ERROR)
        case _:
            return forecast_rule(mine, 27, target, ERROR) if past else ""
