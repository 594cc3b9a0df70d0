"""Structured logs: one JSON object per line in files and pods, one readable line in a terminal.

Every line has the time, level, run, phase and service. Every service has a file in AIPERF_LOG_DIR:
`<instance>.log` if a process is one service, a `<service>.log` for each if it runs several. Lines
go to standard error in pods (AIPERF_LOG_FORMAT=json) and without a folder.
"""

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.foreign_text import MESSAGE_LIMIT, lines

_phase = ""


def set_phase(name: str) -> None:
    """Set the phase that is added to every line from now on."""
    global _phase
    _phase = name


def set_up_logs(
    run_id: str,
    services: Sequence[str],
    *,
    instance: str,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Configure this process's log from the environment. Replaces an earlier configuration.

    Raises EnvironmentProblem if the file cannot be written.
    """
    folder, is_json = environ.get("AIPERF_LOG_DIR"), environ.get("AIPERF_LOG_FORMAT") == "json"
    handlers: list[logging.Handler] = []
    if folder:
        lines = JsonLines(run_id, services)
        if len(services) > 1:
            for service in services:
                handlers.append(_file(Path(folder) / f"{service}.log", lines))
                handlers[-1].addFilter(_LinesOf(service, lines))
        else:
            handlers.append(_file(Path(folder) / f"{instance}.log", lines))
    if is_json or not folder:
        handlers.append(logging.StreamHandler(sys.stderr))
        handlers[-1].setFormatter((JsonLines if is_json else TextLines)(run_id, services))
    for handler in logging.getLogger().handlers:
        # On a full disk, lines are lost and the run continues.
        with suppress(OSError):
            handler.close()
    logging.basicConfig(level=_level(environ), handlers=handlers, force=True)
    logging.captureWarnings(True)


def _file(path: Path, lines: logging.Formatter) -> logging.Handler:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path, encoding="utf-8")
    except OSError as error:
        raise EnvironmentProblem(f"cannot write {path}: {error.strerror}") from error
    handler.setFormatter(lines)
    return handler


def _level(environ: Mapping[str, str]) -> str:
    level = environ.get("AIPERF_LOG_LEVEL", "INFO").upper()
    valid = ("DEBUG", "INFO", "WARNING", "ERROR")
    if level not in valid:
        raise EnvironmentProblem(f"AIPERF_LOG_LEVEL={level}: expected one of {', '.join(valid)}")
    return level


class Lines(logging.Formatter):
    """Base of both formats; finds the service of a line."""

    def __init__(self, run_id: str, services: Sequence[str]) -> None:
        super().__init__()
        self._run_id = run_id
        self._services = services

    def service_of(self, record: logging.LogRecord) -> str:
        """Return the service whose module logged the line; all services if it is shared."""
        own = record.name.rpartition(".")[2].replace("_", "-")
        return own if own in self._services else ",".join(self._services)


class _LinesOf(logging.Filter):
    """Keeps the lines of one service. Lines of shared modules go to the first service."""

    def __init__(self, service: str, lines: Lines) -> None:
        super().__init__()
        self._service = service
        self._lines = lines

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line belongs into the service's file."""
        return self._lines.service_of(record).partition(",")[0] == self._service


class JsonLines(Lines):
    def format(self, record: logging.LogRecord) -> str:
        """Format a line as one JSON object without a line break."""
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "run": self._run_id,
            "phase": _phase,
            "service": self.service_of(record),
            "message": lines(record.getMessage(), limit=MESSAGE_LIMIT),
        }
        if record.exc_info:
            line["exception"] = lines(self.formatException(record.exc_info))
        return json.dumps(line, ensure_ascii=False)


class TextLines(Lines):
    """Formats lines for a terminal. The run id is left out, because the user knows it."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one line, followed by its traceback if there is one."""
        phase = f" [{_phase}]" if _phase else ""
        line = (
            f"{_time(record)} {record.levelname:<7} {self.service_of(record)}{phase}: "
            f"{lines(record.getMessage(), limit=MESSAGE_LIMIT)}"
        )
        text = f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line
        return lines(text)


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
