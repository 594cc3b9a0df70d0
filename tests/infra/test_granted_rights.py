"""The Roles of a stack grant exactly the permissions that preflight checks."""

from typing import Any

import pytest

from aiperf_svc.adapters.cluster.preflight.rights import granted_rights
from aiperf_svc.workloads.registry import parse_benchmark
from tests.support.plans import to_plan
from tests.support.recording import record, stack_config


@pytest.mark.parametrize("mode", ["create", "existing"])
def test_job_stack_roles_match_creator_rights(mode: str) -> None:
    config: dict[str, Any] = stack_config("bench-variants")
    deployment = config["aiperf:benchmark"]["deployment"]
    deployment["namespace"] = {"mode": mode, "name": "own"}
    plan = to_plan(parse_benchmark(config["aiperf:benchmark"], ""), stack="s", version="1")
    rules = [
        rule
        for manifest in record("s", config).manifests
        if manifest["kind"] == "Role"
        for rule in manifest["rules"]
    ]
    granted = {
        (group, resource, verb, name)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }
    assert granted == {(r.group, r.resource, r.verb, r.name) for r in granted_rights(plan)}
