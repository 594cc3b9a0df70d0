"""Compiles the data path with mypyc, next to its sources: Python then imports the compiled modules.

    python scripts/compile_core.py            compile, about a minute; needs a C compiler
    python scripts/compile_core.py --remove   back to the sources

The sources stay the reference: they run without any of this, and what is compiled is just them. A
module belongs in the list when a profile shows that its own Python is what costs. The endpoints do
not: they define structs that msgspec decodes, and compiled ones it does not fill in.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "aiperf_svc"
GROUP = "aiperf_svc_core"
"""Name of the library that the compiled modules share."""
MODULES = (
    "core/answer_events.py",
    "core/answer_layouts.py",
    "core/answer_reader.py",
    "core/event_memo.py",
    "core/http1.py",
    "core/jsonl_lines.py",
    "core/known_answers.py",
    "core/number_text.py",
    "core/read_times.py",
    "core/metric_parts.py",
    "core/record_assembly.py",
    "core/request_metrics.py",
    "core/sse.py",
    "adapters/answer_framing.py",
    "adapters/connection.py",
    "adapters/inference_client.py",
    "adapters/raw_records.py",
    "services/load_generator.py",
)
_SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup
extensions = mypycify(sys.argv.pop().split(","), group_name={group!r}, opt_level="3")
setup(name={group!r}, packages=[], ext_modules=extensions)
"""


def compiled_files() -> list[Path]:
    """What is compiled now."""
    suffix = ".cpython-*.so"
    modules = [path for m in MODULES for path in _beside(ROOT / PACKAGE / m, suffix)]
    return [*modules, *ROOT.glob(f"{GROUP}__mypyc{suffix}")]


def _beside(source: Path, suffix: str) -> list[Path]:
    return list(source.parent.glob(source.stem + suffix))


def remove() -> None:
    """Delete it."""
    for path in compiled_files():
        path.unlink()


def build() -> None:
    """Compile in a copy, so that neither this folder's project file nor a failure gets in the
    way."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ignored = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / PACKAGE, folder / PACKAGE, ignore=ignored)
        (folder / "setup.py").write_text(_SETUP.format(group=GROUP))
        sources = ",".join(f"{PACKAGE}/{module}" for module in MODULES)
        command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", sources]
        done = subprocess.run(command, cwd=folder, check=False)
        if done.returncode:
            sys.exit("error: not compiled; the sources are used as before (is there a C compiler?)")
        remove()
        made = [*(folder / PACKAGE).rglob("*.so"), *folder.glob("*.so")]
        for path in made:
            shutil.copy2(path, ROOT / path.relative_to(folder))


def main() -> None:
    """As the command line says."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--remove", action="store_true", help="delete what is compiled")
    if arguments.parse_args().remove:
        remove()
    else:
        build()


if __name__ == "__main__":
    main()
