"""Objects for a Prometheus operator: the location of the stack's metrics page, and alert rules."""

from dataclasses import dataclass
from pathlib import Path

import pulumi
import pulumi_kubernetes as k8s

from aiperf_svc.config.yaml_files import read_yaml
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import RUN_LABEL, STACK_LABEL
from aiperf_svc.plan.service_pods import METRICS_PATH, METRICS_TOKEN_KEY
from aiperf_svc.protocol.ports import Port
from aiperf_svc.stack.containers import MountedNames
from aiperf_svc.stack.scope import Scope

RULES = Path(__file__).with_name("dashboards") / "rules.yaml"
"""The same file can be loaded by a Prometheus without the operator."""
API = "monitoring.coreos.com/v1"
INTERVAL = "5s"
"""Scrape interval. Runs take minutes, and Prometheus' usual 30 s would show little."""


@dataclass(frozen=True, kw_only=True)
class MonitoringArgs:
    """The pod with the metrics page, and the Secret with the token for it."""

    pod: str
    mounted: MountedNames
    labels: dict[str, str]
    """Labels by which a Prometheus selects these objects."""
    scope: Scope


class Monitoring(pulumi.ComponentResource):
    """Creates a PodMonitor and a PrometheusRule."""

    def __init__(
        self, name: str, args: MonitoringArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("aiperf:stack:Monitoring", name, None, opts)
        selector = args.scope.identity.selector(args.pod)
        endpoint = {
            "port": Port.RESULTS_API.name.lower().replace("_", "-"),
            "path": METRICS_PATH,
            "interval": INTERVAL,
            "authorization": {
                "type": "Bearer",
                "credentials": {"name": args.mounted.secret("keys"), "key": METRICS_TOKEN_KEY},
            },
        }
        monitor = {
            "selector": {"matchLabels": selector},
            "podMetricsEndpoints": [endpoint],
            "podTargetLabels": [STACK_LABEL, RUN_LABEL],
        }
        self._make("PodMonitor", monitor, args)
        self._make("PrometheusRule", read_yaml(RULES), args)
        self.register_outputs({})

    def _make(self, kind: str, spec: Json, args: MonitoringArgs) -> None:
        k8s.apiextensions.CustomResource(
            "monitoring",
            api_version=API,
            kind=kind,
            metadata=args.scope.metadata("monitoring", labels=args.labels),
            spec=spec,
            opts=args.scope.options(self),
        )
