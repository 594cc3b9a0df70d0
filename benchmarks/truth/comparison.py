"""Compares the client's measurements with the server's record, request by request.

The server records the kernel's stamp of a request's arrival and the wall clock just before each
send. The client uses the same clock (one machine), so every difference is an error of one of them:
the time between a stamp and its system call, the loopback, and the delay that a measurement must
not have. Errors are measured minus true, in milliseconds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aiperf_svc.domain import metric_formulas as f
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.domain.request_ids import id_prefix
from benchmarks.truth.client_runs import ClientRun

Floats = NDArray[np.float64]
QUANTILES = {"p50": 0.50, "p99": 0.99, "p99.9": 0.999}
NS_PER_MS = 1e6
GRACE_NS = 5_000_000
"""A request that is due just before the stop may arrive this much later."""


@dataclass(frozen=True)
class Pair:
    """Measured and true values of one latency for the same requests, in milliseconds."""

    measured: Floats
    true: Floats

    @property
    def errors(self) -> dict[str, float]:
        """Return the mean error of single requests and percentiles of its absolute value."""
        return spread(self.measured - self.true)

    def shift(self, q: float) -> float:
        """Return the relative difference between the measured and the true percentile."""
        if not len(self.true):
            return 0.0
        true = float(np.quantile(self.true, q))
        return float(np.quantile(self.measured, q)) / true - 1.0 if true > 0 else 0.0


@dataclass(frozen=True)
class Load:
    """The requested load and the load that reached the server."""

    asked: float
    """Requests/s in open loop, users in closed loop."""
    achieved: float
    """According to the server: arrivals per second over the schedule's span, or users held."""

    @property
    def shortfall(self) -> float:
        """1 - achieved / requested."""
        return 1.0 - self.achieved / self.asked


@dataclass(frozen=True)
class Comparison:
    """One run compared with the server's record."""

    requests: int
    joined: int
    unmatched: int
    """Completed records without a complete row of the server."""
    ttft: Pair
    inter_token: Pair
    request: Pair
    arrival_error_ms: dict[str, float]
    """Arrival at the server's kernel minus due time."""
    schedule_lag_ms: dict[str, float]
    receive_lag_ms: dict[str, float]
    stamp_uncertainty_ms: dict[str, float]
    server_lag_ms: dict[str, float]
    """Lateness of the server's own first tokens relative to its configured delay. It shows how busy
    the machine was, whatever the client measured."""

    def as_json(self) -> dict[str, Any]:
        """Return every figure without the single requests."""
        found = {
            k: v for k, v in asdict(self).items() if k not in ("ttft", "inter_token", "request")
        }
        for name in ("ttft", "inter_token", "request"):
            pair: Pair = getattr(self, name)
            found[f"{name}_error_ms"] = pair.errors
            found[f"{name}_shift"] = {q: pair.shift(at) for q, at in QUANTILES.items()}
            found[f"{name}_true_ms"] = spread(pair.true)
        return found


def spread(values: Floats) -> dict[str, float]:
    """Return mean and percentiles, or nothing without values."""
    if not len(values):
        return {}
    found = {"mean": float(np.mean(values))}
    return found | {name: float(np.quantile(values, q)) for name, q in QUANTILES.items()}


def compare(
    run: ClientRun, rows: Sequence[Mapping[str, Any]], *, tokens: int, ttft_ms: float = 0.0
) -> Comparison:
    """Join the records with the server's rows by request id.

    `tokens` is the number of tokens in every response. `ttft_ms` is the server's configured delay.
    """
    by_id = {row["request_id"]: row for row in rows}
    complete = np.flatnonzero(run.is_completed)
    joined, arrival, first, last = [], [], [], []
    for position in complete.tolist():
        row = by_id.get(run.request_ids[position])
        if row is not None and len(row["chunk_wall_ns"]) >= tokens:
            joined.append(position)
            arrival.append(row["arrival_wall_ns"])
            first.append(row["chunk_wall_ns"][0])
            last.append(row["chunk_wall_ns"][tokens - 1])
    records = {name: column[joined] for name, column in run.records.items()}
    records["is_streamed"] = np.ones(len(joined), dtype=bool)
    at, first_ns, last_ns = (np.array(times, dtype=np.int64) for times in (arrival, first, last))
    steps = max(1, tokens - 1)
    # The server's record of a request begins after that.
    connecting = f.connecting(records)
    return Comparison(
        requests=len(run.request_ids),
        joined=len(joined),
        unmatched=len(complete) - len(joined),
        ttft=Pair(f.time_to_first_token(records) - connecting, (first_ns - at) / NS_PER_MS),
        inter_token=Pair(
            f.decode_duration(records) / steps, (last_ns - first_ns) / NS_PER_MS / steps
        ),
        request=Pair(f.request_latency(records) - connecting, (last_ns - at) / NS_PER_MS),
        arrival_error_ms=spread((at - records["due_wall_ns"]) / NS_PER_MS),
        schedule_lag_ms=spread(f.schedule_lag(records)),
        receive_lag_ms=spread(records["receive_lag_ns"] / NS_PER_MS),
        stamp_uncertainty_ms=spread(records["ttft_uncertainty_ns"] / NS_PER_MS),
        server_lag_ms=spread((first_ns - at) / NS_PER_MS - ttft_ms),
    )


def open_loop_load(
    run: ClientRun, rows: Sequence[Mapping[str, Any]], *, due: float, duration_s: float
) -> Load:
    """Compare requests that arrived before the stop with those `due` by then.

    A client that is late in the middle and catches up has offered the load. One that is still late
    at the stop has not.
    """
    stop_wall_ns = int(run.records["due_wall_ns"].min()) + round(duration_s * 1e9)
    arrivals = np.array([row["arrival_wall_ns"] for row in own_rows(run, rows)], dtype=np.int64)
    in_time = int(np.count_nonzero(arrivals <= stop_wall_ns + GRACE_NS))
    return Load(due / duration_s, in_time / duration_s)


def closed_loop_load(
    run: ClientRun, rows: Sequence[Mapping[str, Any]], *, users: int, duration_s: float
) -> Load:
    """Return the users held, averaged from the last user's first arrival to the stop.

    A user counts from its request's arrival to its response's last byte on the server's clock. The
    first arrivals of `users` requests are the start of the run.
    """
    stop_wall_ns = int(run.records["due_wall_ns"].min()) + round(duration_s * 1e9)
    ours = own_rows(run, rows)
    begin = np.array([row["arrival_wall_ns"] for row in ours], dtype=np.int64)
    end = np.array([row["end_wall_ns"] or stop_wall_ns for row in ours], dtype=np.int64)
    opened = int(np.sort(begin)[min(users, len(begin)) - 1])
    held = np.minimum(end, stop_wall_ns) - np.maximum(begin, opened)
    span = stop_wall_ns - opened
    return Load(users, float(held[held > 0].sum() / span) if span > 0 else float(users))


def own_rows(run: ClientRun, rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the server's rows of the run's profiling phase."""
    prefix = id_prefix(run.run_id, Phase.PROFILING)
    return [row for row in rows if str(row["request_id"]).startswith(prefix)]
