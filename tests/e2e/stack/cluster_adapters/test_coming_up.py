"""A failed start is reported with its reason, and its evidence is saved."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aiperf_svc.adapters.cluster.api.connection import Cluster
from aiperf_svc.adapters.cluster.evidence import save_evidence
from aiperf_svc.adapters.cluster.watching.startup_watch import wait_for_startup_failure
from tests.support.stack.small_pods import deployment, of_stack, pod

HOPELESS_S = 90.0
SECRET = "c2VjcmV0LXZhbHVl"


async def _make(cluster: Cluster, space: str, stack: str, manifest: dict[str, Any]) -> None:
    path = f"/apis/apps/v1/namespaces/{space}/deployments"
    await cluster.post(path, deployment(manifest, stack))


async def _why(cluster: Cluster, space: str, stack: str) -> str:
    async with asyncio.timeout(HOPELESS_S):
        return await wait_for_startup_failure(
            cluster, namespace=space, stack=stack, unschedulable_s=1.0
        )


@pytest.mark.parametrize(
    ("flaw", "message"),
    [
        ({"image": "localhost:9/none:1"}, "image 'localhost:9/none:1' cannot be pulled"),
        ({"image": "Not An Image"}, "image 'Not An Image': InvalidImageName"),
        ({"image": "localhost/none:1", "imagePullPolicy": "Never"}, "ErrImageNeverPull"),
        (
            {"envFrom": [{"secretRef": {"name": "absent"}}]},
            'cannot start its container: CreateContainerConfigError: secret "absent" not found',
        ),
    ],
    ids=["no registry", "no such name", "never pulled", "no Secret"],
)
async def test_container_that_cannot_start_is_reported(
    connected: Cluster, space: str, stack: str, image: str, flaw: dict[str, Any], message: str
) -> None:
    await _make(connected, space, stack, pod("flawed", image, container=flaw))
    line = await _why(connected, space, stack)
    assert line.startswith("pod flawed-")
    assert message in line


async def test_unplaced_pod_is_reported_with_the_reason(
    connected: Cluster, space: str, stack: str, image: str
) -> None:
    manifest = pod("homeless", image, nodeSelector={"aiperf.test/none": "x"})
    await _make(connected, space, stack, manifest)
    line = await _why(connected, space, stack)
    assert "fits on no node" in line
    assert "didn't match Pod's node affinity/selector" in line


async def test_pods_refused_by_a_quota_are_reported(
    connected: Cluster, space: str, stack: str, image: str
) -> None:
    quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
    await connected.post(f"/api/v1/namespaces/{space}/resourcequotas", quota)
    await _make(connected, space, stack, pod("refused", image))
    line = await _why(connected, space, stack)
    assert line.startswith("Deployment refused cannot create its pods")
    assert "exceeded quota: none" in line


async def test_crashing_pod_is_reported_and_its_log_saved(
    connected: Cluster, space: str, stack: str, image: str, tmp_path: Path
) -> None:
    secret = of_stack({"metadata": {"name": "keys"}, "data": {"token": SECRET}}, stack)
    await connected.post(f"/api/v1/namespaces/{space}/secrets", secret)
    program = "import sys; print('last words', flush=True); sys.exit(7)"
    await _make(connected, space, stack, pod(f"crashing-{stack}", image, program))
    line = await _why(connected, space, stack)
    assert "has crashed 2 times, last with Error, exit code 7" in line

    written = await save_evidence(connected, namespace=space, stack=stack, folder=tmp_path)
    assert all(path.is_file() for path in written)
    names = {str(path.relative_to(tmp_path)) for path in written}
    assert {"containers.txt", "events.txt", f"objects/deployment-crashing-{stack}.yaml"} <= names
    # The kubelet keeps the log of one ended container: this one or the one before.
    logs = [path.read_text() for path in written if path.parent.name == "logs"]
    assert any("last words" in log for log in logs)
    assert "terminated: exitCode=7" in (tmp_path / "containers.txt").read_text()
    assert "BackOff" in (tmp_path / "events.txt").read_text()
    assert "token: (hidden)" in (tmp_path / "objects/secret-keys.yaml").read_text()
    assert not any(SECRET in path.read_text() for path in written)


async def test_missing_evidence_does_not_stop_the_teardown(
    connected: Cluster, stack: str, tmp_path: Path
) -> None:
    await save_evidence(connected, namespace=f"none-{stack}", stack=stack, folder=tmp_path)
    assert "not found" in (tmp_path / "not-saved.txt").read_text()
