"""Telemetry sources with one generated page per second."""

from collections.abc import Iterable, Mapping
from pathlib import Path

from aiperf_svc.core.telemetry.log import SourceLog
from aiperf_svc.core.telemetry.page import PageReader

START_NS = 1_795_227_878_000_000_000
SECOND_NS = 1_000_000_000
DATA = Path(__file__).parents[1] / "data/telemetry"
"""Recorded metrics pages of servers."""

HEAD = """# TYPE vllm:num_requests_running gauge
# TYPE vllm:num_requests_waiting gauge
# TYPE vllm:kv_cache_usage_perc gauge
# TYPE vllm:num_preemptions_total counter
# TYPE vllm:time_to_first_token_seconds histogram
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
# TYPE DCGM_FI_DEV_POWER_VIOLATION counter
"""


def at(second: float) -> int:
    return START_NS + round(second * SECOND_NS)


def recorded(page: str, *, second: float = 0.0, is_gpu: bool = False) -> SourceLog:
    """Return a source with one recorded page."""
    log = SourceLog(f"http://{page}/metrics", is_gpu=is_gpu)
    read = PageReader().read((DATA / f"{page}.txt").read_text())
    log.add(read, wall_ns=at(second), latency_ns=1)
    return log


def source(
    pages: Iterable[Mapping[str, float]],
    *,
    url: str = "http://server/metrics",
    is_gpu: bool = False,
    first_s: float = 0.0,
    clock_offset_s: float = 0.0,
) -> SourceLog:
    """Return a source with a page per second from `first_s` on, which maps series to values."""
    log, reader = SourceLog(url, is_gpu=is_gpu), PageReader()
    for index, values in enumerate(pages):
        text = HEAD + "".join(f"{name} {value}\n" for name, value in values.items())
        log.add(
            reader.read(text),
            wall_ns=at(first_s + index),
            latency_ns=2_000_000,
            clock_offset_s=clock_offset_s,
        )
    return log
