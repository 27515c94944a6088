"""Gates: commands that a candidate has to pass, by all of a study or by one branch of its tree."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from itertools import count
from pathlib import Path

import pytest

from metaloop import __version__
from metaloop.audit import audit
from metaloop.engine import Engine, Session, World, open_study
from metaloop.events import Directed, Entry, Proposed, Resumed
from metaloop.jobs import Surroundings
from metaloop.roles import Job, Step, StepOutcome
from metaloop.study import Round, evolve, fold
from metaloop.terms import Gate
from metaloop.testing import Machine
from metaloop.testing.studies import HOST, MemoryLedger, MemoryWorkspace, TakingTurns, based
from metaloop.values import Proposal
from test_code_study import block, git, ideas, shop
from test_tree import ROOT, ended, grown
from workshop import Workshop, until

PYTHON = [sys.executable, "-c"]
FASTER = tuple(block("src/model.py", f"RATE = 0.{n}", f"RATE = 0.{n + 1}") for n in range(1, 8))


def gate(name: str, code: str, **more: object) -> dict[str, object]:
    return {"name": name, "cmd": [*PYTHON, code], **more}


def gated(folder: Path, *gates: dict[str, object], **keys: object) -> Workshop:
    made = shop(folder)
    made.write(gates=list(gates), **keys)
    return made


def test_what_does_not_pass_a_gate_has_failed_and_never_runs(tmp_path: Path) -> None:
    """Before it is run it is one of the build, after it one of the idea; and the reason says which gate, and why."""
    made = gated(
        tmp_path,
        gate("small", "import sys; sys.path.insert(0, 'src'); import model; assert model.RATE < .35, 'too large'"),
        gate("odd", "import sys; sys.path.insert(0, 'src'); import model; assert model.RATE != .2", phase="post"),
    )
    steps = [(0.1, 0.2), (0.1, 0.3), (0.3, 0.4)]
    ideas(made, *(block("src/model.py", f"RATE = {old}", f"RATE = {new}") for old, new in steps))
    assert made.run().code == 0
    rows = made.rows()[1:]
    assert [(row["verdict"], row["failure"]) for row in rows] == [
        ("failed", "hypothesis"), ("crowned", ""), ("failed", "build")]  # fmt: skip
    assert "gate odd ended with exit code 1: AssertionError" in rows[0]["reason"]
    assert "gate small ended with exit code 1: AssertionError: too large" in rows[2]["reason"]
    attempt = next((made.study / "trials/0003").iterdir())
    assert (attempt / "train.out").stat().st_size == 0
    assert (next((made.study / "trials/0002").iterdir()) / "gate-odd.out").exists()
    assert made("audit").code == 0


def test_a_baseline_that_does_not_pass_is_no_baseline(tmp_path: Path) -> None:
    """Whoever asks for a gate that their own code does not pass is told so, before anything is spent."""
    made = gated(tmp_path, gate("no", "raise SystemExit('never')"))
    ideas(made, FASTER[0])
    done = made.run()
    assert (done.code, "gate no ended with exit code 1: never" in done.out + done.err) == (3, True), done
    checked = made("check", "study.yaml")
    assert (checked.code, "gate no ended with exit code 1: never" in checked.out + checked.err) == (3, True)
    command = f"{sys.executable} -c 'raise SystemExit('\"'\"'never'\"'\"')'"
    assert f"  gate      no: {command}\n            | never\n" in done.out
    assert f"-> run gate no by hand in .: {command}" in checked.out
    assert "gate-no.err, its end:\n  | never" in checked.out
    for told in (done, checked):
        assert not any(word in told.out + told.err for word in ("bench.py", "stand-in", "space", "parameters,"))
    assert [row["verdict"] for row in made.rows()] == ["failed"]
    assert made("steer", "study.yaml", "ungate", "no").code == 0
    assert made.run().code == 0
    assert [(row["role"], row["value"], row["fallback"]) for row in made.rows()[1:]] == [
        ("baseline", 0.1, ""), ("search", 0.2, "")]  # fmt: skip
    assert made("audit").code == 0


def test_a_gate_is_told_of_no_place_for_results_and_runs_once_a_candidate(tmp_path: Path) -> None:
    """Neither repeats of the baseline nor proofs run it again; and the quickest comes first."""
    seen = tmp_path / "seen.jsonl"
    told = f"import json, os; open({str(seen)!r}, 'a').write(json.dumps(dict(os.environ)) + chr(10))"
    made = gated(
        tmp_path, gate("slow", told, timeout_s=9), gate("quick", told, timeout_s=5), gate("after", told, phase="post"),
        evaluation={"rule": "proven", "baseline_repeats": 3},
    )  # fmt: skip
    made.write(target={**made.keys["target"], "sandbox": {"write": [str(tmp_path)]}})
    ideas(made, FASTER[0])
    assert made.run().code == 0
    environs = [json.loads(line) for line in seen.read_text().splitlines()]
    assert [env["METALOOP_TRIAL"] for env in environs] == ["0"] * 3 + ["1"] * 3
    assert not any({"METALOOP_METRICS", "METALOOP_PROGRESS"} & env.keys() for env in environs)
    first = next((made.study / "trials/0001").glob("r0-*"))
    began = [(first / f"gate-{name}.out").stat().st_mtime_ns for name in ("quick", "slow", "after")]
    assert began == sorted(began)


@pytest.mark.parametrize(
    ("gates", "said"),
    [
        ([gate("a", "0"), gate("a", "1")], "gates[1].name: expected each name once, found 'a' again"),
        ([gate("a b", "0")], "gates[0].name: expected a name of letters, digits, - and _, of at most 40"),
        ([{"name": "a"}], "gates[0].cmd: expected this key"),
        ([{"name": "a", "cmd": []}], "gates[0].cmd: expected at least one entry"),
        ([{"name": "a", "cmd": ["no-such-thing"]}], "gates[0].cmd: expected a program that can be run"),
        ([gate("a", "0", phase="later")], "gates[0].phase: expected 'pre' or 'post'"),
        ([{"name": "a", "cmd": [sys.executable, "src/model.py"]}], "'src/model.py' is mutable: take it out of that"),
        ([{"name": "a", "cmd": [sys.executable, "./src/model.py"]}], "'./src/model.py' is mutable"),
        ([gate("a", "0", timeout_s=0)], "gates[0].timeout_s: expected a number above 0"),
        ([gate("a", "0", extra=1)], "gates[0].extra: unknown key; known here are name, cmd, phase, timeout_s"),
        ([gate("a", "0", tiemout_s=1)], "gates[0].tiemout_s: unknown key; did you mean timeout_s?"),
    ],
)
def test_gates_that_make_no_sense_are_refused(tmp_path: Path, gates: list[dict[str, object]], said: str) -> None:
    made = gated(tmp_path, *gates)
    ideas(made, FASTER[0])
    done = made.run()
    assert (done.code, said in done.err) == (2, True), done.err


def test_terms_that_were_changed_are_told_in_the_words_of_the_study_file(tmp_path: Path) -> None:
    """Down to the key of a gate; and what is new, or gone, as it may stand there."""
    true = {"name": "ok", "cmd": ["true"]}
    made = gated(tmp_path, true)
    ideas(made, FASTER[0])
    assert made.run("--max-iterations", "1").code == 0
    made.write(
        gates=[{**true, "timeout_s": 5}, {"name": "new", "cmd": ["test", "-f", "bench.py"], "phase": "post"}],
        policy={**made.keys["policy"], "params": {"x": {"low": 0, "high": 3, "int": True}}},
        target={**made.keys["target"], "env": {"A": "1"}},
    )
    done = made.run()
    assert done.code == 2
    for said in (
        "gates[0].timeout_s was 600.0, is 5.0",
        "gates[1] was nothing, is {name: new, cmd: [test, -f, bench.py], phase: post, timeout_s: 600.0}",
        "policy.params.x was nothing, is {low: 0.0, high: 3.0, log: false, int: true}",
        "target.env.A was nothing, is '1'",
    ):
        assert said in done.err
    assert "Gate(" not in done.err


def test_a_gate_is_inherited_down_the_tree(tmp_path: Path) -> None:
    """One on a trial is for it and what grows from it; one on nothing for all; and one that was taken away for none."""
    study = ended(grown([(0, 5.0), (0, 2.0), (2, 3.0), (3, 4.0)], gates=(Gate("all", ("true",)),)))

    def say(op: str, name: str, trial: int | None = None) -> None:
        made = Gate(name, ("x",)) if op == "gate" else None
        event = Directed(f"{op}{name}", op, "anna", trial=trial, gate=made, text="" if made else name)
        evolve(study, type("Entry", (), {"place": study.place + 1, "at": 0.0, "event": event})())

    def names(number: int) -> list[str]:
        return [gate.name for gate in study.gates_of(number)]

    say("gate", "own", 2)
    assert [names(n) for n in range(5)] == [["all"], ["all"], ["all", "own"], ["all", "own"], ["all", "own"]]
    say("gate", "more", 3)
    assert [names(n) for n in (1, 2, 4)] == [["all"], ["all", "own"], ["all", "own", "more"]]
    say("ungate", "own")
    say("ungate", "all")
    assert [names(n) for n in (1, 2, 4)] == [[], [], ["more"]]
    assert [event.by for event in study.regated] == ["anna"] * 4


def test_a_person_sets_a_gate_on_a_branch_while_it_grows_and_takes_it_away(tmp_path: Path) -> None:
    """Recorded with who asked and why; and the report says so."""
    made = shop(tmp_path)
    text = (made.folder / "bench.py").read_text()
    (made.folder / "bench.py").write_text("import time\ntime.sleep(2)\n" + text)
    ideas(made, FASTER[0], *(block("src/model.py", "STEPS = 1", f"STEPS = -{n}") for n in range(1, 9)))
    process = made.start("run", "study.yaml")

    def verdicts() -> list[str]:
        return [row["verdict"] for row in made.rows()] if (made.study / "ledger.sqlite").exists() else []

    until(lambda: "crowned" in verdicts()[1:], every=0.1)
    asked = made(
        "steer",
        "study.yaml",
        "gate",
        "no",
        "--trial",
        "1",
        "--by",
        "anna",
        "--why",
        "it leaks",
        "--",
        "sh",
        "-c",
        "sleep 2; false",
    )
    assert asked.code == 0, asked.err
    assert "trials that begin from now on have to pass it" in asked.out
    assert "gates: no (from trial 1 on)\n  gate no (from trial 1 on) was set by anna after" in made("status").out
    until(lambda: "failed" in verdicts(), every=0.1)
    assert made("steer", "study.yaml", "gate", "no", "--", "true").code == 2
    assert made("steer", "study.yaml", "ungate", "no", "--by", "ben").code == 0
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    failed = [row for row in made.rows() if row["verdict"] == "failed"]
    assert failed
    assert all("gate no ended with exit code 1" in row["reason"] for row in failed)
    report = made("report").out
    assert "anna set the gate no: it leaks." in report
    assert "ben took the gate no away." in report
    assert made("audit").code == 0


def test_a_gate_that_could_not_be_started_is_refused_before_it_is_one(tmp_path: Path) -> None:
    """A program that is not there, or that candidates do not have, as theirs is what was there at the start; what they
    have is one, by its path in their own folder.
    """
    made = shop(tmp_path)
    (made.folder / "own.sh").write_text("#!/bin/sh\nexit 1\n")
    (made.folder / "own.sh").chmod(0o755)
    ideas(made, FASTER[0])
    made.write(controller={"max_iterations": 1})
    assert made.run().code == 0
    for name in ("late.sh", "late.py"):
        (made.folder / name).write_text("#!/bin/sh\nexit 1\n")
        (made.folder / name).chmod(0o755)
    for command, said in (
        (["nope"], "'nope' is not on PATH"),
        (["/nope/nope"], "'/nope/nope' is not in "),
        (["./nope"], "candidates, who have what was there when the study began, have none at './nope'"),
        (["./late.sh"], "have none at './late.sh'; give a full path"),
        (["./bench.py"], "expected a program that can be run, and candidates"),
        ([sys.executable, "late.py"], "expected a script, and candidates"),
    ):
        done = made("steer", "study.yaml", "gate", "a", "--", *command)
        assert (done.code, said in done.err, done.err.count("\n")) == (2, True, 1), done.err
    assert made("steer", "study.yaml", "gate", "a", "--", "./own.sh").code == 0


def test_what_the_best_has_not_been_tried_with_is_said_wherever_it_is_shown(tmp_path: Path) -> None:
    """A gate holds from when it was set, and who set it, when and why, is said with it."""
    made = gated(tmp_path, gate("tests", "0"), controller={"max_iterations": 1})
    ideas(made, block("src/model.py", "RATE = 0.1", "RATE = 0.9"), block("src/model.py", "RATE = 0.1", "RATE = 0.2"))
    assert made.run().code == 0
    small = ("steer", "study.yaml", "gate", "small", "--trial", "0", "--by", "anna", "--why", "too large")
    assert made(*small, "--", "false").code == 0
    assert "so far.\n" in made("report").out
    assert "failed" in made.run("--max-iterations", "2").err
    told = "small (from trial 0 on) was set by anna after"
    why = "s: too large; trial 2 was the first to be tried"
    report, status, show = made("report").out, made("status").out, made("show", "1").out
    assert "What every candidate has to pass, from the beginning: tests." in report
    assert all(f"ate {told}" in text and why in text for text in (report, status))
    assert "Trial 1, the best, passed tests.\n**Trial 1, the best, has not been tried with small.**" in report
    assert "mind: the best, trial 1, has not been tried with small" in status
    assert "gates     passed tests\n  gates     not tried with small" in show
    assert made("show", "1", "--json").json["gates"] == {"passed": ["tests"], "untried": ["small"]}
    applied = made("apply", "--branch", "mine")
    assert "mind: trial 1 has not been tried with the gate small" in applied.err
    message = git(made.folder, "log", "-1", "--format=%B", "mine")
    assert "Passed the gates: tests\nNot tried with the gates: small\n" in message
    assert made("steer", "study.yaml", "ungate", "small").code == 0
    assert "not tried with" not in made("show", "1").out + made("report").out
    assert "small has been taken away since: this may be tried again" in made("show", "2").out


@pytest.mark.parametrize("order", ["free", "strict"])
@pytest.mark.parametrize(
    ("window", "ended"), [(4, "4 of the last 4 trials failed"), (8, "nothing is left to try")], ids=["rate", "all"]
)
def test_what_failed_at_a_gate_that_was_taken_away_is_as_if_it_had_not_been_tried(
    tmp_path: Path, order: str, window: int, ended: str
) -> None:
    """Both may be asked of a study that is over; then the same command goes on, and tries all of it again."""
    made = shop(tmp_path)
    made.write(controller={"max_iterations": 1, "order": order, "failure_rate_limit": 0.9,
                           "failure_window": window, "no_improve_limit": 5})  # fmt: skip
    ideas(made, *(block("src/model.py", "RATE = 0.1", f"RATE = 0.{n}") for n in (9, 2, 3, 4, 5)))
    assert made.run().code == 0
    asked = made("steer", "study.yaml", "gate", "no", "--by", "anna", "--", "false")
    assert asked.code == 0, asked.err
    done = made.run("--max-iterations", "20")
    assert ended in done.out, done.out
    assert ("steer .metaloop/s ungate no" in done.out) == (window == 4), done.out
    failed = [row["by"] for row in made.rows() if row["verdict"] == "failed"]
    assert failed == [f"patches: 0{n}.txt" for n in range(2, 6)]
    assert "nothing to do" in made.run("--max-iterations", "20").err
    asked = made("steer", "study.yaml", "ungate", "no", "--by", "ben")
    assert asked.code == 0, asked.err
    assert "may be tried again; no controller runs: the next `metaloop run` goes by it" in asked.out
    assert made.run("--max-iterations", "20").code == 0
    again = made.rows()[2 + len(failed) :]
    assert [row["by"] for row in again] == failed
    assert [row["value"] for row in again] == pytest.approx([0.2, 0.3, 0.4, 0.5])
    assert "nothing to do" in made.run("--max-iterations", "20").err
    assert made("audit").code == 0
    twice = made("run-one", "study.yaml", "--diff", str(tmp_path / "ideas/05.txt"))
    assert f"the same as trial {again[-1]['trial']}" in twice.out, twice


class Late(TakingTurns):
    """Whose second start takes its time: then somebody sets a gate."""

    def __init__(self, machine: Machine, inbox: "Letters") -> None:
        super().__init__(machine)
        self._inbox, self._count = inbox, 0

    async def start(self, job: Job) -> str:
        self._count += 1
        if self._count == 2:
            self._inbox.waiting.append(Directed("r", "gate", "anna", gate=Gate("no", ("x",))))
            while self._inbox.waiting:
                await asyncio.sleep(0.01)
        return await super().start(job)


class Letters:
    def __init__(self) -> None:
        self.waiting: list[Directed] = []

    def take(self) -> list[Directed]:
        return list(self.waiting)

    def done(self, request: str) -> None:
        self.waiting = [letter for letter in self.waiting if letter.request != request]


def test_a_gate_that_is_set_while_a_trial_is_being_started_holds_for_it() -> None:
    """What the ledger says that a trial had to pass is what it was run with: it is started anew."""
    lab, inbox = grown([(0, 5.0), (0, 2.0)]), Letters()
    ledger, executor, clock = MemoryLedger(lab.entries), Late(lab.machine, inbox), count()
    session = Session(lab.terms, Resumed(lab.bounds, HOST, __version__, "none", "", "run", {}), based=based(ROOT))
    study = open_study(ledger, session)
    world = World(ledger, executor, Surroundings("/study", "/", {}, {}), lab.machine.nonce, lambda: next(clock) * 1e-6)
    world.workspace, world.inbox = MemoryWorkspace(), inbox
    assert asyncio.run(Engine(study, lab.thought, world).run()) is not None
    jobs = {kept.job.env["METALOOP_TRIAL"]: kept for kept in lab.machine.store.values() if "/r0-" in kept.job.dir}
    ran = {number: [step.name for step in kept.job.steps] for number, kept in jobs.items()}
    assert ran == {"0": ["train"], "1": ["gate-no", "train"], "2": ["gate-no", "train"]}
    assert {number: [gate.name for gate in gates] for number, gates in fold(lab.entries).gated.items()} == {
        1: ["no"], 2: ["no"]}  # fmt: skip
    assert not list(audit(lab.entries, lambda _: lab.thought))


def test_a_round_that_was_open_when_a_gate_was_taken_away_goes_on_knowing_what_it_knew() -> None:
    """So that a flow which asked for something else, since this was tried, finds that again after a crash."""
    lab = grown([(0, 5.0), (0, 2.0)], gates=(Gate("no", ("x",)),))
    perform = lab.machine.perform

    def failing(job: Job, step: Step) -> StepOutcome | str:
        bad = step.name == "gate-no" and job.env["METALOOP_TRIAL"] == "1"
        return StepOutcome(step.name, 1, None, None, 1.0, "", "") if bad else perform(job, step)

    lab.machine.perform = failing  # type: ignore[method-assign]
    study = ended(lab)
    change, before, after = study.trials[1].change, Round(9, "search", 0, study.place), Round(10, "search", 0, 10_000)
    evolve(study, Entry(study.place + 1, study.at, 0.0, Directed("r", "ungate", "ben", text="no")))
    assert study.view(before).taken(change) == study.view(before).tried(change) == 1
    assert study.view(after).taken(change) is None
    assert not study.view(before).freed(1)
    study.open[10] = after
    evolve(study, Entry(10_001, study.at, 0.0, Proposed(10, 3, Proposal(change, "test"))))
    assert (study.view(before).taken(change), study.view(after).taken(change)) == (1, 3)
    assert study.view(Round(11, "search", 0, 10_002)).tried(change) == 3


def test_a_gate_that_could_not_be_started_is_not_held_against_the_candidate(tmp_path: Path) -> None:
    """As where its interpreter is gone: the failure is one of what measures, and says so."""
    tool = tmp_path / "tool"
    tool.write_text("#!/no/such/interpreter\n")
    tool.chmod(0o755)
    made = gated(tmp_path, {"name": "odd", "cmd": [str(tool)]}, evaluation={"baseline_repeats": 0})
    ideas(made, FASTER[0])
    made.run()
    (row,) = made.rows()
    assert (row["verdict"], row["failure"]) == ("failed", "evaluation")
    assert row["reason"].startswith("gate odd could not be started: ")
    assert str(tool) in row["reason"]


def test_the_reason_of_a_failed_gate_is_the_line_that_tells_most(tmp_path: Path) -> None:
    """The last of stderr; without one, of what it printed, where a test runner marks it before its summary."""
    made = gated(
        tmp_path,
        gate("both", "import sys; sys.path.insert(0, 'src'); import model; print('out')\n"
             "if model.RATE == .2: sys.exit('err')"),
        gate("plain", "import sys; sys.path.insert(0, 'src'); import model; print('printed')\n"
             "if model.RATE == .3: sys.exit(1)"),
        gate("tests", "import sys; sys.path.insert(0, 'src'); import model\n"
             "print('E   assert 1 == 2\\nFAILED t.py::test_a - assert 1 == 2\\n1 failed in 0.1s\\n\\n')\n"
             "sys.exit(model.RATE != .1)"),
    )  # fmt: skip
    ideas(made, *(block("src/model.py", "RATE = 0.1", f"RATE = 0.{n}") for n in (2, 3, 4)))
    assert made.run().code in (0, 4)
    assert [row["reason"] for row in made.rows()[1:]] == [
        "gate both ended with exit code 1: err",
        "gate plain ended with exit code 1: printed",
        "gate tests ended with exit code 1: FAILED t.py::test_a - assert 1 == 2",
    ]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["gate"], "expected a name: metaloop steer STUDY gate tests -- python -m pytest -q"),
        (["gate", "a"], "expected a command: metaloop steer STUDY gate a -- python -m pytest -q"),
        (["gate", "a b", "--", "true"], "expected a name of letters"),
        (["gate", "a", "--", "no-such-thing"], "'no-such-thing' is not on PATH"),
        (["gate", "a", "--trial", "99", "--", "true"], "there is no trial 99"),
        (["gate", "a", "--timeout-s", "nan", "--", "true"], "expected --timeout-s above 0"),
        (["gate", "a", "--", sys.executable, "src/model.py"], "'src/model.py' is mutable"),
        (["ungate", "a"], "expected one of none: there is no gate; found 'a'"),
        (["stop", "--", "true"], "stop: expected no text, found 'true'"),
        (["hint", "a", "--", "true"], "hint: expected nothing after 'a', found 'true'"),
    ],
)
def test_steering_gates_without_sense_is_refused(tmp_path: Path, args: list[str], said: str) -> None:
    made = shop(tmp_path)
    ideas(made, *FASTER)
    (made.folder / "bench.py").write_text("import time\ntime.sleep(60)\n")
    process = made.start("run", "study.yaml")
    until(lambda: (made.study / "ledger.sqlite").exists() and made("status").code == 0, every=0.1)
    process.kill()
    process.wait()
    done = made("steer", "study.yaml", *args)
    assert (done.code, said in done.err) == (2, True), done.err
    for pid in made.alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
