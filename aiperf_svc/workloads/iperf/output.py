"""Reads the JSON of iperf3's clients and servers.

Each number comes from the end that observed it: sent and retransmitted data from the sender,
arrived and lost data from the receiver. The client's copy of the server's numbers is not used:
iperf3 3.12 includes datagrams in it that were lost in the omitted time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from aiperf_svc.core.results.measured import Series
from aiperf_svc.workloads.iperf.spec import IperfSpec
from aiperf_svc.workloads.json_output import Fields, fields_of
from aiperf_svc.workloads.steps import ClaimedBytes, Output, Reading, UnreadableOutput

_MIN_INTERVAL_S = 0.5
"""Minimum interval of a series. The rest after the last full second may last a millisecond, for
which a rate is meaningless."""


@dataclass(frozen=True)
class _Path:
    """One direction of the data."""

    suffix: str
    """Suffix of metrics and series."""
    senders: Sequence[Fields]
    """Reports, one for each process."""
    receivers: Sequence[Fields]
    key: str
    """Suffix of iperf3's own sums of this direction."""


def read_processes(
    spec: IperfSpec, *, clients: Sequence[Output], servers: Sequence[Output]
) -> Reading:
    """Return the reading of all processes of one step; client n connected to server n."""
    ends = [_fields(output) for output in (*clients, *servers)]
    outputs = (*clients, *servers)
    errors = tuple(
        f"iperf3 on rank {output.rank}: {end.text('error')}"
        for output, end in zip(outputs, ends, strict=True)
        if end.has("error")
    )
    if errors:
        return Reading(values={}, errors=errors)
    of_clients, of_servers = ends[: len(clients)], ends[len(clients) :]
    forward = _Path("", of_clients, of_servers, "")
    backward = _Path("", of_servers, of_clients, "")
    if spec.bidirectional:
        backward = _Path("_backward", of_servers, of_clients, "_bidir_reverse")
    paths = [forward, backward] if spec.bidirectional else [backward] if spec.reverse else [forward]

    values: dict[str, float] = {}
    series: list[Series] = []
    for path in paths:
        values |= _tcp(path) if spec.protocol == "tcp" else _udp(path)
        series += _series(spec, path)
    values["cpu_client"] = _cpu(of_clients)
    values["cpu_server"] = _cpu(of_servers)
    versions = {
        output.rank: end.text("start", "version") for output, end in zip(outputs, ends, strict=True)
    }
    payload = _packet_payload(spec, values)
    return Reading(
        values=values,
        series=tuple(series),
        tool=versions[clients[0].rank],
        tools=versions,
        claimed_bytes={
            **_claimed(clients, of_clients, payload),
            **_claimed(servers, of_servers, payload),
        },
        facts=_facts(spec, values, paths[0]),
    )


def _fields(output: Output) -> Fields:
    end = "server" if output.is_server else "client"
    return fields_of(output.text, f"iperf3 {end} on rank {output.rank}")


def _rates(path: _Path) -> dict[str, float]:
    received, sent = f"sum_received{path.key}", f"sum_sent{path.key}"
    return {
        f"bandwidth{path.suffix}": sum(
            end.number("end", received, "bits_per_second") for end in path.receivers
        ),
        f"bandwidth_sent{path.suffix}": sum(
            end.number("end", sent, "bits_per_second") for end in path.senders
        ),
    }


def _tcp(path: _Path) -> dict[str, float]:
    # iperf3's own mean_rtt, min_rtt and max_rtt include the omitted time.
    rtts = [
        rtt
        for end in path.senders
        for interval in end.each("intervals")
        if not interval.flag(f"sum{path.key}", "omitted")
        for rtt in _rtts(interval)
    ]
    if not rtts:
        raise UnreadableOutput("iperf3: no interval of the sender is measured")
    return {
        **_rates(path),
        f"retransmits{path.suffix}": sum(
            end.number("end", f"sum_sent{path.key}", "retransmits") for end in path.senders
        ),
        f"rtt{path.suffix}": sum(rtts) / len(rtts),
        f"rtt_min{path.suffix}": min(rtts),
        f"rtt_max{path.suffix}": max(rtts),
        f"pmtu{path.suffix}": min(_last_pmtus(path)),
    }


def _last_pmtus(path: _Path) -> Iterator[float]:
    for end in path.senders:
        intervals = list(end.each("intervals"))
        if not intervals:
            raise UnreadableOutput("iperf3: intervals of the sender is empty")
        for stream in intervals[-1].each("streams"):
            if stream.flag("sender"):
                yield stream.number("pmtu")


def _udp(path: _Path) -> dict[str, float]:
    key = f"sum_received{path.key}"
    lost = sum(end.number("end", key, "lost_packets") for end in path.receivers)
    packets = sum(end.number("end", key, "packets") for end in path.receivers)
    if not packets:
        raise UnreadableOutput(f"iperf3: end.{key}.packets of the receiver is 0: nothing was sent")
    jitters = [end.number("end", key, "jitter_ms") for end in path.receivers]
    return {
        **_rates(path),
        f"loss{path.suffix}": lost / packets,
        f"jitter{path.suffix}": sum(jitters) / len(jitters) * 1000,
    }


def _cpu(ends: Sequence[Fields]) -> float:
    percent = (end.number("end", "cpu_utilization_percent", "host_total") for end in ends)
    return sum(percent) / 100


def _packet_payload(spec: IperfSpec, values: dict[str, float]) -> int:
    if spec.protocol == "udp":
        return ClaimedBytes().packet_payload
    # IPv4, TCP and its timestamps take 52 bytes of the path MTU.
    largest = min(int(value) - 52 for tag, value in values.items() if tag.startswith("pmtu"))
    return min(spec.mss or largest, largest)


def _claimed(
    outputs: Sequence[Output], ends: Sequence[Fields], payload: int
) -> dict[int, ClaimedBytes]:
    """Return the bytes that all processes of a rank moved. They include the omitted time, like the
    counters of the interface."""
    moved = {True: 0.0, False: 0.0}
    for end in ends:
        for interval in end.each("intervals"):
            for stream in interval.each("streams"):
                moved[stream.flag("sender")] += stream.number("bytes")
    claim = ClaimedBytes(int(moved[True]), int(moved[False]), payload)
    return {outputs[0].rank: claim}


def _series(spec: IperfSpec, path: _Path) -> Iterator[Series]:
    for process, (sender, receiver) in enumerate(zip(path.senders, path.receivers, strict=True)):
        parts = ["backward"] if path.suffix else []
        parts += [f"process {process}"] if spec.processes > 1 else []
        label = " ".join(parts)
        key = f"sum{path.key}"
        arrived = [
            (time_s, interval.number(key, "bits_per_second"), interval)
            for time_s, interval in _intervals(receiver, key)
        ]
        yield _one("bandwidth", "bit/s", [(t, value) for t, value, _ in arrived], label)
        if spec.protocol == "udp":
            lost = [(t, interval.number(key, "lost_percent") / 100) for t, _, interval in arrived]
            yield _one("loss", "ratio", lost, label)
            continue
        sent = list(_intervals(sender, key))
        yield _one("rtt", "us", [(t, fmean(_rtts(interval))) for t, interval in sent], label)
        retransmits = [(t, interval.number(key, "retransmits")) for t, interval in sent]
        yield _one("retransmits", "count", retransmits, label)


def _intervals(end: Fields, key: str) -> Iterator[tuple[float, Fields]]:
    """Yield the middle of each measured interval since the start of the test, and the interval.
    iperf3 restarts its clock at the end of the omitted time."""
    passed_s = 0.0
    for interval in end.each("intervals"):
        length_s = interval.number(key, "seconds")
        if not interval.flag(key, "omitted") and length_s >= _MIN_INTERVAL_S:
            yield passed_s + length_s / 2, interval
        passed_s += length_s


def _rtts(interval: Fields) -> list[float]:
    """Return the kernel's smoothed RTT of each sending stream at the end of an interval."""
    rtts = [stream.number("rtt") for stream in interval.each("streams") if stream.flag("sender")]
    if not rtts:
        raise UnreadableOutput("iperf3: an interval of the sender has no stream that sent")
    return rtts


def _one(name: str, unit: str, points: Sequence[tuple[float, float]], label: str) -> Series:
    return Series(
        name=name,
        unit=unit,
        times_s=tuple(time_s for time_s, _ in points),
        values=tuple(value for _, value in points),
        label=label,
    )


def _facts(spec: IperfSpec, values: dict[str, float], path: _Path) -> dict[str, str]:
    if spec.protocol == "udp":
        return {"protocol": "udp"}
    return {
        "protocol": "tcp",
        "congestion control": path.senders[0].text("end", "sender_tcp_congestion"),
        "path MTU": f"{values['pmtu']:.0f}",
    }
