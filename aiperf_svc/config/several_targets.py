"""Several targets that are measured at the same time, each by a run of its own."""

from typing import Annotated

from pydantic import Field

from aiperf_svc.config.base import Model


class NamedTarget(Model):
    """One of the targets."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
    """Names its column and its folder, and ends the name of its stack."""
    endpoint: dict[str, object] = Field(default_factory=dict)
    """Keys of `endpoint` that differ for it, such as `url`."""
    deployment: dict[str, object] = Field(default_factory=dict)
    """Keys of `deployment` that differ for it, such as `target.args` of a server that its stack
    makes."""


def problem_of(targets: tuple[NamedTarget, ...]) -> str:
    """Return what is wrong with the targets as a whole; empty if nothing is."""
    if len(targets) == 1:
        return "{targets}: expected two or more; one target is {endpoint}"
    for target in targets:
        if not target.endpoint and not target.deployment:
            return f"{{targets}}: {target.name}: give {{endpoint}} or {{deployment}}, which differ"
    names = [target.name for target in targets]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    return f"{{targets}}: two are called {twice[0]}" if twice else ""
