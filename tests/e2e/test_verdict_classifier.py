"""A small sample of `benchmarks/verdict_classifier.py`: runs with a client that is certainly
starved, and honest runs, judged by the server's own record.

The assertions also hold on a busy machine, where an honest run may be starved too. Only the run
whose neighbours take all cores has the machine to itself, to protect the other tests.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from threading import get_native_id
from typing import Any

import pytest

from aiperf_svc.mock_server import running
from aiperf_svc.runner import fork_server
from benchmarks.truth import fault_injection
from benchmarks.truth.trials import Trial
from benchmarks.verdict_classifier import Finding, run_trial
from tests.support import forking
from tests.support.forked_clients import forked_clients
from tests.support.forked_commands import PROGRAM, ForkedCommand
from tests.support.forked_servers import ForkedServer
from tests.support.preparations import Preparation

DURATION_S = 1.5
PATCH = "sitecustomize.py"
QUICK: dict[str, Any] = {"tokens": 4, "duration_s": DURATION_S}
LATER: dict[str, Any] = QUICK | {"duration_s": 4.0}
"""Settings of loads with an event in the middle, long enough even for a late test."""
HONEST = (
    Trial(1, "honest-open", rate=120, pattern="poisson", ttft_ms=40, **QUICK),
    Trial(2, "honest-closed", users=8, ttft_ms=60, **QUICK),
)
STARVED = (
    Trial(4, "paused", rate=150, severity=0.4, **QUICK),
    Trial(5, "paused", users=20, ttft_ms=30, severity=0.3, **QUICK),
    Trial(6, "clock", rate=150, severity=-150.0, **LATER),
    Trial(7, "clock", rate=150, severity=150.0, **LATER),
    # A worker reserves 256 descriptors for other uses and needs more than 512 to start.
    Trial(8, "fds", rate=400, ttft_ms=900, severity=514, **QUICK),
)
NASTY = (
    Trial(12, "refusing", rate=150, severity=0.1, **QUICK),
    Trial(13, "hanging", rate=150, severity=0.1, **QUICK),
    Trial(14, "dropping", users=20, ttft_ms=30, severity=0.1, **QUICK),
    Trial(15, "dying", rate=150, severity=0.7, **QUICK),
)
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may make namespaces, cgroups")
PRIVILEGED = (
    Trial(9, "ports", rate=200, ttft_ms=400, severity=30, **QUICK),
    Trial(10, "quota", rate=200, severity=0.05, **QUICK),
)
CERTAIN = ("clock", "fds", "ports")
"""Trials that starve the client on any machine so much that the server notices."""
CROWDED = Trial(11, "neighbour", rate=200, severity=4, **QUICK)


@pytest.fixture(autouse=True)
def _forked(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Start clients as forks that are prepared like executed ones."""

    def started(command: list[str], *, env: dict[str, str], **_: Any) -> ForkedCommand:
        preparations: dict[str, Preparation] = {
            "clock": ("patch_workers", f"{env.get('PYTHONPATH', '').split(os.pathsep)[0]}/{PATCH}"),
            "fds": ("limit_open_files", int(trial.severity)),
            "ports": network(),
        }
        return ForkedCommand(
            command[len(PROGRAM) :],
            cwd=Path.cwd(),
            env={key: value for key, value in env.items() if key != fork_server.FORK_VARIABLE},
            preparation=preparations.get(trial.kind, ()),
        )

    def server(arguments: Sequence[str], owner_fd: int) -> ForkedServer:
        return ForkedServer(arguments, owner_fd, preparation=network())

    # Fork before this thread enters its own network, or all later forks of tests would be in it.
    forking.start()
    skip_without_rights(trial.kind)
    if trial.kind == "ports":
        monkeypatch.setattr(running, "start", server)
    with forked_clients(started):
        yield


PROBES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "ports": lambda: fault_injection.few_ports(30),
    "quota": lambda: fault_injection.cpu_quota([], 0.5),
}
"""Operations by kind of trial that root may perform on a machine, but in few containers."""


def skip_without_rights(kind: str) -> None:
    """Skip the test if such a trial is impossible here."""
    if kind not in PROBES:
        return
    try:
        with PROBES[kind]():
            pass
    except OSError as error:
        if os.environ.get("CI"):
            raise  # CI must have the right to
        pytest.skip(f"cannot create a network or cgroup: {error}")


def network() -> Preparation:
    """Return a preparation that enters the network of this thread."""
    return "enter_namespaces", f"/proc/{os.getpid()}/task/{get_native_id()}/ns/net"


def name(trial: Trial) -> str:
    return f"{trial.number}-{trial.kind}"


def assert_not_deceived(finding: Finding) -> None:
    """Check that a result which the server's record refutes is not `valid`."""
    assert finding.verdict, finding.fired
    assert not (finding.is_spoiled and finding.verdict == "valid"), finding


@pytest.mark.parametrize("trial", HONEST, ids=name)
def test_honest_run_is_true_or_not_valid(trial: Trial) -> None:
    assert_not_deceived(run_trial(trial))


@pytest.mark.parametrize(
    "trial",
    [
        *STARVED,
        *(pytest.param(trial, marks=needs_root) for trial in PRIVILEGED),
        pytest.param(CROWDED, marks=[needs_root, pytest.mark.alone]),
    ],
    ids=name,
)
def test_refuted_starved_run_is_never_valid(trial: Trial) -> None:
    finding = run_trial(trial)
    assert_not_deceived(finding)
    assert finding.is_spoiled or trial.kind not in CERTAIN, finding


@pytest.mark.parametrize("trial", NASTY, ids=name)
def test_run_on_a_failing_server_is_never_valid(trial: Trial) -> None:
    finding = run_trial(trial)
    assert finding.failed_share > 0.05, finding
    assert finding.verdict in ("degraded", "invalid"), finding
    assert not finding.passes_slo, finding
