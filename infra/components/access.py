"""The identity of the services and the files they read: an account without a token, the config
and the keys."""

import base64
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_kubernetes as k8s

from aiperf_svc.adapters.messaging.curve_keys import CurveKeys
from aiperf_svc.plan.service_pods import METRICS_TOKEN_KEY, TOKEN_KEY
from aiperf_svc.plan.stack import StackPlan
from components.containers import MountedNames
from components.scope import Scope


@dataclass(frozen=True, kw_only=True)
class AccessArgs:
    """The plan, and the secret values that the services read."""

    plan: StackPlan
    scope: Scope
    secrets: Mapping[str, Mapping[str, pulumi.Output[str]]]
    """Maps the name of a Secret to the values that the user gave for it."""


class Access(pulumi.ComponentResource):
    """The ServiceAccount, the ConfigMap and the Secrets that pods mount."""

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
        config = k8s.core.v1.ConfigMap(
            "config",
            metadata=scope.named(plan.config_name),
            data=plan.files,
            immutable=True,
            opts=scope.options(self),
        )
        keys = k8s.core.v1.Secret(
            "keys",
            metadata=scope.metadata("keys"),
            data=pulumi.Output.secret(_new_keys()),
            # Each run of this program makes new keys; those in the state are kept.
            opts=scope.options(self, ignore_changes=("data",)),
        )
        found: dict[str, pulumi.Input[str]] = {"keys": _name(keys)}
        for which, given in args.secrets.items():
            values: pulumi.Output[dict[str, str]] = pulumi.Output.all(**given)
            secret = k8s.core.v1.Secret(
                which,
                metadata=scope.metadata(which),
                data=values.apply(_encoded),
                opts=scope.options(self),
            )
            found[which] = _name(secret)
        self.mounted = MountedNames(
            account=account.metadata.apply(lambda metadata: str(metadata.name)),
            config_map=config.metadata.apply(lambda metadata: str(metadata.name)),
            secrets=tuple(found.items()),
        )
        self.token = pulumi.Output.secret(
            keys.data.apply(lambda data: base64.b64decode(data[TOKEN_KEY]).decode())
        )
        self.register_outputs({})


def _new_keys() -> dict[str, str]:
    # The Secret has the keys of all services and both tokens, so that it does not depend on the
    # config.
    values = {name: key.decode() for name, key in CurveKeys.make().files().items()}
    tokens = {name: secrets.token_urlsafe(32) for name in (TOKEN_KEY, METRICS_TOKEN_KEY)}
    return _encoded({**values, **tokens})


def _encoded(values: Mapping[str, str]) -> dict[str, str]:
    return {name: base64.b64encode(value.encode()).decode() for name, value in values.items()}


def _name(secret: k8s.core.v1.Secret) -> pulumi.Output[str]:
    return secret.metadata.apply(lambda metadata: str(metadata.name))
