"""Every kind with a small tool on ranks of this machine: results match the tool's output."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_port
from tests.support.running_command import FINISHED, Command, artifacts
from tests.support.system_tools import SYSTEM_PATH, needs


def measured(folder: Path, kind: str, path: str = SYSTEM_PATH, **keys: Any) -> dict[str, Any]:
    """Return the results of one run that ended by itself and left only its artifacts."""
    (folder / "input.jsonl").write_text(json.dumps({"workload": {"kind": kind, **keys}}))
    command = Command(folder, None, "--config", str(folder / "input.jsonl"), PATH=path)
    printed = command.finish()
    assert command.code in FINISHED, command.errors
    command.assert_nothing_is_left()
    results: dict[str, Any] = printed["results"]
    assert [step["problem"] for step in results["steps"]] == [""] * len(results["steps"])
    # A busy machine may start processes slowly, but the reported values must be true.
    for check in ("exit-codes", "values", "interface-bytes", "rank-lost", "tool-versions"):
        found = [each["severity"] for each in results["checks"] if each["check"] == check]
        assert set(found) <= {"valid", "info"}, check
    return results


def value(results: dict[str, Any], tag: str) -> float:
    """Return the only value of a metric."""
    (metric,) = (each for each in results["metrics"] if each["info"]["tag"] == tag)
    (only,) = metric["values"]
    return float(only["value"])


def outputs(folder: Path, pattern: str, file: str = "stdout") -> list[str]:
    """Return a file of each command by a glob pattern of the folders in `raw/`."""
    return [path.read_text() for path in sorted(artifacts(folder).glob(f"raw/{pattern}/{file}"))]


@pytest.mark.parametrize(
    ("keys", "received"),
    [
        ({"streams": 2, "bitrate": "100M", "omit": "1s"}, "sum_received"),
        ({"reverse": True, "bitrate": "100M", "omit": "0s"}, "sum_received"),
        ({"bidirectional": True, "bitrate": "100M", "omit": "0s"}, "sum_received"),
        ({"protocol": "udp", "bitrate": "50M", "omit": "0s"}, "sum_received"),
    ],
    ids=["tcp", "reverse", "bidirectional", "udp"],
)
def test_iperf_reports_the_receivers_count(
    tmp_path: Path, keys: dict[str, Any], received: str
) -> None:
    needs("iperf3", "iperf3")
    results = measured(tmp_path, "iperf", duration="1s", port=free_port(), **keys)
    # The client is the first command. It receives with `reverse`; otherwise the server receives.
    ends = [json.loads(text)["end"] for text in outputs(tmp_path, "001-*/rank-*/command-*")]
    counted = {end[received]["bits_per_second"] for end in ends if received in end}
    assert value(results, "bandwidth") in counted
    assert ("bandwidth_backward" in results["steps"][0]["values"]) == ("bidirectional" in keys)


def test_fio_adds_its_workers(tmp_path: Path) -> None:
    needs("fio", "fio")
    keys = {"rw": "randrw", "bs": "4Ki", "size": "16Mi", "runtime": "1s", "ramp": "0s"}
    # Some file systems of test machines support neither asynchronous nor direct reads.
    results = measured(tmp_path, "fio", workers=2, ioengine="psync", direct=False, **keys)
    jobs = [
        job
        for text in outputs(tmp_path, "002-randrw/rank-*/command-*", "fio.json")
        for job in json.loads(text)["jobs"]
    ]
    assert len(jobs) == 2
    expected = sum(job[way]["iops"] for job in jobs for way in ("read", "write"))
    assert value(results, "iops") == pytest.approx(expected)


BRIEF = """#!/bin/sh
case $* in *--time_based*) set -- "$@" --runtime=200ms ;; esac
exec {fio} "$@"
"""
"""fio with a runtime that is too short for a measurement but long enough for its output."""


def test_suite_measures_a_volume_by_all_its_runs(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    needs("fio", "fio")
    tools = tmp_path_factory.mktemp("tools")
    (tools / "fio").write_text(BRIEF.format(fio=shutil.which("fio", path=SYSTEM_PATH)))
    (tools / "fio").chmod(0o755)
    keys: dict[str, Any] = {
        "suite": "volume",
        "size": "64Mi",
        "runtime": "1s",
        "ramp": "0s",
        "direct": False,
    }
    path = f"{tools}:{SYSTEM_PATH}"
    results = measured(tmp_path, "fio", path, ioengine="posixaio", **keys)
    assert results["accounts"]["completed"] == 9
    assert {metric["count"] for metric in results["metrics"]} == {1}


@pytest.mark.parametrize(("test", "tag"), [("tag_bw", "bandwidth"), ("tag_lat", "latency")])
def test_ucx_measures_each_message_size(tmp_path: Path, test: str, tag: str) -> None:
    needs("ucx_perftest", "ucx-utils")
    # Both ends poll. Next to other tests, an iteration takes as long as a scheduler time slice.
    keys: dict[str, Any] = {"max_size": "4Ki", "iterations": 10, "warmup": 1, "port": free_port()}
    results = measured(tmp_path, "ucx", test=test, **keys)
    (table,) = results["tables"]
    assert [row[0] for row in table["table"]["rows"]] == [4**power for power in range(7)]
    assert value(results, tag) > 0


def test_mpi_processes_on_two_ranks_need_no_ssh(tmp_path: Path) -> None:
    needs("mpirun", "openmpi-bin")
    program = ["/usr/bin/python3", "-c", "import mpi4py"]
    if subprocess.run(program, capture_output=True).returncode:
        pytest.skip("mpi4py is not installed; it is in the Debian package python3-mpi4py")
    results = measured(tmp_path, "mpi-pingpong", maxlog=8, iterations=50)
    rows = [
        line.split() for text in outputs(tmp_path, "001-*/rank-0/*") for line in text.splitlines()
    ]
    (time_us,) = (float(row[2]) for row in rows if row[:1] == ["0"])
    assert value(results, "latency") == time_us
