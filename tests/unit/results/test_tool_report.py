"""The report of a tool benchmark draws the plots of its workload and escapes its contents."""

import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from aiperf_svc.adapters.report import scales, tool_page
from aiperf_svc.core.results.measured import Column, Series, Table
from aiperf_svc.core.results.tool_result import ToolResult
from aiperf_svc.domain.number_text import readable_unit, size_text
from aiperf_svc.workloads.steps import Plot
from tests.support import fake_steps as fake
from tests.support.html_balance import assert_is_balanced

SERIES = Plot(title="Over time", kind="series", name="bandwidth")
BY_SIZE = Plot(
    title="Latency by size", kind="table", name="latency", x="size", y=("p50",), x_is_log=True,
    y_is_log=True,
)  # fmt: skip
MATRIX = Plot(title="Between nodes", kind="matrix", name="bandwidth")


def report(result: ToolResult, *plots: Plot) -> str:
    text = tool_page.render(result, plots).decode()
    assert_is_balanced(text)
    for svg in re.findall(r"<svg.*?</svg>", text, re.S):
        ET.fromstring(svg)
        assert "nan" not in svg
        assert "inf" not in svg
    return text


def series(*values: float, label: str = "") -> Series:
    times = tuple(n + 0.5 for n in range(len(values)))
    return Series(name="bandwidth", unit="bit/s", times_s=times, values=values, label=label)


def by_size(*rows: tuple[float | None, ...]) -> Table:
    columns = (Column("size", "bytes"), Column("p50", "us"))
    return Table(name="latency", columns=columns, rows=rows)


def run(**reading: Any) -> ToolResult:
    return fake.result(fake.record(fake.reading(**reading)))


def lines(text: str) -> int:
    plots = re.findall(r'<svg class="plot".*?</svg>', text, re.S)
    return sum(plot.count('class="line') for plot in plots)


def test_each_series_is_a_line() -> None:
    read = {"series": (series(1e9, 2e9, label="a"), series(3e9, label="b"))}
    text = report(run(**read), SERIES)
    assert lines(text) == 2
    assert "Gbit/s" in text


def test_plot_with_too_many_lines_names_it() -> None:
    read = {"series": tuple(series(1.0, 2.0, label=str(n)) for n in range(37))}
    text = report(run(**read), SERIES)
    assert lines(text) == 10
    assert "10 of 37 lines" in text


def test_empty_message_is_on_the_logarithmic_axis() -> None:
    text = report(run(tables=(by_size((0.0, 1.5), (1.0, 1.6), (4096.0, 9.0)),)), BY_SIZE)
    assert lines(text) == 1
    assert "4 KiB" in text


def test_percentiles_have_an_axis_of_nines() -> None:
    columns = (Column("percentile", "%"), Column("read", "us"))
    rows = ((50.0, 90.0), (99.0, 200.0), (99.9, 900.0))
    table = Table(name="latency", columns=columns, rows=rows)
    plot = Plot(title="t", kind="table", name="latency", x="percentile", y=("read",))
    text = report(run(tables=(table,)), plot)
    assert [label for label in ("p50", "p99", "p99.9") if f">{label}</text>" in text] == [
        "p50",
        "p99",
        "p99.9",
    ]


def test_unmeasured_values_are_no_points() -> None:
    text = report(run(tables=(by_size((1.0, None), (2.0, 3.0)),)), BY_SIZE)
    assert lines(text) == 1


def test_pairs_of_nodes_are_a_matrix() -> None:
    records = [
        fake.record(
            fake.reading(value), number=n, of=fake.step(f"{a} to {b}", labels={"from": a, "to": b})
        )
        for n, (a, b, value) in enumerate((("x", "y", 9e9), ("y", "x", 2e9)), start=1)
    ]
    text = report(fake.result(*records), MATRIX)
    assert '<td class="heat" style="--heat:0%">9</td>' in text
    assert '<td class="heat" style="--heat:60%">2</td>' in text


@pytest.mark.parametrize("plot", [SERIES, BY_SIZE, MATRIX])
def test_a_plot_without_numbers_is_left_out(plot: Plot) -> None:
    assert "<figure" not in report(fake.result(), plot)


def test_external_text_is_escaped() -> None:
    bad = "<script>alert(1)</script>"
    read = fake.reading(facts={bad: bad}, tool=bad, series=(series(1.0, 2.0, label=bad),))
    step = fake.step(bad, labels={"from": bad, "to": bad})
    first = fake.record(read, of=step, witnesses=(fake.witness(0, node=bad), fake.witness(1)))
    second = fake.record(number=2, of=fake.step("y"), problem=bad)
    assert "<script" not in report(fake.result(first, second, failure=bad), SERIES, MATRIX)


def test_a_run_that_measured_nothing_has_a_report() -> None:
    text = report(fake.result(fake.record(problem="rank 0: exit code 1")), SERIES)
    assert "step-failed" in text
    assert "rank 0: exit code 1" in text


def test_objectives_are_in_readable_units() -> None:
    config = fake.config(slo={"objectives": [{"metric": "bandwidth", "min": "9Gbit/s"}]})
    assert "≥ 9 Gbit/s" in report(fake.result(config=config))


@pytest.mark.parametrize(
    ("unit", "high", "expected"),
    [
        ("bit/s", 9.4e9, (1e9, "Gbit/s")),
        ("bit/s", 12, (1.0, "bit/s")),
        ("bytes/s", 2e6, (1e6, "MB/s")),
        ("us", 2500, (1e3, "ms")),
        ("us", 0.4, (1.0, "µs")),
        ("ns", 3e9, (1e9, "s")),
        ("ratio", 0.02, (0.01, "%")),
        ("samples/s", 5e6, (1.0, "samples/s")),
    ],
)
def test_units_are_those_in_which_numbers_are_short(
    unit: str, high: float, expected: tuple[float, str]
) -> None:
    assert readable_unit(unit, high) == expected


def test_sizes_are_named_as_benchmarks_name_them() -> None:
    assert [size_text(n) for n in (0, 64, 1000, 4096, 2**20, 2**30)] == [
        "0 B", "64 B", "1,000 B", "4 KiB", "1 MiB", "1 GiB",
    ]  # fmt: skip


def test_a_binary_scale_has_few_ticks() -> None:
    scale = scales.binary(0.5, 2**22)
    assert [label for _, label in scale.ticks] == [
        "1 B", "16 B", "256 B", "4 KiB", "64 KiB", "1 MiB",
    ]  # fmt: skip
    assert scale.place(0.5) == 0.0
    assert scale.place(2**22) == 1.0


def test_values_unknown_to_couriers_are_dashes() -> None:
    """CPU time and memory of a local rank are unknown, and some kernels do not count pressure. 0
    would look like a measurement."""

    def cells(**seen: Any) -> list[str]:
        text = report(fake.result(fake.record(witnesses=(fake.witness(0, **seen),))))
        table = text.partition("cores used")[2].partition("</table>")[0]
        return re.findall(r"<td>(?:<i>)?(.*?)(?:</i>)?</td>", table)[3:8]

    known = {"cpu_ns": fake.LENGTH_NS, "cpu_pressure": 0.5, "memory_peak_bytes": 2**21}
    assert cells(**known) == ["1", "0", "50", "0", "2"]
    unknown = {"cpu_ns": 0, "cpu_pressure": None, "memory_peak_bytes": 0}
    assert cells(**unknown) == ["–", "0", "–", "0", "–"]
