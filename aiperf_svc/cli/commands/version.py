"""`aiperf-svc version`."""

import argparse

from aiperf_svc import __version__

DESCRIPTION = "Print the version."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def run(args: argparse.Namespace) -> int:
    """Print it."""
    print(__version__)
    return 0
