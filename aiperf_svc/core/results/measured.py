"""The parts of a result common to all kinds of benchmark: metrics with unit and direction, series
over time, tables by size."""

from typing import Literal

import msgspec


class MetricInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Description of a metric."""

    tag: str
    """`bandwidth_received`: lower-case letters, digits and underscores."""
    name: str
    """Name for people: `Bandwidth received`."""
    unit: str
    """`bit/s`, `bytes/s`, `ns`, `us`, `ms`, `s`, `ops/s`, `ratio`, `count`, `bytes`; or the unit of
    the tool's own field, such as `samples/s`."""
    better: Literal["higher", "lower", ""] = ""
    """Direction of improvement; empty for neither."""
    formula: str = ""
    """Source of the number, for the docs: the tool's own field and the conversion."""
    in_table: bool = True
    """True if the terminal's table shows it."""
    scales_with: tuple[str, ...] = ()
    """Keys of the config whose product is the number of processes, if doubling the number should
    double the value."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Values over time within one step."""

    name: str
    """`bandwidth`: series with the same name share a plot."""
    unit: str
    times_s: tuple[float, ...]
    """Middle of each interval, in seconds since the step's start."""
    values: tuple[float, ...]
    label: str = ""
    """Distinguishes series with the same name: `stream 5`, `rank 1`."""


class Column(msgspec.Struct, frozen=True):
    """One column of a table."""

    name: str
    unit: str


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers by a parameter within one step, such as latency by message size."""

    name: str
    columns: tuple[Column, ...]
    """Columns; the first one is the parameter."""
    rows: tuple[tuple[float | None, ...], ...]
    """Values by row and column; None: not measured."""
