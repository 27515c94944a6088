"""What a step of a trial may reach of the machine, by whose code it runs. Pure; whoever starts it holds it to that.

Code that is the user's own sees the machine, but for what is secret, and writes where programs usually do. Code that is
a candidate's sees what is named here and no network. A scorer sees what candidates left, what is private, and nothing
that a candidate could have prepared.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from metaloop.roles import Step, Walls
from metaloop.terms import Sandbox, Terms


@dataclass(frozen=True)
class Ground:
    """What of this machine matters to trials; absolute paths, without links.

    `programs`: what candidates' commands are made of. `scoring`: the same of those that score them. `tools`: of our
    own. `secrets`: what in HOME is nobody's business. `caches`: where programs keep what may be used again. `packages`:
    of these, what installed packages may share their files with. `ours`: where programs are looked for and what we are
    made of ourselves. `project`: the user's own folder. `private`: what no
    candidate may see, and where git keeps it. `hidden`: folders of studies, and of all candidates. `read`, `write`:
    what the user named besides.
    """

    programs: tuple[str, ...] = ()
    scoring: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    caches: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    project: str = ""
    private: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    mounts: bool = False
    """Whether a file may be held otherwise than the folder that it is in, and a folder be one's own, as /tmp; Landlock
    knows neither.
    """

    def without(self, private: Sequence[str]) -> "Ground":
        """The same, but for what has come to be private as well."""
        more = tuple(path for path in private if path not in self.private)
        return replace(self, private=(*self.private, *more)) if more else self


SCORERS = "evaluate", "holdout"
"""Steps that are nobody's but the user's, and see what is private."""

COMMON = "/tmp", "/var/tmp"
"""Where every program of the user's own may write. Services have sockets there too: an agent has a /tmp of its own."""

AGENTS_TMP = 4 << 30
"""Bytes of that."""


def around(
    terms: Terms, own: Sandbox, ground: Ground, step: Step, cwd: str, directory: str, linked: tuple[str, ...] = ()
) -> Walls | None:
    """The walls of a step that runs in `cwd`, with the job's own folder `directory`; None for what runs once, before
    all trials. `own`: what the user wants otherwise. `linked`: what links in the step's directory lead to.
    """
    if step.name == "prepare":
        return None
    if step.name == "agent":
        return _agents(ground, cwd, directory)
    if terms.tournament is not None:
        return _versions(terms, own, ground, cwd, directory)
    if not terms.mutable:
        return _users(own, ground, step, cwd, directory)
    return _candidates(terms, own, ground, step, cwd, directory, linked)


def _users(own: Sandbox, ground: Ground, step: Step, cwd: str, directory: str) -> Walls:
    """A trial that has no code of its own."""
    private = () if step.name in SCORERS else ground.private
    return Walls(
        host=True,
        read=ground.read,
        write=(cwd, directory, *COMMON, *ground.caches, *ground.write),
        hidden=(*_unnamed(ground), *ground.hidden, *private),
        network=own.network is not False,
        devices=own.devices is not False,
        scratch=None,
    )


def _versions(terms: Terms, own: Sandbox, ground: Ground, cwd: str, directory: str) -> Walls:
    """What checks a version of a document, which a model wrote and which may be run: it sees that, and the files that
    the command names.
    """
    named = (f"{ground.project}/{word}" for word in terms.sealed if word in terms.check)
    return Walls(
        read=(*ground.programs, *named, *ground.read),
        write=(cwd, directory, *ground.write),
        hidden=(*_unnamed(ground), *ground.hidden),
        network=own.network is True,
        devices=own.devices is True,
    )


def _agents(ground: Ground, cwd: str, directory: str) -> Walls:
    """A coding agent. Whatever of the machine it may write to, what scores candidates is made of is not among it."""
    made = (*ground.programs, *ground.scoring, *ground.tools, *ground.packages, *ground.ours, ground.project)
    return Walls(
        host=True,
        read=(*ground.read, *made),
        write=(cwd, directory, *(() if ground.mounts else COMMON), *ground.write),
        hidden=(*_unnamed(ground), *ground.hidden, *ground.private),
        network=True,
        devices=True,
        scratch=AGENTS_TMP if ground.mounts else None,
    )


def _candidates(
    terms: Terms, own: Sandbox, ground: Ground, step: Step, cwd: str, directory: str, linked: tuple[str, ...]
) -> Walls:
    scorer = step.name in SCORERS
    apart = scorer and terms.tier == "separate"
    carries = step.name == "outputs"
    programs = ground.tools if carries else (*ground.programs, *(ground.scoring if scorer else ()))
    sealed = (word for word in step.argv[1:] if word.startswith("/")) if step.name == "holdout" else ()
    named = (*programs, *linked, *sealed, *ground.read)
    return Walls(
        read=(*named, *(ground.private if apart else ()), *((cwd,) if carries else ())),
        write=(step.cwd or cwd, directory, *(() if apart or carries else ground.write)),
        hidden=(*_unnamed(ground), *ground.hidden, *(() if apart else ground.private)),
        network=own.network is True,
        devices=own.devices is True,
    )


def _unnamed(ground: Ground) -> tuple[str, ...]:
    """Secrets that the user did not name themselves; to name what they are in opens none."""
    return tuple(path for path in ground.secrets if path not in (*ground.read, *ground.write))
