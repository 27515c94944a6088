"""From the six planets that Kepler knew, learn how long a year is on Uranus and Neptune. Replace this by your own.

It is ordinary code that knows nothing of metaloop: `python3 train.py` runs it as it is. Three things connect the two:

    AR_PARAMS_JSON    what this trial tries, as a JSON object; whatever is absent keeps its default below
    METALOOP_SEED     the seed of this run; use it for all that is left to chance
    error=0.xxxxx     the result, on a line of its own
"""

import json
import math
import os
import random

DEFAULTS = {"learning_rate": 0.01, "momentum": 0.0, "batch_size": 2}
STEPS = 200  # the same for all: more of them would only be a longer run

PLANETS = {  # distance from the sun and length of the year, both in those of the earth
    "Mercury": (0.387, 0.241),
    "Venus": (0.723, 0.615),
    "Earth": (1.0, 1.0),
    "Mars": (1.524, 1.881),
    "Jupiter": (5.203, 11.862),
    "Saturn": (9.537, 29.457),
    "Uranus": (19.19, 84.01),
    "Neptune": (30.07, 164.8),
}


def train(pairs, dice, *, learning_rate, momentum, batch_size):
    """Fits log(year) = a * log(distance) + b by gradient descent, a few planets a step. Returns a and b."""
    a, b = dice.gauss(0, 1), dice.gauss(0, 1)
    speed_a = speed_b = 0.0
    for _ in range(STEPS):
        batch = dice.sample(pairs, batch_size)
        wrong = [(a * x + b - y, x) for x, y in batch]
        speed_a = momentum * speed_a - learning_rate * sum(e * x for e, x in wrong) / batch_size
        speed_b = momentum * speed_b - learning_rate * sum(e for e, _ in wrong) / batch_size
        a, b = a + speed_a, b + speed_b
    return a, b


def main():
    params = DEFAULTS | json.loads(os.environ.get("AR_PARAMS_JSON") or "{}")
    dice = random.Random(int(os.environ.get("METALOOP_SEED") or 0))
    pairs = [(math.log(distance), math.log(year)) for distance, year in PLANETS.values()]
    fits = [train(pairs[:6], dice, **params) for _ in range(20)]
    error = sum(abs(a * x + b - y) for a, b in fits for x, y in pairs[6:]) / (2 * len(fits))
    print(f"error={error:.6f}")  # of log(year): 0.01 is one per cent of a year


if __name__ == "__main__":
    main()
