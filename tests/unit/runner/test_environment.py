"""What the launcher sets is what `services.context` reads, and secrets stay with the workers."""

import stat
from pathlib import Path
from typing import Any

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.plan.topology import Facts, plan
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.services import Service
from aiperf_svc.runner.environment import LocalRun, free_ports
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.services.context import read_context


def make_run(
    tmp_path: Path,
    *,
    deployment: dict[str, Any] | None = None,
    artifacts: dict[str, Any] | None = None,
    telemetry: dict[str, Any] | None = None,
) -> LocalRun:
    config = BenchmarkConfig.model_validate(
        {
            "endpoint": {"url": "http://127.0.0.1:1", "model": "m", "api_key_env": "TARGET_KEY"},
            "load": {"concurrency": 4, "requests": 10},
            "deployment": deployment or {},
            "artifacts": artifacts or {},
            "telemetry": telemetry or {},
        }
    )
    return LocalRun(
        config=config,
        topology=plan(config, Facts(where="local")),
        options=RunOptions(
            secrets={"TARGET_KEY": "from the command line"}, cli_command="profile x"
        ),
        private=tmp_path,
        artifacts=tmp_path / "artifacts",
        logs=tmp_path / "logs",
    )


def test_a_service_reads_what_the_launcher_wrote(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    run.write_files()
    shared = run.shared_environment({})
    context = read_context(run.environment_of("worker-3", (Service.WORKER,), shared))
    assert (context.run_id, context.instance) == (run.run_id, "worker-3")
    assert (context.config, context.topology) == (run.config, run.topology)
    assert context.addresses.bind(Port.RECORDS) == f"ipc://{tmp_path}/records"
    assert (context.artifacts, context.state) == (run.artifacts, tmp_path)
    assert context.results_socket == run.results_socket
    assert context.curve is None


def test_over_tcp_every_service_reads_the_same_ports_and_keys(tmp_path: Path) -> None:
    run = make_run(tmp_path, deployment={"transport": {"kind": "tcp", "curve": True}})
    run.write_files()
    shared = run.shared_environment({})
    context = read_context(run.environment_of("control", (Service.RECORDS_MANAGER,), shared))
    port = context.addresses.ports["RECORDS"]
    assert context.addresses.bind(Port.RECORDS) == f"tcp://127.0.0.1:{port}"
    assert context.addresses.advertise == "127.0.0.1"
    assert context.curve is not None
    for path in (tmp_path / "curve").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_targets_key_is_given_to_workers_only(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    shared = run.shared_environment({"TARGET_KEY": "from the shell", "HOME": "/home/me"})
    worker = run.environment_of("worker-0", (Service.WORKER,), shared)
    control = run.environment_of("control", (Service.RECORDS_MANAGER,), shared)
    assert worker["TARGET_KEY"] == "from the command line"
    assert "TARGET_KEY" not in control
    assert worker["HOME"] == control["HOME"] == "/home/me"


def test_the_key_of_pages_is_given_to_the_records_manager_only(tmp_path: Path) -> None:
    pages = {"server_metrics": ["http://h"], "key_env": "PAGES"}
    run = make_run(tmp_path, telemetry=pages)
    shared = run.shared_environment({"PAGES": "u:p", "TARGET_KEY": "from the shell"})
    worker = run.environment_of("worker-0", (Service.WORKER,), shared)
    control = run.environment_of("control", (Service.RECORDS_MANAGER,), shared)
    assert ("PAGES" in worker, control["PAGES"]) == (False, "u:p")
    assert "TARGET_KEY" not in control
    # One variable may hold the keys of both.
    run = make_run(tmp_path, telemetry=pages | {"key_env": "TARGET_KEY"})
    for services in ((Service.WORKER,), (Service.RECORDS_MANAGER,)):
        given = run.environment_of("any", services, shared)
        assert given["TARGET_KEY"] == "from the command line"
    assert "TARGET_KEY" not in run.environment_of("any", (Service.TIMING_MANAGER,), shared)


def test_the_keys_of_an_upload_are_given_to_the_records_manager_only(tmp_path: Path) -> None:
    run = make_run(tmp_path, artifacts={"s3": {"url": "s3://bucket/runs"}})
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
    shared = run.shared_environment(dict.fromkeys(names, "secret"))
    worker = run.environment_of("worker-0", (Service.WORKER,), shared)
    control = run.environment_of("control", (Service.RECORDS_MANAGER,), shared)
    assert not set(names) & set(worker)
    assert set(names) <= set(control)


def test_variables_of_another_run_are_not_passed_on(tmp_path: Path) -> None:
    environ = {"AIPERF_SERVICE": "worker", "AIPERF_HOSTS": "{}", "AIPERF_LOG_LEVEL": "WARNING"}
    shared = make_run(tmp_path).shared_environment(environ)
    assert "AIPERF_SERVICE" not in shared
    assert "AIPERF_HOSTS" not in shared
    assert shared["AIPERF_LOG_LEVEL"] == "WARNING"


def test_two_runs_do_not_share_an_id(tmp_path: Path) -> None:
    first, second = make_run(tmp_path), make_run(tmp_path)
    assert first.run_id != second.run_id
    assert len(first.run_id) == 12


def test_every_port_with_one_binder_has_a_number_of_its_own() -> None:
    ports = free_ports()
    assert set(ports) == {port.name for port in Port} - {"RAW_DIRECT", "RESULTS_API"}
    assert len(set(ports.values())) == len(ports)
