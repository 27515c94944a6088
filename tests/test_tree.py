"""The tree of a code study: kept is what beats the trial that it grew from, crowned what also beats the best."""

import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaloop.audit import audit
from metaloop.evaluators.judge import blind, confirming, decide, measuring
from metaloop.evaluators.metric import reader
from metaloop.flow import Flow, conclude
from metaloop.policies.code import proposed
from metaloop.policies.frontier import EpsilonGreedy, frontier, parent
from metaloop.policies.opening import opening
from metaloop.roles import Thought
from metaloop.study import Study, View, fold
from metaloop.terms import Baseline, Bounds, Terms
from metaloop.testing import Lab, Machine, told
from metaloop.values import Objective, Proposal

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
ROOT = {"src/a.txt": "0 1.0"}


def grown(steps: Sequence[tuple[int, float]], noise: float = 0.0, lanes: int = 1, **terms: object) -> Lab:
    """A study whose n-th trial grows from the given trial and is worth the given value, beside noise of that width."""

    def function(files: dict[str, str], _: object, seed: int) -> str:
        order, worth = {**ROOT, **files}["src/a.txt"].split()
        return f"score={float(worth) + noise * Random(f'{order}/{seed}').gauss(0, 1)!r}"

    def grow(view: View) -> Flow[Sequence[Proposal]]:
        number, worth = steps[view.index]
        text = f"{view.index + 1} {worth!r}"
        return conclude([proposed(view, {"src/a.txt": text}, "test", "", view.trial(number).change, number, {})])

    given = {"rule": "strict", "baseline": Baseline(repeats=3 if noise else 1), "mutable": ("src/**",)} | terms
    made = Terms("t", Objective("score", "max"), ("train",), "patches", {}, **given)
    thought = Thought(opening(grow), measuring(made), confirming(made), decide, reader(made), notice=blind)
    bounds = Bounds(len(steps), no_improve_limit=0, failure_rate_limit=1.0, lanes=lanes)
    return Lab(made, thought, Machine(lambda *_: "", runs=function), bounds, files=ROOT)


def ended(lab: Lab) -> Study:
    lab.session()
    assert not list(audit(lab.entries, lambda _: lab.thought))
    return fold(lab.entries)


def verdicts(study: Study) -> list[str]:
    return [trial.verdict for trial in study.trials.values() if trial.number]


def test_a_keep_beats_its_parent_and_a_crown_the_best_as_well() -> None:
    """1 takes the crown; 2 and 3 grow from the root and beat it, and 4 from 3, until 5 passes the best."""
    study = ended(grown([(0, 5.0), (0, 2.0), (0, 1.0), (2, 3.0), (4, 6.0), (4, 2.5)]))
    assert verdicts(study) == ["crowned", "kept", "discarded", "kept", "crowned", "discarded"]
    assert study.tally.incumbent == 5
    assert study.trials[2].why == "2 beats 1 (trial 0); 2 does not beat 5 (trial 1)"
    assert study.trials[3].why == "1 ties with trial 0: a tie is not progress"
    assert study.trials[6].why == "2.5 does not beat 3 (trial 4)"
    assert study.tally.since_best == 1
    assert study.tally.keeps == 4


def test_only_what_was_kept_is_grown_from() -> None:
    """The frontier has interior nodes and side branches, and nothing that lost to its parent."""
    lab = grown([(0, 5.0), (0, 2.0), (1, 4.0), (2, 3.0), (0, 1.5)])
    seen: list[list[int]] = []
    inner = lab.thought.propose

    def propose(view: View) -> Flow[Sequence[Proposal]]:
        seen.append([trial.number for trial in frontier(view)])
        return inner(view)

    lab.thought = Thought(propose, lab.thought.measure, lab.thought.confirm, decide, lab.thought.read)
    lab.session()
    assert max(seen, key=len) == [0, 1, 2, 4]


def test_a_child_of_the_root_is_compared_with_the_roots_own_score() -> None:
    """However good the best is by then; and what grew from nothing, such as parameters, with the best."""
    assert verdicts(ended(grown([(0, 9.0), (0, 1.1)]))) == ["crowned", "kept"]


def test_what_grew_from_nothing_is_compared_with_the_best() -> None:
    """Parameters alone, and code whose parent was not kept."""
    study = ended(grown([(0, 9.0), (0, 1.1), (2, 0.5), (3, 1.2)]))
    assert verdicts(study) == ["crowned", "kept", "discarded", "discarded"]
    assert study.trials[4].why == "1.2 does not beat 9 (trial 1)"


def test_by_the_proven_rule_a_branch_is_proven_against_its_parent_and_then_against_the_best() -> None:
    """Two tests on the same runs of the candidate, each with a level of its own."""
    study = ended(grown([(0, 9.0), (0, 5.0), (2, 20.0)], noise=0.5, rule="proven"))
    assert verdicts(study) == ["crowned", "kept", "crowned"]
    first, second, third = (study.trials[n].score.test for n in (1, 2, 3))
    assert (first.against, first.grown, first.crown) == (0, False, None)
    assert (second.against, second.grown, second.kept, second.crown) == (0, True, True, None)
    assert (third.against, third.grown, third.crown.against, third.crown.kept) == (2, True, 1, True)
    assert [first.number, second.number, third.number, third.crown.number] == [1, 2, 4, 5]
    levels = [first.level, second.level, third.level, third.crown.level]
    assert sum(levels) < 0.05
    assert study.trials[2].why.endswith("it does not look better than trial 1, the best")
    assert "proven better than trial 2" in study.trials[3].why
    assert "proven better than trial 1" in study.trials[3].why
    assert len(study.trials[3].runs) == 1 + 12 + 3  # none of its own for the second test; 3 at the end
    assert study.evidence[-1][1].keeps == (1, 2, 4, 5)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 40), max_size=6), st.integers(1, 3))
def test_a_tree_that_crashes_anywhere_grows_the_same(seed: int, crashes: list[int], lanes: int) -> None:
    """Whatever dies when: the same trials, tests and verdicts, and the audit derives every decision."""

    def made() -> Lab:
        steps = [(0, 0.0)] * 8
        lab = grown(steps, noise=1.0, rule="proven", order="strict", window=lanes)
        lab.bounds = Bounds(8, no_improve_limit=0, failure_rate_limit=1.0, lanes=lanes)

        def grow(view: View) -> Flow[Sequence[Proposal]]:
            best = parent(view, EpsilonGreedy(epsilon=1.0))
            worth = float(view.code(best.change)["src/a.txt"].split()[1]) + view.rng(str(seed)).uniform(-1, 4)
            text = f"{view.index + 1} {worth!r}"
            return conclude([proposed(view, {"src/a.txt": text}, "test", "", best.change, best.number, {})])

        lab.thought = Thought(
            opening(grow), *[getattr(lab.thought, n) for n in ("measure", "confirm", "decide", "read")]
        )
        return lab

    whole, broken = made(), made()
    whole.session()
    broken.to_the_end(iter(crashes))
    one, other = ([(t.why, t.score, t.verdict) for t in fold(lab.entries).trials.values()] for lab in (whole, broken))
    assert one == other
    if lanes == 1:
        assert told(broken.entries) == told(whole.entries)
    assert not list(audit(broken.entries, lambda _: broken.thought))


@pytest.mark.slow
def test_a_tree_with_nothing_to_find_keeps_nothing_but_by_chance() -> None:
    """24 studies of 60 candidates that are as good as what they grew from: fewer than 5 keep anything, at 5 %."""
    import noise

    found = [noise.tree((0.0, 1.0), EpsilonGreedy(epsilon=1.0), 3, seed) for seed in range(24)]
    assert sum(keeps > 0 for keeps, *_ in found) < 5
    steps = [noise.tree((0.1, 0.4), EpsilonGreedy(epsilon=1.0), 3, seed) for seed in range(6)]
    assert sum(keeps for keeps, *_ in steps) > 6
    assert sum(false for _, false, *_ in steps) <= 1


def test_five_scores_running_that_are_the_very_same_are_told_of_once() -> None:
    """The evaluation may not see what candidates change."""
    lab = grown([(0, 0.5)] * 8)
    study = ended(lab)
    assert study.alerts == ["evaluation: 5 candidates running scored exactly 0.5; does it see what they change?"]
    assert ended(grown([(0, 0.5), (0, 0.4)] * 4)).alerts == []


def test_tests_that_begin_at_once_each_show_that_nothing_varies() -> None:
    """In two lanes, before anybody knows: the better one is not lost for having ended second."""
    study = ended(grown([(0, 2.0), (0, 100.0)], lanes=2, rule="proven", baseline=Baseline(repeats=1)))
    assert set(verdicts(study)) <= {"crowned", "kept"}
    assert study.tally.incumbent == 2
