"""What trials may reach: the user's own programs nearly all, candidates what is named, and nobody what is secret."""

import json
import os
import socket
import sys
from pathlib import Path

import pytest

from metaloop.adapters.ground import caches, made_of, secrets
from metaloop.adapters.ledger import read_ledger
from metaloop.adapters.sandbox import climb
from metaloop.study import fold
from test_code_study import block, ideas, shop
from test_code_study import employing as employed
from test_separate import separate
from workshop import Workshop

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
    assert caches(str(home), {"HF_HOME": str(real), "HOME": str(home), "PIP_CACHE_DIR": "relative"}) == (str(real),)


def test_employed_agents_still_work(tmp_path: Path) -> None:
    made = employed(tmp_path, "good", 1)
    assert made.run().code == 0
    assert made.rows()[1]["value"] == pytest.approx(0.2)
