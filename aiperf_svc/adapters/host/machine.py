"""Resources of this machine: cores, file descriptors, memory, local ports.

The result of `aiperf-svc calibrate` is kept in a file between runs. The file's name contains the
processor, the cores, Python and our version, so figures of another machine or build are never used.
"""

import hashlib
import os
import platform
import re
import resource
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from random import SystemRandom

import msgspec

from aiperf_svc import __version__
from aiperf_svc.adapters.host.build import commit
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.plan.topology import Facts
from aiperf_svc.protocol.ports import Port


class LagStep(msgspec.Struct, frozen=True):
    """Open loop at one rate."""

    rate: float
    """Target rate in requests per second."""
    schedule_lag_p99_ms: float
    verdict: str


class Calibration(msgspec.Struct, frozen=True):
    """This machine's maximum load, with the mock server on the same cores."""

    machine: str
    worker_requests_per_s: float
    """Closed loop, one worker, one-token streams."""
    requests_per_s: float
    """Closed loop, workers on half of the cores and the server on the other half."""
    chunks_per_s: float
    """Streams of 100 tokens."""
    worker_rate: float
    """Open loop, one worker: the highest rate with a low schedule lag."""
    connections: int
    """Connections of one worker, limited by its file descriptors."""
    steps: tuple[LagStep, ...] = ()


def machine_key(cpu: str, cores: float) -> str:
    """Return the key for which a calibration is valid."""
    return f"{cpu}, {cores:g} cores, Python {platform.python_version()}, aiperf-svc {__version__}"


def calibration_file(machine: str) -> Path:
    """Return the path of a machine's calibration."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    name = hashlib.sha256(machine.encode()).hexdigest()[:12]
    return Path(base).expanduser() / "aiperf-svc" / f"calibration-{name}.json"


def load_calibration(machine: str) -> Calibration | None:
    """Return the saved calibration; None without a readable file of this version."""
    try:
        found = msgspec.json.decode(calibration_file(machine).read_bytes(), type=Calibration)
    except (OSError, msgspec.MsgspecError, RuntimeError):
        return None
    return found if found.machine == machine else None


def save_calibration(calibration: Calibration) -> Path:
    """Save the calibration and return its path. Raises EnvironmentProblem."""
    path = calibration_file(calibration.machine)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(calibration)) + b"\n")
        partial.replace(path)
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot keep the calibration in {path}: {error.strerror or error}; "
            "set XDG_CACHE_HOME to another folder"
        ) from error
    return path


UNKNOWN = "unknown"
_CGROUP = Path("/sys/fs/cgroup")
_UNLIMITED = 1 << 60
"""cgroup v1 reports a number above this if there is no memory limit."""


def local_facts() -> Facts:
    """Return the facts for planning a local run. Raises this process's limit of descriptors."""
    cores = usable_cores()
    facts = Facts(
        where="local", cores=cores, fd_limit=raise_fd_limit(), memory_bytes=memory_bytes()
    )
    found = load_calibration(machine_key(cpu_model(), cores))
    if found is None:
        return facts
    return msgspec.structs.replace(
        facts,
        worker_requests_per_s=found.worker_rate,
        ceiling_requests_per_s=found.requests_per_s,
    )


def usable_cores(cgroup: Path = _CGROUP) -> float:
    """Return the CPUs that this process may use: its affinity, or a smaller cgroup quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    cores = float(len(affinity(0)) if affinity else os.cpu_count() or 1)
    quotas = [_quota_v2(folder / "cpu.max") for folder in _own_cgroups(cgroup)]
    quotas.append(_quota_v1(cgroup / "cpu"))
    return min([cores, *(quota for quota in quotas if quota)])


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the processor's name, or its architecture if the kernel does not report the name."""
    for line in _read(cpuinfo).splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.machine()


def host_facts(root: Path = Path("/")) -> dict[str, str]:
    """Return the properties of this machine that affect a client's speed and regularity, by name;
    `unknown` if the kernel does not report them."""
    cpus = root / "sys/devices/system/cpu"
    governors = {_read(path).strip() for path in cpus.glob("cpu*/cpufreq/scaling_governor")}
    nodes = len(list((root / "sys/devices/system/node").glob("node[0-9]*")))
    release = re.search(r'^PRETTY_NAME="?([^"\n]*)', _read(root / "etc/os-release"), re.MULTILINE)
    return {
        "aiperf_svc": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "os": release[1] if release else UNKNOWN,
        "cpu": cpu_model(root / "proc/cpuinfo"),
        "cores": f"{usable_cores():g}",
        "memory_gib": f"{memory_bytes() / 2**30:.1f}",
        "cpu_governor": ", ".join(sorted(governors)) or UNKNOWN,
        "smt": _switch(cpus / "smt/active"),
        "numa_nodes": str(nodes or UNKNOWN),
        "numa_balancing": _switch(root / "proc/sys/kernel/numa_balancing"),
    }


def free_ports() -> dict[str, int]:
    """Return a free loopback port for each port of the map that has a single binder."""
    names = [port.name for port in Port if port not in (Port.RAW_DIRECT, Port.RESULTS_API)]
    return dict(zip(names, unused_ports(len(names)), strict=True))


def unused_ports(number: int) -> list[int]:
    """Return loopback ports on which nothing listens. They are below the kernel's ephemeral range,
    because a connection or listener could otherwise take one of them before it is used. Raises
    EnvironmentProblem if there are too few."""
    found: list[int] = []
    with ExitStack() as held:
        for port in SystemRandom().sample(range(10_000, 32_768), 1_000):
            each = held.enter_context(socket.socket())
            with suppress(OSError):
                each.bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == number:
                return found
    raise EnvironmentProblem(f"{len(found)} of {number} free ports found on 127.0.0.1")


def _switch(path: Path) -> str:
    return {"0": "off", "": UNKNOWN}.get(_read(path).strip(), "on")


def raise_fd_limit() -> int:
    """Raise the soft limit of file descriptors to the hard limit for this process and its
    children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):
            # Keep the soft limit if "unlimited" exceeds the kernel's maximum.
            return soft
    return hard if hard != resource.RLIM_INFINITY else 1 << 20


def memory_bytes(cgroup: Path = _CGROUP) -> int:
    """Return the memory of the machine, or a smaller cgroup limit."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    paths = [folder / "memory.max" for folder in _own_cgroups(cgroup)]
    for path in (*paths, cgroup / "memory/memory.limit_in_bytes"):
        limit = _number(_read(path))
        if limit and limit < _UNLIMITED:
            limits.append(limit)
    return min(limits)


def port_range() -> tuple[int, int]:
    """Return the first and last port of the kernel's ephemeral range."""
    ports = _read(Path("/proc/sys/net/ipv4/ip_local_port_range")).split()
    return (int(ports[0]), int(ports[1])) if len(ports) == 2 else (32_768, 60_999)


def _own_cgroups(root: Path) -> list[Path]:
    """Return this process's cgroup (v2) and its ancestors; each may have a limit."""
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        number, _, path = line.split(":", 2)
        if number == "0":
            own = root / path.strip("/")
            return [own, *(parent for parent in own.parents if parent.is_relative_to(root))]
    return [root]


def _quota_v2(path: Path) -> float | None:
    quota, _, period = _read(path).partition(" ")
    return int(quota) / int(period) if quota.isdigit() and period.strip().isdigit() else None


def _quota_v1(folder: Path) -> float | None:
    quota = _number(_read(folder / "cpu.cfs_quota_us"))
    period = _number(_read(folder / "cpu.cfs_period_us"))
    return quota / period if quota and period else None


def _number(text: str) -> int | None:
    return int(text) if text.strip().isdigit() else None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
