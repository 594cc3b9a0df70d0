"""A serving topology for tests: a router in front of two pools of mock servers, and an operator
that creates such pools from a custom resource with a finalizer."""

import textwrap
from typing import Any

from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_stack import Config

GROUP, PLURAL = "tests.aiperf.dev", "graphs"
FINALIZER = f"{GROUP}/operator"
LWS = "leaderworkerset.sigs.k8s.io"
"""Prefix of the labels on the pods of LeaderWorkerSets."""
OPERATORS = "graph-operator"
"""Namespace of the operator."""

Manifest = dict[str, Any]

ROUTER = textwrap.dedent(
    """
    import asyncio, itertools, os, sys
    pools = itertools.cycle(sys.argv[1:])
    async def copy(reader, writer):
        try:
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
    async def serve(reader, writer):
        try:
            to_reader, to_writer = await asyncio.open_connection(next(pools), 8000)
        except OSError:
            writer.close()
            return
        await asyncio.gather(copy(reader, to_writer), copy(to_reader, writer))
    async def main():
        server = await asyncio.start_server(serve, "0.0.0.0", 8080)
        await server.serve_forever()
    asyncio.run(main())
    """
)
"""Forwards each connection to the next pool."""

OPERATOR = (
    textwrap.dedent(
        """
    import json, ssl, time, urllib.error, urllib.request
    ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
    TLS = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    GRAPHS = "/apis/GROUP/v1"
    def ask(method, path, body=None, kind="application/json"):
        token = open(f"{ACCOUNT}/token").read()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": kind}
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(
            "https://kubernetes.default.svc" + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=5, context=TLS) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            if error.code in (404, 409):
                return None
            raise
    def pod(graph, number):
        metadata = graph["metadata"]
        owner = {"apiVersion": "GROUP/v1", "kind": "Graph", "name": metadata["name"],
                 "uid": metadata["uid"]}
        container = {"name": "engine", "image": graph["spec"]["image"],
            "imagePullPolicy": "IfNotPresent",
            "command": ["python", "-P", "-m", "aiperf_svc.mock_server"],
            "args": ["--host", "0.0.0.0", "--port", "8000", "--model", graph["spec"]["model"]],
            "readinessProbe": {"tcpSocket": {"port": 8000}, "periodSeconds": 1},
            "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}}}
        return {"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": f"{metadata['name']}-{number}", "ownerReferences": [owner],
                         "labels": {"graph": metadata["name"]}},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 1}}
    def look(graph):
        metadata = graph["metadata"]
        space = f"/api/v1/namespaces/{metadata['namespace']}/pods"
        own = f"{GRAPHS}/namespaces/{metadata['namespace']}/graphs/{metadata['name']}"
        merge = "application/merge-patch+json"
        names = [f"{metadata['name']}-{n}" for n in range(graph["spec"]["replicas"])]
        if "deletionTimestamp" in metadata:
            phase = ask("GET", f"/api/v1/namespaces/{metadata['namespace']}")["status"]["phase"]
            print("removes the finalizer of", metadata["uid"], "in an", phase, "namespace",
                  flush=True)
            for name in names:
                ask("DELETE", f"{space}/{name}")
            ask("PATCH", own, {"metadata": {"finalizers": None}}, merge)
            return
        if "FINALIZER" not in metadata.get("finalizers", []):
            ask("PATCH", own, {"metadata": {"finalizers": ["FINALIZER"]}}, merge)
        pods = [ask("GET", f"{space}/{name}") or ask("POST", space, pod(graph, n))
                for n, name in enumerate(names)]
        ready = all(any(c["type"] == "Ready" and c["status"] == "True"
                        for c in (p or {}).get("status", {}).get("conditions", [])) for p in pods)
        condition = {"type": "Ready", "status": str(ready)}
        if graph.get("status", {}).get("conditions") != [condition]:
            ask("PATCH", own, {"status": {"conditions": [condition]}}, merge)
    while True:
        try:
            for graph in ask("GET", f"{GRAPHS}/graphs")["items"]:
                look(graph)
        except Exception as error:
            print(error, flush=True)
        time.sleep(0.5)
    """
    )
    .replace("GROUP", GROUP)
    .replace("FINALIZER", FINALIZER)
)
"""Creates the pods of each graph, sets its condition, and removes its finalizer."""


def _deployment(name: str, image: str, command: list[str], port: int, replicas: int) -> Manifest:
    labels = {"pool": name}
    container = {
        "name": "main",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
        "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "terminationGracePeriodSeconds": 1},
            },
        },
    }


def service(name: str, port: int, selector: dict[str, str]) -> Manifest:
    """Return a Service."""
    ports = [{"port": port, "targetPort": port}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": selector, "ports": ports},
    }


def engines(name: str, image: str, replicas: int) -> list[Manifest]:
    """Return a pool of mock servers with its Service."""
    model = ["--model", "mock-model", "--ttft", "5ms", "--itl", "1ms"]
    command = ["python", "-P", "-m", "aiperf_svc.mock_server", "--host", "0.0.0.0"]
    return [
        _deployment(name, image, [*command, "--port", "8000", *model], 8000, replicas),
        service(name, 8000, {"pool": name}),
    ]


def leader_workers(name: str, image: str, groups: int, size: int) -> list[Manifest]:
    """Return a LeaderWorkerSet of mock servers with a Service for its leaders."""
    template = engines(name, image, 1)[0]["spec"]["template"]
    return [
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": name},
            "spec": {
                "replicas": groups,
                "leaderWorkerTemplate": {"size": size, "workerTemplate": template},
            },
        },
        service("leaders", 8000, {f"{LWS}/name": name, f"{LWS}/worker-index": "0"}),
    ]


def router(image: str, *pools: str) -> list[Manifest]:
    """Return a router in front of these Services."""
    command = ["python", "-c", ROUTER, *pools]
    return [
        _deployment("router", image, command, 8080, 1),
        service("router", 8080, {"pool": "router"}),
    ]


SGLANG_ROUTER = textwrap.dedent(
    """
    ARG BASE
    FROM ${BASE}
    USER 0:0
    RUN python3 -m venv /opt/router && /opt/router/bin/pip install --quiet sglang-router==0.3.2
    USER 65532:65532
    WORKDIR /tmp
    """
)
"""An image with SGLang's router from PyPI."""


def sglang_router(image: str, *pools: str) -> list[Manifest]:
    """Return SGLang's router in front of these Services. It serves metrics on port 29000."""
    command = [
        *("/opt/router/bin/python", "-m", "sglang_router.launch_router"),
        *("--policy", "round_robin", "--host", "0.0.0.0", "--port", "8080", "--log-level", "warn"),
        *("--prometheus-host", "0.0.0.0", "--prometheus-port", "29000"),
        *("--worker-urls", *(f"http://{each}:8000" for each in pools)),
    ]
    return [
        _deployment("router", image, command, 8080, 1),
        service("router", 8080, {"pool": "router"}),
    ]


def pool(name: str, replicas: int, **more: Any) -> dict[str, Any]:
    """Return the entry of a pool in `deployment.target.pools`."""
    return {"labels": {"pool": name}, "replicas": replicas, **more}


def graph(image: str) -> Manifest:
    """Return the custom resource from which the operator makes two mock servers."""
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Graph",
        "metadata": {"name": "graph"},
        "spec": {"replicas": 2, "image": image, "model": "mock-model"},
    }


def use_release(benchmark: Config, **target: Any) -> None:
    """Replace the target of a stack file with a release."""
    deployment = benchmark["deployment"]
    deployment["target"] = {"kind": "release", "ready_timeout": "90s", **target}


def install_operator(cluster: Cluster, image: str) -> None:
    """Create the custom resource type and its operator, and wait until the operator is ready."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    cluster.apply(
        {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{PLURAL}.{GROUP}"},
            "spec": {
                "group": GROUP,
                "scope": "Namespaced",
                "names": {"plural": PLURAL, "singular": "graph", "kind": "Graph"},
                "versions": [
                    {
                        "name": "v1",
                        "served": True,
                        "storage": True,
                        "schema": {"openAPIV3Schema": schema},
                    }
                ],
            },
        }
    )
    cluster.kubectl("create", "namespace", OPERATORS)
    cluster.kubectl("create", "serviceaccount", "operator", "-n", OPERATORS)
    binding = ("clusterrolebinding", OPERATORS, "--clusterrole=cluster-admin")
    cluster.kubectl("create", *binding, f"--serviceaccount={OPERATORS}:operator")
    made = _deployment("operator", image, ["python", "-c", OPERATOR], 0, 1)
    made["metadata"]["namespace"] = OPERATORS
    spec = made["spec"]["template"]["spec"]
    spec["serviceAccountName"] = "operator"
    del spec["containers"][0]["readinessProbe"]
    cluster.apply(made)
    wait = ("rollout", "status", "deployment/operator", "-n", OPERATORS, "--timeout=60s")
    cluster.kubectl(*wait, timeout_s=90.0)


def remove_operator(cluster: Cluster) -> None:
    """Remove the operator and its type."""
    cluster.kubectl("delete", "crd", f"{PLURAL}.{GROUP}", "--ignore-not-found", timeout_s=60.0)
    cluster.kubectl("delete", "clusterrolebinding", OPERATORS, "--ignore-not-found")
    cluster.kubectl("delete", "namespace", OPERATORS, "--ignore-not-found", timeout_s=120.0)
