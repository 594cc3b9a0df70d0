"""The plan of a phase from the config and the dataset."""

import msgspec
import numpy as np
import pytest

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.load.phase_plan import PhasePlan, credits_for, plan_phase, turns_of
from aiperf_svc.domain.outcomes import Phase
from aiperf_svc.protocol.messages.dataset import DatasetShape
from tests.support.small_configs import small_config

S = 10**9


def config(**load: object) -> BenchmarkConfig:
    return small_config("http://127.0.0.1:1", load=load, random_seed=7)


def shape(*turns: int, warmup_entries: int = 0) -> DatasetShape:
    packed = np.array(turns, dtype="<u2").tobytes()
    return DatasetShape("run", "dataset-manager", 1, len(turns), warmup_entries, packed)


def test_users_without_a_conversation_keep_their_ramp_places() -> None:
    load = {"concurrency": 999_999, "requests": 10}
    for ramp, users in (("0s", 10), ("5s", 999_999)):
        plan = plan_phase(Phase.PROFILING, config(**load, ramp=ramp), shape())
        assert plan is not None
        assert plan.concurrency == users


@pytest.mark.parametrize(
    ("requests", "credits", "last_turns"), [(2, 1, 2), (5, 2, 2), (10, 3, 0), (11, 4, 1)]
)
def test_requests_before_the_start_inside_are_not_counted(
    requests: int, credits: int, last_turns: int
) -> None:
    remain = np.array([3, 2], dtype="<u2").tobytes()
    dataset = msgspec.structs.replace(shape(5, 5, 5), first_turns=remain)
    plan = plan_phase(Phase.PROFILING, config(concurrency=2, requests=requests), dataset)
    assert plan is not None
    assert (plan.credits, plan.last_turns) == (credits, last_turns)


def test_warmup_has_its_own_limits_and_no_ramp() -> None:
    load = config(
        concurrency=8,
        duration="30s",
        grace_period="4s",
        ramp="2s",
        warmup={"requests": 5, "grace_period": "1s"},
    )
    assert plan_phase(Phase.WARMUP, load, shape()) == PhasePlan(
        phase=Phase.WARMUP, credits=5, concurrency=5, random_seed=7, grace_ns=S, is_target_near=True
    )
    assert plan_phase(Phase.PROFILING, load, shape()) == PhasePlan(
        phase=Phase.PROFILING,
        credits=None,
        concurrency=8,
        random_seed=7,
        duration_ns=30 * S,
        grace_ns=4 * S,
        ramp_ns=2 * S,
        is_target_near=True,
    )


def test_unbounded_grace_period_is_the_request_timeout() -> None:
    load = config(concurrency=1, duration="3s", grace_period="inf", warmup={"duration": "1s"})
    load = load.model_copy(
        update={"endpoint": load.endpoint.model_copy(update={"request_timeout": 20 * S})}
    )
    plan, warmup = (plan_phase(phase, load, shape()) for phase in (Phase.PROFILING, Phase.WARMUP))
    assert plan is not None
    assert plan.grace_ns == 20 * S + load.endpoint.connect_timeout + S
    assert warmup is not None
    assert warmup.grace_ns == 30 * S


def test_warmup_plan_needs_a_configured_warmup() -> None:
    assert plan_phase(Phase.WARMUP, config(concurrency=1, requests=1), shape()) is None


def test_a_rate_makes_an_open_loop() -> None:
    plan = plan_phase(Phase.PROFILING, config(request_rate=50, requests=10), shape())
    assert plan is not None
    assert (plan.is_open_loop, plan.request_rate, plan.concurrency) == (True, 50, 0)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        ({}, (3, 0)),
        ({"requests": 2}, (2, 1)),
        ({"requests": 99}, (3, 0)),
        ({"duration": "1s"}, (3, 0)),
    ],
)
def test_a_replay_runs_each_row_once_at_most(
    load: dict[str, object], expected: tuple[int, int]
) -> None:
    due = np.array([0, 5, 9], dtype="<i8").tobytes()
    dataset = DatasetShape("r", "d", 1, 3, 0, np.array([1, 2, 1], dtype="<u2").tobytes(), due)
    made = small_config(
        load={"fixed_schedule": True, "warmup": {"requests": 2}} | load,
        dataset={"kind": "mooncake_trace", "file": "f"},
    )
    plan, warmup = (
        plan_phase(Phase.PROFILING, made, dataset),
        plan_phase(Phase.WARMUP, made, dataset),
    )
    assert plan is not None
    assert warmup is not None
    assert (plan.credits, plan.last_turns) == expected
    assert (plan.is_open_loop, plan.schedule_ns, warmup.schedule_ns) == (True, due, due)


@pytest.mark.parametrize(("conversations", "credits"), [(2, 2), (99, 3)])
def test_conversation_warmup_is_limited_to_the_replayed_rows(
    conversations: int, credits: int
) -> None:
    due = np.array([0, 5, 9], dtype="<i8").tobytes()
    made = small_config(
        load={"fixed_schedule": True, "warmup": {"conversations": conversations}},
        dataset={"kind": "mooncake_trace", "file": "f"},
    )
    warmup = plan_phase(Phase.WARMUP, made, DatasetShape("r", "d", 1, 3, 0, b"", due))
    assert warmup is not None
    assert warmup.credits == credits


def test_load_of_stages_ends_with_the_last_stage() -> None:
    stages = [{"rate": 10, "duration": "2s"}, {"rate": 40, "duration": "1s"}]
    load = config(stages=stages, warmup={"requests": 5}, concurrency=9)
    plan, warmup = (plan_phase(phase, load, shape()) for phase in (Phase.PROFILING, Phase.WARMUP))
    assert plan is not None
    assert warmup is not None
    assert plan.rate_points == ((0, 10), (2 * S, 10), (2 * S, 40), (3 * S, 40))
    assert (plan.duration_ns, plan.is_open_loop, plan.concurrency) == (3 * S, True, 9)
    assert (warmup.request_rate, warmup.rate_points, warmup.duration_ns) == (20.0, (), 0)
    shorter = plan_phase(Phase.PROFILING, config(stages=stages, duration="1s"), shape())
    assert shorter is not None
    assert shorter.duration_ns == S


@pytest.mark.parametrize(
    ("requests", "turns", "expected"),
    [
        (None, [1, 2], (None, 0)),
        (7, [], (7, 0)),
        (3, [1, 2], (2, 0)),
        (4, [1, 2], (3, 0)),
        (5, [1, 2], (4, 1)),
        (9, [4], (3, 1)),
        (2, [5, 5], (1, 2)),
    ],
)
def test_conversations_add_up_to_the_request_count(
    requests: int | None, turns: list[int], expected: tuple[int | None, int]
) -> None:
    assert credits_for(requests, np.array(turns, dtype=np.uint16)) == expected


def test_the_last_entries_are_the_warmups_own() -> None:
    dataset = shape(1, 2, 3, 4, warmup_entries=1)
    assert turns_of(Phase.WARMUP, dataset).tolist() == [4]
    assert turns_of(Phase.PROFILING, dataset).tolist() == [1, 2, 3]


def test_warmup_without_entries_uses_profiling_entries() -> None:
    assert turns_of(Phase.WARMUP, shape(1, 2)).tolist() == [1, 2]


def test_warmup_inherits_the_load_of_the_measurement() -> None:
    load = {
        "request_rate": 50,
        "concurrency": 40,
        "duration": "9s",
        "arrival": {"pattern": "gamma"},
    }
    own = {
        "conversations": 7,
        "concurrency": 4,
        "request_rate": 10,
        "arrival": {"pattern": "constant"},
        "ramp": "1s",
    }
    like = plan_phase(Phase.WARMUP, config(**load, warmup={"requests": 5}), shape(2, 3))
    other = plan_phase(Phase.WARMUP, config(**load, warmup=own), shape(2, 3))
    assert like is not None
    assert other is not None
    assert (like.concurrency, like.request_rate, like.arrival.pattern) == (40, 50, "gamma")
    assert (like.credits, like.last_turns) == (2, 0)
    assert (other.concurrency, other.request_rate, other.arrival.pattern) == (4, 10, "constant")
    assert (other.credits, other.last_turns, other.ramp_ns) == (7, 0, S)
    measured = plan_phase(Phase.PROFILING, config(**load, warmup=own), shape(2, 3))
    assert measured is not None
    assert (measured.concurrency, measured.request_rate, measured.ramp_ns) == (40, 50, 0)


@pytest.mark.parametrize(
    "load",
    [
        {"stages": [{"rate": 3, "duration": "10s"}, {"rate": 9, "duration": "10s"}]},
        {
            "bursts": {"rate": 46, "length": "1s", "every": "10s"},
            "request_rate": 1.6,
            "requests": 9,
        },
    ],
)
def test_warmup_of_a_changing_rate_has_its_mean(load: dict[str, object]) -> None:
    for own, rate in (({}, 6.04 if "bursts" in load else 6.0), ({"request_rate": 2.0}, 2.0)):
        warm = plan_phase(Phase.WARMUP, config(**load, warmup={"requests": 5} | own), shape())
        assert warm is not None
        assert warm.request_rate == pytest.approx(rate)
        assert warm.curve is None


def test_warmup_with_its_own_rate_follows_no_schedule() -> None:
    users = {"rate": 10, "users": 4}
    data = {"endpoint": {"url": "http://127.0.0.1:1", "model": "m"}}
    data["dataset"] = {"turns": {"number": {"mean": 3}}}  # type: ignore[dict-item]
    for own, is_by_clock in (({}, True), ({"request_rate": 5}, False)):
        load = {"user_centric": users, "requests": 50, "warmup": {"requests": 5} | own}
        made = BenchmarkConfig.model_validate(data | {"load": load})
        warm = plan_phase(Phase.WARMUP, made, shape(3, 3, 3))
        assert warm is not None
        assert (warm.user_centric is not None) is is_by_clock
        assert warm.is_open_loop


def test_a_phase_has_no_more_workers_than_places() -> None:
    for limits, most in (
        ({"concurrency": 5}, 5),
        ({"concurrency": 5, "request_rate": 9}, 5),
        ({"request_rate": 9}, None),
        ({"concurrency": 5, "prefill_concurrency": 2}, 2),
    ):
        data = {"endpoint": {"url": "http://127.0.0.1:1", "model": "m", "streaming": True}}
        made = BenchmarkConfig.model_validate(data | {"load": {**limits, "requests": 9}})
        plan = plan_phase(Phase.PROFILING, made, shape())
        assert plan is not None
        assert plan.max_workers == most
