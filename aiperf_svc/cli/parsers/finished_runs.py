"""Arguments of the commands that read the folders of finished runs."""

import argparse
from pathlib import Path

from aiperf_svc.cli.arguments import add_junit_flag, port_number
from aiperf_svc.cli.flags import FLAGS
from aiperf_svc.cli.options import add_flags
from aiperf_svc.core.rules import RULES

TOLERANCE = "5%"


def compare(parser: argparse.ArgumentParser) -> None:
    """Compare finished runs: is the new side better, worse or the same?

      aiperf-svc compare BASE NEW
      aiperf-svc compare BASE BASE BASE --to NEW NEW NEW
      aiperf-svc compare EXPERIMENT --by KEY=BASE,NEW

    A folder is the artifact folder of a run, or contains such folders. Experiments are compared for
    each combination of their parameters, and qualifications node by node. A judgement needs at
    least 3 runs on each side, which should alternate (base, new, base, new, ...). docs/comparing.md
    explains why, and defines the terms."""
    parser.add_argument("folders", metavar="FOLDER", type=Path, nargs="+", help="BASE and NEW.")
    parser.add_argument(
        "--to", metavar="NEW", type=Path, nargs="+", help="The new side, if it has several folders."
    )
    parser.add_argument(
        "--by",
        metavar="KEY[=BASE,NEW]",
        default="",
        help="Compare the trials of one experiment that have these two values of a parameter.",
    )
    parser.add_argument(
        "--paired",
        action="store_true",
        help="With --by, compare within the blocks of an experiment (experiment.blocks), which "
        "removes the drift of the system between blocks.",
    )
    parser.add_argument(
        "--tolerance",
        metavar="SHARE",
        default=TOLERANCE,
        help="Largest difference that counts as the same. Default: 5%%.",
    )
    parser.add_argument(
        "--metric",
        metavar="TAG[:STAT]",
        action="append",
        default=[],
        help="Judge this row, such as time_to_first_token:p99, instead of the default ones. "
        "Repeat for more.",
    )
    parser.add_argument(
        "--all", action="store_true", help="Show all rows. The added rows are not judged."
    )
    parser.add_argument(
        "--fail-on",
        metavar="WORD",
        choices=["worse"],
        help="worse: exit with 7 if a metric is worse, with 8 if a row cannot be judged.",
    )
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--markdown", action="store_true", help="Print Markdown.")
    output.add_argument("--json", action="store_true", help="Print one JSON object.")
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="Also write a page with both distributions."
    )
    add_junit_flag(parser)


def history(parser: argparse.ArgumentParser) -> None:
    """Plot a metric over finished runs in order of time, and mark where it changed.

      aiperf-svc history FOLDER... --metric time_to_first_token:p99

    A folder is the artifact folder of a run, or contains such folders. s3://BUCKET/PREFIX selects
    the runs that were uploaded there; keys, endpoint and region come from AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY, AWS_ENDPOINT_URL and AWS_REGION. docs/comparing.md explains how changes
    are found."""
    parser.add_argument("folders", metavar="FOLDER", nargs="+", help="Runs, or s3://BUCKET/PREFIX.")
    parser.add_argument(
        "--metric",
        metavar="TAG[:STAT]",
        default="",
        help="Metric to plot. Default: the first of the usual ones that the runs have.",
    )
    parser.add_argument(
        "--tolerance",
        metavar="SHARE",
        default=TOLERANCE,
        help="Largest change that is not marked. Default: 5%%.",
    )
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="Also write a page with the plot."
    )
    parser.add_argument(
        "--csv",
        metavar="FILE",
        type=Path,
        help="Also write all metrics, one row per run, for change-point tools.",
    )


def view(parser: argparse.ArgumentParser) -> None:
    """Show the finished runs and experiments below a folder in a browser: search them,
    compare two, and plot throughput against the speed that each user sees.

    The pages are served on 127.0.0.1 only, at an address with a random token. Nothing is written
    and nothing leaves the machine. Press Ctrl-C to stop."""
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        type=Path,
        nargs="?",
        default=Path("artifacts"),
        help="Folder with artifact folders. Default: artifacts.",
    )
    parser.add_argument(
        "--port", metavar="PORT", type=port_number, default=0, help="Port. Default: a free one."
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="Print the address and open no browser."
    )


def verify(parser: argparse.ArgumentParser) -> None:
    """Check finished runs against the rules of a benchmark.

      aiperf-svc verify --rules mlperf-endpoints-1.0 FOLDER
      aiperf-svc verify --rules agentx-2026-08 FOLDER

    FOLDER is that of an experiment over load.concurrency, of a run, or of several runs. Each
    requirement is met, not met, or not checkable here. The exit code is 4 if one is not met.
    docs/agentic.md describes the rules and what an official submission needs in addition."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="Experiment or runs.")
    parser.add_argument("--rules", required=True, choices=RULES, help="Rules to check.")
    parser.add_argument(
        "--max-concurrency",
        metavar="N",
        type=int,
        help="Declared maximum concurrency. Default: that of the highest point.",
    )
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")


def export(parser: argparse.ArgumentParser) -> None:
    """Write the records or the results of a finished run in another format.

    --junit writes checks and objectives as test cases; FOLDER may also be that of an experiment.

    --jsonl writes a line per request, as profile_export.jsonl contains them for the first
    artifacts.jsonl_limit requests, but without the list of gaps between chunks and the name of the
    record processor, which are not in records.parquet.

    --llm-d writes Benchmark Report 0.2.1 of llm-d, and --inferencex a row of InferenceX, or of
    AgentX if the run used an agent trace: a file for each run in FOLDER. --fact adds facts about
    the server that provenance.json lacks. Facts that remain unknown are left out."""
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
        "llm_d_benchmark_report.json, inferencex_row.json or inferencex_agentx_row.json in the "
        "folder of the run.",
    )


UPLOAD_FLAGS = tuple(flag for flag in FLAGS if flag.key.startswith("artifacts.s3."))


def upload(parser: argparse.ArgumentParser) -> None:
    """Upload the results of a finished run to a bucket of an S3-compatible store.

    A run or experiment whose config names a bucket does this itself. Use this command after a
    failed upload, or for a run without a bucket in its config. Files that the bucket already has,
    with the same SHA-256, are not sent again. Keys come from AWS_ACCESS_KEY_ID,
    AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="Artifact folder of the run.")
    add_flags(parser, "instead of the values in the config of the run", UPLOAD_FLAGS)


_TRACKERS = ("artifacts.mlflow.", "artifacts.wandb.")
TRACK_FLAGS = tuple(flag for flag in FLAGS if flag.key.startswith(_TRACKERS))


def track(parser: argparse.ArgumentParser) -> None:
    """Send a finished run, or the trials of an experiment, to MLflow or Weights & Biases.

    A run whose config names a tracker does this itself. Use this command after a failure, or for a
    run without a tracker in its config. trackers.json in the folder of the run records what was
    sent, so that nothing is sent twice. Keys come from the environment: MLFLOW_TRACKING_TOKEN, or
    MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD; WANDB_API_KEY."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="Artifact folder of the run.")
    add_flags(parser, "instead of the values in the config of the run", TRACK_FLAGS)
