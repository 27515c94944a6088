"""What a study is (`Terms`, fixed for its life) and how far it may go (`Bounds`, which a resumed study may change)."""

import re
from itertools import zip_longest
from typing import Literal, TypeAlias, get_args

from metaloop.acceptance import Aim
from metaloop.diagnose import Signature
from metaloop.edits.contract import Contract
from metaloop.gates import Kind
from metaloop.harness import Setting
from metaloop.values import Constraint, Objective, Scalar, Space, Value

Order: TypeAlias = Literal["free", "strict"]


PATCHES = "patch/"
"""What the names of candidate patches begin with, among the texts of a session."""

ASKING = ("llm", "guided", "llm_diff", "rewrite", "repair")
"""Policies that ask a model."""


PASS = ("critic", "author", "synthesizer", "judge")
"""Who plays in a pass of a tournament."""

SEATS = ("judge", *(f"judge{seat}" for seat in range(2, 10)))
"""Who may sit on a panel, by seat; a seat that nobody has of its own is `judge`'s."""

Compared: TypeAlias = Literal[
    "single", "conservative", "improve", "harsh", "critique_revise", "best_of_n", "autoreason"
]
COMPARED: tuple[Compared, ...] = get_args(Compared)
"""Strategies for documents, in the order in which they are told."""

SPARE = "judge_spare"
"""Who takes the seat of a judge whose ballots cannot be counted."""


class Baseline(Value, frozen=True):
    """What everything is compared with: the script's defaults, given parameters, another command, or nothing.

    `script` falls back to the middle of the space when the script does not run without parameters.
    """

    kind: Literal["script", "params", "cmd", "none"] = "script"
    params: dict[str, Scalar] = {}
    cmd: tuple[str, ...] = ()
    repeats: int = 3


GATE_NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}"
"""What a gate may be called."""


class Gate(Value, frozen=True):
    """A command that a candidate has to pass, or it has failed: before it is run (`pre`), or after. Seconds of wall
    clock that it may take.
    """

    name: str
    command: tuple[str, ...]
    phase: Literal["pre", "post"] = "pre"
    timeout_s: float = 600.0


class Tournament(Value, frozen=True):
    """How a document is improved: what a pass asks for, how its panel decides, and when it is enough.

    `k`: passes running that the incumbent has to win. `margin`: Borda points above the incumbent that unseat it;
    `quorum`: valid ballots that a pass needs. `voids`: passes running without a winner, after which the study ends.
    `tie_order`: who wins where points are equal. `stepwise`: whether judges are told to reason about each version
    first. `scope`: whether authors are told to keep to the length. `require`: regular expressions that every version
    has to match; `schema`: a JSON schema that it has to fit, as text; `max_words`: how long it may be, 0 for any
    length. `strict_claims`: a version with a number that stands in neither the first one nor the facts is out.

    `hard`: a critic that lets nothing pass. `lenses`: what it looks for; with `rotate` one of them a pass, in turn.
    `held`: what authors are held to, besides. `seats`: who is asked for each seat of the panel, where not all are
    `judge`; `spare`: somebody takes the seat of a judge that is lost. `judge_lenses`: what judges look at, one each in
    turn; `strict`: whether they are told first what a ballot that counts is; `retries`: how often one that does not is
    asked for again; `dissent`: whether the last of them makes the case of the minority first. `plateau`: the mean of
    the document's points over the last `PLATEAU` passes at which it is enough. `final`: judges who compare what came
    of it, once, at the end; 0 for none.
    `compare`: strategies that are compared, each with so many `calls`, in place of a tournament.
    """

    document: str
    k: int = 2
    judges: int = 3
    order: Literal["latin", "random", "both"] = "latin"
    margin: int = 2
    quorum: int = 2
    voids: int = 3
    tie_order: tuple[str, ...] = ("A", "B", "AB")
    stepwise: bool = True
    criteria: str = ""
    scope: bool = False
    task_shown: bool = True
    require: tuple[str, ...] = ()
    strict_claims: bool = False
    schema: str = ""
    max_words: int = 0
    hard: bool = False
    lenses: tuple[str, ...] = ()
    rotate: bool = False
    held: tuple[str, ...] = ()
    seats: tuple[str, ...] = ()
    spare: bool = False
    judge_lenses: tuple[str, ...] = ()
    strict: bool = False
    retries: int = 1
    dissent: bool = False
    plateau: float | None = None
    final: int = 0
    compare: tuple[Compared, ...] = ()
    calls: int = 0

    def seat(self, judge: int) -> str:
        """Who is asked for the judge with this number, from 0."""
        return self.seats[judge] if judge < len(self.seats) else SEATS[0]


PLATEAU = 5
"""Passes over which a plateau is looked for."""


Repairing: TypeAlias = Literal["reasoned_repair", "critique_revise", "best_of_n", "single"]


class Repair(Value, frozen=True):
    """How code is brought to pass its tests by few calls of a model, and how many they are."""

    strategy: Repairing = "reasoned_repair"
    calls: int = 6


class Campaign(Value, frozen=True):
    """A study of studies: which search is looked at, and how its remedies are judged.

    `inner`: what identifies the inner study. `base`: the values of its knobs. `cap`: its passes at most. `signatures`:
    those that are looked for, in their order. `replicates`: runs of the base. `original`: by the change request's rule
    alone. `placebo`: one trial changes nothing.
    """

    inner: str
    document: str
    base: dict[str, Setting]
    cap: int
    signatures: tuple[Signature, ...]
    gate: Kind = "majority"
    votes: int = 3
    alpha: float = 0.05
    aim: Aim = "rounds"
    replicates: int = 1
    original: bool = False
    placebo: bool = False


Tier: TypeAlias = Literal["parameters", "separate", "in-process", "stdout"]
"""Where a candidate's number comes from, the most believable first.

parameters: no candidate has code of its own. separate: a scorer that candidates never see, on what they left behind.
in-process: a program that candidates cannot change runs their code. stdout: they print it themselves.
"""


class Terms(Value, frozen=True):
    """The identity of a study. Change one of these and it is another study; paths are relative to the study's file.

    `frontier`: the strategy by which edits choose what they grow from, and its settings; empty: from what is best.
    `outputs`: globs of what a scorer sees of a candidate. `private`: globs of what no candidate sees.
    `holdout`: the command that scores on data that were held out, at the end alone; empty where there is none.
    `sealed`: the files that its words name, by path, with the hashes that they have to have. No prompt has them.
    """

    name: str
    objective: Objective
    train: tuple[str, ...]
    policy: str
    space: Space
    knobs: dict[str, Scalar] = {}
    start: tuple[dict[str, Scalar], ...] = ()
    seed: int = 0
    evaluate: tuple[str, ...] = ()
    prepare: tuple[str, ...] = ()
    workdir: str = "."
    env: dict[str, str] = {}
    env_allow: tuple[str, ...] = ()
    baseline: Baseline = Baseline()
    rule: Literal["proven", "provisional", "strict"] = "strict"
    others: tuple[Objective, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    several: Literal["lexicographic", "front"] = "lexicographic"
    alpha: float = 0.05
    confirm: int = 12
    error: Literal["any", "fdr"] = "any"
    order: Order = "free"
    window: int = 4
    same_host: bool = False
    fingerprint: str = ""
    frozen: dict[str, str] = {}
    budget_mode: str = "fixed_wallclock"
    prune: Literal["none", "median", "halving", "forecast"] = "none"
    fallback: Literal["none", "random", "tpe"] = "none"
    arms: tuple[str, ...] = ()
    mutable: tuple[str, ...] = ()
    required_calls: tuple[str, ...] = ()
    check: tuple[str, ...] = ()
    frontier: dict[str, Scalar] = {}
    gates: tuple[Gate, ...] = ()
    outputs: tuple[str, ...] = ()
    private: tuple[str, ...] = ()
    holdout: tuple[str, ...] = ()
    sealed: dict[str, str] = {}
    tournament: Tournament | None = None
    campaign: Campaign | None = None
    repair: Repair | None = None

    @property
    def tier(self) -> Tier:
        if not self.mutable:
            return "parameters"
        if self.evaluate and self.outputs:
            return "separate"
        words = [*(self.evaluate or self.train)]
        modules = [f"{word.replace('.', '/')}.py" for word in words]
        own = any(self.contract.allows(_plain(word)) for word in (*words, *modules))
        return "stdout" if own else "in-process"

    @property
    def programs(self) -> tuple[str, ...]:
        """Words of the study's commands that may be paths of files, which a candidate has no business to change."""
        commands = (self.train, self.evaluate, self.check, self.baseline.cmd, *(gate.command for gate in self.gates))
        return tuple(dict.fromkeys(_plain(word) for command in commands for word in command))

    @property
    def contract(self) -> Contract:
        """What of the code may be changed."""
        return Contract(self.mutable, tuple(self.frozen), self.required_calls)

    @property
    def engages(self) -> bool:
        """Whether whoever proposes sets a coding agent to work."""
        return "agent" in {self.policy, *self.arms}

    @property
    def asks(self) -> bool:
        """Whether whoever proposes asks a model."""
        return not {self.policy, *self.arms}.isdisjoint(ASKING)


def _plain(path: str) -> str:
    return path.removeprefix("./")


class Sandbox(Value, frozen=True):
    """What trials may reach, beside what their tier gives them: paths relative to the working folder, or absolute.
    None: as the tier has it.
    """

    level: Literal["auto", "bubblewrap", "landlock", "none"] = "auto"
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    network: bool | None = None
    devices: bool | None = None


class Limits(Value, frozen=True):
    """What one trial's whole process tree may use. Bytes, counts; None where there is no limit.

    `disk`: what it may add to its own folder and to the places of its own that it may write to.
    """

    memory: int | None = None
    processes: int | None = 512
    output: int = 10 << 20
    files: int | None = 1024
    disk: int | None = None


class Rung(Value, frozen=True):
    """What holds a trial's process tree in, of the sandbox's ladder. `seccomp`: system calls are filtered as well.
    `abi`: the version of Landlock that the kernel speaks; 0 where Landlock is not what holds.
    """

    name: Literal["bubblewrap", "landlock", "none"] = "none"
    seccomp: bool = False
    abi: int = 0

    @property
    def height(self) -> int:
        """How much it holds, to be compared."""
        return ("none", "landlock", "bubblewrap").index(self.name)


class ModelSpec(Value, frozen=True):
    """Who plays a role, and how it is asked. What is None or empty is not sent: the provider's own default holds.

    `key_env` names the variable that holds the key. `deadline_s`: seconds in all, over every retry. `usd_in` and
    `usd_out`: price of a million tokens; None where it is not known.
    """

    model: str
    provider: Literal["openai", "anthropic"] = "openai"
    base_url: str = ""
    key_env: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    deadline_s: float = 300.0
    usd_in: float | None = None
    usd_out: float | None = None

    @property
    def local(self) -> bool:
        """Whether it is served by this machine, where servers mostly want no key."""
        return bool(re.match(r"https?://(localhost|127\.|\[::1\])", self.base_url))

    def usd(self, tokens_in: int, tokens_out: int) -> float | None:
        """What so many tokens cost; None where a price is not known."""
        if self.usd_in is None or self.usd_out is None:
            return None
        return (tokens_in * self.usd_in + tokens_out * self.usd_out) / 1e6


class AgentSpec(Value, frozen=True):
    """A coding agent of the user's. In its words `{brief}` is what it is told, `{brief_file}` a file with that.

    `env_allow`: variables that are passed to it. `home`: whether it has the user's own HOME, where many keep what they
    are logged in with. `timeout_s`: seconds of wall clock for a session. `turns` and `usd`: what a session may take at
    most, and its own tool alone can hold that: they stand for `{turns}` and `{usd}` in its words.
    """

    command: tuple[str, ...]
    timeout_s: float = 1800.0
    env_allow: tuple[str, ...] = ()
    home: bool = False
    turns: int | None = None
    usd: float | None = None


class Bounds(Value, frozen=True):
    """Budgets and guards of the whole study, absolute: a resumed study with the same bounds has nothing left to do.

    Seconds of wall clock count while a controller holds the study's lease. `holdout`: what is scored on held-out data
    at the end, the baseline and the best, or with them all that was kept.
    """

    max_iterations: int = 100
    max_wall_time_s: float = 28800.0
    no_improve_limit: int = 15
    failure_rate_limit: float = 0.85
    failure_window: int = 8
    lanes: int = 1
    timeout_s: float = 3600.0
    prepare_timeout_s: float = 3600.0
    limits: Limits = Limits()
    sandbox: Sandbox = Sandbox()
    forecast: bool = False
    min_gain: float | None = None
    models: dict[str, ModelSpec] = {}
    agent: AgentSpec | None = None
    max_cost_usd: float | None = None
    max_tokens: int | None = None
    holdout: Literal["ends", "kept"] = "ends"

    @property
    def capped(self) -> bool:
        """Whether a cap on what asking costs has to hold."""
        return self.max_cost_usd is not None or self.max_tokens is not None


class Host(Value, frozen=True):
    """Where a controller ran. `fingerprint`: 16 digits of the SHA-256 of system, kernel and CPU or GPU name."""

    fingerprint: str
    os: str = ""
    kernel: str = ""
    processor: str = ""


# ---- in the words of a study file ------------------------------------------------------------------------------------

WORDS = {
    "train": "target.train_cmd", "evaluate": "target.eval_cmd", "prepare": "target.prepare_cmd",
    "workdir": "target.workdir", "env": "target.env", "env_allow": "target.env_allow", "outputs": "target.outputs",
    "private": "target.private", "policy": "policy.type", "space": "policy.params", "knobs": "policy.hybrid",
    "start": "policy.start", "seed": "policy.seed", "frozen": "policy.frozen", "mutable": "policy.mutable",
    "required_calls": "policy.required_calls", "check": "policy.check_cmd", "frontier": "policy.frontier",
    "fallback": "policy.fallback", "arms": "policy.arms", "rule": "evaluation.rule", "alpha": "evaluation.alpha",
    "confirm": "evaluation.confirm", "error": "evaluation.error", "several": "evaluation.several",
    "others": "objectives", "constraints": "objectives", "order": "controller.order", "window": "controller.window",
    "prune": "controller.prune", "same_host": "comparability.strict",
    "fingerprint": "comparability.expected_hardware_fingerprint", "budget_mode": "comparability.budget_mode",
    "repair": "policy", "command": "cmd", "whole": "int",
}  # fmt: skip
"""What a study file calls a field of the terms, or of a value in them, where that is another name."""


def differences(old: Terms, new: Terms) -> list[str]:
    """Every term that is not what it was, down to the entry of a list and the field of a value."""
    return [
        text
        for name in old.__struct_fields__
        for text in _differs(WORDS.get(name, name), getattr(old, name), getattr(new, name))
    ]


def _differs(name: str, old: object, new: object) -> list[str]:
    if old == new:
        return []
    if isinstance(old, Value) and type(old) is type(new):
        pairs = [(f"{name}.{WORDS.get(at, at)}", getattr(old, at), getattr(new, at)) for at in old.__struct_fields__]
    elif isinstance(old, dict) and isinstance(new, dict):
        pairs = [(f"{name}.{key}", old.get(key), new.get(key)) for key in dict.fromkeys([*old, *new])]
    elif isinstance(old, tuple) and isinstance(new, tuple) and any(isinstance(each, Value) for each in (*old, *new)):
        pairs = [(f"{name}[{at}]", *pair) for at, pair in enumerate(zip_longest(old, new))]
    else:
        return [f"{name} was {_short(old)}, is {_short(new)}"]
    return [text for pair in pairs for text in _differs(*pair)]


def _short(value: object) -> str:
    text = f"'{value}'" if isinstance(value, str) else _told(value)
    return text if len(text) <= 200 else text[:197] + "..."


def _told(value: object) -> str:
    """As it may stand in a study file."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case tuple() | list():
            return f"[{', '.join(map(_told, value))}]"
        case dict():
            return f"{{{', '.join(f'{key}: {_told(inner)}' for key, inner in value.items())}}}"
        case Value():
            fields = {WORDS.get(name, name): getattr(value, name) for name in value.__struct_fields__}
            return _told({name: inner for name, inner in fields.items() if inner not in (None, (), {})})
        case str() if not re.fullmatch(r"[\w./][\w./ -]*|-{1,2}[\w-]+", value) or value != value.strip():
            return f"'{value}'"
    return str(value)
