"""Bytes to a tree of nodes with line numbers: the part of YAML 1.2 that a study file may use.

Nothing is ever constructed: values are text, lists and mappings, and `scalar` reads the core schema. Tags, merge keys,
directives for other versions and further documents are refused, duplicate keys too. Aliases are allowed, and counted
as what they expand to.
"""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from metaloop.values import Scalar

MOST_NODES = 20_000  # after aliases: a study file has some hundreds
MOST_DEPTH = 32
Place: TypeAlias = tuple[str | int, ...]
"""Where in a document: keys, and places in lists."""


class Unreadable(Exception):
    """The text is no YAML document; what follows this place (the last key that was read) cannot be looked at."""

    def __init__(self, message: str, line: int | None = None, at: Place = ()) -> None:
        self.message, self.line, self.at = message, line, at
        super().__init__(message)


@dataclass(frozen=True)
class Problem:
    """Something that is not allowed, after which reading goes on."""

    at: Place
    line: int
    message: str


@dataclass(frozen=True)
class Node:
    """A scalar's text, a list or a mapping, and the line it begins on. `plain`: without quotes. `size`: of its tree."""

    line: int
    held: "str | list[Node] | dict[str, Node]"
    plain: bool = False
    size: int = 1
    key_lines: dict[str, int] = field(default_factory=dict)


# ---- scalars ---------------------------------------------------------------------------------------------------------

_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}


def scalar(text: str) -> Scalar | None:
    """What an unquoted scalar means in YAML 1.2's core schema: 1e-3 is a number, `yes` and 1_000 are text.

    A whole number of more than 400 digits is cut there: it is refused later, and Python will not read it.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        base = {"0o": 8, "0x": 16}.get(text[:2], 10)
        return int(text[:400], base)
    if _FLOAT.fullmatch(text):
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


# ---- text ------------------------------------------------------------------------------------------------------------

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


def decode(data: bytes) -> str:
    """UTF-8, or what a byte order mark announces. Never a guess."""
    mark, encoding = next(((m, e) for m, e in _MARKS if data.startswith(m)), (b"", "utf-8"))
    body = data[len(mark) :]
    try:
        return body.decode(encoding)
    except UnicodeDecodeError as error:
        line = body[: error.start].decode(encoding, "ignore").count("\n") + 1
        raise Unreadable(
            f"expected text in UTF-8, found the byte 0x{body[error.start]:02x} that is none; save the file as UTF-8",
            line,
        ) from None


# ---- documents -------------------------------------------------------------------------------------------------------


def read(text: str) -> tuple[Node | None, list[Problem]]:
    """The one document in `text`, None where there is none, and what is not allowed in it.

    Raises `Unreadable` where reading cannot go on: syntax, size, depth, an unknown alias.
    """
    reader = _Reader(_events(text))
    try:
        return reader.document(), reader.problems
    except Unreadable as error:
        raise Unreadable(error.message, error.line, reader.at) from None


@dataclass(frozen=True)
class _Event:
    """A parser's event: its kind, its line, and what there is of the rest."""

    kind: str
    line: int
    value: str = ""
    quoted: bool = False
    tag: str | None = None
    anchor: str | None = None
    version: tuple[int, ...] | None = None


def _events(text: str) -> Iterator[_Event]:
    """The one place that knows the parser. Its errors become `Unreadable`, with the line."""
    from ruamel.yaml import YAML  # slow to import, and not needed for a study without a file
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.reader import ReaderError

    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            yield _Event(
                type(event).__name__.removesuffix("Event"),
                event.start_mark.line + 1,
                getattr(event, "value", ""),
                getattr(event, "style", None) is not None,
                getattr(event, "tag", None),
                getattr(event, "anchor", None),
                getattr(event, "version", None),
            )
    except ReaderError as error:
        character = text[error.position : error.position + 1] or "\0"
        line = text.count("\n", 0, error.position) + 1
        raise Unreadable(f"expected printable text, found U+{ord(character):04X}; remove it", line) from None
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Unreadable(
            _syntax(f"{error.context or ''} {error.problem or ''}"), mark.line + 1 if mark else 1
        ) from None
    except YAMLError as error:
        raise Unreadable(_syntax(str(error)), None) from None


def _syntax(problem: str) -> str:
    hint = "; indent with spaces" if "\\t" in problem else ""
    return f"expected YAML, found a syntax error: {' '.join(problem.split())[:200]}{hint}"


class _Reader:
    """Turns the events of one document into nodes, without recursion deeper than `MOST_DEPTH`."""

    def __init__(self, events: Iterator[_Event]) -> None:
        self.events = events
        self.problems: list[Problem] = []
        self.anchors: dict[str, Node] = {}
        self.nodes = 0
        self.at: Place = ()

    def document(self) -> Node | None:
        root: Node | None = None
        started = False
        for event in self.events:
            match event.kind:
                case "StreamStart" | "DocumentEnd" | "StreamEnd":
                    continue
                case "DocumentStart" if started:
                    raise Unreadable(
                        "expected one document, found a second after '---'; give it a file of its own", event.line
                    )
                case "DocumentStart":
                    started = True
                    self._directives(event)
                case _:
                    root = self.node(event, ())
        return None if root is None or (root.held == "" and root.plain) else root

    def _directives(self, event: _Event) -> None:
        if event.version is not None and event.version != (1, 2):
            found = ".".join(map(str, event.version))
            self.problems.append(Problem((), event.line, f"expected YAML 1.2, found %YAML {found}; remove that line"))

    def node(self, event: _Event, at: Place) -> Node:
        line = event.line
        self.at = at
        self.nodes += 1
        if len(at) > MOST_DEPTH or self.nodes > MOST_NODES:
            what = f"{MOST_DEPTH} levels" if len(at) > MOST_DEPTH else f"{MOST_NODES} values"
            raise Unreadable(f"expected a study file, found more than {what}", line)
        if event.kind == "Alias":
            return self._alias(event, line)
        if event.tag is not None:
            self.problems.append(Problem(at, line, _no_tags(event.tag)))
        match event.kind:
            case "MappingStart":
                node = self._mapping(line, at)
            case "SequenceStart":
                node = self._sequence(line, at)
            case _:
                node = Node(line, event.value, plain=not event.quoted)
        self._within_bounds(node.size, line)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def _within_bounds(self, size: int, line: int) -> None:
        if size > MOST_NODES:
            raise Unreadable(
                f"expected a study file, found more than {MOST_NODES} values once aliases are expanded", line
            )

    def _alias(self, event: _Event, line: int) -> Node:
        node = self.anchors.get(event.anchor or "")
        if node is None:
            raise Unreadable(
                f"expected an anchor &{(event.anchor or '')[:60]} before its alias, found none that is complete", line
            )
        return node

    def _sequence(self, line: int, at: Place) -> Node:
        items: list[Node] = []
        size = 1
        while (event := next(self.events)).kind != "SequenceEnd":
            items.append(self.node(event, (*at, len(items))))
            size += items[-1].size
            self._within_bounds(size, line)
        return Node(line, items, size=size)

    def _mapping(self, line: int, at: Place) -> Node:
        held: dict[str, Node] = {}
        lines: dict[str, int] = {}
        size = 1
        while (event := next(self.events)).kind != "MappingEnd":
            key, where = self._key(event, at), event.line
            place = self.at = (*at, key)
            value = self.node(next(self.events), place)
            size += value.size
            self._within_bounds(size, where)
            if key == "<<":
                self.problems.append(Problem(place, where, "merge keys are not part of YAML 1.2; write the keys out"))
            elif key in held:
                self.problems.append(
                    Problem(
                        place, where, f"expected each key once, found it again (first on line {lines[key]}); remove one"
                    )
                )
            else:
                held[key], lines[key] = value, where
        return Node(line, held, size=size, key_lines=lines)

    def _key(self, event: _Event, at: Place) -> str:
        self.at = at
        if event.tag is not None:
            raise Unreadable(_no_tags(event.tag), event.line)
        node = self.node(event, at) if event.kind in {"Scalar", "Alias"} else None
        if node is None or not isinstance(node.held, str):
            raise Unreadable("expected text as a key, found a list or a mapping", event.line)
        return node.held


def _no_tags(tag: str) -> str:
    return f"expected a plain value, found the tag {tag[:60]}; remove it, tags are not used here"
