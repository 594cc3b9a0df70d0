"""The dashboard and the alert rules use existing metrics and are valid."""

import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import yaml

from aiperf_svc.adapters.results_api.prometheus_text import samples
from aiperf_svc.adapters.results_api.status import ExperimentStatus, Status, StepStatus
from aiperf_svc.core.verdict.health_log import ClientLoad

ROOT = Path(__file__).parents[3]
DASHBOARDS = ROOT / "aiperf_svc" / "stack" / "dashboards"
RULES = DASHBOARDS / "rules.yaml"
METRIC = re.compile(r"\baiperf_\w+")
ADDED_LABELS = {"job", "instance"}
"""Labels that Prometheus adds."""


class Target(msgspec.Struct):
    expr: str
    refId: str
    datasource: dict[str, str]


class Place(msgspec.Struct):
    x: int
    y: int
    w: int
    h: int


class Panel(msgspec.Struct):
    id: int
    title: str
    description: str
    type: Literal["timeseries", "stat"]
    gridPos: Place
    targets: list[Target]
    datasource: dict[str, str]


class Variable(msgspec.Struct):
    name: str
    type: Literal["datasource", "query"]
    query: Any


class Variables(msgspec.Struct):
    list: list[Variable]


class Dashboard(msgspec.Struct):
    """The parts of Grafana's dashboard model that matter for the import."""

    title: str
    uid: str
    schemaVersion: int
    panels: list[Panel]
    templating: Variables


@pytest.fixture(scope="module")
def dashboard() -> Dashboard:
    return msgspec.json.decode((DASHBOARDS / "run.json").read_bytes(), type=Dashboard)


@pytest.fixture(scope="module")
def page() -> dict[str, set[str]]:
    """Return the labels by metric of a page with all metrics."""
    values: dict[str, Any] = dict.fromkeys(Status.__struct_fields__, 1.0)
    status = Status(
        **values
        | {
            "state": "profiling",
            "phase": "profiling",
            "client": ClientLoad(
                cpu_cores={"worker": 1}, loop_lag_s={"worker": 1}, cpu_lost={"pressure": 1}
            ),
            "finish_reasons": {"stop": 1},
            "steps": StepStatus(
                workload="fio", total=2, ended=1, failed=0, name="", stage="run",
                running_s=0, expected_s=0, text="",
            ),
            "experiment": ExperimentStatus(
                number=1, parameters={}, repetition=1, attempt=1, total=2, ended=1, failed=0,
                left_s=None, rows=(),
            ),
        }
    )  # fmt: skip
    return {each.name: set(each.labels) for each in samples(status)}


def expressions(dashboard: Dashboard) -> list[str]:
    rules = yaml.safe_load(RULES.read_text())
    alerts = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    queries = [each.query["query"] for each in dashboard.templating.list if each.type == "query"]
    return [*(t.expr for panel in dashboard.panels for t in panel.targets), *alerts, *queries]


def test_dashboards_use_only_existing_metrics_and_labels(
    dashboard: Dashboard, page: dict[str, set[str]]
) -> None:
    named: set[str] = set()
    for expression in expressions(dashboard):
        found = set(METRIC.findall(expression))
        assert found, expression
        assert found <= set(page), expression
        known = set().union(*(page[name] for name in found)) | ADDED_LABELS
        labels = {
            label
            for selector in re.findall(r"\{([^}]*)\}", expression)
            for label in re.findall(r"(\w+)\s*=", selector)
        } | set(re.findall(r"by \((\w+)\)", expression))
        assert labels <= known, expression
        named |= found
    # Every metric of a page is used.
    unused = {name.removeprefix("aiperf_") for name in set(page) - named}
    assert unused == {"phase_elapsed_seconds", "requests_cancelled_total", "requests_per_second",
                      "record_processors", "workers"}  # fmt: skip


def test_panels_are_complete_and_do_not_overlap(dashboard: Dashboard) -> None:
    assert len({panel.id for panel in dashboard.panels}) == len(dashboard.panels)
    variables = {f"${{{each.name}}}" for each in dashboard.templating.list}
    for panel in dashboard.panels:
        assert panel.title
        assert panel.description
        assert panel.datasource["uid"] in variables
        refs = [target.refId for target in panel.targets]
        assert len(set(refs)) == len(refs) > 0
    for one, other in combinations([panel.gridPos for panel in dashboard.panels], 2):
        is_apart = one.x + one.w <= other.x or other.x + other.w <= one.x
        assert is_apart or one.y + one.h <= other.y or other.y + other.h <= one.y
    assert max(panel.gridPos.x + panel.gridPos.w for panel in dashboard.panels) <= 24


promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")


@promtool
def test_promtool_accepts_the_rules() -> None:
    checked = subprocess.run(
        ["promtool", "check", "rules", RULES], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@promtool
def test_alerts_fire_only_when_a_run_fails() -> None:
    cases = ROOT / "tests/data/telemetry/rules_test.yaml"
    checked = subprocess.run(
        ["promtool", "test", "rules", cases], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    tested = {
        alert["alertname"]
        for case in yaml.safe_load(cases.read_text())["tests"]
        for alert in case["alert_rule_test"]
        if alert.get("exp_alerts")
    }
    rules = yaml.safe_load(RULES.read_text())
    assert tested == {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
