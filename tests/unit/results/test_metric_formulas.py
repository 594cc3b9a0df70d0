"""Metrics of single requests compared with values computed by hand."""

import math

import numpy as np
import pytest

from aiperf_svc.core.stats.columns import PhaseRows
from aiperf_svc.domain.metric_catalog import CATALOG, Population
from aiperf_svc.protocol.records import Flag, Rows
from tests.support import fake_run


def value(tag: str, rows: Rows) -> float:
    """Return the metric of the only request in `rows`."""
    compute = CATALOG[tag].compute
    assert compute is not None
    (chunk,) = PhaseRows(fake_run.columns_of(rows)).chunks()
    (found,) = compute(chunk)
    return float(found)


# Due at 90 ms, started at 100 ms with 4 ms of connecting, first token at 120 ms, then 9 gaps of 5
# ms: last token at 165 ms.
USUAL = fake_run.request(
    start_ms=100,
    due_ms=90,
    ttft_ms=20,
    gap_ms=5,
    tokens=10,
    input_tokens=500,
    usage_prompt_tokens=450,
    usage_completion_tokens=8,
    reasoning_tokens=4,
    bytes_out=2048,
    bytes_in=512,
    reads=7,
    connect_ns=3_000_000,
    tls_ns=1_000_000,
    sent_wall_ns=fake_run.START_NS + 105_000_000,
)


@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("request_latency", 65.0),
        ("time_to_first_token", 20.0),
        ("time_to_first_output_token", 20.0),
        ("time_to_second_token", 5.0),
        ("inter_token_latency", 5.0),
        ("decode_duration", 45.0),
        ("credit_to_start_latency", 10.0),
        ("schedule_lag", 10.0),
        ("effective_latency", 75.0),
        ("intended_request_latency", 75.0),
        ("intended_time_to_first_token", 30.0),
        ("output_token_throughput_per_user", 200.0),
        ("e2e_output_token_throughput", 10 / 0.065),
        ("prefill_throughput_per_user", 500 / 0.020),
        ("output_sequence_length", 10.0),
        ("output_token_count", 6.0),
        ("reasoning_token_count", 4.0),
        ("input_sequence_length", 500.0),
        ("usage_total_tokens", 458.0),
        ("usage_prompt_tokens_diff_pct", 10.0),
        ("usage_completion_tokens_diff_pct", 20.0),
        ("http_req_connecting", 4.0),
        ("http_req_connection_overhead", 4.0),
        ("http_req_connection_reused", 1.0),
        ("http_req_sending", 1.0),
        ("http_req_waiting", 15.0),
        ("http_req_receiving", 45.0),
        ("http_req_duration", 61.0),
        ("http_req_total", 65.0),
        ("http_req_data_sent", 2.0),
        ("http_req_data_received", 0.5),
        ("http_req_chunks_received", 7.0),
        ("content_chunk_count", 10.0),
    ],
)
def test_streamed_request_has_expected_metric_values(tag: str, expected: float) -> None:
    assert value(tag, USUAL) == pytest.approx(expected)


def test_inter_token_latency_is_undefined_under_two_tokens() -> None:
    one = fake_run.request(tokens=1)
    assert math.isnan(value("inter_token_latency", one))
    assert math.isnan(value("output_token_throughput_per_user", one))
    assert math.isnan(value("time_to_second_token", one))
    assert value("time_to_first_token", one) == 20.0


@pytest.mark.parametrize(
    "tag", ["time_to_first_token", "inter_token_latency", "intended_time_to_first_token"]
)
def test_without_streaming_there_is_no_first_token(tag: str) -> None:
    assert math.isnan(value(tag, fake_run.request(flags=Flag.REUSED)))


def test_response_before_its_request_was_not_waited_for() -> None:
    early = fake_run.request(start_ms=100, ttft_ms=20)
    early["sent_wall_ns"] = early["ack_wall_ns"] + 5_000_000
    assert value("http_req_sending", early) == 25.0
    assert value("http_req_waiting", early) == 0.0
    assert value("http_req_receiving", early) == 45.0
    early["ack_wall_ns"] = 0
    assert math.isnan(value("http_req_waiting", early))


def test_response_without_content_ends_with_its_last_byte() -> None:
    embedding = fake_run.request(
        flags=0, first_token_wall_ns=0, last_token_wall_ns=0, output_tokens=-1
    )
    assert value("request_latency", embedding) == 65.0
    assert math.isnan(value("output_sequence_length", embedding))


def test_unknown_counts_are_undefined_and_not_minus_one() -> None:
    unknown = fake_run.request(output_tokens=-1)
    tags = ["output_sequence_length", "input_sequence_length", "usage_prompt_tokens"]
    tags += ["inter_token_latency", "e2e_output_token_throughput", "usage_total_tokens"]
    assert all(math.isnan(value(tag, unknown)) for tag in tags)


def test_tokens_in_one_event_have_no_rate() -> None:
    assert math.isnan(value("output_token_throughput_per_user", fake_run.request(gap_ms=0)))


def test_every_formula_accepts_every_kind_of_request() -> None:
    rows = np.concatenate(
        [
            fake_run.closed_loop(requests=50, error_share=0.2),
            fake_run.without_response(start_ms=1, end_ms=9),
            fake_run.make_rows(1),
        ]
    )
    phase = PhaseRows(fake_run.columns_of(rows))
    for metric in CATALOG.values():
        if metric.compute is None:
            continue
        for population in Population:
            assert np.isfinite(phase.collect(metric.compute, population)).all(), metric.tag
