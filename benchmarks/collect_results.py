"""Measures the time to collect the results of a large run. A records manager's API runs in a
separate process and the runner's client in this one, connected over loopback.

    python benchmarks/collect_results.py [--size 1Gi] [--json] [--profile]

The client writes every byte and checks its SHA-256. The reference in the same run does the same
without a network: `shutil.copyfile`, then SHA-256. The file holds random bytes, because
records.parquet is already compressed.
"""

import argparse
import asyncio
import cProfile
import hashlib
import json
import os
import pstats
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import uvloop

from aiperf_svc.adapters.exports.manifest import Manifest, build_manifest
from aiperf_svc.adapters.results_api.client import ResultsClient
from aiperf_svc.adapters.results_api.server import serve
from aiperf_svc.config.units import format_size, parse_size

TOKEN = "token"
FILE = "records.parquet"


class Finished:
    """A finished run with the methods that the API needs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def folder(self) -> Path:
        """Folder of the results."""
        return self._folder


async def serve_folder(folder: Path) -> None:
    """Serve the folder until standard input ends."""
    api = await serve(
        Finished(folder),  # type: ignore[arg-type]
        token=TOKEN,
        host="127.0.0.1",
        port=0,
    )
    print(api.port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await api.close()


def make_results(folder: Path, size: int) -> None:
    """Write a folder like the records manager's, with one large file."""
    folder.mkdir()
    with (folder / FILE).open("wb") as file:
        for begin in range(0, size, 1 << 24):
            file.write(os.urandom(min(1 << 24, size - begin)))
    manifest = build_manifest(folder, "0123456789ab")
    files = [{"name": e.name, "size": e.size, "sha256": e.sha256} for e in manifest.files]
    (folder / "manifest.json").write_text(json.dumps({"run_id": "run", "files": files}))


def reference_s(source: Path, target: Path) -> float:
    """Return the seconds of a copy on this machine, including its hash check."""
    begin = perf_counter()
    shutil.copyfile(source / FILE, target)
    with target.open("rb") as file:
        hashlib.file_digest(file, "sha256")
    elapsed = perf_counter() - begin
    target.unlink()
    return elapsed


def collect_s(source: Path, target: Path) -> float:
    """Return the seconds until the client has all files."""
    command = [sys.executable, __file__, "--serve", str(source)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        begin = perf_counter()
        asyncio.run(_download(url, target))
        elapsed = perf_counter() - begin
        server.stdin.close()
    return elapsed


async def _download(url: str, target: Path) -> Manifest:
    async with ResultsClient(url, token=TOKEN) as client:
        return await client.download_all(target)


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--size", type=parse_size, default=2**30)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--json", action="store_true")
    arguments.add_argument("--profile", action="store_true", help="where the client's time goes")
    arguments.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.serve:
        uvloop.run(serve_folder(options.serve))
        return
    with tempfile.TemporaryDirectory(prefix="aiperf-collect-") as scratch:
        folder = Path(scratch)
        make_results(folder / "source", options.size)
        references, collections = [], []
        profile = cProfile.Profile(builtins=True)
        for number in range(options.rounds):
            references.append(reference_s(folder / "source", folder / "copy"))
            if options.profile:
                profile.enable()
            collections.append(collect_s(folder / "source", folder / f"target-{number}"))
            profile.disable()
            shutil.rmtree(folder / f"target-{number}")
    reference, collected = min(references), min(collections)
    found = {
        "bytes": options.size,
        "collected_s": round(collected, 3),
        "collected_mb_per_s": round(options.size / 1e6 / collected, 1),
        "reference_s": round(reference, 3),
        "reference_mb_per_s": round(options.size / 1e6 / reference, 1),
        "ratio": round(collected / reference, 2),
    }
    if options.json:
        print(json.dumps(found))
    else:
        print(f"{format_size(options.size)} collected in {collected:.2f} s", end="")
        print(f" ({found['collected_mb_per_s']} MB/s)")
        print(f"reference: copied and hashed in {reference:.2f} s", end="")
        print(f" ({found['reference_mb_per_s']} MB/s); {found['ratio']} x reference")
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(20)


if __name__ == "__main__":
    main()
