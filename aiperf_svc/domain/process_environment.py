"""How the processes of a run are started on any machine: their program and their variables."""

import sys
from collections.abc import Mapping
from pathlib import Path

OWN_PROGRAM = (sys.executable, "-P", str(Path(__file__).parents[1] / "__main__.py"))
"""The command `aiperf-svc` as a child process. `python -m` would import a `queue.py` of the user's
working folder instead of the library's; `-P` and a path never look there. A variable instead of
`-P` would change the user's own commands."""

USER_MASK = "AIPERF_USER_MASK"
"""Environment variable with the user's umask in octal, if ours differs."""
USER_VARIABLES = "AIPERF_USER_VARIABLES"
"""Environment variable with the names of the variables below that the user has set."""
PROCESS_ENVIRONMENT = {
    # No service multiplies matrices, and starting threads for it takes time.
    "OPENBLAS_NUM_THREADS": "1",
    # Batches of records are a megabyte and come many times a second: with these limits the
    # allocator keeps their memory instead of asking the kernel for the same pages each time, which
    # costs a record processor a tenth of its time.
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(64 * 2**20),
}
"""Environment variables of every process of a run, unless the user sets others."""


def without_working_folder(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a Python program of ours other than `OWN_PROGRAM`. An empty entry
    of PYTHONPATH means the working folder, whose files would replace the library's."""
    folders = filter(None, environ.get("PYTHONPATH", "").split(":"))
    return {**environ, "PYTHONPATH": ":".join(folders)}
