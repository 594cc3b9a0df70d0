"""The GPUs of an exporter's page that the target's pods use."""

from aiperf_svc.core.telemetry.gpu_users import used_by
from aiperf_svc.core.telemetry.page import PageReader


def gpu(number: int, pod: str, namespace: str = "serving") -> str:
    labels = f'gpu="{number}",pod="{pod}",namespace="{namespace}"'
    return f"DCGM_FI_DEV_GPU_UTIL{{{labels}}} {number}\n"


def used(page: str, *users: str) -> list[float]:
    found = used_by(PageReader().read(page), "serving", users)
    return [] if found is None else sorted(found.values.values())


def test_pod_is_identified_by_its_full_name() -> None:
    page = gpu(0, "vllm-1") + gpu(1, "vllm-10") + gpu(2, "vllm-1", "other")
    assert used(page, "vllm-1") == [0]
    assert used(page, "vllm-1", "vllm-10") == [0, 1]
    assert used(page, "vllm") == []


def test_pods_of_a_deployment_match_generated_names() -> None:
    ours = gpu(0, "target-bench-6d4cf56db6-x7k2q") + gpu(1, "target-bench-7c9d-bbbbb")
    others = (
        gpu(2, "target-bench-2-6d4cf56db6-x7k2q")  # from a stack `bench-2` in the same namespace
        + gpu(3, "target-bench-6d4cf56db6-x7k2q", "other")
        + gpu(4, "target-bench")
        + gpu(5, "target-bench-0")
        + gpu(6, "target-bench-6d4cf56db6-x7k2q-x7k2q")
        + gpu(7, "target-bench-import-x7k2q")
        + gpu(8, "target-bench-6d4cf56db6x7k2q")
        + gpu(9, "target-benchmark-6d4cf56db6-x7k2q")
    )
    assert used(ours + others, "deployment/target-bench") == [0, 1]
    assert used(others, "deployment/target-bench-2") == [2]


def test_truncated_pod_name_matches_its_deployment() -> None:
    deployment = f"target-{'b' * 40}"
    pod = f"{deployment}-6d4cf56db6x7k2q"
    assert len(pod) == 63
    assert used(gpu(0, pod), f"deployment/{deployment}") == [0]
