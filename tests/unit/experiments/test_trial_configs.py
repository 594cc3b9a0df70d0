"""The config of each trial."""

from typing import Any

import pytest

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.core.experiments.trials import plan_trials
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.workloads.inference import WORKLOAD
from aiperf_svc.workloads.registry import parse_benchmark
from aiperf_svc.workloads.trials import trial_config
from tests.support.small_configs import small_benchmark

TEMPLATE = small_benchmark(load={"duration": "60s", "warmup": {"duration": "10s"}})
SEARCH = {"parameter": "load.concurrency", "from": 1, "to": 8}


def configs(experiment: dict[str, Any], **template: Any) -> list[BenchmarkConfig]:
    """Return the config of each trial in execution order."""
    config = parse_benchmark({**TEMPLATE, **template, "experiment": experiment}, "f")
    assert config.experiment is not None
    planned = plan_trials(config.experiment, config.random_seed)
    found = [trial_config(config, trial.parameters) for trial in planned]
    assert all(isinstance(each, BenchmarkConfig) for each in found)
    return found  # type: ignore[return-value]


def refused(experiment: Any, **template: Any) -> str:
    """Return the error message of a rejected experiment."""
    with pytest.raises(ConfigError) as caught:
        parse_benchmark({**TEMPLATE, **template, "experiment": experiment}, "f")
    return str(caught.value)


def test_trial_is_the_template_with_its_parameters() -> None:
    load = {"duration": "60s", "warmup": {"duration": "10s"}}
    alone = [
        parse_benchmark({**TEMPLATE, "load": {**load, "concurrency": users}}, "f")
        for users in (1, 4)
    ]
    assert configs({"product": {"load.concurrency": [1, 4]}}) == alone


def test_trial_has_its_own_prompts_unless_configured() -> None:
    (config, *_) = configs({"product": {"load.concurrency": [1, 4]}})
    first, second = (WORKLOAD.with_own_prompts(config, number) for number in (1, 2))
    assert isinstance(first, BenchmarkConfig)
    assert isinstance(second, BenchmarkConfig)
    assert first.prompt_seed == config.prompt_seed == config.random_seed == second.random_seed
    assert second.prompt_seed != first.prompt_seed
    (same, *_) = configs({"product": {"load.concurrency": [1]}}, dataset={"variant": 1})
    assert WORKLOAD.with_own_prompts(same, 2) == same


def test_template_may_lack_keys_every_trial_sets() -> None:
    found = configs({"explicit": [{"load.concurrency": 2}, {"load.request_rate": 5}]})
    assert [(c.load.concurrency, c.load.request_rate) for c in found] == [(2, None), (None, 5.0)]


def test_unset_key_has_the_value_of_the_template() -> None:
    load = {"duration": "60s", "concurrency": 3}
    found = configs({"explicit": [{"load.concurrency": 8}, {"load.duration": "5s"}, {}]}, load=load)
    assert [(c.load.concurrency, c.load.duration) for c in found] == [
        (8, 60 * 10**9),
        (3, 5 * 10**9),
        (3, 60 * 10**9),
    ]


def test_unset_part_has_its_default() -> None:
    mean = "dataset.input_tokens.mean"
    experiment = {"product": {"load.concurrency": [1], mean: [128]}}
    found = configs(experiment | {"explicit": [{"load.concurrency": 2}]})
    assert [c.dataset.input_tokens.mean for c in found] == [128, 550]


def test_part_with_another_key_has_no_default() -> None:
    experiment = {"explicit": [{"dataset.input_tokens.mean": 128}, {"load.concurrency": 2}]}
    load = {"duration": "60s", "concurrency": 1}
    with pytest.raises(ConfigError, match=r"dataset\.input_tokens\.mean: must be given"):
        configs(experiment, load=load, dataset={"input_tokens": {"stddev": 3}})


def test_a_saved_config_has_the_same_trials() -> None:
    experiment = {
        "explicit": [
            {"load.concurrency": 2},
            {"load.request_rate": 5},
            {"load.ramp": 1, "load.concurrency": 3},
        ]
    }
    config = parse_benchmark({**TEMPLATE, "experiment": experiment}, "f")
    again = parse_benchmark(config.model_dump(mode="json"), "f")
    assert again == config


def test_search_is_saved_unchanged() -> None:
    search = {"parameter": "load.request_rate", "from": 1, "to": 1000, "maximize": "goodput"}
    config = parse_benchmark({**TEMPLATE, "experiment": {"search": search}}, "f")
    assert isinstance(config, BenchmarkConfig)
    assert config.load.request_rate == 1
    saved = config.model_dump(mode="json")
    assert saved["experiment"]["search"].items() >= search.items()
    assert parse_benchmark(saved, "f") == config


def test_key_paths_allow_dotted_names_and_indexes() -> None:
    key = "deployment.placement.node_selector.cloud.example.com/gpu"
    objectives = [{"metric": "request_latency", "stat": "p99", "max": "1s"}]
    found = configs(
        {
            "zip": {
                key: ["a", "b"],
                "slo.objectives.0.max": ["2s", "3s"],
                "load.concurrency": [1, 2],
            }
        },
        slo={"objectives": objectives},
    )
    assert [c.deployment.placement.node_selector for c in found] == [
        {"cloud.example.com/gpu": "a"},
        {"cloud.example.com/gpu": "b"},
    ]
    assert [c.slo.objectives[0].max for c in found] == ["2s", "3s"]


def test_a_workload_has_no_load_to_search() -> None:
    search = {"parameter": "repetitions", "from": 1, "to": 4, "maximize": "speed"}
    data = {"workload": {"kind": "iperf"}, "experiment": {"search": search}}
    with pytest.raises(ConfigError, match=r"experiment\.product"):
        parse_benchmark(data, "f")


def test_keys_of_a_workload_are_varied_too() -> None:
    data = {"workload": {"kind": "iperf"}, "experiment": {"product": {"workload.streams": [1, 4]}}}
    config = parse_benchmark(data, "f")
    assert config.experiment is not None
    found = [trial_config(config, t.parameters) for t in plan_trials(config.experiment, 0)]
    alone = [parse_benchmark({"workload": {"kind": "iperf", "streams": n}}, "f") for n in (1, 4)]
    assert found == alone


def test_a_refused_trial_is_named_with_its_parameters() -> None:
    with pytest.raises(ConfigError) as caught:
        configs({"product": {"load.concurrency": [1, 0]}})
    assert str(caught.value) == (
        "trial load.concurrency=0: load.concurrency: 0: expected a number above 0"
    )


@pytest.mark.parametrize(
    ("experiment", "message"),
    [
        ({}, "an experiment needs product, zip, explicit, repetitions, search, scenario or preset"),
        ({"product": {}}, "an experiment needs product, zip"),
        ({"product": {"load.concurrency": []}}, "load.concurrency: the list is empty; give at"),
        (
            {"product": {"load.concurrency": 4}},
            "load.concurrency: expected a list of values, not 4",
        ),
        (
            {"product": {"load.concurency": [1]}},
            "load.concurency: no key of the config; did you mean load.concurrency",
        ),
        ({"product": {"laod.concurrency": [1]}}, "did you mean load.concurrency?"),
        ({"product": {"name": ["a", "b"]}}, "name: belongs to all trials"),
        ({"product": {"deployment.namespace.name": ["a", "b"]}}, "belongs to all trials"),
        ({"product": {"deployment": [{}, {}]}}, "deployment: sets deployment.namespace too"),
        ({"product": {"experiment.order": ["grouped"]}}, "belongs to all trials"),
        ({"product": {"load": [{}], "load.concurrency": [1]}}, "load.concurrency: is part of load"),
        (
            {"zip": {"load.concurrency": [1, 2], "load.ramp": [1]}},
            "experiment: zip needs lists of equal length: load.concurrency has 2, load.r",
        ),
        (
            {"product": {"load.concurrency": [1]}, "order": "random"},
            "experiment.order: 'random': expected interleaved, grouped or shuffled",
        ),
        (
            {"product": {"random_seed": list(range(200)), "load.ramp": list(range(200))}},
            "40,000 trials; expected at most 10,000",
        ),
        ({"prodct": {"load.concurrency": [1]}}, "did you mean experiment.product?"),
        ({"search": {**SEARCH, "from": 8}}, "from 8 is not below to 8"),
        (
            {"search": {"parameter": "load.concurrency", "from": 1}},
            "a search needs parameter, from and to",
        ),
        ({"search": {**SEARCH, "holds": "fast"}}, "holds 'fast': expected slo"),
        ({"search": SEARCH}, "needs a condition: set slo.objectives"),
        ({"search": SEARCH, "repetitions": 3}, "leave out repetitions"),
        ({"search": SEARCH, "product": {"random_seed": [1]}}, "leave out product"),
    ],
)
def test_a_bad_experiment_is_refused_with_the_remedy(
    experiment: dict[str, Any], message: str
) -> None:
    refusal = refused(experiment)
    assert message in refusal
    assert "a load needs" not in refusal


@pytest.mark.parametrize(("scenario", "users"), [("single-stream", 1), ("multi-stream", 8)])
def test_a_scenario_has_its_own_number_of_users(scenario: str, users: int) -> None:
    (config,) = configs({"scenario": scenario}, load={"requests": 80})
    assert config.load.concurrency == users


def test_scenario_without_its_rate_is_refused() -> None:
    refusal = refused({"scenario": "server"})
    assert "experiment.scenario: 'server' needs load.request_rate, the rate of queries" in refusal
    assert "a load needs" not in refusal
