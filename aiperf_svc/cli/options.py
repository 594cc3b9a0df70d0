"""Flags that several commands share, and the options that they set. This module imports no models,
so a command line can be parsed before the models are loaded."""

import argparse
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote

from aiperf_svc.cli.arguments import API_KEY, add_junit_flag
from aiperf_svc.cli.flags import Flag
from aiperf_svc.config.user_files import SMALL_FILE, read_text_file
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.name_suggestions import did_you_mean
from aiperf_svc.runner.options import OtlpTarget, RunOptions

Display = Literal["auto", "rich", "plain", "none"]
DISPLAYS: dict[str, Display] = {"auto": "auto", "rich": "rich", "plain": "plain", "none": "none"}
DISPLAYS |= {"dashboard": "rich", "simple": "plain"}
"""Displays by the values of `--ui`. The last two are AIPerf's names."""
OTLP_PATH = "/v1/metrics"
"""Path of OTLP receivers for metrics."""
HEADER_VARIABLES = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS")
"""Environment variables with headers. The second overrides the first."""
_URL = re.compile(r"https?://[^/@?#\s]+(/[^@?#\s]*)?")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def display_of(args: argparse.Namespace) -> Display:
    """Return the display for `--ui`. Raises ConfigError."""
    if args.ui not in DISPLAYS:
        hint = did_you_mean(args.ui, DISPLAYS)
        raise ConfigError(f"--ui: {args.ui!r}: expected auto, rich, plain or none{hint}")
    return DISPLAYS[args.ui]


def add_flags(parser: argparse.ArgumentParser, title: str, flags: tuple[Flag, ...]) -> None:
    """Add one group of the flag table. Values stay text, because the config validates them. The
    help is the key until `key_docs` replaces it."""
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


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that change this program's behaviour, not the test."""
    group = parser.add_argument_group("this program")
    group.add_argument(
        API_KEY,
        metavar="KEY",
        help="API key of the server: env:NAME, @FILE, or the key itself, which other users of this "
        "machine can see. It is never written to a file.",
    )
    group.add_argument(
        "--json", action="store_true", help="Print the results as one JSON object on stdout."
    )
    add_junit_flag(group)
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
        "--verbose",
        "-v",
        action="store_true",
        help="Show the services' logs, with debug messages. Only for a run on this machine.",
    )


def add_cluster_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that choose the cluster."""
    group = parser.add_argument_group("cluster")
    group.add_argument("--kubeconfig", metavar="FILE", help="Kubeconfig to use.")
    group.add_argument(
        "--context", metavar="NAME", help="Context of the kubeconfig. Default: the current one."
    )


def add_request_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a stack that is inspected but not run."""
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
        "--timeout", metavar="TIME", help="Time after which the run is stopped, such as 20m."
    )
    group.add_argument(
        "--generation", metavar="N", help="Change this number to run an unchanged stack again."
    )


def run_options(args: argparse.Namespace) -> RunOptions:
    """Return the options from the flags of `add_run_flags`. Raises ConfigError."""
    return RunOptions(
        ui=display_of(args),
        json=args.json,
        cli_command=args.command_line,
        verbose=args.verbose,
        resume=args.resume,
        junit=args.junit,
        otlp=otlp_target(args.otlp),
        metrics_address=metrics_address(args.serve_metrics),
    )


def otlp_target(url: str | None, environ: Mapping[str, str] = os.environ) -> OtlpTarget | None:
    """Return the receiver at a URL, where no path means `/v1/metrics`; None without a URL. Raises
    ConfigError."""
    if url is None:
        return None
    match = _URL.fullmatch(url)
    if match is None:
        raise ConfigError(
            f"--otlp: expected a URL such as http://collector:4318; keys belong in the "
            f"environment variable {HEADER_VARIABLES[0]}"
        )
    whole = url if (match[1] or "/") != "/" else url.rstrip("/") + OTLP_PATH
    headers: dict[str, str] = {}
    for variable in HEADER_VARIABLES:
        headers |= _headers(variable, environ.get(variable, ""))
    return OtlpTarget(url=whole, headers=headers)


def metrics_address(text: str | None) -> tuple[str, int] | None:
    """Return the host and port of `[HOST:]PORT`; None without a text. Raises ConfigError."""
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ConfigError(
            f"--serve-metrics: {text!r} is not an address; expected a port such as 9464, or "
            "HOST:PORT"
        )
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def _headers(variable: str, text: str) -> dict[str, str]:
    """Parse headers `name=value,name=value` with URL escapes. The message contains no values, which
    may be secret."""
    found: dict[str, str] = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, _, value = pair.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if not _NAME.fullmatch(name) or not value or not value.isascii() or not value.isprintable():
            raise ConfigError(f"{variable}: expected NAME=VALUE, separated by commas")
        found[name] = value
    return found


def read_api_key(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the key given as `VALUE`, `env:NAME` or `@FILE`. Raises ConfigError."""
    if text.startswith("env:"):
        name = text.removeprefix("env:")
        if not environ.get(name):
            raise ConfigError(f"{API_KEY} {text}: the environment variable {name!r} is not set")
        return environ[name]
    if text.startswith("@"):
        try:
            text = read_text_file(Path(text[1:]), SMALL_FILE).strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise ConfigError(f"{API_KEY} {text}: cannot read the file: {reason}") from error
    if not text or not text.isascii() or not text.isprintable():
        raise ConfigError(f"{API_KEY}: expected a key of printable characters, env:NAME or @FILE")
    return text
