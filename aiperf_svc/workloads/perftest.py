"""Common parts of the kinds that run perftest (`ib_write_bw` and its sisters): keys, commands and
printed rows."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, TypeVar

from pydantic import Field

from aiperf_svc.config.base import MINUTE_NS
from aiperf_svc.config.workload import WorkloadConfig, WorkloadSpec
from aiperf_svc.workloads.pairs import pair_labels, pair_name, pairs
from aiperf_svc.workloads.steps import (
    Command,
    Output,
    Rank,
    Step,
    Tool,
    UnreadableOutput,
    timeout_of,
)
from aiperf_svc.workloads.tool import ToolWorkload

TABLE = "by message size"
Argument = Annotated[str, Field(pattern=r"^\S+$")]


class PerftestSpec(WorkloadSpec):
    """Keys of all tests of perftest."""

    mode: Literal["read", "write"] = "write"
    """Whether the client reads from the server's memory or writes to it."""
    iterations: Annotated[int, Field(ge=5, le=10**9)] = 1000
    """Iterations for each message size."""
    port: Annotated[int, Field(ge=1024, le=65_535)] = 18515
    """Port on which the client connects to the server."""
    extra_args: tuple[Argument, ...] = ()
    """Additional arguments for client and server, such as `--tclass=106`."""


SpecT = TypeVar("SpecT", bound=PerftestSpec)


class PerftestWorkload(ToolWorkload[SpecT]):
    """One test of perftest, by `ib_write_*` or `ib_read_*`."""

    suffix: ClassVar[str]
    """Suffix after the mode in the name of the program."""
    is_directed: ClassVar[bool]
    """Whether the first rank of a pair sends."""

    def tools_of(self, config: WorkloadConfig[SpecT]) -> tuple[Tool, ...]:
        return (Tool(f"ib_{config.workload.mode}_{self.suffix}", "perftest"),)

    def problems(self, config: WorkloadConfig[SpecT]) -> list[str]:
        if config.deployment.ranks.devices:
            return []
        return [
            f"workload.kind: {self.kind}: needs an RDMA device; name its resource in "
            "deployment.ranks.devices, such as rdma/hca_shared_devices_a: 1"
        ]

    def needs_privilege(self, config: WorkloadConfig[SpecT]) -> tuple[str, ...]:
        return ("IPC_LOCK",)

    def own_arguments(self, spec: SpecT) -> tuple[str, ...]:
        """Return the arguments of this test, in addition to the common ones."""
        return ()

    def steps(self, config: WorkloadConfig[SpecT], ranks: Sequence[Rank]) -> tuple[Step, ...]:
        """Return one step per pair. The server exits by itself after one test."""
        spec, (tool,) = config.workload, self.tools_of(config)
        argv = (
            *(tool.name, "-a", "-F", "-R", "-p", str(spec.port), "-n", str(spec.iterations)),
            *self.own_arguments(spec),
            *spec.extra_args,
        )
        steps = []
        for pair in pairs(config, ranks, is_directed=self.is_directed):
            is_reversed = self.is_directed and spec.mode == "read"
            client, server = reversed(pair) if is_reversed else pair
            steps.append(
                Step(
                    name=pair_name(pair),
                    labels=pair_labels(pair),
                    # With -R the server listens through the RDMA connection manager, so no TCP port
                    # shows when it is ready.
                    servers=(Command(rank=server.number, argv=argv),),
                    commands=(Command(rank=client.number, argv=(*argv, server.address)),),
                    timeout_ns=timeout_of(spec, 10 * MINUTE_NS),
                )
            )
        return tuple(steps)


def client_rows(
    outputs: Sequence[Output], header: str, columns: int
) -> tuple[tuple[float, ...], ...]:
    """Return the rows below the header, which the client prints. Skip other lines about devices and
    addresses."""
    client = next(output for output in outputs if not output.is_server)
    where = f"perftest on rank {client.rank}"
    lines = client.text.splitlines()
    words = header.split()
    start = next((n for n, line in enumerate(lines) if line.split() == words), None)
    if start is None:
        raise UnreadableOutput(
            f"{where}: expected a line {header!r}; it ends with {client.text[-200:]!r}"
        )
    rows = []
    for line in lines[start + 1 :]:
        first = line.split(maxsplit=1)[:1]
        if first and first[0].isdecimal():
            rows.append(_row(line, where, header, columns))
    if not rows:
        raise UnreadableOutput(f"{where}: expected rows below {header!r}")
    return tuple(rows)


def _row(line: str, where: str, header: str, columns: int) -> tuple[float, ...]:
    try:
        numbers = tuple(float(field) for field in line.split())
    except ValueError:
        numbers = ()
    if len(numbers) != columns or any(number - number != 0 for number in numbers):
        raise UnreadableOutput(f"{where}: {line!r}; expected {columns} numbers: {header}")
    return numbers
