"""The kind `command`: any tool whose metrics are extracted as the spec defines."""

import pytest

from aiperf_svc.config.workload import WorkloadConfig
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.workloads.command import WORKLOAD
from aiperf_svc.workloads.command.workload import CommandSpec
from aiperf_svc.workloads.steps import Output, UnreadableOutput
from tests.support.tool_runs import make_ranks, tool_config

RANKS = make_ranks(2)


def config_of(**metric: str) -> WorkloadConfig[CommandSpec]:
    metrics = {"speed": {"unit": "ops/s", **metric}}
    return tool_config("command", command=["sysbench", "cpu", "run"], ranks=2, metrics=metrics)


def reading_of(config: WorkloadConfig[CommandSpec], *texts: str, file: str = "") -> float:
    step = WORKLOAD.steps(config, RANKS)[0]
    outputs = [
        Output(
            rank=rank,
            exit_code=0,
            stdout=b"" if file else text.encode(),
            files={file: text.encode()} if file else {},
        )
        for rank, text in enumerate(texts)
    ]
    return WORKLOAD.read(config, step, outputs).values["speed"]


@pytest.mark.parametrize(
    ("take", "expected"),
    [("first", 1.0), ("last", 3.5), ("min", 1.0), ("max", 6.0), ("avg", 3.5), ("sum", 10.5)],
)
def test_pattern_uses_the_configured_match(take: str, expected: float) -> None:
    config = config_of(pattern=r"^speed: ([\d.]+)", take=take)
    assert reading_of(config, "speed: 1\nspeed: 6.0\nspeed: 3.5\n") == expected


@pytest.mark.parametrize(
    ("combine", "expected"), [("avg", 3.0), ("min", 2.0), ("max", 4.0), ("sum", 6.0)]
)
def test_values_of_ranks_are_combined_as_configured(combine: str, expected: float) -> None:
    config = config_of(pattern=r"(\d+)", combine=combine)
    assert reading_of(config, "2", "4") == expected


def test_a_json_path_goes_through_objects_and_lists() -> None:
    config = config_of(json_path="results.1.mean", file="out/result.json")
    text = '{"results": [{"mean": 1}, {"mean": 2.5}]}'
    assert reading_of(config, text, file="out/result.json") == 2.5
    assert WORKLOAD.steps(config, RANKS)[0].commands[0].keeps == ("out/result.json",)


def test_other_lines_between_json_are_skipped() -> None:
    config = config_of(json_lines="n", take="sum")
    assert reading_of(config, 'starting\n{"n": 1}\n{"m": 5}\n{"n": 2}\n') == 3.0


def test_texts_in_json_may_have_any_separator() -> None:
    config = config_of(json_lines="n", take="sum")
    lines = '{"n": 1, "text": "a\u2028b"}\r\n50%\r{"n": 2, "text": "a\x85b"}\n{"n": 4}'
    assert reading_of(config, lines) == 7.0


@pytest.mark.parametrize(
    ("metric", "text", "message"),
    [
        ({"pattern": r"x=(\d+)"}, "garbage", "nothing found; it ends with 'garbage'"),
        ({"json_path": "a"}, "garbage", "standard output of rank 0 is not JSON"),
        ({"json_path": "a"}, '{"a": true}', "True in standard output of rank 0: expected a finite"),
        ({"json_path": "a"}, '{"a": NaN}', "expected a finite number"),
        ({"json_path": "a"}, f'{{"a": {10**400}}}', "expected a finite number"),
        ({"pattern": r"x=(\S+)"}, "x=fast", "'fast' in standard output of rank 0"),
        ({"json_path": "a", "file": "r.json"}, "{}", "rank 0 left no file 'r.json'"),
    ],
)
def test_output_without_the_number_is_unreadable(
    metric: dict[str, str], text: str, message: str
) -> None:
    with pytest.raises(UnreadableOutput, match="metric speed") as error:
        reading_of(config_of(**metric), text)
    assert message in str(error.value)


def test_every_rank_runs_command_with_all_addresses() -> None:
    step = WORKLOAD.steps(config_of(pattern="(x)"), RANKS)[0]
    assert [(c.rank, c.argv) for c in step.commands] == [
        (0, ("sysbench", "cpu", "run")),
        (1, ("sysbench", "cpu", "run")),
    ]
    assert step.commands[1].env == {
        "AIPERF_RANK": "1",
        "AIPERF_RANKS": "2",
        "AIPERF_ADDRESSES": "10.0.0.0 10.0.0.1",
        "AIPERF_VOLUME": "/volume",
    }


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ({}, "a metric needs one of pattern, json_path and json_lines"),
        ({"pattern": "a", "json_path": "b"}, "a metric needs one of"),
        ({"pattern": "no group"}, "has 0 groups; expected one, the number"),
        ({"pattern": "("}, "pattern '('"),
        ({"pattern": "(a)", "uint": "s"}, "unknown key"),
    ],
)
def test_unreadable_metrics_are_refused(metric: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        config_of(**metric)
    assert "workload.metrics.speed" in str(error.value)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("metric", "line", "message"),
    [
        ({"pattern": "speed: ([0-9.]+)"}, "thread 3 speed: 12345", "Speed: 12345 ops/s"),
        ({"pattern": "speed: ([0-9.]+)"}, "speed: none", ""),
        ({"json_lines": "rate"}, '{"rate": 7.5}', "Speed: 7.5 ops/s"),
        ({"json_lines": "rate"}, '{"rate": null}', ""),
        ({"json_path": "rate"}, '{"rate": 7.5}', ""),
        ({"pattern": "([0-9.]+)", "file": "out.txt"}, "7.5", ""),
    ],
)
def test_line_with_a_metric_is_progress(metric: dict[str, str], line: str, message: str) -> None:
    assert WORKLOAD.progress(config_of(**metric), line) == message
