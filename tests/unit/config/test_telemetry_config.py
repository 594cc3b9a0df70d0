"""Problems in the telemetry settings."""

from typing import Any

import pytest

from aiperf_svc.config.load_config import parse_config
from aiperf_svc.domain.errors import ConfigError
from tests.support.small_configs import small_benchmark

EXPORTERS = {
    "namespace": "gpus",
    "labels": {"app": "dcgm-exporter"},
    "port": 9400,
    "pages": ["http://10.0.0.7:9400"],
    "users": ["vllm-"],
}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"pages": []}, "pages"),
        ({"labels": {}}, "labels"),
        ({"users": []}, "users"),
        ({"host_network": True, "pages": ["http://node-1:9400"]}, "not 'node-1'"),
    ],
)
def test_exporters_that_no_policy_can_name_are_refused(wrong: dict[str, Any], message: str) -> None:
    parse_config(small_benchmark(telemetry={"exporters": [EXPORTERS]}), "")
    benchmark = small_benchmark(telemetry={"exporters": [EXPORTERS | wrong]})
    with pytest.raises(ConfigError, match="exporters") as found:
        parse_config(benchmark, "")
    assert message in str(found.value)


@pytest.mark.parametrize(
    ("gpus", "problem"),
    [
        (["0", "0"], "nvml: '0' is given twice; give each GPU once"),
        (["all", "1"], "nvml: all includes the others; leave them out"),
        (["first"], "'first'"),
    ],
)
def test_wrong_gpus_of_nvml_are_named(gpus: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match="nvml") as found:
        parse_config(small_benchmark(telemetry={"nvml": gpus}), "")
    assert problem in str(found.value)
