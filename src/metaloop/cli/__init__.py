"""The command line. Verbs are loaded when they are typed; errors become one line and an exit code."""

import gc
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from metaloop import __version__
from metaloop.errors import MetaloopError

VERBS: dict[str, dict[str, tuple[str, str]]] = {
    "Begin": {
        "demo": ("run:demo", "a real study on real data, without a key, in half a minute"),
        "init": ("run:init", "write a first study into a folder"),
        "check": ("check:check", "everything that stands in the way of a study, and its baseline"),
    },
    "Run": {
        "run": ("run:run", "start a study, or resume it: the same line does both"),
        "run-one": ("run:run_one", "try one set of parameters, or one patch, as a trial of the study"),
        "steer": ("steer:steer", "pause, resume or stop a study, end one trial, leave a hint"),
    },
    "Documents": {
        "refine": ("refine:refine", "a document, improved by versions that a blind panel prefers"),
        "compare": (
            "compare:compare",
            "strategies side by side: for a document by a blind panel, for code by hidden tests",
        ),
        "bilevel": ("bilevel:bilevel", "improve how documents are improved: diagnose, change one thing, prove it"),
        "diagnose": ("diagnose:diagnosed", "what is wrong with a tournament, by its own trace, and the remedy"),
        "advise": ("advise:advise", "which strategy improves a text or a program, why, and what it costs"),
        "recount": ("recount:recount", "judges' raw replies, read and counted again; of published runs too"),
    },
    "Compare": {},
    "Look": {
        "status": ("read:status", "where a study stands, and its last trials"),
        "watch": ("read:watch", "the same, live"),
        "show": ("read:show", "all that is known of one trial"),
        "best": ("read:best", "the parameters of the incumbent, as JSON"),
        "diff": ("code:diff", "what a trial changed in the code"),
        "apply": ("code:apply", "have the best code: as a branch, as a patch, or in the files"),
        "replay": ("read:replay", "tell a study from its ledger, trial by trial"),
        "report": ("read:report", "a page of Markdown: what was found, and how sure that is"),
        "export": ("read:export", "the trials, as tables for other tools"),
    },
    "Model": {
        "model": ("model:model", "a server to be the model: you, asked by file, or a small one on this machine"),
    },
    "Keep": {
        "audit": ("read:audit", "derive every proposal, score and decision again"),
        "restore": ("tidy:restore", "put a damaged ledger right from its own copy"),
        "gc": ("tidy:gc", "remove what trials left on disk and nothing needs"),
    },
}
ALL = {verb: told for group in VERBS.values() for verb, told in group.items()}

HELP = """metaloop improves something by experiment, alone, overnight: it proposes a change, tries it in isolation,
measures it, keeps what is better, and can show why.

  metaloop demo
  metaloop run study.yaml
  metaloop run --cmd "python3 train.py" --metric acc --direction max --param lr=1e-5..1e-1:log --param layers=1,2,3
{verbs}
A study is named by its file, its folder or its name, and by nothing where there is only one. `metaloop VERB --help`
says more of a verb; --json gives one JSON document on stdout. A file alone is run: `metaloop study.yaml`.

Exit codes
  0 done    1 no improvement (with --fail-if-no-improvement)    2 usage or configuration
  3 baseline or preparation failed    4 nothing could be measured
  5 the budget cannot pay for one trial (check)    6 ledger damaged, or audit failed
  75 another controller holds the study    130, 143 interrupted: the same command goes on
"""


class Interrupt:
    """What Ctrl-C does until a study runs: it is raised, and remembered. In some places (at an object's end, in a
    module's lock) Python drops what is raised, so that who goes on for long has to ask whether it came.
    """

    came = False

    def __call__(self, *_: object) -> NoReturn:
        self.came = True
        raise KeyboardInterrupt


INTERRUPT = Interrupt()


def page() -> str:
    """What `metaloop --help` prints."""
    lines: list[str] = []
    for group, verbs in VERBS.items():
        lines += ["", group, *(f"  {verb:<9} {about}" for verb, (_, about) in verbs.items())]
    return HELP.format(verbs="\n".join([*lines, ""]))


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """The entry point. Ends the process with the exit code."""
    _open_streams()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, INTERRUPT)
    code = invoke(list(sys.argv[1:] if argv is None else argv))
    try:
        sys.stdout.flush()
    except OSError:  # what could not be written has been said, and would be tried again at the very end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _open_streams() -> None:
    """Where a stream was closed before we began, nobody listens: else a ledger would be opened in its place."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest that is free
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")


def invoke(argv: list[str]) -> int:
    """One command; its exit code."""
    gc.set_threshold(50_000, 20, 20)  # a study is many small objects that stay: looking at them often costs a third
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a console that cannot show a letter shows a question mark
    if not argv or argv[0] in ("--help", "-h", "help"):
        print(page(), end="")
        return 0
    if argv[0] == "--version":
        print(__version__)
        return 0
    if argv[0] not in ALL and not argv[0].startswith("-"):
        argv = ["run", *argv] if _is_file(argv[0]) else argv
    try:
        return _dispatch(argv)
    except MetaloopError as error:
        return _failed(str(error), error.code, argv)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        return _failed(f"{error.filename or 'the system'}: {error.strerror or error}", 4, argv)
    except Exception as error:  # the edge: one line for the user, all of it for whoever mends it
        if os.environ.get("METALOOP_TRACEBACK"):
            raise
        what = f"{type(error).__name__}: {error}"
        return _failed(f"this should not happen: {what}; METALOOP_TRACEBACK=1 shows where", 70, argv)


def _dispatch(argv: list[str]) -> int:
    from cyclopts import App, CycloptsError

    verb = argv[0]
    if verb not in ALL:
        from difflib import get_close_matches

        likely = get_close_matches(verb, ALL, n=1)
        hint = f"did you mean {likely[0]!r}? " if likely else ""
        return _failed(f"expected a verb or a study file, found {verb!r}; {hint}see `metaloop --help`", 2, argv)
    target, _ = ALL[verb]
    app = App(name="metaloop", help_format="plaintext", result_action="return_value")
    app.command(f"metaloop.cli.{target}", name=verb)
    try:
        result = app(argv, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        return _failed(f"{' '.join(str(error).split())}; see `metaloop {verb} --help`", 2, argv)
    return result if isinstance(result, int) else 0


def _is_file(word: str) -> bool:
    """Whether a first word is a study file that is meant to be run, and no verb that was mistyped."""
    return Path(word).exists() or word.endswith((".yaml", ".yml"))


def _failed(message: str, code: int, argv: Sequence[str]) -> int:
    from metaloop.cli.output import clean, say, tell_json

    for line in message.splitlines():
        say(f"metaloop: {clean(line)}", "red")
    if "--json" in argv:
        tell_json({"error": clean(message), "code": code})
    return code
