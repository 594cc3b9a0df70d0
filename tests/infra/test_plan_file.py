"""The plan that the runner passes to the Pulumi program."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from aiperf_svc.adapters.pulumi.plan_file import (
    PLAN,
    decode_plan,
    encode_plan,
    read_plan,
    write_plan,
)
from aiperf_svc.config.load_config import chosen_target
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.plan.run_values import RunValues
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.workloads.registry import parse_benchmark
from tests.infra.test_golden_manifests import SECRETS, STACKS
from tests.support.recording import STACK, Recording, benchmark, config_file, record, stack_config


def request_of(stack: str, data: dict[str, Any], **rest: Any) -> StackRequest:
    config = chosen_target(parse_benchmark(data, "the test"), "")
    return StackRequest(stack=stack, config=config, environ={}, **rest)


@pytest.mark.parametrize("stack", STACKS)
def test_plan_survives_its_file(stack: str) -> None:
    plan = request_of(stack, stack_config(stack)["aiperf:benchmark"]).plan
    again = decode_plan(encode_plan(plan))
    assert again == plan
    assert again.files == plan.files


@pytest.mark.parametrize("stack", ["bench-smoke", "bench-iperf", "bench-variants", "bench-vllm"])
def test_program_makes_same_objects_from_handed_plan(
    stack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = request_of(stack, stack_config(stack)["aiperf:benchmark"]).plan
    plain = record(stack, stack_config(stack), secrets=SECRETS)
    monkeypatch.setenv(PLAN, str(write_plan(tmp_path, plan)))
    handed = record(stack, {"aiperf:removal": "true"}, secrets=SECRETS)
    assert handed.manifests == plain.manifests
    assert handed.outputs | {"resultsToken": ""} == plain.outputs | {"resultsToken": ""}


@pytest.fixture
def resumed_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recording:
    """Return the second of two shapes, with one remaining trial and a folder for uploads."""
    product: dict[str, Any] = {"deployment.target.args": [["--ttft", "5ms"], ["--ttft", "9ms"]]}
    product["load.concurrency"] = [1, 2]
    data = benchmark(ttl="2h", raw_route="direct") | {"experiment": {"product": product}}
    run = RunValues(upload_into="knee-20261123T012343Z-0123")
    request = request_of(STACK, data, finished=frozenset({1, 2, 3}), run=run)
    monkeypatch.setenv(PLAN, str(write_plan(tmp_path, request.plans[1])))
    return record(STACK, {"aiperf:removal": "true"})


def test_pods_of_resumed_shape_run_remaining_trials(resumed_shape: Recording) -> None:
    config = msgspec.yaml.decode(config_file(resumed_shape))
    assert config["experiment"]["part"]["trials"] == [4]
    assert config["deployment"]["target"]["args"] == ["--ttft", "9ms"]
    shared = [m.get("data", {}) for m in resumed_shape.manifests if m["kind"] == "ConfigMap"]
    folders = {data["AIPERF_UPLOAD_INTO"] for data in shared if "AIPERF_UPLOAD_INTO" in data}
    assert folders == {"knee-20261123T012343Z-0123"}


def test_plan_file_has_no_secret_values(tmp_path: Path) -> None:
    data = benchmark(target={"kind": "none"})
    data["endpoint"] = {"url": "https://x.example", "model": "m", "api_key_env": "MY_KEY"}
    request = request_of(STACK, data, secrets={"targetApiKey": "hush"})
    written = write_plan(tmp_path, request.plan).read_text()
    assert "targetApiKey" in written
    assert "hush" not in written


def test_unreadable_plan_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match=r"cannot read the plan in .*absent"):
        read_plan(tmp_path / "absent")
    (tmp_path / "broken").write_text("{")
    with pytest.raises(EnvironmentProblem, match=r"cannot read the plan in .*broken"):
        read_plan(tmp_path / "broken")
