"""The measured cases. Each starts its own mock server, measures its reference in the same run, and
returns one flat table of figures."""

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any

import aiperf_svc
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import RunningMockServer, running
from benchmarks.speed import peers, wrk
from benchmarks.speed.pipeline import Run, run_profile

Figures = dict[str, Any]
MIB = 2**20
TOKENS = 100
"""Number of tokens in a response of the case `streams`."""
HELD_TOKENS = 500


@contextmanager
def _server(config: MockServerConfig) -> Iterator[tuple[RunningMockServer, Path]]:
    """Start a server and a folder for one case."""
    with (
        tempfile.TemporaryDirectory(prefix="aiperf-speed-") as folder,
        running(config) as server,
    ):
        yield server, Path(folder)


def requests(*, is_quick: bool) -> Figures:
    """One-token streaming requests at concurrency 200 on a server without latency."""
    count, wrk_s = (15_000, 0.5) if is_quick else (150_000, 3)
    return _against_wrk(1, 200, count, wrk_s, with_peers=not is_quick)


def streams(*, is_quick: bool) -> Figures:
    """Streams of 100 tokens at concurrency 100 on a server without latency."""
    return _streams(is_quick=is_quick, with_peers=not is_quick)


def interpreted(*, is_quick: bool) -> Figures:
    """The case `streams`, with a client that runs without its compiled modules."""
    with tempfile.TemporaryDirectory(prefix="aiperf-interpreted-") as folder:
        package = Path(aiperf_svc.__file__).parent
        without = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(package, Path(folder) / package.name, ignore=without)
        return _streams(is_quick=is_quick, with_peers=False, code=Path(folder))


def lifecycle(*, is_quick: bool) -> Figures:
    """Startup, shutdown and idle memory: a few requests, the median of some runs."""
    count = 200
    with _server(MockServerConfig(tokens=1)) as (server, folder):
        runs = [
            _run(server, folder / str(n), concurrency=20, count=count, watches_memory=True)
            for n in range(2 if is_quick else 5)
        ]
    return {
        "requests": count,
        "startup_s": median(run.start_s for run in runs),
        "shutdown_s": median(run.finish_s for run in runs),
        "shutdown_cpu_s": median(run.finish_cpu_s for run in runs),
        "idle_pss_mib": median(run.idle_pss for run in runs) / MIB,
        "idle_rss_mib": median(run.idle_rss for run in runs) / MIB,
    }


def memory(*, is_quick: bool) -> Figures:
    """Memory of each held connection with streams of 500 tokens. It is the difference between many
    and few connections, which removes the fixed cost of a run. Measured at the end of the time in
    which all are held, when responses occupy most, and including the burst when all of them end at
    once."""
    counts, itl_ms = ((200, 600), 30) if is_quick else ((1_000, 4_000), 250)
    with _server(MockServerConfig(tokens=HELD_TOKENS, itl=f"{itl_ms}ms")) as (server, folder):
        few, many = (
            _run(server, folder / str(count), concurrency=count, count=count, watches_memory=True)
            for count in counts
        )
    if not few.held_pss or not many.held_pss:
        raise RuntimeError("no time in which all requests had begun and none had ended was seen")
    kib = (counts[1] - counts[0]) * 1024
    held = _kib_for_each(few.held_pss, many.held_pss, counts)
    return {
        "connections": counts[1],
        "tokens": HELD_TOKENS,
        "kib_per_connection": sum(held.values()),
        "kib_per_connection_by_service": held,
        "kib_per_connection_with_ends": (many.peak_pss - few.peak_pss) / kib,
        "idle_pss_mib": many.idle_pss / MIB,
        f"held_pss_mib_{counts[0]}": sum(few.held_pss.values()) / MIB,
        f"held_pss_mib_{counts[1]}": sum(many.held_pss.values()) / MIB,
        f"peak_pss_mib_{counts[0]}": few.peak_pss / MIB,
        f"peak_pss_mib_{counts[1]}": many.peak_pss / MIB,
        "chunks_per_s": many.total("content_chunk_count") / many.load_s,
        "inter_token_ms": many.stat("inter_token_latency"),
        "inter_token_ms_of_server": itl_ms,
        "verdict": many.verdict,
    }


def conversations(*, is_quick: bool) -> Figures:
    """Conversations of 20 turns that end with 4,000 tokens of history, at 200 requests per second:
    memory per conversation, as the difference between many and few, and the client's lag."""
    counts, turns, every_s = ((20, 80), 8, 2.0) if is_quick else ((200, 1_000), 20, 5.0)
    size, itl_ms = 4_000 // turns, 5
    output = size // 4
    pause_ms = round(every_s * 1e3 - output * itl_ms)
    flags = (
        *("--conversation-turn-mean", str(turns), "--conversation-turn-delay-mean", str(pause_ms)),
        *("--isl", str(size - output), "--osl", str(output), "--num-dataset-entries", "50"),
    )
    with _server(MockServerConfig(tokens=output, itl=f"{itl_ms}ms")) as (server, folder):
        few, many = (
            _run(
                server,
                folder / str(count),
                concurrency=count,
                count=count * turns,
                flags=("--ramp-duration", str(every_s), *flags),
                watches_memory=True,
            )
            for count in counts
        )
    held = _kib_for_each(few.load_pss, many.load_pss, counts)
    return {
        "conversations": counts[1],
        "turns": turns,
        "requests_per_s": many.requests / many.load_s,
        "kib_per_conversation": sum(held.values()),
        "kib_per_conversation_by_service": held,
        "schedule_lag_p50_ms": many.stat("schedule_lag", "p50"),
        "schedule_lag_p99_ms": many.stat("schedule_lag", "p99"),
        "receive_lag_p99_ms": many.stat("receive_lag", "p99"),
        "cpu_us_per_request": _client_cpu_s(many) / many.requests * 1e6,
        "verdict": many.verdict,
    }


def _kib_for_each(
    few: Mapping[str, int], many: Mapping[str, int], counts: tuple[int, int]
) -> dict[str, float]:
    """Return the memory for each by service, from that of few and of many."""
    kib = (counts[1] - counts[0]) * 1024
    return {name: (pss - few.get(name, 0)) / kib for name, pss in sorted(many.items())}


def _client_cpu_s(run: Run) -> float:
    return sum(used for name, used in run.load_cpu_s.items() if name != "server")


def exports(*, is_quick: bool) -> Figures:
    """Cost of a million records after the last response. It is the difference between a long and a
    short run, which removes the fixed cost of a run."""
    few, many = (1_000, 41_000) if is_quick else (1_000, 201_000)
    with _server(MockServerConfig(tokens=1)) as (server, folder):
        small, large = (
            _run(server, folder / str(count), concurrency=200, count=count) for count in (few, many)
        )
    millions = (large.requests - small.requests) / 1e6
    return {
        "records": large.requests,
        "finish_s_per_million": (large.finish_s - small.finish_s) / millions,
        "finish_cpu_s_per_million": (large.finish_cpu_s - small.finish_cpu_s) / millions,
        **{
            f"mib_per_million_{name.rpartition('.')[2]}": large.artifact_bytes[name]
            / large.requests
            * 1e6
            / MIB
            for name in ("records.parquet", "profile_export.jsonl")
            if name in large.artifact_bytes
        },
    }


CASES: dict[str, Callable[..., Figures]] = {
    "requests": requests,
    "streams": streams,
    "interpreted": interpreted,
    "lifecycle": lifecycle,
    "memory": memory,
    "conversations": conversations,
    "exports": exports,
}


def _run(
    server: RunningMockServer,
    folder: Path,
    *,
    concurrency: int,
    count: int,
    flags: Sequence[str] = (),
    watches_memory: bool = False,
    code: Path | None = None,
) -> Run:
    folder.mkdir(exist_ok=True)
    return run_profile(
        server.url,
        ("--concurrency", str(concurrency), "--request-count", str(count), *flags),
        server_pid=server.pid,
        folder=folder,
        watches_memory=watches_memory,
        code=code,
    )


def _streams(*, is_quick: bool, with_peers: bool, code: Path | None = None) -> Figures:
    count, wrk_s = (1_500, 0.5) if is_quick else (20_000, 3)
    return _against_wrk(TOKENS, 100, count, wrk_s, with_peers=with_peers, code=code)


def _against_wrk(
    tokens: int,
    concurrency: int,
    count: int,
    wrk_s: float,
    *,
    with_peers: bool,
    code: Path | None = None,
) -> Figures:
    """Measure our pipeline between two runs of wrk, whose spread shows the machine's changes."""
    with _server(MockServerConfig(tokens=tokens, force_tokens=True)) as (server, folder):
        references = []
        if wrk.is_installed():
            references.append(_wrk(server, concurrency, wrk_s, folder))
        # One thread like wrk. On more cores the plan uses several workers, each of which finds
        # fewer responses at a time.
        one = ("--workers-max", "1")
        run = _run(server, folder, concurrency=concurrency, count=count, flags=one, code=code)
        if references:
            references.append(_wrk(server, concurrency, wrk_s, folder))
        others = peers.measure(server, folder, concurrency=concurrency) if with_peers else {}
    figures = _figures(run)
    if references:
        rate = fmean(r.requests_per_s for r in references)
        cpu_us = fmean(r.cpu_us_per_request for r in references)
        figures |= {
            "wrk_requests_per_s": rate,
            "wrk_chunks_per_s": rate * tokens,
            "wrk_spread": abs(references[0].requests_per_s - references[1].requests_per_s) / rate,
            "wrk_cpu_us_per_request": cpu_us,
            "ratio_to_wrk": figures["requests_per_s"] / rate,
            "cpu_to_wrk": figures["cpu_us_per_request"] / cpu_us,
        }
    else:
        figures["wrk"] = wrk.MISSING
    return figures | {"peers": others}


def _wrk(server: RunningMockServer, concurrency: int, wrk_s: float, folder: Path) -> wrk.WrkRun:
    return wrk.run_wrk(server.url, concurrency=concurrency, duration_s=wrk_s, folder=folder)


def _figures(run: Run) -> Figures:
    chunks = run.total("content_chunk_count")
    ours = _client_cpu_s(run)
    whole = ours + run.finish_cpu_s

    def each(count: float) -> dict[str, float]:
        parts = run.load_cpu_s | {"finish": run.finish_cpu_s}
        return {name: used / count * 1e6 for name, used in parts.items()}

    return {
        "requests": run.requests,
        "chunks": int(chunks),
        "requests_per_s": run.requests / run.load_s,
        "chunks_per_s": chunks / run.load_s,
        "load_s": run.load_s,
        "finish_s": run.finish_s,
        "whole_pipeline_requests_per_s": run.requests / (run.load_s + run.finish_s),
        "cpu_us_per_request": ours / run.requests * 1e6,
        "cpu_us_per_request_with_finish": whole / run.requests * 1e6,
        "cpu_us_per_chunk": ours / chunks * 1e6,
        "cpu_us_per_request_by_service": each(run.requests),
        "cpu_us_per_chunk_by_service": each(chunks),
        "reads_per_chunk": run.total("http_req_chunks_received") / chunks,
        "inter_token_ms": run.stat("inter_token_latency"),
        "stamp_uncertainty_p99_ms": run.stat("stamp_uncertainty", "p99"),
        "receive_lag_p99_ms": run.stat("receive_lag", "p99"),
        "verdict": run.verdict,
    }
