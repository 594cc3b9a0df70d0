"""Stacks of ranks with small pods, and the results of their only run.

The images of the ranks are built from the Containerfiles that users build.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any

from tests.support.running_command import FINISHED
from tests.support.stack.commands import PROJECT
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import Runner
from tests.support.stack.real_stack import Config

BELIEVED = ("exit-codes", "values", "interface-bytes", "rank-lost", "tool-versions", "oom")
"""Checks that a busy machine cannot fail."""

Results = dict[str, Any]


def add_rank_image(cluster: Cluster, containerfile: str) -> str:
    """Build an image of ranks, load it into the cluster and return its name. Fails with the output
    of apt or pip if a package is unavailable."""
    name = f"localhost/aiperf-e2e-{containerfile.replace('/Containerfile', '').lower()}:1"
    cluster.add_image(name, PROJECT / "images/workloads" / containerfile)
    return name


def make_small(**rank: str) -> Callable[[Config], None]:
    """Return a change that makes a stack's pods small enough to share a node. `rank` replaces the
    resource requests of a rank's pod."""

    def change(benchmark: Config) -> None:
        benchmark.pop("slo", None)
        benchmark["deployment"].update(
            layout="compact",
            pods={
                "control": {"cpu": "200m", "memory": "768Mi"},
                "record-processor": {"cpu": "100m", "memory": "384Mi"},
                "rank": {"cpu": "100m", "memory": "256Mi", **rank},
            },
        )

    return change


def results_of(runner: Runner) -> Results:
    """Return the results of the only run so far."""
    (found,) = runner.artifacts.glob("*/results.json")
    content: Results = json.loads(found.read_bytes())
    return content


def measure(cluster: Cluster, runner: Runner) -> Results:
    """Run to the end and return the results. Fails if anything is left behind, a step failed, or
    witnesses disagree with the tool's output."""
    ended = runner.run()
    print(ended.errors, ended.out)
    assert ended.code in FINISHED, ended.errors
    assert "leak check: nothing is left" in ended.errors
    assert cluster.left_of(runner.name) == []
    results = results_of(runner)
    assert [step["problem"] for step in results["steps"]] == [""] * len(results["steps"])
    for check in results["checks"]:
        assert check["check"] not in BELIEVED or check["severity"] != "invalid", check
    return results


def values(results: Results) -> dict[str, float]:
    """Return the average of each metric by tag."""
    return {metric["info"]["tag"]: metric["avg"] for metric in results["metrics"]}


def units(results: Results) -> dict[str, str]:
    """Return the unit of each metric by tag."""
    return {metric["info"]["tag"]: metric["info"]["unit"] for metric in results["metrics"]}


def measured_step(results: Results) -> dict[str, Any]:
    """Return the only measured step."""
    found: dict[str, Any]
    (found,) = (step for step in results["steps"] if step["is_measured"])
    return found


def nodes_of(steps: Iterable[dict[str, Any]]) -> list[str]:
    """Return the names of the nodes that ran steps."""
    return sorted({witness["node"] for step in steps for witness in step["witnesses"]})


def stdout_of(runner: Runner, pattern: str) -> list[str]:
    """Return the output of commands by a glob pattern of their folders in `raw/`."""
    paths = runner.artifacts.glob(f"*/raw/{pattern}/stdout")
    return [path.read_text() for path in sorted(paths)]
