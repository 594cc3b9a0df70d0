"""Batches of metric records as record processors send them, for 100,000 streaming users."""

from collections.abc import Iterator

import numpy as np

from aiperf_svc.adapters.messaging.bus import encode
from aiperf_svc.core.stats.histogram import delta_of
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.protocol.messages.records import LineDetails, MetricBatch, SequenceSpan
from aiperf_svc.protocol.records import METRIC_DTYPE, Flag, Rows

WORKERS, PROCESSORS = 200, 50
BATCH_ROWS = 250
TEMPLATES = 40
"""Number of distinct batches. Their times are shifted to each batch's position."""
START_WALL_NS = 1_795_227_878_000_000_000
RATE_PER_S = 50_000
"""15 million requests in five minutes."""
_TIMES = tuple(name for name in METRIC_DTYPE.names or () if name.endswith("_wall_ns"))


def template(seed: int) -> Rows:
    """Return requests of one worker that ended within a second, timed relative to their batch."""
    random = np.random.default_rng(seed)
    ms = 10**6
    rows = np.zeros(BATCH_ROWS, dtype=METRIC_DTYPE)
    end = np.sort(random.integers(0, 1000 * ms, BATCH_ROWS))
    ttft = np.rint(random.lognormal(np.log(300 * ms), 0.4, BATCH_ROWS)).astype(np.int64)
    tokens = random.integers(20, 60, BATCH_ROWS)
    decode_ns = np.rint(random.normal(40, 4, BATCH_ROWS) * ms).astype(np.int64) * (tokens - 1)
    start = end - decode_ns - ttft
    lag = np.rint(random.exponential(0.05 * ms, BATCH_ROWS)).astype(np.int64)
    columns = {
        "due_wall_ns": start - lag,
        "start_wall_ns": start,
        "sent_wall_ns": start + 20_000,
        "ack_wall_ns": start + ttft,
        "first_token_wall_ns": start + ttft,
        "first_output_wall_ns": start + ttft,
        "second_token_wall_ns": start + ttft + decode_ns // (tokens - 1),
        "last_token_wall_ns": end,
        "end_wall_ns": end,
        "receive_lag_ns": lag,
        "ttft_uncertainty_ns": np.where(random.random(BATCH_ROWS) < 0.02, 30_000, 0),
        "bytes_out": 1800,
        "bytes_in": 190 * tokens,
        "entry": random.integers(0, 1000, BATCH_ROWS),
        "chunks": tokens,
        "reads": tokens,
        "input_tokens": 550,
        "output_tokens": tokens,
        "reasoning_tokens": -1,
        "usage_prompt_tokens": 540,
        "usage_completion_tokens": tokens,
        "status": 200,
        "flags": Flag.STREAMED | Flag.REUSED | Flag.LAST_TURN,
        "phase": Phase.PROFILING,
        "outcome": Outcome.COMPLETED,
    }
    for name, values in columns.items():
        rows[name] = values
    return rows


class Feed:
    """Batches of `count` requests, worker by worker."""

    def __init__(self, count: int, *, run_id: str, lines: int) -> None:
        self.count = count
        self._run_id = run_id
        self._lines = lines
        """Number of requests that have details for their lines."""
        self._templates = [template(seed) for seed in range(TEMPLATES)]
        random = np.random.default_rng(0)
        gaps = np.rint(random.normal(40e6, 4e6, BATCH_ROWS * 39)).astype(np.int64)
        self._gaps = (delta_of(gaps, phase=Phase.PROFILING, tag="inter_chunk_latency"),)
        self._details = [
            LineDetails(np.full(int(rows["chunks"].sum()) - len(rows), 40_000_000).tobytes(), ())
            for rows in self._templates
        ]
        self.sent = [0] * WORKERS

    def frames(self) -> Iterator[bytes]:
        """Yield encoded batches."""
        for number in range(self.count // BATCH_ROWS):
            worker = number % WORKERS
            rows = self._templates[number % TEMPLATES].copy()
            done = number * BATCH_ROWS
            rows = _shifted(rows, START_WALL_NS + done * 10**9 // RATE_PER_S)
            first = self.sent[worker] + 1
            self.sent[worker] += BATCH_ROWS
            rows["seq"] = np.arange(first, first + BATCH_ROWS)
            rows["index"] = np.arange(done, done + BATCH_ROWS)
            rows["worker"] = worker
            yield encode(
                MetricBatch(
                    self._run_id,
                    f"record-processor-{worker % PROCESSORS}",
                    1,
                    spans=(SequenceSpan(f"worker-{worker}", 1, first, self.sent[worker]),),
                    rows=rows.tobytes(),
                    details=self._details[number % TEMPLATES] if done < self._lines else None,
                    histograms=self._gaps,
                )
            )


def _shifted(rows: Rows, begin_wall_ns: int) -> Rows:
    moved = rows.copy()
    for name in _TIMES:
        moved[name] += begin_wall_ns
    return moved
