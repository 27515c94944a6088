"""Runs a candidate: packs every heap, and leaves the packings for score.py. No candidate may change this file."""

import json

from pack import pack
from score import HEAPS, heap


def main():
    with open("packings.json", "w") as file:
        json.dump([pack(heap(number)) for number in range(HEAPS)], file)


if __name__ == "__main__":
    main()
