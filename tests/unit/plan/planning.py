"""Configs and their plans, for the tests beside this."""

from typing import Any

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.plan.stack import StackPlan, plan_stack


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


def plan_it(config: BenchmarkConfig, **how: Any) -> StackPlan:
    return plan_stack(config, **{"stack": "bench", "version": "1.2.3", **how})


def pod(plan: StackPlan, name: str) -> Any:
    return next(pod for pod in plan.pods if pod.name == name)
