"""Models, from the command line: `metaloop model serve-by-hand`."""

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


def _terminated(*_: object) -> NoReturn:
    raise SystemExit(143)
