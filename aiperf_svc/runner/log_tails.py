"""The last words of a process, for the message about its end."""

import json
from pathlib import Path

LINES = 8
BYTES = 16 * 1024


def last_lines(folder: Path, name: str, count: int = LINES) -> str:
    """The end of what a process wrote on standard error, and of its log; indented, maybe empty."""
    lines = [_readable(line) for line in _tail(folder / f"{name}.log")]
    lines += _tail(folder / f"{name}.stderr")
    return "\n".join(f"  {line}" for line in lines[-count:])


def remove_empty(folder: Path) -> None:
    """Remove the standard error of processes that had nothing to say there."""
    for path in folder.glob("*.stderr"):
        if path.stat().st_size == 0:
            path.unlink()


def _tail(path: Path) -> list[str]:
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - BYTES))
        return file.read().decode(errors="replace").splitlines()


def _readable(line: str) -> str:
    """A structured line without what is the same in all of them."""
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    text = f"{entry.get('level', '')} {entry.get('service', '')}: {entry.get('message', '')}"
    return f"{text}\n{entry['exception']}" if "exception" in entry else text
