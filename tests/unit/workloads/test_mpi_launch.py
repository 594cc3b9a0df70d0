"""The commands that start MPI programs on ranks."""

from collections.abc import Sequence

import pytest

from aiperf_svc.config.workload import WorkloadSpec
from aiperf_svc.workloads.mpi_launch import Transport, intel_mpi, open_mpi
from aiperf_svc.workloads.steps import Rank

SPEC = WorkloadSpec(kind="any", env={"OMP_NUM_THREADS": "1"}, secret_env={"TOKEN_FILE": "t"})


def ranks(*addresses: str, interfaces: Sequence[str] = ("", "", "")) -> list[Rank]:
    return [
        Rank(number=n, role="rank", address=address, node=f"node-{n}", work="/w", volume="/v",
             agent="/bin/agent", interface=interface)
        for n, (address, interface) in enumerate(zip(addresses, interfaces, strict=False))
    ]  # fmt: skip


def settings(argv: Sequence[str]) -> dict[str, str]:
    """Return the values of `--mca KEY VALUE`."""
    return {argv[n + 1]: argv[n + 2] for n, word in enumerate(argv) if word == "--mca"}


def after(argv: Sequence[str], option: str) -> list[str]:
    return [argv[n + 1] for n, word in enumerate(argv) if word == option]


@pytest.mark.parametrize(
    ("addresses", "interfaces", "expected"),
    [
        (["10.0.0.1", "10.0.0.2"], ["eth0", "eth0"], "eth0"),
        (["10.0.0.1", "10.0.0.2"], ["eth0", "net1"], "10.0.0.0/30"),
        (["10.0.0.1", "10.0.0.2"], ["eth0", ""], "10.0.0.0/30"),
        (["10.244.1.5", "10.244.2.7"], ["", ""], "10.244.0.0/22"),
        (["127.0.0.1", "127.0.0.1"], ["", ""], "lo"),
    ],
)
def test_open_mpi_uses_network_shared_by_ranks(
    addresses: list[str], interfaces: list[str], expected: str
) -> None:
    hosts = [(rank, 1) for rank in ranks(*addresses, interfaces=interfaces)]
    found = settings(open_mpi(hosts, ["x"], SPEC, "tcp").argv)
    assert (found["btl_tcp_if_include"], found["oob_tcp_if_include"]) == (expected, expected)


def test_open_mpi_starts_processes_by_the_ranks_agent() -> None:
    hosts = list(zip(ranks("10.0.0.1", "10.0.0.2"), (2, 1), strict=True))
    command = open_mpi(hosts, ["icoFoam", "-parallel"], SPEC, "tcp", env={"A": "b"})
    assert command.rank == 0
    assert settings(command.argv)["plm_rsh_agent"] == "/bin/agent"
    assert command.argv[-6:] == ("-H", "10.0.0.1:2,10.0.0.2:1", "-np", "3", "icoFoam", "-parallel")
    assert after(command.argv, "-x") == ["A", "OMP_NUM_THREADS", "TOKEN_FILE"]
    assert command.env["A"] == "b"
    assert command.env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
    assert command.env["HOME"] == "/w"


def test_ranks_of_one_address_are_one_host() -> None:
    hosts = [(rank, 2) for rank in ranks("127.0.0.1", "127.0.0.1")]
    assert after(open_mpi(hosts, ["x"], SPEC, "tcp").argv, "-H") == ["127.0.0.1:4"]
    intel = intel_mpi([(rank, 1) for rank, _ in hosts], ["x"], SPEC, "tcp")
    assert after(intel.argv, "-hosts") == ["127.0.0.1"]
    assert after(intel.argv, "-ppn") == ["2"]


@pytest.mark.parametrize(
    ("transport", "shares_memory", "expected"),
    [
        ("tcp", False, {"pml": "ob1", "btl": "self,tcp", "mpi_yield_when_idle": "1"}),
        ("tcp", True, {"pml": "ob1", "btl": "self,vader,tcp"}),
        ("rdma", False, {"pml": "ucx", "osc": "ucx", "btl": "^openib"}),
    ],
)
def test_each_transport_has_its_settings_of_open_mpi(
    transport: Transport, shares_memory: bool, expected: dict[str, str]
) -> None:
    hosts = [(rank, 1) for rank in ranks("10.0.0.1", "10.0.0.2")]
    command = open_mpi(hosts, ["x"], SPEC, transport, shares_memory=shares_memory)
    assert settings(command.argv).items() >= expected.items()
    assert ("UCX_TLS" in command.env) == (transport == "rdma")
    assert ("UCX_TLS" in after(command.argv, "-x")) == (transport == "rdma")


def test_spec_variable_replaces_the_transports() -> None:
    spec = WorkloadSpec(kind="any", env={"UCX_TLS": "rc"})
    command = open_mpi([(ranks("10.0.0.1")[0], 1)], ["x"], spec, "rdma")
    assert command.env["UCX_TLS"] == "rc"


@pytest.mark.parametrize(("transport", "provider"), [("tcp", "tcp"), ("rdma", "verbs")])
def test_intel_mpi_starts_a_process_per_host(transport: Transport, provider: str) -> None:
    hosts = [(rank, 1) for rank in ranks("10.0.0.1", "10.0.0.2")]
    command = intel_mpi(hosts, ["IMB-MPI1", "PingPong"], SPEC, transport)
    assert after(command.argv, "-bootstrap-exec") == ["/bin/agent"]
    assert after(command.argv, "-hosts") == ["10.0.0.1,10.0.0.2"]
    assert command.argv[-7:] == ("-ppn", "1", "-n", "2", "-genvall", "IMB-MPI1", "PingPong")
    assert command.env["FI_PROVIDER"] == provider
