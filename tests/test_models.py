"""Models over the SDKs, through the wire: what is sent, when it is sent again, and what a reply comes to."""

import asyncio
import contextlib
import itertools
import json
import re
import subprocess
import sys
import time
from email.utils import formatdate
from random import Random

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from metaloop.adapters import models, wire
from metaloop.adapters.dialects import DIALECTS, MAX_TOKENS, Answer, Unreadable, complaint, named
from metaloop.adapters.models import Models, prices
from metaloop.events import Reply
from metaloop.flow import Message, Prompt
from metaloop.terms import ModelSpec
from metaloop.testing import FakeProvider, ModelConformance, ScriptedModel
from metaloop.testing.providers import REFUSAL, THOUGHT, prompt, tokens

KEY = "sk-test-0123456789abcdef"
SDKS = pytest.mark.parametrize("sdk", ["openai", "anthropic"])
AGAIN = ["408", "409", "429", "500", "503", "529", "cut connection", "truncated body", "no body", "html", "wrong types"]
AGAIN += ["error inside", "packed"]
SETTLED = ["400", "401", "403", "404", "422", "307:http://127.0.0.1:9/v1"]
LAX = ["truncated reply", "empty", "only thought", "thinking blocks", "refusal", "wrong usage", "huge"]


WORDS = [
    "choices",
    "message",
    "content",
    "type",
    "text",
    "usage",
    "error",
    "detail",
    "param",
    "stop_reason",
    "temperature",
]


class Dice(Random):
    """Pauses are a share of what they may be; what they may be is noted."""

    def __init__(self, share=0.02):
        super().__init__(0)
        self.share, self.bounds = share, []

    def uniform(self, a, b):
        self.bounds.append(b)
        return a + (b - a) * self.share


class Desk:
    """Asks models of `specs` (by role) and keeps what was told."""

    def __init__(self, specs, patient=False, dice=None, keys=None, capped=False):
        self.heard = []
        self.dice = dice or Dice()
        told = lambda role, why: self.heard.append((role, why))  # noqa: E731
        keys = {"KEY": KEY} if keys is None else keys
        more = {"noted": told, "dice": self.dice, "capped": capped}
        self.models = Models(specs, keys, patient=patient, told=told, **more)

    def run(self, story):
        async def whole():
            try:
                return await story(self)
            finally:
                await self.models.close()

        return asyncio.run(asyncio.wait_for(whole(), 30))

    async def ask(self, text="hello", role="default", **rest):
        return await self.models.complete(prompt(text, role=role, **rest))

    async def told(self, count):
        while len(self.heard) < count:
            await asyncio.sleep(0.01)


def spec(fake, sdk="openai", **rest):
    return ModelSpec(
        **{"model": "m-1", "provider": sdk, "base_url": fake.url, "key_env": "KEY", "deadline_s": 5.0, **rest}
    )


def ask(fake, sdk, *prompts, **rest):
    """The reply to one prompt, or to each in turn."""

    async def story(desk):
        return [await desk.models.complete(each) for each in prompts or [prompt("hello")]]

    replies = Desk({"default": spec(fake, sdk, **rest)}).run(story)
    return replies if len(prompts) > 1 else replies[0]


def sent(sdk, given, **rest):
    """The body that a prompt leads to."""
    with FakeProvider() as fake:
        assert ask(fake, sdk, given, **rest).text == "fine"
        return fake.requests[0].body


@pytest.fixture(scope="module", autouse=True)
def _imported():
    """The SDKs take seconds to import on a busy machine: not within anybody's deadline."""
    with FakeProvider() as fake:
        for sdk in ("openai", "anthropic"):
            ask(fake, sdk, deadline_s=60.0)


# ---- the contract ----------------------------------------------------------------------------------------------------


def shouted(body):
    return body["messages"][-1]["content"].upper() if body["messages"] else "?"


class TestScripted(ModelConformance):
    def echo(self):
        return ScriptedModel(lambda asked: asked.messages[-1].text.upper() if asked.messages else "?")

    def silent(self):
        return ScriptedModel(lambda _: Reply(None, problem="nobody is there", trouble="outage"))

    def slow(self):
        return ScriptedModel(lambda _: "late", seconds=300)


class TestOpenAI(ModelConformance):
    sdk = "openai"

    @pytest.fixture(autouse=True)
    def _provider(self):
        with FakeProvider(shouted) as self.fake:
            yield

    def echo(self):
        return Models(
            {"default": spec(self.fake, self.sdk)}, {"KEY": KEY}, patient=False, told=print, noted=print, dice=Dice()
        )

    def silent(self):
        self.fake.forever = "401"
        return self.echo()

    def slow(self):
        self.fake.forever = "hang"
        return Models(
            {"default": spec(self.fake, self.sdk, deadline_s=300.0)},
            {"KEY": KEY},
            patient=True,
            noted=print,
            told=print,
            dice=Dice(),
        )

    async def close(self, model):
        await model.close()


class TestAnthropic(TestOpenAI):
    sdk = "anthropic"


# ---- what is sent ----------------------------------------------------------------------------------------------------

TALK = (
    Message("system", "be kind"),
    Message("user", "one"),
    Message("user", "two"),
    Message("assistant", "three"),
    Message("system", "and brief"),
    Message("user", "four"),
)


def test_openai_gets_the_messages_as_they_are():
    body = sent("openai", Prompt("default", TALK))
    assert body == {"model": "m-1", "messages": [{"role": m.role, "content": m.text} for m in TALK]}


def test_anthropic_gets_the_system_apart_and_a_turn_for_each():
    body = sent("anthropic", Prompt("default", TALK))
    turns = [("user", "one\n\ntwo"), ("assistant", "three"), ("user", "four")]
    messages = [{"role": role, "content": text} for role, text in turns]
    assert body == {"model": "m-1", "messages": messages, "system": "be kind\n\nand brief", "max_tokens": MAX_TOKENS}


def test_a_system_alone_is_a_turn_for_anthropic():
    body = sent("anthropic", Prompt("default", (Message("system", "begin"),)))
    assert body == {"model": "m-1", "messages": [{"role": "user", "content": "begin"}], "max_tokens": MAX_TOKENS}


@SDKS
def test_what_is_given_is_sent(sdk):
    body = sent(sdk, prompt("hello"), temperature=0.0, max_tokens=77)
    assert (body["temperature"], body["max_tokens"]) == (0.0, 77)


def test_more_tokens_than_an_sdk_would_wait_for_can_be_asked_for():
    assert sent("anthropic", prompt("hello"), max_tokens=100_000)["max_tokens"] == 100_000


CLOSED = {
    "type": "object",
    "properties": {"a": {"type": "array", "items": {"type": "integer"}}},
    "required": ["a"],
    "additionalProperties": False,
}
MAYBE = {"type": ["object", "null"], "properties": {"a": {"type": "string"}}}
OPEN = {"type": "object", "properties": {"a": CLOSED, "b": {"type": "string"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "strict"), [(CLOSED, {"strict": True}), (OPEN, {}), ({"anyOf": [OPEN]}, {}), (MAYBE, {})]
)
def test_a_schema_is_sent_and_held_to_strictly_where_openai_can(schema, strict):
    form = {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema, **strict}}
    assert sent("openai", prompt("hello", schema=schema))["response_format"] == form


def test_a_schema_is_sent_to_anthropic():
    form = {"format": {"type": "json_schema", "schema": OPEN}}
    assert sent("anthropic", prompt("hello", schema=OPEN))["output_config"] == form


@SDKS
def test_the_headers_are_ours_and_no_others(sdk):
    with FakeProvider() as fake:
        ask(fake, sdk)
        headers = dict(fake.requests[0].headers)
    assert headers.pop("authorization") == f"Bearer {KEY}"
    assert headers.pop("user-agent").startswith("metaloop/")
    assert headers.pop("accept-encoding") == "identity"
    assert headers.pop("anthropic-version", "") == ("2026-10-21" if sdk == "anthropic" else "")
    assert set(headers) == {"host", "accept", "content-type", "content-length"}


def test_the_version_of_the_api_is_the_one_that_the_sdk_knows():
    anthropic = pytest.importorskip("anthropic")
    known = anthropic.AsyncAnthropic(api_key="x").default_headers["anthropic-version"]
    assert models.HEADERS["anthropic"]["anthropic-version"] == known


@SDKS
def test_without_a_key_none_is_sent(sdk, monkeypatch):
    monkeypatch.setenv(f"{sdk.upper()}_API_KEY", "sk-ambient-key")
    with FakeProvider() as fake:
        assert ask(fake, sdk, key_env="").text == "fine"
        assert fake.requests[0].key() == ""


def test_each_role_has_its_model_and_the_default_plays_the_rest():
    async def story(desk):
        return [(await desk.ask(role=role)).model for role in ("judge", "writer", "default")]

    with FakeProvider() as fake:
        specs = {"default": spec(fake), "judge": spec(fake, "anthropic", model="m-2")}
        assert Desk(specs).run(story) == ["m-2", "m-1", "m-1"]
        assert [request.path for request in fake.requests] == ["/v1/messages"] + ["/v1/chat/completions"] * 2


# ---- again, or never -------------------------------------------------------------------------------------------------


@SDKS
@pytest.mark.parametrize("fault", AGAIN)
def test_what_may_go_better_is_tried_again(sdk, fault):
    with FakeProvider(faults=[fault, fault]) as fake:
        assert ask(fake, sdk).text == "fine"
        assert len(fake.requests) == 3


@SDKS
@pytest.mark.parametrize("fault", SETTLED)
def test_what_will_not_go_better_is_said_once(sdk, fault):
    with FakeProvider(forever=fault) as fake:
        reply = ask(fake, sdk)
        assert len(fake.requests) == 1
    assert (reply.text, reply.trouble) == (None, "fatal")
    said = "redirects to http://127.0.0.1:9/v1" if fault.startswith("307") else f"a {fault} to whoever"
    assert re.fullmatch(rf"m-1 at 127\.0\.0\.1:\d+: {fault[:3]}: .*{said}.*", reply.problem)


@SDKS
@pytest.mark.parametrize("fault", ["503", "429:60", "hang", "slow drip"])
def test_the_deadline_is_over_all_attempts(sdk, fault):
    with FakeProvider(forever=fault) as fake:
        begun = time.monotonic()
        reply = ask(fake, sdk, deadline_s=0.3)
        took = time.monotonic() - begun
    assert 0.29 < took < 2
    assert (reply.text, reply.trouble) == (None, "outage")
    assert "no answer in 0.3 s" in reply.problem
    assert fault in ("hang", "slow drip") or fault[:3] in reply.problem


@SDKS
def test_an_answer_is_waited_for_until_the_deadline_and_no_longer(sdk):
    with FakeProvider(latency=0.4) as fake:
        assert ask(fake, sdk, deadline_s=0.2).trouble == "outage"
        assert ask(fake, sdk, deadline_s=8.0).text == "fine"


def test_nobody_there_is_an_outage_that_says_so():
    with FakeProvider() as fake:
        pass
    reply = ask(fake, "openai", deadline_s=0.3)
    assert reply.trouble == "outage"
    assert "ConnectError" in reply.problem


def test_pauses_double_up_to_a_minute_and_are_drawn_by_dice():
    dice = Dice(share=0.0)
    with FakeProvider(faults=["429"] * 11) as fake:
        desk = Desk({"default": spec(fake)}, dice=dice)
        assert desk.run(Desk.ask).text == "fine"
    assert dice.bounds == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 60.0]


@pytest.mark.parametrize(
    ("sdk", "after", "least"), [("openai", "1", 1.0), ("anthropic", "300ms", 0.3), ("openai", "date", 0.9)]
)
def test_a_provider_is_given_the_time_that_it_asks_for(sdk, after, least):
    after = formatdate(time.time() + 2, usegmt=True) if after == "date" else after
    with FakeProvider(faults=[f"429:{after}"]) as fake:
        assert ask(fake, sdk).text == "fine"
        first, second = fake.requests
    assert least <= second.at - first.at < least + 2


@pytest.mark.parametrize("after", ["999999", "9" * 400, "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_but_not_more_than_the_longest_pause(after, monkeypatch):
    monkeypatch.setattr(models, "LONGEST_S", 0.2)
    with FakeProvider(faults=[f"503:{after}"]) as fake:
        assert ask(fake, "openai").text == "fine"


@pytest.mark.parametrize("after", ["soon", "nan", "-5", "", "-1ms", "Fri, 32 Dec"])
def test_a_time_that_is_none_is_not_waited_for(after):
    with FakeProvider(faults=[f"429:{after}"]) as fake:
        assert ask(fake, "openai").text == "fine"
        first, second = fake.requests
    assert second.at - first.at < 0.5


# ---- what can be done without ----------------------------------------------------------------------------------------

WITHOUT = [
    ("openai", "temperature", None),
    ("openai", "max_tokens", "max_completion_tokens"),
    ("openai", "response_format", None),
    ("anthropic", "temperature", None),
    ("anthropic", "output_config", None),
]


@pytest.mark.parametrize("status", ["400", "422"])
@pytest.mark.parametrize(("sdk", "name", "instead"), WITHOUT)
def test_a_parameter_that_is_refused_is_left_out_from_then_on_and_said_once(sdk, name, instead, status):
    async def story(desk):
        first = await asyncio.gather(*(desk.ask(schema=OPEN) for _ in range(3)))
        before = len(fake.requests)
        second = await desk.ask(schema=OPEN)
        assert [reply.text for reply in (*first, second)] == ["fine"] * 4
        assert len(fake.requests) == before + 1
        return desk.heard

    with FakeProvider(forever=f"{status}:{name}") as fake:
        specs = {"default": spec(fake, sdk, temperature=0.5, max_tokens=9)}
        ((role, said),) = Desk(specs).run(story)
        before, after = fake.requests[0].body, fake.requests[-1].body
    assert (role, name in said) == ("default", True)
    assert before.keys() - after.keys() == {name}
    assert after.keys() - before.keys() == ({instead} if instead else set())
    assert instead is None or after[instead] == 9


def test_two_parameters_can_go_and_each_spec_has_its_own():
    async def story(desk):
        replies = [await desk.ask(), await desk.ask(role="other")]
        return [reply.text for reply in replies]

    with FakeProvider(faults=["400:temperature", "400:max_tokens"]) as fake:
        one = spec(fake, temperature=0.5, max_tokens=9)
        assert Desk({"default": one, "other": replace(one, temperature=0.6)}).run(story) == ["fine", "fine"]
        assert fake.requests[2].body.keys() == {"model", "messages", "max_completion_tokens"}
        assert fake.requests[3].body.keys() == {"model", "messages", "max_tokens", "temperature"}


def bounded(low=0, high=1):
    number = {"type": "number", "minimum": low, "maximum": high}
    return {**CLOSED, "properties": {"a": number, "minimum": {"type": "string"}}, "required": ["a", "minimum"]}


def test_bounds_of_numbers_go_before_the_schema_does():
    """A provider that refuses them is held to the rest of it; a property that is called minimum is none of them."""

    async def story(desk):
        replies = [await desk.ask(schema=bounded()) for _ in range(2)]
        return [reply.text for reply in replies], desk.heard

    with FakeProvider(faults=["400:response_format", "", "400:response_format"]) as fake:
        texts, heard = Desk({"default": spec(fake)}).run(story)
    forms = [request.body.get("response_format") for request in fake.requests]
    assert texts == ["fine", "fine"]
    assert forms[0]["json_schema"]["schema"] == bounded()
    assert forms[1] == forms[2]
    assert forms[1]["json_schema"]["schema"]["properties"] == {"a": {"type": "number"}, "minimum": {"type": "string"}}
    assert forms[1]["json_schema"]["strict"] is True
    assert forms[3] is None
    assert ["bounds of numbers" in said for _, said in heard] == [True, False]


def test_anthropic_is_never_sent_any():
    form = sent("anthropic", prompt("hello", schema=bounded()))["output_config"]["format"]
    assert form["schema"]["properties"] == {"a": {"type": "number"}, "minimum": {"type": "string"}}


@pytest.mark.parametrize(
    ("said", "param", "what"),
    [
        ("'minimum' is not permitted", "", "bounds"),
        ("Invalid schema for response_format 'reply'", "response_format.json_schema", "bounds"),
        ("temperature is fixed here", "", "temperature"),
        ("the minimum balance is not there", "balance", ""),
    ],
)
def test_what_a_complaint_is_about(said, param, what):
    body = DIALECTS["openai"].body(ModelSpec("m", temperature=1.0), prompt("hello", schema=bounded()))
    data = json.dumps({"error": {"message": said, "param": param}}).encode()
    assert named(DIALECTS["openai"], body, data) == what


def test_a_schema_that_is_refused_to_one_role_is_still_sent_for_another():
    async def story(desk):
        return [(await desk.ask(role=role, schema=CLOSED)).text for role in ("critic", "judge", "critic")]

    with FakeProvider(faults=["400:response_format"]) as fake:
        assert Desk({"default": spec(fake)}).run(story) == ["fine"] * 3
    assert ["response_format" in request.body for request in fake.requests] == [True, False, True, False]


@pytest.mark.parametrize(
    ("sdk", "faults"),
    [
        ("openai", ["400:max_tokens", "400:max_completion_tokens"]),
        ("anthropic", ["400:max_tokens"]),
        ("openai", ["400"]),
    ],
)
def test_a_limit_on_what_is_paid_for_is_not_waived_nor_what_nobody_named(sdk, faults):
    with FakeProvider(faults=faults) as fake:
        assert ask(fake, sdk, max_tokens=9, temperature=0.5).trouble == "fatal"
        assert len(fake.requests) == len(faults)


# ---- what it comes to ------------------------------------------------------------------------------------------------


@SDKS
def test_all_blocks_of_text_are_the_reply_and_nothing_else_is(sdk):
    with FakeProvider(lambda _: "first and second", forever="thinking blocks") as fake:
        reply = ask(fake, sdk)
    assert (reply.text, reply.finish) == ("first and second", "stop")
    assert THOUGHT not in repr(reply)


@SDKS
def test_a_reply_that_was_cut_off_says_so(sdk):
    with FakeProvider(lambda _: "12345678", forever="truncated reply") as fake:
        reply = ask(fake, sdk)
    assert (reply.text, reply.finish, reply.problem) == ("1234", "length", "")


@SDKS
def test_a_refusal_is_no_reply_and_is_told(sdk):
    with FakeProvider(forever="refusal") as fake:
        reply = ask(fake, sdk)
        assert len(fake.requests) == 1
    assert (reply.text, reply.finish, reply.trouble) == (None, "refusal", "")
    assert REFUSAL in reply.problem


@SDKS
@pytest.mark.parametrize("fault", ["empty", "only thought"])
def test_an_empty_reply_is_told_and_paid_for_once(sdk, fault):
    """Whoever asked may ask again; here nothing is asked twice that was answered."""
    with FakeProvider(forever=fault) as fake:
        reply = ask(fake, sdk)
        assert len(fake.requests) == 1
    assert (reply.text, reply.finish, reply.trouble) == (None, "empty", "")
    assert "an empty reply" in reply.problem
    assert reply.usage.tokens_in > 0


UNHEARD = ["truncated body", "cut connection", "hang", "slow drip", "html"]


@SDKS
@pytest.mark.parametrize("fault", UNHEARD)
def test_where_a_cap_has_to_hold_an_attempt_that_was_never_answered_is_charged_at_its_worst(sdk, fault):
    """However patient: nobody knows whether it was paid for, and another one could pass the cap."""
    with FakeProvider(faults=[fault]) as fake:
        given = spec(fake, sdk, deadline_s=0.5, max_tokens=7, usd_in=1.0, usd_out=1.0)
        reply = Desk({"default": given}, patient=True, capped=True).run(
            lambda desk: desk.models.complete(prompt("hello"))
        )
        assert len(fake.requests) == 1
    assert (reply.text, reply.trouble) == (None, "outage")
    assert reply.usage.tokens_out == 7
    assert reply.usage.tokens_in >= len("hello")
    assert "worst case" in reply.problem


@SDKS
def test_where_a_cap_has_to_hold_refusals_and_closed_doors_cost_nothing(sdk):
    """A provider that says it is busy charges nothing, so patience goes on."""
    with FakeProvider(faults=["429:0", "503"]) as fake:
        given = spec(fake, sdk, max_tokens=7)
        reply = Desk({"default": given}, patient=True, capped=True).run(
            lambda desk: desk.models.complete(prompt("hello"))
        )
    assert reply.text == "fine"
    assert reply.usage.tokens_out == tokens("fine")


@SDKS
@pytest.mark.parametrize("size", [models.MOST_TEXT + 1, None])
def test_a_reply_that_is_too_long_is_none(sdk, size):
    with FakeProvider(lambda _: "x" * (size or 0), forever="" if size else "huge") as fake:
        reply = ask(fake, sdk)
        assert len(fake.requests) == 1
    assert (reply.text, reply.finish, reply.trouble) == (None, "oversize", "")
    assert "bytes" in reply.problem


@SDKS
def test_a_reply_of_the_most_bytes_is_one(sdk):
    with FakeProvider(lambda _: "\0" * models.MOST_TEXT) as fake:  # six bytes each on the wire
        assert len(ask(fake, sdk).text) == models.MOST_TEXT


@SDKS
def test_broken_counts_cost_no_reply(sdk):
    with FakeProvider(forever="wrong usage") as fake:
        reply = ask(fake, sdk)
    assert (reply.text, reply.usage.tokens_in, reply.usage.tokens_out) == ("fine", 0, 0)


@SDKS
def test_usage_is_that_of_all_attempts_and_has_a_price_where_both_are_known(sdk):
    with FakeProvider(lambda _: "word " * 40, ["503", "truncated reply"], latency=0.05) as fake:
        usage = ask(fake, sdk, usd_in=2.0, usd_out=10.0).usage
        dear = ask(fake, sdk, usd_in=2.0).usage
    asked, said = tokens("hello"), tokens("word " * 40)
    assert (usage.tokens_in, usage.tokens_out) == (asked, tokens("word " * 20))
    assert usage.usd == pytest.approx((usage.tokens_in * 2 + usage.tokens_out * 10) / 1e6)
    assert 0.1 <= usage.seconds < 3
    assert (dear.tokens_out, dear.usd) == (said, None)


@SDKS
def test_usage_is_told_where_no_reply_came_of_it(sdk):
    with FakeProvider(forever="empty") as fake:
        assert ask(fake, sdk).usage.tokens_in == tokens("hello")
    with FakeProvider(forever="hang") as fake:
        assert ask(fake, sdk, deadline_s=0.3).usage.seconds >= 0.29


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=12,
)


@SDKS
@settings(max_examples=60, deadline=None)
@given(found=JSON | st.binary(max_size=20))
def test_whatever_comes_is_an_answer_or_unreadable(sdk, found):
    data = found if isinstance(found, bytes) else json.dumps(found).encode()
    with contextlib.suppress(Unreadable):
        assert isinstance(DIALECTS[sdk].read(data), Answer)
    message, param = complaint(data)
    assert isinstance(message, str)
    assert isinstance(param, str)
    assert named(DIALECTS[sdk], {"temperature": 1}, data) in ("", "temperature")


def test_a_reply_without_a_choice_is_unreadable():
    with pytest.raises(Unreadable, match="without a choice"):
        DIALECTS["openai"].read(b'{"choices": []}')


# ---- down, and back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sdk", "fault"), [("openai", "503"), ("anthropic", "hang"), ("openai", "cut connection")])
def test_who_is_patient_says_so_once_goes_on_and_says_when_it_is_back(sdk, fault):
    async def story(desk):
        asking = asyncio.create_task(desk.ask(role="judge"))
        await desk.told(1)
        await asyncio.sleep(0.2)
        assert not asking.done()
        fake.forever = ""
        reply = await asking
        return reply.text, await desk.ask(role="judge"), desk.heard

    with FakeProvider(forever=fault) as fake:
        desk = Desk({"default": spec(fake, sdk, deadline_s=0.3)}, patient=True, dice=Dice(0.1))
        text, after, heard = desk.run(story)
    assert (text, after.text) == ("fine", "fine")
    assert [(role, bool(why)) for role, why in heard] == [("judge", True), ("judge", False)]
    assert "no answer in 0.3 s" in heard[0][1]


def test_while_it_is_down_one_at_a_time_tries_and_each_role_is_told_once():
    async def story(desk):
        asking = [asyncio.create_task(desk.ask(role=role)) for role in ("judge", "writer") * 4]
        await desk.told(2)
        down = len(fake.requests)
        await asyncio.sleep(0.7)
        tried = fake.requests[down:]
        fake.forever, fake.latency = "", 0.0
        replies = await asyncio.gather(*asking)
        return [reply.text for reply in replies], desk.heard, [request.at for request in tried]

    with FakeProvider(forever="503", latency=0.15) as fake:
        desk = Desk({"default": spec(fake, deadline_s=0.5)}, patient=True)
        texts, heard, tried = desk.run(story)
    assert texts == ["fine"] * 8
    assert sorted(role for role, why in heard if why) == ["judge", "writer"] == sorted(r for r, why in heard if not why)
    assert 1 <= len(tried) <= 6
    assert all(later - earlier > 0.14 for earlier, later in itertools.pairwise(tried))


def test_pauses_grow_while_it_is_down():
    async def story(desk):
        asking = asyncio.create_task(desk.ask())
        await desk.told(1)
        while desk.dice.bounds[-4:] != [60.0] * 4:
            await asyncio.sleep(0.01)
        fake.forever = ""
        await asking

    with FakeProvider(forever="503") as fake:
        desk = Desk({"default": spec(fake, deadline_s=0.2)}, patient=True, dice=Dice(0.001))
        desk.run(story)
    down = len(desk.dice.bounds) - desk.dice.bounds[::-1].index(0.5)
    assert desk.dice.bounds[down:][:8] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


def test_who_waits_is_woken_when_somebody_gets_through(monkeypatch):
    monkeypatch.setattr(models, "FIRST_S", 20.0)

    async def story(desk):
        late = asyncio.create_task(desk.ask("slow"))  # under way when the line goes down
        await asyncio.sleep(0.05)
        waiting = asyncio.create_task(desk.ask(role="hasty"))
        await desk.told(1)
        begun = time.monotonic()
        assert (await waiting).text == "fine"
        return (await late).text, time.monotonic() - begun

    with FakeProvider(lambda body: time.sleep(0.8 * ("slow" in str(body))) or "fine", ["", "hang"]) as fake:
        specs = {"default": spec(fake), "hasty": spec(fake, deadline_s=0.3)}
        text, took = Desk(specs, patient=True, dice=Dice(1.0)).run(story)
    assert text == "fine"
    assert took < 5


def test_who_is_not_patient_is_refused_at_once_until_one_gets_through():
    async def story(desk):
        assert (await desk.ask()).trouble == "outage"
        tried, begun = len(fake.requests), time.monotonic()
        refused = await asyncio.gather(*(desk.ask() for _ in range(5)))
        assert time.monotonic() - begun < 0.2
        assert len(fake.requests) == tried
        await asyncio.sleep(0.5)
        fake.forever, fake.latency = "", 0.3
        probing = asyncio.create_task(desk.ask())
        await asyncio.sleep(0.1)
        others = await asyncio.gather(*(desk.ask() for _ in range(5)))
        assert not probing.done()
        refused += others
        assert (await probing).text == "fine"
        assert len(fake.requests) == tried + 1
        after = await asyncio.gather(*(desk.ask() for _ in range(5)))
        return refused, after, desk.heard

    with FakeProvider(forever="503") as fake:
        desk = Desk({"default": spec(fake, deadline_s=0.6)}, dice=Dice(0.8))
        refused, after, heard = desk.run(story)
    assert {reply.trouble for reply in refused} == {"outage"}
    assert all("503" in reply.problem for reply in refused)
    assert [reply.text for reply in after] == ["fine"] * 5
    assert [why.split("; ")[-1] for _, why in heard] == ["tried again now and then", ""]


@pytest.mark.parametrize("patient", [False, True])
def test_who_is_under_way_when_it_goes_down_does_not_go_on_trying(patient):
    async def story(desk):
        asking = asyncio.gather(desk.ask(), desk.ask(role="hasty"))
        if patient:
            await desk.told(2)
            fake.forever = ""
        return [reply.text or reply.trouble for reply in await asking]

    with FakeProvider(forever="503") as fake:
        specs = {"default": spec(fake, deadline_s=60.0), "hasty": spec(fake, deadline_s=0.4)}
        said = Desk(specs, patient=patient, dice=Dice(0.1)).run(story)
    assert said == (["fine", "fine"] if patient else ["outage", "outage"])


def test_a_probe_that_fails_leaves_it_down():
    async def story(desk):
        await desk.ask()
        await asyncio.sleep(0.15)
        tried = len(fake.requests)
        replies = [await desk.ask(), await desk.ask()]
        return len(fake.requests) - tried, [reply.trouble for reply in replies]

    with FakeProvider(forever="503") as fake:
        desk = Desk({"default": spec(fake, deadline_s=0.2)}, dice=Dice(0.2))
        assert desk.run(story) == (1, ["outage", "outage"])


def test_another_provider_is_not_affected():
    async def story(desk):
        return [(await desk.ask(role=role)).trouble for role in ("default", "other", "default")]

    with FakeProvider(forever="503") as down, FakeProvider() as up:
        specs = {"default": spec(down, deadline_s=0.2), "other": spec(up)}
        assert Desk(specs, dice=Dice(1.0)).run(story) == ["outage", "", "outage"]


@SDKS
def test_patience_is_for_outages_alone(sdk):
    async def story(desk):
        return await desk.ask(), desk.heard

    with FakeProvider(forever="401") as fake:
        reply, heard = Desk({"default": spec(fake, sdk)}, patient=True).run(story)
    assert (reply.trouble, heard) == ("fatal", [])


def test_who_is_cancelled_while_waiting_lets_the_next_one_try():
    async def story(desk):
        asking = [asyncio.create_task(desk.ask()) for _ in range(3)]
        await desk.told(1)
        await asyncio.sleep(0.2)
        begun = time.monotonic()
        for task in asking[:2]:
            task.cancel()
        await asyncio.wait(asking[:2])
        assert time.monotonic() - begun < 0.5
        assert all(task.cancelled() for task in asking[:2])
        fake.forever = ""
        return (await asking[2]).text

    with FakeProvider(forever="hang") as fake:
        desk = Desk({"default": spec(fake, deadline_s=0.3)}, patient=True, dice=Dice(0.2))
        assert desk.run(story) == "fine"


# ---- keys, and where they go -----------------------------------------------------------------------------------------

AMBIENT = {
    "OPENAI_API_KEY": "sk-ambient-key",
    "OPENAI_ADMIN_KEY": "sk-ambient-key",
    "OPENAI_ORG_ID": "org-ambient",
    "OPENAI_PROJECT_ID": "proj-ambient",
    "OPENAI_CUSTOM_HEADERS": "Authorization: Bearer sk-ambient-key\nX-Ambient: 1\nHost: ambient\nUser-Agent: ambient",
    "ANTHROPIC_API_KEY": "sk-ambient-key",
    "ANTHROPIC_AUTH_TOKEN": "sk-ambient-key",
    "ANTHROPIC_CUSTOM_HEADERS": "X-Api-Key: sk-ambient-key\nX-Ambient: 1\nAnthropic-Version: ambient",
}


@pytest.fixture
def trap(monkeypatch, tmp_path):
    """A server that everything in the surroundings points to, and that nobody is to ask."""
    with FakeProvider() as fake:
        for name, value in AMBIENT.items():
            monkeypatch.setenv(name, value)
        for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
            monkeypatch.setenv(name, fake.url)
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, fake.url.removesuffix("/v1"))
            monkeypatch.setenv(name.lower(), fake.url.removesuffix("/v1"))
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        (tmp_path / "netrc").write_text("machine 127.0.0.1 login ambient password ambient\n")
        monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
        yield fake
        assert fake.requests == []


@SDKS
@pytest.mark.parametrize("key_env", ["KEY", ""])
def test_nothing_in_the_surroundings_has_a_say(sdk, key_env, trap):
    with FakeProvider() as fake:
        assert ask(fake, sdk, key_env=key_env).text == "fine"
        headers = fake.requests[0].headers
    assert "ambient" not in repr(headers).lower()
    assert headers.get("authorization", "") == (f"Bearer {KEY}" if key_env else "")
    assert "x-api-key" not in headers


@SDKS
def test_without_a_base_url_it_is_the_providers_own(sdk, trap):
    """That host is not there for tests, which is what this one sees."""
    reply = ask(trap, sdk, base_url="", deadline_s=0.3)
    assert reply.trouble == "outage"
    assert f"api.{sdk}.com" in reply.problem


@SDKS
@pytest.mark.parametrize("status", ["301", "302", "307", "308"])
def test_a_redirect_takes_no_key_along(sdk, status):
    with FakeProvider() as other, FakeProvider() as fake:
        fake.forever = f"{status}:{other.url}/chat/completions?key={KEY}"
        reply = ask(fake, sdk)
        assert (len(fake.requests), other.requests) == (1, [])
    assert reply.trouble == "fatal"
    assert f"redirects to {other.url}" in reply.problem
    assert KEY not in reply.problem


def test_the_wire_goes_to_one_place_only():
    async def story():
        async with wire.connect("http://127.0.0.1:1/v1", {}, 10) as client:
            for url in ("http://127.0.0.1:2/v1", "http://localhost:1/v1", "https://127.0.0.1:1/v1"):
                with pytest.raises(wire.Astray):
                    await client.get(url)
            with pytest.raises(httpx2.ConnectError):
                await client.get("http://127.0.0.1:1/elsewhere")

    asyncio.run(story())


def test_the_wire_reads_so_much_and_no_more():
    async def story(url, name):
        async with wire.connect(url, {}, 100) as client:
            with pytest.raises(wire.TooMuch):
                await client.post(f"{url}/messages", json={})
            return (await client.post(f"{url}/messages", json={name: 1})).content

    with FakeProvider(faults=["huge", f"400:{'x' * 500}"]) as fake:
        assert len(asyncio.run(story(fake.url, "x" * 500))) == 100


@SDKS
@pytest.mark.parametrize("patient", [False, True])
def test_no_key_is_in_anything_that_comes_out(sdk, patient):
    """Though the provider repeats it in all that it says."""
    faults = [*AGAIN, *SETTLED, *LAX, "hang", "400:temperature", f"307:http://127.0.0.1:9/{KEY}"]

    async def meet(fault):
        with FakeProvider(lambda _: f"{KEY} is the key, or so one hears from them", forever=fault) as fake:
            model = spec(fake, sdk, deadline_s=0.8, temperature=0.5, model=f"m-{KEY}")
            desk = Desk({"default": model}, patient=patient, dice=Dice(0.2))
            asking = asyncio.create_task(desk.ask())
            await asyncio.wait([asking, heard := asyncio.create_task(desk.told(1))], return_when="FIRST_COMPLETED")
            heard.cancel()
            fake.forever = ""
            reply = await asking
            await desk.models.close()
            assert fake.requests[0].key() == KEY
            assert desk.heard or not (fault == "400:temperature" or (patient and fault in [*AGAIN, "hang"]))
            return fault, reply, desk.heard

    async def story():
        return await asyncio.gather(*map(meet, faults))

    for fault, reply, heard in asyncio.run(asyncio.wait_for(story(), 60)):
        assert KEY not in repr((reply, heard)), fault
        assert KEY[:12] not in repr((reply, heard)), fault
        assert reply.text is None or reply.text.startswith("[key] is"), fault


def test_a_key_at_the_edge_of_what_is_cut_leaves_no_half():
    for length in range(430, 500, 5):
        with FakeProvider(forever=f"307:http://127.0.0.1:9/{'x' * length}{KEY}") as fake:
            assert "sk-" not in ask(fake, "openai").problem


def test_a_key_is_sent_without_the_space_around_it():
    async def story(desk):
        return (await desk.ask()).text

    with FakeProvider(lambda _: f"<{KEY}>") as fake:
        assert Desk({"default": spec(fake)}, keys={"KEY": f" {KEY}\n"}).run(story) == "<[key]>"
        assert fake.requests[0].key() == KEY


@pytest.mark.parametrize("key", ["sk-test\n-0123456789", "sk-tëst-0123456789", "sk test 0123456789", "", None])
def test_a_key_that_cannot_be_sent_is_told_by_its_name(key):
    async def story(desk):
        return await desk.ask()

    with FakeProvider() as fake:
        reply = Desk({"default": spec(fake)}, keys={} if key is None else {"KEY": key}).run(story)
        assert fake.requests == []
    assert reply.trouble == "fatal"
    assert "expected a key in KEY" in reply.problem
    assert "0123456789" not in reply.problem


def test_a_key_that_guards_nothing_is_not_hidden():
    async def story(desk):
        return (await desk.ask()).text

    with FakeProvider(lambda _: "an example") as fake:
        assert Desk({"default": spec(fake)}, keys={"KEY": "x"}).run(story) == "an example"
        assert fake.requests[0].key() == "x"


def test_nothing_of_an_address_is_told_but_the_host():
    with FakeProvider(forever="401") as fake:
        address = fake.url.replace("//", "//user:password@") + "?token=secret"
        reply = ask(fake, "openai", base_url=address)
        assert fake.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert "password" not in reply.problem
    assert "secret" not in reply.problem


# ---- what nothing can be asked with ----------------------------------------------------------------------------------


def test_a_role_without_a_model_is_told():
    reply = Desk({}).run(Desk.ask)
    assert reply.trouble == "fatal"
    assert "expected a model for the role 'default' or a default one" in reply.problem


@SDKS
@pytest.mark.parametrize("url", ["localhost:8000/v1", "ftp://localhost/v1", "http://", "/v1", "http://[::1"])
def test_an_address_that_is_none_is_told(sdk, url):
    reply = Desk({"default": ModelSpec("m-1", sdk, base_url=url)}).run(Desk.ask)
    assert reply.trouble == "fatal"
    assert reply.problem


@SDKS
@pytest.mark.parametrize("missing", ["own", "httpx2"])
def test_a_package_that_is_not_there_is_named_with_what_to_type(sdk, missing, monkeypatch):
    name = sdk if missing == "own" else missing
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "metaloop.adapters.wire")
    monkeypatch.delattr("metaloop.adapters.wire")
    with FakeProvider() as fake:
        reply = ask(fake, sdk)
    assert reply.trouble == "fatal"
    extra = {"openai": "llm", "anthropic": "anthropic"}[sdk]
    assert f"expected the package {name!r}; type: pip install 'metaloop[{extra}]'" in reply.problem


@SDKS
def test_what_cannot_be_written_as_json_ends_the_ask_and_nothing_else(sdk):
    with FakeProvider() as fake:
        bad, good = ask(fake, sdk, prompt("\ud800"), prompt("hello"))
    assert (bad.trouble, good.text) == ("fatal", "fine")


@SDKS
def test_nothing_is_imported_before_it_is_needed(sdk):
    code = f"""
import sys
from random import Random
from metaloop.adapters.models import Models, prices
from metaloop.terms import ModelSpec
Models({{"default": ModelSpec("m", {sdk!r})}}, {{}}, patient=False, told=print, noted=print, dice=Random(0))
print([name for name in ("openai", "anthropic", "genai_prices", "httpx2") if name in sys.modules])
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


# ---- prices ----------------------------------------------------------------------------------------------------------


def test_prices_are_for_a_million_tokens():
    assert prices(ModelSpec("gpt-4o")) == (2.5, 10.0)
    assert prices(ModelSpec("claude-opus-4-5", "anthropic")) == (5.0, 25.0)
    assert prices(ModelSpec("gpt-4o", base_url="https://api.openai.com/v1")) == (2.5, 10.0)


def test_prices_that_nobody_knows_are_none_and_those_of_the_spec_come_first():
    assert prices(ModelSpec("no-such-model")) is None
    assert prices(ModelSpec("gpt-4o", base_url="http://127.0.0.1:8080/v1")) is None
    assert prices(ModelSpec("gpt-4o", base_url="http://127.0.0.1:8080/v1", usd_in=0.0, usd_out=0.0)) == (0.0, 0.0)
    assert prices(ModelSpec("gpt-4o", usd_in=1.0)) == (2.5, 10.0)


def test_without_the_table_there_are_no_prices(monkeypatch):
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert prices(ModelSpec("gpt-4o")) is None


# ---- the fake --------------------------------------------------------------------------------------------------------


def test_a_fault_that_the_fake_does_not_know_is_none():
    with pytest.raises(AssertionError, match="found 'hnag'"):
        FakeProvider(faults=["hnag"])


def test_the_fake_keeps_what_came_and_lists_its_models():
    async def story(url):
        async with wire.connect(url, {"x-api-key": KEY}, 1 << 20) as client:
            listed = await client.get(f"{url}/models")
            lost = await client.post(f"{url}/nowhere", json={})
            return listed.json()["data"][0]["id"], lost.status_code

    with FakeProvider() as fake:
        assert asyncio.run(story(fake.url)) == ("fake", 404)
        first, second = fake.requests
    assert (first.method, first.path, first.key(), first.body) == ("GET", "/v1/models", KEY, {})
    assert first.at <= second.at
    assert json.dumps(second.body) == "{}"
