"""The error tree. Adapters translate library errors into these.

AiperfError
├── ConfigError          bad input, refused before anything starts        exit 2
│   └── DatasetError     names file and line
├── BenchmarkFailed      the run started and could not be finished        exit 3
├── LeakError            something is left behind                         exit 6
├── Unverified           it is unknown whether something is left         exit 10
├── Incomparable         runs that cannot be compared                     exit 8
└── EnvironmentProblem   machine, folder, port, network, tool             exit 1
"""

from aiperf_svc.domain.exit_codes import ExitCode


class AiperfError(Exception):
    """Base of all errors that a user sees as one message, never as a traceback."""

    exit_code = ExitCode.ERROR
    run_id = ""
    """The run that the error has ended, if there was one."""


class ConfigError(AiperfError):
    """Config, flags or input refused before anything starts."""

    exit_code = ExitCode.BAD_CONFIG


class DatasetError(ConfigError):
    """A dataset that cannot be read; the message names file and line."""


class BenchmarkFailed(AiperfError):
    """The run started and could not be finished."""

    exit_code = ExitCode.BENCHMARK_FAILED


class LeakError(AiperfError):
    """Something that the run created is still there."""

    exit_code = ExitCode.LEAKED


class Unverified(AiperfError):
    """It is unknown whether resources remain, because listing them is not permitted."""

    exit_code = ExitCode.UNVERIFIED


class Incomparable(AiperfError):
    """Runs that cannot be compared with each other."""

    exit_code = ExitCode.INCOMPARABLE


class EnvironmentProblem(AiperfError):
    """The machine, a folder, a port, the network or a tool prevents the work."""


def error_text(error: BaseException) -> str:
    """Return the message of an error. Mark an error of another library as unexpected."""
    is_known = isinstance(error, AiperfError)
    return str(error) if is_known else f"unexpected {type(error).__name__}: {error}"
