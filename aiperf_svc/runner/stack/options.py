"""Options of a user for the life of a stack."""

from dataclasses import dataclass

from aiperf_svc.runner.options import RunOptions


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """How a stack is run and removed."""

    run: RunOptions
    yes: bool = False
    """True to ask no questions."""
    keep: bool = False
    """True to leave the stack whatever its outcome, unless the user stops it."""
    keep_on_failure: bool = False
    timeout_s: float | None = None
    """Time limit from the start of `up` to the results; the teardown is not limited."""
