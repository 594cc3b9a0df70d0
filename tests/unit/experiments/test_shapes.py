"""Which trials can run in the same processes or pods, and what these need."""

import re
from itertools import pairwise
from typing import Any

import pytest
import yaml

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.deployment import Deployment
from aiperf_svc.config.experiment import REPLACEMENTS
from aiperf_svc.config.workload import Config
from aiperf_svc.core.experiments.trials import plan_trials
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.topology import Facts, Topology
from aiperf_svc.runner.stack.request import StackRequest
from aiperf_svc.workloads import stacks
from aiperf_svc.workloads.registry import parse_benchmark
from aiperf_svc.workloads.shapes import shape_config, shapes, shapes_of, without_trials
from aiperf_svc.workloads.trials import trial_config, trial_configs
from tests.support.plans import to_plan

TEMPLATE: dict[str, Any] = {
    "endpoint": {"url": "http://target", "model": "m"},
    "load": {"duration": "60s", "grace_period": "10s", "concurrency": 1},
    "deployment": {"target": {"kind": "mock"}},
}
COMMAND: dict[str, Any] = {
    "kind": "command",
    "command": ["true"],
    "timeout": "30s",
    "metrics": {"speed": {"unit": "MB/s", "pattern": "([0-9.]+)"}},
}
CLUSTER = Facts(where="cluster")
OVER = "deployment.target.args"
ARGS = [["--ttft", "5ms"], ["--ttft", "9ms"]]


def config_of(experiment: dict[str, Any] | None = None, **template: Any) -> Config:
    data = {**TEMPLATE, **template}
    return parse_benchmark(data | ({"experiment": experiment} if experiment else {}), "f")


def stack_of(config: Config, **options: Any) -> Any:
    return to_plan(config, stack="s", version="1", **options)


def plan_config(config: Config, facts: Facts) -> Topology:
    (shape,) = shapes_of(config, facts.where)
    return stacks.plan_processes(shape, facts)


def test_trials_with_other_load_share_a_shape() -> None:
    config = config_of({"product": {"load.concurrency": [1, 9], "dataset.entries": [5, 7]}})
    (shape,) = shapes(trial_configs(config), "cluster")
    assert shape.parameters == {}
    assert [trial.number for trial in shape.trials] == [1, 2, 3, 4]


def test_each_target_is_a_shape_with_ordered_trials() -> None:
    config = config_of({"product": {"load.concurrency": [1, 2], OVER: ARGS}, "repetitions": 2})
    found = shapes(trial_configs(config), "cluster")
    assert [each.parameters for each in found] == [{OVER: a} for a in ARGS]
    assert [[t.number for t in each.trials] for each in found] == [[1, 3, 5, 7], [2, 4, 6, 8]]


def blocks_of_targets(**keys: Any) -> list[list[int]]:
    product = {OVER: ARGS, "load.concurrency": [1, 2]}
    config = config_of({"product": product, "blocks": {"over": OVER, "count": 2, **keys}})
    return [[trial.number for trial in each.trials] for each in shapes_of(config, "cluster")]


def test_each_visit_of_a_block_starts_its_target() -> None:
    visits = blocks_of_targets()
    assert visits == [[n, n + 1] for n in range(1, 17, 2)]


def test_visits_that_follow_each_other_can_share_pods() -> None:
    visits = blocks_of_targets(restart=False)
    assert [n for each in visits for n in each] == list(range(1, 17))
    assert 4 < len(visits) <= 6


def visits_at(uptime: str | None, **experiment: Any) -> StackRequest:
    experiment["product"] = {OVER: ARGS}
    blocks = {"over": OVER, "count": 1} | ({"uptime": uptime} if uptime else {})
    deployment = {"target": {"kind": "mock"}, "ttl": "24h"}
    config = config_of({**experiment, "blocks": blocks}, deployment=deployment)
    return StackRequest(stack="s", config=config, environ={}, settings={})


@pytest.mark.parametrize(("uptime", "held"), [("20m", {"1"}), (None, {""})], ids=["at one", "soon"])
def test_visits_at_one_uptime_wait_for_it(uptime: str | None, held: set[str]) -> None:
    request = visits_at(uptime)
    plan = request.visit_plan(2, node="")
    envs = [pod.env for pod in plan.pods if "AIPERF_CONFIG" in pod.env]
    assert {env.get("AIPERF_HELD", "") for env in envs} == held


def test_wait_for_uptime_is_part_of_start() -> None:
    def longest_s(uptime: str | None) -> int:
        (hold,) = {plan.budget.hold for plan in visits_at(uptime).plans if plan.budget is not None}
        assert hold is not None
        return hold // 10**9

    # 20 minutes after the start of the target's container, instead of the services' start. No trial
    # is repeated at another uptime.
    again_s = 4 * REPLACEMENTS * 70
    services_s = Deployment().ready_timeout // 10**9
    assert longest_s("20m") == longest_s(None) - again_s + 4 * (1200 - services_s)


@pytest.mark.parametrize(
    ("experiment", "problem"),
    [
        ({"blocks": {"over": "endpoint.url", "count": 1, "uptime": "1m"}}, "below deployment"),
        ({"blocks": {"restart": False, "uptime": "1m"}}, "restart"),
        ({"blocks": {"uptime": "1m"}, "retries": 1}, "leave out retries"),
    ],
)
def test_uptime_that_cannot_be_equal_is_refused(experiment: dict[str, Any], problem: str) -> None:
    blocks = {"over": OVER, "count": 1, **experiment["blocks"]}
    product = {blocks["over"]: ARGS}
    with pytest.raises(ConfigError, match=re.escape(problem)):
        config_of({**experiment, "product": product, "blocks": blocks})


def test_uptime_of_a_release_is_refused() -> None:
    over = "deployment.target.from"
    sources = [{"manifests": "a.yaml"}, {"manifests": "b.yaml"}]
    pools = {"a": {"labels": {"app": "a"}}}
    target = {"kind": "release", "from": sources[0], "url": "http://a:1", "pools": pools}
    blocks = {"over": over, "count": 1, "uptime": "1m"}
    with pytest.raises(ConfigError, match=r"deployment\.target\.kind is release; leave it out"):
        config_of({"product": {over: sources}, "blocks": blocks}, deployment={"target": target})


def test_blocks_over_urls_share_pods() -> None:
    over = "endpoint.url"
    config = config_of(
        {"product": {over: ["http://a", "http://b"]}, "blocks": {"over": over, "count": 1}}
    )
    visits = shapes_of(config, "cluster")
    assert len(visits) == 3
    assert all(first.parameters != second.parameters for first, second in pairwise(visits))


def test_network_rules_make_a_shape_on_clusters_only() -> None:
    members = trial_configs(config_of({"product": {"tokenizer.name": ["a/b", "c/d"]}}))
    assert len(shapes(members, "cluster")) == 2
    assert len(shapes(members, "local")) == 1


def test_parent_of_shape_key_makes_a_shape() -> None:
    endpoints = [{**TEMPLATE["endpoint"], "streaming": value} for value in (True, False)]
    members = trial_configs(config_of({"product": {"endpoint": endpoints}}))
    assert len(shapes(members, "cluster")) == 2


def test_the_ranks_of_a_workload_are_its_shape() -> None:
    data = {
        "workload": COMMAND,
        "experiment": {"product": {"workload.ranks": [1, 2], "random_seed": [1, 2]}},
    }
    found = shapes(trial_configs(parse_benchmark(data, "f")), "cluster")
    assert [[t.number for t in each.trials] for each in found] == [[1, 2], [3, 4]]


TWO_TARGETS = {"product": {"load.concurrency": [3, 1], OVER: ARGS}, "repetitions": 2}


def test_shape_runs_exactly_its_trials() -> None:
    config = config_of(TWO_TARGETS)
    everything = trial_configs(config)
    for shape in shapes(everything, "cluster"):
        part = shape_config(config, shape)
        # In the form in which the services read it.
        read = parse_benchmark(part.model_dump(mode="json", by_alias=True), "f")
        assert read == part
        assert read.experiment is not None
        trials = plan_trials(read.experiment, read.random_seed)
        assert trials == shape.trials
        configs = [trial_config(read, trial.parameters) for trial in trials]
        assert configs == list(shape.configs)


def test_resolved_stack_values_survive_trial_parameters() -> None:
    rows = [{"endpoint.url": url, "load.concurrency": 7} for url in ("http://target", "http://b")]
    config = config_of({"explicit": rows})
    plan = stack_of(config, shape=1)
    read = parse_benchmark(yaml.safe_load(plan.files["config.yaml"]), "f")
    assert read.experiment is not None
    (trial,) = plan_trials(read.experiment, 0)
    found = trial_config(read, trial.parameters)
    assert isinstance(found, BenchmarkConfig)
    assert (trial.parameters, found.load.concurrency) == (rows[0], 7)
    assert found.endpoint.url == plan.config.endpoint.url != "http://target"


def test_each_shape_is_a_run_under_one_label() -> None:
    config = config_of(TWO_TARGETS)
    first, second = stack_of(config, shape=1), stack_of(config, shape=2)
    assert first.identity.run_id != second.identity.run_id
    assert first.identity.labels() == second.identity.labels()
    again = stack_of(config, shape=1, generation=2)
    assert again.identity.labels() != first.identity.labels()


def test_shapes_share_the_pod_of_an_equal_target() -> None:
    alike = config_of({"product": {"workers.max": [1, 2]}})
    assert stack_of(alike, shape=1).target == stack_of(alike, shape=2).target
    other = config_of(TWO_TARGETS)
    assert stack_of(other, shape=1).target != stack_of(other, shape=2).target


@pytest.mark.parametrize("number", [0, 3])
def test_unknown_shape_number_is_refused(number: int) -> None:
    with pytest.raises(ConfigError, match=rf"aiperf:shape: {number}: .* from 1 to 2"):
        stack_of(config_of(TWO_TARGETS), shape=number)


def test_a_stack_lives_through_all_its_shapes() -> None:
    alone = stack_of(config_of()).times
    # Eight trials, and the trials of each shape that may be repeated.
    needed_ns = 2 * alone.start + (8 + 2 * REPLACEMENTS) * alone.load
    fitting = {"ttl": f"{needed_ns // 10**9}s", "target": {"kind": "mock"}}
    assert stack_of(config_of(TWO_TARGETS, deployment=fitting), shape=2).times.start == alone.start
    short = fitting | {"ttl": f"{needed_ns // 10**9 - 1}s"}
    with pytest.raises(ConfigError, match="trials of 2 shapes take up to"):
        stack_of(config_of(TWO_TARGETS, deployment=short), shape=2)


def test_a_search_in_several_shapes_is_refused() -> None:
    search = {"parameter": "workers.max", "from": 1, "to": 8, "maximize": "goodput"}
    with pytest.raises(ConfigError, match=r"search: workers.max needs other pods for each value"):
        shapes_of(config_of({"search": search}), "cluster")


@pytest.mark.parametrize("facts", [CLUSTER, Facts(where="local", cores=8)])
def test_topology_fits_the_largest_trial(facts: Facts) -> None:
    users = [1, 30_000, 700]
    alone = [
        plan_config(config_of(load={**TEMPLATE["load"], "concurrency": n}), facts) for n in users
    ]
    together = plan_config(config_of({"product": {"load.concurrency": users}}), facts)
    assert together == alone[1]
    assert len({each.workers for each in alone}) > 1


def test_search_is_planned_for_its_highest_value() -> None:
    search = {"parameter": "load.concurrency", "from": 1, "to": 4000, "maximize": "goodput"}
    alone = plan_config(config_of(load={**TEMPLATE["load"], "concurrency": 4000}), CLUSTER)
    assert plan_config(config_of({"search": search}), CLUSTER) == alone


def test_pods_are_sized_for_the_most_users() -> None:
    workers = {"max": 1}
    load = {**TEMPLATE["load"], "concurrency": 20_000}
    alone = stack_of(config_of(load=load, workers=workers))
    together = stack_of(
        config_of({"product": {"load.concurrency": [1, 20_000, 5]}}, workers=workers)
    )
    small = stack_of(config_of(workers=workers))
    memory = [plan.totals.memory_bytes for plan in (small, alone, together)]
    assert memory[0] < memory[1] == memory[2]


def test_stack_lives_long_enough_for_all_its_trials() -> None:
    experiment = {"repetitions": 3, "cooldown": "5s"}
    alone, together = stack_of(config_of()).times, stack_of(config_of(experiment)).times
    assert together.start == alone.start
    again = REPLACEMENTS * (alone.load + 5 * 10**9)
    assert together.load == 3 * alone.load + 2 * 5 * 10**9 + again
    with pytest.raises(ConfigError, match=r"the 100 trials, .* run again, take up to 119m"):
        stack_of(config_of({"repetitions": 100}))


def test_the_steps_of_all_trials_count() -> None:
    data: dict[str, Any] = {"workload": COMMAND}
    alone = stack_of(parse_benchmark(data, "f")).times
    experiment = {"product": {"workload.timeout": ["30s", "60s"]}, "cooldown": "5s"}
    together = stack_of(parse_benchmark(data | {"experiment": experiment}, "f")).times
    assert together.load == 3 * alone.load + 5 * 10**9


def test_every_refused_trial_is_listed_before_any_starts() -> None:
    config = config_of({"product": {"load.concurrency": [1, 0, 2, -1], "load.ramp": ["1s", "2s"]}})
    with pytest.raises(ConfigError) as caught:
        trial_configs(config)
    title, *lines = str(caught.value).splitlines()
    assert title == "4 of 8 different trials are refused"
    assert lines[0] == (
        "  trial load.concurrency=0,load.ramp=1s: load.concurrency: 0: expected a number above 0"
    )
    assert len(lines) == 4


def test_a_long_list_of_refused_trials_is_cut() -> None:
    config = config_of({"product": {"load.concurrency": [1, *range(-30, 0)]}})
    with pytest.raises(ConfigError) as caught:
        trial_configs(config)
    lines = str(caught.value).splitlines()
    assert len(lines) == 12
    assert lines[-1] == "  … and 20 more"


def test_both_ends_of_a_search_are_checked() -> None:
    search = {"parameter": "load.concurrency", "from": 1, "to": 10**8, "maximize": "goodput"}
    with pytest.raises(ConfigError, match=r"trial load.concurrency=100000000: "):
        trial_configs(config_of({"search": search}))


def test_finished_trials_leave_shapes_with_their_numbers() -> None:
    product = {"load.concurrency": [1, 2], "workers.max": [1, 2]}
    config = config_of({"product": product})
    whole = shapes_of(config, "cluster")
    assert [[t.number for t in each.trials] for each in whole] == [[1, 3], [2, 4]]
    left = without_trials(whole, {1, 2, 4})
    assert [[t.number for t in each.trials] for each in left] == [[3], [2, 4]]
    planned = stack_of(config, known=stacks.all_shapes(config, left))
    assert planned.config.experiment.part.trials == (3,)
    assert planned.config.load.concurrency == 2
    assert planned.identity.run_id != stack_of(config).identity.run_id
    assert planned.identity.label == stack_of(config).identity.label


REPLICAS = "deployment.target.replicas"


def test_shapes_begin_by_priority_and_keep_trial_numbers() -> None:
    product = {REPLICAS: [1, 2, 3, 4], "load.concurrency": [1, 9]}
    config = config_of({"product": product, "priority": [{REPLICAS: 3}, {REPLICAS: 2.0}]})
    found = shapes_of(config, "cluster")
    assert [each.parameters[REPLICAS] for each in found] == [3, 2, 1, 4]
    assert [trial.number for trial in found[0].trials] == [5, 6]


def test_shape_has_the_highest_priority_of_its_trials() -> None:
    explicit = [{REPLICAS: 1, "load.concurrency": 1}, {REPLICAS: 2, "load.concurrency": 9}]
    config = config_of({"explicit": explicit, "priority": [{"load.concurrency": 9}]})
    assert [each.parameters[REPLICAS] for each in shapes_of(config, "cluster")] == [2, 1]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"priority": [{REPLICAS: 7}]}, f"priority: no trial has {REPLICAS}: 7"),
        ({"priority": [{"load.requests": 7}]}, "priority: no trial has load.requests: 7"),
        ({"priority": [{}]}, "priority: no trial has an empty entry"),
        ({"parallel": 0}, "expected a number from 1 to 10000, or auto"),
        ({"parallel": "all"}, "expected a number from 1 to 10000, or auto"),
    ],
)
def test_unmatched_priority_and_invalid_parallel_are_refused(
    wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        config_of({"product": {REPLICAS: [1, 2]}, **wrong})


@pytest.mark.parametrize("wrong", [{"parallel": "auto"}, {"priority": [{"load.concurrency": 1}]}])
def test_a_search_has_one_stack(wrong: dict[str, Any]) -> None:
    search = {"parameter": "load.concurrency", "from": 1, "to": 9, "holds": "goodput >= 95%"}
    with pytest.raises(ConfigError, match="has one shape, in one stack; leave out"):
        config_of({"search": search, **wrong})


def test_stack_of_one_shape_lives_for_that_shape() -> None:
    product = {REPLICAS: [1, 2, 3], "load.concurrency": [1, 9]}
    deployment = {"target": {"kind": "mock"}, "ttl": "30m"}
    with pytest.raises(ConfigError, match="would delete itself"):
        stack_of(config_of({"product": product}, deployment=deployment))
    config = config_of({"product": product, "parallel": 2}, deployment=deployment)
    plans = [stack_of(config, shape=number) for number in (1, 2, 3)]
    assert len({plan.identity.labels()["aiperf.dev/run"] for plan in plans}) == 3


def test_preview_notes_that_shapes_trials_are_sequential() -> None:
    product = {"load.concurrency": [1, 9]}
    (note,) = stack_of(config_of({"product": product, "parallel": 2})).notes
    assert note.startswith("experiment.parallel: all trials run in the same pods")
    assert stack_of(config_of({"product": product})).notes == ()
