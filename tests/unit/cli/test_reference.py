"""Shell completion and the manual page contain everything in `--help`."""

import shutil
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


BASH = """
source "$1/aiperf-svc.bash"
read -ra COMP_WORDS <<<"$2"
[[ $2 != *" " ]] || COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_aiperf_svc
printf "%s\n" "${COMPREPLY[@]}"
"""
ZSH = r"""
zmodload zsh/zpty
export FOLDER=$1
zpty shell zsh -f -i
zpty -w shell 'fpath=($FOLDER $fpath); autoload -Uz compinit; compinit -D -u'
zpty -w shell 'compadd() {
  local -a offered
  case " $* " in
    (*" -O "* | *" -A "* | *" -D "*) ;;
    (*) builtin compadd -O offered "$@"; print -rC1 -- $offered >>$FOLDER/offered ;;
  esac
  builtin compadd "$@"
}'
zpty -w shell 'finish() { zle complete-word; exit }; zle -N finish; bindkey "^I" finish'
zpty -w -n shell "$2"$'\t'
while zpty -r shell ignored; do :; done
cat $FOLDER/offered
"""
"""A terminal whose first TAB prints the completions and ends the shell."""
FISH = r"source $argv[1]/aiperf-svc.fish; complete -C $argv[2] | string split -f 1 \t; true"
READERS = {
    "bash": ("bash", "-c", BASH, "bash"),
    "zsh": ("zsh", "-f", "-c", ZSH, "zsh"),
    "fish": ("fish", "-N", "-c", FISH),
}
"""Commands that print what a shell completes for their last argument."""
FILES = {"bash": "aiperf-svc.bash", "zsh": "_aiperf-svc", "fish": "aiperf-svc.fish"}
TYPED = [
    ("aiperf-svc pre", {"preview"}),
    ("aiperf-svc mock-server --tt", {"--ttft"}),
    ("aiperf-svc mock-server --usage ", {"requested", "always", "never"}),
    ("aiperf-svc schema st", {"stack"}),
    ("aiperf-svc run bench-100k", {"bench-100k", "bench-100k-lean"}),
]


@pytest.mark.parametrize(("typed", "offered"), TYPED)
@pytest.mark.parametrize("shell", SHELLS)
def test_shell_completes_commands_flags_and_values(
    shell: str, typed: str, offered: set[str], commands: list[reference.CommandText], tmp_path: Path
) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / FILES[shell]).write_text(reference.SHELLS[shell](commands))
    command = (*READERS[shell], str(tmp_path), typed)
    done = subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=60.0
    )
    assert {*done.stdout.split()} == offered


def test_sourced_zsh_completion_registers_itself(
    commands: list[reference.CommandText], tmp_path: Path
) -> None:
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    (tmp_path / FILES["zsh"]).write_text(reference.zsh(commands))
    script = (
        "autoload -Uz compinit; compinit -D -u; source $1/_aiperf-svc; print $_comps[aiperf-svc]"
    )
    command = ("zsh", "-f", "-c", script, "zsh", str(tmp_path))
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == "_aiperf-svc\n"


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


def test_roff_requests_in_text_are_escaped() -> None:
    assert reference._roff("a\n.SH b\n'c \\d") == "a\n\\&.SH b\n\\&'c \\ed"


def test_every_shell_has_a_completion_script() -> None:
    assert set(SHELLS) == set(reference.SHELLS)
