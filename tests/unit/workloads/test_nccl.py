"""The kind `nccl`. No test machine has GPUs, so the sample has the documented format of nccl-tests
with invented numbers."""

from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.cli.checks import local_problems
from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.workloads.nccl import WORKLOAD
from aiperf_svc.workloads.steps import Output, Reading, UnreadableOutput
from tests.support.tool_runs import make_ranks, tool_config

SAMPLE = (Path(__file__).parent / "samples" / "nccl-tests-2.18.3-all-reduce.txt").read_text()
SAMPLE_SPEC: dict[str, Any] = {"min_bytes": "1Mi", "max_bytes": "64Mi"}
GPU = {"nvidia.com/gpu": 1}


def config_of(devices: dict[str, int] = GPU, **spec: Any) -> WorkloadConfig[Any]:
    return tool_config("nccl", on={"devices": devices}, **SAMPLE_SPEC | spec)


def reading_of(text: str, **spec: Any) -> Reading:
    config = config_of(**spec)
    step = WORKLOAD.steps(config, make_ranks())[0]
    return WORKLOAD.read(config, step, [Output(rank=0, exit_code=0, stdout=text.encode())])


def changed(old: str, new: str) -> str:
    assert SAMPLE.count(old) == 1
    return SAMPLE.replace(old, new)


def test_headline_is_the_tools_average() -> None:
    reading = reading_of(SAMPLE)
    assert reading.values == {
        "bus_bandwidth": pytest.approx(20.1671e9),
        "bus_bandwidth_peak": pytest.approx(24.14e9),
        "latency": 83.7,
    }
    assert reading.tool == "nccl-tests 2.18.3, NCCL 2.28.9+cuda13.0"
    assert reading.errors == ()


def test_latency_is_of_a_nonempty_size() -> None:
    """all_gather divides sizes by 16 bytes per GPU, so the smallest sizes move no data."""
    empty = SAMPLE.replace("1048576        262144", "      0             0").replace("83.7", "0.17")
    assert reading_of(empty).values["latency"] == 127.4
    lines = [line for line in empty.splitlines() if not line.strip()[:1].isdigit()]
    head = next(n for n, line in enumerate(lines) if "#        (B)" in line)
    lines.insert(head + 1, next(line for line in empty.splitlines() if "0.17" in line))
    with pytest.raises(UnreadableOutput, match="every row has the size 0"):
        reading_of("\n".join(lines), min_bytes=8, max_bytes=8)


def test_the_table_has_both_halves_of_each_size() -> None:
    (table,) = reading_of(SAMPLE).tables
    assert [row[0] for row in table.rows] == [2**power for power in range(20, 27)]
    last = (67108864, 2836.2, 23.66e9, 23.66e9, 2779.5, 24.14e9, 24.14e9)
    assert table.rows[-1] == pytest.approx(last)
    assert all(len(row) == len(table.columns) for row in table.rows)


def test_the_average_agrees_with_the_rows() -> None:
    reading = reading_of(SAMPLE)
    halves = [row[column] or 0.0 for row in reading.tables[0].rows for column in (3, 6)]
    assert reading.values["bus_bandwidth"] == pytest.approx(sum(halves) / 14, rel=1e-4)


def test_output_without_a_version_is_read() -> None:
    text = "\n".join(
        line
        for line in SAMPLE.splitlines()
        if "version" not in line and not line.startswith("# Collective")
    )
    assert reading_of(text).tool == "nccl-tests"


def test_wrong_values_in_whole_table_are_errors() -> None:
    wrong = changed("  12.53      0 ", "  12.53      3 ")
    assert reading_of(wrong).errors == ("3 wrong values at 1048576 bytes, out of place",)
    many = changed("  12.53      0 ", "  12.53  2e+06 ")
    assert reading_of(many).errors == ("2000000 wrong values at 1048576 bytes, out of place",)
    failed = changed("bounds values : 0 OK", "bounds values : 3 FAILED")
    assert reading_of(failed).errors == ("3 values out of bounds: FAILED",)


def test_unchecked_half_has_no_errors() -> None:
    assert reading_of(changed("  12.78      0\n", "  12.78    N/A\n")).errors == ()


def test_size_reduced_by_memory_is_a_fact() -> None:
    last = SAMPLE[SAMPLE.index("    67108864      16777216") : SAMPLE.index("# Out of bounds")]
    text = changed(last, "").replace("# Using", "# Reducing maxBytes to 40000000 due to\n# Using")
    reading = reading_of(text)
    assert reading.facts["max_bytes"] == "reduced to 40000000 by the GPUs' memory"
    assert len(reading.tables[0].rows) == 6


@pytest.mark.parametrize(
    ("text", "spec", "message"),
    [
        (SAMPLE + SAMPLE, {}, "found 2"),
        (SAMPLE, {"gpus": 2}, "expected lines of 4 devices, found 2"),
        (SAMPLE, {"max_bytes": "128Mi"}, "expected rows of 8 sizes, found 7"),
        (SAMPLE.replace("# Avg bus", "# Bus"), {}, "expected '# Out of bounds values' and"),
        (SAMPLE.replace(": 20.1671", ": -nan"), {}, "'-nan'"),
        (SAMPLE.replace("   83.7 ", "   fast "), {}, "'fast'"),
        (SAMPLE.replace("  12.53      0 ", "  12.53   1e-7 "), {}, "wrong values or N/A"),
        (SAMPLE.replace("float     sum      -1     83.7", "sum 83.7"), {}, "12 other fields"),
    ],
)
def test_output_without_one_whole_table_is_unreadable(
    text: str, spec: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnreadableOutput) as error:
        reading_of(text, **spec)
    assert message in str(error.value)


def test_each_gpu_has_a_process() -> None:
    config = config_of({"nvidia.com/gpu": 8}, gpus=8, operation="alltoall", datatype="half")
    (step,) = WORKLOAD.steps(config, make_ranks(interface="eth0"))
    (command,) = step.commands
    start = command.argv.index("alltoall_perf")
    assert command.argv[start - 4 : start] == ("-H", "10.0.0.0:8,10.0.0.1:8", "-np", "16")
    assert command.argv[start + 1 :] == (
        *("-b", "1048576", "-e", "67108864", "-f", "2", "-g", "1"),
        *("-n", "20", "-w", "5", "-c", "1", "-d", "half"),
    )
    assert step.agent_ranks == (1,)
    assert command.env["NCCL_IB_DISABLE"] == "1"
    assert command.env["NCCL_SOCKET_IFNAME"] == "eth0"
    assert [tool.name for tool in WORKLOAD.tools_of(config)] == ["mpirun", "alltoall_perf"]


@pytest.mark.parametrize(("smallest", "largest", "count"), [(8, 8, 1), (8, 15, 1), (8, 2**30, 28)])
def test_sizes_double_up_to_the_largest(smallest: int, largest: int, count: int) -> None:
    assert config_of(min_bytes=smallest, max_bytes=largest).workload.sizes == count


def test_gpus_and_for_rdma_another_device_are_needed() -> None:
    assert WORKLOAD.device_problems(config_of()) == []
    none = WORKLOAD.device_problems(config_of({}, transport="rdma", gpus=2))
    assert [problem.partition(":")[0] for problem in none] == [
        "workload.gpus",
        "workload.transport",
    ]
    (problem,) = WORKLOAD.device_problems(config_of(transport="rdma"))
    assert problem.startswith("workload.transport: rdma needs a device in addition to GPUs")
    both = config_of({**GPU, "rdma/hca": 1}, transport="rdma")
    assert WORKLOAD.device_problems(both) == []
    assert WORKLOAD.needs_privilege(both) == ("IPC_LOCK",)
    env = WORKLOAD.steps(both, make_ranks())[0].commands[0].env
    assert "NCCL_IB_DISABLE" not in env


def test_missing_tool_is_named_with_its_source() -> None:
    found = local_problems(config_of(), {"PATH": "/nowhere"})
    assert [problem.text for problem in found] == [
        "nccl: needs mpirun, which is not on this machine; install the Debian package openmpi-bin",
        "nccl: needs all_reduce_perf, which is not on this machine; Debian has no package of it: "
        "add its folder to PATH",
    ]
