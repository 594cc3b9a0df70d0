"""Recomputes the results of a finished run from its records and lines according to docs/metrics.md,
independently of the code under test. Also reads its CSV and report."""

import csv
import json
import math
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
from arro3.io import read_parquet

QUANTILES = {
    "p1": 1, "p5": 5, "p10": 10, "p25": 25, "p50": 50, "p75": 75, "p90": 90, "p95": 95, "p99": 99,
    "p99_9": 99.9,
}  # fmt: skip
COMPLETED, ERRORED, CANCELLED, UNSENT, ABANDONED = 0, 1, 2, 3, 5
TIMEOUT = 6
CONTEXT_OVERFLOW = 19
REUSED, STREAMED, UNSTAMPED, CAPPED, ABANDONS = 2, 64, 16, 128, 256
OURS = {
    "intended_request_latency", "intended_time_to_first_token", "schedule_lag", "receive_lag",
    "stamp_uncertainty", "content_chunk_count", "network_rtt", "network_smoothed_rtt",
    "network_connect",
}  # fmt: skip
"""Distributions whose percentiles are null when there are too few values."""
SENT_METRICS = {"schedule_lag", "receive_lag", "stamp_uncertainty"}
CENSORED = {"intended_request_latency", "intended_time_to_first_token"}
WITHOUT_RECORDS = {
    # Connection metrics, which are not in the records.
    "network_rtt", "network_smoothed_rtt", "network_connect",
    # Metrics pooled from the chunks in the lines.
    "inter_chunk_latency",
}  # fmt: skip

Row = dict[str, Any]
Values = dict[str, float]


def profiling_rows(folder: Path) -> list[Row]:
    """Return the records of the profiling phase."""
    table = read_parquet(folder / "records.parquet").read_all()
    columns = {name: table.column(name).to_numpy().tolist() for name in table.column_names}
    rows = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    return [row for row in rows if row["phase"] == 1]


def values_of(row: Row) -> Values:
    """Return every metric of one request that follows from its times and tokens. Cached per row."""
    if "values" not in row:
        row["values"] = _values_of(row)
    values: Values = row["values"]
    return values


def _values_of(row: Row) -> Values:
    def ms(begin: str, end: str) -> float | None:
        return (row[end] - row[begin]) / 1e6 if row[begin] and row[end] else None

    def known(name: str) -> float | None:
        return None if row[name] < 0 else float(row[name])

    is_streamed = bool(row["flags"] & STREAMED)
    last = "last_token_wall_ns" if row["last_token_wall_ns"] else "end_wall_ns"
    latency = ms("start_wall_ns", last)
    ttft = ms("start_wall_ns", "first_token_wall_ns") if is_streamed else None
    inputs, outputs = known("input_tokens"), known("output_tokens")
    thought, hidden = max(0, row["reasoning_tokens"]), row["hidden_tokens"]
    shown = None if outputs is None else outputs - hidden
    requested = float(row["requested_tokens"]) if row["requested_tokens"] > 0 else None
    prompt, completion = known("usage_prompt_tokens"), known("usage_completion_tokens")
    decode = None if latency is None or ttft is None else latency - ttft
    first = row["first_output_wall_ns" if hidden else "first_token_wall_ns"]
    itl = None
    if decode is not None and shown is not None and shown >= 2:
        itl = (row[last] - first) / 1e6 / (shown - 1)
    connecting = (row["connect_ns"] + row["tls_ns"]) / 1e6
    total = ms("start_wall_ns", "end_wall_ns")
    sending = ms("start_wall_ns", "sent_wall_ns")
    waited = ms("sent_wall_ns", "ack_wall_ns")
    uncertain = "ttft_uncertainty_ns" if is_streamed else "last_uncertainty_ns"

    def off(counted: float | None, stated: float | None) -> float | None:
        if not counted or stated is None:
            return None
        return abs(counted - stated) / counted * 100

    found = {
        "request_latency": latency,
        "time_to_first_token": ttft,
        "time_to_second_token": ms("first_token_wall_ns", "second_token_wall_ns")
        if is_streamed
        else None,
        "time_to_first_output_token": ms("start_wall_ns", "first_output_wall_ns")
        if is_streamed
        else None,
        "inter_token_latency": itl,
        "decode_duration": decode,
        "credit_to_start_latency": ms("due_wall_ns", "start_wall_ns"),
        "effective_latency": ms("due_wall_ns", last),
        "intended_request_latency": ms("due_wall_ns", last),
        "intended_time_to_first_token": ms("due_wall_ns", "first_token_wall_ns")
        if is_streamed
        else None,
        "output_token_throughput_per_user": 1e3 / itl if itl else None,
        "e2e_output_token_throughput": shown * 1e3 / latency
        if shown is not None and latency
        else None,
        "prefill_throughput_per_user": inputs * 1e3 / ttft if inputs is not None and ttft else None,
        "output_sequence_length": outputs,
        "output_token_count": None
        if outputs is None or row["reasoning_tokens"] < -1
        else max(0, outputs - thought),
        "reasoning_token_count": float(thought) if thought else None,
        "hidden_token_count": float(hidden) if hidden else None,
        "input_sequence_length": inputs,
        "usage_prompt_tokens": prompt,
        "usage_completion_tokens": completion,
        "usage_total_tokens": None if prompt is None or completion is None else prompt + completion,
        "usage_prompt_tokens_diff_pct": off(inputs, prompt),
        "usage_completion_tokens_diff_pct": off(outputs, completion),
        "requested_osl": requested,
        "osl_mismatch_diff_pct": None
        if requested is None or outputs is None
        else (outputs - requested) / requested * 100,
        "schedule_lag": ms("due_wall_ns", "start_wall_ns"),
        "receive_lag": row["receive_lag_ns"] / 1e6,
        "stamp_uncertainty": row[uncertain] / 1e6,
        "http_req_connecting": connecting,
        "http_req_connection_overhead": connecting,
        "http_req_connection_reused": float(bool(row["flags"] & REUSED)),
        "http_req_sending": None if sending is None else sending - connecting,
        "http_req_waiting": None if waited is None else max(0.0, waited),
        "http_req_receiving": ms("ack_wall_ns", "end_wall_ns"),
        "http_req_duration": None if total is None else total - connecting,
        "http_req_total": total,
        "http_req_data_sent": row["bytes_out"] / 1024,
        "http_req_data_received": row["bytes_in"] / 1024,
        "http_req_chunks_received": float(row["reads"]),
        "content_chunk_count": float(row["chunks"]) if is_streamed else None,
    }
    return {tag: value for tag, value in found.items() if value is not None}


def distributions(rows: list[Row], *, unsent: int = 0) -> dict[str, dict[str, Any]]:
    """Return every distribution by its population. `unsent` due requests have no record."""
    found: dict[str, list[float]] = {}
    bounds: dict[str, list[float]] = {}
    for row in rows:
        is_patient = not row["flags"] & ABANDONS
        values = values_of(row)
        for tag, value in values.items():
            is_in = row["outcome"] == COMPLETED and is_patient
            if tag in SENT_METRICS:
                is_in = bool(row["start_wall_ns"])
            elif tag == "intended_time_to_first_token":
                is_in |= is_patient and _is_cut(row)
            if is_in:
                found.setdefault(tag, []).append(value)
        if is_patient and _is_cut(row):
            waited = max(0.0, (row["end_wall_ns"] - row["due_wall_ns"]) / 1e6)
            bounds.setdefault("intended_request_latency", []).append(waited)
            if row["flags"] & STREAMED and "intended_time_to_first_token" not in values:
                bounds.setdefault("intended_time_to_first_token", []).append(waited)
    for tag in CENSORED & {*found, *bounds}:
        bounds[tag] = bounds.get(tag, []) + [0.0] * unsent
    return {
        tag: described(np.sort(found.get(tag, [])), bounds.get(tag, []), is_ours=tag in OURS)
        for tag in {**found, **bounds}
    }


def _is_cut(row: Row) -> bool:
    return row["outcome"] in (CANCELLED, UNSENT) or row["error"] == TIMEOUT


def described(ordered: Any, bounds: list[float], *, is_ours: bool) -> dict[str, Any]:
    """Return the statistics of values. Each value in `bounds` is only a lower bound."""
    total = len(ordered) + len(bounds)
    everything = np.concatenate((ordered, np.full(len(bounds), np.inf)))
    stats: dict[str, Any] = {"count": len(ordered)}
    if len(ordered) and not bounds:
        stats |= {
            "avg": float(np.mean(ordered)), "max": float(ordered[-1]),
            "std": float(np.std(ordered)), "sum": math.fsum(ordered),
        }  # fmt: skip
    if len(ordered):
        stats["min"] = float(ordered[0])
    shares: dict[str, float] = {}
    for name, percent in QUANTILES.items():
        is_thin = round(total * min(percent, 100 - percent) / 100, 9) < 1
        if is_thin and is_ours:
            continue
        place = (total - 1) * percent / 100
        if math.isfinite(everything[math.ceil(round(place, 9))]):
            shares[name] = place / max(1, len(ordered) - 1) * 100
    if shares:
        found = np.percentile(ordered, [*shares.values()]).tolist()
        stats |= zip(shares, found, strict=True)
    return stats


def single_numbers(rows: list[Row], seconds: float) -> dict[str, float]:
    """Return the single-number metrics of records for a load of this duration."""

    def added(name: str) -> float | None:
        some = [values_of(row)[name] for row in done if name in values_of(row)]
        return math.fsum(some) if some else None

    done = [row for row in rows if row["outcome"] == COMPLETED]
    failed = [row for row in rows if row["outcome"] == ERRORED]
    sent = [row for row in rows if row["start_wall_ns"]]
    both = len(done) + len(failed)
    tokens = {
        "total_isl": added("input_sequence_length"),
        "total_osl": added("output_sequence_length"),
        "total_output_tokens": added("output_token_count"),
        "total_reasoning_tokens": added("reasoning_token_count"),
        "total_usage_prompt_tokens": added("usage_prompt_tokens"),
        "total_usage_completion_tokens": added("usage_completion_tokens"),
        "total_usage_total_tokens": added("usage_total_tokens"),
    }
    inputs, outputs = tokens["total_isl"], tokens["total_osl"]
    found = {tag: value for tag, value in tokens.items() if value is not None} | {
        "request_count": len(done),
        "error_request_count": len(failed),
        "completed_request_count": both,
        "request_throughput": len(done) / seconds,
        "cancelled_request_count": sum(row["outcome"] == CANCELLED for row in rows),
        "context_overflow_count": sum(row["error"] == CONTEXT_OVERFLOW for row in rows),
        "timed_out_request_count": sum(row["error"] == TIMEOUT for row in rows),
        "capped_request_count": sum(bool(row["flags"] & CAPPED) for row in rows),
        "connected_request_count": sum(bool(row["connect_ns"] + row["tls_ns"]) for row in sent),
        "preconnected_request_count": sum(
            not row["flags"] & REUSED and not row["connect_ns"] + row["tls_ns"] for row in sent
        ),
        "unstamped_request_share": 100
        * sum(bool(row["flags"] & UNSTAMPED) for row in rows)
        / len(rows),
        "distinct_prompt_count": len({row["entry"] for row in sent}),
    }
    if both:
        found["request_error_rate"] = 100 * len(failed) / both
    if sent:
        prompts = {(row["entry"], row["turn"]) for row in sent}
        found["requests_per_prompt"] = both / len(prompts)
    if any(row["flags"] & ABANDONS for row in rows):
        found["abandoned_request_count"] = sum(row["outcome"] == ABANDONED for row in rows)
    if inputs is not None:
        found["input_token_throughput"] = inputs / seconds
    if outputs is not None:
        found["output_token_throughput"] = outputs / seconds
    if inputs is not None and outputs is not None:
        found["total_token_throughput"] = (inputs + outputs) / seconds
    pairs = [values_of(row) for row in done]
    with_lengths = [
        each for each in pairs if {"requested_osl", "output_sequence_length"} <= each.keys()
    ]
    if with_lengths:
        found["osl_mismatch_count"] = sum(
            abs(each["output_sequence_length"] - each["requested_osl"])
            > min(0.05 * each["requested_osl"], 50)
            for each in with_lengths
        )
    if "total_usage_prompt_tokens" in found or "total_usage_completion_tokens" in found:
        found["usage_discrepancy_count"] = sum(
            each.get("usage_prompt_tokens_diff_pct", 0) > 10
            or each.get("usage_completion_tokens_diff_pct", 0) > 10
            for each in pairs
        )
    return found


def in_flight(rows: list[Row], begin_ns: int, stop_ns: int) -> dict[str, float]:
    """Return the mean and the maximum of the requests in flight between two times."""
    sent = [row for row in rows if row["start_wall_ns"]]
    edges = sorted(
        edge
        for row in sent
        for edge in ((row["start_wall_ns"], 1), (row["end_wall_ns"], -1))
        if edge[0] < stop_ns
    )
    area = sum(
        max(0, min(row["end_wall_ns"], stop_ns) - max(row["start_wall_ns"], begin_ns))
        for row in sent
    )
    most = level = 0
    for _, step in edges:
        level += step
        most = max(most, level)
    return {"avg": area / (stop_ns - begin_ns), "max": most}


def scenario_series(rows: list[Row], *, is_scheduled: bool) -> dict[str, list[float]]:
    """Return the sorted latency, TTFT and TPOT of every request in ns, infinite without a response.
    A scheduled scenario measures from the due time."""
    found: dict[str, list[float]] = {"latency": [], "ttft": [], "tpot": []}
    for row in rows:
        begin = row["due_wall_ns" if is_scheduled else "start_wall_ns"]
        if row["outcome"] != COMPLETED:
            for values in found.values():
                values.append(math.inf)
            continue
        latency = (row["last_token_wall_ns"] or row["end_wall_ns"]) - begin
        found["latency"].append(latency)
        if row["first_token_wall_ns"]:
            ttft = row["first_token_wall_ns"] - begin
            found["ttft"].append(ttft)
            streamed = row["output_tokens"] - row["hidden_tokens"]
            if streamed > 1:
                found["tpot"].append((latency - ttft) / (streamed - 1))
    return {name: sorted(values) for name, values in found.items()}


def early_stopping_estimate(ordered: list[float], share: float) -> float | None:
    """Return the value that all but `t` values are below. `t` is the greatest number that proves
    the percentile with 99% confidence: the chance of at most `t` values beyond it is below 1% by
    the sum of the binomial distribution."""
    count, most, chance = len(ordered), 0, share ** len(ordered)
    for beyond in range(1, count):
        chance += math.comb(count, beyond) * (1 - share) ** beyond * share ** (count - beyond)
        if chance >= 0.01:
            break
        most = beyond
    return ordered[count - most] if most else None


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Return the lines of profile_export.jsonl."""
    return [json.loads(line) for line in (folder / "profile_export.jsonl").read_text().splitlines()]


def csv_blocks(folder: Path) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Return the two tables of profile_export_aiperf.csv by header."""
    text = (folder / "profile_export_aiperf.csv").read_text()
    first, second = text.split("\n\n")
    head, *rows = csv.reader(first.splitlines())
    wide = {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in rows}
    _, *singles = csv.reader(second.splitlines())
    return wide, dict(singles)


class Cells(HTMLParser):
    """Collects the cell texts of every row of every table in a page."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self._is_in = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
            self._is_in = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._is_in = False

    def handle_data(self, data: str) -> None:
        if self._is_in:
            self.rows[-1][-1] += data


def page_rows(folder: Path) -> dict[str, list[list[str]]]:
    """Return the rows of all tables of the report by the text of the first cell. A row of four
    cells holds two pairs of name and number."""
    cells = Cells()
    cells.feed((folder / "report.html").read_text())
    found: dict[str, list[list[str]]] = {}
    for row in cells.rows:
        for part in (row[:2], row[2:]) if len(row) == 4 else (row,):
            if part:
                name, *values = (unescape(cell).strip() for cell in part)
                found.setdefault(name, []).append(values)
    return found


def shown_as(value: float | None, text: str) -> bool:
    """Return whether `text` shows the number as the terminal does: with at least four correct
    digits, or with four decimals below 1."""
    text = text.rstrip("*")
    if value is None:
        return text == "–" or text.startswith(">")
    if text.startswith("<"):
        return abs(value) < float(text[1:])
    found = float(re.sub(r"[,\s]", "", text))
    return math.isclose(found, value, rel_tol=5.1e-4, abs_tol=5.1e-5 if abs(value) < 1 else 0)
