"""Checks with dry runs whether the cluster admits the objects of a stack. A dry run passes
webhooks, policies, Pod Security and quotas, and creates nothing.

The controllers of Deployments and Jobs create pods later, and other rules apply to pods, so the pod
of each template is tried as well. If the stack's namespace does not exist yet, its creation is
tried first. The API server refuses dry runs in a namespace that does not exist, and many rules
select namespaces by label or exempt some by name. So the objects are tried in an empty namespace
with the same labels and the same name prefix, which is deleted at once.
"""

import asyncio
import contextlib
import re
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from typing import NamedTuple

from aiperf_svc.adapters.cluster.api.connection import METADATA, Cluster, Refused
from aiperf_svc.adapters.cluster.api.objects import try_list
from aiperf_svc.adapters.cluster.preflight.probe_pods import idle_pod, remove_made
from aiperf_svc.adapters.cluster.preflight.rights import Right, denied, probe_rights
from aiperf_svc.adapters.cluster.watching.startup_failure import RULE_REMEDY
from aiperf_svc.core.cluster.check import Check
from aiperf_svc.domain.foreign_text import one_line
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import RUN_LABEL, STACK_LABEL, TTL_ANNOTATION
from aiperf_svc.plan.network import PREFLIGHT
from aiperf_svc.plan.release import is_cluster_scoped, list_path, name_of
from aiperf_svc.plan.stack import StackPlan

ADMISSION = "admission"
NO_DRY_RUN = "does not support dry run"
"""Part of the refusal when a webhook has side effects: the API server does not call such a webhook
in a dry run."""
DEFAULT = "default"
UNNAMED = "-00000000"
"""Placeholder in manifests for the suffix that Pulumi appends to a name."""
MAX_NAME_LENGTH = 45
"""Number of characters that the empty namespace's name takes from the stack's namespace. Names have
at most 63."""
SCRATCH_S = 60
"""Seconds after which `gc` may remove the empty namespace of a killed runner."""
ACCOUNT_S, POLL_S = 5.0, 0.1
SHOWN = 3
"""Maximum number of reasons shown."""
_PREFIX = re.compile(r"^.*? is (?:forbidden|invalid): ")


class Refusal(NamedTuple):
    """An object that the API server refuses, and why."""

    kind: str
    why: str


async def try_admission(cluster: Cluster, plan: StackPlan, *, namespace: str) -> Check:
    """Dry-run the smallest pod of the stack. Raises Unreachable."""
    lacking = await denied(cluster, probe_rights(namespace))
    if lacking:
        detail = f"not allowed in namespace {namespace}: {', '.join(map(str, sorted(lacking)))}"
        return Check(ADMISSION, "not checked", detail)
    pod = idle_pod(plan, plan.identity.name(PREFLIGHT))
    try:
        await cluster.post(f"/api/v1/namespaces/{namespace}/pods", pod, dryRun="All")
    except Refused as error:
        if NO_DRY_RUN in str(error):
            return Check(ADMISSION, "not checked", str(error))
        return Check(
            ADMISSION, "failed", f"a pod like those of the stack is refused: {error}", RULE_REMEDY
        )
    return Check(
        ADMISSION, "ok", f"a pod like those of the stack is admitted to namespace {namespace}"
    )


class PodNamespace:
    """The namespace in which pods may run checks for a stack. The lookup runs once."""

    def __init__(self, cluster: Cluster, plan: StackPlan, existing: str | None) -> None:
        self._cluster, self._plan = cluster, plan
        self.existing = existing
        """The stack's namespace; None if it does not exist yet."""
        self._found: list[str | None] = []

    async def find(self) -> str | None:
        """Return the namespace; None if there is none. Raises Unreachable.

        If the stack's namespace does not exist yet, the context's namespace or `default` is used,
        provided that it admits the pod and has no NetworkPolicies, which could distort the
        result."""
        if not self._found:
            self._found = [await self._search()]
        return self._found[0]

    async def _search(self) -> str | None:
        cluster, existing = self._cluster, self.existing
        if existing is not None:
            return None if await denied(cluster, probe_rights(existing)) else existing
        for name in dict.fromkeys((cluster.namespace, DEFAULT)):
            path = f"/apis/networking.k8s.io/v1/namespaces/{name}/networkpolicies"
            if await try_list(cluster, path, limit="1") == []:
                tried = await try_admission(cluster, self._plan, namespace=name)
                if tried.state == "ok":
                    return name
        return None


async def try_objects(
    cluster: Cluster,
    objects: Sequence[Json],
    *,
    namespace: str | None,
    cluster_scoped: Collection[str] = (),
) -> Check:
    """Dry-run all objects of a stack. `namespace` is None if it does not exist yet.
    `cluster_scoped` lists the cluster-scoped custom resources as `KIND/NAME`. Raises Unreachable,
    and EnvironmentProblem if the empty namespace may remain."""
    whole, outside, inside = list[Json](), list[Json](), list[Json]()
    for each in objects:
        if each["kind"] == "Namespace":
            whole.append(each)
        elif is_cluster_scoped(each) or name_of(each) in cluster_scoped:
            outside.append(each)
        else:
            inside.append(each)
    refused_outside = await _refused(cluster, outside, None)

    async def inside_of(name: str, where: str) -> Check:
        lacking = await denied(cluster, probe_rights(name))
        tried = [*inside, *([] if lacking else pods_of(inside))]
        without = "; their pods were not tried: not allowed to create pods" if lacking else ""
        refused = await _refused(cluster, tried, name)
        return judge(len(outside) + len(tried), refused_outside + refused, where + without)

    if namespace is not None:
        return await inside_of(namespace, f"in namespace {namespace}")
    refused_whole = await _refused(cluster, whole, None)
    if refused_whole:
        return judge(len(whole), refused_whole, "as its namespace")
    name = _empty_name(whole[0])
    removal = Right("", "namespaces", "delete", name=name)
    if await denied(cluster, (removal,)):
        detail = f"no empty namespace is created to try the objects in: you may not {removal}"
        return Check(ADMISSION, "not checked", detail)
    try:
        async with _empty_namespace(cluster, whole[0], name):
            return await inside_of(name, "in an empty namespace with the labels of the stack's")
    except Refused as error:
        detail = f"no empty namespace could be created to try the objects in: {error}"
        return Check(ADMISSION, "not checked", detail)


def judge(number: int, refused: Sequence[Refusal], where: str) -> Check:
    """Judge the refusals among `number` objects. `where` completes the message."""
    reasons: defaultdict[str, list[str]] = defaultdict(list)
    for each in refused:
        reasons[each.why].append(each.kind)
    unclear = [why for why in reasons if NO_DRY_RUN in why]
    if len(unclear) == len(reasons) and unclear:
        return Check(ADMISSION, "not checked", f"{unclear[0]} {where}")
    if not reasons:
        return Check(ADMISSION, "ok", f"all {number} objects of the stack are admitted {where}")
    lines = [
        f"{', '.join(_with_counts(kinds))}: {why}"
        for why, kinds in reasons.items()
        if why not in unclear
    ]
    more = [f"{len(lines) - SHOWN} more reasons"] if len(lines) > SHOWN else []
    detail = "; ".join([*lines[:SHOWN], *more])
    number_refused = sum(len(kinds) for why, kinds in reasons.items() if why not in unclear)
    return Check(
        ADMISSION,
        "failed",
        f"{number_refused} of {number} objects of the stack are refused {where}: {detail}",
        RULE_REMEDY,
    )


def pods_of(objects: Iterable[Json]) -> list[Json]:
    """Return a pod for each template of these objects, with its controller's additions."""
    found = []
    for each in objects:
        template = each.get("spec", {}).get("template")
        if "spec" not in (template or {}):
            continue
        spec = {**template["spec"]}
        # The account belongs to the stack and does not exist yet.
        spec.pop("serviceAccountName", None)
        claims = each["spec"].get("volumeClaimTemplates") or ()
        spec["volumes"] = [
            *spec.get("volumes", ()),
            *(
                {"name": name, "persistentVolumeClaim": {"claimName": name}}
                for name in (claim["metadata"]["name"] for claim in claims)
            ),
        ]
        metadata = {**template["metadata"], "generateName": f"{each['metadata']['name']}-"}
        found.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return found


def path_of(each: Json, namespace: str | None) -> str:
    return list_path(each, f"/namespaces/{namespace}" if namespace else "")


async def _refused(
    cluster: Cluster, objects: Iterable[Json], namespace: str | None
) -> list[Refusal]:
    found = await asyncio.gather(*(_refusal(cluster, each, namespace) for each in objects))
    return [each for each in found if each is not None]


async def _refusal(cluster: Cluster, each: Json, namespace: str | None) -> Refusal | None:
    metadata = {k: v for k, v in each["metadata"].items() if k != "ownerReferences"}
    if namespace is not None:
        metadata["namespace"] = namespace
    try:
        await cluster.post(path_of(each, namespace), {**each, "metadata": metadata}, dryRun="All")
    except Refused as error:
        # It exists from an earlier `up`, or it refers to another object of the stack.
        if error.status in (404, 409):
            return None
        return Refusal(each["kind"], one_line(_PREFIX.sub("", str(error)), limit=300))
    return None


def _empty_name(like: Json) -> str:
    begin = like["metadata"]["name"].removesuffix(UNNAMED)[:MAX_NAME_LENGTH]
    return f"{begin}-{PREFLIGHT}-{secrets.token_hex(3)}"


@contextlib.asynccontextmanager
async def _empty_namespace(cluster: Cluster, like: Json, name: str) -> AsyncIterator[None]:
    labels = {k: v for k, v in like["metadata"].get("labels", {}).items() if k != RUN_LABEL}
    annotations = {**like["metadata"].get("annotations", {}), TTL_ANNOTATION: str(SCRATCH_S)}
    metadata = {"name": name, "labels": labels | {STACK_LABEL: name}, "annotations": annotations}
    path, may_exist = f"/api/v1/namespaces/{name}", True
    try:
        try:
            await cluster.post("/api/v1/namespaces", {**like, "metadata": metadata})
        except Refused as error:
            may_exist = error.is_temporary
            raise
        await _wait_for_account(cluster, f"{path}/serviceaccounts/default")
        yield
    finally:
        if may_exist:
            await asyncio.shield(remove_made(cluster, path))


async def _wait_for_account(cluster: Cluster, path: str) -> None:
    """Wait a short time for the namespace's default account, which pods without an account use."""
    end_mono_s = time.monotonic() + ACCOUNT_S
    while time.monotonic() < end_mono_s:
        with contextlib.suppress(Refused):
            await cluster.get(path, accept=METADATA)
            return
        await asyncio.sleep(POLL_S)


def _with_counts(kinds: Iterable[str]) -> list[str]:
    return [f"{n} {kind}" if n > 1 else kind for kind, n in Counter(kinds).items()]
