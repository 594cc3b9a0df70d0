"""A serving topology as the target: a Helm chart, manifests or a custom resource, its readiness
rules, and the pools of its pods."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, ConfigDict, Field, model_validator

from aiperf_svc.config.base import Model
from aiperf_svc.config.units import CpuMillis, SizeBytes
from aiperf_svc.domain.json_objects import Json

_JSONPATH = re.compile(r"\{?(?P<path>(\.[A-Za-z0-9_-]+(\[\d+\])?)+)\}?(=(?P<value>.*))?")


class ReleaseSource(Model):
    """Origin of the objects of a release; one of chart, manifests and object."""

    chart: Annotated[str, Field(min_length=1)] | None = None
    """Folder or archive of a Helm chart, name of a chart in `repo`, or `oci://` URL."""
    repo: Annotated[str, Field(pattern=r"^https?://")] | None = None
    """URL of the chart's repository."""
    version: Annotated[str, Field(min_length=1)] | None = None
    """Version of a chart that is downloaded."""
    values: Json = Field(default_factory=dict)
    """Values of the chart, over its own."""
    name: Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,51}[a-z0-9])?$")] = "target"
    """Name of the Helm release, with which most charts begin the names of their objects."""
    hooks: bool = False
    """Install the chart as a Helm release, so that its hooks run. Otherwise its rendered objects
    are created one by one and hooks are left out."""
    manifests: Annotated[str, Field(min_length=1)] | None = None
    """YAML file, folder of YAML files, or folder with a kustomization.yaml."""
    object: Json | None = None
    """One object, such as a custom resource from which an operator makes the servers."""

    @model_validator(mode="after")
    def _has_one_origin(self) -> Self:
        origins = [name for name in ("chart", "manifests", "object") if getattr(self, name)]
        if len(origins) != 1:
            found = " and ".join(origins) or "none of them"
            raise ValueError(
                f"expected one of {{chart}}, {{manifests}} and {{object}}, not {found}"
            )
        of_chart = self._first_set("repo", "version", "values", "hooks")
        if of_chart and self.chart is None:
            raise ValueError(f"{{{of_chart}}} needs {{chart}}")
        if self.version is None and self.is_remote:
            raise ValueError("{version}: a chart that is downloaded needs its version")
        return self

    @property
    def what(self) -> str:
        """Name of the source in messages."""
        return self.chart or self.manifests or "object"

    @property
    def is_remote(self) -> bool:
        """Whether the chart is downloaded."""
        return self.repo is not None or (self.chart or "").startswith(("oci://", "https://"))


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, Mapping) else value


class ReadyRule(Model):
    """A condition or field of an object that must hold before the load begins."""

    kind: Annotated[str, Field(min_length=1)]
    name: Annotated[str, Field(min_length=1)]
    api_version: Annotated[str, Field(min_length=1)] | None = None
    """Needed for an object that the release does not contain, such as one that an operator
    creates."""
    condition: Annotated[str, Field(pattern=r"^[A-Za-z][\w./-]*(=\w+)?$")] | None = None
    """Condition of the object's status: `Ready` (its status must be True), or `Ready=False`."""
    jsonpath: str | None = None
    """Field and its value: `{.status.phase}=Running`. Without a value the field must exist."""

    @model_validator(mode="after")
    def _has_one_test(self) -> Self:
        if (self.condition is None) == (self.jsonpath is None):
            raise ValueError("expected one of {condition} and {jsonpath}")
        if self.jsonpath is not None and not _JSONPATH.fullmatch(self.jsonpath):
            raise ValueError(
                f"{{jsonpath}}: {self.jsonpath!r}; expected members and indexes, such as "
                "`{.status.phase}=Running` or `.status.replicas[0].ready`"
            )
        return self

    @property
    def test(self) -> tuple[str, str | None]:
        """Path of the field and its value; None: any value. A condition's path is its type."""
        if self.condition is not None:
            name, _, value = self.condition.partition("=")
            return name, value or "True"
        found = _JSONPATH.fullmatch(self.jsonpath or "")
        assert found is not None
        return found["path"], found["value"]


PoolName = Annotated[str, Field(pattern=r"^[a-z]([a-z0-9-]{0,15}[a-z0-9])?$")]
"""Name of a pool, which is part of its Service's name: `pool-NAME-STACK`, at most 63 characters."""


class ReleasePool(Model):
    """Pods of a release that do the same work, such as prefill, decode or routing."""

    labels: Annotated[dict[str, str], Field(min_length=1)]
    """Labels by which the pods are found."""
    replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    """Number of pods that must be ready before the load begins."""
    port: Annotated[int, Field(gt=0, le=65_535)] | None = None
    """Port of the pods with their page of metrics; without one, no page of theirs is read."""
    path: Annotated[str, Field(pattern=r"^/[^\s]*$")] = "/metrics"
    """Path of that page."""


class ReleaseRequests(Model):
    """Resources of all pods that operators create, together: no manifest has them."""

    pods: Annotated[int, Field(gt=0, le=10_000)] = 1
    cpu: CpuMillis = 0
    memory: SizeBytes = 0
    gpus: Annotated[int, Field(ge=0, le=10_000)] = 0


class AdmittedPods(Model):
    """Pods of another namespace."""

    namespace: Annotated[str, Field(min_length=1)]
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the pods; empty: all pods of the namespace."""


class Release(Model):
    """The keys of `deployment.target` for kind release."""

    model_config = ConfigDict(serialize_by_alias=True)

    sources: Annotated[
        tuple[ReleaseSource, ...], BeforeValidator(_one_or_more), Field(alias="from")
    ] = ()
    """Chart, manifests or object from which the servers are created, or a list of them."""
    url: Annotated[str, Field(pattern=r"^https?://[^/\s]+$")] | None = None
    """Address at which the release serves requests, `http://SERVICE:PORT`. `endpoint.url` names it
    by the host `target`."""
    ready: tuple[ReadyRule, ...] = ()
    """Rules that must hold before the load begins."""
    pools: dict[PoolName, ReleasePool] = Field(default_factory=dict)
    """The pools of the release, by name."""
    requests: ReleaseRequests | None = None
    """Resources of the pods that operators create for the release."""
    cluster_scoped: tuple[Annotated[str, Field(pattern=r"^[A-Z]\w+/[^\s/]+$")], ...] = ()
    """Cluster-scoped objects that the release may create, as `KIND/NAME`."""
    admit: tuple[AdmittedPods, ...] = ()
    """Pods of other namespaces that exchange traffic with those of the release: an operator, a
    gateway, a message bus."""
    pod_security: Literal["restricted", "baseline", "privileged"] = "baseline"
    """Pod Security level of the stack's own namespace, which the release's pods need."""
