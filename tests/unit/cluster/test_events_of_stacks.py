"""Events of a stack with a fake API server."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from aiperf_svc.adapters.cluster.api.connection import Refused, Unreachable
from aiperf_svc.adapters.cluster.api.objects import ObjectRef
from aiperf_svc.adapters.cluster.preflight.event_checks import check_events
from aiperf_svc.adapters.cluster.preflight.rights import event_rights, judge_rights, made_types
from aiperf_svc.adapters.cluster.teardown import event_undo
from aiperf_svc.adapters.cluster.teardown.event_undo import (
    UNDO,
    Undo,
    changed_objects,
    record_undo,
    undo_recorded,
)
from aiperf_svc.adapters.events import deployments
from aiperf_svc.adapters.events.deployments import DeploymentEvents
from aiperf_svc.adapters.events.event_run import EventFailed, EventRun
from aiperf_svc.adapters.events.pod_commands import PodCommand
from aiperf_svc.config.benchmark import BenchmarkConfig
from aiperf_svc.config.events import Event
from aiperf_svc.core.events.report import EventReport
from aiperf_svc.plan.identity import STACK_LABEL
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.workloads.inference.preview import inference_rows
from aiperf_svc.workloads.registry import workload_of
from tests.support.fake_cluster import FakeCluster, Json
from tests.support.plans import to_plan
from tests.support.releases import deployment, graph, release_config, rendering

NAMESPACE = "ns"
ROOT = f"/api/v1/namespaces/{NAMESPACE}"
PODS = f"{ROOT}/pods"
LABELS = {STACK_LABEL: "bench"}
NODE = "/api/v1/nodes/node-1"
POLICIES = f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies"
INGRESS: list[Json] = [{"from": [{"podSelector": {}}], "ports": [{"port": 8000}]}]
SETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/replicasets"
GUEST = {"namespace": {"name": NAMESPACE, "mode": "existing"}}
CORDON = Undo(kind="uncordon", name="node-1", uid="n-1")


def owned(uid: str, owner: str, *, name: str = "") -> Json:
    """Return an object with a controller, unless `owner` is empty."""
    owners = [{"uid": owner, "controller": True}] if owner else []
    return {"metadata": {"name": name or uid, "uid": uid, "ownerReferences": owners}}


def planned(*events: dict[str, Any], **deployment: Any) -> StackPlan:
    """Return a stack with its own target and these events."""
    return to_plan(stack_config(*events, **deployment))


def stack_config(*events: dict[str, Any], **deployment: Any) -> BenchmarkConfig:
    has_target = deployment.setdefault("target", {"kind": "mock"})["kind"] != "none"
    return BenchmarkConfig.model_validate(
        {
            "endpoint": {"url": "http://target" if has_target else "http://10.0.0.1", "model": "m"},
            "load": {"request_rate": 10, "duration": "50m"},
            "events": [{"at": "20s", **event} for event in events],
            "deployment": deployment,
        }
    )


class PlayedCluster(FakeCluster):
    """A cluster with a Deployment whose deleted and evicted pods are replaced immediately."""

    def __init__(self, deployment: str, *, refuses_eviction: bool = False) -> None:
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{deployment}"
        self.policy = f"{POLICIES}/{deployment}"
        terms = [{"key": "app", "operator": "In", "values": ["server", "other"]}]
        spec = {"replicas": 2, "selector": {"matchExpressions": terms}}
        super().__init__(
            {
                path: {"metadata": {"uid": "d-1", "labels": LABELS}, "spec": spec},
                NODE: {"metadata": {"uid": "n-1"}, "spec": {}},
                self.policy: {"metadata": {"uid": "np-1"}, "spec": {"ingress": INGRESS}},
                ROOT: {"metadata": {"annotations": {}}},
                SETS: {"items": [owned("set-1", "d-1"), owned("set-2", "d-2")]},
            }
        )
        self.strangers = [self._pod(99, owner="set-2"), self._pod(98, owner="")]
        """Pods that the Deployment's selector matches but that it does not own."""
        self.deployment, self._refuses = path, refuses_eviction
        self.pods = [self._pod(number) for number in (1, 2)]
        self.failures: list[Exception] = []
        """Errors that the next reads raise."""
        self.calls: list[tuple[str, str]] = []
        self.selectors: list[str] = []

    def _pod(self, number: int, *, owner: str = "set-1") -> Json:
        return {
            **owned(f"uid-{number}", owner, name=f"p-{number}"),
            "spec": {"nodeName": "node-1", "containers": [{"name": "server"}]},
            "status": {"phase": "Running"},
        }

    def _replace(self, path: str) -> None:
        name = path.removeprefix(f"{PODS}/").split("/")[0]
        self.pods = [pod for pod in self.pods if pod["metadata"]["name"] != name]
        self.pods.append(self._pod(10 + len(self.calls)))

    async def get(self, path: str, **params: str) -> Json:
        if self.failures:
            raise self.failures.pop(0)
        if path == PODS:
            self.selectors.append(params["labelSelector"])
            return {"items": [*self.pods, *self.strangers]}
        return await super().get(path, **params)

    async def delete(self, path: str, **options: Any) -> None:
        self.calls.append(("DELETE", f"{path} {options['uid']} {options['grace_s']}"))
        self._replace(path)

    async def post(self, path: str, body: Json, **params: str) -> Json:
        self.calls.append(("POST", path))
        if self._refuses:
            raise Refused("the budget", status=429, reason="TooManyRequests")
        self._replace(path)
        return body

    async def patch(self, path: str, changes: Json) -> Json:
        self.calls.append(("PATCH", f"{path} {changes}"))
        if path in (NODE, self.policy, self.deployment):
            found = self.objects[path]
            found["spec"] = {**found["spec"], **changes["spec"]}
            for key, values in changes.get("metadata", {}).items():
                found["metadata"][key] = {**found["metadata"].get(key, {}), **values}
        if path == self.deployment and "template" in changes["spec"]:
            self.pods = [self._pod(20 + number) for number in (1, 2)]
        elif path == self.deployment:
            wanted = changes["spec"]["replicas"]
            self.pods = [self._pod(number) for number in range(1, wanted + 1)]
        if path == ROOT:
            self.objects[ROOT]["metadata"]["annotations"].update(changes["metadata"]["annotations"])
        return {}


async def carry_out(
    event: dict[str, Any],
    plan: StackPlan | None = None,
    cluster: PlayedCluster | None = None,
    *,
    refuses: bool = False,
) -> tuple[EventReport, Any]:
    """Carry out an event that is due now. Return its report and the cluster."""
    plan = plan or planned(event)
    cluster = cluster or PlayedCluster(plan.identity.name("target"), refuses_eviction=refuses)
    run = EventRun(0, Event.model_validate({"at": 0, **event}), changed=asyncio.Event())
    await run.carry_out(DeploymentEvents(cluster.typed, plan, namespace=NAMESPACE).perform)
    return run.report, cluster


async def test_deleted_pod_is_verified_by_its_successor() -> None:
    report, cluster = await carry_out({"do": "delete-pod", "grace": "0s"})
    assert report.problem == ""
    ((_, call),) = cluster.calls
    name = call.split()[0].removeprefix(f"{PODS}/")
    assert call.split()[1:] == [f"uid-{name[2:]}", "0"]
    assert set(cluster.selectors) == {"app in (server,other)"}
    assert report.what == f"pod {name}"
    assert report.evidence.startswith("replaced by ")


async def test_event_proof_survives_api_server_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(PlayedCluster):
        async def delete(self, path: str, **options: Any) -> None:
            await super().delete(path, **options)
            self.failures = [Refused("leader changed", status=500, reason="")]

    monkeypatch.setattr(deployments, "POLL_S", 0.0)
    plan = planned({"do": "delete-pod"})
    cluster = Failing(plan.identity.name("target"))
    report, _ = await carry_out({"do": "delete-pod"}, plan, cluster)
    assert report.problem == ""
    assert cluster.failures == []


async def test_foreign_pods_are_never_chosen() -> None:
    plan = planned({"do": "delete-pod"})
    cluster = PlayedCluster(plan.identity.name("target"))
    cluster.pods = []
    report, _ = await carry_out({"do": "delete-pod"}, plan, cluster)
    assert "has no pod that runs" in report.problem
    assert cluster.calls == []


async def test_all_pods_are_evicted_and_replaced() -> None:
    report, cluster = await carry_out({"do": "evict", "pick": "all"})
    assert report.problem == ""
    assert {call for _, call in cluster.calls} == {f"{PODS}/p-{n}/eviction" for n in (1, 2)}


async def test_protected_pod_is_a_problem() -> None:
    report, _ = await carry_out({"do": "evict"}, refuses=True)
    assert "a PodDisruptionBudget protects it" in report.problem


async def test_drained_node_is_uncordoned() -> None:
    report, cluster = await carry_out({"do": "drain", "duration": "1ms"})
    assert report.problem == ""
    assert report.evidence.endswith("uncordoned afterwards")
    patches = [call for method, call in cluster.calls if method == "PATCH"]
    assert CORDON.key in patches[0]
    assert "'unschedulable': True" in patches[1]
    assert f"'labels': {{'{UNDO}': 'bench'}}" in patches[1]
    assert "'unschedulable': None" in patches[2]
    assert f"'labels': {{'{UNDO}': None}}" in patches[2]
    assert patches[3].endswith(f"{{'{CORDON.key}': None}}}}}}")


async def test_failed_drain_is_uncordoned_too() -> None:
    report, cluster = await carry_out({"do": "drain", "duration": "1ms"}, refuses=True)
    assert "a PodDisruptionBudget protects it" in report.problem
    assert cluster.objects[NODE]["spec"] == {"unschedulable": None}
    assert cluster.objects[ROOT]["metadata"]["annotations"] == {CORDON.key: None}


async def test_scaled_deployment_regains_its_replicas() -> None:
    report, cluster = await carry_out({"do": "scale", "replicas": 5, "duration": "1ms"})
    assert report.problem == ""
    assert report.evidence == "5 pods exist; 2 again afterwards"
    assert len(cluster.pods) == 2


async def test_cut_policy_admits_connections_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connections(_: object, __: object, wanted: str) -> str:
        return wanted

    monkeypatch.setattr(DeploymentEvents, "_connections", connections)
    report, cluster = await carry_out({"do": "cut", "duration": "1ms"})
    assert report.problem == ""
    assert report.evidence == "connections from a worker are dropped; accepted afterwards"
    recorded, cut, *_ = [call for _, call in cluster.calls]
    assert UNDO in recorded
    assert cut.startswith(cluster.policy)
    assert "'ingress': []" in cut
    assert cluster.objects[cluster.policy]["spec"] == {"ingress": INGRESS}
    assert cluster.objects[ROOT]["metadata"]["annotations"] == {f"{UNDO}-np-1": None}


class Scales:
    """Events of one load that scale its target, which has two replicas."""

    def __init__(self) -> None:
        plan = planned({"do": "scale", "replicas": 5})
        self.cluster = PlayedCluster(plan.identity.name("target"))
        self._perform = DeploymentEvents(self.cluster.typed, plan, namespace=NAMESPACE).perform
        self._load: list[asyncio.Task[None]] = []

    async def begin(self, replicas: int, **more: str) -> EventRun:
        """Begin an event. Without a duration, it lasts until the load ends."""
        changed = asyncio.Event()
        event = {"at": 0, "do": "scale", "replicas": replicas, **more}
        run = EventRun(0, Event.model_validate(event), changed=changed)
        self._load.append(asyncio.create_task(run.carry_out(self._perform), name="event"))
        while not run.report.evidence:
            await changed.wait()
            changed.clear()
        assert run.report.evidence.startswith(f"{replicas} pods exist")
        return run

    async def end_load(self) -> None:
        for task in self._load:
            task.cancel()
        await asyncio.gather(*self._load, return_exceptions=True)

    async def until_over(self) -> None:
        """Wait for the end of the last event."""
        await self._load[-1]

    @property
    def records(self) -> tuple[str | None, str | None]:
        """Return the undo records on the stack's root and on the Deployment."""
        root, found = (
            self.cluster.objects[path]["metadata"]["annotations"]
            for path in (ROOT, self.cluster.deployment)
        )
        return root[f"{UNDO}-d-1"], found[UNDO]


async def test_scale_without_duration_lasts_until_the_load_ends() -> None:
    scales = Scales()
    runs = [await scales.begin(replicas) for replicas in (5, 3)]
    await scales.end_load()
    assert len(scales.cluster.pods) == 2
    assert scales.records == (None, None)
    for run in runs:
        # The event has no end, so the rest of the load is measured with these replicas.
        assert (run.report.problem, run.report.end_wall_ns, run.report.is_over) == ("", 0, True)


async def test_timed_scale_keeps_the_lasting_record() -> None:
    scales = Scales()
    await scales.begin(5)
    records = scales.records
    timed = await scales.begin(3, duration="1ms")
    await scales.until_over()
    assert (timed.report.problem, timed.report.evidence) == ("", "3 pods exist; 5 again afterwards")
    assert (len(scales.cluster.pods), scales.records) == (5, records)
    await scales.end_load()
    assert (len(scales.cluster.pods), scales.records) == (2, (None, None))


async def test_load_end_undoes_a_scale_inside_another() -> None:
    scales = Scales()
    await scales.begin(5)
    await scales.begin(3, duration="1h")
    await scales.end_load()
    assert (len(scales.cluster.pods), scales.records) == (2, (None, None))


async def test_change_not_undone_is_no_original() -> None:
    event = {"do": "scale", "replicas": 5, "duration": "1ms"}
    plan = planned(event)
    cluster = PlayedCluster(plan.identity.name("target"))
    cluster.objects[cluster.deployment]["metadata"]["labels"] = {UNDO: "other"}
    report, _ = await carry_out(event, plan, cluster)
    assert report.problem.endswith("is not undone yet; if its run is gone: aiperf-svc gc other")
    assert cluster.calls == []


async def test_restart_replaces_every_pod() -> None:
    report, _ = await carry_out({"do": "restart"})
    assert report.problem == ""
    assert report.evidence.count("UID") == 2


async def test_deployment_without_the_stacks_label_is_untouched() -> None:
    event = {"do": "delete-pod", "deployment": "other"}
    cluster = PlayedCluster("other")
    cluster.objects[cluster.deployment]["metadata"]["labels"] = {}
    report, _ = await carry_out(event, planned(event, **GUEST), cluster)
    assert report.problem == "Deployment other lacks the label of this stack"
    assert cluster.calls == []


async def test_server_as_process_1_gets_no_signal() -> None:
    report, _ = await carry_out({"do": "kill"})
    assert "set shareProcessNamespace: true" in report.problem


async def undo(uid: str) -> tuple[bool, Any]:
    cluster = PlayedCluster("d")
    await CORDON.change(cluster.typed, "bench", {"unschedulable": True})
    found = await Undo(kind="uncordon", name="node-1", uid=uid).carry_out(cluster.typed)
    return found, cluster.objects[NODE]["spec"]["unschedulable"]


async def test_only_the_cordoned_node_is_uncordoned() -> None:
    assert await undo("n-1") == (True, None)
    assert await undo("n-2") == (False, True)
    gone = Undo(kind="uncordon", name="node-9", uid="n-9")
    assert not await gone.carry_out(PlayedCluster("d").typed)


async def test_undo_is_repeated_while_the_server_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_undo, "POLL_S", 0.0)
    cluster, lost = PlayedCluster("d"), Unreachable("no response")
    await CORDON.change(cluster.typed, "bench", {"unschedulable": True})
    cluster.failures = [lost, Refused("leader changed", status=500, reason=""), lost]
    assert await CORDON.carry_out(cluster.typed)
    assert cluster.objects[NODE]["spec"] == {"unschedulable": None}
    cluster.failures = [Refused("not allowed", status=403, reason="Forbidden")]
    with pytest.raises(Refused, match="not allowed"):
        await CORDON.carry_out(cluster.typed)


async def test_unlisted_changes_are_unknown() -> None:
    cluster = PlayedCluster("d")
    cluster.failures = [Refused("leader changed", status=500, reason="")]
    with pytest.raises(Refused, match="leader changed"):
        await changed_objects(cluster.typed)
    assert await changed_objects(cluster.typed) == []


async def test_node_that_others_cordoned_stays_cordoned() -> None:
    cluster = PlayedCluster("d")
    cluster.objects[NODE]["spec"]["unschedulable"] = True
    assert not await CORDON.carry_out(cluster.typed)
    assert cluster.objects[NODE]["spec"]["unschedulable"]


@pytest.mark.parametrize(("text", "notes"), [("", 0), ("{}", 1), ("no json", 1)])
async def test_unreadable_undo_record_changes_nothing(text: str, notes: int) -> None:
    lines: list[str] = []
    cluster = PlayedCluster("d")
    root = ObjectRef(
        kind="Namespace", namespace="", name=NAMESPACE, uid="u", path=ROOT, annotations={UNDO: text}
    )
    await undo_recorded(cluster.typed, [root], lines.append)
    assert len(lines) == notes
    assert cluster.calls == []


async def test_record_on_a_changed_object_outlives_the_stack() -> None:
    cluster = PlayedCluster("d")
    await CORDON.change(cluster.typed, "bench", {"unschedulable": True})
    cluster.objects["/api/v1/nodes"] = {"items": [cluster.objects[NODE]]}
    assert await changed_objects(cluster.typed) == [("bench", CORDON)]
    assert await CORDON.carry_out(cluster.typed)
    assert cluster.objects[NODE]["spec"] == {"unschedulable": None}


async def test_each_recorded_event_is_undone_once() -> None:
    cluster, lines = PlayedCluster("d"), list[str]()
    scale = Undo(kind="scale", name="d", namespace=NAMESPACE, uid="d-1", replicas=4)
    admit = Undo(kind="admit", name="d", namespace=NAMESPACE, uid="np-1", ingress=INGRESS)
    undos = (CORDON, scale, admit)
    for undo in undos:
        await undo.change(cluster.typed, "bench", dict.fromkeys(undo.spec, 7))
        await record_undo(cluster.typed, ROOT, undo.key, undo.encoded)
    annotations = cluster.objects[ROOT]["metadata"]["annotations"]
    for _ in range(2):
        root = ObjectRef(
            kind="Namespace", namespace="", name=NAMESPACE, uid="u", path=ROOT,
            annotations={**annotations},
        )  # fmt: skip
        await undo_recorded(cluster.typed, [root], lines.append)
    assert lines == [
        "an event was not undone: node node-1 is uncordoned",
        "an event was not undone: Deployment ns/d is scaled to 4 again",
        "an event was not undone: NetworkPolicy ns/d admits connections again",
    ]
    for undo in undos:
        spec = cluster.objects[undo.path]["spec"]
        assert {key: spec[key] for key in undo.spec} == undo.spec
    assert annotations == dict.fromkeys(undo.key for undo in undos)


class FakePackets:
    """The command in a pod that disturbs packets, with this output."""

    def __init__(self, *lines: str) -> None:
        self._lines, self.sent, self.commands = list(lines), list[str](), list[tuple[str, ...]]()

    @contextlib.asynccontextmanager
    async def __call__(
        self, cluster: Any, namespace: str, pod: str, container: str, command: tuple[str, ...]
    ) -> AsyncIterator["FakePackets"]:
        self.commands.append((container, *command))
        yield self

    async def send(self, line: str) -> None:
        self.sent.append(line)

    async def line(self) -> str:
        return self._lines.pop(0)


async def test_lost_connection_to_a_command_fails_its_event() -> None:
    class Lost:
        async def send_bytes(self, _: bytes) -> None:
            raise ConnectionResetError("Cannot write to closing transport")

    with pytest.raises(EventFailed, match="pod p: the connection to the command is lost"):
        await PodCommand(cast(Any, Lost()), "pod p").send("go")


@pytest.mark.parametrize(
    ("server", "sidecar", "evidence", "problem"),
    [
        (1, 5, "restartCount is higher", ""),
        (0, 6, "", "not verified within 0 s: no container of pod p-1 restarted"),
    ],
)
async def test_only_restart_of_server_verifies_its_kill(
    server: int, sidecar: int, evidence: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned({"do": "kill"})
    cluster = PlayedCluster(plan.identity.name("target"))

    def restarted(server: int, sidecar: int) -> Json:
        """Return its pod with these restart counts."""
        counts = {"sidecar": sidecar, "server": server}
        statuses = [{"name": name, "restartCount": count} for name, count in counts.items()]
        pod = cluster.pods[0]
        return {
            **pod,
            "spec": {**pod["spec"], "shareProcessNamespace": True},
            "status": {**pod["status"], "containerStatuses": statuses},
        }

    class Kill(FakePackets):
        async def send(self, line: str) -> None:
            cluster.pods = [restarted(server, sidecar)]

    cluster.pods = [restarted(0, 5)]
    monkeypatch.setattr(deployments, "pod_command", Kill())
    monkeypatch.setattr(deployments, "REPLACED_S", 0.0)
    report, _ = await carry_out({"do": "kill"}, plan, cluster)
    assert (report.evidence, report.problem) == (evidence, problem)


DELAY = {"do": "delay", "duration": "1ms", "latency": "50ms"}
LOSS = {"do": "loss", "duration": "1ms", "loss": "1%"}


@pytest.mark.parametrize(
    ("event", "lines", "evidence", "problem"),
    [
        (DELAY, ("on", "off 900 0"), "netem passed on 900 packets and dropped 0; removed", ""),
        (LOSS, ("on", "off 900 12"), "netem passed on 900 packets and dropped 12; removed", ""),
        (DELAY, ("on", "off 0 0"), "", "not verified: netem passed on 0 packets"),
        (LOSS, ("on", "off 900 0"), "", "not verified: netem passed on 900 packets and dropped 0"),
        (DELAY, ("interface eth0 has one",), "", "interface eth0 has one"),
    ],
)
async def test_packets_are_verified_by_the_counts_of_netem(
    event: dict[str, Any],
    lines: tuple[str, ...],
    evidence: str,
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    packets = FakePackets(*lines)
    monkeypatch.setattr(deployments, "pod_command", packets)
    report, _ = await carry_out(event)
    assert report.evidence.startswith(evidence)
    assert bool(report.evidence) is bool(evidence)
    assert report.problem.startswith(problem)
    assert bool(report.problem) is bool(problem)
    ((container, *command),) = packets.commands
    assert container == "network"
    assert command[-2:] == (["50000000", "0.0"] if event is DELAY else ["0", "0.01"])
    assert packets.sent[0] == "31"  # The command ends by itself after this many seconds.


# --- before the stack is created -----------------------------------------------------------------


FOREIGN = {"deployment": "prod/vllm", "foreign": True}


@pytest.mark.parametrize(
    ("event", "rights"),
    [
        ({"do": "delete-pod"}, {"delete pods", "list pods", "get deployments.apps"}),
        ({"do": "scale", "replicas": 3}, {"patch deployments.apps", "list replicasets.apps"}),
        ({"do": "kill"}, {"get pods/exec", "create pods/exec"}),
        ({"do": "drain", "duration": "1s"}, {"create pods/eviction", "patch nodes", "get nodes"}),
    ],
)
def test_rights_of_each_event_are_checked(event: dict[str, Any], rights: set[str]) -> None:
    plan = planned(event)
    needed = event_rights(plan)
    assert rights <= set(map(str, needed))
    check = judge_rights(plan, frozenset(needed))
    assert check.state == "failed"
    assert str(needed[-1]) in check.detail


def test_rights_of_events_are_no_types_of_stacks() -> None:
    plan = planned({"do": "kill"}, {"at": "40s", "do": "evict"})
    assert made_types([plan]) == made_types([planned()])


def test_rights_on_others_are_in_their_namespace() -> None:
    needed = event_rights(planned({"do": "delete-pod", **FOREIGN}))
    assert {right.namespace for right in needed} == {"prod"}


async def test_missing_deployment_is_found_before_the_stack() -> None:
    plan = planned({"do": "delete-pod", **FOREIGN})
    check = await check_events(FakeCluster().typed, plan)
    assert check is not None
    assert check.state == "failed"
    assert check.detail == "events: number 1 (delete-pod): there is no Deployment prod/vllm"


async def test_deployment_ignoring_signals_is_refused() -> None:
    found: Json = {"spec": {"template": {"spec": {}}}}
    cluster = FakeCluster({"/apis/apps/v1/namespaces/prod/deployments/vllm": found})
    check = await check_events(cluster.typed, planned({"do": "kill", **FOREIGN}))
    assert check is not None
    assert "is process 1 of its pods" in check.detail


RELEASE_EVENT = {"at": "20s", "do": "kill"}


@pytest.mark.parametrize(
    ("more", "shares", "detail"),
    [
        ({"deployment": "rooter"}, True, "has no Deployment rooter; did you mean router?"),
        ({"deployment": "router"}, False, "the server of Deployment router is process 1"),
        ({"pool": "decode"}, False, "the server of pool decode is process 1"),
        ({"deployment": "router"}, True, "kill: 5 rights"),
        ({"pool": "decode"}, True, "kill: 3 rights"),
    ],
)
async def test_events_of_release_are_checked_before_the_stack(
    more: dict[str, str], shares: bool, detail: str
) -> None:
    check = await check_events(FakeCluster().typed, release_with(more, shares=shares))
    assert check is not None
    assert detail in check.detail


def release_with(
    more: dict[str, str], *, shares: bool, objects: tuple[Json, ...] = ()
) -> StackPlan:
    """Return a release of a router and a pool, with an event."""
    spec = {"shareProcessNamespace": True} if shares else {}
    made = (deployment("router", **spec), deployment("decode", **spec), *objects)
    config = release_config().model_dump(exclude_defaults=True, by_alias=True) | {
        "load": {"request_rate": 10, "duration": "50m"},
        "events": [RELEASE_EVENT | more],
    }
    return to_plan(BenchmarkConfig.model_validate(config), render=rendering(*made))


async def test_deployment_of_an_operator_may_be_unknown() -> None:
    plan = release_with({"deployment": "graph-decode"}, shares=True, objects=(graph(),))
    check = await check_events(FakeCluster().typed, plan)
    assert check is not None
    assert check.state == "ok"


async def test_pods_of_a_pool_are_found_by_label() -> None:
    plan = release_with({"pool": "decode"}, shares=True)
    cluster = PlayedCluster("d")
    cluster.strangers = []
    event = {"do": "delete-pod", "pool": "decode", "pick": "all"}
    report, _ = await carry_out(event, plan, cluster)
    assert report.problem == ""
    assert set(cluster.selectors) == {"role=decode"}


async def test_server_of_a_pool_is_identified_by_port(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, command = PlayedCluster("d"), FakePackets("started", "100")
    served = {"name": "engine", "ports": [{"containerPort": 9090}]}
    pod = cluster.pods[0]
    pod["spec"]["containers"] = [{"name": "proxy"}, served]
    cluster.pods, cluster.strangers = [pod], []
    monkeypatch.setattr(deployments, "pod_command", command)
    event = {"do": "cpu", "cores": 1, "duration": "1ms", "pool": "decode"}
    report, _ = await carry_out(event, release_with({"pool": "decode"}, shares=True), cluster)
    assert report.problem == ""
    assert command.commands[0][0] == "engine"


@pytest.mark.parametrize("do", ["restart", "cut"])
def test_event_unsupported_for_pools_is_refused(do: str) -> None:
    event = {"at": "20s", "do": do, "pool": "decode", **({"duration": "1s"} if do == "cut" else {})}
    with pytest.raises(ValueError, match=re.escape("{pool} is for {do} delete-pod, evict, drain")):
        Event.model_validate(event)


def test_unknown_pool_is_refused() -> None:
    config = stack_config({"do": "delete-pod", "pool": "decode"})
    (problem,) = workload_of(config).cluster_problems(config)
    assert str(problem.text) == "'decode': no pool of deployment.target; it has none"


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [
        ({"replicas": 1}, {"replicas": 3}, ["events.0.replicas"]),
        ({"replicas": 3}, {"replicas": 1}, []),
        ({"replicas": 3}, {"replicas": 3}, ["events.1.replicas"]),
        ({"replicas": 3, "duration": "1s"}, {"replicas": 3}, []),
    ],
)
def test_scale_without_a_change_is_refused(
    first: dict[str, Any], second: dict[str, Any], refused: list[str]
) -> None:
    events = ({"do": "scale", **first}, {"at": "60s", "do": "scale", **second})
    config = stack_config(*events)
    assert [each.key for each in workload_of(config).cluster_problems(config)] == refused


def test_pod_event_needs_a_target_in_the_stack() -> None:
    config = stack_config({"do": "delete-pod"}, target={"kind": "none"})
    (problem,) = workload_of(config).cluster_problems(config)
    assert "there is no Deployment to act on" in problem.text


@pytest.mark.parametrize("event", [DELAY, LOSS], ids=["delay", "loss"])
def test_packets_are_disturbed_beside_the_server(event: dict[str, Any]) -> None:
    plan = planned(event)
    assert plan.target is not None
    found = [(each.name, each.args, each.is_sidecar) for each in plan.target.preparations]
    assert found == [
        ("network-check", ("netem", "check"), False),
        ("network", ("netem", "wait"), True),
    ]
    for each in plan.target.preparations:
        assert (each.capabilities, each.run_as_root) == (("NET_ADMIN",), True)
    assert plan.pod_security == "privileged"
    assert not plan.target.run_as_root
    assert planned({"do": "restart"}).target.preparations == ()  # type: ignore[union-attr]


def test_packets_of_a_release_are_refused() -> None:
    config = release_config().model_dump(exclude_defaults=True, by_alias=True)
    config |= {"load": {"request_rate": 10, "duration": "50m"}, "events": [{"at": "20s", **LOSS}]}
    parsed = BenchmarkConfig.model_validate(config)
    (problem,) = workload_of(parsed).cluster_problems(parsed)
    assert "deployment.target.kind to mock, vllm or custom" in problem.text


def test_preview_names_each_event() -> None:
    config = stack_config({"do": "delete-pod"}, {"at": "40s", "do": "restart", **FOREIGN})
    shown = dict(inference_rows(config))["events"]
    assert shown == "delete-pod target at 20s, restart prod/vllm at 40s"


def test_own_target_can_be_signalled_and_evicted() -> None:
    plan = planned({"do": "stall", "duration": "1s"}, {"at": "40s", "do": "evict"})
    assert plan.target is not None
    assert plan.target.shares_processes
    assert plan.budget is not None
    assert plan.budget.leaves_out == ("target",)
    assert planned({"do": "delete-pod"}).budget.leaves_out == ()  # type: ignore[union-attr]
