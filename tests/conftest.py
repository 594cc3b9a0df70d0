"""Shared by all tests: options, no skips in CI, and the check that nothing is left running."""

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
"""Tests of built packages, which only `make package` runs."""
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
"""Proxy variables of the user. A proxy does not reach servers on this machine."""
ENDING_S = 20.0
"""Time limit for a stopped thread to end. Only a leaked thread reaches it."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that write the samples of tests."""
    parser.addoption(
        "--write-samples",
        action="store_true",
        help="write the tables, schemas, lists and samples that these tests compare with",
    )
    parser.addoption(
        "--regenerate-golden", action="store_true", help="rewrite the golden manifests"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Restore the default handling of SIGINT and SIGHUP, which child processes inherit: nohup and a
    shell's `&` make them ignore these signals. Remove proxy variables."""
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    if "PACKAGE_DIST" not in os.environ and not any("e2e/stack" in each for each in config.args):
        # Only tests of packages and clusters use the network.
        for name in [each for each in os.environ if each.lower() in PROXIES]:
            del os.environ[name]
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        forking.share()
    running.start = ForkedServer  # type: ignore[assignment]
    rendering._invoke = with_stored_charts(rendering._invoke)  # type: ignore[assignment]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle the files in each pytest-xdist process, to mix waiting tests with computing ones."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: crc32(item.nodeid.partition("::")[0].encode()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable the garbage collector during collection, which creates only permanent objects."""
    gc.disable()
    collected = yield
    gc.freeze()
    gc.enable()
    return collected


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, None]:
    """Fail skipped tests under CI=true, because what they should prove is not proven. A cluster of
    E2E_CONTEXT cannot run all tests (docs/decisions/0019-cluster-tests-in-ci.md)."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    must_run = os.environ.get("CI") == "true" and "E2E_CONTEXT" not in os.environ
    if report.skipped and must_run and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and CI=true demands that it runs: {report.longreprtext}"


def _children() -> set[int]:
    # Called before and after thousands of tests. Most have no children, which one call shows.
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return set()
    found: set[int] = set()
    # Paths as text take a third of the time.
    for task in os.listdir("/proc/self/task"):  # noqa: PTH208
        # A thread may end between listing and reading.
        with (
            contextlib.suppress(FileNotFoundError, ProcessLookupError),
            open(f"/proc/self/task/{task}/children", "rb") as children,  # noqa: PTH123
        ):
            found.update(map(int, children.read().split()))
    return found


def _goes_on(thread: threading.Thread) -> bool:
    """Return whether a thread continues to run. A stopped thread may need a moment: AnyIO
    stops its threads at the end of a test's task and never joins them."""
    thread.join(ENDING_S)
    return thread.is_alive()


@pytest.fixture(autouse=True)
def _leaves_nothing_running() -> Iterator[None]:
    """Fail a test that leaves a child process, a thread or a task behind."""
    children, threads = _children(), set(threading.enumerate())
    yield
    left = [f"process {pid}" for pid in _children() - children - forking.template_processes()]
    left += [
        f"thread {thread.name}"
        for thread in set(threading.enumerate()) - threads
        # Idle threads of asyncio's executor stay until the loop's own shutdown joins them.
        if not thread.name.startswith("asyncio_") and _goes_on(thread)
    ]
    assert not left, f"left behind: {', '.join(left)}"


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return a self-signed server certificate for 127.0.0.1 and its key."""
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
