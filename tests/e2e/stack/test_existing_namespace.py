"""Stacks that share an existing namespace with its owner."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stack import owners
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_stack import Config, Stack, restarts, run_all, shrink

pytestmark = [pytest.mark.cluster, pytest.mark.gate]


def as_guest(stack: Stack, namespace: str) -> None:
    """Change the stack's file to use an existing namespace."""

    def change(benchmark: Config) -> None:
        deployment = benchmark["deployment"]
        deployment["namespace"] = {"mode": "existing", "name": namespace}

    stack.change(shrink)
    stack.change(change)


def test_two_guests_remove_only_their_own_objects(
    cluster: Cluster,
    image: str,
    make_stack: Callable[[], Stack],
    owners_namespace: str,
    tmp_path: Path,
) -> None:
    owners.settle(cluster, owners_namespace, image=image)
    before = cluster.of_namespace(owners_namespace)
    owned = owners.state(cluster, owners_namespace)

    first, second = make_stack(), make_stack()
    for stack in (first, second):
        as_guest(stack, owners_namespace)
    run_all(first.up, second.up)
    for stack in (first, second):
        outputs = stack.outputs()
        assert outputs["namespace"] == owners_namespace
        assert cluster.objects("namespaces", "-l", f"aiperf.dev/stack={stack.name}") == []
        status, summary = stack.measure(outputs, tmp_path / stack.name)
        assert (status.state, status.reason) == ("done", "")
        assert summary["aiperf_svc"]["accounts"]["violations"] == []
        pods = stack.pods(owners_namespace)
        assert len(pods) == outputs["pods"]
        assert restarts(pods) == {}

    of_second = cluster.of_stack(second.name)
    first.destroy()
    assert cluster.left_of(first.name) == []
    assert cluster.of_stack(second.name) == of_second
    second.destroy()
    assert cluster.left_of(second.name) == []
    assert cluster.of_namespace(owners_namespace) == before
    assert owners.state(cluster, owners_namespace) == owned
