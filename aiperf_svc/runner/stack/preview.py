"""Shows the changes that a stack's file would make, without a cluster."""

import difflib
from dataclasses import replace
from pathlib import Path
from typing import Any

from aiperf_svc.adapters.pulumi.project import check_packages, read_settings
from aiperf_svc.domain.errors import AiperfError, ConfigError
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.runner import signals
from aiperf_svc.runner.stack import bring_up
from aiperf_svc.runner.stack.request import StackRequest, open_project
from aiperf_svc.workloads.previews import object_list, shape_lines, summary, trial_lists
from aiperf_svc.workloads.previews.changes import StackChanges
from aiperf_svc.workloads.registry import load_benchmark


def _version_of(request: StackRequest, file: Path) -> StackRequest:
    """Return the request with the config of another version of the stack's file."""
    try:
        settings = read_settings(file)
    except ConfigError:
        # A plain config holds only the benchmark.
        settings = dict(request.settings)
    return replace(request, config=load_benchmark(file), settings=settings)


def compare(request: StackRequest, against: Path | None = None) -> StackChanges:
    """Compare with another version of the stack's file, else with the deployed stack. A review
    needs no state, so a state that cannot be opened is only reported. Raises ConfigError."""
    if against is not None:
        before = _version_of(request, against).plan
        return StackChanges(
            base=f"`{against}`",
            changed=shape_lines.changed_keys(before, request.plan),
            is_new_run=before.identity.run_id != request.plan.identity.run_id,
        )
    if len(request.plans) > 1 and request.at_once != 1:
        why = "each shape has a stack of its own, which is removed at its end"
        return StackChanges(base=bring_up.DEPLOYED, not_compared=why)
    try:
        with open_project(request.stack, request.file_content(), request.environ) as cli:
            return bring_up.compare(request, signals.run(cli.export()))
    except AiperfError as error:
        return StackChanges(base=bring_up.DEPLOYED, not_compared=str(error))


def objects(request: StackRequest) -> list[Json]:
    """Return the objects that the program creates for the shape that the stack's file chooses,
    without the values of secrets. Raises ConfigError, EnvironmentProblem."""
    check_packages()
    return object_list.without_secrets(signals.run(request.manifests(request.used_shape)))


def objects_text(request: StackRequest, against: Path | None, *, is_markdown: bool) -> str:
    """List the objects for a review; with `against`, only the differences from that file."""
    title, language = "Objects", "yaml"
    if against is None:
        lines = object_list.lines(objects(request), stack=request.stack)
        lines = [*object_list.INTRODUCTION, "", *lines]
    else:
        title, language = f"Objects against `{against}`", "diff"
        versions = (_comparable_lines(_version_of(request, against)), _comparable_lines(request))
        lines = list(difflib.unified_diff(*versions, str(against), request.stack, lineterm=""))
        lines = lines or ["the objects are the same"]
    return "\n".join(summary.section(title, lines, language) if is_markdown else lines)


def _comparable_lines(request: StackRequest) -> list[str]:
    """List the complete objects without the run's id, which every change of the config changes."""
    run = request.plan.identity.run_id
    lines = object_list.lines(objects(request), stack=request.stack, is_whole=True)
    return [each.replace(run, "RUN").replace(run[:8], "RUN") for each in lines]


def trials_text(request: StackRequest, *, is_markdown: bool) -> str:
    """List the trials of an experiment."""
    lines = trial_lists.as_lines(request.config, request.members)
    return "\n".join(summary.section("Trials", lines) if is_markdown else lines)


def of_shapes(request: StackRequest, compared: StackChanges, *, is_markdown: bool) -> str:
    """Describe the pods of the first shape, list the requests, time and cost of each shape, and
    list the trials."""
    shapes, at_once = request.shapes, request.at_once
    format_ = summary.as_markdown if is_markdown else summary.as_text
    about = shape_lines.lines(shapes, request.plans, at_once=at_once)
    texts = [
        trial_lists.shape_title(shapes, 1),
        format_(request.plan, compared).rstrip("\n"),
        *(["", *summary.section("Shapes", about), ""] if is_markdown else about),
        shape_lines.run_hint(request.stack, shapes, request.used_shape, at_once=at_once),
        "",
        trials_text(request, is_markdown=is_markdown),
    ]
    return "\n".join(texts)


def as_json(request: StackRequest) -> dict[str, Any]:
    """Return the pods and trials of a stack, as the content of a JSON object."""
    found = shape_lines.as_json(request.shapes, request.plans)
    parallel = {"parallel": request.at_once} if len(found) > 1 else {}
    trials = trial_lists.as_json(request.config, request.members)
    return {"stack": request.stack, **parallel, "pods": found, **trials}
