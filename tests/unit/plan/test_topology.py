"""The number of processes for each load and place."""

from typing import Any

import pytest
from pydantic import ValidationError

from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.topology import Facts, Topology, plan
from aiperf_svc.protocol.services import Service
from tests.support.small_configs import small_config

LOCAL = Facts(where="local", cores=2, fd_limit=20_000)
CLUSTER = Facts(where="cluster")


def planned(facts: Facts, *, workers: dict[str, Any] | None = None, **load: Any) -> Topology:
    config = small_config(
        endpoint={"streaming": True}, load={"requests": 1_000_000} | load, workers=workers or {}
    )
    return plan(config, facts)


def test_cluster_plan_for_100000_users() -> None:
    topology = planned(CLUSTER, concurrency=100_000)
    assert (topology.workers, topology.record_processors) == (200, 50)
    assert topology.layout == "per-service"
    assert topology.raw_route == "direct"


LOADED = {"sizing": "load", "expected_requests": 3_000, "expected_chunks": 450_000}


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        # 3,000 / 5,000 + 450,000 / 50,000 = 9.6 cores, half of which stay idle.
        (LOADED, (20, 5)),
        (LOADED | {"reserve": 0.2}, (12, 3)),
        (LOADED | {"requests_per_core": 3_000, "chunks_per_core": 150_000}, (8, 2)),
        # 100,000 connections need seven workers, however slow the streams are.
        (LOADED | {"expected_requests": 1, "expected_chunks": 1}, (7, 2)),
        (LOADED | {"max": 10}, (10, 3)),
    ],
)
def test_workers_follow_the_expected_load(
    workers: dict[str, Any], expected: tuple[int, int]
) -> None:
    topology = planned(Facts(where="cluster"), workers=workers, concurrency=100_000)
    assert (topology.workers, topology.record_processors) == expected


def test_expected_load_does_not_size_a_local_run() -> None:
    facts = Facts(where="local", cores=4.0)
    assert planned(facts, workers=LOADED, concurrency=100) == planned(facts, concurrency=100)


@pytest.mark.parametrize(
    ("workers", "text"),
    [
        ({"sizing": "load"}, "{sizing} load needs {expected_chunks}"),
        ({"expected_chunks": 5}, "expected_chunks} need {sizing}: load"),
        ({"sizing": "load", "expected_chunks": 5}, "needs {workers.expected_requests}"),
    ],
)
def test_expected_load_and_sizing_need_each_other(workers: dict[str, Any], text: str) -> None:
    with pytest.raises(ValidationError, match=text):
        planned(Facts(where="cluster"), workers=workers, concurrency=10)


def test_local_single_services_share_a_process() -> None:
    topology = planned(LOCAL, concurrency=10)
    assert [g.name for g in topology.groups] == ["control", "record-processor", "worker"]
    assert topology.expected == dict.fromkeys(Service, 1)


@pytest.mark.parametrize(
    ("load", "workers"),
    [
        ({"concurrency": 1}, 1),
        ({"concurrency": 40_000}, 3),
        ({"request_rate": 4_000}, 1),
        ({"request_rate": 12_000}, 3),
        # A cap of 400 is not split below 250.
        ({"request_rate": 12_000, "concurrency": 400}, 1),
        ({"request_rate": 12_000, "concurrency": 600}, 2),
    ],
)
def test_workers_follow_the_load_locally(load: dict[str, Any], workers: int) -> None:
    assert planned(LOCAL, **load).workers == workers


def test_configured_worker_limits_are_kept() -> None:
    assert planned(LOCAL, workers={"min": 3}, concurrency=10).workers == 3
    assert planned(CLUSTER, workers={"max": 7}, concurrency=4_000).workers == 7


def test_users_beyond_file_descriptors_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"raise workers\.max to 6 "):
        planned(LOCAL, workers={"max": 2}, concurrency=100_000)


def test_prefill_limit_bounds_the_workers() -> None:
    assert planned(CLUSTER, concurrency=5_000, prefill_concurrency=1_000).workers == 4
    assert planned(CLUSTER, concurrency=5_000, prefill_concurrency=20).workers == 1
    assert planned(LOCAL, concurrency=9, prefill_concurrency=2, workers={"min": 2}).workers == 2
    with pytest.raises(ConfigError, match=r"workers\.min 3 is above load\.prefill_concurrency 2"):
        planned(LOCAL, concurrency=9, prefill_concurrency=2, workers={"min": 3})


def test_a_process_without_descriptors_to_spare_is_refused() -> None:
    with pytest.raises(ConfigError, match="ulimit -n"):
        planned(Facts(where="local", fd_limit=100), concurrency=1)


@pytest.mark.parametrize(("facts", "route"), [(LOCAL, "direct"), (CLUSTER, "proxy")])
def test_proxy_is_used_where_it_saves_ports(facts: Facts, route: str) -> None:
    assert planned(facts, concurrency=10).raw_route == route


@pytest.mark.parametrize("facts", [LOCAL, CLUSTER])
def test_users_without_a_request_have_no_worker(facts: Facts) -> None:
    assert planned(facts, concurrency=999_999, requests=10).workers == 1
    longer = {"requests": 2_000, "concurrency": 100_000}
    warmed = planned(CLUSTER, concurrency=100_000, requests=10, warmup=longer)
    assert warmed.workers == planned(CLUSTER, concurrency=2_000).workers > 1
    timed = {"duration": "5s"}
    assert planned(CLUSTER, concurrency=100_000, requests=10, warmup=timed).workers == 200
