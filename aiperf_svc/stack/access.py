"""Access of pods: the account, config and keys of the services, and the accounts of pods that call
the Kubernetes API, each with its own Role."""

import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s

from aiperf_svc.adapters.messaging.curve_keys import CurveKeys
from aiperf_svc.plan.service_pods import METRICS_TOKEN_KEY, TOKEN_KEY
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.stack.containers import MountedNames
from aiperf_svc.stack.scope import Scope

rbac = k8s.rbac.v1


@dataclass(frozen=True, kw_only=True)
class AccessArgs:
    """The plan, and the secret values that the services read."""

    plan: StackPlan
    scope: Scope
    secrets: Mapping[str, Mapping[str, pulumi.Output[str]]]
    """Maps the name of a Secret to the user's values for it."""


class Access(pulumi.ComponentResource):
    """The ServiceAccount, ConfigMaps and Secrets of the pods."""

    mounted: MountedNames
    token: pulumi.Output[str]
    """Bearer token of the results API."""

    def __init__(
        self, name: str, args: AccessArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("aiperf:stack:Access", name, None, opts)
        plan, scope = args.plan, args.scope
        account = k8s.core.v1.ServiceAccount(
            "services",
            metadata=scope.metadata("services"),
            automount_service_account_token=False,
            opts=scope.options(self),
        )
        config = self._config_map("config", plan.config_name, plan.files, scope)
        shared = plan.shared_env
        environment = (
            self._config_map("environment", plan.shared_env_name, shared, scope) if shared else ""
        )
        keys = k8s.core.v1.Secret(
            "keys",
            metadata=scope.metadata("keys"),
            data=pulumi.Output.secret(_new_keys()),
            # Each run of this program generates new keys, but those in the state are kept.
            opts=scope.options(self, ignore_changes=("data",)),
        )
        found: dict[str, pulumi.Input[str]] = {"keys": _name(keys)}
        for which, secret_values in args.secrets.items():
            values: pulumi.Output[dict[str, str]] = pulumi.Output.all(**secret_values)
            secret = k8s.core.v1.Secret(
                which,
                metadata=scope.metadata(which),
                data=values.apply(_encoded),
                opts=scope.options(self),
            )
            found[which] = _name(secret)
        self.mounted = MountedNames(
            account=account.metadata.apply(lambda metadata: str(metadata.name)),
            config_map=config,
            shared_env=shared,
            environment=environment,
            secrets=tuple(found.items()),
        )
        self.token = pulumi.Output.secret(
            keys.data.apply(lambda data: base64.b64decode(data[TOKEN_KEY]).decode())
        )
        self.register_outputs({})

    def _config_map(
        self, name: str, full_name: str, data: Mapping[str, str], scope: Scope
    ) -> pulumi.Output[str]:
        made = k8s.core.v1.ConfigMap(
            name,
            metadata=scope.named(full_name),
            data=data,
            immutable=True,
            opts=scope.options(self),
        )
        return made.metadata.apply(lambda metadata: str(metadata.name))


def _new_keys() -> dict[str, str]:
    # The Secret has the keys of all services and both tokens, so it does not depend on the config.
    values = {name: key.decode() for name, key in CurveKeys.make().files().items()}
    tokens = {name: secrets.token_urlsafe(32) for name in (TOKEN_KEY, METRICS_TOKEN_KEY)}
    return _encoded({**values, **tokens})


def _encoded(values: Mapping[str, str]) -> dict[str, str]:
    return {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}


def _name(secret: k8s.core.v1.Secret) -> pulumi.Output[str]:
    return secret.metadata.apply(lambda metadata: str(metadata.name))


def make_account(
    name: str, rules: Sequence[rbac.PolicyRuleArgs], scope: Scope, parent: pulumi.Resource
) -> tuple[pulumi.Resource, pulumi.Resource]:
    """Create the ServiceAccount of a component, its Role and their binding. Return the dependencies
    of its pods. `scope` derives the name of the account from `name`."""
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
    """Return the rule that allows these verbs on a resource, or only on the object with a name."""
    return rbac.PolicyRuleArgs(
        api_groups=[group],
        resources=[resource],
        resource_names=[name] if name is not None else None,
        verbs=list(verbs),
    )
