"""Accounts of pods that call the Kubernetes API, with a Role of their own."""

from collections.abc import Sequence

import pulumi
import pulumi_kubernetes as k8s

from components.scope import Scope

rbac = k8s.rbac.v1


def make_account(
    name: str, rules: Sequence[rbac.PolicyRuleArgs], scope: Scope, parent: pulumi.Resource
) -> tuple[pulumi.Resource, pulumi.Resource]:
    """Create the ServiceAccount of a component, its Role and the binding of both. Return what its
    pods depend on. The account has the name that `scope` makes of `name`."""
    account = k8s.core.v1.ServiceAccount(
        name,
        metadata=scope.metadata(name, component=name),
        automount_service_account_token=False,
        opts=scope.options(parent),
    )
    role = rbac.Role(
        name,
        metadata=scope.metadata(name, component=name),
        rules=list(rules),
        opts=scope.options(parent),
    )
    binding = rbac.RoleBinding(
        name,
        metadata=scope.metadata(name, component=name),
        role_ref=rbac.RoleRefArgs(
            api_group="rbac.authorization.k8s.io", kind="Role", name=scope.identity.name(name)
        ),
        subjects=[
            rbac.SubjectArgs(
                kind="ServiceAccount", name=scope.identity.name(name), namespace=scope.namespace
            )
        ],
        opts=scope.depends_on(role).options(parent),
    )
    return account, binding


def rule(
    group: str, resource: str, *verbs: str, name: pulumi.Input[str] | None = None
) -> rbac.PolicyRuleArgs:
    """Return the rule that allows these verbs on a resource, or on the one object of a name."""
    return rbac.PolicyRuleArgs(
        api_groups=[group],
        resources=[resource],
        resource_names=[name] if name is not None else None,
        verbs=list(verbs),
    )
