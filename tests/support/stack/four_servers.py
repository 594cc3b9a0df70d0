"""An experiment with four server variants. One exits immediately and one has no node."""

import json
from pathlib import Path
from typing import Any

from tests.support.stack.real_runner import Runner

SLOW = ["--ttft", "200ms", "--itl", "10ms", "--tokens", "16"]
FAST = ["--ttft", "40ms", "--itl", "10ms", "--tokens", "16"]
NO_NODE = {"aiperf.test/no-node": "has-it"}


def four_servers(benchmark: dict[str, Any]) -> None:
    """Use four server variants. One exits immediately and one has no node to run on."""
    benchmark["load"]["duration"] = "3s"
    crashing = ["--no-such-flag"]
    benchmark["experiment"] = {
        "explicit": [
            {"deployment.target.args": SLOW},
            {"deployment.target.args": crashing},
            {"deployment.target.args": SLOW, "deployment.target.placement.node_selector": NO_NODE},
            {"deployment.target.args": FAST},
        ],
        "repetitions": 2,
    }
    benchmark["deployment"]["ttl"] = "2h"


def assert_two_were_measured(runner: Runner, results: dict[str, Any]) -> Path:
    """Check each variant in `results` and in the experiment's folder, and return the folder."""
    trials = results["trials"]
    assert [trial["number"] for trial in trials] == list(range(1, 9))
    assert [trial["state"] for trial in trials] == ["done", "failed", "failed", "done"] * 2
    assert "has crashed" in trials[1]["reason"]
    assert "no node matches its selectors" in trials[2]["reason"]
    slow, fast = (trials[n]["values"]["time_to_first_token_p50"] for n in (0, 3))
    assert fast < 150 < slow
    (folder,) = runner.artifacts.glob("*/")
    # A trial that is invalid because of a busy node runs again and keeps its folder.
    replaced = sum(len(trial["replaced"]) for trial in trials)
    assert len(list((folder / "trials").iterdir())) == 4 + replaced
    assert json.loads((folder / "experiment.json").read_bytes()) == results
    return folder
