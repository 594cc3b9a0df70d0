"""Small stacks that run one command on ranks, and volumes for their claims."""

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
    """Change the runner's stack to one rank that writes to its volume twice."""
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
    """Return a change of the ranks' settings."""
    return lambda benchmark: benchmark["deployment"].update(ranks=ranks)


def use_rank_pod(**pod: Any) -> Callable[[Config], None]:
    """Return a change of the ranks' pods."""
    return lambda benchmark: benchmark["deployment"]["pods"]["rank"].update(pod)


def use_command(*command: str, **keys: Any) -> Callable[[Config], None]:
    """Return a change of the command and of other workload keys."""
    return lambda benchmark: benchmark["workload"].update(command=list(command), **keys)


class Volumes:
    """PersistentVolumes for stacks' claims. Each is a folder of the node with its own storage
    class, so no other stack can claim it."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        """Create volumes in `folder`, which must be below /tmp for the policy `Delete`."""
        self._cluster, self._folder = cluster, folder
        self._made: list[str] = []

    def add(self, runner: Runner, *, policy: str = "Retain") -> Path:
        """Let the stack's rank claim an existing volume and return its folder."""
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
        """Return the names of existing volumes that are or were claimed."""
        return [
            found["metadata"]["name"]
            for found in self._cluster.objects("persistentvolumes")
            if found["metadata"]["name"] in self._made and "claimRef" in found["spec"]
        ]

    def remove(self) -> None:
        """Delete the remaining volumes."""
        for name in dict.fromkeys(self._made):
            self._cluster.kubectl("delete", "persistentvolume", name, "--ignore-not-found")
