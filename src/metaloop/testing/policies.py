"""For those who write policies: a bench that drives one over a function, and the suite that every policy passes.

Nothing here runs a process, keeps a file or reads a clock. Only `assert` is used: any test runner will do.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from statistics import median
from typing import TypeAlias

from metaloop.events import (
    Decided,
    Directed,
    Entry,
    Fact,
    Finished,
    Measured,
    Proposed,
    Resumed,
    Role,
    RoundOpened,
    RunsAsked,
    Started,
    StudyOpened,
)
from metaloop.flow import Answer, Ask
from metaloop.policies import params
from metaloop.roles import Propose
from metaloop.study import Study, View, evolve, fold
from metaloop.terms import Bounds, Host, Order, Terms
from metaloop.values import (
    Change,
    Choices,
    Decision,
    Direction,
    Failed,
    Objective,
    Params,
    Proposal,
    Ran,
    Range,
    Scalar,
    Score,
    Space,
    accept,
    size,
)

Function: TypeAlias = Callable[[Mapping[str, Scalar]], float | None]
"""What stands in for a trial: the value of a point, or None where it fails."""

BOWL: Space = {f"x{i}": Range(-5, 5) for i in range(3)}

SMALL: Space = {"a": Choices((1, 1.0, True, "1")), "b": Range(0, 0.3, step=0.1), "c": Range(2, 3, whole=True)}
"""32 points, with values that differ only in their type."""

WIDE: Space = {
    "rate": Range(1e-5, 1e-1, log=True),
    "layers": Range(1, 64, log=True, whole=True),
    "drop": Range(0, 0.5, step=0.05),
    "width": Choices((16, 32, 64)),
    "act": Choices(("relu", "tanh", "gelu")),
    "momentum": Range(0, 0.99),
}
"""One of each kind of domain."""


def bowl(values: Mapping[str, Scalar]) -> float:
    """To be minimised: the squared distance from 1.5 in every number; every string costs its length."""
    return sum(len(v) if isinstance(v, str) else (float(v) - 1.5) ** 2 for v in values.values())


def failing(_values: Mapping[str, Scalar]) -> None:
    """Every trial fails."""
    return


def patchy(values: Mapping[str, Scalar]) -> float | None:
    """A bowl in which some points fail, always the same ones."""
    return None if Params(dict(values)).key() < "4" else bowl(values)


# ---- the bench -------------------------------------------------------------------------------------------------------


class Bench:
    """A study built by hand: its events are made here, and it changes only through `evolve`, as in a real one.

    `lanes` rounds are in flight at once and finish in an order that `shuffle` draws. A round sees what was decided
    when it opened, less the last `lag` decisions. `baseline`: the value of a trial 0 without parameters; no trial 0
    where it is None. `answer` replies to a flow that asks; without it, asking is an error.
    """

    def __init__(
        self,
        space: Space,
        function: Function = bowl,
        *,
        direction: Direction = "min",
        seed: int = 0,
        lanes: int = 1,
        lag: int = 0,
        shuffle: int = 0,
        order: Order = "free",
        baseline: float | None = None,
        answer: Callable[[Ask], Answer] | None = None,
    ) -> None:
        self.function, self.lanes, self.lag, self.answer = function, lanes, lag, answer
        self.entries: list[Entry] = []
        self.study = Study()
        self.views: list[View] = []
        self.proposals: list[Proposal] = []
        self._dice = Random(f"bench/{shuffle}")
        self._decisions: list[int] = []
        objective = Objective("value", direction)
        self.record(
            StudyOpened(Terms("bench", objective, ("true",), "bench", space, seed=seed, order=order)),
            Resumed(Bounds(lanes=lanes), Host("0" * 16), "0", "none", ""),
        )
        if baseline is not None:
            self._baseline(baseline)

    # -- by the hand

    def record(self, *events: Fact) -> None:
        """Appends events, with places and seconds that count up."""
        for event in events:
            place = self.study.place + 1
            entry = Entry(place, float(place), 1e9 + place, event)
            self.entries.append(entry)
            evolve(self.study, entry)

    def open(self, role: Role = "search") -> View:
        """Opens a round and says what it sees."""
        number = self.study.rounds + 1
        self.record(RoundOpened(number, role, self._seen()))
        return self.study.view(self.study.open[number])

    def direct(self, change: Params) -> View:
        """Somebody asks for a trial of `change`; opens the round that is to propose it."""
        self.record(Directed(f"request-{self.study.place}", "try", "somebody", change=change))
        return self.open("directed")

    def think(self, propose: Propose, view: View) -> Sequence[Proposal]:
        """What `propose` concludes from `view`. Records nothing."""
        flow = propose(view)
        try:
            ask = next(flow)
            while self.answer is not None:
                ask = flow.send(self.answer(ask))
        except StopIteration as stop:
            proposals: Sequence[Proposal] = stop.value
            return proposals
        raise AssertionError(f"the flow asks, and the bench has no answer: {ask!r}")

    def start(self, view: View, proposals: Iterable[Proposal]) -> list[int]:
        """The round proposes these, and each is started; the numbers of the trials."""
        role, numbers = view.role, []
        for proposal in proposals:
            number = self.study.number(role)
            self.record(
                Proposed(view.round, number, proposal),
                RunsAsked(view.round, number, (0,)),
                Started(number, 0, 1, 0, f"bench-{number}"),
            )
            numbers.append(number)
        return numbers

    def settle(self, round: int) -> None:
        """Every trial of an open round ends, and the round is decided: the better one is kept and crowned."""
        trials = self.study.open[round].trials
        values = {number: self._value(number) for number in trials}
        for number, value in values.items():
            result = Failed("evaluation", "no value here") if value is None else Ran({"value": value}, 1.0)
            self.record(Finished(number, 0, 1, result, 0))
        self.record(Measured(round, tuple(None if v is None else Score(v) for v in values.values())))
        self.record(Decided(round, self._decision(trials)))
        self._decisions.append(self.study.place)

    # -- all by itself

    def run(self, propose: Propose, rounds: int) -> list[Proposal]:
        """Up to `rounds` more search rounds, all settled at the end; what they proposed. Ends at the first empty one.

        `views` and `proposals` keep what every round saw and said.
        """
        before = len(self.proposals)
        flying: list[int] = []
        for _ in range(rounds):
            if len(flying) == self.lanes:
                self.settle(flying.pop(self._dice.randrange(len(flying))))
            view = self.open()
            proposals = self.think(propose, view)
            if not proposals:
                self.record(Decided(view.round, Decision((), None, "nothing is left to try")))
                break
            self.views.append(view)
            self.proposals.extend(proposals)
            self.start(view, proposals)
            flying.append(view.round)
        while flying:
            self.settle(flying.pop(self._dice.randrange(len(flying))))
        return self.proposals[before:]

    def restarted(self) -> "Bench":
        """The same study, folded from its events, as another process would hold it."""
        again = Bench.__new__(Bench)
        again.__dict__.update(self.__dict__)
        again.entries, again.study = list(self.entries), fold(self.entries)
        again.views, again.proposals, again._decisions = [], list(self.proposals), list(self._decisions)
        again._dice = Random()
        again._dice.setstate(self._dice.getstate())
        return again

    @property
    def best(self) -> float:
        """The incumbent's value."""
        assert self.study.tally.best is not None, "no trial has a score"
        return self.study.tally.best

    # -- within

    def _baseline(self, value: float) -> None:
        view = self.open("baseline")
        self.start(view, [Proposal(Params({}), "baseline")])
        self.record(Finished(0, 0, 1, Ran({"value": value}, 1.0), 0), Measured(view.round, (Score(value),)))
        self.record(Decided(view.round, Decision((0,), 0, "the baseline")))
        self._decisions.append(self.study.place)

    def _seen(self) -> int:
        if not self.lag:
            return self.study.place
        return self._decisions[-1 - self.lag] if len(self._decisions) > self.lag else 0

    def _value(self, trial: int) -> float | None:
        return self.function(self.study.trials[trial].change.values)

    def _decision(self, trials: Sequence[int]) -> Decision:
        held = self.study.incumbent
        best = held
        for trial in (self.study.trials[number] for number in trials):
            better = trial.score and (
                not (best and best.score) or self.study.objective.better(trial.score.value, best.score.value)
            )
            best = trial if better else best
        if best is held or best is None:
            return Decision((), held.number if held else None, "not better")
        return Decision((best.number,), best.number, "better")


def changes(proposals: Iterable[Proposal]) -> list[Change]:
    """What was proposed, without who and why."""
    return [proposal.change for proposal in proposals]


# ---- what every policy promises --------------------------------------------------------------------------------------


class PolicyConformance:
    """What every policy promises. Subclass it, name the class `Test...`, and override `policy`.

    `small` has to be finite and `wide` may be anything the policy takes; `seeded`: its proposals depend on the seed;
    `searches`: it finds better points than chance does.
    """

    small: Space = SMALL
    wide: Space = WIDE
    seeded = True
    searches = False
    rounds = 26

    def policy(self, space: Space, seed: int) -> Propose:
        """A fresh policy for studies of this space and seed."""
        raise NotImplementedError

    def bench(self, space: Space, function: Function = bowl, **settings: int) -> Bench:
        return Bench(space, function, **settings)  # type: ignore[arg-type]

    def test_proposals_are_points_of_the_space_in_its_own_types(self) -> None:
        """What is proposed is what the space would make of it: every name, in order, with the type it gives it."""
        for space in (self.small, self.wide):
            for change in changes(self.bench(space).run(self.policy(space, 0), self.rounds)):
                values = accept(space, change.values)
                assert not isinstance(values, str), values
                assert _typed(values) == _typed(change.values), change

    def test_every_proposal_says_who_made_it_and_in_a_roomy_space_that_is_the_policy(self) -> None:
        for proposal in self.bench(self.wide).run(self.policy(self.wide, 0), self.rounds):
            assert proposal.by, proposal
            assert not proposal.fallback, proposal

    def test_it_remembers_nothing_that_the_view_does_not_show(self) -> None:
        """Any view, shown again in any order to a new policy or to one that saw other studies, is answered the same."""
        for lag in (0, 2):
            bench = self.bench(self.wide, patchy, lanes=3, lag=lag, seed=7)
            said = bench.run(self.policy(self.wide, 7), self.rounds)
            used = self.policy(self.wide, 7)
            self.bench(self.wide, seed=8).run(used, 9)
            for view, proposal in reversed(list(zip(bench.views, said, strict=True))):
                assert bench.think(self.policy(self.wide, 7), view) == (proposal,), f"a new one, round {view.round}"
                assert bench.think(used, view) == (proposal,), f"a used one, round {view.round}"

    def test_a_resumed_study_goes_on_as_if_nothing_had_happened(self) -> None:
        whole = self.bench(self.wide, patchy, seed=3)
        whole.run(self.policy(self.wide, 3), self.rounds)
        for at in (0, 1, 11, self.rounds - 1):
            part = self.bench(self.wide, patchy, seed=3)
            part.run(self.policy(self.wide, 3), at)
            resumed = part.restarted()
            resumed.run(self.policy(self.wide, 3), self.rounds - at)
            assert resumed.proposals == whole.proposals, f"resumed after {at}"

    def test_nothing_is_proposed_twice(self) -> None:
        for space in (self.small, self.wide):
            bench = self.bench(space, lanes=3)
            said = [change.key() for change in changes(bench.run(self.policy(space, 0), 2 * self.rounds))]
            assert len(set(said)) == len(said)

    def test_a_finite_space_is_used_up_and_then_nothing_is_proposed(self) -> None:
        for lanes in (1, 3):
            bench, count = self.bench(self.small, lanes=lanes), size(self.small)
            assert count is not None
            propose = self.policy(self.small, 0)
            assert len({change.key() for change in changes(bench.run(propose, count + 5))}) == count
            assert bench.think(propose, bench.open()) == ()

    def test_it_concludes_whatever_the_history(self) -> None:
        """No trial, none that succeeded, a baseline alone, equal values, huge ones, points of others: all are taken."""
        histories: list[Function] = [
            failing,
            patchy,
            lambda _: 0.0,
            lambda _: -1e300,
            lambda values: 1e300 * len(values),
        ]
        for function in histories:
            for settings in ({}, {"baseline": 5, "lanes": 4}, {"lanes": 2, "lag": 3}):
                said = self.bench(self.wide, function, **settings).run(self.policy(self.wide, 0), 16)
                assert len(said) == 16

    def test_points_of_others_are_part_of_the_history(self) -> None:
        """Start points and what a person asked for are not proposed again, and disturb nothing."""
        bench = self.bench(self.wide, patchy, baseline=3)
        others = [params.draw(self.wide, Random(n)) for n in range(6)]
        for change in others:
            view = bench.direct(change)
            bench.start(view, [Proposal(change, "person")])
            bench.settle(view.round)
        pending = bench.open()
        bench.start(pending, [Proposal(params.draw(self.wide, Random(99)), "start")])
        said = changes(bench.run(self.policy(self.wide, 0), 16))
        assert len(said) == 16
        assert not {c.key() for c in said} & {c.key() for c in others}

    def test_another_seed_proposes_something_else(self) -> None:
        if not self.seeded:
            return
        one, other = (self.bench(self.wide, seed=seed).run(self.policy(self.wide, seed), 12) for seed in (11, 99))
        assert changes(one) != changes(other)
        assert changes(one) == changes(self.bench(self.wide, seed=11).run(self.policy(self.wide, 11), 12))

    def test_it_finds_better_points_than_chance_does(self) -> None:
        """On a bowl in three dimensions, 40 trials, median of seven seeds, whichever way is up."""
        if not self.searches:
            return
        assert _found(self.policy(BOWL, 0), "min") < _found(params.random(), "min")
        assert _found(self.policy(BOWL, 0), "max") < _found(params.random(), "max")


def _found(propose: Propose, direction: Direction) -> float:
    """How far from the optimum a policy stays, as a median."""
    sign = 1 if direction == "min" else -1
    return median(_best(propose, direction, sign, seed) * sign for seed in range(7))


def _best(propose: Propose, direction: Direction, sign: int, seed: int) -> float:
    bench = Bench(BOWL, lambda values: sign * bowl(values), direction=direction, seed=seed)
    bench.run(propose, 40)
    return bench.best


def _typed(values: Mapping[str, Scalar]) -> list[tuple[str, type, Scalar]]:
    return [(name, type(value), value) for name, value in values.items()]
