"""The metrics of a run of fio."""

from collections.abc import Iterable, Iterator

from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.workloads.fio.runs import Run

PERCENTILES = {"p50": 50.0, "p99": 99.0, "p999": 99.9}
"""Those of latency that are metrics; the table has more."""


def metrics_of_run(run: Run) -> Iterator[MetricInfo]:
    """The metrics of one run, its most important first."""
    groups = {"iops": _iops(run), "bandwidth": _bandwidth(run), "latency": _latency(run)}
    order = (*run.shows, *(name for name in groups if name not in run.shows))
    for name in order:
        yield from groups[name]


def _titled(run: Run, text: str) -> str:
    if not run.prefix:
        return text
    rest = text if text.isupper() else text[0].lower() + text[1:]
    return f"{run.name.capitalize()}: {rest}"


def _iops(run: Run) -> list[MetricInfo]:
    found = [("iops", "IOPS", "read.iops + write.iops")]
    for way in _mixed(run):
        found.append((f"{way}_iops", f"{way.capitalize()}s per second", f"{way}.iops"))
    return _rates(run, "iops", "ops/s", found)


def _bandwidth(run: Run) -> list[MetricInfo]:
    found = [("bandwidth", "Bandwidth", "read.bw_bytes + write.bw_bytes")]
    for way in _mixed(run):
        found.append((f"{way}_bandwidth", f"Bandwidth of {way}s", f"{way}.bw_bytes"))
    return _rates(run, "bandwidth", "bytes/s", found)


def _rates(
    run: Run, group: str, unit: str, found: Iterable[tuple[str, str, str]]
) -> list[MetricInfo]:
    """Metrics by tag, name and formula that are summed over jobs and workers."""
    return [
        MetricInfo(
            tag=f"{run.prefix}{tag}",
            name=_titled(run, name),
            unit=unit,
            better="higher",
            formula=f"{formula}, summed over jobs and workers",
            in_table=group in run.shows,
        )
        for tag, name, formula in found
    ]


def _latency(run: Run) -> list[MetricInfo]:
    infos = []
    for way in run.directions:
        average = MetricInfo(
            tag=run.latency_tag(way),
            name=_titled(run, f"Latency of {way}s, average"),
            unit="us",
            better="lower",
            formula=f"{way}.lat_ns.mean, weighted by .N over jobs and workers",
            in_table="latency" in run.shows,
        )
        infos += [
            average,
            *(
                MetricInfo(
                    tag=f"{average.tag}_{tag}",
                    name=_titled(run, f"Latency of {way}s, p{percent:g}"),
                    unit="us",
                    better="lower",
                    formula=f"percentile of {way}.lat_ns.bins, added over jobs and workers",
                    in_table=average.in_table,
                )
                for tag, percent in PERCENTILES.items()
            ),
        ]
    return infos


def _mixed(run: Run) -> tuple[str, ...]:
    """Both directions of a run that has both: of one, they would repeat the total."""
    return run.directions if run.is_mixed else ()
