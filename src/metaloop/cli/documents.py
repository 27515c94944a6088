"""What the commands for documents have in common: their options, and the study that these come to."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from metaloop.cli.output import write_whole
from metaloop.cli.run import driven, exit_code
from metaloop.config import Outcome
from metaloop.errors import UsageError
from metaloop.passes import text
from metaloop.studyfile import StudyFile, from_mapping
from metaloop.terms import PASS, SEATS, SPARE

TOKENS, PAPER_TOKENS = 4096, 8192
"""Tokens of a reply at most, unless the document is so long that it needs more; and for papers."""

WARMTH = {"author": 0.8, "synthesizer": 0.8, "judge": 0.3}
"""The temperature of each role; a critic has the provider's own."""

PAPER = (
    "Weigh, in this order: accuracy against the results that are given as known; how clear the contribution is; "
    "whether claims are hedged as far as the results allow, and no further; the writing."
)
"""What judges of papers are asked to look at."""


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """Who plays, how they judge, and what may be spent."""

    task: Annotated[Path | None, Parameter(help="A file that says what the document is for, and for whom.")] = None
    model: Annotated[str | None, Parameter(help="Who plays every role that has nobody else.")] = None
    role: Annotated[
        list[str] | None,
        Parameter(negative="", help="critic=, author=, synthesizer=, judge=NAME; judge2= to judge9=, judge_spare=."),
    ] = None
    provider: Annotated[Literal["openai", "anthropic"], Parameter(help="openai: all that speaks its protocol.")] = (
        "openai"
    )
    judges: Annotated[int, Parameter(help="Judges in a pass.")] = 3
    k: Annotated[int, Parameter(help="Passes running that the document has to win.")] = 2
    order: Annotated[Literal["latin", "random", "both"], Parameter(help="In which judges see versions.")] = "latin"
    profile: Annotated[
        Literal["plain", "paper"], Parameter(help="paper: judged for accuracy against --ground-truth.")
    ] = "plain"
    ground_truth: Annotated[
        list[Path] | None, Parameter(negative="", help="Files with the facts that everybody is held to.")
    ] = None
    require: Annotated[
        list[str] | None, Parameter(negative="", help="A regular expression that every version has to match.")
    ] = None
    check: Annotated[
        str | None, Parameter(help="A command that every version has to pass, as 'python3 check.py {document}'.")
    ] = None
    max_words: Annotated[int | None, Parameter(help="Words that no version may exceed.")] = None
    json_schema: Annotated[Path | None, Parameter(help="A JSON schema that every version has to fit.")] = None
    strict_claims: Annotated[
        bool, Parameter(negative="", help="A version with numbers that stand in no source is out.")
    ] = False
    scope_note: Annotated[
        bool, Parameter(negative="", help="Tell authors that what makes it longer needs a reason.")
    ] = False
    seed: Annotated[int, Parameter(help="The seed of all dice.")] = 0
    max_cost_usd: Annotated[float | None, Parameter(help="What asking models may cost in all.")] = None
    max_wall_time_s: Annotated[float | None, Parameter(help="Seconds of wall clock in all.")] = None
    max_tokens: Annotated[
        int | None, Parameter(help="Tokens of a reply at most; 4096, for papers 8192, or what the text needs.")
    ] = None
    out: Annotated[Path | None, Parameter(help="Where to write the document at the end; a new file.")] = None
    name: Annotated[str | None, Parameter(help="The study's name; the document's unless given.")] = None

    def study(self, document: Path, rules: dict[str, object], most: int, name: str) -> StudyFile:
        """The study of this document, with these rules besides, of so many passes at most."""
        if self.out is not None and not self.out.absolute().parent.is_dir():
            raise UsageError(f"--out: expected a folder for it, found none at {self.out.absolute().parent}")
        if self.task is None:
            raise UsageError("expected what the document is for; add --task FILE")
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"--max-tokens: expected 1 or more, found {self.max_tokens}")
        if self.name is not None and not self.name.strip():
            raise UsageError("--name: expected a name, found none")
        if self.profile == "paper" and not self.ground_truth:
            raise UsageError("--profile paper: expected the results that it is held to; add --ground-truth FILE")
        controller: dict[str, object] = {"max_iterations": most}
        caps = {"max_cost_usd": self.max_cost_usd, "max_wall_time_s": self.max_wall_time_s}
        controller |= {key: value for key, value in caps.items() if value is not None}
        judges: dict[str, object] = {"count": self.judges, "order": self.order}
        judges |= {"criteria": PAPER} if self.profile == "paper" else {}
        plain: dict[str, object] = {
            "document": document.name, "k": self.k, "judges": judges, "scope_note": self.scope_note,
            "ground_truth": [str(path.absolute()) for path in self.ground_truth or ()],
            "require": list(self.require or ()), "strict_claims": self.strict_claims,
        }  # fmt: skip
        plain |= {"max_words": self.max_words} if self.max_words is not None else {}
        plain |= {"check_cmd": _words(self.check)} if self.check is not None else {}
        plain |= {} if self.json_schema is None else {"json_schema": str(self.json_schema.absolute())}
        raw = {
            "tournament": plain | rules,
            "policy": {"program_file": str(self.task.absolute()), "seed": self.seed},
            "models": self._players(document),
            "controller": controller,
        }
        return from_mapping(raw, name=self.name or name, base=document.absolute().parent)

    def run(self, file: StudyFile, *, quiet: bool) -> tuple[Outcome, int]:
        """The study, to its end, and the document where it was asked for; with the exit code."""
        if self.out is not None and self.out.exists() and not _same(self.out, document_in(file)):
            raise UsageError(f"--out: expected a new file, found one at {self.out}; nothing is written over")
        ended = driven(file, quiet=quiet)
        if self.out is not None and ended.closed is not None:
            write_whole(self.out, text(ended.study), newline="")
        return ended, exit_code(ended)

    def _players(self, document: Path) -> dict[str, object]:
        """Every role of a pass, and the seats that have somebody of their own."""
        usual = PAPER_TOKENS if self.profile == "paper" else TOKENS
        given = dict.fromkeys(PASS, self.model)
        roles, named = (*PASS, *SEATS[1:], SPARE), set[str]()
        for word in self.role or []:
            role, equals, who = word.partition("=")
            if role not in roles or not equals or not who:
                expected = f"{', '.join(PASS)}, judge2 to judge9 or {SPARE}"
                raise UsageError(f"--role: expected {expected} and a model, as judge=NAME; found {word!r}")
            if role in named:
                raise UsageError(f"--role: expected each role once, found {role} twice")
            named.add(role)
            given[role] = who
        if absent := [role for role, who in given.items() if who is None]:
            raise UsageError(f"expected who is {' and '.join(absent)}; add --model NAME, or --role {absent[0]}=NAME")
        most = self.max_tokens or max(usual, _size(document))
        warmth = WARMTH | dict.fromkeys((*SEATS[1:], SPARE), WARMTH["judge"])
        return {
            role: {"model": who, "provider": self.provider, "max_tokens": most}
            | ({"temperature": warmth[role]} if role in warmth else {})
            for role, who in given.items()
        }


def document_in(file: StudyFile) -> Path:
    """Where a study's folder has the document, as it was left."""
    rules = file.terms.tournament
    assert rules is not None
    return file.folder / f"best{Path(rules.document).suffix or '.txt'}"


def _same(one: Path, other: Path) -> bool:
    """Whether a file is what this study wrote the last time."""
    try:
        return one.read_bytes() == other.read_bytes()
    except OSError:
        return False


def _words(command: str) -> list[str]:
    """The words of a command, as a shell has them."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--check: expected a command, found {command!r}: {error}") from None
    if not words:
        raise UsageError("--check: expected a command, found none")
    return words


def _size(document: Path) -> int:
    """Tokens that a reply needs which has the document, and half as much again."""
    try:
        return document.stat().st_size // 2
    except OSError:
        return TOKENS  # what is wrong with it is told with all else


def named(document: Path) -> str:
    """What a study of this document is called."""
    return re.sub(r"[^\w.-]+", "-", document.stem)[:60].strip(".-") or "document"
