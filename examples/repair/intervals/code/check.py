"""Runs `solve` of solution.py on the cases in a file: lists of [arguments, what is expected]. An error is its name."""

import json
import sys

from solution import solve


def answer(arguments):
    try:
        return json.loads(json.dumps(solve(*arguments)))
    except Exception as error:
        return type(error).__name__


with open(sys.argv[1]) as file:
    cases = json.load(file)
wrong = [(given, found, wanted) for given, wanted in cases if (found := answer(given)) != wanted]
for given, found, wanted in wrong:
    print(f"solve({', '.join(map(repr, given))}) gave {found!r}, expected {wanted!r}")
print(f"passed={1 - len(wrong) / len(cases)}")
