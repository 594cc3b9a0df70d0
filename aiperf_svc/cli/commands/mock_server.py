"""`aiperf-svc mock-server`."""

import argparse

from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.mock_server import config

DESCRIPTION = "An OpenAI-compatible server that responds with made-up tokens at a set pace."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The server's own."""
    config.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until told to stop."""
    from aiperf_svc.mock_server.processes import MockServerError, serve

    try:
        serve(config.config_from_args(args))
    except config.MockServerConfigError as error:
        raise ConfigError(str(error)) from error
    except MockServerError as error:
        raise EnvironmentProblem(str(error)) from error
    return 0
