"""A target with several pods that reject fields outside OpenAI's schema. Each pod gets its share of
the load and only requests that it accepts."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.support.stack.real_stack import Config, Stack, shrink

pytestmark = pytest.mark.cluster

REPLICAS, USERS = 3, 9
MIN_SHARE = 0.25
"""Smallest accepted share of the requests. A fair share is a third."""


def several_and_strict(benchmark: Config) -> None:
    target = benchmark["deployment"]["target"]
    target["replicas"] = REPLICAS
    target["args"] += ["--refuse", "ignore_eos,min_tokens"]
    benchmark["load"]["concurrency"] = USERS


@pytest.fixture(scope="module")
def measured(
    make_shared_stack: Callable[[], Stack], tmp_path_factory: pytest.TempPathFactory
) -> tuple[set[str], dict[str, Any]]:
    """Return the addresses of the target's pods and the summary of the run."""
    stack = make_shared_stack()
    stack.change(shrink)
    stack.change(several_and_strict)
    stack.up()
    outputs = stack.outputs()
    pods = stack.pods(outputs["namespace"], "target")
    status, summary = stack.measure(outputs, tmp_path_factory.mktemp("results"))
    stack.destroy()
    assert (status.state, status.reason) == ("done", "")
    return {pod["status"]["podIP"] for pod in pods}, summary


def test_each_target_pod_gets_its_share(measured: tuple[set[str], dict[str, Any]]) -> None:
    addresses, summary = measured
    assert len(addresses) == REPLICAS
    uses = {each["address"]: each for each in summary["aiperf_svc"]["target_addresses"]}
    assert uses.keys() == addresses
    sent = sum(use["requests"] for use in uses.values())
    assert min(use["requests"] for use in uses.values()) >= MIN_SHARE * sent, uses
    assert {use["failures"] for use in uses.values()} == {0}


def test_servers_refusing_forced_lengths_get_unforced_requests(
    measured: tuple[set[str], dict[str, Any]],
) -> None:
    _, summary = measured
    probe = summary["aiperf_svc"]["topology"]["dataset"]["forced_output_length"]
    assert probe["finding"] == "refused"
    assert "not permitted: ignore_eos, min_tokens" in probe["said"]
    assert summary["request_count"]["avg"] >= USERS
    assert "error_request_count" not in summary or not summary["error_request_count"]["avg"]
