"""Runs exported in the formats of llm-d and InferenceX, validated against their schemas."""

import json
import statistics
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import numpy as np
import pytest

from aiperf_svc.adapters.exports.agentx_row import NEEDED as AGENTX_NEEDED
from aiperf_svc.adapters.exports.agentx_row import agentx_row_of
from aiperf_svc.adapters.exports.aiperf_exports import result_of
from aiperf_svc.adapters.exports.inferencex_row import NEEDED, row_of
from aiperf_svc.adapters.exports.llmd_report import report_of
from aiperf_svc.config.load_config import parse_config
from aiperf_svc.core.records.accounts import Accounts
from aiperf_svc.core.results.inference_result import DatasetFacts, InferenceResult, RunLayout
from aiperf_svc.core.results.provenance import TARGET_FACTS, UNKNOWN, Provenance
from aiperf_svc.core.results.server_setup import FACTS, read_facts, setup_of
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.telemetry.system_report import SystemReport
from aiperf_svc.core.verdict.check_result import Severity
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.domain.outcomes import ErrorKind, Outcome, Phase
from aiperf_svc.protocol.messages.reports import ClockEstimate
from aiperf_svc.protocol.records import Rows
from tests.support import fake_run
from tests.support.fake_results import DATASET

SCHEMAS = Path(__file__).parents[2] / "data" / "exports"
ARGUMENTS = (
    "serve m --tensor-parallel-size 8 -dp=2 --enable-expert-parallel --quantization fp8 "
    """--speculative-config '{"method": "eagle3", "num_speculative_tokens": 3}'"""
)
ALL_FACTS = ["hw=h200", "tp=4", "pp=1", "dp=1", "ep=1", "dcp_size=1", "pcp_size=1", "gpus=4",
             "replicas=1", "gpu_model=H200", "framework=vllm", "precision=fp8", "image=vllm:1",
             "spec_decoding=none", "dp_attention=false", "model_prefix=dsr1",
             "recipe_fingerprint=0", "kv_offloading=dram", "kv_offload_backend=lmcache",
             "allocated_cpu_dram_gb=512", "disagg=false", "is_multinode=false"]  # fmt: skip
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
"""Allowed units, which are not in the report's JSON schema but in `base.py` next to it."""


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
def test_report_is_valid_by_llm_d_schema(facts: list[str]) -> None:
    report = report_of(run(), provenance(), read_facts(facts))
    jsonschema.validate(report, schema("llm-d-benchmark-report-0.2.1.json"))
    kind = report["scenario"]["stack"][0]["standardized"]["kind"]
    assert kind == ("inference_engine" if facts else "generic")


def test_report_has_seconds_and_their_units() -> None:
    result = run()
    aggregate = report_of(result, None, {})["results"]["request_performance"]["aggregate"]
    found = aggregate["latency"] | aggregate["throughput"]
    assert found.keys() >= {"time_to_first_token", "request_latency", "request_rate"}
    for name, stats in found.items():
        assert stats["units"] in UNITS[name]
    latency = found["request_latency"]
    for theirs, ours in (("mean", "avg"), ("p99", "p99")):
        value = result.value("request_latency", ours)
        assert value is not None
        assert latency[theirs] == value * 1e-3
    assert aggregate["requests"]["total"] == 400
    assert aggregate["requests"]["failures"] == aggregate["requests"]["incomplete"] == 0


def test_report_has_the_sessions_of_conversations() -> None:
    dataset = msgspec.convert(DATASET | {"turns": 400}, DatasetFacts)
    accounts = Accounts(granted=110, issued=110, completed=96, errored=3, lost=1, unsent=10)
    layout = RunLayout(dataset=dataset)
    report = report_of(msgspec.structs.replace(run(), topology=layout, accounts=accounts), None, {})
    jsonschema.validate(report, schema("llm-d-benchmark-report-0.2.1.json"))
    assert report["scenario"]["load"]["standardized"]["multi_turn"] == {"enabled": True}
    assert report["results"]["session_performance"]["sessions"] == {
        "total": 100,
        "succeeded": 96,
        "failed": 4,
        "total_events": 400,
        "total_events_completed": 400,
        "total_events_cancelled": 0,
    }
    assert "session_performance" not in report_of(run(), None, {})["results"]


def test_row_is_valid_by_inferencex_schema() -> None:
    result = run()
    row = row_of(result, read_facts(ALL_FACTS))
    jsonschema.validate(row, schema("inferencex-row.json"))
    assert set(NEEDED) <= row.keys()
    total, tpot = result.value("total_token_throughput"), result.value("inter_token_latency", "p90")
    assert total is not None
    assert tpot is not None
    assert row["tput_per_gpu"] == total / 4
    assert row["input_tput_per_gpu"] + row["output_tput_per_gpu"] == pytest.approx(total / 4)
    assert row["p90_tpot"] == tpot / 1e3
    assert row["p90_intvty"] == 1e3 / tpot
    assert (row["isl"], row["osl"], row["conc"]) == (100, 20, 4)


def agent_run(rows: Rows) -> InferenceResult:
    config = parse_config(
        {
            "endpoint": {"url": "http://t:1", "model": "m", "streaming": True},
            "load": {"concurrency": 4, "duration": "20m", "agentic": {}},
            "dataset": {"kind": "weka_trace", "file": "trace.json"},
        },
        "",
    )
    return result_of(fake_run.results(rows, config=config))


def agent_rows() -> Rows:
    """Return a warmup request, then 300 requests of different lengths, including an error, a
    request that was cut off and one that was not sent."""
    rows = fake_run.closed_loop(requests=301, concurrency=4)
    rows["phase"][0] = Phase.WARMUP
    rows["input_tokens"] = rows["requested_tokens"] = np.arange(len(rows)) + 100
    for place, outcome, error in (
        (9, Outcome.ERRORED, ErrorKind.TIMEOUT),
        (10, Outcome.CANCELLED, ErrorKind.NONE),
        (11, Outcome.UNSENT, ErrorKind.NONE),
    ):
        rows["outcome"][place], rows["error"][place] = outcome, error
    return rows


def test_agentx_row_is_valid_by_its_schema() -> None:
    rows = agent_rows()
    columns = fake_run.columns_of(rows)
    row = agentx_row_of(agent_run(rows), read_facts(ALL_FACTS), columns, ClockMap())
    jsonschema.validate(row, schema("inferencex-agentx-row.json"))
    assert row["request_accounting"] == {
        "records_total": 300,
        "records_profiled": 297,
        "records_dropped_total": 3,
        "records_warmup_dropped": 1,
        "records_error_dropped": 2,
        "error_categories": {"timeout": 1, "cancelled": 1},
    }
    assert (row["num_requests_total"], row["num_requests_successful"]) == (300, 297)
    assert row["kv_offload_backend"] == {"name": "lmcache"}


def row_of_agents(rows: Rows, *clocks: tuple[int, list[ClockEstimate]]) -> Json:
    columns = fake_run.columns_of(rows)
    return agentx_row_of(agent_run(rows), read_facts(ALL_FACTS), columns, ClockMap(clocks))


def test_agentx_rates_compare_workers_on_one_clock() -> None:
    rows = agent_rows()
    expected = row_of_agents(rows)
    of_one = rows["worker"] == 1
    for name in ("due_wall_ns", "start_wall_ns", "first_token_wall_ns", "last_token_wall_ns",
                 "end_wall_ns"):  # fmt: skip
        rows[name][of_one & (rows[name] != 0)] += 10_000_000_000
    clock = ClockEstimate(offset_ns=-10_000_000_000, uncertainty_ns=0)
    assert row_of_agents(rows, (1, [clock])) == expected


def test_agentx_row_has_the_numbers_recomputed_slowly() -> None:
    rows = agent_rows()
    row = row_of_agents(rows)
    found, done = row["request_metrics"], rows[1:][rows["outcome"][1:] == Outcome.COMPLETED]
    latency_s = ((done["end_wall_ns"] - done["start_wall_ns"]) / 1e9).tolist()
    first_s = ((done["first_token_wall_ns"] - done["start_wall_ns"]) / 1e9).tolist()
    tokens = done["output_tokens"].tolist()
    gaps_s = [(e - f) / (n - 1) for e, f, n in zip(latency_s, first_s, tokens, strict=True)]
    per_token = [e / n for e, n in zip(latency_s, tokens, strict=True)]
    for name, values in (("e2el", latency_s), ("ttft", first_s), ("itl", gaps_s)):
        assert found["latency"][name] == pytest.approx(slow_stats(values))
    for name, values in (("intvty", gaps_s), ("e2e_norm_intvty", per_token)):
        stats = {stat: 1 / value for stat, value in slow_stats(values).items()}
        stats["std"] = statistics.pstdev([1 / value for value in values])
        assert found["latency"][name] == pytest.approx(stats)
    assert found["tokens"]["output_expected"] == pytest.approx(
        slow_stats(done["requested_tokens"].tolist())
    )
    begin_s, end_s = done["start_wall_ns"].min() / 1e9, done["end_wall_ns"].max() / 1e9
    rate = found["throughput"]["output"]["tokens_per_second"]
    assert rate == pytest.approx(sum(tokens) / (end_s - begin_s), rel=1e-6)
    assert found["throughput"]["per_gpu"]["output_tput_tps"] == rate / 4
    ends_s = sorted((done["end_wall_ns"] / 1e9).tolist())
    counts, at_s = list[float](), ends_s[0]
    while at_s + 1 <= ends_s[-1]:
        counts.append(sum(at_s <= end < at_s + 1 for end in ends_s))
        at_s += 1
    assert found["qps"]["samples"] == len(counts)
    assert found["qps"]["mean"] == pytest.approx(statistics.mean(counts))


def slow_stats(values: list[float]) -> dict[str, float]:
    """Compute statistics by definition. Percentiles are interpolated linearly."""
    ordered, found = sorted(values), {"mean": statistics.mean(values)}
    for percent in (50, 75, 90, 95):
        place = (len(ordered) - 1) * percent / 100
        low = ordered[int(place)]
        high = ordered[min(int(place) + 1, len(ordered) - 1)]
        found[f"p{percent}"] = low + (place - int(place)) * (high - low)
    return found | {"std": statistics.pstdev(values)}


def test_agentx_row_without_completed_requests_has_no_rates() -> None:
    rows = agent_rows()
    rows["outcome"] = Outcome.CANCELLED
    columns = fake_run.columns_of(rows)
    row = agentx_row_of(agent_run(rows), {"kv_offloading": "none"}, columns, ClockMap())
    assert row["kv_offload_backend"] is None
    assert row["request_metrics"]["throughput"] == row["request_metrics"]["qps"] == {}
    assert not any(row["request_metrics"]["latency"].values())
    assert set(AGENTX_NEEDED) - row.keys() >= {"hw", "tp", "allocated_cpu_dram_gb"}


def test_unknown_facts_are_omitted() -> None:
    row = row_of(run(), setup_of(provenance(), {}))
    assert {"hw", "precision", "tp", "tput_per_gpu", "power_valid"} & row.keys() == set()
    assert set(NEEDED) - row.keys() >= {"hw", "precision", "tp", "tput_per_gpu"}


def test_provenance_includes_the_parallelism() -> None:
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
        "disagg": "false",
    }
    stated = provenance(**{"engine": "SGLang", "server.tp_size": "4"})
    assert setup_of(stated, {}) == {"framework": "sglang", "tp": "4"}


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        ("sh -c 'exec vllm serve m --tensor-parallel-size 4; true'", ("4", "1", "none")),
        ("bash -lc 'vllm serve m \\\n -tp \\\n 4 $MORE'", ("4", None, None)),
        ("sh -c 'vllm serve m $FLAGS'", (None, None, None)),
        ("serve m --config /etc/vllm.yaml", (None, None, None)),
        ("/opt/serve.sh m", (None, None, None)),
        ("serve m -tp 4; serve m -tp 8", (None, "1", "none")),
        ("serve m -pp 2 -tp 4; serve m -pp 2 -tp 4", ("4", "2", "none")),
    ],
)
def test_only_whole_arguments_have_defaults(
    arguments: str, known: tuple[str | None, str | None, str | None]
) -> None:
    found = setup_of(provenance(engine="vLLM", arguments=arguments), {})
    assert (found.get("tp"), found.get("pp"), found.get("spec_decoding")) == known


@pytest.mark.parametrize(
    ("facts", "disaggregated", "multinode"),
    [
        ({"arguments": "serve m", "node": "a"}, False, False),
        ({"arguments": "serve m --disaggregation-mode prefill", "node": "a; b"}, True, None),
        ({"arguments": "serve m --kv-transfer-config {}"}, None, None),
    ],
)
def test_row_states_only_known_server_layout(
    facts: dict[str, str], disaggregated: bool | None, multinode: bool | None
) -> None:
    row = row_of(run(), setup_of(provenance(engine="vLLM", **facts), {}))
    assert (row.get("disagg"), row.get("is_multinode")) == (disaggregated, multinode)


def test_agentx_row_has_the_servers_counters() -> None:
    rows = agent_rows()
    metrics = {
        "server_prefix_hits": 30.0,
        "server_prefix_queries": 40.0,
        "server_prefix_hit_rate": 0.8,
        "server_prompt_tokens": 4000.0,
    }
    system = SystemReport(verdict=Severity.VALID, checks=(), metrics=metrics, sources=())
    result = msgspec.structs.replace(agent_run(rows), system=system)
    columns = fake_run.columns_of(rows)
    row = agentx_row_of(result, read_facts(ALL_FACTS), columns, ClockMap())
    jsonschema.validate(row, schema("inferencex-agentx-row.json"))
    found = row["server_metrics"]
    assert (found["present"], found["adapter"], found["metric_count"]) == (True, "vllm", 4)
    assert found["cache"]["gpu_cache_hit_rate"] == 0.75
    assert found["cache"]["overall_cache_hit_rate"] == 0.8
    assert found["tokens"]["prompt_total"] == 4000


@pytest.mark.parametrize("fact", ["hw", "hw=", "nodes=2", "tp=0", "tp=eight", "disagg=no"])
def test_bad_fact_is_refused(fact: str) -> None:
    with pytest.raises(ConfigError, match="--fact: "):
        read_facts([fact])


def test_all_facts_can_be_set() -> None:
    assert set(read_facts(ALL_FACTS)) == set(FACTS)


def test_row_needs_fixed_lengths_and_concurrency() -> None:
    with pytest.raises(ConfigError, match=r"run with dataset\.output_tokens"):
        row_of(run(output_tokens=None), {})
    config = {**run().config, "load": {"request_rate": 5.0}}
    staged = {**run().config, "load": {"concurrency": 4, "stages": [{"rate": 5.0}]}}
    with pytest.raises(ConfigError, match="fixed concurrency"):
        row_of(msgspec.structs.replace(run(), config=staged), read_facts(ALL_FACTS))
    with pytest.raises(ConfigError, match="fixed concurrency"):
        row_of(msgspec.structs.replace(run(), config=config), {})
