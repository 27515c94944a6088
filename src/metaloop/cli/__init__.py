"""The command line. Verbs live in modules of their own, loaded when they are typed; errors become one line and a code."""

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from metaloop import __version__
from metaloop.errors import MetaloopError

VERBS = {
    "demo": ("run:demo", "A real study on real data, without a key, in half a minute."),
    "init": ("run:init", "Write a first study into a folder."),
    "check": ("run:check", "Everything that is missing, at once, and the measured baseline."),
    "run": ("run:run", "Start a study, or resume it: the same command does both."),
    "run-one": ("run:run_one", "Try one set of parameters, as a trial of the study."),
    "status": ("read:status", "Where a study stands, and its last trials."),
    "watch": ("read:watch", "The same, live."),
    "show": ("read:show", "All that is known of one trial."),
    "best": ("read:best", "The parameters of the incumbent."),
    "export": ("read:export", "The trials, as tables for other tools."),
    "audit": ("read:audit", "Derive every proposal, score and decision again."),
    "replay": ("read:replay", "Tell a study from its ledger, trial by trial."),
    "gc": ("tidy:gc", "Remove what trials left on disk and nothing needs."),
}

HELP = """Improves something by experiment, alone, overnight: proposes a change, tries it in isolation, measures it, keeps
what is better, and can show why.

    metaloop demo                                 a real study in half a minute
    metaloop run study.yaml                       start it; the same line resumes it
    metaloop run --cmd "python3 train.py" --metric acc --direction max --param lr=1e-5..1e-1:log

Exit codes: 0 done, 1 no improvement (with --fail-if-no-improvement), 2 usage or configuration, 3 baseline failed,
4 nothing could be measured, 6 ledger damaged or audit failed, 75 another controller holds the study, 130 and 143
interrupted (the same command resumes).
"""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """The entry point. Ends the process with the exit code."""
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(argv: list[str]) -> int:
    """One command; its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a console that cannot show a letter shows a question mark
    if argv and argv[0] not in VERBS and not argv[0].startswith("-"):
        argv = ["run", *argv]
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


def _dispatch(argv: list[str]) -> int:
    from cyclopts import App, CycloptsError

    app = App(name="metaloop", help=HELP, version=__version__, help_format="plaintext", result_action="return_value")
    for verb, (target, about) in VERBS.items():
        app.command(f"metaloop.cli.{target}", name=verb, help=about)
    try:
        result = app(argv, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        verb = argv[0] if argv and argv[0] in VERBS else ""
        return _failed(f"{' '.join(str(error).split())}; see `metaloop {verb + ' ' if verb else ''}--help`", 2, argv)
    return result if isinstance(result, int) else 0


def _failed(message: str, code: int, argv: Sequence[str]) -> int:
    from metaloop.cli.output import clean, say, tell_json

    for line in message.splitlines():
        say(f"metaloop: {clean(line)}", "red")
    if "--json" in argv:
        tell_json({"error": clean(message), "code": code})
    return code
