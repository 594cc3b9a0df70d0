"""The Roles on the operators' page suffice for whole runs without other permissions."""

import secrets
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.running_command import FINISHED
from tests.support.stack.commands import PROJECT
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import RUN, Runner

pytestmark = pytest.mark.cluster
RBAC = "rbac.authorization.k8s.io"
STACKS, NAMESPACES = "aiperf-stacks", "aiperf-namespaces"


class LesserUser:
    """A service account of a namespace, copies of the page's Roles, and a kubeconfig."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self._cluster, self._namespace = cluster, namespace
        self._name = f"lesser-{secrets.token_hex(3)}"
        self.kubeconfig = folder / "lesser.yaml"
        cluster.apply(
            {
                "apiVersion": "v1",
                "kind": "ServiceAccount",
                "metadata": {"name": self._name, "namespace": namespace},
            },
            *({**role, "metadata": {"name": self._named(role)}} for role in _documented()),
        )
        token = cluster.kubectl("create", "token", self._name, "-n", namespace).strip()
        view = ("config", "view", "--raw", "--minify", "--flatten", "-o", "json")
        known: dict[str, Any] = yaml.safe_load(cluster.kubectl(*view))
        known["users"] = [{"name": "lesser", "user": {"token": token}}]
        known["contexts"][0]["context"]["user"] = "lesser"
        self.kubeconfig.write_text(yaml.safe_dump(known))

    def may(self, role: str, *, everywhere: bool) -> None:
        """Bind a Role of the page in the account's namespace or in all namespaces."""
        metadata: dict[str, str] = {"name": f"{role}-{self._name}"}
        if not everywhere:
            metadata["namespace"] = self._namespace
        self._cluster.apply(
            {
                "apiVersion": f"{RBAC}/v1",
                "kind": "ClusterRoleBinding" if everywhere else "RoleBinding",
                "metadata": metadata,
                "roleRef": {
                    "apiGroup": RBAC,
                    "kind": "ClusterRole",
                    "name": f"{role}-{self._name}",
                },
                "subjects": [
                    {"kind": "ServiceAccount", "name": self._name, "namespace": self._namespace}
                ],
            }
        )

    def may_not(self, role: str) -> None:
        """Remove the binding of a Role in the account's namespace."""
        name = f"{role}-{self._name}"
        self._cluster.kubectl("delete", "rolebinding", name, "-n", self._namespace)

    def use_for(self, runner: Runner) -> None:
        """Use this account for a runner."""
        runner.environ["KUBECONFIG"] = str(self.kubeconfig)

    def remove(self) -> None:
        """Delete the cluster-wide objects. The rest goes with the namespace."""
        names = [self._named(role) for role in _documented()]
        kinds = "clusterrolebindings,clusterroles"
        self._cluster.kubectl("delete", kinds, *names, "--ignore-not-found")

    def _named(self, role: dict[str, Any]) -> str:
        return f"{role['metadata']['name']}-{self._name}"


def _documented() -> list[dict[str, Any]]:
    text = (PROJECT / "docs" / "stacks.md").read_text()
    (block,) = (part for part in text.split("```") if "kind: ClusterRole" in part)
    return list(yaml.safe_load_all(block.removeprefix("yaml\n")))


@pytest.fixture
def lesser(cluster: Cluster, owners_namespace: str, tmp_path: Path) -> Iterator[LesserUser]:
    made = LesserUser(cluster, owners_namespace, tmp_path)
    yield made
    made.remove()


def _assert_whole(runner: Runner, cluster: Cluster) -> str:
    """Check a successful run without missing permissions and return its output."""
    ended = runner.run()
    assert ended.code in FINISHED, ended.errors
    assert "✓ permissions: all " in ended.errors
    assert "✓ deadline's rights: " in ended.errors
    assert "✓ way to the results: port-forward" in ended.errors
    assert runner.summary()["request_count"]["avg"] > 0
    assert cluster.of_stack(runner.name) == []
    return ended.errors


def test_documented_role_suffices_for_a_guest(
    cluster: Cluster, make_runner: Callable[[], Runner], owners_namespace: str, lesser: LesserUser
) -> None:
    runner = make_runner()
    where = {"mode": "existing", "name": owners_namespace}
    runner.change(lambda benchmark: benchmark["deployment"].update(namespace=where))
    lesser.may(STACKS, everywhere=False)
    lesser.use_for(runner)
    output = _assert_whole(runner, cluster)
    assert "✓ quota: " in output
    assert "✓ admission: " in output


def test_both_documented_roles_suffice_for_own_namespaces(
    cluster: Cluster, make_runner: Callable[[], Runner], lesser: LesserUser
) -> None:
    runner = make_runner()
    lesser.may(STACKS, everywhere=True)
    lesser.may(NAMESPACES, everywhere=True)
    lesser.use_for(runner)
    _assert_whole(runner, cluster)


@pytest.mark.gate
def test_lost_rights_are_not_reported_as_removal(
    cluster: Cluster, make_runner: Callable[[], Runner], owners_namespace: str, lesser: LesserUser
) -> None:
    runner = make_runner()
    where = {"mode": "existing", "name": owners_namespace}
    runner.change(lambda benchmark: benchmark["deployment"].update(namespace=where))
    runner.change(lambda benchmark: benchmark["load"].update(duration="4m"))
    lesser.may(STACKS, everywhere=False)
    lesser.use_for(runner)
    with runner.start("run", runner.name, "--yes", "--ui", "plain", "--json") as command:
        command.wait_for(RUN)
        lesser.may_not(STACKS)
        # The second interrupt skips the results, which cannot be fetched.
        command.send(signal.SIGINT)
        command.wait_for("Stopping. ")
        command.send(signal.SIGINT)
        ended = command.end()
    assert ended.code == ExitCode.UNVERIFIED, ended.errors
    assert cluster.of_stack(runner.name) != []
    assert "nothing is left" not in ended.errors
    assert "leak check: " not in ended.errors
    assert "lists objects that are gone" not in ended.errors
    first = f"stack {runner.name}: it could not be removed: the right to delete configmaps, "
    assert first in ended.errors
    assert "  it is unknown whether anything is left: " in ended.errors
    assert f"when the rights are restored: aiperf-svc gc {runner.name}" in ended.errors
    assert runner.call("gc", runner.name, "--yes").code == ExitCode.UNVERIFIED
    assert cluster.of_stack(runner.name) != []

    lesser.may(STACKS, everywhere=False)
    removed = runner.call("gc", runner.name, "--yes")
    assert removed.code == ExitCode.OK, removed.errors
    assert "nothing is left of the types that the stack uses; " in removed.errors
    assert cluster.of_stack(runner.name) == []
