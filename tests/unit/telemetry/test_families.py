"""Portable quantities of the servers' own pages."""

from pathlib import Path

import pytest

from aiperf_svc.core.telemetry.families import (
    GPU_FIELDS,
    PORTABLE,
    family_type,
    gpu_field_of,
    portable_of,
)
from aiperf_svc.core.telemetry.page import PageReader, Series

DATA = Path(__file__).parents[2] / "data/telemetry"


def _portable(server: str) -> dict[str, float]:
    """Scalar portable values of a server's page, and the counts of its histograms."""
    found: dict[str, float] = {}
    for series, value in PageReader().read((DATA / f"{server}.txt").read_text()).values.items():
        portable = portable_of(series)
        if portable is not None and not series.name.endswith(("_bucket", "_sum")):
            found[portable.name] = found.get(portable.name, 0.0) + value * portable.scale
        elif portable is not None and portable.kind == "counter":
            found[portable.name] = found.get(portable.name, 0.0) + value
    return found


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (
            "vllm",
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
                "prompt_tokens": 8128902, "generation_tokens": 7557572,
                "time_to_first_token": 5000, "inter_token_latency": 7400400,
            },
        ),
        (
            "tgi",
            {
                "running": 16, "waiting": 3, "prompt_tokens": 280000,
                "generation_tokens": 64100, "queue_time": 512,
            },
        ),
        ("triton", {"waiting": 4, "queue_seconds": 0.120345}),
        (
            "llamacpp",
            {
                "running": 4, "waiting": 1, "kv_usage": 0.33, "prompt_tokens": 5120,
                "generation_tokens": 2048,
            },
        ),
    ],
)  # fmt: skip
def test_the_portable_quantities_of_a_server_are_those_of_its_page(
    server: str, expected: dict[str, float]
) -> None:
    assert _portable(server) == pytest.approx(expected)


def test_names_are_the_same_with_and_without_total() -> None:
    for name in ("vllm:prompt_tokens", "vllm:num_preemptions", "sglang:generation_tokens"):
        with_total = portable_of(Series(f"{name}_total"))
        assert with_total is not None
        assert portable_of(Series(name)) is with_total


def test_no_family_has_two_meanings() -> None:
    families = [family for portable in PORTABLE for family in portable.families]
    assert len(families) == len(set(families))


def test_every_gpu_field_that_the_exporter_has_is_known() -> None:
    page = PageReader().read((DATA / "dcgm.txt").read_text())
    found = {field.name for series in page.values if (field := gpu_field_of(series)) is not None}
    assert found == {field.name for field in GPU_FIELDS}


def test_the_parts_of_a_histogram_have_its_type() -> None:
    types = {"a": "histogram", "b": "counter"}
    assert family_type(Series("a_bucket", (("le", "1"),)), types) == ("a", "histogram")
    assert family_type(Series("b_total"), types) == ("b_total", "counter")
    assert family_type(Series("c_sum"), types) == ("c_sum", "unknown")
