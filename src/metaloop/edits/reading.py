"""A proposal's text as its parts: sections of diffs, blocks, whole files. Nothing is known here of what files hold."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import takewhile
from typing import Literal, NamedTuple, TypeAlias

from metaloop.edits.contract import FAULTS, NESTED, PARTS, Code, Fault
from metaloop.edits.paths import DEVICE, Files

_BLANK = {(" ", ""), (" ", "\r")}


class Change(NamedTuple):
    """Lines as in a hunk: each with a space, a minus or a plus. `at`: the place its header gives, from 0.

    `cut`: whether the last line is left without an end; None where nothing is said of it.
    """

    number: int
    lines: tuple[tuple[str, str], ...]
    at: int | None = None
    cut: bool | None = None

    def old(self) -> list[str]:
        return [text for tag, text in self.lines if tag != "+"]

    def new(self) -> list[str]:
        return [text for tag, text in self.lines if tag != "-"]

    def trimmed(self) -> "Change":
        """Without blank context around it: often such lines stand in the proposal alone."""
        lines = list(self.lines)
        while lines and lines[-1] in _BLANK:
            lines.pop()
        head = sum(1 for _ in takewhile(_BLANK.__contains__, lines))
        if not any(tag != "+" for tag, _ in lines[head:]):
            return self
        return self._replace(lines=tuple(lines[head:]), at=None if self.at is None else self.at + head)


class Patch(NamedTuple):
    """A file's section of a diff. `refused`: what its header asks for that is never done."""

    old: str
    new: str
    created: bool
    refused: tuple[Code, ...]
    hunks: tuple[Change, ...]

    def name(self) -> tuple[str, bool]:
        """The file's name, and whether an `a/` or `b/` in front of it may be a prefix: of names in pairs it is one."""
        name = self.old if self.new == "/dev/null" else self.new
        pair = name[:2] in ("a/", "b/") and (self.old, self.new) in (
            (f"a/{name[2:]}", f"b/{name[2:]}"), ("/dev/null", f"b/{name[2:]}"), (f"a/{name[2:]}", "/dev/null"),
        )  # fmt: skip
        return (name[2:], False) if pair else (name, True)


class Block(NamedTuple):
    """A SEARCH/REPLACE block."""

    name: str
    change: Change


class Whole(NamedTuple):
    """A file in a fence."""

    name: str
    language: str
    body: tuple[str, ...]


Part: TypeAlias = Patch | Block | Whole

_FENCE = re.compile(r"(?P<indent> *)(?P<mark>`{3,}|~{3,})(?P<info>[^`]*)$")
_SEARCH = re.compile(r"(?P<indent>\s*)(?P<mark><{5,9}) ?SEARCH\b(?P<rest>.*)$")
_REPLACE = re.compile(r"\s*>{5,9} ?REPLACE\b")
_HUNK = re.compile(r"@@+(?: -(\d{1,9})(?:,(\d{1,9}))? \+\d{1,9}(?:,(\d{1,9}))? @@)?")
_OPENED = re.compile(r"\s*<(?:think|thinking|thought|reasoning)\s*+>", re.IGNORECASE)
_CLOSED = re.compile(r"</(?:think|thinking|thought|reasoning)\s*+>", re.IGNORECASE)
_DIFFS = {"diff", "patch", "udiff", "unidiff"}
_MARKUP = {"markdown", "md", "rst"}
_NO_LANGUAGE = {"", "text", "txt", "plaintext", "plain"}
_DOCUMENTS = (".md", ".markdown", ".rst", ".txt")
PYTHON = {"python", "py", "python3"}

_LEAD = re.compile(r"(?:(?:#+|>|[-*+]|//|\d{1,3}[.)])\s++)*+")
_LABEL = re.compile(r"(?:file ?name|file ?path|file|path|title)\s*+[:=]\s*+", re.IGNORECASE)
_TRAIL = re.compile(r"\s*\((?:new|new file|updated|modified|changed|full|complete|whole file)\):?$", re.IGNORECASE)
_KEYED = re.compile(
    r"""(?:^|[\s{,])(?:title|path|file|filename)\s*+[=:]\s*+(?:"([^"]*)"|'([^']*)'|([^\s}",]+))""", re.I
)
_SUFFIX = re.compile(r"\.[A-Za-z]\w*$")


class Reader:
    """Splits a text into its parts, in one pass. Nothing is known here of what the files hold."""

    def __init__(self, text: str, files: Files) -> None:
        text = text.removeprefix("\ufeff")
        if text.count("\n") == text.count("\r\n"):
            text = text.replace("\r\n", "\n")
        self.lines = text.split("\n")
        self.files = files
        self.parts: list[Part] = []
        self.unnamed: list[Whole] = []
        self.faults: list[Fault] = []
        self.thought = False
        self.at = 0
        self.name = ""  # the last path that stood on a line of its own
        self.beside = ""  # that path, if nothing stands between
        self.fence: re.Match[str] | None = None  # the one we are in, if it holds diffs or blocks
        self.strings = True  # whether fences within strings of Python may be told from others
        self.nested = 0  # fences with edits that began in one that had not ended
        self.blocks = 0
        self._later: tuple[list[int], list[bool]] | None = None

    def read(self) -> None:
        while self.at < len(self.lines) and len(self.faults) < FAULTS:
            line = self.lines[self.at]
            if len(self.parts) + len(self.unnamed) > PARTS:
                self._fault("too_large", f"expected at most {PARTS} edits, found more")
                break
            if _SEARCH.match(line):
                self._block()
            elif _REPLACE.match(line):
                self._fault("malformed", "expected <<<<<<< SEARCH before it, found >>>>>>> REPLACE alone")
            elif self._diff_begins(self.at):
                self._patch()
            elif self.fence and _closes(line, self.fence):
                self.fence, self.beside = None, ""
                self.at += 1
            elif fence := _FENCE.match(line):
                self._fenced(fence)
            elif _OPENED.match(line):
                self._skip_thought()
            elif close := _CLOSED.search(line):
                self._forget(self.at, line[close.end() :])
            else:
                self._prose(line)

    def _fault(self, code: Code, text: str) -> None:
        self.faults.append(Fault(code, f"line {self.at + 1} of the proposal: {text}"))
        self.at += 1

    def _prose(self, line: str) -> None:
        if line.strip():
            self.beside = _named(line, self.files)
            self.name = self.beside or self.name
        self.at += 1

    # ---- thought

    def _skip_thought(self) -> None:
        self.thought = True
        for index in range(self.at, len(self.lines)):
            if close := _CLOSED.search(self.lines[index]):
                self.at, self.lines[index], self._later = index, self.lines[index][close.end() :], None
                return
        self.at = len(self.lines)

    def _forget(self, index: int, rest: str) -> None:
        """All that was read so far was thought."""
        self.parts, self.unnamed, self.faults = [], [], []
        self.thought, self.name, self.beside, self.fence = True, "", "", None
        self.at, self.lines[index], self._later = index, rest, None

    # ---- fences

    def _fenced(self, fence: re.Match[str]) -> None:
        language, name = _info(fence["info"], self.files)
        name = name or self.beside
        start, end = self.at + 1, self._end_of(fence, language, name)
        if self._holds_edits(start, len(self.lines) if end is None else end, language):
            self.nested += self.fence is not None
            self.fence, self.name, self.at = fence, name or self.name, start
            if self.nested > NESTED:
                self._fault("malformed", "expected an end of each block, found too many that begin within others")
                self.at = len(self.lines)
        elif end is not None and self._goes_on_after(end, language, name):
            text = "expected a fence longer than those within it, such as ````, as it is not clear which one ends it"
            self._fault("malformed", text)
            self.at = len(self.lines)
        elif end is not None:
            body = _dedented(self.lines[start:end], len(fence["indent"]))
            (self.parts if name else self.unnamed).append(Whole(name, language, tuple(body)))
            self.at, self.beside = end + 1, ""
        else:
            self._unclosed(start)

    def _unclosed(self, start: int) -> None:
        for index in range(start, len(self.lines)):
            if close := _CLOSED.search(self.lines[index]):
                return self._forget(index, self.lines[index][close.end() :])
        if any(line.strip() for line in self.lines[start:]):
            self._fault("malformed", "expected an end of the block that begins here, found none; was the text cut off?")
        self.at = len(self.lines)
        return None

    def _holds_edits(self, start: int, end: int, language: str) -> bool:
        """Whether a fence holds diffs or blocks, rather than a file."""
        if language in _DIFFS or any(_SEARCH.match(self.lines[index]) for index in range(start, end)):
            return True
        filled = [index for index in range(start, min(end, start + 5)) if self.lines[index].strip()]
        if filled and _named(self.lines[filled[0]], self.files):
            filled.pop(0)
        return bool(filled) and self._diff_begins(filled[0])

    def _end_of(self, fence: re.Match[str], language: str, name: str) -> int | None:
        """The line that closes a fence: those of fences within it, and within strings of Python, do not."""
        python = self.strings and (language in PYTHON or (not language and (name or "x.py").endswith(".py")))
        depth, quote = 1, ""
        for index in range(self.at + 1, len(self.lines)):
            line = self.lines[index]
            inner = None if quote else _FENCE.match(line)
            if inner and _bounds(inner, fence):
                depth += 1 if inner["info"].strip() else -1
                if not depth:
                    return index
            elif python:
                quote = _quote(line, quote)
        if not python or not quote:
            return None
        self.strings = False
        return self._end_of(fence, language, name)

    def _goes_on_after(self, end: int, language: str, name: str) -> bool:
        """Whether a document may have gone on after `end`: fences without a language come after it, as in documents."""
        target = name or (self.files.mutable[0] if len(self.files.mutable) == 1 else "")
        if language not in _MARKUP and (language not in _NO_LANGUAGE or not target.endswith(_DOCUMENTS)):
            return False
        where, alone = self._later = self._later or self._alone()
        return alone[bisect_right(where, end)]

    def _alone(self) -> tuple[list[int], list[bool]]:
        """The lines of all fences; and of each, whether it or one after it has no language, and closes none that has
        one, if nothing is open where it stands. Found from the end, so that each is looked at once.
        """
        found = ((index, _FENCE.match(line)) for index, line in enumerate(self.lines))
        fences = [(index, bool(fence["info"].strip())) for index, fence in found if fence]
        alone, after = [False], False
        for _, named in reversed(fences):
            here, after = (after, after) if named else (True, alone[-1])
            alone.append(here)
        return [index for index, _ in fences], alone[::-1]

    # ---- SEARCH/REPLACE

    def _block(self) -> None:
        lines, start = self.lines, self.at
        begin = _SEARCH.match(lines[start])
        assert begin
        divider, dividers, end = begin["indent"] + "=" * len(begin["mark"]), list[int](), 0
        for index in range(start + 1, len(lines)):
            if _SEARCH.match(lines[index]):
                break
            if lines[index].rstrip() == divider:
                dividers.append(index)
            elif _REPLACE.match(lines[index]):
                end = index
                break
        if not end or len(dividers) != 1:
            missing = "" if end else " and no >>>>>>> REPLACE after it"
            text = f"expected <<<<<<< SEARCH, one line of ======= and >>>>>>> REPLACE, found {len(dividers)} such lines"
            self._fault("malformed", f"{text}{missing}; lines that look like these marks can be changed by a diff")
            self.at = end + 1 if end else self.at
            return
        old, new = lines[start + 1 : dividers[0]], lines[dividers[0] + 1 : end]
        self.name = _named(begin["rest"], self.files) or self.name
        self.blocks += 1
        self.parts.append(Block(self.name, Change(self.blocks, tuple(_replacing(old, new)))))
        self.at, self.beside = end + 1, ""

    # ---- diffs

    def _diff_begins(self, index: int) -> bool:
        line = self.lines[index]
        if line.startswith(("diff --git ", "@@ -", "GIT binary patch")) or self._pair(index):
            return True
        in_diff = self.fence is not None and _info(self.fence["info"], self.files)[0] in _DIFFS
        return in_diff and line.startswith(("@@", "+", "-"))

    def _pair(self, index: int) -> bool:
        """Whether the two lines that name a file begin at `index`."""
        return self._line(index).startswith("--- ") and self._line(index + 1).startswith("+++ ")

    def _line(self, index: int) -> str:
        return self.lines[index] if index < len(self.lines) else ""

    def _patch(self) -> None:
        old, new = self.name, self.name
        created, refused = False, list[Code]()
        if self._line(self.at).startswith("diff --git "):
            old, new = _git_names(self.lines[self.at][len("diff --git ") :])
            self.at += 1
        while code := _extended(self._line(self.at)):
            created = created or self._line(self.at).startswith("new file mode")
            refused += [code] if code != "plain" else []
            self.at += 1
        if self._pair(self.at):
            old, new = _header(self.lines[self.at][4:]), _header(self.lines[self.at + 1][4:])
            self.at += 2
        if self._line(self.at).startswith(("GIT binary patch", "Binary files ")):
            refused.append("binary_blocked")
            self._pass_binary()
        hunks = self._hunks()
        if new == "/dev/null":
            refused.append("deletion_blocked")
        self.parts.append(Patch(old, new, created or old == "/dev/null", tuple(dict.fromkeys(refused)), hunks))
        self.beside = ""

    def _pass_binary(self) -> None:
        self.at += 1
        while self.at < len(self.lines) and not self._ends(self.at) and not self.lines[self.at].startswith("diff "):
            self.at += 1

    def _hunks(self) -> tuple[Change, ...]:
        hunks: list[Change] = []
        while self.at < len(self.lines):
            line = self.lines[self.at]
            if line.startswith("@@"):
                head = _HUNK.match(line)
                self.at += 1
            elif not hunks and line[:1] in ("+", "-", " ") and not self._ends(self.at):
                head = None
            elif not line and self._line(self.at + 1).startswith("@@"):
                self.at += 1
                continue
            else:
                break
            hunks.append(self._hunk(head, len(hunks) + 1))
        return tuple(hunks)

    def _hunk(self, head: re.Match[str] | None, number: int) -> Change:
        lines = self._counted(head) or self._uncounted()
        pairs, cut = list[tuple[str, str]](), None
        for line in lines:
            if line.startswith("\\"):
                cut = cut or (bool(pairs) and pairs[-1][0] != "-")
            else:
                tagged = line[:1] in ("+", "-", " ") and line != ""
                pairs.append((line[0], line[1:]) if tagged else (" ", line))
        self.at += len(lines)
        at, bare = None, not any(tag != "+" for tag, _ in pairs)
        if head and head[1] is not None and bare == (head[2] == "0"):
            at = max(0, int(head[1]) - (not bare))
        return Change(number, tuple(pairs), at, cut)

    def _counted(self, head: re.Match[str] | None) -> list[str]:
        """The lines of a hunk if there are as many as its header says, and another thing after them; else none."""
        if not head or head[1] is None:
            return []
        old, new = int(head[2] or 1), int(head[3] or 1)
        index = self.at
        while (old or new) and index < len(self.lines):
            tag = self.lines[index][:1]
            old, new = old - (tag in ("-", " ", "")), new - (tag in ("+", " ", ""))
            if min(old, new) < 0 or tag not in ("-", "+", " ", "", "\\"):
                return []
            index += 1
        index += self._line(index).startswith("\\")
        return [] if old or new or self._goes_on(index) else self.lines[self.at : index]

    def _goes_on(self, index: int) -> bool:
        """Whether what begins at `index` looks like more of a hunk."""
        last = index
        while self.fence and last < len(self.lines) and not self.lines[last]:
            last += 1
        line = self._line(last)
        if not line or self._pair(last) or line.rstrip() == "--" or line.startswith(("@@", "diff --git ", "Index: ")):
            return False
        return not self._ends(last) if self.fence else line[0] in "+- "

    def _uncounted(self) -> list[str]:
        """The lines of a hunk as far as they look like it; in a fence, all up to the next header."""
        index = self.at
        while index < len(self.lines) and not self._ends(index):
            line = self.lines[index]
            if line.startswith(("@@", "diff --git ", "Index: ")) or self._pair(index):
                break
            if line == "-- " and index > self.at:
                break
            if not self.fence and line[:1] not in ("", " ", "+", "-", "\\"):
                break
            index += 1
        while index > self.at and not self.lines[index - 1]:
            index -= 1
        return self.lines[self.at : index]

    def _ends(self, index: int) -> bool:
        return self.fence is not None and _closes(self.lines[index], self.fence)


# ---- lines of a proposal ---------------------------------------------------------------------------------------------


def _bounds(inner: re.Match[str], fence: re.Match[str]) -> bool:
    """Whether a line of a fence's kind and length is one for it, not indented further."""
    mark, outer = inner["mark"], fence["mark"]
    return mark[0] == outer[0] and len(mark) >= len(outer) and len(inner["indent"]) <= len(fence["indent"])


def _closes(line: str, fence: re.Match[str]) -> bool:
    inner = _FENCE.match(line)
    return inner is not None and _bounds(inner, fence) and not inner["info"].strip()


def _dedented(lines: Sequence[str], by: int) -> list[str]:
    return [line[by:] if not line[:by].strip() else line for line in lines] if by else list(lines)


_STRING = re.compile(r"""#.*|(\"{3}|'{3})|"(?:[^"\\]|\\.)*+"?|'(?:[^'\\]|\\.)*+'?""")
_STRING_END = {quote: re.compile(rf"(?:\\.|[^\\])*?{quote}") for quote in ('"""', "'''")}


def _quote(line: str, quote: str) -> str:
    """The triple quote that a string of Python is in after `line`, which began in `quote`; empty outside of one."""
    at = 0
    while True:
        if quote:
            if not (end := _STRING_END[quote].match(line, at)):
                return quote
            at, quote = end.end(), ""
        elif found := _STRING.search(line, at):
            at, quote = found.end(), found[1] or ""
        else:
            return ""


def _named(line: str, files: Files) -> str:
    """The path that a line consists of, but for what headings, lists, labels and emphasis add; else nothing."""
    if len(line) > 400:
        return ""
    bare = _TRAIL.sub("", line.strip()[_LEAD.match(line.strip()).end() :])  # type: ignore[union-attr]
    bare = bare.strip("*`\"' \t").rstrip(":").strip("*`\"' \t")
    label = _LABEL.match(bare)
    path = bare[label.end() :].strip("*`\"' \t") if label else bare
    return path if path and (label or _pathlike(path, files)) else ""


def _pathlike(word: str, files: Files) -> bool:
    """Whether a word is meant for a path: `and/or` is not."""
    if word in files.known:
        return True
    if " " in word or "://" in word:
        return False
    path = word.replace("\\", "/")
    first, slash, rest = path.partition("/")
    if slash and (first in files.names or first[:1] in (".", "~") or first[-1:] == ":" or (not first and "/" in rest)):
        return True
    return bool(_SUFFIX.search(path) or DEVICE.fullmatch(path))


def _info(info: str, files: Files) -> tuple[str, str]:
    """The language and the path that a fence is opened with."""
    words = info[:400].split()
    first = words[0].strip("{}").lower() if words else ""
    if keyed := _KEYED.search(info[:400]):
        return first, next(filter(None, keyed.groups()), "")
    for place, word in enumerate(words):
        language, colon, path = word.partition(":")
        if colon and language.isalnum() and len(language) > 1 and _pathlike(path, files):
            return language.lower(), path
        if word in files.known or _SUFFIX.search(word) or (place and _pathlike(word, files)):
            return first if place else "", word
    return first, ""


def _replacing(old: Sequence[str], new: Sequence[str]) -> list[tuple[str, str]]:
    """A block as a hunk: what begins and ends alike is context."""
    head = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    rest = min(len(old), len(new)) - head
    pairs = zip(reversed(old[len(old) - rest :]), reversed(new[len(new) - rest :]), strict=True)
    tail = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    gone, come = old[head : len(old) - tail], new[head : len(new) - tail]
    context = [(" ", line) for line in old]
    return [
        *context[:head],
        *(("-", line) for line in gone),
        *(("+", line) for line in come),
        *context[len(old) - tail :],
    ]


_MODES: dict[str, Code | Literal["plain"]] = {
    "120000": "symlink_blocked",
    "160000": "submodule_blocked",
    "100644": "plain",
}
_HEADERS: tuple[tuple[str, Code | Literal["plain"]], ...] = (
    ("rename ", "rename_blocked"),
    ("copy ", "copy_blocked"),
    ("old mode ", "mode_change_blocked"),
    ("new mode ", "mode_change_blocked"),
    ("deleted file mode ", "deletion_blocked"),
    ("similarity index ", "plain"),
    ("dissimilarity index ", "plain"),
)


def _extended(line: str) -> Code | Literal["plain"] | None:
    """What a header line of git's asks for; None where it is none."""
    if line.startswith("new file mode "):
        return _MODES.get(line.split()[-1], "mode_change_blocked")
    if line.startswith("index "):
        return _MODES.get(line.split()[-1], "plain")
    return next((code for head, code in _HEADERS if line.startswith(head)), None)


def _git_names(rest: str) -> tuple[str, str]:
    """Both names of a `diff --git` line; where they hold spaces, as if they were the same."""
    rest = rest.strip()
    if rest.startswith('"') and (match := _C_QUOTED.match(rest)):
        return _unquoted(match[0]), _header(rest[match.end() :].strip())
    half = len(rest) // 2
    if rest[half : half + 1] == " " and rest[1:half] == rest[half + 2 :]:
        return rest[:half], rest[half + 1 :]
    old, _, new = rest.rpartition(" ")
    return old, _header(new)


_C_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*+"')
_STAMP = re.compile(r"\s+\d{4}-\d\d-\d\d[ T].*$")
_ESCAPE = re.compile(r"\\([0-7]{1,3}|.)")
_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13}


def _header(name: str) -> str:
    """The name on a `---` or `+++` line, without quotes and what comes after it."""
    if match := _C_QUOTED.match(name):
        return _unquoted(match[0])
    name, tab, _ = name[:2000].partition("\t")
    return name if tab else _STAMP.sub("", name.strip())


def _unquoted(name: str) -> str:
    """A name as git quotes it, its escapes being bytes of UTF-8. What is none stays visible as such."""
    out, at = bytearray(), 1
    for match in _ESCAPE.finditer(name, 1, len(name) - 1):
        out += name[at : match.start()].encode("utf-8", "surrogatepass")
        code = int(match[1], 8) & 255 if match[1].isdigit() else _ESCAPES.get(match[1], ord(match[1][0]) & 255)
        out.append(code)
        at = match.end()
    out += name[at:-1].encode("utf-8", "surrogatepass")
    return out.decode("utf-8", "surrogateescape")
