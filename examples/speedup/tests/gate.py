"""Whether src/spell.py still answers as it should: each case of cases.json, with its own small dictionary.

    python3 -m tests.gate       # says in a line what is wrong, and fails

The answers are written down in the cases; nothing of the program is loaded here.
"""

import json
import subprocess
import sys
from pathlib import Path

from bench import Wrong, compare, run


def main():
    cases = json.loads((Path(__file__).parent / "cases.json").read_text(encoding="utf-8"))
    for case in cases:
        dictionary = "".join(f"{word} {count}\n" for word, count in case["dictionary"].items())
        words, answers = list(case["asked"]), list(case["asked"].values())
        found, _ = run(dictionary, words)
        try:
            compare(words, found, answers)
        except Wrong as wrong:
            raise Wrong(f"{wrong} ({case['what']})") from None
    print(f"{len(cases)} cases are right")


if __name__ == "__main__":
    try:
        main()
    except (Wrong, subprocess.TimeoutExpired) as error:
        sys.exit(str(error))
