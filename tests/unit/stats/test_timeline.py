"""Data of the plots: requests that started, ended and were in flight in each bin."""

import numpy as np
import pytest

from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.core.stats.load_window import LoadWindow
from aiperf_svc.core.stats.timeline import MAX_BINS, Timeline, bin_width_s, timeline
from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from aiperf_svc.protocol.records import Rows
from tests.support import fake_run
from tests.support.fake_run import MS, START_NS

TAGS = ("time_to_first_token", "request_latency")


def window(begin_ns: int, end_ns: int) -> LoadWindow:
    return LoadWindow(begin_ns=begin_ns, ramp_ns=0, stop_ns=0, sent_until_ns=end_ns, end_ns=end_ns)


def series(rows: Rows, *, end_ms: float) -> Timeline:
    found = timeline(
        PhaseRows(fake_run.columns_of(rows)),
        ClockMap(),
        TAGS,
        window(START_NS, START_NS + round(end_ms * MS)),
    )
    assert found is not None
    return found


def test_bins_count_starts_ends_and_errors() -> None:
    rows = np.concatenate(
        [
            fake_run.request(start_ms=5, ttft_ms=20, tokens=1),
            fake_run.request(start_ms=8, ttft_ms=40, tokens=1),
            fake_run.without_response(
                start_ms=12, end_ms=15, outcome=Outcome.ERRORED, error=ErrorKind.DISCONNECTED
            ),
            fake_run.make_rows(1, outcome=Outcome.ERRORED, error=ErrorKind.CONNECT),
        ]
    )
    rows["end_wall_ns"][3] = START_NS + 35 * MS
    found = series(rows, end_ms=50)
    assert found.width_s == 0.01
    assert found.started_per_s.tolist() == [200, 100, 0, 0, 0]
    assert found.completed_per_s.tolist() == [0, 0, 100, 0, 100]
    assert found.errors_per_s.tolist() == [0, 100, 0, 100, 0]
    # 5 + 2 of 10 ms in the first bin; 10 + 10 + 3 in the second; 5 + 10 in the third.
    assert found.in_flight.tolist() == pytest.approx([0.7, 2.3, 1.5, 1.0, 0.8])
    median, tail = found.latencies["time_to_first_token"]
    assert median[0] == pytest.approx(20, rel=0.02)
    assert tail[0] == pytest.approx(40, rel=0.02)
    assert np.isnan(median[1:]).all()


def test_bins_conserve_time_in_flight() -> None:
    rows = fake_run.closed_loop(requests=400)
    end = int(rows["end_wall_ns"].max())
    found = series(rows, end_ms=(end - START_NS) / MS)
    busy_s = float((rows["end_wall_ns"] - rows["start_wall_ns"]).sum()) / 1e9
    assert found.in_flight.sum() * found.width_s == pytest.approx(busy_s)
    assert found.completed_per_s.sum() * found.width_s == pytest.approx(400)


@pytest.mark.parametrize("duration_s", [0.001, 0.9, 1.2, 59.0, 300.0, 86_400.0, 3_000_000.0])
def test_bins_do_not_exceed_the_maximum(duration_s: float) -> None:
    assert duration_s / bin_width_s(duration_s, 10**6) <= MAX_BINS


def test_few_requests_have_wide_bins() -> None:
    assert bin_width_s(6.0, 120) == 0.5
    assert bin_width_s(6.0, 12_000) == 0.05
    rows = fake_run.closed_loop(requests=120, concurrency=2)
    end_ms = (int(rows["end_wall_ns"].max()) - START_NS) / MS
    found = series(rows, end_ms=end_ms)
    assert 5 <= len(found.in_flight) <= 12
    assert (found.completed_per_s[1:-1] > 0).all()


def test_empty_window_has_no_timeline() -> None:
    rows = PhaseRows(fake_run.columns_of(fake_run.make_rows(0)))
    assert timeline(rows, ClockMap(), TAGS, window(5, 5)) is None
