"""What is wrong with a study file although each key by itself is right: keys that contradict each other or the disk.

Reads folders and files, to find what globs match and to hash what is frozen; writes nothing and raises nothing.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath

from metaloop.edits.contract import covers
from metaloop.studyfile import schema
from metaloop.studyfile.globs import Held, Tree, by_place, exists, is_dir, is_file, same
from metaloop.studyfile.schema import Document, Fault, RangeKeys, dotted, found
from metaloop.studyfile.yaml12 import Place
from metaloop.terms import ASKING, PASS, SEATS
from metaloop.values import Domain, Objective, Scalar, Space, accept

NEEDS_SPACE = frozenset({"grid", "random", "tpe", "cmaes", "gp", "nsga2", "auto", "llm", "guided", "learned", "hybrid"})
CODING = frozenset({"llm_diff", "patches", "agent", "repair"})
"""Policies that change code."""
MOST_GRID = 1_000_000  # points a parameter, held in memory by whoever walks them
FOLDERS = frozenset({"artifacts_dir", "versions_dir"})


MOST_DOCUMENT = 256 << 10
"""Bytes at most of a document: all of it is in most prompts of a pass."""


MOST_TASK = 16_000
"""Characters of a task at most: of a longer one nobody would be shown the middle."""


def document_problem(path: Path) -> str | None:
    """Why a file is no document that can be improved; None where it is one."""
    if not is_file(path):
        return f"expected a text file, found {'a folder' if is_dir(path) else f'none at {path}'}"
    try:
        with path.open("rb") as file:
            data = file.read(MOST_DOCUMENT + 1)
    except OSError as error:
        return f"expected a file that can be read, found {path}: {error.strerror}"
    if len(data) > MOST_DOCUMENT:
        return f"expected at most {MOST_DOCUMENT >> 10} KiB, found more in {path}; a part of it can be improved alone"
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return f"expected UTF-8 text, found a byte at {error.start} of {path} that is none"
    return None if text.strip() else f"expected a text, found an empty file at {path}"


def asks(policy: schema.PolicyKeys) -> bool:
    """Whether this policy asks a model."""
    return not {policy.type, *arms(policy)}.isdisjoint(ASKING)


def edits(policy: schema.PolicyKeys) -> bool:
    """Whether a model or an agent writes edits for this policy."""
    return not {"llm_diff", "agent"}.isdisjoint({policy.type, *arms(policy)})


def arms(policy: schema.PolicyKeys) -> tuple[str, ...]:
    """Who proposes, where several do."""
    if policy.type == "hybrid":
        return tuple(policy.arms) or ("auto", "llm_diff")
    return tuple(policy.arms) if policy.type == "learned" else ()


class Checks:
    """Checks across keys and against the disk. Each is skipped where a key that it reads is faulty already."""

    def __init__(
        self,
        document: Document,
        base: Path,
        path: Path | None,
        stem: str,
        faulty: frozenset[str],
        begun: Callable[[Path], Held] = lambda _: Held(),
    ) -> None:
        """`begun`: what the study in a folder holds of its files."""
        self.document, self.path, self.faulty, self.begun = document, path, faulty, begun
        self.name = document.name or stem
        self.space: Space = {name: schema.domain(value) for name, value in document.policy.params.items()}
        self.base = Path(os.path.abspath(base))  # noqa: PTH100  (not resolved: links stay as written)
        self.frozen: dict[str, str] = {}
        self.sealed: dict[str, str] = {}
        self.mutable: tuple[str, ...] = ()
        self.private: tuple[str, ...] = ()
        self.document_schema = ""
        self.held = Held()
        self.telemetry: dict[str, Path] = {}
        self.tries: dict[str, dict[str, Scalar]] = {}
        self.try_patches: dict[str, Path] = {}

    def all(self) -> list[Fault]:
        return [
            *self._study_name(),
            *self._objective(),
            *self._further(),
            *self._prune(),
            *self._target(),
            *self._parameters(),
            *self._points(),
            *self._model(),
            *self._lanes(),
            *self._files(),
            *self._gates(),
            *self._scoring(),
            *self._holdout(),
            *self._tournament(),
            *self._repair(),
            *self._telemetry(),
        ]

    def sound(self, *keys: str) -> bool:
        """None of these keys, nor anything in them or around them, has a fault."""
        around = [(key, bad) for key in keys for bad in self.faulty]
        return not any(
            bad == key or bad.startswith((f"{key}.", f"{key}[")) or key.startswith((f"{bad}.", f"{bad}["))
            for key, bad in around
        )

    def _study_name(self) -> Iterator[Fault]:
        if self.document.name is None and (problem := schema.name_problem(self.name)):
            yield Fault(("name",), f"{problem} from the file's name; add name: NAME")

    def _objective(self) -> Iterator[Fault]:
        keys = self.document.objective
        if not self.sound("objective"):
            return
        objective = Objective(keys.metric, keys.direction)
        if keys.target is not None and keys.ceiling is not None and objective.better(keys.target, keys.ceiling):
            message = (
                f"expected a target that ceiling {keys.ceiling:g} allows, found {keys.target:g}; no value can reach it"
            )
            yield Fault(("objective", "target"), message)
        if keys.plausible is None:
            return
        low, high = keys.plausible
        if not low < high:
            yield Fault(
                ("objective", "plausible"), f"expected [low, high] with low below high, found [{low:g}, {high:g}]"
            )
        elif keys.target is not None and not low <= keys.target <= high:
            message = f"expected a target within plausible, {low:g} to {high:g}; found {keys.target:g}"
            yield Fault(("objective", "target"), message)

    def _further(self) -> Iterator[Fault]:
        document = self.document
        if not self.sound("objective", "objectives"):
            return
        seen = {document.objective.metric}
        for index, further in enumerate(document.objectives):
            at = ("objectives", index)
            if further.metric in seen:
                yield Fault((*at, "metric"), f"expected each metric once, found {further.metric!r} again")
            seen.add(further.metric)
            if further.role == "constraint" and further.bound is None:
                yield Fault(at, "expected the bound of this constraint; add bound: NUMBER")
            if further.role == "optimise" and further.bound is not None:
                yield Fault((*at, "bound"), "expected a bound with role: constraint only; add role: constraint")
        front = document.evaluation.several == "front"
        if front and document.evaluation.rule != "strict" and self.sound("evaluation"):
            yield Fault(
                ("evaluation", "several"), "expected rule: strict with a front: no proof for several at once yet"
            )
        if front and not any(further.role == "optimise" for further in document.objectives):
            yield Fault(
                ("evaluation", "several"), "expected another objective to make a front with; add it to objectives"
            )

    def _prune(self) -> Iterator[Fault]:
        controller = self.document.controller
        if controller.prune != "none" and controller.order == "strict" and self.sound("controller"):
            yield Fault(("controller", "prune"), "expected order: free: what is pruned depends on when trials report")
        if controller.prune != "none" and self.document.target.outputs and self.sound("controller", "target.outputs"):
            message = "expected none with a separate scorer: what candidates report of themselves is not believed"
            yield Fault(("controller", "prune"), message)

    def _target(self) -> Iterator[Fault]:
        target = self.document.target
        if target.type == "basilica" and target.basilica is None and self.sound("target.basilica"):
            yield Fault(
                ("target", "basilica"), "expected this key with target.type basilica; add basilica: {image: IMAGE}"
            )
        if not self.sound("target.workdir"):
            return
        workdir = self.base / target.workdir
        if not is_dir(workdir):
            what = "a file" if exists(workdir) else f"nothing at {workdir}"
            yield Fault(("target", "workdir"), f"expected a folder, found {what}; create it or change workdir")

    def _parameters(self) -> Iterator[Fault]:
        policy = self.document.policy
        if not self.sound("policy.type"):
            return
        if not policy.params and policy.type in NEEDS_SPACE and self.sound("policy.params"):
            hint = "add params: {lr: [0.1, 0.01]}, or type: static to measure the command alone"
            yield Fault(("policy", "params"), f"expected a parameter for policy.type {policy.type}, found none; {hint}")
        for name, value in policy.params.items():
            if problem := self._parameter_problem(policy.type, value, self.space[name]):
                yield Fault(("policy", "params", name), problem)

    def _parameter_problem(self, policy: str, value: object, domain: Domain) -> str | None:
        count = domain.size()
        if policy == "static":
            what = "a range" if count is None else f"{count} values"
            return None if count == 1 else f"expected one value with policy.type static, found {what}; write one"
        if not isinstance(value, list | RangeKeys):
            return (
                f"expected a list of choices or a range {{low, high}}, found {found(value)}; write [{value}] to fix it"
            )
        if policy != "grid":
            return None
        if count is None:
            return "expected choices or a range with a step for policy.type grid, found a continuum; add step: NUMBER"
        if count > MOST_GRID:
            return f"expected at most {MOST_GRID} values for policy.type grid, found {count}; add or widen step"
        return None

    def _points(self) -> Iterator[Fault]:
        if not self.sound("policy.params"):
            return
        seen: list[Mapping[str, Scalar]] = []
        for index, point in enumerate(self.document.policy.start):
            held = accept(self.space, point)
            if isinstance(held, str):
                yield Fault(("policy", "start", index), f"expected a point of the space; {held}")
            elif held in seen:
                yield Fault(("policy", "start", index), "expected each point once, found it again; remove one")
            else:
                seen.append(held)
        baseline = self.document.baseline
        if isinstance(baseline, schema.BaselineKeys) and baseline.params is not None:
            held = accept(self.space, baseline.params)
            if isinstance(held, str):
                yield Fault(("baseline", "params"), f"expected a point of the space; {held}")
        yield from self._tries()

    def _tries(self) -> Iterator[Fault]:
        """The points that `metaloop check` tries, and the patches."""
        coding = bool(self.document.policy.mutable or self.document.policy.mutable_file)
        for name in ("sabotage", "noop"):
            point = getattr(self.document.check, name)
            if isinstance(point, str):
                self.try_patches[name] = self.base / point
                if not coding:
                    yield Fault(("check", name), "expected parameters: no candidate of this study has code of its own")
                elif not is_file(self.base / point):
                    yield Fault(("check", name), f"expected a file with a patch, found none at {self.base / point}")
                continue
            held = accept(self.space, point) if point is not None else {}
            if isinstance(held, str):
                yield Fault(("check", name), f"expected a point of the space; {held}")
            elif held and held in self.tries.values():
                yield Fault(
                    ("check", name), "expected other parameters than check.sabotage, found the same; change one"
                )
            elif point is not None:
                self.tries[name] = held

    def _model(self) -> Iterator[Fault]:
        policy, models, controller = self.document.policy, self.document.models, self.document.controller
        if policy.type == "learned" and len(set(policy.arms)) < 2 and self.sound("policy.arms"):
            yield Fault(("policy", "arms"), "expected at least two with policy.type learned; add arms: [tpe, guided]")
        yield from self._coding()
        if not asks(policy) or not self.sound("models", "policy.llm_model", "policy.llm_api_url"):
            return
        players = PASS if policy.type == "rewrite" else ("proposer",)
        absent = [role for role in players if role not in models and "default" not in models]
        if absent and (policy.llm_model is None or policy.type == "rewrite"):
            role = "default" if len(absent) > 1 else absent[0]
            message = f"expected who is {' and '.join(absent)}" if policy.type == "rewrite" else "expected who proposes"
            yield Fault(
                ("models",), f"{message} with policy.type {policy.type}; add models: {{{role}: {{model: NAME}}}}"
            )
        if policy.llm_model is not None and "proposer" in models:
            yield Fault(("models", "proposer"), "expected this or policy.llm_model, found both; remove one")
        capped = [key for key in ("max_cost_usd", "max_tokens") if getattr(controller, key) is not None]
        for role, keys in models.items():
            if capped and keys.max_tokens is None:
                message = f"expected a bound on replies, for controller.{capped[0]} to hold; add max_tokens: 1000"
                yield Fault(("models", role), message)
        if capped and policy.llm_model is not None:
            message = (
                f"controller.{capped[0]} needs a bound on replies; write models: {{proposer: {{model, max_tokens}}}}"
            )
            yield Fault(("policy", "llm_model"), message)

    def _coding(self) -> Iterator[Fault]:
        """What policies that change code need."""
        policy, several = self.document.policy, arms(self.document.policy)
        if not self.sound("policy.type", "policy.arms"):
            return
        first, last = several[:1], several[1:]
        if policy.type == "hybrid" and not (len(several) == 2 and {*last} <= CODING and CODING.isdisjoint(first)):
            message = (
                f"expected who proposes parameters, and who code, found {list(several)}; add arms: [tpe, llm_diff]"
            )
            yield Fault(("policy", "arms"), message)
        if {policy.type, *several}.isdisjoint(CODING):
            return
        if not (policy.mutable or policy.mutable_file) and self.sound("policy.mutable", "policy.mutable_file"):
            message = "expected the files that may be changed, found none; add mutable: [src/train.py]"
            yield Fault(("policy", "mutable"), message)
        if "agent" in {policy.type, *several}:
            yield from self._agent()
        if "patches" in {policy.type, *several} and self.sound("policy.patches"):
            folder = None if policy.patches is None else self.base / policy.patches
            if folder is None or not is_dir(folder):
                message = f"expected a folder of patches, found {'none' if folder is None else f'none at {folder}'}"
                yield Fault(("policy", "patches"), f"{message}; add patches: FOLDER")

    def _gates(self) -> Iterator[Fault]:
        """Each by a name of its own; and none that a candidate could change, as far as its words name files."""
        seen: set[str] = set()
        for index, gate in enumerate(self.document.gates):
            if gate.name in seen:
                yield Fault(("gates", index, "name"), f"expected each name once, found {gate.name!r} again")
            seen.add(gate.name)
            yield from self._unchangeable(gate.cmd, ("gates", index, "cmd"))

    def _unchangeable(self, command: Sequence[str], at: Place) -> Iterator[Fault]:
        for word in command:
            if os.path.normpath(word) in self.mutable:
                yield Fault(at, f"expected what candidates cannot change; {word!r} is mutable: take it out of that")

    def _holdout(self) -> Iterator[Fault]:
        """The files that its words name, but for a program on PATH: what is sealed stays as it is."""
        command, workdir = self.document.target.holdout_cmd or [], self.base / self.document.target.workdir
        if not self.sound("target.holdout_cmd", "target.workdir"):
            return
        yield from self._unchangeable(command, ("target", "holdout_cmd"))
        program = command[:1] if command and os.sep in command[0] and not PurePath(command[0]).is_absolute() else []
        paths = [os.path.normpath(word) for word in (*program, *command[1:])]
        faults: list[Fault] = []
        named = {path: ("target", "holdout_cmd") for path in paths if is_file(workdir / path)}
        self.sealed = self._hashes(Tree(workdir), named, faults)
        yield from faults
        inside = [path for path in self.sealed if not path.startswith((os.sep, os.pardir))]
        if inside and "agent" in {self.document.policy.type, *arms(self.document.policy)}:
            message = f"expected what no coding agent finds in its copy of the folder, found {inside[0]!r} there"
            yield Fault(("target", "holdout_cmd"), f"{message}; keep it outside, its data too, and name it by its path")
        target = self.document.target
        known = {os.path.normpath(word) for word in (*target.train_cmd, *(target.eval_cmd or ()))}
        seen = [path for path in inside if path not in self.private and path not in known]
        if seen and self.document.policy.type == "repair":
            message = f"expected what no candidate can print, found {seen[0]!r} in its copy of the folder"
            yield Fault(("target", "holdout_cmd"), f"{message}; keep it outside of workdir, and name it by its path")

    def _scoring(self) -> Iterator[Fault]:
        """A separate scorer is not the candidate's, and there is one where anything is to be kept from candidates."""
        target, policy = self.document.target, self.document.policy
        if not self.sound("target", "policy.mutable", "policy.mutable_file"):
            return
        coding = bool(policy.mutable or policy.mutable_file)
        if target.outputs and target.eval_cmd is None:
            yield Fault(("target", "outputs"), "expected who scores them; add eval_cmd: [python3, score.py]")
        for word in (target.eval_cmd or ()) if target.outputs and coding else ():
            if os.path.normpath(word) in self.mutable:
                message = f"expected a scorer that candidates cannot change; {word!r} is mutable: take it out of that"
                yield Fault(("target", "eval_cmd"), message)
        for index, glob in enumerate(target.outputs):
            if own := [word for word in target.eval_cmd or () if covers(glob, os.path.normpath(word))]:
                message = f"expected what candidates leave, found {own[0]!r} of eval_cmd: the scorer would be theirs"
                yield Fault(("target", "outputs", index), message)
        for index, glob in enumerate(target.outputs):
            if kept := [path for path in (*self.private, *self.frozen) if covers(glob, path)]:
                message = f"expected what candidates leave, found {kept[0]!r}, which is private or frozen"
                yield Fault(("target", "outputs", index), message)
        if target.private and not (target.eval_cmd and (target.outputs or not coding)):
            need = "eval_cmd and outputs" if coding else "eval_cmd"
            message = f"expected a step that may see them apart from the candidate's, found none; add {need}"
            yield Fault(("target", "private"), message)

    def _tournament(self) -> Iterator[Fault]:
        """The document, what it is for, and what it is held to."""
        rules, policy = self.document.tournament, self.document.policy
        if rules is None:
            if policy.type == "rewrite" and self.sound("policy.type", "tournament"):
                yield Fault(("policy", "type"), "expected a document; add tournament: {document: FILE}")
            return
        if policy.type != "rewrite" and self.sound("policy.type"):
            yield Fault(("policy", "type"), f"expected rewrite with a tournament, found {policy.type}; remove it")
        if (policy.mutable or policy.mutable_file or policy.params) and self.sound("policy"):
            yield Fault(
                ("policy",), "expected a document alone with a tournament, found parameters or code; remove them"
            )
        yield from self._alone()
        if policy.program_file is None and self.sound("policy.program_file"):
            yield Fault(("policy", "program_file"), "expected what the document is for; add program_file: task.md")
        if policy.program_file is not None and self.sound("policy.program_file"):
            yield from self._task(self.base / policy.program_file)
        if not self.sound("tournament"):
            return
        if (problem := document_problem(self.base / rules.document)) is not None:
            yield Fault(("tournament", "document"), problem)
        for index, name in enumerate(rules.ground_truth):
            if (problem := document_problem(self.base / name)) is not None:
                yield Fault(("tournament", "ground_truth", index), problem)
        texts = {rules.document: ("tournament", "document")} | {
            name: ("tournament", "ground_truth", index) for index, name in enumerate(rules.ground_truth)
        }
        if policy.program_file is not None:
            texts[policy.program_file] = ("policy", "program_file")
        beside = {os.path.relpath(self.base / name, self.base): at for name, at in texts.items()}
        yield from self._seal({name: at for name, at in beside.items() if is_file(self.base / name)})
        for index, pattern in enumerate(rules.require):
            try:
                re.compile(pattern)
            except re.error as error:
                yield Fault(("tournament", "require", index), f"expected a regular expression, found {error.msg}")
        if len(set(rules.tie_order)) != 3:
            yield Fault(("tournament", "tie_order"), f"expected A, B and AB, each once; found {rules.tie_order}")
        yield from self._checking(rules)
        yield from self._fitting(rules)
        yield from self._seated(rules)
        if rules.judges.quorum is not None and rules.judges.quorum > rules.judges.count:
            message = f"expected at most {rules.judges.count} (judges.count), found {rules.judges.quorum}"
            yield Fault(("tournament", "judges", "quorum"), message)

    def _task(self, path: Path) -> Iterator[Fault]:
        """What a document is for: a text, of which everybody is shown all."""
        if (problem := document_problem(path)) is not None:
            yield Fault(("policy", "program_file"), problem)
        elif (size := len(path.read_text(encoding="utf-8"))) > MOST_TASK:
            yield Fault(
                ("policy", "program_file"), f"expected at most {MOST_TASK:,} characters, found {size:,}; shorten it"
            )

    def _checking(self, rules: schema.TournamentKeys) -> Iterator[Fault]:
        """The command that versions have to pass, and the files that its words name: they stay as they are."""
        command, at = rules.check_cmd or [], ("tournament", "check_cmd")
        if not command:
            return
        if not any("{document}" in word for word in command[1:]):
            yield Fault(
                at, "expected where the version stands in it; add {document}, as in [python3, check.py, '{document}']"
            )
        if rules.compare:
            yield Fault(at, "expected none with compare, whose versions are not run; remove it")
        named = {os.path.normpath(word): at for word in command[1:] if is_file(self.base / word)}
        yield from self._seal(named)

    def _seal(self, named: Mapping[str, Place]) -> Iterator[Fault]:
        """Files that are part of what the study is: another text would be another study."""
        faults: list[Fault] = []
        self.sealed |= self._hashes(Tree(self.base), named, faults)
        yield from faults

    def _fitting(self, rules: schema.TournamentKeys) -> Iterator[Fault]:
        """The schema of a document, and that the document itself fits it."""
        if rules.json_schema is None:
            return
        at, path = ("tournament", "json_schema"), self.base / rules.json_schema
        if (problem := document_problem(path)) is not None:
            yield Fault(at, problem)
            return
        try:
            self.document_schema = json.dumps(json.loads(path.read_text(encoding="utf-8")), sort_keys=True)
        except RecursionError:
            yield Fault(at, "expected a JSON schema, found it nested too deeply")
            return
        except ValueError as error:
            yield Fault(at, f"expected a JSON schema, found no JSON: {error}")
            return
        try:
            from metaloop.fitting import unfit, unsound
        except ImportError:
            yield Fault(at, "it needs jsonschema: pip install 'metaloop[schema]'")
            return
        if problem := unsound(self.document_schema):
            yield Fault(at, f"expected a JSON schema, found one that is none: {problem}")
        elif document_problem(self.base / rules.document) is None:
            text = (self.base / rules.document).read_text(encoding="utf-8")
            if problem := unfit(text, self.document_schema):
                yield Fault(("tournament", "document"), f"expected what fits {rules.json_schema}, found {problem}")

    def _seated(self, rules: schema.TournamentKeys) -> Iterator[Fault]:
        """Who sits on the panel, and what is compared."""
        for seat in SEATS[rules.judges.count :]:
            if seat in self.document.models and self.sound("models"):
                message = f"expected a judge of {rules.judges.count} (judges.count), found one more; remove it"
                yield Fault(("models", seat), message)
        if rules.critic.lens_rotation == "round" and len(rules.critic.lenses) < 2:
            message = "expected two lenses or more to take turns; add critic.lenses: [TEXT, TEXT]"
            yield Fault(("tournament", "critic", "lens_rotation"), message)
        if rules.judges.dissent_slot and rules.judges.count < 3:
            message = f"expected three judges or more with it, found {rules.judges.count}"
            yield Fault(("tournament", "judges", "dissent_slot"), message)
        most = 3 * rules.judges.count
        if rules.plateau is not None and rules.plateau > most:
            message = (
                f"expected at most {most}, all points that {rules.judges.count} judges give, found {rules.plateau:g}"
            )
            yield Fault(("tournament", "plateau"), message)
        if rules.compare and len(set(rules.compare)) < max(2, len(rules.compare)):
            yield Fault(("tournament", "compare"), f"expected two strategies or more, each once; found {rules.compare}")
        if rules.compare and rules.final_judges == 0:
            yield Fault(("tournament", "final_judges"), "expected a judge at least, to compare; found none")

    def _alone(self) -> Iterator[Fault]:
        """What a tournament cannot have beside it: passes come one after the other, and nothing is run."""
        document = self.document
        if document.controller.lanes() > 1 and self.sound("controller.parallel"):
            message = (
                f"expected 1 with a tournament, whose passes follow each other, found {document.controller.lanes()}"
            )
            yield Fault(("controller", "parallel"), message)
        if document.controller.order != "free" and self.sound("controller.order"):
            yield Fault(("controller", "order"), "expected no order with a tournament, which has one; remove it")
        if document.evaluation.rule != "strict" and self.sound("evaluation.rule"):
            yield Fault(("evaluation", "rule"), "expected no rule with a tournament, whose panel decides; remove it")
        if (document.gates or document.baseline is not None) and self.sound("gates", "baseline"):
            yield Fault(("gates" if document.gates else "baseline",), "expected none with a tournament; remove it")
        if document.target.holdout_cmd and self.sound("target.holdout_cmd"):
            yield Fault(("target", "holdout_cmd"), "expected none with a tournament; remove it")

    def _repair(self) -> Iterator[Fault]:
        """Calls come one after the other, each knowing what the one before it came to; and there is an end to reach."""
        controller, policy, objective = self.document.controller, self.document.policy, self.document.objective
        if policy.type != "repair" or not self.sound("policy.type"):
            return
        if objective.target is None and objective.ceiling is None and self.sound("objective"):
            message = "expected the value at which all visible tests pass, found none; add target: 1"
            yield Fault(("objective", "target"), message)
        if policy.program_file is None and self.sound("policy.program_file"):
            yield Fault(("policy", "program_file"), "expected what the code is to do; add program_file: task.md")
        for key, given in (("params", policy.params), ("start", policy.start), ("fallback", policy.fallback != "none")):
            if given and self.sound(f"policy.{key}"):
                yield Fault(
                    ("policy", key), "expected none with policy.type repair, which changes code alone; remove it"
                )
        if controller.lanes() > 1 and self.sound("controller.parallel"):
            message = f"expected 1 with policy.type repair, whose calls follow each other, found {controller.lanes()}"
            yield Fault(("controller", "parallel"), message)
        if controller.order != "free" and self.sound("controller.order"):
            yield Fault(("controller", "order"), "expected no order with policy.type repair, which has one; remove it")

    def _agent(self) -> Iterator[Fault]:
        """What a coding agent needs: limits that only its own tool can hold stand in its command, or it has none."""
        agent = self.document.policy.agent
        if not self.sound("policy.agent"):
            return
        if agent is None:
            yield Fault(("policy", "agent"), "expected who changes the code, found none; add agent: {command: [...]}")
            return
        for key, value, example in (("turns", agent.turns, "30"), ("usd", agent.usd, "2")):
            marked = any(f"{{{key}}}" in word for word in agent.command)
            if value is not None and not marked:
                message = f'expected "{{{key}}}" in policy.agent.command, for its own tool to hold this, found none; '
                yield Fault(("policy", "agent", key), message + f'add "{{{key}}}" after the option that limits it')
            if value is None and marked:
                message = f'expected what "{{{key}}}" stands for, found no policy.agent.{key}; add {key}: {example}'
                yield Fault(("policy", "agent", "command"), message)
        yield from self._agent_caps(agent.usd)

    def _agent_caps(self, usd: float | None) -> Iterator[Fault]:
        """A cap holds where the worst case of a session can be set aside."""
        controller = self.document.controller
        if controller.max_cost_usd is not None and usd is None:
            message = (
                'cannot hold: nothing bounds what a session of the agent costs; add usd: 2 and "{usd}" in its command'
            )
            yield Fault(("controller", "max_cost_usd"), message)
        if controller.max_tokens is not None:
            message = "cannot hold: nothing bounds the tokens of an agent's session; write max_cost_usd instead"
            yield Fault(("controller", "max_tokens"), message)

    def _lanes(self) -> Iterator[Fault]:
        controller = self.document.controller
        if not self.sound("controller.parallel", "controller.order", "controller.window"):
            return
        if controller.order == "strict" and controller.lanes() > controller.window:
            hint = f"add controller.window: {controller.lanes()}, or controller.order: free"
            message = f"expected at most {controller.window} lanes (controller.window) with order strict"
            yield Fault(("controller", "parallel"), f"{message}, found {controller.lanes()}; {hint}")

    # ---- files

    def _files(self) -> Iterator[Fault]:
        policy = self.document.policy
        if not self.sound("target.workdir") or not is_dir(self.base / self.document.target.workdir):
            return
        if (policy.mutable or policy.mutable_file) and self.sound("name"):
            self.held = self.begun(self.base / ".metaloop" / self.name)
        tree = Tree(self.base / self.document.target.workdir, self.held)
        faults: list[Fault] = []
        mutable = tree.matched(by_place("mutable", policy.mutable_file, policy.mutable), faults)
        frozen = tree.matched(by_place("frozen", policy.frozen_file, policy.frozen), faults)
        private, prepares = self.document.target.private, bool(self.document.target.prepare_cmd)
        named: dict[Place, str] = {("target", "private", index): glob for index, glob in enumerate(private)}
        hidden = tree.matched(named, faults, later=prepares)
        for path in mutable.keys() & hidden.keys():
            message = f"{path!r} is both mutable and private; take it out of one of them"
            faults.append(Fault(hidden[path], message))
        self.private = tuple(sorted(hidden))
        held = {tree.resolved(path): at for path, at in frozen.items()}
        for path, at in mutable.items():
            if (other := held.get(tree.resolved(path))) is not None:
                message = f"{path!r} is both mutable and frozen ({dotted(other)}); take it out of one of them"
                faults.append(Fault(at, message))
        self.mutable = tuple(sorted(mutable))
        self.frozen = self._hashes(tree, frozen, faults)
        if policy.program_file is not None and not is_file(self.base / policy.program_file):
            faults.append(
                Fault(("policy", "program_file"), f"expected a file, found none at {self.base / policy.program_file}")
            )
        yield from faults

    def _hashes(self, tree: Tree, frozen: Mapping[str, Place], faults: list[Fault]) -> dict[str, str]:
        """The content of every frozen file but the study's own: what that may not change is in the terms."""
        hashes: dict[str, str] = {}
        held = self.held.hashes(sorted(frozen))
        for path in sorted(frozen):
            if self.path is not None and same(tree.root / path, self.path):
                continue
            if path in held:
                hashes[path] = held[path]
                continue
            try:
                with (tree.root / path).open("rb") as file:
                    hashes[path] = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                faults.append(
                    Fault(frozen[path], f"expected a file that can be read, found {path!r}: {error.strerror}")
                )
        return hashes

    def _telemetry(self) -> Iterator[Fault]:
        named = {("controller", "checkpoint_path"): self.document.controller.checkpoint_path}
        named |= {("telemetry", key): getattr(self.document.telemetry, key) for key in schema.KEYS["telemetry"]}
        taken: dict[Path, str] = {}
        for (section, key), text in named.items():
            if text is None:
                continue
            path = Path(os.path.abspath(self.base / text))  # noqa: PTH100  (`..` goes, links stay)
            if problem := self._output_problem(key, path, taken):
                yield Fault((section, key), problem)
            taken[path] = f"{section}.{key}"
            self.telemetry[key] = path

    def _frozen_files(self, name: str) -> Iterator[Path]:
        """Those that a path ending in `name` can be."""
        workdir = self.base / self.document.target.workdir
        return (workdir / frozen for frozen in self.frozen if PurePath(frozen).name == name)

    def _output_problem(self, key: str, path: Path, taken: Mapping[Path, str]) -> str | None:
        if path in taken:
            return f"expected a path of its own, found that of {taken[path]}"
        if self.path is not None and same(path, self.path):
            return "expected a path to write to, found the study file itself"
        if any(same(path, frozen) for frozen in self._frozen_files(path.name)):
            return "expected a path to write to, found a frozen file"
        if key in FOLDERS and exists(path) and not is_dir(path):
            return f"expected a folder, found a file at {path}"
        if key not in FOLDERS and is_dir(path):
            return f"expected a file, found a folder at {path}"
        return None
