"""Claims, volumes and StatefulSets of ranks are known as the stack's by name and by claim."""

from typing import Any

import pytest

from aiperf_svc.adapters.cluster.api.objects import ObjectRef
from aiperf_svc.adapters.cluster.teardown.inventory import is_name_of
from aiperf_svc.adapters.cluster.teardown.leaks import is_own_volume


def ref(kind: str, name: str) -> ObjectRef:
    return ObjectRef(kind=kind, namespace="theirs", name=name, uid=name, path=f"/{name}")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("StatefulSet", "rank-bench"),
        ("StatefulSet", "rank-3-bench"),
        ("PersistentVolumeClaim", "volume-bench"),
        ("PersistentVolumeClaim", "volume-rank-bench-0"),
        ("PersistentVolumeClaim", "volume-rank-3-bench-0"),
    ],
)
def test_names_that_ranks_would_take_over_are_the_stack_s(kind: str, name: str) -> None:
    assert is_name_of(ref(kind, name), "bench")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("PersistentVolumeClaim", "volume-rank-bench-of-theirs"),
        ("PersistentVolumeClaim", "data-bench-0"),
        ("StatefulSet", "rank-x-bench"),
    ],
)
def test_an_owner_s_names_are_left_alone(kind: str, name: str) -> None:
    assert not is_name_of(ref(kind, name), "bench")


def volume(**claim: str) -> dict[str, Any]:
    return {"claimRef": claim, "persistentVolumeReclaimPolicy": "Delete"}


def is_left(spec: dict[str, Any]) -> bool:
    return is_own_volume(spec, stack="bench", namespace="ns", left={"uid-of-claim"})


def test_a_volume_is_the_stack_s_by_its_claim() -> None:
    assert is_left(volume(namespace="ns", name="volume-rank-bench-0"))
    assert is_left(volume(uid="uid-of-claim", namespace="ns", name="x"))
    assert not is_left(volume(namespace="elsewhere", name="volume-rank-bench-0"))
    assert not is_left(volume(namespace="ns", name="data-of-theirs"))


def test_a_volume_that_is_to_be_retained_is_not_left_over() -> None:
    spec = volume(namespace="ns", name="volume-rank-bench-0")
    assert not is_left(spec | {"persistentVolumeReclaimPolicy": "Retain"})
