"""Command-line parsing: one message for all mistakes, the nearest valid name, exit code 2."""

import argparse
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from shlex import quote
from typing import NoReturn

from aiperf_svc.cli.foreign_flags import COUNTERPARTS, advice_for
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.name_suggestions import did_you_mean

EXIT_CODES: dict[ExitCode, str] = {
    ExitCode.OK: "success: the results are valid and every SLO holds",
    ExitCode.ERROR: "something outside the benchmark failed: a folder, a port, a tool",
    ExitCode.BAD_CONFIG: "the config, a flag or an input is invalid; nothing was sent",
    ExitCode.BENCHMARK_FAILED: "the run did not finish, or no request succeeded",
    ExitCode.SLO_MISSED: "the results are valid, but an SLO or a rule of verify is not met",
    ExitCode.VERDICT_INVALID: "invalid results: the client, a lost process or too many failures "
    "distorted them",
    ExitCode.LEAKED: "objects that the run created still exist; the output lists them",
    ExitCode.WORSE: "compare --fail-on worse: a metric is worse",
    ExitCode.INCOMPARABLE: "the runs cannot be compared, or not judged as --fail-on requires",
    ExitCode.SLO_NOT_JUDGED: "the results are valid, but an SLO has too few values to be judged",
    ExitCode.UNVERIFIED: "no permission to check whether objects of a stack still exist",
    ExitCode.INTERRUPTED: "stopped by the user; results so far are kept",
}


_ANY: dict[ExitCode, str] = {
    ExitCode.OK: "success",
    ExitCode.ERROR: EXIT_CODES[ExitCode.ERROR],
    ExitCode.BAD_CONFIG: EXIT_CODES[ExitCode.BAD_CONFIG],
    ExitCode.INTERRUPTED: "stopped by the user",
}
"""Exit codes that every command may return."""
_MEASURED: dict[ExitCode, str] = {
    code: EXIT_CODES[code]
    for code in (
        *(ExitCode.OK, ExitCode.BENCHMARK_FAILED, ExitCode.VERDICT_INVALID),
        *(ExitCode.SLO_NOT_JUDGED, ExitCode.INTERRUPTED),
    )
} | {ExitCode.SLO_MISSED: "the results are valid, but an SLO is not met"}
_ON_CLUSTERS: dict[ExitCode, str] = _MEASURED | {
    code: EXIT_CODES[code] for code in (ExitCode.LEAKED, ExitCode.UNVERIFIED)
}
CODES_OF: dict[str, dict[ExitCode, str]] = {
    "profile": _ON_CLUSTERS,
    "run": _ON_CLUSTERS,
    "qualify": _ON_CLUSTERS | {ExitCode.SLO_MISSED: "a node or a path has failed"},
    "bench": _MEASURED,
    "results": _MEASURED,
    "status": {ExitCode.BENCHMARK_FAILED: "the run has failed"},
    "check-cluster": {
        ExitCode.OK: "no check failed",
        ExitCode.ERROR: "a check failed, or with --strict gave a warning or was not possible; or "
        "the cluster cannot be reached",
        ExitCode.LEAKED: "an object that the check created still exists",
        ExitCode.UNVERIFIED: "it is unknown whether one still exists: this user may not list it",
    },
    "gc": {
        ExitCode.OK: "nothing is left of the chosen stacks",
        ExitCode.ERROR: "a stack was refused, or a cluster could not be searched",
        ExitCode.LEAKED: "objects are left; the output lists them",
        ExitCode.UNVERIFIED: "it is unknown whether objects are left: this user may not list them",
        ExitCode.INTERRUPTED: "the confirmation was declined, or the command was interrupted",
    },
    "compare": {
        ExitCode.WORSE: EXIT_CODES[ExitCode.WORSE].removeprefix("compare "),
        ExitCode.INCOMPARABLE: EXIT_CODES[ExitCode.INCOMPARABLE],
    },
    "history": {ExitCode.INCOMPARABLE: "the runs cannot be compared"},
    "verify": {ExitCode.SLO_MISSED: "a rule is not met"},
}
"""Exit codes of commands in addition to the common ones, or with another text."""


def codes_of(command: str) -> dict[ExitCode, str]:
    """Return the exit codes of a command in order; the common ones for an empty name."""
    return dict(sorted((_ANY | CODES_OF.get(command, {})).items())) if command else EXIT_CODES


def exit_code_help(command: str = "") -> str:
    """Return the list of a command's exit codes for its help; the common ones for an empty name."""
    return "exit codes:\n" + "\n".join(f"  {int(c):>3}  {t}" for c, t in codes_of(command).items())


API_KEY = "--api-key"
NEGATIVE = re.compile(r"-\.?\d")


def _choices(found: re.Match[str]) -> str:
    # Some versions of Python quote each choice.
    choices = found[2].replace("'", "")
    return f"{found[1]}: expected one of {choices}"


_REWORDED: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    ("^argument ", ""),
    ("expected one argument", "needs a value"),
    ("invalid int value: (.+)", r"\1: expected a whole number"),
    ("invalid float value: (.+)", r"\1: expected a number"),
    (r"invalid choice: (.+) \(choose from (.+)\)", _choices),
)
"""Messages of argparse, and their replacements in the style of config messages."""


class Parser(argparse.ArgumentParser):
    """A parser that raises ConfigError instead of exiting on a mistake."""

    def __init__(self, command: str, description: str) -> None:
        first, end, others = description.partition("\n")
        super().__init__(
            prog=f"aiperf-svc {command}",
            description=first + end + textwrap.dedent(others),
            epilog=exit_code_help(command),
            formatter_class=_HelpFormat,
            allow_abbrev=False,
        )

    def format_help(self) -> str:
        """Return the help, with the descriptions of the keys that the flags set."""
        # Parsing needs neither the table of flags nor the models, which take time to load.
        from aiperf_svc.cli.flags import FLAGS

        keys = {flag.key for flag in FLAGS}
        if any(action.help in keys for action in self._actions):
            from aiperf_svc.cli.key_docs import complete_help

            complete_help(self)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError for the command line."""
        for words, ours in _REWORDED:
            message = re.sub(words, ours, message)
        raise ConfigError(f"{message}; see {self.prog} --help")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return the parsed arguments, with the name of each flag as it was typed in `typed`.

        Raises ConfigError that lists every unknown argument."""
        args, unknown = self.parse_known_args(_with_negative_values(arguments))
        called = {name: action.dest for action in self._actions for name in action.option_strings}
        typed = (argument.partition("=")[0] for argument in arguments)
        args.typed = {called[name]: name for name in typed if name in called}
        unknown = [*_drop_ineffective(unknown)]
        if unknown:
            names = [name for action in self._actions for name in action.option_strings]
            lines = [_unknown(argument, names) for argument in _drop_values(unknown)]
            raise ConfigError("\n  ".join([*lines, f"see {self.prog} --help"]))
        return args


def port_number(text: str) -> int:
    """Parse a TCP port; 0 selects a free port."""
    if not text.isdecimal() or int(text) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a port from 0 to 65,535")
    return int(text)


def add_junit_flag(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add `--junit`."""
    parser.add_argument(
        "--junit",
        metavar="FILE",
        type=Path,
        help="Also write the results as JUnit XML test cases, for CI systems.",
    )


def command_line(arguments: Sequence[str]) -> str:
    """Return the command as it was typed, without the value of `--api-key`."""
    shown = []
    is_key = False
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if is_key:
            argument = _masked(argument)
        elif name == API_KEY and equals:
            argument = f"{name}={_masked(value)}"
        is_key = argument == API_KEY
        shown.append(argument if argument == "***" else quote(argument))
    return " ".join(("aiperf-svc", *shown))


def _masked(value: str) -> str:
    return value if value.startswith(("env:", "@")) else "***"


def _with_negative_values(arguments: Sequence[str]) -> list[str]:
    """Return `--duration=-5s` for `--duration -5s`. argparse accepts negative numbers, but would
    report one with a unit as an unknown flag."""
    joined: list[str] = []
    for argument in arguments:
        before = joined[-1] if joined else ""
        is_value = NEGATIVE.match(argument) and before.startswith("--") and "=" not in before
        if is_value:
            joined[-1] = f"{before}={argument}"
        else:
            joined.append(argument)
    return joined


def _drop_ineffective(unknown: Iterable[str]) -> Iterator[str]:
    """Yield the arguments without AIPerf's flags that have no effect here. Print a note for each
    dropped flag."""
    is_ineffective = False
    for argument in unknown:
        if argument.startswith("-"):
            name, _, _ = argument.partition("=")
            advice = advice_for(name)
            is_ineffective = advice is not None and advice.kind == "same"
            if advice is not None and is_ineffective:
                print(f"note: {name} has no effect: {advice.text}", file=sys.stderr)
        if not is_ineffective:
            yield argument


def _drop_values(unknown: Sequence[str]) -> Iterator[str]:
    """Yield the arguments, except those that may be the value of the preceding flag."""
    for before, argument in pairwise(("", *unknown)):
        if argument.startswith("-") or not before.startswith("-"):
            yield argument


def _unknown(argument: str, names: Sequence[str]) -> str:
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}"
    name, _, _ = argument.partition("=")
    advice = advice_for(name)
    if advice is not None:
        return f"{name} is a flag of AIPerf: {advice.text}"
    if name in COUNTERPARTS:
        tool, text = COUNTERPARTS[name]
        return f"{name} is a flag of {tool}; here {'use ' if text[0] == '-' else ''}{text}"
    return f"{name} is not a flag{did_you_mean(name, names)}"


class _HelpFormat(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=100)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)
