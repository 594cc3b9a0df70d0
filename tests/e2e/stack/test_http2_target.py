"""A stack whose target accepts only HTTP/2."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.stack.real_stack import Config, Stack

pytestmark = [pytest.mark.cluster]


def test_a_stack_measures_its_target_over_http2(
    make_stack: Callable[[], Stack], tmp_path: Path
) -> None:
    def ask_over_http2(benchmark: Config) -> None:
        benchmark["endpoint"]["http2"] = True
        benchmark["deployment"]["target"]["args"] = ["--ttft", "20ms"]
        benchmark["load"] = {"concurrency": 8, "requests": 200}

    stack = make_stack()
    stack.change(ask_over_http2)
    stack.up()
    results = tmp_path / "results"
    status, summary = stack.measure(stack.outputs(), results)
    stack.destroy()
    assert status.state == "done"
    assert (summary["request_count"]["avg"], summary["error_summary"]) == (200, [])
    assert summary["aiperf_svc"]["accounts"]["violations"] == []
    lines = (results / "profile_export.jsonl").read_text().splitlines()
    assert len(lines) == 200
    assert all(json.loads(line)["metrics"]["time_to_first_token"]["value"] >= 20 for line in lines)
