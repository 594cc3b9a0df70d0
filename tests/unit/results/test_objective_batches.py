"""The batches on which a search decides agree with the percentiles of the run."""

import numpy as np
import pytest

from aiperf_svc.config.slo import Objective, Slo
from aiperf_svc.core.results.distributions import distributions
from aiperf_svc.core.results.objective_batches import batches_between
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.domain.outcomes import Outcome
from aiperf_svc.protocol.messages.reports import ClockEstimate
from aiperf_svc.protocol.records import Flag, Rows
from tests.support import fake_run
from tests.support.fake_run import START_NS

S = 10**9


def served() -> Rows:
    """Return 1,000 requests in 10 s. One in five is cut off, mostly after its first token."""
    rows = np.concatenate(
        [fake_run.request(start_ms=10 * n, ttft_ms=10 + n % 97, tokens=5) for n in range(1_000)]
    )
    cut = np.arange(1_000) % 5 == 0
    rows["outcome"][cut] = Outcome.CANCELLED
    rows["end_wall_ns"][cut] = rows["start_wall_ns"][cut] + 200_000_000
    rows["first_token_wall_ns"][np.arange(1_000) % 50 == 0] = 0
    rows["flags"][np.arange(1_000) % 10 == 1] |= np.uint16(Flag.ABANDONS)
    return rows


@pytest.mark.parametrize(
    ("tag", "censored"), [("intended_time_to_first_token", 20), ("intended_request_latency", 200)]
)
@pytest.mark.parametrize("limit_ms", [20.0, 60.0, 120.0])
def test_values_beyond_a_limit_include_requests_cut_before(
    tag: str, censored: int, limit_ms: float
) -> None:
    rows = PhaseRows(fake_run.columns_of(served()))
    slo = Slo(objectives=(Objective(metric=tag, stat="p90", max=limit_ms),))
    (found,) = batches_between(rows, ClockMap(), slo, START_NS, START_NS + 10 * S)
    measured = distributions(rows, unsent_without_row=0)[tag].distribution
    assert measured.censored == censored
    assert sum(found.counts) == measured.count + measured.censored
    beyond = sum(found.totals)
    assert beyond >= censored
    p90 = measured.stats["p90"]
    assert (p90 is not None and p90 <= limit_ms) == (beyond <= 0.1 * sum(found.counts))


def test_request_belongs_to_batch_of_due_time() -> None:
    slo = Slo(objectives=(Objective(metric="time_to_first_token", stat="p90", max=60.0),))
    rows, hour = served(), 3600 * S
    away = rows.copy()
    second = np.arange(len(away)) % 2 == 1
    away["worker"][second] = 1
    for name in away.dtype.names or ():
        if name.endswith("_wall_ns"):
            away[name][second] += np.where(away[name][second] != 0, hour, 0)
    at_hour = ClockEstimate(at_wall_ns=START_NS + hour, offset_ns=-hour, uncertainty_ns=0)
    found = [
        batches_between(
            PhaseRows(fake_run.columns_of(some)),
            clocks, slo, START_NS, START_NS + 10 * S,
        )
        for some, clocks in ((rows, ClockMap()), (away, ClockMap([(1, [at_hour])])))
    ]  # fmt: skip
    assert found[0] == found[1]
    assert min(found[0][0].counts) > 0
