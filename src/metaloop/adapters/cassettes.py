"""Exchanges with models as JSON lines, one a line: the prompt's digest, its role and messages, and the reply.

Knows the file and what may not stand in it. Who plays one is `testing.RecordedModel`.
"""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from metaloop.errors import UsageError
from metaloop.events import Reply
from metaloop.flow import Message, Prompt

_KEYS = re.compile(
    r"(?:sk|pk|rk)-[\w-]{16,}|gh[pousr]_\w{20,}|hf_\w{20,}|xox[a-z]-[\w-]{10,}|AKIA\w{16}|AIza[\w-]{30,}"
    r"|(?<=Bearer )[\w.~+/-]{8,}=*"
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD", re.IGNORECASE)


class Take(msgspec.Struct, frozen=True):
    """One exchange. `prompt` is the digest of the prompt as it was asked; the texts are as they were redacted."""

    prompt: str
    role: str
    messages: tuple[Message, ...]
    reply: Reply


def record(path: Path, prompt: Prompt, reply: Reply, redact: Callable[[str], str]) -> None:
    """Appends one exchange, whole, in a single write; a line that somebody left unfinished stays a line of its own."""
    messages = tuple(Message(message.role, redact(message.text)) for message in prompt.messages)
    text = None if reply.text is None else redact(reply.text)
    take = Take(prompt.digest(), prompt.role, messages, replace(reply, text=text, problem=redact(reply.problem)))
    with path.open("a+b", buffering=0) as file:
        end = file.seek(0, os.SEEK_END)
        torn = end > 0 and os.pread(file.fileno(), 1, end - 1) != b"\n"
        file.write(b"\n" * torn + msgspec.json.encode(take) + b"\n")


def takes(path: Path) -> list[Take]:
    """All exchanges of a cassette, in order. Raises UsageError where there is no cassette, or a line is no exchange."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UsageError(f"expected a cassette, found {error.strerror} for {str(path)!r}; record one first") from error
    return [_take(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _take(path: Path, number: int, line: bytes) -> Take:
    try:
        return msgspec.json.decode(line, type=Take)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}:{number}: expected an exchange, found a line that is none: {error}") from error


def secretless(environ: Mapping[str, str]) -> Callable[[str], str]:
    """A `redact` that blots out what looks like a key, and the value of every variable that is named like one.

    A secret of another shape, in no such variable, is not seen.
    """
    known = {value for name, value in environ.items() if _SECRET.search(name) and len(value) >= 8}
    secrets = sorted(known, key=len, reverse=True)

    def redact(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, "REDACTED")
        return _KEYS.sub("REDACTED", text)

    return redact
