"""`python -m aiperf_svc.mock_server`: the standalone mock server."""

import argparse
import sys

from aiperf_svc.mock_server.config import MockServerConfigError, add_arguments, config_from_args
from aiperf_svc.mock_server.processes import MockServerError, serve


def main() -> int:
    """Serve until the process is stopped; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m aiperf_svc.mock_server",
        description="An OpenAI-compatible server with synthetic tokens at a fixed pace.",
    )
    add_arguments(parser)
    try:
        serve(config_from_args(parser.parse_args()))
    except MockServerConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except MockServerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
