"""The keys of `workload: {kind: pytorch}`."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config.workload import WorkloadSpec


class PyTorchSpec(WorkloadSpec):
    """Batches of random data through one model; each process has a copy of the model."""

    kind: Literal["pytorch"] = "pytorch"
    device: Literal["cpu", "cuda"] = "cpu"
    """`cuda` needs GPUs in `deployment.ranks.devices`."""
    model: Literal["alexnet", "resnet50", "llama"] = "resnet50"
    """A model of torchvision, or a decoder like Llama, 8 layers 1024 wide, whose sample is a
    text of `sequence_length` tokens."""
    mode: Literal["train", "eval"] = "train"
    """`train`: forward, loss, backward and an SGD step; `eval`: forward without gradients."""
    batch_size: Annotated[int, Field(ge=1, le=1_000_000)] = 64
    """Samples of each process in one batch."""
    iterations: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    """Batches that are timed."""
    warmup: Annotated[int, Field(ge=0, le=1_000_000)] = 5
    """Batches before them."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of the forward pass (autocast). float16 trains with a scaled loss, needs cuda."""
    sequence_length: Annotated[int, Field(ge=1, le=1_000_000)] = 512
    """Tokens of a sample of llama."""
    gpus: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes of each rank: one for each of its GPUs with cuda. With cpu they share its CPUs."""
    ranks: Annotated[int, Field(ge=1, le=1_000)] = 1
    """More than one process in all: torchrun starts them, and gradients are averaged over them. On
    CPUs this needs a PyTorch with gloo, which Debian's lacks."""
    port: Annotated[int, Field(ge=1024, le=65_535)] = 29_400
    """On which rank 0 listens for the other processes."""

    @model_validator(mode="after")
    def _has_a_precision_of_its_device(self) -> Self:
        if self.device == "cpu" and self.precision == "float16":
            raise ValueError("{precision} float16 needs {device} cuda; a CPU has bfloat16")
        return self

    @property
    def processes(self) -> int:
        """Processes of all ranks."""
        return self.ranks * self.gpus
