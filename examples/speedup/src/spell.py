"""Corrects spelling: for each word on stdin, a line with the nearest word of a dictionary.

    python3 src/spell.py tests/dictionary.txt < words.txt

Nearest: the fewest letters put in, left out or replaced; of words as near, the one that is used most often; of those,
the first in alphabetical order.
"""

import sys


def read_dictionary(path):
    """Its words, and how often each is used."""
    counts = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            word, count = line.split()
            counts[word] = int(count)
    return counts


def distance(one, other):
    """How many letters have to be put in, left out or replaced to make `other` of `one`."""
    table = [[0] * (len(other) + 1) for _ in range(len(one) + 1)]
    for i in range(len(one) + 1):
        table[i][0] = i
    for j in range(len(other) + 1):
        table[0][j] = j
    for i in range(1, len(one) + 1):
        for j in range(1, len(other) + 1):
            replaced = table[i - 1][j - 1] + (one[i - 1] != other[j - 1])
            table[i][j] = min(replaced, table[i - 1][j] + 1, table[i][j - 1] + 1)
    return table[len(one)][len(other)]


def correct(word, counts):
    """The nearest word of `counts`."""
    best = None
    for known, count in counts.items():
        found = (distance(word, known), -count, known)
        if best is None or found < best:
            best = found
    return best[2]


def main():
    counts = read_dictionary(sys.argv[1])
    for line in sys.stdin:
        print(correct(line.rstrip("\n"), counts))


if __name__ == "__main__":
    main()
