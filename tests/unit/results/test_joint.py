"""The total of several runs: exact sums, joint percentiles, rates over the common time."""

from dataclasses import replace

import numpy as np
import pytest

from aiperf_svc.core.results.joint import JoinedRun, add_up_parts, common_interval_ns, spread_ns
from aiperf_svc.core.results.joint_result import Joint, JointMember, rows, worst
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.core.stats.clock_map import ClockMap
from aiperf_svc.domain.metric_catalog import METRICS, Derived, Kind
from aiperf_svc.domain.outcomes import Outcome, Phase
from aiperf_svc.protocol.records import Rows
from tests.support import fake_run

SECOND = 10**9
TIMES = [name for name in fake_run.make_rows(0).dtype.names or () if name.endswith("_wall_ns")]


def shifted(rows: Rows, by_ns: int) -> Rows:
    """Return the same run on a clock that is ahead by this much."""
    moved = rows.copy()
    for name in TIMES:
        moved[name] = np.where(rows[name] != 0, rows[name] + by_ns, 0)
    return moved


def part(rows: Rows, *, ahead_ns: int = 0) -> JoinedRun:
    summary = fake_run.results(rows)
    sent = rows[(rows["phase"] == Phase.PROFILING) & (rows["start_wall_ns"] != 0)]
    return JoinedRun(
        scalars=summary.scalars,
        columns=fake_run.columns_of(rows),
        clocks=ClockMap(),
        ahead_ns=ahead_ns,
        begin_wall_ns=int(sent["start_wall_ns"].min()),
        end_wall_ns=int(sent["end_wall_ns"].max()),
    )


@pytest.fixture(scope="module")
def fast() -> Rows:
    return fake_run.closed_loop(requests=3_000, concurrency=20)


@pytest.fixture(scope="module")
def slow() -> Rows:
    rows = fake_run.closed_loop(requests=400, concurrency=3)
    rows["last_token_wall_ns"] += SECOND
    rows["end_wall_ns"] += SECOND
    return rows


def test_counts_are_the_sums_of_all_runs(fast: Rows, slow: Rows) -> None:
    parts = [part(fast), part(slow)]
    total = add_up_parts(parts)
    for tag in ("request_count", "completed_request_count", "total_isl", "total_osl"):
        assert total.scalars[tag] == parts[0].scalars[tag] + parts[1].scalars[tag]
    assert total.scalars["request_count"] > 3_000


def test_request_and_token_counts_have_totals() -> None:
    counts = {m.tag for m in METRICS if m.kind is Kind.SCALAR and m.unit in ("requests", "tokens")}
    totalled = {m.tag for m in METRICS if m.is_additive or isinstance(m.scalar, Derived)}
    # The peak number in flight is not a sum, and runs may send the same prompts.
    assert counts - totalled == {"max_concurrency", "requests_per_prompt"}


def test_total_percentiles_cover_all_requests_without_averaging(fast: Rows, slow: Rows) -> None:
    total = add_up_parts([part(fast), part(slow)])
    values = [
        (rows["last_token_wall_ns"] - rows["start_wall_ns"])[
            (rows["phase"] == Phase.PROFILING) & (rows["outcome"] == Outcome.COMPLETED)
        ]
        / 1e6
        for rows in (fast, slow)
    ]
    together = np.concatenate(values)
    measured = total.metrics["request_latency"].distribution
    assert measured.count == len(together)
    for stat, q in (("p50", 50), ("p99", 99)):
        assert measured.stats[stat] == pytest.approx(np.percentile(together, q), rel=1e-3)
    averaged = np.mean([np.percentile(each, 99) for each in values])
    assert measured.stats["p99"] != pytest.approx(averaged, rel=1e-2)


def test_a_run_alone_is_its_own_total(fast: Rows) -> None:
    alone = part(fast)
    total = add_up_parts([alone])
    own = fake_run.results(fast)
    for tag in ("request_latency", "time_to_first_token", "inter_token_latency"):
        stats = own.metrics[tag].distribution.stats
        assert total.metrics[tag].distribution.stats == pytest.approx(stats, nan_ok=True)
    assert total.scalars["request_throughput"] == pytest.approx(
        own.scalars["request_throughput"], rel=0.01
    )


def test_rates_of_runs_that_end_together_are_summed(fast: Rows) -> None:
    first, second = part(fast), part(shifted(fast, 200_000))
    total = add_up_parts([first, second])
    sums = sum(each.scalars["request_throughput"] for each in (first, second))
    assert total.scalars["request_throughput"] == pytest.approx(sums, rel=0.01)


def test_rates_are_over_the_time_in_common(fast: Rows) -> None:
    ahead_ns = 90 * SECOND
    begin, end = part(fast).interval_ns
    late_ns = (end - begin) // 2
    first = part(fast)
    second = part(shifted(fast, ahead_ns + late_ns), ahead_ns=ahead_ns)
    assert common_interval_ns([first, second]) == (begin + late_ns, end)
    assert spread_ns([first, second]) == late_ns
    total = add_up_parts([first, second])
    assert total.interval_s == pytest.approx((end - begin - late_ns) / 1e9)
    done = fast[(fast["phase"] == Phase.PROFILING) & (fast["outcome"] == Outcome.COMPLETED)]
    start, ended = done["start_wall_ns"], done["end_wall_ns"]
    lengths = ended - start
    first_shares = np.clip(ended - np.maximum(start, begin + late_ns), 0, None) / lengths
    second_shares = np.clip(np.minimum(ended + late_ns, end) - start - late_ns, 0, None) / lengths
    expected = (first_shares.sum() + second_shares.sum()) / total.interval_s
    assert total.scalars["request_throughput"] == pytest.approx(expected)


def test_loads_without_common_time_have_no_rates(fast: Rows) -> None:
    total = add_up_parts([part(fast), part(shifted(fast, 3600 * SECOND))])
    assert total.interval_s == 0
    assert "request_throughput" not in total.scalars
    assert total.scalars["request_count"] == 2 * part(fast).scalars["request_count"]


def test_total_is_unknown_if_one_run_is(fast: Rows) -> None:
    known, unknown = part(fast), part(fast)
    scalars = {tag: value for tag, value in unknown.scalars.items() if tag != "total_osl"}
    unknown = JoinedRun(
        scalars=scalars,
        columns=unknown.columns,
        clocks=unknown.clocks,
        begin_wall_ns=unknown.begin_wall_ns,
        end_wall_ns=unknown.end_wall_ns,
    )
    total = add_up_parts([known, unknown])
    assert "total_osl" not in total.scalars
    assert "output_token_throughput" not in total.scalars
    assert "total_isl" in total.scalars


def on_gpus(rows: Rows, *gpus: str, urls: tuple[str, ...]) -> JoinedRun:
    """Return a run that counts two GPUs and their energy, with these GPUs on its pages."""
    found = part(rows)
    scalars = {**found.scalars, "gpu_count": 2.0, "gpu_joules": 900.0}
    return replace(found, scalars=scalars, gpus=frozenset(gpus), urls=urls)


@pytest.mark.parametrize(
    ("first", "second", "urls", "count", "note"),
    [
        (("x", "y"), ("x", "y"), ("http://a", "http://a"), 2, "runs share GPUs"),
        (("x", "y"), ("y", "z"), ("http://a", "http://b"), 3, "runs share GPUs"),
        (("x", "y"), ("z", "w"), ("http://a", "http://a"), 4, ""),
        ((), (), ("http://a", "http://a"), None, "runs have the same URL"),
        (("x", "y"), ("x",), ("http://a", "http://a"), None, "runs have the same URL"),
        ((), (), ("http://a", "http://b"), 4, ""),
        ((), (), (), 4, ""),
    ],
)
def test_shared_gpus_count_once(
    fast: Rows,
    first: tuple[str, ...],
    second: tuple[str, ...],
    urls: tuple[str, ...],
    count: int | None,
    note: str,
) -> None:
    parts = [on_gpus(fast, *first, urls=urls[:1]), on_gpus(fast, *second, urls=urls[1:])]
    total = add_up_parts(parts)
    assert total.scalars.get("gpu_count") == count
    assert total.scalars.get("gpu_joules") == (None if note else 1800)
    assert [text[: len(note)] for text in total.notes] == ([note] if note else [])
    tag = "output_token_throughput"
    expected = total.scalars[tag] / count if count else None
    assert total.scalars.get(f"{tag}_per_gpu") == expected


def conversations(*turns: tuple[int, int, int, int]) -> Rows:
    """Return requests by conversation, turn, prompt tokens and cached tokens."""
    return np.concatenate(
        [
            fake_run.request(
                start_ms=100.0 * position,
                index=index,
                turn=turn,
                usage_prompt_tokens=prompt,
                cached_tokens=cached,
            )
            for position, (index, turn, prompt, cached) in enumerate(turns)
        ]
    )


def test_cached_tokens_by_turn_are_added_up() -> None:
    first = conversations((0, 0, 100, 0), (0, 1, 1_000, 900))
    second = conversations((0, 0, 100, 40), (0, 1, 3_000, 2_400), (0, 2, 4_000, 0))
    found = add_up_parts([part(first), part(second)]).cache
    assert found is not None
    assert [(turn.requests, turn.prompt_tokens, turn.cached_tokens) for turn in found.turns] == [
        (2, 200, 40),
        (2, 4_000, 3_300),
        (1, 4_000, 0),
    ]
    # Both runs have a conversation 0.
    shares = (2_440 / 7_100, 900 / 1_100)
    assert (found.sessions.count, found.sessions.p50) == (2, pytest.approx(sum(shares) / 2))


def test_cached_tokens_need_all_runs(fast: Rows) -> None:
    stated = part(conversations((0, 0, 100, 0), (0, 1, 1_000, 900)))
    assert add_up_parts([stated, part(fast)]).cache is None


def test_row_has_columns_of_runs_and_total() -> None:
    latency = MetricStats(unit="ms", p50=3.0, p99=9.0)
    tool = MetricStats(name="Bandwidth", unit="bit/s", avg=4.0)
    members = tuple(
        JointMember(
            name=name, where="", folder="", state="done", reason="", exit_code=0, verdict=None,
            metrics=metrics,
        )
        for name, metrics in (("eu", {"request_latency": latency}), ("us", {"bandwidth": tool}))
    )  # fmt: skip
    joint = Joint(kind="clusters", name="x", exit_code=0, verdict=None, members=members)
    assert [(row.name, row.values, row.total) for row in rows(joint, is_short=True)] == [
        ("Request Latency p50", (3.0, None), None),
        ("Request Latency p99", (9.0, None), None),
        ("Bandwidth", (None, 4.0), None),
    ]


def test_the_verdict_of_all_is_the_worst() -> None:
    assert worst(["valid", None, "invalid", "degraded"]) == "invalid"
    assert worst([None]) is None
