"""Which missing rights keep a stack from being made, and which only make it poorer."""

import pytest

from aiperf_svc.adapters.cluster.preflight.rights import (
    Right,
    asked_rights,
    granted_rights,
    judge_deadline,
    judge_results_access,
    judge_rights,
    needed_rights,
    port_forward_rights,
    proxy_rights,
)
from aiperf_svc.plan.stack import StackPlan
from tests.support.plans import in_existing, make_plan

ALL = frozenset[Right]()


def test_with_all_rights_everything_can_be_made() -> None:
    plan = make_plan()
    for judge in (judge_rights, judge_deadline, judge_results_access):
        assert judge(plan, ALL).state == "ok"


@pytest.mark.parametrize("right", needed_rights(make_plan()), ids=str)
def test_each_right_that_is_missing_is_named(right: Right) -> None:
    check = judge_rights(make_plan(), frozenset({right}))
    assert check.state == "failed"
    assert str(right) in check.detail


def test_only_a_namespace_of_its_own_needs_rights_on_namespaces() -> None:
    def kinds(rights: tuple[Right, ...]) -> set[str]:
        return {right.resource for right in rights}

    assert "namespaces" in kinds(needed_rights(make_plan()))
    assert "namespaces" not in kinds(asked_rights(in_existing()))


def test_what_exists_only_by_config_needs_rights_only_then() -> None:
    def made(**deployment: object) -> set[str]:
        return {right.resource for right in needed_rights(make_plan(**deployment))}

    assert "ingresses" not in made()
    assert "ingresses" in made(results={"expose": "Ingress", "host": "h"})
    assert "networkpolicies" in made()
    assert "networkpolicies" not in made(network_policies=False)
    assert "endpoints" not in made(results={"expose": "NodePort"})
    assert "endpoints" in made(results={"expose": "LoadBalancer"})


def test_what_is_made_can_also_be_changed_and_its_end_be_seen() -> None:
    """The run's label is on every object, the Namespace too; and a deletion is watched."""
    verbs: dict[str, set[str]] = {}
    for right in needed_rights(make_plan()):
        verbs.setdefault(right.resource, set()).add(right.verb)
    assert {kind for kind, found in verbs.items() if "create" in found} == {
        "configmaps", "deployments", "leases", "namespaces", "networkpolicies",
        "poddisruptionbudgets", "rolebindings", "roles", "secrets", "serviceaccounts", "services",
    }  # fmt: skip
    for found in verbs.values():
        assert found >= {"create", "patch", "list", "watch"} or "create" not in found


def test_the_deadline_is_granted_the_one_budget_that_it_deletes() -> None:
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


def test_nobody_can_grant_what_they_lack_unless_they_may_escalate() -> None:
    plan = make_plan()
    lacking = frozenset(granted_rights(plan))
    escalate = asked_rights(plan)[-1]
    assert escalate.verb == "escalate"
    assert judge_deadline(plan, lacking | {escalate}).state == "failed"
    assert judge_deadline(plan, lacking).state == "ok"


def test_the_proxy_makes_up_for_a_port_forward() -> None:
    plan = make_plan()
    forward, proxy = frozenset(port_forward_rights(plan)), frozenset(proxy_rights(plan))
    assert judge_results_access(plan, proxy).state == "ok"
    assert judge_results_access(plan, forward).state == "warning"
    assert judge_results_access(plan, forward | proxy).state == "failed"
    exposed = make_plan(results={"expose": "NodePort"})
    assert judge_results_access(exposed, forward | proxy).state == "ok"
