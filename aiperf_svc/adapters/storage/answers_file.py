"""`quality.jsonl`: the answers to the questions of a quality gate, one line per request."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from aiperf_svc.adapters.storage.atomic_files import write_file
from aiperf_svc.config.user_files import open_file
from aiperf_svc.core.quality.gate import Answer
from aiperf_svc.domain.errors import ConfigError

NAME = "quality.jsonl"


def write_answers(folder: Path, answers: Sequence[Answer]) -> None:
    """Write the file. Raises EnvironmentProblem."""
    lines = [msgspec.json.encode(each) for each in answers]
    write_file(folder / NAME, lambda: b"\n".join([*lines, b""]))


def read_answers(folder: Path) -> list[Answer]:
    """Read the file of a run; empty if it has none. Raises ConfigError that names the line."""
    path = folder / NAME
    if not path.is_file():
        return []
    found = []
    with open_file(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                found.append(msgspec.json.decode(line, type=Answer))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise ConfigError(f"{path}:{number}: {error}") from error
    return found
