"""Which versions of Kubernetes can run indexes of Jobs."""

import pytest

from aiperf_svc.adapters.cluster.preflight.checklist import judge_jobs


@pytest.mark.parametrize(
    ("version", "state"),
    [
        ("v1.28.9", "failed"),
        ("v1.29.0-eks-1", "ok"),
        ("v1.34.4", "ok"),
        ("2.0", "ok"),
        ("dev", "not checked"),
    ],
)
def test_old_versions_are_refused_before_anything_is_made(version: str, state: str) -> None:
    found = judge_jobs(version)
    assert found.state == state
    assert version in found.detail or state == "ok"
