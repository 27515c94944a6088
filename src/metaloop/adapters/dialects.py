"""The two ways to speak to a provider: a prompt becomes the body of a request, and bytes become an answer. Pure.

What comes in is not trusted: what has the wrong type is unreadable where the answer hangs on it, and nothing where it
does not. What a provider adds to its replies (blocks of thought, kinds that are not known yet) is passed over.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from metaloop.flow import Message, Prompt
from metaloop.terms import ModelSpec

MAX_TOKENS = 8192
"""What is asked of Anthropic, which has to be told a number, where `max_tokens` is None."""

Body: TypeAlias = dict[str, Any]


class Answer(msgspec.Struct, frozen=True):
    """What a provider said: `text` of all its text blocks, or `refusal`: why it will not, which then is not empty."""

    text: str
    finish: str
    model: str
    tokens_in: int
    tokens_out: int
    refusal: str = ""


class Unreadable(Exception):
    """No answer in these bytes; the message says what is there instead."""


class Dialect(Protocol):
    """One API. `optional`: parameters that can be done without, by name, each with the words a complaint may use; the
    last one holds the schema. `home`, `models`: where it is, and what is added to that for the list of its models.
    """

    home: str
    models: str
    optional: dict[str, tuple[str, ...]]

    def body(self, spec: ModelSpec, prompt: Prompt) -> Body:
        """The request. What the spec leaves open is not in it."""
        ...

    def without(self, body: Body, name: str) -> Body:
        """The request, less one that is `optional`; or less its schema's `bounds`."""
        ...

    def read(self, data: bytes) -> Answer:
        """The answer in a body. Raises Unreadable."""
        ...


# ---- OpenAI, and the many that speak as it does ----------------------------------------------------------------------


class _Block(msgspec.Struct):
    type: object = ""
    text: object = None


class _Said(msgspec.Struct):
    content: str | list[_Block] | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    message: _Said
    finish_reason: object = None


class _Chat(msgspec.Struct):
    choices: list[_Choice]
    model: object = ""
    usage: object = None


class Chat:
    """`/chat/completions`."""

    home = "https://api.openai.com/v1"
    models = "/models"
    optional = {
        "temperature": ("temperature",),
        "max_tokens": ("max_tokens",),  # by its new name: a limit on what is paid for is not waived
        "response_format": ("response_format", "json_schema"),
    }

    def body(self, spec: ModelSpec, prompt: Prompt) -> Body:
        body: Body = {"model": spec.model, "messages": [_message(m.role, m.text) for m in prompt.messages]}
        if spec.temperature is not None:
            body["temperature"] = spec.temperature
        if spec.max_tokens is not None:
            body["max_tokens"] = spec.max_tokens
        if prompt.schema is not None:
            strict = {"strict": True} if _closed(prompt.schema) else {}
            form = {"name": "reply", "schema": prompt.schema, **strict}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        return body

    def without(self, body: Body, name: str) -> Body:
        if name == "bounds":
            return {key: _unbounded(value) for key, value in body.items()}
        less = {key: value for key, value in body.items() if key != name}
        return {**less, "max_completion_tokens": body[name]} if name == "max_tokens" else less

    def read(self, data: bytes) -> Answer:
        chat = _decoded(data, _Chat)
        if not chat.choices:
            raise Unreadable("a reply without a choice")
        first = chat.choices[0]
        text = first.message.content if isinstance(first.message.content, str) else _joined(first.message.content or [])
        finish = _word(first.finish_reason) or "stop"
        tokens = _count(chat.usage, "prompt_tokens"), _count(chat.usage, "completion_tokens")
        return Answer(text, finish, _word(chat.model), *tokens, first.message.refusal or "")


def _closed(schema: object) -> bool:
    """Whether OpenAI can hold a reply strictly to this schema: every object has all its properties, and no others."""
    if isinstance(schema, list):
        return all(map(_closed, schema))
    if not isinstance(schema, dict):
        return True
    own = (schema.get("type") != "object" and "properties" not in schema) or (
        schema.get("additionalProperties") is False
        and set(schema.get("required", ())) == set(schema.get("properties", ()))
    )
    return own and all(map(_closed, schema.values()))


# ---- Anthropic -------------------------------------------------------------------------------------------------------


class _Messages(msgspec.Struct):
    content: list[_Block]
    model: object = ""
    stop_reason: object = None
    usage: object = None


class Messages:
    """`/v1/messages`. What the system says comes first, in a field of its own; the rest takes turns."""

    home = "https://api.anthropic.com"
    models = "/v1/models?limit=1000"
    optional = {"temperature": ("temperature",), "output_config": ("output_config", "output_format", "json_schema")}
    finishes = {
        "end_turn": "stop",
        "stop_sequence": "stop",
        "max_tokens": "length",
        "model_context_window_exceeded": "length",
    }

    def body(self, spec: ModelSpec, prompt: Prompt) -> Body:
        system = "\n\n".join(message.text for message in prompt.messages if message.role == "system")
        turns = _turns(message for message in prompt.messages if message.role != "system")
        if not turns:  # there has to be one
            system, turns = "", [_message("user", system)]
        body: Body = {"model": spec.model, "messages": turns, "max_tokens": spec.max_tokens or MAX_TOKENS}
        if system:
            body["system"] = system
        if spec.temperature is not None:
            body["temperature"] = spec.temperature
        if prompt.schema is not None:
            form = {"type": "json_schema", "schema": _unbounded(prompt.schema)}  # bounds are refused here, always
            body["output_config"] = {"format": form}
        return body

    def without(self, body: Body, name: str) -> Body:
        return {key: value for key, value in body.items() if key != name}

    def read(self, data: bytes) -> Answer:
        reply = _decoded(data, _Messages)
        word = _word(reply.stop_reason) or "end_turn"
        text = _joined(reply.content)
        refusal = (text or "the model refused") if word == "refusal" else ""
        read = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        tokens_in = sum(_count(reply.usage, name) for name in read)
        tokens_out = _count(reply.usage, "output_tokens")
        return Answer(text, self.finishes.get(word, word), _word(reply.model), tokens_in, tokens_out, refusal)


def _turns(messages: Iterable[Message]) -> list[Body]:
    """Messages with those of one role that follow each other made one."""
    turns: list[Body] = []
    for message in messages:
        if turns and turns[-1]["role"] == message.role:
            turns[-1]["content"] += "\n\n" + message.text
        else:
            turns.append(_message(message.role, message.text))
    return turns


DIALECTS: Mapping[str, Dialect] = {"openai": Chat(), "anthropic": Messages()}

# ---- both ------------------------------------------------------------------------------------------------------------

T = TypeVar("T")


def complaint(data: bytes) -> tuple[str, str]:
    """What an error says, as (message, the parameter it names); the text as it is where it has no known form."""
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return data.decode(errors="replace"), ""
    error = found.get("error", found) if isinstance(found, dict) else found
    if isinstance(error, dict) and (message := error.get("message") or error.get("detail")):
        return message if isinstance(message, str) else _json(message), _word(error.get("param"))
    return error if isinstance(error, str) else _json(error), ""


BOUNDS = frozenset({"minimum", "maximum"})
"""What a schema says of numbers; many providers hold replies to any schema but one that has these."""


def named(dialect: Dialect, body: Body, data: bytes) -> str:
    """The optional parameter of this request that a complaint is about; empty where it is about something else. Of one
    about a schema that has bounds, these are what is done without first.
    """
    message, param = complaint(data)
    optional = dialect.optional
    sent = [name for name in optional if name in body]
    about = next((name for name in sent if re.split(r"[.\[]", param)[0] == name), "")
    if not about and param in ("", "null"):
        about = next((name for name in sent if _mentions(message, optional[name])), "")
        if not about and _mentions(message, BOUNDS):
            about = next((name for name in sent if name == list(optional)[-1]), "")
    return "bounds" if about == list(optional)[-1] and _unbounded(body) != body else about


def less(dialect: Dialect, body: Body, names: Iterable[str]) -> Body:
    """The request without these, as far as it has them."""
    for name in sorted(names):
        if name in body or name == "bounds":
            body = dialect.without(body, name)
    return body


def _unbounded(schema: object) -> object:
    """A schema, or what has one in it, without bounds of numbers."""
    if isinstance(schema, list):
        return [_unbounded(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    number = schema.get("type") in ("number", "integer")
    return {key: _unbounded(value) for key, value in schema.items() if not (number and key in BOUNDS)}


def _mentions(message: str, words: Iterable[str]) -> bool:
    return any(re.search(rf"(?<![A-Za-z_]){word}(?![A-Za-z_])", message) for word in words)


def _message(role: str, text: str) -> Body:
    return {"role": role, "content": text}


def _decoded(data: bytes, kind: type[T]) -> T:
    try:
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError:
            return msgspec.json.decode(_whole_letters(data), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError) as error:
        said = complaint(data)[0] or "nothing at all"
        raise Unreadable(f"a reply that cannot be read ({error}): {said}") from None


def _whole_letters(data: bytes) -> bytes:
    """JSON in which half a letter (a surrogate without its other) is a question mark: some models write such."""
    if b"\\ud" not in data.lower():
        return data
    return json.dumps(json.loads(data), ensure_ascii=False).encode(errors="replace")


def _joined(blocks: Iterable[_Block]) -> str:
    return "".join(block.text for block in blocks if block.type == "text" and isinstance(block.text, str))


def _word(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(usage: object, name: str) -> int:
    """Tokens that were reported; 0 where that is no number of tokens."""
    value = usage.get(name) if isinstance(usage, dict) else None
    return value if type(value) is int and value >= 0 else 0


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
