"""Strategies on the same problems of code, one study each: who passes what nobody was shown, pair by pair. Pure.

Exact where it can be: McNemar's test over the pairs, two-sided. Intervals of shares are Wilson's (1927), of 95 %. Not
covered: that problems differ in kind; and where several strategies are compared, no p-value is corrected for that.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import combinations

from msgspec.structs import replace

from metaloop.panelstats import cohens_h, mcnemar
from metaloop.records import held_problem
from metaloop.study import Study
from metaloop.values import Failed, Refused, Value

ENDS = ("target", "exhausted", "max_iterations", "no_improvement", "forecast", "failure_rate")
"""How a study ends that did what it was to do; any other end says nothing of its strategy."""

OWN = ("build", "hypothesis", "cheating", "limit")
"""Classes of failures that are the candidate's own."""


class Case(Value, frozen=True):
    """What a strategy came to on a problem. `visible`, `hidden`: whether the tests that were shown passed, and those
    that were not; None where that cannot be said, and `why`. `scored`: whether the hidden ones gave a value at all.
    `doubtful`: they gave none, and it may have been their own fault.
    """

    problem: str
    strategy: str
    visible: bool | None
    hidden: bool | None
    calls: int = 0
    usd: float | None = None
    ended: str = ""
    why: str = ""
    scored: bool = False
    doubtful: bool = False


class Share(Value, frozen=True):
    """Of a strategy: how many problems it passes, of how many that can be said of, and the interval of that share.

    `fitted`: those of which the visible tests passed and the hidden ones did not. `calls`, `usd`: over all problems;
    None where a price is not known.
    """

    strategy: str
    passed: int
    problems: int
    low: float
    high: float
    fitted: int
    calls: int
    usd: float | None


class Pair(Value, frozen=True):
    """Two strategies on the problems that something can be said of for both. `p`: exact McNemar; `h`: Cohen's, positive
    where the first passes more.
    """

    first: str
    second: str
    both: int
    only_first: int
    only_second: int
    neither: int
    p: float
    h: float


class Comparison(Value, frozen=True):
    cases: tuple[Case, ...]
    shares: tuple[Share, ...]
    pairs: tuple[Pair, ...]
    left_out: tuple[str, ...]
    """What is in no share and no pair, and why; a line each."""


def case(study: Study, problem: str, strategy: str) -> Case:
    """What a study came to."""
    closed, best = study.closed, study.incumbent
    usages = list(study.costs.values())
    usd = None if any(usage.usd is None for usage in usages) else math.fsum(usage.usd or 0.0 for usage in usages)
    found = Case(problem, strategy, None, None, study.calls, usd, closed.reason if closed else "interrupted")
    if closed is None or closed.reason not in ENDS:
        return replace(found, why=closed.why if closed else "it was interrupted")
    if best is None or best.score is None:
        return _unmeasured(study, found)
    visible = study.objective.reached(best.score.value) is not None
    value = study.held_value(best.number)
    if value is not None:
        return replace(found, visible=visible, hidden=study.objective.reached(value) is not None, scored=True)
    run = study.held.get(best.number)
    last = None if run is None else run.last
    own = isinstance(last, Failed) and last.kind in OWN
    why = held_problem(study, best.number) or "the hidden tests were not run"
    return replace(found, visible=visible, hidden=False if own else None, why=why, doubtful=isinstance(last, Failed))


def _unmeasured(study: Study, found: Case) -> Case:
    """Where no version has a value: whose fault that is."""
    results = [trial.result for trial in study.trials.values() if trial.role != "baseline"]
    own = any(isinstance(each, Refused) or (isinstance(each, Failed) and each.kind in OWN) for each in results)
    reason = next((str(getattr(each, "reason", "")) for each in reversed(results)), "nothing was tried")
    return replace(
        found, visible=False, hidden=False if own else None, why=f"no version has a value; the last: {reason}"
    )


def compared(cases: Sequence[Case], strategies: Sequence[str]) -> Comparison:
    """All of them, and each pair of strategies."""
    scored = {each.problem for each in cases if each.scored}
    held = tuple(
        replace(each, hidden=False) if each.hidden is None and each.doubtful and each.problem in scored else each
        for each in cases
    )
    return Comparison(
        held,
        tuple(_share(name, [each for each in held if each.strategy == name]) for name in strategies),
        tuple(_pair(held, first, second) for first, second in combinations(strategies, 2)),
        tuple(f"{each.problem}, {each.strategy}: {each.why}" for each in held if each.hidden is None),
    )


def _share(strategy: str, cases: Sequence[Case]) -> Share:
    known = [each for each in cases if each.hidden is not None]
    passed = sum(each.hidden is True for each in known)
    fitted = sum(each.visible is True and each.hidden is False for each in known)
    usd = None if any(each.usd is None for each in cases) else math.fsum(each.usd or 0.0 for each in cases)
    return Share(
        strategy, passed, len(known), *wilson(passed, len(known)), fitted, sum(each.calls for each in cases), usd
    )


def _pair(cases: Sequence[Case], first: str, second: str) -> Pair:
    told = {(each.problem, each.strategy): each.hidden for each in cases}
    problems = dict.fromkeys(each.problem for each in cases)
    both = [(told.get((name, first)), told.get((name, second))) for name in problems]
    known = [pair for pair in both if None not in pair]
    b, c = known.count((True, False)), known.count((False, True))
    shares = [sum(pair[side] is True for pair in known) / max(1, len(known)) for side in (0, 1)]
    return Pair(
        first, second, known.count((True, True)), b, c, known.count((False, False)), mcnemar(b, c).exact_p,
        cohens_h(*shares),
    )  # fmt: skip


Z = 1.959963984540054


def wilson(passed: int, of: int) -> tuple[float, float]:
    """The interval of a share, of 95 %; all there is where nothing was counted."""
    if not of:
        return 0.0, 1.0
    share, spread = passed / of, Z * Z / of
    middle = (share + spread / 2) / (1 + spread)
    width = Z / (1 + spread) * math.sqrt(share * (1 - share) / of + spread / of / 4)
    return max(0.0, middle - width), min(1.0, middle + width)


# ---- for people ------------------------------------------------------------------------------------------------------


def lines(told: Comparison) -> Iterator[str]:
    """A table of problems, then strategies, then pairs, then what is missing."""
    names = [share.strategy for share in told.shares]
    found = {(each.problem, each.strategy): each for each in told.cases}
    problems = list(dict.fromkeys(each.problem for each in told.cases))
    rows = [["problem", *names]]
    rows += [[problem, *(_cell(found.get((problem, name))) for name in names)] for problem in problems]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
    yield ""
    yield from map(_share_line, told.shares)
    if told.pairs:
        yield ""
    yield from map(_pair_line, told.pairs)
    if told.left_out:
        yield ""
    yield from (f"left out: {line}" for line in told.left_out)


def _cell(each: Case | None) -> str:
    if each is None or each.hidden is None:
        return "-" if each is None else f"- ({_calls(each.calls)})"
    word = "pass" if each.hidden else "visible" if each.visible else "fail"
    return f"{word} ({_calls(each.calls)})"


def _calls(count: int) -> str:
    return f"{count} call{'s' * (count != 1)}"


def _share_line(share: Share) -> str:
    money = "price not known" if share.usd is None else f"${share.usd:.4f}"
    if not share.problems:
        return f"{share.strategy}: nothing can be said; {_calls(share.calls)}, {money}"
    low, high = (f"{100 * end:.0f}" for end in (share.low, share.high))
    percent = f"{100 * share.passed / share.problems:.0f} %, 95 % interval {low} to {high}"
    fitted = f"{share.fitted} of {share.problems} passed the visible tests alone"
    passed = f"{share.passed} of {share.problems} passed ({percent})"
    return f"{share.strategy}: {passed}; {fitted}; {_calls(share.calls)}, {money}"


def _pair_line(pair: Pair) -> str:
    counts = f"both {pair.both}, only the first {pair.only_first}, only the second {pair.only_second}"
    return f"{pair.first} / {pair.second}: {counts}, neither {pair.neither}; McNemar p = {pair.p:.3g}, h = {pair.h:.2f}"
