"""The Roles that operators copy from their page are what a stack asks for, no more and no less."""

from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml

from aiperf_svc.adapters.cluster.preflight.rights import (
    Right,
    granted_rights,
    namespace_of,
    needed_rights,
    port_forward_rights,
    probe_rights,
    proxy_rights,
)
from aiperf_svc.config.deployment import Deployment
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.workloads.registry import parse_benchmark
from tests.support.plans import in_existing, make_plan, plan_it

PAGE = Path(__file__).parents[3] / "docs" / "stacks.md"
EXPOSED = ({"expose": "port-forward"}, {"expose": "LoadBalancer"},
           {"expose": "Ingress", "host": "h"})  # fmt: skip
LOOKED_AT = {("", "resourcequotas", "list"), ("", "limitranges", "list")}
"""By preflight, which does without them."""
Allowed = set[tuple[str, str, str]]
"""(API group, resource, verb)."""


@pytest.fixture(scope="module")
def documented() -> dict[str, Allowed]:
    """What each Role of the page allows."""
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


def test_the_example_in_an_existing_namespace_has_keys_that_there_are() -> None:
    example = yaml.safe_load(_blocks()[0].removeprefix("yaml\n").replace("…", "0a" * 32))
    deployment = Deployment.model_validate(example["config"]["aiperf:benchmark"]["deployment"])
    assert deployment.namespace.mode == "existing"


def _allowed(rights: Iterable[Right]) -> Allowed:
    return {(right.group, right.resource, right.verb) for right in rights}


def _asked(plan: StackPlan) -> Allowed:
    every = (needed_rights, granted_rights, port_forward_rights, proxy_rights)
    asked = {each for rights in every for each in _allowed(rights(plan))}
    return asked | _allowed(probe_rights(namespace_of(plan))) | LOOKED_AT


def test_a_guest_needs_the_first_role_and_nothing_else(documented: dict[str, Allowed]) -> None:
    asked = {each for how in EXPOSED for each in _asked(in_existing(results=how))}
    assert documented["aiperf-stacks"] == asked


def test_a_namespace_of_its_own_needs_the_second_role_on_top(
    documented: dict[str, Allowed],
) -> None:
    asked = {each for how in EXPOSED for each in _asked(make_plan(results=how))}
    assert documented["aiperf-stacks"] | documented["aiperf-namespaces"] == asked


def test_a_prometheus_operator_needs_a_role_on_top(documented: dict[str, Allowed]) -> None:
    usual, watched = _asked(make_plan()), _asked(make_plan(monitoring="prometheus-operator"))
    assert documented["aiperf-monitoring"] == watched - usual


def test_ranks_need_the_third_role_on_top(documented: dict[str, Allowed]) -> None:
    ranks = {"volume": {"kind": "shared-claim"}}
    data = {"workload": {"kind": "iperf"}, "deployment": {"ranks": ranks}}
    plan = plan_it(parse_benchmark(data, ""), stack="bench", version="1")
    usual = {each for how in EXPOSED for each in _asked(make_plan(results=how))}
    assert documented["aiperf-workloads"] | usual == usual | _asked(plan)
    assert not documented["aiperf-workloads"] & usual


def test_jobs_need_a_role_on_top(documented: dict[str, Allowed]) -> None:
    experiment = {"product": {"deployment.target.args": [["a"], ["b"]]}, "fan_out": "jobs"}
    data = make_plan().config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    data |= {"experiment": experiment}
    data["endpoint"]["url"] = "http://target"
    plan = plan_it(parse_benchmark(data, ""), stack="bench", version="1")
    assert documented["aiperf-jobs"] == _asked(plan) - _asked(make_plan())
