"""The list of trials that a user sees before they run."""

from typing import Any

import pytest

from aiperf_svc.workloads.previews.trial_lists import MAX_ROWS, as_json, as_lines, headline
from aiperf_svc.workloads.registry import parse_benchmark
from aiperf_svc.workloads.trials import trial_configs
from tests.support.small_configs import small_benchmark

LOAD = {"duration": "60s", "grace_period": "5s", "warmup": {"duration": "10s", "grace_period": 0}}


def data_of(experiment: dict[str, Any] | None, load: dict[str, Any]) -> dict[str, Any]:
    data = small_benchmark(load={"concurrency": 1, **load})
    return data | ({"experiment": experiment} if experiment else {})


def lines_of(experiment: dict[str, Any], **load: Any) -> list[str]:
    config = parse_benchmark(data_of(experiment, load or LOAD), "f")
    return as_lines(config, trial_configs(config))


def test_row_has_parameters_and_time_of_its_trial() -> None:
    experiment = {
        "product": {"load.concurrency": [1, 16], "load.duration": ["30s", "2h"]},
        "cooldown": "5s",
    }
    assert lines_of(experiment) == [
        "4 trials, about 4h1m55s, at most 4h2m15s",
        "  trial  load.concurrency  load.duration  takes",
        "  1      1                 30s            40s",
        "  2      1                 2h             2h10s",
        "  3      16                30s            40s",
        "  4      16                2h             2h10s",
    ]


def test_repetitions_have_a_column() -> None:
    experiment = {"product": {"load.concurrency": [1, 2]}, "repetitions": 2, "order": "grouped"}
    title, names, *rows = lines_of(experiment)
    assert title.startswith("4 trials (2 different, 2 times), grouped, about 4m40s")
    assert names.split() == ["trial", "load.concurrency", "repetition", "takes"]
    assert [row.split()[:3] for row in rows] == [
        ["1", "1", "1"],
        ["2", "1", "2"],
        ["3", "2", "1"],
        ["4", "2", "2"],
    ]


def test_time_of_a_number_of_requests_is_unknown() -> None:
    experiment = {"explicit": [{"load.requests": 5}, {"load.duration": "10s"}]}
    title, names, first, second = lines_of(experiment, grace_period="1s")
    assert title == "2 trials, for an unknown time"
    assert names.split() == ["trial", "load.duration", "load.requests", "takes"]
    assert first.split() == ["1", "–", "5", "unknown"]
    assert second.split() == ["2", "10s", "–", "10s"]


def test_step_of_a_workload_has_a_longest_time() -> None:
    data = {
        "workload": {"kind": "iperf", "timeout": "20s"},
        "experiment": {"product": {"workload.streams": [1, 2]}},
    }
    config = parse_benchmark(data, "f")
    title, _, *rows = as_lines(config, trial_configs(config))
    assert title.startswith("2 trials, at most ")
    assert all(" at most " in row for row in rows)


def test_long_list_is_cut_but_whole_as_json() -> None:
    number = MAX_ROWS + 7
    config = parse_benchmark(
        data_of({"product": {"load.concurrency": list(range(1, number + 1))}}, LOAD), "f"
    )
    members = trial_configs(config)
    lines = as_lines(config, members)
    assert len(lines) == 2 + MAX_ROWS + 1
    assert lines[-1] == "  … and 7 more"
    found = as_json(config, members)
    assert len(found["trials"]) == number
    assert found["expected_s"] == number * 70
    assert found["longest_s"] == number * 75
    assert found["trials"][1] == {
        "number": 2,
        "parameters": {"load.concurrency": 2},
        "repetition": 1,
        "folder": "002-load.concurrency=2-r1",
        "expected_s": 70.0,
        "longest_s": 75.0,
    }


def test_search_shows_its_range() -> None:
    search = {"parameter": "load.concurrency", "from": 1, "to": 64, "maximize": "goodput"}
    config = parse_benchmark(data_of({"search": search}, LOAD), "f")
    members = trial_configs(config)
    assert as_lines(config, members) == [headline(config, members)]
    assert headline(config, members) == (
        "search: load.concurrency from 1 to 64 for the highest goodput; at most 14 trials, at most "
        "17m30s"
    )
    found = as_json(config, members)
    assert found["trials"] == []
    assert found["search"]["to"] == 64


@pytest.mark.parametrize("experiment", [None, {"repetitions": 1, "explicit": [{}]}])
def test_a_single_run_is_one_trial(experiment: dict[str, Any] | None) -> None:
    config = parse_benchmark(data_of(experiment, LOAD), "f")
    assert headline(config, trial_configs(config)) == "1 trial, about 1m10s, at most 1m15s"
