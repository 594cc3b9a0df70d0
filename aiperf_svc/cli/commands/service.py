"""`aiperf-svc service`: the command of each process of a local run and of each pod."""

import argparse
import logging

from aiperf_svc.cli.arguments import did_you_mean
from aiperf_svc.domain.errors import AiperfError, ConfigError
from aiperf_svc.domain.exit_codes import ExitCode

DESCRIPTION = """Run one or several services of a benchmark in this process.

The environment names the run; `profile`, `run` and a stack set it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the names of the services."""
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="system-controller, dataset-manager, timing-manager, worker-manager, "
        "records-manager, worker or record-processor. Default: AIPERF_SERVICE, separated by "
        "commas.",
    )
    # For `runner.fork_server` only.
    parser.add_argument("--forks", type=int, help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Run until the run has ended. An unexpected error goes into the log of the process or pod."""
    import os

    if args.forks is not None:
        from aiperf_svc.services.forks import become_ordered

        args.names = become_ordered(args.forks)

    from aiperf_svc.protocol.services import Service

    given = args.names or [n for n in os.environ.get("AIPERF_SERVICE", "").split(",") if n]
    if not given:
        raise ConfigError("name a service, or set AIPERF_SERVICE")
    valid = [service.value for service in Service]
    for name in given:
        if name not in valid:
            hint = did_you_mean(name, valid) or f"; expected {', '.join(valid)}"
            raise ConfigError(f"{name!r} is not a service{hint}")

    from aiperf_svc.services.host import run_services

    try:
        return run_services([Service(name) for name in given])
    except AiperfError:
        raise
    except Exception:
        logging.getLogger("aiperf_svc").exception("unexpected error; the process ends")
        return int(ExitCode.ERROR)
