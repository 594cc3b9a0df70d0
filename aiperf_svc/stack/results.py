"""Access to the results from outside the cluster without a port-forward."""

from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s

from aiperf_svc.config.deployment import Results as Exposure
from aiperf_svc.protocol.ports import Port
from aiperf_svc.stack.scope import SKIP_AWAIT, Scope

PORT = int(Port.RESULTS_API)


@dataclass(frozen=True, kw_only=True)
class ResultsArgs:
    """The pod with the results, and how it is exposed."""

    pod: str
    exposure: Exposure
    scope: Scope
    """Scope that depends on the pod's Deployment, because a load balancer needs a pod."""


class Results(pulumi.ComponentResource):
    """Creates a separate Service, and an Ingress to it if configured."""

    url: pulumi.Output[str]
    """URL of the results; empty for a port-forward."""

    def __init__(
        self, name: str, args: ResultsArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("aiperf:stack:Results", name, None, opts)
        self.url = pulumi.Output.from_input("")
        exposure = args.exposure
        if exposure.expose != "port-forward":
            service = self._service(args)
            if exposure.expose == "Ingress":
                self._ingress(args)
                scheme = "https" if exposure.tls_secret else "http"
                self.url = pulumi.Output.from_input(f"{scheme}://{exposure.host}")
            elif exposure.expose == "NodePort":
                self.url = service.spec.apply(_node_url)
            else:
                self.url = service.status.apply(_balancer_url)
        self.register_outputs({"url": self.url})

    def _service(self, args: ResultsArgs) -> k8s.core.v1.Service:
        exposure, scope = args.exposure, args.scope
        is_balancer = exposure.expose == "LoadBalancer"
        annotations = {} if is_balancer else SKIP_AWAIT
        if exposure.expose != "Ingress":
            annotations = {**annotations, **exposure.annotations}
        return k8s.core.v1.Service(
            "results",
            metadata=scope.metadata("results", annotations=annotations),
            spec=k8s.core.v1.ServiceSpecArgs(
                type="ClusterIP" if exposure.expose == "Ingress" else exposure.expose,
                selector=scope.identity.selector(args.pod),
                load_balancer_source_ranges=list(exposure.allow_cidrs) or None
                if is_balancer
                else None,
                ports=[
                    k8s.core.v1.ServicePortArgs(
                        name="results-api",
                        port=PORT,
                        target_port=PORT,
                        protocol="TCP",
                        node_port=exposure.node_port,
                    )
                ],
            ),
            opts=scope.options(self),
        )

    def _ingress(self, args: ResultsArgs) -> None:
        exposure, scope, net = args.exposure, args.scope, k8s.networking.v1
        backend = net.IngressBackendArgs(
            service=net.IngressServiceBackendArgs(
                name=scope.identity.name("results"), port=net.ServiceBackendPortArgs(number=PORT)
            )
        )
        path = net.HTTPIngressPathArgs(path="/", path_type="Prefix", backend=backend)
        tls = net.IngressTLSArgs(hosts=[exposure.host or ""], secret_name=exposure.tls_secret)
        net.Ingress(
            "results",
            metadata=scope.metadata("results", annotations={**SKIP_AWAIT, **exposure.annotations}),
            spec=net.IngressSpecArgs(
                ingress_class_name=exposure.ingress_class,
                rules=[
                    net.IngressRuleArgs(
                        host=exposure.host, http=net.HTTPIngressRuleValueArgs(paths=[path])
                    )
                ],
                tls=[tls] if exposure.tls_secret else None,
            ),
            opts=scope.options(self),
        )


def _node_url(spec: k8s.core.v1.outputs.ServiceSpec) -> str:
    """Return the URL of a NodePort with a placeholder: the user knows a reachable node."""
    return f"http://NODE:{spec.ports[0].node_port or PORT}" if spec.ports else ""


def _balancer_url(status: k8s.core.v1.outputs.ServiceStatus | None) -> str:
    ingress = status.load_balancer.ingress if status and status.load_balancer else None
    address = (ingress[0].hostname or ingress[0].ip) if ingress else None
    if not address:
        return ""
    return f"http://[{address}]:{PORT}" if ":" in address else f"http://{address}:{PORT}"
