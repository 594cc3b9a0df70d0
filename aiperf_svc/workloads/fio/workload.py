"""Runs fio on each worker's volume: once to write the files, then once per measured run."""

import math
from collections.abc import Sequence

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.units import format_size
from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.core.results.measured import MetricInfo
from aiperf_svc.core.verdict.check_result import Reason, note
from aiperf_svc.workloads.fio.metrics import VOLUME, Run, metrics_of_run, runs_of
from aiperf_svc.workloads.fio.output import BANDWIDTH_LOG, JSON, LATENCY_TABLE, read_eta, read_run
from aiperf_svc.workloads.fio.spec import FioSpec
from aiperf_svc.workloads.steps import (
    Command,
    Output,
    Plot,
    Rank,
    Reading,
    Role,
    Step,
    Tool,
    margin_ns,
    timeout_of,
)
from aiperf_svc.workloads.tool import ToolWorkload

Config = WorkloadConfig[FioSpec]

_MIN_WRITE_RATE = 10 * 10**6
"""Minimum speed in bytes per second while the files are written. A slower volume is given up."""
_ANY_RUN = Run(name="", shows=("iops", "bandwidth", "latency"), rw="randrw", bs=1, iodepth=1)


class Fio(ToolWorkload[FioSpec]):
    """The kind `fio`."""

    kind = "fio"
    summary = "IOPS, bandwidth and latency of volumes, by fio; suite: volume runs a full profile"
    spec = FioSpec
    rank_key = "workers"
    tools = (Tool("fio", "fio"),)
    metrics = (
        *metrics_of_run(_ANY_RUN),
        *(info for run in VOLUME for info in metrics_of_run(run)),
    )

    def roles(self, spec: FioSpec) -> tuple[Role, ...]:
        return (Role("worker", spec.workers),)

    def metrics_of(self, config: Config) -> tuple[MetricInfo, ...]:
        return tuple(info for run in runs_of(config.workload) for info in metrics_of_run(run))

    def problems(self, config: Config) -> list[str]:
        spec, volume = config.workload, config.deployment.ranks.volume
        if volume is None or volume.kind == "host-path":
            return []
        is_shared = volume.kind == "shared-claim"
        needed = spec.worker_bytes * (spec.workers if is_shared else 1)
        if needed <= volume.size:
            return []
        whose = "all workers together keep" if is_shared else "a worker keeps"
        return [
            f"workload.size: {whose} {format_size(needed)} of files on a volume of "
            f"{format_size(volume.size)} (deployment.ranks.volume.size)"
        ]

    def steps(self, config: Config, ranks: Sequence[Rank]) -> tuple[Step, ...]:
        spec = config.workload
        expected_ns = spec.ramp + spec.measured_ns
        writing_ns = spec.worker_bytes * len(ranks) // _MIN_WRITE_RATE * SECOND_NS
        return (
            Step(
                name="write files",
                is_measured=False,
                commands=tuple(
                    Command(rank=rank.number, argv=_write_files(spec, rank), keeps=(JSON,))
                    for rank in ranks
                ),
                timeout_ns=timeout_of(spec, writing_ns + 60 * SECOND_NS),
            ),
            *(
                Step(
                    name=run.name,
                    headline=next(metrics_of_run(run)).tag,
                    commands=tuple(
                        Command(
                            rank=rank.number,
                            argv=_measure(spec, run, rank),
                            keeps=(JSON, BANDWIDTH_LOG),
                        )
                        for rank in ranks
                    ),
                    timeout_ns=timeout_of(spec, margin_ns(expected_ns)),
                    expected_ns=expected_ns,
                )
                for run in runs_of(spec)
            ),
        )

    def read(self, config: Config, step: Step, outputs: Sequence[Output]) -> Reading:
        run = next(run for run in runs_of(config.workload) if run.name == step.name)
        return read_run(run, config.workload.ramp, outputs)

    def progress(self, config: Config, line: str) -> str:
        return read_eta(line)

    def checks(self, config: Config, readings: Sequence[Reading]) -> tuple[Reason, ...]:
        if config.workload.direct:
            return ()
        text = (
            "the numbers include the page cache (workload.direct is false): reads may come from "
            "memory, and writes may not reach the volume"
        )
        return (note("page-cache", text),)

    def plots(self, config: Config) -> tuple[Plot, ...]:
        ways = {way for run in runs_of(config.workload) for way in run.directions}
        return (
            Plot(title="Bandwidth", kind="series", name="bandwidth"),
            Plot(
                title="Latency by percentile",
                kind="table",
                name=LATENCY_TABLE,
                x="percentile",
                y=tuple(sorted(ways)),
                y_is_log=True,
            ),
        )


def _write_files(spec: FioSpec, rank: Rank) -> tuple[str, ...]:
    """Write every block that a run may read or overwrite, since a volume serves reads of unwritten
    blocks without accessing its disks."""
    jobs = 1 if spec.suite is not None else spec.num_jobs
    run = Run(name="write-files", shows=(), rw="write", bs=2**20, iodepth=1, num_jobs=jobs)
    # fio writes no partial blocks. The end of a file, or a small file, needs smaller blocks, of
    # which the blocks of the runs are multiples.
    smallest = math.gcd(run.bs, *(each.bs for each in runs_of(spec)))
    return (
        *_common(spec, run, rank),
        f"--bsrange={smallest}-{run.bs}",
        "--ioengine=psync",
        "--end_fsync=1",
    )


def _measure(spec: FioSpec, run: Run, rank: Rank) -> tuple[str, ...]:
    argv = [
        *_common(spec, run, rank),
        f"--ioengine={spec.ioengine}",
        "--time_based",
        f"--runtime={spec.measured_ns // 10**6}ms",
        f"--ramp_time={spec.ramp // 10**6}ms",
        # Without it all workers and all repetitions access the same random positions.
        "--randrepeat=0",
        "--lat_percentiles=1",
        "--clat_percentiles=0",
        "--write_bw_log=fio",
        "--log_avg_msec=1000",
    ]
    if run.is_mixed:
        argv.append(f"--rwmixread={run.rwmixread}")
    if run.rw.startswith("rand"):
        argv.append(f"--percentage_random={spec.percentage_random}")
    if spec.thread:
        argv.append("--thread")
    return tuple(argv)


def _common(spec: FioSpec, run: Run, rank: Rank) -> tuple[str, ...]:
    # Workers may share a volume, so the names of their files contain the rank.
    name, size = f"aiperf-{rank.number}", spec.size
    if spec.suite is not None:
        files = [f"--filename={rank.volume}/{name}"]
        if run.num_jobs > 1:
            # Each job uses a part of the one file. Given the size of the whole, fio would extend
            # the file past its end.
            size = size // run.num_jobs // run.bs * run.bs
            files.append(f"--offset_increment={size}")
    else:
        files = [
            f"--directory={rank.volume}",
            f"--filename_format={name}.$jobnum.$filenum",
            f"--nrfiles={spec.nrfiles}",
        ]
    return (
        "fio",
        f"--name={run.name.replace(' ', '-')}",
        "--output-format=json+",
        f"--output={JSON}",
        # Print one line per second to standard output.
        "--eta=always",
        "--eta-interval=1",
        *files,
        f"--size={size}",
        f"--numjobs={run.num_jobs}",
        f"--rw={run.rw}",
        f"--bs={run.bs}",
        f"--iodepth={run.iodepth}",
        f"--direct={int(spec.direct)}",
    )
