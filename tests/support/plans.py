"""Configs, stack plans, and objects of a cluster."""

from typing import Any

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.workload import Config
from aiperf_svc.plan.run_values import RunValues
from aiperf_svc.plan.stack import StackPlan, StackSettings
from aiperf_svc.workloads.stacks import AllShapes, plan_stack


def make_plan(*, load: dict[str, Any] | None = None, **options: Any) -> StackPlan:
    return to_plan(make_config(load=load or {"concurrency": 1000, "requests": 1000}, **options))


def guest_plan(**deployment: Any) -> StackPlan:
    return make_plan(namespace={"name": "theirs", "mode": "existing"}, **deployment)


def node(name: str = "n", *, cpu: str = "64", memory: str = "256Gi", **rest: Any) -> dict[str, Any]:
    allocatable = {"cpu": cpu, "memory": memory, "pods": "110", **rest.pop("offers", {})}
    return {
        "metadata": {"name": name, "labels": rest.pop("labels", {})},
        "spec": rest.pop("spec", {}),
        "status": {
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True"}],
            **rest,
        },
    }


def named(name: str, **rest: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **rest.pop("metadata", {})}, **rest}


def make_config(
    *,
    url: str = "http://target",
    load: dict[str, Any] | None = None,
    s3: dict[str, Any] | None = None,
    **deployment: Any,
) -> BenchmarkConfig:
    deployment.setdefault("target", {"kind": "mock" if url.endswith("/target") else "none"})
    return BenchmarkConfig.model_validate(
        {
            "endpoint": {"url": url, "model": "m"},
            "load": load or {"concurrency": 1000, "duration": "10s"},
            "deployment": deployment,
            "artifacts": {"s3": s3},
        }
    )


def with_keys(config: BenchmarkConfig, **parts: Any) -> BenchmarkConfig:
    """Return the config with changed keys: `with_keys(config, endpoint={"http2": True})`."""
    data = config.model_dump(exclude_unset=True)
    for name, keys in parts.items():
        data[name] = data.get(name, {}) | keys
    return BenchmarkConfig.model_validate(data)


def to_plan(
    config: Config,
    *,
    stack: str = "bench",
    version: str = "1.2.3",
    run: RunValues | None = None,
    shape: int = 1,
    known: AllShapes | None = None,
    **settings: Any,
) -> StackPlan:
    how = StackSettings(stack=stack, version=version, run=run or RunValues(), **settings)
    return plan_stack(config, how, shape=shape, known=known)


def pod(plan: StackPlan, name: str) -> Any:
    return next(pod for pod in plan.pods if pod.name == name)
