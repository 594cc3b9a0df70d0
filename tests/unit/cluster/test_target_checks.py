"""Checks of the target and of the image before the stack exists."""

import asyncio
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, Unreachable
from aiperf_svc.adapters.cluster.preflight import images, probe_pods
from aiperf_svc.adapters.cluster.preflight.admission import NO_DRY_RUN, PodNamespace, try_admission
from aiperf_svc.adapters.cluster.preflight.images import check_image
from aiperf_svc.adapters.cluster.preflight.probe_pods import (
    DEADLINE_S,
    WaitedPod,
    idle_pod,
    run_pod,
)
from aiperf_svc.adapters.cluster.preflight.target_checks import (
    PROGRAM,
    ServiceAddress,
    check_bucket,
    check_target,
    find_target_pods,
    judge_probe,
    judge_service,
    probe_pod,
    service_address,
)
from aiperf_svc.config.target import TargetPods
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.plan.identity import TTL_ANNOTATION
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.workloads.registry import parse_benchmark
from tests.support.fake_cluster import FakeCluster
from tests.support.plans import guest_plan, make_config, make_plan, named, to_plan

URL = "http://llm.inference.svc.cluster.local:8000"


def _service(**spec: Any) -> dict[str, Any]:
    ports = [{"name": "http", "port": 8000}, {"name": "metrics", "port": 9100}]
    return named("llm", spec={"ports": ports, "selector": {"app": "llm"}, **spec})


def _slice(*ready: bool) -> dict[str, Any]:
    ports = [{"name": "http", "port": 8080}, {"name": "metrics", "port": 9100}]
    return {"ports": ports, "endpoints": [{"conditions": {"ready": each}} for each in ready]}


def _judge(service: Any, *slices: Any, port: int = 8000, **target: Any) -> Check:
    plan = make_plan(url=URL, target={"kind": "none", **target})
    address = ServiceAddress("inference", "llm")
    return judge_service(address, port, plan, service, slices)


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("llm.inference.svc", ServiceAddress("inference", "llm")),
        ("llm.inference.svc.cluster.local", ServiceAddress("inference", "llm")),
        ("llm.inference", ServiceAddress("inference", "llm", is_full=False)),
        ("llm", None),
        ("api.example.com", None),
        ("10.0.0.1", None),
    ],
)
def test_host_name_identifies_a_service(host: str, found: ServiceAddress | None) -> None:
    assert service_address(host) == found


def test_unusable_service_fails_with_the_reason() -> None:
    assert _judge(None).detail == "there is no Service llm in namespace inference"
    assert "has no port 80; it has 8000, 9100" in _judge(_service(), port=80).detail
    assert "no pod of Service llm" in _judge(_service(), _slice(False, False)).detail


def test_remedy_names_the_pods_for_the_config() -> None:
    check = _judge(_service(), _slice(True, False, True))
    assert check.state == "warning"
    assert check.detail.startswith("2 pods of Service llm")
    assert check.remedy == (
        "restrict them: deployment.target.pods: "
        '{namespace: inference, labels: {"app": "llm"}, port: 8080}'
    )
    named_pods = {"namespace": "inference", "labels": {"app": "llm"}, "port": 8080}
    assert _judge(_service(), _slice(True), pods=named_pods).state == "ok"


def test_probe_pod_runs_like_a_worker() -> None:
    selector = {"pool": "load"}
    plan = make_plan(
        url="https://api.example.com",
        image={"name": "r.example/a:1", "pull_secrets": ["s"]},
        placement={
            "node_selector": selector,
            "tolerations": [{"key": "spot"}],
            "priority_class": "low",
        },
        annotations={"linkerd.io/inject": "enabled"},
    )
    made = probe_pod(plan, "p")
    spec, (container,) = made["spec"], made["spec"]["containers"]
    assert spec["nodeSelector"] == selector
    assert spec["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    assert spec["imagePullSecrets"] == [{"name": "s"}]
    assert spec["priorityClassName"] == "low"
    assert made["metadata"]["annotations"]["linkerd.io/inject"] == "enabled"
    assert container["image"] == "r.example/a:1"
    assert container["command"][4:] == ["api.example.com", "443", "yes", "yes", "10"]
    assert made["metadata"]["labels"]["app.kubernetes.io/component"] == "preflight"
    compile(PROGRAM, "probe", "exec")


def test_termination_message_is_the_reason() -> None:
    plan = make_plan(url=URL)
    ended = {"state": {"terminated": {"message": "[Errno 111] Connection refused\n"}}}
    failed = {"status": {"phase": "Failed", "containerStatuses": [ended]}}
    check = judge_probe(plan, failed)
    assert check.state == "failed"
    assert check.detail.startswith("a pod cannot reach llm.inference.svc")
    assert check.detail.endswith(": [Errno 111] Connection refused")
    assert judge_probe(plan, {"status": {"phase": "Succeeded"}}).state == "ok"


OUTSIDE = "http://api.example.com"
SERVICE = "/api/v1/namespaces/models/services/llm"
SLICES = "/apis/discovery.k8s.io/v1/namespaces/models/endpointslices"
PULL = {"waiting": {"reason": "ErrImageNeverPull", "message": "not here"}}
REFUSED = {"terminated": {"message": "Connection refused"}}


def failed(state: dict[str, Any], *, phase: str = "Failed") -> dict[str, Any]:
    return {"phase": phase, "containerStatuses": [{"state": state, "image": "r/a:1"}]}


def models(*, pod_port: int = 8080, selector: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a Service `llm` with one ready pod."""
    ports = [{"name": "http", "port": 80}]
    spec = {"ports": ports, "selector": {"app": "llm"} if selector is None else selector}
    ready = [{"conditions": {"ready": True}}]
    listed = [{"ports": [{"name": "http", "port": pod_port}], "endpoints": ready}]
    own = {"namespace": "models", "name": "llm"}
    return {
        SERVICE: named("llm", spec=spec),
        SLICES: {"items": listed},
        "/api/v1/services": {"items": [{"metadata": own, "spec": spec}]},
    }


class Found(NamedTuple):
    """The checks of a stack that has a target."""

    target: Check
    image: Check | None


async def checked(plan: StackPlan, cluster: FakeCluster, *, namespace: str | None) -> Found:
    where = PodNamespace(cluster.typed, plan, namespace)
    found = await check_target(cluster.typed, plan, where)
    assert cluster.pods_made == []
    assert found.target is not None
    return Found(found.target, found.image)


async def test_probe_for_new_namespace_runs_in_context_namespace() -> None:
    found = await checked(make_plan(url=OUTSIDE), FakeCluster(open_to=("team",)), namespace=None)
    assert found.target.state == "ok"
    assert found.target.detail == "a pod can reach api.example.com:80, in namespace team"
    assert found.image is not None
    assert found.image.state == "ok"


async def test_probe_falls_back_to_the_default_namespace() -> None:
    cluster = FakeCluster(open_to=("default",))
    found = await checked(make_plan(url=OUTSIDE), cluster, namespace=None)
    assert cluster.dry_runs == ["team", "default"]
    assert found.target.detail.endswith("in namespace default")


async def test_namespace_with_policies_runs_no_probe() -> None:
    policies = "/apis/networking.k8s.io/v1/namespaces/team/networkpolicies"
    cluster = FakeCluster({policies: {"items": [named("deny")]}}, open_to=("team",))
    found = await checked(make_plan(url=OUTSIDE), cluster, namespace=None)
    assert found.target.state == "not checked"
    assert "kubectl run try-target" in found.target.remedy
    assert cluster.dry_runs == ["default"]


async def test_existing_namespace_runs_its_own_probe() -> None:
    cluster = FakeCluster(open_to=("default", "theirs"))
    found = await checked(guest_plan(url=OUTSIDE), cluster, namespace="theirs")
    assert found.target.detail == "a pod can reach api.example.com:80"
    assert cluster.dry_runs == []


@pytest.mark.parametrize("namespace", [None, "theirs"])
async def test_probe_needs_the_right_to_remove_it(namespace: str | None) -> None:
    cluster = FakeCluster(open_to=("team", "theirs"), denied=("delete pods",))
    plan = guest_plan(url=OUTSIDE) if namespace else make_plan(url=OUTSIDE)
    assert (await checked(plan, cluster, namespace=namespace)).target.state == "not checked"


async def test_failed_probe_still_proves_the_image() -> None:
    cluster = FakeCluster(open_to=("team",), pod_status=failed(REFUSED))
    found = await checked(make_plan(url=OUTSIDE), cluster, namespace=None)
    assert (found.target.state, found.image and found.image.state) == ("failed", "ok")
    assert "Connection refused, in namespace team" in found.target.detail


async def test_missing_image_fails_the_image_check() -> None:
    cluster = FakeCluster(open_to=("team",), pod_status=failed(PULL, phase="Pending"))
    found = await checked(make_plan(url=OUTSIDE), cluster, namespace=None)
    assert found.image is not None
    assert (found.target.state, found.image.state) == ("not checked", "failed")
    assert "ErrImageNeverPull" in found.image.detail


async def test_bare_host_in_a_new_namespace_fails() -> None:
    found = await checked(make_plan(url="http://llm:80"), FakeCluster(), namespace=None)
    assert found.target.state == "failed"
    assert found.target.remedy == "write the Service as llm.NAMESPACE.svc in endpoint.url"


@pytest.mark.parametrize("host", ["llm.models", "llm.models.svc"])
async def test_service_without_ready_pods_is_not_probed(host: str) -> None:
    known = models()
    known[SLICES]["items"][0]["endpoints"] = []
    plan = make_plan(url=f"http://{host}")
    found = await checked(plan, FakeCluster(known, open_to=("team",)), namespace=None)
    assert found.target.state == "failed"
    assert "no pod of Service llm" in found.target.detail
    assert found.image is None


@pytest.mark.parametrize(("pod_port", "state"), [(80, "warning"), (8080, "failed")])
async def test_two_label_service_blocked_by_own_policies_fails(pod_port: int, state: str) -> None:
    cluster = FakeCluster(models(pod_port=pod_port), open_to=("team",))
    found = await checked(make_plan(url="http://llm.models"), cluster, namespace=None)
    assert found.target.state == state
    wanted = f'{{namespace: models, labels: {{"app": "llm"}}, port: {pod_port}}}'
    assert f"deployment.target.pods: {wanted}" in found.target.remedy


async def test_service_with_named_pods_is_probed() -> None:
    pods = {"namespace": "models", "labels": {"app": "llm"}, "port": 8080}
    plan = make_plan(url="http://llm.models", target={"kind": "none", "pods": pods})
    found = await checked(plan, FakeCluster(models(), open_to=("team",)), namespace=None)
    assert found.target.state == "ok"
    assert "a pod can reach" in found.target.detail


async def test_two_label_host_without_service_is_external() -> None:
    plan = make_plan(url="http://example.com")
    found = await checked(plan, FakeCluster(open_to=("team",)), namespace=None)
    assert found.target.state == "ok"


@pytest.mark.parametrize("host", ["llm.models", "llm.models.svc.cluster.local", "10.96.0.5"])
async def test_pods_of_a_service_are_found(host: str) -> None:
    found = await find_target_pods(FakeCluster(models()).typed, f"http://{host}/v1")
    assert found == TargetPods(namespace="models", labels={"app": "llm"}, port=8080)


@pytest.mark.parametrize("url", ["http://llm.others", "http://10.0.0.1", OUTSIDE])
async def test_other_hosts_have_no_pods(url: str) -> None:
    known = models() | {"/api/v1/services": {"items": []}}
    assert await find_target_pods(FakeCluster(known).typed, url) is None
    del known["/api/v1/services"]
    assert await find_target_pods(FakeCluster(known).typed, url) is None


async def test_cluster_ip_of_unknown_pods_is_a_warning() -> None:
    cluster = FakeCluster(models(), open_to=("team",))
    found = await checked(make_plan(url="http://10.96.0.5"), cluster, namespace=None)
    assert found.target.state == "warning"
    assert found.target.remedy.endswith("or write llm.models.svc")


async def test_service_without_selector_has_no_pods() -> None:
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
    ids=["admitted", "denied by a webhook", "no right", "webhook without dry run"],
)
async def test_admission_creates_no_pod(cluster: FakeCluster, state: str) -> None:
    check = await try_admission(cluster.typed, guest_plan(), namespace="theirs")
    assert check.state == state
    assert cluster.pods_made == []
    assert state != "failed" or 'webhook "w" denied the request' in check.detail


@pytest.mark.parametrize(
    ("status", "state", "message"),
    [
        ({"phase": "Succeeded"}, "ok", "a node of the cluster has run "),
        (failed(PULL, phase="Pending"), "failed", "ErrImageNeverPull"),
        (failed({"terminated": {"message": "no python"}}), "failed", ": no python"),
    ],
    ids=["runs", "cannot be pulled", "another image"],
)
async def test_image_is_checked_by_an_idle_pod(
    status: dict[str, Any], state: str, message: str
) -> None:
    cluster = FakeCluster(open_to=("team",), pod_status=status)
    where = PodNamespace(cluster.typed, make_plan(), None)
    check = await check_image(cluster.typed, make_plan(), where)
    assert check is not None
    assert (check.name, check.state) == ("image", state)
    assert message in check.detail
    assert cluster.pods_made == []


async def test_image_needs_the_kinds_of_all_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    dist = SimpleNamespace(name="fio-workload", version="1")
    monkeypatch.setattr(images, "OWN", ("iperf", "qualify"))
    monkeypatch.setattr(images, "entry_points", lambda **_: (SimpleNamespace(dist=dist),))
    stages = [
        {"nodes": "alone", "workload": {"kind": "fio"}},
        {"nodes": "pairs", "workload": {"kind": "iperf"}},
    ]
    data = {
        "workload": {"kind": "qualify", "stages": stages},
        "deployment": {"ttl": "4h", "ranks": {"pairs": "rounds", "count": 2}},
    }
    plan = to_plan(parse_benchmark(data, ""))
    cluster = FakeCluster(open_to=("team",), pod_status=failed({"terminated": {"message": "no"}}))
    where = PodNamespace(cluster.typed, plan, None)
    (check,) = await images.check_kinds(cluster.typed, plan, where)
    assert (check.name, check.state) == ("workload", "failed")
    assert check.detail.endswith("must have package fio-workload 1, which adds kind fio: no")
    assert await images.check_kinds(cluster.typed, make_plan(), where) == []


@pytest.mark.parametrize(
    ("status", "open_to", "state", "message"),
    [
        ({"phase": "Succeeded"}, ("theirs",), "ok", "a pod can reach minio:9000, which takes"),
        (failed(REFUSED), ("theirs",), "failed", "a pod cannot reach minio:9000, which takes"),
        ({"phase": "Succeeded"}, (), "not checked", "the pod for this check cannot be created"),
    ],
)
async def test_results_store_is_checked_from_a_pod(
    status: dict[str, Any], open_to: tuple[str, ...], state: str, message: str
) -> None:
    bucket = {"url": "s3://results", "endpoint_url": "http://minio:9000"}
    theirs = {"name": "theirs", "mode": "existing"}
    plan = to_plan(make_config(s3=bucket, namespace=theirs))
    cluster = FakeCluster(open_to=open_to, pod_status=status)
    check = await check_bucket(cluster.typed, plan, PodNamespace(cluster.typed, plan, "theirs"))
    assert check is not None
    assert check.state == state
    assert message in check.detail


def test_probe_pods_run_on_required_nodes() -> None:
    zones = {"topology.kubernetes.io/zone": ["a", "b"]}
    plan = make_plan(placement={"require_nodes": zones})
    for pod in (idle_pod(plan, "p"), probe_pod(plan, "p")):
        required = pod["spec"]["affinity"]["nodeAffinity"]
        (terms,) = required["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert terms["matchExpressions"] == [
            {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["a", "b"]}
        ]
    assert "affinity" not in idle_pod(make_plan(), "p")["spec"]


async def test_image_is_not_checked_without_rights() -> None:
    cluster = FakeCluster(open_to=("team",), denied=("create pods",))
    for plan, namespace in ((make_plan(), None), (guest_plan(), "theirs")):
        where = PodNamespace(cluster.typed, plan, namespace)
        assert await check_image(cluster.typed, plan, where) is None


GUEST = make_plan(url="https://api.example.com", namespace={"name": "theirs", "mode": "existing"})
DENIED = Refused("not allowed", status=403, reason="Forbidden")
FAILED = Refused("etcdserver: request timed out", status=500, reason="")


class PodServer:
    """An API server that creates the pod, and may then fail, lose the response, or refuse."""

    def __init__(self, response: Exception | None = None, *removals: Exception) -> None:
        """Create the server. `removals` are its first responses to the deletion."""
        self.response, self.removals = response, list(removals)
        self.was_requested = asyncio.Event()
        self.pods: list[str] = []
        self.deleted: list[str] = []

    async def post(self, path: str, body: dict[str, Any]) -> None:
        if self.response is DENIED:
            raise DENIED
        self.pods.append(f"{path}/{body['metadata']['name']}")
        self.was_requested.set()
        if self.response:
            raise self.response

    async def get(self, path: str) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def delete(self, path: str, *, uid: str | None, grace_s: int | None) -> None:
        if self.removals:
            raise self.removals.pop(0)
        self.deleted.append(path)


async def run(server: PodServer) -> WaitedPod:
    return await run_pod(cast("Cluster", server), "theirs", probe_pod(GUEST, "p"))


async def test_pod_without_creation_response_is_removed() -> None:
    server = PodServer(Unreachable("no response in time"))
    with pytest.raises(Unreachable):
        await run(server)
    assert server.deleted == server.pods != []


async def test_pod_of_cancelled_check_is_removed() -> None:
    server = PodServer()
    trying = asyncio.create_task(run(server))
    await server.was_requested.wait()
    trying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trying
    assert server.deleted == server.pods != []


async def test_forbidden_pod_means_not_checked() -> None:
    server = PodServer(DENIED)
    assert (await run(server)).problem("target").state == "not checked"
    assert server.pods == server.deleted == []


async def test_pod_of_a_failed_creation_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_pods, "POLL_S", 0.0)
    server = PodServer(FAILED, FAILED, Unreachable("no response in time"))
    assert (await run(server)).problem("target").state == "not checked"
    assert server.deleted == server.pods != []


async def test_pod_that_may_be_left_is_named() -> None:
    path = "/api/v1/namespaces/theirs/pods/p"
    with pytest.raises(EnvironmentProblem, match=f"remove it: kubectl delete --raw {path}: not"):
        await run(PodServer(FAILED, DENIED))


def test_probe_pod_has_a_deadline_and_a_ttl() -> None:
    made = probe_pod(GUEST, "p")
    assert made["spec"]["activeDeadlineSeconds"] == DEADLINE_S
    assert made["metadata"]["annotations"][TTL_ANNOTATION] == str(DEADLINE_S)


@pytest.mark.parametrize("limit", [None, 200])
def test_probe_pod_has_resources_of_smallest_pod(limit: int | None) -> None:
    """A LimitRange that admits the stack also admits the probe pod."""
    plan = make_plan(
        pods={"deadline": {"cpu": "100m", "memory": "128Mi", "cpu_limit": limit and "200m"}}
    )
    (container,) = probe_pod(plan, "p")["spec"]["containers"]
    limits = {"memory": "128Mi"} if limit is None else {"cpu": "200m", "memory": "128Mi"}
    assert container["resources"] == {
        "requests": {"cpu": "100m", "memory": "128Mi", "ephemeral-storage": "32Mi"},
        "limits": {**limits, "ephemeral-storage": "320Mi"},
    }
