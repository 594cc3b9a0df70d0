"""Two images of a server are measured in blocks on one node and compared by block."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.running_command import FINISHED
from tests.support.stack.commands import Ended, attempt
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import Runner

pytestmark = pytest.mark.cluster
RUN_S = 900.0
BASE_MS, SLOWER_MS = 100, 120
SERVE = (
    "exec python -P -m aiperf_svc.mock_server --host 0.0.0.0 --port 8000 --itl 5ms --tokens 16 "
    f"--ttft ${{MOCK_TTFT:-{BASE_MS}ms}}"
)


@pytest.fixture
def slower_image(cluster: Cluster, image: str, tmp_path: Path) -> str:
    """Build the service image with a variable that slows its mock server down."""
    if not cluster.is_ours:
        pytest.skip("E2E_CONTEXT names a cluster, and the image would need a registry")
    name = f"{image}-slower"
    recipe = tmp_path / "Containerfile"
    recipe.write_text(f"ARG BASE\nFROM {image}\nENV MOCK_TTFT={SLOWER_MS}ms\n")
    cluster.add_image(name, recipe)
    return name


WARMUP_S = 2


def in_blocks(images: list[str], count: int, **blocks: str) -> Callable[[dict[str, Any]], None]:
    """Return a change that makes a stack measure these images in blocks."""

    def change(benchmark: dict[str, Any]) -> None:
        over = "deployment.target.image"
        benchmark["experiment"] = {
            "product": {over: images}, "blocks": {"over": over, "count": count, **blocks}
        }  # fmt: skip
        warmup = {"duration": f"{WARMUP_S}s"}
        benchmark["load"] |= {"concurrency": 4, "duration": "4s", "warmup": warmup}
        benchmark["deployment"]["ttl"] = "6h"
        benchmark["deployment"]["target"] = {
            "kind": "custom",
            "image": images[0],
            "command": ["sh", "-c", SERVE],
            "cpu": "100m",
            "memory": "128Mi",
        }

    return change


def call(runner: Runner, *arguments: str) -> Ended:
    """Run a command that takes longer than those of other tests."""
    command = (*runner.program, *arguments)
    return attempt(command, environ=runner.environ, folder=runner.folder, timeout_s=RUN_S)


def test_slower_image_is_found_in_blocks(
    cluster: Cluster, image: str, slower_image: str, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(in_blocks([image, slower_image], 3))
    ended = call(runner, "run", runner.name, "--yes", "--json", "--context", cluster.context)
    assert ended.code in FINISHED, ended.errors
    assert cluster.left_of(runner.name) == []
    results = json.loads(ended.out)["results"]
    assert [trial["state"] for trial in results["trials"]] == ["done"] * 12
    (folder,) = runner.artifacts.glob("*/")
    facts = [
        json.loads((folder / "trials" / each["folder"] / "provenance.json").read_bytes())["target"]
        for each in results["trials"]
    ]
    # Each trial started its server on the node that had pulled both images beforehand.
    assert len({each["started"] for each in facts}) == 12
    (node,) = {each["node"] for each in facts}
    assert len({each["image_digest"] for each in facts}) == 2
    pulled = [line for line in ended.errors.splitlines() if line.startswith("blocks: image ")]
    assert len(pulled) == 2
    assert all(line.endswith(f"on node {node}") for line in pulled)
    how = ("--by", "deployment.target.image", "--paired", "--metric", "time_to_first_token:p50")
    compared = call(runner, "compare", str(folder), *how, "--json")
    found = json.loads(compared.out)
    (row,) = found["rows"]
    assert (row["word"], row["base"]["n"]) == ("worse", 3)
    assert 0.1 < row["delta"] < 0.3
    spans = [found[side]["uptime_s"] for side in ("base", "new")]
    assert all(0 < low <= high for low, high in spans)


UPTIME_S = 60
LATE_S = 5
"""Longest time from the end of the warmup's load to the load, plus one second for the resolution of
container times."""


def test_visits_begin_at_one_uptime(
    cluster: Cluster, image: str, slower_image: str, make_runner: Callable[[], Runner]
) -> None:
    runner = make_runner()
    runner.change(in_blocks([image, slower_image], 1, uptime=f"{UPTIME_S}s"))
    ended = call(runner, "run", runner.name, "--yes", "--json", "--context", cluster.context)
    assert ended.code in FINISHED, ended.errors
    assert cluster.left_of(runner.name) == []
    results = json.loads(ended.out)["results"]
    assert [trial["state"] for trial in results["trials"]] == ["done"] * 4
    assert ended.errors.count(f"when the target has run for {UPTIME_S} s") == 4
    (folder,) = runner.artifacts.glob("*/")
    by = ("--by", "deployment.target.image", "--json")
    found = json.loads(call(runner, "compare", str(folder), *by).out)
    spans = [found[side]["uptime_s"] for side in ("base", "new")]
    begin_s = UPTIME_S + WARMUP_S
    assert all(begin_s <= low <= high < begin_s + LATE_S for low, high in spans)
