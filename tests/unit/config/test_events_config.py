"""Events that a config rejects, each with one line."""

from typing import Any

import pytest

from aiperf_svc.config.load_config import parse_config
from aiperf_svc.domain.errors import ConfigError
from tests.support.small_configs import small_benchmark

OPEN = {"request_rate": 10, "duration": "60s"}


def config(*events: dict[str, Any], load: dict[str, Any] | None = None, **more: Any) -> Any:
    return small_benchmark(load=load or OPEN, events=list(events), **more)


KILL = {"at": "20s", "do": "kill"}
STALL = {"at": "20s", "do": "stall", "duration": "5s"}

REFUSED = {
    "a closed loop": (
        config(KILL, load={"concurrency": 1, "duration": "60s"}),
        "events need an open loop (load.request_rate)",
    ),
    "an event after the load": (
        config(KILL | {"at": "60s"}),
        "events: number 1 (kill at 1m) ends after the load, which ends at 1m",
    ),
    "an event that is not undone before the end": (
        config(STALL | {"at": "56s"}),
        "number 1 (stall at 56s) ends after the load",
    ),
    "an event after the last of a number of requests": (
        config(KILL, load={"request_rate": 10, "requests": 150}),
        "ends after the load, which ends at 15s",
    ),
    "an event without a time to compare with": (
        config(KILL | {"at": "5s"}),
        "number 1 (kill at 5s) is less than 10s after the end of the start of the load",
    ),
    "an event during the one before": (
        config(STALL, KILL | {"at": "30s"}),
        "number 2 (kill at 30s) is less than 10s after the end of the event before (25s)",
    ),
    "a stall without an end": (config({"at": "20s", "do": "stall"}), "do stall needs duration"),
    "a kill with an end": (config(KILL | {"duration": "5s"}), "duration is for do stall, delay"),
    "a delay by nothing": (config(STALL | {"do": "delay"}), "latency is for do delay"),
    "a loss of nothing": (config(STALL | {"do": "loss"}), "loss is for do loss, which needs it"),
    "a loss of everything": (config(STALL | {"do": "loss", "loss": "100%"}), "events.0.loss"),
    "packets of a Deployment": (
        config(STALL | {"do": "delay", "latency": "5ms", "deployment": "router"}),
        "do delay is for the stack's own target; leave out deployment",
    ),
    "a kind that there is not": (config(KILL | {"do": "explode"}), "events.0.do: 'explode'"),
    "a foreign process without consent": (
        config(KILL | {"process": "postgres"}),
        "process 'postgres' was not started by this tool; add foreign: true to disturb it",
    ),
    "consent to nothing": (config(KILL | {"foreign": True}), "foreign needs the name"),
    "jobs": (
        config(KILL, experiment={"product": {"load.request_rate": [1, 2]}, "fan_out": "jobs"}),
        "leave out experiment.fan_out jobs",
    ),
}


@pytest.mark.parametrize(("data", "text"), REFUSED.values(), ids=list(REFUSED))
def test_unmeasurable_event_is_refused(data: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(data, "")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_events_may_follow_each_other() -> None:
    found = parse_config(config(STALL, KILL | {"at": "35s"}), "")
    assert [each.end for each in found.events] == [25 * 10**9, 35 * 10**9]
