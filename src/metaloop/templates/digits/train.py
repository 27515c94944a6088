"""A small neural network reads handwritten digits: 500 to learn from, 700 to be judged by, 597 never used to choose.

It is ordinary code that knows nothing of metaloop: `python3 train.py` runs it as it is. Three things connect the two:

    AR_PARAMS_JSON      what this trial tries, as a JSON object; whatever is absent keeps its default below
    METALOOP_SEED       the seed of this run: the first weights, and the order in which the images come
    accuracy=0.9xxxx    the result, on a line of its own
"""

import json
import os
import time
from importlib.util import find_spec
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # trials run side by side: one core each

import numpy as np  # after the line above, which it reads as it loads

DEFAULTS = {
    "learning_rate": 0.01,
    "momentum": 0.9,
    "batch_size": 32,
    "hidden": 64,
    "activation": "relu",
    "weight_decay": 0.0001,
}
EPOCHS = 20
NETWORKS = 3  # each run trains so many and reports their mean: less luck in the result
LEARN, JUDGE = 500, 700


def digits():
    """The 1,797 images of `sklearn.datasets.load_digits()`, 64 numbers each, and the digit that each shows.

    Read from its file, because to import scikit-learn takes longer than all the training here.
    """
    package = find_spec("sklearn")
    if package is None:
        raise SystemExit("expected scikit-learn, whose images these are; type: pip install scikit-learn")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",", dtype=np.float32)
    table = np.random.default_rng(0).permutation(table)  # the same split in every run
    return table[:, :64] / 16, table[:, 64].astype(int)


def train(images, labels, dice, *, learning_rate, momentum, batch_size, hidden, activation, weight_decay):
    """One hidden layer, softmax, gradient descent by batches with momentum. Returns a function: images to digits."""
    w1 = dice.normal(0, (2 / 64) ** 0.5, (64, hidden)).astype(np.float32)
    w2 = dice.normal(0, (2 / hidden) ** 0.5, (hidden, 10)).astype(np.float32)
    b1, b2 = np.zeros(hidden, np.float32), np.zeros(10, np.float32)
    weights = [w1, w2, b1, b2]
    speeds = [np.zeros_like(weight) for weight in weights]
    wanted = np.eye(10, dtype=np.float32)[labels]

    def bend(x):
        return np.maximum(x, 0) if activation == "relu" else np.tanh(x)

    def slope(h):
        return h > 0 if activation == "relu" else 1 - h * h

    for _ in range(EPOCHS):
        order = dice.permutation(len(images))
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            x = images[batch]
            h = bend(x @ w1 + b1)
            y = h @ w2 + b2
            z = np.exp(y - y.max(1, keepdims=True))
            error = (z / z.sum(1, keepdims=True) - wanted[batch]) / len(batch)
            back = error @ w2.T * slope(h)
            slopes = (x.T @ back + weight_decay * w1, h.T @ error + weight_decay * w2, back.sum(0), error.sum(0))
            for weight, speed, gradient in zip(weights, speeds, slopes, strict=True):
                speed *= momentum
                speed -= learning_rate * gradient
                weight += speed
    return lambda x: (bend(x @ w1 + b1) @ w2 + b2).argmax(1)


def main():
    params = DEFAULTS | json.loads(os.environ.get("AR_PARAMS_JSON") or "{}")
    seed = int(os.environ.get("METALOOP_SEED") or 0)
    images, labels = digits()

    began = time.perf_counter()
    np.seterr(all="ignore")  # too large a step ends in nan: a poor accuracy, and no reason to warn
    networks = [
        train(images[:LEARN], labels[:LEARN], np.random.default_rng([seed, number]), **params)
        for number in range(NETWORKS)
    ]
    seconds = time.perf_counter() - began
    right = np.mean([read(images[LEARN:]) == labels[LEARN:] for read in networks], axis=0)

    print(f"accuracy={right[:JUDGE].mean():.5f}")
    print(f"test_accuracy={right[JUDGE:].mean():.5f}")  # not what is searched for, so nothing can fool itself on it
    print(f"fit_seconds={seconds:.3f}")


if __name__ == "__main__":
    main()
