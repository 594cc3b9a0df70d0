"""Preflight checks that need no pod: the operator's types, claims, priority classes, the version
for Jobs, and the wait for room."""

from types import SimpleNamespace
from typing import Any

import pytest

from aiperf_svc.adapters.cluster.preflight import checklist
from aiperf_svc.adapters.cluster.preflight.checklist import (
    check_claims,
    check_monitoring,
    check_priorities,
    check_scaling,
    judge_version,
    until_room,
)
from aiperf_svc.config.base import HOUR_NS
from aiperf_svc.config.scaling import Scaling
from aiperf_svc.core.cluster.check import Check
from tests.support.fake_cluster import FakeCluster
from tests.support.plans import make_config, make_plan, to_plan

TYPES = "/apis/monitoring.coreos.com/v1"
WANTED = make_plan(monitoring="prometheus-operator")


def knowing(*resources: str) -> dict[str, Any]:
    return {TYPES: {"resources": [{"name": name} for name in resources]}}


async def test_monitoring_is_checked_only_if_configured() -> None:
    assert await check_monitoring(FakeCluster().typed, make_plan()) is None


@pytest.mark.parametrize(
    ("objects", "missing"),
    [
        ({}, "podmonitors.monitoring.coreos.com and no prometheusrules.monitoring.coreos.com"),
        (knowing("podmonitors"), "no type prometheusrules.monitoring.coreos.com"),
    ],
)
async def test_missing_operator_types_are_named(objects: dict[str, Any], missing: str) -> None:
    check = await check_monitoring(FakeCluster(objects).typed, WANTED)
    assert check is not None
    assert check.state == "failed"
    assert missing in check.detail
    assert "set deployment.monitoring to annotations or none" in check.remedy


async def test_cluster_with_the_prometheus_operator_passes() -> None:
    cluster = FakeCluster(knowing("podmonitors", "prometheusrules", "servicemonitors"))
    check = await check_monitoring(cluster.typed, WANTED)
    assert check is not None
    assert check.state == "ok"


CLAIMS = "/api/v1/namespaces/lab/persistentvolumeclaims"


@pytest.mark.parametrize(("known", "state"), [("weights", "ok"), ("others", "failed")])
async def test_missing_claims_are_named(known: str, state: str) -> None:
    volume = {"kind": "claim", "source": "weights", "path": "/models"}
    plan = make_plan(
        url="http://target",
        target={"kind": "mock", "volumes": [volume]},
        namespace={"mode": "existing", "name": "lab"},
    )
    check = await check_claims(FakeCluster({f"{CLAIMS}/{known}": {}}).typed, plan)
    assert check is not None
    assert (check.state, "weights" in check.detail) == (state, True)


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("v1.28.9", "failed"),
        ("v1.29.0-eks-1", "ok"),
        ("v1.34.4", "ok"),
        ("2.0", "ok"),
        ("dev", "not checked"),
    ],
)
def test_old_versions_are_refused_before_creation(version: str, state: str) -> None:
    found = judge_version(version, "experiment.fan_out: jobs", "leave it out")
    assert found.state == state
    assert version in found.detail or state == "ok"


CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
LOW: dict[str, Any] = {"metadata": {"name": "low"}, "value": 10, "preemptionPolicy": "Never"}
HIGH: dict[str, Any] = {"metadata": {"name": "high"}, "value": 1000}
SYSTEM: dict[str, Any] = {"metadata": {"name": "system-node-critical"}, "value": 2_000_001_000}


@pytest.mark.parametrize(
    ("name", "state", "message"),
    [
        ("low", "ok", "low (value 10, preempts no pods)"),
        ("high", "ok", "high (value 1000, preempts pods of lower priority)"),
        ("lwo", "failed", "the cluster has no PriorityClass lwo; it has high, low"),
    ],
)
async def test_priority_class_must_exist(name: str, state: str, message: str) -> None:
    cluster = FakeCluster({CLASSES: {"items": [LOW, SYSTEM, HIGH]}})
    check = await check_priorities(cluster.typed, make_plan(placement={"priority_class": name}))
    assert check is not None
    assert (check.state, check.detail) == (state, message)


async def test_unreadable_priority_classes_are_not_checked() -> None:
    check = await check_priorities(
        FakeCluster().typed, make_plan(placement={"priority_class": "low"})
    )
    assert check is not None
    assert check.state == "not checked"
    assert await check_priorities(FakeCluster().typed, make_plan()) is None


def watching(denied: tuple[str, ...], **scaling: Any) -> tuple[Any, FakeCluster]:
    config = make_config(url="http://llm.serving:80")
    update = {"scaling": Scaling.model_validate(scaling)}
    return to_plan(config.model_copy(update=update)), FakeCluster(denied=denied)


PODS = {"namespace": "serving", "labels": {"app": "llm"}, "port": 8000}


@pytest.mark.parametrize(
    ("denied", "state", "message"),
    [
        ((), "ok", "in namespace serving"),
        (("watch pods",), "failed", "cannot be watched in namespace serving: watch pods"),
        (("list horizontalpodautoscalers",), "warning", "not seen in namespace serving: list hor"),
    ],
)
async def test_rights_to_watch_replicas_are_checked(
    denied: tuple[str, ...], state: str, message: str
) -> None:
    plan, cluster = watching(denied, pods=PODS)
    check = await check_scaling(cluster.typed, plan)
    assert check is not None
    assert (check.state, message in check.detail) == (state, True)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({}, "name its pods in scaling.pods"),
        ({"pods": {**PODS, "port": None}}, "scaling.pods.port: give the port"),
    ],
)
async def test_unknown_pods_and_ports_are_refused(scaling: dict[str, Any], message: str) -> None:
    plan, cluster = watching((), **scaling)
    check = await check_scaling(cluster.typed, plan)
    assert check is not None
    assert (check.state, check.is_config_error) == ("failed", True)
    assert message in check.detail


FULL, FREE = Check("capacity", "failed", "no room for target"), Check("capacity", "ok", "fits")


class Nodes:
    """Nodes that have room after this many checks. None: never, and -1: not even if empty."""

    def __init__(self, looks: int | None) -> None:
        self._looks, self.told, self.slept = looks, list[Check](), 0

    async def __call__(self, *, is_empty: bool) -> Check:
        if is_empty:
            return FULL if self._looks == -1 else FREE
        return FREE if self._looks is not None and self.slept >= self._looks else FULL

    async def sleep(self, time_s: float) -> None:
        assert 0 < time_s <= 5
        self.slept += 1

    async def checked(self, wait_ns: int, *, first: Check = FULL) -> Check:
        tell, sleep = self.told.append, self.sleep
        return await until_room(first, self, wait_ns=wait_ns, tell=tell, sleep=sleep)


async def test_stack_waits_until_others_leave_room() -> None:
    nodes = Nodes(looks=3)
    assert await nodes.checked(HOUR_NS) == FREE
    assert nodes.slept == 3
    (report,) = nodes.told
    assert report.state == "warning"
    assert report.detail == "no room for target; waiting at most 1h for others to free it"


@pytest.mark.parametrize(
    ("looks", "wait_ns", "first"),
    [(1, 0, FULL), (-1, HOUR_NS, FULL), (1, HOUR_NS, FREE)],
    ids=["not configured", "never fits", "fits"],
)
async def test_stack_without_a_wait_is_judged_once(looks: int, wait_ns: int, first: Check) -> None:
    nodes = Nodes(looks)
    assert await nodes.checked(wait_ns, first=first) == first
    assert (nodes.slept, nodes.told) == (0, [])


async def test_room_that_does_not_come_ends_the_wait() -> None:
    check = await Nodes(looks=None).checked(1_000_000)
    assert (check.state, check.detail) == ("failed", "no room for target, even after 1ms")


async def test_quota_and_nodes_share_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, waits = [0.0], list[int]()

    async def until_room(*_: Any, wait_ns: int, **__: Any) -> Check:
        waits.append(wait_ns)
        now_s[0] += 1_800
        return FREE

    monkeypatch.setattr(checklist, "until_room", until_room)
    monkeypatch.setattr(checklist, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    run = checklist._Preflight(FakeCluster().typed, make_plan(wait_for_room="1h"), None, None)
    for _ in range(3):
        await run._with_room(FULL, Nodes(looks=None))
    assert waits == [HOUR_NS, HOUR_NS // 2, 0]
