"""`aiperf-svc version`."""

import argparse

from aiperf_svc import __version__


def version(args: argparse.Namespace) -> int:
    """Print the version."""
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
