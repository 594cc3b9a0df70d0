"""Compiles the innermost step of the client (`aiperf_svc/adapters/_stamped_reads.c`), in a second.

    python scripts/compile_reads.py     next to its source, where Python finds it

Without a C compiler, or the headers of Python, it says so and succeeds: everything works without
it, and each chunk costs a worker twice as much.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "aiperf_svc" / "adapters" / "_stamped_reads.c"
LIBRARY = SOURCE.with_suffix(".abi3.so")
FLAGS = ("-O2", "-Wall", "-Wextra", "-Wno-unused-parameter", "-shared", "-fPIC")


def main() -> None:
    """Compile to a name of its own, then rename: nobody loads half a library."""
    made = LIBRARY.with_name(f"{LIBRARY.name}.{os.getpid()}")
    compiler = os.environ.get("CC", "cc")
    include = sysconfig.get_paths()["include"]
    command = [*compiler.split(), *FLAGS, f"-I{include}", str(SOURCE), "-o", str(made)]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        errors = [line for line in done.stderr.splitlines() if "error" in line]
        problem = " ".join(errors[:1] or ["failed"]) if done.returncode else ""
    except OSError as error:
        problem = str(error)
    if problem:
        for path in (made, LIBRARY):
            path.unlink(missing_ok=True)
        print(f"note: the client's reads are interpreted, not compiled: {problem}", file=sys.stderr)
    else:
        made.replace(LIBRARY)


if __name__ == "__main__":
    main()
