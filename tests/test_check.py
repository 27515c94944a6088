"""`metaloop check`: what may be known before a study begins, measured in a study that is thrown away."""

import os
import signal
import time
from pathlib import Path

import pytest

from metaloop.preflight import Numbers, beyond, wrong_sign
from metaloop.values import Objective
from workshop import BOWL, COUNTED, Workshop, everything_under, until

NOISY = (
    "import random\nx = P.get('x', 0.5)\n"
    "print('score=%r' % (1 + (x - 0.5) * 10 * (x < 0.5) + random.Random(os.environ['METALOOP_SEED']).gauss(0, 0.01)))\n"
)


def workshop(tmp_path: Path, script: str = BOWL, **sections: object) -> Workshop:
    evaluation = {"baseline_repeats": 3}
    return Workshop(tmp_path, script, keys={"evaluation": evaluation, **sections})


def checked(w: Workshop, *args: str) -> dict:
    done = w("check", "study.yaml", "--json", *args)
    told = done.json
    assert told["exit_code"] == done.code
    return told


def findings(told: dict) -> dict[str, tuple[str, str]]:
    return {finding["code"]: (finding["level"], finding["text"]) for finding in told["findings"]}


def left(w: Workshop) -> list[str]:
    return sorted(str(path.relative_to(w.folder)) for path in w.folder.rglob("*"))


# ---- what is told ----------------------------------------------------------------------------------------------------


def test_raw_output_stands_beside_what_was_read_from_it(tmp_path: Path) -> None:
    """The objective is marked; noise, time and budget follow; exit code 0 and what to type next."""
    w = workshop(tmp_path, "print('epoch 1 score: 99')\nprint('loss=2')\nprint('sc\x1b[2Jore: 7')\n" + NOISY)
    done = w("check", "study.yaml")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[0] == "train.out, its end:"
    assert lines[1:4] == ["  | epoch 1 score: 99", "  | loss=2", "  | sc[2Jore: 7"]
    marked = [line for line in lines if line.startswith("  * ")]
    assert len(marked) == 1
    assert marked[0].startswith("  * score = ")
    assert "    loss = 2.0" in lines
    assert "sd of 3 runs" in done.out
    assert "% of timeout_s" in done.out
    assert "3 of 3 trials" in done.out
    assert "\x1b" not in done.out + "".join(checked(w)["sample"]["files"]["train.out"])
    assert lines[-1] == "study.yaml: nothing blocks it; start it with: metaloop run study.yaml"


def test_numbers_are_those_of_the_runs(tmp_path: Path) -> None:
    told = checked(workshop(tmp_path, NOISY, controller={"parallel": 2, "max_iterations": 10}))
    numbers = told["numbers"]
    assert len(set(numbers["values"])) == 3
    assert numbers["mean"] == pytest.approx(sum(numbers["values"]) / 3)
    assert 0 < numbers["sd"] < 0.1
    assert numbers["share"] == pytest.approx(numbers["sd"] / numbers["mean"])
    assert numbers["trials"] == numbers["wanted"] == 10
    assert numbers["baseline_s"] == pytest.approx(2 * numbers["run_s"])  # the repeats run side by side
    assert numbers["total_s"] == pytest.approx(7 * numbers["run_s"])
    assert told["sample"]["source"] == "train.out"
    assert told["sample"]["metrics"] == {"score": numbers["values"][0]}


def test_the_evaluator_and_the_metrics_file_are_what_is_shown(tmp_path: Path) -> None:
    """What is read is what is shown."""
    w = workshop(tmp_path, "print('score=1')")
    (tmp_path / "eval.py").write_text(
        "import os\nopen(os.environ['METALOOP_METRICS'], 'w').write('{\"score\": 0.25}')\n"
    )
    w.write(target={"eval_cmd": ["python3", "eval.py"]})
    sample = checked(w)["sample"]
    assert sample["source"] == "metrics.json"
    assert sample["files"] == {"evaluate.out": [], "metrics.json": ['{"score": 0.25}']}
    assert sample["metrics"] == {"score": 0.25}


def test_static_runs_nothing(tmp_path: Path) -> None:
    w = workshop(tmp_path, COUNTED + BOWL, objective={"metric": "score", "direction": "min"})
    told = checked(w, "--static")
    assert (told["exit_code"], told["numbers"], told["sample"]) == (0, None, None)
    assert list(findings(told)) == ["wrong_sign"]
    assert not w.executed()


def test_a_study_without_a_baseline_is_said_not_to_be_measured(tmp_path: Path) -> None:
    w = workshop(tmp_path, COUNTED + BOWL, evaluation={"baseline_repeats": 0})
    assert findings(checked(w))["no_baseline"][0] == "note"
    assert not w.executed()


def test_nothing_runs_while_something_is_missing(tmp_path: Path) -> None:
    """Exit code 2; a file of telemetry that git tracks is among what is missing."""
    w = workshop(tmp_path, COUNTED + BOWL, telemetry={"ledger_path": "results.tsv"})
    (tmp_path / "results.tsv").write_text("mine")
    os.system(f"cd {tmp_path} && git init -q && git add results.tsv")
    told = checked(w)
    assert told["exit_code"] == 2
    assert "git tracks this file" in told["problems"][0]
    assert not w.executed()


# ---- a baseline that fails -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "said", "advice"),
    [
        ("print('scores=1')", "metric 'score' is missing: found 'scores'", "print score=NUMBER"),
        ("print('score=nan')", "score = nan is not a plain finite number", "print score=NUMBER"),
        ("raise ValueError('no data')", "ValueError: no data", "run it by hand in .: "),
        ("import nosuchmodule", "nosuchmodule", "run it by hand in .: "),
        ("time.sleep(9)", "longer than its time limit", "raise target.timeout_s (1 s)"),
    ],
)
def test_a_baseline_that_fails_says_why_and_what_to_do(tmp_path: Path, script: str, said: str, advice: str) -> None:
    """Exit code 3, with the end of what it wrote."""
    w = workshop(tmp_path, script, target={"timeout_s": 1}, baseline={"params": {"x": 0.5}})
    told = checked(w)
    assert told["exit_code"] == 3
    assert told["numbers"] is None
    error = told["findings"][0]
    assert (error["code"], error["level"]) == ("baseline_failed", "error")
    assert said in error["text"]
    assert error["next"].startswith(advice)
    assert "train.err" in told["sample"]["files"]
    assert left(w) == ["study.yaml", "train.py"]


def test_a_script_without_defaults_is_measured_in_the_middle_and_told(tmp_path: Path) -> None:
    told = checked(workshop(tmp_path, "print(f\"score={P['x']}\")"))
    assert told["exit_code"] == 0
    level, text = findings(told)["no_defaults"]
    assert level == "warning"
    assert "KeyError" in text
    assert told["numbers"]["values"] == [0.5, 0.5, 0.5]


def test_prepare_runs_first_and_may_fail(tmp_path: Path) -> None:
    w = workshop(
        tmp_path, "print('score=' + open('data.txt').read())", target={"prepare_cmd": ["cp", "one", "data.txt"]}
    )
    told = checked(w)
    assert (told["exit_code"], next(iter(findings(told)))) == (3, "prepare_failed")
    (tmp_path / "one").write_text("1")
    told = checked(w)
    assert told["numbers"]["mean"] == 1
    assert told["numbers"]["prepare_s"] > 0


def test_a_run_that_fails_beside_others_is_a_warning(tmp_path: Path) -> None:
    luck = "n = len(open('ran.txt').readlines())\nif n == 2: sys.exit('out of luck')\nprint('score=1')"
    told = checked(workshop(tmp_path, COUNTED + luck))
    assert told["exit_code"] == 0
    said = "1 of 3 runs of the baseline failed: train ended with exit code 1: out of luck"
    assert findings(told)["flaky"] == ("warning", said)


# ---- numbers that are suspicious -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "sections", "code", "level"),
    [
        ("print('score=0.5')", {}, "constant", "note"),
        (NOISY, {}, "noise", "note"),
        ("print('score=0.5')", {"evaluation": {"baseline_repeats": 1}}, "noise_unknown", "note"),
        ("print('score=0')", {}, "zero", "warning"),
        ("print('score=0.5')", {"objective": {"ceiling": 0.5}}, "nothing_to_gain", "warning"),
        ("print('score=0.5')", {"objective": {"target": 0.4}}, "nothing_to_gain", "warning"),
        ("print('score=1')\nprint('score=0.5')", {}, "output", "warning"),
        ("time.sleep(0.7)\nprint('score=0.5')", {"target": {"timeout_s": 1.2}}, "slow", "warning"),
    ],
)
def test_what_is_suspicious_is_said_and_blocks_nothing(tmp_path: Path, script, sections, code, level) -> None:
    told = checked(workshop(tmp_path, script, **sections))
    assert told["exit_code"] == 0
    assert findings(told)[code][0] == level


@pytest.mark.parametrize(
    ("script", "sections", "code"),
    [
        (NOISY, {}, "constant"),
        ("print('score=0.1')", {}, "zero"),
        ("print('score=0')", {"objective": {"plausible": [-1, 1]}}, "zero"),
        ("print('score=0')", {"objective": {"direction": "min"}}, "zero"),
        ("print('score=0.5')", {"objective": {"target": 0.6}}, "nothing_to_gain"),
        ("print('score=0.5')", {}, "slow"),
        ("print('score=0.5')", {}, "budget"),
    ],
)
def test_and_only_where_it_is(tmp_path: Path, script: str, sections: dict, code: str) -> None:
    assert code not in findings(checked(workshop(tmp_path, script, **sections)))


@pytest.mark.parametrize(
    ("metric", "direction", "warned"),
    [
        ("val_loss", "max", True),
        ("Perplexity", "max", True),
        ("latency_ms", "max", True),
        ("accuracy", "min", True),
        ("f1", "min", True),
        ("macro-F1", "min", True),
        ("conf1g", "min", False),
        ("val_loss", "min", False),
        ("accuracy", "max", False),
        ("neg_loss", "max", False),
        ("error_score", "min", False),
        ("mbps", "min", False),
    ],
)
def test_a_name_that_speaks_against_the_direction(metric: str, direction, warned: bool) -> None:
    assert (wrong_sign(Objective(metric, direction)) is not None) == warned


# ---- the budget ------------------------------------------------------------------------------------------------------

SLOW = "time.sleep(0.5)\nprint('score=0.5')"


@pytest.mark.parametrize("seconds", [0.7, 1.7])
def test_a_budget_that_cannot_pay_for_one_trial_blocks(tmp_path: Path, seconds: float) -> None:
    """Exit code 5, whether the baseline could be measured or was cut off; and what would be enough."""
    told = checked(workshop(tmp_path, SLOW, controller={"max_wall_time_s": seconds}))
    assert told["exit_code"] == 5
    error = told["findings"][0]
    assert (error["code"], error["level"]) == ("budget", "error")
    assert "controller.max_wall_time_s" in error["next"]


def test_a_budget_that_pays_for_some_is_a_note(tmp_path: Path) -> None:
    told = checked(workshop(tmp_path, SLOW, controller={"max_wall_time_s": 8, "max_iterations": 100}))
    assert told["exit_code"] == 0
    assert 2 <= told["numbers"]["trials"] <= 13
    assert findings(told)["budget"][0] == "note"


# ---- sabotage and noop -----------------------------------------------------------------------------------------------


def test_what_was_not_given_is_said_not_to_be_checked(tmp_path: Path) -> None:
    found = findings(checked(workshop(tmp_path, NOISY)))
    assert found["sabotage_unchecked"][0] == found["noop_unchecked"][0] == "note"


@pytest.mark.parametrize(
    ("script", "sabotage", "noop", "code", "levels"),
    [
        (NOISY, 0.0, 0.5, 0, ("note", "note")),
        (NOISY, 0.9, 0.5, 3, ("error", "note")),
        (NOISY, 0.0, 0.1, 0, ("note", "warning")),
        (BOWL, 0.1, 0.9, 3, ("error", "note")),  # better than the baseline
        (BOWL, 0.95, 0.9, 0, ("note", "note")),
        (BOWL, 0.95, 0.91, 0, ("note", "warning")),
        ("print('score=0.5')", 0.1, 0.2, 3, ("error", "note")),
        ("print('score=%r' % (1 / P.get('x', 1)))", 0.0, 1.0, 0, ("warning", "note")),
    ],
)
def test_the_metric_has_to_notice_sabotage_and_nothing_else(tmp_path, script, sabotage, noop, code, levels) -> None:
    """Worse beyond noise, or exit code 3; a noop beyond noise, and a try that fails, are warnings."""
    told = checked(workshop(tmp_path, script, check={"sabotage": {"x": sabotage}, "noop": {"x": noop}}))
    found = findings(told)
    assert (found["sabotage"][0], found["noop"][0]) == levels, found
    assert told["exit_code"] == code


@pytest.mark.parametrize(
    ("check", "said"),
    [
        ({"sabotage": {"x": 2}}, "check.sabotage: expected a point of the space; x = 2 is outside"),
        ({"noop": {}}, "check.noop: expected a point of the space; parameter 'x' is missing"),
        ({"noop": {"x": 0.5, "y": 1}}, "check.noop: expected a point of the space; parameter 'y' is not in the space"),
        ({"sabotage": {"x": 0.5}, "noop": {"x": 0.5}}, "check.noop: expected other parameters than check.sabotage"),
        ({"sabotaje": {"x": 0.5}}, "did you mean sabotage?"),
    ],
)
def test_points_that_are_none_of_the_space_are_faults(tmp_path: Path, check: dict, said: str) -> None:
    done = workshop(tmp_path, check=check)("check", "study.yaml")
    assert done.code == 2
    assert said in done.err


def test_a_value_within_noise_is_one_that_the_baseline_might_give() -> None:
    def told(values: tuple[float, ...], sd: float | None) -> Numbers:
        return Numbers("m", "max", values, sum(values) / len(values), sd, None, 1, 1, 0, 1, 1, 1, 1, 1, 1)

    three = told((1.0, 2.0, 3.0), 1.0)
    assert not beyond(2 + 4.9, three)  # t = 4.303 with 2 degrees of freedom, times sqrt(4/3)
    assert beyond(2 + 5.0, three)
    assert beyond(2 - 5.0, three)
    assert not beyond(1.0, told((1.0, 1.0), 0.0))
    assert beyond(1.1, told((1.0, 1.0), 0.0))
    assert beyond(1.1, told((1.0,), None))


# ---- nothing is left behind ------------------------------------------------------------------------------------------


def test_a_study_that_is_there_is_not_touched(tmp_path: Path) -> None:
    """Neither its ledger nor its copies, and check leaves no study that another command could take for one."""
    w = workshop(tmp_path, BOWL, telemetry={"ledger_path": "results.tsv", "versions_dir": "kept"})
    w.run()
    before, there = everything_under(tmp_path), left(w)
    assert w("check", "study.yaml").code == 0
    assert left(w) == there
    assert everything_under(tmp_path) == before


def test_what_a_trial_locked_away_is_removed_too(tmp_path: Path) -> None:
    script = "os.makedirs(os.environ['HOME'] + '/a/b')\nos.chmod(os.environ['HOME'] + '/a', 0)\nprint('score=1')"
    w = workshop(tmp_path, script)
    assert checked(w)["exit_code"] == 0
    assert left(w) == ["study.yaml", "train.py"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_and_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    w = workshop(tmp_path, COUNTED + "time.sleep(60)")
    process = w.start("check", "study.yaml")
    until(w.executed)
    process.send_signal(number)
    if number == signal.SIGINT:
        time.sleep(0.2)
        process.send_signal(number)
    out, err = process.communicate(timeout=15)
    assert process.returncode == 128 + (signal.SIGINT if number == signal.SIGINT else signal.SIGTERM), err
    assert "Traceback" not in err
    assert "nothing blocks" not in out
    assert left(w) == ["ran.txt", "study.yaml", "train.py"]
    until(lambda: not w.alive())


def test_what_a_killed_check_left_goes_with_the_next(tmp_path: Path) -> None:
    """With the run that went on without it. One that lives is left alone."""
    w = workshop(tmp_path, COUNTED + "time.sleep(60 if len(open('ran.txt').readlines()) < 3 else 0)\nprint('score=1')")
    killed, alive = w.start("check", "study.yaml"), w.start("check", "study.yaml")
    until(lambda: len(w.executed()) == 2)
    folders = list((tmp_path / ".metaloop").glob(".check-*"))
    killed.kill()
    killed.wait()
    for folder in folders:
        os.utime(folder, (0, 0))
    assert len(w.alive()) == 2
    assert w("check", "study.yaml").code == 0
    assert len(w.alive()) == 1
    assert len(list((tmp_path / ".metaloop").glob(".check-*"))) == 1
    alive.send_signal(signal.SIGINT)
    alive.send_signal(signal.SIGINT)
    alive.wait(timeout=15)
    assert not list((tmp_path / ".metaloop").glob(".check-*"))


def test_a_check_beside_a_run_says_that_its_times_are_longer(tmp_path: Path) -> None:
    w = workshop(tmp_path, COUNTED + "time.sleep(0.3)\nprint('score=1')", controller={"max_iterations": 100})
    process = w.start("run", "study.yaml")
    until(w.executed)
    assert findings(checked(w))["running"][0] == "note"
    assert w("status").code == 0
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=10)
    assert w("audit").code == 0


# ---- code ------------------------------------------------------------------------------------------------------------


def coding(folder: Path, **check: str) -> Workshop:
    from test_code_study import block, shop

    made = shop(folder)
    (folder / "worse.txt").write_text(block("src/model.py", "RATE = 0.1", "RATE = 0.01"))
    (folder / "better.txt").write_text(block("src/model.py", "RATE = 0.1", "RATE = 0.2"))
    made.write(check=check)
    return made


def test_a_change_of_nothing_and_a_sabotage_of_code_are_tried(tmp_path: Path) -> None:
    """An empty line, unless a patch is named, has to score the same; a patch that is named, worse. Nothing is left."""
    made = coding(tmp_path, sabotage="../worse.txt")
    done = made("check", "study.yaml")
    assert done.code == 0, done.err
    assert "noop scores 0.1, the baseline 0.1: within noise, as it should be" in done.out
    assert "sabotage scores 0.01, the baseline 0.1: worse beyond noise, as it should be" in done.out
    assert not (made.folder / ".metaloop").exists() or not list((made.folder / ".metaloop").glob("*"))


def test_a_sabotage_of_code_that_is_no_worse_blocks_the_study(tmp_path: Path) -> None:
    done = coding(tmp_path, sabotage="../better.txt")("check", "study.yaml")
    assert done.code == 3
    assert "not worse beyond noise, so the metric does not see it" in done.out + done.err


def test_a_patch_to_try_has_to_be_there(tmp_path: Path) -> None:
    done = coding(tmp_path, noop="nowhere.txt")("check", "study.yaml")
    assert (done.code, "check.noop: expected a file with a patch, found none at" in done.err) == (2, True)


def test_who_says_what_trials_are_worth_is_a_finding_where_it_is_the_candidate(tmp_path: Path) -> None:
    made = coding(tmp_path)
    done = made("check", "study.yaml", "--static")
    assert "candidates run in the process that measures them, and could forge it" in done.out + done.err
    assert "scored by a program in whose process candidates run: not verified" in done.err
