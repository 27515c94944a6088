"""The torture of `make torture`, a minute of it: kills at chosen system calls, four controllers, damage, a bad disk."""

import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "torture"))

import crashes
import disk
import faults

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not here"),
    pytest.mark.skipif(not os.access("/proc/self/environ", os.R_OK), reason="no /proc"),
]


def test_a_controller_killed_at_a_system_call_changes_nothing() -> None:
    """Before a write, before a word to the keeper, and before the first syncs, which make the ledger."""
    assert crashes.exact(20, ("pwrite64", "sendto"), trials=2, most=2)
    assert crashes.exact(3, ("fdatasync",), trials=2, most=2)


def test_of_four_controllers_one_holds_the_study() -> None:
    assert crashes.double(1, trials=8)


@pytest.mark.parametrize("name", ["flipped_digit", "wal_and_head_deleted", "torn_result", "keeper_killed"])
def test_a_fault_is_refused_or_mended(name: str) -> None:
    assert faults.face(name)


def test_a_disk_that_fails_loses_nothing_that_was_recorded() -> None:
    assert disk.disk(13, ("pwrite64", "fdatasync"), trials=2, most=2)
