"""Completions and the manual page have what `--help` has."""

import subprocess
from datetime import date
from pathlib import Path

import pytest

from aiperf_svc.cli import main as cli
from aiperf_svc.cli import reference
from aiperf_svc.cli.parsers.tools import SHELLS
from tests.support.recording import ROOT


@pytest.fixture(scope="module")
def commands() -> list[reference.CommandText]:
    return reference.describe_commands()


@pytest.fixture(scope="module")
def bash(commands: list[reference.CommandText], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "aiperf-svc.bash"
    path.write_text(reference.bash(commands))
    return path


def complete(script: Path, *words: str) -> set[str]:
    """Return what bash offers for the last word."""
    line = (
        f'source {script}; COMP_WORDS=(aiperf-svc "$@"); COMP_CWORD=$#; _aiperf_svc; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    command = ("bash", "-c", line, "bash", *words)
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return {*done.stdout.split()}


def test_bash_completes_commands_flags_and_values(bash: Path) -> None:
    assert complete(bash, "pre") == {"preview"}
    assert complete(bash, "mock-server", "--tt") == {"--ttft"}
    assert complete(bash, "mock-server", "--usage", "") == {"requested", "always", "never"}
    assert complete(bash, "schema", "st") == {"stack"}


def test_bash_completes_names_of_stacks(bash: Path) -> None:
    assert complete(bash, "run", "bench-100k") == {"bench-100k", "bench-100k-lean"}


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_has_every_command_and_flag(
    shell: str, commands: list[reference.CommandText], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["completion", shell]) == 0
    text = capsys.readouterr().out
    for command in commands:
        assert command.name in text
        for flag in command.flags:
            for name in flag.names:
                assert (name.lstrip("-") if shell == "fish" else name) in text


def test_manual_page_has_every_flag_with_its_text(commands: list[reference.CommandText]) -> None:
    text = reference.manual(commands, date(2026, 1, 2))
    assert text.startswith('.TH AIPERF-SVC 1 "2026-01-02"')
    plain = text.replace("\\-", "-").replace("\\e", "\\").replace("\\&", "")
    for command in commands:
        for flag in command.flags:
            assert flag.text in plain
    assert "\n.B aiperf-svc\n" in text


def test_roff_text_is_no_request() -> None:
    assert reference._roff("a\n.SH b\n'c \\d") == "a\n\\&.SH b\n\\&'c \\ed"


def test_shells_are_those_that_can_be_written() -> None:
    assert set(SHELLS) == set(reference.SHELLS)
