"""Aggregates the processes' reports about their own health during profiling."""

from array import array

import msgspec

from aiperf_svc.protocol.messages.reports import Vitals
from aiperf_svc.protocol.services import Service

BUSY_CPU_FRACTION = 0.95
"""CPU use at which a process counts as busy. At 95% of its core a request waits about ten times its
own service time (M/D/1: u / 2(1 - u)), without reserve for bursts."""


class ClientLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The busiest service of each kind, for the status of a run."""

    cpu_cores: dict[str, float]
    """Cores by kind of service."""
    loop_lag_s: dict[str, float]
    """Largest delay of an event loop by kind of service."""
    cpu_lost: dict[str, float]
    """Largest share of time in which a node's CPU ran something else, by cause."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Health of one process over the profiling phase."""

    id: str
    service: Service
    samples: int
    cpu_mean: float
    """Mean CPU use, as a share of one core."""
    busy_share: float
    """Share of the samples above `BUSY_CPU_FRACTION`."""
    loop_lag_p50_ms: float
    """Median over the samples of each interval's longest event-loop delay."""
    loop_lag_max_ms: float
    throttled_share: float
    """Share of the time in which the cgroup's quota throttled the process."""
    stolen_share: float
    """Share of the machine's CPU time that its host used for others."""
    waited_share: float
    """Share of the time in which the process' main thread was runnable and waited for a
    CPU."""
    fd_share: float
    """Maximum open file descriptors, as a share of the limit."""
    rss_max_bytes: int


class _Process:
    """The samples of one process, 12 bytes each, because thousands of processes report every second
    for hours."""

    def __init__(self, service: Service, first: Vitals, at_wall_ns: int) -> None:
        self.service = service
        self.first, self.first_wall_ns = first, at_wall_ns
        self.cpu = array("f")
        self.lag_ns = array("q")
        self.fd_share = 0.0
        self.rss_max_bytes = 0

    def add(self, vitals: Vitals, at_wall_ns: int) -> None:
        self.last, self.last_wall_ns = vitals, at_wall_ns
        self.cpu.append(vitals.cpu_fraction)
        self.lag_ns.append(vitals.loop_lag_ns)
        if vitals.fd_limit:
            self.fd_share = max(self.fd_share, vitals.open_fds / vitals.fd_limit)
        self.rss_max_bytes = max(self.rss_max_bytes, vitals.rss_bytes)

    def condensed(self, name: str) -> Health:
        samples = len(self.cpu)
        elapsed_ns = self.last_wall_ns - self.first_wall_ns
        throttled_ns = self.last.throttled_ns - self.first.throttled_ns
        stolen_ns = self.last.stolen_ns - self.first.stolen_ns
        waited_ns = self.last.waited_ns - self.first.waited_ns
        lags = sorted(self.lag_ns)
        return Health(
            id=name,
            service=self.service,
            samples=samples,
            cpu_mean=sum(self.cpu) / samples,
            busy_share=sum(share > BUSY_CPU_FRACTION for share in self.cpu) / samples,
            loop_lag_p50_ms=lags[samples // 2] / 1e6,
            loop_lag_max_ms=lags[-1] / 1e6,
            throttled_share=throttled_ns / elapsed_ns if elapsed_ns > 0 else 0.0,
            stolen_share=stolen_ns / elapsed_ns if elapsed_ns > 0 else 0.0,
            waited_share=waited_ns / elapsed_ns if elapsed_ns > 0 else 0.0,
            fd_share=self.fd_share,
            rss_max_bytes=self.rss_max_bytes,
        )


class HealthLog:
    """Collects the vitals in heartbeats, at most one sample per second and process."""

    def __init__(self) -> None:
        self._processes: dict[str, _Process] = {}

    def add(self, sender: str, service: Service, vitals: Vitals, *, at_wall_ns: int) -> None:
        """Add one heartbeat of the profiling phase, received at `at_wall_ns`."""
        process = self._processes.get(sender)
        if process is None:
            process = self._processes[sender] = _Process(service, vitals, at_wall_ns)
        process.add(vitals, at_wall_ns)

    def report(self) -> tuple[Health, ...]:
        return tuple(self._processes[name].condensed(name) for name in sorted(self._processes))


def stopped_share(*, throttled_ns: int, used_ns: int, length_ns: int) -> float:
    """Return the share of a time, 0 to 1, for which a quota throttled a cgroup that used `used_ns`
    of CPU time. If it had work for more than one CPU, return the share that the quota took of
    the needed CPU time. If `used_ns` is 0 (unknown), several CPUs make the share too high.

    The kernel's `throttled_usec` and `throttled_time` are sums over CPUs: each CPU adds the time in
    which it had tasks of the group that were not allowed to run (`unthrottle_cfs_rq` in
    kernel/sched/fair.c). A group with threads on eight CPUs that is throttled for one second adds
    up to eight.
    """
    wanted_ns = max(length_ns, throttled_ns + used_ns)
    return max(0.0, throttled_ns / wanted_ns) if wanted_ns > 0 else 0.0
