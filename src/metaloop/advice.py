"""Which strategy improves a text or a program, why, and what it costs. Pure.

The tree and its figures are those of the published runs of the method: few tasks, and models of their time. A figure
that does not follow from what was published, or that rests on runs which went wrong, is told with that. Nothing here is
learned from studies of your own.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias, get_args

from metaloop.errors import UsageError
from metaloop.values import Value

Tier: TypeAlias = Literal["weak", "mid", "strong", "frontier"]
Strategy: TypeAlias = Literal[
    "single", "conservative", "improve", "harsh", "critique_revise", "best_of_n", "autoreason", "reasoned_repair"
]
Answer: TypeAlias = bool | Tier
Asked: TypeAlias = Literal["verifiable", "first_attempt_solves", "code", "tier", "constrained", "open_ended"]

TIERS: tuple[Tier, ...] = get_args(Tier)
STRATEGIES: tuple[Strategy, ...] = get_args(Strategy)
MAIN: tuple[Strategy, ...] = ("single", "critique_revise", "best_of_n", "autoreason")
"""Those that an advice speaks against by name where it does not choose them."""

PASSES, CAP, JUDGES = 15, 25, 3
"""Most published runs ended after 10 to 15 passes; a tournament ends at its cap of 25 unless told otherwise."""

TOKENS, FRAME, NOTES = 800, 300, 500
"""Assumed tokens: of a version, where no document is given; of task and prompt; of a critique or a judge's reasons."""


class Question(Value, frozen=True):
    """What is asked about; None where it was not answered. `code` alone means verifiable: it can be run.

    `words` of a document that is there already (None: the first version has yet to be written), and its `tokens`.
    `final_judges` rank the results once more at the end; 0 for no such panel.
    """

    verifiable: bool | None = None
    first_attempt_solves: bool | None = None
    tier: Tier | None = None
    constrained: bool | None = None
    open_ended: bool | None = None
    code: bool = False
    model: str = ""
    judge_model: str = ""
    judges: int = JUDGES
    passes: int | None = None
    final_judges: int = 0
    words: int | None = None
    tokens: int = TOKENS

    def answer(self, asked: Asked) -> Answer | None:
        """As it was given, or as it follows from what was."""
        match asked:
            case "verifiable":
                return True if self.verifiable is None and self.code else self.verifiable
            case "tier":
                return self.tier or tier(self.model)
            case "first_attempt_solves":
                return self.first_attempt_solves
            case "code":
                return self.code
            case "constrained":
                return self.constrained
            case "open_ended":
                return self.open_ended


class Constraint(Value, frozen=True):
    """What a task may fix: an example of it, and why it does not work where that is known."""

    kind: str
    example: str = ""
    why: str = ""


class Price(Value, frozen=True):
    """USD for a million tokens."""

    usd_in: float
    usd_out: float


class Cost(Value, frozen=True):
    """Calls of a strategy for so many passes, and how they were counted; `usd` is None where a price is not known."""

    calls: int
    counted: str
    usd: float | None = None


class Advice(Value, frozen=True):
    """`or_else`: what does as well. `against`: why the other main strategies fail here. `most`: the chosen one's cost
    at the cap of passes. `notes`: what to mind about the question itself.
    """

    question: Question
    tier: Tier | None
    strategy: Strategy
    or_else: Strategy | None
    reasons: tuple[str, ...]
    against: dict[Strategy, str]
    judges: str
    constraints_that_work: tuple[Constraint, ...]
    constraints_that_do_not: tuple[Constraint, ...]
    passes: int
    costs: dict[Strategy, Cost]
    most: Cost
    assumed: tuple[str, ...]
    notes: tuple[str, ...]


def advise(question: Question, author: Price | None = None, judge: Price | None = None) -> Advice:
    """The advice for a question that is answered as far as the tree asks; UsageError, in a line, where it is not."""
    _refuse(question)
    leaf, used = _walked(TREE, question)
    passes, cap = question.passes or PASSES, question.passes or CAP
    prices = {"author": author, "judge": judge}
    passed_over = (name for name in MAIN if name not in (leaf.strategy, leaf.or_else))
    answer = question.answer("tier")
    return Advice(
        question=question,
        tier=answer if isinstance(answer, str) else None,
        strategy=leaf.strategy,
        or_else=leaf.or_else,
        reasons=leaf.reasons,
        against={name: leaf.against.get(name, FAILS[name]) for name in passed_over},
        judges=leaf.judges,
        constraints_that_work=WORK,
        constraints_that_do_not=DO_NOT,
        passes=passes,
        costs={name: cost(name, question, passes, prices) for name in STRATEGIES},
        most=cost(leaf.strategy, question, cap, prices),
        assumed=tuple(_assumed(question)),
        notes=tuple(_notes(question, leaf, used)),
    )


# ---- the tier of a model ---------------------------------------------------------------------------------------------


class Placed(NamedTuple):
    """Models by their names, and their tier; `measured` where the published runs used this very model."""

    tier: Tier
    names: str
    measured: str = ""


PLACED_ON = "2026-12-01"
"""The day of the table. Tiers are of their time: what is frontier becomes mid, and only the gap between writing and
judging counts. Small variants of new models are left out on purpose: whoever uses one is asked.
"""

MODELS = (
    Placed("mid", r"haiku-3-5|3-5-haiku", "Haiku 3.5"),
    Placed("mid", r"gemini-2-0-flash(?!-lite)|gemini-flash-2-0", "Gemini 2.0 Flash"),
    Placed("mid", r"claude-3-haiku|gemini-1-5-flash|gemini-2-0-flash-lite|gpt-4o-mini|gpt-4-1-mini"),
    Placed("strong", r"sonnet-4(?!-[1-9]\b)|claude-4-sonnet", "Sonnet 4"),
    Placed("strong", r"3-[57]-sonnet|sonnet-3-[57]|sonnet-4-5|4-5-sonnet|gpt-4o|gpt-4-turbo|gpt-4-1(?!-nano)"),
    Placed("frontier", r"sonnet-4-6|4-6-sonnet", "Sonnet 4.6"),
    Placed("frontier", r"(?<!3-)opus(?!-3)|sonnet-[5-9]|gpt-5(?![0-9])(?!.*-(mini|nano))"),
)
WEAK_B = 9.0
"""Models whose name says that they have so many billions of parameters, or fewer, are weak."""

SIZES = r"(?<![a-z0-9.])(\d+(?:\.\d+)?b|\d{3}m)(?![a-z0-9])"
"""8b, 0.5b, 135m; not the 1m of a long context, nor one expert of 8x7b."""


def placed(model: str) -> Placed | None:
    """Where the table has a model; None where it does not know it."""
    name = re.sub(r"[^a-z0-9]", "-", model.lower())
    sizes = [float(size[:-1]) / (1000 if size[-1] == "m" else 1) for size in re.findall(SIZES, model.lower())]
    if sizes and max(sizes) <= WEAK_B:
        return Placed("weak", "", "Llama 3.1 8B" if re.search(r"llama-?3-1-8b", name) else "")
    return next((row for row in MODELS if re.search(row.names, name)), None)


def tier(model: str) -> Tier | None:
    """What a model's name says; None where the table does not know it."""
    found = placed(model)
    return found.tier if found else None


FAMILIES = r"claude|gpt|gemini|gemma|llama|mi[sx]tral|qwen|deepseek|grok|command|phi|glm|kimi|nova"


def family(model: str) -> str:
    """Who made a model, as its name tells, for those that are known by a word of their own; empty where it does not."""
    found = re.search(rf"(?:^|[^a-z])({FAMILIES})", model.lower())
    return found[1] if found else ""


# ---- the tree --------------------------------------------------------------------------------------------------------


class Leaf(NamedTuple):
    strategy: Strategy
    reasons: tuple[str, ...]
    judges: str
    against: Mapping[Strategy, str] = {}
    or_else: Strategy | None = None


class Fork(NamedTuple):
    asks: Asked
    by: "Mapping[Answer, Fork | Leaf]"


FAILS: Mapping[Strategy, str] = {
    "single": "stays at the ceiling of its first attempt",
    "critique_revise": "gets worse pass by pass: invented problems, wider scope, and it never declines a change",
    "best_of_n": "nothing ranks its drafts, so that one is as good as drawn by lot",
    "autoreason": "without bounds each synthesis adds something, and no incumbent ever settles",
}

SOLVED = Leaf(
    "single",
    ("The first attempt passes the check: no revision can prove more than that.",),
    "none: the check is the judge",
    {
        "critique_revise": "a critic finds something in any text, and revising may break what passes",
        "best_of_n": "one draft that passes is enough",
        "autoreason": "the taste of a panel is no better than a check that passes",
    },
)
REPAIR = Leaf(
    "reasoned_repair",
    (
        "The form of autoreason for code, with tests in the panel's place: first an analysis of why it fails, then "
        "revisions that each say what they mend.",
        "Published runs, programs that no first attempt solved: 62 % solved so, 43 % by a single pass (p = 0.041). The "
        "effect size given there, 0.32, does not follow from these shares: recomputed it is 0.38.",
    ),
    "none: the visible tests steer, and hidden ones are run once, at the end",
    {
        "single": "the first attempt has failed",
        "critique_revise": "bends to the tests that it sees (published runs: 32 % of hard problems)",
        "best_of_n": "no draft learns from the failure of another",
        "autoreason": "judges rank what reads well; tests know what runs",
    },
)
CHECKED = Leaf(
    "autoreason",
    (
        "What fails a check can be analysed: why it fails, then a revision from that, as often as it takes.",
        "The published runs of this branch are of code alone: that their gain holds for other checks is not shown.",
    ),
    "let the check reject first; give the judges what is known to be true, and a mid-tier author stronger ones",
    {"single": "the first attempt has failed", "best_of_n": "no draft learns from the failure of another"},
)
WEAK = Leaf(
    "single",
    (
        "Too weak to gain by passes: its versions look alike, and a panel has nothing to choose from. Put the money "
        "into a stronger author, and this model into cheap roles.",
        "Published runs: Llama 3.1 8B won 1 of 3 tasks, with 23.7 Borda points against 25.0 of a single pass.",
    ),
    "none; it cannot judge either",
    {
        "best_of_n": "below a single pass for weak models (published runs)",
        "autoreason": "its candidates are too much alike to be ranked",
    },
)
MID = Leaf(
    "autoreason",
    (
        "Here a model writes much better than it judges itself. Judges from outside close that gap, and can decline a "
        "change, which a model that revises alone never does.",
        "Published runs: Haiku 3.5 won 3 of 3 tasks (42.0 Borda points, a single pass 33.7), Gemini 2.0 Flash 2 of 3 "
        "(25.0 to 20.0).",
    ),
    "stronger than the author: in the published runs Sonnet 4 judged both. That its own tier will do (20.7 to 18.3 "
    "there) is not shown: those runs rest on passes without ballots",
    {
        "single": "stays at the ceiling of its first attempt, which is low here",
        "critique_revise": "gets worse pass by pass (published runs, Haiku 3.5: 16.3, single 33.7)",
    },
)
OPEN = Leaf(
    "autoreason",
    (
        "Open-ended work is weighing one thing against another: no list of right changes, but blind judges can tell.",
        "Published runs: Sonnet 4 won 3 of 5 tasks, 27.8 Borda points to 22.4 of critique-and-revise. Five tasks are a "
        "hint, no proof.",
    ),
    "the same model will do (published runs: Sonnet 4 judged itself)",
)
TECHNICAL = Leaf(
    "critique_revise",
    (
        "Concrete requirements let a critic name real problems, and mending those needs no panel.",
        "Published runs: on 2 of 5 tasks, the technical ones, Sonnet 4 did better so. Stop when the problems that were "
        "named are gone: it never declines a change by itself.",
    ),
    "none",
    {"autoreason": "pays for a panel where the requirements already say which version is right"},
)
SCOPED = Leaf(
    "autoreason",
    (
        "A fixed scope leaves a synthesis nothing to grow into: it has to get better instead.",
        "Published runs: Sonnet 4.6 won 2 of 3 tasks with a scope, 29.0 Borda points to 27.0 of plain improving. That "
        "is close: where the budget is tight, take a single pass.",
    ),
    "the same model will do, as long as the scope is fixed",
    {"single": "close behind, and one call: for tight budgets"},
)
UNBOUNDED = Leaf(
    "critique_revise",
    (
        "Fix the scope if you can, and ask again with --constrained. Without one, a few passes at most: this too tends "
        "to widen what it revises.",
        "Published runs: without a scope Sonnet 4.6 came last by autoreason, 7.0 Borda points to 31.0 of "
        "critique-and-revise. Mind that this is one task, and that about 80 % of such texts were cut off by the token "
        "limit (recomputed).",
    ),
    "none",
    {"autoreason": "each synthesis adds something, and none settles (published runs: A won 12 % of the passes)"},
    "single",
)

TREE = Fork("verifiable", {
    True: Fork("first_attempt_solves", {
        True: SOLVED,
        False: Fork("code", {True: REPAIR, False: CHECKED}),
    }),
    False: Fork("tier", {
        "weak": WEAK,
        "mid": MID,
        "strong": Fork("open_ended", {True: OPEN, False: TECHNICAL}),
        "frontier": Fork("constrained", {True: SCOPED, False: UNBOUNDED}),
    }),
})  # fmt: skip

WORDS: Mapping[Asked, Mapping[Answer, str]] = {
    "verifiable": {True: "verifiable", False: "subjective"},
    "first_attempt_solves": {True: "solved", False: "unsolved"},
    "code": {True: "code"},
    "tier": {name: name for name in TIERS},
    "constrained": {True: "constrained", False: "unconstrained"},
    "open_ended": {True: "open-ended", False: "technical"},
}
"""An answer as it is typed, behind two dashes; a tier behind `--tier`."""

WORK = (
    Constraint("fixed facts", "only these 8 figures"),
    Constraint("a fixed deliverable", "one pitch of 500 words"),
    Constraint("a fixed structure", "4 sections, 3 items each"),
    Constraint("fixed changes", "these 3 concerns"),
)
DO_NOT = (
    Constraint("a word count", "at most 500 words", "alone it ends early, and not because it is good"),
    Constraint("conciseness", "be concise", "forgotten after 2 or 3 passes of the published runs"),
    Constraint("completeness", "be comprehensive", "asks for growth"),
    Constraint("a checklist", "tick all of these", "published runs, Sonnet 4: not settled after 25 passes"),
)


def missing(question: Question) -> tuple[str, ...]:
    """What has yet to be said, as it is typed, in the tree's order; empty where the tree can be walked to its end."""
    return tuple(_wanted(TREE, question, ()))


def told(question: Question) -> tuple[str, ...]:
    """All answers that were given, as words."""
    answers = ((asked, question.answer(asked)) for asked in WORDS)
    return tuple(WORDS[asked][answer] for asked, answer in answers if answer is not None and answer in WORDS[asked])


def _walked(node: Fork | Leaf, question: Question) -> tuple[Leaf, tuple[Asked, ...]]:
    """Where the answers lead, and which of them were asked for on the way."""
    at, used = node, list[Asked]()
    while isinstance(at, Fork):
        answer = question.answer(at.asks)
        assert answer is not None  # nothing is missing
        used.append(at.asks)
        at = at.by[answer]
    return at, tuple(used)


def _wanted(node: Fork | Leaf, question: Question, when: tuple[str, ...]) -> Iterator[str]:
    if isinstance(node, Leaf):
        return
    answer = question.answer(node.asks)
    if answer is not None:
        yield from _wanted(node.by[answer], question, when)
        return
    yield (f"if {' and '.join(when)}: " if when else "") + _typed(node.asks, question)
    for answer, below in node.by.items():
        yield from _wanted(below, question, (*when, WORDS[node.asks][answer]))


def _typed(asked: Asked, question: Question) -> str:
    if asked != "tier":
        return " or ".join(f"--{word}" for word in WORDS[asked].values())
    option = f"--tier {'|'.join(TIERS)}"
    return f"{option} (no tier is known of {question.model!r})" if question.model else f"--model NAME or {option}"


def _refuse(question: Question) -> None:
    numbers = (
        ("--judges", question.judges, 1),
        ("--passes", question.passes, 1),
        ("--final-judges", question.final_judges, 0),
    )
    for option, value, least in numbers:
        if value is not None and value < least:
            raise UsageError(f"{option}: expected {least} or more, found {value}")
    if wanted := missing(question):
        raise UsageError(f"expected {'; '.join(wanted)}")


def _notes(question: Question, leaf: Leaf, used: tuple[Asked, ...]) -> Iterator[str]:
    """What a person should know of the answers: which are guesses, which contradict, which made no difference."""
    if "tier" in used:
        yield from _of_tier(question)
    if leaf.strategy == "autoreason" and question.answer("tier") == "mid":
        yield from _of_judge(question.judge_model)
    drifting = leaf.strategy == "autoreason" and question.constrained is False
    if drifting:
        yield "a tournament without a fixed scope drifts: fix one of the things that work"
    heard = (*used, "constrained") if drifting else used
    if idle := [WORDS[asked][answer] for asked, answer in _said(question) if asked not in heard]:
        yield f"made no difference here: {', '.join(idle)}"


def _of_tier(question: Question) -> Iterator[str]:
    row, answer, name = placed(question.model), question.answer("tier"), question.model
    if row and row.tier != answer:
        yield f"{answer} is what you said; by its name {name} is {row.tier}"
    elif row and not row.measured:
        yield f"{name}: {row.tier} is our guess by its name ({PLACED_ON}); what was published is of other models"


def _of_judge(name: str) -> Iterator[str]:
    known = tier(name)
    if name and known not in ("strong", "frontier"):
        yield f"{name}, who judges, is {f'{known}-tier, no stronger' if known else 'of no known tier'}"


def _said(question: Question) -> Iterator[tuple[Asked, Answer]]:
    """The answers that were typed; not those that follow from others."""
    given: dict[Asked, Answer | None] = {
        "first_attempt_solves": question.first_attempt_solves,
        "code": True if question.code and question.verifiable is not None else None,
        "tier": question.tier,
        "constrained": question.constrained,
        "open_ended": question.open_ended,
    }
    yield from ((asked, said) for asked, said in given.items() if said is not None)


# ---- what it costs ---------------------------------------------------------------------------------------------------


class Calls(NamedTuple):
    """So many calls of one kind, and the tokens of each."""

    who: Literal["author", "judge"]
    number: int
    tokens_in: int
    tokens_out: int


def calls(strategy: Strategy, question: Question, passes: int) -> tuple[Calls, ...]:
    """All that a strategy asks in so many passes, each version as long as the first. For `best_of_n` N = `passes`."""
    text, initial = question.tokens, int(question.words is None)
    critic = Calls("author", passes, FRAME + text, NOTES)
    match strategy:
        case "single":
            return (Calls("author", 1, FRAME + text * (1 - initial), text),)
        case "best_of_n":
            return (Calls("author", passes, FRAME + text * (1 - initial), text),)
        case "conservative" | "improve" | "harsh":
            return (Calls("author", passes, FRAME + text, text),)
        case "critique_revise":
            return (critic, Calls("author", passes, FRAME + text + NOTES, text))
        case "reasoned_repair":
            first, analysis = Calls("author", 1, FRAME, text), Calls("author", 1, FRAME + text, NOTES)
            return (first, analysis, Calls("author", 4, FRAME + text + NOTES, text + NOTES))
        case "autoreason":
            first = Calls("author", initial, FRAME, text)
            author = Calls("author", passes, FRAME + text + NOTES, text + NOTES)  # its notes stand beside the text
            synthesizer = Calls("author", passes, FRAME + 2 * text, text)
            panel = Calls("judge", passes * question.judges + question.final_judges, FRAME + 3 * text, NOTES)
            return (first, critic, author, synthesizer, panel)


def cost(strategy: Strategy, question: Question, passes: int, prices: Mapping[str, Price | None]) -> Cost:
    """Calls, and money where the price of everyone who is asked is known."""
    asked = [kind for kind in calls(strategy, question, passes) if kind.number]
    usd = 0.0
    for kind in asked:
        price = prices.get(kind.who)
        if price is None:
            return Cost(sum(kind.number for kind in asked), _counted(strategy, question, passes))
        usd += kind.number * (kind.tokens_in * price.usd_in + kind.tokens_out * price.usd_out) / 1e6
    return Cost(sum(kind.number for kind in asked), _counted(strategy, question, passes), usd)


def _counted(strategy: Strategy, question: Question, passes: int) -> str:
    match strategy:
        case "single":
            return "1"
        case "best_of_n":
            return f"N = {passes} drafts"
        case "conservative" | "improve" | "harsh":
            return f"1 * {passes} passes"
        case "critique_revise":
            return f"2 * {passes} passes"
        case "reasoned_repair":
            return "a first attempt, an analysis, up to 4 revisions"
        case "autoreason":
            first = "" if question.words is not None else "initial 1 + "
            final = f" + final panel {question.final_judges}" if question.final_judges else ""
            return f"{first}{passes} passes * (3 + {question.judges} judges){final}"


def _assumed(question: Question) -> Iterator[str]:
    """What the money rests on."""
    if question.words is None:
        yield f"a text of {question.tokens:,} tokens, yet to be written (--document FILE counts yours)"
    else:
        yield f"a text of {question.words:,} words, about {question.tokens:,} tokens"
    yield f"task and prompt {FRAME}, critique or reasons {NOTES}"
    yield "no growth, thinking or retries"
    if not question.judge_model:
        yield "judges at the author's price"
