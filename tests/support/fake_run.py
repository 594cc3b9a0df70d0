"""Records and results of fake runs with known times."""

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.records.accounts import WorkerAccount
from aiperf_svc.core.results.summarise import summarise
from aiperf_svc.core.results.summary import FinishedRun, Summary, WorkerRun
from aiperf_svc.core.stats.load_window import PhaseTimes
from aiperf_svc.domain.finish_reasons import FinishReason
from aiperf_svc.domain.outcomes import ErrorKind, Outcome, Phase
from aiperf_svc.protocol.messages.reports import WorkerCounts
from aiperf_svc.protocol.records import METRIC_DTYPE, RARE, Flag, Rows
from tests.support import fake_run

START_NS = 1_795_227_878_000_000_000
MS = 1_000_000


def columns_of(rows: Rows) -> dict[str, NDArray[Any]]:
    """Return the columns of a structured array in the form that a finished run holds them."""
    return {name: np.ascontiguousarray(rows[name]) for name in rows.dtype.names or ()}


def make_rows(count: int, **columns: Any) -> Rows:
    """Return `count` completed, streamed requests of the profiling phase. Any column can be set."""
    rows = np.zeros(count, dtype=METRIC_DTYPE)
    rows["seq"] = np.arange(1, count + 1)
    rows["index"] = np.arange(count)
    rows["phase"] = Phase.PROFILING
    rows["outcome"] = Outcome.COMPLETED
    rows["flags"] = Flag.STREAMED | Flag.REUSED
    rows["status"] = 200
    for name in ("input", "output", "usage_prompt", "usage_completion"):
        rows[f"{name}_tokens"] = -1
    for name in ("reasoning_tokens", *RARE):
        rows[name] = -1
    for name, values in columns.items():
        rows[name] = values
    return rows


def request(
    *,
    start_ms: float = 0.0,
    due_ms: float | None = None,
    ttft_ms: float = 20.0,
    gap_ms: float = 5.0,
    tokens: int = 10,
    **columns: Any,
) -> Rows:
    """Return one request from its times in milliseconds after the phase's start."""
    start = START_NS + round(start_ms * MS)
    first = start + round(ttft_ms * MS)
    last = first + round(gap_ms * (tokens - 1) * MS)
    times = {
        "due_wall_ns": START_NS + round((start_ms if due_ms is None else due_ms) * MS),
        "start_wall_ns": start,
        "sent_wall_ns": start,
        "ack_wall_ns": first,
        "first_token_wall_ns": first,
        "first_output_wall_ns": first,
        "second_token_wall_ns": first + round(gap_ms * MS) if tokens > 1 else 0,
        "last_token_wall_ns": last,
        "end_wall_ns": last,
        "output_tokens": tokens,
        "chunks": tokens,
    }
    return make_rows(1, **(times | columns))


def without_response(
    *, start_ms: float, end_ms: float, outcome: Outcome = Outcome.CANCELLED, **columns: Any
) -> Rows:
    """Return one request that was sent and never received a byte."""
    times = {
        "due_wall_ns": START_NS + round(start_ms * MS),
        "start_wall_ns": START_NS + round(start_ms * MS),
        "sent_wall_ns": START_NS + round(start_ms * MS),
        "end_wall_ns": START_NS + round(end_ms * MS),
        "status": 0,
    }
    return make_rows(1, outcome=outcome, **(times | columns))


def closed_loop(
    *,
    requests: int = 2_000,
    concurrency: int = 20,
    ttft_ms: float = 30.0,
    client_lag_ms: float = 0.03,
    error_share: float = 0.0,
    seed: int = 1,
) -> Rows:
    """Simulate a closed loop whose users send `client_lag_ms` after their last response."""
    random = np.random.default_rng(seed)
    ttft = np.rint(random.lognormal(np.log(ttft_ms), 0.3, requests) * MS).astype(np.int64)
    tokens = random.integers(20, 60, requests)
    decode = np.rint(random.normal(5.0, 0.2, requests) * MS).astype(np.int64) * (tokens - 1)
    lag = np.rint(random.exponential(client_lag_ms, requests) * MS).astype(np.int64)
    busy, users = _served(lag + ttft + decode, concurrency)
    end = START_NS + busy
    start = end - decode - ttft
    rows = make_rows(
        requests,
        due_wall_ns=start - lag,
        start_wall_ns=start,
        sent_wall_ns=start + 8_000,
        ack_wall_ns=start + ttft - 20_000,
        first_token_wall_ns=start + ttft,
        first_output_wall_ns=start + ttft,
        second_token_wall_ns=start + ttft + decode // (tokens - 1),
        last_token_wall_ns=end,
        end_wall_ns=end,
        input_tokens=550,
        output_tokens=tokens,
        usage_prompt_tokens=540,
        usage_completion_tokens=tokens,
        chunks=tokens,
        reads=tokens,
        bytes_out=1800,
        bytes_in=3800,
        receive_lag_ns=np.rint(random.exponential(0.04, requests) * MS),
        ttft_uncertainty_ns=np.where(random.random(requests) < 0.02, 30_000, 0),
        worker=users % 2,
        entry=np.arange(requests) % 500,
        finish_reason=FinishReason.LENGTH,
        requested_tokens=tokens,
    )
    failed = random.random(requests) < error_share
    rows["outcome"][failed] = Outcome.ERRORED
    rows["error"][failed] = ErrorKind.STATUS
    rows["status"][failed] = 500
    for name in ("first_token_wall_ns", "first_output_wall_ns", "last_token_wall_ns"):
        rows[name][failed] = 0
    return rows


def _served(durations: NDArray[Any], users: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return each request's end after the start, and its user. Idle users take the next request."""
    free = [(0, user) for user in range(users)]
    ends, owners = [], []
    for duration in durations.tolist():
        end, user = free[0][0] + duration, free[0][1]
        heapq.heapreplace(free, (end, user))
        ends.append(end)
        owners.append(user)
    return np.array(ends), np.array(owners)


def config(**load: Any) -> BenchmarkConfig:
    """Return a streaming chat benchmark with this load."""
    parts = {
        name: load.pop(name, {})
        for name in ("slo", "dataset", "tokenizer", "economics", "deployment")
    }
    endpoint, events = load.pop("endpoint", {}), load.pop("events", [])
    return BenchmarkConfig.model_validate(
        {
            "endpoint": {
                "url": "http://127.0.0.1:9100",
                "model": "mock",
                "streaming": True,
                **endpoint,
            },
            "load": load or {"concurrency": 20, "requests": 2_000},
            "events": events,
            **parts,
        }
    )


def accounts_of(rows: Rows, *, unsent: int = 0) -> tuple[WorkerRun, ...]:
    """Return worker accounts that agree with the records. Unsent requests belong to worker 0."""
    found = []
    for rank in range(int(rows["worker"].max(initial=0)) + 1):
        mine = rows[rows["worker"] == rank]
        by_outcome = np.bincount(mine["outcome"], minlength=len(Outcome))
        sent = int(np.count_nonzero(mine["start_wall_ns"]))
        extra = unsent if rank == 0 else 0
        counts = WorkerCounts(
            phase=Phase.PROFILING,
            granted=len(mine) + extra,
            completed=int(by_outcome[Outcome.COMPLETED]),
            errored=int(by_outcome[Outcome.ERRORED]),
            cancelled=int(by_outcome[Outcome.CANCELLED]),
            abandoned=int(by_outcome[Outcome.ABANDONED]),
            unsent=int(by_outcome[Outcome.UNSENT]) + extra,
            requests_sent=sent,
        )
        account = WorkerAccount(worker=f"worker-{rank}", counts=counts, records=sent)
        found.append(WorkerRun(rank=rank, account=account))
    return tuple(found)


def context(rows: Rows, **fields: Any) -> FinishedRun:
    """Return a finished run with these records. It is healthy unless `fields` change that."""
    defaults: dict[str, Any] = {
        "run_id": "af9bb661b485",
        "config": config(),
        "version": "0.1.0",
        "profiling": PhaseTimes(start_wall_ns=START_NS),
        "workers": accounts_of(rows, unsent=fields.pop("unsent", 0)),
        "cli_command": "aiperf-svc profile -m mock -u http://127.0.0.1:9100",
    }
    return FinishedRun(**(defaults | fields))


def results(rows: Rows, **fields: Any) -> Summary:
    """Return the results of a run with these requests and this context."""
    return summarise(fake_run.columns_of(rows), None, fake_run.context(rows, **fields))
