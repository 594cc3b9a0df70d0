"""Downloads from a server that breaks connections, changes files, refuses, and sends too much."""

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from aiperf_svc.adapters.datasets.builder import build_dataset
from aiperf_svc.adapters.datasets.downloads import MAX_FRUITLESS_ATTEMPTS, Downloaded, download
from aiperf_svc.domain.errors import ConfigError, DatasetError, EnvironmentProblem
from tests.support.scripted_server import served
from tests.support.small_configs import small_config

OLD = b"old " * 100_000
NEW = b"NEWER" * 90_000


@dataclass
class Server:
    """Serves one file. Each request consumes one unit of the switches named `…s`."""

    content: bytes = OLD
    validators: dict[str, str] = field(default_factory=lambda: {"ETag": '"old"'})
    has_ranges: bool = True
    is_chunked: bool = False
    wrong_range: bool = False
    cuts: list[int] = field(default_factory=list)
    """Number of bytes after which the connection breaks."""
    statuses: list[int] = field(default_factory=list)
    requests: list[tuple[str, int]] = field(default_factory=list)
    """Requested range and sent bytes of every request."""
    url: str = ""

    async def respond(self, request: web.Request) -> web.StreamResponse:
        """Serve the range if it refers to the current version, or else the whole file."""
        assert request.headers["Accept-Encoding"] == "identity"
        wanted = request.headers.get("Range", "")
        if self.statuses:
            self.requests.append((wanted, 0))
            return web.Response(status=self.statuses.pop(0))
        start = 0
        current = request.headers.get("If-Range") in self.validators.values()
        if wanted and self.has_ranges and current:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start and start >= len(self.content):
            self.requests.append((wanted, 0))
            return web.Response(status=416)
        body = self.content[start:]
        response = web.StreamResponse(status=206 if start else 200, headers=self.validators)
        if start:
            shown = 0 if self.wrong_range else start
            last = len(self.content) - 1
            response.headers["Content-Range"] = f"bytes {shown}-{last}/{len(self.content)}"
        if self.is_chunked:
            response.enable_chunked_encoding()
        else:
            response.content_length = len(body)
        await response.prepare(request)
        cut = self.cuts.pop(0) if self.cuts else None
        self.requests.append((wanted, len(body[:cut])))
        await response.write(body[:cut])
        if cut is not None:
            assert request.transport is not None
            request.transport.close()
        return response


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """Run a server on a free port."""
    state = Server()
    async with served("/data.json", state.respond) as url:
        state.url = f"{url}/data.json"
        yield state


async def fetch(
    server: Server, folder: Path, *, max_bytes: int = 2**20, sha256: str | None = None
) -> Downloaded:
    return await download(
        server.url, folder=folder, max_bytes=max_bytes, sha256=sha256, retry_delay_s=0
    )


def assert_whole(result: Downloaded, content: bytes) -> None:
    assert Path(result.file).read_bytes() == content
    assert result.bytes == len(content)
    assert result.sha256 == hashlib.sha256(content).hexdigest()


def kept(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def test_file_is_downloaded_once_and_then_cached(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there" / "yet"
    seen: list[tuple[int, int]] = []
    first = await download(
        server.url, folder=folder, max_bytes=2**20, progress=lambda *at: seen.append(at)
    )
    assert_whole(first, OLD)
    assert seen[-1] == (len(OLD), len(OLD))
    assert await fetch(server, folder) == first
    assert len(server.requests) == 1
    assert not [path for path in kept(folder) if ".part" in path.name]


async def test_interrupted_download_resumes(server: Server, tmp_path: Path) -> None:
    server.cuts = [150_000, 100_000]
    assert_whole(await fetch(server, tmp_path), OLD)
    assert [requested for requested, _ in server.requests] == ["", "bytes=150000-", "bytes=250000-"]
    assert sum(sent for _, sent in server.requests) == len(OLD)


async def test_date_resumes_a_download_without_strong_etag(server: Server, tmp_path: Path) -> None:
    server.validators = {"ETag": 'W/"weak"', "Last-Modified": "Sat, 01 Jan 2000 00:00:00 GMT"}
    server.cuts = [150_000]
    assert_whole(await fetch(server, tmp_path), OLD)
    assert server.requests[1][0] == "bytes=150000-"


@pytest.mark.parametrize("validators", [{}, {"ETag": 'W/"weak"'}])
async def test_download_without_strong_validators_starts_again(
    server: Server, tmp_path: Path, validators: dict[str, str]
) -> None:
    server.validators = validators
    server.cuts = [150_000]
    assert_whole(await fetch(server, tmp_path), OLD)
    assert [requested for requested, _ in server.requests] == ["", ""]


async def test_changed_file_is_downloaded_again(server: Server, tmp_path: Path) -> None:
    await _broken_run(server, tmp_path)
    server.content, server.validators = NEW, {"ETag": '"new"'}
    assert_whole(await fetch(server, tmp_path), NEW)


async def test_later_run_resumes_an_earlier_download(server: Server, tmp_path: Path) -> None:
    await _broken_run(server, tmp_path)
    server.requests.clear()
    assert_whole(await fetch(server, tmp_path), OLD)
    assert [requested for requested, _ in server.requests] == ["bytes=150000-"]


async def _broken_run(server: Server, folder: Path) -> None:
    """Leave a part of 150,000 bytes behind: one broken response, then only refusals."""
    server.cuts = [150_000]

    def progress(have: int, total: int) -> None:
        server.statuses = [503] * MAX_FRUITLESS_ATTEMPTS

    with pytest.raises(EnvironmentProblem, match=r"status 503; received data is kept"):
        await download(
            server.url, folder=folder, max_bytes=2**20, progress=progress, retry_delay_s=0
        )


async def test_server_without_ranges_sends_the_whole_file_again(
    server: Server, tmp_path: Path
) -> None:
    server.has_ranges = False
    server.cuts = [150_000]
    assert_whole(await fetch(server, tmp_path), OLD)
    assert [sent for _, sent in server.requests] == [150_000, len(OLD)]


async def test_part_without_a_known_rest_is_restarted(server: Server, tmp_path: Path) -> None:
    await _broken_run(server, tmp_path)
    server.content = OLD[:150_000]
    assert_whole(await fetch(server, tmp_path), OLD[:150_000])


async def test_unrequested_range_is_never_joined(server: Server, tmp_path: Path) -> None:
    server.wrong_range = True
    server.cuts = [150_000]
    assert_whole(await fetch(server, tmp_path), OLD)
    assert [requested for requested, _ in server.requests] == ["", "bytes=150000-", ""]


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_file_over_the_limit_is_refused(
    server: Server, tmp_path: Path, is_chunked: bool
) -> None:
    server.is_chunked = is_chunked
    with pytest.raises(DatasetError, match=r"over the limit of 1Ki .*; raise dataset\.max_downl"):
        await fetch(server, tmp_path, max_bytes=1024)
    assert [path.suffix for path in kept(tmp_path)] == [".lock"]


async def test_a_file_of_unknown_size_is_downloaded(server: Server, tmp_path: Path) -> None:
    server.is_chunked = True
    server.cuts = [150_000]
    assert_whole(await fetch(server, tmp_path), OLD)


@pytest.mark.parametrize("status", [401, 404])
async def test_a_refusal_is_final_and_named(server: Server, tmp_path: Path, status: int) -> None:
    server.statuses = [status]
    with pytest.raises(EnvironmentProblem, match=rf"data\.json responds with status {status}"):
        await fetch(server, tmp_path)
    assert len(server.requests) == 1


async def test_failing_server_is_retried_a_few_times(server: Server, tmp_path: Path) -> None:
    server.statuses = [503, 429, 500]
    assert_whole(await fetch(server, tmp_path), OLD)
    server.content, server.statuses = NEW, [503] * 100
    server.url += "?other"
    with pytest.raises(EnvironmentProblem, match=r"could not be downloaded: status 503"):
        await fetch(server, tmp_path)
    assert len(server.statuses) == 100 - MAX_FRUITLESS_ATTEMPTS


async def test_missing_server_is_a_problem_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"give a local copy as dataset\.file"):
        await download("http://127.0.0.1:1/x", folder=tmp_path, max_bytes=1024, retry_delay_s=0)


async def test_invalid_address_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"dataset\.url: 'nonsense' is not an address"):
        await download("nonsense", folder=tmp_path, max_bytes=1024)


async def test_unwritable_cache_is_a_problem_with_a_remedy(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(EnvironmentProblem, match=r"cannot keep the dataset in .*XDG_CACHE_HOME"):
        await fetch(server, tmp_path / "file" / "folder")


async def test_concurrent_downloads_share_one_request(server: Server, tmp_path: Path) -> None:
    first, second = await asyncio.gather(fetch(server, tmp_path), fetch(server, tmp_path))
    assert first == second
    assert len(server.requests) == 1


@pytest.mark.parametrize("damage", ["file", "note"])
async def test_a_damaged_cache_is_not_trusted(server: Server, tmp_path: Path, damage: str) -> None:
    result = await fetch(server, tmp_path)
    damaged = result.file if damage == "file" else f"{result.file}.note.json"
    await asyncio.to_thread(Path(damaged).write_bytes, b"cut")
    assert_whole(await fetch(server, tmp_path), OLD)
    assert len(server.requests) == 2


async def test_a_public_dataset_is_built_from_its_url(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    talk = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "A"}]
    server.content = json.dumps([{"id": "x", "conversations": talk * 2}]).encode()
    config = small_config(
        "http://localhost:1", dataset={"kind": "sharegpt", "public": "sharegpt", "url": server.url}
    )
    messages: list[str] = []
    dataset = await build_dataset(config, progress=messages.append)
    assert [len(entry.turns) for entry in dataset.conversations] == [2]  # type: ignore[union-attr]
    assert dataset.report.source == server.url
    assert dataset.report.source_sha256 == hashlib.sha256(server.content).hexdigest()
    assert messages[0].startswith(f"downloading {server.url}: ")


async def test_file_with_another_hash_is_deleted(server: Server, tmp_path: Path) -> None:
    expected = hashlib.sha256(NEW).hexdigest()
    with pytest.raises(DatasetError, match=rf"expected {expected}: it is another file"):
        await fetch(server, tmp_path, sha256=expected)
    assert {Path(name).suffix for name in os.listdir(tmp_path)} == {".lock"}  # noqa: PTH208
    server.content = NEW
    assert_whole(await fetch(server, tmp_path, sha256=expected), NEW)


async def test_cached_file_with_another_hash_is_fetched_again(
    server: Server, tmp_path: Path
) -> None:
    await fetch(server, tmp_path)
    server.content, server.validators = NEW, {"ETag": '"new"'}
    assert_whole(await fetch(server, tmp_path, sha256=hashlib.sha256(NEW).hexdigest()), NEW)
    # The file now exists and is not fetched again.
    await fetch(server, tmp_path, sha256=hashlib.sha256(NEW).hexdigest())
    assert len(server.requests) == 2
