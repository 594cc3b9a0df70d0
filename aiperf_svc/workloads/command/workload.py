"""Runs one command on every rank and reads its metrics as the spec says."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import HOUR_NS, Model, Verbatim
from aiperf_svc.config.paths import value_at
from aiperf_svc.config.quality import FileName
from aiperf_svc.config.units import PositiveDurationNs
from aiperf_svc.config.workload import WorkloadConfig, WorkloadSpec
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.domain.number_text import readable_unit
from aiperf_svc.workloads.steps import Command as RankCommand
from aiperf_svc.workloads.steps import (
    Output,
    Rank,
    Reading,
    Step,
    UnreadableOutput,
    margin_ns,
    timeout_of,
)
from aiperf_svc.workloads.tool import ToolWorkload

Tag = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
FilePattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9_*?\[][A-Za-z0-9_./*?\[\]-]*$")]


class CommandMetric(Model):
    """How one number is read from what each rank leaves, and what it means."""

    unit: Annotated[str, Field(min_length=1, max_length=24)]
    better: Literal["higher", "lower"] | None = None
    pattern: Annotated[str, Field(min_length=1)] | None = None
    """Regular expression with one group, which matches the number."""
    json_path: Annotated[str, Field(min_length=1)] | None = None
    """Dotted path of a number in a JSON document: `results.0.mean`."""
    json_lines: Annotated[str, Field(min_length=1)] | None = None
    """Dotted path of a number in each line that is a JSON object."""
    file: FileName | None = None
    """File to read. Default: standard output."""
    take: Literal["first", "last", "min", "max", "avg", "sum"] = "last"
    """How several matches or lines of one rank become one value."""
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
    """Program and arguments. For shell syntax, use `[sh, -c, ...]`."""
    ranks: Annotated[int, Field(gt=0, le=1_000)] = 1
    """Number of ranks that run the command."""
    files: dict[FileName, Verbatim] = Field(default_factory=dict)
    """Files to create in the command's working folder: relative path and content."""
    keep: tuple[FilePattern, ...] = ()
    """Files of the working folder to keep with the results, by name or pattern, in addition to
    those that the metrics read."""
    duration: PositiveDurationNs | None = None
    """Expected run time of the command. The verdict compares the measured time with it."""
    metrics: Annotated[dict[Tag, CommandMetric], Field(min_length=1)]
    """Metrics by tag. The first one is the headline metric."""


Config = WorkloadConfig[CommandSpec]
_COMBINE: dict[str, Callable[[Sequence[float]], float]] = {
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
    "min": min,
    "max": max,
    "avg": lambda values: sum(values) / len(values),
    "sum": sum,
}


class Command(ToolWorkload[CommandSpec]):
    """The kind `command`."""

    kind = "command"
    summary = "any command in any image; metrics are read from its output by pattern or JSON path"
    spec = CommandSpec
    rank_key = "ranks"
    metrics = ()

    def files(self, config: Config) -> dict[str, bytes]:
        return {name: text.encode() for name, text in config.workload.files.items()}

    def metrics_of(self, config: Config) -> tuple[MetricInfo, ...]:
        return tuple(
            MetricInfo(
                tag=tag,
                name=tag.replace("_", " ").capitalize(),
                unit=metric.unit,
                better=metric.better or "",
                formula=_source(metric),
            )
            for tag, metric in config.workload.metrics.items()
        )

    def steps(self, config: Config, ranks: Sequence[Rank]) -> tuple[Step, ...]:
        spec = config.workload
        files = (metric.file for metric in spec.metrics.values())
        keeps = tuple(dict.fromkeys((*spec.keep, *filter(None, files))))
        return (
            Step(
                name="command",
                commands=tuple(
                    RankCommand(
                        rank=rank.number,
                        argv=spec.command,
                        env={
                            "AIPERF_RANK": str(rank.number),
                            "AIPERF_RANKS": str(len(ranks)),
                            "AIPERF_ADDRESSES": " ".join(each.address for each in ranks),
                            "AIPERF_VOLUME": rank.volume,
                        },
                        keeps=keeps,
                    )
                    for rank in ranks
                ),
                timeout_ns=timeout_of(spec, margin_ns(spec.duration) if spec.duration else HOUR_NS),
                expected_ns=spec.duration or 0,
            ),
        )

    def read(self, config: Config, step: Step, outputs: Sequence[Output]) -> Reading:
        values = {}
        for tag, metric in config.workload.metrics.items():
            of_ranks = [_value(tag, metric, output) for output in outputs]
            values[tag] = float(_COMBINE[metric.combine](of_ranks))
        return Reading(values=values)

    def progress(self, config: Config, line: str) -> str:
        for info, metric in zip(
            self.metrics_of(config), config.workload.metrics.values(), strict=True
        ):
            if metric.file is None and metric.json_path is None:
                with suppress(UnreadableOutput):
                    for value in _matches(info.tag, metric, line, "a line"):
                        divisor, unit = readable_unit(info.unit, value)
                        return f"{info.name}: {value / divisor:.6g} {unit}".rstrip()
        return ""


def _source(metric: CommandMetric) -> str:
    way = metric.pattern or metric.json_path or metric.json_lines or ""
    name = "pattern" if metric.pattern else "json_path" if metric.json_path else "json_lines"
    return f"{metric.take} of {name} {way} in {metric.file or 'standard output'}"


def _value(tag: str, metric: CommandMetric, output: Output) -> float:
    where = metric.file or "standard output"
    if metric.file is not None and metric.file not in output.files:
        raise UnreadableOutput(f"metric {tag}: rank {output.rank} left no file {metric.file!r}")
    data = output.stdout if metric.file is None else output.files[metric.file]
    text = data.decode("utf-8", "replace")
    found = list(_matches(tag, metric, text, f"{where} of rank {output.rank}"))
    if not found:
        raise UnreadableOutput(
            f"metric {tag}: {_source(metric)} of rank {output.rank}: nothing found; "
            f"it ends with {text[-200:]!r}"
        )
    return float(_COMBINE[metric.take](found))


def _matches(tag: str, metric: CommandMetric, text: str, where: str) -> Iterator[float]:
    if metric.pattern is not None:
        for match in re.finditer(metric.pattern, text, re.MULTILINE):
            yield _number(tag, match[1], where)
    elif metric.json_path is not None:
        try:
            document = json.loads(text)
        except ValueError as error:
            raise UnreadableOutput(f"metric {tag}: {where} is not JSON: {error}") from error
        value = value_at(document, metric.json_path.split("."))
        if value is not None:
            yield _number(tag, value, where)
    elif metric.json_lines is not None:
        # Only these end a line: JSON texts may contain the other separators of `splitlines`.
        for line in text.replace("\r", "\n").split("\n"):
            try:
                document = json.loads(line)
            except ValueError:
                continue  # Tools print other lines between their JSON.
            value = value_at(document, metric.json_lines.split("."))
            if value is not None:
                yield _number(tag, value, where)


def _number(tag: str, value: object, where: str) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        number = float(value)
        if number - number != 0:
            raise ValueError
    except (ValueError, OverflowError):
        raise UnreadableOutput(
            f"metric {tag}: {value!r} in {where}: expected a finite number"
        ) from None
    return number
