"""The sources of metrics pages: the target's addresses, GPU exporters, and configured URLs."""

import asyncio
import socket
from typing import Any

import pytest

from aiperf_svc.adapters.telemetry.pages import MAX_PAGE_BYTES
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.telemetry.log import SourceLog
from aiperf_svc.core.telemetry.series import server_load
from aiperf_svc.services import telemetry_reader
from aiperf_svc.services.telemetry_reader import TelemetryReader
from tests.support.in_one_loop import WAIT_S, config
from tests.support.scripted_server import SECOND_HOST, pages, with_telemetry


@pytest.fixture(autouse=True)
def _slow_pages_are_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow for slow pages on a busy machine, in particular large ones."""
    for name in ("TIMEOUT_S", "LOOKUP_S", "LAST_PAGE_S"):
        monkeypatch.setattr(telemetry_reader, name, WAIT_S)


async def read_once(settings: dict[str, Any], *, namespace: str = "") -> list[SourceLog]:
    """Return the logs of a reader after each source was read twice."""
    reader = TelemetryReader(BenchmarkConfig.model_validate(settings), namespace=namespace)
    reading = asyncio.create_task(reader.run())
    await reader.stop()
    await reading
    return reader.logs


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("<html><body>Please log in</body></html>", "line 1 is not a sample: <html><body>Please"),
        ("x 1\n" * (MAX_PAGE_BYTES // 4 + 1), "the page is larger than 4 MiB"),
        ("", "the page has no samples"),
    ],
)
async def test_page_without_metrics_is_named(text: str, failure: str) -> None:
    async with pages(metrics=text) as url:
        base = config("http://127.0.0.1:1", concurrency=1, requests=1)
        wanted = {"target": False, "server_metrics": [url]}
        (log,) = await read_once(with_telemetry(base, **wanted))
    assert not log.has_pages
    assert failure in log.failure


async def test_key_with_invalid_characters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGES", "a\r\nX: y")
    base = config("http://127.0.0.1:1", concurrency=1, requests=1)
    wanted = {"target": False, "server_metrics": ["http://127.0.0.1:1"], "key_env": "PAGES"}
    (log,) = await read_once(with_telemetry(base, **wanted))
    assert "telemetry.key_env: expected a key of printable characters" in log.failure


async def test_only_named_pages_are_sources_if_missing() -> None:
    async with pages(other="up 1\n") as url:
        base = config(url, concurrency=1, requests=1)
        assert await read_once(with_telemetry(base)) == []
        (log,) = await read_once(with_telemetry(base, server_metrics=[url]))
    assert log.failure == "the server responds with status 404"


async def test_discovered_exporter_provides_only_the_targets_gpus() -> None:
    gpus = (
        ("0", "bench", "target-s-7d4b9c8f6-x2kqz"),
        ("1", "bench", "other-1"),
        ("2", "x", "target-s-7d4b9c8f6-x2kqz"),
    )
    text = "".join(
        f'DCGM_FI_DEV_POWER_USAGE{{gpu="{gpu}",namespace="{namespace}",pod="{pod}"}} 300\n'
        for gpu, namespace, pod in gpus
    )
    idle = 'DCGM_FI_DEV_POWER_USAGE{gpu="0"} 60\n'
    async with pages(used=text, idle=idle) as url:
        found = {
            "namespace": "gpus", "labels": {"app": "dcgm-exporter"}, "port": 9400,
            "pages": [f"{url}/used", f"{url}/idle"], "users": ["deployment/target-s"],
        }  # fmt: skip
        base = config("http://127.0.0.1:1", concurrency=1, requests=1)
        settings = with_telemetry(base, target=False, exporters=[found])
        (log,) = await read_once(settings, namespace="bench")
    assert log.url == f"{url}/used"
    assert [each.series.label("gpu") for each in log.series] == ["0"]


async def test_each_address_of_the_target_has_a_page(monkeypatch: pytest.MonkeyPatch) -> None:
    async with pages(metrics="vllm:num_requests_running 2\n") as url:
        port = int(url.rpartition(":")[2])

        def getaddrinfo(name: str, *_args: Any, **_more: Any) -> list[Any]:
            if name != "replicas":
                return [(socket.AF_INET, 1, 6, "", (name, port))]
            # Nothing listens on the third address. The last is the first server's other IP version.
            hosts = ("127.0.0.1", SECOND_HOST, "127.0.0.9")
            found: list[Any] = [(socket.AF_INET, 1, 6, "", (host, port)) for host in hosts]
            return [*found, (socket.AF_INET6, 1, 6, "", ("::1", port, 0, 0))]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        base = config(f"http://replicas:{port}", concurrency=1, requests=1)
        logs = await read_once(base)
    assert [log.has_pages for log in logs] == [True, True, False]
    assert server_load(logs).running == 4
    assert logs[2].failure


@pytest.mark.parametrize("host", ["localhost", "127.1"])
async def test_server_under_two_urls_counts_once(host: str) -> None:
    async with pages(metrics="vllm:num_requests_running 2\n") as url:
        port = url.rpartition(":")[2]
        base = config(f"http://{host}:{port}", concurrency=1, requests=1)
        logs = await read_once(with_telemetry(base, server_metrics=[url]))
    assert [log.url for log in logs] == [f"{url}/metrics"]
    assert server_load(logs).running == 2


async def test_named_address_of_the_target_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = ("127.0.0.1", SECOND_HOST, "127.0.0.9")  # Nothing listens on the third address.
    async with pages(metrics="vllm:num_requests_running 2\n") as url:
        port = int(url.rpartition(":")[2])

        def getaddrinfo(host: str, *_args: Any, **_more: Any) -> list[Any]:
            found = hosts if host == "replicas" else (host,)
            return [(socket.AF_INET, 1, 6, "", (each, port)) for each in found]

        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        base = config(f"http://replicas:{port}", concurrency=1, requests=1)
        logs = await read_once(with_telemetry(base, server_metrics=[url]))
    assert [log.url for log in logs] == [f"http://{host}:{port}/metrics" for host in hosts]
    assert server_load(logs).running == 4
    # A missing page is reported because the other addresses have one.
    assert [log.has_pages for log in logs] == [True, True, False]


async def test_server_of_a_known_family_is_identified() -> None:
    page = 'vllm:num_requests_running 1\nvllm:cache_config_info{block_size="16",engine="0"} 1\n'
    async with pages(metrics=page, version='{"version": "0.12.0"}') as url:
        (log,) = await read_once(with_telemetry(config(url, concurrency=1, requests=1)))
    assert log.facts == {"engine_version": "0.12.0"}


async def test_unknown_server_gets_no_other_request() -> None:
    reads = 0

    def version(_number: int) -> str:
        nonlocal reads
        reads += 1
        return '{"version": "1"}'

    async with pages(metrics="up 1\n", version=version) as url:
        (log,) = await read_once(with_telemetry(config(url, concurrency=1, requests=1)))
    assert (reads, log.facts) == (0, {})
