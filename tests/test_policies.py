"""Policies: what each proposes, that none remembers anything, and what a proposal costs."""

import subprocess
import sys
import time
from random import Random

import pytest

from metaloop import errors
from metaloop.policies import params, sampled
from metaloop.study import View
from metaloop.testing import BOWL, SMALL, WIDE, Bench, PolicyConformance, bowl, changes
from metaloop.values import Choices, Params, Proposal, Range, size

TWO = {"a": Choices((1, 2)), "b": Choices(("x", "y", "z"))}


def missing(sampler):
    try:
        sampled.require(sampler)
    except errors.UsageError as error:
        return str(error)
    return ""


# ---- the suite that every policy passes ------------------------------------------------------------------------------


class TestStatic(PolicyConformance):
    seeded = False

    def policy(self, space, seed):
        walk = params.Walk(space)
        if walk.count is not None:
            return params.static(walk.point(i).values for i in range(walk.count))
        return params.static(params.draw(space, Random(i)).values for i in range(100))


class TestGrid(PolicyConformance):
    wide = {"a": Range(1, 40, whole=True), "b": Range(0, 0.3, step=0.1), "c": Choices(("x", "y"))}
    seeded = False

    def policy(self, space, seed):
        return params.grid()


class TestRandom(PolicyConformance):
    def policy(self, space, seed):
        return params.random()


class TestTpe(PolicyConformance):
    searches = True

    def policy(self, space, seed):
        return sampled.tpe()


class TestCmaes(PolicyConformance):
    searches = True

    def policy(self, space, seed):
        return sampled.cmaes()


class TestNsga2(PolicyConformance):
    searches = True

    def policy(self, space, seed):
        return sampled.nsga2()


@pytest.mark.slow
@pytest.mark.skipif(bool(missing("gp")), reason="gp needs torch and scipy")
class TestGp(PolicyConformance):
    searches = True

    def policy(self, space, seed):
        return sampled.gp()


class TestDouble(PolicyConformance):
    """A stranger's policy, written against the seam alone: it changes one parameter of the incumbent."""

    searches = True

    def policy(self, space, seed):
        return params.instant(neighbour)


def neighbour(view: View):
    for attempt in range(50):
        rng = view.rng(f"neighbour/{attempt}")
        drawn = params.draw(view.space, rng).values
        name = rng.choice(list(view.space))
        held = view.incumbent.change.values if view.incumbent else {}
        change = Params(drawn | held | {name: drawn[name]})
        if view.tried(change) is None:
            return (Proposal(Params({n: change.values[n] for n in view.space}), "neighbour"),)
    change = params.unseen(view, view.rng())
    return () if change is None else (Proposal(change, "neighbour"),)


# ---- the suite notices what it is there for --------------------------------------------------------------------------


def broken(think):
    """A suite over a policy that is `params.random`, but for what `think(view, proposals, memory)` makes of it."""

    def policy(self, space, seed):
        memory = []

        def round(view):
            proposals = yield from params.random()(view)
            return think(view, proposals, memory)

        return round

    return type("Broken", (PolicyConformance,), {"policy": policy, "searches": True})()


def by_count(view, proposals, memory):
    memory.append(view)
    return (Proposal(params.draw(view.space, Random(len(memory))), "counter"),)


def by_score_to_come(view, proposals, memory):
    scores = sum(trial.score is not None for trial in view.earlier())
    return (Proposal(params.draw(view.space, Random(scores)), "prophet"),)


def only_eight(view, proposals, memory):
    return proposals if view.index < 8 else ()


def untyped(view, proposals, memory):
    return tuple(
        Proposal(Params({k: float(v) if type(v) is int else v for k, v in p.change.values.items()}), "floats")
        for p in proposals
    )


def needs_a_score(view, proposals, memory):
    assert view.index < 5 or any(trial.score for trial in view.settled())
    return proposals


@pytest.mark.parametrize(
    ("think", "test"),
    [
        (by_count, "test_it_remembers_nothing_that_the_view_does_not_show"),
        (by_count, "test_a_resumed_study_goes_on_as_if_nothing_had_happened"),
        (by_score_to_come, "test_it_remembers_nothing_that_the_view_does_not_show"),
        (by_score_to_come, "test_nothing_is_proposed_twice"),
        (only_eight, "test_a_finite_space_is_used_up_and_then_nothing_is_proposed"),
        (untyped, "test_proposals_are_points_of_the_space_in_its_own_types"),
        (needs_a_score, "test_it_concludes_whatever_the_history"),
        (
            lambda v, p, m: (Proposal(params.draw(v.space, v.rng("x")), ""),),
            "test_every_proposal_says_who_made_it_and_in_a_roomy_space_that_is_the_policy",
        ),
        (
            lambda v, p, m: (Proposal(params.draw(v.space, Random(v.index)), "x"),),
            "test_another_seed_proposes_something_else",
        ),
        (lambda v, p, m: p, "test_it_finds_better_points_than_chance_does"),
    ],
)
def test_the_suite_fails_for_a_policy_that_breaks_the_promise(think, test):
    with pytest.raises(AssertionError):
        getattr(broken(think), test)()


# ---- grid ------------------------------------------------------------------------------------------------------------


def test_a_grid_goes_through_the_product_with_the_last_parameter_fastest():
    said = changes(Bench(TWO, lambda _: 0.0).run(params.grid(), 9))
    assert [tuple(c.values.values()) for c in said] == [(1, "x"), (1, "y"), (1, "z"), (2, "x"), (2, "y"), (2, "z")]


def test_a_grid_of_two_cells_is_exhausted_after_two():
    bench = Bench({"lr": Choices((0.1, 0.01))}, lambda _: 0.0)
    said = bench.run(params.grid(), 10)
    assert changes(said) == [Params({"lr": 0.1}), Params({"lr": 0.01})]
    assert [p.by for p in said] == ["grid", "grid"]
    assert bench.study.tally.exhausted


def test_a_grid_passes_over_what_others_tried():
    bench = Bench(TWO, lambda _: 0.0)
    for point in ({"a": 1, "b": "x"}, {"a": 2, "b": "y"}):
        bench.start(bench.direct(Params(point)), [Proposal(Params(point), "person")])
    said = changes(bench.run(params.grid(), 9))
    assert [tuple(c.values.values()) for c in said] == [(1, "y"), (1, "z"), (2, "x"), (2, "z")]


def test_a_grid_of_more_points_than_fit_anywhere_is_walked_from_its_corner():
    space = {f"x{i}": Range(0, 1, step=0.001) for i in range(12)}
    said = changes(Bench(space).run(params.grid(), 3))
    assert [c.values["x11"] for c in said] == [0.0, 0.001, 0.002]


def test_a_grid_refuses_a_continuum_by_name():
    with pytest.raises(errors.UsageError, match="'lr' is a continuum"):
        Bench({"lr": Range(0, 1)}).run(params.grid(), 1)


def test_every_point_of_a_walk_is_found_again_by_its_values():
    walk = params.Walk(SMALL)
    assert [walk.index(walk.point(i).values) for i in range(walk.count)] == list(range(size(SMALL)))


# ---- random ----------------------------------------------------------------------------------------------------------


def test_seeds_11_and_99_draw_different_points_and_the_same_seed_the_same():
    first, again, other = (changes(Bench(WIDE, seed=s).run(params.random(), 8)) for s in (11, 11, 99))
    assert first == again
    assert not {c.key() for c in first} & {c.key() for c in other}


def test_a_draw_is_uniform_in_the_logarithm_where_the_range_says_so():
    draws = [params.draw({"lr": Range(1e-4, 1, log=True)}, Random(i)).values["lr"] for i in range(2000)]
    assert 900 < sum(v < 1e-2 for v in draws) < 1100


def test_the_last_points_of_a_space_are_found_by_walking():
    space = {"n": Range(1, 3000, whole=True)}
    said = changes(Bench(space).run(params.random(), 3001))
    assert {c.values["n"] for c in said} == set(range(1, 3001))


def test_a_range_of_one_number_is_one_point():
    assert len(Bench({"x": Range(2, 2), "c": Choices((1, 2))}).run(params.random(), 9)) == 2


def test_in_a_larger_space_a_walk_that_meets_only_tried_points_gives_up(monkeypatch):
    monkeypatch.setattr(params, "WALK", 10)
    bench = Bench({"n": Range(1, 3000, whole=True)})
    rng = Random(0)
    walk = list(params.Walk(bench.study.the_terms.space).shuffled(rng))
    assert len({change.key() for change in walk}) == 10


def test_a_space_without_parameters_is_one_point():
    assert changes(Bench({}, lambda _: 1.0).run(params.random(), 3)) == [Params({})]
    assert changes(Bench({}, lambda _: 1.0).run(params.grid(), 3)) == [Params({})]
    assert changes(Bench({}, lambda _: 1.0).run(sampled.tpe(), 3)) == [Params({})]


# ---- given points ----------------------------------------------------------------------------------------------------


def test_static_proposes_the_given_values_once_as_the_space_holds_them():
    space = {"layers": Range(1, 8, whole=True), "lr": Range(0, 1)}
    said = Bench(space).run(params.static([{"lr": 1, "layers": 3.0}]), 5)
    assert [(p.by, p.change) for p in said] == [("static", Params({"layers": 3, "lr": 1.0}))]
    assert [type(v) for v in said[0].change.values.values()] == [int, float]


def test_start_points_come_first_and_then_the_policy():
    points = [{"a": 2, "b": "z"}, {"a": 1, "b": "x"}]
    said = Bench(TWO, lambda _: 0.0).run(params.starting(points, params.grid()), 9)
    assert [(p.by, *p.change.values.values()) for p in said[:4]] == [
        ("start", 2, "z"),
        ("start", 1, "x"),
        ("grid", 1, "y"),
        ("grid", 1, "z"),
    ]
    assert len(said) == 6


def test_a_start_point_that_was_tried_leaves_its_round_to_the_policy():
    point = {"a": 1, "b": "x"}
    said = Bench(TWO, lambda _: 0.0).run(params.starting([point, point], params.grid()), 9)
    assert [p.by for p in said[:2]] == ["start", "grid"]


def test_a_point_outside_the_space_is_proposed_as_it_is_for_others_to_refuse():
    bench = Bench(TWO, lambda _: 0.0)
    propose = params.starting([{"a": 7}], params.grid())
    assert changes(bench.think(propose, bench.open())) == [Params({"a": 7})]


def test_a_directed_round_proposes_what_was_asked_for():
    bench, wanted = Bench(TWO), Params({"a": 2, "b": "z"})
    assert bench.think(params.directed(params.grid()), bench.direct(wanted)) == (
        Proposal(wanted, "person", "asked for"),
    )
    assert changes(bench.think(params.directed(params.grid()), bench.open())) == [Params({"a": 1, "b": "x"})]


# ---- samplers --------------------------------------------------------------------------------------------------------

SAMPLERS = {"tpe": sampled.tpe, "cmaes": sampled.cmaes, "nsga2": sampled.nsga2}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_proposal_names_the_sampler_and_the_version_of_optuna(name):
    import optuna

    proposal = Bench(BOWL).run(SAMPLERS[name](), 1)[0]
    assert (proposal.by, proposal.why, proposal.fallback) == (name, f"{name}, optuna {optuna.__version__}", "")


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_that_only_repeats_itself_is_replaced_and_says_so(name):
    said = Bench(SMALL).run(SAMPLERS[name](), 99)
    spares = [proposal for proposal in said if proposal.fallback]
    assert spares
    assert {(p.by, p.fallback) for p in spares} == {("random", f"{name} proposed tried points, 5 times")}


@pytest.mark.parametrize("name", SAMPLERS)
def test_optuna_keeps_silent_and_its_verbosity_is_given_back(name, capfd):
    import optuna

    before = optuna.logging.get_verbosity()
    Bench(WIDE).run(SAMPLERS[name](), 15)
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == before


def test_cmaes_says_which_parameters_it_leaves_to_chance():
    assert Bench(WIDE).run(sampled.cmaes(), 1)[0].why.endswith("; drawn at random: act")


def test_tpe_is_shown_pending_trials_as_running_and_failed_ones_as_failed():
    bench = Bench(BOWL, lambda values: None if values["x0"] > 0 else bowl(values), baseline=1.0)
    bench.run(params.random(), 12)
    bench.start(bench.open(), [Proposal(Params({"x0": 1.0, "x1": 1.0, "x2": 1.0}), "start")])
    states = [trial.state.name for trial in sampled.Mirror().follow(bench.open()).trials]
    failed = sum(trial.failed for trial in bench.study.trials.values())
    assert (states.count("RUNNING"), states.count("FAIL"), states.count("COMPLETE")) == (1, failed, 12 - failed)
    assert 0 < failed < 12


def test_what_a_round_may_not_know_yet_is_shown_as_running_though_it_has_a_score():
    bench = Bench(BOWL, lag=3)
    bench.run(params.random(), 8)
    states = [trial.state.name for trial in sampled.Mirror().follow(bench.open()).trials]
    assert states == ["COMPLETE"] * 5 + ["RUNNING"] * 3


def test_a_mirror_that_was_kept_shows_what_a_new_one_shows():
    bench, kept = Bench(WIDE, lanes=3), sampled.Mirror()
    for _ in range(6):
        bench.run(params.random(), 4)
        bench.start(bench.open(), [Proposal(params.draw(WIDE, Random(bench.study.place)), "start")])
        view = bench.open()
        one, other = kept.follow(view).trials, sampled.Mirror().follow(view).trials
        assert [(t.state, t.params, t.values) for t in one] == [(t.state, t.params, t.values) for t in other]


def test_a_mirror_of_another_study_is_made_anew():
    kept = sampled.Mirror()
    for seed in (1, 2):
        bench = Bench(BOWL, seed=seed)
        bench.run(params.random(), 5)
        shown = kept.follow(bench.open()).trials
        assert [t.params for t in shown] == [c.values for c in changes(bench.proposals)]


def test_cmaes_learns_from_points_that_others_proposed():
    bench = Bench(BOWL)
    bench.run(params.random(), 70)
    distance = bowl(changes(bench.think(sampled.cmaes(), bench.open()))[0].values)
    assert distance < sorted(bowl(c.values) for c in changes(bench.proposals))[35]


def test_every_domain_survives_the_way_to_optuna_and_back():
    for ordered in (False, True):
        codec = sampled.Codec(WIDE | SMALL, ordered=ordered)
        for n in range(200):
            change = params.draw(codec.space, Random(n))
            back = codec.decode(codec.encode(change))
            assert [(type(v), v) for v in back.values.values()] == [(type(v), v) for v in change.values.values()]


def test_a_missing_library_is_named_with_what_to_type(monkeypatch):
    monkeypatch.setattr(sampled, "find_spec", lambda name: None if name == "torch" else object())
    with pytest.raises(errors.UsageError, match=r'gp needs torch.*type: python -m pip install "metaloop\[search-gp\]"'):
        Bench(BOWL).run(sampled.gp(), 1)
    assert Bench(BOWL).run(sampled.tpe(), 1)


def test_optuna_is_imported_by_the_first_proposal_of_a_sampler_and_by_nothing_else():
    script = """
import sys
from metaloop.testing import BOWL, Bench
from metaloop.policies import params, sampled
Bench(BOWL).run(params.random(), 3)
policies = [sampled.tpe(), sampled.cmaes(), sampled.gp(), sampled.nsga2()]
sampled.require("tpe")
assert not {"optuna", "numpy", "cmaes", "torch", "scipy"} & set(sys.modules)
Bench(BOWL).run(policies[0], 1)
assert "optuna" in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# ---- what a proposal costs -------------------------------------------------------------------------------------------


def seconds(bench, propose, rounds):
    """The shortest of `rounds` proposals in a row."""
    best = float("inf")
    for _ in range(rounds):
        view = bench.open()
        start = time.perf_counter()
        proposals = bench.think(propose, view)
        best = min(best, time.perf_counter() - start)
        bench.start(view, proposals)
        bench.settle(view.round)
    return best


@pytest.mark.parametrize("policy", [params.random, params.grid])
def test_a_proposal_costs_the_same_after_2000_trials(policy):
    bench = Bench({f"x{i}": Range(0, 1, step=0.01) for i in range(6)}, lambda _: 0.0)
    early = seconds(bench, policy(), 50)
    bench.run(policy(), 2000)
    assert seconds(bench, policy(), 50) < 3 * early + 1e-4


@pytest.mark.parametrize(("policy", "limit"), [(sampled.tpe, 0.060), (sampled.cmaes, 0.030), (sampled.nsga2, 0.030)])
def test_a_sampler_proposes_within_its_limit_after_1000_trials(policy, limit):
    bench = Bench({f"x{i}": Range(-5, 5) for i in range(5)})
    bench.run(params.random(), 1000)
    assert seconds(bench, policy(), 6) < limit
