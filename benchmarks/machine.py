"""Description of the machine, which every result contains."""

import os
import platform
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Final

from aiperf_svc.adapters.host.machine import cpu_model, memory_bytes, raise_fd_limit, usable_cores

_STEPS: Final = {
    "reads": "adapters.inference._stamped_reads",
    "events": "core.responses._fast_events",
    "lines": "core.lines._number_text",
    "server": "mock_server._quick_serving",
}


def describe() -> dict[str, Any]:
    """Return CPU, cores, memory, limits and versions."""
    return {
        "cpu": cpu_model(),
        "cores": usable_cores(),
        "memory_gib": round(memory_bytes() / 2**30, 1),
        "fd_limit": raise_fd_limit(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{
            name: "compiled" if find_spec(f"aiperf_svc.{module}") else "interpreted"
            for name, module in _STEPS.items()
        },
        "load_average": os.getloadavg()[0],
        "aiperf_svc": version("aiperf-svc"),
    }
