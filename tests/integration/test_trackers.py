"""Finished runs in MLflow and Weights & Biases, with whole runs and local stores."""

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from aiperf_svc.adapters.exports import result_files
from aiperf_svc.adapters.trackers import mlflow_runs
from aiperf_svc.adapters.trackers.finished_run import FinishedFolder, read_finished
from aiperf_svc.cli.main import main
from aiperf_svc.config.artifacts import Mlflow
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from tests.support import fake_steps
from tests.support.fake_folders import write_trials
from tests.support.forked_commands import finished

LOAD = ("--concurrency", "2", "--request-count", "30", "--isl", "20", "--json", "--ui", "none")
SECRET = "do-not-tell"


@pytest.fixture(autouse=True)
def _local_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configure MLflow's file store, which it asks to confirm, and no network for W&B."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)


@pytest.fixture(scope="module")
def mlflow() -> Any:
    """Imported here because it takes a second, and each process imports all test modules."""
    return import_module("mlflow")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running(MockServerConfig(ttft="2ms", itl="1ms", tokens=5)) as mock:
        yield mock.url


def measured(folder: Path, url: str, *flags: str) -> tuple[int, dict[str, Any], str]:
    """Return the exit code, the printed JSON, and the standard error."""
    target = ("-u", url, "-m", "mock", "--streaming", "--artifact-dir", "artifacts")
    key = ("--api-key", SECRET)
    done = finished(["profile", *target, *key, *LOAD, *flags], cwd=folder, timeout=120)
    return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


def test_run_is_filed_later_if_store_is_unavailable(
    url: str, tmp_path: Path, mlflow: Any, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    away = ("--mlflow-tracking-uri", "http://127.0.0.1:9", "--mlflow-experiment", "nightly")
    wandb = ("--wandb-project", "bench", "--wandb-tag", "nightly")
    code, printed, errors = measured(tmp_path, url, *away, *wandb)
    assert code == ExitCode.ERROR, errors
    assert "not sent to MLflow at http://127.0.0.1:9: " in printed["artifact_error"]
    assert "`aiperf-svc track FOLDER` sends what is missing" in printed["artifact_error"]
    folder, results = tmp_path / printed["artifacts"], printed["results"]
    assert results["request_count"]["avg"] == 30

    (offline,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    kept = offline.read_bytes()
    for text in ("time_to_first_token.p90", "load.concurrency", "nightly", "aiperf-run"):
        assert text.encode() in kept
    assert SECRET.encode() not in kept

    store = f"file:{tmp_path}/mlruns"
    flags = ("--mlflow-tracking-uri", store, "--mlflow-tag", "team:perf", "--mlflow-run-name", "a")
    assert main(["track", str(folder), *flags]) == 0
    assert f"in 'nightly' at {store}" in capsys.readouterr().out
    client = mlflow.MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("nightly")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("a", "FINISHED")
    ttft = results["time_to_first_token"]
    assert run.data.metrics["time_to_first_token.p90"] == ttft["p90"]
    assert run.data.metrics["request_count"] == 30
    assert run.data.params["load.concurrency"] == "2"
    assert run.data.params["endpoint.url"] == url
    assert run.data.tags["team"] == "perf"
    assert run.data.tags["aiperf_svc.run_id"] == results["benchmark_id"]
    assert run.data.tags["aiperf_svc.verdict"] == results["aiperf_svc"]["verdict"]
    assert SECRET not in str(run.data)
    names = {each.path for each in client.list_artifacts(run.info.run_id)}
    assert names == {
        "profile_export_aiperf.json", "profile_export_aiperf.csv", "verdict.json", "config.yaml",
        "report.html",
    }  # fmt: skip


def test_trials_are_filed_one_by_one_by_hand(
    tmp_path: Path, mlflow: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, store = tmp_path / "experiment", f"file:{tmp_path}/mlruns"
    write_trials(folder, 30, 30)
    assert main(["track", str(folder), "--mlflow-tracking-uri", store]) == 0
    client = mlflow.MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("aiperf")
    assert experiment is not None
    first = client.search_runs([experiment.experiment_id])
    assert len(first) == len(capsys.readouterr().out.splitlines()) == 2

    # One trial was not accepted. Only that trial is sent the next time.
    (_, missing) = sorted((folder / "trials").glob("*/trackers.json"))
    missing.unlink()
    assert main(["track", str(folder), "--mlflow-tracking-uri", store]) == 0
    earlier, sent = capsys.readouterr().out.splitlines()
    assert earlier.endswith("trackers.json)")
    again = client.search_runs([experiment.experiment_id])
    assert len(again) == 3
    (new,) = {run.info.run_id for run in again} - {run.info.run_id for run in first}
    assert f"MLflow run {new} in" in sent
    assert main(["track", str(folder), "--mlflow-tracking-uri", store]) == 0
    assert len(client.search_runs([experiment.experiment_id])) == 3
    other = ("--mlflow-tracking-uri", store, "--mlflow-experiment", "other")
    assert main(["track", str(folder), *other]) == 0
    assert "sent earlier" not in capsys.readouterr().out.splitlines()[-1]
    assert main(["track", str(tmp_path), "--mlflow-tracking-uri", store]) == ExitCode.BAD_CONFIG
    assert "config.yaml: no such file" in capsys.readouterr().err


def test_partly_filed_run_is_ended_in_the_store(
    tmp_path: Path, mlflow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished = FinishedFolder(folder=tmp_path, name="a", run_id="r", params={"load.requests": "1"},
                              metrics={}, tags={}, was_cancelled=False, ended_ms=1)  # fmt: skip

    def refuse(*_: Any, **__: Any) -> None:
        raise mlflow.exceptions.MlflowException("too large")

    monkeypatch.setattr(mlflow.MlflowClient, "log_batch", refuse)
    store = f"file:{tmp_path}/mlruns"
    with pytest.raises(EnvironmentProblem, match="too large"):
        mlflow_runs.send(finished, Mlflow(tracking_uri=store))
    client = mlflow.MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("aiperf")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FAILED"


def test_any_key_of_a_body_becomes_a_parameter(tmp_path: Path, mlflow: Any) -> None:
    body = "endpoint.extra_inputs.guided_json"
    finished = FinishedFolder(folder=tmp_path, name="a", run_id="r", metrics={}, tags={},
                              params={f"{body}.$schema": "x", "k" * 300: "y"},
                              was_cancelled=False, ended_ms=1)  # fmt: skip
    store = f"file:{tmp_path}/mlruns"
    mlflow_runs.send(finished, Mlflow(tracking_uri=store))
    client = mlflow.MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("aiperf")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.data.params == {f"{body}._schema": "x", "k" * 250: "y"}


def test_files_with_one_name_are_all_filed(tmp_path: Path, mlflow: Any) -> None:
    for rank in ("rank-0", "rank-1"):
        (tmp_path / "run" / rank).mkdir(parents=True)
        (tmp_path / "run" / rank / "stdout").write_text(rank)
    finished = FinishedFolder(folder=tmp_path / "run", name="a", run_id="r", params={}, metrics={},
                              tags={}, was_cancelled=False, ended_ms=1)  # fmt: skip
    store = f"file:{tmp_path}/mlruns"
    mlflow_runs.send(finished, Mlflow(tracking_uri=store, files=("*/stdout",)))
    client = mlflow.MlflowClient(tracking_uri=store)
    experiment = client.get_experiment_by_name("aiperf")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    folders = client.list_artifacts(run.info.run_id)
    assert {each.path for each in folders} == {"rank-0", "rank-1"}
    for each in folders:
        (file,) = client.list_artifacts(run.info.run_id, each.path)
        assert file.path == f"{each.path}/stdout"


def test_unreadable_results_are_named(tmp_path: Path) -> None:
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(EnvironmentProblem, match="cannot be read"):
        read_finished(tmp_path)
    (tmp_path / "results.json").write_bytes(result_files.render(fake_steps.result()))
    with pytest.raises(EnvironmentProblem, match=r"config\.yaml"):
        read_finished(tmp_path)


@pytest.mark.parametrize("pattern", ["/etc/*", "../*", "**.csv"])
def test_files_are_those_below_the_folder(pattern: str) -> None:
    with pytest.raises(ValidationError, match="pattern"):
        Mlflow(tracking_uri="http://h:1", files=(pattern,))


def test_missing_parts_of_trackers_are_reported_before_start(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    flags = ("-u", "http://127.0.0.1:9", "-m", "m", "--concurrency", "1", "--wandb-project", "p")
    assert main(["profile", *flags]) == ExitCode.BAD_CONFIG
    assert "WANDB_API_KEY: not set in the environment" in capsys.readouterr().err


def test_secrets_of_a_config_are_no_parameters(tmp_path: Path) -> None:
    endpoint = {
        "url": "http://user:pw@h:1/v1",
        "headers": {"X": SECRET},
        "extra_inputs": {"api_key": SECRET, "top_p": 0.5},
        "hooks": [{"url": "http://h:1/flush", "body": {"token": SECRET}}],
    }
    config = {"name": "n", "endpoint": endpoint, "load": {"concurrency": 2}, "deployment": {"a": 1}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    tier = {"name": "gold", "limits": {}, "goodput": 2.5, "good_request_count": 5}
    tiers = [tier | {"attainment": None}]
    ours = {"verdict": "valid", "goodput_tiers": tiers}
    ours["version"] = ""
    content = {
        "schema_version": "1.4",
        "benchmark_id": "ab",
        "end_time": "2026-11-23T07:00:00.000000",
        "request_count": {"unit": "requests", "avg": 5.0},
        "request_latency": {"unit": "ms", "avg": 1.5, "p50": 1.0, "p99": None, "count": 5},
        "aiperf_svc": ours,
    }
    (tmp_path / "profile_export_aiperf.json").write_text(json.dumps(content))
    found = read_finished(tmp_path)
    assert found.params == {
        "name": "n",
        "endpoint.url": "http://h:1/v1",
        "endpoint.extra_inputs.top_p": "0.5",
        "load.concurrency": "2",
    }
    assert found.metrics == {
        "request_count": 5.0,
        "request_latency.avg": 1.5,
        "request_latency.p50": 1.0,
        "request_latency.count": 5.0,
        "goodput.gold": 2.5,
        "good_request_count.gold": 5.0,
    }
    assert found.tags == {
        "aiperf_svc.run_id": "ab",
        "aiperf_svc.verdict": "valid",
        "aiperf_svc.name": "n",
    }
    assert found.ended_ms == 1_795_417_200_000
