"""Public datasets: downloaded once, resumed after a broken connection, kept in the cache folder.

A note next to each finished file has its URL, size and SHA-256. A note next to each unfinished
file (`.part`) records the validator (ETag or Last-Modified) of its version, so two versions are
never joined: with `If-Range` the server sends the whole file if it has changed. A file with an
unexpected SHA-256 is refused. A lock file keeps two processes from writing the same part.
"""

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import msgspec

from aiperf_svc.config.units import format_size
from aiperf_svc.domain.errors import ConfigError, DatasetError, EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line

SHAREGPT_URL = (
    "https://huggingface.co/datasets/anon8231489123/ShareGPT_Vicuna_unfiltered/resolve/"
    "192ab2185289094fc556ec8ce5ce1e8e587154ca/ShareGPT_V3_unfiltered_cleaned_split.json"
)
"""URL with a commit, so the file does not change with the branch."""
SHAREGPT_SHA256 = "35f0e213ce091ed9b9af2a1f0755e9d39f9ccec34ab281cd4ca60d70f6479ba4"

MAX_FRUITLESS_ATTEMPTS = 5
"""Number of consecutive attempts without a new byte after which the download fails."""
MAX_ATTEMPTS = 50
"""Maximum number of attempts, for a server that cuts every connection after a few bytes."""
_RETRY_DELAY_S = 1.0
_LOCK_POLL_S = 0.2
_CHUNK_BYTES = 256 * 1024
_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=60)

Progress = Callable[[int, int], None]
"""Function that is called with the number of bytes received and in total (0: unknown)."""


class Downloaded(msgspec.Struct, frozen=True):
    """A finished file in the cache, and its note on disk."""

    url: str
    file: str
    bytes: int
    sha256: str


class _Part(msgspec.Struct, frozen=True):
    """Note of an unfinished file."""

    url: str
    validator: str


class _Retry(Exception):
    """Raised when an attempt failed and another one may succeed."""


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "aiperf-svc" / "datasets"


async def download(
    url: str,
    *,
    folder: Path,
    max_bytes: int,
    sha256: str | None = None,
    progress: Progress = lambda have, total: None,
    retry_delay_s: float = _RETRY_DELAY_S,
) -> Downloaded:
    """Return the file behind `url`, from `folder` if it is already there.

    Raises DatasetError if it exceeds `max_bytes` or does not match `sha256` (then nothing is kept),
    and EnvironmentProblem if the server refuses it or cannot be reached (then the received bytes
    are kept for the next attempt).
    """
    paths = _Paths(folder, url)
    try:
        await asyncio.to_thread(folder.mkdir, parents=True, exist_ok=True)
        async with _locked(paths.lock):
            found = paths.finished()
            if found is not None and sha256 in (None, found.sha256):
                return found
            await _fetch(url, paths, max_bytes, progress, retry_delay_s)
            return await asyncio.to_thread(paths.finish, sha256)
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot keep the dataset in {folder}: {error.strerror or error}; set XDG_CACHE_HOME "
            "to a folder with room that can be written"
        ) from error


class _Paths:
    """The files of one URL in the cache, and the content of their notes."""

    def __init__(self, folder: Path, url: str) -> None:
        name = Path(urlsplit(url).path).name or "dataset"
        stem = f"{hashlib.sha256(url.encode()).hexdigest()[:12]}-{name}"
        self.url = url
        self.file = folder / stem
        self.note = folder / f"{stem}.note.json"
        self.part = folder / f"{stem}.part"
        self.part_note = folder / f"{stem}.part.note.json"
        self.lock = folder / f"{stem}.lock"

    def finished(self) -> Downloaded | None:
        """Return the cached file, unless its size differs from its note."""
        try:
            note = msgspec.json.decode(self.note.read_bytes(), type=Downloaded)
            return note if self.file.stat().st_size == note.bytes else None
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def resumable(self) -> tuple[int, str]:
        """Return the size of the part and the validator of its version; zero and empty if the
        version is unknown."""
        try:
            note = msgspec.json.decode(self.part_note.read_bytes(), type=_Part)
            return self.part.stat().st_size, note.validator
        except (FileNotFoundError, msgspec.DecodeError):
            return 0, ""

    def begin(self, validator: str) -> None:
        """Empty the part. It can be resumed only if its version has a validator."""
        self.part_note.unlink(missing_ok=True)
        self.part.write_bytes(b"")
        if validator:
            self.part_note.write_bytes(msgspec.json.encode(_Part(self.url, validator)))

    def discard(self) -> None:
        self.part_note.unlink(missing_ok=True)
        self.part.unlink(missing_ok=True)

    def finish(self, sha256: str | None) -> Downloaded:
        """Turn the part into the file. A crash in between leaves one complete copy."""
        with self.part.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            os.fsync(stream.fileno())
        if sha256 not in (None, digest):
            self.discard()
            raise DatasetError(
                f"dataset.url: {self.url} has the SHA-256 {digest}; expected {sha256}: it is "
                "another file; set dataset.url to the address of the right one, or dataset.sha256 "
                "to accept this one"
            )
        note = Downloaded(self.url, str(self.file), self.part.stat().st_size, digest)
        self.part.replace(self.file)
        self.part_note.unlink(missing_ok=True)
        unfinished = self.note.with_suffix(".new")
        unfinished.write_bytes(msgspec.json.encode(note))
        unfinished.replace(self.note)
        return note


@asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(_LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)


async def _fetch(
    url: str, paths: _Paths, max_bytes: int, progress: Progress, retry_delay_s: float
) -> None:
    """Download the part over as many connections as needed."""
    fruitless = 0
    # Proxies of the environment apply, as in other download tools.
    async with aiohttp.ClientSession(timeout=_TIMEOUT, trust_env=True) as session:
        for _ in range(MAX_ATTEMPTS):
            before = paths.resumable()
            try:
                await _attempt(session, url, paths, max_bytes, progress)
                return
            except aiohttp.InvalidURL as error:
                raise ConfigError(
                    f"dataset.url: {url!r} is not an address; expected http:// or https://"
                ) from error
            except (_Retry, aiohttp.ClientError, TimeoutError) as error:
                fruitless = fruitless + 1 if paths.resumable() == before else 0
                reason = one_line(str(error)) or type(error).__name__
            if fruitless == MAX_FRUITLESS_ATTEMPTS:
                break
            await asyncio.sleep(retry_delay_s)
    raise EnvironmentProblem(
        f"dataset.url: {url} could not be downloaded: {reason}; received data is kept, and the "
        "next run continues from there; or give a local copy as dataset.file"
    )


async def _attempt(
    session: aiohttp.ClientSession, url: str, paths: _Paths, max_bytes: int, progress: Progress
) -> None:
    """Send one request for the whole file or the rest. Returns when the part is complete."""
    have, validator = paths.resumable()
    # With content encoding, ranges would count other bytes than those on disk.
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": validator}
    async with session.get(url, headers=headers) as response:
        if response.status == 416:
            paths.discard()
            raise _Retry("the server has no such range")
        if response.status >= 500 or response.status == 429:
            raise _Retry(f"status {response.status}")
        if response.status not in (200, 206):
            raise EnvironmentProblem(
                f"dataset.url: {url} responds with status {response.status}; check the address, or "
                "give a local copy as dataset.file"
            )
        if response.status == 200:
            have = 0
            paths.begin(_validator(response))
        elif not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            paths.discard()
            raise _Retry("the server sent another range than requested")
        length = response.content_length
        total = have + length if length is not None else 0
        _check_size(max(total, have), paths, max_bytes)
        with paths.part.open("ab") as part:
            async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
                have += len(chunk)
                _check_size(have, paths, max_bytes)
                part.write(chunk)
                progress(have, total)
        if total and have != total:
            raise _Retry(f"{have:,} of {total:,} bytes arrived")


def _validator(response: aiohttp.ClientResponse) -> str:
    """Return the value for `If-Range`: a strong ETag, else the date, else empty."""
    etag = response.headers.get("ETag", "")
    if etag and not etag.startswith("W/"):
        return etag
    return response.headers.get("Last-Modified", "")


def _check_size(size: int, paths: _Paths, max_bytes: int) -> None:
    if size > max_bytes:
        paths.discard()
        raise DatasetError(
            f"dataset.url: {paths.url} is over the limit of {format_size(max_bytes)} "
            f"({size:,} bytes and maybe more); raise dataset.max_download"
        )
