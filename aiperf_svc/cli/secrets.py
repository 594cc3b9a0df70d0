"""The target's API key: from the user to the services' environment, past every file, log and
process list."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote

from aiperf_svc.config.user_files import SMALL_FILE, read_text_file
from aiperf_svc.domain.errors import ConfigError

_FLAG = "--api-key"


def read_api_key(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """The key that `VALUE`, `env:NAME` or `@FILE` stands for. Raises ConfigError."""
    if text.startswith("env:"):
        name = text.removeprefix("env:")
        if not environ.get(name):
            raise ConfigError(f"{_FLAG} {text}: the environment variable {name!r} is not set")
        return environ[name]
    if text.startswith("@"):
        try:
            text = read_text_file(Path(text[1:]), SMALL_FILE).strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not UTF-8 text"
            raise ConfigError(f"{_FLAG} {text}: cannot read the file: {reason}") from error
    if not text or not text.isascii() or not text.isprintable():
        raise ConfigError(f"{_FLAG}: expected a key of printable characters, env:NAME or @FILE")
    return text


def command_line(arguments: Sequence[str]) -> str:
    """The command as it was typed, fit to be kept: without the key."""
    shown = []
    is_key = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if is_key:
            argument = _hidden(argument)
        elif name == _FLAG and equals:
            argument = f"{name}={_hidden(value)}"
        is_key = argument == _FLAG
        shown.append(argument if argument == "***" else quote(argument))
    return " ".join(("aiperf-svc", *shown))


def _hidden(value: str) -> str:
    return value if value.startswith(("env:", "@")) else "***"
