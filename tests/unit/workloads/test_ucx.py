"""The kind `ucx`: the commands of its steps, and the output of ucx_perftest."""

from typing import Any

import msgspec
import pytest

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.workloads.steps import Output, Reading, UnreadableOutput
from aiperf_svc.workloads.ucx import WORKLOAD
from tests.support.tool_runs import make_ranks, recorded, tool_config


def read(config: WorkloadConfig[Any], client: bytes, server: bytes) -> Reading:
    outputs = [
        Output(rank=0, exit_code=0, stdout=client),
        Output(rank=1, exit_code=0, stdout=server, is_server=True),
    ]
    return WORKLOAD.read(config, WORKLOAD.steps(config, make_ranks(2))[0], outputs)


def reading(test: str) -> Reading:
    ends = [recorded(f"ucx/ucx-1.13.1-{test}-{end}.txt") for end in ("client", "server")]
    return read(tool_config("ucx", test=test, warmup=10), *ends)


def test_both_ends_use_same_sizes_and_interface() -> None:
    parsed = tool_config("ucx", test="put_lat", max_size="64Ki", iterations=50, warmup=5, port=4000)
    both = [msgspec.structs.replace(rank, interface="net1") for rank in make_ranks(2)]
    (step,) = WORKLOAD.steps(parsed, both)
    tail = "-p 4000 -t ucp_put_lat -b batch -f -v"
    assert " ".join(step.servers[0].argv) == f"ucx_perftest {tail}"
    assert " ".join(step.commands[0].argv) == f"ucx_perftest 10.0.0.1 {tail}"
    assert step.servers[0].listens_on == 4000
    assert step.commands[0].env == {
        "UCX_TLS": "tcp",
        "UCX_LOG_LEVEL": "info",
        "UCX_NET_DEVICES": "net1",
    }
    lines = WORKLOAD.files(parsed)["batch"].decode().splitlines()
    assert lines[0] == "1 -s 1 -n 50 -w 5"
    assert lines[-1] == "65536 -s 65536 -n 50 -w 5"


def test_latency_is_the_median_at_one_byte() -> None:
    result = reading("tag_lat")
    assert result.values == {"latency": 5.664, "latency_avg": 243.116}
    assert result.tables[0].rows[5] == (1024, 5.504, 41.721, 1024 * 23969 * 8, 23969)
    assert result.tools == {0: "UCX 1.13.1", 1: "UCX 1.13.1"}
    assert result.facts == {"transports": "tag(tcp/lo)"}


def test_message_rate_time_is_not_latency() -> None:
    """The median for 1 MiB is below a microsecond, because it only includes the submission."""
    for test, time in (("tag_lat", "latency"), ("tag_bw", "overhead")):
        (table,) = reading(test).tables
        assert [column.name for column in table.columns][1:3] == [f"{time}_p50", time]
        plot = WORKLOAD.plots(tool_config("ucx", test=test))[1]
        assert plot.title == f"{time.capitalize()} by message size"
        assert {plot.x, *plot.y} <= {column.name for column in table.columns}


def test_small_message_bandwidth_is_not_rounded() -> None:
    texts = [recorded(f"ucx/ucx-1.13.1-tag_lat-{end}.txt") for end in ("client", "server")]
    lines = texts[0].decode().splitlines()
    (place,) = [n for n, line in enumerate(lines) if line.startswith("16,1000,")]
    lines[place] = "16,1000,11.8,1056.0,1056.0,0.01,0.01,947,947"
    slow = "\n".join(lines).encode()
    table = read(tool_config("ucx", test="tag_lat", warmup=10), slow, texts[1]).tables[0]
    assert table.rows[2][3] == 16 * 947 * 8


def test_bandwidth_is_largest_over_sizes_in_bits() -> None:
    values = reading("tag_bw").values
    assert values == {"bandwidth": 1024 * 996035 * 8, "message_rate": 1179501}


def test_no_bytes_are_claimed_from_iterations() -> None:
    assert reading("tag_bw").claimed_bytes == {}


@pytest.mark.parametrize("test", ["tag_lat", "tag_bw"])
def test_reading_has_exactly_the_announced_metrics(test: str) -> None:
    announced = [info.tag for info in WORKLOAD.metrics_of(tool_config("ucx", test=test))]
    assert list(reading(test).values) == announced


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"batch,", b"", "expected the line 'batch,iterations"),
        (b"\n1024,1000", b"\n1024,999", "expected 1000 iterations of 1024 bytes"),
        (b"5.504", b"nan", "expected numbers"),
        (b"5.504,", b"", "expected numbers"),
        (b"Version", b"", "expected a line 'UCX INFO Version"),
    ],
)
def test_output_that_differs_is_unreadable(old: bytes, new: bytes, message: str) -> None:
    client = recorded("ucx/ucx-1.13.1-tag_lat-client.txt").replace(old, new)
    server = recorded("ucx/ucx-1.13.1-tag_lat-server.txt")
    with pytest.raises(UnreadableOutput, match=message):
        read(tool_config("ucx", test="tag_lat", warmup=10), client, server)


def test_a_test_that_stopped_early_is_unreadable() -> None:
    client = recorded("ucx/ucx-1.13.1-tag_lat-client.txt").partition(b"\n4194304,")[0]
    server = recorded("ucx/ucx-1.13.1-tag_lat-server.txt")
    with pytest.raises(UnreadableOutput, match="11 message sizes; expected 12"):
        read(tool_config("ucx", test="tag_lat", warmup=10), client, server)
