"""Images of an experiment in blocks are on one node before the first trial."""

import pytest

from aiperf_svc.adapters.cluster.api.connection import Refused
from aiperf_svc.adapters.cluster.preflight.images import PulledImages, pull_images
from aiperf_svc.domain.errors import EnvironmentProblem
from aiperf_svc.plan.pods import VISIT_ANNOTATION
from aiperf_svc.plan.stack import StackPlan
from aiperf_svc.plan.target import in_visit
from tests.support.fake_cluster import FakeCluster, Json
from tests.support.plans import make_plan

NODES = {"/api/v1/nodes/n7": {"metadata": {"labels": {"kubernetes.io/hostname": "host-7"}}}}
DIGEST = "registry.example/server@sha256:ab"


def plan_of(image: str) -> StackPlan:
    target = {"kind": "custom", "image": image, "gpu": {"count": 2, "type": "H100"}, "cpu": 8}
    return make_plan(url="http://target", target=target, namespace=EXISTING)


EXISTING = {"mode": "existing", "name": "lab"}


class Scheduling(FakeCluster):
    """Schedules each pod on node n7, where its image has a digest or cannot be pulled."""

    def __init__(self, waiting: str = "") -> None:
        super().__init__(dict(NODES), open_to=("lab",))
        self.pods: list[Json] = []
        state = {"waiting": {"reason": waiting, "message": "manifest unknown"}}
        self._statuses = [{"name": "preflight", "state": state, "imageID": ""}]
        if not waiting:
            self._statuses = [{"name": "preflight", "imageID": f"docker-pullable://{DIGEST}"}]

    async def post(self, path: str, body: Json, **params: str) -> Json:
        made = await super().post(path, body, **params)
        if body["kind"] == "Pod" and not params:
            self.pods.append(body)
        return made

    async def get(self, path: str, **params: str) -> Json:
        if "/pods/" not in path:
            return await super().get(path, **params)
        if not self.pods_made:
            raise Refused("gone", status=404, reason="NotFound")
        status = {"phase": "Pending", "containerStatuses": self._statuses}
        pod = self.pods[-1]
        return {**pod, "spec": {**pod["spec"], "nodeName": "n7"}, "status": status}


async def test_first_image_finds_the_node_of_all() -> None:
    cluster, plans = Scheduling(), [plan_of("a:1"), plan_of("b:1"), plan_of("a:1")]
    found = await pull_images(cluster.typed, plans, namespace="lab")
    assert found == PulledImages("host-7", {"a:1": DIGEST, "b:1": DIGEST})
    first, second = (pod["spec"] for pod in cluster.pods)
    resources = first["containers"][0]["resources"]
    assert resources["requests"]["cpu"] == "8"
    assert resources["limits"]["nvidia.com/gpu"] == "2"
    assert first["nodeSelector"] == {"nvidia.com/gpu.product": "H100"}
    assert "nodeName" not in first
    assert (second["nodeName"], second["containers"][0]["image"]) == ("n7", "b:1")
    assert "nvidia.com/gpu" not in second["containers"][0]["resources"]["limits"]
    assert cluster.pods_made == []


async def test_resumed_experiment_keeps_its_node() -> None:
    cluster = Scheduling()
    found = await pull_images(cluster.typed, [plan_of("a:1")], namespace="lab", node="host-3")
    assert isinstance(found, PulledImages)
    assert found.node == "host-3"
    (spec,) = (pod["spec"] for pod in cluster.pods)
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (expression,) = required["nodeSelectorTerms"][0]["matchExpressions"]
    assert (expression["key"], expression["values"]) == ("kubernetes.io/hostname", ["host-3"])


async def test_node_of_the_first_image_replaces_required_ones() -> None:
    cluster = Scheduling()
    plans = [plan_of("a:1"), plan_of("b:1")]
    await pull_images(cluster.typed, plans, namespace="lab", node="host-3")
    assert ["affinity" in pod["spec"] for pod in cluster.pods] == [True, False]


async def test_missing_image_ends_the_experiment_before_it_begins() -> None:
    cluster = Scheduling("InvalidImageName")
    with pytest.raises(EnvironmentProblem, match="image a:1 cannot be pulled"):
        await pull_images(cluster.typed, [plan_of("a:1")], namespace="lab")
    assert cluster.pods_made == []


async def test_forbidden_image_pull_pod_is_no_failure() -> None:
    cluster = FakeCluster(denied=("create pods",))
    found = await pull_images(cluster.typed, [plan_of("a:1")], namespace="lab")
    assert found == "no pod may be created for it"


def test_visits_differ_and_keep_their_node() -> None:
    target = plan_of("a:1").target
    assert target is not None
    first, second = (in_visit(target, node="host-7", visit=run) for run in ("r1", "r2"))
    assert first != second
    assert first.placement.require_nodes == {"kubernetes.io/hostname": ("host-7",)}
    assert second.annotations[VISIT_ANNOTATION] == "r2"
    assert first.image.pull_policy == "IfNotPresent"
