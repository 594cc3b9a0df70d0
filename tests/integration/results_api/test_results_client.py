"""The client fetches all results into a folder, over broken connections and from faulty servers."""

import asyncio
import contextlib
import shutil
from pathlib import Path

import msgspec
import pytest

from aiperf_svc.adapters.exports.manifest import Manifest, ManifestEntry, build_manifest
from aiperf_svc.adapters.results_api.client import ResultsClient
from aiperf_svc.adapters.results_api.run_api import ApiUnavailable
from aiperf_svc.core.scaling.report import Replica, ScalingReport
from aiperf_svc.domain.errors import EnvironmentProblem
from benchmarks.stream_server import stream_server
from tests.support.fake_results_api import LARGE, TOKEN, Api


async def test_all_results_are_fetched_into_a_folder(
    api: Api, client: ResultsClient, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    manifest = await client.download_all(copy)
    assert build_manifest(copy, manifest.run_id) == manifest
    assert msgspec.json.decode((copy / "manifest.json").read_bytes(), type=Manifest) == manifest


async def test_existing_files_are_not_fetched_again(
    api: Api, client: ResultsClient, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    await client.download_all(copy)
    before = (copy / "large.bin").stat().st_ino
    (copy / "profile_export.jsonl").write_text("another one")
    await client.download_all(copy)
    assert (copy / "large.bin").stat().st_ino == before
    assert (copy / "profile_export.jsonl").read_text() == '{"a": 1}\n' * 5000


async def test_replicas_are_reported_to_the_run(api: Api, client: ResultsClient) -> None:
    many = tuple(
        Replica(name=f"llm-{number}", wall_ns={"created": number, "ready": number + 1})
        for number in range(2_000)
    )
    report = ScalingReport(replicas=many, until_wall_ns=7)
    await client.set_scaling(report)
    assert api.provider.scaling == report


async def test_full_disk_is_reported_before_the_fetch(
    client: ResultsClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    free = len(LARGE) // 2
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=free))
    folder = tmp_path / "fetched"
    with pytest.raises(EnvironmentProblem, match="MiB of results remain"):
        await client.download_all(folder)
    assert not folder.exists()
    # Existing files need no disk space.
    folder.mkdir()
    (folder / "large.bin").write_bytes(LARGE)
    await client.download_all(folder)


async def test_broken_download_resumes(api: Api, tmp_path: Path) -> None:
    limit = len(LARGE) // 3
    entry = build_manifest(api.provider.path, "x").files[0]
    async with (
        _Cutting(api.server.port, limit=limit) as proxy,
        ResultsClient(proxy.url, token=TOKEN, retry_s=0) as client,
    ):
        path = await client.download(entry, tmp_path / "copy")
    assert path.read_bytes() == LARGE
    assert proxy.connections > 3, "one connection carries a third: it would never end from 0"


async def test_stalled_download_fails(api: Api, tmp_path: Path) -> None:
    entry = build_manifest(api.provider.path, "x").files[0]
    async with (
        _Cutting(api.server.port, limit=0) as proxy,
        ResultsClient(proxy.url, token=TOKEN, retry_s=0) as client,
    ):
        with pytest.raises(ApiUnavailable, match=r"large.bin: broke off at byte 0 of 1,048,576"):
            await client.download(entry, tmp_path)


async def test_part_of_another_file_is_discarded(
    api: Api, client: ResultsClient, tmp_path: Path
) -> None:
    (tmp_path / "large.bin.part").write_bytes(b"of another run")
    entry = build_manifest(api.provider.path, "x").files[0]
    assert (await client.download(entry, tmp_path)).read_bytes() == LARGE


async def test_file_with_a_wrong_hash_is_refused(
    api: Api, client: ResultsClient, tmp_path: Path
) -> None:
    (api.provider.path / "large.bin").write_bytes(LARGE[::-1])
    with pytest.raises(EnvironmentProblem, match=r"large.bin: received bytes with another SHA-256"):
        await client.download_all(tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []


def paths_below(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


@pytest.mark.parametrize(
    "name",
    ["", ".", "./", "a/..", "a/../b", "..", "../evil", "/etc/x", "a//b", "a/", "\0", "a\nb",
     "\x1b[2J", "a.part", "manifest.json", "x" * 300, "\ud800"],
)  # fmt: skip
async def test_manifest_with_an_invalid_name_is_refused(
    api: Api, client: ResultsClient, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / "into" / "copy"
    before = await asyncio.to_thread(paths_below, tmp_path)
    with pytest.raises(EnvironmentProblem, match=r"^manifest: .* is not the name of a") as error:
        await client.download(ManifestEntry(name, 3, "0" * 64), folder)
    assert str(error.value).isprintable()
    if name.isprintable() or name.isascii():
        api.provider.list_results(Manifest("x", (ManifestEntry(name, 3, "0" * 64),)))
        with pytest.raises(EnvironmentProblem, match=r"^manifest: .* is not the name of a result"):
            await client.download_all(folder)
    assert await asyncio.to_thread(paths_below, tmp_path) == before


async def test_invalid_manifest_is_refused(api: Api, client: ResultsClient, tmp_path: Path) -> None:
    api.provider.list_results(Manifest("x", (ManifestEntry("a", -1, "0" * 64),)))
    with pytest.raises(EnvironmentProblem, match=r"^manifest: 'a' has -1 bytes"):
        await client.download_all(tmp_path)


async def test_an_empty_file_is_fetched(api: Api, client: ResultsClient, tmp_path: Path) -> None:
    (api.provider.path / "empty.log").touch()
    api.provider.list_results()
    await client.download_all(tmp_path / "copy")
    assert (tmp_path / "copy/empty.log").read_bytes() == b""


async def test_unreachable_server_is_named(api: Api, client: ResultsClient) -> None:
    await api.server.close()
    with pytest.raises(ApiUnavailable, match="results API at http://127"):
        await client.status()


class _Cutting:
    """A proxy that closes every connection after `limit` bytes of the response."""

    def __init__(self, port: int, *, limit: int) -> None:
        self._port, self._limit = port, limit
        self.connections = 0
        self.url = ""

    async def __aenter__(self) -> "_Cutting":
        self._server = stream_server(self._serve)
        self.url = f"http://127.0.0.1:{await self._server.__aenter__()}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.__aexit__(None, None, None)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
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
