"""What a user chooses about the life of a stack."""

from dataclasses import dataclass

from aiperf_svc.runner.options import RunOptions


@dataclass(frozen=True, kw_only=True)
class StackOptions:
    """How a stack is run."""

    run: RunOptions
    yes: bool = False
    """Ask nothing."""
    keep: bool = False
    """Leave the stack, whatever its run came to, unless the user stops it."""
    keep_on_failure: bool = False
    timeout_s: float | None = None
    """From the start of `up` to the results; the way down is not limited."""
