"""Result files from the results API: complete, by range, and compressed."""

import asyncio
import gzip
import hashlib
from pathlib import Path

import msgspec
import pytest

from aiperf_svc.adapters.exports.manifest import ManifestEntry, build_manifest
from aiperf_svc.adapters.results_api.client import ResultsClient
from aiperf_svc.adapters.results_api.run_api import BYTES, ApiRefused
from tests.support.fake_results_api import LARGE, TOKEN, Api


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
    (api.provider.path / "manifest.json").unlink()
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


async def test_whole_file_has_its_hash_as_etag(api: Api) -> None:
    response, body = await api.get("/v1/results/large.bin")
    assert (response.status, body) == (200, LARGE)
    assert response.headers["ETag"] == f'"{hashlib.sha256(LARGE).hexdigest()}"'
    again, nothing = await api.get(
        "/v1/results/large.bin", **{"If-None-Match": response.headers["ETag"]}
    )
    assert (again.status, nothing) == (304, b"")


async def test_page_is_only_bytes_for_the_client(api: Api) -> None:
    page = b"<a href=/nowhere>a proxy would rewrite this link</a>"
    folder = api.provider.path
    (folder / "report.html").write_bytes(page)
    (folder / "manifest.json").write_bytes(msgspec.json.encode(build_manifest(folder, "run")))
    for accepted, expected in ((BYTES, BYTES), ("*/*", "text/html"), ("text/html", "text/html")):
        response, body = await api.get("/v1/results/report.html", Accept=accepted)
        assert (response.content_type, body) == (expected, page)


async def test_head_of_a_file_has_its_size(api: Api) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.server.port)
    writer.write(
        b"HEAD /v1/results/profile_export.jsonl HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        b"Accept-Encoding: gzip\r\nX-Aiperf-Token: " + TOKEN.encode() + b"\r\n\r\n"
    )
    head, end, body = (await reader.read()).partition(b"\r\n\r\n")
    assert b"\r\nContent-Length: 45000\r\n" in head + end
    assert body == b""
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    ("wanted", "first", "last"),
    [
        ("bytes=100-199", 100, 199),
        (f"bytes={len(LARGE) - 5}-", len(LARGE) - 5, len(LARGE) - 1),
        ("bytes=-10", len(LARGE) - 10, len(LARGE) - 1),
        ("bytes=5-99999999", 5, len(LARGE) - 1),
    ],
)
async def test_range_is_that_part_of_the_file(api: Api, wanted: str, first: int, last: int) -> None:
    response, body = await api.get("/v1/results/large.bin", Range=wanted)
    assert response.status == 206
    assert response.headers["Content-Range"] == f"bytes {first}-{last}/{len(LARGE)}"
    assert body == LARGE[first : last + 1]


@pytest.mark.parametrize(
    "wanted",
    ["bytes=-", "bytes=a-b", "bytes=0-1,5-6", "lines=1-2", f"bytes=0-{'9' * 5_000}"],
    ids=lambda wanted: wanted[:20],
)
async def test_unknown_range_returns_the_whole_file(api: Api, wanted: str) -> None:
    response, body = await api.get("/v1/results/large.bin", Range=wanted)
    assert (response.status, len(body)) == (200, len(LARGE))


async def test_a_range_beyond_the_end_is_refused(api: Api) -> None:
    response, _ = await api.get("/v1/results/large.bin", Range=f"bytes={len(LARGE)}-")
    assert response.status == 416
    assert response.headers["Content-Range"] == f"bytes */{len(LARGE)}"


async def test_range_of_another_file_returns_the_whole_file(api: Api) -> None:
    headers = {"Range": "bytes=5-9", "If-Range": '"of another run"'}
    response, body = await api.get("/v1/results/large.bin", **headers)
    assert (response.status, len(body)) == (200, len(LARGE))


async def test_requested_gzip_has_another_etag(api: Api) -> None:
    name = "/v1/results/profile_export.jsonl"
    plain, content = await api.get(name)
    packed, body = await api.get(name, **{"Accept-Encoding": "gzip"})
    assert packed.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body) == content
    assert len(body) < len(content) / 10
    assert packed.headers["ETag"] != plain.headers["ETag"]


async def test_growing_log_is_served_up_to_its_hash(
    api: Api, client: ResultsClient, tmp_path: Path
) -> None:
    with (api.provider.path / "logs/worker-0.log").open("a") as log:
        log.write("three\n")
    await client.download_all(tmp_path / "copy")
    assert (tmp_path / "copy/logs/worker-0.log").read_text() == "one\ntwo\n"
