"""Which GPUs of an exporter's page are those of the target's pods."""

from aiperf_svc.core.telemetry.gpu_users import used_by
from aiperf_svc.core.telemetry.page import PageReader


def gpu(number: int, pod: str, namespace: str = "serving") -> str:
    labels = f'gpu="{number}",pod="{pod}",namespace="{namespace}"'
    return f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} {number}\n"


PAGE = (
    gpu(0, "vllm-1") + gpu(1, "vllm-10") + gpu(2, "vllm-1", "other") + gpu(3, "target-bench-5d-x2")
)


def used(*names: str) -> list[float]:
    page = used_by(PageReader().read(PAGE), "serving", names)
    return [] if page is None else sorted(page.values.values())


def test_a_pod_is_known_by_its_whole_name_or_by_what_it_starts_with() -> None:
    assert used("vllm-1") == [0]
    assert used("vllm-1", "vllm-10") == [0, 1]
    assert used("target-bench-") == [3]
    assert used("target-bench") == []
    assert used("vllm-2") == []
