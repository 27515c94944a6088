"""What a study file may say, what it may not, and in which words it is told so."""

import copy
import os
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from metaloop import studyfile
from metaloop.errors import ConfigError, Faults
from metaloop.studyfile import StudyFile, from_flags, from_mapping, json_schema, load, parse_param, schema
from metaloop.terms import Baseline, Limits
from metaloop.values import Choices, Range

HERE = Path(__file__).parent
GOOD = {
    "objective": "objective: {metric: score, direction: max}",
    "target": "target: {train_cmd: [python, train.py]}",
    "policy": "policy: {params: {x: [1, 2, 3]}}",
}


@pytest.fixture
def there(tmp_path: Path) -> Path:
    """A folder with a script, some data and nothing else."""
    (tmp_path / "train.py").write_text("print('score=1')\n")
    (tmp_path / "prepare.py").write_text("pass\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("1\n")
    (tmp_path / "data" / "deep").mkdir()
    (tmp_path / "data" / "deep" / "b.csv").write_text("2\n")
    return tmp_path


def write(folder: Path, text: str = "") -> Path:
    """A study file of `text`, and of the sections of GOOD that `text` has not."""
    text = textwrap.dedent(text)
    rest = [line for key, line in GOOD.items() if not any(row.startswith(f"{key}:") for row in text.splitlines())]
    path = folder / "study.yaml"
    path.write_text("\n".join([text.rstrip("\n"), *rest, ""]).lstrip("\n"))
    return path


def study(folder: Path, text: str = "") -> StudyFile:
    return load(write(folder, text))


def faults(path: Path) -> list[str]:
    """The lines of what is wrong with a file, without the file's name; each has been checked to be one line."""
    with pytest.raises(Faults) as caught:
        load(path)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(caught.value.faults)
    assert all(line.startswith(f"{path}:") for line in lines), lines
    assert all(len(line.removeprefix(f"{path}:")) < 500 for line in lines)
    return [line.removeprefix(f"{path}:").strip() for line in lines]


def fault(folder: Path, text: str) -> str:
    """The one thing that is wrong with a file."""
    lines = faults(write(folder, text))
    assert len(lines) == 1, lines
    return lines[0]


# ---- what is right ---------------------------------------------------------------------------------------------------


def test_the_articles_file_is_valid_unchanged():
    file = load(HERE / "data" / "article.yaml")
    assert file.terms.name == "grpo-qwen"
    assert file.terms.space["learning_rate"] == Choices((3e-6, 5e-6, 1e-5))
    assert file.terms.policy == "llm"
    assert file.bounds.max_iterations == 10
    assert file.folder == HERE / "data" / ".metaloop" / "grpo-qwen"
    assert set(file.telemetry) == {"trace_path", "ledger_path", "artifacts_dir", "versions_dir", "checkpoint_path"}
    assert not file.notes


def test_what_stands_in_the_way_of_the_articles_file_is_said_a_line_each(monkeypatch):
    monkeypatch.setattr(studyfile, "_installed", lambda _: True)
    missing = load(HERE / "data" / "article.yaml").missing
    nothing = missing({})
    assert [line.split(":")[0] for line in nothing] == [
        "CHUTES_API_KEY is not set (policy.llm_api_key_env)",
        "BASILICA_API_TOKEN is not set (target.type",
        "target.type",
    ]
    assert nothing[0] == "CHUTES_API_KEY is not set (policy.llm_api_key_env): export CHUTES_API_KEY=..."
    assert missing({"CHUTES_API_KEY": " \n", "BASILICA_API_KEY": "x"}) == nothing, (
        "blank is not set; nor is another name"
    )
    assert len(missing({"CHUTES_API_KEY": "k\n", "BASILICA_API_TOKEN": "t"})) == 1


def test_the_least_file_has_every_default_and_is_named_after_itself(there: Path):
    file = study(there)
    assert file.terms.name == "study"
    assert file.path == there / "study.yaml"
    assert file.workdir == there
    assert file.terms.policy == "random"
    assert (file.terms.rule, file.terms.alpha, file.terms.confirm) == ("proven", 0.05, 12)
    assert file.terms.baseline == Baseline(repeats=3)
    assert file.terms.env_allow == ("PATH", "LANG", "TERM", "CUDA_VISIBLE_DEVICES")
    bounds = file.bounds
    assert (bounds.max_iterations, bounds.max_wall_time_s, bounds.no_improve_limit) == (100, 28800, 15)
    assert (bounds.failure_rate_limit, bounds.failure_window, bounds.lanes, bounds.timeout_s) == (0.85, 8, 1, 3600)
    assert bounds.limits == Limits(None, 512, 10 << 20, 1024)
    assert file.telemetry == {}
    assert file.missing({}) == file.notes == ()


def test_every_key_has_an_effect(there: Path):
    """Each key changes the study in its place; a key that changes nothing would be a lie."""
    (there / "task.md").write_text("be better\n")
    plain = study(there)
    for text, value in {
        "name: other": lambda f: (f.terms.name, f.folder),
        "objective: {metric: loss, direction: max}": lambda f: f.terms.objective.metric,
        "objective: {metric: score, direction: lower}": lambda f: f.terms.objective.direction,
        "objective: {metric: score, direction: max, target: 3}": lambda f: f.terms.objective.target,
        "objective: {metric: score, direction: max, ceiling: 3}": lambda f: f.terms.objective.ceiling,
        "objective: {metric: score, direction: max, plausible: [0, 1]}": lambda f: f.terms.objective.plausible,
        "target: {train_cmd: [other]}": lambda f: f.terms.train,
        "target: {train_cmd: [python, train.py], eval_cmd: [e]}": lambda f: f.terms.evaluate,
        "target: {train_cmd: [python, train.py], prepare_cmd: [p]}": lambda f: f.terms.prepare,
        "target: {train_cmd: [python, train.py], workdir: data}": lambda f: (f.terms.workdir, f.workdir),
        "target: {train_cmd: [python, train.py], timeout_s: 1}": lambda f: f.bounds.timeout_s,
        "target: {train_cmd: [python, train.py], prepare_timeout_s: 1}": lambda f: f.bounds.prepare_timeout_s,
        "target: {train_cmd: [python, train.py], limits: {memory: 1GiB}}": lambda f: f.bounds.limits.memory,
        "target: {train_cmd: [python, train.py], limits: {processes: 9}}": lambda f: f.bounds.limits.processes,
        "target: {train_cmd: [python, train.py], limits: {output: 9}}": lambda f: f.bounds.limits.output,
        "target: {train_cmd: [python, train.py], limits: {files: 9}}": lambda f: f.bounds.limits.files,
        "target: {train_cmd: [python, train.py], env: {A: b}}": lambda f: f.terms.env,
        "target: {train_cmd: [python, train.py], env_allow: [HF_TOKEN]}": lambda f: f.terms.env_allow,
        "target: {train_cmd: [python, train.py], type: basilica, basilica: {image: i}}": lambda f: f.missing({}),
        "target: {train_cmd: [python, train.py], basilica: {image: i}}": lambda f: f.notes,
        "policy: {params: {x: [1, 2, 4]}}": lambda f: f.terms.space,
        "policy: {params: {x: [1, 2, 3]}, type: grid}": lambda f: f.terms.policy,
        "policy: {params: {x: [1, 2, 3]}, seed: 7}": lambda f: f.terms.seed,
        "policy: {params: {x: [1, 2, 3]}, start: [{x: 2}]}": lambda f: f.terms.start,
        "policy: {params: {x: [1, 2, 3]}, mutable_file: train.py}": lambda f: (f.mutable, f.notes),
        "policy: {params: {x: [1, 2, 3]}, mutable: [train.py]}": lambda f: (f.mutable, f.notes),
        "policy: {params: {x: [1, 2, 3]}, frozen_file: prepare.py}": lambda f: f.terms.frozen,
        "policy: {params: {x: [1, 2, 3]}, frozen: [prepare.py]}": lambda f: f.terms.frozen,
        "policy: {params: {x: [1, 2, 3]}, program_file: task.md}": lambda f: (f.program, f.notes),
        "policy: {params: {x: [1, 2, 3]}, llm_model: m}": lambda f: f.notes,
        "policy: {params: {x: [1, 2, 3]}, llm_timeout_s: 3}": lambda f: f.notes,
        "policy: {params: {x: [1, 2, 3]}, frontier: softmax}": lambda f: f.notes,
        "evaluation: {baseline_repeats: 0}": lambda f: f.terms.baseline.repeats,
        "baseline: none": lambda f: f.terms.baseline.kind,
        "baseline: {params: {x: 1}}": lambda f: f.terms.baseline.params,
        "baseline: {cmd: [a, b]}": lambda f: f.terms.baseline.cmd,
        "controller: {max_iterations: 3}": lambda f: f.bounds.max_iterations,
        "controller: {max_wall_time_s: 3.5}": lambda f: f.bounds.max_wall_time_s,
        "controller: {no_improve_limit: 3}": lambda f: f.bounds.no_improve_limit,
        "controller: {failure_rate_limit: 0.5}": lambda f: f.bounds.failure_rate_limit,
        "controller: {failure_window: 3}": lambda f: f.bounds.failure_window,
        "controller: {parallel: 3}": lambda f: f.bounds.lanes,
        "controller: {parallel: {enabled: true, max_concurrency: 2}}": lambda f: f.bounds.lanes,
        "controller: {order: strict}": lambda f: f.terms.order,
        "controller: {window: 5}": lambda f: f.terms.window,
        "controller: {checkpoint_path: c.json}": lambda f: f.telemetry,
        "telemetry: {trace_path: t}": lambda f: f.telemetry,
        "telemetry: {ledger_path: t}": lambda f: f.telemetry,
        "telemetry: {artifacts_dir: t}": lambda f: f.telemetry,
        "telemetry: {versions_dir: t}": lambda f: f.telemetry,
        "comparability: {budget_mode: parallel_wallclock}": lambda f: f.comparability.budget_mode,
        "comparability: {expected_hardware_fingerprint: 0123456789abcdef}": lambda f: f.terms.fingerprint,
        "comparability: {strict: true}": lambda f: f.terms.same_host,
    }.items():
        other = study(there, text)
        assert value(other) != value(plain), text
        assert other.config_hash != plain.config_hash, text


def test_lanes_are_off_unless_enabled(there: Path):
    assert study(there, "controller: {parallel: {enabled: false, max_concurrency: 4}}").bounds.lanes == 1


@pytest.mark.parametrize(
    ("word", "direction"),
    [("max", "max"), ("Maximize", "max"), ("HIGHER", "max"), ("min", "min"), ("minimise", "min"), ("Lower", "min")],
)
def test_a_direction_may_be_said_in_several_words(there: Path, word: str, direction: str):
    assert study(there, f"objective: {{metric: score, direction: {word}}}").terms.objective.direction == direction


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("48GiB", 48 << 30),
        ("48Gi", 48 << 30),
        ("10 MiB", 10 << 20),
        ("5 GB", 5 * 10**9),
        ("1.5k", 1500),
        ("1024", 1024),
    ],
)
def test_sizes_are_bytes_or_have_a_unit(there: Path, text: str, size: int):
    limits = f"target: {{train_cmd: [a], limits: {{memory: {text}}}}}"
    assert study(there, limits).bounds.limits.memory == size


@pytest.mark.parametrize("text", ["48 parsecs", "-1GiB", "0", "9999999TiB", "9" * 400 + "TiB", "true", ".5", "''"])
def test_what_is_no_size_is_refused(there: Path, text: str):
    assert "target.limits.memory: expected" in fault(there, f"target: {{train_cmd: [a], limits: {{memory: {text}}}}}")


def test_limits_that_may_be_absent_can_be_switched_off(there: Path):
    limits = study(there, "target: {train_cmd: [a], limits: {processes: null, files: ~}}").bounds.limits
    assert limits == Limits(None, None, 10 << 20, None)


def test_commands_and_environment_are_text_however_they_look(there: Path):
    file = study(there, "target: {train_cmd: [run, --lr, 1e-3, 007, true, 1.10], env: {OMP_NUM_THREADS: 1, A: 1.50}}")
    assert file.terms.train == ("run", "--lr", "1e-3", "007", "true", "1.10")
    assert file.terms.env == {"OMP_NUM_THREADS": "1", "A": "1.50"}


def test_numbers_are_those_of_yaml_1_2(there: Path):
    """Case A13: small numbers are numbers, not text."""
    space = study(
        there, "policy: {params: {lr: [3e-6, 5e-6, 1e-5], n: [0x10, 0o17, +7], w: [yes, 1_0, '1']}}"
    ).terms.space
    assert space["lr"] == Choices((3e-6, 5e-6, 1e-5))
    assert space["n"] == Choices((16, 15, 7))
    assert space["w"] == Choices(("yes", "1_0", "1"))


def test_a_range_holds_floats_unless_it_says_int(there: Path):
    file = study(there, "policy: {params: {a: {low: 1, high: 8}, b: {low: 1, high: 8, int: true, step: 1}}}")
    assert file.terms.space == {"a": Range(1.0, 8.0), "b": Range(1.0, 8.0, whole=True)}
    assert file.notes == ("policy.params.a is of all numbers from 1 to 8; add int: true for whole ones",)


def test_a_range_of_every_kind(there: Path):
    text = "policy: {params: {a: {low: 1e-5, high: 0.1, log: true}, b: {low: 0, high: 1, step: 0.25}}}"
    assert study(there, text).terms.space == {"a": Range(1e-5, 0.1, log=True), "b": Range(0, 1, step=0.25)}


def test_static_takes_bare_values_or_lists_of_one(there: Path):
    file = study(there, "policy: {type: static, params: {a: 3, b: [adam], c: true}}")
    assert file.terms.space == {"a": Choices((3,)), "b": Choices(("adam",)), "c": Choices((True,))}


def test_static_needs_no_parameters(there: Path):
    assert study(there, "policy: {type: static}").terms.space == {}


def test_start_and_baseline_points_are_held_as_the_space_holds_them(there: Path):
    text = (
        "policy: {params: {a: {low: 0, high: 1}, n: [1, 2]}, start: [{n: 2.0, a: 1}]}\nbaseline: {params: {a: 0, n: 1}}"
    )
    file = study(there, text)
    assert repr(file.terms.start) == "({'a': 1.0, 'n': 2},)"
    assert repr(file.terms.baseline.params) == "{'a': 0.0, 'n': 1}"


def test_paths_resolve_against_the_file_and_not_against_where_we_are(there: Path, monkeypatch: pytest.MonkeyPatch):
    write(there, "telemetry: {ledger_path: out/results.tsv}")
    (there / "elsewhere").mkdir()
    monkeypatch.chdir(there / "elsewhere")
    file = load(Path("../study.yaml"))
    assert file.path == there / "study.yaml"
    assert file.telemetry == {"ledger_path": there / "out" / "results.tsv"}
    assert file.folder == there / ".metaloop" / "study"


def test_loading_creates_nothing(there: Path):
    before = sorted(there.rglob("*"))
    write(there, "telemetry: {ledger_path: out/results.tsv, versions_dir: v}")
    load(there / "study.yaml")
    assert sorted(there.rglob("*")) == sorted([*before, there / "study.yaml"])


def test_the_hash_is_of_what_is_meant_and_not_of_how_it_is_written(there: Path):
    one = study(there, "controller: {max_wall_time_s: 60, parallel: 1}\nobjective: {metric: score, direction: max}")
    other = study(
        there, "# a comment\nobjective:\n  direction: higher\n  metric: 'score'\ncontroller: {max_wall_time_s: 6e1}"
    )
    assert one.config_hash == other.config_hash
    assert one.config_hash != study(there, "controller: {max_wall_time_s: 61}").config_hash


def test_aliases_are_read_where_they_are_few(there: Path):
    assert study(there, "policy: {params: {x: &c [1, 2], y: *c}}").terms.space["y"] == Choices((1, 2))


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_a_byte_order_mark_is_believed(there: Path, encoding: str):
    path = write(there, "name: größe")
    mark = "\ufeff" if encoding.endswith(("le", "be")) else ""
    path.write_bytes((mark + path.read_text()).encode(encoding))
    assert load(path).terms.name == "größe"


def test_windows_line_ends_count_as_lines(there: Path):
    path = write(there, "name: a\ncontroller:\n  max_iteration: 3")
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert faults(path) == ["3: controller.max_iteration: unknown key; did you mean max_iterations?"]


def test_overrides_win_over_the_file_and_are_checked_alike(there: Path):
    path = write(there, "controller: {max_iterations: 3}")
    assert load(path, {"controller.max_iterations": 9, "policy.seed": 4}).bounds.max_iterations == 9
    assert load(path, {"policy.params.a.b": [1, 2]}).terms.space["a.b"] == Choices((1, 2))
    for overrides, message in [
        (
            {"controller.max_iterations": 0},
            "controller.max_iterations: expected a number of at least 1; found the number 0",
        ),
        ({"controller.max_iteration": 0}, "controller.max_iteration: unknown key; did you mean max_iterations?"),
    ]:
        with pytest.raises(Faults) as caught:
            load(path, overrides)
        assert str(caught.value) == message, "what does not stand in the file has no line there"
    path = write(there, "controller: 3")
    assert str(refusal(lambda: load(path, {"controller.max_iterations": 1}))) == (
        f"{path}:1: controller: expected keys and values; found the number 3"
    )


def test_a_message_is_short_however_much_there_is_to_say(there: Path):
    choices = ", ".join(map(str, range(5000)))
    fault(there, f"policy: {{params: {{x: [{choices}]}}, start: [{{x: -1}}]}}")
    fault(there, f"policy: {{params: {{x: [1]}}, program_file: {'x' * 5000}}}")
    fault(there, f"{'x' * 900}: 3")


# ---- faults of a whole file ------------------------------------------------------------------------------------------

BAD = HERE / "bad_configs"


def test_a_good_file_among_the_bad_ones_is_accepted():
    assert load(BAD / "00_good.yaml").terms.name == "00_good"
    assert load(BAD / "27_utf16.yaml").terms.space == {"x": Choices((1, 2, 3))}


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("01_alias_bomb", ["5: e[2]: expected a study file, found more than 20000 values once aliases are expanded"]),
        ("02_unknown_key", ["4: objectiv: unknown key; did you mean objective?"]),
        ("03_wrong_type", ["5: controller.max_iterations: expected a whole number; found a list of 1"]),
        (
            "04_python_tag",
            [
                "4: expected a plain value, found the tag tag:yaml.org,2002:python/object/apply:os.system; "
                "remove it, tags are not used here"
            ],
        ),
        (
            "05_overlap",
            [
                "5: policy.mutable[0]: '00_good.yaml' is both mutable and frozen (policy.frozen[0]); "
                "take it out of one of them"
            ],
        ),
        (
            "06_escape_path",
            [
                "5: policy.mutable[0]: expected a path inside the workdir, found '../../etc/passwd'; "
                f"write it relative to {BAD}"
            ],
        ),
        (
            "07_missing_metric",
            [
                "3: objective.metric: expected this key, found nothing; "
                "add the exact name of the metric that the command prints"
            ],
        ),
        (
            "08_bad_direction",
            [
                "1: objective.direction: expected max or min (or maximize, minimize, higher, lower); "
                "found the text 'maximise-ish'; did you mean maximise?"
            ],
        ),
        (
            "09_empty",
            [
                "1: expected keys and values, found an empty file; the least there can be is "
                "objective: {metric: NAME, direction: max} and target: {train_cmd: [COMMAND]}"
            ],
        ),
        (
            "10_syntax",
            [
                "5: controller.max_iterations: expected YAML, found a syntax error: "
                "while parsing a flow mapping expected ',' or '}', but got '<stream end>'"
            ],
        ),
        (
            "26_not_finite",
            [
                "4: target.timeout_s: expected a finite number, found inf",
                "5: target.limits.processes: expected a finite number, found nan",
                "5: target.limits.memory: expected a number above 0; found the number -1",
            ],
        ),
        (
            "28_tabs",
            [
                "5: controller: expected YAML, found a syntax error: while scanning for the next token "
                "found character '\\t' that cannot start any token; indent with spaces"
            ],
        ),
        (
            "29_huge_int",
            [
                "5: controller.max_iterations: expected a number of at most 18 digits, "
                "found a whole number of hundreds of digits"
            ],
        ),
    ],
)
def test_each_hostile_file_is_refused_with_file_line_and_key(name: str, lines: list[str]):
    assert faults(BAD / f"{name}.yaml") == lines


def test_all_faults_of_a_file_are_found_at_once_in_the_order_of_lines(there: Path):
    lines = faults(
        write(
            there,
            """\
            name: a/b
            objective: {direction: up}
            target: {train_cmd: python train.py, timeout_s: -1, workdir: nowhere}
            policy:
              type: grid
              sed: 3
              params: {x: [1, 1.0], y: {low: 2, high: 1}, z: {low: 0, high: 1}}
              frozen: [none.py]
              start: [{x: 1}]
            telemetry: {ledger_path: data}
            max_iterations: 3
            """,
        )
    )
    assert [line.split(":")[0] + line.split(":")[1] for line in lines] == [
        "1 name",
        "2 objective.metric",
        "2 objective.direction",
        "3 target.train_cmd",
        "3 target.timeout_s",
        "3 target.workdir",
        "6 policy.sed",
        "7 policy.params.x",
        "7 policy.params.y",
        "7 policy.params.z",
        "10 telemetry.ledger_path",
        "11 max_iterations",
    ]


def test_one_fault_is_told_once(there: Path):
    """What follows from a fault is not a second one: no missing parameter, no point outside an unreadable range."""
    assert len(faults(write(there, "policy: {type: grid, params: {x: {low: .nan, high: 1}}, start: [{x: 3}]}"))) == 1
    assert len(faults(write(there, "policy: {type: statik, params: {x: 3}}"))) == 1
    assert len(faults(write(there, "objective: {metric: a=b, direction: max, target: 2, ceiling: 1}"))) == 1
    assert len(faults(write(there, "policy: {params: 3}"))) == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- a\n- b\n", "1: expected keys and values, found a list;"),
        ("hello\n", "1: expected keys and values, found a single value;"),
        ("# nothing\n", "1: expected keys and values, found an empty file;"),
        ("---\n...\n", "1: expected keys and values, found an empty file;"),
        ("name: a\n---\nname: b\n", "2: name: expected one document, found a second after '---'"),
        ("name: a\nname: [b\n", "expected YAML, found a syntax error"),
        ("name: *a\n", "1: name: expected an anchor &a before its alias, found none that is complete"),
        ("name: &a [*a]\n", "1: name[0]: expected an anchor &a before its alias, found none that is complete"),
        ("name: &a {b: &c [*a]}\n", "1: name.b[0]: expected an anchor"),
        ("? [a]\n: b\n", "1: expected text as a key, found a list or a mapping"),
        ("? {? {a: b} : c}\n: b\n", "1: expected text as a key, found a list or a mapping"),
        ("%FOO bar\n--- *x\n", "2: expected an anchor &x"),
        ("a: " + "[" * 100_000, "1: a[0][0]"),
        ("a: " + "{b: " * 100_000, "1: a.b.b"),
        ("? " * 100_000, "1: expected text as a key"),
        ("- " * 100_000, "1: [0][0]"),
        ("- 1\n" * 100_000, "20000: [19999]: expected a study file, found more than 20000 values"),
        ("name: a\x00b\n", "1: expected printable text, found U+0000"),
        ("\n\nname: a\x07b\n", "3: expected printable text, found U+0007"),
    ],
)
def test_what_is_no_study_file_is_one_line_and_quick(there: Path, text: str, message: str):
    path = there / "study.yaml"
    path.write_bytes(text.encode())
    start = time.perf_counter()
    (line,) = faults(path)
    assert time.perf_counter() - start < 5
    assert message in line


def test_bytes_that_are_no_text_are_named_with_their_line(there: Path):
    path = write(there, "name: x\nprogram: grosse")
    path.write_bytes(path.read_bytes().replace(b"grosse", "größe".encode("latin-1")))
    assert faults(path) == ["2: expected text in UTF-8, found the byte 0xf6 that is none; save the file as UTF-8"]
    path.write_bytes(b"\xff\xfea\x00\n\x00b")
    assert faults(path)[0].startswith("2: expected text in UTF-8")


def test_a_path_that_is_no_readable_file_is_refused_in_a_line(there: Path):
    assert faults(there) == ["expected a study file, found a folder"]
    assert faults(there / "none.yaml")[0].startswith("expected a study file, found none")
    with pytest.raises(
        Faults, match=r"study\.yaml\\x00: expected the path of a study file, found one that no file can have"
    ):
        load(there / "study.yaml\x00")
    assert faults(there / ("x" * 300))[0].startswith(
        "expected a study file that can be read, found: file name too long"
    )
    os.mkfifo(there / "pipe")
    assert faults(there / "pipe") == ["expected a study file, found no regular file"]
    assert faults(Path("/proc/self/mem")) == ["expected a study file that can be read, found: input/output error"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read anything")
def test_a_file_without_permission_is_refused_in_a_line(there: Path):
    path = write(there)
    path.chmod(0)
    assert faults(path) == ["expected a study file that can be read, found: permission denied"]
    path.chmod(stat.S_IRUSR | stat.S_IWUSR)


def test_a_file_of_more_than_a_mebibyte_is_not_read(there: Path):
    path = write(there, "name: x\n#" + "y" * (1 << 20))
    assert faults(path) == ["expected a study file of at most 1 MiB, found a larger one"]


def test_an_alias_bomb_is_refused_in_under_a_second_and_under_200_megabytes():
    script = (
        "import re, sys, time; from pathlib import Path; from metaloop import studyfile, errors\n"
        "import ruamel.yaml\n"
        "start = time.perf_counter()\n"
        "try: studyfile.load(Path(sys.argv[1]))\n"
        "except errors.Faults: seconds = time.perf_counter() - start\n"
        "peak = re.search('VmHWM:\\\\s+(\\\\d+)', Path('/proc/self/status').read_text())[1]\n"
        "print(seconds, peak)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(BAD / "01_alias_bomb.yaml")], capture_output=True, text=True, check=True
    )
    seconds, kibibytes = map(float, done.stdout.split())
    assert seconds < 1
    assert kibibytes < 200 << 10


def test_no_tag_ever_constructs_anything(there: Path):
    for tag in ("!!python/object/apply:os.system ['touch was_here']", "!custom a", "! a", "!!str 5", "!<tag:x> a"):
        assert "found the tag" in faults(write(there, f"name: {tag}"))[0], tag
    assert not (there / "was_here").exists()


def test_a_key_given_twice_is_an_error_at_its_second_place(there: Path):
    lines = faults(write(there, "name: a\ncontroller:\n  window: 3\n  window: 4\nname: b"))
    assert lines == [
        "4: controller.window: expected each key once, found it again (first on line 3); remove one",
        "5: name: expected each key once, found it again (first on line 1); remove one",
    ]


def test_merge_keys_are_refused_with_the_way_out(there: Path):
    line = fault(there, "controller: &c {window: 3}\ntelemetry:\n  <<: *c")
    assert line == "3: telemetry.<<: merge keys are not part of YAML 1.2; write the keys out"


def test_a_directive_for_another_yaml_is_refused(there: Path):
    assert fault(there, "%YAML 1.1\n---\nname: a") == "2: expected YAML 1.2, found %YAML 1.1; remove that line"


def test_a_key_or_value_cannot_begin_a_line_of_its_own(there: Path):
    line = fault(there, '"a\\nb: c\\u2028": 3')
    assert line.startswith(r"1: a\nb: c\u2028: unknown key")
    assert r"found the text 'x\ny'" in fault(there, 'controller: {window: "x\\ny"}')


def test_control_characters_fit_nowhere(there: Path):
    assert fault(there, 'target: {train_cmd: ["a\\0b"]}').startswith(
        "1: target.train_cmd[0]: expected text without control"
    )
    assert fault(there, 'target: {train_cmd: ["a\\ud800b"]}').startswith(
        "1: target.train_cmd[0]: expected text without"
    )
    assert "expected a key without control characters" in fault(there, '"a\\x1bb": 3')
    assert "found '\\x00'" in fault(there, 'target: {train_cmd: [a], env: {"A\\0B": c}}')
    assert "found '\\x00'" in fault(there, 'policy: {params: {x: ["\\0", b]}}')


# ---- keys ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_iterations: 3", "1: max_iterations: unknown key here; max_iterations belongs under controller"),
        ("target: {train_cmd: [a], metric: b}", "1: target.metric: unknown key here; metric belongs under objective"),
        ("metrik: {name: a}", "1: metrik: unknown key; did you mean objective.metric?"),
        ("controller: {max_iterationz: 3}", "1: controller.max_iterationz: unknown key; did you mean max_iterations?"),
        ("controller: {polcy: 3}", "1: controller.polcy: unknown key; did you mean policy?"),
        ("objective: {metric: a, direction: max, name: b}", "name belongs under the top level"),
        ("policy: {params: {x: {low: 1, hihg: 2}}}", "1: policy.params.x.hihg: unknown key; did you mean high?"),
        ("policy: {params: {x: {min: 1, max: 2}}}", "known here are low, high, log, step, int"),
        ("telemetry: {zzz: 3}", "1: telemetry.zzz: unknown key; known here are trace_path, ledger_path"),
        ("'': 3", "unknown key; known here are name, objective"),
    ],
)
def test_an_unknown_key_is_told_where_it_belongs_or_what_was_meant(there: Path, text: str, message: str):
    assert any(message in line for line in faults(write(there, text))), faults(write(there, text))


@pytest.mark.parametrize("key", sorted(schema.LATER))
def test_a_key_of_a_later_version_is_refused_and_never_silently_accepted(there: Path, key: str):
    section, _, name = key.rpartition(".")
    raw: dict[str, object] = good()
    inner: dict[str, object] = raw
    for part in filter(None, section.split(".")):
        inner = inner.setdefault(part, {})  # type: ignore[assignment]
    inner[name] = 3
    with pytest.raises(Faults) as caught:
        from_mapping(raw, name="study", base=there)
    assert str(caught.value) == f"{key}: this key is known, but not in this version; remove it"


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in schema.LATER_VALUES.items() for value in values]
)
def test_a_value_of_a_later_version_is_refused_by_name(there: Path, key: str, value: str):
    raw = good()
    section, _, name = key.partition(".")
    raw[section] = {**raw.get(section, {}), name: value}
    with pytest.raises(Faults, match=f"{key}: '{value}' is known, but not in this version; expected"):
        from_mapping(raw, name="study", base=there)


def good() -> dict[str, dict[str, object]]:
    return copy.deepcopy(
        {
            "objective": {"metric": "score", "direction": "max"},
            "target": {"train_cmd": ["python", "train.py"]},
            "policy": {"params": {"x": [1, 2, 3]}},
        }
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("controller: {max_iterations: true}", "expected a whole number; found true"),
        ("controller: {max_iterations: '3'}", "found the text '3'; write it plainly, without quotes or underscores"),
        ("controller: {max_iterations: 1_000}", "found the text '1_000'; write it plainly"),
        ("controller: {max_iterations: 3.0}", "expected a whole number; found the number 3.0"),
        ("controller: {max_iterations: 0}", "expected a number of at least 1; found the number 0"),
        ("controller: {max_iterations: null}", "expected a whole number; found nothing"),
        ("controller: {max_wall_time_s: true}", "expected a number; found true"),
        ("controller: {max_wall_time_s: 0}", "expected a number above 0; found the number 0"),
        ("controller: {max_wall_time_s: -.inf}", "expected a finite number, found -inf"),
        ("controller: {max_wall_time_s: 1e400}", "expected a finite number, found inf"),
        ("controller: {failure_rate_limit: 85}", "expected a number of at most 1; found the number 85"),
        ("controller: {failure_rate_limit: 0}", "expected a number above 0; found the number 0"),
        ("controller: {parallel: 0}", "controller.parallel: expected a number of at least 1"),
        ("controller: {parallel: true}", "controller.parallel: expected a whole number; found true"),
        ("controller: {parallel: [2]}", "controller.parallel: expected a whole number; found a list of 1"),
        ("controller: {parallel: {max_concurrency: 2}}", "controller.parallel.enabled: expected this key"),
        ("controller: {parallel: {enabled: yes}}", "expected true or false; found the text 'yes'; write true"),
        ("controller: {order: strikt}", "found the text 'strikt'; did you mean strict?"),
        ("controller: 3", "controller: expected keys and values; found the number 3"),
        ("controller:", "controller: expected keys and values; found nothing"),
        (
            "target: {train_cmd: python train.py}",
            "expected a list; found the text 'python train.py'; write [python, train.py]",
        ),
        ("target: {train_cmd: []}", "target.train_cmd: expected at least one entry; found an empty list"),
        ("target: {train_cmd: [[a]]}", "target.train_cmd[0]: expected text; found a list of 1"),
        ("target: {train_cmd: [a], timeout_s: 0}", "target.timeout_s: expected a number above 0"),
        ("target: {train_cmd: [a], env: {A=B: c}}", "expected the name of an environment variable; found 'A=B'"),
        ("target: {train_cmd: [a], env: {'': c}}", "expected the name of an environment variable; found ''"),
        ("target: {train_cmd: [a], env: {METALOOP_SEED: c}}", "metaloop sets this variable itself"),
        ("target: {train_cmd: [a], env: {AR_PARAM_X: c}}", "metaloop sets this variable itself"),
        ("target: {train_cmd: [a], env: {A: }}", "target.env.A: expected text; found nothing"),
        ("target: {train_cmd: [a], env_allow: PATH}", "found the text 'PATH'; write [PATH]"),
        ("target: {train_cmd: [a], type: basilica}", "target.basilica: expected this key with target.type basilica"),
        ("target: {train_cmd: [a], type: basilica, basilica: {}}", "target.basilica.image: expected this key"),
        ("name: 2024", "1: name: expected text; found the number 2024; put it in quotes"),
        ("objective: {metric: '', direction: max}", "objective.metric: expected a name of 1 to 100 characters"),
        ("objective: {metric: 'a=b', direction: max}", "objective.metric: expected a name of 1 to 100 characters"),
        ("objective: {metric: 'a\n\n  b', direction: max}", "objective.metric: expected a name of 1 to 100 characters"),
        ("objective: {metric: a, direction: 1}", "objective.direction: expected max or min"),
        (
            "objective: {metric: a, direction: max, target: 2, ceiling: 1}",
            "target: expected a target that ceiling 1 allows",
        ),
        (
            "objective: {metric: a, direction: min, target: 0, ceiling: 1}",
            "target: expected a target that ceiling 1 allows",
        ),
        (
            "objective: {metric: a, direction: max, plausible: [1, 0]}",
            "plausible: expected [low, high] with low below high",
        ),
        ("objective: {metric: a, direction: max, plausible: [1]}", "plausible: expected 2 entries"),
        (
            "objective: {metric: a, direction: max, plausible: [0, 1], target: 2}",
            "expected a target within plausible, 0 to 1",
        ),
        (
            "evaluation: {rule: strikt}",
            "expected 'proven', 'provisional' or 'strict'; found the text 'strikt'; did you mean strict?",
        ),
        ("evaluation: {baseline_repeats: -1}", "expected a number of at least 0; found the number -1"),
        ("baseline: {}", "baseline: expected either params or cmd; found neither"),
        ("baseline: {params: {x: 1}, cmd: [a]}", "baseline: expected either params or cmd; found both"),
        ("baseline: nothing", "baseline: expected 'none'; found the text 'nothing'"),
        ("baseline: [a]", "baseline: expected 'none'; found a list of 1"),
        (
            "baseline: {params: {x: 9}}",
            "baseline.params: expected a point of the space; x = 9 is outside the choices 1, 2, 3",
        ),
        ("comparability: {expected_hardware_fingerprint: A100}", "expected 8 to 64 hexadecimal digits"),
        ("comparability: {budget_mode: none}", "expected 'fixed_wallclock' or 'parallel_wallclock'"),
        ("policy: {params: {x: [1]}, seed: -1}", "policy.seed: expected a number of at least 0"),
        (
            "policy: {params: {x: [1]}, seed: 9223372036854775808}",
            "policy.seed: expected a number of at most 18 digits",
        ),
    ],
)
def test_a_value_of_the_wrong_kind_is_told_what_was_expected_and_found(there: Path, text: str, message: str):
    assert message in fault(there, text)


@pytest.mark.parametrize("name", ["a/b", "..", ".hidden", "", " a", "a ", "-a", "x" * 101, "ü" * 51, "a\\\\b", "a\\nb"])
def test_a_study_is_named_as_a_folder_can_be(there: Path, name: str):
    assert fault(there, f'name: "{name}"').startswith("1: name: expected a name that can be a folder")


def test_a_file_whose_name_names_no_study_must_say_one(there: Path):
    path = write(there).rename(there / "-x.yaml")
    assert faults(path) == [
        "1: name: expected a name that can be a folder: at most 100 bytes, no slash, no leading dot or dash, "
        "no control characters; found '-x' from the file's name; add name: NAME"
    ]


# ---- the space -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameter", "message"),
    [
        ("[]", "expected at least one entry; found an empty list"),
        ("[1, 1]", "expected each choice once; found 1 and 1; drop one"),
        ("[1, 1.0]", "expected each choice once; found 1 and 1.0; drop one"),
        ("[0.0, -0.0]", "expected each choice once"),
        ("[[1], 2]", "expected a number, text, or true or false; found a list of 1"),
        ("[{a: 1}]", "expected a number, text, or true or false; found keys and values (a)"),
        ("[1, null]", "expected a number, text, or true or false; found nothing"),
        ("[1, .nan]", "expected a finite number, found nan"),
        ("[99999999999999999999]", "found a whole number of 20 digits"),
        ("3", "expected a list of choices or a range {low, high}, found the number 3; write [3] to fix it"),
        ("abc", "write [abc] to fix it"),
        ("null", "expected a list of choices or a range {low, high}; found nothing"),
        ("{low: 1}", "policy.params.x.high: expected this key"),
        ("{low: '1', high: 2}", "policy.params.x.low: expected a number; found the text '1'"),
        ("{low: true, high: 2}", "policy.params.x.low: expected a number; found true"),
        ("{low: 2, high: 1}", "expected low below high; found low 2 and high 1"),
        ("{low: 1, high: 1}", "found low 1 and high 1; for one fixed value write a list of one"),
        ("{low: 0, high: 1, log: true}", "expected low above 0 in a range with log: true; found 0"),
        ("{low: -1, high: 1, log: true}", "expected low above 0 in a range with log: true; found -1"),
        ("{low: 0, high: 1, step: 2}", "expected a step above 0 and at most 1, the range; found 2"),
        ("{low: 0, high: 1, step: 0}", "expected a step above 0"),
        ("{low: 0, high: 1, step: -0.1}", "expected a step above 0"),
        ("{low: 0, high: 1, step: 1e-300}", "expected a step that can be counted"),
        ("{low: 0.5, high: 8, int: true}", "expected whole numbers at both ends of a range with int: true"),
        ("{low: 0, high: 1e300, int: true}", "expected whole numbers at both ends of a range with int: true"),
        ("{low: 0, high: 8, int: true, step: 0.5}", "expected a whole step in a range with int: true; found 0.5"),
        ("{low: 1, high: 8, log: true, step: 0.5}", "expected either log or step; found both"),
        ("{low: 1, high: 8, log: true, step: 2, int: true}", "expected either log or step; found both"),
        ("{low: -1e308, high: 1e308}", "expected a range whose width is a number"),
        ("{low: -.inf, high: 1}", "policy.params.x.low: expected a finite number, found -inf"),
    ],
)
def test_a_parameter_that_is_no_range_and_no_choices_is_refused(there: Path, parameter: str, message: str):
    line = fault(there, f"policy:\n  params:\n    x: {parameter}")
    assert line.startswith("3: policy.params.x")
    assert message in line


def test_true_and_one_are_two_choices(there: Path):
    assert study(there, "policy: {params: {x: [1, true, 0, false]}}").terms.space["x"] == Choices((1, True, 0, False))


@pytest.mark.parametrize("name", ["", "a=b", "a\\nb", "x" * 101])
def test_a_parameters_name_must_fit_the_environment(there: Path, name: str):
    assert "expected a name that can be the environment variable AR_PARAM_<NAME>" in fault(
        there, f'policy: {{params: {{"{name}": [1]}}}}'
    )


@pytest.mark.parametrize(("one", "other"), [("lr", "LR"), ("straße", "strasse")])
def test_parameters_that_differ_in_case_alone_are_refused(there: Path, one: str, other: str):
    line = fault(there, f"policy: {{params: {{{one}: [1], {other}: [2]}}}}")
    assert f"'{one}' and '{other}' would both be AR_PARAM_{other.upper()}; rename one" in line


@pytest.mark.parametrize("policy", ["grid", "random", "tpe", "cmaes", "gp", "nsga2", "auto"])
def test_a_policy_that_needs_a_space_is_refused_without_one(there: Path, policy: str):
    line = fault(there, f"policy: {{type: {policy}}}")
    assert f"policy.params: expected a parameter for policy.type {policy}, found none; add params: " in line


def test_a_model_needs_a_name_and_none_is_assumed(there: Path):
    lines = faults(write(there, "policy: {type: llm, params: {x: [1]}}"))
    assert [line.split(": ")[1] for line in lines] == ["models"]
    text = "policy: {type: llm, params: {x: [1]}, llm_api_url: llm.example.org, llm_model: m}"
    assert "expected an address that begins with http:// or https://" in fault(there, text)


def test_a_grid_over_a_continuum_is_told_to_take_steps(there: Path):
    line = fault(there, "policy: {type: grid, params: {x: {low: 0, high: 1}, y: {low: 1, high: 3, int: true}}}")
    assert line == (
        "1: policy.params.x: expected choices or a range with a step for policy.type grid, found a continuum; "
        "add step: NUMBER"
    )
    assert "expected at most 1000000 values" in fault(
        there, "policy: {type: grid, params: {x: {low: 0, high: 1e15, int: true}}}"
    )


@pytest.mark.parametrize(("value", "what"), [("[1, 2]", "2 values"), ("{low: 0, high: 1}", "a range")])
def test_static_needs_exactly_one_value_a_parameter(there: Path, value: str, what: str):
    assert f"expected one value with policy.type static, found {what}" in fault(
        there, f"policy: {{type: static, params: {{x: {value}}}}}"
    )


@pytest.mark.parametrize(
    ("point", "message"),
    [
        ("{x: 9}", "x = 9 is outside the choices 1, 2, 3"),
        ("{}", "parameter 'x' is missing"),
        ("{x: 1, y: 2}", "parameter 'y' is not in the space"),
        ("{x: [1]}", "policy.start[1].x: expected a number, text, or true or false; found a list of 1"),
        ("{x: 2.0}", "expected each point once, found it again"),
        ("3", "policy.start[1]: expected keys and values; found the number 3"),
    ],
)
def test_start_points_lie_in_the_space(there: Path, point: str, message: str):
    line = fault(there, f"policy:\n  params: {{x: [1, 2, 3]}}\n  start:\n    - {{x: 2}}\n    - {point}")
    assert line.startswith("5: policy.start[1]")
    assert message in line


def test_strict_order_needs_a_window_as_wide_as_the_lanes(there: Path):
    assert fault(there, "controller: {order: strict, parallel: 6}") == (
        "1: controller.parallel: expected at most 4 lanes (controller.window) with order strict, found 6; "
        "add controller.window: 6, or controller.order: free"
    )
    assert study(there, "controller: {order: strict, parallel: 6, window: 6}").terms.window == 6
    assert study(there, "controller: {parallel: 6}").bounds.lanes == 6


# ---- files -----------------------------------------------------------------------------------------------------------


def test_frozen_files_are_hashed(there: Path):
    file = study(there, "policy: {params: {x: [1]}, frozen_file: prepare.py, frozen: ['data/**']}")
    assert list(file.terms.frozen) == ["data/a.csv", "data/deep/b.csv", "prepare.py"]
    (there / "data" / "a.csv").write_text("changed\n")
    again = study(there, "policy: {params: {x: [1]}, frozen_file: prepare.py, frozen: ['data/**']}")
    assert [path for path in again.terms.frozen if again.terms.frozen[path] != file.terms.frozen[path]] == [
        "data/a.csv"
    ]


@pytest.mark.parametrize(
    ("glob", "paths"),
    [
        ("data", ["data/a.csv", "data/deep/b.csv"]),
        ("data/*", ["data/a.csv"]),
        ("data/**/*.csv", ["data/a.csv", "data/deep/b.csv"]),
        ("**/b.csv", ["data/deep/b.csv"]),
        ("**/train.py", ["train.py"]),
        ("*.py", ["prepare.py", "train.py"]),
        ("[!p]*.py", ["train.py"]),
        ("./train.py", ["train.py"]),
        ("trai?.py", ["train.py"]),
        ("data/[ab].csv", ["data/a.csv"]),
    ],
)
def test_globs_match_files_as_people_expect(there: Path, glob: str, paths: list[str]):
    assert list(study(there, f"policy: {{params: {{x: [1]}}, frozen: ['{glob}']}}").terms.frozen) == paths


def test_a_file_whose_name_looks_like_a_glob_is_meant_literally(there: Path):
    (there / "a[1].py").write_text("")
    assert list(study(there, "policy: {params: {x: [1]}, frozen: ['a[1].py']}").terms.frozen) == ["a[1].py"]


def test_the_study_file_is_guarded_by_its_terms_and_not_by_its_bytes(there: Path):
    """A budget may be raised in a file that is listed as frozen, or no study could go on."""
    assert list(study(there, "policy: {params: {x: [1]}, frozen: [study.yaml, train.py]}").terms.frozen) == ["train.py"]


def test_our_own_folders_are_never_matched(there: Path):
    (there / ".metaloop" / "study").mkdir(parents=True)
    (there / ".metaloop" / "study" / "ledger.sqlite").write_text("")
    frozen = study(there, "policy: {params: {x: [1]}, frozen: ['**']}").terms.frozen
    assert not [path for path in frozen if path.startswith(".metaloop")]


@pytest.mark.parametrize("key", ["frozen", "mutable"])
def test_a_glob_that_matches_nothing_or_leaves_the_workdir_is_refused(there: Path, key: str):
    (there / "link").symlink_to("/etc/passwd")
    (there / "folder_link").symlink_to("/etc")
    for glob, message in {
        "prgram.md": "found none that matches 'prgram.md'",
        "*.rs": "found none that matches '*.rs'",
        "/etc/passwd": "expected a path inside the workdir, found '/etc/passwd'",
        "data/../../x": "expected a path inside the workdir, found 'data/../../x'",
        "link": "found 'link', a link that leads out",
        "folder_link/passwd": "found 'folder_link/passwd', a link that leads out",
        "nul": "found none that matches",
    }.items():
        line = fault(there, f"policy:\n  params: {{x: [1]}}\n  {key}:\n    - train.py\n    - '{glob}'")
        assert line.startswith(f"5: policy.{key}[1]: "), line
        assert message in line


def test_a_file_cannot_be_both_mutable_and_frozen_however_it_is_written(there: Path):
    message = "'train.py' is both mutable and frozen (policy.frozen[0]); take it out of one of them"
    line = fault(there, "policy:\n  params: {x: [1]}\n  mutable_file: ./train.py\n  frozen: ['*.py']")
    assert line == f"3: policy.mutable_file: {message}"
    (there / "alias.py").symlink_to("train.py")
    line = fault(there, "policy:\n  params: {x: [1]}\n  mutable: [train.py]\n  frozen: [alias.py]")
    assert line == f"3: policy.mutable[0]: {message}"


def test_a_glob_that_is_none_is_refused(there: Path):
    for glob in ("[z-a].py", "[].py", "[!].py"):
        assert "policy.frozen[0]: expected a " in fault(there, f"policy: {{params: {{x: [1]}}, frozen: ['{glob}']}}")


def test_a_folder_that_cannot_be_read_is_not_skipped_in_silence(there: Path, monkeypatch: pytest.MonkeyPatch):
    scandir = os.scandir

    def closed(folder: str) -> object:
        if str(folder).endswith("deep"):
            raise PermissionError(13, "Permission denied", folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", closed)
    assert "expected folders that can be read, found 'data/deep', which cannot" in fault(
        there, "policy: {params: {x: [1]}, frozen: ['data/**']}"
    )
    assert list(study(there, "policy: {params: {x: [1]}, frozen: ['*.py']}").terms.frozen) == ["prepare.py", "train.py"]


def test_a_glob_of_many_stars_is_matched_in_no_time(there: Path):
    folder = there
    for _ in range(30):
        folder = folder / "d"
    folder.mkdir(parents=True)
    (folder / "f.txt").write_text("")
    start = time.perf_counter()
    fault(there, f"policy: {{params: {{x: [1]}}, frozen: ['{'**/' * 30}*.none']}}")
    assert time.perf_counter() - start < 1


def test_globs_and_workdir_go_together(there: Path):
    text = "target: {train_cmd: [a], workdir: data}\npolicy: {params: {x: [1]}, frozen: [a.csv]}"
    assert list(study(there, text).terms.frozen) == ["a.csv"]
    assert "found nothing at" in fault(
        there, "target: {train_cmd: [a], workdir: nowhere}\npolicy: {params: {x: [1]}, frozen: [a]}"
    )
    assert "expected a folder, found a file" in fault(there, "target: {train_cmd: [a], workdir: train.py}")


def test_a_program_that_is_not_there_is_refused(there: Path):
    assert "policy.program_file: expected a file, found none at" in fault(
        there, "policy: {params: {x: [1]}, program_file: prgram.md}"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("telemetry: {ledger_path: study.yaml}", "expected a path to write to, found the study file itself"),
        (
            "telemetry: {ledger_path: a, trace_path: ./a}",
            "expected a path of its own, found that of telemetry.trace_path",
        ),
        ("telemetry: {ledger_path: data}", "expected a file, found a folder"),
        ("telemetry: {versions_dir: train.py}", "expected a folder, found a file"),
        ("telemetry: {ledger_path: ''}", "telemetry.ledger_path: expected some text"),
        ("telemetry: {ledger_path: train.py}\npolicy: {params: {x: [1]}, frozen: [train.py]}", "found a frozen file"),
    ],
)
def test_telemetry_is_never_written_over_what_it_must_not_harm(there: Path, text: str, message: str):
    assert message in fault(there, text)


# ---- libraries -------------------------------------------------------------------------------------------------------


def test_a_sampler_without_its_library_is_missing_and_says_what_to_install(
    there: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(studyfile, "find_spec", lambda name: None)
    for policy, what in {
        "tpe": "needs optuna: pip install 'metaloop[search]'",
        "cmaes": "needs optuna and cmaes: pip install 'metaloop[search]'",
        "gp": "needs optuna and scipy and torch: pip install 'metaloop[search-gp]'",
        "nsga2": "needs optuna: pip install 'metaloop[search]'",
    }.items():
        file = study(there, f"policy: {{type: {policy}, params: {{x: [1, 2]}}}}")
        assert file.missing({}) == (f"policy.type: {policy} {what}",)
    assert study(there, "policy: {type: auto, params: {x: [1, 2]}}").terms.policy == "random"


def test_auto_is_tpe_where_optuna_is_installed(there: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(studyfile, "find_spec", lambda name: object())
    file = study(there, "policy: {type: auto, params: {x: [1, 2]}}")
    assert file.terms.policy == "tpe"
    assert file.missing({}) == ()


# ---- without a file --------------------------------------------------------------------------------------------------


def test_flags_make_a_study_without_a_file(there: Path):
    file = from_flags(
        cmd="python 'my train.py' --epochs 3",
        metric="acc",
        direction="maximize",
        params=["lr=1e-5..1e-1:log", "layers=1,2,3"],
        base=there,
        overrides={"policy.type": "grid", "policy.params.lr": [0.1], "controller.parallel": 2},
    )
    assert file.terms.train == ("python", "my train.py", "--epochs", "3")
    assert file.terms.name == "my-train"
    assert file.terms.space == {"lr": Choices((0.1,)), "layers": Choices((1, 2, 3))}
    assert (file.terms.policy, file.bounds.max_iterations, file.bounds.lanes) == ("grid", 50, 2)
    assert (file.path, file.folder) == (None, there / ".metaloop" / "my-train")
    assert from_flags(cmd="./bench", metric="s", direction="min", params=["n=1..3"], base=there).terms.name == "bench"


def test_faults_of_flags_name_the_flag(there: Path):
    with pytest.raises(Faults) as caught:
        from_flags(
            cmd="python 'train.py",
            metric="a=b",
            direction="upwards",
            params=["lr", "a=1..x", "b=3..1", "b=1,2", "c=1,1"],
            base=there,
            overrides={"controller.parallel": 0},
        )
    assert [str(fault).partition(": ")[0] for fault in caught.value.faults] == [
        "--cmd",
        "--param",
        "--param a",
        "--param b",
        "--metric",
        "--direction",
        "--param b",
        "--param c",
        "controller.parallel",
    ]


def test_a_flag_that_cannot_be_read_is_told_once(there: Path):
    error = refusal(lambda: from_flags(cmd="a", metric="a", direction="max", params=["lr"], base=there))
    assert str(error) == "--param: expected NAME=LOW..HIGH or NAME=A,B,C; found 'lr'; write lr=1e-5..1e-1:log"


def test_an_empty_command_and_no_parameters_are_refused(there: Path):
    with pytest.raises(Faults) as caught:
        from_flags(cmd=" ", metric="a", direction="max", base=there)
    assert [str(fault).partition(":")[0] for fault in caught.value.faults] == ["--cmd", "--param"]


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("x=1..8", Range(1, 8, whole=True)),
        ("x=1..8:log", Range(1, 8, log=True, whole=True)),
        ("x=1.0..8", Range(1, 8)),
        ("x=1e-5..1e-1:log", Range(1e-5, 1e-1, log=True)),
        ("x=-1..1", Range(-1, 1, whole=True)),
        ("x=.5...9", Range(0.5, 0.9)),
        ("x=1.0..8.0:int", Range(1, 8, whole=True)),
        ("x=0..8:step=2", Range(0, 8, step=2, whole=True)),
        ("x=0..1:step=0.5", Range(0, 1, step=0.5)),
        ("x=0..8:int:step=4", Range(0, 8, step=4, whole=True)),
        (" x = 1 .. 8 ", Range(1, 8, whole=True)),
        ("x=1,2,3", Choices((1, 2, 3))),
        ("x=3e-6, 0.5", Choices((3e-6, 0.5))),
        ("x=true,false", Choices((True, False))),
        ("x=adam,sgd", Choices(("adam", "sgd"))),
        ("x=1,b", Choices(("1", "b"))),
        ("x=true,1", Choices(("true", "1"))),
        ("x=a=b", Choices(("a=b",))),
        ("x=../data", Choices(("../data",))),
        ("x=a/../b", Choices(("a/../b",))),
        ("x=7", Choices((7,))),
        ("x=http://a:80,b", Choices(("http://a:80", "b"))),
    ],
)
def test_a_parameter_flag_is_a_range_or_choices(text: str, domain: Range | Choices):
    name, parsed = parse_param(text)
    assert (name, parsed) == ("x", domain)
    assert repr(getattr(parsed, "values", ())) == repr(getattr(domain, "values", ()))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "expected NAME=LOW..HIGH or NAME=A,B,C; found 'x'"),
        ("=1,2", "expected NAME=LOW..HIGH"),
        ("x=", "expected NAME=LOW..HIGH"),
        ("x=1..", "expected numbers on both sides of '..'; found '1' and ''"),
        ("x=1..b", "expected numbers on both sides of '..'; found '1' and 'b'"),
        ("x=1..true", "expected numbers on both sides"),
        ("x=1..8:lgo", "expected :log, :int or :step=NUMBER after the range; found 'lgo'; did you mean log?"),
        ("x=1..8:step=a", "expected numbers"),
        ("x=1..8:step", "expected :log, :int or :step=NUMBER"),
        ("x=8..1", "expected low below high; found low 8 and high 1"),
        ("x=0..1:log", "expected low above 0 in a range with log: true"),
        ("x=0.5..3:int", "expected whole numbers at both ends"),
        ("x=1,1.0", "expected each choice once"),
        ("x=1..inf", "expected numbers on both sides"),
        ("x=1...inf", "expected a finite number, found inf"),
        ("x=1," + "9" * 5000, "found a whole number of hundreds of digits"),
        ("a\nb=1,2", "expected a name that can be the environment variable"),
        ("x=a\0b", "expected text without control characters"),
    ],
)
def test_a_parameter_flag_that_is_neither_is_one_clear_line(text: str, message: str):
    with pytest.raises(ConfigError) as caught:
        parse_param(text)
    assert message in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).startswith("--param")


# ---- claims ----------------------------------------------------------------------------------------------------------

WORDS = st.sampled_from(
    sorted(
        {key for keys in schema.KEYS.values() for key in keys} | {"low", "high", "step", "int", "x", "[key]", "\0list"}
    )
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.builds(lambda: 10**5000),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(
        ["grid", "static", "max", "llm", "basilica", "strict", "none", "/", "..", "*", "48GiB", "a\0", "\ud800"]
    ),
    st.binary(max_size=2),
    st.just(object()),
)
KEYS = st.one_of(WORDS, st.text(max_size=3), st.integers(0, 2), st.none())
GARBAGE = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4), st.tuples(inner)),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(KEYS, GARBAGE, max_size=6), st.dictionaries(KEYS, st.dictionaries(KEYS, GARBAGE, max_size=4)))
@example({"policy": {"params": {"[key]": [1], "\0list": {"low": "a"}}}}, {})
@example({"target": {"train_cmd": ["\0"], "env": {"=": 1}}}, {"objective": {"metric": None}})
def test_no_mapping_whatever_raises_anything_but_a_config_error(garbage: dict, more: dict):
    for raw in (
        garbage,
        more,
        {**good(), **garbage},
        {**good(), **{key: {**good().get(key, {}), **v} for key, v in more.items()}},
    ):
        error = refusal(lambda raw=raw: from_mapping(raw, name="study", base=HERE))
        assert error is None or isinstance(error, Faults)
        assert error is None or len(str(error).splitlines()) == len(error.faults)


def refusal(call: Callable[[], object]) -> ConfigError | None:
    """The fault that a call ends in, if it does; anything else it raises fails the test."""
    try:
        call()
    except ConfigError as error:
        return error
    return None


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.binary(max_size=60), st.text(alphabet="ab:{}[]&*!?-|>'\"%#, \n\t0.~", max_size=60).map(str.encode)))
def test_no_bytes_whatever_raise_anything_but_a_config_error(tmp_path_factory: pytest.TempPathFactory, data: bytes):
    path = tmp_path_factory.getbasetemp() / "garbage.yaml"
    path.write_bytes(data)
    with pytest.raises(Faults):
        load(path)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30) | st.text(alphabet="x=.,:0123e-logstepint", max_size=20))
def test_no_parameter_flag_whatever_raises_anything_but_a_config_error(text: str):
    error = refusal(lambda: parse_param(text))
    assert error is None or len(str(error).splitlines()) == 1


def test_the_schema_knows_every_key_and_says_what_most_are_for():
    published = json_schema()
    text = str(published)
    assert published["additionalProperties"] is False
    assert {"objective", "target"} == set(published["required"])  # type: ignore[call-overload]
    for keys in schema.KEYS.values():
        assert all(f"'{key}'" in text for key in keys)
    assert "\0" not in text


def test_the_parser_is_not_imported_without_a_file():
    script = "import sys, metaloop.studyfile as s; s.parse_param('x=1..2'); print('ruamel.yaml' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_single_choice_is_said_to_vary_nothing(there: Path):
    assert study(there, "policy: {params: {a: [1, 2], b: [5]}}").notes == (
        "policy.params.b has one choice: it is never varied",
    )
    assert not study(there, "policy: {type: static, params: {b: [5]}}").notes
