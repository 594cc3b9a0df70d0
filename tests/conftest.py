"""What all tests share: options, no skipping in CI, and the check that nothing is left running."""

import contextlib
import gc
import os
import signal
import subprocess
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from aiperf_svc.adapters.pulumi import rendering
from aiperf_svc.mock_server import running
from tests.support import forking
from tests.support.forked_servers import ForkedServer
from tests.support.stored_charts import with_stored_charts

collect_ignore = [] if "PACKAGE_DIST" in os.environ else ["package"]
"""Tests of built packages run by `make package` alone."""
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
"""Variables of a user behind a proxy, which does not reach servers of this machine."""
ENDING_S = 20.0
"""Longest time for a thread that was told to end; over only where one was left behind."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options that write what tests compare with."""
    parser.addoption(
        "--write-samples", action="store_true", help="write missing wire samples of messages"
    )
    parser.addoption(
        "--regenerate-golden", action="store_true", help="rewrite the golden manifests"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C and a closed terminal mean what they mean to a user, for the processes that tests
    start too: nohup and a shell's `&` have them ignored, which children inherit. There is no
    proxy."""
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    if "PACKAGE_DIST" not in os.environ and not any("e2e/stack" in each for each in config.args):
        # Only packages and clusters fetch something from elsewhere.
        for name in [each for each in os.environ if each.lower() in PROXIES]:
            del os.environ[name]
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        forking.share()
    running.start = ForkedServer  # type: ignore[assignment]
    rendering._invoke = with_stored_charts(rendering._invoke)  # type: ignore[assignment]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mix the files in each process of pytest-xdist: tests that wait with tests that compute."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: crc32(item.nodeid.partition("::")[0].encode()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collecting makes hundreds of thousands of objects that stay until the end: the garbage
    collector need not search them again and again."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, None]:
    """Under CI=true a test that cannot run has failed: what it is to prove is not proven. A cluster
    that E2E_CONTEXT names cannot run all of them (docs/decisions/0019-cluster-tests-in-ci.md)."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    must_run = os.environ.get("CI") == "true" and "E2E_CONTEXT" not in os.environ
    if report.skipped and must_run and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and CI=true demands that it runs: {report.longreprtext}"


def _children() -> set[int]:
    # Before and after every one of thousands of tests: most have none, which one call tells.
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    found: set[int] = set()
    # Paths as text, which cost a third.
    for task in os.listdir("/proc/self/task"):  # noqa: PTH208
        # A thread may end between the listing and the reading.
        with (
            contextlib.suppress(FileNotFoundError, ProcessLookupError),
            open(f"/proc/self/task/{task}/children", "rb") as children,  # noqa: PTH123
        ):
            found.update(map(int, children.read().split()))
    return found


def _goes_on(thread: threading.Thread) -> bool:
    """Whether nobody has told a thread to end. One that was told may need a moment: AnyIO's are
    told when a test's task ends, and joined by nobody."""
    thread.join(ENDING_S)
    return thread.is_alive()


@pytest.fixture(autouse=True)
def _leaves_nothing_running() -> Iterator[None]:
    """Fails a test that leaves a child process, a thread or a task behind."""
    children, threads = _children(), set(threading.enumerate())
    yield
    left = [f"process {pid}" for pid in _children() - children - forking.template_processes()]
    left += [
        f"thread {thread.name}"
        for thread in set(threading.enumerate()) - threads
        # asyncio keeps its executor's idle threads until the loop's own shutdown joins them.
        if not thread.name.startswith("asyncio_") and _goes_on(thread)
    ]
    assert not left, f"left behind: {', '.join(left)}"


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A server's certificate for 127.0.0.1, which nobody but itself vouches for, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    command = (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        "-subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run(
        [*command.split(), "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True
    )
    return cert, key
