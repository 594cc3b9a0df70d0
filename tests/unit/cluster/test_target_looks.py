"""How a target is looked at before the stack, and from where."""

from typing import Any

import pytest

from aiperf_svc.adapters.cluster.preflight.admission import NO_DRY_RUN, try_admission
from aiperf_svc.adapters.cluster.preflight.target_checks import (
    TargetChecks,
    check_image,
    check_target,
    find_target_pods,
)
from aiperf_svc.config.target import TargetPods
from aiperf_svc.plan.stack import StackPlan
from tests.support.fake_cluster import FakeCluster
from tests.support.plans import in_existing, make_plan, named

OUTSIDE = "http://api.example.com"
SERVICE = "/api/v1/namespaces/models/services/llm"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"
PULL = {"waiting": {"reason": "ErrImageNeverPull", "message": "not here"}}
REFUSED = {"terminated": {"message": "Connection refused"}}


def failed(state: dict[str, Any], *, phase: str = "Failed") -> dict[str, Any]:
    return {"phase": phase, "containerStatuses": [{"state": state, "image": "r/a:1"}]}


def models(*, pod_port: int = 8080, selector: dict[str, str] | None = None) -> dict[str, Any]:
    """A Service `llm` with one pod that is ready."""
    ports = [{"name": "http", "port": 80}]
    spec = {"ports": ports, "selector": {"app": "llm"} if selector is None else selector}
    ready = [{"conditions": {"ready": True}}]
    listed = [{"ports": [{"name": "http", "port": pod_port}], "endpoints": ready}]
    return {SERVICE: named("llm", spec=spec), SLICES: {"items": listed}}


async def look(plan: StackPlan, cluster: FakeCluster, *, namespace: str | None) -> TargetChecks:
    found = await check_target(cluster.typed, plan, namespace=namespace)
    assert cluster.pods_made == []
    return found


async def test_for_a_namespace_that_is_made_anew_another_one_is_borrowed() -> None:
    found = await look(make_plan(url=OUTSIDE), FakeCluster(open_to=("team",)), namespace=None)
    assert found.target.state == "ok"
    assert found.target.detail.endswith("can be reached from a pod, in namespace team")
    assert found.image is not None
    assert found.image.state == "ok"


async def test_where_no_pod_is_let_in_the_next_one_is_tried() -> None:
    cluster = FakeCluster(open_to=("default",))
    found = await look(make_plan(url=OUTSIDE), cluster, namespace=None)
    assert cluster.dry_runs == ["team", "default"]
    assert found.target.detail.endswith("in namespace default")


async def test_a_namespace_with_policies_of_its_own_is_not_borrowed() -> None:
    policies = "/apis/networking.k8s.io/v1/namespaces/team/networkpolicies"
    cluster = FakeCluster({policies: {"items": [named("deny")]}}, open_to=("team",))
    found = await look(make_plan(url=OUTSIDE), cluster, namespace=None)
    assert found.target.state == "not checked"
    assert "kubectl run try-target" in found.target.remedy
    assert cluster.dry_runs == ["default"]


async def test_in_a_namespace_that_exists_no_other_is_borrowed() -> None:
    cluster = FakeCluster(open_to=("default", "theirs"))
    found = await look(in_existing(url=OUTSIDE), cluster, namespace="theirs")
    assert found.target.detail.endswith("can be reached from a pod")
    assert cluster.dry_runs == []


@pytest.mark.parametrize("namespace", [None, "theirs"])
async def test_no_pod_is_made_by_whom_may_not_remove_it(namespace: str | None) -> None:
    cluster = FakeCluster(open_to=("team", "theirs"), denied=("delete pods",))
    plan = in_existing(url=OUTSIDE) if namespace else make_plan(url=OUTSIDE)
    assert (await look(plan, cluster, namespace=namespace)).target.state == "not checked"


async def test_a_target_that_no_pod_reaches_has_proved_the_image() -> None:
    cluster = FakeCluster(open_to=("team",), pod_status=failed(REFUSED))
    found = await look(make_plan(url=OUTSIDE), cluster, namespace=None)
    assert (found.target.state, found.image and found.image.state) == ("failed", "ok")
    assert "Connection refused, in namespace team" in found.target.detail


async def test_an_image_that_cannot_be_had_is_what_failed() -> None:
    cluster = FakeCluster(open_to=("team",), pod_status=failed(PULL, phase="Pending"))
    found = await look(make_plan(url=OUTSIDE), cluster, namespace=None)
    assert found.image is not None
    assert (found.target.state, found.image.state) == ("not checked", "failed")
    assert "ErrImageNeverPull" in found.image.detail


async def test_a_name_in_a_namespace_that_is_made_anew_leads_nowhere() -> None:
    found = await look(make_plan(url="http://llm:80"), FakeCluster(), namespace=None)
    assert found.target.state == "failed"
    assert found.target.remedy == "write the Service as llm.NAMESPACE.svc in endpoint.url"


@pytest.mark.parametrize("host", ["llm.models", "llm.models.svc"])
async def test_a_service_without_ready_pods_is_not_tried(host: str) -> None:
    known = models()
    known[SLICES]["items"][0]["endpoints"] = []
    plan = make_plan(url=f"http://{host}")
    found = await look(plan, FakeCluster(known, open_to=("team",)), namespace=None)
    assert found.target.state == "failed"
    assert "no pod behind Service llm" in found.target.detail
    assert found.image is None


@pytest.mark.parametrize(("pod_port", "state"), [(80, "warning"), (8080, "failed")])
async def test_a_service_of_two_labels_whose_pods_our_own_policies_block_is_refused(
    pod_port: int, state: str
) -> None:
    cluster = FakeCluster(models(pod_port=pod_port), open_to=("team",))
    found = await look(make_plan(url="http://llm.models"), cluster, namespace=None)
    assert found.target.state == state
    wanted = f'{{namespace: models, labels: {{"app": "llm"}}, port: {pod_port}}}'
    assert f"deployment.target.pods: {wanted}" in found.target.remedy


async def test_a_service_whose_pods_are_named_is_tried() -> None:
    pods = {"namespace": "models", "labels": {"app": "llm"}, "port": 8080}
    plan = make_plan(url="http://llm.models", target={"kind": "none", "pods": pods})
    found = await look(plan, FakeCluster(models(), open_to=("team",)), namespace=None)
    assert found.target.state == "ok"
    assert "can be reached from a pod" in found.target.detail


async def test_two_labels_that_are_no_service_are_a_name_outside() -> None:
    plan = make_plan(url="http://example.com")
    found = await look(plan, FakeCluster(open_to=("team",)), namespace=None)
    assert found.target.state == "ok"


@pytest.mark.parametrize("host", ["llm.models", "llm.models.svc.cluster.local"])
async def test_the_pods_of_a_service_are_read_from_it(host: str) -> None:
    found = await find_target_pods(FakeCluster(models()).typed, f"http://{host}/v1")
    assert found == TargetPods(namespace="models", labels={"app": "llm"}, port=8080)


@pytest.mark.parametrize("url", ["http://llm.others", "http://10.0.0.1", OUTSIDE])
async def test_what_is_no_such_service_has_no_pods(url: str) -> None:
    assert await find_target_pods(FakeCluster(models()).typed, url) is None


async def test_a_service_that_chooses_no_pods_names_none() -> None:
    known = models(selector={})
    assert await find_target_pods(FakeCluster(known).typed, "http://llm.models") is None


@pytest.mark.parametrize(
    ("cluster", "state"),
    [
        (FakeCluster(open_to=("theirs",)), "ok"),
        (FakeCluster(), "failed"),
        (FakeCluster(denied=("create pods",)), "not checked"),
        (FakeCluster(refusal=f'webhook "w" {NO_DRY_RUN}'), "not checked"),
    ],
    ids=["let in", "denied by a webhook", "no right", "a webhook that cannot be asked"],
)
async def test_admission_is_asked_without_making_a_pod(cluster: FakeCluster, state: str) -> None:
    check = await try_admission(cluster.typed, in_existing(), namespace="theirs")
    assert check.state == state
    assert cluster.pods_made == []
    assert state != "failed" or 'webhook "w" denied the request' in check.detail


@pytest.mark.parametrize(
    ("status", "state", "words"),
    [
        ({"phase": "Succeeded"}, "ok", "has been run by a node of the cluster"),
        (failed(PULL, phase="Pending"), "failed", "ErrImageNeverPull"),
        (
            failed({"terminated": {"message": "no python"}}),
            "failed",
            "Python does not start in it: no python",
        ),
    ],
    ids=["it runs", "it cannot be pulled", "another image"],
)
async def test_an_image_is_tried_by_a_pod_that_does_nothing(
    status: dict[str, Any], state: str, words: str
) -> None:
    cluster = FakeCluster(open_to=("team",), pod_status=status)
    check = await check_image(cluster.typed, make_plan(), namespace=None)
    assert check is not None
    assert (check.name, check.state) == ("image", state)
    assert words in check.detail
    assert cluster.pods_made == []


async def test_an_image_is_not_tried_where_no_pod_may_be_made() -> None:
    cluster = FakeCluster(open_to=("team",), denied=("create pods",))
    assert await check_image(cluster.typed, make_plan(), namespace=None) is None
    assert await check_image(cluster.typed, in_existing(), namespace="theirs") is None
