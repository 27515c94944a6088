"""A study file, or flags in its place, becomes a `StudyFile`: terms, bounds and paths that can be trusted.

Reads the file and looks at the disk around it (folders, globs, hashes of frozen files); runs and writes nothing.
Everything wrong is found at once and raised as one `Faults`, a line for each. What is right but cannot
run here (keys, libraries, targets of later versions) is no fault: `StudyFile.missing` says it.
"""

import difflib
import math
import re
import shlex
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import TypeAlias

from pydantic import ValidationError

from metaloop.edits.contract import covers
from metaloop.errors import ConfigError, Faults
from metaloop.studyfile import schema, yaml12
from metaloop.studyfile.crosschecks import Checks, arms, asks, edits
from metaloop.studyfile.globs import Held, Tree
from metaloop.studyfile.schema import Document, Fault, RangeKeys, dotted, found
from metaloop.studyfile.yaml12 import Node, Place, Unreadable
from metaloop.terms import (
    SEATS,
    SPARE,
    AgentSpec,
    Baseline,
    Bounds,
    Gate,
    Limits,
    ModelSpec,
    Repair,
    Sandbox,
    Terms,
    Tournament,
)
from metaloop.values import Constraint, Domain, Objective, Scalar, Space, Value, accept, canonical, digest, number

MOST_BYTES = 1 << 20
Raw: TypeAlias = dict[str, object]

json_schema = schema.json_schema


class Comparability(Value, frozen=True):
    """What makes trials comparable. `fingerprint` is empty where any host will do."""

    budget_mode: str = "fixed_wallclock"
    fingerprint: str = ""
    strict: bool = False


@dataclass(frozen=True)
class Need:
    """Something a study cannot run without: an environment variable, or else what `text` says."""

    text: str
    variable: str = ""

    def met(self, environ: Mapping[str, str]) -> bool:
        return bool(self.variable) and bool(environ.get(self.variable, "").strip())


@dataclass(frozen=True)
class StudyFile:
    """A validated study. `path` is None for one made of flags; relative paths were resolved against `base`.

    `folder` is where the study lives; it need not exist. `telemetry` holds only the paths that were named, by key.
    `config_hash` covers all content after normalisation, and no comments. `lines`: the line of each dotted key.
    `auto`: the policy was left to us, so a study that began with another one goes on with that.
    `mutable`: what `policy.mutable` and `mutable_file` matched, relative to the workdir. `program`: `program_file`.
    `truth`: the files of `tournament.ground_truth`. `private`: what `target.private` matched.
    `patches`: the folder of patches. `held`: the files of a study of code that has begun.
    `checks`: the parameters under `check` (sabotage, noop), as the space holds them; `check_patches`: the patches.
    `notes`: what may not be meant (a key that changes nothing here); a line each, for a person to read.
    """

    terms: Terms
    bounds: Bounds
    path: Path | None
    base: Path
    folder: Path
    telemetry: Mapping[str, Path]
    comparability: Comparability
    config_hash: str
    target: str = "command"
    auto: bool = False
    mutable: tuple[str, ...] = ()
    private: tuple[str, ...] = ()
    program: Path | None = None
    truth: tuple[Path, ...] = ()
    patches: Path | None = None
    held: frozenset[str] = frozenset()
    needs: tuple[Need, ...] = ()
    notes: tuple[str, ...] = ()
    lines: Mapping[str, int] = field(default_factory=dict)
    checks: Mapping[str, Mapping[str, Scalar]] = field(default_factory=dict)
    check_patches: Mapping[str, Path] = field(default_factory=dict)

    @property
    def workdir(self) -> Path:
        return self.base / self.terms.workdir

    def missing(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """What stands in the way of running this here, a line each with what to do. Empty: nothing does."""
        return tuple(need.text for need in self.needs if not need.met(environ))


# ---- from a file, from flags, from a mapping -------------------------------------------------------------------------


def load(
    path: Path,
    overrides: Mapping[str, object] | None = None,
    begun: Callable[[Path], Held] = lambda _: Held(),
) -> StudyFile:
    """The study in a file. `overrides` are dotted keys (`controller.max_iterations`) that win over the file's.
    `begun`: what the study of code in a folder holds of its files; globs mean these, whatever became of the folder.

    Raises `Faults` with all that is wrong, and nothing else.
    """
    source = _Source(str(path), path, path.parent, path.stem)
    try:
        root, problems = yaml12.read(yaml12.decode(_bytes(path)))
        if root is None or not isinstance(root.held, dict):
            raise Unreadable(_no_mapping(root), root.line if root else 1)
    except Unreadable as error:
        raise Faults([source.error(error.at, error.message, error.line)]) from None
    source.lines.update(_lines(root, ()))
    errors = [source.error(problem.at, problem.message, problem.line) for problem in problems]
    raw = {key: _plain(node, (key,)) for key, node in root.held.items()}
    return _study(raw, source, overrides or {}, errors, begun)


def from_flags(
    *,
    cmd: str,
    metric: str,
    direction: str,
    params: Sequence[str] = (),
    name: str = "",
    base: Path = Path(),
    overrides: Mapping[str, object] | None = None,
) -> StudyFile:
    """A study without a file, in the folder `base`: policy auto and 50 trials, unless `overrides` say otherwise.

    Its name is the script's, so that the same command resumes it. Raises `Faults`, keyed by flag.
    """
    errors: list[ConfigError] = []
    argv = _split(cmd, errors)
    source = _Source("", None, base, name or _script(argv), flags=True)
    raw: Raw = {
        "objective": {"metric": metric, "direction": direction},
        "target": {"train_cmd": argv},
        "policy": {"type": "auto", "params": _param_flags(params, errors)},
        "controller": {"max_iterations": 50},
    }
    return _study(raw, source, overrides or {}, errors)


def from_mapping(raw: Mapping[str, object], *, name: str, base: Path = Path()) -> StudyFile:
    """The study in a mapping with the keys of a file. Raises `Faults`, and nothing else."""
    return _study(dict(raw), _Source("", None, base, name), {}, [])


# ---- parameters on the command line ----------------------------------------------------------------------------------


def parse_param(text: str) -> tuple[str, Domain]:
    """`lr=1e-5..1e-1:log`, `layers=1..8`, `drop=0..0.5:step=0.1` or `opt=adam,sgd` as a name and a domain.

    A range is of whole numbers if both ends and any step are written as such, or with `:int`. Choices are numbers or
    booleans if all of them are, else text. Raises `ConfigError`.
    """
    name, raw = _parameter(text)
    faults: list[Fault] = []
    cleaned = _screened({name: raw}, (), faults)
    try:
        parsed = schema.PARAMS.validate_python(cleaned)
    except ValidationError as error:
        faults += [Fault((), schema.message(detail, ())) for detail in error.errors(include_url=False)]
    if faults:
        raise ConfigError(_one_line(faults[0].message), key=_flag(name))
    return name, schema.domain(parsed[name])


def _parameter(text: str) -> tuple[str, object]:
    """The name, and what a file would say in its place."""
    name, equals, spec = text.partition("=")
    name, spec = name.strip(), spec.strip()
    if not equals or not name or not spec:
        raise ConfigError(
            _one_line(f"expected NAME=LOW..HIGH or NAME=A,B,C; found {text[:80]!r}; write lr=1e-5..1e-1:log"),
            key="--param",
        )
    ends, *options = spec.split(":")
    low, dots, high = (part.strip() for part in ends.partition(".."))
    if not dots or not low or "," in spec or "/" in ends:
        return name, _choices(spec)
    return name, _range(name, low, high, options)


def _choices(spec: str) -> list[object]:
    texts = [part.strip() for part in spec.split(",")]
    values = [yaml12.scalar(text) for text in texts]
    alike = all(number(value) for value in values) or all(type(value) is bool for value in values)
    return list(values) if alike else list(texts)


def _range(name: str, low: str, high: str, options: Sequence[str]) -> Raw:
    given: Raw = {"low": yaml12.scalar(low), "high": yaml12.scalar(high)}
    for option in options:
        given |= _option(name, option.strip())
    numbers = [value for key, value in given.items() if key in {"low", "high", "step"}]
    if not all(number(value) for value in numbers):
        raise ConfigError(
            _one_line(
                f"expected numbers on both sides of '..'; found {low[:40]!r} and {high[:40]!r}; write {name}=1..10"
            ),
            key=_flag(name),
        )
    whole = all(type(value) is int for value in numbers)
    return {**given, "int": bool(given.get("int", whole))}


def _option(name: str, option: str) -> Raw:
    word, equals, value = option.partition("=")
    match word, equals:
        case "log" | "int", "":
            return {word: True}
        case "step", "=":
            return {"step": yaml12.scalar(value.strip())}
        case _:
            likely = difflib.get_close_matches(word, ["log", "int", "step"], n=1)
            hint = f"; did you mean {likely[0]}?" if likely else ""
            raise ConfigError(
                _one_line(f"expected :log, :int or :step=NUMBER after the range; found {option[:40]!r}{hint}"),
                key=_flag(name),
            )


def _param_flags(params: Sequence[str], errors: list[ConfigError]) -> Raw:
    space: Raw = {}
    for text in params:
        try:
            name, raw = _parameter(text)
            if name in space:
                raise ConfigError(_one_line("expected each parameter once; found it again"), key=_flag(name))
            space[name] = raw
        except ConfigError as error:
            errors.append(error)
    return space


def _split(cmd: str, errors: list[ConfigError]) -> list[str]:
    try:
        return shlex.split(cmd)
    except ValueError as error:
        errors.append(ConfigError(f"expected a command with balanced quotes; found {str(error).lower()}", key="--cmd"))
        return ["true"]


def _script(argv: Sequence[str]) -> str:
    """A name for a study without one: that of its script, else of its program."""
    scripts = (arg for arg in argv[1:] if PurePath(arg).suffix and not arg.startswith("-"))
    stem = PurePath(next(scripts, argv[0] if argv else "")).stem
    return re.sub(r"[^\w.-]+", "-", stem)[:60].strip(".-") or "study"


# ---- bytes and nodes -------------------------------------------------------------------------------------------------


def _bytes(path: Path) -> bytes:
    """The file's content: only of a regular file, and of no more than 1 MiB."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            kind = "a folder" if path.is_dir() else "no regular file"
            raise Unreadable(f"expected a study file, found {kind}")
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise Unreadable("expected a study file, found none; see `metaloop init` for a first one") from None
    except ValueError:
        raise Unreadable("expected the path of a study file, found one that no file can have") from None
    except OSError as error:
        raise Unreadable(f"expected a study file that can be read, found: {(error.strerror or '').lower()}") from None
    if len(data) > MOST_BYTES:
        raise Unreadable("expected a study file of at most 1 MiB, found a larger one")
    return data


def _no_mapping(root: Node | None) -> str:
    least = "the least there can be is objective: {metric: NAME, direction: max} and target: {train_cmd: [COMMAND]}"
    what = "an empty file" if root is None else "a list" if isinstance(root.held, list) else "a single value"
    return f"expected keys and values, found {what}; {least}"


def _plain(node: Node, at: Place) -> object:
    """A node as values. Commands and the environment are text however they look: `--epochs, 3` stays `3`."""
    match node.held:
        case dict() as held:
            return {key: _plain(inner, (*at, key)) for key, inner in held.items()}
        case list() as held:
            return [_plain(inner, (*at, index)) for index, inner in enumerate(held)]
        case text:
            value = yaml12.scalar(text) if node.plain else text
            return text if value is not None and _verbatim(at) else value


def _verbatim(at: Place) -> bool:
    in_command = len(at) > 2 and at[-2] in {"train_cmd", "eval_cmd", "holdout_cmd", "prepare_cmd", "cmd"}
    return in_command or (len(at) == 3 and at[:2] == ("target", "env"))


def _lines(node: Node, at: Place) -> Iterator[tuple[str, int]]:
    yield dotted(at), node.line
    match node.held:
        case dict() as held:
            for key, inner in held.items():
                yield from _lines(inner, (*at, key))
                yield dotted((*at, key)), node.key_lines[key]
        case list() as held:
            for index, inner in enumerate(held):
                yield from _lines(inner, (*at, index))
        case _:
            pass


# ---- faults ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Source:
    """Where a document came from, for its faults and its paths. `stem` is the study's name unless it has one."""

    file: str
    path: Path | None
    base: Path
    stem: str
    flags: bool = False
    lines: dict[str, int] = field(default_factory=dict)
    overridden: set[Place] = field(default_factory=set)

    def error(self, at: Place, message: str, line: int | None = None) -> ConfigError:
        """A fault as one line: whatever a key or a value holds, it cannot begin a second one, nor go on for ever.

        What was overridden does not stand in the file, so neither file nor line is named.
        """
        key = _flag_for(at) if self.flags else dotted(at)
        if any(at[: len(place)] == place for place in self.overridden):
            return ConfigError(_one_line(message), key=_one_line(key, 100))
        return ConfigError(
            _one_line(message), file=_one_line(self.file), line=line or self.line(at), key=_one_line(key, 100)
        )

    def line(self, at: Place) -> int | None:
        """The line of the key, or of the nearest section around it."""
        places = (dotted(at[:length]) for length in range(len(at), -1, -1))
        return next((self.lines[place] for place in places if place in self.lines), None)

    def raised(self, faults: Iterable[Fault], errors: list[ConfigError]) -> None:
        """Raises what there is to raise, in the order of the lines."""
        errors = errors + [self.error(fault.at, fault.message) for fault in faults]
        if errors:
            raise Faults(sorted(errors, key=lambda error: error.line or 0)) from None


def _one_line(text: str, most: int = 400) -> str:
    text = text if len(text) <= most else text[: most - 3] + "..."
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _flag(name: str) -> str:
    return _one_line(f"--param {name[:60]}")


def _flag_for(at: Place) -> str:
    match at:
        case ("objective", ("metric" | "direction") as key, *_):
            return f"--{key}"
        case ("target", "train_cmd", *_):
            return "--cmd"
        case ("policy", "params", str() as name, *_):
            return _flag(name)
        case ("policy", "params"):
            return "--param"
        case _:
            return dotted(at)


# ---- the whole way ---------------------------------------------------------------------------------------------------


def _study(
    raw: Raw,
    source: _Source,
    overrides: Mapping[str, object],
    errors: list[ConfigError],
    begun: Callable[[Path], Held] = lambda _: Held(),
) -> StudyFile:
    """Every check there is, then one raise; without faults, the study."""
    for key, value in overrides.items():
        parts = key.split(".")
        at = (*parts[:2], ".".join(parts[2:])) if parts[:2] == ["policy", "params"] and parts[2:] else tuple(parts)
        raw = _overridden(raw, at, value)
        source.overridden.add(at)
    screened: list[Fault] = []
    cleaned = _of_repair(_of_document(_screened(raw, (), screened)))
    document, faults = schema.validate(cleaned if isinstance(cleaned, dict) else {})
    faults = screened + [fault for fault in faults if not schema.explained(fault.at, screened)]
    faulty = {dotted(fault.at) for fault in faults} | {error.key for error in errors}
    if any(error.key.startswith("--param") for error in errors):
        faulty.add("policy.params")
    checks = Checks(document, source.base, source.path, source.stem, frozenset(faulty), begun)
    faults += [fault for fault in checks.all() if not schema.explained(fault.at, faults)]
    source.raised(faults, errors)
    return _built(document, source, checks)


def _of_document(raw: object) -> object:
    """A study of a document has neither an objective nor a target of its own: points count, and nothing is run."""
    if not isinstance(raw, dict) or "tournament" not in raw:
        return raw
    policy, evaluation = raw.get("policy", {}), raw.get("evaluation", {})
    given: Raw = {
        "objective": {"metric": "points", "direction": "max"},
        "target": {"train_cmd": ["true"], "timeout_s": 120},
    }
    if isinstance(policy, dict):
        given["policy"] = {"type": "rewrite", **policy}
    if isinstance(evaluation, dict):
        given["evaluation"] = {"rule": "strict", "baseline_repeats": 1, **evaluation}
    controller = raw.get("controller", {})
    if isinstance(controller, dict):
        compared = isinstance(raw["tournament"], dict) and raw["tournament"].get("compare")
        plain = {
            "max_iterations": 1 if compared else 25,
            "no_improve_limit": 0,
            "forecast": False,
            "failure_rate_limit": 1.0,
        }
        given["controller"] = {**plain, **controller}
    return {**given, **{key: value for key, value in raw.items() if key not in given or key in ("objective", "target")}}


CALLS = 6
"""Of a repair, unless its file says otherwise."""


def _of_repair(raw: object) -> object:
    """A study that ends after a few calls needs none of the guards of a long search, unless it asks for them."""
    if not isinstance(raw, dict):
        return raw
    policy, controller = raw.get("policy"), raw.get("controller", {})
    if not (isinstance(policy, dict) and policy.get("type") == "repair" and isinstance(controller, dict)):
        return raw
    asked = 1 if policy.get("strategy") == "single" else policy.get("calls", CALLS)
    calls = asked if type(asked) is int and 0 < asked <= 1000 else CALLS
    plain = {"max_iterations": calls, "no_improve_limit": 0, "forecast": False, "failure_window": calls + 8}
    return {**raw, "controller": {**plain, **controller}}


def _overridden(raw: Raw, at: tuple[str, ...], value: object) -> Raw:
    head, *rest = at
    inner = raw.get(head)
    if not rest:
        return {**raw, head: value}
    if inner is not None and not isinstance(inner, dict):
        return raw  # a fault of its own
    return {**raw, head: _overridden(inner or {}, tuple(rest), value)}


def _screened(value: object, at: Place, faults: list[Fault]) -> object:
    """`value` with all that fits nowhere taken out: numbers that are not finite or too large, control characters."""
    if (problem := _unfit(value)) is not None:
        faults.append(Fault(at, problem))
        return 1 if isinstance(value, int | float) else "x" if isinstance(value, str) else None
    if len(at) > yaml12.MOST_DEPTH:
        faults.append(Fault(at[:4], f"expected a study file, found more than {yaml12.MOST_DEPTH} levels"))
        return None
    match value:
        case dict():
            fit = {key: inner for key, inner in value.items() if _key_fits(key, at, faults)}
            return {key: _screened(inner, (*at, key), faults) for key, inner in fit.items()}
        case list():
            return [_screened(inner, (*at, index), faults) for index, inner in enumerate(value)]
        case _:
            return value


def _unfit(value: object) -> str | None:
    match value:
        case float() if not math.isfinite(value):
            return f"expected a finite number, found {value!r}"
        case bool():
            return None
        case int() if not -(1 << 63) <= value < 1 << 63:
            return f"expected a number of at most 18 digits, found {found(value)}"
        case str() if bad := _unfit_characters(value):
            return f"expected text without control characters, found {bad!r}; remove it"
        case None | float() | int() | str() | list() | dict():
            return None
        case _:
            return f"expected text, a number, true or false, a list or keys and values; found {found(value)}"


def _unfit_characters(text: str) -> str:
    """The first control character (tabs and line ends are none here) or half of one."""
    return next((c for c in text if (c < " " and c not in "\t\n\r") or c == "\x7f" or "\ud800" <= c <= "\udfff"), "")


def _key_fits(key: object, at: Place, faults: list[Fault]) -> bool:
    if not isinstance(key, str):
        faults.append(Fault(at, f"expected text as a key, found {found(key)}"))
        return False
    if bad := _unfit_characters(key):
        faults.append(Fault((*at, key[:60]), f"expected a key without control characters, found {bad!r}; remove it"))
        return False
    return True


# ---- the study -------------------------------------------------------------------------------------------------------


def _built(document: Document, source: _Source, checks: Checks) -> StudyFile:
    program = document.policy.program_file
    return StudyFile(
        terms=_terms(document, checks),
        bounds=_bounds(document),
        path=None if source.path is None else checks.base / source.path.name,
        base=checks.base,
        folder=checks.base / ".metaloop" / checks.name,
        telemetry=checks.telemetry,
        comparability=_comparability(document),
        config_hash=digest(canonical({**document.model_dump(mode="json", by_alias=True), "name": checks.name})),
        target=document.target.type,
        auto=document.policy.type == "auto",
        mutable=checks.mutable,
        program=None if program is None else checks.base / program,
        truth=tuple(checks.base / name for name in (document.tournament.ground_truth if document.tournament else ())),
        patches=None if document.policy.patches is None else checks.base / document.policy.patches,
        needs=tuple(_needs(document)),
        notes=tuple(_notes(document)),
        lines=source.lines,
        checks=checks.tries,
        check_patches=checks.try_patches,
        private=checks.private,
        held=checks.held.files,
    )


def _terms(document: Document, checks: Checks) -> Terms:
    target, policy, objective = document.target, document.policy, document.objective
    low_high = objective.plausible
    comparability = _comparability(document)
    return Terms(
        name=checks.name,
        objective=Objective(
            objective.metric,
            objective.direction,
            objective.target,
            objective.ceiling,
            None if low_high is None else (low_high[0], low_high[1]),
        ),
        train=() if document.tournament else tuple(target.train_cmd),
        policy=resolved(policy.type),
        space=checks.space,
        start=tuple(_held(checks.space, point) for point in policy.start),
        seed=policy.seed,
        evaluate=tuple(target.eval_cmd or ()),
        holdout=tuple(target.holdout_cmd or ()),
        sealed=checks.sealed,
        prepare=tuple(target.prepare_cmd or ()),
        workdir=PurePath(target.workdir).as_posix(),
        env=dict(target.env),
        env_allow=tuple(target.env_allow),
        baseline=_baseline(document, checks.space),
        rule=document.evaluation.rule,
        others=tuple(Objective(o.metric, o.direction) for o in document.objectives if o.role == "optimise"),
        constraints=tuple(
            Constraint(o.metric, o.direction, o.bound) for o in document.objectives if o.bound is not None
        ),
        several=document.evaluation.several,
        alpha=document.evaluation.alpha,
        confirm=document.evaluation.confirm,
        error=document.evaluation.error,
        order=document.controller.order,
        window=document.controller.window,
        same_host=comparability.strict,
        fingerprint=comparability.fingerprint,
        frozen=checks.frozen,
        budget_mode=comparability.budget_mode,
        prune=document.controller.prune,
        fallback=policy.fallback,
        arms=tuple(map(resolved, arms(policy))),
        knobs=_turns(policy) if policy.type == "hybrid" else {},
        mutable=tuple(
            dict.fromkeys([*([policy.mutable_file] if policy.mutable_file else []), *(policy.mutable or [])])
        ),
        required_calls=tuple(policy.required_calls),
        check=tuple((document.tournament and document.tournament.check_cmd) or policy.check_cmd or ()),
        frontier=_frontier(policy) if edits(policy) else {},
        gates=tuple(Gate(gate.name, tuple(gate.cmd), gate.phase, gate.timeout_s) for gate in document.gates),
        outputs=tuple(target.outputs),
        private=tuple(target.private),
        tournament=_tournament(document, checks.document_schema),
        repair=_repair(policy) if policy.type == "repair" else None,
    )


def _repair(policy: schema.PolicyKeys) -> Repair:
    return Repair(policy.strategy, 1 if policy.strategy == "single" else policy.calls or CALLS)


FINAL = 7
"""Judges of the panel at the end, unless told otherwise."""


def _tournament(document: schema.Document, fits: str) -> Tournament | None:
    keys = document.tournament
    if keys is None:
        return None
    from metaloop.ballots import margin, quorum  # of documents alone

    judges = keys.judges
    plain = document.models.get("judge") or document.models.get("default")
    own = {seat for seat in SEATS if seat in document.models and document.models.get(seat) != plain}
    seats = tuple(seat if seat in own else SEATS[0] for seat in SEATS[: judges.count])
    return Tournament(
        PurePath(keys.document).as_posix(),
        keys.k,
        judges.count,
        judges.order,
        margin(judges.count) if keys.margin is None else keys.margin,
        quorum(judges.count) if judges.quorum is None else judges.quorum,
        keys.voids,
        tuple(keys.tie_order),
        judges.prompt == "stepwise",
        judges.criteria or "",
        keys.scope_note,
        keys.task_shown_to_critic,
        tuple(keys.require),
        keys.strict_claims,
        schema=fits,
        max_words=keys.max_words or 0,
        hard=keys.critic.mode == "hard",
        lenses=tuple(keys.critic.lenses),
        rotate=keys.critic.lens_rotation == "round",
        held=tuple(keys.author.constraints),
        seats=seats if len(set(seats)) > 1 else (),
        spare=SPARE in document.models,
        judge_lenses=tuple(judges.lenses),
        strict=judges.strict_ballot,
        retries=judges.retries,
        dissent=judges.dissent_slot,
        plateau=keys.plateau,
        final=FINAL if keys.final_judges is None else keys.final_judges,
        compare=tuple(keys.compare),
        calls=keys.calls if keys.compare else 0,
    )


def _frontier(policy: schema.PolicyKeys) -> dict[str, Scalar]:
    """The strategy and all its settings, however few were given."""
    given = policy.frontier
    if given is None:
        return {}
    keys = schema.FrontierKeys.model_validate({"strategy": given}) if isinstance(given, str) else given
    return keys.settings()


def _turns(policy: schema.PolicyKeys) -> dict[str, Scalar]:
    """When a hybrid search turns, by the names of `policies.coder.Turns`."""
    return {
        "explore": policy.hybrid_param_explore_iters,
        "stall": policy.hybrid_stall_threshold,
        "failures": policy.hybrid_diff_failure_limit,
    }


def _held(space: Space, point: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """A point that was checked, with its values as the space holds them."""
    held = accept(space, point)
    assert not isinstance(held, str)
    return held


def _baseline(document: Document, space: Space) -> Baseline:
    repeats = document.evaluation.baseline_repeats
    match document.baseline:
        case None:
            return Baseline(repeats=repeats)
        case schema.BaselineKeys(params=None, cmd=cmd):
            return Baseline("cmd", cmd=tuple(cmd or ()), repeats=repeats)
        case schema.BaselineKeys(params=params):
            return Baseline("params", params=_held(space, params or {}), repeats=repeats)
        case _:
            return Baseline("none", repeats=0)


def _bounds(document: Document) -> Bounds:
    controller, target = document.controller, document.target
    limits = target.limits
    return Bounds(
        max_iterations=controller.max_iterations,
        max_wall_time_s=controller.max_wall_time_s,
        no_improve_limit=controller.no_improve_limit,
        failure_rate_limit=controller.failure_rate_limit,
        failure_window=controller.failure_window,
        lanes=controller.lanes(),
        forecast=controller.forecast,
        min_gain=controller.min_gain,
        timeout_s=target.timeout_s,
        prepare_timeout_s=target.prepare_timeout_s,
        limits=Limits(limits.memory, limits.processes, limits.output, limits.files, limits.disk),
        sandbox=Sandbox(
            target.sandbox.level,
            tuple(target.sandbox.read),
            tuple(target.sandbox.write),
            target.sandbox.network,
            target.sandbox.devices,
        ),
        models=_models(document),
        agent=_agent(document.policy),
        max_cost_usd=controller.max_cost_usd,
        max_tokens=controller.max_tokens,
        holdout=document.evaluation.holdout,
    )


def _agent(policy: schema.PolicyKeys) -> AgentSpec | None:
    """Who changes code, where anybody is set to work at all."""
    told = policy.agent
    if told is None or "agent" not in {policy.type, *arms(policy)}:
        return None
    return AgentSpec(tuple(told.command), told.timeout_s, tuple(told.env_allow), told.home, told.turns, told.usd)


KEYS_OF = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
"""The variable that holds a provider's key, unless the file says otherwise."""


def _models(document: Document) -> dict[str, ModelSpec]:
    """Who plays which role, where anybody is asked at all."""
    policy = document.policy
    if not asks(policy):
        return {}
    told: dict[str, ModelSpec] = {role: _model(keys) for role, keys in document.models.items()}
    if policy.llm_model is None:
        return told
    url, key = str(policy.llm_api_url or ""), policy.llm_api_key_env
    return {**told, "proposer": ModelSpec(policy.llm_model, "openai", url, key, deadline_s=policy.llm_timeout_s)}


def _model(keys: schema.ModelKeys) -> ModelSpec:
    return ModelSpec(
        keys.model,
        keys.provider,
        str(keys.base_url or ""),
        keys.api_key_env or KEYS_OF[keys.provider],
        keys.temperature,
        keys.max_tokens,
        keys.deadline_s,
        keys.price.input if keys.price else None,
        keys.price.output if keys.price else None,
    )


def _comparability(document: Document) -> Comparability:
    keys = document.comparability
    return Comparability(keys.budget_mode, (keys.expected_hardware_fingerprint or "").lower(), keys.strict)


def matching(root: Path, globs: Sequence[str]) -> tuple[str, ...]:
    """The files below a folder that globs mean, by their paths in it."""
    return tuple(sorted(Tree(root).matched({(index,): glob for index, glob in enumerate(globs)}, [])))


# ---- what cannot run, and what changes nothing -----------------------------------------------------------------------

LIBRARIES: dict[str, tuple[tuple[str, ...], str]] = {
    "tpe": (("optuna",), "search"),
    "cmaes": (("optuna", "cmaes"), "search"),
    "gp": (("optuna", "scipy", "torch"), "search-gp"),
    "nsga2": (("optuna",), "search"),
}


def resolved(policy: str) -> str:
    """The policy that `auto` means here; any other is itself."""
    if policy != "auto":
        return policy
    return "tpe" if _installed("optuna") else "random"


def _installed(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except (ImportError, ValueError):
        return False


def _needs(document: Document) -> Iterator[Need]:
    target, policy = document.target, document.policy
    libraries, extra = LIBRARIES.get("tpe" if policy.type == "guided" else policy.type, ((), ""))
    if absent := [library for library in libraries if not _installed(library)]:
        yield Need(f"policy.type: {policy.type} needs {' and '.join(absent)}: pip install 'metaloop[{extra}]'")
    yield from _model_needs(document)
    if target.type == "basilica":
        yield _key("BASILICA_API_TOKEN", "target.type: basilica")
        yield Need("target.type: basilica is not run by this version: use command to run on this machine")


SDKS = {"openai": ("openai", "llm"), "anthropic": ("anthropic", "anthropic")}
"""The module that speaks to a provider, and the extra that installs it."""


def _model_needs(document: Document) -> Iterator[Need]:
    """Keys, but for servers on this machine, which mostly want none; and the libraries that speak to providers."""
    models = _models(document)
    for role, model in models.items():
        at = "policy.llm_api_key_env" if role == "proposer" and document.policy.llm_model else f"models.{role}"
        if not model.local:
            yield _key(model.key_env, at)
    for provider in sorted({model.provider for model in models.values()}):
        library, extra = SDKS[provider]
        if not _installed(library):
            yield Need(f"models: {provider} needs {library}: pip install 'metaloop[{extra}]'")


def _key(variable: str, key: str) -> Need:
    return Need(f"{variable} is not set ({key}): export {variable}=...", variable)


def _notes(document: Document) -> Iterator[str]:
    target, policy = document.target, document.policy
    given = policy.model_fields_set
    if not asks(policy):
        models = [key for key in schema.KEYS["policy"] if key.startswith("llm_") and key in given]
        yield from (f"policy.{key} changes nothing with policy.type: {policy.type}" for key in models)
    if "fallback" in given and not asks(policy):
        yield f"policy.fallback changes nothing with policy.type: {policy.type}"
    for key in ("strategy", "calls"):
        if key in given and policy.type != "repair":
            yield f"policy.{key} changes nothing with policy.type: {policy.type}"
    if "frontier" in given and not edits(policy):
        yield f"policy.frontier changes nothing with policy.type: {policy.type}"
    for role, model in _models(document).items():
        if model.key_env in target.env_allow:
            yield f"target.env_allow passes {model.key_env} to every trial, and it is the key of models.{role}"
    if "program_file" in given and not asks(policy) and "agent" not in {policy.type, *arms(policy)}:
        yield f"policy.program_file changes nothing with policy.type: {policy.type}"
    if "agent" in given and "agent" not in {policy.type, *arms(policy)}:
        yield f"policy.agent changes nothing with policy.type: {policy.type}"
    for key in [key for key in given if key.startswith("hybrid_") and policy.type != "hybrid"]:
        yield f"policy.{key} changes nothing with policy.type: {policy.type}"
    if target.outputs and not (policy.mutable or policy.mutable_file):
        yield "target.outputs changes nothing where no candidate has code of its own"
    yield from (
        f"target.outputs: {glob!r} lets candidates put code beside the scorer, which may import it"
        for glob in target.outputs
        if any(covers(glob, f"x{end}") or glob.endswith(end) for end in (".py", ".so", ".pth"))
    )
    if document.evaluation.holdout != "ends" and target.holdout_cmd is None:
        yield "evaluation.holdout changes nothing without target.holdout_cmd"
    if target.basilica is not None and target.type != "basilica":
        yield f"target.basilica changes nothing with target.type: {target.type}"
    if policy.type == "static" and policy.start:
        yield "policy.start changes nothing with policy.type: static"
    for name, value in policy.params.items():
        if isinstance(value, RangeKeys) and value.looks_whole():
            ends = f"{value.low:g} to {value.high:g}"
            yield f"policy.params.{name} is of all numbers from {ends}; add int: true for whole ones"
        elif isinstance(value, list) and len(value) == 1 and policy.type != "static":
            yield f"policy.params.{name} has one choice: it is never varied"
