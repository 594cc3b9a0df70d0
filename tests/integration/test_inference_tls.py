"""The inference client over TLS: equal responses, and failures before a response."""

import asyncio
import socket
import ssl
from pathlib import Path
from time import monotonic_ns
from typing import Any

import pytest

from aiperf_svc.adapters.inference.connection import CONNECTING, HANDSHAKING
from aiperf_svc.adapters.inference.http2_stream import Http2Stream
from aiperf_svc.adapters.inference.proxy import TunnelledStream
from aiperf_svc.adapters.inference.resolved_target import tls_context
from aiperf_svc.adapters.inference.tls_stream import TlsStream, handshake_problem
from aiperf_svc.config.endpoint import Tls
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from aiperf_svc.protocol.records import Flag
from tests.support.client_bench import CHUNKED, LENGTH, WAIT_S, bench, read_request, responses

Certificate = tuple[Path, Path]


@pytest.mark.parametrize("response", [LENGTH, CHUNKED])
async def test_tls_response_is_complete_and_connection_reused(
    server_side: ssl.SSLContext, trust: dict[str, Any], response: bytes
) -> None:
    async with bench(responses(response), server_side=server_side, **trust) as b:
        first, second = await b.one(index=1), await b.one(index=2)
        assert [o for o, _ in b.sent.ends] == [Outcome.COMPLETED, Outcome.COMPLETED]
        assert b.sent.bodies == response * 2
        assert (first["tls_ns"] > 0, second["tls_ns"]) == (True, 0)
        assert second["flags"] & Flag.REUSED
        assert len(b.connections) == 1


async def test_request_waits_for_the_rest_of_a_handshake(
    server_side: ssl.SSLContext, trust: dict[str, Any]
) -> None:
    async with bench(responses(LENGTH), server_side=server_side, **trust) as b:
        b.client.preconnect(1)
        (conn,) = b.connections
        async with asyncio.timeout(WAIT_S):
            while conn.state == CONNECTING:  # noqa: ASYNC110
                await asyncio.sleep(0)  # there is no notification
        assert conn.state == HANDSHAKING
        before = monotonic_ns()
        row = await b.one()
        assert row["connect_ns"] == 0
        assert 0 < row["tls_ns"] <= monotonic_ns() - before


async def test_large_requests_and_responses_pass_tls_whole(
    server_side: ssl.SSLContext, trust: dict[str, Any]
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


async def test_unknown_certificate_is_a_tls_error(server_side: ssl.SSLContext) -> None:
    async with bench(responses(LENGTH), server_side=server_side) as b:
        row = await b.one()
        assert (row["outcome"], row["error"]) == (Outcome.ERRORED, ErrorKind.TLS)
        assert b"certificate" in b.sent.bodies
        assert (b.client.requests_sent, len(b.connections)) == (0, 0)


async def test_a_server_without_tls_is_a_tls_error() -> None:
    async def script(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(LENGTH)
        await writer.drain()

    async with bench(script, scheme="https") as b:
        row = await b.one()
        assert (row["outcome"], row["error"]) == (Outcome.ERRORED, ErrorKind.TLS)
        assert (b.client.requests_sent, len(b.connections)) == (0, 0)


async def test_silent_handshake_is_a_tls_error_with_hint() -> None:
    has_begun = asyncio.Event()

    async def script(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read(1)
        has_begun.set()
        await reader.read()

    async with bench(script, scheme="https") as b:
        b.send()
        (conn,) = b.connections
        await asyncio.wait_for(has_begun.wait(), WAIT_S)
        conn.opened_mono_ns -= b.target.connect_timeout_ns
        b.client.expire()
        b.client.flush()
        (row,) = b.sent.rows
        assert (row["outcome"], row["error"]) == (Outcome.ERRORED, ErrorKind.TLS)
        assert b.sent.bodies.endswith(b"timed out in the TLS handshake: is its URL http://?")


def test_timeout_names_the_layer_that_is_not_ready() -> None:
    context = ssl.create_default_context()
    tls = TlsStream(context, "host")
    assert tls.timeout[0] is ErrorKind.TLS
    assert Http2Stream(tls).timeout == tls.timeout
    kind, text = Http2Stream(None).timeout
    assert (kind, "settings arrived" in text) == (ErrorKind.PROTOCOL, True)
    tunnel = TunnelledStream(context, "host", b"CONNECT")
    assert tunnel.timeout[0] is ErrorKind.CONNECT
    tunnel.receive(b"HTTP/1.1 200 OK\r\n\r\n")
    assert tunnel.timeout == tls.timeout


def test_server_without_tls_gets_a_url_hint() -> None:
    with running(MockServerConfig()) as server:
        context = ssl.create_default_context()
        with (
            socket.create_connection(("127.0.0.1", server.port), WAIT_S) as sock,
            pytest.raises(ssl.SSLError) as raised,
        ):
            context.wrap_socket(sock, server_hostname="localhost")
    assert "is its URL http://?" in handshake_problem(raised.value)


@pytest.mark.parametrize("parts", [(b"hello",), (b"hel", b"lo")])
async def test_close_notify_ends_a_body(
    server_side: ssl.SSLContext, trust: dict[str, Any], parts: tuple[bytes, ...]
) -> None:
    """The server's socket stays open for half a minute to wait for our `close_notify`."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()
        writer.close()
        await asyncio.Event().wait()

    async with bench(script, server_side=server_side, **trust) as b:
        row = await b.one()
        assert (row["outcome"], row["error"]) == (Outcome.COMPLETED, ErrorKind.NONE)
        assert b.sent.bodies.endswith(b"\r\n\r\nhello")
        assert b.connections == []


async def test_connection_is_not_reused_after_close_notify(
    server_side: ssl.SSLContext, trust: dict[str, Any]
) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(LENGTH)
        writer.close()
        await asyncio.Event().wait()

    async with bench(script, server_side=server_side, **trust) as b:
        for index in range(3):
            await b.one(index=index)
        assert [outcome for outcome, _ in b.sent.ends] == [Outcome.COMPLETED] * 3
        assert b.client.requests_sent == 3 + b.client.retries


async def test_body_truncated_by_close_notify_is_an_error(
    server_side: ssl.SSLContext, trust: dict[str, Any]
) -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(LENGTH[:-2])
        writer.close()
        await asyncio.Event().wait()

    async with bench(script, server_side=server_side, **trust) as b:
        row = await b.one()
        assert (row["outcome"], row["error"]) == (Outcome.ERRORED, ErrorKind.DISCONNECTED)


@pytest.mark.parametrize(
    ("tls", "cause", "setting"),
    [
        ({}, "self-signed certificate", "endpoint.tls.ca_file (--tls-ca-file)"),
        ({"server_name": "api.test"}, "Hostname mismatch", "endpoint.tls.server_name"),
        ({}, "certificate", "endpoint.tls.verify: false (--no-tls-verify)"),
    ],
)
async def test_rejected_certificate_names_reason_and_setting(
    server_side: ssl.SSLContext,
    certificate: Certificate,
    tls: dict[str, str],
    cause: str,
    setting: str,
) -> None:
    if "server_name" in tls:
        tls = tls | {"ca_file": str(certificate[0])}
    async with bench(responses(LENGTH), server_side=server_side, tls=tls) as b:
        await b.one()
        message = b.sent.bodies.decode()
        assert "the server's certificate is rejected" in message
        assert cause in message
        assert setting in message


async def test_authorities_may_be_given_as_text(
    server_side: ssl.SSLContext, certificate: Certificate
) -> None:
    tls = {"ca": certificate[0].read_text()}
    async with bench(responses(LENGTH), server_side=server_side, tls=tls) as b:
        assert (await b.one())["outcome"] == Outcome.COMPLETED


async def test_any_certificate_is_accepted_without_verification(
    server_side: ssl.SSLContext,
) -> None:
    async with bench(responses(LENGTH), server_side=server_side, tls={"verify": False}) as b:
        assert (await b.one())["outcome"] == Outcome.COMPLETED


def test_a_file_without_certificates_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("hello\n")
    with pytest.raises(ConfigError, match=r"endpoint.tls.ca_file: .*ca.pem.* no certificates"):
        tls_context(Tls(ca_file=str(path)))


def test_a_text_without_certificates_is_named() -> None:
    text = "-----BEGIN CERTIFICATE-----\nhello\n-----END CERTIFICATE-----\n"
    with pytest.raises(ConfigError, match=r"endpoint.tls.ca: holds no certificates"):
        tls_context(Tls(ca=text))
