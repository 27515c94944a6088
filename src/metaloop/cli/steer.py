"""Asking something of a study from outside: `metaloop steer`.

Where a controller lives, the request goes into its inbox, and the controller records it. Where none does, a hint, a
gate or the end of a trial is recorded here, under the lease; pause, resume and stop are refused, since a new
`metaloop run` is a decision of its own and undoes them.
"""

import contextlib
import getpass
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from cyclopts import Parameter
from msgspec.structs import replace

from metaloop.adapters.inbox import put, request_id, withdraw
from metaloop.adapters.ledger import controller, open_ledger, read_ledger
from metaloop.cli.find import Opened, read
from metaloop.cli.output import clean, say, shown, tell, tell_json
from metaloop.config import gate_command
from metaloop.engine import commit
from metaloop.errors import StudyBusy, UsageError
from metaloop.events import Directed, Entry
from metaloop.study import Study, fold
from metaloop.terms import GATE_NAME, Gate

Op: TypeAlias = Literal["pause", "resume", "stop", "kill", "hint", "gate", "ungate"]
LASTING = ("hint", "kill", "gate", "ungate")
"""What is recorded also where no controller lives: it holds when one does."""

PATIENCE_S = 5.0
"""How long the controller is given to record a request; it looks four times a second."""

LONGEST = 4000
"""Characters of a hint or a reason: they stand in the ledger for ever."""

COMES_OF_IT: dict[str, str] = {
    "pause": "what runs goes on, nothing new begins until `resume`",
    "resume": "trials begin again",
    "stop": "what runs is ended, and the study closes",
    "kill": "the trial is ended, and counts as stopped by a person",
    "hint": "a model that proposes is shown it, and so is `metaloop status`",
    "gate": "trials that begin from now on have to pass it",
    "ungate": "trials that begin from now on need not pass it, and what failed at it may be tried again",
}

LATER = dict.fromkeys(("gate", "ungate"), "; no controller runs: the next `metaloop run` goes by it")
LATER["kill"] = "; no controller runs: the next `metaloop run` does it"


def steer(
    study: Annotated[str, Parameter(help="The study's file, folder or name.")],
    op: Annotated[Op, Parameter(help="What is asked for.")],
    text: Annotated[str | None, Parameter(help="The hint, or the name of the gate.")] = None,
    /,
    *command: Annotated[str, Parameter(help="Of gate, after --: what has to end with exit code 0.")],
    why: Annotated[str, Parameter(help="Why: recorded with the request.")] = "",
    by: Annotated[str | None, Parameter(help="Who asks; by default, you.")] = None,
    trial: Annotated[
        int | None, Parameter(help="The trial that kill ends; the one that a gate is on, with all that grows from it.")
    ] = None,
    phase: Annotated[Literal["pre", "post"], Parameter(help="Of gate: before a candidate is run, or after.")] = "pre",
    timeout_s: Annotated[float, Parameter(help="Of gate: seconds of wall clock.")] = 600.0,
    json: Annotated[
        bool, Parameter(name="--json", negative="", help="One JSON document on stdout, nothing else there.")
    ] = False,
) -> int:
    """Ask something of a study: pause, resume, stop, end one trial, leave a hint, set a gate or take one away. It is
    recorded, with your name.

    Exit code 0: it stands in the ledger; 2: it makes no sense, and nothing was done; 75: the controller has not taken
    it up yet.
    """
    opened = read(study)
    where = opened.folder
    request = _request(op, text, why, by or me(), trial)
    if op == "gate":
        request = replace(request, text="", gate=_gate(opened, text, command, phase, timeout_s))
    elif command:
        raise UsageError(f"{op}: expected nothing after {text!r}, found {command[0]!r}")
    _sensible(opened.study, request, where)
    entry, pid = _through_inbox(where, request)
    if entry is None and pid is None:
        entry = _under_lease(where, request)
    return _told(where, request, entry, pid, json)


# ---- what is asked ---------------------------------------------------------------------------------------------------


def _request(op: Op, text: str | None, why: str, by: str, trial: int | None) -> Directed:
    """The request. Raises UsageError where words are missing, or stand where none belong."""
    if op == "hint" and not (text or "").strip():
        raise UsageError('expected a hint: metaloop steer STUDY hint "try a smaller learning rate"')
    if op in ("gate", "ungate") and not text:
        raise UsageError(f"{op}: expected a name: metaloop steer STUDY {op} tests" + GATES.get(op, ""))
    if op not in ("hint", "gate", "ungate") and text is not None:
        more = f"--trial {text}" if op == "kill" and text.isdigit() else f"--why {text!r}"
        raise UsageError(f"{op}: expected no text, found {text!r}; did you mean {more}?")
    if op == "kill" and trial is None:
        raise UsageError("kill: expected --trial N, the number of a trial that runs; `metaloop status` shows them")
    if op not in ("kill", "gate") and trial is not None:
        raise UsageError(f"{op}: expected no --trial; it asks something of the whole study")
    for name, words in (("the text", text or ""), ("--why", why), ("--by", by)):
        _fit(name, words)
    return Directed(request_id(), op, by, why, trial=trial, text=text or "")


GATES = {"gate": " -- python -m pytest -q"}


def _gate(
    opened: Opened, name: str | None, command: Sequence[str], phase: Literal["pre", "post"], timeout_s: float
) -> Gate:
    """The gate. Raises UsageError for one that no study file could have."""
    if not re.fullmatch(GATE_NAME, name or ""):
        raise UsageError(f"gate: expected a name of letters, digits, - and _, of at most 40; found {name!r}")
    if not command:
        raise UsageError(f"gate: expected a command: metaloop steer STUDY gate {name}{GATES['gate']}")
    if not 0 < timeout_s <= 1e9:
        raise UsageError(f"gate: expected --timeout-s above 0, found {timeout_s:g}")
    for word in command:
        _fit("the command", word)
    return Gate(name or "", gate_command(opened.study.the_terms, opened.folder, command), phase, timeout_s)


def _fit(name: str, words: str) -> None:
    if len(words) > LONGEST:
        raise UsageError(f"{name}: expected at most {LONGEST} characters, found {len(words)}")
    try:
        words.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{name}: expected UTF-8 text, found bytes that are none") from None


def me() -> str:
    """Who is at the keyboard, as far as the system knows."""
    with contextlib.suppress(OSError, KeyError, ImportError):  # a user without a name, as in some containers
        return getpass.getuser()
    return "person"


def _sensible(study: Study, request: Directed, where: Path) -> None:
    """Raises UsageError where the request could change nothing."""
    if study.closed is not None and request.op not in ("gate", "ungate"):
        raise UsageError(
            f"{shown(where)}: this study is over ({study.closed.why}): there is nothing to {request.op}; "
            "`metaloop run` with a larger budget makes it go on"
        )
    if request.gate is not None and request.gate.name in study.gates:
        raise UsageError(f"gate: there is one of the name {request.gate.name!r}; take it away first, with ungate")
    if request.gate is not None and request.trial is not None and request.trial not in study.trials:
        raise UsageError(f"gate: there is no trial {request.trial}; `metaloop status` shows them")
    for word in request.gate.command if request.gate is not None and study.the_terms.mutable else ():
        if study.the_terms.contract.allows(os.path.normpath(word)):
            raise UsageError(f"gate: expected what candidates cannot change; {word!r} is mutable")
    if request.op == "ungate" and request.text not in study.gates:
        raise UsageError(
            f"ungate: expected one of {', '.join(study.gates) or 'none: there is no gate'}; found {request.text!r}"
        )
    if request.op == "kill" and request.trial not in (running := _running(study)):
        there = ", ".join(map(str, running)) or "none"
        raise UsageError(f"kill: expected a trial that runs, found {request.trial}; running now: {there}")


def _running(study: Study) -> list[int]:
    trials = (study.trials[number] for round in study.open.values() for number in round.trials)
    return [trial.number for trial in trials if _runs(study, trial.number)]


def _runs(study: Study, trial: int) -> bool:
    waits = (wait for round in study.open.values() for wait in round.waits if wait[0] == trial)
    return any(study.run(number, run).running for number, run in waits)


# ---- how it gets there -----------------------------------------------------------------------------------------------


def _through_inbox(where: Path, request: Directed) -> tuple[Entry | None, int | None]:
    """The entry that records it, and the controller; no entry where it lives and waits; neither where none lives.

    A request that nobody took up does not stay behind where nobody lives: it would be carried out by the next run.
    """
    pid = controller(where)
    if pid is None:
        return None, None
    put(where, request)
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        if (entry := _recorded(where, request)) is not None:
            return entry, pid
        if controller(where) is None:
            withdraw(where, request.request)
            entry = _recorded(where, request)
            return entry, pid if entry is not None else None
        time.sleep(0.1)
    return None, pid


def _recorded(where: Path, request: Directed) -> Entry | None:
    def ours(entry: Entry) -> bool:
        return isinstance(entry.event, Directed) and entry.event.request == request.request

    return next(filter(ours, list(read_ledger(where))), None)


def _under_lease(where: Path, request: Directed) -> Entry:
    """Records it ourselves: nobody else may write while we hold the lease."""
    if request.op not in LASTING:
        raise UsageError(
            f"{shown(where)}: no controller runs this study, so there is nothing to {request.op}; "
            "it goes on when `metaloop run` is typed, and not before"
        )
    try:
        ledger = open_ledger(where, create=False)
    except StudyBusy as busy:
        raise StudyBusy(f"{busy}; a controller began at this moment: ask again") from None
    try:
        study = fold(ledger.read())
        _sensible(study, request, where)
        return commit(ledger, study, study.at, [request], ())[0]
    finally:
        ledger.close()


def _told(where: Path, request: Directed, entry: Entry | None, pid: int | None, json: bool) -> int:
    code = 0 if entry is not None else StudyBusy.code
    if json:
        tell_json(
            {
                "study": str(where.absolute()),
                "request": request.request,
                "op": request.op,
                "by": request.by,
                "recorded": None if entry is None else entry.place,
                "controller": pid,
                "code": code,
            }
        )
    elif entry is None:
        say(
            f"metaloop: {request.op}: process {pid} has not taken it up in {PATIENCE_S:g} s; it stays in "
            f"{shown(where)}/inbox/ and is recorded when it does: look with `metaloop status`",
            "yellow",
        )
    else:
        late = LATER.get(request.op, "") if pid is None else ""
        tell(clean(f"{request.op}: recorded as entry {entry.place}: {COMES_OF_IT[request.op]}{late}"))
    return code
