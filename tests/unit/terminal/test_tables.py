"""The result table fits into a hundred columns and shows the available results."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.exports.aiperf_exports import result_of
from aiperf_svc.adapters.report.blocks import document, table_blocks
from aiperf_svc.adapters.terminal import inference_tables
from aiperf_svc.adapters.terminal.verdict_lines import MAX_ROWS, print_tables
from aiperf_svc.core.results.inference_result import SteadyStats, TurnOverflow
from aiperf_svc.core.results.run_result import MetricStats
from aiperf_svc.domain.metric_catalog import CATALOG
from aiperf_svc.runner.outcome import RunOutcome
from aiperf_svc.runner.printing import print_results
from tests.support import fake_run
from tests.support.fake_results import DATASET, as_json, decoded, inference_result
from tests.support.html_balance import assert_is_balanced
from tests.support.terminal import on_console


@pytest.fixture(scope="module")
def summary() -> dict[str, Any]:
    rows = fake_run.closed_loop(requests=100, concurrency=10)
    made = fake_run.results(rows)
    return as_json(result_of(made))


def printed(summary: dict[str, Any] | None, *, width: int = 100, **fields: Any) -> str:
    values: dict[str, Any] = {"run_id": "x", "state": "done", "reason": "", "artifacts": None}
    results = None if summary is None else decoded(summary)
    outcome = RunOutcome(**{**values, **fields}, results=results)
    return on_console(print_results, outcome, width=width)


def changed(summary: dict[str, Any], **ours: Any) -> dict[str, Any]:
    return {**summary, "aiperf_svc": {**summary["aiperf_svc"], **ours}}


def test_the_table_fits_a_hundred_columns(summary: dict[str, Any]) -> None:
    assert max(map(len, printed(summary).splitlines())) <= 100


def test_a_narrow_terminal_gets_fewer_statistics(summary: dict[str, Any]) -> None:
    head = printed(summary, width=80).splitlines()[3]
    assert head.split() == ["avg", "p50", "p90", "p99"]


def test_a_metric_is_a_line_with_its_unit(summary: dict[str, Any]) -> None:
    ttft = summary["time_to_first_token"]
    line = next(x for x in printed(summary).splitlines() if "Time to First Token (ms)" in x)
    assert f"{ttft['avg']:.2f}" in line
    assert f"{ttft['p99']:.2f}" in line


def test_only_shares_are_in_per_cent(summary: dict[str, Any]) -> None:
    more = {
        "cached_token_share": {"unit": "ratio", "avg": 0.9659},
        "spec_decode_token_weighted_acceptance_length": {"unit": "ratio", "avg": 2.5},
    }
    slo = [{"metric": "cached_token_share", "stat": "avg", "unit": "ratio", "bound": "min",
            "limit": 0.3, "measured": 0.9659, "ok": True}]  # fmt: skip
    text = " ".join(printed({**changed(summary, slo=slo), **more}).split())
    assert "Cached Token Share 96.59 %" in text
    assert "cached_token_share avg 96.59 ≥ 30 %" in text
    assert "Token-Weighted Acceptance Length 2.500 tokens" in text


def test_distribution_of_shares_is_in_per_cent(
    summary: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    share = replace(CATALOG["request_latency"], name="Share", unit="ratio")
    monkeypatch.setattr(inference_tables, "METRICS", (share,))
    values = {**summary["request_latency"], "p50": 0.25, "p99": None, "beyond": {"p99": 0.5}}
    lines = printed({**summary, "request_latency": values}).splitlines()
    line = next(x for x in lines if "Share (%)" in x).split()
    assert (line[4], line[6]) == ("25", ">50")


def test_single_numbers_are_beside_each_other(summary: dict[str, Any]) -> None:
    line = next(x for x in printed(summary).splitlines() if x.startswith("Request Throughput"))
    assert line.count("/sec") == 2


def test_narrow_terminal_stacks_single_numbers(summary: dict[str, Any]) -> None:
    lines = printed(summary, width=80).splitlines()
    assert not any("…" in line for line in lines)
    throughput = next(x for x in lines if x.startswith("Request Throughput"))
    assert throughput.split()[-1] == "requests/sec"
    assert next(x for x in lines if x.startswith("Benchmark Duration")).split()[-1] == "sec"


def test_percentiles_without_enough_requests_are_marked(summary: dict[str, Any]) -> None:
    metric = {**summary["request_latency"], "unreliable": ["p99"], "p99": 191.1}
    text = printed({**summary, "request_latency": metric})
    assert "191.1*" in text
    assert "* fewer than one request is expected beyond this percentile" in text
    reliable = {
        tag: {**value, "unreliable": []} if isinstance(value, dict) and "unit" in value else value
        for tag, value in summary.items()
    }
    assert "*" not in printed(reliable)


def test_censored_percentile_shows_its_bound(summary: dict[str, Any]) -> None:
    metric = summary["intended_request_latency"]
    metric = {**metric, "p99": None, "beyond": {"p99": 187.4}, "censored_share": 0.1111}
    text = printed({**summary, "intended_request_latency": metric})
    assert ">187.4" in text
    assert "Intended Request Latency 11.11%" in text


def test_errors_are_listed_with_the_first_message(summary: dict[str, Any]) -> None:
    errors = [
        {"error_details": {"code": 503, "type": "Status", "message": "over\nloaded"}, "count": 1200}
    ]
    text = printed({**summary, "error_summary": errors})
    line = next(x for x in text.splitlines() if "over" in x)
    assert line.split() == ["1,200", "Status", "503", "over", "loaded"]


def test_an_errors_message_is_shown_whole(summary: dict[str, Any]) -> None:
    message = "the certificate is not accepted; " * 6 + "endpoint.tls.ca_file helps"
    errors = [{"error_details": {"code": None, "type": "Tls", "message": message}, "count": 1}]
    text = printed({**summary, "error_summary": errors})
    assert message in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100


def test_unchecked_certificate_is_reported(summary: dict[str, Any]) -> None:
    endpoint = {"url": "https://h", "tls": {"verify": False}}
    text = printed(changed(summary, config={"endpoint": endpoint}))
    assert "certificate was not checked (endpoint.tls.verify: false)" in text


def test_many_kinds_of_errors_are_summed_up(summary: dict[str, Any]) -> None:
    errors = [
        {"error_details": {"code": 400 + n, "type": "Status", "message": "m" * 500}, "count": 2}
        for n in range(20)
    ]
    text = printed({**summary, "error_summary": errors})
    assert "12 more kinds" in text
    assert max(map(len, text.splitlines())) <= 100


def test_missing_metrics_are_named_below_the_table(summary: dict[str, Any]) -> None:
    note = "not measured: Inter Token Latency. No response has usage"
    lines = printed(changed(summary, notes=[note])).splitlines()
    verdict = next(at for at, line in enumerate(lines) if line.startswith("Verdict on the client"))
    assert lines.index(note) < verdict
    assert note not in printed(summary)


def test_objectives_show_measured_value_and_limit(summary: dict[str, Any]) -> None:
    common = {"metric": "time_to_first_token", "stat": "p99", "unit": "ms", "bound": "max"}
    slo = [
        {**common, "limit": 200.0, "measured": 23.45, "ok": True},
        {**common, "limit": 20.0, "measured": 24.73, "ok": False, "reason": "above the limit"},
        {**common, "limit": 500.0, "measured": 24.73, "ok": False, "judged": False,
         "reason": "p99 needs 100 values, there are 20"},
    ]  # fmt: skip
    held, missed, unjudged, *why = (
        x for x in printed(changed(summary, slo=slo)).splitlines() if "time_to_first_token" in x
    )
    assert held.split() == ["✓", "held", "time_to_first_token", "p99", "23.45", "≤", "200", "ms"]
    assert missed.split() == ["✗", "missed", "time_to_first_token", "p99", "24.73", "≤", "20", "ms"]
    assert unjudged.split()[:5] == ["!", "not", "judged", "time_to_first_token", "p99"]
    assert why == [
        "  ✗ time_to_first_token p99: above the limit",
        "  ! time_to_first_token p99: p99 needs 100 values, there are 20",
    ]


def test_a_verdict_comes_with_its_reasons_and_remedies(summary: dict[str, Any]) -> None:
    reason = {
        "check": "schedule_lag",
        "severity": "invalid",
        "measured": 0.25,
        "limit": 0.05,
        "unit": "ratio",
        "text": "requests left late",
        "remedy": "more workers",
    }
    ours = changed(summary, verdict="invalid", cause="client-bound", reasons=[reason])
    text = printed(ours)
    assert "Verdict on the client: invalid: client-bound — do not use these numbers" in text
    assert "✗ requests left late" in text
    assert "schedule_lag: 25%, limit 5% → more workers" in text


def test_a_valid_verdict_is_one_line(summary: dict[str, Any]) -> None:
    text = printed(changed(summary, verdict="valid", cause="", reasons=[]))
    assert "Verdict on the client: valid\n" in text


def test_accounts_name_issued_and_unbalanced(summary: dict[str, Any]) -> None:
    accounts = {**summary["aiperf_svc"]["accounts"], "lost": 3, "violations": ["3 are missing"]}
    text = printed(changed(summary, accounts=accounts))
    assert "100 issued = 100 completed + 0 errored + 3 lost; 100 requests sent = 100 rec" in text
    assert "✗ 3 are missing" in text


def with_prompts(
    summary: dict[str, Any], *, issued: int, used: int, entries: int, distinct: int
) -> dict[str, Any]:
    accounts = summary["aiperf_svc"]["accounts"] | {"issued": issued}
    dataset = {**DATASET, "entries": entries, "distinct_entries": distinct}
    ours = changed(summary, accounts=accounts, topology={"dataset": dataset})
    return ours | {"distinct_prompt_count": {"unit": "count", "avg": used}}


def test_repeated_and_equal_prompts_are_named(summary: dict[str, Any]) -> None:
    again = with_prompts(summary, issued=5_000, used=1_000, entries=1_000, distinct=1_000)
    assert (
        "Prompts: 1,000 of the dataset's 1,000 entries (1,000 of them distinct), "
        "each sent 5 times on average" in printed(again)
    )
    alike = with_prompts(summary, issued=500, used=500, entries=1_000, distinct=3)
    assert "(3 of them distinct), each sent 1 times on average" in printed(alike)


def test_source_of_token_counts_is_printed(summary: dict[str, Any]) -> None:
    config = summary["aiperf_svc"]["config"]
    assert "Tokens: counted by the server (usage)" in printed(summary)
    named = config | {"tokenizer": {"name": "gpt2"}}
    text = printed(changed(summary, config=named))
    assert "Tokens: counted by the tokenizer gpt2" in text
    servers = named | {"endpoint": config["endpoint"] | {"use_server_token_count": True}}
    assert "Tokens: counted by the server" in printed(changed(summary, config=servers))


def test_missing_history_in_token_counts_is_printed(summary: dict[str, Any]) -> None:
    named = summary["aiperf_svc"]["config"] | {"tokenizer": {"name": "gpt2"}}

    def text(**dataset: Any) -> str:
        return printed(changed(summary, config=named, topology={"dataset": DATASET | dataset}))

    assert "by the tokenizer gpt2; --use-server" in text()
    assert "by the tokenizer gpt2, of later turns without their history; --use" in text(turns=300)
    # The requests of an agent trace contain their history.
    assert "by the tokenizer gpt2; --use-server" in text(turns=300, kind="weka_trace")


def test_early_connections_are_reported(summary: dict[str, Any]) -> None:
    counts = {"preconnected_request_count": {"unit": "requests", "avg": 10}}
    counts["connected_request_count"] = {"unit": "requests", "avg": 3}
    line = "Connections: 10 were opened in advance; latencies of first requests on these do not"
    assert line in printed(summary | counts)
    counts["preconnected_request_count"]["avg"] = 0
    assert "Connections:" not in printed(summary | counts)


def test_distinct_prompts_are_not_mentioned(summary: dict[str, Any]) -> None:
    once = with_prompts(summary, issued=500, used=500, entries=1_000, distinct=1_000)
    assert "Prompts:" not in printed(once)


@pytest.mark.parametrize("finding", ["refused", "accepted", "unknown"])
def test_requests_without_forced_length_are_named(summary: dict[str, Any], finding: str) -> None:
    probe = {"finding": finding, "said": "Extra inputs [red]are not permitted", "requests": 2}
    text = printed(
        changed(summary, topology={"dataset": {**DATASET, "forced_output_length": probe}})
    )
    line = (
        "Output length: before the load, the server refused ignore_eos and min_tokens "
        "(Extra inputs [red]are not permitted), so requests were sent without them"
    )
    assert (line in text) == (finding == "refused")
    assert "Probe: 2 requests before the load tested" in text


def test_reason_and_folder_come_last(tmp_path: Path) -> None:
    text = printed(None, state="failed", reason="worker-0 has no files left", artifacts=tmp_path)
    assert text.splitlines() == ["Failed: worker-0 has no files left", f"Artifacts: {tmp_path}/"]
    (tmp_path / "report.html").touch()
    assert printed(None, artifacts=tmp_path).splitlines() == [
        "nothing was measured",
        f"Artifacts: {tmp_path}/report.html",
    ]


def test_unwritten_files_are_an_error(summary: dict[str, Any]) -> None:
    text = printed(summary, artifact_error="cannot write x: No space left on device")
    assert text.splitlines()[-1] == "error: cannot write x: No space left on device"
    assert "Time to First Token" in text


def test_markup_in_a_message_is_only_text(summary: dict[str, Any]) -> None:
    error = {
        "error_details": {"code": 500, "type": "Status", "message": "[/red] [bold"},
        "count": 1,
    }
    assert "[/red] [bold" in printed({**summary, "error_summary": [error]}, reason="[/x]")


def test_requests_per_address_are_a_table(summary: dict[str, Any]) -> None:
    up = {"address": "10.0.0.1", "connections": 12, "requests": 3_400}
    down = {"address": "10.0.0.2", "connections": 0, "requests": 0}
    up |= {"failures": 0, "error": "", "is_down": False}
    down |= {"failures": 7, "error": "Connection refused", "is_down": True}
    text = printed(changed(summary, target_addresses=[up, down]), width=200)
    lines = [line.split() for line in text.splitlines()]
    assert ["10.0.0.1", "3,400", "12", "0"] in lines
    assert ["10.0.0.2", "0", "0", "7", "Connection", "refused"] in lines
    assert "10.0.0.2 was down at the end" in text
    assert "10.0.0.1" not in printed(changed(summary, target_addresses=[up]))


def test_each_tier_of_goodput_is_a_row(summary: dict[str, Any]) -> None:
    tier = {"name": "gold", "limits": {"time_to_first_token": "200ms"}, "good_request_count": 75}
    tiers = [{**tier, "attainment": 0.75, "goodput": 12.5}]
    shown = printed(changed(summary, goodput_tiers=tiers))
    line = next(x for x in shown.splitlines() if "gold" in x)
    assert line.split() == ["gold", "time_to_first_token", "200ms", "75", "75.00%", "12.50"]


def test_terminal_and_report_have_the_same_tables() -> None:
    turns = MAX_ROWS + 10
    found = inference_result(
        metrics={"request_throughput": MetricStats(unit="requests/sec", avg=8.0)},
        steady_state=SteadyStats(rule="the rule", begin_s=1.0, end_s=2.0, metrics={}),
        context_overflows=tuple(
            TurnOverflow(turn=n, requests=4, overflows=3) for n in range(turns)
        ),
    )
    text = on_console(print_tables, found.shown_tables)
    page = document("x", table_blocks(found.shown_tables)).decode()
    assert_is_balanced(page)
    for title in ("Steady state: 1.0 s to 2.0 s, the rule", "Context overflows by turn"):
        assert title in text
        assert f"<h2>{title}</h2>" in page
    assert ["Request", "Throughput", "–", "8", "requests/sec"] in map(str.split, text.splitlines())
    assert '<td><i>–</i></td><td>8</td><td class="text">requests/sec</td>' in page
    assert "no request was started in the steady state" in text
    assert "No request was started in the steady state." in page
    assert (text.count("75.0%"), page.count("<td>75.0%</td>")) == (MAX_ROWS, turns)
    assert "10 more in report.html" in text


def test_interrupted_experiment_shows_how_to_resume(tmp_path: Path) -> None:
    content: dict[str, Any] = {"schema_version": "experiment/1", "search": None, "trials": []}
    defaults: dict[str, Any] = {
        "state": "cancelled",
        "reason": "interrupted by the user",
        "artifacts": tmp_path,
    }
    text = printed(content, was_interrupted=True, **defaults)
    assert text.splitlines()[-1] == (
        f"to run the remaining trials: the same command with --resume {tmp_path}"
    )
    assert "--resume" not in printed(content, **defaults)


def test_measured_proxy_is_named(summary: dict[str, Any]) -> None:
    config = summary["aiperf_svc"]["config"]
    endpoint = {**config["endpoint"], "proxy": "http://proxy:3128"}
    shown = printed(changed(summary, config={**config, "endpoint": endpoint}))
    assert (
        "Proxy: requests went through http://proxy:3128; its time is part of the results" in shown
    )
    assert "Proxy:" not in printed(summary)
