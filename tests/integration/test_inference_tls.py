"""The inference client over TLS: the same answers, and what goes wrong before there is one."""

import asyncio
import ssl
from pathlib import Path

import pytest
from client_bench import CHUNKED, LENGTH, answers, bench, read_request

from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from aiperf_svc.protocol.records import Flag

Certificate = tuple[Path, Path]


@pytest.fixture
def server_side(certificate: Certificate) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    return context


@pytest.fixture
def trust(certificate: Certificate) -> dict[str, object]:
    """Settings of an endpoint that knows the server's certificate."""
    return {"tls": {"ca_file": str(certificate[0])}}


@pytest.mark.parametrize("answer", [LENGTH, CHUNKED])
async def test_an_answer_over_tls_is_whole_and_its_connection_is_used_again(
    server_side: ssl.SSLContext, trust: dict[str, object], answer: bytes
) -> None:
    async with bench(answers(answer), server_side=server_side, **trust) as b:
        first, second = await b.one(index=1), await b.one(index=2)
        assert [o for o, _ in b.sent.ends] == [Outcome.COMPLETED, Outcome.COMPLETED]
        assert b.sent.bodies == answer * 2
        assert (first["tls_ns"] > 0, second["tls_ns"]) == (True, 0)
        assert second["flags"] & Flag.REUSED
        assert b.client.connection_count == 1


async def test_large_requests_and_answers_pass_tls_whole(
    server_side: ssl.SSLContext, trust: dict[str, object]
) -> None:
    received = asyncio.Queue[int]()
    content = b"y" * 3_000_000

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.put_nowait(len(await read_request(reader)))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content)
        await writer.drain()

    async with bench(script, server_side=server_side, **trust) as b:
        b.send(body=b"x" * 3_000_000)
        await b.sent.wait_for(1)
        b.client.flush()
        row = b.sent.rows[-1]
        assert received.get_nowait() == row["bytes_out"] > 3_000_000
        assert row["outcome"] == Outcome.COMPLETED
        assert b.sent.bodies.endswith(content)


async def test_a_certificate_that_nobody_knows_is_a_tls_error(server_side: ssl.SSLContext) -> None:
    async with bench(answers(LENGTH), server_side=server_side) as b:
        row = await b.one()
        assert (row["outcome"], row["error"]) == (Outcome.ERRORED, ErrorKind.TLS)
        assert b"certificate" in b.sent.bodies
        assert (b.client.requests_sent, b.client.connection_count) == (0, 0)


async def test_a_server_without_tls_is_a_tls_error() -> None:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(LENGTH)
        await writer.drain()

    async with bench(script, scheme="https") as b:
        row = await b.one()
        assert (row["outcome"], row["error"]) == (Outcome.ERRORED, ErrorKind.TLS)
        assert (b.client.requests_sent, b.client.connection_count) == (0, 0)
