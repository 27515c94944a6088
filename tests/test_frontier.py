"""Which trials may be grown from, which of them are, and what a round of lanes computes about itself."""

import re
import zlib
from collections import Counter
from math import inf, nan, sqrt
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from pydantic import ValidationError

from metaloop.errors import Faults, UsageError
from metaloop.events import Decided, Finished, Measured, Proposed, Refused, RoundOpened, RunsAsked, Started
from metaloop.policies.frontier import (
    FITTING,
    STRATEGIES,
    Argmax,
    Candidate,
    EpsilonGreedy,
    ParetoPerTask,
    Softmax,
    TopK,
    candidate,
    draw,
    frontier,
    parent,
    parse,
    pick,
    ranked,
    weights,
    wins,
)
from metaloop.policies.rounds import (
    Brief,
    Ideated,
    Outcome,
    dedupe,
    goes_on,
    ideate_due,
    ideate_stall,
    lane_gain,
    overlap,
    stall,
)
from metaloop.study import fold
from metaloop.studyfile import from_mapping, schema
from metaloop.terms import Terms
from metaloop.testing import SMALL, Bench, Crash, ScriptedModel, told
from metaloop.values import (
    Choices,
    Constraint,
    Decision,
    Failed,
    Objective,
    Params,
    Proposal,
    Pruned,
    Ran,
    Score,
    Stopped,
)
from metaloop.values import Refused as Refusal
from test_code import BASE, block, ended, lab

FIVE = [Candidate(n, s) for n, s in {9: 0.68, 2: 0.79, 3: 0.82, 5: 0.79, 8: 0.75}.items()]


def first(strategy, candidates=FIVE, direction="max", seeds=4000) -> dict[int, float]:
    """How often each is picked first, over so many seeds."""
    counts = Counter(draw(candidates, strategy, direction, Random(f"{seed}/1"))[0] for seed in range(seeds))
    return {number: count / seeds for number, count in counts.items()}


def agree(found: dict[int, float], expected: dict[int, float], seeds=4000) -> None:
    """Frequencies within four standard deviations of their chances; nothing that has no chance."""
    for number in {*found, *expected}:
        p = expected.get(number, 0.0)
        assert abs(found.get(number, 0.0) - p) <= 4 * sqrt(p * (1 - p) / seeds), (number, found, expected)


# ---- the strategies, on plain values ---------------------------------------------------------------------------------


def test_the_best_alone_is_the_best_in_the_objectives_direction():
    assert draw(FIVE, Argmax(), "max", Random(0), 5) == [3]
    assert draw(FIVE, Argmax(), "min", Random(0), 5) == [9]
    assert weights(FIVE, Argmax(), "max") == {3: 1, 2: 0, 5: 0, 8: 0, 9: 0}


def test_the_k_best_come_best_first_and_ties_by_number():
    """Never more than are wanted, or than there are."""
    assert draw(FIVE, TopK(k=3), "max", Random(0), 9) == [3, 2, 5]
    assert draw(FIVE, TopK(k=2), "min", Random(0), 9) == [9, 8]
    assert draw(FIVE, TopK(k=9), "max", Random(0), 9) == [3, 2, 5, 8, 9]
    assert draw(FIVE, TopK(k=3), "max", Random(0), 1) == [3]


def test_an_epsilon_of_the_picks_is_any_of_them():
    """P(3) = .6 and .1 for each other, by the formula and by count; at 0 it is the best, at 1 they are alike."""
    chances = weights(FIVE, EpsilonGreedy(epsilon=0.5), "max")
    assert chances == pytest.approx({3: 0.6, 2: 0.1, 5: 0.1, 8: 0.1, 9: 0.1})
    agree(first(EpsilonGreedy(epsilon=0.5)), chances)
    assert draw(FIVE, EpsilonGreedy(epsilon=0), "max", Random(0), 9) == [3, 2, 5, 8, 9]
    agree(first(EpsilonGreedy(epsilon=1)), dict.fromkeys([2, 3, 5, 8, 9], 0.2))


def test_softmax_weighs_by_how_far_behind_the_best_a_score_is():
    """At T = .05 the first pick is .416 .228 .228 .103 .025, by the formula and by count; for min the other way."""
    chances = weights(FIVE, Softmax(temperature=0.05), "max")
    assert list(chances) == [3, 2, 5, 8, 9]
    assert list(chances.values()) == pytest.approx([0.416, 0.228, 0.228, 0.103, 0.025], abs=5e-4)
    agree(first(Softmax(temperature=0.05)), chances)
    turned = [Candidate(one.number, 100 - one.score) for one in FIVE]
    assert weights(turned, Softmax(temperature=0.05), "min") == pytest.approx(chances)
    agree(first(Softmax(temperature=0.05), turned, "min"), chances)


def test_softmax_draws_without_replacement():
    """The second pick has the chances that are left after the first; no more than k."""
    chances = weights(FIVE, Softmax(temperature=0.05), "max")
    expected = {n: sum(p * chances[n] / (1 - p) for m, p in chances.items() if m != n) for n in chances}
    drawn = [draw(FIVE, Softmax(temperature=0.05, k=2), "max", Random(seed), 9) for seed in range(4000)]
    assert {len(one) for one in drawn} == {2}
    agree({n: count / 4000 for n, count in Counter(one[1] for one in drawn).items()}, expected)


@pytest.mark.parametrize("temperature", [5e-324, 1e-9, 1e300])
def test_softmax_stands_scores_however_far_apart(temperature: float):
    far = [Candidate(1, -1.7e308), Candidate(2, 1.7e308), Candidate(3, 0.0)]
    assert sorted(draw(far, Softmax(temperature=temperature), "max", Random(0), 3)) == [1, 2, 3]
    assert sum(weights(far, Softmax(temperature=temperature), "min").values()) == pytest.approx(1)


TASKS = {
    3: (0.9, 0.5, 0.8, 0.4),
    5: (0.5, 0.95, 0.6, 0.4),
    2: (0.9, 0.3, 0.8, 0.2),
    8: (0.3, 0.3, 0.95, 0.9),
    9: (0.1, 0.1, 0.1, 0.1),
}


def by_task(rows: dict[int, tuple[float, ...]], *names: str) -> list[Candidate]:
    """The five, with these scores by task."""
    return [replace(one, tasks=dict(zip(names, rows[one.number], strict=True))) for one in FIVE]


def test_those_who_win_tasks_are_drawn_by_how_many():
    """2 wins t1 with 3, and wins nothing else, so it goes; 3 .25, 5 .25, 8 .50, by the formula and by count."""
    four = by_task(TASKS, "t1", "t2", "t3", "t4")
    assert wins(four, ParetoPerTask(), "max") == {3: 1, 5: 1, 8: 2}
    chances = weights(four, ParetoPerTask(), "max")
    assert chances == {3: 0.25, 2: 0, 5: 0.25, 8: 0.5, 9: 0}
    agree(first(ParetoPerTask(), four), chances)
    assert sorted(draw(four, ParetoPerTask(), "max", Random(0), 9)) == [3, 5, 8]
    assert len(draw(four, ParetoPerTask(k=2), "max", Random(0), 9)) == 2


def test_each_task_has_its_own_direction_where_one_is_given():
    """Accuracy up and milliseconds down: 3 and 5. Without it milliseconds are taken for something to be raised."""
    rows = {3: (0.9, 300.0), 5: (0.6, 50.0), 2: (0.6, 400.0), 8: (0.1, 60.0), 9: (0.1, 70.0)}
    two = by_task(rows, "accuracy", "ms")
    assert set(wins(two, ParetoPerTask(directions={"ms": "min"}), "max")) == {3, 5}
    assert set(wins(two, ParetoPerTask(), "max")) == {3, 2}
    assert set(wins(two, ParetoPerTask(directions={"accuracy": "max"}), "min")) == {3, 5}


@pytest.mark.parametrize(
    "candidates",
    [
        FIVE,
        [replace(one, tasks={f"t{one.number}": 0.5}) for one in FIVE],
        by_task(dict.fromkeys(TASKS, (0.0, 0.0)), "a", "b"),
        by_task(dict.fromkeys(TASKS, (nan, inf)), "a", "b"),
    ],
    ids=["none", "disjoint", "zero", "not finite"],
)
def test_where_tasks_tell_nothing_the_best_is_picked(candidates):
    """None are reported, no two share one, or nobody solved any."""
    assert draw(candidates, ParetoPerTask(), "max", Random(0), 9) == [3]
    assert weights(candidates, ParetoPerTask(), "max")[3] == 1


def test_a_task_that_nobody_does_above_the_floor_has_no_winner():
    rows = {3: (0.9, 0.1), 5: (0.5, 0.2), 2: (0.9, 0.1), 8: (0.3, 0.1), 9: (0.1, 0.3)}
    assert set(wins(by_task(rows, "a", "b"), ParetoPerTask(), "max")) == {3, 9}
    assert set(wins(by_task(rows, "a", "b"), ParetoPerTask(task_floor=0.3), "max")) == {3}
    assert set(wins(by_task(rows, "a", "b"), ParetoPerTask(task_floor=0.9), "max")) == set()
    down = ParetoPerTask(task_floor=0.9, directions={"b": "min"})  # where less is better there is no floor
    assert wins(by_task(rows, "a", "b"), down, "max") == {3: 1}


def test_what_is_no_number_wins_nothing():
    rows = {3: (inf,), 5: (0.5,), 2: (nan,), 8: (0.6,), 9: (0.1,)}
    assert wins(by_task(rows, "a"), ParetoPerTask(), "max") == {8: 1}


def test_of_those_that_win_the_same_the_best_stays_then_the_first():
    """2 and 5 tie in their score as well."""
    rows = {3: (0.1,), 5: (0.9,), 2: (0.9,), 8: (0.9,), 9: (0.1,)}
    assert wins(by_task(rows, "a"), ParetoPerTask(), "max") == {2: 1}


scores = st.floats(allow_nan=False, allow_infinity=False)
some = st.lists(st.tuples(scores, st.dictionaries(st.sampled_from("abcd"), st.floats())), max_size=8).map(
    lambda rows: [Candidate(7 * n % 11, score, tasks) for n, (score, tasks) in enumerate(rows)]
)
strategy = st.one_of(
    st.just(Argmax()),
    st.builds(TopK, k=st.integers(1, 9)),
    st.builds(EpsilonGreedy, epsilon=st.floats(0, 1)),
    st.builds(Softmax, temperature=st.floats(0, exclude_min=True, allow_infinity=False), k=st.integers(1, 9)),
    st.builds(
        ParetoPerTask,
        k=st.integers(1, 9),
        task_floor=scores,
        directions=st.dictionaries(st.sampled_from("abcd"), st.sampled_from(["max", "min"])),
    ),
)


@settings(max_examples=300, deadline=None)
@given(some, strategy, st.sampled_from(["max", "min"]), st.integers(0, 99), st.integers(1, 9), st.randoms())
def test_whatever_the_scores_a_pick_is_of_the_frontier_without_repeats_and_the_same_for_a_seed(
    candidates, strategy, direction, seed, width, shuffling
):
    """In whatever order the candidates come, as one of them at least if there is one; chances come to 1."""
    drawn = draw(candidates, strategy, direction, Random(seed), width)
    assert len(set(drawn)) == len(drawn) <= min(width, len(candidates))
    assert set(drawn) <= {one.number for one in candidates}
    assert bool(drawn) == bool(candidates)
    again = candidates[:]
    shuffling.shuffle(again)
    assert draw(again, strategy, direction, Random(seed), width) == drawn
    if candidates:
        chances = weights(candidates, strategy, direction)
        assert sum(chances.values()) == pytest.approx(1)
        assert chances[drawn[0]] > 0
        assert list(chances) == [one.number for one in ranked(candidates, direction)]


# ---- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_is_known_by_its_name_and_its_settings_have_defaults(name: str):
    """The same here and in a study file, which records them all."""
    assert parse(name) == parse({"strategy": name}) == STRATEGIES[name]()
    assert parse(schema.FrontierKeys(strategy=name).settings()) == STRATEGIES[name]()
    assert set(STRATEGIES[name].__struct_fields__) <= FITTING.keys()


def test_settings_are_read_from_a_mapping_nested_or_flat():
    assert parse({"strategy": "top_k", "k": 3}) == TopK(k=3)
    assert parse({"strategy": "softmax", "temperature": 2, "leaves_only": True}) == Softmax(
        temperature=2, leaves_only=True
    )
    expected = ParetoPerTask(directions={"ms": "min"})
    assert parse({"strategy": "pareto_per_task", "directions": {"ms": "min"}}) == expected
    assert parse({"strategy": "pareto_per_task", "directions.ms": "min"}) == expected


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"strategy": "top_k", "k": 0}, "expected k to be a whole number of at least 1; found 0"),
        ({"strategy": "top_k", "k": 2.5}, "found 2.5"),
        ({"strategy": "top_k", "k": 2.0}, "found 2.0"),
        ({"strategy": "softmax", "k": True}, "found True"),
        ({"strategy": "softmax", "temperature": 0}, "expected temperature to be a finite number above 0; found 0"),
        ({"strategy": "softmax", "temperature": -1.0}, "found -1.0"),
        ({"strategy": "softmax", "temperature": nan}, "found nan"),
        ({"strategy": "softmax", "temperature": inf}, "found inf"),
        ({"strategy": "softmax", "temperature": 10**400}, "found 1000"),
        ({"strategy": "epsilon_greedy", "epsilon": 1.01}, "expected epsilon to be a number from 0 to 1; found 1.01"),
        ({"strategy": "epsilon_greedy", "epsilon": -0.1}, "found -0.1"),
        ({"strategy": "epsilon_greedy", "epsilon": nan}, "found nan"),
        ({"strategy": "epsilon_greedy", "epsilon": "0.5"}, "found '0.5'"),
        ({"strategy": "pareto_per_task", "task_floor": nan}, "expected task_floor to be a finite number; found nan"),
        ({"strategy": "pareto_per_task", "directions": {"ms": "down"}}, "expected directions to be max or min"),
        ({"strategy": "argmax", "leaves_only": 1}, "expected leaves_only to be true or false; found 1"),
        ({"strategy": "argmax", "k": 3}, r"expected settings of argmax \(leaves_only\); found 'k'"),
        ({"strategy": "topk"}, "expected a strategy, one of argmax, top_k, .*; found 'topk'"),
        ({"k": 3}, "found nothing"),
        ("best", "found 'best'"),
    ],
)
def test_settings_that_do_not_fit_are_refused_in_one_line(raw, said: str):
    with pytest.raises(UsageError, match=said) as caught:
        parse(raw)
    assert "\n" not in str(caught.value)


value = st.one_of(
    st.booleans(), st.integers(-3, 9), st.floats(-2, 2), st.sampled_from([nan, inf, "3"]), st.just({"ms": "min"})
)


@settings(max_examples=400, deadline=None)
@given(
    st.fixed_dictionaries(
        {"strategy": st.sampled_from([*STRATEGIES, "other"])},
        optional=dict.fromkeys(FITTING, value),
    )
)
def test_a_study_file_takes_what_a_strategy_takes(raw):
    """What is right and wrong is known in two places, for a study file knows no policy; they agree."""
    try:
        strategy = parse(raw)
    except UsageError:
        with pytest.raises(ValidationError):
            schema.PolicyKeys.model_validate({"type": "llm_diff", "frontier": raw})
        return
    keys = schema.PolicyKeys.model_validate({"type": "llm_diff", "frontier": raw}).frontier
    assert parse(keys.settings()) == strategy


# ---- the frontier of a study -----------------------------------------------------------------------------------------


class Tree(Bench):
    """A study that is told trial by trial what came of each, and what was decided."""

    def __init__(self, direction="max", baseline: float | None = 0.5, **terms) -> None:
        super().__init__(SMALL | {"n": Choices(tuple(range(99)))}, direction=direction, baseline=None)
        self.study.terms = replace(self.study.the_terms, **terms)
        if baseline is not None:
            self.trial(None, baseline, role="baseline")

    def trial(self, parent, result, kept=True, role="search", tasks=None, others=None, provisional=False) -> int:
        """One that is settled. `result`: its score, what became of it, or None: it still runs."""
        view = self.open(role)
        number = self.study.number(role)
        proposal = Proposal(Params({"n": number}), "hand", parent=parent)
        if isinstance(result, Refusal):
            self.record(Refused(view.round, number, proposal, result))
        else:
            self.record(Proposed(view.round, number, proposal), RunsAsked(view.round, number, (0,)))
            self.record(Started(number, 0, 1, 0, "h"))
        if result is None:
            return number
        score = None
        if not isinstance(result, (Failed, Pruned, Stopped, Refusal)):
            score = Score(result, others=others or {})
            result = Ran({"value": result}, 1.0, tasks=tasks)
        if not isinstance(result, Refusal):
            self.record(Finished(number, 0, 1, result, 0))
        self.record(Measured(view.round, (score,)))
        stays = (number,) if kept and score is not None else ()
        looking = stays if provisional else ()
        crowned = number if role == "baseline" else self.study.tally.incumbent
        self.record(Decided(view.round, Decision(stays, crowned, "", provisional=looking)))
        return number

    def numbers(self, **how) -> list[int]:
        return [trial.number for trial in frontier(self.open(), **how)]


def test_the_frontier_is_what_was_kept_with_the_root_and_interior_nodes():
    """Nothing that was discarded, failed, refused, pruned, stopped, or still runs."""
    tree = Tree()
    one = tree.trial(0, 0.6)
    two = tree.trial(one, 0.7)
    tree.trial(one, 0.2, kept=False)
    for result in (Failed("build", "no"), Failed("lost", "gone"), Pruned("slow"), Stopped("person", "enough")):
        tree.trial(one, result)
    tree.trial(one, Refusal("no_match", "no"))
    tree.trial(one, None)
    assert tree.numbers() == [0, one, two]
    assert [trial.number for trial in pick(tree.open(), TopK(k=9), Random(0), 9)] == [two, one, 0]


def test_leaves_are_those_without_a_kept_child():
    """One that runs, failed, was lost or was not better hides nobody."""
    tree = Tree()
    one = tree.trial(0, 0.6)
    two = tree.trial(0, 0.7)
    for result in (None, Failed("evaluation", "no"), Failed("lost", "gone"), Pruned("slow"), Refusal("no", "no")):
        tree.trial(two, result)
    tree.trial(two, 0.1, kept=False)
    three = tree.trial(one, 0.8)
    assert tree.numbers(leaves_only=True) == [two, three]
    assert [trial.number for trial in pick(tree.open(), TopK(leaves_only=True), Random(0), 9)] == [three, two]
    assert pick(tree.open(), Argmax(), Random(0), among=[tree.study.trials[one]])[0].number == one


def test_a_study_without_anything_kept_has_no_parent():
    tree = Tree(baseline=None)
    tree.trial(None, 0.6, kept=False)
    assert tree.numbers() == tree.numbers(leaves_only=True) == []
    assert [parent(tree.open(), kind()) for kind in STRATEGIES.values()] == [None] * 5


def test_the_direction_is_the_objectives():
    tree = Tree("min", 9.0)
    tree.trial(0, 3.0), tree.trial(0, 4.0)
    assert [trial.number for trial in pick(tree.open(), TopK(), Random(0), 5)] == [1, 2, 0]


def test_what_breaks_a_bound_is_grown_from_only_while_nothing_holds_it():
    tree = Tree(constraints=(Constraint("ms", "min", 5.0),), baseline=None)
    tree.trial(None, 0.9, role="baseline", others={"ms": 8.0})
    tree.trial(0, 0.95, others={"ms": 7.0})
    assert tree.numbers() == [0, 1]
    tree.trial(1, 0.6, others={"ms": 5.0})
    assert tree.numbers() == [2]


def test_scores_by_task_are_those_of_the_first_run():
    tree = Tree()
    tree.trial(0, 0.6, tasks={"a": 1.0, "b": 0.0})
    tree.trial(0, 0.7, tasks={"a": 0.0, "b": 1.0})
    tree.trial(0, 0.8, tasks={"a": 0.5, "b": 0.5})
    assert candidate(tree.study.trials[1]) == Candidate(1, 0.6, {"a": 1.0, "b": 0.0})
    assert candidate(tree.study.trials[0]) == Candidate(0, 0.5)
    view = tree.open()
    assert {trial.number for trial in pick(view, ParetoPerTask(), view.rng("x"), 5)} == {1, 2}


def test_a_round_sees_what_was_kept_when_it_began():
    """What is overtaken, or kept, later is not in its past; a study that is folded again says the same."""
    tree = Tree()
    tree.trial(0, 0.6, provisional=True)
    early = tree.open()
    tree.trial(0, 0.9)
    other = tree.open()
    tree.record(Decided(other.round, Decision((), 2, "", left=(1,))))
    assert not tree.study.trials[1].kept
    assert [trial.number for trial in frontier(early)] == [0, 1]
    assert tree.numbers() == [0, 2]
    again = fold(tree.entries)
    assert [trial.number for trial in frontier(again.view(again.open[early.round]))] == [0, 1]


def test_what_its_proof_did_not_bear_out_is_kept_no_longer():
    """By rounds that begin after it."""
    tree = Tree()
    tree.trial(0, 0.6, provisional=True)
    early = tree.open()
    number = tree.study.rounds + 1
    tree.record(RoundOpened(number, "proof", tree.study.place, 1), Measured(number, (Score(0.4),)))
    tree.record(Decided(number, Decision((), 0, "")))
    assert tree.numbers() == [0]
    assert [trial.number for trial in frontier(early)] == [0, 1]


def test_a_round_throws_its_own_dice_and_always_the_same():
    """Over rounds each of the frontier is met; the same view says the same."""
    tree = Tree()
    tree.trial(0, 0.6), tree.trial(0, 0.7)
    views = [tree.open() for _ in range(40)]
    picked = [parent(view, EpsilonGreedy(epsilon=1)).number for view in views]
    assert set(picked) == {0, 1, 2}
    again = fold(tree.entries)
    assert [parent(again.view(again.open[v.round]), EpsilonGreedy(epsilon=1)).number for v in views] == picked


def test_rounds_of_one_proposal_take_turns_at_the_k_best():
    tree = Tree()
    tree.trial(0, 0.6), tree.trial(0, 0.7)
    picked = [parent(tree.open(), TopK(k=2)).number for _ in range(4)]
    assert picked in ([1, 2, 1, 2], [2, 1, 2, 1])


# ---- a round of lanes ------------------------------------------------------------------------------------------------


def lanes(*values: float | None) -> list[list[Outcome]]:
    return [[Outcome(value)] for value in values]


def test_a_stall_ends_only_with_a_valid_trial_that_beats_the_best_before():
    """A tie is none, and what an audit found invalid is none either; at the limit the rounds end."""
    told = [stall(0, 0.50, lanes(0.52), "max")]
    told.append(stall(told[-1], 0.52, lanes(0.51), "max"))
    told.append(stall(told[-1], 0.52, lanes(0.52), "max"))
    told.append(stall(told[-1], 0.52, [[Outcome(0.60, valid=False)]], "max"))
    assert told == [0, 1, 2, 3]
    assert [goes_on(count, 3) for count in told] == [True, True, True, False]


def test_a_stall_is_counted_the_same_where_less_is_better():
    told = [stall(4, 100, lanes(98, 97), "min")]
    told.append(stall(told[-1], 97, lanes(97.5), "min"))
    told.append(stall(told[-1], 97, lanes(None), "min"))
    assert told == [0, 1, 2]


def test_anything_is_progress_where_there_was_nothing():
    assert stall(2, None, lanes(0.1), "max") == 0
    assert stall(2, None, lanes(None, nan), "max") == 3
    assert stall(2, None, [], "max") == 3
    assert stall(2, 0.5, lanes(nan, 0.6), "max") == 0


def test_a_lanes_gain_is_its_best_valid_trial():
    """A valid .80, then an invalid .85 over it."""
    lane = [Outcome(0.70), Outcome(0.80), Outcome(0.85, valid=False)]
    assert lane_gain(lane, "max") == 0.80
    assert lane_gain(lane, "min") == 0.70
    assert lane_gain([Outcome(0.85, valid=False), Outcome(None)], "max") is None
    assert stall(1, 0.70, [lane], "max") == 0


def test_ideas_are_due_once_a_stall_and_every_so_many_kept_trials():
    said, before = [], Ideated()
    for count, kept in ((0, 3), (2, 5), (3, 6), (3, 6)):
        why, before = ideate_due(count, kept, before, at_stall=3, every=5)
        said.append(why)
    assert said == ["", "periodic", "stall", ""]


def test_another_stall_has_ideas_of_its_own():
    """It went back to 0 in between. 0 kept trials: never for those."""
    said, before = [], Ideated()
    for count in (2, 3, 4, 0, 1, 2, 3, 4):
        why, before = ideate_due(count, 50 if count else 0, before, at_stall=3, every=0)
        said.append(why)
    assert said == ["", "stall", "", "", "", "", "stall", ""]


def test_the_stall_that_asks_for_ideas_is_short_of_the_limit():
    assert [ideate_stall(3, limit) for limit in (1, 2, 3, 4, 5)] == [1, 1, 2, 3, 3]


def test_briefs_that_say_the_same_go():
    """On one parent, those with most pointers in common; and the very same."""
    briefs = [
        Brief("a", 1, pointers=(1, 2, 3)),
        Brief("b", 1, pointers=(1, 2, 9, 8)),
        Brief("c", 2, pointers=(1, 2, 3)),
        Brief("d", 1, pointers=(3, 7)),
        Brief("e", 1),
        Brief("e", 1),
    ]
    stay, said = dedupe(briefs)
    assert [brief.objective for brief in stay] == ["a", "c", "d", "e"]
    assert [line.split(":")[0] for line in said] == ["brief 2 is left out", "brief 6 is left out"]
    assert "from trial 1 on" in said[0]
    assert dedupe([Brief("e", 1), Brief("f", 1)]) == ([Brief("e", 1), Brief("f", 1)], [])


def test_an_overlap_is_of_the_shorter_list():
    """Exactly .6 is enough; a pointer that is said twice is one."""
    assert overlap((1, 2, 3), (1, 2, 9, 8)) == pytest.approx(2 / 3)
    assert overlap((1, 1, 1, 2), (1, 3)) == 0.5
    assert overlap((), (1,)) == overlap((), ()) == 0
    five = Brief("a", 1, pointers=(1, 2, 3, 4, 5))
    assert len(dedupe([five, Brief("b", 1, pointers=(1, 2, 3, 8, 9))])[0]) == 1
    assert len(dedupe([five, Brief("b", 1, pointers=(1, 2, 7, 8, 9))])[0]) == 2


# ---- edits grow from what was picked ---------------------------------------------------------------------------------


def growing(asked: list[str]):
    """A model that raises or lowers LR of whatever it is shown, by what it is shown: the same text, the same edit."""

    def script(prompt):
        text = prompt.messages[1].text
        asked.append(text)
        now = re.search(r"LR = (\S+)", text)[1]
        step = zlib.crc32(text.encode()) % 900 / 1000 - 0.3
        return "WHY: on\n\n" + block(f"LR = {now}", f"LR = {round(float(now) + step, 4)}")

    return script


UNIFORM = {"strategy": "epsilon_greedy", "epsilon": 1.0}


def test_edits_grow_from_what_the_strategy_picks():
    """The prompt shows that trial's code and says which it is, and the change is put on it, whatever leads."""
    asked: list[str] = []
    study = ended(lab({}, 12, "llm_diff", ScriptedModel(growing(asked)), frontier=UNIFORM))
    parents = [study.trials[number].proposal.parent for number in range(1, 13)]
    assert len(set(parents)) >= 3, parents
    others = 0
    for number, text in enumerate(asked, 1):
        shown = int(re.search(r"as trial (\d+) has them", text)[1])
        assert shown == parents[number - 1]
        assert study.trials[shown].kept
        best = int(re.search(r"The best so far is trial (\d+)", text)[1])
        others += shown != best
        assert ("That is not the best trial so far" in text) == (shown != best)
        code = {**BASE, **study.overlay(study.trials[shown].change)}["src/train.py"]
        assert code in text
        lines = study.changed_code(study.trials[number].change, study.trials[shown].change)
        assert lines == ("src/train.py +1 -1",)
    assert others >= 3


def test_a_reply_that_was_waited_for_stays_on_what_was_picked():
    """Another trial led by then; without a strategy it would be put on that one."""
    edits = iter([block("LR = 0.1", "LR = 0.2"), block("STEPS = 1", "STEPS = 2")])
    model = ScriptedModel(lambda _: f"WHY: on\n{next(edits)}", seconds=0.05)
    study = ended(lab({}, 2, "llm_diff", model, frontier={"strategy": "argmax"}))
    assert study.trials[1].crowned
    assert study.trials[2].proposal.parent == 0
    assert study.overlay(study.trials[2].change) == {"src/train.py": "LR = 0.1\nSTEPS = 2\n"}


def test_the_best_alone_is_what_edits_grow_from_anyway():
    """The same asks, to the letter, with no strategy and with `argmax`."""
    texts: list[list[str]] = []
    for terms in ({}, {"frontier": {"strategy": "argmax"}}):
        texts.append(asked := [])
        ended(lab({}, 5, "llm_diff", ScriptedModel(growing(asked)), order="strict", window=1, **terms))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("crash", range(4, 44, 5))
def test_a_study_that_dies_picks_the_same_again(crash: int):
    """Wherever it dies, the same is asked, picked and proposed."""
    whole, broken = (
        lab({}, 6, "llm_diff", ScriptedModel(growing([])), frontier=UNIFORM, order="strict", window=1) for _ in "ab"
    )
    ended(whole)
    with pytest.raises(Crash):
        broken.session(crash)
    ended(broken)
    assert told(broken.entries) == told(whole.entries)


def test_terms_of_earlier_studies_have_no_strategy():
    """Growing from the best is what they did."""
    assert Terms("t", Objective("m", "max"), ("x",), "llm_diff", {}).frontier == {}


# ---- in a study file -------------------------------------------------------------------------------------------------


def told_terms(tmp_path, frontier, policy="llm_diff", **more):
    (tmp_path / "train.py").write_text("LR = 1\n")
    return from_mapping(
        {
            "objective": {"metric": "score", "direction": "max"},
            "target": {"train_cmd": ["python", "train.py"]},
            "policy": {"type": policy, "mutable": ["train.py"], "frontier": frontier, **more},
            "models": {"proposer": {"model": "m"}},
        },
        name="t",
        base=tmp_path,
    )


def test_a_study_file_names_a_strategy_and_the_terms_have_all_its_settings(tmp_path):
    """The bare name and the defaults written out are the same study."""
    expected = {"strategy": "top_k", "k": 5, "leaves_only": False}
    for written in ("top_k", {"strategy": "top_k"}, {"strategy": "top_k", "k": 5}):
        assert told_terms(tmp_path, written).terms.frontier == expected
    hybrid = told_terms(tmp_path, "softmax", "hybrid", params={"x": [1, 2]})
    assert parse(hybrid.terms.frontier) == Softmax()
    leaves = told_terms(tmp_path, {"strategy": "argmax", "leaves_only": True}).terms.frontier
    assert parse(leaves) == Argmax(leaves_only=True)
    ways = told_terms(tmp_path, {"strategy": "pareto_per_task", "directions": {"ms": "lower"}}).terms.frontier
    assert parse(ways) == ParetoPerTask(directions={"ms": "min"})


def test_a_strategy_that_nobody_asks_changes_no_terms_and_is_said(tmp_path):
    file = told_terms(tmp_path, "top_k", "random", params={"x": [1, 2]})
    assert file.terms.frontier == {}
    assert "policy.frontier changes nothing with policy.type: random" in file.notes


@pytest.mark.parametrize(
    ("frontier", "said"),
    [
        ("topk", "policy.frontier: expected 'argmax', .*; found the text 'topk'; did you mean top_k?"),
        ({"strategy": "top_k", "k": 0}, "policy.frontier.k: expected a number of at least 1; found the number 0"),
        ({"strategy": "top_k", "k": 2.5}, "policy.frontier.k: expected a whole number; found the number 2.5"),
        ({"strategy": "softmax", "temperature": 0}, "policy.frontier.temperature: expected a number above 0"),
        ({"strategy": "epsilon_greedy", "epsilon": 2}, "policy.frontier.epsilon: expected a number of at most 1"),
        ({"strategy": "epsilon_greedy", "epsilon": nan}, "policy.frontier.epsilon: expected a finite number"),
        ({"strategy": "pareto_per_task", "task_floor": nan}, "policy.frontier.task_floor: expected a finite number"),
        ({"strategy": "argmax", "k": 3}, r"expected settings of argmax \(leaves_only\); found k; remove it"),
        ({"k": 3}, "policy.frontier.strategy: expected this key, found nothing; add strategy: NAME, one of argmax"),
        ({"strategy": "top_k", "kk": 3}, "policy.frontier.kk: unknown key; did you mean k?"),
        (3, "policy.frontier: expected 'argmax', .*; found the number 3"),
        (["top_k"], "policy.frontier: expected 'argmax', .*; found a list of 1"),
    ],
)
def test_a_study_file_with_a_setting_that_does_not_fit_is_refused(tmp_path, frontier, said: str):
    with pytest.raises(Faults, match=said) as caught:
        told_terms(tmp_path, frontier)
    assert len(caught.value.faults) == 1
