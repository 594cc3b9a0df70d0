"""`aiperf-svc completion`."""

import argparse

DESCRIPTION = """Print the completion of commands and flags for a shell.

  bash   source <(aiperf-svc completion bash), in ~/.bashrc
  zsh    aiperf-svc completion zsh >"${fpath[1]}/_aiperf-svc"
  fish   aiperf-svc completion fish >~/.config/fish/completions/aiperf-svc.fish"""
SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the shell."""
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    """Print it."""
    from aiperf_svc.cli import reference

    print(reference.SHELLS[args.shell](reference.describe_commands()), end="")
    return 0
