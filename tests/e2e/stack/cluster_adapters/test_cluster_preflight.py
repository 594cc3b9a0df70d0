"""The preflight checks find problems before anything is created."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from aiperf_svc.adapters.cluster.api.connection import Cluster, connect
from aiperf_svc.adapters.cluster.preflight import images
from aiperf_svc.adapters.cluster.preflight.admission import PodNamespace, try_admission, try_objects
from aiperf_svc.adapters.cluster.preflight.checklist import preflight
from aiperf_svc.adapters.pulumi.manifests import read_manifests
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.deployment import POD_NAMES
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.workloads.registry import parse_benchmark
from tests.support.plans import to_plan
from tests.support.stack.commands import PROJECT
from tests.support.stack.merge_patch import merge_patch
from tests.support.stack.served_files import PORT, SERVICE, serve


def _plan(space: str, stack: str, image: str, url: str = "http://target", **more: Any) -> StackPlan:
    small = {"cpu": "50m", "memory": "128Mi"}
    pods = ("system-controller", "dataset-manager", "timing-manager", "worker-manager",
            "records-manager", "worker", "record-processor")  # fmt: skip
    deployment = {
        "namespace": {"name": space, "mode": "existing"},
        "image": {"name": image},
        "target": {"kind": "mock" if url == "http://target" else "none", "cpu": "50m"},
        "pods": {**dict.fromkeys(pods, small), **more.pop("pods", {})},
        **more,
    }
    config = BenchmarkConfig.model_validate(
        {
            "endpoint": {"url": url, "model": "m"},
            "load": {"concurrency": 10, "requests": 10},
            "deployment": deployment,
        }
    )
    return to_plan(config, stack=stack, version="0.1.0")


async def _checks(cluster: Cluster, plan: StackPlan) -> dict[str, Check]:
    reported: list[Check] = []
    done = await preflight(cluster, plan, on_check=reported.append)
    assert list(done) == reported
    return {check.name: check for check in done}


async def test_all_checks_pass_in_an_empty_namespace(
    connected: Cluster, space: str, stack: str, image: str
) -> None:
    checks = await _checks(connected, _plan(space, stack, image))
    # A node lists a newly loaded image only in its next status report.
    states = {check.state for name, check in checks.items() if name != "image"}
    assert states == {"ok"}, checks


async def test_small_quota_is_reported_with_its_rest(
    connected: Cluster, space: str, stack: str, image: str
) -> None:
    quota = {"metadata": {"name": "tight"}, "spec": {"hard": {"pods": "3", "requests.cpu": "1"}}}
    await connected.post(f"/api/v1/namespaces/{space}/resourcequotas", quota)
    check = (await _checks(connected, _plan(space, stack, image)))["quota"]
    assert check.state == "failed"
    assert check.detail == "tight: pods: the stack asks for 9, and 3 of 3 are left"


async def test_missing_rights_are_listed(
    space: str, stack: str, image: str, lesser_user: Callable[[Any], Awaitable[str]]
) -> None:
    rules = [
        ("", "*", ("*",)),
        ("apps", "*", ("*",)),
        ("rbac.authorization.k8s.io", "roles", ("create", "get", "patch")),
    ]
    async with connect(kubeconfig=await lesser_user(rules)) as lesser:
        checks = await _checks(lesser, _plan(space, stack, image))
    assert checks["permissions"].state == "failed"
    assert "delete roles.rbac.authorization.k8s.io" in checks["permissions"].detail
    assert "create rolebindings.rbac.authorization.k8s.io" in checks["permissions"].detail
    assert "configmaps" not in checks["permissions"].detail
    assert checks["cluster"].state == "warning"
    assert checks["capacity"].state == "not checked"


async def test_unreadable_namespace_is_still_used(
    connected: Cluster,
    space: str,
    stack: str,
    image: str,
    lesser_user: Callable[[Any], Awaitable[str]],
) -> None:
    quota = {"metadata": {"name": "tight"}, "spec": {"hard": {"pods": "3"}}}
    await connected.post(f"/api/v1/namespaces/{space}/resourcequotas", quota)
    rules = [("", kind, ("list",)) for kind in ("resourcequotas", "limitranges", "pods")]
    plan = _plan(space, stack, image, "http://nowhere.invalid")
    async with connect(kubeconfig=await lesser_user(rules)) as lesser:
        checks = await _checks(lesser, plan)
    assert checks["namespace"].state == "not checked"
    assert checks["quota"].state == "failed"
    assert checks["target"].state == "not checked"
    assert "the rights to create, get and delete pods" in checks["target"].detail


async def test_deadline_needs_the_right_to_delete_its_namespace(
    space: str, stack: str, image: str, lesser_user: Callable[[Any], Awaitable[str]]
) -> None:
    plan = _plan(space, stack, image, namespace={"mode": "auto"})
    async with connect(kubeconfig=await lesser_user([("", "*", ("*",))])) as lesser:
        checks = await _checks(lesser, plan)
    assert checks["deadline's rights"].state == "failed"
    assert f"delete namespaces aiperf-{stack}" in checks["deadline's rights"].detail


async def test_probe_pod_tries_the_target_and_is_removed(
    connected: Cluster, space: str, stack: str, image: str
) -> None:
    await serve(connected, space, image)
    reached = await _checks(connected, _plan(space, stack, image, f"http://{SERVICE}:{PORT}"))
    refused = await _checks(connected, _plan(space, stack, image, f"http://{SERVICE}:9"))
    unknown = await _checks(connected, _plan(space, stack, image, "http://nowhere.invalid"))
    assert reached["target"].state == "ok"
    assert refused["target"].state == unknown["target"].state == "failed"
    assert "Connection refused" in refused["target"].detail
    assert "a pod cannot reach nowhere.invalid:80" in unknown["target"].detail
    pods = (await connected.get(f"/api/v1/namespaces/{space}/pods"))["items"]
    assert [each["metadata"]["name"] for each in pods] == [SERVICE]


async def test_new_namespace_is_probed_from_another(
    connected: Cluster, space: str, stack: str, image: str
) -> None:
    await serve(connected, space, image)
    host, auto = f"{SERVICE}.{space}", {"mode": "auto"}
    reached = _plan(space, stack, image, f"http://{host}:{PORT}", namespace=auto)
    refused = _plan(space, stack, image, "http://nowhere.invalid", namespace=auto)
    checks = await _checks(connected, reached)
    # Its pods have that port, so our policies cannot be in the way.
    assert checks["target"].state == "warning"
    assert f"deployment.target.pods: {{namespace: {space}, " in checks["target"].remedy
    assert checks["image"].detail == f"a node of the cluster has run {image}"
    assert (await _checks(connected, refused))["target"].state == "failed"
    label = f"aiperf.dev/stack={stack}"
    assert (await connected.get("/api/v1/pods", labelSelector=label))["items"] == []


async def test_refused_pod_is_found_by_a_dry_run(
    connected: Cluster, space: str, stack: str, image: str
) -> None:
    limit = {"type": "Pod", "max": {"memory": "1Mi"}}
    manifest = {"metadata": {"name": "bounds"}, "spec": {"limits": [limit]}}
    plan = _plan(space, stack, image)
    assert (await try_admission(connected, plan, namespace=space)).state == "ok"
    await connected.post(f"/api/v1/namespaces/{space}/limitranges", manifest)
    check = await try_admission(connected, plan, namespace=space)
    assert check.state == "failed"
    assert "maximum memory usage per Pod is 1Mi" in check.detail
    assert (await connected.get(f"/api/v1/namespaces/{space}/pods"))["items"] == []


async def test_existing_stack_reports_its_time_left(
    connected: Cluster, space: str, stack: str, image: str
) -> None:
    plan = _plan(space, stack, image)
    assert "time left" not in await _checks(connected, plan)
    anchor = {"name": plan.identity.name("anchor"), "labels": plan.identity.labels()}
    await connected.post(f"/api/v1/namespaces/{space}/configmaps", {"metadata": anchor})
    check = (await _checks(connected, plan))["time left"]
    assert check.state == "ok"
    assert "before its deadline" in check.detail


async def test_unplaceable_pods_are_reported_with_free_resources(
    connected: Cluster, space: str, stack: str, image: str
) -> None:
    plan = _plan(space, stack, image, pods={"worker": {"cpu": 10_000}})
    check = (await _checks(connected, plan))["capacity"]
    assert check.state == "failed"
    assert "no room for worker (10000 CPU" in check.detail


async def test_stricter_pod_security_is_refused(
    connected: Cluster, space: str, stack: str, image: str
) -> None:
    plan = _plan(space, stack, image, placement={"host_network": True})
    check = (await _checks(connected, plan))["pod security"]
    assert check.state == "failed"
    assert "enforces restricted, the pods need privileged" in check.detail


async def test_throttling_limit_range_is_a_warning(
    connected: Cluster, space: str, stack: str, image: str
) -> None:
    limit = {"type": "Container", "default": {"cpu": "500m"}, "max": {"memory": "100Mi"}}
    manifest = {"metadata": {"name": "bounds"}, "spec": {"limits": [limit]}}
    path = f"/api/v1/namespaces/{space}/limitranges"
    await connected.post(path, manifest)
    check = (await _checks(connected, _plan(space, stack, image)))["limit range"]
    assert check.state == "failed"
    assert "at most 100Mi is allowed" in check.detail
    unlimited = {"spec": {"limits": [{**limit, "max": None}]}}
    await merge_patch(connected, f"{path}/bounds", unlimited)
    check = (await _checks(connected, _plan(space, stack, image)))["limit range"]
    assert check.state == "warning"
    assert "throttle" in check.detail


async def test_stack_with_required_limits_is_admitted(
    connected: Cluster, space: str, stack: str, image: str
) -> None:
    limit = {"type": "Container", "max": {"cpu": "400m"}, "maxLimitRequestRatio": {"cpu": "4"}}
    ranges = {"metadata": {"name": "narrow"}, "spec": {"limits": [limit]}}
    quota = {"metadata": {"name": "counted"}, "spec": {"hard": {"limits.cpu": "8"}}}
    await connected.post(f"/api/v1/namespaces/{space}/limitranges", ranges)
    await connected.post(f"/api/v1/namespaces/{space}/resourcequotas", quota)
    small = {"cpu": "100m", "cpu_limit": "400m"}
    target = {"kind": "mock", **small}
    plan = _plan(space, stack, image, pods=dict.fromkeys(POD_NAMES, small), target=target)
    checks = await _checks(connected, plan)
    for name in ("quota", "limit range", "admission"):
        assert checks[name].state == "ok", checks[name]


async def test_default_limit_below_a_request_fails(
    connected: Cluster, space: str, stack: str, image: str
) -> None:
    limit = {"type": "Container", "default": {"cpu": "20m"}, "defaultRequest": {"cpu": "10m"}}
    manifest = {"metadata": {"name": "low"}, "spec": {"limits": [limit]}}
    await connected.post(f"/api/v1/namespaces/{space}/limitranges", manifest)
    check = (await _checks(connected, _plan(space, stack, image)))["limit range"]
    assert check.state == "failed"
    assert "default limit of 20m, which is below its request" in check.detail


@contextlib.asynccontextmanager
async def _owner_wanted(connected: Cluster, stack: str) -> AsyncIterator[str]:
    """Create a policy for all other namespaces: Deployments of this stack need an owner label."""
    name, base = f"owner-{stack}", "/apis/admissionregistration.k8s.io/v1/validatingadmission"
    rule = {
        "apiGroups": ["apps"],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["deployments"],
    }
    is_other = f"object.metadata.labels['aiperf.dev/stack'] != '{stack}'"
    policy = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [
            {
                "expression": f"{is_other} || 'owner' in object.metadata.labels",
                "message": "a Deployment needs the label owner",
            }
        ],
    }
    exception = {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["default"]}
    binding = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchExpressions": [exception]}},
    }
    try:
        await connected.post(f"{base}policies", {"metadata": {"name": name}, "spec": policy})
        await connected.post(f"{base}policybindings", {"metadata": {"name": name}, "spec": binding})
        yield name
    finally:
        await connected.delete(f"{base}policybindings/{name}")
        await connected.delete(f"{base}policies/{name}")


@pytest.mark.parametrize("mode", ["existing", "auto"])
async def test_admission_rule_for_deployments_is_found(
    connected: Cluster, space: str, stack: str, image: str, mode: str
) -> None:
    namespace = {"mode": mode, **({"name": space} if mode == "existing" else {})}
    objects = await _objects(stack, image, namespace)
    where = space if mode == "existing" else None
    async with _owner_wanted(connected, stack) as rule:
        # A new policy takes effect after a moment.
        async with asyncio.timeout(30):
            check = await try_objects(connected, objects, namespace=where)
            while check.state == "ok":
                await asyncio.sleep(0.2)
                check = await try_objects(connected, objects, namespace=where)
        labelled = await _objects(stack, image, namespace, labels={"owner": "me"})
        admitted = await try_objects(connected, labelled, namespace=where)
    assert admitted.state == "ok", admitted
    assert check.state == "failed"
    assert f"Deployment: ValidatingAdmissionPolicy '{rule}'" in check.detail
    assert "a Deployment needs the label owner" in check.detail


async def _objects(
    stack: str, image: str, namespace: dict[str, str], **deployment: Any
) -> tuple[dict[str, Any], ...]:
    path = PROJECT / "stacks" / "Pulumi.bench-smoke.yaml"
    config = yaml.safe_load(path.read_text())["config"]
    config["aiperf:benchmark"]["deployment"] |= {"namespace": namespace, **deployment}
    environ = {**os.environ, "AIPERF_IMAGE": image}
    return await read_manifests(PROJECT / "infra", stack=stack, config=config, environ=environ)


async def test_missing_workload_package_is_found(
    connected: Cluster, space: str, stack: str, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    point = SimpleNamespace(dist=SimpleNamespace(name="stream-workload", version="1"))
    monkeypatch.setattr(images, "OWN", ())
    monkeypatch.setattr(images, "entry_points", lambda **_: (point,))
    workload = {"kind": "iperf", "image": image}
    namespace = {"mode": "existing", "name": space}
    deployment = {"image": {"name": image}, "namespace": namespace}
    config = parse_benchmark({"workload": workload, "deployment": deployment}, "the test")
    plan = to_plan(config, stack=stack, version="1")
    where = PodNamespace(connected, plan, space)
    (check,) = await images.check_kinds(connected, plan, where)
    assert check.state == "failed", check
    assert "must have package stream-workload 1, which adds kind iperf" in check.detail
    assert check.detail.endswith("it has no package for kind iperf")
