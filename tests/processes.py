"""Tests in several processes: `pytest --processes 6`.

The processes are forks of one that has collected the tests. Processes that are started (those of
pytest-xdist) each import and collect everything again, which takes as long as hundreds of tests.
"""

import os
from contextlib import suppress
from itertools import pairwise
from multiprocessing import connection, get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from threading import active_count
from typing import Any

import pytest

from tests.support import forking

HERE = Path(__file__).parent
SLOW_FIRST = (HERE / "e2e", HERE / "integration", HERE / "infra")
"""Folders with tests that wait as much as they compute, the longest first. All other tests only
compute."""
COMPUTING_ONLY = 3
"""One process in so many runs tests that only compute, in what time the others leave."""
GIVES_WAY = 10
"""How much lower its priority is, as `nice` counts."""
_FORKS = get_context("fork")


def pytest_addoption(parser: pytest.Parser) -> None:
    """How many processes."""
    parser.addoption("--processes", type=int, default=1, help="run tests in so many processes")


def pytest_configure(config: pytest.Config) -> None:
    """The marker of tests that have the machine for themselves."""
    config.addinivalue_line("markers", "alone: measures, or changes what all others see")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes long, so that all processes end at about the same time."""
    if config.getoption("processes") > 1:
        items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    ranks = [n for n, folder in enumerate(SLOW_FIRST) if item.path.is_relative_to(folder)]
    return ranks[0] if ranks else len(SLOW_FIRST)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests, if several processes are to. Those marked `alone` follow when all others have
    ended, one after the other."""
    number = session.config.getoption("processes")
    if number == 1 or session.config.option.collectonly or session.testsfailed:
        return None
    alone = [item for item in session.items if item.get_closest_marker("alone")]
    others = [item for item in session.items if not item.get_closest_marker("alone")]
    if others:
        _run_in_forks(session, others, number)
        _raise_if_over(session)
    for item, after in pairwise([*alone, None]):
        item.ihook.pytest_runtest_protocol(item=item, nextitem=after)
        _raise_if_over(session)
    return True


def _raise_if_over(session: pytest.Session) -> None:
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)


def _run_in_forks(session: pytest.Session, items: list[pytest.Item], number: int) -> None:
    # All make their folders in one.
    session.config._tmp_path_factory.getbasetemp()
    if _is_slow(items[0]):
        forking.start()
    assert active_count() == 1, "a thread is not in a fork"
    queue = _Queue(items)
    processes = [_Process(session, queue, n) for n in range(number)]
    try:
        _report(session, items, processes, queue)
    finally:
        queue.clear()
        for process in processes:
            process.results.close()
            process.join()


def _report(
    session: pytest.Session,
    items: list[pytest.Item],
    processes: "list[_Process]",
    queue: "_Queue",
) -> None:
    """Report tests as they end, as if they had been run here."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter and session.config.get_verbosity() <= 0:
        # Otherwise the name of a file is written whenever the next test is in another.
        reporter.showfspath = False
    hook = session.config.hook
    locations = {item.nodeid: item.location for item in items}
    left = set(locations)
    running = {process.results: process for process in processes}
    while running:
        for results in connection.wait(list(running)):
            try:
                node_id, reports = results.recv()
            # One that is killed may break off in the middle of a report.
            except (EOFError, OSError):
                running.pop(results).join()
                continue
            left.discard(node_id)
            location = locations[node_id]
            hook.pytest_runtest_logstart(nodeid=node_id, location=location)
            for data in reports:
                report = hook.pytest_report_from_serializable(config=session.config, data=data)
                hook.pytest_runtest_logreport(report=report)
            hook.pytest_runtest_logfinish(nodeid=node_id, location=location)
        if session.shouldfail or session.shouldstop:
            queue.clear()
            left.clear()
    for node_id in sorted(left):
        said = f"its process has ended; exit codes: {[process.exitcode for process in processes]}"
        failed = pytest.TestReport(node_id, locations[node_id], {}, "failed", said, "call")
        hook.pytest_runtest_logreport(report=failed)


class _Queue:
    """Which tests are next, for all processes. Tests that share what is made once for their file
    come together."""

    def __init__(self, items: list[pytest.Item]) -> None:
        self._groups: list[list[pytest.Item]] = []
        sharing: dict[Path, list[pytest.Item]] = {}
        for item in items:
            group = sharing.setdefault(item.path, []) if _shares(item) else []
            if not group:
                self._groups.append(group)
            group.append(item)
        self._slow = sum(_is_slow(group[0]) for group in self._groups)
        self._bounds = _FORKS.Array("i", [0, len(self._groups)])

    def take(self) -> list[pytest.Item]:
        """The next tests; none if all are taken."""
        with self._bounds.get_lock():
            first, end = self._bounds
            self._bounds[0] = min(first + 1, end)
            return self._groups[first] if first < end else []

    def take_computing(self) -> list[pytest.Item]:
        """The last tests that only compute; none if all are taken."""
        with self._bounds.get_lock():
            first, end = self._bounds
            if end <= max(first, self._slow):
                return []
            self._bounds[1] = end - 1
            return self._groups[end - 1]

    def clear(self) -> None:
        """Have each process end after the tests that it has."""
        with self._bounds.get_lock():
            self._bounds[0] = self._bounds[1]


def _is_slow(item: pytest.Item) -> bool:
    return _rank(item) < len(SLOW_FIRST)


def _shares(item: pytest.Item) -> bool:
    used = item._fixtureinfo.name2fixturedefs.values()
    return any(definitions[-1].scope in ("class", "module") for definitions in used)


class _Process(ForkProcess):
    """Runs tests and sends `results`: the id of each test and its reports."""

    def __init__(self, session: pytest.Session, queue: _Queue, number: int) -> None:
        super().__init__()
        self.results, self._results = _FORKS.Pipe(duplex=False)
        self._session = session
        self._gives_way = number % COMPUTING_ONLY == COMPUTING_ONLY - 1
        self._take = queue.take_computing if self._gives_way else queue.take
        self._reports: list[dict[str, Any]] = []
        self.start()
        self._results.close()

    def run(self) -> None:
        """What the fork does."""
        if self._gives_way:
            os.nice(GIVES_WAY)
        plugins = self._session.config.pluginmanager
        # What is captured goes through a file that the forks would share.
        capture = plugins.get_plugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        plugins.unregister(name="terminalreporter")
        plugins.register(self)
        # Ctrl-C ends all processes; the first that ended has said so.
        with suppress(KeyboardInterrupt, BrokenPipeError):
            try:
                self._run_tests()
            finally:
                self._session._setupstate.teardown_exact(None)

    def _run_tests(self) -> None:
        group = self._take()
        while group:
            following = self._take()
            for item, after in pairwise([*group, following[0] if following else None]):
                item.ihook.pytest_runtest_protocol(item=item, nextitem=after)
                self._results.send((item.nodeid, self._reports))
                self._reports = []
                if self._session.shouldfail or self._session.shouldstop:
                    return
            group = following

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep a report until the test has ended."""
        config = self._session.config
        data = config.hook.pytest_report_to_serializable(config=config, report=report)
        self._reports.append(data)
