"""`aiperf-svc export`."""

import argparse
from pathlib import Path

from aiperf_svc.cli.options import add_junit_flag
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode

DESCRIPTION = """Write the records or the results of a finished run in another format.

--junit writes checks and objectives as test cases; FOLDER may also be that of an experiment.

--jsonl writes a line per request, as profile_export.jsonl contains them for the first
artifacts.jsonl_limit requests, but without the list of gaps between chunks and the name of the
record processor, which are not in records.parquet."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run and the format."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="Artifact folder of the run.")
    formats = parser.add_mutually_exclusive_group(required=True)
    formats.add_argument("--jsonl", action="store_true", help="One line per request.")
    add_junit_flag(formats)
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="File for --jsonl. Default: profile_export_all.jsonl in the folder.",
    )


def run(args: argparse.Namespace) -> int:
    """Write the file and print its path."""
    if args.junit is not None:
        return _write_junit(args.folder, args.junit)
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


def _write_junit(folder: Path, output: Path) -> int:
    from aiperf_svc.adapters.storage.junit_file import cases_of, write_cases

    cases = list(cases_of(folder))
    if not cases:
        raise ConfigError(f"{folder}: no results of a run, an experiment or a qualification")
    write_cases(output, cases, ExitCode.OK, "")
    print(f"{output}: {len(cases):,} test cases")
    return 0
