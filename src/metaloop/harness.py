"""The search procedure as data: knobs with ranges, their values, and edits that apply and undo. Pure.

A knob is a key of the study file by its dotted name, and its value is what stands there. A harness holds the values
that a study runs under; two harnesses are the same if their hashes are. Edits apply all together or not at all.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from metaloop.errors import UsageError
from metaloop.values import Value, canonical, digest

Setting: TypeAlias = bool | int | float | str | tuple[str, ...] | None
"""What a knob can be set to; None: not given, so that the default holds."""


class Knob(Value, frozen=True):
    """One setting of a search. `low` and `high`: of a number, both inclusive. `choices`: of a word. `texts`: a list of
    sentences. `absent`: whether it may be left to its default. `what`: for people.
    """

    name: str
    kind: Literal["whole", "number", "switch", "word", "texts"]
    what: str
    low: float = -math.inf
    high: float = math.inf
    choices: tuple[str, ...] = ()
    absent: bool = False

    def fits(self, value: Setting) -> str:
        """Why a value is none of this knob's; empty where it is one."""
        if value is None:
            return "" if self.absent else f"{self.name}: expected a value, found none"
        match self.kind:
            case "switch":
                good = isinstance(value, bool)
                expected = "true or false"
            case "word":
                good, expected = value in self.choices, f"one of {', '.join(self.choices)}"
            case "texts":
                good = isinstance(value, tuple) and all(isinstance(text, str) and text.strip() for text in value)
                expected = "a list of texts"
            case _:
                whole = self.kind == "whole"
                number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
                good = number and self.low <= value <= self.high  # type: ignore[operator]
                expected = f"{'a whole number' if whole else 'a number'} from {self.low:g} to {self.high:g}"
        return "" if good else f"{self.name}: expected {expected}, found {value!r}"

    def clamped(self, value: float) -> Setting:
        """The nearest value in range."""
        held = min(self.high, max(self.low, value))
        return int(held) if self.kind == "whole" else round(held, 9)


class Edit(Value, frozen=True):
    """One knob set to another value. `before`: what it has to be now, or the edit was meant for something else."""

    knob: str
    before: Setting
    after: Setting


class Harness(Value, frozen=True):
    """The values that a study runs under, by knob. Those that are not here are as the study's file has them."""

    values: dict[str, Setting]

    def hash(self) -> str:
        """The same for the same values, in whatever order they were set."""
        return digest(canonical(self.values))[:16]

    def __getitem__(self, knob: str) -> Setting:
        return self.values[knob]


# ---- edits -----------------------------------------------------------------------------------------------------------


def applied(harness: Harness, edits: Sequence[Edit], knobs: Mapping[str, Knob]) -> Harness:
    """The harness after all of these edits. Raises UsageError for the first that does not apply; then none does."""
    values = dict(harness.values)
    for edit in edits:
        knob = knobs.get(edit.knob)
        if knob is None or edit.knob not in values:
            raise UsageError(f"expected a knob that this harness has, found {edit.knob!r}")
        if values[edit.knob] != edit.before:
            raise UsageError(
                f"{edit.knob}: expected {edit.before!r}, as it was when this was meant, found {values[edit.knob]!r}"
            )
        if problem := knob.fits(edit.after):
            raise UsageError(problem)
        values[edit.knob] = edit.after
    return Harness(values)


def undone(harness: Harness, edits: Sequence[Edit], knobs: Mapping[str, Knob]) -> Harness:
    """The harness before these edits. Raises UsageError where somebody has set one of the knobs again since."""
    return applied(harness, [Edit(edit.knob, edit.after, edit.before) for edit in reversed(edits)], knobs)


def changed(harness: Harness, wanted: Mapping[str, Setting]) -> tuple[Edit, ...]:
    """The edits that set these knobs; none for those that are so already."""
    return tuple(
        Edit(knob, harness[knob], value)
        for knob, value in wanted.items()
        if knob in harness.values and harness[knob] != value
    )


# ---- the knobs of a tournament ---------------------------------------------------------------------------------------

HOTTEST = 2.0
"""The highest temperature that providers take, but for Anthropic, which ends at 1."""


def _role(role: str) -> tuple[Knob, Knob]:
    return (
        Knob(f"models.{role}.temperature", "number", f"how freely the {role} writes", 0.0, HOTTEST, absent=True),
        Knob(f"models.{role}.max_tokens", "whole", f"tokens of a reply of the {role}", 1, 200_000, absent=True),
    )


TOURNAMENT: Mapping[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob("tournament.k", "whole", "wins running that end it", 1, 20),
        Knob("tournament.margin", "whole", "points above the document that unseat it", 0, 100),
        Knob("tournament.tie_order", "texts", "who wins where points are equal"),
        Knob("tournament.scope_note", "switch", "authors are told that growth needs a reason"),
        Knob("tournament.critic.mode", "word", "how hard the critic is", choices=("normal", "hard")),
        Knob("tournament.critic.lenses", "texts", "what the critic looks for"),
        Knob("tournament.critic.lens_rotation", "word", "whether these take turns", choices=("off", "round")),
        Knob("tournament.author.constraints", "texts", "what authors are held to"),
        Knob("tournament.judges.count", "whole", "judges of a pass", 1, 25),
        Knob("tournament.judges.order", "word", "in which they see versions", choices=("latin", "random", "both")),
        Knob("tournament.judges.quorum", "whole", "valid ballots that a pass needs", 1, 25),
        Knob("tournament.judges.prompt", "word", "how judges are told to judge", choices=("stepwise", "holistic")),
        Knob("tournament.judges.strict_ballot", "switch", "judges are told first what a ballot that counts is"),
        Knob("tournament.judges.retries", "whole", "how often an invalid ballot is asked for again", 0, 5),
        Knob("tournament.judges.lenses", "texts", "what judges look at, one each"),
        Knob("tournament.judges.dissent_slot", "switch", "one judge makes the case of the minority first"),
        *(knob for role in ("critic", "author", "synthesizer", "judge") for knob in _role(role)),
    )
}
"""What an outer loop may move of a tournament."""
