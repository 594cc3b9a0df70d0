"""A process's own health: CPU use, CPU time lost to its quota, the machine's hypervisor and other
processes, event-loop delay, memory, descriptors."""

import asyncio
import os
import resource
from pathlib import Path
from time import monotonic_ns
from typing import NamedTuple

from aiperf_svc.core.verdict.health_log import stopped_share
from aiperf_svc.protocol.messages.reports import Vitals

SAMPLE_S = 0.05
"""Interval between probes of the event loop's delay."""
MIN_INTERVAL_S = 0.5
"""Calls within this time get the same result: over a few milliseconds every CPU is either fully
busy or idle."""
_PAGE = os.sysconf("SC_PAGE_SIZE")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
_MACHINE = Path("/proc/stat")
_PRESSURE = Path("/proc/pressure/cpu")
_SCHEDULER = Path("/proc/self/schedstat")
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


class VitalsProbe:
    """Measures the time between two calls of `take`."""

    def __init__(self) -> None:
        self._mono_ns = monotonic_ns()
        self._cpu_s = _cpu_s()
        self._lag_ns = 0
        self._quota = QuotaProbe()
        self._stolen_at_start_ns = stolen_ns()
        self._pressure_at_start_ns = pressure_ns()
        self._last = Vitals()

    async def watch_loop(self) -> None:
        """Probe the delay of the running event loop until cancelled."""
        while True:
            before = monotonic_ns()
            await asyncio.sleep(SAMPLE_S)
            late = monotonic_ns() - before - round(SAMPLE_S * 1e9)
            self._lag_ns = max(self._lag_ns, late)

    def take(self) -> Vitals:
        """Return the health since the last call, or the last result if that was just now."""
        now = monotonic_ns()
        elapsed_s = (now - self._mono_ns) / 1e9
        if elapsed_s < MIN_INTERVAL_S:
            return self._last
        cpu_s = _cpu_s()
        self._last = Vitals(
            cpu_fraction=(cpu_s - self._cpu_s) / elapsed_s,
            throttled_ns=self._quota.stopped_ns(now - self._mono_ns),
            loop_lag_ns=self._lag_ns,
            rss_bytes=_rss_bytes(),
            open_fds=_open_fds(),
            fd_limit=fd_limit(),
            stolen_ns=stolen_ns() - self._stolen_at_start_ns,
            pressure_ns=pressure_ns() - self._pressure_at_start_ns,
            waited_ns=waited_ns(),
        )
        self._mono_ns, self._cpu_s, self._lag_ns = now, cpu_s, 0
        return self._last


class _CpuTime(NamedTuple):
    """A cgroup's counters, summed over CPUs."""

    throttled_ns: int
    used_ns: int


class QuotaProbe:
    """Measures how long CPU quotas of this process's cgroup and its ancestors throttled it."""

    def __init__(self, membership: Path = _OWN_CGROUPS, root: Path = _CGROUPS) -> None:
        self._cgroups = _cpu_cgroups(membership, root)
        self._known = [_cpu_time_of(each) for each in self._cgroups]
        self._stopped_ns = [0.0] * len(self._cgroups)

    def stopped_ns(self, elapsed_ns: int) -> int:
        """Return the throttled time since the probe was created, including the time since the last
        call, `elapsed_ns` ago."""
        for index, cgroup in enumerate(self._cgroups):
            before, after = self._known[index], _cpu_time_of(cgroup)
            self._known[index] = after
            self._stopped_ns[index] += elapsed_ns * stopped_share(
                throttled_ns=after.throttled_ns - before.throttled_ns,
                used_ns=after.used_ns - before.used_ns,
                length_ns=elapsed_ns,
            )
        return round(max(self._stopped_ns, default=0.0))


def fd_limit() -> int:
    """Return this process's limit of file descriptors."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def boot_id() -> str:
    """Return the id of the running kernel's boot, which identifies its clock."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _rss_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def _open_fds() -> int:
    """Since Linux 6.2 the folder's size is the count; listing 20,000 of them is slow."""
    folder = Path("/proc/self/fd")
    return folder.stat().st_size or sum(1 for _ in folder.iterdir())


def throttled_ns(membership: Path = _OWN_CGROUPS, root: Path = _CGROUPS) -> int:
    """Return the time for which CPU quotas have throttled this process's cgroup or its ancestors
    (v1 or v2), summed over CPUs; 0 if there is no readable quota."""
    known = map(_cpu_time_of, _cpu_cgroups(membership, root))
    return max((each.throttled_ns for each in known), default=0)


def stolen_ns(machine: Path = _MACHINE) -> int:
    """Return the steal time since boot: the time for which a virtual machine's cores were ready to
    run but its host ran others, as the mean over the cores."""
    lines = machine.read_text().splitlines()
    cores = sum(line.startswith("cpu") for line in lines) - 1
    return int(lines[0].split()[8]) * _TICK_NS // cores


def pressure_ns(pressure: Path = _PRESSURE) -> int:
    """Return the time since boot in which some task waited for a CPU; 0 if it is unknown."""
    try:
        some = pressure.read_text().partition("\n")[0]
    except OSError:
        return 0
    return int(some.rpartition("total=")[2]) * 1_000


def waited_ns(scheduler: Path = _SCHEDULER) -> int:
    """Return the time for which the main thread waited in a run queue; 0 if it is unknown."""
    try:
        return int(scheduler.read_text().split()[1])
    except (OSError, IndexError):
        return 0


def _cpu_cgroups(membership: Path, root: Path) -> list[Path]:
    """Return the process's own CPU cgroups and their ancestors. In a container the path may be the
    host's and not exist; the root of the mount, which is the container's own cgroup, always
    exists."""
    found = []
    for line in membership.read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" or "cpu" in controllers.split(","):
            top = root if number == "0" else root / "cpu"
            own = top / path.strip("/")
            found += [own, *(above for above in own.parents if above.is_relative_to(top))]
    return found


def _cpu_time_of(cgroup: Path) -> _CpuTime:
    try:
        stats = (cgroup / "cpu.stat").read_text()
    except OSError:
        return _CpuTime(0, 0)
    fields = {name: int(value) for name, value in map(str.split, stats.splitlines())}
    if "usage_usec" in fields:
        return _CpuTime(fields.get("throttled_usec", 0) * 1_000, fields["usage_usec"] * 1_000)
    try:
        used_ns = int((cgroup / "cpuacct.usage").read_text())
    except OSError:
        used_ns = 0
    return _CpuTime(fields.get("throttled_time", 0), used_ns)
