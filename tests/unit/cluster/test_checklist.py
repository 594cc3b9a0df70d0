"""Checks of the preflight that need no pod: the operator's types, claims, priority classes, and
the version for Jobs."""

from typing import Any

import pytest

from aiperf_svc.adapters.cluster.preflight.checklist import (
    check_claims,
    check_monitoring,
    check_priorities,
    judge_jobs,
)
from tests.support.fake_cluster import FakeCluster
from tests.support.plans import make_plan

TYPES = "/apis/monitoring.coreos.com/v1"
WANTED = make_plan(monitoring="prometheus-operator")


def knowing(*resources: str) -> dict[str, Any]:
    return {TYPES: {"resources": [{"name": name} for name in resources]}}


async def test_without_monitoring_nobody_looks() -> None:
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


async def test_a_cluster_with_the_operator_is_fit() -> None:
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
def test_old_versions_are_refused_before_anything_is_made(version: str, state: str) -> None:
    found = judge_jobs(version)
    assert found.state == state
    assert version in found.detail or state == "ok"


CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
LOW: dict[str, Any] = {"metadata": {"name": "low"}, "value": 10, "preemptionPolicy": "Never"}
HIGH: dict[str, Any] = {"metadata": {"name": "high"}, "value": 1000}
SYSTEM: dict[str, Any] = {"metadata": {"name": "system-node-critical"}, "value": 2_000_001_000}


@pytest.mark.parametrize(
    ("name", "state", "words"),
    [
        ("low", "ok", "low (value 10, preempts no pods)"),
        ("high", "ok", "high (value 1000, preempts pods of lower priority)"),
        ("lwo", "failed", "the cluster has no PriorityClass lwo; it has high, low"),
    ],
)
async def test_priority_class_must_exist(name: str, state: str, words: str) -> None:
    cluster = FakeCluster({CLASSES: {"items": [LOW, SYSTEM, HIGH]}})
    check = await check_priorities(cluster.typed, make_plan(placement={"priority_class": name}))
    assert check is not None
    assert (check.state, check.detail) == (state, words)


async def test_unreadable_priority_classes_fail_nothing() -> None:
    check = await check_priorities(
        FakeCluster().typed, make_plan(placement={"priority_class": "low"})
    )
    assert check is not None
    assert check.state == "not checked"
    assert await check_priorities(FakeCluster().typed, make_plan()) is None
