"""Uploads results to a bucket of an S3-compatible store.

A run's files have one prefix and the same names as in the artifact folder. Each object's metadata
has the file's SHA-256. The manifest is sent last, so a prefix with a manifest is complete. A
repeated upload removes the manifest first and sends only missing files. The library is optional: a
run without an upload does not import it.
"""

import functools
import hashlib
import logging
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from aiperf_svc.adapters.exports.file_content import json_file
from aiperf_svc.adapters.exports.manifest import NAME as MANIFEST
from aiperf_svc.adapters.exports.manifest import Manifest, ManifestEntry
from aiperf_svc.config.artifacts import S3
from aiperf_svc.config.experiment import Experiment
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.process_environment import without_working_folder
from aiperf_svc.plan.run_values import RunValues

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Store

log = logging.getLogger(__name__)

KEY_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
"""Environment variables that an upload needs."""
TOKEN_VARIABLE = "AWS_SESSION_TOKEN"
"""Environment variable with the session token of temporary keys."""
LIBRARY = "obstore"
INSTALL = "pip install 'aiperf-svc[s3]'"

HASH_KEY = "sha256"
"""Key of the hash in an object's metadata."""
UPLOAD_S = 600.0
"""Timeout of a whole upload: the finished results wait for it."""
_TOO_LONG = "since the time for an upload has expired; `aiperf-svc upload` sends the missing files"
ATTEMPT_S = timedelta(seconds=120)
"""Timeout of one request, which is a part at 1 Mbit/s."""
CONNECT_S = timedelta(seconds=10)
RETRIES, CHECK_RETRIES = 4, 1
RETRY_S = timedelta(seconds=60)
PART = 16 * 2**20
"""Size of a part of a large file in bytes. A store accepts 10,000 parts per file, 156 GiB."""
PARTS_AT_ONCE = 4
FILES_AT_ONCE = 4

MAY_NOT_LIST = "AccessDenied"
"""Error code of a store that knows the keys but denies access."""

_LIST = """
import pickle, sys
import obstore
from obstore.store import S3Store
store = S3Store(**pickle.load(sys.stdin.buffer))
try:
    next(iter(obstore.list(store, chunk_size=1)), None)
except (FileNotFoundError, obstore.exceptions.BaseError) as error:
    print(error)
"""
"""Lists one object of a bucket, and prints the error if that fails."""

_REFUSAL = re.compile(r"<Code>(?P<code>[^<]*)</Code>(\s*<Message>(?P<message>[^<]*)</Message>)?")


@dataclass(frozen=True)
class Uploaded:
    url: str
    """URL of the files: `s3://bucket/prefix/run`."""
    sent: tuple[str, ...]
    kept: tuple[str, ...]
    """Files that already existed with the same SHA-256."""


def has_library() -> bool:
    """Return whether the optional library is installed."""
    return find_spec(LIBRARY) is not None


def missing_keys(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the variables that an upload needs and that are unset."""
    return tuple(name for name in KEY_VARIABLES if not environ.get(name))


_DATED = re.compile(r"-\d{8}T\d{6}Z")


def folder_of(name: str, run_id: str, started_wall_ns: int) -> str:
    """Return a run's part of the keys: unique to the run, and sorted by time."""
    stamp = datetime.fromtimestamp(started_wall_ns // 10**9, UTC)
    return f"{name}-{stamp:%Y%m%dT%H%M%SZ}-{run_id}"


def member_of(folder: Path) -> str:
    """Return the target or cluster whose results are in a folder below a dated folder; empty if
    there is only one."""
    path = folder.resolve()
    is_below = _DATED.search(path.parent.name) and not _DATED.search(path.name)
    return path.name if is_below else ""


def folder_of_experiment(folder: Path, experiment: Experiment) -> str:
    """Return an experiment's part of the keys. Several runs upload its trials, and the part stays
    the same as long as the folder's name does."""
    path, member = folder.resolve(), member_of(folder)
    name = path.name
    if not _DATED.search(name):
        name = path.parent.name if member else f"{path.parent.name}-{name}"
    digest = hashlib.sha256(experiment.model_dump_json().encode()).hexdigest()
    return RunValues(member=member).bucket_folder(f"{name}-{digest[:16]}")


def upload(
    folder: Path,
    manifest: Manifest,
    s3: S3,
    *,
    into: str,
    environ: Mapping[str, str] = os.environ,
    limit_s: float = UPLOAD_S,
) -> Uploaded:
    """Upload every file of the manifest, and the manifest, to `<s3.url>/<into>/`.

    Raises EnvironmentProblem with the missing files, never with a key in its message. Files sent
    before stay, and a second call continues from there.
    """
    url = "/".join(part for part in (f"s3://{s3.bucket}", s3.prefix, into) if part)
    try:
        store = open_store(s3, into, environ)
        until_mono_s = monotonic() + limit_s
        find = partial(_is_there, store, until_mono_s=until_mono_s)
        send = partial(_send, store, folder, until_mono_s=until_mono_s)
        with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="upload") as pool:
            found = list(zip(manifest.files, pool.map(find, manifest.files), strict=True))
            missing = [entry for entry, is_there in found if not is_there]
            if missing:
                _remove_manifest(store)
            list(pool.map(send, missing))
        _put(store, MANIFEST, json_file(manifest), "")
    except EnvironmentProblem as error:
        at = f"{url}{s3.at_endpoint}"
        raise EnvironmentProblem(f"cannot upload the results to {at}: {error}") from error
    log.info("results uploaded to %s: %d files", url, len(manifest.files))
    return Uploaded(
        url,
        sent=tuple(entry.name for entry in missing),
        kept=tuple(entry.name for entry, is_there in found if is_there),
    )


def bucket_problem(s3: S3, environ: Mapping[str, str]) -> str:
    """Return the reason why results cannot be uploaded to a bucket with the keys of the environment
    (no response, no such bucket, unknown keys); empty if no problem is found. The check lists one
    object: write-only keys may not do that and can still upload."""
    names = (*KEY_VARIABLES, TOKEN_VARIABLE)
    return _listing_problem(s3, tuple((name, environ.get(name, "")) for name in names))


@functools.cache
def _listing_problem(s3: S3, keys: tuple[tuple[str, str], ...]) -> str:
    options = _store_options(s3, "", dict(keys), retries=CHECK_RETRIES)
    # In a child process, because the library's threads would not survive the forks of a run.
    listing = subprocess.run(
        [sys.executable, "-P", "-c", _LIST],
        env=without_working_folder(os.environ),
        input=pickle.dumps(options),
        stdout=subprocess.PIPE,
        check=True,
    )
    text = reason(listing.stdout.decode()) if listing.stdout else ""
    return "" if text.startswith(MAY_NOT_LIST) else text


def open_store(s3: S3, into: str, environ: Mapping[str, str]) -> "S3Store":
    """Open a bucket at the prefix of `s3` and `into`. Raises EnvironmentProblem without keys."""
    if not has_library():
        raise EnvironmentProblem(f"the package {LIBRARY!r} is not installed: {INSTALL}")
    if missing := missing_keys(environ):
        raise EnvironmentProblem(f"{' and '.join(missing)} not set in the environment")

    from obstore.store import S3Store

    return S3Store(**_store_options(s3, into, environ, retries=RETRIES))


def _store_options(
    s3: S3, into: str, environ: Mapping[str, str], *, retries: int
) -> dict[str, Any]:
    config: S3Config = {
        "region": s3.region,
        "access_key_id": environ[KEY_VARIABLES[0]],
        "secret_access_key": environ[KEY_VARIABLES[1]],
        "virtual_hosted_style_request": False,
    }
    if s3.endpoint_url:
        config["endpoint"] = s3.endpoint_url.rstrip("/")
    if token := environ.get(TOKEN_VARIABLE):
        config["session_token"] = token
    return {
        "bucket": s3.bucket,
        "prefix": "/".join(part for part in (s3.prefix, into) if part),
        "config": config,
        "client_options": {
            "allow_http": bool(s3.endpoint_url and s3.endpoint_url.startswith("http://")),
            "timeout": ATTEMPT_S,
            "connect_timeout": CONNECT_S,
        },
        "retry_config": {"max_retries": retries, "retry_timeout": RETRY_S},
    }


def _send(store: "S3Store", folder: Path, entry: ManifestEntry, *, until_mono_s: float) -> None:
    _check_time(entry, until_mono_s)
    path = folder / entry.name
    try:
        if entry.size <= PART:
            with path.open("rb") as file:
                _put(store, entry.name, file.read(entry.size), entry.sha256)
        else:
            _put(store, entry.name, _parts(path, entry, until_mono_s), entry.sha256)
    except OSError as error:
        raise EnvironmentProblem(f"{entry.name}: cannot read it: {error.strerror}") from error


def _check_time(entry: ManifestEntry, until_mono_s: float) -> None:
    if monotonic() > until_mono_s:
        raise EnvironmentProblem(f"{entry.name}: not sent, {_TOO_LONG}")


def _remove_manifest(store: "S3Store") -> None:
    """Remove the manifest of an earlier upload whose files are about to change."""
    import obstore

    try:
        obstore.delete(store, MANIFEST)
    except FileNotFoundError:
        pass
    except obstore.exceptions.BaseError as error:
        # A write-only key can still upload.
        log.info("%s: cannot be removed: %s", MANIFEST, reason(error))


def _is_there(store: "S3Store", entry: ManifestEntry, *, until_mono_s: float) -> bool:
    import obstore

    _check_time(entry, until_mono_s)
    try:
        found = obstore.get(store, entry.name, options={"head": True})
    except FileNotFoundError:
        return False
    except obstore.exceptions.BaseError as error:
        # A write-only key can still upload. Other problems appear when writing.
        log.info("%s: cannot see whether it is there already: %s", entry.name, reason(error))
        return False
    is_same = found.attributes.get(HASH_KEY) == entry.sha256
    return is_same and int(found.meta["size"]) == entry.size


def _put(store: "S3Store", name: str, content: bytes | Iterator[bytes], sha256: str) -> None:
    import obstore

    try:
        obstore.put(
            store,
            name,
            content,
            attributes={HASH_KEY: sha256} if sha256 else None,
            use_multipart=not isinstance(content, bytes),
            chunk_size=PART,
            max_concurrency=PARTS_AT_ONCE,
        )
    except (FileNotFoundError, obstore.exceptions.BaseError) as error:
        # The library raises FileNotFoundError for every 404; here the bucket is missing.
        raise EnvironmentProblem(f"{name}: {reason(error)}") from None


def _parts(path: Path, entry: ManifestEntry, until_mono_s: float) -> Iterator[bytes]:
    """Yield the part of a file that the manifest covers: a log may have grown since then."""
    left = entry.size
    with path.open("rb") as file:
        while left:
            if monotonic() > until_mono_s:
                raise EnvironmentProblem(f"{entry.name}: {left:,} bytes not sent, {_TOO_LONG}")
            chunk = file.read(min(PART, left))
            if not chunk:
                raise EnvironmentProblem(f"{entry.name}: shorter than in the manifest")
            left -= len(chunk)
            yield chunk


def reason(error: Exception | str) -> str:
    """Return the store's error in one line, with only its code and message: other parts of a
    response repeat the request with key and signature."""
    text = str(error)
    if found := _REFUSAL.search(text):
        return one_line(": ".join(part for part in (found["code"], found["message"]) if part))
    if system := re.search(r'kind: (\w+),\s*message: "([^"]*)"', text):
        return one_line(system[2])
    last = text.splitlines()[0].rpartition(" - ")[2] if text else type(error).__name__
    return one_line(last)
