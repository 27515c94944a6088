"""Tests meet no user and no network; and where CI runs, none is left out in silence."""

import ipaddress
import os
import sys
from pathlib import Path

import pytest

MAY_BE_LEFT_OUT = (
    "torch",  # 3 GB, for one policy
    "needs a model on this machine",  # 130 MB, and a minute of one core
    "root may read anything",  # CI is root
)


def _stay_here(event: str, args: tuple) -> None:
    """An audit hook: this process talks to itself and to sockets on disk. (Processes it starts are not covered.)"""
    if event == "socket.connect" and isinstance(args[1], tuple):
        _refuse_unless_local(args[1][0])
    elif event == "socket.getaddrinfo" and args[0]:
        _refuse_unless_local(args[0] if isinstance(args[0], str) else args[0].decode())


def _refuse_unless_local(host: str) -> None:
    try:
        local = ipaddress.ip_address(host).is_loopback or ipaddress.ip_address(host).is_unspecified
    except ValueError:
        local = host == "localhost"
    if not local:
        raise PermissionError(f"tests use no network, and this one asked for {host!r}")


sys.addaudithook(_stay_here)


@pytest.fixture(scope="session", autouse=True)
def _nobodys_home(tmp_path_factory: pytest.TempPathFactory):
    """A home of their own for all tests, and none of the variables that a trial or a user may have set."""
    with pytest.MonkeyPatch.context() as patch:
        home: Path = tmp_path_factory.mktemp("home")
        patch.setenv("HOME", str(home))
        for name in list(os.environ):
            if name.startswith(("AR_PARAM", "AR_MODIFIED_", "METALOOP_", "XDG_", "GIT_")):
                patch.delenv(name)
        yield


def _left_out(report) -> str | None:
    """Why a test was left out that should run in CI; None if it ran, or may be left out."""
    if os.environ.get("CI") != "true" or not report.skipped or hasattr(report, "wasxfail"):
        return None
    reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
    return None if any(word in reason for word in MAY_BE_LEFT_OUT) else reason


def _fail(report):
    if (reason := _left_out(report)) is not None:
        report.outcome, report.longrepr = "failed", f"left out, but CI leaves nothing out: {reason}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return _fail((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return _fail((yield))
