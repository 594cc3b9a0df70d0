"""Several targets that are measured at the same time, each by a separate run."""

from pydantic import Field

from aiperf_svc.config.base import Model, Name, repeated
from aiperf_svc.config.experiment import Experiment
from aiperf_svc.domain.json_objects import Json


class NamedTarget(Model):
    """One of the targets."""

    name: Name
    """Title of its column, name of its folder, and suffix of its stack's name."""
    endpoint: dict[str, object] = Field(default_factory=dict)
    """Keys of `endpoint` that differ for it, such as `url`."""
    deployment: dict[str, object] = Field(default_factory=dict)
    """Keys of `deployment` that differ for it, such as `target.args` of a server that its stack
    makes."""


def problem_of(targets: tuple[NamedTarget, ...], experiment: Experiment | None) -> str:
    """Return the problem of the targets as a whole; empty if there is none."""
    if not targets:
        return ""
    if len(targets) == 1:
        return "{targets}: expected two or more; one target is {endpoint}"
    for target in targets:
        if not target.endpoint and not target.deployment:
            return f"{{targets}}: {target.name}: give {{endpoint}} or {{deployment}}, which differ"
    if twice := repeated([target.name for target in targets]):
        return f"{{targets}}: two are called {twice}; give each a `name` of its own"
    problem = problem_of_joint(experiment)
    return f"{{targets}}: {problem}" if problem else ""


def problem_of_joint(experiment: Experiment | None) -> str:
    """Return why the trials of an experiment cannot start together in several runs; empty if they
    can."""
    if experiment is None:
        return ""
    if experiment.fan_out != "stacks":
        return (
            "with {experiment.fan_out}: jobs, trials begin when the cluster has room and have no "
            "common start; leave it out"
        )
    if experiment.blocks is not None and experiment.blocks.uptime is not None:
        return (
            "with {experiment.blocks.uptime}, a load begins by the start of its own target, and "
            "several have no common start; leave it out"
        )
    if experiment.retries and experiment.parallel != 1:
        return (
            "with {experiment.retries}, all runs repeat a trial together, one trial at a time; "
            "leave out {experiment.parallel}"
        )
    return ""


_TARGET_KEYS = ("url", "model")
"""Keys of `endpoint` that a config requires but may leave to its targets."""


def with_target_keys(data: Json) -> Json:
    """Return the config as written, plus the first target's values of required keys that every
    target sets."""
    targets, endpoint = data.get("targets"), data.get("endpoint", {})
    if not isinstance(targets, list) or not isinstance(endpoint, dict):
        return data
    own = [each.get("endpoint") if isinstance(each, dict) else None for each in targets]
    parts = [each for each in own if isinstance(each, dict)]
    added = {
        key: parts[0][key]
        for key in _TARGET_KEYS
        if key not in endpoint and parts and len(parts) == len(own) and all(key in p for p in parts)
    }
    return {**data, "endpoint": {**endpoint, **added}} if added else data
