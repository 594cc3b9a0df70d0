"""A server that freezes for a second in the middle of an open-loop run.

A client that waits for responses sends nothing during the freeze, and the percentiles of what it
sent hide the freeze: coordinated omission. Intended latencies, which start at the due time, must
show the freeze however many requests were held back. The expected values follow from two sources
only: the schedule, and the server's send time of each token.
"""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.domain.request_ids import request_id
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from benchmarks.truth.client_runs import ClientRun, run_client
from tests.support.forked_clients import forked_clients

pytestmark = pytest.mark.alone
RATE, DURATION_S, CAP = 50, 2.5, 4
TTFT_MS = 20.0
FREEZE_AT, ITL = "505ms", "10ms"
"""The freeze begins with the next token, a second token. It is 10 ms away from every send and due
time, so the delayed requests are known exactly."""
REQUESTS = round(RATE * DURATION_S)
STATS = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
TruthRows = Mapping[str, Mapping[str, Any]]


class FrozenRun(NamedTuple):
    """A run of 125 requests, the server's rows by request id, and the start and end of the freeze
    on the server's clock."""

    run: ClientRun
    rows: TruthRows
    freeze_wall_ns: tuple[int, int]

    @property
    def freeze_ms(self) -> float:
        began_ns, ended_ns = self.freeze_wall_ns
        return (ended_ns - began_ns) / 1e6


def frozen_run(folder: Path, *flags: str) -> FrozenRun:
    config = MockServerConfig(
        ttft="20ms", itl=ITL, tokens=2, truth=True, freeze_at=FREEZE_AT, freeze_for="1s"
    )
    load = ["--request-rate", str(RATE), "--arrival-pattern", "constant"]
    # Limited by count. With a time limit, the last requests could be due but unsent at the end.
    load += ["--request-count", str(REQUESTS), "--isl", "20"]
    with running(config) as server:
        run = run_client(server.url, [*load, *flags], folder=folder, longest_s=DURATION_S + 10)
        truth = server.truth(rows=True)
    ((began_ns, ended_ns),) = truth["frozen_wall_ns"]
    rows = {row["request_id"]: row for row in truth["rows"]}
    assert len(rows) == REQUESTS == int(run.is_completed.sum())
    return FrozenRun(run, rows, (began_ns, ended_ns))


class Runs(NamedTuple):
    free: Future[FrozenRun]
    capped: Future[FrozenRun]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Run both clients concurrently, each with its own server. They wait nearly all the time."""
    with forked_clients(), ThreadPoolExecutor(2) as pool:
        free = pool.submit(frozen_run, tmp_path_factory.mktemp("free"))
        cap = ("--concurrency", str(CAP))
        capped = pool.submit(frozen_run, tmp_path_factory.mktemp("capped"), *cap)
    return Runs(free, capped)


def first_tokens(run: ClientRun, rows: TruthRows) -> NDArray[np.int64]:
    """Return when the server sent the first token of each request, in schedule order."""
    ids = [request_id(run.run_id, Phase.PROFILING, index, 0) for index in range(REQUESTS)]
    return np.array([rows[name]["chunk_wall_ns"][0] for name in ids])


def schedule(run: ClientRun) -> NDArray[np.int64]:
    """Return when each request was due: the first one's time plus multiples of 1/RATE seconds."""
    return int(run.records["due_wall_ns"].min()) + np.arange(REQUESTS) * (10**9 // RATE)


def intended_by_hand_ms(run: ClientRun, rows: TruthRows) -> NDArray[np.float64]:
    return (first_tokens(run, rows) - schedule(run)) / 1e6


def plain_by_hand_ms(run: ClientRun, rows: TruthRows) -> NDArray[np.float64]:
    return np.array(
        [(row["chunk_wall_ns"][0] - row["arrival_wall_ns"]) / 1e6 for row in rows.values()]
    )


def intended_by_freeze_ms(frozen: FrozenRun) -> NDArray[np.float64]:
    """Return the lower bound of the latencies that follows from freeze and schedule. A first token
    that is due during the freeze waits for its end. A busy server then needs longer for the
    queue."""
    due_ns, (began_ns, ended_ns) = schedule(frozen.run), frozen.freeze_wall_ns
    is_waiting = (began_ns < due_ns + TTFT_MS * 1e6) & (due_ns < ended_ns)
    return np.where(is_waiting, ended_ns - np.maximum(due_ns, began_ns), 0) / 1e6 + TTFT_MS


def assert_alike(measured: Mapping[str, float], by_hand: NDArray[np.float64]) -> None:
    """Compare within 2%, or 3 ms for small percentiles."""
    expected = {name: float(np.quantile(by_hand, q)) for name, q in STATS.items()}
    assert {name: measured[name] for name in STATS} == pytest.approx(expected, rel=0.02, abs=3.0)


def test_both_latencies_show_the_freeze_without_a_cap(runs: Runs) -> None:
    run, rows, _ = frozen = runs.free.result()
    assert_alike(run.results["intended_time_to_first_token"], intended_by_hand_ms(run, rows))
    assert_alike(run.results["time_to_first_token"], plain_by_hand_ms(run, rows))
    p99_ms = float(np.quantile(intended_by_freeze_ms(frozen), STATS["p99"]))
    for metric in ("intended_time_to_first_token", "time_to_first_token"):
        assert run.results[metric]["p99"] > 0.97 * p99_ms


def test_only_intended_latencies_show_freeze_under_a_cap(runs: Runs) -> None:
    run, rows, _ = frozen = runs.capped.result()
    intended, plain = (
        run.results["intended_time_to_first_token"],
        run.results["time_to_first_token"],
    )
    assert_alike(intended, intended_by_hand_ms(run, rows))
    assert_alike(plain, plain_by_hand_ms(run, rows))
    # With the cap, at most 4 of 125 requests (3.2%) wait at the server, which p95 does not show.
    # The freeze held back 50 more, which wait for their turn.
    assert int((plain_by_hand_ms(run, rows) > 0.5 * frozen.freeze_ms).sum()) <= CAP
    assert intended["p95"] > 0.5 * frozen.freeze_ms
    assert intended["p99"] > 0.9 * frozen.freeze_ms
    checks = [reason["check"] for reason in run.verdict["reasons"]]
    assert "capped" in checks
    assert run.verdict["verdict"] != "valid"
