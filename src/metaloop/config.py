"""The composition root: from a study's terms to everything that runs it. The only place that knows every name."""

import asyncio
import dataclasses
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from msgspec.structs import replace

from metaloop import __version__
from metaloop.adapters.frozen import FrozenFiles
from metaloop.adapters.host import descriptors, enforced, program, this_host
from metaloop.adapters.inbox import FileInbox
from metaloop.adapters.ledger import open_ledger, read_ledger
from metaloop.adapters.projections import Paths, Projections, refuse_foreign
from metaloop.costs import foreseen, foreseen_calls, foreseen_passes
from metaloop.engine import Engine, Observer, Session, World, commit, open_study
from metaloop.errors import ConfigError, Damaged, Faults, UsageError
from metaloop.evaluators.judge import blind, confirming, decide, measuring
from metaloop.evaluators.metric import reader
from metaloop.events import Based, Directed, Resumed, StudyClosed, StudyOpened
from metaloop.jobs import Surroundings
from metaloop.policies.opening import opening
from metaloop.policies.params import starting
from metaloop.roles import Executor, Ledger, Propose, Thought, Watch
from metaloop.study import Study, fold
from metaloop.terms import PASS, PATCHES, AgentSpec, ModelSpec, Rung, Terms
from metaloop.values import Usage, digest
from metaloop.walls import Ground

if TYPE_CHECKING:
    from metaloop.adapters.candidates import Candidates
    from metaloop.adapters.models import Models
    from metaloop.adapters.papers import Papers
    from metaloop.adapters.workspace.base import Base
    from metaloop.policies.frontier import Strategy
    from metaloop.studyfile import StudyFile
    from metaloop.studyfile.globs import Held


DESCRIPTORS = 64
"""Open files that a controller wants to have: fewer, and it would fail somewhere in the middle."""


# ---- thought ---------------------------------------------------------------------------------------------------------


def thought_of(terms: Terms) -> Thought:
    """All that a study on these terms thinks with."""
    if terms.tournament is not None:
        from metaloop.evaluators.panel import closing, deciding, failing, judging
        from metaloop.policies.rewrite import rewrite
        from metaloop.policies.strategies import compared

        propose = opening(compared() if terms.tournament.compare else rewrite())
        confirm = closing(terms.tournament)
        return Thought(propose, judging(terms.tournament), confirm, deciding, reader(terms), notice=failing)
    if terms.campaign is not None:
        from metaloop.evaluators import campaign
        from metaloop.policies.bilevel import bilevel

        own = terms.campaign
        return Thought(
            opening(bilevel(own)),
            campaign.measuring(own),
            campaign.CONFIRM,
            campaign.deciding(own),
            campaign.reading(own),
        )
    propose = opening(starting(terms.start, search(terms)))
    return Thought(propose, measuring(terms), confirming(terms), decide, reader(terms), watching(terms), blind)


def watching(terms: Terms) -> Watch | None:
    """Who looks at running trials; nobody, where nothing is pruned."""
    if terms.prune == "none":
        return None
    from metaloop.evaluators.prune import Watcher

    return Watcher(terms)


def search(terms: Terms) -> Propose:
    """The policy of a study. Raises UsageError for one that is not here."""
    if terms.policy == "learned":
        from metaloop.policies.bandit import learned

        return learned({name: named(name, terms) for name in terms.arms})
    return named(terms.policy, terms)


def named(policy: str, terms: Terms) -> Propose:
    """The policy of this name."""
    from metaloop.policies import params

    match policy:
        case "llm" | "guided":
            from metaloop.policies import asked

            stand_in = None if terms.fallback == "none" else named(terms.fallback, terms)
            return asked.llm(stand_in) if policy == "llm" else asked.guided(named("tpe", terms), "tpe", stand_in)
        case "llm_diff":
            from metaloop.policies import coder

            stand_in = None if terms.fallback == "none" else named(terms.fallback, terms)
            return coder.llm_diff(stand_in, _strategy(terms))
        case "repair" if terms.repair is not None:
            from metaloop.policies.repair import repair

            return repair(terms.repair)
        case "hybrid":
            from metaloop.policies import coder

            by_values, by_edits = terms.arms
            turns = coder.Turns(**{name: int(value) for name, value in terms.knobs.items()})
            return coder.hybrid(named(by_values, terms), named(by_edits, terms), by_edits, turns)
        case "agent":
            from metaloop.policies import agent

            return agent.agent(_strategy(terms))
        case "patches":
            from metaloop.policies import code

            return code.patches()
        case "static":
            return params.static()
        case "grid":
            return params.grid()
        case "random":
            return params.random()
        case "tpe" | "cmaes" | "gp" | "nsga2":
            from metaloop.policies import sampled

            samplers: dict[str, Callable[[], Propose]] = {
                "tpe": sampled.tpe,
                "cmaes": sampled.cmaes,
                "gp": sampled.gp,
                "nsga2": sampled.nsga2,
            }
            return samplers[policy]()
    raise UsageError(f"policy {policy!r} is not in this version; `metaloop check --schema` lists those that are")


def _strategy(terms: Terms) -> "Strategy | None":
    from metaloop.policies import frontier

    return frontier.parse(terms.frontier) if terms.frontier else None


# ---- the world -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """How a session ended: the study as it stands, how it closed (None: interrupted), and the signal, if one came."""

    study: Study
    closed: StudyClosed | None
    signal: signal.Signals | None
    idle: bool
    """Whether there was nothing to do, and nothing was written."""


@dataclass(frozen=True)
class Nesting:
    """How a study has others inside it, or is inside one. `executor`: who runs its trials, if not this machine.
    `interrupt`: hears of a signal. `signals`: whether it listens for any itself. `started`: is given its engine.
    """

    executor: Executor | None = None
    interrupt: Callable[[], None] = lambda: None
    signals: bool = True
    started: Callable[[Engine], None] = lambda _: None


async def drive(
    file: "StudyFile",
    where: Surroundings,
    *,
    mode: Literal["run", "one"] = "run",
    request: Directed | None = None,
    observers: Sequence[Observer] = (),
    project: Paths | None = None,
    tell: Callable[[str], None] = print,
    interrupted: Callable[[], bool] = lambda: False,
    nesting: Nesting | None = None,
) -> Outcome:
    """Runs the study of `file` from wherever it stands, in the surroundings that `surroundings` found.

    `request` is recorded first. `project`: files that are kept up to date; `tell` hears what goes wrong with them.
    `interrupted`: whether an interrupt came before signals are heard here.

    Raises what the tree in errors.py says; then nothing runs any more, and what was recorded stays.
    """
    from metaloop.adapters.sandbox import climb, missing

    check_host(file.terms)
    if project is not None:
        refuse_foreign(project)
    ledger = open_ledger(file.folder)
    try:
        if request is not None:
            refuse_spent(fold(ledger.read()), file)
            refuse_full(fold(ledger.read()), file)
        code = code_of(file, fold(ledger.read()), tell) if file.terms.mutable else None
        based = _document(file, ledger) if file.terms.tournament else code.based if code else None
        at_hand = Session(file.terms, resumed(file, mode), file.auto, based, missing(climb(file.bounds.sandbox.level)))
        study = open_study(ledger, at_hand, observers)
        if project is not None:
            entries = ledger.read() if project.events else ()
            observers = (*observers, Projections(project, entries, study, tell))
        if study.closed is not None:
            if code is not None:
                code.clear()  # of a controller that was killed at the very end
            return Outcome(study, study.closed, None, idle=True)
        if request is not None:
            ask(study, request, ledger, observers)
        thought = thought_of(
            study.the_terms
        )  # those of the ledger: equal to the file's, in the order they had at first
        return await _run(study, thought, file, where, ledger, observers, code, interrupted, nesting or Nesting())
    finally:
        ledger.close()


def _document(file: "StudyFile", ledger: Ledger) -> Based | None:
    """The first version, as a fact, where the study is new."""
    rules = file.terms.tournament
    if rules is None or any(True for _ in ledger.read()):
        return None
    text = (file.base / rules.document).read_bytes().decode()  # its line ends as they are
    name = digest(text.encode())
    return Based(name, {rules.document: name}, {name: text})


def watched(study: Study, code: "Code | None") -> dict[str, str]:
    """Frozen files that are watched where they are: those of which candidates have no copy."""
    base = code.base.files if code else {}
    kept = {**study.the_terms.frozen, **study.the_terms.sealed}
    return {path: content for path, content in kept.items() if path not in base}


@dataclass(frozen=True)
class Code:
    """A code study's base: where it is, what it is, and what of it is recorded where it is new."""

    repo: Path
    base: "Base"
    place: Path
    terms: Terms
    root: Path
    tell: Callable[[str], None]
    based: Based | None

    def candidates(self) -> "Candidates":
        from metaloop.adapters.candidates import Candidates

        return Candidates(self.repo, self.base, self.place, self.terms, self.root, self.tell)

    def clear(self) -> None:
        """Removes what candidates have left."""
        from metaloop.adapters.workspace.places import clear

        clear(self.place)


def code_of(file: "StudyFile", study: Study, tell: Callable[[str], None]) -> Code:
    """The base of a code study: taken when it begins, and the same from then on, whatever the user's folder is."""
    from metaloop.adapters.candidates import recorded
    from metaloop.adapters.workspace.snapshots import opened, snapshot

    repo, place = file.folder / "base.git", slots(file.folder)
    if study.terms is not None:
        base = opened(repo)
        if base.tree != study.tree:
            raise Damaged(f"{repo}: expected the snapshot that the study began with, {study.tree}, found {base.tree}")
        return Code(repo, base, place, file.terms, file.workdir, tell, None)
    if repo.exists():  # of a start that was killed before it was recorded
        shutil.rmtree(repo)
    base = snapshot(file.workdir, repo, ignore=[file.folder.parent])
    based, left = recorded(repo, base, file.terms)
    for path in left:
        tell(f"{path}: no text, or too long to be changed; it stays as it is")
    return Code(repo, base, place, file.terms, file.workdir, tell, based)


def restored(folder: Path, study: Study) -> "StudyFile":
    """What a study file would say, as far as running its trials is concerned; from the ledger alone."""
    from metaloop.studyfile import Comparability, StudyFile, matching

    base, terms = folder.absolute().parent.parent, study.the_terms
    root = Path(os.path.normpath(base / terms.workdir))
    same_host = Comparability(terms.budget_mode, terms.fingerprint, terms.same_host)
    found = StudyFile(terms, study.bounds, None, base, folder, {}, same_host, study.config)
    return dataclasses.replace(found, private=matching(root, terms.private))


def held(folder: Path) -> "Held":
    """The files of the study of code in a folder: of its base, and frozen ones that it watches where they are."""
    from metaloop.adapters.workspace.base import FILE, PROGRAM
    from metaloop.adapters.workspace.git import contents
    from metaloop.adapters.workspace.snapshots import opened
    from metaloop.studyfile.globs import Held

    if not (folder / "ledger.sqlite").exists():
        return Held()
    events = (entry.event for entry in read_ledger(folder))
    begun = next((event for event in events if isinstance(event, StudyOpened)), None)
    if begun is None or not begun.terms.mutable:
        return Held()
    repo, frozen = folder / "base.git", begun.terms.frozen
    files = opened(repo).files
    own = {path for path, entry in files.items() if entry.mode in (FILE, PROGRAM)}

    def hashes(paths: Sequence[str]) -> dict[str, str]:
        known = [path for path in paths if path in own]
        read = contents(repo, [files[path].hash for path in known])
        links = {path: frozen[path] for path in paths if path in files and path in frozen and path not in own}
        return links | dict(zip(known, map(digest, read), strict=True))

    return Held(frozenset({*own, *frozen}), hashes)


def slots(folder: Path) -> Path:
    """Where the candidates of a code study have their directories: outside of whatever the study is about."""
    return _ours() / "slots" / digest(os.fsencode(folder.absolute()))[:16]


def keys() -> Path:
    """Where the keys of lanes are, of all studies: no trial of any of them sees this folder."""
    return _ours() / "keys"


def _ours() -> Path:
    """A folder of the user's that is ours alone."""
    cache = os.environ.get("XDG_CACHE_HOME", "")
    home = Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache"
    return home / "metaloop"


def check_host(terms: Terms) -> None:
    """Raises UsageError where a study that is strict about its hardware would run on another."""
    here = this_host()
    if terms.same_host and terms.fingerprint and here.fingerprint != terms.fingerprint:
        raise UsageError(
            f"comparability.strict: expected the hardware {terms.fingerprint}, found {here.fingerprint} "
            f"({here.processor}); run it there, or set comparability.strict to false"
        )


def refuse_spent(study: Study, file: "StudyFile") -> None:
    """Raises UsageError for a request that a study has no time left for."""
    if study.at >= file.bounds.max_wall_time_s:
        raise UsageError(
            f"the study's {file.bounds.max_wall_time_s:g} s of wall clock are used up, and nothing was run: "
            "raise controller.max_wall_time_s"
        )


def refuse_full(study: Study, file: "StudyFile") -> None:
    """Raises UsageError for a request that would wait for trials that only a run goes on with."""
    if len(study.open) >= file.bounds.lanes:
        raise UsageError(
            f"what was interrupted fills the lanes ({len(study.open)} of {file.bounds.lanes}), and nothing was run: "
            f"`metaloop run {file.path or ''}` finishes it first"
        )


def ask(study: Study, request: Directed, ledger: Ledger, observers: Sequence[Observer]) -> None:
    """Records a request of our own: we hold the lease, so it need not go through the inbox."""
    commit(ledger, study, study.at, [request], observers)


def _papers(file: "StudyFile") -> "Papers | None":
    """Where versions of a document are checked, if any are."""
    if file.terms.tournament is None or not file.terms.check:
        return None
    from metaloop.adapters.papers import Papers

    return Papers(slots(file.folder))


async def _run(
    study: Study,
    thought: Thought,
    file: "StudyFile",
    where: Surroundings,
    ledger: Ledger,
    observers: Sequence[Observer],
    code: "Code | None",
    interrupted: Callable[[], bool],
    nesting: Nesting,
) -> Outcome:
    from metaloop.adapters.local import LocalExecutor, forget

    local = LocalExecutor(file.folder / "lanes", rung=study.sandbox or Rung(), keys=keys())
    executor = nesting.executor or local
    model = _model(study, lambda role, why: engine.degraded(role, why), lambda role, what: engine.alert(role, what))
    world = World(
        ledger=ledger,
        executor=executor,
        where=where,
        nonce=partial(secrets.token_hex, 6),
        now=time.monotonic,
        model=model,
        workspace=code.candidates() if code is not None else _papers(file),
        inbox=FileInbox(file.folder),
        private=_prepared(study, where),
        frozen=FrozenFiles(Path(where.cwd), watched(study, code)).changed,
        observers=tuple(observers),
    )
    engine = Engine(study, thought, world)
    nesting.started(engine)
    came: list[signal.Signals] = []

    def interrupt(number: signal.Signals) -> None:
        came.append(number)
        if len(came) == 1:
            engine.interrupt()
        else:
            engine.interrupt(0.0)
        nesting.interrupt()

    loop = asyncio.get_running_loop()
    heard = (signal.SIGINT, signal.SIGTERM) if nesting.signals else ()
    for number in heard:
        loop.add_signal_handler(number, interrupt, number)
    if interrupted():
        interrupt(signal.SIGINT)
    try:
        closed = await engine.run()
    finally:
        await executor.close()
        if study.closed is not None:
            forget(file.folder / "lanes", keys())
        if model is not None:
            await model.close()
        if world.workspace is not None:
            await world.workspace.close()
        for number in heard:
            loop.remove_signal_handler(number)
    return Outcome(study, closed, came[0] if came and closed is None else None, idle=False)


def _prepared(study: Study, where: Surroundings) -> Callable[[], Sequence[str]]:
    """Private files that are there once all is prepared."""
    terms = study.the_terms
    if not (terms.prepare and terms.private):
        return tuple
    from metaloop.studyfile import matching

    return cache(lambda: _absolute(matching(Path(where.cwd), terms.private), where.cwd))


def _model(study: Study, told: Callable[[str, str], None], noted: Callable[[str, str], None]) -> "Models | None":
    """Who answers, where anybody is asked; `told` hears of an outage, `noted` of what a provider is asked without."""
    bounds = study.bounds
    if not bounds.models:
        return None
    from metaloop.adapters.models import Models

    wanted = {spec.key_env for spec in bounds.models.values()}
    keys = {name: os.environ[name].strip() for name in wanted if os.environ.get(name, "").strip()}
    patient = study.the_terms.fallback == "none"
    dice = Random(secrets.token_hex(8))
    return Models(bounds.models, keys, patient=patient, told=told, noted=noted, dice=dice, capped=bounds.capped)


def resumed(file: "StudyFile", mode: Literal["run", "one"] = "run") -> Resumed:
    """What a session records of itself. Raises UsageError where a cap could not hold, for want of a price."""
    from metaloop.adapters.sandbox import climb

    rung = climb(file.bounds.sandbox.level)
    models = {role: _resolved(spec) for role, spec in file.bounds.models.items()}
    bounds = replace(file.bounds, models=models)
    for role, spec in models.items():
        if bounds.max_cost_usd is not None and (spec.usd_in is None or spec.usd_out is None):
            raise UsageError(
                f"controller.max_cost_usd cannot hold: the price of {spec.model!r} is not known; add "
                f"models.{role}.price: {{input: USD, output: USD}} for a million tokens, or cap controller.max_tokens"
            )
    shown = texts(file) if models or bounds.agent else _patches(file)
    return Resumed(bounds, this_host(), __version__, holding(file), file.config_hash, mode, shown, sandbox=rung)


def holding(file: "StudyFile") -> str:
    """What will hold trials on this machine, in words."""
    from metaloop.adapters.sandbox import climb

    rung = climb(file.bounds.sandbox.level)
    held = {"none": "no sandbox", "bubblewrap": "bubblewrap", "landlock": f"Landlock {rung.abi}"}[rung.name]
    return f"{held}{', system calls filtered' if rung.seccomp else ''}; limits on {', '.join(enforced())}"


def _resolved(spec: ModelSpec) -> ModelSpec:
    """With the address, the key's variable and the price that hold here: servers of this machine need no key.

    Raises UsageError for an address with a secret in it: it is written down and shown.
    """
    url = spec.base_url or (os.environ.get("OPENAI_BASE_URL", "") if spec.provider == "openai" else "")
    if "@" in urlsplit(url).netloc or urlsplit(url).query:
        raise UsageError(
            f"expected an address of {spec.model!r} without user, password or query, which would be written down; put "
            "the key into a variable and name it in api_key_env"
        )
    spec = replace(spec, base_url=url)
    if spec.local and not os.environ.get(spec.key_env, "").strip():
        spec = replace(spec, key_env="")
    if spec.usd_in is not None or url:
        return spec
    from metaloop.adapters.models import prices

    found = prices(spec)
    return spec if found is None else replace(spec, usd_in=found[0], usd_out=found[1])


def _foreseen(file: "StudyFile", role: str, spec: ModelSpec) -> Usage:
    """About what a role will cost, if the study goes on to the end."""
    told, trials, rules = texts(file), file.bounds.max_iterations, file.terms.tournament
    if file.terms.repair is not None:
        return foreseen_calls(told | _shown(file), file.terms.repair.calls, spec)
    if rules is None:
        return foreseen(told | _shown(file), trials, spec)
    size = (file.base / rules.document).stat().st_size + sum(len(told.get(name, "")) for name in ("task", "truth"))
    others = [each for each in PASS if each not in file.bounds.models]
    return foreseen_passes(others if role == "default" else [role], rules, size, trials, spec)


def asking(file: "StudyFile") -> list[str]:
    """Who will be asked, a line a role, and about what that will cost; nothing where nobody is."""
    lines = [] if file.bounds.agent is None else [_engaging(file.bounds.agent)]
    for role, spec in sorted(file.bounds.models.items()):
        spec = _resolved(spec)
        usage, rules = _foreseen(file, role, spec), file.terms.tournament
        if rules is not None and not usage.tokens:
            continue  # nobody that a comparison of these strategies asks
        money = "its price is not known" if usage.usd is None else f"${usage.usd:.3g}"
        about = f"about {usage.tokens_in + usage.tokens_out:,} tokens for {_so_many(file)}, {money}"
        lines.append(f"{role}: {spec.model}{f' at {spec.base_url}' if spec.base_url else ''}; {about}")
    caps = ((file.bounds.max_cost_usd, "${:g}"), (file.bounds.max_tokens, "{:,} tokens"))
    told = [text.format(cap) for cap, text in caps if cap is not None]
    return [*lines, f"never more than {' or '.join(told)}"] if lines and told else lines


def _so_many(file: "StudyFile") -> str:
    """What is asked for, at most."""
    if (repair := file.terms.repair) is not None:
        return f"{repair.calls} call{'s' * (repair.calls != 1)}"
    rules, most = file.terms.tournament, file.bounds.max_iterations
    if rules is None:
        return f"{most} proposal{'s' * (most != 1)}"
    one, more = ("comparison", "comparisons") if rules.compare else ("pass", "passes")
    return f"{most} {one if most == 1 else more}"


def _engaging(agent: AgentSpec) -> str:
    """What a coding agent may do, and may cost, in a line."""
    given = [*agent.env_allow, *(["your HOME"] if agent.home else [])]
    turns = [f"{agent.turns} turns"] if agent.turns else []
    own = [*turns, *([f"${agent.usd:g}"] if agent.usd else [])]
    price = f"all of its ${agent.usd:g}" if agent.usd else "not known"
    return (
        f"agent: {' '.join(agent.command)[:80]}; at most {agent.timeout_s:g} s each"
        + (f", and {' and '.join(own)}, which its own tool has to hold" if own else "")
        + "; it may use the network"
        + (f", and is given {', '.join(given)}" if given else "")
        + f"; what it costs is what it says, else {price}"
    )


TEXT_BYTES = 256 << 10
"""Of a text that goes into prompts, at most; the prompts cut it further."""


def texts(file: "StudyFile") -> dict[str, str]:
    """What prompts are made of: our own, the task in the user's words, and the script that is run."""
    told = prompt_texts(
        documents=bool(file.terms.tournament or file.terms.campaign), repair=file.terms.repair is not None
    )
    script = next((word for word in file.terms.train[1:] if word.endswith(".py")), None)
    files = {"task": file.program, "source": file.workdir / script if script else None}
    for name, path in files.items():
        if path is not None and path.is_file():
            told[name] = path.read_bytes()[:TEXT_BYTES].decode(errors="replace")
    if file.truth:
        told["truth"] = "\n\n".join(f"{path.name}:\n{path.read_text(encoding='utf-8').strip()}" for path in file.truth)
    return told | _patches(file)


def prompt_texts(*, documents: bool, repair: bool = False) -> dict[str, str]:
    """Our own part of prompts, by name: those of tournaments, of repairs, or all others."""
    texts = {path.name.removesuffix(".md"): path for path in prompt_files()}
    mine = DOCUMENTS if documents else REPAIR if repair else texts.keys() - DOCUMENTS - REPAIR
    return {name: path.read_text(encoding="utf-8") for name, path in texts.items() if name in mine}


DOCUMENTS = {
    "critic", "hard", "author", "synthesizer", "judge", "strict", "dissent", "ballot", "unread",
    "conservative", "improve", "harsh", "afresh",
}  # fmt: skip
"""Prompts of tournaments alone."""

REPAIR = {"repair_first", "analysis", "revise"}
"""Prompts of repairs alone."""


def _shown(file: "StudyFile") -> dict[str, str]:
    """The code that a model will be shown, for an estimate: as much of it as a prompt has room for."""
    from metaloop.policies.coder import ROOM

    if {"llm_diff", "repair"}.isdisjoint({file.terms.policy, *file.terms.arms}):
        return {}
    paths = (file.workdir / path for path in file.mutable)
    return {"files": "".join(path.read_text(errors="replace") for path in paths if path.is_file())[:ROOM]}


def _patches(file: "StudyFile") -> dict[str, str]:
    """The patches that there are to try, by name. One that is too large is cut, and refused for that; one that is no
    text is told as such in its place, which is no edit, and refused for that.
    """
    if file.patches is None or "patches" not in {file.terms.policy, *file.terms.arms}:
        return {}
    top, kinds = file.patches.resolve(), (".patch", ".diff", ".txt", ".md")
    paths = sorted(path for path in file.patches.iterdir() if path.suffix in kinds and path.resolve().parent == top)
    most, told = file.terms.contract.most + 1, dict[str, str]()
    for path in filter(Path.is_file, paths):
        with path.open("rb") as opened:
            data = opened.read(most)
        text = data.decode(errors="replace")
        if (bad := _no_text(data, most)) is not None:
            text = f"{NO_UTF8} byte {data[bad]:#04x} at {bad}"
        told[PATCHES + os.fsencode(path.name).decode(errors="backslashreplace")] = text
    return told


NO_UTF8 = "This file is no UTF-8:"
"""What stands for a patch that is none."""


def _no_text(data: bytes, most: int) -> int | None:
    """Where UTF-8 ends; nowhere, too, where only a letter was cut with the rest of what is too large."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start if error.start < most - 4 else None
    return None


def unreadable(file: "StudyFile") -> tuple[str, ...]:
    """Patches that will be refused, since they are no text; a line each."""
    told = {name.removeprefix(PATCHES): text for name, text in _patches(file).items() if text.startswith(NO_UTF8)}
    return tuple(
        f"policy.patches: {name}: {text[0].lower()}{text[1:]}; it will be refused" for name, text in told.items()
    )


def prompt_files() -> list[Path]:
    """The prompts, one a file."""
    return sorted((Path(__file__).parent / "prompts").glob("*.md"))


def unenforceable(file: "StudyFile") -> tuple[str, ...]:
    """Limits that the study asks for and this machine cannot hold, a line each."""
    limits, held = file.bounds.limits, enforced()
    asked = {"memory": "target.limits.memory" in file.lines, "processes": "target.limits.processes" in file.lines}
    wanted = {"memory": limits.memory, "processes": limits.processes}
    return tuple(
        f"target.limits.{name}: {wanted[name]} cannot be held here: it needs a control group that may be written"
        for name, given in asked.items()
        if given and wanted[name] is not None and name not in held
    )


NO_GIT = "expected git on PATH, found none: a study of code needs it; install it, on Debian or Ubuntu: apt install git"


def surroundings(file: "StudyFile") -> Surroundings:
    """Where trials will happen. Raises Faults where a command's program does not exist: before anything is written."""
    if descriptors() < DESCRIPTORS:
        raise UsageError(f"expected room for {DESCRIPTORS} open files, found {descriptors()}: ulimit -n {DESCRIPTORS}")
    terms = file.terms
    cwd = os.path.normpath((file.base / terms.workdir).absolute())
    env = {name: os.environ[name] for name in terms.env_allow if name in os.environ}
    path = terms.env.get("PATH", env.get("PATH", os.defpath))
    programs: dict[str, str] = {}
    faults = [*_unwritable(file, cwd)]
    for key, command in commands(terms):
        found = program(command[0], cwd, path)
        if os.path.normpath(command[0]) in file.held:
            continue  # the candidate's own, as the study began with it
        if found is None:
            faults.append(_no_program(file, key, command[0], cwd))
            continue
        if not (terms.mutable and os.sep in command[0] and not command[0].startswith(os.sep)):
            programs[command[0]] = found  # a program of the code itself is the candidate's own
        script = _missing_script(found, command, cwd)
        if script is not None and os.path.normpath(script) not in file.held:
            faults.append(_no_script(file, key, script, cwd))
    if terms.mutable and program("git", cwd, os.environ.get("PATH", os.defpath)) is None:
        faults.append(_fault(file, "policy.mutable", NO_GIT))
    agent = file.bounds.agent
    if agent is not None:
        if (found := program(agent.command[0], cwd, os.environ.get("PATH", os.defpath))) is None:
            faults.append(_no_program(file, "policy.agent.command", agent.command[0], cwd))
        else:
            programs[agent.command[0]] = found
            if (script := _missing_script(found, agent.command, cwd)) is not None:
                faults.append(_no_script(file, "policy.agent.command", script, cwd))
        programs["env"] = program("env", cwd, os.defpath) or "env"
    if faults:
        raise Faults(faults)
    theirs = {name: os.environ[name] for name in ("HOME", *(agent.env_allow if agent else ())) if name in os.environ}
    carry = sys.executable, "-I", "-S", str(Path(__file__).with_name("adapters") / "carry.py")
    outside = _outside(terms.holdout[1:], cwd)
    where = Surroundings(str(file.folder.absolute()), cwd, env, programs, theirs, carry, sealed=outside)
    return dataclasses.replace(where, ground=_ground(file, where))


def _outside(words: Iterable[str], cwd: str) -> dict[str, str]:
    """The words that name files outside of a folder, and where those are, whatever directory they are read in."""
    found = {word: os.path.normpath(Path(cwd, word)) for word in words}
    away = (os.sep, os.pardir)
    return {word: path for word, path in found.items() if os.path.normpath(word).startswith(away) and _is_file(path)}


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except OSError:
        return False


def _unwritable(file: "StudyFile", cwd: str) -> Iterator[ConfigError]:
    """Folders whose path cannot be written down: what runs is told where, and the ledger has it, in UTF-8."""
    folders = {"the study's file": str(file.base), "target.workdir": cwd, "--dir": str(file.folder.absolute())}
    if file.terms.mutable:
        folders["XDG_CACHE_HOME or HOME"] = str(slots(file.folder))
    for what, folder in folders.items():
        try:
            folder.encode()
        except UnicodeEncodeError as error:
            end = folder.find("/", error.start)
            shown = os.fsencode(folder[: end if end > 0 else None]).decode(errors="backslashreplace")
            message = f"expected a path that is UTF-8 ({what}), found {shown}: rename that folder"
            yield ConfigError(message, file=str(file.path.name if file.path else ""))
            return


def _ground(file: "StudyFile", where: Surroundings) -> Ground | None:
    """What of this machine trials are kept from, and what they need; None where nothing keeps them from anything."""
    from metaloop.adapters.ground import caches, made_of, ours, packages, secrets
    from metaloop.adapters.sandbox import climb

    rung = climb(file.bounds.sandbox.level)
    if rung.name == "none":
        return None
    home = os.environ.get("HOME", "")
    apart = (home, where.cwd, where.folder)
    searched = file.terms.env.get("PATH", where.env.get("PATH", os.defpath))
    own = file.bounds.sandbox

    def named(paths: Sequence[str]) -> tuple[str, ...]:
        return tuple(os.path.normpath(Path(where.cwd, Path(path).expanduser())) for path in paths)

    def parts(ask: Callable[[str], bool]) -> tuple[str, ...]:
        named = {command[0] for key, command in commands(file.terms) if ask(key)}
        found = (where.programs[name] for name in named if name in where.programs)
        return tuple(dict.fromkeys(path for each in found for path in made_of(each, apart, searched)))

    env = {**where.env, **file.terms.env}
    return Ground(
        programs=parts(lambda key: key not in (*SCORING, "target.prepare_cmd")),
        scoring=parts(lambda key: key in SCORING),
        tools=(*made_of(sys.executable, apart), where.carry[-1]),
        secrets=secrets(home),
        caches=caches(home, env),
        packages=packages(home, env),
        ours=ours(home, (*os.environ.get("PATH", "").split(os.pathsep), *sys.path, str(Path(__file__).parent))),
        project=where.cwd,
        private=(*_absolute(file.private, where.cwd), *_history(file, where.cwd)),
        hidden=(_studies(where.folder), str(_ours())),
        read=named(own.read),
        write=named(own.write),
        mounts=rung.name == "bubblewrap",
    )


SCORING = "target.eval_cmd", "target.holdout_cmd"
"""The commands that say what a candidate is worth."""


def _absolute(paths: Iterable[str], cwd: str) -> tuple[str, ...]:
    return tuple(os.path.realpath(Path(cwd, path)) for path in paths)


def _history(file: "StudyFile", cwd: str) -> tuple[str, ...]:
    """Where git keeps what is private, if anything is: its own folder, and what it shares with others."""
    if not file.terms.private:
        return ()
    from metaloop.adapters.workspace.git import checkout, common

    found = checkout(Path(cwd))
    if found is None:
        return ()
    shared = common(found[0]).resolve()
    return tuple(dict.fromkeys((str(found[0]), str(shared))))


def _studies(folder: str) -> str:
    """Where studies are kept beside this one; a check's lies deeper."""
    above = Path(folder).parents
    return str(next((path for path in above if path.name == ".metaloop"), above[0]))


def commands(terms: Terms) -> list[tuple[str, tuple[str, ...]]]:
    """Every command of a study with the key it stands under."""
    all_of_them = [
        ("target.prepare_cmd", terms.prepare),
        ("target.train_cmd", terms.train),
        ("target.eval_cmd", terms.evaluate),
        ("target.holdout_cmd", terms.holdout),
        ("baseline.cmd", terms.baseline.cmd),
        ("policy.check_cmd" if terms.tournament is None else "tournament.check_cmd", terms.check),
        *((f"gates[{index}].cmd", gate.command) for index, gate in enumerate(terms.gates)),
    ]
    return [(key, command) for key, command in all_of_them if command]


def gate_command(terms: Terms, folder: Path, command: Sequence[str]) -> tuple[str, ...]:
    """The command of a gate for the study in `folder`, its program found as those of a study file are; one in the
    candidates' own directory stays as it is. Raises UsageError for what could not be started there.
    """
    cwd = os.path.normpath(folder.absolute().parent.parent / terms.workdir)
    path = terms.env.get("PATH", os.environ.get("PATH", os.defpath) if "PATH" in terms.env_allow else os.defpath)
    name = command[0]
    theirs = [(name, True)] if terms.mutable and os.sep in name and not Path(name).is_absolute() else []
    found = name if theirs else program(name, cwd, path)
    if found is None:
        raise UsageError(f"gate: {_absent(name, cwd)}")
    if len(command) > 1 and _is_script(found, command[1]):
        if terms.mutable and not Path(command[1]).is_absolute():
            theirs.append((command[1], False))
        elif not Path(cwd, command[1]).is_file():
            raise UsageError(f"gate: expected a script; {command[1]!r} is not in {cwd}")
    if theirs:
        _refuse_absent(terms, folder, Path(cwd), theirs)
    return (found, *command[1:])


def _refuse_absent(terms: Terms, folder: Path, root: Path, names: Sequence[tuple[str, bool]]) -> None:
    """Raises UsageError for a file that candidates do not have, or that is to be run and cannot be."""
    from metaloop.adapters.candidates import owned

    has = owned(folder / "base.git", terms, root)
    for name, runs in names:
        if not has(name, runs):
            what = "a program that can be run" if runs else "a script"
            raise UsageError(
                f"gate: expected {what}, and candidates, who have what was there when the study began, have none at "
                f"{name!r}; give a full path"
            )


def _is_script(found: str, word: str) -> bool:
    return Path(found).name.startswith("python") and word.endswith(".py")


def _missing_script(found: str, command: tuple[str, ...], cwd: str) -> str | None:
    """The script that a python is to run, where there is no such file."""
    if len(command) < 2 or not _is_script(found, command[1]):
        return None
    return None if Path(cwd, command[1]).is_file() else command[1]


def _no_program(file: "StudyFile", key: str, name: str, cwd: str) -> ConfigError:
    return _fault(file, key, _absent(name, cwd))


def _absent(name: str, cwd: str) -> str:
    where = f"in {cwd}" if os.sep in name else "on PATH"
    hint = "; this machine has python3" if name == "python" and program("python3", cwd, os.environ.get("PATH")) else ""
    return f"expected a program that can be run; {name!r} is not {where}{hint}"


def _no_script(file: "StudyFile", key: str, name: str, cwd: str) -> ConfigError:
    return _fault(file, key, f"expected a script; {name!r} is not in {cwd}")


def _fault(file: "StudyFile", key: str, message: str) -> ConfigError:
    shown = "--cmd" if file.path is None and key == "target.train_cmd" else key
    return ConfigError(message, file=str(file.path or ""), line=file.lines.get(key), key=shown)
