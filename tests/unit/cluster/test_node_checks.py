"""What nodes say of themselves, and whether it is fit for a benchmark."""

from typing import Any

import pytest

from aiperf_svc.adapters.cluster.preflight.node_facts import clock_ahead_s, read_nodes
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.core.cluster.facts import NodeFacts
from aiperf_svc.core.cluster.node_checks import judge_clocks, judge_nodes, judge_pressure
from tests.support.plans import named, node

TAKEN = "2026-01-01T00:00:10Z"


def ready(**facts: Any) -> NodeFacts:
    return NodeFacts(**{"name": "a", "is_ready": True, **facts})


def reporting(said: str, *fields: dict[str, Any]) -> dict[str, Any]:
    """A node whose report says this time."""
    found = node()
    found["status"]["conditions"][0]["lastHeartbeatTime"] = said
    found["metadata"]["managedFields"] = list(fields)
    return found


def report_fields(**changes: Any) -> dict[str, Any]:
    """What the API server notes of a kubelet's report."""
    conditions = {'k:{"type":"Ready"}': {"f:lastHeartbeatTime": {}}}
    status = {"f:status": {"f:conditions": conditions}}
    return {"subresource": "status", "time": TAKEN, "fieldsV1": status, **changes}


@pytest.mark.parametrize(
    ("nodes", "state", "words"),
    [
        ([ready(), ready(name="b")], "ok", "2 of 2 are ready"),
        ([ready(), ready(name="b", is_ready=False)], "warning", "1 of 2 are ready; not ready: b"),
        ([ready(), ready(name="b", is_open=False)], "warning", "closed for new pods: b"),
        ([ready(is_ready=False)], "failed", "0 of 1 are ready"),
        ([ready(is_open=False)], "failed", "closed for new pods: a"),
        ([], "failed", "0 of 0 are ready"),
    ],
)
def test_nodes_must_be_ready_and_open(nodes: list[NodeFacts], state: str, words: str) -> None:
    check = judge_nodes(nodes)
    assert (check.state, words in check.detail) == (state, True), check


def test_many_nodes_are_not_all_named() -> None:
    lost = [ready(name=f"n{number}", is_ready=False) for number in range(7)]
    assert judge_nodes([ready(), *lost]).detail.endswith("n0, n1, n2, n3, n4 and 2 more")


def test_a_node_under_pressure_is_named_and_other_conditions_are_none() -> None:
    conditions = [
        {"type": "Ready", "status": "True"},
        {"type": "DiskPressure", "status": "True"},
        {"type": "MemoryPressure", "status": "False"},
        {"type": "StorageReady", "status": "True"},
    ]
    nodes = read_nodes([node("a", conditions=conditions), node("b")], None)
    assert judge_pressure(nodes).detail == "a (DiskPressure)"
    assert judge_pressure(nodes[1:]).state == "ok"


def test_the_offset_of_a_clock_is_that_of_the_report_and_when_it_was_taken() -> None:
    assert clock_ahead_s(reporting("2026-01-01T00:00:10Z", report_fields())) == 0
    assert clock_ahead_s(reporting("2026-01-01T00:00:03Z", report_fields())) == -7
    assert clock_ahead_s(reporting("2026-01-01T01:00:10+00:00", report_fields())) == 3600


@pytest.mark.parametrize(
    "fields",
    [
        [],
        [report_fields(subresource="")],
        [report_fields(fieldsV1={"f:status": {"f:images": {}}})],
        [report_fields(), report_fields()],
    ],
    ids=["stripped", "not a status", "without a heartbeat", "of two reporters"],
)
def test_an_offset_that_cannot_be_told_is_unknown(fields: list[dict[str, Any]]) -> None:
    assert clock_ahead_s(reporting(TAKEN, *fields)) is None


def test_a_node_that_is_not_ready_says_nothing_of_its_clock() -> None:
    found = reporting("2026-01-01T00:00:00Z", report_fields())
    found["status"]["conditions"][0]["status"] = "Unknown"
    assert clock_ahead_s(found) is None


@pytest.mark.parametrize(
    ("offsets", "state", "words"),
    [
        ([0, 1, -1], "ok", "3 of 3 nodes agree with the API server to a second"),
        ([0, -3], "ok", "2 of 2 nodes are at most 3 s off the API server"),
        ([None, 0], "ok", "1 of 2 nodes agree"),
        ([0, 90], "warning", "n1 is 90 s ahead of the API server"),
        ([-6, 0], "warning", "n0 is 6 s behind the API server"),
        ([None], "not checked", "no ready node"),
    ],
)
def test_clocks_are_judged(offsets: list[int | None], state: str, words: str) -> None:
    nodes = [ready(name=f"n{n}", clock_ahead_s=offset) for n, offset in enumerate(offsets)]
    check: Check = judge_clocks(nodes)
    assert (check.state, words in check.detail) == (state, True), check


def lease(name: str, renewed: str, *fields: Any) -> dict[str, Any]:
    return named(name, metadata={"managedFields": list(fields)}, spec={"renewTime": renewed})


def test_a_node_that_has_not_reported_again_is_known_by_its_lease() -> None:
    renewal = {"time": TAKEN, "fieldsV1": {"f:spec": {"f:renewTime": {}}}}
    other = {"time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:metadata": {}}}
    leases = [
        lease("late", "2026-01-01T00:01:40.987654Z", renewal, other),
        lease("silent", "2026-01-01T00:00:10.000000Z", other),
        lease("reporting", "2026-01-01T00:09:00.000000Z", renewal),
    ]
    nodes = [node(name) for name in ("late", "silent", "without")]
    nodes.append(reporting("2026-01-01T00:00:03Z", report_fields()))
    nodes[-1]["metadata"]["name"] = "reporting"
    found = {each.name: each.clock_ahead_s for each in read_nodes(nodes, None, leases)}
    assert found == {"late": 90, "silent": None, "without": None, "reporting": -7}
