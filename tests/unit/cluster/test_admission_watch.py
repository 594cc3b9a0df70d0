"""A stack as one group in a Kueue queue: its pods, its times, and the wait for admission.

No Kueue controller runs. The pods have what its webhook adds (a scheduling gate and a label) and
lose what it removes on admission.
"""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from aiperf_svc.adapters.cluster.api.connection import Refused
from aiperf_svc.adapters.cluster.api.objects import ObjectRef
from aiperf_svc.adapters.cluster.preflight.checklist import check_queue
from aiperf_svc.adapters.cluster.preflight.rights import needed_rights
from aiperf_svc.adapters.cluster.teardown.removal import release_from_queue
from aiperf_svc.adapters.cluster.watching import admission_watch
from aiperf_svc.adapters.cluster.watching.admission_watch import AdmissionWatch
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.identity import TTL_ANNOTATION
from aiperf_svc.plan.queue import (
    GATE,
    GROUP_LABEL,
    KUEUE,
    MANAGED_LABEL,
    QUEUE_LABEL,
    RETRIABLE_ANNOTATION,
    TOTAL_ANNOTATION,
    QueuePlan,
)
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.workloads.registry import parse_benchmark
from tests.support.fake_cluster import FakeCluster
from tests.support.plans import guest_plan, make_plan, pod, to_plan

QUEUES = f"{KUEUE}/namespaces/theirs/localqueues"
THEIRS = {"name": "theirs", "mode": "existing"}
CREATED = datetime(2026, 11, 26, 3, 0, tzinfo=UTC)
GROUP_PODS = "/api/v1/namespaces/theirs/pods"
ANCHOR = "/api/v1/namespaces/theirs/configmaps/anchor-bench"


def queued(**deployment: Any) -> StackPlan:
    usual = {"queue": "benchmarks", "queue_timeout": "10m", "ttl": "30m"}
    return make_plan(**{"namespace": THEIRS, **usual, **deployment})


def queue_of(plan: StackPlan) -> QueuePlan:
    assert plan.queue is not None
    return plan.queue


# --- the plan ------------------------------------------------------------------------------------


def test_all_pods_except_the_deadline_form_one_group() -> None:
    plan = queued()
    queue = queue_of(plan)
    assert queue.pods == plan.totals.pods - 1
    for each in plan.pods:
        is_in = each.name != "deadline"
        assert (each.labels.get(QUEUE_LABEL) == "benchmarks") is is_in
        assert (each.labels.get(GROUP_LABEL) == queue.group) is is_in
        assert (each.annotations.get(TOTAL_ANNOTATION) == str(queue.pods)) is is_in
        assert (each.annotations.get(RETRIABLE_ANNOTATION) == "false") is is_in


def test_queue_time_extends_the_readiness_limit() -> None:
    plan, usual = queued(), guest_plan(ttl="30m")
    waited_s = pod(plan, "worker").ready_timeout_s - pod(usual, "worker").ready_timeout_s
    assert waited_s == 600
    assert pod(plan, "deadline").ready_timeout_s == pod(usual, "deadline").ready_timeout_s


def test_queue_prolongs_the_longest_life() -> None:
    plan = queued()
    assert plan.footprint.time_ns == 40 * 60 * 10**9
    assert plan.deadline.env["AIPERF_TTL_SECONDS"] == "2400"


def test_queued_services_wait_for_the_target() -> None:
    target = {"kind": "mock", "ready_timeout": "3m"}
    assert queued(target=target).inference.endpoint.wait_for_server == 180 * 10**9
    assert guest_plan(target=target, ttl="30m").inference.endpoint.wait_for_server == 0


def test_another_run_is_another_group() -> None:
    one, other = queued(), queued(ttl="31m")
    assert queue_of(one).group != queue_of(other).group


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"namespace": {"mode": "auto"}}, "mode: existing"),
        ({"ranks": {"gang": "kueue"}}, "leave out ranks.gang"),
        ({"queue": "Not A Name"}, "queue"),
    ],
)
def test_unusable_queue_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        queued(**keys)


def test_more_templates_than_a_workload_has_are_refused() -> None:
    data = {
        "workload": {"kind": "iperf"},
        "deployment": {
            "namespace": THEIRS,
            "queue": "benchmarks",
            "layout": "per-service",
            "ranks": {"nodes": ["a", "b", "c"], "pairs": "all"},
        },
    }
    with pytest.raises(ConfigError, match=r"^deployment.queue: the stack has 9 different pods"):
        to_plan(parse_benchmark(data, "test"))


# --- preflight -----------------------------------------------------------------------------------


def local_queue(name: str, *, active: str = "True", message: str = "") -> dict[str, Any]:
    conditions = [{"type": "Active", "status": active, "message": message}]
    return {"metadata": {"name": name}, "status": {"conditions": conditions, "pendingWorkloads": 2}}


@pytest.mark.parametrize(
    ("objects", "state", "message"),
    [
        ({}, "failed", "the cluster has no Kueue"),
        ({QUEUES: {"items": [local_queue("other")]}}, "failed", "has no LocalQueue benchmarks; it"),
        (
            {QUEUES: {"items": [local_queue("benchmarks", active="False", message="no flavors")]}},
            "failed",
            "is not active: no flavors",
        ),
        ({QUEUES: {"items": [local_queue("benchmarks")]}}, "ok", "is active; 2 wait in it"),
        (
            {QUEUES: {"items": [local_queue("benchmarks"), local_queue("default")]}},
            "warning",
            "LocalQueue default takes pods that name no queue, as the deadline's",
        ),
    ],
)
async def test_queue_must_exist_and_be_active(
    objects: dict[str, Any], state: str, message: str
) -> None:
    check = await check_queue(FakeCluster(objects).typed, queued())
    assert check is not None
    assert check.state == state
    assert message in check.detail


async def test_stack_without_a_queue_has_no_queue_check() -> None:
    assert await check_queue(FakeCluster().typed, make_plan()) is None


# --- the wait ------------------------------------------------------------------------------------


class Queue(FakeCluster):
    """A cluster with the pods of a group and their Workload."""

    def __init__(
        self, plan: StackPlan, *, pods: int, is_gated: bool, is_managed: bool = True
    ) -> None:
        metadata = {"name": "p", "labels": {MANAGED_LABEL: "true"} if is_managed else {}}
        spec: dict[str, Any] = {"schedulingGates": [{"name": GATE}]} if is_gated else {}
        group = [{"metadata": metadata, "spec": spec}] * pods
        words = "insufficient quota for cpu"
        reason = {"type": "QuotaReserved", "status": "False", "message": words}
        workload = f"{KUEUE}/namespaces/theirs/workloads/{queue_of(plan).group}"
        created = CREATED.isoformat().replace("+00:00", "Z")
        super().__init__(
            {
                GROUP_PODS: {"items": group},
                workload: {"status": {"conditions": [reason]}},
                ANCHOR: {"metadata": {"creationTimestamp": created}},
            }
        )
        self.patches: list[tuple[str, dict[str, Any]]] = []
        self.has_patched = asyncio.Event()

    async def now(self) -> datetime:
        return CREATED + timedelta(seconds=42)

    async def patch(self, path: str, changes: dict[str, Any], **params: str) -> dict[str, Any]:
        self.patches.append((path, changes))
        self.has_patched.set()
        return changes


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission_watch, "POLL_S", 0.0)


async def test_time_to_live_counts_from_the_admission() -> None:
    plan = queued()
    cluster, notes = Queue(plan, pods=queue_of(plan).pods, is_gated=False), list[str]()
    watch = AdmissionWatch(cluster.typed, plan, notes.append)
    waiting = asyncio.create_task(watch.wait_for_rejection())
    await cluster.has_patched.wait()
    waiting.cancel()
    # The runner calls it again when the stack is up.
    await watch.begin()
    annotations = {TTL_ANNOTATION: str(42 + 1800)}
    assert cluster.patches == [(ANCHOR, {"metadata": {"annotations": annotations}})]
    assert notes == ["queue benchmarks has admitted the stack after 0 s"]


class FailingOnce(Queue):
    """A cluster whose API server fails at the first request for each object."""

    _failed: frozenset[str] = frozenset()

    def _fail_once(self, request: str) -> None:
        if request not in self._failed:
            self._failed |= {request}
            raise Refused("etcdserver: leader changed", status=500, reason="")

    async def get(self, path: str, **params: str) -> dict[str, Any]:
        self._fail_once(f"get {path}")
        return await super().get(path, **params)

    async def patch(self, path: str, changes: dict[str, Any], **params: str) -> dict[str, Any]:
        self._fail_once(f"patch {path}")
        return await super().patch(path, changes, **params)


async def test_errors_of_the_server_do_not_end_it() -> None:
    plan, notes = queued(), list[str]()
    cluster = FailingOnce(plan, pods=queue_of(plan).pods, is_gated=False)
    watch = AdmissionWatch(cluster.typed, plan, notes.append)
    waiting = asyncio.create_task(watch.wait_for_rejection())
    await asyncio.wait_for(cluster.has_patched.wait(), 10)
    assert not waiting.done()
    waiting.cancel()
    assert [path for path, _ in cluster.patches] == [ANCHOR]
    assert notes == ["queue benchmarks has admitted the stack after 0 s"]


@pytest.mark.parametrize(
    ("missing", "is_gated", "message"),
    [
        (0, True, "has not admitted the stack after 0 s: insufficient quota for cpu; wait for"),
        (2, False, "pods of the group exist; wait for others"),
    ],
)
async def test_admission_timeout_is_one_line(missing: int, is_gated: bool, message: str) -> None:
    plan = queued()
    plan = structs.replace(plan, queue=structs.replace(queue_of(plan), timeout_s=0))
    cluster = Queue(plan, pods=queue_of(plan).pods - missing, is_gated=is_gated)
    watch = AdmissionWatch(cluster.typed, plan, lambda line: None)
    line = await asyncio.wait_for(watch.wait_for_rejection(), 10)
    assert message in line
    assert not cluster.patches


async def test_namespace_that_kueue_does_not_manage_is_named() -> None:
    plan = queued()
    cluster = Queue(plan, pods=queue_of(plan).pods, is_gated=False, is_managed=False)
    line = await AdmissionWatch(cluster.typed, plan, lambda line: None).wait_for_rejection()
    assert "Kueue does not manage the pods of this namespace" in line


async def test_wait_ends_if_pods_cannot_be_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = queued()
    cluster = Queue(plan, pods=1, is_gated=True)

    async def refused(path: str, **params: str) -> dict[str, Any]:
        raise Refused("forbidden", status=403, reason="Forbidden")

    monkeypatch.setattr(cluster, "get", refused)
    line = await AdmissionWatch(cluster.typed, plan, lambda line: None).wait_for_rejection()
    assert line == "queue benchmarks: its pods cannot be watched: forbidden"


# --- the removal ---------------------------------------------------------------------------------


def going_pod(*finalizers: str) -> ObjectRef:
    return ObjectRef(
        kind="Pod",
        namespace="theirs",
        name="p",
        uid="u",
        path="",
        labels={GROUP_LABEL: "group-1"},
        finalizers=finalizers,
        is_going=True,
    )


@pytest.mark.parametrize(
    ("finalizers", "deleted"),
    [
        ((MANAGED_LABEL,), [f"{KUEUE}/namespaces/theirs/workloads/group-1"]),
        (("others.example/x",), []),
        ((), []),
    ],
)
async def test_pods_that_kueue_holds_are_released(
    finalizers: tuple[str, ...], deleted: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, requested = FakeCluster({}), list[str]()

    async def delete(path: str, **options: Any) -> None:
        requested.append(path)

    monkeypatch.setattr(cluster, "delete", delete)
    await release_from_queue(cluster.typed, [going_pod(*finalizers)])
    assert requested == deleted


def test_rights_of_a_queued_stack_have_its_workload() -> None:
    wanted = {str(each) for each in needed_rights(queued())}
    assert {"delete workloads.kueue.x-k8s.io", "get workloads.kueue.x-k8s.io"} <= wanted
    assert not any("kueue" in str(each) for each in needed_rights(guest_plan(ttl="30m")))
