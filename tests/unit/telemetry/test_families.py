"""Portable quantities from the servers' own pages."""

import pytest

from aiperf_svc.core.telemetry.families import (
    AMD,
    DCGM,
    PORTABLE,
    SUPERSEDED,
    GpuExporter,
    Kind,
    family_type,
    gpu_field_of,
    is_blank,
    portables_of,
)
from aiperf_svc.core.telemetry.log import SourceLog
from aiperf_svc.core.telemetry.page import PageReader, Series
from aiperf_svc.core.telemetry.series import ServerLoad, gpus, members, server_load
from tests.support.fake_sources import DATA, at, recorded, source


def _portable(page: str) -> dict[str, float]:
    """Return the scalar portable values of a server's page, and the counts of its histograms."""
    log = recorded(page)
    found: dict[str, float] = {}
    for portable in PORTABLE:
        for _, number, series in members([log], portable):
            if portable.kind is not Kind.HISTOGRAM or series.name.endswith("_count"):
                value = log.last(number) * portable.scale
                found[portable.name] = found.get(portable.name, 0.0) + value
    return found


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        (
            "vllm",
            {
                "running": 32, "waiting": 7, "kv_usage": 0.8731, "preemptions": 3,
                "prefix_queries": 182044, "prefix_hits": 91008, "prompt_tokens": 182044,
                "generation_tokens": 40960, "time_to_first_token": 328,
                "inter_token_latency": 40632, "queue_time": 328, "external_prefix_hits": 0,
                "spec_steps": 9100, "spec_drafted": 27300, "spec_accepted": 19110,
            },
        ),
        (
            "vllm-0.10",
            {
                "running": 32, "waiting": 7, "kv_usage": 0.8731, "preemptions": 3,
                "prefix_queries": 182044, "prefix_hits": 91008, "prompt_tokens": 182044,
                "generation_tokens": 40960, "time_to_first_token": 328,
                "inter_token_latency": 40632, "queue_time": 328,
            },
        ),
        (
            "sglang",
            {
                "running": 24, "waiting": 5, "kv_usage": 0.41, "prefix_hit_rate": 0.125,
                "preemptions": 2, "prefix_queries": 812890, "prefix_hits": 101600,
                "prompt_tokens": 812890, "generation_tokens": 75757, "queue_time": 500,
                "time_to_first_token": 500, "inter_token_latency": 75257,
                "spec_steps": 31357, "spec_length_gauge": 2.4,
            },
        ),
        (
            "tgi",
            {
                "running": 16, "waiting": 3, "prompt_tokens": 281547,
                "generation_tokens": 62869, "queue_time": 512,
            },
        ),
        (
            "trtllm",
            {
                "running": 16, "waiting": 3, "kv_usage": 0.62, "prefix_hit_rate": 0.25,
                "prefix_queries": 51200, "prefix_hits": 12800, "prompt_tokens": 51200,
                "generation_tokens": 12800, "time_to_first_token": 100, "inter_token_latency": 100,
                "queue_time": 100, "spec_drafted": 12000, "spec_accepted": 8400,
                "spec_length_gauge": 3.1,
            },
        ),
        (
            "dynamo",
            {
                "running": 12, "kv_usage": 0.37, "prefix_hit_rate": 0.5, "prompt_tokens": 40960,
                "generation_tokens": 10240, "time_to_first_token": 80, "inter_token_latency": 1000,
            },
        ),
        (
            "llm-d",
            {
                "running": 21, "prompt_tokens": 12000, "generation_tokens": 3600,
                "time_to_first_token": 40, "inter_token_latency": 400,
            },
        ),
        ("triton", {"waiting": 4, "queue_seconds": 0.120345}),
        (
            "llamacpp",
            {
                "running": 4, "waiting": 4, "prefix_queries": 2453 + 18483,
                "prefix_hits": 18483, "prompt_tokens": 2453 + 18483,
                "generation_tokens": 11801, "spec_steps": 0, "spec_drafted": 0, "spec_accepted": 0,
            },
        ),
    ],
)  # fmt: skip
def test_portable_quantities_match_the_page_of_each_server(
    page: str, expected: dict[str, float]
) -> None:
    assert _portable(page) == pytest.approx(expected)


def test_routers_count_only_values_missing_on_servers() -> None:
    dynamo, vllm = recorded("dynamo"), recorded("vllm")
    assert server_load([dynamo]).running == 12
    assert server_load([dynamo, vllm]).running == 32


def test_shares_of_priorities_are_not_added_twice() -> None:
    name, labels = "sglang:num_running_reqs", (("priority", "1"), ("tp_rank", "0"))
    assert not portables_of(Series(name, labels))
    assert portables_of(Series(name, (("priority", ""), ("tp_rank", "0"))))


def test_data_parallel_ranks_count_as_separate_servers() -> None:
    log = SourceLog("http://sglang/metrics")
    text = "".join(
        f'sglang:num_running_reqs{{dp_rank="{dp}",tp_rank="{tp}"}} 3\n'
        for tp, dp in ((0, 0), (1, 0), (2, 1), (3, 1))
    )
    log.add(PageReader().read(text), wall_ns=at(0), latency_ns=1)
    assert server_load([log]).running == 6


def test_running_is_summed_and_kv_usage_maximal() -> None:
    logs = []
    for running, usage in ((2, 0.25), (3, 0.75)):
        log = SourceLog(f"http://replica-{running}/metrics")
        text = f"vllm:num_requests_running {running}\nvllm:kv_cache_usage_perc {usage}\n"
        log.add(PageReader().read(text), wall_ns=at(0), latency_ns=1)
        logs.append(log)
    assert server_load(logs) == ServerLoad(running=5, kv_usage=0.75)


def test_dead_server_is_not_in_the_current_load() -> None:
    name = "vllm:num_requests_running"
    dead = source(({name: 20} for _ in range(6)), url="http://replica-1/metrics")
    live = source(({name: 5} for _ in range(25)), url="http://replica-2/metrics")
    assert server_load([dead, live]).running == 5


def test_names_are_the_same_with_and_without_total() -> None:
    for name in ("vllm:prompt_tokens", "vllm:num_preemptions", "sglang:generation_tokens"):
        with_total = portables_of(Series(f"{name}_total"))
        assert with_total
        assert portables_of(Series(name)) is with_total


def test_newer_and_older_names_have_one_meaning() -> None:
    for old, new in SUPERSEDED.items():
        known = [(*each.families, *each.of_routers) for each in PORTABLE]
        pairs = [(old in families, new in families) for families in known]
        assert (True, True) in pairs
        assert {is_old == is_new for is_old, is_new in pairs} == {True}


@pytest.mark.parametrize(("page", "exporter"), [("dcgm", DCGM), ("amd", AMD)])
def test_all_gpu_fields_of_the_exporter_are_known(page: str, exporter: GpuExporter) -> None:
    series = PageReader().read((DATA / f"{page}.txt").read_text()).values
    found = {field.name for each in series if (field := gpu_field_of(each)) is not None}
    assert found == {field.name for field in exporter.fields}


def test_gpus_of_amd_have_the_units_of_all() -> None:
    log = recorded("amd")
    one, two = gpus([log])
    assert (one.uuid, one.index, one.name) == ("692549000", "0", "692549000 on node-m")
    values = {name: log.last(each[-1]) * field.scale for name, (field, each) in two.fields.items()}
    assert values["gpu_power_usage"] == 598
    assert values["energy_consumption"] == pytest.approx(4.0)
    assert values["gpu_memory_used"] == pytest.approx(156.24, rel=1e-3)


def test_page_of_nvml_has_the_units_of_dcgm() -> None:
    log = recorded("nvml")
    (gpu,) = gpus([log])
    assert (gpu.index, gpu.labels["modelName"]) == ("0", "NVIDIA H200")
    values = {name: log.last(each[-1]) * field.scale for name, (field, each) in gpu.fields.items()}
    assert (values["gpu_power_usage"], values["gpu_power_limit"]) == (187.609, 700)
    assert values["energy_consumption"] == pytest.approx(0.008308906)
    in_use = values["gpu_memory_used"], values["gpu_memory_free"]
    assert in_use == pytest.approx((39.442, 110.668), abs=1e-3)
    assert (values["sm_clock_frequency"], values["gpu_temperature"]) == (1980, 41)


def test_blank_values_are_those_of_the_exporter() -> None:
    assert is_blank(Series("gpu_package_power"), 65_535)
    assert not is_blank(Series("DCGM_FI_DEV_FB_USED"), 65_535)


def test_the_parts_of_a_histogram_have_its_type() -> None:
    types = {"a": "histogram", "b": "counter"}
    assert family_type(Series("a_bucket", (("le", "1"),)), types) == ("a", "histogram")
    assert family_type(Series("b_total"), types) == ("b_total", "counter")
    assert family_type(Series("c_sum"), types) == ("c_sum", "unknown")
