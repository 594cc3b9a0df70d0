"""A serving topology as the target: its objects, its known pods, and the pod that waits until it is
ready.

The caller reads charts and manifests (`StackSettings.render`). The plan is the same for all
origins: the stack's labels, the forbidden objects, the order of creation, and the custom resources
that must be deleted before anything else, since their finalizers need the operator.
"""

import enum
import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.placement import Gpu, Placement, Toleration, mirrored
from aiperf_svc.config.release import ReadyRule
from aiperf_svc.config.target import Target
from aiperf_svc.config.units import parse_cpu_millis, parse_size
from aiperf_svc.domain.errors import ConfigError
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import RUN_LABEL, STACK_LABEL, Identity
from aiperf_svc.plan.lifetime import seconds
from aiperf_svc.plan.pod_settings import own_settings, placement_of, requests_of, with_storage
from aiperf_svc.plan.pods import (
    VISIT_ANNOTATION,
    ContainerPlan,
    ImagePlan,
    PodPlan,
    Requests,
    Volume,
)

READINESS = "readiness"
"""Name of the pod that waits until the release is ready."""
READY_FILE = "/tmp/ready"
"""File that this pod creates when the release is ready."""
RULES = "AIPERF_READINESS"
"""Variable of this pod with the rules, as JSON."""
NAMESPACE = "aiperf-release-namespace"
"""Replaces the stack's namespace in rendered objects, since its name may be unknown before `up`."""
HOOK = "helm.sh/hook"
"""Annotation of a chart's hooks: objects that Helm creates at a stage of an installation."""
KEY = "deployment.target.from"
BUILT_IN = frozenset({
    "", "admissionregistration.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "apps",
    "autoscaling", "batch", "certificates.k8s.io", "coordination.k8s.io", "discovery.k8s.io",
    "events.k8s.io", "flowcontrol.apiserver.k8s.io", "networking.k8s.io", "node.k8s.io", "policy",
    "rbac.authorization.k8s.io", "resource.k8s.io", "scheduling.k8s.io", "storage.k8s.io",
})  # fmt: skip
"""API groups of Kubernetes itself. Objects of all other groups are custom resources."""
CLUSTER_SCOPED = frozenset({
    "APIService", "CertificateSigningRequest", "ClusterRole", "ClusterRoleBinding", "CSIDriver",
    "CustomResourceDefinition", "DeviceClass", "FlowSchema", "IngressClass",
    "MutatingWebhookConfiguration", "Namespace", "Node", "PersistentVolume", "PriorityClass",
    "PriorityLevelConfiguration", "RuntimeClass", "StorageClass", "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding", "ValidatingWebhookConfiguration", "VolumeAttachment",
})  # fmt: skip
"""Cluster-scoped kinds of these groups. Only the cluster knows whether a custom resource is
cluster-scoped."""
GATE_START_S = 30
"""Time for the start of the pod that waits. It then has the whole `ready_timeout`, since it must
report what is missing before its Deployment fails."""
KEDA = "keda.sh"
"""API group of KEDA's autoscalers."""
KEDA_MAX_REPLICAS = 100
"""Default of `maxReplicaCount`."""
NEVER = frozenset({"CustomResourceDefinition", "Namespace"})
"""Kinds whose deletion deletes objects of other owners."""
BINDINGS = ("RoleBinding", "ClusterRoleBinding")


class CreationStage(enum.IntEnum):
    """Order of creation. An object may refer to objects of earlier stages."""

    FIRST = 0
    BINDINGS = 1
    """Bindings of Roles, which must exist before."""
    PODS = 2
    """Objects that create pods, custom resources included."""


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of one source of a release."""

    what: str
    """Name of the source in messages."""
    objects: tuple[Json, ...]
    chart: str = ""
    """Absolute path, name or URL of the chart; empty if the source is not a chart."""
    has_hooks: bool = False
    """Whether Helm installs the chart with its hooks."""


class ReleasePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The objects of a release, and its known pods."""

    objects: tuple[Json, ...]
    """In the order of creation: objects that pods refer to come before those that create pods."""
    pods: tuple[PodPlan, ...]
    """The pods that its objects and `requests` name, for totals and room checks. They are not
    created from these plans but by the objects."""
    gate: PodPlan
    """The pod that is ready when the release is."""
    cluster_scoped: tuple[str, ...] = ()
    """Objects that are not in a namespace, as `KIND/NAME`."""
    charts: tuple[str, ...] = ()
    """For each source the path, name or URL of the chart that Helm installs with its hooks; empty:
    its objects are created one by one."""
    installed: tuple[str, ...] = ()
    """Those of the objects that Helm creates, as `KIND/NAME`."""

    @property
    def custom_resources(self) -> tuple[Json, ...]:
        """Return the objects from which operators create others."""
        return tuple(each for each in self.objects if is_custom(each))

    @property
    def custom_images(self) -> tuple[str, ...]:
        """Return the images that custom resources name for the pods of operators."""
        found = (each for one in self.custom_resources for each in _references(one.get("spec")))
        return tuple(dict.fromkeys(holder[key] for holder, key in found))

    @property
    def on_every_node(self) -> frozenset[str]:
        """Names of the pods that DaemonSets create on each node that selectors and taints admit."""
        found = (each for each in self.objects if each["kind"] == "DaemonSet")
        return frozenset(name_of(each) for each in found if not _has_node_affinity(each))

    @property
    def deleted_first(self) -> tuple[Json, ...]:
        """Return the custom resources of the stack's namespace."""
        custom = self.custom_resources
        return tuple(each for each in custom if name_of(each) not in self.cluster_scoped)


def path_of(manifest: Json) -> str:
    """Return the path of an object in the API, with `{namespace}` for `namespaces/NAME`."""
    return f"{list_path(manifest, '/{namespace}')}/{manifest['metadata']['name']}"


def list_path(manifest: Json, scope: str = "") -> str:
    """Return the path to post an object to. `scope` begins with a slash."""
    version = manifest["apiVersion"]
    base = f"/{'apis' if '/' in version else 'api'}/{version}"
    return f"{base}{scope}/{resource_of(manifest['kind'])}"


def name_of(manifest: Json) -> str:
    """Return `KIND/NAME`."""
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


def group_of(manifest: Json) -> str:
    """Return the API group of an object; empty for the core group."""
    group, _, version = str(manifest["apiVersion"]).rpartition("/")
    return group if version else ""


def resource_of(kind: str) -> str:
    """Return the plural name of a kind in paths and rights. Kubernetes' own types and the tools for
    CustomResourceDefinitions follow this rule."""
    lower = kind.lower()
    if lower.endswith("y") and not lower.endswith(("ay", "ey", "oy", "uy")):
        return f"{lower[:-1]}ies"
    if lower.endswith("endpoints"):
        return lower
    return f"{lower}es" if lower.endswith(("s", "x", "z", "ch", "sh")) else f"{lower}s"


def is_custom(manifest: Json) -> bool:
    """Return whether an object is a custom resource."""
    return group_of(manifest) not in BUILT_IN


def is_cluster_scoped(manifest: Json) -> bool:
    """Return whether an object of Kubernetes' own kinds is in no namespace."""
    return manifest["kind"] in CLUSTER_SCOPED and not is_custom(manifest)


def calls_api(rendered: Sequence[Rendered]) -> bool:
    """Return whether pods of a release call the API server: routers and operators' agents watch
    pods and custom resources. Either the release binds a Role for them, or the owner of an existing
    namespace has bound one to a ServiceAccount that the release uses but does not contain."""
    objects = [each for source in rendered for each in source.objects]
    if any(is_custom(each) or each["kind"] in BINDINGS for each in objects):
        return True
    accounts = {each["metadata"]["name"] for each in objects if each["kind"] == "ServiceAccount"}
    pods = (pod for each in objects for pod in (each, *templates(each)))
    used = {(pod.get("spec") or {}).get("serviceAccountName") or "default" for pod in pods}
    return not used <= accounts | {"default"}


def uses_node_network(rendered: Sequence[Rendered]) -> bool:
    """Return whether pods of a release use their node's network, so no NetworkPolicy selects
    them."""
    objects = (each for source in rendered for each in source.objects)
    pods = (pod for each in objects for pod in (each, *templates(each)))
    return any((pod.get("spec") or {}).get("hostNetwork") for pod in pods)


def digest_of(objects: Sequence[Json]) -> str:
    """Return a digest of the objects for the id of the run."""
    text = json.dumps(objects, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def plan_release(
    config: BenchmarkConfig, rendered: Sequence[Rendered], identity: Identity, image: ImagePlan
) -> ReleasePlan:
    """Plan the release from its rendered objects. Raises ConfigError for an object that may not be
    created."""
    target = config.deployment.target
    if target.cluster_scoped and config.deployment.namespace.mode == "existing":
        raise ConfigError(
            "deployment.target.cluster_scoped: these objects are removed with the stack's own "
            "namespace; leave out deployment.namespace.mode existing, or create "
            f"{', '.join(target.cluster_scoped)} before the benchmark"
        )
    labels = {STACK_LABEL: identity.stack, RUN_LABEL: identity.label or identity.run_id}
    made: list[Json] = []
    installed: list[str] = []
    for source in rendered:
        if source.has_hooks and config.deployment.registry_mirror:
            raise ConfigError(
                "deployment.target.from.hooks: Helm creates what the chart has, and "
                "deployment.registry_mirror does not change it; set the images in values"
            )
        if source.has_hooks and config.deployment.namespace.mode == "existing":
            raise ConfigError(
                "deployment.target.from.hooks: what Helm installs is removed with the stack's own "
                "namespace; leave out deployment.namespace.mode existing, or hooks"
            )
        kept = [each for each in source.objects if source.has_hooks or HOOK not in _notes(each)]
        if not kept:
            raise ConfigError(f"{KEY}: {source.what} has no objects")
        for each in kept:
            _check(each, source.what, target)
        if source.has_hooks:  # Helm creates the objects of the chart.
            made += kept
            installed += map(name_of, kept)
        else:
            marks = {
                "labels": {**identity.more_labels, **labels},
                "annotations": identity.annotations,
            }
            mirror = config.deployment.registry_mirror
            made += [_prepared(each, marks, mirror) for each in kept]
    names = [name_of(each) for each in made]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{KEY} has two {', '.join(twice)}")
    ordered = tuple(sorted(made, key=stage_of))
    return ReleasePlan(
        objects=ordered,
        pods=tuple(_pods(config, ordered, image)),
        gate=_gate(config, ordered, image),
        cluster_scoped=tuple(
            name for name in map(name_of, ordered) if name in target.cluster_scoped
        ),
        charts=tuple(each.chart if each.has_hooks else "" for each in rendered),
        installed=tuple(installed),
    )


def release_in_visit(release: ReleasePlan, visit: str) -> ReleasePlan:
    """Return the release for one of several visits. A new `visit` replaces all objects that have
    pods, even without any other difference."""
    noted = {VISIT_ANNOTATION: visit}
    objects = tuple(
        {**each, "metadata": {**each["metadata"], "annotations": {**_notes(each), **noted}}}
        if stage_of(each) is CreationStage.PODS
        else each
        for each in release.objects
    )
    gate = msgspec.structs.replace(release.gate, annotations=release.gate.annotations | noted)
    return msgspec.structs.replace(release, objects=objects, gate=gate)


def _notes(manifest: Json) -> Mapping[str, str]:
    return manifest["metadata"].get("annotations") or {}


def _check(manifest: Json, what: str, target: Target) -> None:
    """Raise ConfigError for an object that a stack may not create."""
    name = name_of(manifest)
    if manifest["kind"] in NEVER and not is_custom(manifest):
        raise ConfigError(
            f"{KEY}: {what} has {name}: its deletion with the stack would delete what "
            "belongs to others; create it before the benchmark and leave it out here"
        )
    if wrong := next((each for each in _counts(manifest) if not isinstance(each, int)), None):
        raise ConfigError(f"{KEY}: {what} has {name} with {wrong!r} replicas; expected a number")
    if is_cluster_scoped(manifest):
        if name not in target.cluster_scoped:
            raise ConfigError(
                f"{KEY}: {what} has {name}, which is in no namespace; leave it out, or "
                f"list it: deployment.target.cluster_scoped: [{name}]"
            )
        return
    namespace = manifest["metadata"].get("namespace", NAMESPACE)
    if namespace != NAMESPACE:
        raise ConfigError(
            f"{KEY}: {name} is for namespace {namespace}; a release is created in the stack's own: "
            "leave out metadata.namespace"
        )


def _counts(manifest: Json) -> Iterator[Any]:
    """Yield the numbers of pods that an object of a known kind requests."""
    spec = manifest.get("spec") or {}
    if group_of(manifest) == KEDA:
        job = spec.get("jobTargetRef") or {}
        numbers = (spec.get("minReplicaCount"), spec.get("maxReplicaCount"), job.get("parallelism"))
        yield from (each or 0 for each in numbers)
    if is_custom(manifest) and manifest["kind"] != "LeaderWorkerSet":
        return
    group = spec.get("leaderWorkerTemplate") or {}
    for each in (spec.get("replicas"), spec.get("parallelism"), spec.get("maxReplicas")):
        yield each or 0
    yield group.get("size") or 0


def stage_of(manifest: Json) -> CreationStage:
    """Return the stage in which an object is created."""
    if manifest["kind"] in BINDINGS:
        return CreationStage.BINDINGS
    has_pods = manifest["kind"] == "Pod" or any(templates(manifest))
    return CreationStage.PODS if has_pods or is_custom(manifest) else CreationStage.FIRST


def _prepared(manifest: Json, marks: Mapping[str, Mapping[str, str]], mirror: str | None) -> Json:
    """Return an object with these `labels` and `annotations`, also on the pods of its templates,
    and with images from the mirror. It keeps its own labels and annotations."""
    made: Json = json.loads(json.dumps(manifest))
    for each in (made, *templates(made)):
        metadata = each.setdefault("metadata", {}) or {}
        each["metadata"] = metadata
        for field, added in marks.items():
            if added:
                metadata[field] = {**added, **(metadata.get(field) or {})}
    has_images = is_custom(made) or made["kind"] == "Pod"
    for each in (made,) if has_images else templates(made):
        for holder, key in _references(each.get("spec")):
            holder[key] = mirrored(holder[key], mirror)
    return made


def _references(value: Any) -> Iterator[tuple[Json, str]]:
    """Yield each object that names an image, and its key: `image` of a container, `reference` of a
    volume. Works for custom resources, whose schema is unknown."""
    if isinstance(value, dict):
        image = value.get("image")
        if isinstance(image, dict) and image.get("reference"):
            yield image, "reference"
        elif isinstance(image, str) and image:
            yield value, "image"
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _references(each)


def _image_volumes(spec: Mapping[str, Any]) -> Iterator[Json]:
    """Yield the volumes of a pod that contain the files of an image."""
    for each in spec.get("volumes") or ():
        if (each.get("image") or {}).get("reference"):
            yield each


def templates(value: Any) -> Iterator[Json]:
    """Yield the pod templates inside an object: `{metadata, spec: {containers}}`."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name != "spec" and is_template(each):
                yield each
            yield from templates(each)
    elif isinstance(value, list):
        for each in value:
            yield from templates(each)


def is_template(value: Any) -> bool:
    """Return whether a value is a pod template."""
    spec = value.get("spec") if isinstance(value, dict) else None
    return isinstance(spec, dict) and isinstance(spec.get("containers"), list)


# --- the pods ------------------------------------------------------------------------------------


def _pods(config: BenchmarkConfig, objects: Sequence[Json], image: ImagePlan) -> Iterator[PodPlan]:
    """Yield the pods that the objects name, and those of `requests`."""
    timeout_s = seconds(config.deployment.target.ready_timeout)
    for each in objects:
        for suffix, replicas, template in _replicas(each):
            name = name_of(each) + suffix
            try:
                yield _pod(name, replicas, template["spec"], image, timeout_s)
            except ValueError as error:
                raise ConfigError(f"{KEY}: {name_of(each)}: resources: {error}") from error
    totals = config.deployment.target.requests
    if totals is not None:
        gpus, more = divmod(totals.gpus, totals.pods)
        for number, of_each in ((more, gpus + 1), (totals.pods - more, gpus)):
            if number:
                yield PodPlan(
                    name=f"operators' pods with {of_each} GPUs",
                    replicas=number,
                    image=image,
                    requests=Requests(
                        totals.cpu // totals.pods,
                        totals.memory // totals.pods,
                        devices={Gpu().resource: of_each} if of_each else {},
                    ),
                    placement=Placement(),
                    ready_timeout_s=timeout_s,
                )


def _replicas(manifest: Json) -> Iterator[tuple[str, int, Json]]:
    """Yield the pod templates of kinds with known replicas, each with a suffix for its name and its
    number of pods."""
    spec = manifest.get("spec") or {}
    if manifest["kind"] == "Pod" and not is_custom(manifest):
        yield "", 1, manifest
    elif manifest["kind"] == "LeaderWorkerSet":
        groups, group = _number(spec, "replicas"), spec.get("leaderWorkerTemplate") or {}
        worker = group.get("workerTemplate") or {}
        yield " leaders", groups, group.get("leaderTemplate") or worker
        yield " workers", groups * (_number(group, "size") - 1), worker
    elif _makes_jobs(manifest):
        job, jobs = spec["jobTargetRef"], spec.get("minReplicaCount") or 0
        yield "", jobs * _number(job, "parallelism"), job["template"]
    elif not is_custom(manifest) and is_template(spec.get("template")):
        yield "", _number(spec, "replicas", "parallelism"), spec["template"]


def _number(spec: Json, *keys: str) -> int:
    """Return the first number of these keys; 1, the default of Kubernetes, if they have none."""
    return next((int(spec[key]) for key in keys if spec.get(key) is not None), 1)


def _has_node_affinity(manifest: Json) -> bool:
    """Return whether the pods of an object require nodes by an affinity."""
    affinities = (each["spec"].get("affinity") or {} for each in templates(manifest))
    of_nodes = (each.get("nodeAffinity") or {} for each in affinities)
    return any(each.get("requiredDuringSchedulingIgnoredDuringExecution") for each in of_nodes)


def _makes_jobs(manifest: Json) -> bool:
    """Return whether an object is a ScaledJob of KEDA."""
    job = (manifest.get("spec") or {}).get("jobTargetRef") or {}
    is_of_keda = manifest["kind"] == "ScaledJob" and group_of(manifest) == KEDA
    return is_of_keda and is_template(job.get("template"))


def max_replicas(objects: Sequence[Json]) -> dict[str, int]:
    """Return the maximum number of pods that the autoscalers of a release create, by the names of
    the pods."""
    by_name = {name_of(each): each for each in objects}
    found: dict[str, int] = {}
    for name, changed in filter(None, map(_scaled, objects)):
        if (target := by_name.get(name)) is None:
            continue
        largest = {**target, "spec": {**(target.get("spec") or {}), **changed}}
        for suffix, replicas, _ in _replicas(largest):
            found[name + suffix] = max(found.get(name + suffix, 0), replicas)
    return found


def _scaled(manifest: Json) -> tuple[str, dict[str, int]] | None:
    """Return the object that an autoscaler scales, and the maximum values that it sets in its spec;
    None for other objects. A ScaledJob creates its own Jobs."""
    spec = manifest.get("spec") or {}
    scaled = spec.get("scaleTargetRef") or {}
    name = f"{scaled.get('kind') or 'Deployment'}/{scaled.get('name')}"
    if manifest["kind"] == "HorizontalPodAutoscaler":
        return name, {"replicas": spec.get("maxReplicas") or 0}
    if group_of(manifest) != KEDA:
        return None
    max_replicas = spec.get("maxReplicaCount") or KEDA_MAX_REPLICAS
    if manifest["kind"] == "ScaledObject":
        return name, {"replicas": max_replicas}
    return (name_of(manifest), {"minReplicaCount": max_replicas}) if _makes_jobs(manifest) else None


def _pod(name: str, replicas: int, spec: Json, image: ImagePlan, timeout_s: int) -> PodPlan:
    requests = Requests(0, 0)
    initial = spec.get("initContainers") or ()
    sidecars = (each for each in initial if each.get("restartPolicy") == "Always")
    for container in (*spec["containers"], *sidecars):
        limits = (container.get("resources") or {}).get("limits") or {}
        requested = {**limits, **((container.get("resources") or {}).get("requests") or {})}
        devices = {k: int(v) for k, v in requested.items() if "/" in k}
        requests += Requests(
            parse_cpu_millis(requested.get("cpu", 0)),
            parse_size(requested.get("memory", 0)),
            devices=devices,
        )
    # The first container carries the total of the requests, the others none.
    first, *others = (
        ContainerPlan(
            name=str(each.get("name", "")),
            image=msgspec.structs.replace(image, name=str(each.get("image", "")), pull_secrets=()),
            requests=Requests(0, 0),
        )
        for each in (*spec["containers"], *initial)
    )
    tolerations = [
        Toleration(
            key=each.get("key", ""),
            operator=each.get("operator", "Equal"),
            value=each.get("value", ""),
            effect=each.get("effect", ""),
        )
        for each in spec.get("tolerations") or ()
    ]
    return PodPlan(
        name=name,
        replicas=replicas,
        image=first.image,
        sidecars=tuple(others),
        volumes=tuple(
            Volume(str(each["name"]), "", "image", source=str(each["image"]["reference"]))
            for each in _image_volumes(spec)
        ),
        requests=requests,
        placement=Placement(
            node_selector={k: str(v) for k, v in (spec.get("nodeSelector") or {}).items()},
            tolerations=tuple(tolerations),
            host_network=bool(spec.get("hostNetwork")),
        ),
        ready_timeout_s=timeout_s,
    )


# --- readiness -----------------------------------------------------------------------------------


def _gate(config: BenchmarkConfig, objects: Sequence[Json], image: ImagePlan) -> PodPlan:
    """Return the pod that waits until all rules hold and all pools have their replicas."""
    target = config.deployment.target
    rules = {
        "rules": [_rule(each, objects) for each in target.ready],
        "pools": [
            {"name": name, "labels": pool.labels, "replicas": pool.replicas}
            for name, pool in target.pools.items()
        ],
        "timeout_s": seconds(target.ready_timeout),
        # A changed release replaces this pod, so it waits again.
        "release": digest_of(objects),
    }
    volumes = (Volume("tmp", "/tmp", "scratch", 64 * 2**20),)
    return PodPlan(
        name=READINESS,
        replicas=1,
        image=image,
        args=(READINESS,),
        env={RULES: json.dumps(rules, sort_keys=True), "AIPERF_READY_FILE": READY_FILE},
        field_env={"AIPERF_NAMESPACE": "metadata.namespace"},
        volumes=volumes,
        ready_file=READY_FILE,
        requests=with_storage(requests_of(config, READINESS), volumes),
        placement=placement_of(config, READINESS),
        annotations=own_settings(config, READINESS).annotations,
        calls_api=True,
        ready_timeout_s=seconds(target.ready_timeout) + GATE_START_S,
    )


def watched_objects(target: Target, objects: Sequence[Json]) -> list[tuple[str, str, str]]:
    """Return API group, plural name and name of the objects that the rules read."""
    found = [(_rule_type(each, objects), each.name) for each in target.ready]
    named = ((group_of(of), resource_of(of["kind"]), name) for of, name in found)
    return list(dict.fromkeys(named))


def _rule_type(rule: ReadyRule, objects: Sequence[Json]) -> Json:
    """Return apiVersion and kind of a rule's object. Raises ConfigError if they are unknown."""
    same = [each for each in objects if each["kind"] == rule.kind]
    versions = {each["apiVersion"] for each in same if each["metadata"]["name"] == rule.name}
    versions = versions or {each["apiVersion"] for each in same}
    version = rule.api_version or next(iter(sorted(versions)), None)
    if version is None:
        names = ", ".join(name_of(each) for each in objects[:8])
        raise ConfigError(
            f"deployment.target.ready: the release has no {rule.kind} ({names}); correct the rule, "
            "or set api_version for an object that an operator creates"
        )
    return {"apiVersion": version, "kind": rule.kind}


def _rule(rule: ReadyRule, objects: Sequence[Json]) -> Json:
    of, (field, value) = _rule_type(rule, objects), rule.test
    path = path_of({**of, "metadata": {"name": rule.name}})
    return {
        "words": f"{rule.kind} {rule.name}",
        "path": path.format(namespace="namespaces/{namespace}"),
        "test": "condition" if rule.condition is not None else "field",
        "field": field,
        "value": value,
    }


def _is_unknown(manifest: Json, counted: Collection[str]) -> bool:
    """Return whether an object leads to pods that are in none of the `counted` objects."""
    if scaled := _scaled(manifest):
        return scaled[0] not in counted
    # KEDA's other objects create no pods.
    is_of_operator = is_custom(manifest) and group_of(manifest) != KEDA
    return is_of_operator and name_of(manifest) not in counted


def release_notes(
    config: BenchmarkConfig, release: ReleasePlan, rendered: Sequence[Rendered]
) -> tuple[str, ...]:
    """Return notes for reviewers about parts of the release that are not in the plan."""
    notes = []
    counted = {name_of(each) for each in release.objects if any(_replicas(each))}
    unknown = (each for each in release.objects if _is_unknown(each, counted))
    custom = ", ".join(map(name_of, unknown))
    if custom and config.deployment.target.requests is None:
        notes.append(
            f"the pods that operators create for {custom} are unknown and not counted; set "
            "deployment.target.requests"
        )
    elif custom:
        notes.append(f"only the requests of the pods that operators create for {custom} are known")
    if on_nodes := [name_of(each) for each in release.objects if each["kind"] == "DaemonSet"]:
        notes.append(f"pods on every node count once: {', '.join(on_nodes)}")
    plain = [source for source in rendered if not source.has_hooks]
    hooks = [name_of(each) for one in plain for each in one.objects if HOOK in _notes(each)]
    if hooks:
        notes.append(
            f"hooks of the chart do not run: {', '.join(hooks)}; deployment.target.from.hooks "
            "installs it with them"
        )
    return tuple(notes)
