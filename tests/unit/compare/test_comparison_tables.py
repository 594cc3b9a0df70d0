"""A comparison on terminals of several widths."""

import numpy as np
import pytest
from msgspec.structs import replace

from aiperf_svc.adapters.terminal.comparison_tables import print_comparison
from tests.support.runs_to_compare import compared, run_of
from tests.support.terminal import on_console

LATENCIES = np.linspace(1e8, 2e8, 1_000)


def printed(width: int) -> list[str]:
    runs = [run_of(f"r{n}", np.arange(1_000), LATENCIES * (1 + n / 97)) for n in range(6)]
    stats = {name: n * 1e6 for n, name in enumerate(("p10", "p25", "p50", "p75", "p90", "p99"), 1)}
    runs = [replace(run, shifts={"latency": stats}) for run in runs]
    return on_console(print_comparison, compared(runs[:3], runs[3:]), width=width).splitlines()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_table_rows_have_names_at_any_width(width: int) -> None:
    lines = [line.strip() for line in printed(width)]
    assert max(map(len, lines)) <= width
    rows = [line.split()[:2] for line in lines if line.startswith("Latency")]
    assert [name for _, name in rows[:2]] == ["p50", "p99"]
    (head,) = (line for line in lines if line.startswith("percentiles moved"))
    assert head.endswith("p99")
    assert len(rows) == 3
