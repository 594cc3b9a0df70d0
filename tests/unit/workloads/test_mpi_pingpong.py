"""The kind `mpi-pingpong`. The output was recorded between two network namespaces."""

from functools import partial
from typing import Any

import pytest

from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.workloads.mpi_pingpong import WORKLOAD
from aiperf_svc.workloads.steps import ClaimedBytes, Output, Reading, UnreadableOutput
from tests.support.tool_runs import make_ranks, recorded, tool_config

IMB = recorded("mpi-pingpong/imb-2021.8-intel-mpi-2021.14.txt").decode()
MPI4PY = recorded("mpi-pingpong/mpi4py-3.1.4-open-mpi-4.1.4.txt").decode()
config_of = partial(tool_config, "mpi-pingpong")


def reading_of(text: str, **spec: Any) -> Reading:
    config = config_of(**spec)
    step = WORKLOAD.steps(config, make_ranks())[0]
    return WORKLOAD.read(config, step, [Output(rank=0, exit_code=0, stdout=text.encode())])


def test_headline_is_latency_at_0_bytes() -> None:
    for text, tool in ((IMB, "IMB-MPI1 2021.8"), (MPI4PY, "mpi4py 3.1.4, Open MPI v4.1.4")):
        reading = reading_of(text)
        rows = reading.tables[0].rows
        assert reading.tool == tool
        assert [row[0] for row in rows] == [0, *(2**power for power in range(23))]
        assert reading.values["latency"] == rows[0][2]
        assert reading.values["bandwidth"] == max(row[3] or 0 for row in rows)


def test_bandwidth_agrees_with_the_tools_rounded_rate() -> None:
    rates = {row[0]: row[3] or 0 for row in reading_of(IMB).tables[0].rows}
    printed = {
        int(parts[0]): float(parts[3])
        for parts in map(str.split, IMB.splitlines())
        if len(parts) == 4 and parts[0].isdigit() and int(parts[0]) >= 4096
    }
    assert len(printed) == 11
    for size, megabytes in printed.items():
        assert rates[size] == pytest.approx(megabytes * 1e6, rel=1e-3)


def test_bytes_are_claimed_over_tcp_when_counted() -> None:
    both = ClaimedBytes(sent=443_022_350, received=443_022_350)
    assert reading_of(MPI4PY).claimed_bytes == {0: both, 1: both}
    assert reading_of(MPI4PY, transport="rdma").claimed_bytes == {}
    assert reading_of(IMB).claimed_bytes == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# mpi4py 3.1.4, Open MPI v4.1.4\n", "expected one line '#bytes #repetitions"),
        (MPI4PY[: MPI4PY.index("\n2097152")], "no row of 2097152 bytes"),
        (MPI4PY.replace("\n0 1000 ", "\n0 1000 x"), "found '0 1000 x"),
        (MPI4PY.replace("\n1 1000 ", "\n1 1000 -"), "found '1 1000 -"),
        (MPI4PY + MPI4PY, "found 2"),
    ],
)
def test_output_without_every_size_is_unreadable(text: str, message: str) -> None:
    with pytest.raises(UnreadableOutput) as error:
        reading_of(text)
    assert message in str(error.value)


def test_rows_of_unrequested_sizes_are_unreadable() -> None:
    with pytest.raises(UnreadableOutput, match="expected rows of 0 to 1024 bytes"):
        reading_of(MPI4PY, maxlog=10)


def test_only_our_script_is_a_file_of_ranks() -> None:
    ours, imb = config_of(maxlog=10), config_of(program="imb", iterations=5)
    assert list(WORKLOAD.files(ours)) == ["pingpong.py"]
    command = WORKLOAD.steps(ours, make_ranks())[0].commands[0]
    assert command.argv[-4:] == ("python3", "pingpong.py", "10", "1000")
    assert WORKLOAD.files(imb) == {}
    command = WORKLOAD.steps(imb, make_ranks())[0].commands[0]
    assert command.argv[-6:] == ("IMB-MPI1", "PingPong", "-msglog", "0:22", "-iter", "5")
    assert [tool.name for tool in WORKLOAD.tools_of(imb)] == ["mpirun", "IMB-MPI1"]


def test_all_mistakes_of_a_spec_are_reported() -> None:
    with pytest.raises(ConfigError) as error:
        config_of(transport="tpc", maxlog=31, iteration=5)
    message = str(error.value)
    assert "workload.transport: 'tpc'" in message
    assert "workload.maxlog" in message
    assert "iterations" in message
