"""Stacks of ranks whose pods are small, and what their one run measured.

The images of the ranks are built from the Containerfiles that users build from."""

import json
from collections.abc import Callable, Iterable
from typing import Any

from tests.support.running_command import FINISHED
from tests.support.stack.commands import PROJECT
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import Runner
from tests.support.stack.real_stack import Config

BELIEVED = ("exit-codes", "values", "interface-bytes", "rank-lost", "tool-versions", "oom")
"""Checks that no load of the machine can fail."""

Results = dict[str, Any]


def add_rank_image(cluster: Cluster, containerfile: str) -> str:
    """Name of an image of ranks, there for the cluster's pods. Fails with what apt or pip said if
    a package cannot be had."""
    name = f"localhost/aiperf-e2e-{containerfile.replace('/Containerfile', '').lower()}:1"
    cluster.add_image(name, PROJECT / "images/workloads" / containerfile)
    return name


def make_small(**rank: str) -> Callable[[Config], None]:
    """Makes the pods of a stack so small that they fit on a node beside others; `rank` replaces
    what a rank's pod asks for."""

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
    """The results of the one run so far."""
    (found,) = runner.artifacts.glob("*/results.json")
    content: Results = json.loads(found.read_bytes())
    return content


def measure(cluster: Cluster, runner: Runner) -> Results:
    """The results of a run to its end that left nothing, whose steps all succeeded, and whose
    witnesses agree with what the tool said."""
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
    """The average of each metric by its tag."""
    return {metric["info"]["tag"]: metric["avg"] for metric in results["metrics"]}


def units(results: Results) -> dict[str, str]:
    """The unit of each metric by its tag."""
    return {metric["info"]["tag"]: metric["info"]["unit"] for metric in results["metrics"]}


def measured_step(results: Results) -> dict[str, Any]:
    """The one step that was measured."""
    found: dict[str, Any]
    (found,) = (step for step in results["steps"] if step["is_measured"])
    return found


def nodes_of(steps: Iterable[dict[str, Any]]) -> list[str]:
    """Names of the nodes on which steps ran."""
    return sorted({witness["node"] for step in steps for witness in step["witnesses"]})


def stdout_of(runner: Runner, pattern: str) -> list[str]:
    """What commands printed, by a pattern of their folders below `raw/`."""
    paths = runner.artifacts.glob(f"*/raw/{pattern}/stdout")
    return [path.read_text() for path in sorted(paths)]
