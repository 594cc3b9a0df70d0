"""The launcher sets what `services.context` reads, and secrets only where they are needed."""

import stat
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.host.machine import free_ports
from aiperf_svc.adapters.ranks import rank_shell
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.plan.run_values import RunValues
from aiperf_svc.plan.topology import Facts, plan
from aiperf_svc.protocol.ports import Port
from aiperf_svc.protocol.services import Service
from aiperf_svc.runner.environment import LocalRun
from aiperf_svc.runner.options import RunOptions
from aiperf_svc.services.context import read_context
from aiperf_svc.workloads.registry import parse_benchmark


def make_run(
    tmp_path: Path,
    *,
    deployment: dict[str, Any] | None = None,
    artifacts: dict[str, Any] | None = None,
    telemetry: dict[str, Any] | None = None,
    endpoint: dict[str, Any] | None = None,
    experiment: dict[str, Any] | None = None,
    secrets: dict[str, str] | None = None,
) -> LocalRun:
    key = {"api_key_env": "TARGET_KEY"}
    config = BenchmarkConfig.model_validate(
        {
            "endpoint": {"url": "http://127.0.0.1:1", "model": "m"} | key | (endpoint or {}),
            "experiment": experiment,
            "load": {"concurrency": 4, "requests": 10},
            "deployment": deployment or {},
            "artifacts": artifacts or {},
            "telemetry": telemetry or {},
        }
    )
    return LocalRun(
        config=config,
        topology=plan(config, Facts(where="local")),
        options=RunOptions(secrets=secrets or {"TARGET_KEY": "from the command line"}),
        run=RunValues(cli_command="profile x"),
        private=tmp_path,
        artifacts=tmp_path / "artifacts",
        logs=tmp_path / "logs",
    )


def test_service_reads_the_launchers_environment(tmp_path: Path) -> None:
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


def test_tcp_services_share_ports_and_keys(tmp_path: Path) -> None:
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


PAGES = {"server_metrics": ["http://h"]}
UPLOAD = {"s3": {"url": "s3://bucket/runs"}}
AWS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
WORKER, TIMING, RECORDS = Service.WORKER, Service.TIMING_MANAGER, Service.RECORDS_MANAGER


def who_gets(variable: str, run: LocalRun, environ: Mapping[str, str]) -> dict[Service, str]:
    """Return the services that get a variable, with its value, if each runs in its own process."""
    shared = run.shared_environment(environ)
    environments = {each: run.environment_of("any", (each,), shared) for each in Service}
    return {each: own[variable] for each, own in environments.items() if variable in own}


@pytest.mark.parametrize(
    ("variable", "needs", "services"),
    [
        ("TARGET_KEY", {}, {WORKER}),
        ("TARGET_KEY", {"endpoint": {"reset_kv_cache": True}}, {WORKER, TIMING}),
        ("TARGET_KEY", {"experiment": {"product": {"endpoint.reset_kv_cache": [True, False]}}},
         {WORKER, TIMING}),
        ("PAGES", {"telemetry": PAGES | {"key_env": "PAGES"}}, {RECORDS}),
        ("PAGES", {}, set(Service)),
        *((name, {"artifacts": UPLOAD}, {RECORDS}) for name in AWS),
        *((name, {}, set(Service)) for name in AWS),
        # One variable may serve several purposes.
        ("TARGET_KEY", {"telemetry": PAGES | {"key_env": "TARGET_KEY"}}, {WORKER, RECORDS}),
        ("AWS_SECRET_ACCESS_KEY",
         {"artifacts": UPLOAD, "endpoint": {"api_key_env": "AWS_SECRET_ACCESS_KEY"}},
         {WORKER, RECORDS}),
        ("AWS_SESSION_TOKEN",
         {"artifacts": UPLOAD, "telemetry": PAGES | {"key_env": "AWS_SESSION_TOKEN"}}, {RECORDS}),
    ],
)  # fmt: skip
def test_only_services_that_need_a_secret_get_it(
    variable: str, needs: dict[str, Any], services: set[Service], tmp_path: Path
) -> None:
    run = make_run(tmp_path, **needs)
    found = who_gets(variable, run, {variable: "from the shell"})
    assert set(found) == services


def test_command_line_secret_overrides_shell(tmp_path: Path) -> None:
    cases: list[dict[str, Any]] = [{}, {"telemetry": PAGES | {"key_env": "TARGET_KEY"}}]
    for needs in cases:
        found = who_gets("TARGET_KEY", make_run(tmp_path, **needs), {"TARGET_KEY": "of the shell"})
        assert set(found.values()) == {"from the command line"}


def test_key_of_another_trial_reaches_workers_only(tmp_path: Path) -> None:
    run = make_run(tmp_path, secrets={"TARGET_KEY": "one", "OTHER_KEY": "another"})
    assert who_gets("OTHER_KEY", run, {"OTHER_KEY": "from the shell"}) == {WORKER: "another"}


def test_workers_never_get_the_key_of_pages(tmp_path: Path) -> None:
    pages = {"telemetry": PAGES | {"key_env": "PAGES"}}
    run = make_run(tmp_path, **pages, secrets={"TARGET_KEY": "one", "PAGES": "u:p"})
    assert who_gets("PAGES", run, {}) == {RECORDS: "u:p"}


def test_tool_secrets_reach_couriers_only(tmp_path: Path) -> None:
    workload = {"kind": "iperf", "secret_env": {"TOKEN": "aiperf-token"}}
    config = parse_benchmark({"workload": workload}, "a test")
    run = replace(
        make_run(tmp_path), config=config, options=RunOptions(secrets={"TOKEN": "from the shell"})
    )
    assert set(who_gets("TOKEN", run, {"TOKEN": "from the shell"})) == {WORKER}


def test_other_variables_reach_every_service(tmp_path: Path) -> None:
    assert set(who_gets("HOME", make_run(tmp_path), {"HOME": "/home/me"})) == set(Service)


@pytest.mark.parametrize("environ", [{}, {"OPENBLAS_NUM_THREADS": "1"}])
def test_tools_get_all_variables_of_the_user(tmp_path: Path, environ: dict[str, str]) -> None:
    shared = make_run(tmp_path).shared_environment(environ)
    assert shared["OPENBLAS_NUM_THREADS"] == "1"
    assert rank_shell._environment_of_tools(shared) == environ


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


def test_each_single_binder_port_is_unique() -> None:
    ports = free_ports()
    assert set(ports) == {port.name for port in Port} - {"RAW_DIRECT", "RESULTS_API"}
    assert len(set(ports.values())) == len(ports)
