"""How often a change that does nothing is kept, by simulation: panels, votes and rounds by lot, decided as in earnest.

The base and the changed search are drawn from the same process: judges of one skill that rank versions of a true
quality. What is kept then is a false accept, whatever its reason. Pure: dice come from the seed.
"""

from collections import Counter
from collections.abc import Sequence
from math import exp
from random import Random

from metaloop.acceptance import Aim, Came, judged
from metaloop.ballots import borda, quorum, winner
from metaloop.diagnose import Heard, Pass, Signature, Trace, diagnose
from metaloop.gates import Kind, Vote, gate
from metaloop.values import Value

NAMES = "A", "B", "AB"


class Simulated(Value, frozen=True):
    """Of so many campaigns: in how many a signature fired, so that a change was tried; how many were kept, and of which
    signatures. Every one of those is false, for no change does anything.
    """

    campaigns: int
    tried: int
    kept: int
    by_signature: dict[str, tuple[int, int]]

    @property
    def rate(self) -> float:
        """False accepts, of the changes that were tried."""
        return self.kept / self.tried if self.tried else 0.0


def simulate(
    campaigns: int,
    order: Sequence[Signature],
    *,
    kind: Kind,
    votes: int,
    alpha: float = 0.05,
    aim: Aim = "rounds",
    replicates: int = 1,
    original: bool = False,
    skill: float = 0.0,
    judges: int = 3,
    k: int = 2,
    cap: int = 15,
    seed: int = 0,
) -> Simulated:
    """`skill`: of judges; 0 ranks by lot, s prefers the better of two that differ by d by 1 / (1 + exp(-s d))."""
    dice = Random(seed)
    tried, kept, fired, wrong = 0, 0, Counter[str](), Counter[str]()
    for _ in range(campaigns):
        base = tuple(_came(dice, judges, skill, k, cap) for _ in range(max(1, replicates)))
        found = diagnose(base[0].trace, order)
        if not found.signature:
            continue
        tried, changed = tried + 1, _came(dice, judges, skill, k, cap)
        fired[found.signature] += 1
        cast: list[Vote | None] = [_vote(dice, kind) for _ in range(votes)]
        if judged(base, changed, gate(cast, kind, alpha), k, aim, original).accepted:
            kept += 1
            wrong[found.signature] += 1
    return Simulated(campaigns, tried, kept, {name: (count, wrong[name]) for name, count in fired.items()})


def _vote(dice: Random, kind: Kind) -> Vote | None:
    """By lot; where both orders are asked, a judge turns with the order half of the time, and abstains."""
    if kind == "exact" and dice.random() < 0.5:
        return None
    return "on" if dice.random() < 0.5 else "off"


def _came(dice: Random, judges: int, skill: float, k: int, cap: int) -> Came:
    """A tournament: B is A and a normal draw (sd 1), AB lies halfway, and half such a draw."""
    passes: list[Pass] = []
    quality, held = 0.0, 0
    while len(passes) < cap and held < k:
        b = quality + dice.gauss(0, 1)
        values = {"A": quality, "B": b, "AB": (quality + b) / 2 + dice.gauss(0, 0.5)}
        ballots = [_ranked(dice, values, skill) for _ in range(judges)]
        tally = borda(ballots, NAMES)
        won = winner(tally, "A", NAMES) or "A"
        held = held + 1 if won == "A" else 0
        quality = values[won]
        heard = tuple(Heard(judge, ranking) for judge, ranking in enumerate(ballots))
        passes.append(Pass(won, tally.points, judges, judges, heard))
    trace = Trace(tuple(passes), k, cap, "converged" if held >= k else "max_passes", quorum(judges))
    return Came(trace, f"{quality!r}", len(passes) * (3 + judges))


def _ranked(dice: Random, values: dict[str, float], skill: float) -> tuple[str, ...]:
    """Best first: the place of each falls by how often it loses a comparison; ties by lot."""
    names = dice.sample(list(values), len(values))
    lost = dict.fromkeys(names, 0)
    for at, one in enumerate(names):
        for other in names[at + 1 :]:
            prefers = dice.random() < 1 / (1 + exp(-skill * (values[one] - values[other])))
            lost[other if prefers else one] += 1
    return tuple(sorted(names, key=lambda name: lost[name]))
