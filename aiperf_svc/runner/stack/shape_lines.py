"""Describes the shapes of an experiment: what a stack changes from one to the next. Pure."""

from collections.abc import Iterator, Sequence

from aiperf_svc.plan.stack import StackPlan, non_defaults
from aiperf_svc.runner.numbers import count
from aiperf_svc.runner.stack.changes import Change, changes
from aiperf_svc.runner.stack.summary import totals_line
from aiperf_svc.runner.trial_lists import shape_title
from aiperf_svc.workloads.shapes import Shape

FEW = 10
"""Most changed keys that are shown for a shape."""
MOST_SHAPES = 40
"""Most shapes that are described."""
_PART = "experiment.part."


def how_to_run(stack: str, shapes: Sequence[Shape], chosen: int) -> str:
    """Return which shape `pulumi up` brings up, and how the others are run."""
    following = chosen % len(shapes) + 1
    return (
        f"`pulumi up` brings up shape {chosen} and runs its trials; `pulumi config set "
        f"aiperf:shape {following}` and `pulumi up` go on with shape {following}, whose results "
        f"replace these; `aiperf-svc run {stack}` runs all {len(shapes)} and collects them"
    )


def lines(shapes: Sequence[Shape], plans: Sequence[StackPlan]) -> Iterator[str]:
    """Yield lines about the shapes that follow the first; none if there is only one."""
    for number in range(2, min(len(plans), MOST_SHAPES) + 1):
        before, plan = plans[number - 2], plans[number - 1]
        yield f"{shape_title(shapes, number)}; {totals_line(plan)}{staying(before, plan)}"
        changed = changed_keys(before, plan)
        yield from (f"    {each}" for each in changed[:FEW])
        if len(changed) > FEW:
            yield f"    … and {count(len(changed) - FEW, 'key')} more"
    if len(plans) > MOST_SHAPES:
        yield f"… and {len(plans) - MOST_SHAPES} more shapes"


def changed_keys(before: StackPlan, plan: StackPlan) -> tuple[Change, ...]:
    """Return the keys of the benchmark that differ between two shapes."""
    found = changes(non_defaults(before.config), non_defaults(plan.config))
    return tuple(each for each in found if not each.key.startswith(_PART))


def staying(before: StackPlan, plan: StackPlan) -> str:
    """Return the pods that stay from one shape to the next; empty if all are replaced."""
    names = [pod.name for pod in plan.pods if pod in before.pods]
    return f"; {' and '.join(names)} {'stays' if len(names) == 1 else 'stay'}" if names else ""
