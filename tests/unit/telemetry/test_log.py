"""Pages of a source are stored as series."""

import time
from collections.abc import Callable

import pytest

from aiperf_svc.core.telemetry import log as source_log
from aiperf_svc.core.telemetry.log import SourceLog
from aiperf_svc.core.telemetry.page import PageReader
from tests.support.fake_sources import at, source

POWER = "DCGM_FI_DEV_POWER_USAGE"
GPUS, PAGES = 64, 300


def best_cpu_s(work: Callable[[], object]) -> float:
    def once() -> float:
        started = time.process_time()
        work()
        return time.process_time() - started

    return min(once() for _ in range(3))


def test_sampling_time_does_not_grow_with_gpus() -> None:
    log = source(
        [{f'{POWER}{{gpu="{n}"}}': 300.0 + page for n in range(GPUS)} for page in range(PAGES)],
        is_gpu=True,
    )
    curves = best_cpu_s(lambda: [log.curve(n) for n in range(GPUS)])
    sampled = best_cpu_s(lambda: [log.sampled(n) for n in range(GPUS)])
    assert len(log.sampled(GPUS - 1).values) == PAGES
    assert sampled < 8 * curves


def test_gpu_after_a_full_log_has_no_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_log, "MAX_POINTS", 0)
    log, reader = SourceLog("http://exporter/metrics", is_gpu=True), PageReader()
    log.add(reader.read(f'{POWER}{{gpu="0"}} 300\n'), wall_ns=at(0), latency_ns=1)
    assert log.is_full
    assert not len(log.sampled(0).values)
