"""How many of what, for which load at which place."""

from typing import Any

import pytest

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.topology import Facts, Topology, plan
from aiperf_svc.protocol.services import Service

LOCAL = Facts(where="local", cores=2, fd_limit=20_000)
CLUSTER = Facts(where="cluster")


def planned(facts: Facts, *, workers: dict[str, Any] | None = None, **load: Any) -> Topology:
    config = BenchmarkConfig.model_validate(
        {
            "endpoint": {"url": "http://x", "model": "m", "streaming": True},
            "load": {"requests": 1_000_000} | load,
            "workers": workers or {},
        }
    )
    return plan(config, facts)


def test_a_hundred_thousand_users_are_200_workers_and_50_processors_on_a_cluster() -> None:
    topology = planned(CLUSTER, concurrency=100_000)
    assert (topology.workers, topology.record_processors) == (200, 50)
    assert topology.layout == "per-service"
    assert topology.raw_route == "direct"


def test_locally_the_five_single_services_share_a_process() -> None:
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
        # A cap of 400 is split no smaller than 250.
        ({"request_rate": 12_000, "concurrency": 400}, 1),
        ({"request_rate": 12_000, "concurrency": 600}, 2),
    ],
)
def test_workers_follow_the_load_locally(load: dict[str, Any], workers: int) -> None:
    assert planned(LOCAL, **load).workers == workers


def test_a_user_may_ask_for_more_and_for_fewer() -> None:
    assert planned(LOCAL, workers={"min": 3}, concurrency=10).workers == 3
    assert planned(CLUSTER, workers={"max": 7}, concurrency=4_000).workers == 7


def test_users_beyond_the_file_descriptors_are_refused_with_the_number_that_would_do() -> None:
    with pytest.raises(ConfigError, match=r"raise workers\.max to 6 "):
        planned(LOCAL, workers={"max": 2}, concurrency=100_000)


def test_slots_of_a_limit_on_prefill_are_not_spread_over_many_workers() -> None:
    assert planned(CLUSTER, concurrency=5_000, prefill_concurrency=1_000).workers == 4
    assert planned(CLUSTER, concurrency=5_000, prefill_concurrency=20).workers == 1
    assert planned(LOCAL, concurrency=9, prefill_concurrency=2, workers={"min": 2}).workers == 2
    with pytest.raises(ConfigError, match=r"workers\.min 3 is above load\.prefill_concurrency 2"):
        planned(LOCAL, concurrency=9, prefill_concurrency=2, workers={"min": 3})


def test_a_process_without_descriptors_to_spare_is_refused() -> None:
    with pytest.raises(ConfigError, match="ulimit -n"):
        planned(Facts(where="local", fd_limit=100), concurrency=1)


@pytest.mark.parametrize(("facts", "route"), [(LOCAL, "direct"), (CLUSTER, "proxy")])
def test_few_records_pass_a_proxy_only_where_it_saves_a_port(facts: Facts, route: str) -> None:
    assert planned(facts, concurrency=10).raw_route == route


@pytest.mark.parametrize("facts", [LOCAL, CLUSTER])
def test_users_without_a_request_have_no_worker(facts: Facts) -> None:
    assert planned(facts, concurrency=999_999, requests=10).workers == 1
    longer = {"requests": 2_000, "concurrency": 100_000}
    warmed = planned(CLUSTER, concurrency=100_000, requests=10, warmup=longer)
    assert warmed.workers == planned(CLUSTER, concurrency=2_000).workers > 1
    timed = {"duration": "5s"}
    assert planned(CLUSTER, concurrency=100_000, requests=10, warmup=timed).workers == 200
