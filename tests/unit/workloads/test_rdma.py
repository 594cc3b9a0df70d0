"""The kinds `rdma-bandwidth` and `rdma-latency`: the commands of their steps, and perftest's
tables.

No test machine has an RDMA device. The samples are not recorded: their tables follow the format
strings of perftest 4.5, and their numbers are invented.
"""

from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.workloads.registry import tool
from aiperf_svc.workloads.steps import Output, Reading, UnreadableOutput
from tests.support.tool_runs import make_ranks, tool_config

SAMPLES = Path(__file__).parent / "samples"
DEVICE = {"devices": {"rdma/hca_shared_devices_a": 1}}
KINDS = ("rdma-bandwidth", "rdma-latency")


def sample(kind: str) -> str:
    return (SAMPLES / f"perftest-4.5-{kind}.txt").read_text()


def read(kind: str, text: str) -> Reading:
    config = tool_config(kind, on=DEVICE)
    step = tool(kind).steps(config, make_ranks(2))[0]
    outputs = [
        Output(rank=0, exit_code=0, stdout=text.encode()),
        Output(rank=1, exit_code=0, stdout=b"", is_server=True),
    ]
    return tool(kind).read(config, step, outputs)


@pytest.mark.parametrize(
    ("kind", "spec", "expected"),
    [
        ("rdma-bandwidth", {"qps": 4}, "ib_write_bw -a -F -R -p 18515 -n 1000 --report_gbits -q 4"),
        ("rdma-latency", {"mode": "read"}, "ib_read_lat -a -F -R -p 18515 -n 1000"),
        (
            "rdma-latency",
            {"iterations": 5, "port": 2000, "extra_args": ["--tclass=106"]},
            "ib_write_lat -a -F -R -p 2000 -n 5 --tclass=106",
        ),
    ],
)
def test_every_key_of_the_spec_reaches_perftest(
    kind: str, spec: dict[str, Any], expected: str
) -> None:
    parsed = tool_config(kind, on=DEVICE, **spec)
    (step,) = tool(kind).steps(parsed, make_ranks(2))
    assert " ".join(step.servers[0].argv) == expected
    assert " ".join(step.commands[0].argv) == f"{expected} 10.0.0.1"
    assert (step.commands[0].rank, step.servers[0].rank) == (0, 1)
    assert [tool.name for tool in tool(kind).tools_of(parsed)] == [expected.split()[0]]


def test_read_bandwidth_is_of_the_first_ranks_data() -> None:
    parsed = tool_config("rdma-bandwidth", mode="read", on=DEVICE)
    (step,) = tool("rdma-bandwidth").steps(parsed, make_ranks(2))
    assert step.name == "node-0 to node-1"
    assert (step.commands[0].rank, step.servers[0].rank) == (1, 0)


@pytest.mark.parametrize(
    ("size", "printed", "rate", "expected"),
    [
        (2, 0.07, 4.6, 4.6e6 * 16),
        (16, 0.59, 4.6, 4.6e6 * 128),
        (2, 0.15, 4.6, 0.15e9),  # as printed, although the rate implies another
        (8_388_608, 96.57, 0.001439, 96.57e9),
    ],
)
def test_small_message_bandwidth_follows_from_the_rate(
    size: int, printed: float, rate: float, expected: float
) -> None:
    head = next(line for line in sample("rdma-bandwidth").splitlines() if "#bytes" in line)
    reading = read("rdma-bandwidth", f"{head}\n {size} 5000 0.00 {printed} {rate}\n")
    (table,) = reading.tables
    assert table.rows[0][2] == reading.values["bandwidth"] == pytest.approx(expected)


def test_bandwidth_is_the_largest_average_in_bits() -> None:
    reading = read("rdma-bandwidth", sample("rdma-bandwidth"))
    assert reading.values["bandwidth"] == pytest.approx(96.57e9)
    assert reading.values["bandwidth_peak"] == pytest.approx(96.86e9)
    assert reading.values["message_rate"] == pytest.approx(4.6e6)
    sizes = [row[0] for row in reading.tables[0].rows]
    assert sizes == [2**n for n in range(1, 24)]


def test_latency_is_typical_for_smallest_message() -> None:
    reading = read("rdma-latency", sample("rdma-latency"))
    assert reading.values == {
        "latency": 0.98,
        "latency_avg": 1.0,
        "latency_min": 0.95,
        "latency_max": 2.88,
        "latency_p99": 1.2,
        "latency_p999": 2.08,
    }
    assert len(reading.tables[0].rows) == 23


@pytest.mark.parametrize("kind", KINDS)
def test_reading_has_exactly_the_metrics_of_its_kind(kind: str) -> None:
    assert set(read(kind, sample(kind)).values) == {info.tag for info in tool(kind).metrics}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("#bytes", "", "expected a line '#bytes #iterations"),
        (" 64  ", " 64 x", "numbers: #bytes"),
        ("1000 ", "", "numbers: #bytes"),
        ("1000 ", "nan ", "numbers: #bytes"),
    ],
)
def test_output_that_differs_is_unreadable(kind: str, old: str, new: str, message: str) -> None:
    with pytest.raises(UnreadableOutput, match=message):
        read(kind, sample(kind).replace(old, new))


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_without_rows_is_unreadable(kind: str) -> None:
    with pytest.raises(UnreadableOutput, match="expected rows below"):
        read(kind, sample(kind).partition("\n 2  ")[0] + "\nCouldn't post send\n")
