"""`--otlp` and `--serve-metrics`: where a run's metrics go while it is followed. Headers with keys
come from the environment, which no command line or file shows."""

import os
import re
from collections.abc import Mapping
from urllib.parse import unquote

from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.runner.options import OtlpTarget

PATH = "/v1/metrics"
"""Where receivers take metrics."""
HEADER_VARIABLES = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS")
"""Variables of the environment with headers. Those of the second win."""
_URL = re.compile(r"https?://[^/@?#\s]+(/[^@?#\s]*)?")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def otlp_target(url: str | None, environ: Mapping[str, str] = os.environ) -> OtlpTarget | None:
    """Return the receiver at a URL, which without a path means its `/v1/metrics`. None without a
    URL. Raises ConfigError."""
    if url is None:
        return None
    match = _URL.fullmatch(url)
    if match is None:
        raise ConfigError(
            f"--otlp: expected a URL such as http://collector:4318; keys belong into the "
            f"environment variable {HEADER_VARIABLES[0]}"
        )
    whole = url if (match[1] or "/") != "/" else url.rstrip("/") + PATH
    headers: dict[str, str] = {}
    for variable in HEADER_VARIABLES:
        headers |= _headers(variable, environ.get(variable, ""))
    return OtlpTarget(url=whole, headers=headers)


def metrics_address(text: str | None) -> tuple[str, int] | None:
    """Return host and port of `[HOST:]PORT`; None without a text. Raises ConfigError."""
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ConfigError(
            f"--serve-metrics: {text!r} is no address; expected a port such as 9464, or HOST:PORT"
        )
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def _headers(variable: str, text: str) -> dict[str, str]:
    """Headers as `name=value,name=value`, with the escapes of URLs. The message has no values: they
    may be secrets."""
    found: dict[str, str] = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, _, value = pair.partition("=")
        name, value = name.strip(), unquote(value.strip())
        if not _NAME.fullmatch(name) or not value or not value.isascii() or not value.isprintable():
            raise ConfigError(f"{variable}: expected NAME=VALUE, separated by commas")
        found[name] = value
    return found
