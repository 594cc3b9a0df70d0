"""Compiles the hot loops of worker, record processor and mock server, each within a second.

    python scripts/compile_steps.py     next to their sources, where Python finds them

Without a C compiler or Python's headers, it prints a note and succeeds: everything still works, but
each chunk costs both sides twice as much CPU. Only the launcher of servers in Jobs
(`experiment.fan_out`) has no interpreted form; it is Linux-only.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
SOURCES = (
    PROJECT / "aiperf_svc" / "adapters" / "inference" / "_stamped_reads.c",
    PROJECT / "aiperf_svc" / "core" / "responses" / "_fast_events.c",
    PROJECT / "aiperf_svc" / "core" / "lines" / "_number_text.c",
    PROJECT / "aiperf_svc" / "mock_server" / "_quick_serving.c",
)
LAUNCHER = PROJECT / "aiperf_svc" / "adapters" / "jobs" / "_server_launcher.c"
SUFFIX = ".abi3.so"
WARNINGS = ("-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror=implicit-function-declaration")
FLAGS = ("-O2", "-fno-math-errno", *WARNINGS, "-shared", "-fPIC")
LAUNCHER_FLAGS = ("-O2", *WARNINGS, "-static", "-s")


def main() -> None:
    """Compile each to a temporary name and rename it, so no process loads half a library."""
    for source in SOURCES:
        library = source.with_suffix(SUFFIX)
        made = library.with_name(f"{library.name}.{os.getpid()}")
        include = sysconfig.get_paths()["include"]
        problem = _compile(source, made, (*FLAGS, f"-I{include}"))
        if problem:
            for path in (made, library):
                path.unlink(missing_ok=True)
            print(
                f"note: {source.stem[1:]} is interpreted, not compiled: {problem}", file=sys.stderr
            )
        else:
            made.replace(library)
    _compile_launcher()


def _compile_launcher() -> None:
    """Compile the launcher. Without a compiler, an existing one is kept."""
    if sys.platform != "linux":
        return
    launcher = LAUNCHER.with_suffix("")
    made = launcher.with_name(f"{launcher.name}.{os.getpid()}")
    problem = _compile(LAUNCHER, made, LAUNCHER_FLAGS)
    if not problem:
        made.replace(launcher)
        return
    made.unlink(missing_ok=True)
    if not launcher.exists():
        print(f"note: experiment.fan_out: jobs will not work: {problem}", file=sys.stderr)


def _compile(source: Path, made: Path, flags: tuple[str, ...]) -> str:
    """Compile and return the error, or an empty text."""
    compiler = os.environ.get("CC", "cc")
    command = [*compiler.split(), *flags, str(source), "-o", str(made)]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError as error:
        return str(error)
    errors = [line for line in done.stderr.splitlines() if "error" in line]
    return " ".join(errors[:1] or ["failed"]) if done.returncode else ""


if __name__ == "__main__":
    main()
