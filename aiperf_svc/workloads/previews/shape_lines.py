"""Describes the shapes of an experiment: their requests, times and costs, and what changes in a
stack from one shape to the next. Pure."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from aiperf_svc.config.base import HOUR_NS
from aiperf_svc.config.target import HOST
from aiperf_svc.core.experiments.trials import describe
from aiperf_svc.domain.number_text import cores, count, gibibytes, significant
from aiperf_svc.plan.fan_out import makespan
from aiperf_svc.plan.footprint import of_one_stack, of_stacks
from aiperf_svc.plan.release import READINESS
from aiperf_svc.plan.run_id import non_defaults
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.workloads.previews.changes import Change, changes
from aiperf_svc.workloads.previews.trial_lists import human_time, shape_title
from aiperf_svc.workloads.registry import workload_of
from aiperf_svc.workloads.shapes import Shape, max_parallel

FEW = 10
"""Maximum changed keys shown for a shape."""
MAX_SHAPES = 40
"""Maximum shapes described."""
_PART = "experiment.part."


def run_hint(stack: str, shapes: Sequence[Shape], chosen: int, *, at_once: int | str) -> str:
    """Return which shape `pulumi up` deploys, and how to run the others. `at_once` is the value
    of `experiment.parallel`."""
    following = chosen % len(shapes) + 1
    if at_once != 1:
        limit = "as the cluster has room for" if at_once == "auto" else f"as {at_once}"
        return (
            f"`aiperf-svc run {stack}` runs each shape in a stack of its own, {stack}-1 to "
            f"{stack}-{len(shapes)}, as many at a time {limit}, and collects all trials; `pulumi "
            f"up` brings up only shape {chosen} (aiperf:shape)"
        )
    return (
        f"`pulumi up` brings up shape {chosen} and runs its trials; `pulumi config set "
        f"aiperf:shape {following}` and `pulumi up` continue with shape {following}, whose results "
        f"replace these; `aiperf-svc run {stack}` runs all {len(shapes)} and collects them"
    )


def lines(shapes: Sequence[Shape], plans: Sequence[StackPlan], *, at_once: int | str) -> list[str]:
    """Return lines about all shapes; none if there is only one. `at_once` is the value of
    `experiment.parallel`."""
    if len(plans) < 2:
        return []
    changed = list(_changes(shapes, plans)) if at_once == 1 else []
    return [*table(shapes, plans), *changed, *whole_lines(shapes, plans, at_once=at_once)]


def _changes(shapes: Sequence[Shape], plans: Sequence[StackPlan]) -> Iterator[str]:
    """Yield the changes in the stack from each shape to the next."""
    for number in range(2, min(len(plans), MAX_SHAPES) + 1):
        before, plan = plans[number - 2], plans[number - 1]
        yield f"{shape_title(shapes, number)}{staying(before, plan)}"
        changed = changed_keys(before, plan)
        yield from (f"    {each}" for each in changed[:FEW])
        if len(changed) > FEW:
            yield f"    … and {count(len(changed) - FEW, 'key')} more"


def changed_keys(before: StackPlan, plan: StackPlan) -> tuple[Change, ...]:
    """Return the keys of the benchmark that differ between two shapes."""
    found = changes(non_defaults(before.config), non_defaults(plan.config))
    return tuple(each for each in found if not each.key.startswith(_PART))


def staying(before: StackPlan, plan: StackPlan) -> str:
    """Return the pods that remain from one shape to the next; empty if all are replaced. Visits of
    blocks replace their target."""
    experiment = plan.config.experiment
    blocks = experiment.blocks if experiment is not None else None
    replaced = (HOST, READINESS) if blocks is not None and blocks.restarts_target else ()
    names = [pod.name for pod in plan.pods if pod in before.pods and pod.name not in replaced]
    return f"; {' and '.join(names)} {'stays' if len(names) == 1 else 'stay'}" if names else ""


def table(shapes: Sequence[Shape], plans: Sequence[StackPlan]) -> list[str]:
    """Return a table with a row for each shape: its requests and the length of its load."""
    has_gpus = any(plan.totals.gpus for plan in plans)
    has_prices = any(plan.totals.cost_per_hour for plan in plans)
    head = ["shape", "trials", "pods", "CPU", "memory"]
    head += [*(["GPUs"] if has_gpus else []), *(["an hour"] if has_prices else []), "load"]
    rows = [[*head, "parameters"]]
    for number, (shape, plan) in enumerate(zip(shapes, plans, strict=True), start=1):
        if number > MAX_SHAPES:
            break
        totals, load = plan.totals, shape_time(shape, plan).load_ns
        cells = [str(number), str(len(shape.trials)), str(totals.pods)]
        cells += [cores(totals.cpu_millis), gibibytes(totals.memory_bytes)]
        cells += [_gpus(plan)] if has_gpus else []
        cells += [f"{totals.cost_per_hour:g} {totals.currency}"] if has_prices else []
        cells += ["unknown" if load is None else human_time(load), describe(shape.parameters)]
        rows.append(cells)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    more = len(plans) - MAX_SHAPES
    return [*lines, *([f"  … and {more} more shapes"] if more > 0 else [])]


def as_json(shapes: Sequence[Shape], plans: Sequence[StackPlan]) -> list[dict[str, Any]]:
    """Return the needs and trials of each shape as the content of a JSON list."""
    return [
        {
            "parameters": shape.parameters,
            "trials": [trial.number for trial in shape.trials],
            "run_id": plan.identity.run_id,
            "totals": msgspec.to_builtins(plan.totals),
            "start_s": plan.times.start / 1e9,
            "load_s": plan.times.load / 1e9 if plan.times.is_bounded else None,
            "ttl_s": plan.config.deployment.ttl / 1e9,
        }
        for shape, plan in zip(shapes, plans, strict=True)
    ]


class ShapeTime(NamedTuple):
    """Duration of a shape."""

    load_ns: int | None
    """Its loads and the pauses between them; None if unknown."""
    longest_ns: int | None
    """Maximum time from its `up` to the end of its last load; None if unknown."""


def shape_time(shape: Shape, plan: StackPlan) -> ShapeTime:
    """Return the duration of a shape."""
    experiment = plan.config.experiment
    pauses_ns = (len(shape.trials) - 1) * (experiment.cooldown if experiment else 0)
    expected = [workload_of(each).trial_times(each).expected for each in shape.configs]
    known = [each for each in expected if each is not None]
    times = plan.times
    return ShapeTime(
        sum(known) + pauses_ns if len(known) == len(expected) else None,
        times.start + times.load if times.is_bounded else None,
    )


def whole_lines(
    shapes: Sequence[Shape], plans: Sequence[StackPlan], *, at_once: int | str
) -> list[str]:
    """Return the duration and cost of all shapes together. `at_once` is the value of
    `experiment.parallel`."""
    limit = max_parallel(at_once)
    times = [shape_time(shape, plan) for shape, plan in zip(shapes, plans, strict=True)]
    loads = [each.load_ns for each in times]
    longest = [each.longest_ns for each in times]
    order_text = "one after another" if limit == 1 else f"{limit} at a time"
    if at_once == "auto":
        order_text = f"up to {limit} at a time, as many as there is room for"
    parts = [f"{count(len(plans), 'shape')}, {order_text}"]
    if all(loads):
        parts.append(f"load about {human_time(makespan(loads, limit))}")
    if all(longest):
        parts.append(f"with starts at most {human_time(makespan(longest, limit))}")
    found = [plan.footprint for plan in plans]
    footprint = of_one_stack(found) if at_once == 1 else of_stacks([found], at_once=limit)
    lines = ["; ".join(parts), f"footprint: {footprint.text}"]
    return [*lines, *_cost(plans, longest, is_one_stack=at_once == 1)]


def _cost(
    plans: Sequence[StackPlan], longest: Sequence[int | None], *, is_one_stack: bool
) -> list[str]:
    """Return the cost of all shapes; empty without prices."""
    prices = [plan.totals.cost_per_hour for plan in plans]
    if not any(prices):
        return []
    ttl, currency = plans[0].config.deployment.ttl / HOUR_NS, plans[0].totals.currency
    max_cost = max(prices) * ttl if is_one_stack else sum(prices) * ttl
    cost = f"at most {significant(max_cost)} {currency} until all stacks remove themselves"
    if all(longest):
        hours = [(each or 0) / HOUR_NS for each in longest]
        usual = sum(price * each for price, each in zip(prices, hours, strict=True))
        cost = f"{significant(usual)} {currency} for the longest starts and loads, {cost}"
    return [f"cost: {cost}"]


def _gpus(plan: StackPlan) -> str:
    kinds = {
        pod.requests.gpu.type or pod.requests.gpu.resource for pod in plan.pods if pod.requests.gpu
    }
    return f"{plan.totals.gpus} {' and '.join(sorted(kinds))}".strip()
