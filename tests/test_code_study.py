"""Studies of code by the real command line: real git, real processes, and a working folder that nobody touches."""

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from metaloop.testing import FakeProvider
from workshop import Workshop, marked, until

pytestmark = pytest.mark.slow

FILES = {
    "src/model.py": "RATE = 0.1\nSTEPS = 1\n\n\ndef predict(x):\n    return RATE * STEPS * x\n",
    "src/other.py": "SCALE = 1.0\n",
    "bench.py": "import sys\nsys.path.insert(0, 'src')\nimport model, other\n"
    "print(f'score={model.predict(1) * other.SCALE}')\n",
    "data.json": "[1, 2]\n",
    ".gitignore": "ignored/\n*.pyc\n",
}
ENV = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "PATH": os.environ["PATH"], "HOME": "/none"}


def git(folder: Path, *args: str) -> str:
    argv = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *args]
    return subprocess.run(argv, cwd=folder, env=ENV, check=True, capture_output=True, text=True).stdout


def shop(folder: Path, *, repository: bool = True, **policy: object) -> Workshop:
    """A project in `folder`/project, its study beside its code, and candidates' directories in `folder`/cache."""
    project = folder / "project"
    for path, text in FILES.items():
        (project / path).parent.mkdir(parents=True, exist_ok=True)
        (project / path).write_text(text)
    keys = {
        "target": {"train_cmd": [sys.executable, "bench.py"], "timeout_s": 20},
        "policy": {
            "type": "patches",
            "mutable": ["src/**"],
            "frozen": ["bench.py"],
            "patches": "../ideas",
            "params": {},
        }
        | policy,
        "evaluation": {"rule": "strict", "baseline_repeats": 1},
        "controller": {"max_iterations": 20, "no_improve_limit": 0, "failure_rate_limit": 1.0},
    }
    made = Workshop(project, "", keys)
    made.env = {"XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder / "home")}
    (folder / "ideas").mkdir(exist_ok=True)
    if repository:
        git(project, "init", "-q", "-b", "main")
        git(project, "add", "-A")
        git(project, "commit", "-qm", "base")
    return made


def block(path: str, old: str, new: str) -> str:
    return f"{path}\n<<<<<<< SEARCH\n{old}\n=======\n{new}\n>>>>>>> REPLACE\n"


def ideas(made: Workshop, *texts: str) -> None:
    for number, text in enumerate(texts, 1):
        (made.folder.parent / "ideas" / f"{number:02}.txt").write_text(text)


BETTER = (
    block("src/model.py", "RATE = 0.1", "RATE = 0.2"),
    block("src/other.py", "SCALE = 1.0", "SCALE = 0.5"),
    block("bench.py", "import sys", "print('score=99')\nimport sys"),
    block("src/model.py", "STEPS = 1", "STEPS = 3"),
    block("src/model.py", "STEPS = 3", "STEPS = ("),
    block("src/other.py", "SCALE = 1.0", "SCALE = 2.0"),
)


def state(folder: Path) -> dict[str, object]:
    """Every file below, with its content, mode and times; the study's own folder apart."""
    found: dict[str, object] = {}
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != ".metaloop")
        for path in (Path(root, name) for name in sorted([*folders, *files])):
            told = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            times = told.st_mtime_ns if path.is_file() else 0
            found[path.relative_to(folder).as_posix()] = (told.st_mode, told.st_ino, times, content)
    return found


def slots(made: Workshop) -> list[Path]:
    return list((made.folder.parent / "cache").rglob("metaloop/slots/*/*"))


# ---- what is found, and had ------------------------------------------------------------------------------------------


def test_patches_improve_a_program_and_what_was_found_can_be_had(tmp_path: Path) -> None:
    """Three of six are kept; a branch with one commit, a patch that git applies, and the files themselves."""
    made = shop(tmp_path)
    ideas(made, *BETTER)
    before = state(made.folder)
    done = made.run("--json")
    assert done.code == 0, done.err
    told = {row["trial"]: row["code"] or row["verdict"] for row in made.rows()}
    assert [told[n] for n in range(1, 7)] == [
        "crowned", "discarded", "frozen_file_mutation_blocked", "crowned", "syntax_error", "crowned",
    ]  # fmt: skip
    assert made.rows()[-1]["value"] == pytest.approx(1.2)
    assert made("audit").code == 0
    assert "+RATE = 0.2" in made("diff", "6").out
    assert "RATE" not in made("diff", "6", "4").out
    assert state(made.folder) == before

    assert made("apply", "--branch", "metaloop/best").code == 0
    assert git(made.folder, "rev-parse", "--abbrev-ref", "HEAD").strip() == "main"
    assert "RATE = 0.2\nSTEPS = 3" in git(made.folder, "show", "metaloop/best:src/model.py")
    assert git(made.folder, "diff", "--stat", "main", "metaloop/best").count("|") == 2
    assert "trial 6" in git(made.folder, "log", "-1", "--format=%B", "metaloop/best")
    assert git(made.folder, "status", "--porcelain") == ""
    assert made("apply", "--branch", "metaloop/best").code == 2

    assert made("apply", "--patch", str(tmp_path / "best.patch")).code == 0
    assert made("apply", "--patch", "-").out == (tmp_path / "best.patch").read_text()
    git(made.folder, "apply", "--check", str(tmp_path / "best.patch"))
    version = made.study / "versions" / "v0006" / "code.patch"
    assert version.read_text() == (tmp_path / "best.patch").read_text()

    assert "params" not in made("show", "6").out
    page = made("report").out
    assert "**`score` = 1.2, by trial 6.**" in page
    assert "\n+RATE = 0.2\n" in page
    assert "| 4 | 1 | 0.6 | 0.6 beats 0.2 (trial 1) | src/model.py +1 -1 | patches: 04.txt | on trial 1 |" in page
    assert "2 refused, 1 discarded." in page

    assert made("apply", "--here").code == 0
    assert "RATE = 0.2" in (made.folder / "src/model.py").read_text()
    assert made("apply", "--here").code == 2  # nothing is written over
    assert not slots(made)


def test_where_a_candidates_directory_is_is_said_to_nobody(tmp_path: Path) -> None:
    """Paths in it are told as they are from there; and without parameters nobody is sent to look at them."""
    made = shop(tmp_path)
    ideas(made, BETTER[0], block("src/other.py", "SCALE = 1.0", "import os\nSCALE = open(os.getcwd() + '/src/no')"))
    done = made.run()
    assert "metaloop best" not in done.out
    assert "metaloop diff 1 " in done.out
    for told in (made("status").out, made("show", "2").out, made("export").out, made("report").out):
        assert "No such file or directory: 'src/no'" in told
        assert "/slots/" not in told


def test_the_commit_of_a_branch_says_how_sure_it_is(tmp_path: Path) -> None:
    """As the report does: what is smaller is better by as much, and one that never varied is said to be so."""
    made = shop(tmp_path)
    made.write(objective={"direction": "min"}, evaluation={"rule": "proven", "baseline_repeats": 3})
    ideas(made, block("src/model.py", "RATE = 0.1", "RATE = 0.05"))
    assert made.run().code == 0
    assert made("apply", "--branch", "best").code == 0
    said = "Better than the baseline by 0.05; the metric never varied between runs."
    assert said in git(made.folder, "log", "-1", "--format=%B", "best")
    assert said in made("report").out


def test_a_folder_without_git_will_do(tmp_path: Path) -> None:
    """And is left as it was."""
    made = shop(tmp_path, repository=False)
    ideas(made, BETTER[0])
    before = state(made.folder)
    assert made.run().code == 0
    assert made.rows()[-1]["verdict"] == "crowned"
    assert state(made.folder) == before
    assert "expected a git repository" in made("apply", "--branch", "x").err
    done = made("apply", "--patch", "/nosuch/x")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "--patch /nosuch/x: expected a file that can be written" in done.err
    told = made("apply", "--patch", "../best.patch").out
    subprocess.run(["sh", "-c", told.split("; ")[1]], cwd=made.folder, env=ENV, check=True)
    assert (made.folder / "src/model.py").read_text().startswith("RATE = 0.2\n")


def test_what_the_folder_becomes_under_way_changes_nothing(tmp_path: Path) -> None:
    """The base is what it was at the start; going on, the study knows that alone."""
    made = shop(tmp_path)
    ideas(made, *BETTER[:2])
    assert made.run("--max-iterations", "1").code == 0
    (made.folder / "src/model.py").write_text("RATE = 77\n")
    assert made.run("--max-iterations", "2").code == 0
    rows = made.rows()
    assert rows[-1]["value"] == pytest.approx(0.1)
    done = made("apply", "--here")
    assert (done.code, "src/model.py" in done.err) == (2, True)


@pytest.mark.parametrize("gone", [["src"], ["bench.py"], ["src/model.py", "src/other.py", "bench.py"]])
def test_a_study_goes_on_where_files_have_gone_from_the_folder(tmp_path: Path, gone: list[str]) -> None:
    """Its globs mean what its base holds. A changed frozen file is the base's too; other globs are other terms."""
    made = shop(tmp_path)
    ideas(made, *BETTER[:3])
    assert made.run("--max-iterations", "1").code == 0
    for path in map(made.folder.joinpath, gone):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    done = made.run("--max-iterations", "2")
    assert done.code == 0, done.err
    (made.folder / "bench.py").write_text("print('score=77')\n")
    assert made.run("--max-iterations", "3").code == 0
    assert [row["value"] for row in made.rows()[:3]] == pytest.approx([0.1, 0.2, 0.1])
    assert made("audit").code == 0
    made.write(policy={**made.keys["policy"], "frozen": ["bench.py", "data.json"]})
    done = made.run("--max-iterations", "4")
    assert (done.code, "frozen.data.json was nothing" in done.err) == (2, True)
    made.write(policy={**made.keys["policy"], "frozen": ["nothing.py"]})
    assert "found none that matches 'nothing.py'" in made.run("--max-iterations", "4").err


@pytest.mark.parametrize("how", ["attribute", "setting"])
def test_what_was_found_comes_to_a_repository_that_has_crlf_on_the_disk_alone(tmp_path: Path, how: str) -> None:
    """As a branch with what git would have committed, as a patch, and into the files as they are."""
    made = shop(tmp_path)
    if how == "attribute":
        (made.folder / ".gitattributes").write_text("*.py text eol=crlf\n")
    else:
        git(made.folder, "config", "core.autocrlf", "true")
    git(made.folder, "add", "-A")
    git(made.folder, "commit", "-q", "--allow-empty", "-m", "ends of lines")
    for path in ("src/model.py", "src/other.py", "bench.py"):
        (made.folder / path).unlink()
    git(made.folder, "checkout", "-f", ".")
    assert (made.folder / "src/model.py").read_bytes().startswith(b"RATE = 0.1\r\n")
    assert git(made.folder, "status", "--porcelain") == ""
    ideas(made, BETTER[0])
    assert made.run().code == 0
    done = made("apply", "--branch", "best")
    assert done.code == 0, done.err
    assert git(made.folder, "diff", "--numstat", "HEAD..best") == "1\t1\tsrc/model.py\n"
    told = made("apply", "--patch", "../best.patch").out
    subprocess.run(["sh", "-c", told.split("; ")[1]], cwd=made.folder, env=ENV, check=True)
    assert git(made.folder, "diff", "best") == ""
    git(made.folder, "checkout", "-f", ".")
    assert made("apply", "--here").code == 0
    assert git(made.folder, "diff", "best") == ""
    assert b"RATE = 0.2\r\n" in (made.folder / "src/model.py").read_bytes()


@pytest.mark.parametrize("where", ["folder", "top", "beside", "elsewhere"])
def test_what_was_found_in_a_folder_of_a_repository_goes_back_into_that_folder(tmp_path: Path, where: str) -> None:
    """By the command that is printed, wherever one is; not into files of the same names at the top."""
    top = tmp_path / "mono repo"
    made = shop(top, repository=False)
    made.folder.rename(top / "the project")
    made.folder = top / "the project"
    (top / "src").mkdir()
    (top / "src/model.py").write_text(FILES["src/model.py"])
    git(top, "init", "-q", "-b", "main")
    git(top, "add", "-A")
    git(top, "commit", "-qm", "base")
    ideas(made, BETTER[0], "```python src/new.py\nX = 1\n```\n")
    with (made.folder / "bench.py").open("a") as file:
        file.write("import os\nprint(f'score={model.predict(1) + os.path.exists(\"src/new.py\")}')\n")
    git(top, "commit", "-qam", "new files count")
    assert made.run().code == 0
    study, patch = str(made.study), tmp_path / "best one.patch"
    made.folder = {"folder": made.folder, "top": top, "beside": top / "src", "elsewhere": tmp_path}[where]
    expected = "M\tthe project/src/model.py\nA\tthe project/src/new.py\n"

    told = made("apply", study, "--branch", "best").out
    assert git(top, "diff", "--name-status", "main", "best") == expected
    shown = subprocess.run(["sh", "-c", told.split("; ")[1].removesuffix(" shows it\n")], cwd=made.folder, env=ENV,
                           check=True, capture_output=True, text=True).stdout  # fmt: skip
    assert "+RATE = 0.2" in shown

    told = made("apply", study, "--patch", os.path.relpath(patch, made.folder)).out
    subprocess.run(["sh", "-c", told.split("; ")[1]], cwd=made.folder, env=ENV, check=True)
    git(top, "add", "--all", "the project", "src")
    assert git(top, "diff", "--cached", "--name-status", "--", "src", "the project/src") == expected
    assert git(top, "diff", "--cached", "best", "--", "src", "the project/src") == ""


# ---- the user's own --------------------------------------------------------------------------------------------------


def mess(project: Path) -> None:
    """A tree in every state at once: changed, staged, untracked, ignored, stashed, a failing hook, a detached head."""
    (project / "src/other.py").write_text("SCALE = 3.0\n")
    git(project, "stash")
    (project / "src/model.py").write_text(FILES["src/model.py"] + "# mine\n")
    (project / "data.json").write_text("[3]\n")
    git(project, "add", "data.json")
    (project / "notes $(touch owned).md").write_text("mine\n")
    (project / "ignored").mkdir()
    (project / "ignored" / "big.bin").write_bytes(b"\0" * 1000)
    hook = project / ".git/hooks/pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch owned\nexit 1\n")
    hook.chmod(0o755)
    git(project, "checkout", "-q", "--detach")


@pytest.mark.parametrize("end", ["done", "interrupt", "kill"])
def test_nothing_of_the_users_is_touched_however_it_ends(tmp_path: Path, end: str) -> None:
    """Every byte, mode and time, in .git as well: after discards, Ctrl-C and kill -9, and after going on."""
    made = shop(tmp_path)
    ideas(made, *BETTER)
    mess(made.folder)
    before = state(made.folder)
    if end != "done":
        process = made.start("run", "study.yaml")
        until(lambda: (made.study / "ledger.sqlite").exists() and len(made.rows()) > 2, 30)
        process.send_signal(signal.SIGINT if end == "interrupt" else signal.SIGKILL)
        process.communicate(timeout=30)
        assert state(made.folder) == before
    assert made.run().code == 0
    assert state(made.folder) == before
    assert not list(tmp_path.rglob("owned"))
    assert not slots(made)
    rows = made.rows()
    assert rows[0]["value"] == pytest.approx(0.1)  # the stashed change is not in the base
    assert rows[-1]["verdict"] == "crowned"


def test_kills_at_any_moment_leave_no_directory_process_or_branch(tmp_path: Path) -> None:
    """The study comes out as one that was left alone, and nothing is left of it but its folder."""
    whole, made = shop(tmp_path / "whole"), shop(tmp_path / "killed")
    for each in (whole, made):
        ideas(each, *BETTER)
        slow = FILES["bench.py"].replace("print", "import time\ntime.sleep(0.6)\nprint")
        (each.folder / "bench.py").write_text(slow)
        each.write(controller={"order": "strict"})
    assert whole.run().code == 0
    before, dice, kills = state(made.folder), random.Random(1), 0
    while kills < 12:
        process = made.start("run", "study.yaml")
        try:
            process.wait(timeout=dice.uniform(0.3, 0.8))
            process.communicate()
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            kills += 1
    assert kills > 2
    assert made.run().code == 0
    assert made.trials() == whole.trials()
    assert state(made.folder) == before
    assert not slots(made)
    assert git(made.folder, "branch", "--list").split() == ["*", "main"]
    until(lambda: not marked(str(tmp_path)))


# ---- what candidates do ----------------------------------------------------------------------------------------------


def test_what_a_trial_does_to_its_directory_is_gone_in_the_next(tmp_path: Path) -> None:
    """A run that changes what it was made of, frozen or its own code, is a failed one: its score is nobody's."""
    made = shop(tmp_path)
    forgers = (
        "pathlib.Path('src/other.py').write_text('SCALE = 9')",
        "pathlib.Path('bench.py').write_text('print(1)')",
        "pathlib.Path('bench.py').unlink(); pathlib.Path('bench.py').symlink_to('src/model.py')",
    )
    texts = [block("src/model.py", "RATE = 0.1", f"import pathlib\n{line}\nRATE = 5") for line in forgers]
    litter = "import pathlib\npathlib.Path('junk').mkdir()\npathlib.Path('src/new.py').write_text('1')\nRATE = 0.3"
    clean = "import os\nSCALE = 1.5 * (not os.path.exists('junk/old'))"
    ideas(made, *texts, block("src/model.py", "RATE = 0.1", litter), block("src/other.py", "= 1.0", "= 1.0 * 1"),
          block("src/other.py", "SCALE = 1.0", clean))  # fmt: skip
    assert made.run().code == 0
    rows = made.rows()
    assert [row["status"] for row in rows[1:4]] == ["failed"] * 3
    reasons = [row["reason"] for row in rows[1:4]]
    assert reasons[0] == "src/other.py: the code was changed while it ran"
    assert reasons[1:] == ["bench.py: a frozen file was changed while it ran"] * 2
    assert rows[4]["value"] == pytest.approx(0.3)
    assert rows[5]["code"] == "no_match"  # whole lines
    assert rows[6]["value"] == pytest.approx(0.45)


def test_a_check_comes_before_the_run_of_changed_code(tmp_path: Path) -> None:
    """Its failure is one of the build, and says what it printed; and what was changed is in the environment."""
    check = "import sys; sys.exit('a rate above one') if 'RATE = 2' in open('src/model.py').read() else None"
    made = shop(tmp_path, check_cmd=[sys.executable, "-c", check])
    told = "import base64, os\nsource = os.environ.get('AR_MODIFIED_SOURCE', '')\n"
    told += "assert source in ('', base64.b64encode(open('src/model.py', 'rb').read()).decode())\n"
    text = FILES["bench.py"].replace("print(", f"{told}print(")
    (made.folder / "bench.py").write_text(text)
    ideas(made, block("src/model.py", "RATE = 0.1", "RATE = 2"), BETTER[0])
    assert made.run().code == 0
    rows = made.rows()
    assert (rows[1]["status"], "check ended with exit code 1: a rate above one" in rows[1]["reason"]) == (
        "failed",
        True,
    )
    assert rows[2]["verdict"] == "crowned"
    assert list(made.study.glob("trials/0002/*/check.out"))
    assert not list(made.study.glob("trials/0000/*/check.out"))


def test_one_patch_by_hand(tmp_path: Path) -> None:
    """On the base, recorded and decided; refused with exit code 2, and never run, where it breaks the contract."""
    made = shop(tmp_path, type="static", patches=None)
    good = tmp_path / "good.patch"
    good.write_text("--- a/src/model.py\n+++ b/src/model.py\n@@ -1,2 +1,2 @@\n-RATE = 0.1\n+RATE = 0.4\n STEPS = 1\n")
    bad = {
        "link": "diff --git a/src/x b/src/x\nnew file mode 120000\n--- /dev/null\n+++ b/src/x\n@@ -0,0 +1 @@\n+/etc\n",
        "mode": "diff --git a/bench.py b/bench.py\nold mode 100644\nnew mode 100755\n",
        "rename": "diff --git a/src/other.py b/bench.py\nrename from src/other.py\nrename to bench.py\n",
        "outside": "--- /dev/null\n+++ b/src/../../escaped\n@@ -0,0 +1 @@\n+x\n",
        "hook": "--- /dev/null\n+++ b/.git/hooks/post-commit\n@@ -0,0 +1 @@\n+x\n",
        "prose": "I would raise the rate.\n",
        "empty": "",
        "huge": "--- a/src/model.py\n+++ b/src/model.py\n@@ -1 +1 @@\n-RATE = 0.1\n+" + "#" * (2 << 20),
    }
    done = made("run-one", "study.yaml", "--diff", str(good), "--json")
    assert (done.code, done.json["value"]) == (0, pytest.approx(0.4))
    codes = {}
    for name, text in bad.items():
        (tmp_path / "bad.patch").write_text(text)
        done = made("run-one", "study.yaml", "--diff", str(tmp_path / "bad.patch"), "--json")
        assert done.code == 2, name
        codes[name] = done.json["code"]
        assert done.json["attempts"] == 0
    assert codes == {
        "link": "symlink_blocked", "mode": "mode_change_blocked", "rename": "rename_blocked", "outside": "unsafe_path",
        "hook": "unsafe_path", "prose": "not_an_edit", "empty": "empty_proposal", "huge": "too_large",
    }  # fmt: skip
    assert made("run-one", "study.yaml").code == 2
    assert made("run-one", "study.yaml", "--diff", str(tmp_path / "nothing")).code == 2


# ---- a model ---------------------------------------------------------------------------------------------------------


def test_a_model_changes_code_over_the_wire(tmp_path: Path) -> None:
    """What it sees is the best code; what breaks the contract goes back; who proposed what is in the ledger."""
    pytest.importorskip("openai")
    seen: list[str] = []

    def script(body: dict) -> str:
        text = body["messages"][1]["content"]
        seen.append(text)
        if len(body["messages"]) == 2 and len(seen) == 2:
            return "WHY: the judge\n" + block("bench.py", "import sys", "print('score=1')")
        now = text.split("RATE = ")[1].split()[0]
        return "WHY: a larger rate\n" + block("src/model.py", f"RATE = {now}", f"RATE = {float(now) * 2:.4g}")

    with FakeProvider(script) as provider:
        made = shop(tmp_path, type="llm_diff", patches=None)
        made.write(
            models={"proposer": {"model": "fake", "base_url": provider.url, "deadline_s": 20, "max_tokens": 500}},
            controller={"max_iterations": 3, "order": "strict", "window": 1},
        )
        made.env |= {"OPENAI_API_KEY": "sk-nobody-knows-this-0123"}
        assert made("check", "study.yaml").code == 0
        done = made.run("--json", timeout=100)
    assert done.code == 0, done.err
    rows = made.rows()
    assert [row["value"] for row in rows] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert {row["by"] for row in rows[1:]} == {"llm_diff: fake"}
    assert made("audit").code == 0
    assert not slots(made)


def test_a_hybrid_study_turns_from_parameters_to_code_and_back(tmp_path: Path) -> None:
    """Visible in the rows: parameters, then edits that are kept or fail, then parameters on the best code."""
    made = shop(tmp_path, type="hybrid", arms=["random", "patches"], hybrid_param_explore_iters=2, params={
        "x": {"low": 0.0, "high": 1e-3}}, hybrid_stall_threshold=2, hybrid_diff_failure_limit=2)  # fmt: skip
    read = "import json, os\nx = json.loads(os.environ['AR_PARAMS_JSON']).get('x', 0)\n"
    text = FILES["bench.py"].replace("print", f"{read}print")
    (made.folder / "bench.py").write_text(text.replace("* other.SCALE", "* other.SCALE + x"))
    ideas(made, BETTER[0], BETTER[2], BETTER[4], BETTER[3])
    made.write(controller={"max_iterations": 14})
    assert made.run().code == 0
    rows = made.rows()[1:]
    arms = "".join(row["by"][0] for row in rows)
    assert arms.startswith("r")
    assert "pp" in arms
    assert arms.index("p") < arms.rindex("r")
    last = next(row for row in reversed(rows) if row["by"] == "random")
    assert "src/model.py" in last["files"]


def test_a_study_of_code_goes_on_with_its_own_base_and_no_other(tmp_path: Path) -> None:
    """A snapshot that was damaged is refused in one line, and nothing is run."""
    made = shop(tmp_path)
    ideas(made, *BETTER[:2])
    assert made.run("--max-iterations", "1").code == 0
    head = made.study / "base.git" / "refs" / "heads" / "base"
    head.write_text("0" * 40 + "\n")
    done = made.run("--max-iterations", "2")
    assert done.code == 6
    assert "snapshot" in done.err
    assert sum(line.startswith("metaloop: ") for line in done.err.splitlines()) == 1


# ---- a coding agent --------------------------------------------------------------------------------------------------

AGENT = """
import os, pathlib, re, subprocess, sys
brief = pathlib.Path(os.environ['METALOOP_BRIEF']).read_text()
path = pathlib.Path('src/model.py')
text = path.read_text()
assert 'KEY' not in ''.join(os.environ), 'a key'
log = subprocess.run(['git', 'log', '--oneline'], capture_output=True, text=True, check=True).stdout
assert len(log.splitlines()) == 1, log
rate = float(re.search(r'RATE = (\\S+)', text)[1])
if MODE == 'good':
    path.write_text(text.replace(f'RATE = {rate}', f'RATE = {rate * 2}'))
    pathlib.Path('notes.md').write_text('mine')
    pathlib.Path('src/__pycache__').mkdir(exist_ok=True)
    pathlib.Path('src/__pycache__/x.pyc').write_bytes(b'0')
elif MODE == 'forger':
    pathlib.Path('bench.py').write_text('print("score=9")')
elif MODE == 'teller':
    number = int(re.search(r'This is proposal (\\d+)', brief)[1])
    path.write_text(text.replace(f'RATE = {rate}', f'RATE = {rate * 1.5 + 0.01 * number}'))
    told = re.search(r'The files are as (.*)', brief)[1]
    print("WHY:", told)
    sys.exit()
elif MODE == 'slow':
    import time
    time.sleep(1.0)
    path.write_text(text.replace(f'RATE = {rate}', f'RATE = {rate * 2}'))
print('WHY: a rate of', rate * 2, '' if 'What was wrong with the last attempt' not in brief else 'again')
"""


def employing(folder: Path, mode: str, trials: int = 2, **agent: object) -> Workshop:
    command = [sys.executable, str(folder / "agent.py")]
    made = shop(folder, type="agent", patches=None, agent={"command": command, "timeout_s": 20, **agent})
    (folder / "agent.py").write_text(AGENT.replace("MODE", repr(mode)))
    made.write(controller={"max_iterations": trials})
    made.env |= {"OPENAI_API_KEY": "sk-nobody-knows-this-0123"}
    return made


def test_an_agent_changes_a_copy_and_what_differs_is_the_candidate(tmp_path: Path) -> None:
    """In a repository with one commit, without the controller's keys; its litter stays behind, yours is untouched."""
    made = employing(tmp_path, "good")
    before = state(made.folder)
    done = made.run("--json")
    assert done.code == 0, done.err
    rows = made.rows()
    assert [row["value"] for row in rows] == pytest.approx([0.1, 0.2, 0.4])
    assert rows[1]["files"].keys() == {"src/model.py"}
    assert rows[2]["by"].startswith("agent: python")
    told = made("show", "2").out
    assert "a rate of 0.4; left out: notes.md" in told
    assert "it may use the network" in done.err or "it may use the network" in made.run().err
    assert made("audit").code == 0
    assert state(made.folder) == before
    assert not slots(made)


def test_an_agent_is_told_what_it_has_to_pass(tmp_path: Path) -> None:
    made = employing(tmp_path, "good", 1)
    script = (tmp_path / "agent.py").read_text()
    (tmp_path / "agent.py").write_text(script + "\nprint(brief)\n")
    made.write(gates=[{"name": "small", "cmd": [sys.executable, "-c", "pass"]}])
    assert made.run().code == 0
    said = next(made.study.glob("trials/agent-*/*/agent.out")).read_text()
    assert f"- It has to pass the gate small: `{sys.executable} -c pass` has to end with 0." in said


def test_an_agent_grows_what_a_strategy_picks_and_is_told_so(tmp_path: Path) -> None:
    """Rounds take turns at the three best; each session finds its parent's code, is told whose, and is judged by it."""
    made = employing(tmp_path, "teller", 6)
    made.write(policy={**made.keys["policy"], "frontier": {"strategy": "top_k", "k": 3}})
    assert made.run().code == 0
    rows = made.rows()
    values, parents = [row["value"] for row in rows], [row["parent"] for row in rows]
    assert any(parent != number - 1 for number, parent in enumerate(parents) if number)
    for row in rows[1:]:
        assert row["value"] == pytest.approx(values[row["parent"]] * 1.5 + 0.01 * row["trial"])
        told = made("show", str(row["trial"])).out
        best = max(range(row["trial"]), key=values.__getitem__)
        assert f"trial {row['parent']} has them" in told
        assert ("picked to grow from" in told) == (row["parent"] != best)
        assert row["decision"].startswith("keep") == (row["value"] > values[row["parent"]])
    assert made("audit").code == 0


@pytest.mark.parametrize("mode", ["forger", "idle"])
def test_what_an_agent_may_not_do_is_told_to_it_once_and_then_refused(tmp_path: Path, mode: str) -> None:
    """A frozen file that it changed is a refusal; where it changes nothing, twice, the round begins anew, and that is
    said.
    """
    made = employing(tmp_path, mode, 1)
    made.write(controller={"max_iterations": 1, "max_wall_time_s": 5})
    done = made.run()
    rows = made.rows()
    if mode == "forger":
        assert rows[1]["code"] == "frozen_file_mutation_blocked"
        assert rows[1]["attempts"] == 0
    else:
        assert len(rows) == 1
        assert "nothing is left to try" not in done.out
        assert "begins anew: the agent changed nothing, twice" in done.err
    briefs = sorted(made.study.glob("trials/agent-*/*/agent.out"))
    assert any("again" in path.read_text() for path in briefs)
    assert made("audit").code == 0


def test_an_agent_outlives_a_controller_and_is_not_employed_twice(tmp_path: Path) -> None:
    """After kill -9 the next controller waits for the one that works, and goes on with what it did."""
    made = employing(tmp_path, "slow", 1)
    process = made.start("run", "study.yaml")
    until(lambda: list(made.study.glob("trials/agent-*/*/agent.out")), 30)
    process.kill()
    process.communicate()
    assert made.run().code == 0
    assert made.rows()[1]["value"] == pytest.approx(0.2)
    assert len(list(made.study.glob("trials/agent-*/*"))) == 1
    assert not slots(made)
    until(lambda: not marked(str(tmp_path)))


def test_an_agent_that_takes_too_long_counts_for_what_it_wrote(tmp_path: Path) -> None:
    """Which is nothing, here; its limit is named."""
    made = employing(tmp_path, "slow", 1, timeout_s=0.3)
    made.write(controller={"max_iterations": 1, "max_wall_time_s": 5})
    done = made.run()
    assert (
        "the last: nothing was changed, and it took longer than policy.agent.timeout_s (0.3 s); next try in" in done.err
    )


def test_a_program_that_is_not_there_is_said_before_anything_begins(tmp_path: Path) -> None:
    """Exit code 2, with the key."""
    made = employing(tmp_path, "good", command=["no-such-agent"])
    done = made.run()
    assert done.code == 2
    assert "policy.agent.command" in done.err
    assert not (made.study / "ledger.sqlite").exists()


@pytest.mark.parametrize(
    "command",
    [["check", "--static"], ["check"], ["check", "--static", "--json"], ["run"], ["run-one", "--params", "{}"]],
    ids=" ".join,
)
def test_without_git_a_study_of_code_says_what_to_install_before_anything_begins(
    tmp_path: Path, command: list[str]
) -> None:
    """One line, exit code 2, and nothing is written; also where a study was begun with it."""
    made = shop(tmp_path)
    ideas(made, BETTER[0])
    (tmp_path / "bin").mkdir()
    for begun in (False, True):
        before = state(tmp_path)
        done = made(*command, "study.yaml", env={"PATH": str(tmp_path / "bin")})
        assert done.code == 2
        told = done.json["problems"] if "--json" in command else (done.out + done.err).splitlines()
        assert [("expected git on PATH" in line, "apt install git" in line) for line in told if "git" in line] == [
            (True, True)
        ]
        assert state(tmp_path) == before
        assert (made.study / "ledger.sqlite").exists() == begun
        if not begun:
            assert made.run("--max-iterations", "1").code == 0


@pytest.mark.parametrize("where", ["slot", "trash", "place", "brief", "clock"])
def test_a_link_where_something_of_ours_was_leads_to_nothing_of_the_users(tmp_path: Path, where: str) -> None:
    """A candidate puts it there, with a folder of the user's behind it: nothing is moved, written or deleted there."""
    made = shop(tmp_path)
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "notes").write_text("mine")
    moves = {
        "slot": "p = os.getcwd(); os.rename(p, p + '.x'); os.symlink(V, p)",
        "trash": "shutil.rmtree('../trash'); os.symlink(V, '../trash')",
        "place": "p = os.path.dirname(os.getcwd()); os.rename(p, p + '.x'); os.symlink(V, p)",
        "brief": "os.symlink(V + '/notes', '../65536.brief.md')",
        "clock": "os.path.exists('../0.clock') and os.unlink('../0.clock'); os.symlink(V + '/notes', '../0.clock')",
    }
    deed = f"import os, shutil\nV = {str(victim)!r}\n{moves[where]}\nRATE = 0.2"
    ideas(made, block("src/model.py", "RATE = 0.1", deed), *BETTER[1:2], *BETTER[5:])
    before = state(victim), state(made.folder)
    made.run(timeout=100)
    assert (state(victim), state(made.folder)) == before
    assert made.run(timeout=100).code in (0, 4)
    assert (state(victim), state(made.folder)) == before


# ---- what once went wrong --------------------------------------------------------------------------------------------


def test_a_candidate_that_no_directory_can_hold_fails_and_the_study_goes_on(tmp_path: Path) -> None:
    """A new file behind a link: it cannot be made, is told, and stands in nobody's way."""
    made = shop(tmp_path)
    (made.folder / "src" / "up").symlink_to("..")
    ideas(made, "```python src/up/x.py\nx = 1\n```\n", BETTER[0])
    assert made.run().code == 0
    rows = made.rows()
    assert rows[1]["status"] == "failed"
    assert "src/up" in rows[1]["reason"]
    assert rows[2]["verdict"] == "crowned"
    assert made("audit").code == 0
    assert made.run().code == 0


def test_frozen_files_that_git_ignores_are_watched_where_they_are(tmp_path: Path) -> None:
    """Candidates have a link to them: who writes there, where nothing keeps them from it, ends the study."""
    made = shop(tmp_path, frozen=["bench.py", "ignored/**"])
    made.write(target={**made.keys["target"], "sandbox": {"level": "none"}})
    (made.folder / "ignored").mkdir()
    (made.folder / "ignored/n").write_text("5")
    ideas(made, block("src/model.py", "RATE = 0.1", "open('ignored/n', 'w').write('evil')\nRATE = 3"), BETTER[0])
    done = made.run()
    assert done.code == 2
    assert "ignored/n: a frozen file was changed" in done.err


def test_a_directory_that_went_away_under_a_run_condemns_nobody(tmp_path: Path) -> None:
    """The run is lost, and made again."""
    made = shop(tmp_path)
    slow = FILES["bench.py"].replace("print(", "import os, time\nos.chdir('/')\ntime.sleep(1.5)\nprint(")
    (made.folder / "bench.py").write_text(slow)
    ideas(made, BETTER[0])
    process = made.start("run", "study.yaml", "--max-iterations", "1")
    until(lambda: (made.study / "ledger.sqlite").exists() and len(made.rows()) > 1, 30)
    until(lambda: list(made.study.glob("trials/0001/*/train.out")), 30)
    for place in (tmp_path / "cache/metaloop/slots").iterdir():
        (place / "0").rename(place / "elsewhere")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert made.rows()[1]["verdict"] == "crowned"
    assert made.rows()[1]["attempts"] == 2


def test_patches_are_each_tried_once_under_a_bandit_too(tmp_path: Path) -> None:
    """`learned` puts its own name before theirs."""
    made = shop(tmp_path, type="learned", arms=["random", "patches"], params={"x": {"low": 0.0, "high": 1.0}})
    ideas(made, *BETTER[:2])
    made.write(controller={"max_iterations": 6})
    assert made.run().code == 0
    by = [row["by"] for row in made.rows() if "patches" in row["by"]]
    assert len(by) == len(set(by)) == 2


@pytest.mark.parametrize("name", ["brief", "clock", "lock", "study", "trash"])
def test_an_agent_that_puts_a_folder_where_something_of_ours_belongs_ends_no_study(tmp_path: Path, name: str) -> None:
    """It gives way; the next session, and the next command, find theirs; and nothing of it stays."""
    made = employing(tmp_path, "good", 2)
    made.write(target={**made.keys["target"], "sandbox": {"level": "none"}})
    path = tmp_path / "agent.py"
    where = "os.environ['METALOOP_BRIEF']" if name == "brief" else f"'../{name}'"
    where = "os.environ['METALOOP_BRIEF'].replace('brief.md', 'clock')" if name == "clock" else where
    deed = f"at = pathlib.Path({where})\nimport shutil\nshutil.rmtree(at) if at.is_dir() else at.unlink()\n"
    path.write_text(path.read_text() + deed + "(at / 'in' / 'it').mkdir(parents=True)\n")
    done = made.run()
    assert done.code == 0, done.err
    assert [row["value"] for row in made.rows()] == pytest.approx([0.1, 0.2, 0.4])
    assert not slots(made)
    assert made.run("--max-iterations", "3").code == 0
    assert made.rows()[-1]["value"] == pytest.approx(0.8)
    assert not slots(made)


def test_an_agents_litter_costs_nothing_and_what_it_deletes_is_a_refusal(tmp_path: Path) -> None:
    """Binaries, links and a thousand files that nobody may make are left behind, unread."""
    made = employing(tmp_path, "good", 1)
    script = (tmp_path / "agent.py").read_text()
    litter = (
        "pathlib.Path('a.out').write_bytes(bytes(range(256)))\nos.symlink('/etc/passwd', 'lib.so')\n"
        "os.mkdir('build')\n[pathlib.Path('build', f'{n}.o').write_bytes(b'\\xff') for n in range(1500)]\n"
        "open(b'\\xff.txt', 'w').close()\n"
    )
    (tmp_path / "agent.py").write_text(script.replace("print('WHY", litter + "print('WHY"))
    assert made.run().code == 0
    assert made.rows()[1]["verdict"] == "crowned"

    other = employing(tmp_path / "other", "good", 1)
    path = tmp_path / "other" / "agent.py"
    path.write_text(path.read_text().replace("print('WHY", "os.unlink('bench.py')\nprint('WHY"))
    assert other.run().code == 4
    assert other.rows()[1]["code"] == "deletion_blocked"


def test_a_patch_that_is_no_utf8_is_said_to_be_none(tmp_path: Path) -> None:
    """Nothing is replaced in silence; among others it is a refused trial, and they are tried."""
    made = shop(tmp_path)
    (tmp_path / "latin.patch").write_bytes(
        b"--- a/src/model.py\n+++ b/src/model.py\n@@ -1 +1 @@\n-RATE = 0.1\n+# \xe9\n"
    )
    assert "expected UTF-8" in made("run-one", "study.yaml", "--diff", str(tmp_path / "latin.patch")).err
    (tmp_path / "ideas" / "1.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "ideas" / "2.txt").write_text(BETTER[0])
    (tmp_path / "ideas" / "3.patch").write_bytes((tmp_path / "latin.patch").read_bytes())
    checked = made("check", "--static", "study.yaml")
    assert checked.code == 0
    assert "policy.patches: 1.txt: this file is no UTF-8: byte 0xff at 0; it will be refused" in checked.err
    assert made.run().code == 0
    assert [(row["verdict"], row["code"]) for row in made.rows()[1:]] == [
        ("refused", "not_an_edit"), ("crowned", ""), ("refused", "not_an_edit"),
    ]  # fmt: skip
    assert "no UTF-8: byte 0xe9 at " in made.rows()[3]["reason"]
    assert made("audit").code == 0


def test_what_is_prepared_reaches_candidates_where_git_ignores_it(tmp_path: Path) -> None:
    """Also in a copy of the project: the links lead to its own data."""
    made = shop(tmp_path)
    text = FILES["bench.py"].replace("print", "other.SCALE = float(open('ignored/n').read())\nprint")
    (made.folder / "bench.py").write_text(text)
    made.write(target={"prepare_cmd": ["sh", "-c", "mkdir -p ignored && echo 2 > ignored/n"],
                       "train_cmd": [sys.executable, "bench.py"]})  # fmt: skip
    ideas(made, *BETTER[:1], block("src/model.py", "STEPS = 1", "STEPS = 2"))
    assert made.run("--max-iterations", "1").code == 0
    assert [row["value"] for row in made.rows()] == pytest.approx([0.2, 0.4])
    copy = tmp_path / "copy"
    shutil.copytree(made.folder, copy / "project", symlinks=True)
    shutil.copytree(tmp_path / "ideas", copy / "ideas")
    (copy / "project/ignored/n").write_text("5")
    other = Workshop(copy / "project", "", made.keys)
    other.env = made.env
    assert other.run("--max-iterations", "2").code == 0
    assert other.rows()[2]["value"] == pytest.approx(2.0)


def test_what_is_ignored_below_the_top_reaches_candidates_and_what_is_too_much_is_told(tmp_path: Path) -> None:
    """Prepared on the way, beside tracked files; and one line where links are too many."""
    made = shop(tmp_path)
    (made.folder / "logs").mkdir()
    (made.folder / "logs/read.me").write_text("tracked")
    (made.folder / ".gitignore").write_text("raw/\n*.log\n")
    git(made.folder, "add", "-A")
    for number in range(1001):
        (made.folder / f"logs/{number}.log").touch()
    text = FILES["bench.py"].replace("print", "other.SCALE = float(open('src/raw/n').read())\nprint")
    (made.folder / "bench.py").write_text(text)
    made.write(target={"prepare_cmd": ["sh", "-c", "mkdir -p src/raw && echo 2 > src/raw/n"],
                       "train_cmd": [sys.executable, "bench.py"]})  # fmt: skip
    ideas(made, BETTER[0])
    done = made.run()
    assert done.code == 0
    assert [row["value"] for row in made.rows()] == pytest.approx([0.2, 0.4])
    assert done.err.count("logs: candidates are without 1001 entries that git ignores there") == 1
    assert made("check", "study.yaml", "--json").json


def test_a_link_that_leaves_the_project_by_a_relative_path_leads_to_the_same_place(tmp_path: Path) -> None:
    """Data beside the project, which the candidate's code reads through it."""
    made = shop(tmp_path)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared/n").write_text("2")
    (made.folder / "shared").symlink_to("../shared")
    text = FILES["bench.py"].replace("print", "other.SCALE = float(open('shared/n').read())\nprint")
    (made.folder / "bench.py").write_text(text)
    git(made.folder, "add", "-A")
    ideas(made, BETTER[0])
    before = state(made.folder), state(tmp_path / "shared")
    assert made.run().code == 0
    assert [row["value"] for row in made.rows()] == pytest.approx([0.2, 0.4])
    assert (state(made.folder), state(tmp_path / "shared")) == before


def test_a_patch_whose_name_has_line_ends_makes_no_lines_of_its_own(tmp_path: Path) -> None:
    """It could pass for the row of another trial."""
    made = shop(tmp_path)
    name = "01\n   9  crowned      99         better by 98.txt"
    (tmp_path / "ideas" / name).write_text(block("src/model.py", "RATE = 0.1", "RATE = 0.2"))
    done = made.run()
    assert done.code == 0, done.err
    for told in (done.err, made("status").out, made("show", "1").out):
        assert not [line for line in told.splitlines() if line.startswith("   9")]
