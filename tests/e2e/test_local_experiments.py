"""Experiments as a user runs them: trials run one after another in the same processes."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from aiperf_svc.config.experiment import REPLACEMENTS
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import RunningMockServer, running
from tests.support.running_command import (
    FINISHED,
    Command,
    artifacts,
    assert_only_the_user_reads,
    kill,
    trials_of,
    wait_until,
)

LEVELS = [4, 2, 1]
QUICK = MockServerConfig(truth=True, ttft="5ms", itl="1ms", tokens=5)


@pytest.fixture
def mock(request: pytest.FixtureRequest) -> Iterator[RunningMockServer]:
    with running(getattr(request, "param", QUICK)) as server:
        yield server


def config(url: str, experiment: dict[str, Any] | None, **load: Any) -> dict[str, Any]:
    found = {
        "name": "knee",
        "endpoint": {"url": url, "model": "mock", "streaming": True},
        "load": {"concurrency": 2, "requests": 20} | load,
        "dataset": {"input_tokens": {"mean": 32}, "entries": 10},
        "random_seed": 7,
    }
    return found if experiment is None else found | {"experiment": experiment}


def launch(folder: Path, content: dict[str, Any], *flags: str) -> Command:
    """Start `run` with a config file in its own folder."""
    path = folder.parent / f"{folder.name}.yaml"
    path.write_text(yaml.safe_dump(content))
    return Command(folder, None, *flags, words=("run", str(path), "--local"))


def trials(folder: Path) -> list[dict[str, Any]]:
    return trials_of(artifacts(folder))


class Levels(NamedTuple):
    """A finished experiment with one trial for each of the `LEVELS`."""

    command: Command
    printed: dict[str, Any]
    served: int
    """Number of requests that the server received."""
    url: str


@pytest.fixture(scope="module")
def levels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Levels]:
    folder = tmp_path_factory.mktemp("levels")
    with running(QUICK) as server:
        content = config(server.url, {"product": {"load.concurrency": LEVELS}})
        command = launch(folder, content)
        yield Levels(command, command.finish(), server.truth()["requests"], server.url)


def test_every_trial_is_a_separate_run(levels: Levels) -> None:
    command = levels.command
    assert command.code in FINISHED, command.errors
    assert [t["parameters"] for t in levels.printed["results"]["trials"]] == [
        {"load.concurrency": level} for level in LEVELS
    ]
    assert_only_the_user_reads(artifacts(command.folder))
    assert levels.served == 20 * len(LEVELS)
    command.assert_nothing_is_left()
    seen, sent = set(), list[str]()
    for trial in trials(command.folder):
        folder = artifacts(command.folder) / "trials" / trial["folder"]
        summary = json.loads((folder / "profile_export_aiperf.json").read_text())
        accounts = summary["aiperf_svc"]["accounts"]
        assert (accounts["granted"], accounts["completed"]) == (20, 20)
        assert summary["request_count"]["avg"] == 20
        seen.add(trial["run_id"])
        sent.append((folder / "inputs.json").read_text())
    assert len(seen) == len(LEVELS)
    # The server would otherwise have the prompts of the previous trial in its cache.
    assert len(set(sent)) == len(LEVELS)


def test_trial_has_the_artifacts_of_a_run(levels: Levels, tmp_path: Path) -> None:
    """Compare the second trial, which could have inherited something from the first."""
    several = levels.command.folder
    alone = config(levels.url, None, concurrency=LEVELS[1])
    alone["dataset"] |= {"variant": 2}
    assert launch(tmp_path, alone).finish()["results"]
    trial = artifacts(several) / "trials" / trials(several)[1]["folder"]
    run = artifacts(tmp_path)
    names = {path.name for path in trial.iterdir()}
    assert names == {path.name for path in run.iterdir()} - {"logs"}
    assert (trial / "inputs.json").read_bytes() == (run / "inputs.json").read_bytes()
    assert (trial / "config.yaml").read_bytes() == (run / "config.yaml").read_bytes()
    for name in ("profile_export_aiperf.json", "verdict.json"):
        ours, theirs = (json.loads((folder / name).read_text()) for folder in (trial, run))
        for content in (ours, theirs):
            # During so short a load, the server's metrics depend on the time of the read.
            content.get("aiperf_svc", {}).get("system", {}).pop("metrics", None)
        assert shape(ours) == shape(theirs)
    lines = [(folder / "profile_export.jsonl").read_text().splitlines() for folder in (trial, run)]
    assert list(map(len, lines)) == [20, 20]
    ours, theirs = ([json.loads(line) for line in each] for each in lines)
    # Lines omit keys that do not apply, such as the time between two tokens of one read.
    for part in ("metadata", "metrics"):
        assert {k for each in ours for k in each[part]} == {
            k for each in theirs for k in each[part]
        }


def shape(value: Any) -> Any:
    """Return the keys of a result at every depth. The contents of lists differ from run to run."""
    return {key: shape(each) for key, each in value.items()} if isinstance(value, dict) else None


def test_lost_worker_is_replaced_before_the_next_trial(tmp_path: Path) -> None:
    # The first trial lasts until the loss is noticed.
    rows = [{"load.duration": "10s"}, {"load.requests": 60}]
    load = {"duration": "10m", "requests": None}
    with running(MockServerConfig(truth=True, ttft="50ms", tokens=2)) as mock:
        command = launch(tmp_path, config(mock.url, {"explicit": rows}, **load))
        command.wait_for_requests(mock, 10)
        os.kill(command.service("worker-0"), signal.SIGKILL)
        before = mock.truth()["requests"]
        command.finish()
        served = mock.truth()["requests"] - before
    first, second = trials(tmp_path)
    assert (first["state"], first["verdict"]) == ("done", "invalid")
    assert "worker-0 ended by SIGKILL; a new one takes part in the next trial" in command.errors
    assert second["state"] == "done"
    assert second["values"]["request_count_avg"] == 60 <= served
    command.assert_nothing_is_left()


def test_ctrl_c_keeps_results_and_begins_no_trial(mock: RunningMockServer, tmp_path: Path) -> None:
    rows = [{"load.requests": 20}, {"load.duration": "10m"}, {"load.duration": "20m"}]
    load = {"duration": "10m", "requests": None}
    command = launch(tmp_path, config(mock.url, {"explicit": rows}, **load))
    wait_for_trial(command, 2)
    command.wait_for_requests(mock, mock.truth()["requests"] + 10)
    command.process.send_signal(signal.SIGINT)
    command.finish()
    assert command.code is ExitCode.INTERRUPTED
    assert [trial["state"] for trial in trials(tmp_path)] == ["done", "cancelled"]
    assert trials(tmp_path)[1]["values"]["request_count_avg"] > 0
    command.assert_nothing_is_left()


def test_second_ctrl_c_leaves_an_experiment_at_once(tmp_path: Path) -> None:
    with running(MockServerConfig(truth=True, ttft="30s", tokens=2)) as server:
        command = launch(tmp_path, config(server.url, {"repetitions": 3}))
        command.wait_for_requests(server, 2)
        command.process.send_signal(signal.SIGINT)
        command.process.send_signal(signal.SIGTERM)
        command.finish()
        assert server.truth()["requests"] == 2
    assert command.code is ExitCode.INTERRUPTED
    command.assert_nothing_is_left()


def wait_for_trial(command: Command, number: int) -> None:
    """Wait until a trial has its folder."""
    wait_until(command, lambda: bool([*command.folder.glob(f"artifacts/*/trials/{number:03}-*")]))


def test_failed_trial_does_not_end_the_others(mock: RunningMockServer, tmp_path: Path) -> None:
    rows = [{"endpoint.url": "http://127.0.0.1:1", "endpoint.wait_for_server": "100ms"}, {}]
    command = launch(tmp_path, config(mock.url, {"explicit": rows}))
    command.finish()
    assert command.code is ExitCode.BENCHMARK_FAILED
    first, second = trials(tmp_path)
    assert first["state"] == "failed"
    assert "the server is not ready after 100ms" in first["reason"]
    assert (second["state"], second["values"]["request_count_avg"]) == ("done", 20)


TWO_SLOTS = MockServerConfig(truth=True, slots=2, ttft="80ms", itl="40ms", tokens=3)
"""A response takes 160 ms. With three users on two slots, half of them wait 80 ms or longer."""


def test_repeated_invalid_trial_is_in_every_file(tmp_path: Path) -> None:
    """A server without latency makes every trial invalid, even when it runs again."""
    with running(MockServerConfig(truth=True, ttft="0ms", itl="0ms", tokens=1)) as null:
        content = config(null.url, {"repetitions": 2}, concurrency=1, requests=300)
        command = launch(tmp_path, content)
        command.finish()
        served = null.truth()["requests"]
    found = trials(tmp_path)
    assert command.code is ExitCode.VERDICT_INVALID, command.errors
    assert served == 300 * (2 + REPLACEMENTS)
    assert [trial["replaced"] for trial in found] == [["invalid: client-bound"] * 2, []]
    assert [trial["left_out"] for trial in found] == ["invalid: client-bound"] * 2
    assert found[0]["folder"].endswith("-r1-attempt3")
    assert "run again: trial 1 (no parameters): invalid: client-bound; invalid" in command.errors
    inputs = {path.read_bytes() for path in (artifacts(tmp_path) / "trials").glob("*/inputs.json")}
    assert len(inputs) == 2 + REPLACEMENTS, "the server may have the prompts in a cache"
    command.assert_nothing_is_left()


def search_for_users(url: str) -> dict[str, Any]:
    content = config(
        url, {"search": {"parameter": "load.concurrency", "from": 1, "to": 4, "confirm": 1}}
    )
    # One or two late requests on a busy machine are less than a quarter of the requests.
    objective = {"metric": "time_to_first_token", "stat": "p75", "max": "130ms"}
    load = {"concurrency": 2, "requests": 26}
    return content | {"slo": {"objectives": [objective]}, "load": load}


def test_resumed_search_finds_the_slots_of_a_server(tmp_path: Path) -> None:
    with running(TWO_SLOTS) as server:
        content = search_for_users(server.url)
        command = launch(tmp_path, content)
        wait_for_trial(command, 2)
        command.wait_for_requests(server, server.truth()["requests"] + 2)
        command.process.send_signal(signal.SIGINT)
        search = command.finish()["results"]["search"]
        assert command.code is ExitCode.INTERRUPTED
        done = [trial for trial in trials(tmp_path) if trial["state"] == "done"]
        assert (search["ending"], search["trials"]) == ("unfinished", len(done))
        # The interrupted trial gives no result for its load.
        assert search["breaks"] is None
        assert search["result"].startswith("not finished; holds 1 user")

        resumed = launch(tmp_path, content, "--resume", str(artifacts(tmp_path)))
        search = resumed.finish()["results"]["search"]
    assert resumed.code in FINISHED, resumed.errors
    assert (search["ending"], search["holds"]) == ("bracketed", 2)
    assert search["result"].startswith("holds 2 users, breaks at")
    resumed.assert_nothing_is_left()


def test_load_certain_to_break_ends_early(tmp_path: Path) -> None:
    """Four slots of 800 ms serve five requests per second, and ten arrive."""
    # Slow responses, so that pauses of a busy machine are a small share of them.
    rate, seconds = 10, 20
    content = config(
        "",
        {"search": {"parameter": "load.request_rate", "from": rate, "to": 100, "confirm": 1}},
        concurrency=None,
        requests=None,
        request_rate=rate,
        duration=f"{seconds}s",
    )
    content["slo"] = {"objectives": [{"metric": "time_to_first_token", "stat": "p99", "max": "1s"}]}
    server = MockServerConfig(truth=True, slots=4, ttft="400ms", itl="200ms", tokens=3)
    with running(server) as mock:
        content["endpoint"]["url"] = mock.url
        command = launch(tmp_path, content)
        found = command.finish()
        requests = mock.truth()["requests"]
    assert command.code is ExitCode.SLO_MISSED, command.errors
    assert found["results"]["search"]["ending"] == "breaks-at-once"
    assert "ended early" in found["results"]["search"]["result"]
    assert [(t["state"], t["cause"]) for t in trials(tmp_path)] == [("done", "ended-early")] * 2
    # The second trial confirms. Without early stopping, it would take three times as long.
    assert requests < rate * seconds * 4 / 2
    command.assert_nothing_is_left()


@pytest.mark.parametrize(
    "mock", [MockServerConfig(truth=True, ttft="40ms", tokens=2)], indirect=True, ids=["slow"]
)
def test_killed_experiment_resumes_with_the_remaining_trials(
    mock: RunningMockServer, tmp_path: Path
) -> None:
    levels = [4, 1, 2]  # The second trial, which is killed, takes four seconds.
    experiment = {"product": {"load.concurrency": levels}, "cooldown": "1s"}
    content = config(mock.url, experiment, requests=100)
    command = launch(tmp_path, content)
    wait_for_trial(command, 2)
    kill(command)
    folder = artifacts(tmp_path)
    (first,) = trials(tmp_path)
    seen = mock.truth()["requests"]
    other = launch(tmp_path, content | {"random_seed": 8}, "--resume", str(folder))
    other.finish()
    assert other.code is ExitCode.BAD_CONFIG
    assert "is of another config: random_seed differs;" in other.errors
    once = launch(tmp_path, content, "--resume", str(folder))
    wait_until(once, lambda: len(trials(tmp_path)) >= 2)
    kill(once)  # between two trials
    assert trials(tmp_path)[0] == first
    second = trials(tmp_path)[1]
    assert mock.truth()["requests"] >= seen + 100
    again = launch(tmp_path, content, "--resume", str(folder))
    found = again.finish()
    assert again.code in FINISHED, again.errors
    assert [trial["parameters"]["load.concurrency"] for trial in trials(tmp_path)] == levels
    assert trials(tmp_path)[:2] == [first, second]
    assert found["results"]["trials"] == trials(tmp_path)
    again.assert_nothing_is_left()
    # A runner may be killed after the last trial but before it has written all files.
    seen = mock.truth()["requests"]
    (folder / "report.html").unlink()
    last = launch(tmp_path, content, "--resume", str(folder))
    assert last.finish()["results"]["trials"] == found["results"]["trials"]
    assert last.code == again.code
    assert (folder / "report.html").exists()
    assert mock.truth()["requests"] == seen


def test_a_tool_on_ranks_has_trials_too(tmp_path: Path) -> None:
    metrics = {"speed": {"unit": "MB/s", "better": "higher", "pattern": "speed ([0-9]+)"}}
    workload = {"kind": "command", "command": ["sh", "-c", "echo speed 5"], "metrics": metrics}
    rows = [{"workload.command": ["sh", "-c", f"echo speed {value}"]} for value in (5, 7)]
    content = {"workload": workload, "experiment": {"explicit": rows}}
    command = launch(tmp_path, content)
    found = command.finish()
    assert command.code in FINISHED, command.errors
    assert [trial["values"]["speed_avg"] for trial in found["results"]["trials"]] == [5, 7]
    command.assert_nothing_is_left()


def test_trials_with_other_processes_resume(mock: RunningMockServer, tmp_path: Path) -> None:
    experiment = {"product": {"workers.max": [1, 2], "load.concurrency": [1, 2]}}
    content = config(mock.url, experiment)
    command = launch(tmp_path, content)
    found = command.finish()
    assert command.code in FINISHED, command.errors
    command.assert_nothing_is_left()
    listed = found["results"]["trials"]
    assert [(t["number"], t["state"]) for t in listed] == [(n, "done") for n in range(1, 5)]
    assert trials(tmp_path) == listed
    assert mock.truth()["requests"] == 20 * 4
    assert len({trial["run_id"] for trial in listed}) == 4
    assert "shape 2 of 2 (workers.max=2)" in command.errors
    assert "a new one takes part" not in command.errors
    folder = artifacts(tmp_path)
    assert (folder / "experiment.parquet").exists()

    known = json.loads((folder / "experiment.json").read_text())
    known["trials"] = [t for t in known["trials"] if t["number"] != 4]
    (folder / "experiment.json").write_text(json.dumps(known))
    again = launch(tmp_path, content, "--resume", str(folder))
    found = again.finish()
    assert again.code in FINISHED, again.errors
    assert [trial["number"] for trial in found["results"]["trials"]] == [1, 2, 3, 4]
    assert mock.truth()["requests"] == 20 * 5
