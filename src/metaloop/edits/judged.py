"""Whether a change of files may be, whoever made it: judged by the texts before and after alone."""

import ast
import re
import symtable
import warnings
from collections.abc import Collection, Iterator, Mapping

from metaloop.edits.contract import FAULTS, FILES, Broken, Contract, Fault, broken, in_bytes, quoted, shown
from metaloop.edits.paths import Files, clashes, path_faults


def judge(
    before: Mapping[str, str], after: Mapping[str, str], contract: Contract, others: Collection[str] = ()
) -> Broken | None:
    """What forbids to go from `before` to `after`, both complete, whoever made the change; None where nothing does."""
    changed = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    if not changed:
        return Broken("no_change", "expected a change, found every file as it was")
    if len(changed) > FILES:
        return Broken("too_large", f"expected changes of at most {FILES} files, found {len(changed)}")
    files = Files(before, others, contract)
    faults: list[Fault] = []
    faults += clashes(path for path in changed if path not in files.known)
    for path in changed:
        faults += path_faults(path, files, contract)
        if (new := after.get(path)) is None:
            faults.append(Fault("deletion_blocked", f"{shown(path)}: expected the file to stay, found it deleted"))
        else:
            faults += _text_faults(path, before.get(path), new, contract)
        if len(faults) >= FAULTS:
            break
    faults += () if faults else _lost_calls(before, after, changed, contract)
    return broken(faults) if faults else None


_MARKER = re.compile(r"\W*EVOLVE-BLOCK-(START|END)\b")


def _text_faults(path: str, old: str | None, new: str, contract: Contract) -> list[Fault]:
    name = shown(path)
    if (size := in_bytes(new)) > contract.most_file:
        return [Fault("too_large", f"{name}: expected at most {contract.most_file} bytes, found {size}")]
    if _binary(new) and not _binary(old or ""):
        return [Fault("binary_blocked", f"{name}: expected text, found a null or half a character in it")]
    if left_out := _elided(old or "", new):
        return [Fault("malformed", f"{name}: expected all lines, found one for lines that are left out: {left_out}")]
    if old is not None and (problem := _outside(old, new)):
        return [Fault("outside_evolve_block", f"{name}: {problem}")]
    if path.endswith(".py") and (slip := _slip(new)):
        return [Fault("syntax_error", f"{name}: expected Python, found {slip}")]
    return []


def _binary(text: str) -> bool:
    return "\0" in text or re.search("[\ud800-\udfff]", text) is not None


_ELIDED = re.compile(
    r"""\s*+ (?:\#|//|/\*|<!--|--|;|%)\s*+ (?:
      (?:\.{3}|…)\s*+\(? (?:the\ |your\ )? (?:rest|remainder|remaining|existing|previous|unchanged|same|other|omitted)\b
      | \(?(?:the\ )? (?:rest|remainder)\ of\ [^\n]{,40}? (?:unchanged|same|as\ before|\.{3}|…)
    )""",
    re.IGNORECASE | re.VERBOSE,
)
"""A comment for what a proposer did not write again."""


def _elided(old: str, new: str) -> str:
    """The first new line that stands for lines left out, and would be written in their place."""
    lines = [line for line in new.split("\n") if _ELIDED.match(line)]
    known = set(old.split("\n")) if lines else set()
    return next((quoted(line.strip()) for line in lines if line not in known), "")


def _outside(old: str, new: str) -> str:
    """What differs outside of the evolve blocks; empty where nothing does, or there are none."""
    if "EVOLVE-BLOCK-" not in old or not (kept := _segments(old)):
        return ""
    if isinstance(kept, str):
        return f"expected EVOLVE-BLOCK marks in pairs in the file as it was, found {kept}; it cannot be changed"
    found = _segments(new)
    if not found:
        return "expected the EVOLVE-BLOCK marks of the file, found none; change only what is between them"
    if isinstance(found, str):
        return f"expected EVOLVE-BLOCK marks in pairs, found {found}"
    if len(found) != len(kept):
        return f"expected {len(kept) - 1} EVOLVE-BLOCK regions, as before, found {len(found) - 1}"
    for (_, was), (first, now) in zip(kept, found, strict=True):
        if was != now:
            at = next(
                (i for i, pair in enumerate(zip(was, now, strict=False)) if pair[0] != pair[1]), min(len(was), len(now))
            )
            line = f"{quoted(was[at])!r}" if at < len(was) else "nothing more"
            return f"line {first + at}: expected {line}, since it is outside of the EVOLVE-BLOCK regions, found another"
    return ""


def _segments(text: str) -> list[tuple[int, list[str]]] | str:
    """What is outside of evolve blocks, marks included: the number of the first line and the lines of each segment.

    Empty where there is no mark; words where the marks are no pairs.
    """
    segments, lines = [(1, list[str]())], text.split("\n")
    inside = marked = False
    for number, line in enumerate(lines, 1):
        mark = _MARKER.match(line)
        if mark and inside == (mark[1] == "START"):
            return f"one {mark[1]} too many on line {number}"
        if mark and inside:
            segments.append((number, []))
        if mark or not inside:
            segments[-1][1].append(line)
        if mark:
            inside, marked = not inside, True
    if inside:
        return "a START without an END"
    return segments if marked else []


def _slip(text: str) -> str:
    """Why a text is no Python; empty where it is. `symtable` is the parser without a tree of objects: half the time."""
    if problem := _excessive(text):
        return problem
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            symtable.symtable(text.removeprefix("\ufeff"), "", "exec")
    except SyntaxError as error:
        line = text.split("\n")[error.lineno - 1 : error.lineno] if error.lineno else []
        return f"{error.msg} on line {error.lineno}: {quoted(''.join(line).strip())}"
    except (RecursionError, MemoryError):
        return "nesting too deep to read"
    except ValueError as error:
        return str(error)
    return ""


_CHAIN = re.compile(r"\.[\s\\]*+\w++(?:[\s\\]*+\.[\s\\]*+\w++)*+")
_SCOPE = re.compile(r"\b(?:def|lambda|class)\b")
_FORMATTED = re.compile(r"\b(?:[fF][rR]?|[rR][fF])[\"']")
DOTS, SCOPES, BRACES = 1000, 10_000, 20_000


def _excessive(text: str) -> str:
    """What a text has so much of that Python's parser would take time and memory by the square of it."""
    if any(chain[0].count(".") > DOTS for chain in _CHAIN.finditer(text)):
        return f"a name of more than {DOTS} parts"
    if sum(1 for _ in _SCOPE.finditer(text)) > SCOPES:
        return f"more than {SCOPES} functions and classes"
    if text.count("{") > BRACES and _FORMATTED.search(text):
        return f"more than {BRACES} braces in a file with formatted strings"
    return ""


def _lost_calls(
    before: Mapping[str, str], after: Mapping[str, str], changed: Collection[str], contract: Contract
) -> list[Fault]:
    lost = _called(before, changed, contract.required_calls) - _called(after, changed, contract.required_calls)
    kept = [path for path in after if path not in changed and contract.allows(path)] if lost else []
    return [
        Fault("required_call_removed", f"expected a call of {shown(name)} to stay, found it in no mutable file")
        for name in sorted(lost - _called(after, kept, lost))
    ]


def _called(files: Mapping[str, str], paths: Collection[str], names: Collection[str]) -> set[str]:
    """Which of the functions `names` are called in the Python files at `paths`."""
    called: set[str] = set()
    for path in paths:
        text = files.get(path, "")
        sought = [name for name in names if name not in called and name.rpartition(".")[2] in text]
        if sought and path.endswith(".py") and not _slip(text):
            calls = {f".{_dotted(node.func)}" for node in _nodes(text) if isinstance(node, ast.Call)}
            called.update(name for name in sought if any(call.endswith(f".{name}") for call in calls))
    return called


def _nodes(text: str) -> Iterator[ast.AST]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield from ast.walk(ast.parse(text.removeprefix("\ufeff")))


def _dotted(node: ast.expr) -> str:
    names: list[str] = []
    while isinstance(node, ast.Attribute) and len(names) < 16:
        names.append(node.attr)
        node = node.value
    return ".".join([*([node.id] if isinstance(node, ast.Name) else []), *reversed(names)])
