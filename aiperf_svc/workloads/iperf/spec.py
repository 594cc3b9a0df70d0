"""The keys of `workload: {kind: iperf}`."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.units import BitRate, DurationNs, PositiveDurationNs, SizeBytes
from aiperf_svc.config.workload import WorkloadSpec


def _whole_seconds(value_ns: int) -> int:
    if value_ns % SECOND_NS:
        raise ValueError("expected whole seconds: iperf3 does not accept fractions")
    return value_ns


class IperfSpec(WorkloadSpec):
    """iperf3 between two ranks: one runs the client and sends, the other runs the server."""

    kind: Literal["iperf"] = "iperf"
    protocol: Literal["tcp", "udp"] = "tcp"
    streams: Annotated[int, Field(gt=0, le=128)] = 1
    """Connections of each process at the same time."""
    processes: Annotated[int, Field(gt=0, le=64)] = 1
    """Processes on each side. iperf3 before 3.16 has one thread, so one core is its limit."""
    duration: Annotated[
        PositiveDurationNs, Field(le=86_400 * SECOND_NS), AfterValidator(_whole_seconds)
    ] = 30 * SECOND_NS
    """Measured time."""
    omit: Annotated[DurationNs, Field(le=60 * SECOND_NS), AfterValidator(_whole_seconds)] = (
        2 * SECOND_NS
    )
    """Time before the measured one, in which TCP finds its rate."""
    bitrate: BitRate | None = None
    """Largest bit rate of each stream; 0: no limit. `udp` needs it."""
    reverse: bool = False
    """The server sends, and the client receives."""
    bidirectional: bool = False
    """Both send at the same time."""
    window: Annotated[SizeBytes, Field(gt=0, le=512 * 2**20)] | None = None
    """Size of the sockets' buffers. Default: the kernel adapts it."""
    mss: Annotated[int, Field(ge=88, le=9216)] | None = None
    """Largest TCP segment in bytes."""
    port: Annotated[int, Field(ge=1024, le=65_000)] = 5201
    """Port of the server. Further processes use the ports after it."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        problems = []
        if self.reverse and self.bidirectional:
            problems.append("{bidirectional} already measures both directions: no {reverse}")
        if self.protocol == "udp" and self.bitrate is None:
            problems.append(
                "{protocol} udp needs {bitrate}, because UDP does not find a rate by itself; "
                "0 sends as fast as the client can"
            )
        if self.protocol == "udp" and self.mss is not None:
            problems.append("{mss} is about TCP, and {protocol} is udp")
        if problems:
            raise ValueError("; ".join(problems))
        return self
