"""The configs of several targets."""

from typing import Any

import pytest

from aiperf_svc.config.load_config import chosen_target, parse_config, target_configs
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.topology import Facts, share_of
from aiperf_svc.runner.process_placement import expand_local
from aiperf_svc.workloads.trials import trial_configs

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"
BASE: dict[str, Any] = {
    "endpoint": {"url": "http://a:1", "model": "m", "streaming": True},
    "load": {"concurrency": 2, "duration": "30s"},
}
TARGETS = [
    {"name": "a", "endpoint": {"model": "n"}},
    {"name": "b", "endpoint": {"url": "http://b:2", "streaming": False}},
]


def parsed(**more: Any) -> Any:
    return parse_config({**BASE, **more}, "test")


def test_target_changes_its_keys_and_keeps_all_others() -> None:
    a, b = target_configs(parsed(targets=TARGETS))
    template = parsed()
    assert (a.name, b.name) == ("a", "b")
    assert a.config == template.model_copy(
        update={"endpoint": template.endpoint.model_copy(update={"model": "n"})}
    )
    assert (b.config.endpoint.url, b.config.endpoint.streaming) == ("http://b:2", False)
    assert b.config.load == template.load
    assert target_configs(template) == ()


def test_target_keys_are_merged_into_shared_ones() -> None:
    endpoint = {**BASE["endpoint"], "headers": {"X-Team": "a"}, "tls": {"ca": PEM}}
    wanted = {"tls": {"server_name": "b.example"}, "headers": {"X-Model": "b"}}
    (_, b) = target_configs(
        parsed(endpoint=endpoint, targets=[TARGETS[0], {"name": "b", "endpoint": wanted}])
    )
    assert b.config.endpoint.headers == {"X-Team": "a", "X-Model": "b"}
    assert (b.config.endpoint.tls.ca, b.config.endpoint.tls.server_name) == (PEM, "b.example")


def test_each_target_can_have_its_own_server() -> None:
    deployment = {"target": {"kind": "mock", "cpu": "100m", "args": ["--ttft", "9ms"]}}
    own = {"target": {"args": ["--ttft", "1ms"]}}
    targets = [{"name": "a", "deployment": own}, {"name": "b", "endpoint": {"model": "n"}}]
    config = parsed(endpoint={**BASE["endpoint"], "url": "http://target"}, deployment=deployment,
                    targets=targets)  # fmt: skip
    a, b = (each.config.deployment.target for each in target_configs(config))
    assert (a.args, a.cpu) == (("--ttft", "1ms"), 100)
    assert b.args == ("--ttft", "9ms")
    assert chosen_target(config, "") == target_configs(config)[0].config
    assert chosen_target(config, "b") == target_configs(config)[1].config
    with pytest.raises(ConfigError, match="aiperf:target: 'c': expected one of a, b"):
        chosen_target(config, "c")
    with pytest.raises(ConfigError, match="this stack has no `targets`"):
        chosen_target(parsed(), "a")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"targets": TARGETS[:1]}, "expected two or more"),
        ({"targets": [TARGETS[0], TARGETS[0]]}, "two are called a"),
        (
            {"targets": [TARGETS[0], {"name": "b", "endpoint": {}}]},
            "b: give endpoint or deployment",
        ),
    ],
)
def test_invalid_targets_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parsed(**more)


def test_each_target_has_all_trials_of_the_experiment() -> None:
    experiment = {"product": {"load.concurrency": [1, 4]}, "repetitions": 2}
    a, b = target_configs(parsed(targets=TARGETS, experiment=experiment))
    trials = [trial_configs(each.config) for each in (a, b)]
    assert [each.trial for each in trials[0]] == [each.trial for each in trials[1]]
    assert [each.config.load.concurrency for each in trials[1]] == [1, 4, 1, 4]  # type: ignore[union-attr]
    assert {each.config.endpoint.url for each in trials[1]} == {"http://b:2"}  # type: ignore[union-attr]


@pytest.mark.parametrize("scenario", ["single-stream", "multi-stream", "server", "offline"])
def test_each_target_has_the_load_of_the_scenario(scenario: str) -> None:
    load = {"server": {"request_rate": 9, "duration": "9s"}, "offline": {"requests": 9}}
    more: dict[str, Any] = {"load": load.get(scenario, {"duration": "9s"})}
    whole = parsed(**more, experiment={"scenario": scenario})
    (_, b) = target_configs(parsed(**more, experiment={"scenario": scenario}, targets=TARGETS))
    (one,), (alone,) = trial_configs(b.config), trial_configs(whole)
    assert one.config.load == alone.config.load  # type: ignore[union-attr]


def test_an_experiment_cannot_vary_what_a_target_sets() -> None:
    experiment = {"product": {"endpoint.model": ["m", "n"]}}
    with pytest.raises(ConfigError, match=r"target a sets endpoint\.model, which the experiment"):
        target_configs(parsed(targets=TARGETS, experiment=experiment))


def test_targets_trials_with_other_processes_are_rounds() -> None:
    in_one = {"product": {"load.concurrency": [1, 2]}}
    in_two = {"product": {"workers.max": [1, 2]}, "repetitions": 2}
    one, two = (expand_local(parsed(targets=TARGETS, experiment=e)) for e in (in_one, in_two))
    assert (list(one.rounds), list(two.rounds)) == ([1], [1, 2])
    assert [len(shape.trials) for shape in two.shapes["b"]] == [2, 2]
    assert [one.is_driven, two.is_driven] == [False, False]


@pytest.mark.parametrize(
    ("targets", "experiment", "is_driven"),
    [
        (TARGETS, {"repetitions": 2, "retries": 1}, True),
        ([], {"repetitions": 2, "retries": 1}, False),
        (TARGETS, {"search": {"parameter": "load.concurrency", "from": 1, "to": 9}}, True),
        ([], {"search": {"parameter": "load.concurrency", "from": 1, "to": 9}}, False),
        ([], {"search": {"parameter": "workers.max", "from": 1, "to": 9}}, True),
    ],
)
def test_a_session_names_trials_that_services_cannot_choose(
    targets: Any, experiment: Any, is_driven: bool
) -> None:
    slo = {"objectives": [{"metric": "request_latency", "max": "1s"}]}
    config = parsed(targets=targets, experiment=experiment, slo=slo)
    assert expand_local(config).is_driven is is_driven


def test_wrong_key_of_target_names_the_target() -> None:
    targets = [TARGETS[0], {"name": "b", "endpoint": {"urll": "http://b:2"}}]
    with pytest.raises(ConfigError, match=r"target b: .*endpoint\.urll"):
        target_configs(parsed(targets=targets))


def test_each_set_of_processes_needs_a_core() -> None:
    facts = Facts(where="local", cores=4, fd_limit=1, memory_bytes=10)
    assert (share_of(facts, 2).cores, share_of(facts, 2).memory_bytes) == (2.0, 5)
    with pytest.raises(ConfigError, match="5 runs at the same time need 5 cores"):
        share_of(facts, 5)
