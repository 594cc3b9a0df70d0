"""The runs of fio in a spec, its own or those of a suite, and the metrics of each."""

from collections.abc import Iterator
from typing import Literal

import msgspec

from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.workloads.fio.spec import FioSpec, Pattern

Direction = Literal["read", "write"]
Shown = Literal["iops", "bandwidth", "latency"]
_KI = 2**10
_MI = 2**20


class Run(msgspec.Struct, frozen=True):
    """One measured run."""

    name: str
    """Name of its step."""
    shows: tuple[Shown, ...]
    """The metrics in the terminal's table, the most important first."""
    rw: Pattern
    bs: int
    iodepth: int
    num_jobs: int = 1
    rwmixread: int = 50
    is_of_suite: bool = False

    @property
    def prefix(self) -> str:
        """Prefix of its metrics, which distinguishes the runs of a suite."""
        return f"{self.name.replace(' ', '_')}_" if self.is_of_suite else ""

    @property
    def directions(self) -> tuple[Direction, ...]:
        """The directions of its operations."""
        if self.rw in ("rw", "readwrite", "randrw"):
            return ("read", "write")
        return ("read",) if "read" in self.rw else ("write",)

    def latency_tag(self, way: Direction) -> str:
        """Return the tag of the average latency in a direction. In a suite, the name of a run with
        one direction already contains it."""
        has_one_name = self.is_of_suite and not self.is_mixed
        return f"{self.prefix}latency" if has_one_name else f"{self.prefix}{way}_latency"

    @property
    def is_mixed(self) -> bool:
        """Whether it both reads and writes."""
        return len(self.directions) == 2


# A queue of 64 saturates most volumes; one of 4 shows latency without much queueing.
# The parallel reads show the speed that one stream cannot reach on a volume spread over disks.
VOLUME = (
    Run("random read", ("iops",), "randread", 4 * _KI, 64, is_of_suite=True),
    Run("random write", ("iops",), "randwrite", 4 * _KI, 64, is_of_suite=True),
    Run("sequential read", ("bandwidth",), "read", 128 * _KI, 64, is_of_suite=True),
    Run("sequential write", ("bandwidth",), "write", 128 * _KI, 64, is_of_suite=True),
    Run("short queue read", ("latency",), "randread", 4 * _KI, 4, is_of_suite=True),
    Run("short queue write", ("latency",), "randwrite", 4 * _KI, 4, is_of_suite=True),
    Run("parallel read", ("bandwidth",), "read", _MI, 16, num_jobs=4, is_of_suite=True),
    Run("mixed", ("iops",), "randrw", 4 * _KI, 64, rwmixread=75, is_of_suite=True),
)
"""Runs of `suite: volume`, after dbench's."""


def runs_of(spec: FioSpec) -> tuple[Run, ...]:
    """The measured runs, in their order."""
    if spec.suite is not None:
        return VOLUME
    return (
        Run(
            name=spec.rw,
            shows=("iops", "bandwidth", "latency"),
            rw=spec.rw,
            bs=spec.bs,
            iodepth=spec.iodepth,
            num_jobs=spec.num_jobs,
            rwmixread=spec.rwmixread,
        ),
    )


PERCENTILES = {"p50": 50.0, "p99": 99.0, "p999": 99.9}
"""Latency percentiles that are metrics; the table has more."""


def metrics_of_run(run: Run) -> Iterator[MetricInfo]:
    """The metrics of one run, its most important first."""
    groups = {
        "iops": _rates(run, "iops", "ops/s", whole="IOPS", of_way="{}s per second", field="iops"),
        "bandwidth": _rates(
            run,
            "bandwidth",
            "bytes/s",
            whole="Bandwidth",
            of_way="{} bandwidth",
            field="bw_bytes",
        ),
        "latency": _latency(run),
    }
    order = (*run.shows, *(name for name in groups if name not in run.shows))
    for name in order:
        yield from groups[name]


def _titled(run: Run, text: str) -> str:
    if not run.is_of_suite:
        return text
    rest = text if text.isupper() else text[0].lower() + text[1:]
    return f"{run.name.capitalize()}: {rest}"


def _rates(
    run: Run, group: Shown, unit: str, *, whole: str, of_way: str, field: str
) -> list[MetricInfo]:
    """Return the metrics that are summed over jobs and workers: the `whole`, and for a run with
    both directions also each direction."""
    found: list[tuple[str, str, str]] = [(group, whole, f"read.{field} + write.{field}")]
    for way in run.directions if run.is_mixed else ():
        found.append((f"{way}_{group}", of_way.format(way).capitalize(), f"{way}.{field}"))
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
            name=_titled(run, f"{way.capitalize()} latency, average"),
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
                    name=_titled(run, f"{way.capitalize()} latency, p{percent:g}"),
                    unit="us",
                    better="lower",
                    formula=f"percentile of {way}.lat_ns.bins, merged over jobs and workers",
                    in_table=average.in_table,
                )
                for tag, percent in PERCENTILES.items()
            ),
        ]
    return infos
