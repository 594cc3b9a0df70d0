"""`profile_export_aiperf.csv`: AIPerf's two blocks, distributions and single numbers, by tag."""

import csv
from io import StringIO

from aiperf_svc.core.results.summary import Summary
from aiperf_svc.domain.foreign_text import csv_cell
from aiperf_svc.domain.metric_catalog import CATALOG, METRICS, Kind

PERCENTILES = ("p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99")
STATS = ("avg", "min", "max", "sum", *PERCENTILES, "std")
"""Statistics in AIPerf's order."""


def render(summary: Summary) -> bytes:
    """Render the file's content. An unknown number is an empty cell."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("Metric", *STATS))
    for tag in sorted(_distributions(summary)):
        cells = (_number(summary.measured(tag, stat)) for stat in STATS)
        writer.writerow((csv_cell(CATALOG[tag].header), *cells))
    writer.writerow(())
    writer.writerow(("Metric", "Value"))
    for tag in sorted(summary.scalars):
        writer.writerow((csv_cell(CATALOG[tag].header), _number(summary.scalars[tag])))
    for tier in summary.goodput_tiers:
        values = (("Goodput", tier.goodput), ("Good Request Count", tier.good_request_count))
        for what, value in values:
            header = CATALOG[what.lower().replace(" ", "_")].header
            writer.writerow((csv_cell(f"{header} [{tier.name}]"), _number(value)))
    return text.getvalue().encode()


def _distributions(summary: Summary) -> set[str]:
    timed = {m.tag for m in METRICS if m.kind is Kind.TIMED} if summary.concurrency else set()
    return timed | set(summary.metrics)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
