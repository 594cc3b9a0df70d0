"""Authentication of the results API, and its status of the run."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from aiperf_svc.adapters.results_api.server import ResultsServer, serve
from aiperf_svc.core.verdict.health_log import ClientLoad
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.services.serving import serve_results
from tests.support.fake_results_api import TOKEN, Api, Provider, make_status
from tests.support.ports import free_port
from tests.support.small_configs import small_config

# --- authentication --------------------------------------------------------------------------


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
async def test_results_api_requires_the_token(api: Api, path: str, headers: dict[str, str]) -> None:
    response, body = await api.get(path, **headers)
    assert response.status == 401
    assert b"profiling" not in body


async def test_token_is_read_from_either_header(api: Api) -> None:
    bearer, _ = await api.get("/v1/status")
    own, _ = await api.get("/v1/status", **{"Authorization": "", "X-Aiperf-Token": TOKEN})
    assert (bearer.status, own.status) == (200, 200)


async def test_empty_token_is_refused(tmp_path: Path) -> None:
    server = await serve(Provider(tmp_path), token="", host="127.0.0.1", port=0)
    url = f"http://127.0.0.1:{server.port}/v1/status"
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers={"X-Aiperf-Token": ""}) as response,
    ):
        assert response.status == 401
    await server.close()


async def test_health_needs_no_token(api: Api) -> None:
    for path in ("/healthz", "/readyz"):
        response, _ = await api.get(path, Authorization="")
        assert response.status == 200


async def test_a_token_in_a_cancel_is_checked_too(api: Api) -> None:
    async with api.session.post(f"{api.url}/v1/cancel") as response:
        assert response.status == 401
    assert api.provider.cancelled == []


@asynccontextmanager
async def served(folder: Path, **options: Any) -> AsyncIterator[Callable[..., Awaitable[int]]]:
    """Serve the API with these options. Yield a function from path and token to status."""
    server = await serve(Provider(folder), token=TOKEN, host="127.0.0.1", port=0, **options)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:

        async def status(path: str, token: str) -> int:
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with session.get(path, headers=headers) as response:
                return response.status

        yield status
    await server.close()


async def test_metrics_token_opens_nothing_else(tmp_path: Path) -> None:
    async with served(tmp_path, metrics_token="for-prometheus") as status:
        assert await status("/metrics", "for-prometheus") == 200
        assert await status("/metrics", TOKEN) == 200
        assert await status("/metrics", "") == 401
        assert await status("/v1/status", "for-prometheus") == 401


async def test_an_open_page_of_metrics_opens_nothing_else(tmp_path: Path) -> None:
    async with served(tmp_path, is_metrics_open=True) as status:
        assert await status("/metrics", "") == 200
        assert await status("/v1/status", "") == 401


def context_of(monitoring: str = "none", token: str = "", port: int = 0) -> Any:
    """Return the context of a process on this machine, or with a port that of a pod."""
    return SimpleNamespace(
        results_socket=None,
        api_token=TOKEN,
        metrics_token=token,
        api_port=port,
        config=small_config(deployment={"monitoring": monitoring}),
        addresses=SimpleNamespace(is_tcp=port != 0),
    )


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
async def test_pods_serve_on_ipv4_and_ipv6(tmp_path: Path, host: str) -> None:
    port = free_port()
    serving = await serve_results(Provider(tmp_path), context_of(port=port))
    url = f"http://{host}:{port}/readyz"
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        assert response.status == 200
    await serving.close()


@pytest.mark.parametrize(
    ("monitoring", "token", "expected"),
    [("none", "", 401), ("annotations", "", 200), ("prometheus-operator", "m", 200)],
)
async def test_metrics_readers_are_configurable(
    tmp_path: Path, monitoring: str, token: str, expected: int
) -> None:
    serving = await serve_results(Provider(tmp_path), context_of(monitoring, token))
    assert isinstance(serving, ResultsServer)
    headers = {"Authorization": f"Bearer {token}"}
    url = f"http://127.0.0.1:{serving.port}/metrics"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        assert response.status == expected
    await serving.close()


# --- status of the run -----------------------------------------------------------------------


@pytest.mark.parametrize("query", ["after=x", "after=-1", "after=1&timeout=nan", "after=1.5"])
async def test_invalid_poll_is_refused(api: Api, query: str) -> None:
    response, body = await api.get(f"/v1/status?{query}")
    assert (response.status, b"expected a number" in body) == (400, True)


async def test_metrics_are_in_prometheus_text_format(api: Api) -> None:
    api.provider.now = make_status(
        completed=12,
        ttft_p50_ms=20.0,
        ttft_p99_ms=None,
        finish_reasons={"stop": 11, "content_filter": 1},
        client=ClientLoad(
            cpu_cores={"worker": 0.5}, loop_lag_s={"worker": 0.01}, cpu_lost={"pressure": 0.25}
        ),
        schedule_lag_p99_ms=3.0,
    )
    response, body = await api.get("/metrics")
    lines = body.decode().splitlines()
    assert response.content_type == "text/plain"
    assert 'aiperf_requests_completed_total{phase="profiling"} 12' in lines
    assert "# TYPE aiperf_requests_completed_total counter" in lines
    assert 'aiperf_finish_reasons_total{reason="content_filter"} 1' in lines
    assert "# TYPE aiperf_finish_reasons_total counter" in lines
    assert any(line.startswith("aiperf_ttft_p50_seconds") for line in lines)
    assert 'aiperf_schedule_lag_p99_seconds{phase="profiling"} 0.0030000000000000001' in lines
    assert 'aiperf_service_cpu_ratio{service="worker"} 0.5' in lines
    assert 'aiperf_node_cpu_lost_ratio{cause="pressure"} 0.25' in lines
    assert not any("ttft_p99" in line for line in lines)


async def test_a_cancel_with_a_broken_body_is_refused(api: Api) -> None:
    headers = {"X-Aiperf-Token": TOKEN}
    async with api.session.post(f"{api.url}/v1/cancel", headers=headers, data=b"{") as response:
        assert response.status == 400
    assert api.provider.cancelled == []


async def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(EnvironmentProblem, match=f"cannot listen on 127.0.0.1:{port}"):
            await serve(Provider(tmp_path), token=TOKEN, host="127.0.0.1", port=port)
