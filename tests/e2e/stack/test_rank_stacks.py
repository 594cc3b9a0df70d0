"""Workloads on ranks as stacks: up, measured, removed with their claims, refused, and lost."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_cluster import Cluster
from real_runner import Runner

from aiperf_svc.domain.exit_codes import ExitCode

pytestmark = pytest.mark.cluster
FINE = (ExitCode.OK, ExitCode.VERDICT_INVALID)
"""The verdict depends on what else the machine does."""
WRITES = 'dd if=/dev/zero of="$AIPERF_VOLUME/data" bs=1M count=16 conv=fsync 2>&1'
METRIC = {"unit": "s", "better": "lower", "pattern": "copied, ([0-9.e-]+) s"}


@pytest.fixture
def runner(make_runner: Callable[[], Runner], base_image: str) -> Runner:
    """A stack of one rank that writes to its volume twice."""
    runner = make_runner()
    runner.environ["AIPERF_WORKLOAD_IMAGE"] = base_image
    runner.use("bench-command")
    runner.change(_make_small)
    return runner


def _make_small(benchmark: dict[str, Any]) -> None:
    benchmark["workload"].update(command=["sh", "-c", WRITES], metrics={"write_time": METRIC})
    del benchmark["workload"]["image"], benchmark["slo"]
    benchmark["repetitions"] = 2
    benchmark["deployment"].update(
        layout="compact",
        ttl="15m",
        ranks={},
        pods={
            "control": {"cpu": "200m", "memory": "768Mi"},
            "record-processor": {"cpu": "100m", "memory": "384Mi"},
            "rank": {"cpu": "100m", "memory": "256Mi"},
        },
    )


@pytest.fixture
def volume(cluster: Cluster, runner: Runner, tmp_path: Path) -> Iterator[Path]:
    """A PersistentVolume, which a claim of any class gets: a folder of the node."""
    folder = tmp_path / "volume"
    folder.mkdir()
    folder.chmod(0o777)
    name = f"volume-of-{runner.name}"
    cluster.apply(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": str(folder), "type": "Directory"},
            },
        }
    )
    yield folder
    cluster.kubectl("delete", "persistentvolume", name)


def values(runner: Runner) -> dict[str, Any]:
    """The metrics of the one run so far."""
    (found,) = runner.artifacts.glob("*/results.json")
    content: dict[str, Any] = json.loads(found.read_bytes())
    return content


@pytest.mark.gate
def test_a_command_is_measured_on_its_claim_and_nothing_is_left(
    cluster: Cluster, runner: Runner, volume: Path
) -> None:
    ranks = {"volume": {"kind": "claim", "size": "1Gi"}}
    runner.change(lambda benchmark: benchmark["deployment"].update(ranks=ranks))
    ended = runner.call("run", runner.name, "--yes", "--ui", "plain", "--json")
    print(ended.errors)
    assert ended.code in FINE, ended.errors
    said = json.loads(ended.out)
    assert (said["state"], said["left"], said["not_checked"]) == ("done", [], [])
    assert values(runner)
    assert (volume / "data").stat().st_size == 16 * 2**20
    assert cluster.left_of(runner.name) == []
