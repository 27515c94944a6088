"""The verbs of code studies: what a candidate changes (`diff`), and how to have it (`apply`)."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from metaloop.adapters.ledger import read_ledger
from metaloop.cli.find import Opened, read
from metaloop.cli.output import clean, say, tell, write_whole
from metaloop.edits.diffs import diff as unified
from metaloop.errors import UsageError
from metaloop.events import Directed, Refused, Replied, Resumed
from metaloop.records import passed, proof, row, unmade, untried
from metaloop.study import Study, Trial
from metaloop.terms import PATCHES
from metaloop.values import Change, Params, digest


def diff(
    trial: Annotated[int, Parameter(help="Its number.")],
    /,
    *rest: Annotated[str, Parameter(help="The number of another trial to compare it with, and the study.")],
) -> int:
    """What a trial's code has otherwise than the code that the study began with; or than another trial's."""
    numbers, names = [part for part in rest if part.isdecimal()], [part for part in rest if not part.isdecimal()]
    if len(numbers) > 1 or len(names) > 1:
        raise UsageError("expected metaloop diff TRIAL [OTHER] [STUDY], found more")
    opened = read(names[0] if names else None)
    new = _trial(opened.study, trial)
    old = _trial(opened.study, int(numbers[0])) if numbers else None
    for told in (new, *([old] if old else [])):
        if told.refusal is not None:
            say(clean(f"trial {told.number} was refused, and never ran: {told.refusal.reason}"), "yellow")
    if unmade(opened.study, new):
        text = wanted(opened, new)
        known = "this is what was asked for, as it came" if text else "no text of it is in the ledger"
        say(f"nothing of it was applied; {known}", "yellow")
    else:
        text = difference(opened.study, Params({}) if old is None else old.change, new.change)
    for line in text.splitlines():
        tell(clean(line), {"+": "green", "-": "red", "@": "blue"}.get(line[:1], ""))
    return 0


def apply(
    study: Annotated[str | None, Parameter(help="A study's name or folder.")] = None,
    /,
    *,
    trial: Annotated[int | None, Parameter(help="Another trial than the best.")] = None,
    branch: Annotated[str | None, Parameter(help="A new branch, on top of what is committed now.")] = None,
    patch: Annotated[
        Path | None,
        Parameter(allow_leading_hyphen=True, help="A file for git apply, as it is said then; - for stdout."),
    ] = None,
    here: Annotated[bool, Parameter(negative="", help="Write the files into the working folder.")] = False,
    into: Annotated[Path | None, Parameter(help="The folder that the study is about, if it was moved.")] = None,
) -> int:
    """Have what was found: as a new branch, as a patch, or written into the files. One of the three.

    Nothing is written over: each file has to be as it was when the study began. A branch leaves working folder, index
    and HEAD as they are.
    """
    if (branch is not None) + (patch is not None) + here != 1:
        raise UsageError("expected one of --branch NAME, --patch FILE and --here")
    opened = read(study)
    told = _trial(opened.study, trial) if trial is not None else opened.study.incumbent
    if told is None or not told.change.files:
        what = "none was kept" if trial is None else f"trial {trial} has none"
        raise UsageError(f"expected a change of code, and {what}; metaloop status shows what there is")
    if names := untried(opened.study, told):
        say(clean(f"metaloop: mind: trial {told.number} has not been tried with the gate {', '.join(names)}"), "yellow")
    overlay = opened.study.overlay(told.change)
    folder = opened.folder.absolute()
    root = (into or folder.parent.parent / opened.study.the_terms.workdir).resolve()
    if patch is not None:
        _write_patch(patch, difference(opened.study, Params({}), told.change), root)
        return 0
    if opened.study.the_terms.tournament is not None:
        tell(f"written: {clean(str(_document(opened.study, told.change, root, branch)))}")
        return 0
    from metaloop.adapters.workspace import leaving, snapshots

    repo = folder / "base.git"
    base = snapshots.opened(repo)
    if branch is not None:
        commit = leaving.export_branch(root, repo, base, overlay, name=branch, message=_message(opened, told))
        shown = clean(_git(root, "diff", f"HEAD..{branch}"))
        tell(f"branch {clean(branch)}: {commit[:12]}, trial {told.number}; {shown} shows it")
    else:
        for path in leaving.apply_to(root, base, overlay):
            tell(f"written: {clean(path)}")
    if told.change.values:
        say(f"to be run with: {clean(' '.join(f'{k}={v}' for k, v in told.change.values.items()))}")
    return 0


def _document(study: Study, change: Change, root: Path, branch: str | None) -> Path:
    """A version of a document, written over the one that the study began with, and over no other."""
    rules = study.the_terms.tournament
    assert rules is not None
    path = root / rules.document
    if branch is not None:
        raise UsageError("--branch: expected a study of code, found one of a document; use --here, or --patch FILE")
    try:
        found = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: expected the document as it was when the study began: {error.strerror}") from None
    if digest(found) != study.base[rules.document]:
        raise UsageError(f"{path}: expected the document as it was when the study began; nothing is written over")
    text = study.contents[(study.base | change.files)[rules.document]]
    write_whole(path, text, newline="")
    return path


def wanted(opened: Opened, trial: Trial) -> str:
    """What a trial asked for that was refused before it was a change: a patch, or a reply, as it came; what an agent
    wrote. Empty where that is not in the ledger.
    """
    texts, reply, by = dict[str, str](), "", trial.proposal.by
    for entry in read_ledger(opened.folder):
        match entry.event:
            case Resumed(texts=told):
                texts = told or texts
            case Directed(request=trial.request, text=text) if trial.request:
                return text
            case Replied(round=trial.round, stage="propose", reply=answer):
                reply = answer.text or ""
            case Refused(trial=trial.number):
                break
    if "agent: " in by and reply:
        return _written(opened.study, trial, reply)
    return texts.get(PATCHES + by.rpartition("patches: ")[2], reply)


def _written(study: Study, trial: Trial, reply: str) -> str:
    """What an agent changed, as a diff; of a file that nobody may change, and that is not recorded, the name alone."""
    files: dict[str, str | None] = json.loads(reply).get("files", {})
    before = {path: study.contents[name] for path, name in (study.base | trial.change.files).items()}
    after = {path: text for path, text in {**before, **files}.items() if text is not None and path in before}
    others = "".join(f"changed too: {path}\n" for path in files if path not in before)
    return unified(before, after) + others


def difference(study: Study, old: Change, new: Change) -> str:
    """A unified diff in git's form."""
    files = [study.base | change.files for change in (old, new)]
    before, after = ({path: study.contents[name] for path, name in side.items()} for side in files)
    return unified(before, after)


def _trial(study: Study, number: int) -> Trial:
    if (trial := study.trials.get(number)) is None:
        raise UsageError(f"expected a trial from 0 to {max(study.trials, default=0)}, found {number}")
    return trial


def _write_patch(path: Path, text: str, root: Path) -> None:
    if str(path) == "-":
        sys.stdout.write(text)
        return
    how = _git(root, "apply", file=path)
    try:
        with path.open("x", encoding="utf-8", newline="") as file:
            file.write(text)
    except FileExistsError:
        raise UsageError(f"{path}: is there already; name another file") from None
    except OSError as error:
        raise UsageError(f"--patch {path}: expected a file that can be written, found: {error.strerror}") from None
    tell(clean(f"written: {path}; {how}"))


def _git(root: Path, *words: str, file: Path | None = None) -> str:
    """What to type, here, for git to do something where the project is; with a file that has paths below `root`.

    At the top of its repository: in a folder within, git leaves out in silence what it does not find below that folder.
    """
    from metaloop.adapters.workspace.git import checkout

    found, here = checkout(root), Path.cwd()
    top = root if found is None else found[1]
    where = () if here == top or (file is None and here.is_relative_to(top)) else ("-C", str(top))
    if file is None:
        return shlex.join(["git", *where, *words])
    within = () if root == top else (f"--directory={root.relative_to(top).as_posix()}",)
    return shlex.join(["git", *where, *words, *within, str(file.absolute() if where else file)])


def _message(opened: Opened, trial: Trial) -> str:
    return "\n".join(_lines(opened, trial)) + "\n"


def _lines(opened: Opened, trial: Trial) -> Iterator[str]:
    """What a commit says: what was changed, and by what evidence."""
    study, r = opened.study, row(opened.study, trial)
    name = study.objective.metric
    value = "" if r.value is None else f": {name} = {r.value:.6g}"
    yield clean(f"{study.name}, trial {trial.number}{value}")
    yield ""
    yield clean(f"Proposed by {r.by}" + (f": {trial.proposal.why}" if trial.proposal.why else ""))
    yield clean(f"Decided: {trial.why}")
    for label, names in (("Passed", passed(study, trial)), ("Not tried with", untried(study, trial))):
        if names:
            yield f"{label} the gates: {', '.join(names)}"
    if study.headline is not None and study.headline.best == trial.number and (said := proof(study.headline)):
        yield said
    if trial.change.values:
        yield clean("Parameters: " + " ".join(f"{key}={value}" for key, value in trial.change.values.items()))
