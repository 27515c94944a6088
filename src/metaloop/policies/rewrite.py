"""A pass of a tournament, as far as it makes versions: a critic, an author, and who makes one document of two.

Every role is a fresh conversation. What an author says of its changes stands apart from the document, and no judge sees
it. A version that was cut off, that is what there was already, or that breaks a rule of the study is refused with the
reason: the panel never sees it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from itertools import pairwise
from random import Random
from typing import NamedTuple

from metaloop.errors import ProposerError
from metaloop.events import Reply
from metaloop.flow import Flow, Message, Prompt
from metaloop.policies.asked import unusable
from metaloop.roles import Propose
from metaloop.study import View
from metaloop.values import Edit, Params, Proposal, Refused, digest
from metaloop.wording import cut, fill, plain, task, truth, version

OPEN, CLOSE = "=== DOCUMENT ===", "=== END ==="
"""The lines that a document stands between in a reply."""

NOTHING = re.compile(r"\W*nothing\W*", re.IGNORECASE)
"""What a critic says that finds nothing wrong."""

SAME = 0.98
"""Versions that have at least so much in common, word by word, are the same one."""

LONG = 4_000
"""Words of two texts together from which on they are compared by pairs of words."""

CORRECTIONS = 1
"""So often a reply that is no document is sent back with the reason."""

NOTES, SHOWN = 500, 16_000
"""Characters at most of an author's notes as they are told, and of a reply that is shown again."""

HINTS = 5
"""The newest that people left, for the author."""

HELD = {
    "no_paraphrase": (
        "Say nothing anew in other words: a sentence that no problem asks to change stays as it is, and one that you "
        "change has to say something else than it did."
    ),
}
"""What authors can be held to by a name."""

CLAIMS = 8
"""Numbers that are told, of those that stand in no source."""


class Draft(NamedTuple):
    """A version of the document by somebody, or why there is none."""

    by: str
    why: str
    text: str = ""
    refused: Refused | None = None


def rewrite() -> Propose:
    """B by an author who answers a critic, and AB of the two."""

    def propose(view: View) -> Flow[Sequence[Proposal]]:
        incumbent = view.incumbent
        assert incumbent is not None, "the first version holds the crown until another wins"
        drafts = yield from drafted(Desk(view, view.code(incumbent.change)[document(view)]))
        return [proposed(view, draft, incumbent.number) for draft in drafts]

    return propose


def drafted(desk: "Desk") -> Flow[tuple[Draft, Draft]]:
    """B and AB of a pass, each a version or the reason why there is none."""
    critique = yield from desk.criticised()
    if NOTHING.fullmatch(critique):
        why = "the critic found nothing that is wrong"
        return refused("author", "same_text", why), refused("synthesizer", "same_text", why)
    b = yield from desk.version("author", desk.to_author(critique), "B", (desk.text,))
    if b.refused is not None:
        why = f"there is no B to make it of: {b.refused.reason}"
        return b, refused("synthesizer", b.refused.code, why)
    ab = yield from desk.version("synthesizer", desk.to_synthesizer(b.text), "AB", (desk.text, b.text))
    return b, ab


def proposed(view: View, draft: Draft, parent: int) -> Proposal:
    """A draft as a proposal, grown from this trial."""
    if draft.refused is not None:
        return Proposal(Params({}), draft.by, parent=parent, refused=draft.refused)
    name = digest(draft.text.encode())
    return Proposal(Edit({}, {document(view): name}), draft.by, draft.why, parent, texts={name: draft.text})


def refused(by: str, code: str, why: str) -> Draft:
    return Draft(by, "", refused=Refused(code, why))


def document(view: View) -> str:
    """The path of the document."""
    rules = view.terms.tournament
    assert rules is not None, "a tournament has rules"
    return rules.document


class Desk:
    """A document that is worked on: who is asked what about it, and what can be made of the replies.

    `salt`: tells the dice of one desk from those of another in the same round. `turn`: how often it was criticised
    before, where that is not once a pass. `corrections`: so often a reply of one role may be sent back.
    """

    def __init__(
        self, view: View, text: str, salt: str = "", turn: int | None = None, corrections: int = CORRECTIONS
    ) -> None:
        rules = view.terms.tournament
        assert rules is not None, "a tournament has rules"
        self.view, self.rules, self.text, self.salt = view, rules, text, salt
        self.first = view.code(Params({}))[rules.document]
        self.turn = len(view.passes) if turn is None else turn
        self.corrections = min(corrections, CORRECTIONS)

    def dice(self, name: str) -> Random:
        return self.view.rng(f"{name}{self.salt and '/' + self.salt}")

    # ---- what is asked

    def criticised(self) -> Flow[str]:
        said = fill(
            self.view.texts["critic"],
            mode=self.view.texts["hard"] if self.rules.hard else "",
            lens=self._lens(),
            truth=truth(self.view),
        )
        reply = yield Prompt(
            "critic", self._messages(said, task(self.view) if self.rules.task_shown else "", self._a())
        )
        assert isinstance(reply, Reply)
        if problem := reply.problem if reply.trouble else unusable(reply) if reply.finish != "length" else "":
            raise ProposerError(f"critic: {problem}")
        return (reply.text or "").strip()

    def _lens(self) -> str:
        """What the critic looks for: all of it, or one thing a pass, in turn."""
        lenses = self.rules.lenses
        if self.rules.rotate and lenses:
            lenses = (lenses[self.turn % len(lenses)],)
        return f"Look above all for this: {'; '.join(lenses)}." if lenses else ""

    def to_author(self, critique: str) -> tuple[Message, ...]:
        said = fill(
            self.view.texts["author"],
            truth=truth(self.view),
            or_truth=self._or_truth(),
            scope=self._scope(),
            held=self._held(),
        )
        wishes = "\n".join(f"- {plain(hint.text, NOTES)}" for hint in self.view.hints[-HINTS:])
        told = f"# What the owner of the document asks for besides\n\n{wishes}" if wishes else ""
        return self._messages(said, task(self.view), self._a(), f"# The problems\n\n{critique}", told)

    def to_synthesizer(self, revised: str) -> tuple[Message, ...]:
        """Which one comes first is drawn by lot."""
        said = fill(self.view.texts["synthesizer"], scope=self._scope(), held=self._held())
        versions = [self.text, revised]
        self.dice("synthesizer").shuffle(versions)
        shown = (version(f"version-{label}", text) for label, text in zip("XY", versions, strict=True))
        return self._messages(said, task(self.view), *shown)

    def to_rewriter(self, prompt: str) -> tuple[Message, ...]:
        """Who rewrites the document as a prompt of this name says, without a critic."""
        said = fill(
            self.view.texts[prompt],
            truth=truth(self.view),
            or_truth=self._or_truth(),
            scope=self._scope(),
            held=self._held(),
        )
        return self._messages(said, task(self.view), self._a())

    def _a(self) -> str:
        counted = f"It has {len(self.text.split())} words, as they are between spaces."
        return f"# The document\n\n{counted}\n\n{version('document', self.text)}"

    def _messages(self, system: str, *parts: str) -> tuple[Message, ...]:
        return Message("system", system), Message("user", "\n\n".join(part for part in parts if part))

    def _or_truth(self) -> str:
        return " nor in the facts" if self.view.texts.get("truth") else ""

    def _scope(self) -> str:
        """That the document is not to grow without a reason."""
        if not self.rules.scope:
            return ""
        return f"The first version had about {len(self.first.split())} words: whatever makes it longer needs a reason."

    def _held(self) -> str:
        """What authors are held to, besides: the names of `HELD`, or words of the user's own."""
        return "\n".join(HELD.get(rule, rule) for rule in self.rules.held)

    # ---- what comes of it

    def version(self, role: str, messages: tuple[Message, ...], name: str, known: Sequence[str]) -> Flow[Draft]:
        """A version, or why there is none; `known`: the texts that it must not be the same as."""
        reply = yield Prompt(role, messages)
        assert isinstance(reply, Reply)
        return (yield from self.read(role, messages, reply, name, known))

    def read(
        self, role: str, messages: tuple[Message, ...], reply: Reply, name: str, known: Sequence[str]
    ) -> Flow[Draft]:
        """What is made of a reply; what cannot be read is asked for again, with the reason."""
        problem = ""
        for left in reversed(range(1 + self.corrections)):
            if reply.trouble:
                raise ProposerError(f"{role}: {reply.problem}")
            by = f"{role}: {plain(reply.model, 80)}" if reply.model else role
            found = read(reply)
            draft = None if isinstance(found, str) else self._judged(by, name, *found, known)
            if draft is not None and (draft.refused is None or draft.refused.code != "structure" or not left):
                return draft
            problem = found if isinstance(found, str) else draft.refused.reason if draft and draft.refused else ""
            if left:
                told = cut(reply.text, SHOWN) if reply.text else "(an empty reply)"
                again = fill(self.view.texts["unread"], problem=problem)
                answered = yield Prompt(role, (*messages[:2], Message("assistant", told), Message("user", again)))
                assert isinstance(answered, Reply)
                reply = answered
        return refused(by, "unread", f"no document could be read; the last time: {problem}")

    def _judged(self, by: str, name: str, notes: str, text: str, known: Sequence[str]) -> Draft:
        text = self._as_before(text)
        if any(alike(text, other) for other in known):
            return refused(by, "same_text", f"{name} is the same as a version that there is already")
        if problem := self._misbuilt(text):
            return refused(by, "structure", f"{name} {problem}")
        texts = self.view.texts
        told = claims(text, (self.first, texts.get("task", ""), texts.get("truth", "")))
        new = f"numbers that stand in no source: {', '.join(told[:CLAIMS])}" if told else ""
        if new and self.rules.strict_claims:
            return refused(by, "claims", f"{name} has {new}")
        why = "; ".join(part for part in (plain(notes, NOTES), new) if part) or "no notes"
        return Draft(by, why, text)

    def _as_before(self, text: str) -> str:
        """A version with the document's own line ends, and without a fence around it that the document has not."""
        first, _, rest = text.partition("\n")
        if first.startswith("```") and not self.text.lstrip().startswith("```") and rest.rstrip().endswith("\n```"):
            text = rest.rstrip().removesuffix("```")
        text = text.rstrip("\n") + "\n" if self.text.endswith("\n") else text.rstrip("\n")
        return text.replace("\n", "\r\n") if "\r\n" in self.text else text

    def _misbuilt(self, text: str) -> str:
        """What of the study's rules a text breaks, the first of them; empty where it keeps all."""
        rules, words = self.rules, len(text.split())
        if rules.max_words and words > rules.max_words:
            return f"has {words} words, as they are between spaces, and {rules.max_words} are allowed"
        missing = (pattern for pattern in rules.require if not re.search(pattern, text, re.MULTILINE))
        if (pattern := next(missing, None)) is not None:
            return f"has nothing that matches {pattern!r}, which is required"
        if rules.schema and (problem := _unfit(text, rules.schema)):
            return f"does not fit the schema: {problem}"
        return ""


def _unfit(text: str, schema: str) -> str:
    from metaloop.fitting import unfit  # of documents with a schema alone

    return unfit(text, schema)


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(reply: Reply) -> tuple[str, str] | str:
    """An author's notes and document; or what is wrong with the reply."""
    if problem := unusable(reply):
        return problem
    lines = (reply.text or "").replace("\r\n", "\n").split("\n")
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
    """Whether two texts are the same but for a word or two in a hundred; of long ones, as far as pairs of neighbouring
    words tell, for time grows with the square of what is compared word by word.
    """
    a, b = (text.split() for text in (one, other))
    if a == b:
        return True
    if len(a) + len(b) > LONG:
        pairs, others = Counter(pairwise(a)), Counter(pairwise(b))
        return 2 * (pairs & others).total() >= SAME * (pairs.total() + others.total())
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
