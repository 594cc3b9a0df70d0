"""Dry runs show whether the cluster admits the objects of a stack."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused
from aiperf_svc.adapters.cluster.preflight import probe_pods
from aiperf_svc.adapters.cluster.preflight.admission import (
    Refusal,
    judge,
    path_of,
    pods_of,
    try_objects,
)
from aiperf_svc.domain.errors import EnvironmentProblem

NO_OWNER = "ValidatingAdmissionPolicy 'owner' denied request: an owner is needed"
NAMESPACE = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": "aiperf-s-00000000", "labels": {"team": "a", "aiperf.dev/run": "r"}},
}
ROLE = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r"}}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "worker-s", "ownerReferences": [{"uid": "unknown"}]},
    "spec": {"template": {"metadata": {"labels": {}}, "spec": {"serviceAccountName": "a"}}},
}


class _Api:
    """An API server that rejects some objects by kind and namespace, and records creations."""

    def __init__(
        self, refused: Mapping[tuple[str, str], str], *, may_make_pods: bool = True
    ) -> None:
        self._refused, self._may_make_pods = refused, may_make_pods
        self.is_full = False
        """Whether further creation fails the test."""
        self.is_broken = False
        """Whether changes are carried out but answered with an error."""
        self.created: list[dict[str, Any]] = []
        self.deleted: list[str] = []
        self.tried: list[dict[str, Any]] = []
        self.paths: list[str] = []

    async def post(self, path: str, body: dict[str, Any], **params: str) -> dict[str, Any]:
        if body["kind"] == "SelfSubjectAccessReview":
            return {"status": {"allowed": self._may_make_pods}}
        if params != {"dryRun": "All"} and self.is_full:
            raise Refused("exceeded quota", status=403, reason="Forbidden")
        if params != {"dryRun": "All"}:
            self.created.append(body)
            self._fail()
            return body
        self.tried.append(body)
        self.paths.append(path)
        place = body["metadata"].get("namespace", "")
        for (kind, where), why in self._refused.items():
            if kind == body["kind"] and place.startswith(where):
                name = f'{body["kind"].lower()}s "{body["metadata"].get("name", "")}"'
                raise Refused(f"{name} is forbidden: {why}", status=403, reason="Forbidden")
        return body

    async def get(self, path: str, **params: str) -> dict[str, Any]:
        return {}

    async def delete(self, path: str, **_: Any) -> None:
        self.deleted.append(path)
        self._fail()

    def _fail(self) -> None:
        if self.is_broken:
            raise Refused("etcdserver: request timed out", status=500, reason="")


async def _tried(api: _Api, namespace: str | None = "theirs", *more: dict[str, Any]) -> Any:
    objects = [*more, ROLE, DEPLOYMENT]
    return await try_objects(cast("Cluster", api), objects, namespace=namespace)


async def test_dry_run_covers_objects_and_template_pods() -> None:
    api = _Api({})
    check = await _tried(api)
    assert (check.state, check.detail) == (
        "ok",
        "all 3 objects of the stack are admitted in namespace theirs",
    )
    assert [each["kind"] for each in api.tried] == ["Role", "Deployment", "Pod"]
    assert {each["metadata"]["namespace"] for each in api.tried} == {"theirs"}
    assert not any("ownerReferences" in each["metadata"] for each in api.tried)
    assert "serviceAccountName" not in api.tried[2]["spec"]
    assert not api.created


@pytest.mark.parametrize("namespace", ["theirs", None])
async def test_cluster_scoped_objects_are_tried_outside_namespaces(namespace: str | None) -> None:
    version = "rbac.authorization.k8s.io/v1"
    cluster_role = {"apiVersion": version, "kind": "ClusterRole", "metadata": {"name": "c"}}
    fleet = {"apiVersion": "example.com/v1", "kind": "Fleet", "metadata": {"name": "f"}}
    api = _Api({("Fleet", ""): NO_OWNER})
    check = await try_objects(
        cast("Cluster", api),
        [NAMESPACE, cluster_role, ROLE, fleet],
        namespace=namespace,
        cluster_scoped=("Fleet/f",),
    )
    tried = dict(zip((each["kind"] for each in api.tried), api.paths, strict=True))
    assert tried["ClusterRole"] == f"/apis/{version}/clusterroles"
    assert tried["Fleet"] == "/apis/example.com/v1/fleets"
    assert "1 of 3 objects of the stack are refused" in check.detail
    assert f"Fleet: {NO_OWNER}" in check.detail


async def test_refused_deployment_names_the_config_keys() -> None:
    check = await _tried(_Api({("Deployment", ""): NO_OWNER}))
    assert check.state == "failed"
    assert check.detail == (
        f"1 of 3 objects of the stack are refused in namespace theirs: Deployment: {NO_OWNER}"
    )
    assert "deployment.labels" in check.remedy


async def test_missing_pod_rights_limit_the_dry_run() -> None:
    api = _Api({}, may_make_pods=False)
    check = await _tried(api)
    assert check.detail.endswith("their pods were not tried: not allowed to create pods")
    assert [each["kind"] for each in api.tried] == ["Role", "Deployment"]


async def test_refused_namespace_ends_the_check() -> None:
    check = await _tried(_Api({("Namespace", ""): NO_OWNER}), None, NAMESPACE)
    assert check.state == "failed"
    assert "as its namespace: Namespace: " in check.detail


@pytest.mark.parametrize(
    ("where", "state"), [("", "failed"), ("aiperf-s-", "failed"), ("default", "ok")]
)
async def test_new_namespace_is_checked_in_an_empty_one(where: str, state: str) -> None:
    api = _Api({("Deployment", where): NO_OWNER})
    check = await _tried(api, None, NAMESPACE)
    assert check.state == state
    assert "in an empty namespace with the labels of the stack's" in check.detail
    (made,) = api.created
    name = made["metadata"]["name"]
    assert name.startswith("aiperf-s-preflight-")
    assert made["metadata"]["labels"] == {"team": "a", "aiperf.dev/stack": name}
    assert api.deleted == [f"/api/v1/namespaces/{name}"]


async def test_refused_empty_namespace_leaves_admission_unchecked() -> None:
    api = _Api({})
    api.is_full = True
    check = await _tried(api, None, NAMESPACE)
    assert (check.state, api.tried) == ("not checked", [NAMESPACE])
    assert "no empty namespace could be created" in check.detail


async def test_empty_namespace_of_a_failed_creation_is_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe_pods, "REMOVE_S", 0.0)
    api = _Api({})
    api.is_broken = True
    with pytest.raises(EnvironmentProblem) as refused:
        await _tried(api, None, NAMESPACE)
    (made,) = api.created
    path = f"/api/v1/namespaces/{made['metadata']['name']}"
    assert api.deleted == [path]
    assert f"kubectl delete --raw {path}: " in str(refused.value)


async def test_empty_namespace_needs_the_right_to_remove() -> None:
    api = _Api({}, may_make_pods=False)
    check = await _tried(api, None, NAMESPACE)
    assert (check.state, api.created, api.deleted) == ("not checked", [], [])
    assert "you may not delete namespaces aiperf-s-preflight-" in check.detail


def test_webhook_without_dry_run_is_not_checked() -> None:
    why = 'admission webhook "w" does not support dry run'
    check = judge(9, [Refusal("Role", why), Refusal("Pod", why)], "in namespace n")
    assert check.state == "not checked"


def test_equal_refusals_are_reported_once() -> None:
    refused = [Refusal("Deployment", "no owner")] * 7 + [Refusal("Service", "no owner")]
    check = judge(31, refused, "in namespace n")
    assert check.detail == (
        "8 of 31 objects of the stack are refused in namespace n: 7 Deployment, Service: no owner"
    )


@pytest.mark.parametrize(
    ("version", "kind", "path"),
    [
        ("v1", "ConfigMap", "/api/v1/namespaces/n/configmaps"),
        (
            "networking.k8s.io/v1",
            "NetworkPolicy",
            "/apis/networking.k8s.io/v1/namespaces/n/networkpolicies",
        ),
        ("networking.k8s.io/v1", "Ingress", "/apis/networking.k8s.io/v1/namespaces/n/ingresses"),
    ],
)
def test_the_path_of_an_object_has_its_plural(version: str, kind: str, path: str) -> None:
    assert path_of({"apiVersion": version, "kind": kind}, "n") == path


def test_pod_of_a_stateful_set_has_its_claims() -> None:
    spec = {
        "template": {"metadata": {}, "spec": {"volumes": [{"name": "tmp"}]}},
        "volumeClaimTemplates": [{"metadata": {"name": "volume"}}],
    }
    (pod,) = pods_of([{"kind": "StatefulSet", "metadata": {"name": "rank-s"}, "spec": spec}])
    assert pod["spec"]["volumes"] == [
        {"name": "tmp"},
        {"name": "volume", "persistentVolumeClaim": {"claimName": "volume"}},
    ]
