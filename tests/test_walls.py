"""What trials may reach: the user's own programs nearly all, candidates what is named, and nobody what is secret."""

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from metaloop.adapters.ground import caches, made_of, secrets
from metaloop.adapters.host import trusted
from metaloop.adapters.ledger import read_ledger
from metaloop.adapters.sandbox import climb
from metaloop.study import fold
from test_code_study import block, git, ideas, shop
from test_code_study import employing as employed
from test_separate import TRAIN, separate
from workshop import Workshop, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(climb("auto").name != "bubblewrap", reason="needs bubblewrap"),
]

ORDINARY = """
import multiprocessing, pathlib, socket, tempfile
from multiprocessing import shared_memory
x = P.get('x', 0.5)
pathlib.Path('checkpoints').mkdir(exist_ok=True)
pathlib.Path('checkpoints/last.bin').write_bytes(b'0' * 1000)
pathlib.Path(os.environ['XDG_CACHE_HOME'], 'kernels').write_text('compiled')
data = float(pathlib.Path(DATA, 'numbers.txt').read_text())
with tempfile.NamedTemporaryFile(dir='/tmp') as file: file.write(b'x')
block = shared_memory.SharedMemory(create=True, size=100 << 20)
block.buf[-1] = 1
block.close(); block.unlink()
with multiprocessing.Pool(2) as pool: pool.map(abs, range(10))
socket.create_connection(('127.0.0.1', PORT), timeout=5).close()
socket.getaddrinfo('localhost', 80)
print(f'score={x * data}')
"""


def test_an_ordinary_program_runs_as_it_always_did(tmp_path: Path) -> None:
    """With its environment, caches and data outside of the folder, processes, shared memory and the network."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/numbers.txt").write_text("2.0")
    (tmp_path / "cache").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = ORDINARY.replace("DATA", repr(str(tmp_path / "data")))
        made = Workshop(tmp_path / "s", script.replace("PORT", str(server.getsockname()[1])))
        made.write(target={"env": {"XDG_CACHE_HOME": str(tmp_path / "cache")}})
        done = made.run()
    assert done.code == 0, done.err
    assert "held by bubblewrap" in done.err
    assert "held in bubblewrap" in made("status").out
    assert (made.folder / "checkpoints/last.bin").exists()
    assert (tmp_path / "cache/kernels").read_text() == "compiled"
    assert {row["rung"] for row in made.rows()} == {"bubblewrap"}
    assert {row["tier"] for row in made.rows()} == {"parameters"}


NOSY = """
import pathlib
found = {}
for name in NAMES:
    try: found[name] = pathlib.Path(name).read_text()
    except OSError as error: found[name] = error.strerror
pathlib.Path('found.json').write_text(json.dumps(found))
print('score=1')
"""


def looked_for(made: Workshop, *paths: Path | str) -> list[str]:
    made.script = NOSY.replace("NAMES", repr([str(path) for path in paths]))
    (made.folder / "train.py").write_text("import json, os, sys, time\n" + made.script)
    made.write(controller={"max_iterations": 1})
    assert made.run().code == 0
    return list(json.loads((made.folder / "found.json").read_text()).values())


def test_secrets_and_the_ledger_are_nobodys_to_read(tmp_path: Path) -> None:
    """Nor what is elsewhere to write; what the user names is."""
    home = tmp_path / "home"
    for path in (".ssh/id", ".netrc", ".config/gh/hosts.yml", ".aws/credentials", "notes.txt"):
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text("mine")
    made = Workshop(tmp_path / "s")
    made.env = {"HOME": str(home)}
    names = [".ssh/id", ".netrc", ".config/gh/hosts.yml", ".aws/credentials", "notes.txt"]
    seen = looked_for(made, *(home / name for name in names), made.study / "ledger.sqlite")
    assert [word == "mine" for word in seen] == [False, False, False, False, True, False]
    made.write(name="t", target={"sandbox": {"read": [str(home / ".netrc")]}})
    assert looked_for(made, home / ".netrc", home / ".ssh/id")[0] == "mine"


def test_what_is_private_is_for_the_evaluator_alone(tmp_path: Path) -> None:
    """Where trials are parameters, too."""
    script = "print(os.path.getsize('labels.txt'))\n"
    made = Workshop(tmp_path / "s", script + "print('score=1')")
    (made.folder / "labels.txt").write_text("secret")
    score = "import pathlib; print('score=%d' % len(pathlib.Path('labels.txt').read_text()))"
    made.write(
        target={"eval_cmd": [sys.executable, "-c", score], "private": ["labels.txt"]},
        controller={"max_iterations": 1},
    )
    assert made.run().code == 0
    assert {row["value"] for row in made.rows()} == {6.0}
    outputs = [path.read_text() for path in made.study.glob("trials/*/*/train.out")]
    assert outputs
    assert "6" not in "".join(outputs)


STEERS = """
import json, os
inbox = os.environ['METALOOP_STUDY'] + '/inbox'
os.makedirs(inbox, exist_ok=True)
json.dump({'request': 'r1', 'op': 'ungate', 'by': 'root', 'why': '', 'text': 'small'}, open(inbox + '/r1.json', 'w'))
RATE = 0.9"""


def test_candidates_cannot_steer_the_study_that_tries_them(tmp_path: Path) -> None:
    made = shop(tmp_path)
    gate = "import sys; sys.path.insert(0, 'src'); import model; assert model.RATE < .5"
    made.write(gates=[{"name": "small", "cmd": [sys.executable, "-c", gate], "phase": "post"}])
    ideas(made, block("src/model.py", "RATE = 0.1", STEERS), block("src/model.py", "RATE = 0.1", "RATE = 0.9"))
    made.run()
    assert [row["verdict"] for row in made.rows()[1:]] == ["failed", "failed"]
    assert "small" in fold(read_ledger(made.study)).gates


def test_an_agent_sees_the_machine_but_nothing_private_and_no_study(tmp_path: Path) -> None:
    """It cannot put labels into its code that it never saw, nor take away what holds it."""
    made = separate(tmp_path)
    wanted = [made.folder / "data/labels.json", made.study / "base.git/HEAD", made.folder / "score.py"]
    agent = (
        "import pathlib\nfor path in " + repr([str(path) for path in wanted]) + ":\n"
        "    try: print(path, len(pathlib.Path(path).read_text()))\n"
        "    except OSError as error: print(path, error.strerror)\n"
        "print([str(p) for p in pathlib.Path('..').rglob('labels.json')])\n"
        "p = pathlib.Path('src/train.py'); p.write_text(p.read_text().replace('RATE = 0.5', 'RATE = 0.75'))\n"
    )
    (tmp_path / "agent.py").write_text(agent)
    policy = {"type": "agent", "patches": None, "agent": {"command": [sys.executable, str(tmp_path / "agent.py")]}}
    made.write(policy={**made.keys["policy"], **policy}, controller={"max_iterations": 1})
    assert made.run().code == 0
    (said,) = [path.read_text().splitlines() for path in made.study.glob("trials/agent-*/*/agent.out")]
    assert [line.split(" ", 1)[1][:3] for line in said[:2]] != ["20 ", "4 "]
    assert not said[0].rpartition(" ")[2].isdigit()
    assert not said[1].rpartition(" ")[2].isdigit()
    assert said[2].rpartition(" ")[2].isdigit()
    assert said[3] == "[]"
    assert made.rows()[1]["verdict"] == "crowned"


PROBES = """
import json, os, pathlib, socket, subprocess, sys
def read(path): return pathlib.Path(path).read_text()
def write(path, text='mine'): pathlib.Path(path).write_text(text); return 'written'
def listed(path): return sorted(os.listdir(path))
def git(*words): return subprocess.run(['git', '-c', 'safe.directory=*', *words], capture_output=True, text=True).stdout
def dial(path):
    with socket.socket(socket.AF_UNIX) as s: s.settimeout(3); s.connect(path)
    return 'reached'
found = {}
for name, expression in EXPRESSIONS.items():
    try: found[name] = eval(expression)
    except Exception as error: found[name] = type(error).__name__
print('FOUND ' + json.dumps(found))
"""


def probed(expressions: dict[str, str]) -> str:
    return PROBES.replace("EXPRESSIONS", repr(expressions))


def found(made: Workshop, pattern: str) -> dict[str, object]:
    """What the probes of the last job that printed any came to."""
    outputs = sorted(made.study.glob(pattern), key=lambda path: path.stat().st_mtime)
    lines = [line for path in outputs for line in path.read_text().splitlines() if line.startswith("FOUND ")]
    return json.loads(lines[-1].removeprefix("FOUND "))


def agents(
    made: Workshop, expressions: dict[str, str], sandbox: dict[str, object], **agent: object
) -> dict[str, object]:
    """What an agent finds; its script lies beside the project, and it has a scorer's Python in ~/.cache."""
    script = made.folder.parent / "agent.py"
    script.write_text(probed(expressions))
    policy = {"type": "agent", "patches": None, "agent": {"command": [sys.executable, str(script)], **agent}}
    made.write(
        policy={**made.keys["policy"], **policy},
        target={**made.keys["target"], "sandbox": sandbox},
        controller={"max_iterations": 1},
    )
    made.run()
    return found(made, "trials/agent-*/*/agent.out")


def test_what_we_run_ourselves_is_looked_for_outside_of_home_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent that has HOME could have put something there."""
    for place in ("home/bin", "away"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "tool").write_text("#!/bin/sh\n")
        (tmp_path / place / "tool").chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path}/home/bin:{tmp_path}/away")
    assert trusted("tool") == str(tmp_path / "away/tool")
    (tmp_path / "away/tool").unlink()
    assert trusted("tool") == str(tmp_path / "home/bin/tool")
    assert trusted("no such tool") == ""


def scorers_python(made: Workshop, place: Path) -> Path:
    """A virtual environment of the scorer's."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    made.write(target={**made.keys["target"], "eval_cmd": [str(place / "bin/python"), "score.py"]})
    return place


@pytest.mark.parametrize("wide", [False, True])
def test_an_agent_can_change_nothing_that_candidates_are_scored_by(tmp_path: Path, wide: bool) -> None:
    """Nor read what is private from the project's history, however much of HOME is opened for it."""
    made = separate(tmp_path)
    home = tmp_path / "home"
    (home / ".cache/uv").mkdir(parents=True)
    (home / ".netrc").write_text("mine")
    (home / "bin").mkdir()
    made.env |= {"XDG_CACHE_HOME": str(home / ".cache"), "PATH": f"{home}/bin:{os.environ['PATH']}"}
    venv = scorers_python(made, home / ".cache/venv")
    (made.folder / "data/labels.json").chmod(0o644)
    with socket.socket(socket.AF_UNIX) as service:
        service.bind(str(tmp_path / "sock"))
        service.listen()
        probes = {
            "its own folder": "write('src/new.py', 'A = 1')",
            "its own /tmp": "write('/tmp/mine')",
            "history": f"git('-C', {str(made.folder)!r}, 'show', 'HEAD:data/labels.json')",
            "objects": f"listed({str(made.folder / '.git')!r})",
            "labels": f"read({str(made.folder / 'data/labels.json')!r})",
            "a renamed folder": f"os.rename({str(made.folder / 'data')!r}, {str(made.folder / 'old')!r})",
            "the scorer": f"write({str(made.folder / 'score.py')!r})",
            "the scorer's Python": f"write({str(venv / 'lib/sitecustomize.py')!r})",
            "its packages": f"write({str(home / '.cache/uv/x')!r})",
            "a folder where programs are looked for": f"write({str(home / 'bin/git')!r})",
            "a device": "write('/dev/of-an-agent')",
            "slots": f"listed({str(home / '.cache/metaloop/slots')!r})",
            "the study": f"read({str(made.study / 'ledger.jsonl')!r})",
            "a secret": f"read({str(home / '.netrc')!r})",
            "a service in /tmp": f"dial({str(tmp_path / 'sock')!r})",
            "HOME": f"write({str(home / 'notes')!r})",
        }
        opened = {"read": [str(tmp_path)], "write": [str(home)]} if wide else {}
        seen = agents(made, probes, opened, home=wide)
    assert (seen.pop("its own folder"), seen.pop("its own /tmp")) == ("written", "written")
    assert seen.pop("HOME") == "written"  # in /tmp, here, and of that it has its own
    assert (home / "notes").exists() == wide
    assert seen.pop("a service in /tmp") == (
        "reached" if wide else "FileNotFoundError"
    )  # who shows it shows its sockets
    assert seen.pop("history") == ""
    assert len(seen.pop("slots")) == 1  # the way to its own
    assert all(not value or str(value).endswith("Error") for value in seen.values()), seen
    assert not (tmp_path / "mine").exists()
    assert made.rows()[0]["value"] == pytest.approx(0.875)


def test_what_is_shown_to_candidates_hides_what_was_hidden(tmp_path: Path) -> None:
    """Private files, other candidates, studies, and secrets stay so where a folder above them is named; and what the
    scorer's program is made of was never there.
    """
    made = separate(tmp_path)
    home = tmp_path / "home"
    home.mkdir()
    (home / ".netrc").write_text("mine")
    other = Workshop(tmp_path / "other")
    other.env = made.env
    assert other.run("--max-iterations", "1").code == 0
    venv = scorers_python(made, tmp_path / "elsewhere/venv")
    probes = {
        "labels": f"read({str(made.folder / 'data/labels.json')!r})",
        "history": f"listed({str(made.folder / '.git')!r})",
        "slots": f"listed({str(tmp_path / 'cache/metaloop/slots')!r})",
        "the study": f"read({str(made.study / 'ledger.jsonl')!r})",
        "a secret": f"read({str(home / '.netrc')!r})",
        "another study's key": f"read({str(other.study / 'lanes/0/key')!r})",
        "its own folder": "listed('data')",
    }
    hidden = {
        "the scorer's Python": f"listed({str(venv)!r})",
        "what a private link leads to": f"read({str(tmp_path / 'truth')!r})",
    }
    made.write(
        target={
            **made.keys["target"],
            "sandbox": {"read": [str(made.folder)]},
        }
    )
    ideas(made, f"src/train.py\n```\n{probed(probes | hidden)}\n{TRAIN}\n```\n")
    assert made.run().code == 0
    narrow = found(made, "trials/0001/*/train.out")
    assert all(str(narrow.pop(name)).endswith("Error") for name in hidden), narrow
    made.write(name="t", target={**made.keys["target"], "sandbox": {"read": [str(tmp_path)]}})
    assert made.run().code == 0
    (wide,) = made.folder.glob(".metaloop/t/trials/0001/*/train.out")
    seen = json.loads(wide.read_text().splitlines()[0].removeprefix("FOUND "))
    assert seen.pop("the scorer's Python")  # the user showed it
    for each in (narrow, seen):
        assert each.pop("its own folder") == ["inputs.json"]
        slots = each.pop("slots")
        assert slots == "FileNotFoundError" or len(slots) == 1, slots  # the way to its own
        assert all(not value or str(value).endswith("Error") for value in each.values()), each


def test_what_is_prepared_may_be_private(tmp_path: Path) -> None:
    """It is hidden from trials though it was not there when the study began."""
    made = Workshop(tmp_path / "s", "")
    (made.folder / "train.py").write_text(probed({"labels": "read('data/a.labels')", "data": "read('data/b.csv')"}))
    prepare = "import os; os.mkdir('data'); open('data/a.labels', 'w').write('1'); open('data/b.csv', 'w').write('2')"
    made.write(
        target={
            "prepare_cmd": [sys.executable, "-c", prepare],
            "eval_cmd": [sys.executable, "-c", "print('score=%s' % open('data/a.labels').read())"],
            "private": ["data/*.labels"],
        },
        controller={"max_iterations": 1},
    )
    done = made.run()
    assert done.code == 0, done.err
    assert [row["value"] for row in made.rows()] == [1.0]
    assert found(made, "trials/0001/*/train.out") == {"labels": "PermissionError", "data": "2"}


def test_what_is_prepared_in_a_folder_that_git_ignores_may_be_private(tmp_path: Path) -> None:
    """Candidates have the folder by a link, and all in it but that; their scorer has that too."""
    made = separate(tmp_path)
    shutil.move(made.folder / "data", tmp_path / "made")
    (made.folder / ".gitignore").write_text("data/\n")
    git(made.folder, "add", "-A")
    git(made.folder, "commit", "-qm", "without data")
    prepare = f"import shutil; shutil.copytree({str(tmp_path / 'made')!r}, 'data')"
    made.write(target={**made.keys["target"], "prepare_cmd": [sys.executable, "-c", prepare]})
    probes = {"labels": "read('data/labels.json')", "folder": "len(listed('data'))"}
    ideas(made, f"src/train.py\n```\n{probed(probes)}\n{TRAIN.replace('0.5', '0.75')}\n```\n")
    done = made.run()
    assert done.code == 0, done.err
    assert [row["value"] for row in made.rows()] == pytest.approx([0.875, 0.9375])
    assert found(made, "trials/0001/*/train.out") == {"labels": "PermissionError", "folder": 2}


def without_bubblewrap(folder: Path) -> str:
    """A PATH with everything but bwrap."""
    place = folder / "bin"
    place.mkdir()
    for name in ("git", "python3", "sh", "env"):
        for path in os.environ["PATH"].split(os.pathsep):
            if (found := Path(path, name)).exists():
                (place / name).symlink_to(found)
                break
    return str(place)


def test_a_rung_is_never_lowered_in_silence(tmp_path: Path) -> None:
    """A study that began in bubblewrap goes on by less only where somebody says so; what is asked for and not there is
    refused.
    """
    made = Workshop(tmp_path / "s")
    assert made.run("--max-iterations", "1").code == 0
    less = {"PATH": without_bubblewrap(tmp_path)}
    done = made.run("--max-iterations", "2", env=less)
    assert done.code == 2
    assert "expected bubblewrap, in which this study's trials ran so far, found " in done.err
    made.write(target={"sandbox": {"level": "bubblewrap"}}, name="t")
    done = made.run(env=less)
    assert (done.code, "bubblewrap" in done.err, made.folder.joinpath(".metaloop/t").exists()) == (2, True, False)
    made.write(target={"sandbox": {"level": "none"}}, name="s")
    done = made.run("--max-iterations", "2", env=less)
    assert (done.code, "no sandbox" in done.err) == (0, True), done.err
    assert [row["rung"] for row in made.rows()] == ["bubblewrap", "none"]


def test_what_a_program_is_made_of(tmp_path: Path) -> None:
    """The folder that its bin is in, through links and virtual environments; of a HOME or a project only its parts."""
    real, venv, home = tmp_path / "python", tmp_path / "venv", tmp_path / "home"
    for folder in (real / "bin", real / "lib", venv / "bin", home / "bin", home / "lib", home / "private"):
        folder.mkdir(parents=True)
    (real / "bin/python3").touch()
    (venv / "bin/python").symlink_to(real / "bin/python3")
    (venv / "pyvenv.cfg").write_text(f"home = {real}/bin\n")
    (home / "bin/tool").touch()
    assert made_of(str(venv / "bin/python"), [str(home)]) == (str(venv), str(real))
    assert made_of(str(home / "bin/tool"), [str(home)]) == (str(home / "bin"), str(home / "lib"))
    assert made_of("/usr/bin/env", [str(home)]) == ("/usr/bin/env",)
    (tmp_path / "script").write_text("#!/usr/bin/env -S python3 -u\n")
    assert made_of(str(tmp_path / "script"), [], f"{real}/bin") == (str(tmp_path / "script"),)
    (real / "bin/python3").chmod(0o755)
    assert made_of(str(tmp_path / "script"), [], f"{real}/bin") == (str(tmp_path / "script"), str(real))
    assert secrets(str(home)) == ()
    told = {"HF_HOME": str(real), "HOME": str(home), "PIP_CACHE_DIR": "relative", "JAVA_HOME": str(venv)}
    told |= {
        "A_CACHE": "/usr/lib",
        "B_CACHE": "/",
        "C_CACHE": str(home.parent),
        "D_CACHE": str(home),
        "E_CACHE": "/etc",
    }
    assert caches(str(home), told) == (str(real),)


def test_employed_agents_still_work(tmp_path: Path) -> None:
    made = employed(tmp_path, "good", 1)
    assert made.run().code == 0
    assert made.rows()[1]["value"] == pytest.approx(0.2)


def test_the_key_of_a_lane_is_where_no_trial_sees_it_and_goes_with_the_study(tmp_path: Path) -> None:
    """While a study is interrupted it stays, for what its trials may still leave."""
    (tmp_path / "home").mkdir()
    made = Workshop(tmp_path / "s", "time.sleep(60 if os.environ['METALOOP_TRIAL'] == '2' else 0)\nprint('score=1')")
    made.env = {"HOME": str(tmp_path / "home")}
    keys = tmp_path / "home/.cache/metaloop/keys"
    process = made.start("run", "study.yaml", "--max-iterations", "2")
    until(lambda: made.alive() and len(made.rows()) > 1)
    assert (made.study / "lanes/0/key").readlink().parent == keys
    assert [path.stat().st_mode & 0o77 for path in keys.iterdir()] == [0]
    process.kill()
    process.communicate(timeout=20)
    assert len(list(keys.iterdir())) == 1
    made.write(target={"timeout_s": 1})
    assert made.run("--max-iterations", "2").code in (0, 4)
    assert not keys.exists()
    assert made("audit").code == 0
