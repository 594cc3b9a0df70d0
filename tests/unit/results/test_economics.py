"""Throughput per GPU, per kW and per cost, computed by hand."""

from typing import Any

import pytest

from aiperf_svc.core.results.summarise import summarise
from aiperf_svc.core.results.summary import Summary
from aiperf_svc.core.results.telemetry import economic_numbers, with_telemetry
from aiperf_svc.core.telemetry.log import SourceLog
from aiperf_svc.core.telemetry.page import PageReader
from tests.support import fake_run

SECOND_NS = 1_000_000_000
POWER, ENERGY = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
LOAD: dict[str, Any] = {"concurrency": 1, "requests": 1}


def gpus(count: int) -> SourceLog:
    """Return GPUs that draw 400 W each."""
    log, reader = SourceLog("http://gpu/metrics", is_gpu=True), PageReader()
    for second in range(-1, 12):
        lines = (
            f'{POWER}{{UUID="{n}"}} 400\n{ENERGY}{{UUID="{n}"}} {4e5 * second}\n'
            for n in range(count)
        )
        page = reader.read("".join(lines))
        log.add(page, wall_ns=fake_run.START_NS + second * SECOND_NS, latency_ns=1)
    return log


def run(*logs: SourceLog, slo: dict[str, Any] | None = None, **economics: Any) -> Summary:
    """Return a run with ten output tokens and 40 input tokens in ten seconds."""
    rows = fake_run.request(ttft_ms=1000, gap_ms=1000, tokens=10, input_tokens=40)
    config = fake_run.config(**LOAD, economics=economics, slo=slo or {})
    context = fake_run.context(rows, config=config)
    found = summarise(fake_run.columns_of(rows), None, context)
    return with_telemetry(found, logs, SourceLog("aiperf-svc"))


def test_objective_on_a_cost_is_judged() -> None:
    cost = {"metric": "cost_per_million_output_tokens", "max": 3000}
    latency = {"metric": "request_latency", "max": "1ms"}
    limits = {"objectives": [cost, latency]}
    found = run(gpus(2), price_per_gpu_hour=3.6, slo=limits).slo
    assert [each.outcome for each in found] == ["held", "missed"]
    assert found[0].measured == pytest.approx(2000)


def text_of(summary: Summary) -> str:
    assert summary.system is not None
    return next(check.text for check in summary.system.checks if check.check == "economics")


def test_figures_follow_the_formulas() -> None:
    found = run(gpus(2), price_per_gpu_hour=3.6, kw_per_gpu=1.5).scalars
    assert found["output_token_throughput"] == pytest.approx(1)
    expected = {
        "gpu_count": 2,
        "output_token_throughput_per_gpu": 0.5,
        "total_token_throughput_per_gpu": 2.5,
        "output_token_throughput_per_kw": 1 / 3,
        "total_token_throughput_per_kw": 5 / 3,
        "gpu_joules": 8000,
        "joules_per_output_token": 800,
        "joules_per_total_token": 160,
        "joules_per_request": 8000,
        # 2 GPUs at $3.60 per hour cost $0.002 per second, in which they generate one token.
        "cost_per_million_output_tokens": 2000,
        "cost_per_million_total_tokens": 400,
    }
    assert {tag: found[tag] for tag in expected} == pytest.approx(expected)


def test_steady_part_has_its_own_energy_and_costs() -> None:
    rows = fake_run.request(ttft_ms=1000, gap_ms=1000, tokens=10, input_tokens=40)
    load = LOAD | {"steady_state": {"concurrency": "50%"}}
    economics = {"price_per_gpu_hour": 3.6}
    context = fake_run.context(rows, config=fake_run.config(**load, economics=economics))
    found = summarise(fake_run.columns_of(rows), None, context)
    steady = with_telemetry(found, [gpus(2)], SourceLog("aiperf-svc")).steady_state
    assert steady is not None
    found_in = {tag: each.avg for tag, each in steady.metrics.items()}
    length_s = steady.end_s - steady.begin_s
    assert found_in["gpu_joules"] == pytest.approx(2 * 400 * length_s)
    rate = 10 / length_s / 2
    assert found_in["output_token_throughput_per_gpu"] == pytest.approx(rate)
    assert found_in["cost_per_million_output_tokens"] == pytest.approx(3.6 / rate / 0.0036)


@pytest.mark.parametrize(
    ("economics", "target", "counted", "gpus", "source"),
    [
        ({"gpus": 8}, {}, 4, "8 GPUs", "economics.gpus"),
        ({}, {}, 1, "1 GPU", "telemetry"),
        ({}, {"kind": "vllm", "gpu": {"count": 2}, "replicas": 3}, 4, "4 GPUs", "telemetry"),
        (
            {},
            {"kind": "vllm", "gpu": {"count": 2}, "replicas": 3},
            0,
            "6 GPUs",
            "deployment.target",
        ),
    ],
)
def test_number_of_gpus_names_its_source(
    economics: dict[str, Any], target: dict[str, Any], counted: int, gpus: str, source: str
) -> None:
    config = fake_run.config(**LOAD, economics=economics, deployment={"target": target})
    found = economic_numbers(config, counted=counted, joules=None)
    assert found.scalars["gpu_count"] == int(gpus.split()[0])
    assert f"{gpus} (from {source})" in found.text


def test_energy_per_output_token_includes_reasoning_tokens() -> None:
    # Ten tokens in ten seconds, six of which are reasoning.
    rows = fake_run.request(ttft_ms=1000, gap_ms=1000, tokens=10, reasoning_tokens=6)
    system = with_telemetry(fake_run.results(rows), [gpus(1)], SourceLog("aiperf-svc")).system
    assert system is not None
    assert system.metrics["gpu_energy"] == pytest.approx(4000)
    assert system.metrics["energy_per_output_token"] == pytest.approx(400)


def test_energy_of_other_gpus_is_left_out() -> None:
    found = run(gpus(2), gpus=8)
    assert "joules_per_output_token" not in found.scalars
    assert "the energy is left out, because telemetry covers 2 GPUs" in text_of(found)


def test_config_alone_is_enough_for_rates_and_cost() -> None:
    found = run(gpus=4, price_per_gpu_hour=2.0)
    assert found.scalars["output_token_throughput_per_gpu"] == pytest.approx(0.25)
    assert "cost_per_million_output_tokens" in found.scalars
    assert text_of(found) == "economics: 4 GPUs (from economics.gpus), $2 per GPU hour"


def test_run_without_gpus_has_no_economics() -> None:
    found = run(price_per_gpu_hour=2.0)
    assert found.system is None
    assert not [tag for tag in found.scalars if "gpu" in tag or "cost" in tag]
