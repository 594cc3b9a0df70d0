"""The effect of a calibration on a plan, and the notices before the run."""

from typing import Any

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.plan.topology import Facts, beyond_ceiling, plan
from tests.support.small_configs import small_config

CALIBRATED = Facts(
    where="local",
    cores=8,
    fd_limit=20_000,
    worker_requests_per_s=4_000,
    ceiling_requests_per_s=30_000,
)


def config(*, workers: dict[str, Any] | None = None, **load: Any) -> BenchmarkConfig:
    return small_config(load={"requests": 10} | load, workers=workers or {})


def warnings(facts: Facts = CALIBRATED, **options: Any) -> list[str]:
    benchmark = config(**options)
    return beyond_ceiling(benchmark, facts, plan(benchmark, facts))


def test_calibrated_rate_decides_open_loop_workers() -> None:
    assert plan(config(request_rate=20_000), CALIBRATED).workers == 5
    assert warnings(request_rate=20_000) == []


def test_too_few_workers_name_the_needed_number() -> None:
    [text] = warnings(request_rate=20_000, workers={"max": 2})
    assert "2 workers" in text
    assert "5 would do" in text


def test_rate_beyond_machine_names_workers_and_machines() -> None:
    [text] = warnings(request_rate=90_000)
    assert "30,000/s" in text
    assert "23 workers on about 3" in text


def test_no_ceiling_warning_without_calibration() -> None:
    assert warnings(Facts(where="local"), request_rate=90_000) == []
    assert warnings(concurrency=10_000) == []
