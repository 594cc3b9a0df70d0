"""`aiperf-svc upload`."""

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path

from aiperf_svc.cli.flags import FLAGS
from aiperf_svc.cli.options import add_flags
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem

DESCRIPTION = """Upload the results of a finished run to a bucket of an S3-compatible store.

A run or experiment whose config names a bucket does this itself. Use this command after a failed
upload, or for a run without a bucket in its config. Files that the bucket already has, with the
same SHA-256, are not sent again. Keys come from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and
AWS_SESSION_TOKEN."""

_FLAGS = tuple(flag for flag in FLAGS if flag.key.startswith("artifacts.s3."))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run and the bucket."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="Artifact folder of the run.")
    add_flags(parser, "instead of the values in the config of the run", _FLAGS)


def run(args: argparse.Namespace) -> int:
    """Upload the missing files and print their address."""
    from aiperf_svc.adapters.exports.manifest import is_whole, read_manifest
    from aiperf_svc.adapters.storage import uploads
    from aiperf_svc.cli.flag_config import read_draft_of_run

    folder: Path = args.folder
    manifest = read_manifest(folder)
    config = read_draft_of_run(args, folder, flags=_FLAGS).parse()
    if config.artifacts.s3 is None:
        raise ConfigError("the config of the run names no bucket; add --s3-url s3://bucket/prefix")
    for entry in manifest.files:
        if not is_whole(folder / entry.name, entry):
            text = "missing, or changed since the manifest was written"
            raise EnvironmentProblem(f"{folder / entry.name}: {text}")
    if config.experiment is not None:
        into = uploads.folder_of_experiment(folder, config.experiment)
    else:
        into = uploads.folder_of(config.name, manifest.run_id, _started_wall_ns(folder))
    done = uploads.upload(folder, manifest, config.artifacts.s3, into=into)
    print(f"{done.url}/: {len(done.sent)} files sent, {len(done.kept)} already there")
    return 0


def _started_wall_ns(folder: Path) -> int:
    path = folder / "profile_export_aiperf.json"
    text = json.loads(path.read_bytes())["start_time"]
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * 10**9
