"""What a step of a trial may reach of the machine, by whose code it runs. Pure; whoever starts it holds it to that.

Code that is the user's own sees the machine, but for what is secret, and writes where programs usually do. Code that is
a candidate's sees what is named here and no network. A scorer sees what candidates left, what is private, and nothing
that a candidate could have prepared.
"""

from dataclasses import dataclass

from metaloop.roles import Step, Walls
from metaloop.terms import Sandbox, Terms


@dataclass(frozen=True)
class Ground:
    """What of this machine matters to trials; absolute paths, without links.

    `programs`: what the study's programs are made of. `tools`: the same of our own. `secrets`: what in HOME is nobody's
    business. `caches`: where programs keep what may be used again. `private`: what no candidate may see. `hidden`:
    folders of studies, and of other candidates. `read`, `write`: what the user named besides.
    """

    programs: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    caches: tuple[str, ...] = ()
    private: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    mounts: bool = False
    """Whether a file may be held otherwise than the folder that it is in; Landlock does not know that."""


SCORERS = "evaluate", "holdout"
"""Steps that are nobody's but the user's, and see what is private."""

COMMON = "/tmp", "/var/tmp"
"""Where every program of the user's own may write."""


def around(
    terms: Terms, own: Sandbox, ground: Ground, step: Step, cwd: str, directory: str, linked: tuple[str, ...] = ()
) -> Walls | None:
    """The walls of a step that runs in `cwd`, with the job's own folder `directory`; None for what runs once, before
    all trials. `own`: what the user wants otherwise. `linked`: what links in a candidate's directory lead to.
    """
    if step.name == "prepare":
        return None
    if step.name == "agent" or not terms.mutable:
        return _users(own, ground, step, cwd, directory)
    return _candidates(terms, own, ground, step, cwd, directory, linked)


def _users(own: Sandbox, ground: Ground, step: Step, cwd: str, directory: str) -> Walls:
    """A program of the user's: a trial that has no code of its own, or a coding agent."""
    private = () if step.name in SCORERS else ground.private
    hidden = (*ground.secrets, *ground.hidden, *private)
    agent = step.name == "agent"
    return Walls(
        host=True,
        read=ground.read,
        write=(cwd, directory, *COMMON, *ground.caches, *ground.write),
        hidden=tuple(path for path in hidden if not _named(path, (*ground.read, *ground.write))),
        network=agent or own.network is not False,
        devices=agent or own.devices is not False,
        scratch=None,
    )


def _candidates(
    terms: Terms, own: Sandbox, ground: Ground, step: Step, cwd: str, directory: str, linked: tuple[str, ...]
) -> Walls:
    scores = terms.tier == "separate" and step.name in SCORERS
    carries = step.name == "outputs"
    programs = ground.tools if carries else ground.programs
    return Walls(
        read=(*programs, *linked, *ground.read, *(ground.private if scores else ()), *((cwd,) if carries else ())),
        write=(step.cwd or cwd, directory, *(() if scores or carries else ground.write)),
        hidden=() if scores else ground.private,
        network=own.network is True,
        devices=own.devices is True,
    )


def _named(path: str, named: tuple[str, ...]) -> bool:
    """Whether the user named it, or what it is in."""
    return any(path == each or path.startswith(f"{each}/") for each in named)
