"""Generates shell completions and the manual page for all commands and flags.

Both come from the commands' parsers, so they match `--help`.
"""

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, date, datetime
from typing import NamedTuple

from aiperf_svc import __version__
from aiperf_svc.cli.arguments import EXIT_CODES, codes_of
from aiperf_svc.cli.main import COMMANDS, load_parser

PROGRAM = "aiperf-svc"


class FlagText(NamedTuple):
    """A flag, described for a shell or a reader."""

    names: tuple[str, ...]
    text: str
    """Its help, in one line."""
    choices: tuple[str, ...]
    takes_value: bool
    metavar: str


class CommandText(NamedTuple):
    """A command with its flags and arguments."""

    name: str
    text: str
    description: str
    flags: tuple[FlagText, ...]
    choices: tuple[str, ...]
    """Allowed words of its arguments; empty if others are allowed."""


def completion(args: argparse.Namespace) -> int:
    """Print the completion for a shell."""
    print(SHELLS[args.shell](describe_commands()), end="")
    return 0


def man(args: argparse.Namespace) -> int:
    """Print the manual page."""
    print(manual(describe_commands(), datetime.now(UTC).date()), end="")
    return 0


def describe_commands() -> list[CommandText]:
    """Return all commands of `aiperf-svc --help`."""
    return [_describe(name, text) for name, text in COMMANDS.items()]


def _describe(name: str, text: str) -> CommandText:
    parser = load_parser(name)
    # Completes the help of flags whose text comes from the key of the config.
    parser.format_help()
    words = [str(c) for a in parser._actions if not a.option_strings for c in a.choices or ()]
    flags = tuple(_flag(action) for action in parser._actions if action.option_strings)
    return CommandText(name, text, parser.description or "", flags, tuple(words))


def _flag(action: argparse.Action) -> FlagText:
    help_text = action.help if action.help != argparse.SUPPRESS else ""
    takes_value = action.nargs != 0
    metavar = action.metavar or action.dest.upper()
    return FlagText(
        names=tuple(action.option_strings),
        text=" ".join((help_text or "").replace("%%", "%").split()),
        choices=tuple(map(str, action.choices or ())),
        takes_value=takes_value,
        metavar=" ".join(metavar) if isinstance(metavar, tuple) else metavar,
    )


def bash(commands: list[CommandText]) -> str:
    """Return the completion for bash."""
    flags = "\n".join(f"    {c.name}) words={_quoted(' '.join(_words(c)))} ;;" for c in commands)
    values = "\n".join(
        f"    {c.name}:{name}) words={_quoted(' '.join(flag.choices))} ;;"
        for c in commands
        for flag in c.flags
        if flag.choices
        for name in flag.names
    )
    names = _quoted(" ".join(c.name for c in commands))
    return f"""\
# Completion of {PROGRAM} {__version__} for bash: source <({PROGRAM} completion bash)
_aiperf_svc() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} words= stack
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W {names} -- "$current"))
    return
  fi
  case ${{COMP_WORDS[1]}}:$before in
{values}
    *) ;;
  esac
  if [ -n "$words" ]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    return
  fi
  case ${{COMP_WORDS[1]}} in
{flags}
    *) ;;
  esac
  if [[ $current != -* ]]; then
    for stack in stacks/Pulumi.*.yaml; do
      [ ! -e "$stack" ] || {{ stack=${{stack#stacks/Pulumi.}} && words+=" ${{stack%.yaml}}"; }}
    done
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _aiperf_svc {PROGRAM}
"""


def zsh(commands: list[CommandText]) -> str:
    """Return the completion for zsh."""
    names = "\n".join(f"      {_quoted(f'{c.name}:{c.text}')}" for c in commands)
    cases = "\n".join(f"    {c.name})\n{_zsh_flags(c)}{_zsh_values(c)}    ;;" for c in commands)
    return f"""\
#compdef {PROGRAM}
# Completion of {PROGRAM} {__version__} for zsh: source this, or a file _{PROGRAM} in fpath
_{PROGRAM}() {{
  local -a commands flags stacks
  local values='{{compadd -a stacks; _files}}'
  if (( CURRENT == 2 )); then
    commands=(
{names}
    )
    _describe command commands
    return
  fi
  stacks=(stacks/Pulumi.*.yaml(N:t:r))
  stacks=(${{stacks#Pulumi.}})
  case $words[2] in
{cases}
  esac
  _arguments -S $flags "*:argument:$values"
}}
# The first completion runs a file of fpath as the function of its name.
if [[ ${{funcstack[1]}} == _{PROGRAM} ]]; then
  _{PROGRAM} "$@"
else
  compdef _{PROGRAM} {PROGRAM}
fi
"""


def _zsh_flags(command: CommandText) -> str:
    lines = []
    for flag in command.flags:
        text = re.sub(r"([\[\]:\\])", r"\\\1", _short(flag.text))
        value = ""
        if flag.choices:
            value = f":{flag.metavar}:({' '.join(flag.choices)})"
        elif flag.takes_value:
            value = f":{re.sub(r'[^A-Za-z]+', ' ', flag.metavar).strip() or 'value'}:_files"
        lines += [f"        {_quoted(f'*{name}[{text}]{value}')}" for name in flag.names]
    return "      flags=(\n" + "\n".join(lines) + "\n      )\n"


def _zsh_values(command: CommandText) -> str:
    words = _quoted(f"({' '.join(command.choices)})")
    return f"      values={words}\n" if command.choices else ""


def fish(commands: list[CommandText]) -> str:
    """Return the completion for fish."""
    lines = [
        f"# Completion of {PROGRAM} {__version__} for fish: {PROGRAM} completion fish | source"
    ]
    stacks = (
        "(string replace -r '^stacks/Pulumi\\.(.*)\\.yaml$' '$1' stacks/Pulumi.*.yaml 2>/dev/null)"
    )
    for command in commands:
        lines.append(
            f"complete -c {PROGRAM} -n __fish_use_subcommand -f -a {command.name} "
            f"-d {_fish(command.text)}"
        )
        seen = f"complete -c {PROGRAM} -n '__fish_seen_subcommand_from {command.name}'"
        words = " ".join(command.choices) or stacks
        lines.append(f'{seen} -f -a "{words}"' if command.choices else f"{seen} -a {_fish(words)}")
        for flag in command.flags:
            names = " ".join(
                f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}"
                for name in flag.names
            )
            value = " -r" if flag.takes_value else ""
            value = f" -x -a {_fish(' '.join(flag.choices))}" if flag.choices else value
            lines.append(f"{seen} {names}{value} -d {_fish(_short(flag.text))}")
    return "\n".join(lines) + "\n"


def manual(commands: list[CommandText], day: date) -> str:
    """Return the manual page, for `man -l`."""
    lines = [
        f'.TH AIPERF-SVC 1 "{day.isoformat()}" "{PROGRAM} {__version__}"',
        ".SH NAME",
        f"{PROGRAM} \\- measure AI inference servers and clusters under load",
        ".SH SYNOPSIS",
        f".B {PROGRAM}",
        ".I COMMAND",
        "[FLAGS]",
        ".SH COMMANDS",
    ]
    for command in commands:
        lines += [".SS " + _roff(f"{PROGRAM} {command.name}"), _roff(command.description), ".PP"]
        for flag in command.flags:
            value = f" \\fI{_roff(flag.metavar)}\\fR" if flag.takes_value else ""
            shown = ", ".join(f"\\fB{_roff(name)}\\fR" for name in flag.names)
            lines += [".TP", f"{shown}{value}", _roff(flag.text)]
        codes = ", ".join(str(int(code)) for code in codes_of(command.name))
        lines += [".PP", f"Exit status: {codes}."]
    lines += [".SH EXIT STATUS"]
    for code, text in EXIT_CODES.items():
        lines += [".TP", f"\\fB{int(code)}\\fR", _roff(text)]
    return "\n".join(lines) + "\n"


SHELLS: Mapping[str, Callable[[list[CommandText]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
"""Functions that write completions, by shell."""


def _words(command: CommandText) -> Iterator[str]:
    yield from command.choices
    for flag in command.flags:
        yield from flag.names


def _short(text: str) -> str:
    """Return the first sentence of a help text."""
    return re.split(r"(?<=[.;]) ", text, maxsplit=1)[0].rstrip(".;")[:80]


def _quoted(text: str) -> str:
    """Return a text in single quotes for bash and zsh."""
    return "'" + text.replace("'", "'\\''") + "'"


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _roff(text: str) -> str:
    """Escape a text so that roff finds no request or escape sequence in it."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", escaped, flags=re.MULTILINE)
