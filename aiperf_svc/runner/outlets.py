"""Makes what passes a run's metrics on while the run is followed, if the user asked for it."""

from typing import TYPE_CHECKING

from aiperf_svc import __version__
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.runner.display import Display
from aiperf_svc.runner.options import RunOptions

if TYPE_CHECKING:
    from aiperf_svc.runner.follower import Outlet


def check_single(options: RunOptions) -> None:
    """Raise ConfigError if the options are for one run only, and there are several at once."""
    if options.metrics_address is not None:
        raise ConfigError(
            "--serve-metrics: a page shows one run, and these are several at the same time; use "
            "--otlp"
        )


def make_outlets(
    options: RunOptions, *, run_id: str, name: str, display: Display
) -> tuple["Outlet", ...]:
    """Return what passes on the metrics of a run; their problems go to the display."""
    outlets: list[Outlet] = []
    if options.otlp is not None:
        # HTTP takes long to import.
        from aiperf_svc.adapters.telemetry.otlp import OtlpSender

        origin = {
            "service.name": "aiperf-svc",
            "service.version": __version__,
            "service.instance.id": run_id,
            "aiperf.benchmark": name,
        }
        outlets.append(
            OtlpSender(options.otlp.url, options.otlp.headers, origin, note=display.note)
        )
    if options.metrics_address is not None:
        from aiperf_svc.adapters.telemetry.metrics_page import MetricsPage

        outlets.append(MetricsPage(*options.metrics_address, note=display.note))
    return tuple(outlets)
