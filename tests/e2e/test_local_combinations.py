"""Trials that a session names one by one, and rounds over several targets, with real processes."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aiperf_svc.adapters.exports.manifest import read_manifest
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import RunningMockServer, running
from tests.support.running_command import FINISHED, Command, artifacts, trials_of

NAMES = ("fast", "slow")
QUICK = MockServerConfig(truth=True, ttft="5ms", itl="1ms", tokens=5)
SLOW = MockServerConfig(truth=True, ttft="60ms", itl="1ms", tokens=5)


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, RunningMockServer]]:
    with running(QUICK) as fast, running(SLOW) as slow:
        yield dict(zip(NAMES, (fast, slow), strict=True))


def launch(
    folder: Path, servers: dict[str, RunningMockServer], *flags: str, **config: Any
) -> Command:
    """Start a command for these servers as targets, or for the only server."""
    targets = [{"name": n, "endpoint": {"url": each.url}} for n, each in servers.items()]
    (first, *_) = servers.values()
    content = {
        "name": "both",
        "endpoint": {"url": first.url, "model": "mock", "streaming": True},
        "load": {"concurrency": 2, "requests": 20},
        "dataset": {"input_tokens": {"mean": 32}, "entries": 10},
        **({"targets": targets} if len(targets) > 1 else {}),
        **config,
    }
    path = folder.parent / f"{folder.name}.yaml"
    path.write_text(yaml.safe_dump(content))
    return Command(folder, None, *flags, words=("profile", "--config", str(path)))


def test_shapes_of_several_targets_run_in_rounds(
    servers: dict[str, RunningMockServer], tmp_path: Path
) -> None:
    experiment = {"product": {"workers.max": [1, 2]}}
    command = launch(tmp_path, servers, experiment=experiment)
    printed = command.finish()
    assert command.code in FINISHED, command.errors
    folder = artifacts(tmp_path)
    for name in NAMES:
        assert [each["state"] for each in trials_of(folder / name)] == ["done", "done"]
    total = printed["results"]["total"]["trials"]
    assert [each["values"]["request_count_avg"] for each in total] == [40, 40]
    assert [each["total_of"] for each in printed["results"]["starts"]] == [list(NAMES)] * 2
    assert all(each["start_uncertainty_ms"] is not None for each in printed["results"]["starts"])
    command.assert_nothing_is_left()


def test_search_finds_load_that_all_targets_sustain(
    servers: dict[str, RunningMockServer], tmp_path: Path
) -> None:
    search = {
        "parameter": "load.concurrency", "from": 1, "to": 2, "holds": "slo", "confirm": 1,
    }  # fmt: skip
    slo = {"objectives": [{"metric": "time_to_first_token", "stat": "p50", "max": "30ms"}]}
    command = launch(
        tmp_path, servers, experiment={"search": search}, slo=slo, load={"requests": 40}
    )
    printed = command.finish()
    folder = artifacts(tmp_path)
    found = json.loads((folder / "fast" / "experiment.json").read_bytes())["search"]
    # The fast server stays below 30 ms with one user; the slow one does not.
    assert (found["holds"], found["breaks"]) == (None, 1), command.errors
    assert printed["results"]["search"] == found
    total = printed["results"]["total"]["trials"]
    # On a busy machine the verdict may be invalid, which is then the reason.
    is_judged = all(each["verdict"] != "invalid" for each in total)
    assert "of slow" in found["reason"] or not is_judged
    assert {each["parameters"]["load.concurrency"] for each in total} == {1}
    for name in NAMES:
        assert len(trials_of(folder / name)) == len(total)
    command.assert_nothing_is_left()


def test_a_search_can_change_the_processes(
    servers: dict[str, RunningMockServer], tmp_path: Path
) -> None:
    search = {"parameter": "workers.max", "from": 1, "to": 2, "maximize": "request_throughput"}
    one = {"fast": servers["fast"]}
    before = one["fast"].truth()["requests"]
    command = launch(tmp_path, one, experiment={"search": search})
    printed = command.finish()
    assert command.code in FINISHED, command.errors
    trials = printed["results"]["trials"]
    assert [each["parameters"]["workers.max"] for each in trials] == [1, 2]
    assert one["fast"].truth()["requests"] == before + 2 * 20
    folder = artifacts(tmp_path)
    for each in trials:
        path = folder / "trials" / each["folder"] / "profile_export_aiperf.json"
        assert json.loads(path.read_bytes())["request_count"]["avg"] == 20
    again = launch(tmp_path, one, "--resume", str(folder), experiment={"search": search})
    assert again.finish()["results"]["trials"] == trials
    assert one["fast"].truth()["requests"] == before + 2 * 20
    again.assert_nothing_is_left()


def test_failed_trial_is_run_again_by_all_targets(
    servers: dict[str, RunningMockServer], tmp_path: Path
) -> None:
    fast = servers["fast"]
    before = fast.truth()["requests"]
    absent = {"url": "http://127.0.0.1:1", "wait_for_server": "100ms"}
    targets = [
        {"name": "fast", "endpoint": {"url": fast.url}},
        {"name": "absent", "endpoint": absent},
    ]
    experiment = {"product": {"load.concurrency": [1, 2]}, "retries": 1}
    command = launch(tmp_path, servers, experiment=experiment, targets=targets)
    command.finish()
    assert command.code == ExitCode.BENCHMARK_FAILED
    assert fast.truth()["requests"] == before + 2 * 2 * 20
    folder = artifacts(tmp_path)
    names = sorted(path.name for path in (folder / "fast" / "trials").iterdir())
    assert [name.partition("-attempt")[2] for name in names] == ["", "2", "", "2"]
    assert [each["state"] for each in trials_of(folder / "absent")] == ["failed", "failed"]
    command.assert_nothing_is_left()


def test_trial_of_each_target_has_mlperf_files(
    servers: dict[str, RunningMockServer], tmp_path: Path
) -> None:
    experiment = {"scenario": "single-stream", "retries": 1}
    command = launch(tmp_path, servers, experiment=experiment, load={"requests": 5})
    command.finish()
    for name in NAMES:
        (trial,) = (artifacts(tmp_path) / name / "trials").iterdir()
        assert "SingleStream" in (trial / "mlperf" / "mlperf_log_summary.txt").read_text()
        listed = {entry.name for entry in read_manifest(trial).files}
        assert "mlperf/mlperf_log_summary.txt" in listed


def test_rounds_of_several_targets_resume_after_interrupt(
    servers: dict[str, RunningMockServer], tmp_path: Path
) -> None:
    experiment = {"product": {"workers.max": [1, 2]}}
    load = {"concurrency": 1, "duration": "2s"}
    first = launch(tmp_path, servers, experiment=experiment, load=load)
    first.wait_for_requests(servers["slow"], servers["slow"].truth()["requests"] + 1)
    first.process.send_signal(signal.SIGINT)
    first.finish()
    assert first.code == ExitCode.INTERRUPTED
    folder = artifacts(tmp_path)
    second = launch(tmp_path, servers, "--resume", str(folder), experiment=experiment, load=load)
    printed = second.finish()
    assert second.code in FINISHED, second.errors
    assert len(printed["results"]["total"]["trials"]) == 2
    for name in NAMES:
        assert [each["state"] for each in trials_of(folder / name)] == ["done"] * 2
    second.assert_nothing_is_left()
