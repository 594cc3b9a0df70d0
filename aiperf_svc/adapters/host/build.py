"""Describes this installation: its commit, and which modules are compiled."""

import subprocess
from importlib.util import find_spec
from pathlib import Path

import aiperf_svc

PACKAGE = Path(aiperf_svc.__file__).parent
COMMIT = "_commit"
"""File with the commit, in a wheel or sdist (`scripts/build_hook.py`)."""
COMPILED_STEPS = (
    "aiperf_svc.adapters.inference._stamped_reads",
    "aiperf_svc.core.lines._number_text",
    "aiperf_svc.core.responses._fast_events",
    "aiperf_svc.mock_server._quick_serving",
)


def commit(package: Path = PACKAGE) -> str:
    """Return the commit of this build or checkout; `unknown` if there is none."""
    try:
        return (package / COMMIT).read_text().strip()
    except OSError:
        pass
    if not (package.parent / ".git").exists():
        return "unknown"
    command = ("git", "-C", str(package.parent), "rev-parse", "HEAD")
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def interpreted_steps() -> list[str]:
    return [name.rpartition("._")[2] for name in COMPILED_STEPS if find_spec(name) is None]


def interpreted_notice() -> str:
    """Return a notice if some modules are not compiled; empty otherwise."""
    missing = interpreted_steps()
    if not missing:
        return ""
    return (
        f"{', '.join(missing)}: interpreted, not compiled, so each chunk costs about twice the "
        "CPU; install a C compiler and the headers of Python, then aiperf-svc again"
    )
