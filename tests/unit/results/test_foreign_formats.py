"""Runs in the formats of llm-d and InferenceX, against their schemas."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from aiperf_svc.adapters.exports.aiperf_exports import result_of
from aiperf_svc.adapters.exports.inferencex_row import row_of, unknown_of
from aiperf_svc.adapters.exports.llmd_report import report_of
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.provenance import TARGET_FACTS, UNKNOWN, Provenance
from aiperf_svc.core.results.server_setup import FACTS, read_facts, setup_of
from aiperf_svc.domain.errors import ConfigError
from tests.support import fake_run

SCHEMAS = Path(__file__).parents[2] / "data" / "exports"
ARGUMENTS = (
    "serve m --tensor-parallel-size 8 -dp=2 --enable-expert-parallel --quantization fp8 "
    """--speculative-config '{"method": "eagle3", "num_speculative_tokens": 3}'"""
)
ALL_FACTS = ["hw=h200", "tp=4", "pp=1", "dp=1", "ep=1", "dcp_size=1", "pcp_size=1", "gpus=4",
             "replicas=1", "gpu_model=H200", "framework=vllm", "precision=fp8", "image=vllm:1",
             "spec_decoding=none", "dp_attention=false", "model_prefix=dsr1",
             "recipe_fingerprint=0"]  # fmt: skip
UNITS = {
    "requests": {"count"},
    "time_to_first_token": {"ms", "s"},
    "time_per_output_token": {"ms/token", "s/token"},
    "inter_token_latency": {"ms/token", "s/token"},
    "request_latency": {"ms", "s"},
    "input_token_rate": {"tokens/s"},
    "output_token_rate": {"tokens/s"},
    "total_token_rate": {"tokens/s"},
    "request_rate": {"queries/s"},
}
"""Allowed units, which the JSON schema of the report does not have (`base.py` beside it has)."""


def schema(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((SCHEMAS / name).read_text())
    return found


def run(**dataset: Any) -> InferenceResult:
    config = parse_config(
        {
            "endpoint": {"url": "http://t:1", "model": "m", "streaming": True},
            "load": {"concurrency": 4, "requests": 400},
            "dataset": {"input_tokens": {"mean": 100}, "output_tokens": {"mean": 20}, **dataset},
        },
        "",
    )
    rows = fake_run.closed_loop(requests=400, concurrency=4)
    return result_of(fake_run.results(rows, config=config))


def provenance(**target: str) -> Provenance:
    return Provenance(client={}, target=dict.fromkeys(TARGET_FACTS, UNKNOWN) | target)


@pytest.mark.parametrize("facts", [[], ALL_FACTS])
def test_report_is_valid_by_the_schema_of_llm_d(facts: list[str]) -> None:
    report = report_of(run(), provenance(), read_facts(facts))
    jsonschema.validate(report, schema("llm-d-benchmark-report-0.2.1.json"))
    kind = report["scenario"]["stack"][0]["standardized"]["kind"]
    assert kind == ("inference_engine" if facts else "generic")


def test_report_has_seconds_and_their_units() -> None:
    result = run()
    aggregate = report_of(result, None, {})["results"]["request_performance"]["aggregate"]
    found = aggregate["latency"] | aggregate["throughput"]
    assert found.keys() >= {"time_to_first_token", "request_latency", "request_rate"}
    for name, statistics in found.items():
        assert statistics["units"] in UNITS[name]
    latency = found["request_latency"]
    for theirs, ours in (("mean", "avg"), ("p99", "p99")):
        value = result.value("request_latency", ours)
        assert value is not None
        assert latency[theirs] == value * 1e-3
    assert aggregate["requests"]["total"] == 400
    assert aggregate["requests"]["failures"] == aggregate["requests"]["incomplete"] == 0


def test_row_is_valid_by_the_schema_of_inferencex() -> None:
    result = run()
    row = row_of(result, read_facts(ALL_FACTS))
    jsonschema.validate(row, schema("inferencex-row.json"))
    assert unknown_of(row) == []
    total, tpot = result.value("total_token_throughput"), result.value("inter_token_latency", "p90")
    assert total is not None
    assert tpot is not None
    assert row["tput_per_gpu"] == total / 4
    assert row["input_tput_per_gpu"] + row["output_tput_per_gpu"] == pytest.approx(total / 4)
    assert row["p90_tpot"] == tpot / 1e3
    assert row["p90_intvty"] == 1e3 / tpot
    assert (row["isl"], row["osl"], row["conc"]) == (100, 20, 4)


def test_unknown_facts_are_no_values() -> None:
    row = row_of(run(), setup_of(provenance(), {}))
    assert {"hw", "precision", "tp", "tput_per_gpu", "power_valid"} & row.keys() == set()
    assert set(unknown_of(row)) >= {"hw", "precision", "tp", "tput_per_gpu"}


def test_provenance_tells_the_parallelism() -> None:
    facts = {"engine": "vLLM", "engine_version": "0.11", "arguments": ARGUMENTS, "gpus": "16",
             "gpu_model": "NVIDIA H200 NVL"}  # fmt: skip
    assert setup_of(provenance(**facts), {"precision": "fp4"}) == {
        "framework": "vllm",
        "engine_version": "0.11",
        "gpus": "16",
        "gpu_model": "NVIDIA H200 NVL",
        "hw": "h200",
        "tp": "8",
        "pp": "1",
        "dp": "2",
        "ep": "16",
        "dcp_size": "1",
        "pcp_size": "1",
        "dp_attention": "false",
        "precision": "fp4",
        "spec_decoding": "eagle3",
    }
    stated = provenance(**{"engine": "SGLang", "server.tp_size": "4"})
    assert setup_of(stated, {}) == {"framework": "sglang", "tp": "4"}


@pytest.mark.parametrize("fact", ["hw", "hw=", "nodes=2", "tp=0", "tp=eight"])
def test_bad_fact_is_refused(fact: str) -> None:
    with pytest.raises(ConfigError, match="--fact "):
        read_facts([fact])


def test_all_facts_can_be_given() -> None:
    assert set(read_facts(ALL_FACTS)) == set(FACTS)


def test_row_needs_fixed_lengths_and_concurrency() -> None:
    with pytest.raises(ConfigError, match=r"set dataset\.output_tokens"):
        row_of(run(output_tokens=None), {})
    config = {**run().config, "load": {"request_rate": 5.0}}
    with pytest.raises(ConfigError, match="fixed concurrency"):
        row_of(msgspec.structs.replace(run(), config=config), {})
