"""`aiperf-svc profile`."""

import argparse

from aiperf_svc.cli.flags import GROUPS
from aiperf_svc.cli.runs import add_config_flag, add_flags, add_run_flags, run_here

DESCRIPTION = """Measure a server under load.

Every flag writes one key of a config; the whole config is saved beside the results and can be run
again with --config. Without --request-count and --benchmark-duration the run ends after 10 requests
for each user, or after 10 seconds' worth of an open loop. Times take units: 250ms, 30s, 5m; a plain
number is seconds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The table of flags, and what is about this program."""
    add_config_flag(parser)
    for title, flags in GROUPS.items():
        add_flags(parser, title, flags)
    add_run_flags(parser)


def run(args: argparse.Namespace) -> int:
    """Measure as the flags say."""
    from aiperf_svc.cli.flag_config import read_draft

    return run_here(read_draft(args), args)
