"""Times batches of one model and writes the results to `measured-PROCESS.json`.

    python3 batches.py '{"device": "cpu", "model": "resnet50", ...}'

torchrun starts it for more than one process. The keys are those of the workload's spec.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

try:
    import torch
    from torch import nn
    from torch.nn import functional
except ImportError as error:
    sys.exit(f"{sys.executable}: {error}; install PyTorch there, or put a python3 with it on PATH")

VOCABULARY, WIDTH, LAYERS, HEADS = 32_000, 1024, 8, 16
CLASSES, PIXELS = 1000, 224


class RmsNorm(nn.Module):
    """Scale each token by the root of its mean square."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mean = x.float().pow(2).mean(-1, keepdim=True)
        return (x.float() * torch.rsqrt(mean + 1e-6)).type_as(x) * self.weight


def rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotate each pair of dimensions by an angle that grows with the position."""
    half = x.shape[-1] // 2
    speeds = 10_000 ** (-torch.arange(half, device=x.device) / half)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * speeds
    sine, cosine = angles.sin().type_as(x), angles.cos().type_as(x)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)


def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Compute causal attention, also on PyTorch 1, which has no function for it."""
    if hasattr(functional, "scaled_dot_product_attention"):
        return functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(future, float("-inf")).softmax(-1) @ value


class Layer(nn.Module):
    """Attention, then a gated linear unit."""

    def __init__(self) -> None:
        super().__init__()
        hidden = WIDTH * 8 // 3 // 64 * 64
        self.before_attention, self.before_gate = RmsNorm(), RmsNorm()
        self.heads = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.joined = nn.Linear(WIDTH, WIDTH, bias=False)
        self.gate = nn.Linear(WIDTH, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        parts = self.heads(self.before_attention(x)).view(batch, length, 3, HEADS, -1)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = attention(rotated(query), rotated(key), value)
        x = x + self.joined(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        gate, up = self.gate(self.before_gate(x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


class Llama(nn.Sequential):
    """A decoder with the same parts as Llama, with random weights."""

    def __init__(self) -> None:
        super().__init__(
            nn.Embedding(VOCABULARY, WIDTH),
            *(Layer() for _ in range(LAYERS)),
            RmsNorm(),
            nn.Linear(WIDTH, VOCABULARY, bias=False),
        )


def made(
    spec: dict[str, Any], device: torch.device
) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return the model and one batch of random inputs and targets."""
    size = spec["batch_size"]
    if spec["model"] == "llama":
        shape = (size, spec["sequence_length"])
        tokens = torch.randint(VOCABULARY, shape, device=device)
        return Llama().to(device), tokens, tokens.roll(-1, 1)
    import torchvision

    model = getattr(torchvision.models, spec["model"])(num_classes=CLASSES)
    inputs = torch.randn(size, 3, PIXELS, PIXELS, device=device)
    return model.to(device), inputs, torch.randint(CLASSES, (size,), device=device)


def batch_function(
    spec: dict[str, Any], model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor
) -> Callable[[], None]:
    """Return the function that runs one batch through the model."""
    kind = inputs.device.type
    precision = getattr(torch, spec["precision"])
    cast = torch.autocast(kind, precision) if precision != torch.float32 else nullcontext()
    if spec["mode"] == "eval":
        model.eval()

        def evaluate() -> None:
            with torch.no_grad(), cast:
                model(inputs)

        return evaluate
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    scaler = torch.cuda.amp.GradScaler(enabled=precision == torch.float16)

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        with cast:
            outputs = model(inputs).flatten(0, -2)
            loss = functional.cross_entropy(outputs, targets.flatten())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return train


def timed(batch: Callable[[], None], device: torch.device) -> tuple[float, float | None]:
    """Return the wall time and the GPU's time of one batch, in seconds."""
    if device.type == "cpu":
        start = time.perf_counter()
        batch()
        return time.perf_counter() - start, None
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start = time.perf_counter()
    begin.record()
    batch()
    end.record()
    torch.cuda.synchronize()
    return time.perf_counter() - start, begin.elapsed_time(end) / 1e3


def main(spec: dict[str, Any]) -> None:
    """Measure this process' share of the workload."""
    process, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.manual_seed(spec["seed"] + process)
    device = torch.device("cpu")
    if spec["device"] == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(spec["threads"])
    if processes > 1:
        torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
    model, inputs, targets = made(spec, device)
    if processes > 1 and spec["mode"] == "train":
        devices = [device.index] if device.type == "cuda" else None
        model = nn.parallel.DistributedDataParallel(model, device_ids=devices)
    batch = batch_function(spec, model, inputs, targets)
    for _ in range(spec["warmup"]):
        timed(batch, device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    if processes > 1:
        torch.distributed.barrier()
    wall, gpu = [], []
    for number in range(spec["iterations"]):
        of_wall, of_gpu = timed(batch, device)
        wall.append(of_wall)
        gpu.append(of_gpu)
        if process == 0:
            print(f"batch {number + 1}: {of_wall:.4f} s", flush=True)
    measured = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "process": process,
        "processes": processes,
        "parameters": sum(p.numel() for p in model.parameters()),
        "batch_s": wall,
        "gpu_s": gpu if device.type == "cuda" else None,
        "peak_host_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "peak_device_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
    }
    Path(f"measured-{process}.json").write_text(json.dumps(measured))
    if processes > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
