"""A kind from another package runs on a cluster with the image that docs/workloads.md describes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.running_command import FINISHED
from tests.support.stack.commands import PROJECT
from tests.support.stack.rank_runs import make_small, results_of
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import Runner
from tests.support.stack.real_stack import Config
from tests.support.third_party import containerfile, install

pytestmark = pytest.mark.cluster


def test_kind_of_a_package_needs_the_documented_image(
    cluster: Cluster, image: str, base_image: str, make_runner: Callable[[], Runner], tmp_path: Path
) -> None:
    if not cluster.is_ours:
        pytest.skip("an image is built and loaded only for the cluster of tests/cluster")
    source, context = tmp_path / "source", tmp_path / "context"
    source.mkdir()
    install(source, context / "kinds")
    runner = make_runner()
    runner.environ["PYTHONPATH"] = f"{PROJECT}:{context / 'kinds'}"
    runner.use("bench-command")

    def stream(benchmark: Config) -> None:
        benchmark["workload"] = {"kind": "stream", "blocks": 64, "image": base_image}
        benchmark["repetitions"] = 1
        make_small()(benchmark)
        benchmark["deployment"].update(ttl="15m", ranks={})

    runner.change(stream)
    refused = runner.run()
    assert refused.code == ExitCode.ERROR, refused.errors
    needed = f"image {image} must have package stream-workload 1, which adds kind stream"
    assert f"{needed}: it has no package for kind stream" in refused.errors
    assert cluster.left_of(runner.name) == []

    runner.environ["AIPERF_IMAGE"] = build(cluster, image, context)
    ended = runner.run("--json")
    assert ended.code in FINISHED, ended.errors
    printed = json.loads(ended.out)
    assert (printed["state"], printed["left"]) == ("done", [])
    (metric,) = results_of(runner)["metrics"]
    assert metric["info"]["tag"] == "copy_rate"
    assert metric["avg"] > 0
    assert cluster.left_of(runner.name) == []


def build(cluster: Cluster, image: str, context: Path) -> str:
    """Build the image with the package, load it onto the nodes and return its name."""
    recipe = context / "Containerfile"
    recipe.write_text(containerfile(image))
    name = "localhost/aiperf-e2e-stream:1"
    cluster.add_image(name, recipe)
    return name
