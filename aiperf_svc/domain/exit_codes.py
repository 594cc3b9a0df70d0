"""Every exit code of the command line. The numbers are an interface and never change."""

from enum import IntEnum


class ExitCode(IntEnum):
    OK = 0
    """The run finished, its verdict is not `invalid`, and every SLO held."""
    ERROR = 1
    """Something outside the benchmark failed: a folder, a port, a library, a cluster. Also when the
    API server did not report whether anything remains, and when `check-cluster` finds a cluster
    unfit."""
    BAD_CONFIG = 2
    """Refused before anything was sent: config, flags, usage, an artifact folder that cannot be
    created, or a dataset, tokenizer or target host that only a service could check."""
    BENCHMARK_FAILED = 3
    """The run started and could not be finished, or nothing succeeded."""
    SLO_MISSED = 4
    """The verdict is not `invalid`, but an SLO of the config was missed, by its value or because
    too many requests failed for a metric of the rest to count. Also when `verify` finds an unmet
    requirement, and when the score of a quality gate is below its minimum."""
    VERDICT_INVALID = 5
    """The numbers do not describe the server under the requested load, because of the client, a
    lost process or too many failed requests. Do not use them."""
    LEAKED = 6
    """Resources of the run remain; the output lists them."""
    WORSE = 7
    """A comparison with `--fail-on` found that a metric got worse."""
    INCOMPARABLE = 8
    """The runs cannot be compared, or not every metric of `--fail-on` can be judged."""
    SLO_NOT_JUDGED = 9
    """The verdict is not `invalid` and no SLO is known to be missed, but one cannot be judged: its
    percentile has too few values, or it was not measured."""
    UNVERIFIED = 10
    """It is unknown whether resources of a stack remain: listing some types of objects is not
    permitted."""
    INTERRUPTED = 130
    """Stopped by the user, after a full teardown; results so far are kept."""
