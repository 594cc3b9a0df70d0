"""A pod with a finished large run: the project's own results API and its files."""

from aiperf_svc.adapters.cluster.api.connection import Cluster
from tests.support.stack.served_files import PORT, serve

SIZE = 2**30
TOKEN = "of the run"
PAGE = "<!doctype html><a href=/nowhere>A page whose links the API server's proxy rewrites</a>"
PROGRAM = """
import asyncio, os
from pathlib import Path
import msgspec
from aiperf_svc.adapters.exports.manifest import build_manifest
from aiperf_svc.adapters.results_api.server import serve

class Finished:
    def __init__(self, folder):
        self._folder = folder

    def folder(self):
        return self._folder

async def main():
    folder = Path("/data")
    with (folder / "records.parquet").open("wb") as file:
        for _ in range(SIZE >> 24):
            file.write(os.urandom(1 << 24))
    (folder / "report.html").write_text(PAGE)
    manifest = msgspec.json.encode(build_manifest(folder, "run"))
    (folder / "manifest.json").write_bytes(manifest)
    await serve(Finished(folder), token="TOKEN", host="0.0.0.0", port=PORT)
    await asyncio.Event().wait()

asyncio.run(main())
"""
for _name, _value in {"SIZE": SIZE, "TOKEN": TOKEN, "PORT": PORT, "PAGE": repr(PAGE)}.items():
    PROGRAM = PROGRAM.replace(_name, str(_value))


async def serve_finished_run(cluster: Cluster, namespace: str, image: str) -> None:
    """Create the Service and the pod. The pod is ready when its files exist."""
    await serve(cluster, namespace, image, program=PROGRAM)
