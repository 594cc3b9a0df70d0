"""The machine that figures were taken on, as every result names it."""

import os
import platform
from importlib.metadata import version
from typing import Any

from aiperf_svc.adapters import stamped_reads
from aiperf_svc.adapters.machine import cpu_model, memory_bytes, raise_fd_limit, usable_cores
from aiperf_svc.core import known_events, number_text
from aiperf_svc.mock_server import quick_serving


def describe() -> dict[str, Any]:
    """CPU, cores, memory, limits and versions."""
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "fd_limit": raise_fd_limit(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "reads": "compiled" if stamped_reads.compiled else "interpreted",
        "events": "compiled" if known_events.compiled else "interpreted",
        "lines": "compiled" if number_text.compiled else "interpreted",
        "server": "compiled" if quick_serving.compiled else "interpreted",
        "load_average": os.getloadavg()[0],
        "aiperf_svc": version("aiperf-svc"),
    }
