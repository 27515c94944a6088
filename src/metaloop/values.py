"""The nouns: objectives, spaces, changes, results. Frozen, and knowing nothing of disk, clock or process.

Every value here may stand in a ledger, so fields are only ever added, with a default, and never renamed.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal, TypeAlias, TypeGuard

import msgspec

Scalar: TypeAlias = bool | int | float | str
Direction: TypeAlias = Literal["max", "min"]
FailureKind: TypeAlias = Literal["build", "evaluation", "hypothesis", "cheating", "limit", "metric", "lost"]


class Value(msgspec.Struct, frozen=True, forbid_unknown_fields=False, gc=False):
    """What all of these are: immutable, compared by content, and readable when a later version wrote more fields.

    Nothing frozen can be part of a cycle, so the garbage collector is not told of them.
    """


# ---- what is wanted --------------------------------------------------------------------------------------------------


class Objective(Value, frozen=True):
    """One metric and the direction in which it gets better. A study ends at its `target`, and at the `ceiling`, the
    best that there can be; outside `plausible` a value is set aside.
    """

    metric: str
    direction: Direction
    target: float | None = None
    ceiling: float | None = None
    plausible: tuple[float, float] | None = None

    def gain(self, new: float, old: float) -> float:
        """How much better `new` is: positive is better, whatever the direction."""
        return new - old if self.direction == "max" else old - new

    def better(self, new: float, old: float) -> bool:
        """Strictly better; a tie is not progress."""
        return self.gain(new, old) > 0

    def reached(self, value: float) -> float | None:
        """The target or ceiling that `value` is at or beyond; None where there is none, or it is not."""
        goals = (goal for goal in (self.target, self.ceiling) if goal is not None)
        return next((goal for goal in goals if self.gain(value, goal) >= 0), None)


class Constraint(Value, frozen=True):
    """A metric that has to stay at `bound` or on its good side: at most for min, at least for max."""

    metric: str
    direction: Direction
    bound: float

    def broken(self, value: float | None) -> str:
        """What is wrong, in words; empty where the bound holds."""
        if value is None:
            return f"{self.metric} is not known"
        over = value > self.bound if self.direction == "min" else value < self.bound
        side = "over" if self.direction == "min" else "under"
        return f"{self.metric} = {value:g} is {side} its bound of {self.bound:g}" if over else ""


# ---- what may be tried -----------------------------------------------------------------------------------------------


class Choices(Value, frozen=True, tag="choices"):
    """One of the values listed, in their order. Values keep their types: 1, 1.0 and true are three values."""

    values: tuple[Scalar, ...]

    def size(self) -> int:
        return len(self.values)

    def accept(self, value: Scalar) -> Scalar | None:
        """The listed value that is meant (3 for 3.0 in a list of ints), or None. Never the nearest."""
        same = (v for v in self.values if type(v) is type(value) and v == value)
        alike = (v for v in self.values if number(v) and number(value) and v == value)
        return next(same, next(alike, None))

    def middle(self) -> Scalar:
        return self.values[(len(self.values) - 1) // 2]

    def grid(self) -> tuple[Scalar, ...]:
        return self.values


class Range(Value, frozen=True, tag="range"):
    """Numbers from `low` to `high`, both included; whole ones if `whole`; multiples of `step` above `low` if given."""

    low: float
    high: float
    log: bool = False
    step: float | None = None
    whole: bool = False

    def size(self) -> int | None:
        """How many points there are; None for a continuum."""
        if self.step is None and not self.whole:
            return None
        return math.floor((self.high - self.low) / (self.step or 1) + 1e-9) + 1

    def accept(self, value: Scalar) -> Scalar | None:
        """`value` as this range holds it (an int, or a float), or None if it lies outside or between steps."""
        if not number(value) or not math.isfinite(value) or not self.low <= value <= self.high:
            return None
        if self.whole and value != int(value):
            return None
        if self.step is not None:
            index = round((value - self.low) / self.step)
            near = math.isclose(value, self.low + index * self.step, rel_tol=1e-9, abs_tol=1e-12)
            return self.nth(index) if near else None
        return int(value) if self.whole else float(value)

    def at(self, fraction: float) -> Scalar:
        """The point at `fraction` (0 <= f < 1) of the way up, each point (or unit of length, or of log) as likely."""
        if (count := self.size()) is not None and not self.log:
            return self.nth(int(fraction * count))
        if not self.log:
            return float(min(self.high, self.low + fraction * (self.high - self.low)))
        low, high = (self.low, self.high) if not self.whole else (self.low - 0.5, self.high + 0.5)
        value = math.exp(math.log(low) + fraction * (math.log(high) - math.log(low)))
        value = min(self.high, max(self.low, value))
        if count is None:
            return float(value)
        return self.nth(min(count - 1, round((value - self.low) / (self.step or 1))))

    def nth(self, index: int) -> Scalar:
        """Point number `index` of a range that has a size."""
        value = self.low + index * (self.step or 1)
        return int(value) if self.whole else float(min(value, self.high))

    def middle(self) -> Scalar:
        return self.at(0.5)

    def grid(self) -> tuple[Scalar, ...] | None:
        """All points in order; None for a continuum, which no grid can walk."""
        return None if (count := self.size()) is None else tuple(self.nth(i) for i in range(count))


Domain: TypeAlias = Choices | Range
Space: TypeAlias = dict[str, Domain]


def number(value: object) -> TypeGuard[float]:
    """An int or a float; a bool is not a number here."""
    return type(value) is int or type(value) is float


def size(space: Mapping[str, Domain]) -> int | None:
    """The number of points in the whole space; None where a continuum is among its ranges."""
    sizes = [domain.size() for domain in space.values()]
    return None if None in sizes else math.prod(s for s in sizes if s is not None)


def middle(space: Mapping[str, Domain]) -> dict[str, Scalar]:
    """The point in the middle of every range: what is measured where a script has no defaults of its own."""
    return {name: domain.middle() for name, domain in space.items()}


def accept(space: Mapping[str, Domain], values: Mapping[str, Scalar]) -> dict[str, Scalar] | str:
    """`values` as the space holds them, in the space's order, or a sentence that says what is wrong with them."""
    for name in values:
        if name not in space:
            return f"parameter {name!r} is not in the space; it has {', '.join(map(repr, space))}"
    held: dict[str, Scalar] = {}
    for name, domain in space.items():
        if name not in values:
            return f"parameter {name!r} is missing"
        value = domain.accept(values[name])
        if value is None:
            return f"{name} = {values[name]!r} is outside {describe(domain)}"
        held[name] = value
    return held


def describe(domain: Domain) -> str:
    """A domain in a few words, for messages."""
    if isinstance(domain, Choices):
        return "the choices " + ", ".join(map(repr, domain.values))
    kind = ("whole numbers " if domain.whole else "") + f"{domain.low:g} to {domain.high:g}"
    return kind + (f" in steps of {domain.step:g}" if domain.step else "")


# ---- what is proposed ------------------------------------------------------------------------------------------------


class Params(Value, frozen=True, tag="params"):
    """A change of parameters: the whole set of values, not a difference. Empty: the script's own defaults."""

    values: dict[str, Scalar]

    def key(self) -> str:
        """The content hash that says whether two candidates are the same one."""
        return hashlib.sha256(canonical(self.values)).hexdigest()[:16]

    @property
    def files(self) -> dict[str, str]:
        """None: the code is the base's."""
        return {}


class Edit(Value, frozen=True, tag="edit"):
    """A change of code: by path, the digest of every file that is not as in the base; and the parameters to run with.

    The whole difference from the base, not from the parent, so that a candidate is known without its ancestors.
    """

    values: dict[str, Scalar]
    files: dict[str, str]

    def key(self) -> str:
        """The content hash that says whether two candidates are the same one."""
        return hashlib.sha256(canonical([self.values, self.files])).hexdigest()[:16]


Change: TypeAlias = Params | Edit


def changed(values: dict[str, Scalar], files: dict[str, str]) -> Change:
    """The change with these parameters and these files."""
    return Edit(values, files) if files else Params(values)


class Proposal(Value, frozen=True, omit_defaults=True):
    """A change, where it grew from, who made it and why. `fallback` says why somebody else than asked for made it.

    `texts`: contents of files, by digest, that the study did not have before. `refused`: that there is no change, and
    why: what was proposed could not even be made one. `calls`, `usage`: what it took, where strategies are compared.
    `notes`: what was thought before it, for whoever comes after.
    """

    change: Change
    by: str
    why: str = ""
    parent: int | None = None
    fallback: str = ""
    texts: dict[str, str] = {}
    refused: "Refused | None" = None
    calls: int = 0
    usage: "Usage | None" = None
    notes: str = ""


def squares(values: Sequence[float]) -> float:
    """Sum of squared deviations from the mean."""
    centre = fmean(values)
    return math.fsum((value - centre) ** 2 for value in values)


def canonical(value: object) -> bytes:
    """JSON with sorted keys: the same bytes for the same content, always."""
    return msgspec.json.encode(value, order="sorted")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# ---- what came of it -------------------------------------------------------------------------------------------------


class Ran(Value, frozen=True, tag="ran"):
    """The run ended well: every finite metric it reported, by name, and its seconds of wall clock.

    `tasks`: its score in each of several tasks, by task; None where it told of none. They decide nothing.
    `tail`: the end of what it printed, where whoever proposes is shown that.
    """

    metrics: dict[str, float]
    seconds: float = 0.0
    warnings: tuple[str, ...] = ()
    tasks: dict[str, float] | None = None
    tail: str = ""


class Failed(Value, frozen=True, tag="failed"):
    """The run gave no score. There is no number here on purpose. `tail`: the end of what it wrote to stderr; of what it
    printed, where a gate or a check wrote nothing else. `gate`: the name of the one that it failed at.
    """

    kind: FailureKind
    reason: str
    seconds: float = 0.0
    tail: str = ""
    gate: str = ""


class Pruned(Value, frozen=True, tag="pruned"):
    """Ended early because it could not win. Not a failure."""

    reason: str
    seconds: float = 0.0


class Stopped(Value, frozen=True, tag="stopped"):
    """Ended by us: with the session or the study (`interrupt`, `guard`: it runs again on resume), or by a person."""

    by: Literal["interrupt", "guard", "person"]
    reason: str
    seconds: float = 0.0


class Refused(Value, frozen=True, tag="refused"):
    """Never ran: the proposal broke the contract. `code` is stable and for programs, `reason` is for people."""

    code: str
    reason: str


Result: TypeAlias = Ran | Failed | Pruned | Stopped | Refused


class Test(Value, frozen=True):
    """A candidate against the incumbent `against`: differences of pairs on common fresh seeds, larger is better.

    `number` counts tests from 1, `level` is what it was given, `p` the tail at its last look. `problem`: why it ended
    without a verdict, which is no keep. `grown`: `against` is no incumbent, but what the candidate's code grew
    from; then `crown` is the test against the incumbent that followed, if one did.
    """

    against: int
    number: int
    differences: tuple[float, ...]
    level: float
    p: float
    kept: bool
    problem: str = ""
    grown: bool = False
    crown: "Test | None" = None

    @property
    def deciding(self) -> "Test | None":
        """The test against the incumbent."""
        return self.crown if self.grown else self


class Score(Value, frozen=True):
    """What a trial is worth: the mean of the objective over its runs, in its unit; `sd` is None for a single run.

    A trial that was kept by a test is worth the mean of its confirmation runs, never its first look. `others`: means of
    the further objectives and constraints over the same runs.
    """

    value: float
    runs: int = 1
    sd: float | None = None
    test: Test | None = None
    others: dict[str, float] = {}


class Ballot(Value, frozen=True, omit_defaults=True):
    """What one judge of a panel said. `shown`: the versions by name, in the order in which it saw them; `labels`: what
    each was called there. `ranking`: the names, best first; empty where the ballot is invalid, and `problem` says why.
    `dissent`: it was told to make the case of the minority first; it counts like any other.
    """

    judge: int
    shown: tuple[str, ...]
    labels: tuple[str, ...]
    ranking: tuple[str, ...] = ()
    problem: str = ""
    model: str = ""
    dissent: bool = False


class Panel(Value, frozen=True):
    """How a panel of judges decided between the incumbent A and its rivals. `winner`: a name; empty for a void pass,
    which nobody won. `points`: Borda points of the valid ballots, by name; `asked`: how many there should have been.
    """

    winner: str
    why: str
    points: dict[str, int] = {}
    valid: int = 0
    asked: int = 0
    ballots: tuple[Ballot, ...] = ()


class Headline(Value, frozen=True):
    """The end of a study: best against baseline, measured once more on fresh seeds, so that no selection flatters it.

    `gain` and its 95 % interval `low` to `high`, positive is better; None where nothing came of the runs. `value`: the
    best's mean over these runs. `exact`: the metric never varied, so one run of the best was enough. `panel`: of a
    document, what judges said who compared the `last` version with the `first`; then there is no gain.
    """

    best: int
    baseline: int
    pairs: int
    value: float | None = None
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    exact: bool = False
    problem: str = ""
    panel: Panel | None = None


class Decision(Value, frozen=True):
    """What a round came to: the trials that stay, the one that wears the crown now, and why, in plain words.

    `left`: trials that are on the Pareto front no longer, or no longer worth a proof. `provisional`: those of `kept`
    that only look better; `leads`: the one of all such that looks best now, and better than the one with the crown.
    """

    kept: tuple[int, ...]
    crowned: int | None
    why: str
    left: tuple[int, ...] = ()
    provisional: tuple[int, ...] = ()
    leads: int | None = None


class Usage(Value, frozen=True):
    """What a model's reply cost. `usd` is None where the price is not known."""

    seconds: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0
    usd: float | None = None

    @property
    def tokens(self) -> int:
        return self.tokens_in + self.tokens_out

    def plus(self, other: "Usage") -> "Usage":
        """Both together; the money of those whose price is known."""
        usd = None if self.usd is None and other.usd is None else (self.usd or 0.0) + (other.usd or 0.0)
        tokens_in, tokens_out = self.tokens_in + other.tokens_in, self.tokens_out + other.tokens_out
        return Usage(self.seconds + other.seconds, tokens_in, tokens_out, usd)


# ---- for people ------------------------------------------------------------------------------------------------------


def plain(value: float, most: int = 6) -> str:
    """A number in that many digits, and all of those before the point: no exponent where people would write none."""
    return f"{value:.0f}" if 10**most <= abs(value) < 1e15 else f"{value:.{most}g}"


def duration(seconds: float) -> str:
    """Seconds, minutes or hours, whichever fits: `0.4 s`, `12 s`, `3 min`, `2.5 h`."""
    if seconds < 120:
        return f"{seconds:.1f} s" if 0 < seconds < 1 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 and seconds % 3600 else f"{seconds / 3600:.3g} h"
