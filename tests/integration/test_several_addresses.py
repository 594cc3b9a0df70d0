"""A target with several addresses: their load, and the cost of one that is down."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import monotonic_ns, time_ns

import pytest

from aiperf_svc.adapters.inference.resolved_target import look_up
from aiperf_svc.core.load.target_addresses import FALLBACK_NS
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from benchmarks.stream_server import stream_server
from tests.support.client_bench import (
    LENGTH,
    WAIT_S,
    Bench,
    bench,
    read_request,
    resolver,
    responses,
)
from tests.support.small_configs import small_config

FIRST, SECOND, THIRD = "127.0.0.1", "127.0.0.2", "127.0.0.3"


def requests(b: Bench) -> dict[str, int]:
    return {use.address: use.requests for use in b.client.address_uses()}


async def keep_house(b: Bench, until: Callable[[], object]) -> None:
    """Do a worker's background work until a condition is true."""
    async with asyncio.timeout(WAIT_S):
        while not until():
            b.client.housekeeping()
            b.client.expire()
            await asyncio.sleep(0.01)


async def test_new_connections_use_all_addresses_in_turn() -> None:
    hosts = (FIRST, SECOND, THIRD)
    async with bench(responses(LENGTH), hosts=hosts, found=hosts, connections="per-request") as b:
        for index in range(6):
            await b.one(index=index)
        assert requests(b) == dict.fromkeys(hosts, 2)
        assert {use.connections for use in b.client.address_uses()} == {2}


async def test_requests_on_connections_that_stay_open_are_counted() -> None:
    hosts = (FIRST, SECOND)
    async with bench(responses(LENGTH), hosts=hosts, found=hosts) as b:
        for index in range(5):
            await b.one(index=index)
        assert requests(b) == {FIRST: 5, SECOND: 0}


@pytest.mark.parametrize("found", [(FIRST, SECOND), (SECOND, FIRST), ("::1", FIRST)])
async def test_address_without_a_listener_loses_no_request(found: tuple[str, ...]) -> None:
    async with bench(responses(LENGTH), found=found, connections="per-request") as b:
        for index in range(4):
            await b.one(index=index)
        assert [outcome for outcome, _ in b.sent.ends] == [Outcome.COMPLETED] * 4
        assert b.client.requests_sent == 4
        up, down = sorted(b.client.address_uses(), key=lambda use: use.is_down)
        assert (up.address, up.requests, up.failures) == (FIRST, 4, 0)
        assert (down.requests, down.failures, down.is_down) == (0, 1, True)
        assert "refused" in down.error


async def test_users_that_connect_ahead_all_get_a_connection() -> None:
    async with bench(responses(LENGTH), found=(SECOND, FIRST)) as b:
        assert b.client.preconnect(20)
        for index in range(20):
            b.send(index=index)
        await b.sent.wait_for(20)
        assert {outcome for outcome, _ in b.sent.ends} == {Outcome.COMPLETED}
        assert requests(b) == {SECOND: 0, FIRST: 20}


async def test_error_names_the_last_unreachable_address() -> None:
    async with bench(responses(LENGTH), found=(SECOND, THIRD)) as b:
        row = await b.one()
        assert (row["error"], row["write_wall_ns"]) == (ErrorKind.CONNECT, 0)
        (_, (_, port), *_), *_ = b.target.addresses
        refused = f"127.0.0.3:{port}: Connection refused"
        message = f"{refused} (all 2 addresses of the target are down)"
        assert message.encode() in b.sent.bodies
        again = await b.one()
        assert again["error"] == ErrorKind.CONNECT
        assert [use.failures for use in b.client.address_uses()] == [2, 1]


async def test_silent_address_delays_only_the_first_request() -> None:
    async with bench(responses(LENGTH), found=(SECOND, FIRST)) as b:
        with silent(SECOND, b.client.addresses.in_use[0].socket_address.address[1]):
            began, began_wall_ns = monotonic_ns(), time_ns()
            b.send()
            await keep_house(b, lambda: b.sent.ends)
            assert FALLBACK_NS <= monotonic_ns() - began < b.target.connect_timeout_ns
            assert b.sent.ends[0][0] == Outcome.COMPLETED
            b.client.flush()
            waited_ns = b.sent.rows[0]["connect_ns"]
            assert FALLBACK_NS <= waited_ns <= b.sent.rows[0]["write_wall_ns"] - began_wall_ns
            (down, up) = b.client.address_uses()
            assert (down.is_down, down.error) == (True, "silent for 250 ms")
            assert up.requests == 1
            # One more attempt checks whether the address responds again.
            assert len(b.connections) == 2
            await b.one()
            assert requests(b) == {SECOND: 0, FIRST: 2}


async def test_recovered_address_is_used_again() -> None:
    async with bench(responses(LENGTH), found=(SECOND, FIRST), connections="per-request") as b:
        b.client.poll_often(True)
        await b.one()
        down = b.client.addresses.in_use[0]
        assert down.is_down
        port = down.socket_address.address[1]
        async with stream_server(serve_one, SECOND, port):
            await keep_house(b, lambda: not down.is_down)
            for index in range(4):
                await b.one(index=index)
            assert requests(b)[SECOND] > 0
            assert {outcome for outcome, _ in b.sent.ends} == {Outcome.COMPLETED}


async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await read_request(reader)
    writer.write(LENGTH)
    await reader.read()


async def test_source_addresses_match_the_ip_version() -> None:
    sources: list[str] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sources.append(writer.get_extra_info("peername")[0])
        await read_request(reader)
        writer.write(LENGTH)

    async with bench(
        script,
        hosts=(FIRST, "::1"),
        found=(FIRST, "::1"),
        connections="per-request",
        source_addresses=["127.0.0.8", "127.0.0.9"],
    ) as b:
        for index in range(4):
            await b.one(index=index)
        assert sorted(sources) == ["127.0.0.8"] * 2 + ["127.0.0.9"] * 2


def test_source_addresses_of_the_wrong_version_are_refused() -> None:
    config = small_config("http://target.test:80", endpoint={"source_addresses": ["127.0.0.8"]})
    with pytest.raises(ConfigError, match=r"endpoint.source_addresses: 127.0.0.8: .*\(::1\)"):
        look_up(config, getaddrinfo=resolver("::1"))


@contextmanager
def silent(host: str, port: int) -> Iterator[None]:
    """Reserve an address that drops connection attempts because its backlog is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(0)
        stack.enter_context(socket.create_connection((host, port)))
        yield
