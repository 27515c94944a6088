"""`learned`: several proposers, and a bandit that gives each round to one of them, by what their trials came to.

Rewards are the article's: 1 for a keep, -0.1 for a failure, 0 for the rest. They are read from the study's trials, so
that a fresh process learns what the old one had learned.
"""

import math
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from metaloop.flow import Flow
from metaloop.roles import Propose
from metaloop.study import Trial, View
from metaloop.values import Proposal

KEPT, FAILED = 1.0, -0.1

WIDTH = 0.5
"""How far an arm's confidence bound reaches: rewards lie between -0.1 and 1, and keeps are rare."""


def learned(arms: Mapping[str, Propose]) -> Propose:
    """UCB1 over `arms` (Auer et al. 2002), with `WIDTH` for its constant; each arm once at first, in their order.

    An arm that proposes nothing is passed over for the next best; a proposal says which arm made it.
    """

    def propose(view: View) -> Flow[Sequence[Proposal]]:
        for name in ranked(view, list(arms)):
            proposals = yield from arms[name](view)
            if proposals:
                return [replace(p, by=f"{name} < {p.by}") for p in proposals]
        return ()

    return propose


def ranked(view: View, arms: Sequence[str]) -> list[str]:
    """The arms, the one to pull first."""
    rewards: dict[str, list[float]] = {name: [] for name in arms}
    for trial in view.settled():
        if (name := arm(trial)) in rewards:
            rewards[name].append(reward(trial))
    pulled = sum(map(len, rewards.values())) + sum(1 for _ in view.pending())

    def bound(name: str) -> float:
        told = rewards[name]
        if not told:
            return math.inf
        return sum(told) / len(told) + WIDTH * math.sqrt(2 * math.log(max(2, pulled)) / len(told))

    return sorted(arms, key=lambda name: -bound(name))


def arm(trial: Trial) -> str:
    """Which arm a trial came from; empty for others'."""
    name, mark, _ = trial.proposal.by.partition(" < ")
    return name if mark else ""


def reward(trial: Trial) -> float:
    """What the article gives for it."""
    return KEPT if trial.kept else FAILED if trial.failed else 0.0
