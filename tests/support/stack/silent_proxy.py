"""A proxy in front of the API server that stops responding and resumes."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from benchmarks.stream_server import stream_server
from tests.support.stack.real_cluster import Cluster

BLOCK = 65_536


class SilentProxy:
    """Forwards bytes between clients and the API server or holds them back. Meanwhile connections
    are accepted and stay open, as with a server that hangs."""

    def __init__(self, host: str, port: int) -> None:
        self._there = (host, port)
        self._loop = asyncio.new_event_loop()
        self._speaks = asyncio.Event()
        self._speaks.set()
        self._server = stream_server(self._serve)
        self.port = self._loop.run_until_complete(self._server.__aenter__())
        self._thread = threading.Thread(target=self._loop.run_forever, name="silent proxy")
        self._thread.start()

    def fall_silent(self) -> None:
        """Hold back all bytes from now on."""
        self._loop.call_soon_threadsafe(self._speaks.clear)

    def resume(self) -> None:
        """Forward the held-back bytes and all that follow."""
        self._loop.call_soon_threadsafe(self._speaks.set)

    def close(self) -> None:
        """Close all connections."""
        ended = self._server.__aexit__(None, None, None)
        asyncio.run_coroutine_threadsafe(ended, self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._speaks.wait()
        try:
            there_reader, there_writer = await asyncio.open_connection(*self._there)
            with contextlib.closing(there_writer):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pass_on(reader, there_writer))
                    group.create_task(self._pass_on(there_reader, writer))
        except* OSError:
            pass

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while block := await reader.read(BLOCK):
            await self._speaks.wait()
            writer.write(block)
            await writer.drain()
        writer.close()


@contextlib.contextmanager
def proxy_of(cluster: Cluster, folder: Path) -> Iterator[tuple[SilentProxy, Path]]:
    """Run a proxy in front of a cluster's API server. Yield it and a kubeconfig that uses it."""
    config = yaml.safe_load(
        cluster.kubectl("config", "view", "--raw", "--minify", "--flatten", "-o", "yaml")
    )
    (entry,) = config["clusters"]
    there = urlsplit(entry["cluster"]["server"])
    assert there.hostname is not None
    proxy = SilentProxy(there.hostname, there.port or 443)
    try:
        # The certificate belongs to the real server.
        entry["cluster"].setdefault("tls-server-name", there.hostname)
        entry["cluster"]["server"] = f"{there.scheme}://127.0.0.1:{proxy.port}"
        kubeconfig = folder / "kubeconfig-of-the-proxy"
        kubeconfig.write_text(yaml.safe_dump(config))
        kubeconfig.chmod(0o600)
        yield proxy, kubeconfig
    finally:
        proxy.close()
