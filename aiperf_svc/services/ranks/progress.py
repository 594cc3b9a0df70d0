"""What is shown of a benchmark on ranks while it goes."""

from time import time_ns

from msgspec.structs import replace

from aiperf_svc.adapters.results_api.status import Status, StepStatus
from aiperf_svc.protocol.messages.reports import StepProgress
from aiperf_svc.services.base_progress import BaseProgress


class StepsProgress(BaseProgress):
    """Builds the `Status` of a run of workload `kind`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self._kind = kind
        self._steps = StepProgress(total=0, ended=0, attempts=0)
        """Of no steps, until the timing manager has planned them."""

    def set_steps(self, steps: StepProgress) -> None:
        """Set how far the steps are."""
        if steps != self._steps:
            self._steps = steps
            self._changes.note()

    def status(self) -> Status:
        """Return the current status."""
        return replace(super().status(), steps=_step_status(self._kind, self._steps))


def _step_status(kind: str, steps: StepProgress) -> StepStatus:
    running_ns = time_ns() - steps.due_wall_ns if steps.due_wall_ns else 0
    return StepStatus(
        workload=kind,
        total=steps.total,
        ended=steps.ended,
        failed=len(steps.failures),
        name=steps.name,
        stage=steps.stage,
        running_s=max(0.0, running_ns / 1e9),
        expected_s=steps.expected_ns / 1e9,
        text=steps.text,
    )
