"""The load of this program's own services over time, for comparison with the series of servers: was
the client slow in that second?

Services are grouped by kind, since a run may have thousands. The busiest one of a kind counts,
because it delays requests.
"""

from collections.abc import Iterable
from typing import NamedTuple

from aiperf_svc.core.telemetry.log import SourceLog
from aiperf_svc.core.telemetry.page import Page, Series
from aiperf_svc.core.telemetry.series import Plotted
from aiperf_svc.core.verdict.health_log import ClientLoad
from aiperf_svc.protocol.messages.reports import Vitals
from aiperf_svc.protocol.services import Service

NAME = "aiperf-svc"
INTERVAL_NS = 1_000_000_000
SILENT_NS = 3_000_000_000
"""Age after which a heartbeat is ignored. Services send one each second."""
MIN_NS = 250_000_000
"""Minimum time for computing shares."""
CPU, LAG, SHARE = (
    "aiperf_service_cpu_ratio",
    "aiperf_service_loop_lag_seconds",
    "aiperf_node_cpu_lost_ratio",
)
IN_FLIGHT, COMPLETED, ERRORED = (
    "aiperf_requests_in_flight",
    "aiperf_requests_completed_total",
    "aiperf_requests_errored_total",
)
_TYPES = {CPU: "gauge", LAG: "gauge", SHARE: "gauge", IN_FLIGHT: "gauge"} | dict.fromkeys(
    (COMPLETED, ERRORED), "counter"
)
_TITLES = {
    CPU: ("CPU of the busiest service", "cores"),
    LAG: ("Event loop delay", "s"),
    SHARE: ("Waits for the CPU", "share of the time"),
}
_CAUSES = {
    "pressure": "pressure on the node",
    "stolen": "stolen by the host",
    "throttled": "over the quota",
}


class _Heartbeat(NamedTuple):
    """The last heartbeat of a service."""

    service: Service
    vitals: Vitals
    wall_ns: int
    shares: dict[str, float]
    """Shares of the preceding time, by cause."""


class ClientSeries:
    """Collects heartbeats and converts them to a page each second."""

    def __init__(self) -> None:
        self.log = SourceLog(NAME)
        self._latest: dict[str, _Heartbeat] = {}
        self._sampled_ns = 0

    def add(self, sender: str, service: Service, vitals: Vitals, *, at_wall_ns: int) -> None:
        known = self._latest.get(sender)
        if known is None:
            self._latest[sender] = _Heartbeat(service, vitals, at_wall_ns, {})
        elif at_wall_ns - known.wall_ns >= MIN_NS:
            shares = _shares(known.vitals, vitals, at_wall_ns - known.wall_ns)
            self._latest[sender] = _Heartbeat(service, vitals, at_wall_ns, shares)

    def load(self, wall_ns: int) -> ClientLoad | None:
        """Return the current load; None without recent heartbeats."""
        fresh = [each for each in self._latest.values() if wall_ns - each.wall_ns < SILENT_NS]
        if not fresh:
            return None
        load = ClientLoad(cpu_cores={}, loop_lag_s={}, cpu_lost={})
        for each in fresh:
            _set_max(load.cpu_cores, each.service.value, each.vitals.cpu_fraction)
            _set_max(load.loop_lag_s, each.service.value, each.vitals.loop_lag_ns / 1e9)
            for cause, share in each.shares.items():
                _set_max(load.cpu_lost, cause, share)
        return load

    def sample(
        self, wall_ns: int, *, in_flight: int, completed: int, errored: int, is_last: bool = False
    ) -> None:
        """Record the current load: once per second, and at the end with the run's totals.

        Both counts are of records. A total of the workers' reports would decrease when a complete
        response turns out to be an error.
        """
        if wall_ns - self._sampled_ns < INTERVAL_NS and not is_last:
            return
        load = self.load(wall_ns)
        if load is None and not is_last:
            return
        self._sampled_ns = wall_ns
        values = {
            Series(IN_FLIGHT): float(in_flight),
            Series(COMPLETED): float(completed),
            Series(ERRORED): float(errored),
        }
        known = load or ClientLoad(cpu_cores={}, loop_lag_s={}, cpu_lost={})
        for name, label, found in (
            (CPU, "service", known.cpu_cores),
            (LAG, "service", known.loop_lag_s),
            (SHARE, "cause", known.cpu_lost),
        ):
            values |= {Series(name, ((label, which),)): value for which, value in found.items()}
        self.log.add(Page(values, _TYPES, None), wall_ns=wall_ns, latency_ns=0)


def plots(log: SourceLog) -> Iterable[Plotted]:
    """Yield the plots of a run's own services: a line for each kind of service or each cause."""
    for name, (title, unit) in _TITLES.items():
        lines = [
            (_label(each.series), *log.curve(number))
            for number, each in enumerate(log.series)
            if each.series.name == name
        ]
        if any(curve[2].any() for curve in lines):
            yield Plotted(name, title, unit, tuple(lines))


def _label(series: Series) -> str:
    ((_, value),) = series.labels
    return _CAUSES.get(value, value)


def _shares(before: Vitals, after: Vitals, elapsed_ns: int) -> dict[str, float]:
    """Return the shares of time in which the CPU ran something else. Counters that decreased are
    ignored."""
    grown = {
        "pressure": after.pressure_ns - before.pressure_ns,
        "stolen": after.stolen_ns - before.stolen_ns,
        "throttled": after.throttled_ns - before.throttled_ns,
    }
    return {cause: min(1.0, max(0, ns) / elapsed_ns) for cause, ns in grown.items()}


def _set_max(values: dict[str, float], name: str, value: float) -> None:
    values[name] = max(values.get(name, 0.0), value)
