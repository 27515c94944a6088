"""Executors: a double without processes, and the suite that every executor has to pass."""

import asyncio
import os
import secrets
import signal
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from metaloop.errors import Refusal
from metaloop.roles import Executor, Gone, Job, Outcome, Running, Step, StepOutcome
from metaloop.terms import Limits
from metaloop.values import digest

T = TypeVar("T")

# ---- executors: a double ---------------------------------------------------------------------------------------------

Perform: TypeAlias = Callable[[Job, Step], StepOutcome | str]
"""Does a step's work: how it ended, or what it wrote to stdout before it ended well. Raises: exit 1, told on stderr."""


class Kept(msgspec.Struct, frozen=True):
    """What the double's store holds of a job, by folder: its nonce, the job once released, the outcome once over."""

    nonce: str
    job: Job
    outcome: Outcome | None = None


class InProcessExecutor:
    """`roles.Executor` without processes: calls `perform` for each step, in this process, when somebody waits.

    So a released job runs until it is waited for, which a test can see and use, and everything happens in one order.
    `store` is the disk: a new instance over the same one finds what was released, and its outcomes. Limits, metrics
    files and the environment are not carried out, and no folder is made.
    """

    def __init__(self, perform: Perform, store: MutableMapping[str, Kept]) -> None:
        self._perform, self._store = perform, store
        self._blocked: dict[str, Job] = {}
        self._own: set[str] = set()

    async def start(self, job: Job) -> str:
        if job.dir in self._store or any(job.dir == other.dir for other in self._blocked.values()):
            raise Refusal(f"lane {job.lane}: the job's folder was used before: {job.dir!r}")
        handle = f"{job.nonce}@{job.dir}"
        self._blocked[handle] = job
        return handle

    async def release(self, handle: str) -> None:
        if job := self._blocked.pop(handle, None):
            self._store[job.dir] = Kept(job.nonce, job)
            self._own.add(handle)

    async def look(self, handle: str) -> Running | Outcome | Gone:
        if handle in self._blocked:
            return Running(blocked=True)
        kept = self._find(handle)
        return Gone() if kept is None else kept.outcome or Running()

    async def wait(self, handle: str) -> Outcome | Gone:
        while handle in self._blocked:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)  # where a real executor lets others go on, so does this one
        kept = self._find(handle)
        if kept is None:
            return Gone()
        return kept.outcome or self._settle(kept, _performed(self._perform, kept.job))

    async def read(self, handle: str, name: str, offset: int) -> bytes:  # noqa: ARG002  (its jobs write no files)
        return b""

    async def stop(self, handle: str) -> Outcome | Gone:
        await self.release(handle)
        kept = self._find(handle)
        if kept is None:
            return Gone()
        step = StepOutcome(kept.job.steps[0].name, None, signal.SIGKILL, "stopped", 0.0, "", "")
        return kept.outcome or self._settle(kept, _sealed([step]))

    async def close(self, *, keep: bool = False) -> None:
        self._blocked.clear()
        for handle in () if keep else sorted(self._own):
            await self.stop(handle)

    def _find(self, handle: str) -> Kept | None:
        nonce, _, folder = handle.partition("@")
        kept = self._store.get(folder)
        return kept if kept is not None and kept.nonce == nonce else None

    def _settle(self, kept: Kept, outcome: Outcome) -> Outcome:
        self._own.discard(f"{kept.nonce}@{kept.job.dir}")
        self._store[kept.job.dir] = msgspec.structs.replace(kept, outcome=outcome)
        return outcome


def _performed(perform: Perform, job: Job) -> Outcome:
    done: list[StepOutcome] = []
    for step in job.steps:
        try:
            ended = perform(job, step)
        except Exception as error:  # the edge of a job: what it raises is how it ended
            ended = StepOutcome(step.name, 1, None, None, 0.0, "", f"{type(error).__name__}: {error}\n")
        if isinstance(ended, str):
            ended = StepOutcome(step.name, 0, None, None, 0.0, ended, "")
        done.append(ended)
        if ended.exit != 0 or ended.limit:
            break
    return _sealed(done)


def _sealed(steps: list[StepOutcome]) -> Outcome:
    output = {f"{step.name}.out": digest(step.stdout.encode()) for step in steps}
    output |= {f"{step.name}.err": digest(step.stderr.encode()) for step in steps}
    return Outcome(tuple(steps), output=output)


# ---- executors: the suite --------------------------------------------------------------------------------------------

PYTHON = (sys.executable, "-I", "-S", "-c")
DEEDS = {
    "say": 'echo "$1"',
    "fail": 'exit "$1"',
    "mark": 'echo ran >> "$1"',
    "hold": 'echo held; while [ ! -e "$1" ]; do sleep 0.01; done',
}
DAEMON = """
import os, signal, sys, time
def daemon(path):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
            with open(path + ".tmp", "w") as file:
                file.write(str(os.getpid()))
            os.rename(path + ".tmp", path)
            os.closerange(0, 50)
            time.sleep(600)
        os._exit(0)
    os.wait()
    while not os.path.exists(path):
        time.sleep(0.005)
daemon(sys.argv[1])
"""
"""Python: leaves a process that forked twice, has no descriptors, ignores SIGTERM. Its pid is in the file argv[1]."""


def perform_deeds(job: Job, step: Step) -> StepOutcome | str:
    """The suite's deeds for an executor that calls Python: `InProcessExecutor(perform_deeds, store)`."""
    deed, argument = step.argv[-2], step.argv[-1]
    if deed == "fail":
        return StepOutcome(step.name, int(argument), None, None, 0.0, "", "")
    if deed == "mark":
        with Path(job.cwd, argument).open("a") as file:
            file.write("ran\n")
    return {"say": f"{argument}\n", "hold": "held\n"}.get(deed, "")


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class _ExecutorSuite:
    """What both suites use. `executor` is what an implementation must give, the rest it may."""

    def executor(self, tmp_path: Path) -> Executor:
        """A fresh executor over the state in `tmp_path`: as a new controller would make it after a crash."""
        raise NotImplementedError

    async def abandon(self, executor: Executor) -> None:
        """Lets go of everything as a controller does that is killed."""
        await executor.close(keep=True)

    def deed(self, name: str, argument: str) -> tuple[str, ...]:
        """The command for one of DEEDS."""
        return ("sh", "-c", DEEDS[name], name, argument)

    def job(self, tmp_path: Path, *commands: tuple[str, ...], timeout_s: float = 30.0, lane: int = 0) -> Job:
        """A job whose steps are `step0`, `step1` ..., in `tmp_path`, with a PATH and a new folder."""
        nonce = secrets.token_hex(8)
        steps = tuple(Step(f"step{number}", argv, timeout_s) for number, argv in enumerate(commands))
        env = {"PATH": os.environ["PATH"]}
        return Job(nonce=nonce, lane=lane, dir=str(tmp_path / nonce), cwd=str(tmp_path), env=env, steps=steps)

    async def run(self, executor: Executor, job: Job) -> Outcome:
        handle = await executor.start(job)
        await executor.release(handle)
        return ended(await executor.wait(handle))

    def alone(self, tmp_path: Path, story: Callable[[Executor], Awaitable[T]]) -> T:
        """Runs a story with a fresh executor, which is closed whatever happens."""

        async def told() -> T:
            executor = self.executor(tmp_path)
            try:
                return await story(executor)
            finally:
                await executor.close()

        return asyncio.run(told())

    def outcome(self, tmp_path: Path, *commands: tuple[str, ...], timeout_s: float = 30.0, **fields: object) -> Outcome:
        """What one job comes to. `fields`: what is other than `job` makes it."""
        job = msgspec.structs.replace(self.job(tmp_path, *commands, timeout_s=timeout_s), **fields)
        return self.alone(tmp_path, lambda executor: self.run(executor, job))


def ended(found: Running | Outcome | Gone) -> Outcome:
    """The outcome that must be there."""
    assert isinstance(found, Outcome), f"expected an outcome, found {found!r}"
    return found


async def refused(starting: Awaitable[str]) -> str:
    """The text of the refusal that must come."""
    try:
        handle = await starting
    except Refusal as refusal:
        return str(refusal)
    raise AssertionError(f"expected a refusal, found the handle {handle}")


class ExecutorConformance(_ExecutorSuite):
    """The contract of `roles.Executor`, for any executor: make a subclass that overrides `executor`."""

    def test_a_started_job_waits_until_it_is_released(self, tmp_path: Path) -> None:
        async def story(executor: Executor) -> None:
            handle = await executor.start(self.job(tmp_path, self.deed("mark", "ran")))
            await asyncio.sleep(0.1)
            assert await executor.look(handle) == Running(blocked=True)
            assert not (tmp_path / "ran").exists()
            await executor.release(handle)
            ended(await executor.wait(handle))
            assert (tmp_path / "ran").read_text() == "ran\n"

        self.alone(tmp_path, story)

    def test_a_job_whose_controller_dies_before_the_release_never_runs(self, tmp_path: Path) -> None:
        async def story(second: Executor) -> None:
            first = self.executor(tmp_path)
            handle = await first.start(self.job(tmp_path, self.deed("mark", "ran")))
            await self.abandon(first)
            assert await second.look(handle) == Gone()
            await second.release(handle)
            assert await second.wait(handle) == Gone()
            assert await second.stop(handle) == Gone()
            assert not (tmp_path / "ran").exists()

        self.alone(tmp_path, story)

    def test_a_job_that_never_ran_leaves_its_folder_free(self, tmp_path: Path) -> None:
        async def story(second: Executor) -> None:
            job = self.job(tmp_path, self.deed("say", "hello"))
            first = self.executor(tmp_path)
            await first.start(job)
            await self.abandon(first)
            assert (await self.run(second, job)).steps[0].stdout == "hello\n"

        self.alone(tmp_path, story)

    def test_asked_twice_is_asked_once(self, tmp_path: Path) -> None:
        async def story(executor: Executor) -> None:
            handle = await executor.start(self.job(tmp_path, self.deed("mark", "ran")))
            assert await executor.look(handle) == await executor.look(handle)
            await executor.release(handle)
            await executor.release(handle)
            outcome = ended(await executor.wait(handle))
            await executor.release(handle)
            again = [await executor.wait(handle), await executor.stop(handle), await executor.stop(handle)]
            again += [ended(await executor.look(handle)), ended(await executor.look(handle))]
            assert again == [outcome] * 5
            assert (tmp_path / "ran").read_text() == "ran\n"

        self.alone(tmp_path, story)

    def test_all_who_wait_are_told(self, tmp_path: Path) -> None:
        async def story(executor: Executor) -> None:
            handle = await executor.start(self.job(tmp_path, self.deed("say", "hello")))
            waiting = [asyncio.create_task(executor.wait(handle)) for _ in range(3)]
            await asyncio.sleep(0.02)
            await executor.release(handle)
            first, second, third = [ended(found) for found in await asyncio.gather(*waiting)]
            assert first == second == third

        self.alone(tmp_path, story)

    def test_a_handle_that_was_never_given_is_gone(self, tmp_path: Path) -> None:
        async def story(executor: Executor) -> None:
            for handle in ("", "no-such-handle", "{}", "[1]", "null"):
                await executor.release(handle)
                found = [await executor.look(handle), await executor.wait(handle), await executor.stop(handle)]
                assert found == [Gone()] * 3

        self.alone(tmp_path, story)

    def test_a_new_executor_finds_a_running_job(self, tmp_path: Path) -> None:
        async def story(second: Executor) -> None:
            first = self.executor(tmp_path)
            handle = await first.start(self.job(tmp_path, self.deed("hold", "go"), self.deed("mark", "ran")))
            await first.release(handle)
            await self.abandon(first)
            assert await second.look(handle) == Running()
            (tmp_path / "go").touch()
            outcome = ended(await second.wait(handle))
            assert [step.exit for step in outcome.steps] == [0, 0]
            assert outcome.steps[0].stdout == "held\n"
            assert (tmp_path / "ran").read_text() == "ran\n"

        self.alone(tmp_path, story)

    def test_a_new_executor_finds_an_outcome(self, tmp_path: Path) -> None:
        async def story(second: Executor) -> None:
            first = self.executor(tmp_path)
            handle = await first.start(self.job(tmp_path, self.deed("say", "hello")))
            await first.release(handle)
            outcome = ended(await first.wait(handle))
            await self.abandon(first)
            assert await second.look(handle) == outcome == await second.wait(handle)

        self.alone(tmp_path, story)

    def test_an_outcome_outlives_its_executor_and_the_next_jobs(self, tmp_path: Path) -> None:
        async def story(second: Executor) -> None:
            first = self.executor(tmp_path)
            handle = await first.start(self.job(tmp_path, self.deed("say", "hello")))
            await first.release(handle)
            outcome = ended(await first.wait(handle))
            await first.close()
            await self.run(second, self.job(tmp_path, self.deed("say", "other")))
            assert await second.look(handle) == outcome

        self.alone(tmp_path, story)

    def test_steps_run_in_order_and_the_first_that_fails_is_the_last(self, tmp_path: Path) -> None:
        job = self.job(tmp_path, self.deed("say", "one"), self.deed("fail", "3"), self.deed("mark", "ran"))
        outcome = self.alone(tmp_path, lambda executor: self.run(executor, job))
        assert [(step.name, step.exit, step.stdout) for step in outcome.steps] == [
            ("step0", 0, "one\n"),
            ("step1", 3, ""),
        ]
        assert not (tmp_path / "ran").exists()

    def test_the_digests_are_those_of_what_was_kept(self, tmp_path: Path) -> None:
        outcome = self.outcome(tmp_path, self.deed("say", "one"), self.deed("fail", "3"))
        empty = digest(b"")
        assert outcome.output == {
            "step0.out": digest(b"one\n"),
            "step0.err": empty,
            "step1.out": empty,
            "step1.err": empty,
        }

    def test_stop_ends_a_running_job_and_says_so(self, tmp_path: Path) -> None:
        async def story(executor: Executor) -> None:
            handle = await executor.start(self.job(tmp_path, self.deed("hold", "go"), self.deed("mark", "ran")))
            await executor.release(handle)
            outcome = ended(await executor.stop(handle))
            assert [step.limit for step in outcome.steps] == ["stopped"]
            assert await executor.look(handle) == outcome
            (tmp_path / "go").touch()
            assert ended(await executor.wait(handle)) == outcome
            assert not (tmp_path / "ran").exists()

        self.alone(tmp_path, story)

    def test_stop_before_the_release_means_it_never_runs(self, tmp_path: Path) -> None:
        async def story(executor: Executor) -> None:
            handle = await executor.start(self.job(tmp_path, self.deed("mark", "ran")))
            outcome = ended(await executor.stop(handle))
            assert [step.limit for step in outcome.steps] == ["stopped"]
            await executor.release(handle)
            assert await executor.wait(handle) == outcome
            assert not (tmp_path / "ran").exists()

        self.alone(tmp_path, story)

    def test_a_folder_is_used_once(self, tmp_path: Path) -> None:
        async def story(executor: Executor) -> None:
            job = self.job(tmp_path, self.deed("mark", "ran"))
            await self.run(executor, job)
            assert job.dir in await refused(executor.start(job))
            assert (tmp_path / "ran").read_text() == "ran\n"
            await self.run(executor, self.job(tmp_path, self.deed("mark", "ran")))

        self.alone(tmp_path, story)

    def test_close_ends_what_runs(self, tmp_path: Path) -> None:
        async def story(second: Executor) -> None:
            first = self.executor(tmp_path)
            handle = await first.start(self.job(tmp_path, self.deed("hold", "go"), self.deed("mark", "ran")))
            await first.release(handle)
            await first.close()
            await first.close()
            (tmp_path / "go").touch()
            assert await second.look(handle) != Running()
            assert not (tmp_path / "ran").exists()

        self.alone(tmp_path, story)

    def test_lanes_run_side_by_side(self, tmp_path: Path) -> None:
        async def story(executor: Executor) -> None:
            held = await executor.start(self.job(tmp_path, self.deed("hold", "go"), lane=0))
            await executor.release(held)
            other = await self.run(executor, self.job(tmp_path, self.deed("say", "hello"), lane=1))
            assert other.steps[0].stdout == "hello\n"
            assert await executor.look(held) == Running()
            (tmp_path / "go").touch()
            assert ended(await executor.wait(held)).steps[0].exit == 0

        self.alone(tmp_path, story)


class ProcessExecutorConformance(ExecutorConformance):
    """The same, and what an executor of real processes on this machine promises beyond it."""

    def test_a_signal_is_told_from_an_exit(self, tmp_path: Path) -> None:
        step = self.outcome(tmp_path, ("sh", "-c", "kill -SEGV $$")).steps[0]
        assert (step.exit, step.signal, step.limit) == (None, signal.SIGSEGV, None)

    def test_the_wall_clock_ends_a_step(self, tmp_path: Path) -> None:
        begun = time.monotonic()
        step = self.outcome(tmp_path, ("sh", "-c", "echo begun; sleep 600"), timeout_s=0.3).steps[0]
        assert (step.exit, step.limit, step.stdout) == (None, "wall", "begun\n")
        assert 0.3 <= step.seconds < 2
        assert time.monotonic() - begun < 5

    def test_each_step_has_a_clock_of_its_own(self, tmp_path: Path) -> None:
        steps = self.outcome(tmp_path, *[("sleep", "0.4")] * 3, timeout_s=0.8).steps
        assert [step.exit for step in steps] == [0, 0, 0]

    def test_a_later_step_has_a_limit_too(self, tmp_path: Path) -> None:
        steps = self.outcome(tmp_path, ("true",), ("sleep", "600"), timeout_s=0.4).steps
        assert [step.limit for step in steps] == [None, "wall"]

    def test_grace_lets_a_step_end_itself(self, tmp_path: Path) -> None:
        script = "trap 'echo bye; exit 3' TERM; echo begun; while :; do sleep 0.02; done"
        step = self.outcome(tmp_path, ("sh", "-c", script), timeout_s=0.3, grace_s=5.0).steps[0]
        assert (step.exit, step.limit, step.stdout) == (3, "wall", "begun\nbye\n")

    def test_who_ignores_the_grace_is_killed_after_it(self, tmp_path: Path) -> None:
        script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        step = self.outcome(tmp_path, (*PYTHON, script), timeout_s=0.3, grace_s=0.2).steps[0]
        assert (step.signal, step.limit) == (signal.SIGKILL, "wall")

    def test_a_second_stop_does_not_cut_the_grace_short(self, tmp_path: Path) -> None:
        async def story(executor: Executor) -> None:
            script = "trap 'sleep 0.3; echo bye; exit 3' TERM; touch ready; while :; do sleep 0.02; done"
            job = msgspec.structs.replace(self.job(tmp_path, ("sh", "-c", script)), grace_s=10.0)
            handle = await executor.start(job)
            await executor.release(handle)
            while not (tmp_path / "ready").exists():
                await asyncio.sleep(0.01)
            stopping = asyncio.create_task(executor.stop(handle))
            await asyncio.sleep(0.1)
            second = ended(await executor.stop(handle))
            assert second == await stopping
            assert (second.steps[0].exit, second.steps[0].limit, second.steps[0].stdout) == (3, "stopped", "bye\n")

        self.alone(tmp_path, story)

    def test_output_beyond_the_cap_is_dropped_and_head_and_tail_are_kept(self, tmp_path: Path) -> None:
        cap = 100_000
        script = "import sys; sys.stdout.write('HEAD' + 'x' * 20_000_000 + 'TAIL\\n'); sys.stderr.write('e' * 99)"
        step = self.outcome(tmp_path, (*PYTHON, script), limits=Limits(output=cap)).steps[0]
        assert (step.exit, step.limit, step.stderr) == (0, None, "e" * 99)
        assert step.stdout.startswith("HEADx")
        assert step.stdout.endswith("xTAIL\n")
        assert len(step.stdout) < cap + 60
        assert f"[... {20_000_009 - cap} bytes dropped ...]" in step.stdout

    def test_a_line_cut_in_two_does_not_pass_for_a_whole_one(self, tmp_path: Path) -> None:
        script = (
            "print('y' * 42); print('acc=0.95123456789'); print('z' * 5000); print('val_loss=0.25'); print('w' * 40)"
        )
        lines = self.outcome(tmp_path, (*PYTHON, script), limits=Limits(output=100)).steps[0].stdout.split("\n")
        assert [line for line in lines if line.startswith(("acc=", "loss=")) and "dropped" not in line] == []

    def test_binary_output_is_decoded_with_replacement(self, tmp_path: Path) -> None:
        script = "import os; os.write(1, b'a\\xff\\x00b'); os.write(2, b'\\xc3')"
        step = self.outcome(tmp_path, (*PYTHON, script)).steps[0]
        assert (step.stdout, step.stderr) == ("a\ufffd\0b", "\ufffd")

    def test_a_program_that_is_not_there_is_exit_127_and_named(self, tmp_path: Path) -> None:
        step = self.outcome(tmp_path, ("no-such-program", "x")).steps[0]
        assert (step.exit, step.limit) == (127, None)
        assert "no-such-program" in step.stderr

    def test_a_folder_that_is_not_there_is_exit_127_and_named(self, tmp_path: Path) -> None:
        step = self.outcome(tmp_path, ("true",), cwd=str(tmp_path / "nowhere")).steps[0]
        assert step.exit == 127
        assert str(tmp_path / "nowhere") in step.stderr

    def test_the_second_step_that_is_not_there_is_told_too(self, tmp_path: Path) -> None:
        first, second = self.outcome(tmp_path, ("true",), ("no-such-program",), ("true",)).steps
        assert (first.exit, second.exit) == (0, 127)
        assert "no-such-program" in second.stderr

    def test_a_daemon_ends_with_its_job(self, tmp_path: Path) -> None:
        pid = str(tmp_path / "pid")
        step = self.outcome(tmp_path, (*PYTHON, DAEMON, pid)).steps[0]
        assert (step.exit, step.limit) == (0, None)
        assert not alive(int(Path(pid).read_text()))

    def test_a_daemon_ends_before_the_next_step_begins(self, tmp_path: Path) -> None:
        check = "import os, sys; sys.exit(os.path.exists('/proc/' + open(sys.argv[1]).read()))"
        pid = str(tmp_path / "pid")
        steps = self.outcome(tmp_path, (*PYTHON, DAEMON, pid), (*PYTHON, check, pid)).steps
        assert [step.exit for step in steps] == [0, 0]

    def test_stop_reaches_grandchildren_and_daemons(self, tmp_path: Path) -> None:
        async def story(executor: Executor) -> None:
            pid = tmp_path / "pid"
            script = DAEMON + "\nos.fork(); os.fork(); time.sleep(600)"
            handle = await executor.start(self.job(tmp_path, (*PYTHON, script, str(pid)), ("true",)))
            await executor.release(handle)
            while not pid.exists():
                await asyncio.sleep(0.01)
            begun = time.monotonic()
            outcome = ended(await executor.stop(handle))
            assert time.monotonic() - begun < 2
            assert [step.limit for step in outcome.steps] == ["stopped"]
            assert not alive(int(pid.read_text()))

        self.alone(tmp_path, story)

    def test_who_holds_stdout_open_does_not_delay_the_outcome(self, tmp_path: Path) -> None:
        begun = time.monotonic()
        step = self.outcome(tmp_path, ("sh", "-c", "sleep 600 & echo hi")).steps[0]
        assert (step.exit, step.stdout) == (0, "hi\n")
        assert time.monotonic() - begun < 5

    def test_the_environment_is_what_was_given_and_nothing_else(self, tmp_path: Path) -> None:
        os.environ["METALOOP_CANARY"] = "secret"
        try:
            script = "import os; print(*sorted(os.environ)); print(os.environ['A'], len(os.listdir('/proc/self/fd')))"
            env = {"A": "a", "LC_ALL": "C.UTF-8"}
            steps = (Step("one", (*PYTHON, script), 30.0, {"A": "ü b", "B": ""}), Step("two", (*PYTHON, script), 30.0))
            one, two = self.outcome(tmp_path, env=env, steps=steps).steps
        finally:
            del os.environ["METALOOP_CANARY"]
        assert one.stdout == "A B HOME LC_ALL METALOOP_LANE TMPDIR\nü b 4\n"
        assert two.stdout == "A HOME LC_ALL METALOOP_LANE TMPDIR\na 4\n"

    def test_home_and_tmp_are_its_own(self, tmp_path: Path) -> None:
        script = 'echo x > "$HOME/x"; echo y > "$TMPDIR/y"; echo "$HOME"; echo "$TMPDIR"'
        job = self.job(tmp_path, ("sh", "-c", script))
        outcome = self.alone(tmp_path, lambda executor: self.run(executor, job))
        home, tmp = outcome.steps[0].stdout.split()
        assert Path(home).parent == Path(tmp).parent == Path(job.dir)
        assert home != tmp
        assert Path(job.dir).stat().st_mode & 0o777 == 0o700

    def test_a_job_may_open_as_many_files_as_it_may(self, tmp_path: Path) -> None:
        step = self.outcome(tmp_path, ("sh", "-c", "ulimit -n; ulimit -Hn"), limits=Limits(files=77)).steps[0]
        assert step.stdout == "77\n77\n"

    def test_the_metrics_file_is_handed_over(self, tmp_path: Path) -> None:
        outcome = self._metrics(tmp_path, "printf '{\"acc\": 1}' > $METALOOP_METRICS")
        assert (outcome.metrics, outcome.metrics_problem) == ('{"acc": 1}', "")
        assert outcome.output["metrics.json"] == digest(b'{"acc": 1}')

    def test_without_a_metrics_file_there_are_no_metrics(self, tmp_path: Path) -> None:
        outcome = self._metrics(tmp_path, "true")
        assert (outcome.metrics, outcome.metrics_problem) == (None, "")

    def test_what_is_no_plain_small_file_is_no_metrics_file(self, tmp_path: Path) -> None:
        for number, trap in enumerate(("ln -s /dev/zero", "ln -s /etc/passwd", "mkfifo", "mkdir", "truncate -s 1T")):
            (tmp_path / str(number)).mkdir()
            outcome = self._metrics(tmp_path / str(number), f"{trap} $METALOOP_METRICS")
            assert outcome.metrics is None
            assert "metrics file" in outcome.metrics_problem

    def test_the_metrics_are_those_of_the_last_step(self, tmp_path: Path) -> None:
        outcome = self._metrics(tmp_path, "echo forged > $METALOOP_METRICS", "true")
        assert outcome.metrics is None
        (tmp_path / "again").mkdir()
        outcome = self._metrics(
            tmp_path / "again", "echo forged > $METALOOP_METRICS", "printf true > $METALOOP_METRICS"
        )
        assert outcome.metrics == "true"

    def test_a_gate_tells_no_metrics(self, tmp_path: Path) -> None:
        """Whether it comes before or after, it neither forges nor removes what the step between has told."""
        forged, honest = "echo forged > $METALOOP_METRICS", "printf true > $METALOOP_METRICS"
        for number, (scripts, found) in enumerate((
            ((forged, honest, forged), "true"), ((forged, "true", forged), None), (("true", honest, "true"), "true"),
            (("true", honest, "rm -f *"), "true"), ((forged, "exit 3", "true"), None),
        )):  # fmt: skip
            (tmp_path / str(number)).mkdir()
            outcome = self._metrics(tmp_path / str(number), *scripts, names=("gate-a", "step", "gate-b"))
            assert outcome.metrics == found, scripts

    def _metrics(self, tmp_path: Path, *scripts: str, names: Sequence[str] = ()) -> Outcome:
        job = self.job(tmp_path, *(("sh", "-c", script) for script in scripts))
        if names:
            steps = zip(job.steps, names, strict=True)
            named = tuple(msgspec.structs.replace(step, name=name) for step, name in steps)
            job = msgspec.structs.replace(job, steps=named)
        job = msgspec.structs.replace(job, env={**job.env, "METALOOP_METRICS": f"{job.dir}/{job.metrics}"})
        return self.alone(tmp_path, lambda executor: self.run(executor, job))
