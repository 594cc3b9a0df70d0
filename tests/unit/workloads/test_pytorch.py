"""The kind `pytorch`. The file was recorded on a CPU. Those for GPUs and several processes are
derived from it, because no test machine has a GPU."""

import json
from typing import Any

import pytest

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.workloads.pytorch import WORKLOAD
from aiperf_svc.workloads.steps import Output, Reading, UnreadableOutput
from tests.support.tool_runs import make_ranks, recorded, tool_config

MEASURED = json.loads(recorded("pytorch/alexnet-train-bfloat16-debian-1.13.json"))
RUN_SPEC: dict[str, Any] = {"model": "alexnet", "batch_size": 2, "iterations": 3}
"""Keys of the recorded run's spec."""


def config_of(placed: dict[str, Any] | None = None, **spec: Any) -> WorkloadConfig[Any]:
    return tool_config("pytorch", on=placed, **RUN_SPEC | spec)


def left_by(process: int = 0, **changes: Any) -> dict[str, bytes]:
    """Return the file of one process with changed values."""
    text = json.dumps({**MEASURED, "process": process, **changes})
    return {f"measured-{process}.json": text.encode()}


def reading_of(*of_ranks: dict[str, bytes], **spec: Any) -> Reading:
    config = config_of(**spec)
    step = WORKLOAD.steps(config, make_ranks(len(of_ranks)))[0]
    outputs = [Output(rank=n, exit_code=0, files=files) for n, files in enumerate(of_ranks)]
    return WORKLOAD.read(config, step, outputs)


def test_recorded_run_has_its_rate_times_and_memory() -> None:
    reading = reading_of(left_by())
    times = MEASURED["batch_s"]
    assert reading.values == {
        "samples_per_second": pytest.approx(6 / sum(times)),
        "batch_time_p50": pytest.approx(sorted(times)[1] * 1e3),
        "batch_time_p90": pytest.approx((sorted(times)[1] * 0.2 + max(times) * 0.8) * 1e3),
        "batch_time_p99": pytest.approx((sorted(times)[1] * 0.02 + max(times) * 0.98) * 1e3),
        "peak_host_memory": MEASURED["peak_host_bytes"],
    }
    assert reading.tool == "PyTorch 1.13.0a0"
    assert reading.facts["parameters"] == "61100840"


def test_the_series_has_each_batch_in_its_middle() -> None:
    (series,) = reading_of(left_by(batch_s=[1.0, 2.0, 1.0])).series
    assert series.times_s == (0.5, 2.0, 3.5)
    assert series.values == (1.0, 2.0, 1.0)


def test_rates_add_up_and_times_are_pooled() -> None:
    files = {
        **left_by(0, processes=4, batch_s=[1.0, 1.0, 1.0]),
        **left_by(1, processes=4, batch_s=[2.0, 2.0, 2.0], peak_host_bytes=2**40),
    }
    others = {
        **left_by(2, processes=4, batch_s=[1.0, 1.0, 1.0]),
        **left_by(3, processes=4, batch_s=[2.0, 2.0, 2.0], torch="2.4.0"),
    }
    reading = reading_of(files, others, gpus=2, ranks=2)
    assert reading.values["samples_per_second"] == pytest.approx(2 * (2 + 1))
    assert reading.values["batch_time_p50"] == pytest.approx(1500)
    assert reading.values["peak_host_memory"] == 2**40
    assert reading.tools == {0: "PyTorch 1.13.0a0", 1: "PyTorch 2.4.0"}


def test_a_gpu_has_its_own_times_and_memory() -> None:
    files = left_by(cuda="12.1", gpu_s=[0.1, 0.2, 0.3], peak_device_bytes=5)
    reading = reading_of(files, device="cuda")
    assert reading.values["gpu_time_p50"] == pytest.approx(200)
    assert reading.values["peak_device_memory"] == 5
    assert reading.tool == "PyTorch 1.13.0a0, CUDA 12.1"
    tags = {metric.tag for metric in WORKLOAD.metrics_of(config_of(device="cuda"))}
    assert set(reading.values) == tags


@pytest.mark.parametrize(
    ("files", "spec", "message"),
    [
        ({}, {}, "process 0 of 1 left no file 'measured-0.json'"),
        (left_by(processes=2), {"gpus": 2}, "process 1 of 2 left no file"),
        ({"measured-0.json": b"{}"}, {}, "missing required field `torch`"),
        (left_by(), {"iterations": 4}, "expected process 0 of 1 with 4 batches"),
        (left_by(processes=2), {}, "found process 0 of 2 with 3"),
        (left_by(batch_s=[1.0, 0.0, 1.0]), {}, "a batch took 0.0 s"),
        (left_by(), {"device": "cuda"}, "expected times and memory of a GPU, found none"),
    ],
)
def test_incomplete_files_are_unreadable(
    files: dict[str, bytes], spec: dict[str, Any], message: str
) -> None:
    with pytest.raises(UnreadableOutput) as error:
        reading_of(files, **spec)
    assert message in str(error.value)


def test_one_process_runs_the_script_directly() -> None:
    config = config_of(mode="eval")
    (command,) = WORKLOAD.steps(config, make_ranks(1, cores=4.0))[0].commands
    assert command.argv[:2] == ("python3", "batches.py")
    assert json.loads(command.argv[2]) == {
        "device": "cpu",
        "model": "alexnet",
        "mode": "eval",
        "batch_size": 2,
        "iterations": 3,
        "warmup": 5,
        "precision": "float32",
        "sequence_length": 512,
        "seed": 0,
        "threads": 4,
    }
    assert command.keeps == ("measured-*.json",)
    assert list(WORKLOAD.files(config)) == ["batches.py"]
    assert [tool.name for tool in WORKLOAD.tools_of(config)] == ["python3"]


def test_processes_of_torchrun_share_their_ranks_cpus() -> None:
    config = config_of(gpus=3, ranks=2)
    commands = WORKLOAD.steps(config, make_ranks(2, cores=4.0, interface="eth0"))[0].commands
    for number, command in enumerate(commands):
        assert command.rank == number
        assert command.argv[:-2] == (
            *("torchrun", "--nnodes", "2", "--nproc_per_node", "3", "--node_rank", str(number)),
            *("--master_addr", "10.0.0.0", "--master_port", "29400"),
        )
        assert json.loads(command.argv[-1])["threads"] == 1
        assert command.env["GLOO_SOCKET_IFNAME"] == "eth0"
    assert [tool.name for tool in WORKLOAD.tools_of(config)] == ["torchrun"]


@pytest.mark.parametrize(
    ("devices", "gpus", "count"),
    [
        ({}, 1, 0),
        ({"nvidia.com/gpu": 4}, 8, 4),
        ({"nvidia.com/gpu": 2}, 1, 2),
        ({"rdma/hca": 1}, 1, 0),
    ],
)
def test_cuda_needs_a_gpu_per_process(devices: dict[str, int], gpus: int, count: int) -> None:
    (problem,) = WORKLOAD.device_problems(config_of({"devices": devices}, device="cuda", gpus=gpus))
    message = f"workload.gpus: {gpus} in each rank, but deployment.ranks.devices has {count}:"
    assert problem.startswith(message)


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "amd.com/gpu", "nvidia.com/mig-1g.5gb"])
def test_gpus_of_every_vendor_and_slices_count(resource: str) -> None:
    config = config_of({"devices": {resource: 2, "rdma/hca": 1}}, device="cuda", gpus=2)
    assert WORKLOAD.device_problems(config) == []
    assert WORKLOAD.device_problems(config_of(gpus=8)) == []
