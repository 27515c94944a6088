"""`metaloop compare` of problems of code: strategies side by side, each a study that the same line resumes."""

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec

from metaloop.cli.output import clean, say, tell, tell_json
from metaloop.cli.run import driven
from metaloop.config import held
from metaloop.errors import UsageError
from metaloop.paired import Case, case, compared, lines
from metaloop.studyfile import StudyFile, load
from metaloop.terms import Repairing

STRATEGIES: tuple[str, ...] = get_args(Repairing)


def problems(files: list[Path], strategies: list[str] | None, json: bool) -> int:
    """A study NAME-STRATEGY for every problem and strategy, beside the problem's file, and what comes of them all.

    0: compared; 4: nothing can be said of any; 128 and the signal's number where it was interrupted.
    """
    names = tuple(dict.fromkeys(strategies or STRATEGIES))
    if unknown := [name for name in names if name not in STRATEGIES]:
        raise UsageError(f"--strategy: expected {', '.join(STRATEGIES)}; found {unknown[0]!r}")
    studies = [(file, {name: _study(file, name) for name in names}) for file in files]  # all that is wrong comes first
    labels = _labels(files, [next(iter(each.values())) for _, each in studies], names[0])
    cases: list[Case] = []
    for (_, each), label in zip(studies, labels, strict=True):
        for name, study in each.items():
            ended = driven(study, quiet=json)
            if ended.signal is not None:
                say(f"interrupted ({ended.signal.name}): the same command goes on from here", "yellow")
                return 128 + ended.signal.value
            cases.append(case(ended.study, label, name))
    told = compared(cases, names)
    if json:
        tell_json(msgspec.to_builtins(told))
    else:
        for line in lines(told):
            tell(clean(line))
    return 0 if any(each.hidden is not None for each in told.cases) else 4


def _study(path: Path, strategy: str) -> StudyFile:
    """The problem in a file, as a study of this strategy."""
    plain = load(path, begun=held)
    if plain.terms.repair is None:
        raise UsageError(f"{path}: expected policy.type repair, found {plain.terms.policy}")
    if not plain.terms.holdout:
        raise UsageError(f"{path}: expected tests that nobody is shown, found none; add target.holdout_cmd")
    return load(path, {"name": f"{plain.terms.name}-{strategy}", "policy.strategy": strategy}, held)


def _labels(files: Sequence[Path], studies: Sequence[StudyFile], strategy: str) -> list[str]:
    """What to call each problem: its name, or its file where others have that name too."""
    folders = [study.folder.resolve() for study in studies]
    if twice := [file for file, folder in zip(files, folders, strict=True) if folders.count(folder) > 1]:
        raise UsageError(f"{twice[0]}: expected each problem once, found it again, or another of its name beside it")
    names = [study.terms.name.removesuffix(f"-{strategy}") for study in studies]
    return [name if names.count(name) == 1 else str(file) for file, name in zip(files, names, strict=True)]
