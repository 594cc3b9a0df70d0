"""`scenario: agentx` sets what the rules require. Deviating runs are reported with the reason."""

from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.config.agentx import deviations
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.records.accounts import Accounts
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.core.rules.agentx import NAME, verify
from aiperf_svc.core.rules.measured_point import MeasuredPoint, Rates, Sent
from aiperf_svc.core.rules.report import Outcome
from aiperf_svc.core.rules.steady_state import Window
from tests.support.fake_results import inference_result
from tests.support.flag_configs import TARGET
from tests.support.flag_configs import config as flag_config
from tests.support.small_configs import small_benchmark

WINDOW = Window(super_passes=0, ramp=0, first=0, length=0, begin=0, end=0)


def written(**parts: Any) -> dict[str, Any]:
    """Return a config with the scenario and changed parts."""
    config = small_benchmark(scenario="agentx", load={"concurrency": 8}, dataset={"file": "traces"})
    for name, part in parts.items():
        config[name] = config.get(name, {}) | part if isinstance(part, dict) else part
    return config


def finished(**parts: Any) -> dict[str, Any]:
    return BenchmarkConfig.model_validate(written(**parts)).model_dump(mode="json")


def test_scenario_sets_the_fixed_keys() -> None:
    config = BenchmarkConfig.model_validate(written())
    assert config.load.agentic is not None
    assert config.load.agentic.warmup_requests == 10
    assert (config.random_seed, config.workers.max) == (42, 1)
    assert config.load.duration == 3600 * 10**9
    assert deviations(finished()) == []


def test_written_config_round_trips() -> None:
    config = BenchmarkConfig.model_validate(written())
    assert BenchmarkConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"random_seed": 7}, "random_seed 7, expected 42"),
        ({"endpoint": {"streaming": False}}, "endpoint.streaming false, expected true"),
        ({"load": {"duration": "20m"}}, "load.duration 20m, expected 1h"),
        (
            {"load": {"agentic": {"system_idle_cap": "30s"}}},
            "load.agentic.system_idle_cap 30s, expected 10s",
        ),
        ({"dataset": {"delay_factor": 0.5}}, "dataset.delay_factor 0.5, expected 1.0"),
        ({"load": {"agentic": {"burst": True}}}, "load.agentic.burst true, expected false"),
        ({"load": {"ramp": "9s"}}, "load.ramp 9s, expected 0s"),
        ({"dataset": {"max_delay": "9s"}}, "dataset.max_delay 9s, expected not set"),
    ],
)
def test_users_deviating_key_is_named(parts: dict[str, Any], reason: str) -> None:
    assert deviations(finished(**parts)) == [reason]


def test_fast_mode_conforms() -> None:
    load = {"duration": "20m", "agentic": {"warmup_requests": 1}}
    assert deviations(finished(load=load)) == []


def test_flags_name_the_scenario_as_aiperf_does() -> None:
    for name in ("agentx", "inferencex-agentx-mvp"):
        config = flag_config(*TARGET, "--scenario", name, "--input-file", "x", "--concurrency", "4")
        assert config.scenario == "agentx"
        assert config.dataset.kind == "weka_trace"
        assert config.load.requests is None


def test_scenario_of_a_file_fits_flags_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("scenario: agentx\n")
    config = flag_config(*TARGET, "-f", str(file), "--input-file", "x", "--concurrency", "4")
    assert config.dataset.kind == "weka_trace"


def test_concurrencies_of_flags_are_trials() -> None:
    flags = ("--scenario", "agentx", "--input-file", "x", "--concurrency", "4,8")
    config = flag_config(*TARGET, *flags)
    assert config.experiment is not None
    assert config.experiment.size == 2
    assert config.load.duration == 3600 * 10**9


def missed(seconds: float = 3600.0, errors: float = 0.0, **parts: Any) -> dict[str, str]:
    numbers = {"request_count": 1000.0, "error_request_count": errors}
    metrics = {
        name: MetricStats(unit="", avg=value)
        for name, value in (numbers | {"benchmark_duration": seconds}).items()
    }
    result = inference_result(
        config=finished(**parts), accounts=Accounts(issued=10, completed=10), metrics=metrics
    )
    rates = Rates(system_tps=100.0, tpot_p90_ms=20.0)
    sent = Sent(
        repeats=0,
        span_s=60.0,
        rates=Rates(),
        completed=rates,
        window=WINDOW,
        window_span_s=0.0,
        steady=Rates(),
    )
    report = verify([MeasuredPoint("runs/8", result, sent)])
    assert (report.rules, report.points[0].tps_per_user) == (NAME, 50.0)
    return {
        each.rule: each.points[0].text
        for each in report.requirements
        if each.outcome is Outcome.NOT_MET
    }


def test_run_that_conforms_meets_every_requirement() -> None:
    assert missed() == {}
    assert missed(1200.0, load={"duration": "20m", "agentic": {"warmup_requests": 1}}) == {}


def test_missed_requirements_state_the_difference() -> None:
    assert missed(1200.0) == {"duration": "1,200 s, expected 3,600"}
    assert missed(600.0) == {"duration": "600 s; a run under 900 s is not valid"}
    short = {"duration": "3,540 s, expected 3,600"}
    assert missed(load={"duration": "59m"}) == short  # The drain completes the hour.
    assert missed(errors=250.0) == {"errors": "20.0% of 1,250 requests, at most 10%"}
    assert missed(random_seed=7) == {"random_seed": "random_seed 7, expected 42"}
