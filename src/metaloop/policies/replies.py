"""From a model's text to a point of the space, or to words that can be sent back to the model.

Finding is lenient, reading is strict. An object is found wherever it stands: in prose, in any fence, in a wrapper
(`{"result": {"params": {...}}}`), in a tool call, in a string that is itself JSON. It is read as JSON and nothing else:
what NaN, a key that stands twice, a trailing comma or a number in quotes was meant to be is not guessed, and nothing is
rounded, clamped or filled in.

Which object is the answer: the last complete one that holds a point of the space, also where earlier ones hold another.
Thought is no answer: what stands in `<think>` up to the first `</think>` (or the end), and all before a `</think>`
that nothing opened. Nor is anything within a broken object: it is passed over whole, and one that is never closed
ends the reading, since what follows may belong to it. Keys beside the parameters' own object are not read, and named in
the note; keys among the parameters are refused. Time is linear in the text, whatever stands in it.

None knows whether the point was tried before, or why the model stopped.
"""

import json
import math
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from metaloop.values import Domain, Range, Scalar, Space, accept, describe, number

Code: TypeAlias = Literal[
    "too_long", "too_many", "empty", "thought", "no_object", "not_json",
    "ambiguous", "missing", "unknown", "type", "outside",
]  # fmt: skip

LONGEST = 256 * 1024
"""Bytes of a reply at most: a point takes a hundredth of it."""

MOST = 1000
"""Objects of a text at most, and of a list that wraps some, its last so many: no answer has more."""

DEEPEST = 64
"""Levels of an object at most: a reader without recursion needs no limit, but whoever prints what it read does."""

WRAPPED = 12
"""Wrappers around the parameters at most."""

TOLD, WHY, NOTE = 2000, 2000, 300
"""Characters of a problem, of the model's reason and of a note at most."""

PARAMS = {"params", "parameters", "hyperparameters"}
HOLDERS = {"values", "config", "configuration", "settings", "point"}
ENVELOPES = {
    "result",
    "response",
    "answer",
    "output",
    "proposal",
    "proposals",
    "suggestion",
    "candidate",
    "trial",
    "data",
}
CALLS = {"tool_calls", "tool_call", "tool_use", "function_call", "function", "arguments", "args", "input"}
WRAPPERS = PARAMS | HOLDERS | ENVELOPES | CALLS
"""Keys that parameters may stand under, in any case of letters. What is called `PARAMS` is meant for them, whatever it
holds; of the others, the one that names a parameter is meant.
"""

REASONS = {"rationale", "why", "reason", "reasons", "reasoning", "explanation", "justification", "hypothesis"}
REASONS |= {"thought", "thoughts", "analysis", "comment"}
"""Keys of the model's reason, beside the parameters or around them."""

FRAME = {"name", "id", "type", "index", "role"}
"""Keys of a tool call that say nothing."""


class Point(msgspec.Struct, frozen=True):
    """A point of the space, as the space holds it, every parameter in it; the model's reason; how it was found."""

    values: dict[str, Scalar]
    why: str
    note: str


class Problem(msgspec.Struct, frozen=True):
    """Why there is no point: `code` is stable and for programs, `text` is for the model, as it is, and bounded."""

    code: Code
    text: str


Read: TypeAlias = Point | Problem


def values(text: str, space: Space) -> Read:
    """The point that `text` answers with, or what is wrong with it. Never raises; same text and space, same answer."""
    if (size := max(len(text), len(text.encode("utf-8", "surrogatepass")))) > LONGEST:
        return Problem("too_long", f"expected a reply of at most {LONGEST} bytes, found {size}. {_wanted(space)}")
    if not text.strip():
        return Problem("empty", f"expected a JSON object, found an empty reply. {_wanted(space)}")
    found = _find(text)
    if len(found.things) > MOST:
        return Problem("too_many", f"expected one JSON object, found more than {MOST}. {_wanted(space)}")
    reads = [read for thing in found.things for read in _reads(thing, space)]
    return _last(reads, space) if reads else _nothing(text, found, space)


# ---- which object is the answer --------------------------------------------------------------------------------------


class _Ranked(NamedTuple):
    """A read of one object. `likely`: how much it looks like the answer, for when none is one."""

    read: Read
    likely: int


def _last(reads: Sequence[_Ranked], space: Space) -> Read:
    """The last point; where there is none, the problem of the last object that looks most like an answer."""
    points = [(place, ranked.read) for place, ranked in enumerate(reads) if isinstance(ranked.read, Point)]
    if not points:
        _, problem = max(enumerate(reads), key=lambda item: (item[1].likely, item[0]))
        assert isinstance(problem.read, Problem)
        return Problem(problem.read.code, _bounded(f"{problem.read.text}\n{_wanted(space)}", TOLD))
    place, point = points[-1]
    notes = [point.note] if point.note else []
    if len(points) > 1:
        differ = " and differ" if any(other.values != point.values for _, other in points) else ""
        notes.append(f"the last of {len(points)} objects that hold a point{differ}")
    if later := len(reads) - 1 - place:
        notes.append(f"objects after it that hold none: {later}")
    return Point(point.values, point.why, _bounded("; ".join(notes), NOTE))


def _nothing(text: str, found: "_Found", space: Space) -> Problem:
    if found.thought:
        return Problem("thought", f"expected a JSON object after the thinking, found none. {_wanted(space)}")
    begins = _shown(text.strip())
    return Problem("no_object", f"expected a JSON object, found none in a text that begins {begins}. {_wanted(space)}")


def _wanted(space: Space) -> str:
    """What an answer looks like."""
    keys = ", ".join(map(_clipped, space))
    return _bounded(f'Send one JSON object with "why" and "params", and in "params" {keys}.', TOLD // 2)


# ---- where in an object the parameters stand -------------------------------------------------------------------------


class _Level(NamedTuple):
    """An object that is taken for the parameters: where it stands, what is around it, innermost first.

    `fault`: what keeps it from being read at all.
    """

    path: str
    held: dict[str, object]
    around: tuple[dict[str, object], ...]
    fault: Problem | None = None

    def likely(self, space: Space) -> int:
        return 2 if any(name in space for name in self.held) else int(bool(self.path))


def _reads(thing: "_Object | _Broken", space: Space) -> Iterator[_Ranked]:
    """What one object of the text comes to: several points where a list holds several."""
    if isinstance(thing, _Broken):
        yield _Ranked(Problem("not_json", thing.text), 1)
        return
    for level in _levels(thing, space, "", ()):
        yield _Ranked(_point(level, space), level.likely(space))


def _levels(thing: "_Object", space: Space, path: str, around: tuple[dict[str, object], ...]) -> list[_Level]:
    """The innermost objects that wrappers lead to. Two wrappers side by side that are both meant are a fault."""
    if thing.slips:
        return [_Level(path, thing.held, around, Problem("not_json", "\n".join(thing.slips)))]
    inside = {} if len(around) == WRAPPED else _inside(thing.held, space, path, around)
    meant = [
        key
        for key, levels in inside.items()
        if key.lower() in PARAMS or any(level.likely(space) == 2 for level in levels)
    ]
    if len(meant) > 1:
        keys = " and ".join(_shown(key) for key in meant)
        text = f"{path or 'the object'}: expected the parameters once, found them under {keys}"
        return [_Level(path, thing.held, around, Problem("ambiguous", text))]
    return [level for key in meant or inside for level in inside[key]] or [_Level(path, thing.held, around)]


def _inside(
    held: dict[str, object], space: Space, path: str, around: tuple[dict[str, object], ...]
) -> dict[str, list[_Level]]:
    """By wrapper, the levels that it leads to. None where the object has a parameter of its own."""
    if any(name in space and not isinstance(value, dict) for name, value in held.items()):
        return {}
    inside: dict[str, list[_Level]] = {}
    for key, value in held.items():
        if key.lower() not in WRAPPERS:
            continue
        for step, member in _opened(value):
            place = f"{path}.{key}{step}" if path else f"{key}{step}"
            inside.setdefault(key, []).extend(
                [_Level(place, {}, (held, *around), Problem("not_json", f"{place}: {member.text}"))]
                if isinstance(member, _Broken)
                else _levels(member, space, place, (held, *around))
            )
    return inside


def _opened(value: object) -> Iterator[tuple[str, "_Object | _Broken"]]:
    """The objects that a wrapper holds: itself one, a list of some, or a text that is one."""
    if isinstance(value, dict):
        yield "", _Object(value, ())
    elif isinstance(value, list):
        for index, member in list(enumerate(value))[-MOST:]:
            if isinstance(member, dict):
                yield f"[{index}]", _Object(member, ())
    elif isinstance(value, str) and value.lstrip().startswith("{"):
        thing, end = _parse(value, value.index("{"))
        rest = value[end:].strip() if isinstance(thing, _Object) else ""
        yield "", _Broken(f"expected nothing after the object, found {_shown(rest)}") if rest else thing


# ---- parameters, strictly --------------------------------------------------------------------------------------------


def _point(level: _Level, space: Space) -> Read:
    faults = [level.fault] if level.fault else list(_faults(level, space))
    if not faults:
        given = {name: value for name, value in level.held.items() if name in space}
        held = accept(space, given)  # type: ignore[arg-type]  # scalars, by _fault below
        if isinstance(held, dict):
            return Point(held, _why(level, space), _note(level))
        faults = [Problem("outside", held)]
    return Problem(faults[0].code, "\n".join(_bounded(fault.text, TOLD // 4) for fault in faults[:8]))


def _faults(level: _Level, space: Space) -> Iterator[Problem]:
    """Everything that is wrong with the parameters, what was given first."""
    for name, value in level.held.items():
        place = f"{level.path}.{name}" if level.path else name
        if name not in space:
            if name.lower() in WRAPPERS:
                yield Problem(
                    "type", f"{_clipped(place)}: expected an object with the parameters, found {_shown(value)}"
                )
            elif not (name.lower() in REASONS and isinstance(value, str)):
                yield _unknown(_clipped(place), name, space)
        elif (fault := _fault(_clipped(place), space[name], value)) is not None:
            yield fault
    for name in space:
        if name not in level.held:
            place = f"{level.path}.{name}" if level.path else name
            yield Problem("missing", f"{_clipped(place)}: expected {_domain(space[name])}, found nothing")


def _fault(place: str, domain: Domain, value: object) -> Problem | None:
    """What is wrong with one value, or None."""
    scalar = isinstance(value, bool | int | float | str)
    if isinstance(value, bool | int | float | str) and domain.accept(value) is not None:
        return None
    code: Code = "outside" if scalar and (number(value) or not isinstance(domain, Range)) else "type"
    quoted = "; a number stands without quotes" if isinstance(domain, Range) and isinstance(value, str) else ""
    return Problem(code, f"{place}: expected {_domain(domain)}, found {_shown(value)}{quoted}")


def _unknown(place: str, name: str, space: Space) -> Problem:
    alike = {known.lower(): known for known in space}
    near = get_close_matches(name.lower(), alike, n=1) if len(name) <= 64 else []  # its time grows with the square
    hint = f"did you mean {alike[near[0]]!r}? " if near else ""
    return Problem("unknown", f"{place}: no such parameter; {hint}expected {_bounded(', '.join(space), 200)}")


def _why(level: _Level, space: Space) -> str:
    """The model's reason: the innermost there is. As it was written, but for what UTF-8 cannot hold."""
    own = {key: value for key, value in level.held.items() if key not in space}
    for held in (own, *level.around):
        for key, value in held.items():
            if key.lower() in REASONS and isinstance(value, str) and value.strip():
                return _bounded(value, WHY)
    return ""


def _note(level: _Level) -> str:
    """Where the parameters stood, if not in the usual place, and what stood around them unread."""
    notes = [f"read at {level.path}"] if level.path not in ("", "params") else []
    known = WRAPPERS | REASONS | FRAME
    unread = [_clipped(key) for held in level.around for key in held if key.lower() not in known]
    if unread:
        notes.append(f"not read: {', '.join(unread[:8])}")
    return _bounded("; ".join(notes), NOTE)


# ---- objects in a text -----------------------------------------------------------------------------------------------

_EVENT = re.compile(
    r"""<(?P<close>/?)(?:think|thinking|thought|reasoning)\s*+> | \{(?=\s*+(?:["}] | '[^'\n]*+'\s*+: | \w++\s*+:))""",
    re.IGNORECASE | re.VERBOSE,
)
"""A tag of thought, or a brace that begins an object, or what was meant for one; other braces are prose."""

_CLOSE = re.compile(r"</(?:think|thinking|thought|reasoning)\s*+>", re.IGNORECASE)
_QUOTED = re.compile(r'"(?:[^"\\\n]++|\\.)*+(?P<end>")?+|[{}]')
_BRACE = re.compile(r"[{}]")


class _Object(NamedTuple):
    """A complete object. `slips`: what in it is no JSON, although its end could be found."""

    held: dict[str, object]
    slips: tuple[str, ...]


class _Broken(NamedTuple):
    """What was meant for an object: why it is none."""

    text: str


class _Found(NamedTuple):
    """The objects of a text, in order; whether something was set aside as thought."""

    things: list[_Object | _Broken]
    thought: bool


def _find(text: str) -> _Found:
    """All that stands outside of thought. Stops after `MOST` of them."""
    things: list[_Object | _Broken] = []
    closings, thought, at = _closings(text), False, 0
    while len(things) <= MOST and (event := _EVENT.search(text, at)):
        if event["close"] is None:
            thing, at = _parse(text, event.start())
            things.append(thing)
            if isinstance(thing, _Broken):
                at = _past(text, at, closings.get(event.start(), len(text)))
            continue
        thought = True
        if event["close"]:
            things.clear()
            at = event.end()
        else:
            close = _CLOSE.search(text, event.end())
            at = close.end() if close else len(text)
    return _Found(things, thought)


def _past(text: str, at: int, end: int) -> int:
    """Where reading goes on after an object that broke at `at`: behind it, or at a tag of thought that it ran into."""
    tag = _CLOSE.search(text, at, end)
    return tag.start() if tag else end


def _closings(text: str) -> dict[int, int]:
    """For each brace that is closed, the place behind its partner; braces in quotes, line by line, do not count."""
    closings: dict[int, int] = {}
    opened: list[int] = []
    for piece in _QUOTED.finditer(text):
        if piece["end"]:
            continue
        for brace in _BRACE.finditer(text, piece.start(), piece.end()):
            if brace[0] == "{":
                opened.append(brace.start())
            elif opened:
                closings[opened.pop()] = brace.end()
    return closings


# ---- strict JSON, without recursion ----------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"""[ \t\n\r]*+(?:
        (?P<mark>[{}\[\],:])
      | (?P<text>"(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+")
      | (?P<number>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][-+]?[0-9]++)?+)
      | (?P<word>true|false|null)
      | (?P<slip>-?(?:NaN|Infinity))
    )""",
    re.VERBOSE,
)
_WORDS = {"true": True, "false": False, "null": None}

_VALUE = "a value"
_FIRST_VALUE = "a value or ]"
_KEY = "a key in double quotes"
_FIRST_KEY = "a key in double quotes or }"
_COLON = "a colon"
_NEXT_VALUE = "a comma or ]"
_NEXT_KEY = "a comma or }"
_NEXT_ITEM = "another value"

_VALUES = {"{", "[", "text", "number", "word", "slip"}
_ALLOWED = {
    _VALUE: _VALUES,
    _FIRST_VALUE: _VALUES | {"]"},
    _NEXT_ITEM: _VALUES | {"]"},  # a trailing comma: no JSON, but it can be read past
    _FIRST_KEY: {"text", "}"},
    _KEY: {"text", "}"},
    _COLON: {":"},
    _NEXT_VALUE: {",", "]"},
    _NEXT_KEY: {",", "}"},
}


class _Nest:
    """A container that is not closed yet."""

    __slots__ = ("held", "key")

    def __init__(self, held: dict[str, object] | list[object]) -> None:
        self.held, self.key = held, ""

    def add(self, value: object) -> bool:
        """Whether the value is the first under its key."""
        if isinstance(self.held, list):
            self.held.append(value)
            return True
        new = self.key not in self.held
        self.held[self.key] = value
        return new

    def after_comma(self) -> str:
        return _NEXT_ITEM if isinstance(self.held, list) else _KEY

    def after_value(self) -> str:
        return _NEXT_VALUE if isinstance(self.held, list) else _NEXT_KEY


def _parse(text: str, start: int) -> tuple[_Object | _Broken, int]:
    """The object that begins at `start`, and where it ends; or why it is none, and where it breaks."""
    nest: list[_Nest] = []
    slips: list[str] = []
    want, at = _VALUE, start
    while True:
        token = _TOKEN.match(text, at)
        kind = _kind(token)
        if token is None or kind not in _ALLOWED[want] or (kind in "{[" and len(nest) == DEEPEST):
            return _broken(text, start, at, nest, want), max(at, start + 1)
        at = token.end()
        value: object = None
        match kind:
            case "{" | "[":
                nest.append(_Nest({} if kind == "{" else []))
                want = _FIRST_KEY if kind == "{" else _FIRST_VALUE
                continue
            case ":":
                want = _VALUE
                continue
            case ",":
                want = nest[-1].after_comma()
                continue
            case "text" if want in (_KEY, _FIRST_KEY):
                nest[-1].key, want = _string(token["text"]), _COLON
                continue
            case "}" | "]":
                if want in (_KEY, _NEXT_ITEM):
                    slips.append(f"{_path(nest[:-1])}: expected no comma before {kind}, found one")
                value = nest.pop().held
            case "text":
                value = _string(token["text"])
            case "number":
                value = _number(token["number"])
            case "word":
                value = _WORDS[token["word"]]
            case _:
                slips.append(f"{_path(nest)}: expected JSON, found {token['slip']}, which JSON has no word for")
        if not nest:
            assert isinstance(value, dict)
            return _Object(value, tuple(slips[:8])), at
        if not nest[-1].add(value):
            slips.append(f"{_path(nest)}: expected this key once, found it twice")
        want = nest[-1].after_value()


def _kind(token: re.Match[str] | None) -> str:
    if token is None:
        return ""
    return token["mark"] or token.lastgroup or ""


def _string(token: str) -> str:
    return token[1:-1] if "\\" not in token else str(json.loads(token))


def _number(token: str) -> int | float:
    """A whole number as it is, unless it is longer than any float: then it is as good as infinite."""
    whole = len(token) < 309 and not set(token) & set(".eE")
    return int(token) if whole else float(token)


def _path(nest: Sequence[_Nest]) -> str:
    steps = (f"[{len(one.held)}]" if isinstance(one.held, list) else f".{one.key}" for one in nest)
    return _clipped("".join(steps).removeprefix(".")) or "the object"


def _broken(text: str, start: int, at: int, nest: Sequence[_Nest], want: str) -> _Broken:
    line = text.count("\n", 0, start) + 1
    place = f"the object that begins on line {line}"
    if len(nest) == DEEPEST:
        return _Broken(f"{place}: expected at most {DEEPEST} levels, found more")
    rest = text[at : at + 200].lstrip()
    found = _shown(rest) if rest else "the end of the text"
    inside = nest[:-1] if want in (_KEY, _FIRST_KEY) else nest
    place += f", at {_path(inside)}" if inside else ""
    if rest.startswith('"') and "text" in _ALLOWED[want]:
        want = "a string that is closed, a line break in it written as \\n"
    return _Broken(f"{place}: expected {want}, found {found}")


# ---- words -----------------------------------------------------------------------------------------------------------


def _domain(domain: Domain) -> str:
    return _bounded(describe(domain), 200)


def _shown(value: object) -> str:
    """A value as JSON, on one line, cut."""
    if value in (math.inf, -math.inf):
        return "a number larger than any float"
    return _bounded(json.dumps(value, ensure_ascii=False), 60)


def _clipped(name: str) -> str:
    """A name that a model made up, on one line, cut."""
    return _shown(name)[1:-1] if len(name) > 40 or not name.isprintable() else name


def _bounded(text: str, most: int) -> str:
    """`text` in UTF-8, `most` characters at most."""
    cut = text if len(text) <= most else text[: most - 4] + " ..."
    return cut.encode("utf-8", "replace").decode("utf-8")
