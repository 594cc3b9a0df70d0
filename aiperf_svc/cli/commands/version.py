"""`aiperf-svc version`."""

import argparse

from aiperf_svc import __version__

DESCRIPTION = "Print the version."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the only flag."""
    parser.add_argument(
        "--json",
        action="store_true",
        help="Print an object with the commit, Python, and the steps that are not compiled.",
    )


def run(args: argparse.Namespace) -> int:
    """Print it."""
    if not args.json:
        print(__version__)
        return 0
    import json
    import platform

    from aiperf_svc.adapters.host.build import commit, interpreted_steps

    facts = {
        "version": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "interpreted_steps": interpreted_steps(),
    }
    print(json.dumps(facts))
    return 0
