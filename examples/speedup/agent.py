"""Plays a coding agent: each call makes one improvement to src/spell.py in the current folder, and says so in a line.

It knows four changes of `patches/`, and makes the first that has a place in the code as it is now. Like a real agent it
reads the task where METALOOP_BRIEF says, and does not do again what that tells of. When nothing is left it changes
nothing.
"""

import os
import re
from pathlib import Path

PROGRAM = Path("src/spell.py")
KNOWN = ("01-two-rows", "04-lengths", "05-letters", "07-one-slip")
BLOCK = re.compile(r"<<<<<<< SEARCH\n(.*?\n)=======\n(.*?\n)>>>>>>> REPLACE", re.DOTALL)


def main():
    brief = os.environ.get("METALOOP_BRIEF")
    told = Path(brief).read_text(encoding="utf-8") if brief else ""
    code = PROGRAM.read_text(encoding="utf-8")
    for name in KNOWN:
        about = Path("patches", f"{name}.txt").read_text(encoding="utf-8")
        if f"made {name}" not in told and (better := changed(code, BLOCK.findall(about))):
            PROGRAM.write_text(better, encoding="utf-8")
            print(f"made {name}: {about.splitlines()[0]}")
            return
    print("nothing is left that I know of")


def changed(code, blocks):
    """The code after all of these changes; None where one has no place, or was made before."""
    for old, new in blocks:
        if code.count(old) != 1 or new in code:
            return None
        code = code.replace(old, new)
    return code


if __name__ == "__main__":
    main()
