"""The CronJob of a stack, its permissions, and the locks of runners in pods."""

from collections.abc import Callable
from typing import Any

import pytest

from aiperf_svc.adapters.cluster.api.connection import Refused
from aiperf_svc.adapters.cluster.preflight.rights import all_rights, watch_rights
from aiperf_svc.adapters.cluster.schedule import (
    Schedule,
    apply,
    check_backend,
    check_cron,
    is_of_ended_pod,
    manifests,
)
from aiperf_svc.adapters.pulumi.cli import Lock
from aiperf_svc.config.artifacts import Artifacts
from aiperf_svc.config.yaml_files import yaml_text
from aiperf_svc.domain.errors import ConfigError, EnvironmentProblem
from aiperf_svc.plan.identity import STACK_LABEL
from aiperf_svc.plan.stack import StackPlan
from tests.support.fake_cluster import FakeCluster
from tests.support.plans import make_config, to_plan
from tests.support.releases import deployment as release_deployment
from tests.support.releases import release_config, release_target, rendering, simple
from tests.support.small_configs import small_config

UID = "0b5c2a4e-7d0e-4a1e-9d55-0123456789ab"
BUCKET = {"url": "s3://benchmarks/nightly"}
GUEST = {"namespace": {"name": "theirs", "mode": "existing"}}


def plan(**deployment: Any) -> StackPlan:
    return to_plan(make_config(s3=BUCKET, target={"kind": "mock"}, **deployment))


def schedule(**keys: Any) -> Schedule:
    defaults: dict[str, Any] = {
        "cron": "0 3 * * *",
        "time_zone": None,
        "image": "r.io/runner:1",
        "backend": "s3://benchmarks/state",
        "secret": "aiperf-bench",
        "namespace": "theirs",
        "longest_s": 7200,
    }
    return Schedule(**{**defaults, **keys})


def made(*which: StackPlan, **keys: Any) -> dict[str, list[dict[str, Any]]]:
    """Return the objects of a schedule by kind."""
    found: dict[str, list[dict[str, Any]]] = {}
    for each in manifests(which, "config: {}\n", schedule(**keys)):
        found.setdefault(each["kind"], []).append(each)
    return found


def test_runs_never_overlap_and_end_after_the_ttl() -> None:
    (job,) = made(plan(ttl="2h", delete_timeout="5m"))["CronJob"]
    spec, template = job["spec"], job["spec"]["jobTemplate"]["spec"]
    assert (spec["schedule"], spec["concurrencyPolicy"]) == ("0 3 * * *", "Forbid")
    assert spec["startingDeadlineSeconds"] == 600
    assert template["backoffLimit"] == 0
    assert template["activeDeadlineSeconds"] == 7200 + 300 + 900
    assert template["template"]["spec"]["terminationGracePeriodSeconds"] == 300 + 120


def test_runner_is_restricted_without_secrets_in_clear_text() -> None:
    (job,) = made(plan())["CronJob"]
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["envFrom"] == [{"secretRef": {"name": "aiperf-bench"}}]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert env["PULUMI_BACKEND_URL"] == "s3://benchmarks/state"
    assert env["USER"] == "pod.theirs.$(POD_UID)"
    assert not {"PULUMI_CONFIG_PASSPHRASE", "AWS_SECRET_ACCESS_KEY"} & env.keys()


def test_meshes_and_autoscalers_leave_the_runner_alone() -> None:
    (job,) = made(plan())["CronJob"]
    metadata = job["spec"]["jobTemplate"]["spec"]["template"]["metadata"]
    assert metadata["labels"]["sidecar.istio.io/inject"] == "false"
    assert metadata["annotations"] == {
        "linkerd.io/inject": "disabled",
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
    }


def test_guest_needs_rights_only_in_its_namespace() -> None:
    found = made(plan(**GUEST))
    assert {each["metadata"]["namespace"] for each in found["Role"]} == {"theirs"}
    (reads,) = found["ClusterRole"]
    verbs = {verb for rule in reads["rules"] for verb in rule["verbs"]}
    assert verbs == {"get", "list"}


def test_runner_reads_api_server_addresses_only_if_needed() -> None:
    api_server = {("services", "kubernetes"), ("endpointslices", "kubernetes")}
    for own, needed in (
        ({}, api_server),
        ({"api_server_cidrs": ["10.0.0.0/8"]}, set[tuple[str, str]]()),
        ({"network_policies": False}, set[tuple[str, str]]()),
    ):
        (reads,) = made(plan(**GUEST, **own))["ClusterRole"]
        named = {
            (resource, name)
            for rule in reads["rules"]
            for resource in rule["resources"]
            for name in rule.get("resourceNames", ())
        }
        assert named == {("namespaces", "kube-system"), *needed}


def test_stack_with_own_namespace_has_a_cluster_role() -> None:
    found = made(plan(), namespace="ops")
    names = [each["metadata"]["name"] for each in found["ClusterRole"]]
    assert names == ["aiperf-ops-schedule-bench", "aiperf-ops-schedule-bench-reads"]
    bindings = found["ClusterRoleBinding"]
    assert all(each["subjects"][0]["namespace"] == "ops" for each in bindings)


def disturbed(**deployment: Any) -> StackPlan:
    """Return a stack that drains nodes, disturbs a foreign Deployment and watches replicas."""
    vllm = {"deployment": "prod/vllm", "foreign": True}
    pods = {"namespace": "serving", "labels": {"app": "llm"}, "port": 8000}
    return to_plan(
        small_config(
            "http://target",
            load={"request_rate": 10, "duration": "50m"},
            events=[
                {"at": "20s", "do": "drain", "duration": "1s"},
                {"at": "60s", "do": "delete-pod", **vllm},
            ],
            scaling={"pods": pods},
            deployment={"target": {"kind": "mock"}, **deployment},
            artifacts={"s3": BUCKET},
        )
    )


def with_global(**deployment: Any) -> StackPlan:
    """Return a release with a cluster-scoped object."""
    role = simple("ClusterRole", "reader", "rbac.authorization.k8s.io/v1", rules=[])
    target = release_target(cluster_scoped=["ClusterRole/reader"])
    config = release_config(target, **deployment).model_copy(
        update={"artifacts": Artifacts.model_validate({"s3": BUCKET})}
    )
    return to_plan(config, render=rendering(release_deployment("router"), role))


def granted(*which: StackPlan) -> set[tuple[str, str, str, str]]:
    """Return namespace (empty: all), group, resource and verb of the account's permissions."""
    found = made(*which)
    rules = {
        (role["kind"], role["metadata"].get("namespace", ""), role["metadata"]["name"]): role
        for role in (*found.get("Role", ()), *found["ClusterRole"])
    }
    return {
        (where, group, resource, verb)
        for binding in (*found["RoleBinding"], *found["ClusterRoleBinding"])
        for where in [binding["metadata"].get("namespace", "")]
        for rule in rules[binding["roleRef"]["kind"], where, binding["roleRef"]["name"]]["rules"]
        if "resourceNames" not in rule
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.parametrize(
    ("planned", "deployment"),
    [
        (plan, GUEST),
        (plan, {}),
        (plan, GUEST | {"queue": "nightly"}),
        (disturbed, GUEST),
        (disturbed, {}),
        (with_global, {}),
    ],
)
def test_roles_grant_all_rights_that_preflight_checks(
    planned: Callable[..., StackPlan], deployment: dict[str, Any]
) -> None:
    which = planned(**deployment)
    wanted = {right for right in all_rights(which) if right.verb != "escalate"}
    config = which.config.inference
    if config is not None and config.scaling is not None:
        wanted |= {*watch_rights("serving")}
    found = granted(which)
    missing = [
        right
        for right in wanted
        if not any(
            (where, right.group, right.resource, right.verb) in found
            for where in ("", right.namespace)
        )
    ]
    assert missing == []
    assert not any("*" in part for each in found for part in each)


def test_runner_gets_the_rights_of_all_shapes() -> None:
    first, second = plan(), with_global()
    both = granted(first, second)
    assert both == granted(first) | granted(second)
    assert both > granted(first)


def test_guest_may_do_nothing_else_in_the_cluster() -> None:
    everywhere = {each[1:] for each in granted(plan(**GUEST)) if not each[0]}
    assert everywhere == {("", "nodes", "list"), ("scheduling.k8s.io", "priorityclasses", "list")}


def test_runner_that_waits_for_room_sees_all_pods() -> None:
    usual, waits = granted(plan(**GUEST)), granted(plan(**GUEST, wait_for_room="2h"))
    assert waits - usual == {("", "", "pods", "list")}


def test_runner_of_a_queued_stack_sees_the_queue() -> None:
    usual, queued = granted(plan(**GUEST)), granted(plan(**GUEST, queue="nightly"))
    group = "kueue.x-k8s.io"
    assert queued - usual == {
        ("theirs", group, "localqueues", "list"),
        ("theirs", group, "workloads", "get"),
        ("theirs", group, "workloads", "delete"),
    }


def test_objects_of_the_schedule_lack_the_stack_label() -> None:
    for each in manifests([plan(labels={"owner": "me"})], "", schedule()):
        labels = each["metadata"]["labels"]
        assert STACK_LABEL not in labels
        assert labels["owner"] == "me"


def test_jobs_and_their_pods_have_the_users_metadata() -> None:
    which = plan(labels={"owner": "me"}, annotations={"cost-center": "4711"})
    (job,) = made(which)["CronJob"]
    template = job["spec"]["jobTemplate"]
    for each in (job, template, template["spec"]["template"]):
        assert each["metadata"]["labels"]["owner"] == "me"
        assert each["metadata"]["annotations"]["cost-center"] == "4711"
    assert "&" not in yaml_text(job)


def test_schedule_without_a_results_store_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^artifacts.s3: "):
        manifests([to_plan(make_config(target={"kind": "mock"}))], "", schedule())


@pytest.mark.parametrize(
    "text", ["0 3 * * *", "*/15 0-6 1,15 JAN-MAR mon", "@daily", "59 23 31 12 6"]
)
def test_cron_fields_are_accepted(text: str) -> None:
    check_cron(text)


@pytest.mark.parametrize(
    "text", ["", "3", "0 3 * *", "0 3 * * * *", "at three o clock now", "0 3 L * *"]
)
def test_bad_cron_fields_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected five fields"):
        check_cron(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [("60 3 * * *", "minute 60: expected at most 59"), ("0 3 * * 1-7", "weekday 7: expected")],
)
def test_cron_number_beyond_its_field_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_cron(text)


def test_state_on_a_pods_disk_is_refused() -> None:
    check_backend("s3://benchmarks/state?region=eu-central-1")
    for url in ("file:///state", "", "~/state"):
        with pytest.raises(ConfigError, match="--state"):
            check_backend(url)


class Applying(FakeCluster):
    """A cluster in which some kinds exist and one is rejected."""

    def __init__(self, existing: tuple[str, ...] = (), refused: str = "") -> None:
        super().__init__()
        self.calls: list[str] = []
        self._existing, self._refused_kind = existing, refused

    async def apply(self, path: str, body: dict[str, Any], **params: str) -> bool:
        self.calls.append(f"{path} {params.get('dryRun', '')}".strip())
        if body["kind"] == self._refused_kind:
            raise Refused("quota", status=403, reason="Forbidden")
        return body["kind"] not in self._existing


OBJECTS: list[dict[str, Any]] = [
    {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"}},
    {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "b", "namespace": "n"}},
]
PATHS = ["/api/v1/namespaces/n/configmaps/a", "/apis/batch/v1/namespaces/n/cronjobs/b"]
DRY_RUNS = [f"{path} All" for path in PATHS]


async def test_existing_objects_are_changed() -> None:
    cluster = Applying(existing=("CronJob",))
    assert await apply(cluster.typed, OBJECTS) == ["created ConfigMap a", "changed CronJob b"]
    assert cluster.calls == [*DRY_RUNS, *PATHS]


async def test_refused_object_leaves_everything_unchanged() -> None:
    cluster = Applying(refused="CronJob")
    with pytest.raises(EnvironmentProblem, match="nothing was changed: CronJob: quota"):
        await apply(cluster.typed, OBJECTS)
    assert cluster.calls == DRY_RUNS


def pod_object(uid: str = UID, phase: str = "Running") -> dict[str, Any]:
    return {"metadata": {"name": "p", "uid": uid}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("found", "user", "expected"),
    [
        (pod_object(), f"pod.ops.{UID}", False),
        (pod_object(phase="Failed"), f"pod.ops.{UID}", True),
        (pod_object(uid=UID[::-1]), f"pod.ops.{UID}", True),
        (None, f"pod.ops.{UID}", True),
        (None, "root", False),
        (None, "pod.ops.p", False),
    ],
)
async def test_lock_holder_has_ended_with_its_pod(
    found: dict[str, Any] | None, user: str, expected: bool
) -> None:
    objects = {"/api/v1/namespaces/ops/pods/p": found} if found else {}
    lock = Lock(user=user, host="p", pid=7, at="")
    assert await is_of_ended_pod(FakeCluster(objects).typed, lock) is expected
