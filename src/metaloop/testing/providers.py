"""Models: a provider on this machine, with faults to order, and the suite that every model has to pass.

`FakeProvider` is a real HTTP server, and speaks as OpenAI and as Anthropic do. What is said of a fault is what goes
over the wire; how a client takes it is the client's affair.
"""

import asyncio
import gzip
import json
import socket
import struct
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from metaloop.events import Reply
from metaloop.flow import Message, Prompt
from metaloop.roles import Model

T = TypeVar("T")

# ---- a provider ------------------------------------------------------------------------------------------------------

REFUSAL = "I will not do that."
THOUGHT = "SECRET-THOUGHT"
"""What a model thinks before it speaks: never a part of its reply."""
HUGE = 10 << 20
"""Bytes of text in a huge reply."""
FAULTS = {"", "slow drip", "hang", "cut connection", "truncated body", "no body", "html", "huge", "packed"} | {
    *("truncated reply", "empty", "only thought", "thinking blocks", "refusal", "wrong types", "wrong usage"),
    "error inside",
}
"""All but those that are a status."""


class Request(msgspec.Struct, frozen=True):
    """What came in, and when, on the monotonic clock. Names of headers are lower case; `body` is {} for none."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float

    def key(self) -> str:
        """The key that came along; empty for none."""
        return self.headers.get("x-api-key") or self.headers.get("authorization", "").removeprefix("Bearer ")


class FakeProvider:
    """A provider on 127.0.0.1 while its context lasts: OpenAI's `/chat/completions` and Anthropic's `/messages`.

    `script` makes the text of a reply from the body of a request. `faults` are used up one a request, then all is fine;
    `forever` is what goes wrong after that, if anything. `latency`: seconds before each response. `requests` are those
    that came, in order. A fault is one of

    - a status: `429`, `500`, `401`; `429:7` with that Retry-After, `429:250ms` with a retry-after-ms;
      `400:temperature` (or 422) only where the request has that parameter, which it names; `307:URL` redirects
    - `slow drip` (a byte now and then), `hang`, `cut connection`, `truncated body`, `no body`, `html`, `huge`,
      `packed` (the same, compressed)
    - `truncated reply`, `empty`, `only thought`, `thinking blocks` (and blocks of unknown kinds, and two of text),
      `refusal`, `wrong types`, `wrong usage`, `error inside` (of a response that says 200)

    Its error messages repeat the key that came with the request, as the worst of providers do.
    """

    def __init__(
        self,
        script: Callable[[dict[str, Any]], str] = lambda _: "fine",
        faults: Sequence[str] = (),
        *,
        forever: str = "",
        latency: float = 0.0,
    ) -> None:
        for fault in (*faults, forever):
            assert fault in FAULTS or fault[:3].isdigit(), f"expected a fault of {sorted(FAULTS)}, found {fault!r}"
        self.script, self.forever, self.latency = script, forever, latency
        self.faults, self.requests = list(faults), list[Request]()
        self.closing = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.provider = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()

    def take(self, request: Request) -> str:
        """Notes a request; the fault that it meets, or nothing."""
        with self._lock:
            self.requests.append(request)
            return self.faults.pop(0) if self.faults else self.forever


def tokens(text: str) -> int:
    """How many tokens the fake says a text has."""
    return len(text) // 4 + 1


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    provider: FakeProvider

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hung up is no news."""


class _Handler(BaseHTTPRequestHandler):
    """One connection. `server.provider` says what to answer."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, format: str, *args: object) -> None:
        """Tests are quiet."""

    def do_GET(self) -> None:
        self._answer({})

    def do_POST(self) -> None:
        self._answer(json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}"))

    def _answer(self, body: dict[str, Any]) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path, headers, body, time.monotonic())
        provider = self.server.provider
        fault = provider.take(request)
        provider.closing.wait(provider.latency)
        with suppress(OSError):
            if fault in _DEEDS:
                self.close_connection = True
                _DEEDS[fault](self, request)
            else:
                self._send(_response(provider, request, fault))

    def _send(self, response: "_Response", share: float = 1.0) -> None:
        """Sends a response, or promises all of it and sends a share."""
        body = response.body
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self._begin(response.status, len(data), response.headers)
        self.wfile.write(data[: int(len(data) * share)])

    def _begin(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(length), **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def drip(self, _: Request) -> None:
        self._begin(200, 1 << 20, {})
        while not self.server.provider.closing.wait(0.05):
            self.wfile.write(b" ")

    def hang(self, _: Request) -> None:
        self.server.provider.closing.wait()

    def cut(self, _: Request) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def pack(self, request: Request) -> None:
        data = gzip.compress(json.dumps(_response(self.server.provider, request, "huge").body).encode(), 1)
        self._begin(200, len(data), {"Content-Encoding": "gzip"})
        self.wfile.write(data)

    def halve(self, request: Request) -> None:
        self._send(_response(self.server.provider, request, ""), share=0.5)


_DEEDS: dict[str, Callable[[_Handler, Request], None]] = {
    "slow drip": _Handler.drip,
    "hang": _Handler.hang,
    "cut connection": _Handler.cut,
    "truncated body": _Handler.halve,
    "packed": _Handler.pack,
}


class _Response(msgspec.Struct, frozen=True):
    """A body as a text is sent as it is, and as JSON otherwise."""

    status: int
    body: object
    headers: dict[str, str] = {}


class _Said(msgspec.Struct, frozen=True):
    """What a model says. `finish` in the words of OpenAI; `around`: with thoughts and more around the text."""

    text: str
    finish: str = "stop"
    around: bool = False


def _response(provider: FakeProvider, request: Request, fault: str) -> _Response:
    kind, _, argument = fault.partition(":")
    if kind.isdigit() and not (kind in ("400", "422") and argument and argument not in request.body):
        return _status(request, int(kind), argument)
    if fault == "no body":
        return _Response(200, "")
    if fault == "html":
        return _Response(200, "<html><body>Have you tried our website?</body></html>", {"Content-Type": "text/html"})
    if fault == "error inside":
        return _Response(200, _error(request, "overloaded", ""))
    if request.path.endswith("/models"):
        return _Response(200, {"object": "list", "data": [{"id": "fake", "object": "model"}]})
    if not request.path.endswith(("/chat/completions", "/messages")):
        return _status(request, 404, "")
    body = (_messages if request.path.endswith("/messages") else _chat)(request, _said(provider, request, fault))
    if fault == "wrong types":
        body |= {"choices": [{"message": {"content": 5}, "finish_reason": 7}], "content": "text", "model": 3}
    if fault == "wrong usage":
        body["usage"] = dict.fromkeys(body["usage"], "many")
    return _Response(200, body)


def _said(provider: FakeProvider, request: Request, fault: str) -> _Said:
    text = provider.script(request.body)
    match fault:
        case "truncated reply":
            return _Said(text[: len(text) // 2], "length")
        case "refusal":
            return _Said(REFUSAL, "refusal")
        case "huge":
            return _Said("x" * HUGE)
        case "empty":
            return _Said("")
        case "only thought":
            return _Said("", around=True)
        case "thinking blocks":
            return _Said(text, around=True)
        case _:
            return _Said(text)


def _status(request: Request, status: int, argument: str) -> _Response:
    if 300 <= status < 400:
        return _Response(status, {}, {"Location": argument})
    if status in (400, 422) and argument:
        return _Response(
            status, _error(request, f"Unsupported parameter: '{argument}' (key {request.key()})", argument)
        )
    milliseconds = argument.removesuffix("ms") != argument
    after = {"Retry-After-Ms" if milliseconds else "Retry-After": argument.removesuffix("ms")} if argument else {}
    return _Response(status, _error(request, f"a {status} to whoever has the key {request.key()}", ""), after)


def _error(request: Request, message: str, param: str) -> dict[str, Any]:
    if request.path.endswith("/messages"):
        return {"type": "error", "error": {"type": "some_error", "message": message}}
    return {"error": {"message": message, "type": "some_error", "param": param or None, "code": None}}


def _blocks(said: _Said) -> list[dict[str, Any]]:
    """The text as blocks; in two, with what is no text around them, where it is wanted so."""
    if not said.around:
        return [{"type": "text", "text": said.text}] if said.text else []
    half = len(said.text) // 2
    return [
        {"type": "thinking", "thinking": THOUGHT, "signature": "c2ln"},
        {"type": "redacted_thinking", "data": THOUGHT},
        {"type": "text", "text": said.text[:half]},
        {"type": "kind_of_tomorrow", "text": THOUGHT},
        {"type": "kind_of_next_year", "text": {"of": THOUGHT}, "more": [1, None]},
        {"type": "text", "text": said.text[half:]},
    ]


def _chat(request: Request, said: _Said) -> dict[str, Any]:
    refused = said.finish == "refusal"
    message: dict[str, Any] = {"role": "assistant", "content": None if refused else said.text}
    if said.around:
        message |= {"content": _blocks(said), "reasoning_content": THOUGHT}
    message["refusal"] = said.text if refused else None
    counted = {"prompt_tokens": _tokens_in(request), "completion_tokens": tokens(said.text)}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": request.body.get("model"),
        "choices": [{"index": 0, "message": message, "finish_reason": "stop" if refused else said.finish}],
        "usage": counted | {"total_tokens": sum(counted.values())},
    }


def _messages(request: Request, said: _Said) -> dict[str, Any]:
    words = {"stop": "end_turn", "length": "max_tokens"}
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": request.body.get("model"),
        "content": _blocks(said),
        "stop_reason": words.get(said.finish, said.finish),
        "stop_sequence": None,
        "usage": {"input_tokens": _tokens_in(request), "output_tokens": tokens(said.text)},
    }


def _tokens_in(request: Request) -> int:
    texts = [str(message.get("content", "")) for message in request.body.get("messages", ())]
    return sum(map(tokens, [*texts, request.body["system"]] if "system" in request.body else texts))


# ---- models: the suite -----------------------------------------------------------------------------------------------


def prompt(*texts: str, role: str = "default", schema: dict[str, object] | None = None) -> Prompt:
    """A prompt whose last text is the user's, and the one before it, if any, the system's."""
    roles = ("system", "user")[-len(texts) :] if texts else ()
    return Prompt(role, tuple(Message(who, text) for who, text in zip(roles, texts, strict=True)), schema)


class ModelConformance:
    """The contract of `roles.Model`, for any model: make a subclass that overrides `echo`, `silent` and `slow`."""

    def echo(self) -> Model:
        """A model that replies with the last text of the prompt, in upper case."""
        raise NotImplementedError

    def silent(self) -> Model:
        """A model that has no reply to give, and is sure of it within a few seconds."""
        raise NotImplementedError

    def slow(self) -> Model:
        """A model that takes minutes to reply."""
        raise NotImplementedError

    async def close(self, model: Model) -> None:
        """Lets go of a model."""

    def alone(self, model: Callable[[], Model], story: Callable[[Model], Awaitable[T]]) -> T:
        """Runs a story with a model of its own, which is closed whatever happens."""

        async def run() -> T:
            made = model()
            try:
                return await story(made)
            finally:
                await self.close(made)

        return asyncio.run(run())

    def asked(self, model: Callable[[], Model], *prompts: Prompt) -> list[Reply]:
        """The replies to prompts that are put all at once."""

        async def story(made: Model) -> list[Reply]:
            return await asyncio.gather(*map(made.complete, prompts))

        return self.alone(model, story)

    def test_a_prompt_gets_its_reply(self) -> None:
        (reply,) = self.asked(self.echo, prompt("be brief", "so it is"))
        assert (reply.text, reply.finish, reply.problem, reply.trouble) == ("SO IT IS", "stop", "", "")
        assert reply.model

    def test_each_of_many_gets_its_own(self) -> None:
        texts = [f"number {i}" for i in range(20)]
        assert [reply.text for reply in self.asked(self.echo, *map(prompt, texts))] == [t.upper() for t in texts]

    def test_any_text_comes_back_as_it_is(self) -> None:
        for text in ('Ä\u2028\0 \\ " \n\t é \N{GRINNING FACE} \ufeff', "A" * 100_000, '{"TEXT": null}', "[KEY]"):
            (reply,) = self.asked(self.echo, prompt(text))
            assert reply.text == text.upper()

    def test_what_it_took_is_counted(self) -> None:
        short, long = self.asked(self.echo, prompt("few"), prompt("words " * 1000))
        assert min(short.usage.tokens_in, short.usage.tokens_out) > 0
        assert long.usage.tokens_in > short.usage.tokens_in
        assert long.usage.tokens_out > short.usage.tokens_out
        assert short.usage.seconds >= 0
        assert short.usage.usd is None or short.usage.usd >= 0

    def test_a_reply_that_has_to_satisfy_a_schema_is_text_like_any_other(self) -> None:
        schema: dict[str, object] = {"type": "object", "properties": {"A": {"type": "integer"}}, "required": ["A"]}
        (reply,) = self.asked(self.echo, prompt('{"A": 1}', schema=schema))
        assert reply.text == '{"A": 1}'

    def test_no_reply_says_why(self) -> None:
        (reply,) = self.asked(self.silent, prompt("anybody?"))
        assert reply.text is None
        assert reply.problem
        assert "\n" not in reply.problem
        assert reply.trouble in ("", "outage", "fatal")

    def test_nothing_is_raised_whatever_is_asked(self) -> None:
        odd = [Prompt("nobody", ()), Prompt("", (Message("stranger", ""),)), prompt("")]
        for reply in self.asked(self.echo, *odd, prompt("x", schema={"$ref": "#/nowhere"})):
            assert reply.text is not None or reply.problem

    def test_who_is_cancelled_ends_at_once(self) -> None:
        async def story(model: Model) -> float:
            asking = asyncio.create_task(model.complete(prompt("take your time")))
            await asyncio.sleep(0.3)
            assert not asking.done()
            begun = time.monotonic()
            asking.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled()
            return time.monotonic() - begun

        assert self.alone(self.slow, story) < 1
