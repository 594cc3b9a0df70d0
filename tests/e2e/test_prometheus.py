"""A real Prometheus scrapes a local run and answers every query of the dashboard."""

import json
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from aiperf_svc.domain.exit_codes import ExitCode
from aiperf_svc.mock_server.config import MockServerConfig
from aiperf_svc.mock_server.running import running
from tests.support.ports import free_port, free_ports
from tests.support.running_command import FINISHED, WAIT_S, Command, wait_for

DASHBOARDS = Path(__file__).parents[2] / "aiperf_svc" / "stack" / "dashboards"
USERS = 4
NOT_HERE = ("aiperf_steps_", "aiperf_trials_", "aiperf_server_kv_cache_ratio")
"""Prefixes of metrics of other kinds of runs and servers."""
Json = dict[str, Any]


class Prometheus:
    """A Prometheus server that scrapes a page on this machine."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"

    def get(self, path: str, **params: str) -> Json:
        url = f"{self._url}/{path}?{urllib.parse.urlencode(params)}"
        with urllib.request.urlopen(url, timeout=10) as response:
            found: Json = json.load(response)["data"]
        return found

    def is_up(self) -> bool:
        try:
            return bool(self.get("targets"))
        except urllib.error.URLError:
            return False

    def values(self, expression: str, since_s: float) -> list[float]:
        """Return all values of all series of an expression since then."""
        span = {"start": str(since_s), "end": str(time.time()), "step": "0.25"}
        result = self.get("query_range", query=expression, **span)["result"]
        return [float(value) for series in result for _, value in series["values"]]


@contextmanager
def prometheus(folder: Path, port: int, page_port: int) -> Iterator[Prometheus]:
    config = {
        "global": {"scrape_interval": "250ms", "evaluation_interval": "500ms"},
        "rule_files": [str(DASHBOARDS / "rules.yaml")],
        "scrape_configs": [
            {
                "job_name": "benchmarks",
                "scrape_timeout": "250ms",
                "static_configs": [{"targets": [f"127.0.0.1:{page_port}"]}],
            }
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yaml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        found = Prometheus(port)
        wait_for(found.is_up)
        yield found
    finally:
        process.terminate()
        process.wait(WAIT_S)


def queries() -> list[str]:
    """Return the dashboard's queries with its variables filled in as by Grafana."""
    panels = json.loads((DASHBOARDS / "run.json").read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel["targets"]]
    filled = {"$__rate_interval": "2s", "$job": "benchmarks", "$instance": ".*"}
    for name, value in filled.items():
        found = [each.replace(name, value) for each in found]
    return found


def is_here(expression: str) -> bool:
    return not any(name in expression for name in NOT_HERE)


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed")
def test_prometheus_reads_a_local_run_for_the_dashboard(tmp_path: Path) -> None:
    port, page_port = free_ports(2)
    began_s = time.time()
    settings = MockServerConfig(truth=True, ttft="100ms", itl="2ms", tokens=10)
    flags = ("--concurrency", str(USERS), "--benchmark-duration", "90")
    label = '{job="benchmarks"}'
    with prometheus(tmp_path, port, page_port) as found, running(settings) as mock:
        command = Command(
            tmp_path, mock.url, *flags, "--metrics-interval", "250ms",
            "--serve-metrics", str(page_port),
        )  # fmt: skip

        def is_drawn() -> bool:
            """Return whether Prometheus has scraped the page often enough for the query."""
            assert command.process.poll() is None, command.process.communicate()
            gauges = ("aiperf_requests_in_flight", "aiperf_server_requests_running")
            return all(USERS in found.values(gauge + label, began_s) for gauge in gauges) and all(
                found.values(expression, began_s) for expression in queries() if is_here(expression)
            )

        wait_for(is_drawn)
        command.process.send_signal(signal.SIGINT)
        command.finish()
        assert command.code is ExitCode.INTERRUPTED, command.errors
        for expression in queries():
            assert bool(found.values(expression, began_s)) is is_here(expression), expression
        completed = found.values(f"aiperf_requests_completed_total{label}", began_s)
        assert 0 < max(completed) <= mock.truth()["completed"]
        assert max(found.values(f"aiperf_requests_in_flight{label}", began_s)) == USERS
        assert max(found.values(f"aiperf_server_requests_running{label}", began_s)) == USERS
        # The alert rules can be evaluated, and a healthy run triggers none.
        rules = [rule for group in found.get("rules")["groups"] for rule in group["rules"]]
        assert {rule["health"] for rule in rules} == {"ok"}
        assert found.values('ALERTS{alertname=~"AiperfRunFailed|AiperfWorkersLost"}', began_s) == []


def test_page_of_a_tool_has_steps_and_couriers(tmp_path: Path) -> None:
    page_port = free_port()
    go = tmp_path / "go.jsonl"
    script = f"until [ -e {go} ]; do sleep 0.05; done; echo speed: 1"
    metrics = {"speed": {"unit": "ops/s", "better": "higher", "pattern": r"speed: (\d+)"}}
    workload = {"kind": "command", "command": ["sh", "-c", script], "metrics": metrics}
    config = tmp_path / "input.jsonl"
    config.write_text(json.dumps({"workload": workload}))
    command = Command(tmp_path, None, "--config", str(config), "--serve-metrics", str(page_port))

    def is_whole() -> bool:
        assert command.process.poll() is None, command.process.communicate()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{page_port}/metrics") as response:
                page = response.read().decode()
        except urllib.error.URLError:
            return False
        wanted = (
            'aiperf_run_state{state="profiling"} 1',
            'aiperf_steps_planned{workload="command"} 1',
            'aiperf_service_cpu_ratio{service="worker"}',
            'aiperf_node_cpu_lost_ratio{cause="pressure"}',
        )
        return all(each in page for each in wanted)

    wait_for(is_whole)
    go.touch()
    command.finish()
    assert command.code in FINISHED, command.errors
