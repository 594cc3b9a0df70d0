"""`aiperf-svc nvml-exporter`."""

import argparse
import asyncio

from aiperf_svc.cli.arguments import port_number
from aiperf_svc.config.telemetry import ALL_GPUS
from aiperf_svc.domain.errors import EnvironmentProblem

DESCRIPTION = "A page of this machine's GPU metrics, with the names of DCGM, read through NVML."
PORT = 9400
"""That of dcgm-exporter, which this page stands for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the page is, and which GPUs it has."""
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on, whose readers need no key (127.0.0.1)",
    )
    parser.add_argument(
        "--port", type=port_number, default=PORT, help=f"port to listen on ({PORT})"
    )
    parser.add_argument(
        "--gpus", default=ALL_GPUS, help="GPUs on the page: all, or indexes and UUIDs, `0,1` (all)"
    )


def run(args: argparse.Namespace) -> int:
    """Serve the page until the process is told to stop."""
    from aiperf_svc.adapters.telemetry.nvml import NvmlError, NvmlGpus, serve

    try:
        gpus = NvmlGpus([each.strip() for each in args.gpus.split(",")])
    except NvmlError as error:
        raise EnvironmentProblem(str(error)) from error
    try:
        asyncio.run(serve(gpus, args.host, args.port))
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot listen on {args.host}:{args.port}: {error.strerror or error}"
        ) from error
    except KeyboardInterrupt:
        pass
    finally:
        gpus.close()
    return 0
