"""Flags that several commands share. Nothing here imports the models, so that a command line is
parsed before they are loaded."""

import argparse
from pathlib import Path
from typing import Any, Literal

from aiperf_svc.cli.arguments import did_you_mean
from aiperf_svc.cli.flags import Flag
from aiperf_svc.domain.errors import ConfigError

Display = Literal["auto", "rich", "plain", "none"]
DISPLAYS: dict[str, Display] = {"auto": "auto", "rich": "rich", "plain": "plain", "none": "none"}
DISPLAYS |= {"dashboard": "rich", "simple": "plain"}
"""Displays by the values of `--ui`. The last two are AIPerf's names."""


def display_of(args: argparse.Namespace) -> Display:
    """Return the display that `--ui` names. Raises ConfigError."""
    if args.ui not in DISPLAYS:
        hint = did_you_mean(args.ui, DISPLAYS)
        raise ConfigError(f"--ui: {args.ui!r}: expected auto, rich, plain or none{hint}")
    return DISPLAYS[args.ui]


def add_flags(parser: argparse.ArgumentParser, title: str, flags: tuple[Flag, ...]) -> None:
    """Add one group of the table. Values are kept as text: the config checks them. The help is the
    key until `key_docs` describes it."""
    group = parser.add_argument_group(title)
    for flag in flags:
        more: dict[str, Any] = {"metavar": flag.metavar}
        if flag.kind == "switch":
            more = {"action": argparse.BooleanOptionalAction}
        elif flag.kind == "off":
            more = {"action": "store_const", "const": False}
        elif flag.kind == "list":
            more |= {"action": "extend", "nargs": "+"}
        elif flag.kind == "again":
            more["action"] = "append"
        group.add_argument(*flag.names, dest=flag.destination, help=flag.key, default=None, **more)


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    """Add `--config`."""
    parser.add_argument(
        "--config",
        "-f",
        metavar="FILE",
        type=Path,
        help="Start from this config. Flags override it.",
    )


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that change this program, not the test."""
    group = parser.add_argument_group("this program")
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help="Key for the server: env:NAME, @FILE, or the key itself, which other users of this "
        "machine can see. It is never written to a file.",
    )
    group.add_argument(
        "--json", action="store_true", help="Print the results as one JSON object on stdout."
    )
    group.add_argument(
        "--dry-run", action="store_true", help="Check everything and print the trials. Run nothing."
    )
    group.add_argument(
        "--resume",
        metavar="FOLDER",
        type=Path,
        help="Continue the experiment in this folder. Finished trials are not repeated.",
    )
    group.add_argument(
        "--ui",
        "--ui-type",
        metavar="UI",
        default="auto",
        help="Progress on stderr: auto, rich, plain or none. Default: auto.",
    )
    group.add_argument(
        "--otlp",
        metavar="URL",
        help="Send the metrics of the run to this OpenTelemetry collector, as JSON over HTTP. "
        "OTEL_EXPORTER_OTLP_HEADERS holds its headers.",
    )
    group.add_argument(
        "--serve-metrics",
        metavar="[HOST:]PORT",
        help="Serve the metrics of the run to Prometheus at /metrics of this address. "
        "Default of HOST: 127.0.0.1.",
    )
    group.add_argument(
        "--verbose", "-v", action="store_true", help="Write debug lines to the logs of services."
    )


def add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose the cluster."""
    group = parser.add_argument_group("cluster")
    group.add_argument("--kubeconfig", metavar="FILE", help="Kubeconfig to use.")
    group.add_argument(
        "--context", metavar="NAME", help="Context of the kubeconfig. Default: the current one."
    )


def add_request_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for a stack that is inspected but not run."""
    parser.set_defaults(api_key=None, generation=None, resume=None)
    add_cluster_flags(parser)


def add_life_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for the life of a stack."""
    group = parser.add_argument_group("stack")
    group.add_argument("--yes", "-y", action="store_true", help="Create the stack without asking.")
    group.add_argument("--keep", action="store_true", help="Keep the stack after the run.")
    group.add_argument(
        "--keep-on-failure", action="store_true", help="Keep the stack if something failed."
    )
    group.add_argument(
        "--timeout", metavar="TIME", help="Stop the run this long after its start, such as 20m."
    )
    group.add_argument(
        "--generation", metavar="N", help="Another number starts a new run of an unchanged stack."
    )
