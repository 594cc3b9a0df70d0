"""The results API over real loopback HTTP, and the client that fetches results through it."""

import asyncio
import contextlib
import gzip
import hashlib
import socket
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
import pytest_asyncio

from aiperf_svc.adapters.exports.manifest import Manifest, ManifestEntry, take_stock
from aiperf_svc.adapters.results_api import ResultsServer, serve
from aiperf_svc.adapters.results_client import ApiRefused, ApiUnavailable, ResultsClient
from aiperf_svc.adapters.run_status import Status
from aiperf_svc.domain.errors import EnvironmentProblem

TOKEN = "the-stack's-token"
LARGE = bytes(range(256)) * 4096


def make_status(**fields: Any) -> Status:
    values: dict[str, Any] = dict.fromkeys(Status.__struct_fields__, 0)
    values |= {"state": "profiling", "phase": "profiling", "reason": "", "message": ""}
    values |= {"artifact_error": "", "uploaded_to": "", "verdict": None, "dataset": {}, "number": 1}
    values |= {"is_cancelling": False, "results_ready": False, "is_settled": False}
    return Status(**{**values, **fields})


@dataclass
class Provider:
    """A run that the test plays."""

    path: Path
    now: Status = field(default_factory=make_status)
    content: dict[str, Any] | None = None
    has_manifest: bool = True
    cancelled: list[str] = field(default_factory=list)
    was_collected: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    waits: list[tuple[int, float]] = field(default_factory=list)
    listed: Manifest | None = None

    def status(self) -> Status:
        return self.now

    async def wait_change(self, after: int, timeout_s: float) -> None:
        self.waits.append((after, timeout_s))
        self.asked.set()
        await self.changed.wait()

    def cancel(self, reason: str) -> None:
        self.cancelled.append(reason)

    def collected(self) -> None:
        self.was_collected.set()

    def summary(self) -> dict[str, Any] | None:
        return self.content

    def folder(self) -> Path:
        return self.path

    def manifest(self) -> dict[str, Any] | None:
        if not self.has_manifest:
            return None
        found = self.listed or take_stock(self.path, "0123456789ab")
        listed: dict[str, Any] = msgspec.to_builtins(found)
        return listed


@dataclass
class Api:
    provider: Provider
    server: ResultsServer
    session: aiohttp.ClientSession
    url: str

    async def get(self, path: str, **headers: str) -> tuple[aiohttp.ClientResponse, bytes]:
        given = {"Authorization": f"Bearer {TOKEN}", "Accept-Encoding": "identity", **headers}
        async with self.session.get(self.url + path, headers=given) as answer:
            return answer, await answer.read()


@pytest_asyncio.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    folder = tmp_path / "artifacts"
    (folder / "logs").mkdir(parents=True)
    (folder / "large.bin").write_bytes(LARGE)
    (folder / "profile_export.jsonl").write_text('{"a": 1}\n' * 5000)
    (folder / "logs" / "worker-0.log").write_text("one\ntwo\n")
    (tmp_path / "secret").write_text("not a result")
    provider = Provider(folder)
    server = await serve(provider, token=TOKEN, fd=None, host="127.0.0.1", port=0)
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        yield Api(provider, server, session, f"http://127.0.0.1:{server.port}")
    await server.close()


@pytest_asyncio.fixture
async def client(api: Api) -> AsyncIterator[ResultsClient]:
    async with ResultsClient(api.url, token=TOKEN, retry_s=0) as client:
        yield client


# --- who may ask -----------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/metrics", "/v1/status", "/v1/summary", "/v1/results", "/v1/x"])
@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": ""},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "", "X-Aiperf-Token": TOKEN[:-1]},
        {"Authorization": "", "X-Aiperf-Token": "caf\xe9"},
    ],
)
async def test_nothing_is_told_without_the_token(
    api: Api, path: str, headers: dict[str, str]
) -> None:
    answer, body = await api.get(path, **headers)
    assert answer.status == 401
    assert b"profiling" not in body


async def test_the_token_is_taken_from_either_header(api: Api) -> None:
    bearer, _ = await api.get("/v1/status")
    own, _ = await api.get("/v1/status", **{"Authorization": "", "X-Aiperf-Token": TOKEN})
    assert (bearer.status, own.status) == (200, 200)


async def test_an_empty_token_lets_nobody_in(tmp_path: Path) -> None:
    server = await serve(Provider(tmp_path), token="", fd=None, host="127.0.0.1", port=0)
    url = f"http://127.0.0.1:{server.port}/v1/status"
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers={"X-Aiperf-Token": ""}) as answer,
    ):
        assert answer.status == 401
    await server.close()


async def test_health_needs_no_token(api: Api) -> None:
    for path in ("/healthz", "/readyz"):
        answer, _ = await api.get(path, Authorization="")
        assert answer.status == 200


async def test_a_token_in_a_cancel_is_checked_too(api: Api) -> None:
    async with api.session.post(f"{api.url}/v1/cancel") as answer:
        assert answer.status == 401
    assert api.provider.cancelled == []


# --- what the run is doing -------------------------------------------------------------------


async def test_a_status_is_told_at_once_when_its_number_is_new(
    api: Api, client: ResultsClient
) -> None:
    assert await client.status() == api.provider.now
    assert await client.status(after=7, timeout_s=30) == api.provider.now
    assert api.provider.waits == []


async def test_a_long_poll_ends_with_the_next_change(api: Api, client: ResultsClient) -> None:
    asked = asyncio.create_task(client.status(after=1, timeout_s=30))
    await api.provider.asked.wait()
    api.provider.now = make_status(number=2, state="done")
    api.provider.changed.set()
    assert (await asked).state == "done"
    assert api.provider.waits == [(1, 30.0)]


@pytest.mark.parametrize("query", ["after=x", "after=-1", "after=1&timeout=nan", "after=1.5"])
async def test_a_poll_that_makes_no_sense_is_refused(api: Api, query: str) -> None:
    answer, body = await api.get(f"/v1/status?{query}")
    assert (answer.status, b"expected a number" in body) == (400, True)


async def test_metrics_are_in_prometheus_text_format(api: Api) -> None:
    api.provider.now = make_status(completed=12, ttft_p50_ms=20.0, ttft_p99_ms=None)
    answer, body = await api.get("/metrics")
    lines = body.decode().splitlines()
    assert answer.content_type == "text/plain"
    assert 'aiperf_requests_completed_total{phase="profiling"} 12' in lines
    assert "# TYPE aiperf_requests_completed_total counter" in lines
    assert any(line.startswith("aiperf_ttft_p50_seconds") for line in lines)
    assert not any("ttft_p99" in line for line in lines)


async def test_a_summary_is_refused_until_it_is_computed(api: Api, client: ResultsClient) -> None:
    with pytest.raises(ApiRefused, match="409 the summary is not computed yet"):
        await client.summary()
    api.provider.content = {"request_count": {"avg": 5}}
    assert await client.summary() == {"request_count": {"avg": 5}}


async def test_cancel_passes_the_reason_on(api: Api, client: ResultsClient) -> None:
    await client.cancel("enough")
    assert api.provider.cancelled == ["enough"]


async def test_a_cancel_with_a_broken_body_is_refused(api: Api) -> None:
    headers = {"X-Aiperf-Token": TOKEN}
    async with api.session.post(f"{api.url}/v1/cancel", headers=headers, data=b"{") as answer:
        assert answer.status == 400
    assert api.provider.cancelled == []


async def test_nothing_counts_as_collected_before_the_results_are_final(
    api: Api, client: ResultsClient
) -> None:
    with pytest.raises(ApiRefused, match="not final yet") as refused:
        await client.collected()
    assert refused.value.status == 409


async def test_collected_is_answered_before_the_process_may_end(
    api: Api, client: ResultsClient
) -> None:
    api.provider.now = make_status(state="done", is_settled=True)
    await client.collected()
    async with asyncio.timeout(10):
        await api.provider.was_collected.wait()


async def test_the_api_listens_on_a_socket_that_it_was_given(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port, fd = listener.getsockname()[1], listener.detach()
    server = await serve(Provider(tmp_path), token=TOKEN, fd=fd, host="", port=0)
    async with ResultsClient(f"http://127.0.0.1:{port}", token=TOKEN) as client:
        assert (await client.status()).state == "profiling"
    await server.close()


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(EnvironmentProblem, match=f"cannot listen on 127.0.0.1:{port}"):
            await serve(Provider(tmp_path), token=TOKEN, fd=None, host="127.0.0.1", port=port)


# --- files -----------------------------------------------------------------------------------


async def test_results_are_listed_with_size_and_hash(client: ResultsClient) -> None:
    manifest = await client.manifest()
    assert [entry.name for entry in manifest.files] == [
        "large.bin",
        "logs/worker-0.log",
        "profile_export.jsonl",
    ]
    assert manifest.files[0] == ManifestEntry(
        "large.bin", len(LARGE), hashlib.sha256(LARGE).hexdigest()
    )


async def test_results_are_refused_until_they_are_written(api: Api, client: ResultsClient) -> None:
    api.provider.has_manifest = False
    with pytest.raises(ApiRefused) as refused:
        await client.manifest()
    assert refused.value.status == 409


@pytest.mark.parametrize(
    "name", ["../secret", "%2e%2e%2fsecret", "logs/..%2f..%2fsecret", "/etc/passwd", "nothing"]
)
async def test_only_listed_files_are_served(api: Api, name: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.server.port)
    request = f"GET /v1/results/{name} HTTP/1.1\r\nHost: x\r\nX-Aiperf-Token: {TOKEN}\r\n\r\n"
    writer.write(request.encode())
    assert b" 404 " in await reader.readline()
    writer.close()
    await writer.wait_closed()


async def test_a_whole_file_comes_with_its_hash_as_tag(api: Api) -> None:
    answer, body = await api.get("/v1/results/large.bin")
    assert (answer.status, body) == (200, LARGE)
    assert answer.headers["ETag"] == f'"{hashlib.sha256(LARGE).hexdigest()}"'
    again, nothing = await api.get(
        "/v1/results/large.bin", **{"If-None-Match": answer.headers["ETag"]}
    )
    assert (again.status, nothing) == (304, b"")


@pytest.mark.parametrize(
    ("wanted", "first", "last"),
    [
        ("bytes=100-199", 100, 199),
        (f"bytes={len(LARGE) - 5}-", len(LARGE) - 5, len(LARGE) - 1),
        ("bytes=-10", len(LARGE) - 10, len(LARGE) - 1),
        ("bytes=5-99999999", 5, len(LARGE) - 1),
    ],
)
async def test_a_range_is_that_part_of_the_file(
    api: Api, wanted: str, first: int, last: int
) -> None:
    answer, body = await api.get("/v1/results/large.bin", Range=wanted)
    assert answer.status == 206
    assert answer.headers["Content-Range"] == f"bytes {first}-{last}/{len(LARGE)}"
    assert body == LARGE[first : last + 1]


@pytest.mark.parametrize("wanted", ["bytes=-", "bytes=a-b", "bytes=0-1,5-6", "lines=1-2"])
async def test_a_range_that_is_not_understood_gives_the_whole_file(api: Api, wanted: str) -> None:
    answer, body = await api.get("/v1/results/large.bin", Range=wanted)
    assert (answer.status, len(body)) == (200, len(LARGE))


async def test_a_range_beyond_the_end_is_refused(api: Api) -> None:
    answer, _ = await api.get("/v1/results/large.bin", Range=f"bytes={len(LARGE)}-")
    assert answer.status == 416
    assert answer.headers["Content-Range"] == f"bytes */{len(LARGE)}"


async def test_a_range_of_another_file_gives_the_whole_one(api: Api) -> None:
    headers = {"Range": "bytes=5-9", "If-Range": '"of another run"'}
    answer, body = await api.get("/v1/results/large.bin", **headers)
    assert (answer.status, len(body)) == (200, len(LARGE))


async def test_gzip_is_used_when_asked_for_and_tagged_apart(api: Api) -> None:
    name = "/v1/results/profile_export.jsonl"
    plain, content = await api.get(name)
    packed, body = await api.get(name, **{"Accept-Encoding": "gzip"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body) == content
    assert len(body) < len(content) / 10
    assert packed.headers["ETag"] != plain.headers["ETag"]


async def test_a_log_that_grows_is_served_as_far_as_its_hash_covers(
    api: Api, client: ResultsClient, tmp_path: Path
) -> None:
    api.provider.listed = take_stock(api.provider.path, "0123456789ab")
    with (api.provider.path / "logs/worker-0.log").open("a") as log:
        log.write("three\n")
    await client.download_all(tmp_path / "copy")
    assert (tmp_path / "copy/logs/worker-0.log").read_text() == "one\ntwo\n"


# --- fetching all of them --------------------------------------------------------------------


async def test_all_results_are_fetched_into_a_folder(
    api: Api, client: ResultsClient, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    manifest = await client.download_all(copy)
    assert take_stock(copy, manifest.run_id) == manifest
    assert msgspec.json.decode((copy / "manifest.json").read_bytes(), type=Manifest) == manifest


async def test_what_is_there_already_is_not_fetched_again(
    api: Api, client: ResultsClient, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    await client.download_all(copy)
    before = (copy / "large.bin").stat().st_ino
    (copy / "profile_export.jsonl").write_text("another one")
    await client.download_all(copy)
    assert (copy / "large.bin").stat().st_ino == before
    assert (copy / "profile_export.jsonl").read_text() == '{"a": 1}\n' * 5000


async def test_a_download_goes_on_where_it_broke_off(api: Api, tmp_path: Path) -> None:
    limit = len(LARGE) // 3
    entry = take_stock(api.provider.path, "x").files[0]
    async with (
        _Cutting(api.server.port, limit=limit) as proxy,
        ResultsClient(proxy.url, token=TOKEN, retry_s=0) as client,
    ):
        path = await client.download(entry, tmp_path / "copy")
    assert path.read_bytes() == LARGE
    assert proxy.connections > 3, "one connection carries a third: it would never end from 0"


async def test_a_download_without_progress_is_given_up(api: Api, tmp_path: Path) -> None:
    entry = take_stock(api.provider.path, "x").files[0]
    async with (
        _Cutting(api.server.port, limit=0) as proxy,
        ResultsClient(proxy.url, token=TOKEN, retry_s=0) as client,
    ):
        with pytest.raises(ApiUnavailable, match=r"large.bin: broke off at byte 0 of 1,048,576"):
            await client.download(entry, tmp_path)


async def test_a_part_of_something_else_is_thrown_away(
    api: Api, client: ResultsClient, tmp_path: Path
) -> None:
    (tmp_path / "large.bin.part").write_bytes(b"of another run")
    entry = take_stock(api.provider.path, "x").files[0]
    assert (await client.download(entry, tmp_path)).read_bytes() == LARGE


async def test_bytes_with_another_hash_are_not_believed(
    api: Api, client: ResultsClient, tmp_path: Path
) -> None:
    api.provider.listed = take_stock(api.provider.path, "x")
    (api.provider.path / "large.bin").write_bytes(LARGE[::-1])
    with pytest.raises(EnvironmentProblem, match=r"large.bin: received bytes with another SHA-256"):
        await client.download_all(tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []


async def test_a_server_cannot_write_outside_the_folder(
    client: ResultsClient, tmp_path: Path
) -> None:
    with pytest.raises(EnvironmentProblem, match="leads out"):
        await client.download(ManifestEntry("../evil", 1, "0" * 64), tmp_path / "copy")
    assert not (tmp_path / "evil").exists()


async def test_an_empty_file_is_fetched(api: Api, client: ResultsClient, tmp_path: Path) -> None:
    (api.provider.path / "empty.log").touch()
    await client.download_all(tmp_path / "copy")
    assert (tmp_path / "copy/empty.log").read_bytes() == b""


async def test_a_server_that_is_gone_is_named(api: Api, client: ResultsClient) -> None:
    await api.server.close()
    with pytest.raises(ApiUnavailable, match="results API at http://127"):
        await client.status()


class _Cutting:
    """A proxy that cuts every connection after `limit` bytes of the answer."""

    def __init__(self, port: int, *, limit: int) -> None:
        self._port, self._limit = port, limit
        self.connections = 0
        self.url = ""
        self._serving: set[asyncio.Task[Any] | None] = set()

    async def __aenter__(self) -> "_Cutting":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()
        serving = [task for task in self._serving if task]
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._serving.add(asyncio.current_task())
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._pass(reader, writer, inner_reader, inner_writer)
        finally:
            for each in (inner_writer, writer):
                each.close()
                with contextlib.suppress(ConnectionError):
                    await each.wait_closed()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        inner_reader: asyncio.StreamReader,
        inner_writer: asyncio.StreamWriter,
    ) -> None:
        inner_writer.write(await reader.readuntil(b"\r\n\r\n"))
        left = self._limit
        while left > 0 and (data := await inner_reader.read(min(65536, left))):
            left -= len(data)
            writer.write(data)
            await writer.drain()
