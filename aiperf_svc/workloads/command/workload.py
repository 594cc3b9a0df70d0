"""Runs one command on every rank and reads its metrics as the spec says."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from aiperf_svc.config.base import HOUR_NS
from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.results.readable import readable_unit
from aiperf_svc.workloads.command.spec import CommandMetric, CommandSpec
from aiperf_svc.workloads.steps import Command as RankCommand
from aiperf_svc.workloads.steps import (
    Output,
    Rank,
    Reading,
    Role,
    Step,
    UnreadableOutput,
    margin_ns,
    timeout_of,
)
from aiperf_svc.workloads.tool import ToolWorkload

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
    metrics = ()

    def roles(self, spec: CommandSpec) -> tuple[Role, ...]:
        return (Role("rank", spec.ranks),)

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
        value = _at(document, metric.json_path)
        if value is not None:
            yield _number(tag, value, where)
    elif metric.json_lines is not None:
        for line in text.splitlines():
            try:
                document = json.loads(line)
            except ValueError:
                continue  # Tools print other lines between their JSON.
            value = _at(document, metric.json_lines)
            if value is not None:
                yield _number(tag, value, where)


def _at(document: Any, path: str) -> Any:
    """The value at a dotted path, where numbers are places in lists; None where there is none."""
    for part in path.split("."):
        if isinstance(document, dict) and part in document:
            document = document[part]
        elif isinstance(document, list) and part.isdigit() and int(part) < len(document):
            document = document[int(part)]
        else:
            return None
    return document


def _number(tag: str, value: object, where: str) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        number = float(value)
        if number - number != 0:
            raise ValueError
    except ValueError:
        raise UnreadableOutput(
            f"metric {tag}: {value!r} in {where}: expected a finite number"
        ) from None
    return number
