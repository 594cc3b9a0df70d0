"""`aiperf-svc track`."""

import argparse
import os
from pathlib import Path

from aiperf_svc.cli.flags import FLAGS
from aiperf_svc.cli.runs import add_flags
from aiperf_svc.domain.errors import ConfigError

DESCRIPTION = """File a finished run, or the trials of an experiment, in MLflow or Weights & Biases.

A run whose config names one does this itself; this is for one that was not taken, and for other
runs. What a tracker has is recorded in trackers.json of the run's folder, and is not sent there
again. Keys come from the environment: MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and
MLFLOW_TRACKING_PASSWORD; WANDB_API_KEY."""

_KEYS = ("artifacts.mlflow.", "artifacts.wandb.")
_FLAGS = tuple(flag for flag in FLAGS if flag.key.startswith(_KEYS))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The run, and where to."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="artifact folder of the run")
    add_flags(parser, "instead of what the run's config says", _FLAGS)


def run(args: argparse.Namespace) -> int:
    """Send it, and say where it is."""
    from aiperf_svc.adapters.trackers.sending import problems, send
    from aiperf_svc.cli.flag_config import read_draft_of_run

    artifacts = read_draft_of_run(args, args.folder, flags=_FLAGS).parse().artifacts
    if artifacts.mlflow is None and artifacts.wandb is None:
        raise ConfigError(
            "the run's config names no tracker: --mlflow-tracking-uri URI or --wandb-project NAME"
        )
    for key, text in problems(artifacts, os.environ):
        raise ConfigError(f"{key}: {text}")
    print("\n".join(send(args.folder, artifacts)))
    return 0
