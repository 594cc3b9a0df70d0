"""The machine's reported resources, when files limit them further."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from aiperf_svc import __version__
from aiperf_svc.adapters.host import build, machine

CORES = float(len(os.sched_getaffinity(0)))


def own_cgroup(root: Path) -> Path:
    folders = machine._own_cgroups(root)
    folders[0].mkdir(parents=True, exist_ok=True)
    return folders[0]


def test_affinity_counts_without_a_quota(tmp_path: Path) -> None:
    assert machine.usable_cores(tmp_path) == CORES


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("50000 100000", 0.5), ("max 100000", CORES), ("99900000 100000", CORES), ("", CORES)],
)
def test_cgroup_v2_quota_counts_where_lower(tmp_path: Path, quota: str, cores: float) -> None:
    (own_cgroup(tmp_path) / "cpu.max").write_text(quota)
    assert machine.usable_cores(tmp_path) == cores


def test_a_quota_above_the_own_cgroup_counts_too(tmp_path: Path) -> None:
    own_cgroup(tmp_path)
    (tmp_path / "cpu.max").write_text("20000 100000\n")
    assert machine.usable_cores(tmp_path) == 0.2


@pytest.mark.parametrize(("quota", "cores"), [("50000", 0.5), ("-1", CORES)])
def test_cgroup_v1_quota_counts_where_set(tmp_path: Path, quota: str, cores: float) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_quota_us").write_text(f"{quota}\n")
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    assert machine.usable_cores(tmp_path) == cores


def test_memory_is_the_least_of_machine_and_cgroup(tmp_path: Path) -> None:
    whole = machine.memory_bytes(tmp_path)
    assert whole > 2**20
    (own_cgroup(tmp_path) / "memory.max").write_text("1048576\n")
    assert machine.memory_bytes(tmp_path) == 2**20
    (own_cgroup(tmp_path) / "memory.max").write_text("max\n")
    assert machine.memory_bytes(tmp_path) == whole


def test_soft_limit_of_descriptors_becomes_the_hard_one() -> None:
    code = (
        "import resource; from aiperf_svc.adapters.host.machine import raise_fd_limit\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))\n"
        "print(raise_fd_limit(), resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "200 (200, 200)\n"


def test_facts_are_of_this_machine() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        facts = machine.local_facts()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert facts.where == "local"
    assert 0 < facts.cores <= CORES
    assert facts.fd_limit >= before[0]


def test_the_port_range_has_two_ends() -> None:
    first, last = machine.port_range()
    assert 0 < first < last < 65_536


def test_host_facts_equal_the_kernels(tmp_path: Path) -> None:
    files = {
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave\n",
        "sys/devices/system/cpu/cpu1/cpufreq/scaling_governor": "performance\n",
        "sys/devices/system/cpu/smt/active": "1\n",
        "sys/devices/system/node/node0/cpulist": "0-1\n",
        "proc/sys/kernel/numa_balancing": "0\n",
        "etc/os-release": 'NAME="x"\nPRETTY_NAME="Debian GNU/Linux 12"\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = machine.host_facts(tmp_path)
    assert (found["aiperf_svc"], found["commit"]) == (__version__, build.commit())
    assert found["cpu_governor"] == "performance, powersave"
    assert (found["smt"], found["numa_balancing"], found["numa_nodes"]) == ("on", "off", "1")
    assert found["os"] == "Debian GNU/Linux 12"


def test_facts_that_the_kernel_hides_are_unknown(tmp_path: Path) -> None:
    found = machine.host_facts(tmp_path)
    hidden = ("cpu_governor", "smt", "numa_balancing", "numa_nodes", "os")
    assert {found[name] for name in hidden} == {machine.UNKNOWN}
