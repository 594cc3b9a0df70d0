"""Reads finished runs from a bucket of an S3-compatible store, where `uploads.py` stores them.

    <prefix>/<run>/manifest.json           sent last: without it, the upload is incomplete
    <prefix>/<run>/profile_export_aiperf.json, …
    <prefix>/<experiment>/experiment.json, trials/<trial>/…
    <prefix>/<target or cluster>/<run or experiment>/…          if there are several

Only the small result files are copied. Keys, region and endpoint come from the environment
variables of Amazon's tools.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import msgspec
from pydantic import ValidationError

from aiperf_svc.adapters.exports import experiment_file
from aiperf_svc.adapters.exports.manifest import NAME as MANIFEST
from aiperf_svc.adapters.exports.result_files import FILES
from aiperf_svc.adapters.storage.uploads import FILES_AT_ONCE, open_store, reason
from aiperf_svc.config.artifacts import S3
from aiperf_svc.config.problems import problems_in
from aiperf_svc.core.results import provenance
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem

if TYPE_CHECKING:
    from obstore.store import S3Store

SCHEME = "s3://"
MARKS = (experiment_file.NAME, *FILES)
"""Files that identify the folder of an experiment or a run."""
_VARIABLES = {
    "endpoint_url": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"),
    "region": ("AWS_REGION", "AWS_DEFAULT_REGION"),
}
"""Environment variables with the keys of a bucket; the first one that is set is used."""
WANTED = (*MARKS, MANIFEST, provenance.NAME, "config.yaml", "verdict.json")


class BucketRun(msgspec.Struct, frozen=True):
    url: str
    keys: tuple[str, ...]
    """Its required files, relative to the prefix."""
    is_whole: bool
    """Whether its upload is complete."""

    @property
    def name(self) -> str:
        """The last part of its URL, which starts with the name of the benchmark and the time."""
        return self.url.rpartition("/")[2]

    @property
    def parent(self) -> str:
        """URL of the folder that contains it."""
        return self.url.rpartition("/")[0]


def bucket_of(url: str) -> S3:
    """Return the bucket of a URL, with the endpoint and region from the environment
    (`AWS_ENDPOINT_URL`, `AWS_REGION`). Raises ConfigError."""
    settings, names = {"url": url}, {}
    for key, variables in _VARIABLES.items():
        if name := next(filter(os.environ.get, variables), None):
            settings[key], names[key] = os.environ[name], name
    try:
        return S3.model_validate(settings)
    except ValidationError as error:
        lines = (each.line(names) for each in problems_in(error, settings, S3))
        raise ConfigError("; ".join(each.removeprefix("url: ") for each in lines)) from error


def list_runs(s3: S3) -> list[BucketRun]:
    """List the runs and experiments below the prefix, by name. Raises EnvironmentProblem if the
    bucket cannot be read."""
    store = _opened(s3)
    import obstore

    try:
        keys = [entry["path"] for batch in obstore.list(store) for entry in batch]
    except (FileNotFoundError, obstore.exceptions.BaseError) as error:
        raise _unreadable(s3, reason(error)) from None
    return runs_of(s3.url.rstrip("/"), keys)


def runs_of(url: str, keys: Iterable[str]) -> list[BucketRun]:
    keys = sorted(keys)
    marked = {str(PurePosixPath(key).parent) for key in keys if PurePosixPath(key).name in MARKS}
    found: defaultdict[str, list[str]] = defaultdict(list)
    for key in keys:
        # The trials of an experiment are below its folder.
        above = (str(each) for each in reversed(PurePosixPath(key).parents))
        root = next((each for each in above if each in marked), None)
        if root is not None and PurePosixPath(key).name in WANTED:
            found[root].append(key)
    return [
        BucketRun(
            url=url if root == "." else f"{url}/{root}",
            keys=tuple(own),
            is_whole=(MANIFEST if root == "." else f"{root}/{MANIFEST}") in own,
        )
        for root, own in sorted(found.items())
    ]


def copy_runs(s3: S3, runs: Sequence[BucketRun], into: Path) -> dict[Path, str]:
    """Copy the required files of these runs, and return the URL of each folder created. Raises
    EnvironmentProblem."""
    store = _opened(s3)
    jobs = []
    folders: dict[Path, str] = {}
    for number, run in enumerate(runs):
        root = run.url.removeprefix(s3.url.rstrip("/")).strip("/")
        folder = into / str(number) / run.name
        folders[folder] = run.url
        jobs += [(key, folder / PurePosixPath(key).relative_to(root or ".")) for key in run.keys]
    with ThreadPoolExecutor(FILES_AT_ONCE, thread_name_prefix="copy") as pool:
        list(pool.map(lambda job: _copy(s3, store, *job), jobs))
    return folders


def _opened(s3: S3) -> "S3Store":
    try:
        return open_store(s3, "", os.environ)
    except EnvironmentProblem as error:
        raise _unreadable(s3, str(error)) from error


def _copy(s3: S3, store: "S3Store", key: str, path: Path) -> None:
    import obstore

    try:
        content = bytes(obstore.get(store, key).bytes())
    except (FileNotFoundError, obstore.exceptions.BaseError) as error:
        raise _unreadable(s3, f"{key}: {reason(error)}") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def _unreadable(s3: S3, why: str) -> EnvironmentProblem:
    return EnvironmentProblem(f"cannot read {s3.url}{s3.at_endpoint}: {why}")


@contextmanager
def local_folders(
    sources: Iterable[str], *, say: Callable[[str], None]
) -> Iterator[dict[Path, str]]:
    """Copy the runs of the buckets among the sources, and yield each folder with its name: its URL
    or path. As in a folder, only runs directly below a prefix count: those of a target or cluster
    are in its own folder. Incomplete uploads are left out. Raises ConfigError, or
    EnvironmentProblem if a bucket cannot be read."""
    found: dict[Path, str] = {}
    with TemporaryDirectory(prefix="aiperf-runs-") as scratch:
        for number, source in enumerate(sources):
            if not source.startswith(SCHEME):
                found[Path(source)] = source
                continue
            s3 = bucket_of(source)
            url, whole = s3.url.rstrip("/"), [each for each in list_runs(s3) if each.is_whole]
            if not whole:
                raise ConfigError(f"{source}: no run with a manifest, which an upload sends last")
            runs = [each for each in whole if url in (each.url, each.parent)]
            below = ", ".join(sorted({each.parent for each in whole if each not in runs}))
            if not runs:
                raise ConfigError(
                    f"{source}: no run directly in it; name a folder with runs, such as that of a "
                    f"target or cluster: {below}"
                )
            if below:
                say(f"note: {source}: runs in other folders are left out: {below}")
            found |= copy_runs(s3, runs, Path(scratch, str(number)))
        yield found
