"""What the processes said about their own health during the measurement, condensed."""

import msgspec

from aiperf_svc.protocol.messages import Service, Vitals

BUSY_CPU_FRACTION = 0.95
"""A single-threaded process at 95% of its core: a request waits about ten times its own service
time (M/D/1: u / 2(1 - u)), and the next small burst has nowhere to go."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """One process over the profiling phase."""

    id: str
    service: Service
    samples: int
    cpu_mean: float
    """Of one core."""
    busy_share: float
    """Share of the samples over `BUSY_CPU_FRACTION`."""
    loop_lag_p50_ms: float
    """Median over the samples of each interval's largest delay."""
    loop_lag_max_ms: float
    throttled_share: float
    """Of the time, taken away by the cgroup's quota."""
    fd_share: float
    """Most open file descriptors, of the limit."""
    rss_max_bytes: int


class HealthLog:
    """Collects heartbeats' vitals; bounded by one sample a second and process."""

    def __init__(self) -> None:
        self._samples: dict[str, list[tuple[int, Vitals]]] = {}
        self._services: dict[str, Service] = {}

    def add(self, sender: str, service: Service, vitals: Vitals, *, at_wall_ns: int) -> None:
        """Take one heartbeat of the profiling phase, received at `at_wall_ns`."""
        self._services[sender] = service
        self._samples.setdefault(sender, []).append((at_wall_ns, vitals))

    def report(self) -> tuple[Health, ...]:
        """All processes, by id."""
        return tuple(self._condense(sender) for sender in sorted(self._samples))

    def _condense(self, sender: str) -> Health:
        samples = self._samples[sender]
        vitals = [v for _, v in samples]
        elapsed_ns = samples[-1][0] - samples[0][0]
        throttled_ns = vitals[-1].throttled_ns - vitals[0].throttled_ns
        lags = sorted(v.loop_lag_ns / 1e6 for v in vitals)
        return Health(
            id=sender,
            service=self._services[sender],
            samples=len(samples),
            cpu_mean=sum(v.cpu_fraction for v in vitals) / len(vitals),
            busy_share=sum(v.cpu_fraction > BUSY_CPU_FRACTION for v in vitals) / len(vitals),
            loop_lag_p50_ms=lags[len(lags) // 2],
            loop_lag_max_ms=lags[-1],
            throttled_share=throttled_ns / elapsed_ns if elapsed_ns > 0 else 0.0,
            fd_share=max((v.open_fds / v.fd_limit for v in vitals if v.fd_limit), default=0.0),
            rss_max_bytes=max(v.rss_bytes for v in vitals),
        )
