"""A model played by hand: an OpenAI-compatible server on the loopback that asks by file and answers with a file.

Each request for a chat completion becomes `0001.ask.md` in a folder, and is answered with what somebody writes into
`0001.reply.md` beside it. Knows HTTP, the files and the cassette; who writes a reply, and how long that takes, is not
its affair. There is no streaming, no image and no tool that is called: what is asked for is text.
"""

import contextlib
import fcntl
import json
import os
import re
import select
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import Literal

import msgspec

from metaloop.adapters.cassettes import record, secretless
from metaloop.events import Reply
from metaloop.flow import Message, Prompt
from metaloop.values import Usage

MOST_BYTES = 4 << 20
"""Bytes of a request, and of a reply, at most."""

MOST_OPEN = 256
"""Asks that are open at once: each holds a thread."""

TICK_S = 0.05
SETTLE_S = 0.3
"""Seconds for which a reply's file has to stay as it is before it is taken to be whole."""

ROLE = "X-Metaloop-Role"
"""The header that says for which role a prompt is; without it, the model's name stands for the role."""

ESTIMATED = "estimated: characters / 4"


# ---- what is asked ---------------------------------------------------------------------------------------------------


class Request(msgspec.Struct, frozen=True):
    """One chat completion that is asked for. `options`: all that was sent beside model, messages and schema."""

    model: str
    prompt: Prompt
    options: dict[str, object]


class Wrong(Exception):
    """A request that is not served: the status of HTTP and what to do instead."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Schema(msgspec.Struct):
    schema: dict[str, object] | None = None


class _Format(msgspec.Struct):
    json_schema: _Schema = msgspec.field(default_factory=_Schema)


class _Body(msgspec.Struct):
    """What has to be right for a request to be understood."""

    model: str
    messages: list[dict[str, object]]
    stream: bool | None = None
    n: int | None = None
    response_format: _Format | None = None


def request(body: bytes, role: str = "") -> Request:
    """A request as it came. Raises Wrong where it cannot be played by hand."""
    try:
        sent = msgspec.json.decode(body, type=dict[str, object])
        known = msgspec.convert(sent, _Body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Wrong(400, f"expected a request for a chat completion, found none: {error}") from error
    if known.stream:
        raise Wrong(400, 'streaming is not played by hand: send "stream": false, or leave it out')
    if known.n not in (None, 1):
        raise Wrong(400, f"one reply is written for an ask: expected n = 1, found {known.n}")
    if not known.messages:
        raise Wrong(400, "expected messages, found none")
    schema = known.response_format.json_schema.schema if known.response_format else None
    prompt = Prompt(role or known.model, tuple(map(_message, known.messages)), schema)
    told = {"model", "messages"} | ({"response_format"} if schema is not None else set())
    return Request(known.model, prompt, {key: value for key, value in sent.items() if key not in told})


def _message(sent: dict[str, object]) -> Message:
    """A message as text; what it has beside role and content follows as JSON."""
    role, content = sent.get("role"), sent.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    texts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None for part in parts]
    if not isinstance(role, str) or not all(isinstance(text, str) for text in texts):
        raise Wrong(400, f"expected messages with a role and text, found {json.dumps(sent)[:200]}")
    rest = {key: value for key, value in sent.items() if key not in ("role", "content") and value is not None}
    return Message(role, "".join(map(str, texts)) + (f"\n{json.dumps(rest)}" if rest else ""))


# ---- the page that somebody reads ------------------------------------------------------------------------------------

PAGE = """# Ask {number}

The model {model} is asked, in the role {role}.

To answer, write `{number}.reply.md` beside this file, best under another name and then renamed. Its text is the reply,
as it is. A first line `finish: length` (the reply was cut off), `finish: refusal` or `finish: stop` is taken off and
told apart; an empty file is no reply, unless it has such a line. All that was sent stands between fences.
"""


def page(number: str, asked: Request) -> str:
    """An ask as Markdown, in which nothing that was sent can be taken for what we say."""
    prompt = asked.prompt
    parts = [PAGE.format(number=number, model=_named(asked.model), role=_named(prompt.role))]
    if asked.options:
        parts.append("## Parameters\n\n" + _fenced(json.dumps(asked.options, indent=2, ensure_ascii=False), "json"))
    if prompt.schema is not None:
        parts.append(
            "## Response schema\n\n" + _fenced(json.dumps(prompt.schema, indent=2, ensure_ascii=False), "json")
        )
    for place, message in enumerate(prompt.messages, 1):
        title = f"## Message {place} of {len(prompt.messages)}, from {_named(message.role)}\n\n"
        parts.append(title + _fenced(message.text, "text"))
    return "\n".join(parts)


_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def _fenced(text: str, kind: str) -> str:
    """`text` between fences longer than any in it; what would move a cursor is written as an escape, and said to be."""
    shown, hidden = _HIDDEN.subn(lambda char: f"\\u{ord(char[0]):04x}", text)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", shown)), default=0))
    note = f"Characters that are not seen, written as escapes: {hidden}\n\n" if hidden else ""
    return f"{note}{fence}{kind}\n{shown}\n{fence}\n"


def _named(name: str) -> str:
    """A name that was sent, on one line, cut, and in quotes."""
    return "`" + json.dumps(name[:80]).replace("`", "\\u0060") + "`"


# ---- what is answered ------------------------------------------------------------------------------------------------

_FINISH = re.compile(r"\ufeff?finish:[ \t]*(stop|length|refusal)[ \t]*(?:\r?\n|\Z)")


def answer(data: bytes, asked: Request, seconds: float) -> Reply | None:
    """The reply in a file that somebody wrote; None while it is empty. One over `MOST_BYTES` is cut off for length."""
    text = data[:MOST_BYTES].decode("utf-8", "replace")
    if not text:
        return None
    said = _FINISH.match(text)
    finish = "length" if len(data) > MOST_BYTES else said[1] if said else "stop"
    text = text[said.end() :] if said else text
    usage = Usage(seconds, sum(len(message.text) for message in asked.prompt.messages) // 4, len(text) // 4)
    return Reply(text, finish, asked.model, usage)


def completion(number: str, reply: Reply, now: float) -> dict[str, object]:
    """A reply as OpenAI's API has it. A refusal is no content, and a filter is said to have ended it."""
    refused = reply.finish == "refusal"
    message = {
        "role": "assistant",
        "content": None if refused else reply.text,
        "refusal": reply.text if refused else None,
    }
    finish = "content_filter" if refused else reply.finish
    usage = reply.usage
    return {
        "id": f"by-hand-{number}",
        "object": "chat.completion",
        "created": int(now),
        "model": reply.model,
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
        "usage": {
            "prompt_tokens": usage.tokens_in,
            "completion_tokens": usage.tokens_out,
            "total_tokens": usage.tokens_in + usage.tokens_out,
            "note": ESTIMATED,
        },
    }


# ---- the folder ------------------------------------------------------------------------------------------------------


class Desk:
    """The folder in which asks lie and replies are laid. `tell` is given a line for whoever sits there.

    A number is used once, also where another server uses the folder; replies to earlier servers answer nothing.
    """

    def __init__(self, folder: Path, tell: Callable[[str], None], cassette: Path | None = None) -> None:
        self.folder, self._tell, self._cassette = folder, tell, cassette
        self._redact = secretless(os.environ)
        self._lock = threading.Lock()
        self._open: set[str] = set()

    def open(self) -> list[str]:
        """The numbers of the asks that wait for a reply."""
        with self._lock:
            return sorted(self._open)

    def ask(self, asked: Request) -> str:
        """Lays an ask on the desk, whole; its number. Raises Wrong where too many lie there."""
        with self._lock:
            if len(self._open) >= MOST_OPEN:
                raise Wrong(503, f"{MOST_OPEN} asks are open already; answer some")
            try:
                number = self._lay(asked)
            except OSError as error:
                raise Wrong(500, f"the ask could not be written: {error}") from error
            self._open.add(number)
        who = f"{_named(asked.prompt.role)}, {_named(asked.model)}"
        self._tell(f"ask {number} ({who}): read {self._path(number, 'ask')}, write {self._path(number, 'reply')}")
        return number

    def close(self, number: str, asked: Request, reply: Reply) -> None:
        """The ask is answered: the exchange is on the cassette before the reply is used; one that does not get there is
        told, and used all the same.
        """
        done = f"answered after {reply.usage.seconds:.0f} s"
        with self._lock:
            self._open.discard(number)
            try:
                if self._cassette is not None:
                    record(self._cassette, asked.prompt, reply, self._redact)
            except OSError as error:
                done += f", and not recorded: {error}"
        self._tell(f"ask {number}: {done}")

    def drop(self, number: str, why: str) -> None:
        """Nobody waits for this reply any more: the ask is renamed, once."""
        with self._lock:
            if number not in self._open:
                return
            self._open.remove(number)
            with contextlib.suppress(OSError):
                self._path(number, "ask").rename(self._path(number, "gone"))
        self._tell(f"ask {number}: {why}; it is now {self._path(number, 'gone')}")

    def waiting(self, number: str) -> "Waiting":
        return Waiting(self._path(number, "reply"))

    def _path(self, number: str, kind: Literal["ask", "reply", "gone"]) -> Path:
        return self.folder / f"{number}.{kind}.md"

    def _lay(self, asked: Request) -> str:
        taken = (path.name.partition(".")[0] for path in self.folder.glob("*.md"))
        next_one = 1 + max((int(name) for name in taken if name.isdecimal()), default=0)
        draft = self.folder / f".{os.getpid()}-{threading.get_ident()}.draft"
        while True:
            number = f"{next_one:04}"
            draft.write_text(page(number, asked), encoding="utf-8")
            try:
                os.link(draft, self._path(number, "ask"))  # whole, and never over another's
                return number
            except FileExistsError:
                next_one += 1
            finally:
                draft.unlink()


class Waiting:
    """A file that is to appear, whole: by rename, or because nobody writes it and it stays as it is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._since = 0.0

    def look(self, now: float) -> bytes | None:
        """What stands in the file, `MOST_BYTES` and one at most; None while it is not there, not whole, or no file."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            at = os.fstat(fd)
            seen = (at.st_ino, at.st_size, at.st_mtime_ns)
            if seen != self._seen:
                self._seen, self._since = seen, now
            if not stat.S_ISREG(at.st_mode) or now - self._since < SETTLE_S or _written(fd):
                return None
            return os.read(fd, MOST_BYTES + 1)
        finally:
            os.close(fd)


def _written(fd: int) -> bool:
    """Whether somebody has the file open to write it, as far as can be told: only of one's own files, and not on all
    file systems.

    Asked by way of a lease, which is not given on a file that is open for writing. It is handed back at once; whoever
    opens the file in between makes the system send us SIGURG, which does nothing (by default it would be deadly SIGIO).
    """
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


# ---- the server ------------------------------------------------------------------------------------------------------


class Server(ThreadingHTTPServer):
    """Serves on 127.0.0.1 alone, a thread a connection; none of them keeps the process from ending."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, desk: Desk, port: int = 0) -> None:
        self.desk, self.closing = desk, threading.Event()
        super().__init__(("127.0.0.1", port), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def server_bind(self) -> None:
        """Without asking a name server who we are, as the library would."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def server_close(self) -> None:
        """At once: who still waits hears nothing more, and the asks are renamed."""
        self.closing.set()
        super().server_close()
        for number in self.desk.open():
            self.desk.drop(number, "the server was ended")

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is gone is no error of ours."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "metaloop", ""
    timeout = 60
    server: Server

    def do_GET(self) -> None:
        self._serve(self._get)

    def do_POST(self) -> None:
        self._serve(self._post)

    def _serve(self, route: Callable[[str], dict[str, object] | None]) -> None:
        try:
            self._from_here()
            said = route(self.path.partition("?")[0])
        except Wrong as wrong:
            kind = "invalid_request_error" if wrong.status < 500 else "server_error"
            self.close_connection = True
            self._send(wrong.status, {"error": {"message": str(wrong), "type": kind, "param": None, "code": None}})
            self._linger()
            return
        if said is None:
            self.close_connection = True
        else:
            self._send(200, said)

    def _from_here(self) -> None:
        """A page in a browser may not ask through the user's own machine."""
        host = self.headers.get("Host", "127.0.0.1").rpartition(":")[0] or self.headers.get("Host", "127.0.0.1")
        if host not in ("127.0.0.1", "localhost") or self.headers.get("Origin"):
            raise Wrong(
                403, f"expected a program on this machine, found a request for host {host[:80]!r} or of a web page"
            )

    def _get(self, path: str) -> dict[str, object]:
        if path == "/health":
            return {"status": "ok", "open": self.server.desk.open()}
        if path == "/v1/models":
            model = {"id": "by-hand", "object": "model", "created": 0, "owned_by": "by-hand"}
            return {"object": "list", "data": [model]}
        raise Wrong(404, "expected GET /v1/models, GET /health or POST /v1/chat/completions")

    def _post(self, path: str) -> dict[str, object] | None:
        if path != "/v1/chat/completions":
            raise Wrong(404, "expected POST /v1/chat/completions")
        asked = request(self._body(), self.headers.get(ROLE, ""))
        number, began = self.server.desk.ask(asked), time.monotonic()
        waiting = self.server.desk.waiting(number)
        while not self.server.closing.wait(TICK_S):
            now = time.monotonic()
            if (data := waiting.look(now)) is not None and (reply := answer(data, asked, now - began)) is not None:
                self.server.desk.close(number, asked, reply)
                return completion(number, reply, time.time())
            if self._hung_up():
                self.server.desk.drop(number, "the client hung up")
                return None
        return None

    def _body(self) -> bytes:
        body = self.rfile.read(length := self._length())
        if len(body) < length:
            raise ConnectionAbortedError
        return body

    def _length(self) -> int:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()):
            raise Wrong(411, "expected a Content-Length")
        if len(length) > 15 or int(length) > MOST_BYTES:
            raise Wrong(413, f"expected a request of at most {MOST_BYTES} bytes, found {length[:15]}")
        return int(length)

    def _hung_up(self) -> bool:
        poll = select.poll()
        poll.register(self.connection, select.POLLIN)
        try:
            return bool(poll.poll(0)) and self.connection.recv(1, socket.MSG_PEEK) == b""
        except OSError:
            return True

    def _send(self, status: int, value: dict[str, object]) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def _linger(self) -> None:
        """Takes in what the client still sends, for a while: a connection that is reset loses the answer with it."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            self.connection.settimeout(0.5)
            ends = time.monotonic() + 5
            while time.monotonic() < ends and self.connection.recv(1 << 16):
                pass

    def handle_expect_100(self) -> bool:
        """What is too long is refused before it is sent: by `_body`, in words."""
        try:
            self._length()
        except Wrong:
            return True
        return super().handle_expect_100()

    def log_message(self, format: str, *args: object) -> None:
        """Requests are told by the desk."""
