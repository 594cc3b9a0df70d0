"""Small stacks of one command on ranks, and the volumes of their claims."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.support.stack.rank_runs import make_small
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import Runner
from tests.support.stack.real_stack import Config

WRITES = 'dd if=/dev/zero of="$AIPERF_VOLUME/data" bs=1M count=16 conv=fsync 2>&1'
METRIC = {"unit": "s", "better": "lower", "pattern": "copied, ([0-9.e-]+) s"}


def run_command(runner: Runner, image: str) -> Runner:
    """Make it a stack of one rank that writes to its volume twice."""
    runner.environ["AIPERF_WORKLOAD_IMAGE"] = image
    runner.use("bench-command")
    runner.change(_run_small)
    return runner


def _run_small(benchmark: Config) -> None:
    benchmark["workload"].update(command=["sh", "-c", WRITES], metrics={"write_time": METRIC})
    del benchmark["workload"]["image"]
    benchmark["repetitions"] = 2
    make_small()(benchmark)
    benchmark["deployment"].update(ttl="15m", ranks={})


def use_ranks(**ranks: Any) -> Callable[[Config], None]:
    """A change of the ranks' own settings."""
    return lambda benchmark: benchmark["deployment"].update(ranks=ranks)


def use_rank_pod(**pod: Any) -> Callable[[Config], None]:
    """A change of the ranks' pods."""
    return lambda benchmark: benchmark["deployment"]["pods"]["rank"].update(pod)


def use_command(*command: str, **keys: Any) -> Callable[[Config], None]:
    """A change of what runs, and of other keys of the workload."""
    return lambda benchmark: benchmark["workload"].update(command=list(command), **keys)


class Volumes:
    """PersistentVolumes for stacks' claims, each a folder of the node and of a class of its own, so
    that no other stack's claim takes it."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        """`folder` is below /tmp: the cluster deletes no other folders (policy `Delete`)."""
        self._cluster, self._folder = cluster, folder
        self._made: list[str] = []

    def give(self, runner: Runner, *, policy: str = "Retain") -> Path:
        """Have the stack's rank claim a volume that is there; its folder."""
        volume = self._folder / f"volume-of-{runner.name}"
        volume.mkdir(exist_ok=True)
        volume.chmod(0o777)
        self._made.append(volume.name)
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "persistentVolumeReclaimPolicy": policy,
            "storageClassName": volume.name,
            "hostPath": {"path": str(volume), "type": "Directory"},
        }
        metadata = {"name": volume.name}
        kind = {"apiVersion": "v1", "kind": "PersistentVolume"}
        self._cluster.apply({**kind, "metadata": metadata, "spec": spec})
        claim = {"kind": "claim", "size": "1Gi", "storage_class": volume.name}
        runner.change(use_ranks(volume=claim))
        return volume

    def bound(self) -> list[str]:
        """Names of those that a claim has, or had, and that are still there."""
        return [
            found["metadata"]["name"]
            for found in self._cluster.objects("persistentvolumes")
            if found["metadata"]["name"] in self._made and "claimRef" in found["spec"]
        ]

    def remove(self) -> None:
        """Delete those that are still there."""
        for name in dict.fromkeys(self._made):
            self._cluster.kubectl("delete", "persistentvolume", name, "--ignore-not-found")
