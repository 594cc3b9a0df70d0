"""The permissions for a stack, and the Roles in the documentation for them."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from aiperf_svc.adapters.cluster.preflight.rights import (
    Right,
    all_rights,
    event_rights,
    granted_rights,
    judge_deadline,
    judge_results_access,
    judge_rights,
    namespace_of,
    needed_rights,
    port_forward_rights,
    probe_rights,
    proxy_rights,
)
from aiperf_svc.config.deployment import Deployment
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.workloads.registry import parse_benchmark
from tests.support.plans import guest_plan, make_plan, to_plan

ALL = frozenset[Right]()


def test_all_rights_pass_every_check() -> None:
    plan = make_plan()
    for judge in (judge_rights, judge_deadline, judge_results_access):
        assert judge(plan, ALL).state == "ok"


def test_each_missing_right_is_named() -> None:
    plan = make_plan()
    for right in needed_rights(plan):
        check = judge_rights(plan, frozenset({right}))
        assert check.state == "failed"
        assert str(right) in check.detail


def test_only_own_namespaces_need_namespace_rights() -> None:
    def kinds(rights: tuple[Right, ...]) -> set[str]:
        return {right.resource for right in rights}

    assert "namespaces" in kinds(needed_rights(make_plan()))
    assert "namespaces" not in kinds(all_rights(guest_plan()))


def test_optional_objects_need_rights_only_when_configured() -> None:
    def made(**deployment: Any) -> set[str]:
        return {right.resource for right in needed_rights(make_plan(**deployment))}

    assert "ingresses" not in made()
    assert "ingresses" in made(results={"expose": "Ingress", "host": "h"})
    assert "networkpolicies" in made()
    assert "networkpolicies" not in made(network_policies=False)
    assert "endpoints" not in made(results={"expose": "NodePort"})
    assert "endpoints" in made(results={"expose": "LoadBalancer"})


def test_created_objects_can_be_patched_and_watched() -> None:
    """Every object, including the Namespace, has the run's label, and deletions are watched."""
    verbs: dict[str, set[str]] = {}
    for right in needed_rights(make_plan()):
        verbs.setdefault(right.resource, set()).add(right.verb)
    assert {kind for kind, found in verbs.items() if "create" in found} == {
        "configmaps", "deployments", "leases", "namespaces", "networkpolicies",
        "poddisruptionbudgets", "rolebindings", "roles", "secrets", "serviceaccounts", "services",
    }  # fmt: skip
    for found in verbs.values():
        assert found >= {"create", "patch", "list", "watch"} or "create" not in found


def test_deadline_gets_rights_on_its_budget_only() -> None:
    def granted(plan: StackPlan) -> list[str]:
        return [str(right) for right in granted_rights(plan)]

    load = {"concurrency": 1, "duration": "1m"}
    plan = make_plan(load=load)
    assert plan.budget is not None
    named = f"poddisruptionbudgets.policy {plan.budget.name}"
    renewed = "patch leases.coordination.k8s.io owner-bench"
    assert granted(plan)[2:] == [f"get {named}", f"delete {named}", renewed]
    assert len(granted(make_plan(load=load, hold_drains=False))) == 3
    assert len(granted(make_plan(load={"concurrency": 1, "requests": 9}))) == 3


def test_granting_needs_the_right_or_escalate() -> None:
    plan = make_plan()
    lacking = frozenset(granted_rights(plan))
    escalate = all_rights(plan)[-1]
    assert escalate.verb == "escalate"
    assert judge_deadline(plan, lacking | {escalate}).state == "failed"
    assert judge_deadline(plan, lacking).state == "ok"


def test_results_access_needs_port_forward_or_proxy() -> None:
    plan = make_plan()
    forward, proxy = frozenset(port_forward_rights(plan)), frozenset(proxy_rights(plan))
    assert judge_results_access(plan, proxy).state == "ok"
    assert judge_results_access(plan, forward).state == "warning"
    assert judge_results_access(plan, forward | proxy).state == "failed"
    exposed = make_plan(results={"expose": "NodePort"})
    assert judge_results_access(exposed, forward | proxy).state == "ok"


PAGE = Path(__file__).parents[3] / "docs" / "stacks.md"
EXPOSED = ({"expose": "port-forward"}, {"expose": "LoadBalancer"},
           {"expose": "Ingress", "host": "h"})  # fmt: skip
LOOKED_AT = {
    ("", "resourcequotas", "list"),
    ("", "limitranges", "list"),
    ("scheduling.k8s.io", "priorityclasses", "list"),
}
"""Lists that preflight reads if it may, and otherwise skips."""
Allowed = set[tuple[str, str, str]]
"""(API group, resource, verb)."""


@pytest.fixture(scope="module")
def documented() -> dict[str, Allowed]:
    """Return what each Role of the page allows."""
    (block,) = (each for each in _blocks() if "kind: ClusterRole" in each)
    return {
        role["metadata"]["name"]: {
            (group, resource, verb)
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }
        for role in yaml.safe_load_all(block.removeprefix("yaml\n"))
    }


def _blocks() -> list[str]:
    return [part for part in PAGE.read_text().split("```") if part.startswith("yaml\n")]


def test_documented_example_is_a_valid_config() -> None:
    example = yaml.safe_load(_blocks()[0].removeprefix("yaml\n").replace("…", "0a" * 32))
    deployment = Deployment.model_validate(example["config"]["aiperf:benchmark"]["deployment"])
    assert deployment.namespace.mode == "existing"


def _allowed(rights: Iterable[Right]) -> Allowed:
    return {(right.group, right.resource, right.verb) for right in rights}


def _checked_rights(plan: StackPlan) -> Allowed:
    every = (needed_rights, granted_rights, port_forward_rights, proxy_rights)
    checked = {each for rights in every for each in _allowed(rights(plan))}
    return checked | _allowed(probe_rights(namespace_of(plan))) | LOOKED_AT


def test_existing_namespace_needs_the_first_role_only(documented: dict[str, Allowed]) -> None:
    checked = {each for how in EXPOSED for each in _checked_rights(guest_plan(results=how))}
    assert documented["aiperf-stacks"] == checked


def test_own_namespace_needs_the_second_role(documented: dict[str, Allowed]) -> None:
    checked = {each for how in EXPOSED for each in _checked_rights(make_plan(results=how))}
    assert documented["aiperf-stacks"] | documented["aiperf-namespaces"] == checked


def test_a_prometheus_operator_needs_a_role_on_top(documented: dict[str, Allowed]) -> None:
    usual = _checked_rights(make_plan())
    watched = _checked_rights(make_plan(monitoring="prometheus-operator"))
    assert documented["aiperf-monitoring"] == watched - usual


def test_queue_needs_a_role_on_top(documented: dict[str, Allowed]) -> None:
    checked = _checked_rights(guest_plan(queue="nightly")) - _checked_rights(guest_plan())
    assert documented["aiperf-queues"] == checked | {("kueue.x-k8s.io", "localqueues", "list")}


def test_ranks_need_the_third_role_on_top(documented: dict[str, Allowed]) -> None:
    ranks = {"volume": {"kind": "shared-claim"}}
    data = {"workload": {"kind": "iperf"}, "deployment": {"ranks": ranks}}
    plan = to_plan(parse_benchmark(data, ""), stack="bench", version="1")
    usual = {each for how in EXPOSED for each in _checked_rights(make_plan(results=how))}
    assert documented["aiperf-workloads"] | usual == usual | _checked_rights(plan)
    assert not documented["aiperf-workloads"] & usual


EVENTS: tuple[dict[str, Any], ...] = (
    {"do": "delete-pod"},
    {"do": "evict"},
    {"do": "drain", "duration": "1s"},
    {"do": "restart"},
    {"do": "scale", "replicas": 2, "duration": "1s"},
    {"do": "kill"},
    {"do": "stall", "duration": "1s"},
    {"do": "cpu", "cores": 1, "duration": "1s"},
)


def test_events_on_others_need_two_roles(documented: dict[str, Allowed]) -> None:
    others = {"deployment": "prod/vllm", "foreign": True}
    events = [{"at": f"{20 * n}s", **each, **others} for n, each in enumerate(EVENTS, start=1)]
    data = make_plan().config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    data |= {"load": {"request_rate": 10, "duration": "5m"}, "events": events}
    data["endpoint"]["url"] = "http://target"
    rights = event_rights(to_plan(parse_benchmark(data, ""), stack="bench", version="1"))
    assert documented["aiperf-events"] == _allowed(each for each in rights if each.namespace)
    assert documented["aiperf-drains"] == _allowed(each for each in rights if not each.namespace)
    assert {each.namespace for each in rights} == {"prod", ""}


def test_jobs_need_a_role_on_top(documented: dict[str, Allowed]) -> None:
    experiment = {"product": {"deployment.target.args": [["a"], ["b"]]}, "fan_out": "jobs"}
    data = make_plan().config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    data |= {"experiment": experiment}
    data["endpoint"]["url"] = "http://target"
    plan = to_plan(parse_benchmark(data, ""), stack="bench", version="1")
    assert documented["aiperf-jobs"] == _checked_rights(plan) - _checked_rights(make_plan())
