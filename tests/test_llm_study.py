"""Whole studies with a model, by the real command line: a provider on this machine, over the wire, with faults."""

import json
import os
import re
import signal
import time
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from metaloop.adapters.ledger import read_ledger
from metaloop.events import Finished, Started
from metaloop.testing import FakeProvider
from workshop import Workshop, everything_under, until

pytest.importorskip("openai")
pytestmark = pytest.mark.slow

KEY = "sk-this-key-must-not-be-seen-0123456789"
SCRIPT = (
    "assert not any('KEY' in name for name in os.environ), 'a key'\n"
    "print(f'score={1 - (P.get(\"x\", 0.9) - 0.3) ** 2!r}')\n"
)


def chooses(body: dict) -> str:
    """A point that depends on what was asked, as a model with an opinion."""
    text = json.dumps(body["messages"])
    return json.dumps({"params": {"x": round(Random(text).uniform(0.2, 0.4), 6)}, "why": "near 0.3"})


def shop(folder: Path, provider: FakeProvider, trials: int = 20, **sections: object) -> Workshop:
    keys: dict[str, object] = {
        "policy": {"type": "llm", "params": {"x": {"low": 0.0, "high": 1.0}}},
        "models": {"proposer": {"model": "fake-1", "base_url": provider.url, "deadline_s": 2, "max_tokens": 200}},
        "controller": {"max_iterations": trials},
        "evaluation": {"rule": "strict", "baseline_repeats": 1},
    }
    for name, section in sections.items():
        keys[name] = {**keys.get(name, {}), **section}  # type: ignore[dict-item]
    made = Workshop(folder, SCRIPT, keys)
    made.env = {"OPENAI_API_KEY": KEY}
    return made


FAULTS = (
    "429:0", "500", "503", "cut connection", "truncated body", "empty", "truncated reply", "refusal", "wrong types",
    "html", "thinking blocks", "429:250ms", "huge", "only thought", "error inside",
)  # fmt: skip


def test_a_study_of_twenty_trials_loses_nothing_through_faults(tmp_path: Path) -> None:
    """Every fault there is, one after the other: 20 trials, each the model's own, and the audit holds."""
    with FakeProvider(chooses, FAULTS) as provider:
        made = shop(tmp_path, provider)
        done = made.run("--json", timeout=110)
    assert done.code == 0, done.err
    rows = [row for row in made.rows() if row["role"] == "search"]
    assert len(rows) == 20
    assert {row["status"] for row in rows} == {"ok"}
    assert {row["by"] for row in rows} == {"llm: fake-1"}
    assert not any(row["fallback"] for row in rows)
    assert done.json["asked"]["proposer"]["tokens_in"] > 0
    assert made("audit").code == 0
    assert KEY.encode() not in everything_under(tmp_path)
    assert KEY not in done.out + done.err


def test_a_wrong_key_ends_the_study_with_what_the_provider_said(tmp_path: Path) -> None:
    """One ask, one line, exit code 4; with the right key the same command goes on."""
    with FakeProvider(chooses, forever="401") as provider:
        made = shop(tmp_path, provider, 3)
        done = made.run()
        assert done.code == 4
        assert len(provider.requests) == 1
        assert "401" in done.out
        assert KEY not in done.out + done.err
        provider.forever = ""
        assert made.run().code == 0
    assert len([row for row in made.rows() if row["role"] == "search"]) == 3


def test_an_outage_is_waited_out_and_told(tmp_path: Path) -> None:
    """`metaloop status` shows the role as degraded; when the provider is back, the study goes on and loses nothing."""
    with FakeProvider(chooses, forever="503") as provider:
        made = shop(tmp_path, provider, 3, models={"proposer": {
            "model": "fake-1", "base_url": provider.url, "deadline_s": 0.5}})  # fmt: skip
        process = made.start("run", "study.yaml")
        until(lambda: "degraded" in (made("status").out if (made.study / "ledger.sqlite").exists() else ""), 30)
        provider.forever = ""
        _, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert "proposer: nobody answers" in err
    assert "proposer: answers again" in err
    assert "degraded" not in made("status").out
    assert len([row for row in made.rows() if row["role"] == "search"]) == 3


def test_an_outage_does_not_hold_up_an_interrupt(tmp_path: Path) -> None:
    """SIGTERM is honoured within two seconds, whatever is waited for."""
    with FakeProvider(chooses, forever="429:60") as provider:
        made = shop(tmp_path, provider, 3)
        process = made.start("run", "study.yaml")
        until(lambda: len(provider.requests) > 0, 30)
        until(lambda: "degraded" in made("status").out, 30)
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
        assert time.monotonic() - began < 4  # two on a machine with nothing else to do
    assert process.returncode == 143


def test_a_stand_in_proposes_after_the_deadline_and_says_so(tmp_path: Path) -> None:
    """`fallback: random`: the study goes on at once, each trial says whose it is and why, status counts them."""
    with FakeProvider(chooses, forever="503") as provider:
        made = shop(tmp_path, provider, 3, policy={"fallback": "random"}, models={"proposer": {
            "model": "fake-1", "base_url": provider.url, "deadline_s": 0.5}})  # fmt: skip
        assert made.run(timeout=90).code == 0
    rows = [row for row in made.rows() if row["role"] == "search"]
    assert [row["by"] for row in rows] == ["random"] * 3
    assert all("503" in row["fallback"] for row in rows)
    assert "3 of 4 proposals came from a stand-in" in made("status").out


def test_a_cap_ends_the_study_before_it_is_passed(tmp_path: Path) -> None:
    """What was spent stays within it; the end says what to type."""
    price = {"input": 1000, "output": 1000}
    with FakeProvider(chooses) as provider:
        made = shop(tmp_path, provider, 20, controller={"max_cost_usd": 12}, models={"proposer": {
            "model": "fake-1", "base_url": provider.url, "max_tokens": 200, "price": price}})  # fmt: skip
        done = made.run("--json")
    assert done.json["closed"]["reason"] == "cost"
    assert 0 < done.json["asked"]["proposer"]["usd"] <= 12
    assert 0 < len([row for row in made.rows() if row["role"] == "search"]) < 20
    assert "--max-cost-usd 24" in made.run().out


def test_a_controller_that_is_killed_asks_nothing_twice(tmp_path: Path) -> None:
    """`kill -9` while it asks and runs: the next one goes on; asks that were answered are not made again."""
    with FakeProvider(chooses, latency=0.15) as provider:
        made = shop(tmp_path, provider, 8, controller={"parallel": 2})
        kills = 0
        for wait in (0.9, 1.2, 1.5):
            process = made.start("run", "study.yaml")
            time.sleep(wait)
            process.kill()
            process.wait()
            kills += 1
        assert made.run().code == 0
        bodies = [json.dumps(request.body, sort_keys=True) for request in provider.requests]
    rows = [row for row in made.rows() if row["role"] == "search"]
    assert len(rows) == 8
    assert len(bodies) - len(set(bodies)) <= 2 * 3 * kills  # those that were under way, at most
    assert made("audit").code == 0


def test_asks_are_made_ahead_so_that_no_lane_waits(tmp_path: Path) -> None:
    """A model that takes as long as a trial: two lanes would be busy half of the time, and nearly always are."""
    with FakeProvider(chooses, latency=0.4) as provider:
        made = shop(tmp_path, provider, 16, controller={"parallel": 2})
        (tmp_path / "train.py").write_text("import time\ntime.sleep(0.4)\nprint('score=0.5')\n")
        assert made.run().code == 0
    entries = [entry for entry in read_ledger(made.study) if getattr(entry.event, "trial", None)]
    began = [entry.at for entry in entries if isinstance(entry.event, Started)]
    ended = [entry.at for entry in entries if isinstance(entry.event, Finished)]
    assert sum(b - a for a, b in zip(began, ended, strict=True)) > 0.75 * 2 * (ended[-1] - began[0])


def test_the_environment_of_the_controller_is_not_the_trials(tmp_path: Path) -> None:
    """The key is in no file, no prompt and no trial, whatever the provider repeats of it."""
    with FakeProvider(chooses, ("500", "429:0", "400:max_tokens")) as provider:
        made = shop(tmp_path, provider, 2)
        assert made.run().code == 0
        assert all(KEY not in json.dumps(request.body) for request in provider.requests)
        assert provider.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert KEY.encode() not in everything_under(tmp_path)
    assert not re.search(KEY[:12], "".join(map(str, made.rows())))
    assert "OPENAI_API_KEY" not in os.environ or os.environ["OPENAI_API_KEY"] != KEY


TELLING = (
    "import json\nprint(dict(os.environ))\nopen('env.json', 'w').write(json.dumps(dict(os.environ)))\n"
    "print(open('/proc/self/environ').read().replace(chr(0), chr(10)))\nprint(f'score={P.get(\"x\", 0.9)!r}')\n"
)


@given(key=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=12, max_size=60))
@example(key='sk-"quoted"\\\\and\\/escaped')
@example(key="sk-proj-(.*)[a-z]+$%s{0}\\1")
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_key_is_anywhere_but_in_the_header_it_is_for(tmp_path_factory: pytest.TempPathFactory, key: str) -> None:
    """Whatever it looks like: in no file, no prompt, no trial's environment and nothing that is shown, although the
    provider repeats it in every error and the trial tells all that it can see.
    """
    folder = tmp_path_factory.mktemp("key")
    with FakeProvider(chooses, ("500", "429:0", "400:max_tokens", "", "401")) as provider:
        made = shop(folder, provider, 3)
        (folder / "train.py").write_text("import os\nP = json.loads(os.environ['AR_PARAMS_JSON'])\n".join(
            ("import json\n", TELLING)))  # fmt: skip
        made.env = {"OPENAI_API_KEY": key}
        said = [made(*words) for words in (("run", "study.yaml"), ("check", "study.yaml"), ("status",))]
        said.append(made("run", "study.yaml"))
        assert [done.code for done in said] == [4, 0, 0, 0]
        assert {request.headers["authorization"] for request in provider.requests} == {f"Bearer {key}"}
        told = "".join(json.dumps(request.body) for request in provider.requests)
        told += "".join(done.out + done.err for done in said) + everything_under(folder).decode(errors="replace")
    assert "AR_PARAMS_JSON" in told
    assert "[key]" in told
    assert key not in told
    assert json.dumps(key)[1:-1] not in told


# ---- before it begins ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "model", "finding", "code"),
    [
        ([], "fake", ("provider", "note", "answers, and lists this model"), 0),
        ([], "fakee", ("model_unlisted", "warning", "it lists 1, 'fake' among them"), 0),
        (["404"], "fake", ("provider", "note", "answers (404), and has no list of models"), 0),
        (["html"], "fake", ("provider", "note", "answers (200), and has no list of models"), 0),
        (["401"], "fake", ("key_refused", "error", "401"), 2),
        (["503"], "fake", ("provider_busy", "warning", "503"), 0),
        (["cut connection"], "fake", ("provider_silent", "error", "127.0.0.1"), 2),
        (["307:http://127.0.0.1:9/"], "fake", ("provider_astray", "error", "http://127.0.0.1:9/"), 2),
    ],
)
def test_check_says_whether_the_model_can_be_asked(tmp_path: Path, faults, model: str, finding, code: int) -> None:
    """One request for the list of models, which costs nothing; the key goes nowhere else."""
    with FakeProvider(chooses, faults) as provider:
        made = shop(tmp_path, provider, 3, models={"proposer": {"model": model, "base_url": provider.url}})
        done = made("check", "study.yaml", "--json")
        assert [request.path for request in provider.requests] == ["/v1/models"]
        assert provider.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert done.code == code
    found = {each["code"]: (each["level"], each["text"]) for each in done.json["findings"]}
    assert found[finding[0]][0] == finding[1]
    assert finding[2] in found[finding[0]][1]
    assert KEY not in done.out + done.err


def test_where_somebody_stands_in_a_silent_provider_blocks_nothing(tmp_path: Path) -> None:
    """A warning, and exit code 0."""
    with FakeProvider(chooses, ["401"]) as provider:
        made = shop(tmp_path, provider, 3, policy={"fallback": "random"})
        done = made("check", "study.yaml")
    assert done.code == 0
    assert "warning: proposer: fake-1 at 127.0.0.1" in done.out


def test_check_static_asks_nobody(tmp_path: Path) -> None:
    """It reads the file alone."""
    with FakeProvider(chooses) as provider:
        assert shop(tmp_path, provider, 3)("check", "study.yaml", "--static").code == 0
        assert not provider.requests


def test_a_server_of_this_machine_needs_no_key(tmp_path: Path) -> None:
    """Nobody has to invent one."""
    with FakeProvider(chooses) as provider:
        made = shop(tmp_path, provider, 2)
        made.env = {"OPENAI_API_KEY": ""}
        assert made.run().code == 0
        assert "authorization" not in provider.requests[0].headers


def test_an_address_with_a_secret_in_it_is_refused(tmp_path: Path) -> None:
    """It would be written into the ledger, and shown."""
    with FakeProvider(chooses) as provider:
        made = shop(tmp_path, provider, 2)
        for secret in ("http://me:S3cret@127.0.0.1:9/v1", "http://127.0.0.1:9/v1?api_key=S3cret"):
            made.write(models={"proposer": {"model": "fake-1", "base_url": secret}})
            for verb in ("run", "check"):
                done = made(verb, "study.yaml")
                assert done.code == 2
                assert "S3cret" not in done.out + done.err
                assert "api_key_env" in done.out + done.err
    assert not (made.study / "ledger.sqlite").exists()


def test_a_cap_without_a_price_is_refused_by_check_as_by_run(tmp_path: Path) -> None:
    """A cap that cannot hold is none."""
    with FakeProvider(chooses) as provider:
        made = shop(tmp_path, provider, 2, controller={"max_cost_usd": 1})
        for verb in ("run", "check"):
            done = made(verb, "study.yaml")
            assert done.code == 2
            assert "cannot hold" in done.out + done.err


def test_a_request_that_would_wait_for_what_was_interrupted_is_refused(tmp_path: Path) -> None:
    """`run-one` says that a run has to finish it first, and records nothing."""
    with FakeProvider(chooses, forever="hang") as provider:
        made = shop(tmp_path, provider, 2, models={"proposer": {
            "model": "fake-1", "base_url": provider.url, "deadline_s": 60}})  # fmt: skip
        process = made.start("run", "study.yaml")
        until(lambda: provider.requests, 30)
        process.kill()
        process.wait()
        done = made("run-one", "study.yaml", "--params", '{"x": 0.5}')
        assert done.code == 2
        assert "finishes it first" in done.err
        provider.forever = ""
        assert made.run().code == 0
        assert made("run-one", "study.yaml", "--params", '{"x": 0.5}').code == 0


def test_a_parameter_that_is_refused_is_told_once_and_is_no_outage(tmp_path: Path) -> None:
    """An alert, which stays; nobody is degraded by it."""
    with FakeProvider(chooses, ["400:temperature"]) as provider:
        made = shop(tmp_path, provider, 2, models={"proposer": {
            "model": "fake-1", "base_url": provider.url, "temperature": 0.5}})  # fmt: skip
        assert made.run().code == 0
    told = made("status", "--json").json
    assert [alert.count("refuses temperature") for alert in told["alerts"]] == [1]
    assert told["degraded"] == {}
