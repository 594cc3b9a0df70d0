"""A config of any kind of benchmark, from a file, a stack file or data."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiperf_svc.config.load_config import (
    parse_as,
    parse_config,
    read_config_data,
    refusal,
)
from aiperf_svc.config.names import nearest
from aiperf_svc.config.problems import Problem
from aiperf_svc.config.workload import Config
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.workloads.registry import INFERENCE, config_model, kinds


def load_any(path: Path) -> Config:
    """The config in a YAML or JSON file, or in a stack file. Raises ConfigError."""
    return parse_any(read_config_data(path), str(path))


def parse_any(
    data: dict[str, Any],
    source: str,
    *,
    names: Mapping[str, str] | None = None,
    known: Sequence[Problem] = (),
) -> Config:
    """The config that `data` describes, by the kind of its `workload`.

    Arguments and errors are those of `config.load_config.parse_config`.
    """
    kind = kind_of(data)
    if kind == INFERENCE:
        rest = {key: value for key, value in data.items() if key != "workload"}
        return parse_config(rest, source, names=names, known=known)
    try:
        model = config_model(kind)
    except ConfigError as error:
        key, _, text = str(error).partition(": ")
        close = nearest(kind, (*kinds(), INFERENCE))
        if kind not in kinds():
            text += f"; did you mean {close}?" if close else f"; expected {', '.join(kinds())}"
        raise refusal([*known, Problem(key, text)], source, names=names) from error
    return parse_as(model, data, source, names=names, known=known)


def kind_of(data: Mapping[str, Any]) -> str:
    """The kind of a config as it is written: `inference` where nothing else is said. A kind that is
    no text is returned as text, to be refused by name."""
    written = data.get("workload")
    if written is None:
        return INFERENCE
    kind = written.get("kind") if isinstance(written, Mapping) else written
    return str(kind)
