"""Client of the results API: follows a run, stops it, and downloads its results.

An interrupted download is resumed. A file is accepted only if its SHA-256 matches the manifest.
"""

import asyncio
import shutil
from pathlib import Path
from typing import Self
from urllib.parse import quote

import aiohttp
import msgspec

from aiperf_svc.adapters.exports.file_content import json_file
from aiperf_svc.adapters.exports.manifest import NAME as MANIFEST
from aiperf_svc.adapters.exports.manifest import (
    TEMPORARY_SUFFIX,
    Manifest,
    ManifestEntry,
    check_entry,
    is_whole,
)
from aiperf_svc.adapters.results_api.run_api import (
    BYTES,
    ApiRefused,
    ApiUnavailable,
    GetClock,
    GetStatus,
    GetSummary,
    Operation,
    RunApi,
)
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line

RESPONSE_S = 10.0
"""Timeout between bytes of a response, in addition to the time of a long poll."""
ATTEMPTS = 5
"""Number of attempts for a file without any new byte. Port-forwards break often and recover."""
RETRY_S = 0.5
CHUNK = 256 * 1024
MESSAGE_BYTES = 4096


class ResultsClient(RunApi):
    """A client for one run's API. An async context manager."""

    def __init__(self, base_url: str, *, token: str, retry_s: float = RETRY_S) -> None:
        self._base = base_url.rstrip("/")
        self._token = token
        self._retry_s = retry_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            headers={
                "X-Aiperf-Token": self._token,
                "Accept": BYTES,
                "Accept-Encoding": "identity",
            },
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=RESPONSE_S, sock_read=RESPONSE_S
            ),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def manifest(self) -> Manifest:
        """Return the name, size and hash of every result file."""
        return msgspec.json.decode(await self._send("GET", "results"), type=Manifest)

    async def download_all(self, folder: Path) -> Manifest:
        """Download every result file and the manifest into `folder`. Existing files with the right
        hash are kept. Raises EnvironmentProblem."""
        manifest = await self.manifest()
        _check_room(folder, manifest)
        for entry in manifest.files:
            await self.download(entry, folder)
        await asyncio.to_thread(_write, folder / MANIFEST, json_file(manifest))
        return manifest

    async def download(self, entry: ManifestEntry, folder: Path) -> Path:
        """Download and verify one result file. Raises EnvironmentProblem."""
        path, part = _places(folder, entry)
        if await asyncio.to_thread(is_whole, path, entry):
            return path
        try:
            await asyncio.to_thread(part.parent.mkdir, parents=True, exist_ok=True)
            await self._fetch(entry, part)
            if not await asyncio.to_thread(is_whole, part, entry):
                # The existing part may belong to another run, so restart from the beginning.
                await asyncio.to_thread(part.unlink)
                await self._fetch(entry, part)
                if not await asyncio.to_thread(is_whole, part, entry):
                    part.unlink()
                    raise EnvironmentProblem(f"{entry.name}: received bytes with another SHA-256")
            part.replace(path)
        except OSError as error:
            raise EnvironmentProblem(f"cannot write {path}: {error.strerror or error}") from error
        return path

    async def _fetch(self, entry: ManifestEntry, part: Path) -> None:
        """Append to `part` until it has the size of the file."""
        failures = 0
        while (have := _size(part)) < entry.size:
            try:
                await self._fetch_from(entry, part, have)
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                failures = 0 if _size(part) > have else failures + 1
                if failures >= ATTEMPTS:
                    raise ApiUnavailable(
                        f"{entry.name}: broke off at byte {max(0, have):,} of {entry.size:,}: "
                        f"{_error_text(error)}"
                    ) from error
                await asyncio.sleep(self._retry_s)

    async def _fetch_from(self, entry: ManifestEntry, part: Path, have: int) -> None:
        headers = {"Range": f"bytes={have}-", "If-Range": f'"{entry.sha256}"'} if have > 0 else {}
        url = f"{self._base}/v1/results/{quote(entry.name)}"
        async with self._open().get(url, headers=headers) as response:
            if response.status not in (200, 206):
                raise ApiRefused(
                    f"{entry.name}: {response.status} {one_line(await response.text())}",
                    status=response.status,
                )
            # Status 200 to a range request: the part belongs to another file.
            mode = "ab" if response.status == 206 else "wb"
            with await asyncio.to_thread(part.open, mode) as file:
                async for chunk in response.content.iter_chunked(CHUNK):
                    file.write(chunk)

    async def _call(self, operation: Operation, *, wait_s: float = 0.0) -> bytes:
        path = str(type(operation).__struct_config__.tag)
        if isinstance(operation, GetStatus | GetSummary | GetClock):
            if isinstance(operation, GetStatus) and operation.after is not None:
                path += f"?after={operation.after}&timeout={operation.timeout_s:g}"
            return await self._send("GET", path, wait_s=wait_s)
        return await self._send("POST", path, body=msgspec.json.encode(operation))

    async def _send(
        self, method: str, path: str, *, body: bytes | None = None, wait_s: float = 0.0
    ) -> bytes:
        timeout = aiohttp.ClientTimeout(total=wait_s + RESPONSE_S, sock_connect=RESPONSE_S)
        try:
            async with self._open().request(
                method, f"{self._base}/v1/{path}", data=body, timeout=timeout
            ) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise ApiUnavailable(f"results API at {self._base}: {_error_text(error)}") from error
        if response.status >= 400:
            text = one_line(content[:MESSAGE_BYTES].decode(errors="replace"))
            raise ApiRefused(f"results API: {response.status} {text}", status=response.status)
        return content

    def _open(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use it as an async context manager"
        return self._session


def _inside(folder: Path, entry: ManifestEntry) -> Path:
    """Return the path of a result. A server cannot make a client write outside the folder."""
    check_entry(entry)
    path = (folder / entry.name).resolve()
    if not path.is_relative_to(folder.resolve()):
        # Through a link that already existed.
        raise EnvironmentProblem(f"results API: {entry.name!r} leads out of the results' folder")
    return path


def _check_room(folder: Path, manifest: Manifest) -> None:
    """Raise EnvironmentProblem if the disk lacks room for the remaining files."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    missing = sum(
        entry.size - min(entry.size, max(0, *(_size(path) for path in _places(folder, entry))))
        for entry in manifest.files
    )
    free = shutil.disk_usage(existing).free
    if missing > free:
        raise EnvironmentProblem(
            f"cannot write {folder}: {missing / 2**20:,.1f} MiB of results remain, and "
            f"{free / 2**20:,.1f} MiB are free"
        )


def _places(folder: Path, entry: ManifestEntry) -> tuple[Path, Path]:
    """Return the paths of a result file and of its part."""
    path = _inside(folder, entry)
    return path, path.with_name(path.name + TEMPORARY_SUFFIX)


def _size(path: Path) -> int:
    """Return the size of a file; -1 if it does not exist."""
    return path.stat().st_size if path.exists() else -1


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _error_text(error: BaseException) -> str:
    return one_line(str(error)) or (
        "no response in time" if isinstance(error, TimeoutError) else "broke off"
    )
