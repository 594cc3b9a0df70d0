"""Throttling is read where the quota is set: in the process's own cgroup or in one above it."""

from pathlib import Path

import pytest

from aiperf_svc.adapters.host.vitals import (
    QuotaProbe,
    pressure_ns,
    stolen_ns,
    throttled_ns,
    waited_ns,
)


def cgroup(folder: Path, stats: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cpu.stat").write_text(stats)


def belongs(folder: Path, line: str) -> Path:
    membership = folder / "membership"
    membership.write_text(line + "\n")
    return membership


def test_cpu_wait_is_read_from_the_scheduler(tmp_path: Path) -> None:
    scheduler = tmp_path / "schedstat"
    assert waited_ns(scheduler) == 0
    scheduler.write_text("606292 2597839 3\n")
    assert waited_ns(scheduler) == 2_597_839


def test_nested_cgroup_v2_quota_is_read(tmp_path: Path) -> None:
    cgroup(tmp_path, "usage_usec 5\n")
    cgroup(tmp_path / "team/run", "usage_usec 5\nthrottled_usec 1500\n")
    assert throttled_ns(belongs(tmp_path, "0::/team/run"), tmp_path) == 1_500_000


def test_a_quota_of_a_group_above_counts_too(tmp_path: Path) -> None:
    cgroup(tmp_path / "team", "usage_usec 9\nthrottled_usec 7\n")
    cgroup(tmp_path / "team/run", "usage_usec 9\nthrottled_usec 0\n")
    assert throttled_ns(belongs(tmp_path, "0::/team/run"), tmp_path) == 7_000


def test_version_1_counts_in_nanoseconds(tmp_path: Path) -> None:
    cgroup(tmp_path / "cpu/run", "nr_throttled 3\nthrottled_time 42\n")
    assert throttled_ns(belongs(tmp_path, "4:cpu,cpuacct:/run"), tmp_path) == 42


def test_container_with_a_host_path_reads_the_root(tmp_path: Path) -> None:
    cgroup(tmp_path, "usage_usec 9\nthrottled_usec 9\n")
    assert throttled_ns(belongs(tmp_path, "0::/kubepods/pod1"), tmp_path) == 9_000


def test_throttled_time_is_zero_without_a_quota(tmp_path: Path) -> None:
    assert throttled_ns(belongs(tmp_path, "7:memory:/run"), tmp_path) == 0


@pytest.mark.parametrize(
    ("used_ms", "throttled_ms", "stopped_ms"),
    [
        (300, 200, 200),
        (2000, 6000, 750),  # eight CPUs that are always busy
        (0, 3000, 1000),
    ],
)
def test_stopped_time_is_at_most_the_elapsed_time(
    used_ms: int, throttled_ms: int, stopped_ms: int, tmp_path: Path
) -> None:
    for folder, version_2 in ((tmp_path / "v2", True), (tmp_path / "v1/cpu", False)):
        line = "0::/" if version_2 else "4:cpu,cpuacct:/"
        probe = None
        for place in (0, 1, 2):
            used, throttled = 7 + place * used_ms, 9 + place * throttled_ms
            if version_2:
                cgroup(folder, f"usage_usec {used}000\nthrottled_usec {throttled}000\n")
            else:
                cgroup(folder, f"nr_throttled 3\nthrottled_time {throttled}000000\n")
                (folder / "cpuacct.usage").write_text(f"{used}000000\n")
            if probe is None:
                root = folder if version_2 else folder.parent
                probe = QuotaProbe(belongs(tmp_path, line), root)
            else:
                assert probe.stopped_ns(10**9) == place * stopped_ms * 10**6


def test_host_steal_is_the_mean_of_the_cores(tmp_path: Path) -> None:
    machine = tmp_path / "stat"
    machine.write_text("cpu 1 2 3 4 5 6 7 50 0 0\ncpu0 1 2 3 4 5 6 7 40\ncpu1 1 2 3 4 5 6 7 10\n")
    assert stolen_ns(machine) == 250_000_000


def test_pressure_is_the_time_in_which_something_waited(tmp_path: Path) -> None:
    file = tmp_path / "cpu"
    file.write_text(
        "some avg10=1.53 avg60=0.87 avg300=0.28 total=12345678\n"
        "full avg10=0.00 avg60=0.00 avg300=0.00 total=9\n"
    )
    assert pressure_ns(file) == 12_345_678_000
    assert pressure_ns(tmp_path / "not there") == 0
