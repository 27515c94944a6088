"""Policies that need no library: given points, a grid, uniform draws; wrappers for start points and directed rounds.

None holds state: what was proposed is read from the view, dice are the round's own. None knows where points come from
or what they were worth.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random

from metaloop.errors import UsageError
from metaloop.flow import Flow
from metaloop.roles import Propose
from metaloop.study import View
from metaloop.values import Change, Choices, Domain, Params, Proposal, Range, Scalar, accept

DRAWS = 64
"""So many draws that were all tried before are taken to mean that little is left to try; then the space is walked."""

WALK = 1_000_000
"""The longest walk in search of a point that was not tried."""

Point = Mapping[str, Scalar]


# ---- the policies ----------------------------------------------------------------------------------------------------


def static(points: Iterable[Point] = ()) -> Propose:
    """The given points, each once, in their order; then nothing. Without points: nothing but what `starting` adds."""
    given = [dict(point) for point in points]

    def think(view: View) -> Sequence[Proposal]:
        for change in (held(view, point) for point in given):
            if view.tried(change) is None:
                return (Proposal(change, "static", "as given"),)
        return ()

    return instant(think)


def grid() -> Propose:
    """The cartesian product, the last parameter fastest, each point once; then nothing.

    The walk goes on after the newest proposal of its own, so that a proposal costs the same at any place of any grid.
    Points that others tried first are passed over. Raises UsageError where a range has no step: no grid can walk it.
    """

    def think(view: View) -> Sequence[Proposal]:
        walk = Walk(view.space)
        if walk.count is None:
            raise UsageError(f"a grid needs a step or choices for every parameter; {walk.endless!r} is a continuum")
        start = walk.index(last.values) + 1 if (last := newest(view, "grid")) else 0
        for index in range(start, walk.count):
            if view.tried(change := walk.point(index)) is None:
                return (Proposal(change, "grid", f"point {index + 1} of {walk.count}"),)
        return ()

    return instant(think)


def random() -> Propose:
    """Uniform draws (uniform in the logarithm where a range says so), never a tried point; nothing once all are tried.

    A finite space of up to a million points is used up exactly. In a larger one a round gives up after a million
    tried points met in a row, for which nearly all of it would have to be tried.
    """

    def think(view: View) -> Sequence[Proposal]:
        change = unseen(view, view.rng())
        return () if change is None else (Proposal(change, "random", "a uniform draw"),)

    return instant(think)


# ---- what wraps a policy ---------------------------------------------------------------------------------------------


def starting(points: Iterable[Point], propose: Propose) -> Propose:
    """The n-th search round proposes the n-th of `points` (by "start"), unless it was tried; then `propose` goes on."""
    given = [dict(point) for point in points]

    def start(view: View) -> Flow[Sequence[Proposal]]:
        if view.role == "search" and view.index < len(given):
            change = held(view, given[view.index])
            if view.tried(change) is None:
                return (Proposal(change, "start", f"start point {view.index + 1} of {len(given)}"),)
        return (yield from propose(view))

    return start


def directed(propose: Propose) -> Propose:
    """A directed round proposes what was asked for, as it is (by "person"); every other round is `propose`'s."""

    def direct(view: View) -> Flow[Sequence[Proposal]]:
        if view.role == "directed" and view.directed is not None:
            return (Proposal(view.directed, "person", "asked for"),)
        return (yield from propose(view))

    return direct


def instant(think: Callable[[View], Sequence[Proposal]]) -> Propose:
    """The policy that has nothing to ask. It thinks when the flow is first advanced, not when it is made."""

    def propose(view: View) -> Flow[Sequence[Proposal]]:
        return think(view)
        yield  # pragma: no cover  (makes this a generator)

    return propose


# ---- the space as a line of points -----------------------------------------------------------------------------------


class Walk:
    """A space as a row of numbered points, the last parameter fastest. No point is made before it is asked for."""

    def __init__(self, space: Mapping[str, Domain]) -> None:
        self.space = space
        self.sizes = {name: _count(domain) for name, domain in space.items()}

    @property
    def endless(self) -> str | None:
        """The first parameter that is a continuum, if one is."""
        return next((name for name, size in self.sizes.items() if size is None), None)

    @property
    def count(self) -> int | None:
        """The number of points; None for a space with a continuum."""
        return None if self.endless is not None else math.prod(size or 0 for size in self.sizes.values())

    def point(self, index: int) -> Params:
        """Point number `index`, by mixed radix."""
        values: dict[str, Scalar] = {}
        for name, domain in reversed(list(self.space.items())):
            index, place = divmod(index, self.sizes[name] or 1)
            values[name] = nth(domain, place)
        return Params({name: values[name] for name in self.space})

    def index(self, values: Point) -> int:
        """The number of the point with these values."""
        index = 0
        for name, domain in self.space.items():
            index = index * (self.sizes[name] or 1) + digit(domain, values[name])
        return index

    def shuffled(self, rng: Random) -> Iterator[Params]:
        """Every point once, from a random place on in a random stride; the first `WALK` of them in a larger space."""
        if not (count := self.count):
            return
        start, stride = rng.randrange(count), _stride(count, rng)
        for step in range(min(count, WALK)):
            yield self.point((start + step * stride) % count)


def draw(space: Mapping[str, Domain], rng: Random) -> Params:
    """One point, each parameter drawn for itself, in the space's order."""
    return Params({name: _at(domain, rng.random()) for name, domain in space.items()})


def unseen(view: View, rng: Random) -> Params | None:
    """A point that was not tried: drawn; or met on a walk, where draws no longer find one; None if there is none."""
    for _ in range(DRAWS):
        if view.tried(change := draw(view.space, rng)) is None:
            return change
    return next((change for change in Walk(view.space).shuffled(rng) if view.tried(change) is None), None)


def newest(view: View, by: str) -> Change | None:
    """The newest change that `by` had proposed before this round."""
    return next((trial.change for trial in view.earlier() if trial.proposal.by == by), None)


def held(view: View, point: Point) -> Params:
    """`point` as the space holds it; as it is, where the space does not hold it, for others to refuse."""
    values = accept(view.space, point)
    return Params(dict(point) if isinstance(values, str) else values)


def _count(domain: Domain) -> int | None:
    """A range of one single number is no continuum, whatever its type."""
    return 1 if isinstance(domain, Range) and domain.low == domain.high else domain.size()


def _at(domain: Domain, fraction: float) -> Scalar:
    if isinstance(domain, Choices):
        return domain.values[int(fraction * len(domain.values))]
    value = domain.at(fraction)
    return value if domain.whole else float(value)  # a range that was written with ints may answer with one


def nth(domain: Domain, place: int) -> Scalar:
    """The value at `place` of a domain that has a size."""
    return domain.nth(place) if isinstance(domain, Range) else domain.values[place]


def digit(domain: Domain, value: Scalar) -> int:
    """The place of `value` in a domain that has a size."""
    if isinstance(domain, Range):
        assert not isinstance(value, str)
        return round((value - domain.low) / (domain.step or 1))
    return next(i for i, v in enumerate(domain.values) if type(v) is type(value) and v == value)


def _stride(count: int, rng: Random) -> int:
    """A step that visits all of `count` points before it comes round."""
    while math.gcd(stride := rng.randrange(1, count + 1), count) != 1:
        pass
    return stride
