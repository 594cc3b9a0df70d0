"""Two concurrent stacks in their own namespaces."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_stack import Stack, run_all, shrink

pytestmark = pytest.mark.cluster


def test_two_stacks_do_not_affect_each_other(
    cluster: Cluster, make_stack: Callable[[], Stack], tmp_path: Path
) -> None:
    first, second = make_stack(), make_stack()
    for stack in (first, second):
        stack.change(shrink)
    run_all(first.up, second.up)
    outputs = {stack.name: stack.outputs() for stack in (first, second)}
    assert outputs[first.name]["namespace"] != outputs[second.name]["namespace"]
    assert outputs[first.name]["resultsToken"] != outputs[second.name]["resultsToken"]

    status, _ = first.measure(outputs[first.name], tmp_path / first.name)
    assert (status.state, status.reason) == ("done", "")
    others = cluster.of_stack(second.name)
    first.destroy()
    assert cluster.left_of(first.name) == []
    assert cluster.of_stack(second.name) == others

    status, summary = second.measure(outputs[second.name], tmp_path / second.name)
    assert (status.state, status.reason) == ("done", "")
    assert summary["run_info"]["benchmark_id"] == outputs[second.name]["runId"]
    second.destroy()
    assert cluster.left_of(second.name) == []
