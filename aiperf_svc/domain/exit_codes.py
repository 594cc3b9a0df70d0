"""Every exit code of the command line. The numbers are an interface and never change."""

from enum import IntEnum


class ExitCode(IntEnum):
    OK = 0
    """The run finished, its verdict is not `invalid`, and every SLO held."""
    ERROR = 1
    """Something outside the benchmark failed: a folder, a port, a library, a cluster; also when
    the API server cannot say whether something is left, and when `check-cluster` finds a cluster
    unfit."""
    BAD_CONFIG = 2
    """Refused before anything was sent: config, flags, usage, a folder for artifacts that cannot be
    made, or a dataset, tokenizer or target host that only a service could look at."""
    BENCHMARK_FAILED = 3
    """The run started and could not be finished, or nothing succeeded."""
    SLO_MISSED = 4
    """The run is believable and an SLO of the config does not hold: by its value, or because too
    many requests failed for a metric of the others to count. Also when `verify` finds a requirement
    that is not met, and when the score of a quality gate is below its minimum."""
    VERDICT_INVALID = 5
    """The numbers do not say what the server does under the load that was asked for, because of the
    client, a lost process, or because too many requests failed: do not use them."""
    LEAKED = 6
    """Something that the run created is still there; the list is printed."""
    WORSE = 7
    """A comparison that was asked to fail found a metric worse."""
    INCOMPARABLE = 8
    """The runs cannot be compared, or not all that was asked to fail can be judged."""
    SLO_NOT_JUDGED = 9
    """The run is believable, no SLO is known to be missed, and one cannot be judged: its percentile
    has too few values, or it was not measured."""
    UNVERIFIED = 10
    """Whether something is left of a stack is not known: types of objects that it uses may not be
    listed."""
    INTERRUPTED = 130
    """Stopped by the user, after a full teardown; what was measured is kept."""
