"""Wire bytes of every message: each release must read what earlier releases wrote.

The samples are committed. `pytest --write-samples` adds missing ones.
"""

import typing
from pathlib import Path

import pytest

from aiperf_svc.adapters.messaging.bus import ProtocolMismatch, decode, encode
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages import (
    AnyMessage,
    credits,
    dataset,
    events,
    indexes,
    records,
    reports,
    steps,
)
from aiperf_svc.protocol.messages.base import Message
from aiperf_svc.protocol.run_states import RunState
from aiperf_svc.protocol.services import Service

SAMPLES = Path(__file__).parent / "samples"
HEAD = ("run-1", "worker-3", 1_700_000_000_000_000_000)

EXAMPLES: tuple[Message, ...] = (
    events.Heartbeat(
        *HEAD,
        service=Service.WORKER,
        seen_state=4,
        seen_roster=2,
        reached=RunState.READY,
        address="tcp://10.0.0.7:5667",
        boot_id="b",
        vitals=reports.Vitals(cpu_fraction=0.5, loop_lag_ns=1, rss_bytes=2, open_fds=3, fd_limit=4),
        counts=(reports.WorkerCounts(Phase.PROFILING, granted=9, completed=8, last_seq=8),),
        clock=reports.ClockEstimate(offset_ns=-5, uncertainty_ns=6),
        phases=(
            reports.PhaseReport(
                Phase.PROFILING,
                start_wall_ns=5,
                stop_wall_ns=6,
                ramp_ns=1,
                granted=9,
                granted_to_lost={"worker-4": 3},
                scheduled=9,
                scheduled_rate=2.5,
            ),
        ),
        dataset=reports.DatasetReport(
            kind="single_turn",
            source="prompts.jsonl",
            source_sha256="ab",
            sha256="cd",
            entries=3,
            distinct_entries=2,
            turns=3,
            left_out=1,
            bytes=300,
            tokenizer=None,
            input_tokens=reports.TokenStatistics(avg=2.0, std=1.0, min=1, max=3, count=3, sum=6),
            output_tokens=None,
            warmup_entries=1,
            forced_output_length=reports.ForcedLengthReport("refused", "ignore_eos?"),
        ),
        progress="downloading",
        exit_code=ExitCode.BAD_CONFIG,
        network=(
            (
                reports.HistogramDelta(
                    Phase.PROFILING,
                    "network_rtt",
                    b"b",
                    b"c",
                    total=1,
                    sum_ns=2,
                    min_ns=2,
                    max_ns=2,
                ),
            ),
        ),
    ),
    events.CancelRequested(*HEAD, reason="interrupted"),
    events.StartRequested(*HEAD, at_wall_ns=1_700_000_000_000_000_000),
    events.RosterPublished(
        *HEAD,
        number=3,
        frozen=True,
        complete=True,
        missing=(),
        members=(events.Member("worker-3", Service.WORKER, 1, 0, processor="record-processor-0"),),
    ),
    events.RunStatePublished(
        *HEAD, number=7, state=RunState.PROFILING, exit_code=ExitCode.BAD_CONFIG
    ),
    events.TrialPublished(
        *HEAD,
        serial=4,
        number=3,
        parameters={"load.concurrency": 8, "dataset.kind": "synthetic", "load.request_rate": None},
        repetition=2,
        attempt=1,
        total=12,
    ),
    events.RecordsAcknowledged(*HEAD, highest={"worker-3": 17}),
    credits.WorkerAttached(*HEAD),
    credits.ClockProbed(*HEAD, sent_wall_ns=1, sent_raw_ns=2),
    credits.ClockReply(*HEAD, sent_wall_ns=1, received_wall_ns=2, replied_wall_ns=3, boot_id="b"),
    credits.PhaseOpened(
        *HEAD,
        phase=Phase.WARMUP,
        start_wall_ns=1,
        stop_wall_ns=2,
        grace_ns=3,
        is_open_loop=True,
        concurrency=4,
        ramp_ns=5,
        worker_rank=0,
        worker_count=2,
    ),
    credits.CreditsGranted(
        *HEAD, phase=Phase.PROFILING, first_index=10, stride=2, count=3, due_wall_ns=b"\x01" * 24
    ),
    credits.PhaseStopped(*HEAD, phase=Phase.PROFILING, stop_wall_ns=1, cancel_wall_ns=2),
    credits.CreditsReturned(
        *HEAD,
        counts=reports.WorkerCounts(Phase.PROFILING, completed=1),
        is_idle=True,
        taken_mono_ns=5 * 10**9,
    ),
    dataset.DatasetBlockRequested(*HEAD, block=2),
    dataset.DatasetBlock(
        *HEAD,
        block=0,
        block_count=1,
        entry_count=2,
        warmup_entries=0,
        first_entry=0,
        conversations=(
            dataset.Conversation(
                "c", (dataset.Turn(b"{}", delay_ns=5, earliest_ns=6, input_tokens=7),)
            ),
            dataset.Conversation(
                "t",
                (
                    dataset.Turn(
                        b"",
                        b"}",
                        pieces=b"\0\0\0\0",
                        one_token_tail=b"]",
                        plan=dataset.PlannedRequest((), 5, 6, 0),
                    ),
                ),
                streams=(dataset.Stream("root"),),
                pieces=(b"{",),
                live=(dataset.LiveResponse(0, (b'"12"',)),),
            ),
        ),
        starts=b"\0\0\0\0",
        is_streamed=True,
    ),
    dataset.DatasetShapeRequested(*HEAD),
    dataset.DatasetShape(
        *HEAD,
        entry_count=2,
        warmup_entries=1,
        turns=b"\x01\x00\x02\x00",
        due_ns=b"\x01" * 8,
        first_turns=b"\x01\x00",
    ),
    dataset.ForcedLengthAsked(*HEAD, finding="refused", said="ignore_eos?"),
    dataset.ForcedLengthDecided(*HEAD, decision="leave_out"),
    indexes.IndexBegun(*HEAD, shape=3),
    indexes.IndexFilePart(*HEAD, shape=3, name="trials/003/verdict.json", offset=9, data=b"{}"),
    indexes.IndexEnded(
        *HEAD,
        shape=3,
        reason="the server ended with exit code 1",
        is_tried_again=True,
        files=(indexes.IndexFile("trials/003/verdict.json", 11, "ab"),),
    ),
    indexes.CollectorReply(*HEAD, have=11, problem="another attempt has begun"),
    records.RawBatch(*HEAD, number=1, fragments=b"f", reads=b"r", bodies=b"b"),
    records.MetricBatch(
        *HEAD,
        spans=(records.SequenceSpan("worker-3", 1, 1, 4),),
        rows=b"rows",
        details=records.LineDetails(
            gaps_ns=b"g", messages=("busy",), chunks=b"s", chunk_counts=b"n"
        ),
        histograms=(
            reports.HistogramDelta(
                Phase.PROFILING,
                "inter_chunk_latency",
                b"b",
                b"c",
                total=1,
                sum_ns=2,
                min_ns=2,
                max_ns=2,
            ),
        ),
        errors=(records.ErrorSample(Phase.PROFILING, 8, 429, message="busy", count=1, target=2),),
        lost=(records.SequenceSpan("worker-4", 1, 5, 5),),
    ),
    steps.RankAttached(
        *HEAD,
        number=1,
        address="10.0.0.7",
        interface="eth0",
        node="node-2",
        work="/rank/work",
        volume="/volume",
        agent="/rank/agent",
        cores=2.0,
        memory_bytes=2**30,
    ),
    steps.RankFilesRequested(*HEAD),
    steps.RankFiles(*HEAD, files={"a/b": b"x"}),
    steps.StepOrder(
        *HEAD, step=3, stage=steps.StepStage.RUN, abort_reason="r", plan=b"{}", due_wall_ns=5
    ),
    steps.RankStatus(*HEAD, step=3, stage=steps.StepStage.PREPARE, problem="p", progress="50%"),
    steps.LaunchRequested(*HEAD, step=3, launch="0-1", address="10.0.0.8", command="orted"),
    steps.CommandLaunched(*HEAD, step=3, launch="0-1", command="orted"),
    steps.LaunchEnded(*HEAD, launch="0-1", exit_code=-15, stdout=b"o", stderr=b"e"),
    steps.StepOutput(
        *HEAD,
        step=3,
        rank=1,
        piece=4,
        command=0,
        file="stdout",
        data=b"text",
        is_last=True,
        report=steps.RankReport(
            plan=b"{}",
            problem="",
            witness=steps.RankWitness(rank=1, node="node-2", started_wall_ns=7),
            ends=(steps.CommandEnd(index=0, exit_code=1, started_wall_ns=7, ended_wall_ns=8),),
        ),
    ),
    steps.StepRecord(
        *HEAD,
        step=3,
        plan=b"{}",
        problem="p",
        reading=b"{}",
        witnesses=(steps.RankWitness(rank=1),),
        ends=(steps.CommandEnd(0, 0, 7, 8, was_told_to_end=True),),
    ),
)


def sample(message: Message) -> Path:
    return SAMPLES / f"{type(message).__name__}.msgpack"


def test_every_message_has_an_example() -> None:
    assert {type(e) for e in EXAMPLES} == set(typing.get_args(AnyMessage))


@pytest.mark.parametrize("message", EXAMPLES, ids=lambda e: type(e).__name__)
def test_message_reads_and_writes_as_its_committed_sample(
    message: Message, request: pytest.FixtureRequest
) -> None:
    path = sample(message)
    if request.config.getoption("--write-samples") and not path.exists():
        path.write_bytes(encode(message))
    assert decode(path.read_bytes()) == message
    assert encode(message) == path.read_bytes()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "protocol version none"),
        (b"\x02" + encode(EXAMPLES[0])[1:], "protocol version 02, expected 1"),
        (b"\x01\x93", "truncated"),
        (b"\x01\x91\xa7Unknown", "Unknown"),
    ],
)
def test_message_of_another_version_is_refused_by_name(data: bytes, message: str) -> None:
    with pytest.raises(ProtocolMismatch, match=message):
        decode(data)
