"""The summary of a trace."""

import json
import math
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from aiperf_svc.cli.main import main
from aiperf_svc.core.datasets.trace_summary import summarise_trace
from aiperf_svc.core.datasets.traces import TraceRow


def row(timestamp: float | None, length: int = 40, *ids: int, output: int = 1) -> TraceRow:
    return TraceRow(
        place="f:1", timestamp=timestamp, input_length=length, output_length=output, hash_ids=ids
    )


def described(*rows: TraceRow, units: float = 1.0) -> dict[str, Any]:
    found = summarise_trace(rows, block_size=16, units_per_second=units)
    return cast(dict[str, Any], msgspec.to_builtins(found))


def test_rates_follow_from_the_gaps() -> None:
    found = described(row(500), row(1000), row(1400), row(2500), units=1000)
    assert found["duration_s"] == 2
    assert found["rate"] == 1.5
    assert found["peak_rate"] == 3
    gaps = np.array([0.5, 0.4, 1.1])
    assert found["gap_variation"] == pytest.approx(gaps.std() / gaps.mean())


def test_a_poisson_process_varies_by_one() -> None:
    times = np.cumsum(np.random.default_rng(1).exponential(size=20_000))
    found = described(*(row(float(time)) for time in times))
    assert math.isclose(found["gap_variation"], 1, rel_tol=0.05)


@pytest.mark.parametrize(("last", "part_s"), [(0.1, 0.001), (3.0, 0.032), (1000.0, 8.192)])
def test_arrivals_are_counted_in_parts_that_grow(last: float, part_s: float) -> None:
    found = described(row(0), row(0.0004), row(0.05), row(last))["arrivals"]
    assert found["part_s"] == pytest.approx(part_s)
    assert sum(found["counts"]) == 4
    assert len(found["counts"]) <= 128
    assert found["counts"][int(last / part_s)] == 1


def test_prefix_is_reused_only_after_equal_blocks() -> None:
    found = described(row(0, 48, 1, 2, 3), row(1, 40, 1, 2, 9), row(2, 20, 2, 3), row(3, 10, 1))
    assert (found["blocks"], found["distinct_blocks"]) == (9, 6)
    assert found["prefix_reuse"] == (32 + 10) / (48 + 40 + 20 + 10)


def test_lengths_are_exact_without_empty_rows() -> None:
    found = described(*(row(0, n, output=2 * n) for n in range(101)))
    assert (found["requests"], found["left_out"]) == (100, 1)
    lengths = {"avg": 50.5, "min": 1, "p50": 50.5, "p90": 90.1, "p99": 99.01, "max": 100}
    assert found["input_tokens"] == pytest.approx(lengths)
    assert found["output_tokens"] == pytest.approx({k: 2 * v for k, v in lengths.items()})


def test_values_missing_in_rows_are_none() -> None:
    found = described(row(None), row(None))
    assert [key for key, value in found.items() if value is None] == [
        *("duration_s", "rate", "peak_rate", "gap_variation", "arrivals"),
        *("blocks", "distinct_blocks", "prefix_reuse"),
    ]


def test_command_prints_a_table_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "t.jsonl"
    line = '{"timestamp": %d, "input_length": 1000, "output_length": 5, "hash_ids": [1, 2]}\n'
    file.write_text(line % 0 + line % 500)
    assert main(["trace", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["requests"], found["rate"], found["prefix_reuse"]) == (2, 2, 0.5)
    assert main(["trace", str(file)]) == 0
    table = capsys.readouterr().out
    assert "Input tokens in earlier prefixes  50.0%" in table
    assert all(row == row.rstrip() for row in table.splitlines())


def test_command_describes_the_requests_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "t.jsonl"
    line = '{"timestamp": 0, "input_length": %d, "output_length": %d}\n'
    file.write_text(line % (100, 5) + line % (1000, 50) + line % (1001, 5))
    limits = ("--synthesis-max-isl", "1000", "--synthesis-max-osl", "10")
    assert main(["trace", str(file), *limits, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["requests"], found["left_out"]) == (2, 1)
    assert (found["input_tokens"]["max"], found["output_tokens"]["max"]) == (1000, 10)


@pytest.mark.parametrize(
    ("content", "flags", "wrong"),
    [
        ('{"input_length": 1', (), "t:1: Input data was truncated"),
        ("", (), "t: no requests; expected rows with tokens\n"),
        (
            '{"timestamp": 0, "input_length": 9, "output_length": 1}',
            ("--synthesis-max-isl", "8"),
            "t: no requests; expected rows with tokens, at most 8 (--synthesis-max-isl) of input",
        ),
        ("", ("--custom-dataset-type", "sharegpt"), "'sharegpt': expected mooncake_trace"),
        ("", ("--isl-block-size", "0"), "--isl-block-size: 0: expected"),
        ("", ("--synthesis-max-osl", "0"), "--synthesis-max-osl: 0: expected"),
    ],
)
def test_invalid_trace_is_refused_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: str,
    flags: tuple[str, ...],
    wrong: str,
) -> None:
    file = tmp_path / "t"
    file.write_text(content)
    assert main(["trace", str(file), *flags]) == 2
    printed = capsys.readouterr().err
    assert wrong in printed
    assert printed.count("\n") == 1
