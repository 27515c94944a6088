"""The parts of a proposal on their way into files: which file is meant, and which place in it."""

import re
from bisect import bisect_left, insort
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from metaloop.edits.contract import FAULTS, SOUGHT, TURNS, Code, Contract, Fault, listed, quoted, shown
from metaloop.edits.paths import Files, path_faults, unsafe
from metaloop.edits.reading import PYTHON, Block, Change, Part, Patch, Whole

_KINDS: dict[Code, str] = {
    "rename_blocked": "rename",
    "copy_blocked": "copy",
    "mode_change_blocked": "change of the file's mode",
    "symlink_blocked": "symbolic link",
    "submodule_blocked": "submodule",
    "binary_blocked": "binary patch",
    "deletion_blocked": "deletion",
}


class Desk:
    """Takes the parts of a proposal in their order and finds the file and the place for each."""

    def __init__(self, files: Files, contract: Contract, faults: Sequence[Fault]) -> None:
        self.files, self.contract = files, contract
        self.faults = list(faults)
        self.notes: list[str] = []
        self.drafts: dict[str, _Draft] = {}
        self.whole: set[str] = set()
        self.sought = self.turns = 0

    def texts(self) -> dict[str, str]:
        return {path: draft.text() for path, draft in self.drafts.items()}

    def unnamed(self, blocks: Sequence[Whole]) -> list[Whole]:
        """The block that is the only mutable file, if there is one."""
        if not (path := self._only()):
            return []
        likely = [block for block in blocks if block.language in PYTHON] if path.endswith(".py") else []
        filled = [block for block in likely or blocks if any(line.strip() for line in block.body)]
        best = max(enumerate(filled), key=lambda item: (sum(map(len, item[1].body)), item[0]), default=None)
        if not best:
            return []
        self.notes.append(f"a block without a path was taken for the whole of {shown(path)}")
        return [best[1]._replace(name=path)]

    def take(self, part: Part) -> None:
        match part:
            case Patch():
                self._patch(part)
            case Block(name, change):
                self._block(name, change)
            case Whole(name, _, body):
                self._whole(name, body)

    def _fault(self, code: Code, text: str) -> None:
        self.faults.append(Fault(code, text))

    def _patch(self, part: Patch) -> None:
        name, prefixed = part.name()
        if not (name := name or self._only()):
            return self._nameless("hunks")
        path, faults = self._path(name, prefixed=prefixed, moved=not part.created)
        text = f"{shown(path)}: expected changes of text, found a"
        refused = [Fault(code, f"{text} {_KINDS[code]}, which is never made") for code in part.refused]
        unsafe = [fault for fault in faults if fault.code == "unsafe_path"]
        if faults or refused:
            self.faults += unsafe or (refused + faults)
        elif not part.created and self._is_other(part.old, path):
            text = f"{shown(path)}: expected changes in place, found {shown(part.old)} as its source"
            self._fault("rename_blocked", text)
        elif not part.hunks and not part.created:
            self._fault("malformed", f"{shown(path)}: expected hunks after the header, found none")
        elif path in self.files.known or path in self.drafts:
            self._change(path, part)
        elif any(hunk.old() for hunk in part.hunks):
            self._missing(path)
        else:
            lines = [line for hunk in part.hunks for line in hunk.new()]
            self._new(path).fill(lines, final=not any(hunk.cut for hunk in part.hunks))
        return None

    def _nameless(self, what: str) -> None:
        text = f"{what}: expected a path on a line before, found none; files that may be changed"
        self._fault("malformed", f"{text}: {listed(self.files.mutable)}")

    def _change(self, path: str, part: Patch) -> None:
        if part.created:
            text = f"{shown(path)}: expected no file there, since --- says /dev/null, found one; change it by its lines"
            self._fault("malformed", text)
        elif draft := self._draft(path):
            for hunk in part.hunks:
                self._place(draft, hunk, f"hunk {hunk.number} of {shown(path)}")

    def _is_other(self, old: str, path: str) -> bool:
        """Whether a `---` line names an existing file that is not the one that `+++` means."""
        options = _options(_plain(old), prefixed=True)
        return path not in options and any(option in self.files.known for option in options)

    def _block(self, name: str, change: Change) -> None:
        what = f"block {change.number}"
        if not (name := name or self._only()):
            return self._nameless(what)
        path, faults = self._path(name, prefixed=False, moved=bool(change.old()))
        self.faults += faults
        if faults:
            return None
        if not change.old() and path not in self.files.known and path not in self.drafts:
            return self._new(path).fill(change.new(), final=True)
        if draft := self._draft(path):
            self._place(draft, change, f"{what} of {shown(path)}")
        return None

    def _whole(self, name: str, body: tuple[str, ...]) -> None:
        path, faults = self._path(name, prefixed=False, moved=not self.contract.allows(_plain(name)))
        self.faults += faults
        if faults:
            return None
        if not any(line.strip() for line in body) and path in self.files.known:
            return self._fault("malformed", f"{shown(path)}: expected the whole file in its block, found it empty")
        if path in self.whole:
            self.notes.append(f"several blocks are {shown(path)}: the last was taken")
        self.whole.add(path)
        draft = self._new(path) if path not in self.files.known else self._draft(path)
        if draft:
            draft.fill(list(body), final=draft.final or not draft.lines)
        return None

    # ---- which file

    def _only(self) -> str:
        return self.files.mutable[0] if len(self.files.mutable) == 1 else ""

    def _draft(self, path: str) -> "_Draft | None":
        if path not in self.drafts:
            if path not in self.files.before:
                self._missing(path)
                return None
            self.drafts[path] = _Draft(self.files.before[path])
        return self.drafts[path]

    def _new(self, path: str) -> "_Draft":
        if path not in self.drafts and not path.isascii():
            self.notes.append(f"new file {shown(path)}")
        return self.drafts.setdefault(path, _Draft(None))

    def _missing(self, path: str) -> None:
        text = f"{shown(path)}: expected a file that was shown, found none of that name"
        self._fault("no_match", f"{text}; files that may be changed: {listed(self.files.mutable)}")

    def _path(self, raw: str, *, prefixed: bool, moved: bool) -> tuple[str, list[Fault]]:
        """The path that is meant, and what forbids to change it. `moved`: the end of a mutable file's path will do."""
        plain = _plain(raw)
        options = _options(plain, prefixed)
        path = next((option for option in options if option in self.files.known or option in self.drafts), None)
        if path is None and moved and not unsafe(plain):
            found = self._ending(options)
            if len(found) > 1:
                text = f"{shown(raw)}: expected the whole path, found several that it may mean: {listed(found)}"
                return raw, [Fault("ambiguous_match", text)]
            if found:
                path = found[0]
                self.notes.append(f"{shown(raw)} was taken for {shown(path)}")
        path = options[0] if path is None else path
        return path, path_faults(path, self.files, self.contract)

    def _ending(self, options: Sequence[str]) -> list[str]:
        """The mutable files whose path ends with one of `options`, the longest that any ends with."""
        for option in sorted(options, key=len, reverse=True):
            if found := [path for path in self.files.mutable if path.endswith(f"/{option}")]:
                return found
        return []

    # ---- which place

    def _place(self, draft: "_Draft", change: Change, what: str) -> None:
        """Puts a change where it belongs; where it belongs nowhere, once more after those before it."""
        if len(self.faults) >= FAULTS:
            return None
        settled = self._settle(draft, change)
        if isinstance(settled, Fault) and draft.pending and self.turns < TURNS:
            self.turns += 1
            draft.turn()
            settled = self._settle(draft, change)
        if isinstance(settled, Fault):
            return self._fault(settled.code, f"{what}: {settled.text}")
        change, place = settled
        if place.loose:
            self.notes.append(f"{what} matched but for white space")
        if change.at is not None and place.start != change.at:
            self.notes.append(f"{what} found at line {place.start + 1}, not {change.at + 1}")
        return None

    def _settle(self, draft: "_Draft", change: Change) -> "tuple[Change, _Place] | Fault":
        """The change as it could be placed, and where that was."""
        bare = change.trimmed()
        place: _Place | Fault
        if standing := next((one for one in (change, bare) if draft.stands(one)), None):
            change, place = standing, _Place(standing.at or 0, {}, loose=False)
        else:
            self.sought += 1
            if self.sought > SOUGHT:
                return Fault("too_large", f"expected at most {SOUGHT} edits without their place, found more")
            place = draft.find(change)
            if isinstance(place, Fault) and place.code == "no_match" and bare != change:
                other = draft.find(bare)
                change, place = (change, place) if isinstance(other, Fault) else (bare, other)
        if isinstance(place, Fault):
            return place
        if not draft.put(change, place):
            return Fault("ambiguous_match", "expected lines that no other edit changes, found some that one does")
        return change, place


def _plain(raw: str) -> str:
    """A path with / for backslashes and without what leads nowhere."""
    path = raw.replace("\\", "/")
    return "/".join(part for place, part in enumerate(path.split("/")) if part != "." and (part or not place))


def _options(path: str, prefixed: bool) -> list[str]:
    """What a path may stand for: `a/` and `b/` are prefixes of diffs, or folders."""
    if path[:2] not in ("a/", "b/"):
        return [path]
    return [path[2:], path] if prefixed else [path, path[2:]]


class _Place(NamedTuple):
    """Where a change goes; what its indentation is there; whether its lines stand there only but for white space."""

    start: int
    indents: dict[str, str]
    loose: bool


def _same(line: str) -> str:
    return line.removesuffix("\r")


def _words(line: str) -> str:
    return " ".join(line.split())


_VIEWS: tuple[Callable[[str], str], ...] = (_same, str.rstrip, _words)
"""How lines are compared, strictest first."""


class _Draft:
    """A file on its way. Edits wait in `pending`, by their place in `lines`, until `turn` makes them."""

    def __init__(self, text: str | None) -> None:
        old = text or ""
        self.bom = "\ufeff" if old.startswith("\ufeff") else ""
        ends = old.count("\r\n")
        self.crlf = 0 < ends == old.count("\n")
        self.mixed = text is None or 0 < ends != old.count("\n")
        self.lines, self.final = _split(old[len(self.bom) :], self.crlf)
        self.pending: list[tuple[int, int, int, tuple[str, ...]]] = []
        self.views: dict[Callable[[str], str], str] = {}
        self.index: dict[str, list[int]] = {}

    def text(self) -> str:
        self.turn()
        end = "\r\n" if self.crlf else "\n"
        return self.bom + end.join(self.lines) + (end if self.final and self.lines else "")

    def fill(self, lines: list[str], *, final: bool) -> None:
        self.turn()
        self.lines, self.final = [self._fit(line) for line in lines], final
        self.views, self.index = {}, {}

    def _fit(self, line: str) -> str:
        return line if self.mixed else line.removesuffix("\r")

    def turn(self) -> None:
        """Makes all edits that wait."""
        if not self.pending:
            return
        out: list[str] = []
        at = 0
        for start, end, _, new in self.pending:
            out += self.lines[at:start]
            out += new
            at = end
        self.lines = out + self.lines[at:]
        self.pending, self.views, self.index = [], {}, {}

    def put(self, change: Change, place: _Place) -> bool:
        """Whether the change can wait along with the others: not if it touches lines that they change."""
        runs = list(self._runs(change, place))
        for start, end, _, _ in runs:
            at = bisect_left(self.pending, (start,))
            if at and self.pending[at - 1][1] > start:
                return False
            while at < len(self.pending) and self.pending[at][0] < end:
                if self.pending[at][1] > start:
                    return False
                at += 1
        for run in runs:
            insort(self.pending, run)
        if change.cut is not None and place.start + len(change.old()) == len(self.lines):
            self.final = not change.cut
        return True

    def _runs(self, change: Change, place: _Place) -> Iterator[tuple[int, int, int, tuple[str, ...]]]:
        """The lines that go and come, run by run: from, to, a number that keeps the order, the new ones."""
        start = at = place.start
        new: list[str] = []
        for tag, line in (*change.lines, (" ", "")):
            match tag:
                case "+":
                    new.append(_indented(self._fit(line), place.indents))
                case "-":
                    at += 1
                case _:
                    if new or at > start:
                        yield start, at, len(self.pending), tuple(new)
                    start = at = at + 1
                    new = []

    # ---- finding

    def stands(self, change: Change) -> bool:
        """Whether the lines of a change stand where its header says."""
        old, at = change.old(), change.at
        if at is None or at + len(old) > len(self.lines):
            return False
        return all(_same(one) == _same(other) for one, other in zip(old, self.lines[at : at + len(old)], strict=True))

    def find(self, change: Change) -> _Place | Fault:
        old = change.old()
        if not old:
            text = "expected lines of the file to find the place by, found none"
            return Fault("no_match", text) if self.lines else _Place(0, {}, loose=False)
        for view in _VIEWS:
            places = self._places(old, view)
            if len(places) > 1:
                lines = ", ".join(str(place.start + 1) for place in places[:8])
                more = " and more" if len(places) > 8 else ""
                text = (
                    f"expected lines that stand once in the file, found them at lines {lines}{more}; give more context"
                )
                return Fault("ambiguous_match", text)
            if places:
                return places[0]
        return Fault("no_match", self._nearest(old))

    def _places(self, old: Sequence[str], view: Callable[[str], str]) -> list[_Place]:
        """Where lines stand, nine places at most."""
        if view not in self.views:
            self.views[view] = "".join(f"\n{view(line)}" for line in self.lines) + "\n"
        text, sought = self.views[view], "".join(f"\n{view(line)}" for line in old) + "\n"
        places: list[_Place] = []
        at = text.find(sought)
        while at >= 0 and len(places) < 9:
            start = text.count("\n", 0, at)
            indents = _indents(old, self.lines[start : start + len(old)]) if view is _words else {}
            if indents is not None:
                places.append(_Place(start, indents, loose=view is not _same))
            at = text.find(sought, at + 1)
        return places

    def _stands(self, line: str, at: int) -> bool:
        """Whether the file has this line there, but for white space."""
        return 0 <= at < len(self.lines) and self.lines[at].split() == line.split()

    def _nearest(self, old: Sequence[str]) -> str:
        """Words on a search that found nothing: what was sought, and the lines that are most like it."""
        text = f"expected lines of the file, found none like these {len(old)}, "
        if not self.index:
            index: dict[str, list[int]] = defaultdict(list)
            for number, line in enumerate(self.lines):
                for word in set(re.findall(r"\w+", line[:200])):
                    index[word].append(number)
            self.index = index
        votes: Counter[int] = Counter()
        for place, line in enumerate(old[:40]):
            for word in set(re.findall(r"\w+", line[:200])):
                for number in (numbers := self.index.get(word, []))[:50]:
                    votes[number - place] += 1 + 100 // len(numbers)
        if not votes:
            return f"{text}which begin\n{_sought(old)}\nnor any that shares a word with them"
        best = max(votes, key=lambda start: (votes[start], -start))
        there = enumerate(old, best)
        odd = next((at - best for at, line in there if not self._stands(line, at)), 0)
        text += f"of which line {odd + 1} is the first that differs\n" if odd else "which begin\n"
        text += _sought(old[odd:])
        first = max(0, best + max(0, odd - 1))
        last = min(len(self.lines), max(1, best + odd + min(len(old) - odd, 6)))
        shown = "\n".join(f"  {number + 1}| {quoted(self.lines[number])}" for number in range(first, last))
        return f"{text}\nnearest are\n{shown}"


def _sought(lines: Sequence[str]) -> str:
    return "\n".join(f"  {quoted(line)}" for line in lines[:4])


def _split(text: str, crlf: bool) -> tuple[list[str], bool]:
    """The lines of a text, and whether the last one is ended."""
    lines = (text.replace("\r\n", "\n") if crlf else text).split("\n")
    return (lines[:-1], True) if not lines[-1] else (lines, False)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _indents(old: Sequence[str], found: Sequence[str]) -> dict[str, str] | None:
    """For each indentation in `old` the one that the file has there; None if it has several for one."""
    indents: dict[str, str] = {}
    for one, other in zip(old, found, strict=True):
        if one.strip() and indents.setdefault(_indent(one), _indent(other)) != _indent(other):
            return None
    return indents


def _indented(line: str, indents: Mapping[str, str]) -> str:
    """A new line with the indentation that lines like it have in the file, and as much more as it has."""
    own = _indent(line)
    if not indents or not line.strip():
        return line
    base = max((one for one in indents if own.startswith(one)), key=len, default=None)
    if base is None:
        return line
    rest, tabbed = own[len(base) :], any("\t" in there and "\t" not in here for here, there in indents.items())
    if tabbed and rest:
        unit = min((len(one) // len(indents[one]) for one in indents if one and indents[one]), default=4)
        rest = "\t" * (len(rest) // max(1, unit))
    return indents[base] + rest + line[len(own) :]
