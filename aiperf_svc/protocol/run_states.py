"""The states of a run."""

from enum import StrEnum


class RunState(StrEnum):
    """The states of a run; the last three are final."""

    PENDING = "pending"
    CONFIGURING = "configuring"
    READY = "ready"
    WARMUP = "warmup"
    PROFILING = "profiling"
    DRAINING = "draining"
    PROCESSING = "processing"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self in FINAL_STATES


FINAL_STATES = (RunState.DONE, RunState.FAILED, RunState.CANCELLED)
