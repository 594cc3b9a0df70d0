"""The stack of 100,000 users as 300 fake pods: the load on Pulumi, provider and API server."""

from collections.abc import Callable

import pytest

from tests.support.stack.real_cluster import FAKE_NODE, Cluster
from tests.support.stack.real_stack import Config, Stack

pytestmark = [pytest.mark.cluster, pytest.mark.alone]

FAKE_NODES = 12
WORKERS, PROCESSORS = 235, 59
PODS = 300
"""Includes five single services and the deadline pod."""


def on_fake_nodes(benchmark: Config) -> None:
    benchmark["workers"] = {
        "min": WORKERS, "max": WORKERS, "record_processors": PROCESSORS,
    }  # fmt: skip
    benchmark["deployment"]["placement"] = {
        "node_selector": {FAKE_NODE: "true"},
        "tolerations": [{"key": FAKE_NODE}],
    }


def preview_s(stack: Stack) -> float:
    """Return the duration of a preview of a new stack."""
    stack.init()
    stack.pulumi("preview", "-s", stack.name)
    return stack.took_s["preview"]


@pytest.mark.usefixtures("fake_nodes")
def test_preview_beside_three_hundred_pods_is_fast(
    cluster: Cluster, make_stack: Callable[[], Stack]
) -> None:
    small, large = make_stack(), make_stack()
    large.use("bench-100k")
    large.change(on_fake_nodes)
    # Replicas are only numbers. A preview takes the time of Pulumi and Python, whatever the size.
    assert preview_s(large) < 2 * preview_s(small)
    large.up()
    namespace = large.outputs()["namespace"]
    pods = large.pods(namespace)
    assert len(pods) == PODS
    assert {pod["status"]["phase"] for pod in pods} == {"Running"}
    large.up("--expect-no-changes")
    large.destroy()
    assert cluster.left_of(large.name) == []
