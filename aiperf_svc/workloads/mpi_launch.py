"""The command that starts an MPI program on ranks.

`mpirun` runs on the first rank. It starts its daemon on the other ranks with the rank's agent in
place of ssh.
"""

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Any, Literal

from aiperf_svc.config.workload import WorkloadConfig, WorkloadSpec
from aiperf_svc.workloads.steps import Command, Rank

Transport = Literal["tcp", "rdma"]
Host = tuple[Rank, int]
"""A rank and the number of processes there."""


def open_mpi(
    hosts: Sequence[Host],
    program: Iterable[str],
    spec: WorkloadSpec,
    transport: Transport,
    *,
    shares_memory: bool = False,
    env: Mapping[str, str] | None = None,
) -> Command:
    """Return the command of Open MPI's `mpirun`. With `shares_memory`, processes of one host use
    shared memory; otherwise every message uses the transport. Every process gets `env`."""
    slots = _slots(hosts)
    first = hosts[0][0]
    network = _network([rank for rank, _ in hosts])
    # Containers of one node see the same cores, so bound processes would all use the first ones.
    argv = ["mpirun", "--bind-to", "none", "--map-by", "slot"]
    settings = {
        "plm": "rsh",
        "plm_rsh_agent": first.agent,
        "orte_keep_fqdn_hostnames": "1",
        "oob_tcp_if_include": network,
    }
    variables = dict(env or {})
    if transport == "tcp":
        settings |= {
            "pml": "ob1",
            "btl": "self,vader,tcp" if shares_memory else "self,tcp",
            "osc": "^ucx",
            "btl_tcp_if_include": network,
            # Over TCP the cost is too small to measure, and a core may be shared.
            "mpi_yield_when_idle": "1",
        }
        # Copies between the memories of two processes need a capability that pods lack.
        if shares_memory:
            settings["btl_vader_single_copy_mechanism"] = "none"
    else:
        settings |= {"pml": "ucx", "osc": "ucx", "btl": "^openib"}
        variables["UCX_TLS"] = "self,sm,rc_x" if shares_memory else "self,rc_x"
    for key, value in settings.items():
        argv += ["--mca", key, value]
    for name in sorted({*variables, *spec.env, *spec.secret_env}):
        argv += ["-x", name]
    argv += ["-H", ",".join(f"{address}:{count}" for address, count in slots.items())]
    argv += ["-np", str(sum(slots.values())), *program]
    own = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        # mpirun crashes for a user without a name and a home.
        "HOME": first.work,
    }
    return Command(rank=first.number, argv=tuple(argv), env={**own, **variables, **spec.env})


def intel_mpi(
    hosts: Sequence[Host], program: Iterable[str], spec: WorkloadSpec, transport: Transport
) -> Command:
    """Return the command of Intel MPI's `mpirun`. Each host has the same number of processes, and
    every message uses the transport."""
    slots = _slots(hosts)
    first = hosts[0][0]
    argv = ["mpirun", "-bootstrap", "ssh", "-bootstrap-exec", first.agent]
    argv += ["-hosts", ",".join(slots), "-ppn", str(next(iter(slots.values())))]
    argv += ["-n", str(sum(slots.values())), "-genvall", *program]
    provider = {"tcp": "tcp", "rdma": "verbs"}[transport]
    env = {"I_MPI_FABRICS": "ofi", "FI_PROVIDER": provider, **spec.env}
    return Command(rank=first.number, argv=tuple(argv), env=env)


def rdma_problems(config: WorkloadConfig[Any], transport: Transport) -> list[str]:
    """Return why the transport cannot be used on a cluster, one line each."""
    if transport == "rdma" and not config.deployment.ranks.devices:
        return [
            "workload.transport: rdma needs a device in each rank: name its resource in "
            "deployment.ranks.devices, such as rdma/hca_shared_devices_a: 1"
        ]
    return []


def rdma_privilege(transport: Transport) -> tuple[str, ...]:
    """Return the capabilities that the transport needs: RDMA pins memory."""
    return ("IPC_LOCK",) if transport == "rdma" else ()


def _slots(hosts: Sequence[Host]) -> dict[str, int]:
    """Return the number of processes by address, in host order. Local ranks share one address."""
    slots: dict[str, int] = {}
    for rank, count in hosts:
        slots[rank.address] = slots.get(rank.address, 0) + count
    return slots


def _network(ranks: Sequence[Rank]) -> str:
    """Return the interface that all ranks use, or the smallest network that contains all their
    addresses; the loopback interface if they share one address."""
    names = {rank.interface for rank in ranks}
    if len(names) == 1 and "" not in names:
        return names.pop()
    if len({rank.address for rank in ranks}) == 1:
        # Open MPI 4 hangs at 64 KiB on a network of one address.
        return "lo"
    addresses = [ip_address(rank.address) for rank in ranks]
    numbers = [int(address) for address in addresses]
    bits = addresses[0].max_prefixlen - (min(numbers) ^ max(numbers)).bit_length()
    return str(ip_network(f"{addresses[0]}/{bits}", strict=False))
