"""The preflight checks of each shape determine which can start."""

from typing import Any, cast

import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.runner.stack import bring_up
from aiperf_svc.runner.stack.bring_up import CheckedShapes, check_shapes
from aiperf_svc.runner.stack.request import StackRequest
from tests.support.fake_stack_run import FakeStackRun, in_shapes


async def checked(stack_run: FakeStackRun, notes: list[str]) -> CheckedShapes:
    cluster = cast("Cluster", None)
    return await check_shapes(stack_run.request, [1, 2, 3], cluster, say=notes.append)


async def test_refused_shape_leaves_the_others(stack_run: FakeStackRun) -> None:
    _, second, _ = in_shapes(stack_run)
    error = stack_run.check_errors[second] = EnvironmentProblem("no such node")
    notes: list[str] = []
    found = await checked(stack_run, notes)
    assert (found.refused, [*found.unschedulable_s]) == ({2: error}, [1, 3])
    assert notes == ["shape 2 of 3 (workers.max=2)", "shape 3 of 3 (workers.max=3)"]


async def test_each_distinct_set_of_objects_is_tried(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    classes = ["low", "high"]
    product = {"workers.max": [1, 2], "deployment.placement.priority_class": classes}
    stack_run.benchmark = {**stack_run.benchmark, "experiment": {"product": product}}
    config = parse_config(stack_run.benchmark, "")
    stack_run.request = StackRequest(stack="s", config=config, environ={})
    tried: dict[str, list[bool]] = {each: [] for each in classes}

    async def check(_: Cluster, plan: StackPlan, *, objects: object, **__: Any) -> tuple[()]:
        name = plan.config.deployment.placement.priority_class
        tried[str(name)].append(objects is not None)
        return ()

    monkeypatch.setattr(bring_up, "check", check)
    cluster = cast("Cluster", None)
    await check_shapes(stack_run.request, [1, 2, 3, 4], cluster, say=lambda _: None)
    assert tried == {"low": [True, False], "high": [True, False]}


async def test_config_error_ends_the_checks(stack_run: FakeStackRun) -> None:
    first, _, _ = in_shapes(stack_run)
    stack_run.check_errors[first] = ConfigError("no such class")
    with pytest.raises(ConfigError):
        await checked(stack_run, [])


async def test_no_shape_is_checked_after_an_interrupt(
    stack_run: FakeStackRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, begun = in_shapes(stack_run), list[str]()

    async def check(_: Cluster, plan: StackPlan, **__: Any) -> tuple[()]:
        begun.append(plan.identity.run_id)
        if begun == runs[:2]:
            stack_run.interrupts.add()
            await stack_run.interrupts.reached(2)
        return ()

    monkeypatch.setattr(bring_up, "check", check)
    assert await stack_run.interrupts.result_of(checked(stack_run, [])) is None
    assert begun == runs[:2]
