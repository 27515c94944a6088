"""What may be changed, what is answered, and the words of a refusal."""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from metaloop.values import Value

Code: TypeAlias = Literal[
    "empty_proposal", "not_an_edit", "too_large", "malformed", "no_match", "ambiguous_match", "no_change",
    "unsafe_path", "frozen_file_mutation_blocked", "out_of_scope_mutation_blocked",
    "rename_blocked", "copy_blocked", "mode_change_blocked", "symlink_blocked", "submodule_blocked",
    "binary_blocked", "deletion_blocked", "syntax_error", "required_call_removed", "outside_evolve_block",
]  # fmt: skip

FAULTS, TOLD, NOTES = 8, 2000, 20
"""Faults named at most, characters of their text, and notes."""

SOUGHT = 200
"""Edits at most that stand elsewhere than their header says, and so have to be looked for in the whole file."""

TURNS = 16
"""How often edits may build on what others of the same proposal wrote."""

FILES = 1000
"""Files that one proposal may change."""

PARTS = 4000
"""Blocks and sections of diffs in a proposal."""

NESTED = 5
"""Fences with edits that may begin before the one before has ended."""


class Contract(Value, frozen=True):
    """What may be changed: files that `mutable` covers and `frozen` does not. All else is frozen.

    `required_calls`: functions (`report`, `mod.report`) whose calls stay if there are any in a mutable Python file.
    `most`, `most_file`: bytes of a proposal and of a file it changes.
    """

    mutable: tuple[str, ...]
    frozen: tuple[str, ...] = ()
    required_calls: tuple[str, ...] = ()
    most: int = 1 << 20
    most_file: int = 4 << 20

    def allows(self, path: str) -> bool:
        return any(covers(glob, path) for glob in self.mutable) and not self.freezes(path)

    def freezes(self, path: str) -> bool:
        return any(covers(glob, path) for glob in self.frozen)


class Edited(Value, frozen=True):
    """The files whose text is another than before, new ones included. `notes`: what was not taken word for word."""

    files: dict[str, str]
    notes: tuple[str, ...] = ()


class Broken(Value, frozen=True):
    """Why nothing is changed: `code` is the first fault's, stable and for programs, `text` is for the proposer."""

    code: Code
    text: str


# ---- globs -----------------------------------------------------------------------------------------------------------

_GLOB = re.compile(r"\*\*/|\*\*|\*|\?|\[[!^]?\]?[^\]/]*\]|[^*?\[]+|\[")


def covers(glob: str, path: str) -> bool:
    """Whether a file at `path` is meant by `glob`, as in a study file: `*` and `?` stay within a name, `**/` is any
    folders or none, `**` at the end all that is below, and a path without wildcards also all that is below it.

    Takes time in proportion to the product of both lengths, whatever they are.
    """
    glob = "/".join(part for part in glob.split("/") if part not in ("", "."))
    if not glob or path == glob or path.startswith(f"{glob}/"):
        return True
    ends = {0}
    for token in _GLOB.findall(re.sub(r"(\*\*/)+", "**/", re.sub(r"\*{2,}", "**", glob))):
        if not (ends := _step(token, path, ends)):
            return False
    return len(path) in ends


def _step(token: str, path: str, ends: set[int]) -> set[int]:
    """Where in `path` one may be after `token`, being at one of `ends` before it."""
    match token:
        case "**/":
            first = min(ends)
            return ends | {at + 1 for at in range(first, len(path)) if path[at] == "/"}
        case "**":
            return set(range(min(ends), len(path) + 1))
        case "*":
            reached: set[int] = set()
            for at in sorted(ends):
                stop = path.find("/", at)
                if at not in reached:
                    reached.update(range(at, (stop if stop >= 0 else len(path)) + 1))
            return reached
        case "?":
            return {at + 1 for at in ends if path[at : at + 1] not in ("", "/")}
        case _ if token[0] == "[" and token != "[":
            return {at + 1 for at in ends if path[at : at + 1] not in ("", "/") and _in_set(token[1:-1], path[at])}
        case _:
            return {at + len(token) for at in ends if path.startswith(token, at)}


def regex(glob: str) -> str:
    """The same as a regular expression that a whole path has to match, for who has nothing else."""
    glob = "/".join(part for part in glob.split("/") if part not in ("", "."))
    if not re.search(r"[*?\[]", glob):
        return f"{re.escape(glob)}(?:/.*)?" if glob else ".*"
    tokens = _GLOB.findall(re.sub(r"(\*\*/)+", "**/", re.sub(r"\*{2,}", "**", glob)))
    return "".join({"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(t) or _as_regex(t) for t in tokens)


def _as_regex(token: str) -> str:
    if token[0] != "[" or token == "[":
        return re.escape(token)
    inside = token[1:-1].removeprefix("!").removeprefix("^")
    members = re.sub(r"([\\\[\]^&~|])", r"\\\1", inside)
    return f"(?!/)[{'^' if inside != token[1:-1] else ''}{members}]"


def _in_set(members: str, letter: str) -> bool:
    """Whether `letter` is one of `a-z_`, or none of `!a-z_`."""
    inside = members.removeprefix("!") if members[:1] == "!" else members.removeprefix("^")
    at, found = 0, False
    while at < len(inside):
        last = at + 2 if inside[at + 1 : at + 2] == "-" and at + 2 < len(inside) else at
        found = found or inside[at] <= letter <= inside[last]
        at = last + 1
    return found != (inside != members)


# ---- faults ----------------------------------------------------------------------------------------------------------


class Fault(NamedTuple):
    code: Code
    text: str


def broken(faults: Sequence[Fault]) -> Broken:
    texts = dict.fromkeys(bounded(fault.text, TOLD // 2) for fault in faults[:FAULTS])
    return Broken(faults[0].code, bounded("\n".join(texts), TOLD))


def shown(name: str) -> str:
    """A name that someone made up, in printable ASCII, cut."""
    plain = name[:200] if name.isascii() and name.isprintable() else ascii(name[:200])[1:-1]
    return plain if len(plain) <= 120 else f"{plain[:116]} ..."


def listed(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names[:8])) or "none"


def quoted(line: str) -> str:
    """A line of a file, with tabs and the like made visible, cut."""
    cut = line if len(line) <= 100 else f"{line[:96]} ..."
    return cut if cut.isprintable() else repr(cut)[1:-1]


def bounded(text: str, most: int) -> str:
    """`text` in UTF-8, `most` characters at most."""
    cut = text if len(text) <= most else text[: most - 4] + " ..."
    return cut.encode("utf-8", "replace").decode("utf-8")


def in_bytes(text: str) -> int:
    return max(len(text), len(text.encode("utf-8", "surrogatepass")))
