"""How often a tournament's document is truly better than the first, where the quality of every version is known.

usage: panel.py [RUNS]

No model is asked. Versions have a true quality: an author's B is A's plus a normal draw (sd 1: as often worse as
better), and AB lies halfway between the two, plus half such a draw. A judge ranks by Plackett and Luce: by quality plus
Gumbel noise, so that it prefers the better of two that differ by d with the chance 1 / (1 + exp(-skill * d)). Ballots,
points, margin, and the end are the product's own functions; a pass is decided as in a study.
"""

import math
import sys
from random import Random

from metaloop.ballots import borda, winner

NAMES = ("A", "B", "AB")
SKILLS = (0.0, 0.5, 1.0, 2.0, 4.0)
PASSES = 25


def ranked(qualities: dict[str, float], skill: float, dice: Random) -> tuple[str, ...]:
    """One judge's ranking, best first."""
    felt = {name: skill * quality - math.log(-math.log(dice.random())) for name, quality in qualities.items()}
    return tuple(sorted(felt, key=lambda name: -felt[name]))


def tournament(skill: float, judges: int, k: int, margin: int, dice: Random) -> tuple[float, int]:
    """The quality of the document at the end (it began with 0), and after how many passes."""
    quality, held = 0.0, 0
    for number in range(1, PASSES + 1):
        b = quality + dice.gauss(0, 1)
        qualities = {"A": quality, "B": b, "AB": (quality + b) / 2 + dice.gauss(0, 0.5)}
        won = winner(borda([ranked(qualities, skill, dice) for _ in range(judges)], NAMES), "A", NAMES, margin)
        assert won is not None, "every ballot here counts"
        held = held + 1 if won == "A" else 0
        quality = qualities[won]
        if held == k:
            return quality, number
    return quality, PASSES


def main(runs: int = 2000) -> None:
    dice = Random(1)
    print("| judges | margin | k | " + " | ".join(f"skill {skill:g}" for skill in SKILLS) + " |")
    print("|---|---|---|" + "---|" * len(SKILLS))
    for judges in (3, 7):
        for margin in (0, math.ceil(2 * judges / 3)):
            for k in (1, 2, 3):
                cells = []
                for skill in SKILLS:
                    ends = [tournament(skill, judges, k, margin, dice) for _ in range(runs)]
                    better = sum(quality > 0 for quality, _ in ends) / runs
                    worse = sum(quality < 0 for quality, _ in ends) / runs
                    passes = sum(number for _, number in ends) / runs
                    gain = sum(quality for quality, _ in ends) / runs
                    cells.append(f"{better:.0%} / {worse:.0%}, {gain:+.1f} in {passes:.0f}")
                print(f"| {judges} | {margin} | {k} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
