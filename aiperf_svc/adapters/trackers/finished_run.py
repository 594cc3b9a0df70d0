"""Reads settings, metrics, tags and files for trackers from the folder of a finished run."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiperf_svc.adapters.exports.result_files import FILES, find_results, read_run
from aiperf_svc.config.secret_names import secret_paths
from aiperf_svc.config.yaml_files import read_yaml
from aiperf_svc.core.results.inference_result import STEADY, InferenceResult
from aiperf_svc.core.results.run_result import RunResult
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import flat

_STATS: Final = (
    *("avg", "min", "max", "std", "count"),
    *("p1", "p5", "p10", "p25", "p50", "p75", "p90", "p95", "p99", "p99_9"),
)
_CREDENTIALS: Final = re.compile(r"//[^/@\s]*@")
"""User name and password in a URL."""
_LEFT_OUT: Final = ("artifacts", "deployment", "experiment", "targets")
"""Parts of the config that do not describe the measurement."""
_UNSENT: Final = ("endpoint.headers.", "endpoint.tls.ca", "endpoint.api_key_env")


@dataclass(frozen=True, kw_only=True)
class FinishedFolder:
    """A run in the form that trackers store."""

    folder: Path
    name: str
    """Name of the folder."""
    run_id: str
    params: dict[str, str]
    """Keys of the config that are set, dotted, with values as text."""
    metrics: dict[str, float]
    """`time_to_first_token.p99`; single numbers have no statistic."""
    tags: dict[str, str]
    was_cancelled: bool
    ended_ms: int
    """Time since 1970."""

    def files(self, patterns: Iterable[str]) -> list[Path]:
        """Return the files that match, each once."""
        found = (path for pattern in patterns for path in sorted(self.folder.glob(pattern)))
        return [path for path in dict.fromkeys(found) if path.is_file()]


def read_finished(folder: Path) -> FinishedFolder:
    """Read a folder. Raises EnvironmentProblem if it has no readable results."""
    path = find_results(folder)
    if path is None:
        raise EnvironmentProblem(f"{folder}: no run; expected {' or '.join(FILES)} in it")
    try:
        result = read_run(path)
        config = read_yaml(folder / "config.yaml")
    except (OSError, ValueError, ConfigError) as error:
        raise EnvironmentProblem(f"{folder}: cannot be read: {one_line(str(error))}") from error
    tags = {
        "run_id": result.run_id,
        "version": result.version,
        "verdict": result.verdict,
        "cause": result.cause,
        "name": config.get("name", ""),
    }
    return FinishedFolder(
        folder=folder,
        name=folder.name,
        run_id=result.run_id,
        params=dict(_params(config)),
        metrics=dict(_metrics(result)),
        tags={f"aiperf_svc.{name}": str(value) for name, value in tags.items() if value},
        was_cancelled=result.was_cancelled,
        ended_ms=result.end_wall_ns // 10**6,
    )


def _params(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    parts = {key: value for key, value in config.items() if key not in _LEFT_OUT}
    # A list is sent as a whole, or not at all if it contains a secret.
    secret = {each.partition("[")[0] for each in secret_paths(parts, "")}
    for key, value in flat(parts).items():
        is_hidden = key.startswith(_UNSENT) or key in secret or f".{key}" in secret
        if is_hidden or value in (None, [], {}, ""):
            continue
        text = value if isinstance(value, str) else json.dumps(value)
        yield key, _CREDENTIALS.sub("//", text)


def _metrics(result: RunResult) -> Iterator[tuple[str, float]]:
    single = {tag for tag, stats in result.stats.items() if stats.is_single}
    for tag, stat, value in result.numbers():
        if tag.removeprefix(STEADY) in single:
            yield tag, value
        elif stat in _STATS:
            yield f"{tag}.{stat}", value
    if isinstance(result, InferenceResult):
        for tier in result.goodput_tiers:
            for name in ("goodput", "good_request_count", "attainment"):
                value = getattr(tier, name)
                if value is not None:
                    yield f"{name}.{tier.name}", float(value)
