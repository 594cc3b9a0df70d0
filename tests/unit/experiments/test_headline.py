"""The numbers of a trial that are printed as soon as it has ended."""

from aiperf_svc.core.experiments.headline import headline
from aiperf_svc.core.experiments.outcomes import measured_in
from tests.support.fake_trials import results_of


def test_requests_show_throughput_and_first_token_tail() -> None:
    found = measured_in(results_of(throughput=412.34, ttft=51.0))
    assert headline(found) == "412.3 requests/s, 51 ms TTFT p99"


def test_headline_without_streams_has_throughput() -> None:
    assert headline(measured_in(results_of(throughput=412.34))) == "412.3 requests/s"
