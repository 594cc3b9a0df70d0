"""Fixtures for the cluster adapters: a connection, a namespace, and a user with few permissions."""

import base64
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import yaml

from aiperf_svc.adapters.cluster.api.connection import Cluster, connect
from aiperf_svc.plan.identity import RUN_LABEL, STACK_LABEL
from tests.support.stack.real_cluster import Cluster as RealCluster

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
RBAC = "rbac.authorization.k8s.io"


@pytest.fixture
async def connected(cluster: RealCluster) -> AsyncIterator[Cluster]:
    """Connect with all permissions."""
    kubeconfig = cluster.environ.get("KUBECONFIG")
    async with connect(kubeconfig=kubeconfig, context=cluster.context) as found:
        yield found


@pytest.fixture
def stack() -> str:
    """Return a unique name."""
    return f"try-{secrets.token_hex(3)}"


@pytest.fixture
async def space(connected: Cluster) -> AsyncIterator[str]:
    """Yield an existing namespace that enforces the `restricted` Pod Security level."""
    name = f"owner-{secrets.token_hex(3)}"
    metadata = {"name": name, "labels": RESTRICTED}
    await connected.post("/api/v1/namespaces", {"metadata": metadata})
    yield name
    await connected.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
async def own_space(connected: Cluster, stack: str) -> AsyncIterator[tuple[str, str]]:
    """Yield name and UID of a namespace that belongs to the stack."""
    name = f"aiperf-{stack}"
    labels = {**RESTRICTED, STACK_LABEL: stack, RUN_LABEL: "1a2b3c4d5e6f"}
    made = await connected.post(
        "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}}
    )
    yield name, made["metadata"]["uid"]
    await connected.delete(f"/api/v1/namespaces/{name}")


Rules = list[tuple[str, str, tuple[str, ...]]]
"""(API group, resource, verbs)."""


@pytest.fixture
def lesser_user(
    connected: Cluster, cluster: RealCluster, space: str, tmp_path: Path
) -> Callable[[Rules], Awaitable[str]]:
    """Return a function that creates a user with a few permissions in `space` and none elsewhere,
    and returns the path of its kubeconfig."""

    async def make(rules: Rules) -> str:
        place = f"/api/v1/namespaces/{space}"
        rbac = f"/apis/{RBAC}/v1/namespaces/{space}"
        await connected.post(f"{place}/serviceaccounts", {"metadata": {"name": "lesser"}})
        listed = [
            {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
            for group, resource, verbs in rules
        ]
        await connected.post(f"{rbac}/roles", {"metadata": {"name": "lesser"}, "rules": listed})
        subject = {"kind": "ServiceAccount", "name": "lesser", "namespace": space}
        binding = {
            "metadata": {"name": "lesser"},
            "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": "lesser"},
            "subjects": [subject],
        }
        await connected.post(f"{rbac}/rolebindings", binding)
        token = await connected.post(f"{place}/serviceaccounts/lesser/token", {"spec": {}})
        path = tmp_path / "lesser.yaml"
        path.write_text(_kubeconfig(cluster, token["status"]["token"]))
        return str(path)

    return make


def _kubeconfig(cluster: RealCluster, token: str) -> str:
    known = yaml.safe_load(cluster.kubectl("config", "view", "--raw", "--minify", "--flatten"))
    place = known["clusters"][0]
    assert base64.b64decode(place["cluster"].get("certificate-authority-data", ""))
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [place],
            "users": [{"name": "lesser", "user": {"token": token}}],
            "contexts": [
                {"name": "lesser", "context": {"cluster": place["name"], "user": "lesser"}}
            ],
            "current-context": "lesser",
        }
    )
