"""The command line at its edges: one line, the right exit code, and nothing done."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from metaloop import cli
from metaloop.cli import tidy
from metaloop.cli.output import clean, overwrite
from workshop import BOWL, METALOOP, Workshop, until

HERE = Path(__file__).parent
BAD = sorted(path for path in (HERE / "bad_configs").glob("*.yaml") if not path.name.startswith(("00", "27")))


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def called(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.invoke(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("verb", ["run", "check"])
@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_file_gets_a_line_a_fault_and_nothing_is_created(inside: Path, capsys, path: Path, verb: str) -> None:
    """File, line, key and what to do; exit code 2; in under a second of work."""
    (inside / path.name).write_bytes(path.read_bytes())
    for name in ("00_good.yaml", "train.py"):
        (inside / name).write_text("")
    before = sorted(inside.rglob("*"))
    began = time.process_time()
    code, out, err = called(capsys, verb, path.name)
    assert time.process_time() - began < 2
    assert (code, out) == (2, "")
    assert err
    for line in err.splitlines():
        assert re.match(rf"metaloop: {re.escape(path.name)}:\d+: ", line), line
    assert sorted(inside.rglob("*")) == before
    assert not Path("/tmp/metaloop_attack_yaml").exists()


def test_the_article_is_valid_and_says_exactly_what_is_missing(inside: Path, capsys, monkeypatch) -> None:
    """It validates as it is; to run it, two keys and a part of a later version are missing, a line each."""
    (inside / "article.yaml").write_bytes((HERE / "data/article.yaml").read_bytes())
    monkeypatch.delenv("CHUTES_API_KEY", raising=False)
    code, _, err = called(capsys, "run", "article.yaml")
    assert code == 2
    assert "CHUTES_API_KEY is not set" in err
    assert "BASILICA_API_TOKEN is not set" in err
    assert len(err.splitlines()) == 3
    monkeypatch.setenv("CHUTES_API_KEY", "x")
    code, _, err = called(capsys, "check", "article.yaml")
    assert code == 2
    assert "CHUTES_API_KEY" not in err
    assert [path.name for path in inside.iterdir()] == ["article.yaml"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["statsu"], "did you mean 'status'"),
        (["nothing.yaml"], "expected a study file, found none"),
        (["run"], "expected a study file, or --cmd, --metric and --param"),
        (["run", "--cmd", "true"], "--metric, --param missing"),
        (["run", "--max-iter", "3"], "--max-iter"),
        (["run", "study.yaml", "--cmd", "true"], "found both"),
        (["run", "--cmd", "nosuchprogram", "--metric", "a", "--param", "x=1,2"], "'nosuchprogram' is not on PATH"),
        (["run", "--cmd", "true", "--metric", "a", "--param", "x=1..2:lag"], "did you mean log?"),
        (["status"], "there is none in .metaloop"),
        (["status", "nowhere"], "nothing called 'nowhere'"),
        (["show", "one"], "one"),
        (["demo", "--fast"], "--fast"),
        (["export", "--format", "xls"], "xls"),
        (["-x"], "found '-x'"),
    ],
)
def test_a_slip_gets_one_line_that_says_what_to_type(inside: Path, capsys, argv: list[str], said: str) -> None:
    code, out, err = called(capsys, *argv)
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 1
    assert not list(inside.iterdir())


def test_a_study_in_a_folder_beside_is_named_and_a_direction_that_sounds_wrong_is_said(tmp_path: Path) -> None:
    w = Workshop(tmp_path / "mine", "print('loss=1')", keys={"objective": {"metric": "loss", "direction": "max"}})
    assert "'loss' sounds like a loss" in w.run().err
    asked = Workshop(tmp_path)("status")
    assert asked.code == 2
    assert "mine/.metaloop/" in asked.err


def test_json_is_one_document_and_nothing_else(tmp_path: Path) -> None:
    """For every verb that has it, errors included."""
    w = Workshop(tmp_path)
    assert w.run("--json").json["closed"]["reason"] == "max_iterations"
    assert w("status", "--json").json["trials"]["trials"] == 3
    assert w("show", "1", "--json").json["trial"] == 1
    assert w("best", "--json").json["best"]["decision"] == "keep"
    assert w("audit", "--json").json["findings"] == []
    assert w("check", "study.yaml", "--json").json["problems"] == []
    assert w("gc", "--json").json["dry_run"] is False
    failed = w("status", "nowhere", "--json")
    assert failed.code == 2
    assert failed.json["code"] == 2


def test_the_schema_of_a_study_file_is_printed(capsys) -> None:
    code, out, _ = called(capsys, "check", "--schema")
    assert code == 0
    assert "objective" in json.loads(out)["properties"]


def test_what_to_type_to_go_on_means_the_same_study(tmp_path: Path) -> None:
    """With the flags that make it this one, and not another: typed as it stands, it goes on."""
    made = Workshop(tmp_path)
    told = made.run("--name", "two words", "--seed", "7", "--max-iterations", "1").out
    line = next(line for line in told.splitlines() if line.endswith("  go on"))
    assert line.split("metaloop ")[1] == "run study.yaml --name 'two words' --seed 7 --max-iterations 2  go on"
    done = made(*shlex.split(line.split("metaloop ")[1].removesuffix("  go on")))
    assert (done.code, "all 2 trials are done" in done.out) == (0, True), done.err


def test_a_page_of_help_names_every_verb_and_costs_nothing(capsys) -> None:
    """And loads neither the command line's library nor any of ours that is heavy."""
    code, out, _ = called(capsys, "--help")
    assert code == 0
    assert all(f"  {verb} " in out for verb in cli.ALL)
    assert loaded(Path(), "--help") & {*HEAVY, "cyclopts", "pydantic", "asyncio"} == set()


def test_nothing_heavy_is_loaded_where_it_is_not_needed(tmp_path: Path) -> None:
    """A study that draws at random needs no sampler; who reads a study needs no loop and no schema either."""
    Workshop(tmp_path)
    assert loaded(tmp_path, "run", "study.yaml") & HEAVY == set()
    for verb in ("status", "best", "show", "export", "replay"):
        assert loaded(tmp_path, verb, *["1"][: verb == "show"]) & {*HEAVY, "pydantic", "asyncio"} == set(), verb


def test_what_only_studies_of_code_use_is_loaded_by_no_other(tmp_path: Path) -> None:
    """How edits are read takes longer to load than a whole start should."""
    Workshop(tmp_path)
    ours = {f"metaloop.{name}" for name in ("edits.making", "edits.diffs", "policies.code", "adapters.workspace.git")}
    for argv in (("run", "study.yaml"), ("status",)):
        assert loaded(tmp_path, *argv, whole=True) & ours == set()


HEAVY = {"optuna", "numpy", "scipy", "sklearn", "ray", "rich", "http"}


def loaded(folder: Path, *argv: str, whole: bool = False) -> set[str]:
    """The modules that a command has loaded when it is done; unless `whole`, without what is below them."""
    names = "sys.modules" if whole else "{name.partition('.')[0] for name in sys.modules}"
    probe = f"import sys; from metaloop.cli import invoke; assert invoke(sys.argv[1:]) == 0\nprint(*{names})"
    done = subprocess.run([sys.executable, "-c", probe, *argv], cwd=folder, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("verb", list(cli.ALL))
def test_every_verb_explains_itself(verb: str) -> None:
    done = subprocess.run([str(METALOOP), verb, "--help"], capture_output=True, text=True, check=True)
    assert f"metaloop {verb}" in done.stdout


def test_init_writes_a_study_that_runs_and_never_writes_over_a_file(tmp_path: Path) -> None:
    w = Workshop(tmp_path / "other")
    assert w("init", "new").code == 0
    assert w("run", "new/study.yaml", "--max-iterations", "3").code == 0
    (w.folder / "new/train.py").write_text("mine")
    again = w("init", "new")
    assert again.code == 2
    assert "train.py" in again.err
    assert (w.folder / "new/train.py").read_text() == "mine"


def test_init_writes_a_study_of_code_that_finds_something(tmp_path: Path) -> None:
    """The gate stops one idea, the contract another; what was found can be had, and nothing changes before."""
    w = Workshop(tmp_path / "other")
    w.env = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert w("init", "new", "--template", "code").code == 0
    checked = w("check", "new/study.yaml")
    assert checked.code == 0
    assert "worse beyond noise, as it should be" in checked.out
    assert "scored by a separate scorer" in checked.err
    before = (w.folder / "new/pack.py").read_text()
    done = w("run", "new/study.yaml")
    assert done.code == 0, done.err
    rows = [json.loads(line) for line in w("export", "new/study.yaml", "--format", "jsonl").out.splitlines()]
    assert [row["verdict"] for row in rows] == ["crowned", "crowned", "crowned", "failed", "refused", "discarded"]
    assert rows[3]["reason"].startswith("gate tests ended with exit code 1: [8]")
    assert (w.folder / "new/pack.py").read_text() == before
    assert w("apply", "new/study.yaml", "--here").code == 0
    subprocess.run([sys.executable, "run.py"], cwd=w.folder / "new", check=True)
    measured = subprocess.run([sys.executable, "score.py"], cwd=w.folder / "new", capture_output=True, text=True)
    assert measured.stdout == f"boxes={rows[2]['value']:g}\n"
    assert w("init", "new", "--template", "code").code == 2


def test_plain_lines_where_there_is_no_terminal(tmp_path: Path) -> None:
    """No bar, no colours, one line a trial on stderr; the card on stdout."""
    done = Workshop(tmp_path).run()
    assert "\r" not in done.err
    assert "\x1b" not in done.err + done.out
    assert len([line for line in done.err.splitlines() if re.match(r" +\d+  (crowned|discarded) ", line)]) == 3
    assert "best" in done.out
    assert "metaloop best" in done.out


def test_a_bar_and_colours_on_a_terminal(tmp_path: Path) -> None:
    import pty

    w = Workshop(tmp_path)
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(tmp_path)
        os.environ["TERM"] = "xterm"
        os.execv(str(METALOOP), ["metaloop", "run", "study.yaml"])
    out = b""
    while True:
        try:
            out += os.read(fd, 65536)
        except OSError:
            break
    os.waitpid(pid, 0)
    assert b"of 3" in out
    assert b"\x1b[1;32m" in out
    assert w("audit").code == 0


NOISY = (
    "import random\nx = P.get('x', 0.0)\n"
    "print(f'score={x + random.Random(os.environ[\"METALOOP_SEED\"] + str(x)).gauss(0, 0.05)!r}')\n"
)


def test_what_only_looks_better_is_marked_until_it_is_proven(tmp_path: Path) -> None:
    """`rule: provisional`: a line when it leads, another when it is put to the proof, and the table follows."""
    shop = Workshop(tmp_path, NOISY, {
        "policy": {"type": "random", "params": {"x": {"low": 0.0, "high": 1.0}}},
        "evaluation": {"rule": "provisional", "baseline_repeats": 3},
        "controller": {"max_iterations": 4},
        "telemetry": {"ledger_path": "results.tsv"},
    })  # fmt: skip
    done = shop.run()
    assert done.code == 0, done.err
    lines = [line.split()[:2] for line in done.err.splitlines() if re.match(r" +\d+  \w", line)]
    leads = [number for number, verdict in lines if verdict == "provisional"]
    crowned = [number for number, verdict in lines if verdict == "crowned"]
    assert leads
    assert set(crowned) <= set(leads)  # told twice: when it led, and when it was proven
    assert crowned
    table = {row.split("\t")[0]: row.split("\t")[3] for row in (tmp_path / "results.tsv").read_text().splitlines()[1:]}
    assert table == {str(row["trial"]): row["decision"] for row in shop.rows()}
    best = json.loads((shop.study / "versions" / f"v{int(crowned[-1]):04}" / "version.json").read_text())
    assert best["verdict"] == "crowned"
    assert "proven better" in shop("show", crowned[-1]).out
    assert shop("audit").code == 0


def test_a_verdict_that_the_line_does_not_show_is_explained_in_it(tmp_path: Path) -> None:
    """A candidate that looks better, and crashes when it is run again, says so where it is told."""
    shop = Workshop(tmp_path, NOISY + (
        "again = f'seen-{os.environ[\"METALOOP_TRIAL\"]}'\n"
        "if x and os.path.exists(again):\n    sys.exit('worn out')\nopen(again, 'w')\n"
    ), {"evaluation": {"rule": "proven", "baseline_repeats": 3}, "controller": {"max_iterations": 1}})  # fmt: skip
    line = next(line for line in shop.run().err.splitlines() if re.match(r" +1  ", line))
    assert "unproven" in line
    assert "could not be proven: train ended with exit code 1: worn out" in line


def test_watch_tells_each_trial_and_ends_with_the_study(tmp_path: Path) -> None:
    w = Workshop(tmp_path, "time.sleep(0.1)\nprint('score=0.5')")
    process = w.start("run", "study.yaml")
    end = time.monotonic() + 20
    while not (w.study / "ledger.sqlite").exists() and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.3)
    done = w("watch", "--every", "0.1")
    assert process.wait(timeout=20) == 0
    assert len([line for line in done.out.splitlines() if " discarded " in line or " crowned " in line]) == 3
    assert "ended: all 3 trials are done" in done.out


def test_replay_tells_what_the_run_told(tmp_path: Path) -> None:
    w = Workshop(tmp_path)
    lines = [line for line in w.run().err.splitlines() if re.match(r" +\d+  ", line)]
    assert [line for line in w("replay").out.splitlines() if re.match(r" +\d+  ", line)] == lines
    assert "interrupted" in w("replay", "--upto", "12").out


@pytest.mark.parametrize("format", ["tsv", "csv", "jsonl", "autoresearch", "autoresearch-rl"])
def test_every_export_has_a_line_a_trial(tmp_path: Path, format: str) -> None:
    """Failures too, with an empty value."""
    w = Workshop(tmp_path, "sys.exit(1) if P['x'] > 0.7 else print('score=0.5')")
    w.run()
    header = 0 if format == "jsonl" else 1
    assert len(w("export", "--format", format).out.splitlines()) == 3 + header
    assert w("export", "--format", format, "--out", "table").code == 0
    assert (tmp_path / "table").read_text() == w("export", "--format", format).out


def test_gc_removes_scratch_and_nothing_else(tmp_path: Path) -> None:
    w = Workshop(tmp_path, "open(os.environ['TMPDIR'] + '/big', 'w').write('x' * 1000)\nprint('score=0.5')")
    w.run()
    assert len(list(w.study.glob("trials/*/*/tmp/big"))) == 3
    assert w("gc", "--dry-run").code == 0
    assert len(list(w.study.glob("trials/*/*/tmp/big"))) == 3
    assert w("gc").code == 0
    assert not list(w.study.glob("trials/*/*/tmp"))
    assert len(list(w.study.glob("trials/*/*/train.out"))) == 3
    assert w("audit").code == 0


@pytest.mark.parametrize("name", ["d", "a name of twenty chrs"])
def test_gc_removes_what_is_deeper_than_any_path_can_say(tmp_path: Path, name: str) -> None:
    """Measured first, if asked; what is closed goes too, and what a link leads to stays."""
    mine = tmp_path / "mine" / "notes"
    mine.parent.mkdir()
    mine.write_text("mine")
    deed = (
        f"os.chdir(os.environ['TMPDIR'])\nos.symlink({str(mine.parent)!r}, 'link')\n"
        f"for n in range(3000):\n    os.mkdir({name!r})\n    os.chdir({name!r})\n"
        "open('x', 'w').write('x' * 1000)\nos.chmod('.', 0)\nprint('score=0.5')"
    )
    w = Workshop(tmp_path / "w", deed)
    w.write(controller={"max_iterations": 1}, target={**w.keys.get("target", {}), "sandbox": {"level": "none"}})
    assert w.run().code == 0
    told = w("gc", "--dry-run", "--json").json
    assert told["bytes"] >= 1000
    assert told["left"] == {}
    assert "would remove" in w("gc", "--dry-run").out
    done = w("gc")
    assert (done.code, done.err) == (0, "")
    assert " folders, 1.0" in done.out
    assert " kB" in done.out
    assert not list(w.study.glob("trials/*/*/tmp"))
    assert mine.read_text() == "mine"


def test_check_removes_what_is_deeper_than_any_path_can_say(tmp_path: Path) -> None:
    """Of the baseline that it throws away."""
    deed = "os.chdir(os.environ['TMPDIR'])\nfor n in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\n"
    w = Workshop(tmp_path, f"{deed}print('score=0.5')")
    w.write(evaluation={"baseline_repeats": 1}, target={"sandbox": {"level": "none"}})
    done = w("check", "study.yaml")
    assert done.code == 0, done.err
    assert not list(tmp_path.glob(".metaloop/.check-*"))


def test_one_folder_that_gc_cannot_remove_is_a_line_and_the_rest_goes(tmp_path: Path, monkeypatch, capsys) -> None:
    """It is told why; and programs are told which."""
    w = Workshop(tmp_path, "print('score=0.5')")
    w.run()
    real, stays = tidy.deleted, next(w.study.glob("trials/0002/*/tmp"))
    monkeypatch.setattr(tidy, "deleted", lambda path: (0, "Permission denied") if path == stays else real(path))
    assert tidy.gc(str(w.study)) == 0
    assert re.fullmatch(
        r"metaloop: .*/trials/0002/.*/tmp: cannot be removed: Permission denied\n", capsys.readouterr().err
    )
    assert list(w.study.glob("trials/*/*/tmp")) == [stays]
    assert tidy.gc(str(w.study), json=True) == 0
    assert list(json.loads(capsys.readouterr().out)["left"].values()) == ["Permission denied"]


def test_audit_notices_an_output_that_was_changed(tmp_path: Path) -> None:
    """Exit code 6, and the file's name."""
    w = Workshop(tmp_path)
    w.run()
    path = next(w.study.glob("trials/0002/*/train.out"))
    path.write_text("score=99\n")
    done = w("audit")
    assert done.code == 6
    assert str(path.name) in done.err


def test_clean_text_cannot_move_a_cursor() -> None:
    assert clean("a\x1b[31mb\x9b2Jc\u202ed\te\nf") == "a[31mb2Jcd\te\nf"


def test_a_progress_line_that_cannot_be_written_ends_no_study(tmp_path: Path) -> None:
    """stderr on a full disk: the study runs to its end, and the answer stands on stdout."""
    w = Workshop(tmp_path)
    with open("/dev/full", "w") as full:
        done = subprocess.run([str(METALOOP), "run", "study.yaml"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=full)
    assert done.returncode == 0
    assert b"all 3 trials are done" in done.stdout
    assert w("audit").code == 0


@pytest.mark.parametrize("lost", ["> /dev/full", "2>&-", ">&-", "> /dev/full 2>&1", "--json > /dev/full"])
def test_the_exit_code_is_the_studys_whoever_cannot_be_told(tmp_path: Path, lost: str) -> None:
    """Full or closed: the study runs to its end."""
    w = Workshop(tmp_path)
    line = f'"{METALOOP}" run study.yaml {lost}'
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert ("could not be written to stdout: No space left" in done.stderr) == lost.endswith("> /dev/full")
    assert w("audit").code == 0


def test_a_bar_on_a_terminal_that_went_away_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone:
        def write(self, text: str) -> None:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(sys, "stderr", Gone())
    overwrite("half way")


def test_an_export_into_a_folder_that_is_not_there_says_what_to_type(tmp_path: Path) -> None:
    w = Workshop(tmp_path)
    assert w("run", "study.yaml").code == 0
    done = w("export", "--out", "tables/of/mine.tsv")
    assert done.code == 2
    assert len(done.err.splitlines()) == 1
    assert "mkdir -p tables/of" in done.err


def test_too_few_open_files_are_said_before_anything_is_done(tmp_path: Path) -> None:
    w = Workshop(tmp_path)
    command = ["prlimit", "--nofile=20", str(METALOOP), "run", "study.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "ulimit -n 64" in done.stderr
    assert "Traceback" not in done.stderr
    assert not w.study.exists()


def test_status_shows_what_is_being_proven(tmp_path: Path) -> None:
    """Which trials are run again side by side, and how far that is; nothing of it once the study has ended."""
    script = "import random, time\ntime.sleep(0.15)\n"
    script += "print(f\"score={P.get('x', 0) + random.Random(os.environ['METALOOP_SEED']).gauss(0, 0.1)}\")\n"
    w = Workshop(tmp_path, script, keys={"evaluation": {"rule": "proven", "baseline_repeats": 3, "confirm": 12}})
    w.write(policy={"type": "grid", "params": {"x": [5.0]}}, controller={"max_iterations": 1})
    process = w.start("run", "study.yaml")
    seen = []
    while process.poll() is None:
        seen += re.findall(r"proof: trials (\S+ and \S+) are run again, side by side: (\d+) of (\d+)", w("status").out)
    assert process.wait() == 0
    assert {who for who, _, _ in seen} == {"0 and 1"}
    assert any(0 < int(done) < int(of) for _, done, of in seen)
    assert "proof:" not in w("status").out


def test_time_until_an_interrupt_counts_as_wall_clock(tmp_path: Path) -> None:
    """Also where nothing was to be recorded of it, as in a pause in which nothing runs."""
    w = Workshop(tmp_path, "time.sleep(0.5)\n" + BOWL)
    process = w.start("run", "study.yaml")
    until(lambda: list(w.study.glob("trials/*/*/train.out")), 20)
    assert w("steer", "s", "pause").code == 0
    until(lambda: "Decided" in (w.study / "ledger.jsonl").read_text(), 20)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert 3 < w("status", "--json").json["wall_clock_s"] < 9
    assert w("audit").code == 0
    assert w.run().code == 0


@pytest.mark.parametrize("keys", [{}, {"policy": {"type": "patches", "mutable": ["train.py"], "patches": "."}}])
def test_a_project_whose_path_is_no_utf8_is_refused_before_anything_is_written(tmp_path: Path, keys: dict) -> None:
    """By check too; whichever folder it is, in a line that says what to do."""
    w = Workshop(tmp_path / "w" / os.fsdecode(b"bad\xff"), keys=keys)
    for verb in (["run", "study.yaml"], ["check", "study.yaml"], ["check", "--static", "study.yaml"]):
        done = w(*verb)
        assert done.code == 2
        assert re.fullmatch(r"metaloop: study.yaml: expected a path that is UTF-8 .*/bad\\xff: .*\n", done.err)
        assert not w.study.parent.exists()
    good = Workshop(tmp_path / "good")
    assert good.run("--dir", os.fsdecode(b"x\xff"), "--max-iterations", "1").code == 2
    assert not list(good.folder.glob("x*"))


def test_a_failure_has_its_class_in_every_table(tmp_path: Path) -> None:
    """With what it grew from, in the last columns; `show` and `status` name it too."""
    w = Workshop(tmp_path, "sys.exit('no') if P['x'] > 0.1 else print('score=0.5')")
    w.run()
    for format, separator in (("tsv", "\t"), ("csv", ",")):
        lines = w("export", "--format", format).out.splitlines()
        assert lines[0].endswith(f"description{separator}parent{separator}failure{separator}holdout")
        assert lines[1].endswith(f"{separator}hypothesis{separator}")
    assert "\n  failure   hypothesis\n" in w("show", "1").out
    assert "hypothesis: train ended with exit code 1: no" in w("status").out


def test_all_runs_that_were_executed_count_and_show_has_a_table_of_them(tmp_path: Path) -> None:
    """Repeats and proofs too, and in their order; what did not come to run does not count."""
    noisy = "import random\nx = P.get('x', 0.5)\nif x > 0.9:\n    import no_such_module\n"
    noisy += "print(f'score={x + random.Random(os.environ[\"METALOOP_SEED\"]).gauss(0, 0.1)!r}')"
    w = Workshop(tmp_path, f"open('ran.txt', 'a').write('x\\n') if P.get('x', 0) <= 0.9 else 0\n{noisy}")
    start = [{"x": 0.6}, {"x": 0.95}, {"x": 0.9}]
    w.write(evaluation={"rule": "proven", "baseline_repeats": 3}, target={"sandbox": {"level": "none"}},
            policy={**w.keys.get("policy", {}), "start": start})  # fmt: skip
    assert w.run().code == 0
    ran = len(w.executed())
    assert ran > 11
    assert f"4 trials, {ran} runs, " in w("report").out
    table = [
        line.split() for line in w("show", "0").out.splitlines() if re.match(r" +[0-9]+  +[-0-9.]+  +[0-9.]+  ", line)
    ]
    numbers = [int(cells[0]) for cells in table]
    assert numbers == sorted(numbers)
    assert len(numbers) > 11
    assert [" ".join(cells[3:5]) for cells in table[:3]] == ["the first", "a repeat", "a repeat"]
    assert " ".join(table[-1][3:]) == "the end: best beside baseline"
    assert "a proof, beside another trial" in w("show", "0").out
    assert "-r10-" not in w("show", "0").out or w("show", "0").out.index("/r9-") < w("show", "0").out.index("/r10-")


@pytest.mark.parametrize(("seconds", "said"), [("80", "80 s"), ("300", "5 min"), ("3600", "1 h"), ("28800", "8 h")])
def test_a_budget_is_told_in_the_unit_that_fits(tmp_path: Path, seconds: str, said: str) -> None:
    w = Workshop(tmp_path)
    assert f"at most 3 trials, {said}; in" in w.run("--max-wall-time-s", seconds).err


def test_numbers_of_one_sentence_are_of_one_style(tmp_path: Path) -> None:
    """None has an exponent where another has none; and the way that is better reads right."""
    noisy = "import random\nx = P.get('x', 0.5)\nnoise = random.Random(os.environ['METALOOP_SEED']).gauss(0, 9)\n"
    w = Workshop(tmp_path, f"{noisy}print(f'score={{4000 * x + noise!r}}')")
    w.write(evaluation={"rule": "proven", "baseline_repeats": 3}, objective={"direction": "min"},
            policy={**w.keys.get("policy", {}), "start": [{"x": 0.01}]})  # fmt: skip
    done = w.run("--max-iterations", "1")
    assert re.search(r"better than the baseline by 19\d\d\.?\d* \[19\d\d\.?\d* to 19\d\d\.?\d*, 95 %\]", done.out), (
        done.out
    )
    assert "e+0" not in done.out
