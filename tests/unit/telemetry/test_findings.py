"""The verdict on the system follows from the metrics of servers and GPUs."""

from collections.abc import Iterable, Mapping
from math import inf
from typing import Any

import numpy as np
import pytest

from aiperf_svc.core.telemetry import series
from aiperf_svc.core.telemetry.findings import LoadFacts, judge_system
from aiperf_svc.core.telemetry.log import Curve, SourceLog, grown
from aiperf_svc.core.telemetry.sources import judge_source
from aiperf_svc.core.telemetry.statistics import quantile
from aiperf_svc.core.telemetry.system_report import SystemReport
from aiperf_svc.core.verdict.check_result import Severity
from tests.support.fake_sources import at, source

RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
TTFT = "vllm:time_to_first_token_seconds"
TOKENS = "vllm:generation_tokens_total"


def judged(*logs: SourceLog, **facts: Any) -> SystemReport:
    """Return the report on a load of 20 s."""
    known: dict[str, Any] = {
        "begin_ns": at(2),
        "end_ns": at(22),
        "steady_ns": at(2),
        "stop_ns": at(21),
        "concurrency": 10,
        "latency_ms": 500.0,
        "requests": 100,
        "output_tokens": 2000.0,
    }
    reports = tuple(
        judge_source(log, begin_ns=at(2), end_ns=at(22), interval_s=1.0) for log in logs
    )
    return judge_system(logs, reports, LoadFacts(**(known | facts)))


def server(pages: Iterable[Mapping[str, float]]) -> SourceLog:
    """Return a server with 25 pages. Its tokens increase, so it is not stale."""
    return source({TOKENS: 100.0 * index} | dict(page) for index, page in enumerate(pages))


def check(report: SystemReport, name: str) -> Any:
    return next(each for each in report.checks if each.check == name)


def test_load_arrived_if_the_server_runs_all_requests() -> None:
    report = judged(server({RUNNING: 7, WAITING: 3} for _ in range(25)))
    assert check(report, "server_running").severity is Severity.VALID
    assert report.metrics["server_running_requests"] == 7
    assert report.metrics["server_waiting_requests"] == 3


def test_missing_load_degrades_the_system() -> None:
    report = judged(server({RUNNING: 4, WAITING: 0} for _ in range(25)))
    found = check(report, "server_running")
    assert (found.severity, found.measured) == (Severity.DEGRADED, pytest.approx(0.6))
    assert "4.0 requests running and 0.0 waiting" in found.text
    assert report.verdict is Severity.DEGRADED


@pytest.mark.parametrize("facts", [{"concurrency": None}, {"latency_ms": 5.0}])
def test_running_is_informative_in_open_loop(facts: dict[str, Any]) -> None:
    report = judged(server({RUNNING: 4} for _ in range(25)), **facts)
    assert check(report, "server_running").severity is Severity.INFO
    assert report.verdict is Severity.VALID


def test_replicas_run_the_load_together() -> None:
    replicas = [server({RUNNING: 5} for _ in range(25)) for _ in range(2)]
    assert judged(*replicas).metrics["server_running_requests"] == 10


def test_time_in_front_is_the_difference_of_means() -> None:
    log = server({f"{TTFT}_sum": 0.2 * n, f"{TTFT}_count": n} for n in range(25))
    report = judged(log, ttft_mean_ms=230.0, requests=20)
    assert report.metrics["server_time_to_first_token"] == pytest.approx(200.0)
    assert report.metrics["time_in_front_of_server"] == pytest.approx(30.0)
    assert check(report, "time_in_front").text.endswith("take 30 ms")
    none = judged(log, ttft_mean_ms=199.0)
    assert check(none, "time_in_front").text.endswith("take no measurable time")


def test_mean_over_other_requests_is_marked_as_approximate() -> None:
    log = server({f"{TTFT}_sum": 0.2 * n, f"{TTFT}_count": n} for n in range(25))
    text = check(judged(log, ttft_mean_ms=230.0, requests=18), "time_in_front").text
    assert "200 ms over 20 requests, 230 ms at the client over 18:" in text
    assert text.endswith("take about 30 ms")


def test_client_lateness_is_not_blamed_on_the_network() -> None:
    log = server({f"{TTFT}_sum": 0.2 * n, f"{TTFT}_count": n} for n in range(25))
    report = judged(log, ttft_mean_ms=230.0, requests=20, is_client_valid=False)
    text = check(report, "time_in_front").text
    assert text.endswith("take 30 ms; the client's own lateness may be part of it")


def test_only_preemptions_under_load_degrade() -> None:
    name = "vllm:num_preemptions_total"
    quiet = judged(server({name: 7, "vllm:kv_cache_usage_perc": 0.5} for _ in range(25)))
    assert quiet.verdict is Severity.VALID
    busy = judged(
        server({name: 7 + n // 10, "vllm:kv_cache_usage_perc": n / 22} for n in range(25))
    )
    assert check(busy, "preemptions").measured == 2
    assert check(busy, "kv_cache").severity is Severity.DEGRADED


def test_prefix_hits_are_a_share_of_queries() -> None:
    report = judged(
        server(
            {"vllm:prefix_cache_queries_total": 1000 + 100 * n, "vllm:prefix_cache_hits": 50 * n}
            for n in range(25)
        )
    )
    assert report.metrics["server_prefix_hit_rate"] == pytest.approx(0.5)
    assert "not that of prompts that are new" in check(report, "prefix_hits").text


SPEC = "vllm:spec_decode_num_"


def test_acceptance_is_a_ratio_over_replicas() -> None:
    # A step of the first server accepts 2 of 3 drafts, one of the second 1 of 3. The second has a
    # third of the steps.
    def replica(steps: int, accepted: int) -> SourceLog:
        a_page = {"drafts": steps, "draft_tokens": 3 * steps, "accepted_tokens": accepted}
        return server({SPEC + key: n * value for key, value in a_page.items()} for n in range(25))

    report = judged(replica(30, 60), replica(10, 10))
    assert report.metrics["server_acceptance_length"] == pytest.approx(1 + 70 / 40)
    assert report.metrics["server_draft_acceptance_rate"] == pytest.approx(70 / 120)
    assert report.metrics["server_drafted_tokens"] == pytest.approx(120 * 20)
    assert "acceptance length 2.75 tokens per step" in check(report, "speculation").text
    assert report.verdict is Severity.VALID


def test_sglang_acceptance_length_uses_tokens_and_steps() -> None:
    pages = (
        {
            "sglang:spec_verify_calls_total": 40 * n, "sglang:generation_tokens_total": 101 * n,
            "sglang:time_to_first_token_seconds_count": n, "sglang:spec_accept_length": 9,
            "sglang:time_to_first_token_seconds_sum": n,
        }
        for n in range(25)
    )  # fmt: skip
    report = judged(source(pages))
    assert report.metrics["server_acceptance_length"] == pytest.approx(100 / 40)
    assert "server_draft_acceptance_rate" not in report.metrics


def test_gauge_of_the_acceptance_is_named_as_one() -> None:
    pages = ({"trtllm_spec_decode_acceptance_length": 1 + n / 10} for n in range(25))
    report = judged(server(pages))
    assert "3.2, the last value of the server's gauge" in check(report, "speculation").text
    assert "server_acceptance_length" not in report.metrics


def test_server_that_does_not_speculate_has_no_finding() -> None:
    pages = ({f"{SPEC}drafts": 7, "sglang:spec_accept_length": 0} for _ in range(25))
    assert not [each for each in judged(server(pages)).checks if "speculation" in each.check]


def test_speculation_on_forced_ends_is_not_comparable() -> None:
    pages = ({f"{SPEC}drafts": 30 * n} for n in range(25))
    report = judged(server(pages), unnatural="forced ends (ignore_eos, min_tokens)")
    found = check(report, "speculation_comparable")
    assert (found.severity, report.verdict) == (Severity.INVALID, Severity.INVALID)
    assert "the load has forced ends (ignore_eos, min_tokens)" in found.text


def test_drafts_in_responses_are_judged_without_page() -> None:
    report = judged(unnatural="random text (dataset.kind: synthetic)", has_drafts=True)
    assert "the responses report draft tokens" in check(report, "speculation").text
    assert check(report, "speculation_comparable").severity is Severity.INVALID
    assert not judged(has_drafts=True, unnatural="").reasons


def gpu(values: Iterable[Mapping[str, float]]) -> SourceLog:
    """Return a GPU, and a series that changes on each page."""
    label = '{gpu="0",UUID="GPU-1",Hostname="node-a"}'
    pages = [
        {f"DCGM_FI_DEV_{k}{label}": v for k, v in page.items()} | {"tick": index}
        for index, page in enumerate(values)
    ]
    return source(pages, url="http://gpu/metrics", is_gpu=True)


def test_energy_is_counted_for_each_request_and_token() -> None:
    report = judged(
        gpu({"POWER_USAGE": 400, "TOTAL_ENERGY_CONSUMPTION": 4e5 * n} for n in range(25))
    )
    assert report.metrics["gpu_power"] == pytest.approx(400)
    assert report.metrics["gpu_energy"] == pytest.approx(8000)  # 400 W for 20 s
    assert report.metrics["energy_per_request"] == pytest.approx(80)
    assert report.metrics["energy_per_output_token"] == pytest.approx(4)


def test_mean_power_times_time_is_the_energy() -> None:
    # Each sample is the mean of the second before its page, which may lie outside the load.
    joules = [400 * min(n, 18) + 100 * max(n - 18, 0) for n in range(25)]
    pages = [
        {"POWER_USAGE": 500 + n % 2, "TOTAL_ENERGY_CONSUMPTION": 1e3 * each}
        for n, each in enumerate(joules)
    ]
    report = judged(gpu(pages))
    assert report.metrics["gpu_power"] == pytest.approx(report.metrics["gpu_energy"] / 20)
    assert "1 GPU drew 340 W on average and used 6,800 J" in check(report, "gpu_energy").text


def test_a_gpu_on_two_pages_counts_once() -> None:
    pages = [{"POWER_USAGE": 400, "TOTAL_ENERGY_CONSUMPTION": 4e5 * n} for n in range(25)]
    report = judged(gpu(pages), gpu(pages))
    assert (report.metrics["gpu_power"], report.metrics["gpu_energy"]) == (400, 8000)
    (power,) = (each for each in series.plotted([gpu(pages)] * 2) if each.name == "gpu_power_usage")
    assert len(power.lines) == 1


def test_unchanged_gpu_value_is_plotted_at_each_sample() -> None:
    # Sampled every 3 s, so the pages in between repeat the values.
    pages = [{"POWER_USAGE": 400 + n // 3, "FB_USED": 5 + (n > 2)} for n in range(25)]
    del pages[12]["FB_USED"]
    lines = {each.name: each.lines for each in series.plotted([gpu(pages)])}
    ((_, times, memory),) = lines["gpu_memory_used"]
    # It returns on page 13, after a gap.
    assert times.tolist() == [at(n) for n in (0, 3, 6, 9, 12, 13, 15, 18, 21, 24)]
    assert np.flatnonzero(np.isnan(memory)).tolist() == [4]


def test_energy_of_a_slow_exporter_covers_the_load() -> None:
    # 400 W, read every 3 s: the pages around the load are 24 s apart.
    pages = [{"POWER_USAGE": 400, "TOTAL_ENERGY_CONSUMPTION": 4e5 * (n - n % 3)} for n in range(25)]
    assert judged(gpu(pages)).metrics["gpu_energy"] == pytest.approx(8000)


def test_samples_outside_the_load_count_no_energy() -> None:
    # Idle until the load, and read every 15 s.
    pages = [
        {"POWER_USAGE": 60 if n < 15 else 400, "TOTAL_ENERGY_CONSUMPTION": 4e5 * (n - n % 15)}
        for n in range(25)
    ]
    report = judged(gpu(pages))
    assert report.metrics["gpu_power"] == 400
    assert "gpu_energy" not in report.metrics
    assert "the energy of 1 of 1 GPU is unknown" in check(report, "gpu_energy").text


def test_energy_needs_values_of_all_gpus() -> None:
    one, two = ('{gpu="0",UUID="GPU-1"}', '{gpu="1",UUID="GPU-2"}')
    power, energy = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    pages = [
        {power + one: 400, energy + one: 4e5 * n} | ({} if 8 <= n < 14 else {power + two: 400})
        for n in range(25)
    ]
    report = judged(source(pages, is_gpu=True))
    assert report.metrics == {"gpu_power": 800}
    assert "the energy of 1 of 2 GPUs is unknown" in check(report, "gpu_energy").text


def test_energy_needs_gpus_without_power_readings_too() -> None:
    use = 'DCGM_FI_DEV_GPU_UTIL{gpu="1",UUID="GPU-2"}'
    pages = [
        {
            'DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",UUID="GPU-1"}': 4e5 * n,
            use: 90 + n % 2,
        }
        for n in range(25)
    ]
    report = judged(source(pages, is_gpu=True))
    assert report.metrics == {"gpu_power": 400}
    assert "the energy of 1 of 2 GPUs is unknown" in check(report, "gpu_energy").text


@pytest.mark.parametrize("energy", [0, 9223372036854775794])
def test_blank_gpu_values_are_ignored(energy: int) -> None:
    blank = {"POWER_USAGE": 140737488355328.0, "TOTAL_ENERGY_CONSUMPTION": energy}
    pages = [blank if n == 7 else blank | {"POWER_USAGE": 400} for n in range(25)]
    assert judged(gpu(pages)).metrics == {"gpu_power": 400}


def test_infinite_values_are_missing_ones() -> None:
    pages = [{RUNNING: inf, f"{TTFT}_sum": n, f"{TTFT}_count": inf} for n in range(25)]
    wrong = gpu({"XID_ERRORS": inf, "POWER_USAGE": inf} for _ in range(25))
    report = judged(server(pages), wrong, ttft_mean_ms=230.0)
    assert report.metrics == {"server_generation_tokens": 2000}
    assert not report.reasons


def test_energy_before_a_gpu_appears_is_excluded() -> None:
    old = {"POWER_USAGE": 400, "POWER_VIOLATION": 9e12}
    pages = [old | {"TOTAL_ENERGY_CONSUMPTION": 5e12 + 4e5 * n} if n > 3 else {} for n in range(25)]
    report = judged(gpu(pages))
    assert report.metrics["gpu_energy"] == pytest.approx(8000)
    assert check(report, "gpu_throttling").measured == 0


def test_throttle_reasons_count_without_a_counter() -> None:
    reasons = [0x1, 0x4, 0x21]  # idle, power cap, idle and heat
    report = judged(gpu({"CLOCKS_EVENT_REASONS": reasons[n % 3]} for n in range(25)))
    found = check(report, "gpu_throttling")
    assert (found.severity, found.measured) == (Severity.DEGRADED, pytest.approx(1 / 3, abs=0.02))


def test_partitioned_gpu_has_no_energy_of_one_load() -> None:
    label = '{gpu="0",UUID="GPU-1",GPU_I_PROFILE="1g.10gb",GPU_I_ID="3"}'
    power, energy = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    pages = ({power + label: 400, energy + label: 4e5 * n} for n in range(25))
    report = judged(source(pages, is_gpu=True))
    assert report.metrics == {"gpu_power": 400}
    assert "the power of all MIG partitions of 1 GPU" in check(report, "gpu_energy").text


def test_energy_without_counter_integrates_power() -> None:
    # From 2 s to 22 s, alternately 300 W and 500 W: their mean, with interpolated ends.
    pages = [{"POWER_USAGE": 300 + 200 * (n % 2)} for n in range(25)]
    report = judged(gpu(pages))
    assert report.metrics["gpu_energy"] == pytest.approx(400 * 20)
    late = judged(gpu([{} if n < 4 else page for n, page in enumerate(pages)]))
    assert late.metrics["gpu_energy"] == pytest.approx(400 * 20 - 2 * 100, rel=0.01)
    gap = judged(gpu([{} if 9 <= n < 13 else page for n, page in enumerate(pages)]))
    assert "gpu_energy" not in gap.metrics


def test_limited_time_counts_as_the_exporter_states_it() -> None:
    label = '{serial_number="1",hostname="node-m"}'
    name = f"gpu_violation_ppt_residency_percentage{label}"
    report = judged(source(({name: n % 5, "tick": n} for n in range(25)), is_gpu=True))
    found = check(report, "gpu_throttling")
    assert found.measured == pytest.approx(0.02, abs=0.002)
    assert "power limits reduced the clock of 1 on node-m" in found.text


def test_throttled_gpu_degrades_the_system_by_name() -> None:
    # DCGM counts nanoseconds: here 0.2 s in each second.
    report = judged(gpu({"POWER_VIOLATION": 2e8 * n} for n in range(25)))
    found = check(report, "gpu_throttling")
    assert (found.severity, found.measured) == (Severity.DEGRADED, pytest.approx(0.2))
    assert "power limits reduced the clock of GPU-1 on node-a" in found.text


def test_only_xid_errors_under_load_invalidate() -> None:
    old = judged(gpu({"XID_ERRORS": 31} for _ in range(25)))
    assert old.verdict is Severity.VALID
    new = judged(gpu({"XID_ERRORS": 79 if n > 10 else 0} for n in range(25)))
    assert new.verdict is Severity.INVALID
    assert "79 on GPU-1 on node-a" in check(new, "gpu_xid").text


def test_xid_error_in_a_new_series_is_found() -> None:
    name = 'DCGM_FI_DEV_XID_ERRORS{{gpu="0",UUID="GPU-1",err_code="{0}"}}'
    codes = [79 if n > 10 else 0 for n in range(25)]
    pages = [{name.format(code): code, "tick": n} for n, code in enumerate(codes)]
    assert "79 on GPU-1" in check(judged(source(pages, is_gpu=True)), "gpu_xid").text


def test_xid_error_on_late_first_page_is_old() -> None:
    name = 'DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-1"}'
    pages = ({name: 31, "tick": n} for n in range(20))
    assert not judged(source(pages, is_gpu=True, first_s=4.0)).reasons


def test_gpu_of_another_pod_keeps_its_history() -> None:
    pages = []
    for n in range(25):
        label = f'{{gpu="0",UUID="GPU-1",pod="server-{n // 10}"}}'
        values = {"POWER_USAGE": 300 + n % 2, "XID_ERRORS": 31}
        pages.append({f"DCGM_FI_DEV_{key}{label}": value for key, value in values.items()})
    log = source(pages, is_gpu=True)
    report = judged(log)
    assert report.metrics["gpu_energy"] == pytest.approx(300.5 * 20)
    assert not report.reasons
    (power,) = (each for each in series.plotted([log]) if each.name == "gpu_power_usage")
    assert power.lines[0][2].tolist() == [300 + n % 2 for n in range(25)]


def test_prefix_hits_of_sglang_and_llamacpp_are_tokens() -> None:
    sglang = server(
        {"sglang:prompt_tokens_total": 100 * n, "sglang:cached_tokens_total": 25 * n}
        for n in range(25)
    )
    assert judged(sglang).metrics["server_prefix_hit_rate"] == pytest.approx(0.25)
    llamacpp = server(
        {"llamacpp:prompt_tokens_total": 30 * n, "llamacpp:prompt_tokens_cached_total": 10 * n}
        for n in range(25)
    )
    assert judged(llamacpp).metrics["server_prefix_hit_rate"] == pytest.approx(0.25)


def test_prefill_and_decode_servers_count_tokens_once() -> None:
    prefill, decode = (
        source(
            {
                f'sglang:prompt_tokens_total{{engine_type="{kind}"}}': 100.0 * n,
                f'sglang:cached_tokens_total{{engine_type="{kind}"}}': 25.0 * n,
                f'sglang:generation_tokens_total{{engine_type="{kind}"}}': generated * n,
            }
            for n in range(25)
        )
        for kind, generated in (("prefill", 1.0), ("decode", 40.0))
    )
    both, one = judged(prefill, decode).metrics, judged(decode).metrics
    assert (both["server_prompt_tokens"], both["server_generation_tokens"]) == (2_000, 800)
    assert both["server_prefix_hit_rate"] == pytest.approx(0.25)
    assert (one["server_prompt_tokens"], one["server_generation_tokens"]) == (2_000, 800)


@pytest.mark.parametrize(("pages", "is_compared"), [(range(25), True), (range(3, 25), False)])
def test_cached_tokens_are_compared_over_the_whole_load(pages: range, is_compared: bool) -> None:
    name = "vllm:prefix_cache_{}_total"
    counted = [{name.format("queries"): 100 * n, name.format("hits"): 2 * n * n} for n in pages]
    log = source(counted, first_s=pages[0])
    # From 2 s to 22 s, 2,000 tokens are queries and 960 are hits. The counters begin at 3 s.
    report = judged(log, prompt_tokens=2000.0, cached_tokens=960.0)
    found = [each for each in report.checks if each.check == "cached_tokens_agree"]
    assert [each.measured for each in found] == ([pytest.approx(0.0)] if is_compared else [])
    if not is_compared:
        assert "miss the first 1 s of the load" in check(report, "telemetry_source").text


@pytest.mark.parametrize(("cached", "apart"), [(50.0, 0.08), (300.0, 0.0), (400.0, 0.02)])
def test_requests_without_cached_tokens_may_have_none(cached: float, apart: float) -> None:
    # The server had 18% in its cache. Responses report it for 500 of 2,000 tokens.
    name = "vllm:prefix_cache_{}_total"
    pages = ({name.format("queries"): 100 * n, name.format("hits"): 18 * n} for n in range(25))
    facts = {"cached_tokens": cached, "prompt_tokens": 500.0, "all_prompt_tokens": 2_000.0}
    found = check(judged(source(pages), **facts), "cached_tokens_agree")
    assert found.measured == pytest.approx(apart)


def test_unreliable_source_is_reported_and_not_used() -> None:
    report = judged(source({RUNNING: 1} for _ in range(25)))
    assert [each.check for each in report.checks] == ["telemetry_source"]
    assert "http://server/metrics is not used: it repeated" in report.checks[0].text
    assert list(series.plotted([])) == []


def test_counter_grows_between_pages_around_the_load() -> None:
    times = np.array([at(s) for s in range(6)], dtype=np.int64)
    curve = Curve(times, np.array([0.0, 10, 20, 30, 40, 50]))
    assert grown(curve, at(1.5), at(3.5)) == 30
    assert grown(curve, at(-5), at(99)) == 50
    assert grown(Curve(times, np.full(6, np.nan)), at(1), at(3)) is None
    # A labelled counter that appears under load begins at zero.
    late = np.array([np.nan, np.nan, 5, 7, 9, 9])
    assert grown(Curve(times, late), at(1), at(4)) == 9
    # A counter that is missing on the page before the load continues.
    gap = np.array([10, np.nan, 12, 14, 14, 14])
    assert grown(Curve(times, gap), at(1), at(4)) == 4
    last = np.array([np.nan, np.nan, np.nan, np.nan, np.nan, 4])
    assert grown(Curve(times, last), at(1), at(4.5)) == 4


def test_curves_are_added_on_a_common_grid() -> None:
    first = source(({RUNNING: 2} for _ in range(10)), url="a")
    second = source(({RUNNING: 3} for _ in range(10)), url="b", first_s=0.4)
    values = series.gauge([first, second], "running", at(2), at(8))
    assert set(values) == {5.0}


def test_replica_without_further_pages_runs_nothing() -> None:
    live = source(({RUNNING: 5} for _ in range(25)), url="a")
    dead = source(({RUNNING: 20} for _ in range(6)), url="b")
    values = series.gauge([live, dead], "running", at(2), at(24))
    # Its last page is that of 5 s and counts for another 10 s.
    assert values.tolist() == [25] * 14 + [5] * 9


def test_late_replicas_first_value_is_no_growth() -> None:
    first = source(({TOKENS: 100 * n} for n in range(10)), url="a")
    second = source(({TOKENS: 1e9 + 50 * n} for n in range(6)), url="b", first_s=4.4)
    found = {each.name: each.lines for each in series.plotted([first, second])}
    ((_, _, rates),) = found["generation_tokens"]
    # Its first page is that of 4.4 s, and its last is that of 9.4 s.
    assert rates.tolist() == pytest.approx([100] * 4 + [130] + [150] * 4 + [20])


def token_rates(*counts: float) -> list[float]:
    """Return the rates of a counter, one value per second. A negative value means a missing one."""
    pages = [{RUNNING: 1} | ({TOKENS: count} if count >= 0 else {}) for count in counts]
    (found,) = (each for each in series.plotted([source(pages)]) if each.name != "running")
    return found.lines[0][2].tolist()


def test_growth_during_a_gap_is_in_the_rates() -> None:
    assert token_rates(100, 110, -1, -1, 140, 150) == [10, 10, 10, 10, 10]


def test_missing_counter_has_no_rate() -> None:
    first, *rest = token_rates(100, 110, -1, -1)
    assert first == 10
    assert np.isnan(rest).all()


def test_restarted_counter_counts_from_zero_in_rates() -> None:
    assert token_rates(100, 110, 5, 25) == [10, 5, 20]


def test_new_labels_count_from_zero_in_rates() -> None:
    pages = [{f'{TOKENS}{{engine="{e}"}}': 10 * n for e in range(1 + n // 3)} for n in range(5)]
    (found,) = series.plotted([source(pages)])
    assert found.lines[0][2].tolist() == [10, 10, 40, 20]


def labelled(label: str, count: float) -> dict[str, float]:
    return {f'{TOKENS}{{pod="{label}"}}': count}


def test_counter_with_changed_labels_continues() -> None:
    log = source(labelled(f"pod-{n}", 1_000.0 + 10 * n) for n in range(6))
    assert series.counter([log], "generation_tokens", at(1), at(4)) == 30
    (found,) = series.plotted([log])
    assert found.lines[0][2].tolist() == [10] * 5
    again = source(labelled("ab"[n % 2], 1_000.0 + 10 * n) for n in range(6))
    assert series.counter([again], "generation_tokens", at(1), at(4)) == 30


def test_relabelled_parts_continue_the_most_similar_series() -> None:
    pages = [
        {
            f'{TOKENS}{{engine="{engine}",version="{n // 3}"}}': 1_000.0 + (1 + engine) * n
            for engine in range(3)
        }
        for n in range(6)
    ]
    log = source(pages)
    assert len(log.series) == 3
    grown_by = [grown(log.curve(number), at(0), at(5)) for number in range(3)]
    assert grown_by == [5, 10, 15]


def test_smaller_successor_of_a_counter_counts_from_zero() -> None:
    log = source([labelled("a", 500), labelled("a", 510), labelled("b", 7), labelled("b", 9)])
    assert series.counter([log], "generation_tokens", at(0), at(3)) == 10 + 9


def test_additional_counter_counts_from_zero() -> None:
    pages = [labelled("a", 5), labelled("a", 6), labelled("a", 7) | labelled("b", 9)]
    log = source(pages)
    assert series.counter([log], "generation_tokens", at(0), at(2)) == 2 + 9


def test_quantiles_of_buckets_are_linear_within_them() -> None:
    buckets = {"0.1": 50.0, "0.2": 100.0, "+Inf": 100.0}
    assert quantile(buckets, 0.5) == pytest.approx(0.1)
    assert quantile(buckets, 0.75) == pytest.approx(0.15)
    assert quantile({"0.1": 0.0, "+Inf": 4.0}, 0.5) == pytest.approx(0.1)
