"""The target's API key is passed only through the services' environment."""

from pathlib import Path

import pytest

from aiperf_svc.cli.arguments import command_line
from aiperf_svc.cli.options import read_api_key
from aiperf_svc.domain.errors import ConfigError


def test_key_comes_from_value_variable_or_file(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("from-file\n")
    assert read_api_key("sk-1", {}) == "sk-1"
    assert read_api_key("env:KEY", {"KEY": "from-env"}) == "from-env"
    assert read_api_key(f"@{path}", {}) == "from-file"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("env:NIX", "environment variable 'NIX' is not set"),
        ("@/nowhere/key", "cannot read the file: No such file"),
        ("", "expected a key of printable characters"),
        ("two\nlines", "expected a key of printable characters"),
        ("schlüssel", "expected a key of printable characters"),
    ],
)
def test_invalid_key_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_api_key(text, {})


def test_a_refused_key_is_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        read_api_key("hush\n", {})
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        (["profile", "--api-key", "hush"], "aiperf-svc profile --api-key ***"),
        (["profile", "--api-key=hush", "-v"], "aiperf-svc profile '--api-key=***' -v"),
        (["profile", "--api-key", "env:KEY"], "aiperf-svc profile --api-key env:KEY"),
        (["profile", "--api-key", "@key"], "aiperf-svc profile --api-key @key"),
        (["profile", "--header", "A: b"], "aiperf-svc profile --header 'A: b'"),
    ],
)
def test_saved_command_line_has_no_key(arguments: list[str], kept: str) -> None:
    assert command_line(arguments) == kept
