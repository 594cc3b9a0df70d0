"""Whether quotas and limit ranges admit a stack."""

from typing import Any

import pytest

from aiperf_svc.adapters.cluster.api.objects import format_quantity, parse_quantity
from aiperf_svc.adapters.cluster.preflight.capacity import rooms
from aiperf_svc.adapters.cluster.preflight.quotas import (
    judge_limit_ranges,
    judge_quotas,
    quota_requests,
    read_quotas,
)
from aiperf_svc.config.deployment import POD_NAMES
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.workloads.registry import parse_benchmark
from tests.support.fake_cluster import FakeCluster
from tests.support.plans import guest_plan, make_plan, named, node, to_plan
from tests.support.releases import deployment, release_plan
from tests.support.small_configs import small_benchmark


def _quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return named("q", spec={"hard": hard, **spec}, status={"used": used or {}})


def _range(**limit: Any) -> dict[str, Any]:
    return named("r", spec={"limits": [{"type": "Container", **limit}]})


def test_quota_counts_all_replicas() -> None:
    plan = guest_plan()
    requests = quota_requests(plan)
    assert requests["pods"] == requests["count/pods"] == plan.totals.pods
    assert requests["requests.cpu"] == requests["cpu"] == plan.totals.cpu_millis / 1000
    assert requests["requests.memory"] == requests["limits.memory"] == plan.totals.memory_bytes
    disk = sum(pod.replicas * pod.requests.storage_bytes for pod in plan.pods)
    assert requests["requests.ephemeral-storage"] == requests["ephemeral-storage"] == disk > 0


@pytest.mark.parametrize(
    ("results", "more"),
    [
        ({"expose": "NodePort"}, {"services": 1, "services.nodeports": 1}),
        (
            {"expose": "LoadBalancer"},
            {"services": 1, "services.nodeports": 1, "services.loadbalancers": 1},
        ),
        (
            {"expose": "Ingress", "host": "h"},
            {"services": 1, "count/ingresses.networking.k8s.io": 1},
        ),
    ],
)
def test_objects_that_expose_results_are_counted(
    results: dict[str, Any], more: dict[str, float]
) -> None:
    usual, exposed = quota_requests(guest_plan()), quota_requests(guest_plan(results=results))
    names = (
        "services", "services.nodeports", "services.loadbalancers",
        "count/ingresses.networking.k8s.io",
    )  # fmt: skip
    assert {n: exposed[n] - usual[n] for n in names if exposed[n] != usual[n]} == more
    assert exposed["count/services"] == exposed["services"]


def test_sufficient_quota_passes() -> None:
    plan = guest_plan()
    quota = _quota({"pods": str(plan.totals.pods + 3)}, {"pods": "3"})
    assert judge_quotas(plan, [quota], []).state == "ok"
    assert judge_quotas(plan, [], []).state == "ok"


def test_used_quota_is_subtracted() -> None:
    plan = guest_plan()
    pods = plan.totals.pods
    check = judge_quotas(plan, [_quota({"pods": str(pods + 3)}, {"pods": "4"})], [])
    assert check.state == "failed"
    assert check.detail == (
        f"q: pods: the stack asks for {pods}, and {pods - 1} of {pods + 3} are left"
    )


def test_amounts_have_the_units_of_the_quota() -> None:
    check = judge_quotas(guest_plan(), [_quota({"requests.memory": "1Gi"}, {})], [])
    assert "Gi, and 1Gi of 1Gi are left" in check.detail


def test_cpu_limit_quota_needs_limits() -> None:
    quota = _quota({"limits.cpu": "1000"})
    assert "refuses pods without a CPU limit" in judge_quotas(guest_plan(), [quota], []).detail
    assert judge_quotas(guest_plan(), [quota], [_range(default={"cpu": "1"})]).state == "ok"


def test_default_cpu_limits_count_in_the_quota() -> None:
    plan = guest_plan(pods={"worker": {"cpu_limit": 3}})
    wanted = 0.5 * (plan.totals.pods - plan.load_pod.replicas) + 3 * plan.load_pod.replicas
    ranges = [_range(default={"cpu": "500m"})]
    assert judge_quotas(plan, [_quota({"limits.cpu": f"{wanted}"})], ranges).state == "ok"
    check = judge_quotas(plan, [_quota({"limits.cpu": "4"}, {"limits.cpu": "1"})], ranges)
    assert check.state == "failed"
    assert check.detail == (
        f"q: limits.cpu: the stack asks for {format_quantity(wanted, 'cpu')}, and 3 of 4 are left"
    )


def test_every_pod_can_have_a_cpu_limit() -> None:
    quota = _quota({"limits.cpu": "1000"})
    pods = {name: {"cpu_limit": 2} for name in POD_NAMES}
    target = {"kind": "mock"}
    bare = judge_quotas(guest_plan(pods=pods, target=target), [quota], [])
    assert bare.detail.endswith("(target; set deployment.target.cpu_limit)")
    target["cpu_limit"] = "1500m"
    plan = guest_plan(pods=pods, target=target)
    assert judge_quotas(plan, [quota], []).state == "ok"
    limits = 2 * (plan.totals.pods - 1) + 1.5
    assert quota_requests(plan)["limits.cpu"] == limits


@pytest.mark.parametrize(
    ("scope", "pods", "state"),
    [
        ("Terminating", "0", "failed"),
        ("Terminating", "1", "ok"),
        ("NotTerminating", "1", "failed"),
        ("NotTerminating", "2", "ok"),
    ],
)
def test_only_pods_of_jobs_have_a_deadline(scope: str, pods: str, state: str) -> None:
    data = small_benchmark(
        "http://target",
        load={"duration": "30s", "concurrency": 4},
        experiment={"product": {"load.concurrency": [1, 2]}, "parallel": 1, "fan_out": "jobs"},
        deployment={"target": {"kind": "mock"}, "namespace": {"mode": "existing", "name": "n"}},
    )
    plan = to_plan(parse_benchmark(data, ""))
    assert judge_quotas(plan, [_quota({"pods": pods}, scopes=[scope])], []).state == state


@pytest.mark.parametrize(
    ("scopes", "state"),
    [(["BestEffort"], "ok"), (["NotBestEffort"], "failed"), (["Terminating"], "ok")],
)
def test_a_quota_counts_only_in_its_scope(scopes: list[str], state: str) -> None:
    hard = {"pods": "1", "limits.cpu": "0"}
    assert judge_quotas(guest_plan(), [_quota(hard, scopes=scopes)], []).state == state


def test_a_quota_on_priority_classes_is_not_judged() -> None:
    quota = _quota({"pods": "1"}, scopeSelector={"matchExpressions": []})
    assert judge_quotas(guest_plan(), [quota], []).state == "not checked"


def test_a_pod_outside_the_limits_is_named() -> None:
    check = judge_limit_ranges(guest_plan(), [_range(max={"memory": "1Gi"})])
    assert check.state == "failed"
    assert "r: pod records-manager asks for 2Gi memory, and at most 1Gi is allowed" in check.detail
    check = judge_limit_ranges(guest_plan(), [_range(min={"cpu": "100m"})])
    assert check.detail == "r: pod deadline asks for 10m cpu, and at least 100m is required"
    check = judge_limit_ranges(guest_plan(), [_range(max={"ephemeral-storage": "8Gi"})])
    assert check.detail.startswith("r: pod records-manager asks for ")
    assert check.detail.endswith(" ephemeral-storage, and at most 8Gi is allowed")


def test_claims_outside_the_limits_are_named() -> None:
    volume = {"kind": "claim", "size": "10Gi"}
    data = {
        "workload": {"kind": "fio", "size": "1Gi"},
        "deployment": {"ttl": "4h", "ranks": {"volume": volume}},
    }
    plan = to_plan(parse_benchmark(data, ""))
    limits = {"type": "PersistentVolumeClaim", "min": {"storage": "1Gi"}, "max": {"storage": "5Gi"}}
    check = judge_limit_ranges(plan, [_range(**limits)])
    assert check.state == "failed"
    assert check.detail == "r: pod rank asks for a claim of 10Gi, and at most 5Gi is allowed"
    limits["max"] = {"storage": "10Gi"}
    assert judge_limit_ranges(plan, [_range(**limits)]).state == "ok"


def test_default_cpu_limit_is_a_warning() -> None:
    check = judge_limit_ranges(guest_plan(), [_range(default={"cpu": "1"})])
    assert check.state == "warning"
    assert "throttle" in check.detail
    assert judge_limit_ranges(guest_plan(), [_range(default={"memory": "1Gi"})]).state == "ok"


def test_a_default_limit_below_the_request_is_refused() -> None:
    plan = guest_plan(pods={"worker": {"cpu": "500m"}, "deadline": {"cpu_limit": "1"}})
    check = judge_limit_ranges(plan, [_range(default={"cpu": "300m"})])
    assert check.state == "failed"
    assert (
        "r: container worker of pod worker requests 500m cpu and has no limit, so it gets the "
        "default limit of 300m, which is below its request"
    ) in check.detail
    assert "deadline" not in check.detail


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("250m", 0.25), ("2", 2), ("1.5", 1.5), ("2Gi", 2**31), ("1e3", 1000), ("5k", 5000),
        ("100n", 1e-7), ("1E", 1e18), ("24627896Ki", 24_627_896 * 1024), (3, 3),
    ],
)  # fmt: skip
def test_a_quantity_is_its_number_of_base_units(text: str, value: float) -> None:
    assert parse_quantity(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "one", "1KiB"])
def test_invalid_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a Kubernetes quantity"):
        parse_quantity(text)


@pytest.mark.parametrize(
    ("value", "resource", "text"),
    [
        (0.25, "requests.cpu", "250m"), (2, "cpu", "2"), (1.5 * 2**30, "memory", "1.5Gi"),
        (5 * 2**20, "limits.memory", "5Mi"), (3, "pods", "3"), (0, "memory", "0"),
    ],
)  # fmt: skip
def test_quantity_is_formatted_with_its_unit(value: float, resource: str, text: str) -> None:
    assert format_quantity(value, resource) == text


INSIDE = "/api/v1/namespaces/theirs"
PLAN = guest_plan()
PODS = PLAN.totals.pods


def guarded(hard: int, *, used: int = 0, there: int = 0, **spec: Any) -> FakeCluster:
    """Return a namespace with a pod quota and this many pods of the running stack."""
    quota = _quota({"pods": str(hard)}, {"pods": str(used)}, **spec)
    pods = [{"metadata": {}, "status": {"phase": "Running"}}] * there
    return FakeCluster(
        {f"{INSIDE}/resourcequotas": {"items": [quota]}, f"{INSIDE}/pods": {"items": pods}}
    )


@pytest.mark.parametrize(
    ("cluster", "running", "has"),
    [
        (guarded(PODS), [], True),
        (guarded(PODS, used=1), [], False),
        (guarded(2 * PODS - 1), [PLAN], False),
        (guarded(2 * PODS), [PLAN], True),
        (guarded(2 * PODS, used=PODS, there=PODS), [PLAN], True),
        (guarded(1, scopes=["BestEffort"]), [], True),
        (FakeCluster(), [PLAN], True),
    ],
    ids=["enough", "short", "one comes up", "both", "all are there", "others", "not listed"],
)
async def test_parallel_stack_waits_for_its_quota(
    cluster: FakeCluster, running: list[StackPlan], *, has: bool
) -> None:
    found = await read_quotas(cluster.typed, PLAN.config.deployment.namespace, running)
    assert found.has_room(PLAN) is has


async def test_stacks_that_begin_together_need_room_for_all() -> None:
    space = PLAN.config.deployment.namespace
    found = await read_quotas(guarded(2 * PODS).typed, space, [])
    assert found.has_room(PLAN, [PLAN])
    assert not found.has_room(PLAN, [PLAN, PLAN])


async def test_default_limits_count_beside_other_stacks() -> None:
    cluster = FakeCluster(
        {
            f"{INSIDE}/resourcequotas": {"items": [_quota({"limits.cpu": f"{1.5 * PODS}"})]},
            f"{INSIDE}/limitranges": {"items": [_range(default={"cpu": "1"})]},
        }
    )
    found = await read_quotas(cluster.typed, PLAN.config.deployment.namespace, [])
    assert found.has_room(PLAN)
    assert not found.has_room(PLAN, [PLAN])


async def test_namespace_of_its_own_has_no_quota() -> None:
    plan = make_plan()
    found = await read_quotas(guarded(1).typed, plan.config.deployment.namespace, [])
    assert found.has_room(plan)


AGENTS = release_plan(
    {**deployment("agent"), "kind": "DaemonSet"}, namespace={"name": "theirs", "mode": "existing"}
)
NODES = rooms([node(name) for name in "abc"], (), stack="")


def test_daemon_sets_count_in_quotas_by_nodes() -> None:
    quota = _quota({"pods": str(AGENTS.totals.pods + 1)})
    assert judge_quotas(AGENTS, [quota], []).state == "ok"
    assert judge_quotas(AGENTS, [quota], [], NODES[:2]).state == "ok"
    check = judge_quotas(AGENTS, [quota], [], NODES)
    assert f"pods: the stack asks for {AGENTS.totals.pods + 2}" in check.detail


async def test_parallel_stacks_count_daemon_sets_by_nodes() -> None:
    pods = AGENTS.totals.pods + 2
    space = AGENTS.config.deployment.namespace

    async def has_room(hard: int, *, there: int) -> bool:
        cluster = guarded(hard, used=there, there=there).typed
        return (await read_quotas(cluster, space, [AGENTS], NODES)).has_room(AGENTS)

    assert await has_room(2 * pods, there=pods)
    assert not await has_room(2 * pods - 1, there=pods)
    assert not await has_room(2 * pods, there=pods - 1)
