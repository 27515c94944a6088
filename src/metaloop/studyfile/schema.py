"""The keys of a study file: models at the edge, strict, and the words for what does not fit them.

Knows every key, its type and its default. Reads nothing and runs nothing: what a file says about the disk (folders,
globs) is checked by `studyfile`. Everything wrong is found in one pass and comes back as `Fault`s, never as a raise.
"""

import difflib
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Tag,
    TypeAdapter,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails

from metaloop.studyfile.yaml12 import Place
from metaloop.terms import GATE_NAME, Compared, Repairing
from metaloop.values import Choices, Domain, Range, Scalar, number


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong, and where. `message`: what was expected, what was found, what to do."""

    at: Place
    message: str


# ---- words -----------------------------------------------------------------------------------------------------------


def dotted(at: Place) -> str:
    """`policy.params.lr` or `policy.start[0]`: a place in the document as people write it."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in at)
    return "".join(parts).removeprefix(".")


def found(value: object) -> str:
    """What stands there, in a few words, however large it is."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() if abs(value) >= 1 << 64:
            return f"a whole number of {_digits(value)} digits"
        case int() | float():
            return f"the number {value!r}"
        case str():
            return f"the text {_short(value)!r}"
        case list():
            return "an empty list" if not value else f"a list of {len(value)}"
        case dict():
            return "keys and values (" + (", ".join(_short(str(key)) for key in list(value)[:3]) or "none") + ")"
        case _:
            return f"a {type(value).__name__}"


def _short(text: str, most: int = 60) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


def _digits(value: int) -> str:
    """How many digits there are, without writing them: that is slow, and Python refuses it for the largest."""
    return "hundreds of" if value.bit_length() > 400 else str(len(str(abs(value))))


def meant(word: str, known: Iterable[str]) -> str | None:
    """The known word that was probably meant."""
    close = difflib.get_close_matches(_short(word), list(known), n=1, cutoff=0.6)
    return close[0] if close else None


# ---- small types -----------------------------------------------------------------------------------------------------


def _direction(value: object) -> object:
    return DIRECTIONS.get(value.lower(), value) if isinstance(value, str) else value


def name_problem(name: str) -> str | None:
    """Why a study cannot have this name; None if it can."""
    bad = set(name) & set("/\\") or name != name.strip() or name.startswith((".", "-")) or unprintable(name)
    if not name or bad or len(name.encode()) > 100:
        what = "a name that can be a folder: at most 100 bytes, no slash, no leading dot or dash, no control characters"
        return f"expected {what}; found {name[:120]!r}"
    return None


def _study_name(name: str) -> str:
    if problem := name_problem(name):
        raise ValueError(problem)
    return name


def _label(name: str) -> str:
    """A name that can be printed on a line of its own as `name=number` and read back."""
    if not name or name != name.strip() or "=" in name or unprintable(name) or len(name) > 100:
        raise ValueError(
            f"expected a name of 1 to 100 characters without '=' or control characters; found {name[:120]!r}"
        )
    return name


def _variable(name: str) -> str:
    if not name or "=" in name or unprintable(name) or len(name) > 200:
        raise ValueError(f"expected the name of an environment variable; found {name[:120]!r}")
    return name


def _own_variable(name: str) -> str:
    if name.startswith(("AR_PARAM", "AR_MODIFIED_", "METALOOP_")):
        raise ValueError("metaloop sets this variable itself in every trial; choose another name")
    return _variable(name)


def unprintable(text: str) -> bool:
    """Whether control characters, line ends or half characters stand in `text`."""
    return any(unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"} for c in text)


SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(?:([KMGT])(i?))?B?\s*", re.IGNORECASE)


def size_in_bytes(value: object) -> object:
    """`48GiB`, `10 MiB`, `48Gi`, `5 GB` or a number of bytes, as bytes; anything else comes back as it is."""
    if not isinstance(value, str):
        return value
    if (match := SIZE.fullmatch(value)) is None:
        raise ValueError(f"expected a size such as 48GiB, 500 MB or a number of bytes; found {found(value)}")
    digits, unit, binary = match.groups()
    power = "KMGT".index(unit.upper()) + 1 if unit else 0
    count = float(digits) * (1024 if binary else 1000) ** power
    if not 1 <= count <= 1 << 60:
        raise ValueError(f"expected a size between 1 byte and 1024 PiB; found {found(value)}")
    return round(count)


def _cores(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _url(text: str) -> str:
    if not re.match(r"https?://[^\s/]+", text):
        raise ValueError(f"expected an address that begins with http:// or https://; found {found(text)}")
    return text


DIRECTIONS = {
    "max": "max",
    "maximize": "max",
    "maximise": "max",
    "higher": "max",
    "min": "min",
    "minimize": "min",
    "minimise": "min",
    "lower": "min",
}
DirectionKey = Annotated[
    Literal["max", "min"],
    BeforeValidator(_direction),
    WithJsonSchema({"type": "string", "enum": list(DIRECTIONS)}),
]
Size = Annotated[
    int,
    Field(gt=0, le=1 << 60),
    BeforeValidator(size_in_bytes),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": "^[0-9]"}]}),
]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Text = Annotated[str, Field(min_length=1)]
Label = Annotated[str, AfterValidator(_label)]
Variable = Annotated[str, AfterValidator(_variable)]
Command = Annotated[list[str], Field(min_length=1)]
Url = Annotated[str, AfterValidator(_url)]


def _kind(value: object) -> str:
    """Which of a key's forms is meant. The tags hold a character that no key can hold: they appear in error places."""
    match value:
        case dict() | BaseModel():
            return "\0mapping"
        case list():
            return "\0list"
        case _:
            return "\0scalar"


class Section(BaseModel):
    """A mapping of known keys: nothing is converted from another type, nothing unknown is let in."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


# ---- the space -------------------------------------------------------------------------------------------------------

EXACT = 1 << 53  # the largest whole number up to which floats hold every whole number


class RangeKeys(Section):
    """Numbers from `low` to `high`, both included."""

    low: float
    high: float
    log: bool = Field(False, description="spread evenly over orders of magnitude")
    step: float | None = Field(None, description="only low, low + step, low + 2 step ...")
    int_: bool = Field(False, alias="int", description="whole numbers only")

    @model_validator(mode="after")
    def _consistent(self) -> "RangeKeys":
        if problem := self._problem():
            raise ValueError(problem)
        return self

    def _problem(self) -> str | None:
        """The first thing that makes no range of these numbers."""
        ends = f"low {self.low:g} and high {self.high:g}"
        if not self.low < self.high:
            return f"expected low below high; found {ends}" + (
                "; for one fixed value write a list of one" if self.low == self.high else ""
            )
        if not math.isfinite(self.high - self.low):
            return f"expected a range whose width is a number; found {ends}"
        if self.log and self.low <= 0:
            return f"expected low above 0 in a range with log: true; found {self.low:g}; raise low or drop log"
        if self.int_ and not (_whole(self.low) and _whole(self.high)):
            return f"expected whole numbers at both ends of a range with int: true; found {ends}"
        return self._step_problem()

    def _step_problem(self) -> str | None:
        if self.step is None:
            return None
        if not 0 < self.step <= self.high - self.low:
            return f"expected a step above 0 and at most {self.high - self.low:g}, the range; found {self.step:g}"
        if (self.high - self.low) / self.step > EXACT:
            return f"expected a step that can be counted over this range; found {self.step:g}"
        if self.int_ and not _whole(self.step):
            return f"expected a whole step in a range with int: true; found {self.step:g}"
        if self.log and not (self.int_ and self.step == 1):
            return "expected either log or step; found both; drop one, or list the values"
        return None

    def looks_whole(self) -> bool:
        """Whether whole numbers may have been meant."""
        plain = not self.int_ and not self.log and self.step in {None, 1.0}
        return plain and _whole(self.low) and _whole(self.high) and self.high - self.low > 1

    def domain(self) -> Range:
        whole_step_of_one = self.int_ and self.step == 1
        return Range(self.low, self.high, self.log, None if whole_step_of_one else self.step, self.int_)


def _whole(value: float) -> bool:
    return value == int(value) and abs(value) <= EXACT


def _choices(values: list[Scalar]) -> list[Scalar]:
    seen: dict[tuple[bool, Scalar], Scalar] = {}
    for value in values:
        same = (isinstance(value, bool), value)
        if same in seen:
            raise ValueError(f"expected each choice once; found {seen[same]!r} and {value!r}; drop one")
        seen[same] = value
    return values


def _param_name(name: str) -> str:
    if not name or "=" in name or unprintable(name) or len(name) > 100:
        raise ValueError(
            "expected a name that can be the environment variable AR_PARAM_<NAME>: 1 to 100 characters, no '=', "
            f"no control characters; found {name[:120]!r}"
        )
    return name


def _params(params: dict[str, "Parameter"]) -> dict[str, "Parameter"]:
    """Names are told apart by their environment variables, which are in upper case."""
    seen: dict[str, str] = {}
    for name in params:
        if (other := seen.setdefault(name.upper(), name)) != name:
            raise ValueError(f"{other!r} and {name!r} would both be AR_PARAM_{name.upper()}; rename one")
    return params


def _single(value: object) -> Scalar:
    if not isinstance(value, bool | int | float | str):
        raise ValueError(f"expected a number, text, or true or false; found {found(value)}")
    return value


def _bare(value: object) -> Scalar:
    if not isinstance(value, bool | int | float | str):
        raise ValueError(f"expected a list of choices or a range {{low, high}}; found {found(value)}")
    return value


SCALAR = WithJsonSchema({"type": ["boolean", "number", "string"]})
Single = Annotated[Scalar, PlainValidator(_single), SCALAR]
Parameter = Annotated[
    Annotated[RangeKeys, Tag("\0mapping")]
    | Annotated[list[Single], Field(min_length=1), AfterValidator(_choices), Tag("\0list")]
    | Annotated[Scalar, PlainValidator(_bare), SCALAR, Tag("\0scalar")],
    Discriminator(_kind),
]
Params = Annotated[dict[Annotated[str, AfterValidator(_param_name)], Parameter], AfterValidator(_params)]
PARAMS: TypeAdapter[dict[str, RangeKeys | list[Scalar] | Scalar]] = TypeAdapter(Params, config=ConfigDict(strict=True))
Point = dict[str, Single]


def domain(parameter: RangeKeys | list[Scalar] | Scalar) -> Domain:
    """What a validated parameter stands for. A bare value is a choice of one."""
    match parameter:
        case RangeKeys():
            return parameter.domain()
        case list():
            return Choices(tuple(parameter))
        case _:
            return Choices((parameter,))


# ---- the sections ----------------------------------------------------------------------------------------------------


class ObjectiveKeys(Section):
    metric: Label = Field(description="the metric's exact name")
    direction: DirectionKey = Field(description="which way it gets better")
    target: float | None = Field(None, description="the study ends when this is reached")
    ceiling: float | None = Field(None, description="the best value there can be")
    plausible: Annotated[list[float], Field(min_length=2, max_length=2)] | None = Field(
        None, description="[low, high]: a value outside is set aside"
    )


class FurtherKeys(Section):
    """What counts besides the objective: another one, or a bound that has to hold."""

    metric: Label = Field(description="the metric's exact name")
    direction: DirectionKey = Field(
        description="which way it gets better; a bound is at most for min, at least for max"
    )
    role: Literal["optimise", "constraint"] = Field("optimise", description="constraint: only its bound counts")
    bound: float | None = Field(None, description="of a constraint")


class LimitKeys(Section):
    """For the whole process tree of a trial."""

    memory: Size | None = Field(None, description="bytes, or a size such as 48GiB")
    processes: Count | None = Field(512, description="processes and threads")
    output: Size = Field(10 << 20, description="bytes of stdout and stderr")
    files: Count | None = Field(1024, description="open files of one process")
    disk: Size | None = Field(None, description="bytes that it may write: in its own folders, and to any one file")


class SandboxKeys(Section):
    """What trials may reach, beside what their kind of study gives them. Paths begin at the workdir."""

    level: Literal["auto", "bubblewrap", "landlock", "none"] = Field("auto", description="auto: the best that is there")
    read: list[Text] = Field([], description="files and folders that trials may read")
    write: list[Text] = Field([], description="files and folders that trials may write to")
    network: bool | None = Field(None, description="default: only where no candidate has code of its own")
    devices: bool | None = Field(None, description="all of /dev, as GPUs need; default: as for network")


class BasilicaKeys(Section):
    """A container on Basilica, one a trial."""

    image: Text
    gpu_count: Annotated[int, Field(ge=0, le=1024)] = 1
    gpu_models: list[Text] = []
    memory: Size = 32 << 30
    cpu: Annotated[Text, BeforeValidator(_cores)] = "8"
    storage: Text = "/data"
    ttl_seconds: Count = 7200
    min_gpu_memory_gb: Annotated[float, Field(gt=0)] | None = None
    setup_cmd: Text | None = None
    ready_timeout_s: Seconds = 600.0


class TargetKeys(Section):
    type: Literal["command", "basilica"] = Field("command", description="where trials run")
    workdir: Text = Field(".", description="the folder commands run in, relative to the study file")
    prepare_cmd: Command | None = Field(None, description="runs once, before the first trial")
    train_cmd: Command = Field(description="one trial: a list of arguments, never a shell")
    eval_cmd: Command | None = Field(None, description="if given, metrics are read from it alone")
    holdout_cmd: Command | None = Field(
        None, description="scores the baseline and the best on held-out data, when the search is over, and never before"
    )
    timeout_s: Seconds = Field(3600.0, description="wall clock of one run")
    prepare_timeout_s: Seconds = Field(3600.0, description="wall clock of prepare_cmd")
    limits: LimitKeys = LimitKeys.model_construct()
    sandbox: SandboxKeys = SandboxKeys.model_construct()
    outputs: list[Text] = Field([], description="globs of what a candidate leaves for eval_cmd: it sees no more")
    private: list[Text] = Field([], description="globs of files that no candidate sees, labels for one; eval_cmd does")
    env: dict[Annotated[str, AfterValidator(_own_variable)], str] = Field({}, description="set in every trial")
    env_allow: list[Variable] = Field(["PATH", "LANG", "TERM", "CUDA_VISIBLE_DEVICES"], description="passed through")
    basilica: BasilicaKeys | None = None


Arm: TypeAlias = Literal["random", "tpe", "cmaes", "nsga2", "llm", "guided", "llm_diff", "patches", "agent"]
Policy: TypeAlias = Literal[
    "static", "grid", "random", "tpe", "cmaes", "gp", "nsga2", "auto", "llm", "guided", "learned",
    "llm_diff", "hybrid", "patches", "agent", "rewrite", "repair",
]  # fmt: skip


class PriceKeys(Section):
    """USD for a million tokens."""

    input: Annotated[float, Field(ge=0)]
    output: Annotated[float, Field(ge=0)]


class ModelKeys(Section):
    """Who plays a role. What is not given is not sent."""

    model: Text = Field(description="its name, as the provider has it")
    provider: Literal["openai", "anthropic"] = Field("openai", description="openai: anything that speaks its protocol")
    base_url: Url | None = Field(None, description="default: OPENAI_BASE_URL if that is set, else the provider's own")
    api_key_env: Variable | None = Field(
        None, description="the variable that holds the key; default: OPENAI_API_KEY or ANTHROPIC_API_KEY"
    )
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    max_tokens: Count | None = Field(None, description="of a reply; needed where a cap on cost or tokens has to hold")
    deadline_s: Seconds = Field(300.0, description="seconds for an answer, over all retries")
    price: PriceKeys | None = Field(None, description="default: from a table of known models")


Player: TypeAlias = Literal[
    "default", "proposer", "critic", "author", "synthesizer", "judge", "judge2", "judge3", "judge4", "judge5",
    "judge6", "judge7", "judge8", "judge9", "judge_spare", "director",
]  # fmt: skip


class AgentKeys(Section):
    """A coding agent: any program that changes files in its working folder."""

    command: Command = Field(description="{brief}: what it is told; {brief_file}: a file with that, as METALOOP_BRIEF")
    timeout_s: Seconds = Field(1800.0, description="seconds of wall clock for one session")
    env_allow: list[Variable] = Field([], description="variables that are passed to it")
    home: bool = Field(False, description="whether it has your HOME, where it may be logged in")
    turns: Count | None = Field(None, description="what {turns} in its command stands for, which holds it to that")
    usd: Annotated[float, Field(gt=0, le=1e6)] | None = Field(
        None, description="the most that one session costs: what {usd} in its command stands for"
    )


SETTINGS: dict[str, dict[str, int | float]] = {
    "argmax": {},
    "top_k": {"k": 5},
    "epsilon_greedy": {"epsilon": 0.1},
    "softmax": {"temperature": 0.5, "k": 5},
    "pareto_per_task": {"k": 5, "task_floor": 0.0},
}
"""The strategies of `policy.frontier`; their settings and what they are unless the file says otherwise."""
StrategyName = Literal["argmax", "top_k", "epsilon_greedy", "softmax", "pareto_per_task"]


class FrontierKeys(Section):
    """Which of the kept trials edits grow from."""

    strategy: StrategyName
    k: Count | None = Field(None, description="of how many; 5 unless given")
    epsilon: Annotated[float, Field(ge=0, le=1)] | None = Field(None, description="with epsilon_greedy; 0.1")
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        None, description="with softmax, in units of the objective; 0.5"
    )
    task_floor: Annotated[float, Field(allow_inf_nan=False)] | None = Field(
        None, description="with pareto_per_task: a task that nobody does above this has no winner; 0"
    )
    directions: dict[Label, DirectionKey] | None = Field(None, description="of tasks that get better another way")
    leaves_only: bool = Field(False, description="never from a trial that has a kept child")

    @model_validator(mode="after")
    def _own(self) -> "FrontierKeys":
        given = [name for name in FrontierKeys.model_fields if getattr(self, name) is not None]
        if others := [name for name in given if name not in ("strategy", *self._has())]:
            has = ", ".join(self._has())
            raise ValueError(f"expected settings of {self.strategy} ({has}); found {', '.join(others)}; remove it")
        return self

    def _has(self) -> tuple[str, ...]:
        ways = ("directions",) if self.strategy == "pareto_per_task" else ()
        return (*SETTINGS[self.strategy], *ways, "leaves_only")

    def settings(self) -> dict[str, Scalar]:
        """All of them as a flat mapping."""
        own = SETTINGS[self.strategy]
        given = {name: getattr(self, name) for name in own if getattr(self, name) is not None}
        ways = {f"directions.{task}": way for task, way in (self.directions or {}).items()}
        return {"strategy": self.strategy, **own, **given, **ways, "leaves_only": self.leaves_only}


class PolicyKeys(Section):
    type: Policy = Field(
        "random",
        description="who proposes; auto is tpe where Optuna is installed, else random; llm: a model; guided: a model "
        "that sees what tpe would do; learned: each of several, by what came of their trials; llm_diff: a model that "
        "changes code; agent: a coding agent does; hybrid: parameters and code by turns; patches: a folder of changes; "
        "repair: a model brings code to pass its tests by few calls",
    )
    strategy: Repairing = Field("reasoned_repair", description="with type repair: how its calls are used")
    calls: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        None, description="with type repair: of the model, in all; 6 unless given, and 1 with strategy single"
    )
    arms: list[Arm] = Field([], description="learned: who may propose; hybrid: who proposes parameters, and who code")
    fallback: Literal["none", "random", "tpe"] = Field(
        "none", description="who proposes where a model gave nothing that can be tried; none: nobody does"
    )
    params: Params = Field({}, description="the space: a list of choices, or a range, for each parameter")
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = Field(0, description="the same seed proposes the same")
    start: list[Point] = Field([], description="known points that are tried first")
    agent: AgentKeys | None = Field(None, description="with type agent: who changes the code")
    frontier: (
        Annotated[
            Annotated[FrontierKeys, Tag("\0mapping")]
            | Annotated[StrategyName, Tag("\0scalar")]
            | Annotated[StrategyName, Tag("\0list")],
            Discriminator(_kind),
        ]
        | None
    ) = Field(None, description="with llm_diff or agent: what edits grow from; a strategy, or it with its settings")
    patches: Text | None = Field(None, description="with type patches: a folder of patches, tried by name")
    check_cmd: Command | None = Field(None, description="run before a changed candidate: a failure is one of the build")
    required_calls: list[Text] = Field([], description="functions that mutable Python files have to go on calling")
    hybrid_param_explore_iters: Count = Field(8, description="with type hybrid: trials of parameters at the start")
    hybrid_stall_threshold: Count = Field(4, description="trials running without a keep, after which edits begin")
    hybrid_diff_failure_limit: Count = Field(3, description="failed edits, after which parameters go on")
    mutable_file: Text | None = Field(None, description="the one file that may be changed")
    frozen_file: Text | None = Field(None, description="a file that must stay as it is")
    program_file: Text | None = Field(None, description="the task in words, for a model")
    mutable: list[Text] | None = Field(None, description="globs of files that may be changed")
    frozen: list[Text] = Field([], description="globs of files that must stay as they are")
    llm_api_url: Url | None = None
    llm_model: Text | None = None
    llm_api_key_env: Variable = Field("OPENAI_API_KEY", description="the variable that holds the key")
    llm_timeout_s: Seconds = 120.0


class EvaluationKeys(Section):
    rule: Literal["proven", "provisional", "strict"] = Field(
        "proven",
        description="proven: better on fresh seeds, beside the incumbent; provisional: what looks better leads, and "
        "the leading few are put to that proof now and then; strict: better in one run",
    )
    alpha: Annotated[float, Field(gt=0, lt=0.5)] = Field(
        0.05, description="the chance that the whole study keeps anything false"
    )
    confirm: Annotated[int, Field(ge=2, le=200)] = Field(12, description="pairs of runs at most, to prove a candidate")
    several: Literal["lexicographic", "front"] = Field(
        "lexicographic", description="front: keep what nothing dominates; needs rule strict"
    )
    error: Literal["any", "fdr"] = Field("any", description="fdr: alpha bounds the false share of what is kept")
    baseline_repeats: Annotated[int, Field(ge=0, le=1000)] = Field(3, description="how often the baseline is measured")
    holdout: Literal["ends", "kept"] = Field(
        "ends", description="what target.holdout_cmd scores: the baseline and the best, or all that was kept"
    )


class GateKeys(Section):
    """A command that every candidate has to pass."""

    name: Annotated[str, Field(pattern=f"^{GATE_NAME}$")] = Field(description="letters, digits, - and _")
    cmd: Command = Field(description="passed, if it ends with exit code 0; a list of arguments, never a shell")
    phase: Literal["pre", "post"] = Field("pre", description="before the candidate is run, or after")
    timeout_s: Seconds = Field(600.0, description="seconds of wall clock; the quickest come first")


class BaselineKeys(Section):
    """What everything is compared with: these parameters, or another command. One of the two."""

    params: Point | None = None
    cmd: Command | None = None

    @model_validator(mode="after")
    def _one(self) -> "BaselineKeys":
        if (self.params is None) == (self.cmd is None):
            raise ValueError("expected either params or cmd; found " + ("neither" if self.cmd is None else "both"))
        return self


class ParallelKeys(Section):
    enabled: bool
    max_concurrency: Annotated[int, Field(ge=1, le=1024)] = 1


class ControllerKeys(Section):
    max_iterations: Count = Field(100, description="trials in all, over the life of the study")
    max_wall_time_s: Seconds = Field(28800.0, description="seconds of wall clock in all, while a controller runs")
    no_improve_limit: Annotated[int, Field(ge=0, le=10**9)] = Field(
        15, description="settled trials in a row without a keep that end the study; 0: they never do"
    )
    forecast: bool = Field(True, description="end the study when the rest of the budget is projected to gain nothing")
    min_gain: Annotated[float, Field(ge=0)] | None = Field(
        None, description="what the rest has to promise; default: half a noise width, or 0.1 % of the gain so far"
    )
    failure_rate_limit: Annotated[float, Field(gt=0, le=1)] = Field(0.85, description="of the failure window")
    failure_window: Annotated[int, Field(ge=1, le=100_000)] = Field(8, description="trials the failure rate is of")
    parallel: Annotated[
        Annotated[ParallelKeys, Tag("\0mapping")]
        | Annotated[int, Field(ge=1, le=1024), Tag("\0scalar")]
        | Annotated[int, Tag("\0list")],
        Discriminator(_kind),
    ] = Field(1, description="trials at once: a number, or {enabled, max_concurrency}")
    prune: Literal["none", "median", "halving", "forecast"] = Field(
        "none", description="end trials that cannot win, by what they write to METALOOP_PROGRESS; not with order strict"
    )
    order: Literal["free", "strict"] = Field("free", description="strict: lanes do not change what is proposed")
    window: Annotated[int, Field(ge=1, le=1024)] = Field(
        4, description="with order strict: the most lanes there can be"
    )
    max_cost_usd: Annotated[float, Field(gt=0)] | None = Field(
        None, description="for all asks of the whole study; an ask that could go over it is not made"
    )
    max_tokens: Count | None = Field(None, description="the same in tokens, in and out")
    checkpoint_path: Text | None = Field(None, description="a summary for other programs, written after every round")

    def lanes(self) -> int:
        match self.parallel:
            case ParallelKeys(enabled=enabled, max_concurrency=most):
                return most if enabled else 1
            case lanes:
                return lanes


class TelemetryKeys(Section):
    """Copies of what the ledger holds, for other programs. Only those named are written."""

    trace_path: Text | None = Field(None, description="events, one JSON object a line")
    ledger_path: Text | None = Field(None, description="results, tab-separated")
    artifacts_dir: Text | None = Field(None, description="run-NNNN/ for each trial")
    versions_dir: Text | None = Field(None, description="vNNNN/ for each kept trial")


class ComparabilityKeys(Section):
    budget_mode: Literal["fixed_wallclock", "parallel_wallclock"] = "fixed_wallclock"
    expected_hardware_fingerprint: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{8,64}$")] | None = None
    strict: bool = Field(False, description="trials on other hardware than the baseline's are not kept")


class JudgesKeys(Section):
    """The panel of a tournament."""

    count: Annotated[int, Field(ge=1, le=25)] = Field(3, description="judges in a pass")
    order: Literal["latin", "random", "both"] = Field(
        "latin",
        description="each version as often in each place; by lot; or each judge twice, the second time reversed",
    )
    quorum: Annotated[int, Field(ge=1, le=25)] | None = Field(
        None, description="valid ballots that a pass needs; two thirds of the judges unless given"
    )
    prompt: Literal["stepwise", "holistic"] = Field("stepwise", description="whether they reason about each first")
    criteria: Text | None = Field(None, description="what they are asked to look at, in your words")
    lenses: list[Text] = Field([], description="what they look at above all, one each, in turn")
    strict_ballot: bool = Field(False, description="whether they are told first what a ballot that counts is")
    retries: Annotated[int, Field(ge=0, le=5)] = Field(
        1, description="how often a ballot that does not count is asked for again"
    )
    dissent_slot: bool = Field(False, description="whether the last makes the case of the minority before it ranks")


class CriticKeys(Section):
    """The critic of a tournament."""

    mode: Literal["normal", "hard"] = Field("normal", description="hard: it tries every claim")
    lenses: list[Text] = Field([], description="what it looks for above all")
    lens_rotation: Literal["off", "round"] = Field("off", description="round: one of the lenses a pass, in turn")


class AuthorKeys(Section):
    """The authors of a tournament."""

    constraints: list[Text] = Field([], description="what they are held to: no_paraphrase, or a sentence of your own")


class TournamentKeys(Section):
    """A document, improved by versions that a blind panel prefers."""

    document: Text = Field(description="the first version: a text file")
    k: Annotated[int, Field(ge=1, le=20)] = Field(2, description="passes running that the document has to win")
    judges: JudgesKeys = JudgesKeys.model_construct()
    margin: Annotated[int, Field(ge=0, le=100)] | None = Field(
        None, description="points above it that unseat the document; two thirds of the judges unless given"
    )
    voids: Annotated[int, Field(ge=1, le=20)] = Field(3, description="passes running without a winner that end it")
    tie_order: list[Literal["A", "B", "AB"]] = Field(["A", "B", "AB"], description="who wins where points are equal")
    scope_note: bool = Field(False, description="whether authors are told that what makes it longer needs a reason")
    task_shown_to_critic: bool = True
    ground_truth: list[Text] = Field([], description="files with the facts that critic, author and judges hold it to")
    require: list[Text] = Field([], description="regular expressions that every version has to match")
    max_words: Annotated[int, Field(ge=1)] | None = Field(
        None, description="words, as they are between spaces, that no version may exceed"
    )
    json_schema: Text | None = Field(None, description="a file with a JSON schema that every version has to fit")
    check_cmd: Command | None = Field(
        None, description="a command that every version has to pass; {document} stands for its file"
    )
    strict_claims: bool = Field(False, description="a version with numbers that stand in no source is out")
    critic: CriticKeys = CriticKeys.model_construct()
    author: AuthorKeys = AuthorKeys.model_construct()
    plateau: Annotated[float, Field(gt=0)] | None = Field(
        None, description="mean of the document's points over the last five passes, at which it is enough"
    )
    final_judges: Annotated[int, Field(ge=0, le=25)] | None = Field(
        None, description="judges who compare what came of it, once, at the end; 7 unless given"
    )
    compare: list[Compared] = Field([], description="strategies that are compared, in place of a tournament")
    calls: Annotated[int, Field(ge=1, le=1000)] = Field(30, description="calls that each of them may make")


class CheckKeys(Section):
    """What `metaloop check` tries beside the baseline. No part of what the study is."""

    sabotage: Point | Text | None = Field(
        None, description="parameters, or a file with a patch, that must score worse than the baseline"
    )
    noop: Point | Text | None = Field(
        None,
        description="the same, that must score as the baseline does; of code, by default, an empty line",
    )


class Document(Section):
    """A whole study file."""

    name: Annotated[str, AfterValidator(_study_name)] | None = Field(None, description="default: the file's name")
    objective: ObjectiveKeys
    objectives: list[FurtherKeys] = Field([], description="further objectives, in their order, and constraints")
    target: TargetKeys
    policy: PolicyKeys = PolicyKeys.model_construct()
    models: dict[Player, ModelKeys] = Field({}, description="who plays which role; default plays the rest")
    evaluation: EvaluationKeys = EvaluationKeys.model_construct()
    baseline: (
        Annotated[
            Annotated[BaselineKeys, Tag("\0mapping")]
            | Annotated[Literal["none"], Tag("\0scalar")]
            | Annotated[Literal["none"], Tag("\0list")],
            Discriminator(_kind),
        ]
        | None
    ) = Field(None, description="default: train_cmd without parameters; {params}, {cmd}, or none")
    gates: list[GateKeys] = Field([], description="commands that every candidate has to pass, or it has failed")
    controller: ControllerKeys = ControllerKeys.model_construct()
    telemetry: TelemetryKeys = TelemetryKeys.model_construct()
    comparability: ComparabilityKeys = ComparabilityKeys.model_construct()
    tournament: TournamentKeys | None = Field(None, description="improves a document: no objective, no target")
    check: CheckKeys = CheckKeys.model_construct()


def json_schema() -> dict[str, object]:
    """The JSON schema of a study file, for editors."""
    head: dict[str, object] = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "metaloop study"}
    return {**Document.model_json_schema(), **head}


# ---- keys that are known and come later: to add one, delete its row --------------------------------------------------

LATER: frozenset[str] = frozenset({
    *("harness", "director"),
    *("target.resources", "target.price_per_hour"),
    *("target.warm", "target.url", "target.headers"),
    *("evaluation.prefer_simpler",),
    *("controller.max_gpu_hours",),
    *("telemetry.trackers", "telemetry.webhook", "telemetry.keep_artifacts"),
})  # fmt: skip
LATER_VALUES: dict[str, tuple[str, ...]] = {
    "target.type": ("ray", "slurm", "http"),
    "policy.type": ("tree",),
}


NESTED: dict[str, type[BaseModel]] = {
    "": Document,
    "objective": ObjectiveKeys,
    "objectives": FurtherKeys,
    "target": TargetKeys,
    "target.limits": LimitKeys,
    "target.sandbox": SandboxKeys,
    "target.basilica": BasilicaKeys,
    "policy": PolicyKeys,
    "policy.agent": AgentKeys,
    "policy.frontier": FrontierKeys,
    "models.ROLE": ModelKeys,
    "models.ROLE.price": PriceKeys,
    "evaluation": EvaluationKeys,
    "baseline": BaselineKeys,
    "gates": GateKeys,
    "controller": ControllerKeys,
    "controller.parallel": ParallelKeys,
    "telemetry": TelemetryKeys,
    "comparability": ComparabilityKeys,
    "tournament": TournamentKeys,
    "tournament.judges": JudgesKeys,
    "tournament.critic": CriticKeys,
    "tournament.author": AuthorKeys,
    "check": CheckKeys,
}
KEYS: dict[str, tuple[str, ...]] = {
    section: tuple(field.alias or name for name, field in model.model_fields.items())
    for section, model in NESTED.items()
}
"""The keys of every section, by the section's dotted name; the root's is empty."""


# ---- validation ------------------------------------------------------------------------------------------------------

PLACEHOLDERS: dict[str, object] = {
    "objective": {"metric": "metric", "direction": "max"},
    "objective.metric": "metric",
    "objective.direction": "max",
    "target": {"train_cmd": ["true"]},
    "target.train_cmd": ["true"],
}
"""What stands in for a required key that is absent or wrong, so that the checks after this one see the rest."""


def validate(raw: Mapping[str, object]) -> tuple[Document, list[Fault]]:
    """The document, and all that is wrong with `raw`. With any fault, the document is what is left without them.

    Such a document is for finding further faults and for nothing else.
    """
    faults: list[Fault] = []
    rest: object = raw
    for attempt in range(20):
        try:
            return Document.model_validate(rest), faults
        except ValidationError as error:
            details = [(_place(detail, rest), detail) for detail in error.errors(include_url=False)]
        earlier = tuple(faults)
        for at, detail in details:
            followed = attempt > 0 and (detail["type"] == "missing" or explained(at, earlier))
            if not followed:
                faults.append(Fault(at, message(detail, at)))
        for at, detail in reversed(details):  # from the back, so that places in lists stay what they are
            rest = _without(rest, at, missing=detail["type"] == "missing")
    return Document.model_validate({key: PLACEHOLDERS[key] for key in ("objective", "target")}), faults


def explained(at: Place, earlier: Iterable[Fault]) -> bool:
    """Whether something is known to be wrong there already, or further in: then one more fault may be its echo."""
    return any(fault.at[: len(at)] == at for fault in earlier)


def _place(detail: ErrorDetails, raw: object) -> Place:
    """Where an error is, in the user's terms: without tags of forms and pydantic's mark for keys."""
    at = tuple(part for part in detail["loc"] if not str(part).startswith("\0"))
    if detail["type"] == "missing":
        return at
    while at and not _holds(raw, at):
        at = at[:-1]
    return at


def _holds(raw: object, at: Place) -> bool:
    for part in at:
        if not _has(raw, part):
            return False
        raw = raw[part]  # type: ignore[index]
    return True


def _has(raw: object, part: str | int) -> bool:
    if isinstance(raw, Mapping):
        return part in raw
    return isinstance(raw, list) and isinstance(part, int) and part < len(raw)


def _without(raw: object, at: Place, *, missing: bool) -> object:
    if missing and (stand_in := PLACEHOLDERS.get(dotted(at))) is not None:
        return _with(raw, at, stand_in)
    if missing:
        at = at[:-1]
    if not at:
        return {}
    head, *rest = at
    if isinstance(raw, Mapping) and head in raw:
        if rest:
            return {**raw, head: _without(raw[head], tuple(rest), missing=False)}
        return {key: value for key, value in raw.items() if key != head}
    if isinstance(raw, list) and isinstance(head, int) and head < len(raw):
        inner = [_without(raw[head], tuple(rest), missing=False)] if rest else []
        return raw[:head] + inner + raw[head + 1 :]
    return raw


def _with(raw: object, at: Place, value: object) -> object:
    if not at:
        return value
    held = raw if isinstance(raw, Mapping) else {}
    return {**held, at[0]: _with(held.get(at[0]), at[1:], value)}


# ---- the words for a fault -------------------------------------------------------------------------------------------

EXPECTED: dict[str, str] = {
    "int_type": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "model_attributes_type": "keys and values",
}
REQUIRED: dict[str, str] = {
    "objective": "add objective: {metric: NAME, direction: max}",
    "objective.metric": "add the exact name of the metric that the command prints",
    "objective.direction": "add direction: max, or direction: min",
    "target": "add target: {train_cmd: [python, train.py]}",
    "policy.frontier.strategy": f"add strategy: NAME, one of {', '.join(SETTINGS)}",
    "target.train_cmd": "add the command of one trial, such as train_cmd: [python, train.py]",
}


def message(detail: ErrorDetails, at: Place) -> str:
    """What was expected, what was found, what to do."""
    context = detail.get("ctx", {})
    value = detail["input"]
    match detail["type"]:
        case "missing":
            return f"expected this key, found nothing; {REQUIRED.get(dotted(at), 'add it')}"
        case "extra_forbidden":
            return _unknown_key(at)
        case "value_error":
            return str(context["error"])
        case "literal_error":
            return _unknown_value(at, value, str(context["expected"]))
        case kind:
            return f"expected {_expected(kind, context)}; found {found(value)}{_advice(kind, value)}"


def _expected(kind: str, context: Mapping[str, Any]) -> str:
    match kind:
        case "greater_than":
            return f"a number above {context['gt']:g}"
        case "greater_than_equal":
            return f"a number of at least {context['ge']:g}"
        case "less_than":
            return f"a number below {context['lt']:g}"
        case "less_than_equal":
            return f"a number of at most {context['le']:g}"
        case "too_short":
            return _so_many(context["min_length"])
        case "too_long":
            return f"at most {context['max_length']} entries"
        case "string_too_short":
            return "some text"
        case "string_pattern_mismatch" if GATE_NAME in context["pattern"]:
            return "a name of letters, digits, - and _, of at most 40"
        case "string_pattern_mismatch":
            return "8 to 64 hexadecimal digits"
        case _:
            return EXPECTED.get(kind, kind.replace("_", " "))


def _so_many(least: object) -> str:
    return "at least one entry" if least == 1 else f"{least} entries"


def _advice(kind: str, value: object) -> str:
    """What to type instead, where that can be told."""
    match kind, value:
        case "list_type", str() if value.strip():
            return "; write [" + ", ".join(_short(value).split()) + "]"
        case "list_type", bool() | int() | float() if number(value):
            return f"; write [{value!r}]"
        case "string_type", bool() | int() | float():
            return "; put it in quotes"
        case "int_type" | "float_type", str() if _numeric(value):
            return "; write it plainly, without quotes or underscores"
        case "bool_type", str() if value.lower() in {"yes", "on", "no", "off", "true", "false"}:
            return f"; write {'true' if value.lower() in {'yes', 'on', 'true'} else 'false'}"
        case _:
            return ""


def _numeric(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _unknown_key(at: Place) -> str:
    """Where the key belongs, what was meant, or what there is."""
    *parents, last = at
    section, key = dotted(tuple(parents)), str(last)
    if dotted(at) in LATER:
        return "this key is known, but not in this version; remove it"
    section = re.sub(r"^models\.[^.]+|\[\d+\]", lambda part: "models.ROLE" if part[0][0] == "m" else "", section)
    known = KEYS.get(section, RANGE_KEYS if section.startswith("policy.params.") else ())
    if homes := [name for name, keys in KEYS.items() if key in keys]:
        place = " or ".join(home if home else "the top level" for home in homes)
        return f"unknown key here; {_short(key)} belongs under {place}"
    if (likely := meant(key, known)) is not None:
        return f"unknown key; did you mean {likely}?"
    elsewhere = {name: home for home, keys in reversed(KEYS.items()) for name in keys}  # the first that has it
    if (likely := meant(key, elsewhere)) is not None:
        return f"unknown key; did you mean {dotted((*filter(None, [elsewhere[likely]]), likely))}?"
    return f"unknown key; known here are {', '.join(known)}" if known else "unknown key here; remove it"


RANGE_KEYS = tuple(field.alias or name for name, field in RangeKeys.model_fields.items())


def _unknown_value(at: Place, value: object, allowed: str) -> str:
    key = dotted(at)
    if key == "objective.direction":
        allowed = "max or min (or maximize, minimize, higher, lower)"
    if isinstance(value, str) and value in LATER_VALUES.get(key, ()):
        return f"{value!r} is known, but not in this version; expected {allowed}"
    words = DIRECTIONS if key == "objective.direction" else re.findall(r"'([^']*)'", allowed)
    likely = meant(value.lower(), words) if isinstance(value, str) else None
    return f"expected {allowed}; found {found(value)}" + (f"; did you mean {likely}?" if likely else "")
