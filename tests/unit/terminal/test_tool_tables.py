"""Terminal tables of a tool benchmark."""

from typing import Any

import pytest

from aiperf_svc.core.results.measured import Column, Table
from aiperf_svc.core.results.tool_result import ToolResult
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.printing import print_results
from tests.support import fake_steps as fake
from tests.support.terminal import on_console


def outcome(result: ToolResult, **fields: Any) -> RunOutcome:
    values: dict[str, Any] = {"run_id": "x", "state": "done", "reason": "", "artifacts": None}
    return RunOutcome(**{**values, **fields}, results=result)


def printed(result: ToolResult) -> str:
    return on_console(print_results, outcome(result))


def test_metric_is_a_line_in_a_readable_unit() -> None:
    text = printed(fake.result(fake.record(), fake.record(fake.reading(9e9), number=2)))
    line = next(line for line in text.splitlines() if "Bandwidth received" in line)
    assert line.split() == ["Bandwidth", "received", "9.200", "9", "9.400", "Gbit/s"]


def test_pairs_of_nodes_are_a_matrix() -> None:
    records = [
        fake.record(
            fake.reading(value), number=n, of=fake.step(f"{a}-{b}", labels={"from": a, "to": b})
        )
        for n, (a, b, value) in enumerate((("x", "y", 9e9), ("y", "x", 2e9)), start=1)
    ]
    found = [line.split() for line in printed(fake.result(*records)).splitlines()]
    assert ["x", "y"] in found
    assert ["x", "–", "9"] in found
    assert ["y", "2", "–"] in found


def test_long_table_is_shortened_and_keeps_its_ends() -> None:
    columns = (Column("size", "bytes"), Column("latency", "us"))
    table = Table(name="by_size", columns=columns, rows=tuple((2.0**n, 1.0) for n in range(23)))
    text = printed(fake.result(fake.record(fake.reading(tables=(table,)))))
    sizes = [line for line in text.splitlines() if line.rstrip().endswith(" 1")]
    assert len(sizes) == 9
    assert "1 B " in sizes[0]
    assert "4 MiB" in sizes[-1]


def test_tables_name_their_repetition() -> None:
    table = Table(name="by_size", columns=(Column("size", "bytes"),), rows=((1.0,),))
    first, second = (
        fake.record(fake.reading(tables=(table,)), number=n, repetition=n) for n in (1, 2)
    )
    titles = [
        line for line in printed(fake.result(first, second)).splitlines() if "by size" in line
    ]
    assert [title.rpartition(" ")[2] for title in titles] == ["#1", "#2"]
    assert "#" not in printed(fake.result(first))


def test_many_columns_have_whole_names_and_numbers() -> None:
    names = [f"in place bandwidth {n}" for n in range(7)]
    columns = (Column("size", "bytes"), *(Column(name, "bytes/s") for name in names))
    table = Table(name="by_size", columns=columns, rows=((2.0**20, *[23.66e9] * 7),))
    text = printed(fake.result(fake.record(fake.reading(tables=(table,)))))
    assert "…" not in text
    assert text.count("bandwidth") == len(names)
    assert "1 MiB" + 7 * " 23.66" in " ".join(text.split())


def test_failed_step_shows_reason_and_output() -> None:
    text = printed(fake.result(fake.record(problem="rank 0: exit code 1")))
    assert "rank 0: exit code 1" in text
    assert "raw/001-node-0-to-node-1" in text
    assert "invalid: step-failed — do not use these numbers" in text


def test_objectives_and_checks_are_shown() -> None:
    config = fake.config(slo={"objectives": [{"metric": "bandwidth", "min": "10Gbit/s"}]})
    starved = fake.record(witnesses=(fake.witness(0), fake.witness(1, throttled_ns=2 * 10**8)))
    text = printed(fake.result(starved, config=config))
    assert "≥ 10" in text
    assert "Gbit/s" in text
    assert "below the limit" in text
    assert "the CPU quota throttled rank 1 on node-1" in text


FAILED = fake.record(number=2, repetition=2, problem="x")
MISSED = fake.config(slo={"objectives": [{"metric": "bandwidth", "min": "10Gbit/s"}]})
STARVED = fake.record(witnesses=(fake.witness(0), fake.witness(1, throttled_ns=fake.LENGTH_NS)))


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (fake.result(), ExitCode.OK),
        (fake.result(fake.record(), FAILED), ExitCode.BENCHMARK_FAILED),
        (fake.result(failure="no rank came"), ExitCode.BENCHMARK_FAILED),
        (fake.result(FAILED), ExitCode.BENCHMARK_FAILED),
        (fake.result(STARVED, config=MISSED), ExitCode.VERDICT_INVALID),
        (fake.result(config=MISSED), ExitCode.SLO_MISSED),
    ],
)
def test_most_serious_problem_decides_exit_code(result: ToolResult, code: ExitCode) -> None:
    assert outcome(result).exit_code is code
