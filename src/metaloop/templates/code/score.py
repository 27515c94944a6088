"""What counts: how many boxes a candidate needs, from the packings that it left. It never runs its code.

No candidate sees this file at work, or may change it.
"""

import json
from random import Random

import check

HEAPS = 40


def heap(number):
    """The things of one heap: a hundred of them, always the same."""
    dice = Random(number)
    return [dice.randint(12, 62) for _ in range(100)]


def main():
    with open("packings.json") as file:
        packings = json.load(file)
    heaps = [*check.HEAPS, *(heap(number) for number in range(HEAPS))]
    if len(packings) != len(heaps):
        raise SystemExit(f"expected {len(heaps)} packings, found {len(packings)}")
    for number, packed in enumerate(packings):
        if wrong := check.faults(heaps[number], packed):
            raise SystemExit(f"heap {number}: {wrong}")
    print(f"boxes={sum(map(len, packings[len(check.HEAPS) :]))}")  # the line that the study reads


if __name__ == "__main__":
    main()
