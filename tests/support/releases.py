"""Objects of Helm releases: a router in front of two pools, and custom resources."""

from collections.abc import Callable
from typing import Any

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.target import Target
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.release import Rendered
from aiperf_svc.plan.stack import StackPlan, StackSettings
from aiperf_svc.workloads.stacks import plan_stack
from tests.support.plans import make_config

POOL = {"labels": {"role": "decode"}, "replicas": 2, "port": 9090}


def deployment(name: str, *, replicas: int = 1, **spec: Any) -> Json:
    """Return a Deployment whose pods have the role `name`."""
    labels = {"role": name}
    requests = {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": 1}
    container = {"name": "main", "image": "engine:1", "resources": {"requests": requests}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], **spec},
            },
        },
    }


def simple(kind: str, name: str, version: str = "v1", **more: Any) -> Json:
    """Return an object that has only a name."""
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}, **more}


def graph(name: str = "graph") -> Json:
    """Return a custom resource."""
    return simple("Graph", name, "example.com/v1", spec={"replicas": 2})


def release_target(**more: Any) -> dict[str, Any]:
    """Return `deployment.target` with one pool."""
    return {
        "kind": "release",
        "from": {"manifests": "objects.yaml"},
        "url": "http://router:8000",
        "pools": {"decode": POOL},
        **more,
    }


def release_config(target: dict[str, Any] | None = None, **deployment: Any) -> BenchmarkConfig:
    """Return the config of a short load on a release."""
    load = {"concurrency": 10, "duration": "10s"}
    return make_config(load=load, target=target or release_target(), **deployment)


def rendering(*objects: Json, chart: str = "") -> Callable[[Target], tuple[Rendered, ...]]:
    """Return a function that renders these objects, including hooks if a chart is given."""
    one = Rendered(what="objects.yaml", objects=objects, chart=chart, has_hooks=bool(chart))
    return lambda _target: (one,)


def release_plan(
    *objects: Json, target: dict[str, Any] | None = None, chart: str = "", **deployment: Any
) -> StackPlan:
    """Return the plan of a stack whose target has these objects."""
    settings = StackSettings(stack="bench", version="1", render=rendering(*objects, chart=chart))
    return plan_stack(release_config(target, **deployment), settings)
