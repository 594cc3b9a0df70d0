"""experiment.json: the results of a finished or unfinished experiment."""

from pathlib import Path

import msgspec
from msgspec.structs import asdict

from aiperf_svc.adapters.exports.file_content import check_schema, read_json
from aiperf_svc.core.experiments.experiment_result import SCHEMA, ExperimentResult
from aiperf_svc.core.experiments.search_report import SearchReport
from aiperf_svc.core.experiments.trials import TRIALS
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.foreign_text import one_line

NAME = "experiment.json"


_KEYS = (
    *("schema_version", "version", "name", "search", "parameters", "metrics", "best", "front"),
    *("combinations", "trials", "config"),
)
"""Keys of the file, in order: all fields of `ExperimentResult`. Only qualifications have
`qualification`."""


def encode(result: ExperimentResult) -> bytes:
    """Return the file's content in one line."""
    content = {key: getattr(result, key) for key in _KEYS}
    if result.qualification is not None:
        content["qualification"] = result.qualification
    return msgspec.json.encode(content | {"search": search_json(result.search)})


def decode(data: bytes) -> ExperimentResult:
    """Return the results in the content of a file. Raises msgspec.DecodeError."""
    return msgspec.json.decode(data, type=ExperimentResult)


def search_json(search: SearchReport | None) -> dict[str, object] | None:
    """Return the outcome of a search as an object that starts with a sentence for users."""
    return None if search is None else {"result": search.result, **asdict(search)}


def is_experiment(folder: Path) -> bool:
    return (folder / NAME).is_file()


class _Head(msgspec.Struct):
    schema_version: str
    version: str = "unknown"


def read_experiment_file(folder: Path) -> ExperimentResult:
    """Read the experiment.json of a folder, which may be unfinished. Raises ConfigError."""
    path, expected = folder / NAME, "the folder of an experiment of which a trial has ended"
    head = read_json(path, _Head, expected=expected)
    check_schema(path, head.schema_version, SCHEMA, writer=head.version)
    found = read_json(path, ExperimentResult, expected=expected)
    for each in found.trials:
        # The name is joined to the folder's path, and must not lead out of it.
        if each.folder != Path(each.folder).name:
            raise ConfigError(
                f"{path}: trial {each.number}: {one_line(each.folder)!r} is not the name of a "
                f"folder in {TRIALS}"
            )
    return found
