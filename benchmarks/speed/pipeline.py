"""Runs `aiperf-svc profile` as a user does and samples the CPU and memory of each service."""

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
    """Samples of the client's processes by service name, and of the server."""

    cpu: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    """(wall time, CPU seconds since each process's start)."""
    memory: list[tuple[float, dict[str, int], int]] = field(default_factory=list)
    """(wall time, PSS of each service, RSS of all) in bytes."""

    def cpu_at(self, wall_s: float) -> dict[str, float]:
        """Return the CPU seconds of each process up to a time, interpolated between samples."""
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
        """Return the bytes of each service in the largest sample between two times, if any."""
        seen = [pss for at, pss, _ in self.memory if begin_s <= at <= end_s]
        return max(seen, key=lambda pss: sum(pss.values()), default={})


@dataclass(kw_only=True)
class Run:
    """One finished run."""

    results: dict[str, Any]
    """`profile_export_aiperf.json`."""
    exit_code: int
    start_s: float
    """From the start of the command to the first due request."""
    load_s: float
    finish_s: float
    """From the last response to the end of the command: processing, exports, report, shutdown."""
    finish_cpu_s: float
    load_cpu_s: dict[str, float]
    """By service, and for `server`, between the first request and the last response."""
    idle_pss: int
    idle_rss: int
    """Bytes of all our processes in the last sample before the first request."""
    held_pss: dict[str, int]
    """Bytes of each service in the largest sample with all requests in flight, if any."""
    load_pss: dict[str, int]
    """Bytes of each service in the largest sample during the load. Empty without samples."""
    peak_pss: int
    """Peak bytes of all our processes until the end of the command, including the burst of last
    responses, the summary and the exports."""
    artifact_bytes: dict[str, int]

    def total(self, tag: str) -> float:
        """Return a metric's sum over all requests, or 0 if it is missing."""
        return float((self.results.get(tag) or {}).get("sum") or 0.0)

    def stat(self, tag: str, name: str = "avg") -> float | None:
        """Return one statistic of a metric, or None if it is missing."""
        found = (self.results.get(tag) or {}).get(name)
        return None if found is None else float(found)

    @property
    def requests(self) -> int:
        """Number of completed requests."""
        return int(self.stat("request_count") or 0)

    @property
    def verdict(self) -> str:
        """The verdict with its cause."""
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
        # Without a timeout, a run that never ends would block the caller.
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
        printed = json.loads(output.read_bytes())
        results = printed["results"]
        began, over = (
            datetime.fromisoformat(results[key]).replace(tzinfo=UTC).timestamp()
            for key in ("start_time", "end_time")
        )
    except (ValueError, KeyError, TypeError) as error:
        text = errors.read_text(errors="replace")[-2_000:]
        raise RuntimeError(
            f"`profile` gave no results (exit {process.returncode}):\n{text}"
        ) from error
    at_start, at_end = watched.cpu_at(began), watched.cpu_at(over)
    load_cpu_s = {name: used - at_start.get(name, 0.0) for name, used in sorted(at_end.items())}
    ours_at_end = sum(value for name, value in at_end.items() if name != "server")
    before = [m for m in watched.memory if m[0] <= began] or watched.memory[:1] or [(0.0, {}, 0)]
    held = _full_load_times(Path(printed["artifacts"])) if watches_memory else (0.0, 0.0)
    return Run(
        results=results,
        exit_code=printed["exit_code"],
        start_s=began - launched,
        load_s=over - began,
        finish_s=ended - over,
        # The kernel's total for the whole family, which includes the last moments.
        finish_cpu_s=usage.ru_utime + usage.ru_stime - ours_at_end,
        load_cpu_s=load_cpu_s,
        idle_pss=sum(before[-1][1].values()),
        idle_rss=before[-1][2],
        held_pss=watched.peak_pss(*held),
        load_pss=watched.peak_pss(began, over),
        peak_pss=sum(watched.peak_pss(launched, ended).values()),
        artifact_bytes={
            path.name: path.stat().st_size for path in Path(printed["artifacts"]).iterdir()
        },
    )


def _watch(pid: int, server_pid: int, watches_memory: bool) -> Watched:
    """Sample until the process has ended, without reaping it."""
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
            # An ended process keeps its last CPU time.
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


def _full_load_times(artifacts: Path) -> tuple[float, float]:
    """Return the wall times of the last request's start and of the first response's end."""
    records = read_records(artifacts / "records.parquet")
    return records["start_wall_ns"].max() / 1e9, records["end_wall_ns"].min() / 1e9


def _service(command: str) -> str:
    """Return the name of one of our processes in the tables."""
    words = command.split()
    if "service" not in words:
        return "runner"
    services = words[words.index("service") + 1 :]
    return services[0] if len(services) == 1 else "control"
