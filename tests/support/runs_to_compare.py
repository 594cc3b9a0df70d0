"""Fake runs for tests of comparisons."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from aiperf_svc.adapters.storage.artifacts import write_all
from aiperf_svc.cli.main import main
from aiperf_svc.core.compare.comparison import Comparison, ComparisonRow, Criteria, compare
from aiperf_svc.core.compare.estimates import batch_quantiles
from aiperf_svc.core.compare.measured_run import MeasuredRun, RowKey, RunValue
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.results.summarise import summarise
from aiperf_svc.core.stats.histogram import Histogram
from aiperf_svc.core.verdict.check_result import Severity
from tests.support import fake_run

LATENCY = MetricInfo(tag="latency", name="Latency", unit="ms", better="lower")
SPEED = MetricInfo(tag="speed", name="Speed", unit="requests/sec", better="higher")
SIZE = MetricInfo(tag="size", name="Size", unit="tokens")
P50, P99 = RowKey("latency", "p50"), RowKey("latency", "p99")
SHARES = {P50: 0.5, P99: 0.99}


def measured(run_id: str, values: dict[RowKey, RunValue], **keys: Any) -> MeasuredRun:
    """Return a valid run whose headline contains all these values."""
    infos = {info.tag: info for info in (LATENCY, SPEED, SIZE)}
    defaults: dict[str, Any] = {
        "folder": f"runs/{run_id}",
        "run_id": run_id,
        "kind": "inference",
        "verdict": Severity.VALID,
        "facts": {},
        "metrics": {key.tag: infos[key.tag] for key in values},
        "values": values,
        "headline": tuple(values),
    }
    return MeasuredRun(**{**defaults, **keys})


def side(name: str, values: Sequence[float], key: RowKey = P50, **keys: Any) -> list[MeasuredRun]:
    """Return one run for each value."""
    return [
        measured(f"{name}{index}", {key: RunValue(value, 10_000)}, **keys)
        for index, value in enumerate(values)
    ]


def run_of(run_id: str, due: Any, latencies: Any) -> MeasuredRun:
    """Return a run of these requests as read from its files."""
    times = np.rint(due * 1e9).astype(np.int64)
    shares = tuple(SHARES.values())
    values = np.quantile(latencies, shares)
    parts = batch_quantiles(times, latencies, shares)
    return measured(
        run_id,
        {
            key: RunValue(value, len(latencies), part)
            for key, value, part in zip(SHARES, values.tolist(), parts, strict=True)
        },
    )


def compared(base: Sequence[MeasuredRun], new: Sequence[MeasuredRun], **options: Any) -> Comparison:
    """Return the comparison with a tolerance of 5%."""
    return compare(base, new, Criteria(**options))


def only_row(
    base: Sequence[float], new: Sequence[float], key: RowKey = P50, **options: Any
) -> ComparisonRow:
    """Return the only row of a comparison of runs with these values."""
    (row,) = compared(side("a", base, key), side("b", new, key), **options).rows
    return row


def inference_run(folder: Path, run_id: str, *, seed: int = 1, ttft_ms: float = 30.0) -> Path:
    """Write the artifact folder of a fake run and return its path."""
    rows = fake_run.closed_loop(requests=2_000, seed=seed, ttft_ms=ttft_ms)
    columns = fake_run.columns_of(rows)
    context = fake_run.context(rows, run_id=run_id)
    folder.mkdir(parents=True)
    write_all(folder, summarise(columns, Histogram(), context), columns)
    return folder


def compare_folders(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Run the command and return its exit code and its output."""
    code = main(["compare", *map(str, words)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err
