"""Reads fio's JSON (`json+`) and its logs of bandwidth.

Latency is fio's `lat`, from the submission of a read or write to its completion. Its `clat` starts
after the submission, by which time a buffered read through libaio is already done.

fio's own percentiles cover one job. Percentiles cannot be averaged, so those of all jobs and
workers come from the sum of their histograms.
"""

import errno
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.core.results.measured import Column, Series, Table
from aiperf_svc.workloads.fio.metrics import PERCENTILES, Direction, Run
from aiperf_svc.workloads.json_output import Fields, fields_of
from aiperf_svc.workloads.steps import Output, Reading, UnreadableOutput

JSON = "fio.json"
"""File of fio's JSON; standard output has its progress."""
BANDWIDTH_LOG = "fio_bw.*.log"
"""Files that `--write_bw_log=fio` writes, one for each job."""
LATENCY_TABLE = "latency"
_TABLE_PERCENTILES = (1.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99)
_ETA = re.compile(r"\[([^][]*/s)\]\[([^][]*) IOPS\]")
"""Matches the rates in a line such as
`Jobs: 1 (f=1): [m(1)][60.0%][r=130MiB/s,w=128MiB/s][r=33.3k,w=32.8k IOPS][eta 00m:02s]`."""
_DIRECTIONS: dict[str, Direction] = {"0": "read", "1": "write"}
"""Values in the third column of a log."""

Bins = Mapping[int, int]
"""Latency in nanoseconds to the number of completions near it."""


def read_run(run: Run, ramp_ns: int, outputs: Sequence[Output]) -> Reading:
    """Return the reading of one run on all workers."""
    documents = [_document(output) for output in outputs]
    versions = {
        output.rank: document.text("fio version")
        for output, document in zip(outputs, documents, strict=True)
    }
    jobs = [
        (output.rank, job)
        for output, document in zip(outputs, documents, strict=True)
        for job in document.each("jobs")
    ]
    if len(jobs) != run.num_jobs * len(outputs):
        raise UnreadableOutput(
            f"fio reports {len(jobs)} jobs; expected {run.num_jobs} of each worker"
        )
    errors = tuple(
        f"fio on rank {rank}: job {job.text('jobname')}: error {errno.errorcode.get(code, code)}"
        for rank, job in jobs
        if (code := int(job.number("error")))
    )
    tool = versions[outputs[0].rank]
    if errors:
        return Reading(values={}, tool=tool, tools=versions, errors=errors)
    bins = {way: added(_bins(rank, job, way) for rank, job in jobs) for way in run.directions}
    for way, histogram in bins.items():
        if not histogram:
            raise UnreadableOutput(f"fio completed no {way}s; expected some")
    return Reading(
        values=_values(run, [job for _, job in jobs], bins),
        series=tuple(_series(run, ramp_ns / SECOND_NS, outputs)),
        tables=(_latency_table(run, bins),),
        tool=tool,
        tools=versions,
    )


def read_eta(line: str) -> str:
    """Return the rates of the last second from a line of progress; empty for any other line."""
    found = _ETA.search(line)
    if found is None:
        return ""
    pairs = zip(found[1].split(","), found[2].split(","), strict=False)
    words = {"r": "reads", "w": "writes"}
    return ", ".join(
        f"{words.get(rate[0], rate[0])} {rate[2:]}, {iops[2:]} IOPS" for rate, iops in pairs
    )


def added(histograms: Iterator[Bins]) -> Bins:
    """Return the sum of histograms, sorted by latency."""
    total: Counter[int] = Counter()
    for histogram in histograms:
        total.update(histogram)
    return dict(sorted(total.items()))


def percentile_ns(bins: Bins, percent: float) -> int:
    """Return the value of the first sorted bin at which the cumulative share reaches `percent`."""
    wanted = percent / 100 * sum(bins.values())
    for value, count in zip(bins, accumulate(bins.values()), strict=True):
        if count >= wanted:
            return value
    raise ValueError("no completions")


def _document(output: Output) -> Fields:
    """Return the JSON, which fio's warnings may precede."""
    text = output.files.get(JSON, b"").decode("utf-8", "replace")
    lines = text.splitlines(keepends=True)
    start = next((n for n, line in enumerate(lines) if line.startswith("{")), 0)
    return fields_of("".join(lines[start:]), f"fio on rank {output.rank}")


def _bins(rank: int, job: Fields, way: Direction) -> Bins:
    count = int(job.number(way, "lat_ns", "N"))
    if not count:
        return {}  # fio omits an empty histogram.
    bins = {int(ns): int(n) for ns, n in job.numbers(way, "lat_ns", "bins").items()}
    if sum(bins.values()) != count:
        raise UnreadableOutput(
            f"fio on rank {rank}: {way}.lat_ns.bins has {sum(bins.values())} completions; "
            f"expected {count}, its N"
        )
    return bins


def _values(run: Run, jobs: Sequence[Fields], bins: Mapping[Direction, Bins]) -> dict[str, float]:
    values: dict[str, float] = {}
    for tag, field in (("iops", "iops"), ("bandwidth", "bw_bytes")):
        sums = {way: sum(job.number(way, field) for job in jobs) for way in run.directions}
        values[f"{run.prefix}{tag}"] = sum(sums.values())
        if run.is_mixed:
            values |= {f"{run.prefix}{way}_{tag}": value for way, value in sums.items()}
    for way in run.directions:
        total_ns = sum(
            job.number(way, "lat_ns", "mean") * job.number(way, "lat_ns", "N") for job in jobs
        )
        average = run.latency_tag(way)
        values[average] = total_ns / sum(bins[way].values()) / 1000
        for tag, percent in PERCENTILES.items():
            values[f"{average}_{tag}"] = percentile_ns(bins[way], percent) / 1000
    return values


def _latency_table(run: Run, bins: Mapping[Direction, Bins]) -> Table:
    return Table(
        name=LATENCY_TABLE,
        columns=(Column("percentile", "%"), *(Column(way, "us") for way in run.directions)),
        rows=tuple(
            (percent, *(percentile_ns(bins[way], percent) / 1000 for way in run.directions))
            for percent in _TABLE_PERCENTILES
        ),
    )


def _series(run: Run, ramp_s: float, outputs: Sequence[Output]) -> Iterator[Series]:
    for output in outputs:
        logs = {name: text for name, text in output.files.items() if name != JSON}
        if not logs:
            raise UnreadableOutput(f"fio on rank {output.rank} left no {BANDWIDTH_LOG}")
        of_second: Counter[tuple[Direction, int]] = Counter()
        for name, text in logs.items():
            for way, second, rate in _log_lines(f"{name} of rank {output.rank}", text):
                of_second[way, second] += rate
        for way in run.directions:
            points = sorted((second, n) for (of, second), n in of_second.items() if of == way)
            yield Series(
                name="bandwidth",
                unit="bytes/s",
                # The log's clock starts after the ramp.
                times_s=tuple(ramp_s + second - 0.5 for second, _ in points),
                values=tuple(float(rate) for _, rate in points),
                label=f"{way}s of rank {output.rank}",
            )


def _log_lines(where: str, text: bytes) -> Iterator[tuple[Direction, int, int]]:
    """Yield direction, second and bytes per second of each line: milliseconds, KiB/s, direction."""
    for line in text.decode("utf-8", "replace").splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) < 3 or not all(each.isdecimal() for each in fields[:3]):
            raise UnreadableOutput(f"{where}: {line!r}; expected 'ms, KiB/s, direction, ...'")
        way = _DIRECTIONS.get(fields[2])
        if way is None:
            raise UnreadableOutput(f"{where}: {line!r}; expected direction 0 or 1")
        yield way, round(int(fields[0]) / 1000), int(fields[1]) * 1024
