"""The logs of a run's processes: their last words, for the message about an end, and their lines as
they are written."""

import json
from pathlib import Path

LINES = 8
BYTES = 16 * 1024


def last_lines(folder: Path, name: str, count: int = LINES) -> str:
    """The end of what a process wrote on standard error, and of its log; indented, maybe empty."""
    lines = [_readable(line, name) for line in _tail(folder / f"{name}.log")]
    lines += _tail(folder / f"{name}.stderr")
    return "\n".join(f"  {line}" for line in lines[-count:])


def remove_empty(folder: Path) -> None:
    """Remove the standard error of processes that had nothing to say there."""
    for path in folder.glob("*.stderr"):
        if path.stat().st_size == 0:
            path.unlink()


class Tails:
    """What is new in a folder's logs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, int] = {}

    def new_lines(self) -> list[str]:
        """Whole lines written since the last call, readable; those of one file in order."""
        lines: list[str] = []
        for path in sorted(self._folder.glob("*.log")):
            begin = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(begin)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read[path] = begin + len(whole) + len(newline)
            text = whole.decode(errors="replace")
            lines += [_readable(line, path.stem) for line in text.splitlines()]
        return lines


def _tail(path: Path) -> list[str]:
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - BYTES))
        return file.read().decode(errors="replace").splitlines()


def _readable(line: str, process: str) -> str:
    """A structured line without what is the same in all of them."""
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    service = entry.get("service", "")
    who = process if process.startswith(service) else service
    text = f"{entry.get('level', '')} {who}: {entry.get('message', '')}"
    return f"{text}\n{entry['exception']}" if "exception" in entry else text
