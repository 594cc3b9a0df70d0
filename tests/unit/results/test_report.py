"""The report can be written for any run, loads nothing external, and escapes its contents."""

import json
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hatchling.builders.wheel import WheelBuilder
from msgspec.structs import replace

from aiperf_svc.adapters.report import page, plots, scales, telemetry_charts
from aiperf_svc.adapters.report.blocks import Zoom, markup
from aiperf_svc.adapters.report.plots import Band, Series
from aiperf_svc.core.stats.load_window import PhaseTimes
from aiperf_svc.core.telemetry.system_report import SourceReport, SystemReport
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain.number_text import number
from aiperf_svc.domain.outcomes import ErrorKind, Outcome, Phase
from aiperf_svc.protocol.messages.records import ErrorSample
from aiperf_svc.protocol.messages.reports import AddressUse, HookCall
from aiperf_svc.protocol.records import Rows
from tests.support import fake_run
from tests.support.fake_run import MS, START_NS
from tests.support.fake_sources import source
from tests.support.html_balance import assert_is_balanced


def report(rows: Rows, **fields: Any) -> str:
    text = page.render(fake_run.results(rows, **fields)).decode()
    assert_is_balanced(text)
    for svg in re.findall(r"<svg.*?</svg>", text, re.S):
        ET.fromstring(svg)
        assert "nan" not in svg
        assert "inf" not in svg.replace("in flight", "")
    return text


REFUSED = fake_run.make_rows(
    5, outcome=Outcome.ERRORED, error=ErrorKind.CONNECT, flags=0, due_wall_ns=START_NS
)


@pytest.mark.parametrize(
    "rows",
    [
        fake_run.closed_loop(),
        fake_run.closed_loop(requests=3, concurrency=3),
        fake_run.closed_loop(requests=300, error_share=0.5),
        fake_run.request(),
        fake_run.request(flags=0, first_token_wall_ns=0, last_token_wall_ns=0),
        fake_run.request(ttft_ms=0, gap_ms=0),
        fake_run.without_response(start_ms=0, end_ms=50),
        REFUSED,
        REFUSED[:0],
    ],
    ids=["usual", "three", "half-failed", "one", "no-stream", "no-time", "cut", "refused", "empty"],
)
def test_any_run_has_a_report(rows: Rows) -> None:
    text = report(rows)
    assert "Verdict: <b>" in text
    assert "Configuration" in text


def picture(text: str) -> str:
    """Return the page without the zoom code."""
    return re.sub(r"<script.*?</script>", "", text, flags=re.S)


def test_report_loads_nothing_and_runs_only_zoom_script() -> None:
    text = report(fake_run.closed_loop())
    assert not re.search(r"@import|url\(|\bsrc=|<iframe|\bon\w+=", picture(text))
    assert re.findall(r'href="([^"]*)"', text) == ["data:,"]
    kinds = re.findall(r"<script([^>]*)>", text)
    assert kinds == [' type="application/json"'] * text.count("</script></figure>") + [""]
    assert not re.search(r"\bfetch\(|XMLHttpRequest|WebSocket|\bimport\b|\beval\(", text)


def test_zoom_script_is_small_and_has_its_licence() -> None:
    plot = plots.figure("", "", [], plots.Axes(scales.linear(1), scales.linear(1), length=1))
    code = markup(Zoom([plot]))
    assert len(code) < 70_000
    assert "The MIT License" in code
    plot = plots.figure("", "", [], plots.Axes(scales.linear(1), scales.linear(1)))
    assert not Zoom([plot])


def test_plot_numbers_match_its_lines() -> None:
    lines = [
        Series("p50", "a", [(0.5, 1.23456789), (1.5, math.nan)]),
        Series("p99", "e", [(0.5, 7.0), (1.5, 8.0)]),
        Series("</script><script>alert(1)", "b", [(1.0, 2.0)]),
    ]
    text = plots.zoom_numbers(lines, [Band(0.0, 0.5, "ramp")], end=2.0)
    assert "<" not in text
    found = json.loads(text)
    assert found["x"] == [[0.5, 1.5], [1.0]]
    assert [(line["x"], line["y"]) for line in found["lines"]] == [
        (0, [1.23457, None]),
        (0, [7.0, 8.0]),
        (1, [2.0]),
    ]
    assert found["lines"][2]["name"] == "</script><script>alert(1)"
    assert found["bands"] == [[0.0, 0.5, ""]]


def test_a_plot_has_a_text_for_its_picture() -> None:
    axes = plots.Axes(scales.linear(1), scales.linear(1))
    named = plots.figure("In flight", "requests", [Series("mean", "a", [(0.0, 1.0)])], axes)
    assert named.label == "In flight, requests: mean"
    assert plots.figure("In flight", "", [Series("", "a", [(0.0, 1.0)])], axes).label == "In flight"


def test_shares_of_servers_are_in_per_cent() -> None:
    log = source({"vllm:kv_cache_usage_perc": 0.25 * n} for n in (1, 2, 3))
    read = SourceReport(
        url="http://server",
        is_gpu=False,
        reads=3,
        failures=0,
        latency_ms=1.0,
        update_interval_s=None,
    )
    system = SystemReport(verdict=Severity.VALID, checks=(), metrics={}, sources=(read,))
    summary = replace(fake_run.results(fake_run.closed_loop()), telemetry=(log,), system=system)
    (drawn,) = telemetry_charts.draw(summary)
    assert (drawn.note, drawn.series[0].points[0]) == ("%", (0.0, 25.0))


def test_remarks_of_the_terminal_are_in_the_report() -> None:
    config = fake_run.config(endpoint={"proxy": "http://proxy:3128"})
    calls = (HookCall("POST /start_profile before profiling", 12.0, problem="status 500"),)
    text = report(fake_run.closed_loop(), config=config, hooks=calls)
    assert "Proxy: requests went through http://proxy:3128; its time is part of" in text
    assert "Called POST /start_profile before profiling: 12 ms; it failed: status 500." in text


def test_addresses_of_the_target_are_a_table() -> None:
    uses = (AddressUse("10.0.0.1", requests=40), AddressUse("10.0.0.2", failures=7, is_down=True))
    text = report(fake_run.closed_loop(), target_addresses=uses)
    assert "<h2>Target addresses</h2>" in text
    assert "10.0.0.2 was down at the end." in text


def test_external_text_is_escaped() -> None:
    message = "<script>alert('x')</script> & \"more\""
    errors = (ErrorSample(Phase.PROFILING, int(ErrorKind.STATUS), 500, message, 7),)
    text = report(fake_run.closed_loop(requests=50), errors=errors)
    assert "<script" not in picture(text)
    assert text.index("<h2>Errors</h2>") < text.index("<h2>Plots</h2>")
    assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt; &amp; &#34;more&#34;" in text


def test_report_has_verdict_objectives_errors_and_plots() -> None:
    rows = fake_run.closed_loop(client_lag_ms=60, error_share=0.02)
    slo = {"objectives": [{"metric": "time_to_first_token", "stat": "p99", "max": "1ms"}]}
    config = fake_run.config(concurrency=20, duration="30s", ramp="2s", slo=slo)
    times = PhaseTimes(
        start_wall_ns=START_NS, ramp_ns=2_000 * MS, stop_wall_ns=START_NS + 20_000 * MS
    )
    text = report(rows, config=config, profiling=times)
    assert "the client, not the server, was the limit" in text
    assert "missed" in text
    assert "above the limit; leaves out" in text
    assert text.count('class="plot"') == 6  # one shows the errors
    assert text.count("<title>ramp</title>") == 5
    assert text.count("<title>drain</title>") == 5


def test_an_objective_without_enough_values_is_not_judged() -> None:
    slo = {"objectives": [{"metric": "time_to_first_token", "stat": "p99", "max": "1m"}]}
    text = report(
        fake_run.closed_loop(requests=20),
        config=fake_run.config(concurrency=20, requests=20, slo=slo),
    )
    assert '<td class="state">not judged</td><td class="wide">p99 needs 100 values' in text
    assert "missed" not in text


def test_censored_and_thin_numbers_are_marked() -> None:
    rows = np.concatenate(
        [
            fake_run.closed_loop(requests=60),
            *(fake_run.without_response(start_ms=0, end_ms=9_000) for _ in range(6)),
        ]
    )
    text = report(rows)
    assert "&gt; 9,000" in text
    assert "9.09% of requests were cut off" in text
    assert "<i>*</i>" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.00002, "<0.001"),
        (0.0312, "0.0312"),
        (12.3456, "12.35"),
        (100.0, "100"),
        (2968.7, "2,969"),
        (12_345_678.9, "12,345,679"),
    ],
)
def test_numbers_have_four_digits_that_mean_something(value: float, text: str) -> None:
    assert number(value) == text


def test_axes_end_at_round_numbers_beyond_values() -> None:
    for high in (0.003, 0.9, 1.0, 7.3, 99, 1_234, 5e6):
        axis = scales.linear(high)
        assert axis.place(high) <= 1.0
        assert axis.place(0) == 0.0
        assert 3 <= len(axis.ticks) <= 6
    for low, high in ((0.02, 3.0), (1.0, 1.0), (5, 20), (0.001, 100_000)):
        axis = scales.logarithmic(low, high)
        assert 0 <= axis.place(low) <= axis.place(high) <= 1
        assert len(axis.ticks) >= 2


def test_every_nine_has_equal_width() -> None:
    axis = scales.nines(0.9999)
    assert [axis.place(q) for q in (0.0, 0.9, 0.99, 0.999, 0.9999)] == pytest.approx(
        [0, 0.25, 0.5, 0.75, 1]
    )
    assert [label for _, label in axis.ticks] == ["p0", "p50", "p90", "p99", "p99.9", "p99.99"]


def test_the_wheel_has_the_templates() -> None:
    root = Path(__file__).parents[3]
    templates = root / "aiperf_svc" / "adapters" / "report" / "templates"
    packed = {each.distribution_path for each in WheelBuilder(str(root)).recurse_included_files()}
    wanted = {str(each.relative_to(root)) for each in templates.rglob("*") if each.is_file()}
    assert wanted
    assert wanted <= packed


def test_labels_at_the_edge_are_inside() -> None:
    corner = plots.Series("load", "a", [(10.0, 10.0)], labels=("1024",), has_line=False)
    both = scales.linear(10.0)
    plot = plots.figure("", "", [corner], plots.Axes(both, both))
    (label,) = (each for each in plot.shapes if each.text == "1024")
    assert float(label.y) >= plots.LABEL_ROOM[1]
    assert float(label.x) + plots.LABEL_ROOM[0] <= plot.width
