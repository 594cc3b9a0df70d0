"""The results API on real loopback HTTP, and the client that fetches results from it."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest_asyncio

from aiperf_svc.adapters.results_api.client import ResultsClient
from aiperf_svc.adapters.results_api.server import serve
from tests.support.fake_results_api import LARGE, TOKEN, Api, Provider


@pytest_asyncio.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    folder = tmp_path / "artifacts"
    (folder / "logs").mkdir(parents=True)
    (folder / "large.bin").write_bytes(LARGE)
    (folder / "profile_export.jsonl").write_text('{"a": 1}\n' * 5000)
    (folder / "logs" / "worker-0.log").write_text("one\ntwo\n")
    (tmp_path / "secret").write_text("not a result")
    provider = Provider(folder)
    provider.list_results()
    server = await serve(provider, token=TOKEN, host="127.0.0.1", port=0)
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        yield Api(provider, server, session, f"http://127.0.0.1:{server.port}")
    await server.close()


@pytest_asyncio.fixture
async def client(api: Api) -> AsyncIterator[ResultsClient]:
    async with ResultsClient(api.url, token=TOKEN, retry_s=0) as client:
        yield client
