"""A search criterion is parsed, rejected with a reason, and applied to a trial's summary."""

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from aiperf_svc.adapters.exports.aiperf_exports import result_of
from aiperf_svc.config.search import Search
from aiperf_svc.config.slo import Slo
from aiperf_svc.core.experiments.criteria import searched_slo, trial_result
from aiperf_svc.core.experiments.evidence import is_held
from aiperf_svc.core.results.inference_result import InferenceResult
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.core.results.summarise import summarise
from aiperf_svc.core.verdict.check_result import Severity, graded
from aiperf_svc.domain.outcomes import ErrorKind, Outcome
from tests.support import fake_run

P99 = {"metric": "time_to_first_token", "stat": "p99", "max": "50ms"}


def slo(**parts: Any) -> Slo:
    return Slo.model_validate(parts)


def search(holds: str = "slo", **parts: Any) -> Search:
    defaults = {"parameter": "load.request_rate", "from": 1, "to": 9, "holds": holds}
    return Search.model_validate(defaults | parts)


def test_held_limits_become_the_slo_of_trials() -> None:
    assert searched_slo(search(), slo(objectives=[P99])) == slo(objectives=[P99])
    assert searched_slo(search("time_to_first_token:p99 < 50ms"), slo()) == slo(objectives=[P99])
    found = searched_slo(search("request_throughput >= 20"), slo(objectives=[P99]))
    assert found == slo(objectives=[{"metric": "request_throughput", "min": "20"}])
    limits = {"request_latency": "1s"}
    both = slo(objectives=[P99], goodput=limits)
    assert searched_slo(search("goodput >= 95%"), both) == slo(goodput=limits)


@pytest.mark.parametrize(
    ("holds", "named"),
    [
        ("goodput >= 95%", "needs slo.goodput"),
        ("ttfb:p99 < 50ms", "'ttfb' is not a metric"),
        ("time_to_first_token:p98 < 50ms", "'p98' is not a statistic"),
        ("time_to_first_token:p99 < soon", "'soon'"),
        ("goodptu >= 95", "did you mean goodput"),
    ],
)
def test_invalid_search_limit_is_refused(holds: str, named: str) -> None:
    with pytest.raises(ValueError, match=r"expected|needs|is not") as caught:
        searched_slo(search(holds), slo())
    assert named in str(caught.value)
    assert holds in str(caught.value)


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("output_token_throughputs", "did you mean output_token_throughput"),
        ("request_latency", "lower is better"),
    ],
)
def test_invalid_metric_to_maximize_is_refused(metric: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        searched_slo(search(maximize=metric), slo())


def exported(
    limits: Slo, *, slow_share: float = 0.0, failed_share: float = 0.0, unsent: int = 0
) -> InferenceResult:
    """Return the results of a run of 4,000 requests with slow and failed ones, and of `unsent` more
    that were due but never sent."""
    rng = np.random.default_rng(3)
    is_slow = rng.random(4_000) < slow_share
    quick, slow = fake_run.request(ttft_ms=20.0), fake_run.request(ttft_ms=80.0)
    rows = np.concatenate([quick, slow])[is_slow.astype(int)]
    for name in rows.dtype.names or ():
        if name.endswith("_wall_ns"):
            rows[name] += np.where(rows[name] > 0, np.arange(4_000) * 5 * fake_run.MS, 0)
    failed = np.arange(4_000) < 4_000 * failed_share
    rows["outcome"][failed], rows["error"][failed] = Outcome.ERRORED, ErrorKind.STATUS
    config = fake_run.config().model_copy(update={"slo": limits})
    context = fake_run.context(rows, config=config, unsent=unsent)
    summary = summarise(fake_run.columns_of(rows), None, context)
    return result_of(summary)


@pytest.mark.parametrize(("share", "holds"), [(0.0, True), (0.01, None), (0.05, False)])
def test_a_percentile_of_a_trial(share: float, holds: bool | None) -> None:
    found = trial_result(exported(slo(objectives=[P99]), slow_share=share), search())
    (evidence,) = found.evidence
    assert is_held([evidence]) is holds
    assert sum(evidence.counts) == 4_000
    assert abs(sum(evidence.totals) - 4_000 * share) < 30
    assert "time_to_first_token:p99" in found.statistics
    sign = "≤" if evidence.is_met else ">"
    assert f" ms {sign} 50 ms" in str(evidence)


@pytest.mark.parametrize(("share", "holds"), [(0.01, True), (0.2, False)])
def test_the_share_of_good_requests_of_a_trial(share: float, holds: bool) -> None:
    limits = slo(goodput={"time_to_first_token": "50ms"})
    found = trial_result(exported(limits, slow_share=share), search("goodput >= 95%"))
    (evidence,) = found.evidence
    assert is_held([evidence]) is holds
    assert evidence.measured == pytest.approx(100 * (1 - share), abs=2)


@pytest.mark.parametrize(("unsent", "holds"), [(100, True), (1_005, False)])
def test_unsent_requests_are_not_good(unsent: int, holds: bool) -> None:
    limits = slo(goodput={"time_to_first_token": "50ms"})
    found = trial_result(exported(limits, unsent=unsent), search("goodput >= 95%"))
    (evidence,) = found.evidence
    assert is_held([evidence]) is holds
    assert evidence.measured == pytest.approx(100 * 4_000 / (4_000 + unsent))


@pytest.mark.parametrize("bound", ["max", "min"])
@pytest.mark.parametrize("unsent", [0, 7, 1_005])
def test_unsent_requests_exceed_a_limit_on_due_requests(unsent: int, bound: str) -> None:
    limit = {"metric": "intended_request_latency", "stat": "p90", bound: "500ms"}
    (evidence,) = trial_result(exported(slo(objectives=[limit]), unsent=unsent), search()).evidence
    assert sum(evidence.counts) == 4_000 + unsent
    assert sum(evidence.totals) == (unsent if bound == "max" else 4_000)
    if bound == "max":
        assert is_held([evidence]) is (unsent < 400)


@pytest.mark.parametrize("unsent", [0, 7])
def test_average_with_an_unknown_value_has_no_batches(unsent: int) -> None:
    limit = {"metric": "intended_request_latency", "stat": "avg", "max": "500ms"}
    (evidence,) = trial_result(exported(slo(objectives=[limit]), unsent=unsent), search()).evidence
    assert bool(evidence.counts) is not bool(unsent)
    assert is_held([evidence]) is (None if unsent else True)
    # Another run in which nothing was cut off does not override it.
    (other,) = trial_result(exported(slo(objectives=[limit])), search()).evidence
    assert is_held([evidence, other]) is (None if unsent else True)
    assert not unsent or "among the requests that were cut off" in str(evidence)


def test_unknown_value_of_an_ended_trial_is_ignored() -> None:
    # Another objective ended the trial and cut its requests off.
    limit = {"metric": "intended_request_latency", "stat": "avg", "max": "500ms"}
    whole = exported(slo(objectives=[limit]))
    ended = replace(exported(slo(objectives=[limit]), unsent=7), early_end="p99 breaks")
    (other,), (evidence,) = (trial_result(each, search()).evidence for each in (whole, ended))
    assert (evidence.measured, is_held([evidence])) == (None, None)
    assert is_held([evidence, other]) is True


def test_trial_breaks_if_the_server_failed_most_requests() -> None:
    (evidence,) = trial_result(
        exported(slo(objectives=[P99]), failed_share=0.99), search()
    ).evidence
    assert is_held([evidence]) is False
    assert str(evidence).startswith(
        "p99 Time to First Token: leaves out 3,960 of 4,000 requests (3,960 failed), 99.00%"
    )
    fewer = exported(slo(objectives=[P99], error_budget="100%"), failed_share=0.99)
    (evidence,) = trial_result(fewer, search()).evidence
    assert is_held([evidence]) is None


def test_load_that_the_target_fails_holds_no_rate() -> None:
    limits = slo(objectives=[{"metric": "request_throughput", "min": 1}])
    found = exported(limits, failed_share=0.5)
    assert (found.cause, found.slo[0].ok) == ("target-failing", True)
    (evidence,) = trial_result(found, search()).evidence
    assert is_held([evidence]) is False
    assert str(evidence).startswith("avg Request Throughput: ")


def test_failed_requests_break_a_trial_despite_latencies() -> None:
    found = exported(slo(objectives=[P99]))
    missed = replace(found.slo[0], ok=False, reason="leaves out 80 of 4,000 requests")
    (evidence,) = trial_result(replace(found, slo=(missed,)), search()).evidence
    assert is_held([evidence]) is False


def test_a_client_bound_trial_is_not_the_servers() -> None:
    reason = graded("lag", 1.0, (0.1, 0.2), text="late by 20 ms", remedy="")
    results = replace(
        exported(slo(objectives=[P99])),
        verdict=Severity.INVALID,
        cause="client-bound",
        reasons=(reason,),
    )
    found = trial_result(results, search())
    assert (found.is_client_bound, found.problem) == (True, "late by 20 ms")


def test_metric_without_values_does_not_judge_the_server() -> None:
    limits = slo(objectives=[{"metric": "inter_token_latency", "stat": "p99", "max": "50ms"}])
    results = replace(exported(limits), verdict=Severity.VALID, cause="")
    assert trial_result(results, search()).problem == ""
    del results.metrics["inter_token_latency"]
    missed = replace(results.slo[0], ok=False, measured=None, reason="not measured")
    results = replace(results, slo=(missed,))
    found = trial_result(results, search())
    assert found.problem == "Inter Token Latency: no response had it; search by another metric"
    results.metrics["request_count"] = MetricStats(unit="requests", avg=0.0)
    failing = replace(results, verdict=Severity.INVALID, cause="target-failing")
    assert trial_result(failing, search()).problem == ""
