"""The stack file declares who owns a namespace, and the runner checks this in the cluster."""

import secrets
from collections.abc import Callable

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.running_command import FINISHED
from tests.support.stack import owners
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import RUN, Runner
from tests.support.stack.real_stack import Config

pytestmark = pytest.mark.cluster


def set_namespace(runner: Runner, *, mode: str, name: str) -> None:
    """Set the namespace in the stack's file."""
    where = {"mode": mode, "name": name}
    runner.change(lambda benchmark: benchmark["deployment"].update(namespace=where))


def test_namespace_of_another_owner_is_refused(
    cluster: Cluster, make_runner: Callable[[], Runner], owners_namespace: str
) -> None:
    runner = make_runner()
    set_namespace(runner, mode="create", name=owners_namespace)
    before = owners.state(cluster, owners_namespace)
    ended = runner.run()
    assert ended.code == ExitCode.ERROR
    assert f"namespace: {owners_namespace} exists" in ended.errors
    assert "use mode: existing" in ended.errors
    assert owners.state(cluster, owners_namespace) == before
    assert cluster.of_stack(runner.name) == []


def test_missing_namespace_is_refused_and_not_created(
    cluster: Cluster, make_runner: Callable[[], Runner]
) -> None:
    runner, absent = make_runner(), f"absent-{secrets.token_hex(3)}"
    set_namespace(runner, mode="existing", name=absent)
    ended = runner.run()
    assert ended.code == ExitCode.ERROR
    assert f"namespace: {absent} does not exist" in ended.errors
    assert absent not in {found["metadata"]["name"] for found in cluster.objects("namespaces")}


def test_named_namespace_and_custom_server_are_removed(
    cluster: Cluster, image: str, make_runner: Callable[[], Runner]
) -> None:
    runner, name = make_runner(), f"made-{secrets.token_hex(3)}"
    set_namespace(runner, mode="create", name=name)
    port, command = 9123, ["python", "-m", "aiperf_svc.mock_server"]
    args = ["--host", "0.0.0.0", "--port", str(port), "--ttft", "20ms", "--tokens", "16"]

    def with_a_server(benchmark: Config) -> None:
        # Long enough that it still runs when the last pod is ready.
        benchmark["load"]["duration"] = "45s"
        benchmark["deployment"]["target"] = {
            "kind": "custom",
            "image": image,
            "command": command,
            "args": args,
            "port": port,
            "ready_path": "/healthz",
            "cpu": "20m",
            "memory": "128Mi",
        }

    runner.change(with_a_server)
    with runner.start("run", runner.name, "--yes", "--ui", "plain") as started:
        started.wait_for(RUN)
        (pod,) = cluster.pods_of(runner.name, "target")
        ended = started.end()
    (container,) = pod["spec"]["containers"]
    assert [container[key] for key in ("image", "command", "args")] == [image, command, args]
    assert container["readinessProbe"]["httpGet"]["path"] == "/healthz"
    (status,) = pod["status"]["containerStatuses"]
    assert (status["ready"], status["restartCount"]) == (True, 0)

    assert ended.code in FINISHED, ended.errors
    summary = runner.summary()
    assert summary["request_count"]["avg"] > 0
    assert summary["aiperf_svc"]["accounts"]["errored"] == 0
    assert cluster.left_of(runner.name) == []
    assert name not in {found["metadata"]["name"] for found in cluster.objects("namespaces")}
