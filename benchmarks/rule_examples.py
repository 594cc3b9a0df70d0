"""Creates the runs of the documentation's `verify` examples and stores what rules read of them.

    python -m benchmarks.rule_examples [--only RULES]

A curve of seven points of 8 s and an agent benchmark of 40 s run against the mock server. The files
in `tests/data/rules` contain their points, without metrics that no rule reads. Then `pytest
--write-samples tests/unit/rules/test_documented_rules.py` prints the examples in `docs/agentic.md`,
so they show real runs under the current rules.
"""

import argparse
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from aiperf_svc.adapters.comparison.run_folders import find_runs
from aiperf_svc.adapters.rules.points import read_points
from aiperf_svc.core.results.inference_result import InferenceResult, RunLayout
from aiperf_svc.core.rules import agentx, mlperf_endpoints
from aiperf_svc.core.rules.measured_point import MeasuredPoint
from aiperf_svc.domain.process_environment import OWN_PROGRAM
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from benchmarks.agent_traces import lines
from benchmarks.suite import ROOT

DATA = ROOT / "tests/data/rules"
PROMPTS, TREE_REQUESTS = 20, 1_200
_READ = ("request_count", "error_request_count", "context_overflow_count", "benchmark_duration")
"""Metrics that rules read in addition to those of single requests."""


class Example(NamedTuple):
    """The runs for a set of rules."""

    rules: ModuleType
    server: MockServerConfig
    flags: Sequence[str]


EXAMPLES = (
    Example(
        mlperf_endpoints,
        MockServerConfig(ttft="20ms", itl="5ms", tokens=32, slots=24),
        (
            *("--preset", "mlperf-endpoints", "--preset-max-concurrency", "64"),
            *("--input-file", "prompts.jsonl", "--benchmark-duration", "8s"),
        ),
    ),
    Example(
        agentx,
        MockServerConfig(ttft="50ms", itl="2ms"),
        (
            *("--scenario", "agentx", "--input-file", "traces", "--concurrency", "4"),
            *("--benchmark-duration", "40s"),
        ),
    ),
)


def points_of(example: Example) -> list[MeasuredPoint]:
    """Return the points of an example's runs."""
    with tempfile.TemporaryDirectory() as folder, running(example.server) as server:
        place = Path(folder)
        rows = (msgspec.json.encode({"text": f"Question {n}: why?"}) for n in range(PROMPTS))
        (place / "prompts.jsonl").write_bytes(b"\n".join(rows))
        (place / "traces").mkdir()
        (place / "traces/trace.jsonl").write_text("".join(lines(TREE_REQUESTS)))
        command = [*OWN_PROGRAM, "profile", "-u", server.url, "-m", "mock-model", "--ui", "none"]
        # Short runs miss some rules, and their verdict does not matter.
        subprocess.run(
            [*command, "--artifact-dir", "artifacts", *example.flags], cwd=place, check=False
        )
        (artifacts,) = (place / "artifacts").iterdir()
        return read_points(find_runs([artifacts]), example.rules.min_duration_s)


def reduced(number: int, point: MeasuredPoint) -> MeasuredPoint:
    """Return a point with only what rules read."""
    result = point.result
    kept = InferenceResult(
        run_id=f"run-{number}",
        name=result.name,
        version=result.version,
        verdict=result.verdict,
        cause=result.cause,
        slo=(),
        metrics={tag: result.metrics[tag] for tag in _READ if tag in result.metrics},
        accounts=result.accounts,
        topology=RunLayout(dataset=result.topology.dataset),
        config=result.config,
    )
    return replace(point, folder=f"runs/{number}", result=kept)


def main() -> None:
    """Run the examples and write their points."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [example.rules.NAME for example in EXAMPLES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="RULES")
    options = parser.parse_args()
    DATA.mkdir(exist_ok=True)
    for example in EXAMPLES:
        if example.rules.NAME in options.only:
            points = [reduced(*each) for each in enumerate(points_of(example), start=1)]
            content = b",\n".join(map(msgspec.json.encode, points))
            (DATA / f"{example.rules.NAME}.json").write_bytes(b"[\n" + content + b"\n]\n")


if __name__ == "__main__":
    main()
