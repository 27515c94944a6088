"""What counts: how many boxes 40 heaps of things take, a hundred things each. No candidate may change this file."""

from random import Random

from check import faults
from pack import pack


def main():
    boxes = 0
    for heap in range(40):
        dice = Random(heap)
        sizes = [dice.randint(12, 62) for _ in range(100)]
        packed = pack(list(sizes))
        if wrong := faults(sizes, packed):
            raise SystemExit(f"heap {heap}: {wrong}")
        boxes += len(packed)
    print(f"boxes={boxes}")  # the line that the study reads


if __name__ == "__main__":
    main()
