"""What a packing has to be; and the gate: small heaps that have to come out right, before a candidate is measured.

No candidate may change this file. But the gate runs the candidate in its own process, which could end it as if all were
right: so score.py looks at the same heaps again, where none of its code runs.
"""

from collections import Counter

HEAPS = ([], [8], [100], [50, 50], [60, 60, 60], [20, 30, 50, 70, 30], [1] * 250)


def faults(sizes, boxes):
    """What is wrong with a packing, in words; nothing, if nothing is."""
    if Counter(size for box in boxes for size in box) != Counter(sizes):
        return "expected every thing in one box, found others"
    return next((f"a box holds {sum(box)}, more than 100" for box in boxes if sum(box) > 100), "")


def main():
    from pack import pack

    for sizes in HEAPS:
        if wrong := faults(sizes, pack(list(sizes))):
            raise SystemExit(f"{sizes}: {wrong}")
    print(f"{len(HEAPS)} heaps are right")


if __name__ == "__main__":
    main()
