"""The keys of `workload: {kind: command}`."""

import re
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import Model, Verbatim
from aiperf_svc.config.units import PositiveDurationNs
from aiperf_svc.config.workload import WorkloadSpec

Tag = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*$")]
FilePattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9_*?\[][A-Za-z0-9_./*?\[\]-]*$")]


class CommandMetric(Model):
    """How one number is read from what each rank leaves, and what it means."""

    unit: Annotated[str, Field(min_length=1, max_length=24)]
    better: Literal["higher", "lower"] | None = None
    pattern: Annotated[str, Field(min_length=1)] | None = None
    """Regular expression with one group, the number."""
    json_path: Annotated[str, Field(min_length=1)] | None = None
    """Dotted path of a number in a JSON document: `results.0.mean`."""
    json_lines: Annotated[str, Field(min_length=1)] | None = None
    """Dotted path of a number in each line that is a JSON object."""
    file: FileName | None = None
    """Where it is; None: standard output."""
    take: Literal["first", "last", "min", "max", "avg", "sum"] = "last"
    """Which of several matches or lines counts, or how they are combined."""
    combine: Literal["avg", "min", "max", "sum"] = "avg"
    """How the values of several ranks are combined."""

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if sum(way is not None for way in (self.pattern, self.json_path, self.json_lines)) != 1:
            raise ValueError("a metric needs one of {pattern}, {json_path} and {json_lines}")
        if self.pattern is not None:
            try:
                groups = re.compile(self.pattern).groups
            except re.error as error:
                raise ValueError(f"{{pattern}} {self.pattern!r}: {error}") from error
            if groups != 1:
                raise ValueError(
                    f"{{pattern}} {self.pattern!r} has {groups} groups; expected one, the number"
                )
        return self


class CommandSpec(WorkloadSpec):
    """A command on every rank, at the same moment."""

    kind: Literal["command"] = "command"
    command: Annotated[tuple[Verbatim, ...], Field(min_length=1)]
    """Program and arguments; for a shell's words write `[sh, -c, ...]`."""
    ranks: Annotated[int, Field(gt=0, le=1_000)] = 1
    """Places where the command runs."""
    files: dict[FileName, Verbatim] = Field(default_factory=dict)
    """Files in the folder in which the command runs, by relative path."""
    keep: tuple[FilePattern, ...] = ()
    """Files of that folder to bring back, by name or pattern, beside those of the metrics."""
    duration: PositiveDurationNs | None = None
    """How long the command should take, where that is known: the verdict compares."""
    metrics: Annotated[dict[Tag, CommandMetric], Field(min_length=1)]
    """The first one is the headline."""
