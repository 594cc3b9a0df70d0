"""The runner's API of a run behaves the same over HTTP and over a Unix socket."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from time import time_ns

import pytest
import pytest_asyncio

from aiperf_svc.adapters.results_api import server as http
from aiperf_svc.adapters.results_api.client import ResultsClient
from aiperf_svc.adapters.results_api.local_socket import LocalResultsClient, LocalResultsServer
from aiperf_svc.adapters.results_api.run_api import ApiRefused, ApiUnavailable, RunApi
from aiperf_svc.core.events.report import EventReport
from aiperf_svc.domain.errors import EnvironmentProblem
from tests.support.fake_results import inference_result
from tests.support.fake_results_api import TOKEN, Provider, make_status


@pytest.fixture
def provider(tmp_path: Path) -> Provider:
    return Provider(tmp_path)


@pytest_asyncio.fixture(params=["http", "socket file"])
async def client(
    provider: Provider, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[RunApi]:
    if request.param == "http":
        server = await http.serve(provider, token=TOKEN, host="127.0.0.1", port=0)
        async with ResultsClient(f"http://127.0.0.1:{server.port}", token=TOKEN) as client:
            yield client
        await server.close()
    else:
        local = LocalResultsServer(provider)
        await local.listen(tmp_path / "results.sock")
        yield LocalResultsClient(tmp_path / "results.sock")
        await local.close()


async def test_new_status_number_is_reported_at_once(provider: Provider, client: RunApi) -> None:
    assert await client.status() == provider.now
    assert await client.status(after=7, timeout_s=30) == provider.now
    assert provider.waits == []


async def test_a_long_poll_ends_with_the_next_change(provider: Provider, client: RunApi) -> None:
    poll = asyncio.create_task(client.status(after=1, timeout_s=30))
    await provider.was_polled.wait()
    provider.now = make_status(number=2, state="done")
    provider.changed.set()
    assert (await poll).state == "done"
    assert provider.waits == [(1, 30.0)]


async def test_results_are_refused_until_they_are_computed(
    provider: Provider, client: RunApi
) -> None:
    with pytest.raises(ApiRefused, match="the summary is not computed yet"):
        await client.results()
    provider.content = inference_result(5)
    assert await client.results() == provider.content


async def test_cancel_passes_the_reason_on(provider: Provider, client: RunApi) -> None:
    await client.cancel("enough")
    assert provider.cancelled == ["enough"]


async def test_ready_run_accepts_a_start_near_its_time(provider: Provider, client: RunApi) -> None:
    before = time_ns()
    now = await client.clock()
    assert before <= now <= time_ns()
    with pytest.raises(ApiRefused, match="the run is profiling and does not wait for a start"):
        await client.start(now)
    provider.now = make_status(state="ready")
    with pytest.raises(ApiRefused, match="at most a minute away"):
        await client.start(now + 61_000_000_000)
    with pytest.raises(ApiRefused, match="does not wait for a start; the current trial is 1"):
        await client.start(now, trial=2)
    await client.start(now + 5_000_000_000)
    assert provider.started == [now + 5_000_000_000]


async def test_collecting_is_refused_before_results_are_final(
    provider: Provider, client: RunApi
) -> None:
    with pytest.raises(ApiRefused, match="not final yet") as refused:
        await client.collected()
    assert refused.value.status == 409
    await client.status()
    assert not provider.was_collected.is_set()


async def test_reports_of_a_thousand_events_arrive(provider: Provider, client: RunApi) -> None:
    evidence = "verified " * 20
    reports = tuple(EventReport(number=number, evidence=evidence) for number in range(1_000))
    await client.set_events(7, reports)
    assert provider.events == [(7, reports)]


async def test_collected_is_answered_before_process_may_end(
    provider: Provider, client: RunApi
) -> None:
    provider.now = make_status(state="done", is_settled=True)
    await client.collected()
    async with asyncio.timeout(10):
        await provider.was_collected.wait()


async def test_closing_the_server_ends_a_long_poll(tmp_path: Path, provider: Provider) -> None:
    server = LocalResultsServer(provider)
    await server.listen(tmp_path / "results.sock")
    client = LocalResultsClient(tmp_path / "results.sock")
    poll = asyncio.create_task(client.status(after=1, timeout_s=30))
    await provider.was_polled.wait()
    await server.close()
    with pytest.raises(ApiUnavailable, match="does not respond"):
        await poll


async def test_missing_socket_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(ApiUnavailable, match="No such file"):
        await LocalResultsClient(tmp_path / "results.sock").status()


async def test_invalid_request_gets_no_reply(tmp_path: Path, provider: Provider) -> None:
    server = LocalResultsServer(provider)
    await server.listen(tmp_path / "results.sock")
    for question in (b"{\n", b"", b'{"about": 3}\n'):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "results.sock"))
        writer.write(question)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
    await server.close()


async def test_folder_without_sockets_is_an_environment_error(
    tmp_path: Path, provider: Provider
) -> None:
    with pytest.raises(EnvironmentProblem, match="cannot listen on"):
        await LocalResultsServer(provider).listen(tmp_path / "missing" / "results.sock")
