"""Public doubles, and one conformance suite a seam: whoever implements a port makes a subclass and is told what lacks.

A suite is a class of pytest tests with one method to override; our own implementations and the doubles pass the same.

| seam        | suite                                               | doubles                                          |
| ----------- | --------------------------------------------------- | ------------------------------------------------ |
| `Executor`  | `ExecutorConformance`, `ProcessExecutorConformance` | `InProcessExecutor`, `TakingTurns`               |
| `Propose`   | `PolicyConformance`                                 | `Bench` drives one by hand                       |
| `Model`     | `ModelConformance`                                  | `ScriptedModel`, `RecordedModel`, `FakeProvider` |
| `Workspace` | `WorkspaceConformance`                              | `MemoryWorkspace`: no directories, no suite      |
| a study     | crashes and interleavings, in tests/test_engine.py  | `Lab`, `Machine`, `MemoryLedger`                 |
"""

from metaloop.testing.cassettes import RecordedModel
from metaloop.testing.executors import (
    DAEMON,
    PYTHON,
    ExecutorConformance,
    InProcessExecutor,
    Kept,
    ProcessExecutorConformance,
    alive,
    ended,
    perform_deeds,
)
from metaloop.testing.policies import BOWL, SMALL, WIDE, Bench, PolicyConformance, bowl, changes
from metaloop.testing.providers import FakeProvider, ModelConformance, Request
from metaloop.testing.studies import Crash, Lab, Machine, MemoryLedger, ScriptedModel, TakingTurns, shuffled, told
from metaloop.testing.workspaces import WorkspaceConformance

__all__ = [
    "BOWL",
    "DAEMON",
    "PYTHON",
    "SMALL",
    "WIDE",
    "Bench",
    "Crash",
    "ExecutorConformance",
    "FakeProvider",
    "InProcessExecutor",
    "Kept",
    "Lab",
    "Machine",
    "MemoryLedger",
    "ModelConformance",
    "PolicyConformance",
    "ProcessExecutorConformance",
    "RecordedModel",
    "Request",
    "ScriptedModel",
    "TakingTurns",
    "WorkspaceConformance",
    "alive",
    "bowl",
    "changes",
    "ended",
    "perform_deeds",
    "shuffled",
    "told",
]
