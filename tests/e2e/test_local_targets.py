"""Several targets on this machine: one run per target with a common start, or one run over all."""

import hashlib
import json
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from arro3.io import read_parquet

from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import RunningMockServer, running
from tests.support.running_command import FINISHED, Command, artifacts, kill, wait_until

NAMES = ("there", "same")


@pytest.fixture(scope="module")
def mock() -> Iterator[RunningMockServer]:
    with running(MockServerConfig(truth=True, ttft="5ms", itl="1ms", tokens=5)) as server:
        yield server


def launch(
    folder: Path, mock: RunningMockServer, *flags: str, experiment: Any = None, **load: Any
) -> Command:
    """Start a command with two targets that are the same server."""
    content = {
        "name": "two",
        "endpoint": {"url": mock.url, "model": "mock", "streaming": True},
        "load": {"concurrency": 2} | load,
        "dataset": {"input_tokens": {"mean": 32}, "entries": 10},
        "targets": [
            {"name": "there", "endpoint": {"url": mock.url}},
            {"name": "same", "endpoint": {"url": mock.url, "streaming": False}},
        ],
        "experiment": experiment,
    }
    path = folder.parent / f"{folder.name}.yaml"
    path.write_text(yaml.safe_dump(content))
    return Command(folder, None, *flags, words=("profile", "--config", str(path)))


def test_targets_start_together_and_the_total_is_exact(
    mock: RunningMockServer, tmp_path: Path
) -> None:
    command = launch(tmp_path, mock, requests=400)
    printed = command.finish()
    assert command.code in (ExitCode.OK, ExitCode.VERDICT_INVALID), command.errors
    folder = artifacts(tmp_path)
    joint = json.loads((folder / "joint.json").read_bytes())
    assert printed["results"] == joint
    own = [
        json.loads((folder / name / "profile_export_aiperf.json").read_bytes()) for name in NAMES
    ]
    for tag in ("request_count", "total_isl", "total_osl"):
        assert joint["total"][tag]["avg"] == sum(each[tag]["avg"] for each in own)
    assert joint["total"]["request_count"]["avg"] <= mock.truth()["requests"]
    check_spread(joint, *(folder / name for name in NAMES))
    command.assert_nothing_is_left()


def test_trials_over_targets_start_together(mock: RunningMockServer, tmp_path: Path) -> None:
    with running(MockServerConfig(truth=True, ttft="1s", itl="1ms", tokens=5)) as slow:
        before = mock.truth()["requests"]
        content = {
            "name": "rates",
            "endpoint": {"url": mock.url, "model": "mock", "streaming": True},
            "load": {"requests": 20},
            "dataset": {"input_tokens": {"mean": 32}, "entries": 10},
            "experiment": {"product": {"load.request_rate": [10, 40]}},
            "targets": [
                {"name": "fast", "endpoint": {"url": mock.url}},
                {"name": "slow", "endpoint": {"url": slow.url}},
            ],
        }
        path = tmp_path.parent / f"{tmp_path.name}.yaml"
        path.write_text(yaml.safe_dump(content))
        command = Command(tmp_path, None, words=("profile", "--config", str(path)))
        printed = command.finish()
        served = {"fast": mock.truth()["requests"] - before, "slow": slow.truth()["requests"]}
    assert command.code in (ExitCode.OK, ExitCode.VERDICT_INVALID), command.errors
    folder = artifacts(tmp_path)
    joint = json.loads((folder / "joint.json").read_bytes())
    assert printed["results"] == joint
    trials = joint["total"]["trials"]
    assert [each["parameters"]["load.request_rate"] for each in trials] == [10, 40]
    sent = Counter[str]()
    for trial, start in zip(trials, joint["starts"], strict=True):
        own = {name: accounts_of(folder / name, trial["folder"]) for name in ("fast", "slow")}
        for name, accounts in own.items():
            assert accounts["violations"] == []
            sent[name] += accounts["requests_sent"]
        total = trial["values"]
        assert total["request_count_avg"] == sum(each["completed"] for each in own.values())
        assert total["request_latency_count"] == total["request_count_avg"]
        one = json.loads((folder / "trials" / trial["folder"] / "joint.json").read_bytes())
        own_ms = [each["metrics"]["time_to_first_token"]["p50"] for each in one["members"]]
        # Usually the slow server's value, but on a busy machine the other server may be slower.
        assert min(own_ms) < total["time_to_first_token_p50"] < max(own_ms)
        runs = [folder / name / "trials" / trial["folder"] for name in ("fast", "slow")]
        check_spread(start, *runs)
    assert sent == served
    fast, slow_one = joint["members"]
    assert len(fast["combinations"]) == len(slow_one["combinations"]) == 2
    command.assert_nothing_is_left()


def test_killed_experiment_over_targets_resumes(tmp_path: Path) -> None:
    experiment = {"product": {"load.concurrency": [2, 1]}}
    # The trial that is killed takes five seconds and does little.
    with running(MockServerConfig(truth=True, ttft="500ms", tokens=2)) as slow:
        first = launch(tmp_path, slow, experiment=experiment, requests=10)
        wait_for_trials(first, 1)
        first.wait_for_requests(slow, 2 * 10 + 1)
        kill(first)
        folder = artifacts(tmp_path)
        ended = [records_of(tmp_path, name) for name in NAMES]
        assert [set(each) for each in ended] == [{1}, {1}]
        seen = slow.truth()["requests"]
        resume = ("--resume", str(folder))
        second = launch(tmp_path, slow, *resume, experiment=experiment, requests=10)
        printed = second.finish()
        assert second.code in (ExitCode.OK, ExitCode.VERDICT_INVALID), second.errors
        assert slow.truth()["requests"] == seen + 2 * 10
        for name, before in zip(NAMES, ended, strict=True):
            after = records_of(tmp_path, name)
            assert set(after) == {1, 2}
            assert after[1] == before[1]
            assert len(list((folder / name / "trials").glob("*-unfinished1"))) == 1
        trials = printed["results"]["total"]["trials"]
        assert [each["values"]["request_count_avg"] for each in trials] == [20, 20]
        assert [each["total_of"] for each in printed["results"]["starts"]] == [list(NAMES)] * 2
        (folder / "joint.json").unlink()
        third = launch(tmp_path, slow, *resume, experiment=experiment, requests=10)
        again = third.finish()["results"]
        assert slow.truth()["requests"] == seen + 2 * 10
    # The clocks at each start are no longer known, so the common time is less exact.
    for before, after in zip(trials, again["total"]["trials"], strict=True):
        assert after["values"] == pytest.approx(before["values"], rel=0.01)
    assert again == json.loads((folder / "joint.json").read_bytes())
    third.assert_nothing_is_left()


def wait_for_trials(command: Command, number: int) -> None:
    """Wait until this many trials have ended for both targets."""
    wait_until(
        command, lambda: all(len(records_of(command.folder, name)) >= number for name in NAMES)
    )


def records_of(folder: Path, name: str) -> dict[int, str]:
    """Return the hash of the records of each ended trial of a target by trial number."""
    found = {}
    for path in folder.glob(f"artifacts/*/{name}/experiment.json"):
        for each in json.loads(path.read_bytes())["trials"]:
            records = path.parent / "trials" / each["folder"] / "records.parquet"
            found[each["number"]] = hashlib.sha256(records.read_bytes()).hexdigest()
    return found


def check_spread(start: dict[str, Any], *runs: Path) -> None:
    """Check that the first requests of two runs are due together. Compare the spread and the common
    time with the runs' lines and clocks. Their size depends on the machine."""
    lines = [(run / "profile_export.jsonl").read_bytes().splitlines() for run in runs]
    requests = [[json.loads(line)["metadata"] for line in each] for each in lines]
    due, starts = (
        [min(each[name] for each in run) for run in requests]
        for name in ("credit_issued_ns", "request_start_ns")
    )
    ends = [max(each["request_end_ns"] for each in run) for run in requests]
    error_ms = 2 * start["start_uncertainty_ms"] + 1e-3
    assert due[0] / 1e6 == pytest.approx(due[1] / 1e6, rel=0, abs=error_ms)
    assert start["start_spread_ms"] == pytest.approx(abs(starts[0] - starts[1]) / 1e6, abs=error_ms)
    common_s = max(0, min(ends) - max(starts)) / 1e9
    assert start["interval_s"] == pytest.approx(common_s, abs=error_ms / 1e3)


def accounts_of(folder: Path, trial: str) -> dict[str, Any]:
    """Return the accounts of a trial in an experiment's folder."""
    path = folder / "trials" / trial / "profile_export_aiperf.json"
    accounts: dict[str, Any] = json.loads(path.read_bytes())["aiperf_svc"]["accounts"]
    return accounts


def wait_for_responses_to_both(command: Command, mock: RunningMockServer) -> None:
    """Wait until the server has responded to each target several times since its record was reset,
    to one of them in several parts."""

    def is_reached() -> bool:
        rows = mock.truth(rows=True)["rows"]
        are_streams = [len(row["chunk_wall_ns"]) > 1 for row in rows if row["end_wall_ns"]]
        return min(are_streams.count(True), are_streams.count(False)) > 5

    wait_until(command, is_reached)


def test_ctrl_c_keeps_results_of_all_targets(mock: RunningMockServer, tmp_path: Path) -> None:
    experiment = {"product": {"load.concurrency": [1, 2, 3]}}
    mock.reset()
    command = launch(tmp_path, mock, experiment=experiment, duration="10m")
    wait_for_responses_to_both(command, mock)
    command.process.send_signal(signal.SIGINT)
    printed = command.finish()
    assert command.code == ExitCode.INTERRUPTED
    (trial,) = printed["results"]["total"]["trials"]
    assert trial["left_out"].startswith("cancelled: there: interrupted by the user; same: ")
    (start,) = printed["results"]["starts"]
    assert start["total_of"] == ["there", "same"]
    command.assert_nothing_is_left()


def test_ctrl_c_stops_all_targets_and_keeps_results(
    mock: RunningMockServer, tmp_path: Path
) -> None:
    mock.reset()
    command = launch(tmp_path, mock, duration="10m")
    wait_for_responses_to_both(command, mock)
    command.process.send_signal(signal.SIGINT)
    printed = command.finish()
    assert command.code == ExitCode.INTERRUPTED
    assert printed["results"]["total_of"] == ["there", "same"]
    assert printed["results"]["total"]["request_count"]["avg"] > 0
    command.assert_nothing_is_left()


def test_addresses_are_used_in_turn(mock: RunningMockServer, nobody: str, tmp_path: Path) -> None:
    with running(MockServerConfig(truth=True, ttft="5ms", itl="1ms", tokens=5)) as other:
        before = mock.truth()["requests"]
        flags = ("-u", nobody, "-u", other.url, "--concurrency", "4", "--request-count", "60")
        command = Command(tmp_path, mock.url, *flags, "--random-seed", "4")
        printed = command.finish()
        served = [mock.truth()["requests"] - before, 0, other.truth()["requests"]]
    results = printed["results"]
    targets = results["aiperf_svc"]["targets"]
    assert [each["url"] for each in targets] == [mock.url, nobody, other.url]
    assert [each["request_count"]["avg"] for each in targets] == served == [20, 0, 20]
    assert [each["error_request_count"]["avg"] for each in targets] == [0, 20, 0]
    assert results["request_count"]["avg"] == 40
    assert results["error_request_count"]["avg"] == 20
    (error,) = results["error_summary"]
    assert error["error_details"]["message"].startswith(nobody.removeprefix("http://") + ": ")
    counts = [each.get("request_latency", {}).get("count", 0) for each in targets]
    assert results["request_latency"]["count"] == sum(counts)
    accounts = results["aiperf_svc"]["accounts"]
    assert (accounts["granted"], accounts["completed"], accounts["errored"]) == (60, 40, 20)
    assert accounts["violations"] == []
    command.assert_nothing_is_left()


def test_prompts_of_a_user_stay_on_one_address(mock: RunningMockServer, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    lines = [[f"turn {turn} of user {user}" for turn in range(2)] for user in range(5)]
    prompts.write_text("\n".join(json.dumps({"turns": each}) for each in lines))
    with running(MockServerConfig(truth=True, ttft="1ms", tokens=2)) as other:
        before = mock.truth()["requests"]
        flags = ("-u", other.url, "--url-strategy", "per_user", "--dataset-order", "shuffled")
        command = Command(
            tmp_path,
            mock.url,
            *(*flags, "--concurrency", "3", "--request-count", "100"),
            *("--input-file", str(prompts), "--custom-dataset-type", "multi_turn"),
        )
        results = command.finish()["results"]
        served = [mock.truth()["requests"] - before, other.truth()["requests"]]
    assert command.code in FINISHED, command.errors
    targets = results["aiperf_svc"]["targets"]
    assert [each["request_count"]["avg"] for each in targets] == served == [60, 40]
    table = read_parquet(artifacts(tmp_path) / "records.parquet").read_all()
    at = zip(table["entry"].to_pylist(), table["target"].to_pylist(), strict=True)
    assert Counter(at) == {(entry, entry % 2): 20 for entry in range(5)}
    assert results["aiperf_svc"]["accounts"]["violations"] == []


def test_least_busy_address_and_model_weights_are_used(nobody: str, tmp_path: Path) -> None:
    quick = MockServerConfig(truth=True, ttft="5ms", itl="1ms", tokens=5)
    slow = MockServerConfig(truth=True, ttft="1s", itl="1ms", tokens=5)
    with running(quick) as first, running(slow) as second:
        flags = ("-u", first.url, "-u", second.url, "-u", nobody, "-m", "base,lora-a,lora-b")
        command = Command(
            tmp_path,
            None,
            *(*flags, "--url-strategy", "least_in_flight", "--model-weights", "2,1,1"),
            *("--streaming", "--concurrency", "4", "--request-count", "120"),
            *("--num-dataset-entries", "24", "--workers-max", "1"),
        )
        results = command.finish()["results"]
        served = [first.truth()["requests"], second.truth()["requests"], 0]
    assert command.code in FINISHED, command.errors
    ours = results["aiperf_svc"]
    assert [each["request_count"]["avg"] for each in ours["targets"]] == served
    errors = [each["error_request_count"]["avg"] for each in ours["targets"]]
    assert errors[:2] == [0, 0]
    assert errors[2] == 120 - sum(served)
    assert 40 <= errors[2] < 60, "a down address gets its turns and does not look idle"
    assert served[0] > 2 * served[1], "half of the users use each address, and latencies differ"
    inputs = json.loads((artifacts(tmp_path) / "inputs.json").read_bytes())["data"]
    requested = Counter(inputs[index % 24]["payloads"][0]["model"] for index in range(120))
    assert requested == {"base": 60, "lora-a": 30, "lora-b": 30}
    by_model = {
        each["model"]: each["request_count"]["avg"] + each["error_request_count"]["avg"]
        for each in ours["models"]
    }
    assert by_model == requested
    assert sum(each["request_count"]["avg"] for each in ours["models"]) == sum(served)
    assert ours["accounts"]["violations"] == []
