"""`aiperf-svc service`: runs services in a process of a local run or in a pod."""

import argparse
import logging
import os

from aiperf_svc.domain.errors import AiperfError, ConfigError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.name_suggestions import did_you_mean
from aiperf_svc.protocol.services import Service


def service(args: argparse.Namespace) -> int:
    """Run until the run has ended. Unexpected errors are logged by the process or pod."""
    if args.forks is not None:
        from aiperf_svc.services.forks import become_ordered

        args.names = become_ordered(args.forks)

    names = args.names or [n for n in os.environ.get("AIPERF_SERVICE", "").split(",") if n]
    if not names:
        raise ConfigError("name a service, or set AIPERF_SERVICE")
    valid = [service.value for service in Service]
    for name in names:
        if name not in valid:
            hint = did_you_mean(name, valid, f"expected {', '.join(valid)}")
            raise ConfigError(f"{name!r} is not a service{hint}")

    from aiperf_svc.services.host import run_services

    try:
        return run_services([Service(name) for name in names])
    except AiperfError:
        raise
    except Exception:
        logging.getLogger("aiperf_svc").exception("unexpected error; the process ends")
        return int(ExitCode.ERROR)
