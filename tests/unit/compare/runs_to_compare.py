"""Made-up runs for tests of comparisons."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from aiperf_svc.core.compare.comparison import Comparison, Row, compare
from aiperf_svc.core.compare.estimates import batch_quantiles
from aiperf_svc.core.compare.measured_run import MeasuredRun, RowKey, RunValue
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.verdict.check_result import Severity

LATENCY = MetricInfo(tag="latency", name="Latency", unit="ms", better="lower")
SPEED = MetricInfo(tag="speed", name="Speed", unit="requests/sec", better="higher")
SIZE = MetricInfo(tag="size", name="Size", unit="tokens")
P50, P99 = RowKey("latency", "p50"), RowKey("latency", "p99")
SHARES = {P50: 0.5, P99: 0.99}


def measured(run_id: str, values: dict[RowKey, RunValue], **keys: Any) -> MeasuredRun:
    """A valid run with these values, all of which are in its headline."""
    infos = {info.tag: info for info in (LATENCY, SPEED, SIZE)}
    given: dict[str, Any] = {
        "folder": f"runs/{run_id}",
        "run_id": run_id,
        "kind": "inference",
        "verdict": Severity.VALID,
        "facts": {},
        "metrics": {key.tag: infos[key.tag] for key in values},
        "values": values,
        "headline": tuple(values),
    }
    return MeasuredRun(**{**given, **keys})


def side(name: str, values: Sequence[float], key: RowKey = P50, **keys: Any) -> list[MeasuredRun]:
    """A run for each value."""
    return [
        measured(f"{name}{place}", {key: RunValue(value, 10_000)}, **keys)
        for place, value in enumerate(values)
    ]


def of_requests(run_id: str, due: Any, latencies: Any) -> MeasuredRun:
    """A run of these requests, as it would be read from its files."""
    times = np.rint(due * 1e9).astype(np.int64)
    parts = batch_quantiles(times, latencies, tuple(SHARES.values()))
    return measured(
        run_id,
        {
            key: RunValue(float(np.quantile(latencies, q)), len(latencies), part)
            for (key, q), part in zip(SHARES.items(), parts, strict=True)
        },
    )


def compared(base: Sequence[MeasuredRun], new: Sequence[MeasuredRun], **options: Any) -> Comparison:
    """The comparison at a tolerance of 5%."""
    return compare(base, new, **{"tolerance": 0.05, **options})


def only_row(base: Sequence[float], new: Sequence[float], key: RowKey = P50, **options: Any) -> Row:
    """The one row of a comparison of runs with these values."""
    (row,) = compared(side("a", base, key), side("b", new, key), **options).rows
    return row
