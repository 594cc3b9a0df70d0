"""`aiperf-svc export`."""

import argparse
from pathlib import Path

from aiperf_svc.cli.arguments import add_junit_flag
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode

DESCRIPTION = """Write the records or the results of a finished run in another format.

--junit writes checks and objectives as test cases; FOLDER may also be that of an experiment.

--jsonl writes a line per request, as profile_export.jsonl contains them for the first
artifacts.jsonl_limit requests, but without the list of gaps between chunks and the name of the
record processor, which are not in records.parquet.

--llm-d writes Benchmark Report 0.2.1 of llm-d, --inferencex a row of InferenceX, for each run in
FOLDER. What provenance.json does not have of the server, --fact gives; what is unknown is left
out."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run and the format."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="Artifact folder of the run.")
    formats = parser.add_mutually_exclusive_group(required=True)
    formats.add_argument("--jsonl", action="store_true", help="One line per request.")
    formats.add_argument("--llm-d", action="store_true", help="llm-d Benchmark Report 0.2.1.")
    formats.add_argument("--inferencex", action="store_true", help="Row of InferenceX.")
    parser.add_argument(
        "--fact",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="Fact of the server for --llm-d and --inferencex, such as hw=h200 or tp=8.",
    )
    add_junit_flag(formats)
    parser.add_argument(
        "--output",
        metavar="FILE",
        type=Path,
        help="File for --jsonl, --llm-d and --inferencex. Default: profile_export_all.jsonl, "
        "llm_d_benchmark_report.json or inferencex_row.json in the folder of the run.",
    )


def run(args: argparse.Namespace) -> int:
    """Write the file and print its path."""
    if args.junit is not None:
        return _write_junit(args.folder, args.junit)
    if args.llm_d or args.inferencex:
        return _write_for_others(args)
    if args.fact:
        raise ConfigError("--fact is for --llm-d and --inferencex")
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


def _write_for_others(args: argparse.Namespace) -> int:
    """Write each run in the format of another benchmark."""
    import json
    from functools import partial

    from aiperf_svc.adapters.comparison.run_folders import find_runs
    from aiperf_svc.adapters.exports import inferencex_row, llmd_report
    from aiperf_svc.adapters.exports.result_files import find_results, read_run
    from aiperf_svc.adapters.storage.atomic_files import write_file
    from aiperf_svc.adapters.storage.provenance_file import read_provenance
    from aiperf_svc.core.results.inference_result import InferenceResult
    from aiperf_svc.core.results.server_setup import read_facts, setup_of

    given = read_facts(args.fact)
    folders = find_runs([args.folder])
    if args.output is not None and len(folders) > 1:
        raise ConfigError(f"--output: {args.folder} has {len(folders)} runs; expected one")
    for folder in folders:
        path = find_results(folder)
        result = read_run(path) if path is not None else None
        if not isinstance(result, InferenceResult):
            raise ConfigError(f"{folder}: expected a run of an inference benchmark")
        provenance = read_provenance(folder)
        setup = setup_of(provenance, given, gpus=result.value("gpu_count"))
        unknown: list[str] = []
        if args.llm_d:
            content, name = llmd_report.report_of(result, provenance, setup), llmd_report.NAME
        else:
            content, name = inferencex_row.row_of(result, setup), inferencex_row.NAME
            unknown = inferencex_row.unknown_of(content)
        output: Path = args.output or folder / name
        encoded = json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"
        write_file(output, partial(bytes, encoded))
        print(f"{output}" + (f": unknown: {', '.join(unknown)}" if unknown else ""))
    return 0
