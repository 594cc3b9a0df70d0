"""The command line: finds the command, runs it, and turns every failure into one message and an
exit code. The only module that ends the process.

A command is a module with `DESCRIPTION`, `add_arguments(parser)` and `run(args) -> int`. It is
imported only when it is asked for, so that help is there at once.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module

from aiperf_svc.adapters.host.private_files import private_files
from aiperf_svc.cli.arguments import Parser, did_you_mean, exit_code_help
from aiperf_svc.cli.secrets import command_line
from aiperf_svc.domain.errors import AiperfError, ConfigError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.foreign_text import lines

JSON = "--json"
COMMANDS = {
    "profile": "measure a server, described by flags",
    "run": "measure as a stack file says",
    "preview": "what a stack will create and cost, also as a text for a pull request",
    "status": "how far the run of a stack is",
    "results": "fetch the results of a stack that is up",
    "cancel": "stop the run of a stack, keep what was measured",
    "check-cluster": "say whether a cluster is fit for a benchmark: nodes, GPUs, network",
    "gc": "remove what earlier stacks left in a cluster",
    "validate": "check stack files and configs without starting anything",
    "compare": "say whether the runs on one side are better or worse than those on the other",
    "history": "show a metric over finished runs, and where it changed",
    "export": "write a run's records in another format",
    "upload": "send a run's results to a bucket of an S3-compatible store",
    "track": "file a finished run in MLflow or Weights & Biases",
    "workloads": "what else than a server can be measured, and how each is described",
    "trace": "describe a trace of a real service: rates, lengths, prefix reuse",
    "migrate": "print the command that does what a command of AIPerf does, and what differs",
    "bench": "a short measurement of the built-in mock server",
    "calibrate": "find what this machine can measure at most, for the plans of later runs",
    "mock-server": "serve made-up tokens at a set pace, OpenAI-compatible",
    "version": "print the version",
}
POD_COMMANDS = ("service", "deadline", "rank-setup", "collector", "index", "index-setup")
"""Commands that only stacks and this program itself start. They are not in the help."""

WITH_RESULTS = ("profile", "run", "bench", "results", "export")
"""Commands that write the results of runs, which nobody else is to read."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit code. Nothing but SystemExit for `--help` leaves this."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _code(given)
    except BrokenPipeError:
        # The reader of our output is gone: nothing can be said to it, and that is no mistake.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.ERROR)


def _code(arguments: list[str]) -> int:
    """Run the command line, and say why it has failed; the exit code."""
    try:
        code = _run(arguments)
        # Here a reader that is gone can still be handled; at the interpreter's end it cannot.
        if sys.stdout is not None:  # closed by the shell
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        raise
    except AiperfError as error:
        _print_error(str(error), error, arguments)
        return int(error.exit_code)
    except KeyboardInterrupt as error:
        _print_json("stopped by the user", error, arguments)
        return int(ExitCode.INTERRUPTED)
    except Exception as error:
        text = f"unexpected {type(error).__name__}: {error}; AIPERF_DEBUG=1 shows where"
        _print_error(text, error, arguments)
        return int(ExitCode.ERROR)


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return int(ExitCode.OK if arguments else ExitCode.BAD_CONFIG)
    name, *rest = arguments
    if name == "--version":
        name = "version"
    if name not in (*COMMANDS, *POD_COMMANDS):
        close = did_you_mean(name, COMMANDS)
        raise ConfigError(f"{name!r} is not a command{close or '; see aiperf-svc --help'}")
    command = import_module(f"aiperf_svc.cli.commands.{name.replace('-', '_')}")
    parser = Parser(name, command.DESCRIPTION)
    command.add_arguments(parser)
    args = parser.parse(rest)
    args.command_line = command_line(arguments)
    with private_files() if name in WITH_RESULTS else nullcontext():
        return int(command.run(args))


def _help() -> str:
    width = max(map(len, COMMANDS))
    return "\n".join(
        (
            "usage: aiperf-svc COMMAND [FLAGS]      aiperf-svc COMMAND --help",
            "",
            "Measures AI inference services under load, and says whether to believe the numbers.",
            "",
            "commands:",
            *(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()),
            "",
            exit_code_help(),
        )
    )


def _print_error(text: str, error: BaseException, arguments: Sequence[str]) -> None:
    print(f"error: {lines(text)}", file=sys.stderr)
    if os.environ.get("AIPERF_DEBUG"):
        import traceback

        print(lines("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    _print_json(text, error, arguments)


def _print_json(text: str, error: BaseException, arguments: Sequence[str]) -> None:
    """Print an error as the JSON object that was asked for. What a command prints itself it prints
    at its end, after which it raises nothing."""
    if JSON in arguments:
        from aiperf_svc.runner.printing import print_failure

        print_failure(error, lines(text))
