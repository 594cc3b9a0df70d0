"""Each check of the verdict by itself, on both sides of its limits."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from aiperf_svc.core.records.accounts import Accounts
from aiperf_svc.core.stats.totals import Totals
from aiperf_svc.core.verdict.check_result import MORE_WORKERS
from aiperf_svc.core.verdict.effect_checks import EARLY_END
from aiperf_svc.core.verdict.health_log import Health, HealthLog
from aiperf_svc.core.verdict.inputs import (
    Evidence,
    GapBound,
    LatencyBound,
    SingleReads,
    arrivals_ratio,
    most_frequent_status,
)
from aiperf_svc.core.verdict.judge import CLIENT_EFFECTS, judge
from aiperf_svc.domain.outcomes import ErrorKind, Phase
from aiperf_svc.protocol.messages.records import ErrorSample
from aiperf_svc.protocol.messages.reports import Vitals
from aiperf_svc.protocol.services import Service

ROOT = Path(__file__).parents[3]
NAMES = {EARLY_END} | {
    name
    for path in (ROOT / "aiperf_svc/core/verdict").glob("*check*.py")
    for name in re.findall(
        r"(?:Check|_worst_worker|graded|expect_none|note)\(\s*\"(\w+)\"", path.read_text()
    )
}
"""Names of all checks in the code, also of those that apply to few runs."""
TESTED_ELSEWHERE = {
    *("input_tokens", "output_tokens"),  # results/test_token_results.py
    *("cached_counts", "cached_tokens", "usage_twice"),  # results/test_cache_use.py
    "events",  # events/test_disturbance.py
    EARLY_END,  # experiments/test_early_end.py
}
BOUND = LatencyBound("time_to_first_token", "p99", 100.0, 100.0, 100.0)
HEALTH = Health(
    id="worker-0",
    service=Service.WORKER,
    samples=30,
    cpu_mean=0.5,
    busy_share=0.0,
    loop_lag_p50_ms=5.0,
    loop_lag_max_ms=40.0,
    throttled_share=0.0,
    stolen_share=0.0,
    waited_share=0.0,
    fd_share=0.2,
    rss_max_bytes=2**27,
)
BUSY = replace(HEALTH, busy_share=1.0, loop_lag_p50_ms=500.0)
GAP = GapBound("inter_chunk_latency", "p50", 10.0, 10.0, 10.0, mean_ms=10.0)
CLOSED = Evidence(
    totals=Totals(requests=10_000, completed=10_000, is_streaming=True, osl_known=10_000),
    accounts=Accounts(),
    is_open_loop=False,
    concurrency=100,
    held_ratio=0.999,
    bounds=(BOUND,),
    single_reads=SingleReads(10_000, 0),
    gap_bounds=(GAP,),
    workers=(HEALTH,),
    finish_reasons={"stop": 9_000, "length": 1_000},
    is_length_forced=True,
)


def changed(evidence: Evidence, **fields: Any) -> Evidence:
    """Return the evidence with changed fields of its own, of its accounts or of its totals."""
    totals, accounts = evidence.totals, evidence.accounts
    for name, value in fields.items():
        if name in evidence.__struct_fields__:
            evidence = replace(evidence, **{name: value})
        elif name in totals.__struct_fields__ and name != "unsent":
            totals = replace(totals, **{name: value})
        else:
            accounts = replace(accounts, **{name: value})
    return replace(evidence, totals=totals, accounts=accounts)


WHOLE = changed(CLOSED, is_streaming=False)
COUNTED = changed(CLOSED, has_output_tokens=True)
BLANKS = GapBound("time_to_first_token", "p50", 100.0, 100.0, 100.0, mean_ms=100.0)
BLANK = changed(CLOSED, blank_bounds=(BLANKS,))
OPEN = replace(
    CLOSED, is_open_loop=True, concurrency=None, held_ratio=None, rate_ratio=1.0, arrivals_ratio=1.0
)


def severity(check: str, evidence: Evidence) -> str:
    return next(str(c.severity) for c in judge(evidence).checks if c.check == check)


def test_metrics_page_has_a_row_for_each_check() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert [name for name in sorted(NAMES) if f"\n| {name} |" not in page] == []


def test_page_of_metrics_has_each_kind_of_error() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    names = [kind.name.title().replace("_", "") for kind in ErrorKind if kind]
    assert [name for name in names if f"`{name}`" not in page] == []


@pytest.mark.parametrize("evidence", [CLOSED, OPEN])
def test_good_run_is_valid_and_lists_its_checks(evidence: Evidence) -> None:
    verdict = judge(evidence)
    assert (verdict.label, verdict.reasons) == ("valid", ())
    assert len(verdict.checks) >= 15


@pytest.mark.parametrize(
    ("fields", "message", "remedy"),
    [
        ({"requests": 0}, "no request was due before the end", "load.duration"),
        (
            {"requests": 0, "unsent": 40},
            "none of the 40 due requests was sent",
            "run again",
        ),
        (
            {"requests": 0, "unsent": 40, "connecting": 40},
            "none of the 40 due requests was sent; 40 still waited for a connection",
            "keep-alive",
        ),
        ({"requests": 50, "errored": 50}, "0 of 50 requests succeeded", "errors"),
    ],
)
def test_run_without_success_states_whether_requests_were_sent(
    fields: dict[str, Any], message: str, remedy: str
) -> None:
    evidence = changed(OPEN, **{"completed": 0, "errored": 0, "unsent": 0, **fields})
    (found,) = [c for c in judge(evidence).checks if c.check == "successes"]
    assert found.severity == "invalid"
    assert message in found.text
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("check", "base", "fields", "expected"),
    [
        ("successes", CLOSED, {"completed": 1}, "valid"),
        ("successes", CLOSED, {"completed": 0}, "invalid"),
        ("accounts", CLOSED, {"violations": ("worker-0: 3 credits too few",)}, "invalid"),
        ("lost_processes", CLOSED, {"lost_services": ("worker-3",)}, "degraded"),
        ("records", CLOSED, {"records_lost": 1}, "degraded"),
        ("records", CLOSED, {"records_lost": 102}, "invalid"),
        ("held_back", CLOSED, {"held_back_share": 0.0}, "valid"),
        ("held_back", CLOSED, {"held_back_share": 0.001}, "degraded"),
        ("held_back", CLOSED, {"held_back_share": 0.02}, "invalid"),
        ("concurrency", CLOSED, {"held_ratio": 0.991}, "valid"),
        ("concurrency", CLOSED, {"held_ratio": 0.989}, "degraded"),
        ("concurrency", CLOSED, {"held_ratio": 0.89}, "invalid"),
        ("rate", OPEN, {"rate_ratio": 0.991}, "valid"),
        ("rate", OPEN, {"rate_ratio": 0.985}, "degraded"),
        ("rate", OPEN, {"rate_ratio": 0.94}, "invalid"),
        ("arrivals", OPEN, {"arrivals_ratio": 0.97, "arrivals_tolerance": 0.03}, "valid"),
        ("arrivals", OPEN, {"arrivals_ratio": 1.05, "arrivals_tolerance": 0.03}, "degraded"),
        ("arrivals", OPEN, {"arrivals_ratio": 0.90, "arrivals_tolerance": 0.03}, "invalid"),
        ("unsent", OPEN, {"unsent": 90}, "valid"),
        ("unsent", OPEN, {"unsent": 200}, "degraded"),
        ("unsent", OPEN, {"unsent": 900}, "invalid"),
        ("unsent", OPEN, {"unsent": 900, "connecting": 850}, "valid"),
        ("connecting", OPEN, {"unsent": 900, "connecting": 90}, "valid"),
        ("connecting", OPEN, {"unsent": 900, "connecting": 900}, "degraded"),
        ("stamp_uncertainty", CLOSED, {"bounds": (replace(BOUND, lowest_ms=96.0),)}, "valid"),
        ("stamp_uncertainty", CLOSED, {"bounds": (replace(BOUND, lowest_ms=90.0),)}, "degraded"),
        ("stamp_uncertainty", CLOSED, {"bounds": (replace(BOUND, lowest_ms=70.0),)}, "invalid"),
        ("schedule_lag", OPEN, {"bounds": (replace(BOUND, with_lag_ms=104.0),)}, "valid"),
        ("schedule_lag", OPEN, {"bounds": (replace(BOUND, with_lag_ms=110.0),)}, "degraded"),
        ("schedule_lag", OPEN, {"bounds": (replace(BOUND, with_lag_ms=130.0),)}, "invalid"),
        ("errors", CLOSED, {"errored": 100, "completed": 9_900}, "valid"),
        ("errors", CLOSED, {"errored": 101, "completed": 9_899}, "degraded"),
        ("errors", CLOSED, {"errored": 1_000, "completed": 9_000}, "degraded"),
        ("errors", CLOSED, {"errored": 1_001, "completed": 8_999}, "invalid"),
        ("errors", CLOSED, {"errored": 3_000, "error_budget": 0.3}, "degraded"),
        ("errors", CLOSED, {"errored": 3_001, "error_budget": 0.3}, "invalid"),
        ("run", CLOSED, {"failure": "the timing manager was lost"}, "invalid"),
        ("single_reads", CLOSED, {"single_reads": SingleReads(1_000, 50)}, "valid"),
        ("single_reads", CLOSED, {"single_reads": SingleReads(1_000, 51)}, "degraded"),
        ("chunk_times", CLOSED, {"gap_bounds": (replace(GAP, lowest_ms=8.1),)}, "valid"),
        ("chunk_times", CLOSED, {"gap_bounds": (replace(GAP, lowest_ms=7.9),)}, "degraded"),
        ("chunk_times", CLOSED, {"gap_bounds": (GAP, replace(GAP, highest_ms=99))}, "degraded"),
        # A server that sends two chunks at once, measured to within 1 ms of a mean of 10.
        (
            "chunk_times",
            CLOSED,
            {"gap_bounds": (replace(GAP, measured_ms=0.0, lowest_ms=0.0, highest_ms=1.0),)},
            "valid",
        ),
        ("censored", CLOSED, {"cancelled": 60, "timed_out": 41}, "degraded"),
        ("token_counts", COUNTED, {"without_output_tokens": 100}, "valid"),
        ("token_counts", COUNTED, {"without_output_tokens": 101}, "degraded"),
        ("token_bytes", CLOSED, {"impossible_tokens": 100}, "valid"),
        ("token_bytes", CLOSED, {"impossible_tokens": 101}, "degraded"),
        ("token_bytes", CLOSED, {"impossible_tokens": 5_001}, "invalid"),
        ("token_bytes", WHOLE, {"impossible_tokens": 5_001}, "degraded"),
        ("token_events", CLOSED, {"scarce_tokens": 100}, "valid"),
        ("token_events", CLOSED, {"scarce_tokens": 101}, "degraded"),
        ("token_events", CLOSED, {"dense_tokens": 100}, "valid"),
        ("token_events", CLOSED, {"dense_tokens": 101}, "degraded"),
        ("blank_deltas", BLANK, {"blank_bounds": (replace(BLANKS, lowest_ms=96.0),)}, "valid"),
        ("blank_deltas", BLANK, {"blank_bounds": (replace(BLANKS, lowest_ms=90.0),)}, "degraded"),
        ("blank_deltas", CLOSED, {"with_blanks": 9}, "info"),
        ("hidden_tokens", CLOSED, {"with_hidden": 9, "hidden_tokens": 900.0}, "info"),
        ("time_order", CLOSED, {"impossible": 10}, "valid"),
        ("time_order", CLOSED, {"impossible": 50}, "degraded"),
        ("time_order", CLOSED, {"impossible": 101}, "invalid"),
        ("unstamped", CLOSED, {"unstamped": 5_000, "receive_lag_ms": 2.0}, "valid"),
        ("unstamped", CLOSED, {"unstamped": 50, "receive_lag_ms": 9.0}, "valid"),
        ("unstamped", CLOSED, {"unstamped": 5_000, "receive_lag_ms": 9.0}, "degraded"),
        ("unstamped", CLOSED, {"unstamped": 10_000}, "degraded"),
        ("local_limits", CLOSED, {"no_resources": 1}, "degraded"),
        ("local_limits", CLOSED, {"no_resources": 101}, "invalid"),
        ("file_descriptors", CLOSED, {"workers": (replace(HEALTH, fd_share=0.96),)}, "degraded"),
        ("capped", OPEN, {"capped": 101}, "degraded"),
        ("retries", CLOSED, {"retries": 10}, "valid"),
        ("retries", CLOSED, {"retries": 11}, "degraded"),
        ("unasked_bytes", CLOSED, {"unasked": 10}, "valid"),
        ("unasked_bytes", CLOSED, {"unasked": 11}, "degraded"),
        ("unasked_bytes", CLOSED, {"unasked": 101}, "invalid"),
        ("unasked_bytes", OPEN, {"unasked": 10_000}, "degraded"),
        ("histories", CLOSED, {"history_defects": (50, 0, 50)}, "valid"),
        ("histories", CLOSED, {"history_defects": (51, 0, 50)}, "degraded"),
        ("cpu", CLOSED, {"workers": (HEALTH, replace(HEALTH, busy_share=0.09))}, "valid"),
        ("cpu", CLOSED, {"workers": (HEALTH, replace(HEALTH, busy_share=0.5))}, "degraded"),
        ("throttling", CLOSED, {"workers": (replace(HEALTH, throttled_share=0.02),)}, "degraded"),
        ("stolen", CLOSED, {"workers": (replace(HEALTH, stolen_share=0.06),)}, "degraded"),
        ("event_loop", CLOSED, {"workers": (replace(HEALTH, loop_lag_p50_ms=150.0),)}, "degraded"),
        ("clock_uncertainty", OPEN, {"clock_uncertainty_ms": 4.0}, "valid"),
        ("clock_uncertainty", OPEN, {"clock_uncertainty_ms": 6.0}, "degraded"),
        ("clock_jumps", CLOSED, {"clock_jumps": 101}, "degraded"),
        ("clock_jumps", CLOSED, {"clock_step_share": 0.009}, "valid"),
        ("clock_jumps", OPEN, {"clock_step_share": 0.011}, "degraded"),
        ("clock_jumps", CLOSED, {"clock_jumps": 501}, "invalid"),
        ("clock_jumps", OPEN, {"clock_step_share": 0.051}, "invalid"),
        ("finish_reasons", CLOSED, {"finish_reasons": {"tool_calls": 10_000}}, "valid"),
        ("finish_reasons", CLOSED, {"finish_reasons": {"content_filter": 101}}, "degraded"),
        ("finish_reasons", CLOSED, {"finish_reasons": {"other": 100}}, "valid"),
        ("finish_reasons", CLOSED, {"finish_reasons": {"no_content": 5_001}}, "invalid"),
        ("finish_reasons", CLOSED, {"completed": 100, "finish_reasons": {"other": 60}}, "invalid"),
        ("output_length", CLOSED, {"osl_off": 500}, "valid"),
        (
            "output_length",
            CLOSED,
            {"osl_off": 501, "osl_requested": 10, "osl_generated": 7},
            "degraded",
        ),
        (
            "output_length",
            OPEN,
            {"osl_off": 10_000, "osl_requested": 10, "osl_generated": 1},
            "degraded",
        ),
    ],
)
def test_each_check_turns_at_its_limits(
    check: str, base: Evidence, fields: dict[str, Any], expected: str
) -> None:
    assert severity(check, changed(base, **fields)) == expected


def test_every_check_is_tested_and_has_a_remedy() -> None:
    marks = test_each_check_turns_at_its_limits.pytestmark
    tested = {case[0] for mark in marks for case in mark.args[1]}
    noted = changed(BLANK, with_hidden=9, with_blanks=9)
    found = {check.check for base in (noted, OPEN) for check in judge(base).checks}
    assert found <= NAMES
    assert tested == NAMES - TESTED_ELSEWHERE
    for check in (*judge(CLOSED).checks, *judge(OPEN).checks):
        assert check.text
        assert check.remedy
        assert check.unit


@pytest.mark.parametrize(
    "check", ["concurrency", "unsent", "capped", "rate", "arrivals", "clock_uncertainty"]
)
def test_checks_of_the_other_load_do_not_apply(check: str) -> None:
    other = CLOSED if check != "concurrency" else OPEN
    assert check not in {c.check for c in judge(other).checks}


def test_too_few_health_samples_are_ignored() -> None:
    short = changed(CLOSED, workers=(replace(HEALTH, samples=2, busy_share=1.0),))
    assert judge(short).label == "valid"


def test_limiting_client_is_named() -> None:
    null_server = changed(CLOSED, held_ratio=0.05)
    assert judge(null_server).label == "invalid: client-bound"


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"workers": (replace(HEALTH, waited_share=0.02),)}, MORE_WORKERS),
        ({"workers": (replace(HEALTH, busy_share=0.2),)}, MORE_WORKERS),
        ({"workers": (replace(HEALTH, throttled_share=0.1),)}, MORE_WORKERS),
        ({"workers": (replace(HEALTH, stolen_share=0.1),)}, MORE_WORKERS),
        ({"timing": (replace(HEALTH, loop_lag_p50_ms=530.0),)}, MORE_WORKERS),
        ({"timing": (HEALTH,)}, "used at most 50% of a core and waited for one 0.00% of the time"),
        ({"workers": (replace(HEALTH, samples=2),)}, "run for 5 s or longer"),
        ({"workers": ()}, "run for 5 s or longer"),
        ({"workers": (BUSY,), "fastest_ms": 0.02}, "responds in 0.02 ms"),
        ({"workers": (BUSY,), "fastest_ms": 2.0}, MORE_WORKERS),
    ],
)
def test_more_cpu_is_advised_only_to_starved_clients(facts: dict[str, Any], message: str) -> None:
    found = judge(
        changed(CLOSED, held_ratio=0.5, bounds=(replace(BOUND, with_lag_ms=130),), **facts)
    )
    remedies = {r.check: r.remedy for r in found.reasons if r.check in CLIENT_EFFECTS}
    assert remedies.keys() == {"concurrency", "schedule_lag"}
    assert all(message in remedy for remedy in remedies.values())
    assert (message == MORE_WORKERS) is all(MORE_WORKERS in each for each in remedies.values())


@pytest.mark.parametrize(
    ("elsewhere", "label"),
    [
        ({"failure": "the records manager was lost"}, "invalid: run-failed"),
        ({"failure": "lost", "requests": 0, "completed": 0}, "invalid: run-failed"),
        ({"lost_services": ("worker-1",)}, "invalid: process-lost"),
        ({"errored": 5_000}, "invalid: target-failing"),
        ({"errored": 10_000, "completed": 0}, "invalid: target-failing"),
    ],
)
def test_explained_shortfall_is_not_blamed_on_the_client(
    elsewhere: dict[str, Any], label: str
) -> None:
    verdict = judge(changed(CLOSED, held_ratio=0.5, workers=(BUSY,), **elsewhere))
    assert verdict.label == label
    assert {"concurrency", "cpu", "event_loop"} <= {reason.check for reason in verdict.reasons}
    assert not [reason.remedy for reason in verdict.reasons if MORE_WORKERS in reason.remedy]


@pytest.mark.parametrize(
    ("facts", "label", "remedy"),
    [
        ({"concurrency": 8}, "invalid: load-capped", "raise load.concurrency, or lower the rate"),
        ({"prefill_concurrency": 8}, "invalid: load-capped", "raise load.prefill_concurrency, or"),
        ({"concurrency": 8, "rate_ratio": 0.96}, "degraded", "raise load.concurrency, or"),
        ({"concurrency": 8, "workers": (BUSY,)}, "invalid", "raise load.concurrency, or"),
        ({"concurrency": 8, "capped": 1_000}, "invalid: client-bound", "did not lack CPU"),
        ({}, "invalid: client-bound", "did not lack CPU"),
    ],
)
def test_only_a_cap_of_the_config_explains_rate(
    facts: dict[str, Any], label: str, remedy: str
) -> None:
    verdict = judge(changed(OPEN, **{"rate_ratio": 0.6, "capped": 5_000, **facts}))
    (rate,) = [each for each in verdict.reasons if each.check == "rate"]
    assert verdict.label == label
    assert remedy in rate.remedy
    assert ("held requests back" in rate.text) is remedy.startswith("raise")


@pytest.mark.parametrize(
    ("facts", "label"),
    [
        ({"impossible_tokens": 5_001}, "invalid: unusable-responses"),
        ({"completed": 0, "cancelled": 10_000}, "invalid: unusable-responses"),
        ({"requests": 0, "completed": 0, "connecting": 40}, "invalid: unusable-responses"),
        ({"requests": 0, "completed": 0}, "invalid"),
        ({"completed": 0, "cancelled": 10_000, "was_cancelled": True}, "invalid"),
        ({"impossible_tokens": 5_001, "records_lost": 500}, "invalid"),
        ({"impossible_tokens": 5_001, "held_ratio": 0.5}, "invalid: client-bound"),
        ({"impossible_tokens": 5_001, "early_end": "it breaks"}, "invalid"),
    ],
)
def test_unusable_responses_are_a_cause_alone(facts: dict[str, Any], label: str) -> None:
    assert judge(changed(CLOSED, **facts)).label == label


def test_unused_prefill_slots_are_blamed_on_client() -> None:
    verdict = judge(changed(CLOSED, held_ratio=0.8, prefill_concurrency=4, capped=5_000))
    (reason,) = verdict.reasons
    assert (verdict.verdict, reason.check) == ("invalid", "concurrency")
    assert reason.text.startswith("the 4 prefill slots were unused for 20.0% of the time")
    assert "did not lack CPU" in reason.remedy


def test_client_shortage_is_not_the_targets_failure() -> None:
    verdict = judge(changed(CLOSED, held_ratio=0.5, errored=5_000, no_resources=5_000))
    assert verdict.label == "invalid: client-bound"


@pytest.mark.parametrize(
    ("budget", "label"), [(0.3, "invalid: client-bound"), (0.1, "invalid: target-failing")]
)
def test_errors_within_budget_do_not_explain_shortfall(budget: float, label: str) -> None:
    failing = changed(CLOSED, held_ratio=0.5, errored=2_000, error_budget=budget)
    assert judge(failing).label == label


def test_load_of_leaving_clients_does_not_blame_server() -> None:
    (found,) = judge(changed(CLOSED, completed=0, abandoned=10_000)).reasons
    assert found.check == "successes"
    assert "10,000 clients disconnected" in found.text
    assert "load.cancellation.rate" in found.remedy


def test_errors_are_named_and_an_absent_target_suspected() -> None:
    by_kind = np.zeros(len(ErrorKind), dtype=np.int64)
    by_kind[ErrorKind.CONNECT], by_kind[ErrorKind.STATUS] = 500, 100
    words = (("connect", 500), ("status", 100))
    failed = replace(CLOSED.totals, errored=600, errors=by_kind)
    away = replace(CLOSED, totals=failed, errors=words)
    (found,) = judge(away).reasons
    assert "500 connect, 100 status" in found.text
    assert "did not reach the target" in found.remedy
    by_kind[ErrorKind.CONNECT], by_kind[ErrorKind.STATUS] = 100, 500
    (found,) = judge(away).reasons
    assert "did not reach the target" not in found.remedy


def test_the_worst_reason_comes_first() -> None:
    verdict = judge(changed(CLOSED, clock_jumps=500, held_ratio=0.5, errored=300))
    assert [r.check for r in verdict.reasons] == ["concurrency", "errors", "clock_jumps"]


def test_arrival_tolerance_covers_random_variation() -> None:
    found = arrivals_ratio(9_700, rate=100, duration_s=100, ramp_s=0, variation=1.0)
    assert found == pytest.approx((0.97, 0.0401))
    # Half of the ramp's arrivals are missing by design.
    ramped = arrivals_ratio(9_000, rate=100, duration_s=100, ramp_s=20, variation=0.0)
    assert ramped == pytest.approx((1.0, 1 / 9_000))
    assert arrivals_ratio(0, rate=0.1, duration_s=1, ramp_s=0, variation=1.0) is None


def test_load_stopped_in_its_ramp_has_its_arrivals() -> None:
    # The rate rises by 2.5/s each second, so 2,000 requests are due in 40 s.
    found = arrivals_ratio(2_000, rate=150, duration_s=40, ramp_s=60, variation=0.0)
    assert found is not None
    assert found[0] == pytest.approx(1.0)


def test_health_is_condensed_from_heartbeats() -> None:
    log = HealthLog()
    for second, cpu in enumerate((0.2, 0.99, 0.97, 0.5)):
        vitals = Vitals(
            cpu_fraction=cpu,
            throttled_ns=second * 30_000_000,
            stolen_ns=second * 20_000_000,
            waited_ns=second * 10_000_000,
            loop_lag_ns=(second + 1) * 1_000_000,
            rss_bytes=second,
            open_fds=10 * second,
            fd_limit=100,
        )
        log.add("worker-1", Service.WORKER, vitals, at_wall_ns=second * 10**9)
    (found,) = log.report()
    assert (found.samples, found.busy_share, found.fd_share) == (4, 0.5, 0.3)
    assert found.cpu_mean == pytest.approx(0.665)
    assert found.throttled_share == pytest.approx(0.03)
    assert found.stolen_share == pytest.approx(0.02)
    assert found.waited_share == pytest.approx(0.01)
    assert (found.loop_lag_p50_ms, found.loop_lag_max_ms) == (3.0, 4.0)


def test_text_of_failures_fits_their_outcomes() -> None:
    def found_in(check: str, **facts: Any) -> Any:
        found = judge(changed(CLOSED, requests=918, **facts)).checks
        return next(each for each in found if each.check == check)

    failed = found_in("successes", completed=0, errored=918)
    assert (failed.measured, failed.unit) == (918, "without success")
    assert "check the errors" in failed.remedy
    for status, remedy in ((401, "--api-key"), (404, "--model")):
        assert remedy in found_in("successes", completed=0, errored=9, error_status=status).remedy
    assert "cover only the others" not in found_in("errors", completed=0, errored=918).text
    assert "cover only the others" in found_in("errors", completed=900, errored=18).text
    hung = found_in("successes", completed=0, errored=0, cancelled=918)
    assert "errors" not in hung.remedy
    assert "did not respond" in hung.remedy


def test_rare_error_status_is_not_most_frequent() -> None:
    timeouts = ErrorSample(Phase.PROFILING, ErrorKind.TIMEOUT, 0, "no response", 9)
    busy = ErrorSample(Phase.PROFILING, ErrorKind.STATUS, 429, "busy", 2)
    warm = ErrorSample(Phase.WARMUP, ErrorKind.STATUS, 500, "", 50)
    assert most_frequent_status([busy, timeouts, warm]) == 0
    assert most_frequent_status([busy, warm]) == 429
    assert most_frequent_status([]) == 0
