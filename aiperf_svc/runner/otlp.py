"""Makes the sender of a run's metrics, if the user asked for it."""

from typing import TYPE_CHECKING

from aiperf_svc import __version__
from aiperf_svc.runner.display import Display
from aiperf_svc.runner.options import OtlpTarget

if TYPE_CHECKING:
    from aiperf_svc.adapters.telemetry.otlp import OtlpSender


def make_sender(
    target: OtlpTarget | None, *, run_id: str, name: str, display: Display
) -> "OtlpSender | None":
    """Return what sends the metrics of a run; its problems go to the display."""
    if target is None:
        return None
    # HTTP takes long to import.
    from aiperf_svc.adapters.telemetry.otlp import OtlpSender

    origin = {
        "service.name": "aiperf-svc",
        "service.version": __version__,
        "service.instance.id": run_id,
        "aiperf.benchmark": name,
    }
    return OtlpSender(target.url, target.headers, origin, note=display.note)
