"""Valid and invalid deployment settings."""

from typing import Any

import pytest

from aiperf_svc.config.deployment import Deployment
from aiperf_svc.config.placement import Placement


@pytest.mark.parametrize(
    ("deployment", "message"),
    [
        ({"namespace": {"mode": "create"}}, "mode: create needs name"),
        ({"namespace": {"name": "team"}}, "mode: auto makes its own name"),
        ({"namespace": {"name": "Team", "mode": "create"}}, "name"),
        ({"image": {"name": "repo/app"}}, "names no fixed version"),
        ({"image": {"name": "host:5000/app"}}, "names no fixed version"),
        ({"image": {"name": "app:latest"}}, "names no fixed version"),
        ({"image": {"name": "app@sha256:123"}}, "64 hexadecimal digits"),
        ({"image": {"name": "app:1@sha512:" + "0" * 128}}, "64 hexadecimal digits"),
        ({"target": {"kind": "custom", "image": "app@latest"}}, "64 hexadecimal digits"),
        ({"pods": {"wroker": {}}}, "no pod has this name; did you mean worker"),
        ({"pods": {"target": {}}}, "those of deployment.target"),
        ({"api_server_cidrs": ["10.0.0.1"]}, "expected an address range such as"),
        ({"results": {"allow_cidrs": ["10.0.0.0/33"]}}, "expected an address range such as"),
        ({"results": {"allow_cidrs": ["10.0.0.0/255.0.0.0"]}}, "expected an address range"),
        ({"target": {"egress_cidrs": ["minio.internal"]}}, "expected an address range"),
        ({"ttl": "5s"}, "below 10s"),
        ({"results": {"expose": "Ingress"}}, "needs host"),
        ({"results": {"host": "x"}}, "need expose: Ingress"),
        ({"results": {"node_port": 30000}}, "needs expose: NodePort"),
        ({"placement": {"tolerations": [{"key": "a", "value": "b"}]}}, "operator: Equal"),
        ({"placement": {"tolerations": [{"operator": "Equal"}]}}, "needs key"),
    ],
)
def test_invalid_deployment_is_refused(deployment: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Deployment.model_validate(deployment)


@pytest.mark.parametrize(
    "name", ["app:1", "host:5000/app:1", "app@sha256:" + "0" * 64, "app:1@sha256:" + "0" * 64]
)
def test_a_pinned_image_is_accepted(name: str) -> None:
    assert Deployment.model_validate({"image": {"name": name}}).image.name == name


def test_a_placement_overrides_key_by_key() -> None:
    common = Placement(node_selector={"a": "1"}, priority_class="low")
    own = Placement(priority_class="high")
    merged = own.overriding(common)
    assert (merged.node_selector, merged.priority_class) == ({"a": "1"}, "high")
