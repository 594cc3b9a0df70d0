"""Lines of profile_export.jsonl: AIPerf's format, and the values of the metric formulas."""

from typing import Any

import numpy as np
import pytest

from aiperf_svc.core.lines.renderer import GAPS_TAG, RequestStreams, columns_for_formulas
from aiperf_svc.domain.metric_catalog import CATALOG, METRICS, Kind, Population
from aiperf_svc.domain.outcomes import ErrorKind, Outcome, Phase
from aiperf_svc.domain.request_ids import request_id
from aiperf_svc.protocol.records import Flag
from tests.support.raw_batches import (
    DONE,
    LAST_CHUNK,
    MS_NS,
    RUN,
    START,
    STREAM_HEAD,
    Read,
    Request,
    assembler_of,
    batch_of,
    chunk,
    delta,
    finish,
    lines_in,
    plain,
    reads_of,
    record_of,
    sse,
    stamp_of,
    usage,
)

# Tags and units that AIPerf 0.13 writes for a streamed chat request.
AIPERF_UNITS = {
    "input_sequence_length": "tokens",
    "output_token_count": "tokens",
    "usage_completion_tokens": "tokens",
    "http_req_receiving": "ms",
    "output_sequence_length": "tokens",
    "usage_total_tokens": "tokens",
    "http_req_sending": "ms",
    "http_req_connecting": "ms",
    "http_req_waiting": "ms",
    "http_req_data_sent": "KB",
    "usage_prompt_tokens": "tokens",
    "request_latency": "ms",
    "time_to_first_token": "ms",
    "http_req_connection_reused": "ratio",
    "http_req_chunks_received": "count",
    "time_to_first_output_token": "ms",
    "http_req_data_received": "KB",
    "inter_chunk_latency": "ms",
    "time_to_second_token": "ms",
    "http_req_duration": "ms",
    "usage_completion_tokens_diff_pct": "%",
    "http_req_connection_overhead": "ms",
    "http_req_total": "ms",
    "usage_prompt_tokens_diff_pct": "%",
    "e2e_output_token_throughput": "tokens/sec/user",
    "inter_token_latency": "ms",
    "decode_duration": "ms",
    "prefill_throughput_per_user": "tokens/sec/user",
    "output_token_throughput_per_user": "tokens/sec/user",
}
OURS = {
    metric.tag: metric.unit
    for metric in METRICS
    if metric.is_ours and metric.kind is Kind.RECORD and metric.tag != "hidden_token_count"
}
METADATA = {
    "session_num": int,
    "x_request_id": str,
    "x_correlation_id": str,
    "conversation_id": str,
    "turn_index": int,
    "credit_issued_ns": int,
    "request_start_ns": int,
    "request_ack_ns": int,
    "request_end_ns": int,
    "worker_id": str,
    "record_processor_id": str,
    "benchmark_phase": str,
    "phase_index": int,
    "profiling_index": int,
    "phase_name": str,
    "phase_kind": str,
    "was_cancelled": bool,
    "context_overflow_skip": bool,
    "agent_depth": int,
    "root_correlation_id": str,
    "finish_reason": int,
}


def streamed(*stamps: int, told: bytes = usage(500, 20), **options: Any) -> Request:
    token = chunk(sse(delta(content="a")))
    reads = [Read(token, stamp_of(stamp) + stamp * 1_237) for stamp in stamps]
    reads[0].data = STREAM_HEAD + reads[0].data
    reads[-1].data += chunk(sse(finish())) + chunk(sse(told)) + chunk(DONE) + LAST_CHUNK
    return Request(reads=reads, **options)


def line_of(request: Request, *, has_warmup: bool = False) -> dict[str, Any]:
    (line,) = lines_in([record_of(request)], has_warmup=has_warmup)
    return line


def test_a_streamed_request_has_aiperfs_keys_and_units() -> None:
    line = line_of(streamed(0, 5, 11))
    assert list(line) == ["metadata", "metrics"]
    assert {key: type(value) for key, value in line["metadata"].items()} == METADATA
    assert {tag: entry["unit"] for tag, entry in line["metrics"].items()} == AIPERF_UNITS | OURS
    for tag, entry in line["metrics"].items():
        assert list(entry) == ["value", "unit"]
        expected = list if tag == GAPS_TAG else int if CATALOG[tag].is_integer else float
        assert type(entry["value"]) is expected, tag


def test_late_turns_have_the_sent_ids() -> None:
    turns = (3, 2_345, 65_000)
    records = [record_of(streamed(0, 5, index=12, turn=turn)) for turn in turns]
    found = [line["metadata"] for line in lines_in(records)]
    assert [each["turn_index"] for each in found] == list(turns)
    for metadata, turn in zip(found, turns, strict=True):
        assert metadata["x_request_id"] == request_id(RUN, Phase.PROFILING, 12, turn)
        assert metadata["x_correlation_id"] == request_id(RUN, Phase.PROFILING, 12, 0)


def test_late_streams_of_a_tree_keep_sent_ids() -> None:
    count = 2_601
    numbers = np.zeros((count, 4), dtype="<u2")
    numbers[2_600] = (2_500, 2_100, 0, 2)
    streams = RequestStreams(np.array([count], dtype="<u2").tobytes(), numbers.tobytes())
    records = [record_of(streamed(0, 5, index=12, turn=turn, entry=0)) for turn in (5, 2_600)]
    early, late = (line["metadata"] for line in lines_in(records, streams=streams))
    root, stream, parent = (request_id(RUN, Phase.PROFILING, 12, n) for n in (0, 2_500, 2_100))
    assert (early["x_correlation_id"], late["x_correlation_id"]) == (root, stream)
    assert early["root_correlation_id"] == late["root_correlation_id"] == root
    assert (late["parent_correlation_id"], late["agent_depth"]) == (parent, 2)
    assert late["x_request_id"] == request_id(RUN, Phase.PROFILING, 12, 2_600)


def test_metadata_identify_the_request() -> None:
    request = streamed(0, 5, index=12, turn=3, entry=7)
    metadata = line_of(request)["metadata"]
    assert metadata["session_num"] == 12
    assert metadata["x_request_id"] == request_id(RUN, Phase.PROFILING, 12, 3)
    first = request_id(RUN, Phase.PROFILING, 12, 0)
    assert metadata["x_correlation_id"] == metadata["root_correlation_id"] == first
    assert metadata["conversation_id"] == "session_000007"
    assert metadata["turn_index"] == 3
    assert metadata["credit_issued_ns"] == START - 2 * MS_NS
    assert metadata["request_start_ns"] == START - 400_000
    assert metadata["request_ack_ns"] == stamp_of(0)
    assert metadata["request_end_ns"] == request.reads[-1].stamp
    assert metadata["worker_id"] == "worker-0"
    assert metadata["record_processor_id"] == "record-processor-3"
    assert metadata["was_cancelled"] is False
    names = {metadata[key] for key in ("benchmark_phase", "phase_name", "phase_kind")}
    assert names == {"profiling"}


@pytest.mark.parametrize("has_warmup", [False, True])
def test_the_phase_is_counted_after_the_warmup(has_warmup: bool) -> None:
    line = line_of(streamed(0, 5), has_warmup=has_warmup)
    assert line["metadata"]["phase_index"] == int(has_warmup)


def mixed() -> tuple[np.ndarray, list[dict[str, Any]], list[Request]]:
    """Return rows and lines of requests with different sets of metrics."""
    body = b'{"choices":[{"message":{"content":"hello"}}]}'
    requests = [
        streamed(0, 5, 11),
        streamed(3),
        streamed(0, 7, told=finish()),
        streamed(0, 2, 4, told=usage(500, 1)),
        streamed(1, 6, flags=Flag.STREAMED | Flag.REUSED, input_tokens=-1),
        streamed(0, 9, outcome=Outcome.CANCELLED),
        Request(
            reads=reads_of(plain(body, status=b"503 Busy")),
            outcome=Outcome.ERRORED,
            error=ErrorKind.STATUS,
        ),
        Request(
            reads=[],
            write=0,
            outcome=Outcome.ERRORED,
            error=ErrorKind.CONNECT,
            message='refused "here" 100%',
        ),
        streamed(0, 8, phase=Phase.WARMUP),
        streamed(4, 5, 6, 7),
    ]
    for number, request in enumerate(requests):
        request.request_id = request.seq = request.index = number
    (made,) = assembler_of().process(batch_of(*requests), worker_rank=0)
    lines = lines_in([made])
    rows = made.rows[made.rows["phase"] == Phase.PROFILING]
    return rows, lines, [r for r in requests if r.phase is Phase.PROFILING]


def test_values_equal_the_metric_formulas() -> None:
    rows, lines, _ = mixed()
    assert [line["metadata"]["session_num"] for line in lines] == rows["index"].tolist()
    columns = columns_for_formulas(rows)
    for tag in (AIPERF_UNITS | OURS).keys() - {GAPS_TAG}:
        metric = CATALOG[tag]
        assert metric.kind is Kind.RECORD
        assert metric.compute is not None
        for row, line, value in zip(rows, lines, metric.compute(columns).tolist(), strict=True):
            covered = row["outcome"] == Outcome.COMPLETED or (
                metric.population is Population.SENT and row["start_wall_ns"]
            )
            entry = line["metrics"].get(tag)
            if covered and not np.isnan(value):
                assert entry["unit"] == metric.unit
                assert entry["value"] == pytest.approx(value, abs=5e-7), tag
            else:
                assert entry is None, tag


def test_gaps_are_stamp_differences_in_milliseconds() -> None:
    _, lines, requests = mixed()
    for line, request in zip(lines, requests, strict=True):
        stamps = np.array([read.stamp for read in request.reads])
        is_good = request.outcome is Outcome.COMPLETED and len(stamps) > 1
        expected = (np.diff(stamps) / 1e6).tolist() if is_good else None
        assert line["metrics"].get(GAPS_TAG, {}).get("value") == expected


def test_values_equal_hand_computed_ones() -> None:
    line = line_of(streamed(0, 10, 30, told=usage(500, 5)))
    values = {tag: entry["value"] for tag, entry in line["metrics"].items()}
    connecting = 0.4
    latency, first = connecting + 40 + 30 * 0.001237, connecting + 10.0
    assert values["time_to_first_token"] == first
    assert values["request_latency"] == pytest.approx(latency)
    assert values["inter_token_latency"] == pytest.approx((latency - first) / 4)
    assert values["output_token_throughput_per_user"] == pytest.approx(4_000 / (latency - first))
    assert values["e2e_output_token_throughput"] == pytest.approx(5_000 / latency)
    assert values["prefill_throughput_per_user"] == pytest.approx(550_000 / first)
    assert values["intended_time_to_first_token"] == pytest.approx(10.0 + 2)
    assert values["schedule_lag"] == 2.0 - connecting
    assert values["receive_lag"] == 0.05
    assert values["http_req_connecting"] == connecting
    assert values["http_req_sending"] == 0.02
    assert values["http_req_waiting"] == pytest.approx(9.98)
    assert values["usage_prompt_tokens_diff_pct"] == pytest.approx(100 * 50 / 550)


def test_errored_request_has_its_error_and_no_latency() -> None:
    _, lines, _ = mixed()
    refused, unsent = lines[6], lines[7]
    assert refused["error"]["code"] == 503
    assert refused["error"]["type"] == "status"
    assert refused["error"]["message"]
    assert set(refused["metrics"]) == {"schedule_lag", "receive_lag", "stamp_uncertainty"}
    assert unsent["error"] == {"code": None, "type": "connect", "message": 'refused "here" 100%'}
    assert unsent["metrics"] == {}
    assert unsent["metadata"]["request_ack_ns"] is None


def test_cancelled_request_is_marked() -> None:
    _, lines, _ = mixed()
    assert [line["metadata"]["was_cancelled"] for line in lines].count(True) == 1
    assert lines[5]["metadata"]["was_cancelled"] is True
    error = {"code": 499, "type": "cancelled", "message": "the load ended before its response had"}
    assert lines[5]["error"] == error


def test_names_with_special_characters_stay_valid() -> None:
    (made,) = assembler_of().process(batch_of(streamed(0, 5), sender='50%b "w"\\'), worker_rank=0)
    (line,) = lines_in([made])
    assert line["metadata"]["worker_id"] == '50%b "w"\\'


def test_lines_of_many_workers_keep_order_and_limit() -> None:
    assembler = assembler_of()
    made, expected = [], []
    for number in range(6):
        sender = f"worker-{number % 3}"
        requests = [
            streamed(0, 5, request_id=1, index=2 * number, phase=Phase.WARMUP),
            streamed(0, 7, 9, request_id=2, index=2 * number + 1),
            streamed(3, request_id=3, index=100 + number),
        ]
        batch = batch_of(*requests, sender=sender, number=number)
        made += assembler.process(batch, worker_rank=number % 3)
        expected += [(sender, 2 * number + 1, 2), (sender, 100 + number, 0)]
    for most in (None, 100, 7, 0):
        found = [
            (
                line["metadata"]["worker_id"],
                line["metadata"]["session_num"],
                len(line["metrics"].get(GAPS_TAG, {}).get("value", ())),
            )
            for line in lines_in(made, most=most)
        ]
        assert found == expected[:most]
