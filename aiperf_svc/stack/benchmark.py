"""The component of the whole stack: creates the other components in order of their dependencies."""

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s

from aiperf_svc.config.units import format_cpu, format_duration, format_size
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.stack.access import Access, AccessArgs
from aiperf_svc.stack.containers import MountedNames
from aiperf_svc.stack.lifetime import Lifetime, LifetimeArgs
from aiperf_svc.stack.monitoring import Monitoring, MonitoringArgs
from aiperf_svc.stack.network import Network, NetworkArgs
from aiperf_svc.stack.release import Release, ReleaseArgs
from aiperf_svc.stack.results import PORT, Results, ResultsArgs
from aiperf_svc.stack.scope import Scope
from aiperf_svc.stack.settings import Cluster
from aiperf_svc.stack.stack_pods import (
    ControlPlane,
    FanOut,
    FanOutArgs,
    PodsArgs,
    Target,
    WorkerPool,
)


@dataclass(frozen=True, kw_only=True)
class BenchmarkStackArgs:
    """The plan to build, and the provider that builds it."""

    plan: StackPlan
    owner: str
    """Owner of the stack: `user@host`."""
    cluster: Cluster
    secrets: Mapping[str, Mapping[str, pulumi.Output[str]]]
    after: tuple[pulumi.Resource, ...] = ()
    """Resources that must exist before the pods that measure, such as the target."""


class BenchmarkStack(pulumi.ComponentResource):
    """Creates namespace, deadline, policies, keys, target, control plane and workers, in this
    order; for Jobs, the collector and its Jobs replace the last three. Objects without pods do not
    wait for the deadline pod."""

    outputs: dict[str, pulumi.Input[object]]
    """Outputs of the stack, such as the address of the results and the cost."""

    def __init__(
        self, name: str, args: BenchmarkStackArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("aiperf:stack:Benchmark", name, None, opts)
        plan = args.plan
        below = pulumi.ResourceOptions(parent=self)
        lifetime = Lifetime(
            "lifetime",
            LifetimeArgs(
                plan=plan,
                owner=args.owner,
                provider=_provider("kubernetes", args.cluster, below, server_side_apply=True),
                strict_provider=_provider("strict", args.cluster, below, server_side_apply=False),
            ),
            below,
        )
        base, scope = lifetime.foundation, lifetime.scope
        policies = tuple(each for each in plan.policies if each not in plan.deadline_policies)
        network = Network("network", NetworkArgs(policies=policies, scope=base), below)
        access = Access("access", AccessArgs(plan=plan, scope=base, secrets=args.secrets), below)
        scope = scope.depends_on(network, access, *args.after)
        mounted = access.mounted
        deployment = plan.config.deployment
        if deployment.monitoring == "prometheus-operator":
            Monitoring(
                "monitoring",
                MonitoringArgs(
                    pod=plan.results_pod,
                    mounted=mounted,
                    labels=deployment.monitoring_labels,
                    scope=base,
                ),
                below,
            )
        if plan.target:
            # The target may take longer to start than the services wait for each other.
            target = Target(
                "target",
                PodsArgs(pods=(plan.target,), scope=scope, base=base, mounted=mounted),
                below,
            )
            if plan.queue is None:
                scope = scope.depends_on(target)
        if plan.release:
            release = Release(
                "release",
                ReleaseArgs(
                    plan=plan.release,
                    target=deployment.target,
                    scope=scope,
                    base=base,
                    mounted=mounted,
                ),
                below,
            )
            scope = scope.depends_on(release)
        if plan.jobs:
            (collector,) = plan.services
            fan_out = FanOut(
                "fan-out",
                FanOutArgs(
                    collector=collector, jobs=plan.jobs, scope=scope, base=base, mounted=mounted
                ),
                below,
            )
            with_results: pulumi.Resource = fan_out.collector
        else:
            with_results = _services(plan, scope, base, mounted, below)
        results = Results(
            "results",
            ResultsArgs(
                pod=plan.results_pod,
                exposure=plan.config.deployment.results,
                scope=scope.depends_on(with_results),
            ),
            below,
        )
        self.outputs = _outputs(plan, lifetime.namespace, results.url, access.token)
        self.register_outputs(self.outputs)


def _services(
    plan: StackPlan,
    scope: Scope,
    base: Scope,
    mounted: MountedNames,
    below: pulumi.ResourceOptions,
) -> pulumi.Resource:
    """Create the control plane and the workers; return the Deployment of the results' pod."""
    single = tuple(pod for pod in plan.services if pod.name not in plan.replicated)
    control = ControlPlane(
        "control-plane",
        PodsArgs(pods=single, scope=scope, base=base, mounted=mounted),
        below,
    )
    many = tuple(pod for pod in plan.services if pod.name in plan.replicated)
    WorkerPool(
        "worker-pool",
        PodsArgs(
            pods=many,
            scope=scope.depends_on(*control.services.values()),
            base=base,
            mounted=mounted,
        ),
        below,
    )
    return control.deployments[plan.results_pod]


def _provider(
    name: str, cluster: Cluster, opts: pulumi.ResourceOptions, *, server_side_apply: bool
) -> k8s.Provider:
    return k8s.Provider(
        name,
        kubeconfig=cluster.kubeconfig,
        context=cluster.context,
        cluster_identifier=cluster.identifier,
        enable_server_side_apply=server_side_apply,
        render_yaml_to_directory=cluster.render_to,
        opts=pulumi.ResourceOptions.merge(
            opts, pulumi.ResourceOptions(version=cluster.provider_version)
        ),
    )


def _outputs(
    plan: StackPlan,
    namespace: pulumi.Output[str],
    url: pulumi.Output[str],
    token: pulumi.Output[str],
) -> dict[str, pulumi.Input[object]]:
    totals, exposure, s3 = plan.totals, plan.config.deployment.results, plan.config.artifacts.s3
    service, has_cost = plan.identity.name(plan.results_pod), totals.cost_per_hour > 0
    forward = pulumi.Output.concat(
        "kubectl -n ", namespace, " port-forward service/", service, f" {PORT}"
    )
    return {
        "namespace": namespace,
        "runId": plan.identity.run_id,
        **plan.measured,
        "results": {
            "expose": exposure.expose,
            "service": service,
            "port": PORT,
            "url": url,
            "portForward": forward,
            # Each run writes into its own folder in the bucket.
            **({"bucket": s3.url} if s3 else {}),
        },
        "resultsToken": token,
        "deletesItselfAfter": format_duration(plan.config.deployment.ttl),
        "pods": totals.pods,
        "cpu": format_cpu(totals.cpu_millis),
        "memory": format_size(totals.memory_bytes),
        "gpus": totals.gpus,
        # Without prices the cost is unknown, so omit the output instead of returning 0.
        **({"costPerHour": f"{totals.cost_per_hour:g} {totals.currency}"} if has_cost else {}),
        "podSecurity": plan.pod_security,
        "notes": list(plan.notes),
    }
