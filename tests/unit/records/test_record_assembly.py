"""From batches to metric rows and spans."""

import msgspec
import pytest

from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.protocol.messages.records import LineDetails, SequenceSpan
from aiperf_svc.protocol.records import METRIC_DTYPE, Flag
from tests.support.raw_batches import (
    LAST_CHUNK,
    MS_NS,
    STREAM_HEAD,
    Request,
    assembler_of,
    batch_of,
    gaps_in,
    lines_in,
    plain,
    process,
    reads_of,
    record_of,
    stamp_of,
    streamed,
    whole,
)


def test_row_has_the_workers_times_and_ids() -> None:
    request = Request(
        reads=streamed(0, 5),
        seq=9,
        index=3,
        turn=2,
        flags=Flag.STREAMED | Flag.RETRIED | Flag.LAST_TURN,
    )
    row = record_of(request).rows[0]
    assert row["seq"] == 9
    assert (row["index"], row["turn"], row["entry"], row["worker"]) == (3, 2, 42, 2)
    assert row["due_wall_ns"] == request.write - 2 * MS_NS
    assert row["start_wall_ns"] == request.write - 300_000 - 100_000
    assert row["sent_wall_ns"] == request.write + 20_000
    assert row["ack_wall_ns"] == stamp_of(0)
    assert row["end_wall_ns"] == stamp_of(5)
    assert (row["connect_ns"], row["tls_ns"], row["bytes_out"]) == (300_000, 100_000, 2_048)
    assert (row["phase"], row["status"]) == (Phase.PROFILING, 200)
    assert row["flags"] == Flag.STREAMED | Flag.RETRIED | Flag.LAST_TURN | Flag.FINAL


def test_whole_response_has_only_last_token_time() -> None:
    body = b'{"choices":[{"message":{"content":"hello"}}],"usage":{"completion_tokens":4}}'
    raw = plain(body)
    row = record_of(Request(reads=reads_of(raw[:90], raw[90:])), streaming=False).rows[0]
    assert row["outcome"] == Outcome.COMPLETED
    assert row["last_token_wall_ns"] == stamp_of(1)
    assert row["output_tokens"] == 4
    for name in ("first_token", "first_output", "second_token"):
        assert row[f"{name}_wall_ns"] == 0
    assert (row["chunks"], row["ttft_uncertainty_ns"], row["last_uncertainty_ns"]) == (0, 0, 0)


# --- fragments -----------------------------------------------------------------------------------


def test_interleaved_fragments_make_the_same_rows() -> None:
    first = Request(reads=streamed(0, 3, 7, 9), request_id=1, seq=2, cuts=(1, 2))
    second = Request(reads=streamed(1, 2, 30), request_id=2, seq=1, cuts=(1,))
    a, b = first.fragments(), second.fragments()
    spread = process(batch_of(a[0], b[0]), batch_of(a[1], number=2), batch_of(b[1], a[2], number=3))
    together = process(batch_of(second, first))
    assert (whole(spread) == whole(together)).all()
    assert gaps_in(spread) == gaps_in(together)
    assert lines_in(spread) == lines_in(together)


def test_batch_without_an_end_is_held() -> None:
    request = Request(reads=streamed(0, 1, 2), cuts=(2,))
    assembler = assembler_of()
    first, last = request.fragments()
    assert assembler.process(batch_of(first), worker_rank=0) == []
    assert [reader.held_bytes for reader in assembler.unfinished] == [4]
    assert len(assembler.process(batch_of(last), worker_rank=0)) == 1
    assert assembler.unfinished == []


def test_held_response_costs_four_bytes_a_chunk() -> None:
    request = Request(reads=streamed(*range(500)), cuts=(499,))
    assembler = assembler_of()
    assembler.process(batch_of(request.fragments()[0]), worker_rank=0)
    assert [reader.held_bytes for reader in assembler.unfinished] == [498 * 4]


def test_request_without_its_beginning_is_lost() -> None:
    kept = [Request(reads=streamed(0, 1), request_id=i, seq=i) for i in (4, 7)]
    cut = [Request(reads=streamed(0, 1), request_id=i, seq=i, cuts=(1,)) for i in (5, 6)]
    assembler = assembler_of()
    batch = batch_of(kept[0], cut[0].fragments()[1], cut[1].fragments()[1], kept[1])
    (made,) = assembler.process(batch, worker_rank=0)
    assert made.lost == (SequenceSpan("worker-0", 5, 5, 6),)
    assert made.spans == (SequenceSpan("worker-0", 5, 4, 4), SequenceSpan("worker-0", 5, 7, 7))
    assert made.rows["seq"].tolist() == [4, 7]
    assert assembler.unfinished == []


@pytest.mark.parametrize("is_resent", [False, True])
def test_a_request_with_a_hole_is_lost(is_resent: bool) -> None:
    first, _, last = Request(reads=streamed(0, 1, 2), cuts=(1, 2)).fragments()
    (made,) = process(batch_of(first), batch_of(last, number=2, is_resent=is_resent))
    assert made.lost == (SequenceSpan("worker-0", 5, 1, 1),)
    assert (len(made.rows), made.spans, made.details) == (0, (), LineDetails(b"", ()))
    assert made.rows.dtype == METRIC_DTYPE


def test_repeated_beginning_restarts_the_request() -> None:
    first, last = Request(reads=streamed(0, 1), cuts=(1,)).fragments()
    (made,) = process(batch_of(first), batch_of(first, last, number=2))
    assert made.rows["chunks"] == [2]


def test_a_lost_workers_open_requests_are_forgotten() -> None:
    first, last = Request(reads=streamed(0, 1), cuts=(1,)).fragments()
    assembler = assembler_of()
    for sender in ("worker-0", "worker-1"):
        assembler.process(batch_of(first, sender=sender), worker_rank=0)
    assert assembler.drop_worker("worker-0") == 1
    assert assembler.drop_worker("worker-0") == 0
    assert len(assembler.unfinished) == 1
    (made,) = assembler.process(batch_of(last, sender="worker-1"), worker_rank=1)
    assert made.rows["worker"] == [1]
    (made,) = assembler.process(batch_of(last), worker_rank=0)
    assert made.lost


def test_request_ids_of_a_restarted_worker_are_others() -> None:
    first, last = Request(reads=streamed(0, 1), cuts=(1,)).fragments()
    (made,) = process(batch_of(first, epoch=5), batch_of(last, epoch=6))
    assert made.lost == (SequenceSpan("worker-0", 6, 1, 1),)


@pytest.mark.parametrize("field", ["fragments", "reads", "bodies"])
def test_inconsistent_batch_is_refused(field: str) -> None:
    batch = batch_of(Request(reads=streamed(0, 1)), Request(reads=streamed(0, 1), request_id=2))
    size = {"fragments": len(batch.fragments) // 2, "reads": 28, "bodies": 1}[field]
    bad = msgspec.structs.replace(batch, **{field: getattr(batch, field)[:-size]})
    with pytest.raises(ValueError, match="does not fit together"):
        assembler_of().process(bad, worker_rank=0)


# --- several batches at once ---------------------------------------------------------------------


def test_joined_batches_equal_separate_ones() -> None:
    short = [Request(reads=streamed(i), request_id=i, seq=i) for i in (1, 2)]
    long = [Request(reads=streamed(0, i, 2 * i), request_id=i, seq=i) for i in (3, 4)]
    bad = Request(reads=reads_of(STREAM_HEAD + LAST_CHUNK), request_id=5, seq=5)
    cut = Request(reads=streamed(0, 1), request_id=9, seq=6, cuts=(1,)).fragments()[1]
    more = [Request(reads=streamed(i), request_id=i, seq=i) for i in (7, 8)]
    batches = [batch_of(*short), batch_of(*long, number=2), batch_of(bad, cut, *more, number=3)]
    apart = process(*batches)
    assembler = assembler_of()
    finished = assembler.parse(batches[0], worker_rank=0)
    for batch in batches[1:]:
        finished.add(assembler.parse(batch, worker_rank=0))
    (together,) = assembler.parts(finished, wants_lines=True)
    assert (together.rows == whole(apart)).all()
    assert lines_in([together]) == lines_in(apart)
    assert together.errors == apart[2].errors
    assert together.lost == apart[2].lost
    assert [span.first for span in together.spans] == [1, 7]
    assert gaps_in([together]) == gaps_in(apart)


def test_unfinished_requests_make_no_parts() -> None:
    begun = Request(reads=streamed(0, 1), request_id=9, seq=6, cuts=(1,)).fragments()[0]
    assembler = assembler_of()
    finished = assembler.parse(batch_of(begun), worker_rank=0)
    assert assembler.parts(finished, wants_lines=True) == []


# --- sent again ----------------------------------------------------------------------------------


def test_resent_batch_makes_one_message_per_record() -> None:
    requests = [Request(reads=streamed(0, i, 2 * i), request_id=i, seq=i) for i in (1, 2, 3)]
    bad = Request(reads=reads_of(STREAM_HEAD + LAST_CHUNK), request_id=4, seq=4)
    once = process(batch_of(*requests, bad))
    again = process(batch_of(*requests, bad, is_resent=True))
    assert (len(once), len(again)) == (1, 4)
    assert (whole(again) == whole(once)).all()
    assert [part.spans for part in again] == [
        (SequenceSpan("worker-0", 5, i, i),) for i in (1, 2, 3, 4)
    ]
    assert [lines_in([part]) for part in again] == [[line] for line in lines_in(once)]
    assert [len(part.histograms) for part in again] == [1, 1, 1, 0]
    assert [len(part.errors) for part in again] == [0, 0, 0, 1]
    whole_delta = gaps_in(once)
    assert gaps_in(again) == whole_delta


def test_loss_in_a_resent_batch_is_counted_once() -> None:
    cut = Request(reads=streamed(0, 1), request_id=9, seq=3, cuts=(1,)).fragments()[1]
    requests = [Request(reads=streamed(0, 1), request_id=i, seq=i) for i in (1, 2)]
    made = process(batch_of(*requests, cut, is_resent=True))
    assert [span for part in made for span in part.lost] == [SequenceSpan("worker-0", 5, 3, 3)]
