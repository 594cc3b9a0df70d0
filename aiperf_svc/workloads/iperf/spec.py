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
    """Parallel connections of each process."""
    processes: Annotated[int, Field(gt=0, le=64)] = 1
    """Processes on each side. iperf3 before 3.16 is single-threaded, so one core limits it."""
    duration: Annotated[
        PositiveDurationNs, Field(le=86_400 * SECOND_NS), AfterValidator(_whole_seconds)
    ] = 30 * SECOND_NS
    """Length of the measurement."""
    omit: Annotated[DurationNs, Field(le=60 * SECOND_NS), AfterValidator(_whole_seconds)] = (
        2 * SECOND_NS
    )
    """Time before the measurement, in which TCP reaches its rate."""
    bitrate: BitRate | None = None
    """Target bit rate of each stream; 0 is no limit. Required for `udp`."""
    reverse: bool = False
    """The server sends and the client receives."""
    bidirectional: bool = False
    """Both sides send at the same time."""
    window: Annotated[SizeBytes, Field(gt=0, le=512 * 2**20)] | None = None
    """Socket buffer size. Default: tuned by the kernel."""
    mss: Annotated[int, Field(ge=88, le=9216)] | None = None
    """TCP maximum segment size in bytes."""
    port: Annotated[int, Field(ge=1024, le=65_000)] = 5201
    """Port of the first server process. The others use the following ports."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        problems = []
        if self.reverse and self.bidirectional:
            problems.append("{bidirectional} already measures both directions; leave out {reverse}")
        if self.protocol == "udp" and self.bitrate is None:
            problems.append(
                "{protocol} udp needs {bitrate}, because UDP has no congestion control; "
                "0 sends as fast as the client can"
            )
        if self.protocol == "udp" and self.mss is not None:
            problems.append("{mss} applies only to TCP, and {protocol} is udp")
        if problems:
            raise ValueError("; ".join(problems))
        return self
