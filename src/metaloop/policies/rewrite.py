"""A pass of a tournament, as far as it makes versions: a critic, an author, and who makes one document of two.

Every role is a fresh conversation. What an author says of its changes stands apart from the document, and no judge sees
it. A version that was cut off, that is what there was already, or that breaks a rule of the study is refused with the
reason: the panel never sees it.
"""

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher

from metaloop.errors import ProposerError
from metaloop.events import Reply
from metaloop.flow import Flow, Message, Prompt
from metaloop.policies.asked import unusable
from metaloop.roles import Propose
from metaloop.study import View
from metaloop.terms import Tournament
from metaloop.values import Edit, Params, Proposal, Refused, digest
from metaloop.wording import cut, fill, plain, task, truth, version

OPEN, CLOSE = "=== DOCUMENT ===", "=== END ==="
"""The lines that a document stands between in a reply."""

NOTHING = re.compile(r"\W*nothing\W*", re.IGNORECASE)
"""What a critic says that finds nothing wrong."""

SAME = 0.98
"""Versions that have at least so much in common, word by word, are the same one."""

CORRECTIONS = 1
"""So often a reply that is no document is sent back with the reason."""

NOTES, SHOWN = 500, 16_000
"""Characters at most of an author's notes as they are told, and of a reply that is shown again."""

HINTS = 5
"""The newest that people left, for the author."""

CLAIMS = 8
"""Numbers that are told, of those that stand in no source."""


def rewrite() -> Propose:
    """B by an author who answers a critic, and AB of the two."""

    def propose(view: View) -> Flow[Sequence[Proposal]]:
        pass_ = _Pass(view)
        critique = yield from pass_.criticised()
        if NOTHING.fullmatch(critique):
            why = "the critic found nothing that is wrong"
            return [pass_.refused("author", "same_text", why), pass_.refused("synthesizer", "same_text", why)]
        b = yield from pass_.version("author", pass_.to_author(critique), "B", (pass_.text,))
        if b.refused is not None:
            why = f"there is no B to make it of: {b.refused.reason}"
            return [b, pass_.refused("synthesizer", b.refused.code, why)]
        revised = next(iter(b.texts.values()))
        ab = yield from pass_.version("synthesizer", pass_.to_synthesizer(revised), "AB", (pass_.text, revised))
        return [b, ab]

    return propose


class _Pass:
    """What all of a pass has in common."""

    def __init__(self, view: View) -> None:
        rules, incumbent = view.terms.tournament, view.incumbent
        assert rules is not None, "a tournament has rules"
        assert incumbent is not None, "the first version holds the crown until another wins"
        self.view, self.rules, self.incumbent = view, rules, incumbent
        self.text = view.code(incumbent.change)[rules.document]
        self.first = view.code(Params({}))[rules.document]

    # ---- what is asked

    def criticised(self) -> Flow[str]:
        said = fill(self.view.texts["critic"], truth=truth(self.view))
        reply = yield self._prompt("critic", said, task(self.view) if self.rules.task_shown else "", self._a())
        assert isinstance(reply, Reply)
        if problem := reply.problem if reply.trouble else unusable(reply) if reply.finish != "length" else "":
            raise ProposerError(f"critic: {problem}")
        return (reply.text or "").strip()

    def to_author(self, critique: str) -> tuple[Message, ...]:
        said = fill(
            self.view.texts["author"],
            truth=truth(self.view),
            or_truth=" nor in the facts" if self.view.texts.get("truth") else "",
            scope=scope(self.rules, self.first),
        )
        wishes = "\n".join(f"- {plain(hint.text, NOTES)}" for hint in self.view.hints[-HINTS:])
        told = f"# What the owner of the document asks for besides\n\n{wishes}" if wishes else ""
        return self._messages(said, task(self.view), self._a(), f"# The problems\n\n{critique}", told)

    def to_synthesizer(self, revised: str) -> tuple[Message, ...]:
        """Which one comes first is drawn by lot."""
        said = fill(self.view.texts["synthesizer"], scope=scope(self.rules, self.first))
        versions = [self.text, revised]
        self.view.rng("synthesizer").shuffle(versions)
        shown = (version(f"version-{label}", text) for label, text in zip("XY", versions, strict=True))
        return self._messages(said, task(self.view), *shown)

    def _a(self) -> str:
        return f"# The document\n\n{version('document', self.text)}"

    def _prompt(self, role: str, *parts: str) -> Prompt:
        return Prompt(role, self._messages(*parts))

    def _messages(self, system: str, *parts: str) -> tuple[Message, ...]:
        return Message("system", system), Message("user", "\n\n".join(part for part in parts if part))

    # ---- what comes of it

    def version(self, role: str, messages: tuple[Message, ...], name: str, known: Sequence[str]) -> Flow[Proposal]:
        """A version, or why there is none; `known`: the texts that it must not be the same as."""
        problem, by = "", role
        for _ in range(1 + CORRECTIONS):
            reply = yield Prompt(role, messages)
            assert isinstance(reply, Reply)
            if reply.trouble:
                raise ProposerError(f"{role}: {reply.problem}")
            by = f"{role}: {plain(reply.model, 80)}" if reply.model else role
            found = read(reply)
            if not isinstance(found, str):
                return self._judged(by, name, *found, known)
            problem = found
            told = cut(reply.text, SHOWN) if reply.text else "(an empty reply)"
            again = fill(self.view.texts["unread"], problem=problem)
            messages = (*messages[:2], Message("assistant", told), Message("user", again))
        return self.refused(by, "unread", f"no document could be read, {1 + CORRECTIONS} times; the last: {problem}")

    def _judged(self, by: str, name: str, notes: str, text: str, known: Sequence[str]) -> Proposal:
        text = text.rstrip("\n") + "\n" if self.text.endswith("\n") else text.rstrip("\n")
        if any(alike(text, other) for other in known):
            return self.refused(by, "same_text", f"{name} is the same as a version that there is already")
        if missing := [pattern for pattern in self.rules.require if not re.search(pattern, text, re.MULTILINE)]:
            return self.refused(by, "structure", f"{name} has nothing that matches {missing[0]!r}, which is required")
        texts = self.view.texts
        told = claims(text, (self.first, texts.get("task", ""), texts.get("truth", "")))
        new = f"numbers that stand in no source: {', '.join(told[:CLAIMS])}" if told else ""
        if new and self.rules.strict_claims:
            return self.refused(by, "claims", f"{name} has {new}")
        why = "; ".join(part for part in (plain(notes, NOTES), new) if part) or "no notes"
        name = digest(text.encode())
        change = Edit({}, {self.rules.document: name})
        return Proposal(change, by, why, self.incumbent.number, texts={name: text})

    def refused(self, by: str, code: str, why: str) -> Proposal:
        return Proposal(Params({}), by, parent=self.incumbent.number, refused=Refused(code, why))


def scope(rules: Tournament, first: str) -> str:
    """That the document is not to grow without a reason."""
    if not rules.scope:
        return ""
    return f"The first version had about {len(first.split())} words: whatever makes it longer needs a reason.\n"


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(reply: Reply) -> tuple[str, str] | str:
    """An author's notes and document; or what is wrong with the reply."""
    if problem := unusable(reply):
        return problem
    lines = (reply.text or "").splitlines()
    marks = [line.strip().strip("*`# ") for line in lines]
    if (begin := next((at for at, line in enumerate(marks) if line == OPEN), None)) is None:
        return f"expected a line {OPEN}, found none"
    ends = [at for at, line in enumerate(marks) if line == CLOSE and at > begin]
    if not ends:
        return f"expected a line {CLOSE} at the end, found none: it may have been cut off"
    text = "\n".join(lines[begin + 1 : ends[-1]]).strip("\n")
    if not text.strip():
        return "expected a document, found nothing between the marks"
    return "\n".join(lines[:begin]), text


def alike(one: str, other: str) -> bool:
    """Whether two texts are the same but for a word or two in a hundred; of long ones, judged line by line."""
    a, b = (text.split() for text in (one, other))
    if a == b:
        return True
    if len(a) + len(b) > 20_000:
        a, b = one.splitlines(), other.splitlines()
    matcher = SequenceMatcher(None, a, b, autojunk=False)
    return min(matcher.real_quick_ratio(), matcher.quick_ratio()) >= SAME and matcher.ratio() >= SAME


_NUMBER = re.compile(r"(?<![\w.])\d[\d,.]*\d%?|(?<![\w.])\d%?")


def claims(text: str, sources: Iterable[str]) -> list[str]:
    """Numbers of a text that stand in none of its sources, each once; small counts (to 12) are nobody's claim."""
    known = {number for source in sources for number in _numbers(source)}
    found = dict.fromkeys(number for number in _numbers(text) if number not in known)
    return [number for number in found if not (number.isdigit() and int(number) <= 12)]


def _numbers(text: str) -> list[str]:
    return [match.rstrip(".,").replace(",", "") for match in _NUMBER.findall(text)]
