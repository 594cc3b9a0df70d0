"""The report in a real browser has no errors, loads nothing, and fits into the window."""

import re
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.report import page, tool_page
from aiperf_svc.core.results.measured import Column, Series, Table
from aiperf_svc.core.results.summarise import summarise
from aiperf_svc.domain.outcomes import ErrorKind, Phase
from aiperf_svc.protocol.messages.records import ErrorSample
from aiperf_svc.workloads.steps import Plot
from tests.support import fake_run, fake_steps
from tests.support.browser import Frame, opened

ZOOM = """<script>
addEventListener("load", async () => {
  const charts = [...document.querySelectorAll(".uplot")];
  const drawn = () => charts.map(chart => chart.querySelector("canvas").toDataURL());
  const settled = async () => { for (let turn = 0; turn < 50; turn++) await null; return drawn(); };
  const over = charts[1].querySelector(".u-over");
  const box = over.getBoundingClientRect();
  const send = (type, share, target = over) => target.dispatchEvent(new MouseEvent(type, {
    clientX: box.left + box.width * share, clientY: box.top + 30, movementX: 9, bubbles: true,
  }));
  const whole = await settled();
  for (const [type, share] of [["mousemove", .3], ["mousedown", .3], ["mousemove", .6]])
    send(type, share);
  send("mouseup", .6, document);
  const zoomed = await settled();
  send("dblclick", .5);
  const again = await settled();
  const boxes = [...document.querySelectorAll("figure.zoomed")].map(figure =>
    [figure, figure.querySelector(".uplot")].map(part => part.getBoundingClientRect().width));
  tell({
    changed: whole.map((image, place) => image !== zoomed[place]),
    restored: whole.map((image, place) => image === again[place]),
    boxes, width: document.documentElement.scrollWidth, window: innerWidth,
    pictures: [...document.querySelectorAll("svg.plot")].filter(p => p.checkVisibility()).length,
    loaded: performance.getEntriesByType("resource").map(entry => entry.name),
  });
});
</script>"""
MEASURE = """<script>
addEventListener("load", () => {
  const box = element => element.getBoundingClientRect();
  tell({
    width: document.documentElement.scrollWidth, window: innerWidth,
    plots: [...document.querySelectorAll("svg.plot")].map(p => [box(p).width, box(p).height]),
    lines: [...document.querySelectorAll("svg.plot path.line")].filter(p => p.getTotalLength() > 9)
      .length,
    rows: document.querySelectorAll("tbody tr").length,
    verdict: document.querySelector(".verdict h2 b").textContent,
    loaded: performance.getEntriesByType("resource").map(entry => entry.name),
    background: getComputedStyle(document.body).backgroundColor,
  });
});
</script>"""
WIDTHS = (1280, 800, 500)
DARK = "--blink-settings=preferredColorScheme=0"


@pytest.fixture(scope="module")
def report() -> str:
    rows = fake_run.closed_loop(requests=3_000, error_share=0.03)
    message = '{"error": "queue is full"} ' * 20
    context = fake_run.context(
        rows,
        config=fake_run.config(concurrency=20, requests=3_000, ramp="1s"),
        errors=(ErrorSample(Phase.PROFILING, int(ErrorKind.STATUS), 500, message, 90),),
    )
    return page.render(summarise(fake_run.columns_of(rows), None, context)).decode()


@pytest.fixture(scope="module")
def run_report() -> str:
    """Render a run of 20 pairs of nodes with a plot of each kind."""
    nodes = [f"worker-{n}.cluster.example" for n in range(5)]
    series = Series(name="bw", unit="bit/s", times_s=(0.5, 1.5), values=(9.4e9, 9.3e9))
    columns = (Column("size", "bytes"), Column("latency", "us"))
    table = Table(name="by_size", columns=columns, rows=((0.0, 1.5), (1.0, 1.5), (2.0**22, 420.0)))
    records = [
        fake_steps.record(
            fake_steps.reading(9e9 + n, series=(series,), tables=(table,)),
            number=n,
            of=fake_steps.step(f"{a} to {b}", labels={"from": a, "to": b}),
        )
        for n, (a, b) in enumerate(permutations(nodes, 2), start=1)
    ]
    plots = (
        Plot(title="Between nodes", kind="matrix", name="bandwidth"),
        Plot(title="Bandwidth", kind="series", name="bw"),
        Plot(title="Latency", kind="table", name="by_size", x="size", y=("latency",),
             x_is_log=True, y_is_log=True),
    )  # fmt: skip
    return tool_page.render(fake_steps.result(*records), plots).decode()


@pytest.fixture(scope="module")
def measured(
    report: str, run_report: str, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """Return what the browser shows of both reports, with and without scripts."""
    frames = {f"zoom {width}": Frame(report + ZOOM, width) for width in (1280, 500)}
    frames |= {f"report {width}": Frame(pictures(report), width) for width in WIDTHS}
    frames |= {f"tool {width}": Frame(pictures(run_report), width) for width in (1280, 500)}
    frames["light"] = Frame(report + MEASURE, 1280)
    return opened(tmp_path_factory.mktemp("browser"), frames)


def pictures(report: str) -> str:
    """Return a report without its scripts, as it is printed or read where scripts are forbidden."""
    picture = re.sub(r"<script.*?</script>", "", report, flags=re.S)
    return picture.replace("<details>", "<details open>") + MEASURE


def assert_fits(found: dict[str, Any], width: int) -> None:
    """Check that nothing is wider than the window and nothing was loaded."""
    assert found["window"] == width
    assert found["width"] <= width
    assert found["loaded"] == []


@pytest.mark.parametrize("width", WIDTHS)
def test_report_opens_whole_without_errors(measured: dict[str, dict[str, Any]], width: int) -> None:
    found = measured[f"report {width}"]
    assert_fits(found, width)
    assert found["verdict"] == "degraded"
    assert len(found["plots"]) == 6
    assert all(0 < w <= found["window"] and h > 80 for w, h in found["plots"])
    assert found["lines"] == 13
    assert found["rows"] > 60


@pytest.mark.parametrize("width", [1280, 500])
def test_dragging_zooms_all_plots_over_time(
    measured: dict[str, dict[str, Any]], width: int
) -> None:
    found = measured[f"zoom {width}"]
    assert_fits(found, width)
    assert found["changed"] == [True] * 5
    assert found["restored"] == [True] * 5
    assert found["pictures"] == 1  # latency by percentile has no time
    assert all(0 < chart <= figure for figure, chart in found["boxes"])


@pytest.mark.parametrize("width", [1280, 500])
def test_report_of_a_tool_opens_whole_without_errors(
    measured: dict[str, dict[str, Any]], width: int
) -> None:
    found = measured[f"tool {width}"]
    assert_fits(found, width)
    assert found["verdict"] == "valid"
    assert len(found["plots"]) == 2
    assert found["lines"] == 2 * 10
    assert found["rows"] > 60


def test_report_follows_the_dark_mode_of_the_reader(
    measured: dict[str, dict[str, Any]], report: str, tmp_path: Path
) -> None:
    dark = opened(tmp_path, {"dark": Frame(report + MEASURE, 1280)}, DARK)["dark"]
    backgrounds = [found["background"] for found in (measured["light"], dark)]
    assert backgrounds == ["rgb(246, 247, 249)", "rgb(16, 20, 26)"]
