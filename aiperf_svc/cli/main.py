"""The command line: finds and runs the command, and turns every failure into one message and an
exit code. No other module ends the process.

A command consists of two functions with its name: one in `parsers` adds its arguments and imports
only small modules; the other does its work. Only this module imports them, by name and when they
are needed, so `--help`, completion and mistakes in flags are fast.
"""

import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from aiperf_svc.cli.arguments import Parser, command_line, exit_code_help
from aiperf_svc.cli.commands.pod import POD_COMMANDS, run_pod_command
from aiperf_svc.domain.errors import AiperfError, ConfigError, EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.foreign_text import lines
from aiperf_svc.domain.name_suggestions import did_you_mean

JSON = "--json"


COMMANDS = {
    "profile": "run a benchmark from flags",
    "run": "run the benchmark of a stack file, on a cluster or on this machine",
    "qualify": "find the slow nodes and network paths of a cluster",
    "preview": "show what a stack will create and cost",
    "schedule": "print or apply a CronJob that runs a stack on a schedule",
    "status": "show the progress of the run of a stack",
    "results": "fetch the results of a stack that is up",
    "cancel": "stop the run of a stack and keep its results so far",
    "check-cluster": "check whether a cluster is ready for a benchmark: nodes, GPUs, network",
    "gc": "remove what earlier runs left behind in a cluster",
    "init": "create a project with stack files in a folder",
    "validate": "check stack files and configs without starting anything",
    "compare": "compare two sets of runs: which is better or worse",
    "history": "plot a metric over finished runs, and mark where it changed",
    "view": "show finished runs in a browser: search, compare, plot",
    "verify": "check finished runs against the rules of MLPerf Endpoints or AgentX",
    "export": "write the records of a run in another format",
    "upload": "upload the results of a run to an S3-compatible store",
    "track": "send a finished run to MLflow or Weights & Biases",
    "workloads": "list the benchmarks of networks, disks, GPUs and MPI, with their keys",
    "schema": "print the JSON Schema of a stack file or a result file",
    "trace": "describe a trace of a real service: rates, lengths, prefix reuse",
    "migrate": "translate a command line of AIPerf",
    "bench": "measure the built-in mock server for twelve seconds",
    "calibrate": "find the highest load that this machine can generate",
    "mock-server": "serve synthetic tokens at a fixed pace, OpenAI-compatible",
    "nvml-exporter": "serve this machine's GPU metrics to Prometheus, without DCGM",
    "completion": "print a shell script that completes commands and flags",
    "man": "print the manual page",
    "version": "print the version",
}
HIDDEN = ("service", *POD_COMMANDS)
"""Commands that only processes of a run and pods of a stack execute."""
MODULES = (
    ("parsers.runs", "commands.runs", ("profile", "run", "qualify", "bench")),
    ("parsers.runs", "commands.calibrate", ("calibrate",)),
    ("parsers.stacks", "commands.stack_files", ("preview", "schedule", "init", "validate")),
    ("parsers.stacks", "commands.running_stacks", ("status", "results", "cancel")),
    ("parsers.stacks", "commands.clusters", ("check-cluster", "gc")),
    ("parsers.finished_runs", "commands.comparing", ("compare", "history", "verify")),
    ("parsers.finished_runs", "commands.finished_runs", ("view", "export", "upload", "track")),
    ("parsers.tools", "commands.workloads", ("workloads",)),
    ("parsers.tools", "commands.trace", ("trace",)),
    ("parsers.tools", "commands.migrate", ("migrate",)),
    ("parsers.tools", "commands.servers", ("mock-server", "nvml-exporter")),
    ("parsers.tools", "commands.version", ("version",)),
    ("parsers.tools", "commands.service", ("service",)),
    ("parsers.tools", "schemas", ("schema",)),
    ("parsers.tools", "reference", ("completion", "man")),
)
"""Modules with the arguments and the work of each command, below `aiperf_svc.cli`."""
WITH_RESULTS = ("profile", "run", "qualify", "bench", "results", "export")
"""Commands that write results of runs, which only this user may read."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code. Raises only SystemExit for `--help`."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _code(words)
    except BrokenPipeError:
        # The reader of the output has closed the pipe, which is not an error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.ERROR)


def _code(arguments: list[str]) -> int:
    """Run the command line, print the reason of a failure, and return the exit code."""
    try:
        code = _run(arguments)
        # A closed pipe can be handled here, but not when the interpreter exits.
        if sys.stdout is not None:  # None if the shell has closed it
            sys.stdout.flush()
        return code
    except BrokenPipeError:
        raise
    except AiperfError as error:
        code, text = error.exit_code, str(error)
        _print_error(text, error, arguments)
    except KeyboardInterrupt as error:
        code, text = ExitCode.INTERRUPTED, "stopped by the user"
        _print_json(text, error, arguments)
    except Exception as error:
        code = ExitCode.ERROR
        text = f"unexpected {type(error).__name__}: {error}; set AIPERF_DEBUG=1 for a traceback"
        _print_error(text, error, arguments)
    _write_junit(arguments, code, text)
    return int(code)


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return int(ExitCode.OK if arguments else ExitCode.BAD_CONFIG)
    name, *rest = arguments
    if name == "--version":
        name = "version"
    if name in POD_COMMANDS:
        return run_pod_command(name, rest)
    if name not in COMMANDS and name not in HIDDEN:
        close = did_you_mean(name, COMMANDS)
        raise ConfigError(f"{name!r} is not a command{close or '; see aiperf-svc --help'}")
    args = load_parser(name).parse(rest)
    args.command_line = command_line(arguments)
    with ExitStack() as files:
        if name in WITH_RESULTS:
            from aiperf_svc.adapters.host.private_files import private_files

            files.enter_context(private_files())
        return int(work_of(name)(args))


def load_parser(name: str) -> Parser:
    """Return the parser of a command, described by the docstring that its arguments' function
    has."""
    add_arguments = _function(name, 0)
    parser = Parser(name, add_arguments.__doc__ or "")
    add_arguments(parser)
    return parser


def work_of(name: str) -> Callable[..., int]:
    """Return the function that does the work of a command and returns the exit code."""
    return _function(name, 1)


def _function(name: str, column: int) -> Callable[..., Any]:
    """Import the function of a command from the module in a column of `MODULES`."""
    (module,) = (each[column] for each in MODULES if name in each[2])
    found: Callable[..., Any] = getattr(
        import_module(f"aiperf_svc.cli.{module}"), name.replace("-", "_")
    )
    return found


def _write_junit(arguments: Sequence[str], code: ExitCode, reason: str) -> None:
    """Replace the test cases of an earlier run, which could be mistaken for this run's. The command
    line may be invalid, so its words are searched for the flag."""
    name = ""
    for word, following in pairwise((*arguments, "-")):
        flag, equals, value = word.partition("=")
        if flag == "--junit":
            name = value if equals else following
    if not name or name.startswith("-"):
        return
    from aiperf_svc.adapters.storage.junit_file import write_cases

    # Being unable to write the file may be the error itself.
    with suppress(EnvironmentProblem):
        write_cases(Path(name), [], code, reason)


def _help() -> str:
    width = max(map(len, COMMANDS))
    return "\n".join(
        (
            "usage: aiperf-svc COMMAND [FLAGS]      aiperf-svc COMMAND --help",
            "",
            "Measure AI inference servers under load. Each result has a verdict on its validity.",
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
        print(lines("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    _print_json(text, error, arguments)


def _print_json(text: str, error: BaseException, arguments: Sequence[str]) -> None:
    """Print an error as a JSON object for `--json`. A command prints its own object at its end, so
    two objects are never printed."""
    if JSON in arguments:
        from aiperf_svc.adapters.terminal.output import print_failure

        print_failure(error, lines(text))
