"""The kinds of workloads, from this project and from installed packages. Reads a config of any
kind.

A package adds a tool with an entry point of the group `aiperf_svc.workloads`: its name is the kind,
its object the `ToolWorkload` instance.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from aiperf_svc.config.benchmark import INFERENCE
from aiperf_svc.config.load_config import parse_as, parse_config, read_config_data, refusal
from aiperf_svc.config.problems import Problem
from aiperf_svc.config.workload import Config, WorkloadConfig
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.domain.name_suggestions import did_you_mean
from aiperf_svc.workloads.tool import ToolWorkload
from aiperf_svc.workloads.workload import Workload

GROUP = "aiperf_svc.workloads"
OWN: tuple[str, ...] = (
    "command",
    "iperf",
    "fio",
    "ucx",
    "rdma-bandwidth",
    "rdma-latency",
    "mpi-pingpong",
    "openfoam",
    "pytorch",
    "nccl",
    "lm-eval",
    "qualify",
)
"""Kinds of this project. The folder has the kind's name with underscores."""


def kinds() -> tuple[str, ...]:
    """Return the names of all tools, ours before those of packages."""
    return OWN + tuple(sorted(set(_entry_points()) - set(OWN)))


@cache
def tool(kind: str) -> ToolWorkload[Any]:
    """Return the workload of a tool. Raises ConfigError for an unknown kind, or if its package
    cannot be imported."""
    if kind in OWN:
        found = import_module(f"aiperf_svc.workloads.{kind.replace('-', '_')}").WORKLOAD
    else:
        point = _entry_points().get(kind)
        if point is None:
            raise ConfigError(
                f"workload.kind: {one_line(kind, limit=80)!r}: no such kind; expected one of "
                f"{', '.join(kinds())}"
            )
        try:
            found = point.load()
        except Exception as error:
            raise ConfigError(
                f"workload.kind: {kind!r}: {point.value}, which an installed package names for it, "
                f"cannot be imported: {type(error).__name__}: {error}"
            ) from error
    if not isinstance(found, ToolWorkload) or found.kind != kind:
        raise ConfigError(
            f"workload.kind: {kind!r}: its entry point names {found!r}; expected a ToolWorkload of "
            "that kind"
        )
    return found


def tool_of(config: WorkloadConfig[Any]) -> ToolWorkload[Any]:
    """Return the workload of a config of a tool. Raises ConfigError."""
    return tool(config.kind)


def workload_of(config: Config) -> Workload[Any]:
    """Return the workload of a config. Raises ConfigError."""
    if config.kind != INFERENCE:
        return tool(config.kind)
    inference: Workload[Any] = import_module("aiperf_svc.workloads.inference").WORKLOAD
    return inference


def load_benchmark(path: Path) -> Config:
    """Read the config in a YAML or JSON file, or in a stack file. Raises ConfigError."""
    return parse_benchmark(read_config_data(path), str(path))


def parse_benchmark(
    data: Json,
    source: str,
    *,
    names: Mapping[str, str] | None = None,
    known: Sequence[Problem] = (),
) -> Config:
    """Make the config that `data` describes, by the kind of its `workload`.

    Arguments and errors are those of `config.load_config.parse_config`.
    """
    kind = kind_of(data)
    if kind == INFERENCE:
        rest = {key: value for key, value in data.items() if key != "workload"}
        return parse_config(rest, source, names=names, known=known)
    try:
        found = tool(kind)
        model = found.config_model()
    except ConfigError as error:
        key, _, text = str(error).partition(": ")
        if kind not in kinds():
            text += did_you_mean(kind, (*kinds(), INFERENCE), f"expected {', '.join(kinds())}")
        raise refusal([*known, Problem(key, text)], source, names=names) from error
    return parse_as(model, dict(found.completed(data)), source, names=names, known=known)


def kind_of(data: Mapping[str, Any]) -> str:
    """Return the kind of a config as written; the default is `inference`. A kind of the wrong type
    is converted to text, so the error message can show it."""
    written = data.get("workload")
    if written is None:
        return INFERENCE
    kind = written.get("kind") if isinstance(written, Mapping) else written
    return str(kind)


def _entry_points() -> dict[str, EntryPoint]:
    found: Iterable[EntryPoint] = entry_points(group=GROUP)
    return {point.name: point for point in found}
