"""The configs of several targets."""

from typing import Any

import pytest

from aiperf_svc.config.load_config import parse_config
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.topology import Facts
from aiperf_svc.runner.local_targets import share_of
from aiperf_svc.workloads.target_configs import target_configs

BASE = {
    "endpoint": {"url": "http://a:1", "model": "m", "streaming": True},
    "load": {"concurrency": 2, "duration": "30s"},
}
TARGETS = [
    {"name": "a", "endpoint": {"model": "n"}},
    {"name": "b", "endpoint": {"url": "http://b:2", "streaming": False}},
]


def parsed(**more: Any) -> Any:
    return parse_config({**BASE, **more}, "test")


def test_a_target_changes_its_keys_and_keeps_all_others() -> None:
    a, b = target_configs(parsed(targets=TARGETS))
    template = parsed()
    assert (a.name, b.name) == ("a", "b")
    assert a.config == template.model_copy(
        update={"endpoint": template.endpoint.model_copy(update={"model": "n"})}
    )
    assert (b.config.endpoint.url, b.config.endpoint.streaming) == ("http://b:2", False)
    assert b.config.load == template.load
    assert target_configs(template) == ()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"targets": TARGETS[:1]}, "expected two or more"),
        ({"targets": [TARGETS[0], TARGETS[0]]}, "two are called a"),
        ({"targets": [TARGETS[0], {"name": "b", "endpoint": {}}]}, "targets.1.endpoint"),
        (
            {"targets": TARGETS, "experiment": {"product": {"load.concurrency": [1, 2]}}},
            "would not start together",
        ),
    ],
)
def test_targets_that_make_no_sense_are_refused(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parsed(**more)


def test_a_wrong_key_of_a_target_is_named_with_the_target() -> None:
    targets = [TARGETS[0], {"name": "b", "endpoint": {"urll": "http://b:2"}}]
    with pytest.raises(ConfigError, match=r"target b: .*endpoint\.urll"):
        target_configs(parsed(targets=targets))


def test_each_set_of_processes_has_a_core_at_least() -> None:
    facts = Facts(where="local", cores=4, fd_limit=1, memory_bytes=10)
    assert (share_of(facts, 2).cores, share_of(facts, 2).memory_bytes) == (2.0, 5)
    with pytest.raises(ConfigError, match="5 runs at the same time need 5 cores"):
        share_of(facts, 5)
