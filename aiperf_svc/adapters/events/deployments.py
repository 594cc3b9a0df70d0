"""Events of a stack. They disturb the pods of a Deployment, which is the stack's own target or one
that the event names, or of a pool of its release.

Each event waits for a proof: a new pod with another UID, a restarted container, process states, a
dropped connection.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from aiperf_svc.adapters.cluster.api.connection import Cluster, Refused, retried
from aiperf_svc.adapters.cluster.api.objects import label_selector, selector_text
from aiperf_svc.adapters.cluster.teardown.event_undo import POLL_S, RETRY_S, UNDO, Undo, record_undo
from aiperf_svc.adapters.events import netem
from aiperf_svc.adapters.events.event_run import EventFailed, EventRun, wait_for_proof
from aiperf_svc.adapters.events.pod_commands import (
    BUSY,
    FIRST_IS_SERVER,
    KILL,
    STALL,
    PodCommand,
    pod_command,
)
from aiperf_svc.config.base import SECOND_NS
from aiperf_svc.config.target import HOST
from aiperf_svc.core.cluster.conditions import containers_of
from aiperf_svc.core.cluster.facts import server_container
from aiperf_svc.domain.json_objects import Json
from aiperf_svc.plan.identity import ANCHOR, COMPONENT_LABEL, STACK_LABEL
from aiperf_svc.plan.pods import NETWORK
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.protocol.services import Service

REPLACED_S = 120.0
"""Longest time until the pods of an event are replaced."""
CUT_S = 5.0
"""Longest time until a connection that a policy drops counts as dropped."""
LATE_S = 30.0
"""Time after the end of an event after which commands in pods undo it by themselves."""
TICKS, MIN_BUSY_SHARE = 100, 0.05
"""Clock ticks per second in /proc, and the minimum share of a core that a busy loop must use."""
RESTARTED = "kubectl.kubernetes.io/restartedAt"
_CONNECT = (
    "import socket,sys\n"
    "for address in sys.argv[2:]:\n"
    " try: socket.create_connection((address,int(sys.argv[1])),{limit}).close()\n"
    " except OSError as error: print('dropped' if isinstance(error,TimeoutError) else error)\n"
    " else: print('open')\n"
)


class DeploymentEvents:
    """Carries out the events of the run of a stack."""

    def __init__(self, cluster: Cluster, plan: StackPlan, *, namespace: str) -> None:
        self._cluster, self._plan, self._namespace = cluster, plan, namespace
        root = f"/api/v1/namespaces/{namespace}"
        self._is_guest = plan.config.deployment.namespace.mode == "existing"
        if self._is_guest:
            root += f"/configmaps/{plan.identity.name(ANCHOR)}"
        self._root = root
        self._open_undos: dict[str, Undo] = {}
        """Undo records of the events that last until the end of the load, by key."""

    async def perform(self, run: EventRun) -> None:
        """Carry out an event. Raises EventFailed, Refused, Unreachable."""
        target = await self._find(run)
        await _KINDS[run.event.do](self, run, target)

    async def _find(self, run: EventRun) -> "_Target":
        stack = self._plan.identity.stack
        if run.event.pool is not None:
            pool = self._plan.config.deployment.target.pools[run.event.pool]
            # In a shared namespace, foreign pods may have the labels of the pool.
            more = {STACK_LABEL: stack} if self._is_guest else {}
            labels = {**pool.labels, **more}
            return _Target(
                self._cluster, self._namespace, run.event.pool, pool=labels, port=pool.port
            )
        own = self._namespace, run.event.deployment or self._plan.identity.name(HOST)
        namespace, name = run.event.others or own
        target = _Target(self._cluster, namespace, name)
        await target.read()
        found = (target.found["metadata"].get("labels") or {}).get(STACK_LABEL)
        # A namespace that the stack has created contains only its objects. Those that Helm installs
        # lack its label.
        if self._is_guest and not run.event.foreign and found != stack:
            raise EventFailed(f"Deployment {name} lacks the label of this stack")
        return target

    async def _delete_pod(self, run: EventRun, target: "_Target") -> None:
        before, chosen = await target.begin(run)
        grace = None if run.event.grace is None else run.event.grace // 10**9
        for pod in chosen:
            path = f"{target.pods_path}/{_name(pod)}"
            await self._cluster.delete(path, uid=_uid(pod), grace_s=grace)
        run.verify(await target.successors(before, chosen))

    async def _evict(self, run: EventRun, target: "_Target") -> None:
        before, chosen = await target.begin(run)
        await self._evict_pods(target, chosen)
        run.verify(await target.successors(before, chosen))

    async def _evict_pods(self, target: "_Target", pods: Sequence[Json]) -> None:
        for pod in pods:
            body = {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": _name(pod), "namespace": target.namespace},
                "deleteOptions": {"preconditions": {"uid": _uid(pod)}},
            }
            try:
                await self._cluster.post(f"{target.pods_path}/{_name(pod)}/eviction", body)
            except Refused as error:
                if error.status == 429:
                    raise EventFailed(
                        f"pod {_name(pod)} is not evicted: a PodDisruptionBudget protects it"
                    ) from error
                raise

    async def _drain(self, run: EventRun, target: "_Target") -> None:
        before = await target.pods()
        node = run.pick(sorted({pod["spec"]["nodeName"] for pod in before}))[0]
        chosen = [pod for pod in before if pod["spec"]["nodeName"] == node]
        path = f"/api/v1/nodes/{node}"
        found = await self._cluster.get(path)
        if found["spec"].get("unschedulable"):
            raise EventFailed(f"node {node} is cordoned already")
        undo = Undo(kind="uncordon", name=node, uid=_uid(found))
        subject = f"node {node}: {_names(chosen)}"
        async with self._changed(run, undo, found, {"unschedulable": True}, subject):
            await self._evict_pods(target, chosen)
            run.verify(f"node cordoned; {await target.successors(before, chosen)}")
            await run.hold()
        found = await self._cluster.get(path)
        if found["spec"].get("unschedulable"):
            raise EventFailed(f"node {node} is still cordoned")
        run.verify("uncordoned afterwards")

    async def _restart(self, run: EventRun, target: "_Target") -> None:
        before = await target.pods()
        await run.until_due()
        run.begin(f"Deployment {target.name}")
        stamp = {RESTARTED: datetime.now(UTC).isoformat(timespec="seconds")}
        template = {"metadata": {"annotations": stamp}}
        await self._cluster.patch(target.path, {"spec": {"template": template}})
        run.verify(await target.successors(before, before))

    async def _scale(self, run: EventRun, target: "_Target") -> None:
        wanted, before = run.event.replicas, int(target.found["spec"]["replicas"])
        if wanted == before:
            raise EventFailed(f"Deployment {target.name} has {before} replicas already")
        assert wanted is not None
        undo = Undo(
            kind="scale",
            name=target.name,
            namespace=target.namespace,
            uid=_uid(target.found),
            replicas=before,
        )
        subject = f"Deployment {target.name}, from {before} replicas"
        async with self._changed(run, undo, target.found, {"replicas": wanted}, subject):
            await target.has_replicas(wanted)
            run.verify(f"{wanted} pods exist")
            if run.event.duration is None:
                # The end of the load cancels this, so each trial starts with the same number.
                await asyncio.Event().wait()
            await run.hold()
        await target.has_replicas(before)
        run.verify(f"{before} again afterwards")

    @contextlib.asynccontextmanager
    async def _changed(
        self, run: EventRun, undo: Undo, found: Json, spec: Json, what: str
    ) -> AsyncIterator[None]:
        """Change an object when the event is due, and undo that when the context ends. Until then,
        the stack's root has a record of the undo. Inside an event of the same object that lasts
        until the end of the load, that event's record is kept. Raises EventFailed if the object has
        a change that is not undone: its present state is not the original."""
        lasting, is_lasting = self._open_undos.get(undo.key), run.event.duration is None
        changed_by = (found["metadata"].get("labels") or {}).get(UNDO)
        if changed_by and lasting is None:
            raise EventFailed(
                f"{undo.name}: an event of stack {changed_by} is not undone yet; if its run is "
                f"gone: aiperf-svc gc {changed_by}"
            )
        recorded = lasting or undo
        await run.until_due()
        await record_undo(self._cluster, self._root, recorded.key, recorded.encoded)
        if is_lasting:
            self._open_undos[recorded.key] = recorded
        is_inside = lasting is not None and not is_lasting
        try:
            run.begin(what)
            await recorded.change(self._cluster, self._plan.identity.stack, spec)
            yield
        except asyncio.CancelledError:
            # The end of the load ends all of its events, in no order.
            is_inside = False
            raise
        finally:
            if is_inside:
                await recorded.change(self._cluster, self._plan.identity.stack, undo.spec)
                run.end()
            else:
                is_undone = await recorded.carry_out(self._cluster)
                if not is_lasting:
                    run.end()
                self._open_undos.pop(recorded.key, None)
                # A change whose response was lost may still arrive; it is undone with the stack.
                if is_undone:
                    await record_undo(self._cluster, self._root, recorded.key, None)

    async def _kill(self, run: EventRun, target: "_Target") -> None:
        async with self._commands(run, target, KILL, is_signal=True) as (chosen, _):
            before = {_uid(pod): target.restarts(pod) for pod in chosen}

        async def check() -> str | None:
            now = {_uid(pod): target.restarts(pod) for pod in await target.pods(is_ready=False)}
            is_restarted = all(now.get(uid, 0) > count for uid, count in before.items())
            return "restarted" if is_restarted else None

        await wait_for_proof(check, f"no container of {_names(chosen)} restarted", REPLACED_S)
        run.verify("restartCount is higher")

    async def _stall(self, run: EventRun, target: "_Target") -> None:
        stalling = self._commands(run, target, STALL, first=_limit(run), is_signal=True)
        async with stalling as (chosen, commands):
            for command in commands:
                _check_stopped(await command.line())
            run.verify("state T in /proc/PID/stat")
            # The commands resume the processes when their input ends.
            await run.hold_to_end()
            for command in commands:
                await command.send("go")
                _check_stopped(await command.line())
                if ":T" in await command.line():
                    raise EventFailed(f"{_names(chosen)} is still stopped")
        run.verify("continued afterwards")

    async def _cpu(self, run: EventRun, target: "_Target") -> None:
        cores, length_ns, used = run.event.cores or 0, run.event.duration or 0, 0.0
        first = f"{_limit(run)} {cores}"
        async with self._commands(run, target, BUSY, first=first) as (chosen, commands):
            for command in commands:
                await command.line()
            # The loops end with the input of the commands.
            await run.hold_to_end()
            for command in commands:
                await command.send("end")
                used += int(await command.line()) / TICKS
        if used < MIN_BUSY_SHARE * cores * len(chosen) * length_ns / 1e9:
            raise EventFailed(f"not verified: the busy loops had {used:.2f} s of CPU")
        run.verify(f"busy loops used {used:.1f} s of CPU")

    async def _disturb_packets(self, run: EventRun, target: "_Target") -> None:
        event, passed, dropped = run.event, 0, 0
        settings = (str(event.latency or 0), str(event.loss or 0.0))
        program = ("python", "-P", "-m", netem.__name__, *settings)
        disturbing = self._commands(run, target, program, first=_limit(run), container=NETWORK)
        async with disturbing as (_, commands):
            for command in commands:
                if (line := await command.line()) != "on":
                    raise EventFailed(line)
            # The commands remove the discipline when their input ends.
            await run.hold_to_end()
            for command in commands:
                await command.send("go")
                _, packets, lost = (await command.line()).split()
                passed, dropped = passed + int(packets), dropped + int(lost)
        counts = f"netem passed on {passed:,} packets and dropped {dropped:,}"
        if not (dropped if event.do == "loss" else passed):
            raise EventFailed(f"not verified: {counts}")
        run.verify(f"{counts}; removed afterwards")

    @contextlib.asynccontextmanager
    async def _commands(
        self,
        run: EventRun,
        target: "_Target",
        program: str | Sequence[str],
        *,
        first: str = "go",
        container: str = "",
        is_signal: bool = False,
    ) -> AsyncIterator[tuple[list[Json], list[PodCommand]]]:
        """Run a shell text or a program in the pods of an event while the context is open, by
        default in the server's container, and start the event with the `first` line of its input.
        Yields the pods and their commands."""
        argv = ("sh", "-c", program) if isinstance(program, str) else program
        chosen = run.pick(await target.pods())
        async with contextlib.AsyncExitStack() as stack:
            commands = []
            for pod in chosen:
                if is_signal and not pod["spec"].get("shareProcessNamespace"):
                    raise EventFailed(
                        f"pod {_name(pod)} does not share its process namespace, so its server is "
                        "process 1, which ignores these signals; set shareProcessNamespace: true "
                        "in its template"
                    )
                name = container or target.server_of(pod)
                made = pod_command(self._cluster, target.namespace, _name(pod), name, argv)
                commands.append(await stack.enter_async_context(made))
            await run.until_due()
            run.begin(_names(chosen))
            for command in commands:
                await command.send(first)
            yield chosen, commands

    async def _cut(self, run: EventRun, target: "_Target") -> None:
        """Change the stack's policy so it admits no connection to the target, and verify this with
        a connection from a worker."""
        pods = await target.pods()
        name = self._plan.identity.name(HOST)
        policies = f"/apis/networking.k8s.io/v1/namespaces/{target.namespace}/networkpolicies"
        found = await self._cluster.get(f"{policies}/{name}")
        undo = Undo(
            kind="admit",
            name=name,
            namespace=target.namespace,
            uid=_uid(found),
            ingress=found["spec"]["ingress"],
        )
        subject = f"NetworkPolicy of {_names(pods)}"
        async with self._changed(run, undo, found, {"ingress": []}, subject):
            await wait_for_proof(
                lambda: self._connections(pods, "dropped"),
                "a worker still connects to the target: the cluster does not enforce the policy",
                REPLACED_S,
            )
            run.verify("connections from a worker are dropped")
            await run.hold()
        await wait_for_proof(
            lambda: self._connections(pods, "open"), "the target is still cut off", REPLACED_S
        )
        run.verify("accepted afterwards")

    async def _connections(self, pods: Sequence[Json], wanted: str) -> str | None:
        """Return `wanted` if all connections from a worker to these pods end like that."""
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        labels = {COMPONENT_LABEL: Service.WORKER.value, **self._plan.identity.selector()}
        selector = label_selector(labels)
        workers = (await self._cluster.get(path, labelSelector=selector))["items"]
        if not workers:
            return None
        container = workers[0]["spec"]["containers"][0]["name"]
        port = str(self._plan.config.deployment.target.port)
        addresses = [pod["status"]["podIP"] for pod in pods]
        program = ("python", "-P", "-c", _CONNECT.format(limit=CUT_S), port, *addresses)
        async with pod_command(
            self._cluster, self._namespace, _name(workers[0]), container, program
        ) as command:
            seen = {await command.line() for _ in addresses}
        return wanted if seen == {wanted} else None


_KINDS: dict[str, Callable[[DeploymentEvents, EventRun, "_Target"], Any]] = {
    "delete-pod": DeploymentEvents._delete_pod,
    "evict": DeploymentEvents._evict,
    "drain": DeploymentEvents._drain,
    "restart": DeploymentEvents._restart,
    "scale": DeploymentEvents._scale,
    "kill": DeploymentEvents._kill,
    "stall": DeploymentEvents._stall,
    "cut": DeploymentEvents._cut,
    "cpu": DeploymentEvents._cpu,
    "delay": DeploymentEvents._disturb_packets,
    "loss": DeploymentEvents._disturb_packets,
}


class _Target:
    """The Deployment, or the pool of the stack's release, that an event disturbs, with its pods."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        name: str,
        *,
        pool: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        """`pool` contains the labels of a pool's pods. The server's container is the one with the
        port, else the first."""
        self._cluster, self.namespace, self.name, self._pool = cluster, namespace, name, pool
        self._port = port
        self._words = f"Deployment {name}" if pool is None else f"pool {name}"
        apps = f"/apis/apps/v1/namespaces/{namespace}"
        self.path, self._sets_path = f"{apps}/deployments/{name}", f"{apps}/replicasets"
        self.pods_path = f"/api/v1/namespaces/{namespace}/pods"
        self.found: Json = {}

    async def read(self) -> None:
        self.found = await self._get(self.path)

    async def _get(self, path: str, **params: str) -> Json:
        """Repeat a read while the API server fails, for a short time."""
        reading = partial(self._cluster.get, path, **params)
        return await retried(reading, within_s=RETRY_S, pause_s=POLL_S)

    async def pods(self, *, is_ready: bool = True) -> list[Json]:
        """Return its pods, except those that are being deleted. Raises EventFailed if none of them
        runs."""
        found = await self._of_pool() if self._pool is not None else await self._of_deployment()
        live = [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]
        if not is_ready:
            return live
        running = [pod for pod in live if pod["status"].get("phase") == "Running"]
        if not running:
            raise EventFailed(f"{self._words} has no pod that runs")
        return sorted(running, key=_name)

    async def _of_pool(self) -> list[Json]:
        selector = label_selector(self._pool or {})
        return list((await self._get(self.pods_path, labelSelector=selector))["items"])

    async def _of_deployment(self) -> list[Json]:
        """Return the pods of the Deployment's ReplicaSets: its selector may match others."""
        selector = selector_text(self.found["spec"]["selector"])
        listed = await self._get(self._sets_path, labelSelector=selector)
        sets = {_uid(each) for each in listed["items"] if _owner(each) == _uid(self.found)}
        listed = await self._get(self.pods_path, labelSelector=selector)
        return [pod for pod in listed["items"] if _owner(pod) in sets]

    def server_of(self, pod: Json) -> str:
        """Return the name of the server's container."""
        return server_container(pod["spec"], self._port)

    def restarts(self, pod: Json) -> int:
        """Return the number of restarts of a pod's server, without its sidecars."""
        name = self.server_of(pod)
        return sum(
            int(each.get("restartCount", 0)) for each in containers_of(pod) if each["name"] == name
        )

    async def begin(self, run: EventRun) -> tuple[list[Json], list[Json]]:
        """Wait until an event is due; return its pods, and the chosen ones."""
        before = await self.pods()
        chosen = run.pick(before)
        await run.until_due()
        run.begin(_names(chosen))
        return before, chosen

    async def successors(self, before: Sequence[Json], gone: Sequence[Json]) -> str:
        """Wait until new pods have replaced the deleted ones; return a description of them."""
        old, lost = {_uid(pod) for pod in before}, {_uid(pod) for pod in gone}

        async def check() -> list[Json] | None:
            live = await self.pods(is_ready=False)
            new = [pod for pod in live if _uid(pod) not in old]
            is_left = any(_uid(pod) in lost for pod in live)
            return new if len(new) >= len(lost) and not is_left else None

        new = await wait_for_proof(check, f"{_names(gone)} was not replaced", REPLACED_S)
        return "replaced by " + ", ".join(f"{_name(pod)} (UID {_uid(pod)[:8]})" for pod in new)

    async def has_replicas(self, wanted: int) -> None:
        """Wait until there are `wanted` pods."""

        async def check() -> int | None:
            return wanted if len(await self.pods(is_ready=False)) == wanted else None

        await wait_for_proof(
            check, f"Deployment {self.name} does not have {wanted} pods", REPLACED_S
        )


def _limit(run: EventRun) -> str:
    """Return the seconds after which commands undo an event themselves."""
    return str(math.ceil((run.event.duration or 0) / SECOND_NS + LATE_S))


def _check_stopped(line: str) -> None:
    """Raise EventFailed unless all processes are stopped."""
    if line == FIRST_IS_SERVER:
        raise EventFailed("the server is process 1 of its pod, which ignores these signals")
    states = [each.partition(":")[2] for each in line.split()[1:]]
    if not states or set(states) != {"T"}:
        raise EventFailed(f"not verified: the states of the processes are {line!r}")


def _name(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def _uid(found: Json) -> str:
    return str(found["metadata"]["uid"])


def _owner(found: Json) -> str:
    """Return the UID of the controller of an object; empty if it has none."""
    owners = found["metadata"].get("ownerReferences") or ()
    return next((str(each["uid"]) for each in owners if each.get("controller")), "")


def _names(pods: Sequence[Json]) -> str:
    return ", ".join(f"pod {_name(pod)}" for pod in pods)
