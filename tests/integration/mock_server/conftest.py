"""Mock servers that the tests of a module share."""

from collections.abc import Iterator

import pytest

from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import RunningMockServer, running


@pytest.fixture(scope="module")
def plain() -> Iterator[RunningMockServer]:
    """A server without delays in one process. The tests of a module share its counters."""
    with running(MockServerConfig(tokens=3)) as server:
        yield server


@pytest.fixture(scope="module")
def witness() -> Iterator[RunningMockServer]:
    """A server with delays that records rows, in two processes."""
    config = MockServerConfig(tokens=4, ttft="20ms", itl="3ms", truth=True, processes=2)
    with running(config) as server:
        yield server
