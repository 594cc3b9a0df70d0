"""`aiperf-svc man`."""

import argparse

DESCRIPTION = """Print the manual page: all commands and flags.

  aiperf-svc man >~/.local/share/man/man1/aiperf-svc.1"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add no arguments."""


def run(args: argparse.Namespace) -> int:
    """Print it."""
    from datetime import UTC, datetime

    from aiperf_svc.cli import reference

    day = datetime.now(UTC).date()
    print(reference.manual(reference.describe_commands(), day), end="")
    return 0
