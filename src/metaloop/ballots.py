"""From judges' replies to the winner of a pass, and from winners to the end of a tournament.

Finding is lenient, reading is strict. The last ranking line is the ballot, whatever markdown is around it; it is a full
permutation of the labels shown, or the ballot is invalid and says why. No earlier line stands in for an invalid one.
An echo of the template (`[best], [second], [worst]`) is no ranking line. Nothing is guessed: `1 and 2`, `1 > 2, 3`,
`1: 9, 2: 8` and places that do not count up may be a tie, scores or another order, and are refused.

A ranking line begins a line of the reply (`Ranking:`, `My final ranking is:`), or stands in one as `RANKING:` or
`Final ranking:`. Full-width forms are read as ASCII; digits of other scripts are unknown labels. Thought is no answer:
what stands in a closed `<think>`, and all before a `</think>` that nothing opened. Time is linear in the text.

None knows what a version holds, who wrote it, or what a ballot cost.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import factorial
from random import Random
from typing import Literal, TypeAlias

from metaloop.values import Value

Ranking: TypeAlias = tuple[str, ...]
Order: TypeAlias = Literal["latin", "random", "both"]
Reason: TypeAlias = Literal["converged", "max_passes", "running"]


class Tally(Value, frozen=True):
    """The Borda points of a panel by name, and how many of the ballots asked for were valid."""

    points: dict[str, int]
    valid: int
    asked: int


# ---- counting --------------------------------------------------------------------------------------------------------


def borda(ballots: Iterable[Sequence[str] | None], names: Sequence[str]) -> Tally:
    """A last place is worth 1 point, and each one above it 1 more (Borda 1781). Valid is a full ranking of `names`."""
    given = list(ballots)
    valid = [ballot for ballot in given if ballot is not None and sorted(ballot) == sorted(names)]
    points = dict.fromkeys(names, 0)
    for ballot in valid:
        for place, name in enumerate(ballot):
            points[name] += len(names) - place
    assert sum(points.values()) == len(valid) * len(names) * (len(names) + 1) // 2, "points appear or vanish"
    return Tally(points, len(valid), len(given))


def winner(tally: Tally, incumbent: str = "A", tie_order: Sequence[str] = (), margin: int = 0) -> str | None:
    """Who wins; None where no ballot is valid. Ties go to who comes first in `tie_order`, then in the tally.

    margin > 0: the best rival unseats the incumbent by leading it by that many points. 0, or no incumbent in the tally:
    simply the best. A quorum is not looked at: `decided` does that.
    """
    if not tally.valid:
        return None
    order = list(dict.fromkeys((*tie_order, *tally.points)))
    ranked = sorted(tally.points, key=lambda name: (-tally.points[name], order.index(name)))
    if margin <= 0 or incumbent not in tally.points:
        return ranked[0]
    rival = next((name for name in ranked if name != incumbent), incumbent)
    return rival if tally.points[rival] - tally.points[incumbent] >= margin else incumbent


def quorum(asked: int) -> int:
    """Two thirds of the judges asked, rounded up; never none, for no ballot decides nothing."""
    return max(1, -(-2 * asked // 3))


def margin(judges: int) -> int:
    """The default lead that unseats an incumbent: 2 points at 3 judges, and as many a judge in a larger panel."""
    return max(1, -(-2 * judges // 3))


def decided(tally: Tally, needed: int | None = None) -> bool:
    """Whether enough ballots are valid (`needed`; else the quorum of those asked). If not, the pass is void."""
    return tally.valid >= max(1, quorum(tally.asked) if needed is None else needed)


def streak(winners: Sequence[str | None], k: int, cap: int, incumbent: str = "A") -> tuple[int, Reason]:
    """The pass at which the tournament stops, and why; the last pass, where it still runs.

    None is a void pass: it neither ends a streak nor adds to it, and counts towards the cap. What is full
    at the cap has converged.
    """
    held = 0
    for number, won in enumerate(winners, 1):
        held = held + (won == incumbent) if won in (incumbent, None) else 0
        if held >= k:
            return number, "converged"
        if number >= cap:
            return number, "max_passes"
    return len(winners), "running"


# ---- what a judge is shown -------------------------------------------------------------------------------------------


def orders(names: Sequence[str], judges: int, order: Order, dice: Random) -> tuple[tuple[Ranking, ...], ...]:
    """For each judge of a panel, the order or the two orders in which it is shown `names`.

    latin: rows of random Latin squares. Of any number of judges, each name stands at each place equally often, give or
      take one; over m! judges (6 for 3 names) each order is shown once.
    random: an independent permutation for each judge.
    both: those of `latin`, and each of them again with every name in another place: turned by one, as the middle of
      three would stay where it is if it were reversed.
    """
    if order == "random":
        return tuple((tuple(dice.sample(list(names), len(names))),) for _ in range(judges))
    rows = tuple(islice(_rows(names, dice), judges))
    return tuple((row, row[1:] + row[:1]) if order == "both" else (row,) for row in rows)


def named(ranking: Sequence[str], by_label: Mapping[str, str]) -> Ranking:
    """A ranking of labels as one of names."""
    return tuple(by_label[label] for label in ranking)


def abstains(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether a judge that was shown both orders has another first place in each."""
    return first[0] != second[0]


def joined(first: Sequence[str] | None, second: Sequence[str] | None) -> Ranking | None:
    """The one ballot of a judge that was shown both orders: by mean place, ties as in the first.

    None, which is no valid ballot, where either is invalid or the judge abstains.
    """
    if first is None or second is None or abstains(first, second):
        return None
    return tuple(sorted(first, key=lambda name: first.index(name) + second.index(name)))  # sorting is stable


def _rows(names: Sequence[str], dice: Random) -> Iterator[Ranking]:
    """Rows of Latin squares without end: all rotations of one cycle in random order, then of one that is new, if any.

    The m! orders are (m-1)! cycles of m rotations. Who follows whom is not balanced within a square: 3 rows cannot be.
    """
    cycles = factorial(len(names) - 1)
    while True:
        for number in dice.sample(range(cycles), min(cycles, 1000)):  # of 7 names or fewer, all there are
            cycle = (names[0], *_permutation(names[1:], number))
            for turn in dice.sample(range(len(cycle)), len(cycle)):
                yield cycle[turn:] + cycle[:turn]


def _permutation(names: Sequence[str], number: int) -> Ranking:
    """Permutation `number` of n!, by its digits in the factorial number system (Lehmer 1960)."""
    left, taken = list(names), []
    while left:
        index, number = divmod(number, factorial(len(left) - 1))
        taken.append(left.pop(index))
    return tuple(taken)


# ---- where in a reply the ranking stands -----------------------------------------------------------------------------

_PLAIN = (
    {0xFF01 + code: 0x21 + code for code in range(94)}
    | {0x3000: " ", 0x3001: ","}
    | dict.fromkeys((0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF))
)
"""Full-width forms as ASCII, and nothing for what has no width. Not NFKC: its time grows with the square of a run of
combining marks.
"""

_BARE = str.maketrans(dict.fromkeys("*_`\"'“”‘’", " "))

_THOUGHT = re.compile(r"<(?P<close>/?)(?:think|thinking|thought|reasoning)\s*+>", re.IGNORECASE)

_HEAD = re.compile(
    r"""
    (?: ^(?:[^\S\n]|[>#*_`"'“”+•|-])*+
        (?:(?i:my|the|our|final|overall|complete|full|blind|here|is|so|thus|therefore|hence)(?:[^\S\n]|[,*_`])++)*+
        (?P<line>(?i:ranking))
      | \b(?:RANKING|(?i:final)[^\S\n]++(?i:ranking))
    )\b
    (?:[^\S\n]|[*_`"'])*+ (?i:is\b)?+ (?:[^\S\n]|[*_`"'])*+
    (?P<aside>\([^()\n]*+\) | (?i:(?:from\ )?+best\ to\ worst))?+ (?:[^\S\n]|[*_`"'])*+
    (?: (?P<colon>:) | (?(line)(?=\n|\Z)|(?!)) )
    """,
    re.MULTILINE | re.VERBOSE,
)
"""What begins a ranking. Without a colon it is a heading, alone in its line."""


def parse(text: str, labels: Sequence[str]) -> Ranking | str:
    """The ranking in a judge's reply, best first; or, in plain words, why the ballot is invalid. Never raises.

    `labels`: distinct words of letters and digits. Where case does not tell them apart, any capitals or none are read.
    """
    known = {label: label for label in labels}
    if len({label.lower() for label in labels}) == len(labels):
        known |= {cased: label for label in labels for cased in (label.lower(), label.upper())}
    said = _said(text.replace("\r\n", "\n").replace("\r", "\n").translate(_PLAIN))
    end = len(said)
    for head in reversed(list(_HEAD.finditer(said))):
        read = _read(head, said[head.end() : end], known)
        if read is not None:
            return read
        end = head.start()
    return "there is no ranking line"


def _said(text: str) -> str:
    """The reply without thought. A tag that is never closed is text like any other."""
    kept: list[str] = []
    at, opened = 0, -1
    for tag in _THOUGHT.finditer(text):
        if not tag["close"]:
            opened = tag.start() if opened < 0 else opened
            continue
        if opened < 0:
            kept.clear()
        else:
            kept.append(text[at:opened])
        at, opened = tag.end(), -1
    return "\n".join([*kept, text[at:]])


# ---- what it says ----------------------------------------------------------------------------------------------------

_WORDS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")

_PLACE = rf"""
    (?: (?: (?P<ordinal>[0-9]{{1,3}})(?:st|nd|rd|th) | (?P<word>(?a:{"|".join(_WORDS)})) )(?:\s+place)?\b\s*[:.)=-]?\s*
      | (?P<number>[0-9]{{1,3}})[.)]\s+ )"""

_LABEL = r"""
    (?P<open>[\[({]\s*)?
    (?:(?:proposal|version|option|candidate|draft|text|document|response|answer|submission|entry|essay|label)s?
        (?:\s+\#?|\s*[\#_-]) | \#)?
    (?P<label>[^\W_]++)
    (?(open)\s*[\])}])"""

_REMARK = r"\s* (?: \((?:[^()]++|\([^()]*+\))*+\) | \[[^\[\]]*+\] )"

_ITEM = re.compile(rf"{_PLACE}? {_LABEL} (?P<remark>(?:{_REMARK})*+) \s*+", re.IGNORECASE | re.VERBOSE)
_MARK = re.compile(r"(?P<mark>,|;|>+|->|→|≻)\s*+(?:and\b\s*+)?", re.IGNORECASE)
_NUMBERED = re.compile(_PLACE, re.IGNORECASE | re.VERBOSE)
_LISTED = re.compile(
    rf"{_LABEL} (?P<remark>(?:{_REMARK})*+ (?: \s*(?:[—–]|[:.](?=\s|\Z)|\s-\s).* )?)", re.IGNORECASE | re.VERBOSE
)
_WRAPPED = re.compile(r"[\[({](?P<inner>[^][(){}]*+)[\])}](?P<after>.*)")

_TIE = re.compile(r"\s*(?:[=≈~&/+≥≤]|>=|(?:and|or|tie|ties|tied|equal|equals)\b)", re.IGNORECASE)
_TIED = re.compile(r"\b(?:ties?|tied|tying)\b", re.IGNORECASE)
_UNTIED = re.compile(
    r"\b(?:no|not|never|nearly|almost|near|virtually|close\s+to)\s+(?:an?\s+|any\s+)?tie[sd]?\b|\btie-?\s?br\w+",
    re.IGNORECASE,
)
_REVERSED = re.compile(r"\b(?:worst|weakest|least)\W+(?:to|first)\b|\bascending\b", re.IGNORECASE)

_PLACEHOLDERS = frozenset(_WORDS) | {
    "1st", "2nd", "3rd", "4th", "5th", "6th", "7th", "8th", "9th", "10th", "best", "better", "good", "next", "middle",
    "bad", "last", "least", "most", "worst", "choice", "place", "ranked", "ranking", "order", "label", "labels",
    "letter", "letters", "number", "numbers", "name", "names", "identifier", "identifiers", "proposal", "proposals",
    "version", "versions", "option", "options", "candidate", "candidates", "draft", "drafts", "text", "texts",
    "document", "documents", "your", "here", "in", "of", "the", "from", "to", "separated", "by", "comma", "commas",
}  # fmt: skip
"""Words that templates of a ranking are made of."""


def _read(head: re.Match[str], body: str, known: Mapping[str, str]) -> Ranking | str | None:
    """What a head with the text up to the next one comes to; None where it is no ranking line after all."""
    if _REVERSED.search(head["aside"] or ""):
        return "the ranking is not best first"
    line, _, below = body.partition("\n")
    if bare := _bare(line):
        return _line(bare, known)
    lines = [bare for line in below.split("\n") if (bare := _bare(line).lstrip("> #+•-"))]
    if not lines:
        return "the ranking line is empty" if head["colon"] else None
    if _NUMBERED.match(lines[0]):
        return _list(lines, known)
    first = _ITEM.match(lines[0])
    begins = first is not None and first["label"] in known
    return _line(lines[0], known) if head["colon"] or begins else None


def _bare(line: str) -> str:
    return line.translate(_BARE).strip()


def _line(line: str, known: Mapping[str, str]) -> Ranking | str | None:
    """A ranking within a line, such as `2 (9/10) > 1 (8/10) > 3`."""
    if _echo(line, known):
        return None
    line = line.rstrip(". ")
    if (wrapped := _WRAPPED.fullmatch(line)) and _MARK.search(wrapped["inner"]):
        line = f"{wrapped['inner'].strip()} {wrapped['after']}".strip()
    words: list[str] = []
    marks: set[str] = set()
    at = 0
    while item := _ITEM.match(line, at):
        words.append(item["label"])
        if problem := _misplaced(item, len(words)) or _amiss(item["remark"]):
            return problem
        at = item.end()
        if at == len(line):
            return _full(words, known) if len(marks) < 2 else "the ranking mixes " + " and ".join(sorted(marks))
        if (mark := _MARK.match(line, at)) is None or line.startswith("=", mark.end("mark")):
            break
        marks.add(mark["mark"])
        at = mark.end()
    return _odd(line[at:])


def _list(lines: Sequence[str], known: Mapping[str, str]) -> Ranking | str | None:
    """A numbered list, a label an item, with what is said of it after a colon or a dash. Its places count up from 1."""
    items: list[str] = []
    for line in lines:
        place = _NUMBERED.match(line)
        if place is not None and _misplaced(place, len(items) + 1) == "":
            items.append(line[place.end() :])
        elif place is not None or len(items) == len(set(known.values())):
            break
    if not items:
        return "the ranking's places do not count up from 1"
    if all(_echo(item, known) for item in items):
        return None
    words: list[str] = []
    for item in items:
        if (listed := _LISTED.fullmatch(item)) is None:
            label = _ITEM.match(item)
            return _odd(item[label.end() :] if label else item)
        if problem := _amiss(listed["remark"]):
            return problem
        words.append(listed["label"])
    return _full(words, known)


def _full(words: Sequence[str], known: Mapping[str, str]) -> Ranking | str:
    """The labels that `words` are, if they are all of them, once each."""
    ranking: dict[str, None] = {}
    for word in words:
        if (label := known.get(word)) is None:
            tied = _TIED.match(word) is not None
            return "the ranking declares a tie" if tied else f"the ranking names {word[:40]!r}, which is no label"
        if label in ranking:
            return f"the ranking names {label!r} twice"
        ranking[label] = None
    if left := [label for label in dict.fromkeys(known.values()) if label not in ranking]:
        return f"the ranking is partial: it leaves out {', '.join(map(repr, left))}"
    return tuple(ranking)


def _misplaced(item: re.Match[str], place: int) -> str:
    """What is wrong with the place that an item gives itself; empty where it is `place`, or gives none."""
    said = item["ordinal"] or item["number"] or (item["word"] and _WORDS.index(item["word"].lower()) + 1)
    return f"the ranking's places do not count up: {said} is number {place}" if said and int(said) != place else ""


def _amiss(remark: str) -> str:
    """What a remark takes back of a ranking: that two are apart, or that the best is first."""
    if _TIED.search(_UNTIED.sub("", remark)):
        return "the ranking declares a tie"
    return "the ranking is not best first" if _REVERSED.search(remark) else ""


def _odd(rest: str) -> str:
    if not rest.strip():
        return "the ranking breaks off"
    if _TIE.match(rest):
        return "the ranking declares a tie"
    return _amiss(rest) or f"the ranking cannot be read at {rest[:40]!r}"


def _echo(line: str, known: Mapping[str, str]) -> bool:
    """Whether a line is a template, filled with nothing but placeholders or blanks."""
    words = re.findall(r"[^\W_]+", line)
    return all(word.lower() in _PLACEHOLDERS and word not in known for word in words)
