"""Indexes next to a real server, and the experiment that the collector builds from their trials."""

import functools
import json
import socket
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from aiperf_svc.adapters.jobs.index_pod import BUILT, readiness_problem
from aiperf_svc.core.experiments.fan_out import JobSeen
from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.workloads.registry import load_benchmark
from aiperf_svc.workloads.shapes import index_shapes
from tests.support.fake_results import as_json
from tests.support.ports import free_port
from tests.support.threaded_server import in_thread
from tests.support.two_shapes import COMMAND, JOB, TwoShapes, final_state, until

pytestmark = pytest.mark.skipif(not BUILT.is_file(), reason="the launcher is not compiled")


async def test_trials_of_indexes_become_one_experiment(shapes: TwoShapes) -> None:
    async with shapes.collector() as client:
        good = await shapes.index(0)
        assert good.returncode == ExitCode.OK, good.stderr
        status = await client.status()
        assert status.experiment is not None
        assert (status.experiment.ended, status.experiment.failed) == (2, 0)
        bad = await shapes.index(1)
        assert bad.returncode == ExitCode.BENCHMARK_FAILED, bad.stderr
        assert "the server ended with exit code 2 before it was ready" in bad.stderr
        status = await until(client, lambda status: status.is_settled)
        assert (status.state, status.artifact_error) == ("done", "")
        summary = as_json(await client.results())
        await client.download_all(shapes.folder / "fetched")
    assert [trial["state"] for trial in summary["trials"]] == ["done", "failed"] * 2
    assert "exit code 2" in summary["trials"][1]["reason"]
    assert summary["trials"][0]["values"]["time_to_first_token_p50"] >= 30
    fetched = shapes.folder / "fetched"
    # On a busy machine, a run may be repeated.
    done = [trial for trial in summary["trials"] if trial["state"] == "done"]
    attempts = sum(1 + len(trial["replaced"]) for trial in done)
    assert len(list((fetched / "trials").iterdir())) == attempts
    commands = {
        json.loads(path.read_bytes())["run_info"]["cli_command"]
        for path in fetched.glob("trials/*/profile_export_aiperf.json")
    }
    assert commands == {COMMAND}
    assert (fetched / "report.html").is_file()
    assert json.loads((fetched / "experiment.json").read_bytes()) == summary


def test_index_server_is_probed_without_the_images_proxy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{free_port()}")
    page = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), page)
    with in_thread(server):
        assert readiness_problem(server.server_port, "/") == ""
        assert readiness_problem(server.server_port, "/health") == "/health: status 404"


def test_server_without_http_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def respond() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"loading the model\n")

        responding = threading.Thread(target=respond)
        responding.start()
        port = listening.getsockname()[1]
        assert readiness_problem(port, "/health") == f"port {port}: loading the model"
        responding.join()


async def test_retried_attempt_leaves_no_results(tmp_path: Path) -> None:
    shapes = TwoShapes(tmp_path, retries=1)
    async with shapes.collector() as client:
        bad = await shapes.index(1)
        assert bad.returncode == ExitCode.BENCHMARK_FAILED, bad.stderr
        status = await client.status()
        assert status.experiment is not None
        assert status.experiment.ended == 0
        await shapes.index(1, failures=1)
        status = await client.status()
        assert status.experiment is not None
        assert (status.experiment.ended, status.experiment.failed) == (2, 2)


async def test_trials_of_a_failed_attempt_count_without_another(tmp_path: Path) -> None:
    good, args = ["--tokens", "4"], "deployment.target.args"
    missing = {"dataset.kind": "single_turn", "dataset.file": str(tmp_path / "none.jsonl")}
    shapes = TwoShapes(
        tmp_path,
        retries=1,
        repetitions=1,
        product={args: [good, ["--no-such-flag"]]},
        explicit=[{args: good, **missing}],
    )
    async with shapes.collector() as client:
        failed = await shapes.index(0)
        assert failed.returncode == ExitCode.BENCHMARK_FAILED, failed.stderr
        assert "trial 3 failed: " in failed.stderr
        status = await client.status()
        assert status.experiment is not None
        assert status.experiment.ended == 0
        shapes.cluster.seen = JobSeen(JOB, frozenset(), frozenset({0, 1}), pods=0)
        _, summary = await final_state(client)
    assert [trial["state"] for trial in summary["trials"]] == ["done", "failed", "failed"]


async def test_missing_files_of_an_index_are_reported(tmp_path: Path) -> None:
    shapes = TwoShapes(tmp_path, retries=1)
    trial = index_shapes(load_benchmark(shapes.config))[0].trials[0]
    shapes.blocked = f"shape-1/trials/{trial.folder}/records.parquet"
    async with shapes.collector() as client:
        ended = await shapes.index(0)
        assert ended.returncode == ExitCode.OK, ended.stderr
        shapes.cluster.seen = JobSeen(JOB, frozenset({0}), frozenset({1}), pods=0)
        status, summary = await final_state(client)
    assert status.artifact_error.startswith("shape 1: trial 1: cannot write ")
    assert [trial["state"] for trial in summary["trials"]] == ["done", "failed"] * 2
