"""Faults that make a client too slow, too small or too inaccurate to be valid. Each is bounded and
undone at the end. They start with the first request, so that the start of the run is normal."""

import contextlib
import ctypes
import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks import machine_use

_CPU_GROUPS = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
"""Folders in which a group with a CPU quota can be created, for cgroup versions 1 and 2."""
_PERIOD_US = 100_000
_CLONE_NEWNET = 0x4000_0000
_LEAVING_S = 60
_BUSY_S = 20
"""CPU seconds after which the kernel kills a busy neighbour that was not stopped."""

Client = subprocess.Popen[str]

_STEP_FILE = "step_at"
"""When the clocks are stepped, in nanoseconds on the machine's clock. 0 means not yet."""
_CLOCK_PATCH = """
import mmap, os, struct, sys, time
if os.environ.get("AIPERF_SERVICE_ID", "").startswith("worker-"):
    real_ns, step_ns, Plain = time.time_ns, int(os.environ["STEP_NS"]), struct.Struct
    with open(os.environ["STEP_AT"], "rb") as file:
        step_at = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)

    class Timespec(Plain):
        def unpack(self, data):
            seconds, ns = super().unpack(data)
            at_ns = stepped(seconds * 10**9 + ns)
            return at_ns // 10**9, at_ns % 10**9

    def stepped(at_ns):
        begin_ns = int.from_bytes(step_at, "little")
        return at_ns + step_ns if 0 < begin_ns <= at_ns else at_ns

    time.time_ns = lambda: stepped(real_ns())
    struct.Struct = lambda form: Timespec(form) if form == "@qq" else Plain(form)
    sys.modules["aiperf_svc.adapters.inference._stamped_reads"] = None
"""
"""A `sitecustomize` of the workers: their wall clock and the kernel's stamps are set by `STEP_NS`
once, as on a machine whose clock is set, at the time that a file says. The machine's own clock
stays: to set it would disturb all that runs there, and a time namespace has no wall clock of its
own. Reads are interpreted, for the
compiled ones ask the kernel for the time themselves."""


def rest(client: Client, seconds: float) -> bool:
    """Wait while the client runs. Return False if it has ended."""
    try:
        client.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def services(client: Client, name: str) -> list[int]:
    """Return the processes of a run that are `worker`, `record-processor` or, for all singletons in
    one process, `control`."""
    found = []
    for pid in machine_use.family(client.pid):
        _, is_service, names = machine_use.command_line(pid).partition(
            "/aiperf_svc/__main__.py service "
        )
        if is_service and name == ("control" if " " in names else names):
            found.append(pid)
    return found


def wait_for_load(client: Client, count_requests: Callable[[], int]) -> None:
    """Wait until the server has received requests or the client has ended."""
    while rest(client, 0.05) and count_requests() < 1:
        pass


@contextlib.contextmanager
def cpu_quota(pids: list[int], share: float) -> Iterator[None]:
    """Limit the processes together to `share` of one core. Raises OSError without a group."""
    root = next((root for root in _CPU_GROUPS if (root / "cgroup.procs").exists()), None)
    if root is None:
        raise OSError("no groups of processes (cgroups) here")
    group = root / f"starved-{os.getpid()}"
    group.mkdir()
    try:
        quota_us = max(1_000, round(share * _PERIOD_US))
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (group / "cpu.max").write_text(f"{quota_us} {_PERIOD_US}")
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                _make_ordinary(pid)
                (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (root / "cgroup.procs").write_text(left)
        _remove_group(group)


def _remove_group(group: Path) -> None:
    """Remove the group, which processes leave with a delay. Raises OSError if it stays in use."""
    deadline = time.monotonic() + _LEAVING_S
    while True:
        try:
            group.rmdir()
            return
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


@contextlib.contextmanager
def busy_neighbours(pids: list[int], count: int) -> Iterator[None]:
    """Run busy processes with a higher priority than the given ones."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            _make_ordinary(pid)
            os.setpriority(os.PRIO_PROCESS, pid, 19)
    neighbours = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=_bound_cpu)
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()


def _make_ordinary(pid: int) -> None:
    """Remove a real-time priority, which neither quotas nor neighbours affect."""
    os.sched_setscheduler(pid, os.SCHED_OTHER, os.sched_param(0))


def _bound_cpu() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (_BUSY_S, _BUSY_S))


def pause(client: Client, pids: list[int], *, for_s: float, every_s: float, until_s: float) -> None:
    """Stop the processes for a while, repeatedly, for `until_s` in total."""
    end = time.monotonic() + until_s
    while time.monotonic() < end and rest(client, every_s - for_s):
        try:
            _signal(pids, signal.SIGSTOP)
            rest(client, for_s)
        finally:
            _signal(pids, signal.SIGCONT)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def file_limit(count: int) -> Callable[[], None]:
    """Return a function that limits the file descriptors of a child and its children."""
    return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))


@contextlib.contextmanager
def few_ports(count: int) -> Iterator[None]:
    """Enter a new network namespace with this number of local ports for outgoing connections.
    Raises OSError without the permission."""
    with Path("/proc/thread-self/ns/net").open() as home:
        ports = f"40000 {40_000 + count - 1}"
        try:
            machine_use.enter_own_network({"net/ipv4/ip_local_port_range": ports})
            yield
        finally:
            ctypes.CDLL(None).setns(home.fileno(), _CLONE_NEWNET)


def many_ports() -> None:
    """Within `few_ports`, allow other ports, because the client leaves the few in TIME_WAIT."""
    Path("/proc/sys/net/ipv4/ip_local_port_range").write_text("50000 60000")


def clock_step(folder: Path, *, step_ms: float) -> dict[str, str]:
    """Return an environment in which `step_clocks` steps the workers' clock once."""
    (folder / "sitecustomize.py").write_text(_CLOCK_PATCH)
    (folder / _STEP_FILE).write_bytes(bytes(8))
    return {
        "PYTHONPATH": str(folder),
        # Only a separately executed worker can be changed at its start.
        "AIPERF_FORK": "0",
        "STEP_NS": str(round(step_ms * 1e6)),
        "STEP_AT": str(folder / _STEP_FILE),
    }


def step_clocks(folder: Path) -> None:
    """Step the clock of the workers with this folder's environment now."""
    with (folder / _STEP_FILE).open("r+b") as file:
        file.write(time.time_ns().to_bytes(8, "little"))
