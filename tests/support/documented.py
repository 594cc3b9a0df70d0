"""Commands and configs from the documentation of this project and of AIPerf."""

import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("docs/workloads/*.md"))]
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?aiperf-svc (.*)$", re.MULTILINE)
_INLINE = re.compile(r"`(?:\.venv/bin/)?aiperf-svc ([a-z][^`]*)`")


@cache
def commands(page: Path) -> list[list[str]]:
    """Return the arguments of each command line of this program in a page."""
    text = page.read_text()
    blocks = [block.replace("\\\n", " ") for _, block in _BLOCK.findall(text)]
    lines = [line for block in blocks for line in _COMMAND.findall(block)]
    return [shlex.split(line, comments=True) for line in lines + _INLINE.findall(text)]


def yaml_blocks(page: Path) -> list[str]:
    """Return the YAML blocks of a page."""
    return [text for language, text in _BLOCK.findall(page.read_text()) if language == "yaml"]


_LINES = ROOT / "tests" / "data" / "aiperf_commands.txt"
_ROW = {"input_length": 100, "output_length": 4, "hash_ids": [1]}
TRACE = [{"timestamp": at} | _ROW for at in (0, 100, 2000, 2100, 4000)]
FILES: dict[str, list[dict[str, Any]]] = {
    "example_trace.jsonl": TRACE,
    "precise_schedule.jsonl": TRACE,
    "production_queries.jsonl": TRACE,
    "inputs.jsonl": [{"texts": ["Hello!"]}, {"texts": ["Tell me a joke."]}],
}


def documented() -> list[str]:
    """Return AIPerf's documented command lines."""
    return [line for line in _LINES.read_text().splitlines() if line.startswith("aiperf ")]


def write_inputs(folder: Path) -> None:
    """Write the input files that the command lines refer to."""
    for name, rows in FILES.items():
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
