"""The steady part of a run in experiments: each metric next to that of the whole run."""

from aiperf_svc.adapters.exports.aiperf_exports import result_of
from aiperf_svc.core.compare.measured_run import RowKey
from aiperf_svc.core.experiments.outcomes import Measured, measured_in
from tests.support import fake_run

RULE = {"skip_start": 0.2, "skip_end": 0.1}


def measured(**load: object) -> Measured:
    rows = fake_run.closed_loop(requests=500, concurrency=4)
    config = fake_run.config(concurrency=4, requests=500, **load)
    return measured_in(result_of(fake_run.results(rows, config=config)))


def test_each_steady_state_metric_is_a_value() -> None:
    found = measured(steady_state=RULE)
    steady = [key for key in found.values if key.tag.startswith("steady_state.")]
    assert RowKey("steady_state.request_latency", "p99") in steady
    assert RowKey("steady_state.output_token_throughput", "avg") in steady
    info = found.metrics["steady_state.request_latency"]
    assert (info.name, info.unit) == ("Request Latency, steady state", "ms")
    assert {key.tag for key in steady} <= found.metrics.keys()


def test_headline_ends_with_the_steady_value() -> None:
    keys = [(key.tag, key.stat) for key in measured(steady_state=RULE).headline]
    place = keys.index(("request_throughput", "avg"))
    assert keys[place + 1] == ("steady_state.request_throughput", "avg")


def test_run_without_a_rule_has_no_steady_values() -> None:
    found = measured()
    assert not [key for key in found.values if key.tag.startswith("steady_state.")]
    assert not [key for key in found.headline if key.tag.startswith("steady_state.")]
