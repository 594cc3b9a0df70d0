"""Servers with known behaviour: all can be built, and some are measured even on a busy machine."""

import re

import pytest

from benchmarks.fuzz.known_servers.known_server import measure
from benchmarks.fuzz.known_servers.registry import SERVERS

BY_NAME = {server.name: server for server in SERVERS}
MEASURED = ("tool-calls-in-conversations", "unasked-response-to-busy-users", "server-token-counts")
"""Servers whose problems do not depend on timing."""
TIMEOUT_S = 600.0
"""Time limit for the load of one run on a busy machine."""


def test_each_known_server_can_be_built() -> None:
    assert len(BY_NAME) == len(SERVERS)
    for server in SERVERS:
        assert re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", server.name)
        assert (server.reply is None) != (server.serve is None)
        if server.reply is not None:
            assert server.reply(0).data.startswith(b"HTTP/1.1 200 OK\r\n")
        elif server.serve is not None:
            with server.serve() as url:
                assert url.startswith("http")


@pytest.mark.parametrize("name", MEASURED)
def test_known_server_has_the_expected_result(name: str) -> None:
    assert measure(BY_NAME[name], longest_s=TIMEOUT_S) == []
