"""Command-line parsing in this program's own words: one message, the nearest name, exit code 2."""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import pairwise
from typing import NoReturn

from aiperf_svc.cli.foreign_flags import COUNTERPARTS, advice_for
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.exit_codes import ExitCode

EXIT_CODES = {
    ExitCode.OK: "the run finished, can be believed, and every SLO held",
    ExitCode.ERROR: "something outside the benchmark failed: a folder, a port, a tool",
    ExitCode.BAD_CONFIG: "config, flags or input refused; nothing was sent",
    ExitCode.BENCHMARK_FAILED: "the run started and could not be finished, or nothing succeeded",
    ExitCode.SLO_MISSED: "the run can be believed and an SLO does not hold",
    ExitCode.VERDICT_INVALID: "the client, a lost process or too many failures shaped the numbers: "
    "do not use them",
    ExitCode.LEAKED: "something that the run created is still there; the list is printed",
    ExitCode.WORSE: "compare --fail-on worse: a metric got worse",
    ExitCode.INCOMPARABLE: "the runs cannot be compared, or not judged as --fail-on asks",
    ExitCode.SLO_NOT_JUDGED: "the run can be believed and does not tell whether an SLO holds",
    ExitCode.UNVERIFIED: "whether anything is left of a stack is not known: it may not be listed",
    ExitCode.INTERRUPTED: "stopped by the user; what was measured is kept",
}


def exit_code_help() -> str:
    """The end of every help text."""
    return "exit codes:\n" + "\n".join(f"  {int(c):>3}  {text}" for c, text in EXIT_CODES.items())


NEGATIVE = re.compile(r"-\.?\d")


class Parser(argparse.ArgumentParser):
    """A parser that raises ConfigError and never exits because of a mistake."""

    def __init__(self, command: str, description: str, *, epilog: str = "") -> None:
        super().__init__(
            prog=f"aiperf-svc {command}".strip(),
            description=description,
            epilog=epilog or exit_code_help(),
            formatter_class=_HelpFormat,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        message = message.removeprefix("argument ").replace(
            "expected one argument", "needs a value"
        )
        raise ConfigError(f"{message}; see {self.prog} --help")

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The parsed arguments, and as `typed` the name of each flag as it was typed, by its
        destination. Raises ConfigError with every argument that is not known."""
        args, unknown = self.parse_known_args(_with_negative_values(arguments))
        called = {name: action.dest for action in self._actions for name in action.option_strings}
        typed = (argument.partition("=")[0] for argument in arguments)
        args.typed = {called[name]: name for name in typed if name in called}
        unknown = [*_without_needless(unknown)]
        if unknown:
            names = [name for action in self._actions for name in action.option_strings]
            lines = [_unknown(argument, names) for argument in _without_their_values(unknown)]
            raise ConfigError("\n  ".join([*lines, f"see {self.prog} --help"]))
        return args


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing when no valid name is near."""
    close = get_close_matches(name, list(valid), n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else ""


def _with_negative_values(arguments: Sequence[str]) -> list[str]:
    """`--duration=-5s` for `--duration -5s`, so that the value is refused for what it is: argparse
    knows negative numbers, but takes one with a unit for a flag."""
    joined: list[str] = []
    for argument in arguments:
        before = joined[-1] if joined else ""
        is_value = NEGATIVE.match(argument) and before.startswith("--") and "=" not in before
        if is_value:
            joined[-1] = f"{before}={argument}"
        else:
            joined.append(argument)
    return joined


def _without_needless(unknown: Iterable[str]) -> Iterator[str]:
    """Yield the arguments without the flags of AIPerf that change nothing here, which are named."""
    is_needless = False
    for argument in unknown:
        if argument.startswith("-"):
            name, _, _ = argument.partition("=")
            advice = advice_for(name)
            is_needless = advice is not None and advice.kind == "same"
            if advice is not None and is_needless:
                print(f"note: {name} changes nothing: {advice.text}", file=sys.stderr)
        if not is_needless:
            yield argument


def _without_their_values(unknown: Sequence[str]) -> Iterator[str]:
    """Yield the arguments without what follows a flag, which may be its value."""
    for before, argument in pairwise(("", *unknown)):
        if argument.startswith("-") or not before.startswith("-"):
            yield argument


def _unknown(argument: str, names: Sequence[str]) -> str:
    if not argument.startswith("-"):
        return f"{argument!r} belongs to no flag"
    name, _, _ = argument.partition("=")
    advice = advice_for(name)
    if advice is not None:
        return f"{name} is a flag of AIPerf: {advice.text}"
    if name in COUNTERPARTS:
        tool, text = COUNTERPARTS[name]
        return f"{name} is a flag of {tool}; here {'it is ' if text[0] == '-' else ''}{text}"
    return f"{name} is not a flag{did_you_mean(name, names)}"


class _HelpFormat(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=100)
