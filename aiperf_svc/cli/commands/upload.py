"""`aiperf-svc upload`."""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

from aiperf_svc.cli.flags import FLAGS
from aiperf_svc.cli.runs import add_flags
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem

DESCRIPTION = """Send the results of a finished run to a bucket of an S3-compatible store.

A run or an experiment whose config names a bucket does this itself; this is for one whose upload
failed, and for others. What the bucket has already, with the same SHA-256, is not sent again. The
keys are read from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN."""

_FLAGS = tuple(flag for flag in FLAGS if flag.key.startswith("artifacts.s3."))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and where to."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="artifact folder of the run")
    add_flags(parser, "instead of what the run's config says", _FLAGS)


def run(args: argparse.Namespace) -> int:
    """Send what is not there yet, and say where it is."""
    from aiperf_svc.adapters.exports.manifest import is_whole, read_manifest
    from aiperf_svc.adapters.storage import uploads
    from aiperf_svc.cli.flag_config import read_draft_of_run

    folder: Path = args.folder
    manifest = read_manifest(folder)
    config = read_draft_of_run(args, folder, flags=_FLAGS).parse()
    if config.artifacts.s3 is None:
        raise ConfigError("the run's config names no bucket: --s3-url s3://bucket/prefix")
    for entry in manifest.files:
        if not is_whole(folder / entry.name, entry):
            text = "missing, or not the file that the manifest lists"
            raise EnvironmentProblem(f"{folder / entry.name}: {text}")
    if config.experiment is not None:
        into = uploads.folder_of_experiment(folder, config.experiment)
    else:
        into = uploads.folder_of(config.name, manifest.run_id, _started_wall_ns(folder))
    done = uploads.upload(folder, manifest, config.artifacts.s3, into=into)
    print(f"{done.url}/: {len(done.sent)} files sent, {len(done.kept)} there already")
    return 0


def _started_wall_ns(folder: Path) -> int:
    path = folder / "profile_export_aiperf.json"
    text = json.loads(path.read_bytes())["start_time"]
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 10**9
