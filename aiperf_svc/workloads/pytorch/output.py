"""Reads the files that the script `batches.py` leaves."""

from collections.abc import Mapping, Sequence

import msgspec

from aiperf_svc.workloads.steps import UnreadableOutput


class Measured(msgspec.Struct, frozen=True):
    """What one process measured."""

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
    """The GPU's time of each batch, by CUDA events."""
    peak_host_bytes: int
    peak_device_bytes: int | None


def file_of(process: int) -> str:
    """Name of the file that a process writes."""
    return f"measured-{process}.json"


def read_files(
    files: Sequence[Mapping[str, bytes]], *, processes: int, iterations: int, has_gpu: bool
) -> tuple[Measured, ...]:
    """What each process measured, from the files of all ranks. Raises UnreadableOutput."""
    found = {name: data for of_rank in files for name, data in of_rank.items()}
    return tuple(
        _measured(process, found.get(file_of(process)), processes, iterations, has_gpu)
        for process in range(processes)
    )


def _measured(
    process: int, data: bytes | None, processes: int, iterations: int, has_gpu: bool
) -> Measured:
    name = file_of(process)
    if data is None:
        raise UnreadableOutput(f"process {process} of {processes} left no file {name!r}")
    try:
        measured = msgspec.json.decode(data, type=Measured)
    except msgspec.DecodeError as error:
        raise UnreadableOutput(f"{name}: {error}; it begins with {data[:200]!r}") from error
    said = (measured.process, measured.processes, len(measured.batch_s))
    if said != (process, processes, iterations):
        raise UnreadableOutput(
            f"{name}: expected process {process} of {processes} with {iterations} batches, "
            f"found process {said[0]} of {said[1]} with {said[2]}"
        )
    if min(measured.batch_s) <= 0:
        raise UnreadableOutput(f"{name}: a batch took {min(measured.batch_s)} s")
    has_both = measured.gpu_s is not None and measured.peak_device_bytes is not None
    if has_gpu and (not has_both or len(measured.gpu_s or ()) != iterations):
        raise UnreadableOutput(f"{name}: expected times and memory of a GPU, found none")
    return measured
