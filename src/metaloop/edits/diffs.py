"""Diffs, written."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import TypeAlias


def diff(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """A unified diff in git's form. `git apply` and `edit` make `after` of `before` with it, unless a file that ends
    all its lines alike is to get a line that ends otherwise: `edit` keeps to what the file has.
    """
    paths = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
    return "".join(line for path in paths for line in _section(path, before.get(path), after.get(path)))


CONTEXT = 3
_PRODUCT = 10_000
"""Lines by lines at most that are compared each with each; more without a line that stands once are replaced whole."""

_Run: TypeAlias = tuple[int, int, int, int]
"""Lines that differ: from and to in the old text, from and to in the new."""


def _section(path: str, old: str | None, new: str | None) -> Iterator[str]:
    """The part of a diff that is one file's."""
    ours, theirs = _git_quoted(f"a/{path}"), _git_quoted(f"b/{path}")
    yield f"diff --git {ours} {theirs}\n"
    if old is None or new is None:
        yield f"{'new' if old is None else 'deleted'} file mode 100644\n"
    before, after = _ended(old or ""), _ended(new or "")
    runs = _differences(before, after)
    if not runs:
        return
    tab = "\t" if " " in path else ""
    yield f"--- {'/dev/null' if old is None else ours + tab}\n+++ {'/dev/null' if new is None else theirs + tab}\n"
    for group in _grouped(runs):
        yield from _hunk_lines(before, after, group)


def _hunk_lines(before: Sequence[str], after: Sequence[str], group: Sequence[_Run]) -> Iterator[str]:
    lead = min(CONTEXT, group[0][0])
    trail = min(CONTEXT, len(before) - group[-1][1])
    start, end = group[0][0] - lead, group[-1][1] + trail
    first, last = group[0][2] - lead, group[-1][3] + trail
    yield f"@@ -{_range(start, end)} +{_range(first, last)} @@\n"
    at = start
    for one, two, three, four in group:
        yield from (_tagged(" ", line) for line in before[at:one])
        yield from (_tagged("-", line) for line in before[one:two])
        yield from (_tagged("+", line) for line in after[three:four])
        at = two
    yield from (_tagged(" ", line) for line in before[at:end])


def _range(start: int, end: int) -> str:
    return f"{start + (end > start)},{end - start}"


def _tagged(tag: str, line: str) -> str:
    return f"{tag}{line}" if line.endswith("\n") else f"{tag}{line}\n\\ No newline at end of file\n"


def _ended(text: str) -> list[str]:
    """Lines with their ends; only a line feed ends a line."""
    lines = text.split("\n")
    return [*(f"{line}\n" for line in lines[:-1]), *filter(None, lines[-1:])]


def _git_quoted(name: str) -> str:
    if name.isascii() and name.isprintable() and not set(name) & set('"\\'):
        return name
    return '"' + "".join(_git_byte(byte) for byte in name.encode("utf-8", "surrogateescape")) + '"'


def _git_byte(byte: int) -> str:
    if byte in b'"\\':
        return f"\\{chr(byte)}"
    return chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"


def _grouped(runs: Sequence[_Run]) -> Iterator[list[_Run]]:
    """Runs whose context meets, together."""
    group: list[_Run] = []
    for run in runs:
        if group and run[0] - group[-1][1] > 2 * CONTEXT:
            yield group
            group = []
        group.append(run)
    yield group


def _differences(old: Sequence[str], new: Sequence[str]) -> list[_Run]:
    """What differs, in about linear time: between lines that stand once in both texts, in order, and then closer."""
    anchors = [*_anchors(old, new), (len(old), len(new))]
    runs: list[_Run] = []
    start = first = 0
    for end, last in anchors:
        runs += _gap(old, new, (start, end, first, last))
        start, first = end + 1, last + 1
    return runs


def _anchors(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs of equal lines that stand once in each text, as many as are in the same order in both."""
    once, twice = Counter(old), Counter(new)
    place = {line: number for number, line in enumerate(new)}
    pairs = [(at, place[line]) for at, line in enumerate(old) if once[line] == 1 == twice.get(line)]
    ends: list[int] = []
    tops: list[int] = []
    back: list[int] = []
    for number, (_, there) in enumerate(pairs):
        at = bisect_left(ends, there)
        back.append(tops[at - 1] if at else -1)
        ends[at : at + 1] = [there]
        tops[at : at + 1] = [number]
    chain: list[tuple[int, int]] = []
    number = tops[-1] if tops else -1
    while number >= 0:
        chain.append(pairs[number])
        number = back[number]
    return chain[::-1]


def _gap(old: Sequence[str], new: Sequence[str], gap: _Run) -> list[_Run]:
    """What differs between two anchors."""
    start, end, first, last = gap
    while start < end and first < last and old[start] == new[first]:
        start, first = start + 1, first + 1
    while start < end and first < last and old[end - 1] == new[last - 1]:
        end, last = end - 1, last - 1
    if start == end and first == last:
        return []
    if start == end or first == last or (end - start) * (last - first) > _PRODUCT:
        return [(start, end, first, last)]
    codes = SequenceMatcher(None, old[start:end], new[first:last], autojunk=False).get_opcodes()
    return [(start + a, start + b, first + c, first + d) for tag, a, b, c, d in codes if tag != "equal"]
