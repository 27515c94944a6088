"""Models over the SDKs of OpenAI and Anthropic: when it is worth asking again, how long, and what a reply comes to.

Knows deadlines, pauses, who may try while nobody answers, and keys. How a prompt is put and an answer read is told in
`dialects`, what leaves this machine in `wire`. Replies are handed on as they are: others see whether they make sense.
"""

import asyncio
import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from random import Random
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from metaloop import __version__
from metaloop.adapters.dialects import DIALECTS, Answer, Body, Unreadable, complaint, less, named
from metaloop.costs import worst
from metaloop.events import Reply
from metaloop.flow import Prompt
from metaloop.terms import ModelSpec
from metaloop.values import Usage

if TYPE_CHECKING:
    import httpx2

FIRST_S, LONGEST_S = 0.5, 60.0
"""Seconds: the first pause between two attempts is up to the one, later ones double, and none is above the other."""
MOST_TEXT = 256 << 10
"""Bytes of a reply's text at most."""
MOST_BODY = 4 << 20
"""Bytes that are read of a response at most: the text, escaped, and whatever a provider says beside it."""
MOST_PROBLEM = 500
"""Characters of a problem at most."""
SHORTEST_KEY = 8
"""Characters of a key that is worth hiding: servers without keys are given an x or a dummy, which is in every text."""

Told: TypeAlias = Callable[[str, str], None]


class Response(msgspec.Struct, frozen=True):
    """What came over the wire, whatever its status."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class Again(msgspec.Struct, frozen=True):
    """An attempt that may go better another time; not before `after` seconds, where the provider named some.

    `unheard`: it was sent, and no whole answer came: nobody knows what the provider charges for it.
    """

    why: str = ""
    after: float | None = None
    unheard: bool = False


class Never(msgspec.Struct, frozen=True):
    """An attempt that would go the same way every time. `oversize`: there was an answer, and it is too long."""

    why: str
    oversize: bool = False


Send: TypeAlias = Callable[[Body], Awaitable[Response | Again | Never]]


class _Unusable(Exception):
    """A spec that nothing can be asked with."""


@dataclass
class _Line:
    """The way to one provider, as all asks know it. While it is `down`, which says why, one ask at a time may try it.

    `rest`: when it may be tried next. `told`: roles whose people know that it is down.
    """

    down: str = ""
    tries: int = 0
    rest: float = 0.0
    told: set[str] = field(default_factory=set)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    back: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class _Ask:
    """One prompt on its way, and what became of its attempts so far. `late`: that its deadline is over, in words."""

    role: str
    spec: ModelSpec
    body: Body
    send: Send
    line: _Line
    worst: Usage
    attempts: int = 0
    sending: bool = False
    seconds: float = 0.0
    tokens_in: int = 0
    tokens_out: int = 0
    last: Again = field(default_factory=Again)
    late: str = ""

    def usage(self) -> Usage:
        usd = self.spec.usd(self.tokens_in, self.tokens_out)
        return Usage(self.seconds, self.tokens_in, self.tokens_out, usd)


class Models:
    """`roles.Model`: who plays which role is in `specs`, by role; `default` plays what is not.

    `keys` holds the values of the variables that `ModelSpec.key_env` names. A key is sent to the host of its spec
    alone, and is in nothing that comes from here. Attempts that may go better are made again until the deadline, which
    is over all of them. Then the reply says so; or, where `patient`, the ask goes on until somebody answers. Of both,
    `told(role, why)` hears, and `told(role, "")` once somebody answers again. `noted(role, what)` hears what a provider
    refuses and is done without.

    Beside what a provider says, `finish` is `empty` or `oversize`. Tokens are counted over all attempts that were
    answered, cached ones at full price. `capped`: a cap has to hold, so an attempt that was sent and never answered is
    an outage at once, however patient, and is charged at its worst case. One instance belongs to one event loop.
    """

    def __init__(
        self,
        specs: Mapping[str, ModelSpec],
        keys: Mapping[str, str],
        *,
        patient: bool,
        told: Told,
        noted: Told,
        dice: Random,
        capped: bool = False,
    ) -> None:
        self._specs, self._patient, self._told, self._dice = dict(specs), patient, told, dice
        self._capped, self._noted = capped, noted
        self._keys = {name: value.strip() for name, value in keys.items()}
        self._lines: defaultdict[tuple[str, str], _Line] = defaultdict(_Line)
        self._without: defaultdict[tuple[ModelSpec, str], set[str]] = defaultdict(set)
        self._connected: dict[tuple[str, str, str], Send] = {}
        self._open = contextlib.AsyncExitStack()

    async def complete(self, prompt: Prompt) -> Reply:
        """The reply, or one that says why there is none. Raises nothing but CancelledError."""
        try:
            reply = await self._complete(prompt)
        except _Unusable as error:
            reply = Reply(None, problem=str(error), trouble="fatal")
        except Exception as error:  # the edge: what a library raises ends this ask, and not the night
            reply = Reply(None, problem=f"{type(error).__name__}: {error}", trouble="fatal")
        return self._sealed(reply)

    async def close(self) -> None:
        """Lets go of all connections."""
        self._connected.clear()
        await self._open.aclose()

    async def _complete(self, prompt: Prompt) -> Reply:
        ask = self._ask(prompt)
        while True:
            reply = await (self._probe(ask) if ask.line.down else self._try(ask))
            if reply is not None:
                return replace(reply, usage=ask.usage())
            if not self._patient:
                self._tell_down(ask)
                problem = f"{where(ask.spec)}: {ask.late or ask.line.down or ask.last.why}"
                return Reply(None, usage=ask.usage(), problem=problem, trouble="outage")

    def _ask(self, prompt: Prompt) -> _Ask:
        spec = self._specs.get(prompt.role) or self._specs.get("default")
        if spec is None:
            raise _Unusable(f"expected a model for the role {prompt.role!r} or a default one, found neither")
        line = self._lines[spec.provider, spec.base_url]
        body = DIALECTS[spec.provider].body(spec, prompt)
        return _Ask(prompt.role, spec, body, self._send(spec), line, worst(prompt, spec))

    def _send(self, spec: ModelSpec) -> Send:
        """What sends a request of this spec; asks with the same key to the same place share their connections."""
        place = (spec.provider, spec.base_url, spec.key_env)
        if place not in self._connected:
            send, close = _connect(spec, self._key(spec))
            self._connected[place] = send
            self._open.push_async_callback(close)
        return self._connected[place]

    def _key(self, spec: ModelSpec) -> str:
        """The key that goes with this spec; empty where it names none."""
        key = self._keys.get(spec.key_env, "")
        if spec.key_env and not key:
            raise _Unusable(f"{where(spec)}: expected a key in {spec.key_env}, found none")
        if not (key.isascii() and key.isprintable()) or " " in key:
            raise _Unusable(f"{where(spec)}: expected a key in {spec.key_env}, found what no header can carry")
        return key

    # ---- again and again ---------------------------------------------------------------------------------------------

    async def _try(self, ask: _Ask, *, probe: bool = False) -> Reply | None:
        """Attempts until one settles it; a probe that finds the line still down makes one. None: it has to wait."""
        line, spec = ask.line, ask.spec
        try:
            async with asyncio.timeout(spec.deadline_s):
                while probe or not line.down:
                    if (reply := self._settled(ask, await self._attempt(ask))) is not None:
                        return reply
                    if probe and line.down:
                        self._went_down(ask, ask.last.why)
                        return None
                    probe = False
                    await asyncio.sleep(self._pause(ask.attempts - 1, ask.last.after))
                return None
        except TimeoutError:
            ask.late = f"no answer in {spec.deadline_s:g} s" + (f"; {ask.last.why}" if ask.last.why else "")
            if probe or not line.down:
                self._went_down(ask, ask.late)
            return self._charged(ask, ask.late) if ask.sending else None

    async def _probe(self, ask: _Ask) -> Reply | None:
        """An attempt while the line is down, when it is this ask's turn. None: it has to wait, or need not any more."""
        line = ask.line
        if not self._patient and (line.turn.locked() or time.monotonic() < line.rest):
            return None
        self._tell_down(ask)
        async with line.turn:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(line.rest - time.monotonic()):
                    await line.back.wait()
            return await self._try(ask, probe=True) if line.down else None

    def _settled(self, ask: _Ask, outcome: Answer | Again | Never) -> Reply | None:
        """The reply that an attempt leads to; None where another one is needed."""
        if isinstance(outcome, Again):
            ask.last = outcome
            return self._charged(ask, outcome.why) if outcome.unheard else None
        self._came_back(ask.line)
        if isinstance(outcome, Never):
            return _unanswered(ask, outcome)
        uncounted = self._capped and not outcome.tokens_in  # a provider that does not say what it took
        ask.tokens_in += ask.worst.tokens_in if uncounted else outcome.tokens_in
        ask.tokens_out += ask.worst.tokens_out if uncounted else outcome.tokens_out
        return _answered(ask, outcome)

    def _charged(self, ask: _Ask, why: str) -> Reply | None:
        """The end of an ask that may have been paid for in vain, where a cap has to hold; None elsewhere."""
        if not self._capped:
            return None
        ask.tokens_in += ask.worst.tokens_in
        ask.tokens_out += ask.worst.tokens_out
        return Reply(None, problem=f"{where(ask.spec)}: {why}; charged at its worst case", trouble="outage")

    def _pause(self, tries: int, after: float | None) -> float:
        """Seconds until the next attempt: what the provider asks for, or at most twice as long as the last time."""
        if after is not None:
            return min(after + self._dice.uniform(0, FIRST_S), LONGEST_S)
        return self._dice.uniform(0, min(FIRST_S * 2.0 ** min(tries, 20), LONGEST_S))

    # ---- down, and back ----------------------------------------------------------------------------------------------

    def _went_down(self, ask: _Ask, why: str) -> None:
        line = ask.line
        line.down, line.rest = why, time.monotonic() + self._pause(line.tries, ask.last.after)
        line.tries += 1
        line.back.clear()

    def _tell_down(self, ask: _Ask) -> None:
        if ask.line.down and ask.role not in ask.line.told:
            ask.line.told.add(ask.role)
            until = "asked again until it answers" if self._patient else "tried again now and then"
            self._say(ask.role, f"{where(ask.spec)}: {ask.line.down}; {until}")

    def _came_back(self, line: _Line) -> None:
        told, line.told = line.told, set()
        line.down, line.tries = "", 0
        line.back.set()
        for role in sorted(told):
            self._say(role, "")

    # ---- one attempt -------------------------------------------------------------------------------------------------

    async def _attempt(self, ask: _Ask) -> Answer | Again | Never:
        """One answer asked for; put otherwise and asked for anew as often as the provider refuses a part of it."""
        begun = time.monotonic()
        ask.attempts += 1
        try:
            while isinstance(outcome := await self._request(ask), str):
                self._do_without(ask, outcome)
            return outcome
        finally:
            ask.seconds += time.monotonic() - begun

    async def _request(self, ask: _Ask) -> Answer | Again | Never | str:
        """What came of one request; a string is the name of a parameter that is refused and can be done without."""
        dialect = DIALECTS[ask.spec.provider]
        body = less(dialect, ask.body, self._without[ask.spec, ask.role])
        ask.sending = True
        response = await ask.send(body)
        ask.sending = False
        if not isinstance(response, Response):
            return response
        if response.status in (400, 422) and (name := named(dialect, body, response.data)):
            return name
        if response.status >= 300:
            return _refused(response)
        try:
            return dialect.read(response.data)
        except Unreadable as error:
            return Again(str(error), unheard=True)

    def _do_without(self, ask: _Ask, name: str) -> None:
        known = self._without[ask.spec, ask.role]
        if name not in known:
            known.add(name)
            what = "bounds of numbers in a schema" if name == "bounds" else name
            note = f"{where(ask.spec)}: refuses {what}, and is asked without from now on"
            self._noted(ask.role, self._line(note))

    # ---- what is said, without a key ---------------------------------------------------------------------------------

    def _sealed(self, reply: Reply) -> Reply:
        text = None if reply.text is None else self._hidden(reply.text)
        finish, model, problem = map(self._line, (reply.finish, reply.model, reply.problem))
        return replace(reply, text=text, finish=finish, model=model, problem=problem)

    def _say(self, role: str, why: str) -> None:
        self._told(role, self._line(why))

    def _line(self, text: str) -> str:
        """Text as one short line without a key. It is cut last, so that no half of a key is left over."""
        line = " ".join(self._hidden(text).split())
        return line if len(line) <= MOST_PROBLEM else line[: MOST_PROBLEM - 4] + " ..."

    def _hidden(self, text: str) -> str:
        """The one place where keys are taken out of what others said."""
        for key in sorted(self._keys.values(), key=len, reverse=True):
            if len(key) >= SHORTEST_KEY:
                text = text.replace(key, "[key]")
        return text


# ---- what it came to -------------------------------------------------------------------------------------------------


def _answered(ask: _Ask, answer: Answer) -> Reply:
    who, model = where(ask.spec), answer.model or ask.spec.model
    if answer.refusal:
        return Reply(None, "refusal", model, problem=f"{who}: refused: {answer.refusal}")
    if not answer.text.strip():
        return Reply(None, "empty", model, problem=f"{who}: an empty reply ({answer.finish})")
    if (size := len(answer.text.encode(errors="replace"))) > MOST_TEXT:
        return Reply(None, "oversize", model, problem=f"{who}: a reply of {size} bytes, more than {MOST_TEXT}")
    return Reply(answer.text.encode(errors="replace").decode(), answer.finish, model)  # no half of a letter


def _unanswered(ask: _Ask, outcome: Never) -> Reply:
    problem = f"{where(ask.spec)}: {outcome.why}"
    if outcome.oversize:
        return Reply(None, "oversize", ask.spec.model, problem=problem)
    return Reply(None, problem=problem, trouble="fatal")


def where(spec: ModelSpec) -> str:
    """Who was asked, for messages. Of an address the host and no more: there may be secrets in the rest."""
    return f"{spec.model} at {urlsplit(address(spec)).netloc.rpartition('@')[2]}"


def _refused(response: Response) -> Again | Never:
    """What a response without success means. Too early, too much, too busy: again. The rest is said once."""
    said = complaint(response.data)[0].strip()
    if place := response.headers.get("location", ""):
        said = f"it redirects to {place}, where no key is sent; expected the final address as base_url"
    why = f"{response.status}: {said}" if said else f"{response.status}"
    again = response.status in (408, 409, 429) or response.status >= 500
    return Again(why, _after(response.headers)) if again else Never(why)


def _after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a provider asks to wait: told in milliseconds, in seconds or as a date."""
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        with contextlib.suppress(ValueError):
            if math.isfinite(seconds := float(headers.get(name, "")) * unit):
                return max(seconds, 0.0)
    with contextlib.suppress(ValueError, OverflowError):
        return max(parsedate_to_datetime(headers.get("retry-after", "")).timestamp() - time.time(), 0.0)
    return None


# ---- the SDKs --------------------------------------------------------------------------------------------------------

UNUSED = "the key is put on at the wire"
"""What an SDK gets for a key: it looks in its surroundings for one where it has none."""
EXTRAS = {"openai": "llm", "anthropic": "anthropic"}
HEADERS = {
    "openai": {},
    "anthropic": {"anthropic-version": "2026-10-21"},  # of the API: the one that replies are read in
}


def _connect(spec: ModelSpec, key: str) -> tuple[Send, Callable[[], Awaitable[None]]]:
    """How to send to the place that a spec names, with this key, and how to let go of it."""
    url = address(spec)
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise _Unusable(f"expected a base_url such as http://localhost:8000/v1, found {spec.base_url!r}")
    try:
        from metaloop.adapters import wire

        http = wire.connect(url, headers(spec, key), MOST_BODY)
        return (_openai if spec.provider == "openai" else _anthropic)(url, http), http.aclose
    except ModuleNotFoundError as error:
        extra = EXTRAS[spec.provider]
        raise _Unusable(f"expected the package {error.name!r}; type: pip install 'metaloop[{extra}]'") from None


def _openai(address: str, http: "httpx2.AsyncClient") -> Send:
    import openai

    client = openai.AsyncOpenAI(api_key=UNUSED, base_url=address, http_client=http, max_retries=0)
    create = client.chat.completions.with_raw_response.create

    async def send(body: Body) -> Response | Again | Never:
        try:
            raw = await create(model=body["model"], messages=body["messages"], extra_body=body)
        except openai.APIStatusError as error:
            return _response(error.response)
        except openai.APIConnectionError as error:
            return _lost(error)
        return _response(raw.http_response)

    return send


def _anthropic(address: str, http: "httpx2.AsyncClient") -> Send:
    import anthropic

    client = anthropic.AsyncAnthropic(
        api_key=UNUSED, base_url=address, http_client=http, max_retries=0, open_telemetry=False
    )
    create = client.messages.with_raw_response.create

    async def send(body: Body) -> Response | Again | Never:
        needed = {name: body[name] for name in ("model", "messages", "max_tokens")}
        try:
            raw = await create(**needed, extra_body=body)
        except anthropic.APIStatusError as error:
            return _response(error.response)
        except anthropic.APIConnectionError as error:
            return _lost(error)
        return _response(raw.http_response)

    return send


def _response(found: "httpx2.Response") -> Response:
    return Response(found.status_code, found.headers, found.content)


def _lost(error: Exception) -> Again | Never:
    """What it means that no response came, or not all of one: the SDK's error has the reason behind it."""
    from metaloop.adapters import wire

    cause = error.__cause__ or error
    if isinstance(cause, wire.TooMuch):
        return Never(f"a reply of {cause}", oversize=True)
    why = f"{type(cause).__name__}: {cause}".rstrip(": ")
    if isinstance(cause, wire.Astray):
        return Never(why)
    return Again(why, unheard=not wire.unsent(cause))


def address(spec: ModelSpec) -> str:
    """The base url as the SDK wants it: that of Anthropic adds the /v1 by itself."""
    url = spec.base_url or DIALECTS[spec.provider].home
    return url.rstrip("/").removesuffix("/v1") if spec.provider == "anthropic" else url


def headers(spec: ModelSpec, key: str) -> dict[str, str]:
    """All that is sent beside a body; the key among it, where there is one."""
    told = {"accept": "application/json", "accept-encoding": "identity", "content-type": "application/json"}
    told |= {"user-agent": f"metaloop/{__version__}"} | HEADERS[spec.provider]
    return told | ({"authorization": f"Bearer {key}"} if key else {})


def prices(spec: ModelSpec) -> tuple[float, float] | None:
    """USD for a million tokens in and out: the spec's own, or those of a table that comes with a package, read offline.

    None where they are not known, and where that package is not there.
    """
    if spec.usd_in is not None and spec.usd_out is not None:
        return spec.usd_in, spec.usd_out
    place = {"provider_api_url": spec.base_url} if spec.base_url else {"provider_id": spec.provider}
    return _tabled(spec.model, **place)


def listed(model: str) -> tuple[float, float] | None:
    """The same by a name alone, at the model's own provider; `VENDOR/NAME` as at OpenRouter."""
    return _tabled(model, provider_id="openrouter") if "/" in model else _tabled(model)


def _tabled(model: str, **place: str) -> tuple[float, float] | None:
    try:
        from genai_prices import Usage as Tokens
        from genai_prices import calc_price
    except ModuleNotFoundError:
        return None
    try:
        # a thousand tokens: some prices rise with the length of the prompt
        price = calc_price(Tokens(input_tokens=1000, output_tokens=1000), model, **place)
    except LookupError:
        return None
    return float(price.input_price) * 1000, float(price.output_price) * 1000
