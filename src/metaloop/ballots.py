"""Ballots of a panel: read, counted, decided."""

from collections.abc import Iterable, Sequence
from itertools import permutations, product
from random import Random
from typing import NamedTuple


class Tally(NamedTuple):
    points: dict[str, int]
    valid: int
    asked: int


def parse(text: str, labels: Sequence[str]) -> tuple[str, ...] | str:
    lines = [each for each in text.splitlines() if each.startswith("RANKING:") and "[" not in each]
    if not lines:
        return "no ranking line"
    got = [w.strip() for w in lines[-1][8:].split(",")]
    return (
        tuple(got)
        if sorted(got) == sorted(labels)
        else f"expected a ranking of {', '.join(labels)}, found {lines[-1]!r}"
    )


def borda(ballots: Iterable[Sequence[str] | None], names: Sequence[str]) -> Tally:
    points, valid, asked = dict.fromkeys(names, 0), 0, 0
    for b in ballots:
        asked += 1
        if b and sorted(b) == sorted(names):
            valid += 1
            for at, n in enumerate(b):
                points[n] += len(names) - at
    return Tally(points, valid, asked)


def winner(
    tally: Tally, incumbent: str = "A", tie_order: Sequence[str] = ("A", "B", "AB"), margin: int = 0
) -> str | None:
    if not tally.valid:
        return None
    order = [n for n in tie_order if n in tally.points]
    best = max(order, key=lambda n: (tally.points[n], -order.index(n)))
    rivals = [n for n in order if n != incumbent]
    top = max(rivals, key=lambda n: (tally.points[n], -order.index(n)))
    if margin == 0:
        return best
    return top if tally.points[top] - tally.points[incumbent] >= margin else incumbent


def orders(names: Sequence[str], judges: int, order: str, dice: Random) -> list[tuple[str, ...]]:
    names = list(names)
    dice.shuffle(names)
    out = []
    for j in range(judges):
        o = tuple(names[(j + i) % len(names)] for i in range(len(names)))
        out += [o, o[1:] + o[:1]] if order == "both" else [o]
    return out


def together(first: Sequence[str] | None, second: Sequence[str] | None) -> tuple[str, ...] | None:
    return tuple(first) if first and second and first[0] == second[0] else None


def by_chance(judges: int, versions: int, margin: int, tie_order: Sequence[str] = ("A", "B", "AB")) -> float:
    names = ("A", "B", "AB")[:versions]
    all_ = list(permutations(names))
    won = n = 0
    for combo in product(all_, repeat=judges):
        n += 1
        won += winner(borda(combo, names), "A", tie_order, margin) == "A"
    return won / n


def passes_to(k: int, p: float) -> float:
    return (1 - p**k) / ((1 - p) * p**k)
