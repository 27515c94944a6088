"""Executors: the contract, for the real one and for the double, and what only the real one can get wrong."""

import pytest

from metaloop.adapters.local import LocalExecutor
from metaloop.testing import (
    ExecutorConformance,
    InProcessExecutor,
    Kept,
    Machine,
    ProcessExecutorConformance,
    TakingTurns,
    perform_deeds,
)


class TestLocalExecutor(ProcessExecutorConformance):
    def executor(self, tmp_path):
        return LocalExecutor(tmp_path / "lanes")


class Deeds(Machine):
    def perform(self, job, step):
        return perform_deeds(job, step)


class TestTakingTurns(ExecutorConformance):
    @pytest.fixture(autouse=True)
    def _store(self):
        self.machine = Deeds(lambda _values, _seed: "")

    def executor(self, tmp_path):
        return TakingTurns(self.machine)


class TestInProcessExecutor(ExecutorConformance):
    @pytest.fixture(autouse=True)
    def _store(self):
        self.store: dict[str, Kept] = {}

    def executor(self, tmp_path):
        return InProcessExecutor(perform_deeds, self.store)
