"""Batches of one worker, put together, say what they said apart."""

import numpy as np

from aiperf_svc.core.gathering import merged
from aiperf_svc.core.histogram import Histogram, delta_of
from aiperf_svc.core.record_assembly import MetricParts
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages import ErrorSample, SequenceSpan
from aiperf_svc.protocol.records import METRIC_DTYPE


def part(first: int, gaps_ns: list[int]) -> MetricParts:
    rows = np.zeros(2, dtype=METRIC_DTYPE)
    rows["seq"] = [first, first + 1]
    return MetricParts(
        rows=rows,
        jsonl=b"line %d\n" % first,
        histograms=(delta_of(np.array(gaps_ns), phase=Phase.PROFILING, tag="gaps"),),
        errors=(ErrorSample(Phase.PROFILING, 1, 0, "refused", 1),),
        spans=(SequenceSpan("worker-0", 1, first, first + 1),),
    )


def test_rows_lines_spans_and_errors_follow_each_other() -> None:
    whole = merged([part(1, [5]), part(3, [6])])
    assert whole.rows["seq"].tolist() == [1, 2, 3, 4]
    assert whole.jsonl == b"line 1\nline 3\n"
    assert [span.first for span in whole.spans] == [1, 3]
    assert sum(error.count for error in whole.errors) == 2


def test_a_merged_histogram_counts_every_gap_once() -> None:
    apart, together = Histogram(), Histogram()
    parts = [part(1, [1_000_000, 2_000_000]), part(3, [2_000_000, 9_000_000])]
    for each in parts:
        apart.merge(each.histograms[0])
    together.merge(merged(parts).histograms[0])
    for name in ("total", "sum_ns", "min_ns", "max_ns", "sum_squares"):
        assert getattr(together, name) == getattr(apart, name)
    for q in (0.0, 0.5, 0.9, 1.0):
        assert together.percentile(q) == apart.percentile(q)


def test_one_batch_stays_as_it_is() -> None:
    alone = part(1, [5])
    assert merged([alone]) is alone
