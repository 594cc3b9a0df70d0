"""The objects of ranks: placement, container permissions, and what is deleted with them."""

from typing import Any

import pytest

from tests.support.recording import Manifest, Recording, record

COMMAND = {
    "kind": "command",
    "image": "registry.example/tool:1",
    "command": ["true"],
    "ranks": 2,
    "duration": "10s",
    "metrics": {"time": {"unit": "s", "pattern": "([0-9]+)"}},
}


def recorded(workload: dict[str, Any] | None = None, **ranks: Any) -> Recording:
    benchmark = {"workload": {**COMMAND, **(workload or {})}, "deployment": {"ranks": ranks}}
    return record("s", {"aiperf:benchmark": benchmark}, secrets={"aiperf:hubToken": "secret"})


@pytest.fixture(scope="module")
def anywhere() -> Recording:
    """Return ranks on any nodes, with a network, devices and a secret in their containers."""
    return recorded(
        {"secret_env": {"TOKEN": "hubToken"}},
        nodes="any",
        mtu=9000,
        network={"name": "net/fast", "attach": "additional"},
        devices={"rdma/hca": 1},
    )


@pytest.fixture(scope="module")
def apart() -> Recording:
    """Return ranks on separate nodes, each with a claim."""
    volume = {"kind": "claim", "size": "3Gi", "storage_class": "fast"}
    return recorded(nodes="apart", volume=volume)


@pytest.fixture(scope="module")
def together() -> Recording:
    """Return ranks on one node that share one claim."""
    return recorded(nodes="together", volume={"kind": "shared-claim"})


@pytest.fixture(scope="module")
def on_named_nodes() -> Recording:
    """Return a rank on each of two nodes, with a folder of the node."""
    return recorded(nodes=["a", "b"], volume={"kind": "host-path", "path": "/mnt/nvme"})


def pod_of(made: Recording, name: str = "rank-s") -> Manifest:
    template: Manifest = made.manifest("StatefulSet", name)["spec"]["template"]
    return template


def container(pod: Manifest, name: str, *, kind: str = "containers") -> Manifest:
    return next(each for each in pod["spec"][kind] if each["name"] == name)


def test_ranks_have_stable_names_and_start_together(anywhere: Recording) -> None:
    spec = anywhere.manifest("StatefulSet", "rank-s")["spec"]
    assert (spec["replicas"], spec["podManagementPolicy"]) == (2, "Parallel")
    service = anywhere.manifest("Service", spec["serviceName"])["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert service["selector"].items() <= pod_of(anywhere)["metadata"]["labels"].items()


def test_apart_and_together_are_required_rules(
    apart: Recording, together: Recording, anywhere: Recording
) -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    for made, kind in ((apart, "podAntiAffinity"), (together, "podAffinity")):
        (term,) = pod_of(made)["spec"]["affinity"][kind][required]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        assert term["labelSelector"]["matchLabels"]["app.kubernetes.io/component"] == "rank"
    assert "affinity" not in pod_of(anywhere)["spec"]


def test_rank_on_named_node_is_own_set(on_named_nodes: Recording) -> None:
    for number, node in enumerate("ab"):
        name = f"rank-{number}-s"
        spec = on_named_nodes.manifest("StatefulSet", name)["spec"]
        pod = pod_of(on_named_nodes, name)
        affinity = pod["spec"]["affinity"]["nodeAffinity"]
        (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        fields = {"key": "metadata.name", "operator": "In", "values": [node]}
        assert term == {"matchFields": [fields]}
        ids = {"name": "AIPERF_SERVICE_ID", "value": f"rank-s-{number}"}
        environment = container(pod, "courier")["env"]
        assert [e for e in environment if e["name"] == ids["name"]] == [ids]
        assert spec["selector"]["matchLabels"]["aiperf.dev/set"] == f"rank-{number}"
        assert spec["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_claim_of_each_rank_is_deleted_with_set(apart: Recording) -> None:
    spec = apart.manifest("StatefulSet", "rank-s")["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    assert claim["metadata"]["labels"]["aiperf.dev/stack"] == "s"
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "3Gi"}},
    }
    retention = spec["persistentVolumeClaimRetentionPolicy"]
    assert retention == {"whenDeleted": "Delete", "whenScaled": "Delete"}


def test_shared_claim_is_one_that_all_ranks_mount(together: Recording) -> None:
    claim = together.manifest("PersistentVolumeClaim", "volume-s")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    volumes = pod_of(together)["spec"]["volumes"]
    assert {"name": "volume", "persistentVolumeClaim": {"claimName": "volume-s"}} in volumes


def test_host_path_directory_must_exist(on_named_nodes: Recording) -> None:
    pod = pod_of(on_named_nodes, "rank-0-s")
    there = {"name": "volume", "hostPath": {"path": "/mnt/nvme", "type": "Directory"}}
    assert there in pod["spec"]["volumes"]
    assert pod["spec"]["securityContext"]["runAsUser"] == 0


def test_only_mtu_init_container_is_root(anywhere: Recording) -> None:
    pod = pod_of(anywhere)
    mtu = container(pod, "mtu", kind="initContainers")["securityContext"]
    assert (mtu["runAsUser"], mtu["runAsNonRoot"]) == (0, False)
    assert mtu["capabilities"] == {"drop": ["ALL"], "add": ["NET_ADMIN"]}
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    for each in pod["spec"]["containers"]:
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_network_status_is_a_courier_file(anywhere: Recording) -> None:
    pod = pod_of(anywhere)
    (volume,) = (v for v in pod["spec"]["volumes"] if "downwardAPI" in v)
    (file,) = volume["downwardAPI"]["items"]
    field = "metadata.annotations['k8s.v1.cni.cncf.io/network-status']"
    assert file["fieldRef"]["fieldPath"] == field
    environment = {e["name"]: e.get("value") for e in container(pod, "courier")["env"]}
    assert environment["AIPERF_NETWORK_STATUS"] == f"/etc/aiperf-network/{file['path']}"
    assert "k8s.v1.cni.cncf.io/networks" in pod["metadata"]["annotations"]


def test_devices_are_requested_and_limited(anywhere: Recording) -> None:
    rank = container(pod_of(anywhere), "rank")
    for bound in ("requests", "limits"):
        assert rank["resources"][bound]["rdma/hca"] == "1"


def test_only_courier_reads_workload_secrets(anywhere: Recording) -> None:
    assert anywhere.manifest("Secret", "workload-s")["data"] == {"hubToken": "(secret)"}
    pod = pod_of(anywhere)
    (variable,) = (e for e in container(pod, "courier")["env"] if e["name"] == "TOKEN")
    assert variable["valueFrom"]["secretKeyRef"] == {"key": "hubToken", "name": "workload-s"}
    assert "TOKEN" not in {e["name"] for e in container(pod, "rank")["env"]}
