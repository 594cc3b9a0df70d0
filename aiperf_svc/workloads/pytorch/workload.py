"""Times batches of a model by a script on every rank."""

import json
import math
from collections.abc import Sequence
from importlib.resources import files as resources
from itertools import accumulate

import numpy as np

from aiperf_svc.config.base import HOUR_NS
from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.core.results.measured import MetricInfo, Series
from aiperf_svc.workloads.gpus import gpu_problems
from aiperf_svc.workloads.pytorch.output import Measured, read_files
from aiperf_svc.workloads.pytorch.spec import PyTorchSpec
from aiperf_svc.workloads.steps import (
    Command,
    Output,
    Plot,
    Rank,
    Reading,
    Role,
    Step,
    Tool,
    timeout_of,
)
from aiperf_svc.workloads.tool import ToolWorkload

Config = WorkloadConfig[PyTorchSpec]
_SCRIPT = "batches.py"
_QUANTILES = {"p50": 50, "p90": 90, "p99": 99}


class PyTorch(ToolWorkload[PyTorchSpec]):
    """The kind `pytorch`."""

    kind = "pytorch"
    summary = "training or evaluation of a model with PyTorch, on CPUs or GPUs"
    spec = PyTorchSpec
    tools = (Tool("python3", "python3-torchvision"),)
    metrics = (
        MetricInfo(
            tag="samples_per_second",
            name="Samples per second",
            unit="samples/s",
            better="higher",
            formula="sum over the processes of batch_size * iterations / the time of its batches",
            scales_with=("workload.ranks", "workload.gpus"),
        ),
        *(
            MetricInfo(
                tag=f"batch_time_{name}",
                name=f"Time of a batch, {name}",
                unit="ms",
                better="lower",
                formula=f"{name} of the wall times of all batches of all processes",
            )
            for name in _QUANTILES
        ),
        MetricInfo(
            tag="peak_host_memory",
            name="Peak memory of the host",
            unit="bytes",
            better="lower",
            formula="ru_maxrss of the process that has most",
        ),
    )
    gpu_metrics = (
        *(
            MetricInfo(
                tag=f"gpu_time_{name}",
                name=f"GPU time of a batch, {name}",
                unit="ms",
                better="lower",
                formula=f"{name} of the times between the CUDA events around all batches",
            )
            for name in _QUANTILES
        ),
        MetricInfo(
            tag="peak_device_memory",
            name="Peak memory of a GPU",
            unit="bytes",
            better="lower",
            formula="torch.cuda.max_memory_allocated of the GPU that has most, without warm-up",
        ),
    )
    """Metrics with `device: cuda` beside the others."""

    def roles(self, spec: PyTorchSpec) -> tuple[Role, ...]:
        return (Role("rank", spec.ranks),)

    def metrics_of(self, config: Config) -> tuple[MetricInfo, ...]:
        return self.metrics + (self.gpu_metrics if config.workload.device == "cuda" else ())

    def tools_of(self, config: Config) -> tuple[Tool, ...]:
        if config.workload.processes > 1:
            return (Tool("torchrun", "python3-torch"),)
        return self.tools

    def files(self, config: Config) -> dict[str, bytes]:
        return {_SCRIPT: (resources(__package__) / "on_ranks" / _SCRIPT).read_bytes()}

    def steps(self, config: Config, ranks: Sequence[Rank]) -> tuple[Step, ...]:
        spec = config.workload
        return (
            Step(
                name=f"{spec.mode} {spec.model}",
                commands=tuple(_command(config, rank, ranks[0]) for rank in ranks),
                timeout_ns=timeout_of(spec, 2 * HOUR_NS),
            ),
        )

    def read(self, config: Config, step: Step, outputs: Sequence[Output]) -> Reading:
        spec = config.workload
        processes = read_files(
            [output.files for output in outputs],
            processes=spec.processes,
            iterations=spec.iterations,
            has_gpu=spec.device == "cuda",
        )
        of_each = spec.batch_size * spec.iterations
        values = {
            "samples_per_second": sum(of_each / math.fsum(each.batch_s) for each in processes),
            **_quantiles("batch_time", [each.batch_s for each in processes]),
            "peak_host_memory": float(max(each.peak_host_bytes for each in processes)),
        }
        if spec.device == "cuda":
            values |= _quantiles("gpu_time", [each.gpu_s or () for each in processes])
            values["peak_device_memory"] = float(
                max(each.peak_device_bytes or 0 for each in processes)
            )
        tools = {outputs[each.process // spec.gpus].rank: _version(each) for each in processes}
        return Reading(
            values=values,
            series=tuple(_series(each) for each in processes),
            tool=_version(processes[0]),
            tools=tools,
            facts={
                "device": processes[0].device,
                "parameters": str(processes[0].parameters),
                "threads": str(processes[0].threads),
            },
        )

    def problems(self, config: Config) -> list[str]:
        spec = config.workload
        return gpu_problems(config, spec.gpus) if spec.device == "cuda" else []

    def plots(self, config: Config) -> tuple[Plot, ...]:
        return (Plot(title="Time of each batch", kind="series", name="batch_time"),)

    def progress(self, config: Config, line: str) -> str:
        number, found, time = line.removeprefix("batch ").partition(": ")
        if not line.startswith("batch ") or not found:
            return ""
        return f"batch {number} of {config.workload.iterations}: {time.strip()}"


def _command(config: Config, rank: Rank, first: Rank) -> Command:
    spec = config.workload
    keys = ("device", "model", "mode", "batch_size", "iterations", "warmup", "precision")
    settings = {key: getattr(spec, key) for key in (*keys, "sequence_length")}
    settings |= {
        "seed": config.random_seed,
        "threads": max(1, int(rank.cores) // spec.gpus),
    }
    start = ["python3"]
    if spec.processes > 1:
        start = ["torchrun", "--nnodes", str(spec.ranks), "--nproc_per_node", str(spec.gpus)]
        start += ["--node_rank", str(rank.number), "--master_addr", first.address]
        start += ["--master_port", str(spec.port)]
    return Command(
        rank=rank.number,
        argv=(*start, _SCRIPT, json.dumps(settings)),
        env=_network_env(rank) | spec.env,
        keeps=("measured-*.json",),
    )


def _network_env(rank: Rank) -> dict[str, str]:
    """Names the interface to the libraries by which processes exchange gradients."""
    if not rank.interface:
        return {}
    return {"GLOO_SOCKET_IFNAME": rank.interface, "NCCL_SOCKET_IFNAME": rank.interface}


def _quantiles(tag: str, times_s: Sequence[Sequence[float]]) -> dict[str, float]:
    pooled = np.concatenate([np.asarray(times) for times in times_s])
    return {
        f"{tag}_{name}": float(np.percentile(pooled, q)) * 1e3 for name, q in _QUANTILES.items()
    }


def _series(measured: Measured) -> Series:
    ends = accumulate(measured.batch_s)
    return Series(
        name="batch_time",
        unit="s",
        times_s=tuple(end - time / 2 for end, time in zip(ends, measured.batch_s, strict=True)),
        values=measured.batch_s,
        label=f"process {measured.process}",
    )


def _version(measured: Measured) -> str:
    return f"PyTorch {measured.torch}" + (f", CUDA {measured.cuda}" if measured.cuda else "")
