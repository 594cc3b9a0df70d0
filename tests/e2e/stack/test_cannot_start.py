"""A stack that cannot start: `up` fails in time and names the cause, and `destroy` removes
everything that was created."""

import contextlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from aiperf_svc.domain.exit_codes import ExitCode
from tests.support.stack.commands import Ended
from tests.support.stack.real_cluster import Cluster
from tests.support.stack.real_runner import Runner
from tests.support.stack.real_stack import Config, Stack, run_all, shrink

pytestmark = pytest.mark.cluster

READY_S = 15
"""Long enough for a healthy pod to start, even next to another stack."""
QUOTA_PODS = 3


@dataclass
class Failure:
    """A stack and the result of its `up`."""

    stack: Stack
    change: Callable[[Config], None]
    ended: Ended | None = None

    def happen(self) -> None:
        """Run `up`, which fails, and `destroy`, which succeeds."""
        self.stack.change(shrink)
        self.stack.change(self.change)
        self.ended = self.stack.try_up()
        self.stack.destroy()

    def output(self) -> str:
        """Return Pulumi's error message."""
        assert self.ended is not None
        assert self.ended.code != 0
        return self.ended.out + self.ended.errors


def with_short_timeouts(benchmark: Config) -> None:
    """Time out early."""
    benchmark["deployment"]["ready_timeout"] = f"{READY_S}s"


@pytest.fixture(scope="module")
def full_namespace(cluster: Cluster) -> Iterator[str]:
    """Yield another owner's namespace with a quota of a few pods."""
    name = f"owner-{secrets.token_hex(3)}"
    metadata = {"name": "few-pods", "namespace": name}
    cluster.apply(
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}},
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": metadata,
            "spec": {"hard": {"pods": str(QUOTA_PODS)}},
        },
    )
    yield name
    cluster.kubectl("delete", "namespace", name, timeout_s=120.0)


@pytest.fixture(scope="module")
def failures(make_shared_stack: Callable[[], Stack], full_namespace: str) -> dict[str, Failure]:
    """Start two stacks that cannot start, concurrently, and check that both leave nothing."""

    def with_quota(benchmark: Config) -> None:
        with_short_timeouts(benchmark)
        deployment = benchmark["deployment"]
        deployment["namespace"] = {"mode": "existing", "name": full_namespace}

    changes = {"image": with_short_timeouts, "quota": with_quota}
    found = {name: Failure(make_shared_stack(), change) for name, change in changes.items()}
    found["image"].stack.environ["AIPERF_IMAGE"] = "localhost/aiperf-svc:there-is-none"
    run_all(*(failure.happen for failure in found.values()))
    return found


def test_unpullable_image_is_named(failures: dict[str, Failure]) -> None:
    output = failures["image"].output()
    assert "localhost/aiperf-svc:there-is-none" in output
    assert "ImagePull" in output or "ErrImagePull" in output


def test_deployment_without_pods_under_quota_is_named(failures: dict[str, Failure]) -> None:
    # Pulumi does not report why a Deployment has no pods; `aiperf-svc run` does.
    failure = failures["quota"]
    output = failure.output()
    assert f"-{failure.stack.name}' timed out waiting to be Ready" in output
    assert "Minimum number of live Pods was not attained" in output


@pytest.mark.gate
def test_small_quota_is_named_before_creation(
    cluster: Cluster, make_runner: Callable[[], Runner], full_namespace: str
) -> None:
    runner = make_runner()
    runner.use("bench-smoke")
    place = {"mode": "existing", "name": full_namespace}
    runner.change(lambda benchmark: benchmark["deployment"].update(namespace=place))
    ended = runner.run()
    assert ended.code == ExitCode.ERROR, ended.errors
    assert f"few-pods: pods: the stack asks for 9, and {QUOTA_PODS} of {QUOTA_PODS} are left" in (
        ended.errors
    )
    assert cluster.of_stack(runner.name) == []


@contextlib.contextmanager
def owner_wanted(cluster: Cluster, namespace: str, group: str, resource: str) -> Iterator[str]:
    """Create a policy for one namespace: these objects need an owner. Yield the policy's name."""
    name, kind = f"owner-{namespace}", "ValidatingAdmissionPolicy"
    version = "admissionregistration.k8s.io/v1"
    rule = {"apiGroups": [group], "apiVersions": ["v1"], "resources": [resource]}
    policy = {
        "matchConstraints": {"resourceRules": [rule | {"operations": ["CREATE"]}]},
        "validations": [{"expression": "'owner' in object.metadata.labels", "message": "no owner"}],
    }
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    binding = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": selector},
    }
    cluster.apply(
        {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": policy},
        {
            "apiVersion": version,
            "kind": f"{kind}Binding",
            "metadata": {"name": name},
            "spec": binding,
        },
    )
    try:
        yield name
    finally:
        cluster.kubectl("delete", f"{kind}Binding,{kind}".lower(), name)


@pytest.mark.parametrize(("group", "resource"), [("apps", "deployments"), ("", "pods")])
def test_admission_rule_met_only_by_up_is_named(
    cluster: Cluster, make_runner: Callable[[], Runner], group: str, resource: str
) -> None:
    runner, namespace = make_runner(), f"bench-{secrets.token_hex(3)}"
    where = {"mode": "create", "name": namespace}
    runner.change(lambda benchmark: benchmark["deployment"].update(namespace=where))
    with owner_wanted(cluster, namespace, group, resource) as rule:
        ended = runner.run()
    assert ended.code == ExitCode.ERROR, ended.errors
    assert "✓ admission: all " in ended.errors
    assert f"ValidatingAdmissionPolicy '{rule}' with binding '{rule}'" in ended.errors
    assert "no owner" in ended.errors
    assert "set deployment.labels and deployment.annotations" in ended.errors
    assert cluster.left_of(runner.name) == []
