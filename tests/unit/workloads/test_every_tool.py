"""Properties of all kinds of tools: invalid specs, requirements, and outputs without a result."""

from typing import Any

import pytest

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.workloads.registry import OWN, tool
from aiperf_svc.workloads.steps import Output, UnreadableOutput
from tests.support.tool_runs import make_ranks, tool_config

REQUIRED: dict[str, dict[str, Any]] = {
    "command": {"command": ["x"], "metrics": {"m": {"unit": "s", "pattern": "(x)"}}},
    "lm-eval": {"url": "http://s:8000/v1", "model": "m", "tasks": ["sums"]},
    "openfoam": {"size": "XS"},
    "pytorch": {"model": "alexnet", "batch_size": 2, "iterations": 3},
}
"""Keys that a spec of the kind requires, or that its lines below test."""
RDMA = {"devices": {"rdma/hca_shared_devices_a": 1}}
FIO_LINES = (
    "Jobs: 1 (f=1): [r(1)][60.0%][r=130MiB/s][r=33.3k IOPS][eta 00m:02s]",
    "Jobs: 2 (f=2): [m(2)][9.1%][r=64.1MiB/s,w=8224KiB/s][r=16.4k,w=16.3k IOPS][eta 10s]",
)
UCX_LINE = "1024,1000,5.504,41.721,41.721,23.41,23.41,23969,23969"
NCCL_LINE = (
    "     1048576        262144     float     sum      -1     83.7   12.53   12.53      0"
    "     82.1   12.78   12.78      0"
)


def config_of(kind: str, on: dict[str, Any] | None = None, **spec: Any) -> WorkloadConfig[Any]:
    return tool_config(kind, on=on, **REQUIRED.get(kind, {}) | spec)


@pytest.mark.parametrize(
    ("kind", "spec", "problem"),
    [
        ("fio", {"rw": "randreed"}, "did you mean randread?"),
        ("fio", {"suite": "volume", "bs": "4Ki", "num_jobs": 2}, "suite sets bs"),
        ("fio", {"suite": "volume", "ioengine": "psync"}, "suite needs an asynchronous ioengine"),
        ("fio", {"suite": "volume", "size": "1Mi"}, "size of at least 64Mi"),
        ("fio", {"ioengine": "psync", "iodepth": 4}, "iodepth 4 would have no effect"),
        ("fio", {"bs": 1001}, "not a multiple of 512, which direct needs"),
        ("fio", {"bs": "4k", "direct": False}, "write 4Ki, or the number of bytes"),
        ("fio", {"bs": "64k"}, "write 64Ki"),
        ("fio", {"bs": "512KB"}, "write 512Ki"),
        ("fio", {"bs": "1M"}, "write 1Mi"),
        ("fio", {"size": "1Mi"}, "size is smaller than one bs"),
        ("fio", {"runtime": "500ms"}, "runtime"),
        ("fio", {"rw": "randrw", "rwmixread": 100}, "rwmixread"),
        ("iperf", {"protocol": "udp"}, "protocol udp needs bitrate"),
        ("iperf", {"protocol": "udp", "mss": 1400}, "mss applies only to TCP"),
        ("iperf", {"reverse": True, "bidirectional": True}, "bidirectional already measures both"),
        ("iperf", {"duration": "1500ms"}, "expected whole seconds"),
        ("iperf", {"streems": 2}, "did you mean workload.streams?"),
        ("iperf", {"protocol": "tpc"}, "tcp"),
        ("iperf", {"bitrate": "fast"}, "expected a bit rate"),
        ("iperf", {"streams": 0}, "streams"),
        ("lm-eval", {"tasks": []}, "workload.tasks"),
        ("lm-eval", {"url": "s:8000"}, "workload.url"),
        ("lm-eval", {"files": {"../x": "x"}}, "workload.files"),
        ("nccl", {"operation": "allreduce"}, "did you mean all_reduce"),
        ("nccl", {"min_bytes": "1Gi", "max_bytes": "64Mi"}, "leave no size"),
        ("nccl", {"min_bytes": 0}, "leave no size"),
        ("openfoam", {"size": "XXL"}, "no published case defines this size"),
        ("openfoam", {"size": "L"}, "workload.size: 'L'"),
        ("openfoam", {"processes": 2, "nodes": 3}, "processes 2 leaves some of nodes 3 without"),
        ("openfoam", {"iterative_methode": "x"}, "did you mean workload.iterative_method?"),
        ("pytorch", {"model": "resnet"}, "did you mean resnet50"),
        ("pytorch", {"precision": "float16"}, "precision float16 needs device cuda"),
        ("pytorch", {"batchsize": 8}, "did you mean workload.batch_size?"),
        ("rdma-bandwidth", {"mode": "send"}, "workload.mode"),
        ("rdma-bandwidth", {"iterations": 4}, "workload.iterations"),
        ("rdma-bandwidth", {"iterations": 20_001}, "workload.iterations"),
        ("rdma-bandwidth", {"extra_args": ["-b"]}, "-b adds up both directions"),
        ("rdma-bandwidth", {"extra_args": ["--bidirectional"]}, "adds up both directions"),
        ("rdma-latency", {"qps": 2}, "workload.qps"),
        ("rdma-latency", {"extra_args": ["-T 3"]}, "workload.extra_args"),
        ("ucx", {"env": {"a.b": "1"}}, "env.a.b: expected a name of letters, digits and _"),
        ("ucx", {"env": {"A=1; id; B": "1"}}, "expected a name of letters, digits and _"),
        ("ucx", {"secret_env": {"1A": "KEY"}}, "secret_env.1A: expected a name of letters"),
        ("ucx", {"test": "tag_bww"}, "workload.test"),
        ("ucx", {"transports": []}, "workload.transports"),
        ("ucx", {"transports": ["tcp", "tcp"]}, "transports"),
    ],
)
def test_spec_that_cannot_run_is_refused(kind: str, spec: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match="workload") as error:
        config_of(kind, **spec)
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("kind", "spec", "line", "progress"),
    [
        ("fio", {}, FIO_LINES[0], "reads 130MiB/s, 33.3k IOPS"),
        ("fio", {}, FIO_LINES[1], "reads 64.1MiB/s, 16.4k IOPS, writes 8224KiB/s, 16.3k IOPS"),
        ("fio", {}, "Jobs: 1 (f=0)", ""),
        ("fio", {}, "{", ""),
        ("mpi-pingpong", {}, "1024 1000 13.451 76.127", "1024 bytes: 13.451 us"),
        ("mpi-pingpong", {}, "# List of Benchmarks to run:", ""),
        ("nccl", {}, NCCL_LINE, "1048576 bytes: 12.53 GB/s"),
        ("nccl", {}, "# Using devices", ""),
        ("openfoam", {}, "Time = 0.05", "Time = 0.05 of 0.1 s"),
        ("openfoam", {}, "ExecutionTime = 1.2 s  ClockTime = 2 s", ""),
        ("pytorch", {}, "batch 2: 1.2784 s\n", "batch 2 of 3: 1.2784 s"),
        ("pytorch", {}, "Downloading", ""),
        ("ucx", {"test": "tag_lat"}, UCX_LINE, "1024 bytes: 5.504 us"),
        ("ucx", {"test": "tag_bw"}, UCX_LINE, "1024 bytes: 0.1964 Gbit/s"),
        ("ucx", {"test": "tag_lat"}, "[1,2] UCX  INFO  ep_cfg[1]: tag(tcp/lo)", ""),
    ],
)
def test_line_of_a_running_tool_is_progress(
    kind: str, spec: dict[str, Any], line: str, progress: str
) -> None:
    assert tool(kind).progress(config_of(kind, **spec), line) == progress


@pytest.mark.parametrize("kind", [kind for kind in OWN if kind != "qualify"])
def test_garbage_is_unreadable(kind: str) -> None:
    config = config_of(kind)
    step = tool(kind).steps(config, make_ranks())[-1]
    for text in (b"", b"garbage", b"[]", b"{}", b'{"end": 1}', b"\xff\x00"):
        outputs = [
            Output(
                rank=command.rank,
                exit_code=0,
                stdout=text,
                files={name.replace("*", "0"): text for name in command.keeps},
                is_server=command in step.servers,
            )
            for command in (*step.commands, *step.servers)
        ]
        with pytest.raises(UnreadableOutput):
            tool(kind).read(config, step, outputs)


@pytest.mark.parametrize(
    ("kind", "spec", "key"),
    [
        ("mpi-pingpong", {"transport": "rdma"}, "workload.transport: rdma"),
        ("openfoam", {"transport": "rdma"}, "workload.transport: rdma"),
        ("rdma-bandwidth", {}, "workload.kind: rdma-bandwidth:"),
        ("rdma-latency", {}, "workload.kind: rdma-latency:"),
        ("ucx", {"transports": ["rc_x", "tcp"]}, "workload.transports: rc_x:"),
    ],
)
def test_rdma_needs_a_device_and_locked_memory(kind: str, spec: dict[str, Any], key: str) -> None:
    (problem,) = tool(kind).problems(config_of(kind, **spec))
    assert problem.startswith((f"{key} needs a device", f"{key} needs an RDMA device"))
    with_device = config_of(kind, on=RDMA, **spec)
    assert tool(kind).problems(with_device) == []
    assert tool(kind).needs_privilege(with_device) == ("IPC_LOCK",)
    if spec:
        assert tool(kind).problems(config_of(kind)) == []
        assert tool(kind).needs_privilege(config_of(kind)) == ()


ONE_WAY = ["0 to 1", "0 to 2", "1 to 2"]
BOTH_WAYS = ["0 to 1", "0 to 2", "1 to 0", "1 to 2", "2 to 0", "2 to 1"]


@pytest.mark.parametrize(
    ("kind", "spec", "names"),
    [
        ("iperf", {}, BOTH_WAYS),
        ("iperf", {"bidirectional": True}, ONE_WAY),
        ("mpi-pingpong", {}, ONE_WAY),
        ("rdma-bandwidth", {}, BOTH_WAYS),
        ("rdma-latency", {}, ONE_WAY),
        ("ucx", {"test": "tag_bw"}, BOTH_WAYS),
        ("ucx", {"test": "tag_lat"}, ONE_WAY),
    ],
)
def test_bandwidth_of_pairs_is_measured_both_ways(
    kind: str, spec: dict[str, Any], names: list[str]
) -> None:
    config = config_of(kind, on=RDMA | {"pairs": "all", "count": 3}, **spec)
    steps = tool(kind).steps(config, make_ranks(3))
    assert [step.name.replace("node-", "") for step in steps] == names
    assert steps[0].labels == {"from": "node-0", "to": "node-1"}
    assert len(tool(kind).steps(config_of(kind, on=RDMA, **spec), make_ranks())) == 1
    assert [step.commands[0].rank for step in steps] == [int(name[0]) for name in names]
    others = [(*step.agent_ranks, *(each.rank for each in step.servers)) for step in steps]
    assert others == [(int(name[-1]),) for name in names]
    assert [plot.kind for plot in tool(kind).plots(config)][:1] == ["matrix"]
