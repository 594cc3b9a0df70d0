"""The files of a run keep their names, keys and columns, and docs/results.md names them.

`artifact_keys.json` has the keys of one seeded run; `pytest --write-samples` writes it again.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from arro3.io import read_parquet
from in_one_loop import stack

from aiperf_svc.domain.metric_catalog import CATALOG
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running

KEYS = Path(__file__).with_name("artifact_keys.json")
PAGE = Path(__file__).parents[2] / "docs" / "results.md"
OF_THE_CONFIG = ("config", "input_config", "payloads", "topology")
"""Objects whose keys are those of the config, the prompts or the plan."""
MAPS = ("finish_reasons", "histogram", "labels", "buckets")
"""Objects whose keys are data."""
OF_THE_LOAD = ("reasons", "stats", "system.metrics")
"""What depends on how busy the machine is: which checks did not pass, how often a page was read."""


def keys_of(content: Any, path: str = "") -> set[str]:
    """The paths of all keys; those below a metric begin with `METRIC`."""
    if isinstance(content, list):
        return {key for each in content for key in keys_of(each, f"{path}[]")}
    if not isinstance(content, dict):
        return set()
    found = set()
    for name, value in content.items():
        shown = "URL" if name.startswith("http://") else name
        key = f"{path}.{shown}" if path else shown
        found.add(key)
        if name not in OF_THE_CONFIG + MAPS and not key.endswith(OF_THE_LOAD):
            found |= keys_of(value, "METRIC" if name in CATALOG else key)
    return found


def names_in(file: Path) -> list[str]:
    """Keys of a JSON file, columns of a Parquet file, header lines of a CSV file."""
    if file.suffix == ".json":
        return sorted(keys_of(json.loads(file.read_text())))
    if file.suffix == ".jsonl":
        lines = file.read_text().splitlines()
        return sorted({key for line in lines for key in keys_of(json.loads(line))})
    if file.suffix == ".parquet":
        return list(read_parquet(file).schema.names)
    if file.suffix == ".csv":
        blocks = file.read_text().strip().split("\n\n")
        return [block.splitlines()[0] for block in blocks]
    return []


async def names_of_a_run(folder: Path) -> dict[str, list[str]]:
    with running(MockServerConfig(ttft="5ms", itl="2ms", tokens=5)) as mock:
        config = {
            "endpoint": {"url": mock.url, "model": "mock", "streaming": True},
            "load": {"concurrency": 4, "requests": 600, "warmup": {"requests": 10}},
            "dataset": {"entries": 20, "input_tokens": {"mean": 20}},
            "slo": {
                "objectives": [{"metric": "time_to_first_token", "stat": "p90", "max": "1m"}],
                "goodput": {"time_to_first_token": "1m"},
            },
            "artifacts": {"http_trace": True, "slice_duration": "1s"},
            "random_seed": 7,
        }
        async with stack(config, folder) as run:
            await run.results()
    files = sorted((folder / "artifacts").iterdir())
    return {file.name: names_in(file) for file in files if file.is_file()}


async def test_a_run_writes_the_known_files_keys_and_columns(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    found = await names_of_a_run(tmp_path)
    if request.config.getoption("--write-samples"):
        KEYS.write_text(json.dumps(found, indent=1) + "\n")
    known = json.loads(KEYS.read_text())
    assert found.keys() == known.keys()
    for name, keys in known.items():
        assert found[name] == keys, name


def test_the_page_of_results_names_every_file_column_and_key_of_ours() -> None:
    known, page = json.loads(KEYS.read_text()), PAGE.read_text()
    ours = [
        key.removeprefix("aiperf_svc.")
        for key in known["profile_export_aiperf.json"]
        if key.startswith("aiperf_svc.") and key.count(".") == 1
    ]
    metadata = [
        key.removeprefix("metadata.")
        for key in known["profile_export.jsonl"]
        if key.startswith("metadata.")
    ]
    named = (*known, *known["records.parquet"], *known["telemetry.parquet"], *ours, *metadata)
    assert [name for name in named if f"`{name}`" not in page] == []
