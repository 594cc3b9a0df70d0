"""Runs all checks before anything is created: whether the stack may be made, has room, and reaches
its target."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from aiperf_svc.adapters.cluster.api.connection import METADATA, Cluster, Refused
from aiperf_svc.adapters.cluster.preflight import rights
from aiperf_svc.adapters.cluster.preflight.admission import NAME as ADMISSION
from aiperf_svc.adapters.cluster.preflight.admission import try_admission, try_objects
from aiperf_svc.adapters.cluster.preflight.autoscaling import adds_nodes
from aiperf_svc.adapters.cluster.preflight.capacity import judge_capacity, rooms
from aiperf_svc.adapters.cluster.preflight.exporters import find_exporters
from aiperf_svc.adapters.cluster.preflight.kind_check import check_kind
from aiperf_svc.adapters.cluster.preflight.monitoring import check_monitoring
from aiperf_svc.adapters.cluster.preflight.namespace_checks import (
    judge_image,
    judge_mesh,
    judge_namespace,
    judge_pod_security,
    judge_time_left,
)
from aiperf_svc.adapters.cluster.preflight.node_facts import read_nodes
from aiperf_svc.adapters.cluster.preflight.quotas import judge_limit_ranges, judge_quotas
from aiperf_svc.adapters.cluster.preflight.rank_nodes import judge_rank_nodes
from aiperf_svc.adapters.cluster.preflight.target_checks import check_image, check_target
from aiperf_svc.adapters.cluster.preflight.tokenizer_check import check_tokenizer
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.core.cluster.facts import NodeFacts
from aiperf_svc.core.cluster.gpu_checks import judge_exporters, judge_gpus
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.plan.identity import ANCHOR
from aiperf_svc.plan.stack import StackPlan

OnCheck = Callable[[Check], None]
ReadObjects = Callable[[], Awaitable[Sequence[dict[str, Any]]]]
FIRST_WITH_JOBS = (1, 29)
"""First version of Kubernetes that has `backoffLimitPerIndex` and native sidecars unless they are
turned off."""


async def preflight(
    cluster: Cluster,
    plan: StackPlan,
    *,
    objects: ReadObjects | None = None,
    on_check: OnCheck | None = None,
) -> tuple[Check, ...]:
    """Run every check and pass each to `on_check` as soon as it is done. `objects` returns
    the manifests of the stack, which are tried in the cluster; without them only a pod is. Raises
    Unreachable."""
    reading = asyncio.ensure_future(objects()) if objects is not None else None
    run = _Preflight(cluster, plan, on_check, reading)
    try:
        await run.all()
    finally:
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
    return tuple(run.done)


class _Preflight:
    def __init__(
        self,
        cluster: Cluster,
        plan: StackPlan,
        on_check: OnCheck | None,
        objects: asyncio.Future[Sequence[dict[str, Any]]] | None,
    ) -> None:
        self._objects = objects
        self._cluster, self._plan, self._on_check = cluster, plan, on_check
        self.done: list[Check] = []
        self._namespace: dict[str, Any] | None = None
        """The namespace; None if it does not exist or may not be read."""
        self._exists = False

    @property
    def _name(self) -> str:
        return rights.namespace_of(self._plan)

    async def all(self) -> None:
        self._tell(judge_cluster(self._cluster))
        if self._plan.jobs:
            self._tell(judge_jobs(self._cluster.version))
        tokenizer = await check_tokenizer(self._plan.config)
        if tokenizer is not None:
            self._tell(tokenizer)
        await self._rights()
        monitoring = await check_monitoring(self._cluster, self._plan)
        if monitoring is not None:
            self._tell(monitoring)
        if not await self._place():
            return
        await self._time_left()
        nodes = await self._list("/api/v1/nodes")
        await self._capacity(nodes)
        await self._pull_secrets()
        if not any(check.state == "failed" for check in self.done):
            # After a failed check, this would only report the same problem again.
            await self._admission()
        place = self._name if self._exists else None
        kind = await check_kind(self._cluster, self._plan, namespace=place)
        if kind is not None:
            self._tell(kind)
        checks = await check_target(self._cluster, self._plan, namespace=place)
        tried = checks.image
        if tried is None and self._judged_image(nodes).state != "ok":
            # Otherwise a missing image would stop the stack only when half of it exists.
            tried = await check_image(self._cluster, self._plan, namespace=place)
        self._tell(self._image(nodes, tried))
        if checks.target is not None:
            self._tell(checks.target)

    def _image(self, nodes: list[dict[str, Any]] | None, tried: Check | None) -> Check:
        """Return what a pod of the image has shown, unless another node might give another
        result."""
        if tried is not None and tried.state == "failed":
            return tried
        judged = self._judged_image(nodes)
        return tried if tried is not None and judged.state != "warning" else judged

    def _judged_image(self, nodes: list[dict[str, Any]] | None) -> Check:
        if nodes is None:
            words = "not allowed to list nodes; seen when the first pod starts"
            return Check("image", "not checked", words)
        return judge_image(self._plan, nodes)

    async def _admission(self) -> None:
        place = self._name if self._exists else None
        if self._objects is not None:
            try:
                objects = await self._objects
            except EnvironmentProblem as error:
                words = f"the stack's objects are not known: {error}"
                self._tell(Check(ADMISSION, "not checked", words))
            else:
                self._tell(await try_objects(self._cluster, objects, namespace=place))
        elif place is not None:
            self._tell(await try_admission(self._cluster, self._plan, namespace=place))

    async def _rights(self) -> None:
        plan = self._plan
        missing = await rights.denied(self._cluster, rights.asked_rights(plan))
        for judge in (rights.judge_rights, rights.judge_deadline, rights.judge_results_way):
            self._tell(judge(plan, missing))

    async def _place(self) -> bool:
        """Check whether the namespace can be used, and what its owner has set up in it."""
        wanted = self._plan.config.deployment.namespace
        if wanted.name:
            try:
                self._namespace = await self._cluster.get(f"/api/v1/namespaces/{wanted.name}")
            except Refused as error:
                if error.status != 404:
                    words = f"{wanted.name} may not be read: {error}"
                    self._tell(Check("namespace", "not checked", words))
                    self._exists = wanted.mode == "existing"
                    await self._limits()
                    return True
        check = judge_namespace(self._plan, self._namespace)
        self._tell(check)
        if check.state == "failed":
            return False
        self._exists = self._namespace is not None
        self._tell(judge_pod_security(self._plan, self._namespace))
        self._tell(judge_mesh(self._namespace))
        await self._limits()
        return True

    async def _time_left(self) -> None:
        """Check the time until the deadline of a stack that exists already: `up` does not move
        it."""
        plan, where = self._plan, {"labelSelector": _selector(self._plan)}
        path = "/api/v1/namespaces"
        if plan.config.deployment.namespace.mode == "existing":
            path += f"/{self._name}/configmaps"
            where["fieldSelector"] = f"metadata.name={plan.identity.name(ANCHOR)}"
        found = await self._list(path, **where)
        if found:
            created = min(each["metadata"]["creationTimestamp"] for each in found)
            self._tell(judge_time_left(plan, created, await self._cluster.now()))

    async def _limits(self) -> None:
        if not self._exists:
            self._tell(Check("quota", "ok", "a new namespace has no ResourceQuota of its owner's"))
            return
        place = f"/api/v1/namespaces/{self._name}"
        quotas, ranges = await asyncio.gather(
            self._list(f"{place}/resourcequotas"), self._list(f"{place}/limitranges")
        )
        if quotas is None or ranges is None:
            self._tell(Check("quota", "not checked", "not allowed to list ResourceQuotas"))
            return
        is_there = await self._list(f"{place}/pods", labelSelector=_selector(self._plan), limit="1")
        if is_there and quotas:
            words = "the stack is there already, and its own pods count as used"
            self._tell(Check("quota", "not checked", words))
        else:
            self._tell(judge_quotas(self._plan, quotas, ranges))
        self._tell(judge_limit_ranges(self._plan, ranges))

    async def _capacity(self, nodes: list[dict[str, Any]] | None) -> None:
        if nodes is None:
            self._tell(Check("capacity", "not checked", "not allowed to list nodes"))
            return
        pods = await self._list("/api/v1/pods", fieldSelector="spec.nodeName!=")
        free = rooms(nodes, pods or (), stack=self._plan.identity.stack)
        can_grow = await adds_nodes(self._cluster)
        knows_pods = pods is not None
        self._tell(judge_capacity(self._plan, free, can_grow=can_grow, knows_pods=knows_pods))
        if self._plan.ranks is not None:
            self._tell(judge_rank_nodes(self._plan.ranks, nodes, free, can_grow=can_grow))
        if self._plan.totals.gpus:
            await self._gpus(read_nodes(nodes, pods))

    async def _gpus(self, nodes: tuple[NodeFacts, ...]) -> None:
        """Say what the cluster's GPUs are. Whether those that are asked for are there is for the
        check of the capacity."""
        exporters = await find_exporters(self._cluster)
        for check in (*judge_gpus(nodes), judge_exporters(nodes, exporters, {})):
            is_failed = check.state == "failed"
            self._tell(msgspec.structs.replace(check, state="warning") if is_failed else check)

    async def _pull_secrets(self) -> None:
        wanted = {name for pod in self._plan.pods for name in pod.image.pull_secrets}
        if not wanted:
            return
        if not self._exists:
            self._tell(
                Check(
                    "pull secrets",
                    "failed",
                    f"{', '.join(sorted(wanted))} cannot be in a namespace that is made anew",
                    "use deployment.namespace.mode: existing, or let the nodes have the rights",
                )
            )
            return
        place = f"/api/v1/namespaces/{self._name}/secrets"
        missing = [name for name in sorted(wanted) if not await self._is_there(f"{place}/{name}")]
        if missing:
            words = f"no Secret {', '.join(missing)} in the namespace"
            remedy = "kubectl create secret docker-registry …"
            self._tell(Check("pull secrets", "failed", words, remedy))
        else:
            self._tell(Check("pull secrets", "ok", f"{', '.join(sorted(wanted))} are there"))

    async def _is_there(self, path: str) -> bool:
        try:
            await self._cluster.get(path, accept=METADATA)
        except Refused as error:
            return error.status != 404
        return True

    async def _list(self, path: str, **params: str) -> list[dict[str, Any]] | None:
        """List objects; None if that is not allowed."""
        try:
            items: list[dict[str, Any]] = (await self._cluster.get(path, **params))["items"]
        except Refused:
            return None
        return items

    def _tell(self, check: Check) -> None:
        self.done.append(check)
        if self._on_check is not None:
            self._on_check(check)


def judge_cluster(cluster: Cluster) -> Check:
    """Report the cluster's address and version, and whether it can be recognised later."""
    where = f"{cluster.version} at {cluster.server}, context {cluster.context}"
    if cluster.identity == cluster.server:
        return Check(
            "cluster",
            "warning",
            f"{where}; namespace kube-system may not be read, so the cluster is known by its "
            "address alone",
            "grant get on namespace kube-system, so that no other cluster is taken for this one",
        )
    return Check("cluster", "ok", where)


def judge_jobs(version: str) -> Check:
    """Check whether the cluster's version has what Jobs with servers need: attempts for each index,
    and sidecars that end with their pod."""
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is None:
        return Check("Jobs", "not checked", f"the cluster's version {version!r} has no number")
    if (int(found[1]), int(found[2])) < FIRST_WITH_JOBS:
        needed = ".".join(map(str, FIRST_WITH_JOBS))
        return Check(
            "Jobs",
            "failed",
            f"the cluster is {version}; experiment.fan_out: jobs needs {needed} or later",
            "leave out experiment.fan_out: each shape then has a stack of its own",
        )
    return Check("Jobs", "ok", "the version has attempts for each index, and native sidecars")


def _selector(plan: StackPlan) -> str:
    return ",".join(f"{key}={value}" for key, value in plan.identity.selector().items())
