"""A model is recorded once; what it said is played for ever after, and nobody is asked."""

import asyncio
import json
from pathlib import Path

import pytest

from metaloop.adapters.cassettes import secretless, takes
from metaloop.errors import UsageError
from metaloop.events import Reply
from metaloop.flow import Message, Prompt
from metaloop.testing import RecordedModel, ScriptedModel
from metaloop.values import Usage


def prompt(text: str, role: str = "propose", **fields) -> Prompt:
    return Prompt(role, (Message("system", "be brief"), Message("user", text)), **fields)


def ask(model, *prompts: Prompt) -> list[Reply]:
    async def all_at_once() -> list[Reply]:
        return await asyncio.gather(*map(model.complete, prompts))

    return asyncio.run(all_at_once())


class Giving:
    """`roles.Model`: gives these replies, in order."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)

    async def complete(self, prompt: Prompt) -> Reply:
        return self.replies.pop(0)


def test_what_was_recorded_is_played(tmp_path: Path) -> None:
    """Whole: finish, usage, trouble and all."""
    replies = [
        Reply("x = 1", model="m", usage=Usage(1.5, 10, 2, 0.25)),
        Reply("x =", finish="length"),
        Reply(None, finish="", problem="nobody there", trouble="outage"),
    ]
    prompts = [prompt("a"), prompt("b", schema={"type": "object"}), prompt("c", role="judge")]
    assert ask(RecordedModel(tmp_path / "c", Giving(*replies)), *prompts) == replies
    played = RecordedModel(tmp_path / "c")
    assert ask(played, *reversed(prompts)) == replies[::-1]
    assert played.left() == 0


def test_a_line_is_an_exchange_and_recording_goes_on_at_the_end(tmp_path: Path) -> None:
    for text in "ab":
        ask(RecordedModel(tmp_path / "c", ScriptedModel(lambda p: p.messages[-1].text.upper())), prompt(text))
    first, second = map(json.loads, (tmp_path / "c").read_text().splitlines())
    assert first["prompt"] == prompt("a").digest()
    assert first["role"] == "propose"
    assert first["messages"] == [{"role": "system", "text": "be brief"}, {"role": "user", "text": "a"}]
    assert (first["reply"]["text"], second["reply"]["text"]) == ("A", "B")


def test_several_recordings_of_one_prompt_are_played_in_their_order_and_once_each(tmp_path: Path) -> None:
    ask(RecordedModel(tmp_path / "c", Giving(Reply("1"), Reply("2"))), prompt("a"), prompt("a"))
    model = RecordedModel(tmp_path / "c")
    one, two, three = ask(model, *[prompt("a")] * 3)
    assert (one.text, two.text) == ("1", "2")
    assert (three.text, three.trouble) == (None, "fatal")
    assert "was recorded 2 times, and is asked once more" in three.problem


def test_an_unknown_prompt_is_fatal_and_told_beside_the_nearest_of_its_role(tmp_path: Path) -> None:
    known = [prompt("the best is 0.91"), prompt("something else"), prompt("the best is 0.93", role="judge")]
    ask(RecordedModel(tmp_path / "c", ScriptedModel(lambda p: "x")), *known)
    (reply,) = ask(RecordedModel(tmp_path / "c"), prompt("the best is 0.92"))
    assert (reply.text, reply.finish, reply.trouble) == (None, "unknown", "fatal")
    assert reply.problem.startswith(f"no such prompt in {tmp_path / 'c'}: {known[0].digest()} is the nearest of role")
    assert "it has '1', not '2'" in reply.problem
    (reply,) = ask(RecordedModel(tmp_path / "c"), prompt("x", role="critic"))
    assert "role 'critic'; roles there: judge, propose" in reply.problem
    (reply,) = ask(RecordedModel(tmp_path / "c"), prompt("something else", schema={"type": "object"}))
    assert f"has the words of {known[1].digest()}, and another schema" in reply.problem


def test_secrets_are_not_written_and_the_prompt_is_known_all_the_same(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hunter2hunter2")
    key = "sk-proj-" + "a1B2" * 8
    asked = prompt(f"with {key} and hunter2hunter2")
    said = Reply(f"no {key}", problem="Authorization: Bearer abcdefgh12345678")
    assert ask(RecordedModel(tmp_path / "c", Giving(said)), asked) == [said]
    written = (tmp_path / "c").read_text()
    assert not [secret for secret in (key, "hunter2hunter2", "abcdefgh12345678") if secret in written]
    (reply,) = ask(RecordedModel(tmp_path / "c"), asked)
    assert (reply.text, reply.problem) == ("no REDACTED", "Authorization: Bearer REDACTED")


def test_the_redaction_may_be_ones_own(tmp_path: Path) -> None:
    model = RecordedModel(tmp_path / "c", ScriptedModel(lambda p: "from ada"), redact=lambda t: t.replace("ada", "X"))
    ask(model, prompt("to ada"))
    (take,) = takes(tmp_path / "c")
    assert (take.messages[1].text, take.reply.text) == ("to X", "from X")


def test_short_values_and_ordinary_words_are_left_alone() -> None:
    redact = secretless({"OPENAI_API_KEY": "by-hand", "HOME": "/home/somebody"})
    text = "by-hand, in /home/somebody: task-based sk-learn, the bearer of news"
    assert redact(text) == text


def test_a_cassette_that_is_none_is_refused_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        RecordedModel(tmp_path / "c")
    ask(RecordedModel(tmp_path / "c", ScriptedModel(lambda p: "x")), prompt("a"))
    with (tmp_path / "c").open("a") as file:
        file.write('{"prompt": "cut')
    ask(RecordedModel(tmp_path / "c", ScriptedModel(lambda p: "x")), prompt("b"))
    with pytest.raises(UsageError, match="c:2: expected an exchange"):
        RecordedModel(tmp_path / "c")
    lines = (tmp_path / "c").read_text().splitlines()
    (tmp_path / "c").write_text("\n".join([lines[0], "", lines[2]]))
    assert [reply.text for reply in ask(RecordedModel(tmp_path / "c"), prompt("a"), prompt("b"))] == ["x", "x"]
