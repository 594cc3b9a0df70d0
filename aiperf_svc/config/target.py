"""Settings of the server under test: the stack's own, or the network access to another one."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from aiperf_svc.config.base import MINUTE_NS, Cidr, Model, repeated
from aiperf_svc.config.placement import Gpu, Placement, check_digest, check_fixed
from aiperf_svc.config.release import Release
from aiperf_svc.config.secret_names import is_secret_name
from aiperf_svc.config.units import CpuMillis, DurationNs, SizeBytes

HOST = "target"
"""Host name in `endpoint.url` that stands for the stack's own target."""


class TargetPods(Model):
    """The pods behind a target that runs in the same cluster, outside the stack."""

    namespace: Annotated[str, Field(min_length=1)]
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the Service's selector; empty: all pods of the namespace."""
    port: Annotated[int, Field(gt=0, le=65_535)] | None = None
    """The *pod's* port, which NetworkPolicies see; all ports if not set."""
    host_network: bool = False
    """The pods use their nodes' network. NetworkPolicies select no such pods, so the port is opened
    at every address."""


class TargetVolume(Model):
    """An existing volume that is mounted into each pod of the target: weights, or a cache of
    compiled kernels. A cache that depends on the version needs a folder for each version."""

    kind: Literal["claim", "host-path", "image"]
    """`claim`: a PersistentVolumeClaim of the namespace; `host-path`: a folder of the node, which
    needs Pod Security `privileged`; `image`: the files of an image."""
    source: Annotated[str, Field(min_length=1)]
    """Name of the claim, folder of the node, or reference of the image."""
    path: Annotated[str, Field(pattern=r"^/[^\s:]+$")]
    """Folder in the container."""
    read_only: bool = True
    """Turn it off for a cache that the server fills. An image is never written to."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.kind == "host-path" and not self.source.startswith("/"):
            raise ValueError(f"source: {self.source!r}: expected the path of a folder")
        if self.kind == "image":
            check_fixed(self.source)
            if not self.read_only:
                raise ValueError("read_only: files of an image cannot be written")
        return self


POD_KEYS = (
    "image", "command", "args", "port", "replicas", "env", "secret_env", "gpu", "cpu", "cpu_limit",
    "memory", "storage", "shared_memory", "ready_path", "run_as_root", "writable", "placement",
    "volumes",
)  # fmt: skip
"""Keys of a target that is one kind of pod. For a release, its objects define the same."""


class Target(Release):
    """The server under test. With a kind, one `up` brings up server and load together."""

    kind: Literal["none", "mock", "vllm", "custom", "release"] = "none"
    """`mock` is the built-in server from the stack's own image, `release` a serving topology from a
    Helm chart, manifests or a custom resource (`from`)."""
    image: Annotated[str, Field(min_length=1)] | None = None
    """Image with a tag or, for repeatable runs, a digest (`NAME@sha256:…`)."""
    command: tuple[str, ...] = ()
    """Replaces the image's entrypoint."""
    args: tuple[str, ...] = ()
    """Arguments. For `mock`: its flags; for `vllm`: added to model and port."""
    port: Annotated[int, Field(gt=0, le=65_535)] = 8000
    replicas: Annotated[int, Field(gt=0, le=1_000)] = 1
    """Number of replicas. With several, the Service's name has several addresses."""
    rollout: Literal["Recreate", "RollingUpdate"] = "Recreate"
    """How a restart replaces the pods: `Recreate` ends all of them first, `RollingUpdate` has each
    new one ready before an old one ends."""
    env: dict[str, str] = Field(default_factory=dict)
    """Environment variables, in plain text. Put secret values into `secret_env`."""
    secret_env: dict[str, str] = Field(default_factory=dict)
    """Secret environment variables: the name of each, and the key of its value in the stack's
    configuration (`pulumi config set --secret aiperf:KEY`)."""
    gpu: Gpu | None = None
    cpu: CpuMillis = 1000
    cpu_limit: CpuMillis | None = None
    """CPU limit. Default: none, since the numbers of a throttled server would show its quota."""
    memory: SizeBytes = 2**30
    """Memory request and limit."""
    storage: SizeBytes | None = None
    """Request and limit of the node's disk for /tmp (where weights are downloaded to), log and root
    file system. Default: no request and no limit."""
    shared_memory: SizeBytes = 0
    """Size of /dev/shm; counts as memory of the pod. 0: the runtime's 64 MiB."""
    volumes: tuple[TargetVolume, ...] = ()
    """Existing volumes, read-only unless their `read_only` is false. The variables that point the
    server to them (`HF_HOME`, `VLLM_CACHE_ROOT`) belong in `env`."""
    ready_path: Annotated[str, Field(pattern=r"^/")] | None = None
    """Path that returns 200 when the server is ready; without one, an open port is enough."""
    ready_timeout: DurationNs = 5 * MINUTE_NS
    """Maximum time for pulling the image, loading the model and starting."""
    run_as_root: bool = False
    """Run the container as root, for images that need it: needs Pod Security `baseline`."""
    writable: bool = False
    """Allow writing to the root file system, for images that need it. /tmp and HOME are always
    writable."""
    downloads: bool = False
    """Allow connections to port 443 of any address, e.g. to download the model's weights."""
    placement: Placement = Placement()

    egress_cidrs: tuple[Cidr, ...] = ()
    """Address ranges of a target outside the stack; workers can reach nothing else."""
    pods: TargetPods | None = None
    """Pods of a target outside the stack but inside the cluster. NetworkPolicies never see a
    Service's own address."""

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        if self.kind == "custom" and not self.image:
            raise ValueError("kind: custom needs image")
        if self.kind == "mock" and (self.image or self.command or self.gpu):
            raise ValueError("kind: mock takes no image, command or gpu: use kind: custom")
        if self.kind == "none" and (self.image or self.command or self.args or self.gpu):
            raise ValueError("image, command, args and gpu need kind: mock, vllm or custom")
        if self.kind == "none" and self.volumes:
            raise ValueError("volumes need kind: mock, vllm or custom")
        if twice := repeated(self._mounted):
            raise ValueError(f"volumes: {twice} is mounted already; use another path")
        self._check_release()
        if self.image is not None:
            check_digest(self.image)
        for name in self.env:
            if is_secret_name(name):
                raise ValueError(
                    f"env.{name} would be in plain text in the pod and in Pulumi's state; use "
                    f"secret_env: {{{name}: NAME}} and `pulumi config set --secret aiperf:NAME`"
                )
        if self.kind != "none" and (self.egress_cidrs or self.pods):
            raise ValueError("egress_cidrs and pods are for a target outside the stack")
        return self

    @property
    def _mounted(self) -> list[str]:
        return ["/tmp", "/dev/shm", *(each.path.rstrip("/") for each in self.volumes)]

    def _check_release(self) -> None:
        if self.kind != "release":
            for name, field in Release.model_fields.items():
                if self._is_set(name):
                    raise ValueError(f"{{{field.alias or name}}} needs {{kind}} release")
            return
        if name := self._first_set(*POD_KEYS):
            raise ValueError(f"{{{name}}}: the objects of {{kind}} release have it; leave it out")
        if not self.sources or self.url is None:
            raise ValueError("{kind} release needs {from} and {url}")
        if not self.pools:
            raise ValueError(
                "{kind} release needs {pools}: which pods must be ready, by their labels"
            )
