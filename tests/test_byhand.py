"""A model played by hand: real HTTP on the loopback, real files, and somebody who writes replies."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from metaloop.adapters import byhand
from metaloop.adapters.byhand import MOST_BYTES, Desk, Server, Wrong, page, request
from metaloop.adapters.cassettes import takes
from metaloop.flow import Message, Prompt
from workshop import METALOOP, until


@dataclass
class Hand:
    """A server, and who asks and answers."""

    folder: Path
    lines: list[str] = field(default_factory=list)
    cassette: Path | None = None
    server: Server = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        self.server = Server(Desk(self.folder, self.lines.append, self.cassette))
        self.pool = ThreadPoolExecutor(20)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def end(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.pool.shutdown()

    def http(self, method: str, path: str, body: object = None, **headers: str) -> tuple[int, dict]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=30)
        with contextlib.closing(connection):
            connection.request(method, path, body if isinstance(body, bytes) else json.dumps(body), headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def asking(self, body: dict, **headers: str) -> "Future[tuple[int, dict]]":
        return self.pool.submit(self.http, "POST", "/v1/chat/completions", body, **headers)

    def read(self, number: str = "0001", kind: str = "ask") -> str:
        path = self.folder / f"{number}.{kind}.md"
        until(path.exists)
        return path.read_text()

    def write(self, text: str | bytes, number: str = "0001") -> None:
        draft = self.folder / f"draft-{number}"
        draft.write_bytes(text if isinstance(text, bytes) else text.encode())
        draft.rename(self.folder / f"{number}.reply.md")


@pytest.fixture
def hand(tmp_path: Path) -> Iterator[Hand]:
    made = Hand(tmp_path / "desk", cassette=tmp_path / "cassette")
    yield made
    made.end()


def chat(text: str = "what now?", **more: object) -> dict:
    return {"model": "m", "messages": [{"role": "user", "content": text}], **more}


# ---- asked and answered ----------------------------------------------------------------------------------------------


def test_what_is_written_beside_an_ask_is_the_reply(hand: Hand) -> None:
    asked = hand.asking(chat(temperature=0.5))
    text = hand.read()
    assert "what now?" in text
    assert '"temperature": 0.5' in text
    hand.write("x = 1\n\nbecause\n")
    status, said = asked.result()
    assert status == 200
    assert said["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "x = 1\n\nbecause\n", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    assert (said["object"], said["model"], said["id"]) == ("chat.completion", "m", "by-hand-0001")
    assert said["usage"] == {
        "prompt_tokens": 9 // 4,
        "completion_tokens": 15 // 4,
        "total_tokens": 5,
        "note": "estimated: characters / 4",
    }
    ask, done = hand.lines
    assert ask.startswith('ask 0001 (`"m"`, `"m"`): read ')
    assert ask.endswith(f"{hand.folder}/0001.ask.md, write {hand.folder}/0001.reply.md")
    assert done == "ask 0001: answered after 0 s"


@pytest.mark.parametrize(
    ("written", "content", "refusal", "finish"),
    [
        ("finish: length\nx =", "x =", None, "length"),
        ("finish: refusal\r\nI would rather not", None, "I would rather not", "content_filter"),
        ("finish: stop", "", None, "stop"),
        ("finish: soon\nx", "finish: soon\nx", None, "stop"),
        ("x\nfinish: length\n", "x\nfinish: length\n", None, "stop"),
        (b"caf\xe9 \xe2\x82\xac", "caf\ufffd €", None, "stop"),
    ],
)
def test_a_first_line_may_say_how_the_reply_ended(hand: Hand, written, content, refusal, finish) -> None:
    asked = hand.asking(chat())
    hand.read()
    hand.write(written)
    (choice,) = asked.result()[1]["choices"]
    assert (choice["message"]["content"], choice["message"]["refusal"], choice["finish_reason"]) == (
        content,
        refusal,
        finish,
    )


def test_a_reply_over_the_bound_is_cut_off_for_length(hand: Hand) -> None:
    asked = hand.asking(chat())
    hand.read()
    hand.write("x" * (MOST_BYTES + 10))
    (choice,) = asked.result()[1]["choices"]
    assert (len(choice["message"]["content"]), choice["finish_reason"]) == (MOST_BYTES, "length")


def test_a_reply_that_is_still_being_written_is_waited_for(hand: Hand) -> None:
    """However long its writer pauses, as long as the file is open; one that is empty is no reply yet."""
    asked = hand.asking(chat())
    hand.read()
    path = hand.folder / "0001.reply.md"
    path.touch()
    time.sleep(3 * byhand.SETTLE_S)
    with path.open("w") as file:
        for word in ("one ", "two"):
            file.write(word)
            file.flush()
            time.sleep(3 * byhand.SETTLE_S)
    assert asked.result()[1]["choices"][0]["message"]["content"] == "one two"


def test_a_reply_that_is_written_piece_by_piece_is_taken_once_it_stays_as_it_is(hand: Hand) -> None:
    asked = hand.asking(chat())
    hand.read()
    for word in ("one ", "two ", "three"):
        with (hand.folder / "0001.reply.md").open("a") as file:
            file.write(word)
        time.sleep(byhand.SETTLE_S / 3)
    assert asked.result()[1]["choices"][0]["message"]["content"] == "one two three"


def test_a_folder_or_a_pipe_in_place_of_a_reply_is_none(hand: Hand) -> None:
    asked = [hand.asking(chat()), hand.asking(chat())]
    hand.read("0002")
    (hand.folder / "0001.reply.md").mkdir()
    os.mkfifo(hand.folder / "0002.reply.md")
    time.sleep(2 * byhand.SETTLE_S)
    assert not any(one.done() for one in asked)
    (hand.folder / "0001.reply.md").rmdir()
    (hand.folder / "0002.reply.md").unlink()
    for number in ("0001", "0002"):
        hand.write("x", number)
    assert [one.result()[0] for one in asked] == [200, 200]


def test_several_asks_are_open_at_once_and_each_gets_its_own_reply(hand: Hand) -> None:
    asked = {text: hand.asking(chat(text)) for text in ("north", "south", "east", "west")}
    until(lambda: len(list(hand.folder.glob("*.ask.md"))) == 4)
    assert hand.http("GET", "/health") == (200, {"status": "ok", "open": ["0001", "0002", "0003", "0004"]})
    for path in sorted(hand.folder.glob("*.ask.md"), reverse=True):
        (text,) = (text for text in asked if text in path.read_text())
        hand.write(f"to the {text}", path.name[:4])
    for text, one in asked.items():
        assert one.result()[1]["choices"][0]["message"]["content"] == f"to the {text}"
    assert hand.http("GET", "/health")[1]["open"] == []


def test_numbers_go_on_and_a_reply_to_an_earlier_server_answers_nothing(hand: Hand) -> None:
    hand.write("old", "0041")
    other = Hand(hand.folder)
    try:
        first, second = hand.asking(chat("a")), other.asking(chat("b"))
        until(lambda: len(list(hand.folder.glob("*.ask.md"))) == 2)
        assert {path.name for path in hand.folder.glob("*.ask.md")} == {"0042.ask.md", "0043.ask.md"}
        hand.write("x", "0042")
        hand.write("x", "0043")
        assert (first.result()[0], second.result()[0]) == (200, 200)
    finally:
        other.end()
    assert not list(hand.folder.glob(".*"))


def test_a_number_is_given_once_however_many_ask_for_one(tmp_path: Path) -> None:
    """Two servers on one folder, in a hurry: no ask is written over another."""
    desks = [Desk(tmp_path, lambda line: None), Desk(tmp_path, lambda line: None)]
    asked = request(json.dumps(chat()).encode())
    with ThreadPoolExecutor(8) as pool:
        numbers = list(pool.map(lambda at: desks[at % 2].ask(asked), range(100)))
    assert sorted(numbers) == [f"{number:04}" for number in range(1, 101)]
    assert len(list(tmp_path.iterdir())) == 100


# ---- who goes away ---------------------------------------------------------------------------------------------------


def test_a_client_that_hangs_up_closes_its_ask(hand: Hand) -> None:
    body = json.dumps(chat()).encode()
    with socket.create_connection(("127.0.0.1", hand.server.server_port)) as client:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        client.sendall(head.encode() + body)
        hand.read()
    assert "what now?" in hand.read(kind="gone")
    assert not (hand.folder / "0001.ask.md").exists()
    until(lambda: len(hand.lines) == 2)
    assert hand.lines[1] == f"ask 0001: the client hung up; it is now {hand.folder}/0001.gone.md"
    assert hand.http("GET", "/health")[1]["open"] == []
    assert not (hand.folder.parent / "cassette").exists()


def test_a_client_keeps_its_connection_for_the_next_ask(hand: Hand) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", hand.server.server_port, timeout=30)
    with contextlib.closing(connection):
        for number in ("0001", "0002"):
            connection.request("POST", "/v1/chat/completions", json.dumps(chat()))
            hand.read(number)
            hand.write("x", number)
            assert json.loads(connection.getresponse().read())["id"] == f"by-hand-{number}"


def test_the_end_of_the_server_is_the_end_of_every_ask(hand: Hand) -> None:
    asked = hand.asking(chat())
    hand.read()
    hand.server.shutdown()
    hand.server.server_close()
    with pytest.raises((http.client.HTTPException, ConnectionError)):
        asked.result(timeout=5)
    assert hand.read(kind="gone")


# ---- what is not served ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (chat(stream=True), "streaming is not played by hand"),
        (chat(n=2), "expected n = 1, found 2"),
        ({"model": "m", "messages": []}, "expected messages, found none"),
        ({"model": "m"}, "missing required field `messages`"),
        ({"messages": [{"role": "user", "content": "x"}]}, "missing required field `model`"),
        ([1], "Expected `object`"),
        (b"{", "found none"),
        (b'{"model": "\xff"}', "found none"),
        (b'{"a":' * 100_000, "found none"),
        (b'{"model": "m", "messages": [{"role": "user", "content": "\\ud800"}]}', "found none"),
        (chat([{"type": "image_url", "image_url": {"url": "x"}}]), "expected messages with a role and text"),
        ({"model": "m", "messages": [{"content": "x"}]}, "expected messages with a role and text"),
        ({"model": "m", "messages": [{"role": "user", "content": 3}]}, "expected messages with a role and text"),
    ],
)
def test_a_request_that_cannot_be_played_is_refused_in_words(hand: Hand, body, message) -> None:
    status, said = hand.http("POST", "/v1/chat/completions", body)
    assert status == 400
    assert message in said["error"]["message"]
    assert list(hand.folder.iterdir()) == []


def test_a_request_over_the_bound_is_refused_although_it_was_sent(hand: Hand) -> None:
    assert hand.http("POST", "/v1/chat/completions", b"x" * (MOST_BYTES + 1))[0] == 413
    assert hand.http("POST", "/v1/chat/completions", b"x" * (8 * MOST_BYTES))[0] == 413
    asked = hand.asking(chat("y" * (MOST_BYTES - 100)))
    hand.read()
    hand.write("x")
    assert asked.result()[0] == 200


def test_a_request_over_the_bound_that_asks_first_is_refused_before_it_is_sent(hand: Hand) -> None:
    with socket.create_connection(("127.0.0.1", hand.server.server_port), timeout=20) as client:
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\n"
        client.sendall(head + b"Content-Length: 9999999\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 413 ")


def test_a_request_without_a_length_is_refused(hand: Hand) -> None:
    with socket.create_connection(("127.0.0.1", hand.server.server_port), timeout=20) as client:
        client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 411 ")


def test_only_programs_on_this_machine_are_served(hand: Hand) -> None:
    assert hand.server.server_address[0] == "127.0.0.1"
    assert hand.http("GET", "/health", Host="evil.example")[0] == 403
    assert hand.http("POST", "/v1/chat/completions", chat(), Origin="https://evil.example")[0] == 403
    assert hand.http("GET", "/health", Host="localhost:1")[0] == 200


def test_other_paths_are_told_what_there_is(hand: Hand) -> None:
    assert hand.http("GET", "/v1/models")[1]["data"][0]["id"] == "by-hand"
    for method, path in (
        ("GET", "/"),
        ("GET", "/../etc/passwd"),
        ("POST", "/v1/completions"),
        ("GET", "/v1/chat/completions"),
    ):
        status, said = hand.http(method, path, chat())
        assert status == 404
        assert "expected " in said["error"]["message"]


def test_more_asks_than_may_be_open_are_sent_away(hand: Hand, monkeypatch) -> None:
    monkeypatch.setattr(byhand, "MOST_OPEN", 1)
    asked = hand.asking(chat())
    hand.read()
    assert hand.http("POST", "/v1/chat/completions", chat())[0] == 503
    hand.write("x")
    assert asked.result()[0] == 200


def test_a_desk_that_cannot_be_written_to_is_told_to_the_client(hand: Hand) -> None:
    hand.folder.rmdir()
    status, said = hand.http("POST", "/v1/chat/completions", chat())
    assert status == 500
    assert "could not be written" in said["error"]["message"]


# ---- the page --------------------------------------------------------------------------------------------------------


def test_a_page_has_all_that_was_sent_under_headings(hand: Hand) -> None:
    schema = {"type": "object", "properties": {"x": {"type": "number"}}}
    form = {"type": "json_schema", "json_schema": {"name": "point", "schema": schema, "strict": True}}
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1"}]},
    ]
    hand.asking({"model": "gpt", "messages": messages, "response_format": form, "seed": 7}, **{byhand.ROLE: "propose"})
    text = hand.read()
    assert 'The model `"gpt"` is asked, in the role `"propose"`.' in text
    heads = re.findall("^## .*", text, re.M)
    assert heads == [
        "## Parameters",
        "## Response schema",
        '## Message 1 of 3, from `"system"`',
        '## Message 2 of 3, from `"user"`',
        '## Message 3 of 3, from `"assistant"`',
    ]
    assert "```text\none two\n```" in text
    assert '```text\n\n{"tool_calls": [{"id": "c1"}]}\n```' in text
    assert json.loads(text.partition("## Response schema\n\n```json\n")[2].partition("\n```\n")[0]) == schema


def unfenced(text: str) -> str:
    """The lines of a page that stand in no fence, as Markdown has it."""
    out, fence = [], ""
    for line in re.split("\r\n|\n|\r", text):
        mark = re.match(" {0,3}(`{3,})", line)
        if not fence and mark:
            fence = mark[1]
        elif fence and re.fullmatch(" {0,3}" + fence + "`*[ \t]*", line):
            fence = ""
        elif not fence:
            out.append(line)
    return "\n".join(out)


PIECES = st.sampled_from(
    ["`", "```", "````", "~~~", "\n", "\n```\n", "\n````\n", "\r", "# Ask", '"', '"`', " ", "\x1b", "\x85", "\u202e"]
)
NASTY = st.lists(PIECES, max_size=8).map("".join) | st.text(st.characters(codec="utf-8"))


@given(st.lists(st.tuples(NASTY, NASTY), min_size=1, max_size=3), NASTY, NASTY)
def test_nothing_that_was_sent_can_be_taken_for_the_frame(messages, model, option) -> None:
    """Outside of fences a page with these messages says what one with plain messages says, but for quoted names."""
    asked = request(
        msgspec.json.encode(chat() | {"stop": option, "messages": [{"role": r, "content": c} for r, c in messages]})
    )
    asked = msgspec.structs.replace(asked, model=model)
    plain = request(
        msgspec.json.encode(chat() | {"stop": "s", "messages": [{"role": "r", "content": "c"}] * len(messages)})
    )
    bare = lambda text: re.sub('`"[^\n]*?"`|^Characters that .*\n\n|^\n', "", unfenced(text), flags=re.M)  # noqa: E731
    assert bare(page("0001", asked)) == bare(page("0001", plain))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", page("0001", asked))


def test_characters_that_are_not_seen_are_written_as_escapes_and_said_to_be() -> None:
    text = page("0001", request(json.dumps(chat("a\x1b[2Jb\u202ec")).encode()))
    assert "a\\u001b[2Jb\\u202ec" in text
    assert "Characters that are not seen, written as escapes: 2" in text
    assert "not seen" not in page("0001", request(json.dumps(chat("a b\tc\nd é")).encode()))


@given(
    st.binary()
    | st.recursive(
        st.none() | st.text() | st.integers(),
        lambda v: (
            st.lists(v)
            | st.dictionaries(
                st.sampled_from(
                    ["model", "messages", "role", "content", "type", "text", "response_format", "json_schema", "schema"]
                ),
                v,
            )
        ),
    ).map(lambda v: json.dumps(v).encode())
)
def test_any_body_is_a_request_or_is_refused(body: bytes) -> None:
    with contextlib.suppress(Wrong):
        request(body)


# ---- cassettes -------------------------------------------------------------------------------------------------------


def test_exchanges_are_recorded_as_the_prompts_they_came_from(hand: Hand) -> None:
    """With the role and schema sent, the digest is the prompt's: a study plays the cassette without the server."""
    prompt = Prompt(
        "propose", (Message("system", "be brief"), Message("user", "x?")), {"type": "object", "b": 1, "a": 2}
    )
    body = {
        "model": "gpt",
        "messages": [{"role": message.role, "content": message.text} for message in prompt.messages],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": prompt.schema}},
    }
    asked = hand.asking(body, **{byhand.ROLE: "propose"})
    hand.read()
    hand.write("finish: length\nx = sk-" + "a" * 30)
    assert "sk-aaa" in asked.result()[1]["choices"][0]["message"]["content"]
    (take,) = takes(hand.folder.parent / "cassette")
    assert (take.prompt, take.role, take.messages) == (prompt.digest(), "propose", prompt.messages)
    assert (take.reply.text, take.reply.finish, take.reply.model) == ("x = REDACTED", "length", "gpt")


def test_an_exchange_that_cannot_be_recorded_is_told_and_answered(hand: Hand) -> None:
    (hand.folder.parent / "cassette").mkdir()
    asked = hand.asking(chat())
    hand.read()
    hand.write("x")
    assert asked.result()[0] == 200
    assert "and not recorded: " in hand.lines[1]


# ---- the verb --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_verb_says_where_it_is_and_ends_at_once(tmp_path: Path, number: int, code: int) -> None:
    command = [str(METALOOP), "model", "serve-by-hand", "--dir", "desk", "--cassette", "c.jsonl"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as served:
        served.stdout.readline()
        url = re.fullmatch(
            r"export OPENAI_BASE_URL=(http://127.0.0.1:\d+/v1) OPENAI_API_KEY=by-hand\n", served.stdout.readline()
        )
        port = int(url[1].rpartition(":")[2].partition("/")[0])
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        with contextlib.closing(client):
            for text, answered in (("x?", True), ("y?", False)):
                client.request("POST", "/v1/chat/completions", json.dumps(chat(text)))
                assert "read desk/000" in served.stderr.readline()
                if answered:
                    (tmp_path / "desk/0001.reply.md").write_text("x = 1")
                    assert json.loads(client.getresponse().read())["choices"][0]["message"]["content"] == "x = 1"
                    assert "answered" in served.stderr.readline()
            idle = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
            idle.request("GET", "/health")
            assert idle.getresponse().read()
            began = time.monotonic()
            served.send_signal(number)
            assert served.wait(timeout=20) == code
            assert time.monotonic() - began < 5
            idle.close()
        assert served.stderr.read() == "ask 0002: the server was ended; it is now desk/0002.gone.md\n"
    assert sorted(path.name for path in (tmp_path / "desk").iterdir()) == [
        "0001.ask.md",
        "0001.reply.md",
        "0002.gone.md",
    ]
    assert len(takes(tmp_path / "c.jsonl")) == 1


def test_a_port_that_is_taken_is_said(hand: Hand, tmp_path: Path) -> None:
    for port in (str(hand.server.server_port), "99999"):
        command = [str(METALOOP), "model", "serve-by-hand", "--port", port, "--dir", str(tmp_path / "d")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 2
        assert f"expected a free port, found {port}" in done.stderr


@pytest.mark.parametrize("argv", [["--help"], ["model", "--help"], ["gc", "--help"]])
def test_the_server_is_loaded_only_where_it_is_started(argv: list[str]) -> None:
    probe = f"import sys; from metaloop.cli import invoke; invoke({argv!r}); print('http.server' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False\n")


# ---- as its clients see it -------------------------------------------------------------------------------------------


def test_the_sdk_of_openai_is_served(hand: Hand) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=hand.server.url, api_key="by-hand", max_retries=0, timeout=30) as client:
        assert [model.id for model in client.models.list()] == ["by-hand"]
        asked = hand.pool.submit(client.chat.completions.create, model="m", messages=chat()["messages"], seed=3)
        assert '"seed": 3' in hand.read()
        hand.write("finish: length\nx =")
        said = asked.result()
        assert (said.choices[0].message.content, said.choices[0].finish_reason) == ("x =", "length")
        assert said.usage.total_tokens == said.usage.prompt_tokens + said.usage.completion_tokens
        with pytest.raises(openai.BadRequestError, match="streaming is not played by hand"):
            client.chat.completions.create(model="m", messages=chat()["messages"], stream=True)
        hurried = client.with_options(timeout=1)
        with pytest.raises(openai.APITimeoutError):
            hurried.chat.completions.create(model="m", messages=chat()["messages"])
        assert hand.read("0002", "gone")
