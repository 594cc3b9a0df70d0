"""The kind `iperf`: the commands of its steps, and the JSON of iperf3 from both ends."""

import json
from typing import Any

import pytest

from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.workloads.iperf import WORKLOAD
from aiperf_svc.workloads.steps import ClaimedBytes, Output, Reading, UnreadableOutput
from tests.support.tool_runs import make_ranks, recorded, tool_config


def outputs_of(clients: list[bytes], servers: list[bytes], *, client: int = 0) -> list[Output]:
    return [
        *(Output(rank=client, exit_code=0, stdout=text) for text in clients),
        *(Output(rank=1 - client, exit_code=0, stdout=text, is_server=True) for text in servers),
    ]


def reading(*names: str, **spec: Any) -> Reading:
    config = tool_config("iperf", **spec)
    step = WORKLOAD.steps(config, make_ranks(2))[0]
    files = [
        [recorded(f"iperf/iperf3-3.12-{name}-{end}.json") for name in names]
        for end in ("client", "server")
    ]
    return WORKLOAD.read(config, step, outputs_of(*files, client=step.commands[0].rank))


def document(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(recorded(f"iperf/iperf3-3.12-{name}.json"))
    return loaded


def rtts_of(sender: dict[str, Any], *, omitted: bool = False) -> list[float]:
    return [
        stream["rtt"]
        for interval in sender["intervals"]
        for stream in interval["streams"]
        if stream["sender"] and stream["omitted"] is omitted
    ]


def test_every_key_of_the_spec_reaches_iperf3() -> None:
    spec = {"streams": 4, "duration": "10s", "omit": "1s", "bitrate": "2G", "window": "1Mi"}
    parsed = tool_config("iperf", **spec, mss=1400, bidirectional=True, port=6000, processes=2)
    (step,) = WORKLOAD.steps(parsed, make_ranks(2))
    assert [(each.rank, each.argv, each.listens_on) for each in step.servers] == [
        (1, ("iperf3", "-s", "-1", "-J", "-i", "1", "-p", "6000"), 6000),
        (1, ("iperf3", "-s", "-1", "-J", "-i", "1", "-p", "6001"), 6001),
    ]
    head = "iperf3 -c 10.0.0.1 -p {} -J -i 1 --connect-timeout 5000 -t 10 -O 1 -P 4"
    tail = "-b 2000000000 --bidir -w 1048576 -M 1400"
    assert [(each.rank, " ".join(each.argv)) for each in step.commands] == [
        (0, f"{head.format(6000)} {tail}"),
        (0, f"{head.format(6001)} {tail}"),
    ]
    assert step.expected_ns == 11 * 10**9
    assert step.timeout_ns == 82 * 10**9


def test_reverse_runs_the_server_on_the_sender() -> None:
    (step,) = WORKLOAD.steps(tool_config("iperf", reverse=True), make_ranks(2))
    assert (step.servers[0].rank, step.commands[0].rank) == (0, 1)
    assert step.commands[0].argv[-1] == "-R"
    assert step.commands[0].argv[2] == "10.0.0.0"


def test_server_counts_received_and_client_sent_bytes() -> None:
    read = reading("tcp", streams=2)
    client, server = document("tcp-client")["end"], document("tcp-server")["end"]
    assert read.values["bandwidth"] == server["sum_received"]["bits_per_second"]
    assert read.values["bandwidth_sent"] == client["sum_sent"]["bits_per_second"]
    assert read.values["retransmits"] == client["sum_sent"]["retransmits"] > 0
    assert read.values["pmtu"] == 65535
    assert read.values["cpu_client"] == client["cpu_utilization_percent"]["host_total"] / 100
    assert read.values["cpu_server"] == server["cpu_utilization_percent"]["host_total"] / 100
    assert (read.tool, read.tools) == ("iperf 3.12", {0: "iperf 3.12", 1: "iperf 3.12"})
    assert read.facts["path MTU"] == "65535"


def test_rtt_covers_only_the_measured_time() -> None:
    """While TCP finds its rate, queues are fuller or emptier than ever after. iperf3's own
    mean_rtt, min_rtt and max_rtt include this time."""
    read = reading("tcp", streams=2)
    client = document("tcp-client")
    measured, omitted = rtts_of(client), rtts_of(client, omitted=True)
    assert read.values["rtt"] == pytest.approx(sum(measured) / len(measured))
    assert (read.values["rtt_min"], read.values["rtt_max"]) == (min(measured), max(measured))
    both = measured + omitted
    own = [stream["sender"]["mean_rtt"] for stream in client["end"]["streams"]]
    assert sum(own) / 2 == pytest.approx(sum(both) / len(both), abs=1)
    assert sum(own) / 2 != pytest.approx(read.values["rtt"], rel=0.01)


def test_claimed_bytes_have_those_of_the_omitted_time() -> None:
    read = reading("tcp", streams=2)
    client = document("tcp-client")
    omitted = [i["sum"]["bytes"] for i in client["intervals"] if i["sum"]["omitted"]]
    sent = client["end"]["sum_sent"]["bytes"] + sum(omitted)
    assert omitted[0] > 0
    payload = 65_535 - 52
    assert read.claimed_bytes[0] == ClaimedBytes(sent, 0, payload)
    assert read.claimed_bytes[1].sent == 0
    assert read.claimed_bytes[1].received == pytest.approx(sent, rel=0.001)


def test_series_exclude_omitted_time_and_remainder() -> None:
    series = {each.name: each for each in reading("tcp", streams=2).series}
    assert set(series) == {"bandwidth", "rtt", "retransmits"}
    assert series["bandwidth"].times_s == pytest.approx((1.5, 2.5, 3.5), abs=0.01)
    assert min(series["bandwidth"].values) > 1e9


def test_both_directions_are_reported_separately() -> None:
    read = reading("bidirectional", bidirectional=True)
    client = document("bidirectional-client")["end"]
    server = document("bidirectional-server")["end"]
    assert read.values["bandwidth"] == server["sum_received"]["bits_per_second"]
    assert (
        read.values["bandwidth_backward"] == client["sum_received_bidir_reverse"]["bits_per_second"]
    )
    rtts = rtts_of(document("bidirectional-server"))
    assert read.values["rtt_backward"] == sum(rtts) / len(rtts)
    assert {each.label for each in read.series} == {"", "backward"}
    assert read.claimed_bytes[0].sent > 0
    assert read.claimed_bytes[0].received > 0


def test_processes_are_summed_and_server_has_reverse_rtt() -> None:
    read = reading("reverse1", "reverse2", reverse=True, processes=2)
    clients = [document(f"reverse{n}-client")["end"] for n in (1, 2)]
    servers = [document(f"reverse{n}-server") for n in (1, 2)]
    assert read.values["bandwidth"] == sum(
        end["sum_received"]["bits_per_second"] for end in clients
    )
    assert read.values["rtt_min"] == min(min(rtts_of(end)) for end in servers)
    assert {each.label for each in read.series} == {"process 0", "process 1"}
    assert read.claimed_bytes[1].sent == 0
    assert read.claimed_bytes[0].sent == pytest.approx(read.claimed_bytes[1].received, rel=0.001)


def test_loss_is_the_receivers_count() -> None:
    read = reading("udp", protocol="udp", bitrate=0)
    seen = document("udp-server")["end"]["sum_received"]
    copied = document("udp-client")["end"]["sum_received"]
    assert read.values["loss"] == seen["lost_packets"] / seen["packets"]
    assert copied["lost_packets"] > seen["lost_packets"]
    assert read.values["jitter"] == seen["jitter_ms"] * 1000
    assert "retransmits" not in read.values


@pytest.mark.parametrize(
    ("names", "spec"),
    [
        (["tcp"], {"streams": 2}),
        (["bidirectional"], {"bidirectional": True}),
        (["udp"], {"protocol": "udp", "bitrate": "0"}),
    ],
)
def test_reading_has_exactly_the_announced_metrics(names: list[str], spec: dict[str, Any]) -> None:
    announced = [info.tag for info in WORKLOAD.metrics_of(tool_config("iperf", **spec))]
    assert set(reading(*names, **spec).values) == set(announced)
    assert announced[0] == WORKLOAD.metrics[0].tag == "bandwidth"


def test_reported_error_with_exit_code_0_counts() -> None:
    refused = (
        b'{\n\t"start":\t{\n\t\t"connected":\t[],\n\t\t"version":\t"iperf 3.12"\n\t},\n'
        b'\t"intervals":\t[],\n\t"end":\t{\n\t},\n'
        b'\t"error":\t"unable to connect to server: Connection refused"\n}\n'
    )
    parsed = tool_config("iperf")
    step = WORKLOAD.steps(parsed, make_ranks(2))[0]
    read = WORKLOAD.read(parsed, step, outputs_of([refused], [b"{}"]))
    assert read.errors == ("iperf3 on rank 0: unable to connect to server: Connection refused",)
    assert read.values == {}


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (("end", "sum_sent", "retransmits"), "iperf3 client on rank 0.end.sum_sent: no field"),
        (("start", "version"), "no field 'version'"),
        (("intervals",), "no field 'intervals'"),
        (("end", "cpu_utilization_percent"), "no field 'cpu_utilization_percent'"),
    ],
)
def test_no_field_has_a_default(field: tuple[str, ...], message: str) -> None:
    client = document("tcp-client")
    part = client
    for key in field[:-1]:
        part = part[key]
    del part[field[-1]]
    server = recorded("iperf/iperf3-3.12-tcp-server.json")
    parsed = tool_config("iperf", streams=2)
    step = WORKLOAD.steps(parsed, make_ranks(2))[0]
    with pytest.raises(UnreadableOutput, match=message):
        WORKLOAD.read(parsed, step, outputs_of([json.dumps(client).encode()], [server]))


def test_all_problems_of_a_spec_are_reported() -> None:
    with pytest.raises(ConfigError) as error:
        tool_config("iperf", protocol="udp", mss=1400, reverse=True, bidirectional=True)
    for message in ("needs bitrate", "mss applies only to TCP", "leave out reverse"):
        assert message in str(error.value)
