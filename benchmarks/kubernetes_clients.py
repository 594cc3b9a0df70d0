"""Compares the runner's Kubernetes client and kr8s against a local server.

    python -m benchmarks.kubernetes_clients

It prints the figures of decision 12: CPU time of lists and of WebSocket transfers, the effect of
forbidden lists on others, and the requests of a forbidden port-forward. Run it again when kr8s
changes.
"""

import argparse
import asyncio
import contextlib
import json
import logging
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import kr8s
from aiohttp import web
from kr8s.asyncio.objects import Pod

from aiperf_svc.adapters.cluster.api.connection import Cluster, connect
from aiperf_svc.adapters.cluster.results_access import PROTOCOL

LISTS, AT_A_TIME, FORBIDDEN = 600, 60, 10
MESSAGE, MESSAGES = bytes(32 * 1024 + 1), 8192
"""256 MiB in messages of the kubelet's size."""
FORWARD_S = 3.0
ITEMS = {"items": [{"metadata": {"name": f"n{i}", "uid": str(i)}} for i in range(20)]}
DENIED = {"kind": "Status", "reason": "Forbidden", "message": "forbidden", "code": 403}
PLUGIN = """#!/bin/sh
echo call >> "$(dirname "$0")/calls"
echo '{"status": {"token": "t"}}'
"""


def serve() -> None:
    """Serve the API until killed; print the URL."""
    requests = 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal requests
        requests += 1
        if request.path == "/requests":
            return web.json_response(requests)
        if request.path.startswith("/bytes"):
            socket = web.WebSocketResponse(protocols=(PROTOCOL,))
            await socket.prepare(request)
            for _ in range(MESSAGES):
                await socket.send_bytes(MESSAGE)
            await socket.close()
            return socket
        if "forbidden" in request.path:
            return web.json_response(DENIED, status=403)
        if request.path.startswith("/version"):
            return web.json_response({"gitVersion": "v1.34.4"})
        return web.json_response({**ITEMS, "metadata": {"uid": "u"}})

    async def run() -> None:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


@contextlib.contextmanager
def served() -> Iterator[tuple[str, Path]]:
    """Yield the URL of a server process, and a kubeconfig for it with a credential plugin."""
    command = (sys.executable, "-m", "benchmarks.kubernetes_clients", "--serve")
    with (
        tempfile.TemporaryDirectory() as name,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            url, folder = server.stdout.readline().strip(), Path(name)
            plugin = folder / "plugin"
            plugin.write_text(PLUGIN)
            plugin.chmod(0o700)
            version = "client.authentication.k8s.io/v1"
            user = {"exec": {"apiVersion": version, "command": str(plugin)}}
            content = {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": url}}],
                "users": [{"name": "u", "user": user}],
            }
            (folder / "kubeconfig").write_text(json.dumps(content))
            yield url, folder
        finally:
            server.kill()


async def measured(name: str, work: Callable[[], Awaitable[object]]) -> object:
    """Run the work, print its time and CPU time, and return its result."""
    began_s, began_cpu_s = time.monotonic(), time.process_time()
    result = await work()
    took_s, cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
    print(f"{name}: {took_s:.2f} s, {cpu_s:.2f} s of CPU, {result}")
    return result


async def lists(get: Callable[[str], Awaitable[Any]]) -> str:
    """Request lists with limited concurrency."""
    for _ in range(LISTS // AT_A_TIME):
        await asyncio.gather(*(get(f"type{i}") for i in range(AT_A_TIME)))
    return f"{LISTS} lists"


async def mixed(get: Callable[[str], Awaitable[Any]]) -> str:
    """Request lists concurrently, some of which are forbidden."""
    every = range(0, AT_A_TIME, AT_A_TIME // FORBIDDEN)
    names = ["forbidden" if i in every else f"type{i}" for i in range(AT_A_TIME)]
    found = await asyncio.gather(*map(get, names), return_exceptions=True)
    good = sum(isinstance(each, dict) for each in found)
    return f"{good} of {AT_A_TIME - FORBIDDEN} allowed lists succeed"


async def by_aiohttp(url: str) -> str:
    """Receive all messages."""
    async with (
        aiohttp.ClientSession() as session,
        session.ws_connect(url, protocols=(PROTOCOL,), max_msg_size=0) as socket,
    ):
        received = sum([len(message.data) async for message in socket])
    return f"{received >> 20} MiB"


async def by_kr8s(api: Any) -> str:
    """Receive all messages."""
    received = 0
    async with api.open_websocket(version="", base="/bytes") as socket:
        for _ in range(MESSAGES):
            received += len(await socket.receive_bytes())
    return f"{received >> 20} MiB"


async def refused_forward(api: Any, url: str) -> None:
    """Print the requests of one connection of a forbidden port-forward."""

    async def requests() -> int:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/requests") as response:
            return int(await response.json())

    pod = Pod({"metadata": {"name": "forbidden", "namespace": "n"}}, api=api)
    async with pod.portforward(80, local_port="auto") as port:
        before = await requests()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.sleep(FORWARD_S)
        print(f"kr8s, a forbidden port-forward: {await requests() - before} requests in 3 s")
        writer.close()
    # The forwarder leaves tasks behind, and asyncio reports the errors of their cancellation.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)


def plugin_calls(folder: Path) -> int:
    """Return the number of calls of the credential plugin so far."""
    return len((folder / "calls").read_text().split())


async def compare(url: str, folder: Path) -> None:
    """Print all comparisons."""
    kubeconfig = str(folder / "kubeconfig")
    async with connect(kubeconfig=kubeconfig) as cluster:

        async def own(name: str, cluster: Cluster = cluster) -> Any:
            return await cluster.get(f"/api/v1/{name}")

        await measured("own client", lambda: lists(own))
        await measured("own client, some forbidden", lambda: mixed(own))
    api = await kr8s.asyncio.api(kubeconfig=kubeconfig)

    async def theirs(name: str) -> Any:
        async with api.call_api("GET", url=name) as response:
            return response.json()

    await measured("kr8s", lambda: lists(theirs))
    before = plugin_calls(folder)
    await measured("kr8s, some forbidden", lambda: mixed(theirs))
    print(f"kr8s, some forbidden: {plugin_calls(folder) - before} calls of the credential plugin")
    await measured("aiohttp, WebSocket", lambda: by_aiohttp(f"{url}/bytes"))
    await measured("kr8s, WebSocket", lambda: by_kr8s(api))
    await refused_forward(api, url)


def main() -> None:
    """Print the comparisons."""
    parser = argparse.ArgumentParser(prog="benchmarks.kubernetes_clients", description=__doc__)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().serve:
        serve()
        return
    with served() as (url, folder):
        asyncio.run(compare(url, folder))


if __name__ == "__main__":
    main()
