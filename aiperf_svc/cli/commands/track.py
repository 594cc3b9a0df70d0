"""`aiperf-svc track`."""

import argparse
import os
from pathlib import Path

from aiperf_svc.cli.flags import FLAGS
from aiperf_svc.cli.options import add_flags
from aiperf_svc.domain.errors import ConfigError

DESCRIPTION = """Send a finished run, or the trials of an experiment, to MLflow or Weights & Biases.

A run whose config names a tracker does this itself. Use this command after a failure, or for a run
without a tracker in its config. trackers.json in the folder of the run records what was sent, so
that nothing is sent twice. Keys come from the environment: MLFLOW_TRACKING_TOKEN, or
MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD; WANDB_API_KEY."""

_KEYS = ("artifacts.mlflow.", "artifacts.wandb.")
_FLAGS = tuple(flag for flag in FLAGS if flag.key.startswith(_KEYS))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the run and the trackers."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="Artifact folder of the run.")
    add_flags(parser, "instead of the values in the config of the run", _FLAGS)


def run(args: argparse.Namespace) -> int:
    """Send the run and print its address."""
    from aiperf_svc.adapters.trackers.sending import problems, send
    from aiperf_svc.cli.flag_config import read_draft_of_run

    artifacts = read_draft_of_run(args, args.folder, flags=_FLAGS).parse().artifacts
    if artifacts.mlflow is None and artifacts.wandb is None:
        raise ConfigError(
            "the config of the run names no tracker; add --mlflow-tracking-uri URI or "
            "--wandb-project NAME"
        )
    for key, text in problems(artifacts, os.environ):
        raise ConfigError(f"{key}: {text}")
    print("\n".join(send(args.folder, artifacts)))
    return 0
