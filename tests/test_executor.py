"""Executors: the contract, for the real one and for the double, and what only the real one can get wrong."""

import pytest

from metaloop.adapters.local import LocalExecutor
from metaloop.testing import (
    ExecutorConformance,
    InProcessExecutor,
    Kept,
    ProcessExecutorConformance,
    perform_deeds,
)


class TestLocalExecutor(ProcessExecutorConformance):
    def executor(self, tmp_path):
        return LocalExecutor(tmp_path / "lanes")


class TestInProcessExecutor(ExecutorConformance):
    @pytest.fixture(autouse=True)
    def _store(self):
        self.store: dict[str, Kept] = {}

    def executor(self, tmp_path):
        return InProcessExecutor(perform_deeds, self.store)
