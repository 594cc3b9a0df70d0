"""Access to a stack's results, and the metrics that a Prometheus scrapes."""

import re
from types import SimpleNamespace
from typing import Any

import pytest

from aiperf_svc.stack.results import _balancer_url
from tests.support.recording import (
    STACK,
    SUFFIX,
    Manifest,
    Recording,
    benchmark,
    component_of,
    environment_of,
    kinds_and_names,
    pod_templates,
    record,
    recorded,
)

MONITORING_LABELS = {"release": "prometheus"}


@pytest.fixture(scope="module")
def node_port() -> Recording:
    """Return a stack with results on a NodePort and annotations for Prometheus."""
    results = {"expose": "NodePort", "node_port": 30090}
    return recorded(results=results, monitoring="annotations")


@pytest.fixture(scope="module")
def load_balancer() -> Recording:
    """Return a stack with results on a load balancer and objects for a Prometheus operator."""
    results = {"expose": "LoadBalancer", "allow_cidrs": ["192.0.2.0/24"]}
    return recorded(
        results=results, monitoring="prometheus-operator", monitoring_labels=MONITORING_LABELS
    )


@pytest.fixture(scope="module")
def ingress() -> Recording:
    """Return a stack with results on an Ingress and in a bucket, and with prices."""
    deployed = benchmark(
        results={"expose": "Ingress", "host": "bench.example", "tls_secret": "cert"},
        prices={"cpu": 0.5, "currency": "EUR"},
    )
    deployed["artifacts"] = {"s3": {"url": "s3://bucket/runs"}}
    secrets = {"aiperf:s3AccessKeyId": "a", "aiperf:s3SecretAccessKey": "b"}
    return record(STACK, {"aiperf:benchmark": deployed}, secrets=secrets)


def _own_objects(recording: Recording) -> list[Manifest]:
    """Return the objects that only the access to results needs."""
    return [
        m
        for m in recording.manifests
        if m["metadata"]["name"] == f"results-{STACK}" and m["kind"] != "NetworkPolicy"
    ]


def test_results_need_no_object_by_default(usual: Recording) -> None:
    assert _own_objects(usual) == []
    forward = f"-n aiperf-{STACK}-{SUFFIX} port-forward service/records-manager-{STACK} 9090"
    assert usual.outputs["results"]["portForward"].endswith(forward)
    assert usual.outputs["results"]["url"] == ""


def test_results_node_port_service_is_not_awaited(node_port: Recording) -> None:
    service = _own_objects(node_port)[0]
    assert service["spec"]["type"] == "NodePort"
    assert service["spec"]["ports"][0]["nodePort"] == 30090
    assert service["metadata"]["annotations"]["pulumi.com/skipAwait"] == "true"
    assert node_port.outputs["results"]["url"] == "http://NODE:30090"


def test_load_balancer_follows_pod_with_limits(load_balancer: Recording) -> None:
    service = _own_objects(load_balancer)[0]
    assert service["spec"]["loadBalancerSourceRanges"] == ["192.0.2.0/24"]
    made = load_balancer.registration("Service", "results")
    known = kinds_and_names(load_balancer, made.dependencies)
    assert ("Deployment", "records-manager") in known


@pytest.mark.parametrize(
    ("hostname", "ip", "url"),
    [
        ("lb.example", None, "http://lb.example:9090"),
        (None, "192.0.2.7", "http://192.0.2.7:9090"),
        (None, "2001:db8::7", "http://[2001:db8::7]:9090"),
        (None, None, ""),
    ],
)
def test_load_balancer_url_has_name_or_address(
    hostname: str | None, ip: str | None, url: str
) -> None:
    point = SimpleNamespace(hostname=hostname, ip=ip)
    status: Any = SimpleNamespace(load_balancer=SimpleNamespace(ingress=[point]))
    assert _balancer_url(status) == url


def test_results_on_an_ingress_name_their_url(ingress: Recording) -> None:
    made = _own_objects(ingress)
    assert [m["kind"] for m in made] == ["Ingress", "Service"]
    assert made[0]["spec"]["rules"][0]["host"] == "bench.example"
    assert ingress.outputs["results"]["url"] == "https://bench.example"


def test_results_bucket_is_an_output(usual: Recording, ingress: Recording) -> None:
    assert "bucket" not in usual.outputs["results"]
    assert ingress.outputs["results"]["bucket"] == "s3://bucket/runs"


def test_cost_output_needs_prices(usual: Recording, ingress: Recording) -> None:
    assert "costPerHour" not in usual.outputs
    assert re.fullmatch(r"[1-9]\d*(\.\d+)? EUR", ingress.outputs["costPerHour"])


def _with_the_page(recording: Recording) -> Manifest:
    """Return the pod with the results and the metrics page."""
    (template,) = (t for t in pod_templates(recording) if component_of(t) == "records-manager")
    return template


def _operators_objects(recording: Recording) -> dict[str, Manifest]:
    group = "monitoring.coreos.com/v1"
    return {m["kind"]: m for m in recording.manifests if m["apiVersion"] == group}


def test_pods_have_no_prometheus_annotations_without_monitoring(usual: Recording) -> None:
    template = _with_the_page(usual)
    assert _operators_objects(usual) == {}
    assert not [name for name in template["metadata"]["annotations"] if "prometheus" in name]
    assert "AIPERF_METRICS_TOKEN" not in environment_of(template)


def test_annotations_are_on_metrics_pod_only(node_port: Recording) -> None:
    annotated = [
        component_of(template)
        for template in pod_templates(node_port)
        if "prometheus.io/scrape" in template["metadata"]["annotations"]
    ]
    assert annotated == ["records-manager"]
    assert _operators_objects(node_port) == {}
    annotations = {
        "prometheus.io/scrape": "true",
        "prometheus.io/path": "/metrics",
        "prometheus.io/port": "9090",
    }
    assert _with_the_page(node_port)["metadata"]["annotations"].items() >= annotations.items()


def test_operator_token_opens_metrics_only(load_balancer: Recording) -> None:
    template, objects = _with_the_page(load_balancer), _operators_objects(load_balancer)
    assert sorted(objects) == ["PodMonitor", "PrometheusRule"]
    for each in objects.values():
        assert each["metadata"]["labels"].items() >= MONITORING_LABELS.items()
    monitor = objects["PodMonitor"]["spec"]
    assert monitor["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (endpoint,) = monitor["podMetricsEndpoints"]
    (container,) = template["spec"]["containers"]
    assert endpoint["port"] in {each["name"] for each in container["ports"]}
    environment = environment_of(template)
    read = environment["AIPERF_METRICS_TOKEN"]["valueFrom"]["secretKeyRef"]
    assert endpoint["authorization"] == {"type": "Bearer", "credentials": read}
    assert read != environment["AIPERF_API_TOKEN"]["valueFrom"]["secretKeyRef"]
