"""Times batches of a model with a script on every rank."""

import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files as resources
from itertools import accumulate
from typing import Annotated, Literal, Self

import msgspec
import numpy as np
from pydantic import Field, model_validator

from aiperf_svc.config.base import HOUR_NS
from aiperf_svc.config.workload import WorkloadConfig, WorkloadSpec
from aiperf_svc.core.results.measured import MetricInfo, Series
from aiperf_svc.workloads.steps import (
    Command,
    Output,
    Plot,
    Rank,
    Reading,
    Step,
    Tool,
    UnreadableOutput,
    timeout_of,
)
from aiperf_svc.workloads.tool import ToolWorkload, gpu_problems


class Measured(msgspec.Struct, frozen=True):
    """Results of one process."""

    torch: str
    cuda: str | None
    device: str
    """Name of the GPU, or `cpu`."""
    threads: int
    process: int
    processes: int
    parameters: int
    """Number of the model's parameters."""
    batch_s: tuple[float, ...]
    """Wall time of each batch."""
    gpu_s: tuple[float, ...] | None
    """GPU time of each batch, by CUDA events."""
    peak_host_bytes: int
    peak_device_bytes: int | None


def file_of(process: int) -> str:
    """Return the name of the file that a process writes."""
    return f"measured-{process}.json"


def read_files(
    files: Sequence[Mapping[str, bytes]], *, processes: int, iterations: int, has_gpu: bool
) -> tuple[Measured, ...]:
    """Return the results of each process from the files of all ranks. Raises UnreadableOutput."""
    data = {name: content for of_rank in files for name, content in of_rank.items()}
    found = []
    for process in range(processes):
        name = file_of(process)
        if name not in data:
            raise UnreadableOutput(f"process {process} of {processes} left no file {name!r}")
        try:
            measured = msgspec.json.decode(data[name], type=Measured)
        except msgspec.DecodeError as error:
            begin = data[name][:200]
            raise UnreadableOutput(f"{name}: {error}; it begins with {begin!r}") from error
        reported = (measured.process, measured.processes, len(measured.batch_s))
        if reported != (process, processes, iterations):
            raise UnreadableOutput(
                f"{name}: expected process {process} of {processes} with {iterations} batches, "
                f"found process {reported[0]} of {reported[1]} with {reported[2]}"
            )
        if min(measured.batch_s) <= 0:
            raise UnreadableOutput(f"{name}: a batch took {min(measured.batch_s)} s")
        has_both = measured.gpu_s is not None and measured.peak_device_bytes is not None
        if has_gpu and (not has_both or len(measured.gpu_s or ()) != iterations):
            raise UnreadableOutput(f"{name}: expected times and memory of a GPU, found none")
        found.append(measured)
    return tuple(found)


class PyTorchSpec(WorkloadSpec):
    """Batches of random data through one model; each process has a copy of the model."""

    kind: Literal["pytorch"] = "pytorch"
    device: Literal["cpu", "cuda"] = "cpu"
    """`cuda` needs GPUs. On a cluster, request them in `deployment.ranks.devices`."""
    model: Literal["alexnet", "resnet50", "llama"] = "resnet50"
    """`alexnet` and `resnet50` are torchvision's. `llama` is a decoder like Llama with 8 layers of
    width 1024, and its samples have `sequence_length` tokens."""
    mode: Literal["train", "eval"] = "train"
    """`train`: forward, loss, backward and an SGD step; `eval`: forward without gradients."""
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 64
    """Samples of each process in one batch."""
    iterations: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    """Timed batches."""
    warmup: Annotated[int, Field(ge=0, le=1_000_000)] = 5
    """Untimed batches before these."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the forward pass (autocast). float16 needs cuda, and uses loss scaling in
    training."""
    sequence_length: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    """Tokens per sample of `llama`."""
    gpus: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes per rank. With cuda, each has its own GPU; with cpu, they share the rank's CPUs."""
    ranks: Annotated[int, Field(ge=1, le=1_000)] = 1
    """Number of ranks. With more than one process in total, torchrun starts them, and they average
    their gradients. On CPUs this needs a PyTorch with gloo, which Debian's package lacks."""
    port: Annotated[int, Field(ge=1024, le=65_535)] = 29_400
    """Port on which rank 0 listens for the other processes."""

    @model_validator(mode="after")
    def _has_a_precision_of_its_device(self) -> Self:
        if self.device == "cpu" and self.precision == "float16":
            raise ValueError("{precision} float16 needs {device} cuda; a CPU has bfloat16")
        return self

    @property
    def processes(self) -> int:
        """Return the number of processes on all ranks."""
        return self.ranks * self.gpus


Config = WorkloadConfig[PyTorchSpec]
_SCRIPT = "batches.py"
_QUANTILES = {"p50": 50, "p90": 90, "p99": 99}


class PyTorch(ToolWorkload[PyTorchSpec]):
    """The kind `pytorch`."""

    kind = "pytorch"
    summary = "training or evaluation of a model with PyTorch, on CPUs or GPUs"
    spec = PyTorchSpec
    rank_key = "ranks"
    tools = (Tool("python3", "python3-torchvision"),)
    metrics = (
        MetricInfo(
            tag="samples_per_second",
            name="Samples per second",
            unit="samples/s",
            better="higher",
            formula="batch_size * iterations / total time of the batches, summed over processes",
            scales_with=("workload.ranks", "workload.gpus"),
        ),
        *(
            MetricInfo(
                tag=f"batch_time_{name}",
                name=f"Batch time, {name}",
                unit="ms",
                better="lower",
                formula=f"{name} of the wall times of all batches of all processes",
            )
            for name in _QUANTILES
        ),
        MetricInfo(
            tag="peak_host_memory",
            name="Peak host memory",
            unit="bytes",
            better="lower",
            formula="largest ru_maxrss of all processes",
        ),
    )
    gpu_metrics = (
        *(
            MetricInfo(
                tag=f"gpu_time_{name}",
                name=f"GPU time per batch, {name}",
                unit="ms",
                better="lower",
                formula=f"{name} of the times between the CUDA events around each batch",
            )
            for name in _QUANTILES
        ),
        MetricInfo(
            tag="peak_device_memory",
            name="Peak GPU memory",
            unit="bytes",
            better="lower",
            formula="largest torch.cuda.max_memory_allocated of all GPUs, without the warmup",
        ),
    )
    """Additional metrics for `device: cuda`."""

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
                commands=tuple(
                    _command(config, index, rank, ranks[0]) for index, rank in enumerate(ranks)
                ),
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

    def device_problems(self, config: Config) -> list[str]:
        spec = config.workload
        return gpu_problems(config, spec.gpus) if spec.device == "cuda" else []

    def plots(self, config: Config) -> tuple[Plot, ...]:
        return (Plot(title="Batch time", kind="series", name="batch_time"),)

    def progress(self, config: Config, line: str) -> str:
        number, found, time = line.removeprefix("batch ").partition(": ")
        if not line.startswith("batch ") or not found:
            return ""
        return f"batch {number} of {config.workload.iterations}: {time.strip()}"


def _command(config: Config, place: int, rank: Rank, first: Rank) -> Command:
    """Return the command of a rank by its position in the step. torchrun counts from 0, and a
    qualification skips ranks."""
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
        start += ["--node_rank", str(place), "--master_addr", first.address]
        start += ["--master_port", str(spec.port)]
    return Command(
        rank=rank.number,
        argv=(*start, _SCRIPT, json.dumps(settings)),
        env=_network_env(rank) | spec.env,
        keeps=("measured-*.json",),
    )


def _network_env(rank: Rank) -> dict[str, str]:
    """Return variables that name the interface for the exchange of gradients."""
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
