"""Loads whose workers share state: several pods together match the server's record."""

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.core.load.abandonment import Abandonment
from tests.support.stack.intruder import put_pod
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_stack import Config, Stack

pytestmark = [pytest.mark.cluster]

LOAD: dict[str, Any] = {
    "user_centric": {"rate": 20, "users": 10},
    "duration": "8s",
    "grace_period": "5s",
    "prefill_concurrency": 6,
    "cancellation": {"rate": "20%", "delay": "50ms"},
}


@pytest.fixture
def server(cluster: Cluster, image: str, owners_namespace: str) -> str:
    """Return the URL of a mock server in the cluster that counts requests."""
    if not cluster.is_ours:
        pytest.skip("pods of the cluster of E2E_CONTEXT cannot be reached from here directly")
    command = (
        *("python", "-m", "aiperf_svc.mock_server", "--host", "0.0.0.0", "--port", "8000"),
        *("--ttft", "100ms", "--itl", "5ms", "--tokens", "20", "--truth"),
    )
    pod = put_pod(cluster, owners_namespace, "server", image=image, command=command, labels={})
    return f"http://{pod['status']['podIP']}:8000"


def test_workers_share_users_slots_and_leaving_clients(
    make_stack: Callable[[], Stack], server: str, tmp_path: Path
) -> None:
    def shape(benchmark: Config) -> None:
        benchmark["endpoint"]["url"] = server
        benchmark["load"] = LOAD
        benchmark["dataset"] = {"turns": {"number": {"mean": 4}}, "input_tokens": {"mean": 50}}
        benchmark["workers"] = {"min": 2, "max": 2}
        benchmark["deployment"].pop("target")

    stack = make_stack()
    stack.change(shape)
    stack.up()
    results = tmp_path / "results"
    status, summary = stack.measure(stack.outputs(), results)
    with urllib.request.urlopen(f"{server}/truth") as page:
        truth = json.load(page)
    stack.destroy()
    assert (status.state, status.workers, status.workers_lost) == ("done", 2, 0)
    accounts = summary["aiperf_svc"]["accounts"]
    assert accounts["violations"] == []
    assert truth["requests"] == accounts["requests_sent"] == accounts["records"]
    choice = Abandonment(share=0.2, delay_ns=0, seed=summary["aiperf_svc"]["config"]["random_seed"])
    text = (results / "profile_export.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    left = 0
    for metadata in (line["metadata"] for line in lines):
        is_chosen = choice.is_chosen(metadata["session_num"], metadata["turn_index"])
        assert metadata["was_cancelled"] == is_chosen
        left += is_chosen
    assert truth["disconnected"] == accounts["abandoned"] == left > 10
    # Both workers send 20 requests per second together. A leaving client takes its turns along.
    turns_taken = sum(0.8**turn for turn in range(4)) / 4
    assert accounts["requests_sent"] == pytest.approx(160 * turns_taken, rel=0.25)
    assert len({line["metadata"]["worker_id"] for line in lines}) == 2
