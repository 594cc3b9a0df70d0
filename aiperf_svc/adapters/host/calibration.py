"""What `aiperf-svc calibrate` found on this machine, kept between runs.

The file's name holds the processor, the cores, Python and our version: figures of another machine
or another build are not found instead of being wrong.
"""

import hashlib
import os
import platform
from pathlib import Path

import msgspec

from aiperf_svc import __version__
from aiperf_svc.domain.errors import EnvironmentProblem


class LagStep(msgspec.Struct, frozen=True):
    """Open loop at one rate."""

    rate: float
    """Requests per second, asked for."""
    schedule_lag_p99_ms: float
    verdict: str


class Calibration(msgspec.Struct, frozen=True):
    """This machine's ceiling, the mock server on the same cores."""

    machine: str
    worker_requests_per_s: float
    """Closed loop, one worker, one-token streams."""
    requests_per_s: float
    """The same with as many workers as the plan gives."""
    chunks_per_s: float
    """Streams of 100 tokens."""
    worker_rate: float
    """Open loop, one worker: the highest step whose schedule lag stayed low."""
    connections: int
    """That one worker may hold, by its file descriptors."""
    steps: tuple[LagStep, ...] = ()


def machine_key(cpu: str, cores: float) -> str:
    """What a calibration is valid for."""
    return f"{cpu}, {cores:g} cores, Python {platform.python_version()}, aiperf-svc {__version__}"


def calibration_file(machine: str) -> Path:
    """Where the calibration of a machine is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    name = hashlib.sha256(machine.encode()).hexdigest()[:12]
    return Path(base).expanduser() / "aiperf-svc" / f"calibration-{name}.json"


def load_calibration(machine: str) -> Calibration | None:
    """What was saved; None without a readable file of this version."""
    try:
        found = msgspec.json.decode(calibration_file(machine).read_bytes(), type=Calibration)
    except (OSError, msgspec.MsgspecError, RuntimeError):
        return None
    return found if found.machine == machine else None


def save_calibration(calibration: Calibration) -> Path:
    """Keep it; the file. Raises EnvironmentProblem."""
    path = calibration_file(calibration.machine)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(calibration)) + b"\n")
        partial.replace(path)
    except OSError as error:
        raise EnvironmentProblem(
            f"cannot keep the calibration in {path}: {error.strerror or error}; "
            "XDG_CACHE_HOME names another place"
        ) from error
    return path
