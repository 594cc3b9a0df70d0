"""The energy of a run is shared by what its GPUs made."""

import pytest

from aiperf_svc.core.results.telemetry import with_telemetry
from aiperf_svc.core.telemetry.log import SourceLog
from aiperf_svc.core.telemetry.page import PageReader
from tests.support import fake_run

SECOND_NS = 1_000_000_000
POWER, ENERGY = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"


def test_energy_per_output_token_includes_reasoning_tokens() -> None:
    # Ten tokens in ten seconds, of which six are reasoning.
    rows = fake_run.request(ttft_ms=1000, gap_ms=1000, tokens=10, reasoning_tokens=6)
    gpu, reader = SourceLog("http://gpu/metrics", is_gpu=True), PageReader()
    for second in range(-1, 12):
        page = reader.read(f'{POWER}{{UUID="a"}} 400\n{ENERGY}{{UUID="a"}} {4e5 * second}\n')
        gpu.add(page, wall_ns=fake_run.START_NS + second * SECOND_NS, latency_ns=1)
    run = fake_run.results(rows)
    system = with_telemetry(run, [gpu], SourceLog("aiperf-svc")).system
    assert system is not None
    assert system.metrics["gpu_energy"] == pytest.approx(4000)
    assert system.metrics["energy_per_output_token"] == pytest.approx(400)
