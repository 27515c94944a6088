"""The worked cases of the experiment loop, through the real command line and real processes."""

import json
import shlex
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

from workshop import BOWL, COUNTED, Workshop, everything_under, interrupted, until

SLEEP = "time.sleep(0.05)\n"


def test_a1_three_iterations_run_the_command_three_times(tmp_path: Path) -> None:
    w = Workshop(tmp_path, COUNTED + "print('score=0.5')")
    assert w.run().code == 0
    assert w.executed() == ["1", "2", "3"]


def test_a3_a_crash_is_never_kept(tmp_path: Path) -> None:
    w = Workshop(tmp_path, "print('score=0.99'); sys.exit(1)")
    done = w.run("--json")
    assert done.code == 4
    assert done.json["best"] is None
    assert {row["status"] for row in w.rows()} == {"failed"}


@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "1e400"])
def test_a4_a_value_that_is_no_number_fails_the_trial_and_not_the_study(tmp_path: Path, value: str) -> None:
    """And every file stays strict JSON."""
    w = Workshop(tmp_path, f"print('score={value}' if P['x'] > 0.5 else 'score=0.25')")
    w.write(
        policy={"type": "grid", "params": {"x": [0.1, 0.9, 0.2]}},
        controller={"checkpoint_path": "out/checkpoint.json", "max_iterations": 3},
        telemetry={"trace_path": "out/events.jsonl", "ledger_path": "out/results.tsv"},
    )
    assert w.run().code == 0
    assert [row["status"] for row in w.rows()] == ["ok", "invalid_metric", "ok"]
    strict = {"parse_constant": lambda name: pytest.fail(name)}
    for line in (tmp_path / "out/events.jsonl").read_text().splitlines():
        json.loads(line, **strict)
    assert json.loads((tmp_path / "out/checkpoint.json").read_text(), **strict)["best"]["value"] == 0.25
    table = [line.split("\t") for line in (tmp_path / "out/results.tsv").read_text().splitlines()]
    assert [cells[4] for cells in table] == ["value", "0.25", "", "0.25"]


@pytest.mark.parametrize("policy", ["random", "tpe"])
def test_a5_a_resumed_search_goes_on_with_the_very_sequence(tmp_path: Path, policy: str) -> None:
    """kill -9 after some trials: they are there, and the rest is what it would have been."""
    calm = Workshop(tmp_path / "calm", keys={"policy": {"type": policy}, "controller": {"max_iterations": 8}})
    assert calm.run().code == 0
    w = Workshop(
        tmp_path / "killed", SLEEP + "x = P['x']\nprint(f'score={1 - (x - 0.3) ** 2!r}')", keys=dict(calm.keys)
    )
    process = w.start("run", "study.yaml")
    until(lambda: (w.study / "trials/0004").exists())
    process.kill()
    process.wait()
    state = w("status", "--json").json
    assert state["closed"] is None
    assert state["iterations"] >= 3
    assert w.run().code == 0
    assert w.trials() == calm.trials()
    assert w("audit").code == 0
    assert not w.alive()


def test_a6_run_one_after_a_finished_study_runs_one_trial_and_records_it(tmp_path: Path) -> None:
    w = Workshop(tmp_path, COUNTED + "x = P['x']\nprint(f'score={1 - (x - 0.3) ** 2!r}')")
    w.run()
    done = w("run-one", "study.yaml", "--params", '{"x": 0.3}')
    assert done.code == 0
    assert "trial 4: 1 beats" in done.out
    assert w.executed() == ["1", "2", "3", "4"]
    assert w("best").out == '{"x": 0.3}\n'
    assert w("audit").code == 0


def test_run_one_tries_nothing_twice(tmp_path: Path) -> None:
    """A candidate gets one look: the second time it is refused, and says which trial it was."""
    w = Workshop(tmp_path, COUNTED + "print('score=0.5')")
    w("run-one", "study.yaml", "--params", '{"x": 0.5}')
    again = w("run-one", "study.yaml", "--params", '{"x": 0.5}')
    assert again.code == 2
    assert "the same as trial 1" in again.out
    assert w.executed() == ["1"]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ('{"x": 2}', "outside"),
        ("{", "expected JSON"),
        ('{"y": 1}', "'y' is not in"),
        ("[1]", "object"),
        ('{"x": NaN}', "NaN"),
    ],
)
def test_run_one_refuses_what_is_not_in_the_space(tmp_path: Path, params: str, said: str) -> None:
    w = Workshop(tmp_path, COUNTED)
    done = w("run-one", "study.yaml", "--params", params)
    assert done.code == 2
    assert said in done.err
    assert not (tmp_path / ".metaloop").exists()


def test_a7_another_seed_is_another_study(tmp_path: Path) -> None:
    """`--seed 11` and `--seed 99` differ, and 11 is 11."""
    found = []
    for number, seed in enumerate(("11", "99", "11")):
        w = Workshop(tmp_path / str(number))
        w.run("--seed", seed)
        found.append([trial["params"] for trial in w.trials()])
    assert found[0] == found[2] != found[1]


def test_a8_a_time_limit_ends_the_whole_tree(tmp_path: Path) -> None:
    """Also a grandchild; what was printed before is kept."""
    w = Workshop(
        tmp_path,
        "import subprocess\nprint('before', flush=True)\nsubprocess.Popen(['sleep', '60'])\ntime.sleep(60)",
        keys={"controller": {"max_iterations": 1}, "target": {"timeout_s": 1}},
    )
    began = time.monotonic()
    done = w.run("--json")
    assert done.code == 4
    assert time.monotonic() - began < 10
    assert not w.alive()
    (row,) = w.rows()
    assert row["status"] == "timeout"
    assert 0.9 < row["seconds"] < 3
    assert (next((w.study / "trials/0001").glob("r0-a1-*")) / "train.out").read_text() == "before\n"


def test_a9_prepare_runs_once_whatever_the_lanes(tmp_path: Path) -> None:
    w = Workshop(tmp_path, "print('score=0.5')", keys={"controller": {"max_iterations": 6, "parallel": 4}})
    (tmp_path / "prepare.py").write_text("open('prepared.txt', 'a').write('once\\n')")
    w.write(target={"train_cmd": [sys.executable, "train.py"], "prepare_cmd": [sys.executable, "prepare.py"]})
    assert w.run().code == 0
    assert w.run("--max-iterations", "8").code == 0
    assert (tmp_path / "prepared.txt").read_text() == "once\n"


def test_a9_a_failing_prepare_stops_the_study_before_its_first_trial(tmp_path: Path) -> None:
    """With its stderr, and exit code 3; mended, the same command goes on."""
    w = Workshop(tmp_path, COUNTED + "print('score=0.5')")
    (tmp_path / "prepare.py").write_text("import sys; sys.exit('no data here')")
    w.write(target={"train_cmd": [sys.executable, "train.py"], "prepare_cmd": [sys.executable, "prepare.py"]})
    done = w.run()
    assert done.code == 3
    assert "no data here" in done.out + done.err
    assert not w.executed()
    (tmp_path / "prepare.py").write_text("")
    assert w.run().code == 0
    assert w("audit").code == 0


def test_a11_a_key_of_the_controller_is_nowhere(tmp_path: Path) -> None:
    """Not in the trial's environment, and not in any byte that is written."""
    w = Workshop(tmp_path, "print(dict(os.environ))\nprint('score=0.5')", env={"OPENAI_API_KEY": "sk-LEAKME-123"})
    w.run()
    assert b"LEAKME" not in everything_under(tmp_path)
    w.write(target={"train_cmd": [sys.executable, "train.py"], "env_allow": ["PATH", "OPENAI_API_KEY"]}, name="allowed")
    w.run()
    assert b"LEAKME" in everything_under(tmp_path / ".metaloop/allowed/trials")


def test_a12_old_output_does_not_touch_a_new_trial(tmp_path: Path) -> None:
    """A metrics file and a stop file of long ago, in the working directory and where trials are kept."""
    w = Workshop(tmp_path, "print('score=0.5')")
    (tmp_path / "metrics.json").write_text('{"score": 99}')
    (tmp_path / "cancel").touch()
    (w.study / "trials/0001").mkdir(parents=True)
    (w.study / "trials/0001/metrics.json").write_text('{"score": 99}')
    assert w.run().code == 0
    assert {trial["metric"] for trial in w.trials()} == {0.5}


def test_a13_small_numbers_are_numbers(tmp_path: Path) -> None:
    w = Workshop(tmp_path, "assert type(P['lr']) is float, P\nprint(f\"score={P['lr']!r}\")")
    text = (tmp_path / "study.yaml").read_text().replace('{"x": {"low": 0.0, "high": 1.0}}', "{lr: [3e-6, 5e-6, 1e-5]}")
    (tmp_path / "study.yaml").write_text(text.replace('"random"', "grid"))
    assert w.run().code == 0
    assert [trial["params"]["lr"] for trial in w.trials()] == [3e-6, 5e-6, 1e-5]


def failing(pattern: str) -> str:
    """A script whose k-th trial fails where the pattern has an f."""
    return f"n = int(os.environ['METALOOP_TRIAL'])\nsys.exit(1) if {pattern!r}[n - 1] == 'f' else print(f'score={{n}}')"


@pytest.mark.parametrize(
    ("pattern", "trials"), [("ffffffffkkkk", 8), ("fffkffffkkkk", 8), ("ffkkffffkkkk", 12), ("fffffff", 7)]
)
def test_a16_the_failure_guard_needs_a_full_window(tmp_path: Path, pattern: str, trials: int) -> None:
    """7 of 8 stops; 6 of 8 goes on; 7 of 7 goes on."""
    w = Workshop(tmp_path, failing(pattern), keys={"controller": {"max_iterations": len(pattern)}})
    done = w.run("--json")
    assert len(w.trials()) == trials
    assert (done.json["closed"]["reason"] == "failure_rate") == (trials == 8)


def test_a17_a_grid_ends_when_it_is_used_up(tmp_path: Path) -> None:
    w = Workshop(
        tmp_path, keys={"policy": {"type": "grid", "params": {"x": [0.1, 0.9]}}, "controller": {"max_iterations": 7}}
    )
    done = w.run("--json")
    assert len(w.trials()) == 2
    assert done.json["closed"]["reason"] == "exhausted"


def test_a27_two_controllers_on_one_study(tmp_path: Path) -> None:
    """The second exits with 75, and writes nothing."""
    script = "while not os.path.exists('go'):\n  time.sleep(0.02)\nprint('score=0.5')"
    w = Workshop(tmp_path, script, keys={"controller": {"max_iterations": 1}})
    first = w.start("run", "study.yaml")
    until(lambda: (w.study / "trials/0001").exists())
    second = w.run()
    (tmp_path / "go").touch()
    assert second.code == 75
    assert "another controller" in second.err
    assert first.wait(timeout=30) == 0
    assert w("audit").code == 0


def test_a28_the_first_signal_waits_and_the_second_does_not(tmp_path: Path) -> None:
    """A trial that is cut off is recorded as interrupted, and runs again on resume."""
    script = COUNTED + "time.sleep(12 if len(open('ran.txt').readlines()) == 1 else 0)\nprint('score=0.5')"
    w = Workshop(tmp_path, script, keys={"controller": {"max_iterations": 1}})
    process = w.start("run", "study.yaml")
    until(lambda: w.executed())
    assert interrupted(process, signal.SIGTERM, [signal.SIGTERM]) < 3
    assert process.returncode == 143
    assert not w.alive()
    assert [row["status"] for row in w.rows()] == ["interrupted"]
    assert w.run().code == 0
    assert w.executed() == ["1", "1"]
    assert [row["status"] for row in w.rows()] == ["ok"]
    assert w("audit").code == 0


def test_the_first_interrupt_lets_a_short_trial_end(tmp_path: Path) -> None:
    w = Workshop(tmp_path, COUNTED + "time.sleep(1)\nprint('score=0.5')")
    process = w.start("run", "study.yaml")
    until(lambda: w.executed())
    assert interrupted(process, signal.SIGINT) < 5
    assert process.returncode == 130
    assert [row["status"] for row in w.rows()] == ["ok"]


def test_a_daemon_that_forked_twice_ends_with_its_trial(tmp_path: Path) -> None:
    """In a session of its own, ignoring SIGTERM, holding stdout: the trial is scored, and nothing lives on."""
    daemon = (
        "import signal\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0:\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)\n  os._exit(0)\nos.wait()\n"
        "print('score=0.5')"
    )
    w = Workshop(tmp_path, daemon, keys={"controller": {"max_iterations": 2}})
    assert w.run().code == 0
    assert not w.alive()
    assert {trial["metric"] for trial in w.trials()} == {0.5}


def test_what_a_trial_is_told(tmp_path: Path) -> None:
    """Parameters, seed, files; a HOME and a TMPDIR of its own; and the study's folder."""
    script = (
        "env = {k: os.environ[k] for k in sorted(os.environ)}\n"
        "json.dump(env, open(f\"env{env['METALOOP_TRIAL']}.json\", 'w'))\n"
        "json.dump({'score': 0.5}, open(env['METALOOP_METRICS'], 'w'))"
    )
    w = Workshop(
        tmp_path, script, keys={"policy": {"params": {"lr": [0.1, 0.2, 0.3], "opt": ["adam"]}, "type": "grid"}}
    )
    assert w.run().code == 0
    one, two = (json.loads((tmp_path / f"env{n}.json").read_text()) for n in (1, 2))
    assert json.loads(one["AR_PARAMS_JSON"]) == {"lr": 0.1, "opt": "adam"}
    assert (one["AR_PARAM_LR"], one["AR_PARAM_OPT"]) == ("0.1", "adam")
    assert one["METALOOP_STUDY"] == str(w.study)
    assert one["METALOOP_SEED"] == two["METALOOP_SEED"]
    assert one["HOME"] != two["HOME"]
    assert Path(one["HOME"]).is_relative_to(w.study)
    assert Path(one["TMPDIR"]).is_relative_to(w.study)
    assert one["OMP_NUM_THREADS"] == "1"
    assert "PYTEST_CURRENT_TEST" not in one
    assert {trial["metric"] for trial in w.trials()} == {0.5}


def test_an_evaluator_alone_gives_the_score(tmp_path: Path) -> None:
    """What training prints does not count where there is an `eval_cmd`."""
    w = Workshop(tmp_path, "print('score=99'); open('model.txt', 'w').write(str(P['x']))")
    (tmp_path / "evaluate.py").write_text("print(f\"score={float(open('model.txt').read())!r}\")")
    w.write(target={"train_cmd": [sys.executable, "train.py"], "eval_cmd": [sys.executable, "evaluate.py"]})
    assert w.run().code == 0
    assert all(trial["metric"] == trial["params"]["x"] for trial in w.trials())


@pytest.mark.parametrize(
    ("script", "reason"),
    [("sys.exit('needs x') if 'x' not in P else print('score=1')", "middle"), ("print('score=1')", "no parameters")],
)
def test_the_baseline_is_the_script_and_else_the_middle_of_the_space(tmp_path: Path, script: str, reason: str) -> None:
    w = Workshop(tmp_path, script, keys={"evaluation": {"baseline_repeats": 2}})
    done = w.run("--json")
    assert done.code == 0
    assert reason in w("show", str(done.json["baseline"]["trial"])).out
    assert done.json["baseline"]["runs"] == 2


def test_a_baseline_that_cannot_be_measured_ends_the_study(tmp_path: Path) -> None:
    """Exit code 3, and no trial is spent."""
    w = Workshop(tmp_path, "sys.exit('broken')", keys={"evaluation": {"baseline_repeats": 3}})
    done = w.run()
    assert done.code == 3
    assert "broken" in done.err
    assert all(row["role"] == "baseline" for row in w.rows())


def test_given_points_come_first(tmp_path: Path) -> None:
    w = Workshop(tmp_path, keys={"policy": {"start": [{"x": 0.5}, {"x": 1}]}})
    w.run()
    assert [trial["params"]["x"] for trial in w.trials()][:2] == [0.5, 1.0]
    assert w("audit").code == 0


def test_the_study_ends_when_its_target_is_reached(tmp_path: Path) -> None:
    w = Workshop(
        tmp_path, keys={"objective": {"target": 0.99}, "policy": {"type": "grid", "params": {"x": [0.9, 0.3, 0.5]}}}
    )
    assert w.run("--json").json["closed"]["reason"] == "target"
    assert len(w.trials()) == 2


def test_the_study_ends_after_trials_without_improvement(tmp_path: Path) -> None:
    keys = {
        "controller": {"no_improve_limit": 2, "max_iterations": 9},
        "policy": {"type": "grid", "params": {"x": [0.3, 0.5, 0.6, 0.7]}},
    }
    w = Workshop(tmp_path, keys=keys)
    assert w.run("--json").json["closed"]["reason"] == "no_improvement"
    assert len(w.trials()) == 3
    assert "raise --no-improve-limit" in w.run().err
    w.run("--no-improve-limit", "3")
    assert len(w.trials()) == 4


def test_the_wall_clock_ends_a_study_inside_a_trial(tmp_path: Path) -> None:
    """What had finished counts; what was running is stopped, and is no failure."""
    w = Workshop(tmp_path, "time.sleep(0 if P['x'] < 0.5 else 60)\nprint('score=1')")
    w.write(
        policy={"type": "grid", "params": {"x": [0.1, 0.9]}}, controller={"max_wall_time_s": 1.5, "max_iterations": 9}
    )
    began = time.monotonic()
    assert w.run("--json").json["closed"]["reason"] == "wall_clock"
    assert time.monotonic() - began < 10
    assert [row["status"] for row in w.rows()] == ["ok", "stopped"]
    assert not w.alive()
    assert w("audit").code == 0


def test_the_same_command_twice_is_harmless(tmp_path: Path) -> None:
    """A study that is over runs nothing and writes nothing."""
    w = Workshop(tmp_path, COUNTED + "print('score=0.5')")
    w.run()
    before = (w.study / "ledger.sqlite").read_bytes()
    done = w.run()
    assert done.code == 0
    assert "nothing to do" in done.err
    assert (w.study / "ledger.sqlite").read_bytes() == before
    assert len(w.executed()) == 3


def test_a_larger_budget_goes_on_to_it(tmp_path: Path) -> None:
    """Absolute: 3 trials, then --max-iterations 5, makes 5 (report 67)."""
    w = Workshop(tmp_path, COUNTED + "print('score=0.5')", keys={"evaluation": {"baseline_repeats": 2}})
    w.run()
    w.run("--max-iterations", "5")
    assert w.executed() == ["0", "0", "1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("section", "value", "term"),
    [
        ("objective", {"direction": "min"}, "objective.direction"),
        ("policy", {"seed": 7}, "seed"),
        ("target", {"train_cmd": [sys.executable, "train.py", "-v"]}, "target.train_cmd"),
    ],
)
def test_what_is_measured_may_not_change_under_way(tmp_path: Path, section: str, value: dict, term: str) -> None:
    """Refused with exit code 2, and how to begin another study; nothing is written."""
    w = Workshop(tmp_path)
    w.run()
    before = (w.study / "ledger.sqlite").read_bytes()
    w.write(**{section: value})
    done = w.run("--max-iterations", "9")
    assert done.code == 2
    assert f"{term} was" in done.err
    assert "--name s-2" in done.err
    assert (w.study / "ledger.sqlite").read_bytes() == before


def test_a_frozen_file_may_not_change_under_way(tmp_path: Path) -> None:
    w = Workshop(tmp_path, keys={"policy": {"frozen": ["train.py"]}})
    w.run()
    (tmp_path / "train.py").write_text("print('score=99')")
    done = w.run("--max-iterations", "9")
    assert done.code == 2
    assert "frozen.train.py was" in done.err


def test_a_file_that_git_tracks_is_not_written_over(tmp_path: Path) -> None:
    """Refused before the first write (report 70)."""
    import subprocess

    w = Workshop(tmp_path, keys={"telemetry": {"ledger_path": "results.tsv"}})
    (tmp_path / "results.tsv").write_text("mine")
    for command in (["init", "-q"], ["add", "results.tsv"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    done = w.run()
    assert done.code == 2
    assert "git tracks" in done.err
    assert (tmp_path / "results.tsv").read_text() == "mine"
    assert not w.study.exists()


def test_nothing_is_written_outside_the_study(tmp_path: Path) -> None:
    w = Workshop(tmp_path)
    w.run()
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", "study.yaml", ".metaloop"}
    assert {path.name for path in w.study.iterdir()} <= {
        "ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm", "ledger.jsonl", "head", "lock",
        "lanes", "trials", "versions",
    }  # fmt: skip


def test_a_study_without_a_file(tmp_path: Path) -> None:
    """`run --cmd`, and the same line again resumes it."""
    w = Workshop(tmp_path, COUNTED + "x = P.get('x', 0.9)\nprint(f'score={1 - (x - 0.3) ** 2!r}')")
    line = ["run", "--cmd", f"{shlex.quote(sys.executable)} train.py", "--metric", "score", "--direction", "max",
            "--param", "x=0.0..1.0", "--policy", "random", "--max-iterations", "4"]  # fmt: skip
    assert w(*line).code == 0
    best = w("best", "--json").json["best"]["trial"]
    assert w.executed() == ["0", "0", "0", "1", "2", "3", "4", str(best)]
    assert w(*line).code == 0
    assert len(w.executed()) == 8
    assert w("status").out.startswith("train: max score, random; ended")


def test_a_folder_with_an_odd_name_works(tmp_path: Path) -> None:
    w = Workshop(tmp_path / "a b#c%20 ü")
    assert w.run().code == 0
    assert w("audit").code == 0


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_console_that_cannot_show_a_letter_shows_another(tmp_path: Path, encoding: str) -> None:
    w = Workshop(
        tmp_path,
        "print('\u2192 \U0001f600')\nsys.exit('\u2192 wrong')",
        keys={"policy": {"params": {"x": ["\u00e4", "\u4e2d"]}, "type": "grid"}},
    )
    env = {"PYTHONIOENCODING": encoding, "LC_ALL": "C"}
    assert w.run(env=env).code == 4
    assert w("show", "1", env=env).code == 0
    assert w("status", env=env).code == 0


def test_escape_sequences_of_a_trial_do_not_reach_the_terminal(tmp_path: Path) -> None:
    w = Workshop(tmp_path, "sys.exit('\\x1b[2J\\x1b]0;owned\\x07\\x9b31m\u202eevil')")
    done = w.run()
    shown = done.out + done.err + w("show", "1").out + w("status").out + w("replay").out
    assert "evil" in shown
    assert not any(c in shown for c in "\x1b\x07\x9b\u202e")


def test_a_guard_against_no_improvement_can_be_switched_off(tmp_path: Path) -> None:
    """`no_improve_limit: 0`: all trials are run."""
    w = Workshop(tmp_path, "print('score=0.5')", keys={"controller": {"no_improve_limit": 0, "max_iterations": 20}})
    assert w.run("--json").json["closed"]["reason"] == "max_iterations"


def test_a_policy_that_nobody_chose_stays_what_it_was(tmp_path: Path) -> None:
    """`auto` is settled when the study begins: installing a sampler later does not make it another study."""
    w = Workshop(tmp_path, keys={"policy": {"type": "random"}})
    w.run()
    w.write(policy={"type": "auto"})
    assert w.run("--max-iterations", "5").code == 0
    assert {row["by"] for row in w.rows()} == {"random"}
    w.write(policy={"type": "tpe"})
    assert w.run("--max-iterations", "6").code == 2


def test_nothing_is_better_than_the_ceiling(tmp_path: Path) -> None:
    """The study ends there; a loss of 0 is one."""
    w = Workshop(tmp_path, "print(f\"loss={abs(P['x'] - 0.5)!r}\")")
    w.write(
        objective={"metric": "loss", "direction": "min", "ceiling": 0},
        policy={"type": "grid", "params": {"x": [0.1, 0.5, 0.9]}},
    )
    assert "ceiling" in w.run("--json").json["closed"]["why"]
    assert len(w.trials()) == 2


def test_other_hardware_is_marked_and_with_strict_not_used(tmp_path: Path) -> None:
    expected = {"expected_hardware_fingerprint": "0123456789abcdef", "budget_mode": "parallel_wallclock"}
    w = Workshop(tmp_path, COUNTED + "print('score=0.5')", keys={"comparability": expected})
    assert w.run().code == 0
    assert not any(row["comparable"] for row in w.rows())
    assert "\tparallel_wallclock\t" in w("export").out
    w.write(comparability={**expected, "strict": True}, name="strict")
    done = w.run()
    assert done.code == 2
    assert "expected the hardware 0123456789abcdef" in done.err
    assert len(w.executed()) == 3


def test_a_value_that_is_not_plausible_is_set_aside(tmp_path: Path) -> None:
    w = Workshop(
        tmp_path, "print('score=7' if P['x'] > 0.5 else 'score=0.5')", keys={"objective": {"plausible": [0, 1]}}
    )
    w.write(policy={"type": "grid", "params": {"x": [0.1, 0.9]}})
    w.run()
    assert [row["status"] for row in w.rows()] == ["ok", "invalid_metric"]
    assert "plausible" in w("show", "2").out


def test_copies_for_other_programs_are_kept_where_they_are_named(tmp_path: Path) -> None:
    """`telemetry`: events, results, outputs, versions, checkpoint; made anew by whoever resumes."""
    named = {
        "trace_path": "t/events.jsonl",
        "ledger_path": "t/results.tsv",
        "artifacts_dir": "t/runs",
        "versions_dir": "t/versions",
    }
    w = Workshop(tmp_path, keys={"telemetry": named, "controller": {"checkpoint_path": "t/checkpoint.json"}})
    w.run()
    (tmp_path / "t/results.tsv").unlink()
    w.run("--max-iterations", "4")
    assert len((tmp_path / "t/results.tsv").read_text().splitlines()) == 5
    places = [json.loads(line)["place"] for line in (tmp_path / "t/events.jsonl").read_text().splitlines()]
    assert places == list(range(1, len(places) + 1))
    assert {path.name for path in (tmp_path / "t/runs").iterdir()} == {f"run-000{n}" for n in range(1, 5)}
    assert (tmp_path / "t/runs/run-0001/r0-train.out").read_text().startswith("score=")
    best = json.loads((tmp_path / "t/checkpoint.json").read_text())["best"]
    assert json.loads((tmp_path / f"t/versions/v{best['trial']:04}/version.json").read_text())["value"] == best["value"]


def test_a_baseline_does_not_take_the_crown_from_a_better_trial(tmp_path: Path) -> None:
    """`run-one` before the first run: what it found is still the best."""
    w = Workshop(
        tmp_path, keys={"evaluation": {"baseline_repeats": 2}, "policy": {"type": "grid", "params": {"x": [0.3, 0.9]}}}
    )
    assert w("run-one", "study.yaml", "--params", '{"x": 0.3}').code == 0
    assert w.run().code == 0
    assert w("best").out == '{"x": 0.3}\n'
    assert w("audit").code == 0


def test_run_one_says_when_there_is_no_time_left(tmp_path: Path) -> None:
    """And neither runs nor records anything."""
    w = Workshop(
        tmp_path, COUNTED + "time.sleep(0.6)\nprint('score=0.5')", keys={"controller": {"max_wall_time_s": 0.5}}
    )
    w.run()
    before = (w.study / "ledger.sqlite").read_bytes()
    done = w("run-one", "study.yaml", "--params", '{"x": 0.5}')
    assert done.code == 2
    assert "used up" in done.err
    assert (w.study / "ledger.sqlite").read_bytes() == before


def test_what_the_wall_clock_cut_off_runs_again_with_more_time(tmp_path: Path) -> None:
    w = Workshop(tmp_path, COUNTED + "time.sleep(60 if not os.path.exists('fast') else 0)\nprint('score=0.5')")
    w.write(
        policy={"type": "grid", "params": {"x": [0.9, 0.1]}}, controller={"max_wall_time_s": 1, "max_iterations": 9}
    )
    assert w.run("--json").json["closed"]["reason"] == "wall_clock"
    (tmp_path / "fast").touch()
    assert w.run("--max-wall-time-s", "60").code == 0
    assert w.executed() == ["1", "1", "2"]
    assert [row["status"] for row in w.rows()] == ["ok", "ok"]
    assert w("audit").code == 0


def test_a_metrics_file_that_cannot_be_used_is_a_failure(tmp_path: Path) -> None:
    """Too big, a link, a pipe: stdout is not asked instead."""
    script = (
        "path, n = os.environ['METALOOP_METRICS'], P['x']\nprint('score=0.99')\n"
        "if n == 1: open(path, 'w').write('{\"score\": 0.4}' + ' ' * 70000)\n"
        "if n == 2: os.symlink('/dev/zero', path)\nif n == 3: os.mkfifo(path)\n"
    )
    w = Workshop(tmp_path, script, keys={"policy": {"type": "grid", "params": {"x": [1, 2, 3]}}})
    assert w.run().code == 4
    assert {row["status"] for row in w.rows()} == {"invalid_metric"}


@pytest.mark.parametrize("gone", ["study", "study/ledger.sqlite"])
def test_a_study_that_is_deleted_under_way_ends_with_an_error(tmp_path: Path, gone: str) -> None:
    """No silent success, and no process left."""
    import shutil

    w = Workshop(tmp_path, SLEEP * 4 + "print('score=0.5')", keys={"controller": {"max_iterations": 50}})
    process = w.start("run", "study.yaml", "--dir", "study")
    until(lambda: (tmp_path / "study/trials/0003").exists())
    shutil.rmtree(tmp_path / gone, ignore_errors=True) if gone == "study" else (tmp_path / gone).unlink()
    _, err = process.communicate(timeout=20)
    assert process.returncode in (4, 6), err
    assert "Traceback" not in err
    assert not w.alive()


@pytest.mark.parametrize("path", ["train.py", "notes.txt", ".metaloop/s/ledger.sqlite", "link"])
def test_what_is_not_ours_is_not_written_over(tmp_path: Path, path: str) -> None:
    w = Workshop(tmp_path, keys={"telemetry": {"trace_path": path}})
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "link").symlink_to("notes.txt")
    before = (tmp_path / "train.py").read_text()
    assert w.run().code == 2
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "train.py").read_text() == before
    assert not w.study.exists()


def test_copies_have_each_trial_once_after_a_kill(tmp_path: Path) -> None:
    w = Workshop(
        tmp_path, SLEEP * 4 + BOWL, keys={"telemetry": {"ledger_path": "r.tsv"}, "controller": {"max_iterations": 6}}
    )
    process = w.start("run", "study.yaml")
    until(lambda: (w.study / "trials/0003").exists())
    process.kill()
    process.wait()
    w.run()
    assert (tmp_path / "r.tsv").read_text() == w("export").out
    (tmp_path / "r.tsv").unlink()
    assert "nothing to do" in w.run().err
    assert (tmp_path / "r.tsv").read_text() == w("export").out


def test_a_frozen_file_that_changes_under_way_stops_the_study(tmp_path: Path) -> None:
    """No result is believed that was made with it; put back, the study goes on."""
    w = Workshop(tmp_path, COUNTED + SLEEP * 4 + "print('score=0.5')", keys={"policy": {"frozen": ["data.txt"]}})
    (tmp_path / "data.txt").write_text("one")
    w.write(controller={"max_iterations": 8})
    process = w.start("run", "study.yaml")
    until(lambda: len(w.executed()) > 1)
    (tmp_path / "data.txt").write_text("two")
    _, err = process.communicate(timeout=20)
    assert process.returncode == 2
    assert "a frozen file was changed" in err
    (tmp_path / "data.txt").write_text("one")
    assert w.run().code == 0
    assert w("audit").code == 0


def test_a_resumed_run_tells_what_it_inherited(tmp_path: Path) -> None:
    w = Workshop(
        tmp_path, "time.sleep(0.4)\nprint('score=0.5')", keys={"controller": {"max_iterations": 2, "parallel": 2}}
    )
    process = w.start("run", "study.yaml")
    until(lambda: (w.study / "trials/0002").exists())
    process.kill()
    process.wait()
    done = w.run()
    assert len([line for line in done.err.splitlines() if " crowned " in line or " discarded " in line]) == 2


def test_a_keeper_that_is_stopped_does_not_stop_us(tmp_path: Path) -> None:
    """A trial that stops its keeper: after the patience we have with it, the run is lost, and the study goes on."""
    stop = "import signal\nif len(open('ran.txt').readlines()) == 1:\n  os.kill(os.getppid(), signal.SIGSTOP)\n"
    script = COUNTED + stop + "print('score=0.5')"
    w = Workshop(tmp_path, script, keys={"controller": {"max_iterations": 1}})
    process = w.start("run", "study.yaml")
    until(lambda: w.executed())
    time.sleep(0.3)
    assert interrupted(process, signal.SIGTERM, [signal.SIGTERM]) < 15
    assert w.run().code == 0
    assert not w.alive()


BOTH = "print(f\"acc={P['a']}\")\nprint(f\"ms={P['m']}\")\nprint(f\"size={P['s']}\")"


def several(
    tmp_path: Path, points: list[tuple[float, float, float]], objectives: list[dict], **evaluation: object
) -> Workshop:
    """A study of given points (acc, ms, size); acc is the objective, the others as said."""
    start = [{"a": a, "m": m, "s": s} for a, m, s in points]
    space = {name: {"low": 0.0, "high": 999.0} for name in "ams"}
    w = Workshop(tmp_path, BOTH)
    w.write(
        objective={"metric": "acc", "direction": "max"},
        objectives=objectives,
        policy={"type": "random", "params": space, "start": start},
        controller={"max_iterations": len(points)},
        evaluation={"rule": "strict", "baseline_repeats": 0, **evaluation},
    )
    return w


def kept(w: Workshop) -> list[int]:
    return [row["trial"] for row in w.rows() if row["decision"] == "keep"]


def test_a_bound_is_held_by_whatever_is_kept(tmp_path: Path) -> None:
    """`ms <= 120`: better accuracy over the bound is not kept; the first that holds it beats one that does not."""
    bound = [{"metric": "ms", "direction": "min", "role": "constraint", "bound": 120}]
    w = several(tmp_path, [(5, 130, 1), (1, 120, 1), (9, 121, 1), (2, 50, 1)], bound)
    assert w.run().code == 0
    assert kept(w) == [1, 2, 4]
    assert "ms = 121 is over its bound of 120" in w("show", "3").out
    assert json.loads(w("best").out)["a"] == 2
    assert w("audit").code == 0


def test_further_objectives_decide_ties_in_their_order(tmp_path: Path) -> None:
    further = [{"metric": "size", "direction": "min"}, {"metric": "ms", "direction": "min"}]
    w = several(tmp_path, [(5, 9, 7), (5, 1, 8), (5, 99, 6), (5, 98, 6), (4, 0, 0)], further)
    assert w.run().code == 0
    assert kept(w) == [1, 3, 4]
    assert "6 beats 7 (trial 1) in size, at a tie before it" in w("show", "3").out


def test_a_front_keeps_what_nothing_dominates(tmp_path: Path) -> None:
    """Dominated ones leave it; the crown goes by the objectives in their order."""
    points = [(5, 50, 0), (6, 60, 0), (4, 55, 0), (6, 40, 0), (1, 1, 0), (6, 40, 1)]
    w = several(tmp_path, points, [{"metric": "ms", "direction": "min"}], several="front")
    assert w.run().code == 0
    assert kept(w) == [1, 2, 4, 5]
    front = w("best", "--json").json["front"]
    assert [row["trial"] for row in front] == [4, 5]
    assert "metric" in w("show", "1").out
    assert w("audit").code == 0


def test_a_further_metric_that_is_missing_fails_the_trial(tmp_path: Path) -> None:
    w = several(tmp_path, [(5, 50, 0)], [{"metric": "watts", "direction": "min"}])
    assert w.run().code == 4
    assert "'watts' is missing" in w("show", "1").out


ARTICLE = (0.432727, 0.492727, 0.406364, 0.515455, 0.521818, 0.507273, 0.520909, 0.517727)


def scripted(tmp_path: Path, script: str, trials: int, direction: str = "max") -> Workshop:
    """A study whose n-th trial gives what `script` says of n, counted from 1; the forecast is the only guard."""
    w = Workshop(tmp_path, f"n = int(os.environ['METALOOP_TRIAL'])\nprint('score=%r' % ({script},))")
    w.write(
        objective={"metric": "score", "direction": direction},
        controller={
            "max_iterations": trials,
            "no_improve_limit": 0,
            "forecast": True,
            "parallel": 2,
            "order": "strict",
        },
    )
    return w


def test_a14_the_forecast_never_fires_on_noise(tmp_path: Path) -> None:
    """A min task with i.i.d. scores runs all its trials; so does a max task that improves linearly."""
    noise = "__import__('random').Random(n).gauss(0, 1)"
    for number, (script, direction) in enumerate(((noise, "min"), ("n / 7", "max"))):
        w = scripted(tmp_path / str(number), script, 60, direction)
        assert w.run("--json").json["closed"]["reason"] == "max_iterations"


def test_a15_the_article_s_prefix_is_not_stopped(tmp_path: Path) -> None:
    w = scripted(tmp_path, f"{ARTICLE!r}[n - 1] if n <= 8 else {ARTICLE!r}[n % 8] - 0.001", 35)
    assert w.run("--json").json["closed"]["reason"] == "max_iterations"


def test_a_saturated_study_ends_before_its_budget(tmp_path: Path) -> None:
    """1 - exp(-n/5): what is left of 200 trials promises nothing; and with `forecast: false` all of them run."""
    w = scripted(tmp_path, "1 - __import__('math').exp(-n / 5)", 200)
    done = w.run("--json")
    assert done.json["closed"]["reason"] == "forecast"
    assert len(w.trials()) < 100
    assert w("audit").code == 0


def test_a_name_taken_by_a_study_that_measured_nothing_can_be_had_again(tmp_path: Path) -> None:
    """A mistyped metric: what differs is named to the field, and what to do about it."""
    w = Workshop(tmp_path, keys={"objective": {"metric": "scor"}, "evaluation": {"baseline_repeats": 3}})
    assert w.run().code == 3
    w.write(objective={"metric": "score"})
    asked = w.run()
    assert asked.code == 2
    assert "objective.metric was 'scor', is 'score'" in asked.err
    assert "remove its folder (nothing was measured in it)" in asked.err
    shutil.rmtree(w.study)
    assert w.run().code == 0
