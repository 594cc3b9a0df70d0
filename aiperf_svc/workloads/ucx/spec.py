"""The keys of `workload: {kind: ucx}`."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import repeated
from aiperf_svc.config.units import SizeBytes
from aiperf_svc.config.workload import WorkloadSpec

Test = Literal[
    "tag_bw",
    "tag_lat",
    "put_bw",
    "put_lat",
    "am_bw",
    "am_lat",
    "stream_bw",
    "stream_lat",
]
Transport = Literal["tcp", "ib", "rc", "rc_v", "rc_x", "ud", "ud_v", "ud_x", "dc", "dc_x"]


class UcxSpec(WorkloadSpec):
    """ucx_perftest between two ranks, for message sizes that are powers of 4."""

    kind: Literal["ucx"] = "ucx"
    test: Test = "tag_bw"
    """Bandwidth (`_bw`) or latency (`_lat`) of a UCP operation: tag matching, put, active messages
    (`am`) or streams."""
    transports: Annotated[tuple[Transport, ...], Field(min_length=1)] = ("tcp",)
    """Transports, as in UCX_TLS. All but `tcp` need an RDMA device."""
    max_size: Annotated[SizeBytes, Field(gt=0, le=2**30)] = 4 * 2**20
    """Largest message size. The smallest is one byte."""
    iterations: Annotated[int, Field(ge=10, le=10**9)] = 1000
    """Iterations for each message size up to 64 KiB. Larger sizes have a tenth of them."""
    warmup: Annotated[int, Field(gt=0, le=10**6)] = 100
    """Iterations before the measured ones."""
    port: Annotated[int, Field(ge=1024, le=65_535)] = 13337
    """Port on which client and server exchange their addresses."""

    @property
    def is_latency(self) -> bool:
        """Whether the test is of latency."""
        return self.test.endswith("_lat")

    @property
    def needs_device(self) -> bool:
        """Whether a transport needs an RDMA device."""
        return any(name != "tcp" for name in self.transports)

    @property
    def sizes(self) -> dict[int, int]:
        """Message size to measured iterations."""
        sizes, size = {}, 1
        while size <= self.max_size:
            sizes[size] = self.iterations if size <= 2**16 else self.iterations // 10
            size *= 4
        return sizes

    @model_validator(mode="after")
    def _names_each_transport_once(self) -> Self:
        if twice := repeated(self.transports):
            raise ValueError(f"{{transports}}: {twice} is given twice; give each once")
        return self
