"""iperf between ranks of a stack, on one node and between two."""

import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest
from commands import run
from real_cluster import TOOLS, Cluster
from real_runner import Runner
from real_stack import Config

from aiperf_svc.domain.exit_codes import ExitCode

pytestmark = pytest.mark.cluster
FINE = (ExitCode.OK, ExitCode.VERDICT_INVALID)
"""The verdict depends on what else the machine does."""
IMAGE = "localhost/aiperf-e2e-iperf:1"
PACKAGES = ("iperf3", "libiperf0", "libsctp1")
BUILD_S = 300.0


@pytest.fixture(scope="session")
def iperf_image(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Name of an image with iperf3, there for the cluster's pods. Its base has no apt, so the
    packages are unpacked here."""
    if not cluster.is_ours:
        pytest.skip("E2E_CONTEXT names a cluster, which needs an image of iperf in a registry")
    folder = tmp_path_factory.mktemp("iperf")
    run(("apt-get", "download", *PACKAGES), environ=cluster.environ, timeout_s=BUILD_S,
        folder=folder)  # fmt: skip
    for package in folder.glob("*.deb"):
        unpack = ("dpkg", "-x", str(package), str(folder / "root"))
        run(unpack, environ=cluster.environ, timeout_s=BUILD_S)
    if (folder / "root" / "lib").exists():
        # In the image it is a link, which a folder would replace.
        shutil.copytree(folder / "root/lib", folder / "root/usr/lib", dirs_exist_ok=True)
    (folder / "Containerfile").write_text("ARG BASE\nFROM ${BASE}\nCOPY root/usr/ /usr/\n")
    recipe = (str(folder / "Containerfile"), str(folder), IMAGE, str(folder / "image.tar"))
    run((str(TOOLS / "build-image"), *recipe), environ=cluster.environ, timeout_s=BUILD_S)
    load = (str(TOOLS / "load-image"), str(folder / "image.tar"))
    run(load, environ=cluster.environ, timeout_s=BUILD_S)
    return IMAGE


@pytest.fixture
def runner(make_runner: Callable[[], Runner], iperf_image: str) -> Runner:
    """A stack that runs iperf twice for three seconds, with small pods."""
    runner = make_runner()
    runner.environ["AIPERF_WORKLOAD_IMAGE"] = iperf_image
    runner.use("bench-iperf")

    def make_small(benchmark: Config) -> None:
        del benchmark["slo"]
        benchmark["workload"].update(streams=2, duration="3s")
        benchmark["repetitions"] = 2
        benchmark["deployment"].update(
            layout="compact",
            pods={
                "control": {"cpu": "200m", "memory": "768Mi"},
                "record-processor": {"cpu": "100m", "memory": "384Mi"},
                "rank": {"cpu": "100m", "memory": "256Mi"},
            },
        )

    runner.change(make_small)
    return runner


def results_of(runner: Runner) -> dict[str, Any]:
    """The results of the one run so far."""
    (found,) = runner.artifacts.glob("*/results.json")
    content: dict[str, Any] = json.loads(found.read_bytes())
    return content


def measure(cluster: Cluster, runner: Runner, nodes: object) -> str:
    """Run it to its end; what it says of its results."""
    runner.change(lambda benchmark: benchmark["deployment"].update(ranks={"nodes": nodes}))
    ended = runner.run()
    print(ended.errors, ended.out)
    assert ended.code in FINE, ended.errors
    results = results_of(runner)
    assert results["metrics"]
    # The interfaces of both pods carried what iperf3 says.
    (seen,) = (check for check in results["checks"] if check["check"] == "interface-bytes")
    assert seen["severity"] in ("valid", "degraded"), seen
    assert "leak check: nothing is left" in ended.errors
    assert cluster.left_of(runner.name) == []
    return ended.out


def test_ranks_on_one_node_are_measured(cluster: Cluster, runner: Runner) -> None:
    assert "Bandwidth received" in measure(cluster, runner, "together")


@pytest.mark.two_nodes
def test_ranks_apart_are_measured_between_two_nodes(cluster: Cluster, runner: Runner) -> None:
    measure(cluster, runner, "apart")
    text = json.dumps(results_of(runner))
    assert all(node in text for node in cluster.nodes())


@pytest.mark.two_nodes
def test_the_first_rank_is_on_the_first_node_that_is_named(
    cluster: Cluster, runner: Runner
) -> None:
    first, second = sorted(cluster.nodes(), reverse=True)
    measure(cluster, runner, [first, second])
    assert f"{first} to {second}" in json.dumps(results_of(runner))
