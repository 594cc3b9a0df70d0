"""An inference server and a benchmark of it that starts when the server is ready.

The built-in mock server is a placeholder: replace its container with your own server.

    pip install 'aiperf-svc[stack]'
    export AIPERF_IMAGE=NAME                 # the service image
    pulumi stack init dev
    pulumi config set server:image NAME      # the same image, which contains the mock server
    pulumi up
"""

import pulumi
import pulumi_kubernetes as k8s

from aiperf_svc.stack import Benchmark, BenchmarkArgs

PORT = 8000
LABELS = {"app": "server"}
image = pulumi.Config("server").require("image")

namespace = k8s.core.v1.Namespace("inference", metadata={"name": "inference"})
server = k8s.apps.v1.Deployment(
    "server",
    metadata={"name": "server", "namespace": namespace.metadata["name"]},
    spec={
        "selector": {"match_labels": LABELS},
        "template": {
            "metadata": {"labels": LABELS},
            "spec": {
                "containers": [
                    {
                        "name": "server",
                        "image": image,
                        "args": ["mock-server", "--host", "0.0.0.0", "--port", str(PORT)],
                        "ports": [{"container_port": PORT}],
                        "readiness_probe": {"http_get": {"path": "/health", "port": PORT}},
                        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}},
                    }
                ]
            },
        },
    },
)
service = k8s.core.v1.Service(
    "server",
    metadata={"name": "server", "namespace": namespace.metadata["name"]},
    spec={"selector": LABELS, "ports": [{"port": PORT}]},
)

SMALL = {"cpu": "50m", "memory": "256Mi"}
benchmark = Benchmark(
    "load",
    BenchmarkArgs(
        config={
            "endpoint": {
                "url": f"http://server.inference.svc.cluster.local:{PORT}",
                "model": "mock-model",
                "streaming": True,
            },
            "load": {"concurrency": 8, "duration": "5s", "grace_period": "5s"},
            "dataset": {"entries": 200, "input_tokens": {"mean": 64}},
            "workers": {"max": 1},
            "deployment": {
                "ttl": "15m",
                # The pods behind the URL, for the workers' NetworkPolicy.
                "target": {
                    "pods": {"namespace": "inference", "labels": LABELS, "port": PORT},
                },
                "pods": {
                    "system-controller": SMALL,
                    "dataset-manager": SMALL,
                    "timing-manager": SMALL,
                    "worker-manager": SMALL,
                    "records-manager": {"cpu": "100m", "memory": "512Mi"},
                    "record-processor": {"cpu": "100m", "memory": "256Mi"},
                    "worker": {"cpu": "200m", "memory": "384Mi"},
                },
            },
        }
    ),
    pulumi.ResourceOptions(depends_on=[server, service]),
)
pulumi.export("namespace", benchmark.namespace)
pulumi.export("portForward", benchmark.port_forward)
pulumi.export("resultsToken", benchmark.results_token)
