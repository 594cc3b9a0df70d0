"""`mock-server` and `nvml-exporter`: servers that run until they are stopped."""

import argparse
import asyncio

from aiperf_svc.adapters.host.garbage_collection import resume_collection
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.mock_server import config
from aiperf_svc.mock_server.processes import MockServerError, serve


def mock_server(args: argparse.Namespace) -> int:
    """Serve until the process is stopped."""
    # The server collects garbage. A collector callback would lose a signal that arrives during it.
    resume_collection()
    try:
        serve(config.config_from_args(args))
    except config.MockServerConfigError as error:
        raise ConfigError(str(error)) from error
    except MockServerError as error:
        raise EnvironmentProblem(str(error)) from error
    return 0


def nvml_exporter(args: argparse.Namespace) -> int:
    """Serve the page until the process is stopped."""
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
