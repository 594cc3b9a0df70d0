"""Workloads on ranks as stacks: up, measured, removed with their claims, refused, and lost."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from expiry import READY_S, TTL_S, wait_for_its_end
from real_cluster import Cluster
from real_runner import RUN, Runner
from real_stack import Config, together

from aiperf_svc.domain.exit_codes import ExitCode

pytestmark = pytest.mark.cluster
FINE = (ExitCode.OK, ExitCode.VERDICT_INVALID)
"""The verdict depends on what else the machine does."""
BUILD_S = 600.0
CLAIM = {"volume": {"kind": "claim", "size": "1Gi"}}
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


def _make_small(benchmark: Config) -> None:
    benchmark["workload"].update(command=["sh", "-c", WRITES], metrics={"write_time": METRIC})
    del benchmark["workload"]["image"], benchmark["slo"]
    benchmark["repetitions"] = 2
    _make_small_pods(benchmark)


def _make_small_pods(benchmark: Config) -> None:
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
def storage(cluster: Cluster, tmp_path: Path) -> Iterator[Callable[[Runner], Path]]:
    """Makes a PersistentVolume for a stack's claim: a folder of the node."""
    made: list[str] = []

    def make(runner: Runner) -> Path:
        folder = tmp_path / f"volume-of-{runner.name}"
        folder.mkdir()
        folder.chmod(0o777)
        made.append(folder.name)
        spec = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": str(folder), "type": "Directory"},
        }
        cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "PersistentVolume",
                "metadata": {"name": folder.name},
                "spec": spec,
            }
        )
        return folder

    yield make
    for name in made:
        cluster.kubectl("delete", "persistentvolume", name)


def use_ranks(**ranks: Any) -> Callable[[Config], None]:
    def change(benchmark: Config) -> None:
        benchmark["deployment"]["ranks"] = ranks

    return change


def use_command(*command: str, **keys: Any) -> Callable[[Config], None]:
    def change(benchmark: Config) -> None:
        benchmark["workload"].update(command=list(command), **keys)

    return change


def results_of(runner: Runner) -> dict[str, Any]:
    """The results of the one run so far."""
    (found,) = runner.artifacts.glob("*/results.json")
    content: dict[str, Any] = json.loads(found.read_bytes())
    return content


@pytest.mark.gate
def test_a_command_is_measured_on_its_claim_and_nothing_is_left(
    cluster: Cluster, runner: Runner, storage: Callable[[Runner], Path]
) -> None:
    volume = storage(runner)
    runner.change(use_ranks(**CLAIM))
    ended = runner.call("run", runner.name, "--yes", "--ui", "plain", "--json")
    assert ended.code in FINE, ended.errors
    said = json.loads(ended.out)
    assert (said["state"], said["left"], said["not_checked"]) == ("done", [], [])
    assert results_of(runner)["metrics"]
    assert (volume / "data").stat().st_size == 16 * 2**20
    assert cluster.left_of(runner.name) == []


def test_more_ranks_apart_than_nodes_are_refused_before_anything_is_made(
    cluster: Cluster, runner: Runner
) -> None:
    ranks = len(cluster.nodes()) + 1
    runner.change(use_ranks(nodes="apart"))
    runner.change(lambda benchmark: benchmark["workload"].update(ranks=ranks))
    ended = runner.run()
    assert ended.code == ExitCode.BAD_CONFIG
    assert f"{ranks} ranks apart need {ranks} nodes" in ended.errors
    assert "deployment.ranks.nodes" in ended.errors
    assert cluster.of_stack(runner.name) == []


def test_a_node_that_is_not_there_is_refused_with_those_that_are(
    cluster: Cluster, runner: Runner
) -> None:
    runner.change(use_ranks(nodes=["no-such-node"]))
    ended = runner.run()
    assert ended.code == ExitCode.BAD_CONFIG
    assert f"no node no-such-node; it has {', '.join(sorted(cluster.nodes()))}" in ended.errors
    assert cluster.of_stack(runner.name) == []


def test_ranks_without_an_image_or_a_volume_are_named_and_everything_goes(
    cluster: Cluster, make_runner: Callable[[], Runner], base_image: str
) -> None:
    without_image, without_volume = make_runner(), make_runner()
    said: dict[str, str] = {}
    for runner in (without_image, without_volume):
        runner.use("bench-command")
        runner.change(_make_small)
        runner.environ["AIPERF_WORKLOAD_IMAGE"] = base_image
    without_image.environ["AIPERF_WORKLOAD_IMAGE"] = "localhost/no-such-tool:1"
    claim = {"kind": "claim", "size": "1Gi", "storage_class": "no-such-class"}
    without_volume.change(use_ranks(volume=claim))

    def fail(runner: Runner) -> None:
        ended = runner.run()
        assert ended.code == ExitCode.ERROR, ended.errors
        assert "nothing is left" in ended.errors
        said[runner.name] = ended.errors

    together(lambda: fail(without_image), lambda: fail(without_volume))
    assert "check workload.image" in said[without_image.name]
    assert "waits for its volume" in said[without_volume.name]
    for runner in (without_image, without_volume):
        assert f"pod rank-{runner.name}-0" in said[runner.name]
        assert cluster.left_of(runner.name) == []


def test_a_killed_guest_with_a_claim_is_removed_by_gc_or_by_its_deadline(
    cluster: Cluster,
    make_runner: Callable[[], Runner],
    base_image: str,
    owners_namespace: str,
    storage: Callable[[Runner], Path],
) -> None:
    before = cluster.of_namespace(owners_namespace)
    helped, alone = make_runner(), make_runner()
    ended: dict[str, int] = {}

    def kill(runner: Runner, ttl_s: int) -> None:
        runner.use("bench-command")
        runner.change(_make_small)
        storage(runner)
        runner.environ["AIPERF_WORKLOAD_IMAGE"] = base_image
        runner.change(use_ranks(**CLAIM))
        runner.change(use_command("sleep", "600", timeout="20s"))
        place = {"mode": "existing", "name": owners_namespace}
        life = {"ttl": f"{ttl_s}s", "ready_timeout": f"{READY_S}s", "namespace": place}
        runner.change(lambda benchmark: benchmark["deployment"].update(life))
        with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
            command.wait_for(RUN)
            claims = cluster.objects("persistentvolumeclaims", "-n", owners_namespace)
            assert f"volume-rank-{runner.name}-0" in {c["metadata"]["name"] for c in claims}
            command.kill()

    def with_help() -> None:
        kill(helped, 600)
        ended[helped.name] = helped.call("gc", helped.name, "--yes").code

    def without_help() -> None:
        kill(alone, TTL_S)
        wait_for_its_end(cluster, alone.name, "configmap")
        ended[alone.name] = alone.gc().code

    together(with_help, without_help)
    for runner in (helped, alone):
        assert ended[runner.name] == ExitCode.OK
        assert cluster.left_of(runner.name) == []
    assert cluster.of_namespace(owners_namespace) == before
