"""Command lines of AIPerf's documentation, and the files that they name."""

import json
from pathlib import Path

_LINES = Path(__file__).parent / "data" / "aiperf_commands.txt"
_ROW = {"input_length": 100, "output_length": 4, "hash_ids": [1]}
TRACE = [{"timestamp": at} | _ROW for at in (0, 100, 2000, 2100, 4000)]
FILES = {
    "example_trace.jsonl": TRACE,
    "precise_schedule.jsonl": TRACE,
    "production_queries.jsonl": TRACE,
    "inputs.jsonl": [{"texts": ["Hello!"]}, {"texts": ["Tell me a joke."]}],
}


def documented() -> list[str]:
    """Return the command lines."""
    return [line for line in _LINES.read_text().splitlines() if line.startswith("aiperf ")]


def write_inputs(folder: Path) -> None:
    """Write the files that the command lines name."""
    for name, rows in FILES.items():
        (folder / name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
