"""Runs the compiled code under AddressSanitizer and UndefinedBehaviorSanitizer.

    make sanitize
    python -m benchmarks.fuzz.sanitized --responses 10000

Compiles the C code of a copy of the project with both sanitizers and runs its tests and the
fuzzer's responses with it. If a sanitizer finds something, prints the report and exits with 1.
Needs gcc with the sanitizer libraries.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import machine_use

ROOT = Path(__file__).parents[2]
COPIED = ("aiperf_svc", "benchmarks", "infra", "scripts", "stacks", "tests")
COPIED_FILES = ("pyproject.toml", "Pulumi.yaml")
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -g"
TESTS = (
    "tests/unit/records",
    "tests/unit/mock_server",
    "tests/integration/stamped_reads",
    "tests/integration/mock_server/test_quick_serving.py",
    "tests/integration/mock_server/test_due_writes.py",
)


def main() -> int:
    """Compile, run and report. Return 0 if no sanitizer reported anything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--responses", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    machine_use.end_orderly()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project, reports = folder / "project", folder / "reports"
        reports.mkdir()
        _copy(project)
        _compile(project)
        environ = _environ(project, reports)
        commands = (
            ["pytest", "-q", "-p", "no:cacheprovider", *TESTS],
            ["benchmarks.fuzz", "--in-process", "--configs", "0", "--seed", str(options.seed),
             "--responses", str(options.responses)],
        )  # fmt: skip
        codes = [
            subprocess.run(
                [sys.executable, "-m", *command], cwd=project, env=environ, check=False
            ).returncode
            for command in commands
        ]
        found = sorted(reports.iterdir())
        for report in found:
            print(report.read_text(errors="replace"))
    print(f"{len(found)} reports of the sanitizers, exit codes {codes}")
    return 1 if found or any(codes) else 0


def _copy(project: Path) -> None:
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    for name in COPIED:
        shutil.copytree(ROOT / name, project / name, ignore=ignored)
    for name in COPIED_FILES:
        shutil.copy(ROOT / name, project / name)


def _compile(project: Path) -> None:
    """Compile the copy, or raise SystemExit: interpreted code would prove nothing."""
    environ = os.environ | {"CC": f"gcc {SANITIZERS}"}
    script = project / "scripts" / "compile_steps.py"
    subprocess.run([sys.executable, str(script)], env=environ, check=True)
    sources = list((project / "aiperf_svc").glob("*/_*.c"))
    missing = [path.name for path in sources if not path.with_suffix(".abi3.so").is_file()]
    if missing or not sources:
        raise SystemExit(f"error: not compiled: {', '.join(missing)}; see the note above")


def _environ(project: Path, reports: Path) -> dict[str, str]:
    """Return an environment that preloads the sanitizer and uses its allocator for objects."""
    library = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    return os.environ | {
        "LD_PRELOAD": library,
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": str(project),
        # Python keeps memory until exit. The quarantine is small because memory growth is checked.
        "ASAN_OPTIONS": f"detect_leaks=0:quarantine_size_mb=16:log_path={reports}/report",
        "UBSAN_OPTIONS": f"print_stacktrace=1:log_path={reports}/report",
    }


if __name__ == "__main__":
    sys.exit(main())
