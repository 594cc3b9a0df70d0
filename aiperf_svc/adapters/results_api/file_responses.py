"""Sends one file over HTTP, with ranges for resuming, and the content's hash as entity tag.

A file's size and hash are those of the manifest. A log that has grown since is sent up to the size
in the manifest, so that the received content always has the stated hash.
"""

import asyncio
import logging
from pathlib import Path
from typing import BinaryIO

from aiohttp import web

log = logging.getLogger(__name__)

CHUNK = 1024 * 1024
_PACKED = (".parquet", ".gz", ".zst")
"""Suffixes of files that are compressed already."""
_TYPES = {
    ".json": "application/json",
    ".jsonl": "application/x-ndjson",
    ".csv": "text/csv",
    ".html": "text/html",
    ".yaml": "application/yaml",
    ".log": "text/plain",
}


async def send_file(
    request: web.Request, path: Path, *, size: int, sha256: str
) -> web.StreamResponse:
    """Respond to `request` with the first `size` bytes of `path`, or the requested range of
    them."""
    etag = f'"{sha256}"'
    wants_gzip = "gzip" in request.headers.get("Accept-Encoding", "").lower()
    use_gzip = wants_gzip and "Range" not in request.headers and path.suffix not in _PACKED
    headers = {
        # Compressed bytes are another representation and need a tag of their own (RFC 9110 8.8.3).
        "ETag": f'"{sha256}-gzip"' if use_gzip else etag,
        "Accept-Ranges": "bytes",
        "Content-Type": _TYPES.get(path.suffix, "application/octet-stream"),
        "Vary": "Accept-Encoding",
        "X-Content-Type-Options": "nosniff",
        "X-Content-Sha256": sha256,
    }
    if request.headers.get("If-None-Match") in (headers["ETag"], "*"):
        return web.Response(status=304, headers=headers)
    first, last = _wanted(request, size, etag, headers)
    is_part = (first, last) != (0, size - 1)
    if is_part:
        headers["Content-Range"] = f"bytes {first}-{last}/{size}"
    response = web.StreamResponse(status=206 if is_part else 200, headers=headers)
    try:
        file = await asyncio.to_thread(path.open, "rb")
    except OSError as error:
        raise web.HTTPNotFound(text=f"{path.name}: {error.strerror}\n") from error
    with file:
        if use_gzip:
            response.enable_compression(web.ContentCoding.gzip)
        else:
            response.content_length = last + 1 - first
        file.seek(first)
        try:
            await response.prepare(request)
            await _copy(file, response, last + 1 - first)
        except ConnectionError:
            log.info("%s: the client left before its end", path.name)
    return response


async def _copy(file: BinaryIO, response: web.StreamResponse, size: int) -> None:
    left = size
    while left > 0:
        chunk = await asyncio.to_thread(file.read, min(CHUNK, left))
        if not chunk:
            # A cut response tells the client; one that looks whole would lie.
            raise EOFError("the file is shorter than its manifest says")
        left -= len(chunk)
        await response.write(chunk)
    await response.write_eof()


def _wanted(request: web.Request, size: int, etag: str, headers: dict[str, str]) -> tuple[int, int]:
    """Return the first and last byte to send. Raises HTTPRequestRangeNotSatisfiable."""
    whole = (0, size - 1)
    text = request.headers.get("Range", "")
    condition = request.headers.get("If-Range")
    if not text.startswith("bytes=") or "," in text or condition not in (None, etag):
        return whole
    begin, dash, end = text.removeprefix("bytes=").strip().partition("-")
    if not dash or not (begin or end) or not (begin + end).isdecimal():
        return whole
    if begin:
        first, last = int(begin), min(int(end), size - 1) if end else size - 1
    else:
        first, last = max(0, size - int(end)), size - 1
    if first >= size or first > last:
        raise web.HTTPRequestRangeNotSatisfiable(
            headers={"Content-Range": f"bytes */{size}", "ETag": headers["ETag"]}
        )
    return first, last
