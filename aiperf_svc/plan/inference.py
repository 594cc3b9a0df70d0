"""The stack that measures an inference server inside or outside the stack."""

import re
from dataclasses import dataclass

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.secret_names import PAGES_KEY_ENV, TARGET_KEY_ENV
from aiperf_svc.config.target import HOST
from aiperf_svc.config.target_notices import UNCHECKED, is_unchecked
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.plan.experiments import largest_load, largest_topology
from aiperf_svc.plan.identity import Identity
from aiperf_svc.plan.network import Policies, Policy, is_on_hub, plan_policies, target_policies
from aiperf_svc.plan.pod_settings import download_bytes, in_pods, worker_bytes
from aiperf_svc.plan.pods import PodPlan, SecretKey
from aiperf_svc.plan.release import (
    ReleasePlan,
    Rendered,
    calls_api,
    digest_of,
    plan_release,
    release_notes,
    uses_node_network,
)
from aiperf_svc.plan.service_pods import PAGES_KEY, TARGET_KEY, ServiceNeeds, service_pods
from aiperf_svc.plan.stack_kind import KindPods, StackBasis, StackKind
from aiperf_svc.plan.target import (
    first_completion_ns,
    pool_pages,
    resolve_pages,
    resolve_url,
    target_pod,
)
from aiperf_svc.plan.topology import Facts, Topology, plan
from aiperf_svc.protocol.services import Service

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, kw_only=True)
class InferenceStack(StackKind[BenchmarkConfig]):
    """A stack whose workers send requests."""

    rendered: tuple[Rendered, ...] = ()
    """The sources of a target of kind release."""

    def check(self) -> None:
        """Raise ConfigError for a secret in plain text, or one that a Secret cannot hold."""
        endpoint = self.config.endpoint
        if endpoint.proxy_auth_env is not None:
            raise ConfigError(
                "endpoint.proxy_auth_env: a stack has no secret for a proxy; use one that lets the "
                "cluster's nodes pass, or measure from a machine of your own"
            )
        for key in endpoint.secrets_in_clear:
            raise ConfigError(
                f"{key} would be kept in plain text in a ConfigMap; a key is named by "
                "endpoint.api_key_env and kept under aiperf:targetApiKey (pulumi config set "
                "--secret), and endpoint.api_key_header names its header, or ?NAME for the query"
            )

    def resolve(self, identity: Identity) -> BenchmarkConfig:
        """Return the config as the services read it: with the address of the target, and with the
        variables that hold the keys in the pods."""
        host = identity.name(HOST)
        return with_pod_keys(
            self.config.model_copy(
                update={
                    "deployment": in_pods(self.config.deployment),
                    "endpoint": self.config.endpoint.model_copy(
                        update={
                            "url": resolve_url(self.config, host),
                            "wait_for_server": first_completion_ns(self.config),
                        }
                    ),
                    "telemetry": resolve_pages(self.config, host).model_copy(
                        update={"pools": pool_pages(self.config, identity)}
                    ),
                }
            )
        )

    def images(self, services: str) -> str:
        objects = [each for source in self.rendered for each in source.objects]
        return f"{services} {digest_of(objects)}" if objects else services

    @property
    def evicted(self) -> tuple[str, ...]:
        """The target, if events of the run evict it."""
        does = any(
            each.do in ("evict", "drain") and not each.foreign for each in self.config.events
        )
        return (HOST,) if does else ()

    def topology(self) -> Topology:
        return largest_topology([plan(each, Facts(where="cluster")) for each in self.trials])

    def pods(self, basis: StackBasis[BenchmarkConfig]) -> KindPods:
        load = largest_load(basis.config, self.trials)
        needs = ServiceNeeds(
            secret_env=secrets_of(load),
            download_bytes=download_bytes(load),
            worker_bytes=worker_bytes(load, basis.topology),
        )
        release: ReleasePlan | None = None
        notes: tuple[str, ...] = ()
        if basis.config.deployment.target.kind == "release":
            release = plan_release(basis.config, self.rendered, basis.identity, basis.image)
            notes = release_notes(basis.config, release, self.rendered)
        return KindPods(
            services=service_pods(basis, load, needs),
            target=target_pod(basis.config, basis.image),
            release=release,
            notes=notes,
        )

    def policies(self, basis: StackBasis[BenchmarkConfig], pods: tuple[PodPlan, ...]) -> Policies:
        release = {HOST} if uses_node_network(self.rendered) else set[str]()

        def to_target(hosted: set[str]) -> tuple[list[Policy], list[str]]:
            has_api = calls_api(self.rendered)
            return target_policies(basis.config, basis.topology, has_api, hosted | release)

        return plan_policies(basis.config, basis.topology, pods, to_target)

    def outputs(self, config: BenchmarkConfig) -> dict[str, str]:
        return {"target": config.endpoint.url}

    def notes(self, config: BenchmarkConfig) -> tuple[str, ...]:
        notes = [UNCHECKED] if is_unchecked(config) else []
        notes += super().notes(config)
        tokenizer = config.tokenizer
        if is_on_hub(tokenizer.name) and not _COMMIT.fullmatch(tokenizer.revision):
            notes.append(
                f"tokenizer.revision {tokenizer.revision} of {tokenizer.name} can become another "
                "one; pin it by a commit"
            )
        return tuple(notes)

    def secret_keys(self, config: BenchmarkConfig) -> dict[str, set[str]]:
        target = {TARGET_KEY} if config.endpoint.api_key_env else set()
        return {
            "target": target | set(config.deployment.target.secret_env.values()),
            "pages": {PAGES_KEY} if config.telemetry.key_env else set(),
        }


def with_pod_keys(config: BenchmarkConfig) -> BenchmarkConfig:
    """Return the config with the variables that hold the keys in pods."""
    endpoint, telemetry = config.endpoint, config.telemetry
    key_env = TARGET_KEY_ENV if endpoint.api_key_env else None
    pages_env = PAGES_KEY_ENV if telemetry.key_env else None
    update = {
        "endpoint": endpoint.model_copy(update={"api_key_env": key_env}),
        "telemetry": telemetry.model_copy(update={"key_env": pages_env}),
    }
    return config.model_copy(update=update)


def secrets_of(config: BenchmarkConfig) -> dict[Service, dict[str, SecretKey]]:
    """Return the secrets by variable that each service needs."""
    pages = {PAGES_KEY_ENV: SecretKey("pages", PAGES_KEY)} if config.telemetry.key_env else {}
    key = {TARGET_KEY_ENV: SecretKey("target", TARGET_KEY)} if config.endpoint.api_key_env else {}
    return {
        Service.RECORDS_MANAGER: pages | (key if config.quality is not None else {}),
        Service.WORKER: key,
        Service.TIMING_MANAGER: key if config.may_call_hooks else {},
    }
