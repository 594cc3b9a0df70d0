"""Encodes and decodes results as JSON. No other module decodes the results of runs and experiments.

A run has profile_export_aiperf.json or results.json, an experiment has experiment.json. The results
API serves the same content.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from aiperf_svc.adapters.exports import experiment_file, inference_file
from aiperf_svc.adapters.exports.file_content import check_schema, json_file
from aiperf_svc.core.experiments.experiment_result import SCHEMA as EXPERIMENT_SCHEMA
from aiperf_svc.core.experiments.experiment_result import ExperimentResult
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.core.results.slo_results import ObjectiveResult
from aiperf_svc.core.results.tool_result import SCHEMA as TOOL_SCHEMA
from aiperf_svc.core.results.tool_result import ToolResult
from aiperf_svc.core.verdict.check_result import Reason, Severity, Verdict
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.foreign_text import one_line

INFERENCE_FILE = "profile_export_aiperf.json"
TOOL_FILE = "results.json"
FILES = (INFERENCE_FILE, TOOL_FILE)
"""Files that hold the results of a run."""
JOINT_FILE = "joint.json"
"""File that holds the results of several runs."""
VERDICT_SCHEMA = "verdict/1"
"""`schema_version` of verdict.json. The number increases when a key changes its meaning."""
_TOOL_KEYS = (
    *("schema_version", "run_id", "name", "workload", "version", "cli_command"),
    *("start_wall_ns", "end_wall_ns", "failure", "was_cancelled", "verdict", "cause"),
    *("checks", "slo", "accounts", "metrics", "series", "tables", "facts", "tools"),
    *("ranks", "steps", "config", "topology"),
)
"""Keys of results.json, in order: all fields of `ToolResult`."""
Results = RunResult | ExperimentResult


class CheckEntry(Reason, frozen=True, kw_only=True):
    """Result of one check in verdict.json."""

    ok: bool
    """True if the check passed or had nothing to judge."""


class VerdictFile(msgspec.Struct, frozen=True, kw_only=True):
    """Content of verdict.json."""

    schema_version: str = VERDICT_SCHEMA
    verdict: Severity
    cause: str
    """Cause of an invalid run if it is known."""
    reasons: tuple[CheckEntry, ...]
    """The checks that did not pass, the worst first."""
    checks: tuple[CheckEntry, ...]
    """All checks."""
    slo: tuple[ObjectiveResult, ...]


class _Head(msgspec.Struct):
    schema_version: str = ""
    version: str = "unknown"
    aiperf_version: str = ""
    aiperf_svc: msgspec.Raw = msgspec.Raw(b"")


def encode(results: Results) -> bytes:
    """Return results as JSON in one line."""
    match results:
        case InferenceResult():
            return inference_file.encode(results)
        case ToolResult():
            return msgspec.json.encode({key: getattr(results, key) for key in _TOOL_KEYS})
        case ExperimentResult():
            return experiment_file.encode(results)
    raise TypeError(type(results))


def render(result: RunResult) -> bytes:
    return msgspec.json.format(encode(result), indent=1) + b"\n"


def decode(data: bytes) -> Results:
    """Decode results that `encode` has encoded. Raises msgspec.DecodeError, ValueError."""
    kind = msgspec.json.decode(data, type=_Head).schema_version.partition("/")[0]
    if kind == EXPERIMENT_SCHEMA.partition("/")[0]:
        return experiment_file.decode(data)
    if kind == TOOL_SCHEMA.partition("/")[0]:
        return msgspec.json.decode(data, type=ToolResult)
    return inference_file.decode(data)


def decode_run(data: bytes) -> RunResult:
    """Return the results of a run. Raises msgspec.DecodeError, ValueError."""
    found = decode(data)
    if not isinstance(found, RunResult):
        raise ValueError("expected the results of a run, found those of an experiment")
    return found


def find_results(folder: Path) -> Path | None:
    """Return the file with the results of the run in a folder; None if it has none."""
    return next((folder / name for name in FILES if (folder / name).is_file()), None)


def read_run(path: Path) -> RunResult:
    """Read the results of a run from their file. Raises ConfigError that names the file if its
    format is not that of this version."""
    try:
        data = path.read_bytes()
        head = msgspec.json.decode(data, type=_Head)
        _check_schema(path, head)
        return decode_run(data)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: not as this version writes it: {error}") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise ConfigError(f"{path}: broken: {error}") from error


def _check_schema(path: Path, head: _Head) -> None:
    """Raise ConfigError if the file has another schema or was written by another program."""
    is_tool = path.name == TOOL_FILE
    expected = TOOL_SCHEMA if is_tool else inference_file.SCHEMA_VERSION
    check_schema(path, head.schema_version, expected, writer=head.version if is_tool else "")
    if not is_tool and not bytes(head.aiperf_svc):
        found = f"AIPerf {one_line(head.aiperf_version)}".strip()
        raise ConfigError(f"{path}: written by {found}, expected a run of aiperf-svc")


def render_verdict(verdict: Verdict, objectives: Sequence[ObjectiveResult]) -> bytes:
    content = VerdictFile(
        verdict=verdict.verdict,
        cause=verdict.cause,
        reasons=msgspec.convert(verdict.reasons, tuple[CheckEntry, ...], from_attributes=True),
        checks=msgspec.convert(verdict.checks, tuple[CheckEntry, ...], from_attributes=True),
        slo=tuple(objectives),
    )
    return json_file(content)
