"""Shows what a stack's file would change, without a cluster."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from aiperf_svc.config.workload import Config
from aiperf_svc.domain.errors import AiperfError, ConfigError
from aiperf_svc.plan.stack import non_defaults
from aiperf_svc.runner import signals, trial_lists
from aiperf_svc.runner.stack import bring_up, shape_lines, summary
from aiperf_svc.runner.stack.changes import Comparison, changes
from aiperf_svc.runner.stack.project import read_settings
from aiperf_svc.runner.stack.request import StackRequest, open_project
from aiperf_svc.runner.stack.state_home import StateHome
from aiperf_svc.workloads.loading import load_any
from aiperf_svc.workloads.trial_configs import TrialConfig


def compare_with(request: StackRequest, file: Path) -> Comparison:
    """Compare with another version of the stack's file. Raises ConfigError."""
    config = load_any(file)
    try:
        settings = read_settings(file)
    except ConfigError:
        # A plain config holds only the benchmark.
        settings = dict(request.settings)
    before = replace(request, config=config, settings=settings).plan
    return Comparison(
        base=f"`{file}`",
        changed=changes(non_defaults(before.config), non_defaults(request.plan.config)),
        is_new_run=before.identity.run_id != request.plan.identity.run_id,
    )


def compare_with_deployed(request: StackRequest) -> Comparison:
    """Compare with the deployed state. A review needs no state, so one that cannot be opened is
    only reported."""
    try:
        home = StateHome(request.environ)
        project = open_project(request.stack, request.file_content(), home, request.environ)
        with project as cli:
            return signals.run(bring_up.compare(request, cli))
    except AiperfError as error:
        return Comparison(base=bring_up.DEPLOYED, not_compared=str(error))


def trials_text(config: Config, members: Sequence[TrialConfig], *, is_markdown: bool) -> str:
    """List the trials of an experiment."""
    lines = trial_lists.as_lines(config, members)
    if is_markdown:
        return "\n".join(["#### Trials", "", "```", *lines, "```"])
    return "\n".join(lines)


def of_shapes(request: StackRequest, members: Sequence[TrialConfig], *, is_markdown: bool) -> str:
    """Describe the pods of each shape, what changes from one to the next, and list the trials."""
    format_ = summary.as_markdown if is_markdown else summary.as_text
    shapes = request.shapes
    further = list(shape_lines.lines(shapes, request.plans))
    texts = [
        trial_lists.shape_title(shapes, 1),
        format_(request.plan, compare_with_deployed(request)).rstrip("\n"),
        *(["", "#### Further shapes", "", "```", *further, "```", ""] if is_markdown else further),
        shape_lines.how_to_run(request.stack, shapes, request.used_shape),
        "",
        trials_text(request.config, members, is_markdown=is_markdown),
    ]
    return "\n".join(texts)


def as_json(request: StackRequest, members: Sequence[TrialConfig]) -> dict[str, Any]:
    """Return what a stack needs, and its trials, as the content of a JSON object."""
    found = [
        {
            "parameters": shape.parameters,
            "trials": [trial.number for trial in shape.trials],
            "run_id": plan.identity.run_id,
            "totals": msgspec.to_builtins(plan.totals),
            "start_s": plan.times.start / 1e9,
            "load_s": plan.times.load / 1e9 if plan.times.is_bounded else None,
            "ttl_s": plan.config.deployment.ttl / 1e9,
        }
        for shape, plan in zip(request.shapes, request.plans, strict=True)
    ]
    return {"stack": request.stack, "pods": found, **trial_lists.as_json(request.config, members)}
