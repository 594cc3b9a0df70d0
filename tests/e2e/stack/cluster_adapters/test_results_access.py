"""Access to the results in a cluster from this machine."""

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster, connect
from aiperf_svc.adapters.cluster.results_access import PortForward, ServiceProxy, open_results
from aiperf_svc.adapters.exports.manifest import ManifestEntry
from aiperf_svc.adapters.results_api.client import ResultsClient
from tests.support.stack.finished_run import PAGE, TOKEN, serve_finished_run
from tests.support.stack.finished_run import SIZE as FINISHED_SIZE
from tests.support.stack.served_files import PORT, SERVICE, SIZE, add_pod, outputs, serve

TIMEOUT_S = 60.0
"""Time limit to collect 1 GiB, the size of a large run's results."""
RECONNECT_S = 30.0
WAYS = [PortForward, ServiceProxy]
Way = type[PortForward] | type[ServiceProxy]


@pytest.mark.alone
@pytest.mark.parametrize("way", WAYS)
async def test_gibibyte_is_verified_within_a_minute(
    connected: Cluster,
    space: str,
    image: str,
    way: Way,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    await serve_finished_run(connected, space, image)
    async with (
        way(connected, namespace=space, service=SERVICE, port=PORT) as opened,
        ResultsClient(opened.url, token=TOKEN) as client,
    ):
        started = time.monotonic()
        manifest = await client.download_all(tmp_path)
        took_s = time.monotonic() - started
    record_property("1 GiB took seconds", round(took_s, 1))
    # Every file was accepted only after its SHA-256 matched that of the pod.
    assert sum(entry.size for entry in manifest.files) == FINISHED_SIZE + len(PAGE)
    for entry in manifest.files:
        # pytest keeps test folders for inspection.
        (tmp_path / entry.name).unlink()
    assert took_s < TIMEOUT_S


@pytest.mark.parametrize("way", WAYS)
async def test_download_resumes_after_a_broken_connection(
    connected: Cluster, space: str, image: str, way: Way, tmp_path: Path
) -> None:
    await serve(connected, space, image)
    entry = ManifestEntry("small", SIZE, hashlib.sha256(bytes(SIZE)).hexdigest())
    async with (
        way(connected, namespace=space, service=SERVICE, port=PORT) as opened,
        ResultsClient(opened.url, token="t", retry_s=0.01) as client,
    ):
        # The file is accepted only if its SHA-256 matches.
        path = await client.download(entry, tmp_path)
    assert path.stat().st_size == SIZE


async def test_port_forward_survives_its_pod(connected: Cluster, space: str, image: str) -> None:
    await serve(connected, space, image)
    async with open_results(connected, outputs=outputs(space)) as url:
        assert await _name_of_pod(url) == SERVICE
        await connected.delete(f"/api/v1/namespaces/{space}/pods/{SERVICE}", grace_s=0)
        await add_pod(connected, space, image, "another")
        async with asyncio.timeout(RECONNECT_S):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    assert await _name_of_pod(url) == "another"
                    return


async def test_proxy_replaces_a_forbidden_port_forward(
    connected: Cluster, space: str, image: str, lesser_user: Callable[[Any], Awaitable[str]]
) -> None:
    await serve(connected, space, image)
    rules = [("", "services", ("get",)), ("", "pods", ("list",)), ("", "services/proxy", ("get",))]
    async with (
        connect(kubeconfig=await lesser_user(rules)) as lesser,
        open_results(lesser, outputs=outputs(space)) as url,
    ):
        assert await _name_of_pod(url) == SERVICE


async def test_node_port_is_used_first(connected: Cluster, space: str, image: str) -> None:
    await serve(connected, space, image)
    spec = {"type": "NodePort", "selector": {"app": SERVICE}, "ports": [{"port": PORT}]}
    made = await connected.post(
        f"/api/v1/namespaces/{space}/services", {"metadata": {"name": "exposed"}, "spec": spec}
    )
    exposed = f"http://NODE:{made['spec']['ports'][0]['nodePort']}"
    async with open_results(connected, outputs=outputs(space, url=exposed)) as url:
        assert url.endswith(exposed.removeprefix("http://NODE"))
        assert await _name_of_pod(url) == SERVICE


async def test_port_forward_replaces_a_silent_address(
    connected: Cluster, space: str, image: str
) -> None:
    await serve(connected, space, image)
    unused = outputs(space, url="http://127.0.0.1:9")
    async with open_results(connected, outputs=unused) as url:
        assert await _name_of_pod(url) == SERVICE


@pytest.mark.parametrize("up", ["..", "%2e%2e", "%2E."])
async def test_proxy_reaches_only_its_service(connected: Cluster, space: str, up: str) -> None:
    async with ServiceProxy(connected, namespace=space, service=SERVICE, port=PORT) as opened:
        host, _, port = opened.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        path = f"/{up}" * 6 + "/api/v1/secrets"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        response = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert response.split()[1] in (b"400", b"404")
    assert b"SecretList" not in response


async def _name_of_pod(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/name") as response:
        return await response.text()
