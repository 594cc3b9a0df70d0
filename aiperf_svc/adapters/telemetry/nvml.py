"""Reads the GPUs of this machine through NVML, NVIDIA's management library, and renders them as a
page of dcgm-exporter.

DCGM reads these values from NVML too. With DCGM's names and units, every reader of DCGM exporters
can read these pages: in the same process if the run is on the GPUs' machine, and over HTTP from
elsewhere (`aiperf-svc nvml-exporter`). NVML has no profiling counters, such as the activity of the
tensor cores. A value that a GPU or its driver does not support is left out.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from time import monotonic_ns, time_ns
from typing import Any, NamedTuple, Self

from aiperf_svc.adapters.telemetry.pages import FetchedPage
from aiperf_svc.config.telemetry import ALL_GPUS

MODULE = "pynvml"
EXTRA = "aiperf-svc[nvml]"
MIB = 2**20
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Prometheus' text format."""


class NvmlError(Exception):
    """Raised when the GPUs of this machine cannot be read, with the reason."""


class _Field(NamedTuple):
    name: str
    type: str
    help: str
    read: Callable[[Any, Any], float]
    """Function of NVML and a device's handle; returns DCGM's value. Raises NVML's error."""


_FIELDS = (
    _Field(
        "DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W).",
        lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1e3,
    ),
    _Field(
        "DCGM_FI_DEV_POWER_MGMT_LIMIT", "gauge", "Enforced limit of power (in W).",
        lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1e3,
    ),
    _Field(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Energy since the driver's start (mJ).",
        lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu),
    ),
    _Field(
        "DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %).",
        lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu,
    ),
    _Field(
        "DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %).",
        lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).memory,
    ),
    _Field(
        "DCGM_FI_DEV_FB_USED", "gauge", "Memory used (in MiB).",
        lambda nvml, gpu: _memory(nvml, gpu).used / MIB,
    ),
    _Field(
        "DCGM_FI_DEV_FB_FREE", "gauge", "Memory free (in MiB).",
        lambda nvml, gpu: _memory(nvml, gpu).free / MIB,
    ),
    _Field(
        "DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C).",
        lambda nvml, gpu: nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU),
    ),
    _Field(
        "DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz).",
        lambda nvml, gpu: nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM),
    ),
    _Field(
        "DCGM_FI_DEV_MAX_SM_CLOCK", "gauge", "Highest SM clock frequency (in MHz).",
        lambda nvml, gpu: nvml.nvmlDeviceGetMaxClockInfo(gpu, nvml.NVML_CLOCK_SM),
    ),
    _Field(
        "DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "gauge", "Why the clocks are not higher (bits).",
        lambda nvml, gpu: nvml.nvmlDeviceGetCurrentClocksEventReasons(gpu),
    ),
    _Field(
        "DCGM_FI_DEV_POWER_VIOLATION", "counter", "Throttling due to power limits (in ns).",
        lambda nvml, gpu: _violation_ns(nvml, gpu, nvml.NVML_PERF_POLICY_POWER),
    ),
    _Field(
        "DCGM_FI_DEV_THERMAL_VIOLATION", "counter", "Throttling due to thermal limits (in ns).",
        lambda nvml, gpu: _violation_ns(nvml, gpu, nvml.NVML_PERF_POLICY_THERMAL),
    ),
)  # fmt: skip


def _memory(nvml: Any, gpu: Any) -> Any:
    """Return the memory of a GPU as in DCGM and nvidia-smi, where the driver's own reserve does not
    count as used. Drivers before R510 have only the older call, which counts it."""
    try:
        return nvml.nvmlDeviceGetMemoryInfo(gpu, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError_FunctionNotFound:
        return nvml.nvmlDeviceGetMemoryInfo(gpu)


def _violation_ns(nvml: Any, gpu: Any, policy: int) -> float:
    return float(nvml.nvmlDeviceGetViolationStatus(gpu, policy).violationTime)


class NvmlGpus:
    """GPUs of this machine. Its methods block for some milliseconds."""

    def __init__(self, wanted: Sequence[str] = (ALL_GPUS,)) -> None:
        """Load NVML and find the GPUs: `all`, or indexes and UUIDs. Raises NvmlError."""
        self._nvml = _load()
        try:
            found = dict(self._devices())
            self._gpus = dict(_chosen(wanted, found))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def page(self) -> str:
        """Return the current values as a metrics page."""
        lines = []
        for name, kind, help_text, read in _FIELDS:
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}"]
            for labels, gpu in self._gpus.items():
                value = self._attempt(read, self._nvml, gpu)
                lines += [] if value is None else [f"{name}{labels} {value!r}"]
        return "\n".join(lines) + "\n"

    def _devices(self) -> Iterator[tuple[tuple[str, str, str], Any]]:
        """Yield the index, the UUID and the labels of each GPU, with its handle."""
        nvml, host = self._nvml, socket.gethostname()
        versions = {
            "DCGM_FI_DRIVER_VERSION": self._attempt(nvml.nvmlSystemGetDriverVersion),
            "DCGM_FI_CUDA_DRIVER_VERSION": self._attempt(nvml.nvmlSystemGetCudaDriverVersion_v2),
        }
        for index in range(self._attempt(nvml.nvmlDeviceGetCount) or 0):
            gpu = self._attempt(nvml.nvmlDeviceGetHandleByIndex, index)
            if gpu is None:
                continue  # another user's GPU, or one that has fallen off the bus
            uuid = self._attempt(nvml.nvmlDeviceGetUUID, gpu) or ""
            labels = {
                "gpu": index,
                "UUID": uuid,
                "device": f"nvidia{index}",
                "modelName": self._attempt(nvml.nvmlDeviceGetName, gpu),
                "Hostname": host,
                **versions,
            }
            text = ",".join(f'{k}="{_label(v)}"' for k, v in labels.items() if v is not None)
            yield (str(index), uuid, f"{{{text}}}"), gpu

    def _attempt(self, read: Callable[..., Any], *arguments: object) -> Any:
        """Return what `read` returns; None if the GPU or the driver does not support it."""
        try:
            return read(*arguments)
        except self._nvml.NVMLError:
            return None


class NvmlPages:
    """Reads the pages of this machine's GPUs as a source of a run."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self._wanted = wanted
        self._gpus: NvmlGpus | None = None
        self._reading: asyncio.Task[FetchedPage] | None = None
        """The latest read. A hanging driver blocks its thread, so only one runs at a time: the
        other threads are needed for the results."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        # Shutdown would block until a hanging read has ended.
        can_close = self._reading is None or self._reading.done()
        if self._gpus is not None and can_close:
            self._gpus.close()

    async def fetch(self, _url: str, *, timeout_s: float) -> FetchedPage:
        """Read a page, like `PageClient` over HTTP."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(asyncio.to_thread(self._read), name="read NVML")
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.shield(self._reading)
        except TimeoutError:
            return FetchedPage(f"NVML did not respond within {timeout_s:g} s")
        except NvmlError as error:
            return FetchedPage(str(error))

    def _read(self) -> FetchedPage:
        if self._gpus is None:
            self._gpus = NvmlGpus(self._wanted)
        # Neither the start of NVML nor the wait for this thread is part of the reading.
        began_ns = monotonic_ns()
        text = self._gpus.page()
        latency_ns = monotonic_ns() - began_ns
        return FetchedPage("", text, time_ns() - latency_ns // 2, latency_ns)


async def serve(gpus: NvmlGpus, host: str, port: int) -> None:
    """Serve the page over HTTP, at every path, until cancelled. Raises OSError if it cannot listen
    on the address."""
    from aiohttp import web

    async def respond(_request: web.BaseRequest) -> web.Response:
        text = await asyncio.to_thread(gpus.page)
        return web.Response(text=text, headers={"Content-Type": CONTENT_TYPE})

    runner = web.ServerRunner(web.Server(respond))
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
        print(f"GPU metrics: http://{host}:{runner.addresses[0][1]}/metrics", flush=True)
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()


def _load() -> Any:
    if find_spec(MODULE) is None:
        raise NvmlError(f"NVML needs another package: pip install '{EXTRA}'")
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise NvmlError(
            f"NVML cannot be used: {error}; it needs NVIDIA's driver on this machine"
        ) from error
    return pynvml


def _chosen(
    wanted: Sequence[str], found: dict[tuple[str, str, str], Any]
) -> Iterator[tuple[str, Any]]:
    if not found:
        raise NvmlError("NVML finds no GPU on this machine")
    if tuple(wanted) == (ALL_GPUS,):
        wanted = [index for index, _, _ in found]
    for each in wanted:
        of_name = [(label, gpu) for (*names, label), gpu in found.items() if each in names]
        if not of_name:
            known = ", ".join(f"{index} ({uuid})" for index, uuid, _ in found)
            raise NvmlError(f"NVML finds no GPU {each!r} on this machine; it has {known}")
        yield of_name[0]


def _label(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
