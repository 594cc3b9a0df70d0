"""Statistics of a source's series, whatever type its page declares."""

import csv

from aiperf_svc.adapters.exports import server_metrics_parquet
from aiperf_svc.adapters.exports.server_metrics_export import render_csv, render_gpu_lines, unit_of
from aiperf_svc.adapters.exports.telemetry_export import render_openmetrics
from aiperf_svc.core.results.telemetry import with_telemetry
from aiperf_svc.core.telemetry.log import SourceLog
from aiperf_svc.core.telemetry.page import PageReader
from aiperf_svc.core.telemetry.statistics import families, statistics
from tests.support import fake_run
from tests.support.fake_sources import START_NS, at, source


def read(text: str) -> SourceLog:
    log, reader = SourceLog("http://server/metrics"), PageReader()
    for second in (0, 1):
        log.add(reader.read(text.replace("NOW", str(second))), wall_ns=at(second), latency_ns=1)
    return log


def test_buckets_without_a_bound_are_no_buckets() -> None:
    log = read("""# TYPE odd histogram
odd_bucket NOW
odd_bucket{le="many"} NOW
odd_bucket{le="nan"} NOW
odd_bucket{le="0.5"} NOW
odd_bucket{le="+Inf"} NOW
odd_count NOW
odd_sum 0
""")
    (histogram,) = [each for each in families(log) if each.type == "histogram"]
    assert set(histogram.numbers) == {"0.5", "+Inf", "count", "sum"}
    found = statistics(histogram, log, START_NS, at(1))
    assert found["buckets"] == {"0.5": 1.0, "+Inf": 1.0}


def test_same_named_counter_and_gauge_stay_separate() -> None:
    log = read("# TYPE jobs gauge\njobs 7\n# TYPE jobs_total counter\njobs_total NOW\n")
    found = {each.type: statistics(each, log, START_NS, at(1))["stats"] for each in families(log)}
    assert found["gauge"]["avg"] == 7  # type: ignore[index]
    assert found["counter"]["total"] == 1  # type: ignore[index]


def test_gpu_with_non_numeric_index_has_line() -> None:
    log = read('DCGM_FI_DEV_GPU_UTIL{gpu="first",UUID="GPU-a"} NOW\n')
    assert len(list(render_gpu_lines([log]))) == 2


def test_cache_usage_named_perc_is_a_ratio() -> None:
    assert unit_of("vllm:kv_cache_usage_perc") == unit_of("sglang:token_usage") == "ratio"
    assert unit_of("disk_used_perc") == "percent"


def test_source_label_of_a_page_is_kept() -> None:
    name = "vllm:prompt_tokens_by_source_total"
    log = read(f'{name}{{source="local_compute"}} NOW\n{name}{{source="local_cache_hit"}} 7\n')
    text = b"".join(render_openmetrics([log])).decode()
    for label in ("local_compute", "local_cache_hit"):
        assert f'{name}{{exported_source="{label}",source="{log.url}"}} ' in text


def test_missing_series_has_one_sample_without_value() -> None:
    pages = [{"up": n} | ({"late": 1} if 2 <= n < 4 else {}) for n in range(200)]
    lines = [line for line in render_openmetrics([source(pages)]) if line.startswith(b"late{")]
    values = [line.decode().rpartition("} ")[2].split() for line in lines]
    assert values == [[text, f"{at(s) // 10**9}.000"] for text, s in (("1.0", 2), ("NaN", 4))]


def test_counter_that_appears_under_load_begins_at_zero() -> None:
    name = 'vllm:num_preemptions_total{engine="0"}'
    log = source({"up": n} | ({name: 5.0 * n} if n > 1 else {}) for n in range(5))
    (counter,) = [each for each in families(log) if each.type == "counter"]
    rows = server_metrics_parquet._rows(log, counter, at(1), at(4), 1)
    assert rows.values["value"].tolist() == [10, 15, 20]
    assert statistics(counter, log, at(1), at(4))["stats"]["total"] == 20  # type: ignore[index]


def test_negative_statistics_stay_numbers_in_csv() -> None:
    log = read('# TYPE drift gauge\ndrift{host="=a"} -2.5\nup NOW\n')
    rows = fake_run.request(ttft_ms=1000)
    summary = with_telemetry(fake_run.results(rows), [log], SourceLog("aiperf-svc"))
    table = csv.DictReader(render_csv(summary).decode().splitlines())
    (drift,) = [row for row in table if row["Metric"] == "drift"]
    assert (drift["avg"], drift["min"], drift["Labels"]) == ("-2.5", "-2.5", "host==a")
