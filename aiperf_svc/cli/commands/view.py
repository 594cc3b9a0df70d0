"""`aiperf-svc view`."""

import argparse
import asyncio
import json
import secrets
import sys
import webbrowser
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from aiperf_svc.cli.arguments import port_number
from aiperf_svc.domain.errors import ConfigError

DESCRIPTION = """Show the finished runs and experiments below a folder in a browser: search them,
compare two, see the throughput of experiments against the speed of one user.

The pages are served to this machine only, at an address with a random token. Nothing is written and
nothing leaves the machine. Ctrl-C ends it."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder and where the pages are."""
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        type=Path,
        nargs="?",
        default=Path("artifacts"),
        help="Folder with artifact folders. Default: artifacts.",
    )
    parser.add_argument(
        "--port", metavar="PORT", type=port_number, default=0, help="Port. Default: a free one."
    )
    parser.add_argument(
        "--no-browser", action="store_true", help="Print the address and open no browser."
    )


def run(args: argparse.Namespace) -> int:
    """Serve the pages until Ctrl-C."""
    if not args.folder.is_dir():
        raise ConfigError(f"{args.folder}: no such folder")
    from aiperf_svc.adapters.viewer.server import Viewer

    with TemporaryDirectory(prefix="aiperf-view-") as private:

        def ready(url: str) -> None:
            print(url, flush=True)
            print("Ctrl-C ends it", file=sys.stderr)
            if not args.no_browser:
                _open(url, Path(private))

        try:
            asyncio.run(Viewer(args.folder, secrets.token_urlsafe(24)).serve(args.port, ready))
        except KeyboardInterrupt:  # also for SIGTERM, see `__main__`
            print(file=sys.stderr)
    return 0


def _open(url: str, private: Path) -> None:
    """Open an address by a file that only this user can read: other users see the arguments of the
    browser's process."""
    page = private / "open.html"
    page.touch(mode=0o600)
    page.write_text(
        f"<!doctype html><title>aiperf-svc</title><script>location.replace({json.dumps(url)})"
        f'</script><a href="{escape(url)}">Runs</a>'
    )
    if not webbrowser.open(page.as_uri()):
        print("no browser was found: open the address in one", file=sys.stderr)
