"""The logs of a run's processes: their last words, for the message about an end, and their lines as
they are written."""

import json
from pathlib import Path

LINES = 8
BYTES = 16 * 1024


def last_lines(folder: Path, name: str, count: int = LINES) -> str:
    """The end of what a process wrote on standard error, and of its logs; indented, maybe empty."""
    logged = [(line, path.stem) for path in _logs_of(folder, name) for line in _tail(path)]
    # Those of several services are one story in the order of time.
    logged.sort(key=lambda pair: _time(pair[0]))
    lines = [_readable(line, service) for line, service in logged]
    lines += _tail(folder / f"{name}.stderr")
    return "\n".join(f"  {line}" for line in lines[-count:])


def remove_empty(folder: Path) -> None:
    """Remove the standard error of processes that had nothing to say there."""
    for path in folder.glob("*.stderr"):
        if path.stat().st_size == 0:
            path.unlink()


class Tails:
    """Reads the new lines of the logs in a folder."""

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


def _logs_of(folder: Path, process: str) -> list[Path]:
    """The log of a process that is one service; else those of all that are not numbered."""
    own = folder / f"{process}.log"
    if own.is_file():
        return [own]
    return [path for path in folder.glob("*.log") if not path.stem[-1].isdigit()]


def _tail(path: Path) -> list[str]:
    if not path.is_file():
        return []
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - BYTES))
        return file.read().decode(errors="replace").splitlines()


def _time(line: str) -> str:
    try:
        return str(json.loads(line)["time"])
    except (ValueError, TypeError, KeyError):
        return ""


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
