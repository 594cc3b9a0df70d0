"""`aiperf-svc export`."""

import argparse
from pathlib import Path

DESCRIPTION = """Write the records of a finished run in another format.

--jsonl writes a line per request, as profile_export.jsonl contains them for the first
artifacts.jsonl_limit requests, but without the list of gaps between chunks and the name of the
record processor, which are not in records.parquet."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run and the format."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="Artifact folder of the run.")
    parser.add_argument("--jsonl", action="store_true", required=True, help="One line per request.")
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="File to write. Default: profile_export_all.jsonl in the folder.",
    )


def run(args: argparse.Namespace) -> int:
    """Write the file and print its path."""
    from aiperf_svc.adapters.exports import jsonl_export
    from aiperf_svc.adapters.exports.manifest import check_listed, read_manifest
    from aiperf_svc.adapters.storage.artifacts import write_manifest
    from aiperf_svc.adapters.storage.atomic_files import write_atomically

    folder: Path = args.folder
    manifest = read_manifest(folder)
    records = folder / "records.parquet"
    check_listed(records)
    output: Path = args.output or folder / jsonl_export.NAME
    counts: list[int] = []
    write_atomically(output, lambda part: counts.append(jsonl_export.write_lines(records, part)))
    if output.resolve().parent == folder.resolve():
        write_manifest(folder, manifest.run_id)
    print(f"{output}: {counts[0]:,} requests")
    return 0
