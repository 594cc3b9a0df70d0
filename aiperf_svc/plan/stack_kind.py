"""The differences between kinds of stacks: inference servers, ranks of a tool, indexes of Jobs.

`plan/stack.py` plans what all stacks share and gets the rest from the kind.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic

import msgspec

from aiperf_svc.config.secret_names import is_secret_name
from aiperf_svc.config.workload import Config, ConfigT
from aiperf_svc.plan.identity import Identity
from aiperf_svc.plan.lifetime import LongestTimes
from aiperf_svc.plan.network import Policies
from aiperf_svc.plan.pods import ImagePlan, JobPlan, PodPlan
from aiperf_svc.plan.release import ReleasePlan
from aiperf_svc.plan.run_values import RunValues
from aiperf_svc.plan.topology import Topology


@dataclass(frozen=True, kw_only=True)
class StackBasis(Generic[ConfigT]):
    """Data about a stack before its pods are planned."""

    config: ConfigT
    """Config as the services read it."""
    identity: Identity
    image: ImagePlan
    """Image of the services."""
    topology: Topology
    run: RunValues


class KindPods(msgspec.Struct, frozen=True, kw_only=True):
    """The pods of a stack, except the deadline's."""

    services: tuple[PodPlan, ...]
    target: PodPlan | None = None
    release: ReleasePlan | None = None
    """The target, if its kind is release."""
    jobs: tuple[JobPlan, ...] = ()
    """Jobs whose indexes are the shapes of an experiment."""
    notes: tuple[str, ...] = ()
    """Notes for reviewers."""

    @property
    def pods(self) -> tuple[PodPlan, ...]:
        """The pods that the stack itself creates."""
        target = (self.target,) if self.target else ()
        gate = (self.release.gate,) if self.release else ()
        return (*self.services, *target, *gate, *(job.pod for job in self.jobs))

    def changed(self, change: Callable[[PodPlan], PodPlan]) -> "KindPods":
        """Return the same pods after `change`, except for the pods of a release."""
        return msgspec.structs.replace(
            self,
            services=tuple(map(change, self.services)),
            target=self.target and change(self.target),
            jobs=tuple(msgspec.structs.replace(job, pod=change(job.pod)) for job in self.jobs),
        )

    @property
    def of_release(self) -> tuple[PodPlan, ...]:
        """The known pods that the objects of a release create."""
        return self.release.pods if self.release else ()

    @property
    def custom_images(self) -> tuple[str, ...]:
        """The images named by custom resources of a release."""
        return self.release.custom_images if self.release else ()


@dataclass(frozen=True, kw_only=True)
class StackKind(ABC, Generic[ConfigT]):
    """One kind of stack. Its methods return what differs between kinds."""

    config: ConfigT
    trials: Sequence[ConfigT]
    """Configs of the trials that the pods run; without an experiment, only `config`."""
    times: LongestTimes
    """Longest times of the start and of all trials."""

    @property
    def lifetime(self) -> LongestTimes:
        """The times that the TTL must cover."""
        return self.times

    @property
    def longest_hold(self) -> LongestTimes:
        """The times that the drain of a node may have to wait."""
        return self.times

    @property
    def evicted(self) -> tuple[str, ...]:
        """Components whose pods the run itself evicts."""
        return ()

    def check(self) -> None:
        """Raise ConfigError for a config that is impossible for this kind of stack."""

    @abstractmethod
    def resolve(self, identity: Identity) -> ConfigT:
        """Return the config as the services read it. `identity` has no run id yet."""

    def images(self, services: str) -> str:
        """Return the images that the id of the run depends on; `services` is the services'
        image."""
        return services

    @abstractmethod
    def topology(self) -> Topology:
        """Return a topology that is large enough for each trial."""

    @abstractmethod
    def pods(self, basis: StackBasis[ConfigT]) -> KindPods:
        """Return the pods, except the deadline's."""

    @abstractmethod
    def policies(self, basis: StackBasis[ConfigT], pods: tuple[PodPlan, ...]) -> Policies:
        """Return the network policies and notes for reviewers. `pods` are all of the stack."""

    @abstractmethod
    def outputs(self, config: ConfigT) -> dict[str, str]:
        """Return the outputs of the stack that name the measured system."""

    def notes(self, config: ConfigT) -> tuple[str, ...]:
        """Return notes for reviewers about the config as the services read it."""
        return plaintext_warnings(config)

    def secret_keys(self, config: ConfigT) -> dict[str, set[str]]:
        """Map the name of each Secret to the keys of the stack's configuration that it holds,
        without the keys of uploads, which all kinds have."""
        return {}

    def check_files(self, files: Callable[[], Mapping[str, str]]) -> None:
        """Raise ConfigError for files of the services that exceed a ConfigMap. Most kinds have
        small files and skip this check, because generating the files takes time."""


def plaintext_warnings(config: Config) -> tuple[str, ...]:
    """Return notes about data that others can read in transit or in a manifest."""
    notes = []
    results, target = config.deployment.results, config.deployment.target
    if results.expose != "port-forward" and not results.tls_secret:
        notes.append(
            f"results by {results.expose} without TLS: the token that reads them is sent in plain "
            "text; use port-forward, or Ingress with results.tls_secret"
        )
    words = (*target.command, *target.args)
    for flag in (word.partition("=")[0] for word in words if word.startswith("-")):
        if is_secret_name(flag.lstrip("-")):
            notes.append(
                f"deployment.target: {flag}: its value is in plain text in the pod and in Pulumi's "
                "state; give it in a variable of deployment.target.secret_env"
            )
    return tuple(notes)
