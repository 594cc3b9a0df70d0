"""Runs all checks before anything is created: whether the stack may be created, has room, and
reaches its target."""

import asyncio
import math
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from aiperf_svc.adapters.cluster.api.connection import METADATA, Cluster, Refused
from aiperf_svc.adapters.cluster.api.objects import find_object, label_selector, try_list
from aiperf_svc.adapters.cluster.preflight import rights
from aiperf_svc.adapters.cluster.preflight.admission import (
    ADMISSION,
    PodNamespace,
    try_admission,
    try_objects,
)
from aiperf_svc.adapters.cluster.preflight.capacity import (
    Room,
    adds_nodes,
    judge_capacity,
    judge_limits,
    judge_rank_nodes,
    rooms,
)
from aiperf_svc.adapters.cluster.preflight.cluster_facts import find_exporters, read_nodes
from aiperf_svc.adapters.cluster.preflight.event_checks import check_events
from aiperf_svc.adapters.cluster.preflight.images import check_image, check_kinds, judge_image
from aiperf_svc.adapters.cluster.preflight.namespace_checks import (
    judge_mesh,
    judge_namespace,
    judge_pod_security,
    judge_time_left,
)
from aiperf_svc.adapters.cluster.preflight.quotas import judge_limit_ranges, judge_quotas
from aiperf_svc.adapters.cluster.preflight.release_checks import check_release
from aiperf_svc.adapters.cluster.preflight.target_checks import check_bucket, check_target
from aiperf_svc.adapters.datasets import hub_files
from aiperf_svc.adapters.datasets.tokenizers import RUNNER_RETRY_S, hub_name
from aiperf_svc.adapters.host.tasks import cancel
from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.units import format_duration
from aiperf_svc.config.workload import Config
from aiperf_svc.core.cluster.check import Check, State
from aiperf_svc.core.cluster.cluster_checks import judge_exporters, judge_gpus
from aiperf_svc.core.cluster.conditions import conditions_of
from aiperf_svc.core.cluster.facts import NodeFacts
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import ANCHOR
from aiperf_svc.plan.queue import KUEUE
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.plan.target import watched_pods

OnCheck = Callable[[Check], None]
ReadObjects = Callable[[], Awaitable[Sequence[Json]]]
SCALING = "scaling"
ROOM_POLL_S = 5.0
"""Interval between checks of the room for a waiting stack."""
FIRST_VERSION = (1, 29)
"""First version of Kubernetes with `backoffLimitPerIndex` and with native sidecars by default."""
MONITORING, PRIORITY, PULL_SECRETS = "monitoring", "priority class", "pull secrets"
QUEUE = "queue"
DEFAULT_QUEUE = "default"
"""Name of the LocalQueue that Kueue assigns to pods without a queue."""
TOKENIZER, VOLUMES = "tokenizer", "volumes"


async def preflight(
    cluster: Cluster,
    plan: StackPlan,
    *,
    objects: ReadObjects | None = None,
    on_check: OnCheck | None = None,
) -> tuple[Check, ...]:
    """Run every check and pass each result to `on_check` as soon as it is available. `objects`
    returns the manifests of the stack for a dry run in the cluster; without it only one pod is
    tried. Raises Unreachable."""
    reading = asyncio.ensure_future(objects()) if objects is not None else None
    run = _Preflight(cluster, plan, on_check, reading)
    try:
        await run.all()
    finally:
        if reading is not None:
            await cancel(reading)
    return tuple(run.done)


class RepeatedCheck(Protocol):
    """Reads the cluster again and judges the room for the stack: as it is, or as if the cluster
    were otherwise empty."""

    async def __call__(self, *, is_empty: bool) -> Check:
        """Raise Unreachable."""
        ...


class _Preflight:
    def __init__(
        self,
        cluster: Cluster,
        plan: StackPlan,
        on_check: OnCheck | None,
        objects: asyncio.Future[Sequence[Json]] | None,
    ) -> None:
        self._objects = objects
        self._cluster, self._plan, self._on_check = cluster, plan, on_check
        self.done: list[Check] = []
        self._namespace = rights.namespace_of(plan)
        self._exists = False
        """True if the namespace exists."""
        self._wait_ns = plan.config.deployment.wait_for_room
        """Remaining time to wait for room in quotas and on nodes."""

    @property
    def _existing(self) -> str | None:
        return self._namespace if self._exists else None

    @property
    def _has_failed(self) -> bool:
        return any(check.state == "failed" for check in self.done)

    async def all(self) -> None:
        plan, cluster = self._plan, self._cluster
        self._add(judge_cluster(cluster))
        if plan.jobs:
            remedy = "leave out experiment.fan_out: each shape then has a stack of its own"
            self._add(judge_version(cluster.version, "experiment.fan_out: jobs", remedy))
        elif any(each.is_sidecar for pod in plan.pods for each in pod.preparations):
            remedy = "leave these events out"
            self._add(judge_version(cluster.version, "events delay and loss", remedy))
        self._add(await check_tokenizer(plan.config))
        await self._rights()
        self._add(await check_monitoring(cluster, plan))
        self._add(await check_priorities(cluster, plan))
        self._add(await check_queue(cluster, plan))
        for check in await check_release(cluster, plan):
            self._add(check)
        if not await self._check_namespace():
            return
        nodes = await try_list(self._cluster, "/api/v1/nodes")
        await self._limits(rooms(nodes or (), (), stack=""))
        await self._time_left()
        await self._capacity(nodes)
        await self._pull_secrets()
        self._add(await check_claims(self._cluster, plan))
        self._add(await check_scaling(self._cluster, plan))
        if not self._has_failed:
            # After a failed check, this one would only report the same problem again.
            await self._admission()
        self._add(await check_events(cluster, plan))
        where = PodNamespace(cluster, plan, self._existing)
        for check in await check_kinds(cluster, plan, where):
            self._add(check)
        checks = await check_target(cluster, plan, where)
        by_nodes, by_pod = self._image_on_nodes(nodes), checks.image
        if by_pod is None and by_nodes.state != "ok":
            # Otherwise a missing image would stop the stack only after half of it is created.
            by_pod = await check_image(cluster, plan, where)
        # A pod has shown the image on one node; another node may lack it.
        is_decided = by_pod and (by_pod.state == "failed" or by_nodes.state != "warning")
        self._add(by_pod if is_decided else by_nodes)
        self._add(checks.target)
        if not self._has_failed:
            self._add(await check_bucket(cluster, plan, where))

    def _image_on_nodes(self, nodes: list[Json] | None) -> Check:
        if nodes is None:
            detail = "not allowed to list nodes; the first pod shows whether the image is there"
            return Check("image", "not checked", detail)
        return judge_image(self._plan, nodes)

    async def _admission(self) -> None:
        if self._objects is not None:
            try:
                objects = await self._objects
            except EnvironmentProblem as error:
                detail = f"the stack's objects are unknown: {error}"
                self._add(Check(ADMISSION, "not checked", detail))
            else:
                release = self._plan.release
                check = await try_objects(
                    self._cluster,
                    objects,
                    namespace=self._existing,
                    cluster_scoped=release.cluster_scoped if release else (),
                )
                self._add(check)
        elif self._existing is not None:
            self._add(await try_admission(self._cluster, self._plan, namespace=self._existing))

    async def _rights(self) -> None:
        plan = self._plan
        missing = await rights.denied(self._cluster, rights.all_rights(plan))
        for judge in (rights.judge_rights, rights.judge_deadline, rights.judge_results_access):
            self._add(judge(plan, missing))

    async def _check_namespace(self) -> bool:
        """Check whether the namespace can be used."""
        wanted = self._plan.config.deployment.namespace
        path, found = f"/api/v1/namespaces/{wanted.name}", None
        try:
            found = await find_object(self._cluster, path) if wanted.name else None
        except Refused as error:
            detail = f"namespace {wanted.name} cannot be read: {error}"
            self._add(Check("namespace", "not checked", detail))
            self._exists = wanted.mode == "existing"
            return True
        check = judge_namespace(self._plan, found)
        self._add(check)
        if check.state == "failed":
            return False
        self._exists = found is not None
        self._add(judge_pod_security(self._plan, found))
        self._add(judge_mesh(found))
        return True

    async def _time_left(self) -> None:
        """Check the time until the deadline of an existing stack, which `up` does not extend."""
        plan, params = self._plan, {"labelSelector": _selector(self._plan)}
        path = "/api/v1/namespaces"
        if plan.config.deployment.namespace.mode == "existing":
            path += f"/{self._namespace}/configmaps"
            params["fieldSelector"] = f"metadata.name={plan.identity.name(ANCHOR)}"
        found = await try_list(self._cluster, path, **params)
        if found:
            created = min(each["metadata"]["creationTimestamp"] for each in found)
            self._add(judge_time_left(plan, created, await self._cluster.now()))

    async def _limits(self, nodes: Sequence[Room]) -> None:
        """Check the restrictions of the namespace's owner."""
        if not self._exists:
            self._add(Check("quota", "ok", "a new namespace has no ResourceQuota of its owner's"))
            return
        inside = f"/api/v1/namespaces/{self._namespace}"
        quotas, ranges = await asyncio.gather(
            try_list(self._cluster, f"{inside}/resourcequotas"),
            try_list(self._cluster, f"{inside}/limitranges"),
        )
        if quotas is None or ranges is None:
            self._add(Check("quota", "not checked", "not allowed to list ResourceQuotas"))
            return
        is_up = await try_list(
            self._cluster, f"{inside}/pods", labelSelector=_selector(self._plan), limit="1"
        )

        async def repeat(*, is_empty: bool) -> Check:
            found = await try_list(self._cluster, f"{inside}/resourcequotas") or []
            if is_empty:
                found = [{**each, "status": {}} for each in found]
            return judge_quotas(self._plan, found, ranges, nodes)

        if is_up and quotas:
            detail = "the stack exists already, and its own pods count as used"
            self._add(Check("quota", "not checked", detail))
        else:
            check = judge_quotas(self._plan, quotas, ranges, nodes)
            self._add(await self._with_room(check, repeat))
        self._add(judge_limit_ranges(self._plan, ranges))

    async def _capacity(self, nodes: list[Json] | None) -> None:
        if nodes is None:
            self._add(Check("capacity", "not checked", "not allowed to list nodes"))
            return
        plan, can_grow = self._plan, await adds_nodes(self._cluster)
        pods = await self._placed_pods()

        def judge(nodes: list[Json], pods: list[Json] | None) -> Check:
            free = rooms(nodes, pods or (), stack=plan.identity.stack)
            check = judge_capacity(plan, free, can_grow=can_grow, knows_pods=pods is not None)
            # A queue admits the stack when there is room.
            is_queued = plan.queue is not None and check.state == "failed"
            return msgspec.structs.replace(check, state="warning") if is_queued else check

        async def repeat(*, is_empty: bool) -> Check:
            nonlocal nodes, pods
            nodes, pods = await try_list(self._cluster, "/api/v1/nodes"), await self._placed_pods()
            return judge(nodes or [], [] if is_empty else pods)

        self._add(await self._with_room(judge(nodes, pods), repeat))
        nodes = nodes or []
        free = rooms(nodes, pods or (), stack=plan.identity.stack)
        self._add(judge_limits(plan, free))
        if plan.ranks is not None:
            self._add(judge_rank_nodes(plan.ranks, nodes, free, can_grow=can_grow))
        if plan.totals.gpus:
            await self._gpus(read_nodes(nodes, pods))

    async def _placed_pods(self) -> list[Json] | None:
        return await try_list(self._cluster, "/api/v1/pods", fieldSelector="spec.nodeName!=")

    async def _with_room(self, check: Check, repeat: RepeatedCheck) -> Check:
        begun_mono_s = time.monotonic()
        found = await until_room(check, repeat, wait_ns=self._wait_ns, tell=self._on_check)
        if check.state == "failed":
            waited_ns = math.ceil(time.monotonic() - begun_mono_s) * SECOND_NS
            self._wait_ns = max(0, self._wait_ns - waited_ns)
        return found

    async def _gpus(self, nodes: tuple[NodeFacts, ...]) -> None:
        """Report the cluster's GPUs. The capacity check decides whether there are enough, so none
        of these checks fails the preflight."""
        exporters = await find_exporters(self._cluster)
        for check in (*judge_gpus(nodes), judge_exporters(nodes, exporters, {})):
            is_failed = check.state == "failed"
            self._add(msgspec.structs.replace(check, state="warning") if is_failed else check)

    async def _pull_secrets(self) -> None:
        wanted = sorted({name for pod in self._plan.pods for name in pod.image.pull_secrets})
        if not wanted:
            return
        names = ", ".join(wanted)
        if not self._exists:
            detail = f"a new namespace cannot have {names}"
            remedy = "use deployment.namespace.mode: existing, or give the nodes the rights to pull"
            self._add(Check(PULL_SECRETS, "failed", detail, remedy))
            return
        path = f"/api/v1/namespaces/{self._namespace}/secrets"
        missing = [name for name in wanted if await _is_absent(self._cluster, f"{path}/{name}")]
        if missing:
            detail = f"namespace {self._namespace} has no Secret {', '.join(missing)}"
            remedy = "kubectl create secret docker-registry …"
            self._add(Check(PULL_SECRETS, "failed", detail, remedy))
        else:
            self._add(Check(PULL_SECRETS, "ok", f"the namespace has {names}"))

    def _add(self, check: Check | None) -> None:
        """Add a result; None if the check does not apply to this stack."""
        if check is None:
            return
        self.done.append(check)
        if self._on_check is not None:
            self._on_check(check)


async def until_room(
    check: Check,
    repeat: RepeatedCheck,
    *,
    wait_ns: int,
    tell: OnCheck | None = None,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> Check:
    """Repeat a check of the room until it passes or `wait_ns` has elapsed, and return the last
    result. Return at once if the stack would not fit even into the empty cluster. Raises
    Unreachable."""
    if check.state != "failed" or not wait_ns or (await repeat(is_empty=True)).state == "failed":
        return check
    limit = format_duration(wait_ns)
    if tell is not None:
        detail = f"{check.detail}; waiting at most {limit} for others to free it"
        tell(Check(check.name, "warning", detail, "deployment.wait_for_room is the longest time"))
    give_up_mono_s = time.monotonic() + wait_ns / SECOND_NS
    while check.state == "failed" and (left_s := give_up_mono_s - time.monotonic()) > 0:
        await sleep(min(ROOM_POLL_S, left_s))
        check = await repeat(is_empty=False)
    if check.state == "failed":
        check = msgspec.structs.replace(check, detail=f"{check.detail}, even after {limit}")
    return check


def judge_cluster(cluster: Cluster) -> Check:
    """Report the cluster's address and version, and whether it can be identified later."""
    where = f"{cluster.version} at {cluster.server}, context {cluster.context}"
    if cluster.identity == cluster.server:
        return Check(
            "cluster",
            "warning",
            f"{where}; namespace kube-system cannot be read, so the cluster is identified by its "
            "address alone",
            "grant get on namespace kube-system, to identify this cluster",
        )
    return Check("cluster", "ok", where)


def judge_version(version: str, key: str, remedy: str) -> Check:
    """Check whether the cluster's version supports a feature of Jobs with servers, or of packet
    events: retries for each index, and sidecars that end with their pod."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is None:
        return Check("version", "not checked", f"the cluster's version {version!r} is not a number")
    needed = ".".join(map(str, FIRST_VERSION))
    if (int(found[1]), int(found[2])) < FIRST_VERSION:
        detail = f"the cluster is {version}; {key} needs {needed} or later"
        return Check("version", "failed", detail, remedy)
    return Check("version", "ok", f"{version} has what {key} needs ({needed})")


async def check_monitoring(cluster: Cluster, plan: StackPlan) -> Check | None:
    """Check whether the cluster has the Prometheus operator's types; None if the stack uses none of
    them. Raises Unreachable."""
    if plan.config.deployment.monitoring != "prometheus-operator":
        return None
    group = rights.OPERATOR_GROUP
    try:
        listed = await find_object(cluster, f"/apis/{group}/v1") or {}
    except Refused as error:
        return Check(MONITORING, "not checked", f"the types of {group} cannot be read: {error}")
    known = {each["name"] for each in listed.get("resources") or ()}
    missing = [f"{each}.{group}" for each in rights.OPERATOR_TYPES if each not in known]
    if missing:
        return Check(
            MONITORING,
            "failed",
            "deployment.monitoring is prometheus-operator, and the cluster has no type "
            f"{' and no '.join(missing)}",
            "install the operator or its CustomResourceDefinitions, or set deployment.monitoring "
            "to annotations or none",
        )
    return Check(MONITORING, "ok", "the cluster has the types PodMonitor and PrometheusRule")


async def check_claims(cluster: Cluster, plan: StackPlan) -> Check | None:
    """Check whether the claims exist that the target mounts; None if it mounts none. Raises
    Unreachable."""
    mounted = [v for pod in plan.pods for v in pod.all_volumes]
    wanted = sorted({v.source for v in mounted if v.kind == "existing-claim"})
    if not wanted:
        return None
    namespace = rights.namespace_of(plan)
    path = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
    missing = [name for name in wanted if await _is_absent(cluster, f"{path}/{name}")]
    if missing:
        detail = (
            f"namespace {namespace} has no PersistentVolumeClaim {', '.join(missing)}, which "
            "deployment.target.volumes names"
        )
        return Check(VOLUMES, "failed", detail, "create it, or name another claim")
    return Check(VOLUMES, "ok", f"the namespace has {', '.join(wanted)}")


async def check_scaling(cluster: Cluster, plan: StackPlan) -> Check | None:
    """Check whether the user may watch the replicas of the server; None if they are not watched.
    Raises Unreachable."""
    config = plan.config.inference
    if config is None or config.scaling is None:
        return None
    try:
        pods = watched_pods(config, plan.identity, rights.namespace_of(plan))
    except ConfigError as error:
        return Check(SCALING, "failed", str(error), is_config_error=True)
    missing = await rights.denied(cluster, rights.watch_rights(pods.namespace))
    needed = [right for right in missing if right.resource == "pods"]
    where = f"in namespace {pods.namespace}"
    if needed:
        detail = f"the replicas cannot be watched {where}: {', '.join(map(str, sorted(needed)))}"
        return Check(
            SCALING, "failed", detail, "ask for the role aiperf-scaling of docs/scaling.md"
        )
    if missing:
        detail = f"not seen {where}: {', '.join(map(str, sorted(missing)))}"
        return Check(SCALING, "warning", detail, "docs/scaling.md has the role aiperf-scaling")
    return Check(SCALING, "ok", f"replicas and what scales them can be watched {where}")


async def _is_absent(cluster: Cluster, path: str) -> bool:
    try:
        return await find_object(cluster, path, accept=METADATA) is None
    except Refused:
        return False


async def check_priorities(cluster: Cluster, plan: StackPlan) -> Check | None:
    """Check whether the pods' priority classes exist, and report whether they preempt other pods;
    None if there are none. Raises Unreachable."""
    wanted = sorted({name for pod in plan.pods if (name := pod.placement.priority_class)})
    if not wanted:
        return None
    try:
        listed = await cluster.get("/apis/scheduling.k8s.io/v1/priorityclasses")
    except Refused as error:
        detail = f"not allowed to list priority classes ({', '.join(wanted)}): {error}"
        return Check(PRIORITY, "not checked", detail)
    known = {each["metadata"]["name"]: each for each in listed["items"]}
    missing = [name for name in wanted if name not in known]
    if missing:
        existing = ", ".join(sorted(name for name in known if not name.startswith("system-")))
        return Check(
            PRIORITY,
            "failed",
            f"the cluster has no PriorityClass {' and no '.join(missing)}; it has "
            f"{existing or 'none of its own'}",
            "correct placement.priority_class, or create the class",
        )
    found = [f"{name} ({_priority(known[name])})" for name in wanted]
    return Check(PRIORITY, "ok", ", ".join(found))


async def check_queue(cluster: Cluster, plan: StackPlan) -> Check | None:
    """Check whether the stack's queue exists and is active; None if it has none. Raises
    Unreachable."""
    if plan.queue is None:
        return None
    namespace, name = rights.namespace_of(plan), plan.queue.name
    try:
        listed = await find_object(cluster, f"{KUEUE}/namespaces/{namespace}/localqueues")
    except Refused as error:
        return Check(QUEUE, "not checked", f"the LocalQueues cannot be read: {error}")
    if listed is None:
        detail = f"the cluster has no Kueue, and deployment.queue is {name}"
        return Check(QUEUE, "failed", detail, "install Kueue, or leave out deployment.queue")
    known = {each["metadata"]["name"]: each for each in listed["items"]}
    if name not in known:
        detail = (
            f"namespace {namespace} has no LocalQueue {name}; it has "
            f"{', '.join(sorted(known)) or 'none'}"
        )
        return Check(QUEUE, "failed", detail, "correct deployment.queue, or create the LocalQueue")
    active = conditions_of(known[name]).get("Active", {})
    if active.get("status", "True") != "True":
        detail = f"LocalQueue {name} is not active: {one_line(active.get('message') or '')}"
        return Check(QUEUE, "failed", detail, "ask its owner: it would never admit the stack")
    waiting = known[name].get("status", {}).get("pendingWorkloads", 0)
    detail = f"LocalQueue {name} is active; {waiting} wait in it"
    if DEFAULT_QUEUE in known:
        detail += f"; LocalQueue {DEFAULT_QUEUE} takes pods that name no queue, as the deadline's"
        return Check(QUEUE, "warning", detail, "give it quota: the start waits for that pod")
    return Check(QUEUE, "ok", detail)


def _priority(found: Json) -> str:
    is_never = found.get("preemptionPolicy") == "Never"
    effect = "preempts no pods" if is_never else "preempts pods of lower priority"
    return f"value {found['value']}, {effect}"


async def check_tokenizer(config: Config) -> Check | None:
    """Check whether the hub has the tokenizer that the pods will fetch; None if they fetch none.

    Fails only if the hub refuses and the pods have no other source. Otherwise it warns: a user's
    image may contain the tokenizer, and pods may reach a hub that the runner cannot reach.
    """
    tokenizer = config.inference.tokenizer if config.inference is not None else None
    name = hub_name(tokenizer) if tokenizer is not None else None
    if tokenizer is None or name is None:
        return None
    hub, revision = hub_files.hub_address(), tokenizer.revision
    try:
        await asyncio.to_thread(hub_files.find_on_hub, name, revision, timeout_s=RUNNER_RETRY_S)
    except hub_files.HubRefused as error:
        state: State = "failed" if config.deployment.image.name is None else "warning"
        return Check(
            TOKENIZER,
            state,
            f"{hub} refuses {name!r}: {one_line(str(error))}",
            "correct tokenizer.name, or build an image that contains the tokenizer and give its "
            "path",
        )
    except hub_files.HubUnreachable as error:
        detail = f"cannot reach {hub} from here: {one_line(str(error))}; the pods fetch {name!r}"
        return Check(TOKENIZER, "not checked", detail)
    return Check(TOKENIZER, "ok", f"{hub} has {name!r}, which the pods fetch")


def _selector(plan: StackPlan) -> str:
    return label_selector(plan.identity.selector())
