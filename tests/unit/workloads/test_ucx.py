"""The kind `ucx`: the commands of its steps, and what ucx_perftest prints."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.workloads.steps import Output, Rank, Reading, UnreadableOutput
from aiperf_svc.workloads.ucx import WORKLOAD

Configure = Callable[..., WorkloadConfig[Any]]
Ranks = Callable[[int], tuple[Rank, ...]]
Recorded = Callable[[str], bytes]


def read(config: WorkloadConfig[Any], client: bytes, server: bytes, ranks: Ranks) -> Reading:
    outputs = [
        Output(rank=0, exit_code=0, stdout=client),
        Output(rank=1, exit_code=0, stdout=server, is_server=True),
    ]
    return WORKLOAD.read(config, WORKLOAD.steps(config, ranks(2))[0], outputs)


@pytest.fixture
def reading(config: Configure, ranks: Ranks, recorded: Recorded) -> Callable[[str], Reading]:
    def read_test(test: str) -> Reading:
        client, server = (
            recorded(f"ucx/ucx-1.13.1-{test}-{end}.txt") for end in ("client", "server")
        )
        return read(config("ucx", test=test, warmup=10), client, server, ranks)

    return read_test


def test_both_ends_use_same_sizes_and_interface(config: Configure, ranks: Ranks) -> None:
    parsed = config("ucx", test="put_lat", max_size="64Ki", iterations=50, warmup=5, port=4000)
    both = [msgspec.structs.replace(rank, interface="net1") for rank in ranks(2)]
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


@pytest.mark.parametrize(("test", "steps"), [("tag_bw", 6), ("tag_lat", 3)])
def test_bandwidth_is_measured_in_both_directions_of_all_pairs(
    config: Configure, ranks: Ranks, test: str, steps: int
) -> None:
    parsed = config("ucx", test=test, on={"pairs": "all", "count": 3})
    assert len(WORKLOAD.steps(parsed, ranks(3))) == steps


def test_latency_is_the_median_at_one_byte(reading: Callable[[str], Reading]) -> None:
    result = reading("tag_lat")
    assert result.values == {"latency": 5.664, "latency_avg": 243.116}
    assert result.tables[0].rows[5] == (1024, 5.504, 41.721, 1024 * 23969 * 8, 23969)
    assert result.tools == {0: "UCX 1.13.1", 1: "UCX 1.13.1"}
    assert result.facts == {"transports": "tag(tcp/lo)"}


def test_time_among_many_messages_is_no_latency(
    reading: Callable[[str], Reading], config: Configure
) -> None:
    """The median of a MiB is below a microsecond: so long its submission took."""
    for test, time in (("tag_lat", "latency"), ("tag_bw", "overhead")):
        (table,) = reading(test).tables
        assert [column.name for column in table.columns][1:3] == [f"{time}_p50", time]
        plot = WORKLOAD.plots(config("ucx", test=test))[1]
        assert plot.title == f"{time.capitalize()} by message size"
        assert {plot.x, *plot.y} <= {column.name for column in table.columns}


def test_small_message_bandwidth_is_not_rounded(
    config: Configure, ranks: Ranks, recorded: Recorded
) -> None:
    texts = [recorded(f"ucx/ucx-1.13.1-tag_lat-{end}.txt") for end in ("client", "server")]
    lines = texts[0].decode().splitlines()
    (place,) = [n for n, line in enumerate(lines) if line.startswith("16,1000,")]
    lines[place] = "16,1000,11.8,1056.0,1056.0,0.01,0.01,947,947"
    slow = "\n".join(lines).encode()
    table = read(config("ucx", test="tag_lat", warmup=10), slow, texts[1], ranks).tables[0]
    assert table.rows[2][3] == 16 * 947 * 8


def test_bandwidth_is_the_largest_of_all_sizes_in_bits(reading: Callable[[str], Reading]) -> None:
    values = reading("tag_bw").values
    assert values == {"bandwidth": 1024 * 996035 * 8, "message_rate": 1179501}


def test_no_bytes_are_claimed_from_iterations(reading: Callable[[str], Reading]) -> None:
    assert reading("tag_bw").claimed_bytes == {}


@pytest.mark.parametrize("test", ["tag_lat", "tag_bw"])
def test_reading_has_exactly_the_announced_metrics(
    reading: Callable[[str], Reading], config: Configure, test: str
) -> None:
    announced = [info.tag for info in WORKLOAD.metrics_of(config("ucx", test=test))]
    assert list(reading(test).values) == announced


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b"batch,", b"", "expected the line 'batch,iterations"),
        (b"\n1024,1000", b"\n1024,999", "expected 1000 iterations of 1024 bytes"),
        (b"5.504", b"nan", "expected numbers"),
        (b"5.504,", b"", "expected numbers"),
        (b"Version", b"", "expected a line 'UCX INFO Version"),
    ],
)
def test_output_that_differs_is_unreadable(
    config: Configure, ranks: Ranks, recorded: Recorded, old: bytes, new: bytes, said: str
) -> None:
    client = recorded("ucx/ucx-1.13.1-tag_lat-client.txt").replace(old, new)
    server = recorded("ucx/ucx-1.13.1-tag_lat-server.txt")
    with pytest.raises(UnreadableOutput, match=said):
        read(config("ucx", test="tag_lat", warmup=10), client, server, ranks)


def test_a_test_that_stopped_early_is_unreadable(
    config: Configure, ranks: Ranks, recorded: Recorded
) -> None:
    client = recorded("ucx/ucx-1.13.1-tag_lat-client.txt").partition(b"\n4194304,")[0]
    server = recorded("ucx/ucx-1.13.1-tag_lat-server.txt")
    with pytest.raises(UnreadableOutput, match="11 message sizes; expected 12"):
        read(config("ucx", test="tag_lat", warmup=10), client, server, ranks)


def test_transports_of_rdma_need_a_device(config: Configure) -> None:
    spec = {"transports": ["rc_x", "tcp"]}
    (problem,) = WORKLOAD.problems(config("ucx", **spec))
    assert problem.startswith("workload.transports: rc_x: needs an RDMA device")
    with_device = config("ucx", **spec, on={"devices": {"rdma/hca": 1}})
    assert WORKLOAD.problems(with_device) == []
    assert WORKLOAD.needs_privilege(with_device) == ("IPC_LOCK",)
    assert WORKLOAD.problems(config("ucx")) == []


@pytest.mark.parametrize(
    "spec", [{"test": "tag_bww"}, {"transports": []}, {"transports": ["tcp", "tcp"]}]
)
def test_what_ucx_lacks_is_refused(config: Configure, spec: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="workload"):
        config("ucx", **spec)


def test_a_row_is_progress(config: Configure) -> None:
    row = "1024,1000,5.504,41.721,41.721,23.41,23.41,23969,23969"
    latency, bandwidth = config("ucx", test="tag_lat"), config("ucx", test="tag_bw")
    assert WORKLOAD.progress(latency, row) == "1024 bytes: 5.504 us"
    assert WORKLOAD.progress(bandwidth, row) == "1024 bytes: 0.1964 Gbit/s"
    assert WORKLOAD.progress(latency, "[1,2] UCX  INFO  ep_cfg[1]: tag(tcp/lo)") == ""
