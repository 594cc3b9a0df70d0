"""What is kept of the trials of many shapes."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

from aiperf_svc.any_kind.loading import parse_any
from aiperf_svc.any_kind.shapes import index_shapes
from aiperf_svc.core.experiments.trials import TRIALS, Trial
from aiperf_svc.runner.shape_trials import ShapeTrials

COUNT = 50
LARGE_BYTES = 200_000
"""Size of the results of a trial."""


def test_whole_results_of_trials_are_not_kept_in_memory(tmp_path: Path) -> None:
    data: dict[str, Any] = {
        "endpoint": {"url": "http://target", "model": "m"},
        "load": {"duration": "1s", "concurrency": 1},
        "experiment": {"explicit": [{}], "repetitions": COUNT, "fan_out": "jobs"},
        "deployment": {"target": {"kind": "mock"}},
    }
    config = parse_any(data, "")
    shapes = index_shapes(config)
    trials = ShapeTrials(config, shapes, tmp_path)
    listed = []
    for trial in shapes[0].trials:
        folder = tmp_path / TRIALS / trial.folder
        folder.mkdir(parents=True)
        content = {"aiperf_svc": {"verdict": "valid"}, "rest": "x" * LARGE_BYTES}
        (folder / "profile_export_aiperf.json").write_text(json.dumps(content))
        listed.append(entry(trial))
    written = {"schema_version": "experiment/1", "version": "1", "trials": listed, "config": {}}
    (tmp_path / "experiment.json").write_text(json.dumps(written))
    trials.add(tmp_path)  # imports what it needs
    tracemalloc.start()
    try:
        trials.add(tmp_path)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert trials.finished == {each.number for each in shapes[0].trials}
    assert len(trials.finished) == COUNT
    assert kept < COUNT * LARGE_BYTES / 10


def entry(trial: Trial) -> dict[str, Any]:
    return {
        "number": trial.number,
        "repetition": trial.repetition,
        "parameters": trial.parameters,
        "state": "done",
        "reason": "",
        "folder": trial.folder,
    }
