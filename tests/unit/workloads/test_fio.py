"""The kind `fio`: the commands of its runs, and merged histograms of several jobs and workers."""

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from aiperf_svc.workloads.fio import WORKLOAD
from aiperf_svc.workloads.fio.output import added, percentile_ns
from aiperf_svc.workloads.steps import Output, Reading, UnreadableOutput
from tests.support.tool_runs import make_ranks, recorded, tool_config

LOG = b"1000, 96660, 0, 0, 0\n1000, 32004, 1, 0, 0\n1999, 105989, 0, 0, 0\n1999, 35755, 1, 0, 0\n"
RANDRW = {"rw": "randrw", "num_jobs": 2, "ramp": "1s"}
BIN_WIDTH = 1 / 64
"""Width of a bin of fio's histogram relative to its value."""


def output_of(text: bytes, *logs: bytes) -> Output:
    files = {f"fio_bw.{n}.log": log for n, log in enumerate(logs or (LOG,), 1)}
    return Output(rank=0, exit_code=0, files={"fio.json": text, **files})


def recorded_document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(recorded("fio/fio-3.33-randrw.json"))
    return document


def reading_of(output: bytes | dict[str, Any], *logs: bytes) -> Reading:
    """Return the reading of a run with RANDRW."""
    text = output if isinstance(output, bytes) else json.dumps(output).encode()
    config = tool_config("fio", **RANDRW)
    step = WORKLOAD.steps(config, make_ranks(1))[-1]
    return WORKLOAD.read(config, step, [output_of(text, *logs)])


def test_files_are_written_before_the_measured_run() -> None:
    spec = {"rw": "randrw", "bs": "4Ki", "iodepth": 8, "size": "1Gi", "runtime": "10s"}
    more = {"num_jobs": 2, "nrfiles": 3, "rwmixread": 70, "percentage_random": 80, "thread": True}
    parsed = tool_config("fio", **spec, **more, direct=False, workers=2, ioengine="io_uring")
    writing, measured = WORKLOAD.steps(parsed, make_ranks(2))
    common = "--output-format=json+ --output=fio.json --eta=always --eta-interval=1"
    files = (
        "--directory=/volume --filename_format=aiperf-1.$jobnum.$filenum --nrfiles=3 "
        "--size=1073741824 --numjobs=2"
    )
    assert not writing.is_measured
    assert " ".join(writing.commands[1].argv) == (
        f"fio --name=write-files {common} {files} "
        "--rw=write --bs=1048576 --iodepth=1 --direct=0 --bsrange=4096-1048576 --ioengine=psync "
        "--end_fsync=1"
    )
    assert measured.name == "randrw"
    assert " ".join(measured.commands[1].argv) == (
        f"fio --name=randrw {common} {files} "
        "--rw=randrw --bs=4096 --iodepth=8 --direct=0 --ioengine=io_uring --time_based "
        "--runtime=10000ms --ramp_time=2000ms --randrepeat=0 --lat_percentiles=1 "
        "--clat_percentiles=0 --write_bw_log=fio --log_avg_msec=1000 --rwmixread=70 "
        "--percentage_random=80 --thread"
    )
    assert [each.rank for each in measured.commands] == [0, 1]
    assert measured.commands[0].keeps == ("fio.json", "fio_bw.*.log")
    assert measured.expected_ns == 12 * 10**9


def test_suite_measures_one_file_for_15_seconds_each() -> None:
    steps = WORKLOAD.steps(tool_config("fio", suite="volume"), make_ranks(1))
    shown = []
    for step in steps:
        options = dict(word.partition("=")[::2] for word in step.commands[0].argv)
        assert options["--filename"] == "/volume/aiperf-0"
        keys = ("--rw", "--bs", "--iodepth", "--numjobs")
        shown.append((step.name, *(options[key] for key in keys)))
        if step.is_measured:
            assert (options["--runtime"], options["--ramp_time"]) == ("15000ms", "2000ms")
    assert shown == [
        ("write files", "write", "1048576", "1", "1"),
        ("random read", "randread", "4096", "64", "1"),
        ("random write", "randwrite", "4096", "64", "1"),
        ("sequential read", "read", "131072", "64", "1"),
        ("sequential write", "write", "131072", "64", "1"),
        ("short queue read", "randread", "4096", "4", "1"),
        ("short queue write", "randwrite", "4096", "4", "1"),
        ("parallel read", "read", "1048576", "16", "4"),
        ("mixed", "randrw", "4096", "64", "1"),
    ]
    quarter = {"--offset_increment=2684354560", "--size=2684354560"}
    assert quarter <= set(steps[-2].commands[0].argv), "beyond the end fio would add to the file"
    assert "--size=10737418240" in steps[-1].commands[0].argv
    assert "--rwmixread=75" in steps[-1].commands[0].argv


def test_jobs_are_summed_with_latency_per_direction() -> None:
    document = recorded_document()
    jobs, reading = document["jobs"], reading_of(document)
    for way in ("read", "write"):
        assert reading.values[f"{way}_iops"] == sum(job[way]["iops"] for job in jobs)
        assert reading.values[f"{way}_bandwidth"] == sum(job[way]["bw_bytes"] for job in jobs)
        low, high = sorted(job[way]["lat_ns"]["mean"] / 1000 for job in jobs)
        assert low <= reading.values[f"{way}_latency"] <= high
        low, high = sorted(job[way]["lat_ns"]["percentile"]["99.000000"] / 1000 for job in jobs)
        assert low <= reading.values[f"{way}_latency_p99"] <= high
    assert reading.values["iops"] == pytest.approx(
        reading.values["read_iops"] + reading.values["write_iops"]
    )
    assert reading.tools == {0: "fio-3.33"}


def test_latency_has_the_time_of_the_submission() -> None:
    """A buffered read through libaio is complete when its submission returns: fio's clat is a few
    microseconds, whatever time the disk took."""
    document = recorded_document()
    reading = reading_of(document)
    for way in ("read", "write"):
        total = sum(
            job[way][part]["mean"] * job[way]["lat_ns"]["N"] / 1000
            for job in document["jobs"]
            for part in ("slat_ns", "clat_ns")
        )
        count = sum(job[way]["lat_ns"]["N"] for job in document["jobs"])
        assert reading.values[f"{way}_latency"] == pytest.approx(total / count, rel=1e-3)


def test_job_without_reads_counts_with_the_others() -> None:
    document = recorded_document()
    no_reads(document, jobs=1)
    reading = reading_of(document)
    expected = document["jobs"][1]["read"]["lat_ns"]["mean"] / 1000
    assert reading.values["read_latency"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("spec", "smallest"),
    [
        ({}, 2**20),
        ({"suite": "volume"}, 4096),
        ({"bs": "1536Ki", "nrfiles": 3}, 512 * 1024),
        ({"bs": 1000, "direct": False}, 8),
    ],
)
def test_file_of_odd_size_is_written_completely(spec: dict[str, Any], smallest: int) -> None:
    writing = WORKLOAD.steps(tool_config("fio", **spec), make_ranks(1))[0]
    assert f"--bsrange={smallest}-1048576" in writing.commands[0].argv


def test_run_through_the_page_cache_is_noted() -> None:
    assert WORKLOAD.checks(tool_config("fio"), ()) == ()
    (reason,) = WORKLOAD.checks(tool_config("fio", direct=False), ())
    assert (reason.check, reason.severity) == ("page-cache", "info")


def test_percentiles_are_of_all_workers_samples() -> None:
    documents = [json.loads(recorded(f"fio/fio-3.33-worker{n}.json")) for n in (0, 1)]
    bins = added(
        {int(ns): n for ns, n in document["jobs"][0]["read"]["lat_ns"]["bins"].items()}
        for document in documents
    )
    samples = sorted(
        int(line) for n in (0, 1) for line in recorded(f"fio/fio-3.33-worker{n}-lat-ns.txt").split()
    )
    assert sum(bins.values()) == len(samples) == 2000
    for percent in (1.0, 25.0, 50.0, 75.0, 90.0, 99.0, 99.9, 100.0):
        pooled = samples[math.ceil(percent / 100 * len(samples)) - 1]
        assert percentile_ns(bins, percent) == pytest.approx(pooled, rel=BIN_WIDTH)


def test_percentiles_of_one_job_equal_fio_output() -> None:
    for n in (0, 1):
        latency = json.loads(recorded(f"fio/fio-3.33-worker{n}.json"))["jobs"][0]["read"]["lat_ns"]
        bins = added(iter([{int(ns): count for ns, count in latency["bins"].items()}]))
        for percent, ns in latency["percentile"].items():
            assert percentile_ns(bins, float(percent)) == ns


def test_series_add_jobs_and_start_after_the_ramp() -> None:
    reads, writes = reading_of(recorded_document(), LOG, LOG).series
    assert reads.times_s == (1.5, 2.5)
    assert reads.values == (2 * 96660 * 1024, 2 * 105989 * 1024)
    assert (reads.label, writes.label) == ("reads of rank 0", "writes of rank 0")


@pytest.mark.parametrize(
    "spec", [RANDRW, {"suite": "volume", "ramp": "1s"}], ids=["one run", "suite"]
)
def test_reading_has_exactly_the_announced_metrics(spec: dict[str, Any]) -> None:
    parsed = tool_config("fio", **spec)
    announced = [info.tag for info in WORKLOAD.metrics_of(parsed)]
    assert len(set(announced)) == len(announced)
    assert set(announced) <= {info.tag for info in WORKLOAD.metrics}
    document = recorded_document()
    read_tags = set()
    for step in WORKLOAD.steps(parsed, make_ranks(1)):
        if step.is_measured:
            jobs = 4 if step.name == "parallel read" else 2 if step.name == "randrw" else 1
            text = json.dumps(document | {"jobs": (document["jobs"] * 2)[:jobs]}).encode()
            read_tags |= set(WORKLOAD.read(parsed, step, [output_of(text)]).values)
    assert read_tags == set(announced)


def test_warnings_before_the_json_are_skipped() -> None:
    text = b"\nfio: this platform does not support x {\n" + recorded("fio/fio-3.33-randrw.json")
    assert reading_of(text).values["iops"] > 0


def test_failed_job_with_exit_code_0_is_error() -> None:
    document = recorded_document()
    document["jobs"][1]["error"] = 28
    reading = reading_of(document)
    assert reading.errors == ("fio on rank 0: job randrw: error ENOSPC",)
    assert reading.values == {}


def no_reads(document: dict[str, Any], *, jobs: int = 2) -> None:
    for job in document["jobs"][:jobs]:
        job["read"]["lat_ns"] = {"min": 0, "max": 0, "mean": 0, "stddev": 0, "N": 0}


def lost_bin(document: dict[str, Any]) -> None:
    bins = document["jobs"][0]["write"]["lat_ns"]["bins"]
    bins.pop(next(iter(bins)))


def lost_job(document: dict[str, Any]) -> None:
    document["jobs"].pop()


def no_rate(document: dict[str, Any]) -> None:
    del document["jobs"][0]["read"]["iops"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_reads, "fio completed no reads"),
        (lost_bin, "write.lat_ns.bins has"),
        (lost_job, "fio reports 1 jobs; expected 2"),
        (no_rate, "no field 'iops'"),
    ],
)
def test_output_that_does_not_add_up_is_unreadable(
    damage: Callable[[dict[str, Any]], None], message: str
) -> None:
    document = recorded_document()
    damage(document)
    with pytest.raises(UnreadableOutput, match=message):
        reading_of(document)


@pytest.mark.parametrize(
    ("log", "message"),
    [
        (b"garbage\n", "'garbage'; expected 'ms, KiB/s"),
        (b"1000, 5, 2, 0\n", "expected direction 0 or 1"),
    ],
)
def test_garbage_in_a_log_is_unreadable(log: bytes, message: str) -> None:
    with pytest.raises(UnreadableOutput, match=message):
        reading_of(recorded_document(), log)


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"kind": "claim", "size": "16Gi"}, None),
        ({"kind": "claim", "size": "8Gi"}, "a worker keeps 10Gi of files on a volume of 8Gi"),
        ({"kind": "shared-claim", "size": "16Gi"}, "all workers together keep 20Gi"),
        ({"kind": "host-path", "path": "/data"}, None),
    ],
)
def test_files_larger_than_the_volume_are_refused(
    volume: dict[str, Any], message: str | None
) -> None:
    problems = WORKLOAD.problems(tool_config("fio", workers=2, on={"volume": volume}))
    if message is None:
        assert problems == []
    else:
        (problem,) = problems
        assert problem.startswith("workload.size: ")
        assert message in problem
