"""One run of `aiperf-svc profile` as a user starts it, watched from outside: what each service used
of the CPU and of memory, before, during and after the load."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiperf_svc.adapters.exports.parquet_export import read_records
from aiperf_svc.domain.process_environment import OWN_PROGRAM
from benchmarks import machine_use

SAMPLE_S, FAMILY_S, MEMORY_S = 0.1, 0.5, 0.2
TIMEOUT_S = 180.0


@dataclass
class Watched:
    """Samples of the client's processes, by the name of their service, and of the server."""

    cpu: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    """(wall time, CPU seconds since each process' start)."""
    memory: list[tuple[float, dict[str, int], int]] = field(default_factory=list)
    """(wall time, PSS of each service, RSS of all): bytes."""

    def cpu_at(self, wall_s: float) -> dict[str, float]:
        """CPU seconds of each process up to a time, interpolated between samples."""
        before = self.cpu[0]
        for sample in self.cpu:
            if sample[0] >= wall_s:
                span = sample[0] - before[0]
                part = (wall_s - before[0]) / span if span > 0 else 0.0
                return {
                    name: (old := before[1].get(name, 0.0)) + part * (used - old)
                    for name, used in sample[1].items()
                }
            before = sample
        return before[1]

    def peak_pss(self, begin_s: float, end_s: float) -> dict[str, int]:
        """Bytes of each service in the sample with the most bytes between two times; empty without
        one."""
        seen = [pss for at, pss, _ in self.memory if begin_s <= at <= end_s]
        return max(seen, key=lambda pss: sum(pss.values()), default={})


@dataclass(kw_only=True)
class Run:
    """One finished run."""

    results: dict[str, Any]
    """`profile_export_aiperf.json`."""
    exit_code: int
    start_s: float
    """From the command to the first request due."""
    load_s: float
    finish_s: float
    """From the last response to the command's end: processing, exports, report, shutdown."""
    finish_cpu_s: float
    load_cpu_s: dict[str, float]
    """By service, and `server`, between the first request and the last response."""
    idle_pss: int
    idle_rss: int
    """Bytes of all our processes in the last sample before the first request."""
    held_pss: dict[str, int]
    """Bytes of each service in the largest sample with all requests in flight; empty if none."""
    load_pss: dict[str, int]
    """Bytes of each service in the largest sample during the load; empty without samples."""
    peak_pss: int
    """Most bytes of all our processes up to the end of the command, with the burst of last
    responses, the summary and the exports."""
    artifact_bytes: dict[str, int]

    def total(self, tag: str) -> float:
        """A metric's sum over all requests, 0 without one."""
        return float((self.results.get(tag) or {}).get("sum") or 0.0)

    def stat(self, tag: str, name: str = "avg") -> float | None:
        """One statistic of a metric; None without one."""
        found = (self.results.get(tag) or {}).get(name)
        return None if found is None else float(found)

    @property
    def requests(self) -> int:
        """Completed."""
        return int(self.stat("request_count") or 0)

    @property
    def verdict(self) -> str:
        """With its cause."""
        own: dict[str, str] = self.results["aiperf_svc"]
        return own["verdict"] + (f": {own['cause']}" if own.get("cause") else "")


def run_profile(
    url: str,
    flags: Sequence[str],
    *,
    server_pid: int,
    folder: Path,
    watches_memory: bool = False,
    code: Path | None = None,
) -> Run:
    """Measure the server at `url` and watch; `folder` takes the artifacts. `code` is where another
    copy of the package is, which is to be run.

    Raises RuntimeError with the command's own words when it has no results.
    """
    command = (
        *(*OWN_PROGRAM, "profile", "--url", url, "--model", "mock-model"),
        *("--streaming", "--isl", "50", "--num-dataset-entries", "200", "--ui", "none", "--json"),
        *("--artifact-dir", str(folder), *flags),
    )
    output, errors = folder / "stdout.json", folder / "stderr.txt"
    with output.open("wb") as out, errors.open("wb") as err:
        launched = time.time()
        process = subprocess.Popen(command, stdout=out, stderr=err, process_group=0, cwd=code)
        # A run that never ends would block the caller.
        guard = threading.Timer(TIMEOUT_S, process.terminate)
        guard.start()
        try:
            watched = _watch(process.pid, server_pid, watches_memory)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            guard.cancel()
        ended = time.time()
    try:
        told = json.loads(output.read_bytes())
        results = told["results"]
        began, over = (
            datetime.fromisoformat(results[key]).replace(tzinfo=UTC).timestamp()
            for key in ("start_time", "end_time")
        )
    except (ValueError, KeyError, TypeError) as error:
        words = errors.read_text(errors="replace")[-2_000:]
        raise RuntimeError(
            f"`profile` gave no results (exit {process.returncode}):\n{words}"
        ) from error
    at_start, at_end = watched.cpu_at(began), watched.cpu_at(over)
    load_cpu_s = {name: used - at_start.get(name, 0.0) for name, used in sorted(at_end.items())}
    ours_at_end = sum(value for name, value in at_end.items() if name != "server")
    before = [m for m in watched.memory if m[0] <= began] or watched.memory[:1] or [(0.0, {}, 0)]
    held = _held(Path(told["artifacts"])) if watches_memory else (0.0, 0.0)
    return Run(
        results=results,
        exit_code=told["exit_code"],
        start_s=began - launched,
        load_s=over - began,
        finish_s=ended - over,
        # The kernel's sum over the whole family, which misses nothing of the last moments.
        finish_cpu_s=usage.ru_utime + usage.ru_stime - ours_at_end,
        load_cpu_s=load_cpu_s,
        idle_pss=sum(before[-1][1].values()),
        idle_rss=before[-1][2],
        held_pss=watched.peak_pss(*held),
        load_pss=watched.peak_pss(began, over),
        peak_pss=sum(watched.peak_pss(launched, ended).values()),
        artifact_bytes={
            path.name: path.stat().st_size for path in Path(told["artifacts"]).iterdir()
        },
    )


def _watch(pid: int, server_pid: int, watches_memory: bool) -> Watched:
    """Sample until the process has ended; it stays to be waited for."""
    watched = Watched()
    names: dict[int, str] = {}
    server = machine_use.family(server_pid)
    last: dict[int, float] = {}
    family_at = memory_at = 0.0
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        now = time.monotonic()
        if now >= family_at:
            family_at = now + FAMILY_S
            for member in machine_use.family(pid):
                if names.get(member, "") in ("", "runner"):
                    names[member] = _service(machine_use.command_line(member))
        for member in names:
            # A process that is gone keeps what it had used.
            last[member] = max(last.get(member, 0.0), machine_use.cpu_s([member]))
        used = {"server": machine_use.cpu_s(server)}
        for member, cpu_s in last.items():
            used[names[member]] = used.get(names[member], 0.0) + cpu_s
        watched.cpu.append((time.time(), used))
        if watches_memory and now >= memory_at:
            memory_at = now + MEMORY_S
            pss: dict[str, int] = {}
            for member, name in names.items():
                pss[name] = pss.get(name, 0) + machine_use.pss_bytes([member])
            watched.memory.append((time.time(), pss, machine_use.rss_bytes(names)))
        time.sleep(SAMPLE_S)
    return watched


def _held(artifacts: Path) -> tuple[float, float]:
    """Wall times of the last request's start and of the first response's end."""
    records = read_records(artifacts / "records.parquet")
    return records["start_wall_ns"].max() / 1e9, records["end_wall_ns"].min() / 1e9


def _service(command: str) -> str:
    """What a process of ours is called in the tables."""
    words = command.split()
    if "service" not in words:
        return "runner"
    services = words[words.index("service") + 1 :]
    return services[0] if len(services) == 1 else "control"
