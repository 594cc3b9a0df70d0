"""Several targets that are measured at the same time, each by a run of its own."""

from typing import Annotated

from pydantic import Field

from aiperf_svc.config.base import Model


class NamedTarget(Model):
    """One of the targets."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$")]
    """Names its column and its folder, and ends the name of its stack."""
    endpoint: Annotated[dict[str, object], Field(min_length=1)]
    """Keys of `endpoint` that differ for it, such as `url`."""


def problem_of(targets: tuple[NamedTarget, ...]) -> str:
    """Return what is wrong with the targets as a whole; empty if nothing is."""
    if len(targets) == 1:
        return "{targets}: expected two or more; one target is {endpoint}"
    names = [target.name for target in targets]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    return f"{{targets}}: two are called {twice[0]}" if twice else ""
