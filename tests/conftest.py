"""What all tests share: options, no skipping in CI, and the check that nothing is left running."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite
from forked_servers import ForkedServer
from forking import template_processes

from aiperf_svc.mock_server import running

HERE = Path(__file__).parent
WHOLE_RUNS = HERE / "e2e"
SLOW = (HERE / "integration", HERE / "infra")
ENDING_S = 2.0
"""Longest time for a thread that was told to end; over only where one was left behind."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options that write what tests compare with."""
    parser.addoption(
        "--write-samples", action="store_true", help="write missing wire samples of messages"
    )
    parser.addoption(
        "--regenerate-golden", action="store_true", help="rewrite the golden manifests"
    )


def pytest_configure() -> None:
    """Ctrl-C and a closed terminal mean what they mean to a user, for the processes that tests
    start too: nohup and a shell's `&` have them ignored, which children inherit."""
    for number, usual in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGHUP, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)
    running.start = ForkedServer


@pytest.hookimpl(hookwrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Collecting makes hundreds of thousands of objects that stay until the end, in each process:
    the garbage collector need not search them again and again."""
    if hasattr(session.config, "workerinput") and not sys.dont_write_bytecode:
        _rewrite_a_part(session.config)
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


def _rewrite_a_part(config: pytest.Config) -> None:
    """In a new clone pytest rewrites the asserts of all tests and keeps the result: seconds of
    work. All processes collect the same files in the same order, so each would do all of it. Here
    each begins at another file and leaves out what another has written."""
    worker: dict[str, Any] = getattr(config, "workerinput")  # noqa: B009 (pytest has no type of it)
    number, parts = int(worker["workerid"].removeprefix("gw")), worker["workercount"]
    ignored = [Path(each).resolve() for each in config.getoption("ignore") or ()]
    files = sorted(
        file
        for folder in config.args
        for file in Path(folder).resolve().rglob("test_*.py")
        if not any(file.is_relative_to(each) for each in ignored)
    )
    first = len(files) * number // parts
    for file in files[first:] + files[:first]:
        written = rewrite.get_cache_dir(file) / (file.stem + rewrite.PYC_TAIL)
        if not written.exists():
            written.parent.mkdir(exist_ok=True)
            source_hash, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source_hash, written)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Several processes begin with as many equal parts of the list, and one that has nothing left
    takes over tests from the end of another's part. So each part begins with its share of the whole
    runs and ends with tests that take milliseconds: then all processes end at about the same time.
    """
    parts = getattr(config, "workerinput", {}).get("workercount", 1)
    if parts > 1:
        items[:] = _in_parts(items, parts)


def _in_parts(items: list[pytest.Item], parts: int) -> list[pytest.Item]:
    runs = [item for item in items if item.path.is_relative_to(WHOLE_RUNS)]
    files: dict[Path, list[pytest.Item]] = {}
    short = []
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in SLOW):
            # The tests of a file may share what takes long to make.
            files.setdefault(item.path, []).append(item)
        elif not item.path.is_relative_to(WHOLE_RUNS):
            short.append(item)
    found = []
    for number in range(parts):
        share = list(files.values())[number::parts]
        part = [*runs[number::parts], *(item for each in share for item in each)]
        left = len(items) // parts - len(part) if number < parts - 1 else len(short)
        found += [*part, *short[: max(0, left)]]
        del short[: max(0, left)]
    return found


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, None]:
    """Under CI=true a test that cannot run has failed: what it is to prove is not proven."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    if report.skipped and os.environ.get("CI") == "true" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, and CI=true demands that it runs: {report.longreprtext}"


def _children() -> set[int]:
    found: set[int] = set()
    # Before and after every one of thousands of tests: paths as text, which cost a third.
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
    left = [f"process {pid}" for pid in _children() - children - template_processes()]
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
