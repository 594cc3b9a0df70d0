"""`export`, `upload`, `track` and `view`: work with the folders of finished runs."""

import argparse
import asyncio
import json
import os
import secrets
import sys
import webbrowser
from contextlib import ExitStack, suppress
from functools import partial
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from aiperf_svc.adapters.comparison.run_folders import RECORDS, find_runs
from aiperf_svc.adapters.exports import agentx_row, inferencex_row, jsonl_export, llmd_report
from aiperf_svc.adapters.exports.manifest import is_whole, read_manifest
from aiperf_svc.adapters.exports.parquet_export import check_records, read_clocks, read_records
from aiperf_svc.adapters.exports.result_files import FILES, find_results, read_run
from aiperf_svc.adapters.storage import uploads
from aiperf_svc.adapters.storage.artifacts import write_manifest
from aiperf_svc.adapters.storage.atomic_files import write_atomically, write_file
from aiperf_svc.adapters.storage.junit_file import cases_of, write_cases
from aiperf_svc.adapters.storage.provenance_file import read_provenance
from aiperf_svc.adapters.trackers.sending import problems, send
from aiperf_svc.adapters.viewer.server import Viewer
from aiperf_svc.cli.flag_config import read_draft_of_run
from aiperf_svc.cli.parsers.finished_runs import TRACK_FLAGS, UPLOAD_FLAGS
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.server_setup import read_facts, setup_of
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.number_text import count
from aiperf_svc.plan.run_values import RunValues


def export(args: argparse.Namespace) -> int:
    """Write the file and print its path."""
    if args.junit is not None:
        return _write_junit(args.folder, args.junit)
    if args.llm_d or args.inferencex:
        return _write_for_others(args)
    if args.fact:
        raise ConfigError("--fact needs --llm-d or --inferencex")
    folder: Path = args.folder
    manifest = read_manifest(folder)
    records = folder / "records.parquet"
    check_records(records)
    output: Path = args.output or folder / jsonl_export.NAME
    counts: list[int] = []
    write_atomically(output, lambda part: counts.append(jsonl_export.write_lines(records, part)))
    if output.resolve().parent == folder.resolve():
        write_manifest(folder, manifest.run_id)
    print(f"{output}: {count(counts[0], 'request')}")
    return 0


def _write_junit(folder: Path, output: Path) -> int:
    cases = list(cases_of(folder))
    if not cases:
        raise ConfigError(f"{folder}: no results of a run, an experiment or a qualification")
    write_cases(output, cases, ExitCode.OK, "")
    print(f"{output}: {count(len(cases), 'test case')}")
    return 0


def _write_for_others(args: argparse.Namespace) -> int:
    """Write each run in the format of another benchmark."""
    facts = read_facts(args.fact)
    folders = find_runs([args.folder])
    if args.output is not None and len(folders) > 1:
        raise ConfigError(f"--output: {args.folder} has {len(folders)} runs; expected one")
    for folder in folders:
        path = find_results(folder)
        result = read_run(path) if path is not None else None
        if not isinstance(result, InferenceResult):
            raise ConfigError(f"{folder}: expected a run of an inference benchmark")
        provenance = read_provenance(folder)
        setup = setup_of(provenance, facts, gpus=result.value("gpu_count"))
        needed: tuple[str, ...] = ()
        if args.llm_d:
            content, name = llmd_report.report_of(result, provenance, setup), llmd_report.NAME
        elif agentx_row.is_agentic(result):
            check_records(folder / RECORDS)
            columns, clocks = read_records(folder / RECORDS), read_clocks(folder / RECORDS)
            content = agentx_row.agentx_row_of(result, setup, columns, ClockMap(clocks))
            name = agentx_row.NAME
            needed = agentx_row.NEEDED
        else:
            content, name = inferencex_row.row_of(result, setup), inferencex_row.NAME
            needed = inferencex_row.NEEDED
        unknown = [key for key in needed if key not in content]
        output: Path = args.output or folder / name
        encoded = json.dumps(content, indent=1, allow_nan=False).encode() + b"\n"
        write_file(output, partial(bytes, encoded))
        print(f"{output}" + (f": unknown: {', '.join(unknown)}" if unknown else ""))
    return 0


def upload(args: argparse.Namespace) -> int:
    """Upload the missing files and print their URL."""
    folder: Path = args.folder
    manifest = read_manifest(folder)
    config = read_draft_of_run(args, folder, flags=UPLOAD_FLAGS).parse()
    if config.artifacts.s3 is None:
        raise ConfigError("the config of the run names no bucket; add --s3-url s3://bucket/prefix")
    for entry in manifest.files:
        if not is_whole(folder / entry.name, entry):
            text = "missing, or changed since the manifest was written"
            raise EnvironmentProblem(f"{folder / entry.name}: {text}")
    if config.experiment is not None:
        into = uploads.folder_of_experiment(folder, config.experiment)
    elif (path := find_results(folder)) is not None:
        own = uploads.folder_of(config.name, manifest.run_id, read_run(path).start_wall_ns)
        into = RunValues(member=uploads.member_of(folder)).bucket_folder(own)
    else:
        raise ConfigError(f"{folder}: no run; expected {' or '.join(FILES)} in it")
    done = uploads.upload(folder, manifest, config.artifacts.s3, into=into)
    print(f"{done.url}/: {count(len(done.sent), 'file')} sent, {len(done.kept)} already there")
    return 0


def track(args: argparse.Namespace) -> int:
    """Send the run and print its location."""
    artifacts = read_draft_of_run(args, args.folder, flags=TRACK_FLAGS).parse().artifacts
    if artifacts.mlflow is None and artifacts.wandb is None:
        raise ConfigError(
            "the config of the run names no tracker; add --mlflow-tracking-uri URI or "
            "--wandb-project NAME"
        )
    for key, text in problems(artifacts, os.environ):
        raise ConfigError(f"{key}: {text}")
    print("\n".join(send(args.folder, artifacts)))
    return 0


def view(args: argparse.Namespace) -> int:
    """Serve the pages until Ctrl-C."""
    if not args.folder.is_dir():
        raise ConfigError(f"{args.folder}: no such folder")
    with ExitStack() as files:

        def ready(url: str) -> None:
            print(url, flush=True)
            print("Press Ctrl-C to stop.", file=sys.stderr)
            if not args.no_browser:
                _open(url, Path(files.enter_context(_folder_of_browsers())))

        try:
            asyncio.run(Viewer(args.folder, secrets.token_urlsafe(24)).serve(args.port, ready))
        except KeyboardInterrupt:  # also raised on SIGTERM, see `__main__`
            print(file=sys.stderr)
    return 0


def _folder_of_browsers() -> TemporaryDirectory[str]:
    """Create a folder that only this user can read, and also a browser in a snap: such a browser
    has its own /tmp and cannot read hidden folders in the home folder."""
    with suppress(OSError, RuntimeError):
        return TemporaryDirectory(prefix="aiperf-view-", dir=Path.home())
    return TemporaryDirectory(prefix="aiperf-view-")


def _open(url: str, private: Path) -> None:
    """Open a URL through a file that only this user can read: other users can see the arguments of
    the browser's process."""
    page = private / "open.html"
    page.touch(mode=0o600)
    page.write_text(
        f"<!doctype html><title>aiperf-svc</title><script>location.replace({json.dumps(url)})"
        f'</script><a href="{escape(url)}">Runs</a>'
    )
    if not webbrowser.open(page.as_uri()):
        print("no browser was found: open the address in one", file=sys.stderr)
