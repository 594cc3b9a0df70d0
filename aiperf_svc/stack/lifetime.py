"""The lifetime of a stack: the namespace, the anchor that carries the deadline, and the pod that
deletes the stack at the deadline if its runner does not. All other pods are created after these."""

from dataclasses import dataclass, replace
from typing import Literal

import pulumi
import pulumi_kubernetes as k8s

from aiperf_svc.adapters.pulumi.deployed import LIFETIME, ROOT_UIDS
from aiperf_svc.plan.identity import (
    ANCHOR,
    COMPONENT_LABEL,
    LEASE,
    OWNER_ANNOTATION,
    TTL_ANNOTATION,
)
from aiperf_svc.plan.lifetime import DisruptionBudget, seconds
from aiperf_svc.plan.release import group_of, resource_of
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.stack.access import make_account, rule
from aiperf_svc.stack.containers import MountedNames
from aiperf_svc.stack.network import make_policy
from aiperf_svc.stack.pods import make_deployment
from aiperf_svc.stack.scope import PROVIDER, Scope


@dataclass(frozen=True, kw_only=True)
class LifetimeArgs:
    """The plan, and the providers that create the namespace and the anchor."""

    plan: StackPlan
    owner: str
    """Owner of the stack: `user@host`."""
    provider: k8s.Provider
    strict_provider: k8s.Provider
    """Provider that refuses to create an existing object. Server-side apply would take the object
    over, and `destroy` would then delete it."""


class Lifetime(pulumi.ComponentResource):
    """Creates the namespace, the anchor, the Lease, the disruption budget, and the deadline pod
    with its Role."""

    namespace: pulumi.Output[str]
    foundation: Scope
    """Scope for objects without pods, which may be created while the deadline pod starts."""
    scope: Scope
    """Scope for objects with pods, created when the deadline pod is ready to delete them."""

    def __init__(
        self, name: str, args: LifetimeArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(LIFETIME, name, None, opts)
        deployment = args.plan.config.deployment
        self._args = args
        self._ttl = {TTL_ANNOTATION: str(seconds(deployment.longest_life))}
        delete_timeout_s = seconds(deployment.delete_timeout)
        own = self._own_namespace(delete_timeout_s)
        self.namespace = (
            own.metadata.apply(lambda metadata: str(metadata.name))
            if own
            else pulumi.Output.from_input(str(deployment.namespace.name))
        )
        scope = Scope(
            identity=args.plan.identity,
            namespace=self.namespace,
            provider=args.provider,
            delete_timeout_s=delete_timeout_s,
            deleted_with=own,
        )
        anchor = self._anchor(replace(scope, provider=args.strict_provider))
        scope = replace(scope.depends_on(anchor), owners=() if own else (_owned_by(anchor),))
        self._lease(scope)
        # Pulumi waits for the deadline pod, and an existing namespace may deny all traffic without
        # a policy.
        policies = [make_policy(policy, scope, self) for policy in args.plan.deadline_policies]
        deadline = self._ttl_deployment(scope.depends_on(*policies))
        self.foundation, self.scope = scope, scope.depends_on(deadline)
        if args.plan.budget:
            # The budget's time starts when the pod that deletes it is ready.
            self._budget(args.plan.budget, self.scope)
        roots = (anchor, own) if own else (anchor,)
        # Manifests that are only written to a folder have no UIDs.
        uids = [each.metadata.apply(lambda metadata: metadata.uid or "") for each in roots]
        self.register_outputs({"namespace": self.namespace, ROOT_UIDS: uids})

    def _own_namespace(self, delete_timeout_s: int) -> k8s.core.v1.Namespace | None:
        plan = self._args.plan
        wanted = plan.config.deployment.namespace
        if wanted.mode == "existing":
            return None
        levels: tuple[Literal["enforce", "warn", "audit"], ...] = ("enforce", "warn", "audit")
        security = {f"pod-security.kubernetes.io/{level}": plan.pod_security for level in levels}
        return k8s.core.v1.Namespace(
            # Without a name in the metadata, Pulumi generates one from this name and a random
            # suffix.
            f"aiperf-{plan.identity.stack}",
            metadata=k8s.meta.v1.ObjectMetaArgs(
                name=wanted.name,
                labels={**plan.identity.labels(), **security},
                annotations={**plan.identity.annotations, **PROVIDER, **self._ttl},
            ),
            opts=pulumi.ResourceOptions(
                parent=self,
                provider=self._args.strict_provider,
                custom_timeouts=pulumi.CustomTimeouts(delete=f"{delete_timeout_s}s"),
            ),
        )

    def _anchor(self, scope: Scope) -> k8s.core.v1.ConfigMap:
        """Create the anchor, which has no data: Pulumi replaces a ConfigMap whose data changes, and
        its deletion would delete everything that it owns."""
        return k8s.core.v1.ConfigMap(
            ANCHOR,
            metadata=scope.metadata(ANCHOR, annotations=self._ttl),
            opts=scope.options(self),
        )

    def _lease(self, scope: Scope) -> None:
        """Create the Lease with the owner. The process that works on the stack writes itself into
        its `spec`, so Pulumi sets no `spec`."""
        k8s.coordination.v1.Lease(
            LEASE,
            metadata=scope.metadata(LEASE, annotations={OWNER_ANNOTATION: self._args.owner}),
            opts=scope.options(self),
        )

    def _ttl_deployment(self, scope: Scope) -> k8s.apps.v1.Deployment:
        pod = self._args.plan.deadline
        needed = make_account("deadline", self._rules(scope), scope, self)
        mounted = MountedNames(account=scope.identity.name("deadline"))
        return make_deployment(pod, scope.depends_on(*needed), mounted, self)

    def _rules(self, scope: Scope) -> list[k8s.rbac.v1.PolicyRuleArgs]:
        """Return the rules that allow the deadline pod to delete the one object whose deletion ends
        the stack, to delete the budget before it, and to renew the Lease. A Role in a namespace may
        allow deleting that namespace."""
        plan = self._args.plan
        is_guest = plan.config.deployment.namespace.mode == "existing"
        rules = [
            rule("", "configmaps", "get", "delete", name=scope.identity.name(ANCHOR))
            if is_guest
            else rule("", "namespaces", "get", "delete", name=scope.namespace)
        ]
        if plan.budget and plan.budget.hold is not None:
            name = plan.budget.name
            rules.append(rule("policy", "poddisruptionbudgets", "get", "delete", name=name))
        for each in plan.release.deleted_first if plan.release else ():
            resource, name = resource_of(each["kind"]), each["metadata"]["name"]
            rules.append(rule(group_of(each), resource, "get", "delete", name=name))
        name = scope.identity.name(LEASE)
        rules.append(rule("coordination.k8s.io", "leases", "patch", name=name))
        return rules

    def _budget(self, budget: DisruptionBudget, scope: Scope) -> None:
        """Create a budget that blocks node drains. The deadline pod may always be evicted."""
        # The pods of a release, which events of the run evict, are not a component.
        exists = k8s.meta.v1.LabelSelectorRequirementArgs(key=COMPONENT_LABEL, operator="Exists")
        selector = k8s.meta.v1.LabelSelectorArgs(
            match_labels=scope.identity.selector(),
            match_expressions=[
                *([exists] if budget.leaves_out else ()),
                k8s.meta.v1.LabelSelectorRequirementArgs(
                    key=COMPONENT_LABEL,
                    operator="NotIn",
                    # An evicted index is started again on another node.
                    values=[
                        "deadline",
                        "preflight",
                        *(job.pod.name for job in self._args.plan.jobs),
                        *budget.leaves_out,
                    ],
                ),
            ],
        )
        k8s.policy.v1.PodDisruptionBudget(
            "benchmark",
            metadata=scope.named(budget.name),
            spec=k8s.policy.v1.PodDisruptionBudgetSpecArgs(max_unavailable=0, selector=selector),
            # Kubernetes cannot evict a pod that two budgets select. It reports this with an error
            # that makes `kubectl drain` fail instead of waiting.
            opts=pulumi.ResourceOptions.merge(
                scope.options(self), pulumi.ResourceOptions(delete_before_replace=True)
            ),
        )


def _owned_by(anchor: k8s.core.v1.ConfigMap) -> k8s.meta.v1.OwnerReferenceArgs:
    return k8s.meta.v1.OwnerReferenceArgs(
        api_version="v1",
        kind="ConfigMap",
        name=anchor.metadata.apply(lambda metadata: str(metadata.name)),
        uid=anchor.metadata.apply(lambda metadata: str(metadata.uid)),
    )
