"""An owner's objects that carry a stack's label are reported and kept."""

from collections.abc import Callable
from typing import Any

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.running_command import FINISHED
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import RUN, Runner

pytestmark = pytest.mark.cluster


def labelled(kind: str, name: str, namespace: str, stack: str, **rest: Any) -> dict[str, Any]:
    """Return an object of the owner with our label."""
    labels = {"aiperf.dev/stack": stack, "app": name}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    version = "apps/v1" if kind == "Deployment" else "v1"
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **rest}


def uids(cluster: Cluster, namespace: str) -> set[str]:
    found = cluster.objects("configmaps,deployments", "-n", namespace, "-l", "aiperf.dev/stack")
    assert not [each for each in found if "deletionTimestamp" in each["metadata"]]
    return {each["metadata"]["uid"] for each in found}


@pytest.mark.gate
def test_owners_labelled_objects_survive_run_and_gc(
    cluster: Cluster, make_runner: Callable[[], Runner], owners_namespace: str
) -> None:
    runner = make_runner()
    where = {"mode": "existing", "name": owners_namespace}
    runner.change(lambda benchmark: benchmark["deployment"].update(namespace=where))
    # Long enough for the owner to create objects meanwhile.
    runner.change(lambda benchmark: benchmark["load"].update(duration="15s"))
    pods = {"containers": [{"name": "main", "image": "localhost/there-is-none:1"}]}
    template = {"metadata": {"labels": {"app": "shop"}}, "spec": pods}
    spec = {"replicas": 0, "selector": {"matchLabels": {"app": "shop"}}, "template": template}
    cluster.apply(labelled("ConfigMap", "settings", owners_namespace, runner.name))
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as command:
        command.wait_for(RUN)
        cluster.apply(labelled("Deployment", "shop", owners_namespace, runner.name, spec=spec))
        ended = command.end()
    try:
        assert ended.code in FINISHED, ended.errors
        owned = uids(cluster, owners_namespace)
        assert len(owned) == 2
        for name in ("settings", "shop"):
            assert f"{owners_namespace}/{name}" in ended.errors.partition("not touched")[2]
        for names in ((), (runner.name,)):
            collected = runner.call("gc", *names, "--yes") if names else runner.gc()
            assert collected.code == ExitCode.OK, collected.errors
            assert f"not touched: {runner.name}: " in collected.errors
        assert uids(cluster, owners_namespace) == owned
    finally:
        for kind, name in (("configmap", "settings"), ("deployment", "shop")):
            cluster.kubectl("delete", kind, name, "-n", owners_namespace)
